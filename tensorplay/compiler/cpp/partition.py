"""Which nodes of a graph become one kernel.

Nodes are taken in the order of the graph. One joins the kernel of what it reads if the space of
that fits and nothing outside of it would have to run between its parts; kernels that a node reads
from become one where they can. Afterwards, kernels over the same space that read the same memory
are joined too.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final

from tensorplay._tensor import Spec, Tensor, spec_of
from tensorplay.compiler.cpp.ir import Loop, Operand, Value
from tensorplay.compiler.cpp.lowering import (
    ALONG_ROW,
    REDUCING,
    NotFusable,
    element_type,
    is_elementwise,
    lower,
)
from tensorplay.graph.effects import write
from tensorplay.graph.node import Node, is_effect
from tensorplay.ops.operator import OPERATORS
from tensorplay.ops.primitive import Primitive
from tensorplay.ops.reduction import axes_of

__all__ = [
    "Group",
    "Partition",
    "arguments_of",
    "build_loop",
    "effects_in_order",
    "partition",
    "spec",
]

VIEWS: Final = frozenset({"reshape", "view", "unsqueeze", "squeeze", "expand"})
MOST_OPERANDS: Final = 40
MOST_NODES: Final = 250


def spec(node: Node) -> Spec | None:
    """Return shape and type of a node's value; None if it has none or several."""
    val = node.meta.get("val")
    return spec_of(val) if isinstance(val, Tensor) else None


def effects_in_order(nodes: Iterable[Node]) -> dict[Node, tuple[Node]]:
    """Return for each step with effects, such as a draw of random numbers, that before it, if any.

    They keep their order, whatever reads their values first. Writes to inputs come at the end.
    """
    steps = [n for n in nodes if n.op.startswith("call") and n.target is not write and is_effect(n)]
    return {node: (before,) for before, node in itertools.pairwise(steps)}


def arguments_of(node: Node) -> dict[str, Any]:
    """Return all arguments of an operator's call by name."""
    operator: Primitive = node.target
    found = {a.name: operator._defaults[a.name] for a in operator.schema.arguments if a.has_default}
    found.update(zip(operator.names, node.args, strict=False))
    found.update(node.kwargs)
    return found


@dataclass(eq=False)
class Group:
    """Nodes that become one kernel.

    Parameters
    ----------
    space
        The shape that the kernel runs over.
    inner
        How many of its last dimensions are reduced; None where nothing is.
    nodes
        In the order of the graph.
    """

    space: tuple[int, ...]
    inner: int | None
    nodes: dict[Node, str] = field(default_factory=dict)  # with the form of the value

    def form(self, shape: tuple[int, ...], inner: int | None = None) -> str | None:
        """Return how a value of this shape lies in the space: full, kept or flat."""
        if shape == self.space:
            return "full"
        inner = self.inner if inner is None else inner
        if inner is None:
            return None
        outer = self.space[: len(self.space) - inner]
        if shape == (*outer, *(1,) * inner):
            return "kept"
        return "flat" if shape == outer else None


@dataclass
class Partition:
    """What becomes of the nodes.

    Parameters
    ----------
    groups
        The kernels.
    reasons
        Why a node that calls something is in none of them.
    """

    groups: list[Group]
    reasons: dict[Node, str]


class _Role:
    """What a node could be in a kernel."""

    def __init__(self, kind: str, inner: int | None, space: tuple[int, ...]) -> None:
        self.kind, self.inner, self.space = kind, inner, space


def _role(node: Node) -> _Role:
    """Return the role of a node.

    Raises
    ------
    NotFusable
        It has none.
    """
    operator = node.target
    name = str(getattr(operator, "name", ""))
    if not isinstance(operator, Primitive) or OPERATORS.get(name) is not operator:
        reason = "it is no operator of this library"
        raise NotFusable(reason)
    result = spec(node)
    if result is None:
        reason = "it has several results"
        raise NotFusable(reason)
    args = arguments_of(node)
    if name in VIEWS:
        return _Role("view", None, result.shape)
    source = args.get("input")
    inner: int | None = None
    if name in REDUCING or name in ALONG_ROW:
        if not isinstance(source, Node):
            reason = "its input is no tensor of the graph"
            raise NotFusable(reason)
        shape = _spec_of(source).shape
        inner = _inner(name, args, len(shape))
        kind = "reduce" if name in REDUCING else "elementwise"
    elif is_elementwise(name):
        kind, shape = "elementwise", result.shape
    else:
        reason = f"no C++ is known for {name}"
        raise NotFusable(reason)
    _try(name, args, result)
    return _Role(kind, inner, shape)


def _inner(name: str, args: dict[str, Any], ndim: int) -> int:
    dim = args["dim"]
    axes = axes_of(name, (dim,) if isinstance(dim, int) else dim, ndim)
    if not axes or sorted(axes) != list(range(ndim - len(axes), ndim)):
        reason = f"{name} over dimensions that are not the last ones"
        raise NotFusable(reason)
    return len(axes)


def _spec_of(node: Node) -> Spec:
    found = spec(node)
    if found is None:
        reason = f"{node.name} is no single tensor"
        raise NotFusable(reason)
    return found


def _try(name: str, args: dict[str, Any], result: Spec) -> None:
    """Raise `NotFusable` if the call has no C++."""
    loop = Loop()
    values, specs = dict(args), {}
    for key, value in args.items():
        if isinstance(value, Node):
            specs[key] = _spec_of(value)
            values[key] = loop.input(Operand(element_type(specs[key].dtype), per_row=False))
        elif isinstance(value, (list, tuple)) and any(isinstance(v, Node) for v in value):
            reason = f"{name} takes a list of tensors"
            raise NotFusable(reason)
    lower(loop, name, values, specs, result)


class _Partitioner:
    def __init__(self, nodes: list[Node], apart: set[Node]) -> None:
        self.nodes = nodes
        self.apart = apart
        self.position = {node: i for i, node in enumerate(nodes)}
        self.earlier = effects_in_order(nodes)
        self.group_of: dict[Node, Group] = {}
        self.reasons: dict[Node, str] = {}

    def run(self) -> Partition:
        for node in self.nodes:
            if node.op != "call_function":
                if node.op in {"call_method", "call_module"}:
                    self.reasons[node] = "it is no call of an operator"
                continue
            if node in self.apart:
                self.reasons[node] = "one call does it with what it reads"
                continue
            try:
                role = _role(node)
            except NotFusable as reason:
                self.reasons[node] = str(reason)
                continue
            self._place(node, role)
        self._join_siblings()
        groups = list(dict.fromkeys(self.group_of.values()))
        for group in groups:
            group.nodes = dict(sorted(group.nodes.items(), key=lambda p: self.position[p[0]]))
        return Partition(groups, self.reasons)

    def _place(self, node: Node, role: _Role) -> None:
        inputs = node.all_input_nodes
        near = list(dict.fromkeys(self.group_of[n] for n in reversed(inputs) if n in self.group_of))
        for group in near:
            form = self._fits(group, node, role)
            if form is not None and self._can_join(group, inputs):
                self._add(group, node, role, form)
                for other in near:
                    if other is not group:
                        self._merge(group, other)
                return
        if role.kind == "view":
            self.reasons[node] = "a view takes no time"
            return
        group = Group(role.space, role.inner)
        form = group.form(_spec_of(node).shape)
        if form is None:
            self.reasons[node] = "its result has a shape that its kernel does not know"
            return
        self._add(group, node, role, form)
        for other in near:  # what it reads may become part of its kernel
            self._merge(group, other)

    def _add(self, group: Group, node: Node, role: _Role, form: str) -> None:
        group.nodes[node] = form
        group.inner = role.inner if group.inner is None else group.inner
        self.group_of[node] = group

    def _fits(self, group: Group, node: Node, role: _Role) -> str | None:
        """Return the form that a node's value would have in the group, None if it does not fit."""
        if len(group.nodes) >= MOST_NODES or len(_outside(group)) >= MOST_OPERANDS:
            return None
        shape = _spec_of(node).shape
        forms = {n: group.nodes[n] for n in node.all_input_nodes if n in group.nodes}
        inner = group.inner
        if role.inner is not None:
            if role.space != group.space or inner not in (None, role.inner):
                return None
            source = arguments_of(node)["input"]
            if forms.get(source, "full") != "full" and forms[source] != "kept":
                return None
            if node.target.name in ALONG_ROW and inner is None and _is_whole(group, role.inner):
                return None  # the rest of the group is better cut into pieces
            return group.form(shape, role.inner)
        form = group.form(shape)
        if form is None:
            return None
        if role.kind == "view":
            return self._view_form(node, forms, form)
        whole = inner is not None and _is_whole(group, inner)
        for source in forms.values():
            fits = source == form or (form == "full" and source == "kept")
            if not fits or (whole and form == "full" and source != "full"):
                return None
        return form

    def _view_form(self, node: Node, forms: dict[Node, str], form: str) -> str | None:
        source = forms.get(node.all_input_nodes[0]) if node.all_input_nodes else None
        if source is None:
            return None
        if node.target.name == "expand":
            return form if source == form or (source == "kept" and form == "full") else None
        if source == "full":
            return "full" if form == "full" else None
        return form if form in {"kept", "flat"} else None

    # --- order ------------------------------------------------------------------------------------

    def _can_join(self, group: Group, inputs: list[Node]) -> bool:
        """Tell whether no input from outside of the group depends on the group."""
        outside = [n for n in inputs if n not in group.nodes]
        return not self._reaches(outside, {group})

    def _reaches(self, start: list[Node], targets: set[Group]) -> bool:
        """Tell whether the nodes, or the kernels that they are in, depend on one of the groups."""
        seen: set[Node] = set()
        stack = list(start)
        while stack:
            node = stack.pop()
            if node in seen:
                continue
            group = self.group_of.get(node)
            if group in targets:
                return True
            members = group.nodes if group is not None else (node,)
            for member in members:
                if member not in seen:
                    seen.add(member)
                    stack.extend(n for n in member.all_input_nodes if n not in seen)
                    stack.extend(self.earlier.get(member, ()))
        return False

    def _merge(self, group: Group, other: Group) -> bool:
        """Make two groups one if that is allowed."""
        differ = None not in (group.inner, other.inner) and group.inner != other.inner
        if group.space != other.space or differ:
            return False
        inner = group.inner if group.inner is not None else other.inner
        if len(group.nodes) + len(other.nodes) > MOST_NODES:
            return False
        both = {**group.nodes, **other.nodes}
        if len(_outside_of(both)) > MOST_OPERANDS:
            return False
        if inner is not None and _is_whole(group, inner) and not self._whole_fits(both):
            return False
        if self._reaches(list(_outside_of(both)), {group, other}):
            return False
        # A value that one gives to the other in a form that it does not have there.
        for node, form in both.items():
            if form == "full" and any(both.get(n) == "flat" for n in node.all_input_nodes):
                return False
        group.nodes.update(other.nodes)
        group.inner = inner
        for node in other.nodes:
            self.group_of[node] = group
        return True

    @staticmethod
    def _whole_fits(nodes: dict[Node, str]) -> bool:
        """Tell whether nothing along a row that is everything needs what is reduced over it."""
        return not any(
            form == "full" and any(nodes.get(n, "full") != "full" for n in node.all_input_nodes)
            for node, form in nodes.items()
        )

    def _join_siblings(self) -> None:
        groups = list(dict.fromkeys(self.group_of.values()))
        for i, group in enumerate(groups):
            if not group.nodes or self.group_of[next(iter(group.nodes))] is not group:
                continue
            for other in groups[i + 1 :]:
                if self.group_of[next(iter(other.nodes))] is other and _share(group, other):
                    self._merge(group, other)


def _is_whole(group: Group, inner: int) -> bool:
    return inner == len(group.space)


def _outside_of(nodes: dict[Node, str]) -> dict[Node, None]:
    return dict.fromkeys(n for node in nodes for n in node.all_input_nodes if n not in nodes)


def _outside(group: Group) -> dict[Node, None]:
    return _outside_of(group.nodes)


def _share(group: Group, other: Group) -> bool:
    """Tell whether both read one array of the whole space."""
    shared = _outside(group).keys() & _outside(other).keys()
    return any((s := spec(n)) is not None and s.shape == group.space for n in shared)


def partition(nodes: list[Node], apart: set[Node]) -> Partition:
    """Return which nodes become kernels, and for the others the reason; those `apart` do not."""
    return _Partitioner(nodes, apart).run()


def build_loop(group: Group, stored: list[Node]) -> tuple[Loop, list[tuple[Node, int]]]:
    """Return the loop of a group, and its operands: nodes, with dimensions missing behind.

    Parameters
    ----------
    group
        The nodes.
    stored
        Those whose values leave the kernel.
    """
    loop = Loop()
    values: dict[Node, Value] = {}
    operands: list[tuple[Node, int]] = []
    known: dict[tuple[Node, int], Value] = {}

    def outside(node: Node, form: str) -> Value:
        behind = (group.inner or 0) if form == "flat" else 0
        if (node, behind) not in known:
            found = _spec_of(node)
            inner = group.inner or 0
            rows = found.shape[: max(0, len(found.shape) + behind - inner)]
            operand = Operand(
                element_type(found.dtype),
                per_row=_is_per_row(group, found.shape, behind),
                repeats=inner > 0 and all(n == 1 for n in rows),
            )
            known[node, behind] = loop.input(operand)
            operands.append((node, behind))
        return known[node, behind]

    for node, form in group.nodes.items():
        args = arguments_of(node)
        at = form if node.target.name not in REDUCING else "full"
        if node.target.name in VIEWS:
            values[node] = values[args["input"]]
            continue
        specs = {}
        for name, value in args.items():
            if isinstance(value, Node):
                specs[name] = _spec_of(value)
                args[name] = values[value] if value in values else outside(value, at)
        values[node] = lower(loop, node.target.name, args, specs, _spec_of(node))
    for node in stored:
        loop.output(values[node], per_row=group.nodes[node] != "full")
    return loop, operands


def _is_per_row(group: Group, shape: tuple[int, ...], behind: int) -> bool:
    """Tell whether an operand is the same along a row."""
    if behind:
        return True
    dims = len(group.space)
    padded = (*(1,) * (dims - len(shape)), *shape)
    if group.inner is not None:
        inner = range(dims - group.inner, dims)
        return all(padded[d] == 1 for d in inner) and (
            any(group.space[d] != 1 for d in inner) or not shape
        )
    last = next((d for d in reversed(range(dims)) if group.space[d] != 1), None)
    return not shape if last is None else padded[last] == 1
