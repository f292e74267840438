"""Draws of random numbers that are made again, for derivatives of what was computed with them."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import numpy as np

__all__ = ["drawn", "drawn_again", "noted_draws"]

_OTHERS: Final = (
    "[random] the random numbers of a call are drawn again for a second derivative, and there is "
    "another number of them: an operator draws that does not say so. Pass it what it needs."
)


class _ThisThread(threading.local):
    #: Where generators were before each draw, for who makes them again.
    noted: list[Any] | None = None
    #: Where draws begin that are made again.
    again: Iterator[Any] | None = None


_here = _ThisThread()


def drawn(
    function: Callable[[np.random.Generator], Any], source: Callable[[], np.random.Generator]
) -> Any:
    """Return what `function` draws.

    Parameters
    ----------
    function
        Draws from NumPy's generator.
    source
        Gives that, which nobody else uses meanwhile.
    """
    if _here.again is not None:
        state = next(_here.again, None)
        if state is None:
            raise RuntimeError(_OTHERS)
        bits = np.random.PCG64()
        bits.state = state
        return function(np.random.Generator(bits))
    found = source()
    if _here.noted is not None:
        _here.noted.append(found.bit_generator.state)
    return function(found)


@contextlib.contextmanager
def noted_draws() -> Iterator[list[Any]]:
    """Give a list in which each draw of this thread in the block notes where it begins."""
    outer = _here.noted
    noted = _here.noted = []
    try:
        yield noted
    finally:
        _here.noted = outer


@contextlib.contextmanager
def drawn_again(noted: Sequence[Any]) -> Iterator[None]:
    """Let the draws of this thread in the block give what those gave that were noted, in order.

    No generator is touched: others go on drawing from theirs.

    Raises
    ------
    RuntimeError
        The block draws less often or more often.
    """
    outer, states = _here.again, iter(noted)
    _here.again = states
    try:
        yield
    finally:
        _here.again = outer
    if next(states, None) is not None:
        raise RuntimeError(_OTHERS)
