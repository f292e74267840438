"""From a source to a library: found in the cache, or made in a private folder and published."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime as dt
import functools
import hashlib
import json
import os
import re
import sys
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tensorplay.utils.cpp_jit import support, toolchain
from tensorplay.utils.cpp_jit.cache import explain_full_disk, keep_within_limit, writable
from tensorplay.utils.cpp_jit.commands import shared_suffix
from tensorplay.utils.cpp_jit.compile import Product, Source, Unit, compile_unit
from tensorplay.utils.cpp_jit.diagnostics import Diagnostic
from tensorplay.utils.cpp_jit.errors import BuildCacheWarning, MissingToolError
from tensorplay.utils.cpp_jit.flags import Options
from tensorplay.utils.cpp_jit.inputs import unseen
from tensorplay.utils.cpp_jit.source import scan
from tensorplay.utils.cpp_jit.store import (
    FORMAT,
    Cache,
    FileState,
    Record,
    cache_at,
    default_cache,
    digest,
    safe_name,
    write_atomically,
)
from tensorplay.utils.cpp_jit.watch import BuildWatch

if TYPE_CHECKING:
    from tensorplay.utils.cpp_jit.load import Module

_LOCAL_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*"', re.MULTILINE)


@dataclass(frozen=True)
class Build:
    """A library on disk and how it came about.

    Parameters
    ----------
    name
        As the caller named it.
    key
        Hash of everything that the library depends on.
    folder, library
        The entry's folder and the library in it. Neither ever changes its content.
    commands
        Command lines that were run, the last one made the library.
    diagnostics
        Warnings of the successful compilation.
    dependencies
        Files that the compiler read, without the engine's and this package's own headers.
    seconds
        Time of the build that made the library, without what it made for all later ones.
    shared_seconds
        Time that this call took for what all builds on this machine share (the run-time library,
        questions to the compiler): some seconds for the first, nothing for a library that was
        found. Precompiled headers are made in the background and wait for nobody.
    cached
        Whether this call found it.
    rung
        ``"light"``, ``"full"``, ``"stock"`` or ``"files"``.
    log
        Complete output of the commands.
    signatures
        Parameter names of the functions found in the source: name to ``[name, type, default]``.
    results
        What the functions found in the source return: name to C++ type.
    docs
        Documentation of exports.
    stateful
        Whether the source seems to hold variables that outlive a call: such a library starts afresh
        each time it is loaded.
    unloadable
        Whether the library may be unloaded once nothing in Python refers to it.
    cuda
        Of a library with CUDA code, else None: ``route`` (``"nvrtc"``, ``"nvcc"`` or ``"hipcc"``),
        ``toolkit`` (its version), ``targets`` (such as ``sm_90``), ``reason`` (why these),
        ``launch`` (exports that are launched on a grid), and ``kernels``, a list with ``name``,
        ``target``, ``registers``, and in bytes ``shared``, ``stack``, ``spill_stores``,
        ``spill_loads``.
    """

    name: str
    key: str
    folder: Path
    library: Path
    commands: tuple[tuple[str, ...], ...]
    diagnostics: tuple[Diagnostic, ...]
    dependencies: tuple[Path, ...]
    seconds: float
    shared_seconds: float
    cached: bool
    rung: str
    log: str
    signatures: Mapping[str, tuple[tuple[str, str, str | None], ...]] = field(default_factory=dict)
    results: Mapping[str, str] = field(default_factory=dict)
    docs: Mapping[str, str] = field(default_factory=dict)
    stateful: bool = False
    unloadable: bool = False
    cuda: Mapping[str, Any] | None = None
    _again: Callable[[], Build] | None = field(default=None, repr=False, compare=False)

    def load(self, *, keep_module_alive: bool | None = None) -> Module:
        """Load the library.

        Parameters
        ----------
        keep_module_alive
            Whether it stays loaded until the process ends. None: only where its code may be called
            after the last reference to the module and its kernels is gone.

        Raises
        ------
        RuntimeError
            The loader refuses it, also after it was built again.
        """
        from tensorplay.utils.cpp_jit.load import load_build

        try:
            return load_build(self, keep_module_alive)
        except RuntimeError as error:
            if self._again is None:
                raise
            self._note_run_time(str(error))
        return load_build(self._again(), keep_module_alive)

    def _note_run_time(self, message: str) -> None:
        """Link the C++ run time statically from now on if the process has an older one."""
        compiler = toolchain.find_compiler()
        toolchain.link_run_time_statically(compiler, self.folder.parents[1], message)

    def to_dict(self) -> dict[str, Any]:
        """Return the description as plain data."""
        return {
            "name": self.name,
            "key": self.key,
            "folder": str(self.folder),
            "library": str(self.library),
            "commands": [list(command) for command in self.commands],
            "diagnostics": [d.to_dict() for d in self.diagnostics],
            "dependencies": [str(path) for path in self.dependencies],
            "seconds": self.seconds,
            "shared_seconds": self.shared_seconds,
            "cached": self.cached,
            "rung": self.rung,
            "log": self.log,
            "signatures": {k: [list(p) for p in v] for k, v in self.signatures.items()},
            "results": dict(self.results),
            "docs": dict(self.docs),
            "stateful": self.stateful,
            "unloadable": self.unloadable,
            "cuda": dict(self.cuda) if self.cuda is not None else None,
        }


#: Takes the private folder, the compiler and the cache; raises BuildError.
Producer = Callable[[Path, toolchain.Compiler, Cache], Product]


def build_source(
    name: str,
    source: Source,
    *,
    exports: Sequence[str] | Mapping[str, str] | str = (),
    generated: str = "",
    preamble: str = "",
    extra_cflags: Sequence[str] | None = None,
    extra_ldflags: Sequence[str] | None = None,
    extra_include_paths: Sequence[str | os.PathLike[str]] | None = None,
    build_directory: str | os.PathLike[str] | None = None,
) -> Build:
    """Build one C++ source into a library, or find it in the cache.

    Parameters
    ----------
    name
        Name of the library.
    source
        The text.
    exports
        Functions of the text that can be called: names, or names with documentation.
    generated
        C++ put after the text, shown as ``<generated>`` in diagnostics.
    preamble
        C++ put before the text, shown as ``<preamble>``.
    extra_cflags, extra_ldflags, extra_include_paths
        Passed to the compiler unchanged; paths are made absolute.
    build_directory
        Folder that replaces the build cache.

    Returns
    -------
    Build

    Raises
    ------
    BuildError
        The source does not compile.
    MissingToolError
        It is not in the cache and there is no compiler.
    """
    named = {exports: ""} if isinstance(exports, str) else exports
    options = Options.of(
        cflags=extra_cflags,
        ldflags=extra_ldflags,
        include_paths=extra_include_paths,
        build_directory=build_directory,
    )
    listed = dict(named) if isinstance(named, Mapping) else dict.fromkeys(named, "")
    return build_text(Unit(name, source, listed, generated, preamble, options))


def build_text(unit: Unit, watch: BuildWatch | None = None) -> Build:
    """Build a unit into a library or an object file, or find it in the cache."""
    facts = functools.cache(lambda: facts_of(unit))

    def produce(work: Path, compiler: toolchain.Compiler, cache: Cache) -> Product:
        link = not unit.options.is_object
        return compile_unit(unit, work, compiler, cache, link=link, watch=watch, meanwhile=facts)

    cache = chosen_cache(unit.options)
    return find_or_build(unit.name, _request_of(unit), cache, produce, facts, watch=watch)


def chosen_cache(options: Options) -> Cache:
    """Return the cache in the caller's folder, else the person's."""
    return cache_at(options.build_directory) if options.build_directory else default_cache()


def request_of(options: Options) -> list[Any]:
    """Return what options ask for: all but where the result is kept."""
    return list(dataclasses.astuple(dataclasses.replace(options, build_directory="")))


def _request_of(unit: Unit) -> str:
    quoted = any(map(_LOCAL_INCLUDE.search, (unit.preamble, unit.source.text, unit.generated)))
    native = any("native" in flag for flag in unit.options.cflags)
    return digest(
        f"unit {FORMAT}",
        unit.name,
        unit.source.text,
        unit.shown_name,
        str(unit.source.first_line),
        unit.generated,
        unit.preamble,
        json.dumps([unit.exports, *request_of(unit.options)]),
        toolchain.working_folder() if quoted else "",
        toolchain.processor() if native else "",
        toolchain.environment_key(),
        support.engine_state(),
        support.own_state(),
        sys.platform,
    )


def common_inputs() -> dict[str, str]:
    """Return what every build depends on, by the words that name it to a person."""
    return {
        "variables of the compiler": toolchain.environment_key(),
        "the engine": support.engine_state(),
        "TensorPlay's own headers": support.own_state(),
    }


def facts_of(unit: Unit) -> dict[str, Any]:
    """Return what the scan knows that a caller of the library wants to know."""
    found = scan(unit.source.text)
    generated = scan(unit.generated)
    functions = found.functions
    hidden = bool(found.local_includes)  # what such headers hold is not looked at
    leaves = found.leaves_pointers or generated.leaves_pointers or hidden
    # Threads of OpenMP wait in its library, and those of other libraries may too, which would be
    # unloaded with the last library that needs them.
    threaded = any("openmp" in flag or "pthread" in flag for flag in unit.options.cflags)
    names = [function.name for function in functions]
    return {
        "signatures": {
            function.name: [[p.name, p.type, p.default] for p in function.parameters]
            for function in functions
            if names.count(function.name) == 1
        },
        "results": {f.name: f.result for f in functions if names.count(f.name) == 1},
        "docs": {name: doc for name, doc in unit.exports.items() if doc},
        "stateful": found.stateful or generated.stateful or hidden,
        "unloadable": not (leaves or unit.options.ldflags or threaded),
        "inputs": {
            "the source": digest(unit.source.text),
            "the name or first line of the source": [unit.shown_name, unit.source.first_line],
            "the generated code": digest(unit.preamble, unit.generated),
            "the exports": unit.exports,
            "the compiler flags": unit.options.cflags,
            "the linker flags": unit.options.ldflags,
            "the name of the output": unit.options.output,
            "the include paths": unit.options.include_paths,
            **common_inputs(),
        },
    }


def find_or_build(
    name: str,
    request: str,
    cache: Cache,
    produce: Producer,
    facts: Callable[[], dict[str, Any]],
    second: Callable[[], toolchain.Compiler] | None = None,
    watch: BuildWatch | None = None,
) -> Build:
    """Return the library of a request from the cache, else produce and publish it.

    ``second`` finds a compiler that is needed besides that for C++; ``watch`` is told for whom
    this build waits.
    """
    identity: str | None = None
    try:
        compiler: toolchain.Compiler | None = toolchain.find_compiler()
        identity = "\n".join(c.identity for c in (compiler, second and second()) if c)
    except MissingToolError:
        compiler = None

    def again(entry: str) -> Callable[[], Build]:
        def build_again() -> Build:
            cache.drop(request, entry, "refused by the loader")
            return find_or_build(name, request, cache, produce, facts, second, watch)

        return build_again

    if found := _find(cache, request, identity):
        return dataclasses.replace(found, _again=again(found.folder.name))
    if compiler is None or identity is None:
        compiler = toolchain.find_compiler()  # this or the next raises with what was looked for
        identity = "\n".join(c.identity for c in (compiler, second and second()) if c)
    cache = writable(cache)
    on_wait = watch.waiting if watch is not None else None
    lock = cache.lock("library", request, repr(name), on_wait=on_wait)
    with explain_full_disk(cache), lock:
        if found := _find(cache, request, identity):
            return dataclasses.replace(found, _again=again(found.folder.name))
        start_ns = time.time_ns()
        start = time.perf_counter()
        with cache.workspace() as work:
            product = produce(work, compiler, cache)
            seconds = time.perf_counter() - start - product.shared_seconds
            entry = _publish(
                cache, request, name, identity, work, product, facts(), seconds, start_ns
            )
    data = cache.entry(entry)
    if data is None:
        raise RuntimeError(f"the library {name!r} vanished from {cache.root} while it was built")
    keep_within_limit(cache, sum(f.stat().st_size for f in cache.folder(entry).iterdir()))
    build = _build_of(cache, entry, data, cached=False)
    return dataclasses.replace(
        build, shared_seconds=round(product.shared_seconds, 4), _again=again(entry)
    )


#: Entries whose checksum this process has compared, with the size and times of their library.
_verified: dict[tuple[str, str], tuple[int, int, int, Build]] = {}
_MAX_VERIFIED = 512


def _find(cache: Cache, request: str, compiler: str | None) -> Build | None:
    record = cache.find(request, compiler)
    while record is not None:
        library_state: tuple[int, int, int] | None = None
        known = _verified.get((str(cache.root), record.entry))
        if known:
            with contextlib.suppress(OSError):
                state = known[3].library.stat()
                library_state = (state.st_size, state.st_mtime_ns, state.st_ctime_ns)
            if library_state == known[:3]:
                cache.touch(known[3].folder)
                return known[3]
        data = cache.entry(record.entry)
        if data is not None:
            cache.touch(cache.folder(record.entry))
            return _build_of(cache, record.entry, data, cached=True)
        cache.drop(request, record.entry, "damaged or incomplete")
        record = cache.find(request, compiler)
    return None


def _build_of(cache: Cache, entry: str, data: dict[str, Any], *, cached: bool) -> Build:
    folder = cache.folder(entry)
    build = Build(
        name=data["name"],
        key=data["key"],
        folder=folder,
        library=folder / data["library"],
        commands=tuple(tuple(command) for command in data["commands"]),
        diagnostics=tuple(Diagnostic.from_dict(d) for d in data["diagnostics"]),
        dependencies=tuple(Path(path) for path in data["dependencies"]),
        seconds=data["seconds"],
        shared_seconds=0.0,
        cached=cached,
        rung=data["rung"],
        log=data["log"],
        signatures={k: tuple((p[0], p[1], p[2]) for p in v) for k, v in data["signatures"].items()},
        results=data.get("results", {}),  # older entries do not say
        docs=data["docs"],
        stateful=data["stateful"],
        unloadable=data["unloadable"] and data["rung"] == "light" and data["cuda"] is None,
        cuda=data["cuda"],
    )
    with contextlib.suppress(OSError):
        state = build.library.stat()
        remembered = build if cached else dataclasses.replace(build, cached=True)
        key = (str(cache.root), entry)
        _verified[key] = (state.st_size, state.st_mtime_ns, state.st_ctime_ns, remembered)
        while len(_verified) > _MAX_VERIFIED:
            _verified.pop(next(iter(_verified)), None)
    return build


def _publish(
    cache: Cache,
    request: str,
    name: str,
    identity: str,
    work: Path,
    product: Product,
    facts: dict[str, Any],
    seconds: float,
    start_ns: int,
) -> str:
    """Describe and publish a finished build; returns the entry."""
    own = tuple(
        str(folder) + os.sep for folder in (support.INCLUDE, *toolchain.find_engine().include_paths)
    )
    private = str(work) + os.sep
    paths = [
        path
        for path in dict.fromkeys(os.path.normpath(work / p) for p in product.dependencies)
        if not path.startswith((*own, private)) and "/precompiled/" not in path
    ]
    command = product.commands[-1] if product.commands else ()
    texts = [work / made for made in ("source.cpp", "cuda.cu") if (work / made).is_file()]
    besides = unseen(
        {
            toolchain.working_folder(): "\n".join(
                text.read_text("utf-8", "replace") for text in texts
            )
        },
        paths,
        [word[2:] for word in command if word.startswith("-I") and len(word) > 2],
        product.system_paths,
    )
    paths = list(dict.fromkeys((*paths, *besides.present)))
    files = tuple(FileState.of(path) for path in paths)
    key = digest(request, identity, *(f.sha256 for f in files), product.precompiled or "")
    library = product.output or f"{safe_name(name)}-{key[:12]}{shared_suffix()}"
    (work / product.library).rename(work / library)
    for leftover in work.iterdir():
        if leftover.name != library and leftover.suffix in {
            ".d",
            ".o",
            ".obj",
            ".cubin",
            ".ptx",
            ".rsp",
            ".exp",
        }:
            leftover.unlink()
    content = (work / library).read_bytes()
    data = {
        "format": FORMAT,
        "name": name,
        "key": key,
        "library": library,
        "sha256": hashlib.sha256(content).hexdigest(),
        "created": dt.datetime.now(dt.timezone.utc).isoformat(),
        "seconds": round(seconds, 4),
        "rung": product.rung,
        "cuda": product.cuda,
        "compiler": identity.split("\n"),
        "commands": [list(command) for command in product.commands],
        "dependencies": paths,
        "diagnostics": [d.to_dict() for d in product.diagnostics],
        "log": product.log,
        "files": {file.path: file.sha256 for file in files},
        "request": request,
        **facts,
    }
    write_atomically(work / "entry.json", json.dumps(data, indent=1))
    entry = cache.publish(work, name, key)
    if besides.why:
        warnings.warn(
            f"{name!r} is built again each time: {besides.why}", BuildCacheWarning, stacklevel=2
        )
    elif all(_untouched(file, start_ns) for file in files):
        # A file changed while it was being read gives a library for now, but no record.
        record = Record(identity, entry, files, product.precompiled, besides.absent, time.time_ns())
        with contextlib.suppress(OSError):  # no room left: it is right, and not found again
            cache.add(request, record)
    return entry


def _untouched(file: FileState, start_ns: int) -> bool:
    """Return whether nobody wrote to a file since `start_ns`.

    The inode's time says it, whatever the time of the content was set to. Where the clock was set
    back it may say no for a while: the library is then built again each time, which is slow, not
    wrong.
    """
    return (file.mtime_ns if sys.platform == "win32" else file.ctime_ns) < start_ns
