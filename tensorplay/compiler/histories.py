"""Whether the steps of a graph, run again and recorded, get the history that the run had.

A graph holds what is computed. Where `detach` or `no_grad` cut the history of a value, or a hook or
a `Function` gives another gradient than that of the steps, it does not show. Gradients of first
order are part of the graph, and right. Those of higher order come from the steps run again, which
is right only where nothing of this kind lies on the way to a result.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

from tensorplay._tensor import Tensor
from tensorplay.graph.node import Node
from tensorplay.ops.primitive import Primitive

if TYPE_CHECKING:
    from tensorplay.compiler.capture import Captured

__all__ = ["Histories", "ancestors"]


class _Noted(NamedTuple):
    """What the run had as history of a node's value.

    Attributes
    ----------
    bare
        The arguments that came without history.
    recorded
        Whether recording was on.
    requires_grad
        Whether the value got a history.
    """

    bare: tuple[Node, ...]
    recorded: bool
    requires_grad: bool


class Histories:
    """The histories that values of a run have had."""

    def __init__(self) -> None:
        self._noted: dict[Node, _Noted] = {}
        #: What gives other gradients than the steps, in words; None where nothing does.
        self.replaced: str | None = None

    def note(self, values: Iterable[Any], outs: Iterable[Any], *, recorded: bool) -> None:
        """Remember what came of a step.

        Parameters
        ----------
        values
            Its arguments.
        outs
            Its results.
        recorded
            Whether recording is on.
        """
        bare = tuple(
            x._array.node()
            for value in values
            for x in (value if value.__class__ is list else (value,))
            if isinstance(x, Tensor) and x._dtype.is_differentiable and not x._requires_grad
        )
        for out in outs:
            if isinstance(out, Tensor):
                noted = _Noted(bare, recorded, out._requires_grad)
                self._noted[out._array.node()] = noted

    def problem(self, captured: Captured) -> str | None:
        """Return why the steps run again have another history, in words; None where they do not."""
        if self.replaced is not None:
            return self.replaced
        inputs = captured.inputs
        carrying = {inputs[i].node for i in captured.wanted}
        for node in captured.recorder.graph.nodes:
            if self._carries(node, carrying):
                carrying.add(node)
        results = ancestors(captured.roots[i].node for i in captured.differentiable)
        steps = [(n, noted) for n, noted in self._noted.items() if n in results]
        if any(n in carrying and not noted.recorded for n, noted in steps):
            return "turns recording off for a part of what it returns"
        if any(not carrying.isdisjoint(noted.bare) for _, noted in steps):
            return "reads a value both with and without its history (detach)"
        return None

    def _carries(self, node: Node, carrying: set[Node]) -> bool:
        """Tell whether a value that a step computes, run again, has a history."""
        if node.op != "call_function" or not _is_differentiable(node.meta.get("val")):
            return False
        noted = self._noted.get(node)
        if noted is not None and noted.recorded and not noted.bare:
            return noted.requires_grad
        target: Any = node.target
        if isinstance(target, Primitive) and target.schema.namespace is None:
            if not target.vjp:
                return False
        elif target is operator.getitem:
            return node.args[0] in carrying
        return any(n in carrying for n in node.all_input_nodes)


def _is_differentiable(value: Any) -> bool:
    if isinstance(value, Tensor):
        return value._dtype.is_differentiable
    return isinstance(value, tuple) and any(map(_is_differentiable, value))


def ancestors(nodes: Iterable[Node]) -> set[Node]:
    """Return nodes and all that they are computed from."""
    found = set(nodes)
    stack = list(found)
    while stack:
        for node in stack.pop().all_input_nodes:
            if node not in found:
                found.add(node)
                stack.append(node)
    return found
