"""A graph that can be called, with the attributes that it reads."""

from __future__ import annotations

import copy
import itertools
import linecache
import sys
from collections.abc import Callable, Mapping
from typing import Any

from tensorplay.graph.errors import GraphCaptureError
from tensorplay.graph.graph import Graph
from tensorplay.graph.node import fail

__all__ = ["GraphModule", "look_up"]

_numbers = itertools.count()


def look_up(root: Any, path: str) -> Any:
    """Return the attribute ``a.b.0`` of `root`, whose parts may be dictionaries.

    Raises
    ------
    GraphCaptureError
        There is none.
    """
    if isinstance(root, Mapping) and path in root:
        return root[path]
    found = root
    for part in path.split("."):
        try:
            found = found[part] if isinstance(found, Mapping) else getattr(found, part)
        except (AttributeError, KeyError):
            raise fail(f"the root has no attribute {path!r}, which the graph reads.") from None
    return found


class GraphModule:
    """A function made of a graph.

    Parameters
    ----------
    root
        What attributes and submodules of the graph are looked up in: a module, or a dictionary by
        their names.
    graph
        The steps. After a change of the graph, `recompile` makes the function anew.
    class_name
        Name of the class in the printed code.

    Attributes
    ----------
    graph : Graph
        The steps; setting it recompiles.
    code : str
        The text of the function.
    """

    def __init__(self, root: Any, graph: Graph, class_name: str = "GraphModule") -> None:
        self._root = root
        self._class_name = class_name
        self._late = True
        self._code = ""
        self._forward: Callable[..., Any] = _none
        self._graph = graph

    def __getattr__(self, name: str) -> Any:
        # What is not here is the root's: parameters, submodules, constants.
        root = self.__dict__.get("_root")
        if root is None or name.startswith("__"):
            raise AttributeError(name)
        try:
            return root[name] if isinstance(root, Mapping) else getattr(root, name)
        except (AttributeError, KeyError):
            message = f"'{self._class_name}' object has no attribute '{name}'"
            raise AttributeError(message) from None

    def get_submodule(self, target: str) -> Any:
        """Return the attribute at a dotted path of the root."""
        return look_up(self._root, target)

    @property
    def root(self) -> Any:
        """What attributes of the graph are looked up in."""
        return self._root

    @property
    def graph(self) -> Graph:
        """The steps."""
        return self._graph

    @graph.setter
    def graph(self, value: Graph) -> None:
        if not isinstance(value, Graph):
            raise fail(f"GraphModule.graph: expected Graph, got {type(value).__name__}.")
        self._graph = value
        self.recompile()

    @property
    def code(self) -> str:
        """The text of the function."""
        if self._late:
            self.recompile()
        return self._code

    def recompile(self) -> None:
        """Make the function anew from the graph.

        Raises
        ------
        GraphCaptureError
            The graph cannot run.
        """
        self._graph.lint()
        made = self._graph.python_code("self")
        filename = f"<tensorplay graph {next(_numbers)}>"
        scope = dict(made.globals)
        exec(compile(made.src, filename, "exec"), scope)  # noqa: S102 - text made from a graph
        linecache.cache[filename] = (len(made.src), None, made.src.splitlines(keepends=True),
                                     filename)  # fmt: skip
        self._code, self._forward, self._late = made.src, scope["forward"], False

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the graph."""
        if self._late:
            self.recompile()
        return self._forward(self, *args, **kwargs)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the graph."""
        return self.forward(*args, **kwargs)

    def print_readable(self, print_output: bool = True) -> str:
        """Return the text of the function in its class, and print it unless told not to."""
        body = "".join(f"    {line}\n" if line else "\n" for line in self.code.splitlines())
        text = f"class {self._class_name}:\n{body}"
        if print_output:
            sys.stdout.write(text)
        return text

    def __deepcopy__(self, memo: dict[int, Any]) -> GraphModule:
        made = type(self)(self._root, copy.deepcopy(self._graph, memo), self._class_name)
        memo[id(self)] = made
        return made

    def __repr__(self) -> str:
        return f"{self._class_name}()\n\n{self.code}"


def _none(*_: Any) -> Any:
    message = "the function of the graph is not made yet"
    raise GraphCaptureError(message)
