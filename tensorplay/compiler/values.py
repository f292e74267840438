"""Values of a run as the nodes of its graph, and fake kernels, take them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from tensorplay._tensor import MetaArray, Spec, Tensor, spec_of, wrap
from tensorplay.autograd.graph import edge_of
from tensorplay.autograd.saved_tensors import Strong

__all__ = ["fake_of", "is_dual", "meta_of", "nodes_of", "restored", "share_history"]


def share_history(twin: Tensor, tensor: Tensor) -> None:
    """Let gradients of `twin` arrive where those of `tensor` do."""
    edge = edge_of(tensor)
    if edge is None:
        return
    twin._requires_grad = True
    if tensor._grad_fn is None:
        twin._accumulator = Strong(edge.node)
    else:
        twin._grad_fn, twin._output_nr = edge.node, edge.output_nr


def meta_of(specs: Any) -> Any:
    """Return tensors on device meta for what a node gives."""
    if isinstance(specs, Spec):
        return wrap(MetaArray(specs), specs.dtype)
    return tuple(meta_of(s) for s in specs)


def is_dual(values: Iterable[Any]) -> bool:
    """Tell whether a tensor among values has a tangent."""
    for value in values:
        if isinstance(value, Tensor):
            if value._tangent is not None:
                return True
        elif value.__class__ is list and is_dual(value):
            return True
    return False


def restored(like: Any, tensors: Iterator[Any]) -> Any:
    """Return a result in the form that it has, of the tensors that stand for it in a graph."""
    if isinstance(like, list):
        return [restored(member, tensors) for member in like]
    return None if like is None else next(tensors)


def nodes_of(value: Any) -> Any:
    """Return arguments with nodes in place of tensors."""
    if isinstance(value, Tensor):
        return value._array.node()
    if value.__class__ in {list, tuple}:
        return value.__class__([nodes_of(v) for v in value])
    return value


def fake_of(value: Any, known: dict[int, Tensor]) -> Any:
    """Return a tensor on device meta like `value`, the same one for the same tensor."""
    if isinstance(value, list):
        return [fake_of(v, known) for v in value]
    if not isinstance(value, Tensor):
        return value
    found = known.get(id(value))
    if found is None:
        found = known[id(value)] = wrap(MetaArray(spec_of(value)), value._dtype)
    return found
