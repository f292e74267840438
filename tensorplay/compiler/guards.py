"""Guards as one Python function: it tells in a microsecond whether the world is as it was."""

from __future__ import annotations

import contextlib
import functools
import keyword
import operator
import types
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np

from tensorplay._tensor import Tensor
from tensorplay.compiler.watch import CONSTANTS, Guard

__all__ = ["first_broken", "guard_function", "same", "undo"]

#: What a guard returns where the world has changed.
MISS: Final = None


def same(one: Any, two: Any) -> bool:
    """Tell whether two values are the same to a graph: one object, or equal constants."""
    if one is two:
        return True
    if type(one) is not type(two) or not isinstance(one, CONSTANTS):
        return False
    if isinstance(one, (float, complex, np.generic)):
        return repr(one) == repr(two)  # zeros have signs, and NaN is NaN
    return bool(one == two)


def _same_content(holder: Any, content: Any) -> bool:
    if isinstance(holder, np.ndarray):
        return bool((holder.shape, holder.dtype, holder.tobytes()) == content)
    if isinstance(holder, dict):
        keys, values = content
        return _same_lists(list(holder), keys) and _same_lists(list(holder.values()), values)
    return _same_lists(list(holder), content)


def _same_cache(cached: Any, counts: Any) -> bool:
    """Tell whether a cache still holds what it held, as far as its counts tell."""
    now = cached.cache_info()
    if now.hits < counts.hits or now.misses < counts.misses:
        return False  # it was emptied
    return bool(now.misses == counts.misses or now.maxsize is None or now.currsize < now.maxsize)


def _same_lists(found: list[Any], content: list[Any]) -> bool:
    return len(found) == len(content) and (
        all(map(operator.is_, found, content)) or all(map(same, found, content))
    )


def _fetch(guard: Guard) -> Any:
    if guard.kind == "global":
        return guard.holder[guard.key]
    if guard.kind == "item":
        return guard.holder[guard.key]
    if guard.kind == "free":
        return guard.holder.cell_contents
    return getattr(guard.holder, guard.key)


def holds(guard: Guard) -> bool:
    """Tell whether one guard holds."""
    try:
        if guard.kind == "missing":
            return guard.key not in guard.holder
        if guard.kind == "names":
            return bool(tuple(guard.holder) == guard.value)
        if guard.kind == "content":
            return _same_content(guard.holder, guard.value)
        if guard.kind == "cache":
            return _same_cache(guard.holder, guard.value)
        return same(_fetch(guard), guard.value)
    except (KeyError, AttributeError, ValueError, IndexError):
        return False


def undo(guards: Sequence[Guard]) -> None:
    """Put back what a run changed of what its guards had seen: the function will run again."""
    for guard in sorted(guards, key=lambda g: g.kind != "content"):  # lengths before items
        if not holds(guard):
            # What is gone altogether, or cannot be written, was not changed by storing into it.
            with contextlib.suppress(KeyError, IndexError, TypeError, ValueError):
                _put_back(guard)


def _put_back(guard: Guard) -> None:
    holder, value = guard.holder, guard.value
    if guard.kind in {"global", "item"}:
        holder[guard.key] = value
    elif guard.kind == "free":
        holder.cell_contents = value
    elif guard.kind == "missing":
        del holder[guard.key]
    elif guard.kind == "names":
        for name in set(holder) - set(value):
            del holder[name]
    elif guard.kind == "attribute":
        vars(holder)[guard.key] = value
    elif isinstance(holder, np.ndarray):
        shape, dtype, content = value
        holder[...] = np.frombuffer(content, dtype).reshape(shape)
    elif isinstance(holder, list):
        holder[:] = value
    elif isinstance(holder, dict):
        holder.clear()
        holder.update(zip(*value, strict=True))
    elif isinstance(holder, set):
        holder.clear()
        holder.update(value)


def first_broken(guards: Sequence[Guard], live: Sequence[Guard]) -> str | None:
    """Return what a guard that no longer holds says, None if all hold."""
    for guard in guards:
        if any(guard is g for g in live):
            problem = _changed_tensor(guard)
            if problem is not None:
                return problem
        elif not holds(guard):
            return f"{guard.text} no longer"
    return None


def _changed_tensor(guard: Guard) -> str | None:
    try:
        found = _fetch(guard)
    except (KeyError, AttributeError, ValueError, IndexError):
        return f"{guard.text} no longer"
    if not isinstance(found, Tensor):
        return f"{guard.text} no longer"
    return None


def tensor_facts(tensor: Tensor) -> tuple[Any, ...]:
    """Return what a graph depends on of a tensor besides its elements."""
    array = tensor._array
    return tensor._dtype, array.shape, array.strides, tensor._requires_grad


def guard_function(
    guards: Sequence[Guard], live: Sequence[Guard]
) -> tuple[Callable[[], tuple[Any, ...] | None], str]:
    """Return a function that gives the tensors of `live`, or None if a guard is broken; its text.

    Parameters
    ----------
    guards
        All guards.
    live
        Those of them whose tensors the graph takes: of these only type, shape, strides and
        whether they require grad must be the same.
    """
    scope: dict[str, Any] = {
        "same": same, "same_content": _same_content, "same_cache": _same_cache,
        "ndarray": np.ndarray,
    }  # fmt: skip
    lines: list[str] = []
    names: dict[int, str] = {}
    numbers = {id(g): n for n, g in enumerate(live)}
    for number, guard in enumerate(guards):
        holder = f"h{number}"
        scope[holder] = guard.holder
        if guard.kind == "missing":
            lines.append(f"if {guard.key!r} in {holder}: return None")
            continue
        value = f"v{number}"
        scope[value] = guard.value
        if guard.kind == "names":
            lines.append(f"if tuple({holder}) != {value}: return None")
            continue
        if guard.kind in {"content", "cache"}:
            lines.append(f"if not same_{guard.kind}({holder}, {value}): return None")
            continue
        if guard.kind in {"global", "item"}:
            fetch = f"{holder}[{guard.key!r}]"
        elif guard.kind == "free":
            fetch = f"{holder}.cell_contents"
        else:
            # Modules in a sequence are attributes whose names are numbers.
            plain = guard.key.isidentifier() and not keyword.iskeyword(guard.key)
            fetch = f"{holder}.{guard.key}" if plain else f"getattr({holder}, {guard.key!r})"
        if id(guard) in numbers:
            name = f"t{numbers[id(guard)]}"
            names[numbers[id(guard)]] = name
            lines += _tensor_lines(name, fetch, guard.value, scope, number)
        elif isinstance(guard.value, CONSTANTS) and not isinstance(guard.value, (bool, type(None))):
            lines.append(f"x = {fetch}")
            lines.append(f"if x is not {value} and not same(x, {value}): return None")
        else:
            lines.append(f"if {fetch} is not {value}: return None")
    result = ", ".join(names[n] for n in range(len(live)))
    body = "\n".join(f"        {line}" for line in lines)
    text = (
        "def guard():\n"
        + (f"    try:\n{body}\n"
           "    except (KeyError, AttributeError, ValueError, IndexError):\n"
           "        return None\n" if lines else "")
        + f"    return ({result}{',' if names else ''})\n"
    )  # fmt: skip
    exec(_compiled(text), scope)  # noqa: S102 - text made of numbered names
    function: Callable[[], tuple[Any, ...] | None] = scope["guard"]
    return function, text


@functools.lru_cache(maxsize=256)
def _compiled(text: str) -> types.CodeType:
    """Return the code of a guard: calls that differ in shapes alone have one text."""
    return compile(text, "<string>", "exec")


def _tensor_lines(
    name: str, fetch: str, tensor: Tensor, scope: dict[str, Any], number: int
) -> list[str]:
    scope[f"k{number}"] = type(tensor)
    scope[f"d{number}"], shape, strides, needs = tensor_facts(tensor)
    leaf = tensor._grad_fn is None
    return [
        f"{name} = {fetch}",
        f"if {name}.__class__ is not k{number} or {name}._dtype is not d{number}: return None",
        f"if {name}._base is not None: {name}._synchronise()",
        f"m = {name}._array",
        f"if m.__class__ is not ndarray or m.shape != {shape!r}: return None",
        f"if m.strides != {strides!r} or {name}._tangent is not None: return None",
        f"if {name}._requires_grad is not {needs!r}: return None",
        f"if ({name}._grad_fn is None) is not {leaf!r}: return None",
    ]
