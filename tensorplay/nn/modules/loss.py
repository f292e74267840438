"""Losses as modules."""

from __future__ import annotations

from typing import Any

from tensorplay._tensor import Tensor
from tensorplay.nn import functional as F
from tensorplay.nn.module import Module
from tensorplay.ops.kinds import checked

__all__ = [
    "BCELoss",
    "BCEWithLogitsLoss",
    "CosineEmbeddingLoss",
    "CrossEntropyLoss",
    "HingeEmbeddingLoss",
    "HuberLoss",
    "KLDivLoss",
    "L1Loss",
    "MSELoss",
    "MarginRankingLoss",
    "NLLLoss",
    "SmoothL1Loss",
    "TripletMarginLoss",
]


class _Loss(Module):
    """A loss that is reduced to its mean, its sum, or not at all."""

    def __init__(self, reduction: str = "mean", **options: Any) -> None:
        super().__init__()
        usual = {"none", "mean", "sum"} | ({"batchmean"} if isinstance(self, KLDivLoss) else set())
        if reduction not in usual:
            message = (
                f"[{type(self).__name__}] argument 'reduction': expected one of "
                f"{', '.join(sorted(usual))}, got {reduction!r}."
            )
            raise ValueError(message)
        self.reduction = reduction
        self._options = tuple(options)
        for name, value in options.items():
            setattr(self, name, value)

    def extra_repr(self) -> str:
        names = ("reduction", *self._options)
        return ", ".join(f"{name}={getattr(self, name)!r}" for name in names)


class MSELoss(_Loss):
    """`functional.mse_loss`: the squared error.

    Parameters
    ----------
    reduction
        ``'mean'``, ``'sum'``, or ``'none'`` for all losses.
    """

    @checked
    def __init__(self, reduction: str = "mean") -> None:
        super().__init__(reduction)

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        return F.mse_loss(input, target, reduction=self.reduction)


class L1Loss(_Loss):
    """`functional.l1_loss`: the absolute error.

    Parameters
    ----------
    reduction
        ``'mean'``, ``'sum'``, or ``'none'`` for all losses.
    """

    @checked
    def __init__(self, reduction: str = "mean") -> None:
        super().__init__(reduction)

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        return F.l1_loss(input, target, reduction=self.reduction)


class SmoothL1Loss(_Loss):
    """`functional.smooth_l1_loss`.

    Parameters
    ----------
    reduction
        ``'mean'``, ``'sum'``, or ``'none'`` for all losses.
    beta
        Difference at which the square becomes a line.
    """

    beta: float

    @checked
    def __init__(self, reduction: str = "mean", beta: float = 1.0) -> None:
        super().__init__(reduction, beta=beta)

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        return F.smooth_l1_loss(input, target, reduction=self.reduction, beta=self.beta)


class HuberLoss(_Loss):
    """`functional.huber_loss`.

    Parameters
    ----------
    reduction
        ``'mean'``, ``'sum'``, or ``'none'`` for all losses.
    delta
        Difference at which the square becomes a line.
    """

    delta: float

    @checked
    def __init__(self, reduction: str = "mean", delta: float = 1.0) -> None:
        super().__init__(reduction, delta=delta)

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        return F.huber_loss(input, target, self.reduction, self.delta)


class KLDivLoss(_Loss):
    """`functional.kl_div`.

    Parameters
    ----------
    reduction
        ``'mean'``, ``'sum'``, or ``'none'`` for all losses.
    log_target
        Whether targets are logarithms.
    """

    log_target: bool

    @checked
    def __init__(self, reduction: str = "mean", log_target: bool = False) -> None:
        super().__init__(reduction, log_target=log_target)

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        return F.kl_div(input, target, self.reduction, self.log_target)


class _Weighted(_Loss):
    """A loss with weights, which are a buffer."""

    weight: Tensor | None

    def __init__(self, weight: Tensor | None, reduction: str, **options: Any) -> None:
        super().__init__(reduction, **options)
        self.register_buffer("weight", weight)


class CrossEntropyLoss(_Weighted):
    """`functional.cross_entropy` of logits (N, C, …) with classes (N, …), or with probabilities.

    Parameters
    ----------
    weight
        One for each class, shape (C,).
    ignore_index
        A class that does not count.
    reduction
        ``"none"``, ``"mean"`` or ``"sum"``.
    label_smoothing
        Share of the uniform distribution in the target.
    """

    ignore_index: int
    label_smoothing: float

    @checked
    def __init__(
        self,
        weight: Tensor | None = None,
        *,
        ignore_index: int = -100,
        reduction: str = "mean",
        label_smoothing: float = 0.0,
    ) -> None:
        super().__init__(
            weight, reduction, ignore_index=ignore_index, label_smoothing=label_smoothing
        )

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        return F.cross_entropy(
            input,
            target,
            self.weight,
            ignore_index=self.ignore_index,
            reduction=self.reduction,
            label_smoothing=self.label_smoothing,
        )


class NLLLoss(_Weighted):
    """`functional.nll_loss` of logarithms of probabilities (N, C, …) with classes (N, …).

    Parameters
    ----------
    weight
        Shape (classes,): a factor for each class; 1 by default.
    ignore_index
        Class whose samples count for nothing.
    reduction
        ``'mean'``, ``'sum'``, or ``'none'`` for all losses.
    """

    ignore_index: int

    @checked
    def __init__(
        self, weight: Tensor | None = None, *, ignore_index: int = -100, reduction: str = "mean"
    ) -> None:
        super().__init__(weight, reduction, ignore_index=ignore_index)

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        return F.nll_loss(
            input, target, self.weight, ignore_index=self.ignore_index, reduction=self.reduction
        )


class BCELoss(_Weighted):
    """`functional.binary_cross_entropy` of probabilities.

    Parameters
    ----------
    weight
        Factor of each loss; 1 by default.
    reduction
        ``'mean'``, ``'sum'``, or ``'none'`` for all losses.
    """

    @checked
    def __init__(self, weight: Tensor | None = None, reduction: str = "mean") -> None:
        super().__init__(weight, reduction)

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        return F.binary_cross_entropy(input, target, self.weight, reduction=self.reduction)


class BCEWithLogitsLoss(_Weighted):
    """`functional.binary_cross_entropy_with_logits`.

    Parameters
    ----------
    weight
        Factor of each loss; 1 by default.
    reduction
        ``'mean'``, ``'sum'``, or ``'none'`` for all losses.
    pos_weight
        Factor of the part of positive targets.
    """

    pos_weight: Tensor | None

    @checked
    def __init__(
        self,
        weight: Tensor | None = None,
        reduction: str = "mean",
        pos_weight: Tensor | None = None,
    ) -> None:
        super().__init__(weight, reduction)
        self.register_buffer("pos_weight", pos_weight)

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        return F.binary_cross_entropy_with_logits(
            input, target, self.weight, pos_weight=self.pos_weight, reduction=self.reduction
        )


class _Margin(_Loss):
    margin: float

    @checked
    def __init__(self, margin: float = 0.0, reduction: str = "mean") -> None:
        super().__init__(reduction, margin=margin)


class MarginRankingLoss(_Margin):
    """`functional.margin_ranking_loss`.

    Parameters
    ----------
    margin
        Difference beyond which a pair in order costs nothing.
    reduction
        ``'mean'``, ``'sum'``, or ``'none'`` for all losses.
    """

    def forward(self, input1: Tensor, input2: Tensor, target: Tensor) -> Tensor:
        return F.margin_ranking_loss(input1, input2, target, self.margin, self.reduction)


class CosineEmbeddingLoss(_Margin):
    """`functional.cosine_embedding_loss`.

    Parameters
    ----------
    margin
        Cosine below which unlike pairs cost nothing.
    reduction
        ``'mean'``, ``'sum'``, or ``'none'`` for all losses.
    """

    def forward(self, input1: Tensor, input2: Tensor, target: Tensor) -> Tensor:
        return F.cosine_embedding_loss(input1, input2, target, self.margin, self.reduction)


class HingeEmbeddingLoss(_Margin):
    """`functional.hinge_embedding_loss`.

    Parameters
    ----------
    margin
        Distance beyond which unlike pairs cost nothing.
    reduction
        ``'mean'``, ``'sum'``, or ``'none'`` for all losses.
    """

    @checked
    def __init__(self, margin: float = 1.0, reduction: str = "mean") -> None:
        super().__init__(margin, reduction)

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        return F.hinge_embedding_loss(input, target, self.margin, self.reduction)


class TripletMarginLoss(_Loss):
    """`functional.triplet_margin_loss`.

    Parameters
    ----------
    margin
        Difference of the distances beyond which a triple costs nothing.
    p
        Order of the norm.
    eps
        Added to differences.
    swap
        Whether the smaller distance to the negative counts.
    reduction
        ``'mean'``, ``'sum'``, or ``'none'`` for all losses.
    """

    margin: float
    p: float
    eps: float
    swap: bool

    @checked
    def __init__(
        self,
        margin: float = 1.0,
        p: float = 2.0,
        eps: float = 1e-6,
        swap: bool = False,
        reduction: str = "mean",
    ) -> None:
        super().__init__(reduction, margin=margin, p=p, eps=eps, swap=swap)

    def forward(self, anchor: Tensor, positive: Tensor, negative: Tensor) -> Tensor:
        return F.triplet_margin_loss(
            anchor,
            positive,
            negative,
            self.margin,
            self.p,
            self.eps,
            self.swap,
            self.reduction,
        )
