"""Checks of one operator over a grid of cases, here or on other processes and machines.

An operator of a cell cannot be pickled as the closure that it is. What travels is its spec and its
built library; whoever gets them makes the operator again. Each case then runs in a check worker of
the process that got it, so that a kernel that crashes is a row of the result and not the end of a
pool.
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
import functools
import hashlib
import itertools
import math
import os
import shlex
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from tensorplay.library.modules.spec import CellSpec, OperatorSpec
from tensorplay.utils import cpp_jit
from tpkernel.checks.chosen_samples import chosen_sample
from tpkernel.checks.devices import runs_on_gpu
from tpkernel.checks.jobs import GradcheckJob, TimingJob, check_job
from tpkernel.checks.samples import make_samples
from tpkernel.checks.verdicts import verdict_text, worst_verdict
from tpkernel.errors import CellError, first_line
from tpkernel.report.facts import (
    Finding,
    GradcheckFacts,
    GradcheckSettings,
    TimingFacts,
    ValidationRow,
)
from tpkernel.report.markup import one_line, table
from tpkernel.report.report import Report
from tpkernel.report.summary import number_text, time_text
from tpkernel.worker.process import Job, shared_worker

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from tpkernel.notebook.kernels import Operator

__all__ = ["Shipment", "Sweep", "SweepRow", "sweep"]

_CHECKS = ("gradcheck", "validation", "timing")
_SETTINGS = ("dtype", "seed", "step", "atol", "rtol", "mode", "fast", "order", "inputs")
_LOCAL = (concurrent.futures.ProcessPoolExecutor, concurrent.futures.ThreadPoolExecutor)

Progress = Callable[[int, int], None]


# -- what travels ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Shipment:
    """A cell's operators as plain data: what declares them, and their library.

    Attributes
    ----------
    spec
        The cell.
    library
        Path of the library where it was built.
    sha256
        Of the library's content.
    content
        The library itself; empty where the receiver sees the same files.
    """

    spec: CellSpec
    library: str
    sha256: str
    content: bytes = dataclasses.field(default=b"", repr=False)

    @classmethod
    def of(cls, spec: CellSpec, library: str, *, whole: bool = True) -> Shipment:
        """Pack a spec and a library; `whole` puts the library's content in."""
        content = Path(library).read_bytes()
        return cls(spec, library, hashlib.sha256(content).hexdigest(), content if whole else b"")

    def place(self) -> str:
        """Return a path of the library on this machine, written there if need be.

        Raises
        ------
        FileNotFoundError
            The file is not here and was not sent.
        """
        if Path(self.library).exists() and _digest(self.library) == self.sha256:
            return self.library
        if not self.content:
            message = f"the library {self.library} is not on this machine and was not sent"
            raise FileNotFoundError(message)
        folder = Path(tempfile.gettempdir()) / f"tpkernel-{os.getuid()}"
        folder.mkdir(mode=0o700, exist_ok=True)
        target = folder / f"{self.sha256}.so"
        if not target.exists():
            with tempfile.NamedTemporaryFile(dir=folder, delete=False) as written:
                written.write(self.content)
            Path(written.name).replace(target)
        return str(target)


@functools.lru_cache(maxsize=64)
def _digest(library: str) -> str:
    return hashlib.sha256(Path(library).read_bytes()).hexdigest()


@dataclass(frozen=True)
class _Task:
    """One case on its way."""

    shipment: Shipment
    job: Job
    budget: float

    def __call__(self) -> tuple[list[Any], float]:
        """Run the case in a check worker of this process; return its records and seconds."""
        start = time.perf_counter()
        library = self.shipment.place()
        records = shared_worker().run(
            self.shipment.spec, library, checks=self.job, budget=self.budget
        )
        return records, time.perf_counter() - start


@dataclass(frozen=True)
class ValidationJob:
    """The validation of one operator on arguments of chosen shapes."""

    operator: str
    shapes: Mapping[str, tuple[int, ...]]
    seed: int = 0

    def run(
        self,
        spec: CellSpec,
        operators: Mapping[str, Any],
        kernels: SimpleNamespace,
        progress: Callable[[str], None],
    ) -> Iterator[Any]:
        """Yield the rows of the table, and findings."""
        from tpkernel.checks.suite import validations

        for operator in spec.operators:
            if operator.name == self.operator:
                sample = make_samples(operator, seed=self.seed)[-1]
                if self.shapes:
                    sample = chosen_sample(operator, sample, self.shapes, seed=self.seed)
                definition = operators[operator.opname]
                yield from validations(spec, operator, definition, kernels, sample, progress)


# -- results --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SweepRow:
    """What came of one case.

    Attributes
    ----------
    case
        The case, as it was given.
    verdict
        Most serious one, as in a report.
    message
        What went wrong, in a sentence; empty where nothing did.
    error
        All that the compiler says, where the cell does not build with the case's flags.
    seconds
        Time of the whole case.
    values
        Numbers by name. Gradcheck: ``worst``, the largest error as a share of what is allowed, and
        ``error``. Validation: ``admitted`` of ``combinations``. Timing: ``time``, ``bandwidth``,
        ``limit`` and ``reference``, in seconds and bytes in a second. Without a build there are
        none.
    """

    case: Mapping[str, Any]
    verdict: str
    message: str
    seconds: float
    values: Mapping[str, float]
    error: str = dataclasses.field(default="", repr=False)

    def to_dict(self) -> dict[str, Any]:
        """Return the row as one flat mapping."""
        return {
            **{name: _plain(value) for name, value in self.case.items()},
            "verdict": self.verdict,
            **self.values,
            "seconds": self.seconds,
            "message": self.message,
        }


@dataclass(frozen=True, repr=False)
class Sweep:
    """The rows of a sweep, in the order of its cases."""

    operator: str
    check: str
    rows: tuple[SweepRow, ...]

    @property
    def ok(self) -> bool:
        """Whether no case failed."""
        return all(row.verdict == "ok" for row in self.rows)

    def to_dicts(self) -> list[dict[str, Any]]:
        """Return the rows as flat mappings."""
        return [row.to_dict() for row in self.rows]

    def to_frame(self) -> Any:
        """Return the rows as a ``pandas.DataFrame``.

        Raises
        ------
        ModuleNotFoundError
            pandas is not installed.
        """
        # Some versions of it come with annotations.
        import pandas as pd  # type: ignore[import-untyped,unused-ignore]

        return pd.DataFrame(self.to_dicts())

    def plot(self, x: str | None = None, y: str | None = None, ax: Axes | None = None) -> Axes:
        """Draw one number of each row against a part of its case, by matplotlib.

        A row without that number, such as one that did not build, is left out.

        Parameters
        ----------
        x
            Name in the cases; None for the first one that varies.
        y
            Name of a value; None for that which the check is about.
        ax
            Where to draw; None makes a figure.

        Raises
        ------
        ModuleNotFoundError
            matplotlib is not installed.
        ValueError
            There is no such name.
        """
        from matplotlib import pyplot as plt

        x = x or self._varying()
        y = y or {"gradcheck": "worst", "validation": "admitted", "timing": "time"}[self.check]
        rows = [row.to_dict() for row in self.rows if not row.error]
        for name in (x, y):
            if not any(name in row for row in rows):
                known = ", ".join(dict.fromkeys(n for row in rows for n in row))
                message = f"[sweep] no '{name}' in the rows; they have {known}"
                raise ValueError(message)
        axes = ax if ax is not None else plt.subplots()[1]
        drawn = [(row[x], row[y], row["verdict"]) for row in rows if y in row and x in row]
        numbers = all(isinstance(a, (int, float)) for a, _, _ in drawn)
        places = [a if numbers else str(a) for a, _, _ in drawn]
        for verdict in dict.fromkeys(v for _, _, v in drawn):
            chosen = [i for i, row in enumerate(drawn) if row[2] == verdict]
            axes.plot(
                [places[i] for i in chosen],
                [drawn[i][1] for i in chosen],
                "o" if verdict == "ok" else "X",
                label=verdict_text(verdict),
            )
        if self.check != "validation" and all(row[1] > 0 for row in drawn):
            axes.set_yscale("log")
        axes.set_xlabel(x)
        axes.set_ylabel(y)
        axes.set_title(f"{self.check} of {self.operator}")
        axes.legend()
        return axes

    def _varying(self) -> str:
        names = dict.fromkeys(name for row in self.rows for name in row.case)
        varying = [n for n in names if len({repr(row.case.get(n)) for row in self.rows}) > 1]
        return next(iter([*varying, *names]), "seconds")

    def to_text(self) -> str:
        """Return a line per row."""
        failed = sum(row.verdict != "ok" for row in self.rows)
        head = f"{self.check} of {self.operator}: {len(self.rows)} cases, {failed} not ok"
        return "\n".join([head, *("  " + " · ".join(self._cells(row)) for row in self.rows)])

    def to_html(self) -> str:
        """Return a table on one line, without script."""
        heads = ("verdict", "case", "values", "time", "message")
        caption = f"{self.check.capitalize()} of {self.operator}"
        return one_line(table(caption, heads, map(self._cells, self.rows)))

    def _cells(self, row: SweepRow) -> tuple[str, ...]:
        case = ", ".join(f"{name} {_plain(value)}" for name, value in row.case.items())
        values = ", ".join(f"{name} {number_text(value)}" for name, value in row.values.items())
        return verdict_text(row.verdict), case, values, time_text(row.seconds), row.message

    def __repr__(self) -> str:
        return self.to_text()

    def _repr_html_(self) -> str:
        return self.to_html()


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_plain(item)}" for name, item in value.items())
    return str(tuple(value)) if isinstance(value, (list, tuple)) else value


# -- the sweep ------------------------------------------------------------------------------------


def sweep(
    op: Operator | Report,
    cases: Iterable[Mapping[str, Any]] | Mapping[str, Iterable[Any]],
    executor: concurrent.futures.Executor | None = None,
    *,
    check: str = "gradcheck",
    reference: str | None = None,
    budget: float = 120.0,
    progress: bool | Progress = True,
) -> Sweep:
    """Run a check over many cases.

    Parameters
    ----------
    op
        An operator that a cell bound, or the report of a cell with one operator.
    cases
        Mappings, or one mapping of lists, of which every combination is taken. A key is a tensor
        argument, with its shape; ``dtype``, ``seed``; for a gradcheck also ``step``, ``atol``,
        ``rtol``, ``mode``, ``fast``, ``order`` and ``inputs``; or ``flags``: what the compiler
        gets besides the cell's own.
    executor
        Any of `concurrent.futures`; None runs the cases one after the other in the session's check
        worker. For Dask, that of ``client.get_executor()``.
    check
        ``"gradcheck"``, ``"validation"`` or ``"timing"``.
    reference
        What times are compared with, as a text; None for that of the front matter.
    budget
        Seconds for a case; then it is a row that says so.
    progress
        Show a bar in a notebook; or a function of cases done and cases in all.

    Returns
    -------
    Sweep
        A row per case, in their order.

    Raises
    ------
    ValueError
        A case asks for what the operator does not have.
    tensorplay.utils.cpp_jit.BuildError
        The cell builds with the flags of no case. Where it builds with some, each of the others is
        a row with the compiler's first error in `message` and all of its text in `error`.

    Notes
    -----
    An interrupt cancels what has not begun.
    """
    origin, built, operator = _source(op)
    if runs_on_gpu(operator):
        message = (
            f"[sweep] {operator.name} runs on cuda, and a sweep is over operators of C++ cells. "
            "Check cases one by one, by report.with_gradcheck(shapes=…)."
        )
        raise ValueError(message)
    listed = _listed(cases)
    if check not in _CHECKS:
        message = f"[sweep] argument 'check': expected {', '.join(_CHECKS)}, got {check!r}"
        raise ValueError(message)
    jobs = [_job(operator, case, check, reference) for case in listed]
    for job in jobs:
        check_job(origin.spec, job)
    tell = _progress(progress, len(listed))
    tell(0, len(listed))
    whole = executor is not None and not isinstance(executor, _LOCAL)
    libraries = _built(origin, built, map(_flags, listed))
    tasks: list[_Task | SweepRow] = []
    for case, job in zip(listed, jobs, strict=True):
        library = libraries[_flags(case)]
        if isinstance(library, str):
            tasks.append(_Task(Shipment.of(origin.spec, library, whole=whole), job, budget))
        else:
            tasks.append(_unbuilt(case, library))
    rows = list(_rows(tasks, listed, executor, tell))
    return Sweep(operator.name, check, tuple(rows))


def _source(op: Any) -> tuple[Any, str, OperatorSpec]:
    """Return where an operator came from, its library, and its spec."""
    if isinstance(op, Report):
        origin, library = op.origin, op.build.library
        own = origin.spec.own_operators() if origin is not None else []
        if len(own) != 1:
            message = (
                f"[sweep] argument 'op': expected the report of one operator, got {len(own)}. "
                "Pass the operator itself."
            )
            raise ValueError(message)
        return origin, library, own[0]
    origin, library = getattr(op, "origin", None), getattr(op, "library", "")
    if origin is None:
        message = (
            "[sweep] argument 'op': expected an operator that a %%tpkernel cell bound, or a "
            f"report, got {type(op).__name__}."
        )
        raise TypeError(message)
    return origin, library, op.spec


def _listed(cases: Any) -> list[Mapping[str, Any]]:
    if isinstance(cases, Mapping):
        names = list(cases)
        grid = itertools.product(*(list(values) for values in cases.values()))
        return [dict(zip(names, values, strict=True)) for values in grid]
    listed = list(cases)
    for case in listed:
        if not isinstance(case, Mapping):
            message = f"[sweep] argument 'cases': expected mappings, got {type(case).__name__}."
            raise TypeError(message)
    return listed


def _flags(case: Mapping[str, Any]) -> str:
    flags = case.get("flags", "")
    return flags if isinstance(flags, str) else shlex.join(flags)


def _job(operator: OperatorSpec, case: Mapping[str, Any], check: str, reference: str | None) -> Job:
    tensors = [a.name for a in operator.inputs if a.kind == "tensor"]
    settings = _SETTINGS if check == "gradcheck" else ("dtype", "seed")
    known = (*tensors, *settings, "flags")
    for name in case:
        if name not in known:
            message = f"[sweep] no '{name}' in a case of a {check}; known: {', '.join(known)}"
            raise ValueError(message)
    chosen: dict[str, Any] = {n: case[n] for n in settings if n in case}
    wanted = {n: case[n] for n in tensors if n in case}
    # What is no shape and no seed is none for the other checks either.
    kinds = chosen if check == "gradcheck" else {n: v for n, v in chosen.items() if n == "seed"}
    asked = GradcheckSettings(operator.name, wanted, **kinds, caller="sweep")
    if check == "gradcheck":
        return GradcheckJob(asked)
    shapes = asked.shapes
    if check == "timing":
        sizes = (shapes,) if shapes else TimingJob().sizes[-2:-1]
        return TimingJob(operator.name, sizes, reference=reference, **chosen)
    if "dtype" in chosen:
        message = "[sweep] a validation tries every dtype; leave 'dtype' out of its cases"
        raise ValueError(message)
    if shapes:
        chosen_sample(operator, make_samples(operator)[-1], shapes)  # refuses what cannot be
    return ValidationJob(operator.name, shapes, **chosen)


def _built(
    origin: Any, built: str, flags: Iterable[str]
) -> dict[str, str | cpp_jit.BuildError | CellError]:
    """Return the library for each of the flags, or why there is none.

    Raises
    ------
    BuildError, CellError
        There is none for any of them.
    """
    made: dict[str, str | cpp_jit.BuildError | CellError] = {}
    for more in dict.fromkeys(flags):
        try:
            made[more] = _build(origin, more) if more else built
        except (cpp_jit.BuildError, CellError) as problem:
            made[more] = problem
    problems = [p for p in made.values() if not isinstance(p, str)]
    if problems and len(problems) == len(made):
        raise problems[0]
    return made


def _unbuilt(case: Mapping[str, Any], problem: cpp_jit.BuildError | CellError) -> SweepRow:
    text = str(problem)
    return SweepRow(case, "error", f"does not build: {first_line(text)}", 0.0, {}, text)


def _build(origin: Any, flags: str) -> str:
    """Build the cell with more flags; return the library."""
    from tpkernel.building.compiling import compile_cell
    from tpkernel.cells.cell import parse_cell

    request = origin.request
    cell = parse_cell(request.text, name=request.cell_name, first_line=request.first_line)
    asked = dataclasses.replace(request, flags=(*request.flags, flags))
    return str(compile_cell(asked, cell, origin.spec).library)


def _rows(
    tasks: Sequence[_Task | SweepRow],
    cases: Sequence[Mapping[str, Any]],
    executor: concurrent.futures.Executor | None,
    tell: Progress,
) -> list[SweepRow]:
    """Run the tasks; what is a row already counts as done."""
    if executor is None:
        rows = []
        for case, task in zip(cases, tasks, strict=True):
            rows.append(task if isinstance(task, SweepRow) else _row(case, *task()))
            tell(len(rows), len(tasks))
        return rows
    waited = [task if isinstance(task, SweepRow) else executor.submit(task) for task in tasks]
    futures = [found for found in waited if not isinstance(found, SweepRow)]
    before = len(waited) - len(futures)
    try:
        if before:
            tell(before, len(tasks))
        for done, _ in enumerate(concurrent.futures.as_completed(futures), before + 1):
            tell(done, len(tasks))
    except BaseException:
        for future in futures:
            future.cancel()
        raise
    made: list[SweepRow] = []
    for case, found in zip(cases, waited, strict=True):
        if isinstance(found, SweepRow):
            made.append(found)
        elif (problem := found.exception()) is None:
            made.append(_row(case, *found.result()))
        else:
            made.append(SweepRow(case, "error", f"{type(problem).__name__}: {problem}", 0.0, {}))
    return made


def _row(case: Mapping[str, Any], records: Sequence[Any], seconds: float) -> SweepRow:
    errors = [r.message for r in records if isinstance(r, Finding) and r.level == "error"]
    values: dict[str, float] = {}
    verdicts: list[str] = ["error"] if errors else []
    message = errors[0] if errors else ""
    checks = [r for r in records if isinstance(r, GradcheckFacts)]
    if checks:
        verdicts += [c.verdict for c in checks]
        message = message or next((c.message for c in checks if c.verdict != "ok"), "")
        worst = [p.worst for c in checks for p in c.pairs if p.worst is not None]
        shares = [_ratio(w.difference, w.tolerance) for w in worst]
        values["worst"] = max(shares, default=math.nan)
        values["error"] = max((w.difference for w in worst), default=math.nan)
    rows = [r for r in records if isinstance(r, ValidationRow)]
    if rows:
        verdicts += [r.verdict for r in rows]
        values["admitted"] = sum(r.admitted for r in rows)
        values["combinations"] = len(rows)
    for timed in (r for r in records if isinstance(r, TimingFacts)):
        verdicts.append("ok")
        message = message or "; ".join(timed.notes)
        for row in timed.rows[-1:]:
            values.update(time=row.seconds, bandwidth=row.bandwidth, limit=row.limit)
            if row.reference is not None:
                values["reference"] = row.reference
    if not verdicts:  # a note alone, such as an operator without derivatives
        message = next((r.message for r in records if isinstance(r, Finding)), "nothing was run")
    return SweepRow(case, worst_verdict(verdicts) or "inconclusive", message, seconds, values)


def _ratio(gap: float, allowed: float) -> float:
    return gap / allowed if allowed else math.inf if gap else 0.0


def _progress(wanted: bool | Progress, total: int) -> Progress:
    if callable(wanted):
        return wanted
    if wanted and _in_notebook():
        return _bar(total)
    return lambda done, total: None


def _in_notebook() -> bool:
    from IPython.core.getipython import get_ipython

    return getattr(get_ipython(), "kernel", None) is not None


def _bar(total: int) -> Progress:
    import ipywidgets
    from IPython.display import display

    bar = ipywidgets.IntProgress(max=total, description="0 of " + str(total))
    display(bar)  # type: ignore[no-untyped-call]  # IPython annotates it in part

    def tell(done: int, total: int) -> None:
        bar.value = done
        bar.description = f"{done} of {total}"
        if done == total:
            bar.bar_style = "success"

    return tell
