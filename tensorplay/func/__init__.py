"""Functions of functions: batches and derivatives, freely nested."""

from __future__ import annotations

from tensorplay.func.functionalization import functionalize
from tensorplay.func.modules import functional_call, stack_module_state
from tensorplay.func.transforms import (
    grad,
    grad_and_value,
    hessian,
    jacfwd,
    jacrev,
    jvp,
    linearize,
    vjp,
)
from tensorplay.func.vmap import vmap

__all__ = [
    "functional_call",
    "functionalize",
    "grad",
    "grad_and_value",
    "hessian",
    "jacfwd",
    "jacrev",
    "jvp",
    "linearize",
    "stack_module_state",
    "vjp",
    "vmap",
]
