"""Graphs run step by step, and rewritten by running them."""

from __future__ import annotations

from typing import Any

from tensorplay.graph.graph import Graph
from tensorplay.graph.graph_module import GraphModule, look_up
from tensorplay.graph.node import Node, fail, map_arg
from tensorplay.graph.printing import runner

__all__ = ["Interpreter", "Transformer"]

_MISSING = object()


class Interpreter:
    """Runs a graph node by node; subclasses answer for kinds of nodes.

    Parameters
    ----------
    module
        The graph and what it reads.
    garbage_collect_values
        Whether a value is dropped after its last use.

    Examples
    --------
    >>> class Counting(Interpreter):
    ...     count = 0
    ...     def call_function(self, target, args, kwargs):
    ...         self.count += 1
    ...         return super().call_function(target, args, kwargs)
    """

    def __init__(self, module: GraphModule, garbage_collect_values: bool = True) -> None:
        self.module = module
        self.graph = module.graph
        self.garbage_collect_values = garbage_collect_values
        self.env: dict[Node, Any] = {}
        self._arguments: list[Any] = []
        self._last: dict[Node, list[Node]] = {}
        if garbage_collect_values:
            seen: set[Node] = set()
            for node in reversed(self.graph.nodes):
                for used in node.all_input_nodes:
                    if used not in seen:
                        seen.add(used)
                        self._last.setdefault(node, []).append(used)

    def run(self, *args: Any, initial_env: dict[Node, Any] | None = None) -> Any:
        """Run the graph on its inputs.

        Parameters
        ----------
        *args
            One for each input.
        initial_env
            Values of nodes that are known; these do not run.

        Raises
        ------
        GraphCaptureError
            An input has no value.
        """
        self.env = dict(initial_env or {})
        self._arguments = list(args)
        for node in self.graph.nodes:
            if node in self.env:
                continue
            value = self.run_node(node)
            if node.op == "output":
                self.env = {}
                return value
            self.env[node] = value
            for used in self._last.get(node, ()):
                self.env.pop(used, None)
        return None

    def run_node(self, n: Node) -> Any:
        """Run one node on the values of `env`."""
        args, kwargs = self.fetch_args_kwargs_from_env(n)
        return getattr(self, n.op)(n.target, args, kwargs)

    def fetch_args_kwargs_from_env(self, n: Node) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments of a node with values in place of nodes."""
        return self.map_nodes_to_values(n.args, n), self.map_nodes_to_values(n.kwargs, n)

    def map_nodes_to_values(self, args: Any, n: Node) -> Any:
        """Return `args` with values in place of nodes."""

        def value_of(used: Node) -> Any:
            found = self.env.get(used, _MISSING)
            if found is _MISSING:
                raise fail(f"node {n.name!r} uses {used.name!r}, which has no value.")
            return found

        return map_arg(args, value_of)

    def fetch_attr(self, target: str) -> Any:
        """Return an attribute of the root."""
        return look_up(self.module.root, target)

    # --- one method per kind of node ---------------------------------------------------------

    def placeholder(self, target: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return the next input, or its default."""
        if target.startswith("**"):
            return {}
        if target.startswith("*"):
            rest, self._arguments = tuple(self._arguments), []
            return rest
        if self._arguments:
            return self._arguments.pop(0)
        if args:
            return args[0]
        raise fail(f"input {target!r} has no value. Give one argument for each input.")

    def get_attr(self, target: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return an attribute of the root."""
        return self.fetch_attr(target)

    def call_function(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call a function or operator."""
        return runner(target)(*args, **kwargs)

    def call_method(self, target: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call a method of the first argument."""
        return getattr(args[0], target)(*args[1:], **kwargs)

    def call_module(self, target: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call a submodule of the root."""
        return self.fetch_attr(target)(*args, **kwargs)

    def output(self, target: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return what the graph returns."""
        return args[0]


class Transformer(Interpreter):
    """Makes a new graph by running one: subclasses return other nodes for kinds of nodes.

    Parameters
    ----------
    module
        The graph module to run.
    """

    def __init__(self, module: GraphModule) -> None:
        super().__init__(module, garbage_collect_values=False)
        self.new_graph = Graph()
        self._current: Node | None = None

    def _made(self, op: str, target: Any, args: Any, kwargs: Any) -> Node:
        old = self._current
        same = old is not None and old.op == op
        made = self.new_graph.create_node(
            op, target, args, kwargs, old.name if same and old else None
        )
        if same and old is not None and old.target == target:
            made.meta = dict(old.meta)
        return made

    def run_node(self, n: Node) -> Any:
        """Run one node; what it gives is a node of the new graph."""
        self._current = n
        return super().run_node(n)

    def placeholder(self, target: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return a new input."""
        return self._made("placeholder", target, args, {})

    def get_attr(self, target: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return a new reading of an attribute."""
        return self._made("get_attr", target, (), {})

    def call_function(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return a new call of a function."""
        return self._made("call_function", target, args, kwargs)

    def call_method(self, target: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return a new call of a method."""
        return self._made("call_method", target, args, kwargs)

    def call_module(self, target: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return a new call of a submodule."""
        return self._made("call_module", target, args, kwargs)

    def transform(self) -> GraphModule:
        """Run the graph, and return the new one."""
        result = self.run()
        self.new_graph.output(result)
        return GraphModule(self.module.root, self.new_graph)
