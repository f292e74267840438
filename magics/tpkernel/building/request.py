"""What is asked of one run of a cell, and what comes of it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from tensorplay.library.modules.spec import CellSpec
from tpkernel.checks.suite import CHECKS
from tpkernel.cpp.includes import SharedText
from tpkernel.report.report import Report
from tpkernel.worker.process import DEFAULT_BUDGET

__all__ = ["BuiltCell", "Request"]


@dataclass(frozen=True)
class Request:
    """What is asked of one run of a cell.

    Attributes
    ----------
    text
        The cell's text without the magic's line.
    name
        ``--name``: the module to bind, and the library's name.
    functions
        Functions to export; None for all that can be.
    flags
        Strings of compiler flags, each split as a shell would.
    contiguous
        ``"error"`` or ``"copy"`` for strided inputs.
    debug
        Bounds-checked views, no optimisation, debug symbols; every call of an operator compares
        the inputs that it may not write.
    alias_ok
        Outputs may share memory with inputs.
    checks
        Checks to run.
    recheck
        Run them though there are records of what they found before.
    in_process
        Run the checks in this process instead of the worker.
    budget
        Seconds for the checks.
    isolate
        Calls go to a process of their own; the library is not loaded here.
    sanitize
        Sanitizers to build with, as in ``("address", "undefined")``; implies `isolate`.
    jobs
        How many compilers may run at once; None for what the machine has.
    shared
        Cells that the text may include by ``#include "cell:NAME"``.
    cell_name, first_line
        How messages name the text and its first line.
    option_line
        Line of the magic, where a wrong option is reported; None without a magic.
    """

    text: str
    name: str | None = None
    functions: tuple[str, ...] | None = None
    flags: tuple[str, ...] = ()
    contiguous: str = "error"
    debug: bool = False
    alias_ok: bool = False
    checks: tuple[str, ...] = CHECKS
    recheck: bool = False
    in_process: bool = False
    budget: float = DEFAULT_BUDGET
    isolate: bool = False
    sanitize: tuple[str, ...] = ()
    jobs: int | None = None
    shared: tuple[SharedText, ...] = ()
    cell_name: str = "cell"
    first_line: int = 1
    option_line: int | None = None

    @property
    def isolated(self) -> bool:
        """Whether the library stays out of this process."""
        return self.isolate or bool(self.sanitize)

    def excerpt(self, message: str) -> str:
        """Return the line of the cell that a message names, under the message, or nothing."""
        found = re.search(r"\bline (\d+)(?:, column (\d+))?", message)
        lines = self.text.split("\n")
        at = int(found[1]) - self.first_line if found is not None else -1
        if found is None or not 0 <= at < len(lines):
            return ""
        gutter = f"{found[1]:>5} | "
        text = f"\n{gutter}{lines[at]}"
        if found[2]:
            text += "\n" + " " * (len(gutter) - 2) + "| " + " " * (int(found[2]) - 1) + "^"
        return text


@dataclass(frozen=True)
class BuiltCell:
    """A cell that can be called.

    Attributes
    ----------
    members
        Name to operator or function, as bound in a notebook.
    definitions
        Name to the registered operator, helpers included.
    kernels
        The C++ functions that the operators call, as attributes.
    """

    request: Request
    spec: CellSpec
    library: str
    members: Mapping[str, Any]
    definitions: Mapping[str, Any]
    kernels: SimpleNamespace
    report: Report
