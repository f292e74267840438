"""The fast mode: one random combination of all elements per input and output."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from tensorplay._tensor import Tensor, wrap
from tensorplay.autograd.gradcheck import report as words
from tensorplay.autograd.gradcheck.analytical import Reverse, run_forward
from tensorplay.autograd.gradcheck.determinism import ROUNDINGS
from tensorplay.autograd.gradcheck.numerical import Layout, machine_epsilon, random_direction
from tensorplay.autograd.gradcheck.state import State

__all__ = ["fast_forward", "fast_reverse"]

Vector = npt.NDArray[Any]


def fast_reverse(state: State, reverse: Reverse) -> bool:
    """Compare v'Ju for random u and v; return whether all pairs agree.

    Where one does not, the slow mode decides and says where.
    """
    if state.wide_reverse is not None:
        epsilon = max(p.epsilon for p in state.precisions)
        return _agrees(state, state.wide_reverse, 0.0) and _agrees(state, reverse, epsilon)
    return _agrees(state, reverse, state.analytical_epsilon)


def _agrees(state: State, reverse: Reverse, epsilon: float) -> bool:
    products: list[list[Any]] = []
    vectors = _output_directions(state)
    for output, vector in enumerate(vectors):
        cotangents: list[Tensor | None] = [None] * len(vectors)
        cotangents[output] = reverse.cotangent(output, vector)
        products.append(reverse.vjp(cotangents))
        if not reverse.is_own:  # formulas without code of people keep no state
            compare_products(state, output, products[-1], reverse.vjp(cotangents))

    def analytical(output: int, i: int, u: Vector) -> float:
        grad = products[output][i]
        return 0.0 if grad is None else _product(grad._array, u)

    narrow = reverse is not state.wide_reverse
    return _compare(state, vectors, analytical, epsilon, "formula", narrow=narrow)


def fast_forward(state: State) -> bool:
    """Compare v'(Ju), with Ju by forward mode; return whether all pairs agree."""
    inputs = [leaf.tensor for leaf in state.checked]
    wide = state.wide if state.wide_reverse is not None else None
    if wide is not None:
        epsilon = max(p.epsilon for p in state.precisions)
        layout = wide.evaluate.layout
        return _forward_agrees(
            state, wide.call, wide.tensors, layout, 0.0, narrow=False
        ) and _forward_agrees(state, state.call, inputs, state.layout, epsilon, narrow=True)
    epsilon = state.analytical_epsilon
    return _forward_agrees(state, state.call, inputs, state.layout, epsilon, narrow=True)


def _forward_agrees(
    state: State,
    call: Callable[..., Any],
    tensors: Sequence[Tensor],
    layout: Layout,
    epsilon: float,
    *,
    narrow: bool,
) -> bool:
    vectors = _output_directions(state)
    call = state.dual_call(call, tensors)
    pushed: list[Vector] = []
    for i, tensor in enumerate(tensors):
        kind = tensor.dtype.numpy
        u = _input_direction(state, i).astype(kind)
        found = run_forward(call, {id(tensor): wrap(u, tensor.dtype)}, layout)
        pushed.append(
            layout.flatten(
                [
                    np.zeros(spec.shape, spec.dtype.numpy) if t is None else t
                    for t, spec in zip(found, layout.specs, strict=True)
                ]
            )
        )

    def analytical(output: int, i: int, _: Vector) -> float:
        return float(vectors[output] @ pushed[i][layout.columns(output)])

    return _compare(state, vectors, analytical, epsilon, "forward formula", narrow=narrow)


def _output_directions(state: State) -> list[Vector]:
    sizes = [state.layout.columns(n) for n in range(len(state.pairs))]
    return [
        random_direction(2 * n, part.stop - part.start, is_complex=False)
        for n, part in enumerate(sizes)
    ]


def _input_direction(state: State, i: int) -> Vector:
    array = state.arrays[i]
    vector = random_direction(2 * i + 1, array.size, is_complex=array.dtype.kind == "c")
    return vector.reshape(array.shape)


def _compare(
    state: State,
    vectors: Sequence[Vector],
    analytical: Callable[[int, int, Vector], float],
    epsilon: float,
    by: str,
    *,
    narrow: bool,
) -> bool:
    """Compare products with differences; `narrow` where they are in the types of the inputs."""
    agrees = True
    for i, differences in enumerate(state.differences):
        u = _input_direction(state, i)
        if i not in state.slopes:
            state.slopes[i] = differences.directional(u)
        slope, noise = state.slopes[i]
        p = state.precisions[i] if narrow else differences.precision
        for output, row in enumerate(state.pairs):
            columns = state.layout.columns(output)
            numerical = float(vectors[output] @ slope[columns])
            bound = float(np.abs(vectors[output]) @ noise[columns])
            product = analytical(output, i, u)
            gap = abs(product - numerical)
            bound += 8 * epsilon * abs(numerical)
            if p.doubt is not None and state.wide_reverse is None:
                agrees = False  # too few digits for one sum to tell: the slow mode looks closer
            elif not gap <= p.atol + p.rtol * abs(numerical) + bound:
                agrees = False
                state.notes.append(
                    f"fast mode: for output {row[i].output} and {row[i].leaf.name} v'Ju is "
                    f"{product:.6g} by the {by} and {numerical:.6g} by differences; the "
                    "slow mode was run to find where."
                )
    return agrees


def _product(gradient: Vector, u: npt.NDArray[Any]) -> float:
    """Return the real part of the product of a gradient with a direction, in float64."""
    wide = np.complex128 if gradient.dtype.kind == "c" else np.float64
    return float(np.vdot(u, gradient.astype(wide, copy=False)).real)


def compare_products(
    state: State, output: int, first: list[Tensor | None], second: list[Tensor | None]
) -> None:
    for i, (one, two) in enumerate(zip(first, second, strict=True)):
        if one is None or two is None:
            continue
        if np.array_equal(one._array, two._array):
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
