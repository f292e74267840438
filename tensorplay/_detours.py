"""Why no call may take a short way at present: modes that must see every call."""

from __future__ import annotations

import itertools
import threading
from typing import Any, Final

__all__ = ["Detour", "detours", "enter", "leave", "watching"]

Detour = tuple[str, int]

# One object for the whole process, empty nearly always: short ways only ask whether it is, and so
# does the extension. One entry per block, not per thread: a block in a generator may end in another
# thread, or in a garbage collection, so that no lock may be held here.
detours: Final[set[Detour]] = set()
_numbers: Final = itertools.count()


def enter(reason: str) -> Detour:
    """Send the calls of all threads the long way, until what is returned is given to `leave`."""
    detour = reason, next(_numbers)
    detours.add(detour)
    return detour


def leave(detour: Detour) -> None:
    """End what `enter` returned."""
    detours.discard(detour)


class _Watching(threading.local):
    """Who is told of the operators that run in this thread, which takes the long way meanwhile."""

    #: ``recorder.call(primitive, values)`` and ``recorder.write(primitive, values)`` answer for
    #: the operator and for its in-place form, on checked arguments, and
    #: ``recorder.answer(function, args, kwargs)`` may for a function that makes tensors. None:
    #: nobody is told.
    recorder: Any = None
    #: New tensors are appended, None: nobody asks.
    made: list[Any] | None = None


watching: Final = _Watching()
