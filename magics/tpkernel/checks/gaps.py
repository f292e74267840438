"""Gradients that pass only because the tolerances are wide.

The tolerances of a gradcheck are those of the field: in float64 a formula that is wrong by a part
in a thousand passes. The error of a difference quotient is far smaller, and is known: rounding by
its bound, truncation by a quotient of higher order. A gap far above both is the formula's or the
kernel's own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

import tensorplay as tp

__all__ = ["unexplained_gap"]

#: Gaps up to so many times the error bound are no matter: the bound is an estimate.
_TIMES = 100
#: Up to this share of the derivative constants of single precision explain a gap.
_SHARE = 2e-7
#: Of a quotient of fourth order: far from the step of the check, and rounding is small there.
_STEP = 1e-3


def unexplained_gap(
    call: Callable[..., Any], inputs: tuple[Any, ...], position: int, pair: Any
) -> Iterator[str]:
    """Say how far a gradient that passes is above what rounding and truncation explain.

    Parameters
    ----------
    call, inputs
        The function and its arguments.
    position
        Which input.
    pair
        What the gradcheck found for one output and this input.
    """
    tensor = inputs[position]
    if tensor.dtype != tp.float64 or pair.analytical is None or pair.numerical is None:
        return
    analytical, numerical = np.asarray(pair.analytical), np.asarray(pair.numerical)
    if analytical.shape[:1] != (tensor.numel(),) or not analytical.size:
        return  # a sample of the rows, or complex
    gaps = np.abs(analytical - numerical)
    row, column = (int(i) for i in np.unravel_index(int(gaps.argmax()), gaps.shape))
    gap, scale = float(gaps[row, column]), float(np.abs(numerical).max())
    bound = float(pair.noise) + float(tp.finfo(tp.float64).eps) * scale
    if not gap > max(_TIMES * bound, _SHARE * scale):
        return
    better = _quotient(call, inputs, position, pair.output, row, column)
    if better is None:
        return
    bound += abs(better - float(numerical[row, column]))
    times = gap / bound
    if times > _TIMES:
        places = np.unravel_index(row, tuple(tensor.shape))
        index = ", ".join(str(int(i)) for i in places)
        yield (
            f"the gradient of '{pair.input}' passes, but its error is {_rounded(times)} times "
            f"above what rounding and truncation explain: at {pair.input}[{index}] the formula "
            f"gives {analytical[row, column]:.9g}, differences give {numerical[row, column]:.9g} ± "
            f"{bound:.1g}. Look for a constant with few digits, or for an approximation in the "
            "formula or in the kernel"
        )


def _rounded(times: float) -> str:
    """Return a large factor with one digit, in words that a person reads at once."""
    return f"{float(f'{times:.1g}'):,.0f}"


def _quotient(
    call: Callable[..., Any],
    inputs: tuple[Any, ...],
    position: int,
    output: int,
    row: int,
    column: int,
) -> float | None:
    """Return a central difference of fourth order for one element; None for a complex output."""
    array = inputs[position].detach().numpy().copy()
    step = _STEP * max(1.0, abs(float(array.reshape(-1)[row])))

    def at(shift: float) -> npt.NDArray[Any]:
        moved = array.copy()
        moved.reshape(-1)[row] += shift
        given = [tp.from_numpy(moved) if i == position else t for i, t in enumerate(inputs)]
        with tp.no_grad():
            result = call(*given)
        results = result if isinstance(result, (list, tuple)) else (result,)
        return np.asarray(results[output].detach().numpy()).reshape(-1)

    values = [at(k * step) for k in (-2, -1, 1, 2)]
    if values[0].dtype != np.float64 or column >= values[0].size:
        return None
    far, near = values[3] - values[0], values[2] - values[1]
    return float((8 * near[column] - far[column]) / (12 * step))
