"""What a tensor is without its history: sizes, type, place and elements."""

from __future__ import annotations

from types import FunctionType
from typing import TYPE_CHECKING, Any

import numpy as np

from tensorplay import _device, _dtype
from tensorplay._detours import watching
from tensorplay._layout import DeviceArray, MetaArray, Size, contiguous_strides
from tensorplay._methods import TensorMethods

if TYPE_CHECKING:
    import numpy.typing as npt

    from tensorplay._device import device
    from tensorplay._dtype import dtype

__all__ = ["TensorMemory"]


class TensorMemory(TensorMethods):
    """The part of ``Tensor`` that asks for no other tensor, and for no graph."""

    __slots__ = ()

    # Slots of `Tensor`.
    _array: Any
    _dtype: dtype

    # --- what it is -------------------------------------------------------------------------

    @property
    def shape(self) -> Size:
        """Sizes of the dimensions."""
        return Size(self._array.shape)

    @property
    def dtype(self) -> dtype:
        """Type of the elements."""
        return self._dtype

    @property
    def device(self) -> device:
        """Where the elements lie."""
        array = self._array
        return array.device if isinstance(array, MetaArray) else _device.CPU

    @property
    def is_meta(self) -> bool:
        """True when there are no elements."""
        array = self._array
        return isinstance(array, MetaArray) and array.device is _device.META

    @property
    def is_cuda(self) -> bool:
        """True when the elements lie on a GPU."""
        return isinstance(self._array, DeviceArray)

    @property
    def is_cpu(self) -> bool:
        """True when the elements lie in main memory."""
        return not isinstance(self._array, MetaArray)

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return int(self._array.ndim)

    @property
    def itemsize(self) -> int:
        """Bytes of one element."""
        return self._dtype.itemsize

    @property
    def nbytes(self) -> int:
        """Bytes of all elements."""
        return self.numel() * self._dtype.itemsize

    def element_size(self) -> int:
        """Return the bytes of one element."""
        return self._dtype.itemsize

    def dim(self) -> int:
        """Return the number of dimensions."""
        return int(self._array.ndim)

    def numel(self) -> int:
        """Return the number of elements."""
        return int(self._array.size)

    def size(self, dim: int | None = None) -> Any:
        """Return the shape, or the size of dimension `dim`."""
        return self.shape if dim is None else self._array.shape[self._axis("size", dim)]

    def stride(self, dim: int | None = None) -> Any:
        """Return the steps between neighbours, in elements, of all dimensions or of `dim`."""
        if dim is not None:
            return self.stride()[self._axis("stride", dim)]
        if self._array.size == 0:  # NumPy leaves the strides of empty arrays open
            return contiguous_strides(self._array.shape)
        item = self._dtype.itemsize
        return tuple(s // item for s in self._array.strides)

    def _axis(self, operator: str, dim: int) -> int:
        try:
            dim = dim.__index__()
        except (AttributeError, TypeError):
            message = f"[{operator}] argument 'dim': expected int, got {type(dim).__name__}."
            raise TypeError(message) from None
        ndim = self._array.ndim
        if ndim == 0:
            message = f"[{operator}] argument 'dim': got {dim}, but the tensor has no dimensions."
            raise IndexError(message)
        if not -ndim <= dim < ndim:
            message = (
                f"[{operator}] argument 'dim': Dimension out of range "
                f"(expected to be in range of [{-ndim}, {ndim - 1}], but got {dim})."
            )
            raise IndexError(message)
        return dim % int(ndim)

    def data_ptr(self) -> int:
        """Return the address of the first element."""
        return int(self._elements("data_ptr").ctypes.data)

    def storage_offset(self) -> int:
        """Return how many elements lie between the start of the memory and the first element."""
        array = self._elements("storage_offset")
        root = array
        while isinstance(root.base, np.ndarray):
            root = root.base
        return int(array.ctypes.data - root.ctypes.data) // self._dtype.itemsize

    def is_contiguous(self) -> bool:
        """Tell whether the elements lie in row-major order without gaps."""
        if isinstance(self._array, MetaArray):
            shape = self._array.shape
            pairs = zip(shape, self.stride(), contiguous_strides(shape), strict=True)
            return self._array.size == 0 or all(n == 1 or s == c for n, s, c in pairs)
        return bool(self._array.flags.c_contiguous)

    def is_floating_point(self) -> bool:
        """Tell whether the type is a real floating one."""
        return self._dtype.is_floating_point

    def is_complex(self) -> bool:
        """Tell whether the type is complex."""
        return self._dtype.is_complex

    # --- elements ---------------------------------------------------------------------------

    def _elements(self, operator: str) -> npt.NDArray[Any]:
        if isinstance(self._array, MetaArray):
            message = f"[{operator}] a tensor on device meta has no elements to read."
            if self.is_cuda:
                message = (
                    f"[{operator}] a tensor on device {self.device} has no elements in main "
                    "memory. Write x.detach().cpu()."
                )
            raise NotImplementedError(message)
        if watching.recorder is not None:
            asked: npt.NDArray[Any] = watching.recorder.asked(self, operator)
            return asked
        array: npt.NDArray[Any] = self._array
        return array

    def tolist(self) -> Any:
        """Return the elements as nested lists of Python numbers."""
        return self._elements("tolist").tolist()

    def item(self) -> Any:
        """Return the only element as a Python number.

        Raises
        ------
        RuntimeError
            There is not exactly one element.
        """
        array = self._elements("item")
        if array.size != 1:
            message = (
                f"[item] a Tensor with {array.size} elements cannot be converted to Scalar. "
                "Write x.tolist()."
            )
            raise RuntimeError(message)
        return array.item()

    # --- Python's numbers -------------------------------------------------------------------

    def __len__(self) -> int:
        if self._array.ndim == 0:
            message = "[len] a 0-d tensor has no length."
            raise TypeError(message)
        return int(self._array.shape[0])

    def __bool__(self) -> bool:
        array = self._elements("bool")
        if array.size != 1:
            what = "no values" if array.size == 0 else "more than one value"
            message = f"[bool] a Tensor with {what} is ambiguous. Write x.any() or x.all()."
            raise RuntimeError(message)
        return bool(array.item())

    def _only(self, operator: str) -> Any:
        array = self._elements(operator)
        if array.size != 1:
            message = (
                f"[{operator}] only one element tensors can be converted to Python scalars, "
                f"got {array.size} elements."
            )
            raise ValueError(message)
        return array.item()

    def __int__(self) -> int:
        return int(self._only("int"))

    def __float__(self) -> float:
        return float(self._only("float"))

    def __complex__(self) -> complex:
        return complex(self._only("complex"))

    def __index__(self) -> int:
        if self._dtype.category > _dtype.INTEGER:
            message = (
                "[index] only integer tensors of a single element can be converted to an index, "
                f"got {self._dtype!r}."
            )
            raise TypeError(message)
        return int(self._only("index"))


for _name, _member in vars(TensorMemory).items():
    _function = _member.fget if isinstance(_member, property) else _member
    if isinstance(_function, FunctionType):  # as Python names it in errors, and pickle finds it
        _function.__module__, _function.__qualname__ = "tensorplay._tensor", f"Tensor.{_name}"
