"""The recorded graph: nodes, edges, saved tensors, hooks. Knows no operator."""

from __future__ import annotations

import itertools
import os
import sys
import threading
import weakref
from collections import OrderedDict
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np

from tensorplay._layout import is_dense
from tensorplay._tensor import Spec, Tensor, VersionCounter, wrap
from tensorplay.autograd import anomaly_mode, grad_mode
from tensorplay.autograd.saved_tensors import (
    SavedTensor,
    Strong,
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
    "source_of",
]

Grads = list[Tensor | None]
# Where the gradient of an input goes. An operator keeps the shortest form: the leaf itself, or the
# node if the input is its first output. `Node.edges` gives the edge for each.
Source = Any
_sequence = itertools.count()
next_number = _sequence.__next__

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
        self.id = next_number()
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


class _Extras:
    """What few nodes have: hooks, notes, tensors that retain their gradients."""

    __slots__ = ("metadata", "post_hooks", "pre_hooks", "retain", "tensor_hooks")

    def __init__(self) -> None:
        self.metadata: dict[str, Any] = {}
        self.pre_hooks = Hooks()
        self.post_hooks = Hooks()
        self.tensor_hooks: dict[int, Hooks] = {}
        self.retain: dict[int, weakref.ref[Tensor]] = {}


class Node:
    """One recorded operation.

    A subclass says in `apply` how gradients of its outputs become gradients of its inputs.
    """

    # Nodes are many and live long: no dictionary unless a subclass wants one, and no `__getattr__`,
    # which would slow down every attribute.
    __slots__ = ("__weakref__", "_dtype", "_extras", "_outputs", "_shape", "_sources", "sequence")

    _dtype: Any  # of the output, if there is one
    _extras: _Extras | None
    _outputs: Sequence[Spec | None] | None  # None: one output, of _shape and _dtype
    _shape: tuple[int, ...] | None  # None: not just one output, or one without gradient
    _sources: Sequence[Source]
    sequence: int
    takes_undefined: ClassVar[bool] = False  # whether `apply` is called if no gradient arrived
    # Whether complex gradients of real tensors mean their real parts; see `check_gradient`.
    takes_real_part: bool = True

    def __init__(self, edges: Sequence[Source], outputs: Sequence[Spec | None] = ()) -> None:
        self._sources = edges
        self.outputs = outputs
        self.sequence = next_number()
        self._extras = None
        if anomaly_mode.state.enabled:
            self.metadata["traceback"] = anomaly_mode.where_from()

    @property
    def outputs(self) -> Sequence[Spec | None]:
        """Shape and type of each output, None for one that has no gradient."""
        if self._outputs is None:
            self._outputs = (Spec(self._shape or (), self._dtype),)
        return self._outputs

    @outputs.setter
    def outputs(self, outputs: Sequence[Spec | None]) -> None:
        self._outputs = outputs
        only = outputs[0] if len(outputs) == 1 else None
        self._shape, self._dtype = (None, None) if only is None else (only[0], only[1])

    @property
    def edges(self) -> Sequence[Edge | None]:
        """Where the gradients of the inputs go, None for those that need none."""
        sources = self._sources
        for source in sources:
            if source is not None and source.__class__ is not Edge:
                # Kept: the node of a leaf lives as long as a graph shows it.
                sources = self._sources = tuple([_as_edge(s) for s in sources])
                break
        return sources

    def name(self) -> str:
        """Return the name shown to people, such as ``MulBackward``."""
        return type(self).__name__

    def place(self, number: int) -> str:
        """Return operator and argument of an input, as errors begin; empty where none are known."""
        return ""

    def apply(self, grads: Grads, needed: Sequence[bool]) -> Sequence[Tensor | None]:
        """Return one gradient, or None, per edge; those not `needed` may be None.

        `grads` holds one gradient per output, None where no gradient arrived.
        """
        raise NotImplementedError

    def apply_to_array(
        self, grad: Any, wanted: Collection[Node] | None, *, retain: bool
    ) -> Sequence[Any] | None:
        """Do the same on elements alone, as NumPy arrays, and release the node unless `retain`.

        None says that only `apply` can do it. `wanted` are the nodes whose gradients are needed,
        None if all are. NumPy's warnings are silenced by the caller.
        """
        return None

    def release(self) -> None:
        """Free what was saved for `apply`."""

    def saves_result(self) -> bool:
        """Tell whether the node saved a result of its own."""
        return False

    def saves_packed(self) -> bool:
        """Tell whether something saved comes back through functions of people's own."""
        return False

    def result_counter(self, output_nr: int) -> VersionCounter:
        """Return the counter for writes to the memory of an output, which has none yet."""
        return VersionCounter()

    def saved(self) -> dict[str, Any]:
        """Return what is saved for `apply`, by name: a `SavedTensor`, or a list of them.

        The nodes of operators show them as attributes: ``node._saved_input`` is the tensor, and
        ``node._raw_saved_input`` the `SavedTensor`, which takes hooks.
        """
        return {}

    def set_tangent(self, output_nr: int, tangent: Tensor) -> None:
        """Attach `tangent` to what the node saved of its output `output_nr`."""
        for value in self.saved().values():
            for saved in value if isinstance(value, list) else (value,):
                if isinstance(saved, SavedTensor) and saved._output_nr == output_nr:
                    saved.set_tangent(tangent)

    def set_view_tangent(self, tangent: Tensor) -> None:
        """Attach `tangent` to what was saved of a view that was written, if this recorded that."""

    @property
    def next_functions(self) -> tuple[tuple[Node | None, int], ...]:
        """The nodes that the gradients go to, with the number of their output."""
        return tuple((None, 0) if e is None else (e.node, e.output_nr) for e in self.edges)

    def _more(self) -> _Extras:
        if self._extras is None:
            self._extras = _Extras()
        return self._extras

    @property
    def metadata(self) -> dict[str, Any]:
        """A dictionary for the user's own notes."""
        return self._more().metadata

    def has_hooks(self) -> bool:
        """Tell whether anything is called, or kept, when a gradient comes by."""
        more = self._extras
        return more is not None and bool(
            more.pre_hooks or more.post_hooks or more.retain or any(more.tensor_hooks.values())
        )

    def register_prehook(self, hook: Callable[..., Any]) -> RemovableHandle:
        """Call ``hook(grad_outputs)`` before the node; it may return replacements."""
        return RemovableHandle(self._more().pre_hooks, hook)

    def register_hook(self, hook: Callable[..., Any]) -> RemovableHandle:
        """Call ``hook(grad_inputs, grad_outputs)`` after the node; it may return replacements."""
        return RemovableHandle(self._more().post_hooks, hook)

    def tensor_hooks(self, output_nr: int) -> Hooks:
        """Return the hooks of the tensor that is output `output_nr`, to add to."""
        return self._more().tensor_hooks.setdefault(output_nr, Hooks())

    def retain(self, tensor: Tensor) -> None:
        """Fill the ``grad`` of `tensor`, an output of this node, in every backward pass."""
        self._more().retain[tensor._output_nr] = weakref.ref(tensor)

    def stop_retaining(self, tensor: Tensor) -> bool:
        """Take back `retain` for `tensor`; return whether there was anything to take back."""
        held = None if self._extras is None else self._extras.retain.get(tensor._output_nr)
        if self._extras is None or held is None or held() is not tensor:
            return False
        del self._extras.retain[tensor._output_nr]
        return True

    def retains(self, output_nr: int) -> bool:
        """Tell whether `retain` was called for output `output_nr`."""
        return self._extras is not None and output_nr in self._extras.retain

    def __repr__(self) -> str:
        return f"<{self.name()} object at {id(self):#x}>"


def saved_attribute(node: Node, name: str) -> Any:
    """Return what a node shows as ``_saved_NAME`` or ``_raw_saved_NAME``.

    Raises
    ------
    AttributeError
        Nothing is saved under that name.
    """
    raw = name.startswith("_raw_saved_")
    key = name.removeprefix("_raw_saved_" if raw else "_saved_")
    saved = node.saved()
    if key not in saved:
        message = (
            f"{node.name()} has no saved tensor {key!r}; it has "
            f"{', '.join(sorted(saved)) or 'none'}, or they were freed by a backward pass"
        )
        raise AttributeError(message)
    value = saved[key]
    if raw:
        return tuple(value) if isinstance(value, list) else value
    return _unpacked(value, node)


def _unpacked(value: Any, node: Node) -> Any:
    if isinstance(value, SavedTensor):
        return value.unpack(node)
    return tuple(_unpacked(v, node) for v in value) if isinstance(value, list) else value


# Two threads may reach the same leaf, or the same retained tensor, at once.
accumulating = threading.RLock()
# A child of `os.fork` has no other threads: what one of them held would never be let go.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=accumulating.acquire,
        after_in_parent=accumulating.release,
        after_in_child=accumulating.release,
    )


def add_to_grad(tensor: Tensor, grad: Tensor) -> None:
    """Add `grad` to ``tensor.grad``.

    The first gradient is copied: it may be on its way elsewhere too, or be a broadcast view. Later
    ones are added in place, so that references to ``grad`` stay valid, unless the sum must have a
    history of its own.
    """
    recorded = grad_mode.state.enabled and grad.requires_grad
    with accumulating:
        present = tensor._grad
        if present is None:
            tensor._grad = grad.clone() if recorded else grad.detach().clone()
        elif recorded or (grad_mode.state.enabled and present.requires_grad):
            tensor._grad = present + grad
        else:
            with grad_mode.no_grad():
                if present.is_cuda:  # whose memory is another library's
                    present._array = (present + grad)._array
                else:
                    present.add_(grad)


# From Python 3.14 on a count of references may leave out local variables: then it proves nothing.
_COUNTS_LOCALS = sys.version_info < (3, 14)


def owned(array: Any, holders: int) -> Any:
    """Return `array`, or a copy of it if others than the given number of variables hold it.

    Arrays on their way may be on another way too, be saved somewhere, or be views.
    """
    # Two more are the parameter here and that of the count.
    if (
        _COUNTS_LOCALS
        and array.base is None
        and array.flags.owndata
        and sys.getrefcount(array) <= holders + 2
    ):
        return array
    # As `clone` copies: how it lies does not depend on who holds it.
    keeps = array.flags.forc or is_dense(array.shape, array.strides, array.itemsize)
    return array.copy(order="K" if keeps else "C")


def _is_ordinary(present: Tensor) -> bool:
    """Tell whether a gradient can be added to without the checks of an in-place operator."""
    array = present._array
    return (
        present.__class__ is Tensor
        and array.__class__ is np.ndarray
        and array.flags.c_contiguous
        and array.flags.writeable
        and present._base is None
        and present._tangent is None
        and not present._requires_grad
        and not present._inference
    )


class AccumulateGrad(Node):
    """The end of a path: adds what arrives to the ``grad`` of a leaf."""

    __slots__ = ("variable",)

    def __init__(self, variable: Tensor) -> None:
        self.variable = variable
        super().__init__((), (_edge(Spec, (variable._array.shape, variable._dtype, None)),))
        # It leads nowhere, so it can run as soon as its gradient is complete.
        self.sequence = sys.maxsize

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

    def apply_to_array(
        self, grad: Any, wanted: Collection[Node] | None, *, retain: bool
    ) -> Sequence[Any] | None:
        """Add the gradient, if there are no hooks and ``variable.grad`` is an ordinary tensor."""
        variable = self.variable
        if variable._hooks is not None or variable._array.__class__ is not np.ndarray:
            return None
        with accumulating:
            present = variable._grad
            if present is None:
                # The engine and this function have it.
                variable._grad = wrap(owned(grad, 2), variable._dtype)
                return ()
            if not _is_ordinary(present) or present._array.shape != grad.shape:
                return None
            np.add(present._array, grad, out=present._array)
            present._bump_version()
        return ()

    def register_prehook(self, hook: Callable[..., Any]) -> RemovableHandle:
        """Call ``hook(grad_outputs)`` before the node; it may return replacements."""
        self._stay()
        return super().register_prehook(hook)

    def register_hook(self, hook: Callable[..., Any]) -> RemovableHandle:
        """Call ``hook(grad_inputs, grad_outputs)`` after the node."""
        self._stay()
        return super().register_hook(hook)

    def _stay(self) -> None:
        # Hooks live as long as a graph that leads here. Graphs may know the leaf only, so the node
        # stays with it until the first pass that frees a graph.
        held = self.variable._accumulator
        if held is not None and held() is self:
            self.variable._accumulator = Strong(self)

    def release(self) -> None:
        """Leave the leaf: from now on the node lives as long as somebody else holds it."""
        held = self.variable._accumulator
        if held.__class__ is Strong and held() is self:
            self.variable._accumulator = weakref.ref(self)


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


def accumulator_of(leaf: Tensor) -> AccumulateGrad:
    """Return the node that ends all paths to `leaf`."""
    # The node holds the leaf; the leaf holds the node weakly, so that they make no cycle.
    reference = leaf._accumulator
    node: AccumulateGrad | None = None if reference is None else reference()
    if node is None:
        with accumulating:  # all graphs that use the leaf must end in one node
            node = None if leaf._accumulator is None else leaf._accumulator()
            if node is None:
                node = AccumulateGrad(leaf)
                leaf._accumulator = weakref.ref(node)
    return node


def edge_of(tensor: Tensor) -> Edge | None:
    """Return where the gradient of `tensor` goes, None if it does not require one.

    Parameters
    ----------
    tensor
        A tensor that requires grad.

    Returns
    -------
    Edge or None
        A node, and the number of its output.
    """
    if tensor._base is not None:
        tensor._synchronise()
    if tensor._grad_fn is not None:
        found: Edge = _edge(Edge, (tensor._grad_fn, tensor._output_nr))
        return found
    if not tensor._requires_grad:
        return None
    return Edge(accumulator_of(tensor), 0)


# Edge(...) goes through Python code.
_edge: Any = tuple.__new__


def source_of(value: Any) -> Source:
    """Return where the gradient of an argument goes, in the least form; None if nowhere.

    A leaf stands for the node that adds to its ``grad``, a node for its first output.

    Parameters
    ----------
    value
        Any argument of an operator.

    Returns
    -------
    Node, Edge or None
        The node alone where its first output is meant.
    """
    if value.__class__ is not Tensor:
        return edge_of(value) if isinstance(value, Tensor) else None
    if value._base is not None:
        value._synchronise()
    node = value._grad_fn
    if node is None:
        return value if value._requires_grad else None
    return _edge(Edge, (node, value._output_nr)) if value._output_nr else node


def _as_edge(source: Source) -> Edge | None:
    if source is None or isinstance(source, Edge):
        return source
    return Edge(accumulator_of(source) if isinstance(source, Tensor) else source, 0)


def target_of(source: Source) -> tuple[Node, int]:
    """Return the node and output number that a source, which is not None, stands for."""
    if isinstance(source, Edge):
        return source.node, source.output_nr
    # Not asked whether it is a tensor: a leaf's class may be changed after it was used.
    return (source if isinstance(source, Node) else accumulator_of(source)), 0


def get_gradient_edge(tensor: Tensor | Edge) -> Edge:
    """Return where the gradient of `tensor` goes; `autograd.grad` takes it for the tensor.

    Unlike the tensor it does not keep the elements alive.

    Parameters
    ----------
    tensor
        A tensor that requires grad.

    Returns
    -------
    Edge
        A node, and the number of its output.

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

    def __init__(self, nodes: Collection[Node], useful: set[Node] | None) -> None:
        # What hooks on several tensors have so far; it ends with the pass, however that ends.
        self.arrived: dict[_MultiHook, _Arrived] = {}
        self.nodes = nodes
        self.useful = useful

    def reaches(self, node: Node) -> bool:
        """Tell whether the pass will come by `node`."""
        return node in self.nodes and (self.useful is None or node in self.useful)


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
