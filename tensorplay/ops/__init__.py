"""The operators, and the object that each is."""

from __future__ import annotations

from typing import Any

from tensorplay.ops import (
    activation,
    arrangement,
    attention,
    classes,
    comparison,
    complex_numbers,
    conversion,
    convolution,
    decompositions,
    eigen,
    elementwise,
    indexing,
    joining,
    least_squares,
    linalg,
    masks,
    movement,
    nn,
    parts,
    piecewise,
    pooling,
    reduction,
    sampling,
    scan,
    selection,
    sorting,
    spectral,
    statistics,
    storage,
    strided,
    systems,
    transcendental,
    transposed_convolution,
)  # isort: skip  # isort: skip
from tensorplay.ops.primitive import OPERATORS, Composite, Operator, Primitive, Sample, Vjp

__all__ = [
    "NAMESPACES",
    "OPERATORS",
    "Composite",
    "Namespace",
    "Operator",
    "Primitive",
    "Sample",
    "Vjp",
    "activation",
    "arrangement",
    "attention",
    "classes",
    "comparison",
    "complex_numbers",
    "conversion",
    "convolution",
    "decompositions",
    "eigen",
    "elementwise",
    "indexing",
    "joining",
    "least_squares",
    "linalg",
    "masks",
    "movement",
    "nn",
    "parts",
    "piecewise",
    "pooling",
    "reduction",
    "sampling",
    "scan",
    "selection",
    "sorting",
    "spectral",
    "statistics",
    "storage",
    "strided",
    "systems",
    "transcendental",
    "transposed_convolution",
]


class Namespace:
    """Operators defined by users under one name: ``tensorplay.ops.mylib.softplus``."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._members: dict[str, Any] = {}

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "_members":
            raise AttributeError(name)
        if name not in self._members:
            message = (
                f"tensorplay.ops.{self._name} has no operator '{name}'; defined: "
                f"{', '.join(sorted(self._members)) or 'none'}. Define it with "
                f"tensorplay.library.custom_op('{self._name}::{name}', ...)."
            )
            raise AttributeError(message)
        return self._members[name]

    def __dir__(self) -> list[str]:
        return sorted(self._members)

    def __repr__(self) -> str:
        return f"<operators {self._name}: {', '.join(sorted(self._members))}>"


NAMESPACES: dict[str, Namespace] = {}


def __getattr__(name: str) -> Any:
    if name in NAMESPACES:
        return NAMESPACES[name]
    operator = OPERATORS.get(name)
    if operator is None:
        message = (
            f"tensorplay.ops has no operator and no namespace '{name}'. Define operators with "
            f"tensorplay.library.custom_op('{name}::...')."
        )
        raise AttributeError(message)
    return operator.function
