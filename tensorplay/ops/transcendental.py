"""Exponentials, logarithms, trigonometric and hyperbolic functions, and the error function."""

from __future__ import annotations

import math

import numpy as np

from tensorplay.ops import _erf
from tensorplay.ops.elementwise import binary, conj_of, log_of, unary
from tensorplay.ops.primitive import Vjp

__all__ = ["erf", "exp", "log", "tanh"]

# --- exponentials and logarithms ------------------------------------------------------------------

exp = unary(
    "exp(Tensor input) -> Tensor",
    "Exponential ``e ** input``.",
    np.exp,
    vjp=Vjp(lambda g, s: g * conj_of(s.out), "out"),
)

exp2 = unary(
    "exp2(Tensor input) -> Tensor",
    "Power of two ``2 ** input``.",
    np.exp2,
    vjp=Vjp(lambda g, s: g * conj_of(s.out * math.log(2)), "out"),
)

expm1 = unary(
    "expm1(Tensor input) -> Tensor",
    "``e ** input - 1``, accurate near zero.",
    np.expm1,
    vjp=Vjp(lambda g, s: g * conj_of(s.out + 1), "out"),
)

log = unary(
    "log(Tensor input) -> Tensor",
    "Natural logarithm.",
    np.log,
    vjp=Vjp(lambda g, s: g / conj_of(s.input), "input"),
    low=0.2,
)

log2 = unary(
    "log2(Tensor input) -> Tensor",
    "Logarithm to base 2.",
    np.log2,
    vjp=Vjp(lambda g, s: g / conj_of(s.input * math.log(2)), "input"),
    low=0.2,
)

log10 = unary(
    "log10(Tensor input) -> Tensor",
    "Logarithm to base 10.",
    np.log10,
    vjp=Vjp(lambda g, s: g / conj_of(s.input * math.log(10)), "input"),
    low=0.2,
)

log1p = unary(
    "log1p(Tensor input) -> Tensor",
    "``log(1 + input)``, accurate near zero.",
    np.log1p,
    vjp=Vjp(lambda g, s: g / conj_of(s.input + 1), "input"),
    low=-0.7,
)

logaddexp = binary(
    "logaddexp(Tensor input, Tensor other) -> Tensor",
    "``log(exp(input) + exp(other))`` without overflow.",
    np.logaddexp,
    vjp={
        "input": Vjp(lambda g, s: g * (s.input - s.other).sigmoid(), "input", "other"),
        "other": Vjp(lambda g, s: g * (s.other - s.input).sigmoid(), "input", "other"),
    },
    to_float=True,
    real_only=True,
)

xlogy = binary(
    "xlogy(Tensor input, Tensor other) -> Tensor",
    "``input * log(other)``; zero where `input` is zero, unless `other` is NaN.",
    lambda x, y: np.where((x == 0) & ~np.isnan(y), x.dtype.type(0), x * np.log(y)),
    vjp={
        "input": Vjp(
            lambda g, s: (g * log_of(s.other)).masked_fill((s.input == 0) & (s.other <= 0), 0),
            "input",
            "other",
        ),
        "other": Vjp(lambda g, s: g * s.input / s.other, "input", "other"),
    },
    to_float=True,
    real_only=True,
    low=0.3,
)

# --- trigonometric functions ----------------------------------------------------------------------

sin = unary(
    "sin(Tensor input) -> Tensor",
    "Sine; radians.",
    np.sin,
    vjp=Vjp(lambda g, s: g * conj_of(s.input.cos()), "input"),
)

cos = unary(
    "cos(Tensor input) -> Tensor",
    "Cosine; radians.",
    np.cos,
    vjp=Vjp(lambda g, s: -g * conj_of(s.input.sin()), "input"),
)

tan = unary(
    "tan(Tensor input) -> Tensor",
    "Tangent; radians.",
    np.tan,
    vjp=Vjp(lambda g, s: g * conj_of(s.out * s.out + 1), "out"),
    low=-1.2,
    high=1.2,
)

asin = unary(
    "asin(Tensor input) -> Tensor",
    "Inverse sine, in [-π/2, π/2].",
    np.arcsin,
    vjp=Vjp(lambda g, s: g / conj_of((1 - s.input * s.input).sqrt()), "input"),
    low=-0.9,
    high=0.9,
    aliases=("arcsin",),
)

acos = unary(
    "acos(Tensor input) -> Tensor",
    "Inverse cosine, in [0, π].",
    np.arccos,
    vjp=Vjp(lambda g, s: -g / conj_of((1 - s.input * s.input).sqrt()), "input"),
    low=-0.9,
    high=0.9,
    aliases=("arccos",),
)

atan = unary(
    "atan(Tensor input) -> Tensor",
    "Inverse tangent, in (-π/2, π/2).",
    np.arctan,
    vjp=Vjp(lambda g, s: g / conj_of(s.input * s.input + 1), "input"),
    aliases=("arctan",),
)

atan2 = binary(
    "atan2(Tensor input, Tensor other) -> Tensor",
    "Angle of the point with height `input` and abscissa `other`, in [-π, π].",
    np.arctan2,
    vjp={
        "input": Vjp(
            lambda g, s: g * s.other / (s.input * s.input + s.other * s.other), "input", "other"
        ),
        "other": Vjp(
            lambda g, s: -g * s.input / (s.input * s.input + s.other * s.other), "input", "other"
        ),
    },
    to_float=True,
    real_only=True,
    low=0.3,
    aliases=("arctan2",),
)

hypot = binary(
    "hypot(Tensor input, Tensor other) -> Tensor",
    "``sqrt(input ** 2 + other ** 2)`` without overflow; gradient zero at the origin.",
    np.hypot,
    vjp={
        "input": Vjp(lambda g, s: (g * s.input / s.out).masked_fill(s.out == 0, 0), "input", "out"),
        "other": Vjp(lambda g, s: (g * s.other / s.out).masked_fill(s.out == 0, 0), "other", "out"),
    },
    to_float=True,
    real_only=True,
    low=0.3,
)

# --- hyperbolic functions -------------------------------------------------------------------------

sinh = unary(
    "sinh(Tensor input) -> Tensor",
    "Hyperbolic sine.",
    np.sinh,
    vjp=Vjp(lambda g, s: g * conj_of(s.input.cosh()), "input"),
)

cosh = unary(
    "cosh(Tensor input) -> Tensor",
    "Hyperbolic cosine.",
    np.cosh,
    vjp=Vjp(lambda g, s: g * conj_of(s.input.sinh()), "input"),
)

tanh = unary(
    "tanh(Tensor input) -> Tensor",
    "Hyperbolic tangent.",
    np.tanh,
    vjp=Vjp(lambda g, s: g * conj_of(1 - s.out * s.out), "out"),
)

asinh = unary(
    "asinh(Tensor input) -> Tensor",
    "Inverse hyperbolic sine.",
    np.arcsinh,
    vjp=Vjp(lambda g, s: g / conj_of((s.input * s.input + 1).sqrt()), "input"),
    aliases=("arcsinh",),
)

acosh = unary(
    "acosh(Tensor input) -> Tensor",
    "Inverse hyperbolic cosine, for `input` ≥ 1.",
    np.arccosh,
    # Two roots rather than one of the product: right for complex numbers of every quadrant.
    vjp=Vjp(lambda g, s: g / conj_of((s.input - 1).sqrt() * (s.input + 1).sqrt()), "input"),
    low=1.3,
    high=3.0,
    aliases=("arccosh",),
)

atanh = unary(
    "atanh(Tensor input) -> Tensor",
    "Inverse hyperbolic tangent, for `input` in [-1, 1].",
    np.arctanh,
    vjp=Vjp(lambda g, s: g / conj_of(1 - s.input * s.input), "input"),
    low=-0.9,
    high=0.9,
    aliases=("arctanh",),
)

# --- the error function ---------------------------------------------------------------------------

_SLOPE = 2 / math.sqrt(math.pi)

erf = unary(
    "erf(Tensor input) -> Tensor",
    "Error function: 2/√π times the integral of exp(-t²) from 0 to `input`.",
    _erf.erf,
    vjp=Vjp(lambda g, s: g * (s.input * -s.input).exp() * _SLOPE, "input"),
    real_only=True,
)

erfc = unary(
    "erfc(Tensor input) -> Tensor",
    "``1 - erf(input)``, accurate where it is small.",
    _erf.erfc,
    vjp=Vjp(lambda g, s: g * (s.input * -s.input).exp() * -_SLOPE, "input"),
    real_only=True,
)
