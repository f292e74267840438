"""Reductions: dimensions, types, extremes, what is saved, errors."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st
from hypothesis.extra import numpy as hnp

import tensorplay as tp

X = tp.tensor([[1.0, 5.0, 2.0], [4.0, 0.0, 3.0]])


# --- properties -----------------------------------------------------------------------------------

REDUCTIONS = {
    "sum": np.sum,
    "prod": np.prod,
    "amax": np.max,
    "amin": np.min,
    "mean": np.mean,
    "any": np.any,
    "all": np.all,
    "count_nonzero": np.count_nonzero,
}


@given(
    st.data(),
    st.sampled_from(sorted(REDUCTIONS)),
    hnp.array_shapes(min_dims=0, max_dims=4, min_side=1, max_side=3),
    st.booleans(),
)
def test_reductions_over_any_dimensions_are_numpys(
    data: st.DataObject, name: str, shape: tuple[int, ...], keepdim: bool
) -> None:
    array = data.draw(hnp.arrays(np.float64, shape, elements=st.integers(-3, 3).map(float)))
    axes = data.draw(
        st.none() | st.sets(st.integers(-1, 0) if not shape else st.integers(0, len(shape) - 1))
    )
    if axes is not None and not shape:
        axes = set(list(axes)[:1])
    x = tp.from_numpy(array)
    dim = None if axes is None else tuple(axes)
    actual = getattr(x, name)(dim, keepdim)
    expected = REDUCTIONS[name](array, axis=dim if dim and shape else None, keepdims=keepdim)
    assert tuple(actual.shape) == np.shape(expected)
    np.testing.assert_allclose(actual.numpy(), expected, rtol=1e-12)


@given(
    hnp.arrays(np.float64, hnp.array_shapes(max_dims=3, max_side=4), elements=st.integers(-2, 2)),
    st.data(),
)
def test_product_and_running_product_differentiate_through_zeros(
    array: Any, data: st.DataObject
) -> None:
    dim = data.draw(st.integers(-array.ndim, array.ndim - 1))
    x = tp.from_numpy(array).requires_grad_()
    weights = np.linspace(0.5, 2.0, array.size).reshape(array.shape)
    (g,) = tp.autograd.grad(
        (x.cumprod(dim) * tp.from_numpy(weights)).sum() + x.prod(dim).sum(), [x]
    )

    def value(a: Any) -> Any:
        return (np.cumprod(a, dim) * weights).sum() + np.prod(a, dim).sum()

    # Linear in each single element: a difference over a whole step is exact.
    for index in np.ndindex(array.shape):
        up, down = array.copy(), array.copy()
        up[index] += 1
        down[index] -= 1
        np.testing.assert_allclose(g.numpy()[index], (value(up) - value(down)) / 2, atol=1e-9)


# --- dimensions -----------------------------------------------------------------------------------


def test_dimensions_may_be_one_or_several_or_none() -> None:
    assert X.sum(0).tolist() == [5.0, 5.0, 5.0]
    assert X.sum(dim=-1, keepdim=True).tolist() == [[8.0], [7.0]]
    assert X.sum((0, 1)).tolist() == 15.0
    assert X.sum([]).tolist() == 15.0
    assert tp.tensor(3.0).sum(-1).tolist() == 3.0


@pytest.mark.parametrize(
    ("call", "error", "phrase"),
    [
        (lambda: X[0].sum(2), IndexError, r"Dimension out of range \(.* \[-1, 0\], but got 2\)"),
        (lambda: X.sum((0, -2)), RuntimeError, "multiple times"),
        (lambda: X.sum("a"), TypeError, "'dim'"),
        (lambda: X.cumsum(2), IndexError, "Dimension out of range"),
        (lambda: X.argmax(2), IndexError, "Dimension out of range"),
        (lambda: X.max(2), IndexError, "Dimension out of range"),
        (lambda: X.norm(dim=3), IndexError, "Dimension out of range"),
        (lambda: tp.tensor([1, 2]).mean(), RuntimeError, "floating point or complex"),
        (lambda: tp.tensor([True]).mean(), RuntimeError, "floating point or complex"),
        (lambda: tp.tensor([1, 2]).var(), RuntimeError, "floating point or complex"),
        (lambda: tp.tensor([1, 2]).norm(), RuntimeError, "floating point or complex"),
        (lambda: tp.zeros(0).max(), RuntimeError, "Expected reduction dim to be specified"),
        (lambda: tp.zeros(0).amin(), RuntimeError, "Expected reduction dim to be specified"),
        (lambda: tp.zeros(0).argmax(), IndexError, "Expected reduction dim to be specified"),
        (lambda: tp.zeros(2, 0).amax(1), IndexError, "non-zero size"),
        (lambda: tp.zeros(2, 0).max(1), IndexError, "non-zero size"),
        (lambda: tp.tensor([1j]).amax(), TypeError, "real"),
        (lambda: tp.tensor([1j]).argmax(), TypeError, "real"),
        (lambda: X.sum_to_size(2, 2), RuntimeError, "not expandable"),
        (lambda: tp.sum([1.0]), TypeError, r"tensorplay.tensor\(x\)"),
    ],
)  # fmt: skip
def test_error_contract(call: Any, error: type[Exception], phrase: str) -> None:
    with pytest.raises(error, match=phrase) as caught:
        call()
    assert str(caught.value).startswith("[")


def test_reductions_of_nothing() -> None:
    empty = tp.zeros(0, 3)
    assert empty.sum().item() == 0.0
    assert empty.prod(0).tolist() == [1.0, 1.0, 1.0]
    assert math.isnan(empty.mean().item())
    assert tuple(empty.amax(1).shape) == (0,)
    assert empty.logsumexp(0).tolist() == [-math.inf] * 3
    assert empty.any().item() is False
    assert empty.all().item() is True


# --- types ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        (lambda: tp.tensor([True, True]).sum(), tp.int64),
        (lambda: tp.tensor([1, 2], dtype=tp.int32).sum(), tp.int64),
        (lambda: tp.tensor([1, 2], dtype=tp.uint8).prod(), tp.int64),
        (lambda: tp.tensor([1, 2], dtype=tp.int32).cumsum(0), tp.int64),
        (lambda: tp.tensor([1, 2], dtype=tp.int32).amax(), tp.int32),
        (lambda: tp.tensor([1, 2]).sum(dtype=tp.float64), tp.float64),
        (lambda: tp.tensor([1, 2]).mean(dtype=tp.float32), tp.float32),
        (lambda: tp.tensor([1.0], dtype=tp.float16).sum(), tp.float16),
        (lambda: tp.tensor([1.0], dtype=tp.bfloat16).mean(), tp.bfloat16),
        (lambda: tp.tensor([1j]).norm(), tp.float32),
        (lambda: tp.tensor([1j, 2.0]).var(), tp.float32),
        (lambda: tp.tensor([1, 2]).logsumexp(0), tp.float32),
        (X.argmin, tp.int64),
        (X.any, tp.bool),
    ],
)
def test_type_of_the_result(call: Any, expected: Any) -> None:
    assert call().dtype is expected


def test_half_precision_adds_up_in_single() -> None:
    x = tp.ones(5000, dtype=tp.float16)
    assert x.sum().item() == 5000.0
    assert x.cumsum(0)[-1].item() == 5000.0
    assert tp.ones(5000, dtype=tp.bfloat16).mean().item() == 1.0


# --- extremes -------------------------------------------------------------------------------------


def test_maximum_along_a_dimension_is_a_named_tuple() -> None:
    result = X.max(1)
    assert result._fields == ("values", "indices")
    assert result.values.tolist() == [5.0, 4.0]
    assert result.indices.tolist() == [1, 0]
    values, indices = tp.min(X, 0, keepdim=True)
    assert values.tolist() == [[1.0, 0.0, 2.0]]
    assert indices.tolist() == [[0, 1, 0]]
    assert X.max().item() == 5.0
    assert tp.max(X, tp.tensor(3.0)).tolist() == [[3.0, 5.0, 3.0], [4.0, 3.0, 3.0]]


def test_tied_extremes_share_the_gradient_and_indices_take_it_whole() -> None:
    x = tp.tensor([[2.0, 2.0, 1.0]], requires_grad=True)
    (g,) = tp.autograd.grad(x.amax(1).sum(), [x])
    assert g.tolist() == [[0.5, 0.5, 0.0]]
    (g,) = tp.autograd.grad(x.max(), [x])
    assert g.tolist() == [[0.5, 0.5, 0.0]]
    (g,) = tp.autograd.grad(x.max(1).values.sum(), [x])
    assert g.tolist() == [[1.0, 0.0, 0.0]]


def test_nan_wins_every_extreme() -> None:
    x = tp.tensor([1.0, math.nan, 3.0])
    assert math.isnan(x.amax().item())
    assert math.isnan(x.max().item())
    assert x.argmax().item() == 1
    values, indices = x.min(0)
    assert math.isnan(values.item())
    assert indices.item() == 1


# --- statistics -----------------------------------------------------------------------------------


def test_spread_of_too_few_elements_is_not_a_number() -> None:
    x = tp.tensor([3.0], requires_grad=True)
    assert math.isnan(x.var().item())
    assert x.var(correction=0).item() == 0.0
    (g,) = tp.autograd.grad(x.std(correction=0), [x])
    assert g.tolist() == [0.0]


def test_sum_of_exponentials_keeps_its_range() -> None:
    x = tp.tensor([1000.0, 1000.0], requires_grad=True)
    y = x.logsumexp(0)
    assert y.item() == pytest.approx(1000 + math.log(2))
    (g,) = tp.autograd.grad(y, [x])
    np.testing.assert_allclose(g.numpy(), 0.5, rtol=1e-4)  # the digits that 1000 leaves
    x = tp.tensor([-math.inf, -math.inf], requires_grad=True)
    (g,) = tp.autograd.grad(x.logsumexp(0), [x])
    assert g.tolist() == [0.0, 0.0]


@pytest.mark.parametrize("p", [0, 1, 2, 3, 0.5, math.inf, -math.inf])
def test_norms(p: float) -> None:
    x = np.array([3.0, -4.0, 0.5])
    assert tp.from_numpy(x).norm(p).item() == pytest.approx(np.linalg.norm(x, p))


def test_norm_has_gradient_zero_at_the_origin() -> None:
    x = tp.zeros(3, requires_grad=True)
    for p in (1, 2, 3):
        (g,) = tp.autograd.grad(x.norm(p), [x])
        assert g.tolist() == [0.0, 0.0, 0.0]


# --- what is saved --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "reduction", [lambda x: x.sum(), lambda x: x.mean(0), lambda x: x.sum_to_size(3),
                  lambda x: x.cumsum(1)]
)  # fmt: skip
def test_linear_reductions_let_go_of_their_input(reduction: Any) -> None:
    x = tp.ones(2, 3, requires_grad=True)
    y = x * 1
    z = reduction(y).sum()
    y.add_(1)  # would raise in backward if y were saved
    z.backward()
    assert x.grad is not None


def test_product_keeps_its_input() -> None:
    x = tp.ones(2, 3, requires_grad=True)
    y = x * 1
    z = y.prod()
    y.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        z.backward()
