"""All parameters as one vector, and back."""

from __future__ import annotations

from collections.abc import Iterable

import tensorplay as _tp
from tensorplay._tensor import Tensor
from tensorplay.autograd import no_grad
from tensorplay.ops.kinds import as_tensors, checked

__all__ = ["parameters_to_vector", "vector_to_parameters"]


@checked
def parameters_to_vector(parameters: Tensor | Iterable[Tensor]) -> Tensor:
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
    return _tp.cat(
        [p.reshape(-1) for p in as_tensors("parameters_to_vector", "parameters", parameters)]
    )


@checked
def vector_to_parameters(vec: Tensor, parameters: Tensor | Iterable[Tensor]) -> None:
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
        `vec`, or one of the parameters, is no tensor.
    ValueError
        It has another number of elements than the parameters together; nothing is changed.
    """
    found = as_tensors("vector_to_parameters", "parameters", parameters)
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
