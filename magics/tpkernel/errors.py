"""The exceptions of the workbench that a caller may want to catch."""

from __future__ import annotations

import difflib
import os
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import tensorplay

__all__ = [
    "CellError",
    "KernelCrash",
    "StaleKernelError",
    "did_you_mean",
    "first_line",
    "is_own_file",
]

# Frames of files below are ours: a person is shown their own.
_OWN = tuple(f"{Path(str(p)).parent}{os.sep}" for p in (__file__, tensorplay.__file__))
# Generated code of ours, what the engine's compiled part calls its code, and C++ of which the
# engine knows no line.
_GENERATED = re.compile(
    r"<(tensorplay|tpkernel)[ .]|(.*[\\/])?tvm_ffi[\\/]cython[\\/]\w+\.(pxi|pyx)$|<unknown>$"
)
#: Characters of a cell's line that an error shows.
_LONGEST = 240


def is_own_file(file: str) -> bool:
    """Whether a frame's file is of these packages or of the engine, not of a person.

    Parameters
    ----------
    file
        As a frame or a traceback names it.
    """
    engine = getattr(sys.modules.get("tvm_ffi"), "__file__", None)
    # Plain text: this runs while functions are captured, too, which paths have too much state for.
    own = _OWN if engine is None else (*_OWN, engine.removesuffix("__init__.py"))
    return file.startswith(own) or _GENERATED.match(file) is not None


class CellError(ValueError):
    """A cell that cannot be turned into kernels, found before the compiler runs.

    Parameters
    ----------
    message
        One or two sentences: what was expected, what was found, what to write.
    line, column
        Where, counted from 1 as the person sees the cell (the magic's line is line 1).
    subject
        Operator or function the message is about; put in brackets in front.
    """

    def __init__(
        self,
        message: str,
        *,
        line: int | None = None,
        column: int | None = None,
        subject: str | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.line = line
        self.column = column
        self.subject = subject
        self.cell_name = "cell"
        self.source_line: str | None = None

    def locate(self, cell_name: str, source_line: str | None) -> CellError:
        """Add the cell's name and the text of the line; the error is the same object."""
        self.cell_name = cell_name
        self.source_line = source_line
        return self

    def __str__(self) -> str:
        text = f"[{self.subject}] {self.message}" if self.subject else self.message
        if self.line is None:
            return text
        place = f"{self.cell_name}:{self.line}"
        if self.column is not None:
            place += f":{self.column}"
        text = f"{place}: error: {text}"
        if self.source_line is not None:
            gutter = f"{self.line:>5} | "
            shown, at = _around(self.source_line, self.column or 1)
            text += f"\n{gutter}{shown}"
            if self.column is not None:
                text += "\n" + " " * (len(gutter) - 2) + "| " + " " * (at - 1) + "^"
        return text


def _around(line: str, column: int) -> tuple[str, int]:
    """Return what is shown of a line of any length, and the column there."""
    if len(line) <= _LONGEST:
        return line, column
    start = max(0, min(column - 1 - _LONGEST // 2, len(line) - _LONGEST))
    end = start + _LONGEST
    before, after = "…" if start else "", "…" if end < len(line) else ""
    return before + line[start:end] + after, column - start + len(before)


class StaleKernelError(RuntimeError):
    """A name whose cell failed to build was used.

    The message says which cell and why; the name works again once the cell builds.
    """

    def _render_traceback_(self) -> list[str]:  # IPython's own hook
        from tpkernel.notebook.tracebacks import short_traceback

        return short_traceback(self)


class KernelCrash(RuntimeError):  # noqa: N818  (named in the design, like BuildError's siblings)
    """A kernel ended the worker process: a signal, an exit, or no answer in time.

    Attributes
    ----------
    signal
        The signal's name such as ``"SIGSEGV"``, or None when there was none.
    during
        What was running, in words.
    ended
        The process ended by itself; False where it was ended because it did not answer.
    stack
        The cell's C++ functions that were running, the innermost first, where they are known.
    report
        What a sanitizer says of it, or None.
    """

    def __init__(
        self,
        message: str,
        *,
        signal: str | None,
        during: str,
        ended: bool = True,
        stack: tuple[str, ...] = (),
        report: Any = None,
    ) -> None:
        super().__init__(message)
        self.signal = signal
        self.during = during
        self.ended = ended
        self.stack = stack
        self.report = report


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return ``"; did you mean 'x'?"`` for the nearest of `known`, or a full stop."""
    near = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f"; did you mean '{near[0]}'?" if near else "."


def first_line(text: str) -> str:
    """Return what a text of several lines says first, as one sentence."""
    line, _, rest = text.strip().partition("\n")
    line = re.sub(r"(?<=\.) [^.]*:$", "", line)  # a sentence that goes on in the lines below
    if line.endswith(":") and rest:
        line = f"{line} {rest.splitlines()[0].strip()}"
    return line.rstrip(".") + "."
