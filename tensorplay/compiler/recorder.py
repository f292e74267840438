"""The capture of one run of a function: operators become nodes of a graph.

Nothing is computed. Each operator gives shapes and types by its rule and leaves a node; history is
recorded as in any run, so that gradients inside of the function, and of it, are captured the same
way. Where Python asks for a value (``if x.sum() > 0``), the part of the graph that computes it is
run on the tensors of the call, and the answer becomes a condition on the use of the graph.
"""

from __future__ import annotations

import operator
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from tensorplay import _dtype, random
from tensorplay._detours import watching
from tensorplay._tensor import MetaArray, Spec, Tensor, VersionCounter, spec_of, wrap
from tensorplay.autograd import forward_ad, grad_mode
from tensorplay.autograd.inplace import check_writable, rebase_history
from tensorplay.compiler.creation import CREATORS, RANDOM, REFUSED
from tensorplay.compiler.histories import Histories
from tensorplay.compiler.layouts import laid_out
from tensorplay.compiler.sources import is_library, user_line
from tensorplay.compiler.traced import Step, TracedArray, traced
from tensorplay.compiler.unwatched import Unwatched
from tensorplay.compiler.values import (
    fake_of,
    is_dual,
    meta_of,
    nodes_of,
    restored,
    share_history,
)
from tensorplay.graph.effects import FlatCall, MutatingCall, flat_results, write_part
from tensorplay.graph.errors import GraphCaptureError
from tensorplay.graph.graph import Graph
from tensorplay.graph.node import is_effect, map_arg
from tensorplay.graph.order import order_of
from tensorplay.graph.printing import runner
from tensorplay.library.custom_primitive import CustomPrimitive
from tensorplay.library.registry import lookup
from tensorplay.ops.dispatch import UNANSWERED
from tensorplay.ops.node import OTHER, TENSOR, TENSOR_LIST, bare_spec
from tensorplay.ops.operator import OPERATORS

if TYPE_CHECKING:
    from tensorplay.compiler.numbers import Numbers
    from tensorplay.graph.node import Node
    from tensorplay.ops.primitive import Primitive

__all__ = ["Condition", "Input", "Recorder"]

#: A list of more elements is not a condition on a graph but data.
MOST_ELEMENTS: Final = 64


@dataclass(eq=False)
class Input:
    """A tensor that the graph takes.

    Attributes
    ----------
    tensor
        The one of this call; later calls bring their own, unless it was found in a variable.
    stand_in
        What the function sees.
    leaf
        What gradients are taken of: the stand-in, or what it was made of.
    node
        The node of the graph.
    name
        What it is called in texts.
    """

    tensor: Tensor
    stand_in: Tensor
    leaf: Tensor
    node: Node
    name: str
    history: Any = None  # of the stand-in, before anything is written
    written: bool = False


@dataclass(frozen=True, eq=False)
class Condition:
    """A value that Python saw, under which alone the graph holds."""

    node: Node
    value: Any  # a NumPy array
    construct: str
    line: str | None


@dataclass(eq=False)
class Recorder:
    """Records one run.

    Parameters
    ----------
    known
        Tells whether a tensor was found in a variable that is guarded.
    is_outside
        Tells whether an object was there before the run.
    """

    known: Callable[[Tensor], bool] = lambda tensor: False
    is_outside: Callable[[Any], bool] = lambda value: False
    graph: Graph = field(default_factory=Graph)
    inputs: list[Input] = field(default_factory=list)
    conditions: list[Condition] = field(default_factory=list)
    constants: dict[str, Tensor] = field(default_factory=dict)
    problem: GraphCaptureError | None = None
    place: str | None = None  # of refusals that no line of the run is the reason for

    def __post_init__(self) -> None:
        self._by_id: dict[int, Tensor] = {}
        self._values: dict[Node, Any] = {}
        self._last_input: Node | None = None
        self._kept: list[Any] = []  # so that identities stay what they are
        self.paused = False
        self.repeats = True  # whether a run that failed may be repeated: no declared effects
        self.draws: list[random.Generator] = []  # what random numbers come from
        self.histories = Histories()
        self._has_history = False  # of some input
        self._is_inside = False  # of an operator that is recorded as others
        self.numbers: Numbers | None = None  # of arguments that are new in each call

    # --- refusals ---------------------------------------------------------------------------

    def refuse(self, what: str, advice: str = "", line: str | None = None) -> GraphCaptureError:
        """Return the error for something that no graph can hold; the capture has failed then."""
        line = line or self.place or user_line()
        where = "" if line is None else f" at {line}"
        error = GraphCaptureError(
            f"[compile] the function {what}{where}, which a graph cannot hold."
            + (f" {advice}" if advice else "")
        )
        if self.problem is None:
            self.problem = error
        return error

    def unwatched(self) -> Unwatched:
        """Return a context in which nobody looks at what the code reads."""
        return Unwatched()

    # --- inputs and constants ---------------------------------------------------------------

    def add_input(self, tensor: Tensor, name: str) -> Tensor:
        """Return what stands for a tensor from outside."""
        known = self._by_id.get(id(tensor))
        if known is not None:
            return known
        if tensor._base is not None:
            tensor._synchronise()
        if tensor._tangent is not None:
            raise self.refuse("uses a tensor with a tangent", "Forward mode is not captured.")
        if type(tensor._array) is not np.ndarray:
            raise self.refuse(f"uses a tensor on {tensor.device}")
        before = self.graph._root._next if self._last_input is None else self._last_input._next
        with self.graph._inserting(before):
            node = self.graph.placeholder(name)
        self._last_input = node
        spec = spec_of(tensor)
        node.meta["val"] = meta_of(spec)
        node.meta["requires_grad"] = tensor._requires_grad
        array = TracedArray(self, spec, node)
        leaf = traced(array, tensor._dtype, counter=VersionCounter())
        leaf._requires_grad = tensor._requires_grad
        self._has_history = self._has_history or leaf._requires_grad
        stand_in = leaf
        if leaf._requires_grad and tensor._grad_fn is not None:
            # Not a leaf outside, so no leaf here: it may be written.
            stand_in = traced(array, tensor._dtype, counter=leaf._counter)
            clone: Any = OPERATORS["clone"]
            clone._record([leaf], (stand_in,))
        array.owner = found = Input(tensor, stand_in, leaf, node, name, stand_in._grad_fn)
        self.inputs.append(found)
        self._by_id[id(tensor)] = stand_in
        self._kept.append(tensor)
        return stand_in

    def lift(self, tensor: Tensor) -> Tensor:
        """Return what stands for a tensor that an operator met."""
        if tensor._array.__class__ is TracedArray:
            if tensor._array.recorder is not self:
                raise self.refuse("uses a tensor of another capture")
            return tensor
        known = self._by_id.get(id(tensor))
        if known is not None:
            return known
        if self.known(tensor):
            return self.add_input(tensor, getattr(tensor, "_role", None) or "captured")
        made = watching.made
        if made is None or not any(x is tensor for x in made):
            raise self.refuse(
                f"uses a tensor {tensor.dtype.name}{list(tensor.shape)} that comes from somewhere "
                "no guard watches", "Pass it as an argument."
            )  # fmt: skip
        return self._constant(tensor)

    def _constant(self, tensor: Tensor) -> Tensor:
        """Return what stands for a tensor that the function made of nothing that changes."""
        if type(tensor._array) is MetaArray:
            raise self.refuse("uses a tensor on device meta")
        if self.is_outside(tensor._array) or self.is_outside(tensor._array.base):
            raise self.refuse("makes a tensor that shares the memory of a NumPy array")
        number = len(self.constants)
        name = f"constant_{number}"
        held = wrap(tensor._array, tensor._dtype)
        held._requires_grad = False
        self.constants[name] = held
        node = self.graph.get_attr(name)
        spec = spec_of(tensor)
        node.meta["val"] = meta_of(spec)
        array = TracedArray(self, spec, node)
        array.owner = held
        result = traced(array, tensor._dtype, counter=VersionCounter())
        share_history(result, tensor)
        self._by_id[id(tensor)] = result
        self._kept.append(tensor)
        return result

    # --- operators --------------------------------------------------------------------------

    def call(self, primitive: Primitive, values: list[Any]) -> Any:
        """Answer for an operator on checked arguments."""
        if self.numbers is not None and not self.paused:
            primitive, values = self.numbers.as_tensors(primitive, values)
        if self.paused or not self._concerns(values):
            # Tensors that the function made itself, of nothing that changes: computed once.
            return self._plainly(primitive, values)
        if primitive.schema.namespace is not None:
            return self._call(primitive, values)
        with self.unwatched():  # nothing of the user's runs, and a traced interpreter is slow
            return self._call(primitive, values)

    def _call(self, primitive: Primitive, values: list[Any]) -> Any:
        values, record = self._lifted(primitive, values)
        if isinstance(primitive, CustomPrimitive):
            outs = self._custom(primitive, values)
        elif primitive.decomposition is not None:
            # The steps are those that fuse; the history is the operator's own, as when it runs.
            outer, self._is_inside = self._is_inside, True
            try:
                with grad_mode.no_grad():
                    outs = primitive.decomposition(*values)
            finally:
                self._is_inside = outer
        else:
            outs = self._record_call(primitive, values)
        if record and grad_mode.state.enabled:
            primitive._record(values, outs if type(outs) is tuple else (outs,))
        if is_dual(values):  # forward mode inside of the function
            primitive._push_forward(values, outs if type(outs) is tuple else (outs,))
        if self._has_history and not self._is_inside:
            results = outs if type(outs) is tuple else (outs,)
            self.histories.note(values, results, recorded=grad_mode.state.enabled)
        return outs

    def _concerns(self, values: list[Any]) -> bool:
        """Tell whether a call belongs to the graph."""
        some = False
        for value in values:
            for x in value if value.__class__ is list else (value,):
                if isinstance(x, Tensor):
                    some = True
                    if x._array.__class__ is TracedArray or id(x) in self._by_id:
                        return True
                    if type(x._array) is np.ndarray and self.known(x):
                        return True
        return not some  # what makes numbers of nothing, such as random ones

    def _plainly(self, primitive: Primitive, values: list[Any]) -> Any:
        outer, watching.recorder = watching.recorder, None
        try:
            return type(primitive).apply(primitive, tuple(values))
        finally:
            watching.recorder = outer

    def _lifted(self, primitive: Primitive, values: list[Any]) -> tuple[list[Any], bool]:
        lifted = list(values)
        record = False
        for i, kind, _ in primitive.plan:
            value = values[i]
            if kind == TENSOR:
                if isinstance(value, Tensor):
                    value = lifted[i] = self.lift(value)
                    if value._base is not None:
                        value._synchronise()
                    record = record or value._requires_grad
            elif kind == TENSOR_LIST:
                found = lifted[i] = [None if t is None else self.lift(t) for t in value]
                record = record or any(t is not None and t.requires_grad for t in found)
            elif kind == OTHER:
                continue
        return lifted, record

    def _record_call(self, primitive: Primitive, values: list[Any]) -> Any:
        """Leave a node for an operator, and return its results without history."""
        try:
            result = primitive.rule(*primitive.specs(values))
        except NotImplementedError as error:
            if "device meta" not in str(error):
                raise
            raise self.refuse(
                f"calls {primitive.name.strip('_')}(), whose result has a size that depends on "
                "values,", "Leave it outside: what comes before and after can be compiled apart."
            ) from error  # fmt: skip
        many = not isinstance(result, Spec)
        specs = tuple(result) if many else (result,)
        if not primitive.view:
            specs = laid_out(primitive, values, specs)
        node = self._node(primitive, values, specs if many else specs[0])
        for i in primitive.generators:
            self._draw(values[i])
        nodes = self._parts(node, specs) if many else [node]
        rest = tuple(values[1:])  # one of each call, by which `Binding` tells calls apart
        outs = []
        for number, (spec, part) in enumerate(zip(specs, nodes, strict=True)):
            if primitive.view and spec.strides is not None:
                source = values[0]
                base: TracedArray = source._array
                if primitive.name == "_as_strided" and not (
                    isinstance(base.memory.owner, Input) and base.memory.version == 0
                ):
                    raise self.refuse("looks at the memory of a result by as_strided")
                step: Step = (primitive, rest, number if many else None)
                array = TracedArray(self, spec, part, base.memory, (*base.steps, step))
                out = traced(array, spec.dtype)
                out._mark_view(source, primitive.replay, rest, number if many else None)
            else:
                out = traced(TracedArray(self, spec, part), spec.dtype)
            outs.append(out)
        return tuple(outs) if many else outs[0]

    def _node(self, target: Any, values: list[Any], specs: Any) -> Node:
        args, kwargs = [], {}
        defaults = target._defaults
        for name, value in zip(target.names, values, strict=True):
            if name not in defaults:
                args.append(nodes_of(value))
            elif value is not defaults[name]:
                kwargs[name] = nodes_of(value)
        node = self.graph.create_node("call_function", target, tuple(args), kwargs)
        node.meta["val"] = meta_of(specs)
        line = user_line()
        if line is not None:
            node.meta["source"] = line
        return node

    def _parts(self, node: Node, specs: Iterable[Spec]) -> list[Node]:
        parts = []
        for number, spec in enumerate(specs):
            part = self.graph.create_node(
                "call_function", operator.getitem, (node, number), name=f"{node.name}_{number}"
            )
            part.meta["val"] = meta_of(spec)
            parts.append(part)
        return parts

    def _custom(self, primitive: CustomPrimitive, values: list[Any]) -> Any:
        """Leave one node for an operator of a user, whose fake kernel says what comes out."""
        definition: Any = lookup(primitive.schema.full_name)
        if definition is None or definition.operator is not primitive:
            raise self.refuse(f"calls {primitive.schema.full_name}, which was removed")
        written = [
            i for i, a in enumerate(primitive.schema.arguments) if a.is_write
        ]  # fmt: skip
        for i in written:
            for t in values[i] if isinstance(values[i], list) else (values[i],):
                if t is not None:
                    name = primitive.schema.arguments[i].name
                    check_writable(t, primitive.schema.qualname, argument=name)
        fakes: dict[int, Tensor] = {}
        given = [fake_of(v, fakes) for v in values]
        self.paused = True
        recorder, watching.recorder = watching.recorder, None
        try:
            result = primitive._run(given, [], meta=True)
        finally:
            self.paused, watching.recorder = False, recorder
        several = type(result) is tuple
        given_back = [] if result is None and not primitive.schema.returns else [result]
        results: list[Any] = list(result) if several else given_back
        flat = list(flat_results(results))
        # What is None, or a list, stands beside a graph, which holds tensors.
        structured = len(flat) != len(results) or any(isinstance(r, list) for r in results)
        if not all(isinstance(r, Tensor) for r in flat) or (structured and written):
            raise self.refuse(
                f"calls {primitive.schema.full_name}, which returns something else than tensors"
            )
        if not structured:
            return self._custom_node(primitive, definition, values, flat, fakes, written, result)
        target = FlatCall.of(definition)
        outs = iter(
            self._custom_node(primitive, target, values, flat, fakes, written, tuple(flat)) or ()
        )
        given_back = [restored(r, outs) for r in results]
        return tuple(given_back) if several else given_back[0]

    def _custom_node(
        self,
        primitive: CustomPrimitive,
        definition: Any,
        values: list[Any],
        flat: list[Any],
        fakes: dict[int, Tensor],
        written: list[int],
        result: Any,
    ) -> Any:
        same = {id(fake): values_id for values_id, fake in fakes.items()}
        by_id = {id(t): t for v in values for t in (v if isinstance(v, list) else (v,))}
        positional, keywords = primitive._split(values)
        args = nodes_of(positional)
        kwargs = {k: nodes_of(v) for k, v in keywords.items()}
        specs = [spec_of(r) for r in flat]
        target = definition
        targets: list[Tensor] = []
        if written:
            for i in written:
                v = values[i]
                targets += [t for t in (v if isinstance(v, list) else (v,)) if t is not None]
            target = MutatingCall.of(definition)
            specs += [spec_of(t) for t in targets]
        node = self.graph.create_node(
            "call_function", target, args, kwargs, name=primitive.schema.name
        )
        line = user_line()
        if line is not None:
            node.meta["source"] = line
        if written or getattr(definition, "effect", None) is not None:
            node.meta["effect"] = True
        if definition.effect is not None:
            self.repeats = False
        if len(flat) == 1 and not written and not isinstance(target, FlatCall):
            node.meta["val"] = meta_of(specs[0])
            nodes = [node]
        else:
            node.meta["val"] = meta_of(tuple(specs))
            nodes = self._parts(node, specs)
        outs: list[Any] = []
        for r, spec, part in zip(flat, specs, nodes, strict=False):
            original = same.get(id(r))
            if original is not None:
                outs.append(by_id[original])
            elif r._base is not None:
                raise self.refuse(f"calls {primitive.schema.full_name}, which returns a view")
            else:
                outs.append(traced(TracedArray(self, spec, part), spec.dtype))
        for t, part in zip(targets, nodes[len(flat) :], strict=True):
            self._store(t, part)
            t._bump_version()
        if result is None:
            return None
        return outs[0] if type(result) is not tuple else tuple(outs)

    # --- writes -----------------------------------------------------------------------------

    def write(self, primitive: Primitive, values: list[Any]) -> Tensor:
        """Answer for the in-place form of an operator on checked arguments."""
        if self.numbers is not None and not self.paused:
            primitive, values = self.numbers.as_tensors(primitive, values)
        if self.paused or not self._concerns(values):
            outer, watching.recorder = watching.recorder, None
            try:
                return type(primitive).apply_inplace(primitive, tuple(values))
            finally:
                watching.recorder = outer
        where = f"{primitive.name}_"
        given: Tensor = values[0]
        values, record = self._lifted(primitive, values)
        target: Tensor = values[0]
        check_writable(target, where)
        out = self._record_call(primitive, values)
        if out._array.shape != target._array.shape or not _dtype.can_cast(
            out._dtype, target._dtype
        ):
            raise self.refuse(f"writes a result by {where} into a tensor that does not hold it")
        record = record and grad_mode.state.enabled and target._dtype.is_differentiable
        node = None
        wanted: tuple[bool, ...] = ()
        if record and primitive.vjp is not None:
            frozen = [self._snapshot(v, target) for v in values]
            frozen[0] = self._snapshot(target, target, always=True)
            node, wanted = primitive._node(frozen)
        dual = is_dual(values)
        if dual:
            primitive._push_forward(values, (out,))
        self._store(target, out._array.node())
        target._bump_version()
        if node is not None:
            node.outputs = (bare_spec(target),)
            node.save_results((self._result_copy(target),), wanted, own=True)
            rebase_history(target, node)
        if self._has_history:
            self.histories.note(values, (target,), recorded=grad_mode.state.enabled)
        if dual:
            forward_ad.write_tangent(target, out._tangent, where)
        return given  # the very tensor: `module.count += 1` assigns it

    def _snapshot(self, value: Any, written: Tensor, *, always: bool = False) -> Any:
        """Return an argument as it was, if it lies in the memory that is written."""
        if not isinstance(value, Tensor):
            return value
        if not always and value._shared_counter() is not written._shared_counter():
            return value
        array: TracedArray = value._array
        copy = TracedArray(self, spec_of(value), array.node())
        result = traced(copy, value._dtype, counter=VersionCounter())
        share_history(result, value)
        return result

    def _result_copy(self, target: Tensor) -> Tensor:
        """Return what was written as a tensor that later writes do not change."""
        array = TracedArray(self, spec_of(target), target._array.node())
        return traced(array, target._dtype, counter=target._shared_counter())

    def _store(self, target: Tensor, node: Node) -> None:
        array: TracedArray = target._array
        value = node.meta["val"]
        if value._dtype is not target._dtype or value._array.shape != array.shape:
            node = self._simple(OPERATORS["copy"], (array.node(), node), Spec(array.shape,
                                target._dtype))  # fmt: skip
        owner = array.memory.owner
        if isinstance(owner, Input):
            owner.written = True
        if array.root is None:
            there = node.meta["val"]._array
            if order_of(array.shape, array.strides) != order_of(there.shape, there.strides):
                node = self.write_part(array.node(), (), node)  # on the memory that it has
        array.store(node)

    def _simple(self, target: Any, args: tuple[Any, ...], spec: Any) -> Node:
        node = self.graph.create_node("call_function", target, args)
        node.meta["val"] = meta_of(spec)
        return node

    def view_node(self, node: Node, steps: tuple[Step, ...]) -> Node:
        """Return the node of a view of what `node` computes."""
        for primitive, rest, number in steps:
            spec = spec_of(node.meta["val"])
            source = traced(TracedArray(self, spec, node), spec.dtype)
            outs = self._record_call(primitive, [source, *rest])
            node = (outs if number is None else outs[number])._array.node()
        return node

    def write_part(self, node: Node, steps: tuple[Step, ...], value: Node) -> Node:
        """Return the node of what `node` computes, with a part replaced by `value`."""
        plain = tuple((primitive, rest, number) for primitive, rest, number in steps)
        return self._simple(write_part, (node, value, plain), spec_of(node.meta["val"]))

    # --- values -----------------------------------------------------------------------------

    def elements(self, tensor: Tensor, construct: str) -> Any:
        """Answer a question for elements: they become a condition on the use of the graph."""
        if construct not in _QUESTIONS or tensor._array.size > MOST_ELEMENTS:
            advice = "Write it in operations on tensors, or leave it outside of the function."
            raise self.refuse(f"reads elements by {construct}()", advice)
        array: TracedArray = tensor._array
        node = array.node()
        if construct == "bool" and tensor._dtype is not _dtype.bool_:
            # Whether it is zero counts, not what it is.
            with grad_mode.no_grad():
                node = OPERATORS["ne"].apply((tensor, 0))._array.node()
        value = np.array(self._compute(node)._array)
        self.conditions.append(Condition(node, value, construct, user_line()))
        return value

    def asked(self, tensor: Tensor, construct: str) -> Any:
        """Answer a question for elements of a tensor that stands for nothing in the graph."""
        if self.paused or self._is_ours(tensor):
            return tensor._array
        return self.elements(self.lift(tensor), construct)

    def refuse_outer(self, tensor: Tensor, what: str, *, by_library: bool = False) -> None:
        """Refuse `what` of a tensor that was there before the run, unless the library may do it."""
        if self.paused or self._is_ours(tensor):
            return
        if by_library and is_library(sys._getframe(2).f_code.co_filename):
            return
        if tensor._array.__class__ is not TracedArray or any(
            x.stand_in is tensor for x in self.inputs
        ):
            raise self.refuse(f"{what} of a tensor from outside")

    def _is_ours(self, tensor: Tensor) -> bool:
        """Tell whether the run made a tensor, of nothing that changes."""
        made = watching.made
        return made is not None and any(x is tensor for x in made)

    def _compute(self, wanted: Node) -> Any:
        """Run the part of the graph that `wanted` needs on the tensors of this call."""
        needed: set[Node] = set()
        stack = [wanted]
        while stack:
            node = stack.pop()
            if node not in needed and node not in self._values:
                needed.add(node)
                stack.extend(node.all_input_nodes)
        outer, watching.recorder = watching.recorder, None
        made, watching.made = watching.made, None
        try:
            with grad_mode.no_grad():
                for node in self.graph.nodes:
                    if node in needed:
                        self._values[node] = self._value_of(node)
        finally:
            watching.recorder, watching.made = outer, made
        return self._values[wanted]

    def _value_of(self, node: Node) -> Any:
        if node.op == "placeholder":
            found = next(x for x in self.inputs if x.node is node)
            return found.tensor.detach()
        if node.op == "get_attr":
            return self.constants[node.target]
        if is_effect(node):
            raise self.refuse(
                "takes a decision by a value that depends on random numbers or effects",
                "Draw them outside of the function, and pass them.",
            )
        args = map_arg(node.args, self._values.__getitem__)
        kwargs = map_arg(node.kwargs, self._values.__getitem__)
        return runner(node.target)(*args, **kwargs)

    # --- tensors made of numbers --------------------------------------------------------------

    def answer(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Answer for a function that makes a tensor of numbers, `UNANSWERED` for others."""
        if self.paused:
            return UNANSWERED
        if function in CREATORS:
            return self.create(function, args, kwargs)
        if function in REFUSED:
            raise self.refuse(REFUSED[function])
        return UNANSWERED

    def create(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Leave a node for a function that makes a tensor of its arguments."""
        if self.numbers is not None:
            self.numbers.refuse_in((args, kwargs))
        device = kwargs.get("device")
        if device is not None and str(device) != "cpu":
            raise self.refuse(f"makes a tensor on {device}")
        wants_grad = bool(kwargs.get("requires_grad"))
        plain = {k: v for k, v in kwargs.items() if k not in {"device", "requires_grad"}}
        flat = [x for v in (*args, *plain.values())
                for x in (v if isinstance(v, (list, tuple)) else (v,))]  # fmt: skip
        if any(isinstance(x, Tensor) for x in flat):
            args, plain = self._without_tensors(args, plain)
        self.paused = True
        recorder, watching.recorder = watching.recorder, None
        try:
            fake = runner(function)(*args, **plain, device="meta")
        finally:
            self.paused, watching.recorder = False, recorder
        node = self.graph.create_node("call_function", function, args, plain)
        spec = spec_of(fake)
        node.meta["val"] = meta_of(spec)
        if function in RANDOM:
            node.meta["effect"] = True
            self._draw(plain.get("generator"))
        line = user_line()
        if line is not None:
            node.meta["source"] = line
        result = traced(TracedArray(self, spec, node), spec.dtype)
        if wants_grad:
            result._requires_grad = True
        return result

    def _draw(self, generator: random.Generator | None) -> None:
        source = random.default_generator if generator is None else generator
        if not any(g is source for g in self.draws):
            self.draws.append(source)

    def _without_tensors(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments with numbers in place of tensors, which become conditions."""

        def number(value: Any) -> Any:
            if isinstance(value, Tensor):
                return self.lift(value).item()
            if type(value) in {list, tuple}:
                return type(value)(number(v) for v in value)
            return value

        return tuple(number(v) for v in args), {k: number(v) for k, v in kwargs.items()}


_QUESTIONS: Final = frozenset(
    {"item", "bool", "int", "float", "complex", "index", "tolist"}
)  # fmt: skip
