"""The public functions made from operators; the stub file beside this one lists them."""

from __future__ import annotations

from tensorplay.ops import OPERATORS

__all__ = [
    name
    for operator in OPERATORS.values()
    if operator.public_function
    for name in (operator.name, *operator.aliases)
]

globals().update(
    {
        name: operator.function
        for operator in OPERATORS.values()
        if operator.public_function
        for name in (operator.name, *operator.aliases)
    }
)
