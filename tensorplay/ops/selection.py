"""Elements chosen by index tensors, and by one index per element; and their writes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from tensorplay import _dtype
from tensorplay._tensor import Spec, Tensor, contiguous_strides, wrap
from tensorplay.ops.arrangement import pad
from tensorplay.ops.conversion import check_no_loss
from tensorplay.ops.dims import broadcasts_to, wrap_dim
from tensorplay.ops.elementwise import broadcast_shapes, cast
from tensorplay.ops.masks import check_storable, kind_of, mask_tensor, masked_fill, shape_of
from tensorplay.ops.movement import reshape
from tensorplay.ops.primitive import Primitive, Sample, Vjp
from tensorplay.ops.writer import Writer

__all__ = ["int_tensor", "want_index"]


def int_tensor(values: Any) -> Tensor:
    """Return an int64 tensor."""
    return wrap(np.asarray(values, np.int64))


def want_index(where: str, argument: str, x: Any) -> None:
    """Refuse `x`, an array, tensor or spec, if its type is none of indices."""
    if kind_of(x) not in (_dtype.int64, _dtype.int32):
        raise TypeError(
            f"[{where}] argument '{argument}': expected an int64 or int32 tensor, got "
            f"{kind_of(x)!r}. Write x.long()."
        )


def _in_range(where: str, index: Any, size: int, dim: int, *, negative: bool = False) -> None:
    if index.size and (index.min() < (-size if negative else 0) or index.max() >= size):
        bad = index[(index < (-size if negative else 0)) | (index >= size)].flat[0]
        raise IndexError(
            f"[{where}] argument 'index': index {bad} is out of bounds for dimension {dim} "
            f"with size {size}."
        )


# --- index tensors for leading dimensions ---------------------------------------------------------


def _selection(indices: Sequence[Any]) -> tuple[Any, ...]:
    return tuple(slice(None) if i is None else i for i in indices)


def index_shape(where_: str, x: Any, indices: Sequence[Any]) -> tuple[int, ...]:
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
        if index is not None and index.dtype.kind not in "iub":
            raise IndexError(
                f"[{where_}] argument 'indices': expected integer tensors, got {kind_of(index)!r}. "
                "Write x.long()."
            )
        if index is not None and dim < x.ndim:
            _in_range(where_, index, x.shape[dim], dim, negative=True)


def _index_rule(x: Spec, indices: Sequence[Any]) -> Spec:
    return Spec(index_shape("index", x, indices), x.dtype)


def _index(x: Any, indices: Sequence[Any]) -> Any:
    try:
        return np.asarray(x[_selection(indices)], order="C")  # NumPy follows the layout of x
    except IndexError:
        index_shape("index", x, indices)
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
        Sample((make(3, 2), [int_tensor([2, 0, 2])]), name="rows"),
        Sample((make(3, 4), [None, int_tensor([[1], [-1]])]), name="columns"),
        Sample((make(2, 3, 2), [int_tensor([0, 1]), None, int_tensor([1, 1])]), name="apart"),
        Sample((make(2, 3), [int_tensor([[0], [1]]), int_tensor([2, 2])]), name="broadcast"),
        Sample((make(3), [int_tensor([])]), name="none"),
    ],
    raises="all",
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


index_adjoint: Primitive = Primitive(
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
        Sample((make(3, 2), [int_tensor([2, 0, 2])], (3, 2)), name="rows"),
        Sample(
            (make(2, 3), [int_tensor([0, -1]), None, int_tensor([1, 1])], (2, 3, 2)), name="apart"
        ),
        Sample(
            (make(3, 1, 2), [None, int_tensor([[0, 1]]), int_tensor([-1])], (3, 2, 2)),
            name="adjacent",
        ),
    ],
)


def _index_put_rule(x: Spec, indices: Sequence[Any], values: Any, accumulate: bool) -> Spec:
    picked = index_shape("index_put", x, indices)
    shape = shape_of(values)
    if not broadcasts_to(shape, picked):
        raise RuntimeError(
            f"[index_put] argument 'values': shape mismatch: value tensor of shape {list(shape)} "
            f"cannot be broadcast to indexing result of shape {list(picked)}."
        )
    check_no_loss("index_put", values, x.dtype)
    return Spec(x.shape, x.dtype)


def _index_put(x: Any, indices: Sequence[Any], values: Any, accumulate: bool) -> Any:
    check_no_loss("index_put", values, kind_of(x))
    out = x.copy()
    _put(out, indices, values, accumulate)
    return out


def _put(x: Any, indices: Sequence[Any], values: Any, accumulate: bool) -> None:
    """Write, or add, `values` into the array `x`."""
    if not isinstance(values, np.ndarray):
        values = cast(values, kind_of(x))
    try:
        if accumulate:
            _check_indices("index_put", x, indices)
            values = np.asarray(values, x.dtype)
            if x.flags.c_contiguous:
                _add_at(x, _positions(x.shape, indices), values)
            else:
                np.add.at(x, _selection(indices), values)
        else:
            x[_selection(indices)] = values
    except IndexError:
        index_shape("index_put", x, indices)
        _check_indices("index_put", x, indices)
        raise


def _only_last(grads: Any, places: Sequence[Any], shape: tuple[int, ...]) -> Any:
    """Return `grads` with zeros for values that a later one, written to the same place, replaced.

    `places` indexes a tensor of `shape`; there is one gradient per place that it selects.
    """
    positions = _positions(shape, places)
    order = np.arange(positions.size).reshape(positions.shape)
    writer = np.empty(math.prod(shape), np.int64)
    writer[positions] = order
    stays = writer[positions] == order
    return grads if stays.all() else masked_fill.apply((grads, mask_tensor(~stays), 0))


def _grad_of_values(g: Any, s: Any) -> Any:
    grads = index.apply((g, s.indices))
    if s.accumulate or g.is_meta:
        return grads
    places = [None if i is None else i._array for i in s.indices]
    return _only_last(grads, places, s.specs["input"].shape)


index_put: Primitive = Writer(
    "index_put(Tensor input, Tensor?[] indices, Tensor values, bool accumulate=False) -> Tensor",
    "`input` with `values` written, or added, at integer `indices`; without `accumulate` the last "
    "value of a repeated index stays.",
    _index_put,
    write=_put,
    rule=_index_put_rule,
    vjp={
        "input": Vjp(
            lambda g, s: g if s.accumulate else index_put.apply((g, s.indices, 0, False)), "indices"
        ),
        "values": Vjp(_grad_of_values, "indices"),
    },
    jvp="linear",
    scalars=("values",),
    check_first=False,
    inplace=True,
    samples=lambda make: [
        Sample((make(3, 2), [int_tensor([2, 0])], make(2, 2)), name="rows"),
        Sample((make(3, 2), [int_tensor([2, 0])], make(2)), name="broadcast"),
        Sample((make(3), [int_tensor([1, 1, -1])], make(3), True), name="accumulate"),
        Sample((make(3), [int_tensor([1, 1, -2])], make(3)), name="one place"),
        Sample((make(2, 3), [None, int_tensor([0])], 1.5), name="number"),
    ],
    raises="all",
)


# --- one dimension --------------------------------------------------------------------------------


def _index_select_rule(x: Any, dim: int, index: Any) -> Spec:
    want_index("index_select", "index", index)
    if index.ndim > 1:
        raise IndexError(
            f"[index_select] argument 'index': expected a vector, got {index.ndim} dimensions."
        )
    dim = wrap_dim("index_select", dim, x.ndim)
    count = index.shape[0] if index.ndim else 1
    shape = (*x.shape[:dim], count, *x.shape[dim + 1 :]) if x.ndim else ()
    return Spec(shape, kind_of(x))


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
        Sample((make(3, 2), 0, int_tensor([2, 0, 2])), name="rows"),
        Sample((make(2, 3), -1, int_tensor([1])), name="column"),
        Sample((make(3), 0, int_tensor([])), name="none"),
    ],
    raises="all",
)


def _index_add_rule(x: Any, dim: int, index: Any, source: Any, alpha: Any) -> Spec:
    want_index("index_add", "index", index)
    dim = wrap_dim("index_add", dim, x.ndim)
    count = index.shape[0] if index.ndim else 1
    expected = (*x.shape[:dim], count, *x.shape[dim + 1 :]) if x.ndim else tuple(source.shape)
    if index.ndim > 1 or tuple(source.shape) != expected:
        raise RuntimeError(
            f"[index_add] argument 'source': expected shape {list(expected)} for an index of shape "
            f"{list(index.shape)} along dimension {dim}, got {list(source.shape)}."
        )
    check_storable("index_add", "source", source, kind_of(x))
    return Spec(x.shape, kind_of(x))


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
            lambda g, s: (
                index_select.apply((g, s.dim, s.index)).reshape(s.specs["source"].shape) * s.alpha
            ),
            "index",
        ),
    },
    jvp="linear",
    check_first=False,
    inplace=True,
    samples=lambda make: [
        Sample((make(3, 2), 0, int_tensor([2, 0, 2]), make(3, 2)), name="rows"),
        Sample((make(2, 3), 1, int_tensor([1]), make(2, 1)), {"alpha": 2.0}, name="alpha"),
    ],
    raises="all",
)


# --- one index per element ------------------------------------------------------------------------


def _along(index: Any, dim: int) -> tuple[Any, ...]:
    """Return the indices of every dimension, open, with `index` for `dim`."""
    grids = np.ogrid[tuple(slice(n) for n in index.shape)]
    return tuple(index if d == dim else grid for d, grid in enumerate(grids))


def _along_rule(where_: str, x: Any, dim: int, index: Any, limits: Sequence[Any]) -> int:
    """Check `index` against the tensors that it walks through; return `dim` from the front."""
    want_index(where_, "index", index)
    dim = wrap_dim(where_, dim, x.ndim)
    ndim = max(x.ndim, 1)
    if max(index.ndim, 1) != ndim or any(max(y.ndim, 1) != ndim for y in limits):
        raise RuntimeError(
            f"[{where_}] argument 'index': Index tensor must have the same number of dimensions as "
            f"the other tensors: got {index.ndim} and {x.ndim}."
        )
    for d, n in enumerate(index.shape):
        if (d != dim and x.ndim and n > x.shape[d]) or any(
            y.ndim and n > y.shape[d] for y in limits
        ):
            raise RuntimeError(
                f"[{where_}] argument 'index': Size does not match at dimension {d} expected index "
                f"{list(index.shape)} to be no larger than {list(x.shape)} apart from "
                f"dimension {dim}."
            )
    return dim


def _gather_rule(x: Any, dim: int, index: Any) -> Spec:
    _along_rule("gather", x, dim, index, ())
    return Spec(index.shape, kind_of(x))


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
            lambda g, s: scatter_add.apply(
                (g.new_zeros(s.specs["input"].shape), s.dim, s.index, g)
            ),
            "index",
        )
    },
    jvp="linear",
    check_first=False,
    samples=lambda make: [
        Sample((make(3, 2), 0, int_tensor([[0, 2], [2, 2]])), name="dim 0"),
        Sample((make(2, 3), -1, int_tensor([[0, 0, 1, 2], [2, 1, 1, 1]])), name="dim 1"),
        Sample((make(3), 0, int_tensor([1])), name="vector"),
    ],
    raises="all",
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
    widths = [
        w for n, m in zip(reversed(shape), reversed(inner.shape), strict=True) for w in (0, n - m)
    ]
    return pad.apply((inner, widths, "constant", None))


def _scatter_rule(name: str) -> Any:
    def rule(x: Any, dim: int, index: Any, src: Any) -> Spec:
        _along_rule(name, x, dim, index, (src,) if hasattr(src, "shape") and src.ndim else ())
        check_storable(name, "src", src, kind_of(x))
        return Spec(x.shape, kind_of(x))

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
    yield Sample((make(3, 2), 0, int_tensor([[0, 2], [2, 1]]), make(2, 2)), name="dim 0")
    yield Sample((make(2, 3), 1, int_tensor([[1], [2]]), make(2, 2)), name="longer source")


scatter: Primitive = Primitive(
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
    scalars=("src",),
    check_first=False,
    inplace=True,
    samples=_scatter_samples,
    raises="all",
)

scatter_add: Primitive = Primitive(
    "scatter_add(Tensor input, int dim, Tensor index, Tensor src) -> Tensor",
    "`input` with elements of `src` added where ``gather`` would read.",
    _scatter_impl("scatter_add"),
    rule=_scatter_rule("scatter_add"),
    vjp={
        "input": Vjp(lambda g, s: g),
        "src": Vjp(lambda g, s: _source_grad(g, s, adds=True), "index"),
    },
    jvp="linear",
    check_first=False,
    inplace=True,
    samples=lambda make: [
        *_scatter_samples(make),
        Sample((make(3), 0, int_tensor([1, 1, 1]), make(3)), name="one place"),
    ],
    raises="all",
)
