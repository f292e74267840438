"""The backend ``cpp``: a graph as kernels in C++ and calls of operators that stay as they are."""

from __future__ import annotations

import functools
import itertools
import linecache
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from tensorplay import _native
from tensorplay._quiet import restore, silence
from tensorplay._tensor import Tensor, wrap
from tensorplay.autograd.inplace import check_writable
from tensorplay.compiler.cpp.array_calls import ArrayCall, array_calls
from tensorplay.compiler.cpp.build import Library, is_new, library_of
from tensorplay.compiler.cpp.codegen import Kernel, generate, translation_unit
from tensorplay.compiler.cpp.ir import Loop
from tensorplay.compiler.cpp.launch import Destination, Shape, bind
from tensorplay.compiler.cpp.partition import (
    Group,
    build_loop,
    effects_in_order,
    partition,
    spec,
)
from tensorplay.compiler.cpp.report import Region, Report
from tensorplay.compiler.layouts import relaid
from tensorplay.graph.effects import write
from tensorplay.graph.graph_module import GraphModule, look_up
from tensorplay.graph.node import Node, map_arg, target_name
from tensorplay.graph.order import order_of
from tensorplay.graph.passes import is_view
from tensorplay.ops.operator import OPERATORS
from tensorplay.ops.primitive import Primitive

__all__ = ["CompiledGraph", "cpp"]

#: What runs by itself because a library or nothing but a view does the work.
_LIBRARY: Final = frozenset((
    "matmul", "mm", "bmm", "mv", "dot", "outer", "addmm", "addmv", "baddbmm", "linear",
    "_einsum", "_convolution", "_convolution_to_input", "_convolution_to_weight", "reshape",
    "view", "expand", "permute", "transpose", "t", "squeeze", "unsqueeze", "select", "slice",
    "_slice", "narrow", "as_strided", "_as_strided", "diagonal", "unbind", "flatten",
    "unflatten", "movedim", "getitem", "write", "copy",
))  # fmt: skip
_UNNAMED: Final = "unnamed__"
_numbers = itertools.count()


@dataclass(frozen=True)
class _Step:
    """A group as it is called: its operands, and each output with the write that it is for."""

    group: Group
    kernel: Kernel
    shape: Shape
    operands: tuple[tuple[Node, int], ...]
    outputs: tuple[tuple[Node, Node | None], ...]

    @property
    def inputs(self) -> list[Node]:
        """The nodes that it reads."""
        return list(dict.fromkeys(n for n, _ in self.operands))

    @property
    def fresh(self) -> list[Node]:
        """The nodes whose values come back as new arrays."""
        return [n for n, w in self.outputs if w is None]

    @property
    def writes(self) -> list[tuple[Node, Node]]:
        """The values that are written to an input, with the node that says so."""
        return [(n, w) for n, w in self.outputs if w is not None]


class CompiledGraph:
    """A graph that runs as kernels; call it with tensors, it returns a tuple of tensors.

    Attributes
    ----------
    report : Report
        What became of the nodes.
    """

    def __init__(self, run: Callable[..., tuple[Any, ...]], report: Report) -> None:
        self._run = run
        self.report = report

    def __call__(self, *tensors: Tensor) -> tuple[Any, ...]:
        """Run the graph."""
        return self._run(*tensors)


def cpp(
    gm: GraphModule,
    example_inputs: Sequence[Any] = (),
    *,
    strict_native: bool = False,
    name: str | None = None,
    **options: Any,
) -> CompiledGraph:
    """Compile a graph into fused C++ kernels.

    Parameters
    ----------
    gm
        The graph. Its nodes have their values on device meta in ``node.meta["val"]``.
    example_inputs
        Not looked at: kernels depend on numbers of dimensions, types and which sizes are 1.
    strict_native
        Refuse graphs with operators for which there is no C++.
    name
        What kernels are called.
    **options
        Those of other backends, which say nothing here.

    Returns
    -------
    CompiledGraph

    Raises
    ------
    RuntimeError
        `strict_native` is set and an operator would run in Python.
    MissingToolError
        There is no compiler and a kernel is not in the cache.
    BuildError
        The compiler refuses a kernel.
    """
    nodes = list(gm.graph.nodes)
    plan = _Plan(gm, nodes, name or "")
    regions = plan.regions()
    if strict_native:
        wrong = [r for r in regions if r.kind == "python"]
        if wrong:
            lines = "; ".join(f"{', '.join(r.nodes)} ({r.reason})" for r in wrong)
            message = (
                f"[compile] strict_native: {len(wrong)} regions fall back to Python: {lines}. "
                "Write strict_native=False to run them there."
            )
            raise RuntimeError(message)
    libraries = _libraries(list(plan.kernels.values()))
    run, code = plan.function(libraries)
    sources = tuple(dict.fromkeys(source for source, _ in libraries.values()))
    built = [library for _, library in libraries.values()]
    report = Report(
        regions,
        sources,
        sum(b.seconds for b in dict.fromkeys(built)) if built else 0.0,
        all(b.cached for b in built),
        tuple(str(w.args[0].name) for step in plan.steps.values() for _, w in step.writes),
        code,
    )
    return CompiledGraph(run, report)


def _libraries(kernels: Sequence[Kernel]) -> dict[str, tuple[str, Library]]:
    """Return source and library for each kernel's name: one library per number of lanes."""
    by_width: dict[int, dict[str, Kernel]] = {}
    for kernel in kernels:
        by_width.setdefault(kernel.widest, {})[kernel.name] = kernel
    sources = [translation_unit(tuple(group.values())) for group in by_width.values()]
    if sum(map(is_new, sources)) > 1:
        with ThreadPoolExecutor(len(sources)) as threads:
            built = list(threads.map(library_of, sources))
    else:
        built = [library_of(source) for source in sources]
    return {
        name: (source, library)
        for group, source, library in zip(by_width.values(), sources, built, strict=True)
        for name in group
    }


class _Plan:
    """The order of steps of one graph, and the text of the function that runs them."""

    def __init__(self, gm: GraphModule, nodes: list[Node], name: str) -> None:
        self.gm = gm
        self.calls = array_calls(nodes)
        merged = self._merged()
        self.merged = {n: merged[n] for n in nodes if n in merged}
        self.nodes = nodes = [n for n in nodes if n not in self.merged]
        self.name = "".join(c for c in name if c.isascii() and (c.isalnum() or c == "_"))
        self.output = nodes[-1]
        self.results: list[Any] = list(self.output.args[0])
        found = partition(nodes, set(self.merged.values()))
        self.reasons = found.reasons
        self.group_of = {n: g for g in found.groups for n in g.nodes}
        self.order = self._order()
        self.direct = self._direct_writes()
        self.steps: dict[int, _Step] = {}
        self.kernels: dict[str, Kernel] = {}  # by their source without a name
        names: dict[str, int] = {}
        for unit in self.order:
            if isinstance(unit, Group):
                self.steps[id(unit)] = self._step(unit, names)

    def _merged(self) -> dict[Node, Node]:
        """Return the nodes whose work a call on arrays does with its own, with the node of that."""
        found: dict[Node, Node] = {}
        for node, call in self.calls.items():
            stack = [n for n in node.all_input_nodes if n not in call.args]
            while stack:
                one = stack.pop()
                if one in call.args or any(u is not node and u not in found for u in one.users):
                    continue
                if one.op == "call_function":
                    found[one] = node
                    stack.extend(one.all_input_nodes)
        return found

    def _sources(self, unit: Node) -> list[Node]:
        """Return the nodes that a step reads."""
        call = self.calls.get(unit)
        if call is None or unit in self.group_of:
            return unit.all_input_nodes
        return [a for a in call.args if isinstance(a, Node)]

    # --- order ------------------------------------------------------------------------------------

    def _order(self) -> list[Node | Group]:
        """Return nodes and groups so that each comes after what it reads, writes at the end.

        Steps with effects keep their order.
        """
        earlier = effects_in_order(self.nodes)
        done: set[Node] = set()
        order: list[Node | Group] = []

        def visit(start: Node) -> None:
            stack: list[tuple[Node | Group, bool]] = [(self.group_of.get(start, start), False)]
            while stack:
                unit, ready = stack.pop()
                members = list(unit.nodes) if isinstance(unit, Group) else [unit]
                if members[0] in done:
                    continue
                if ready:
                    done.update(members)
                    order.append(unit)
                    continue
                stack.append((unit, True))
                inside = set(members)
                stack.extend(
                    (self.group_of.get(source, source), False)
                    for member in members
                    for source in (*self._sources(member), *earlier.get(member, ()))
                    if source not in inside and source not in done
                )

        for node in self.nodes:
            if node is not self.output and node.target is not write:
                visit(node)
        for node in self.nodes:
            if node.target is write:
                visit(node)
        return order

    def _direct_writes(self) -> dict[Node, Node]:
        """Return the writes, by node, that the kernel of their value does itself.

        That is the last step which computes anything: nothing afterwards reads what was there, by
        whatever view or alias.
        """
        computing = [u for u in self.order if isinstance(u, Group) or u.op == "call_function"]
        steps = [u for u in computing if isinstance(u, Group) or u.target is not write]
        if not steps or not isinstance(steps[-1], Group):
            return {}
        last = steps[-1]
        found: dict[Node, Node] = {}
        for node in self.nodes:
            if node.target is not write:
                continue
            destination, value = node.args
            there, new = spec(destination), spec(value)
            if (
                value in last.nodes
                and last.nodes[value] == "full"
                and destination.op == "placeholder"
                and there is not None
                and new is not None
                and (there.shape, there.dtype) == (new.shape, new.dtype)
                and destination not in {n.args[0] for n in found}
            ):
                found[node] = value
        return found

    def _step(self, group: Group, names: dict[str, int]) -> _Step:
        direct = [(v, w) for w, v in self.direct.items() if v in group.nodes]
        written = {w for _, w in direct}
        outputs: list[tuple[Node, Node | None]] = [
            (n, None) for n in group.nodes if self._leaves(n, group, written)
        ]
        outputs += direct
        loop, operands = build_loop(group, [n for n, _ in outputs])
        whole = group.inner == len(group.space)
        kernel = generate(_UNNAMED, loop, whole=whole)
        if kernel.partial:  # the outputs of its rows come first
            order = sorted(range(len(outputs)), key=lambda i: loop.outputs[i][1].per_row)
            outputs = [outputs[i] for i in order]
            loop.outputs = [loop.outputs[i] for i in order]
            kernel = generate(_UNNAMED, loop, whole=whole)
        kernel = self._named(kernel, group, names)
        inner = -1 if group.inner is None or kernel.partial else group.inner
        shape = Shape(
            inner,
            tuple(behind for _, behind in operands),
            tuple(group.nodes[n] == "kept" for n, _ in outputs),
            _cost(loop),
        )
        return _Step(group, kernel, shape, tuple(operands), tuple(outputs))

    def _named(self, kernel: Kernel, group: Group, names: dict[str, int]) -> Kernel:
        """Return the kernel with a name: that of an equal one if there is one."""
        found = self.kernels.get(kernel.source)
        if found is None:
            name = self._kernel_name(group, names)
            source = kernel.source.replace(_UNNAMED, name)
            found = self.kernels[kernel.source] = replace(kernel, name=name, source=source)
        # Numbers are no part of the source.
        return replace(found, numbers=kernel.numbers)

    @staticmethod
    def _leaves(node: Node, group: Group, besides: set[Node]) -> bool:
        """Tell whether a value is used outside of its group, other than by some nodes."""
        return any(user not in group.nodes and user not in besides for user in node.users)

    def _kernel_name(self, group: Group, names: dict[str, int]) -> str:
        words = [n.target.name.strip("_") for n in group.nodes if n.target.name not in _LIBRARY]
        short = "_".join(dict.fromkeys(words))[:40].rstrip("_") or "kernel"
        base = f"{self.name}_{short}" if self.name else short
        base = base if not base[0].isdigit() else f"k_{base}"
        number = names[base] = names.get(base, -1) + 1
        return f"{base}_{number}"

    # --- report -----------------------------------------------------------------------------------

    def regions(self) -> tuple[Region, ...]:
        found = []
        for unit in self.order:
            if isinstance(unit, Group):
                names = tuple(n.name for n in unit.nodes)
                operators = tuple(target_name(n.target) for n in unit.nodes)
                source = self.steps[id(unit)].kernel.source
                found.append(Region("kernel", names, operators, "", source))
            elif unit.op.startswith("call"):
                called = target_name(unit.target)
                kind = "library" if called.partition(".")[0] in _LIBRARY else "python"
                parts = [*(n for n, by in self.merged.items() if by is unit), unit]
                reason = self.reasons.get(unit, "")
                if unit in self.direct:
                    reason = "its kernel writes there"
                names = tuple(n.name for n in parts)
                operators = tuple(target_name(n.target) for n in parts)
                found.append(Region(kind, names, operators, reason))
        return tuple(found)

    # --- the function -----------------------------------------------------------------------------

    def function(
        self, libraries: dict[str, tuple[str, Library]]
    ) -> tuple[Callable[..., tuple[Any, ...]], str]:
        """Return the function that runs the steps, and its text."""
        writer = _Writer(self.gm.root)
        inputs = [n for n in self.nodes if n.op == "placeholder"]
        direct, tensors, arrays = self._forms()
        lines = []
        for node in inputs:
            if node in arrays:
                x = writer.name(node)
                lines += [f"if {x}._base is not None:", f"    {x}._synchronise()"]
                lines.append(f"{writer.array(node)} = {x}._array")
        last = self._last_uses()
        for unit in self.order:
            made = list(unit.nodes) if isinstance(unit, Group) else [unit]
            if isinstance(unit, Group):
                step = self.steps[id(unit)]
                lines += self._kernel_lines(step, writer, libraries[step.kernel.name][1], tensors)
                made = step.fresh
            elif unit.op == "get_attr":
                value = look_up(self.gm.root, str(unit.target))
                lines.append(f"{writer.name(unit)} = {writer.constant(value)}")
            elif unit in direct:
                lines.append(f"{writer.array(unit)} = {writer.array_call(direct[unit])}")
            elif unit.op.startswith("call") and unit not in self.direct:
                lines.append(f"{writer.name(unit)} = {writer.call(unit)}")
            if not isinstance(unit, Group) and unit.op != "placeholder" and unit not in direct:
                if unit in arrays:
                    lines.append(f"{writer.array(unit)} = {writer.name(unit)}._array")
            else:
                lines += [
                    f"{writer.name(n)} = {writer.wrapped(n)}"
                    for n in made
                    if n in tensors and n.op != "placeholder"
                ]
            dead = last.get(id(unit), ())
            names = [writer.name(n) for n in dead if n in tensors or n not in arrays]
            names += [writer.array(n) for n in dead if n in arrays]
            if names:
                lines.append(f"del {', '.join(names)}")
        results = ", ".join(writer.value(r) for r in self.results)
        lines.append(f"return ({results}{',' if self.results else ''})")
        if any(not call.is_view for call in direct.values()):
            lines = [
                f"token = {writer.constant(silence)}()",
                *("try:", *_indented(lines)),
                *("finally:", f"    {writer.constant(restore)}(token)"),
            ]
        head = f"def run({', '.join(writer.name(n) for n in inputs)}):"
        text = "\n".join([head, *_indented(lines)]) + "\n"
        filename = f"<tensorplay kernels {next(_numbers)}>"
        scope = writer.scope
        exec(compile(text, filename, "exec"), scope)  # noqa: S102 - text made from a graph
        linecache.cache[filename] = (len(text), None, text.splitlines(keepends=True), filename)
        run = scope["run"]
        if _native.core is not None and self._has_calls():
            # Memory of what operators return by NumPy is kept between calls as that of kernels is.
            run = functools.partial(_native.core.call_keeping, run)
        return run, text

    def _forms(self) -> tuple[dict[Node, ArrayCall], set[Node], set[Node]]:
        """Return the calls that run on arrays, and which values are needed as tensors, as arrays.

        A view that is needed as a tensor is made of one, so that it is known to be a view.
        """
        found = {n: call for n, call in self.calls.items() if n in self.order}
        tensors: set[Node] = {n for n in self.results if isinstance(n, Node)}
        for unit in reversed(self.order):
            if isinstance(unit, Group) or not unit.op.startswith("call") or unit in self.direct:
                continue
            if unit in found and unit in tensors and found[unit].is_view:
                del found[unit]
            if unit not in found:
                tensors.update(unit.all_input_nodes)
        arrays = {n for s in self.steps.values() for n, _ in s.operands}
        arrays.update(n for s in self.steps.values() for n in s.fresh)
        arrays.update(a for c in found.values() for a in c.args if isinstance(a, Node))
        return found, tensors, arrays | found.keys()

    def _has_calls(self) -> bool:
        """Tell whether a step is a call that makes arrays."""
        return any(
            not isinstance(u, Group)
            and u.op.startswith("call")
            and u not in self.direct
            and not is_view(u)
            for u in self.order
        )

    def _last_uses(self) -> dict[int, list[Node]]:
        """Return which computed values are read for the last time by which step."""
        defined: dict[Node, int] = {}
        for unit in self.order:
            if isinstance(unit, Group):
                step = self.steps[id(unit)]
                defined.update(dict.fromkeys(step.fresh, id(unit)))
            elif unit.op.startswith("call") and unit not in self.direct:
                defined[unit] = id(unit)
        last: dict[Node, int] = dict(defined)
        for unit in self.order:
            if isinstance(unit, Group):
                sources = self.steps[id(unit)].inputs
            else:
                sources = [] if unit in self.direct else self._sources(unit)
            last.update((n, id(unit)) for n in sources if n in defined)
        found: dict[int, list[Node]] = {}
        kept = {r for r in self.results if isinstance(r, Node)}
        for node, where in last.items():
            if node not in kept:
                found.setdefault(where, []).append(node)
        return found

    def _kernel_lines(
        self, step: _Step, writer: _Writer, library: Library, tensors: set[Node]
    ) -> list[str]:
        arguments = [writer.array(n) for n, _ in step.operands]
        destinations = []
        lines = []
        for position, (_, w) in enumerate(step.outputs):
            if w is not None:
                target = writer.name(w.args[0])
                destinations.append(Destination(position, len(arguments)))
                arguments.append(f"{target}._array")
                lines.append(f"{writer.constant(check_writable)}({target}, 'write')")
        run = writer.constant(bind(library, step.kernel, step.shape, tuple(destinations)))
        back = [*step.fresh, *(v for v, _ in step.writes)]
        inputs = ", ".join(
            writer.name(n) if n in tensors or n.op == "placeholder" else writer.wrapped(n)
            for n in step.inputs
        )
        targets = ", ".join(writer.name(n) for n in back)
        turned = any(not n.meta["val"].is_contiguous() for n in (*step.inputs, *step.fresh))
        lines += [
            f"made = {run}({', '.join(arguments)})",
            "if made is None:",
            f"    ({targets},) = {self._fallback(step, writer, back)}({inputs})",
            *(f"    {writer.array(n)} = {writer.name(n)}._array" for n in step.fresh),
            *(
                f"    {writer.constant(write)}({writer.name(w.args[0])}, {writer.name(v)})"
                for v, w in step.writes
            ),
            *(("else:",) if back else ()),
            *((f"    ({', '.join(map(writer.array, step.fresh))},) = made",) if step.fresh else ()),
            *(f"    {writer.name(w.args[0])}._bump_version()" for _, w in step.writes),
            *(f"{writer.name(w)} = {writer.name(w.args[0])}" for _, w in step.writes),
        ]
        for node in step.fresh if turned else ():
            order, a = _order(node), writer.array(node)
            known = {"None": "c_contiguous", "(1, 0)": "f_contiguous"}.get(repr(order))
            again = f"{a} = {writer.constant(relaid)}({a}, {order!r})"
            lines.append(f"if not {a}.flags.{known}: {again}" if known else again)
        return lines

    @staticmethod
    def _fallback(step: _Step, writer: _Writer, back: list[Node]) -> str:
        """Return the name of a function that runs the operators of a group one after the other."""
        lines = [f"def eager({', '.join(writer.name(n) for n in step.inputs)}):"]
        lines += [f"    {writer.name(n)} = {writer.call(n)}" for n in step.group.nodes]
        lines.append(f"    return ({', '.join(writer.name(n) for n in back)},)")
        scope = dict(writer.scope)
        exec(compile("\n".join(lines), "<tensorplay operators>", "exec"), scope)  # noqa: S102 - of a graph
        return writer.constant(scope["eager"])


def _indented(lines: list[str]) -> list[str]:
    return [f"    {line}" for line in lines]


def _holds_nodes(value: Any) -> bool:
    found: list[Node] = []

    def see(node: Node) -> Node:
        found.append(node)
        return node

    map_arg(value, see)
    return bool(found)


def _order(node: Node) -> tuple[int, ...] | None:
    """Return how the result of a node lies: as the operator lays it out."""
    array = node.meta["val"]._array
    return order_of(array.shape, array.strides)


def _cost(loop: Loop) -> int:
    """Return what one element takes, in additions."""
    return max(1, sum(10 if v.heavy else 1 for v in loop.values if v.varies) // 3)


class _Writer:
    """Names of values and constants in the text of a function."""

    def __init__(self, root: Any) -> None:
        self._root = root
        self.scope: dict[str, Any] = {}
        self._constants: dict[int, str] = {}

    def name(self, node: Node) -> str:
        """Return the name of a value as a tensor."""
        return f"{node.name}_v"

    def array(self, node: Node) -> str:
        """Return the name of a value as an array."""
        return f"{node.name}_a"

    def wrapped(self, node: Node) -> str:
        """Return the text of a tensor on the array of a value."""
        dtype = self.constant(node.meta["val"].dtype)
        return f"{self.constant(wrap)}({self.array(node)}, {dtype})"

    def array_call(self, call: ArrayCall) -> str:
        """Return the text of a call on arrays."""
        arguments = [self.array(a) if isinstance(a, Node) else self.constant(a) for a in call.args]
        text = f"{self.constant(call.function)}({', '.join(arguments)})"
        return f"{self.constant(np.asarray)}({text})" if call.is_number else text

    def constant(self, value: Any) -> str:
        if value is None or isinstance(value, (bool, int, str)):
            return repr(value)
        found = self._constants.get(id(value))
        if found is None:
            found = self._constants[id(value)] = f"c{len(self.scope)}"
            self.scope[found] = value
        return found

    def value(self, value: Any) -> str:
        """Return the text of an argument, which may be a container of nodes."""
        if isinstance(value, Node):
            return self.name(value)
        if not _holds_nodes(value):
            return self.constant(value)
        if type(value) is list:
            return f"[{', '.join(self.value(v) for v in value)}]"
        if type(value) is tuple:
            return f"({', '.join(self.value(v) for v in value)},)"
        if type(value) is dict:
            items = ", ".join(f"{k!r}: {self.value(v)}" for k, v in value.items())
            return f"{{{items}}}"
        if type(value) is slice:
            parts = ", ".join(self.value(v) for v in (value.start, value.stop, value.step))
            return f"slice({parts})"
        rebuilt = self.constant(type(value))
        parts = ", ".join(self.value(v) for v in value)
        return f"{rebuilt}({parts})" if hasattr(value, "_fields") else f"{rebuilt}(({parts},))"

    def call(self, node: Node) -> str:
        """Return the text of a node's call."""
        arguments = [self.value(a) for a in node.args]
        named = [f"{k}={self.value(v)}" for k, v in node.kwargs.items()]
        if node.op == "call_method":
            receiver, *rest = arguments
            return f"{receiver}.{node.target}({', '.join([*rest, *named])})"
        target = look_up(self._root, node.target) if node.op == "call_module" else node.target
        if isinstance(target, Primitive) and OPERATORS.get(target.name) is target:
            target = target.function  # what the operator calls itself
        return f"{self.constant(target)}({', '.join([*arguments, *named])})"
