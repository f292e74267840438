"""Operators of neural networks: activations along a dimension, normalisation and losses."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from tensorplay import _dtype, _native
from tensorplay._dtype import dtype
from tensorplay._quiet import quietly
from tensorplay._tensor import Spec, Tensor
from tensorplay.autograd.batched import elements
from tensorplay.ops.dims import wrap_dim
from tensorplay.ops.elementwise import broadcast_shapes, cast, result_type
from tensorplay.ops.masks import where
from tensorplay.ops.primitive import Composite, Primitive, Sample, Vjp
from tensorplay.ops.reduction import add_up

__all__: list[str] = []

# --- softmax --------------------------------------------------------------------------------------


def _softmax_types(name: str, x: Any, out: dtype | None) -> dtype:
    """Return the type of the result; the computation runs in it, at least in float32."""
    own = x.dtype if isinstance(x.dtype, dtype) else _dtype.from_numpy_dtype(x.dtype)
    result = own if out is None else out
    if not result.is_floating_point:
        raise TypeError(
            f"[{name}] argument 'input': expected a floating point tensor, got {own!r}. "
            "Write x.float(), or pass dtype=."
        )
    return result


def _along_dim(name: str, doc: str, compute: Any, vjp: Any, jvp: Any, arrays: Any) -> Primitive:
    """Define a function of the values along one dimension that are exponents."""

    def rule(x: Any, dim: int, out: dtype | None) -> Spec:
        wrap_dim(name, dim, x.ndim)
        return Spec(x.shape, _softmax_types(name, x, out))

    def impl(x: Any, dim: int, out: dtype | None) -> Any:
        result = _softmax_types(name, x, out)
        wide = x.astype(np.float32 if result.itemsize < 4 else result.numpy, order="C", copy=False)
        axis = wrap_dim(name, dim, x.ndim)
        y = compute(np.atleast_1d(wide), axis) if x.size else wide
        return y.reshape(x.shape).astype(result.numpy, copy=False)

    def quick(x: Any, rest: tuple[Any, ...]) -> Any:
        dim, out = rest
        if out is not None or dim.__class__ is not int:
            return None
        if _native.core is not None and (dim == -1 or dim == x.ndim - 1):
            found = _native.core.softmax(x, name == "log_softmax")
            if found is not None:
                return found
        return quietly(impl, x, dim, out)

    def samples(make: Any) -> Iterable[Sample]:
        for shape, dim in (((3,), 0), ((2, 3), -1), ((2, 3), 0), ((), 0), ((2, 0), 1)):
            yield Sample((make(*shape), dim), name=f"shape{list(shape)} dim {dim}")
        yield Sample((make(4, 3).t(), 0), name="transposed")

    return Primitive(
        f"{name}(Tensor input, int dim, ScalarType? dtype=None) -> Tensor",
        doc,
        impl,
        rule=rule,
        vjp={"input": Vjp(vjp, "out", arrays=arrays)},
        jvp=jvp,
        quick=quick,
        check_first=False,
        samples=samples,
    )


def _softmax(x: Any, axis: int) -> Any:
    # Without its maximum no exponent is positive, so that none overflows.
    e = np.exp(x - x.max(axis=axis, keepdims=True))
    e /= e.sum(axis=axis, keepdims=True)
    return e


def _softmax_vjp(g: Any, s: Any) -> Any:
    weighted = g * s.out
    return weighted - s.out * weighted.sum(s.dim, keepdim=True)


def _log_softmax(x: Any, axis: int) -> Any:
    y = x - x.max(axis=axis, keepdims=True)
    y -= np.log(np.exp(y).sum(axis=axis, keepdims=True))
    return y


def _rows_gradient(g: Any, out: Any, dim: int, *, logarithm: bool) -> Any:
    """Return the gradient by the extension, None where NumPy has to compute it."""
    if _native.core is None or dim not in (-1, out.ndim - 1):
        return None
    return _native.core.softmax_gradient(g, out, logarithm)


def _sum_along(x: Any, dim: int) -> Any:
    return add_up(x, (dim,), keepdim=True) if x.ndim else x


def _softmax_array(g: Any, args: Any, shapes: Any, out: Any) -> Any:
    found = _rows_gradient(g, out, args[1], logarithm=False)
    if found is not None:
        return found
    weighted = g * out
    return weighted - out * _sum_along(weighted, args[1])


def _log_softmax_array(g: Any, args: Any, shapes: Any, out: Any) -> Any:
    found = _rows_gradient(g, out, args[1], logarithm=True)
    return g - np.exp(out) * _sum_along(g, args[1]) if found is None else found


softmax = _along_dim(
    "softmax",
    "``exp(input) / sum(exp(input))`` over dimension `dim`.",
    _softmax,
    _softmax_vjp,
    lambda t, s: _softmax_vjp(t.input.to(s.out.dtype), s),  # the Jacobian is symmetric
    _softmax_array,
)

log_softmax = _along_dim(
    "log_softmax",
    "``input - log(sum(exp(input)))`` over dimension `dim`.",
    _log_softmax,
    lambda g, s: g - s.out.exp() * g.sum(s.dim, keepdim=True),
    lambda t, s: t.input - (s.out.exp() * t.input.to(s.out.dtype)).sum(s.dim, keepdim=True),
    _log_softmax_array,
)


# --- losses ---------------------------------------------------------------------------------------


def reduced_loss(name: str, loss: Any, reduction: str) -> Any:
    if reduction == "none":
        return loss
    if reduction in {"mean", "sum"}:
        return loss.mean() if reduction == "mean" else loss.sum()
    raise ValueError(
        f"[{name}] argument 'reduction': expected 'none', 'mean' or 'sum', got {reduction!r}: "
        "not a valid value for reduction."
    )


def _losses(make: Any) -> Iterable[Sample]:
    for reduction in ("mean", "sum", "none"):
        yield Sample((make(2, 3), make(2, 3)), {"reduction": reduction}, name=reduction)


def _elementwise_loss(name: str, doc: str, formula: Any) -> Composite:
    return Composite(
        f"{name}(Tensor input, Tensor target, *, str reduction='mean') -> Tensor",
        f"{doc}, their mean, sum, or all of them (``'none'``).",
        lambda x, target, reduction: reduced_loss(name, formula(x, target), reduction),
        method=False,
        samples=_losses,
    )


mse_loss = _elementwise_loss(
    "mse_loss", "Squares of the differences ``input - target``", lambda x, y: (x - y).square()
)
l1_loss = _elementwise_loss(
    "l1_loss", "Magnitudes of the differences ``input - target``", lambda x, y: (x - y).abs()
)


def _smooth_l1(x: Tensor, target: Tensor, reduction: str, beta: float) -> Any:
    if beta < 0:
        raise ValueError(f"[smooth_l1_loss] argument 'beta': expected at least 0, got {beta}.")
    distance: Any = (x - target).abs()
    loss = (
        where.apply((distance < beta, distance.square() * (0.5 / beta), distance - 0.5 * beta))
        if beta
        else distance
    )
    return reduced_loss("smooth_l1_loss", loss, reduction)


smooth_l1_loss = Composite(
    "smooth_l1_loss(Tensor input, Tensor target, *, str reduction='mean', "
    "float beta=1.0) -> Tensor",
    "``d * d / (2 * beta)`` where ``d = |input - target| < beta``, elsewhere ``d - beta / 2``.",
    _smooth_l1,
    method=False,
    samples=_losses,
)


def _logits_type(x: Any, y: Any) -> dtype:
    kind = result_type(x, y)
    return kind if kind.is_floating_point else _dtype.get_default_dtype()


def _logits(x: Any, y: Any) -> Any:
    kind = _logits_type(x, y)
    x, y = cast(x, kind), cast(y, kind)
    # log(1 + exp(-|x|)) neither overflows nor loses the small; the rest is linear in x.
    return np.maximum(x, 0) - x * y + np.log1p(np.exp(-np.abs(x)))


_logits_loss = Primitive(
    "_logits_loss(Tensor input, Tensor target) -> Tensor",
    "Cross entropy of the probability ``sigmoid(input)`` with `target`.",
    _logits,
    rule=lambda x, y: Spec(
        broadcast_shapes("_logits_loss", x.shape, getattr(y, "shape", ())), _logits_type(x, y)
    ),
    vjp={
        "input": Vjp(lambda g, s: g * (s.input.sigmoid() - s.target), "input", "target"),
        "target": Vjp(lambda g, s: -g * s.input, "input"),
    },
    jvp="elementwise",
    scalars=True,
    check_first=False,
    function=False,
    method=False,
    samples=lambda make: [Sample((make(2, 3), make(2, 3, low=0.1, high=0.9)))],
)


def _with_logits(x: Tensor, target: Tensor, weight: Any, pos_weight: Any, reduction: str) -> Any:
    if x.shape != target.shape:
        raise ValueError(
            "[binary_cross_entropy_with_logits] argument 'target': Target size "
            f"({list(target.shape)}) must be the same as input size ({list(x.shape)})."
        )
    loss: Any = _logits_loss.apply((x, target))
    if pos_weight is not None:
        # The part of the loss for target 1 is softplus(-x), which is the loss there.
        loss = loss + (pos_weight - 1) * target * _logits_loss.apply((x, 1))
    if weight is not None:
        loss = loss * weight
    return reduced_loss("binary_cross_entropy_with_logits", loss, reduction)


binary_cross_entropy_with_logits = Composite(
    "binary_cross_entropy_with_logits(Tensor input, Tensor target, Tensor? weight=None, *, "
    "Tensor? pos_weight=None, str reduction='mean') -> Tensor",
    "Cross entropy ``-(y * log(p) + (1 - y) * log(1 - p))`` for ``p = sigmoid(input)``, "
    "y = `target`; "
    "`pos_weight` multiplies the first part, `weight` all.",
    _with_logits,
    method=False,
    samples=lambda make: [
        Sample((make(2, 3), make(2, 3, low=0.1, high=0.9)), name="mean"),
        Sample(
            (make(2, 3), make(2, 3, low=0.1, high=0.9), make(3, low=0.5)),
            {"pos_weight": make(3, low=0.5), "reduction": "sum"},
            name="weights",
        ),
    ],
)


def _binary_cross_entropy(x: Tensor, target: Tensor, weight: Any, reduction: str) -> Any:
    if x.shape != target.shape:
        raise ValueError(
            f"[binary_cross_entropy] argument 'target': expected the size of input "
            f"{list(x.shape)}, got a different target size {list(target.shape)}."
        )
    probabilities = elements(x)
    if isinstance(probabilities, np.ndarray):
        fits = not probabilities.size or (probabilities.min() >= 0 and probabilities.max() <= 1)
    else:
        fits = x.is_meta or bool(((x >= 0) & (x <= 1)).all())
    if not fits:
        raise RuntimeError(
            "[binary_cross_entropy] argument 'input': all elements of input should be between 0 "
            "and 1. Use binary_cross_entropy_with_logits for numbers that are not probabilities."
        )
    # The derivative is (x - t)/(x(1 - x)), the denominator at least `least`: where probabilities
    # are all but 0 or 1, that of logarithms would be infinite, and NaN where the target agrees.
    x = x if x.is_floating_point() else x.float()
    least = max(1e-12, _dtype.finfo(x.dtype).tiny)
    certain = x.detach() * (1 - x.detach()) < least
    inner = x.masked_fill(certain, 0.5)
    loss: Any = -(target * inner.log() + (1 - target) * (1 - inner).log())
    # A logarithm of -100 stands for that of 0, so that one certain mistake is no infinity.
    fixed = x.detach()
    first, second = (p.log().clamp(min=-100) for p in (fixed, 1 - fixed))
    slope = (fixed - target.detach()) * (1 / least)
    edge = -(target * first + (1 - target) * second) + (x - fixed) * slope
    loss = loss.masked_fill(certain, 0) + edge.masked_fill(~certain, 0)
    return reduced_loss(
        "binary_cross_entropy", loss if weight is None else loss * weight, reduction
    )


binary_cross_entropy = Composite(
    "binary_cross_entropy(Tensor input, Tensor target, Tensor? weight=None, *, "
    "str reduction='mean') -> Tensor",
    "``-(target * log(input) + (1 - target) * log(1 - input))`` for probabilities `input`.",
    _binary_cross_entropy,
    method=False,
    samples=lambda make: [
        Sample((make(2, 3, low=0.1, high=0.9), make(2, 3, low=0.1, high=0.9))),
    ],
)


# --- normalisation --------------------------------------------------------------------------------


def _normalized_dims(
    name: str, x: Tensor, shape: Sequence[int], factors: Iterable[Any]
) -> list[int]:
    if not shape or tuple(x.shape[-len(shape) :]) != tuple(shape):
        raise RuntimeError(
            f"[{name}] argument 'normalized_shape': given normalized_shape={list(shape)}, expected "
            f"input with shape [*, {', '.join(map(str, shape))}], got {list(x.shape)}."
        )
    for factor in factors:
        if factor is not None and tuple(factor.shape) != tuple(shape):
            raise RuntimeError(
                f"[{name}] expected weight and bias of the shape {list(shape)} of "
                f"normalized_shape, got {list(factor.shape)}."
            )
    return list(range(x.ndim - len(shape), x.ndim))


def _layer_norm(
    x: Tensor, normalized_shape: tuple[int, ...], weight: Any, bias: Any, eps: float
) -> Any:
    dims = _normalized_dims("layer_norm", x, normalized_shape, (weight, bias))
    centred: Any = x - x.mean(dims, keepdim=True)
    out: Any = centred * (centred.square().mean(dims, keepdim=True) + eps).rsqrt()
    out = out if weight is None else out * weight
    return out if bias is None else out + bias


layer_norm = Composite(
    "layer_norm(Tensor input, int[] normalized_shape, Tensor? weight=None, Tensor? bias=None, "
    "float eps=1e-05) -> Tensor",
    "``(x - mean) / sqrt(variance + eps) * weight + bias`` over the last dimensions "
    "(Ba et al., 2016).",
    _layer_norm,
    method=False,
    samples=lambda make: [
        Sample((make(2, 4), (4,)), name="plain"),
        Sample((make(2, 2, 3), (2, 3), make(2, 3), make(2, 3)), name="weight and bias"),
    ],
)


def _rms_norm(x: Tensor, normalized_shape: tuple[int, ...], weight: Any, eps: float | None) -> Any:
    dims = _normalized_dims("rms_norm", x, normalized_shape, (weight,))
    tiny = _dtype.finfo(x._dtype).eps if eps is None else eps
    out: Any = x * (x.square().mean(dims, keepdim=True) + tiny).rsqrt()
    return out if weight is None else out * weight


rms_norm = Composite(
    "rms_norm(Tensor input, int[] normalized_shape, Tensor? weight=None, "
    "float? eps=None) -> Tensor",
    "``x / sqrt(mean(x * x) + eps) * weight`` over the last dimensions (Zhang and Sennrich, 2019).",
    _rms_norm,
    method=False,
    samples=lambda make: [
        Sample((make(2, 4), (4,)), name="plain"),
        Sample((make(2, 3), (3,), make(3)), {"eps": 0.1}, name="weight"),
    ],
)
