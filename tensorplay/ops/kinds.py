"""`checked`: functions in Python refuse, by name, what their annotations exclude."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, ParamSpec, TypeVar

import numpy as np

from tensorplay._tensor import Tensor
from tensorplay.ops.arguments import SCALARS, reject

__all__ = ["as_tensors", "checked", "is_float", "is_int"]

P = ParamSpec("P")
R = TypeVar("R")
Test = Callable[[Any], bool]


def _is_one(value: Any) -> bool:
    """Return whether a value is no tensor or array with dimensions."""
    return not getattr(value, "ndim", 0)


def is_int(value: Any) -> bool:
    """Return whether a value can stand for an integer."""
    return hasattr(value, "__index__") and _is_one(value)


def is_float(value: Any) -> bool:
    """Return whether a value can stand for a real number."""
    return hasattr(value, "__float__") and _is_one(value)


def _is_flag(value: Any) -> bool:
    return hasattr(value, "__bool__") and _is_one(value)  # None too: many write it for False


def _is_tensor(value: Any) -> bool:
    # What stands for tensors, as other classes may, has their attributes.
    return isinstance(value, Tensor) or (
        hasattr(value, "ndim") and not isinstance(value, (np.ndarray, *SCALARS))
    )


def _is_a(kind: type) -> Test:
    return lambda value: isinstance(value, kind)


def _has(name: str) -> Test:
    return lambda value: hasattr(value, name)


# What of an annotation is checked, and what the message expects.
_KINDS: Final[dict[str, tuple[Test, str]]] = {
    "int": (is_int, "int"),
    "float": (is_float, "float"),
    "bool": (_is_flag, "bool"),
    "str": (_is_a(str), "str"),
    "Tensor": (_is_tensor, "Tensor"),
    "Callable": (callable, "a function"),
    "Iterable": (_is_a(Iterable), "an iterable"),
    "Sequence": (_has("__getitem__"), "a sequence"),
    "dict": (_is_a(Mapping), "a dict"),
    "None": (lambda value: value is None, "None"),
}
# Values of just these types need no look.
_PLAIN: Final[dict[str, type]] = {"int": int, "float": float, "bool": bool, "Tensor": Tensor}
_BRACKETS = re.compile(r"\[[^\[\]]*\]")


@dataclass(frozen=True, slots=True)
class _Check:
    """One parameter of a function."""

    at: int  # its position; -1 where it is given by name only
    name: str
    plain: type | None
    tests: tuple[Test, ...]
    expected: str


def _alternatives(annotation: str) -> list[str]:
    """Return the names of a union, with ``<>`` for what stands in brackets."""
    previous = ""
    while annotation != previous:
        previous, annotation = annotation, _BRACKETS.sub("<>", annotation)
    return annotation.split(" | ")


def _kind(name: str, names: dict[str, Any]) -> tuple[Test, str] | None:
    """Return test and words of one alternative; None if it is not checked."""
    plain = name.removesuffix("<>")
    if plain in _KINDS:
        return _KINDS[plain]
    found = names.get(name)
    bound = getattr(found, "__bound__", None)  # of a type variable
    if bound is not None:
        return _kind(getattr(bound, "__forward_arg__", None) or bound.__name__, names)
    if isinstance(found, type) and found is not Any and found.__module__.startswith("tensorplay."):
        return _is_a(found), found.__name__
    return None


def _checks(function: Callable[..., Any]) -> list[_Check]:
    found = []
    names = function.__globals__
    for at, parameter in enumerate(inspect.signature(function).parameters.values()):
        if parameter.kind in {parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD}:
            continue
        alternatives = _alternatives(str(parameter.annotation))
        kinds = [kind for name in alternatives if (kind := _kind(name, names)) is not None]
        if len(kinds) == len(alternatives):
            found.append(
                _Check(
                    -1 if parameter.kind is parameter.KEYWORD_ONLY else at,
                    parameter.name,
                    _PLAIN.get(alternatives[0]),
                    tuple(test for test, _ in kinds),
                    " or ".join(words for _, words in kinds),
                )
            )
    return found


def checked(function: Callable[P, R]) -> Callable[P, R]:
    """Make a function refuse arguments of another kind than its annotations say.

    Numbers, texts, flags, tensors, functions, containers and the library's own classes are checked,
    and unions of them; a parameter with anything else in its annotation takes everything. A number
    may be an object that becomes one, and a tensor of no dimensions.

    Parameters
    ----------
    function
        A function, method or constructor; messages of the last name the class.

    Returns
    -------
    Callable
        With the same signature. It raises TypeError.
    """
    checks = _checks(function)
    name = function.__name__

    def where(args: Any) -> str:
        if name == "__new__":
            return str(args[0].__name__)
        return type(args[0]).__name__ if name == "__init__" else name

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        count = len(args)
        for check in checks:
            if 0 <= check.at < count:
                value: Any = args[check.at]
            elif check.name in kwargs:
                value = kwargs[check.name]
            else:
                continue
            if type(value) is not check.plain and not any(test(value) for test in check.tests):
                reject(where(args), check.name, check.expected, value)
        return function(*args, **kwargs)

    return call


def as_tensors(where: str, argument: str, values: Tensor | Iterable[Tensor]) -> list[Tensor]:
    """Return one tensor, or several, as a list.

    Raises
    ------
    TypeError
        One of them is no tensor.
    """
    found: list[Any] = [values] if isinstance(values, Tensor) else list(values)
    for value in found:
        if not isinstance(value, Tensor):
            reject(where, argument, "Tensors", value)
    return found
