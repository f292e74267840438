"""Loaded libraries and their kernels as Python objects."""

from __future__ import annotations

import contextlib
import functools
import inspect
import json
import os
import re
import secrets
import shutil
import sys
import weakref
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from tensorplay import _native
from tensorplay.utils.cpp_jit.engine import engine
from tensorplay.utils.cpp_jit.source import Parameter
from tensorplay.utils.cpp_jit.type_schema import type_schema

if TYPE_CHECKING:
    from tensorplay.utils.cpp_jit.build import Build

Signatures = Mapping[str, Sequence[Sequence[str | None]]]
_PLAIN = frozenset({int, float, bool, str, bytes, type(None)})
_CONTAINERS = (list, tuple, dict)
# The engine converts containers by recursion in C, which ends the process where it is too deep.
_MAX_DEPTH = 200
# Engine types whose null a kernel has no reason to expect: it would call or read through it.
_NOT_NULL = re.compile(
    r"^(const\s+)?(tvm::ffi::|ffi::)?(Function|TypedFunction<.*>|Module)\b(?!\s*\*)"
)


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
    ) -> None:
        self._function = function
        self._parameters = tuple(parameters) if parameters is not None else None
        self._read_only = frozenset(read_only)
        self._not_null = tuple(
            i for i, p in enumerate(self._parameters or ()) if _NOT_NULL.match(p.type.strip())
        )
        if self._parameters is not None:
            self._set_plain_call(function, len(self._parameters), not self._not_null)
        self.__name__ = name
        self.__qualname__ = f"{module}.{name}"
        self.__module__ = module
        self.__doc__ = doc or f"Kernel `{name}` of the library `{module}`."
        if self._parameters is not None and all(p.name for p in self._parameters):
            with contextlib.suppress(ValueError):  # such as a default before a parameter without
                self.__signature__ = inspect.Signature([_inspected(p) for p in self._parameters])

    def __repr__(self) -> str:
        return f"<kernel {self.__module__}::{self.__name__}>"

    # The base calls the engine where nothing has to be looked at, and this where something has.
    def _call_slowly(self, *args: Any, **kwargs: Any) -> Any:
        if kwargs or (self._parameters is not None and len(args) < len(self._parameters)):
            args = self._bind(args, kwargs)
        for position, value in enumerate(args):
            if isinstance(value, _CONTAINERS):
                self._check_depth(position, value)
        for position in self._not_null:
            if position < len(args) and args[position] is None:
                raise TypeError(
                    f"[{self._shown}] {self._argument(position)}: expected a function or module, "
                    "got None. Write tvm::ffi::Optional<…> in C++ if it may be left out."
                )
        try:
            result = self._function(*args)
        except BufferError as error:
            # An argument refused to be exported, so the kernel has not run.
            return self._call_guarded(args, error)
        return self._result(result)

    def _result(self, value: Any) -> Any:
        """Return what the engine gave as what a person expects."""
        return value if type(value) in _PLAIN else _from_engine(value)

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
        parameters = self._parameters or ()
        if position < len(parameters) and parameters[position].name:
            return f"argument {parameters[position].name!r}"
        return f"argument #{position}"

    def _check_depth(self, position: int, value: Any) -> None:
        """Refuse a container that holds itself or has more levels than a stack has room for."""
        level = [value]
        for _ in range(_MAX_DEPTH):
            level = [
                inner
                for outer in level
                for inner in (outer.values() if isinstance(outer, dict) else outer)
                if isinstance(inner, _CONTAINERS)
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
        values = list(args)
        watched: list[tuple[int, np.ndarray[Any, Any], np.ndarray[Any, Any]]] = []
        for position, value in enumerate(args):
            if getattr(value, "requires_grad", False) is True:
                raise RuntimeError(
                    f"[{self._shown}] {self._argument(position)}: expected a tensor that does not "
                    "require grad, got one that does; a kernel records no gradient. Write "
                    "x.detach(), call it under tp.no_grad(), or make it an operator with "
                    "tp.library.custom_op."
                ) from error
            if getattr(value, "is_meta", False) is True:
                raise ValueError(
                    f"[{self._shown}] {self._argument(position)}: expected a tensor with memory on "
                    "cpu, got one on meta. Write tp.empty_like(x, device='cpu') and fill it, or "
                    "make the kernel an operator with tp.library.custom_op and a fake, which "
                    "computes on shapes alone."
                ) from error
            try:
                array = _read_only_array(value)
            except RuntimeError as problem:  # such as the sample of a vmap: it says what to write
                text = re.sub(r"^\[\w+\] ", "", str(problem))
                raise RuntimeError(f"[{self._shown}] {self._argument(position)}: {text}") from error
            if array is None:
                continue
            parameters = self._parameters or ()
            name = parameters[position].name if position < len(parameters) else ""
            if name and name in self._read_only:
                from tensorplay._dlpack import writable_alias

                values[position] = writable_alias(array)
            else:
                before = np.array(array, order="K", copy=True)
                values[position] = before.copy(order="K")
                watched.append((position, before, values[position]))
        if all(new is old for new, old in zip(values, args, strict=True)):
            raise error
        result = self._function(*values)
        for position, before, after in watched:
            if not np.array_equal(_bytes(before), _bytes(after)):
                raise ValueError(
                    f"[{self._shown}] {self._argument(position)}: expected a writable array, "
                    "because the kernel writes to it, got a read-only one (it is unchanged). "
                    "Write x.copy()."
                )
        return self._result(result)


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
        bound._function = launch
        if self._parameters is not None:
            bound._set_plain_call(launch, len(self._parameters), not self._not_null)
        return bound

    def _size(self, what: str, given: Any) -> tuple[int, int, int]:
        if type(given) is int and given > 0:
            return given, 1, 1
        sizes = tuple(given) if isinstance(given, Sequence) else (given,)
        if not 1 <= len(sizes) <= 3 or not all(map(_is_integer, sizes)):
            raise TypeError(
                f"[{self._shown}] expected a {what} of one to three integers, got {given!r}."
            )
        if any(n < 1 for n in sizes):
            raise ValueError(f"[{self._shown}] expected a {what} of positive sizes, got {given!r}.")
        x, y, z = (*map(int, sizes), *(1, 1, 1)[len(sizes) :])
        return x, y, z


def _is_integer(value: Any) -> bool:
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)


def _inspected(parameter: Parameter) -> inspect.Parameter:
    default = parameter.value
    return inspect.Parameter(
        parameter.name,
        inspect.Parameter.POSITIONAL_OR_KEYWORD,
        default=inspect.Parameter.empty if default is NotImplemented else default,
    )


def _read_only_array(value: Any) -> np.ndarray[Any, Any] | None:
    """Return the read-only NumPy array that a value is or holds, or None."""
    if not isinstance(value, np.ndarray) and hasattr(value, "__dlpack__"):
        numpy = getattr(value, "numpy", None)
        value = numpy() if callable(numpy) else None
    if isinstance(value, np.ndarray) and not value.flags.writeable:
        return value
    return None


def _bytes(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return array.ravel(order="K").view(np.uint8)


def _from_engine(value: Any) -> Any:
    """Return an engine value as what a person expects: Tensor, list, dict, str."""
    ffi = engine()
    if isinstance(value, ffi.Tensor):
        from tensorplay._dlpack import from_dlpack

        return from_dlpack(value)
    if isinstance(value, str):
        return str(value)
    if isinstance(value, bytes):
        return bytes(value)
    if isinstance(value, (ffi.Array, ffi.List)):
        return [_from_engine(item) for item in value]
    if isinstance(value, (ffi.Map, ffi.Dict)):
        return {_from_engine(k): _from_engine(v) for k, v in value.items()}
    return value


class Module:
    """A loaded library. Attributes and items are its kernels.

    Parameters
    ----------
    module
        The engine's module.
    name
        Name of the library.
    path
        File that was asked for.
    signatures, docs
        Parameters and documentation by function, where they are known.
    launched
        Those that are CUDA kernels.
    results
        Types that functions return, where they are known.

    Attributes
    ----------
    build
        The `Build` that the library comes from, with its commands, diagnostics and, of CUDA code,
        what it was built for; None for libraries that were built elsewhere.
    """

    build: Build | None = None

    def __init__(
        self,
        module: Any,
        name: str,
        path: Path | None,
        signatures: Signatures | None = None,
        docs: Mapping[str, str] | None = None,
        launched: Collection[str] = (),
        results: Mapping[str, str] | None = None,
    ) -> None:
        self._module = module
        self._results = dict(results or {})
        self._launched = frozenset(launched)
        self._signatures = dict(signatures or {})
        self._docs = dict(docs or {})
        self._kernels: dict[str, Kernel] = {}
        self._read_only: dict[str, frozenset[str]] = {}
        self.__name__ = name
        self.path = path
        if path is not None:
            self.__file__ = str(path)

    def __repr__(self) -> str:
        return f"<library {self.__name__!r} from {str(self.path)!r}>"

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *self._signatures, *self._kernels})

    def implements_function(self, name: str) -> bool:
        """Return whether the library exports a function."""
        return bool(self._module.implements_function(name))

    def get_function(self, name: str) -> Kernel:
        """Return a kernel by name.

        Raises
        ------
        AttributeError
            The library exports no such function.
        """
        kernel = self._kernels.get(name)
        if kernel is None:
            try:
                function = self._module.get_function(name)
            except AttributeError:
                raise AttributeError(
                    f"[cpp_jit] library {self.__name__!r} has no function {name!r}. Those known of "
                    f"it: {', '.join(sorted(self._signatures)) or 'none'}.",
                    name=name,
                    obj=self,
                ) from None
            known = self._signatures.get(name)
            parameters = None
            if known is not None:
                parameters = [Parameter(str(p[0]), str(p[1]), p[2]) for p in known]
            doc = self._docs.get(name) or self.get_function_doc(name)
            kind = CudaKernel if name in self._launched else Kernel
            kernel = kind(
                function, name, self.__name__, parameters, doc, self._read_only.get(name, ())
            )
            self._kernels[name] = kernel
        return kernel

    def get_function_doc(self, name: str) -> str | None:
        """Return the documentation that an export carries, or None."""
        doc: str | None = self._module.get_function_doc(name)
        return doc

    def get_function_metadata(self, name: str) -> dict[str, Any] | None:
        """Return the types of an export as the engine describes them.

        Returns
        -------
        dict or None
            ``{"type_schema": text}``, the text being the engine's JSON of the C++ signature (see
            ``tvm_ffi.core.TypeSchema.from_json_str``): compiled in, or else from the source. None
            where neither is known, as of files that were built elsewhere, or of functions that a
            macro makes.
        """
        metadata: dict[str, Any] | None = self._module.get_function_metadata(name)
        known = self._signatures.get(name)
        if metadata or known is None or name not in self._results:
            return metadata
        if not self.implements_function(name):
            return None
        return {"type_schema": type_schema(self._results[name], [str(p[1]) for p in known])}

    def declare_read_only(self, function: str, parameters: Collection[str]) -> None:
        """State that a kernel never writes to some arguments.

        Read-only arrays are then passed for them without a copy. The statement is not checked: make
        it only from what the C++ types guarantee.
        """
        self._read_only[function] = frozenset(parameters)
        self._kernels.pop(function, None)

    def __getattr__(self, name: str) -> Kernel:
        if name.startswith("__"):
            raise AttributeError(name)
        return self.get_function(name)

    def __getitem__(self, name: str) -> Kernel:
        return self.get_function(name)


_loaded: weakref.WeakValueDictionary[Path, Module] = weakref.WeakValueDictionary()


def load_build(build: Build, keep: bool | None = None) -> Module:
    """Load a build; one without state of its own is loaded once as long as it is in use.

    Parameters
    ----------
    build
        What to load.
    keep
        As `Build.load` has it.
    """
    known = _loaded.get(build.library)
    if known is not None:
        return known
    debug = any(word.startswith("-g") for command in build.commands for word in command)
    module = Module(
        _open(
            build.library,
            private=not debug,
            keep_module_alive=not build.unloadable if keep is None else keep,
        ),
        build.name,
        build.library,
        build.signatures,
        build.docs,
        (build.cuda or {}).get("launch", ()),
        build.results,
    )
    module.build = build
    if not build.stateful:
        _loaded[build.library] = module
    return module


def load_module(path: str | os.PathLike[str], **kwargs: Any) -> Module:
    """Load a library by path.

    Parameters
    ----------
    path
        A shared library that `build_inline`, `build` or the engine made.
    **kwargs
        ``keep_module_alive=True``: keep the library loaded until the process ends.

    Raises
    ------
    RuntimeError
        There is no such file, or the loader refuses it.
    """
    file = Path(path)
    if not file.is_file():
        raise RuntimeError(
            f"[load_module] argument 'path': expected a shared library, and there is no file "
            f"{file}. Write the path that cpp_jit.build_inline or cpp_jit.build returned."
        )
    described: dict[str, Any] = {}
    with contextlib.suppress(OSError, ValueError):
        described = json.loads((file.parent / "entry.json").read_text("utf-8"))
    ours = described.get("library") == file.name
    try:
        module = _open(file, private=ours, **kwargs)
    except RuntimeError as error:
        reason = str(error).rpartition(f"{file}: ")[2] or str(error)
        raise RuntimeError(
            f"[load_module] argument 'path': expected a shared library that this process can load, "
            f"got {file}: {reason}. Build it again on this machine with cpp_jit.build."
        ) from error
    name = described["name"] if ours else file.stem.removeprefix("lib")
    if not ours:
        described = {}
    launched = (described.get("cuda") or {}).get("launch", ())
    return Module(
        module,
        name,
        file,
        described.get("signatures"),
        described.get("docs"),
        launched,
        described.get("results"),
    )


def system_lib(symbol_prefix: str = "") -> Module:
    """Return the kernels that are linked into the process itself.

    Parameters
    ----------
    symbol_prefix
        Put before a name when it is looked up.
    """
    return Module(engine().system_lib(symbol_prefix), "system", None)


def _open(path: Path, *, private: bool, **kwargs: Any) -> Any:
    """Load a library through the engine.

    Cached libraries are loaded from a private copy that has no name afterwards: whatever happens to
    the file in the cache then, cleaned or overwritten, cannot pull code from under the process.
    """
    ffi = engine()
    if private and sys.platform != "win32":
        root = path.parent.parent.parent / "tmp"
        copy = root / f"load-{os.getpid()}-{secrets.token_hex(6)}{path.suffix}"
        try:
            root.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, copy)
            return ffi.load_module(copy, **kwargs)
        except OSError:
            pass  # a cache that cannot be written to: its files cannot be damaged by us either
        finally:
            with contextlib.suppress(OSError):
                copy.unlink()
    return ffi.load_module(path, **kwargs)
