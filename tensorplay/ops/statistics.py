"""Statistics: variance and deviation, norms, and the logarithm of a sum of exponentials.

`dim` is a dimension, several, or None for all; `keepdim` keeps the reduced dimensions with size 1.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np

from tensorplay import _dtype
from tensorplay._tensor import Spec
from tensorplay.ops.elementwise import no_gradient
from tensorplay.ops.primitive import Primitive, Sample, Vjp
from tensorplay.ops.reduction import (
    add_up,
    axes_of,
    count_of,
    kept,
    real_of_floating,
    reduced,
    reduction,
    want_ordered,
)

__all__: list[str] = []


def _centred(x: Any, s: Any) -> Any:
    return x - x.mean(s.dim, keepdim=True)


def _variance(x: Any, axes: tuple[int, ...], keepdim: bool, correction: Any) -> Any:
    work = x.astype(np.float32) if x.dtype in _dtype.NARROW else x
    n = count_of(x, axes)
    centre = add_up(work, axes, keepdim=True) / work.real.dtype.type(n)
    d = work - centre
    square: Any = d.real**2 + d.imag**2 if d.dtype.kind == "c" else d * d
    return add_up(square, axes, keepdim) / square.dtype.type(
        n - correction if n > correction else 0
    )


def _freedom(s: Any) -> float:
    x = s.specs["input"]
    free = float(count_of(x, axes_of("", s.dim, x.ndim)) - s.correction)
    return free if free > 0 else 0.0


def _by_freedom(value: Any, s: Any) -> Any:
    free = _freedom(s)
    return value / free if free else value * math.nan


def _spread_samples(make: Any) -> Iterable[Sample]:
    yield Sample((make(2, 3),), name="all")
    yield Sample((make(2, 3, 4), 1), {"keepdim": True}, name="one kept")
    yield Sample((make(3, 4), (0, 1)), {"correction": 0}, name="population")


var = reduction(
    "var(Tensor input, int[1]? dim=None, *, bool keepdim=False, Scalar correction=1) -> Tensor",
    "Variance: squared distances from the mean, summed, over ``n - correction``.",
    _variance,
    out=real_of_floating,
    vjp=Vjp(lambda g, s: _by_freedom(kept(g, s) * _centred(s.input, s) * 2, s), "input"),
    samples=_spread_samples,
)

std = reduction(
    "std(Tensor input, int[1]? dim=None, *, bool keepdim=False, Scalar correction=1) -> Tensor",
    "Standard deviation, the root of `var`; gradient zero where it is zero.",
    lambda *args: np.sqrt(_variance(*args)),
    out=real_of_floating,
    vjp=Vjp(
        lambda g, s: _by_freedom(
            kept((g / s.out).masked_fill(s.out == 0, 0), s) * _centred(s.input, s), s
        ),
        "input",
        "out",
    ),
    samples=_spread_samples,
)


def _logsumexp(x: Any, axes: tuple[int, ...], keepdim: bool) -> Any:
    if x.dtype.kind in "biu":
        x = x.astype(_dtype.get_default_dtype().numpy)
    work = x.astype(np.float32) if x.dtype in _dtype.NARROW else x
    top = np.max(work, axis=axes, keepdims=True, initial=-np.inf)
    top = np.where(np.isfinite(top), top, work.dtype.type(0))
    total = add_up(np.exp(work - top), axes, keepdim=True)
    result = np.log(total) + top
    return result if keepdim else np.reshape(result, reduced(x.shape, axes, keepdim=False))


logsumexp = reduction(
    "logsumexp(Tensor input, int[1]? dim=None, bool keepdim=False) -> Tensor",
    "``log(sum(exp(input)))`` without overflow.",
    _logsumexp,
    out=lambda name, d: (
        want_ordered(name, d) if d.is_differentiable else _dtype.get_default_dtype()
    ),
    vjp=Vjp(
        lambda g, s: (
            kept(g, s) * (s.input - kept(s.out.masked_fill(s.out == -math.inf, 0), s)).exp()
        ),
        "input",
        "out",
    ),
)


def _check_extreme(x: Any, p: Any, axes: tuple[int, ...]) -> None:
    if p in (math.inf, -math.inf) and count_of(x, axes) == 0 and 0 in x.shape:
        raise RuntimeError(
            f"[norm] the extreme of no elements is not defined: order {p} for a shape of "
            f"{list(x.shape)}."
        )


def _norm(x: Any, p: Any, dim: Any, keepdim: bool) -> Any:
    axes = axes_of("norm", dim, x.ndim)
    _check_extreme(x, p, axes)
    options: Any = {"axis": axes, "keepdims": keepdim}
    real_of_floating("norm", _dtype.from_numpy_dtype(x.dtype))
    size = np.abs(x.astype(np.float32) if x.dtype in _dtype.NARROW else x)
    if p == 0:
        y = np.add.reduce(size != 0, **options)
    elif p in (math.inf, -math.inf):
        y = (np.max if p > 0 else np.min)(size, **options)
    elif p == 2:
        y = np.sqrt(add_up(size * size, axes, keepdim))
    else:
        y = add_up(size**p, axes, keepdim) ** size.dtype.type(1 / p)
    return y.astype(x.real.dtype)


def _norm_rule(x: Spec, p: Any, dim: Any, keepdim: bool) -> Spec:
    axes = axes_of("norm", dim, x.ndim)
    _check_extreme(x, p, axes)
    return Spec(reduced(x.shape, axes, keepdim=keepdim), real_of_floating("norm", x.dtype))


def _norm_grad(g: Any, s: Any) -> Any:
    x, p, out, g = s.input, s.p, kept(s.out, s), kept(g, s)
    if p == 0:
        return no_gradient.formula(x, s)
    if p in (math.inf, -math.inf):
        ties = x.abs() == out
        return x.sgn() * (ties * (g / ties.sum(s.dim, keepdim=True).to(g.dtype)))
    if p == 2:
        return (x * (g / out)).masked_fill(out == 0, 0)
    if p == 1:
        return x.sgn() * g
    slope = x.abs() ** (p - 1) * (g / out ** (p - 1))
    return x.sgn() * slope.masked_fill((out == 0) | (x == 0), 0)


norm = Primitive(
    "norm(Tensor input, Scalar p=2, int[1]? dim=None, bool keepdim=False) -> Tensor",
    "``sum(abs(input) ** p) ** (1 / p)``; also p = 0 (count of nonzero elements) and ±inf.",
    _norm,
    rule=_norm_rule,
    vjp={"input": Vjp(_norm_grad, "input", "out")},
    check_first=False,
    out=True,
    samples=lambda make: [
        Sample((make(2, 3),), name="all"),
        Sample((make(2, 3, 2, avoid=(0.0,)), 1, (0, 2)), name="1"),
        Sample((make(2, 3, avoid=(0.0,)), 3, 1, True), name="3"),
        Sample((make(5, avoid=(0.0,)), math.inf), name="inf"),
        Sample((make(5, avoid=(0.0,)), -math.inf), name="-inf"),
        Sample((make(5, avoid=(0.0,)), 0), name="0"),
        Sample((make(2, 3, dtype=_dtype.complex128),), name="complex"),
    ],
)
