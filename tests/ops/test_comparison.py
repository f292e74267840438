"""Comparisons, logic and bits: foreign operands, types, special values, errors."""

from __future__ import annotations

import math
import operator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

import tensorplay as tp


@pytest.mark.parametrize("other", [None, "a", [1.0], object()])
def test_equality_with_foreign_objects_is_a_plain_bool(other: Any) -> None:
    x = tp.tensor([1.0])
    assert (x == other) is False
    assert (x != other) is True


@pytest.mark.parametrize("other", [None, "a"])
def test_order_with_foreign_objects_is_refused(other: Any) -> None:
    with pytest.raises(TypeError, match="not supported between instances"):
        _ = tp.tensor([1.0]) < other


@pytest.mark.parametrize("relation", ["eq", "ne", "lt", "le", "gt", "ge"])
def test_results_are_bools_and_never_require_grad(relation: str) -> None:
    x = tp.tensor([1.0, 2.0, 3.0], requires_grad=True)
    symbol = getattr(operator, relation)
    for other in (2, 2.0, tp.tensor([2.0]), np.array([2.0])):
        result = symbol(x, other)
        assert result.dtype is tp.bool
        assert not result.requires_grad
        assert result.tolist() == [symbol(v, 2.0) for v in (1.0, 2.0, 3.0)]
    assert symbol(2, x).tolist() == [symbol(2, v) for v in (1.0, 2.0, 3.0)]


def test_nan_is_unequal_to_itself() -> None:
    x = tp.tensor([math.nan])
    y = x.clone()
    assert (x == y).tolist() == [False]
    assert (x != y).tolist() == [True]
    assert not tp.equal(x, x)


@given(st.integers(-(10**20), 10**20), st.integers(0, 255))
def test_integers_out_of_range_compare_by_value(number: int, element: int) -> None:
    x = tp.tensor([element], dtype=tp.uint8)
    assert (x == number).item() == (element == number)
    assert (x < number).item() == (element < number)
    assert (number < x).item() == (number < element)


def test_in_place_comparison_writes_numbers_and_stops_the_gradient() -> None:
    x = tp.tensor([1.0, 3.0], requires_grad=True)
    y = x * 2
    y.gt_(4.0)
    assert y.tolist() == [0.0, 1.0]
    (g,) = tp.autograd.grad(y.sum(), [x])
    assert g.tolist() == [0.0, 0.0]


def test_closeness() -> None:
    x = tp.tensor([1.0, math.inf, math.nan, 1.0])
    y = tp.tensor([1.0 + 1e-6, math.inf, math.nan, 1.1])
    assert tp.isclose(x, y).tolist() == [True, True, False, False]
    assert tp.isclose(x, y, equal_nan=True).tolist() == [True, True, True, False]
    assert tp.allclose(x[:2], y[:2]) is True
    assert tp.allclose(x, y) is False
    assert (
        tp.isclose(tp.tensor([0], dtype=tp.uint8), tp.tensor([1], dtype=tp.uint8)).item() is False
    )
    big = tp.tensor([-math.inf])
    assert tp.isclose(big, -big).item() is False


def test_equal_compares_shapes_too() -> None:
    assert tp.equal(tp.zeros(2), tp.zeros(2)) is True
    assert tp.equal(tp.zeros(2), tp.zeros(1, 2)) is False


def test_classes_of_numbers() -> None:
    x = tp.tensor([0.0, math.inf, -math.inf, math.nan])
    assert tp.isnan(x).tolist() == [False, False, False, True]
    assert tp.isinf(x).tolist() == [False, True, True, False]
    assert tp.isfinite(x).tolist() == [True, False, False, False]
    assert tp.isfinite(tp.tensor([1, 2])).tolist() == [True, True]
    assert tp.isnan(tp.tensor([math.nan], dtype=tp.bfloat16)).tolist() == [True]
    assert tp.isinf(tp.tensor([complex(0, math.inf)])).tolist() == [True]


def test_logic_takes_every_type() -> None:
    x, y = tp.tensor([0.0, 2.0]), tp.tensor([1, 0])
    assert tp.logical_and(x, y).tolist() == [False, False]
    assert tp.logical_or(x, y).tolist() == [True, True]
    assert tp.logical_xor(x, True).tolist() == [True, False]
    assert tp.logical_not(x).tolist() == [True, False]


@pytest.mark.parametrize(
    ("call", "error", "phrase"),
    [
        (lambda: tp.tensor([1.0]) & 1, TypeError, "integer or bool"),
        (lambda: ~tp.tensor([1.0]), TypeError, "integer or bool"),
        (lambda: tp.tensor([True]) << 1, None, ""),
        (lambda: tp.tensor([1]) << -1, ValueError, "negative"),
        (lambda: tp.tensor([1.0]) << 1, TypeError, "integer"),
        (lambda: tp.tensor([1j]) < 1, TypeError, "complex"),
        (lambda: tp.zeros(2) == tp.zeros(3), RuntimeError, "must match the size"),
        (lambda: tp.equal(tp.zeros(2), [0.0]), TypeError, "'other'"),
    ],
)
def test_error_contract(call: Any, error: type[Exception] | None, phrase: str) -> None:
    if error is None:
        assert call().dtype is tp.int64  # promoted by the number
        return
    with pytest.raises(error, match=phrase) as caught:
        call()
    assert str(caught.value).startswith("[")
