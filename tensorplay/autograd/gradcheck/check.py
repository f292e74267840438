"""The check itself: what is compared with what, in which order, and with which verdict."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from tensorplay._tensor import Tensor
from tensorplay.autograd.engine import InvalidGradientError
from tensorplay.autograd.gradcheck import report as words
from tensorplay.autograd.gradcheck.analytical import Reverse, ReverseJacobian
from tensorplay.autograd.gradcheck.determinism import compare_runs, forward_is_repeatable
from tensorplay.autograd.gradcheck.fast import fast_reverse
from tensorplay.autograd.gradcheck.forward import check_forward
from tensorplay.autograd.gradcheck.points import allow_batches
from tensorplay.autograd.gradcheck.promises import (
    check_batched,
    check_linear,
    check_types,
    check_undefined,
)
from tensorplay.autograd.gradcheck.report import GradcheckReport
from tensorplay.autograd.gradcheck.state import State

__all__ = ["run_check"]


def run_check(state: State) -> GradcheckReport:
    """Run all comparisons.

    Raises
    ------
    AssertionError, ValueError, RuntimeError, …
        What the function or its formula raises, except where the check is about that.
    """
    outputs, recorded = state.begin()
    if forward_is_repeatable(state):
        if recorded and state.options.check_backward_ad:
            _check_reverse(state, outputs)
        elif not recorded:
            _expect_constant(state)
        if state.options.check_forward_ad:
            check_forward(state)
    return _report(state)


def _report(state: State) -> GradcheckReport:
    pairs = tuple(pair.report() for row in state.pairs for pair in row)
    verdict = words.worst_verdict([pair.verdict for pair in pairs])
    first = next((pair for pair in pairs if pair.verdict == verdict), None)
    message = "every gradient agrees with the numerical one."
    if verdict != words.OK and first is not None:
        message = first.message
    return GradcheckReport(verdict, pairs, message, tuple(dict.fromkeys(state.notes)))


def _check_reverse(state: State, outputs: Sequence[Tensor]) -> None:
    """Compare the gradients of reverse mode with differences, then check their other promises."""
    reverse = Reverse(outputs, [leaf.tensor for leaf in state.checked], state.layout)
    try:
        jacobian, compared = _jacobians(state, reverse)
    except NotImplementedError as error:
        state.fail_all(words.MISSING, "no_formula", str(error))
        state.cause = error
        return
    except InvalidGradientError as error:
        what = f"grad is incorrect {error.kind}"
        if error.kind == "size":
            what = "Analytical gradient has incorrect size"
        code = {"size": "shape", "type": "dtype", "device": "device"}[error.kind]
        state.fail_all(words.WRONG, code, f"{what}: {error}")
        state.cause = error
        return
    except Exception:
        # Where zeros help it was a missing gradient, which `check_undefined` words.
        if len(outputs) < 2 or not reverse.runs_on_zeros():
            raise
        reverse.fills = True
        if state.wide_reverse is not None:
            state.wide_reverse.fills = True
        jacobian, compared = _jacobians(state, reverse)
    if jacobian is not None and compared is not None:
        allow_batches(state, reverse.together)
        if not reverse.is_own:
            # Formulas without code of people keep no state: `check_linear` runs them again.
            again = reverse.jacobian(state.rows, state.columns)
            compare_runs(state, reverse, jacobian.matrices, again.matrices)
        if state.options.check_grad_dtypes:
            check_types(state, reverse)
        state.compare_all(compared.matrices, "")
        _find_missing(state, compared.defined)
        if compared is not jacobian:
            state.compare_narrow(jacobian.matrices, compared.matrices, "")
        check_linear(state, reverse, jacobian.matrices)
    if state.options.check_batched_grad:
        check_batched(state, reverse)
    if state.options.check_undefined_grad:
        check_undefined(state, reverse)


def _jacobians(
    state: State, reverse: Reverse
) -> tuple[ReverseJacobian | None, ReverseJacobian | None]:
    """Return the matrices by the formulas, and those compared with differences.

    The second are those in float64 where the formulas work in that. In fast mode there are none if
    all products agree.
    """
    if state.options.fast_mode:
        if fast_reverse(state, reverse):
            return None, None
        state.choose_elements()
    jacobian = compared = reverse.jacobian(state.rows, state.columns)
    if state.wide_reverse is not None:
        compared = state.wide_reverse.jacobian(state.rows, state.columns)
    return jacobian, compared


def _find_missing(state: State, defined: list[list[bool]]) -> None:
    """Say that a gradient never arrived, where that is what a mismatch is."""
    for n, row in enumerate(state.pairs):
        for i, pair in enumerate(row):
            if pair.code == "jacobian_mismatch" and not defined[i][n]:
                pair.verdict, pair.code = words.MISSING, "missing_gradient"
                pair.message += " No gradient arrived at this input at all: None was returned."


def _expect_constant(state: State) -> None:
    """No output requires grad: the function must not depend on the inputs."""
    state.choose_elements()
    zeros = [np.zeros((len(r), len(state.flat_columns)),
                      np.complex128 if a.dtype.kind == "c" else np.float64)
             for r, a in zip(state.rows, state.arrays, strict=True)]  # fmt: skip
    for i, analytical in enumerate(zeros):
        wanted = range(len(state.pairs))
        for n, block in zip(wanted, state.compare(i, analytical, wanted), strict=True):
            if block.verdict == words.WRONG:
                pair = state.pairs[n][i]
                pair.block = replace(block, cause=None)
                message = (
                    "Numerical gradient for function expected to be zero, as its output does "
                    "not require grad: the graph was cut, by detach() or by a step without "
                    "a gradient formula."
                )
                pair.fail(words.MISSING, "missing_gradient", message)
