"""Changes of a graph that leave what it computes: fewer steps, and cheaper ones.

All of them keep effects, random numbers and writes as they are, and the bits of every result: no
pass assumes that ``x - x`` is zero or that additions may change places.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping
from typing import Any, Final

from tensorplay import _dtype
from tensorplay._tensor import MetaArray, Spec, Tensor, wrap
from tensorplay.autograd import grad_mode
from tensorplay.graph.effects import MutatingCall, write_part
from tensorplay.graph.graph import Graph
from tensorplay.graph.node import Node, is_effect, map_arg
from tensorplay.graph.printing import runner
from tensorplay.library.tags import Tag
from tensorplay.ops.operator import OPERATORS, Operator

__all__ = [
    "changes_nothing",
    "eliminate_common_subexpressions",
    "fold_constants",
    "is_view",
    "optimise",
    "simplify",
]

MOST_FOLDED: Final = 1 << 16  # elements of a constant


def is_view(node: Node) -> bool:
    """Tell whether a node gives a view of its first argument."""
    if node.target is operator.getitem:
        source = node.args[0]
        return isinstance(source, Node) and is_view(source)
    return isinstance(node.target, Operator) and bool(getattr(node.target, "view", False))


def _is_plain(node: Node) -> bool:
    """Tell whether a node is a call that depends on its arguments only and gives new values."""
    if node.op != "call_function" or is_effect(node):
        return False
    target = node.target
    if target is operator.getitem or target is write_part:
        return True
    if isinstance(target, Operator):
        return target.schema.namespace is None
    if isinstance(target, MutatingCall):
        return False
    tags = getattr(target, "tags", None)
    return tags is not None and Tag.nondeterministic not in tags and hasattr(target, "operator")


def eliminate_common_subexpressions(graph: Graph) -> bool:
    """Compute once what is computed twice of the same; return whether there was any."""
    known: dict[Any, Node] = {}
    changed = False
    for node in graph.nodes:
        if node.op == "get_attr":
            key: Any = ("get_attr", node.target)
        elif _is_plain(node):
            key = (id(node.target), _frozen(node.args), _frozen(node.kwargs))
        else:
            continue
        first = known.setdefault(key, node)
        if first is not node:
            node.replace_all_uses_with(first)
            graph.erase_node(node)
            changed = True
    return changed


def _frozen(value: Any) -> Any:
    """Return arguments as something that compares by what it means."""
    kind = value.__class__
    if kind is Node:
        return ("node", id(value))
    if kind in {tuple, list}:
        return (kind, tuple([_frozen(v) for v in value]))
    if kind is dict:
        return tuple([(k, _frozen(v)) for k, v in value.items()])
    if kind in {float, complex}:
        return (kind, repr(value))
    if kind in {int, bool, str, bytes, type(None)} or isinstance(value, _dtype.dtype):
        return (kind, value)
    if isinstance(value, tuple):
        return (kind, tuple([_frozen(v) for v in value]))
    return ("object", id(value))


def fold_constants(graph: Graph, constants: dict[str, Tensor]) -> bool:
    """Compute what depends on constants only; the results join `constants`."""
    changed = False
    for node in list(graph.nodes):
        if not _is_plain(node) or not node.all_input_nodes:
            continue
        if any(n.op != "get_attr" or n.target not in constants for n in node.all_input_nodes):
            continue
        value = node.meta.get("val")
        if not isinstance(value, Tensor) or value._array.size > MOST_FOLDED:
            continue

        def constant(used: Node) -> Tensor:
            return constants[used.target]

        with grad_mode.no_grad():
            result = runner(node.target)(
                *map_arg(node.args, constant), **map_arg(node.kwargs, constant)
            )
        if not isinstance(result, Tensor):
            continue
        number = len(constants)
        while f"constant_{number}" in constants:
            number += 1
        name = f"constant_{number}"
        constants[name] = result.detach().clone() if is_view(node) else result.detach()
        with graph.inserting_before(node):
            folded = graph.get_attr(name)
        folded.meta["val"] = value
        node.replace_all_uses_with(folded)
        graph.erase_node(node)
        changed = True
    return changed


# --- rules ----------------------------------------------------------------------------------------


def _same_value(node: Node, source: Any) -> bool:
    """Tell whether `source` has shape, type and layout of what `node` gives."""
    if not isinstance(source, Node):
        return False
    mine, its = node.meta.get("val"), source.meta.get("val")
    return (
        isinstance(mine, Tensor)
        and isinstance(its, Tensor)
        and mine._dtype is its._dtype
        and mine._array.shape == its._array.shape
        and mine._array.strides == its._array.strides
    )


def _number(value: Any) -> bool:
    return type(value) in {int, float, bool}


def _scaled(node: Node) -> Any:
    """``x * 1``, ``x / 1``: exact for every x, NaN and infinities included."""
    x, by = node.args[0], node.args[1] if len(node.args) > 1 else None
    if _number(by) and by == 1 and not node.kwargs and _same_value(node, x):
        return x
    if node.target is OPERATORS["mul"] and _number(x) and x == 1 and _same_value(node, by):
        return by
    return None


def _shifted(node: Node) -> Any:
    """``x - 0`` and, of whole numbers, ``x + 0``; ``-0.0 + 0`` is another zero."""
    x, by = node.args[0], node.args[1] if len(node.args) > 1 else None
    if not _number(by) or by != 0 or isinstance(by, float) or not _same_value(node, x):
        return None
    if node.target is OPERATORS["sub"] and math.copysign(1, by) > 0:
        return x
    return None if node.meta["val"]._dtype.category > _dtype.INTEGER else x


def _negated(node: Node) -> Any:
    """``-(-x)``."""
    inner = node.args[0]
    if isinstance(inner, Node) and inner.target is node.target and _same_value(node, inner.args[0]):
        return inner.args[0]
    return None


def _first_power(node: Node) -> Any:
    """``x ** 1``."""
    by = node.args[1] if len(node.args) > 1 else None
    return node.args[0] if _number(by) and by == 1 and _same_value(node, node.args[0]) else None


def _unchanged(node: Node) -> Any:
    """Drop a view that changes nothing, such as a reshape to the same shape."""
    return node.args[0] if _same_value(node, node.args[0]) else None


def changes_nothing(node: Node) -> bool:
    """Tell whether `simplify` drops a step, since it gives its first argument as it is."""
    return (
        node.op == "call_function"
        and isinstance(node.target, Operator)
        and node.target.schema.namespace is None
        and _unchanged in _RULES.get(node.target.name, ())
        and _unchanged(node) is not None
    )


def _twice(node: Node) -> Any:
    """Skip the first of two reshapes, where all is row-major."""
    inner = node.args[0]
    if not isinstance(inner, Node) or inner.target is not node.target:
        return None
    first = inner.args[0]
    values = [n.meta.get("val") for n in (first, inner, node)]
    if all(isinstance(v, Tensor) and v.is_contiguous() for v in values):
        node.args = (first, *node.args[1:])
    return None


def _turned_back(node: Node) -> Any:
    """``x.transpose(a, b).transpose(a, b)``."""
    inner = node.args[0]
    if not isinstance(inner, Node) or inner.target is not node.target or node.kwargs:
        return None
    ndim = len(node.meta["val"]._array.shape)
    dims = [{d % ndim for d in n.args[1:]} for n in (node, inner) if not n.kwargs and ndim]
    return inner.args[0] if len(dims) == 2 and dims[0] == dims[1] else None


def _of_one(node: Node) -> Any:
    """Compute before one element is repeated: once, and beside what made it."""
    last = node.args[0]
    first, source = None, last
    while isinstance(source, Node) and _repeats(source) and len(source.users) == 1:
        first, source = source, source.args[0]
    if first is None or len(node.args) > 1 or node.kwargs or not isinstance(source, Node):
        return None
    value, mine = source.meta.get("val"), node.meta["val"]
    if not isinstance(value, Tensor) or value._array.size != 1 or mine._dtype is not value._dtype:
        return None
    with node.graph.inserting_before(first):
        small = node.graph.call_function(node.target, (source,))
    small.meta["val"] = wrap(MetaArray(Spec(value._array.shape, value._dtype)), value._dtype)
    first.args = (small, *first.args[1:])
    return last


def _repeats(node: Node) -> bool:
    return node.target in (OPERATORS["expand"], OPERATORS["reshape"]) and not node.kwargs


_RULES: Final[Mapping[str, tuple[Callable[[Node], Any], ...]]] = {
    "mul": (_scaled,),
    "div": (_scaled,),
    "add": (_shifted,),
    "sub": (_shifted,),
    "neg": (_negated, _of_one),
    "pow": (_first_power,),
    "reshape": (_unchanged, _twice),
    "expand": (_unchanged,),
    "permute": (_unchanged,),
    "squeeze": (_unchanged,),
    "transpose": (_turned_back,),
    "unsqueeze": (_unchanged,),
    "sum_to_size": (_unchanged,),
    "_slice": (_unchanged,),
}


def simplify(graph: Graph) -> bool:
    """Drop steps that change nothing; return whether there were any."""
    changed = False
    for node in list(graph.nodes):
        if node.op != "call_function" or not isinstance(node.target, Operator):
            continue
        if node.target.schema.namespace is not None:
            continue
        for rule in _RULES.get(node.target.name, ()):
            found = rule(node)
            if found is not None:
                node.replace_all_uses_with(found)
                graph.erase_node(node)
                changed = True
                break
    return changed


def optimise(graph: Graph, constants: dict[str, Tensor]) -> None:
    """Run all passes."""
    fold_constants(graph, constants)
    simplify(graph)
    eliminate_common_subexpressions(graph)
    graph.eliminate_dead_code()
