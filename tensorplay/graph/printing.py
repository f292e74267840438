"""Graphs as text: Python, a table, Graphviz, SVG."""

from __future__ import annotations

import html
import math
import operator
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tensorplay import _dtype
from tensorplay._device import device
from tensorplay._tensor import Tensor
from tensorplay.graph.node import Node, target_name
from tensorplay.ops.operator import OPERATORS, Operator

if TYPE_CHECKING:
    from tensorplay.graph.graph import Graph

__all__ = ["PythonCode", "describe", "dot", "python_code", "svg", "table"]


@dataclass(frozen=True)
class PythonCode:
    """The text of a function ``forward``, and the names that it reads."""

    src: str
    globals: dict[str, Any]


class _Operators:
    """Reads an operator by its name: ``operators.add(x, y)``."""

    def __getattr__(self, name: str) -> Callable[..., Any]:
        found = OPERATORS.get(name)
        if found is None:
            raise AttributeError(name)
        return runner(found)


_OPERATORS = _Operators()


def runner(target: Any) -> Callable[..., Any]:
    """Return what calls a target with the arguments that a node has."""
    function: Callable[..., Any] = target.function if isinstance(target, Operator) else target
    return function


class _Code:
    """Makes expressions, and collects the names that they read."""

    def __init__(self, graph: Graph) -> None:
        self.taken = {n.name for n in graph.nodes} | {"self"}
        self.names: dict[str, Any] = {}

    def name(self, wanted: str, value: Any) -> str:
        """Return the name under which the text reads `value`."""
        base = "".join(c if c.isalnum() or c == "_" else "_" for c in wanted) or "value"
        name, number = base, 0
        while name in self.taken or self.names.get(name, value) is not value:
            number += 1
            name = f"{base}_{number}"
        self.names[name] = value
        return name

    def function(self, target: Any) -> str:
        """Return an expression for what a node calls."""
        if isinstance(target, Operator) and OPERATORS.get(target.name) is target:
            return f"{self.name('operators', _OPERATORS)}.{target.name}"
        name = getattr(target, "__name__", "")
        if getattr(operator, name, None) is target:
            return f"{self.name('operator', operator)}.{name}"
        if (getattr(target, "__module__", None) or "").startswith("tensorplay"):
            package = sys.modules["tensorplay"]
            if getattr(package, name, None) is target:
                return f"{self.name('tensorplay', package)}.{name}"
        return self.name(target_name(target).replace("::", "_").replace(".", "_"), runner(target))

    def value(self, value: Any) -> str:
        """Return an expression for an argument."""
        kind = type(value)
        if isinstance(value, Node):
            return value.name
        if kind is tuple:
            inner = ", ".join(self.value(v) for v in value)
            return f"({inner},)" if len(value) == 1 else f"({inner})"
        if kind is list:
            return f"[{', '.join(self.value(v) for v in value)}]"
        if kind is dict:
            return "{" + ", ".join(f"{k!r}: {self.value(v)}" for k, v in value.items()) + "}"
        if kind is slice:
            parts = ", ".join(self.value(v) for v in (value.start, value.stop, value.step))
            return f"slice({parts})"
        if kind is float and not math.isfinite(value):
            return f"{self.name('float', float)}({str(value)!r})"
        if value is None or value is Ellipsis or kind in {bool, int, float, complex, str, bytes}:
            return "..." if value is Ellipsis else repr(value)
        if isinstance(value, _dtype.dtype):
            return self.name(value.name, value)
        if isinstance(value, device):
            return self.name(f"device_{value.type}", value)
        return self.name(f"constant_{kind.__name__.lower()}", value)

    def arguments(self, args: Any, kwargs: dict[str, Any]) -> str:
        """Return the text between the parentheses of a call."""
        parts = [self.value(a) for a in args]
        parts += [f"{k}={self.value(v)}" for k, v in kwargs.items()]
        return ", ".join(parts)


def python_code(graph: Graph, root: str) -> PythonCode:
    """Return the graph as the text of a function ``forward(self, …)``."""
    code = _Code(graph)
    inputs = []
    for node in graph.placeholders:
        default = f"={code.value(node.args[0])}" if node.args else ""
        star = "**" if node.target.startswith("**") else "*" if node.target[:1] == "*" else ""
        inputs.append(f"{star}{node.name}{default}")
    lines: list[str] = []
    last = _last_uses(graph)
    for node in graph.nodes:
        if node.op == "placeholder":
            continue
        if node.op == "output":
            lines.append(f"return {code.value(node.args[0] if node.args else None)}")
            continue
        lines.append(f"{node.name} = {_expression(code, node, root)}{_note(node)}")
        freed = [n.name for n in last.get(node, ()) if n.op != "placeholder"]
        if freed:
            lines.append(f"{' = '.join(freed)} = None")
    if not lines or not lines[-1].startswith("return"):
        lines.append("return None")
    body = "\n".join(f"    {line}" for line in lines)
    text = f"def forward({', '.join([root, *inputs])}):\n{body}\n"
    return PythonCode(text, code.names)


def _expression(code: _Code, node: Node, root: str) -> str:
    if node.op == "get_attr":
        return f"{root}.{node.target}"
    if node.op == "call_method":
        rest = code.arguments(node.args[1:], node.kwargs)
        return f"{code.value(node.args[0])}.{node.target}({rest})"
    if node.op == "call_module":
        place = "".join(
            f"[{part!r}]" if part.isdigit() else f".{part}" for part in node.target.split(".")
        )
        if "[" in place:
            return (
                f"{root}.get_submodule({node.target!r})({code.arguments(node.args, node.kwargs)})"
            )
        return f"{root}{place}({code.arguments(node.args, node.kwargs)})"
    return f"{code.function(node.target)}({code.arguments(node.args, node.kwargs)})"


def _last_uses(graph: Graph) -> dict[Node, list[Node]]:
    """Return for each node the nodes whose values nobody needs after it."""
    seen: set[Node] = set()
    found: dict[Node, list[Node]] = {}
    for node in reversed(graph.nodes):
        for used in (*node.all_input_nodes, *([] if node.users else [node])):
            if used not in seen:
                seen.add(used)
                if node.op != "output":
                    found.setdefault(node, []).append(used)
    return found


def describe(value: Any) -> str:
    """Return ``float32[2, 3]`` for what ``meta["val"]`` holds."""
    if isinstance(value, Tensor):
        return f"{value.dtype.name}{list(value.shape)}"
    if isinstance(value, (tuple, list)):
        return f"({', '.join(describe(v) for v in value)})"
    return repr(value)


def _note(node: Node) -> str:
    value = node.meta.get("val")
    return "" if value is None else f"  # {describe(value)}"


def table(graph: Graph) -> str:
    """Return a table of the nodes."""
    rows = [("op", "name", "target", "args", "kwargs")]
    rows += [
        (n.op, n.name, target_name(n.target), repr(n.args), repr(n.kwargs)) for n in graph.nodes
    ]
    widths = [max(len(row[i]) for row in rows) for i in range(5)]
    lines = ["  ".join(c.ljust(w) for c, w in zip(r, widths, strict=True)).rstrip() for r in rows]
    lines.insert(1, "  ".join("-" * w for w in widths))
    return "\n".join(lines)


def dot(graph: Graph, name: str) -> str:
    """Return the graph in the language of Graphviz."""
    lines = [f"digraph {_quoted(name)} {{", "  rankdir=TB;", "  node [shape=box];"]
    for node in graph.nodes:
        label = f"{node.name}\n{node.op}: {target_name(node.target)}"
        if "val" in node.meta:
            label += f"\n{describe(node.meta['val'])}"
        lines.append(f"  {_quoted(node.name)} [label={_quoted(label)}];")
    for node in graph.nodes:
        lines += [
            f"  {_quoted(used.name)} -> {_quoted(node.name)};" for used in node.all_input_nodes
        ]
    return "\n".join([*lines, "}"])


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


def svg(graph: Graph, name: str) -> str:
    """Return a drawing: a row for each step, and lines from what it uses."""
    nodes = list(graph.nodes)
    row = {node: i for i, node in enumerate(nodes)}
    height, width, left = 44, 260, 220
    parts = []
    for node in nodes:
        y = 10 + row[node] * height
        for used in node.all_input_nodes:
            start = 10 + row[used] * height + 30
            bend = left - 12 * min(row[node] - row[used], 16)
            parts.append(
                f'<path d="M{left} {start - 8} C{bend} {start}, {bend} {y + 8}, {left} {y + 8}" '
                'fill="none" stroke="currentColor" stroke-opacity="0.5"/>'
            )
        text = f"{node.name} = {target_name(node.target)}"
        note = describe(node.meta["val"]) if "val" in node.meta else node.op
        parts.append(
            f'<rect x="{left}" y="{y}" width="{width}" height="30" rx="4" fill="none" '
            f'stroke="currentColor"/><text x="{left + 8}" y="{y + 13}" font-size="11" '
            f'fill="currentColor">{html.escape(text)}</text><text x="{left + 8}" y="{y + 25}" '
            f'font-size="9" fill="currentColor">{html.escape(note)}</text>'
        )
    title = f"<title>{html.escape(name)}</title>"
    size = f'width="{left + width + 10}" height="{20 + height * len(nodes)}"'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="monospace" role="img">'
        f"{title}{''.join(parts)}</svg>"
    )
