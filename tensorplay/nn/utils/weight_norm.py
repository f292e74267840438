"""A weight as direction and length (Salimans and Kingma, "Weight normalization", 2016)."""

from __future__ import annotations

from typing import Any

from tensorplay._tensor import Tensor
from tensorplay.nn.module import Module, ModuleT
from tensorplay.nn.parameter import Parameter
from tensorplay.ops.kinds import checked

__all__ = ["remove_weight_norm", "weight_norm"]


def _norm(v: Tensor, dim: int | None) -> Tensor:
    """Return the norm over all dimensions but `dim`."""
    if dim is None:
        return v.norm()
    rest = [axis for axis in range(v.ndim) if axis != dim % v.ndim]
    return v.norm(2, rest, keepdim=True) if rest else v.abs()


class _WeightNorm:
    """Makes the weight before each call."""

    def __init__(self, name: str, dim: int | None) -> None:
        self.name, self.dim = name, dim

    def weight(self, module: Module) -> Tensor:
        g, v = getattr(module, f"{self.name}_g"), getattr(module, f"{self.name}_v")
        found: Tensor = v * (g / _norm(v, self.dim))
        return found

    def __call__(self, module: Module, args: Any) -> None:
        setattr(module, self.name, self.weight(module))


@checked
def weight_norm(module: ModuleT, name: str = "weight", dim: int | None = 0) -> ModuleT:
    """Replace a parameter by its length and direction: ``g·v/|v|``, and return the module.

    Parameters
    ----------
    module
        The module.
    name
        Its parameter; ``NAME_g`` and ``NAME_v`` take its place.
    dim
        The dimension along which lengths differ; None for a single length.

    Returns
    -------
    Module
        `module` itself.

    Raises
    ------
    AttributeError
        There is no such parameter.
    RuntimeError
        It has weight normalisation already.
    """
    if f"{name}_v" in module._parameters:
        message = f"[weight_norm] argument 'name': {name!r} has weight normalisation already."
        raise RuntimeError(message)
    weight = module.get_parameter(name)
    hook = _WeightNorm(name, dim)
    delattr(module, name)
    module.register_parameter(f"{name}_g", Parameter(_norm(weight.detach(), dim)))
    module.register_parameter(f"{name}_v", Parameter(weight.detach()))
    setattr(module, name, hook.weight(module))
    module.register_forward_pre_hook(hook)
    return module


@checked
def remove_weight_norm(module: ModuleT, name: str = "weight") -> ModuleT:
    """Make the weight a parameter again, and return the module.

    Parameters
    ----------
    module
        The module.
    name
        Name of the weight.

    Returns
    -------
    Module
        `module` itself.

    Raises
    ------
    ValueError
        It has no weight normalisation.
    """
    kinds: Any = {} if module._hooks is None else module._hooks.kinds["forward_pre"]
    for number, hook in list(kinds.items()):
        if isinstance(hook.function, _WeightNorm) and hook.function.name == name:
            weight = hook.function.weight(module).detach()
            del kinds[number]
            for part in ("g", "v"):
                delattr(module, f"{name}_{part}")
            delattr(module, name)
            module.register_parameter(name, Parameter(weight))
            return module
    message = f"[remove_weight_norm] argument 'name': {name!r} has no weight normalisation."
    raise ValueError(message)
