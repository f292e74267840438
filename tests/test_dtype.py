"""Types of elements: promotion, casts, limits."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

import tensorplay as tp
from tensorplay._dtype import DTYPES

STORED = {tp.float8_e4m3fn, tp.float8_e4m3fnuz, tp.float8_e5m2, tp.float8_e5m2fnuz}
LONELY = {tp.uint16, tp.uint32, tp.uint64} | STORED
dtypes = st.sampled_from(DTYPES)
common = st.sampled_from([d for d in DTYPES if d not in LONELY])


# --- the table ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        (tp.uint8, tp.int8, tp.int16),
        (tp.uint8, tp.int16, tp.int16),
        (tp.uint8, tp.int64, tp.int64),
        (tp.int8, tp.int32, tp.int32),
        (tp.bool, tp.uint8, tp.uint8),
        (tp.bool, tp.float16, tp.float16),
        (tp.int64, tp.float16, tp.float16),
        (tp.int64, tp.float32, tp.float32),
        (tp.float16, tp.bfloat16, tp.float32),
        (tp.float16, tp.float32, tp.float32),
        (tp.bfloat16, tp.float64, tp.float64),
        (tp.float32, tp.complex64, tp.complex64),
        (tp.float64, tp.complex64, tp.complex128),
        (tp.int64, tp.complex64, tp.complex64),
        (tp.uint16, tp.float32, tp.float32),
        (tp.uint16, tp.bool, tp.uint16),
    ],
)
def test_two_types_meet_in_the_lattice(a: Any, b: Any, expected: Any) -> None:
    assert tp.promote_types(a, b) is expected
    assert tp.promote_types(b, a) is expected
    assert tp.result_type(tp.zeros(1, dtype=a), tp.zeros(1, dtype=b)) is expected


@pytest.mark.parametrize(
    ("x", "y", "expected"),
    [
        (tp.zeros(1), tp.zeros((), dtype=tp.float64), tp.float32),
        (tp.zeros(1, dtype=tp.int32), tp.zeros((), dtype=tp.float64), tp.float64),
        (tp.zeros(1, dtype=tp.int32), tp.zeros((), dtype=tp.int64), tp.int32),
        (tp.zeros(1, dtype=tp.uint8), tp.zeros((), dtype=tp.int8), tp.uint8),
        (tp.zeros(1, dtype=tp.bool), tp.zeros((), dtype=tp.int32), tp.int32),
        (tp.zeros(1, dtype=tp.float16), tp.zeros((), dtype=tp.complex128), tp.complex64),
        (tp.zeros((), dtype=tp.int32), 1.5, tp.float32),
        (tp.zeros(1, dtype=tp.int64), 1.5, tp.float32),
        (tp.zeros(1, dtype=tp.float16), 1.5, tp.float16),
        (tp.zeros(1, dtype=tp.bool), 1, tp.int64),
        (tp.zeros(1, dtype=tp.bool), True, tp.bool),
        (tp.zeros(1, dtype=tp.uint8), 300, tp.uint8),
        (tp.zeros(1, dtype=tp.float64), 1j, tp.complex128),
        (tp.zeros((), dtype=tp.float64), 1j, tp.complex128),
        (tp.zeros(1, dtype=tp.int64), 1j, tp.complex64),
        (tp.zeros((), dtype=tp.float64), tp.zeros((), dtype=tp.float32), tp.float64),
        (2, 1.5, tp.float32),
    ],
)
def test_dimensions_come_before_zero_dim_before_numbers(x: Any, y: Any, expected: Any) -> None:
    assert tp.result_type(x, y) is expected
    assert tp.result_type(y, x) is expected
    if isinstance(x, tp.Tensor):
        assert (x + y).dtype is expected
        assert (y + x).dtype is expected


def test_default_type_is_that_of_python_floats() -> None:
    tp.set_default_dtype(tp.float64)
    try:
        assert (tp.tensor([1]) + 1.5).dtype is tp.float64
        assert (tp.tensor([1]) / 2).dtype is tp.float64
        assert tp.tensor([1]).exp().dtype is tp.float64
        assert (tp.tensor([1]) + 1j).dtype is tp.complex128
        assert tp.tensor([0.5]).dtype is tp.float64
    finally:
        tp.set_default_dtype(tp.float32)
    assert (tp.tensor([1]) + 1.5).dtype is tp.float32
    assert tp.tensor([1]).exp().dtype is tp.float32
    with pytest.raises(TypeError, match="only floating-point types"):
        tp.set_default_dtype(tp.int64)


# --- properties -----------------------------------------------------------------------------------


@given(common, common)
def test_promotion_commutes_and_holds_both_kinds(a: Any, b: Any) -> None:
    result = tp.promote_types(a, b)
    assert result is tp.promote_types(b, a)
    assert result.category == max(a.category, b.category)
    assert tp.promote_types(result, a) is result


@given(common, common, common)
def test_promotion_is_associative_within_a_kind_of_exact_numbers(a: Any, b: Any, c: Any) -> None:
    left = tp.promote_types(tp.promote_types(a, b), c)
    right = tp.promote_types(a, tp.promote_types(b, c))
    # int64 with float16 is float16, so that mixed kinds may lose the order but never the kind.
    assert left.category == right.category
    if a.category == b.category == c.category != tp.float16.category:
        assert left is right


@given(dtypes, dtypes)
def test_wide_unsigned_and_short_floating_types_have_no_partner(a: Any, b: Any) -> None:
    if a is not b and a.category == b.category and LONELY & {a, b}:
        with pytest.raises(RuntimeError, match="not supported"):
            tp.promote_types(a, b)
        with pytest.raises(RuntimeError, match="not supported"):
            tp.zeros(1, dtype=a) + tp.zeros(1, dtype=b)
    else:
        assert tp.zeros(1, dtype=a).add(tp.zeros(1, dtype=b)).dtype is tp.promote_types(a, b)


@given(common, common, st.booleans(), st.booleans())
def test_operators_give_the_type_that_result_type_says(a: Any, b: Any, da: bool, db: bool) -> None:
    x = tp.ones(*((2,) if da else ()), dtype=a)
    y = tp.ones(*((2,) if db else ()), dtype=b)
    expected = tp.result_type(x, y)
    assert (x * y).dtype is expected
    assert (x.to("meta") * y.to("meta")).dtype is expected
    assert (x == y).dtype is tp.bool


@given(dtypes, dtypes)
def test_in_place_results_follow_can_cast(a: Any, b: Any) -> None:
    if tp.can_cast(a, b):
        assert a.category <= b.category
    else:
        assert a.category > b.category


# --- attributes -----------------------------------------------------------------------------------


@given(dtypes)
def test_every_type_describes_itself(d: Any) -> None:
    assert str(d) == f"tensorplay.{d.name}"
    assert d.itemsize == d.numpy.itemsize
    assert pickle.loads(pickle.dumps(d)) is d
    assert d.is_differentiable == (d.is_floating_point or d.is_complex)
    assert tp.zeros(1, dtype=d).numpy().dtype == d.numpy
    assert d.to_complex().is_complex
    assert not d.to_real().is_complex


def test_limits() -> None:
    assert tp.finfo(tp.float32).eps == float(np.finfo(np.float32).eps)
    assert tp.finfo(tp.bfloat16).bits == 16
    assert tp.finfo(tp.complex128).max == float(np.finfo(np.float64).max)
    assert (tp.iinfo(tp.int8).min, tp.iinfo(tp.uint16).max) == (-128, 65535)
    with pytest.raises(TypeError, match="iinfo"):
        tp.finfo(tp.int64)
    with pytest.raises(TypeError, match="finfo"):
        tp.iinfo(tp.float32)


# --- floating types of one byte -------------------------------------------------------------------


@pytest.mark.parametrize("d", sorted(STORED, key=str), ids=str)
def test_types_of_one_byte(d: Any) -> None:
    x = tp.tensor([1.0, -2.5, 0.25, 12.0]).to(d)
    assert (x.dtype, x.itemsize, x.nbytes) == (d, 1, 4)
    assert x.float().tolist() == [1.0, -2.5, 0.25, 12.0]
    assert str(x) == f"tensor([ 1.00, -2.50,  0.25, 12.00], dtype=tensorplay.{d.name})"
    assert (x + 1).dtype is d
    assert x.sort().values.tolist() == [-2.5, 0.25, 1.0, 12.0]
    assert tp.finfo(d).bits == 8
    assert tp.ones(64, dtype=d).sum().item() == 64.0  # added up in float32
    assert tp.ones(2, 8, dtype=d).matmul(tp.ones(8, 2, dtype=d)).tolist() == [[8.0] * 2] * 2
    y = tp.ones(3, dtype=d, requires_grad=True)
    (y * 2).float().sum().backward()
    assert y.grad is not None
    assert y.grad.dtype is d
