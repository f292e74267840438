"""An operator inside a compiled function: what was captured around it, and whether it agrees."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np

import tensorplay as tp
from tensorplay.library.modules.spec import CellSpec, OperatorSpec
from tpkernel.checks.gradchecks import said_of
from tpkernel.checks.samples import flat_results, leaf, make_samples, preferred_dtypes, with_leaves
from tpkernel.report.facts import CompileFacts, Finding, RegionFacts

__all__ = ["CompileJob"]

#: Roundings by which compiled arithmetic around the operator may differ from eager arithmetic.
_ROUNDINGS = 100


@dataclass(frozen=True)
class CompileJob:
    """`tensorplay.compile` of each operator between two operations of the runtime.

    The first tensor is doubled before the operator and one is added to its first result, so that
    the graph shows the operator as a node among others.
    """

    operator: str = ""
    seed: int = 0

    def run(
        self,
        spec: CellSpec,
        operators: Mapping[str, Any],
        kernels: SimpleNamespace,
        progress: Callable[[str], None],
    ) -> Iterator[CompileFacts | Finding]:
        """Yield a record per operator."""
        for operator in spec.own_operators(self.operator):
            progress(f"compile of {operator.name}")
            try:
                yield _compared(operator, operators[operator.opname], self.seed)
            except Exception as problem:  # noqa: BLE001  (a person's kernel, any error)
                yield Finding("compile", operator.name, "error", said_of(problem))


def _compared(spec: OperatorSpec, definition: Any, seed: int) -> CompileFacts:
    start = time.perf_counter()
    dtypes = preferred_dtypes(spec)
    sample = make_samples(spec, seed=seed)[0]
    derived = set(spec.differentiated)
    owners = sample.leaves(spec)
    names = list(owners)

    def leaves() -> dict[str, Any]:
        arguments = sample.arguments(spec, dtypes)
        for name in names:
            tensor = leaf(arguments, name)
            floating = tensor.dtype.is_floating_point or tensor.dtype.is_complex
            tensor.requires_grad_(floating and owners[name] in derived)
        return arguments

    def around(arguments: dict[str, Any]) -> Any:
        first = names[0] if names else None
        changed = with_leaves(arguments, {first: leaf(arguments, first) * 2} if first else {})
        result = definition(**changed)
        if isinstance(result, (tuple, list)):
            return (result[0] + 1, *result[1:])
        return result + 1

    eager, compiled = leaves(), leaves()
    expected = _results(around(eager))
    explained: Any = tp.compiler.explain(around)(compiled)
    gap = _largest(expected, _results(explained.result))
    gradients = [n for n in names if leaf(eager, n).requires_grad]
    gradient_gap: float | None = None
    if gradients and any(r.requires_grad for r in expected):
        for results in (expected, _results(explained.result)):
            sum((r.sum() for r in results if r.requires_grad), start=tp.tensor(0.0)).backward()
        gradient_gap = _largest(
            [leaf(eager, n).grad for n in gradients], [leaf(compiled, n).grad for n in gradients]
        )
    details = explained.details[0] if explained.details else None
    return CompileFacts(
        operator=spec.name,
        sample=f"{sample.text}, {', '.join(dict.fromkeys(dtypes.values()))}",
        graph=(details.graph or "") if details else "",
        backward_graph=(details.backward_graph or "") if details else "",
        regions=tuple(
            RegionFacts(str(r.kind), ", ".join(r.nodes), str(r.reason or ""))
            for r in (details.regions if details else ())
        ),
        breaks=tuple(map(str, explained.breaks)),
        difference=gap,
        gradient_difference=gradient_gap,
        allowed=_ROUNDINGS * _epsilon(dtypes) * max(1.0, _size(expected)),
        seconds=time.perf_counter() - start,
    )


def _results(result: Any) -> list[Any]:
    return list(flat_results(result))


def _epsilon(dtypes: Mapping[str, str]) -> float:
    kinds = [getattr(tp, d) for d in dtypes.values()]
    floating = [k for k in kinds if k.is_floating_point or k.is_complex]
    return max((float(tp.finfo(k).eps) for k in floating), default=0.0)


def _size(tensors: list[Any]) -> float:
    arrays = [np.abs(t.detach().numpy()).max(initial=0) for t in tensors]
    return float(max(arrays, default=0.0))


def _largest(ours: list[Any], theirs: list[Any]) -> float:
    """Return the largest difference; infinite where count, shape or type differ."""
    if len(ours) != len(theirs):
        return float("inf")
    gaps = [0.0]
    for a, b in zip(ours, theirs, strict=True):
        if (a is None) != (b is None):
            return float("inf")
        if a is None:
            continue
        x, y = a.detach().numpy(), b.detach().numpy()
        if x.shape != y.shape or x.dtype != y.dtype:
            return float("inf")
        with np.errstate(all="ignore"):
            same = (x == y) | ((x != x) & (y != y))  # noqa: PLR0124  (nan is nan)
            gaps.append(float(np.where(same, 0, np.abs(x - y)).max(initial=0.0)))
    return max(gaps)
