"""Python's special methods of operators: ``x + y``, ``y + x`` and ``x += y``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from tensorplay._methods import TensorMethods
from tensorplay._tensor import Tensor
from tensorplay.ops.arguments import SCALARS
from tensorplay.ops.dispatch import (
    NoAnswerError,
    OverriddenError,
    has_override,
    protocol,
)
from tensorplay.ops.quick import quick_special, quick_special_write

if TYPE_CHECKING:
    from tensorplay.ops.operator import Operator

__all__ = ["make_special"]

OPERAND = (Tensor, np.ndarray, *SCALARS)


def make_special(operator: Operator, name: str) -> Any:
    """Return a special method of an operator whose other methods are attached."""
    # What modes and other types are told to have been called.
    public = getattr(TensorMethods, operator.name, operator.function)
    if len(operator.schema.arguments) == 1:
        special = _unary(operator, public)
    elif name.startswith("__r") and name != "__rshift__":
        special = _reflected(operator, public)
    elif name.startswith("__i"):
        special = _inplace(operator, name, getattr(TensorMethods, f"{operator.name}_", public))
    else:
        special = _plain(operator, name, public)
    special.__name__ = name
    special.__qualname__ = f"Tensor.{name}"
    special.overridable = True
    return special


def _rest(operator: Operator) -> tuple[Any, ...]:
    return tuple(operator._defaults.get(a.name) for a in operator.schema.arguments[2:])


def _unary(operator: Operator, public: Any) -> Any:
    def special(self: Tensor) -> Any:
        if protocol.on:
            return operator.redirect(public, operator.apply, (self,))
        return operator.apply((self,))

    return quick_special(operator, special)


def _plain(operator: Operator, name: str, public: Any) -> Any:
    rest = _rest(operator)
    reflected = f"__r{name[2:]}"

    def special(self: Tensor, other: Any) -> Any:
        if not isinstance(other, OPERAND):
            return _foreign(operator, public, (self, other, *rest), other, reflected)
        if protocol.on:
            return operator.redirect(public, operator.apply, (self, other, *rest))
        return operator.apply((self, other, *rest))

    return quick_special(operator, special)


def _reflected(operator: Operator, public: Any) -> Any:
    rest = _rest(operator)

    def special(self: Tensor, other: Any) -> Any:
        if not isinstance(other, OPERAND):
            return _foreign(operator, public, (other, self, *rest), other, "")
        if protocol.on:
            return operator.redirect(public, operator.apply, (other, self, *rest))
        return operator.apply((other, self, *rest))

    return quick_special(operator, special, reflected=True)


def _inplace(operator: Operator, name: str, public: Any) -> Any:
    rest = _rest(operator)
    reflected = f"__r{name[3:]}"

    def special(self: Tensor, other: Any) -> Any:
        if not isinstance(other, OPERAND):
            return _foreign(operator, public, (self, other, *rest), other, reflected)
        if protocol.on:
            return operator.redirect(public, operator.apply_inplace, (self, other, *rest))
        return operator.apply_inplace((self, other, *rest))

    return quick_special_write(operator, special)


def _foreign(
    operator: Operator, public: Any, values: tuple[Any, ...], other: Any, reflected: str
) -> Any:
    """Let an operand of a type of its own answer; NotImplemented lets Python ask further."""
    if not has_override(other):
        return NotImplemented
    try:
        return operator.redirect(public, operator.apply, values)
    except OverriddenError:
        return NotImplemented
    except NoAnswerError:
        if hasattr(type(other), reflected):
            return NotImplemented
        raise
