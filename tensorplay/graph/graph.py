"""The graph: steps in the order in which they run, and changes that keep it one."""

from __future__ import annotations

import builtins
import keyword
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from tensorplay.graph import printing
from tensorplay.graph.node import (
    OPS,
    Node,
    fail,
    is_effect,
    iterate,
    map_arg,
    may_raise,
    target_name,
)

__all__ = ["Graph", "NodeList"]

# Names that the text of a graph has for something else.
_TAKEN: Final = frozenset(
    {*dir(builtins), *keyword.kwlist, "self", "tensorplay", "operators", "operator", "math"}
) - {"sum", "abs", "max", "min", "any", "all", "round", "pow", "sorted", "complex", "input"}


class Graph:
    """A program of tensors as a list of steps.

    Nodes are made by the methods that are named after what they do, at the insertion point, which
    is the end until `inserting_before` or `inserting_after` moves it.

    Examples
    --------
    >>> import tensorplay
    >>> from tensorplay.graph import Graph, GraphModule
    >>> graph = Graph()
    >>> x = graph.placeholder("x")
    >>> y = graph.call_function(tensorplay.relu, (x,))
    >>> _ = graph.output(y)
    >>> GraphModule({}, graph)(tensorplay.tensor([-1.0, 2.0]))
    tensor([0., 2.])
    """

    def __init__(self) -> None:
        self._root = Node(self, "", "root", "", (), {})
        self._before: Node = self._root
        self._names: dict[str, int] = {}
        self._used: set[str] = set()
        self._count = 0

    # --- what is in it ----------------------------------------------------------------------

    @property
    def nodes(self) -> NodeList:
        """The nodes in order; the one at hand may be erased in a loop."""
        return NodeList(self)

    @property
    def placeholders(self) -> list[Node]:
        """The inputs, in order."""
        return [n for n in iterate(self._root) if n.op == "placeholder"]

    def output_node(self) -> Node:
        """Return the node that says what the graph returns.

        Raises
        ------
        GraphCaptureError
            The graph has none yet.
        """
        last = self._root._prev
        if last.op == "output":
            return last
        found = next((n for n in iterate(self._root) if n.op == "output"), None)
        if found is None:
            raise fail("the graph has no output. Write graph.output(value).")
        return found

    def find_nodes(self, *, op: str, target: Any = None) -> list[Node]:
        """Return the nodes of a kind, and of a target if one is given."""
        return [
            n for n in iterate(self._root) if n.op == op and (target is None or n.target == target)
        ]

    def check_member(self, node: Any) -> None:
        """Raise if `node` is no node of this graph, or is no longer."""
        if not isinstance(node, Node) or node.graph is not self:
            raise fail(f"{node!r} is not part of this graph.")
        if node._erased:
            raise fail(f"node {node.name!r} has already been erased.")

    # --- making nodes -----------------------------------------------------------------------

    def create_node(
        self,
        op: str,
        target: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
        name: str | None = None,
    ) -> Node:
        """Insert a node.

        Raises
        ------
        GraphCaptureError
            `op` is none of the kinds of nodes, or an argument is a node of another graph.
        """
        if op not in OPS:
            raise fail(f"unknown kind of node {op!r}, expected one of {', '.join(sorted(OPS))}.")
        node = Node(self, self.unique_name(name or _candidate(target)), op, target, args,
                    kwargs or {})  # fmt: skip
        for used in node._inputs:
            if used.graph is not self or used._erased:
                for x in node._inputs:
                    x.users.pop(node, None)
                self.check_member(used)
        after = self._before
        node._prev, node._next = after._prev, after
        after._prev._next = node
        after._prev = node
        self._count += 1
        return node

    def placeholder(self, name: str, default: Any = None) -> Node:
        """Insert an input."""
        args = () if default is None else (default,)
        return self.create_node("placeholder", name, args, name=name)

    def get_attr(self, qualified_name: str) -> Node:
        """Insert a reading of an attribute of the root, such as ``layer.weight``."""
        return self.create_node("get_attr", qualified_name)

    def call_function(
        self,
        the_function: Callable[..., Any],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Node:
        """Insert a call of a function or operator."""
        if not callable(the_function):
            raise fail(f"call_function: expected a function, got {the_function!r}.")
        return self.create_node("call_function", the_function, args, kwargs)

    def call_method(
        self, method_name: str, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Node:
        """Insert a call of a method of the first argument."""
        if not args:
            raise fail(f"call_method {method_name!r}: expected the object as the first argument.")
        return self.create_node("call_method", method_name, args, kwargs)

    def call_module(
        self, module_name: str, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Node:
        """Insert a call of a submodule of the root."""
        return self.create_node("call_module", module_name, args, kwargs)

    def output(self, result: Any) -> Node:
        """Say what the graph returns: a node, or nodes in tuples, lists and dictionaries."""
        return self.create_node("output", "output", (result,), name="output")

    def unique_name(self, wanted: str) -> str:
        """Return a free name like `wanted`, and take it."""
        base = wanted
        if not wanted.isidentifier() or wanted[0] == "_":
            base = re.sub(r"\W", "_", wanted).strip("_") or "value"
            if base[0].isdigit():
                base = f"_{base}"
        if base in self._used or base in _TAKEN:
            stem = re.sub(r"_\d+$", "", base) if base[-1].isdigit() else base
            number = self._names.get(stem, 0) + 1
            while f"{stem}_{number}" in self._used:
                number += 1
            self._names[stem] = number
            base = f"{stem}_{number}"
        self._used.add(base)
        return base

    # --- changing it ------------------------------------------------------------------------

    @contextmanager
    def _inserting(self, before: Node) -> Iterator[None]:
        outer, self._before = self._before, before
        try:
            yield
        finally:
            self._before = outer

    def inserting_before(self, n: Node | None = None) -> Any:
        """Return a context in which nodes are inserted before `n`; None: at the beginning.

        Raises
        ------
        GraphCaptureError
            `n` is not part of this graph.
        """
        if n is None:
            return self._inserting(self._root._next)
        self.check_member(n)
        return self._inserting(n)

    def inserting_after(self, n: Node | None = None) -> Any:
        """Return a context in which nodes are inserted after `n`; None: at the end."""
        if n is None:
            return self._inserting(self._root)
        self.check_member(n)
        return self._inserting(n._next)

    def erase_node(self, to_erase: Node) -> None:
        """Remove a node that has no users.

        Raises
        ------
        GraphCaptureError
            It has users, has already been erased, or is not part of this graph.
        """
        self.check_member(to_erase)
        if to_erase.users:
            users = ", ".join(n.name for n in to_erase.users)
            raise fail(
                f"node {to_erase.name!r} has users, each a user that would lose its argument: "
                f"{users}. Write node.replace_all_uses_with(other) first."
            )
        if self._before is to_erase:
            self._before = to_erase._next
        to_erase._unlink()
        to_erase._erased = True
        to_erase._set((), {})
        self._used.discard(to_erase.name)
        self._count -= 1

    def node_copy(self, node: Node, arg_transform: Callable[[Node], Any] = lambda x: x) -> Node:
        """Insert a copy of a node, of this or another graph.

        Parameters
        ----------
        node
            What is copied.
        arg_transform
            Gives for each node among the arguments the one that stands for it here.
        """
        args = map_arg(node.args, arg_transform)
        kwargs = map_arg(node.kwargs, arg_transform)
        made = self.create_node(node.op, node.target, args, kwargs, node.name)
        made.meta = dict(node.meta)
        return made

    def graph_copy(self, g: Graph, val_map: dict[Node, Node]) -> Any:
        """Insert copies of all nodes of `g`, and return what it returns.

        Parameters
        ----------
        g
            Another graph.
        val_map
            What stands for nodes of `g`, such as its inputs; the other nodes are added.
        """
        for node in g.nodes:
            if node in val_map:
                continue
            if node.op == "output":
                return map_arg(node.args[0], lambda n: val_map[n])
            val_map[node] = self.node_copy(node, lambda n: val_map[n])
        return None

    def eliminate_dead_code(self, is_impure_node: Callable[[Node], bool] | None = None) -> bool:
        """Remove nodes whose values nobody uses, and return whether there were any.

        Inputs stay, and what writes, draws random numbers, is declared to have an effect or may
        raise by the values of its arguments: a division of integers by zero, an operator of a user.

        Parameters
        ----------
        is_impure_node
            Tells which nodes stay, in place of that rule.
        """
        impure = is_impure_node or (lambda node: is_effect(node) or may_raise(node))
        changed = False
        node = self._root._prev
        while node is not self._root:
            before = node._prev
            kept = node.users or node.op in {"placeholder", "output"} or impure(node)
            if not kept:
                self.erase_node(node)
                changed = True
            node = before
        return changed

    # --- checks and text --------------------------------------------------------------------

    def lint(self) -> None:
        """See that the graph can run.

        Raises
        ------
        GraphCaptureError
            A node is used before it is computed or is of another graph, two have one name, inputs
            do not come first, something follows the output, or users and arguments disagree.
        """
        seen: set[Node] = set()
        names: set[str] = set()
        finished = others = False
        members = set(iterate(self._root))
        for node in iterate(self._root):
            if node.graph is not self:
                raise fail(f"node {node.name!r} is not part of this graph.")
            if node.op not in OPS:
                raise fail(f"node {node.name!r} is of unknown kind {node.op!r}.")
            if finished:
                raise fail(f"node {node.name!r} stands after the output.")
            if node.name in names:
                raise fail(f"two nodes are named {node.name!r}.")
            names.add(node.name)
            if node.op == "placeholder" and others:
                raise fail(f"input {node.name!r} stands after nodes that are no inputs.")
            others = others or node.op != "placeholder"
            for used in node._inputs:
                if used not in members:
                    raise fail(
                        f"node {node.name!r} uses {used.name!r}, which is not part of this graph."
                    )
                if used not in seen:
                    raise fail(
                        f"node {node.name!r} uses {used.name!r}, which is defined later in the "
                        "graph."
                    )
                if node not in used.users:
                    raise fail(f"node {node.name!r} is missing among the users of {used.name!r}.")
            for user in node.users:
                if node not in user._inputs:
                    raise fail(f"{user.name!r} is a user of {node.name!r} that does not use it.")
            _check_target(node)
            finished = node.op == "output"
            seen.add(node)

    def python_code(self, root_module: str = "self") -> printing.PythonCode:
        """Return the graph as the text of a function ``forward``, and the names that it reads."""
        return printing.python_code(self, root_module)

    def print_tabular(self) -> None:
        """Print a table of the nodes: kind, name, target, arguments."""
        sys.stdout.write(f"{printing.table(self)}\n")

    def to_dot(self, name: str = "graph") -> str:
        """Return the graph in the language of Graphviz."""
        return printing.dot(self, name)

    def draw(self, name: str = "graph") -> str:
        """Return the graph as a drawing in SVG, which needs no other program."""
        return printing.svg(self, name)

    def __str__(self) -> str:
        inputs = ", ".join(f"%{n.name}" for n in self.placeholders)
        lines = [f"graph({inputs}):"]
        lines += [f"    {n.format_node()}" for n in self.nodes if n.op != "placeholder"]
        return "\n".join(lines)

    def __len__(self) -> int:
        return self._count

    def __deepcopy__(self, memo: dict[int, Any]) -> Graph:
        copy = Graph()
        memo[id(self)] = copy
        for old, new in copy.copy_from(self).items():
            memo[id(old)] = new
        return copy

    def copy_from(self, other: Graph) -> dict[Node, Node]:
        """Insert copies of all nodes of `other`, its output too; return what stands for each."""
        found: dict[Node, Node] = {}
        for node in other.nodes:
            found[node] = self.node_copy(node, found.__getitem__)
        return found


class NodeList:
    """The nodes of a graph, in order."""

    __slots__ = ("_graph",)

    def __init__(self, graph: Graph) -> None:
        self._graph = graph

    def __iter__(self) -> Iterator[Node]:
        return iterate(self._graph._root)

    def __reversed__(self) -> Iterator[Node]:
        return reversed(list(self))

    def __len__(self) -> int:
        return self._graph._count

    def __contains__(self, node: object) -> bool:
        return isinstance(node, Node) and node.graph is self._graph and not node._erased

    def __getitem__(self, index: int) -> Node:
        return list(self)[index]

    def __repr__(self) -> str:
        return repr(list(self))


def _candidate(target: Any) -> str:
    return target_name(target).rpartition("::")[2].replace(".", "_").strip("_")


def _check_target(node: Node) -> None:
    if node.op == "call_function":
        if not callable(node.target):
            raise fail(f"node {node.name!r} calls {node.target!r}, which is no function.")
    elif not isinstance(node.target, str):
        raise fail(f"node {node.name!r}: expected a name as target, got {node.target!r}.")
