"""What a declared sample may give to an argument of each type."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from tensorplay.ops.schema import SchemaType
from tpkernel.cells.formulas import read_formula

__all__ = ["wrong_sample"]

#: The types of plain values by schema type; True is no number here, as in a call.
_PLAIN: Final = {
    "int": (int,),
    "SymInt": (int,),
    "float": (int, float),
    "Scalar": (int, float),
    "bool": (bool,),
    "str": (str,),
}


def wrong_sample(value: Any, kind: SchemaType) -> str:
    """Say what is wrong with the value that a sample gives to an argument; empty for nothing."""
    if not kind.is_tensor:
        return _wrong_plain(value, kind)
    if kind.is_list:
        if not isinstance(value, Sequence) or isinstance(value, str):
            return f"expected a list of tensors such as ['randn(3)', [1.0, 2.0]], got {value!r}"
        values = list(value)
    else:
        values = [value]
    may_be_none = kind.list_of_optional if kind.is_list else kind.optional
    for one in values:
        if one is None and not may_be_none:
            return f"expected a tensor for {kind}, got null"
        if isinstance(one, str):
            try:
                read_formula(one, values=(), grads=())
            except ValueError as problem:
                return str(problem)
        elif _shape(one) is None:
            return f"expected lists of one length side by side, as a tensor has, got {one!r}"
    return ""


def _shape(value: Any) -> tuple[int, ...] | None:
    """Return the sizes of numbers in nested lists; None where they are of no one shape."""
    if not isinstance(value, Sequence) or isinstance(value, str):
        return ()
    shapes = [_shape(member) for member in value]
    if any(shape is None or shape != shapes[0] for shape in shapes):
        return None
    return (len(value), *(shapes[0] or ())) if shapes else (0,)


def _wrong_plain(value: Any, kind: SchemaType) -> str:
    types = _PLAIN.get(kind.base)
    if types is None or (value is None and kind.optional):
        return ""
    members = [value]
    if kind.is_list:
        if not isinstance(value, Sequence) or isinstance(value, str):
            return f"expected a list for {kind}, got {value!r}"
        members = [m for m in value if m is not None or not kind.list_of_optional]
    for member in members:
        if not isinstance(member, types) or (isinstance(member, bool) and bool not in types):
            return f"expected {kind}, got {member!r}"
    return ""
