"""Devices: where the elements of a tensor lie.

``cpu`` is NumPy memory. ``meta`` tensors have shape, type and strides but no elements. ``cuda``
is where operators of CUDA kernels run: such tensors are made of arrays of other libraries, by
`tensorplay.from_dlpack`, and nothing else makes or computes on them.
"""

from __future__ import annotations

import re
import threading
from typing import Any, Final

__all__ = ["device", "get_default_device", "set_default_device"]

TYPES: Final = ("cpu", "cuda", "meta")
_PATTERN: Final = re.compile(r"([a-z]+)(?::(0|[1-9][0-9]*))?\Z")


class device:  # noqa: N801 - the field's spelling
    """A device such as ``device("cpu")`` or ``device("cuda", 1)``; also a context manager.

    Parameters
    ----------
    type
        ``"cpu"``, ``"cuda"`` or ``"meta"``, with the index after a colon where there is one.
    index
        Ordinal of the device.

    Raises
    ------
    ValueError
        The string names no device.
    TypeError
        `type` is neither a string nor a device.
    """

    __slots__ = ("index", "type")

    type: str
    index: int | None

    def __init__(self, type: Any, index: Any = None) -> None:
        if isinstance(type, device):
            type = str(type)
        if not isinstance(type, str):
            message = (
                f"[device] argument 'type': expected str or device, got {type.__class__.__name__}."
            )
            raise TypeError(message)
        match = _PATTERN.match(type)
        if match is None or match[1] not in TYPES or (match[2] and index is not None):
            message = (
                f"[device] Invalid device string: {type!r}. Expected one of {', '.join(TYPES)}."
            )
            raise ValueError(message)
        if index is not None and (not isinstance(index, int) or isinstance(index, bool)):
            message = f"[device] argument 'index': expected int, got {index.__class__.__name__}."
            raise TypeError(message)
        if index is not None and index < 0:
            message = f"[device] argument 'index': expected 0 or more, got {index}."
            raise ValueError(message)
        self.type = match[1]
        self.index = int(match[2]) if match[2] else index

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, device):
            return NotImplemented
        return self.type == other.type and self.index == other.index

    def __hash__(self) -> int:
        return hash((self.type, self.index))

    def __repr__(self) -> str:
        index = "" if self.index is None else f", index={self.index}"
        return f"device(type={self.type!r}{index})"

    def __str__(self) -> str:
        return self.type if self.index is None else f"{self.type}:{self.index}"

    def __enter__(self) -> device:
        _state.stack = (*_state.stack, _usable(self, "device"))
        return self

    def __exit__(self, *exception: object) -> None:
        _state.stack = _state.stack[:-1]


class _State(threading.local):
    stack: tuple[device, ...] = ()


CPU: Final = device("cpu")
META: Final = device("meta")
_state = _State()
_default = CPU


def _usable(d: device, operator: str) -> device:
    if d.type == "cuda":
        message = (
            f"[{operator}] argument 'device': expected cpu or meta, got {d}: a tensor there is "
            "made of an array of another library, tensorplay.from_dlpack(cupy.ones(3)), for "
            "operators with CUDA kernels. Use device='cpu'."
        )
        raise RuntimeError(message)
    if d.index:
        message = (
            f"[{operator}] argument 'device': expected {d.type}, of which there is one, got {d}. "
            f"Use device='{d.type}'."
        )
        raise ValueError(message)
    return CPU if d.type == "cpu" else META


def as_device(value: Any, operator: str) -> device:
    """Return `value` (None, a string or a device) as a device that tensors can be made on."""
    if value is None:
        return get_default_device()
    if not isinstance(value, (str, device)):
        message = (
            f"[{operator}] argument 'device': expected a device such as 'cpu', "
            f"got {value.__class__.__name__}."
        )
        raise TypeError(message)
    return _usable(device(value), operator)


def get_default_device() -> device:
    """Return the device on which new tensors are made.

    Returns
    -------
    device
        The CPU unless another one was set.
    """
    return _state.stack[-1] if _state.stack else _default


def set_default_device(d: str | device | None) -> None:
    """Set the device on which new tensors are made; None stands for the CPU.

    Parameters
    ----------
    d
        The device, or its name.
    """
    global _default  # noqa: PLW0603 - one process-wide setting, as in the field
    _default = CPU if d is None else _usable(device(d), "set_default_device")
