"""What a kernel returned, compared with the schema, on tensor objects of their own."""

from __future__ import annotations

import collections
import functools
import keyword
from typing import TYPE_CHECKING, Any

import numpy as np

from tensorplay._tensor import Tensor
from tensorplay.ops.arguments import SCALARS
from tensorplay.ops.nesting import flatten

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tensorplay.ops.schema import FunctionSchema, SchemaType

__all__ = ["ResultError", "checked_results", "composite_results", "named_results", "overlap"]


class ResultError(RuntimeError):
    """A kernel returned something else than the schema says.

    Attributes
    ----------
    code
        ``"alias"`` or ``"result_type"``.
    """

    def __init__(self, message: str, code: str = "result_type") -> None:
        super().__init__(message)
        self.code = code


class _NamedResults:
    """What the tuples of an operator's named results have besides their fields."""

    __slots__ = ()

    def __reduce__(self: Any) -> tuple[Any, ...]:
        # The class is made for the operator, so that pickle cannot find it by its name.
        kind = type(self)
        return _rebuilt, (kind.__name__, kind._fields, tuple(self))


def _rebuilt(name: str, fields: tuple[str, ...], values: tuple[Any, ...]) -> Any:
    return _tuple_class(name, fields)(*values)


@functools.cache
def _tuple_class(name: str, fields: tuple[str, ...]) -> Any:
    # The schema says which fields.
    base = collections.namedtuple(name, fields)  # type: ignore[misc]  # noqa: PYI024
    return type(name, (_NamedResults, base), {"__slots__": (), "__module__": __name__})


def named_results(schema: FunctionSchema) -> Any:
    """Return the class of tuples for an operator whose results all have names, or None.

    Raises
    ------
    ValueError
        A name that no attribute can have.
    """
    names = [r.name for r in schema.returns]
    if len(names) < 2 or not all(names):
        return None
    for name in names:
        if name is None or keyword.iskeyword(name) or name.startswith("_") or names.count(name) > 1:
            message = (
                f"[{schema.full_name}] result '{name}' cannot be an attribute of the results: "
                "expected names that differ, begin with a letter and are no words of Python. "
                "Rename it in the schema."
            )
            raise ValueError(message)
    return _tuple_class(schema.name, tuple(names))


def checked_results(
    schema: FunctionSchema, result: Any, values: list[Any], inner: list[Any], *, device: str
) -> list[Any]:
    """Return the results as a list that matches the schema, on tensor objects of their own.

    Parameters
    ----------
    schema
        The operator's.
    result
        What the kernel returned.
    values, inner
        The arguments of the call, and what the kernel got in place of them.
    device
        Type of the device that the results must lie on.

    Raises
    ------
    RuntimeError
        Number or kind is not the schema's, or a result shares memory with an argument or
        with another result.
    """
    returns = schema.returns
    given = _as_many(schema, result)
    outs: list[Any] = []
    for number, (out, declared) in enumerate(zip(given, returns, strict=True)):
        if declared.alias is not None:
            outs.append(_written_argument(schema, number, out, values, inner))
        else:
            outs.append(_result(schema, number, out, declared.type, device=device))
    _check_aliases(schema, outs, values)
    return outs


def composite_results(schema: FunctionSchema, result: Any, values: list[Any]) -> Any:
    """Return what a composite gave, if number and kinds are the schema's; its tensors as they are.

    Raises
    ------
    ResultError
        They are not, or a result is not the written argument that the schema says it is.
    """
    for number, (out, declared) in enumerate(
        zip(_as_many(schema, result), schema.returns, strict=True)
    ):
        if declared.alias is not None:
            _written_argument(schema, number, out, values, values)
        else:
            device = out.device.type if isinstance(out, Tensor) else ""
            _result(schema, number, out, declared.type, device=device)
    return result


def _as_many(schema: FunctionSchema, result: Any) -> Sequence[Any]:
    """Return the results as a sequence of as many as the schema says."""
    returns = schema.returns
    if len(returns) == 1:
        given: Sequence[Any] = [result]
    elif isinstance(result, (tuple, list)):
        given = result
    else:
        given = [] if result is None else [result]
    if len(given) != len(returns):
        expected = f"{len(returns)} values" if returns else "None"
        got = f"{len(given)} values" if len(given) > 1 else type(result).__name__
        message = f"[{schema.full_name}] result: expected {expected} by the schema, got {got}."
        raise ResultError(message)
    return given


def _written_argument(
    schema: FunctionSchema, number: int, out: Any, values: list[Any], inner: list[Any]
) -> Any:
    """Return the argument that the schema says is result `number`."""
    alias = schema.returns[number].alias
    before = "" if alias is None else alias.before
    for position, argument in enumerate(schema.arguments):
        if argument.alias is not None and argument.alias.before == before:
            if out is inner[position]:
                return values[position]
            message = (
                f"[{schema.full_name}] result {number}: expected argument '{argument.name}' "
                f"itself, as {schema} says, got another {type(out).__name__}. "
                f"Write `return {argument.name}`."
            )
            raise ResultError(message)
    message = f"[{schema.full_name}] result {number}: no argument has the alias set {alias}."
    raise ResultError(message)


def _result(schema: FunctionSchema, number: int, out: Any, kind: SchemaType, *, device: str) -> Any:
    if out is None and kind.optional:
        return None
    try:
        if kind.is_list:
            if not isinstance(out, (list, tuple)):
                raise TypeError
            return [
                None if x is None and kind.list_of_optional else _one_result(x, kind.base)
                for x in out
            ]
        found = _one_result(out, kind.base)
    except TypeError:
        advice = ""
        if kind.base == "Tensor" and isinstance(out, np.ndarray):
            advice = " Write tensorplay.from_numpy(result)."
        message = (
            f"[{schema.full_name}] result {number}: expected {kind} by the schema, got "
            f"{type(out).__name__}.{advice}"
        )
        raise ResultError(message) from None
    if isinstance(found, Tensor) and found.device.type != device:
        message = (
            f"[{schema.full_name}] result {number}: expected a tensor on device {device}, got "
            f"one on {found.device}."
        )
        raise ResultError(message)
    return found


def _check_aliases(schema: FunctionSchema, outs: list[Any], values: list[Any]) -> None:
    seen: list[tuple[str, Tensor]] = [
        (f"argument '{a.name}'", t)
        for v, a in zip(values, schema.arguments, strict=True)
        for t in flatten([v])
    ]
    for number, out in enumerate(outs):
        for tensor in flatten([out]):
            if any(tensor is other for _, other in seen):
                continue  # an argument that the schema says is returned
            for name, other in seen:
                if overlap(tensor, other):
                    message = (
                        f"[{schema.full_name}] output {number} may not alias {name}: they share "
                        f"memory. Return a copy (`return result.clone()`), or declare an "
                        f"in-place operator (mutates_args=...) and return nothing."
                    )
                    raise ResultError(message, "alias")
            seen.append((f"output {number}", tensor))


_NUMBERS: dict[str, tuple[tuple[type, ...], type]] = {
    "int": ((int, np.integer), int),
    "SymInt": ((int, np.integer), int),
    "float": ((int, float, np.integer, np.floating), float),
    "bool": ((bool, np.bool_), bool),
    "str": ((str,), str),
}


def _one_result(out: Any, base: str) -> Any:
    """Return one result in the form that the schema's type has in Python; TypeError if it cannot.

    A tensor is returned as a new object on the same memory: what the kernel keeps for itself
    gets no history.
    """
    if base == "Tensor":
        if isinstance(out, Tensor):
            return out.detach()
    elif base == "Scalar":
        if isinstance(out, SCALARS):
            return out.item() if isinstance(out, np.generic) else out
    elif base in _NUMBERS:
        admitted, make = _NUMBERS[base]
        if isinstance(out, admitted):
            return make(out)
    else:
        return out
    raise TypeError


def overlap(a: Tensor, b: Tensor) -> bool:
    """Tell whether two tensors share memory; True where that is too dear to find out."""
    if not (a.is_cpu and b.is_cpu):
        return a._array is b._array
    if not np.may_share_memory(a._array, b._array):
        return False
    try:
        # NumPy's stubs know -1 and 0 only.
        return bool(np.shares_memory(a._array, b._array, max_work=10_000))  # type: ignore[arg-type]
    except np.exceptions.TooHardError:
        return True  # the bounds overlap and the answer is dear: the cautious one
