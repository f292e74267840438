"""Which arguments a kernel writes: bytes before a call compared with those after it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from tensorplay.ops.nesting import flatten

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tensorplay._tensor import Tensor
    from tensorplay.ops.schema import Argument, FunctionSchema

__all__ = ["Snapshot", "undeclared_write"]


class Snapshot:
    """The bytes of the tensors of a call.

    Parameters
    ----------
    schema
        The operator's.
    values
        The arguments of the call, in the order of the schema.
    """

    def __init__(self, schema: FunctionSchema, values: Sequence[Any]) -> None:
        self._kept: list[tuple[Argument, Tensor, bytes]] = [
            (argument, tensor, _bytes(tensor))
            for argument, value in zip(schema.arguments, values, strict=True)
            for tensor in flatten([value])
            if not tensor.is_meta
        ]

    def changed(self) -> dict[str, bool]:
        """Return for each argument with tensors whether any byte of them has changed."""
        found: dict[str, bool] = {}
        for argument, tensor, before in self._kept:
            changed = _bytes(tensor) != before
            found[argument.name] = found.get(argument.name, False) or changed
        return found

    def undeclared(self) -> list[str]:
        """Return the arguments that have changed and that the schema does not say are written."""
        changed = self.changed()
        names = {a.name: a.is_write for a, _, _ in self._kept}
        return [name for name, written in names.items() if changed[name] and not written]


def undeclared_write(schema: FunctionSchema, names: Sequence[str]) -> str:
    """Say that arguments are written without being declared, and what to write."""
    written = [a.name for a in schema.arguments if a.is_write or a.name in names]
    comma = "," if len(written) == 1 else ""
    listed = ", ".join(f"'{n}'" for n in names)
    arguments = "argument" if len(names) == 1 else "arguments"
    return (
        f"[{schema.full_name}] {arguments} {listed}: expected to be left as given, was written. "
        f"Declare it: mutates_args=({', '.join(repr(n) for n in written)}{comma}), or "
        f"Tensor(a!) {names[0]} in the schema; or write to a copy, {names[0]}.clone()."
    )


def _bytes(tensor: Tensor) -> bytes:
    return np.ascontiguousarray(tensor.detach()._array).tobytes()
