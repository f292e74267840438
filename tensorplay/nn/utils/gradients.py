"""Limits for gradients."""

from __future__ import annotations

import math
from collections.abc import Iterable

import tensorplay as _tp
from tensorplay._tensor import Tensor
from tensorplay.autograd import no_grad
from tensorplay.ops.kinds import as_tensors, checked

__all__ = ["clip_grad_norm_", "clip_grad_value_", "get_total_norm"]


@checked
def get_total_norm(
    tensors: Tensor | Iterable[Tensor], norm_type: float = 2.0, error_if_nonfinite: bool = False
) -> Tensor:
    """Return the norm of all elements of all tensors, as if they were one vector.

    Parameters
    ----------
    tensors
        One tensor, or several.
    norm_type
        Which norm; infinity is the largest absolute value.
    error_if_nonfinite
        Whether to raise for infinity and NaN.

    Returns
    -------
    Tensor
        0-d.

    Raises
    ------
    TypeError
        One of them is no tensor.
    RuntimeError
        The norm is not finite, by `error_if_nonfinite`.
    """
    norms = [t.detach().norm(norm_type) for t in as_tensors("get_total_norm", "tensors", tensors)]
    total = _tp.stack(norms).norm(norm_type) if norms else _tp.tensor(0.0)
    if error_if_nonfinite and not math.isfinite(total.item()):
        message = (
            f"[get_total_norm] the total norm of order {norm_type} is non-finite, so it cannot be "
            "clipped. Pass error_if_nonfinite=False to scale the gradients by it anyway."
        )
        raise RuntimeError(message)
    return total


@checked
def clip_grad_norm_(
    parameters: Tensor | Iterable[Tensor],
    max_norm: float,
    norm_type: float = 2.0,
    error_if_nonfinite: bool = False,
) -> Tensor:
    """Scale the gradients, in place, so that their common norm is at most `max_norm`; return it.

    Parameters
    ----------
    parameters
        Tensors with gradients; others are passed over.
    max_norm
        The limit.
    norm_type
        Which norm.
    error_if_nonfinite
        Whether to raise for a norm that is infinity or NaN.

    Returns
    -------
    Tensor
        The norm before, 0-d.

    Raises
    ------
    TypeError
        One of them is no tensor.
    RuntimeError
        The norm is not finite, by `error_if_nonfinite`; no gradient is changed.
    """
    grads = [
        p._grad
        for p in as_tensors("clip_grad_norm_", "parameters", parameters)
        if p._grad is not None
    ]
    total = get_total_norm(grads, norm_type, error_if_nonfinite)
    factor = (max_norm / (total + 1e-6)).clamp(max=1.0)
    with no_grad():
        for grad in grads:
            grad.mul_(factor.to(grad.dtype))
    return total


@checked
def clip_grad_value_(parameters: Tensor | Iterable[Tensor], clip_value: float) -> None:
    """Limit the elements of the gradients, in place, to ±clip_value.

    Parameters
    ----------
    parameters
        Tensors, or one tensor.
    clip_value
        Largest magnitude.

    Raises
    ------
    TypeError
        One of the parameters is no tensor.
    """
    with no_grad():
        for parameter in as_tensors("clip_grad_value_", "parameters", parameters):
            if parameter._grad is not None:
                parameter._grad.clamp_(-clip_value, clip_value)
