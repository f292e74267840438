"""Marks of operators: kinds of aliasing that have a convention, and what a compiler must know."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tensorplay.ops.schema import FunctionSchema

__all__ = ["EffectType", "Tag", "as_tags", "check_tags", "kind_of"]


class Tag(enum.Enum):
    """What an operator declares about itself.

    Attributes
    ----------
    inplace
        Writes its first positional argument, a tensor, and returns it; writes nothing else.
    out
        Writes its keyword-only tensor arguments without reading them, and returns them in order.
    pointwise
        Each element of the result depends on the elements at the same place only.
    nondeterministic
        Two calls on the same arguments may differ.
    dynamic_output_shape
        The sizes of a result depend on values, so that no call without data tells them. Its type,
        device and number of dimensions do not; a fake kernel raises NotImplementedError.
    """

    inplace = "inplace"
    out = "out"
    pointwise = "pointwise"
    nondeterministic = "nondeterministic"
    dynamic_output_shape = "dynamic_output_shape"


class EffectType(enum.Enum):
    """Side effects that a compiler has to respect.

    Attributes
    ----------
    ORDERED
        Calls happen once each, in the order of the program: none is removed, doubled, moved
        before another or computed ahead of time.
    """

    ORDERED = "ordered"


def as_tags(where: str, tags: Any) -> tuple[Tag | str, ...]:
    """Return one tag or several as a tuple.

    Raises
    ------
    TypeError
        Something is neither a `Tag` nor a note in words.
    """
    given = (tags,) if isinstance(tags, (Tag, str)) else tags
    try:
        found = tuple(given)
    except TypeError:
        found = (given,)
    wrong = [t for t in found if not isinstance(t, (Tag, str))]
    if wrong:
        message = (
            f"[{where}] argument 'tags': expected members of tensorplay.library.Tag, or notes as "
            f"strings, got {wrong[0]!r}."
        )
        raise TypeError(message)
    return found


def kind_of(schema: FunctionSchema, tags: Iterable[Any]) -> str:
    """Return ``"functional"``, ``"inplace"``, ``"out"`` or ``"mutable"``."""
    given = set(tags)
    if Tag.inplace in given:
        return "inplace"
    if Tag.out in given:
        return "out"
    return "mutable" if any(a.is_write for a in schema.arguments) else "functional"


def check_tags(where: str, schema: FunctionSchema, tags: Iterable[Any]) -> None:
    """See that the schema keeps what its tags promise.

    Raises
    ------
    ValueError
        Both `Tag.inplace` and `Tag.out`, or a schema of another form.
    """
    given = set(tags)
    if {Tag.inplace, Tag.out} <= given:
        message = f"[{where}] argument 'tags': {schema} cannot be both Tag.inplace and Tag.out."
        raise ValueError(message)
    written = [a for a in schema.arguments if a.is_write]
    if Tag.inplace in given:
        first = schema.arguments[0] if schema.arguments else None
        if first is None or not first.is_write or first.kwarg_only or first.type.base != "Tensor":
            _broken(where, schema, "inplace", "its first positional argument to be written")
        if len(written) != 1:
            others = [a.name for a in written if a is not first]
            _broken(where, schema, "inplace", f"nothing else to be written, not {others}")
        if _returned(schema) != [first.name]:
            _broken(where, schema, "inplace", f"it to return '{first.name}', Tensor(a!)")
    if Tag.out in given:
        if not written:
            _broken(where, schema, "out", "keyword-only tensors to be written")
        positional = [a.name for a in written if not a.kwarg_only]
        if positional:
            _broken(where, schema, "out", f"what is written to be keyword-only, not {positional}")
        if _returned(schema) != [a.name for a in written]:
            names = ", ".join(a.name for a in written)
            _broken(where, schema, "out", f"it to return what it writes, in order: {names}")


def _returned(schema: FunctionSchema) -> list[str | None]:
    """Return which argument each result is, None for a new one."""
    by_set = {a.alias.before: a.name for a in schema.arguments if a.alias is not None}
    return [None if r.alias is None else by_set.get(r.alias.before) for r in schema.returns]


def _broken(where: str, schema: FunctionSchema, tag: str, what: str) -> NoReturn:
    message = f"[{where}] argument 'tags': Tag.{tag} expects {what}; the schema is {schema}."
    raise ValueError(message)
