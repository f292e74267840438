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

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["AccumulateGrad", "Edge", "Node", "RemovableHandle", "SavedTensor", "edge_of"]

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


class SavedTensor:
    """A tensor kept for the backward pass, with the version that it had.

    An output of the saving node is kept without its history, which is the node itself: with it,
    node and tensor would hold each other.
    """

    __slots__ = ("_output_nr", "_tensor", "_version", "_wants_grad", "computed")

    def __init__(
        self, tensor: Tensor, output_nr: int | None = None, *, computed: bool = False
    ) -> None:
        self._tensor = tensor if output_nr is None else tensor.detach()
        self._output_nr = output_nr
        self._version = tensor._version
        self._wants_grad = tensor._requires_grad
        self.computed = computed  # neither input nor output of the saving node

    @property
    def is_result(self) -> bool:
        """Whether the tensor is an output of the node that saved it."""
        return self._output_nr is not None

    def unpack(self, node: Node | None) -> Tensor:
        """Return the tensor with its history, which for an output is `node`.

        Raises
        ------
        RuntimeError
            The tensor was changed in place since it was saved.
        """
        tensor = self._tensor
        if tensor._version != self._version:
            maker = None if self._output_nr is None or node is None else node.name()
            if maker is None and tensor._grad_fn is not None:
                maker = tensor._grad_fn.name()
            origin = "" if maker is None else f", which is output {tensor._output_nr} of {maker},"
            message = (
                "one of the variables needed for gradient computation has been modified by an "
                f"inplace operation: [{tensor.dtype!r} {list(tensor.shape)}]{origin} is at "
                f"version {tensor._version}; expected version {self._version} instead. Hint: "
                "enable anomaly detection to find the operation that failed to compute its "
                "gradient, or write x.clone() before the in-place operation."
            )
            raise RuntimeError(message)
        if self._output_nr is None or node is None or node.outputs[self._output_nr] is None:
            return tensor
        result = tensor.detach()
        result._grad_fn, result._output_nr, result._requires_grad = node, self._output_nr, True
        return result
