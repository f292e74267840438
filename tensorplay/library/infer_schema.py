"""From a function's annotations to a schema."""

from __future__ import annotations

import collections.abc
import inspect
import types
import typing
from typing import Any, Final, NoReturn

from tensorplay._device import device
from tensorplay._dtype import dtype
from tensorplay._tensor import Tensor
from tensorplay.ops.schema import (
    NO_DEFAULT,
    Alias,
    Argument,
    DtypeName,
    FunctionSchema,
    Return,
    SchemaType,
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
    types.NoneType: "None",
}
_LISTS: Final = (list, collections.abc.Sequence)
_HAS_LISTS: Final = {"Tensor", "SymInt", "float", "bool", "Scalar"}
VALID: Final = (
    "Tensor, int, float, bool, str, Number (int | float | bool | complex), dtype, device, "
    "Optional of these, and lists of Tensor, int, float, bool and Number"
)


class _Unsupported(Exception):
    """An annotation without a schema type; carries the advice."""


def _scalar_union(members: tuple[Any, ...]) -> bool:
    return len(members) > 1 and set(members) <= {int, float, bool, complex}


def _type_of(annotation: Any) -> SchemaType:
    """Return the schema type of an annotation."""
    if annotation in _BASES:
        return SchemaType(_BASES[annotation])
    origin, members = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in (typing.Union, types.UnionType):
        inner = tuple(m for m in members if m is not types.NoneType)
        if len(inner) < len(members):
            kind = _type_of(inner[0] if len(inner) == 1 else typing.Union[inner])  # noqa: UP007
            if kind.optional:
                raise _Unsupported
            return SchemaType(kind.base, kind.is_list, kind.size, True, kind.list_of_optional)
        if _scalar_union(inner):
            return SchemaType("Scalar")
        raise _Unsupported
    if origin in _LISTS:
        kind = _type_of(members[0])
        if kind.is_list or kind.base not in _HAS_LISTS or (kind.optional and kind.base != "Tensor"):
            raise _Unsupported
        return SchemaType(kind.base, True, None, False, kind.optional)
    if origin is tuple or annotation is tuple:
        if members and len({*members} - {Ellipsis}) == 1 and members[0] in _BASES:
            kind = _type_of(members[0])
            size = None if Ellipsis in members else len(members)
            return SchemaType(kind.base, True, size)
        advice = "Write list[...] instead of a tuple of different types."
        raise _Unsupported(advice)
    raise _Unsupported


def _fail(function: Any, what: str) -> NoReturn:
    signature = inspect.signature(function)
    message = f"[infer_schema] {function.__qualname__}{signature}: {what}"
    raise ValueError(message)


def _hints(function: Any) -> dict[str, Any]:
    """Resolve string annotations where the function was written, local imports included."""
    scope = dict(getattr(function, "__globals__", {}))
    closure = inspect.getclosurevars(function) if inspect.isfunction(function) else None
    if closure is not None:
        scope.update(closure.nonlocals)
    local: dict[str, Any] = {}
    frame = inspect.currentframe()
    code = getattr(function, "__code__", None)
    # A local import of the definer is in the frame that is defining the function right now.
    while frame is not None:
        if code is not None and code in frame.f_code.co_consts:
            local = dict(frame.f_locals)
            break
        frame = frame.f_back
    found: dict[str, Any] = {}
    for name, annotation in inspect.get_annotations(function).items():
        value = annotation
        if isinstance(annotation, str):
            try:
                value = eval(annotation, scope, local)  # noqa: S307 - the user's own annotation
            except NameError as error:
                _fail(function, f"argument '{name}': annotation {annotation!r} cannot be resolved: {error}.")
        found[name] = types.NoneType if value is None else value
    return found


def _default(function: Any, name: str, value: Any, kind: SchemaType) -> Any:
    if isinstance(value, dtype):
        return DtypeName(value.name)
    if isinstance(value, tuple) and kind.is_list:
        value = list(value)
    plain = (int, float, bool, str, types.NoneType)
    if isinstance(value, plain) or (isinstance(value, list) and all(isinstance(v, plain) for v in value)):
        return float(value) if kind.base == "float" and type(value) is int else value
    _fail(function, f"argument '{name}': expected a default of int, float, bool, str, dtype, None or a list of these, got {value!r}.")


def _returns(function: Any, annotation: Any) -> tuple[Return, ...]:
    if annotation is types.NoneType:
        return ()
    if typing.get_origin(annotation) is tuple:
        members = typing.get_args(annotation)
        if Ellipsis not in members:
            return tuple(_returns(function, m)[0] for m in members)
    try:
        kind = _type_of(annotation)
    except _Unsupported:
        kind = SchemaType("str")
    if kind.optional or kind.base not in {"Tensor", "SymInt", "float", "bool", "Scalar"}:
        _fail(
            function,
            f"return: expected Tensor, list[Tensor], int, float, bool, Number, a tuple of these "
            f"or None, got {annotation!r}.",
        )
    return (Return(kind),)


def schema_of(
    function: Any, *, mutates_args: Any = (), namespace: str | None = None, name: str | None = None
) -> FunctionSchema:
    """Return the schema that the annotations of `function` say; see `infer_schema`."""
    hints = _hints(function)
    mutated = _mutated_names(function, mutates_args)
    arguments: list[Argument] = []
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            _fail(function, f"argument '*{parameter.name}': expected named arguments, got varargs.")
        if parameter.kind is parameter.POSITIONAL_ONLY:
            _fail(function, f"argument '{parameter.name}': positional-only arguments are not supported.")
        has_default = parameter.default is not parameter.empty
        annotation = hints.get(parameter.name, parameter.empty)
        if annotation is parameter.empty:
            guess = type(parameter.default) if has_default and parameter.default is not None else Tensor
            annotation = guess if guess in _BASES else Tensor
        try:
            kind = _type_of(annotation)
        except _Unsupported as error:
            what = (
                f"argument '{parameter.name}': expected {VALID}, got {annotation!r}. {error}"
            ).rstrip()
            _fail(function, what)
        default = (
            _default(function, parameter.name, parameter.default, kind) if has_default else NO_DEFAULT
        )
        alias = None
        if mutated == "unknown":
            alias = Alias("a" + str(len(arguments)), is_write=True) if kind.is_tensor else None
        elif parameter.name in mutated:
            if not kind.is_tensor:
                _fail(function, f"argument '{parameter.name}' is in mutates_args: expected a Tensor, got {kind}.")
            alias = Alias("a" + str(len(arguments)), is_write=True)
        keyword = parameter.kind is parameter.KEYWORD_ONLY
        arguments.append(Argument(parameter.name, kind, default, keyword, alias))
    result = hints.get("return", inspect.Signature.empty)
    returns = (
        (Return(SchemaType("Tensor")),) if result is inspect.Signature.empty and mutated == ()
        else () if result is inspect.Signature.empty
        else _returns(function, result)
    )  # fmt: skip
    return FunctionSchema(name or function.__name__, tuple(arguments), returns, namespace)


def _mutated_names(function: Any, mutates_args: Any) -> tuple[str, ...] | str:
    if mutates_args == "unknown":
        return "unknown"
    names = (mutates_args,) if isinstance(mutates_args, str) else tuple(mutates_args)
    if not all(isinstance(n, str) for n in names):
        message = f"[infer_schema] argument 'mutates_args': expected names of arguments, got {mutates_args!r}."
        raise TypeError(message)
    known = set(inspect.signature(function).parameters)
    missing = [n for n in names if n not in known]
    if missing:
        message = (
            f"[infer_schema] argument 'mutates_args': {missing} were not found in the custom op's "
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
    tags: Any = (),  # noqa: ARG001 - tags change no schema text
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
        Accepted for symmetry with `custom_op`.

    Returns
    -------
    str
        ``(Tensor x, float beta=1.0) -> Tensor``

    Raises
    ------
    ValueError
        An annotation or default has no schema type; the message shows the signature.
    TypeError
        `mutates_args` holds something that is no name.

    Examples
    --------
    >>> import tensorplay as tp
    >>> def scale(x: tp.Tensor, factor: float = 2.0) -> tp.Tensor: ...
    >>> tp.library.infer_schema(scale, mutates_args=())
    '(Tensor x, float factor=2.0) -> Tensor'
    """
    schema = schema_of(prototype_function, mutates_args=mutates_args)
    return f"{op_name or ''}{schema.signature()}"
