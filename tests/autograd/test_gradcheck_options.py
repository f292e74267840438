"""Steps and tolerances with which a check could say nothing are refused by name."""

from __future__ import annotations

import math

import pytest

import tensorplay as tp
from tensorplay.autograd import gradcheck, gradcheck_report, gradgradcheck


def square(x):
    return x * x


@pytest.mark.parametrize("check", [gradcheck, gradcheck_report, gradgradcheck])
@pytest.mark.parametrize(
    ("argument", "value"),
    [
        *[("eps", v) for v in (0, 0.0, -1e-6, math.nan, math.inf)],
        *[(a, v) for a in ("atol", "rtol", "nondet_tol") for v in (-1e-9, math.nan, math.inf)],
    ],
)
def test_numbers_that_make_no_check(check, argument, value):
    x = tp.ones(2, dtype=tp.float64, requires_grad=True)
    with pytest.raises(ValueError, match=rf"^\[gradcheck\] argument '{argument}': expected"):
        check(square, (x,), **{argument: value})


@pytest.mark.parametrize("argument", ["eps", "atol", "rtol", "nondet_tol"])
def test_what_is_no_number(argument):
    x = tp.ones(2, dtype=tp.float64, requires_grad=True)
    with pytest.raises(TypeError, match=rf"^\[gradcheck\] argument '{argument}': .* got str"):
        gradcheck(square, (x,), **{argument: "1e-3"})


def test_zero_tolerances_are_numbers():
    x = tp.ones(2, dtype=tp.float64, requires_grad=True)
    assert gradcheck(lambda t: t * 1, (x,), rtol=0, nondet_tol=0)


def test_the_step_of_a_numerical_jacobian():
    x = tp.ones(2, dtype=tp.float64)
    jacobian = tp.autograd.gradcheck.get_numerical_jacobian_wrt_specific_input
    with pytest.raises(ValueError, match="argument 'eps'"):
        jacobian(square, 0, (x,), square(x), 0.0)
