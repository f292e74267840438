"""Forward mode against differences."""

from __future__ import annotations

import numpy as np

from tensorplay._tensor import Tensor, wrap
from tensorplay.autograd.gradcheck import report as words
from tensorplay.autograd.gradcheck.analytical import forward_jacobian, run_forward
from tensorplay.autograd.gradcheck.state import State

__all__ = ["check_forward"]


def check_forward(state: State) -> None:
    """Compare the Jacobian matrices made of tangents with differences."""
    matrices = []
    for i, leaf in enumerate(state.checked):
        try:
            matrices.append(
                forward_jacobian(
                    state.call, leaf.tensor, state.layout, state.rows[i], state.flat_columns
                )
            )
        except NotImplementedError as error:
            state.fail_all(words.MISSING, "no_forward_formula", str(error))
            return
    state.compare_all(matrices, ", computed with forward mode AD")
    if state.options.check_undefined_grad:
        check_undefined_tangents(state)
    if state.options.check_grad_dtypes:
        check_tangent_types(state)


def _tangent(state: State, i: int) -> Tensor:
    tensor = state.checked[i].tensor
    rng = np.random.default_rng(4 + i)
    return wrap(rng.uniform(0.5, 2, tensor.shape).astype(tensor.dtype.numpy), tensor.dtype)


def check_undefined_tangents(state: State) -> None:
    """Check that a missing tangent counts as one of zeros."""
    if len(state.checked) == 1:
        return
    for i, leaf in enumerate(state.checked):
        tangent = _tangent(state, i)
        alone = run_forward(state.call, {id(leaf.tensor): tangent}, state.layout)
        zeros = {
            id(x.tensor): wrap(np.zeros(x.tensor.shape, x.tensor.dtype.numpy), x.tensor.dtype)
            for x in state.checked
        }
        zeros[id(leaf.tensor)] = tangent
        both = run_forward(state.call, zeros, state.layout)
        p = state.precisions[i]
        for n, (one, two) in enumerate(zip(alone, both, strict=True)):
            left = 0.0 if one is None else one
            right = 0.0 if two is None else two
            if not np.allclose(left, right, rtol=p.rtol, atol=p.atol, equal_nan=True):
                state.pairs[n][i].fail(
                    words.WRONG,
                    "forward_ad",
                    f"Mismatch in tangent values: with a tangent for {leaf.name} alone the "
                    "result differs from that with zero tangents for the other inputs.",
                )


def check_tangent_types(state: State) -> None:
    for i, leaf in enumerate(state.checked):
        found = run_forward(state.call, {id(leaf.tensor): _tangent(state, i)}, state.layout)
        for n, (tangent, spec) in enumerate(zip(found, state.layout.specs, strict=True)):
            if tangent is not None and tangent.dtype != spec.dtype.numpy:
                state.pairs[n][i].fail(
                    words.WRONG, "dtype",
                    f"Forward AD gradient has dtype mismatch: {tangent.dtype} for an output "
                    f"of {spec.dtype!r}.",
                )  # fmt: skip
