"""Arrays of a GPU library that several tests use: host memory that says it lies on a GPU.

They speak DLPack and do arithmetic, as CuPy's do, and nothing else. A driver that the tests make
(`tests/cuda_driver.py`) runs kernels on their memory.
"""

from __future__ import annotations

import contextlib
import ctypes
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np

__all__ = ["GpuArray", "cupy"]


class _Managed(ctypes.Structure):
    """DLManagedTensor."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device", ctypes.c_int32 * 2),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
    )


_new_capsule = ctypes.pythonapi.PyCapsule_New
_new_capsule.restype = ctypes.py_object
_new_capsule.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
_CODES = {"i": 0, "u": 1, "f": 2, "c": 5, "b": 6}


class GpuArray:
    """`array` as an array on GPU `index`."""

    def __init__(self, array: Any, index: int = 0) -> None:
        self.array, self.index = np.asarray(array), index
        self._exported: list[Any] = []  # what capsules point at lives as long as this does

    def __dlpack_device__(self) -> tuple[int, int]:
        return 2, self.index

    def __dlpack__(self, *, dl_device: Any = None, **_: Any) -> Any:
        a = self.array
        if dl_device == (1, 0):
            return a.copy().__dlpack__()
        sizes = ctypes.c_int64 * max(a.ndim, 1)
        steps = sizes(*(s // a.itemsize for s in a.strides))
        place = (ctypes.c_int32 * 2)(2, self.index)
        made = _Managed(
            a.ctypes.data, place, a.ndim, _CODES[a.dtype.kind], a.itemsize * 8, 1,
            sizes(*a.shape), steps, 0, None, None,
        )  # fmt: skip
        self._exported.append(made)
        return _new_capsule(ctypes.addressof(made), b"dltensor", None)

    def _binary(self, name: str, other: Any) -> Any:
        operand = other.array if isinstance(other, GpuArray) else other
        return GpuArray(getattr(self.array, name)(operand), self.index)

    def __add__(self, other: Any) -> Any:
        return self._binary("__add__", other)

    def __sub__(self, other: Any) -> Any:
        return self._binary("__sub__", other)

    def __mul__(self, other: Any) -> Any:
        return self._binary("__mul__", other)

    __rmul__ = __mul__

    def __truediv__(self, other: Any) -> Any:
        return self._binary("__truediv__", other)

    def __and__(self, other: Any) -> Any:
        return self._binary("__and__", other)

    def __radd__(self, other: Any) -> Any:
        return self._binary("__radd__", other)

    def __rsub__(self, other: Any) -> Any:
        return self._binary("__rsub__", other)

    def __rtruediv__(self, other: Any) -> Any:
        return self._binary("__rtruediv__", other)

    def __neg__(self) -> Any:
        return GpuArray(-self.array, self.index)


class _Device(contextlib.ContextDecorator):
    current = 0

    def __init__(self, index: int) -> None:
        self.index = index

    def __enter__(self) -> None:
        self.before, _Device.current = _Device.current, self.index

    def __exit__(self, *_: object) -> None:
        _Device.current = self.before


def cupy() -> ModuleType:
    """Return what is used of the module of that name, making arrays of this kind."""
    made: Any = ModuleType("cupy")
    made.empty = lambda shape, dtype: GpuArray(np.full(shape, 77, dtype), _Device.current)
    made.from_dlpack = lambda array: array
    made.ascontiguousarray = lambda array: GpuArray(
        np.array(array.array, order="C"), _Device.current
    )
    made.asarray = lambda array: GpuArray(np.array(array), _Device.current)
    made.cuda = SimpleNamespace(Device=_Device)
    return made
