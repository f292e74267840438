"""Losses and distances that are sums of operators; `functional` shows them with the others."""

from __future__ import annotations

from typing import Any

import tensorplay as _tp
from tensorplay._functions import relu, smooth_l1_loss
from tensorplay._tensor import Tensor
from tensorplay.ops.kinds import checked

__all__ = [
    "cosine_embedding_loss",
    "cosine_similarity",
    "hinge_embedding_loss",
    "huber_loss",
    "kl_div",
    "margin_ranking_loss",
    "pairwise_distance",
    "triplet_margin_loss",
]


def _reduced(name: str, loss: Any, reduction: str) -> Any:
    if reduction == "mean":
        return loss.mean()
    if reduction == "sum":
        return loss.sum()
    if reduction == "none":
        return loss
    message = f"[{name}] argument 'reduction': expected 'none', 'mean' or 'sum', got {reduction!r}."
    raise ValueError(message)


@checked
def cosine_similarity(x1: Tensor, x2: Tensor, dim: int = 1, eps: float = 1e-8) -> Tensor:
    """Return ``x1·x2/(|x1|·|x2|)`` along `dim`; norms are at least `eps`.

    Parameters
    ----------
    x1
        First tensor.
    x2
        Second tensor; broadcast against the first.
    dim
        Dimension; negative ones count from the end.
    eps
        Least product of the norms.

    Returns
    -------
    Tensor
        Without the dimension.
    """
    first = x1 / x1.norm(2, dim, keepdim=True).clamp(min=eps)
    second = x2 / x2.norm(2, dim, keepdim=True).clamp(min=eps)
    return (first * second).sum(dim)


@checked
def pairwise_distance(
    x1: Tensor, x2: Tensor, p: float = 2.0, eps: float = 1e-6, keepdim: bool = False
) -> Tensor:
    """Return the `p`-norm of ``x1 − x2 + eps`` along the last dimension.

    Parameters
    ----------
    x1
        First tensor.
    x2
        Second tensor; broadcast against the first.
    p
        Order of the norm.
    eps
        Added to differences.
    keepdim
        Whether the last dimension stays, with size 1.

    Returns
    -------
    Tensor
        Without the last dimension.
    """
    return (x1 - x2 + eps).norm(p, -1, keepdim=keepdim)


# --- losses ---------------------------------------------------------------------------------------


@checked
def huber_loss(
    input: Tensor, target: Tensor, reduction: str = "mean", delta: float = 1.0
) -> Tensor:
    """Return half the squared error to `delta`, ``delta·(|error| − delta/2)`` beyond (Huber, 1964).

    Parameters
    ----------
    input
        Tensor of any shape.
    target
        What `input` should be.
    reduction
        ``'mean'``, ``'sum'``, or ``'none'`` for all losses.
    delta
        Difference at which the square becomes a line.

    Returns
    -------
    Tensor
        0-d, or with ``'none'`` one loss for each element or sample.

    Raises
    ------
    ValueError
        `delta` is not positive, or an unknown `reduction`.
    """
    if delta <= 0:
        message = f"[huber_loss] argument 'delta': expected a positive number, got {delta}."
        raise ValueError(message)
    found: Tensor = smooth_l1_loss(input, target, reduction=reduction, beta=delta) * delta
    return found


@checked
def kl_div(
    input: Tensor, target: Tensor, reduction: str = "mean", log_target: bool = False
) -> Tensor:
    """Return the divergence of the distribution `target` from that with logarithms `input`.

    Parameters
    ----------
    input
        Logarithms of probabilities.
    target
        Probabilities, by `log_target` their logarithms.
    reduction
        ``"none"``, ``"mean"``, ``"sum"`` or ``"batchmean"``: the sum over the size of dimension 0.
    log_target
        Whether `target` is logarithms.

    Returns
    -------
    Tensor
        0-d, or with ``'none'`` one loss for each element or sample.

    Raises
    ------
    ValueError
        An unknown `reduction`.
    """
    if log_target:
        loss = target.exp() * (target - input)
    else:
        loss = _tp.xlogy(target, target) - target * input
    if reduction == "batchmean":
        return loss.sum() / (input.shape[0] if input.ndim else 1)
    result: Tensor = _reduced("kl_div", loss, reduction)
    return result


@checked
def margin_ranking_loss(
    input1: Tensor, input2: Tensor, target: Tensor, margin: float = 0.0, reduction: str = "mean"
) -> Tensor:
    """Return ``max(0, −target·(input1 − input2) + margin)``, `target` being 1 or −1.

    Parameters
    ----------
    input1
        First input.
    input2
        Second input, of its shape.
    target
        1 where the first should be larger, -1 where the second.
    margin
        Difference beyond which a pair in order costs nothing.
    reduction
        ``'mean'``, ``'sum'``, or ``'none'`` for all losses.

    Returns
    -------
    Tensor
        0-d, or with ``'none'`` one loss for each element or sample.

    Raises
    ------
    ValueError
        An unknown `reduction`.
    """
    loss = relu(-target * (input1 - input2) + margin)
    result: Tensor = _reduced("margin_ranking_loss", loss, reduction)
    return result


@checked
def hinge_embedding_loss(
    input: Tensor, target: Tensor, margin: float = 1.0, reduction: str = "mean"
) -> Tensor:
    """Return `input` where `target` is 1 and ``max(0, margin − input)`` where it is −1.

    Parameters
    ----------
    input
        Distances.
    target
        1 for like pairs, -1 for unlike ones.
    margin
        Distance beyond which unlike pairs cost nothing.
    reduction
        ``'mean'``, ``'sum'``, or ``'none'`` for all losses.

    Returns
    -------
    Tensor
        0-d, or with ``'none'`` one loss for each element or sample.

    Raises
    ------
    ValueError
        An unknown `reduction`.
    """
    loss = _tp.where(target == 1, input, relu(margin - input))
    result: Tensor = _reduced("hinge_embedding_loss", loss, reduction)
    return result


@checked
def cosine_embedding_loss(
    input1: Tensor, input2: Tensor, target: Tensor, margin: float = 0.0, reduction: str = "mean"
) -> Tensor:
    """Return ``1 − cos`` where `target` is 1 and ``max(0, cos − margin)`` where it is −1.

    Parameters
    ----------
    input1
        First input.
    input2
        Second input, of its shape.
    target
        1 for like pairs, -1 for unlike ones.
    margin
        Cosine below which unlike pairs cost nothing.
    reduction
        ``'mean'``, ``'sum'``, or ``'none'`` for all losses.

    Returns
    -------
    Tensor
        0-d, or with ``'none'`` one loss for each element or sample.

    Raises
    ------
    ValueError
        An unknown `reduction`.
    """
    cosine = cosine_similarity(input1, input2, dim=-1)
    loss = _tp.where(target == 1, 1 - cosine, relu(cosine - margin))
    result: Tensor = _reduced("cosine_embedding_loss", loss, reduction)
    return result


@checked
def triplet_margin_loss(
    anchor: Tensor,
    positive: Tensor,
    negative: Tensor,
    margin: float = 1.0,
    p: float = 2.0,
    eps: float = 1e-6,
    swap: bool = False,
    reduction: str = "mean",
) -> Tensor:
    """Return ``max(0, d(anchor, positive) − d(anchor, negative) + margin)``.

    Parameters
    ----------
    anchor, positive, negative
        Shape (…, features).
    margin
        By how much the negative should be farther.
    p, eps
        Those of `pairwise_distance`.
    swap
        Take d(positive, negative) where it is the smaller.
    reduction
        ``"none"``, ``"mean"`` or ``"sum"``.

    Returns
    -------
    Tensor
        0-d, or with ``'none'`` one loss for each element or sample.

    Raises
    ------
    ValueError
        An unknown `reduction`.
    """
    near = pairwise_distance(anchor, positive, p, eps)
    far = pairwise_distance(anchor, negative, p, eps)
    if swap:
        far = _tp.minimum(far, pairwise_distance(positive, negative, p, eps))
    result: Tensor = _reduced("triplet_margin_loss", relu(near - far + margin), reduction)
    return result
