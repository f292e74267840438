"""Parts of complex numbers. Gradients are 2 ∂/∂z̄, so that g + i h moves the real part by g."""

from __future__ import annotations

from typing import Any

import numpy as np

from tensorplay import _dtype
from tensorplay._methods import attach
from tensorplay._tensor import Spec
from tensorplay.ops.dims import strides_of
from tensorplay.ops.elementwise import broadcast_shapes, no_bool, no_gradient, unary
from tensorplay.ops.primitive import Primitive, Sample, Vjp

__all__ = [
    "abs_",
    "angle",
    "complex_",
    "conj",
    "imag",
    "polar",
    "real",
    "sgn",
    "view_as_complex",
    "view_as_real",
]


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
        return Spec(x.shape, x.dtype, strides_of(x))
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

# --- pairs of real numbers ------------------------------------------------------------------------


def _view_as_real_rule(x: Spec) -> Spec:
    if not x.dtype.is_complex:
        message = (
            f"[view_as_real] argument 'input': expected a complex tensor, got {x.dtype!r}: "
            "view_as_real is only supported for complex tensors."
        )
        raise TypeError(message)
    strides = tuple(2 * step for step in strides_of(x))
    return Spec((*x.shape, 2), x.dtype.to_real(), (*strides, 1))


view_as_real: Primitive = Primitive(
    "view_as_real(Tensor(a) input) -> Tensor(a)",
    "The real and imaginary parts of a complex tensor as a last dimension of size 2: a view.",
    lambda x: x[..., None].view(x.real.dtype),
    rule=_view_as_real_rule,
    vjp={"input": Vjp(lambda g, s: view_as_complex.apply((g.contiguous(),)))},
    jvp="linear",
    method=False,
    samples=lambda make: [
        Sample((make(2, 3, dtype=_dtype.complex128),), name="complex"),
        Sample((make(3, 2, dtype=_dtype.complex128).t(),), name="transposed"),
        Sample((make(dtype=_dtype.complex128),), name="0-d"),
    ],
)


def _view_as_complex_rule(x: Spec) -> Spec:
    if x.dtype not in (_dtype.float32, _dtype.float64):
        message = (
            f"[view_as_complex] argument 'input': expected float32 or float64, got {x.dtype!r}: "
            "view_as_complex is only supported for floating point tensors with a complex type."
        )
        raise TypeError(message)
    if not x.ndim or x.shape[-1] != 2:
        message = (
            "[view_as_complex] argument 'input': Tensor must have a last dimension of size 2, got "
            f"{list(x.shape)}."
        )
        raise RuntimeError(message)
    strides = strides_of(x)
    empty = 0 in x.shape
    if not empty and (strides[-1] != 1 or any(step % 2 for step in strides[:-1])):
        message = (
            "[view_as_complex] argument 'input': Tensor must have a last dimension with stride 1 "
            f"and other strides divisible by 2, got {strides}. Write x.contiguous()."
        )
        raise RuntimeError(message)
    return Spec(x.shape[:-1], x.dtype.to_complex(), tuple(step // 2 for step in strides[:-1]))


view_as_complex: Primitive = Primitive(
    "view_as_complex(Tensor(a) input) -> Tensor(a)",
    "Complex numbers from pairs, the last dimension of size 2: a view.",
    lambda x: x.view(np.result_type(x.dtype, np.complex64))[..., 0],
    rule=_view_as_complex_rule,
    vjp={"input": Vjp(lambda g, s: view_as_real.apply((g,)))},
    jvp="linear",
    method=False,
    samples=lambda make: [
        Sample((make(2, 3, 2),), name="pairs"),
        Sample((make(2),), name="one"),
        Sample((make(3, 2, 2).transpose(0, 1),), name="transposed"),
    ],
)


def _of_parts(name: str, first: Any, second: Any) -> Spec:
    kinds = [x.dtype for x in (first, second)]
    if kinds[0] != kinds[1] or kinds[0] not in (_dtype.float32, _dtype.float64):
        message = (
            f"[{name}] expected both tensors to be float32, or both float64, got {kinds[0]!r} and "
            f"{kinds[1]!r}: Expected object of one scalar type."
        )
        raise TypeError(message)
    return Spec(broadcast_shapes(name, first.shape, second.shape), kinds[0].to_complex())


complex_ = Primitive(
    "complex(Tensor real, Tensor imag) -> Tensor",
    "``real + 1j * imag`` of two real tensors of one type.",
    lambda real, imag: real + np.complex64(1j) * imag,
    rule=lambda real, imag: _of_parts("complex", real, imag),
    vjp={"real": Vjp(lambda g, s: g.real), "imag": Vjp(lambda g, s: g.imag)},
    jvp="linear",
    method=False,
    samples=lambda make: [
        Sample((make(2, 3), make(2, 3)), name="same"),
        Sample((make(2, 1), make(3)), name="broadcast"),
    ],
)


def _turned(s: Any) -> Any:
    return complex_.apply((s.angle.cos(), s.angle.sin()))


polar = Primitive(
    "polar(Tensor abs, Tensor angle) -> Tensor",
    "``abs * exp(1j * angle)`` of two real tensors of one type; `angle` is in radians.",
    lambda size, angle: size * (np.cos(angle) + np.complex64(1j) * np.sin(angle)),
    rule=lambda size, angle: _of_parts("polar", size, angle),
    vjp={
        "abs": Vjp(lambda g, s: (g * _turned(s).conj()).real, "angle"),
        "angle": Vjp(lambda g, s: (g * (s.out * 1j).conj()).real, "out"),
    },
    jvp=lambda t, s: sum(
        term
        for term in (
            None if t.abs is None else _turned(s) * t.abs,
            None if t.angle is None else s.out * 1j * t.angle,
        )
        if term is not None
    ),
    method=False,
    samples=lambda make: [
        Sample((make(2, 3), make(2, 3)), name="same"),
        Sample((make(2, 1), make(3)), name="broadcast"),
    ],
)
