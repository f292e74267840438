"""What an operator returns: dtype and form of each output, and which have a gradient."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from tensorplay.library.modules.spec import Allocated, Argument, KernelSpec, Output
from tpkernel.cells.dtypes import dtype_name
from tpkernel.errors import did_you_mean

if TYPE_CHECKING:
    from tpkernel.cells.entries import EntryReader

__all__ = ["read_outputs"]


def read_outputs(reader: EntryReader, kernel: KernelSpec) -> tuple[Output, ...]:
    """Decide dtype and form of each output, in the schema's order."""
    outs: list[Argument | Allocated] = [a for a in kernel.arguments if a.role == "out"]
    for result in kernel.results:
        outs.insert(result.position - sum(a.role != "out" for a in kernel.arguments), result)
    names = [o.name for o in outs]
    declared = reader.entry.values.get("out_dtype")
    by_name: dict[str, str] = {}
    if declared is not None:
        pairs = declared if isinstance(declared, Mapping) else dict.fromkeys(names, declared)
        for name, value in pairs.items():
            if name not in names:
                near = did_you_mean(str(name), names)
                message = f"'{name}' under out_dtype is no output{near}"
                raise reader.error(message, f"out_dtype.{name}")
            by_name[name] = dtype_name(reader, value, "out_dtype")
    inputs = [a for a in kernel.arguments if a.kind == "tensor" and a.role != "out"]
    inputs.sort(key=lambda a: ("", "[]", "?", "?[]").index(a.form))  # those that are there first
    made = [_one_output(reader, out, by_name.get(out.name), inputs) for out in outs]
    return tuple(
        replace(out, differentiable=d)
        for out, d in zip(made, _differentiable(reader, names), strict=True)
    )


def _differentiable(reader: EntryReader, names: Sequence[str]) -> list[bool]:
    """Read ``output_differentiability``."""
    key = "output_differentiability"
    value = reader.entry.values.get(key)
    if value is None:
        return [True] * len(names)
    items = list(value) if isinstance(value, (list, tuple)) else [value]
    if not all(isinstance(i, bool) for i in items) or len(items) != len(names):
        message = (
            f"{key} must be True or False for each output that the operator allocates "
            f"({', '.join(names) or 'none'}), got {value!r}"
        )
        raise reader.error(message, key)
    return items


def _one_output(
    reader: EntryReader, out: Argument | Allocated, fixed: str | None, inputs: Sequence[Argument]
) -> Output:
    """Decide dtype and form of one output."""
    if isinstance(out, Allocated):
        dtypes: tuple[str, ...] = (out.dtype,) if out.dtype else ()
    else:
        dtypes = out.dtypes
    like = None
    if fixed is None and out.variable is not None:
        like = next(a.name for a in inputs if a.variable == out.variable)
    elif fixed is None and len(dtypes) == 1:
        fixed = dtypes[0]
    elif fixed is None:
        like = inputs[0].name if inputs else None
        fixed = None if inputs else "float32"
    if fixed is not None and dtypes and fixed not in dtypes:
        message = (
            f"output '{out.name}': expected {' or '.join(dtypes)}, as its C++ type says, got "
            f"{fixed}"
        )
        raise reader.error(message, "out_dtype")
    if isinstance(out, Allocated):
        return Output(out.name, fixed, like, allocated=True)
    return Output(out.name, fixed, like, form=out.form)
