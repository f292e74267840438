"""Forward mode against differences."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tensorplay._tensor import Tensor, wrap
from tensorplay.autograd import forward_ad
from tensorplay.autograd.batched import Level, batch
from tensorplay.autograd.gradcheck import report as words
from tensorplay.autograd.gradcheck.analytical import forward_jacobian, run_forward, zero_tangent
from tensorplay.autograd.gradcheck.fast import fast_forward
from tensorplay.autograd.gradcheck.inputs import Leaf
from tensorplay.autograd.gradcheck.numerical import Layout, tensors_in
from tensorplay.autograd.gradcheck.state import State

__all__ = ["check_forward"]


def check_forward(state: State) -> None:
    """Compare the Jacobian matrices made of tangents with differences."""
    try:
        try:
            _compare(state)
        except NotImplementedError:
            raise
        except Exception:
            # Where zeros help it was a missing tangent, which `check_undefined_tangents` words.
            if len(state.checked) < 2 or not _runs_on_zeros(state):
                raise
            state.fills_tangents = True
            _compare(state)
    except NotImplementedError as error:
        state.fail_all(words.MISSING, "no_forward_formula", str(error))
        return
    _check_promises(state)


def _compare(state: State) -> None:
    wide = state.wide if state.wide_reverse is not None else None
    how = ", computed with forward mode AD"
    tensors = [leaf.tensor for leaf in state.checked]
    if state.options.fast_mode and fast_forward(state):
        return
    state.choose_elements()
    call = state.dual_call(state.call, tensors)
    matrices = compared = _matrices(state, call, tensors, state.layout)
    if wide is not None:
        call = state.dual_call(wide.call, wide.tensors)
        compared = _matrices(state, call, wide.tensors, wide.evaluate.layout)
    state.compare_all(compared, how)
    if wide is not None:
        state.compare_narrow(matrices, compared, how)


def _zeros(state: State) -> dict[int, Tensor]:
    return {id(leaf.tensor): zero_tangent(leaf.tensor) for leaf in state.checked}


def _runs_on_zeros(state: State) -> bool:
    """Return whether forward mode runs where no tangent is missing."""
    try:
        run_forward(state.call, _zeros(state), state.layout)
    except Exception:  # noqa: BLE001 - then it is not for want of a tangent
        return False
    return True


def _check_promises(state: State) -> None:
    """Check what tangents must keep besides their values."""
    if state.options.check_undefined_grad:
        check_undefined_tangents(state)
    if state.options.check_grad_dtypes:
        check_tangent_types(state)
    if state.options.check_batched_forward_grad:
        check_batched_tangents(state)


def _matrices(
    state: State, call: Callable[..., Any], tensors: Sequence[Tensor], layout: Layout
) -> list[Any]:
    columns = state.flat_columns
    found = []
    for tensor, rows, differences in zip(tensors, state.rows, state.differences, strict=True):
        # A function that gave the same for many points at once does so for many tangents.
        together = differences.together if differences.many is not None else 1
        found.append(forward_jacobian(call, tensor, layout, rows, columns, max(1, together)))
    return found


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
        try:
            alone = run_forward(state.call, {id(leaf.tensor): tangent}, state.layout)
        except Exception as error:  # noqa: BLE001 - `None * 2` raises what it likes
            message = (
                f"Expected jvp to handle undefined tangents, but with a tangent for {leaf.name} "
                f"alone it raised {type(error).__name__}: {error}. Test each tangent for None."
            )
            state.fail_all(words.WRONG, "undefined_grad", message)
            state.cause = error
            return
        both = run_forward(state.call, {**_zeros(state), id(leaf.tensor): tangent}, state.layout)
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
    """Check that the formulas return tangents of the types of the outputs.

    A tangent of another type is cast where it is attached, so the types before that are asked.
    """
    call = state.dual_call(state.call, [leaf.tensor for leaf in state.checked])
    for i, leaf in enumerate(state.checked):
        tangent = _tangent(state, i)

        def change(tensor: Tensor, leaf: Leaf = leaf, tangent: Tensor = tangent) -> Any:
            return forward_ad.make_dual(tensor, tangent) if tensor is leaf.tensor else tensor

        with forward_ad.dual_level():
            outputs = tensors_in(call(change))
            for n, spec in enumerate(state.layout.specs):
                given = forward_ad.given_tangent_dtype(outputs[state.layout.numbers[n]])
                if given is not spec.dtype:
                    state.pairs[n][i].fail(
                        words.WRONG, "dtype",
                        f"Forward AD gradient has dtype mismatch: {given!r} for an output of "
                        f"{spec.dtype!r}.",
                    )  # fmt: skip


def check_batched_tangents(state: State) -> None:
    """Compare the tangents for a batch of tangents of an input with those for each of it."""
    call = state.dual_call(state.call, [leaf.tensor for leaf in state.checked])
    for i, leaf in enumerate(state.checked):
        spec = leaf.tensor
        rng = np.random.default_rng(7 + i)
        array = rng.standard_normal((2, *spec.shape)).astype(spec.dtype.numpy)
        single = [
            run_forward(call, {id(leaf.tensor): wrap(row, spec.dtype)}, state.layout)
            for row in array
        ]
        level = Level(2)
        try:
            tangent = batch(wrap(array, spec.dtype), (level,))
            batched = run_forward(call, {id(leaf.tensor): tangent}, state.layout, level)
        except Exception as error:  # noqa: BLE001 - that it raises is the finding
            for row in state.pairs:
                row[i].fail(words.WRONG, "batched",
                            f"While computing batched tangents, got: {error}")  # fmt: skip
            continue
        p = state.precisions[i]
        for n, row in enumerate(state.pairs):
            expected: list[Any] = [0.0 if s[n] is None else s[n] for s in single]
            got: Any = [0.0, 0.0] if batched[n] is None else batched[n]
            if not all(
                np.allclose(one, two, rtol=p.rtol, atol=p.atol, equal_nan=True)
                for one, two in zip(got, expected, strict=True)
            ):
                row[i].fail(words.WRONG, "batched", "Batched tangents differ from those "
                            "computed one at a time.")  # fmt: skip
