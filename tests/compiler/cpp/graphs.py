"""Graphs of operators, written as calls, for the tests of the backend."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorplay as tp
from tensorplay.compiler.cpp import CompiledGraph, cpp
from tensorplay.graph.effects import write
from tensorplay.graph.graph import Graph
from tensorplay.graph.graph_module import GraphModule
from tensorplay.graph.node import Node, map_arg
from tensorplay.ops import OPERATORS


class Builder:
    """A graph that grows: ``b.input(x)`` and ``b.add(node, 2)`` return nodes."""

    def __init__(self) -> None:
        self.graph = Graph()
        self._inputs = 0

    def input(self, tensor: tp.Tensor) -> Node:
        node = self.graph.placeholder(f"x{self._inputs}")
        self._inputs += 1
        node.meta["val"] = tensor.detach().to("meta")
        return node

    def call(self, target: Any, *args: Any, **kwargs: Any) -> Node:
        node = self.graph.call_function(target, args, kwargs)
        values = map_arg((args, kwargs), lambda n: n.meta["val"])
        with tp.no_grad():
            node.meta["val"] = target(*values[0], **values[1])
        return node

    def __getattr__(self, name: str) -> Callable[..., Node]:
        operator = OPERATORS[name]
        return lambda *args, **kwargs: self.call(operator, *args, **kwargs)

    def write(self, destination: Node, value: Node) -> Node:
        node = self.graph.call_function(write, (destination, value))
        node.meta["val"] = destination.meta["val"]
        return node

    def module(self, *results: Any) -> GraphModule:
        self.graph.output(tuple(results))
        self.graph.lint()
        return GraphModule({}, self.graph)

    def compile(self, *results: Any, **options: Any) -> CompiledGraph:
        return cpp(self.module(*results), (), **options)


def kernels(compiled: CompiledGraph) -> list[tuple[str, ...]]:
    """Return the operators of each kernel."""
    return [r.operators for r in compiled.report.regions if r.kind == "kernel"]
