"""Points where there is no derivative: corners, jumps, vertical slopes, edges of the domain."""

from __future__ import annotations

import pytest

import tensorplay as tp
from tensorplay.autograd import Function, gradcheck_report


def at(*values):
    return tp.tensor(values, dtype=tp.float64, requires_grad=True)


NOWHERE = {
    "relu": (tp.relu, (0.0, 0.0)),
    "sqrt at its edge": (tp.sqrt, (0.0, 0.0)),
    "sqrt beside a good point": (tp.sqrt, (0.0, 2.0)),
    "asin at its edge": (tp.asin, (1.0, 0.5)),
    "a power at its edge": (lambda x: x**1.5, (0.0, 1.0)),
    "round": (tp.round, (0.5, 1.2)),
    "floor": (tp.floor, (1.0, 1.2)),
    "sign": (tp.sign, (0.0, 1.2)),
    "a saw": (lambda x: x - x.floor(), (1.0, 1.5)),
    "a jump of where": (lambda x: tp.where(x > 0, x + 1, x), (0.0, 1.0)),
    "a vertical slope": (lambda x: x.abs() ** (1 / 3) * x.sign(), (0.0, 1.0)),
}


@pytest.mark.parametrize("name", NOWHERE)
def test_no_derivative_here(name):
    function, point = NOWHERE[name]
    report = gradcheck_report(function, (at(*point),))
    assert (report.verdict, report.code) == (
        "not_differentiable_here",
        "not_differentiable",
    )


@pytest.mark.parametrize(("function", "point"), [(tp.log, 0.0), (tp.reciprocal, 0.0)])
def test_poles_have_nothing_to_compare_with(function, point):
    report = gradcheck_report(function, (at(point, 1.0),))
    assert (report.verdict, report.code) == ("inconclusive", "not_finite")


def test_the_right_side_of_an_edge_is_tried():
    report = gradcheck_report(tp.sqrt, (at(0.0, 0.0, 0.0, 0.0, 0.0, 0.0),))
    assert "At a point nearby the gradient is right" in report.message

    class Wrong(Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x.sqrt()

        @staticmethod
        def backward(ctx, g):
            (x,) = ctx.saved_tensors
            return g / x.sqrt()

    report = gradcheck_report(Wrong.apply, (at(0.0, 0.0, 0.0),))
    assert report.verdict == "wrong"


def test_infinite_formulas_of_smooth_functions_are_wrong():
    class Nan(Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, g):
            return g * float("nan")

    report = gradcheck_report(Nan.apply, (at(0.0, 1.0),))
    assert report.verdict == "wrong"


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e6])
def test_steep_and_curved_functions_are_no_jumps(scale):
    for function in (tp.exp, tp.sin, lambda x: x * x * x, lambda x: (x * 30).tanh()):
        assert gradcheck_report(lambda x, f=function: f(x) * scale, (at(0.0, 0.3, 2.0),))
