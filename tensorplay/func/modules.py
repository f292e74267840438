"""Objects with parameters as functions of their parameters.

An object takes part by two methods, ``named_parameters()`` and ``named_buffers()``, which yield
``(name, tensor)``. A name is a path: attributes, keys and numbers in sequences, with dots between.
A class that keeps its tensors in dictionaries ``_parameters`` and ``_buffers`` is served there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager
from typing import Any

from tensorplay._tensor import Tensor
from tensorplay.ops.joining import stack

__all__ = ["functional_call", "stack_module_state"]


def _named(module: Any, method: str, where: str, **options: Any) -> dict[str, Tensor]:
    found = getattr(module, method, None)
    if not callable(found):
        message = (
            f"[{where}] argument 'module': expected an object with {method}(), which yields "
            f"(name, tensor), got {type(module).__name__}."
        )
        raise TypeError(message)
    return dict(found(**options))


def _state(module: Any, where: str) -> dict[str, Tensor]:
    """Return all tensors of an object by name, those that it holds twice under both names."""
    found: dict[str, Tensor] = {}
    for method in ("named_parameters", "named_buffers"):
        try:
            found.update(_named(module, method, where, remove_duplicate=False))
        except TypeError as error:
            if "remove_duplicate" not in str(error):
                raise
            found.update(_named(module, method, where))
    return found


def _given(dictionaries: Any) -> dict[str, Tensor]:
    """Return the replacements of one dictionary, or of several without common names."""
    many = dictionaries if isinstance(dictionaries, (tuple, list)) else (dictionaries,)
    merged: dict[str, Any] = {}
    for one in many:
        if not isinstance(one, Mapping):
            message = (
                "[functional_call] argument 'parameter_and_buffer_dicts': expected a dictionary "
                f"of tensors by name, or a sequence of them, got {type(one).__name__}."
            )
            raise TypeError(message)
        twice = sorted(merged.keys() & one.keys())
        if twice:
            message = (
                f"[functional_call] argument 'parameter_and_buffer_dicts': {twice[0]!r} appears "
                "in two of the dictionaries."
            )
            raise ValueError(message)
        merged.update(one)
    for name, value in merged.items():
        if not isinstance(value, Tensor):
            message = (
                f"[functional_call] argument 'parameter_and_buffer_dicts': expected {name!r} to be "
                f"a Tensor, got {type(value).__name__}."
            )
            raise TypeError(message)
    return merged


def _with_tied(given: dict[str, Tensor], present: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the replacements, also under the other names of the same tensors."""
    names: dict[int, list[str]] = {}
    for name, tensor in present.items():
        names.setdefault(id(tensor), []).append(name)
    result = dict(given)
    for tied in names.values():
        chosen = [name for name in tied if name in given]
        if len({id(given[name]) for name in chosen}) > 1:
            message = (
                f"[functional_call] {', '.join(map(repr, chosen))} are one tensor in the module, "
                "but were given different values. Give one of them, or pass tie_weights=False."
            )
            raise ValueError(message)
        for name in tied if chosen else ():
            result[name] = given[chosen[0]]
    return result


class _Place:
    """Where a tensor is kept: an attribute, or an entry of a dictionary or sequence."""

    def __init__(self, module: Any, path: str) -> None:
        *owners, self.last = path.split(".")
        owner = module
        for part in owners:
            owner = _member(owner, part, path)
        self.owner: Any = owner
        for name in ("_parameters", "_buffers"):
            kept = getattr(owner, name, None)
            if isinstance(kept, MutableMapping) and self.last in kept:
                self.owner = kept
        if isinstance(self.owner, Sequence):
            self.key: Any = int(self.last)
        else:
            self.key = self.last if isinstance(self.owner, MutableMapping) else None

    def get(self) -> Any:
        return getattr(self.owner, self.last) if self.key is None else self.owner[self.key]

    def set(self, value: Any) -> None:
        if self.key is None:
            setattr(self.owner, self.last, value)
        else:
            self.owner[self.key] = value


def _member(owner: Any, part: str, path: str) -> Any:
    if isinstance(owner, Mapping) and part in owner:
        return owner[part]
    if isinstance(owner, Sequence) and part.isdigit() and int(part) < len(owner):
        return owner[int(part)]
    if hasattr(owner, part):
        return getattr(owner, part)
    message = f"[functional_call] the module has no {part!r} on the way to {path!r}."
    raise RuntimeError(message)


@contextmanager
def _replaced(module: Any, values: Mapping[str, Tensor]) -> Iterator[None]:
    places = [(_Place(module, name), value) for name, value in values.items()]
    before = [place.get() for place, _ in places]
    try:
        for place, value in places:
            place.set(value)
        yield
    finally:
        for (place, _), value in zip(places, before, strict=True):
            place.set(value)


def functional_call(
    module: Any,
    parameter_and_buffer_dicts: Any,
    args: Any = None,
    kwargs: Mapping[str, Any] | None = None,
    *,
    tie_weights: bool = True,
    strict: bool = False,
) -> Any:
    """Call `module` with other tensors in place of its parameters and buffers.

    Parameters
    ----------
    module
        Callable object with ``named_parameters()`` and ``named_buffers()``. It is changed during
        the call and as before afterwards, also after an exception.
    parameter_and_buffer_dicts
        Tensors by name, or a sequence of such dictionaries. What is not named stays.
    args
        Positional arguments, as a tuple; anything else is the only one.
    kwargs
        Keyword arguments.
    tie_weights
        Whether a tensor that the module holds under several names is replaced under all of them.
    strict
        Whether all parameters and buffers must be given.

    Returns
    -------
    object
        What ``module(*args, **kwargs)`` returns.

    Raises
    ------
    RuntimeError
        A name is not one of the module's, or with `strict` one of those is missing.
    ValueError
        A name is given twice, or two names of one tensor get different values.
    TypeError
        The module lacks the methods, or a value is no tensor.
    """
    present = _state(module, "functional_call")
    given = _given(parameter_and_buffer_dicts)
    unexpected = [name for name in given if name not in present]
    missing = [name for name in present if name not in given] if strict else []
    if tie_weights:
        values = _with_tied(given, present)
        missing = [name for name in missing if name not in values]
    else:
        values = given
    for names, what in ((unexpected, "Unexpected"), (missing, "Missing")):
        if names:
            message = (
                f"[functional_call] {what} key(s): {', '.join(map(repr, names))}. The module has "
                f"{', '.join(map(repr, present)) or 'no tensors'}."
            )
            raise RuntimeError(message)
    positional = () if args is None else args if isinstance(args, tuple) else (args,)
    with _replaced(module, values):
        return module(*positional, **(kwargs or {}))


def stack_module_state(
    models: Sequence[Any],
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Return the parameters and the buffers of several objects of one class, stacked by name.

    They are what `vmap` needs to call all of them together, through `functional_call`.

    Parameters
    ----------
    models
        Objects with ``named_parameters()`` and ``named_buffers()``.

    Returns
    -------
    tuple
        Two dictionaries of leaves with one dimension more, the models' place in `models`.

    Raises
    ------
    RuntimeError
        There are none, their classes or modes differ, or only some of a name require grad.
    """
    if not models:
        message = "[stack_module_state] expected at least one model, got none."
        raise RuntimeError(message)
    for what, of in _SAME:
        if len({of(m) for m in models}) > 1:
            message = f"[stack_module_state] expected all models to have the same {what}."
            raise RuntimeError(message)

    def stacked(method: str) -> dict[str, Tensor]:
        states = [_named(m, method, "stack_module_state") for m in models]
        return {name: _leaf(name, [s[name] for s in states]) for name in states[0]}

    return stacked("named_parameters"), stacked("named_buffers")


# What stacked models have in common.
_SAME: tuple[tuple[str, Callable[[Any], Any]], ...] = (
    ("class", type),
    ("mode, training or evaluation", lambda m: getattr(m, "training", None)),
    ("parameters", lambda m: tuple(_named(m, "named_parameters", "stack_module_state"))),
    ("buffers", lambda m: tuple(_named(m, "named_buffers", "stack_module_state"))),
)


def _leaf(name: str, tensors: list[Tensor]) -> Tensor:
    wants = {t.requires_grad for t in tensors}
    if len(wants) > 1:
        message = (
            f"[stack_module_state] expected {name!r} to have the same requires_grad in all models."
        )
        raise RuntimeError(message)
    result: Tensor = stack([t.detach() for t in tensors])
    return result.requires_grad_() if wants == {True} else result
