"""What the forward pass keeps for the backward pass: a cheapest cut of the joint graph.

Every value that does not depend on gradients can be kept, or computed again backward from what is
kept; formulas of derivatives have such values too, all of ``f'(x)`` for instance, which the kernel
of ``f`` can compute along with its result. What is cheapest in sum is a minimum cut between the
inputs and the steps that run backward, as in ``min_cut_rematerialization_partition`` of PyTorch's
AOTAutograd, which cuts by bytes. Here it weighs time against time: bytes that are written and read
against functions that are evaluated again (as Checkmate does; Jain et al., 2020).

Each value is two vertices. The edge between them is cut where the value is kept, and costs what
writing and reading it takes. An edge from the source to the first is cut where the value is
computed backward, and costs that; it is never cut for what must not run twice or takes long. Edges
along the graph are never cut.

Memory has a price as well, which rises from nothing until no more is kept than eager execution of
the same steps would keep.
"""

from __future__ import annotations

import operator
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from tensorplay.compiler.cpp.ir import Loop, Operand, Value
from tensorplay.compiler.cpp.lowering import NotFusable, element_type, lower
from tensorplay.compiler.cpp.partition import VIEWS, arguments_of, spec
from tensorplay.graph.node import Node, is_effect
from tensorplay.graph.passes import is_view
from tensorplay.ops.operator import OPERATORS, Operator

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tensorplay.compiler.capture import Captured

__all__ = ["HEAVY", "Choice", "Kept", "ancestors", "choose", "depends_on_owners", "must_run"]

#: Operators that evaluate a function of each element, which takes longer than to read that.
HEAVY: Final = frozenset({
    *("sigmoid", "silu", "gelu", "softplus", "elu", "tanh", "erf", "erfc", "exp", "exp2", "expm1"),
    *("log", "log2", "log10", "log1p", "sin", "cos", "pow"),
})  # fmt: skip
#: Elementwise operators that can be computed again, and views.
_REPEATABLE: Final = HEAVY | {
    *("add", "sub", "mul", "neg", "div", "reciprocal", "square", "sqrt", "rsqrt", "addcmul"),
    *("lerp", "relu", "leaky_relu", "hardtanh", "abs"),
    *("sign", "floor", "ceil", "trunc", "round", "maximum", "minimum", "clamp", "where"),
    *("masked_fill", "eq", "ne", "lt", "le", "gt", "ge", "logical_and", "logical_or"),
    *("logical_not", "isnan", "isfinite", "_cast", "expand", "reshape", "squeeze", "unsqueeze"),
    *("permute", "transpose", "_slice", "conj", "real", "imag", "sgn"),
}  # fmt: skip

# Times in quarters of what reading a byte takes. What is written takes memory besides time, so that
# it counts twice.
_READ: Final = 4
_WRITE: Final = 8
_LEAST: Final = 4
# Of an element, by its bytes: vectors of float64 hold half as many, and series are longer.
_FUNCTION: Final = {4: 64, 8: 220}
_ROOT: Final = {4: 8, 8: 24}  # square roots and divisions
_STEP: Final = {4: 1, 8: 2}  # others
_PRICES: Final = (0, 2, 8, 32, 128, 1024)  # of a byte that is kept
_NEVER = 1 << 60


@dataclass(frozen=True)
class Kept:
    """One value that is kept.

    Attributes
    ----------
    node
        What computes it.
    kind
        ``"input"``, ``"root"`` (a result) or ``"value"``.
    reason
        Why it is kept.
    """

    node: Node
    kind: str
    reason: str

    @property
    def type(self) -> str:
        """Element type and shape, as graphs show them."""
        if not _is_tensor(self.node):
            return ""
        value = self.node.meta["val"]
        return f"{value._dtype.name}{list(value._array.shape)}"


@dataclass
class Choice:
    """What is kept, in the order of the graph, and how many bytes that and eager's way hold.

    Counted is memory, once however often it is seen. Inputs that are leaves are there anyway, and
    count where eager execution keeps them. Others always count, as second derivatives need them.
    """

    kept: list[Kept] = field(default_factory=list)
    held: int = 0
    held_eagerly: int = 0

    @property
    def nodes(self) -> list[Node]:
        """The nodes of what is kept."""
        return [k.node for k in self.kept]


def ancestors(nodes: Iterable[Node]) -> set[Node]:
    """Return the nodes and all that they are computed from."""
    found: set[Node] = set()
    stack = list(nodes)
    while stack:
        node = stack.pop()
        if node not in found:
            found.add(node)
            stack.extend(node.all_input_nodes)
    return found


def must_run(node: Node) -> bool:
    """Tell whether a call runs although nobody reads its value: of an operator of a user, too."""
    if node.op != "call_function":
        return False
    schema = getattr(node.target, "schema", None)
    return is_effect(node) or getattr(schema, "namespace", None) is not None


def depends_on_owners(captured: Captured) -> bool:
    """Tell whether the choice may depend on which inputs are leaves."""
    return any(g is not None for g in captured.gradients) and any(
        _name(n) in HEAVY for n in captured.recorder.graph.nodes
    )


def choose(captured: Captured, late: set[Node], roots: list[Node]) -> Choice:
    """Return what to keep of a capture whose nodes `late` run backward."""
    gradients = [g for g in captured.gradients if g is not None]
    needed = ancestors([*gradients, *filter(must_run, late)])
    read = {
        used
        for node in needed & late
        for used in node.all_input_nodes
        if used not in late
    } | {g for g in gradients if g not in late}  # fmt: skip
    order = {n: i for i, n in enumerate(captured.recorder.graph.nodes)}
    early = sorted(ancestors(read), key=order.__getitem__)
    costs = _Costs(captured, early, roots)
    eager = sum(captured.saved_eagerly.values())
    best: tuple[int, list[Node]] | None = None
    for price in _PRICES:
        found = _cut(early, read, costs, price)
        held = costs.held(found)
        if best is None or held < best[0]:
            best = held, found
        if held <= eager:
            break
    assert best is not None  # noqa: S101 - there is a price
    held, found = best
    inside = set(found)
    return Choice([costs.kept(n, inside) for n in found], held, eager)


class _Costs:
    """What it takes to keep each value, and to compute it backward."""

    def __init__(self, captured: Captured, early: list[Node], roots: list[Node]) -> None:
        self.inputs = {x.node for x in captured.inputs}
        written = {x.node for x in captured.inputs if x.written}
        # A root that an input's new value is, or that a view writes later, is no longer there.
        self.results = {r for r in roots if r.op == "call_function"}
        self.free = (self.inputs - written) | self.results
        self.always = {
            x.node for x in captured.inputs
            if x.history is not None or not x.leaf._requires_grad or x.written
        }  # fmt: skip
        self.not_counted = {
            x.node for x in captured.inputs
            if x.node not in self.always and id(x.leaf._array.memory) not in captured.saved_eagerly
        }  # fmt: skip
        self.functions: dict[Node, int] = {}
        self.again: dict[Node, int] = {}
        self._count(captured, early, roots)

    def _count(self, captured: Captured, early: list[Node], roots: list[Node]) -> None:
        # What forward kernels compute anyway costs formulas nothing there.
        conditions = [c.node for c in captured.recorder.conditions]
        forward = ancestors([*roots, *conditions, *(value for _, value in captured.writes)])
        nodes = [n for n in captured.recorder.graph.nodes if n in forward]
        loop, values = Loop(), dict[Node, Value]()
        for node in nodes:
            self.functions[node] = _functions(node, loop, values)
        for node in early:
            alone = _functions(node, Loop(), {})
            beside = 0 if node in forward else _functions(node, loop, values)
            self.functions[node] = alone
            self.again[node] = _to_compute(node, max(0, alone - beside), forward=node in forward)

    def to_keep(self, node: Node, price: int) -> int:
        """Return what keeping a value takes: the time to read it, and to write what is new."""
        if not _is_tensor(node):
            return 1  # there is no other way
        base = _base(node)
        size, elements = _sizes(base)
        # Truth values are no fewer steps of a loop than numbers, and are packed besides.
        moved = elements * max(size, _LEAST)
        new = 0 if node in self.free else _WRITE * moved + price * elements * size
        return max(1, _READ * moved + new)

    def held(self, kept: Iterable[Node]) -> int:
        """Return how many bytes are held until the backward pass."""
        found = self.always | {_base(n) for n in kept}
        return sum(map(_bytes, found - self.not_counted))

    def kept(self, node: Node, inside: set[Node]) -> Kept:
        """Return a value that is kept, with the reason."""
        if node in self.inputs and node in self.free:
            return Kept(node, "input", "an input is there anyway")
        if node in self.results:
            return Kept(node, "root", "a result is there anyway")
        if node in self.inputs:
            return Kept(node, "value", "the input is written later")
        spared: list[str] = []
        stack, seen = [node], {node}
        while stack:
            one = stack.pop()
            if self.functions.get(one):
                spared.append(_name(one))
            for n in one.all_input_nodes:
                if n not in seen and n not in inside and n not in self.free:
                    seen.add(n)
                    stack.append(n)
        if not _is_repeatable(node):
            return Kept(node, "value", "only steps on single elements are computed again")
        if spared:
            names = ", ".join(dict.fromkeys(reversed(spared)))
            why = f"to write and read it takes less time than {names} would again"
            return Kept(node, "value", why)
        return Kept(node, "value", "it is less to write and read than what it is computed from")


def _to_compute(node: Node, functions: int, *, forward: bool) -> int:
    """Return what it takes to compute a value backward, and not, or not only, forward."""
    if node.op == "get_attr":
        return 0
    if not _is_repeatable(node):
        return _NEVER
    size, elements = _sizes(node)
    if is_view(node) or not elements:
        return 0
    each = functions * _FUNCTION.get(size, _FUNCTION[4])
    if forward:
        steps = _ROOT if _name(node) in {"div", "sqrt", "rsqrt"} else _STEP
        each += steps.get(size, steps[4])
    return each * elements


def _name(node: Node) -> str:
    target = node.target
    known = node.op == "call_function" and isinstance(target, Operator)
    return target.name if known and OPERATORS.get(target.name) is target else ""  # type: ignore[union-attr]


def _is_repeatable(node: Node) -> bool:
    return _name(node) in _REPEATABLE and not is_effect(node)


def _is_tensor(node: Node) -> bool:
    value = node.meta.get("val")
    return value is not None and not isinstance(value, tuple)


def _sizes(node: Node) -> tuple[int, int]:
    """Return bytes of an element, and how many elements there are."""
    value = node.meta["val"]
    return int(value._dtype.itemsize), int(value._array.size)


def _bytes(node: Node) -> int:
    value = node.meta.get("val")
    if isinstance(value, tuple):
        return sum(int(v._array.size) * int(v._dtype.itemsize) for v in value)
    return 0 if value is None else int(value._array.size) * int(value._dtype.itemsize)


def _base(node: Node) -> Node:
    """Return the node whose memory a value lies in."""
    while is_view(node) and node.target is not operator.getitem:
        source = node.args[0]
        if not isinstance(source, Node) or not _is_tensor(source):
            break
        node = source
    return node


def _functions(node: Node, loop: Loop, values: dict[Node, Value]) -> int:
    """Return how many functions a kernel evaluates for a node that `loop` does not have yet."""
    name = _name(node)
    found = spec(node)
    if not name or found is None:
        return 0
    before = len(loop.values)
    try:
        args = arguments_of(node)
        if name in VIEWS and args.get("input") in values:
            values[node] = values[args["input"]]
            return 0
        specs = {}
        for key, value in args.items():
            if isinstance(value, Node):
                one = spec(value)
                if one is None:
                    return int(name in HEAVY)
                specs[key] = one
                if value not in values:
                    operand = Operand(element_type(one.dtype), per_row=False)
                    values[value] = loop.input(operand)
                args[key] = values[value]
        values[node] = lower(loop, name, args, specs, found)
    except (NotFusable, AttributeError, TypeError):
        return int(name in HEAVY)
    return sum(v.heavy for v in loop.values[before:])


def _cut(early: list[Node], read: set[Node], costs: _Costs, price: int) -> list[Node]:
    """Return the values of a cheapest cut, in the order of the graph."""
    number = {n: 2 * i + 2 for i, n in enumerate(early)}
    flow = _Flow(2 * len(early) + 2)
    source, sink = 0, 1
    for node in early:
        at = number[node]
        flow.edge(at, at + 1, costs.to_keep(node, price) if node.op != "get_attr" else _NEVER)
        again = _NEVER if node.op == "placeholder" else costs.again[node]
        if again:
            flow.edge(source, at, again)
        for used in node.all_input_nodes:
            flow.edge(number[used] + 1, at, _NEVER)
        if node in read:
            flow.edge(at + 1, sink, _NEVER)
    near = flow.reached(source, sink)
    return [n for n in early if number[n] in near and number[n] + 1 not in near]


class _Flow:
    """Edges with capacities, and the greatest flow through them (Dinic, 1970)."""

    def __init__(self, count: int) -> None:
        self.edges: list[list[int]] = [[] for _ in range(count)]
        self.to: list[int] = []
        self.room: list[int] = []

    def edge(self, one: int, two: int, room: int) -> None:
        """Add an edge, and the one back."""
        for a, b, r in ((one, two, room), (two, one, 0)):
            self.edges[a].append(len(self.to))
            self.to.append(b)
            self.room.append(r)

    def _levels(self, source: int) -> dict[int, int]:
        found = {source: 0}
        waiting = deque([source])
        while waiting:
            at = waiting.popleft()
            for e in self.edges[at]:
                if self.room[e] and self.to[e] not in found:
                    found[self.to[e]] = found[at] + 1
                    waiting.append(self.to[e])
        return found

    def reached(self, source: int, sink: int) -> dict[int, int]:
        """Return what is still reached from `source` when nothing more flows to `sink`."""
        while sink in (levels := self._levels(source)):
            next_edge = [0] * len(self.edges)
            path: list[int] = []
            at = source
            while at != source or next_edge[at] < len(self.edges[at]):
                if at == sink:
                    least = min(self.room[e] for e in path)
                    for e in path:
                        self.room[e] -= least
                        self.room[e ^ 1] += least
                    full = next(i for i, e in enumerate(path) if not self.room[e])
                    at = self.to[path[full] ^ 1]
                    del path[full:]
                elif next_edge[at] == len(self.edges[at]):  # a dead end
                    at = self.to[path.pop() ^ 1]
                    next_edge[at] += 1
                else:
                    e = self.edges[at][next_edge[at]]
                    if self.room[e] and levels.get(self.to[e]) == levels[at] + 1:
                        path.append(e)
                        at = self.to[e]
                    else:
                        next_edge[at] += 1
        return levels
