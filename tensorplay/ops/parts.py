"""Parts of a tensor, as views: slices, splits and diagonals, and the adjoints of these views."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tensorplay._methods import attach
from tensorplay._tensor import Spec, Tensor
from tensorplay.ops.arguments import as_plain, reject
from tensorplay.ops.dims import strides_of, view_strides, wrap_dim
from tensorplay.ops.dispatch import overridable
from tensorplay.ops.movement import Ints, samples_of
from tensorplay.ops.primitive import Composite, Primitive, Vjp

__all__ = ["split"]

# --- slices ---------------------------------------------------------------------------------------
# Everything that basic indexing can say is one operator: a start, stop and positive step for each
# dimension, and the shape that remains when dimensions of size 1 are dropped or inserted.


def _sliced(start: Ints, stop: Ints, step: Ints) -> tuple[Any, ...]:
    return (*map(slice, start, stop, step), ...)  # with ... even a 0-d part is a view


def _slice_rule(x: Spec, start: Ints, stop: Ints, step: Ints, shape: Ints) -> Spec:
    sizes = tuple(len(range(*bounds)) for bounds in zip(start, stop, step, strict=True))
    strides = tuple(a * b for a, b in zip(strides_of(x), step, strict=True))
    return Spec(shape, x.dtype, view_strides(Spec(sizes, x.dtype, strides), shape))


def _quick_slice(x: Any, rest: tuple[Any, ...]) -> Any:
    """Return what a key of numbers, slices with positive steps and Ellipsis says.

    For None NumPy makes dimensions with a stride of zero.
    """
    (key,) = rest
    kind = key.__class__
    if kind is int:
        return x[key, ...], rest  # with ... even a 0-d part is a view
    if kind is slice:
        return (x[key], rest) if _is_basic(key) else None
    if kind is not tuple:
        return None
    for item in key:
        if (
            item.__class__ is not int and item is not Ellipsis
            and not (item.__class__ is slice and _is_basic(item))
        ):  # fmt: skip
            return None
    full = key if Ellipsis in key else (*key, ...)
    return x[full], rest


def _is_basic(item: slice) -> bool:
    """Tell whether a slice has numbers that never change, and goes forward."""
    first, last, step = item.start, item.stop, item.step
    return (
        (first is None or first.__class__ is int)
        and (last is None or last.__class__ is int)
        and (step is None or (step.__class__ is int and step > 0))
    )


def _basic_plan(shape: Ints, key: Any) -> tuple[Ints, Ints, Ints, Ints]:
    """Return the arguments of ``_slice`` for a key that `_quick_slice` took."""
    items = list(key) if isinstance(key, tuple) else [key]
    fill = [slice(None)] * (len(shape) - sum(i is not Ellipsis for i in items))
    place = items.index(Ellipsis) if Ellipsis in items else len(items)
    items[place : place + 1] = fill
    ranges: list[range] = []
    sizes: list[int] = []
    for item in items:
        size = shape[len(ranges)]
        if isinstance(item, slice):
            ranges.append(range(*item.indices(size)))
            sizes.append(len(ranges[-1]))
        else:
            ranges.append(range(item % size, item % size + 1))
    bounds = [(r.start, max(r.start, r.stop), r.step) for r in ranges]
    start, stop, step = zip(*bounds, strict=True) if bounds else ((), (), ())
    return start, stop, step, tuple(sizes)


def _slice_adjoint_array(g: Any, args: Any, shapes: Any, out: Any) -> Any:
    if len(args) != 2:
        return None
    shape, key = args
    whole = np.zeros(shape, g.dtype)
    whole[key] = g
    return whole


# An argument is complete: the bounds of every dimension lie inside the tensor.
slice_ = Primitive(
    "_slice(Tensor(a) input, int[] start, int[] stop, int[] step, int[] shape) -> Tensor(a)",
    "Every ``step``-th element from ``start`` to ``stop`` of each dimension, viewed as `shape`.",
    lambda x, start, stop, step, shape: x[_sliced(start, stop, step)].reshape(shape),
    rule=_slice_rule,
    vjp={
        "input": Vjp(
            lambda g, s: slice_adjoint.apply((g, s.start, s.stop, s.step, s.specs["input"].shape)),
            arrays=_slice_adjoint_array,
        )
    },
    quick=_quick_slice,
    complete=lambda shape, key: (None, *_basic_plan(shape, key)),
    jvp="linear",
    check_first=False,
    function=False,
    method=False,
    samples=samples_of(
        ((4, 3), ((1, 0), (4, 2), (2, 1), (2, 1, 2))), ((3,), ((1,), (2,), (1,), ()))
    ),
)


def _slice_adjoint(g: Any, start: Ints, stop: Ints, step: Ints, shape: Ints) -> Any:
    out = np.zeros(shape, g.dtype)
    part = out[_sliced(start, stop, step)]
    part[...] = g.reshape(part.shape)
    return out


def _slice_of_adjoint(g: Any, s: Any) -> Any:
    return slice_.apply((g, s.start, s.stop, s.step, s.specs["input"].shape))


slice_adjoint: Primitive = Primitive(
    "_slice_adjoint(Tensor input, int[] start, int[] stop, int[] step, int[] shape) -> Tensor",
    "Zeros of `shape` with `input` where ``_slice`` reads: the adjoint of slicing.",
    _slice_adjoint,
    rule=lambda g, start, stop, step, shape: Spec(shape, g.dtype),
    vjp={"input": Vjp(_slice_of_adjoint)},
    jvp="linear",
    check_first=False,
    function=False,
    method=False,
    samples=samples_of(((2, 2), ((1, 0), (4, 2), (2, 1), (4, 3)))),
)


def slice_dim(
    x: Tensor, dim: int, start: int, stop: int, step: int = 1, *, drop: bool = False
) -> Any:
    """Slice one dimension between bounds that lie inside the tensor; `drop` removes it."""
    shape = x._array.shape
    starts, stops, sizes = [0] * len(shape), list(shape), list(shape)
    steps = [1] * len(shape)
    starts[dim], stops[dim], steps[dim] = start, stop, step
    sizes[dim : dim + 1] = [] if drop else [len(range(start, stop, step))]
    return slice_.apply((x, starts, stops, steps, sizes))


def _select(x: Tensor, dim: int, index: int) -> Any:
    if not x.ndim:
        raise IndexError("[select] a 0-d tensor has no dimension to select from. Write x.item().")
    dim = wrap_dim("select", dim, x.ndim)
    size = x._array.shape[dim]
    if not -size <= index < size:
        raise IndexError(
            f"[select] argument 'index': index {index} out of range for tensor of size "
            f"{list(x.shape)} at dimension {dim}."
        )
    return slice_dim(x, dim, index % size, index % size + 1, drop=True)


select = Composite(
    "select(Tensor(a) input, int dim, int index) -> Tensor(a)",
    "The part at `index` of dimension `dim`, without that dimension.",
    _select,
    samples=samples_of(((3, 2), (0, 1)), ((3, 2), (-1, -1)), ((2,), (0, 0))),
)


def _slice_method(x: Tensor, dim: int, start: int | None, end: int | None, step: int) -> Any:
    if not x.ndim:
        raise IndexError("[slice] a 0-d tensor has no dimension to slice.")
    if step <= 0:
        raise ValueError(f"[slice] argument 'step': step must be greater than zero, got {step}.")
    dim = wrap_dim("slice", dim, x.ndim)
    first, last, step = slice(start, end, step).indices(x._array.shape[dim])
    return slice_dim(x, dim, first, max(first, last), step)


slice_along = Composite(
    "slice(Tensor(a) input, int dim=0, int? start=None, int? end=None, int step=1) -> Tensor(a)",
    "Every `step`-th element of dimension `dim` from `start` to `end`, as in a Python slice.",
    _slice_method,
    function=False,
    samples=samples_of(((4, 3), (0, 1, None, 2)), ((2, 3), (1, -2)), ((2, 3), (1, 5, 9))),
)


def _narrow(x: Tensor, dim: int, start: Any, length: int) -> Any:
    if not x.ndim:
        raise RuntimeError("[narrow] cannot be applied to a 0-d tensor.")
    dim = wrap_dim("narrow", dim, x.ndim)
    size = x._array.shape[dim]
    if length < 0:
        raise RuntimeError(
            f"[narrow] argument 'length': length must be non-negative, got {length}."
        )
    if not -size <= start <= size:
        raise IndexError(
            f"[narrow] argument 'start': start out of range (expected to be in range of "
            f"[{-size}, {size}], but got {start})."
        )
    start = start + size if start < 0 else start
    if start + length > size:
        raise RuntimeError(
            f"[narrow] start ({start}) + length ({length}) exceeds dimension size ({size})."
        )
    return slice_dim(x, dim, start, start + length)


narrow = Composite(
    "narrow(Tensor(a) input, int dim, int start, int length) -> Tensor(a)",
    "`length` elements of dimension `dim` from `start` on.",
    _narrow,
    samples=samples_of(((4, 3), (0, 1, 2)), ((4, 3), (-1, -2, 1)), ((2,), (0, 2, 0))),
)


# --- several parts --------------------------------------------------------------------------------


def _unbind_rule(x: Spec, dim: int) -> tuple[Spec, ...]:
    if not x.ndim:
        raise IndexError("[unbind] Dimension specified as 0 but tensor has no dimensions.")
    dim = wrap_dim("unbind", dim, x.ndim)
    strides = strides_of(x)
    part = Spec(x.shape[:dim] + x.shape[dim + 1 :], x.dtype, strides[:dim] + strides[dim + 1 :])
    return (part,) * x.shape[dim]


def _list_of(g: Any) -> list[Any]:
    """Return the gradients of a list of results; a list of one arrives bare."""
    return g if isinstance(g, list) else [g]


unbind = Primitive(
    "unbind(Tensor(a) input, int dim=0) -> Tensor(a)[]",
    "The parts of dimension `dim`, without that dimension.",
    lambda x, dim: tuple(part[...] for part in _parts(x, dim)),
    rule=_unbind_rule,
    vjp={"input": Vjp(lambda g, s: _joining().stack.apply((_list_of(g), s.dim)))},
    jvp="linear",
    check_first=False,
    samples=samples_of(((2, 3), ()), ((2, 3), (1,)), ((1, 2), ()), ((3,), ())),
)


def _parts(x: Any, dim: int) -> list[Any]:
    if not x.ndim:
        raise ValueError  # the rule words it
    moved = np.moveaxis(x, dim, 0)
    return [moved[i, ...] for i in range(len(moved))]


def _joining() -> Any:
    from tensorplay.ops import joining

    return joining


def _check_sections(x: Any, split_sizes: Ints, dim: int) -> int:
    if not x.ndim:
        raise RuntimeError("[split] expects at least a 1-dimensional tensor.")
    dim = wrap_dim("split", dim, x.ndim)
    if sum(split_sizes) != x.shape[dim] or any(n < 0 for n in split_sizes):
        raise RuntimeError(
            f"[split] argument 'split_sizes': expected non-negative sizes that sum to "
            f"{x.shape[dim]}, the size of dimension {dim}, got {list(split_sizes)}: "
            f"split_with_sizes expects split_sizes to sum exactly to {x.shape[dim]}."
        )
    return dim


def _split_rule(x: Spec, split_sizes: Ints, dim: int) -> tuple[Spec, ...]:
    dim = _check_sections(x, split_sizes, dim)
    return tuple(
        Spec((*x.shape[:dim], n, *x.shape[dim + 1 :]), x.dtype, strides_of(x)) for n in split_sizes
    )


def _split_array(x: Any, split_sizes: Ints, dim: int) -> tuple[Any, ...]:
    dim = _check_sections(x, split_sizes, dim)
    parts, start = [], 0
    for size in split_sizes:
        parts.append(x[(slice(None),) * dim + (slice(start, start + size),)])
        start += size
    return tuple(parts)


split_with_sizes = Primitive(
    "split_with_sizes(Tensor(a) input, int[] split_sizes, int dim=0) -> Tensor(a)[]",
    "Consecutive parts of dimension `dim` of the given sizes.",
    _split_array,
    rule=_split_rule,
    vjp={"input": Vjp(lambda g, s: _joining().cat.apply((_list_of(g), s.dim)))},
    jvp="linear",
    check_first=False,
    samples=samples_of(((4, 3), ((1, 3),)), ((2, 3), ((0, 1, 2), -1)), ((2,), ((2,),))),
)


@overridable
def split(input: Tensor, split_size_or_sections: int | Sequence[int], dim: int = 0) -> Any:
    """Return consecutive parts of dimension `dim`, as views.

    Parameters
    ----------
    input
        Tensor to split.
    split_size_or_sections
        Size of each part (the last may be smaller), or a sequence with the size of every part.
    dim
        Dimension to split.

    Returns
    -------
    tuple of Tensor

    Raises
    ------
    RuntimeError
        The sizes do not sum to that of the dimension, or a size is negative.
    """
    if not isinstance(input, Tensor):
        reject("split", "input", "Tensor", input, "Write tensorplay.tensor(x).")
    sizes = split_size_or_sections
    if isinstance(sizes, (int, np.integer)):
        sizes = int(sizes)
        dim = as_plain("split", "dim", "int", dim)
        total = input._array.shape[wrap_dim("split", dim, input.ndim)] if input.ndim else 0
        if sizes < 0 or (sizes == 0 and total):
            raise RuntimeError(
                f"[split] argument 'split_size_or_sections': split_size can only be 0 if the "
                f"dimension size is 0 and never negative, got split_size={sizes} for size {total}."
            )
        whole, rest = divmod(total, sizes) if sizes else (0, 0)
        sizes = [sizes] * whole + ([rest] if rest or not whole else [])
    return split_with_sizes.apply((input, sizes, dim))


attach("split", split)


def _chunk(x: Tensor, chunks: int, dim: int) -> Any:
    if chunks < 1:
        raise RuntimeError(
            f"[chunk] argument 'chunks': chunk expects `chunks` to be greater than 0, "
            f"got: {chunks}."
        )
    if not x.ndim:
        raise RuntimeError("[chunk] expects at least a 1-dimensional tensor.")
    size = x._array.shape[wrap_dim("chunk", dim, x.ndim)]
    if size == 0:
        return split_with_sizes.apply((x, (0,) * chunks, dim))
    return split(x, -(-size // chunks), dim)


chunk = Composite(
    "chunk(Tensor(a) input, int chunks, int dim=0) -> Tensor(a)[]",
    "At most `chunks` parts of dimension `dim`, all of one size but the last.",
    _chunk,
    samples=samples_of(((5, 2), (3,)), ((2, 4), (2, -1)), ((2,), (5,))),
)


# --- diagonals ------------------------------------------------------------------------------------


def _diagonal_dims(x: Any, dim1: int, dim2: int) -> tuple[int, int]:
    a, b = (wrap_dim("diagonal", d, x.ndim) for d in (dim1, dim2))
    if a == b or x.ndim < 2:
        raise RuntimeError(
            f"[diagonal] diagonal dimensions cannot be identical {dim1}, {dim2} and need a tensor "
            f"with at least 2 dimensions, got {x.ndim}."
        )
    return a, b


def _diagonal_rule(x: Spec, offset: int, dim1: int, dim2: int) -> Spec:
    a, b = _diagonal_dims(x, dim1, dim2)
    rows, columns = x.shape[a] + min(offset, 0), x.shape[b] - max(offset, 0)
    kept = [d for d in range(x.ndim) if d not in (a, b)]
    steps = strides_of(x)
    return Spec(
        (*(x.shape[d] for d in kept), max(min(rows, columns), 0)),
        x.dtype,
        (*(steps[d] for d in kept), steps[a] + steps[b]),
    )


def _diagonal(x: Any, offset: int, dim1: int, dim2: int) -> Any:
    a, b = _diagonal_dims(x, dim1, dim2)
    out = x.diagonal(max(-x.shape[a], min(offset, x.shape[b])), dim1, dim2)
    out.flags.writeable = x.flags.writeable
    return out


diagonal = Primitive(
    "diagonal(Tensor(a) input, int offset=0, int dim1=0, int dim2=1) -> Tensor(a)",
    "The elements with index ``i`` in `dim1` and ``i + offset`` in `dim2`, as the last dimension.",
    _diagonal,
    rule=_diagonal_rule,
    vjp={
        "input": Vjp(
            lambda g, s: diagonal_adjoint.apply(
                (g, s.specs["input"].shape, s.offset, s.dim1, s.dim2)
            )
        )
    },
    jvp="linear",
    check_first=False,
    samples=samples_of(((3, 4), ()), ((3, 4), (1,)), ((2, 3, 3), (-1, 1, 2)), ((2, 2), (5,))),
)


def _diagonal_adjoint(g: Any, shape: Ints, offset: int, dim1: int, dim2: int) -> Any:
    out = np.zeros(shape, g.dtype)
    _diagonal(out, offset, dim1, dim2)[...] = g
    return out


diagonal_adjoint: Primitive = Primitive(
    "_diagonal_adjoint(Tensor input, int[] shape, int offset, int dim1, int dim2) -> Tensor",
    "Zeros of `shape` with `input` on a diagonal: the adjoint of ``diagonal``.",
    _diagonal_adjoint,
    rule=lambda g, shape, offset, dim1, dim2: Spec(shape, g.dtype),
    vjp={"input": Vjp(lambda g, s: diagonal.apply((g, s.offset, s.dim1, s.dim2)))},
    jvp="linear",
    check_first=False,
    function=False,
    method=False,
    samples=samples_of(((3,), ((3, 4), 0, 0, 1)), ((2, 2), ((2, 3, 3), -1, 1, 2))),
)
