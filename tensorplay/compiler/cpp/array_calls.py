"""Steps of a graph that are no kernels, called on arrays: without the making of a tensor each.

What an operator checks before it computes, a capture has checked, and guards hold it. These are the
operators whose implementations take any arrays of the shapes that their rules allow.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from tensorplay import _native
from tensorplay._tensor import Tensor
from tensorplay.graph.effects import write
from tensorplay.graph.node import Node, is_effect
from tensorplay.graph.order import order_of
from tensorplay.ops.node import OTHER, TENSOR
from tensorplay.ops.operator import OPERATORS
from tensorplay.ops.primitive import Primitive

__all__ = ["ArrayCall", "array_calls"]

_VIEWS: Final = frozenset({"transpose", "permute", "reshape", "expand", "squeeze", "unsqueeze"})
#: With the function of the extension that does the same.
_COMPUTING: Final = {
    "matmul": "multiply_matrices",
    "sum_to_size": "sum_axis_0",
    "_pick_class": "pick_class",
    "_place_class": "place_class",
}


@dataclass(frozen=True)
class ArrayCall:
    """A call of a function of arrays.

    Parameters
    ----------
    function
        What is called.
    args
        Nodes stand for arrays.
    is_view
        Whether the result lies in the memory of the first one, or may.
    is_number
        Whether the result has no dimensions, and may be NumPy's number.
    """

    function: Callable[..., Any]
    args: tuple[Any, ...]
    is_view: bool
    is_number: bool


def array_calls(nodes: Sequence[Node]) -> dict[Node, ArrayCall]:
    """Return the steps that run on arrays, those of kernels perhaps among them.

    Arguments of a call are those of its node, or what these are made of, if it needs no more.
    """
    calls = [n for n in nodes if n.op.startswith("call")]
    plain = all(map(_is_builtin, calls))
    found = {n: call for n in calls if (call := _array_call(n, views_only=not plain))}
    if plain and _native.core is not None:
        for node in calls:
            if (turned := _turned_product(node, found)) is not None:
                found[node] = turned
            elif _name(node) == "_place_class":
                found[node] = _placing_one(found[node])
    return found


def _is_builtin(node: Node) -> bool:
    """Tell whether a call runs no code of people, who see NumPy's state as they left it."""
    target = node.target
    if isinstance(target, Primitive):
        return OPERATORS.get(target.name) is target and not is_effect(node)
    return target is write


def _name(node: Any) -> str:
    """Return the name of the operator that a node calls, empty where it calls none."""
    return node.target.name if isinstance(node, Node) and isinstance(node.target, Primitive) else ""


def _array_call(node: Node, *, views_only: bool) -> ArrayCall | None:
    """Return how a step runs on arrays; None if it does not."""
    operator = node.target
    if not isinstance(operator, Primitive) or not _is_builtin(node):
        return None
    is_view = operator.name in _VIEWS
    if not is_view and (views_only or operator.name not in _COMPUTING):
        return None
    value = node.meta.get("val")
    if not isinstance(value, Tensor):
        return None
    given = dict(zip(operator.names, node.args, strict=False)) | node.kwargs
    args = []
    for i, kind, extra in operator.plan:
        name = operator.names[i]
        arg = given[name] if name in given else operator._defaults[name]
        if kind == OTHER:
            arg = extra(arg)
        elif kind != TENSOR or not isinstance(arg, Node):
            return None
        args.append(arg)
    function = operator.impl
    native = _COMPUTING.get(operator.name)
    if native is not None and _native.core is not None:
        function = functools.partial(getattr(_native.core, native), function)
    return ArrayCall(function, tuple(args), is_view, not value._array.shape)


def _turned_product(node: Node, calls: dict[Node, ArrayCall]) -> ArrayCall | None:
    """Return the call for a copy of a transposed product, which is written so at once."""
    turned = node.args[0] if _name(node) == "clone" else None
    if not isinstance(turned, Node) or _name(turned) != "transpose":
        return None
    product = turned.args[0]
    if not isinstance(product, Node) or _name(product) != "matmul" or product not in calls:
        return None
    if len(turned.users) > 1 or len(product.users) > 1:  # it is written for others as well
        return None
    array = node.meta["val"]._array
    if array.ndim != 2 or order_of(array.shape, array.strides) != (1, 0) or len(node.args) > 1:
        return None
    if node.kwargs or any(a.meta["val"]._array.ndim != 2 for a in calls[product].args):
        return None
    function = functools.partial(_native.core.transposed_product, product.target.impl)
    return replace(calls[product], function=function)


def _placing_one(call: ArrayCall) -> ArrayCall:
    """Return the call without the repetition of one element for all targets."""
    source = call.args[0]
    while _name(source) in {"expand", "reshape"} and isinstance(source.args[0], Node):
        source = source.args[0]
    if all(n == 1 for n in source.meta["val"]._array.shape):
        return replace(call, args=(source, *call.args[1:]))
    return call
