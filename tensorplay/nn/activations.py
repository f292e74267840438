"""Activations that are sums of operators; `functional` shows them with the others."""

from __future__ import annotations

import math

from tensorplay._functions import elu, hardtanh, relu, softmax, softplus
from tensorplay._tensor import Tensor
from tensorplay.ops.kinds import checked

__all__ = [
    "celu",
    "glu",
    "hardshrink",
    "hardsigmoid",
    "hardswish",
    "logsigmoid",
    "mish",
    "prelu",
    "relu6",
    "selu",
    "softmin",
    "softshrink",
    "softsign",
    "tanhshrink",
    "threshold",
]

# Klambauer et al., "Self-normalizing neural networks" (2017).
_SELU_ALPHA, _SELU_SCALE = 1.6732632423543772, 1.0507009873554805


@checked
def relu6(input: Tensor) -> Tensor:
    """Return ``min(max(input, 0), 6)``.

    Parameters
    ----------
    input
        Tensor of any shape.

    Returns
    -------
    Tensor
        Of the shape of `input`.
    """
    return hardtanh(input, 0.0, 6.0)


@checked
def selu(input: Tensor) -> Tensor:
    """Return the scaled `elu` that keeps mean 0 and variance 1 (Klambauer et al., 2017).

    Parameters
    ----------
    input
        Tensor of any shape.

    Returns
    -------
    Tensor
        Of the shape of `input`.
    """
    return elu(input, _SELU_ALPHA) * _SELU_SCALE


@checked
def celu(input: Tensor, alpha: float = 1.0) -> Tensor:
    """Return ``max(0, x) + min(0, alpha·(exp(x/alpha) − 1))`` (Barron, 2017).

    Parameters
    ----------
    input
        Tensor of any shape.
    alpha
        Minus the limit far below zero.

    Returns
    -------
    Tensor
        Of the shape of `input`.

    Raises
    ------
    ValueError
        `alpha` is zero.
    """
    if alpha == 0:
        message = "[celu] argument 'alpha': expected a number other than 0, got 0."
        raise ValueError(message)
    return elu(input / alpha, 1.0) * alpha


@checked
def mish(input: Tensor) -> Tensor:
    """Return ``x·tanh(log(1 + exp(x)))`` (Misra, 2019).

    Parameters
    ----------
    input
        Tensor of any shape.

    Returns
    -------
    Tensor
        Of the shape of `input`.
    """
    return input * softplus(input).tanh()


@checked
def hardsigmoid(input: Tensor) -> Tensor:
    """Return ``min(max(x/6 + 1/2, 0), 1)``.

    Parameters
    ----------
    input
        Tensor of any shape.

    Returns
    -------
    Tensor
        Of the shape of `input`.
    """
    return hardtanh(input / 6 + 0.5, 0.0, 1.0)


@checked
def hardswish(input: Tensor) -> Tensor:
    """Return ``x·hardsigmoid(x)`` (Howard et al., 2019).

    Parameters
    ----------
    input
        Tensor of any shape.

    Returns
    -------
    Tensor
        Of the shape of `input`.
    """
    return input * hardsigmoid(input)


@checked
def logsigmoid(input: Tensor) -> Tensor:
    """Return ``log(sigmoid(x))``, without overflow.

    Parameters
    ----------
    input
        Tensor of any shape.

    Returns
    -------
    Tensor
        Of the shape of `input`.
    """
    return -softplus(-input, 1.0, math.inf)


@checked
def softsign(input: Tensor) -> Tensor:
    """Return ``x/(1 + |x|)``.

    Parameters
    ----------
    input
        Tensor of any shape.

    Returns
    -------
    Tensor
        Of the shape of `input`.
    """
    return input / (input.abs() + 1)


@checked
def tanhshrink(input: Tensor) -> Tensor:
    """Return ``x − tanh(x)``.

    Parameters
    ----------
    input
        Tensor of any shape.

    Returns
    -------
    Tensor
        Of the shape of `input`.
    """
    return input - input.tanh()


@checked
def softshrink(input: Tensor, lambd: float = 0.5) -> Tensor:
    """Return what of x lies beyond ±lambd: ``sign(x)·max(|x| − lambd, 0)``.

    Parameters
    ----------
    input
        Tensor of any shape.
    lambd
        How far elements move towards zero.

    Returns
    -------
    Tensor
        Of the shape of `input`.

    Raises
    ------
    ValueError
        `lambd` is negative.
    """
    if lambd < 0:
        message = f"[softshrink] argument 'lambd': expected at least 0, got {lambd}."
        raise ValueError(message)
    return input - input.clamp(-lambd, lambd)


@checked
def hardshrink(input: Tensor, lambd: float = 0.5) -> Tensor:
    """Return x where it lies beyond ±lambd, 0 elsewhere.

    Parameters
    ----------
    input
        Tensor of any shape.
    lambd
        Magnitude up to which the result is zero.

    Returns
    -------
    Tensor
        Of the shape of `input`.
    """
    return input.masked_fill((input >= -lambd) & (input <= lambd), 0)


@checked
def threshold(input: Tensor, threshold: float, value: float) -> Tensor:
    """Return x where it is above `threshold`, `value` elsewhere.

    Parameters
    ----------
    input
        Tensor of any shape.
    threshold
        Elements above stay.
    value
        What the others become.

    Returns
    -------
    Tensor
        Of the shape of `input`.
    """
    return input.masked_fill(input <= threshold, value)


@checked
def prelu(input: Tensor, weight: Tensor) -> Tensor:
    """Return x where it is positive, ``weight·x`` elsewhere (He et al., 2015).

    Parameters
    ----------
    input
        Any shape; channels are dimension 1.
    weight
        One slope, or one for each channel, shape (channels,).

    Returns
    -------
    Tensor
        Of the shape of `input`.

    Raises
    ------
    ValueError
        `weight` has another number of slopes.
    """
    slopes = weight.numel()
    channels = input.shape[1] if input.ndim > 1 else 1
    if weight.ndim > 1 or slopes not in {1, channels}:
        message = (
            f"[prelu] argument 'weight': expected 1 slope or {channels}, one for each channel, got "
            f"shape {list(weight.shape)}."
        )
        raise ValueError(message)
    if slopes > 1:
        weight = weight.reshape((1, slopes) + (1,) * (input.ndim - 2))
    elif not input.ndim:
        weight = weight.reshape(())
    # At 0 the slope is the weight.
    return relu(input) + weight * input.masked_fill(input > 0, 0)


@checked
def glu(input: Tensor, dim: int = -1) -> Tensor:
    """Return the first half of `dim` times the sigmoid of the second (Dauphin et al., 2017).

    Parameters
    ----------
    input
        Tensor of any shape.
    dim
        Dimension; negative ones count from the end.

    Returns
    -------
    Tensor
        Half as large along the dimension.

    Raises
    ------
    ValueError
        The size of `dim` is odd.
    """
    size = input.size(dim)
    if size % 2:
        message = f"[glu] argument 'input': expected an even size of dimension {dim}, got {size}."
        raise ValueError(message)
    value, gate = input.chunk(2, dim)
    return value * gate.sigmoid()


@checked
def softmin(input: Tensor, dim: int) -> Tensor:
    """Return the softmax of ``−input`` along `dim`.

    Parameters
    ----------
    input
        Tensor of any shape.
    dim
        Dimension; negative ones count from the end.

    Returns
    -------
    Tensor
        Of the shape of `input`.
    """
    return softmax(-input, dim)
