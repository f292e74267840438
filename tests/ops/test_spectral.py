"""tensorplay.fft: inverses, types, NumPy's values on all kinds of sizes, and the errors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

import tensorplay as tp
from tensorplay import fft

NORMS = st.sampled_from([None, "backward", "ortho", "forward"])


def random(n: int, *shape: int, real: bool = False) -> Any:
    source = np.random.default_rng(n)
    x = source.standard_normal(shape)
    return x if real else x + 1j * source.standard_normal(shape)


@given(st.integers(1, 9), st.one_of(st.none(), st.integers(1, 12)), st.integers(-2, 1), NORMS)
def test_one_dimension_is_that_of_numpy(size: int, n: Any, dim: int, norm: Any) -> None:
    shape = (size, 2) if dim in (0, -2) else (2, size)
    for name in ("fft", "ifft", "rfft", "ihfft", "irfft", "hfft"):
        if name in ("irfft", "hfft") and n is None and size == 1:
            continue
        x = random(size, *shape, real=name in ("rfft", "ihfft"))
        expected = getattr(np.fft, name)(x, n, dim, norm)
        found = getattr(fft, name)(tp.from_numpy(x), n, dim, norm)
        np.testing.assert_allclose(found.numpy(), expected, atol=1e-12)


@given(st.integers(1, 5), st.integers(1, 5), NORMS)
def test_inverses(rows: int, columns: int, norm: Any) -> None:
    x = tp.from_numpy(random(rows, rows, columns))
    real = x.real.clone()
    np.testing.assert_allclose(fft.ifftn(fft.fftn(x, norm=norm), norm=norm).numpy(), x.numpy())
    back = fft.irfft2(fft.rfft2(real, norm=norm), (rows, columns), norm=norm)
    np.testing.assert_allclose(back.numpy(), real.numpy(), atol=1e-12)
    other = fft.hfftn(fft.ihfftn(real, norm=norm), (rows, columns), norm=norm)
    np.testing.assert_allclose(other.numpy(), real.numpy(), atol=1e-12)
    np.testing.assert_array_equal(fft.ifftshift(fft.fftshift(x)).numpy(), x.numpy())


def test_types() -> None:
    x = tp.ones(4)
    assert fft.fft(x).dtype is tp.complex64
    assert fft.rfft(x.double()).dtype is tp.complex128
    assert fft.irfft(x.cfloat()).dtype is tp.float32
    assert fft.fft(x.long()).dtype is tp.complex64
    assert fft.rfft(x.to("meta")).shape == (3,)
    assert fft.irfftn(tp.ones(2, 3, device="meta")).shape == (2, 4)


def test_frequencies() -> None:
    np.testing.assert_allclose(fft.fftfreq(5, 0.1).numpy(), np.fft.fftfreq(5, 0.1), rtol=1e-6)
    found = fft.rfftfreq(4, dtype=tp.float64, requires_grad=True)
    assert (found.dtype, found.requires_grad, found.tolist()) == (tp.float64, True, [0, 0.25, 0.5])


def test_transform_of_no_dimensions_is_a_copy() -> None:
    x = tp.ones(2, 2, dtype=tp.complex64)
    y = fft.fftn(x, dim=())
    y.zero_()
    assert x.sum().item() == 4


X = tp.ones(2, 4)


@pytest.mark.parametrize(
    ("call", "kind", "text"),
    [
        (lambda: fft.fft(X, 0), RuntimeError, "Invalid number of data points"),
        (lambda: fft.irfft(X[:, :1]), RuntimeError, "Invalid number of data points"),
        (lambda: fft.fft(tp.ones(0)), RuntimeError, "Invalid number of data points"),
        (lambda: fft.fft(X, dim=2), IndexError, "Dimension out of range"),
        (lambda: fft.fft(tp.tensor(1.0)), IndexError, "0-d tensor"),
        (lambda: fft.fft(X, norm="none"), RuntimeError, "Invalid normalization mode"),
        (lambda: fft.fftn(X, dim=(0, -2)), RuntimeError, "must be unique"),
        (lambda: fft.fftn(X, (2,), (0, 1)), RuntimeError, "same length"),
        (lambda: fft.fftn(X, (2, 2, 2)), RuntimeError, "only has 2 dimensions"),
        (lambda: fft.rfft(X.cfloat()), TypeError, "expects a real input tensor"),
        (lambda: fft.rfftn(X, dim=()), RuntimeError, "at least one axis"),
        (lambda: fft.irfftn(X, dim=()), RuntimeError, "at least one axis"),
        (lambda: fft.fft(X.half()), TypeError, "Unsupported dtype"),
        (lambda: fft.fftfreq(0), RuntimeError, "at least 1"),
        (lambda: fft.fftfreq(1.5), TypeError, "expected int"),
        (lambda: fft.fftshift(X, 5), IndexError, "Dimension out of range"),
    ],
)
def test_errors(call: Any, kind: type[Exception], text: str) -> None:
    with pytest.raises(kind, match=text):
        call()
