"""One translation unit: what is put around a person's source, and the headers it is tried with.

*light* is our stand-in over the engine's C header, *full* the engine's own headers with our export
wrapper, *stock* the engine's own headers and export macro. Each takes more than the one before and
is slower. A word scan chooses the first; the compiler's answer moves on.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tensorplay.utils.cpp_jit import support, toolchain
from tensorplay.utils.cpp_jit.commands import Job, Link, Traits, arguments
from tensorplay.utils.cpp_jit.diagnostics import Diagnostic, Texts, parse, render
from tensorplay.utils.cpp_jit.errors import BuildError
from tensorplay.utils.cpp_jit.exports import check_exports
from tensorplay.utils.cpp_jit.flags import Options, link_inputs
from tensorplay.utils.cpp_jit.inputs import assembled
from tensorplay.utils.cpp_jit.msvc import parse_source_dependencies
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
from tensorplay.utils.cpp_jit.watch import BuildWatch

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
    shared_seconds: float = 0.0  # of the build's, for what later builds find
    system_paths: tuple[str, ...] = ()  # that the compiler searches by itself


@dataclass(frozen=True)
class Unit:
    """One translation unit made of a person's source and what is put around it."""

    name: str
    source: Source
    exports: Mapping[str, str]
    generated: str = ""
    preamble: str = ""
    options: Options = field(default_factory=Options)
    export_macro: str = "TP_EXPORT"

    @property
    def shown_name(self) -> str:
        """Return the name of the source in diagnostics."""
        return self.source.name or f"{self.name}.cpp"


def compile_unit(
    unit: Unit,
    work: Path,
    compiler: toolchain.Compiler,
    cache: Cache,
    *,
    link: bool = True,
    watch: BuildWatch | None = None,
    meanwhile: Callable[[], object] = lambda: None,
) -> Product:
    """Compile a unit in a private folder and link it, or leave the object file.

    `watch` is told what happens; `meanwhile` is work to be done while the compiler runs.

    Raises
    ------
    BuildError
        It does not compile with any set of headers.
    """
    texts = texts_of(unit)
    scans = (scan(unit.preamble), scan(unit.source.text), scan(unit.generated))
    check_exports(unit.exports, scans[1], scans[0], texts)
    common = support.common(cache, compiler)
    shared_seconds = common.seconds
    rung = first_rung(unit, scans, cache.full_words(unit.name))
    if common.traits.kind == "msvc" or unit.options.is_object:
        rung = "stock"  # an object file that needs nothing of ours, wherever it is linked
    commands: list[tuple[str, ...]] = []
    logs: list[str] = []
    while True:
        if rung == "full":
            try:
                common = support.common(cache, compiler, full=True)
            except BuildError:
                rung = "stock"  # an engine whose containers are not those we know
            else:
                shared_seconds += common.seconds
        attempt = _Attempt(unit, scans, rung, work, compiler, cache, common, link)
        done, headers = attempt.run(_teller(rung, texts, watch or BuildWatch(), meanwhile))
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
            cache.note_full_words(unit.name, _reasons(unit, scans, errors))
        rung = following
    return Product(
        library=attempt.output,
        commands=tuple(commands),
        diagnostics=found,
        dependencies=(
            *read_dependencies(work / _DEPENDENCIES, common.traits),
            *link_inputs((*unit.options.cflags, *unit.options.ldflags)),
            *assembled(
                (attempt.text(()),), (toolchain.working_folder(), *unit.options.include_paths)
            ),
        ),
        precompiled=headers.file_set if headers else None,
        rung=rung,
        log=logs[-1],
        output=unit.options.output,
        shared_seconds=shared_seconds,
        system_paths=common.traits.include_paths,
    )


def _teller(
    rung: str, texts: Texts, watch: BuildWatch, meanwhile: Callable[[], object]
) -> Callable[[float, str], None]:
    """Return what is called while a compiler runs: it tells the watch what is new."""
    known = ""

    def tell(seconds: float, output: str) -> None:
        nonlocal known
        if not seconds:
            watch.started()
            meanwhile()
        else:
            watch.compiling(seconds)
        if output == known:
            return
        known = output
        found = parse(output, texts)
        errors = [d for d in found if d.level == "error"]
        watch.said(() if errors and next_rung(rung, errors, output) else found)

    return tell


def read_dependencies(file: Path, traits: Traits) -> list[str]:
    """Return the files that a compiler wrote that it read."""
    text = file.read_text("utf-8", "replace")
    return parse_source_dependencies(text) if traits.kind == "msvc" else parse_dependencies(text)


def first_rung(unit: Unit, scans: Sequence[Scan], known: frozenset[str]) -> str:
    """Return the set of headers to try first: what the words need, or what the last edit needed.

    ``known`` are the reasons for which an earlier text of this name needed the full ones.
    """
    if any(_METADATA in flag for flag in unit.options.cflags) or _METADATA in _words(scans):
        return "stock"  # only the engine's export macro writes it
    if needs_full_headers(scans) is not None:
        return "full"
    if known and not known.isdisjoint((*_signatures(unit, scans), *_words(scans))):
        return "full"
    return "light"


def _words(scans: Sequence[Scan]) -> frozenset[str]:
    return frozenset[str]().union(*(names(part.code) for part in scans))


def _signatures(unit: Unit, scans: Sequence[Scan]) -> list[str]:
    """Return the types of the exported functions, one text per function."""
    return [
        f"{function.result}({', '.join(p.type for p in function.parameters)})"
        for part in scans
        for function in part.functions
        if function.name in unit.exports
    ]


def _reasons(unit: Unit, scans: Sequence[Scan], errors: Sequence[Diagnostic]) -> frozenset[str]:
    """Return what made a text need the full headers: names of the engine, else its signatures."""
    said = re.findall(r"[`'‘](?:[\w:]*::)?(\w+)", "\n".join(d.message for d in errors))
    engine = frozenset(said) & engine_words() & _words(scans)
    return engine or frozenset(_signatures(unit, scans))


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
            **_texts_inside(unit.preamble),
            unit.shown_name: (unit.source.first_line, unit.source.text.splitlines()),
            "<preamble>": (1, unit.preamble.splitlines()),
            "<generated>": (1, unit.generated.splitlines()),
        },
    )


def _texts_inside(preamble: str) -> dict[str, tuple[int, Sequence[str]]]:
    """Return the texts that a preamble holds under names of their own, by ``#line``."""
    parts = re.split(r'^#line (\d+) "([^"\n]*)"\n', preamble, flags=re.MULTILINE)[1:]
    return {
        name: (int(first), text.splitlines())
        for first, name, text in zip(parts[::3], parts[1::3], parts[2::3], strict=True)
    }


_SOURCE = "source.cpp"
_OUTPUT = "library"
_DEPENDENCIES = "dependencies.d"
_METADATA = "TVM_FFI_DLL_EXPORT_INCLUDE_METADATA"
# clang refuses what does not fit, where g++ reads the text; either may break down over it.
_PRECOMPILED_AT_FAULT = re.compile(
    r"internal compiler error|precompiled header|(?:PCH|AST|module) file|PLEASE submit a bug report"
)


@dataclass(frozen=True)
class _Attempt:
    """One run of the compiler over a unit with one set of headers."""

    unit: Unit
    scans: tuple[Scan, Scan, Scan]
    rung: str
    work: Path
    compiler: toolchain.Compiler
    cache: Cache
    common: support.Common
    link: bool

    @property
    def output(self) -> str:
        if self.common.traits.kind == "msvc":
            return f"{_OUTPUT}.dll" if self.link else "source.obj"
        return _OUTPUT if self.link else "source.o"

    @property
    def includes(self) -> tuple[str, ...]:
        return tuple(name for part in self.scans for name in part.includes)

    def run(
        self, tell: Callable[[float, str], None]
    ) -> tuple[toolchain.ToolResult, support.Precompiled | None]:
        implied = implied_headers(self.scans) if self.rung == "light" else ()
        (self.work / _SOURCE).write_text(self.text(implied), "utf-8", newline="")
        headers = None
        if self.rung != "stock":
            wanted = support.headers_for(
                self.rung,
                (*implied, *self.includes),
                self.unit.options.cflags,
                whole=needs_whole_standard(self.scans),
            )
            headers = support.precompiled(self.cache, self.compiler, self.common.traits, wanted)
        done = toolchain.run(self.compiler, self.arguments(headers), self.work, tell)
        if done.returncode and headers and _PRECOMPILED_AT_FAULT.search(done.output):
            headers = None  # it is not needed
            done = toolchain.run(self.compiler, self.arguments(None), self.work, tell)
        return done, headers

    def arguments(self, headers: support.Precompiled | None) -> tuple[str, ...]:
        local = any(part.local_includes for part in self.scans)
        engine = support.engine_header(self.rung, self.includes)
        link = Link(
            self.common.objects,
            str(toolchain.find_engine().library),
            self.unit.options.ldflags,
            undefined=any("Python.h" in part.includes for part in self.scans),
        )
        job = Job(
            source=_SOURCE,
            output=self.output,
            flags=self.unit.options.cflags,
            headers=() if self.rung == "stock" else (engine,),
            precompiled=str(headers.include) if headers else None,
            quote_paths=tuple(filter(None, (toolchain.working_folder() if local else "",))),
            include_paths=self.unit.options.include_paths,
            system_paths=support.include_paths(),
            dependencies=_DEPENDENCIES,
            link=link if self.link else None,
        )
        return arguments(self.common.traits, job)

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


def c_string(text: str) -> str:
    """Return a text as a C string literal."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    for character, code in (("\n", "\\n"), ("\r", "\\r"), ("\t", "\\t")):
        escaped = escaped.replace(character, code)
    return f'"{escaped}"'
