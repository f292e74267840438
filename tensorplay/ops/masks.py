"""Choice by masks, and the places of elements that are not zero."""

from __future__ import annotations

from typing import Any

import numpy as np

from tensorplay import _dtype
from tensorplay._dtype import dtype
from tensorplay._methods import attach
from tensorplay._tensor import Spec, Tensor, wrap
from tensorplay.ops.arguments import check_held, reject
from tensorplay.ops.dispatch import overridable, overridable_method
from tensorplay.ops.elementwise import broadcast_shapes, cast, result_type
from tensorplay.ops.primitive import Primitive, Sample, Vjp
from tensorplay.ops.writer import Writer

__all__ = [
    "check_storable",
    "kind_of",
    "mask_tensor",
    "masked_fill",
    "nonzero",
    "nonzero_rows",
    "shape_of",
    "want_bool",
    "where",
]


def mask_tensor(values: Any) -> Tensor:
    """Return a bool tensor."""
    return wrap(np.asarray(values, np.bool_))


def kind_of(x: Any) -> dtype:
    """Return the element type of an array, spec or number."""
    if not hasattr(x, "dtype"):
        return _dtype.scalar_dtype(x)
    return x.dtype if isinstance(x.dtype, dtype) else _dtype.from_numpy_dtype(x.dtype)


def shape_of(x: Any) -> tuple[int, ...]:
    """Return the shape of an array, spec or number."""
    return tuple(x.shape) if hasattr(x, "shape") else ()


def want_bool(where: str, argument: str, x: Any) -> None:
    """Refuse `x`, an array, tensor or spec, if its type is not bool."""
    if kind_of(x) is not _dtype.bool_:
        raise TypeError(
            f"[{where}] argument '{argument}': expected a bool tensor, got {kind_of(x)!r}. "
            "Write x.bool() or a comparison."
        )


def check_storable(where: str, argument: str, value: Any, d: dtype) -> None:
    """Refuse `value`, an array, spec or number, if its kind is above that of `d`, or not held."""
    if kind_of(value).category > d.category:
        raise RuntimeError(
            f"[{where}] argument '{argument}': value cannot be converted to type {d!r} without "
            f"loss, got {kind_of(value)!r}. Convert the tensor first, by x.to(dtype)."
        )
    check_held(where, value, d)


class Where(Primitive):
    """A choice between two tensors, or, of a condition alone, the indices where it holds."""

    def apply(self, args: tuple[Any, ...]) -> Any:
        """Run the operator, or look for what is not zero."""
        condition, x, other = args
        if x is None and other is None:
            if not isinstance(condition, Tensor):
                reject("where", "condition", "Tensor", condition)
            return nonzero(condition, as_tuple=True)
        if x is None or other is None:
            reject("where", "input" if x is None else "other", "Tensor or number", None,
                   "Give both, or the condition alone.")  # fmt: skip
        return super().apply(args)


def _where_rule(condition: Any, x: Any, other: Any) -> Spec:
    want_bool("where", "condition", condition)
    shape = broadcast_shapes("where", *map(shape_of, (condition, x, other)))
    kind = result_type(x, other)
    for number in (x, other):
        check_held("where", number, kind)
    return Spec(shape, kind)


def _where(condition: Any, x: Any, other: Any) -> Any:
    want_bool("where", "condition", condition)
    kind = result_type(x, other)
    for number in (x, other):
        check_held("where", number, kind)
    return np.where(condition, cast(x, kind), cast(other, kind))


where: Primitive = Where(
    "where(Tensor condition, Tensor? input=None, Tensor? other=None) -> Tensor",
    "Elements of `input` where `condition` holds, of `other` elsewhere; of a condition alone, the "
    "indices where it holds, one vector per dimension.",
    _where,
    rule=_where_rule,
    vjp={
        "input": Vjp(lambda g, s: where.apply((s.condition, g, 0)), "condition"),
        "other": Vjp(lambda g, s: where.apply((s.condition, 0, g)), "condition"),
    },
    jvp="linear",
    scalars=("input", "other"),
    check_first=False,
    method=False,
    samples=lambda make: [
        Sample((mask_tensor([True, False, True]), make(3), make(3)), name="vector"),
        Sample((mask_tensor([[True], [False]]), make(3), make(2, 1)), name="broadcast"),
        Sample((mask_tensor([True, False]), make(2), 1.5), name="number"),
        Sample((mask_tensor(True), make(0, 2), make(2)), name="empty"),
        Sample((mask_tensor([[True, False], [True, True]]),), name="condition alone"),
    ],
)


def _where_method(self: Tensor, condition: Any, other: Any) -> Any:
    """Return the elements of this tensor where `condition` holds, of `other` elsewhere."""
    return where.apply((condition, self, other))


attach("where", overridable_method(_where_method))


def _masked_fill_rule(x: Any, mask: Any, value: Any) -> Spec:
    want_bool("masked_fill", "mask", mask)
    if shape_of(value):
        raise RuntimeError(
            "[masked_fill] argument 'value': only supports a 0-dimension value tensor, got a "
            f"tensor with {len(shape_of(value))} dimensions. "
            "Write tensorplay.where(mask, value, x)."
        )
    check_storable("masked_fill", "value", value, kind_of(x))
    return Spec(broadcast_shapes("masked_fill", shape_of(x), shape_of(mask)), kind_of(x))


def _masked_fill(x: Any, mask: Any, value: Any) -> Any:
    _masked_fill_rule(x, mask, value)
    if value.__class__ is int and not value and mask.shape == x.shape and x.dtype.char in "fd":
        # NumPy's choice takes a branch per element, which a mask without pattern makes slow.
        bits = mask.astype(np.dtype(f"i{x.itemsize}"))
        bits -= 1
        bits &= x.view(bits.dtype)
        return bits.view(x.dtype)
    return np.where(mask, cast(value, kind_of(x)), x)


masked_fill: Primitive = Writer(
    "masked_fill(Tensor input, Tensor mask, Tensor value) -> Tensor",
    "`value` where `mask` holds, the elements of `input` elsewhere.",
    _masked_fill,
    write=lambda x, mask, value: np.copyto(x, cast(value, kind_of(x)), where=mask),
    rule=_masked_fill_rule,
    vjp={
        "input": Vjp(lambda g, s: masked_fill.apply((g, s.mask, 0)), "mask"),
        "value": Vjp(lambda g, s: where.apply((s.mask, g, 0)), "mask"),
    },
    jvp="linear",
    scalars=("value",),
    check_first=False,
    inplace=True,
    samples=lambda make: [
        Sample((make(3), mask_tensor([True, False, True]), make()), name="vector"),
        Sample((make(2, 3), mask_tensor([True, False, True]), 1.5), name="number"),
        Sample((make(3), mask_tensor([[True], [False]]), make()), name="wider mask"),
    ],
)


def _nonzero_rule(x: Spec) -> Spec:
    raise NotImplementedError(
        "[nonzero] a tensor on device meta has no elements, so the number of those that are not "
        "zero is unknown."
    )


nonzero_rows = Primitive(
    "_nonzero(Tensor input) -> Tensor",
    "Indices of the elements that are not zero, one row each.",
    lambda x: np.argwhere(x).astype(np.int64, copy=False),
    rule=_nonzero_rule,
    check_first=False,
    function=False,
    method=False,
    samples=lambda make: [Sample((make(2, 3),)), Sample((make(),)), Sample((make(0, 2),))],
)


@overridable
def nonzero(input: Tensor, *, as_tuple: bool = False) -> Any:
    """Return the indices of the elements that are not zero, in row-major order.

    Parameters
    ----------
    input
        Tensor to search.
    as_tuple
        Give one vector of indices per dimension, fit for indexing, instead of a matrix.

    Returns
    -------
    Tensor or tuple of Tensor
        int64: shape (number of elements found, dimensions), or its columns.

    Raises
    ------
    NotImplementedError
        The tensor is on device meta.
    """
    if not isinstance(input, Tensor):
        reject("nonzero", "input", "Tensor", input, "Write tensorplay.tensor(x).")
    found = nonzero_rows.apply((input,))
    if not as_tuple:
        return found
    return tuple(found[:, d] for d in range(input.ndim)) if input.ndim else (found[:, :0].sum(1),)


attach("nonzero", nonzero)
