"""A captured graph made ready to run by a backend, for all sizes that leave the graph as it is."""

from __future__ import annotations

import operator
import threading
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from tensorplay._tensor import Tensor
from tensorplay.autograd import grad_mode
from tensorplay.compiler.arrivals import Arrival, gradient_orders
from tensorplay.compiler.backends import BUILT_IN, lookup_backend
from tensorplay.compiler.capture import Captured
from tensorplay.compiler.creation import draws
from tensorplay.compiler.guards import same
from tensorplay.compiler.histories import ancestors
from tensorplay.compiler.keeping import depends_on_owners
from tensorplay.compiler.partition import Parts, checks, owned, partition, without
from tensorplay.compiler.watch import Guard
from tensorplay.graph.effects import write, write_part
from tensorplay.graph.graph import Graph
from tensorplay.graph.graph_module import GraphModule
from tensorplay.graph.node import Node, is_effect
from tensorplay.graph.order import Order, order_of
from tensorplay.graph.passes import changes_nothing, is_view, optimise
from tensorplay.ops.operator import Operator

__all__ = ["Family", "Origin", "Program", "Signature", "signature"]

Backend = Callable[..., Callable[..., Any]]


class Replay(NamedTuple):
    """What computes the results of a program again, for derivatives of its derivative.

    Attributes
    ----------
    graph
        Returns the results, without effects but for random numbers. None where one cannot be left
        out.
    reads
        Which of the inputs it reads.
    problem
        What the function does then.
    """

    graph: GraphModule | None
    reads: list[bool]
    problem: str


class Program:
    """The graphs of a capture and what a backend made of them.

    Attributes
    ----------
    forward, backward : GraphModule
        Forward returns roots, conditions and kept values; backward is None without gradients.
    """

    def __init__(
        self,
        captured: Captured,
        backend: Backend,
        keywords: dict[str, Any],
        examples: Sequence[Tensor],
        passes: bool,
    ) -> None:
        recorder = captured.recorder
        for node in recorder.graph.nodes:
            if changes_nothing(node):
                node.meta["idle"] = True
        #: Whether conditions are computed before the graph runs, step by step, and not by it: a run
        #: that is given up would leave something behind, or kernels round what Python looks at.
        apart = any(
            is_floating(c.node) for c in recorder.conditions
        ) or bool(recorder.conditions and any(
            n.op == "call_function" and is_effect(n) for n in captured.forward_nodes
        ))  # fmt: skip
        parts: Parts = partition(captured, conditions_apart=apart)
        constants = dict(captured.recorder.constants)
        self._backend, self._keywords = backend, keywords
        self.saved = parts.saved
        self.held = parts.held
        self.given = parts.given
        #: What is kept between forward and backward, and why.
        self.choice = parts.choice
        self.differentiable = captured.differentiable
        self.root_count = len(captured.roots)
        #: Where the kept values begin among the results of the forward graph.
        self.first_kept = self.root_count + (0 if apart else len(recorder.conditions))
        self.has_effects = bool(captured.writes) or any(
            n.meta.get("effect") for n in captured.recorder.graph.nodes
        )
        for graph in (parts.forward, parts.backward):
            if graph is not None and passes:
                optimise(graph, constants)
                _own_results(graph, self.first_kept)
        self.forward = GraphModule(constants, parts.forward, "Forward")
        self.backward = (
            None if parts.backward is None else GraphModule(constants, parts.backward, "Backward")
        )
        #: Whether each step of it is an operator of the library.
        self.backward_is_builtin = parts.backward is not None and all(
            n.target is write_part
            or n.target is operator.getitem
            or (isinstance(n.target, Operator) and n.target.schema.namespace is None)
            for n in parts.backward.nodes
            if n.op.startswith("call")
        )
        graph = captured.recorder.graph
        self._no_replay = None if not captured.wanted else recorder.histories.problem(captured)
        self.computes_only = (
            not self.has_effects
            and not captured.outside_writes
            and all(
                n.op != "call_function"
                or n.target is operator.getitem
                or (isinstance(n.target, Operator) and not is_effect(n))
                or n.target is write_part
                for n in graph.nodes
            )
        )
        self.elements = max(
            (n.meta["val"]._array.size for n in graph.nodes
             if isinstance(n.meta.get("val"), Tensor)), default=0,
        )  # fmt: skip
        #: Gives the conditions alone, None where the forward graph returns them.
        self.check: Callable[..., Any] | None = None
        check: GraphModule | None = None
        if apart:
            check = GraphModule(constants, checks(captured), "Check")
            self.check = check.forward
        #: Whether the numbers of steps that change nothing are no part of it.
        self.is_without_idle_steps = not any(
            "idle" in n.meta
            for module in (self.forward, self.backward, check) if module is not None
            for n in module.graph.nodes
        )  # fmt: skip
        self._lock = threading.Lock()
        self._backward_call: Callable[..., Any] | None = None
        self._constants = constants
        self._replay: Replay | None = None
        self._orders: dict[Any, list[Order | None]] = {}
        self._partial: dict[Any, tuple[Callable[..., Any], list[bool]]] = {}
        self.call = self._made(self.forward, examples)

    def _made(self, module: GraphModule, examples: Sequence[Tensor]) -> Callable[..., Any]:
        """Return what the backend makes of a graph."""
        count = len(module.graph.output_node().args[0])  # before the backend changes it
        with grad_mode.no_grad():
            call: Any = self._backend(module, list(examples), **self._keywords)
        name = getattr(self._backend, "__name__", self._backend)
        if not callable(call):
            message = (
                f"[compile] backend {name!r}: expected a function for the graph, got "
                f"{type(call).__name__}. Write `return gm.forward` at its end."
            )
            raise TypeError(message)
        function: Callable[..., Any] = call
        if self._backend in map(lookup_backend, BUILT_IN):
            return function
        return _counted(function, count, name)

    def _gradients(self) -> GraphModule:
        if self.backward is None:
            message = "[compile] no result of this program has a gradient."
            raise RuntimeError(message)
        return self.backward

    def backward_without(
        self, examples: Sequence[Tensor], missing: tuple[int, ...]
    ) -> tuple[Callable[..., Any], list[bool]]:
        """Return the backward function for results some of which have no gradient.

        Parameters
        ----------
        examples
            Its arguments, zeros in place of what is missing.
        missing
            Which of them are.

        Returns
        -------
        callable
            Takes all of `examples`.
        list of bool
            Which of the wanted inputs have a gradient.
        """
        shapes = tuple([x._array.shape for x in examples])
        with self._lock:
            found = self._partial.get(missing) or self._partial.get((missing, shapes))
            if found is None:
                graph, there, sized = without(self._gradients().graph, missing)
                module = GraphModule(dict(self._constants), graph, "Backward")
                call = self._made(module, examples)
                kept = iter(there)
                found = call, [given and next(kept) for given in self.given]
                self._partial[(missing, shapes) if sized else missing] = found
        return found

    def orders(
        self, arrivals: tuple[Arrival | None, ...], arguments: Sequence[Tensor]
    ) -> list[Order | None]:
        """Return how the gradients of the wanted inputs lie, for arguments that lie so.

        Parameters
        ----------
        arrivals
            How the gradients of the results lie.
        arguments
            All arguments of the backward graph, which are tried the first time.
        """
        found = self._orders.get(arrivals)
        if found is None:
            orders = iter(gradient_orders(self._gradients(), arguments))
            found = self._orders[arrivals] = [next(orders) if g else None for g in self.given]
        return found

    def replay(self) -> Replay:
        """Return what computes the results again."""
        if self._replay is None:
            self._replay = self._replayed()
        return self._replay

    def _replayed(self) -> Replay:
        source = self.forward.graph
        roots = list(source.output_node().args[0])[: self.root_count]
        # All draws, in their order: each gives the numbers that it gave.
        needed = ancestors([*roots, *filter(draws, source.nodes)])
        written = {n.args[0] for n in source.nodes if n.target is write}
        if written & needed:
            return Replay(None, [], "writes in place into what it reads")
        for node in needed:
            if node.op == "call_function" and is_effect(node) and not draws(node):
                problem = "calls an operator with effects whose result it returns or reads"
                return Replay(None, [], problem)
        if self._no_replay is not None:
            return Replay(None, [], self._no_replay)
        graph = Graph()
        known: dict[Node, Node] = {}
        for node in source.nodes:
            if node.op == "placeholder" or (node in needed and node.op != "output"):
                known[node] = graph.node_copy(node, known.__getitem__)
        graph.output(tuple([known[r] for r in roots]))
        reads = [n in needed for n in source.nodes if n.op == "placeholder"]
        return Replay(GraphModule(dict(self._constants), graph, "Replay"), reads, "")

    def backward_call(self, examples: Sequence[Tensor]) -> Callable[..., Any]:
        """Return the backward function, which is made when it is first needed."""
        if self._backward_call is None:
            with self._lock:
                if self._backward_call is None:
                    self._backward_call = self._made(self._gradients(), examples)
        return self._backward_call


def _counted(call: Callable[..., Any], count: int, name: Any) -> Callable[..., Any]:
    """Return a function of a user's backend that checks how many results there are."""

    def counted(*tensors: Any) -> Any:
        results = call(*tensors)
        if isinstance(results, (tuple, list)) and len(results) == count:
            return results
        got = (
            f"{type(results).__name__} of {len(results)}"
            if isinstance(results, (tuple, list)) else type(results).__name__
        )  # fmt: skip
        message = (
            f"[compile] backend {name!r}: expected a tuple of {count} from the function for the "
            f"graph, got {got}. Return what gm.forward returns."
        )
        raise TypeError(message)

    report = getattr(call, "report", None)
    if report is not None:
        vars(counted)["report"] = report
    return counted


def is_floating(node: Node) -> bool:
    """Tell whether what a node gives is rounded."""
    kind = node.meta["val"].dtype
    return bool(kind.is_floating_point or kind.is_complex)


def _own_results(graph: Graph, count: int) -> None:
    """See that passes left each of the first results on memory of its own."""
    output = graph.output_node()
    nodes = list(output.args[0])
    head = nodes[:count]
    if any(n.op in {"placeholder", "get_attr"} or is_view(n) for n in head) or len(
        set(head)
    ) != len(head):
        with graph.inserting_before(_first_write(graph, output)):
            head = owned(graph, head)
        output.args = ((*head, *nodes[count:]),)


def _first_write(graph: Graph, output: Node) -> Node:
    return next((n for n in graph.nodes if n.target is write), output)


class Family:
    """What one structure of graphs is made into: one program that serves all sizes.

    A graph whose steps take sizes as arguments (``x.expand(n, 8)``) is handed to the backend once
    for each set of these; it finds its kernels again. Steps that change nothing, as a reshape to
    the shape that is there, are dropped, and their numbers with them.

    Parameters
    ----------
    shape
        The signature of the first capture.
    origin
        What that depended on besides sizes: see `serves`.
    exact
        Whether sizes count by their value: ``dynamic=False``.
    """

    def __init__(self, shape: Signature, origin: Origin, *, exact: bool) -> None:
        symbols: dict[int, int] = {}
        self.shape, self.origin = shape, origin
        known = {n for n, is_size in zip(shape.sizes, shape.are_sizes, strict=True) if is_size}
        #: For each number, itself (0, 1, what is no size, or all if they are exact) or the number
        #: of a symbol.
        self.pattern = [
            (True, n) if exact or n < 2 or not (is_size or n in known)
            else (False, symbols.setdefault(n, len(symbols)))
            for n, is_size in zip(shape.sizes, shape.are_sizes, strict=True)
        ]  # fmt: skip
        self.floats = {shape.floats}
        self._variants: dict[Numbers, Program] = {}

    @property
    def programs(self) -> list[Program]:
        """The programs, one for each set of numbers that it takes."""
        return list(self._variants.values())

    def program(self, shape: Signature) -> Program | None:
        """Return the program for a capture that the family serves, None if there is none yet."""
        numbers = shape.arguments, shape.floats
        return self._variants.get((*numbers, None)) or self._variants.get((*numbers, shape.idle))

    def add(self, shape: Signature, program: Program) -> None:
        """Keep the program of a capture."""
        idle = None if program.is_without_idle_steps else shape.idle
        self._variants[shape.arguments, shape.floats, idle] = program

    def drop(self, programs: Collection[Program]) -> None:
        """Forget programs, but for the last one of the family."""
        for numbers, program in list(self._variants.items()):
            if program in programs and len(self._variants) > 1:
                del self._variants[numbers]

    def take_over(self, other: Family) -> dict[Program, Program]:
        """Take what another family has; return which programs stand for others from now on."""
        self.floats |= other.floats
        return {
            program: mine
            for numbers, program in other._variants.items()
            if (mine := self._variants.setdefault(numbers, program)) is not program
        }

    def serves(self, shape: Signature, origin: Origin) -> bool:
        """Tell whether a capture is the family's, with other sizes.

        Sizes follow the pattern: equal ones are equal, 0 and 1 stay themselves. Other numbers may
        differ, such as ``n / (n - 1)``, where they must have followed the sizes: nothing else has
        changed, neither arguments, nor what guards look at, nor a decided value, and they are not
        two numbers that stand in the code, between which it has chosen.
        """
        if len(shape.sizes) != len(self.pattern):
            return False
        known: dict[int, int] = {}
        same_numbers = shape.floats in self.floats
        literals = self.origin.literals | origin.literals
        if not same_numbers and any(
            one != two and one in literals and two in literals
            for one, two in zip(shape.floats, self.shape.floats, strict=True)
        ):
            return False
        for n, is_size, (literal, x) in zip(
            shape.sizes, shape.are_sizes, self.pattern, strict=True
        ):
            if (n == x) if literal else (known.setdefault(x, n) == n):
                continue
            if is_size or (literal and repr(n) in literals and repr(x) in literals):
                return False
            same_numbers = False
        if not (same_numbers or self.origin.is_like(origin)):
            return False
        self.floats.add(shape.floats)
        return True


#: Whole and floating numbers among the arguments of steps, and those of steps that change nothing,
#: None where these were dropped.
Numbers = tuple[tuple[int | None, ...], tuple[str, ...], tuple[int, ...] | None]


@dataclass(frozen=True)
class Origin:
    """What a capture depended on, apart from sizes.

    Attributes
    ----------
    call
        The kind of the call.
    guards
        What was read from outside, by where it was.
    decisions
        The values that Python asked for.
    literals
        The numbers that stand in the code.
    """

    call: Any
    guards: dict[Any, Guard]
    decisions: tuple[bytes, ...]
    literals: set[str]

    def is_like(self, other: Origin) -> bool:
        """Tell whether nothing but sizes differs."""
        return (
            self.call == other.call
            and self.decisions == other.decisions
            and self.guards.keys() == other.guards.keys()
            and all(
                isinstance(g.value, Tensor) or same(g.value, other.guards[place].value)
                for place, g in self.guards.items()
                if g.kind not in {"content", "names", "cache"}
            )
            and all(
                _same_pinned(g.value, other.guards[place].value)
                for place, g in self.guards.items()
                if g.kind in {"content", "names"}
            )
        )


def _same_pinned(one: Any, two: Any) -> bool:
    """Tell whether two contents that guards remember are the same objects and constants."""
    if isinstance(one, (tuple, list)):
        return type(one) is type(two) and len(one) == len(two) and all(map(_same_pinned, one, two))
    return same(one, two)


class Signature(NamedTuple):
    """What a capture is apart from numbers, these, and those among arguments.

    `are_sizes` tells which of the numbers are sizes; others may happen to be one. `idle` are the
    whole numbers among the arguments of steps that change nothing; `arguments` has those of others,
    and None for each of these.
    """

    structure: Any
    sizes: tuple[int, ...]
    are_sizes: tuple[bool, ...]
    arguments: tuple[int | None, ...]
    idle: tuple[int, ...]
    floats: tuple[str, ...]


_SIZES: Final = frozenset({
    *("size", "shape", "sizes", "split_sizes", "start", "stop", "end", "length", "classes"),
    *("num_classes", "s", "n", "m", "steps"),
})  # fmt: skip


def signature(captured: Captured) -> Signature:
    """Return what tells whether one program serves two captures."""
    numbers: dict[Node, int] = {}
    sizes: list[int] = []
    are_sizes: list[bool] = []
    arguments: list[int | None] = []
    idle: list[int] = []
    floats: list[str] = []

    def value(v: Any) -> Any:
        if v.__class__ is tuple:
            return tuple([value(x) for x in v])
        array = v._array
        shape = array.shape
        sizes.extend(shape)
        are_sizes.extend([True] * len(shape))
        if v.is_contiguous():
            return (v._dtype, len(shape), True)
        sizes.extend(v.stride())
        are_sizes.extend([True] * len(shape))
        return (v._dtype, len(shape), order_of(shape, array.strides) or False)

    def argument(a: Any, name: str | None) -> Any:
        kind = a.__class__
        if kind is Node:
            return ("node", numbers[a])
        if kind is int:
            sizes.append(a)
            are_sizes.append(name in _SIZES)
            arguments.append(None if is_idle else a)
            if is_idle:
                idle.append(a)
            return "number"
        if isinstance(a, tuple) or kind is list:
            return (kind, tuple([argument(x, name) for x in a]))
        if kind is dict:
            return tuple([(k, argument(x, k)) for k, x in a.items()])
        if kind is float:
            floats.append(repr(a))
            return "floating number"
        if kind is complex:
            return (kind, repr(a))
        if isinstance(a, (int, str, bytes, type(None))):
            return (kind, a)
        return ("object", _Identity(a))

    is_idle = False  # whether the step changes nothing
    rows: list[Any] = []
    constants = captured.recorder.constants
    for number, node in enumerate(captured.recorder.graph.nodes):
        numbers[node] = number
        target: Any = node.target
        if node.op == "get_attr":
            held = constants[node.target]
            array = held._array
            # A program holds its constants: they are the same in all that it serves, sizes too.
            here = (array.shape, array.strides, array.tobytes())
            target = here if array.nbytes <= 4096 else _Identity(held)
        elif node.op == "placeholder":
            target = None
        else:
            target = _Identity(target)
        names = getattr(node.target, "names", None)
        args = node.args
        is_idle = changes_nothing(node)
        rows.append((
            node.op,
            target,
            tuple([argument(a, names[i] if names else "size") for i, a in enumerate(args)]),
            argument(node.kwargs, None),
            value(node.meta["val"]) if "val" in node.meta else None,
            node.meta.get("effect", False),
        ))  # fmt: skip
    ends = (
        tuple([numbers[r.node] for r in captured.roots]),
        tuple(captured.differentiable),
        tuple([numbers[c.node] for c in captured.recorder.conditions]),
        tuple([(i, numbers[n]) for i, n in captured.writes]),
        tuple(captured.outside_writes),
        tuple([numbers[t] for t in captured.tangents]),
        tuple(captured.wanted),
        tuple([None if g is None else numbers[g] for g in captured.gradients]),
        tuple([x.leaf._requires_grad for x in captured.inputs]),
        # What is kept may differ for inputs that are held for second derivatives anyway.
        tuple([x.history is None for x in captured.inputs]) if depends_on_owners(captured) else (),
    )
    return Signature(
        (tuple(rows), ends),
        tuple(sizes),
        tuple(are_sizes),
        tuple(arguments),
        tuple(idle),
        tuple(floats),
    )


class _Identity:
    """An object that equals itself only, and is held so that it stays the one it is."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def __hash__(self) -> int:
        return id(self.value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Identity) and other.value is self.value
