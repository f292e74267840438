"""Discrete Fourier transforms."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np

from tensorplay import _creation, _dtype
from tensorplay._tensor import Tensor
from tensorplay.ops.arguments import reject
from tensorplay.ops.dispatch import overridable
from tensorplay.ops.spectral import FOURIER

__all__ = [
    "fft",
    "fft2",
    "fftfreq",
    "fftn",
    "fftshift",
    "hfft",
    "hfft2",
    "hfftn",
    "ifft",
    "ifft2",
    "ifftn",
    "ifftshift",
    "ihfft",
    "ihfft2",
    "ihfftn",
    "irfft",
    "irfft2",
    "irfftn",
    "rfft",
    "rfft2",
    "rfftfreq",
    "rfftn",
]

fft, fft2, fftn = (FOURIER[name].function for name in ("fft", "fft2", "fftn"))
ifft, ifft2, ifftn = (FOURIER[name].function for name in ("ifft", "ifft2", "ifftn"))
rfft, rfft2, rfftn = (FOURIER[name].function for name in ("rfft", "rfft2", "rfftn"))
irfft, irfft2, irfftn = (FOURIER[name].function for name in ("irfft", "irfft2", "irfftn"))
hfft, hfft2, hfftn = (FOURIER[name].function for name in ("hfft", "hfft2", "hfftn"))
ihfft, ihfft2, ihfftn = (FOURIER[name].function for name in ("ihfft", "ihfft2", "ihfftn"))
fftshift, ifftshift = (FOURIER[name].function for name in ("fftshift", "ifftshift"))


def _frequencies(where: str, n: Any, d: Any, numbers: Any, **options: Any) -> Tensor:
    try:
        n = operator.index(n)
    except TypeError:
        reject(where, "n", "int", n)
    if n < 1:
        raise RuntimeError(f"[{where}] argument 'n': expected at least 1, got {n}.")
    requires_grad = options.pop("requires_grad")
    options["dtype"] = options["dtype"] or _dtype.get_default_dtype()
    result = _creation.tensor(numbers(n, d), **options)
    return result.requires_grad_() if requires_grad else result


@overridable
def fftfreq(
    n: int, d: float = 1.0, *, dtype: Any = None, device: Any = None, requires_grad: bool = False
) -> Tensor:
    """Return the frequencies of a transform of `n` samples, `d` apart: cycles per unit of `d`.

    Parameters
    ----------
    n
        Number of samples.
    d
        Distance between samples.
    dtype
        Type of the elements; the default floating type otherwise.
    device
        Device of the result; the default device otherwise.
    requires_grad
        Whether operations on the result are recorded.

    Returns
    -------
    Tensor
        Vector of `n` elements: 0, the positive ones, then the negative ones.

    Examples
    --------
    >>> import tensorplay as tp
    >>> tp.fft.fftfreq(4, d=0.5)
    tensor([ 0.0,  0.5, -1.0, -0.5])
    """
    options = {"dtype": dtype, "device": device, "requires_grad": requires_grad}
    return _frequencies("fft_fftfreq", n, d, np.fft.fftfreq, **options)


@overridable
def rfftfreq(
    n: int, d: float = 1.0, *, dtype: Any = None, device: Any = None, requires_grad: bool = False
) -> Tensor:
    """Return the frequencies of the transform of `n` real samples, `d` apart.

    Parameters
    ----------
    n
        Number of samples.
    d
        Distance between samples.
    dtype
        Type of the elements; the default floating type otherwise.
    device
        Device of the result; the default device otherwise.
    requires_grad
        Whether operations on the result are recorded.

    Returns
    -------
    Tensor
        Vector of ``n // 2 + 1`` elements, from 0 on.
    """
    options = {"dtype": dtype, "device": device, "requires_grad": requires_grad}
    return _frequencies("fft_rfftfreq", n, d, np.fft.rfftfreq, **options)
