"""Names for operators."""

from __future__ import annotations

import itertools

import pytest

_numbers = itertools.count()


@pytest.fixture
def name() -> str:
    """Return a name that no other test defines."""
    return f"tests_custom_op::op{next(_numbers)}"
