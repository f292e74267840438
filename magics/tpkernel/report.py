"""The record of one cell: what was built, what it is, and what the checks found.

Frozen dataclasses of plain data. Text, static HTML and the widget show the same facts; they are
rendered by :mod:`tpkernel.render` and :mod:`tpkernel.widget`.
"""

from __future__ import annotations

import dataclasses
import math
import os
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from tpkernel.summary import (
    admitted_first,
    headlines,
    opening,
    problems,
    tolerance_text,
    validation_lines,
    worst_text,
)
from tpkernel.verdicts import VERDICTS, is_bad, verdict_text, worst_verdict

__all__ = [
    "VERDICTS",
    "BuildFacts",
    "DiagnosticFacts",
    "Finding",
    "FunctionFacts",
    "GradcheckFacts",
    "OperatorFacts",
    "PairFacts",
    "Report",
    "ValidationRow",
    "verdict_text",
    "worst_verdict",
]


@dataclass(frozen=True)
class DiagnosticFacts:
    """One message of the compiler, at the cell's own line."""

    line: int
    column: int | None
    level: str
    message: str
    source_line: str | None = None
    fix: str | None = None


@dataclass(frozen=True)
class BuildFacts:
    """How the library came to be.

    Attributes
    ----------
    cached
        Found, not built by this run.
    seconds
        Time of the build that made it.
    ready_seconds
        Time from the cell's start until the kernels could be called.
    once_seconds
        Part of `ready_seconds`, and not of `seconds`, that made what all cells share, once per
        compiler and kind of header.
    """

    key: str
    folder: str
    library: str
    cached: bool
    seconds: float
    ready_seconds: float
    rung: str
    commands: tuple[tuple[str, ...], ...]
    diagnostics: tuple[DiagnosticFacts, ...]
    log: str
    once_seconds: float = 0.0

    @property
    def how(self) -> str:
        """How the library came to be, in a few words."""
        if self.cached:
            return "from cache"
        text = f"built in {self.seconds:.2f} s"
        if self.once_seconds:
            text += f" after {self.once_seconds:.2f} s, once, for what all cells share"
        return text


@dataclass(frozen=True)
class OperatorFacts:
    """An operator: declaration, guards, and the source made from them."""

    name: str
    schema: str
    kernel: str
    origin: str
    doc: str
    guards: tuple[tuple[str, str], ...]
    wrapper: str
    fake: str
    gradient: str
    derivatives: tuple[tuple[str, str], ...]
    helper: bool


@dataclass(frozen=True)
class FunctionFacts:
    """A plain kernel: signature and guards."""

    name: str
    signature: str
    guards: tuple[tuple[str, str], ...]
    line: int


@dataclass(frozen=True)
class ValidationRow:
    """What one operator says to one argument of one dtype, device and layout.

    Attributes
    ----------
    admitted
        The call returned.
    message
        The error of a call that did not.
    declared
        What the declaration says: True, False, or None where it says nothing.
    """

    operator: str
    argument: str
    dtype: str
    device: str
    layout: str
    admitted: bool
    message: str
    declared: bool | None = None

    @property
    def verdict(self) -> str:
        """``"ok"`` where the operator does what its declaration says, else ``"wrong"``."""
        return "ok" if self.declared in (None, self.admitted) else "wrong"

    @property
    def answer(self) -> str:
        """The row's outcome in words."""
        if self.verdict == "ok":
            return "✔ admitted" if self.admitted else f"✘ refused. {self.message}"
        said = "admits" if self.declared else "refuses"
        got = f". {self.message}" if self.message else ", and the call returned"
        return f"{verdict_text('wrong')}: the declaration {said} it{got}"


@dataclass(frozen=True)
class PairFacts:
    """One output against one input in a gradcheck.

    Attributes
    ----------
    step, atol, rtol
        What the differences were taken with; None where it did not come to that.
    worst
        The worst element: indices, and numbers, which are text where they are not finite.
    """

    output: int
    input: str
    verdict: str
    code: str | None
    message: str
    cause: str | None
    step: float | None
    atol: float | None
    rtol: float | None
    worst: Mapping[str, Any] | None


@dataclass(frozen=True)
class GradcheckFacts:
    """A gradcheck of one operator on one sample."""

    operator: str
    sample: str
    verdict: str
    message: str
    pairs: tuple[PairFacts, ...]
    seconds: float
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Finding:
    """Something a check met that has no place in its table: a crash, a hang, a failed sample.

    Attributes
    ----------
    signal
        Name of the signal that ended the worker.
    code
        What kind of mistake it is, for programs: ``"crash"``, ``"hang"``, ``"writes_outside"``,
        ``"writes_input"``, ``"not_written"``, ``"reads_output"``, ``"reads_outside"``,
        ``"misnamed_backward"`` and so on; empty where the message is all there is.
    """

    check: str
    operator: str
    level: Literal["error", "warning", "note"]
    message: str
    signal: str | None = None
    code: str = ""


@dataclass(frozen=True, repr=False)
class Report:
    """Everything about one run of a cell.

    Attributes
    ----------
    cell
        The cell's name, such as ``In[5]``.
    bound
        Names that the run bound.
    timing
        Seconds of each step from the text to the loaded kernels.
    notes
        Sentences for the person.
    module
        The functions and operators themselves; no part of the plain data.
    origin
        What :meth:`export` needs of the build; no part of the plain data.
    """

    cell: str
    bound: tuple[str, ...]
    build: BuildFacts
    operators: tuple[OperatorFacts, ...] = ()
    functions: tuple[FunctionFacts, ...] = ()
    gradcheck: tuple[GradcheckFacts, ...] = ()
    validation: tuple[ValidationRow, ...] = ()
    findings: tuple[Finding, ...] = ()
    timing: Mapping[str, float] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    module: Any = field(default=None, compare=False, repr=False, metadata={"plain": False})
    origin: Any = field(default=None, compare=False, repr=False, metadata={"plain": False})

    @property
    def ok(self) -> bool:
        """No gradcheck failed, every operator does as declared, and no finding is an error."""
        verdicts = (self.gradcheck_verdict, self.validation_verdict)
        return not any(map(is_bad, verdicts)) and not any(f.level == "error" for f in self.findings)

    @property
    def title(self) -> str:
        """One line: what, and how it stands."""
        names = [o.name for o in self.operators if not o.helper]
        names += [f.name for f in self.functions]
        parts = [", ".join(names), *headlines(self), self.build.how]
        if self.gradcheck and not is_bad(self.gradcheck_verdict):
            parts.append(f"gradcheck {self.gradcheck_verdict.replace('_', ' ')}")
        return " · ".join(parts)

    @property
    def gradcheck_verdict(self) -> str:
        """The most serious verdict over all samples; empty without a gradcheck."""
        return worst_verdict(g.verdict for g in self.gradcheck)

    @property
    def validation_verdict(self) -> str:
        """``"ok"`` where admitted is what is declared, else ``"wrong"``; empty without rows."""
        return worst_verdict(r.verdict for r in self.validation)

    def export(
        self, folder: str | os.PathLike[str], *, name: str | None = None, overwrite: bool = False
    ) -> Path:
        """Write the cell's operators as a package that pip builds and installs.

        It holds the C++ source, the declarations as ``ops.yaml``, ``pyproject.toml``, a module
        that loads the operators, and tests: the results on the samples as they are now, and the
        gradients against differences. The samples are run in this process.

        Parameters
        ----------
        folder
            Where to write it.
        name
            The package's import name; None for the folder's name.
        overwrite
            Replace the files of an earlier export.

        Returns
        -------
        Path
            The folder.

        Raises
        ------
        FileExistsError
            A file is there already.
        RuntimeError
            The checks found an error, or a sample fails.
        ValueError
            The name is no Python name, or the cell has no operator.
        """
        from tpkernel.export import export_package

        return export_package(self, folder, name=name, overwrite=overwrite)

    def to_dict(self) -> dict[str, Any]:
        """Return the report as nested dicts, lists, strings and finite numbers.

        What JSON cannot hold (nan, infinities) is text.
        """
        plain: dict[str, Any] = _plain(self)
        plain["title"] = self.title
        plain["ok"] = self.ok
        for part in ("gradcheck", "validation"):
            verdict = getattr(self, f"{part}_verdict")
            plain[f"{part}_verdict"] = verdict
            plain[f"{part}_words"] = verdict_text(verdict) if verdict else ""
        for check, facts in zip(self.gradcheck, plain["gradcheck"], strict=True):
            facts["words"] = verdict_text(check.verdict)
            for pair, shown in zip(check.pairs, facts["pairs"], strict=True):
                shown["words"] = verdict_text(pair.verdict)
                shown["worst_text"] = worst_text(pair)
                shown["tolerance_text"] = tolerance_text(pair)
        plain["opening"] = opening(self)
        plain["problems"] = _plain(problems(self))
        plain["validation_lines"] = validation_lines(self.validation)
        plain["validation"] = [
            {**_plain(row), "verdict": row.verdict, "answer": row.answer}
            for row in admitted_first(self.validation)
        ]
        plain["build"]["command_lines"] = [shlex.join(c) for c in self.build.commands]
        return plain

    def to_text(self) -> str:
        """Return the report as readable text."""
        from tpkernel.render import report_text

        return report_text(self)

    def to_html(self) -> str:
        """Return the report as one line of script-free HTML."""
        from tpkernel.render import report_html

        return report_html(self)

    def __str__(self) -> str:
        return self.to_text()

    def __repr__(self) -> str:
        return f"<Report {self.cell}: {self.title}>"

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        return {"text/plain": self.to_text(), "text/html": self.to_html()}


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {
            f.name: _plain(getattr(value, f.name))
            for f in dataclasses.fields(value)
            if f.metadata.get("plain", True)
        }
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    if isinstance(value, float) and not math.isfinite(value):
        return repr(value)
    return value
