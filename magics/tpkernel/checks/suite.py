"""The checks of an operator: gradcheck and validation, as plain records.

Everything here runs from a spec and a library's path alone, so that it can run in another process
(:mod:`tpkernel.worker.process`). Before every call into native code `progress` is told what is
about to run: after a crash that is the last thing known.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import SimpleNamespace
from typing import Any, Literal

import tensorplay as tp
from tensorplay.library.modules.source import define_operators, kernels_of
from tensorplay.library.modules.spec import DTYPES, Argument, CellSpec, OperatorSpec
from tensorplay.utils import cpp_jit
from tpkernel.checks.devices import not_run, reachable, runs_on_gpu, unreachable
from tpkernel.checks.gradchecks import gradchecks, said_of
from tpkernel.checks.memory import MemoryWatch, check_memory
from tpkernel.checks.opchecks import opchecks
from tpkernel.checks.repeats import MANY, check_layouts, check_repeats, not_compared
from tpkernel.checks.samples import Sample, make_samples, preferred_dtypes
from tpkernel.checks.varying import varied_samples
from tpkernel.checks.verdicts import is_bad
from tpkernel.checks.zeros import check_zeros, with_zeros
from tpkernel.report.facts import (
    Finding,
    GradcheckFacts,
    GradcheckSettings,
    OpcheckFacts,
    ValidationRow,
)

__all__ = ["CHECKS", "Record", "load_operators", "run_checks", "run_job", "validations"]

#: Names of the checks, in the order they run.
CHECKS = ("memory", "gradcheck", "validation", "opcheck")

Record = GradcheckFacts | ValidationRow | OpcheckFacts | Finding
Progress = Callable[[str], None]


def load_operators(spec: CellSpec, library: str) -> tuple[Mapping[str, Any], SimpleNamespace]:
    """Make the cell's operators from its spec and its library alone.

    Returns
    -------
    mapping
        Operator name (without namespace) to its definition.
    kernels
        The C++ functions that the definitions call, as attributes.
    """
    kernels = load_kernels(spec, library)
    return define_operators(spec.operators, kernels), kernels


def load_kernels(spec: CellSpec, library: str) -> SimpleNamespace:
    """Return the C++ functions of a cell's library as attributes."""
    return kernels_of(spec.kernels, cpp_jit.load_module(library))


def fresh_kernels(spec: CellSpec, library: str) -> SimpleNamespace:
    """Load a copy of a library, whose variables are as they are before the first call."""
    with tempfile.TemporaryDirectory(prefix="tpkernel-") as folder:
        copy = shutil.copy(library, folder)  # another file, so that the loader maps it anew
        return load_kernels(spec, copy)


def run_checks(
    spec: CellSpec,
    operators: Mapping[str, Any],
    kernels: SimpleNamespace,
    *,
    checks: tuple[str, ...] = CHECKS,
    seed: int = 0,
    library: str,
    sanitized: bool = False,
    progress: Progress = lambda text: None,
) -> Iterator[Record]:
    """Run checks over all declared operators of a cell, yielding records as they are made.

    A gradcheck calls a kernel hundreds of times on ordinary memory, so the memory check comes
    before it, asked for or not, and what it finds stands in place of a gradcheck.

    Parameters
    ----------
    spec
        The cell.
    operators, kernels
        Definitions and functions, as :func:`load_operators` returns them.
    checks
        Which of :data:`CHECKS`.
    seed
        Seed of made samples.
    library
        Path of the library that holds the functions.
    sanitized
        The process runs under a sanitizer, which watches memory itself.
    progress
        Told what is about to run.
    """
    with reachable(spec, operators):
        for operator in spec.operators:
            if operator.helper or not checks:
                continue
            if reason := unreachable(operator):
                yield from not_run(operator, checks, reason)
                continue
            yield from _checked(
                spec, operator, operators[operator.opname], kernels, checks, seed, library,
                sanitized, progress,
            )  # fmt: skip


def run_job(
    spec: CellSpec,
    operators: Mapping[str, Any],
    kernels: SimpleNamespace,
    job: Any,
    progress: Progress,
) -> Iterator[Any]:
    """Run what a report asked for, as `tpkernel.worker.process.Job` describes it."""
    with reachable(spec, operators):
        yield from job.run(spec, operators, kernels, progress)


def _checked(
    spec: CellSpec,
    operator: OperatorSpec,
    definition: Any,
    kernels: SimpleNamespace,
    checks: tuple[str, ...],
    seed: int,
    library: str,
    sanitized: bool,
    progress: Progress,
) -> Iterator[Record]:
    """Run the checks of one operator."""
    watched = not sanitized and not runs_on_gpu(operator)
    watch = MemoryWatch(spec, kernels, enabled=watched)
    try:
        plain = make_samples(operator, seed=seed)
        samples, only_defaults = varied_samples(operator, definition, watch, progress, seed=seed)
    except Exception as problem:  # noqa: BLE001  (a person's expression, any error)
        yield Finding(checks[0], operator.name, "error", f"samples: {said_of(problem)}")
        return
    if "memory" in checks and runs_on_gpu(operator):
        reason = "the memory of a GPU is not watched here; compute-sanitizer watches it"
        yield from not_run(operator, ("memory",), reason)
    wrong: list[Finding] = []
    if "memory" in checks or "gradcheck" in checks:
        dtypes = preferred_dtypes(operator)
        zeros = with_zeros(operator, plain)
        found = list(check_memory(operator, definition, watch, samples, dtypes, progress))
        wrong = list(_errors(found))
        if not wrong:  # else zeros show the same mistake under another name
            zeros_found = check_memory(operator, definition, watch, zeros, dtypes, progress)
            wrong = list(_errors(zeros_found))
            found += wrong
        if "memory" in checks:
            yield from found
    if wrong:
        if "gradcheck" in checks:
            yield _instead_of_gradcheck(operator, wrong[0], said="memory" in checks)
        if "validation" in checks:
            yield from _validated(operator, definition, samples[-1], watch, checks, progress)
        return

    def unlike(calls: int) -> Finding | None:
        found = check_repeats(
            operator, definition, kernels, make_samples(operator, seed=seed + 1),
            preferred_dtypes(operator), lambda: fresh_kernels(spec, library), progress, calls=calls,
        )  # fmt: skip
        return next(found, None)

    def gradients() -> Iterator[Record]:
        settings = GradcheckSettings(seed=seed)
        records = list(gradchecks(operator, definition, samples, settings, progress))
        yield from (*only_defaults, *records)
        if not any(map(_failed, records)):
            yield from check_zeros(operator, definition, zeros, progress)

    def layouts() -> Iterator[Record]:
        dtypes = preferred_dtypes(operator)
        if not runs_on_gpu(operator):  # where copies lie contiguous
            yield from check_layouts(operator, definition, samples[-1], dtypes, progress)

    def declared() -> Iterator[Record]:
        # A rule for a shape may forget what has a default, too.
        sample = next((s for s in reversed(samples) if s.given), samples[0])
        yield from opchecks(operator, definition, sample, progress)

    steps = {"gradcheck": gradients, "validation": layouts, "opcheck": declared}
    steps = {check: step for check, step in steps.items() if check in checks}
    yield from _compared(steps, unlike, MANY if watch.unlike else 2)
    if "validation" in checks:
        yield from _validated(operator, definition, samples[-1], watch, checks, progress)


def _compared(
    steps: Mapping[str, Callable[[], Iterator[Record]]],
    unlike: Callable[[int], Finding | None],
    calls: int,
) -> Iterator[Record]:
    """Run checks that compare results, which means something where equal calls are equal.

    A few calls are looked at before; many, which take as long as a gradcheck, where a check fails.
    """
    cause = unlike(calls) if steps else None
    left = list(steps)
    while left and cause is None:
        records = list(steps[left[0]]())
        cause = unlike(MANY) if any(map(_failed, records)) else None
        if cause is None:
            yield from records
            left.pop(0)
    if cause is not None:
        yield cause
        yield from (not_compared(check, cause) for check in left if check != "validation")


def _instead_of_gradcheck(operator: OperatorSpec, wrong: Finding, *, said: bool) -> Finding:
    """Return what stands in place of a gradcheck of a kernel that damages memory."""
    level: Literal["error", "note"] = "note"
    message = "not run: it would show what the memory check has found"
    if not said:
        level, message = "error", f"not run before this is mended: {wrong.message}"
    return Finding("gradcheck", operator.name, level, message, code=wrong.code)


def _validated(
    operator: OperatorSpec,
    definition: Any,
    sample: Sample,
    watch: MemoryWatch,
    checks: tuple[str, ...],
    progress: Progress,
) -> Iterator[Record]:
    """Yield the table of one operator, and what its calls did to memory."""
    yield from _judged(operator, _validation(operator, definition, sample, watch, progress))
    if "memory" in checks:
        yield from watch.take()


def _errors(findings: Iterable[Finding]) -> Iterator[Finding]:
    """Leave out notes, such as that a call on zeros, outside the domain, was not finished."""
    return (f for f in findings if f.level == "error")


def _failed(record: Record) -> bool:
    if isinstance(record, Finding):
        return record.level == "error"
    return is_bad(record.verdict)


# -- validation -----------------------------------------------------------------------------------


def _validation(
    spec: OperatorSpec, definition: Any, sample: Sample, watch: MemoryWatch, progress: Progress
) -> Iterator[Record]:
    """Call the operator once per dtype, device and layout of each argument, and note its answer.

    Calls that are admitted are watched: a kernel may write outside its memory for one dtype only.
    """
    base = preferred_dtypes(spec)
    for group in _groups(spec):
        names = [a.name for a in group]
        for dtype in DTYPES:
            for device in (spec.kernel.device, "meta"):
                dtypes = {**base, **dict.fromkeys(names, dtype)}
                progress(f"validation of {spec.name} with {', '.join(names)} {dtype} on {device}")
                with _watched(watch, spec, sample, dtypes):
                    yield _row(spec, definition, sample, dtypes, names, device, "contiguous")
        for argument in () if runs_on_gpu(spec) else group:
            progress(f"validation of {spec.name} with {argument.name} strided on cpu")
            with _watched(watch, spec, sample, base, f" and {argument.name} strided"):
                yield _row(spec, definition, sample, base, [argument.name], "cpu", "strided")


def validations(
    cell: CellSpec,
    spec: OperatorSpec,
    definition: Any,
    kernels: SimpleNamespace,
    sample: Sample,
    progress: Progress,
) -> Iterator[Record]:
    """Yield the table of one operator on one sample, and where it does not do as declared."""
    watch = MemoryWatch(cell, kernels)
    yield from _judged(spec, _validation(spec, definition, sample, watch, progress))
    yield from watch.take()


def _watched(
    watch: MemoryWatch,
    spec: OperatorSpec,
    sample: Sample,
    dtypes: Mapping[str, str],
    layout: str = "",
) -> MemoryWatch:
    watch.on(spec.name, f"{sample.text}, {', '.join(dict.fromkeys(dtypes.values()))}{layout}")
    return watch


def _groups(spec: OperatorSpec) -> list[list[Argument]]:
    """Tensor inputs, those of one template parameter together: they change dtype together."""
    groups: dict[str, list[Argument]] = {}
    for argument in spec.inputs:
        if argument.kind == "tensor":
            groups.setdefault(argument.variable or f"={argument.name}", []).append(argument)
    return list(groups.values())


def _row(
    spec: OperatorSpec,
    definition: Any,
    sample: Sample,
    dtypes: Mapping[str, str],
    names: list[str],
    device: str,
    layout: str,
) -> ValidationRow:
    dtype = dtypes[names[0]]
    message = ""
    tensor: Any = None
    try:
        # What is on a GPU is called through copies; see `devices`.
        arguments = sample.arguments(spec, dtypes, device="meta" if device == "meta" else "cpu")
        tensor = arguments[names[0]]
        if layout == "strided":
            arguments[names[0]] = tensor = _strided(tensor)
        with tp.no_grad():
            definition(**arguments)
    except Exception as problem:  # noqa: BLE001  (every refusal is what the table shows)
        message = said_of(problem)
    return ValidationRow(
        operator=spec.name,
        argument=", ".join(names),
        dtype=dtype,
        device=device,
        layout=layout,
        admitted=not message,
        message=message,
        declared=_declared(spec, names, dtype, device, tensor),
    )


def _declared(
    spec: OperatorSpec, names: list[str], dtype: str, device: str, tensor: Any
) -> bool | None:
    """Whether the declaration admits a call; None where it leaves it to the kernel."""
    arguments = [a for a in spec.inputs if a.name in names]
    if device == "meta" and spec.unknown_shapes:
        return False
    if any(a.dtypes and dtype not in a.dtypes for a in arguments):
        return False
    if not all(a.dtypes for a in arguments):
        return None
    if device == "meta":
        return not spec.returned or spec.kernel.shapes.declared
    return all(
        not a.contiguous or (spec.copies and a.role == "in") or _dense(tensor) for a in arguments
    )


def _judged(spec: OperatorSpec, records: Iterable[Record]) -> Iterator[Record]:
    """Pass records on; then say where the operator does not do as declared, once per answer."""
    rows: list[ValidationRow] = []
    for record in records:
        if isinstance(record, ValidationRow):
            rows.append(record)
        yield record
    by_answer: dict[tuple[bool, str], list[str]] = {}
    for row in rows:
        if row.verdict != "ok":
            where = f"{row.argument} {row.dtype} on {row.device}, {row.layout}"
            by_answer.setdefault((row.admitted, row.message), []).append(where)
    for (admitted, message), places in by_answer.items():
        listed = "; ".join(places)
        if admitted:
            text = f"the declaration refuses {listed}, and the call returned"
        else:
            text = (
                f"the declaration admits {listed}, and the call failed: {message.rstrip('.')}. "
                "Where the sample is at fault, declare samples:"
            )
        yield Finding("validation", spec.name, "error", text)
    plain = [r for r in rows if r.device == "cpu" and r.layout == "contiguous"]
    for argument in dict.fromkeys(r.argument for r in plain):
        answers = [r for r in plain if r.argument == argument]
        if by_answer or any(r.admitted for r in answers):
            continue
        text = f"no dtype of {argument} is admitted on cpu; the first call: {answers[0].message}"
        yield Finding("validation", spec.name, "error", text)


def _dense(value: Any) -> bool:
    """Whether a tensor, or each of a list, is contiguous."""
    return all(
        t is None or t.is_contiguous() for t in (value if isinstance(value, list) else [value])
    )


def _strided(tensor: Any) -> Any:
    """Return a view with gaps that holds the same values."""
    if isinstance(tensor, list):
        return [_strided(member) for member in tensor]
    if tensor is None or tensor.ndim == 0:
        return tensor
    wide = tp.stack([tensor, tensor], -1)
    return wide[..., 0]
