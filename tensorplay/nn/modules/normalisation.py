"""Normalisations and dropout as modules."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, ClassVar

from tensorplay import _creation, _dtype
from tensorplay._tensor import Tensor
from tensorplay.nn import functional as F, init
from tensorplay.nn.module import Module
from tensorplay.nn.modules.activation import in_place
from tensorplay.nn.modules.linear import empty_parameter, want_probability, want_sizes
from tensorplay.nn.parameter import Buffer, Parameter
from tensorplay.ops.arguments import want_tensors
from tensorplay.ops.kinds import checked

__all__ = [
    "BatchNorm1d",
    "BatchNorm2d",
    "Dropout",
    "Dropout1d",
    "Dropout2d",
    "GroupNorm",
    "InstanceNorm1d",
    "InstanceNorm2d",
    "LayerNorm",
    "RMSNorm",
]


class _Scaled(Module):
    """A normalisation with a scale and a shift, or without."""

    weight: Parameter | None
    bias: Parameter | None

    def _make_affine(
        self, shape: tuple[int, ...], *, scale: bool, shift: bool, device: Any, dtype: Any
    ) -> None:
        self.register_parameter("weight", empty_parameter(shape, device, dtype) if scale else None)
        self.register_parameter("bias", empty_parameter(shape, device, dtype) if shift else None)

    def reset_parameters(self) -> None:
        """Set scales to one and shifts to zero."""
        if self.weight is not None and not self.weight.is_meta:
            init.ones_(self.weight)
        if self.bias is not None and not self.bias.is_meta:
            init.zeros_(self.bias)


class _Tracking(_Scaled):
    """A normalisation by channels that may keep running statistics."""

    running_mean: Tensor | None
    running_var: Tensor | None
    num_batches_tracked: Tensor | None

    @checked
    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        want_sizes(type(self).__name__, num_features=num_features)
        self.num_features, self.eps, self.momentum = num_features, eps, momentum
        self.affine, self.track_running_stats = affine, track_running_stats
        shape = (num_features,)
        self._make_affine(shape, scale=affine, shift=affine, device=device, dtype=dtype)
        if track_running_stats:
            self.running_mean = Buffer(_creation.zeros(shape, device=device, dtype=dtype))
            self.running_var = Buffer(_creation.ones(shape, device=device, dtype=dtype))
            count = _creation.zeros((), device=device, dtype=_dtype.int64)
            self.num_batches_tracked = Buffer(count)
        else:
            for name in ("running_mean", "running_var", "num_batches_tracked"):
                self.register_buffer(name, None)
        self.reset_parameters()

    def reset_running_stats(self) -> None:
        """Set the running mean to zero and the running variance to one."""
        if self.running_mean is not None and not self.running_mean.is_meta:
            init.zeros_(self.running_mean)
            for buffer, value in ((self.running_var, 1), (self.num_batches_tracked, 0)):
                if buffer is not None:
                    init.constant_(buffer, value)

    def extra_repr(self) -> str:
        return (
            f"{self.num_features}, eps={self.eps}, momentum={self.momentum}, "
            f"affine={self.affine}, track_running_stats={self.track_running_stats}"
        )


class _BatchNorm(_Tracking):
    _ranks: ClassVar[tuple[int, ...]]
    _shape: ClassVar[str]

    def forward(self, input: Tensor) -> Tensor:
        want_tensors(type(self).__name__, input=input)
        if input.ndim not in self._ranks:
            message = (
                f"[{type(self).__name__}] argument 'input': expected {self._shape}, got "
                f"{input.ndim} dimensions."
            )
            raise ValueError(message)
        momentum = 0.0 if self.momentum is None else self.momentum
        if self.training and self.num_batches_tracked is not None:
            self.num_batches_tracked.add_(1)
            if self.momentum is None:  # the average of all batches
                momentum = 1.0 / self.num_batches_tracked.item()
        by_batch = self.training or self.running_mean is None
        return F.batch_norm(
            input,
            self.running_mean,
            self.running_var,
            self.weight,
            self.bias,
            by_batch,
            momentum,
            self.eps,
        )


class BatchNorm1d(_BatchNorm):
    """`functional.batch_norm` of inputs of shape (N, C) or (N, C, L).

    Parameters
    ----------
    num_features
        Channels C.
    eps
        Added to the variance.
    momentum
        Share of a batch in the new running statistics; None for the average of all batches.
    affine
        Whether there are scale and shift, `weight` and `bias` of shape (C,).
    track_running_stats
        Whether `eval` takes running statistics, `running_mean` and `running_var` of shape (C,).
    device, dtype
        Those of parameters and buffers.
    """

    _ranks, _shape = (2, 3), "2 or 3 dimensions, (N, C) or (N, C, L)"


class BatchNorm2d(_BatchNorm):
    """`functional.batch_norm` of inputs of shape (N, C, H, W).

    Parameters
    ----------
    num_features
        Channels C.
    eps
        Added to the variance.
    momentum
        Share of a batch in the new running statistics; None for the average of all batches.
    affine
        Whether there are scale and shift, `weight` and `bias` of shape (C,).
    track_running_stats
        Whether `eval` takes running statistics, `running_mean` and `running_var` of shape (C,).
    device, dtype
        Those of parameters and buffers.
    """

    _ranks, _shape = (4,), "4 dimensions, (N, C, H, W)"


def _last_sizes(module: str, shape: Any) -> tuple[int, ...]:
    found = tuple(shape) if isinstance(shape, Iterable) else (shape,)
    for size in found:
        want_sizes(module, normalized_shape=size)
    return found


class LayerNorm(_Scaled):
    """`functional.layer_norm` over the last dimensions, with scale and shift.

    Parameters
    ----------
    normalized_shape
        Sizes of the last dimensions, which are normalised together.
    eps
        Added to the variance.
    elementwise_affine, bias
        Whether there are scale and shift, of shape `normalized_shape`.
    device, dtype
        Those of the parameters.
    """

    @checked
    def __init__(
        self,
        normalized_shape: Any,
        eps: float = 1e-5,
        elementwise_affine: bool = True,
        bias: bool = True,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        self.normalized_shape = _last_sizes(type(self).__name__, normalized_shape)
        self.eps, self.elementwise_affine = eps, elementwise_affine
        self._make_affine(
            self.normalized_shape,
            scale=elementwise_affine,
            shift=elementwise_affine and bias,
            device=device,
            dtype=dtype,
        )
        self.reset_parameters()

    def forward(self, input: Tensor) -> Tensor:
        return F.layer_norm(input, self.normalized_shape, self.weight, self.bias, self.eps)

    def extra_repr(self) -> str:
        return (
            f"{self.normalized_shape}, eps={self.eps}, elementwise_affine={self.elementwise_affine}"
        )


class RMSNorm(_Scaled):
    """`functional.rms_norm` over the last dimensions, with a scale.

    Parameters
    ----------
    normalized_shape
        Sizes of the last dimensions, which are normalised together.
    eps
        Added to the mean square; None for the precision of the type.
    elementwise_affine
        Whether there is a scale, of shape `normalized_shape`.
    device, dtype
        Those of the parameter.
    """

    @checked
    def __init__(
        self,
        normalized_shape: Any,
        eps: float | None = None,
        elementwise_affine: bool = True,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        self.normalized_shape = _last_sizes(type(self).__name__, normalized_shape)
        self.eps, self.elementwise_affine = eps, elementwise_affine
        scale = empty_parameter(self.normalized_shape, device, dtype)
        self.register_parameter("weight", scale if elementwise_affine else None)
        self.bias = None
        self.reset_parameters()

    def forward(self, input: Tensor) -> Tensor:
        return F.rms_norm(input, self.normalized_shape, self.weight, self.eps)

    def extra_repr(self) -> str:
        return (
            f"{self.normalized_shape}, eps={self.eps}, elementwise_affine={self.elementwise_affine}"
        )


class GroupNorm(_Scaled):
    """`functional.group_norm` of inputs of shape (N, C, …), with scale and shift.

    Parameters
    ----------
    num_groups
        A divisor of `num_channels`.
    num_channels
        Channels C.
    eps
        Added to the variance.
    affine
        Whether there are scale and shift, of shape (C,).
    device, dtype
        Those of the parameters.

    Raises
    ------
    ValueError
        `num_groups` does not divide `num_channels`.
    """

    @checked
    def __init__(
        self,
        num_groups: int,
        num_channels: int,
        eps: float = 1e-5,
        affine: bool = True,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        want_sizes("GroupNorm", num_groups=num_groups, num_channels=num_channels)
        if num_groups < 1 or num_channels % num_groups:
            message = (
                f"[GroupNorm] argument 'num_groups': expected a divisor of {num_channels} "
                f"channels, got {num_groups}."
            )
            raise ValueError(message)
        self.num_groups, self.num_channels = num_groups, num_channels
        self.eps, self.affine = eps, affine
        self._make_affine((num_channels,), scale=affine, shift=affine, device=device, dtype=dtype)
        self.reset_parameters()

    def forward(self, input: Tensor) -> Tensor:
        return F.group_norm(input, self.num_groups, self.weight, self.bias, self.eps)

    def extra_repr(self) -> str:
        return f"{self.num_groups}, {self.num_channels}, eps={self.eps}, affine={self.affine}"


class _InstanceNorm(_Tracking):
    _rank: ClassVar[int]

    @checked
    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float = 0.1,
        affine: bool = False,
        track_running_stats: bool = False,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__(num_features, eps, momentum, affine, track_running_stats, device, dtype)

    def forward(self, input: Tensor) -> Tensor:
        want_tensors(type(self).__name__, input=input)
        single = input.ndim == self._rank - 1
        if input.ndim not in {self._rank, self._rank - 1} or (
            input.shape[0 if single else 1] != self.num_features
        ):
            message = (
                f"[{type(self).__name__}] argument 'input': expected {self._rank} dimensions with "
                f"{self.num_features} channels second, or one less without a batch, got shape "
                f"{list(input.shape)}."
            )
            raise ValueError(message)
        found = F.instance_norm(
            input.unsqueeze(0) if single else input,
            self.running_mean,
            self.running_var,
            self.weight,
            self.bias,
            self.training or self.running_mean is None,
            0.0 if self.momentum is None else self.momentum,
            self.eps,
        )
        return found.squeeze(0) if single else found


class InstanceNorm1d(_InstanceNorm):
    """`functional.instance_norm` of inputs of shape (N, C, L) or (C, L).

    Parameters
    ----------
    num_features
        Channels C.
    eps
        Added to the variance.
    momentum
        Share of a batch in the new running statistics.
    affine
        Whether there are scale and shift, `weight` and `bias` of shape (C,).
    track_running_stats
        Whether `eval` takes running statistics, `running_mean` and `running_var` of shape (C,).
    device, dtype
        Those of parameters and buffers.
    """

    _rank = 3


class InstanceNorm2d(_InstanceNorm):
    """`functional.instance_norm` of inputs of shape (N, C, H, W) or (C, H, W).

    Parameters
    ----------
    num_features
        Channels C.
    eps
        Added to the variance.
    momentum
        Share of a batch in the new running statistics.
    affine
        Whether there are scale and shift, `weight` and `bias` of shape (C,).
    track_running_stats
        Whether `eval` takes running statistics, `running_mean` and `running_var` of shape (C,).
    device, dtype
        Those of parameters and buffers.
    """

    _rank = 4


class _Dropout(Module):
    _function: Callable[..., Tensor]

    @checked
    def __init__(self, p: float = 0.5, inplace: bool = False) -> None:
        super().__init__()
        want_probability(type(self).__name__, "p", p)
        self.p, self.inplace = p, inplace

    def forward(self, input: Tensor) -> Tensor:
        if self.inplace:
            return in_place(self._function, input, p=self.p, training=self.training)
        return self._function(input, self.p, self.training)

    def extra_repr(self) -> str:
        return f"p={self.p}, inplace={self.inplace}"


class Dropout(_Dropout):
    """`functional.dropout` while training; the identity otherwise.

    Parameters
    ----------
    p
        Probability of a zero.
    inplace
        Whether the input is written over.

    Raises
    ------
    ValueError
        `p` lies outside of [0, 1].
    """

    _function = staticmethod(F.dropout)


class Dropout1d(_Dropout):
    """`functional.dropout1d` while training; the identity otherwise.

    Parameters
    ----------
    p
        Probability, in [0, 1].
    inplace
        Whether the input itself is written.
    """

    _function = staticmethod(F.dropout1d)


class Dropout2d(_Dropout):
    """`functional.dropout2d` while training; the identity otherwise.

    Parameters
    ----------
    p
        Probability, in [0, 1].
    inplace
        Whether the input itself is written.
    """

    _function = staticmethod(F.dropout2d)
