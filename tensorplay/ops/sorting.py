"""Order: sorted values and where they were, ranks, different values, and places in a sorted one.

NaN counts as larger than every number. Equal values keep their order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from tensorplay import _dtype
from tensorplay._dtype import dtype
from tensorplay._methods import attach
from tensorplay._tensor import Spec, Tensor, wrap
from tensorplay.ops.arguments import as_plain, reject
from tensorplay.ops.dims import wrap_dim
from tensorplay.ops.dispatch import overridable
from tensorplay.ops.elementwise import cast, result_type
from tensorplay.ops.movement import reshape
from tensorplay.ops.primitive import Composite, Primitive, Sample, Vjp
from tensorplay.ops.reduction import ValuesIndices
from tensorplay.ops.selection import gather, index_select, int_tensor

__all__ = ["unique"]


def _comparable(x: Any) -> Any:
    """Return the array `x` in a type that NumPy sorts with NaN last."""
    return x.astype(np.float32) if x.dtype in _dtype.NARROW else x


def _order(x: Any, axis: int, *, descending: bool) -> Any:
    """Return the indices that sort the array `x`, equal elements in their old order."""
    x = _comparable(x)
    if not descending:
        return np.argsort(x, axis=axis, kind="stable")
    backwards = np.argsort(np.flip(x, axis), axis=axis, kind="stable")
    return x.shape[axis] - 1 - np.flip(backwards, axis)


def _sortable(name: str, d: dtype) -> None:
    if d.is_complex:
        raise TypeError(
            f"[{name}] argument 'input': expected a real tensor, got {d!r}: complex numbers have "
            "no order. Write x.abs()."
        )


class Pair(Primitive):
    """A primitive that picks elements along a dimension: its results are values and indices."""

    def apply(self, args: tuple[Any, ...]) -> Any:
        """Run the operator; the results have names."""
        return ValuesIndices(*super().apply(args))


def _pair(
    schema: str,
    doc: str,
    pick: Callable[..., Any],
    size: Callable[..., int | None],
    samples: Callable[[Any], Iterable[Sample]],
    **options: Any,
) -> Pair:
    """Define an operator that picks elements along dimension `dim`.

    Parameters
    ----------
    pick
        ``pick(array, axis, arguments)`` returns the indices along `axis` of what is picked, of an
        array with at least 1 dimension; `arguments` are those after `input`, by name.
    size
        ``size(n, arguments)`` returns how many are picked of n, None for one without a dimension;
        it raises the errors about numbers.
    """
    name = schema.partition("(")[0]

    def named(rest: tuple[Any, ...]) -> dict[str, Any]:
        return dict(zip(operator.names[1:], rest, strict=True))

    def rule(x: Spec, *rest: Any) -> tuple[Spec, Spec]:
        _sortable(name, x.dtype)
        arguments = named(rest)
        axis = wrap_dim(name, arguments["dim"], x.ndim)
        count = size(x.shape[axis] if x.ndim else 1, arguments)
        middle = () if count is None else (count,)
        shape = (*x.shape[:axis], *middle, *x.shape[axis + 1 :]) if x.ndim else ()
        return Spec(shape, x.dtype), Spec(shape, _dtype.int64)

    def impl(x: Any, *rest: Any) -> tuple[Any, Any]:
        arguments = named(rest)
        axis = wrap_dim(name, arguments["dim"], x.ndim)
        if not x.ndim:
            return x.copy(), np.zeros((), np.int64)
        indices = pick(x, axis, arguments).astype(np.int64, copy=False)
        values = np.take_along_axis(x, indices, axis)
        if size(x.shape[axis], arguments) is None:
            return values.squeeze(axis), indices.squeeze(axis)
        return values, np.ascontiguousarray(indices)

    def vjp(g: Any, s: Any) -> Any:
        x = s.specs["input"]
        if not x.ndim:
            return g[0]
        axis = wrap_dim(name, s.dim, x.ndim)
        value, places = g[0], s.out[1]
        if value.ndim < x.ndim:
            value, places = value.unsqueeze(axis), places.unsqueeze(axis)
        return value.new_zeros(x.shape).scatter(axis, places, value)

    def jvp(t: Any, s: Any) -> Any:
        x, places = t.input, s.out[1]
        if not x.ndim:
            return x, None
        axis = wrap_dim(name, s.dim, x.ndim)
        if places.ndim < x.ndim:
            return gather.apply((x, axis, places.unsqueeze(axis))).squeeze(axis), None
        return gather.apply((x, axis, places)), None

    operator = Pair(
        schema,
        doc,
        impl,
        rule=rule,
        vjp={"input": Vjp(vjp, "out")},
        jvp=jvp,
        samples=samples,
        **options,
    )
    return operator


# --- sorted ---------------------------------------------------------------------------------------


sort = _pair(
    "sort(Tensor input, int dim=-1, bool descending=False, *, bool stable=False) "
    "-> (Tensor values, Tensor indices)",
    "The elements in order along `dim`, and where they were; equal ones keep their order, with "
    "`stable` or without.",
    lambda x, axis, a: _order(x, axis, descending=a["descending"]),
    lambda n, a: n,
    lambda make: [
        Sample((make(5),), name="vector"),
        Sample((make(3, 4), 0, True), name="descending"),
        Sample((make(4, 2).t(), -1), {"stable": True}, name="transposed"),
        Sample((make(),), name="0-d"),
        Sample((make(2, 0),), name="empty"),
    ],
)

argsort = Composite(
    "argsort(Tensor input, int dim=-1, bool descending=False, *, bool stable=False) -> Tensor",
    "The indices that put the elements in order along `dim`.",
    lambda x, dim, descending, stable: sort.apply((x, dim, descending, stable)).indices,
    samples=lambda make: [
        Sample((make(5),), name="vector"),
        Sample((make(3, 4), 0, True), name="descending"),
    ],
)


def _topk_size(n: int, a: dict[str, Any]) -> int:
    if not 0 <= a["k"] <= n:
        raise RuntimeError(
            f"[topk] argument 'k': selected index k out of range: expected from 0 to {n}, the size "
            f"of the dimension, got {a['k']}."
        )
    return int(a["k"])


def _topk(x: Any, axis: int, a: dict[str, Any]) -> Any:
    k, n, largest = a["k"], x.shape[axis], a["largest"]
    if not 0 < k <= n // 4:
        return np.take(_order(x, axis, descending=largest), range(k), axis)
    # Of many, first those that can be among the k, without their order.
    cut = np.argpartition(_comparable(x), n - k if largest else k - 1, axis)
    some = np.sort(np.take(cut, range(n - k, n) if largest else range(k), axis), axis)
    inner = _order(np.take_along_axis(x, some, axis), axis, descending=largest)
    return np.take_along_axis(some, inner, axis)


topk = _pair(
    "topk(Tensor input, int k, int dim=-1, bool largest=True, bool sorted=True) "
    "-> (Tensor values, Tensor indices)",
    "The `k` largest (or smallest) elements along `dim`, in order, and where they were.",
    _topk,
    _topk_size,
    lambda make: [
        Sample((make(5), 3), name="vector"),
        Sample((make(3, 4), 2, 0, False), name="smallest"),
        Sample((make(2, 9), 2), name="few of many"),
        Sample((make(9, 2), 1, 0, False), name="one of many"),
        Sample((make(3), 0), name="none"),
        Sample((make(), 1), name="0-d"),
    ],
)

# --- one rank -------------------------------------------------------------------------------------


def _one_or_none(a: dict[str, Any]) -> int | None:
    return 1 if a["keepdim"] else None


def _kth_size(n: int, a: dict[str, Any]) -> int | None:
    if not 1 <= a["k"] <= n:
        raise RuntimeError(
            f"[kthvalue] argument 'k': selected number k out of range: expected from 1 to {n}, the "
            f"size of the dimension, got {a['k']}."
        )
    return _one_or_none(a)


kthvalue = _pair(
    "kthvalue(Tensor input, int k, int dim=-1, bool keepdim=False) "
    "-> (Tensor values, Tensor indices)",
    "The `k`-th smallest element along `dim`, counted from 1, and where it was.",
    lambda x, axis, a: np.take(_order(x, axis, descending=False), [a["k"] - 1], axis),
    _kth_size,
    lambda make: [
        Sample((make(5), 2), name="vector"),
        Sample((make(3, 4), 3, 0), name="dim"),
        Sample((make(3, 4), 1, 1, True), name="kept"),
        Sample((make(), 1), name="0-d"),
    ],
)


def _median_size(n: int, a: dict[str, Any]) -> int | None:
    if not n:
        raise IndexError(
            "[median] Expected reduction dim to be specified for input.numel() == 0 and to have "
            f"non-zero size, got dim={a['dim']} of size 0."
        )
    return _one_or_none(a)


def _median_place(x: Any, axis: int, a: dict[str, Any]) -> Any:
    order = _order(x, axis, descending=False)
    place = np.take(order, [(x.shape[axis] - 1) // 2], axis)
    last = np.take(order, [x.shape[axis] - 1], axis)
    greatest = np.take_along_axis(_comparable(x), last, axis)
    return np.where(greatest != greatest, last, place)  # noqa: PLR0124 - NaN, also of integers


_median_along = _pair(
    "_median_along(Tensor input, int dim, bool keepdim=False) -> (Tensor values, Tensor indices)",
    "The lower of the middle elements along a dimension, NaN if one is, and where it is.",
    _median_place,
    _median_size,
    lambda make: [
        Sample((make(5), 0), name="odd"),
        Sample((make(2, 4), 1), name="even"),
        Sample((make(4, 2), 0, True), name="kept"),
        Sample((make(), 0), name="0-d"),
    ],
    function=False,
    method=False,
)


def _median(x: Tensor, dim: int | None, keepdim: bool) -> Any:
    if dim is not None:
        return _median_along.apply((x, dim, keepdim))
    _sortable("median", x._dtype)
    if not x.numel():
        if not x._dtype.is_floating_point:
            raise IndexError("[median] an empty tensor of integers has no median.")
        return x.new_full((), float("nan"))
    return _median_along.apply((reshape.apply((x, (x.numel(),))), 0, False)).values


median = Composite(
    "median(Tensor input, int? dim=None, bool keepdim=False) -> Tensor",
    "The lower of the middle elements, NaN if one is; with `dim`, a named tuple (values, indices).",
    _median,
    samples=lambda make: [
        Sample((make(5),), name="odd"),
        Sample((make(2, 3),), name="all"),
        Sample((make(2, 3), 1), name="dim"),
        Sample((make(4, 2), 0, True), name="kept"),
    ],
)

# --- different values -----------------------------------------------------------------------------


def _unique_rule(x: Spec, dim: int | None) -> tuple[Spec, ...]:
    raise NotImplementedError(
        "[unique] a tensor on device meta has no elements, so the number of different ones is "
        "unknown."
    )


def _unique(x: Any, dim: int | None) -> tuple[Any, ...]:
    axis = None if dim is None or not x.ndim else wrap_dim("unique", dim, x.ndim)
    _, first, inverse, counts = np.unique(
        _comparable(x),
        return_index=True,
        return_inverse=True,
        return_counts=True,
        axis=axis,
        equal_nan=False,
    )
    values = x.reshape(-1)[first] if axis is None else np.take(x, first, axis)
    whole = x.shape if axis is None else (x.shape[axis],)
    return values, inverse.reshape(whole), counts, first


def _unique_grad(g: Any, s: Any) -> Any:
    x, first = s.specs["input"], s.out[3]
    if s.dim is None or not x.ndim:
        flat = g[0].new_zeros(int(np.prod(x.shape))).index_add(0, first, g[0])
        return flat.reshape(x.shape)
    return g[0].new_zeros(x.shape).index_add(s.dim, first, g[0])


def _unique_jvp(t: Any, s: Any) -> Any:
    if s.dim is None or not t.input.ndim:
        return t.input.reshape(-1)[s.out[3]], None, None, None
    return index_select.apply((t.input, s.dim, s.out[3])), None, None, None


# The gradient of equal elements goes to the first of them.
unique_values = Primitive(
    "_unique(Tensor input, int? dim=None) "
    "-> (Tensor values, Tensor inverse, Tensor counts, Tensor first)",
    "The different elements, or parts of `dim`, in order; which of them each is; how often each "
    "occurs; and where first.",
    _unique,
    rule=_unique_rule,
    vjp={"input": Vjp(_unique_grad, "out")},
    jvp=_unique_jvp,
    check_first=False,
    function=False,
    method=False,
    samples=lambda make: [
        Sample((make(4),), name="vector"),
        Sample((make(2, 3),), name="matrix"),
        Sample((make(3, 2), 0), name="rows"),
        Sample((make(2, 3), -1), name="columns"),
        Sample((make(),), name="0-d"),
        Sample((int_tensor([3, 1, 3, 2, 1]),), name="repeated"),
        Sample((int_tensor([[1, 2], [0, 5], [1, 2]]), 0), name="repeated rows"),
    ],
)


@overridable
def unique(
    input: Tensor,
    sorted: bool = True,
    return_inverse: bool = False,
    return_counts: bool = False,
    dim: int | None = None,
) -> Any:
    """Return the different elements in order.

    Parameters
    ----------
    input
        Tensor to search.
    sorted
        Accepted; the elements are always in order.
    return_inverse
        Return, too, which of the different elements each element is.
    return_counts
        Return, too, how often each occurs.
    dim
        Compare the parts of this dimension instead of elements.

    Returns
    -------
    Tensor or tuple of Tensor
        The gradient of equal elements goes to the first of them.

    Raises
    ------
    NotImplementedError
        The tensor is on device meta.
    TypeError
        The numbers are complex.
    """
    if not isinstance(input, Tensor):
        reject("unique", "input", "Tensor", input, "Write tensorplay.tensor(x).")
    return_inverse = as_plain("unique", "return_inverse", "bool", return_inverse)
    return_counts = as_plain("unique", "return_counts", "bool", return_counts)
    _sortable("unique", input._dtype)
    values, inverse, counts, _ = unique_values.apply((input, dim))
    results = [values, *([inverse] * return_inverse), *([counts] * return_counts)]
    return results[0] if len(results) == 1 else tuple(results)


attach("unique", unique)


def _shape(x: Any) -> tuple[int, ...]:
    return tuple(x.shape) if hasattr(x, "shape") else ()


def _isin_rule(elements: Any, test: Any, assume_unique: bool, invert: bool) -> Spec:
    result_type(elements, test)  # refuses types without a common one
    return Spec(_shape(elements), _dtype.bool_)


def _isin(elements: Any, test: Any, assume_unique: bool, invert: bool) -> Any:
    common = result_type(elements, test)
    # A number beyond the range of the type is none of its elements, where a cast would wrap.
    casts = common.category != _dtype.INTEGER
    x, among = (
        _comparable(cast(v, common)) if casts or isinstance(v, np.ndarray) else np.asarray(v)
        for v in (elements, test)
    )
    return np.reshape(np.isin(x, among, invert=invert), x.shape)


isin = Primitive(
    "isin(Tensor elements, Tensor test_elements, *, bool assume_unique=False, "
    "bool invert=False) -> Tensor",
    "Whether each element equals one of `test_elements`; with `invert`, none. NaN equals nothing.",
    _isin,
    rule=_isin_rule,
    scalars=True,
    check_first=False,
    method=False,
    samples=lambda make: [
        Sample((int_tensor([[1, 2], [3, 4]]), int_tensor([2, 4, 6])), name="integers"),
        Sample((int_tensor([1, 2]), 2), {"invert": True}, name="number"),
        Sample((make(2, 3), make(0)), name="none"),
        Sample((make(3), make(3)), name="floats"),
    ],
)

# --- places in a sorted sequence ------------------------------------------------------------------


def _check_sequence(sequence: Any, x: Any, sorter: Any, side: str | None, right: bool) -> Any:
    if side not in (None, "left", "right"):
        raise ValueError(
            f"[searchsorted] argument 'side': expected 'left' or 'right', got {side!r}."
        )
    if right and side == "left":
        raise RuntimeError(
            "[searchsorted] side and right can't be set to opposites, got side of left while right "
            "was True."
        )
    if not sequence.ndim:
        raise RuntimeError(
            "[searchsorted] argument 'sorted_sequence': boundaries tensor should have at least 1 "
            "dimension, got 0."
        )
    if sequence.ndim > 1 and _shape(x)[:-1] != tuple(sequence.shape[:-1]):
        raise RuntimeError(
            "[searchsorted] argument 'input': the first N-1 dimensions of sequences and values "
            f"must match, got {list(sequence.shape)} and {list(_shape(x))}."
        )
    if hasattr(x, "dtype") and x.dtype != sequence.dtype:
        raise TypeError(
            f"[searchsorted] argument 'input': expected the same dtype as the sequence, "
            f"{sequence.dtype!r}, got {x.dtype!r}. Write x.to(sequence.dtype)."
        )
    if sorter is not None:
        if tuple(sorter.shape) != tuple(sequence.shape):
            raise RuntimeError(
                f"[searchsorted] argument 'sorter': expected the shape of the sequence "
                f"{list(sequence.shape)}, got {list(sorter.shape)}."
            )
        if sorter.dtype not in (_dtype.int64, np.dtype(np.int64)):
            raise TypeError(
                f"[searchsorted] argument 'sorter': expected a tensor of int64, got "
                f"{sorter.dtype!r}. Write x.long()."
            )
    return "right" if right or side == "right" else "left"


def _searchsorted_rule(
    sequence: Any, x: Any, out_int32: bool, right: bool, side: str | None, sorter: Any
) -> Spec:
    d = sequence.dtype if isinstance(sequence.dtype, dtype) else None
    _sortable("searchsorted", d or _dtype.from_numpy_dtype(sequence.dtype))
    _check_sequence(sequence, x, sorter, side, right)
    return Spec(_shape(x), _dtype.int32 if out_int32 else _dtype.int64)


def _searchsorted(
    sequence: Any, x: Any, out_int32: bool, right: bool, side: str | None, sorter: Any
) -> Any:
    spec = _searchsorted_rule(sequence, x, out_int32, right, side, sorter)
    where = _check_sequence(sequence, x, sorter, side, right)
    if sorter is not None:
        n = sequence.shape[-1]
        if sorter.size and (sorter.min() < 0 or sorter.max() >= n):
            raise IndexError(
                f"[searchsorted] argument 'sorter': sorter index out of range: expected indices "
                f"from 0 to {n - 1}."
            )
        sequence = np.take_along_axis(sequence, sorter, -1)
    sequence, values = _comparable(sequence), np.asarray(x)
    values = _comparable(values)
    if sequence.ndim == 1:
        found = np.searchsorted(sequence, values, where)
    else:
        found = np.empty(values.shape, np.int64)
        for row in np.ndindex(sequence.shape[:-1]):
            found[row] = np.searchsorted(sequence[row], values[row], where)
    return np.asarray(found).astype(spec.dtype.numpy, copy=False)


def _sequences(make: Any) -> Iterable[Sample]:
    steps = wrap(np.array([1.0, 3.0, 3.0, 5.0]))
    yield Sample((steps, wrap(np.array([[3.0, 0.0], [9.0, 4.0]]))), name="vector")
    yield Sample((steps, wrap(np.array([3.0]))), {"right": True}, name="right")
    yield Sample((steps, 3), {"side": "left", "out_int32": True}, name="number")
    rows = wrap(np.array([[1.0, 2.0], [0.0, 4.0]]))
    yield Sample((rows, wrap(np.array([[2.0, 3.0, 0.0], [2.0, 5.0, 0.0]]))), name="rows")
    yield Sample(
        (wrap(np.array([5.0, 1.0, 3.0])), wrap(np.array([2.0, 6.0]))),
        {"sorter": int_tensor([1, 2, 0])},
        name="sorter",
    )


searchsorted = Primitive(
    "searchsorted(Tensor sorted_sequence, Tensor input, *, bool out_int32=False, "
    "bool right=False, str? side=None, Tensor? sorter=None) -> Tensor",
    "Where each element would stand in a sorted last dimension: in front of equal ones, or behind "
    "them with `right`.",
    _searchsorted,
    rule=_searchsorted_rule,
    scalars=("input",),
    check_first=False,
    method=False,
    samples=_sequences,
)


def _bucketize(x: Any, boundaries: Any, out_int32: bool, right: bool) -> Any:
    if not isinstance(boundaries, Tensor) or boundaries.ndim != 1:
        raise RuntimeError(
            "[bucketize] argument 'boundaries': boundaries tensor must be 1 dimension, got "
            f"{getattr(boundaries, 'ndim', 0)}."
        )
    return searchsorted.apply((boundaries, x, out_int32, right, None, None))


bucketize = Composite(
    "bucketize(Tensor input, Tensor boundaries, *, bool out_int32=False, "
    "bool right=False) -> Tensor",
    "Which interval between the sorted `boundaries` each element lies in: the number of smaller "
    "boundaries, with `right` of those not larger.",
    _bucketize,
    scalars=True,
    method=False,
    samples=lambda make: [
        Sample((make(2, 3), wrap(np.array([-1.0, 0.0, 1.0]))), name="floats"),
        Sample((int_tensor([0, 1, 2]), int_tensor([1, 2])), {"right": True}, name="integers"),
    ],
)
