"""Tensors that change their class, their size or their memory."""

from __future__ import annotations

import gc
import math
import sys
from typing import TYPE_CHECKING, Any

import numpy as np

from tensorplay._layout import (
    InferenceCounter,
    MetaArray,
    MovedCounter,
    Spec,
    VersionCounter,
    contiguous_strides,
)
from tensorplay._methods import attach
from tensorplay._tensor import Tensor, twin_of
from tensorplay.autograd import grad_mode
from tensorplay.autograd.batched import BatchedTensor
from tensorplay.ops.arguments import reject
from tensorplay.ops.dispatch import overridable_method, relabel
from tensorplay.ops.movement import take_geometry, view
from tensorplay.ops.strided import as_strided, layout_of, storage_of

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__: list[str] = []


def _as_subclass(self: Tensor, cls: type[Tensor]) -> Tensor:
    """Return a view of this tensor as an instance of `cls`; gradients flow through it.

    Parameters
    ----------
    cls
        A class of tensors. Its ``__init__`` is not called.

    Raises
    ------
    TypeError
        `cls` is no class of tensors.
    """
    given: Any = cls
    if not (isinstance(given, type) and issubclass(given, Tensor)):
        reject("as_subclass", "cls", "a class of tensors", cls)
    return relabel(view.apply((self, tuple(self._array.shape))), cls)


def _refuse_batched(where: str, *tensors: Tensor) -> None:
    if any(isinstance(t, BatchedTensor) for t in tensors):
        message = f"[{where}] no rule for vmap: one sample of a batch has no memory of its own."
        raise NotImplementedError(message)


def _refuse_recorded(where: str, tensor: Tensor) -> None:
    if tensor.requires_grad or tensor._tangent is not None:
        message = (
            f"[{where}] cannot change the memory of tensors that require grad (or have a tangent): "
            f"what was recorded would no longer fit. Write x.detach().clone().{where}(...)."
        )
        raise RuntimeError(message)


def _refuse_cuda(where: str, *tensors: Tensor) -> None:
    place = next((t.device for t in tensors if t.is_cuda), None)
    if place is not None:
        message = (
            f"[{where}] expected tensors on cpu or meta, got one on {place}, whose memory is "
            f"another library's. Write x.detach().cpu().{where}(...)."
        )
        raise NotImplementedError(message)


def _views_of(tensor: Tensor) -> list[Tensor]:
    """Return the tensors that say of themselves that they are views of `tensor`."""
    counter = tensor._counter
    if counter is None or (type(counter) is not MovedCounter and sys.getrefcount(counter) == 3):
        return []  # nobody else goes by it: its holder, this function and getrefcount
    # Views know their base, not the other way round: a list of them would cost each view.
    return [
        x for x in gc.get_referrers(tensor) if isinstance(x, Tensor) and x._base is tensor
    ]  # fmt: skip


def _move(self: Tensor, array: Any, counter: VersionCounter | None = None) -> Tensor:
    """Let this tensor lie in other memory, which has `counter`; its views stay where they are."""
    views = _views_of(self)
    if views:
        old = twin_of(self, Tensor)
        for v in views:
            v._base = old
    before = 0 if self._counter is None else self._counter.value
    if self._inference:
        self._counter = InferenceCounter() if counter is None else counter
    else:
        self._counter = MovedCounter(VersionCounter() if counter is None else counter, before)
    return _become(self, array)


def _become(self: Tensor, array: Any) -> Tensor:
    self._array = array
    self._base = self._replay = None
    self._grad_fn, self._output_nr = None, 0
    return self


def _resize_(self: Tensor, *size: Any) -> Tensor:
    """Give this tensor another size, row-major; elements keep their order in memory.

    If its memory holds as many elements, it keeps it, and the elements that lie there. Else it
    moves to new memory, where added elements have any value, and its views keep the old one.

    Raises
    ------
    RuntimeError
        A size is negative, the tensor requires grad, or would have to move but shares history: it
        is a view, or changed its size before while it had views.
    NotImplementedError
        It is one sample of a batch (vmap), or lies on a GPU.
    """
    from tensorplay._creation import shape_of

    shape = shape_of("resize_", size)
    _refuse_cuda("resize_", self)
    _refuse_batched("resize_", self)
    _refuse_recorded("resize_", self)
    array = self._array
    if isinstance(array, MetaArray):
        return _move(self, MetaArray(Spec(shape, self._dtype)))
    count = math.prod(shape)
    start, total = storage_of(array)
    if count <= total - start:
        steps = contiguous_strides(shape)
        if self._base is not None or _views_of(self):  # they share histories, too
            return take_geometry(self, as_strided.apply((self, shape, steps, start)))
        _become(self, layout_of(array, shape, tuple(n * array.itemsize for n in steps)))
        self._bump_version()
        return self
    if self._base is not None:
        message = (
            f"[resize_] a view cannot become larger than its memory: expected at most "
            f"{total - start} elements, got {list(shape)}. Write x.clone() first."
        )
        raise RuntimeError(message)
    wide = np.empty(count, array.dtype)
    if all(step >= 0 for step in array.strides):
        wide[: total - start] = layout_of(array, (total - start,), (array.itemsize,))
    else:  # `array` starts at the end of its memory
        wide[: array.size] = array.reshape(-1)
    return _move(self, wide.reshape(shape))


def _set_(
    self: Tensor,
    source: Tensor | None = None,
    storage_offset: int = 0,
    size: Sequence[int] | None = None,
    stride: Sequence[int] | None = None,
) -> Tensor:
    """Let this tensor lie in the memory of `source`, from then on shared; without it, be empty.

    Parameters
    ----------
    source
        A tensor of the same type.
    storage_offset, size, stride
        The layout in that memory, in elements; that of `source` if no size is given.

    Raises
    ------
    TypeError
        `source` is no tensor.
    RuntimeError
        Types or devices differ, the layout reaches out of the memory, or a tensor requires grad.
    NotImplementedError
        One is one sample of a batch (vmap), or lies on a GPU.
    """
    _refuse_cuda("set_", self)
    if source is None:
        source = self.new_zeros((0,))
    if not isinstance(source, Tensor):
        reject("set_", "source", "Tensor", source)
    _refuse_cuda("set_", source)
    if source._dtype is not self._dtype or source.is_meta is not self.is_meta:
        message = (
            f"[set_] argument 'source': expected {self._dtype!r} on {self.device}, got "
            f"{source._dtype!r} on {source.device}. Write source.to(x.dtype)."
        )
        raise RuntimeError(message)
    _refuse_batched("set_", self, source)
    _refuse_recorded("set_", self)
    if source.requires_grad and grad_mode.is_grad_enabled():
        message = (
            "[set_] argument 'source': cannot share the memory of tensors that require grad, as "
            "writes would not be recorded. Write source.detach()."
        )
        raise RuntimeError(message)
    if source._inference is not self._inference:
        message = (
            "[set_] argument 'source': only one of the tensors was made in inference mode. Write "
            "x.clone() of that one, outside of inference_mode()."
        )
        raise RuntimeError(message)
    given = source.detach()
    if size is not None:
        steps = contiguous_strides(tuple(size)) if stride is None else tuple(stride)
        given = as_strided.apply((given, tuple(size), steps, storage_offset))
    return _move(self, given._array, source._shared_counter())


attach("as_subclass", _as_subclass)
attach("resize_", overridable_method(_resize_))
attach("set_", overridable_method(_set_))
