"""From a function's annotations to a schema."""

from __future__ import annotations

import collections.abc
import contextlib
import dataclasses
import inspect
import os
import types
import typing
from typing import Any, Final, NamedTuple, NoReturn

import numpy as np

from tensorplay._device import device
from tensorplay._dtype import dtype
from tensorplay._tensor import Tensor
from tensorplay.library.tags import Tag, as_tags, check_tags
from tensorplay.ops.schema import (
    NO_DEFAULT,
    Alias,
    Argument,
    DtypeName,
    FunctionSchema,
    Return,
    SchemaType,
    fits,
)

__all__ = ["infer_schema", "schema_of"]

Number = int | float | bool | complex

_BASES: Final[dict[Any, str]] = {
    Tensor: "Tensor",
    int: "SymInt",
    float: "float",
    bool: "bool",
    str: "str",
    complex: "Scalar",
    dtype: "ScalarType",
    device: "Device",
}
_LISTS: Final = (list, collections.abc.Sequence)
_HAS_LISTS: Final = {"Tensor", "SymInt", "float", "bool", "Scalar"}
VALID: Final = (
    "Tensor, int, float, bool, str, Number (int | float | bool | complex), dtype, device, "
    "Optional of these, and lists of Tensor, int, float, bool and Number"
)


class _UnsupportedError(Exception):
    """An annotation without a schema type; carries the advice."""


class _UnresolvedError(Exception):
    """A string annotation that cannot be evaluated; carries the reason."""


class _Scope(NamedTuple):
    """Where the names in string annotations are looked up."""

    globals: dict[str, Any]
    locals: dict[str, Any]

    def resolve(self, annotation: Any) -> Any:
        """Return what a string or a forward reference stands for, anything else as it is."""
        text = (
            annotation.__forward_arg__ if isinstance(annotation, typing.ForwardRef) else annotation
        )
        if not isinstance(text, str):
            return types.NoneType if annotation is None else annotation
        try:
            value = eval(text, self.globals, self.locals)  # noqa: S307 - the user's own annotation
        except (NameError, AttributeError, SyntaxError, TypeError) as error:
            message = f"annotation {text!r} cannot be resolved: {error}"
            raise _UnresolvedError(message) from error
        return self.resolve(value)


def _scope(function: Any) -> _Scope:
    """Return where `function` was written: its module, its closure, and its running definers."""
    code = getattr(function, "__code__", None)
    local: dict[str, Any] = {}
    cells = getattr(function, "__closure__", None) or ()
    for name, cell in zip(getattr(code, "co_freevars", ()), cells, strict=True):
        with contextlib.suppress(ValueError):  # not assigned yet, as the function's own name
            local[name] = cell.cell_contents
    # What a definer imported or assigned is in its frame, which is running right now; around it
    # may run the function that defines the definer.
    frame = inspect.currentframe()
    while frame is not None and code is not None:
        if code in frame.f_code.co_consts:
            local = {**frame.f_locals, **local}
            code = frame.f_code
        frame = frame.f_back
    return _Scope(dict(getattr(function, "__globals__", {})), local)


def _scalar_union(members: tuple[Any, ...]) -> bool:
    return len(members) > 1 and set(members) <= {int, float, bool, complex}


def _base_of(annotation: Any) -> str | None:
    if not isinstance(annotation, type):
        return None
    if issubclass(annotation, Tensor):  # subclasses of tensors are tensors; bool is no int here
        return "Tensor"
    return _BASES.get(annotation)


def _type_of(annotation: Any, scope: _Scope) -> SchemaType:
    """Return the schema type of an annotation."""
    annotation = scope.resolve(annotation)
    base = _base_of(annotation)
    if base is not None:
        return SchemaType(base)
    origin = typing.get_origin(annotation)
    members = typing.get_args(annotation)
    if origin is typing.Annotated:
        return _type_of(members[0], scope)
    if origin in (tuple, typing.Union, types.UnionType):
        members = tuple(m if m is Ellipsis else scope.resolve(m) for m in members)
    if origin in (typing.Union, types.UnionType):
        inner = tuple(m for m in members if m is not types.NoneType)
        if _scalar_union(inner):
            return SchemaType("Scalar", optional=len(inner) < len(members))
        if len(inner) != 1:
            raise _UnsupportedError(_nearest(annotation))
        kind = _type_of(inner[0], scope)
        return SchemaType(kind.base, kind.is_list, kind.size, True, kind.list_of_optional)
    if origin in _LISTS and members:
        return _list_of(_type_of(members[0], scope), None)
    if origin is tuple and members:
        kinds = {_type_of(m, scope) for m in members if m is not Ellipsis}
        if len(kinds) == 1:
            return _list_of(kinds.pop(), None if Ellipsis in members else len(members))
    raise _UnsupportedError(_nearest(annotation))


def _list_of(kind: SchemaType, size: int | None) -> SchemaType:
    if kind.is_list or kind.base not in _HAS_LISTS or (kind.optional and kind.base != "Tensor"):
        message = "There are lists of Tensor, Tensor | None, int, float, bool and Number only."
        raise _UnsupportedError(message)
    return SchemaType(kind.base, True, size, False, kind.optional)


def _nearest(annotation: Any) -> str:
    """Return advice: the supported spelling that is nearest to `annotation`."""
    origin = typing.get_origin(annotation) or annotation
    if origin is tuple:
        return "Write list[...] instead of a tuple of different types."
    if origin in (*_LISTS, set, frozenset, dict):
        return "Write a list with the type of its elements, such as list[Tensor] or list[int]."
    if isinstance(origin, type):
        if issubclass(origin, (np.ndarray, np.generic)):
            return "Write Tensor, or Number for a scalar."
        if issubclass(origin, os.PathLike):
            return "Write str."
    if origin in (typing.Union, types.UnionType):
        return "Write one type, with | None where it may be left out."
    return ""


def _fail(function: Any, what: str) -> NoReturn:
    name = getattr(function, "__qualname__", type(function).__qualname__)
    message = f"[infer_schema] {name}{inspect.signature(function)}: {what}"
    raise ValueError(message)


def _default(function: Any, name: str, value: Any, kind: SchemaType) -> Any:
    """Return the default of an argument as the schema holds it, if it is a value of `kind`."""
    if isinstance(value, dtype):
        value = DtypeName(value.name)
    elif isinstance(value, device):
        value = str(value)
    elif isinstance(value, tuple) and kind.is_list:
        value = list(value)
    elif kind.base == "float" and type(value) is int:
        value = float(value)
    if kind.base == "float" and isinstance(value, list):
        value = [float(v) if type(v) is int else v for v in value]
    if not fits(value, kind):
        _fail(function, f"argument '{name}': expected a default of type {kind}, got {value!r}.")
    return value


def _guess(value: Any) -> Any:
    """Return the annotation that the default `value` of an argument without one stands for."""
    if isinstance(value, (list, tuple)) and value and len({type(v) for v in value}) == 1:
        return list[type(value[0])]  # type: ignore[misc]  # a type made at run time
    return type(value) if type(value) in _BASES else Tensor


def _returns(function: Any, annotation: Any, scope: _Scope) -> tuple[Return, ...]:
    annotation = scope.resolve(annotation)
    if annotation is types.NoneType:
        return ()
    members = typing.get_args(annotation)
    if typing.get_origin(annotation) is tuple and Ellipsis not in members:
        return tuple(Return(_result_type(function, m, annotation, scope)) for m in members)
    return (Return(_result_type(function, annotation, annotation, scope)),)


def _result_type(function: Any, annotation: Any, whole: Any, scope: _Scope) -> SchemaType:
    try:
        kind = _type_of(annotation, scope)
    except _UnsupportedError:
        kind = None
    if (
        kind is None
        or kind.optional
        or kind.size is not None
        or kind.list_of_optional
        or kind.base not in _HAS_LISTS
        or (kind.is_list and kind.base != "Tensor")
    ):
        _fail(
            function,
            "return: expected Tensor, list[Tensor], int, float, bool, Number, a tuple of these "
            f"or None, got {whole!r}.",
        )
    return kind


def _alias(
    function: Any, name: str, number: int, kind: SchemaType, mutated: tuple[str, ...] | str
) -> Alias | None:
    """Return the mark of an argument that is written."""
    if mutated == "unknown":
        return Alias(f"a{number}", is_write=True) if kind.is_tensor else None
    if name not in mutated:
        return None
    if not kind.is_tensor:
        _fail(function, f"argument '{name}' is in mutates_args: expected a Tensor, got {kind}.")
    return Alias(f"a{number}", is_write=True)


def _argument(
    function: Any, parameter: inspect.Parameter, number: int, scope: _Scope, mutated: Any
) -> Argument:
    name, default = parameter.name, parameter.default
    if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
        _fail(function, f"argument '*{name}': expected named arguments, got varargs.")
    if parameter.kind is parameter.POSITIONAL_ONLY:
        _fail(function, f"argument '{name}': positional-only arguments are not supported.")
    has_default = default is not parameter.empty
    annotation = parameter.annotation
    if annotation is parameter.empty:
        annotation = _guess(default) if has_default else Tensor
    try:
        kind = _type_of(annotation, scope)
    except _UnsupportedError as error:
        _fail(
            function, f"argument '{name}': expected {VALID}, got {annotation!r}. {error}".rstrip()
        )
    if default is None and not kind.optional:  # None says that it may be left out
        kind = dataclasses.replace(kind, optional=True)
    return Argument(
        name,
        kind,
        _default(function, name, default, kind) if has_default else NO_DEFAULT,
        parameter.kind is parameter.KEYWORD_ONLY,
        _alias(function, name, number, kind, mutated),
    )


def schema_of(
    function: Any,
    *,
    mutates_args: Any = (),
    namespace: str | None = None,
    name: str | None = None,
    tags: Any = (),
    where: str = "infer_schema",
) -> FunctionSchema:
    """Return the schema that the annotations of `function` say; see `infer_schema`.

    `where` is the function that was called, for messages.
    """
    signature = inspect.signature(function)
    scope = _scope(inspect.unwrap(function))
    mutated = _mutated_names(where, function, mutates_args) or _tagged_names(function, tags)
    arguments: list[Argument] = []
    where = ""
    try:
        for parameter in signature.parameters.values():
            where = f"argument '{parameter.name}'"
            arguments.append(_argument(function, parameter, len(arguments), scope, mutated))
        where = "return"
        if signature.return_annotation is not signature.empty:
            returns = _returns(function, signature.return_annotation, scope)
        elif Tag.inplace in tags or Tag.out in tags:
            returns = (Return(SchemaType("Tensor")),) * sum(a.is_write for a in arguments)
        else:
            returns = () if mutated else (Return(SchemaType("Tensor")),)
    except _UnresolvedError as error:
        _fail(function, f"{where}: {error}.")
    if Tag.inplace in tags or Tag.out in tags:
        returns = _returned_arguments(arguments, returns)
    schema = FunctionSchema(name or function.__name__, tuple(arguments), returns, namespace)
    check_tags(where, schema, tags)
    return schema


def _tagged_names(function: Any, tags: Any) -> tuple[str, ...]:
    """Return the arguments that a tag says are written."""
    parameters = list(inspect.signature(function).parameters.values())
    if Tag.inplace in tags and parameters:
        return (parameters[0].name,)
    if Tag.out in tags:
        keywords = [p for p in parameters if p.kind is p.KEYWORD_ONLY]
        scope = _scope(inspect.unwrap(function))
        return tuple(p.name for p in keywords if _is_tensor(p.annotation, scope))
    return ()


def _is_tensor(annotation: Any, scope: _Scope) -> bool:
    try:
        return annotation is inspect.Parameter.empty or _type_of(annotation, scope).is_tensor
    except (_UnsupportedError, _UnresolvedError):
        return False  # said where the argument itself is read


def _returned_arguments(
    arguments: list[Argument], returns: tuple[Return, ...]
) -> tuple[Return, ...]:
    """Give each tensor result the alias of the written argument in its place."""
    written = [a.alias for a in arguments if a.is_write]
    if len(written) != len(returns):
        return returns  # `check_tags` says what is wrong
    return tuple(Return(r.type, r.name, a) for r, a in zip(returns, written, strict=True))


def _mutated_names(where: str, function: Any, mutates_args: Any) -> tuple[str, ...] | str:
    if mutates_args == "unknown":
        return "unknown"
    names = (mutates_args,) if isinstance(mutates_args, str) else tuple(mutates_args)
    if not all(isinstance(n, str) for n in names):
        message = (
            f"[{where}] argument 'mutates_args': expected names of arguments, got {mutates_args!r}."
        )
        raise TypeError(message)
    known = set(inspect.signature(function).parameters)
    missing = [n for n in names if n not in known]
    if missing and isinstance(mutates_args, str):
        message = (
            f"[{where}] argument 'mutates_args': expected the name of an argument out of "
            f"{sorted(known)}, a sequence of them or 'unknown', got {mutates_args!r}."
        )
        raise TypeError(message)
    if missing:
        message = (
            f"[{where}] argument 'mutates_args': {missing} were not found in the custom op's "
            f"signature, whose arguments are {sorted(known)}."
        )
        raise ValueError(message)
    return names


def infer_schema(
    prototype_function: Any,
    /,
    *,
    mutates_args: Any,
    op_name: str | None = None,
    tags: Any = (),
) -> str:
    """Return schema text for `prototype_function` from its annotations.

    Parameters
    ----------
    prototype_function
        Function whose annotations are read. Without one, an argument is a Tensor, or of the
        type of its default.
    mutates_args
        Names of the arguments that are written, or ``"unknown"``.
    op_name
        Name put before the parenthesis; without it the text starts there.
    tags
        Marks of `Tag`: with `Tag.inplace` or `Tag.out` the results are the written arguments, and
        `mutates_args` may be empty.

    Returns
    -------
    str
        ``(Tensor x, float beta=1.0) -> Tensor``

    Raises
    ------
    ValueError
        An annotation or default has no schema type, or a tag's rule is broken; the message shows
        the signature.
    TypeError
        `mutates_args` holds something that is no name.

    Examples
    --------
    >>> import tensorplay as tp
    >>> def scale(x: tp.Tensor, factor: float = 2.0) -> tp.Tensor: ...
    >>> tp.library.infer_schema(scale, mutates_args=())
    '(Tensor x, float factor=2.0) -> Tensor'
    """
    tags = as_tags("infer_schema", tags)
    schema = schema_of(prototype_function, mutates_args=mutates_args, tags=tags)
    return f"{op_name or ''}{schema.signature()}"
