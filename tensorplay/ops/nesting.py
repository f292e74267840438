"""Arguments of a call as they nest: tensors, and lists of tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tensorplay._tensor import Tensor

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

__all__ = ["flatten"]


def flatten(values: Iterable[Any]) -> Iterator[Tensor]:
    """Yield the tensors among `values` and in their lists."""
    for value in values:
        members = value if isinstance(value, list) else (value,)
        yield from (t for t in members if isinstance(t, Tensor))
