"""References of Fourier transforms, by matrices of roots of unity."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

__all__ = ["TRANSFORMS"]


def roots(n: int, sign: int) -> Any:
    return np.exp(sign * 2j * np.pi * np.outer(np.arange(n), np.arange(n)) / n)


def transform(x: Any, axis: int, sign: int) -> Any:
    return np.moveaxis(np.moveaxis(x, axis, -1) @ roots(x.shape[axis], sign), -1, axis)


def resized(x: Any, axis: int, n: int) -> Any:
    x = np.take(x, range(min(n, x.shape[axis])), axis)
    widths = [(0, 0)] * x.ndim
    widths[axis] = (0, n - x.shape[axis])
    return np.pad(x, widths)


def factor(norm: str | None, n: int, sign: int) -> float:
    return {
        "ortho": n**-0.5,
        "forward": 1 / n if sign < 0 else 1.0,
        "backward": 1.0 if sign < 0 else 1 / n,
    }[norm or "backward"]


def mirrored(x: Any, axis: int, n: int) -> Any:
    """Return all n frequencies of a real tensor of which the first half is given."""
    lines = np.moveaxis(resized(x, axis, n // 2 + 1), axis, -1)
    out = np.empty((*lines.shape[:-1], n), complex)
    for k in range(n):
        out[..., k] = lines[..., k] if k <= n // 2 else lines[..., n - k].conj()
    return np.moveaxis(out, -1, axis)


def many(sign: int, kind: str) -> Callable[..., Any]:
    """Return a transform over several dimensions; `kind`: full, to half, from half."""

    def reference(x: Any, s: Any = None, dim: Any = None, norm: str | None = None) -> Any:
        dims = [d % x.ndim for d in (range(x.ndim) if dim is None else dim)]
        sizes = [x.shape[d] for d in dims] if s is None else list(s)
        if kind == "from half" and s is None:
            sizes[-1] = 2 * (x.shape[dims[-1]] - 1)
        for d, n in zip(dims[:-1], sizes[:-1], strict=True):
            x = resized(x, d, n)
        last, n = dims[-1], sizes[-1]
        if kind == "from half":
            for d in dims[:-1]:
                x = transform(x, d, sign)
            x = transform(mirrored(x, last, n), last, sign).real
        else:
            x = resized(x, last, n)
            for d in dims:
                x = transform(x, d, sign)
            if kind == "to half":
                x = np.take(x, range(n // 2 + 1), last)
        return x * factor(norm, int(np.prod(sizes)), sign)

    return reference


def one(sign: int, kind: str) -> Callable[..., Any]:
    reference = many(sign, kind)
    return lambda x, n=None, dim=-1, norm=None: reference(
        x, None if n is None else (n,), (dim,), norm
    )


def two(sign: int, kind: str) -> Callable[..., Any]:
    reference = many(sign, kind)
    return lambda x: reference(x, None, (-2, -1))


def real_sum(g: Any, dim: int, n: int) -> Any:
    powers = np.exp(2j * np.pi * np.outer(np.arange(g.shape[dim]), np.arange(n)) / n)
    return np.moveaxis(np.moveaxis(g, dim, -1) @ powers, -1, dim).real


def complex_transform(x: Any, dim: Any, forward: bool) -> Any:
    for d in dim:
        x = transform(x, d, -1 if forward else 1)
    return x


def shifted(sign: int) -> Callable[..., Any]:
    def reference(x: Any, dim: Any = None) -> Any:
        for d in range(x.ndim) if dim is None else [dim]:
            n = x.shape[d]
            x = np.take(x, [(k - sign * (n // 2)) % n for k in range(n)], d)
        return x

    return reference


KINDS = {
    "fft": (-1, "full"), "ifft": (1, "full"), "rfft": (-1, "to half"), "irfft": (1, "from half"),
    "ihfft": (1, "to half"), "hfft": (-1, "from half"),
}  # fmt: skip
TRANSFORMS: dict[str, Callable[..., Any]] = {
    "_fft_c2c": complex_transform,
    "_fft_r2c": lambda x, dim: one(-1, "to half")(x, None, dim),
    "_fft_c2r_adjoint": real_sum,
    "fft_fftshift": shifted(1),
    "fft_ifftshift": shifted(-1),
    **{f"fft_{name}": one(*kind) for name, kind in KINDS.items()},
    **{f"fft_{name}2": two(*kind) for name, kind in KINDS.items()},
    **{f"fft_{name}n": many(*kind) for name, kind in KINDS.items()},
}
