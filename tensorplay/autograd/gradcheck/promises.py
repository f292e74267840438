"""What a gradient formula must keep besides its values: type, linearity, missing gradients."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from tensorplay._tensor import Tensor, wrap
from tensorplay.autograd.backward import grad
from tensorplay.autograd.gradcheck import report as words
from tensorplay.autograd.gradcheck.analytical import Reverse, raw_gradient_types
from tensorplay.autograd.gradcheck.numerical import random_direction
from tensorplay.autograd.gradcheck.state import State

__all__ = ["check_batched", "check_linear", "check_types", "check_undefined"]

Matrix = npt.NDArray[Any]


def check_types(state: State, reverse: Reverse) -> None:
    """Check that the formulas return gradients of the types of the inputs."""
    found = raw_gradient_types(reverse, [reverse.zeros(n) for n in range(len(state.pairs))])
    for i, (leaf, entries) in enumerate(zip(state.checked, found, strict=True)):
        for maker, kind in entries:
            if kind is not leaf.tensor.dtype:
                for row in state.pairs:
                    row[i].fail(
                        words.WRONG,
                        "dtype",
                        f"Gradient has dtype mismatch: {maker} returned {kind!r} for input "
                        f"{leaf.name} of {leaf.tensor.dtype!r}.",
                    )


def check_linear(state: State, reverse: Reverse, matrices: list[Matrix]) -> None:
    """Check that the gradient is linear in the incoming one: of zero it is zero, too."""
    count = len(reverse.outputs)
    # Formulas without code of people run for a mixed gradient only, which is their second run.
    zeros = [] if reverse.is_own else reverse.vjp([reverse.zeros(n) for n in range(count)])
    for i, found in enumerate(zeros):
        if found is not None and np.any(found._array != 0):
            for row in state.pairs:
                row[i].fail(
                    words.WRONG,
                    "not_linear_in_grad",
                    "backward not multiplied by grad_output: a zero gradient of the outputs "
                    f"gives a gradient of {state.checked[i].name} that is not zero.",
                )
    if sum(map(len, state.columns)) != state.layout.size:
        return  # a sample cannot tell
    for output, row in enumerate(state.pairs):
        columns = state.layout.columns(output)
        size = columns.stop - columns.start
        vector = random_direction(100 + output, size, is_complex=False) * size**0.5
        cotangents: list[Tensor | None] = [None] * count
        cotangents[output] = reverse.cotangent(output, vector)
        for i, found in enumerate(reverse.vjp(cotangents)):
            block = matrices[i][:, columns]
            expected = block @ vector
            got = 0.0 if found is None else found._array.reshape(-1)[state.rows[i]]
            p = state.precisions[i]
            with np.errstate(invalid="ignore"):
                gap = np.abs(expected - got)
            if (gap > p.atol).any() and (gap > p.atol + p.rtol * (np.abs(block) @ vector)).any():
                row[i].fail(
                    words.WRONG,
                    "not_linear_in_grad",
                    "backward not multiplied by grad_output: the gradient of "
                    f"{state.checked[i].name} is not linear in that of the output; for a mixed "
                    f"gradient it is off by {float(gap.max()):.3g}.",
                )


def check_undefined(state: State, reverse: Reverse) -> None:
    """Call the formulas without some of their gradients, which must count as zeros."""
    count = len(reverse.outputs)
    # Formulas without code of people are not called where no gradient arrived.
    cases = [] if reverse.is_own else [list(range(count))]
    if count > 1:
        cases += [[n] for n in range(count)]
    for undefined in cases:
        cotangents = [None if n in undefined else reverse.zeros(n) for n in range(count)]
        try:
            grads = reverse.vjp(cotangents, undefined=undefined)
        except Exception as error:  # noqa: BLE001 - `None * 2` raises what it likes
            message = (
                "Expected backward function to handle undefined output grads, but without the "
                f"gradient of output {undefined} it raised {type(error).__name__}: {error}. "
                "Test for None, or leave ctx.set_materialize_grads at True."
            )
            state.fail_all(words.WRONG, "undefined_grad", message)
            state.cause = error
            return
        for i, found in enumerate(grads):
            if found is not None and np.any(found._array != 0):
                for row in state.pairs:
                    row[i].fail(
                        words.WRONG,
                        "undefined_grad",
                        "Expected all input grads to be undefined or zero when all output "
                        f"grads are, got a gradient of {state.checked[i].name} that is not.",
                    )


def check_batched(state: State, reverse: Reverse) -> None:
    """Compare the gradients for a batch of output gradients with those for each of it."""
    rng = np.random.default_rng(3)
    inputs = [leaf.tensor for leaf in state.checked]
    for output, row in enumerate(state.pairs):
        columns = state.layout.columns(output)
        vectors = [rng.standard_normal(columns.stop - columns.start) for _ in range(2)]
        rows = [reverse.cotangent(output, v) for v in vectors]
        batch = wrap(np.stack([r._array for r in rows]), rows[0].dtype)
        out = reverse.outputs[output]
        options = {"retain_graph": True, "allow_unused": True}
        try:
            batched = grad(out, inputs, batch, is_grads_batched=True, **options)
        except Exception as error:  # noqa: BLE001 - that it raises is the finding
            for pair in row:
                pair.fail(words.WRONG, "batched",
                          f"While computing batched gradients, got: {error}")  # fmt: skip
            continue
        single = [grad(out, inputs, r, **options) for r in rows]
        for i, pair in enumerate(row):
            got = batched[i]
            expected = [s[i] for s in single]
            p = state.precisions[i]
            if got is None and all(e is None for e in expected):
                continue
            same = got is not None and all(
                e is not None and np.allclose(g, e._array, rtol=p.rtol, atol=p.atol)
                for g, e in zip(got._array, expected, strict=True)
            )
            if not same:
                pair.fail(words.WRONG, "batched", "Batched gradients differ from those "
                          "computed one at a time.")  # fmt: skip
