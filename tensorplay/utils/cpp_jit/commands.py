"""Command lines of compilers and linkers, as a function of their kind and of what is asked.

Nothing here runs or looks for anything: a job and the traits of a compiler give the words after its
name. So the lines for systems that are not at hand are held by tests, word for word.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePath, PurePosixPath, PureWindowsPath

__all__ = [
    "NO_UNDEFINED",
    "Job",
    "Link",
    "Traits",
    "arguments",
    "base_flags",
    "header_arguments",
    "link_arguments",
    "linker_flags",
    "object_suffix",
    "response_text",
    "shared_suffix",
]

#: Without "defs" a function that is declared but not defined would end the process at its call.
NO_UNDEFINED = "-Wl,-z,defs"
#: Numbers, kinds of conversions and declarations in the engine's headers that cl warns of.
_QUIET = tuple(f"/wd{number}" for number in (4819, 4251, 4244, 4267, 4275, 4018, 4190, 4624, 4068))


@dataclass(frozen=True)
class Traits:
    """What running a compiler once told about it.

    Parameters
    ----------
    kind
        ``"gcc"``, ``"clang"``, ``"msvc"`` or ``"unknown"``.
    version
        As the compiler names it.
    linker
        The fastest linker that works, or None for the compiler's own choice.
    link_flags
        Those of our linker flags that work.
    precompiles
        Whether it takes precompiled headers.
    include_paths
        Folders that it searches by itself.
    """

    kind: str
    version: str
    linker: str | None = None
    link_flags: tuple[str, ...] = ()
    precompiles: bool = False
    include_paths: tuple[str, ...] = ()


@dataclass(frozen=True)
class Link:
    """How a library is put together.

    Parameters
    ----------
    objects
        The run-time library's object files.
    engine
        The engine's library.
    flags
        The caller's, last so that they win.
    undefined
        Whether symbols may stay undefined, as those of the Python interpreter do.
    """

    objects: tuple[str, ...]
    engine: str
    flags: tuple[str, ...] = ()
    undefined: bool = False


@dataclass(frozen=True)
class Job:
    """One source file to be compiled, and to be linked if there is a `link`.

    Parameters
    ----------
    source, output
        Names of files.
    language
        ``"c++"`` or ``"c"``.
    flags
        The caller's.
    headers
        Headers that are read first, as if included.
    precompiled
        A precompiled header to use in place of `headers`.
    quote_paths, include_paths, system_paths
        Folders for ``#include "…"``, for all includes, and for headers without warnings.
    dependencies
        The file for the names of all headers that were read.
    """

    source: str
    output: str
    language: str = "c++"
    flags: tuple[str, ...] = ()
    headers: tuple[str, ...] = ()
    precompiled: str | None = None
    quote_paths: tuple[str, ...] = ()
    include_paths: tuple[str, ...] = ()
    system_paths: tuple[str, ...] = ()
    dependencies: str = "dependencies.d"
    link: Link | None = None


def base_flags(kind: str, language: str = "c++") -> tuple[str, ...]:
    """Return the flags of every compilation, which the caller's follow."""
    if kind == "msvc":
        standard = ("/std:c++17", "/EHsc", "/Zc:__cplusplus") if language == "c++" else ()
        return ("/nologo", *standard, "/O2", "/MD", "/utf-8", "/bigobj", *_QUIET)
    options = ("-std=c++17", "-fPIC", "-O2") if language == "c++" else ("-fPIC", "-O2")
    # Unique symbols would be shared between libraries: two cells with one template's name would see
    # each other's static variables, and no library could be unloaded.
    # With pipes the assembler starts while the compiler works.
    gnu = ("-fno-gnu-unique", "-pipe") if kind == "gcc" else ()
    return (*options, *gnu)


def diagnostic_flags(kind: str) -> tuple[str, ...]:
    """Return flags that make messages parseable and bounded."""
    if kind == "msvc":
        return ("/diagnostics:column",)
    if kind == "gcc":
        return (
            "-fno-diagnostics-show-caret",
            "-fdiagnostics-parseable-fixits",
            "-fdiagnostics-color=never",
            "-fmax-errors=50",
        )
    if kind == "clang":
        return (
            "-fno-caret-diagnostics",
            "-fdiagnostics-parseable-fixits",
            "-fno-color-diagnostics",
            "-ferror-limit=50",
        )
    return ()


def linker_flags(platform: str = sys.platform) -> tuple[str, ...]:
    """Return the flags that our libraries are linked with, where the linker takes them.

    Symbolic binding keeps every library's functions and variables its own: a cell's ``timezone``
    or ``optind`` would otherwise be the C library's. The sections that go are those of the run-time
    library that a cell does not use.
    """
    if platform.startswith("linux"):
        return (NO_UNDEFINED, "-Wl,-Bsymbolic", "-Wl,--gc-sections")
    return ("-Wl,-dead_strip",) if platform == "darwin" else ()


def shared_suffix(platform: str = sys.platform) -> str:
    """Return how the name of a library ends."""
    return {"win32": ".dll", "darwin": ".dylib"}.get(platform, ".so")


def object_suffix(platform: str = sys.platform) -> str:
    """Return how the name of an object file ends."""
    return ".obj" if platform == "win32" else ".o"


def arguments(traits: Traits, job: Job, platform: str = sys.platform) -> tuple[str, ...]:
    """Return the words of a compilation, with the link if the job has one."""
    if traits.kind == "msvc":
        return _cl_arguments(job)
    language = ("-x", "c", job.source, "-x", "none") if job.language == "c" else (job.source,)
    return (
        *base_flags(traits.kind, job.language),
        *job.flags,
        *_read_first(traits.kind, job),
        *(word for path in job.quote_paths for word in ("-iquote", path)),
        *(f"-I{path}" for path in job.include_paths),
        *(word for path in job.system_paths for word in ("-isystem", path)),
        *diagnostic_flags(traits.kind),
        *("-MD", "-MF", job.dependencies),
        *language,
        *_plugin_flags(traits.kind, job),
        *(link_arguments(traits, job.link, platform) if job.link else ("-c",)),
        *("-o", job.output),
    )


def _plugin_flags(kind: str, job: Job) -> tuple[str, ...]:
    """Return what spares the linker the plug-in that only link-time optimisation needs: 2 ms."""
    flags = (*job.flags, *(job.link.flags if job.link else ()))
    wanted = job.link and kind == "gcc" and not any(flag.startswith("-flto") for flag in flags)
    return ("-fno-use-linker-plugin",) if wanted else ()


def _read_first(kind: str, job: Job) -> tuple[str, ...]:
    if job.precompiled is None:
        return tuple(word for name in job.headers for word in ("-include", name))
    # g++ looks for NAME.gch beside NAME and reads NAME where that does not fit.
    return ("-include-pch" if kind == "clang" else "-include", job.precompiled)


def _cl_arguments(job: Job) -> tuple[str, ...]:
    made: tuple[str, ...] = ("/c", f"/Fo:{job.output}")
    if job.link:
        made = (f"/Fe:{job.output}", *_cl_link(job.link))
    return (
        *base_flags("msvc", job.language),
        *(f"/I{path}" for path in (*job.quote_paths, *job.include_paths)),
        *(word for path in job.system_paths for word in ("/external:I", path)),
        *(("/external:W0",) if job.system_paths else ()),
        *(f"/FI{name}" for name in job.headers),
        *diagnostic_flags("msvc"),
        *job.flags,
        *("/sourceDependencies", job.dependencies),
        *("/Tc" if job.language == "c" else "/Tp", job.source),
        *made,
    )


def _cl_link(link: Link) -> tuple[str, ...]:
    engine = PureWindowsPath(link.engine)
    return (
        "/LD",
        *link.objects,
        "/link",
        "/NOLOGO",
        "/INCREMENTAL:NO",
        f"/LIBPATH:{engine.parent}",
        f"{engine.stem}.lib",
        *link.flags,
    )


def link_arguments(traits: Traits, link: Link, platform: str = sys.platform) -> tuple[str, ...]:
    """Return the linker's part of a command line.

    Parameters
    ----------
    traits
        Of the compiler that links.
    link
        What and how.
    platform
        As ``sys.platform`` names it.
    """
    if traits.kind == "msvc":
        return _cl_link(link)
    engine = _path(link.engine, platform)
    folder, stem = str(engine.parent), engine.stem.removeprefix("lib")
    own = [f for f in traits.link_flags if not (link.undefined and f == NO_UNDEFINED)]
    rest = (*own, *link.objects, f"-L{folder}", f"-l{stem}", *link.flags)
    if platform == "darwin":
        # The engine's library is named relative to a folder that only the loader knows.
        found = (f"-Wl,-rpath,{folder}",)
        return ("-dynamiclib", "-undefined", "dynamic_lookup", *found, *rest)
    linker = (f"-fuse-ld={traits.linker}",) if traits.linker else ()
    return ("-shared", *linker, *rest)


def _path(text: str, platform: str) -> PurePath:
    return PureWindowsPath(text) if platform == "win32" else PurePosixPath(text)


def header_arguments(
    traits: Traits, job: Job, platform: str = sys.platform
) -> tuple[str, ...] | None:
    """Return the words that precompile the header `job.source`, or None where that is not done."""
    if not traits.precompiles or traits.kind not in {"gcc", "clang"}:
        return None
    # Instantiating in the header what it leaves pending saves each cell a tenth of a second.
    # Times of files are not looked at: a header that was only touched would fit no more.
    clang = ("-fpch-instantiate-templates", "-Xclang", "-fno-pch-timestamp")
    own = clang if traits.kind == "clang" else ()
    return (
        *base_flags(traits.kind),
        *job.flags,
        *own,
        *(word for path in job.system_paths for word in ("-isystem", path)),
        *("-x", "c++-header", job.source),
        *("-MD", "-MF", job.dependencies, "-o", job.output),
    )


def response_text(kind: str, words: Sequence[str]) -> str:
    """Return the content of a response file that stands for many words.

    cl reads its words as Windows programs do; g++ and clang take a backslash before any character.
    """
    if kind == "msvc":
        quoted = (_windows_quoted(word) for word in words)
    else:
        quoted = ("".join(f"\\{c}" if c in " \t\n\"'\\" else c for c in w) or '""' for w in words)
    return os.linesep.join(quoted) + os.linesep


def _windows_quoted(word: str) -> str:
    if word and not any(c in ' \t"' for c in word):
        return word
    text = ""
    backslashes = 0
    for character in word:
        if character == "\\":
            backslashes += 1
            continue
        doubled = 2 * backslashes + 1 if character == '"' else backslashes
        text += "\\" * doubled + character
        backslashes = 0
    return f'"{text}{chr(92) * 2 * backslashes}"'
