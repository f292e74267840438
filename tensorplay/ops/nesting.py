"""Arguments of a call as they nest: tensors, and lists of tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tensorplay._tensor import Tensor

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

__all__ = ["flatten", "map_kind", "map_tensors"]


def flatten(values: Iterable[Any]) -> Iterator[Tensor]:
    """Yield the tensors among `values` and in their lists."""
    for value in values:
        members = value if isinstance(value, list) else (value,)
        yield from (t for t in members if isinstance(t, Tensor))


def map_kind(value: Any, kind: type[Any], change: Callable[[Any], Any]) -> Any:
    """Return nested values with each object of `kind` replaced by ``change(object)``."""
    if isinstance(value, kind):
        return change(value)
    if isinstance(value, (list, tuple)):
        return type(value)(map_kind(v, kind, change) for v in value)
    return value


def map_tensors(value: Any, change: Callable[[Tensor], Any]) -> Any:
    """Return nested values with each tensor replaced by ``change(tensor)``."""
    return map_kind(value, Tensor, change)
