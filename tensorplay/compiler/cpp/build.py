"""From the source of kernels to a loaded library, by the cache of `cpp_jit` without its headers."""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tensorplay.utils.cpp_jit import toolchain
from tensorplay.utils.cpp_jit.build import find_or_build
from tensorplay.utils.cpp_jit.commands import Traits
from tensorplay.utils.cpp_jit.compile import Product
from tensorplay.utils.cpp_jit.errors import BuildError, MissingToolError
from tensorplay.utils.cpp_jit.store import Cache, default_cache, digest

__all__ = ["NEEDED", "Library", "arguments", "is_new", "library_of"]

HEADERS: Final = ("vector.h", "vector_math.h")
#: Packages of the extra `jit` without which nothing can be built.
NEEDED: Final = ("platformdirs", "filelock")
_HERE: Final = Path(__file__).parent
_OUTPUT: Final = "library"


@dataclass(frozen=True)
class Library:
    """A loaded library of kernels.

    Parameters
    ----------
    handle
        Of ctypes.
    lanes
        Elements that a kernel takes at a time; rows are padded to a multiple of them.
    seconds
        Time that the compiler took.
    cached
        Whether it was found in the cache of builds.
    command
        The compiler's command line.
    """

    handle: Any
    lanes: int
    seconds: float
    cached: bool
    command: tuple[str, ...]

    def address(self, name: str) -> int:
        """Return the address of a function."""
        return ctypes.cast(getattr(self.handle, name), ctypes.c_void_p).value or 0


def arguments(traits: Traits, source: str, output: str) -> tuple[str, ...]:
    """Return the words of the compilation of kernels, after the compiler's name.

    Multiplications and additions are not contracted, so that elementwise arithmetic gives the bits
    of eager execution; integers wrap.
    """
    linker = (f"-fuse-ld={traits.linker}",) if traits.linker else ()
    libraries: tuple[str, ...] = ("-lm",)
    if sys.platform.startswith("linux"):
        libraries = ("-Wl,--as-needed", "-lmvec", "-lm") if _has_libmvec() else libraries
    return (
        *("-std=c++17", "-O2", "-fPIC", "-shared", "-march=native"),
        *("-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math", "-fwrapv"),
        *("-fno-exceptions", "-fno-rtti", "-fvisibility=default", "-Wno-psabi"),
        *(("-fno-gnu-unique",) if traits.kind == "gcc" else ()),
        *(source, *linker, *libraries, "-o", output),
    )


@functools.lru_cache(maxsize=1)
def _has_libmvec() -> bool:
    """Tell whether the process's C library comes with glibc's vector functions."""
    try:
        ctypes.CDLL("libmvec.so.1")
    except OSError:
        return False
    return True


@functools.lru_cache(maxsize=1)
def _headers() -> dict[str, str]:
    return {name: (_HERE / name).read_text("utf-8") for name in HEADERS}


def _produce(source: str, work: Path, compiler: toolchain.Compiler, cache: Cache) -> Product:
    traits = toolchain.traits(compiler, cache.root)
    if traits.kind not in {"gcc", "clang"}:
        raise BuildError(
            f"the kernels of tensorplay.compile are written for g++ and clang, got "
            f"{compiler.command[0]} ({traits.kind}). Set CXX to one of them."
        )
    for name, text in (*_headers().items(), ("source.cpp", source)):
        (work / name).write_text(text, "utf-8", newline="")
    done = toolchain.run(compiler, arguments(traits, "source.cpp", _OUTPUT), work)
    if done.returncode:
        raise BuildError(
            toolchain.why_too_old(compiler, traits)
            or f"the source that tensorplay.compile wrote does not compile:\n{done.output}",
            log=done.output,
            commands=(done.command,),
        )
    return Product(
        library=_OUTPUT,
        commands=(done.command,),
        diagnostics=(),
        dependencies=(),
        precompiled=None,
        rung="kernels",
        log=done.output,
    )


_loaded: dict[str, Library] = {}
_lock = threading.Lock()


def is_new(source: str) -> bool:
    """Tell whether this process has no library of a source yet."""
    return source not in _loaded


def library_of(source: str) -> Library:
    """Return the library of a source: of this process, of the cache of builds, or a new one.

    Raises
    ------
    MissingToolError
        It has to be built and there is no compiler, or the extra ``jit`` is not installed.
    BuildError
        The compiler refuses it.
    """
    found = _loaded.get(source)
    if found is not None:
        return found
    absent = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if absent:
        message = (
            f"{' and '.join(absent)}, which the cache of builds needs, not installed. "
            "Write pip install 'tensorplay-workbench[jit]'."
        )
        raise MissingToolError(message)
    traits_key = "libmvec" if _has_libmvec() else ""
    request = digest(
        "kernels 1",
        source,
        *_headers().values(),
        toolchain.processor(),
        toolchain.environment_key(),
        traits_key,
        sys.platform,
    )

    def produce(work: Path, compiler: toolchain.Compiler, cache: Cache) -> Product:
        return _produce(source, work, compiler, cache)

    build = find_or_build("kernels", request, default_cache(), produce, _facts)
    handle = ctypes.CDLL(str(build.library))
    lanes = ctypes.c_int64.in_dll(handle, "lanes").value
    library = Library(handle, lanes, build.seconds, build.cached, build.commands[-1])
    with _lock:
        return _loaded.setdefault(source, library)


def _facts() -> dict[str, Any]:
    return {
        "signatures": {},
        "results": {},
        "docs": {},
        "stateful": False,
        "unloadable": False,
        "inputs": {},
    }
