"""The programs a build needs: which compiler, what it can do, and how it is run.

Facts that need a process (kind, version, linker) are asked once per compiler and kept in the build
cache, keyed by the compiler's real path, size and time of change.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib.util
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path

from tensorplay.utils.cpp_jit.errors import (
    BuildCacheWarning,
    BuildError,
    MissingToolError,
    no_compiler,
)

_CANDIDATES = ("g++", "clang++", "c++")
_LINKERS = ("mold", "gold", "lld")
#: Without "defs" a function that is declared but not defined would end the process at its call.
#: Symbolic binding keeps every library's functions and variables its own: a cell's `timezone` or
#: `optind` would otherwise be the C library's. The sections that go are those of the
#: run-time library that a cell does not use.
NO_UNDEFINED = "-Wl,-z,defs"
_LINK_FLAGS: tuple[str, ...] = (
    (NO_UNDEFINED, "-Wl,-Bsymbolic", "-Wl,--gc-sections")
    if sys.platform.startswith("linux")
    else ()
)
#: Variables that change what a compiler reads or writes.
_COMPILER_VARIABLES = (
    "COMPILER_PATH",
    "CPATH",
    "CPLUS_INCLUDE_PATH",
    "C_INCLUDE_PATH",
    "GCC_EXEC_PREFIX",
    "LIBRARY_PATH",
    "MACOSX_DEPLOYMENT_TARGET",
    "SDKROOT",
)


@dataclass(frozen=True)
class Compiler:
    """A C++ compiler as found, without having run it.

    Parameters
    ----------
    command
        Words to start it with (``CXX`` may hold several).
    identity
        Real path, size and time of change of the programs among these words: another compiler, or
        the same one updated, has another identity.
    """

    command: tuple[str, ...]
    identity: str


@dataclass(frozen=True)
class Traits:
    """What running a compiler once told about it.

    Parameters
    ----------
    kind
        ``"gcc"``, ``"clang"`` or ``"unknown"``.
    version
        As the compiler names it.
    linker
        The fastest linker that works, or None for the compiler's own choice.
    link_flags
        Those of our linker flags that work.
    """

    kind: str
    version: str
    linker: str | None
    link_flags: tuple[str, ...]


@dataclass(frozen=True)
class ToolResult:
    """Outcome of one command."""

    command: tuple[str, ...]
    returncode: int
    output: str
    seconds: float


@dataclass(frozen=True)
class Engine:
    """Where the engine's headers and library are, found without importing it."""

    include_paths: tuple[Path, ...]
    library: Path


def find_compiler() -> Compiler:
    """Return the compiler that ``CXX`` names, else g++, clang++, c++ or that of ziglang.

    Raises
    ------
    MissingToolError
        None is on PATH or in the environment's own ``bin`` folder.
    """
    variable = os.environ.get("CXX", "").strip()
    own_bin = str(Path(sys.prefix) / "bin")
    path = os.environ.get("PATH", "")
    if variable:
        words = [variable] if Path(variable).is_file() else shlex.split(variable)
        tried: tuple[str, ...] = (words[0],)
    else:
        words, tried = [], _CANDIDATES
    for name in tried:
        found = _which(name, path) or _which(name, own_bin)
        if found:
            return _compiler((found, *words[1:]))
    if not variable and (bundled := _zig()):
        return bundled
    where = [folder for folder in path.split(os.pathsep) if folder]
    raise no_compiler(tried, [*where, own_bin], variable=variable)


def _zig() -> Compiler | None:
    """Return the clang of the Python package ziglang, if that is installed."""
    spec = importlib.util.find_spec("ziglang")
    if spec is None or spec.origin is None:
        return None
    compiler = _compiler((sys.executable, "-m", "ziglang", "c++"))
    program = Path(spec.origin).parent / ("zig.exe" if sys.platform == "win32" else "zig")
    state = program.stat()
    identity = f"{compiler.identity}\n{program}|{state.st_size}|{state.st_mtime_ns}"
    return Compiler(compiler.command, identity)


def _which(name: str, path: str) -> str | None:
    if os.sep in name:
        return str(Path(name).absolute()) if os.access(name, os.X_OK) else None
    return shutil.which(name, path=path) if path else None


def _compiler(command: tuple[str, ...]) -> Compiler:
    parts = []
    for word in command:
        real = os.path.realpath(shutil.which(word) or word)
        with contextlib.suppress(OSError):
            state = Path(real).stat()
            parts.append(f"{real}|{state.st_size}|{state.st_mtime_ns}")
            continue
        parts.append(word)
    return Compiler(command, "\n".join(parts))


def environment_key() -> str:
    """Return the values of the environment variables that a compiler obeys."""
    return "\n".join(f"{name}={os.environ.get(name, '')}" for name in _COMPILER_VARIABLES)


@functools.lru_cache(maxsize=1)
def processor() -> str:
    """Return what ``-march=native`` depends on."""
    try:
        text = Path("/proc/cpuinfo").read_text("utf-8", "replace")
    except OSError:
        import platform

        return f"{platform.machine()} {platform.processor()}"
    lines = (line for line in text.splitlines() if line.startswith(("model name", "flags", "Feat")))
    return "\n".join(sorted(set(lines)))


def run(compiler: Compiler, arguments: Sequence[str], cwd: Path) -> ToolResult:
    """Run the compiler without a shell and return its output, whatever its bytes are.

    Raises
    ------
    MissingToolError
        The program vanished or cannot be executed.
    BuildError
        The compiler was ended by a signal.
    """
    command = (*compiler.command, *arguments)
    folder = str(Path(compiler.command[0]).parent)
    environment = {
        **os.environ,
        "LC_ALL": "C",  # messages in the one language that is parsed
        "PATH": os.pathsep.join(filter(None, (os.environ.get("PATH"), folder))),
    }
    start = time.perf_counter()
    try:
        done = subprocess.run(
            command,
            cwd=cwd,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            check=False,
        )
    except OSError as error:
        raise MissingToolError(
            f"cannot run the C++ compiler {compiler.command[0]}: {error.strerror}. "
            "Set CXX to another one or install it again."
        ) from error
    output = done.stdout.decode("utf-8", "replace")
    result = ToolResult(command, done.returncode, output, time.perf_counter() - start)
    _raise_if_killed(result)
    return result


def _raise_if_killed(result: ToolResult) -> None:
    number = -result.returncode if result.returncode < 0 else 0
    if not number and result.returncode:
        if found := re.search(r"(\w[\w ]*?) signal terminated program", result.output):
            names = {"Killed": signal.SIGKILL, "Terminated": signal.SIGTERM}
            number = int(names.get(found[1], signal.SIGSEGV))
        elif result.returncode > 128 and not result.output.strip():  # a wrapper script's shell
            number = result.returncode - 128
    if not number:
        return
    reason = ""
    if number == signal.SIGKILL:
        reason = f", probably out of memory; peak use {_peak_memory()}; try -O1 or fewer jobs"
    elif number in {signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGABRT}:
        reason = ": it crashed; try another optimisation level or compiler version"
    raise BuildError(
        f"the compiler was killed (signal {number}){reason}",
        log=result.output,
        commands=(result.command,),
    )


def _peak_memory() -> str:
    try:
        import resource
    except ImportError:  # not on Windows
        return "unknown"
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    return f"{peak * (1 if sys.platform == 'darwin' else 1024) / 2**20:.0f} MiB"


def traits(compiler: Compiler, cache: Path) -> Traits:
    """Return kind, version and fastest working linker of a compiler.

    Parameters
    ----------
    compiler
        As `find_compiler` returned it.
    cache
        Folder of the build cache; the answer is kept there.
    """
    return _traits(compiler, cache)


@functools.lru_cache(maxsize=16)
def _traits(compiler: Compiler, cache: Path) -> Traits:
    file = _traits_file(compiler, cache)
    with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
        known = json.loads(file.read_text("utf-8"))
        return Traits(**{**known, "link_flags": tuple(known["link_flags"])})
    found = _ask(compiler)
    _keep_traits(compiler, cache, found)
    return found


def _traits_file(compiler: Compiler, cache: Path) -> Path:
    # Also what is asked: a file from an earlier version of this module must not answer.
    asked = "\n".join((compiler.identity, *_LINK_FLAGS, *(f.name for f in fields(Traits))))
    name = hashlib.sha256(asked.encode()).hexdigest()[:24]
    return cache / "compilers" / f"{name}.json"


def _keep_traits(compiler: Compiler, cache: Path, found: Traits) -> None:
    file = _traits_file(compiler, cache)
    with contextlib.suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True)
        part = file.with_suffix(f".{os.getpid()}")
        part.write_text(json.dumps(asdict(found), indent=1), "utf-8")
        part.replace(file)


def _ask(compiler: Compiler) -> Traits:
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        # Macros, not the text of --version: wrappers and distributions rename programs at will.
        probe = work / "probe.cpp"
        probe.write_text('extern "C" int probe() { return 0; }\n', "utf-8")
        macros = run(compiler, ("-dM", "-E", probe.name), work)
        defined = dict(re.findall(r"^#define (\w+) (.*)$", macros.output, re.MULTILINE))
        version = defined.get("__VERSION__", "").strip('"') or "unknown version"
        kind = "unknown"
        if "__clang__" in defined:
            kind = "clang"
        elif "__GNUC__" in defined:
            kind = "gcc"
        linker = None
        if sys.platform.startswith("linux") and kind != "unknown":
            linker = next((name for name in _LINKERS if _linker_works(compiler, work, name)), None)
        flags = _LINK_FLAGS
        if not _links(compiler, work, flags):
            flags = tuple(flag for flag in flags if _links(compiler, work, (flag,)))
    return Traits(kind, version, linker, flags)


#: What a loader says of a library whose C++ run time is newer than the process's.
_TOO_NEW = re.compile(r"version [`'‘](?:GLIBCXX|CXXABI|GCC)_[\w.]+['’] not found")
_STATIC = ("-static-libstdc++", "-static-libgcc")


def link_run_time_statically(compiler: Compiler, cache: Path, message: str) -> bool:
    """Note that a compiler's C++ run time is too new for this process, if a loader says so.

    Parameters
    ----------
    compiler, cache
        As for `traits`, whose answer has the flags for static linking from then on.
    message
        What the loader said.

    Returns
    -------
    bool
        Whether another build can help.
    """
    known = traits(compiler, cache)
    if not _TOO_NEW.search(message) or known.link_flags[-2:] == _STATIC:
        return False
    _keep_traits(compiler, cache, replace(known, link_flags=(*known.link_flags, *_STATIC)))
    _traits.cache_clear()
    return True


def announce_first_build(compiler: Compiler) -> None:
    """Say that a first build takes minutes where it does."""
    if "ziglang" in compiler.command:
        warnings.warn(
            "ziglang builds its C++ library before its first use, which takes a minute or two",
            BuildCacheWarning,
            stacklevel=2,
        )


def _linker_works(compiler: Compiler, work: Path, linker: str) -> bool:
    located = run(compiler, (f"-print-prog-name=ld.{linker}",), work).output.strip()
    if not Path(located).is_absolute() and shutil.which(f"ld.{linker}") is None:
        return False
    return _links(compiler, work, (f"-fuse-ld={linker}", *_LINK_FLAGS))


def _links(compiler: Compiler, work: Path, flags: Sequence[str]) -> bool:
    command = ("-shared", "-fPIC", *flags, "probe.cpp", "-o", "probe.so")
    return run(compiler, command, work).returncode == 0


@functools.lru_cache(maxsize=1)
def find_engine() -> Engine:
    """Return where the engine's files are.

    Raises
    ------
    RuntimeError
        The engine is not installed.
    """
    try:
        spec = importlib.util.find_spec("tvm_ffi")
    except (ImportError, ValueError):
        spec = None
    if spec is None or spec.origin is None:
        raise engine_missing()
    root = Path(spec.origin).parent
    includes = [root / "include"]
    if not (includes[0] / "dlpack").is_dir():
        includes.append(root / "3rdparty" / "dlpack" / "include")
    library = next(root.glob("lib/libtvm_ffi.*"), None)
    if library is None or not all(folder.is_dir() for folder in includes):
        # Not the layout of a wheel (a development install): ask the engine itself.
        from tvm_ffi import libinfo

        includes = [Path(libinfo.find_include_path()), Path(libinfo.find_dlpack_include_path())]
        library = Path(libinfo.find_libtvm_ffi())
    return Engine(tuple(dict.fromkeys(includes)), library)


def engine_missing() -> RuntimeError:
    """Return the error for an environment without the engine."""
    return RuntimeError(
        "kernels need the engine tvm_ffi, which is not installed. "
        "Write pip install 'tensorplay-workbench[jit]' (or: pip install apache-tvm-ffi)."
    )
