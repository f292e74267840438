"""Tensors kept for the backward pass, and the hooks that decide how they are kept."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from tensorplay._detours import Detour, enter, leave
from tensorplay._tensor import Tensor, VersionCounter, wrap
from tensorplay.autograd import forward_ad, grad_mode

if TYPE_CHECKING:
    from types import TracebackType

    from tensorplay.autograd.graph import Edge, Node

__all__ = [
    "SavedTensor",
    "allow_mutation_on_saved_tensors",
    "disable_saved_tensors_hooks",
    "save_on_cpu",
    "saved_tensors_hooks",
]

INFERENCE_SAVED = (
    "inference tensors cannot be saved for backward. Write x.clone() outside of inference_mode() "
    "to get a normal tensor, and use it in the computation."
)

# Said where a pass is recorded itself: its result would lack what the tensor was computed from.
DETACHED = (
    "a tensor needed for a second derivative was detached in place (detach_) after it was saved, "
    "so that the derivative would miss its history. Write h = h.detach() instead."
)

Pack = Callable[[Tensor], Any]
Unpack = Callable[[Any], Tensor]


class _State(threading.local):
    def __init__(self) -> None:
        self.hooks: list[tuple[Pack, Unpack]] = []
        self.disabled: str | None = None
        self.mutations: list[SavedCopies] = []


state = _State()

# One entry per open context of any thread: what every save looks at first, as it costs the least.
open_contexts: list[Detour] = []


def _enter() -> None:
    open_contexts.append(enter("what becomes of saved tensors"))


def _leave() -> None:
    leave(open_contexts.pop())


class _Packed:
    """What a pack hook made of a tensor, and where the gradient of that tensor goes."""

    __slots__ = ("edge", "is_leaf", "level", "tangent", "unpack", "value")

    def __init__(self, value: Any, unpack: Unpack, edge: Edge | None, *, is_leaf: bool) -> None:
        self.value = value
        self.unpack = unpack
        self.edge = edge
        self.is_leaf = is_leaf
        self.tangent: Tensor | None = None
        self.level: int | None = None

    def set_tangent(self, tangent: Tensor | None) -> None:
        """Remember the tangent that the tensor has at the open level of forward mode."""
        self.tangent, self.level = tangent, forward_ad.current_number()


class SavedTensor:
    """A tensor kept for the backward pass, with the version that it had.

    An output of the saving node is kept without its history, which is the node itself: with it,
    node and tensor would hold each other.
    """

    __slots__ = (
        "__weakref__",
        "_had_history",
        "_output_nr",
        "_packed",
        "_tensor",
        "_version",
        "_wants_grad",
        "computed",
    )

    def __init__(
        self, tensor: Tensor, output_nr: int | None = None, *, computed: bool = False
    ) -> None:
        if tensor._inference:
            raise RuntimeError(INFERENCE_SAVED)
        self._tensor: Tensor | None = tensor if output_nr is None else tensor.detach()
        self._output_nr = output_nr
        counter = tensor._counter
        self._version = 0 if counter is None else counter.value
        self._wants_grad = tensor._requires_grad
        self._had_history = output_nr is None and tensor._grad_fn is not None
        self.computed = computed  # neither input nor output of the saving node
        self._packed: _Packed | None = None
        if open_contexts:
            if state.hooks:
                self._pack(*state.hooks[-1])
            if state.mutations:
                state.mutations[-1].watch(self)

    @property
    def is_result(self) -> bool:
        """Whether the tensor is an output of the node that saved it."""
        return self._output_nr is not None

    @property
    def is_packed(self) -> bool:
        """Whether hooks decide how the tensor is kept."""
        return self._packed is not None

    def register_hooks(self, pack_hook: Pack, unpack_hook: Unpack) -> None:
        """Keep what ``pack_hook(tensor)`` returns instead; `unpack_hook` makes a tensor of it.

        Raises
        ------
        RuntimeError
            There are hooks already, or the pack hook changes its argument.
        TypeError
            A hook is not callable.
        """
        if self._packed is not None:
            message = "[register_hooks] hooks have already been registered for this saved tensor."
            raise RuntimeError(message)
        self._pack(pack_hook, unpack_hook)

    def _pack(self, pack: Pack, unpack: Unpack) -> None:
        from tensorplay.autograd.graph import edge_of  # it saves tensors itself

        _check_callable("register_hooks", pack, unpack)
        tensor = self._tensor
        if tensor is None:  # not reached: a packed tensor is refused above
            message = "[register_hooks] the tensor was packed already."
            raise RuntimeError(message)
        before = tensor._version
        with grad_mode.no_grad():
            value = pack(tensor)
        if tensor._version != before:
            message = (
                "[saved_tensors_hooks] a saved tensor pack hook is modifying its input in place. "
                "Write x.clone() in the hook first."
            )
            raise RuntimeError(message)
        edge = edge_of(tensor) if self._output_nr is None else None
        self._packed = _Packed(value, unpack, edge, is_leaf=tensor._grad_fn is None)
        self._packed.set_tangent(tensor._tangent)
        self._tensor = None

    def set_tangent(self, tangent: Tensor) -> None:
        """Attach the tangent of a saved result, which is computed after it was saved."""
        if self._tensor is not None:
            forward_ad.attach_tangent(self._tensor, tangent)
        elif self._packed is not None:
            self._packed.set_tangent(tangent)

    def unpack(self, node: Node | None) -> Tensor:
        """Return the tensor with its history, which for an output is `node`.

        Raises
        ------
        RuntimeError
            The tensor was changed in place since it was saved.
        TypeError
            An unpack hook returned something else than a tensor.
        """
        tensor = self._tensor
        if tensor is None:
            return self._unpack(node)
        if tensor._version != self._version:
            raise RuntimeError(self._changed(tensor, node))
        if self._had_history and tensor._grad_fn is None and grad_mode.state.enabled:
            raise RuntimeError(DETACHED)
        if self._output_nr is None or node is None or node.outputs[self._output_nr] is None:
            return tensor
        return _with_history(tensor, node, self._output_nr)

    def _unpack(self, node: Node | None) -> Tensor:
        packed = self._packed
        if packed is None:  # not reached: without a tensor there is what was made of it
            message = "[saved_tensors_hooks] nothing was saved."
            raise RuntimeError(message)
        with grad_mode.no_grad():
            found: Any = packed.unpack(packed.value)
        if not isinstance(found, Tensor):
            message = (
                "[saved_tensors_hooks] expected the unpack hook to return a Tensor, got "
                f"{type(found).__name__}."
            )
            raise TypeError(message)
        result = self._restored(found, node, packed)
        if packed.tangent is not None and packed.level == forward_ad.current_number():
            forward_ad.attach_tangent(result, packed.tangent)
        return result

    def _restored(self, found: Tensor, node: Node | None, packed: _Packed) -> Tensor:
        """Return what the unpack hook returned with the history of what was packed."""
        if self._output_nr is not None:
            if node is None or node.outputs[self._output_nr] is None:
                return found.detach()
            return _with_history(found, node, self._output_nr)
        if packed.edge is None:
            return found.detach()
        if not packed.is_leaf:
            return _with_history(found, packed.edge.node, packed.edge.output_nr)
        # A twin of the leaf: its gradient arrives where that of the leaf does.
        result = found.detach()
        result._requires_grad = True
        result._accumulator = Strong(packed.edge.node)
        return result

    @staticmethod
    def _named(tensor: Tensor, maker: str | None) -> str:
        return "" if maker is None else f", which is output {tensor._output_nr} of {maker},"

    def _changed(self, tensor: Tensor, node: Node | None) -> str:
        maker = None if self._output_nr is None or node is None else node.name()
        if maker is None and tensor._grad_fn is not None:
            maker = tensor._grad_fn.name()
        return (
            "one of the variables needed for gradient computation has been modified by an "
            f"inplace operation: [{tensor.dtype!r} {list(tensor.shape)}]"
            f"{self._named(tensor, maker)} is at version {tensor._version}; expected version "
            f"{self._version} instead. Hint: enable anomaly detection to find the operation that "
            "failed to compute its gradient, or write x.clone() before the in-place operation."
        )


def _with_history(tensor: Tensor, node: Node, output_nr: int) -> Tensor:
    result = tensor.detach()
    result._grad_fn, result._output_nr, result._requires_grad = node, output_nr, True
    if tensor._tangent is not None:
        forward_ad.attach_tangent(result, tensor._tangent)
    return result


def _check_callable(operator: str, *hooks: Any) -> None:
    for name, hook in zip(("pack_hook", "unpack_hook"), hooks, strict=True):
        if not callable(hook):
            message = (
                f"[{operator}] argument '{name}': expected a function, got {type(hook).__name__}."
            )
            raise TypeError(message)


class saved_tensors_hooks:  # noqa: N801 - the field's spelling
    """Context manager: what is saved inside is packed once, and unpacked whenever it is read.

    Of nested contexts the innermost serves. The flag is the thread's own.

    Parameters
    ----------
    pack_hook
        ``pack_hook(tensor)`` returns anything; it must not change the tensor.
    unpack_hook
        ``unpack_hook(packed)`` returns a tensor of the same content.

    Raises
    ------
    RuntimeError
        On entry, inside of `disable_saved_tensors_hooks`.
    """

    def __init__(self, pack_hook: Pack, unpack_hook: Unpack) -> None:
        _check_callable("saved_tensors_hooks", pack_hook, unpack_hook)
        self.pack_hook = pack_hook
        self.unpack_hook = unpack_hook

    def __enter__(self) -> None:
        if state.disabled is not None:
            raise RuntimeError(state.disabled)
        state.hooks.append((self.pack_hook, self.unpack_hook))
        _enter()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        _leave()
        state.hooks.pop()


class save_on_cpu(saved_tensors_hooks):  # noqa: N801 - the field's spelling
    """Context manager: what is saved inside is kept in main memory until it is read.

    Parameters
    ----------
    pin_memory
        Whether the copies are locked in memory, for faster transfers to a GPU. Tensors that lie
        in main memory already are kept as they are.
    """

    def __init__(self, pin_memory: bool = False) -> None:
        self.pin_memory = pin_memory

        def pack(tensor: Tensor) -> tuple[Any, Tensor]:
            # A copy would double the memory of what is on the CPU as it is.
            return tensor.device, tensor if tensor.is_cpu else tensor.cpu()

        def unpack(packed: tuple[Any, Tensor]) -> Tensor:
            device, tensor = packed
            moved: Tensor = tensor if tensor.device == device else tensor.to(device)
            return moved

        super().__init__(pack, unpack)


@contextmanager
def disable_saved_tensors_hooks(error_message: str) -> Iterator[None]:
    """Refuse `saved_tensors_hooks` inside.

    Parameters
    ----------
    error_message
        Text of the error.

    Raises
    ------
    RuntimeError
        With that text: hooks are active already, or are entered inside.
    """
    if state.hooks:
        raise RuntimeError(error_message)
    before, state.disabled = state.disabled, error_message
    try:
        yield
    finally:
        state.disabled = before


class SavedCopies:
    """What `allow_mutation_on_saved_tensors` knows: saved tensors, by the memory that they are in.

    A saved tensor is copied when its memory is about to be written for the first time.
    """

    def __init__(self) -> None:
        self._watched: dict[int, list[weakref.ref[SavedTensor]]] = {}
        self.copied = 0

    def watch(self, saved: SavedTensor) -> None:
        """Copy `saved` before its memory is written."""
        if saved._tensor is None:
            return
        counter = saved._tensor._shared_counter()
        self._watched.setdefault(id(counter), []).append(weakref.ref(saved))

    def before_write(self, target: Tensor) -> None:
        """Copy what lies in the memory of `target`."""
        counter = target._shared_counter()
        made: dict[int, Tensor] = {}  # one copy serves all that saved the same tensor
        for reference in self._watched.pop(id(counter), ()):
            saved = reference()
            tensor = None if saved is None else saved._tensor
            # The counter may be a new object in the place of one that is gone.
            if saved is None or tensor is None or tensor._shared_counter() is not counter:
                continue
            if tensor._version != saved._version or tensor.is_meta:
                continue
            if id(tensor) not in made:
                made[id(tensor)] = _copy_with_history(tensor)
                self.copied += 1
            saved._tensor, saved._version = made[id(tensor)], 0

    def clear(self) -> None:
        """Forget all: later writes to what was saved are errors at the backward pass again."""
        self._watched.clear()


def _copy_with_history(tensor: Tensor) -> Tensor:
    from tensorplay.autograd.graph import edge_of

    edge = edge_of(tensor)
    copy = wrap(np.array(tensor._array, order="K"), tensor._dtype)
    copy._counter = VersionCounter()  # not that of the node whose result `tensor` is
    if tensor._tangent is not None:
        forward_ad.attach_tangent(copy, tensor._tangent)
    if edge is not None:
        copy._requires_grad = True
        if tensor._grad_fn is None:
            copy._accumulator = Strong(edge.node)
        else:
            copy._grad_fn, copy._output_nr = edge.node, edge.output_nr
    return copy


class Strong:
    """Called like a weak reference, but holds what it refers to."""

    __slots__ = ("_node",)

    def __init__(self, node: Node) -> None:
        self._node = node

    def __call__(self) -> Node:
        return self._node


def before_write(target: Tensor) -> None:
    """Do what must happen before `target` is written in place."""
    if open_contexts:
        for copies in state.mutations:
            copies.before_write(target)


@contextmanager
def allow_mutation_on_saved_tensors() -> Iterator[SavedCopies]:
    """Let tensors that were saved inside be written in place, by copying them just before.

    Yields
    ------
    SavedCopies
        Its ``clear()`` ends the watch over what was saved so far.

    Raises
    ------
    RuntimeError
        The contexts are nested.
    """
    if state.mutations:
        message = "[allow_mutation_on_saved_tensors] the context is open already; don't nest it."
        raise RuntimeError(message)
    copies = SavedCopies()
    state.mutations.append(copies)
    _enter()
    try:
        yield copies
    finally:
        _leave()
        state.mutations.pop()
        copies.clear()
