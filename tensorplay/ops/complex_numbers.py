"""Parts of complex numbers. Gradients are 2 ∂/∂z̄, so that g + i h moves the real part by g."""

from __future__ import annotations

from typing import Any

import numpy as np

from tensorplay import _dtype
from tensorplay._methods import attach
from tensorplay._tensor import Spec
from tensorplay.ops.dims import strides_of
from tensorplay.ops.elementwise import no_bool, no_gradient, unary
from tensorplay.ops.primitive import Primitive, Sample, Vjp

__all__ = ["abs_", "angle", "conj", "imag", "real", "sgn"]


def _complex_samples(make: Any) -> list[Sample]:
    return [
        Sample((make(2, 3),), name="real"),
        Sample((make(2, 3, dtype=_dtype.complex128, low=0.3),), name="complex"),
        Sample((make(3, 2, dtype=_dtype.complex128, low=0.3).t(),), name="transposed"),
    ]


conj = unary(
    "conj(Tensor input) -> Tensor",
    "Complex conjugate.",
    np.conj,
    vjp=Vjp(lambda g, s: g.conj()),
    jvp="linear",
    to_float=False,
    samples=_complex_samples,
)


def _component(x: Spec) -> Spec:
    if not x.dtype.is_complex:
        return x
    return Spec(x.shape, x.dtype.to_real(), tuple(2 * step for step in strides_of(x)))


real = Primitive(
    "real(Tensor(a) input) -> Tensor(a)",
    "Real part: a view.",
    lambda x: x.real,
    rule=_component,
    vjp={"input": Vjp(lambda g, s: g)},
    jvp="linear",
    check_first=False,
    samples=_complex_samples,
    method=False,
)
attach("real", property(lambda self: real.apply((self,)), doc=real.doc))


def _imaginary_rule(x: Spec) -> Spec:
    if not x.dtype.is_complex:
        message = (
            f"[imag] argument 'input': expected a complex tensor, got {x.dtype!r}: imag is not "
            "implemented for tensors with non-complex dtypes."
        )
        raise TypeError(message)
    return _component(x)


imag = Primitive(
    "imag(Tensor(a) input) -> Tensor(a)",
    "Imaginary part of a complex tensor: a view.",
    lambda x: x.imag,
    rule=_imaginary_rule,
    vjp={"input": Vjp(lambda g, s: g * 1j)},
    jvp="linear",
    samples=lambda make: _complex_samples(make)[1:],
    method=False,
)
attach("imag", property(lambda self: imag.apply((self,)), doc=imag.doc))


def _sgn_grad(g: Any, s: Any) -> Any:
    if not s.input.dtype.is_complex:
        return no_gradient.formula(g, s)
    unit = s.input.sgn()  # the part of g along the number goes, the rest turns it
    return ((g - unit * (g * unit.conj()).real) / s.input.abs()).masked_fill(s.input == 0, 0)


def _sgn(x: Any) -> Any:
    if x.dtype.kind != "c":
        return np.sign(x)
    size = np.abs(x)
    return np.where(size == 0, 0, x / size)


sgn = unary(
    "sgn(Tensor input) -> Tensor",
    "``input / abs(input)``, zero at zero.",
    _sgn,
    vjp=Vjp(_sgn_grad, "input"),
    jvp=lambda t, s: _sgn_grad(t.input, s),
    to_float=False,
    samples=_complex_samples,
    check=no_bool,
)


def _real_part(g: Any) -> Any:
    """Part of the gradient that reaches a real result, complex where it was written in place."""
    return g.real if g.dtype.is_complex else g


abs_ = unary(
    "abs(Tensor input) -> Tensor",
    "Absolute value; gradient zero at zero.",
    np.abs,
    vjp=Vjp(lambda g, s: _real_part(g) * s.input.sgn(), "input"),
    jvp=lambda t, s: (
        (t.input * s.input.sgn().conj()).real if s.input.dtype.is_complex
        else t.input * s.input.sgn()
    ),
    to_float=False,
    out=lambda d: d.to_real(),
    dunders=("__abs__",),
    aliases=("absolute",),
    samples=_complex_samples,
)  # fmt: skip


def _angle_grad(g: Any, s: Any) -> Any:
    z = s.input
    if not z.dtype.is_complex:
        return no_gradient.formula(g, s)
    return (_real_part(g) * (z * 1j) / (z * z.conj()).real).masked_fill(z == 0, 0)


def _angle_jvp(t: Any, s: Any) -> Any:
    z = s.input
    if not z.dtype.is_complex:
        return no_gradient.formula(t.input, s)
    return ((t.input * z.conj()).imag / (z * z.conj()).real).masked_fill(z == 0, 0)


angle = unary(
    "angle(Tensor input) -> Tensor",
    "Argument of a complex number, in radians; 0 or π for real numbers.",
    np.angle,
    vjp=Vjp(_angle_grad, "input"),
    jvp=_angle_jvp,
    out=lambda d: d.to_real(),
    samples=_complex_samples,
)
