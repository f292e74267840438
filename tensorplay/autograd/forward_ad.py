"""Forward mode: tensors that carry a tangent, inside one level."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

from tensorplay._dtype import dtype
from tensorplay._tensor import Tensor

if TYPE_CHECKING:
    from types import TracebackType

__all__ = [
    "UnpackedDualTensor",
    "current_dual_level",
    "dual_level",
    "enter_dual_level",
    "exit_dual_level",
    "is_dual_tensor",
    "make_dual",
    "set_tangent",
    "unpack_dual",
    "without_tangents",
]


class _State(threading.local):
    def __init__(self) -> None:
        self.active = False
        self.number = 0  # of the level that is open, or was last
        self.duals: list[weakref.ref[Tensor]] = []
        # Tensors whose tangents had another type, with that type.
        self.casts: list[tuple[weakref.ref[Tensor], dtype]] = []


_state = _State()


class UnpackedDualTensor(NamedTuple):
    """A value and its tangent."""

    primal: Tensor
    tangent: Tensor | None


def current_dual_level() -> int:
    """Return 0 inside a level, -1 outside.

    Returns
    -------
    int
        The level.
    """
    return 0 if _state.active else -1


def enter_dual_level() -> int:
    """Open the level.

    Returns
    -------
    int
        The level, 0.

    Raises
    ------
    RuntimeError
        A level is open already.
    """
    if _state.active:
        message = "[forward_ad] nested forward mode AD is not supported: a dual level is open."
        raise RuntimeError(message)
    _state.active = True
    _state.number += 1
    return 0


def current_number() -> int | None:
    """Return a number that tells the open level from earlier ones, None outside."""
    return _state.number if _state.active else None


def exit_dual_level(level: int | None = None) -> None:
    """Close the level and erase all tangents made in it.

    Parameters
    ----------
    level
        The level, 0 or None.

    Raises
    ------
    RuntimeError
        It is not open.
    """
    if not _state.active or level not in (None, 0):
        message = f"[forward_ad] cannot exit level {level}: it is not the one that is open."
        raise RuntimeError(message)
    _state.active = False
    duals, _state.duals = _state.duals, []
    _state.casts = []
    for reference in duals:
        tensor = reference()
        if tensor is not None:
            tensor._tangent = None
            if tensor._counter is not None:  # views took theirs from it and must look again
                tensor._counter.history += 1


class dual_level:  # noqa: N801 - the field's spelling
    """Context manager: a level is open inside."""

    def __enter__(self) -> int:
        return enter_dual_level()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        exit_dual_level()


def set_tangent(tensor: Tensor, tangent: Tensor, operator: str) -> None:
    """Attach `tangent` to `tensor`, which an operator just computed.

    Parameters
    ----------
    tensor
        The result.
    tangent
        Its derivative.
    operator
        Name of the operator, for errors.

    Raises
    ------
    RuntimeError
        The shapes differ.
    """
    if tangent._array.shape != tensor._array.shape:
        message = (
            f"[{operator}] expected a tangent of size {list(tensor.shape)}, the size of the "
            f"tensor, got a different size {list(tangent.shape)}."
        )
        raise RuntimeError(message)
    if tangent._dtype is not tensor._dtype:
        _state.casts.append((weakref.ref(tensor), tangent._dtype))
        tangent = tangent.to(tensor._dtype)
    attach_tangent(tensor, tangent)
    if tensor._grad_fn is not None:  # what the node saved of its result has the tangent too
        tensor._grad_fn.set_tangent(tensor._output_nr, tangent)


def given_tangent_dtype(tensor: Tensor) -> dtype:
    """Return the type that the tangent of `tensor` had when it was computed, before a cast."""
    for reference, given in reversed(_state.casts):
        if reference() is tensor:
            return given
    return tensor._dtype


def attach_tangent(tensor: Tensor, tangent: Tensor) -> None:
    """Attach `tangent` to `tensor` until the level ends."""
    tensor._tangent = tangent
    _state.duals.append(weakref.ref(tensor))


def write_tangent(target: Tensor, tangent: Tensor | None, operator: str) -> None:
    """Give `target`, which `operator` just wrote in place, the tangent of what was written.

    The truth lies with the base of a view: its tangent is written where the view lies, and all
    views look theirs up again.
    """
    base, replay = target._base, target._replay
    counter = target._shared_counter()
    if base is None or replay is None:
        target._tangent = None
        if tangent is not None:
            set_tangent(target, tangent, operator)
        counter.history += 1
        return
    # A copy with the strides of the base, so that the view has the same place in it.
    whole = base.detach().clone().zero_() if base._tangent is None else base._tangent.clone()
    part = replay(whole)
    part.copy_(0 if tangent is None else tangent)
    set_tangent(base, whole, operator)
    if tangent is not None and base._grad_fn is not None:
        base._grad_fn.set_view_tangent(tangent)
    counter.history += 1
    target._synchronise()


@contextmanager
def without_tangents(tensors: Sequence[Tensor]) -> Iterator[list[Tensor | None]]:
    """Take the tangents off `tensors` and give them back at the end; the block gets them.

    Parameters
    ----------
    tensors
        The tensors.

    Yields
    ------
    list of Tensor or None
        The tangents, one for each tensor.
    """
    tangents = [tensor._tangent for tensor in tensors]
    if all(tangent is None for tangent in tangents):
        yield tangents
        return
    try:
        for tensor in tensors:
            tensor._tangent = None
        yield tangents
    finally:
        for tensor, tangent in zip(tensors, tangents, strict=True):
            if tangent is not None:
                tensor._tangent = tangent


def is_dual_tensor(tensor: Tensor) -> bool:
    """Tell whether `tensor` carries a tangent at the open level.

    Parameters
    ----------
    tensor
        Any tensor.

    Returns
    -------
    bool
        Whether it does.
    """
    return _state.active and tensor._tangent is not None


def make_dual(tensor: Tensor, tangent: Tensor, *, level: int | None = None) -> Tensor:
    """Return a view of `tensor` that carries `tangent`, of the same shape.

    Parameters
    ----------
    tensor
        The value.
    tangent
        Its derivative, of the same shape.
    level
        The open level, 0 or None.

    Returns
    -------
    Tensor
        Operators compute the tangents of what follows from it.

    Raises
    ------
    RuntimeError
        No level is open, the sizes differ, or the tensor carries a tangent already.
    ValueError
        The tensor is neither floating nor complex.
    """
    if not _state.active or level not in (None, 0):
        message = (
            "[make_dual] Trying to create a dual Tensor but no level exists. Write "
            "`with tensorplay.autograd.forward_ad.dual_level():` around it."
        )
        raise RuntimeError(message)
    if tensor._tangent is not None:
        message = "[make_dual] the tensor carries a tangent at this level already."
        raise RuntimeError(message)
    if not tensor._dtype.is_differentiable:
        message = f"[make_dual] expected a floating point or complex tensor, got {tensor.dtype!r}."
        raise ValueError(message)
    result: Tensor = tensor.view_as(tensor)
    result._base = result._replay = None  # the tangent is its own, not one of `tensor`
    set_tangent(result, tangent, "make_dual")
    return result


def unpack_dual(tensor: Tensor, *, level: int | None = None) -> UnpackedDualTensor:
    """Return the value of `tensor` and its tangent, None if it carries none.

    Parameters
    ----------
    tensor
        Any tensor.
    level
        The open level, 0 or None.

    Returns
    -------
    UnpackedDualTensor
        A named tuple (primal, tangent).
    """
    if tensor._base is not None:
        tensor._synchronise()
    if not _state.active or level not in (None, 0) or tensor._tangent is None:
        return UnpackedDualTensor(tensor, None)
    tangent, tensor_without = tensor._tangent, tensor.view_as(tensor)
    tensor_without._tangent = tensor_without._base = tensor_without._replay = None
    return UnpackedDualTensor(tensor_without, tangent)
