"""Arithmetic and elementwise functions: numbers, errors, special values, accuracy."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st
from hypothesis.extra import numpy as hnp

import tensorplay as tp

INT = tp.tensor([4, -3])


# --- numbers beside tensors -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        (lambda x: x + 1, [3.0, 4.0]),
        (lambda x: 1 - x, [-1.0, -2.0]),
        (lambda x: 6 / x, [3.0, 2.0]),
        (lambda x: x**2, [4.0, 9.0]),
        (lambda x: 2**x, [4.0, 8.0]),
        (lambda x: x // 2, [1.0, 1.0]),
        (lambda x: 7 // x, [3.0, 2.0]),
        (lambda x: x % 2, [0.0, 1.0]),
        (lambda x: 7 % x, [1.0, 1.0]),
        (lambda x: abs(-x), [2.0, 3.0]),
        (lambda x: -x, [-2.0, -3.0]),
    ],
)
def test_python_operators_take_numbers_on_both_sides(expression: Any, expected: Any) -> None:
    assert expression(tp.tensor([2.0, 3.0])).tolist() == expected


def test_operators_of_integers_and_bools() -> None:
    x = tp.tensor([6, 5])
    assert (x & 4).tolist() == [4, 4]
    assert (1 | x).tolist() == [7, 5]
    assert (x ^ 1).tolist() == [7, 4]
    assert (~x).tolist() == [-7, -6]
    assert (x << 1).tolist() == [12, 10]
    assert (x >> 1).tolist() == [3, 2]
    assert (~tp.tensor([True, False])).tolist() == [False, True]


def test_augmented_assignment_writes_in_place() -> None:
    x = tp.tensor([2.0, 3.0])
    same = x
    x += 1
    x *= 2
    x -= 1
    x /= 5
    x **= 2
    assert x is same
    np.testing.assert_allclose(x.numpy(), [1.0, 1.96], rtol=1e-6)


def test_arrays_on_either_side_give_tensors() -> None:
    x = tp.tensor([1.0, 2.0])
    for result in (x + np.array([1.0, 1.0]), np.array([1.0, 1.0]) + x):
        assert isinstance(result, tp.Tensor)
        assert result.tolist() == [2.0, 3.0]


@pytest.mark.parametrize("other", ["a", None, [1.0], object()])
def test_foreign_operands_are_refused_by_python(other: Any) -> None:
    with pytest.raises(TypeError, match="unsupported operand"):
        tp.tensor([1.0]) + other


# --- the error contract ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "error", "phrase"),
    [
        (lambda: INT // 0, RuntimeError, "ZeroDivisionError"),
        (lambda: INT % 0, RuntimeError, "ZeroDivisionError"),
        (lambda: tp.fmod(INT, 0), RuntimeError, "ZeroDivisionError"),
        (lambda: tp.div(INT, 0, rounding_mode="trunc"), RuntimeError, "ZeroDivisionError"),
        (lambda: INT % tp.tensor([1, 0]), RuntimeError, "ZeroDivisionError"),
        (lambda: INT**-1, RuntimeError, "negative integer powers"),
        (lambda: INT ** tp.tensor([2, -1]), RuntimeError, "negative integer powers"),
        (lambda: tp.tensor([True]) - tp.tensor([True]), RuntimeError, r"Use the `\^`"),
        (lambda: -tp.tensor([True]), RuntimeError, "logical_not"),
        (lambda: INT.clone().add_(1.5), RuntimeError, "can't be cast to the desired output type"),
        (lambda: tp.add(INT, INT, alpha=1.5), RuntimeError, "alpha"),
        (lambda: tp.div(INT, 2, rounding_mode="up"), RuntimeError, "rounding_mode"),
        (lambda: tp.zeros(2) + tp.zeros(3), RuntimeError,
         r"must match the size of tensor b \(3\) at non-singleton dimension 0"),
        (lambda: tp.zeros(3).add_(tp.zeros(2, 3)), RuntimeError, "shape"),
        (lambda: tp.zeros(2).clamp(), ValueError, "at least one"),
        (lambda: tp.maximum(tp.tensor([1j]), 0), TypeError, "complex"),
        (lambda: tp.tensor([1j]).floor(), TypeError, "complex"),
        (lambda: tp.tensor([1.0]).imag, TypeError, "complex"),
        (lambda: tp.tensor([True]).relu(), TypeError, "bool"),
        (lambda: tp.gelu(tp.zeros(2), approximate="no"), ValueError, "approximate"),
        (lambda: tp.exp([1.0]), TypeError, r"tensorplay.tensor\(x\)"),
        (lambda: tp.exp(np.zeros(2)), TypeError, r"tensorplay.from_numpy\(x\)"),
    ],
)  # fmt: skip
def test_error_contract(call: Any, error: type[Exception], phrase: str) -> None:
    with pytest.raises(error, match=phrase) as caught:
        call()
    assert str(caught.value).startswith("[")


def test_division_of_floats_by_zero_follows_the_standard() -> None:
    x = tp.tensor([1.0, -1.0, 0.0])
    np.testing.assert_array_equal((x / 0).numpy(), [math.inf, -math.inf, math.nan])
    np.testing.assert_array_equal((x // 0).numpy(), [math.inf, -math.inf, math.nan])
    assert np.isnan((x % 0).numpy()).all()


def test_integers_wrap_as_in_c() -> None:
    x = tp.tensor([250], dtype=tp.uint8)
    assert (x + 300).tolist() == [(250 + 300) % 256]
    assert (x + 300).dtype is tp.uint8
    assert (tp.tensor([127], dtype=tp.int8) + 1).tolist() == [-128]


# --- types of results -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        (lambda: tp.tensor([True]) + 1, tp.int64),
        (lambda: INT + 1.5, tp.float32),
        (lambda: INT / INT, tp.float32),
        (lambda: tp.div(INT, 2, rounding_mode="floor"), tp.int64),
        (INT.exp, tp.float32),
        (INT.square, tp.int64),
        (lambda: tp.tensor([1j]).abs(), tp.float32),
        (lambda: tp.tensor([1.0], dtype=tp.float64) * 1j, tp.complex128),
        (lambda: tp.tensor([1.0], dtype=tp.float16).exp(), tp.float16),
        (lambda: tp.tensor([1.0], dtype=tp.bfloat16).erf(), tp.bfloat16),
        (lambda: tp.tensor([1.0], dtype=tp.float32).erfc(), tp.float32),
        (lambda: INT.clamp(0, 2.5), tp.float32),
        (lambda: tp.tensor([1.0]) * tp.tensor(2.0, dtype=tp.float64), tp.float32),
    ],
)
def test_type_of_the_result(call: Any, expected: Any) -> None:
    assert call().dtype is expected


# --- powers ---------------------------------------------------------------------------------------


def test_zero_to_the_zero_and_its_gradients() -> None:
    x = tp.tensor([0.0, 2.0], dtype=tp.float64, requires_grad=True)
    n = tp.tensor([0.0, 0.0], dtype=tp.float64, requires_grad=True)
    y = x**n
    assert y.tolist() == [1.0, 1.0]
    gx, gn = tp.autograd.grad(y.sum(), [x, n])
    assert gx.tolist() == [0.0, 0.0]
    np.testing.assert_allclose(gn.numpy(), [0.0, math.log(2)])
    (gx,) = tp.autograd.grad((x**0).sum(), [x])
    assert gx.tolist() == [0.0, 0.0]


def test_power_of_a_number_has_the_gradient_of_its_exponent() -> None:
    n = tp.tensor([0.0, 1.0, 3.0], dtype=tp.float64, requires_grad=True)
    (g,) = tp.autograd.grad((2**n).sum(), [n])
    np.testing.assert_allclose(g.numpy(), math.log(2) * 2.0 ** np.array([0, 1, 3]))
    (g,) = tp.autograd.grad((0**n).sum(), [n])
    assert g.tolist() == [0.0, 0.0, 0.0]


def test_square_by_power_is_differentiable_at_zero_to_second_order() -> None:
    x = tp.tensor([0.0], dtype=tp.float64, requires_grad=True)
    (first,) = tp.autograd.grad((x**2).sum(), [x], create_graph=True)
    (second,) = tp.autograd.grad(first.sum(), [x])
    assert first.tolist() == [0.0]
    assert second.tolist() == [2.0]


# --- gradients at kinks ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("function", "at", "expected"),
    [
        (tp.abs, 0.0, 0.0),
        (tp.relu, 0.0, 0.0),
        (tp.sgn, 0.0, 0.0),
        (lambda x: tp.clamp(x, 0.0, 1.0), 1.0, 1.0),
        (lambda x: tp.clamp(x, 0.0, 1.0), 1.5, 0.0),
        (lambda x: tp.maximum(x, 0.5), 0.5, 0.5),
        (lambda x: tp.minimum(0.5, x), 0.5, 0.5),
        (lambda x: tp.fmax(x, math.nan), 1.0, 1.0),
        (lambda x: tp.hypot(x, x * 0), 0.0, 0.0),
        (lambda x: tp.xlogy(x, 0.0), 0.0, 0.0),
        (tp.nan_to_num, math.inf, 0.0),
        (tp.round, 0.3, 0.0),
    ],
)
def test_gradient_at_a_kink(function: Any, at: float, expected: float) -> None:
    x = tp.tensor([at], dtype=tp.float64, requires_grad=True)
    (g,) = tp.autograd.grad(function(x).sum(), [x])
    assert g.tolist() == [expected]


def test_masked_gradients_do_not_turn_infinity_into_nan() -> None:
    x = tp.tensor([-1.0, 1.0], requires_grad=True)
    (g,) = tp.autograd.grad(x.relu(), [x], tp.tensor([math.inf, 1.0]))
    assert g.tolist() == [0.0, 1.0]


def test_tied_operands_share_the_gradient() -> None:
    x = tp.tensor([1.0, 2.0], requires_grad=True)
    y = tp.tensor([1.0, 1.0], requires_grad=True)
    gx, gy = tp.autograd.grad(tp.maximum(x, y).sum(), [x, y])
    assert gx.tolist() == [0.5, 1.0]
    assert gy.tolist() == [0.5, 0.0]


# --- accuracy and range ---------------------------------------------------------------------------


@given(st.floats(-27, 27))
def test_error_function_agrees_with_the_c_library(x: float) -> None:
    t = tp.tensor([x], dtype=tp.float64)
    np.testing.assert_allclose(t.erf().item(), math.erf(x), rtol=5e-16, atol=1e-320)
    np.testing.assert_allclose(t.erfc().item(), math.erfc(x), rtol=3e-15, atol=1e-300)


def test_error_function_of_special_values() -> None:
    x = tp.tensor([0.0, -0.0, math.inf, -math.inf, math.nan, 1e-300], dtype=tp.float64)
    np.testing.assert_array_equal(
        x.erf().numpy(), [0.0, -0.0, 1.0, -1.0, math.nan, 2 / math.sqrt(math.pi) * 1e-300]
    )
    assert np.signbit(x.erf().numpy()[1])
    np.testing.assert_array_equal(x.erfc().numpy(), [1.0, 1.0, 0.0, 2.0, math.nan, 1.0])


def test_nothing_overflows_on_the_way() -> None:
    big = tp.tensor([-1000.0, 1000.0])
    assert big.sigmoid().tolist() == [0.0, 1.0]
    assert tp.softplus(big).tolist() == [0.0, 1000.0]
    assert tp.silu(big).tolist() == [0.0, 1000.0]
    assert tp.logaddexp(big, big).numpy() == pytest.approx([-1000 + math.log(2), 1000.6931])
    assert tp.gelu(tp.tensor([-1e4, 1e4])).tolist() == [0.0, 1e4]


@pytest.mark.parametrize("d", [tp.float16, tp.float32, tp.float64], ids=str)
@pytest.mark.parametrize("compiled", [False, True])
def test_gradient_of_gelu_far_from_zero(d: tp.dtype, compiled: bool) -> None:
    far = [300.0, 1e4, 6e4, *([1e19, 1e30] if d is not tp.float16 else [])]
    x = tp.tensor([*far, *(-v for v in far)], dtype=d, requires_grad=True)

    def f(x: tp.Tensor) -> tp.Tensor:
        return tp.gelu(x, approximate="tanh")

    (tp.compile(f) if compiled else f)(x).sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [1.0] * len(far) + [0.0] * len(far)


def test_small_gelu_keeps_its_digits() -> None:
    x = tp.tensor([-10.0], dtype=tp.float64)
    assert tp.gelu(x).item() == pytest.approx(-10 * math.erfc(10 / math.sqrt(2)) / 2, rel=1e-13)


# --- properties -----------------------------------------------------------------------------------


@given(hnp.mutually_broadcastable_shapes(num_shapes=2, max_dims=3, max_side=3))
def test_broadcasting_is_numpys_and_its_gradient_sums(shapes: Any) -> None:
    a, b = (tp.ones(s, dtype=tp.float64, requires_grad=True) for s in shapes.input_shapes)
    y = a + 2 * b
    assert tuple(y.shape) == shapes.result_shape
    ga, gb = tp.autograd.grad(y.sum(), [a, b])
    assert ga.shape == a.shape
    assert gb.shape == b.shape
    count = math.prod(shapes.result_shape)
    if a.numel() and b.numel():
        np.testing.assert_array_equal(ga.numpy(), count / a.numel())
        np.testing.assert_array_equal(gb.numpy(), 2 * count / b.numel())


@given(
    hnp.arrays(np.int64, 4, elements=st.integers(-50, 50)),
    hnp.arrays(np.int64, 4, elements=st.integers(-50, 50).filter(bool)),
)
def test_quotient_and_remainder_of_integers_are_pythons(a: Any, b: Any) -> None:
    x, y = tp.from_numpy(a), tp.from_numpy(b)
    pairs = list(zip(a.tolist(), b.tolist(), strict=True))
    assert (x // y).tolist() == [p // q for p, q in pairs]
    assert (x % y).tolist() == [p % q for p, q in pairs]
    assert tp.div(x, y, rounding_mode="trunc").tolist() == [math.trunc(p / q) for p, q in pairs]
    assert tp.fmod(x, y).tolist() == [int(math.fmod(p, q)) for p, q in pairs]


@given(st.integers(-400, 400), st.integers(0, 255))
def test_python_integers_wrap_into_the_tensors_type(number: int, element: int) -> None:
    result = tp.tensor([element], dtype=tp.uint8) + number
    assert result.dtype is tp.uint8
    assert result.item() == (element + number) % 256
