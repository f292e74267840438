"""The reverse pass: gradients flow from the roots to the leaves, newest operation first.

The traversal is a loop over a heap, so the depth of a graph is limited by memory alone. All state
of one pass is local to the call: several threads may run passes at once, and a backward formula
may start a pass of its own.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from tensorplay import _device, _dtype, _native
from tensorplay._detours import detours
from tensorplay._quiet import restore, silence
from tensorplay._tensor import Spec, Tensor, wrap
from tensorplay.autograd import anomaly_mode, grad_mode
from tensorplay.autograd.batched import BatchedTensor
from tensorplay.autograd.graph import (
    AccumulateGrad,
    Edge,
    Hooks,
    Node,
    RunningPass,
    accumulating,
    accumulator_of,
    add_to_grad,
    owned,
    running,
    target_of,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

__all__ = ["check_gradient", "run_backward"]


class _Pass:
    """The state of one reverse pass.

    Gradients on their way are tensors, or NumPy arrays where nothing but the elements matters. A
    node of one output has its gradient in `buffers`, another a list of them.
    """

    __slots__ = (
        "accumulate",
        "arrays",
        "buffers",
        "captured",
        "captures",
        "create_graph",
        "own",
        "retain_graph",
    )

    def __init__(
        self,
        inputs: Sequence[Edge],
        *,
        retain_graph: bool,
        create_graph: bool,
        accumulate: bool,
    ) -> None:
        self.retain_graph = retain_graph
        self.create_graph = create_graph
        self.accumulate = accumulate
        # Whether formulas may run on arrays. Modes want to see, or to mark, what is computed.
        self.arrays = not create_graph and not detours
        # Gradients wanted by edge (node, output number) instead of, or beside, leaves.
        self.captures: dict[Node, list[tuple[int, int]]] = {}
        for position, edge in enumerate(inputs):
            self.captures.setdefault(edge.node, []).append((edge.output_nr, position))
        self.captured: list[Tensor | None] = [None] * len(inputs)
        self.buffers: dict[Node, Any] = {}
        self.own: set[Node] = set()  # nodes whose gradient is a sum that nobody else has


# Stands in a buffer for a gradient that is not defined.
_UNDEFINED: Final = object()


def _reachable(roots: Sequence[Node]) -> tuple[dict[Node, int], list[Node]]:
    """Return how many edges lead to each reachable node, and the nodes."""
    pending = dict.fromkeys(roots, 0)
    nodes = list(pending)
    for node in nodes:  # grows while it is walked
        for source in node._sources:
            if source is None:
                continue
            target = source[0] if source.__class__ is Edge else source
            if not isinstance(target, Node):  # a leaf
                target = accumulator_of(target)
            known = pending.get(target)
            if known is None:
                pending[target] = 1
                nodes.append(target)
            else:
                pending[target] = known + 1
    return pending, nodes


def _useful(nodes: Sequence[Node], targets: set[Node]) -> set[Node]:
    """Return the nodes from which a target can be reached, targets included."""
    useful = set(targets)
    # A node is newer than all nodes its edges lead to, so one sweep from old to new settles it.
    for node in sorted(nodes, key=lambda n: n.sequence):
        for source in node._sources:
            if source is not None and target_of(source)[0] in useful:
                useful.add(node)
                break
    return useful


class InvalidGradientError(RuntimeError):
    """A formula or hook returned what cannot be the gradient; `kind` says in what respect."""

    def __init__(self, message: str, kind: str) -> None:
        super().__init__(message)
        self.kind = kind


class InvalidGradientTypeError(InvalidGradientError, TypeError):
    """A formula returned something that is no tensor."""


def check_gradient(
    grad: Any,
    spec: Spec,
    where: str,
    *,
    device: _device.device | None = None,
    takes_real_part: bool = False,
) -> Tensor:
    """Return `grad` as a gradient for a tensor of `spec`: summed over broadcasting, and cast.

    Parameters
    ----------
    grad, spec
        The gradient and what it is for.
    where
        Start of the texts of errors.
    device
        Where the tensor lies, if known.
    takes_real_part
        Whether a complex gradient of a real tensor means its real part, as it does in the
        formulas of operators: of ``x * z`` with real x that of x is ``(g * z.conj()).real``.
        What people return is refused instead, as half of it would vanish.

    Raises
    ------
    InvalidGradientTypeError
        `grad` is no tensor.
    InvalidGradientError
        The shape cannot be summed to the tensor's; the gradient lies on another device; or it is
        complex and the tensor is real.
    """
    if not isinstance(grad, Tensor):
        message = (
            f"{where}: expected Variable or None (got {type(grad).__name__}). Return a tensor, or "
            "None where there is no gradient."
        )
        raise InvalidGradientTypeError(message, "type")
    if device is not None and grad.device != device:
        message = (
            f"{where} - expected a gradient on device {device}, got one on {grad.device}. Write "
            f"grad.to('{device}')."
        )
        raise InvalidGradientError(message, "device")
    if grad._dtype.is_complex and not spec.dtype.is_complex and not takes_real_part:
        message = (
            f"{where} - expected a real gradient for a tensor of {spec.dtype!r}, got "
            f"{grad._dtype!r}. Write grad.real."
        )
        raise InvalidGradientError(message, "type")
    shape = grad._array.shape
    if shape != spec.shape:
        lead = len(shape) - len(spec.shape)
        if lead < 0 or any(b not in (1, a) for a, b in zip(shape[lead:], spec.shape, strict=True)):
            message = (
                f"{where} - got {list(shape)} but expected shape compatible with "
                f"{list(spec.shape)}. Return one of that shape, or one that it broadcasts to."
            )
            raise InvalidGradientError(message, "size")
        grad = grad.sum_to_size(spec.shape)
    if grad._dtype is not spec.dtype:
        if grad._dtype.is_complex and not spec.dtype.is_complex:
            grad = grad.real
        grad = grad.to(spec.dtype)
    result: Tensor = grad
    return result


def _run_tensor_hooks(hooks: Hooks, grad: Tensor) -> Tensor:
    for hook in tuple(hooks.values()):
        replacement = hook(grad)
        if replacement is None:
            continue
        if not isinstance(replacement, Tensor):
            message = (
                "[register_hook] expected the hook to return Tensor or None, "
                f"got {type(replacement).__name__}."
            )
            raise TypeError(message)
        if replacement._array.shape != grad._array.shape:
            message = (
                "[register_hook] the hook has changed the size of value: expected "
                f"{list(grad.shape)}, got {list(replacement.shape)}."
            )
            raise RuntimeError(message)
        grad = check_gradient(
            replacement, Spec(grad._array.shape, grad._dtype), _WHERE_HOOK, device=grad.device
        )
    return grad


_WHERE_HOOK = "[register_hook] the hook returned an invalid gradient"


def _arrive(
    state: _Pass, node: Node, grads: list[Tensor | None], *, runs: bool
) -> list[Tensor | None]:
    """Run what happens to gradients before the node: hooks, captures, retained gradients.

    Pre-hooks belong to the node and stay away where it does not run.
    """
    leaf = node.variable if isinstance(node, AccumulateGrad) else None
    if leaf is not None and leaf._hooks is not None and grads[0] is not None:
        grads[0] = _run_tensor_hooks(leaf._hooks.grad, grads[0])
    more = node._extras
    if more is not None:
        for number, hooks in more.tensor_hooks.items():
            grad = grads[number]
            if grad is not None:
                grads[number] = _run_tensor_hooks(hooks, grad)
        if runs and more.pre_hooks:
            grads = _run_pre_hooks(node, more.pre_hooks, grads)
        for number, reference in more.retain.items():
            tensor, grad = reference(), grads[number]
            if tensor is not None and grad is not None:
                add_to_grad(tensor, grad)
    for number, position in state.captures.get(node, ()):
        state.captured[position] = grads[number]
    return grads


def _run_pre_hooks(node: Node, hooks: Hooks, grads: list[Tensor | None]) -> list[Tensor | None]:
    for hook in tuple(hooks.values()):
        replaced = hook(tuple(grads))
        if replaced is None:
            continue
        replaced = replaced if isinstance(replaced, (tuple, list)) else (replaced,)
        if len(replaced) != len(grads):
            message = (
                f"[register_prehook] expected {len(grads)} gradients from the hook of "
                f"{node.name()}, got {len(replaced)}."
            )
            raise RuntimeError(message)
        where = f"[register_prehook] the hook of {node.name()} returned an invalid gradient"
        device = _device_of(grads)
        grads = [
            None if g is None or spec is None else check_gradient(g, spec, where, device=device)
            for g, spec in zip(replaced, node.outputs, strict=True)
        ]
    return grads


def _call(
    state: _Pass, node: Node, grads: list[Tensor | None], needed: list[bool]
) -> Sequence[Tensor | None]:
    results = node.apply(grads, needed)
    if len(results) != len(node._sources):
        raise RuntimeError(_wrong_count(node, len(results)))
    if node._extras is not None:
        for hook in tuple(node._extras.post_hooks.values()):
            replaced = hook(tuple(results), tuple(grads))
            if replaced is not None:
                replaced = replaced if isinstance(replaced, (tuple, list)) else (replaced,)
                if len(replaced) != len(node._sources):
                    raise RuntimeError(_wrong_count(node, len(replaced)))
                results = _replaced(node, results, replaced)
    if not state.retain_graph:
        node.release()
    return results


def _replaced(
    node: Node, results: Sequence[Tensor | None], replaced: Sequence[Any]
) -> Sequence[Any]:
    """Return what a hook put in place of the gradients; none may have become complex."""
    for number, (edge, old, new) in enumerate(zip(node.edges, results, replaced, strict=True)):
        spec = None if edge is None else edge.node.outputs[edge.output_nr]
        if new is None or new is old or spec is None:
            continue
        was_complex = old is not None and old._dtype.is_complex
        check_gradient(new, spec, _invalid(node, number), takes_real_part=was_complex)
    return replaced


def _call_watched(
    state: _Pass, node: Node, grads: list[Tensor | None], needed: list[bool]
) -> Sequence[Tensor | None]:
    """Call a node in anomaly mode."""
    try:
        results = _call(state, node, grads, needed)
        if anomaly_mode.state.check_nan:
            for number, result in enumerate(results):
                if _has_nan(result):
                    message = (
                        f"Function '{node.name()}' returned nan values in its {number}th output."
                    )
                    raise RuntimeError(message)
    except Exception as error:
        anomaly_mode.explain(error, node.name(), node.metadata.get("traceback"))
        raise
    return results


def _has_nan(result: Any) -> bool:
    value = result._value if isinstance(result, BatchedTensor) else result
    return isinstance(value, Tensor) and bool(np.isnan(value._elements("backward")).any())


def _device_of(grads: Sequence[Tensor | None]) -> _device.device | None:
    return next((g.device for g in grads if g is not None), None)


def _wrong_count(node: Node, got: int) -> str:
    return (
        f"function {node.name()} returned an incorrect number of gradients "
        f"(expected {len(node._sources)}, got {got})"
    )


def _deliver(state: _Pass, target: Node, number: int, grad: Any) -> None:
    """Add a gradient, which has the shape and type of the output, to what is there."""
    buffers = state.buffers
    present = buffers.get(target)
    outputs = target._outputs
    if outputs is not None and len(outputs) > 1:
        if present is None:
            present = buffers[target] = [None] * len(outputs)
        if grad is not _UNDEFINED:
            before = present[number]
            present[number] = grad if before is None else _sum(before, grad)
        return
    if present is None or present is _UNDEFINED:
        buffers[target] = grad
    elif grad is _UNDEFINED:
        return
    elif target in state.own and grad.__class__ is np.ndarray and present.__class__ is np.ndarray:
        _sum(present, grad, out=present)
    else:
        total = buffers[target] = _sum(present, grad)
        if total.__class__ is np.ndarray:
            state.own.add(target)


def _sum(a: Any, b: Any, out: Any = None) -> Any:
    if a.__class__ is not np.ndarray or b.__class__ is not np.ndarray:
        return _as_tensor(a) + _as_tensor(b)
    token = silence()
    try:
        return np.asarray(np.add(a, b, out=out))
    finally:
        restore(token)


def _as_tensor(grad: Any) -> Any:
    return wrap(grad) if grad.__class__ is np.ndarray else grad


def _is_plain(grad: Any) -> bool:
    """Tell whether a gradient is no more than its elements."""
    return (
        grad.__class__ is Tensor
        and grad._array.__class__ is np.ndarray
        and not grad._requires_grad
        and grad._tangent is None
    )


def _visit(
    state: _Pass, node: Node, grads: list[Tensor | None], useful: set[Node] | None
) -> Sequence[Any]:
    """Run hooks and formula of one node; return its gradients, nothing if it does not run."""
    if isinstance(node, AccumulateGrad):
        grads = _arrive(state, node, grads, runs=state.accumulate)
        if state.accumulate:
            results = node.apply(grads, ())
            if node._extras is not None:
                for hook in tuple(node._extras.post_hooks.values()):
                    hook(tuple(results), tuple(grads))
        if not state.retain_graph:
            node.release()
        return ()
    needed = _needed(node, useful)
    runs = True in needed
    if node._extras is not None or node in state.captures:
        grads = _arrive(state, node, grads, runs=runs)
    if not runs or (not node.takes_undefined and all(g is None for g in grads)):
        return ()
    if anomaly_mode.state.enabled:
        return _call_watched(state, node, grads, needed)
    return _call(state, node, grads, needed)


def _needed(node: Node, useful: set[Node] | None) -> list[bool]:
    """Return for each input whether its gradient is wanted."""
    return [s is not None and (useful is None or target_of(s)[0] in useful) for s in node._sources]


def run_backward(
    roots: Sequence[tuple[Edge, Tensor | None]],
    *,
    retain_graph: bool,
    create_graph: bool,
    inputs: Sequence[Edge] | None = None,
    accumulate: bool = True,
) -> list[Tensor | None]:
    """Run one reverse pass.

    Parameters
    ----------
    roots
        Edges to start from, each with its gradient. None is a gradient that is not defined, with
        which the formula of a `Function` is called all the same.
    retain_graph
        Keep what the nodes saved.
    create_graph
        Record the pass itself, for higher derivatives.
    inputs
        Edges whose gradients are wanted; only nodes on the way to them run. None: all leaves.
    accumulate
        Whether leaves among the visited nodes add to their ``grad``.

    Returns
    -------
    list
        One gradient per edge of `inputs`, None where none arrived; empty without `inputs`.
    """
    if _native_pass is not None and not create_graph:
        wanted = None if inputs is None else list(inputs)
        found = _native_pass(list(roots), retain_graph, wanted, accumulate)
        if found is not NotImplemented:
            gradients: list[Tensor | None] = found
            return gradients
    state = _Pass(
        inputs or (), retain_graph=retain_graph, create_graph=create_graph, accumulate=accumulate
    )
    pending, nodes = _reachable([edge.node for edge, _ in roots])
    useful = None if inputs is None else _useful(nodes, {edge.node for edge in inputs})
    passes, mode = running.passes, grad_mode.state
    passes.append(RunningPass(pending, useful))
    before, mode.enabled = mode.enabled, create_graph
    try:
        for (node, number), grad in roots:
            plain = state.arrays and _is_plain(grad)
            start = grad._array if plain and grad is not None else grad
            _deliver(state, node, number, _UNDEFINED if start is None else start)
        _run(state, pending, nodes, useful)
    finally:
        mode.enabled = before
        passes.pop()
    return state.captured


def _run(  # noqa: C901 - written out: the path of every backward pass
    state: _Pass, pending: dict[Node, int], nodes: Sequence[Node], useful: set[Node] | None
) -> None:
    """Visit the nodes, each when all gradients that come its way are there."""
    buffers, captures, retain = state.buffers, state.captures, state.retain_graph
    # Newest first; the identity breaks ties and keeps nodes from being compared.
    ready = [(-n.sequence, id(n), n) for n in nodes if pending[n] == 0]
    heapq.heapify(ready)
    following: Node | None = None  # the only node that is ready: no need to put it in order
    token = silence() if state.arrays else None  # for all formulas on arrays at once
    try:
        while following is not None or ready:
            if following is None:
                node = heapq.heappop(ready)[2]
            else:
                node, following = following, None
            grad = buffers.pop(node, None)
            results: Sequence[Any] = ()
            result = found = None  # so that nobody else has the gradient of a leaf
            if grad is not None and (useful is None or node in useful):
                if (
                    grad.__class__ is np.ndarray
                    and node._extras is None
                    and node not in captures
                    and (found := node.apply_to_array(grad, useful, retain=retain)) is not None
                ):
                    results = found
                else:
                    if grad.__class__ is np.ndarray and node in captures:
                        grad = owned(grad, 1)
                    if grad.__class__ is not list:
                        grad = [None if grad is _UNDEFINED else grad]
                    grad = [_as_tensor(g) for g in grad]
                    if token is not None:  # what people wrote sees NumPy's state as they left it
                        restore(token)
                        token = None
                    results = _visit(state, node, grad, useful)
                    if state.arrays:
                        token = silence()
            for number, source in enumerate(node._sources):
                if source is None:
                    continue
                output_nr = 0
                if source.__class__ is Edge:
                    target, output_nr = source
                else:
                    target = source if isinstance(source, Node) else accumulator_of(source)
                if results:
                    result = results[number]
                    if result is not None:
                        if not (
                            result.__class__ is np.ndarray
                            and output_nr == 0
                            and result.shape == target._shape
                            and result.dtype is target._dtype.numpy
                        ):
                            result = _checked(state, node, number, target, output_nr, result, grad)
                        if result is not None:
                            if target in buffers or target._shape is None:
                                _deliver(state, target, output_nr, result)
                            else:
                                buffers[target] = result
                left = pending[target] - 1
                pending[target] = left
                if left == 0:
                    if following is None and not ready:
                        following = target
                    else:
                        if following is not None:
                            heapq.heappush(ready, (-following.sequence, id(following), following))
                            following = None
                        heapq.heappush(ready, (-target.sequence, id(target), target))
    finally:
        if token is not None:
            restore(token)


def _checked(
    state: _Pass, node: Node, number: int, target: Node, output_nr: int, result: Any, grads: Any
) -> Any:
    """Return a gradient with the shape and type of the output that it goes to."""
    spec = target.outputs[output_nr]
    if spec is None:  # not reached: an edge never leads to an output without a gradient
        return None
    result = _as_tensor(result)
    # A graph lies on one device, so gradients go out where they came in.
    first = grads[0] if grads.__class__ is list else grads
    memory = first._array.__class__ if first.__class__ is Tensor else first.__class__
    # Most gradients fit as they are; this is the path of every small operation.
    kind = result.__class__
    if not (
        (result._array.__class__ if kind is Tensor else kind) is memory
        and (kind is Tensor or (kind is BatchedTensor and result.is_meta is first.is_meta))
        and result._dtype is spec[1]
        and result._array.shape == spec[0]
    ):
        result = check_gradient(
            result,
            spec,
            _invalid(node, number),
            device=_device_of([_as_tensor(g) for g in grads])
            if grads.__class__ is list
            else _device.CPU,
            takes_real_part=node.takes_real_part,
        )
    return result._array if state.arrays and _is_plain(result) else result


def _invalid(node: Node, number: int) -> str:
    place = node.place(number)
    return f"{place}Function {node.name()} returned an invalid gradient at index {number}"


# --- the pass in the extension (`_native/src/engine.h`) -----------------------------------------
# It visits plain nodes itself and comes back here for the others, one at a time.


def _begin(
    inputs: Sequence[Edge] | None,
    retain_graph: bool,
    accumulate: bool,
    captured: list[Tensor | None],
    nodes: Collection[Node],
    useful: set[Node] | None,
) -> tuple[_Pass, list[RunningPass], RunningPass]:
    """Return the state of a pass in the extension, and what it puts where for hooks to ask."""
    state = _Pass(
        inputs or (), retain_graph=retain_graph, create_graph=False, accumulate=accumulate
    )
    state.captured = captured
    state.arrays = True
    return state, running.passes, RunningPass(frozenset(nodes), useful)


_native_pass: Any = None if _native.core is None else _native.core.run_backward

if _native.core is not None:
    _native.core.configure_arrays(silence, restore, np.add)
    _native.core.configure_engine(
        *(AccumulateGrad, _dtype.dtype, wrap, accumulator_of, accumulating),
        *(_begin, _visit, _checked),
    )
