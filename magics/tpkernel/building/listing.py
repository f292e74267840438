"""What the compiler made of a cell: remarks of its optimiser, and the kernels' machine code.

The cell is built once more with line tables and remarks; neither changes the code that is made.
Remarks and instructions are given at the cell's own lines.
"""

from __future__ import annotations

import dataclasses
import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

from tensorplay.utils import cpp_jit
from tpkernel.building.compiling import STABLE_NAME, compile_cell
from tpkernel.building.request import Request
from tpkernel.cells.cell import parse_cell
from tpkernel.report.facts import DiagnosticFacts, InstructionFacts, ListingFacts
from tpkernel.report.report import Report

__all__ = ["listing_of"]

_GCC_FLAGS = "-g1 -fopt-info-vec-optimized-missed"
_CLANG_FLAGS = "-g1 -Rpass=loop-vectorize -Rpass-missed=loop-vectorize"
_FUNCTION = re.compile(r"^[0-9a-f]+ <(?P<name>.+)>:$")
_PLACE = re.compile(r"^(?P<file>\S.*):(?P<line>\d+)(?: \(discriminator \d+\))?$")
_INSTRUCTION = re.compile(r"^ +(?P<address>[0-9a-f]+):\t(?P<text>.+?)\s*$")
_TOOLS = ("objdump", "llvm-objdump")
_LONGEST = 600
_SECONDS = 60


def listing_of(report: Report) -> ListingFacts:
    """Build a report's cell with remarks and line tables, and read both.

    Raises
    ------
    RuntimeError
        The report was not made by a build of this session.
    tensorplay.utils.cpp_jit.BuildError
        The cell does not build any more.
    """
    origin = report.origin
    if origin is None:
        message = "the report was not made by a build of this session; run the cell again"
        raise RuntimeError(message)
    if report.build.cuda is not None:
        note = (
            "machine code is listed for C++ cells. What a CUDA kernel takes stands in the table of "
            "kernels; cuobjdump -sass, of the CUDA toolkit, lists the code."
        )
        return ListingFacts("", (), (), (note,))
    request: Request = origin.request
    clang = any("clang" in Path(command[0]).name for command in report.build.commands[:1])
    flags = _CLANG_FLAGS if clang else _GCC_FLAGS
    cell = parse_cell(request.text, name=request.cell_name, first_line=request.first_line)
    asked = dataclasses.replace(request, flags=(*request.flags, flags))
    build = compile_cell(asked, cell, origin.spec)
    remarks = _remarks(build)
    tool = next(filter(None, map(shutil.which, _TOOLS)), None)
    if tool is None:
        note = (
            f"no disassembler: looked for {' and '.join(_TOOLS)}. Install binutils, such as by "
            "apt-get install binutils."
        )
        return ListingFacts("", remarks, (), (note,))
    command = [tool, "-d", "-C", "-l", "--no-show-raw-insn", str(build.library)]
    shown = subprocess.run(
        command, capture_output=True, text=True, errors="replace", check=False, timeout=_SECONDS
    )
    notes: list[str] = []
    if shown.returncode:
        notes.append(f"{tool} failed: {shown.stderr.strip().splitlines()[-1:] or 'no message'}")
    instructions = _instructions(shown.stdout, notes)
    if not instructions and not notes:
        notes.append("the library holds no instruction that comes from the cell.")
    return ListingFacts(shlex.join(command), remarks, tuple(instructions), tuple(notes))


def _remarks(build: cpp_jit.Build) -> tuple[DiagnosticFacts, ...]:
    found = {
        (d.line, d.column, d.message): DiagnosticFacts(
            d.line, d.column, d.level, d.message, d.source_line, d.fix
        )
        for d in build.diagnostics
        if d.level == "note" and d.file == STABLE_NAME
    }
    return tuple(sorted(found.values(), key=lambda d: (d.line, d.column or 0)))


def _instructions(text: str, notes: list[str]) -> list[InstructionFacts]:
    """Return, per function that holds code of the cell, all from its first such line to its last.

    Code of headers in between is inlined there, and belongs to the cell's line before it.
    """
    kept: list[InstructionFacts] = []
    function: str = ""
    pending: list[tuple[InstructionFacts, bool]] = []
    line: int | None = None
    own = False

    def close() -> None:
        places = [i for i, (_, ours) in enumerate(pending) if ours]
        if places:
            part = [fact for fact, _ in pending[places[0] : places[-1] + 1]]
            if len(part) > _LONGEST:
                notes.append(
                    f"{function}: the first {_LONGEST} of {len(part)} instructions are shown."
                )
            kept.extend(part[:_LONGEST])
        pending.clear()

    for row in text.splitlines():
        if found := _FUNCTION.match(row):
            close()
            function, line, own = found["name"], None, False
        elif found := _INSTRUCTION.match(row):
            fact: Any = InstructionFacts(function, found["address"], found["text"], line)
            pending.append((dataclasses.replace(fact, text=" ".join(fact.text.split())), own))
        elif found := _PLACE.match(row):
            own = found["file"].endswith(STABLE_NAME)
            if own:
                line = int(found["line"])
    close()
    return kept
