"""The short way for small calls: what a primitive does, for the commonest arguments only.

Most calls of arithmetic have plain tensors of one floating type, or a tensor and a number. For
those the long way asks many questions whose answers are known. The short way asks only whether a
call is such a one, and returns None if not; then the long way is taken, which also words the
errors. A test runs every operator both ways.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from tensorplay import _dtype
from tensorplay._tensor import Spec, Tensor, inference_threads
from tensorplay.autograd import anomaly_mode, grad_mode
from tensorplay.autograd.graph import Edge, SavedTensor, edge_of
from tensorplay.ops.node import PrimitiveNode
from tensorplay.ops.quiet import restore, silence

if TYPE_CHECKING:
    from collections.abc import Callable

    from tensorplay.ops.primitive import Primitive

__all__ = ["quick_call"]

FLOAT32: Final = _dtype.float32
FLOAT64: Final = _dtype.float64
_new: Final = object.__new__
_tuple: Final = tuple.__new__


def quick_call(primitive: Primitive, ufunc: Callable[..., Any]) -> Callable[..., Any]:
    """Return the short way of `primitive`, which computes with `ufunc`."""
    record = None if primitive.vjp is None else _recorder(primitive)
    operands = sum(not a.has_default for a in primitive.schema.arguments)
    return _of_one(ufunc, record) if operands == 1 else _of_two(ufunc, record)


def _of_one(ufunc: Callable[..., Any], record: Any) -> Callable[..., Any]:
    mode, anomaly = grad_mode.state, anomaly_mode.state

    def call(x: Any) -> Tensor | None:
        if x.__class__ is not Tensor:
            return None
        d = x._dtype
        array = x._array
        if (d is not FLOAT32 and d is not FLOAT64) or array.__class__ is not np.ndarray:
            return None
        if x._base is not None:
            x._synchronise()
        if x._tangent is not None or anomaly.enabled or inference_threads:
            return None
        token = silence()
        try:
            result = ufunc(array)
        except TypeError:  # the long way says which types there are
            return None
        finally:
            restore(token)
        out = _new(Tensor)
        out._array = result if result.__class__ is np.ndarray else np.asarray(result)
        out._dtype = d
        if x._requires_grad and record is not None and mode.enabled:
            record(out, (x,))
        return out

    return call


def _of_two(ufunc: Callable[..., Any], record: Any) -> Callable[..., Any]:
    mode, anomaly = grad_mode.state, anomaly_mode.state

    def call(x: Any, y: Any) -> Tensor | None:
        if x.__class__ is not Tensor:
            return None
        d = x._dtype
        left = x._array
        if (d is not FLOAT32 and d is not FLOAT64) or left.__class__ is not np.ndarray:
            return None
        if x._base is not None:
            x._synchronise()
        kind = y.__class__
        if kind is Tensor:
            right = y._array
            if y._dtype is not d or right.__class__ is not np.ndarray:
                return None
            if y._base is not None:
                y._synchronise()
            if y._tangent is not None:
                return None
            needs_grad = x._requires_grad or y._requires_grad
        elif kind is float or kind is int:
            right = y
            needs_grad = x._requires_grad
        else:
            return None
        if x._tangent is not None or anomaly.enabled or inference_threads:
            return None
        token = silence()
        try:
            result = ufunc(left, right)
        except (ValueError, TypeError, OverflowError):  # the long way says what is wrong
            return None
        finally:
            restore(token)
        out = _new(Tensor)
        out._array = result if result.__class__ is np.ndarray else np.asarray(result)
        out._dtype = d
        if needs_grad and record is not None and mode.enabled:
            record(out, (x, y))
        return out

    return call


def _recorder(primitive: Primitive) -> Callable[[Tensor, tuple[Any, ...]], None]:
    """Return the function that records a result of the short way."""
    names = primitive.names
    rest = [primitive._defaults[a.name] for a in primitive.schema.arguments if a.has_default]
    saves: dict[tuple[bool, bool], tuple[tuple[tuple[str, int], ...], bool]] = {}

    def what_to_save(needs: tuple[bool, bool]) -> tuple[tuple[tuple[str, int], ...], bool]:
        early, late = primitive.saves(tuple([*needs, *[False] * len(names)][: len(names)]))
        found = saves[needs] = tuple((n, names.index(n)) for n in early), late
        return found

    def record(out: Tensor, operands: tuple[Any, ...]) -> None:
        edges: list[Edge | None] = []
        for x in operands:
            if x.__class__ is not Tensor:
                edges.append(None)
            elif x._grad_fn is not None:
                edges.append(_tuple(Edge, (x._grad_fn, x._output_nr)))
            else:
                edges.append(edge_of(x))
        needs = edges[0] is not None, len(edges) > 1 and edges[1] is not None
        early, late = saves.get(needs) or what_to_save(needs)
        node = PrimitiveNode.short(
            primitive,
            edges,
            [None if x.__class__ is Tensor else x for x in operands] + rest,
            _tuple(Spec, (out._array.shape, out._dtype, None)),
        )
        saved = node._saved
        for name, position in early:
            x = operands[position]
            saved[name] = SavedTensor(x) if x.__class__ is Tensor else x
        out._grad_fn = node
        out._requires_grad = True
        if late:
            saved["out"] = SavedTensor(out, 0)

    return record
