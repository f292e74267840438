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
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path

from tensorplay.utils.cpp_jit import msvc
from tensorplay.utils.cpp_jit.commands import Traits, linker_flags, response_text
from tensorplay.utils.cpp_jit.errors import (
    BuildCacheWarning,
    BuildError,
    MissingToolError,
    no_compiler,
    old_compiler,
)

_CANDIDATES = {
    "win32": ("cl", "clang++", "g++"),
    "darwin": ("clang++", "c++", "g++"),
}.get(sys.platform, ("g++", "clang++", "c++"))
#: A command line longer than this goes through a file: systems have limits.
_LONGEST_COMMAND = 30_000 if sys.platform == "win32" else 500_000
#: What macOS keeps the choice of `xcode-select` in: its compilers are only doors to those there.
_XCODE = Path("/var/db/xcode_select_link")
_XCODE_COMPILERS = ("usr/bin/clang++", "Toolchains/XcodeDefault.xctoolchain/usr/bin/clang++")
_LINKERS = ("mold", "gold", "lld")
#: The first versions that compile kernels.
_OLDEST = {"gcc": 9, "clang": 10}
#: Variables that change what a compiler reads or writes.
_COMPILER_VARIABLES = (
    *("COMPILER_PATH", "CPATH", "CPLUS_INCLUDE_PATH", "C_INCLUDE_PATH", "GCC_EXEC_PREFIX"),
    *("LIBRARY_PATH", "LD_RUN_PATH", "SOURCE_DATE_EPOCH", "CC"),
    *("DEVELOPER_DIR", "MACOSX_DEPLOYMENT_TARGET", "SDKROOT"),
    *("CL", "_CL_", "INCLUDE", "LIB", "LIBPATH", "LINK", "VCTOOLSINSTALLDIR"),
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

    Where ziglang is installed it also replaces one of the system that is too old for kernels.

    Raises
    ------
    MissingToolError
        None is on PATH or in the environment's own ``bin`` folder.
    """
    variable = os.environ.get("CXX", "").strip()
    own_bin = str(Path(sys.prefix) / "bin")
    path = os.environ.get("PATH", "")
    if variable:
        words = [variable] if Path(variable).is_file() else _words_of("CXX")
        tried: tuple[str, ...] = (words[0],)
    else:
        words, tried = [], _CANDIDATES
    for name in tried:
        found = _which(name, path) or _which(name, own_bin)
        if found is None and msvc.is_cl(name) and (program := msvc.installed()):
            found = str(program)
        if found:
            compiler = compiler_of((found, *words[1:]))
            return compiler if variable else _in_place_of_an_old_one(compiler) or compiler
    if not variable and (bundled := _zig()):
        return bundled
    where = [folder for folder in path.split(os.pathsep) if folder]
    raise no_compiler(tried, [*where, own_bin], variable=variable)


def _zig() -> Compiler | None:
    """Return the clang of the Python package ziglang, if that is installed."""
    spec = importlib.util.find_spec("ziglang")
    if spec is None or spec.origin is None:
        return None
    compiler = compiler_of((sys.executable, "-m", "ziglang", "c++"))
    program = Path(spec.origin).parent / ("zig.exe" if sys.platform == "win32" else "zig")
    state = program.stat()
    identity = f"{compiler.identity}\n{program}|{state.st_size}|{state.st_mtime_ns}"
    return Compiler(compiler.command, identity)


@functools.lru_cache(maxsize=16)
def _in_place_of_an_old_one(compiler: Compiler) -> Compiler | None:
    bundled = None if msvc.is_cl(compiler.command[0]) else _zig()
    if bundled is None:
        return None
    asked = run(compiler, ("-dumpversion",), Path(tempfile.gettempdir()))
    # Clangs before 10 say 4.2.1, later ones their own version, so g++'s limit tells them apart.
    old = asked.returncode == 0 and _is_old("gcc", asked.output)
    return bundled if old else None


def _is_old(kind: str, version: str) -> bool:
    major = re.search(r"\d+", version)
    return major is not None and int(major[0]) < _OLDEST.get(kind, 0)


def why_too_old(compiler: Compiler, found: Traits) -> str | None:
    """Return what to say of a compiler that failed where one of its age does; None for others."""
    if not _is_old(found.kind, found.version):
        return None
    _in_place_of_an_old_one.cache_clear()  # what brings a newer one is done in this session
    return old_compiler(compiler.command, f"{found.kind} {found.version}")


def _words_of(variable: str) -> list[str]:
    """Return the words of a variable that names a compiler."""
    value = os.environ.get(variable, "")
    try:
        return shlex.split(value)
    except ValueError as error:
        raise MissingToolError(
            f"the variable {variable} names no compiler: {value} ({error}). "
            f"Set {variable} to a program and its words, such as g++."
        ) from error


def working_folder() -> str:
    """Return the current folder, or an empty text where it was removed."""
    try:
        return str(Path.cwd())
    except FileNotFoundError:
        return ""


def _which(name: str, path: str) -> str | None:
    if os.sep in name:
        usable = Path(name).is_file() and os.access(name, os.X_OK)
        return str(Path(name).absolute()) if usable else None
    return shutil.which(name, path=path) if path else None


def compiler_of_cc() -> Compiler:
    """Return the compiler that ``CC`` names.

    Raises
    ------
    MissingToolError
        It is not on PATH.
    """
    words = _words_of("CC")
    path = os.environ.get("PATH", "")
    if found := _which(words[0], path):
        return compiler_of((found, *words[1:]))
    where = [folder for folder in path.split(os.pathsep) if folder]
    raise no_compiler(words[:1], where, variable=" ".join(words), name="CC")


def compiler_of(command: tuple[str, ...]) -> Compiler:
    """Return a compiler by its command, identified by size and time of its files."""
    parts = []
    xcode = (str(_XCODE / name) for name in _XCODE_COMPILERS) if sys.platform == "darwin" else ()
    for word in (*command, *filter(os.path.exists, xcode)):
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


def run(
    compiler: Compiler,
    arguments: Sequence[str],
    cwd: Path,
    tell: Callable[[float, str], None] = lambda seconds, output: None,
) -> ToolResult:
    """Run the compiler without a shell and return its output, whatever its bytes are.

    Parameters
    ----------
    compiler, arguments, cwd
        What is run, and where.
    tell
        Called when it has started and then a few times a second, with the seconds that it has run
        and the whole lines of its output so far (on Windows they come at the end). What it raises
        ends the compiler, and so does an interrupt.

    Raises
    ------
    MissingToolError
        The program vanished or cannot be executed.
    BuildError
        The compiler was ended by a signal.
    """
    command = (*compiler.command, *arguments)
    start = time.perf_counter()
    try:
        # A session of its own: an interrupt is for us, and ends the programs that a driver started.
        process = subprocess.Popen(
            _within_limits(compiler, arguments, cwd),
            cwd=cwd,
            env=environment(compiler, cwd),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    except OSError as error:
        raise MissingToolError(
            f"cannot run the C++ compiler {compiler.command[0]}: {error.strerror}. "
            "Set CXX to another one or install it again."
        ) from error
    with process:
        try:
            tell(0.0, "")
            said = _output_of(process, start, tell)
        except BaseException:
            _kill(process)
            raise
    output = msvc.decoded(said)
    result = ToolResult(command, process.returncode, output, time.perf_counter() - start)
    _raise_if_killed(result)
    return result


_TOLD_SECONDS = 0.1


def _output_of(
    process: subprocess.Popen[bytes], start: float, tell: Callable[[float, str], None]
) -> bytes:
    while True:
        try:
            return process.communicate(timeout=_TOLD_SECONDS)[0]
        except subprocess.TimeoutExpired as unfinished:
            whole, end, _ = (unfinished.output or b"").rpartition(b"\n")
            tell(time.perf_counter() - start, msvc.decoded(whole + end))


def _kill(process: subprocess.Popen[bytes]) -> None:
    """End a compiler and the programs that it started."""
    if hasattr(os, "killpg") and process.returncode is None:
        # Not reaped yet, so the group is its own.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
    process.kill()


def environment(compiler: Compiler, cwd: Path) -> dict[str, str]:
    """Return the variables that a compiler is run with in a private folder.

    What it keeps for itself lies there as well, and goes with the folder if it is killed.
    """
    own = msvc.environment() if msvc.is_cl(compiler.command[0]) else {}
    folder = str(Path(compiler.command[0]).parent)
    path = own.get("PATH") or os.environ.get("PATH")
    return {
        **os.environ,
        **own,
        **dict.fromkeys(("TMPDIR", "TMP", "TEMP"), str(cwd.absolute())),
        "LC_ALL": "C",  # messages in the one language that is parsed
        "VSLANG": "1033",
        "PATH": os.pathsep.join(filter(None, (path, folder))),
    }


def _within_limits(compiler: Compiler, arguments: Sequence[str], cwd: Path) -> tuple[str, ...]:
    """Return a command, with its arguments in a file if it would be too long for the system."""
    if sum(len(word) + 3 for word in arguments) < _LONGEST_COMMAND:
        return (*compiler.command, *arguments)
    kind = "msvc" if msvc.is_cl(compiler.command[0]) else "gcc"
    (cwd / "arguments.rsp").write_text(response_text(kind, arguments), "utf-8", newline="")
    return (*compiler.command, "@arguments.rsp")


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


def traits(compiler: Compiler, cache: Path, *, links: bool = True) -> Traits:
    """Return kind, version and fastest working linker of a compiler.

    Parameters
    ----------
    compiler
        As `find_compiler` returned it.
    cache
        Folder of the build cache; the answer is kept there.
    links
        Whether it links libraries, and so has to know the run time of C++; one that ``CC`` names
        only compiles C.

    Raises
    ------
    MissingToolError
        It is no compiler of that kind.
    """
    return _traits(compiler, cache, links)


@functools.lru_cache(maxsize=16)
def _traits(compiler: Compiler, cache: Path, links: bool) -> Traits:
    if not links:
        return _ask(compiler, cache, links=False)
    file = _traits_file(compiler, cache)
    with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
        known = json.loads(file.read_text("utf-8"))
        lists = {name: tuple(known[name]) for name in ("link_flags", "include_paths")}
        return Traits(**{**known, **lists})
    found = _ask(compiler, cache, links=True)
    _keep_traits(compiler, cache, found)
    return found


def _traits_file(compiler: Compiler, cache: Path) -> Path:
    # Also what is asked: a file from an earlier version of this module must not answer.
    asked = "\n".join((compiler.identity, *linker_flags(), *(f.name for f in fields(Traits))))
    name = hashlib.sha256(asked.encode()).hexdigest()[:24]
    return cache / "compilers" / f"{name}.json"


def _keep_traits(compiler: Compiler, cache: Path, found: Traits) -> None:
    file = _traits_file(compiler, cache)
    with contextlib.suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True)
        part = file.with_suffix(f".{os.getpid()}")
        part.write_text(json.dumps(asdict(found), indent=1), "utf-8")
        part.replace(file)


@contextlib.contextmanager
def _private_folder(cache: Path) -> Iterator[Path]:
    """Yield a folder for questions to a compiler, in the cache, which clears up what is left."""
    prefix = f"build-{os.getpid()}-"
    try:
        (cache / "tmp").mkdir(parents=True, exist_ok=True)
        folder = tempfile.mkdtemp(prefix=prefix, dir=cache / "tmp")
    except OSError:  # it cannot be written to
        folder = tempfile.mkdtemp(prefix=prefix)
    try:
        yield Path(folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _ask(compiler: Compiler, cache: Path, *, links: bool) -> Traits:
    if "ziglang" in compiler.command:
        warnings.warn(
            "no C++ compiler but that of ziglang: it builds its C++ library before its first use, "
            "which takes some minutes, once",
            BuildCacheWarning,
            stacklevel=2,
        )
    with _private_folder(cache) as work:
        if msvc.is_cl(compiler.command[0]):
            banner = run(compiler, (), work).output
            version = re.search(r"\d+\.\d+\.\d+(?:\.\d+)?", banner)
            return Traits("msvc", version[0] if version else "unknown version")
        # Macros, not the text of --version: wrappers and distributions rename programs at will.
        probe = work / "probe.cpp"
        probe.write_text('extern "C" int probe() { return 0; }\n', "utf-8")
        asked = run(compiler, ("-dM", "-E", "-v", probe.name), work)
        answer = asked.output
        defined = dict(re.findall(r"^#define (\w+) (.*)$", answer, re.MULTILINE))
        if asked.returncode or "__cplusplus" not in defined:
            raise _no_answer(asked)
        searched = re.search(r"^#include <\.\.\.> .*?:\n((?:^ .*\n)+)", answer, re.MULTILINE)
        folders = searched[1].replace(" (framework directory)", "") if searched else ""
        version_text = defined.get("__VERSION__", "").strip('"') or "unknown version"
        kind = "unknown"
        if "__clang__" in defined:
            kind = "clang"
        elif "__GNUC__" in defined:
            kind = "gcc"
        linker = None
        if sys.platform.startswith("linux") and kind != "unknown":
            linker = next((name for name in _LINKERS if _linker_works(compiler, work, name)), None)
        flags = linker_flags()
        if not _links(compiler, work, flags):
            flags = tuple(flag for flag in flags if _links(compiler, work, (flag,)))
        probe.write_text(_PROBE_OF_RUN_TIME, "utf-8")
        c_only = links and not _links(compiler, work, flags)
        if c_only and _links(compiler, work, flags, "-lstdc++"):
            raise MissingToolError(
                f"{' '.join(compiler.command)} compiles C++ and does not link its run time: it is "
                "a compiler for C. Set CXX to the one for C++, such as g++ or clang++."
            )
    return Traits(
        kind,
        version_text,
        linker,
        flags,
        precompiles=kind != "unknown",
        include_paths=tuple(os.path.normpath(line.strip()) for line in folders.splitlines()),
    )


_PROBE_OF_RUN_TIME = 'extern "C" int probe() { throw 1; }\n'


def _no_answer(asked: ToolResult) -> MissingToolError:
    """Return the error for a program that does not behave as a C++ compiler."""
    program = " ".join(asked.command[: asked.command.index("-dM")])
    lines = [line.strip() for line in asked.output.splitlines() if line.strip()]
    said = next((line for line in lines if "error" in line), lines[0] if lines else "")
    return MissingToolError(
        f"{program} is no C++ compiler that works: asked for its macros (-dM -E) it ended with "
        f"status {asked.returncode} and said {said[:200]!r}. Set CXX to another one, such as g++ "
        "or clang++, or unset it."
    )


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


def _linker_works(compiler: Compiler, work: Path, linker: str) -> bool:
    located = run(compiler, (f"-print-prog-name=ld.{linker}",), work).output.strip()
    if not Path(located).is_absolute() and shutil.which(f"ld.{linker}") is None:
        return False
    return _links(compiler, work, (f"-fuse-ld={linker}", *linker_flags()))


def _links(compiler: Compiler, work: Path, flags: Sequence[str], *libraries: str) -> bool:
    command = ("-shared", "-fPIC", *flags, "probe.cpp", *libraries, "-o", "probe.so")
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
    name = "tvm_ffi.dll" if sys.platform == "win32" else "libtvm_ffi.*"
    library = next(root.glob(f"lib/{name}"), None)
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
