"""Blocks of a captured run that nothing of people's runs in, and need not be followed."""

from __future__ import annotations

import sys

__all__ = ["Unwatched"]


class Unwatched:
    """Ends `sys.settrace` for a block."""

    __slots__ = ("_trace",)

    def __enter__(self) -> None:
        self._trace = sys.gettrace()
        if self._trace is not None:
            sys.settrace(None)

    def __exit__(self, *_: object) -> None:
        if self._trace is not None:
            sys.settrace(self._trace)
