"""From a cell that was read to its library, and the compiler's messages in the cell's own words."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence

from tensorplay.library.modules.spec import CellSpec
from tensorplay.utils import cpp_jit
from tensorplay.utils.cpp_jit.build import build_text
from tensorplay.utils.cpp_jit.compile import Unit
from tensorplay.utils.cpp_jit.flags import Options, checked
from tensorplay.utils.cpp_jit.watch import BuildWatch
from tpkernel.building.codegen import export_source, preamble
from tpkernel.building.request import Request
from tpkernel.building.sanitizers import sanitizer_flags
from tpkernel.cells.cell import Cell, parse_cell
from tpkernel.cells.flags import Flags, limited_compilers, split_flags
from tpkernel.cells.hints import compiler_hint
from tpkernel.cpp.braces import unclosed_brace
from tpkernel.cpp.includes import Included, SharedText, expand

__all__ = [
    "STABLE_NAME",
    "compile_cell",
    "expand_request",
    "flags_of",
    "refuse_open_brace",
    "renamed_error",
    "unit_name",
]

# The build's key holds the source's name, and a cell is In[5] in one run and In[6] in the next.
# So the compiler sees a name that stays, and messages get the cell's own.
STABLE_NAME = "<tpkernel cell>"


def unit_name(request: Request, spec: CellSpec) -> str:
    """Return what a cell's library is called; one that only registers binds no name."""
    return request.name or (*spec.bound_names, "registrations")[0]


def compile_cell(
    request: Request,
    cell: Cell,
    spec: CellSpec,
    included: Included | None = None,
    watch: BuildWatch | None = None,
) -> cpp_jit.Build:
    """Compile a cell that was read, or find its library.

    Parameters
    ----------
    request, cell, spec
        What is compiled.
    included
        The text with the cells that it includes, where that is known already.
    watch
        Told what the compiler does; messages are in the person's names.

    Raises
    ------
    CellError
        Flags that cannot be split, or a brace that is never closed.
    BuildError
        The compiler refuses it; diagnostics stand at the cell's own lines.
    """
    if included is None:
        included = expand(cell, request.shared)
    flags = flags_of(request, cell, included)
    names = ((STABLE_NAME, cell.name), *included.files)
    debug = ["-O0", "-g", "-DTP_DEBUG=1"] if request.debug else []
    sanitizing = sanitizer_flags(request.sanitize)
    try:
        with limited_compilers(request.jobs):
            unit = Unit(
                unit_name(request, spec),
                cpp_jit.Source(included.text, STABLE_NAME, cell.first_line),
                {},
                export_source(spec, flags.macros),
                preamble(spec, flags.macros) + included.preamble,
                Options(
                    # Those of --sanitize are for a process that loads their run-time first.
                    cflags=(*sanitizing, *checked("--flags", [*debug, *flags.cflags])),
                    ldflags=(*sanitizing[:1], *checked("--flags", flags.ldflags)),
                ),
            )
            return build_text(unit, _Renaming(watch, names) if watch is not None else None)
    except cpp_jit.BuildError as problem:
        refuse_open_brace(cell)
        hint = compiler_hint(problem, flags.cflags)
        raise renamed_error(problem, names, f"\n{hint}" if hint else "") from None


def flags_of(request: Request, cell: Cell, included: Included) -> Flags:
    """Return the flags of a cell, of those that it includes, and of its line.

    Raises
    ------
    CellError
        Quotes that do not close.
    """
    try:
        return split_flags((*included.flags, *cell.flags, *request.flags))
    except ValueError as problem:
        raise cell.error(str(problem)) from None


class _Renaming(BuildWatch):
    """Hands on what a build tells, in the person's names of texts."""

    def __init__(self, watch: BuildWatch, names: Sequence[tuple[str, str]]) -> None:
        self._watch = watch
        self._names = names

    def waiting(self, for_whom: str) -> None:
        self._watch.waiting(for_whom)

    def started(self) -> None:
        self._watch.started()

    def compiling(self, seconds: float) -> None:
        self._watch.compiling(seconds)

    def said(self, diagnostics: tuple[cpp_jit.Diagnostic, ...]) -> None:
        self._watch.said(tuple(_renamed(d, self._names) for d in diagnostics))


def refuse_open_brace(cell: Cell) -> None:
    """Raise for a brace that is never closed, of which compilers speak at the text's end."""
    brace = unclosed_brace(cell.text)
    if brace is not None:
        before = cell.text[:brace]
        line = cell.first_line + before.count("\n")
        message = f"unbalanced brace: the one opened at line {line} is never closed"
        column = brace - (before.rfind("\n") + 1) + 1
        raise cell.error(message, line=line, column=column) from None


def renamed_error(
    problem: cpp_jit.BuildError, names: Iterable[tuple[str, str]], more: str = ""
) -> cpp_jit.BuildError:
    """Return a build's error with the person's names of texts, and what there is to add."""
    names = tuple(names)
    return cpp_jit.BuildError(
        _named(str(problem), names) + more,
        diagnostics=[_renamed(d, names) for d in problem.diagnostics],
        log=_named(problem.log, names),
        commands=problem.commands,
    )


def expand_request(request: Request) -> tuple[SharedText, ...]:
    """Return the cells that a request's text includes, those that they include among them."""
    cell = parse_cell(request.text, name=request.cell_name, first_line=request.first_line)
    return expand(cell, request.shared).cells


def _named(text: str, names: Iterable[tuple[str, str]]) -> str:
    for file, name in names:
        text = text.replace(file, name)
    return text


def _renamed(
    diagnostic: cpp_jit.Diagnostic, names: Iterable[tuple[str, str]]
) -> cpp_jit.Diagnostic:
    return dataclasses.replace(diagnostic, file=_named(diagnostic.file, names))
