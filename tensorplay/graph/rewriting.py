"""Parts of graphs replaced by others."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tensorplay.graph.graph_module import GraphModule
from tensorplay.graph.node import Node, fail
from tensorplay.graph.tracer import symbolic_trace

__all__ = ["Match", "replace_pattern"]


@dataclass(frozen=True)
class Match:
    """One place where a pattern was found.

    Attributes
    ----------
    anchor
        The node that gave what the pattern returns.
    nodes_map
        The node of the graph for each node of the pattern.
    """

    anchor: Node
    nodes_map: dict[Node, Node]


def replace_pattern(
    gm: GraphModule,
    pattern: Callable[..., Any] | GraphModule,
    replacement: Callable[..., Any] | GraphModule,
) -> list[Match]:
    """Replace all places in `gm` that do what `pattern` does.

    Parameters
    ----------
    gm
        The graph; it is changed.
    pattern, replacement
        Functions, which are traced, or graphs, of the same inputs. Both return one value.

    Returns
    -------
    list
        The matches, in the order of the graph. They do not overlap.

    Raises
    ------
    GraphCaptureError
        The pattern returns several values or an input, or the number of inputs differs.
    """
    searched = pattern if isinstance(pattern, GraphModule) else symbolic_trace(pattern)
    wanted = replacement if isinstance(replacement, GraphModule) else symbolic_trace(replacement)
    end = searched.graph.output_node().args[0]
    if not isinstance(end, Node) or end.op == "placeholder":
        raise fail("replace_pattern: expected a pattern that returns one computed value.")
    inputs, others = searched.graph.placeholders, wanted.graph.placeholders
    if len(inputs) != len(others):
        raise fail(
            f"replace_pattern: expected as many inputs as the pattern has, {len(inputs)}, got "
            f"{len(others)}."
        )
    matches: list[Match] = []
    taken: set[Node] = set()
    for node in list(gm.graph.nodes):
        found: dict[Node, Node] = {}
        if not _match(end, node, found):
            continue
        inside = {n for p, n in found.items() if p.op != "placeholder"}
        leaks = any(u not in inside for n in inside if n is not node for u in n.users)
        if leaks or inside & taken:
            continue
        taken |= inside
        matches.append(Match(node, found))
    for match in matches:
        anchor = match.anchor
        known = {o: match.nodes_map[i] for i, o in zip(inputs, others, strict=True)
                 if i in match.nodes_map}  # fmt: skip
        with gm.graph.inserting_before(anchor):
            result = gm.graph.graph_copy(wanted.graph, known)
        anchor.replace_all_uses_with(result)
        for p, n in reversed(list(match.nodes_map.items())):
            if p.op != "placeholder" and not n._erased and not n.users:
                gm.graph.erase_node(n)
    gm.graph.eliminate_dead_code()
    gm.recompile()
    return matches


def _match(pattern: Node, node: Node, found: dict[Node, Node]) -> bool:
    known = found.get(pattern)
    if known is not None:
        return known is node
    if pattern.op != "placeholder":
        if pattern.op != node.op or pattern.target != node.target:
            return False
        if not _match_value(pattern.args, node.args, found):
            return False
        if not _match_value(pattern.kwargs, node.kwargs, found):
            return False
    found[pattern] = node
    return True


def _match_value(pattern: Any, value: Any, found: dict[Node, Node]) -> bool:
    if isinstance(pattern, Node):
        return isinstance(value, Node) and _match(pattern, value, found)
    if isinstance(pattern, (tuple, list)):
        return (
            isinstance(value, (tuple, list))
            and len(pattern) == len(value)
            and all(_match_value(p, v, found) for p, v in zip(pattern, value, strict=True))
        )
    if isinstance(pattern, dict):
        return (
            isinstance(value, dict)
            and pattern.keys() == value.keys()
            and all(_match_value(p, value[k], found) for k, p in pattern.items())
        )
    return type(pattern) is type(value) and bool(pattern == value)
