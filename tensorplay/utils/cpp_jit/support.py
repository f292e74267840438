"""What every build shares: the run-time library and the precompiled headers.

Both are made once per compiler, flags and header contents, under a lock, in a private folder that
one rename publishes. The run-time library is waited for; a precompiled header is only a matter of
speed, so it is made in the background and used from the next cell on.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import hashlib
import json
import subprocess
import threading
import time
import warnings
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tensorplay.utils.cpp_jit import toolchain
from tensorplay.utils.cpp_jit.commands import Job, Traits, arguments, header_arguments
from tensorplay.utils.cpp_jit.errors import BuildCacheWarning, BuildError, MissingToolError
from tensorplay.utils.cpp_jit.resources import jobs
from tensorplay.utils.cpp_jit.store import (
    Cache,
    FileState,
    default_cache,
    digest,
    parse_dependencies,
    stat,
    tree_state,
    write_atomically,
)
from tensorplay.utils.cpp_jit.toolchain import Compiler, environment_key, find_engine, run

INCLUDE = Path(__file__).parents[2] / "include"
RUNTIME = Path(__file__).parent / "runtime"

#: Lines of a compiler's output that the error for the run-time library shows.
_MAX_LINES = 8

#: Standard headers of the precompiled sets. Each header in a set costs every cell that uses the set
#: (its pending templates are instantiated again at the end of each unit: about 30 ms for <cmath>,
#: 20 ms for <string>, 7 for the memory set), so the smallest set that covers a cell's includes is
#: taken.
_NUMERIC = (
    "algorithm", "array", "cmath", "cstddef", "cstdint", "cstdio", "cstdlib", "cstring",
    "limits", "numeric", "tuple", "type_traits", "utility", "vector",
)  # fmt: skip
_TEXT = ("stdexcept", "string")
_MEMORY = ("functional", "memory")
_CONTAINERS = frozenset(
    f"tvm/ffi/{name}.h"
    for name in (
        *(f"container/{kind}" for kind in ("array", "dict", "list", "map", "tuple", "variant")),
        "tvm_ffi",
    )
)
_C_NAMES = {
    "math.h": "cmath",
    "stddef.h": "cstddef",
    "stdint.h": "cstdint",
    "stdio.h": "cstdio",
    "stdlib.h": "cstdlib",
    "string.h": "cstring",
}


@dataclass(frozen=True)
class Headers:
    """One precompiled header: what it contains, and where it is once it exists."""

    contents: tuple[str, ...]
    flags: tuple[str, ...]


@dataclass(frozen=True)
class Precompiled:
    """A finished precompiled header."""

    include: Path
    file_set: str


def include_paths() -> tuple[str, ...]:
    """Return the folders of our headers and of the engine's."""
    return tuple(map(str, (INCLUDE, *find_engine().include_paths)))


@dataclass(frozen=True)
class Common:
    """What all builds with a compiler share.

    Parameters
    ----------
    traits
        Of the compiler.
    objects
        The run-time library.
    seconds
        What getting it took: next to nothing unless it was made now.
    """

    traits: Traits
    objects: tuple[str, ...]
    seconds: float


def common(cache: Cache, compiler: Compiler, *, full: bool = False) -> Common:
    """Return what all builds with a compiler share, made now if it is not in the cache.

    Raises
    ------
    BuildError
        The run-time library does not compile.
    """
    start = time.perf_counter()
    traits = toolchain.traits(compiler, cache.root)
    objects: tuple[Path, ...] = ()
    if traits.kind != "msvc":  # which takes the engine's own headers only
        objects = runtime_objects(cache, compiler, traits, full=full)
    return Common(traits, tuple(map(str, objects)), time.perf_counter() - start)


@functools.lru_cache(maxsize=1)
def engine_state() -> str:
    """Return a digest of the engine's headers and the identity of its library."""
    engine = find_engine()
    library = engine.library.stat()
    return digest(
        tree_state(engine.include_paths, _kept_trees()),
        f"{engine.library}|{library.st_size}|{library.st_mtime_ns}",
    )


def own_state() -> str:
    """Return a digest of this package's headers and run-time sources."""
    return tree_state((INCLUDE, RUNTIME), _kept_trees())


def _kept_trees() -> Path:
    return default_cache().root / "trees.json"


def engine_header(rung: str, includes: Sequence[str]) -> str:
    """Return our header that declares what a cell may use of the engine."""
    if rung == "full" and not _CONTAINERS.isdisjoint(includes):
        return "tensorplay/ffi_containers.h"
    return f"tensorplay/ffi_{rung}.h"


def headers_for(
    rung: str, includes: Sequence[str], flags: tuple[str, ...], *, whole: bool
) -> Headers:
    """Return the smallest set of headers that covers what a cell includes.

    Parameters
    ----------
    rung
        ``"light"`` or ``"full"``: which of the two sets of engine declarations.
    includes
        Names in the cell's ``#include <…>``.
    flags
        All flags of the compilation; a precompiled header serves no others.
    whole
        Whether the cell may use names that `tensorplay/lean_standard.h` leaves out.
    """
    standard = {_C_NAMES.get(name, name) for name in includes}
    ours = tuple(sorted(name for name in standard if name.startswith("tensorplay/")))
    lean = () if whole else ("tensorplay/lean_standard.h",)
    if rung == "full":
        return Headers(
            (*lean, engine_header(rung, includes), *_NUMERIC, *_TEXT, *_MEMORY, *ours), flags
        )
    chosen: tuple[str, ...] = ()
    if standard & set(_MEMORY):
        chosen = (*lean, *_NUMERIC, *_TEXT, *_MEMORY)
    elif standard & set(_TEXT):
        chosen = (*lean, *_NUMERIC, *_TEXT)
    elif standard & set(_NUMERIC) or ours:
        chosen = (*lean, *_NUMERIC)
    return Headers(("tensorplay/ffi_light.h", *chosen, *ours), flags)


# The run-time library


_RUN_TIME = "run-time library"

#: Sources that only cells with the engine's full headers need.
_FULL_ONLY = frozenset({"containers.cpp", "registration.cpp"})


def runtime_objects(
    cache: Cache, compiler: Compiler, traits: Traits, *, full: bool = False
) -> tuple[Path, ...]:
    """Return the object files of the run-time sources, building them if needed.

    Each kernel library links them in, without the functions that it does not call; so a finished
    library needs nothing of this package to be loaded elsewhere.

    Parameters
    ----------
    cache, compiler, traits
        Where they are kept and what builds them.
    full
        Whether those that the engine's full headers need are among them.

    Raises
    ------
    BuildError
        They do not compile: the compiler is not usable with the engine's headers.
    """
    sources = sorted(RUNTIME.glob("*.cpp"))
    groups = [[s for s in sources if s.name not in _FULL_ONLY]]
    if full:
        groups.append([s for s in sources if s.name in _FULL_ONLY])
    return tuple(path for group in groups for path in _objects_of(cache, compiler, traits, group))


def launcher_objects(cache: Cache, compiler: Compiler, traits: Traits) -> tuple[Path, ...]:
    """Return the object file that launches embedded CUDA kernels, building it if needed."""
    return _objects_of(cache, compiler, traits, [RUNTIME / "cuda" / "launch.cpp"])


def _objects_of(
    cache: Cache, compiler: Compiler, traits: Traits, sources: Sequence[Path]
) -> tuple[Path, ...]:
    words = (w for source in sources for w in arguments(traits, _runtime_job(source)))
    key = digest("runtime", compiler.identity, engine_state(), own_state(), *words)
    folder = cache.root / "runtime" / key[:24]
    ready = published(cache, folder, _RUN_TIME, hashed=True)
    if ready is None:
        with cache.lock("runtime", key, f"the {_RUN_TIME}"):
            ready = published(cache, folder, _RUN_TIME, hashed=True)
            if ready is None:
                with cache.workspace() as work:
                    made = _build_runtime(compiler, traits, sources, work)
                    publish(cache, work, folder, made)
                    ready = {"files": made}
    cache.touch(folder)
    return tuple(folder / name for name in sorted(ready["files"]))


def _runtime_job(source: Path) -> Job:
    return Job(
        source=str(source),
        output=f"{source.stem}.o",
        flags=("-fvisibility=hidden", "-ffunction-sections"),
        system_paths=include_paths(),
        dependencies=f"{source.stem}.d",
    )


def _build_runtime(
    compiler: Compiler, traits: Traits, sources: Sequence[Path], work: Path
) -> tuple[str, ...]:
    """Compile the sources in a private folder and return the names of the objects."""

    def compile_one(source: Path) -> toolchain.ToolResult:
        return run(compiler, arguments(traits, _runtime_job(source)), work)

    with ThreadPoolExecutor(jobs(len(sources))) as pool:
        results = list(pool.map(compile_one, sources))
    for done in results:
        if done.returncode:
            raise BuildError(
                toolchain.why_too_old(compiler, traits)
                or f"{' '.join(compiler.command)} cannot build the run-time library. Set CXX to "
                f"another compiler (g++ 9 or clang 10, or newer). It says:\n{_start(done.output)}",
                log=done.output,
                commands=(done.command,),
            )
    made = tuple(f"{source.stem}.o" for source in sources)
    if lacking := [name for name in made if not (work / name).is_file()]:
        raise MissingToolError(
            f"{' '.join(compiler.command)} is no C++ compiler that works: it ended without an "
            f"error and did not write {lacking[0]}. Set CXX to another one, such as g++ or "
            "clang++, or unset it."
        )
    return made


def _start(output: str) -> str:
    """Return the first lines of what a compiler says, of which the others follow."""
    lines = [line for line in output.splitlines() if line.strip()]
    more = len(lines) - _MAX_LINES
    shown = [line[:300] for line in lines[:_MAX_LINES]]
    if more > 0:
        shown.append(f"… and {more} more lines in the error's attribute log")
    return "\n".join(shown) or "nothing"


def publish(
    cache: Cache, work: Path, folder: Path, files: Sequence[str], **facts: str | list[str]
) -> None:
    """Move what was made for all builds to its place, with what `published` is to say of it."""
    states = {name: FileState.of(str(work / name)).to_json()[1:] for name in files}
    write_atomically(work / "ready.json", json.dumps({**facts, "files": states}))
    cache.remove(folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    work.rename(folder)


def published(cache: Cache, folder: Path, what: str, *, hashed: bool) -> dict[str, Any] | None:
    """Return what a published folder says of itself; a damaged one is removed with a note.

    Parameters
    ----------
    cache, folder
        The cache and the folder in it.
    what
        How to name it to a person.
    hashed
        Whether the contents are compared once per process. Otherwise only where a file has other
        times or another size than when it was published.
    """
    text = _ready_text(folder)
    if text is None:
        return None
    try:
        ready: dict[str, Any] = json.loads(text)
        whole = all(
            _is_whole(str(folder / name), tuple(state), hashed=hashed)
            for name, state in ready["files"].items()
        )
    except (ValueError, KeyError, TypeError, AttributeError):
        whole = False
    if whole:
        return ready
    warnings.warn(
        f"the cached {what} {folder.name} was damaged or incomplete; it is built again",
        BuildCacheWarning,
        stacklevel=2,
    )
    with contextlib.suppress(OSError):  # of a cache that cannot be written to
        cache.remove(folder)
    return None


def _ready_text(folder: Path) -> str | None:
    """Return what a folder says of itself: None where there is none, empty without a word."""
    for _ in range(2):
        try:
            return (folder / "ready.json").read_text("utf-8")
        except FileNotFoundError:
            if not folder.is_dir():
                return None
            # It is there now: it may have been published since the file was looked for.
        except (OSError, UnicodeDecodeError):
            break
    return ""


#: Files whose contents this process has compared, with the size and times that they had.
_whole: dict[str, tuple[int, int, int]] = {}
_MAX_WHOLE = 512


def _is_whole(path: str, state: tuple[int, int, int, str], *, hashed: bool) -> bool:
    """Return whether a published file has the content that it was published with."""
    size, mtime_ns, ctime_ns, sha256 = state
    try:
        found = stat(path)
        now = found.st_size, found.st_mtime_ns, found.st_ctime_ns
        if now[0] != size:
            return False
        if _whole.get(path) == now or (not hashed and now == (size, mtime_ns, ctime_ns)):
            return True
        if hashlib.sha256(Path(path).read_bytes()).hexdigest() != sha256:
            return False
    except OSError:
        return False
    _whole[path] = now
    while len(_whole) > _MAX_WHOLE:
        _whole.pop(next(iter(_whole)), None)
    return True


# Precompiled headers


def precompiled(
    cache: Cache, compiler: Compiler, traits: Traits, headers: Headers
) -> Precompiled | None:
    """Return a precompiled header that is ready, else start making it and return None."""
    if not traits.precompiles:
        return None
    key = digest(
        "headers",
        compiler.identity,
        environment_key(),
        engine_state(),
        own_state(),
        *headers.contents,
        *(header_arguments(traits, _header_job(traits, headers)) or ()),
    )
    found = _find_precompiled(cache, key)
    if found is None:
        _in_background(cache, compiler, traits, headers, key)
    return found


def _header_job(traits: Traits, headers: Headers) -> Job:
    # g++ looks for the one beside the other; clang checks each file that went into it, so that its
    # header must not be one that moves when the folder is published.
    by_name = traits.kind == "gcc"
    return Job(
        source=_HEADER if by_name else "-",
        output=f"{_HEADER}.{'gch' if by_name else 'pch'}",
        flags=headers.flags,
        system_paths=include_paths(),
        dependencies="deps.d",
    )


def _find_precompiled(cache: Cache, key: str) -> Precompiled | None:
    folder = cache.root / "precompiled" / key[:24]
    ready = published(cache, folder, "precompiled header", hashed=False)
    if ready is None or not cache.file_set_holds(ready["file_set"]):
        return None
    cache.touch(folder)
    return Precompiled(folder / ready["include"], ready["file_set"])


_HEADER = "tensorplay_cell.h"
_jobs: dict[str, threading.Thread] = {}
_tried: dict[str, float] = {}
_RETRY_SECONDS = 60.0
_processes: set[subprocess.Popen[bytes]] = set()


def _in_background(
    cache: Cache, compiler: Compiler, traits: Traits, headers: Headers, key: str
) -> None:
    """Start making a precompiled header unless this process does so or has just tried."""
    job = f"{cache.root}|{key}"
    if time.monotonic() - _tried.get(job, -_RETRY_SECONDS) < _RETRY_SECONDS:
        return
    _tried[job] = time.monotonic()
    thread = threading.Thread(
        target=_make_quietly,
        args=(cache, compiler, traits, headers, key),
        name="tensorplay-precompile",
        daemon=True,
    )
    _jobs[job] = thread
    thread.start()


def _make_quietly(
    cache: Cache, compiler: Compiler, traits: Traits, headers: Headers, key: str
) -> None:
    # Nobody waits for this: without the header the cells build too, only slower.
    with contextlib.suppress(OSError, BuildError, MissingToolError):
        _make_precompiled(cache, compiler, traits, headers, key)


def _make_precompiled(
    cache: Cache, compiler: Compiler, traits: Traits, headers: Headers, key: str
) -> None:
    with cache.lock("headers", key, "a precompiled header", wait=False) as held:
        if not held or _find_precompiled(cache, key) is not None:
            return
        with cache.workspace() as work:
            lines = [f"#include <{name}>" for name in headers.contents]
            (work / _HEADER).write_text("\n".join(lines) + "\n", "utf-8")
            job = _header_job(traits, headers)
            words = header_arguments(traits, job)
            if words is None or not _run_killable(compiler, words, work):
                return
            names = parse_dependencies((work / "deps.d").read_text("utf-8", "replace"))
            file_set = cache.add_file_set(
                [FileState.of(name) for name in sorted(set(names)) if Path(name).is_absolute()]
            )
            include = _HEADER if job.source == _HEADER else job.output
            folder = cache.root / "precompiled" / key[:24]
            publish(cache, work, folder, (_HEADER, job.output), file_set=file_set, include=include)


def _run_killable(compiler: Compiler, words: Sequence[str], work: Path) -> bool:
    """Run a compiler that ends with this process, with the header as its input."""
    with (work / _HEADER).open("rb") as header:
        process = subprocess.Popen(
            (*compiler.command, *words),
            cwd=work,
            env=toolchain.environment(compiler, work),
            stdin=header,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        _processes.add(process)
        try:
            return process.wait() == 0
        finally:
            _processes.discard(process)


@atexit.register
def _stop_processes() -> None:
    for process in list(_processes):
        process.kill()


def wait_for_background(timeout: float | None = None) -> None:
    """Wait until the precompiled headers that were started are there; for tests and timing."""
    for thread in list(_jobs.values()):
        thread.join(timeout)
