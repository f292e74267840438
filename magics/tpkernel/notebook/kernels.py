"""What a cell binds in the notebook: operators, plain functions, modules, and blocked names."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

import tensorplay as tp
from tensorplay.library.modules.signatures import EMPTY, make_signature
from tensorplay.library.modules.spec import Argument, KernelSpec, OperatorSpec
from tpkernel.errors import StaleKernelError, did_you_mean
from tpkernel.notebook.tracebacks import has_frames_of_a_person, mark_short

__all__ = ["BlockedName", "Function", "KernelModule", "Operator"]

_SCALARS = frozenset({int, float, bool, str})
_GUARDED = (TypeError, ValueError, IndexError, RuntimeError)


def _shortened(problem: Exception, title: str) -> Exception:
    """Leave a guard's message with the person's own frames; other errors keep all of theirs.

    The kernels have marked errors so that IPython hides frames of ours in those, too.
    """
    text = str(problem)
    if not text.startswith(f"[{title}]"):
        if problem.args == (text,) and not text.startswith("["):  # an exception of the kernel's own
            problem.args = (f"[{title}] {text}",)
        return problem
    return mark_short(problem.with_traceback(None))


def _share(result: tp.Tensor, given: tp.Tensor | np.ndarray[Any, Any]) -> bool:
    array = given.detach().numpy() if isinstance(given, tp.Tensor) else given
    try:
        # NumPy's stubs know -1 and 0 only
        return bool(np.shares_memory(result.detach().numpy(), array, max_work=10_000))  # type: ignore[arg-type]
    except np.exceptions.TooHardError:  # the extents do overlap
        return True


def _plain(args: tuple[Any, ...]) -> bool:
    """Whether no argument needs a second look; the common case, decided without a table."""
    for value in args:
        kind = type(value)
        if kind is tp.Tensor:
            if value.requires_grad:
                return False
        elif kind is np.ndarray:
            if not value.flags.writeable:
                return False
        elif kind not in _SCALARS:
            return False
    return True


class Function:
    """A plain kernel under its own name: keywords, signature, guards; tensors go in without copies.

    Parameters
    ----------
    call
        The guarded C++ function.
    spec
        Its spec.
    copies
        Strided inputs are copied rather than refused.
    """

    def __init__(self, call: Callable[..., Any], spec: KernelSpec, *, copies: bool = False) -> None:
        self._call = call
        self._copies = copies
        self.spec = spec
        self.__name__ = self.__qualname__ = spec.name
        guards = "\n".join(f"    {name}: {guard}" for name, guard in spec.guard_text(copies=copies))
        self.__doc__ = f"{spec.doc}\n\nArguments\n{guards}" if guards else spec.doc
        self.__signature__ = make_signature(
            (a.name, spec.defaults.get(a.name, EMPTY), False) for a in spec.arguments
        )
        self._written = tuple(
            i for i, a in enumerate(spec.arguments) if a.kind == "tensor" and a.writes is not False
        )
        #: Values of parameters that a call may leave out.
        self._defaults = {
            p.name: p.default
            for p in self.__signature__.parameters.values()
            if p.default is not EMPTY
        }

    def __repr__(self) -> str:
        return f"<kernel {self.spec.doc}>"

    def call_through(self, call: Callable[..., Any]) -> None:
        """Call the C++ function through another callable that stands for it."""
        self._call = call

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        """Call the kernel; arguments by position or by name.

        Raises
        ------
        TypeError
            Missing or unknown arguments, wrong kinds or dtypes.
        ValueError
            Shapes, strides, devices or writability that the kernel cannot take.
        RuntimeError
            A tensor that requires grad while grad mode is on; a kernel that returns its argument.
        """
        arguments = self.spec.arguments
        try:
            if kwargs or len(args) != len(arguments):
                args = self._bound(args, kwargs)
            if self._copies or not _plain(args):
                args = tuple(self._prepared(a, v) for a, v in zip(arguments, args, strict=True))
            result = self._call(*args)
        except _GUARDED as problem:
            if tp.compiler.is_compiling():  # about the function that is captured
                raise
            of_a_person = has_frames_of_a_person(problem)
            if of_a_person or not str(problem).startswith(f"[{self.spec.title}]"):
                self._count_writes(args)  # the kernel had begun
            if of_a_person:
                raise
            raise _shortened(problem, self.spec.title) from None
        if self._written:
            self._count_writes(args)
        if result is not None and type(result) not in _SCALARS and not self.spec.alias_ok:
            self._refuse_given(result, args)
        return result

    def _count_writes(self, args: tuple[Any, ...]) -> None:
        """Tell autograd that the tensors which the kernel writes, or may write, have changed."""
        for position in self._written:
            if position < len(args) and isinstance(args[position], tp.Tensor):
                args[position]._bump_version()

    def _refuse_given(self, result: Any, args: tuple[Any, ...]) -> None:
        """Refuse a result on the memory of an argument: it would count its own versions."""
        results = result if isinstance(result, (list, tuple)) else (result,)
        for made in (r for r in results if isinstance(r, tp.Tensor)):
            for argument, value in zip(self.spec.arguments, args, strict=True):
                if isinstance(value, (tp.Tensor, np.ndarray)) and _share(made, value):
                    message = (
                        f"[{self.spec.title}] result: expected memory of its own, got that of "
                        f"argument '{argument.name}'. Return a new tensor, or return void and let "
                        f"the caller use {argument.name}."
                    )
                    raise mark_short(RuntimeError(message))

    def _bound(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
        spec = self.spec
        names = [a.name for a in spec.arguments]
        listed = ", ".join(names) or "none"
        if len(args) > len(names):
            message = (
                f"[{spec.title}] expected {len(names)} arguments ({listed}), got {len(args)}. "
                f"Call {spec.name}({', '.join(names)})."
            )
            raise TypeError(message)
        values = dict(zip(names, args, strict=False))
        for name, value in kwargs.items():
            if name not in names:
                near = did_you_mean(name, names).rstrip(".")
                message = f"[{spec.title}] unexpected keyword `{name}`{near}; parameters: {listed}"
                raise TypeError(message)
            if name in values:
                message = f"[{spec.title}] argument '{name}' is given by position and by name"
                raise TypeError(message)
            values[name] = value
        missing = [n for n in names if n not in values and n not in self._defaults]
        if missing:
            message = f"[{spec.title}] missing argument '{missing[0]}'; parameters: {listed}"
            raise TypeError(message)
        return tuple(values[n] if n in values else self._defaults[n] for n in names)

    def _prepared(self, argument: Argument, value: Any) -> Any:
        if isinstance(value, tp.Tensor):
            if value.requires_grad and tp.is_grad_enabled():
                message = (
                    f"[{self.spec.title}] argument '{argument.name}': expected a tensor outside "
                    "the graph, got one that requires grad; a raw kernel records no gradient. "
                    f"Write {argument.name}.detach(), call it under tp.no_grad(), or declare an "
                    "operator with op: and derivatives: in the front matter."
                )
                raise RuntimeError(message)
            if self._copies and argument.contiguous and argument.writes is False:
                return value.contiguous()
        elif isinstance(value, np.ndarray):
            if (
                argument.kind == "tensor"
                and not value.flags.writeable
                and argument.writes is not False
            ):
                raise ValueError(_read_only(self.spec.title, argument))
            if self._copies and argument.contiguous and argument.writes is False:
                return np.ascontiguousarray(value).reshape(value.shape)
        elif isinstance(value, np.generic):
            return value.item()
        return value


def _read_only(title: str, argument: Argument) -> str:
    where = f"[{title}] argument '{argument.name}': expected writable memory, since the kernel"
    if argument.writes is None:
        return (
            f"{where} may write it, got a read-only array. Read it through a pointer to const in "
            f"the cell, or pass {argument.name}.copy()."
        )
    return f"{where} writes it, got a read-only array. Pass {argument.name}.copy()."


class Operator:
    """A declared operator as the notebook holds it: callable with tensors or NumPy arrays.

    NumPy arrays enter without a copy (read-only ones too, where the operator only reads them);
    results are tensors.

    Parameters
    ----------
    definition
        The ``CustomOpDef`` that the generated module registered.
    spec
        What the cell declared.

    Attributes
    ----------
    origin, library
        What the cell was built from, and the built library: by these it is made again elsewhere.
    """

    def __init__(self, definition: Any, spec: OperatorSpec) -> None:
        self.definition = definition
        self.spec = spec
        self.origin: Any = None
        self.library = ""
        self.__name__ = self.__qualname__ = spec.opname
        self.__doc__ = f"{spec.schema}\n\n{spec.doc}".strip()
        self.__signature__ = inspect.signature(definition)

    @property
    def name(self) -> str:
        """``"namespace::op"``."""
        return self.spec.name

    @property
    def schema(self) -> str:
        """The schema text."""
        return self.spec.schema

    def __getattr__(self, name: str) -> Any:
        # What messages of the runtime say to write: f.register_autograd(…) and the like.
        if name.startswith(("register_", "set_", "checks_", "mutates_")):
            return getattr(self.definition, name)
        message = f"{type(self).__name__!r} object has no attribute {name!r}"
        raise AttributeError(message)

    def __repr__(self) -> str:
        return f"<operator {self.spec.schema}>"

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        """Call the operator.

        Raises
        ------
        TypeError
            Arguments that do not fit the schema, or a dtype that is not admitted.
        ValueError
            Shapes, strides or devices that the kernel cannot take.
        """
        try:
            for name in kwargs:
                known = list(self.__signature__.parameters)
                if name not in known:
                    message = (
                        f"[{self.name}] got an unexpected keyword argument '{name}'"
                        f"{did_you_mean(name, known)} Expected the arguments of {self.schema}."
                    )
                    raise TypeError(message)
            return self.definition(*args, **kwargs)
        except _GUARDED as problem:
            if tp.compiler.is_compiling() or has_frames_of_a_person(problem):
                raise
            raise _shortened(problem, self.name) from None


class KernelModule:
    """What ``--name m`` binds: the cell's functions and operators as attributes.

    Parameters
    ----------
    name
        The module's name.
    members
        Name to operator or function.
    file
        Path of the library.
    """

    def __init__(self, name: str, members: Mapping[str, Any], file: str) -> None:
        self.__name__ = name
        self.__file__ = file
        self._members = dict(members)

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("__"):
            members = self.__dict__.get("_members", {})
            if name in members:
                return members[name]
            message = (
                f"module '{self.__name__}' has no function '{name}'"
                f"{did_you_mean(name, members)} It has {', '.join(members) or 'none'}."
            )
            raise AttributeError(message)
        raise AttributeError(name)

    def __getitem__(self, name: str) -> Any:
        try:
            return self._members[name]
        except KeyError:
            message = f"module '{self.__name__}' has no function '{name}'"
            raise KeyError(message) from None

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self._members]

    def __iter__(self) -> Iterator[str]:
        return iter(self._members)

    def __repr__(self) -> str:
        return f"<kernel module '{self.__name__}': {', '.join(self._members)}>"


class BlockedName:
    """Stands for a name whose cell failed to build; every use raises :class:`StaleKernelError`.

    Parameters
    ----------
    name
        The name.
    reason
        Cell and first error.
    """

    def __init__(self, name: str, reason: str) -> None:
        object.__setattr__(self, "_name", name)
        object.__setattr__(self, "_reason", reason)

    def _error(self) -> StaleKernelError:
        message = f"'{self._name}' is blocked: {self._reason} Fix that cell and run it again."
        if self._reason.endswith("no more."):
            message = f"'{self._name}' is gone: {self._reason}"
        return StaleKernelError(message)

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        """Raise :class:`StaleKernelError`."""
        raise self._error()

    def __getattr__(self, name: str) -> Any:
        if name.startswith(("__", "_repr_", "_ipython_")):  # probed by displays and inspection
            raise AttributeError(name)
        raise self._error()

    def __getitem__(self, name: Any) -> Any:
        raise self._error()

    def __repr__(self) -> str:
        return f"<blocked '{self._name}': {self._reason}>"
