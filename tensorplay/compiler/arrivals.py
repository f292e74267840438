"""How gradients lie in memory where those of the results do not lie row by row.

A backward graph is captured for row-major gradients of the results. Where others arrive, it runs on
row-major copies, and what it gives is laid out as the formulas lay it out, which one run of them
tells: elements do not depend on layouts, so no second program is needed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tensorplay._layout import is_dense
from tensorplay._tensor import Tensor
from tensorplay.autograd import grad_mode
from tensorplay.graph.graph_module import GraphModule
from tensorplay.graph.interpreter import Interpreter
from tensorplay.graph.node import is_effect
from tensorplay.graph.order import Order, order_of

__all__ = ["Arrival", "arrival_of", "gradient_orders"]

#: How one gradient arrives: the order of its dimensions, and along which of them it repeats.
Arrival = tuple["Order | None", tuple[bool, ...]]


def arrival_of(array: Any) -> Arrival | None:
    """Return how a gradient lies; None if row by row, but for gaps."""
    repeated = tuple([s == 0 and n > 1 for n, s in zip(array.shape, array.strides, strict=True)])
    order = order_of(array.shape, array.strides)
    return None if order is None and not any(repeated) else (order, repeated)


def gradient_orders(backward: GraphModule, arguments: Sequence[Tensor]) -> list[Order | None]:
    """Return in which order of dimensions each result of a backward graph lies.

    Parameters
    ----------
    backward
        The backward graph.
    arguments
        Its arguments, laid out as they are.
    """
    count = len(backward.graph.output_node().args[0])
    if any(n.op == "call_function" and is_effect(n) for n in backward.graph.nodes):
        return [None] * count  # which happens once, in the program
    with grad_mode.no_grad():
        results = Interpreter(backward).run(*arguments)
    return [_order(r._array) for r in results]


def _order(array: Any) -> Order | None:
    if array.__class__ is not np.ndarray:
        return None
    if not is_dense(array.shape, array.strides, array.itemsize):
        return None
    return order_of(array.shape, array.strides)
