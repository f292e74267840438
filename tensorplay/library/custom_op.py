"""`custom_op`: an operator from a function, its annotations or a schema text."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from tensorplay.library.definitions import (
    CustomOpDef,
    check_function,
    device_keys,
)
from tensorplay.library.infer_schema import schema_of
from tensorplay.library.owners import owner_of
from tensorplay.library.registry import check_name, install
from tensorplay.library.tags import as_tags, check_tags
from tensorplay.ops.schema import FunctionSchema, parse_schema

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["custom_op", "parse_definition"]


def parse_definition(where: str, name: str, schema: str) -> FunctionSchema:
    """Return the schema of an operator called `name`, whose text may leave the name out.

    Raises
    ------
    ValueError
        The text is no schema, that of another operator, or one that returns a view.
    """
    text = schema.strip()
    parsed = parse_schema(f"{name}{text}" if text.startswith("(") else text)
    if parsed.namespace is None:
        parsed = parse_schema(f"{name}{parsed.signature()}")
    if parsed.full_name != name:
        message = f"[{where}] argument 'schema': expected the schema of {name}, got {schema!r}."
        raise ValueError(message)
    written = {a.alias.before for a in parsed.arguments if a.alias is not None and a.is_write}
    if any(r.alias is not None and r.alias.before not in written for r in parsed.returns):
        message = (
            f"[{where}] argument 'schema': {parsed} returns a view. Return a copy, or the "
            "argument that is written: Tensor(a!) x … -> Tensor(a!)."
        )
        raise ValueError(message)
    _check_defaults(where, parsed)
    return parsed


def _check_defaults(where: str, schema: FunctionSchema) -> None:
    """Refuse defaults that a call with them would be refused for.

    Raises
    ------
    ValueError
        None stands for an argument that takes none, or an integer needs more than 64 bits.
    """
    for argument in schema.arguments:
        given = argument.default
        if given is None and not argument.type.optional:
            message = (
                f"[{where}] argument 'schema': the default of '{argument.name}' is None, which is "
                f"no value of {argument.type}. Write {argument.type}? {argument.name}=None."
            )
            raise ValueError(message)
        for value in given if isinstance(given, list) else (given,):
            if type(value) is int and not -(2**63) <= value < 2**63:
                message = (
                    f"[{where}] argument 'schema': the default of '{argument.name}' is {value}, "
                    "expected an integer of 64 bits."
                )
                raise ValueError(message)


def _check_mutates(schema: FunctionSchema, mutates_args: Any) -> None:
    """Compare `mutates_args`, if given beside a schema, with what the schema says."""
    names = {mutates_args} if isinstance(mutates_args, str) else set(mutates_args)
    missing = sorted(n for n in names if n not in schema and n != "unknown")
    if missing:
        message = (
            f"[custom_op] argument 'mutates_args': {missing} were not found in the custom op's "
            f"signature {schema}."
        )
        raise ValueError(message)
    written = {a.name for a in schema.arguments if a.is_write}
    if names - {"unknown"} and names != written:
        message = (
            f"[custom_op] argument 'mutates_args': {sorted(names)} are not what {schema} says is "
            f"written, {sorted(written)}. Write Tensor(a!) there."
        )
        raise ValueError(message)


def _check_signature(function: Any, schema: FunctionSchema) -> None:
    """See that the kernel takes the arguments that the schema gives it."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # built-in functions need not have one
        return
    positional = [a.name for a in schema.arguments if not a.kwarg_only]
    try:
        signature.bind(*positional, **{a.name: a for a in schema.arguments if a.kwarg_only})
    except TypeError as error:
        message = (
            f"[custom_op] {owner_of(function)}{signature} does not take the arguments of "
            f"{schema}: {error}."
        )
        raise ValueError(message) from None


def custom_op(
    name: str,
    fn: Callable[..., Any] | None = None,
    /,
    *,
    mutates_args: Any = (),
    device_types: Any = None,
    schema: str | None = None,
    tags: Any = (),
) -> Any:
    """Make an operator of a function; a decorator unless `fn` is given.

    Parameters
    ----------
    name
        ``"namespace::opname"``.
    fn
        The kernel, on tensors. Nothing that it does is recorded, and its result must be new.
    mutates_args
        Name or names of the arguments that it writes, or ``"unknown"`` for all tensors.
    device_types
        Device types that the kernel serves; None for all.
    schema
        Schema text, with or without the name; otherwise the annotations are read.
    tags
        Marks of `Tag`, and notes of your own. `Tag.inplace` and `Tag.out` say which arguments are
        written if `mutates_args` does not, and that the function returns them.

    Returns
    -------
    CustomOpDef
        The operator. The same owner replaces it by defining it again: the notebook cell, or
        where nothing tells cells apart the function (the same module and name).

    Raises
    ------
    TypeError
        `schema` is no text, or `mutates_args` no names.
    ValueError
        The name, schema or an annotation is not valid.
    RuntimeError
        Another cell or function already defined an operator of this name.

    Examples
    --------
    >>> import tensorplay as tp
    >>> @tp.library.custom_op("docs::cube", mutates_args=())
    ... def cube(x: tp.Tensor) -> tp.Tensor:
    ...     return x * x * x
    >>> cube(tp.tensor([2.0]))
    tensor([8.])
    """
    namespace, opname = check_name("custom_op", name)
    kinds = device_keys("custom_op", device_types)
    tags = as_tags("custom_op", tags)
    text: Any = schema
    if text is not None and not isinstance(text, str):
        message = f"[custom_op] argument 'schema': expected str, got {type(text).__name__}."
        raise TypeError(message)
    if not isinstance(mutates_args, str):
        try:
            mutates_args = tuple(mutates_args)
        except TypeError:
            mutates_args = (mutates_args,)
        if not all(isinstance(a, str) for a in mutates_args):
            message = (
                "[custom_op] argument 'mutates_args': expected names of arguments, "
                f"got {mutates_args!r}."
            )
            raise TypeError(message)

    def define(function: Callable[..., Any]) -> CustomOpDef:
        check_function("custom_op", "fn", function)
        if schema is None:
            parsed = schema_of(
                function,
                mutates_args=mutates_args,
                namespace=namespace,
                name=opname,
                tags=tags,
                where="custom_op",
            )
        else:
            parsed = parse_definition("custom_op", name, schema)
            _check_mutates(parsed, mutates_args)
            _check_signature(function, parsed)
            check_tags("custom_op", parsed, tags)
        return install(
            "custom_op",
            parsed,
            owner_of(function),
            tags=tags,
            function=function,
            keys=kinds,
        )

    return define if fn is None else define(fn)
