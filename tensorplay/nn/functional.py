"""Functions of neural networks: operators of the runtime under their usual names, and sums of them.

What is defined here is made of operators, so it is differentiable, batched by `vmap`, and captured
by `compile` as they are.
"""

from __future__ import annotations

import math
from typing import Any

import tensorplay as _tp
from tensorplay._functions import (
    adaptive_avg_pool1d,
    adaptive_avg_pool2d,
    adaptive_max_pool1d,
    adaptive_max_pool2d,
    avg_pool1d,
    avg_pool2d,
    binary_cross_entropy,
    binary_cross_entropy_with_logits,
    conv1d,
    conv2d,
    conv_transpose1d,
    conv_transpose2d,
    cross_entropy,
    dropout as _dropout,
    elu,
    embedding as _embedding,
    gelu,
    hardtanh,
    l1_loss,
    layer_norm,
    leaky_relu,
    linear,
    log_softmax,
    max_pool1d,
    max_pool2d,
    mse_loss,
    nll_loss,
    one_hot,
    pad,
    relu,
    rms_norm,
    scaled_dot_product_attention,
    sigmoid,
    silu,
    smooth_l1_loss,
    softmax,
    softplus,
    tanh,
)
from tensorplay._tensor import Tensor
from tensorplay.nn.activations import (
    celu,
    glu,
    hardshrink,
    hardsigmoid,
    hardswish,
    logsigmoid,
    mish,
    prelu,
    relu6,
    selu,
    softmin,
    softshrink,
    softsign,
    tanhshrink,
    threshold,
)
from tensorplay.nn.losses import (
    cosine_embedding_loss,
    cosine_similarity,
    hinge_embedding_loss,
    huber_loss,
    kl_div,
    margin_ranking_loss,
    pairwise_distance,
    triplet_margin_loss,
)
from tensorplay.ops.kinds import checked

__all__ = [
    "adaptive_avg_pool1d",
    "adaptive_avg_pool2d",
    "adaptive_max_pool1d",
    "adaptive_max_pool2d",
    "avg_pool1d",
    "avg_pool2d",
    "batch_norm",
    "binary_cross_entropy",
    "binary_cross_entropy_with_logits",
    "celu",
    "conv1d",
    "conv2d",
    "conv_transpose1d",
    "conv_transpose2d",
    "cosine_embedding_loss",
    "cosine_similarity",
    "cross_entropy",
    "dropout",
    "dropout1d",
    "dropout2d",
    "elu",
    "embedding",
    "gelu",
    "glu",
    "group_norm",
    "hardshrink",
    "hardsigmoid",
    "hardswish",
    "hardtanh",
    "hinge_embedding_loss",
    "huber_loss",
    "instance_norm",
    "kl_div",
    "l1_loss",
    "layer_norm",
    "leaky_relu",
    "linear",
    "log_softmax",
    "logsigmoid",
    "margin_ranking_loss",
    "max_pool1d",
    "max_pool2d",
    "mish",
    "mse_loss",
    "nll_loss",
    "normalize",
    "one_hot",
    "pad",
    "pairwise_distance",
    "prelu",
    "relu",
    "relu6",
    "rms_norm",
    "scaled_dot_product_attention",
    "selu",
    "sigmoid",
    "silu",
    "smooth_l1_loss",
    "softmax",
    "softmin",
    "softplus",
    "softshrink",
    "softsign",
    "tanh",
    "tanhshrink",
    "threshold",
    "triplet_margin_loss",
]


# --- dropout --------------------------------------------------------------------------------------


def dropout(
    input: Tensor, p: float = 0.5, training: bool = True, *, generator: Any = None
) -> Tensor:
    """Return `input` with elements set to zero with probability `p`, the others by ``1/(1 − p)``.

    Parameters
    ----------
    input
        Tensor of any shape.
    p
        Probability, in [0, 1].
    training
        Whether anything is dropped.
    generator
        Source of the random numbers; the default generator otherwise.

    Returns
    -------
    Tensor
        Of the shape of `input`.

    Raises
    ------
    ValueError
        `p` lies outside of [0, 1].
    """
    return _dropout(input, p, training, generator=generator)


def _dropout_channels(
    name: str, x: Tensor, p: float, training: bool, spatial: int, generator: Any
) -> Tensor:
    if x.ndim not in {spatial + 1, spatial + 2}:
        message = (
            f"[{name}] argument 'input': expected {spatial + 1} or {spatial + 2} dimensions "
            f"((N,) C and {spatial} more), got {x.ndim}."
        )
        raise ValueError(message)
    if not training:
        return _dropout(x, p, False)
    shape = tuple(x.shape[: x.ndim - spatial]) + (1,) * spatial
    mask = _tp.ones(shape, dtype=x.dtype, device=x.device)
    return x * _dropout(mask, p, True, generator=generator)


@checked
def dropout1d(
    input: Tensor, p: float = 0.5, training: bool = True, *, generator: Any = None
) -> Tensor:
    """Return `input`, shape ((N,) C, L), with whole channels set to zero with probability `p`.

    Parameters
    ----------
    input
        The tensor.
    p
        Probability, in [0, 1].
    training
        Whether anything is dropped.
    generator
        Source of the random numbers; the default generator otherwise.

    Returns
    -------
    Tensor
        Of the shape of `input`.

    Raises
    ------
    ValueError
        `p` lies outside of [0, 1], or the number of dimensions is another.
    """
    return _dropout_channels("dropout1d", input, p, training, 1, generator)


@checked
def dropout2d(
    input: Tensor, p: float = 0.5, training: bool = True, *, generator: Any = None
) -> Tensor:
    """Return `input`, shape ((N,) C, H, W), with whole channels set to zero with probability `p`.

    Parameters
    ----------
    input
        The tensor.
    p
        Probability, in [0, 1].
    training
        Whether anything is dropped.
    generator
        Source of the random numbers; the default generator otherwise.

    Returns
    -------
    Tensor
        Of the shape of `input`.

    Raises
    ------
    ValueError
        `p` lies outside of [0, 1], or the number of dimensions is another.
    """
    return _dropout_channels("dropout2d", input, p, training, 2, generator)


# --- normalisations -------------------------------------------------------------------------------


def _along_channels(name: str, argument: str, x: Tensor, value: Any) -> Any:
    """Return a value for each channel, to stand beside `x`."""
    if value is None:
        return None
    if tuple(value.shape) != (x.shape[1],):
        message = (
            f"[{name}] argument {argument!r}: expected shape [{x.shape[1]}], one for each channel, "
            f"got {list(value.shape)}."
        )
        raise ValueError(message)
    return value.reshape((1, -1) + (1,) * (x.ndim - 2))


def _affine(name: str, x: Tensor, y: Tensor, weight: Any, bias: Any) -> Tensor:
    weight = _along_channels(name, "weight", x, weight)
    bias = _along_channels(name, "bias", x, bias)
    if weight is not None:
        y = y * weight
    return y if bias is None else y + bias


@checked
def batch_norm(
    input: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """Normalise each channel over the batch (Ioffe and Szegedy, 2015).

    Parameters
    ----------
    input
        Shape (N, C, …).
    running_mean, running_var
        Statistics of shape (C,), used when not `training`; when `training` they move by `momentum`
        towards those of the batch, the variance towards its unbiased estimate.
    weight, bias
        Scale and shift of each channel, shape (C,).
    training
        Whether the statistics are those of the batch.
    momentum
        Share of the batch in the new running statistics.
    eps
        Added to the variance.

    Returns
    -------
    Tensor
        Of the shape of `input`.

    Raises
    ------
    ValueError
        Fewer than two dimensions, one value per channel in training, no running statistics without
        training, or shapes other than (C,).
    """
    if input.ndim < 2:
        message = (
            "[batch_norm] argument 'input': expected at least 2 dimensions (N, C, …), got "
            f"{input.ndim}."
        )
        raise ValueError(message)
    axes = (0, *range(2, input.ndim))
    if training:
        count = input.numel() // max(1, input.shape[1])
        if count == 1:
            message = (
                "[batch_norm] argument 'input': expected more than 1 value per channel when "
                f"training, got input size {list(input.shape)}. Write module.eval() first."
            )
            raise ValueError(message)
        mean = input.mean(axes, keepdim=True)
        centred = input - mean
        var = (centred * centred).mean(axes, keepdim=True)
        _move(running_mean, mean, input, momentum, "running_mean", 1.0)
        _move(running_var, var, input, momentum, "running_var", count / max(1, count - 1))
    else:
        if running_mean is None or running_var is None:
            message = (
                "[batch_norm] arguments 'running_mean' and 'running_var': expected Tensors unless "
                "training, got None."
            )
            raise ValueError(message)
        centred = input - _along_channels("batch_norm", "running_mean", input, running_mean)
        var = _along_channels("batch_norm", "running_var", input, running_var)
    return _affine("batch_norm", input, centred * (var + eps).rsqrt(), weight, bias)


def _move(
    running: Tensor | None, new: Tensor, x: Tensor, momentum: float, name: str, factor: float
) -> None:
    if running is None or not x.numel():  # nothing was seen
        return
    _along_channels("batch_norm", name, x, running)
    with _tp.no_grad():
        running.mul_(1 - momentum).add_(new.detach().reshape(-1) * (momentum * factor))


@checked
def group_norm(
    input: Tensor,
    num_groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """Normalise groups of channels of each sample (Wu and He, 2018).

    Parameters
    ----------
    input
        Shape (N, C, …).
    num_groups
        Into how many groups the channels are split.
    weight, bias
        Scale and shift of each channel, shape (C,).
    eps
        Added to the variance.

    Returns
    -------
    Tensor
        Of the shape of `input`.

    Raises
    ------
    ValueError
        Fewer than two dimensions, or `num_groups` does not divide C.
    """
    if input.ndim < 2:
        message = (
            "[group_norm] argument 'input': expected at least 2 dimensions (N, C, …), got "
            f"{input.ndim}."
        )
        raise ValueError(message)
    if num_groups < 1 or input.shape[1] % num_groups:
        message = (
            f"[group_norm] argument 'num_groups': expected a divisor of the {input.shape[1]} "
            f"channels, got {num_groups}."
        )
        raise ValueError(message)
    size = math.prod(input.shape[1:]) // num_groups
    grouped = input.reshape((input.shape[0], num_groups, size))
    normal = layer_norm(grouped, (grouped.shape[-1],), eps=eps)
    return _affine("group_norm", input, normal.reshape(input.shape), weight, bias)


@checked
def instance_norm(
    input: Tensor,
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """Normalise each channel of each sample, shape (N, C, …) (Ulyanov et al., 2016).

    Parameters
    ----------
    input
        Shape (N, C, …).
    running_mean, running_var
        Statistics of shape (C,), used without `use_input_stats`; with it they move by `momentum`
        towards the means, over the samples, of mean and unbiased variance.
    weight, bias
        Scale and shift of each channel, shape (C,).
    use_input_stats
        Whether the statistics are those of each sample.
    momentum
        Share of the input in the new running statistics.
    eps
        Added to the variance.

    Returns
    -------
    Tensor
        Of the shape of `input`.

    Raises
    ------
    ValueError
        Fewer than three dimensions, one value per channel, no running statistics where they are
        needed, or shapes other than (C,).
    """
    if not use_input_stats:
        return batch_norm(input, running_mean, running_var, weight, bias, False, momentum, eps)
    if input.ndim < 3 or math.prod(input.shape[2:]) == 1:
        message = (
            "[instance_norm] argument 'input': expected (N, C, …) with more than 1 value per "
            f"channel, got {list(input.shape)}."
        )
        raise ValueError(message)
    if running_mean is not None or running_var is not None:
        samples = input.detach().flatten(2)
        _move(running_mean, samples.mean(2).mean(0), input, momentum, "running_mean", 1.0)
        _move(running_var, samples.var(2).mean(0), input, momentum, "running_var", 1.0)
    normal = group_norm(input, max(1, input.shape[1]), eps=eps)
    return _affine("instance_norm", input, normal, weight, bias)


@checked
def normalize(input: Tensor, p: float = 2.0, dim: int = 1, eps: float = 1e-12) -> Tensor:
    """Return `input` divided by its `p`-norm along `dim`, at least `eps`.

    Parameters
    ----------
    input
        Tensor of any shape.
    p
        Order of the norm.
    dim
        Dimension; negative ones count from the end.
    eps
        Least norm that is divided by.

    Returns
    -------
    Tensor
        Of the shape of `input`.
    """
    return input / input.norm(p, dim, keepdim=True).clamp(min=eps)


# --- embeddings -----------------------------------------------------------------------------------


@checked
def embedding(
    input: Tensor,
    weight: Tensor,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
) -> Tensor:
    """Return the rows of `weight` at the indices `input`.

    Parameters
    ----------
    input
        Indices of any shape.
    weight
        Shape (rows, features).
    padding_idx
        A row whose gradient stays zero.
    max_norm
        Rows that are looked up are first scaled down to this norm, in `weight` itself.
    norm_type
        Order of that norm.

    Returns
    -------
    Tensor
        Shape of the indices, then the length of a row.

    Raises
    ------
    IndexError
        An index, or `padding_idx`, is out of range.
    """
    if max_norm is not None:
        _limit_rows(input, weight, max_norm, norm_type)
    found = _embedding(input, weight)
    if padding_idx is None:
        return found
    rows = weight.shape[0]
    if not -rows <= padding_idx < rows:
        message = (
            f"[embedding] argument 'padding_idx': expected an index of {rows} rows, got "
            f"{padding_idx}."
        )
        raise IndexError(message)
    padded = (input == padding_idx % rows).unsqueeze(-1)
    return _tp.where(padded, found.detach(), found)


def _limit_rows(indices: Tensor, weight: Tensor, max_norm: float, norm_type: float) -> None:
    """Scale the rows at `indices` down to `max_norm`, where they exceed it."""
    if max_norm < 0:
        message = f"[embedding] argument 'max_norm': expected at least 0, got {max_norm}."
        raise ValueError(message)
    if indices.is_meta or weight.is_meta:
        return  # there are no elements to scale
    with _tp.no_grad():
        chosen = _tp.unique(indices)
        rows = _embedding(chosen, weight)
        norms = rows.norm(norm_type, -1, keepdim=True)
        # Not quite to the norm: rounding must not make the next call scale them again.
        weight[chosen] = _tp.where(norms > max_norm, rows * (max_norm / (norms + 1e-7)), rows)
