"""Operators of the user's own: definition, fake kernels, gradients."""

from __future__ import annotations

from typing import Any

from tensorplay.library.custom_op import CustomOpDef, custom_op, find
from tensorplay.library.infer_schema import infer_schema

__all__ = [
    "CustomOpDef",
    "custom_op",
    "get_op",
    "has_op",
    "infer_schema",
    "register_autograd",
    "register_fake",
    "register_kernel",
]


def register_kernel(op: Any, device_types: Any = None, func: Any = None, /) -> Any:
    """Add, or replace, the kernel of `op` for some device types; also a decorator.

    Raises
    ------
    RuntimeError
        `op` names no operator.
    """
    return find("register_kernel", op).register_kernel(device_types, func)


def register_fake(op: Any, func: Any = None, /) -> Any:
    """Set the function that gives the results of `op` without data; also a decorator.

    Raises
    ------
    RuntimeError
        `op` names no operator.
    """
    return find("register_fake", op).register_fake(func)


def register_autograd(op: Any, backward: Any, /, *, setup_context: Any = None) -> None:
    """Set the gradient of `op`; see `CustomOpDef.register_autograd`.

    Raises
    ------
    RuntimeError
        `op` names no operator, or one that writes to its arguments.
    """
    find("register_autograd", op).register_autograd(backward, setup_context=setup_context)


def get_op(name: str) -> CustomOpDef:
    """Return the operator called `name`.

    Raises
    ------
    RuntimeError
        There is none.
    """
    return find("get_op", name)


def has_op(name: str) -> bool:
    """Tell whether an operator is called `name`."""
    try:
        find("has_op", name)
    except RuntimeError:
        return False
    return True
