"""All parameters as one vector, and back."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import tensorplay as _tp
from tensorplay._tensor import Tensor
from tensorplay.autograd import no_grad

__all__ = ["parameters_to_vector", "vector_to_parameters"]


def parameters_to_vector(parameters: Iterable[Tensor]) -> Tensor:
    """Return the elements of all parameters as one vector, differentiably.

    Parameters
    ----------
    parameters
        Tensors, or one tensor.

    Returns
    -------
    Tensor
        Vector, in their order.
    """
    return _tp.cat([p.reshape(-1) for p in parameters])


def vector_to_parameters(vec: Tensor, parameters: Iterable[Tensor]) -> None:
    """Copy the elements of a vector into the parameters, in their order.

    Parameters
    ----------
    vec
        As many elements as the parameters have.
    parameters
        Tensors, or one tensor.

    Raises
    ------
    TypeError
        `vec` is no tensor.
    ValueError
        It has another number of elements than the parameters together; nothing is changed.
    """
    given: Any = vec
    if not isinstance(given, Tensor):
        message = (
            f"[vector_to_parameters] argument 'vec': expected Tensor, got {type(vec).__name__}."
        )
        raise TypeError(message)
    found = list(parameters)
    wanted = sum(p.numel() for p in found)
    if vec.ndim != 1 or vec.numel() != wanted:
        message = (
            f"[vector_to_parameters] argument 'vec': expected shape [{wanted}], got "
            f"{list(vec.shape)}."
        )
        raise ValueError(message)
    with no_grad():
        at = 0
        for parameter in found:
            size = parameter.numel()
            parameter.copy_(vec[at : at + size].reshape(parameter.shape))
            at += size
