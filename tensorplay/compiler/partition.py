"""Forward and backward as two graphs, and what the first keeps for the second.

What depends on gradients of results runs backward. What it reads of the rest is either kept or
computed again, as `keeping` chooses.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tensorplay._creation import zeros
from tensorplay._layout import is_dense
from tensorplay._tensor import Spec
from tensorplay.compiler.capture import Captured
from tensorplay.compiler.keeping import Choice, ancestors, choose, must_run
from tensorplay.compiler.values import meta_of
from tensorplay.graph.effects import write
from tensorplay.graph.graph import Graph
from tensorplay.graph.node import Node, is_effect, may_raise
from tensorplay.graph.passes import is_view
from tensorplay.ops.operator import OPERATORS

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["Parts", "checks", "owned", "partition", "without"]


@dataclass
class Parts:
    """The two graphs.

    Attributes
    ----------
    forward
        Takes the inputs; returns the roots, the conditions, then the kept values.
    backward
        Takes what was saved, then the gradients of the differentiable roots; returns the gradients
        of the wanted inputs. None if there are none.
    saved
        What is kept, as ``("input", i)``, ``("root", i)`` or ``("value", i)``.
    given
        Which of the wanted inputs have a gradient.
    choice
        What is kept, with reasons.
    held
        The inputs that eager execution keeps, and the backward graph does not read: to write to
        them between the passes is an error all the same.
    """

    forward: Graph
    backward: Graph | None
    saved: list[tuple[str, int]]
    given: list[bool]
    choice: Choice
    held: list[int]


def partition(captured: Captured, *, conditions_apart: bool = False) -> Parts:
    """Return the graphs of a capture; `checks` gives the conditions if they are apart."""
    joint = captured.recorder.graph
    roots = [r.node for r in captured.roots]
    conditions = [] if conditions_apart else [c.node for c in captured.recorder.conditions]
    gradients = [g for g in captured.gradients if g is not None]
    choice = Choice()
    backward = None
    late = _late(captured)
    if gradients:
        choice = choose(captured, late, roots)
        backward = _backward_graph(joint, choice.nodes, captured.tangents, gradients, late)
    forward, saved = _forward_graph(captured, roots, conditions, choice.nodes, late)
    held = [
        i for i, x in enumerate(captured.inputs)
        if not x.written and ("input", i) not in saved
        and id(x.leaf._array.memory) in captured.saved_eagerly
    ] if gradients else []  # fmt: skip
    given = [g is not None for g in captured.gradients]
    return Parts(forward, backward, saved, given, choice, held)


def _late(captured: Captured) -> set[Node]:
    """Return the nodes that have to run backward."""
    late: set[Node] = set(captured.tangents)
    for node in captured.recorder.graph.nodes:
        if node.op == "output" or node in captured.forward_nodes:
            continue
        if any(n in late for n in node.all_input_nodes) or must_run(node):
            late.add(node)
    return late


def _backward_graph(
    joint: Graph,
    kept: list[Node],
    tangents: list[Node],
    gradients: list[Node],
    late: set[Node],
) -> Graph:
    graph = Graph()
    known: dict[Node, Node] = {}
    for node in (*kept, *tangents):
        made = graph.placeholder(node.name)
        made.meta = dict(node.meta)
        if node in tangents:
            made.meta["tangent"] = True
        known[node] = made
    needed: set[Node] = set()
    stack = [*gradients, *filter(must_run, late)]
    while stack:
        node = stack.pop()
        if node in known or node in needed:
            continue
        needed.add(node)
        stack.extend(node.all_input_nodes)
    for node in joint.nodes:
        if node in needed:
            known[node] = graph.node_copy(node, known.__getitem__)
    graph.output(tuple(owned(graph, [known[g] for g in gradients])))
    return graph


def without(graph: Graph, missing: Iterable[int]) -> tuple[Graph, list[bool], bool]:
    """Return a backward graph for results some of which have no gradient.

    A backward graph is linear in the gradients that it gets: what depends on missing ones alone is
    no gradient at all, and is not computed, since zero times infinity is NaN.

    Parameters
    ----------
    graph
        The whole backward graph.
    missing
        Which of its placeholders get nothing.

    Returns
    -------
    Graph
        Takes what `graph` takes.
    list of bool
        Which of its results there are still.
    bool
        Whether it holds for the sizes of `graph` only.
    """
    placeholders = graph.find_nodes(op="placeholder")
    absent = {placeholders[i] for i in missing}
    tangents = {n for n in placeholders if n.meta.get("tangent")}
    here = tangents - absent
    for node in graph.nodes:  # in order: absent is what has absent ancestors and no others
        if node.op != "call_function":
            continue
        if any(n in here for n in node.all_input_nodes):
            here.add(node)
        elif any(n in absent for n in node.all_input_nodes):
            absent.add(node)
    made = Graph()
    known: dict[Node, Node] = {}
    sized = False

    def needed(node: Node) -> Node:
        nonlocal sized
        if node in known:
            return known[node]
        value = node.meta["val"]
        shape = tuple(value._array.shape)
        sized = sized or bool(shape)
        zero = known[node] = made.call_function(zeros, (shape,), {"dtype": value._dtype})
        zero.meta["val"] = value
        return zero

    for node in graph.nodes:
        if node.op == "placeholder" or (node.op != "output" and node not in absent):
            one = _other_addend(node, absent)
            known[node] = known[one] if one is not None else made.node_copy(node, needed)
    results = graph.output_node().args[0]
    there = [r not in absent for r in results]
    made.output(tuple(owned(made, [known[r] for r in results if r not in absent])))
    made.eliminate_dead_code(must_run)
    return made, there, sized


def _other_addend(node: Node, absent: set[Node]) -> Node | None:
    """Return the one addend of a sum that is there, if that is all of the sum."""
    if node.target is not OPERATORS["add"] or len(node.args) != 2 or node.kwargs:
        return None
    one, two = node.args
    if one in absent:
        one, two = two, one
    if not isinstance(one, Node) or two not in absent or one in absent:
        return None
    mine, its = node.meta["val"], one.meta["val"]
    same = mine._dtype is its._dtype and mine._array.shape == its._array.shape
    return one if same else None


def _forward_graph(
    captured: Captured,
    roots: list[Node],
    conditions: list[Node],
    kept: list[Node],
    late: set[Node],
) -> tuple[Graph, list[tuple[str, int]]]:
    graph = Graph()
    known: dict[Node, Node] = {}
    inputs = [x.node for x in captured.inputs]
    for node in inputs:
        made = graph.placeholder(node.name)
        made.meta = dict(node.meta)
        known[node] = made
    effects = [
        n for n in captured.recorder.graph.nodes
        if n.op == "call_function" and n not in late
        and (is_effect(n) or (may_raise(n) and n in captured.forward_nodes))
    ]  # fmt: skip
    values = [value for _, value in captured.writes]
    needed = ancestors([*roots, *conditions, *kept, *effects, *values])
    for node in captured.recorder.graph.nodes:
        if node in needed and node not in known:
            known[node] = graph.node_copy(node, known.__getitem__)
    written = {inputs[i] for i, _ in captured.writes} | {
        inputs[i] for i, *_ in captured.outside_writes
    }
    saved: list[tuple[str, int]] = []
    extra: list[Node] = []
    places = {n: i for i, n in reversed(list(enumerate(roots)))}
    for node in kept:
        if node in inputs and node not in written:
            saved.append(("input", inputs.index(node)))
        elif node in places and node.op == "call_function":
            saved.append(("root", places[node]))
        else:
            saved.append(("value", len(extra)))
            extra.append(_copy(graph, known[node]) if node in written else known[node])
    results = owned(graph, [known[r] for r in roots])
    # The tests of Python may be the values of inputs, which a write would change.
    tests = owned(graph, [known[c] for c in conditions])
    made_writes = [(known[inputs[i]], known[value]) for i, value in captured.writes]
    for destination, value in made_writes:
        node = graph.call_function(write, (destination, value))
        node.meta["val"] = destination.meta["val"]
    graph.output((*results, *tests, *extra))
    return graph, saved


def checks(captured: Captured) -> Graph:
    """Return the graph of the conditions alone, on the inputs of the whole."""
    conditions = [c.node for c in captured.recorder.conditions]
    needed = ancestors(conditions)
    graph = Graph()
    known: dict[Node, Node] = {}
    for x in captured.inputs:
        known[x.node] = graph.placeholder(x.node.name)
        known[x.node].meta = dict(x.node.meta)
    for node in captured.recorder.graph.nodes:
        if node in needed and node not in known:
            known[node] = graph.node_copy(node, known.__getitem__)
    graph.output(tuple([known[c] for c in conditions]))
    return graph


def _copy(graph: Graph, node: Node) -> Node:
    made = graph.call_function(OPERATORS["clone"], (node,))
    value = node.meta["val"]
    array = value._array
    dense = is_dense(array.shape, array.strides, array.itemsize)
    # The copy of what has gaps or repeats is row-major.
    made.meta["val"] = value if dense else meta_of(Spec(tuple(array.shape), value._dtype))
    return made


def owned(graph: Graph, nodes: list[Node]) -> list[Node]:
    """Return nodes each of which gives memory of its own."""
    found: list[Node] = []
    for node in nodes:
        shared = node.op in {"placeholder", "get_attr"} or is_view(node) or node in found
        found.append(_copy(graph, node) if shared else node)
    return found
