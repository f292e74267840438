"""Where a loaded library keeps the addresses of the functions that it imports from others.

The system's loader fills such places in, once for the whole library, and code of the library calls
what they hold. So whoever writes them stands before a function for one library and no other. Known
here of ELF, on 64-bit Linux; elsewhere no place is found.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import struct
import sys
from collections.abc import Collection
from typing import Any, Final

__all__ = ["Place", "places"]

_LINK_MAP: Final = 2  # RTLD_DI_LINKMAP
# Tags of entries in a library's dynamic section.
_STRINGS, _SYMBOLS = 5, 6
_DATA, _DATA_SIZE, _DATA_RELATIVE = 7, 8, 0x6FFFFFF9
_CALLS, _CALLS_SIZE, _CALLS_KIND = 23, 2, 20
_RELOCATION: Final = struct.Struct("<QIIq")  # place, type, symbol, addend
_SYMBOL: Final = 24  # bytes, of which the first four say where its name is


class _LinkMap(ctypes.Structure):
    """The loader's entry of a library, as `dlinfo` gives it."""

    _fields_ = (
        ("base", ctypes.c_uint64),
        ("name", ctypes.c_char_p),
        ("dynamic", ctypes.c_void_p),
    )


class Place:
    """Memory in which a library keeps the address of a function that it imports.

    Parameters
    ----------
    address
        Where it is.
    protect
        ``mprotect`` of the C library: the loader may have made the memory read-only.

    Notes
    -----
    `put` works when modules are gone: it uses nothing but the object's own attributes.
    """

    _both = getattr(mmap, "PROT_READ", 1) | getattr(mmap, "PROT_WRITE", 2)

    def __init__(self, address: int, protect: Any) -> None:
        self._pointer = ctypes.c_void_p.from_address(address)
        self._page = ctypes.c_void_p(address - address % mmap.PAGESIZE)
        self._size = ctypes.c_size_t(mmap.PAGESIZE)
        self._protect = protect

    def put(self, function: int | None) -> None:
        """Put the address of a function there, unless the system does not let it."""
        if self._protect(self._page, self._size, self._both) == 0:
            self._pointer.value = function


def places(library: str, names: Collection[str]) -> dict[str, list[Place]]:
    """Return the places of a loaded library by the names of the functions, none where unknown.

    Parameters
    ----------
    library
        The file that it was loaded from.
    names
        What the functions are called.
    """
    found: dict[str, list[Place]] = {name: [] for name in names}
    if not (sys.platform == "linux" and sys.byteorder == "little" and sys.maxsize > 2**32):
        return found
    try:
        process = ctypes.CDLL(None)
        handle = ctypes.CDLL(library, os.RTLD_NOLOAD | os.RTLD_NOW)._handle
        entry = ctypes.POINTER(_LinkMap)()
        if process.dlinfo(ctypes.c_void_p(handle), _LINK_MAP, ctypes.byref(entry)) != 0:
            return found
        protect = process.mprotect
    except (OSError, AttributeError):  # not a library of its own, or another C library
        return found
    for name, address in _imports(entry.contents):
        if name in found:
            found[name].append(Place(address, protect))
    return found


def _imports(entry: _LinkMap) -> list[tuple[str, int]]:
    """Return the names that a library imports, each with where its address is kept."""
    dynamic: dict[int, int] = {}
    at = entry.dynamic
    while (tag := ctypes.c_int64.from_address(at).value) != 0:
        dynamic[tag] = ctypes.c_uint64.from_address(at + 8).value
        at += 16
    # Some loaders leave the file's own addresses there.
    moved = {tag: value + entry.base * (value < entry.base) for tag, value in dynamic.items()}
    if _SYMBOLS not in dynamic or _STRINGS not in dynamic:
        return []
    relocations = b""
    if _DATA in dynamic and _DATA_SIZE in dynamic:
        relative = dynamic.get(_DATA_RELATIVE, 0) * _RELOCATION.size  # the first, without a name
        relocations = ctypes.string_at(moved[_DATA], dynamic[_DATA_SIZE])[relative:]
    if _CALLS in dynamic and dynamic.get(_CALLS_KIND) == _DATA:  # of the same form
        relocations += ctypes.string_at(moved[_CALLS], dynamic[_CALLS_SIZE])
    found = []
    for place, _, symbol, addend in _RELOCATION.iter_unpack(relocations):
        if symbol and not addend:
            name = ctypes.c_uint32.from_address(moved[_SYMBOLS] + symbol * _SYMBOL).value
            text = ctypes.string_at(moved[_STRINGS] + name).decode("utf-8", "replace")
            found.append((text, entry.base + place))
    return found
