"""Differences for many points at once, where a function is made of the product's own operators."""

from __future__ import annotations

from functools import partial

import numpy as np
import numpy.typing as npt

from tensorplay._tensor import wrap
from tensorplay.autograd import grad_mode
from tensorplay.autograd.batched import Level, batch, expose
from tensorplay.autograd.gradcheck.inputs import Leaf
from tensorplay.autograd.gradcheck.numerical import tensors_in
from tensorplay.autograd.gradcheck.state import State

__all__ = ["allow_batches"]

# Elements that the values of an input may have together.
_MOST_ELEMENTS = 1_000_000


def allow_batches(state: State, together: int) -> None:
    """Let differences run the function for several points at once.

    Parameters
    ----------
    state
        The check.
    together
        For how many gradients the formulas run at once: 1 if the function is not made of the
        product's own operators alone. Then it is run as it will be used, point by point.
    """
    if together < 4 or state.evaluate.records:
        return
    for leaf, differences in zip(state.checked, state.differences, strict=True):
        if differences.array is not leaf.tensor._array:
            continue  # they are taken on a copy of another type
        differences.many = partial(_outputs_at, state, leaf)
        differences.together = min(together, _MOST_ELEMENTS // max(leaf.tensor.numel(), 1))


def _outputs_at(
    state: State, leaf: Leaf, points: npt.NDArray[np.generic]
) -> npt.NDArray[np.float64]:
    """Return the outputs, as one vector per row, for several values of one input."""
    level = Level(len(points))
    samples = batch(wrap(points, leaf.tensor.dtype), (level,))
    parts: list[npt.NDArray[np.generic]] = []
    with grad_mode.no_grad():
        outputs = tensors_in(state.call(lambda t: samples if t is leaf.tensor else t))
        for number, spec in zip(state.layout.numbers, state.layout.specs, strict=True):
            array = expose(outputs[number], (level,))._array.reshape(len(points), spec.numel)
            parts.extend([array.real, array.imag] if spec.dtype.is_complex else [array])
    return np.concatenate(parts, 1, dtype=np.float64, casting="unsafe")
