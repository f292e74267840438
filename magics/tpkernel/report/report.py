"""The record of one cell: what was built, what it is, and what the checks found.

Frozen dataclasses of plain data. Text, static HTML and the widget show the same facts; they are
rendered by :mod:`tpkernel.report.render` and :mod:`tpkernel.report.widget`.
"""

from __future__ import annotations

import dataclasses
import math
import os
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from tpkernel.checks.verdicts import VERDICTS, is_bad, verdict_text, worst_verdict
from tpkernel.report.facts import (
    CUDA_HEADS,
    BuildFacts,
    CompileFacts,
    DiagnosticFacts,
    Finding,
    FunctionFacts,
    GradcheckFacts,
    GradcheckSettings,
    ListingFacts,
    OpcheckFacts,
    OperatorFacts,
    PairFacts,
    TimingFacts,
    ValidationRow,
    WorstFacts,
)
from tpkernel.report.summary import (
    SECTIONS,
    TIMING_HEADS,
    admitted_first,
    compile_text,
    curve_rows,
    curve_text,
    headlines,
    jacobian_text,
    opcheck_text,
    opening,
    problems,
    timing_words,
    tolerance_text,
    validation_lines,
    validation_title,
    worst_text,
)

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
    "WorstFacts",
    "verdict_text",
    "worst_verdict",
]


@dataclass(frozen=True, repr=False)
class Report:
    """Everything about one run of a cell.

    Attributes
    ----------
    cell
        The cell's name, such as ``In[5]``.
    bound
        Names that the run bound.
    registered
        Kind (``"function"`` or ``"class"``) and name of what the cell registered for the process.
    gradcheck
        Of the gradient, then those of second order.
    opcheck
        What operators do other than they declare.
    timing
        Times across sizes, where they were asked for.
    compiled
        Operators inside of `tensorplay.compile`, where that was asked for.
    listing
        What the compiler made of the kernels, where it was asked for.
    steps
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
    registered: tuple[tuple[str, str], ...] = ()
    gradcheck: tuple[GradcheckFacts, ...] = ()
    validation: tuple[ValidationRow, ...] = ()
    findings: tuple[Finding, ...] = ()
    opcheck: tuple[OpcheckFacts, ...] = ()
    timing: tuple[TimingFacts, ...] = ()
    compiled: tuple[CompileFacts, ...] = ()
    listing: ListingFacts | None = None
    steps: Mapping[str, float] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    module: Any = field(default=None, compare=False, repr=False, metadata={"plain": False})
    origin: Any = field(default=None, compare=False, repr=False, metadata={"plain": False})

    @property
    def ok(self) -> bool:
        """No gradcheck failed, every operator does as declared, and no finding is an error."""
        verdicts = (
            self.gradcheck_verdict,
            self.validation_verdict,
            self.opcheck_verdict,
            self.compiled_verdict,
        )
        return not any(map(is_bad, verdicts)) and not any(f.level == "error" for f in self.findings)

    @property
    def title(self) -> str:
        """One line: what, and how it stands."""
        names = [o.name for o in self.operators if not o.helper]
        names += [f.name for f in self.functions]
        if not names and self.registered:
            names = [f"registers {', '.join(name for _, name in self.registered)}"]
        parts = [", ".join(names) or "nothing bound", *headlines(self), self.build.how]
        failed = any(f.level == "error" and f.check == "gradcheck" for f in self.findings)
        if self.gradcheck and not failed and not is_bad(self.gradcheck_verdict):
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

    @property
    def opcheck_verdict(self) -> str:
        """``"ok"`` where all operators do as they declare, else ``"wrong"``; empty if not run."""
        return worst_verdict(o.verdict for o in self.opcheck)

    @property
    def compiled_verdict(self) -> str:
        """``"ok"`` where compiled calls agree with eager ones, else ``"wrong"``; or empty."""
        return worst_verdict(c.verdict for c in self.compiled)

    # -- more of it ---------------------------------------------------------------------------

    def with_gradcheck(
        self,
        operator: str = "",
        *,
        shapes: Mapping[str, Sequence[int]] | None = None,
        dtype: str | None = None,
        seed: int = 0,
        step: float | None = None,
        atol: float | None = None,
        rtol: float | None = None,
        mode: Literal["reverse", "forward", "both"] = "reverse",
        fast: bool = False,
        inputs: Sequence[str] = (),
        order: Literal[1, 2] = 1,
        curve: bool = False,
        budget: float = 60.0,
    ) -> Report:
        """Run the gradcheck again with other settings, in the check worker.

        Parameters
        ----------
        operator
            Its name; empty for all of the cell.
        shapes
            Shape per tensor argument; the others follow from the declared relations.
        dtype
            Of the checked inputs; None for the widest that is admitted.
        seed
            Of the values.
        step, atol, rtol
            Of the differences; None for those of the dtype.
        mode
            ``"reverse"``, ``"forward"`` or ``"both"``: which derivatives are compared.
        fast
            Compare one random combination of elements first.
        inputs
            The inputs to check; empty for all.
        order
            2 for derivatives of the derivatives.
        curve
            Take the differences at many steps, too.
        budget
            Seconds; then the worker is ended, and that is a finding.

        Returns
        -------
        Report
            With the results in place of those of the same operators and order.

        Raises
        ------
        ValueError
            The operator does not have what was chosen.
        RuntimeError
            The report was not made by a build of this session.
        ValueError
            What was chosen is none of those.
        """
        sizes: Any = {} if shapes is None else shapes
        names: Any = inputs  # both are made tuples there
        settings = GradcheckSettings(
            operator, sizes, dtype, seed, step, atol, rtol, mode, fast, names, order, curve
        )
        from tpkernel.checks.jobs import GradcheckJob

        return self._with(GradcheckJob(settings), budget)

    def with_opcheck(self, *, seed: int = 0, budget: float = 60.0) -> Report:
        """Run `tensorplay.library.opcheck` on the cell's operators, in the check worker.

        Returns
        -------
        Report
            With what was found.
        """
        from tpkernel.checks.jobs import OpcheckJob

        return self._with(OpcheckJob(seed), budget)

    def with_compile(self, operator: str = "", *, seed: int = 0, budget: float = 60.0) -> Report:
        """Compile the cell's operators among other operations and compare, in the check worker.

        Returns
        -------
        Report
            With the captured graphs and the differences to eager calls.
        """
        from tpkernel.checks.jobs import CompileJob

        return self._with(CompileJob(operator, seed), budget)

    def with_timing(
        self,
        operator: str = "",
        *,
        sizes: Sequence[int | Mapping[str, Sequence[int]]] | None = None,
        dtype: str | None = None,
        reference: str | Callable[..., Any] | None = None,
        seed: int = 0,
        budget: float = 60.0,
    ) -> Report:
        """Time the cell's operators across sizes, in the check worker.

        Parameters
        ----------
        operator
            Its name; empty for all of the cell.
        sizes
            Elements of the largest tensor, or a shape per argument; None for 1,000 to 4,000,000.
        dtype
            None for the widest that is admitted.
        reference
            What to compare with: an expression in tensor operations and the operator's arguments
            (``"log(1 + exp(x))"``), ``"module:function"`` (``"numpy:tanh"``), or a function of a
            module. Functions of TensorPlay and torch get tensors of theirs, all others NumPy
            arrays. None for that of the front matter, if there is one.
        seed
            Of the values.
        budget
            Seconds; then the worker is ended, and that is a finding.

        Returns
        -------
        Report
            With the times.

        Raises
        ------
        ValueError
            The operator does not have what was chosen, or the reference cannot be sent.
        RuntimeError
            The report was not made by a build of this session.
        """
        from tpkernel.checks.jobs import TimingJob
        from tpkernel.checks.timing import DEFAULT_ELEMENTS

        wanted = tuple(
            size if isinstance(size, int) else {n: tuple(s) for n, s in size.items()}
            for size in (DEFAULT_ELEMENTS if sizes is None else sizes)
        )
        return self._with(TimingJob(operator, wanted, dtype, reference, seed), budget)

    def with_listing(self) -> Report:
        """Add the optimiser's remarks and the kernels' machine code, at the cell's lines.

        Returns
        -------
        Report
            With the listing.

        Raises
        ------
        RuntimeError
            The report was not made by a build of this session.
        """
        from tpkernel.building.listing import listing_of

        return dataclasses.replace(self, listing=listing_of(self))

    def _with(self, job: Any, budget: float) -> Report:
        from tpkernel.checks.jobs import run_job, with_job

        return with_job(self, job, run_job(self, job, budget=budget))

    # -- written ------------------------------------------------------------------------------

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
        from tpkernel.packaging.export import export_package

        return export_package(self, folder, name=name, overwrite=overwrite)

    def to_dict(self) -> dict[str, Any]:
        """Return the report as nested dicts, lists, strings and finite numbers.

        What JSON cannot hold (nan, infinities) is text.
        """
        plain: dict[str, Any] = _plain(self)
        plain["title"] = self.title
        plain["ok"] = self.ok
        for part in ("gradcheck", "validation", "opcheck", "compiled"):
            verdict = getattr(self, f"{part}_verdict")
            plain[f"{part}_verdict"] = verdict
            plain[f"{part}_words"] = verdict_text(verdict) if verdict else ""
        for check, facts in zip(self.gradcheck, plain["gradcheck"], strict=True):
            facts["words"] = verdict_text(check.verdict)
            for pair, shown in zip(check.pairs, facts["pairs"], strict=True):
                shown["words"] = verdict_text(pair.verdict)
                shown["bad"] = is_bad(pair.verdict)
                shown["worst_text"] = worst_text(pair)
                shown["jacobian_text"] = jacobian_text(pair)
                if pair.curve is not None:
                    shown["curve_text"] = curve_text(pair.curve)
                    shown["curve"]["words"] = [list(row) for row in curve_rows(pair.curve)]
                shown["tolerance_text"] = tolerance_text(pair)
        for table, facts in zip(self.timing, plain["timing"], strict=True):
            for row, shown in zip(table.rows, facts["rows"], strict=True):
                shown["words"] = list(timing_words(row))
        for found, facts in zip(self.opcheck, plain["opcheck"], strict=True):
            facts["words"] = opcheck_text(found)
        for made, facts in zip(self.compiled, plain["compiled"], strict=True):
            facts["words"] = compile_text(made)
        plain["timing_heads"] = list(TIMING_HEADS)
        plain["sections"] = list(SECTIONS)
        plain["opening"] = opening(self)
        plain["problems"] = _plain(problems(self))
        plain["validation_title"] = validation_title(self) if self.validation else ""
        plain["validation_lines"] = validation_lines(self.validation)
        plain["validation"] = [
            {**_plain(row), "verdict": row.verdict, "answer": row.answer}
            for row in admitted_first(self.validation)
        ]
        if self.build.cuda is not None:
            cuda = plain["build"]["cuda"]
            cuda["text"], cuda["heads"] = self.build.cuda.text, list(CUDA_HEADS)
            cuda["rows"] = [list(kernel.row) for kernel in self.build.cuda.kernels]
        plain["build"]["command_lines"] = [shlex.join(c) for c in self.build.commands]
        return plain

    def to_text(self, *, full: bool = False) -> str:
        """Return the report as readable text.

        Parameters
        ----------
        full
            Everything. Otherwise the summary: 10 to 25 lines where all is well, failures in full.
        """
        if full:
            from tpkernel.report.render import report_text

            return report_text(self)
        from tpkernel.report.brief import brief_text

        return brief_text(self)

    def to_html(self) -> str:
        """Return the report as one line of script-free HTML."""
        from tpkernel.report.render import report_html

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
    if isinstance(value, complex):
        return str(value)
    if isinstance(value, float) and not math.isfinite(value):
        return repr(value)
    return value
