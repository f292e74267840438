"""Reductions: sums, products, extremes and truth.

`dim` is a dimension, several, or None for all; `keepdim` keeps the reduced dimensions with size 1.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from tensorplay import _dtype
from tensorplay._dtype import dtype
from tensorplay._quiet import quietly
from tensorplay._tensor import Spec, Tensor
from tensorplay.ops.dims import wrap_dim, wrap_dims
from tensorplay.ops.elementwise import conj_of, no_gradient
from tensorplay.ops.joining import cat
from tensorplay.ops.piecewise import maximum, minimum
from tensorplay.ops.primitive import Composite, Primitive, Sample, Vjp
from tensorplay.ops.quick import MOST_OF_A_SMALL_SUM

# Elements of a run of memory whose sum of its own is worth a pass.
_LEAST_OF_A_RUN: Final = 32

__all__ = [
    "WIDER",
    "ValuesIndices",
    "add_up",
    "amax",
    "axes_of",
    "count_of",
    "kept",
    "mean",
    "real_of_floating",
    "reduced",
    "reduction",
    "sum_",
    "sum_type",
    "want_ordered",
    "working_type",
]

# --- dimensions -----------------------------------------------------------------------------------


def axes_of(where: str, dim: Sequence[int] | None, ndim: int) -> tuple[int, ...]:
    """Return the dimensions to reduce: those of `dim`, or all if it is None or empty.

    Raises
    ------
    IndexError
        There is no such dimension.
    RuntimeError
        A dimension is named twice.
    """
    if not dim:
        return tuple(range(ndim))
    axes = wrap_dims(where, dim, ndim)
    return axes if ndim else ()  # a 0-d tensor answers to dimension 0


def reduced(shape: tuple[int, ...], axes: tuple[int, ...], *, keepdim: bool) -> tuple[int, ...]:
    """Return the shape without `axes`, or with size 1 there."""
    if keepdim:
        return tuple([1 if i in axes else n for i, n in enumerate(shape)])
    return tuple([n for i, n in enumerate(shape) if i not in axes])


def count_of(x: Any, axes: tuple[int, ...]) -> int:
    """Return how many elements are reduced to one."""
    return math.prod([x.shape[i] for i in axes])


def kept(g: Any, s: Any) -> Any:
    """Give a result, or its gradient, the reduced dimensions back, with size 1."""
    x = s.specs["input"]
    axes = axes_of("", s.dim, x.ndim)
    return g if s.keepdim or not axes else g.reshape(reduced(x.shape, axes, keepdim=True))


def _spread(g: Any, s: Any) -> Any:
    """Broadcast the gradient of a reduced tensor to the shape before the reduction."""
    return kept(g, s).expand(s.specs["input"].shape)


def reduction(
    schema: str,
    doc: str,
    function: Callable[..., Any],
    *,
    out: Callable[..., dtype],
    vjp: Vjp | None = None,
    jvp: Any = None,
    nonempty: bool = False,
    samples: Callable[[Any], Iterable[Sample]] | None = None,
    **options: Any,
) -> Primitive:
    """Define a reduction with the arguments `input`, `dim`, `keepdim`, then others.

    Parameters
    ----------
    function
        ``function(array, axes, keepdim, *others)``.
    out
        ``out(name, type, *others)`` returns the type of the result and refuses types.
    nonempty
        Whether there is no result of no elements.
    """
    name = schema.partition("(")[0]

    def check(x: Any, dim: Any, axes: tuple[int, ...]) -> None:
        if 0 in x.shape and count_of(x, axes) == 0:
            asked = "input.numel() == 0" if not dim else f"a shape of {list(x.shape)}"
            message = (
                f"[{name}] Expected reduction dim to be specified for {asked} and to have "
                "non-zero size: there is no result of no elements."
            )
            raise (IndexError if dim else RuntimeError)(message)

    def impl(x: Any, dim: Any, keepdim: bool, *rest: Any) -> Any:
        axes = axes_of(name, dim, x.ndim)
        if nonempty:
            check(x, dim, axes)
        result = out(name, _dtype.from_numpy_dtype(x.dtype), *rest).numpy
        y = function(x, axes, keepdim, *rest)
        return y if y.dtype == result else y.astype(result)

    def rule(x: Spec, dim: Any, keepdim: bool, *rest: Any) -> Spec:
        axes = axes_of(name, dim, x.ndim)
        if nonempty:
            check(x, dim, axes)
        return Spec(reduced(x.shape, axes, keepdim=keepdim), out(name, x.dtype, *rest))

    def usual(make: Any) -> Iterable[Sample]:
        yield Sample((make(2, 3),), name="all")
        yield Sample((make(),), name="0-d")
        yield Sample((make(2, 3, 4), 1), name="one")
        yield Sample((make(2, 3, 4), (0, -1), True), name="two kept")
        yield Sample((make(4, 3).t(), (1,)), {"keepdim": True}, name="transposed")
        if not nonempty:
            yield Sample((make(0, 3), 0), name="empty")

    options.setdefault("out", True)
    return Primitive(
        schema,
        doc,
        impl,
        rule=rule,
        vjp=None if vjp is None else {"input": vjp},
        jvp=jvp,
        check_first=False,
        samples=usual if samples is None else samples,
        **options,
    )


# --- types of results -----------------------------------------------------------------------------


def sum_type(name: str, d: dtype, requested: dtype | None = None) -> dtype:
    """Return the type of a sum or product of elements of type `d`."""
    return requested or (_dtype.int64 if d.category <= _dtype.INTEGER else d)


def _floating_type(name: str, d: dtype, *rest: Any) -> dtype:
    requested = rest[0] if rest and isinstance(rest[0], _dtype.dtype) else None
    d = requested or d
    if not d.is_differentiable:
        message = (
            f"[{name}] argument 'input': expected a floating point or complex dtype, got {d!r}. "
            "Write x.float() first."
        )
        raise RuntimeError(message)
    return d


def real_of_floating(name: str, d: dtype, *rest: Any) -> dtype:
    """Return the real type of results of floating and complex numbers; others are refused."""
    return _floating_type(name, d).to_real()


def want_ordered(name: str, d: dtype) -> dtype:
    """Return the type of numbers that have an order.

    Raises
    ------
    TypeError
        They are complex.
    """
    if d.is_complex:
        message = f"[{name}] argument 'input': expected a real tensor, got {d!r}: no order."
        raise TypeError(message)
    return d


def _bool(name: str, d: dtype) -> dtype:
    return _dtype.bool_


def _int64(name: str, d: dtype) -> dtype:
    return _dtype.int64


def working_type(x: Any, requested: dtype | None = None) -> Any:
    """Return the type to add up in: half precision gathers too much error in its own."""
    d = x.dtype if requested is None else requested.numpy
    if d in _dtype.NARROW:
        return np.dtype(np.float32)
    return np.dtype(np.int64) if requested is None and d.kind in "biu" else d


WIDER: Final[dict[Any, Any]] = {
    np.dtype(np.float32): np.dtype(np.float64),
    np.dtype(np.complex64): np.dtype(np.complex128),
}


def add_up(
    x: Any, axes: tuple[int, ...], keepdim: bool = False, requested: dtype | None = None
) -> Any:
    """Return the sum, of narrow types in float32, else in the type of `x`.

    NumPy adds in pairs along the memory, but one by one across it, where a float32 sum of ones
    stands still at 2**24: there the sum of many is kept in the next wider type.
    """
    add: Any = np.add.reduce
    working = working_type(x, requested)
    wider = WIDER.get(working)
    if (
        wider is not None
        and x.size
        and count_of(x, axes) > MOST_OF_A_SMALL_SUM
        and not _along_memory(x, axes)
    ):
        inner = _trailing(x, axes)
        if inner:
            # First in pairs along the memory, then what few sums are left, across it.
            along = add(x, axis=inner, keepdims=True, dtype=working)
            return add(along, axis=axes, keepdims=keepdim, dtype=wider).astype(working)
        return add(x, axis=axes, keepdims=keepdim, dtype=wider).astype(working)
    return add(x, axis=axes, keepdims=keepdim, dtype=working)


def _trailing(x: Any, axes: tuple[int, ...]) -> tuple[int, ...]:
    """Return the summed dimensions at the end, if they are runs of memory that are worth it."""
    first = x.ndim
    while first - 1 in axes:
        first -= 1
    few = math.prod(x.shape[first:]) < _LEAST_OF_A_RUN
    return () if few or not x.flags.c_contiguous else tuple(range(first, x.ndim))


def _along_memory(x: Any, axes: tuple[int, ...]) -> bool:
    """Tell whether the summed elements are one run of memory for each result."""
    whole = len([n for n in x.shape if n > 1]) <= 1 or (len(axes) == x.ndim and x.flags.forc)
    trailing = set(axes) == set(range(x.ndim - len(axes), x.ndim)) and x.flags.c_contiguous
    return bool(whole or trailing)


# --- sums -----------------------------------------------------------------------------------------


def _few(x: Any, dim: Any, keepdim: Any, requested: Any) -> Any:
    """Return the dimension to add over in a small call, None for all; False for other calls."""
    if requested is not None or (keepdim is not False and keepdim is not True):
        return False
    if x.size > MOST_OF_A_SMALL_SUM:
        return None if dim is None and x.flags.forc else False
    # What a short way left spreads gradients row by row; others take the layout of what they meet.
    if x.ndim > 1 and not x.flags.c_contiguous:
        return False
    if dim is None:
        return None
    if x.ndim == 0:
        return False
    if dim.__class__ is tuple and len(dim) == 1:
        dim = dim[0]
    return dim if dim.__class__ is int else False


_add: Final = np.add.reduce


def _quick_sum(x: Any, rest: tuple[Any, ...]) -> Any:
    dim, keepdim, requested = rest
    axis = _few(x, dim, keepdim, requested)
    return None if axis is False else quietly(_add, x, axis, None, None, keepdim)


def _quick_mean(x: Any, rest: tuple[Any, ...]) -> Any:
    dim, keepdim, requested = rest
    axis = _few(x, dim, keepdim, requested)
    if axis is False:
        return None
    count = x.size if axis is None else x.shape[axis]
    return quietly(operator.truediv, quietly(_add, x, axis, None, None, keepdim), count)


def _spread_array(g: Any, args: Any, shapes: Any, out: Any) -> Any:
    """Do on arrays what `_spread` does on tensors."""
    (shape,) = shapes
    _, dim, keepdim, *_ = args
    if not keepdim and dim:
        g = g.reshape(reduced(shape, axes_of("", dim, len(shape)), keepdim=True))
    if math.prod(shape) > MOST_OF_A_SMALL_SUM:
        return np.broadcast_to(g, shape)
    result = np.empty(shape, g.dtype)  # a broadcast view takes longer to make
    result[...] = g
    return result


def _spread_mean_array(g: Any, args: Any, shapes: Any, out: Any) -> Any:
    (shape,) = shapes
    count = math.prod([shape[i] for i in axes_of("", args[1], len(shape))])
    return _spread_array(np.asarray(g / max(count, 1)), args, shapes, out)


sum_ = reduction(
    "sum(Tensor input, int[1]? dim=None, bool keepdim=False, *, ScalarType? dtype=None) -> Tensor",
    "Sum; of integers and bools in int64.",
    add_up,
    out=sum_type,
    vjp=Vjp(_spread, arrays=_spread_array),
    jvp="linear",
    quick=_quick_sum,
    reduce=_add,
)

mean = reduction(
    "mean(Tensor input, int[1]? dim=None, bool keepdim=False, *, ScalarType? dtype=None) -> Tensor",
    "Arithmetic mean; NaN of no elements.",
    lambda x, axes, keepdim, d: np.true_divide(add_up(x, axes, keepdim, d), count_of(x, axes)),
    out=_floating_type,
    vjp=Vjp(lambda g, s: _spread(g / _reduced_count(s), s), arrays=_spread_mean_array),
    quick=_quick_mean,
    # Not "linear": the mean of no tangents is no tangent, not NaN.
    jvp=lambda t, s: sum_(t.input, s.dim, s.keepdim, dtype=s.dtype) / _reduced_count(s),
)


def _reduced_count(s: Any) -> int:
    x = s.specs["input"]
    return max(count_of(x, axes_of("", s.dim, x.ndim)), 1)  # no element waits for 0/0


def _sum_to_size_rule(x: Spec, size: tuple[int, ...]) -> Spec:
    lead = x.ndim - len(size)
    if lead < 0 or any(b not in (1, a) for a, b in zip(x.shape[lead:], size, strict=True)):
        message = (
            f"[sum_to_size] argument 'size': size {list(size)} is not expandable to size "
            f"{list(x.shape)}."
        )
        raise RuntimeError(message)
    return Spec(size, x.dtype)


def _sum_to_size(x: Any, size: tuple[int, ...]) -> Any:
    lead = x.ndim - len(size)
    axes = tuple([i for i, n in enumerate(x.shape) if i < lead or size[i - lead] != n])
    if not axes:
        return x.copy()
    y = add_up(x, axes, keepdim=True, requested=_dtype.from_numpy_dtype(x.dtype))
    return y.astype(x.dtype, copy=False).reshape(size)


sum_to_size = Primitive(
    "sum_to_size(Tensor input, int[] size) -> Tensor",
    "Sum over the dimensions that broadcasting from `size` would add or stretch.",
    _sum_to_size,
    rule=_sum_to_size_rule,
    vjp={"input": Vjp(lambda g, s: g.expand(s.specs["input"].shape))},
    jvp="linear",
    varargs=True,
    samples=lambda make: [
        Sample((make(2, 3), (3,)), name="lead"),
        Sample((make(4, 2, 3), (2, 1)), name="both"),
        Sample((make(2, 3), (2, 3)), name="same"),
        Sample((make(2, 3), ()), name="0-d"),
    ],
)

# --- products -------------------------------------------------------------------------------------


def _products_of_others(x: Any, g: Any) -> Any:
    """Return for each element along the last dimension g times the product of all the others.

    A tree of pairs: the product that a pair's other half contributes is passed down. Divides by
    nothing, so that zeros need no care, in derivatives of every order.
    """
    levels = []
    while x.shape[-1] > 1:
        n = x.shape[-1]
        half = n // 2
        a, b, rest = x.narrow(-1, 0, half), x.narrow(-1, half, half), n - 2 * half
        levels.append((a, b, rest))
        x = a * b if not rest else cat.apply(([a * b, x.narrow(-1, n - 1, 1)], -1))
    for a, b, rest in reversed(levels):
        half = a.shape[-1]
        above = g.narrow(-1, 0, half)
        parts = [above * conj_of(b), above * conj_of(a)]
        g = cat.apply(([*parts, g.narrow(-1, half, 1)] if rest else parts, -1))
    return g


def _prod_grad(g: Any, s: Any) -> Any:
    x = s.input
    axes = axes_of("", s.dim, x.ndim)
    if not axes:
        return g
    if 0 in x.shape:
        return no_gradient.formula(x, s)
    order = [*[i for i in range(x.ndim) if i not in axes], *axes]
    kept = [x.shape[i] for i in order[: x.ndim - len(axes)]]
    if s.dtype is not None:
        x = x.to(s.dtype)
    moved = x.permute(order)
    flat = _products_of_others(moved.reshape([*kept, -1]), g.reshape([*kept, 1]))
    back = [order.index(i) for i in range(x.ndim)]
    return flat.reshape(list(moved.shape)).permute(back)


prod = reduction(
    "prod(Tensor input, int[1]? dim=None, bool keepdim=False, *, ScalarType? dtype=None) -> Tensor",
    "Product; of integers and bools in int64.",
    lambda x, axes, keepdim, d: np.multiply.reduce(
        x, axis=axes, keepdims=keepdim, dtype=working_type(x, d)
    ),
    out=sum_type,
    vjp=Vjp(_prod_grad, "input"),
)

# --- extremes -------------------------------------------------------------------------------------


def _ties_grad(g: Any, s: Any) -> Any:
    """Share the gradient evenly among the elements equal to the extreme."""
    ties = s.input == kept(s.out, s)
    return ties * (kept(g, s) / ties.sum(s.dim, keepdim=True).to(g.dtype))


amax = reduction(
    "amax(Tensor input, int[1]? dim=None, bool keepdim=False) -> Tensor",
    "Largest element; NaN if there is one. Equal ones share the gradient.",
    lambda x, axes, keepdim: np.maximum.reduce(x, axis=axes, keepdims=keepdim),
    out=want_ordered,
    vjp=Vjp(_ties_grad, "input", "out"),
    nonempty=True,
)

amin = reduction(
    "amin(Tensor input, int[1]? dim=None, bool keepdim=False) -> Tensor",
    "Smallest element; NaN if there is one. Equal ones share the gradient.",
    lambda x, axes, keepdim: np.minimum.reduce(x, axis=axes, keepdims=keepdim),
    out=want_ordered,
    vjp=Vjp(_ties_grad, "input", "out"),
    nonempty=True,
)


class ValuesIndices(NamedTuple):
    """Elements found along a dimension, and where they were."""

    values: Tensor
    indices: Tensor


def _one_axis(name: str, x: Any, dim: int | None) -> tuple[int, ...]:
    axes = axes_of(name, None if dim is None else (dim,), x.ndim)
    if 0 in x.shape and count_of(x, axes) == 0:
        message = (
            f"[{name}] Expected reduction dim to be specified for input.numel() == 0 and to have "
            f"non-zero size, got dim={dim} for a shape of {list(x.shape)}."
        )
        raise IndexError(message)
    return axes


def _arg_extreme(name: str, doc: str, function: Callable[..., Any]) -> Primitive:
    def impl(x: Any, dim: int | None, keepdim: bool) -> Any:
        axes = _one_axis(name, x, dim)
        y = function(x, axis=axes[0] if dim is not None and axes else None)
        return np.reshape(y, reduced(x.shape, axes, keepdim=keepdim))

    def rule(x: Spec, dim: int | None, keepdim: bool) -> Spec:
        want_ordered(name, x.dtype)
        shape = reduced(x.shape, _one_axis(name, x, dim), keepdim=keepdim)
        return Spec(shape, _dtype.int64)

    return Primitive(
        f"{name}(Tensor input, int? dim=None, bool keepdim=False) -> Tensor",
        doc,
        impl,
        rule=rule,
        out=True,
        samples=lambda make: [
            Sample((make(2, 3),), name="all"),
            Sample((make(2, 3), -1, True), name="kept"),
            Sample((make(),), {"dim": 0}, name="0-d"),
        ],
    )


argmax = _arg_extreme("argmax", "Where the largest element is; the first of equal ones.", np.argmax)
argmin = _arg_extreme(
    "argmin", "Where the smallest element is; the first of equal ones.", np.argmin
)


def _extreme(
    name: str, word: str, arg: Callable[..., Any], whole: Primitive, pair: Primitive
) -> Any:
    def impl(x: Any, dim: int, keepdim: bool) -> tuple[Any, Any]:
        axes = _one_axis(name, x, dim)
        if not axes:
            return x.copy(), np.zeros((), np.int64)
        indices = np.expand_dims(arg(x, axis=axes[0]), axes[0])
        values = np.take_along_axis(x, indices, axes[0])
        if keepdim:
            return values, indices
        return values.squeeze(axes[0]), indices.squeeze(axes[0])

    def rule(x: Spec, dim: int, keepdim: bool) -> tuple[Spec, Spec]:
        want_ordered(name, x.dtype)
        shape = reduced(x.shape, _one_axis(name, x, dim), keepdim=keepdim)
        return Spec(shape, x.dtype), Spec(shape, _dtype.int64)

    def vjp(g: Any, s: Any) -> Any:
        x = s.specs["input"]
        if not x.ndim:
            return g[0]
        axis = wrap_dim(name, s.dim, x.ndim)
        value, where = g[0], s.out[1]
        if not s.keepdim:
            value, where = value.unsqueeze(axis), where.unsqueeze(axis)
        return value.new_zeros(x.shape).scatter(axis, where, value)

    along = Primitive(
        f"_{name}_along(Tensor input, int dim, bool keepdim=False) "
        "-> (Tensor values, Tensor indices)",
        f"{word} elements along a dimension, and where they are.",
        impl,
        rule=rule,
        vjp={"input": Vjp(vjp, "out")},
        function=False,
        method=False,
        samples=lambda make: [
            Sample((make(2, 3), 1), name="last"),
            Sample((make(2, 3, 2), 1, True), name="kept"),
            Sample((make(), 0), name="0-d"),
        ],
    )

    class Extreme(Composite):
        """Of all elements; along a dimension, with indices; or of two tensors."""

        def apply(self, args: tuple[Any, ...]) -> Any:
            if isinstance(args[1], Tensor):
                return pair.apply(args[:2])
            return super().apply(args)

    return Extreme(
        f"{name}(Tensor input, int? dim=None, bool keepdim=False) -> Tensor",
        f"{word} element; with `dim`, a named tuple (values, indices); with a tensor in its place, "
        f"`{pair.name}`.",
        lambda x, dim, keepdim: (
            whole.apply((x, None, False))
            if dim is None
            else ValuesIndices(*along.apply((x, dim, keepdim)))
        ),
        samples=lambda make: [
            Sample((make(2, 3),), name="all"),
            Sample((make(2, 3), 1), name="dim"),
            Sample((make(2, 3), make(3)), name="pair"),
        ],
    )


max_ = _extreme("max", "Largest", np.argmax, amax, maximum)
min_ = _extreme("min", "Smallest", np.argmin, amin, minimum)

# --- truth ----------------------------------------------------------------------------------------

any_ = reduction(
    "any(Tensor input, int[1]? dim=None, bool keepdim=False) -> Tensor",
    "Whether some element is nonzero.",
    lambda x, axes, keepdim: np.any(x, axis=axes, keepdims=keepdim),
    out=_bool,
)

all_ = reduction(
    "all(Tensor input, int[1]? dim=None, bool keepdim=False) -> Tensor",
    "Whether all elements are nonzero.",
    lambda x, axes, keepdim: np.all(x, axis=axes, keepdims=keepdim),
    out=_bool,
)

count_nonzero = reduction(
    "count_nonzero(Tensor input, int[1]? dim=None, bool keepdim=False) -> Tensor",
    "Number of nonzero elements.",
    lambda x, axes, keepdim: np.asarray(np.count_nonzero(x, axis=axes, keepdims=keepdim)),
    out=_int64,
)
