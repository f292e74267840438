"""One exported function of a library as a Python object."""

from __future__ import annotations

import contextlib
import functools
import inspect
import re
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NoReturn

import numpy as np

from tensorplay import _native
from tensorplay._dlpack import writable_alias
from tensorplay.utils.cpp_jit.callbacks import Callback, joined_traceback, original
from tensorplay.utils.cpp_jit.engine import engine
from tensorplay.utils.cpp_jit.held import prepare
from tensorplay.utils.cpp_jit.places import frame_of
from tensorplay.utils.cpp_jit.refusals import (
    argument,
    mismatch,
    unconverted,
    undescribed,
    unreadable,
)
from tensorplay.utils.cpp_jit.source import Parameter
from tensorplay.utils.cpp_jit.values import (
    CONTAINERS,
    PLAIN,
    RefusedError,
    from_engine,
    leaves,
    replaced,
    to_engine,
    with_our_word,
)

__all__ = ["CudaKernel", "Kernel", "tell"]

# The engine converts containers by recursion in C, which ends the process where it is too deep.
_MAX_DEPTH = 200
# Engine types whose null a kernel has no reason to expect: it would call or read through it.
_NOT_NULL = re.compile(
    r"^(const\s+)?(tvm::ffi::|ffi::)?((Function|Module)\b|TypedFunction<.*>)(?!\s*\*)"
)
# The largest size that a launch has a place for; how many a GPU takes is told when it runs.
_MOST = 2**31 - 1
# Parameters that are memory during the call: nothing of the engine's has to hold it.
_VIEW = re.compile(
    r"\s*(const\s+)?(::)?((tvm::ffi::|ffi::)?TensorView\s*(const\s*)?&?|tp::(In|Out|InOut)<.*>)\s*$",
    re.DOTALL,
)
_MOST_VIEWS = 16  # bits of the word that tells which they are


class Kernel(_native.CallBase):  # type: ignore[misc]  # which one it is is known at run time
    """One exported function of a library.

    Takes tensors, NumPy arrays and whatever else speaks DLPack without copying them, scalars and
    strings; positional, or by the names in the C++ source. Tensors that it returns come back as
    `tensorplay.Tensor` over the same memory.

    Raises
    ------
    TypeError
        Number or kinds of arguments do not fit the C++ signature.
    ValueError
        An integer does not fit its C++ type; the kernel wrote to a read-only array;
        an argument has no memory (device meta).
    RuntimeError
        A tensor requires grad while gradients are recorded: a kernel records none; or it is one
        sample of a ``vmap``.
    """

    def __init__(
        self,
        function: Any,
        name: str,
        module: str,
        parameters: Sequence[Parameter] | None,
        doc: str | None,
        read_only: Collection[str] = (),
        *,
        place: Callable[[], tuple[str, int] | None] | None = None,
    ) -> None:
        self._place = place
        #: Told of what a call raises, before it is raised; None where nobody wants to know.
        self.on_error: Callable[[BaseException], object] | None = None
        self._parameters = tuple(parameters) if parameters is not None else None
        self._read_only = frozenset(read_only)
        self._not_null = tuple(
            i for i, p in enumerate(self._parameters or ()) if _NOT_NULL.match(p.type.strip())
        )
        self._set_function(function)
        self.__name__ = name
        self.__qualname__ = f"{module}.{name}"
        self.__module__ = module
        self.__doc__ = doc or f"Kernel `{name}` of the library `{module}`."
        if self._parameters is not None and all(p.name for p in self._parameters):
            with contextlib.suppress(ValueError):  # such as a default before a parameter without
                self.__signature__ = inspect.Signature([_inspected(p) for p in self._parameters])

    def _set_function(self, function: Any) -> None:
        """Set what is called, and how the base calls it where it need not ask this class."""
        self._function = function
        if self._parameters is None:
            return
        # Past the engine's Python layer goes what it would call without the interpreter's lock.
        direct = isinstance(function, engine().Function) and function.release_gil and prepare()
        views = [i for i, p in enumerate(self._parameters[:_MOST_VIEWS]) if _VIEW.match(p.type)]
        self._set_plain_call(
            function,
            function.__chandle__() if direct else 0,
            len(self._parameters),
            not self._not_null,
            sum(1 << i for i in views),
        )

    def __repr__(self) -> str:
        # With the types, as `help` shows this above the documentation.
        shown = [
            f"{p.name}: {p.type}" + (f" = {p.default}" if p.default is not None else "")
            for p in self._parameters or ()
        ]
        listed = f"({', '.join(shown)})" if self._parameters is not None else ""
        return f"<kernel {self.__module__}::{self.__name__}{listed}>"

    # The base calls the engine where nothing has to be looked at, and these where something has.
    def _call_slowly(self, *args: Any, **kwargs: Any) -> Any:
        if kwargs or (self._parameters is not None and len(args) < len(self._parameters)):
            args = self._bind(args, kwargs)
        for position, value in enumerate(args):
            if isinstance(value, CONTAINERS):
                self._check_depth(position, value)
        for position in self._not_null:
            if position < len(args) and args[position] is None:
                raise TypeError(
                    f"[{self._shown}] {self._argument(position)}: expected a function or module, "
                    "got None. Write tvm::ffi::Optional<…> in C++ if it may be left out."
                )
        made: list[Callback] = []
        try:
            given = tuple([to_engine(value, made) for value in args])
        except RefusedError as error:
            raise self._misread(args, error) from None
        try:
            result = self._function(*given)
            failed = None
        except BufferError as error:
            # An argument refused to be exported, so the kernel has not run.
            return self._call_guarded(given, error)
        except Exception as error:  # noqa: BLE001 - it is raised below, without this as context
            failed = self._explained(args, error)
        if failed is not None:
            # The exception holds this frame: what leads from it to the callback through C++, where
            # no collector looks, must not lead back to it.
            for callback in made:
                callback.interrupt = None
            del given
            made.clear()
            raise failed
        for callback in made:
            interrupt, callback.interrupt = callback.interrupt, None
            if interrupt is not None:
                raise interrupt  # the kernel went on, and the person did not mean it to
        return self._result(result)

    def _result(self, value: Any) -> Any:
        """Return what the engine gave as what a person expects."""
        return value if type(value) in PLAIN else from_engine(value)

    def _explained(self, args: tuple[Any, ...], error: BaseException) -> BaseException:
        """Return what to raise for an error of the engine, and tell who asked for it."""
        told = self._told(args, error)
        tell(self.on_error, told)
        return told

    def _told(self, args: tuple[Any, ...], error: BaseException) -> BaseException:
        """Return an error of the engine in our words, or what is behind it.

        The exception of a callback is that very object, with the frames of C++ in the middle. A
        type that does not fit is told with the parameter's name, before the engine's text.
        """
        if isinstance(error, SystemError) and error.__cause__ is not None:
            return error.__cause__  # an interrupt that the kernel asked about, and went on
        behind = original(error)
        if behind is not None:
            place = self._place() if self._place is not None else None
            cell = frame_of(error, place, self.__name__)
            return behind.with_traceback(joined_traceback(behind, cell))
        names = [p.name for p in self._parameters or ()]
        if isinstance(error, ValueError):
            types = [p.type for p in self._parameters or ()]
            return unreadable(error, f"[{self._shown}]", names, types, args) or error
        if isinstance(error, TypeError):
            title = f"[{self._shown}]"
            text = mismatch(error, title, names, args) or unconverted(error, title)
            if text:
                error.args = (text,)
        return error

    def _misread(self, args: tuple[Any, ...], error: RefusedError) -> TypeError:
        """Return the error for what C++ would misread, with the argument that it is in."""
        for position, passed in enumerate(args):
            for path, value in leaves(passed):
                if value is error.value:
                    at = path and f" at {path}"
                    return TypeError(f"[{self._shown}] {self._argument(position)}{at}: {error}")
        return error

    def _bind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Any, ...]:
        """Put keyword arguments and defaults at their positions."""
        parameters = self._parameters
        known = [p.name for p in parameters] if parameters is not None else []
        if kwargs and not all(known):
            raise TypeError(
                f"[{self._shown}] takes positional arguments only: its parameters have no names. "
                "Leave out the keywords."
            )
        values = list(args)
        rest = dict(kwargs)
        for parameter in (parameters or ())[len(args) :]:
            if parameter.name in rest:
                values.append(rest.pop(parameter.name))
            elif parameter.value is not NotImplemented:
                values.append(parameter.value)
            elif rest:
                self._refuse_keyword(known, known[: len(args)], rest, parameter.name)
            else:
                break  # too few: the engine's message shows the whole signature
        if rest:
            self._refuse_keyword(known, known[: len(args)], rest, None)
        return tuple(values)

    def _refuse_keyword(
        self, known: list[str], taken: list[str], rest: Mapping[str, Any], missing: str | None
    ) -> NoReturn:
        listed = ", ".join(known)
        for name in rest:
            if name in taken:
                raise TypeError(f"[{self._shown}] argument {name!r} is given twice")
            if name not in known:
                raise TypeError(
                    f"[{self._shown}] unexpected keyword `{name}`; parameters: {listed}"
                )
        raise TypeError(f"[{self._shown}] argument {missing!r} is missing; parameters: {listed}")

    @property
    def _shown(self) -> str:
        return f"{self.__module__}::{self.__name__}"

    def _argument(self, position: int) -> str:
        return argument(position, [p.name for p in self._parameters or ()])

    def _check_depth(self, position: int, value: Any) -> None:
        """Refuse a container that holds itself or has more levels than a stack has room for."""
        level = [value]
        for _ in range(_MAX_DEPTH):
            level = [
                inner
                for outer in level
                for inner in (outer.values() if isinstance(outer, dict) else outer)
                if isinstance(inner, CONTAINERS)
            ]
            if not level:
                return
            level = list({id(inner): inner for inner in level}.values())
        raise TypeError(
            f"[{self._shown}] {self._argument(position)}: expected at most {_MAX_DEPTH} levels of "
            f"containers, got a {type(value).__name__} that nests deeper or holds itself."
        )

    def _call_guarded(self, args: tuple[Any, ...], error: BufferError) -> Any:
        """Call again with what refused to be exported replaced, where that is safe.

        The old DLPack form that the engine asks for cannot say "read-only", so NumPy refuses such
        arrays. An argument that is known to be read only gets an alias; any other gets a copy that
        is compared afterwards, so a kernel never writes to a read-only array unseen.
        """
        values: list[Any] = []
        watched: list[tuple[str, np.ndarray[Any, Any], np.ndarray[Any, Any]]] = []
        for position, given in enumerate(args):
            by: dict[str, Any] = {}
            for path, value in leaves(given):
                where = f"[{self._shown}] {self._argument(position)}{path and f' at {path}'}"
                self._check_exported(where, value, error)
                array = _read_only_array(value, where, error)
                if array is None:
                    if isinstance(value, np.ndarray):
                        by[path] = with_our_word(value)
                    continue
                if not path and self._is_read_only(position):
                    by[path] = with_our_word(writable_alias(array))
                else:
                    before = np.array(array, order="K", copy=True)
                    copy = before.copy(order="K")
                    by[path] = with_our_word(copy)
                    watched.append((where, before, copy))
            values.append(replaced(given, by) if by else given)
        if all(new is old for new, old in zip(values, args, strict=True)):
            raise self._refused(args, error)
        try:
            result = self._function(*values)
            failed = None
        except BufferError as still:
            raise self._refused(tuple(values), still) from error
        except Exception as raised:  # noqa: BLE001 - it is raised below, without this as context
            failed = self._explained(args, raised)
        if failed is not None:
            raise failed
        for where, before, after in watched:
            if not np.array_equal(_bytes(before), _bytes(after)):
                raise ValueError(
                    f"{where}: expected a writable array, "
                    "because the kernel writes to it, got a read-only one (it is unchanged). "
                    "Write x.copy()."
                )
        return self._result(result)

    def _is_read_only(self, position: int) -> bool:
        parameters = self._parameters or ()
        name = parameters[position].name if position < len(parameters) else ""
        return bool(name) and name in self._read_only

    def _check_exported(self, where: str, value: Any, error: BufferError) -> None:
        """Refuse what has no memory to give or whose history would be lost."""
        if getattr(value, "requires_grad", False) is True:
            raise RuntimeError(
                f"{where}: expected a tensor that does not "
                "require grad, got one that does; a kernel records no gradient. Write "
                "x.detach(), call it under tp.no_grad(), or make it an operator with "
                "tp.library.custom_op."
            ) from error
        if getattr(value, "is_meta", False) is True:
            raise ValueError(
                f"{where}: expected a tensor with memory on "
                "cpu, got one on meta. Write tp.empty_like(x, device='cpu') and fill it, or "
                "make the kernel an operator with tp.library.custom_op and a fake, which "
                "computes on shapes alone."
            ) from error

    def _refused(self, args: tuple[Any, ...], error: BufferError) -> Exception:
        """Return the error for an argument that cannot be exported for a reason of its own."""
        for position, given in enumerate(args):
            for path, value in leaves(given):
                if not hasattr(type(value), "__dlpack__"):
                    continue
                try:
                    value.__dlpack__()
                except (BufferError, TypeError, ValueError) as reason:
                    where = f"[{self._shown}] {self._argument(position)}{path and f' at {path}'}"
                    made = undescribed(where, value, reason)
                    made.__cause__ = error
                    return made
        return error


class CudaKernel(Kernel):
    """A ``__global__`` function of a CUDA text: ``kernel[grid, block](*arguments)`` launches it.

    Grid and block are sizes: an integer or up to three. A third item is the bytes of dynamic shared
    memory, a fourth the stream as an address; without it the engine's current one. The launch
    returns at once, as everywhere in CUDA.

    Raises
    ------
    TypeError
        There is no grid; an argument is of another kind or dtype than the kernel's parameter.
    ValueError
        A tensor is not on a GPU, on another one than those before, or not contiguous.
    RuntimeError
        There is no driver or GPU, no code for this one, or the launch failed.
    """

    def __call__(self, *args: Any, **kwargs: Any) -> Any:  # noqa: D102 - the class says it
        raise TypeError(
            f"[{self._shown}] is a CUDA kernel, which runs on a grid. "
            f"Write {self.__name__}[blocks, threads](…)."
        )

    def __getitem__(self, config: Any) -> Kernel:
        items = config if isinstance(config, tuple) else (config,)
        if not 2 <= len(items) <= 4:
            raise TypeError(
                f"[{self._shown}] expected [grid, block], [grid, block, shared] or "
                f"[grid, block, shared, stream], got {len(items)} items."
            )
        shared = items[2] if len(items) > 2 else 0
        stream: Any = items[3] if len(items) > 3 else None
        sizes = (*self._size("grid", items[0]), *self._size("block", items[1]))
        if not _is_integer(shared) or shared < 0:
            raise TypeError(f"[{self._shown}] expected bytes of shared memory, got {shared!r}.")
        if shared > _MOST:
            raise ValueError(
                f"[{self._shown}] expected at most {_MOST} bytes of shared memory, got {shared!r}."
            )
        if stream is not None:
            if not _is_integer(stream):
                stream = getattr(stream, "cuda_stream", getattr(stream, "ptr", stream))
            if not _is_integer(stream):
                raise TypeError(
                    f"[{self._shown}] expected a stream or its address, got {stream!r}."
                )
            stream = int(stream)
        launch = functools.partial(self._function, *sizes, int(shared), stream)
        # A launch: what is known of the kernel is not worked out again.
        bound = Kernel.__new__(Kernel)
        bound.__dict__.update(self.__dict__)
        bound._set_function(launch)
        return bound

    def _size(self, what: str, given: Any) -> tuple[int, int, int]:
        if type(given) is int and 0 < given <= _MOST:
            return given, 1, 1
        sizes = tuple(given) if isinstance(given, Sequence) else (given,)
        if not 1 <= len(sizes) <= 3 or not all(map(_is_integer, sizes)):
            raise TypeError(
                f"[{self._shown}] expected a {what} of one to three integers, got {given!r}."
            )
        if any(n < 1 for n in sizes):
            raise ValueError(f"[{self._shown}] expected a {what} of positive sizes, got {given!r}.")
        if any(n > _MOST for n in sizes):
            raise ValueError(
                f"[{self._shown}] expected a {what} of sizes up to {_MOST}, got {given!r}."
            )
        x, y, z = (*map(int, sizes), *(1, 1, 1)[len(sizes) :])
        return x, y, z


def tell(listener: Callable[[BaseException], object] | None, error: BaseException) -> None:
    """Tell whoever wants to know what a call raises; what goes wrong there is a warning.

    The error may be of a person's class, whose attributes and text may do anything.
    """
    if listener is None:
        return
    try:
        listener(error)
    except Exception as problem:  # noqa: BLE001 - the error that the person waits for is another
        warnings.warn(
            f"[cpp_jit] who is told of errors failed at a {type(error).__name__}: {problem!r}",
            RuntimeWarning,
            stacklevel=2,
        )


def _is_integer(value: Any) -> bool:
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)


def _inspected(parameter: Parameter) -> inspect.Parameter:
    default = parameter.value
    return inspect.Parameter(
        parameter.name,
        inspect.Parameter.POSITIONAL_OR_KEYWORD,
        default=inspect.Parameter.empty if default is NotImplemented else default,
    )


def _read_only_array(value: Any, where: str, error: BufferError) -> np.ndarray[Any, Any] | None:
    """Return the read-only NumPy array that a value is or holds, or None."""
    if not isinstance(value, np.ndarray) and hasattr(value, "__dlpack__"):
        numpy = getattr(value, "numpy", None)
        try:
            value = numpy() if callable(numpy) else None
        except RuntimeError as problem:  # such as the sample of a vmap: it says what to write
            text = re.sub(r"^\[\w+\] ", "", str(problem))
            raise RuntimeError(f"{where}: {text}") from error
    if isinstance(value, np.ndarray) and not value.flags.writeable:
        return value
    return None


def _bytes(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return array.ravel(order="K").view(np.uint8)
