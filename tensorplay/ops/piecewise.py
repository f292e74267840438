"""Elementwise functions made of pieces: signs, rounding, limits, the larger and the smaller."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from typing import Any

import numpy as np

from tensorplay import _dtype
from tensorplay._dtype import dtype
from tensorplay._tensor import Spec
from tensorplay.ops.arguments import check_held
from tensorplay.ops.elementwise import (
    binary,
    broadcast_shapes,
    cast,
    no_bool,
    no_gradient,
    result_type,
    unary,
)
from tensorplay.ops.primitive import Primitive, Sample, Vjp

__all__ = ["clamp", "maximum", "minimum"]

# --- signs and rounding ---------------------------------------------------------------------------

_WHOLE = tuple(float(n) for n in range(-3, 4))
_HALVES = tuple(n + 0.5 for n in range(-3, 4))

sign = unary(
    "sign(Tensor input) -> Tensor",
    "-1, 0 or 1 by the sign; complex numbers have `sgn`.",
    np.sign,
    vjp=no_gradient,
    to_float=False,
    real_only=True,
    kinks=(0.0,),
    check=no_bool,
)

floor = unary(
    "floor(Tensor input) -> Tensor",
    "Largest integer that is not larger.",
    np.floor,
    vjp=no_gradient,
    to_float=False,
    real_only=True,
    kinks=_WHOLE,
    dunders=("__floor__",),
)

ceil = unary(
    "ceil(Tensor input) -> Tensor",
    "Smallest integer that is not smaller.",
    np.ceil,
    vjp=no_gradient,
    to_float=False,
    real_only=True,
    kinks=_WHOLE,
    dunders=("__ceil__",),
)

trunc = unary(
    "trunc(Tensor input) -> Tensor",
    "Integer part.",
    np.trunc,
    vjp=no_gradient,
    to_float=False,
    real_only=True,
    kinks=_WHOLE,
    dunders=("__trunc__",),
    aliases=("fix",),
)

frac = unary(
    "frac(Tensor input) -> Tensor",
    "``input - trunc(input)``.",
    lambda x: x - np.trunc(x),
    vjp=Vjp(lambda g, s: g),
    to_float=False,
    real_only=True,
    kinks=_WHOLE,
    check=no_bool,
)

round_ = unary(
    "round(Tensor input, *, int decimals=0) -> Tensor",
    "Nearest number with `decimals` digits after the point; halves go to the even one.",
    np.round,
    vjp=no_gradient,
    to_float=False,
    real_only=True,
    kinks=_HALVES,
)


def _nan_to_num(x: Any, nan: float | None, posinf: float | None, neginf: float | None) -> Any:
    if x.dtype.kind in "biu":
        return x.copy()
    limits = _dtype.finfo(_dtype.from_numpy_dtype(x.dtype))
    return np.nan_to_num(
        x,
        nan=0.0 if nan is None else nan,
        posinf=limits.max if posinf is None else posinf,
        neginf=limits.min if neginf is None else neginf,
    )


nan_to_num = unary(
    "nan_to_num(Tensor input, float? nan=0.0, float? posinf=None, float? neginf=None) -> Tensor",
    "Numbers in place of NaN and infinities: by default zero and the largest of the type.",
    _nan_to_num,
    vjp=Vjp(lambda g, s: g.masked_fill(s.input.isfinite().logical_not(), 0), "input"),
    to_float=False,
    real_only=True,
)

# --- the larger and the smaller -------------------------------------------------------------------


def _winner(g: Any, loses: Any, ties: Any) -> Any:
    """Gradient of the operand that was chosen; both get half where they are equal."""
    return g.masked_fill(loses, 0) * (1 - ties * 0.5)


maximum = binary(
    "maximum(Tensor input, Tensor other) -> Tensor",
    "The larger of both; NaN if one is. Equal operands share the gradient.",
    np.maximum,
    vjp={
        "input": Vjp(
            lambda g, s: _winner(g, s.input < s.other, s.input == s.other), "input", "other"
        ),
        "other": Vjp(
            lambda g, s: _winner(g, s.other < s.input, s.input == s.other), "input", "other"
        ),
    },
    real_only=True,
)

minimum = binary(
    "minimum(Tensor input, Tensor other) -> Tensor",
    "The smaller of both; NaN if one is. Equal operands share the gradient.",
    np.minimum,
    vjp={
        "input": Vjp(
            lambda g, s: _winner(g, s.input > s.other, s.input == s.other), "input", "other"
        ),
        "other": Vjp(
            lambda g, s: _winner(g, s.other > s.input, s.input == s.other), "input", "other"
        ),
    },
    real_only=True,
)


def _isnan(x: Any) -> Any:
    return x != x  # noqa: PLR0124 - of tensors and numbers alike


fmax = binary(
    "fmax(Tensor input, Tensor other) -> Tensor",
    "The larger of both; the other one if one is NaN.",
    np.fmax,
    vjp={
        "input": Vjp(
            lambda g, s: _winner(g, (s.input < s.other) | _isnan(s.input), s.input == s.other),
            "input",
            "other",
        ),
        "other": Vjp(
            lambda g, s: _winner(g, (s.other < s.input) | _isnan(s.other), s.input == s.other),
            "input",
            "other",
        ),
    },
    real_only=True,
)

fmin = binary(
    "fmin(Tensor input, Tensor other) -> Tensor",
    "The smaller of both; the other one if one is NaN.",
    np.fmin,
    vjp={
        "input": Vjp(
            lambda g, s: _winner(g, (s.input > s.other) | _isnan(s.input), s.input == s.other),
            "input",
            "other",
        ),
        "other": Vjp(
            lambda g, s: _winner(g, (s.other > s.input) | _isnan(s.other), s.input == s.other),
            "input",
            "other",
        ),
    },
    real_only=True,
)

copysign = binary(
    "copysign(Tensor input, Tensor other) -> Tensor",
    "Size of `input` with the sign of `other`.",
    np.copysign,
    vjp={
        "input": Vjp(lambda g, s: g * s.input.sgn() * s.out.sgn(), "input", "out"),
        "other": no_gradient,
    },
    to_float=True,
    real_only=True,
    low=0.3,
)

nextafter = binary(
    "nextafter(Tensor input, Tensor other) -> Tensor",
    "The number of the type that follows `input` in the direction of `other`.",
    np.nextafter,
    vjp={"input": Vjp(lambda g, s: g), "other": no_gradient},
    to_float=True,
    real_only=True,
)

# --- limits ---------------------------------------------------------------------------------------


def _limits(name: str, x: Any, low: Any, high: Any) -> tuple[dtype, list[Any]]:
    given = [x, *[v for v in (low, high) if v is not None]]
    if len(given) == 1:
        message = f"[{name}] at least one of 'min' or 'max' must not be None."
        raise ValueError(message)
    d = result_type(*given)
    if d.is_complex:
        message = f"[{name}] argument 'input': expected a real tensor, got {d!r}."
        raise TypeError(message)
    for limit, needless in ((low, operator.le), (high, operator.ge)):
        if not _is_needless(limit, d, needless):
            check_held(name, limit, d)
    return d, given


def _is_needless(limit: Any, d: dtype, beyond: Any) -> bool:
    """Tell whether a limit, a number, changes nothing: it lies beyond the integers of type `d`."""
    if type(limit) not in (int, float) or d.category != _dtype.INTEGER:
        return False
    info = _dtype.iinfo(d)
    return bool(beyond(limit, info.min if beyond is operator.le else info.max))


def _clamp(x: Any, low: Any, high: Any) -> Any:
    d, _ = _limits("clamp", x, low, high)
    result = cast(x, d)
    if low is not None and not _is_needless(low, d, operator.le):
        result = np.maximum(result, cast(low, d))
    if high is not None and not _is_needless(high, d, operator.ge):
        result = np.minimum(result, cast(high, d))
    return result.copy() if result is x else result


def _clamp_rule(x: Any, low: Any, high: Any) -> Spec:
    d, given = _limits("clamp", x, low, high)
    shapes = [v.shape if isinstance(v, Spec) else () for v in given]
    return Spec(broadcast_shapes("clamp", *shapes), d)


def _clamp_grad(g: Any, s: Any) -> Any:
    if s.min is not None:
        g = g.masked_fill(s.input < s.min, 0)
    return g if s.max is None else g.masked_fill(s.input > s.max, 0)


def _clamp_grad_min(g: Any, s: Any) -> Any:
    g = g.masked_fill(s.input >= s.min, 0)
    return g if s.max is None else g.masked_fill(s.min > s.max, 0)


def _clamp_grad_max(g: Any, s: Any) -> Any:
    if s.min is None:
        return g.masked_fill(s.input <= s.max, 0)
    return g.masked_fill((s.input <= s.max) & (s.min <= s.max), 0)


def _clamp_samples(make: Any) -> Iterable[Sample]:
    x = make(2, 5, avoid=(-1.0, 0.5, 0.7))
    yield Sample((x, -1.0, 0.5), name="numbers")
    yield Sample((x, None, 0.5), name="max")
    yield Sample((x,), {"min": -1.0}, name="min")
    yield Sample((x, 0.7, -1.0), name="crossed")
    yield Sample((x, make(5, low=-1.0, high=-0.4), make(2, 1, low=0.2, high=0.8)), name="tensors")


clamp = Primitive(
    "clamp(Tensor input, Tensor? min=None, Tensor? max=None) -> Tensor",
    "``minimum(maximum(input, min), max)``; the limits may be numbers, tensors or None.",
    _clamp,
    rule=_clamp_rule,
    vjp={
        "input": Vjp(_clamp_grad, "input", "min", "max"),
        "min": Vjp(_clamp_grad_min, "input", "min", "max"),
        "max": Vjp(_clamp_grad_max, "input", "min", "max"),
    },
    jvp="elementwise",
    scalars=True,
    check_first=False,
    inplace=True,
    aliases=("clip",),
    samples=_clamp_samples,
)
