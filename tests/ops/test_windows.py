"""Convolutions, pooling and attention: types, layouts, and the errors."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import tensorplay as tp

X = tp.ones(1, 2, 5)
W = tp.ones(3, 2, 2)
PLANE = tp.ones(1, 2, 4, 4)
SMALL = tp.ones(2, 3, 2, 2)
HEADS = tp.ones(3, 2)


@pytest.mark.parametrize("d", [tp.float16, tp.bfloat16, tp.int64], ids=str)
def test_convolution_keeps_the_type(d: Any) -> None:
    out = tp.conv1d(X.to(d), W.to(d))
    assert out.dtype is d
    assert out.tolist() == [[[4] * 4] * 3]


def test_convolution_of_complex_numbers_has_gradients() -> None:
    x = tp.randn(1, 2, 5, dtype=tp.float64).to(tp.complex128) * (1 + 2j)
    w = (tp.randn(3, 2, 2, dtype=tp.float64) + 0j) * (2 - 1j)
    x, w = x.detach().requires_grad_(), w.detach().requires_grad_()
    assert tp.autograd.gradcheck(lambda a, b: tp.conv1d(a, b, padding=1), (x, w))


def test_convolution_of_strided_memory() -> None:
    x = tp.randn(4, 2, 1, dtype=tp.float64).permute(2, 1, 0).flip(2)
    w = tp.randn(2, 2, 3, dtype=tp.float64).permute(1, 0, 2)
    expected = tp.conv1d(x.clone().contiguous(), w.contiguous())
    np.testing.assert_allclose(tp.conv1d(x, w).numpy(), expected.numpy(), rtol=1e-12)


def test_pooling_of_integers_and_nan() -> None:
    assert tp.max_pool1d(tp.tensor([[-3, -2, -1]]), 2, 1, 1).tolist() == [[-3, -2, -1, -1]]
    found = tp.max_pool1d(tp.tensor([[1.0, math.nan, 3.0, 4.0]]), 2)
    assert math.isnan(found[0, 0].item())
    assert found[0, 1].item() == 4.0


def test_attention_rows_that_see_nothing_are_zero() -> None:
    query = tp.randn(2, 3).requires_grad_()
    seen = tp.tensor([[False, False], [True, False]])
    out = tp.scaled_dot_product_attention(query, query, query, seen)
    assert out[0].tolist() == [0, 0, 0]
    out.sum().backward()
    assert query.grad is not None
    assert query.grad.isfinite().all()


def test_attention_drops_weights() -> None:
    x = tp.ones(4, 8)
    first, second = (
        tp.scaled_dot_product_attention(x, x, x, dropout_p=0.5,
                                        generator=tp.Generator().manual_seed(1))
        for _ in range(2)
    )  # fmt: skip
    assert first.tolist() == second.tolist()
    assert not tp.allclose(first, x)


CONVOLUTION_ERRORS = [
    (lambda: tp.conv1d(X[0, 0], W), RuntimeError, "unbatched"),
    (lambda: tp.conv1d(X, W, groups=2), RuntimeError, "divides"),
    (lambda: tp.conv1d(X[:, :1], W), RuntimeError, "to have 2 channels, but got 1"),
    (lambda: tp.conv1d(X, W.double()), TypeError, "same dtype"),
    (lambda: tp.conv1d(X.bool(), W.bool()), TypeError, "bool"),
    (lambda: tp.conv1d(X, W, tp.ones(2)), RuntimeError, "1-dimensional with 3 elements"),
    (lambda: tp.conv1d(X, W, stride=0), RuntimeError, "non-positive stride"),
    (lambda: tp.conv1d(X, W, padding=-1), RuntimeError, "negative padding"),
    (lambda: tp.conv1d(X, W, dilation=0), RuntimeError, "dilation should be"),
    (lambda: tp.conv1d(X, W, dilation=9), RuntimeError, "Kernel size can't be greater"),
    (lambda: tp.conv1d(X, W, stride=(1, 2)), ValueError, "expected 1 values"),
    (lambda: tp.conv2d(PLANE, PLANE, stride=(1, 2, 3)), ValueError, "expected 2 values"),
    (lambda: tp.conv1d(X, W, padding="some"), ValueError, "Invalid padding string"),
    (lambda: tp.conv1d(X, W, None, 2, "same"), RuntimeError, "strided convolutions"),
    (lambda: tp.conv1d(X, W[:, :, :0]), RuntimeError, "Kernel size"),
]
POOLING_ERRORS = [
    (lambda: tp.max_pool1d(X[0, 0], 2), RuntimeError, "Expected 2D or 3D"),
    (lambda: tp.max_pool1d(X, 0), RuntimeError, "greater than zero"),
    (lambda: tp.max_pool1d(X, 2, 0), RuntimeError, "greater than zero"),
    (lambda: tp.max_pool1d(X, 2, padding=2), RuntimeError, "at most half of kernel size"),
    (lambda: tp.max_pool1d(X, 6), RuntimeError, "too small"),
    (lambda: tp.max_pool1d(X.cfloat(), 2), TypeError, "real numbers"),
    (lambda: tp.max_pool2d(PLANE, (2, 2, 2)), ValueError, "expected 2 values"),
    (lambda: tp.avg_pool1d(X.long(), 2), TypeError, "floating point"),
    (lambda: tp.avg_pool1d(X, 6), RuntimeError, "too small"),
    (lambda: tp.avg_pool2d(PLANE, 2, divisor_override=0), RuntimeError, "not zero"),
    (lambda: tp.adaptive_avg_pool1d(X[0, 0], 1), RuntimeError, "Expected 2D or 3D"),
    (lambda: tp.adaptive_max_pool1d(X[0, 0], 1), RuntimeError, "Expected 2D or 3D"),
    (lambda: tp.conv_transpose2d(X[0], PLANE), RuntimeError, r"Expected 3D \(unbatched\) or 4D"),
    (lambda: tp.conv_transpose1d(X, X.double()), TypeError, "expected the same dtype"),
    (lambda: tp.conv_transpose1d(X, X[:, :, :2].expand(9, -1, -1)), RuntimeError, "channels, but"),
    (lambda: tp.conv_transpose2d(PLANE, PLANE, groups=0), RuntimeError, "'groups'"),
    (lambda: tp.conv_transpose2d(PLANE, SMALL, tp.ones(7)), RuntimeError, "'bias'"),
    (lambda: tp.conv_transpose2d(PLANE, SMALL, stride=0), RuntimeError, "at least 1"),
    (lambda: tp.conv_transpose2d(PLANE, SMALL, padding=99), RuntimeError, "too small"),
    (lambda: tp.conv_transpose1d(X[..., :1], SMALL[..., 0], padding=1), RuntimeError, "too small"),
    (lambda: tp.conv_transpose2d(PLANE, SMALL, output_padding=1), RuntimeError, "smaller than"),
    (lambda: tp.adaptive_avg_pool1d(X, -1), RuntimeError, "greater than or equal to 0"),
]
ATTENTION_ERRORS = [
    (lambda: tp.scaled_dot_product_attention(HEADS[0], HEADS, HEADS), RuntimeError, "2 dimen"),
    (lambda: tp.scaled_dot_product_attention(HEADS, HEADS, HEADS.double()), TypeError, "one fl"),
    (lambda: tp.scaled_dot_product_attention(HEADS, HEADS, HEADS, HEADS, is_causal=True),
     RuntimeError, "should not be set"),
    (lambda: tp.scaled_dot_product_attention(HEADS, HEADS, HEADS, HEADS.long()), TypeError, "bool"),
    (lambda: tp.scaled_dot_product_attention(PLANE, PLANE[:, :0], PLANE, enable_gqa=True),
     RuntimeError, "must divide"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("call", "kind", "text"), [*CONVOLUTION_ERRORS, *POOLING_ERRORS, *ATTENTION_ERRORS]
)
def test_errors(call: Any, kind: type[Exception], text: str) -> None:
    with pytest.raises(kind, match=text):
        call()


def test_a_window_that_steps_over_all_elements_gives_its_gradient_to_none() -> None:
    x = tp.tensor([[0.1], [-0.2]], requires_grad=True)

    def pooled(x: tp.Tensor) -> Any:
        return tp.max_pool1d(x, 2, None, 1, 2, return_indices=True)

    values, places = pooled(x)
    assert values.tolist() == [[-math.inf], [-math.inf]]
    assert places.tolist() == [[-1], [-1]]
    (slope,) = tp.autograd.grad(values.sum(), x, create_graph=True)
    assert slope.tolist() == [[0.0], [0.0]]
    _, tangents = tp.func.jvp(lambda x: pooled(x)[0], (x.detach(),), (tp.ones(2, 1),))
    assert tangents.tolist() == [[0.0], [0.0]]


@pytest.mark.parametrize("shape", [(0, 2, 5), (2, 0, 5)])
def test_maxima_of_no_channels_have_gradients(shape: tuple[int, ...]) -> None:
    x = tp.ones(shape, requires_grad=True)
    tp.max_pool1d(x, 2).sum().backward()
    assert x.grad is not None
    assert x.grad.shape == shape
