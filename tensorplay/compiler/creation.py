"""Functions that make tensors of nothing, as captures and graphs know them."""

from __future__ import annotations

from typing import Any, Final

from tensorplay import _creation, _grids, random
from tensorplay.graph.node import Node, is_effect
from tensorplay.ops.operator import Operator

__all__ = ["CREATORS", "RANDOM", "REFUSED", "draws"]

RANDOM: Final[frozenset[Any]] = frozenset(
    getattr(random, n) for n in ("rand", "randn", "randint", "randperm")
)
CREATORS: Final[frozenset[Any]] = frozenset({
    *(getattr(_creation, n) for n in ("empty", "zeros", "ones", "full")),
    *(getattr(_creation, n) for n in ("arange", "linspace", "eye")), _grids.logspace, *RANDOM,
})  # fmt: skip
#: Those that a graph cannot have, each with the reason.
REFUSED: Final[dict[Any, str]] = {
    _creation.from_numpy: "shares the memory of a NumPy array",
    _creation.from_dlpack: "shares the memory of another library",
    _grids.frombuffer: "shares the memory of a buffer",
}


def draws(node: Node) -> bool:
    """Tell whether a node has effects, and the only one is that it draws random numbers."""
    target: Any = node.target
    if node.op != "call_function" or not is_effect(node):
        return False
    if target in RANDOM:
        return True
    schema = getattr(target, "schema", None)
    return (
        isinstance(target, Operator)
        and schema is not None
        and schema.namespace is None
        and not any(a.is_write for a in schema.arguments)
    )
