"""Specs as plain JSON values and back, every field checked against its declared type."""

from __future__ import annotations

import dataclasses
import functools
import math
import types
import typing
from collections.abc import Mapping
from typing import Any, Literal

from tensorplay.library.modules.shapes import Dims, Like
from tensorplay.ops.schema import DtypeName

__all__ = ["decode", "encode"]

# Keys of values that JSON has no form for; no name of an argument begins like that.
_NUMBER = "$number"
_COMPLEX = "$complex"
_DTYPE = "$dtype"
_WITHOUT_JSON = ("nan", "inf", "-inf")


def encode(value: Any) -> Any:
    """Return a spec, or a value in one, as dicts, lists, strings, booleans and finite numbers.

    Raises
    ------
    TypeError
        A value that is none of ours, such as a date in a sample.
    """
    if value is None or type(value) in (str, bool, int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else {_NUMBER: repr(float(value))}
    if isinstance(value, complex):
        return {_COMPLEX: [encode(value.real), encode(value.imag)]}
    if isinstance(value, Like):
        return {"like": value.argument}
    if isinstance(value, Dims):
        return {"dims": list(value.entries)}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: encode(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                message = f"expected a word as key, got {key!r}"
                raise TypeError(message)
        return {key: encode(item) for key, item in value.items()}
    if isinstance(value, (set, frozenset)):
        return sorted(encode(item) for item in value)
    if isinstance(value, (list, tuple)):
        return [encode(item) for item in value]
    if isinstance(value, DtypeName):
        return {_DTYPE: value.name}
    if isinstance(value, (int, str)):
        return value
    message = f"expected numbers, text, lists and mappings, got {value!r}"
    raise TypeError(message)


def decode(kind: Any, value: Any, where: str = "description") -> Any:
    """Return what :func:`encode` wrote.

    Parameters
    ----------
    kind
        The type: a record, or what a field of one is annotated with.
    value
        Plain data.
    where
        What is read, for messages.

    Raises
    ------
    ValueError
        Something is missing, unknown, or of another type.
    """
    origin = typing.get_origin(kind)
    if dataclasses.is_dataclass(kind):
        return _record(kind, value, where)
    if origin in (typing.Union, types.UnionType):
        return _either(typing.get_args(kind), value, where)
    if origin is Literal:
        return _checked(value, value in typing.get_args(kind), f"one of {kind}", where)
    if origin is tuple:
        _checked(value, isinstance(value, list), "a list", where)
        (item, *_) = typing.get_args(kind)
        if item in (float, float | complex) and all(type(v) is float for v in value):
            return tuple(value)  # matrices, in short time
        return tuple(decode(item, v, f"{where}[{i}]") for i, v in enumerate(value))
    if origin is frozenset:
        _checked(value, isinstance(value, list), "a list", where)
        return frozenset(decode(typing.get_args(kind)[0], v, where) for v in value)
    if origin is not None and issubclass(origin, Mapping):
        _checked(value, isinstance(value, dict), "a mapping", where)
        item = typing.get_args(kind)[1]
        return {k: decode(item, v, f"{where}.{k}") for k, v in value.items()}
    if kind is Any:
        return _any(value, where)
    if kind is float:
        if isinstance(value, dict):
            value = _checked(_any(value, where), value.keys() == {_NUMBER}, "a number", where)
        return float(_checked(value, type(value) in (int, float), "a number", where))
    if kind is complex:
        fits = isinstance(value, dict) and value.keys() == {_COMPLEX}
        return _any(_checked(value, fits, "a complex number", where), where)
    exact = type(value) is kind
    return _checked(value, exact, getattr(kind, "__name__", str(kind)), where)


def _checked(value: Any, fits: bool, expected: str, where: str) -> Any:
    if not fits:
        message = f"{where}: expected {expected}, got {str(value)[:60]!r}"
        raise ValueError(message)
    return value


@functools.cache
def _hints(kind: Any) -> dict[str, Any]:
    return typing.get_type_hints(kind)


def _record(kind: Any, value: Any, where: str) -> Any:
    _checked(value, isinstance(value, dict), f"the fields of {kind.__name__}", where)
    hints = _hints(kind)
    fields = {f.name for f in dataclasses.fields(kind)}
    # Fields that an older version did not write have the values that were meant then.
    needed = {
        f.name
        for f in dataclasses.fields(kind)
        if f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING
    }
    if not needed <= value.keys() <= fields:
        wrong = ", ".join(sorted((value.keys() - fields) | (needed - value.keys())))
        message = f"{where}: expected the fields of {kind.__name__}; missing or unknown: {wrong}"
        raise ValueError(message)
    return kind(**{n: decode(hints[n], v, f"{where}.{n}") for n, v in value.items()})


def _either(kinds: tuple[Any, ...], value: Any, where: str) -> Any:
    if set(kinds) == {Like, Dims}:
        if isinstance(value, dict) and value.keys() == {"like"}:
            return Like(decode(str, value["like"], where))
        if isinstance(value, dict) and value.keys() == {"dims"}:
            return Dims(decode(tuple[str, ...], value["dims"], where))
        return _checked(value, False, "a rule such as {like: x}", where)
    if set(kinds) == {float, complex}:
        is_pair = isinstance(value, dict) and value.keys() == {_COMPLEX}
        return decode(complex if is_pair else float, value, where)
    if value is None:
        return _checked(value, type(None) in kinds, "a value", where)
    (kind,) = (k for k in kinds if k is not type(None))
    return decode(kind, value, where)


def _any(value: Any, where: str) -> Any:
    if isinstance(value, list):
        return [_any(v, f"{where}[{i}]") for i, v in enumerate(value)]
    if not isinstance(value, dict):
        return value
    if value.keys() == {_NUMBER}:
        word = value[_NUMBER]
        fits = isinstance(word, str) and word in _WITHOUT_JSON
        return float(_checked(word, fits, f"one of {', '.join(_WITHOUT_JSON)}", where))
    if value.keys() == {_COMPLEX}:
        pair = value[_COMPLEX]
        fits = isinstance(pair, list) and len(pair) == 2
        real, imag = _checked(pair, fits, "two numbers", where)
        return complex(decode(float, real, where), decode(float, imag, where))
    if value.keys() == {_DTYPE}:
        word = value[_DTYPE]
        return DtypeName(_checked(word, isinstance(word, str), "the name of a dtype", where))
    return {k: _any(v, f"{where}.{k}") for k, v in value.items()}
