"""Operators that take classes as integers: losses, rows of zeros with a one, rows of a table."""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np

from tensorplay import _dtype, _native
from tensorplay._quiet import quietly
from tensorplay._tensor import Spec, Tensor, wrap
from tensorplay.autograd.batched import elements
from tensorplay.ops.movement import expand, reshape
from tensorplay.ops.nn import log_softmax, reduced_loss
from tensorplay.ops.primitive import Composite, Primitive, Sample, Vjp
from tensorplay.ops.reduction import add_up
from tensorplay.ops.selection import index_select

__all__: list[str] = []

# NumPy's letters of the types that classes may have: int32, int64 (which has two) and uint8.
_CLASS_TYPES: Final = "ilqB"


def _labels(*values: Any) -> Tensor:
    return wrap(np.asarray(values, np.int64))


# --- losses ---------------------------------------------------------------------------------------


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


def _pick(x: Any, target: Any, dim: int, ignore_index: int, function: str) -> Any:
    _check_range(function, target, ignore_index, x.shape[dim])
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
    "_pick_class(Tensor input, Tensor target, int dim, int ignore_index, str function) -> Tensor",
    "The element at the class `target` along `dim`, 0 where `target` is `ignore_index`; "
    "errors name `function`.",
    _pick,
    rule=lambda x, target, dim, ignore_index, function: Spec(target.shape, x.dtype),
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
        Sample((make(3, 4), _labels(1, -1, 3), 1, -1, "nll_loss"), name="rows"),
        Sample((make(2, 3, 2), _labels([1, 0], [2, 2]), 1, -1, "nll_loss"), name="positions"),
        Sample((make(4), wrap(np.array(2)), 0, -1, "nll_loss"), name="one"),
    ],
    raises="all",
)

_place_class: Primitive = Primitive(
    "_place_class(Tensor input, Tensor target, int dim, int ignore_index, int classes) -> Tensor",
    "Zeros with `input` at the class `target` along `dim`: the adjoint of ``_pick_class``.",
    _place,
    rule=lambda g, target, dim, ignore_index, classes: Spec(
        (*target.shape[:dim], classes, *target.shape[dim:]), g.dtype
    ),
    vjp={
        "input": Vjp(
            lambda g, s: _pick_class.apply((g, s.target, s.dim, s.ignore_index, "nll_loss")),
            "target",
        )
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


def _count(target: Tensor, ignore_index: int) -> Any:
    """Return the number of targets that count, a tensor where it depends on who looks."""
    if target.is_meta:
        return target.numel()
    if not isinstance(target._array, np.ndarray):  # batched, or captured
        counted: Any = target != ignore_index
        return counted.sum()
    return int(np.count_nonzero(target._array != ignore_index))


def _nll(
    name: str, x: Tensor, target: Tensor, weight: Any, ignore_index: int, smoothing: float
) -> tuple[Any, Any]:
    """Return the losses and their total weight: the number of targets that count, or a tensor."""
    dim = _check_classes(name, x, target, weight, ignore_index)
    loss: Any = -_pick_class.apply((x, target, dim, ignore_index, name))
    total: Any
    if weight is not None:
        wide = expand.run(_beside(weight, x, dim), tuple(x.shape))
        scale: Any = _pick_class.apply((wide, target, dim, ignore_index, name))
        loss, total = loss * scale, scale.sum()
    else:
        total = _count(target, ignore_index)
    if smoothing:
        weighted = x if weight is None else x * _beside(weight, x, dim)
        even: Any = -weighted.sum(dim).masked_fill(target == ignore_index, 0)
        loss = (1 - smoothing) * loss + _share(smoothing, x.shape[dim]) * even
    return loss, total


def _share(smoothing: float, classes: int) -> float:
    """Return each class's share; of no classes it is unbounded, and what comes of it is NaN."""
    return smoothing / classes if classes else math.inf


def _beside(weight: Tensor, x: Tensor, dim: int) -> Any:
    """Return `weight` shaped so that it broadcasts along dimension `dim` of `x`."""
    return reshape.run(weight, (-1, *(1,) * (x.ndim - dim - 1)))


def _nll_mean(x: Any, target: Any, ignore_index: int) -> Any:
    dim = 0 if x.ndim == 1 else 1
    loss = np.negative(_pick(x, target, dim, ignore_index, "nll_loss"))
    total = np.count_nonzero(target != ignore_index)
    axes = tuple(range(loss.ndim))
    return np.true_divide(add_up(loss, axes), total).astype(x.dtype, copy=False)


def _nll_mean_rule(x: Spec, target: Spec, ignore_index: int) -> Spec:
    if not x.dtype.is_differentiable:
        raise TypeError(
            "[_nll_loss] argument 'input': expected floating or complex elements, got "
            f"{x.dtype!r}. Write x.float()."
        )
    return Spec((), x.dtype)


def _quick_nll_mean(arrays: tuple[Any, ...], rest: tuple[Any, ...]) -> Any:
    x, target = arrays
    if x.ndim != 2 or target.shape != x.shape[:1] or target.dtype.char not in _CLASS_TYPES:
        return None
    if _native.core is not None:
        found = _native.core.nll_loss(x, target, *rest)
        if found is not None:
            return found
    return np.asarray(quietly(_nll_mean, x, target, *rest))


def _nll_mean_array(g: Any, args: Any, shapes: Any, out: Any) -> Any:
    _, target, ignore_index = args
    shape = shapes[0]
    if _native.core is not None:
        found = _native.core.nll_loss_gradient(g, target, ignore_index, shape[1])
        if found is not None:
            return found
    share = np.negative(np.true_divide(g, np.count_nonzero(target != ignore_index)))
    return _place(np.broadcast_to(share, target.shape), target, 1, ignore_index, shape[1])


def _nll_mean_vjp(g: Any, s: Any) -> Any:
    share: Any = -(g / _count(s.target, s.ignore_index))
    dim = 0 if s.specs["input"].ndim == 1 else 1
    wide = expand.run(share, tuple(s.target.shape))
    return _place_class.apply((wide, s.target, dim, s.ignore_index, s.specs["input"].shape[dim]))


def _mean_of_picked(x: Any, target: Any, ignore_index: int) -> Any:
    loss = -_pick_class.apply((x, target, 0 if x.ndim == 1 else 1, ignore_index, "nll_loss"))
    return loss.sum() / _count(target, ignore_index)


nll_mean = Primitive(
    "_nll_loss(Tensor input, Tensor target, int ignore_index) -> Tensor",
    "The mean of ``-input`` at the classes `target` that are not `ignore_index`.",
    _nll_mean,
    rule=_nll_mean_rule,
    vjp={"input": Vjp(_nll_mean_vjp, "target", arrays=_nll_mean_array)},
    quick=_quick_nll_mean,
    integers=("target",),
    decomposition=_mean_of_picked,
    function=False,
    method=False,
    samples=lambda make: [
        Sample((make(3, 4), _labels(1, -1, 3), -1), name="rows"),
        Sample((make(2, 3, 2), _labels([1, 0], [2, 2]), -1), name="positions"),
        Sample((make(4), wrap(np.array(2)), -1), name="one"),
    ],
    raises="all",
)


def _class_loss(
    name: str, x: Tensor, target: Tensor, weight: Any, ignore_index: int, reduction: str,
    smoothing: float,
) -> Any:  # fmt: skip
    plain = weight is None and not smoothing and x._dtype.is_differentiable
    if reduction == "mean" and plain:
        short: Any = nll_mean._short
        found = short(x, target, ignore_index)  # refuses what is checked below
        if found is None and all(isinstance(t._array, np.ndarray) for t in (x, target)):
            _check_classes(name, x, target, weight, ignore_index)
            found = nll_mean.apply((x, target, ignore_index))
        if found is not None:
            return found  # else batched or captured: what finds a wrong class later knows the name
    loss, total = _nll(name, x, target, weight, ignore_index, smoothing)
    # The mean is one over the total weight of the classes that were met.
    return loss.sum() / total if reduction == "mean" else reduced_loss(name, loss, reduction)


def _nll_loss(x: Tensor, target: Tensor, weight: Any, ignore_index: int, reduction: str) -> Any:
    return _class_loss("nll_loss", x, target, weight, ignore_index, reduction, 0)


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
        probabilities = target * (1 - smoothing) + _share(smoothing, logs.shape[dim])
    product = logs * probabilities
    loss: Any = -(product if weight is None else product * _beside(weight, logs, dim)).sum(dim)
    if reduction == "mean":
        # Of no rows or no classes there is none: NaN, as with class indices.
        return loss.sum() / (loss.numel() if logs.numel() else 0)
    return reduced_loss("cross_entropy", loss, reduction)


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
    logs: Any = log_softmax.run(x, 0 if x.ndim == 1 else 1, None)
    if target._dtype.is_floating_point:
        if target.shape != x.shape:
            raise ValueError(
                f"[cross_entropy] argument 'target': expected probabilities of the size of input "
                f"{list(x.shape)}, got {list(target.shape)}. Class indices are of type int64."
            )
        return _soft_targets(logs, target, weight, reduction, smoothing)
    return _class_loss("cross_entropy", logs, target, weight, ignore_index, reduction, smoothing)


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


# --- rows -----------------------------------------------------------------------------------------


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
    raises="all",
)


def _embedding(indices: Tensor, weight: Tensor) -> Any:
    if weight.ndim != 2:
        raise RuntimeError(
            f"[embedding] argument 'weight': 'weight' must be 2-D, got {weight.ndim}-D."
        )
    flat = reshape.run(indices, (indices.numel(),))
    return reshape.run(index_select.run(weight, 0, flat), (*indices.shape, weight.shape[1]))


embedding = Composite(
    "embedding(Tensor input, Tensor weight) -> Tensor",
    "The rows of `weight` at the indices `input`.",
    _embedding,
    method=False,
    samples=lambda make: [Sample((_labels([1, 0], [2, 1]), make(3, 2)))],
)
