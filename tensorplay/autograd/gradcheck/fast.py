"""The fast mode: one random combination of all elements per input and output."""

from __future__ import annotations

from typing import Any

import numpy as np

from tensorplay._tensor import Tensor
from tensorplay.autograd.gradcheck import report as words
from tensorplay.autograd.gradcheck.analytical import Reverse
from tensorplay.autograd.gradcheck.determinism import ROUNDINGS
from tensorplay.autograd.gradcheck.numerical import machine_epsilon
from tensorplay.autograd.gradcheck.state import State

__all__ = ["fast_reverse"]


def fast_reverse(state: State, reverse: Reverse) -> bool:
    """Compare v'Ju for random u and v; return whether all pairs agree.

    Where one does not, the slow mode decides and says where.
    """
    if state.wide_reverse is not None:
        epsilon = max(p.epsilon for p in state.precisions)
        return _agrees(state, state.wide_reverse, 0.0) and _agrees(state, reverse, epsilon)
    return _agrees(state, reverse, state.analytical_epsilon)


def _agrees(state: State, reverse: Reverse, epsilon: float) -> bool:
    rng = np.random.default_rng(5)
    products: list[list[Any]] = []
    vectors = []
    for output in range(len(state.pairs)):
        columns = state.layout.columns(output)
        vector = rng.uniform(0.5, 1.5, columns.stop - columns.start)
        vectors.append(vector / max(np.linalg.norm(vector), 1e-30))
        cotangents: list[Tensor | None] = [None] * len(state.pairs)
        cotangents[output] = reverse.cotangent(output, vectors[-1])
        one, two = reverse.vjp(cotangents), reverse.vjp(cotangents)
        compare_products(state, output, one, two)
        products.append(one)
    agrees = True
    for i, differences in enumerate(state.differences):
        array = state.arrays[i]
        u = rng.uniform(0.5, 1.5, array.shape)
        if array.dtype.kind == "c":
            u = u + 1j * rng.uniform(0.5, 1.5, array.shape)
        u = u / max(float(np.linalg.norm(u)), 1e-30)
        slope, noise = differences.directional(u)
        p = state.precisions[i] if reverse is not state.wide_reverse else differences.precision
        for output, row in enumerate(state.pairs):
            columns = state.layout.columns(output)
            numerical = float(vectors[output] @ slope[columns])
            bound = float(np.abs(vectors[output]) @ noise[columns])
            grad = products[output][i]
            analytical = 0.0 if grad is None else float(
                np.sum(grad._array.astype(np.complex128) * u.conj()).real)  # fmt: skip
            gap = abs(analytical - numerical)
            bound += 8 * epsilon * abs(numerical)
            if not gap <= p.atol + p.rtol * abs(numerical) + bound:
                agrees = False
                state.notes.append(
                    f"fast mode: for output {row[i].output} and {row[i].leaf.name} v'Ju is "
                    f"{analytical:.6g} by the formula and {numerical:.6g} by differences; the "
                    "slow mode was run to find where."
                )
    return agrees


def compare_products(
    state: State, output: int, first: list[Tensor | None], second: list[Tensor | None]
) -> None:
    for i, (one, two) in enumerate(zip(first, second, strict=True)):
        if one is None or two is None:
            continue
        gap = float(np.abs(one._array - two._array).max(initial=0))
        unit = machine_epsilon(one.dtype) * float(np.abs(one._array).max(initial=0))
        if gap > max(state.options.nondet_tol, ROUNDINGS * unit):
            state.pairs[output][i].fail(
                words.NON_DETERMINISTIC,
                "not_reentrant",
                "Backward is not reentrant: ran backward twice with the same data; the "
                f"gradient of {state.checked[i].name} differed by {gap:.3g}.",
            )
