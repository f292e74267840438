"""One run of a function as a graph, and what its results, writes and gradients are in it."""

from __future__ import annotations

import functools
import gc
import operator
import sys
import threading
import types
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, Final

from tensorplay._detours import enter, leave, watching
from tensorplay._tensor import Spec, Tensor, VersionCounter
from tensorplay.autograd import forward_ad, grad_mode, saved_tensors
from tensorplay.autograd.engine import run_backward
from tensorplay.autograd.function_context import FunctionNode
from tensorplay.autograd.graph import AccumulateGrad, Node as HistoryNode, edge_of
from tensorplay.autograd.inplace import CopySlices
from tensorplay.autograd.saved_tensors import SavedTensor
from tensorplay.compiler.guards import first_broken, undo
from tensorplay.compiler.numbers import Numbers, TracedNumber
from tensorplay.compiler.recorder import Input, Recorder
from tensorplay.compiler.traced import Step, TracedArray, traced
from tensorplay.compiler.values import meta_of
from tensorplay.compiler.watch import CONSTANTS, Watch
from tensorplay.func.trees import flatten, unflatten
from tensorplay.graph.errors import GraphCaptureError
from tensorplay.graph.node import Node
from tensorplay.library.owners import line_of
from tensorplay.ops.node import PrimitiveNode
from tensorplay.ops.operator import Operator

__all__ = ["AliasError", "Captured", "Output", "Root", "capture", "capturing"]


class AliasError(GraphCaptureError):
    """An argument is also read from outside: a matter of these very tensors."""


class _State(threading.local):
    active: bool = False


_state: Final = _State()


def capturing() -> bool:
    """Tell whether a function is being captured in this thread."""
    return _state.active


@dataclass(frozen=True)
class Output:
    """How one result of the function is made after the graph ran.

    Attributes
    ----------
    kind
        ``"root"`` (memory that the graph made), ``"input"``, ``"constant"`` or ``"result"`` (the
        same tensor as an earlier result).
    index
        Which root, input or result.
    steps
        Views from there.
    detached
        Whether the result has no history although that has, or is another tensor than an input.
    another
        Whether the result, which has no history, is another tensor than a root that is a result
        already.
    value
        The constant.
    """

    kind: str
    index: int = 0
    steps: tuple[Step, ...] = ()
    detached: bool = False
    another: bool = False
    value: Any = None


@dataclass(eq=False)
class Root:
    """Memory that the graph makes for results, or for what an input becomes.

    `tensor` is what its gradient is taken of, None if it has none.
    """

    array: TracedArray
    tensor: Tensor | None
    node: Node


@dataclass(eq=False)
class Captured:
    """What a run gave."""

    recorder: Recorder
    watch: Watch
    structure: Any
    outputs: list[Output]
    roots: list[Root]
    writes: list[tuple[int, Node]]  # in the graph: input, and its new value
    outside_writes: list[tuple[int, int, bool]]  # after the graph: input, root, with history
    forward_nodes: set[Node]
    tangents: list[Node] = field(default_factory=list)
    wanted: list[int] = field(default_factory=list)  # inputs whose gradients are given
    gradients: list[Node | None] = field(default_factory=list)
    #: The memory that eager execution keeps for the backward pass, by identity, in bytes.
    saved_eagerly: dict[int, int] = field(default_factory=dict)

    @property
    def inputs(self) -> list[Input]:
        """The tensors that the graph takes."""
        return self.recorder.inputs

    @property
    def differentiable(self) -> list[int]:
        """The roots that have gradients."""
        return [i for i, r in enumerate(self.roots) if r.tensor is not None]


@contextmanager
def _recording(recorder: Recorder, watch: Watch) -> Iterator[None]:
    """Send all operators of this thread to `recorder`, and what is entered to `watch`."""
    before = watching.recorder, watching.made
    trace = sys.gettrace()
    mode, level = grad_mode.state.enabled, forward_ad.current_dual_level()
    outer, _state.active = _state.active, True
    detour = enter("a function is captured")
    watching.recorder, watching.made = recorder, []
    # Hooks of saved tensors get those that the compiled function saves, not those of this run.
    hooks, saved_tensors.state.hooks = saved_tensors.state.hooks, []
    collecting = gc.isenabled()
    gc.disable()  # what a collection calls is no part of the function, and may run anywhere in it
    sys.settrace(watch.trace)
    try:
        yield
    finally:
        sys.settrace(trace)
        # As they were, also where the function raised: it runs again.
        grad_mode.state.enabled = mode
        if forward_ad.current_dual_level() > level:
            forward_ad.exit_dual_level()
        saved_tensors.state.hooks = hooks
        if collecting:
            gc.enable()
        watching.recorder, watching.made = before
        leave(detour)
        _state.active = outer


def capture(
    function: Callable[..., Any],
    leaves: Sequence[Any],
    structure: Any,
    names: Sequence[str],
    *,
    held: Sequence[Any] = (),
    any_numbers: Collection[int] = (),
) -> Captured:
    """Run `function` once on stand-ins for its tensors.

    Parameters
    ----------
    function
        What is captured.
    leaves, structure
        Its arguments, flattened, as ``(args, kwargs)``.
    names
        What the leaves are called.
    held
        Objects of the function whose attributes it may read, such as its module.
    any_numbers
        Which leaves are numbers whose values the graph shall not depend on.

    Raises
    ------
    GraphCaptureError
        A graph cannot hold what it does.
    Exception
        What the function raises.
    """
    recorder = Recorder()
    watch = Watch(recorder.refuse)
    recorder.known, recorder.is_outside = watch.knows, watch.is_outside
    if any_numbers:
        recorder.numbers = Numbers(recorder)
    given: list[Any] = []
    for position, (leaf, name) in enumerate(zip(leaves, names, strict=True)):
        if recorder.numbers is not None and position in any_numbers:
            given.append(TracedNumber(recorder.numbers, leaf, operator.itemgetter(position)))
        elif isinstance(leaf, Tensor):
            given.append(recorder.add_input(leaf, name))
        else:
            given.append(leaf)
            if not isinstance(leaf, CONSTANTS):
                watch.add_argument(leaf)
    for value in held:
        watch.add_argument(value)
    watch.add_function(function)
    if isinstance(function, (types.FunctionType, types.MethodType, functools.partial)):
        watch.add_argument(function)  # its defaults, too
    try:
        found = _run(function, leaves, given, structure, recorder, watch)
    except BaseException as error:
        watch.clean_caches()
        undo(list(watch.guards.values()))
        if isinstance(error, Exception) and recorder.problem not in {None, error}:
            raise recorder.problem from error  # which the function caught, and then met another
        raise
    cached = watch.clean_caches()
    if cached is not None:
        raise recorder.refuse(f"keeps a tensor in the cache of {cached} (functools.lru_cache)")
    return found


def _run(
    function: Callable[..., Any],
    leaves: Sequence[Any],
    given: list[Any],
    structure: Any,
    recorder: Recorder,
    watch: Watch,
) -> Captured:
    args, kwargs = unflatten(structure, given)
    arrays = [x.stand_in._array for x in recorder.inputs]
    mode = grad_mode.state.enabled
    level = forward_ad.current_number()
    with _recording(recorder, watch):
        result = function(*args, **kwargs)
        recorder.place = _place_of(function)  # for what is found out about the whole
        if recorder.problem is not None:
            raise recorder.problem
        if grad_mode.state.enabled is not mode:
            raise recorder.refuse("leaves another grad mode than it found")
        if forward_ad.current_number() != level:
            raise recorder.refuse("opens or closes a level of forward mode")
        for x, array in zip(recorder.inputs, arrays, strict=False):
            if x.stand_in._array is not array:
                raise recorder.refuse(f"changes the shape of {x.name} in place")
        for x in recorder.inputs:
            if x.leaf._grad is not None or x.stand_in._grad is not None:
                line = watch.backward_line
                raise recorder.refuse("calls backward(), which adds to x.grad", line=line)
            detached = x.history is not None and x.stand_in._grad_fn is None
            plain = x.stand_in._grad_fn is x.history
            if detached or (plain and x.stand_in._requires_grad is not x.tensor._requires_grad):
                raise recorder.refuse(f"changes whether {x.name} requires grad")
            if x.stand_in._tangent is not None:
                raise recorder.refuse(f"gives {x.name} a tangent")
            if x.stand_in._hooks is not None:
                raise recorder.refuse("registers a hook on a tensor from outside")
        if recorder.numbers is not None:
            _check_numbers(recorder, watch, result)
        found = _results(recorder, watch, leaves, given, args, kwargs, structure, result)
        if mode:
            _differentiate(recorder, found)
    if recorder.problem is not None:
        raise recorder.problem
    watch.settle()
    if any(isinstance(x, Tensor) and id(x) in watch.tensors for x in leaves):
        # It might ask whether they are one, and later calls may bring another argument.
        raise AliasError("[compile] an argument is a tensor that the function also reads outside.")
    changed = first_broken(list(watch.guards.values()), [])
    if changed is not None:
        raise recorder.refuse(f"changes what it reads ({changed})")
    return found


def _check_numbers(recorder: Recorder, watch: Watch, result: Any) -> None:
    """Refuse what would hold a number of this call, or took it for an object of another type."""
    numbers = recorder.numbers
    if numbers is None:
        return
    numbers.refuse_in(flatten(result, known=True)[0])
    for node in recorder.graph.nodes:
        numbers.refuse_in((node.args, node.kwargs))
    if any(g.kind == "missing" and g.key == "type" for g in watch.guards.values()):
        raise numbers.refuse("may ask for the type() of")


def _place_of(function: Any) -> str | None:
    """Return where a function is defined."""
    while isinstance(function, functools.partial):
        function = function.func
    code = getattr(function, "__code__", None)
    if code is None:  # a module of layers, or another object that can be called
        method = getattr(function, "forward", None) or type(function).__call__
        code = getattr(method, "__code__", None)
    return None if code is None else line_of(code)


def _results(
    recorder: Recorder,
    watch: Watch,
    leaves: Sequence[Any],
    given: Sequence[Any],
    args: Any,
    kwargs: Any,
    structure: Any,
    result: Any,
) -> Captured:
    after, after_structure = flatten((args, kwargs), known=True)
    if after_structure != structure or any(a is not g for a, g in zip(after, given, strict=True)):
        raise recorder.refuse("changes a list or dictionary that it was given")
    flat, out_structure = flatten(result, known=True)
    roots: list[Root] = []
    by_memory: dict[int, int] = {}
    outputs: list[Output] = []
    earlier: dict[int, int] = {}  # by identity: results that are one tensor are one again
    for number, x in enumerate(flat):
        lifted = recorder.lift(x) if isinstance(x, Tensor) else None
        if lifted is not None and (first := earlier.setdefault(id(lifted), number)) < number:
            outputs.append(Output("result", first))
            continue
        output = _output(recorder, x, lifted, leaves, given, roots, by_memory)
        same = [
            o for o in outputs
            if o.kind == output.kind == "root" and o.index == output.index
            and not (o.steps or output.steps)
        ]  # fmt: skip
        if output.detached:
            output = replace(output, another=bool(same))
        outputs.append(output)
    writes: list[tuple[int, Node]] = []
    outside: list[tuple[int, int, bool]] = []
    for number, x in enumerate(recorder.inputs):
        if not x.written:
            continue
        recorded = x.stand_in.grad_fn is not x.history
        if recorded and not grad_mode.state.enabled:
            raise recorder.refuse(f"gives {x.name} a history where gradients are off")
        if recorded or recorder.conditions:
            tensor = x.stand_in if recorded else None
            outside.append((number, len(roots), recorded))
            roots.append(Root(x.stand_in._array, tensor, x.stand_in._array.node()))
        else:
            writes.append((number, x.stand_in._array.node()))
    return Captured(
        recorder, watch, out_structure, outputs, roots, writes, outside,
        set(recorder.graph.nodes),
    )  # fmt: skip


def _output(
    recorder: Recorder,
    value: Any,
    lifted: Tensor | None,
    leaves: Sequence[Any],
    given: Sequence[Any],
    roots: list[Root],
    by_memory: dict[int, int],
) -> Output:
    if lifted is None:
        if isinstance(value, CONSTANTS):
            return Output("constant", value=value)
        for leaf, stand_in in zip(leaves, given, strict=True):
            if value is stand_in:
                return Output("constant", value=leaf)
        raise recorder.refuse(f"returns a {type(value).__name__}")
    tensor = lifted
    if tensor._base is not None:
        tensor._synchronise()
    if tensor._tangent is not None:
        raise recorder.refuse("returns a tensor with a tangent")
    array = tensor._array
    memory = array.memory
    requires_grad = tensor.requires_grad
    given_in = isinstance(memory.owner, Input) and tensor is memory.owner.stand_in
    if requires_grad and tensor._grad_fn is None and not given_in:
        raise recorder.refuse("returns a leaf that requires grad, which it made itself")
    if requires_grad and not given_in and not grad_mode.state.enabled:
        raise recorder.refuse("returns a result with a history where gradients are off")
    base = tensor if tensor._base is None else tensor._base
    whole = memory.owner.stand_in if isinstance(memory.owner, Input) else base
    if requires_grad and not _is_plain_view(tensor, whole, len(array.steps)):
        raise recorder.refuse("returns a view whose history is not that of its memory")
    if isinstance(memory.owner, Input):
        owner = memory.owner
        index = recorder.inputs.index(owner)
        if given_in:
            return Output("input", index)
        # Without steps it is another tensor on the same memory: what detach() gives.
        detached = not requires_grad and (owner.stand_in.requires_grad or not array.steps)
        return Output("input", index, array.steps, detached)
    index = by_memory.get(id(memory), -1)
    if index < 0:
        index = by_memory[id(memory)] = len(roots)
        roots.append(Root(memory, None, memory.node()))
    root = roots[index]
    if requires_grad:
        leaf = base._array is not memory or base._grad_fn is None
        if leaf or (root.tensor is not None and root.tensor is not base):
            raise recorder.refuse("returns a view whose history is not that of its memory")
        root.tensor = base
    return Output("root", index, array.steps, not requires_grad)


def _is_plain_view(tensor: Tensor, base: Tensor, steps: int) -> bool:
    """Tell whether a tensor's history is that of viewing `base`, and no formula of a user's."""
    if not steps:
        return tensor is base
    edge, end = edge_of(tensor), edge_of(base)
    for _ in range(steps):
        if edge is None or end is None or edge.node is end.node:
            break
        if not isinstance(edge.node, (PrimitiveNode, CopySlices)):
            return False
        edge = next((e for e in edge.node.edges if e is not None), None)
    return edge is not None and end is not None and edge.node is end.node


def _differentiate(recorder: Recorder, found: Captured) -> None:
    """Add to the graph what gives the gradients of its inputs."""
    differentiable = [(i, r) for i, r in enumerate(found.roots) if r.tensor is not None]
    wanted = [i for i, x in enumerate(recorder.inputs) if x.leaf._requires_grad]
    if not differentiable or not wanted:
        for _, root in differentiable:
            root.tensor = None
        return
    starts = []
    for number, (_, root) in enumerate(differentiable):
        tensor = root.tensor
        if tensor is None:
            continue
        spec = Spec(tensor._array.shape, tensor._dtype)
        before = recorder._last_input
        with recorder.graph._inserting(
            recorder.graph._root._next if before is None else before._next
        ):
            node = recorder.graph.placeholder(f"tangent_{number}")
        recorder._last_input = node
        node.meta["val"] = meta_of(spec)
        tangent = traced(TracedArray(recorder, spec, node), spec.dtype, counter=VersionCounter())
        found.tangents.append(node)
        edge = edge_of(tensor)
        if edge is not None:
            starts.append((edge, tangent))
    edges = [edge_of(recorder.inputs[i].leaf) for i in wanted]
    # Formulas of the library read nothing of the user's, and run several times faster unwatched.
    history = _nodes(starts)
    ours = all(
        isinstance(n, (PrimitiveNode, CopySlices, AccumulateGrad)) and not _has_hooks(n)
        for n in history
    )
    if any(map(_has_hooks, history)):
        recorder.histories.replaced = "has a hook on a gradient"
    elif any(isinstance(n, FunctionNode) and not isinstance(n._maker, Operator) for n in history):
        recorder.histories.replaced = "calls a Function, which has a formula of its own"
    with recorder.unwatched():
        found.saved_eagerly = _saved_by(history)
    with recorder.unwatched() if ours else nullcontext():
        gradients = run_backward(
            starts,
            retain_graph=False,
            create_graph=False,
            inputs=[e for e in edges if e is not None],
            accumulate=False,
        )
    found.wanted = wanted
    found.gradients = [None if g is None else recorder.lift(g)._array.node() for g in gradients]


def _has_hooks(node: HistoryNode) -> bool:
    extras = node._extras
    return extras is not None and bool(extras.pre_hooks or extras.tensor_hooks)


def _saved_by(history: Sequence[HistoryNode]) -> dict[int, int]:
    """Return the memory that nodes of a history hold, by identity, in bytes."""
    found: dict[int, int] = {}
    for node in history:
        for value in node.saved().values():
            for saved in value if isinstance(value, list) else (value,):
                tensor = saved._tensor if isinstance(saved, SavedTensor) else None
                if tensor is not None and isinstance(tensor._array, TracedArray):
                    memory = tensor._array.memory
                    found[id(memory)] = int(memory.size) * int(tensor._dtype.itemsize)
    return found


def _nodes(starts: Sequence[tuple[Any, Any]]) -> list[HistoryNode]:
    """Return the nodes of the history that leads to `starts`."""
    found = dict.fromkeys(edge.node for edge, _ in starts)
    nodes = list(found)
    for node in nodes:  # grows while it is walked
        for edge in node.edges:
            if edge is not None and edge.node not in found:
                found[edge.node] = None
                nodes.append(edge.node)
    return nodes
