"""What tells calls of a compiled function apart: types, shapes, numbers and structure."""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Collection, Sequence
from types import MappingProxyType
from typing import Any, Final

import numpy as np

from tensorplay import _dtype
from tensorplay._tensor import Tensor
from tensorplay.autograd import grad_mode
from tensorplay.compiler.numbers import ANY_NUMBER
from tensorplay.compiler.watch import CONSTANTS
from tensorplay.func.trees import flatten
from tensorplay.ops.dispatch import is_override

__all__ = [
    "change",
    "key_of",
    "leaves_of",
    "like_any_numbers",
    "numbers_of",
    "objects_in",
    "these",
    "with_any_numbers",
    "without_numbers",
    "without_objects",
    "without_sizes",
]

#: Letters of a value in a reason.
MOST_LETTERS: Final = 60

#: Parts of a key before those of the leaves: modes, and the default type.
BEFORE_LEAVES: Final = 3
_NONE: Final = object()
_SIMPLE: Final = frozenset({int, bool, str, type(None)})
_MAPPINGS: Final = frozenset({dict, OrderedDict, defaultdict, MappingProxyType})
_SCALARS: Final = frozenset({int, float, bool, str, type(None), complex})


def _leaf_key(x: Any) -> Any:
    """Return what distinguishes a leaf from others to a graph; `_NONE` if no graph takes it."""
    if isinstance(x, Tensor):
        if x._base is not None:
            x._synchronise()
        array = x._array
        if array.__class__ is not np.ndarray or x._tangent is not None or is_override(x):
            return _NONE
        needs = x._requires_grad
        return (
            x.__class__, x._dtype, array.shape, array.strides, needs,
            needs and x._grad_fn is None, x._inference,
        )  # fmt: skip
    kind = x.__class__
    if kind in _SIMPLE:
        return (kind, x)
    if kind is float or kind is complex or isinstance(x, np.generic):
        return (kind, repr(x))
    if isinstance(x, CONSTANTS):
        try:
            hash(x)
        except TypeError:
            return (kind, repr(x))
        return (kind, x)
    return ("object", id(x), kind)


def leaves_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Sequence[Any], Any]:
    """Return the leaves of the arguments and their structure, None if that is a plain tuple."""
    if kwargs:
        return flatten((args, kwargs), known=True)
    for x in args:
        kind = x.__class__
        if kind is not Tensor and kind not in _SCALARS and not isinstance(x, Tensor):
            return flatten((args, kwargs), known=True)
    return args, None


def key_of(leaves: Sequence[Any], structure: Any) -> tuple[Any, ...] | None:
    """Return what distinguishes a call from others to a graph; None if no graph takes it."""
    state = grad_mode.state
    parts: list[Any] = [state.enabled, state.inference, _dtype.get_default_dtype()]
    tensors = 0
    for x in leaves:
        if x.__class__ is Tensor:  # written out: the path of every call
            array = x._array
            if x._base is not None:
                x._synchronise()
            if array.__class__ is not np.ndarray or x._tangent is not None:
                return None
            needs = x._requires_grad
            parts.append((
                x._dtype, array.shape, array.strides, needs,
                needs and x._grad_fn is None, x._inference,
            ))  # fmt: skip
            tensors += 1
            continue
        part = _leaf_key(x)
        if part is _NONE:
            return None
        parts.append(part)
        tensors += isinstance(x, Tensor)
    if tensors > 1 and len({id(x) for x in leaves if isinstance(x, Tensor)}) < tensors:
        parts.append(_repeats(leaves))
    if structure is not None:
        parts.append(_shape_of(structure))
    return tuple(parts)


def without_sizes(key: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return what distinguishes a call from others apart from sizes."""
    parts: list[Any] = []
    for part in key:
        tensor = _tensor_part(part)
        if tensor is None:
            parts.append(part)
        else:
            parts.append((*part[:-6], tensor[0], len(tensor[1]), *part[-3:]))
    return tuple(parts)


def without_objects(key: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return what distinguishes a call from others apart from which objects are arguments."""
    return tuple([("object",) if _is_object(part) else part for part in key])


def without_numbers(key: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return what distinguishes a call from others apart from which objects and numbers it has."""
    return tuple([
        (part[0],) if _is_number(part) else part for part in without_objects(key)
    ])  # fmt: skip


def numbers_of(key: tuple[Any, ...]) -> dict[int, Any]:
    """Return the ints and floats of a call, by their leaf."""
    return {i - BEFORE_LEAVES: part[1] for i, part in enumerate(key) if _may_be_any(part)}


def like_any_numbers(key: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return what distinguishes a call from others apart from the ints and floats that it has."""
    return tuple([(part[0],) if _may_be_any(part) else part for part in key])


def _may_be_any(part: Any) -> bool:
    return part.__class__ is tuple and len(part) == 2 and (part[0] is float or part[0] is int)


def with_any_numbers(key: tuple[Any, ...], leaves: Collection[int]) -> tuple[Any, ...]:
    """Return what distinguishes a call from others apart from the numbers that some leaves are."""
    parts = list(key)
    for leaf in leaves:
        place = leaf + BEFORE_LEAVES
        parts[place] = (parts[place][0], ANY_NUMBER)
    return tuple(parts)


def _is_number(part: Any) -> bool:
    """Tell whether a part is that of a Python or NumPy number, of which bools are none."""
    return (
        isinstance(part, tuple)
        and len(part) == 2
        and isinstance(part[0], type)
        and issubclass(part[0], (int, float, complex, np.number))
        and part[0] is not bool
    )


def objects_in(key: tuple[Any, ...]) -> set[int]:
    """Return the identities of the objects that a key tells apart."""
    return {part[1] for part in key if _is_object(part)}


def _is_object(part: Any) -> bool:
    return isinstance(part, tuple) and len(part) == 3 and part[0] == "object"


def _is_layout(part: Any) -> bool:
    """Tell whether a part is that of the structure, or of which arguments are one tensor."""
    return isinstance(part, tuple) and (part[0] is tuple or isinstance(part[0], int))


def _shape_of(structure: Any) -> Any:
    """Return the structure of arguments as something to look up: kinds, and keys as they are."""
    kind = structure.__class__
    if isinstance(structure, tuple | list):
        return (kind, *[_shape_of(x) for x in structure])
    if kind in _MAPPINGS:
        items = [(k.__class__, k, _shape_of(x)) for k, x in structure.items()]
        return (kind, structure.default_factory if kind is defaultdict else None, *items)
    return None


def these(key: Any, leaves: Sequence[Any]) -> tuple[Any, ...]:
    """Return a key for calls with these very tensors."""
    return ("these", key, tuple([id(x) for x in leaves if isinstance(x, Tensor)]))


def _repeats(leaves: Sequence[Any]) -> tuple[int, ...]:
    """Return for each tensor where it appears first."""
    first: dict[int, int] = {}
    return tuple(first.setdefault(id(x), n) for n, x in enumerate(leaves) if isinstance(x, Tensor))


def change(name: str, old: Any, new: Any) -> str:
    """Return ``x: float32 became float64``, or with shapes where the type is the same."""
    one, two = _tensor_part(old), _tensor_part(new)
    if (
        one is not None
        and two is not None
        and one[0] is not two[0]
        and (len(one[1]) == len(two[1]))
    ):
        return f"{name}: {one[0].name} became {two[0].name}"
    if _is_layout(old) or _is_layout(new):
        return "another number or structure of arguments"
    if _is_object(old) and _is_object(new) and old[2] is new[2]:
        return f"{name}: another object of type {new[2].__name__}"
    return f"{name}: {_text(old)} became {_text(new)}"


def _tensor_part(part: Any) -> tuple[Any, ...] | None:
    """Return type, shape, strides and need of a gradient, None of what is no tensor."""
    if not isinstance(part, tuple) or len(part) < 6 or not isinstance(part[-6], _dtype.dtype):
        return None
    return part[-6:-2]


def _text(part: Any) -> str:
    tensor = _tensor_part(part)
    if tensor is not None:
        d, shape, strides, needs = tensor
        text = f"{d.name}{list(shape)}"
        step = d.itemsize
        for n, s in zip(reversed(shape), reversed(strides), strict=True):
            if n != 1 and s != step:
                text += " with other strides"
                break
            step *= n
        return text + (" that requires grad" if needs else "")
    if _is_object(part):
        return f"an object of type {part[2].__name__}"
    if isinstance(part, tuple) and len(part) == 2 and isinstance(part[0], type):
        text = repr(part[1]) if part[0] in {str, bytes} else str(part[1])
        return text if len(text) <= MOST_LETTERS else f"{text[:MOST_LETTERS]}…"
    return str(part)
