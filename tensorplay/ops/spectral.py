"""Discrete Fourier transforms, over one dimension or several.

All of them are compositions of two primitives: the transform of a complex tensor, and that of a
real one, of which half the result says all. Sizes are changed before by cutting, or by zeros.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from tensorplay import _dtype
from tensorplay._tensor import Spec, Tensor
from tensorplay.ops.arrangement import pad, roll
from tensorplay.ops.dims import wrap_dim
from tensorplay.ops.movement import Ints
from tensorplay.ops.primitive import Composite, Primitive, Sample, Vjp

__all__ = ["FOURIER"]

_ADMITTED = (_dtype.float32, _dtype.float64, _dtype.complex64, _dtype.complex128)

# --- the two primitives ---------------------------------------------------------------------------


def _complex_transform(x: Any, dim: Ints, forward: bool) -> Any:
    # NumPy's unnormalised directions: the factors are the caller's.
    transform = np.fft.fftn if forward else np.fft.ifftn
    out = transform(x, axes=dim, norm="backward" if forward else "forward")
    return out.astype(x.dtype, copy=False)


complex_transform: Primitive = Primitive(
    "_fft_c2c(Tensor input, int[] dim, bool forward) -> Tensor",
    "Sums of ``input * exp(∓2πi jk/n)`` over the dimensions `dim`, of a complex tensor.",
    _complex_transform,
    rule=lambda x, dim, forward: Spec(x.shape, x.dtype),
    vjp={"input": Vjp(lambda g, s: complex_transform.apply((g, s.dim, not s.forward)))},
    jvp="linear",
    check_first=False,
    function=False,
    method=False,
    samples=lambda make: [
        Sample((make(3, dtype=_dtype.complex128), (0,), True), name="forward"),
        Sample((make(2, 3, dtype=_dtype.complex128), (0, 1), False), name="backward"),
    ],
)


def _half_rule(x: Spec, dim: int) -> Spec:
    half = x.shape[dim] // 2 + 1
    return Spec((*x.shape[:dim], half, *x.shape[dim + 1 :]), x.dtype.to_complex())


def _half_transform(x: Any, dim: int) -> Any:
    out = np.fft.rfft(x, axis=dim)
    return out.astype(_dtype.from_numpy_dtype(x.dtype).to_complex().numpy, copy=False)


half_transform: Primitive = Primitive(
    "_fft_r2c(Tensor input, int dim) -> Tensor",
    "Sums of ``input * exp(-2πi jk/n)`` over one dimension, of a real tensor, for k up to n/2.",
    _half_transform,
    rule=_half_rule,
    vjp={"input": Vjp(lambda g, s: real_sum.apply((g, s.dim, s.specs["input"].shape[s.dim])))},
    jvp="linear",
    check_first=False,
    function=False,
    method=False,
    samples=lambda make: [
        Sample((make(4), 0), name="even"),
        Sample((make(2, 3), 1), name="odd"),
        Sample((make(1), 0), name="one"),
    ],
)


def _ends(n: int, count: int) -> list[int]:
    """Return which of the first n/2 + 1 frequencies stand for themselves alone."""
    return [k for k in (0, n // 2 if n % 2 == 0 else 0) if k < count]


def _real_sum(g: Any, dim: int, n: int) -> Any:
    """Return the real parts of the sums of ``g * exp(2πi jk/n)`` over the frequencies given.

    The inverse transform counts all but the ends twice, and only real parts of the ends.
    """
    halved = np.moveaxis(g * g.dtype.type(0.5), dim, -1).copy()
    for k in set(_ends(n, halved.shape[-1])):
        halved[..., k] *= 2
    out = np.fft.irfft(halved, n, norm="forward")
    return np.moveaxis(out, -1, dim).astype(g.real.dtype, order="C", copy=False)


real_sum: Primitive = Primitive(
    "_fft_c2r_adjoint(Tensor input, int dim, int n) -> Tensor",
    "Real parts of the sums of ``input * exp(2πi jk/n)``: the adjoint of the real transform.",
    _real_sum,
    rule=lambda g, dim, n: Spec((*g.shape[:dim], n, *g.shape[dim + 1 :]), g.dtype.to_real()),
    vjp={"input": Vjp(lambda g, s: half_transform.apply((g, s.dim)))},
    jvp="linear",
    check_first=False,
    function=False,
    method=False,
    samples=lambda make: [
        Sample((make(3, dtype=_dtype.complex128), 0, 4), name="even"),
        Sample((make(2, 2, dtype=_dtype.complex128), 1, 3), name="odd"),
    ],
)

# --- arguments ------------------------------------------------------------------------------------


def _admitted(where: str, x: Tensor) -> Any:
    """Return `x` in a type that has a transform: integers become floats."""
    if not x._dtype.is_differentiable:
        return x.to(_dtype.get_default_dtype())
    if x._dtype not in _ADMITTED:
        raise TypeError(
            f"[{where}] argument 'input': expected float32, float64, complex64 or complex128, got "
            f"{x._dtype!r}: Unsupported dtype. Write x.float()."
        )
    return x


def _as_complex(x: Any) -> Any:
    return x if x.dtype.is_complex else x.to(x.dtype.to_complex())


def _resized(x: Any, dims: Sequence[int], sizes: Sequence[int]) -> Any:
    """Cut each dimension to its size, or fill it up with zeros."""
    widths = [0] * (2 * x.ndim)
    for dim, size in zip(dims, sizes, strict=True):
        widths[2 * (x.ndim - 1 - dim) + 1] = size - x.shape[dim]
    return pad.apply((x, widths, "constant", None)) if any(widths) else x


def _scale(where: str, norm: str | None, count: int, *, forward: bool) -> float:
    """Return the factor of a transform of `count` elements."""
    if norm not in (None, "backward", "ortho", "forward"):
        raise RuntimeError(
            f"[{where}] argument 'norm': Invalid normalization mode: {norm!r}, expected "
            "'backward', 'ortho' or 'forward'."
        )
    if norm == "ortho":
        return 1 / math.sqrt(count)
    return 1 / count if (norm == "forward") == forward else 1.0


def _dims(where: str, x: Any, s: Ints | None, dim: Ints | None) -> tuple[list[int], list[int]]:
    """Return the dimensions to transform and the sizes that they get; -1 keeps a size."""
    if dim is None:
        if s is not None and len(s) > x.ndim:
            raise RuntimeError(
                f"[{where}] argument 's': Got shape with {len(s)} values but input tensor only has "
                f"{x.ndim} dimensions."
            )
        dims = list(range(x.ndim) if s is None else range(x.ndim - len(s), x.ndim))
    else:
        if not x.ndim and dim:
            raise IndexError(f"[{where}] argument 'dim': a 0-d tensor has no dimension {dim[0]}.")
        dims = [wrap_dim(where, d, x.ndim) for d in dim]
    if len(set(dims)) != len(dims):
        raise RuntimeError(f"[{where}] argument 'dim': FFT dims must be unique, got {dim}.")
    if s is not None and len(s) != len(dims):
        raise RuntimeError(
            f"[{where}] argument 's': When given, dim and s must have the same length, got "
            f"{len(dims)} and {len(s)}."
        )
    sizes = [x.shape[d] for d in dims] if s is None else list(s)
    return dims, [x.shape[d] if n == -1 else n for d, n in zip(dims, sizes, strict=True)]


def _check_sizes(where: str, sizes: Sequence[int]) -> None:
    if any(n < 1 for n in sizes):
        raise RuntimeError(
            f"[{where}] Invalid number of data points ({min(sizes)}) specified: expected at least "
            "1."
        )


# --- several dimensions ---------------------------------------------------------------------------


def _full(where: str, x: Tensor, s: Any, dim: Any, norm: Any, *, forward: bool) -> Any:
    value = _as_complex(_admitted(where, x))
    dims, sizes = _dims(where, value, s, dim)
    _check_sizes(where, sizes)
    scale = _scale(where, norm, math.prod(sizes), forward=forward)
    if dims:
        value = complex_transform.apply((_resized(value, dims, sizes), dims, forward))
    return value * scale if scale != 1 else value.clone() if value is x else value


def _to_half(where: str, x: Tensor, s: Any, dim: Any, norm: Any, *, forward: bool = True) -> Any:
    value = _admitted(where, x)
    if value.dtype.is_complex:
        raise TypeError(
            f"[{where}] argument 'input': expects a real input tensor, got {value.dtype!r}. "
            "Use the transform of complex tensors, or write x.real."
        )
    dims, sizes = _dims(where, value, s, dim)
    if not dims:
        raise RuntimeError(f"[{where}] must transform at least one axis.")
    _check_sizes(where, sizes)
    scale = _scale(where, norm, math.prod(sizes), forward=forward)
    value = half_transform.apply((_resized(value, dims, sizes), dims[-1]))
    if not forward:  # the other direction of a real tensor is the conjugate
        value = value.conj()
    if len(dims) > 1:
        value = complex_transform.apply((value, dims[:-1], forward))
    return value if scale == 1 else value * scale


def _from_half(where: str, x: Tensor, s: Any, dim: Any, norm: Any, *, forward: bool = False) -> Any:
    value = _as_complex(_admitted(where, x))
    dims, sizes = _dims(where, value, s, dim)
    if not dims:
        raise RuntimeError(f"[{where}] must transform at least one axis.")
    last = dims[-1]
    if s is None or s[-1] == -1:
        sizes[-1] = 2 * (value.shape[last] - 1)
    _check_sizes(where, sizes)
    scale = _scale(where, norm, math.prod(sizes), forward=forward)
    n, half = sizes[-1], sizes[-1] // 2 + 1
    value = _resized(value, dims, [*sizes[:-1], half])
    if len(dims) > 1:
        value = complex_transform.apply((value, dims[:-1], forward))
    if forward:
        value = value.conj()
    # The frequencies that are left out are the conjugates of those between the ends.
    weights = np.full(half, 2.0)
    weights[_ends(n, half)] = 1.0
    shape = [1] * value.ndim
    shape[last] = half
    factors = value.new_tensor(weights.reshape(shape) * scale, dtype=value.dtype.to_real())
    return real_sum.apply((value * factors, last, n))


_MANY: dict[str, tuple[Callable[..., Any], bool, str]] = {
    "fftn": (_full, True, "Transform of a tensor"),
    "ifftn": (_full, False, "Inverse transform of a tensor"),
    "rfftn": (_to_half, True, "Transform of a real tensor: half of the last dimension"),
    "irfftn": (_from_half, False, "Inverse of ``rfftn``: a real tensor"),
    "hfftn": (_from_half, True, "Transform of half of a Hermitian tensor: a real tensor"),
    "ihfftn": (_to_half, False, "Inverse of ``hfftn``: half of a Hermitian tensor"),
}


def _samples(function: Callable[..., Any], *, many: bool) -> Any:
    d = _dtype.float64 if function is _to_half else _dtype.complex128

    def samples(make: Any) -> Iterable[Sample]:
        if many:
            yield Sample((make(2, 3, dtype=d),), name="all")
            yield Sample((make(2, 3, dtype=d), (4,), (0,)), {"norm": "ortho"}, name="sizes")
            yield Sample((make(2, 2, 3, dtype=d), None, (0, -1), "forward"), name="dims")
        else:
            yield Sample((make(4, dtype=d),), name="plain")
            yield Sample((make(3, 2, dtype=d), 5, 0, "ortho"), name="longer")
            yield Sample((make(2, 5, dtype=d), 3, -1, "forward"), name="shorter")

    return samples


FOURIER: dict[str, Composite] = {}


def _define(name: str, function: Callable[..., Any], forward: bool, doc: str) -> None:
    """Define the transform of all dimensions, of two and of one."""
    many, two, one = f"fft_{name}", f"fft_{name[:-1]}2", f"fft_{name[:-1]}"

    def body(x: Tensor, s: Any, dim: Any, norm: Any) -> Any:
        return function(many, x, s, dim, norm, forward=forward)

    def body_of_two(x: Tensor, s: Any, dim: Any, norm: Any) -> Any:
        return function(two, x, s, dim, norm, forward=forward)

    def body_of_one(x: Tensor, n: int | None, dim: int, norm: Any) -> Any:
        return function(one, x, None if n is None else (n,), (dim,), norm, forward=forward)

    options: dict[str, Any] = {"function": False, "method": False}
    for qualified, text, arguments, run, place in (
        (many, f"{doc}, over the dimensions `dim`, by default all",
         "int[1]? s=None, int[1]? dim=None", body, True),
        (two, f"{doc}, over two dimensions", "int[1]? s=None, int[1] dim=[-2, -1]", body_of_two,
         None),
        (one, f"{doc}, over one dimension", "int? n=None, int dim=-1", body_of_one, False),
    ):  # fmt: skip
        FOURIER[qualified.removeprefix("fft_")] = Composite(
            f"{qualified}(Tensor input, {arguments}, str? norm=None) -> Tensor",
            f"{text}; sizes are cut or filled with zeros. `norm`: where the factor 1/n stands, "
            "``'backward'`` (the default), ``'forward'``, or ``'ortho'`` for its root in both.",
            run,
            samples=_samples(function, many=bool(place)) if place is not None
            else lambda make: [
                Sample((make(2, 3, dtype=_dtype.float64 if function is _to_half
                             else _dtype.complex128),))
            ],
            **options,
        )  # fmt: skip


for _name, (_function, _forward, _doc) in _MANY.items():
    _define(_name, _function, _forward, _doc)

# --- order of the frequencies ---------------------------------------------------------------------


def _shift(name: str, sign: int) -> Any:
    def body(x: Tensor, dim: Ints | None) -> Any:
        dims = range(x.ndim) if dim is None else [wrap_dim(f"fft_{name}", d, x.ndim) for d in dim]
        if not x.ndim:
            return x.clone()
        steps = [sign * (x.shape[d] // 2) for d in dims]
        return roll.apply((x, steps, list(dims)))

    return body


for _name, _sign, _doc in (
    ("fftshift", 1, "The frequency zero moved to the middle of the dimensions `dim`."),
    ("ifftshift", -1, "The inverse of ``fftshift``: the middle moved to the front."),
):
    FOURIER[_name] = Composite(
        f"fft_{_name}(Tensor input, int[1]? dim=None) -> Tensor",
        _doc,
        _shift(_name, _sign),
        function=False,
        method=False,
        samples=lambda make: [Sample((make(3, 4),)), Sample((make(3, 2), 0), name="dim")],
    )
