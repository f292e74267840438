"""The Fourier transforms of the array API standard: ``tensorplay.array_api.fft``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tensorplay import fft as _fft
from tensorplay._tensor import Tensor

__all__ = [
    "fft",
    "fftfreq",
    "fftn",
    "fftshift",
    "hfft",
    "ifft",
    "ifftn",
    "ifftshift",
    "ihfft",
    "irfft",
    "irfftn",
    "rfft",
    "rfftfreq",
    "rfftn",
]


def _of_one_axis(name: str) -> Callable[..., Any]:
    transform = getattr(_fft, name)

    def function(
        x: Tensor, /, *, n: int | None = None, axis: int = -1, norm: str = "backward"
    ) -> Any:
        return transform(x, n, axis, norm)

    return _named(function, name, "axis")


def _of_axes(name: str) -> Callable[..., Any]:
    transform = getattr(_fft, name)

    def function(x: Tensor, /, *, s: Any = None, axes: Any = None, norm: str = "backward") -> Any:
        return transform(x, s, axes, norm)

    return _named(function, name, "axes")


def _shift(name: str) -> Callable[..., Any]:
    transform = getattr(_fft, name)

    def function(x: Tensor, /, *, axes: Any = None) -> Any:
        return transform(x, axes)

    return _named(function, name, "axes")


def _named(function: Callable[..., Any], name: str, axes: str) -> Callable[..., Any]:
    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"As `tensorplay.fft.{name}`, along `{axes}`."
    return function


fft, ifft, rfft, irfft, hfft, ihfft = (
    _of_one_axis(name) for name in ("fft", "ifft", "rfft", "irfft", "hfft", "ihfft")
)
fftn, ifftn, rfftn, irfftn = (_of_axes(name) for name in ("fftn", "ifftn", "rfftn", "irfftn"))
fftshift, ifftshift = _shift("fftshift"), _shift("ifftshift")


def fftfreq(n: int, /, *, d: float = 1.0, dtype: Any = None, device: Any = None) -> Tensor:
    """Return the frequencies of a transform of `n` samples, `d` apart."""
    return _fft.fftfreq(n, d, dtype=dtype, device=device)


def rfftfreq(n: int, /, *, d: float = 1.0, dtype: Any = None, device: Any = None) -> Tensor:
    """Return the frequencies of the transform of `n` real samples, `d` apart."""
    return _fft.rfftfreq(n, d, dtype=dtype, device=device)
