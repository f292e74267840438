"""Tensors that change their class, their size or their memory."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from tensorplay._methods import attach
from tensorplay._tensor import MetaArray, Spec, Tensor, contiguous_strides
from tensorplay.autograd import grad_mode
from tensorplay.ops.arguments import reject
from tensorplay.ops.dispatch import overridable_method, relabel
from tensorplay.ops.movement import view
from tensorplay.ops.strided import as_strided

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


def _refuse_recorded(where: str, *tensors: Tensor) -> None:
    if any(t.requires_grad for t in tensors) and grad_mode.is_grad_enabled():
        message = (
            f"[{where}] cannot change the memory of tensors that require grad: what was recorded "
            "would no longer fit. Write x.detach(), or `with tensorplay.no_grad():` around it."
        )
        raise RuntimeError(message)


def _become(self: Tensor, array: Any) -> Tensor:
    self._array = array
    self._base = self._replay = None
    self._grad_fn, self._output_nr, self._tangent = None, 0, None
    self._bump_version()
    return self


def _resize_(self: Tensor, *size: Any) -> Tensor:
    """Give this tensor another size; elements stay in row-major order, new ones have any value.

    If its memory holds as many elements, it keeps it. Else it moves to new memory, and other
    tensors on the old one keep that.

    Raises
    ------
    RuntimeError
        A size is negative, the tensor requires grad, or is a view that would have to move.
    """
    from tensorplay._creation import shape_of

    shape = shape_of("resize_", size)
    _refuse_recorded("resize_", self)
    array = self._array
    if isinstance(array, MetaArray):
        return _become(self, MetaArray(Spec(shape, self._dtype)))
    count = math.prod(shape)
    root: Any = array
    while isinstance(root.base, np.ndarray):
        root = root.base
    start = (array.ctypes.data - root.ctypes.data) // array.itemsize
    if root.flags.c_contiguous and root.dtype == array.dtype and 0 <= start <= root.size - count:
        return _become(self, root.reshape(-1)[start : start + count].reshape(shape))
    if self._base is not None:
        message = (
            f"[resize_] a view cannot become larger than its memory: expected at most "
            f"{root.size - start} elements, got {list(shape)}. Write x.clone() first."
        )
        raise RuntimeError(message)
    wide = np.empty(count, array.dtype)
    kept = min(count, array.size)
    wide[:kept] = array.reshape(-1)[:kept]
    self._counter = None
    return _become(self, wide.reshape(shape))


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
    """
    if source is None:
        source = self.new_zeros((0,))
    if not isinstance(source, Tensor):
        reject("set_", "source", "Tensor", source)
    if source._dtype is not self._dtype or source.is_meta is not self.is_meta:
        message = (
            f"[set_] argument 'source': expected {self._dtype!r} on {self.device}, got "
            f"{source._dtype!r} on {source.device}. Write source.to(x.dtype)."
        )
        raise RuntimeError(message)
    _refuse_recorded("set_", self, source)
    given = source.detach()
    if size is not None:
        steps = contiguous_strides(tuple(size)) if stride is None else tuple(stride)
        given = as_strided.apply((given, tuple(size), steps, storage_offset))
    counter = source._shared_counter()
    _become(self, given._array)
    self._counter = counter
    return self


attach("as_subclass", _as_subclass)
attach("resize_", overridable_method(_resize_))
attach("set_", overridable_method(_set_))
