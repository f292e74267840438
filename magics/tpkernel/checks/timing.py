"""Times of an operator across sizes, beside a reference and beside copying as many bytes.

Rounds alternate between operator, reference and copy, so that what else the machine does meets all
three. The copy is the machine's limit at that size, caches included: an operator that only moves
its tensors through memory cannot be faster for long.
"""

from __future__ import annotations

import importlib
import math
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np

import tensorplay as tp
from tensorplay.library.modules.spec import CellSpec, OperatorSpec
from tpkernel.cells.formulas import is_function_path, read_formula
from tpkernel.checks.chosen_samples import chosen_sample, scaled_shapes
from tpkernel.checks.gradchecks import said_of
from tpkernel.checks.samples import Sample, make_samples, preferred_dtypes
from tpkernel.report.facts import Finding, TimingFacts, TimingRow

__all__ = ["DEFAULT_ELEMENTS", "TimingJob", "reference_text"]

#: Elements of the largest tensor, by default.
DEFAULT_ELEMENTS = (1_000, 10_000, 100_000, 1_000_000, 4_000_000)
_ROUNDS = 7
#: Seconds that one round of one size aims at, and calls in it at most.
_ROUND = 0.01
_MOST_CALLS = 1000
#: A size whose one call takes longer is the last one.
_LONGEST = 0.3

_Call = Callable[[], Any]


@dataclass(frozen=True)
class TimingJob:
    """What is timed; plain data, so that it can be sent.

    Attributes
    ----------
    operator
        Its name, with or without the namespace; empty for all of the cell.
    sizes
        Elements of the largest tensor, or a shape per argument.
    dtype
        None for the widest that is admitted.
    reference
        An expression in tensor operations and the operator's arguments, ``module:function``, or a
        function that can be pickled; None for that of the front matter, and empty for none.
        Functions of TensorPlay and torch get tensors
        of theirs, all others NumPy arrays.
    seed
        Of the values.
    """

    operator: str = ""
    sizes: tuple[int | Mapping[str, tuple[int, ...]], ...] = DEFAULT_ELEMENTS
    dtype: str | None = None
    reference: str | Callable[..., Any] | None = None
    seed: int = 0

    def run(
        self,
        spec: CellSpec,
        operators: Mapping[str, Any],
        kernels: SimpleNamespace,
        progress: Callable[[str], None],
    ) -> Iterator[TimingFacts | Finding]:
        """Yield a table per operator."""
        for operator in spec.own_operators(self.operator):
            yield from _timed(operator, operators[operator.opname], self, progress)


def reference_text(reference: str | Callable[..., Any]) -> str:
    """Return what a report calls a reference."""
    if isinstance(reference, str):
        return reference
    module, name = getattr(reference, "__module__", None), getattr(reference, "__qualname__", None)
    name = name or getattr(reference, "__name__", None) or repr(reference)
    return f"{module}.{name}" if module else name


def _timed(
    spec: OperatorSpec, definition: Any, job: TimingJob, progress: Callable[[str], None]
) -> Iterator[TimingFacts | Finding]:
    dtypes = preferred_dtypes(spec)
    if job.dtype is not None:
        for argument in spec.inputs:
            if argument.name in dtypes and job.dtype in (argument.dtypes or (job.dtype,)):
                dtypes[argument.name] = job.dtype
    rows: list[TimingRow] = []
    notes: list[str] = []
    named = spec.reference if job.reference is None else job.reference
    try:
        reference = _reference(spec, named)
        base = make_samples(spec, seed=job.seed)[0]
        for size in job.sizes:
            shapes = scaled_shapes(spec, base, size) if isinstance(size, int) else size
            sample = chosen_sample(spec, base, shapes, seed=job.seed)
            progress(f"timing of {spec.name} on {sample.text}")
            row = _row(spec, definition, sample, dtypes, reference)
            rows.append(row)
            if row.median > _LONGEST:
                notes.append(f"larger sizes were left out: a call took {row.median:.2g} s.")
                break
    except Exception as problem:  # noqa: BLE001  (a person's kernel and reference, any error)
        yield Finding("timing", spec.name, "error", said_of(problem))
        if not rows:
            return
    worst = [r for r in rows if r.gap is not None and not _close(r.gap, dtypes)]
    if worst:
        gap = max(worst, key=lambda r: r.gap or 0.0)
        notes.append(
            f"the reference gives other results: they differ by {gap.gap:.3g} on {gap.sizes}."
        )
    yield TimingFacts(
        operator=spec.name,
        dtype=", ".join(dict.fromkeys(dtypes.values())),
        rows=tuple(rows),
        reference=reference_text(named),
        notes=tuple(notes),
    )


def _close(gap: float, dtypes: Mapping[str, str]) -> bool:
    kinds = [getattr(tp, d) for d in dtypes.values()]
    floating = [k for k in kinds if k.is_floating_point or k.is_complex]
    epsilon = max((float(tp.finfo(k).eps) for k in floating), default=0.0)
    return math.isfinite(gap) and gap <= 1e4 * epsilon


def _row(
    spec: OperatorSpec,
    definition: Any,
    sample: Sample,
    dtypes: Mapping[str, str],
    reference: Callable[[Mapping[str, Any]], _Call] | None,
) -> TimingRow:
    arguments = sample.arguments(spec, dtypes)
    tensors = [v for v in arguments.values() if isinstance(v, tp.Tensor)]
    for tensor in tensors:
        tensor.requires_grad_(False)

    def call() -> Any:
        return definition(**arguments)

    with tp.no_grad():
        results = _arrays(call())
        moved = sum(t.numel() * t.element_size() for t in tensors) + sum(r.nbytes for r in results)
        source = np.zeros(max(moved // 2, 1), np.uint8)
        target = np.empty_like(source)
        calls: list[_Call] = [call, lambda: np.copyto(target, source)]
        gap: float | None = None
        if reference is not None:
            other = reference(arguments)
            gap = _gap(results, _arrays(other()))
            calls.append(other)
        times = _alternated(calls)
    return TimingRow(
        sizes=sample.text,
        elements=max((t.numel() for t in tensors), default=0),
        bytes=moved,
        seconds=min(times[0]),
        median=statistics.median(times[0]),
        limit=min(times[1]),
        reference=min(times[2]) if reference is not None else None,
        gap=gap,
    )


def _alternated(calls: Sequence[_Call]) -> list[list[float]]:
    """Return seconds per call, for several rounds of each; the rounds take turns."""
    repeats = []
    for call in calls:
        start = time.perf_counter()
        call()
        once = max(time.perf_counter() - start, 1e-7)
        repeats.append(max(1, min(_MOST_CALLS, round(_ROUND / once))))
    times: list[list[float]] = [[] for _ in calls]
    for _ in range(_ROUNDS):
        for call, count, found in zip(calls, repeats, times, strict=True):
            start = time.perf_counter()
            for _ in range(count):
                call()
            found.append((time.perf_counter() - start) / count)
    return times


def _arrays(result: Any) -> list[np.ndarray[Any, Any]]:
    results = result if isinstance(result, (tuple, list)) else (result,)
    return [
        np.asarray(r.detach().numpy() if hasattr(r, "detach") else r)
        for r in results
        if r is not None
    ]


def _gap(ours: Sequence[Any], theirs: Sequence[Any]) -> float:
    if [a.shape for a in ours] != [b.shape for b in theirs]:
        return math.inf
    with np.errstate(all="ignore"):
        gaps = [
            np.abs(a.astype(np.complex128) - b.astype(np.complex128)).max(initial=0.0)
            for a, b in zip(ours, theirs, strict=True)
        ]
    return float(max(gaps, default=0.0))


# -- reference ------------------------------------------------------------------------------------


def _reference(
    spec: OperatorSpec, reference: str | Callable[..., Any]
) -> Callable[[Mapping[str, Any]], _Call] | None:
    """Return what makes a call of the reference out of the operator's arguments.

    Raises
    ------
    ValueError
        A text that is neither an expression nor ``module:function``.
    """
    if not reference:
        return None
    if isinstance(reference, str) and not is_function_path(reference):
        names = [a.name for a in spec.inputs]
        formula = read_formula(reference, values=names, grads=())
        code = compile(formula.source, f"<reference of {spec.name}>", "eval")

        def of_expression(arguments: Mapping[str, Any]) -> _Call:
            space = {"tp": tp, "math": math, **arguments}
            return lambda: eval(code, space)  # noqa: S307  (an expression of the person's own)

        return of_expression
    function = _imported(reference) if isinstance(reference, str) else reference
    root = str(getattr(function, "__module__", None) or type(function).__module__).split(".")[0]
    if root == "numpy" or isinstance(function, np.ufunc):
        root = "numpy"

    def of_function(arguments: Mapping[str, Any]) -> _Call:
        given = [_converted(v, root) for v in arguments.values()]
        count = function.nin if isinstance(function, np.ufunc) else len(given)
        return lambda: function(*given[:count])

    return of_function


def _imported(path: str) -> Callable[..., Any]:
    module, _, name = path.partition(":")
    found: Any = importlib.import_module(module)
    for part in name.split("."):
        found = getattr(found, part)
    if not callable(found):
        message = f"the reference {path} is not callable"
        raise ValueError(message)  # noqa: TRY004  (the text names the wrong thing)
    function: Callable[..., Any] = found
    return function


def _converted(value: Any, root: str) -> Any:
    if not isinstance(value, tp.Tensor) or root == "tensorplay":
        return value
    array = value.detach().numpy()
    if root == "torch":
        return importlib.import_module("torch").from_numpy(array)
    return array
