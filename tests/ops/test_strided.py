"""Views by strides and of complex numbers: memory, gradients of odd layouts, and the errors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tensorplay as tp

X = tp.arange(6.0)


def test_views_share_memory_and_versions() -> None:
    x = tp.zeros(6)
    windows, pairs = x.unfold(0, 2, 2), tp.view_as_complex(x.view(3, 2))
    corner = x.as_strided((2,), (3,), 1)
    pairs.fill_(1 + 2j)
    assert windows.tolist() == [[1, 2], [1, 2], [1, 2]]
    assert corner.tolist() == [2, 1]
    corner.zero_()
    assert x.tolist() == [1, 0, 1, 2, 0, 2]
    assert x._version == windows._version == 2
    tp.view_as_real(pairs)[0].fill_(7)
    assert x.tolist()[:2] == [7, 7]


def test_base_learns_of_a_write_through_a_window() -> None:
    x = tp.ones(4, requires_grad=True)
    y = x * 3
    y.unfold(0, 2, 2)[1].mul_(2)
    y.sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [3, 3, 6, 6]


def test_layouts_on_views_count_from_the_memory() -> None:
    part = X[2:]
    assert part.as_strided((2,), (1,)).tolist() == [2, 3]
    assert part.as_strided((2,), (1,), 0).tolist() == [0, 1]
    assert X.flip(0).as_strided((2,), (1,)).tolist() == [5, 4]
    assert part.bfloat16().as_strided((2, 2), (1, 1)).tolist() == [[2, 3], [3, 4]]


def test_gradient_reaches_transposed_and_overlapping_tensors() -> None:
    x = tp.arange(6.0).reshape(3, 2).requires_grad_()
    x.t().as_strided((2,), (3,), 1).sum().backward()  # elements 1 and 4 of the memory
    assert x.grad is not None
    assert x.grad.tolist() == [[0, 1], [0, 0], [1, 0]]
    y = tp.arange(3.0).requires_grad_()
    (y * 1).unfold(0, 2, 1).as_strided((3,), (1,)).sum().backward()
    assert y.grad is not None
    assert y.grad.tolist() == [1, 1, 1]


def test_memory_of_fortran_order_and_read_only_memory() -> None:
    x = tp.from_numpy(np.asfortranarray(np.arange(6.0).reshape(2, 3)))
    assert x.as_strided((6,), (1,)).tolist() == [0, 3, 1, 4, 2, 5]
    steps = np.lib.stride_tricks.as_strided(np.arange(9.0), (2, 2), (16, 8))
    assert tp.from_numpy(steps).as_strided((2,), (2,)).tolist() == [0, 2]


def test_empty_strided() -> None:
    x = tp.empty_strided((2, 3), (1, 2), dtype=tp.float64, requires_grad=True)
    assert (x.stride(), x.dtype, x.requires_grad) == ((1, 2), tp.float64, True)
    assert tp.empty_strided((2, 3), (0, 1)).stride() == (0, 1)
    assert tp.empty_strided((2, 3), (1, 2), device="meta").stride() == (1, 2)
    assert tp.empty_strided((0, 3), (1, 2)).numel() == 0


def test_complex_types() -> None:
    x = tp.ones(2)
    assert tp.complex(x, x).dtype is tp.complex64
    assert tp.polar(x.double(), x.double()).dtype is tp.complex128
    np.testing.assert_allclose(tp.polar(x, x * 0).numpy(), [1, 1])


@pytest.mark.parametrize(
    ("call", "kind", "text"),
    [
        (lambda: X.unfold(0, 7, 1), RuntimeError, "maximum size"),
        (lambda: X.unfold(0, -1, 1), RuntimeError, "maximum size"),
        (lambda: X.unfold(0, 2, 0), RuntimeError, "must be > 0"),
        (lambda: X.unfold(1, 2, 1), IndexError, "Dimension out of range"),
        (lambda: X.as_strided((7,), (1,)), RuntimeError, "out of bounds for storage of 6"),
        (lambda: X.as_strided((2,), (1,), 5), RuntimeError, "out of bounds"),
        (lambda: X.as_strided((2,), (1,), -1), RuntimeError, "out of bounds"),
        (lambda: X.as_strided((2,), (-1,), 2), RuntimeError, "negative"),
        (lambda: X.as_strided((2,), (1, 1)), RuntimeError, "mismatch in length"),
        (lambda: tp.empty_strided((2,), (1, 1)), RuntimeError, "mismatch in length"),
        (lambda: tp.empty_strided((2,), (-1,)), RuntimeError, "non-negative"),
        (lambda: tp.view_as_real(X), TypeError, "only supported for complex"),
        (lambda: tp.view_as_complex(X), RuntimeError, "last dimension of size 2"),
        (lambda: tp.view_as_complex(X.long()), TypeError, "floating point"),
        (lambda: tp.view_as_complex(X.view(3, 2).t()[:, :2]), RuntimeError, "stride 1"),
        (lambda: tp.complex(X, X.double()), TypeError, "both tensors"),
        (lambda: tp.polar(X, X.long()), TypeError, "both tensors"),
        (lambda: tp.complex(X, tp.ones(4)), RuntimeError, "must match the size"),
        (lambda: tp.hardtanh(X, 1.0, 0.0), ValueError, "at least min_val"),
        (lambda: tp.leaky_relu(X.cfloat()), TypeError, "not supported for complex"),
    ],
)  # fmt: skip
def test_errors(call: Any, kind: type[Exception], text: str) -> None:
    with pytest.raises(kind, match=text):
        call()
