"""Wrong gradients in narrow types are found: in float64 where the function works in that."""

from __future__ import annotations

import pytest

import tensorplay as tp
from tensorplay.autograd import Function, gradcheck_report

NARROW = [tp.float32, tp.float16, tp.bfloat16]
dtypes = pytest.mark.parametrize("dtype", NARROW, ids=str)
FAST = pytest.mark.parametrize("fast_mode", [False, True])


def square(slope, only=None):
    """Return ``x * x`` with ``g * slope(x)`` as its gradient, of type `only` if that is given."""

    class Square(Function):
        @staticmethod
        def forward(ctx, x):
            if only is not None and x.dtype is not only:
                message = f"expected {only}"
                raise TypeError(message)
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        def backward(ctx, g):
            (x,) = ctx.saved_tensors
            return g * slope(x)

    return Square.apply


def point(dtype):
    return tp.tensor([1, 0.5, 2], dtype=dtype, requires_grad=True)


@FAST
@dtypes
@pytest.mark.parametrize("factor", [3.0, 2.2, 2.02, 1.5, -2.0, 0.0])
def test_wrong_factors(dtype, factor, fast_mode):
    report = gradcheck_report(square(lambda x: factor * x), (point(dtype),), fast_mode=fast_mode)
    assert report.verdict == "wrong"
    assert "depends on the type" not in report.message


@FAST
@dtypes
def test_right_ones(dtype, fast_mode):
    def mixed(x):
        return (x * x).exp().sum() + x.sin() / 3

    for function in (square(lambda x: 2 * x), mixed):
        assert gradcheck_report(function, (point(dtype),), fast_mode=fast_mode)


@dtypes
def test_a_kernel_of_one_type(dtype):
    def verdict(factor):
        function = square(lambda x: factor * x, only=dtype)
        return gradcheck_report(function, (point(dtype),)).verdict

    assert verdict(2.0) == "ok"
    assert verdict(3.0) == "wrong"
    assert verdict(-2.0) == "wrong"
    assert verdict(0.0) == "wrong"


@dtypes
def test_a_formula_that_is_wrong_in_one_type_alone(dtype):
    function = square(lambda x: (3 if x.dtype is dtype else 2) * x)
    report = gradcheck_report(function, (point(dtype),))
    assert report.verdict == "wrong"
    assert "depends on the type" in report.message


def test_a_formula_that_takes_no_float64():
    def slope(x, factor):
        if x.dtype is tp.float64:
            raise TypeError
        return factor * x

    assert gradcheck_report(square(lambda x: slope(x, 2)), (point(tp.float32),))
    assert gradcheck_report(square(lambda x: slope(x, 3)), (point(tp.bfloat16),)).verdict == "wrong"


@dtypes
def test_forward_mode(dtype):
    class Tangents(Function):
        factor = 2.0

        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            ctx.save_for_forward(x)
            return x * x

        @staticmethod
        def backward(ctx, g):
            return g * 2 * ctx.saved_tensors[0]

        @staticmethod
        def jvp(ctx, t):
            return t * Tangents.factor * ctx.saved_tensors[0]

    assert gradcheck_report(Tangents.apply, (point(dtype),), check_forward_ad=True)
    Tangents.factor = 2.2
    report = gradcheck_report(Tangents.apply, (point(dtype),), check_forward_ad=True)
    assert (report.verdict, report.code) == ("wrong", "forward_ad")


def test_gradients_that_leave_the_type_are_not_called_wrong():
    x = tp.tensor([200.0], dtype=tp.float16, requires_grad=True)
    report = gradcheck_report(lambda t: t * t * 0.5 * 600 / 600, (x,))
    assert report.verdict != "wrong"
