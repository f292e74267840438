"""The engine's C interface as ctypes have it: its values, and the functions that it calls."""

from __future__ import annotations

import ctypes
from typing import TypeAlias

__all__ = ["AnyValue", "AnyValues", "ByteArray", "SafeCall"]


class AnyValue(ctypes.Structure):
    """TVMFFIAny of the engine's C header."""

    _fields_ = (
        ("type_index", ctypes.c_int32),
        ("padding", ctypes.c_uint32),
        ("value", ctypes.c_int64),
    )


class ByteArray(ctypes.Structure):
    """TVMFFIByteArray of the engine's C header."""

    _fields_ = (("data", ctypes.c_char_p), ("size", ctypes.c_size_t))

    @classmethod
    def of(cls, text: str) -> ByteArray:
        """Return a text as the engine takes it."""
        data = text.encode("utf-8", "replace")
        return cls(data, len(data))


#: TVMFFISafeCallType: handle, arguments, how many, result.
SafeCall = ctypes.CFUNCTYPE(
    ctypes.c_int,
    ctypes.c_void_p,
    ctypes.POINTER(AnyValue),
    ctypes.c_int32,
    ctypes.POINTER(AnyValue),
)
AnyValues: TypeAlias = "ctypes._Pointer[AnyValue]"
