"""The Jacobian matrices of a gradcheck as plain data, cut to what a picture can show."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

import tensorplay as tp
from tpkernel.report.facts import JacobianFacts, PairFacts, StepCurve

__all__ = ["MOST_SHOWN", "step_curve", "with_jacobians"]

#: Rows and columns of a heat map.
MOST_SHOWN = 256
#: Steps of a curve.
_STEPS = 17


def with_jacobians(
    pairs: Sequence[PairFacts],
    found: Sequence[Any],
    input_shapes: Mapping[str, tuple[int, ...]],
    output_shapes: Sequence[tuple[int, ...]],
) -> tuple[PairFacts, ...]:
    """Return pairs with the matrices that a report of the run time has for them.

    Parameters
    ----------
    pairs, found
        The pairs, and those of the run time's report in the same order.
    input_shapes, output_shapes
        What the rows and columns count. A matrix that is only a sample of them is left out: its
        rows have no place in the input.
    """
    return tuple(
        dataclasses.replace(
            pair,
            jacobian=_facts(given, input_shapes.get(pair.input), _at(output_shapes, pair.output)),
        )
        for pair, given in zip(pairs, found, strict=True)
    )


def _at(shapes: Sequence[tuple[int, ...]], position: int) -> tuple[int, ...] | None:
    return shapes[position] if 0 <= position < len(shapes) else None


def _facts(
    pair: Any, input_shape: tuple[int, ...] | None, output_shape: tuple[int, ...] | None
) -> JacobianFacts | None:
    if pair.analytical is None or pair.numerical is None:
        return None
    if input_shape is None or output_shape is None:
        return None
    analytical, numerical = np.asarray(pair.analytical), np.asarray(pair.numerical)
    rows, columns = math.prod(input_shape), math.prod(output_shape)
    if analytical.shape[0] != rows or analytical.shape != numerical.shape or not analytical.size:
        return None
    parts = 2 if analytical.shape[1] == 2 * columns else 1
    if analytical.shape[1] != parts * columns:
        return None
    with np.errstate(all="ignore"):
        difference = np.abs(analytical - numerical)
        allowed = pair.atol + pair.rtol * np.abs(numerical) + pair.noise
        rank = np.where(np.isnan(difference), np.inf, difference / allowed)
    places = _worst_of_blocks(rank)
    shown = tuple(
        array if places is None else array[places]
        for array in (analytical, numerical, difference, allowed)
    )
    height, width = shown[0].shape
    return JacobianFacts(
        input_shape=input_shape,
        output_shape=output_shape,
        parts=parts,
        rows=height,
        columns=width,
        places=()
        if places is None
        else tuple(zip(places[0].ravel().tolist(), places[1].ravel().tolist(), strict=True)),
        analytical=tuple(shown[0].ravel().tolist()),
        numerical=tuple(shown[1].ravel().tolist()),
        difference=tuple(shown[2].ravel().tolist()),
        allowed=tuple(shown[3].ravel().tolist()),
    )


def _worst_of_blocks(
    rank: npt.NDArray[Any],
) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]] | None:
    """Return row and column of the worst element of each block; None if all elements fit."""
    rows, columns = rank.shape
    if rows <= MOST_SHOWN and columns <= MOST_SHOWN:
        return None
    down, across = math.ceil(rows / MOST_SHOWN), math.ceil(columns / MOST_SHOWN)
    height, width = math.ceil(rows / down), math.ceil(columns / across)
    padded = np.full((height * down, width * across), -1.0)
    padded[:rows, :columns] = rank
    blocks = padded.reshape(height, down, width, across).transpose(0, 2, 1, 3)
    best = blocks.reshape(height, width, down * across).argmax(-1)
    row = np.arange(height)[:, None] * down + best // across
    column = np.arange(width)[None, :] * across + best % across
    return row, column


# -- error against step ---------------------------------------------------------------------------


def step_curve(
    call: Callable[..., Any],
    inputs: tuple[Any, ...],
    position: int,
    output: int,
    analytical: npt.NDArray[Any],
    used: float | None,
    progress: Callable[[str], None],
) -> StepCurve:
    """Take central differences at many steps.

    Parameters
    ----------
    call, inputs
        The function and its arguments.
    position, output
        Which input and which output.
    analytical
        The Jacobian by the gradient formula.
    used
        The step of the check.
    progress
        Told of each step.
    """
    epsilon = float(tp.finfo(inputs[position].dtype).eps)
    steps = np.geomspace(10 * epsilon, 0.3, _STEPS)
    gradcheck: Any = tp.autograd.gradcheck  # the names of its module are attributes of it
    numerical = gradcheck.get_numerical_jacobian_wrt_specific_input
    with tp.no_grad():
        outputs = call(*inputs)

    def at(step: float) -> npt.NDArray[Any]:
        progress(f"gradcheck at step {step:.2g}")
        with tp.no_grad():
            found = numerical(call, position, inputs, outputs, float(step))[output]
        return np.asarray(found.numpy())

    near = epsilon ** (1 / 5)
    reference = (4 * at(near) - at(2 * near)) / 3
    tables = [at(step) for step in steps]
    to_formula = [_largest(table - analytical) for table in tables]
    to_reference = [_largest(table - reference) for table in tables]
    return StepCurve(
        steps=tuple(steps.tolist()),
        formula_gap=tuple(to_formula),
        reference_gap=tuple(to_reference),
        meeting=_meeting(steps, np.asarray(to_reference)),
        used=used,
    )


def _largest(table: npt.NDArray[Any]) -> float:
    return float(np.abs(table).max(initial=0.0))


def _meeting(steps: npt.NDArray[Any], gaps: npt.NDArray[Any]) -> float | None:
    """Return where the line of rounding, c / h, and that of truncation, c * h**2, cross."""
    finite = np.isfinite(gaps) & (gaps > 0)
    steps, gaps = steps[finite], gaps[finite]
    if len(steps) < 5:
        return None
    lowest = int(gaps.argmin())
    left, right = slice(0, max(lowest - 1, 0)), slice(lowest + 2, None)
    if len(steps[left]) < 2 or len(steps[right]) < 2:
        return None
    rounding = float(np.median(gaps[left] * steps[left]))
    truncation = float(np.median(gaps[right] / steps[right] ** 2))
    return float((rounding / truncation) ** (1 / 3))
