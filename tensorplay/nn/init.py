"""Initial values of parameters, written in place and outside of any graph.

Gains and bounds after Glorot and Bengio, "Understanding the difficulty of training deep feedforward
neural networks" (2010), and He et al., "Delving deep into rectifiers" (2015).
"""

from __future__ import annotations

import math
import statistics
from typing import Any

import numpy as np

from tensorplay import linalg
from tensorplay._creation import empty
from tensorplay._dlpack import from_numpy
from tensorplay._dtype import float64
from tensorplay._tensor import Tensor
from tensorplay.autograd import no_grad
from tensorplay.ops.kinds import checked

__all__ = [
    "calculate_gain",
    "constant_",
    "eye_",
    "kaiming_normal_",
    "kaiming_uniform_",
    "normal_",
    "ones_",
    "orthogonal_",
    "trunc_normal_",
    "uniform_",
    "xavier_normal_",
    "xavier_uniform_",
    "zeros_",
]


@checked
def uniform_(tensor: Tensor, a: float = 0.0, b: float = 1.0, generator: Any = None) -> Tensor:
    """Fill with numbers between `a` and `b`, and return the tensor.

    Parameters
    ----------
    tensor
        What is written, in place.
    a
        Lower limit.
    b
        Upper limit.
    generator
        Source of the random numbers; the default generator otherwise.

    Returns
    -------
    Tensor
        `tensor` itself.
    """
    with no_grad():
        return tensor.uniform_(a, b, generator=generator)


@checked
def normal_(tensor: Tensor, mean: float = 0.0, std: float = 1.0, generator: Any = None) -> Tensor:
    """Fill with normal numbers, and return the tensor.

    Parameters
    ----------
    tensor
        What is written, in place.
    mean
        Mean of the distribution.
    std
        Standard deviation.
    generator
        Source of the random numbers; the default generator otherwise.

    Returns
    -------
    Tensor
        `tensor` itself.
    """
    with no_grad():
        return tensor.normal_(mean, std, generator=generator)


@checked
def trunc_normal_(
    tensor: Tensor,
    mean: float = 0.0,
    std: float = 1.0,
    a: float = -2.0,
    b: float = 2.0,
    generator: Any = None,
) -> Tensor:
    """Fill with normal numbers that lie between `a` and `b`, and return the tensor.

    By the inverse of the distribution function, which takes uniform numbers between its values at
    the limits.

    Parameters
    ----------
    tensor
        What is written, in place.
    mean
        Mean of the distribution.
    std
        Standard deviation.
    a
        Lower limit.
    b
        Upper limit.
    generator
        Source of the random numbers; the default generator otherwise.

    Returns
    -------
    Tensor
        `tensor` itself.

    Raises
    ------
    ValueError
        `std` is not positive, or `a` is not below `b`.
    """
    if std <= 0 or not a < b:
        message = (
            f"[trunc_normal_] expected a positive std and a below b, got std={std}, a={a}, b={b}."
        )
        raise ValueError(message)
    normal = statistics.NormalDist(mean, std)
    low, high = normal.cdf(a), normal.cdf(b)
    with no_grad():
        drawn = empty(tensor.shape, dtype=float64).uniform_(low, high, generator=generator)
        # The inverse is that of Wichura's algorithm AS 241, defined between 0 and 1 without them.
        inverse = np.frompyfunc(normal.inv_cdf, 1, 1)
        inside = np.clip(drawn.numpy(), np.finfo(np.float64).tiny, 1 - 2.0**-53)
        found = from_numpy(inverse(inside).astype(np.float64))
        return tensor.copy_(found.clamp(a, b))


@checked
def constant_(tensor: Tensor, val: float) -> Tensor:
    """Fill with `val`, and return the tensor.

    Parameters
    ----------
    tensor
        What is written, in place.
    val
        The number.

    Returns
    -------
    Tensor
        `tensor` itself.
    """
    with no_grad():
        return tensor.fill_(val)


@checked
def zeros_(tensor: Tensor) -> Tensor:
    """Fill with zeros, and return the tensor.

    Parameters
    ----------
    tensor
        What is written, in place.

    Returns
    -------
    Tensor
        `tensor` itself.
    """
    return constant_(tensor, 0.0)


@checked
def ones_(tensor: Tensor) -> Tensor:
    """Fill with ones, and return the tensor.

    Parameters
    ----------
    tensor
        What is written, in place.

    Returns
    -------
    Tensor
        `tensor` itself.
    """
    return constant_(tensor, 1.0)


@checked
def eye_(tensor: Tensor) -> Tensor:
    """Fill a matrix with ones on the diagonal and zeros elsewhere, and return it.

    Parameters
    ----------
    tensor
        What is written, in place.

    Returns
    -------
    Tensor
        `tensor` itself.

    Raises
    ------
    ValueError
        The tensor has not two dimensions.
    """
    if tensor.ndim != 2:
        message = f"[eye_] argument 'tensor': expected 2 dimensions, got {tensor.ndim}."
        raise ValueError(message)
    with no_grad():
        tensor.zero_()
        tensor.diagonal().fill_(1)
    return tensor


_GAINS = {
    "linear": 1.0,
    "identity": 1.0,
    "conv1d": 1.0,
    "conv2d": 1.0,
    "conv3d": 1.0,
    "conv_transpose1d": 1.0,
    "conv_transpose2d": 1.0,
    "conv_transpose3d": 1.0,
    "sigmoid": 1.0,
    "tanh": 5.0 / 3,
    "relu": math.sqrt(2.0),
    "selu": 3.0 / 4,
}


@checked
def calculate_gain(nonlinearity: str, param: float | None = None) -> float:
    """Return the usual factor of the standard deviation for a nonlinearity.

    Parameters
    ----------
    nonlinearity
        Its name.
    param
        The slope of ``"leaky_relu"``, 0.01 by default.

    Returns
    -------
    float
        The factor.

    Raises
    ------
    ValueError
        The name is not known.
    """
    if nonlinearity == "leaky_relu":
        slope = 0.01 if param is None else param
        return math.sqrt(2.0 / (1 + slope**2))
    if nonlinearity not in _GAINS:
        known = ", ".join([*_GAINS, "leaky_relu"])
        message = (
            f"[calculate_gain] argument 'nonlinearity': expected one of {known}, got "
            f"{nonlinearity!r}."
        )
        raise ValueError(message)
    return _GAINS[nonlinearity]


def _fans(where: str, tensor: Tensor) -> tuple[int, int]:
    """Return how many numbers go into an output, and to how many outputs an input goes."""
    if tensor.ndim < 2:
        message = (
            f"[{where}] argument 'tensor': expected at least 2 dimensions (outputs, inputs, …), "
            f"got {tensor.ndim}."
        )
        raise ValueError(message)
    field = math.prod(tensor.shape[2:])
    return tensor.shape[1] * field, tensor.shape[0] * field


@checked
def xavier_uniform_(tensor: Tensor, gain: float = 1.0, generator: Any = None) -> Tensor:
    """Fill with numbers between ±gain·√(6/(fan_in + fan_out)), and return the tensor.

    The bound is that of Glorot and Bengio (2010).

    Parameters
    ----------
    tensor
        What is written, in place.
    gain
        Factor; see `calculate_gain`.
    generator
        Source of the random numbers; the default generator otherwise.

    Returns
    -------
    Tensor
        `tensor` itself.

    Raises
    ------
    ValueError
        The tensor has fewer than two dimensions.
    """
    bound = gain * math.sqrt(6.0 / max(1, sum(_fans("xavier_uniform_", tensor))))
    return uniform_(tensor, -bound, bound, generator)


@checked
def xavier_normal_(tensor: Tensor, gain: float = 1.0, generator: Any = None) -> Tensor:
    """Fill with normal numbers of deviation gain·√(2/(fan_in + fan_out)), and return the tensor.

    The deviation is that of Glorot and Bengio (2010).

    Parameters
    ----------
    tensor
        What is written, in place.
    gain
        Factor; see `calculate_gain`.
    generator
        Source of the random numbers; the default generator otherwise.

    Returns
    -------
    Tensor
        `tensor` itself.

    Raises
    ------
    ValueError
        The tensor has fewer than two dimensions.
    """
    std = gain * math.sqrt(2.0 / max(1, sum(_fans("xavier_normal_", tensor))))
    return normal_(tensor, 0.0, std, generator)


def _kaiming(where: str, tensor: Tensor, a: float, mode: str, nonlinearity: str) -> float:
    fan_in, fan_out = _fans(where, tensor)
    if mode not in {"fan_in", "fan_out"}:
        message = f"[{where}] argument 'mode': expected 'fan_in' or 'fan_out', got {mode!r}."
        raise ValueError(message)
    fan = fan_in if mode == "fan_in" else fan_out
    return calculate_gain(nonlinearity, a) / math.sqrt(max(1, fan))


@checked
def kaiming_uniform_(
    tensor: Tensor,
    a: float = 0,
    mode: str = "fan_in",
    nonlinearity: str = "leaky_relu",
    generator: Any = None,
) -> Tensor:
    """Fill with numbers between ±gain·√(3/fan), and return the tensor.

    The bound is that of He et al. (2015).

    Parameters
    ----------
    tensor
        At least two dimensions.
    a
        Slope of the ``"leaky_relu"`` that follows.
    mode
        ``"fan_in"`` keeps the size of values forward, ``"fan_out"`` that of gradients backward.
    nonlinearity
        A name `calculate_gain` knows.
    generator
        Source of the numbers.

    Returns
    -------
    Tensor
        `tensor` itself.

    Raises
    ------
    ValueError
        Too few dimensions, or an unknown `mode` or `nonlinearity`.
    """
    std = _kaiming("kaiming_uniform_", tensor, a, mode, nonlinearity)
    bound = math.sqrt(3.0) * std
    return uniform_(tensor, -bound, bound, generator)


@checked
def kaiming_normal_(
    tensor: Tensor,
    a: float = 0,
    mode: str = "fan_in",
    nonlinearity: str = "leaky_relu",
    generator: Any = None,
) -> Tensor:
    """Fill with normal numbers of deviation gain/√fan, and return the tensor.

    The deviation is that of He et al. (2015).

    Parameters and errors are those of `kaiming_uniform_`.

    Parameters
    ----------
    tensor
        What is written, in place.
    a
        Slope below zero of ``'leaky_relu'``.
    mode
        ``'fan_in'`` or ``'fan_out'``.
    nonlinearity
        What follows; see `calculate_gain`.
    generator
        Source of the random numbers; the default generator otherwise.

    Returns
    -------
    Tensor
        `tensor` itself.
    """
    std = _kaiming("kaiming_normal_", tensor, a, mode, nonlinearity)
    return normal_(tensor, 0.0, std, generator)


@checked
def orthogonal_(tensor: Tensor, gain: float = 1, generator: Any = None) -> Tensor:
    """Fill with a matrix of orthonormal rows or columns, times `gain`, and return the tensor.

    Dimensions after the first count as one. From the QR decomposition of a normal matrix, with the
    signs of R's diagonal (Saxe et al., 2013).

    Parameters
    ----------
    tensor
        What is written, in place.
    gain
        Factor; see `calculate_gain`.
    generator
        Source of the random numbers; the default generator otherwise.

    Returns
    -------
    Tensor
        `tensor` itself.

    Raises
    ------
    ValueError
        The tensor has fewer than two dimensions.
    """
    _fans("orthogonal_", tensor)
    if tensor.numel() == 0:
        return tensor
    rows = tensor.shape[0]
    columns = tensor.numel() // rows
    with no_grad():
        flat = empty((max(rows, columns), min(rows, columns)), dtype=tensor.dtype)
        q, r = linalg.qr(normal_(flat, generator=generator))
        q = q * r.diagonal().sign()
        return tensor.copy_((q if rows >= columns else q.t()).reshape(tensor.shape).mul(gain))
