"""What a report can be asked to do again or in addition: gradcheck by choice, opcheck, timing.

A job is plain data that the check worker runs (:class:`tpkernel.worker.process.Job`). A report
that gets a job's records is a new report; nothing is built again, and the cell does not run again.
"""

from __future__ import annotations

import dataclasses
import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from tensorplay.library.modules.spec import CellSpec, OperatorSpec
from tpkernel.checks.chosen_samples import chosen_sample
from tpkernel.checks.compiling import CompileJob
from tpkernel.checks.devices import not_run, runs_on_gpu, unreachable
from tpkernel.checks.gradchecks import dtypes_of, gradchecks, said_of
from tpkernel.checks.memory import MemoryWatch, check_memory
from tpkernel.checks.opchecks import opchecks
from tpkernel.checks.running import checking_worker
from tpkernel.checks.samples import make_samples
from tpkernel.checks.timing import TimingJob
from tpkernel.checks.varying import varied_samples
from tpkernel.errors import did_you_mean
from tpkernel.report.facts import (
    CompileFacts,
    Finding,
    GradcheckFacts,
    GradcheckSettings,
    OpcheckFacts,
    TimingFacts,
)
from tpkernel.report.report import Report
from tpkernel.worker.process import DEFAULT_BUDGET, Job, Worker

__all__ = [
    "CompileJob",
    "GradcheckJob",
    "OpcheckJob",
    "TimingJob",
    "check_job",
    "run_job",
    "with_job",
]

_MODES = ("reverse", "forward", "both")


@dataclass(frozen=True)
class GradcheckJob:
    """A gradcheck with chosen settings."""

    settings: GradcheckSettings = field(default_factory=GradcheckSettings)

    def run(
        self,
        spec: CellSpec,
        operators: Mapping[str, Any],
        kernels: SimpleNamespace,
        progress: Callable[[str], None],
    ) -> Iterator[GradcheckFacts | Finding]:
        """Yield what the memory check and the gradcheck find."""
        settings = self.settings
        for operator in spec.own_operators(settings.operator):
            definition = operators[operator.opname]
            watch = MemoryWatch(spec, kernels, enabled=not runs_on_gpu(operator))
            only_defaults: list[Finding] = []
            try:
                if settings.shapes:
                    base = make_samples(operator, seed=settings.seed)[-1]
                    chosen = chosen_sample(operator, base, settings.shapes, seed=settings.seed)
                    samples = [chosen]
                else:
                    samples, only_defaults = varied_samples(
                        operator, definition, watch, progress, seed=settings.seed
                    )
            except Exception as problem:  # noqa: BLE001  (a person's expression, any error)
                yield Finding("gradcheck", operator.name, "error", f"samples: {said_of(problem)}")
                continue
            dtypes = dtypes_of(operator, settings)
            wrong = [
                f
                for f in check_memory(operator, definition, watch, samples, dtypes, progress)
                if f.level == "error"
            ]
            if wrong:
                message = f"not run before this is mended: {wrong[0].message}"
                code = wrong[0].code
                yield Finding("gradcheck", operator.name, "error", message, code=code)
            else:
                yield from only_defaults
                yield from gradchecks(operator, definition, samples, settings, progress)


@dataclass(frozen=True)
class OpcheckJob:
    """`opcheck` of all operators, on the first sample of each."""

    seed: int = 0

    def run(
        self,
        spec: CellSpec,
        operators: Mapping[str, Any],
        kernels: SimpleNamespace,
        progress: Callable[[str], None],
    ) -> Iterator[OpcheckFacts | Finding]:
        """Yield a record per operator."""
        for operator in spec.own_operators():
            try:
                sample = make_samples(operator, seed=self.seed)[0]
            except Exception as problem:  # noqa: BLE001  (a person's expression, any error)
                yield Finding("opcheck", operator.name, "error", f"samples: {said_of(problem)}")
                continue
            yield from opchecks(operator, operators[operator.opname], sample, progress)


#: What findings of a job are called.
_KINDS: Mapping[type, str] = {
    GradcheckJob: "gradcheck",
    TimingJob: "timing",
    OpcheckJob: "opcheck",
    CompileJob: "compile",
}


# -- in a report ----------------------------------------------------------------------------------


def check_job(spec: CellSpec, job: Job) -> None:
    """Refuse settings that no run can follow, before a worker is asked.

    Raises
    ------
    ValueError
        Names what was chosen, what there is, and what to write.
    """
    name = getattr(job, "operator", "") or getattr(getattr(job, "settings", None), "operator", "")
    operators = spec.own_operators(name)
    known = [o.name for o in spec.own_operators()]
    if not known:
        message = (
            "the cell has no operator to check. Declare one in front matter: "
            "/*--- op: mylib::name(Tensor x) -> Tensor ---*/"
        )
        raise ValueError(message)
    if not operators:
        message = f"no operator '{name}'{did_you_mean(name, known)} The cell has {', '.join(known)}"
        raise ValueError(message)
    settings = job.settings if isinstance(job, GradcheckJob) else None
    dtype = settings.dtype if settings else getattr(job, "dtype", None)
    for operator in operators:
        tensors = {a.name: a for a in operator.inputs if a.kind == "tensor"}
        admitted = {d for a in tensors.values() for d in a.dtypes}
        if dtype is not None and admitted and dtype not in admitted:
            message = (
                f"[{operator.name}] dtype: expected {' or '.join(sorted(admitted))}, got {dtype}"
            )
            raise ValueError(message)
        if settings is not None:
            _check_settings(operator, settings, tensors)


def _check_settings(
    operator: OperatorSpec, settings: GradcheckSettings, tensors: Mapping[str, Any]
) -> None:
    if settings.mode not in _MODES:
        message = f"mode: expected {', '.join(_MODES)}, got {settings.mode!r}"
        raise ValueError(message)
    if settings.order not in (1, 2):
        message = f"order: expected 1 or 2, got {settings.order!r}"
        raise ValueError(message)
    for name in settings.inputs:
        if name not in tensors:
            message = f"[{operator.name}] no tensor input '{name}'; it has {', '.join(tensors)}"
            raise ValueError(message)
    if settings.shapes:
        chosen_sample(operator, make_samples(operator)[-1], settings.shapes)


def run_job(
    report: Report,
    job: Job,
    *,
    budget: float = DEFAULT_BUDGET,
    on_wait: Callable[[str], None] = lambda during: None,
    worker: Worker | None = None,
) -> list[Any]:
    """Run a job on a report's operators in the check worker.

    Parameters
    ----------
    report
        A report of this session.
    job
        What to run.
    budget
        Seconds; then the worker is ended, and that is a finding.
    on_wait
        Called a few times a second with what is running; what it raises cancels the job.
    worker
        None for that of the cell's checks.

    Raises
    ------
    RuntimeError
        The report was not made by a build of this session.
    ValueError
        The job asks for what the operator does not have.
    """
    origin = report.origin
    if origin is None:
        message = "the report was not made by a build of this session; run the cell again"
        raise RuntimeError(message)
    check_job(origin.spec, job)
    try:
        pickle.dumps(job)
    except (pickle.PicklingError, AttributeError, TypeError):
        message = (
            "the reference cannot be sent to the check worker; write it as a text, such as "
            "reference='log(1 + exp(x))' or reference='numpy:tanh', or import it from a module"
        )
        raise ValueError(message) from None
    missing = list(_not_run(origin.spec, job))
    if missing:
        return missing
    return (worker or checking_worker(origin.request)).run(
        origin.spec, report.build.library, checks=job, budget=budget, on_wait=on_wait
    )


def _not_run(spec: CellSpec, job: Job) -> Iterator[Finding]:
    """Yield a finding for each operator that a job cannot run here."""
    for operator in spec.own_operators(_operator_of(job)):
        reason = unreachable(operator)
        if runs_on_gpu(operator) and isinstance(job, TimingJob) and not reason:
            reason = "times here are those of the CPU; ncu and nsys, of the CUDA toolkit, time GPUs"
        if reason:
            yield from not_run(operator, (_KINDS[type(job)],), reason)


def with_job(report: Report, job: Job, records: Sequence[Any]) -> Report:
    """Return the report with what a job found in place of what the same kind found before."""
    kind = _KINDS[type(job)]
    # A crash in the memory check that comes before a gradcheck is the gradcheck's here.
    findings = tuple(dataclasses.replace(r, check=kind) for r in records if isinstance(r, Finding))
    own = [] if report.origin is None else report.origin.spec.own_operators(_operator_of(job))
    names = {o.name for o in own}
    kept = tuple(f for f in report.findings if f.check != kind or f.operator not in names)
    changes: dict[str, Any] = {"findings": (*kept, *findings)}
    if isinstance(job, GradcheckJob):
        order = job.settings.order
        old = [g for g in report.gradcheck if g.operator not in names or g.order != order]
        made = [r for r in records if isinstance(r, GradcheckFacts)]
        changes["gradcheck"] = tuple(sorted((*old, *made), key=lambda g: g.order))
    elif isinstance(job, TimingJob):
        changes["timing"] = (
            *(t for t in report.timing if t.operator not in names),
            *(r for r in records if isinstance(r, TimingFacts)),
        )
    elif isinstance(job, CompileJob):
        changes["compiled"] = tuple(r for r in records if isinstance(r, CompileFacts))
    else:
        changes["opcheck"] = tuple(r for r in records if isinstance(r, OpcheckFacts))
    return dataclasses.replace(report, **changes)


def _operator_of(job: Job) -> str:
    return job.settings.operator if isinstance(job, GradcheckJob) else getattr(job, "operator", "")
