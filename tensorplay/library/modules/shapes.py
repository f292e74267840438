"""Declared shapes: how the sizes of inputs relate, and what shape an output gets.

A rule is ``Like("x")`` (the shape of an input) or ``Dims(("n", "k"))``. In an input's rule each
dimension is a symbol, an integer, or ``"_"`` for any size. In an output's rule a dimension may be
an expression over symbols, integer arguments and ``x.shape[…]``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

__all__ = ["Dims", "Like", "ShapeRule", "ShapeRules", "is_alike", "same_shape"]


@dataclass(frozen=True)
class Like:
    """The same shape as the named argument."""

    argument: str

    def __str__(self) -> str:
        return f"as {self.argument}"


@dataclass(frozen=True)
class Dims:
    """One entry per dimension: a symbol, an integer as text, ``"_"``, or an expression."""

    entries: tuple[str, ...]

    def __str__(self) -> str:
        return "[" + ", ".join(self.entries) + "]"


ShapeRule = Like | Dims


@dataclass(frozen=True)
class ShapeRules:
    """Rules by argument and output name; `declared` tells the person's own from the default."""

    inputs: Mapping[str, ShapeRule]
    outputs: Mapping[str, ShapeRule]
    declared: bool

    def symbols(self) -> tuple[str, ...]:
        """Return the symbols that inputs bind, in order of first use."""
        found: dict[str, None] = {}
        for rule in self.inputs.values():
            if isinstance(rule, Dims):
                for entry in rule.entries:
                    if entry.isidentifier() and entry != "_":
                        found[entry] = None
        return tuple(found)


def same_shape(rules: ShapeRules, order: Sequence[str]) -> dict[int, int]:
    """Map each argument's position to the earliest one that must have the same shape.

    Parameters
    ----------
    rules
        The relations.
    order
        Names of all arguments.
    """
    group = {name: name for name in order}

    def root(name: str) -> str:
        while group[name] != name:
            name = group[name]
        return name

    for name, rule in {**rules.inputs, **rules.outputs}.items():
        if isinstance(rule, Like) and name in group:
            first, second = sorted((root(name), root(rule.argument)), key=order.index)
            group[second] = first
    return {i: order.index(root(n)) for i, n in enumerate(order) if root(n) != n}


def is_alike(rules: ShapeRules, name: str) -> bool:
    """Whether the members of a list must have one shape: it is like something, or that like it."""
    return any(
        isinstance(rule, Like) and name in (key, rule.argument)
        for key, rule in rules.inputs.items()
    )
