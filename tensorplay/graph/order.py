"""The order in which the dimensions of an array follow each other in memory."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["Order", "order_of"]

Order = tuple[int, ...]


def order_of(shape: Sequence[int], strides: Sequence[int]) -> Order | None:
    """Return the dimensions from the slowest to the fastest in memory; None for row-major."""
    if 0 in shape:
        return None
    moving = [d for d, n in enumerate(shape) if n != 1]
    there = sorted(moving, key=lambda d: -abs(strides[d]))
    if there == moving:
        return None
    places = iter(there)
    return tuple(next(places) if n != 1 else d for d, n in enumerate(shape))
