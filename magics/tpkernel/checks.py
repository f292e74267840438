"""The checks of an operator: gradcheck and validation, as plain records.

Everything here runs from a spec and a library's path alone, so that it can run in another process
(:mod:`tpkernel.worker`). Before every call into native code `progress` is told what is about to
run: after a crash that is the last thing known.
"""

from __future__ import annotations

import dataclasses
import inspect
import math
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, Literal

import numpy as np

import tensorplay as tp
from tensorplay.library.modules.source import define_operators, kernels_of
from tensorplay.library.modules.spec import DTYPES, Argument, CellSpec, OperatorSpec
from tensorplay.utils import cpp_jit
from tpkernel.memory_checks import MemoryWatch, check_memory
from tpkernel.report import Finding, GradcheckFacts, PairFacts, ValidationRow
from tpkernel.samples import Sample, make_samples, preferred_dtypes

__all__ = ["CHECKS", "Record", "load_operators", "run_checks"]

#: Names of the checks, in the order they run.
CHECKS = ("memory", "gradcheck", "validation")

Record = GradcheckFacts | ValidationRow | Finding
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
    kernels = kernels_of(spec.kernels, cpp_jit.load_module(library))
    return define_operators(spec.operators, kernels), kernels


def run_checks(
    spec: CellSpec,
    operators: Mapping[str, Any],
    kernels: SimpleNamespace,
    *,
    checks: tuple[str, ...] = CHECKS,
    seed: int = 0,
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
    progress
        Told what is about to run.
    """
    for operator in spec.operators:
        if operator.helper or not checks:
            continue
        definition = operators[operator.opname]
        try:
            samples = make_samples(operator, seed=seed)
        except Exception as problem:  # noqa: BLE001  (a person's expression, any error)
            yield Finding(checks[0], operator.name, "error", f"samples: {_said(problem)}")
            continue
        watch = MemoryWatch(spec, kernels)
        wrong: list[Finding] = []
        if "memory" in checks or "gradcheck" in checks:
            dtypes = preferred_dtypes(operator)
            for finding in check_memory(operator, definition, watch, samples, dtypes, progress):
                if "memory" in checks:
                    yield finding
                if finding.level == "error":
                    wrong.append(finding)
        if "gradcheck" in checks:
            if wrong:
                level: Literal["error", "note"] = "note"
                message = "not run: it would show what the memory check has found"
                if "memory" not in checks:
                    level, message = "error", f"not run before this is mended: {wrong[0].message}"
                yield Finding("gradcheck", operator.name, level, message, code=wrong[0].code)
            else:
                yield from _gradchecks(operator, definition, samples, seed, progress)
        if "validation" in checks:
            yield from _judged(
                operator, _validation(operator, definition, samples[-1], watch, progress)
            )
            if "memory" in checks:
                yield from watch.take()


# -- gradcheck ------------------------------------------------------------------------------------


def _gradchecks(
    spec: OperatorSpec,
    definition: Any,
    samples: Sequence[Sample],
    seed: int,
    progress: Progress,
) -> Iterator[Record]:
    dtypes = preferred_dtypes(spec)
    floating = [n for n, d in dtypes.items() if d.startswith(("float", "bfloat", "complex"))]
    if not spec.derivatives:
        kind = "changes its input in place" if spec.mutates else "declares no derivatives"
        message = f"not run: the operator {kind}"
        yield Finding("gradcheck", spec.name, "note", message)
        return
    if not floating:
        message = "not run: no admitted dtype is floating or complex"
        yield Finding("gradcheck", spec.name, "note", message)
        return
    for sample in samples:
        yield from _gradcheck(spec, definition, sample, dtypes, floating, seed, progress)


def _gradcheck(
    spec: OperatorSpec,
    definition: Any,
    sample: Sample,
    dtypes: Mapping[str, str],
    floating: list[str],
    seed: int,
    progress: Progress,
) -> Iterator[Record]:
    """Check one sample; where its values are outside the operator's domain, take positive ones."""
    progress(f"gradcheck of {spec.name} on {sample.text}")
    start = time.perf_counter()
    try:
        arguments = sample.arguments(spec, dtypes)
        if not spec.samples and not sample.positive and not _finite(definition(**arguments)):
            position = [s.text for s in make_samples(spec, seed=seed)].index(sample.text)
            sample = make_samples(spec, seed=seed, positive=True)[position]
            arguments = sample.arguments(spec, dtypes)
            yield Finding(
                "gradcheck",
                spec.name,
                "note",
                "results are not finite for negative values; checked with positive ones. "
                "Declare samples: to choose.",
            )
        differentiable = [n for n in floating if n in {d.input for d in spec.derivatives}]
        for name in differentiable:
            arguments[name].requires_grad_(True)

        def call(*tensors: Any) -> Any:
            return definition(**{**arguments, **dict(zip(differentiable, tensors, strict=True))})

        # The names that the report gives to inputs are those of the function's parameters.
        kind = inspect.Parameter.POSITIONAL_ONLY
        call.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
            [inspect.Parameter(n, kind) for n in differentiable]
        )
        report = tp.autograd.gradcheck_report(call, tuple(arguments[n] for n in differentiable))
    except Exception as problem:  # noqa: BLE001  (a person's kernel and formula, any error)
        yield Finding("gradcheck", spec.name, "error", f"on {sample.text}: {_said(problem)}")
        return
    yield GradcheckFacts(
        operator=spec.name,
        sample=f"{sample.text}, {', '.join(dict.fromkeys(dtypes.values()))}",
        verdict=str(report.verdict),
        message=str(report.message),
        pairs=_pairs(report, spec, differentiable),
        seconds=time.perf_counter() - start,
        notes=tuple(map(str, report.notes)),
    )


def _pair(pair: Any, names: list[str]) -> PairFacts:
    found = re.fullmatch(r"(?:inputs|tensors|args)\[(\d+)\]", str(pair.input))
    worst = pair.worst
    return PairFacts(
        output=int(pair.output),
        input=names[int(found[1])] if found else str(pair.input),
        verdict=str(pair.verdict),
        code=pair.code,
        message=str(pair.message),
        cause=pair.cause,
        step=_finite_or_none(pair.step),
        atol=_finite_or_none(pair.atol),
        rtol=_finite_or_none(pair.rtol),
        worst=None
        if worst is None
        else {
            "input_index": [int(i) for i in worst.input_index],
            "output_index": [int(i) for i in worst.output_index],
            "analytical": _number(worst.analytical),
            "numerical": _number(worst.numerical),
            "difference": _number(worst.difference),
            "tolerance": _number(worst.tolerance),
        },
    )


def _number(value: Any) -> float | str:
    """Return a number as plain data; what JSON cannot hold (complex, nan, infinite) as text."""
    if isinstance(value, (complex, np.complexfloating)):
        return str(complex(value))
    number = float(value)
    return number if math.isfinite(number) else repr(number)


def _finite_or_none(value: Any) -> float | None:
    number = float(value)
    return number if math.isfinite(number) else None


# What the engine says of a gradient that does not fit its input.
_BAD_SHAPE = re.compile(
    r"invalid gradient at index (?P<index>\d+) - got \[(?P<got>[\d, ]*)\] but expected shape "
    r"compatible with \[(?P<want>[\d, ]*)\]"
)


def _pairs(report: Any, spec: OperatorSpec, names: list[str]) -> tuple[PairFacts, ...]:
    """Return a report's pairs; a gradient of a wrong shape is the matter of its input alone."""
    pairs = tuple(_pair(p, names) for p in report.pairs)
    found = _BAD_SHAPE.search(str(report.message))
    if found is None or int(found["index"]) >= len(spec.inputs):
        return pairs
    name = spec.inputs[int(found["index"])].name
    got, want = (tuple(map(int, re.findall(r"\d+", found[g]))) for g in ("got", "want"))
    message = f"The gradient of '{name}': expected shape {want}, got {got}."
    cause = _shape_advice(name, got, want)
    return tuple(
        # No step: nothing was compared.
        dataclasses.replace(p, code="gradient_shape", message=message, cause=cause, step=None)
        for p in pairs
        if p.input == name
    )


def _shape_advice(name: str, got: tuple[int, ...], want: tuple[int, ...]) -> str:
    """Say what to write so that a gradient gets the shape of its input."""
    if len(got) == 2 and got[::-1] == want:
        return f"the formula is transposed. Write (…).T, or {name}.T where it is multiplied"
    if math.prod(got) == math.prod(want):
        return f"the formula gives the elements in another shape. Write (…).reshape({name}.shape)"
    if math.prod(got) < math.prod(want):
        return (
            "the formula sums more than it should, such as by .sum() over all elements. Leave "
            f"the sum out, or write (…).expand({name}.shape)"
        )
    return f"a dimension is not summed. Write (…).sum(dim), so that the shape is {name}.shape"


def _finite(result: Any) -> bool:
    results = result if isinstance(result, (tuple, list)) else (result,)
    return all(bool(np.isfinite(r.detach().numpy()).all()) for r in results if r is not None)


def _said(problem: BaseException) -> str:
    return f"{type(problem).__name__}: {problem}"


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
        for dtype in (n for n, cpp in DTYPES.items() if cpp or n == "bfloat16"):
            for device in ("cpu", "meta"):
                dtypes = {**base, **dict.fromkeys(names, dtype)}
                progress(f"validation of {spec.name} with {', '.join(names)} {dtype} on {device}")
                with _watched(watch, spec, sample, dtypes):
                    yield _row(spec, definition, sample, dtypes, names, device, "contiguous")
        for argument in group:
            progress(f"validation of {spec.name} with {argument.name} strided on cpu")
            with _watched(watch, spec, sample, base):
                yield _row(spec, definition, sample, base, [argument.name], "cpu", "strided")


def _watched(
    watch: MemoryWatch, spec: OperatorSpec, sample: Sample, dtypes: Mapping[str, str]
) -> MemoryWatch:
    watch.on(spec.name, f"{sample.text}, {', '.join(dict.fromkeys(dtypes.values()))}")
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
        arguments = sample.arguments(spec, dtypes, device=device)
        tensor = arguments[names[0]]
        if layout == "strided":
            arguments[names[0]] = tensor = _strided(tensor)
        with tp.no_grad():
            definition(**arguments)
    except Exception as problem:  # noqa: BLE001  (every refusal is what the table shows)
        message = _said(problem)
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
    if any(a.dtypes and dtype not in a.dtypes for a in arguments):
        return False
    if not all(a.dtypes for a in arguments):
        return None
    if device == "meta":
        return not spec.returned or spec.kernel.shapes.declared
    return all(
        not a.contiguous or (spec.copies and a.role == "in") or tensor.is_contiguous()
        for a in arguments
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
                f"the declaration admits {listed}, and the call failed: {message}. Where the "
                "sample is at fault, declare samples:"
            )
        yield Finding("validation", spec.name, "error", text)
    plain = [r for r in rows if r.device == "cpu" and r.layout == "contiguous"]
    for argument in dict.fromkeys(r.argument for r in plain):
        answers = [r for r in plain if r.argument == argument]
        if by_answer or any(r.admitted for r in answers):
            continue
        text = f"no dtype of {argument} is admitted on cpu; the first call: {answers[0].message}"
        yield Finding("validation", spec.name, "error", text)


def _strided(tensor: Any) -> Any:
    """Return a view with gaps that holds the same values."""
    if tensor.ndim == 0:
        return tensor
    wide = tp.stack([tensor, tensor], -1)
    return wide[..., 0]
