"""Activations: the nonlinear functions of neural networks that act on each element."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tensorplay import _native
from tensorplay.ops import _erf
from tensorplay.ops.elementwise import conj_of, no_bool, unary
from tensorplay.ops.masks import masked_fill
from tensorplay.ops.primitive import Sample, Vjp

__all__ = ["elu", "gelu", "hardtanh", "leaky_relu", "relu", "sigmoid", "silu", "softplus"]


def _sigmoid(x: Any) -> Any:
    one = x.dtype.type(1)
    if x.dtype.kind == "c":
        return one / (one + np.exp(-x))
    # exp of a negative number cannot overflow; both branches share it.
    e = np.exp(-np.abs(x))
    return np.where(x >= 0, one, e) / (one + e)


sigmoid = unary(
    "sigmoid(Tensor input) -> Tensor",
    "Logistic function ``1 / (1 + exp(-input))``.",
    _sigmoid,
    vjp=Vjp(lambda g, s: g * conj_of(s.out * (1 - s.out)), "out"),
)


def _relu_array(g: Any, args: Any, shapes: Any, out: Any) -> Any:
    if _native.core is not None:
        found = _native.core.relu_gradient(g, out)
        if found is not None:
            return found
    return masked_fill.impl(g, out <= 0, 0)  # as the formula does, also in how the result lies


relu = unary(
    "relu(Tensor input) -> Tensor",
    "Positive part ``max(input, 0)``; gradient zero at zero.",
    lambda x: np.maximum(x, x.dtype.type(0)),
    vjp=Vjp(lambda g, s: g.masked_fill(s.out <= 0, 0), "out", arrays=_relu_array),
    to_float=False,
    real_only=True,
    kinks=(0.0,),
    check=no_bool,
)

silu = unary(
    "silu(Tensor input) -> Tensor",
    "``input * sigmoid(input)`` (Elfwing et al., 2018).",
    lambda x: x * _sigmoid(x),
    vjp=Vjp(lambda g, s: g * conj_of(_silu_slope(s.input, s.input.sigmoid())), "input"),
)


def _silu_slope(x: Any, sigmoid: Any) -> Any:
    return sigmoid * (x * (1 - sigmoid) + 1)


softplus = unary(
    "softplus(Tensor input, float beta=1.0, float threshold=20.0) -> Tensor",
    "``log(1 + exp(beta * input)) / beta``; `input` itself where ``beta * input > threshold``.",
    lambda x, beta, threshold: np.where(
        x * beta > threshold, x, np.logaddexp(x * beta, x.dtype.type(0)) / x.dtype.type(beta)
    ),
    vjp=Vjp(
        lambda g, s: g.where(s.input * s.beta > s.threshold, g * (s.input * s.beta).sigmoid()),
        "input",
    ),
    real_only=True,
    samples=lambda make: [
        Sample((make(2, 3),), name="default"),
        Sample((make(4), 2.5), name="beta"),
        Sample((make(6, avoid=(0.5,)), 2.0, 1.0), name="threshold"),
    ],
)

_ROOT_HALF = math.sqrt(0.5)
_DENSITY = 1 / math.sqrt(2 * math.pi)
_TANH_SCALE, _TANH_CUBIC = math.sqrt(2 / math.pi), 0.044715


def _gelu(x: Any, approximate: str) -> Any:
    if approximate == "tanh":
        inner = _TANH_SCALE * (x + _TANH_CUBIC * x * x * x)
        return 0.5 * x * (1 + np.tanh(inner))
    if approximate != "none":
        message = f"[gelu] argument 'approximate': expected 'none' or 'tanh', got {approximate!r}."
        raise ValueError(message)
    # Φ(x) by the complement, which keeps the small values left of zero.
    return x * (0.5 * _erf.erfc(x * -_ROOT_HALF)).astype(x.dtype)


def _gelu_grad(g: Any, s: Any) -> Any:
    x = s.input
    if s.approximate == "none":
        normal = (x * -_ROOT_HALF).erfc() * 0.5
        return g * (normal + x * (x * x * -0.5).exp() * _DENSITY)
    squared = x * x
    t = ((squared * (_TANH_SCALE * _TANH_CUBIC) + _TANH_SCALE) * x).tanh()
    # Beyond, the hyperbolic tangent is 1 in all types, and a square may be infinite.
    slope = squared.clamp(max=1e3) * (3 * _TANH_SCALE * _TANH_CUBIC) + _TANH_SCALE
    weight = t * 0.5 + 0.5
    return g * (weight + x * weight * (1 - t) * slope)


gelu = unary(
    "gelu(Tensor input, *, str approximate='none') -> Tensor",
    "``input * Φ(input)``, Φ the normal distribution; ``approximate='tanh'`` avoids erf "
    "(Hendrycks and Gimpel, 2016).",
    _gelu,
    vjp=Vjp(_gelu_grad, "input"),
    real_only=True,
    samples=lambda make: [
        Sample((make(2, 3),), name="exact"),
        Sample((make(3),), {"approximate": "tanh"}, name="tanh"),
    ],
)


leaky_relu = unary(
    "leaky_relu(Tensor input, float negative_slope=0.01) -> Tensor",
    "`input` where it is positive, ``negative_slope * input`` elsewhere.",
    lambda x, slope: np.where(x > 0, x, x * x.dtype.type(slope)),
    vjp=Vjp(lambda g, s: g.where(s.input > 0, g * s.negative_slope), "input"),
    real_only=True,
    method=False,
    inplace=False,
    samples=lambda make: [
        Sample((make(2, 3, avoid=(0.0,)),), name="default"),
        Sample((make(5, avoid=(0.0,)), 0.3), name="slope"),
    ],
)

elu = unary(
    "elu(Tensor input, float alpha=1.0) -> Tensor",
    "`input` where it is positive, ``alpha * (exp(input) - 1)`` elsewhere (Clevert et al., 2016).",
    # The exponent of the positive half, which is not used, must not overflow.
    lambda x, alpha: np.where(x > 0, x, np.expm1(np.minimum(x, 0)) * x.dtype.type(alpha)),
    vjp=Vjp(lambda g, s: g.where(s.input > 0, g * s.input.clamp(max=0).exp() * s.alpha), "input"),
    real_only=True,
    method=False,
    inplace=False,
    samples=lambda make: [
        Sample((make(2, 3, avoid=(0.0,)),), name="default"),
        Sample((make(5, avoid=(0.0,)), 0.7), name="alpha"),
    ],
)


def _hardtanh(x: Any, low: float, high: float) -> Any:
    if low > high:
        message = (
            f"[hardtanh] argument 'max_val': expected at least min_val, got min_val={low} and "
            f"max_val={high}."
        )
        raise ValueError(message)
    return np.clip(x, x.dtype.type(low), x.dtype.type(high))


hardtanh = unary(
    "hardtanh(Tensor input, float min_val=-1.0, float max_val=1.0) -> Tensor",
    "`input` limited to the interval from `min_val` to `max_val`; gradient zero at the limits.",
    _hardtanh,
    vjp=Vjp(
        lambda g, s: g.masked_fill((s.input <= s.min_val) | (s.input >= s.max_val), 0), "input"
    ),
    real_only=True,
    method=False,
    inplace=False,
    samples=lambda make: [
        Sample((make(2, 3, avoid=(-1.0, 1.0)),), name="default"),
        Sample((make(5, avoid=(-0.5, 0.25)), -0.5, 0.25), name="limits"),
    ],
)
