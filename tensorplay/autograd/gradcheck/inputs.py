"""The tensors among the arguments of a checked function: found, named, admitted."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from types import FunctionType
from typing import Any, NamedTuple

import numpy as np

from tensorplay._tensor import Tensor
from tensorplay.autograd.function import Function

__all__ = ["Leaf", "admitted", "find_tensors", "parameter_names", "replace_tensors"]


class Leaf(NamedTuple):
    """A tensor found among the arguments, under the name that the report uses."""

    name: str
    tensor: Tensor


def parameter_names(func: Callable[..., Any], count: int) -> list[str]:
    """Return a name for each of `count` positional arguments."""
    given = getattr(func, "argument_names", None)  # a function made by `gradgradcheck`
    if given is not None:
        return list(given)
    owner = getattr(func, "__self__", None)
    skip = 0
    if isinstance(owner, type) and issubclass(owner, Function):
        # `apply` takes anything; the names stand in `forward`, after ctx in the combined style.
        func = owner.forward
        skip = int(owner.setup_context is Function.setup_context)
    plain = _positional_names(func)
    if plain is not None and len(plain) - skip >= count:
        return plain[skip : skip + count]
    try:
        parameters = list(inspect.signature(func).parameters.values())[skip:]
    except (TypeError, ValueError):  # a callable without a signature
        parameters = []
    names: list[str] = []
    for parameter in parameters:
        if parameter.kind is parameter.VAR_POSITIONAL:
            # A wrapper's *args says nothing about what the positions mean.
            prefix = "inputs" if parameter.name == "args" else parameter.name
            start = len(names) if prefix == "inputs" else 0
            names.extend(f"{prefix}[{start + i}]" for i in range(count - len(names)))
            break
        if parameter.kind in {parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD}:
            names.append(parameter.name)
    names.extend(f"inputs[{i}]" for i in range(len(names), count))
    return names[:count]


def _positional_names(func: Callable[..., Any]) -> list[str] | None:
    """Return the names of a plain function's positional parameters, without `inspect`'s cost."""
    if type(func) is not FunctionType or func.__dict__:  # a wrapper may stand for another function
        return None
    code = func.__code__
    return list(code.co_varnames[: code.co_argcount])


def _walk(name: str, value: Any, found: list[Leaf]) -> None:
    if isinstance(value, Tensor):
        found.append(Leaf(name, value))
    elif isinstance(value, (list, tuple)):
        for number, member in enumerate(value):
            _walk(f"{name}[{number}]", member, found)
    elif isinstance(value, Mapping):
        for key, member in value.items():
            _walk(f"{name}[{key!r}]", member, found)


def find_tensors(
    func: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> list[Leaf]:
    """Return every tensor in the arguments, those in lists, tuples and dictionaries included."""
    found: list[Leaf] = []
    for name, value in zip(parameter_names(func, len(args)), args, strict=True):
        _walk(name, value, found)
    for name, value in kwargs.items():
        _walk(name, value, found)
    return found


def replace_tensors(value: Any, change: Callable[[Tensor], Any]) -> Any:
    """Return `value` with each tensor in it, at any depth, replaced by ``change(tensor)``."""
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, tuple):
        members = [replace_tensors(v, change) for v in value]
        return type(value)(*members) if hasattr(value, "_fields") else tuple(members)
    if isinstance(value, list):
        return [replace_tensors(v, change) for v in value]
    if isinstance(value, Mapping):
        return {key: replace_tensors(v, change) for key, v in value.items()}
    return value


def _describe(leaf: Leaf) -> str:
    tensor = leaf.tensor
    text = f"{leaf.name}: {tensor.dtype!r} {list(tensor.shape)}"
    if not tensor.dtype.is_differentiable:
        return f"{text} (this type has no gradient; write {leaf.name}.double())"
    return text


def admitted(leaves: list[Leaf]) -> list[Leaf]:
    """Return the tensors whose gradients are checked: those that require grad.

    Raises
    ------
    ValueError
        None requires grad, or one has no elements to change here: it is on device meta or cuda, or
        read-only.
    RuntimeError
        Elements of one share memory, with each other or with another input, so that they cannot
        be changed one by one.
    """
    checked = [leaf for leaf in leaves if leaf.tensor.requires_grad]
    if not checked:
        found = "; ".join(map(_describe, leaves)) or "no tensor"
        message = (
            "gradcheck expects at least one input tensor to require gradient, but none of the "
            f"inputs does. Found {found}. Write x.requires_grad_() on those to check."
        )
        raise ValueError(message)
    for name, tensor in checked:
        if not tensor.is_cpu:
            advice = f" Write {name}.detach().cpu()." if tensor.is_cuda else ""
            message = (
                f"[gradcheck] input {name}: expected a tensor on cpu, got one on {tensor.device}."
                f"{advice}"
            )
            raise ValueError(message)
        array = tensor._array
        for size, stride in zip(array.shape, array.strides, strict=True):
            if stride == 0 and size > 1 and array.size:
                message = (
                    f"[gradcheck] input {name} has a dimension with stride 0: its elements share "
                    f"memory and cannot be changed one by one. Write {name}.contiguous()."
                )
                raise RuntimeError(message)
        if not array.flags.writeable:
            message = (
                f"[gradcheck] input {name}: its memory is read-only, and differences need to "
                f"change it. Write {name}.clone()."
            )
            raise ValueError(message)
    for leaf in checked:
        for other in leaves:
            if other.tensor is not leaf.tensor and _overlap(leaf.tensor, other.tensor):
                message = (
                    f"[gradcheck] inputs {leaf.name} and {other.name} share memory: a change of "
                    f"one changes the other, and no difference tells them apart. Write "
                    f"{other.name}.clone()."
                )
                raise RuntimeError(message)
    return checked


def _overlap(one: Tensor, other: Tensor) -> bool:
    """Tell whether two tensors have an element in common."""
    if one.is_meta or other.is_meta or not np.may_share_memory(one._array, other._array):
        return False
    limit: Any = 100_000  # the stubs of NumPy know two numbers only
    try:
        return bool(np.shares_memory(one._array, other._array, max_work=limit))
    except np.exceptions.TooHardError:
        return True
