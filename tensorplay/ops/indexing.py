"""Reading and writing parts of a tensor by position, index and mask.

Indexing by numbers, slices, None and Ellipsis is a view. Index tensors and masks copy: the numbers
and slices beside them are applied first, as a view.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from tensorplay import _dtype
from tensorplay._dtype import dtype
from tensorplay._methods import attach
from tensorplay._tensor import Spec, Tensor, contiguous_strides, wrap
from tensorplay.ops.arguments import reject
from tensorplay.ops.dims import broadcasts_to, wrap_dim
from tensorplay.ops.elementwise import broadcast_shapes, cast, result_type
from tensorplay.ops.movement import expand, flatten, pad, reshape, slice_
from tensorplay.ops.primitive import Composite, Primitive, Sample, Vjp

__all__ = ["nonzero", "repeat_interleave"]


def _int_tensor(values: Any) -> Tensor:
    return wrap(np.asarray(values, np.int64))


def _mask(values: Any) -> Tensor:
    return wrap(np.asarray(values, np.bool_))


def _kind(x: Any) -> dtype:
    """Return the element type of an array, spec or number."""
    if not hasattr(x, "dtype"):
        return _dtype.scalar_dtype(x)
    return x.dtype if isinstance(x.dtype, dtype) else _dtype.from_numpy_dtype(x.dtype)


def _shape(x: Any) -> tuple[int, ...]:
    return tuple(x.shape) if hasattr(x, "shape") else ()


def _want_bool(where: str, argument: str, x: Any) -> None:
    if _kind(x) is not _dtype.bool_:
        raise TypeError(
            f"[{where}] argument '{argument}': expected a bool tensor, got {_kind(x)!r}. "
            "Write x.bool() or a comparison."
        )


def _want_index(where: str, argument: str, x: Any) -> None:
    if _kind(x) not in (_dtype.int64, _dtype.int32):
        raise TypeError(
            f"[{where}] argument '{argument}': expected an int64 or int32 tensor, got "
            f"{_kind(x)!r}. Write x.long()."
        )


def _in_range(where: str, index: Any, size: int, dim: int, *, negative: bool = False) -> None:
    if index.size and (index.min() < (-size if negative else 0) or index.max() >= size):
        bad = index[(index < (-size if negative else 0)) | (index >= size)].flat[0]
        raise IndexError(
            f"[{where}] argument 'index': index {bad} is out of bounds for dimension {dim} "
            f"with size {size}."
        )


def _storable(where: str, argument: str, value: Any, d: dtype) -> None:
    if _kind(value).kind > d.kind:
        raise RuntimeError(
            f"[{where}] argument '{argument}': value cannot be converted to type {d!r} without "
            f"loss, got {_kind(value)!r}. Convert the tensor first, by x.to(dtype)."
        )


# --- choice by a mask -----------------------------------------------------------------------------


def _where_rule(condition: Any, x: Any, other: Any) -> Spec:
    _want_bool("where", "condition", condition)
    shape = broadcast_shapes("where", *map(_shape, (condition, x, other)))
    return Spec(shape, result_type(x, other))


def _where(condition: Any, x: Any, other: Any) -> Any:
    _want_bool("where", "condition", condition)
    kind = result_type(x, other)
    return np.where(condition, cast(x, kind), cast(other, kind))


where = Primitive(
    "where(Tensor condition, Tensor input, Tensor other) -> Tensor",
    "Elements of `input` where `condition` holds, of `other` elsewhere.",
    _where,
    rule=_where_rule,
    vjp={
        "input": Vjp(lambda g, s: where.apply((s.condition, g, 0)), "condition"),
        "other": Vjp(lambda g, s: where.apply((s.condition, 0, g)), "condition"),
    },
    jvp="linear",
    scalars=True,
    check_first=False,
    method=False,
    samples=lambda make: [
        Sample((_mask([True, False, True]), make(3), make(3)), name="vector"),
        Sample((_mask([[True], [False]]), make(3), make(2, 1)), name="broadcast"),
        Sample((_mask([True, False]), make(2), 1.5), name="number"),
        Sample((_mask(True), make(0, 2), make(2)), name="empty"),
    ],
)


def _where_method(self: Tensor, condition: Any, other: Any) -> Any:
    """Return the elements of this tensor where `condition` holds, of `other` elsewhere."""
    return where.apply((condition, self, other))


attach("where", _where_method)


def _masked_fill_rule(x: Any, mask: Any, value: Any) -> Spec:
    _want_bool("masked_fill", "mask", mask)
    if _shape(value):
        raise RuntimeError(
            "[masked_fill] argument 'value': only supports a 0-dimension value tensor, got a tensor "
            f"with {len(_shape(value))} dimensions. Write tensorplay.where(mask, value, x)."
        )
    _storable("masked_fill", "value", value, _kind(x))
    return Spec(broadcast_shapes("masked_fill", _shape(x), _shape(mask)), _kind(x))


def _masked_fill(x: Any, mask: Any, value: Any) -> Any:
    _masked_fill_rule(x, mask, value)
    return np.where(mask, cast(value, _kind(x)), x)


masked_fill = Primitive(
    "masked_fill(Tensor input, Tensor mask, Tensor value) -> Tensor",
    "`value` where `mask` holds, the elements of `input` elsewhere.",
    _masked_fill,
    rule=_masked_fill_rule,
    vjp={
        "input": Vjp(lambda g, s: masked_fill.apply((g, s.mask, 0)), "mask"),
        "value": Vjp(lambda g, s: where.apply((s.mask, g, 0)), "mask"),
    },
    jvp="linear",
    scalars=True,
    check_first=False,
    inplace=True,
    samples=lambda make: [
        Sample((make(3), _mask([True, False, True]), make()), name="vector"),
        Sample((make(2, 3), _mask([True, False, True]), 1.5), name="number"),
        Sample((make(3), _mask([[True], [False]]), make()), name="wider mask"),
    ],
)


def _nonzero_rule(x: Spec) -> Spec:
    raise NotImplementedError(
        "[nonzero] a tensor on device meta has no elements, so the number of those that are not "
        "zero is unknown."
    )


_nonzero = Primitive(
    "_nonzero(Tensor input) -> Tensor",
    "Indices of the elements that are not zero, one row each.",
    lambda x: np.argwhere(x).astype(np.int64, copy=False),
    rule=_nonzero_rule,
    check_first=False,
    function=False,
    method=False,
    samples=lambda make: [Sample((make(2, 3),)), Sample((make(),)), Sample((make(0, 2),))],
)


def nonzero(input: Tensor, *, as_tuple: bool = False) -> Any:
    """Return the indices of the elements that are not zero, in row-major order.

    Parameters
    ----------
    input
        Tensor to search.
    as_tuple
        Give one vector of indices per dimension, fit for indexing, instead of a matrix.

    Raises
    ------
    NotImplementedError
        The tensor is on device meta.
    """
    if not isinstance(input, Tensor):
        reject("nonzero", "input", "Tensor", input, "Write tensorplay.tensor(x).")
    found = _nonzero.apply((input,))
    if not as_tuple:
        return found
    return tuple(found[:, d] for d in range(input.ndim)) if input.ndim else (found[:, :0].sum(1),)


attach("nonzero", nonzero)


# --- index tensors for leading dimensions ---------------------------------------------------------


def _selection(indices: Sequence[Any]) -> tuple[Any, ...]:
    return tuple(slice(None) if i is None else i for i in indices)


def _index_shape(where_: str, x: Any, indices: Sequence[Any]) -> tuple[int, ...]:
    """Return the shape that index tensors select: in their place if adjacent, else in front."""
    places = [d for d, index in enumerate(indices) if index is not None]
    shape = tuple(x.shape)
    if len(indices) > len(shape):
        raise IndexError(
            f"[{where_}] too many indices for tensor of dimension {len(shape)}: got {len(indices)}."
        )
    try:
        picked = broadcast_shapes(where_, *(tuple(indices[d].shape) for d in places))
    except RuntimeError as error:
        raise IndexError(
            f"[{where_}] shape mismatch: indexing tensors could not be broadcast together with "
            f"shapes {', '.join(str(list(indices[d].shape)) for d in places)}."
        ) from error
    rest = [n for d, n in enumerate(shape) if d not in places]
    adjacent = places[-1] - places[0] + 1 == len(places)
    front = places[0] if adjacent else 0
    return (*rest[:front], *picked, *rest[front:])


def _check_indices(where_: str, x: Any, indices: Sequence[Any]) -> None:
    for dim, index in enumerate(indices):
        if index is not None and dim < x.ndim:
            _in_range(where_, index, x.shape[dim], dim, negative=True)


def _index_rule(x: Spec, indices: Sequence[Any]) -> Spec:
    return Spec(_index_shape("index", x, indices), x.dtype)


def _index(x: Any, indices: Sequence[Any]) -> Any:
    try:
        return np.asarray(x[_selection(indices)], order="C")  # NumPy follows the layout of x
    except IndexError:
        _index_shape("index", x, indices)
        _check_indices("index", x, indices)
        raise


index = Primitive(
    "_index(Tensor input, Tensor?[] indices) -> Tensor",
    "The elements at integer `indices`, one tensor or None (all) for each leading dimension.",
    _index,
    rule=_index_rule,
    vjp={
        "input": Vjp(
            lambda g, s: index_adjoint.apply((g, s.indices, s.specs["input"].shape)), "indices"
        )
    },
    jvp="linear",
    check_first=False,
    function=False,
    method=False,
    samples=lambda make: [
        Sample((make(3, 2), [_int_tensor([2, 0, 2])]), name="rows"),
        Sample((make(3, 4), [None, _int_tensor([[1], [-1]])]), name="columns"),
        Sample((make(2, 3, 2), [_int_tensor([0, 1]), None, _int_tensor([1, 1])]), name="apart"),
        Sample((make(2, 3), [_int_tensor([[0], [1]]), _int_tensor([2, 2])]), name="broadcast"),
        Sample((make(3), [_int_tensor([])]), name="none"),
    ],
)


def _positions(shape: tuple[int, ...], indices: Sequence[Any]) -> Any:
    """Return where the elements that `indices` select lie in a row-major array of `shape`."""
    steps = contiguous_strides(shape)
    places = [d for d, chosen in enumerate(indices) if chosen is not None]
    kept = [d for d in range(len(shape)) if d not in places]
    ndim = max(indices[d].ndim for d in places)
    front = places[0] if places[-1] - places[0] + 1 == len(places) else 0
    result: Any = 0
    for d in places:
        chosen = indices[d]
        if chosen.size and chosen.min() < 0:
            chosen = np.where(chosen < 0, chosen + shape[d], chosen)
        result = result + (chosen * steps[d]).reshape(chosen.shape + (1,) * (len(kept) - front))
    for number, d in enumerate(kept):
        behind = len(kept) - 1 - number + (ndim if number < front else 0)
        result = result + (np.arange(shape[d]) * steps[d]).reshape((-1,) + (1,) * behind)
    return result


def _add_at(out: Any, positions: Any, values: Any) -> None:
    """Add `values` to the elements of row-major `out` at flat `positions`, repeated ones too."""
    np.add.at(out.reshape(-1), positions.ravel(), np.broadcast_to(values, positions.shape).ravel())


def _index_adjoint(g: Any, indices: Sequence[Any], shape: tuple[int, ...]) -> Any:
    out = np.zeros(shape, g.dtype)
    _add_at(out, _positions(shape, indices), g)
    return out


index_adjoint = Primitive(
    "_index_adjoint(Tensor input, Tensor?[] indices, int[] shape) -> Tensor",
    "Zeros of `shape` with `input` added at integer `indices`: the adjoint of ``_index``.",
    _index_adjoint,
    rule=lambda g, indices, shape: Spec(shape, g.dtype),
    vjp={"input": Vjp(lambda g, s: index.apply((g, s.indices)), "indices")},
    jvp="linear",
    check_first=False,
    function=False,
    method=False,
    samples=lambda make: [
        Sample((make(3, 2), [_int_tensor([2, 0, 2])], (3, 2)), name="rows"),
        Sample((make(2, 3), [_int_tensor([0, -1]), None, _int_tensor([1, 1])], (2, 3, 2)), name="apart"),
        Sample((make(3, 1, 2), [None, _int_tensor([[0, 1]]), _int_tensor([-1])], (3, 2, 2)), name="adjacent"),
    ],
)


def _index_put_rule(x: Spec, indices: Sequence[Any], values: Any, accumulate: bool) -> Spec:
    picked = _index_shape("index_put", x, indices)
    shape = _shape(values)
    if not broadcasts_to(shape, picked):
        raise RuntimeError(
            f"[index_put] argument 'values': shape mismatch: value tensor of shape {list(shape)} "
            f"cannot be broadcast to indexing result of shape {list(picked)}."
        )
    return Spec(x.shape, x.dtype)


def _index_put(x: Any, indices: Sequence[Any], values: Any, accumulate: bool) -> Any:
    if isinstance(values, np.ndarray) and values.dtype.kind == "c" and x.dtype.kind != "c":
        values = values.real
    out = x.copy()
    selection = _selection(indices)
    try:
        if accumulate:
            _check_indices("index_put", x, indices)
            _add_at(out, _positions(out.shape, indices), np.asarray(values, out.dtype))
        else:
            out[selection] = values
    except IndexError:
        _index_shape("index_put", x, indices)
        _check_indices("index_put", x, indices)
        raise
    return out


def _only_last(grads: Any, places: Sequence[Any], shape: tuple[int, ...]) -> Any:
    """Return `grads` with zeros for values that a later one, written to the same place, replaced.

    `places` indexes a tensor of `shape`; there is one gradient per place that it selects.
    """
    positions = _positions(shape, places)
    order = np.arange(positions.size).reshape(positions.shape)
    writer = np.empty(math.prod(shape), np.int64)
    writer[positions] = order
    stays = writer[positions] == order
    return grads if stays.all() else masked_fill.apply((grads, _mask(~stays), 0))


def _grad_of_values(g: Any, s: Any) -> Any:
    grads = index.apply((g, s.indices))
    if s.accumulate or g.is_meta:
        return grads
    places = [None if i is None else i._array for i in s.indices]
    return _only_last(grads, places, s.specs["input"].shape)


index_put = Primitive(
    "index_put(Tensor input, Tensor?[] indices, Tensor values, bool accumulate=False) -> Tensor",
    "`input` with `values` written, or added, at integer `indices`; without `accumulate` the last "
    "value of a repeated index stays.",
    _index_put,
    rule=_index_put_rule,
    vjp={
        "input": Vjp(
            lambda g, s: g if s.accumulate else index_put.apply((g, s.indices, 0, False)), "indices"
        ),
        "values": Vjp(lambda g, s: _grad_of_values(g, s), "indices"),
    },
    jvp="linear",
    scalars=True,
    check_first=False,
    inplace=True,
    samples=lambda make: [
        Sample((make(3, 2), [_int_tensor([2, 0])], make(2, 2)), name="rows"),
        Sample((make(3, 2), [_int_tensor([2, 0])], make(2)), name="broadcast"),
        Sample((make(3), [_int_tensor([1, 1, -1])], make(3), True), name="accumulate"),
        Sample((make(3), [_int_tensor([1, 1, -2])], make(3)), name="one place"),
        Sample((make(2, 3), [None, _int_tensor([0])], 1.5), name="number"),
    ],
)


# --- one dimension --------------------------------------------------------------------------------


def _index_select_rule(x: Any, dim: int, index: Any) -> Spec:
    _want_index("index_select", "index", index)
    if index.ndim > 1:
        raise IndexError(
            f"[index_select] argument 'index': expected a vector, got {index.ndim} dimensions."
        )
    dim = wrap_dim("index_select", dim, x.ndim)
    count = index.shape[0] if index.ndim else 1
    shape = (*x.shape[:dim], count, *x.shape[dim + 1 :]) if x.ndim else ()
    return Spec(shape, _kind(x))


def _index_select(x: Any, dim: int, index: Any) -> Any:
    out = _index_select_rule(x, dim, index)
    dim = dim % max(x.ndim, 1)
    _in_range("index_select", index, x.shape[dim] if x.ndim else 1, dim)
    if not x.ndim:
        return x.copy()
    return x.take(index, axis=dim).reshape(out.shape)


def _index_select_adjoint(g: Any, dim: int, chosen: Any, shape: tuple[int, ...]) -> Any:
    if not shape or not chosen.ndim:
        return reshape.apply((g, shape)) if not shape else _index_select_adjoint(
            g, dim, reshape.apply((chosen, (1,))), shape
        )  # fmt: skip
    return index_adjoint.apply((g, [None] * (dim % len(shape)) + [chosen], shape))


index_select = Primitive(
    "index_select(Tensor input, int dim, Tensor index) -> Tensor",
    "The parts of dimension `dim` at `index`, a vector of integers.",
    _index_select,
    rule=_index_select_rule,
    vjp={
        "input": Vjp(
            lambda g, s: _index_select_adjoint(g, s.dim, s.index, s.specs["input"].shape), "index"
        )
    },
    jvp="linear",
    check_first=False,
    samples=lambda make: [
        Sample((make(3, 2), 0, _int_tensor([2, 0, 2])), name="rows"),
        Sample((make(2, 3), -1, _int_tensor([1])), name="column"),
        Sample((make(3), 0, _int_tensor([])), name="none"),
    ],
)


def _index_add_rule(x: Any, dim: int, index: Any, source: Any, alpha: Any) -> Spec:
    _want_index("index_add", "index", index)
    dim = wrap_dim("index_add", dim, x.ndim)
    count = index.shape[0] if index.ndim else 1
    expected = (*x.shape[:dim], count, *x.shape[dim + 1 :]) if x.ndim else tuple(source.shape)
    if index.ndim > 1 or tuple(source.shape) != expected:
        raise RuntimeError(
            f"[index_add] argument 'source': expected shape {list(expected)} for an index of shape "
            f"{list(index.shape)} along dimension {dim}, got {list(source.shape)}."
        )
    _storable("index_add", "source", source, _kind(x))
    return Spec(x.shape, _kind(x))


def _index_add(x: Any, dim: int, index: Any, source: Any, alpha: Any) -> Any:
    _index_add_rule(x, dim, index, source, alpha)
    dim = dim % max(x.ndim, 1)
    _in_range("index_add", index, x.shape[dim] if x.ndim else 1, dim)
    out = x.copy()
    source = source.astype(x.dtype, copy=False)
    positions = _positions(out.shape or (1,), [None] * dim + [index.reshape(-1)])
    _add_at(out, positions, (source if alpha == 1 else source * alpha).reshape(positions.shape))
    return out


index_add = Primitive(
    "index_add(Tensor input, int dim, Tensor index, Tensor source, *, Scalar alpha=1) -> Tensor",
    "`input` with ``alpha * source`` added to the parts of dimension `dim` at `index`.",
    _index_add,
    rule=_index_add_rule,
    vjp={
        "input": Vjp(lambda g, s: g),
        "source": Vjp(
            lambda g, s: index_select.apply((g, s.dim, s.index)).reshape(s.specs["source"].shape)
            * s.alpha,
            "index",
        ),
    },
    jvp="linear",
    check_first=False,
    inplace=True,
    samples=lambda make: [
        Sample((make(3, 2), 0, _int_tensor([2, 0, 2]), make(3, 2)), name="rows"),
        Sample((make(2, 3), 1, _int_tensor([1]), make(2, 1)), {"alpha": 2.0}, name="alpha"),
    ],
)


# --- one index per element ------------------------------------------------------------------------


def _along(index: Any, dim: int) -> tuple[Any, ...]:
    """Return the indices of every dimension, open, with `index` for `dim`."""
    grids = np.ogrid[tuple(slice(n) for n in index.shape)]
    return tuple(index if d == dim else grid for d, grid in enumerate(grids))


def _along_rule(where_: str, x: Any, dim: int, index: Any, limits: Sequence[Any]) -> int:
    """Check `index` against the tensors that it walks through; return `dim` from the front."""
    _want_index(where_, "index", index)
    dim = wrap_dim(where_, dim, x.ndim)
    ndim = max(x.ndim, 1)
    if max(index.ndim, 1) != ndim or any(max(y.ndim, 1) != ndim for y in limits):
        raise RuntimeError(
            f"[{where_}] argument 'index': Index tensor must have the same number of dimensions as "
            f"the other tensors: got {index.ndim} and {x.ndim}."
        )
    for d, n in enumerate(index.shape):
        if (d != dim and x.ndim and n > x.shape[d]) or any(y.ndim and n > y.shape[d] for y in limits):
            raise RuntimeError(
                f"[{where_}] argument 'index': Size does not match at dimension {d} expected index "
                f"{list(index.shape)} to be no larger than {list(x.shape)} apart from dimension {dim}."
            )
    return dim


def _gather_rule(x: Any, dim: int, index: Any) -> Spec:
    _along_rule("gather", x, dim, index, ())
    return Spec(index.shape, _kind(x))


def _gather(x: Any, dim: int, index: Any) -> Any:
    dim = _along_rule("gather", x, dim, index, ())
    _in_range("gather", index, x.shape[dim] if x.ndim else 1, dim)
    if not index.ndim or not x.ndim:
        return x.reshape(-1)[index].reshape(index.shape)
    return x[_along(index, dim)]


gather = Primitive(
    "gather(Tensor input, int dim, Tensor index) -> Tensor",
    "For each element of `index` that of `input` at its place, with `index` in place of `dim`: "
    "``out[i, j] = input[index[i, j], j]`` for ``dim=0``.",
    _gather,
    rule=_gather_rule,
    vjp={
        "input": Vjp(
            lambda g, s: scatter_add.apply((g.new_zeros(s.specs["input"].shape), s.dim, s.index, g)),
            "index",
        )
    },
    jvp="linear",
    check_first=False,
    samples=lambda make: [
        Sample((make(3, 2), 0, _int_tensor([[0, 2], [2, 2]])), name="dim 0"),
        Sample((make(2, 3), -1, _int_tensor([[0, 0, 1, 2], [2, 1, 1, 1]])), name="dim 1"),
        Sample((make(3), 0, _int_tensor([1])), name="vector"),
    ],
)


def _flat_positions(out: Any, dim: int, index: Any) -> Any:
    if not out.ndim or not index.ndim:
        return index
    return _positions(out.shape, _along(index, dim))


def _source(src: Any, index: Any, d: Any) -> Any:
    """Return the part of `src` that `index` covers, in type `d`."""
    if not isinstance(src, np.ndarray):
        return np.full(index.shape, src, d)
    return src[tuple(slice(n) for n in index.shape)].reshape(index.shape).astype(d, copy=False)


def _source_grad(g: Any, s: Any, *, adds: bool) -> Any:
    inner = gather.apply((g, s.dim, s.index))
    if not adds and not g.is_meta and g.ndim and s.index.ndim:
        places = _along(s.index._array, s.dim % g.ndim)
        inner = _only_last(inner, places, s.specs["input"].shape)
    shape = s.specs["src"].shape if isinstance(s.specs["src"], Spec) else inner.shape
    if inner.shape == shape:
        return inner
    widths = [w for n, m in zip(reversed(shape), reversed(inner.shape), strict=True) for w in (0, n - m)]
    return pad.apply((inner, widths, "constant", None))


def _scatter_rule(name: str) -> Any:
    def rule(x: Any, dim: int, index: Any, src: Any) -> Spec:
        _along_rule(name, x, dim, index, (src,) if hasattr(src, "shape") and src.ndim else ())
        _storable(name, "src", src, _kind(x))
        return Spec(x.shape, _kind(x))

    return rule


def _scatter_impl(name: str) -> Any:
    rule = _scatter_rule(name)

    def impl(x: Any, dim: int, index: Any, src: Any) -> Any:
        rule(x, dim, index, src)
        dim = dim % max(x.ndim, 1)
        _in_range(name, index, x.shape[dim] if x.ndim else 1, dim)
        out = x.copy()
        values = _source(src, index, x.dtype)
        positions = _flat_positions(out, dim, index)
        if name == "scatter_add":
            _add_at(out, positions, values)
        else:
            out.reshape(-1)[positions] = values
        return out

    return impl


def _scatter_samples(make: Any) -> Iterable[Sample]:
    yield Sample((make(3, 2), 0, _int_tensor([[0, 2], [2, 1]]), make(2, 2)), name="dim 0")
    yield Sample((make(2, 3), 1, _int_tensor([[1], [2]]), make(2, 2)), name="longer source")


scatter = Primitive(
    "scatter(Tensor input, int dim, Tensor index, Tensor src) -> Tensor",
    "`input` with elements of `src` written where ``gather`` would read; of several written to one "
    "place the last stays.",
    _scatter_impl("scatter"),
    rule=_scatter_rule("scatter"),
    vjp={
        "input": Vjp(lambda g, s: scatter.apply((g, s.dim, s.index, 0)), "index"),
        "src": Vjp(lambda g, s: _source_grad(g, s, adds=False), "index"),
    },
    jvp="linear",
    scalars=True,
    check_first=False,
    inplace=True,
    samples=_scatter_samples,
)

scatter_add = Primitive(
    "scatter_add(Tensor input, int dim, Tensor index, Tensor src) -> Tensor",
    "`input` with elements of `src` added where ``gather`` would read.",
    _scatter_impl("scatter_add"),
    rule=_scatter_rule("scatter_add"),
    vjp={"input": Vjp(lambda g, s: g), "src": Vjp(lambda g, s: _source_grad(g, s, adds=True), "index")},
    jvp="linear",
    check_first=False,
    inplace=True,
    samples=lambda make: [
        *_scatter_samples(make),
        Sample((make(3), 0, _int_tensor([1, 1, 1]), make(3)), name="one place"),
    ],
)


# --- written in terms of the above ----------------------------------------------------------------


def _masked_select(x: Tensor, mask: Tensor) -> Any:
    _want_bool("masked_select", "mask", mask)
    shape = broadcast_shapes("masked_select", tuple(x.shape), tuple(mask.shape))
    full = reshape.apply((expand.apply((x, shape)), (-1,) if x.numel() and mask.numel() else (0,)))
    chosen = reshape.apply((expand.apply((mask, shape)), full.shape))
    return index.apply((full, [_nonzero.apply((chosen,))[:, 0]]))


masked_select = Composite(
    "masked_select(Tensor input, Tensor mask) -> Tensor",
    "The elements where `mask` holds, as a vector.",
    _masked_select,
    samples=lambda make: [
        Sample((make(3), _mask([True, False, True])), name="vector"),
        Sample((make(2, 1), _mask([True, False, True])), name="broadcast"),
    ],
)


def _take(x: Tensor, positions: Tensor) -> Any:
    _want_index("take", "index", positions)
    if not x.numel() and positions.numel():
        raise IndexError("[take] tried to take from an empty tensor.")
    return index.apply((flatten.apply((x, 0, -1)), [positions]))


take = Composite(
    "take(Tensor input, Tensor index) -> Tensor",
    "The elements at `index`, counted in row-major order.",
    _take,
    samples=lambda make: [Sample((make(2, 3), _int_tensor([[5, 0], [1, -1]])))],
)


def _take_along_dim(x: Tensor, indices: Tensor, dim: int | None) -> Any:
    _want_index("take_along_dim", "indices", indices)
    if dim is None:
        return gather.apply((flatten.apply((x, 0, -1)), 0, flatten.apply((indices, 0, -1))))
    if x.ndim != indices.ndim:
        raise RuntimeError(
            "[take_along_dim] input and indices should have the same number of dimensions, but "
            f"got {x.ndim} dimensions for input, and {indices.ndim} dimensions for indices."
        )
    dim = wrap_dim("take_along_dim", dim, x.ndim)
    ones = [1 if d == dim else n for d, n in enumerate(x.shape)]
    shape = broadcast_shapes("take_along_dim", tuple(ones), tuple(indices.shape))
    source = [x.shape[d] if d == dim else n for d, n in enumerate(shape)]
    wide = [indices.shape[d] if d == dim else n for d, n in enumerate(shape)]
    return gather.apply((expand.apply((x, source)), dim, expand.apply((indices, wide))))


take_along_dim = Composite(
    "take_along_dim(Tensor input, Tensor indices, int? dim=None) -> Tensor",
    "The elements at `indices` along `dim`, broadcast elsewhere: the partner of argsort.",
    _take_along_dim,
    samples=lambda make: [
        Sample((make(2, 3), _int_tensor([[0], [2]]), 1), name="column"),
        Sample((make(2, 3), _int_tensor([[2, 0, 1]]), 1), name="broadcast"),
        Sample((make(2, 3), _int_tensor([4, 1])), name="flat"),
    ],
)


def repeat_interleave(input: Tensor, repeats: Any, dim: int | None = None) -> Any:
    """Return every element of a dimension several times, one after the other.

    Parameters
    ----------
    input
        Tensor to repeat.
    repeats
        How often: a number, or an integer vector with one number per element of the dimension.
    dim
        The dimension; without it the tensor is flattened first.

    Raises
    ------
    RuntimeError
        A number is negative, or there is not one per element.
    NotImplementedError
        `repeats` is a vector on device meta.
    """
    if not isinstance(input, Tensor):
        reject("repeat_interleave", "input", "Tensor", input, "Write tensorplay.tensor(x).")
    if dim is None:
        input, dim = flatten.apply((input, 0, -1)), 0
    dim = wrap_dim("repeat_interleave", dim, input.ndim)
    size = input.shape[dim]
    if isinstance(repeats, Tensor) and repeats.numel() != 1:
        _want_index("repeat_interleave", "repeats", repeats)
        counts = repeats.numpy()
        if counts.ndim > 1 or counts.size != size or (counts < 0).any():
            raise RuntimeError(
                "[repeat_interleave] argument 'repeats': expected a number or a vector with one "
                f"non-negative count for each of {size} elements: repeats must have the same size "
                f"as input along dim, got {list(counts.shape)}."
            )
        return index_select.apply((input, dim, _int_tensor(np.repeat(np.arange(size), counts))))
    count = int(repeats)
    if count < 0:
        raise RuntimeError(
            f"[repeat_interleave] argument 'repeats': repeats can not be negative, got {count}."
        )
    wide = [*input.shape[: dim + 1], count, *input.shape[dim + 1 :]]
    out: Any = flatten.apply((expand.apply((input.unsqueeze(dim + 1), wide)), dim, dim + 1))
    return out.clone() if count == 1 else out


attach("repeat_interleave", repeat_interleave)


# --- x[index] -------------------------------------------------------------------------------------

Plan = tuple[list[int], list[int], list[int], list[int], "list[Tensor | None] | None"]


def _wrong_index(item: Any) -> IndexError:
    kind = type(item).__name__
    return IndexError(
        "[getitem] only integers, slices (`:`), ellipsis (`...`), None and long or bool tensors "
        f"(or lists of numbers) are valid indices, got {kind}."
    )


def _normal(item: Any) -> Any:
    """Return an index as int, bool, slice, None, Ellipsis, or an integer or bool tensor."""
    if item is None or item is Ellipsis or isinstance(item, (bool, int, slice)):
        return item
    if isinstance(item, np.generic):
        item = item.item()
        if isinstance(item, (bool, int)):
            return item
        raise _wrong_index(item)
    if isinstance(item, (list, np.ndarray)):
        try:
            array = np.asarray(item)
        except ValueError as error:
            raise _wrong_index(item) from error
        item = wrap(array.astype(np.int64) if not array.size and isinstance(item, list) else array) \
            if array.dtype.kind in "biuf" else None
    if not isinstance(item, Tensor):
        raise _wrong_index(item)
    d = item._dtype
    if d.kind > _dtype.INTEGER or d is _dtype.uint8:
        raise IndexError(
            "[getitem] tensors used as indices must be long, int or bool tensors, got "
            f"{d!r}. Write index.long(), or mask.bool()."
        )
    if item.ndim == 0 and not item.is_meta:
        return bool(item.item()) if d is _dtype.bool_ else int(item.item())
    return item


def _consumes(item: Any) -> int:
    """Return how many dimensions of the tensor an index stands for."""
    if item is None or isinstance(item, bool):
        return 0
    if isinstance(item, Tensor) and item._dtype is _dtype.bool_:
        return item.ndim
    return 1


def _plan(x: Tensor, key: Any) -> Plan:
    """Sort an index into a basic part (as of ``_slice``) and index tensors for its result."""
    shape = x._array.shape
    items = [_normal(item) for item in key] if isinstance(key, tuple) else [_normal(key)]
    used = sum(_consumes(i) for i in items if i is not Ellipsis)
    if not shape and used:
        raise IndexError(
            "[getitem] invalid index of a 0-dim tensor. Write x.item() to get its number."
        )
    if used > len(shape):
        raise IndexError(
            f"[getitem] too many indices for tensor of dimension {len(shape)}: got {used}."
        )
    dots = [n for n, i in enumerate(items) if i is Ellipsis]
    if len(dots) > 1:
        raise IndexError("[getitem] an index can only have a single ellipsis ('...').")
    fill: list[Any] = [slice(None)] * (len(shape) - used)
    if dots:
        items[dots[0] : dots[0] + 1] = fill
    else:
        items += fill
    start: list[int] = []
    stop: list[int] = []
    step: list[int] = []
    sizes: list[int] = []
    advanced: list[Tensor | None] = []
    dim = 0
    for item in items:
        if item is None or isinstance(item, bool):
            sizes.append(1)
            advanced.append(None if item is None else _int_tensor([0] if item else []))
            continue
        if isinstance(item, Tensor):
            count = _consumes(item)
            wanted = shape[dim : dim + count]
            if item._dtype is _dtype.bool_:
                if tuple(item.shape) != wanted:
                    raise IndexError(
                        f"[getitem] The shape of the mask {list(item.shape)} at index {dim} does not "
                        f"match the shape of the indexed tensor {list(shape)} at index {dim}."
                    )
                found = _nonzero.apply((item,))
                advanced += [found[:, d] for d in range(count)]
            else:
                advanced.append(item)
            start += [0] * count
            stop += wanted
            step += [1] * count
            sizes += wanted
            dim += count
            continue
        size = shape[dim]
        if isinstance(item, slice):
            if item.step is not None and item.step <= 0:
                raise ValueError(
                    f"[getitem] slice step must be greater than zero, got {item.step}. "
                    "Write x.flip(dim) to reverse."
                )
            first, last, by = item.indices(size)
            start.append(first)
            stop.append(max(first, last))
            step.append(by)
            sizes.append(len(range(first, last, by)))
            advanced.append(None)
        else:
            if not -size <= item < size:
                raise IndexError(
                    f"[getitem] index {item} is out of bounds for dimension {dim} with size {size}."
                )
            place = item % size
            start.append(place)
            stop.append(place + 1)
            step.append(1)
        dim += 1
    return start, stop, step, sizes, advanced if any(a is not None for a in advanced) else None


def _getitem(self: Tensor, key: Any) -> Any:
    """Return the part that `key` says: a view unless it holds index tensors or masks."""
    *basic, advanced = _plan(self, key)
    if advanced is None:
        return slice_.apply((self, *basic))
    whole = tuple(basic[3]) == self._array.shape
    return index.apply((self if whole else slice_.apply((self, *basic)), advanced))


def _without_leading_ones(value: Any, ndim: int) -> Any:
    extra = value.ndim - ndim
    if extra > 0 and all(n == 1 for n in value.shape[:extra]):
        return value.reshape(value.shape[extra:])
    return value


def _setitem(self: Tensor, key: Any, value: Any) -> None:
    """Write `value`, broadcast and converted, to the part that `key` says."""
    if isinstance(value, (list, tuple)):
        value = np.asarray(value)
    if isinstance(value, np.ndarray):
        value = wrap(value)
    if (
        isinstance(key, Tensor) and key._dtype is _dtype.bool_ and key.shape == self.shape
        and not (isinstance(value, Tensor) and value.numel() != 1)
    ):  # fmt: skip
        # No need to know how many elements a mask holds: this serves device meta too.
        fill = value.reshape(()) if isinstance(value, Tensor) else value
        masked_fill.apply_inplace((self, key, fill.to(self._dtype) if isinstance(fill, Tensor) else fill))
        return
    *basic, advanced = _plan(self, key)
    whole = tuple(basic[3]) == self._array.shape
    target = self if whole and advanced is not None else slice_.apply((self, *basic))
    if advanced is None:
        if isinstance(value, Tensor):
            value = _without_leading_ones(value, target.ndim)
        target.copy_(value)
        return
    if isinstance(value, Tensor):
        value = _without_leading_ones(value, len(_index_shape("setitem", target, advanced)))
    index_put.apply_inplace((target, advanced, value, False))


attach("__getitem__", _getitem)
attach("__setitem__", _setitem)
