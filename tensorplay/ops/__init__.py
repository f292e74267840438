"""The operators, and the object that each is."""

from __future__ import annotations

from typing import Any

from tensorplay.ops import conversion, elementwise
from tensorplay.ops.primitive import OPERATORS, Composite, Operator, Primitive, Sample, Vjp

__all__ = ["OPERATORS", "Composite", "Operator", "Primitive", "Sample", "Vjp", "conversion", "elementwise"]


def __getattr__(name: str) -> Any:
    operator = OPERATORS.get(name)
    if operator is None:
        message = f"tensorplay has no operator '{name}'"
        raise AttributeError(message)
    return operator.function
