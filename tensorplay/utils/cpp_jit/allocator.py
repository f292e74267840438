"""Memory for tensors that kernels return.

The compiled extension allocates it, from any thread and without the interpreter. Where that is not
there, NumPy buffers are handed out through DLPack.

A kernel asks with ``Tensor::FromEnvAlloc``; the engine calls the allocator that its host installed.
This one fills a ``DLManagedTensorVersioned`` (dlpack.h, version 1) over a NumPy buffer and keeps
both alive until the consumer calls the deleter, from whatever thread, also after the interpreter is
gone.
"""

from __future__ import annotations

import atexit
import ctypes
import functools
import itertools
import sys
from pathlib import Path
from typing import Any

import numpy as np

from tensorplay import _native

_CPU = 1
_ALIGNMENT = 64

# Largest product of sizes that is a stride: in bytes of the widest element it is no overflow.
_MOST_ELEMENTS = (2**63 - 1) // 16


@functools.cache
def _known_types() -> frozenset[tuple[int, int]]:
    """Return DLPack's codes and bits of the types that the runtime can represent."""
    from tensorplay._dlpack import words

    return frozenset((code, bits) for _, _, code, bits in words())


class _Device(ctypes.Structure):
    _fields_ = [("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32)]


class _DataType(ctypes.Structure):
    _fields_ = [("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16)]


class DLTensor(ctypes.Structure):
    """DLTensor of DLPack's C header."""

    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device", _Device),
        ("ndim", ctypes.c_int32),
        ("dtype", _DataType),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


class _Version(ctypes.Structure):
    _fields_ = [("major", ctypes.c_uint32), ("minor", ctypes.c_uint32)]


class _ManagedTensor(ctypes.Structure):
    _fields_ = [
        ("version", _Version),
        ("manager_ctx", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("dl_tensor", DLTensor),
    ]


_SetError = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_char_p)
_Allocator = ctypes.CFUNCTYPE(
    ctypes.c_int,
    ctypes.POINTER(DLTensor),
    ctypes.POINTER(ctypes.c_void_p),
    ctypes.c_void_p,
    _SetError,
)
_Deleter = ctypes.CFUNCTYPE(None, ctypes.c_void_p)

#: What each handed-out tensor keeps alive, by its number.
_live: dict[int, tuple[Any, ...]] = {}
_numbers = itertools.count(1)


def _delete(address: int) -> None:
    managed = _ManagedTensor.from_address(address)
    _live.pop(managed.manager_ctx, None)


def _allocate(
    prototype: ctypes._Pointer[DLTensor],
    out: ctypes._Pointer[ctypes.c_void_p],
    context: int,
    set_error: Any,
) -> int:
    try:
        out[0] = _new_tensor(prototype.contents)
    except (ValueError, MemoryError) as error:
        kind = "MemoryError" if isinstance(error, MemoryError) else "ValueError"
        set_error(context, kind.encode(), str(error).encode())
        return -1
    return 0


def _new_tensor(prototype: DLTensor) -> int:
    dtype, device = prototype.dtype, prototype.device
    if device.device_type != _CPU:
        raise ValueError(
            f"cannot allocate a kernel's result: expected device cpu, got DLPack device type "
            f"{device.device_type}"
        )
    if dtype.lanes != 1 or (dtype.code, dtype.bits) not in _known_types():
        raise ValueError(
            f"unsupported dlpack dtype: code {dtype.code}, bits {dtype.bits}, lanes {dtype.lanes}"
        )
    sizes = [prototype.shape[i] for i in range(prototype.ndim)]
    if any(size < 0 for size in sizes):
        raise ValueError(f"cannot allocate a kernel's result of shape {tuple(sizes)}")
    count = 1
    for size in sizes:
        count *= size
    nbytes = count * (dtype.bits // 8)
    if nbytes > sys.maxsize - 2 * _ALIGNMENT:
        raise MemoryError(
            "cannot allocate a kernel's result: its sizes multiply to more than memory has"
        )
    buffer = np.empty(nbytes + _ALIGNMENT, np.uint8)
    start = buffer.ctypes.data
    strides = [1] * len(sizes)
    for i in range(len(sizes) - 2, -1, -1):
        size = max(sizes[i + 1], 1)  # where one is zero the others may be anything
        fits = size <= _MOST_ELEMENTS // strides[i + 1]
        strides[i] = strides[i + 1] * size if fits else strides[i + 1]
    array = ctypes.c_int64 * max(len(sizes), 1)
    shape_memory, stride_memory = array(*sizes), array(*strides)
    number = next(_numbers)
    managed = _ManagedTensor(
        version=_Version(1, 0),
        manager_ctx=number,
        deleter=_release.address,
        flags=0,
        dl_tensor=DLTensor(
            data=start + (-start) % _ALIGNMENT,
            device=device,
            ndim=len(sizes),
            dtype=dtype,
            shape=ctypes.cast(shape_memory, ctypes.POINTER(ctypes.c_int64)),
            strides=ctypes.cast(stride_memory, ctypes.POINTER(ctypes.c_int64)),
            byte_offset=0,
        ),
    )
    _live[number] = (buffer, shape_memory, stride_memory, managed)
    return ctypes.addressof(managed)


# Callbacks live as long as the process: C holds their addresses.
_deleter = _Deleter(_delete)
_allocator = _Allocator(_allocate)


class _Release:
    """What C calls when it lets go of a tensor: Python, while there is an interpreter to run it."""

    def __init__(self) -> None:
        self.address = ctypes.cast(_deleter, ctypes.c_void_p)

    def leave_to_the_system(self) -> None:
        """Let every tensor that is still held be released by a C function that does nothing.

        A kernel library may hold tensors in static variables, which are destroyed after the
        interpreter; a callback into Python would then end the process with a fault. The memory goes
        back to the system with the process.
        """
        if sys.platform == "win32":
            nothing = ctypes.windll.kernel32.GetCurrentProcessId
        else:
            nothing = ctypes.CDLL(None).getpid
        self.address = ctypes.cast(nothing, ctypes.c_void_p)
        for *_, managed in list(_live.values()):
            managed.deleter = self.address
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(_live))


_release = _Release()
atexit.register(_release.leave_to_the_system)


def live_allocations() -> int:
    """Return how many tensors that kernels allocated are not freed yet."""
    compiled = 0 if _native.core is None else int(_native.core.live_allocations())
    return compiled + len(_live)


def guard_results(zone: int, zone_byte: int = 0, element_byte: int = 0) -> bool:
    """Put what kernels allocate from now on between zones of known bytes, or with 0 no more.

    Parameters
    ----------
    zone
        How many bytes each zone has at least.
    zone_byte, element_byte
        What zones and elements hold before the kernel writes.

    Returns
    -------
    bool
        False where the compiled extension, which does it, is not there.
    """
    if _native.core is None:
        return False
    _native.core.guard_results(zone, zone_byte, element_byte)
    return True


def take_damage() -> list[tuple[int, int, int]]:
    """Return where zones were written since the last call, freed results included.

    Each entry is the address of a result's elements, the first element that was written outside
    of it, counted from its own first, and how many elements it has.
    """
    return [] if _native.core is None else list(_native.core.take_damage())


def address() -> int:
    """Return the address of the allocator: the compiled one, or the callback above."""
    if _native.core is not None:
        return int(_native.core.allocator_address())
    return int(ctypes.cast(_allocator, ctypes.c_void_p).value or 0)


def install(library: Path) -> bool:
    """Install the allocator unless a host has installed one; return whether it is ours."""
    lib = ctypes.CDLL(str(library))
    get = lib.TVMFFIEnvGetDLPackManagedTensorAllocator
    get.restype = ctypes.c_void_p
    get.argtypes = []
    present = get()
    if present:
        return bool(present == address())
    put = lib.TVMFFIEnvSetDLPackManagedTensorAllocator
    put.restype = ctypes.c_int
    put.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p]
    if put(address(), 1, None) != 0:
        raise RuntimeError("the engine refused the allocator for kernel results")
    return True
