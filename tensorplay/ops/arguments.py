"""Conversion of the arguments of an operator that are not tensors, as the schema says."""

from __future__ import annotations

import functools
import math
import operator
from typing import TYPE_CHECKING, Any, Final, NoReturn

import numpy as np

from tensorplay import _device, _dtype
from tensorplay._tensor import Tensor
from tensorplay.ops.dispatch import OverriddenError, has_override

if TYPE_CHECKING:
    from collections.abc import Callable

    from tensorplay.ops.schema import Argument

__all__ = ["LIMITS", "SCALARS", "as_plain", "check_held", "converter", "reject", "want_tensors"]

SCALARS = (bool, int, float, complex, np.number, np.bool_)


def reject(where: str, argument: str, expected: Any, value: Any, advice: str = "") -> NoReturn:
    """Raise the TypeError for a value of the wrong kind, which callers that ask types catch."""
    shown = _kind(value)
    if isinstance(value, (list, tuple)):
        inner = ", ".join(sorted({_kind(v) for v in value}))
        shown += f" of {inner}" if inner else " (empty)"
    text = f"[{where}] argument '{argument}': expected {expected}, got {shown}."
    if not advice:
        # What the caller of a function of this library has at hand is called x in its messages.
        written = argument if "::" in where else "x"
        kind_of = str(expected).removesuffix(" or None").rstrip("?")
        advice = _advice(written, kind_of, value)
    kind = OverriddenError if has_override(value) else TypeError
    raise kind(f"{text} {advice}" if advice else text)


def _advice(written: str, expected: str, value: Any) -> str:
    """Return what to write for a value of the wrong kind; empty where nothing is known."""
    if expected == "Tensor":
        if isinstance(value, np.ndarray):
            return f"Write tensorplay.from_numpy({written})."
        if hasattr(type(value), "__dlpack__"):
            return f"Write tensorplay.from_dlpack({written})."
        if isinstance(value, (list, tuple, *SCALARS)):
            return f"Write tensorplay.tensor({written})."
    if expected in {"int", "SymInt", "float", "Scalar", "bool"}:
        one = isinstance(value, (np.ndarray, Tensor)) and math.prod(value.shape) == 1
        if one:
            return f"Write {written}.item()."
        if expected in {"int", "SymInt"} and isinstance(value, (float, np.floating)):
            return f"Write int({written})."
        if expected in {"int", "SymInt", "float"} and _is_number(expected, value):
            return f"Write {expected.replace('SymInt', 'int')}({written})."
        if expected == "bool" and isinstance(value, (int, np.integer)):
            return f"Write bool({written})."
    return ""


def _is_number(expected: str, value: Any) -> bool:
    """Whether a value is a text of a number."""
    if not isinstance(value, str):
        return False
    try:
        float(value) if expected == "float" else int(value)
    except ValueError:
        return False
    return True


def _kind(value: Any) -> str:
    """Return the name of a value's type; of another library's tensor it says which."""
    kind = type(value)
    foreign = kind.__name__ == Tensor.__name__ and kind is not Tensor
    return f"{kind.__module__.partition('.')[0]}.{kind.__name__}" if foreign else kind.__name__


def want_tensors(where: str, **values: Any) -> None:
    """Refuse arrays, lists and numbers where code in Python is about to use tensors' methods."""
    for name, value in values.items():
        if isinstance(value, (np.ndarray, list, *SCALARS)):
            reject(where, name, "Tensor", value)


# The least and the largest number of each type of integers.
LIMITS: Final = {
    d: (_dtype.iinfo(d).min, _dtype.iinfo(d).max)
    for d in _dtype.DTYPES if d.category == _dtype.INTEGER
}  # fmt: skip


def check_held(where: str, number: Any, d: _dtype.dtype, *, wraps: bool = False) -> None:
    """Refuse a Python number that integers of type `d` cannot hold; others are let through.

    With `wraps`, for operations that agree with arithmetic modulo 2**n, only numbers that no
    integer type holds are refused.

    Raises
    ------
    RuntimeError
        That is the case.
    """
    if d.category != _dtype.INTEGER or type(number) not in (int, float):
        return
    low, high = (-(2**63), 2**64 - 1) if wraps else LIMITS[d]
    if not low - 1 < number < high + 1:
        huge = isinstance(number, int) and number.bit_length() > 65
        text = f"an integer of {number.bit_length()} bits" if huge else number
        raise RuntimeError(
            f"[{where}] {text} cannot be converted to {d!r} without overflow: its numbers go from "
            f"{LIMITS[d][0]} to {LIMITS[d][1]}. Write x.to(dtype) with a larger type first."
        )


def _integer(value: Any) -> int:
    if type(value) is int:
        return value
    if isinstance(value, (bool, np.bool_)):
        return int(value)
    return operator.index(value)


def _float(value: Any) -> float:
    if isinstance(value, (int, float, np.integer, np.floating, np.bool_)):
        return float(value)
    raise TypeError


def _boolean(value: Any) -> bool:
    if isinstance(value, (bool, np.bool_)):
        return bool(value)
    raise TypeError


_TRACKED = "a number, got a Tensor that requires grad. Write x.item() or x.detach()."


def _scalar(value: Any) -> Any:
    if isinstance(value, Tensor) and value.ndim == 0:
        if value.requires_grad:  # as a number it would lose its history
            raise TypeError(_TRACKED)
        return value.item()
    if isinstance(value, (np.number, np.bool_)):
        return value.item()
    if isinstance(value, SCALARS):
        return value
    raise TypeError


def _string(value: Any) -> str:
    if isinstance(value, str):
        return value
    raise TypeError


def _anything(value: Any) -> Any:
    return value


_INT = {int}

_ONE: dict[str, Callable[[Any], Any]] = {
    "int": _integer,
    "SymInt": _integer,
    "float": _float,
    "bool": _boolean,
    "Scalar": _scalar,
    "str": _string,
    "Layout": _anything,
    "Generator": _anything,
}


def as_plain(where: str, argument: str, kind: str, value: Any) -> Any:
    """Return `value` as a plain ``int``, ``float``, ``bool`` or ``str``, for functions by hand.

    Raises
    ------
    TypeError
        It is of another kind.
    ValueError
        The number is out of range.
    """
    try:
        return _ONE[kind](value)
    except TypeError:
        reject(where, argument, kind, value)
    except OverflowError as error:
        message = f"[{where}] argument '{argument}': a number is out of range: {error}."
        raise ValueError(message) from None


def converter(where: str, argument: Argument) -> Callable[[Any], Any]:
    """Return the function that checks and normalises values of `argument`.

    Lists become tuples; one value stands for a list of a declared size (``int[2]``).
    """
    kind = argument.type
    if kind.base == "ScalarType":
        one: Callable[[Any], Any] = functools.partial(
            _dtype.as_dtype, operator=where, argument=argument.name
        )
    elif kind.base == "Device":
        one = functools.partial(_device.as_device, operator=where)
    else:
        one = _ONE[kind.base]

    prefix = f"[{where}]"
    # A size of 1 says only that one number stands for a list, as for the dims of a reduction.
    exact = kind.size if kind.size is not None and kind.size > 1 else None

    # Most calls leave an argument out, and its default needs no conversion.
    default = argument.default
    ready = default is None or (type(default) in (bool, int, float) and not kind.is_list)

    def convert(value: Any) -> Any:
        if value is default and ready:
            return value
        if value is None and kind.optional:
            return None
        try:
            if not kind.is_list:
                return one(value)
            if isinstance(value, (list, tuple)):
                if one is _integer and set(map(type, value)) <= _INT:  # sizes of small operators
                    found = tuple(value)
                else:
                    found = tuple(
                        None if v is None and kind.list_of_optional else one(v) for v in value
                    )
            elif kind.size is not None or isinstance(value, Tensor):
                found = (one(value),) * (kind.size or 1)
            else:
                raise TypeError
        except OverflowError as error:
            message = f"{prefix} argument '{argument.name}': a number is out of range: {error}."
            raise ValueError(message) from None
        except TypeError as error:
            if str(error).startswith(prefix):
                raise
            if str(error) == _TRACKED:
                message = f"{prefix} argument '{argument.name}': expected {_TRACKED}"
                raise TypeError(message) from None
            reject(where, argument.name, kind, value)
        if exact is not None and len(found) != exact:
            message = (
                f"{prefix} argument '{argument.name}': expected {exact} values ({kind}), got "
                f"{len(found)}."
            )
            raise ValueError(message)
        return found

    return convert
