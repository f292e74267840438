"""One translation unit: what is put around a person's source, and the headers it is tried with.

*light* is our stand-in over the engine's C header, *full* the engine's own headers with our export
wrapper, *stock* the engine's own headers and export macro. Each takes more than the one before and
is slower. A word scan chooses the first; the compiler's answer moves on.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tensorplay.utils.cpp_jit import support, toolchain
from tensorplay.utils.cpp_jit.diagnostics import Diagnostic, Texts, parse, render
from tensorplay.utils.cpp_jit.errors import BuildError
from tensorplay.utils.cpp_jit.exports import check_exports
from tensorplay.utils.cpp_jit.flags import link_inputs
from tensorplay.utils.cpp_jit.source import (
    Scan,
    engine_words,
    header_may_be_missing,
    implied_headers,
    names,
    needs_full_headers,
    needs_whole_standard,
    scan,
)
from tensorplay.utils.cpp_jit.store import Cache, parse_dependencies

_STOCK_HEADERS = (
    "tvm/ffi/container/tensor.h",
    "tvm/ffi/dtype.h",
    "tvm/ffi/error.h",
    "tvm/ffi/extra/c_env_api.h",
    "tvm/ffi/function.h",
)


@dataclass(frozen=True)
class Source:
    """C++ text and how a person names its lines.

    Parameters
    ----------
    text
        The source.
    name
        Name in diagnostics, such as ``In[5]``; empty for ``<name>.cpp``.
    first_line
        Number that the first line of ``text`` has for the person.
    """

    text: str
    name: str = ""
    first_line: int = 1


@dataclass(frozen=True)
class Product:
    """What a compilation left in its private folder."""

    library: str
    commands: tuple[tuple[str, ...], ...]
    diagnostics: tuple[Diagnostic, ...]
    dependencies: tuple[str, ...]
    precompiled: str | None
    rung: str
    log: str
    cuda: Mapping[str, Any] | None = None
    output: str = ""  # a name that the caller chose


@dataclass(frozen=True)
class Unit:
    """One translation unit made of a person's source and what is put around it."""

    name: str
    source: Source
    exports: Mapping[str, str]
    generated: str
    preamble: str
    cflags: tuple[str, ...]
    ldflags: tuple[str, ...]
    include_paths: tuple[str, ...]
    export_macro: str = "TP_EXPORT"

    @property
    def shown_name(self) -> str:
        """Return the name of the source in diagnostics."""
        return self.source.name or f"{self.name}.cpp"


#: Words that made a light build of a name fail: the next edit that still holds one skips it.
_needs_full: dict[str, frozenset[str]] = {}


def compile_unit(
    unit: Unit, work: Path, compiler: toolchain.Compiler, cache: Cache, *, link: bool = True
) -> Product:
    """Compile a unit in a private folder and link it, or leave the object file.

    Raises
    ------
    BuildError
        It does not compile with any set of headers.
    """
    texts = texts_of(unit)
    scans = (scan(unit.preamble), scan(unit.source.text), scan(unit.generated))
    check_exports(unit.exports, scans[1], scans[0], texts)
    traits = toolchain.traits(compiler, cache.root)
    rung = first_rung(unit, scans)
    commands: list[tuple[str, ...]] = []
    logs: list[str] = []
    while True:
        try:
            objects = support.runtime_objects(cache, compiler, full=rung == "full")
        except BuildError:
            if rung != "full":
                raise
            rung = "stock"  # an engine whose containers are not those we know
            continue
        attempt = _Attempt(unit, scans, rung, work, compiler, traits, cache, objects, link)
        done, headers = attempt.run()
        commands.append(done.command)
        logs.append(done.output)
        found = parse(done.output, texts)
        if done.returncode == 0:
            break
        errors = [d for d in found if d.level == "error"]
        following = next_rung(rung, errors, done.output)
        if following is None:
            raise BuildError(
                render(found, done.output),
                diagnostics=found,
                log="\n".join(logs),
                commands=commands,
            )
        if rung == "light":
            quoted = re.findall(r"[`'‘](?:[\w:]*::)?(\w+)", "\n".join(d.message for d in errors))
            _needs_full[unit.name] = frozenset(quoted) & engine_words()
        rung = following
    return Product(
        library=attempt.output,
        commands=tuple(commands),
        diagnostics=found,
        dependencies=(
            *parse_dependencies((work / _DEPENDENCIES).read_text("utf-8", "replace")),
            *link_inputs((*unit.cflags, *unit.ldflags)),
        ),
        precompiled=headers.file_set if headers else None,
        rung=rung,
        log=logs[-1],
    )


def first_rung(unit: Unit, scans: Sequence[Scan]) -> str:
    """Return the set of headers to try first: what the words need, or what the last edit needed."""
    if needs_full_headers(scans) is not None:
        return "full"
    known = _needs_full.get(unit.name)
    if known and any(known & names(part.code) for part in scans):
        return "full"
    return "light"


def next_rung(rung: str, errors: Sequence[Diagnostic], output: str) -> str | None:
    """Return the set of headers to try after a failure, or None if the source is at fault."""
    if rung == "light":
        if any(header_may_be_missing(d.message) for d in errors) or (
            not errors and "tvm::ffi" in output
        ):
            return "full"
        return None
    # An error inside our own wrapper, and none in the person's text, may be the wrapper's.
    if rung == "full" and any("/tensorplay/ffi_" in d.file for d in errors):
        return "stock"
    return None


def texts_of(unit: Unit) -> Texts:
    """Return the sources of a unit by the names that the compiler sees."""
    return Texts(
        unit.shown_name,
        {
            unit.shown_name: (unit.source.first_line, unit.source.text.splitlines()),
            "<preamble>": (1, unit.preamble.splitlines()),
            "<generated>": (1, unit.generated.splitlines()),
        },
    )


_SOURCE = "source.cpp"
_OUTPUT = "library"
_DEPENDENCIES = "dependencies.d"


@dataclass(frozen=True)
class _Attempt:
    """One run of the compiler over a unit with one set of headers."""

    unit: Unit
    scans: tuple[Scan, Scan, Scan]
    rung: str
    work: Path
    compiler: toolchain.Compiler
    traits: toolchain.Traits
    cache: Cache
    objects: tuple[Path, ...]
    link: bool

    @property
    def output(self) -> str:
        return _OUTPUT if self.link else "source.o"

    @property
    def includes(self) -> tuple[str, ...]:
        return tuple(name for part in self.scans for name in part.includes)

    def run(self) -> tuple[toolchain.ToolResult, support.Precompiled | None]:
        implied = implied_headers(self.scans) if self.rung == "light" else ()
        (self.work / _SOURCE).write_text(self.text(implied), "utf-8", newline="")
        headers = None
        if self.rung != "stock":
            wanted = support.headers_for(
                self.rung,
                (*implied, *self.includes),
                self.compile_flags(),
                whole=needs_whole_standard(self.scans),
            )
            headers = support.precompiled(self.cache, self.compiler, self.traits.kind, wanted)
        done = toolchain.run(self.compiler, self.arguments(headers), self.work)
        if done.returncode and headers and "internal compiler error" in done.output:
            headers = None  # a precompiled header is the likeliest cause, and not needed
            done = toolchain.run(self.compiler, self.arguments(None), self.work)
        return done, headers

    def compile_flags(self) -> tuple[str, ...]:
        gcc = ("-fno-gnu-unique",) if self.traits.kind == "gcc" else ()
        # Unique symbols would be shared between libraries: two cells with one template's name
        # would see each other's static variables, and no library could be unloaded.
        return (*support.BASE_FLAGS, *gcc, *self.unit.cflags)

    def arguments(self, headers: support.Precompiled | None) -> tuple[str, ...]:
        unit = self.unit
        include: tuple[str, ...] = ()
        if headers:
            include = ("-include", str(headers.include))
        elif self.rung != "stock":
            include = ("-include", support.engine_header(self.rung, self.includes))
        local = any(part.local_includes for part in self.scans)
        return (
            *self.compile_flags(),
            *include,
            *(("-iquote", str(Path.cwd())) if local else ()),
            *(f"-I{path}" for path in unit.include_paths),
            *support.include_flags(),
            *diagnostic_flags(self.traits.kind),
            *("-MD", "-MF", _DEPENDENCIES),
            _SOURCE,
            *(self.link_arguments() if self.link else ("-c",)),
            *("-o", self.output),
        )

    def link_arguments(self) -> tuple[str, ...]:
        python = any("Python.h" in part.includes for part in self.scans)
        return link_arguments(self.traits, self.objects, self.unit.ldflags, undefined=python)

    def text(self, implied: Sequence[str]) -> str:
        unit = self.unit
        macro = "TVM_FFI_DLL_EXPORT_TYPED_FUNC" if self.rung == "stock" else unit.export_macro
        doc = "TVM_FFI_DLL_EXPORT_TYPED_FUNC_DOC" if self.rung == "stock" else "TP_EXPORT_DOC"
        stock = _STOCK_HEADERS if self.rung == "stock" else ()
        lines = [f"#include <{name}>" for name in (*stock, *implied)]
        if unit.preamble:
            lines += ['#line 1 "<preamble>"', unit.preamble]
        lines += [f"#line {unit.source.first_line} {c_string(unit.shown_name)}", unit.source.text]
        if unit.generated:
            lines += ['#line 1 "<generated>"', unit.generated]
        lines.append('#line 1 "<exports>"')
        for name, text in unit.exports.items():
            lines.append(f"{macro}({name}, {name});")
            if text:
                lines.append(f"{doc}({name}, {c_string(text)});")
        return "\n".join(lines) + "\n"


def diagnostic_flags(kind: str) -> tuple[str, ...]:
    """Return flags that make messages parseable and bounded."""
    if kind == "unknown":
        return ()
    if kind == "gcc":
        return (
            "-fno-diagnostics-show-caret",
            "-fdiagnostics-parseable-fixits",
            "-fdiagnostics-color=never",
            "-fmax-errors=50",
        )
    return (
        "-fno-caret-diagnostics",
        "-fdiagnostics-parseable-fixits",
        "-fno-color-diagnostics",
        "-ferror-limit=50",
    )


def link_arguments(
    traits: toolchain.Traits,
    objects: Sequence[Path],
    ldflags: Sequence[str],
    *,
    undefined: bool = False,
) -> tuple[str, ...]:
    """Return the linker's part of a command line.

    Parameters
    ----------
    traits
        Of the compiler that links.
    objects
        The run-time library's object files.
    ldflags
        The caller's flags, last so that they win.
    undefined
        Whether symbols may stay undefined, as those of the Python interpreter do.
    """
    library = toolchain.find_engine().library
    folder, stem = str(library.parent), library.stem.removeprefix("lib")
    runtime = tuple(str(path) for path in objects)
    engine = (f"-L{folder}", f"-l{stem}")
    if sys.platform == "darwin":
        return ("-shared", "-undefined", "dynamic_lookup", *runtime, *engine, *ldflags)
    linker = (f"-fuse-ld={traits.linker}",) if traits.linker else ()
    own = (f for f in traits.link_flags if not (undefined and f == toolchain.NO_UNDEFINED))
    return ("-shared", *linker, *own, *runtime, *engine, *ldflags)


def c_string(text: str) -> str:
    """Return a text as a C string literal."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    for character, code in (("\n", "\\n"), ("\r", "\\r"), ("\t", "\\t")):
        escaped = escaped.replace(character, code)
    return f'"{escaped}"'
