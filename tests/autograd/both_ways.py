"""Runs the same by the extension and by Python's own engine."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tensorplay.autograd import engine, function
from tensorplay.ops import OPERATORS, Primitive

# The package has a function of the module's name.
backward_module = importlib.import_module("tensorplay.autograd.backward")
array_rules = importlib.import_module("tensorplay.ops.array_rules")
PRIMITIVES = [op for op in OPERATORS.values() if isinstance(op, Primitive)]


@contextlib.contextmanager
def python_only() -> Iterator[None]:
    """Take Python's way for passes, calls of functions and formulas inside."""
    known = [op.known_array_rules for op in PRIMITIVES]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine, "_native_pass", None)
        patch.setattr(backward_module, "_plainly", None)
        patch.setattr(function, "_plainly", function._apply_plainly)
        patch.setattr(array_rules, "_program", None)
        for op in PRIMITIVES:
            patch.setattr(op, "known_array_rules", {})
        yield
    assert all(op.known_array_rules is rules for op, rules in zip(PRIMITIVES, known, strict=True))


def bits(tensor: Any) -> Any:
    """Return all that can be told of a gradient."""
    if tensor is None:
        return None
    array = tensor.detach().numpy()
    return tensor.dtype, tuple(tensor.shape), array.tobytes(), tensor.requires_grad, tensor._version


def problem_of(run: Callable[[], Any]) -> str | None:
    try:
        run()
    except Exception as error:  # noqa: BLE001 - the error is what is compared
        return f"{type(error).__name__}: {error}"
    return None


def both(run: Callable[[], Any]) -> tuple[Any, Any]:
    """Return what `run` returns by the extension, and by Python."""
    ours = run()
    with python_only():
        return ours, run()
