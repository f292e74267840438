"""A function of narrow inputs, seen through float64 copies of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tensorplay import _dtype
from tensorplay._tensor import Tensor, spec_of, wrap
from tensorplay.autograd.gradcheck.analytical import Reverse
from tensorplay.autograd.gradcheck.inputs import Leaf
from tensorplay.autograd.gradcheck.numerical import Evaluator, Layout, machine_epsilon, tensors_in

__all__ = ["Wide", "promoted"]

Matrix = npt.NDArray[Any]


@dataclass(frozen=True)
class Wide:
    """A function that computes in float64, on copies of its inputs.

    Parameters
    ----------
    call
        ``call(change)`` runs it with each copy replaced by ``change(copy)``.
    evaluate
        Computes it as a vector.
    tensors
        The copies of the checked inputs.
    """

    call: Callable[[Callable[[Tensor], Any]], Any]
    evaluate: Evaluator
    tensors: list[Tensor]

    @property
    def arrays(self) -> list[Matrix]:
        """The memory of the copies."""
        return [tensor._array for tensor in self.tensors]

    def reverse(self) -> Reverse | None:
        """Return the vector-Jacobian products of a new run, None without formulas in float64."""
        layout = self.evaluate.layout
        outputs = tensors_in(self.evaluate.call())
        chosen = [outputs[n] for n in layout.numbers]
        if not all(out.requires_grad for out in chosen):
            return None
        reverse = Reverse(chosen, self.tensors, layout)
        try:
            reverse.vjp([reverse.zeros(n) for n in range(len(chosen))])
        except Exception:  # noqa: BLE001 - a formula for float32 alone may refuse in any way
            return None
        return reverse


def promoted(
    call_with: Callable[[Callable[[Tensor], Any]], Any],
    leaves: Sequence[Leaf],
    checked: Sequence[Leaf],
    original: Layout,
    values: Matrix,
) -> Wide | None:
    """Return the function on float64 copies of the inputs, None if it does not take them."""
    if not original.specs:
        return None  # there is nothing to compare
    twins: dict[int, Tensor] = {}
    for leaf in leaves:
        tensor = leaf.tensor
        if tensor.dtype.is_differentiable and not tensor.is_meta:
            d = _dtype.complex128 if tensor.dtype.is_complex else _dtype.float64
            twin = wrap(tensor._array.astype(d.numpy), d)
            twin.requires_grad = tensor.requires_grad
            twins[id(tensor)] = twin

    def changed(change: Callable[[Tensor], Any]) -> Any:
        return call_with(lambda tensor: change(twins.get(id(tensor), tensor)))

    def call() -> Any:
        return changed(lambda tensor: tensor)

    try:
        outputs = tensors_in(call())
    except Exception:  # noqa: BLE001 - a kernel for float32 alone may refuse in any way
        return None
    specs = []
    for number, spec in zip(original.numbers, original.specs, strict=True):
        if number >= len(outputs) or outputs[number].shape != spec.shape:
            return None
        specs.append(spec_of(outputs[number]))
        if machine_epsilon(outputs[number].dtype) > 1e-12:
            return None
    layout = Layout(original.numbers, specs)
    evaluate = Evaluator(call, layout)
    centre = layout.flatten([outputs[n]._array for n in layout.numbers])
    epsilon = max(machine_epsilon(spec.dtype) for spec in original.specs)
    close = np.abs(centre - values) <= 64 * epsilon * (np.abs(centre).max(initial=1))
    if not (close | ~np.isfinite(centre)).all():
        return None
    wide = Wide(changed, evaluate, [twins[id(leaf.tensor)] for leaf in checked])
    return wide if _resolves(evaluate, wide.arrays) else None


def _resolves(evaluate: Evaluator, arrays: Sequence[Matrix]) -> bool:
    """Tell whether a function on float64 also computes in it, by two steps in one direction.

    A kernel that converts to float32 inside shows steps of that size for small changes.
    """
    rng = np.random.default_rng(6)
    kept = [array.copy() for array in arrays]
    moves = [rng.uniform(0.5, 1, array.shape) for array in arrays]

    def slope(h: float) -> Matrix:
        sides = []
        for sign in (1, -1):
            for array, old, move in zip(arrays, kept, moves, strict=True):
                array[...] = old + sign * h * move
            sides.append(evaluate())
        result: Matrix = (sides[0] - sides[1]) / (2 * h)
        return result

    try:
        with np.errstate(all="ignore"):
            small, large = slope(1e-6), slope(1e-5)
    finally:
        for array, old in zip(arrays, kept, strict=True):
            array[...] = old
    scale = np.abs(large[np.isfinite(large)]).max(initial=0.0)
    gap = np.abs(small - large)
    return bool((gap[np.isfinite(gap)] <= 1e-4 * scale + 1e-6).all())
