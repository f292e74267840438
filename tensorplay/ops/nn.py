"""Operators of neural networks: activations along a dimension, normalisation and losses."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from tensorplay import _dtype
from tensorplay._dtype import dtype
from tensorplay._tensor import Spec, Tensor, wrap
from tensorplay.autograd.batched import elements
from tensorplay.ops.dims import wrap_dim
from tensorplay.ops.elementwise import broadcast_shapes, cast, result_type
from tensorplay.ops.movement import expand, reshape
from tensorplay.ops.primitive import Composite, Primitive, Sample, Vjp
from tensorplay.ops.selection import index_select, where

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


def _along_dim(name: str, doc: str, compute: Any, vjp: Any, jvp: Any) -> Primitive:
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

    def samples(make: Any) -> Iterable[Sample]:
        for shape, dim in (((3,), 0), ((2, 3), -1), ((2, 3), 0), ((), 0), ((2, 0), 1)):
            yield Sample((make(*shape), dim), name=f"shape{list(shape)} dim {dim}")
        yield Sample((make(4, 3).t(), 0), name="transposed")

    return Primitive(
        f"{name}(Tensor input, int dim, ScalarType? dtype=None) -> Tensor",
        doc,
        impl,
        rule=rule,
        vjp={"input": Vjp(vjp, "out")},
        jvp=jvp,
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


softmax = _along_dim(
    "softmax",
    "``exp(input) / sum(exp(input))`` over dimension `dim`.",
    _softmax,
    _softmax_vjp,
    lambda t, s: _softmax_vjp(t.input.to(s.out.dtype), s),  # the Jacobian is symmetric
)

log_softmax = _along_dim(
    "log_softmax",
    "``input - log(sum(exp(input)))`` over dimension `dim`.",
    _log_softmax,
    lambda g, s: g - s.out.exp() * g.sum(s.dim, keepdim=True),
    lambda t, s: t.input - (s.out.exp() * t.input.to(s.out.dtype)).sum(s.dim, keepdim=True),
)


# --- losses ---------------------------------------------------------------------------------------


def _reduced(name: str, loss: Any, reduction: str) -> Any:
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
        lambda x, target, reduction: _reduced(name, formula(x, target), reduction),
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
    return _reduced("smooth_l1_loss", loss, reduction)


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
    return _reduced("binary_cross_entropy_with_logits", loss, reduction)


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
    return _reduced("binary_cross_entropy", loss if weight is None else loss * weight, reduction)


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


def _check_classes(name: str, x: Tensor, target: Tensor, weight: Any, ignore_index: int) -> int:
    """Check shapes and classes; return the dimension of the classes."""
    dim = 0 if x.ndim == 1 else 1
    if not x.ndim:
        raise ValueError(f"[{name}] argument 'input': expected at least 1 dimension, got 0.")
    expected = tuple(x.shape[:dim]) + tuple(x.shape[dim + 1 :])
    if tuple(target.shape) != expected:
        raise ValueError(
            f"[{name}] argument 'target': expected target size {list(expected)} for an input of "
            f"size {list(x.shape)}, got {list(target.shape)}."
        )
    if target._dtype not in (_dtype.int64, _dtype.int32, _dtype.uint8):
        raise TypeError(
            f"[{name}] argument 'target': expected class indices of type int64, got "
            f"{target._dtype!r}. Write target.long()."
        )
    classes = x.shape[dim]
    if weight is not None and tuple(weight.shape) != (classes,):
        raise ValueError(
            f"[{name}] argument 'weight': weight tensor should be defined either for all {classes} "
            f"classes or no classes, got size {list(weight.shape)}."
        )
    given = elements(target)
    if isinstance(given, np.ndarray):  # else the operator below looks, when there are some
        _check_range(name, given, ignore_index, classes)
    return dim


def _check_range(name: str, target: Any, ignore_index: int, classes: int) -> None:
    wrong = target[target != ignore_index]
    wrong = wrong[(wrong < 0) | (wrong >= classes)]
    if wrong.size:
        raise IndexError(
            f"[{name}] argument 'target': Target {wrong[0]} is out of bounds: expected a class "
            f"from 0 to {classes - 1}."
        )


def _class_places(target: Any, ignore_index: int) -> tuple[Any, Any]:
    """Return where the targets that count are, without and with the class as last index."""
    places = np.nonzero(target.reshape(target.shape or (1,)) != ignore_index)
    return places, (*places, target.reshape(target.shape or (1,))[places])


def _pick(x: Any, target: Any, dim: int, ignore_index: int) -> Any:
    _check_range("nll_loss", target, ignore_index, x.shape[dim])
    out = np.zeros(target.shape, x.dtype)
    places, elements = _class_places(target, ignore_index)
    rows = np.moveaxis(x, dim, -1).reshape(*(target.shape or (1,)), x.shape[dim])
    out.reshape(target.shape or (1,))[places] = rows[elements]
    return out


def _place(g: Any, target: Any, dim: int, ignore_index: int, classes: int) -> Any:
    out = np.zeros((*target.shape[:dim], classes, *target.shape[dim:]), g.dtype)
    places, elements = _class_places(target, ignore_index)
    rows = np.moveaxis(out, dim, -1)
    if not target.shape:
        rows = rows.reshape(1, classes)
    rows[elements] = g.reshape(target.shape or (1,))[places]
    return out


_pick_class = Primitive(
    "_pick_class(Tensor input, Tensor target, int dim, int ignore_index) -> Tensor",
    "The element at the class `target` along `dim`, 0 where `target` is `ignore_index`.",
    _pick,
    rule=lambda x, target, dim, ignore_index: Spec(target.shape, x.dtype),
    vjp={
        "input": Vjp(
            lambda g, s: _place_class.apply(
                (g, s.target, s.dim, s.ignore_index, s.specs["input"].shape[s.dim])
            ),
            "target",
        )
    },
    jvp="linear",
    check_first=False,
    function=False,
    method=False,
    samples=lambda make: [
        Sample((make(3, 4), _labels(1, -1, 3), 1, -1), name="rows"),
        Sample((make(2, 3, 2), _labels([1, 0], [2, 2]), 1, -1), name="positions"),
        Sample((make(4), wrap(np.array(2)), 0, -1), name="one"),
    ],
)

_place_class: Primitive = Primitive(
    "_place_class(Tensor input, Tensor target, int dim, int ignore_index, int classes) -> Tensor",
    "Zeros with `input` at the class `target` along `dim`: the adjoint of ``_pick_class``.",
    _place,
    rule=lambda g, target, dim, ignore_index, classes: Spec(
        (*target.shape[:dim], classes, *target.shape[dim:]), g.dtype
    ),
    vjp={
        "input": Vjp(lambda g, s: _pick_class.apply((g, s.target, s.dim, s.ignore_index)), "target")
    },
    jvp="linear",
    check_first=False,
    function=False,
    method=False,
    samples=lambda make: [
        Sample((make(3), _labels(1, -1, 3), 1, -1, 4), name="rows"),
        Sample((make(2, 2), _labels([1, 0], [2, 2]), 1, -1, 3), name="positions"),
    ],
)


def _nll(
    name: str, x: Tensor, target: Tensor, weight: Any, ignore_index: int, smoothing: float
) -> tuple[Any, Any]:
    """Return the losses and their total weight: the number of targets that count, or a tensor."""
    dim = _check_classes(name, x, target, weight, ignore_index)
    loss: Any = -_pick_class.apply((x, target, dim, ignore_index))
    total: Any = target.numel()
    if weight is not None:
        wide = expand.apply((_beside(weight, x, dim), tuple(x.shape)))
        scale: Any = _pick_class.apply((wide, target, dim, ignore_index))
        loss, total = loss * scale, scale.sum()
    elif not target.is_meta and not isinstance(target._array, np.ndarray):  # batched, or captured
        counted: Any = target != ignore_index
        total = counted.sum()
    elif not target.is_meta:
        total = int(np.count_nonzero(target._array != ignore_index))
    if smoothing:
        weighted = x if weight is None else x * _beside(weight, x, dim)
        even: Any = -weighted.sum(dim).masked_fill(target == ignore_index, 0)
        loss = (1 - smoothing) * loss + (smoothing / x.shape[dim]) * even
    return loss, total


def _beside(weight: Tensor, x: Tensor, dim: int) -> Any:
    """Return `weight` shaped so that it broadcasts along dimension `dim` of `x`."""
    return reshape.apply((weight, (-1, *(1,) * (x.ndim - dim - 1))))


def _class_mean(name: str, loss: Any, total: Any, reduction: str) -> Any:
    """Reduce; the mean is one over the total weight of the classes that were met."""
    return loss.sum() / total if reduction == "mean" else _reduced(name, loss, reduction)


def _nll_loss(x: Tensor, target: Tensor, weight: Any, ignore_index: int, reduction: str) -> Any:
    loss, total = _nll("nll_loss", x, target, weight, ignore_index, 0)
    return _class_mean("nll_loss", loss, total, reduction)


def _labels(*values: Any) -> Tensor:
    return wrap(np.asarray(values, np.int64))


nll_loss = Composite(
    "nll_loss(Tensor input, Tensor target, Tensor? weight=None, *, int ignore_index=-100, "
    "str reduction='mean') -> Tensor",
    "``-weight[target] * input[target]`` for logarithms of probabilities, classes in dimension 1.",
    _nll_loss,
    method=False,
    samples=lambda make: [
        Sample((make(3, 4), _labels(1, 0, 3)), name="mean"),
        Sample((make(3, 4), _labels(1, -100, 3), make(4, low=0.5)), name="weight"),
        Sample((make(4), wrap(np.array(2))), {"reduction": "sum"}, name="one"),
    ],
)


def _soft_targets(logs: Any, target: Tensor, weight: Any, reduction: str, smoothing: float) -> Any:
    dim = 0 if logs.ndim == 1 else 1
    probabilities: Any = target
    if smoothing:
        probabilities = target * (1 - smoothing) + smoothing / logs.shape[dim]
    product = logs * probabilities
    loss: Any = -(product if weight is None else product * _beside(weight, logs, dim)).sum(dim)
    if reduction == "mean":
        return loss.sum() / max(loss.numel(), 1)
    return _reduced("cross_entropy", loss, reduction)


def _cross_entropy(
    x: Tensor, target: Tensor, weight: Any, ignore_index: int, reduction: str, smoothing: float
) -> Any:
    if not 0 <= smoothing <= 1:
        raise ValueError(
            f"[cross_entropy] argument 'label_smoothing': label_smoothing must be between 0.0 and "
            f"1.0, got {smoothing}."
        )
    if not x.ndim:
        raise ValueError("[cross_entropy] argument 'input': expected at least 1 dimension, got 0.")
    logs: Any = log_softmax.apply((x, 0 if x.ndim == 1 else 1, None))
    if target._dtype.is_floating_point:
        if target.shape != x.shape:
            raise ValueError(
                f"[cross_entropy] argument 'target': expected probabilities of the size of input "
                f"{list(x.shape)}, got {list(target.shape)}. Class indices are of type int64."
            )
        return _soft_targets(logs, target, weight, reduction, smoothing)
    loss, total = _nll("cross_entropy", logs, target, weight, ignore_index, smoothing)
    return _class_mean("cross_entropy", loss, total, reduction)


cross_entropy = Composite(
    "cross_entropy(Tensor input, Tensor target, Tensor? weight=None, *, int ignore_index=-100, "
    "str reduction='mean', float label_smoothing=0.0) -> Tensor",
    "``-log(softmax(input))[target]``, classes in dimension 1; `target` holds class indices or, in "
    "the shape of `input`, probabilities.",
    _cross_entropy,
    method=False,
    samples=lambda make: [
        Sample((make(3, 4), _labels(1, 0, 3)), name="mean"),
        Sample(
            (make(3, 4), _labels(1, -100, 3), make(4, low=0.5)),
            {"label_smoothing": 0.2},
            name="weight and smoothing",
        ),
        Sample((make(2, 3, 2), _labels([1, 0], [2, 2])), {"reduction": "none"}, name="positions"),
        Sample((make(2, 3), make(2, 3, low=0.1, high=0.9)), name="probabilities"),
        Sample((make(4), wrap(np.array(2))), name="one"),
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


# --- classes --------------------------------------------------------------------------------------


def _one_hot_rule(target: Any, num_classes: int) -> Spec:
    if target.dtype not in (_dtype.int64, np.dtype(np.int64)):
        raise TypeError(
            f"[one_hot] argument 'tensor': expected class indices of type int64, got "
            f"{target.dtype!r}. Write x.long()."
        )
    if num_classes < 0:
        raise NotImplementedError(
            "[one_hot] argument 'num_classes': the number of classes is not known without the "
            "elements of a tensor on device meta. Pass num_classes."
        )
    return Spec((*target.shape, num_classes), _dtype.int64)


def _one_hot(target: Any, num_classes: int) -> Any:
    if num_classes == -1 and target.size:
        num_classes = max(int(target.max()) + 1, 0)
    if num_classes < 0:
        raise RuntimeError(
            "[one_hot] argument 'num_classes': cannot infer the total number of classes from an "
            f"empty tensor, or a negative number, got {num_classes}."
        )
    shape = _one_hot_rule(target, num_classes).shape
    if target.size and (target.min() < 0 or target.max() >= num_classes):
        raise IndexError(
            f"[one_hot] argument 'tensor': class values must be from 0 to {num_classes - 1}, got "
            f"{target.min()} to {target.max()}."
        )
    out = np.zeros((target.size, num_classes), np.int64)
    out[np.arange(target.size), target.ravel()] = 1
    return out.reshape(shape)


one_hot = Primitive(
    "one_hot(Tensor tensor, int num_classes=-1) -> Tensor",
    "Rows of zeros with a 1 at the class; by default there are as many classes as needed.",
    _one_hot,
    rule=_one_hot_rule,
    check_first=False,
    method=False,
    samples=lambda make: [
        Sample((_labels(1, 0, 2),)),
        Sample((_labels([1], [0]), 4), name="classes"),
    ],
)


def _embedding(indices: Tensor, weight: Tensor) -> Any:
    if weight.ndim != 2:
        raise RuntimeError(
            f"[embedding] argument 'weight': 'weight' must be 2-D, got {weight.ndim}-D."
        )
    flat = reshape.apply((indices, (indices.numel(),)))
    return reshape.apply((index_select.apply((weight, 0, flat)), (*indices.shape, weight.shape[1])))


embedding = Composite(
    "embedding(Tensor input, Tensor weight) -> Tensor",
    "The rows of `weight` at the indices `input`.",
    _embedding,
    method=False,
    samples=lambda make: [Sample((_labels([1, 0], [2, 1]), make(3, 2)))],
)
