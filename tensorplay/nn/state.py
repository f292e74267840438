"""State dictionaries of modules, and conversions of what they hold."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tensorplay import _device, _dtype
from tensorplay._tensor import Tensor
from tensorplay.autograd import no_grad
from tensorplay.nn.members import BUFFER, MODULE, PARAMETER
from tensorplay.nn.parameter import Parameter

if TYPE_CHECKING:
    from tensorplay.nn.module import Module

__all__ = ["collect", "conversion", "forget_gradient", "load"]

EXTRA = "_extra_state"


def forget_gradient(tensor: Tensor, *, set_to_none: bool) -> None:
    """Take the gradient away, or set its elements to zero outside of any graph."""
    grad = tensor._grad
    if grad is None:
        return
    if set_to_none:
        tensor._grad = None
        return
    if grad.grad_fn is not None:
        tensor._grad = grad = grad.detach()
    with no_grad():
        grad.zero_()


def conversion(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any]:
    """Return device and dtype of a call of ``Module.to``, None for what it does not name."""
    device, dtype = kwargs.pop("device", None), kwargs.pop("dtype", None)
    kwargs.pop("non_blocking", None)  # nothing here waits for a device
    if kwargs:
        message = f"[to] got an unexpected argument {next(iter(kwargs))!r}."
        raise TypeError(message)
    for value in args:
        if isinstance(value, Tensor):
            device, dtype = value.device, value.dtype
        elif isinstance(value, _dtype.dtype):
            dtype = value
        elif isinstance(value, (str, _device.device)):
            device = value
        elif value is not None:
            message = f"[to] expected a device, a dtype or a Tensor, got {type(value).__name__}."
            raise TypeError(message)
    if dtype is not None and not dtype.is_differentiable:
        message = f"[to] argument 'dtype': expected a floating or complex dtype, got {dtype!r}."
        raise TypeError(message)
    return (None if device is None else _device.as_device(device, "to")), dtype


def _has_extra(module: Module) -> bool:
    from tensorplay.nn.module import Module

    return type(module).get_extra_state is not Module.get_extra_state


def _hooks(module: Module, kind: str) -> list[Any]:
    hooks = module._hooks
    return [] if hooks is None else hooks.of(kind)


def collect(module: Module, found: dict[str, Any], prefix: str, *, keep_vars: bool) -> None:
    """Put the state of `module` and of those below it into `found`."""
    for hook in _hooks(module, "state_dict_pre"):
        hook.function(module, prefix, keep_vars)
    for name, tensor in module._members(PARAMETER, BUFFER):
        found[prefix + name] = tensor if keep_vars else tensor.detach()
    if _has_extra(module):
        found[prefix + EXTRA] = module.get_extra_state()
    for name, child in module._members(MODULE):
        collect(child, found, f"{prefix}{name}.", keep_vars=keep_vars)
    for hook in _hooks(module, "state_dict"):
        hook.function(module, found, prefix)


def load(
    module: Module, state_dict: Any, *, strict: bool, assign: bool
) -> tuple[list[str], list[str]]:
    """Load the state of `module` and those below, all of it or nothing."""
    if not isinstance(state_dict, Mapping):
        message = (
            "[load_state_dict] argument 'state_dict': expected a mapping of names to tensors, got "
            f"{type(state_dict).__name__}."
        )
        raise TypeError(message)
    given = dict(state_dict)
    places: dict[str, tuple[Module, str]] = {}
    paths = list(module.named_modules(remove_duplicate=False))
    for path, owner in paths:
        prefix = f"{path}." if path else ""
        for hook in _hooks(owner, "load_state_dict_pre"):
            hook.function(owner, given, prefix)
        for name, _ in owner._members(PARAMETER, BUFFER):
            places[prefix + name] = owner, name
        if _has_extra(owner):
            places[prefix + EXTRA] = owner, EXTRA
    missing = [key for key in places if key not in given]
    unexpected = [key for key in given if key not in places]
    faults = []
    if strict and unexpected:
        faults.append(f"Unexpected key(s) in state_dict: {', '.join(map(repr, unexpected))}.")
    if strict and missing:
        faults.append(f"Missing key(s) in state_dict: {', '.join(map(repr, missing))}.")
    faults += [
        fault
        for key, place in places.items()
        if key in given and (fault := _fault(key, *place, given[key], assign=assign))
    ]
    if faults:
        head = f"Error(s) in loading state_dict for {type(module).__name__}:"
        raise RuntimeError("\n\t".join([head, *faults]))
    shared: dict[tuple[int, int], Tensor] = {}
    # Those before any is replaced: a module under two names comes twice.
    present = {key: owner.__dict__.get(name) for key, (owner, name) in places.items()}
    with no_grad():
        for key, (owner, name) in places.items():
            if key in given:
                _set(owner, name, given[key], present[key], shared if assign else None)
    for _, owner in paths:
        for hook in _hooks(owner, "load_state_dict"):
            hook.function(owner, (missing, unexpected))
    return missing, unexpected


def _fault(key: str, owner: Module, name: str, value: Any, *, assign: bool) -> str | None:
    """Return what is wrong with a value for a tensor, None if nothing is."""
    if name == EXTRA:
        return None
    if not isinstance(value, Tensor):
        return f"{key!r}: expected Tensor, got {type(value).__name__}."
    present = owner.__dict__[name]
    if value.shape != present.shape:
        return (
            f"size mismatch for {key}: copying a tensor with shape {list(value.shape)}, the "
            f"shape in the module is {list(present.shape)}."
        )
    if value.is_meta and not present.is_meta and not assign:
        return f"{key!r}: a tensor on device meta has no elements. Pass assign=True."
    if present.is_meta and not value.is_meta and not assign:
        return (
            f"{key!r}: the tensor of the module is on device meta, where nothing can be copied to. "
            "Pass assign=True."
        )
    if value.is_complex() and not present.is_complex() and not assign:
        return f"{key!r}: {value.dtype!r} does not fit {present.dtype!r}. Pass assign=True."
    if assign and present.requires_grad and not value.dtype.is_differentiable:
        return f"{key!r}: a parameter that requires grad cannot have {value.dtype!r} elements."
    return None


def _set(
    owner: Module,
    name: str,
    value: Any,
    present: Any,
    shared: dict[tuple[int, int], Tensor] | None,
) -> None:
    """Load one value in place of the `present` one; into `shared` go those of several owners."""
    if name == EXTRA:
        owner.set_extra_state(value)
        return
    if shared is None:
        present.copy_(value)
        return
    # A parameter under two names stays one, if the values are one memory.
    place = id(present), id(value) if value.is_meta else value.data_ptr()
    if place not in shared:
        shared[place] = (
            Parameter(value, requires_grad=present.requires_grad)
            if isinstance(present, Parameter)
            else value.detach()
        )
    owner.__dict__[name] = shared[place]
