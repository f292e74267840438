"""Why no call may take a short way at present: modes that must see every call."""

from __future__ import annotations

import itertools
from typing import Final

__all__ = ["Detour", "detours", "enter", "leave"]

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
