"""Which dtypes an operator admits, and the instances of its kernel that are built for them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import TYPE_CHECKING, Any

from tensorplay.library.modules.spec import DTYPES, Allocated, Argument
from tpkernel.cpp.functions import Function
from tpkernel.errors import did_you_mean

if TYPE_CHECKING:
    from tpkernel.cells.entries import EntryReader

__all__ = ["dtype_name", "read_dtypes"]

_DEFAULT_DTYPES = ("float32", "float64")
_MAX_INSTANCES = 64
_MAX_TEMPLATES = 8


def read_dtypes(
    reader: EntryReader,
    arguments: tuple[Argument, ...],
    results: tuple[Allocated, ...],
    function: Function,
) -> tuple[list[Argument], tuple[Mapping[str, str], ...]]:
    """Put admitted dtypes into the arguments; return them and the instances to build."""
    declared = _declared(reader, function)
    for template in function.templates:
        if template.startswith("="):
            message = (
                f"template parameter '{template[1:]}' is a value; only types can be dispatched. "
                "Write a constant of the cell instead, such as constexpr int N = 3;"
            )
            raise reader.error(message, line=function.line)
    bound = {a.variable for a in arguments if a.role != "out" and a.variable}
    for template in function.templates:
        if function.has_views and template not in bound:
            message = (
                f"template parameter '{template}' is in no input, so nothing says which "
                "instance is meant. Use it in a tp::In, or give the output a fixed type."
            )
            raise reader.error(message, line=function.line, column=function.column)
    sure = {a.variable for a in arguments if a.role != "out" and a.form in ("", "[]")}
    outs = [(a.name, a.variable) for a in arguments if a.role == "out" and a.form != "?"]
    outs += [(r.name, r.variable) for r in results]
    for name, variable in outs:
        if variable and variable not in sure:
            message = (
                f"output '{name}' is {variable}, which only inputs have that may be "
                "None. Give it a fixed type, or that of an input which is always there."
            )
            raise reader.error(message, line=function.line, column=function.column)
    done: list[Argument] = []
    for argument in arguments:
        open_input = argument.kind == "tensor" and argument.role != "out" and not argument.dtypes
        if argument.variable is not None:
            done.append(replace(argument, dtypes=declared[argument.variable]))
        elif open_input and "" in declared:
            done.append(replace(argument, dtypes=declared[""], because="from dtypes"))
        else:
            done.append(argument)
    if not function.has_views:
        return done, ({},)
    names = list(function.templates)
    if len(names) > _MAX_TEMPLATES:
        message = (
            f"'{function.name}' has {len(names)} template parameters; at most "
            f"{_MAX_TEMPLATES} can be dispatched"
        )
        raise reader.error(message, line=function.line)
    count = math.prod(len(declared[n]) for n in names)
    if count > _MAX_INSTANCES:
        message = (
            f"{count} instances of '{function.name}' would be built; admit fewer dtypes "
            f"(at most {_MAX_INSTANCES} combinations)"
        )
        raise reader.error(message, "dtypes")
    combos = product(*(declared[n] for n in names))
    return done, tuple(dict(zip(names, c, strict=True)) for c in combos)


def _declared(reader: EntryReader, function: Function) -> dict[str, tuple[str, ...]]:
    """Read ``dtypes`` by template parameter; those of plain kernels stand under ``""``."""
    value = reader.entry.values.get("dtypes")
    names = [t for t in function.templates if not t.startswith("=")]
    if value is None:
        return dict.fromkeys(names, _DEFAULT_DTYPES)
    if isinstance(value, str):
        value = [value]
    if isinstance(value, Mapping):
        for key in value:
            if key not in names:
                message = (
                    f"'{key}' under dtypes is no template parameter{did_you_mean(str(key), names)}"
                )
                raise reader.error(message, f"dtypes.{key}")
        return {
            n: _dtype_list(reader, value[n], f"dtypes.{n}") if n in value else _DEFAULT_DTYPES
            for n in names
        }
    listed = _dtype_list(reader, value, "dtypes")
    return {**dict.fromkeys(names, listed), **({} if names else {"": listed})}


def _dtype_list(reader: EntryReader, value: Any, key: str) -> tuple[str, ...]:
    """Read a list of dtypes."""
    items = [value] if isinstance(value, str) else value
    if not isinstance(items, Sequence) or not items:
        message = f"{key} must be a list of dtypes such as [float32, float64], got {value!r}"
        raise reader.error(message, key)
    return tuple(dtype_name(reader, item, key) for item in items)


def dtype_name(reader: EntryReader, value: Any, key: str) -> str:
    """Check the name of a dtype."""
    name = str(value).removeprefix("tp.").removeprefix("tensorplay.")
    if name not in DTYPES:
        message = (
            f"unknown dtype '{value}'{did_you_mean(name, DTYPES)} Dtypes: {', '.join(DTYPES)}."
        )
        raise reader.error(message, key)
    return name
