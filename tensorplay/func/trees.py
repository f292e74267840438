"""Nested lists, tuples and dictionaries as a list of leaves and a structure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

__all__ = ["flatten", "same_structure", "unflatten"]


class _Leaf:
    def __repr__(self) -> str:
        return "*"


_LEAF = _Leaf()


def flatten(value: Any) -> tuple[list[Any], Any]:
    """Return the leaves in order, and a structure to give to `unflatten`."""
    leaves: list[Any] = []
    return leaves, _walk(value, leaves)


def _walk(value: Any, leaves: list[Any]) -> Any:
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*[_walk(v, leaves) for v in value])
    if type(value) in {list, tuple}:
        return type(value)(_walk(v, leaves) for v in value)
    if isinstance(value, Mapping):
        return {key: _walk(v, leaves) for key, v in value.items()}
    leaves.append(value)
    return _LEAF


def unflatten(structure: Any, leaves: list[Any]) -> Any:
    """Return the structure with its leaves in place."""
    return _fill(structure, iter(leaves))


def _fill(structure: Any, leaves: Iterator[Any]) -> Any:
    if structure is _LEAF:
        return next(leaves)
    if isinstance(structure, tuple) and hasattr(structure, "_fields"):
        return type(structure)(*[_fill(s, leaves) for s in structure])
    if isinstance(structure, (list, tuple)):
        return type(structure)(_fill(s, leaves) for s in structure)
    return {key: _fill(s, leaves) for key, s in structure.items()}


def same_structure(one: Any, two: Any) -> bool:
    """Tell whether two structures from `flatten` are equal."""
    found: bool = one == two
    return found
