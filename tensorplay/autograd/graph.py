"""The recorded graph: nodes, edges, saved tensors, hooks. Knows no operator."""

from __future__ import annotations

import itertools
import sys
import threading
import weakref
from collections import OrderedDict
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from tensorplay._tensor import Spec, Tensor, spec_of
from tensorplay.autograd import anomaly_mode, grad_mode
from tensorplay.autograd.saved_tensors import (
    SavedTensor,
    allow_mutation_on_saved_tensors,
    disable_saved_tensors_hooks,
    save_on_cpu,
    saved_tensors_hooks,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

__all__ = [
    "AccumulateGrad",
    "Edge",
    "GradientEdge",
    "Node",
    "RemovableHandle",
    "SavedTensor",
    "allow_mutation_on_saved_tensors",
    "disable_saved_tensors_hooks",
    "edge_of",
    "get_gradient_edge",
    "register_multi_grad_hook",
    "save_on_cpu",
    "saved_tensors_hooks",
]

Grads = list[Tensor | None]
_sequence = itertools.count()

FREED = (
    "Trying to backward through the graph a second time, but the values saved in it have already "
    "been freed. Specify retain_graph=True the first time."
)


class Edge(NamedTuple):
    """Where a gradient goes: output `output_nr` of `node`."""

    node: Node
    output_nr: int


GradientEdge = Edge


class RemovableHandle:
    """Takes a hook away again by `remove()`, or at the end of a ``with`` block."""

    def __init__(self, hooks: Hooks, hook: Any) -> None:
        self._hooks = weakref.ref(hooks)
        self.id = next(_sequence)
        hooks[self.id] = hook

    def remove(self) -> None:
        """Remove the hook; a second call does nothing."""
        hooks = self._hooks()
        if hooks is not None:
            hooks.pop(self.id, None)

    def __enter__(self) -> RemovableHandle:
        return self

    def __exit__(self, *exception: object) -> None:
        self.remove()


class Hooks(OrderedDict[int, Any]):
    """Hooks in the order of registration; weakly referenced by their handles."""


class Node:
    """One recorded operation.

    A subclass says in `apply` how gradients of its outputs become gradients of its inputs.
    """

    # Nodes are many and live long: no dictionary unless a subclass wants one.
    __slots__ = (
        "__weakref__",
        "_metadata",
        "_post_hooks",
        "_pre_hooks",
        "_retain",
        "_tensor_hooks",
        "edges",
        "outputs",
        "sequence",
    )

    edges: Sequence[Edge | None]
    outputs: Sequence[Spec | None]
    takes_undefined: ClassVar[bool] = False  # whether `apply` is called if no gradient arrived
    # Whether complex gradients of real tensors mean their real parts; see `check_gradient`.
    takes_real_part: bool = True

    def __init__(self, edges: Sequence[Edge | None], outputs: Sequence[Spec | None] = ()) -> None:
        self.edges = edges
        self.outputs = outputs
        self.sequence = next(_sequence)
        self._metadata: dict[str, Any] | None = (
            {"traceback": anomaly_mode.where_from()} if anomaly_mode.state.enabled else None
        )
        self._pre_hooks: Hooks | None = None
        self._post_hooks: Hooks | None = None
        self._tensor_hooks: dict[int, Hooks] | None = None
        self._retain: dict[int, weakref.ref[Tensor]] | None = None

    def name(self) -> str:
        """Return the name shown to people, such as ``MulBackward``."""
        return type(self).__name__

    def apply(self, grads: Grads, needed: Sequence[bool]) -> Sequence[Tensor | None]:
        """Return one gradient, or None, per edge; those not `needed` may be None.

        `grads` holds one gradient per output, None where no gradient arrived.
        """
        raise NotImplementedError

    def release(self) -> None:
        """Free what was saved for `apply`."""

    def saves_result(self) -> bool:
        """Tell whether the node saved a result of its own."""
        return False

    def saved(self) -> dict[str, Any]:
        """Return what is saved for `apply`, by name: a `SavedTensor`, or a list of them.

        They can be read as attributes: ``node._saved_input`` is the tensor, and
        ``node._raw_saved_input`` the `SavedTensor`, which takes hooks.
        """
        found: dict[str, Any] = getattr(self, "_saved", {})
        return found

    def set_tangent(self, output_nr: int, tangent: Tensor) -> None:
        """Attach `tangent` to what the node saved of its output `output_nr`."""
        for value in self.saved().values():
            for saved in value if isinstance(value, list) else (value,):
                if isinstance(saved, SavedTensor) and saved._output_nr == output_nr:
                    saved.set_tangent(tangent)

    def set_view_tangent(self, tangent: Tensor) -> None:
        """Attach `tangent` to what was saved of a view that was written, if this recorded that."""

    def __getattr__(self, name: str) -> Any:
        # Reached only for what is no attribute otherwise.
        for prefix, read in (("_saved_", _unpacked), ("_raw_saved_", _raw)):
            if name.startswith(prefix):
                saved = self.saved()
                key = name[len(prefix) :]
                if key in saved:
                    return read(saved[key], self)
                message = (
                    f"{self.name()} has no saved tensor {key!r}; it has "
                    f"{', '.join(sorted(saved)) or 'none'}, or they were freed by a backward pass"
                )
                raise AttributeError(message)
        message = f"{type(self).__name__!r} object has no attribute {name!r}"
        raise AttributeError(message)

    @property
    def next_functions(self) -> tuple[tuple[Node | None, int], ...]:
        """The nodes that the gradients go to, with the number of their output."""
        return tuple((None, 0) if e is None else (e.node, e.output_nr) for e in self.edges)

    @property
    def metadata(self) -> dict[str, Any]:
        """A dictionary for the user's own notes."""
        if self._metadata is None:
            self._metadata = {}
        return self._metadata

    def register_prehook(self, hook: Callable[..., Any]) -> RemovableHandle:
        """Call ``hook(grad_outputs)`` before the node; it may return replacements."""
        if self._pre_hooks is None:
            self._pre_hooks = Hooks()
        return RemovableHandle(self._pre_hooks, hook)

    def register_hook(self, hook: Callable[..., Any]) -> RemovableHandle:
        """Call ``hook(grad_inputs, grad_outputs)`` after the node; it may return replacements."""
        if self._post_hooks is None:
            self._post_hooks = Hooks()
        return RemovableHandle(self._post_hooks, hook)

    def tensor_hooks(self, output_nr: int) -> Hooks:
        """Return the hooks of the tensor that is output `output_nr`, to add to."""
        if self._tensor_hooks is None:
            self._tensor_hooks = {}
        return self._tensor_hooks.setdefault(output_nr, Hooks())

    def retain(self, tensor: Tensor) -> None:
        """Fill the ``grad`` of `tensor`, an output of this node, in every backward pass."""
        if self._retain is None:
            self._retain = {}
        self._retain[tensor._output_nr] = weakref.ref(tensor)

    def stop_retaining(self, tensor: Tensor) -> bool:
        """Take back `retain` for `tensor`; return whether there was anything to take back."""
        held = None if self._retain is None else self._retain.get(tensor._output_nr)
        if self._retain is None or held is None or held() is not tensor:
            return False
        del self._retain[tensor._output_nr]
        return True

    def retains(self, output_nr: int) -> bool:
        """Tell whether `retain` was called for output `output_nr`."""
        return self._retain is not None and output_nr in self._retain

    def __repr__(self) -> str:
        return f"<{self.name()} object at {id(self):#x}>"


def _unpacked(value: Any, node: Node) -> Any:
    if isinstance(value, SavedTensor):
        return value.unpack(node)
    return tuple(_unpacked(v, node) for v in value) if isinstance(value, list) else value


def _raw(value: Any, node: Node) -> Any:
    return tuple(value) if isinstance(value, list) else value


# Two threads may reach the same leaf, or the same retained tensor, at once.
_accumulating = threading.RLock()


def add_to_grad(tensor: Tensor, grad: Tensor) -> None:
    """Add `grad` to ``tensor.grad``.

    The first gradient is copied: it may be on its way elsewhere too, or be a broadcast view. Later
    ones are added in place, so that references to ``grad`` stay valid, unless the sum must have a
    history of its own.
    """
    recorded = grad_mode.state.enabled and grad.requires_grad
    with _accumulating:
        present = tensor._grad
        if present is None:
            tensor._grad = grad.clone() if recorded else grad.detach().clone()
        elif recorded or (grad_mode.state.enabled and present.requires_grad):
            tensor._grad = present + grad
        else:
            with grad_mode.no_grad():
                present.add_(grad)


class AccumulateGrad(Node):
    """The end of a path: adds what arrives to the ``grad`` of a leaf."""

    __slots__ = ("variable",)

    def __init__(self, variable: Tensor) -> None:
        super().__init__((), (spec_of(variable),))
        # It leads nowhere, so it can run as soon as its gradient is complete.
        self.sequence = sys.maxsize
        self.variable = variable

    def apply(self, grads: Grads, needed: Sequence[bool]) -> Sequence[Tensor | None]:
        """Add the gradient to ``variable.grad`` and run the post-accumulate hooks."""
        grad, variable = grads[0], self.variable
        if grad is None:
            return ()
        if grad.device != variable.device:  # a number on cpu among tensors on meta
            message = (
                f"[backward] expected a gradient on device {variable.device}, the device of the "
                f"leaf, got one on {grad.device}. Write x.to('{grad.device}') before use."
            )
            raise RuntimeError(message)
        add_to_grad(variable, grad)
        hooks = variable._hooks
        if hooks is not None and hooks.post_accumulate:
            for hook in tuple(hooks.post_accumulate.values()):
                hook(variable)
        return ()


class LeafHooks:
    """The hooks of a leaf: on the arriving gradient, and after it was added."""

    __slots__ = ("grad", "post_accumulate")

    def __init__(self) -> None:
        self.grad = Hooks()
        self.post_accumulate = Hooks()


def leaf_hooks(tensor: Tensor) -> LeafHooks:
    """Return the hooks of the leaf `tensor`, to add to."""
    hooks: LeafHooks | None = tensor._hooks
    if hooks is None:
        hooks = tensor._hooks = LeafHooks()
    return hooks


def edge_of(tensor: Tensor) -> Edge | None:
    """Return where the gradient of `tensor` goes, None if it does not require one."""
    if tensor._base is not None:
        tensor._synchronise()
    if tensor._grad_fn is not None:
        return Edge(tensor._grad_fn, tensor._output_nr)
    if not tensor._requires_grad:
        return None
    # The node holds the leaf; the leaf holds the node weakly, so that they make no cycle.
    node = None if tensor._accumulator is None else tensor._accumulator()
    if node is None:
        with _accumulating:  # all graphs that use the leaf must end in one node
            node = None if tensor._accumulator is None else tensor._accumulator()
            if node is None:
                node = AccumulateGrad(tensor)
                tensor._accumulator = weakref.ref(node)
    return Edge(node, 0)


def get_gradient_edge(tensor: Tensor | Edge) -> Edge:
    """Return where the gradient of `tensor` goes; `autograd.grad` takes it for the tensor.

    Unlike the tensor it does not keep the elements alive.

    Raises
    ------
    RuntimeError
        The tensor does not require grad.
    """
    if isinstance(tensor, Edge):
        return tensor
    edge = edge_of(tensor)
    if edge is None:
        message = (
            "[get_gradient_edge] it is not possible to get the gradient edge for a Tensor that "
            "does not require gradients. Write x.requires_grad_()."
        )
        raise RuntimeError(message)
    return edge


class _Running(threading.local):
    """The reverse passes under way in this thread, the innermost last."""

    def __init__(self) -> None:
        self.passes: list[RunningPass] = []


class RunningPass:
    """What a hook may ask of the pass that calls it."""

    __slots__ = ("arrived", "nodes", "useful")

    def __init__(self, nodes: Collection[int], useful: set[int] | None) -> None:
        # What hooks on several tensors have so far; it ends with the pass, however that ends.
        self.arrived: dict[_MultiHook, _Arrived] = {}
        self.nodes = nodes
        self.useful = useful

    def reaches(self, node: Node) -> bool:
        """Tell whether the pass will come by `node`."""
        key = id(node)
        return key in self.nodes and (self.useful is None or key in self.useful)


running = _Running()


class _Handles:
    """Several handles as one."""

    def __init__(self, handles: Sequence[RemovableHandle]) -> None:
        self.handles = tuple(handles)

    def remove(self) -> None:
        """Remove all hooks."""
        for handle in self.handles:
            handle.remove()

    def __enter__(self) -> _Handles:
        return self

    def __exit__(self, *exception: object) -> None:
        self.remove()


class _Arrived:
    """Gradients that a hook on several tensors has got in one pass, and how many it waits for."""

    __slots__ = ("grads", "missing")

    def __init__(self, count: int, missing: int) -> None:
        self.grads: list[Tensor | None] = [None] * count
        self.missing = missing


class _MultiHook:
    """Collects gradients of several tensors over one pass."""

    def __init__(self, tensors: Sequence[Tensor], fn: Callable[..., None], *, every: bool) -> None:
        self.nodes = [get_gradient_edge(tensor).node for tensor in tensors]
        self.fn = fn
        self.every = every

    def __call__(self, position: int, grad: Tensor) -> None:
        current = running.passes[-1]
        state = current.arrived.get(self)
        if state is None:
            reached = sum(current.reaches(node) for node in self.nodes)
            state = _Arrived(len(self.nodes), reached if self.every else 1)
            current.arrived[self] = state
        state.grads[position] = grad
        state.missing -= 1
        if state.missing == 0:
            self.fn(tuple(state.grads) if self.every else grad)


def register_multi_grad_hook(
    tensors: Sequence[Tensor], fn: Callable[..., None], *, mode: str = "all"
) -> _Handles:
    """Call `fn` once in a backward pass that computes gradients of `tensors`.

    Parameters
    ----------
    tensors
        Tensors that require grad.
    fn
        With mode ``"all"``, ``fn(grads)`` is called when the gradients of all tensors that the pass
        reaches are there; the others are None. With mode ``"any"``, ``fn(grad)`` is called with
        the first.
    mode
        ``"all"`` or ``"any"``.

    Returns
    -------
    handle
        Its ``remove()`` takes the hook away.

    Raises
    ------
    ValueError
        Another mode.
    RuntimeError
        A tensor does not require grad.
    """
    if mode not in {"all", "any"}:
        message = (
            "[register_multi_grad_hook] argument 'mode': expects mode to be one of 'all' and "
            f"'any', got {mode!r}."
        )
        raise ValueError(message)
    hook = _MultiHook(tensors, fn, every=mode == "all")

    def of(position: int) -> Callable[[Tensor], None]:
        return lambda grad: hook(position, grad)

    register: list[RemovableHandle] = [
        tensor.register_hook(of(position)) for position, tensor in enumerate(tensors)
    ]
    return _Handles(register)
