"""Nested lists, tuples and dictionaries as a list of leaves and a structure."""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any

__all__ = ["flatten", "same_structure", "unflatten"]


class _Leaf:
    def __repr__(self) -> str:
        return "*"


_LEAF = _Leaf()


def flatten(value: Any, *, known: bool = False) -> tuple[list[Any], Any]:
    """Return the leaves in order, and a structure to give to `unflatten`.

    Mappings of Python's own kinds come back as they are; of other kinds, as dictionaries, or, with
    `known`, they are leaves.
    """
    leaves: list[Any] = []
    return leaves, _walk(value, leaves, known)


def _walk(value: Any, leaves: list[Any], known: bool) -> Any:
    kind = type(value)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return kind(*[_walk(v, leaves, known) for v in value])
    if kind in {list, tuple}:
        return kind(_walk(v, leaves, known) for v in value)
    if isinstance(value, Mapping) and (kind in _MAPPINGS or not known):
        items = {key: _walk(v, leaves, known) for key, v in value.items()}
        return _like(value, items)
    leaves.append(value)
    return _LEAF


_MAPPINGS = {dict, OrderedDict, defaultdict, MappingProxyType}


def _like(value: Any, items: dict[Any, Any]) -> Any:
    """Return a mapping of the kind of `value` with other items."""
    kind = type(value)
    if kind is defaultdict:
        return defaultdict(value.default_factory, items)
    return kind(items) if kind in {OrderedDict, MappingProxyType} else items


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
    return _like(structure, {key: _fill(s, leaves) for key, s in structure.items()})


def same_structure(one: Any, two: Any) -> bool:
    """Tell whether two structures from `flatten` are equal."""
    found: bool = one == two
    return found
