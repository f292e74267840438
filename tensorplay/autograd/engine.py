"""The reverse pass: gradients flow from the roots to the leaves, newest operation first.

The traversal is a loop over a heap, so the depth of a graph is limited by memory alone. All state
of one pass is local to the call: several threads may run passes at once, and a backward formula
may start a pass of its own.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, Any

import numpy as np

from tensorplay import _device
from tensorplay._tensor import Spec, Tensor
from tensorplay.autograd import anomaly_mode, grad_mode
from tensorplay.autograd.batched import BatchedTensor
from tensorplay.autograd.graph import (
    AccumulateGrad,
    Edge,
    Hooks,
    Node,
    RunningPass,
    add_to_grad,
    running,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["check_gradient", "run_backward"]


class _Pass:
    """The state of one reverse pass."""

    __slots__ = ("accumulate", "buffers", "captured", "captures", "create_graph", "retain_graph")

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
        # Gradients wanted by edge (node identity, output number) instead of, or beside, leaves.
        self.captures: dict[int, list[tuple[int, int]]] = {}
        for position, edge in enumerate(inputs):
            self.captures.setdefault(id(edge.node), []).append((edge.output_nr, position))
        self.captured: list[Tensor | None] = [None] * len(inputs)
        self.buffers: dict[int, list[Tensor | None]] = {}


def _reachable(roots: Sequence[Node]) -> tuple[dict[int, int], list[Node]]:
    """Return how many edges lead to each reachable node, and the nodes."""
    pending: dict[int, int] = {id(node): 0 for node in roots}
    nodes = list({id(node): node for node in roots}.values())
    for node in nodes:  # grows while it is walked
        for edge in node.edges:
            if edge is not None:
                key = id(edge.node)
                if key not in pending:
                    pending[key] = 0
                    nodes.append(edge.node)
                pending[key] += 1
    return pending, nodes


def _useful(nodes: Sequence[Node], targets: set[int]) -> set[int]:
    """Return the nodes from which a target can be reached, targets included."""
    useful = set(targets)
    # A node is newer than all nodes its edges lead to, so one sweep from old to new settles it.
    for node in sorted(nodes, key=lambda n: n.sequence):
        if any(edge is not None and id(edge.node) in useful for edge in node.edges):
            useful.add(id(node))
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
        message = f"{where}: expected Variable or None (got {type(grad).__name__})."
        raise InvalidGradientTypeError(message, "type")
    if device is not None and grad.device != device:
        message = f"{where} - expected a gradient on device {device}, got one on {grad.device}."
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
                f"{list(spec.shape)}."
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
    if node._tensor_hooks is not None:
        for number, hooks in node._tensor_hooks.items():
            grad = grads[number]
            if grad is not None:
                grads[number] = _run_tensor_hooks(hooks, grad)
    if runs and node._pre_hooks:
        grads = _run_pre_hooks(node, grads)
    if node._retain is not None:
        for number, reference in node._retain.items():
            tensor, grad = reference(), grads[number]
            if tensor is not None and grad is not None:
                add_to_grad(tensor, grad)
    for number, position in state.captures.get(id(node), ()):
        state.captured[position] = grads[number]
    return grads


def _run_pre_hooks(node: Node, grads: list[Tensor | None]) -> list[Tensor | None]:
    for hook in tuple((node._pre_hooks or {}).values()):
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
    if len(results) != len(node.edges):
        raise RuntimeError(_wrong_count(node, len(results)))
    if node._post_hooks:
        for hook in tuple(node._post_hooks.values()):
            replaced = hook(tuple(results), tuple(grads))
            if replaced is not None:
                replaced = replaced if isinstance(replaced, (tuple, list)) else (replaced,)
                if len(replaced) != len(node.edges):
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
        f"(expected {len(node.edges)}, got {got})"
    )


def _deliver(state: _Pass, edge: Edge, grad: Tensor | None) -> None:
    node, number = edge
    key = id(node)
    buffer = state.buffers.get(key)
    if buffer is None:
        outputs = len(node.outputs)
        if outputs <= 1:  # the usual case, without a list to fill
            state.buffers[key] = [grad]
            return
        buffer = state.buffers[key] = [None] * outputs
    if grad is None:
        return
    present = buffer[number]
    buffer[number] = grad if present is None else present + grad


def _visit(
    state: _Pass, node: Node, grads: list[Tensor | None], useful: set[int] | None
) -> Sequence[Any]:
    """Run hooks and formula of one node; return its gradients, nothing if it does not run."""
    if isinstance(node, AccumulateGrad):
        grads = _arrive(state, node, grads, runs=state.accumulate)
        if state.accumulate:
            results = node.apply(grads, ())
            if node._post_hooks:
                for hook in tuple(node._post_hooks.values()):
                    hook(tuple(results), tuple(grads))
        return ()
    needed = [e is not None and (useful is None or id(e[0]) in useful) for e in node.edges]
    runs = True in needed
    if node._tensor_hooks or node._pre_hooks or node._retain or id(node) in state.captures:
        grads = _arrive(state, node, grads, runs=runs)
    if not runs or (not node.takes_undefined and all(g is None for g in grads)):
        return ()
    if anomaly_mode.state.enabled:
        return _call_watched(state, node, grads, needed)
    return _call(state, node, grads, needed)


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
    state = _Pass(
        inputs or (), retain_graph=retain_graph, create_graph=create_graph, accumulate=accumulate
    )
    pending, nodes = _reachable([edge.node for edge, _ in roots])
    useful = None if inputs is None else _useful(nodes, {id(edge.node) for edge in inputs})
    passes, mode = running.passes, grad_mode.state
    passes.append(RunningPass(pending, useful))
    before, mode.enabled = mode.enabled, create_graph
    try:
        for edge, grad in roots:
            _deliver(state, edge, grad)
        _run(state, pending, nodes, useful)
    finally:
        mode.enabled = before
        passes.pop()
    return state.captured


def _run(
    state: _Pass, pending: dict[int, int], nodes: Sequence[Node], useful: set[int] | None
) -> None:
    """Visit the nodes, each when all gradients that come its way are there."""
    buffers = state.buffers
    # Newest first; the identity breaks ties and keeps nodes from being compared.
    ready = [(-n.sequence, id(n), n) for n in nodes if pending[id(n)] == 0]
    heapq.heapify(ready)
    while ready:
        _, key, node = heapq.heappop(ready)
        grads = buffers.pop(key, None)
        results: Sequence[Any] = ()
        if grads is not None and (useful is None or key in useful):
            results = _visit(state, node, grads, useful)
        # A graph lies on one device, so gradients go out where they came in.
        first = grads[0] if results and grads else None
        memory = type(first._array) if type(first) is Tensor else None
        for number, edge in enumerate(node.edges):
            if edge is None:
                continue
            target, output_nr = edge
            result = results[number] if results else None
            if result is not None:
                spec = target.outputs[output_nr]
                if spec is not None:  # an edge never leads to an output without a gradient
                    # Most gradients fit as they are; this is the path of every small operation.
                    if not (
                        type(result) is Tensor
                        and result._dtype is spec[1]
                        and result._array.shape == spec[0]
                        and type(result._array) is memory
                    ):
                        result = check_gradient(
                            result,
                            spec,
                            _invalid(node, number),
                            device=_device_of(grads or ()),
                            takes_real_part=node.takes_real_part,
                        )
                    _deliver(state, edge, result)
            waiting = id(target)
            left = pending[waiting] - 1
            pending[waiting] = left
            if left == 0:
                heapq.heappush(ready, (-target.sequence, waiting, target))


def _invalid(node: Node, number: int) -> str:
    return f"Function {node.name()} returned an invalid gradient at index {number}"
