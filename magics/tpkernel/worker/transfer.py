"""Arguments of a kernel on their way to another process, and its results on their way back.

Arrays that lie in one piece of memory go as one piece, with the strides that they have, so that
guards see there what they would see here: a strided view, an output on an input's memory.
"""

from __future__ import annotations

import builtins
import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

import tensorplay as tp

__all__ = ["Packet", "Place", "TransferError", "described", "pack", "rebuilt_error", "unpack"]

#: Below the limit of one message of the channel.
MAX_BYTES = 3 << 28
_ALIGNMENT = 16
_PLAIN = (bool, int, float, complex, str, bytes, type(None))


class TransferError(TypeError):
    """A value that another process cannot be given."""


@dataclass(frozen=True)
class Place:
    """Where an array lies: piece, offset of its first element in bytes, and layout."""

    piece: int
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: np.dtype[Any]
    writable: bool
    is_tensor: bool


@dataclass(frozen=True)
class Packet:
    """Values with their arrays replaced by places, and the memory of those."""

    values: tuple[Any, ...]
    pieces: tuple[tuple[int, bytes], ...]


@dataclass(frozen=True)
class _Many:
    kind: type
    items: tuple[Any, ...]


@dataclass(frozen=True)
class _Array:
    index: int


def pack(values: Sequence[Any]) -> Packet:
    """Make a packet of arguments.

    Parameters
    ----------
    values
        Tensors, arrays, numbers, texts, and lists of those.

    Raises
    ------
    TransferError
        A value is no tensor, array, number, text, or list of those.
    ValueError
        There are more bytes than one message holds.
    """
    arrays: list[tuple[np.ndarray[Any, Any], bool]] = []

    def replaced(value: Any) -> Any:
        if isinstance(value, tp.Tensor):
            arrays.append((value.detach().numpy(), True))
            return _Array(len(arrays) - 1)
        if isinstance(value, np.ndarray):
            arrays.append((value, False))
            return _Array(len(arrays) - 1)
        if isinstance(value, (list, tuple)):
            return _Many(type(value), tuple(map(replaced, value)))
        if isinstance(value, np.generic):
            return value.item()
        if isinstance(value, _PLAIN):
            return value
        message = f"a {type(value).__name__} cannot be handed to another process"
        raise TransferError(message)

    found = tuple(map(replaced, values))
    extents = [_extent(array) for array, _ in arrays]
    groups: list[list[int]] = []
    for index in sorted(range(len(arrays)), key=lambda i: extents[i]):
        low, high = extents[index]
        if groups and low < max(extents[i][1] for i in groups[-1]) and high > low:
            groups[-1].append(index)
        else:
            groups.append([index])
    places: dict[int, Place] = {}
    pieces: list[tuple[int, bytes]] = []
    for number, group in enumerate(groups):
        low = min(extents[i][0] for i in group)
        high = max(extents[i][1] for i in group)
        pieces.append((low % _ALIGNMENT, ctypes.string_at(low, high - low)))
        for i in group:
            array, is_tensor = arrays[i]
            places[i] = Place(
                number,
                array.ctypes.data - low,
                array.shape,
                array.strides,
                array.dtype,
                bool(array.flags.writeable),
                is_tensor,
            )
    if (total := sum(len(data) for _, data in pieces)) > MAX_BYTES:
        message = f"{total >> 20} MiB are more than an isolated call takes ({MAX_BYTES >> 20} MiB)"
        raise ValueError(message)

    def placed(value: Any) -> Any:
        if isinstance(value, _Array):
            return places[value.index]
        if isinstance(value, _Many):
            return _Many(value.kind, tuple(map(placed, value.items)))
        return value

    return Packet(tuple(map(placed, found)), tuple(pieces))


def unpack(packet: Packet) -> list[Any]:
    """Return the values of a packet, with arrays on memory of their own."""
    buffers = []
    for shift, data in packet.pieces:
        # As many bytes as there are, so that a sanitizer sees the first one beyond them.
        buffer = np.empty(shift + len(data), np.uint8)
        buffer[shift:] = np.frombuffer(data, np.uint8)
        buffers.append(buffer[shift:])

    def restored(value: Any) -> Any:
        if isinstance(value, Place):
            array: np.ndarray[Any, Any] = np.ndarray(
                value.shape, value.dtype, buffers[value.piece].data, value.offset, value.strides
            )
            if not value.is_tensor:
                array.flags.writeable = value.writable
                return array
            return tp.from_numpy(array)
        if isinstance(value, _Many):
            items = list(map(restored, value.items))
            return items if value.kind is list else tuple(items)
        return value

    return list(map(restored, packet.values))


def _extent(array: np.ndarray[Any, Any]) -> tuple[int, int]:
    low, high = np.lib.array_utils.byte_bounds(array)
    return (low, high) if array.size else (low, low)


def described(names: Sequence[str], values: Sequence[Any]) -> str:
    """Say what a kernel was called with: dtype and shape of tensors, and the other values."""
    parts = []
    for name, value in zip(names, values, strict=False):
        if isinstance(value, (tp.Tensor, np.ndarray)):
            dtype = str(value.dtype).removeprefix("tensorplay.")
            parts.append(f"{name} {dtype} {tuple(value.shape)}")
        else:
            text = repr(value)
            parts.append(f"{name}={text if len(text) < 60 else text[:57] + '...'}")
    return ", ".join(parts) or "no arguments"


def rebuilt_error(kind: str, message: str) -> Exception:
    """Return the exception that another process caught."""
    found = getattr(builtins, kind, None)
    if isinstance(found, type) and issubclass(found, Exception):
        try:
            return found(message)
        except TypeError:  # one that wants more than a text
            return RuntimeError(f"{kind}: {message}")
    return RuntimeError(f"{kind}: {message}")
