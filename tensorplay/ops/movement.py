"""Operators that rearrange elements: views on the same memory first, then those that copy.

A result annotated ``Tensor(a)`` shares the memory of its input. Backward formulas read shapes only,
so that none of these operators keeps its input alive.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from tensorplay._methods import attach
from tensorplay._tensor import Spec, Tensor, spec_of
from tensorplay.ops.arguments import reject
from tensorplay.ops.dims import resolve_size, strides_of, view_strides, wrap_dim, wrap_dims
from tensorplay.ops.primitive import Composite, Primitive, Sample, Vjp

__all__ = ["broadcast_tensors", "split"]

Ints = tuple[int, ...]


def _samples(*cases: tuple[tuple[int, ...], tuple[Any, ...]]) -> Any:
    """Return samples from pairs of a shape and the arguments after the tensor."""

    def samples(make: Any) -> Iterable[Sample]:
        for shape, rest in cases:
            yield Sample((make(*shape), *rest), name=f"shape{list(shape)}")
        shape, rest = cases[0]
        if len(shape) > 1:
            yield Sample((make(*reversed(shape)).permute(*range(len(shape))[::-1]), *rest), name="transposed")

    return samples


# --- another shape on the same elements -----------------------------------------------------------


def _reshape_rule(x: Spec, shape: tuple[int, ...]) -> Spec:
    shape = resolve_size("reshape", shape, x.numel)
    return Spec(shape, x.dtype, view_strides(x, shape))


reshape = Primitive(
    "reshape(Tensor(a) input, int[] shape) -> Tensor(a)",
    "The elements in row-major order in another shape: a view where strides allow it, else a copy.",
    lambda x, shape: x.reshape(resolve_size("reshape", shape, x.size)),
    rule=_reshape_rule,
    vjp={"input": Vjp(lambda g, s: g.reshape(s.specs["input"].shape))},
    jvp="linear",
    check_first=False,
    varargs=True,
    samples=_samples(((2, 3), ((3, 2),)), ((4,), ((2, -1),)), ((), ((1, 1),)), ((0, 2), ((2, 0),))),
)


def _view(x: Tensor, size: Ints) -> Any:
    shape = resolve_size("view", size, x._array.size)
    if x.is_meta or not x._array.flags.c_contiguous:
        spec = spec_of(x)
        if view_strides(spec, shape) is None:
            raise RuntimeError(
                f"[view] argument 'size': view size is not compatible with input tensor's size "
                f"{list(x.shape)} and strides {strides_of(spec)}: a dimension of {list(shape)} "
                "spans two separate pieces of memory. Write x.reshape(...)."
            )
    return reshape.apply((x, shape))


# Written in terms of reshape so that its history holds for gradients of any layout.
view = Composite(
    "view(Tensor(a) input, int[] size) -> Tensor(a)",
    "The same memory in another shape.",
    _view,
    function=False,
    varargs=True,
    samples=lambda make: [
        Sample((make(2, 3), (3, 2)), name="shape[2, 3]"),
        Sample((make(2, 6).t(), (3, 2, 2)), name="transposed"),
        Sample((make(0, 3), (3, 0)), name="empty"),
    ],
)

view_as = Composite(
    "view_as(Tensor(a) input, Tensor other) -> Tensor(a)",
    "The same memory in the shape of `other`.",
    lambda x, other: view.apply((x, other.shape)),
    function=False,
    samples=lambda make: [Sample((make(2, 3), make(3, 2)))],
)

reshape_as = Composite(
    "reshape_as(Tensor(a) input, Tensor other) -> Tensor(a)",
    "The elements in the shape of `other`.",
    lambda x, other: reshape.apply((x, other.shape)),
    function=False,
    samples=lambda make: [Sample((make(2, 3), make(6)))],
)


def _flatten(x: Tensor, start_dim: int, end_dim: int) -> Any:
    shape = x._array.shape
    start, end = (wrap_dim("flatten", d, len(shape)) for d in (start_dim, end_dim))
    if start > end:
        raise RuntimeError(
            f"[flatten] argument 'start_dim': start_dim {start_dim} cannot come after end_dim {end_dim}."
        )
    return reshape.apply((x, (*shape[:start], math.prod(shape[start : end + 1]), *shape[end + 1 :])))


flatten = Composite(
    "flatten(Tensor(a) input, int start_dim=0, int end_dim=-1) -> Tensor(a)",
    "The dimensions from `start_dim` to `end_dim` made into one.",
    _flatten,
    aliases=(),
    samples=_samples(((2, 3, 2), (1,)), ((), ()), ((3,), ()), ((2, 0, 3), (0, 1))),
)


def _unflatten(x: Tensor, dim: int, sizes: tuple[int, ...]) -> Any:
    shape = x._array.shape
    dim = wrap_dim("unflatten", dim, len(shape))
    inner = resolve_size("unflatten", sizes, shape[dim] if shape else 1)
    return reshape.apply((x, (*shape[:dim], *inner, *shape[dim + 1 :])))


unflatten = Composite(
    "unflatten(Tensor(a) input, int dim, int[] sizes) -> Tensor(a)",
    "Dimension `dim` made into several of the given `sizes`.",
    _unflatten,
    samples=_samples(((2, 6), (1, (3, -1))), ((4,), (0, (2, 2)))),
)


def _squeezed(x: Any, dim: tuple[int, ...] | None) -> tuple[int, ...]:
    """Return the dimensions of size 1 that squeeze removes."""
    dims = range(x.ndim) if dim is None else wrap_dims("squeeze", dim, x.ndim)
    return tuple(d for d in dims if x.ndim and x.shape[d] == 1)


def _squeeze_rule(x: Spec, dim: tuple[int, ...] | None) -> Spec:
    gone = _squeezed(x, dim)
    kept = [d for d in range(x.ndim) if d not in gone]
    strides = strides_of(x)
    return Spec(tuple(x.shape[d] for d in kept), x.dtype, tuple(strides[d] for d in kept))


squeeze = Primitive(
    "squeeze(Tensor(a) input, int[1]? dim=None) -> Tensor(a)",
    "Without the dimensions of size 1, or without those of them that `dim` names.",
    lambda x, dim: x.squeeze(_squeezed(x, dim)),
    rule=_squeeze_rule,
    vjp={"input": Vjp(lambda g, s: g.reshape(s.specs["input"].shape))},
    jvp="linear",
    check_first=False,
    samples=_samples(((1, 3, 1), ()), ((1, 3, 1), (-1,)), ((2, 1), (0,)), ((1,), ()), ((), ())),
)


def _unsqueeze_rule(x: Spec, dim: int) -> Spec:
    dim = wrap_dim("unsqueeze", dim, x.ndim + 1)
    strides = strides_of(x)
    step = strides[dim] * x.shape[dim] if dim < x.ndim else 1
    return Spec(
        (*x.shape[:dim], 1, *x.shape[dim:]), x.dtype, (*strides[:dim], step, *strides[dim:])
    )


unsqueeze = Primitive(
    "unsqueeze(Tensor(a) input, int dim) -> Tensor(a)",
    "With a dimension of size 1 inserted at `dim`.",
    lambda x, dim: np.expand_dims(x, dim),
    rule=_unsqueeze_rule,
    vjp={"input": Vjp(lambda g, s: g.reshape(s.specs["input"].shape))},
    jvp="linear",
    check_first=False,
    samples=_samples(((2, 3), (1,)), ((2, 3), (-1,)), ((), (0,)), ((0, 2), (0,))),
)


# --- another order of dimensions ------------------------------------------------------------------


def _permutation(x: Any, dims: tuple[int, ...]) -> tuple[int, ...]:
    if len(dims) != x.ndim:
        raise RuntimeError(
            f"[permute] argument 'dims': the number of dimensions in the tensor input ({x.ndim}) "
            f"does not match the length of the desired ordering of dimensions ({len(dims)})."
        )
    return wrap_dims("permute", dims, x.ndim)


def _permute_rule(x: Spec, dims: tuple[int, ...]) -> Spec:
    order = _permutation(x, dims)
    strides = strides_of(x)
    return Spec(tuple(x.shape[d] for d in order), x.dtype, tuple(strides[d] for d in order))


def _inverse(dims: Sequence[int]) -> tuple[int, ...]:
    order = [0] * len(dims)
    for place, dim in enumerate(dims):
        order[dim % len(dims)] = place
    return tuple(order)


permute = Primitive(
    "permute(Tensor(a) input, int[] dims) -> Tensor(a)",
    "The dimensions in the order `dims`.",
    lambda x, dims: x.transpose(dims),
    rule=_permute_rule,
    vjp={"input": Vjp(lambda g, s: g.permute(_inverse(s.dims)))},
    jvp="linear",
    check_first=False,
    varargs=True,
    samples=_samples(((2, 3, 4), ((2, 0, 1),)), ((2, 3), ((-1, 0),)), ((), ((),)), ((0, 2), ((1, 0),))),
)


def _transpose_rule(x: Spec, dim0: int, dim1: int) -> Spec:
    a, b = (wrap_dim("transpose", d, x.ndim) for d in (dim0, dim1))
    order = list(range(x.ndim))
    if order:
        order[a], order[b] = b, a
    return _permute_rule(x, tuple(order))


def _transpose(x: Any, dim0: int, dim1: int) -> Any:
    if not x.ndim and not {dim0, dim1} <= {0, -1}:
        raise ValueError  # the rule words it
    return x.swapaxes(dim0, dim1) if x.ndim else x


transpose = Primitive(
    "transpose(Tensor(a) input, int dim0, int dim1) -> Tensor(a)",
    "Dimensions `dim0` and `dim1` exchanged.",
    _transpose,
    rule=_transpose_rule,
    vjp={"input": Vjp(lambda g, s: g.transpose(s.dim0, s.dim1))},
    jvp="linear",
    check_first=False,
    aliases=("swapaxes", "swapdims"),
    samples=_samples(((2, 3), (0, 1)), ((2, 3, 4), (-1, 0)), ((), (0, -1)), ((0, 2), (0, 1))),
)


def _t(x: Tensor) -> Any:
    if x.ndim > 2:
        raise RuntimeError(
            f"[t] argument 'input': expected a tensor with <= 2 dimensions, got {x.ndim}. "
            "Write x.transpose(dim0, dim1)."
        )
    return transpose.apply((x, 0, x.ndim - 1)) if x.ndim else view.apply((x, ()))


t = Composite(
    "t(Tensor(a) input) -> Tensor(a)",
    "Transpose of a matrix; a vector or 0-d tensor as it is.",
    _t,
    samples=_samples(((2, 3), ()), ((3,), ()), ((), ())),
)


def _movedim(x: Tensor, source: tuple[int, ...], destination: tuple[int, ...]) -> Any:
    if len(source) != len(destination):
        raise RuntimeError(
            f"[movedim] Invalid source or destination dims: source ({len(source)} dims) should "
            f"contain the same number of dims as destination ({len(destination)} dims)."
        )
    taken = wrap_dims("movedim", source, x.ndim)
    places = wrap_dims("movedim", destination, x.ndim)
    order = [d for d in range(x.ndim) if d not in taken]
    for place, dim in sorted(zip(places, taken, strict=True)):
        order.insert(place, dim)
    return permute.apply((x, order if x.ndim else ()))


movedim = Composite(
    "movedim(Tensor(a) input, int[1] source, int[1] destination) -> Tensor(a)",
    "Dimensions `source` moved to the places `destination`, the others in their old order.",
    _movedim,
    aliases=("moveaxis",),
    samples=_samples(((2, 3, 4), (0, -1)), ((2, 3, 4), ((0, 1), (2, 0)))),
)


def _matrix_only(where: str, x: Tensor) -> None:
    if x.ndim < 2:
        raise RuntimeError(
            f"[{where}] only supported on matrices or batches of matrices, got a {x.ndim}-D tensor."
        )


def _T(self: Tensor) -> Any:  # noqa: N802 - the field's spelling
    """All dimensions in reverse order; the transpose of a matrix."""
    return permute.apply((self, tuple(range(self.ndim))[::-1]))


def _mT(self: Tensor) -> Any:  # noqa: N802 - the field's spelling
    """The last two dimensions exchanged: the transpose of each matrix."""
    _matrix_only("mT", self)
    return transpose.apply((self, -2, -1))


def _mH(self: Tensor) -> Any:  # noqa: N802 - the field's spelling
    """The conjugate transpose of each matrix."""
    _matrix_only("mH", self)
    result: Any = transpose.apply((self, -2, -1))
    return result.conj() if self._dtype.is_complex else result


for _name, _property in {"T": _T, "mT": _mT, "mH": _mH, "H": _mH}.items():
    attach(_name, property(_property))


# --- parts of a tensor ----------------------------------------------------------------------------
# Everything that basic indexing can say is one operator: a start, stop and positive step for each
# dimension, and the shape that remains when dimensions of size 1 are dropped or inserted.

def _sliced(start: Ints, stop: Ints, step: Ints) -> tuple[slice, ...]:
    return (*map(slice, start, stop, step), ...)  # with ... even a 0-d part is a view


def _slice_rule(x: Spec, start: Ints, stop: Ints, step: Ints, shape: Ints) -> Spec:
    sizes = tuple(len(range(*bounds)) for bounds in zip(start, stop, step, strict=True))
    strides = tuple(a * b for a, b in zip(strides_of(x), step, strict=True))
    return Spec(shape, x.dtype, view_strides(Spec(sizes, x.dtype, strides), shape))


# An argument is complete: the bounds of every dimension lie inside the tensor.
slice_ = Primitive(
    "_slice(Tensor(a) input, int[] start, int[] stop, int[] step, int[] shape) -> Tensor(a)",
    "Every ``step``-th element from ``start`` to ``stop`` of each dimension, viewed as `shape`.",
    lambda x, start, stop, step, shape: x[_sliced(start, stop, step)].reshape(shape),
    rule=_slice_rule,
    vjp={
        "input": Vjp(
            lambda g, s: slice_adjoint.apply((g, s.start, s.stop, s.step, s.specs["input"].shape))
        )
    },
    jvp="linear",
    check_first=False,
    function=False,
    method=False,
    samples=_samples(((4, 3), ((1, 0), (4, 2), (2, 1), (2, 1, 2))), ((3,), ((1,), (2,), (1,), ()))),
)


def _slice_adjoint(g: Any, start: Ints, stop: Ints, step: Ints, shape: Ints) -> Any:
    out = np.zeros(shape, g.dtype)
    part = out[_sliced(start, stop, step)]
    part[...] = g.reshape(part.shape)
    return out


def _slice_of_adjoint(g: Any, s: Any) -> Any:
    return slice_.apply((g, s.start, s.stop, s.step, s.specs["input"].shape))


slice_adjoint = Primitive(
    "_slice_adjoint(Tensor input, int[] start, int[] stop, int[] step, int[] shape) -> Tensor",
    "Zeros of `shape` with `input` where ``_slice`` reads: the adjoint of slicing.",
    _slice_adjoint,
    rule=lambda g, start, stop, step, shape: Spec(shape, g.dtype),
    vjp={"input": Vjp(_slice_of_adjoint)},
    jvp="linear",
    check_first=False,
    function=False,
    method=False,
    samples=_samples(((2, 2), ((1, 0), (4, 2), (2, 1), (4, 3)))),
)


def slice_dim(x: Tensor, dim: int, start: int, stop: int, step: int = 1, *, drop: bool = False) -> Any:
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
    samples=_samples(((3, 2), (0, 1)), ((3, 2), (-1, -1)), ((2,), (0, 0))),
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
    samples=_samples(((4, 3), (0, 1, None, 2)), ((2, 3), (1, -2)), ((2, 3), (1, 5, 9))),
)


def _narrow(x: Tensor, dim: int, start: Any, length: int) -> Any:
    if not x.ndim:
        raise RuntimeError("[narrow] cannot be applied to a 0-d tensor.")
    dim = wrap_dim("narrow", dim, x.ndim)
    size = x._array.shape[dim]
    if length < 0:
        raise RuntimeError(f"[narrow] argument 'length': length must be non-negative, got {length}.")
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
    samples=_samples(((4, 3), (0, 1, 2)), ((4, 3), (-1, -2, 1)), ((2,), (0, 2, 0))),
)


def _unbind_rule(x: Spec, dim: int) -> tuple[Spec, ...]:
    if not x.ndim:
        raise IndexError("[unbind] Dimension specified as 0 but tensor has no dimensions.")
    dim = wrap_dim("unbind", dim, x.ndim)
    strides = strides_of(x)
    part = Spec(x.shape[:dim] + x.shape[dim + 1 :], x.dtype, strides[:dim] + strides[dim + 1 :])
    return (part,) * x.shape[dim]


def _list_of(g: Any) -> list[Any]:
    """The gradients of a list of results; a list of one arrives bare."""
    return g if isinstance(g, list) else [g]


unbind = Primitive(
    "unbind(Tensor(a) input, int dim=0) -> Tensor(a)[]",
    "The parts of dimension `dim`, without that dimension.",
    lambda x, dim: tuple(part[...] for part in _parts(x, dim)),
    rule=_unbind_rule,
    vjp={"input": Vjp(lambda g, s: _joining().stack.apply((_list_of(g), s.dim)))},
    jvp="linear",
    check_first=False,
    samples=_samples(((2, 3), ()), ((2, 3), (1,)), ((1, 2), ()), ((3,), ())),
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
            f"{x.shape[dim]}, the size of dimension {dim}, got {list(split_sizes)}: split_with_sizes "
            f"expects split_sizes to sum exactly to {x.shape[dim]}."
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
    samples=_samples(((4, 3), ((1, 3),)), ((2, 3), ((0, 1, 2), -1)), ((2,), ((2,),))),
)


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
    if isinstance(sizes, int):
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
        raise RuntimeError(f"[chunk] argument 'chunks': chunk expects `chunks` to be greater than 0, got: {chunks}.")
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
    samples=_samples(((5, 2), (3,)), ((2, 4), (2, -1)), ((2,), (5,))),
)


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
    _diagonal_dims(x, dim1, dim2)
    out = x.diagonal(offset, dim1, dim2)
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
    samples=_samples(((3, 4), ()), ((3, 4), (1,)), ((2, 3, 3), (-1, 1, 2)), ((2, 2), (5,))),
)


def _diagonal_adjoint(g: Any, shape: Ints, offset: int, dim1: int, dim2: int) -> Any:
    out = np.zeros(shape, g.dtype)
    _diagonal(out, offset, dim1, dim2)[...] = g
    return out


diagonal_adjoint = Primitive(
    "_diagonal_adjoint(Tensor input, int[] shape, int offset, int dim1, int dim2) -> Tensor",
    "Zeros of `shape` with `input` on a diagonal: the adjoint of ``diagonal``.",
    _diagonal_adjoint,
    rule=lambda g, shape, offset, dim1, dim2: Spec(shape, g.dtype),
    vjp={"input": Vjp(lambda g, s: diagonal.apply((g, s.offset, s.dim1, s.dim2)))},
    jvp="linear",
    check_first=False,
    function=False,
    method=False,
    samples=_samples(((3,), ((3, 4), 0, 0, 1)), ((2, 2), ((2, 3, 3), -1, 1, 2))),
)


# --- repetition -----------------------------------------------------------------------------------


def _expanded(x: Any, size: Ints) -> Ints:
    lead = len(size) - x.ndim
    if lead < 0:
        raise RuntimeError(
            f"[expand] the number of sizes provided ({len(size)}) must be greater or equal to the "
            f"number of dimensions in the tensor ({x.ndim})."
        )
    result = []
    for dim, wanted in enumerate(size):
        present = x.shape[dim - lead] if dim >= lead else 1
        if wanted < -1 or (wanted == -1 and dim < lead):
            raise RuntimeError(
                f"[expand] the expanded size of the tensor ({wanted}) isn't allowed in dimension {dim}."
            )
        if present not in (1, wanted) and wanted != -1:
            raise RuntimeError(
                f"[expand] The expanded size of the tensor ({wanted}) must match the existing size "
                f"({present}) at non-singleton dimension {dim}. Target sizes: {list(size)}. "
                f"Tensor sizes: {list(x.shape)}."
            )
        result.append(present if wanted == -1 else wanted)
    return tuple(result)


def _expand_rule(x: Spec, size: Ints) -> Spec:
    shape = _expanded(x, size)
    lead = len(shape) - x.ndim
    steps = (0,) * lead + strides_of(x)
    old = (1,) * lead + x.shape
    strides = tuple(0 if a != b else s for a, b, s in zip(old, shape, steps, strict=True))
    return Spec(shape, x.dtype, strides)


def _expand(x: Any, size: Ints) -> Any:
    out = np.broadcast_to(x, _expanded(x, size))
    # NumPy guards against writes that hit memory twice; `check_writable` does so for tensors.
    if x.flags.writeable and out is not x:
        out.flags.writeable = True
    return out


expand = Primitive(
    "expand(Tensor(a) input, int[] size) -> Tensor(a)",
    "Dimensions of size 1 repeated to `size` without a copy; -1 keeps a size.",
    _expand,
    rule=_expand_rule,
    vjp={"input": Vjp(lambda g, s: g)},  # what was repeated is summed as after broadcasting
    jvp="linear",
    check_first=False,
    function=False,
    varargs=True,
    samples=_samples(
        ((2, 1), ((3, -1, 4),)), ((3,), ((2, 3),)), ((), ((2, 2),)), ((1, 0), ((2, 0),)), ((1,), ((0,),))
    ),
)

expand_as = Composite(
    "expand_as(Tensor(a) input, Tensor other) -> Tensor(a)",
    "Repeated to the shape of `other` without a copy.",
    lambda x, other: expand.apply((x, other.shape)),
    function=False,
    samples=lambda make: [Sample((make(2, 1), make(2, 3)))],
)

broadcast_to = Composite(
    "broadcast_to(Tensor(a) input, int[] size) -> Tensor(a)",
    "Repeated to `size` without a copy.",
    lambda x, size: expand.apply((x, size)),
    samples=_samples(((2, 1), ((2, 3),)), ((), ((2,),))),
)


def broadcast_tensors(*tensors: Tensor) -> tuple[Any, ...]:
    """Return `tensors` expanded to the shape that they broadcast to.

    Raises
    ------
    RuntimeError
        They do not broadcast together.
    """
    from tensorplay.ops.elementwise import broadcast_shapes

    shape = broadcast_shapes("broadcast_tensors", *(tuple(x.shape) for x in tensors))
    return tuple(expand.apply((x, shape)) for x in tensors)


def _repeat(x: Tensor, repeats: Ints) -> Any:
    lead = len(repeats) - x.ndim
    if lead < 0 or any(r < 0 for r in repeats):
        raise RuntimeError(
            f"[repeat] argument 'repeats': expected at least {x.ndim} non-negative numbers, got "
            f"{list(repeats)}: Number of dimensions of repeat dims can not be smaller than number "
            "of dimensions of tensor."
        )
    shape = (1,) * lead + tuple(x.shape)
    pairs = [n for size in shape for n in (1, size)]
    wide = [n for r, size in zip(repeats, shape, strict=True) for n in (r, size)]
    out: Any = reshape.apply((expand.apply((reshape.apply((x, pairs)), wide)), [r * n for r, n in zip(repeats, shape, strict=True)]))
    return out.clone() if all(r == 1 for r in repeats) else out


repeat = Composite(
    "repeat(Tensor input, int[] repeats) -> Tensor",
    "Copies of the tensor side by side, `repeats` along each dimension.",
    _repeat,
    function=False,
    varargs=True,
    samples=_samples(((2, 3), ((2, 1),)), ((3,), ((2, 2),)), ((), ((3,),)), ((2, 2), ((1, 1),)), ((2,), ((0,),))),
)

tile = Composite(
    "tile(Tensor input, int[] dims) -> Tensor",
    "As ``repeat``; missing leading numbers count as 1.",
    lambda x, dims: _repeat(x, (1,) * (x.ndim - len(dims)) + tuple(dims)),
    varargs=True,
    samples=_samples(((2, 3), ((2,),)), ((3,), ((2, 2),))),
)


# --- copies in another order ----------------------------------------------------------------------


def _flip_dims(x: Any, dims: Ints) -> Ints:
    wrapped = wrap_dims("flip", dims, x.ndim)
    return wrapped if x.ndim else ()


def _flip_rule(x: Spec, dims: Ints) -> Spec:
    _flip_dims(x, dims)
    return Spec(x.shape, x.dtype)


flip = Primitive(
    "flip(Tensor input, int[1] dims) -> Tensor",
    "The elements of the dimensions `dims` in reverse order.",
    lambda x, dims: np.flip(x, _flip_dims(x, dims)).copy(),
    rule=_flip_rule,
    vjp={"input": Vjp(lambda g, s: g.flip(s.dims))},
    jvp="linear",
    check_first=False,
    varargs=True,
    samples=_samples(((2, 3), ((0,),)), ((2, 3), ((0, -1),)), ((0, 2), ((0,),)), ((3,), ((),))),
)


def _roll_arguments(x: Any, shifts: Ints, dims: Ints | None) -> tuple[Any, Any]:
    if dims is None or not dims:
        if len(shifts) == 1:
            return shifts[0], None
    elif len(dims) == len(shifts):
        return shifts, tuple(wrap_dim("roll", d, x.ndim) for d in dims)
    raise RuntimeError(
        f"[roll] shifts and dimensions must align, got shifts {list(shifts)} and dims {dims}."
    )


def _roll_rule(x: Spec, shifts: Ints, dims: Ints | None) -> Spec:
    _roll_arguments(x, shifts, dims)
    return Spec(x.shape, x.dtype)


roll = Primitive(
    "roll(Tensor input, int[1] shifts, int[1]? dims=None) -> Tensor",
    "The elements moved on by `shifts` along `dims`, the last to the front; without `dims` along "
    "the flattened tensor.",
    lambda x, shifts, dims: np.roll(x, *_roll_arguments(x, shifts, dims)),
    rule=_roll_rule,
    vjp={"input": Vjp(lambda g, s: g.roll([-n for n in s.shifts], s.dims))},
    jvp="linear",
    check_first=False,
    samples=_samples(((2, 3), (1,)), ((2, 3), (-1, 1)), ((2, 3), ((1, 2), (0, 1))), ((0, 2), (1, 0))),
)


def _triangular(name: str, side: str, condition: str, function: Any) -> Primitive:
    def rule(x: Any, diagonal: int) -> Spec:
        if x.ndim < 2:
            raise RuntimeError(
                f"[{name}] argument 'input': input tensor must have at least 2 dimensions, got {x.ndim}."
            )
        return Spec(x.shape, x.dtype)

    return Primitive(
        f"{name}(Tensor input, int diagonal=0) -> Tensor",
        f"The {side} triangle of each matrix, ``{condition}``, zeros elsewhere.",
        function,
        rule=rule,
        vjp={"input": Vjp(lambda g, s: getattr(g, name)(s.diagonal))},
        jvp="linear",
        inplace=True,
        samples=_samples(((3, 4), ()), ((3, 2), (1,)), ((2, 3, 3), (-1,)), ((0, 2), ())),
    )


tril = _triangular("tril", "lower", "column - row <= diagonal", np.tril)
triu = _triangular("triu", "upper", "column - row >= diagonal", np.triu)


def _pad_widths(x: Any, pad: Ints, mode: str) -> list[tuple[int, int]]:
    """Return the widths before and after each dimension; `pad` starts with the last dimension."""
    if mode != "constant":
        raise NotImplementedError(f"[pad] argument 'mode': expected 'constant', got {mode!r}.")
    if len(pad) % 2 or len(pad) > 2 * x.ndim:
        raise RuntimeError(
            f"[pad] argument 'pad': expected an even number of widths, at most {2 * x.ndim}, for a "
            f"{x.ndim}-D tensor, got {len(pad)}: Padding length must be divisible by 2."
        )
    widths = [(0, 0)] * (x.ndim - len(pad) // 2)
    widths += list(zip(pad[-2::-2], pad[::-2], strict=True))
    for dim, (before, after) in enumerate(widths):
        if x.shape[dim] + before + after < 0 or -min(before, 0) - min(after, 0) > x.shape[dim]:
            raise RuntimeError(
                f"[pad] argument 'pad': the widths {before} and {after} resulted in a negative "
                f"output size of dimension {dim} with size {x.shape[dim]}."
            )
    return widths


def _pad_rule(x: Spec, pad: Ints, mode: str, value: float | None) -> Spec:
    widths = _pad_widths(x, pad, mode)
    return Spec(tuple(n + a + b for n, (a, b) in zip(x.shape, widths, strict=True)), x.dtype)


def _pad(x: Any, pad: Ints, mode: str, value: float | None) -> Any:
    widths = _pad_widths(x, pad, mode)
    shape = tuple(n + a + b for n, (a, b) in zip(x.shape, widths, strict=True))
    out = np.full(shape, 0 if value is None else value, x.dtype)
    inner = tuple(slice(max(a, 0), n - max(b, 0)) for n, (a, b) in zip(shape, widths, strict=True))
    kept = tuple(slice(max(-a, 0), n - max(-b, 0)) for n, (a, b) in zip(x.shape, widths, strict=True))
    out[inner] = x[kept]
    return out


pad = Primitive(
    'pad(Tensor input, int[] pad, str mode="constant", float? value=None) -> Tensor',
    "The tensor with `value` (0) around it: `pad` holds the widths before and after the last "
    "dimension, then the one before it, …; negative widths take away.",
    _pad,
    rule=_pad_rule,
    vjp={"input": Vjp(lambda g, s: pad.apply((g, tuple(-n for n in s.pad), "constant", None)))},
    jvp=lambda t, s: pad.apply((t.input, s.pad, "constant", None)),
    check_first=False,
    method=False,
    samples=_samples(
        ((2, 3), ((1, 2),)), ((2, 3), ((1, 0, 0, 1), "constant", 2.5)), ((4, 3), ((-1, 1, 1, -2),)), ((0, 2), ((1, 1),))
    ),
)
