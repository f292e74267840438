"""What schedules refuse of what they are given."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tensorplay.ops.kinds import is_int

__all__ = ["want_counts", "want_state"]


def want_state(name: str, state_dict: Any) -> None:
    """Refuse a state that is no dictionary."""
    if not isinstance(state_dict, Mapping):
        message = (
            f"[{name}] argument 'state_dict': expected a dict, got {type(state_dict).__name__}. "
            "Write what state_dict() returned."
        )
        raise TypeError(message)


def want_counts(name: str, least: int, **values: Any) -> None:
    """Refuse options that are no integers, or below `least`."""
    for argument, value in values.items():
        if not is_int(value):
            message = f"[{name}] argument {argument!r}: expected int, got {type(value).__name__}."
            raise TypeError(message)
        if value < least:
            message = f"[{name}] argument {argument!r}: expected at least {least}, got {value}."
            raise ValueError(message)
