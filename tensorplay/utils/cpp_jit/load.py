"""Loaded libraries and their kernels as Python objects."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import json
import os
import secrets
import shutil
import sys
import tempfile
import weakref
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tensorplay import _native
from tensorplay.utils.cpp_jit.engine import engine
from tensorplay.utils.cpp_jit.kernel import CudaKernel, Kernel
from tensorplay.utils.cpp_jit.objects import registered
from tensorplay.utils.cpp_jit.places import place_of
from tensorplay.utils.cpp_jit.source import Parameter
from tensorplay.utils.cpp_jit.type_schema import type_schema

if TYPE_CHECKING:
    from tensorplay.utils.cpp_jit.build import Build

__all__ = ["Kernel", "Module", "load_build", "load_module", "system_lib"]

Signatures = Mapping[str, Sequence[Sequence[str | None]]]


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
        #: Kind ("function" or "class") and name of what it registers for the whole process.
        self.registers: tuple[tuple[str, str], ...] = ()
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
                function,
                name,
                self.__name__,
                parameters,
                doc,
                self._read_only.get(name, ()),
                place=functools.partial(place_of, self.path, name),
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


#: Ways to build a library that make its registrations wait until it is loaded.
_REGISTERING = frozenset({"full", "files"})

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
    load = functools.partial(
        _open,
        build.library,
        private=not debug,
        keep_module_alive=not build.unloadable if keep is None else keep,
    )
    if build.rung in _REGISTERING:
        native, registers = registered(load, build.name)
    else:
        native, registers = load(), ()
    module = Module(
        native,
        build.name,
        build.library,
        build.signatures,
        build.docs,
        (build.cuda or {}).get("launch", ()),
        build.results,
    )
    module.build = build
    module.registers = registers
    if not build.stateful and not registers:
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

    Returns
    -------
    Module
        Its functions are attributes.

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
    load = functools.partial(_open, file, private=ours, **kwargs)
    try:
        if ours and described.get("rung") in _REGISTERING:
            module, _ = registered(load, described["name"])
        else:
            module = load()
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

    Returns
    -------
    Module
        Its functions are attributes.
    """
    return Module(engine().system_lib(symbol_prefix), "system", None)


#: Room for the C type fenv_t, which has 28 to 32 bytes on the processors in use.
_FENV_BYTES = 256


def _open(path: Path, *, private: bool, **kwargs: Any) -> Any:
    """Load a library through the engine.

    Cached libraries are loaded from a private copy that has no name afterwards: whatever happens to
    the file in the cache then, cleaned or overwritten, cannot pull code from under the process.
    """
    ffi = engine()
    if _native.core is not None:
        _native.core.park_threads_at_exit()
    with _arithmetic_kept():
        return _open_file(ffi, path, private=private, **kwargs)


@contextlib.contextmanager
def _arithmetic_kept() -> Iterator[None]:
    """Leave this thread's floating-point arithmetic as it was before a library was loaded.

    With -ffast-math and -Ofast, GCC before version 13 links an object into a library which makes
    the thread that loads it take subnormal numbers for zero, in all code from then on: NumPy's too.
    """
    if sys.platform == "win32":  # its compilers link nothing of the kind
        yield
        return
    libc = ctypes.CDLL(None)
    state = ctypes.create_string_buffer(_FENV_BYTES)
    libc.fegetenv(state)
    try:
        yield
    finally:
        libc.fesetenv(state)


def _open_file(ffi: Any, path: Path, *, private: bool, **kwargs: Any) -> Any:
    if private and sys.platform != "win32":
        root = path.parent.parent.parent / "tmp"
        with contextlib.suppress(OSError):
            # A cache that cannot be written to: its files cannot be damaged by us either.
            root.mkdir(parents=True, exist_ok=True)
            return _open_copy(path, root if _named(root) else Path(tempfile.gettempdir()), kwargs)
    named = _named(path)
    if named is None:
        return _open_copy(path, Path(tempfile.gettempdir()), kwargs)
    return ffi.load_module(named, **kwargs)


def _open_copy(path: Path, folder: Path, options: Mapping[str, Any]) -> Any:
    # Its name goes on as the library's: a crash says by it whose code that was.
    copy = folder / f"load-{os.getpid()}-{secrets.token_hex(6)}-{path.name}"
    try:
        shutil.copyfile(path, copy)
        named = _named(copy)
        if named is None:
            raise RuntimeError(
                f"[load] expected a folder for temporary files whose name is UTF-8, got {folder}. "
                "Set the environment variable TMPDIR to another one."
            )
        return engine().load_module(named, **options)
    finally:
        with contextlib.suppress(OSError):
            copy.unlink()


def _named(path: Path) -> str | None:
    """Return a path as the engine takes it, or None where it cannot: its text becomes UTF-8.

    Python reads names of files in the encoding of the locale, such as ASCII, and keeps bytes that
    are none of it in a form of its own.
    """
    try:
        return os.fsencode(path).decode("utf-8")
    except UnicodeDecodeError:
        return None
