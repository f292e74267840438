"""How results lie in memory, which NumPy decides by how the operands lie.

Shapes and types follow from rules; the order of dimensions in memory does not. Where an operand is
not row-major, an operator is therefore asked: it runs on arrays of at most two elements along each
dimension that lie as its operands do.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from tensorplay._quiet import restore, silence
from tensorplay._tensor import Spec, Tensor, contiguous_strides
from tensorplay.graph.order import Order, order_of

__all__ = ["dense_strides", "laid_out", "relaid"]


def dense_strides(shape: Sequence[int], order: Order) -> tuple[int, ...]:
    """Return the strides, in elements, of memory without gaps in an order of dimensions."""
    packed = contiguous_strides(tuple(shape[d] for d in order))
    strides = [0] * len(shape)
    for d, step in zip(order, packed, strict=True):
        strides[d] = step
    return tuple(strides)


def relaid(array: Any, order: Order | None) -> Any:
    """Return a new array, or a copy of it, that lies in an order of dimensions."""
    if order_of(array.shape, array.strides) == order:
        return array
    axes = tuple(range(array.ndim)) if order is None else order
    made = np.empty([array.shape[d] for d in axes], array.dtype).transpose(np.argsort(axes))
    made[...] = array
    return made


def laid_out(primitive: Any, values: list[Any], specs: tuple[Spec, ...]) -> tuple[Spec, ...]:
    """Return specs of new results with the strides that they have where operands have others.

    Parameters
    ----------
    primitive
        The operator.
    values
        Its arguments.
    specs
        Shapes and types of its results.
    """
    if _all_row_major(values) or primitive.schema.namespace is not None or primitive.generators:
        return specs
    small = [
        tuple([min(n, 2) for n in v]) if name == "size" and v.__class__ in {tuple, list}
        else _small(v)
        for name, v in zip(primitive.names, values, strict=True)
    ]  # fmt: skip
    token = silence()
    try:
        found = primitive.impl(*small)
    except Exception:  # noqa: BLE001 - its elements or sizes do not suit: it is row-major for all
        return specs
    finally:
        restore(token)
    results = found if type(found) is tuple else (found,)
    return tuple(_like(spec, result) for spec, result in itertools.zip_longest(specs, results))


def _all_row_major(values: Iterable[Any]) -> bool:
    for value in values:
        if isinstance(value, Tensor):
            if not value._array.flags.c_contiguous:
                return False
        elif value.__class__ is list and not _all_row_major(value):
            return False
    return True


def _small(value: Any) -> Any:
    """Return a small array that lies as a tensor does."""
    if value.__class__ is list:
        return [_small(v) for v in value]
    if not isinstance(value, Tensor):
        return value
    array = value._array
    shape = array.shape
    strides = array.strides or contiguous_strides(shape)
    sizes = [min(n, 2) for n in shape]
    order = sorted(range(len(shape)), key=lambda d: -abs(strides[d]))
    # With a gap behind the fastest dimension where there is one, so that it is not contiguous.
    gap = bool(order) and not array.flags.forc
    room = [sizes[d] if strides[d] or sizes[d] < 2 else 1 for d in order]
    if gap:
        room[-1] += 1
    made = np.zeros(room, value._dtype.numpy)
    if gap:
        made = made[..., : room[-1] - 1]
    made = made.transpose(np.argsort(order))
    made = made[tuple(slice(None, None, -1 if s < 0 else 1) for s in strides)]
    return np.broadcast_to(made, sizes)


def _like(spec: Spec, result: Any) -> Spec:
    if spec.strides is not None or not isinstance(result, np.ndarray):
        return spec
    # What joins or repeats its operands has more than two elements along a dimension.
    if [min(n, 2) for n in result.shape] != [min(n, 2) for n in spec.shape]:
        return spec
    order = order_of(result.shape, result.strides)
    return spec if order is None else Spec(spec.shape, spec.dtype, dense_strides(spec.shape, order))
