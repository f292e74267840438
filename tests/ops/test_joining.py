"""cat, stack and their relatives: types, empty parts, errors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

import tensorplay as tp


@given(st.data())
def test_cat_and_split_are_inverse(data: st.DataObject) -> None:
    shape = data.draw(st.lists(st.integers(0, 3), min_size=1, max_size=3))
    dim = data.draw(st.integers(-len(shape), len(shape) - 1))
    sizes = data.draw(st.lists(st.integers(0, 3), min_size=1, max_size=4))
    parts = []
    for number, size in enumerate(sizes):
        shape[dim] = size
        parts.append(tp.tensor(np.full(shape, float(number))))
    whole = tp.cat(parts, dim)
    np.testing.assert_array_equal(whole.numpy(), np.concatenate([p.numpy() for p in parts], dim))
    for part, again in zip(parts, whole.split(sizes, dim), strict=True):
        assert again.shape == part.shape
        np.testing.assert_array_equal(again.numpy(), part.numpy())


def test_types_are_promoted_by_our_lattice() -> None:
    whole = tp.cat([tp.ones(2, dtype=tp.int64), tp.ones(1, dtype=tp.float32)])
    assert whole.dtype is tp.float32
    assert tp.stack([tp.ones(2).bool(), tp.ones(2, dtype=tp.uint8)]).dtype is tp.uint8


def test_gradient_arrives_in_the_type_of_each_part() -> None:
    a = tp.ones(2, dtype=tp.float32).requires_grad_()
    b = tp.ones(1, dtype=tp.float64).requires_grad_()
    tp.cat([a, b]).sum().backward()
    assert a.grad is not None
    assert a.grad.dtype is tp.float32
    assert b.grad is not None
    assert b.grad.dtype is tp.float64


def test_only_the_wanted_part_needs_a_gradient() -> None:
    a, b = tp.ones(2), tp.ones(2).requires_grad_()
    (tp.cat([a, b]) * tp.arange(4)).sum().backward()
    assert b.grad is not None
    assert b.grad.tolist() == [2.0, 3.0]


def test_one_tensor_joins_to_a_copy() -> None:
    x = tp.ones(2)
    y = tp.cat([x])
    y.zero_()
    assert x.tolist() == [1.0, 1.0]


def test_rows_of_a_tensor_are_taken_as_a_list() -> None:
    x = tp.arange(6).reshape(3, 2)
    assert tp.cat(x).tolist() == [0, 1, 2, 3, 4, 5]
    assert tp.stack(x, 1).tolist() == x.t().tolist()


@pytest.mark.parametrize("device", ["cpu", "meta"])
@pytest.mark.parametrize(
    ("call", "kind", "text"),
    [
        (lambda x: tp.cat([]), ValueError, "non-empty list"),
        (lambda x: tp.stack([]), ValueError, "non-empty list"),
        (
            lambda x: tp.cat([x, x.t()]),
            RuntimeError,
            "Sizes of tensors must match except in dimension 0",
        ),
        (lambda x: tp.cat([x, x[0]]), RuntimeError, "same number of dimensions"),
        (lambda x: tp.cat([x[0, 0]]), RuntimeError, "zero-dimensional"),
        (lambda x: tp.cat([x], 2), IndexError, "Dimension out of range"),
        (lambda x: tp.stack([x, x.t()]), RuntimeError, "equal size"),
        (lambda x: tp.stack([x], 3), IndexError, r"range of \[-3, 2\]"),
        (lambda x: tp.cat(x, x), TypeError, "argument 'dim'"),
        (lambda x: tp.cat([x, 1]), TypeError, "argument 'tensors'.*got list of Tensor, int"),
    ],
)
def test_error(call: Any, kind: type[Exception], text: str, device: str) -> None:
    with pytest.raises(kind, match=text) as caught:
        call(tp.ones(2, 3).to(device))
    assert str(caught.value).startswith("[")
