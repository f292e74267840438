"""The samples that an entry declares, and what one may give to an argument of each type."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from tensorplay.ops.schema import FunctionSchema, SchemaType
from tpkernel.cells.formulas import cut_at_comma, read_formula
from tpkernel.errors import did_you_mean

if TYPE_CHECKING:
    from tpkernel.cells.entries import EntryReader

__all__ = ["read_samples"]

#: The types of plain values by schema type; True is no number here, as in a call.
_PLAIN: Final = {
    "int": (int,),
    "SymInt": (int,),
    "float": (int, float),
    "Scalar": (int, float),
    "bool": (bool,),
    "str": (str,),
}


def read_samples(reader: EntryReader, schema: FunctionSchema) -> tuple[Mapping[str, Any], ...]:
    """Read ``samples``."""
    value = reader.entry.values.get("samples")
    if value is None:
        return ()
    items = [value] if isinstance(value, Mapping) else value
    known = [a.name for a in schema.arguments]
    if not isinstance(items, Sequence) or not all(isinstance(i, Mapping) for i in items):
        message = "samples must be a list of mappings such as {x: 'randn(3, 4)', beta: 0.5}"
        raise reader.error(message, "samples")
    for position, item in enumerate(items):
        cut = cut_at_comma(item)
        if cut is not None:
            message = f"sample {position}, '{cut[0]}': {cut[1]}"
            raise reader.error(message, f"samples.{position}")
        for name in item:
            if name not in known:
                message = (
                    f"sample {position} gives '{name}', which is no argument"
                    f"{did_you_mean(str(name), known)}"
                )
                raise reader.error(message, f"samples.{position}")
        for name, value in item.items():
            problem = _wrong_sample(value, schema.arguments[schema.index_of(name)].type)
            if problem:
                message = f"sample {position}, '{name}': {problem}"
                raise reader.error(message, f"samples.{position}")
        missing = [a.name for a in schema.arguments if a.name not in item and not a.has_default]
        if missing:
            raise reader.error(
                f"sample {position} lacks argument '{missing[0]}'", f"samples.{position}"
            )
    return tuple(dict(item) for item in items)


def _wrong_sample(value: Any, kind: SchemaType) -> str:
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
