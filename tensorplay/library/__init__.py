"""Operators of the user's own: definition, kernels, fake kernels, gradients, checks."""

from __future__ import annotations

from typing import Any

from tensorplay.library.custom_op import custom_op
from tensorplay.library.definitions import CustomOpDef
from tensorplay.library.infer_schema import infer_schema
from tensorplay.library.libraries import Library, check_library, define, get_kernel, impl
from tensorplay.library.opcheck import OpCheckError, OpCheckFailure, opcheck
from tensorplay.library.registry import OverloadPacket, find, remove
from tensorplay.library.tags import EffectType, Tag

__all__ = [
    "CustomOpDef",
    "EffectType",
    "Library",
    "OpCheckError",
    "OpCheckFailure",
    "OverloadPacket",
    "Tag",
    "custom_op",
    "define",
    "get_kernel",
    "get_op",
    "has_op",
    "impl",
    "impl_abstract",
    "infer_schema",
    "opcheck",
    "register_autograd",
    "register_effectful",
    "register_fake",
    "register_kernel",
    "register_vmap",
    "remove",
]


def _found(where: str, op: Any, lib: Library | None) -> CustomOpDef:
    definition = find(where, op)
    if lib is not None:
        check_library(where, lib, definition)
    return definition


def register_kernel(
    op: Any, device_types: Any = None, func: Any = None, /, *, lib: Library | None = None
) -> Any:
    """Add, or replace, the kernel of `op` for some device types; also a decorator.

    Raises
    ------
    RuntimeError
        `op` names no operator.
    """
    return _found("register_kernel", op, lib).register_kernel(device_types, func)


def register_fake(
    op: Any, func: Any = None, /, *, lib: Library | None = None, allow_override: bool = True
) -> Any:
    """Set the function that gives the results of `op` without data; also a decorator.

    Raises
    ------
    RuntimeError
        `op` names no operator; or it has a fake kernel already and `allow_override` is False.
    """
    definition = _found("register_fake", op, lib)
    if not allow_override and definition.operator_kernels.fake is not None:
        message = (
            f"[register_fake] {definition.name} has a fake kernel already, and allow_override is "
            "False."
        )
        raise RuntimeError(message)
    return definition.register_fake(func)


impl_abstract = register_fake


def register_autograd(
    op: Any, backward: Any, /, *, setup_context: Any = None, lib: Library | None = None
) -> None:
    """Set the gradient of `op`; see `CustomOpDef.register_autograd`.

    Raises
    ------
    RuntimeError
        `op` names no operator, or one that writes to its arguments.
    """
    _found("register_autograd", op, lib).register_autograd(backward, setup_context=setup_context)


def register_vmap(op: Any, func: Any = None, /, *, lib: Library | None = None) -> Any:
    """Set how `op` runs inside of `func.vmap`; see `CustomOpDef.register_vmap`.

    Raises
    ------
    RuntimeError
        `op` names no operator.
    """
    return _found("register_vmap", op, lib).register_vmap(func)


def register_effectful(op: Any, effect: EffectType | None) -> None:
    """Declare a side effect of `op` that a compiler has to respect.

    Raises
    ------
    RuntimeError
        `op` names no operator.
    TypeError
        `effect` is neither an `EffectType` nor None.
    """
    find("register_effectful", op).register_effect(effect)


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
