"""What a graph does besides computing: the writes at its end."""

from __future__ import annotations

from tensorplay._tensor import Tensor
from tensorplay.graph.node import EFFECTS
from tensorplay.ops.operator import OPERATORS

__all__ = ["write"]


def write(destination: Tensor, value: Tensor) -> Tensor:
    """Copy `value` into `destination`, once, and return that.

    What a captured function did in place stands in its graph as calls of this function before the
    output, one for each tensor that changed.
    """
    return OPERATORS["copy"].apply_inplace((destination, value))


EFFECTS.add(write)
