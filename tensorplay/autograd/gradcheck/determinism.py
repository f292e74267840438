"""Two runs on the same data: do they agree, and if not, why."""

from __future__ import annotations

import random
import sys
from typing import Any

import numpy as np
import numpy.typing as npt

from tensorplay.autograd.gradcheck import report as words
from tensorplay.autograd.gradcheck.analytical import Reverse
from tensorplay.autograd.gradcheck.numerical import machine_epsilon
from tensorplay.autograd.gradcheck.state import State

__all__ = ["ROUNDINGS", "compare_runs", "forward_is_repeatable"]

Matrix = npt.NDArray[Any]

# Differences between two runs up to this many roundings come from the order of a sum.
ROUNDINGS = 32


def forward_is_repeatable(state: State) -> bool:
    """Run the function once more; where the outputs differ, fail all pairs with the reason."""
    again = state.evaluate()
    if np.array_equal(again, state.centre):
        return True
    gap = _gap(again, state.centre)
    allowed = ROUNDINGS * rounding(state, state.centre)
    limit = max(allowed, state.options.nondet_tol)
    if (gap > limit).any() and not state.evaluate.records:
        # It may compute something else where nothing is recorded; then it is run as it was.
        state.evaluate.records = True
        gap = _gap(state.evaluate(), state.centre)
    if not (gap > limit).any():
        return True
    before = _generator_states()
    state.evaluate()
    used = _used_generator(before, _generator_states())
    place = int(np.nanargmax(gap))
    what = f"the function gave two results for the same input: they differ by {gap[place]:.3g}."
    if used is not None:
        code, why = "random", f"It draws random numbers from {used}; fix the seed inside."
    else:
        code, why = "stateful_forward", "It keeps state between calls."
    for row in state.pairs:
        for pair in row:
            pair.fail(words.NON_DETERMINISTIC, code, f"{what} {why}")
    return False


def rounding(state: State, values: Matrix) -> float:
    epsilon = max((machine_epsilon(s.dtype) for s in state.layout.specs), default=0.0)
    finite = np.abs(values[np.isfinite(values)])
    return float(epsilon * finite.max(initial=0.0))


def compare_runs(state: State, reverse: Reverse, first: list[Matrix], second: list[Matrix]) -> None:
    """Compare two computations of the analytical matrices."""
    for i, (one, two) in enumerate(zip(first, second, strict=True)):
        if np.array_equal(one, two):
            continue
        gap = _gap(one, two)
        if not (gap > state.options.nondet_tol).any():
            continue
        row, column = np.unravel_index(int(np.nanargmax(gap)), gap.shape)
        largest = float(gap[row, column])
        epsilon = max(
            machine_epsilon(state.checked[i].tensor.dtype),
            *(machine_epsilon(s.dtype) for s in state.layout.specs),
        )
        unit = epsilon * float(np.abs(one).max(initial=0.0))
        flat = int(state.rows[i][row])
        index = np.unravel_index(flat, state.checked[i].tensor.shape)
        where = f"{state.checked[i].name}[{', '.join(map(str, index))}]" if index else (
            state.checked[i].name)  # fmt: skip
        did = (
            f"ran backward twice with the same data; the gradient of {where} differed by "
            f"{largest:.3g}"
        )
        if largest <= ROUNDINGS * unit:
            state.notes.append(
                f"{did}, which is rounding: sums in changing order. Pass "
                f"nondet_tol={1.1 * largest:.2g} to allow it without this note."
            )
            continue
        before = _generator_states()
        reverse.vjp([reverse.zeros(n) for n in range(len(reverse.outputs))])
        used = _used_generator(before, _generator_states())
        if used is not None:
            code, why = "random", f"It draws random numbers from {used}."
        else:
            code, why = "not_reentrant", "It keeps state between calls."
        for output, pairs in enumerate(state.pairs):
            if (gap[:, state.blocks[output]] > state.options.nondet_tol).any():
                pairs[i].fail(
                    words.NON_DETERMINISTIC,
                    code,
                    f"Backward is not reentrant: {did}. {why} nondet_tol={1.1 * largest:.2g} would "
                    "allow it.",
                )


def _gap(one: Matrix, two: Matrix) -> Matrix:
    """Return the differences; nan counts as equal to nan."""
    with np.errstate(invalid="ignore"):
        result: Matrix = np.abs(one - two)
    result[np.isnan(one) & np.isnan(two) | (one == two)] = 0
    return result


def _generator_states() -> dict[str, Any]:
    """Return the states of the random generators that code usually draws from."""
    states: dict[str, Any] = {
        "numpy.random": repr(np.random.get_state(legacy=False)),  # noqa: NPY002 - user code may
        "random": random.getstate(),
    }
    ours = sys.modules.get("tensorplay.random")
    if ours is not None:
        states["tensorplay"] = repr(ours.default_generator.numpy.bit_generator.state)
    return states


def _used_generator(before: dict[str, Any], after: dict[str, Any]) -> str | None:
    for name, state in after.items():
        if before.get(name) != state:
            return f"tensorplay's generator ({name})" if name == "tensorplay" else name
    return None
