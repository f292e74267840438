"""Order: ties, NaN, narrow types and the errors."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st
from hypothesis.extra import numpy as hnp

import tensorplay as tp

NAN = math.nan


@given(
    hnp.arrays(np.float64, hnp.array_shapes(min_dims=1, max_dims=3, min_side=1, max_side=5),
               elements=st.sampled_from([-1.0, 0.0, 2.0, math.inf, NAN])),
    st.booleans(), st.data(),
)  # fmt: skip
def test_sort_keeps_the_order_of_equal_elements(x: Any, descending: bool, data: Any) -> None:
    dim = data.draw(st.integers(-x.ndim, x.ndim - 1))
    values, indices = tp.from_numpy(x).sort(dim, descending)
    lines = np.moveaxis(x, dim, -1).reshape(-1, x.shape[dim])
    places = np.moveaxis(indices.numpy(), dim, -1).reshape(lines.shape)
    rank = np.where(np.isnan(lines), np.inf, np.where(lines == math.inf, 9.0, lines))
    for key, place in zip(rank, places, strict=True):
        wanted = sorted(range(len(key)), key=lambda i, k=key: (-k[i] if descending else k[i], i))
        assert place.tolist() == wanted
    np.testing.assert_array_equal(values.numpy(), np.take_along_axis(x, indices.numpy(), dim))


@pytest.mark.parametrize("d", [tp.uint8, tp.bool, tp.int32, tp.float16, tp.bfloat16], ids=str)
def test_sort_of_other_types(d: Any) -> None:
    x = tp.tensor([1, 0, 1, 0]).to(d)
    found = x.sort(descending=True)
    assert found.values.dtype is d
    assert found.values.tolist() == [1, 1, 0, 0]
    assert found.indices.tolist() == [0, 2, 1, 3]


def test_bfloat16_sorts_nan_last() -> None:
    x = tp.tensor([NAN, 1.0, -2.0]).bfloat16()
    assert x.argsort().tolist() == [2, 1, 0]
    assert x.unique().tolist()[:2] == [-2.0, 1.0]


def test_results_have_names() -> None:
    x = tp.tensor([3.0, 1.0, 2.0])
    assert x.topk(2).values.tolist() == [3.0, 2.0]
    assert tp.kthvalue(x, 2).indices.item() == 2
    assert x.median(0).values.item() == 2.0
    assert x.median().item() == 2.0


@given(st.integers(1, 40), st.integers(0, 10), st.booleans())
def test_topk_is_the_head_of_sort(n: int, k: int, largest: bool) -> None:
    x = tp.from_numpy(np.random.default_rng(n).permutation(n).astype(float))
    k = min(k, n)
    values, indices = x.topk(k, largest=largest)
    assert values.tolist() == x.sort(descending=largest).values.tolist()[:k]
    assert x[indices].tolist() == values.tolist()


def test_nan_is_the_median_and_the_largest() -> None:
    x = tp.tensor([1.0, NAN, 3.0])
    assert math.isnan(x.median().item())
    assert x.median(0).indices.item() == 1
    assert math.isnan(x.topk(1).values.item())
    assert math.isnan(tp.tensor([]).median().item())


def test_unique() -> None:
    x = tp.tensor([2, 1, 2])
    assert tp.unique(x).tolist() == [1, 2]
    values, inverse, counts = x.unique(return_inverse=True, return_counts=True)
    assert values[inverse].tolist() == x.tolist()
    assert counts.tolist() == [1, 2]
    y = tp.tensor([1.0, 1.0], requires_grad=True)
    y.unique().sum().backward()
    assert y.grad is not None
    assert y.grad.tolist() == [1.0, 0.0]


def test_where_of_a_condition() -> None:
    mask = tp.tensor([[True, False], [True, True]])
    rows, columns = tp.where(mask)
    assert rows.tolist() == [0, 1, 1]
    assert columns.tolist() == [0, 0, 1]


def test_integers_and_numbers_have_places() -> None:
    assert tp.searchsorted(tp.tensor([1, 3]), 2.5).item() == 1
    assert tp.bucketize(3, tp.tensor([1, 3]), right=True).item() == 2
    assert tp.searchsorted(tp.tensor([1, 3]), tp.tensor([1]), out_int32=True).dtype is tp.int32
    assert tp.isin(2, tp.tensor([1, 2])).item() is True


X = tp.ones(2, 3)


@pytest.mark.parametrize(
    ("call", "kind", "text"),
    [
        (lambda: X.sort(2), IndexError, "Dimension out of range"),
        (lambda: X.cfloat().sort(), TypeError, "no order"),
        (lambda: X.topk(4), RuntimeError, "selected index k out of range"),
        (lambda: X.topk(-1), RuntimeError, "selected index k out of range"),
        (lambda: X.kthvalue(0), RuntimeError, "selected number k out of range"),
        (lambda: tp.ones(0, 2).median(0), IndexError, "non-zero size"),
        (lambda: tp.ones(0).long().median(), IndexError, "no median"),
        (lambda: X.cfloat().unique(), TypeError, "no order"),
        (lambda: X.to("meta").unique(), NotImplementedError, "number of different"),
        (lambda: tp.unique(3), TypeError, "expected Tensor, got int"),
        (lambda: tp.where(X > 0, X), TypeError, "Give both"),
        (lambda: tp.where([True]), TypeError, "condition"),
        (lambda: tp.searchsorted(tp.tensor(1.0), X), RuntimeError, "at least 1 dimension"),
        (lambda: tp.searchsorted(X, tp.ones(3, 3)), RuntimeError, "must match"),
        (lambda: tp.searchsorted(X[0], X.double()), TypeError, "same dtype"),
        (lambda: tp.searchsorted(X[0], X, side="up"), ValueError, "side"),
        (lambda: tp.searchsorted(X[0], X, right=True, side="left"), RuntimeError, "opposites"),
        (lambda: tp.searchsorted(X[0], X, sorter=tp.tensor([0])), RuntimeError, "sorter"),
        (lambda: tp.searchsorted(X[0], X, sorter=X[0]), TypeError, "int64"),
        (lambda: tp.searchsorted(X[0], X, sorter=tp.tensor([0, 1, 3])), IndexError, "out of range"),
        (lambda: tp.bucketize(X, X), RuntimeError, "must be 1 dimension"),
    ],
)  # fmt: skip
def test_errors(call: Any, kind: type[Exception], text: str) -> None:
    with pytest.raises(kind, match=text):
        call()
