"""Convolutions and pooling as modules."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from tensorplay._tensor import Tensor
from tensorplay.nn import functional as F, init
from tensorplay.nn.module import Module
from tensorplay.nn.modules.linear import empty_parameter, want_sizes
from tensorplay.nn.parameter import Parameter
from tensorplay.ops.kinds import checked, is_int

__all__ = [
    "AdaptiveAvgPool1d",
    "AdaptiveAvgPool2d",
    "AdaptiveMaxPool1d",
    "AdaptiveMaxPool2d",
    "AvgPool1d",
    "AvgPool2d",
    "Conv1d",
    "Conv2d",
    "ConvTranspose1d",
    "ConvTranspose2d",
    "MaxPool1d",
    "MaxPool2d",
]


_MODES = ("zeros", "reflect", "replicate", "circular")


def _sizes(module: str, name: str, value: Any, n: int, least: int = 1) -> tuple[int, ...]:
    """Return one integer, not below `least`, for each of `n` dimensions.

    Raises
    ------
    TypeError
        One is no integer.
    ValueError
        There are as many as neither 1 nor `n`, or one is too small.
    """
    many = isinstance(value, Sequence) and not isinstance(value, str)
    found = tuple(value) if many else (value,) * n
    if len(found) != n:
        message = f"[{module}] argument {name!r}: expected an int or {n} of them, got {value!r}."
        raise ValueError(message)
    for size in found:
        if is_int(size) and size < least:
            message = f"[{module}] argument {name!r}: expected at least {least}, got {value}."
            raise ValueError(message)
        want_sizes(module, **{name: size})
    return found


class _Convolution(Module):
    """What convolutions share: parameters, their first values, and what `repr` shows."""

    _dimensions: ClassVar[int]
    _transposed: ClassVar[bool] = False
    weight: Parameter
    bias: Parameter | None

    @checked
    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Any,
        stride: Any = 1,
        padding: Any = 0,
        dilation: Any = 1,
        groups: int = 1,
        bias: bool = True,
        padding_mode: str = "zeros",
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        if padding_mode not in _MODES:
            message = (
                f"[{type(self).__name__}] argument 'padding_mode': expected one of "
                f"{', '.join(_MODES)}, got {padding_mode!r}."
            )
            raise ValueError(message)
        if self._transposed and padding_mode != "zeros":
            message = (
                f"[{type(self).__name__}] argument 'padding_mode': only 'zeros' is supported, got "
                f"{padding_mode!r}."
            )
            raise ValueError(message)
        self.padding_mode = padding_mode
        name, n = type(self).__name__, self._dimensions
        want_sizes(name, in_channels=in_channels, out_channels=out_channels, groups=groups)
        for argument, channels in (("in_channels", in_channels), ("out_channels", out_channels)):
            if groups < 1 or channels % groups:
                message = (
                    f"[{name}] argument {argument!r}: must be divisible by groups, got {channels} "
                    f"and groups={groups}."
                )
                raise ValueError(message)
        self.in_channels, self.out_channels, self.groups = in_channels, out_channels, groups
        self.kernel_size = _sizes(name, "kernel_size", kernel_size, n)
        self.stride = _sizes(name, "stride", stride, n)
        self.padding = self._checked_padding(padding)
        self.dilation = _sizes(name, "dilation", dilation, n)
        rows, columns = out_channels, in_channels
        if self._transposed:
            rows, columns = columns, rows
        shape = (rows, columns // groups, *self.kernel_size)
        self.weight = empty_parameter(shape, device, dtype)
        self.register_parameter(
            "bias", empty_parameter((out_channels,), device, dtype) if bias else None
        )
        self.reset_parameters()

    def _checked_padding(self, padding: Any) -> str | tuple[int, ...]:
        name = type(self).__name__
        if not isinstance(padding, str):
            return _sizes(name, "padding", padding, self._dimensions, 0)
        if padding not in {"same", "valid"} or self._transposed:
            words = "" if self._transposed else ", 'same' or 'valid'"
            message = f"[{name}] argument 'padding': expected integers{words}, got {padding!r}."
            raise ValueError(message)
        if padding == "same" and any(step != 1 for step in self.stride):
            message = (
                f"[{name}] argument 'padding': 'same' is not supported for strided convolutions, "
                f"got stride={self.stride}. Write stride=1, or padding in numbers."
            )
            raise ValueError(message)
        return padding

    def reset_parameters(self) -> None:
        """Draw the parameters anew, between ±1/√fan_in."""
        fan = self.weight.shape[1] * math.prod(self.kernel_size)
        bound = 1 / math.sqrt(max(1, fan))
        for parameter in self.parameters():
            if not parameter.is_meta:
                init.uniform_(parameter, -bound, bound)

    def extra_repr(self) -> str:
        usual = (1,) * self._dimensions
        texts = [
            f"{self.in_channels}, {self.out_channels}",
            f"kernel_size={self.kernel_size}",
            f"stride={self.stride}",
        ]
        if self.padding != (0,) * self._dimensions:
            texts.append(f"padding={self.padding!r}")
        if self.dilation != usual:
            texts.append(f"dilation={self.dilation}")
        if self.padding_mode != "zeros":
            texts.append(f"padding_mode={self.padding_mode!r}")
        if self.groups != 1:
            texts.append(f"groups={self.groups}")
        if self.bias is None:
            texts.append("bias=False")
        return ", ".join(texts)


class _Forward(_Convolution):
    """A convolution of any number of dimensions."""

    _function: ClassVar[Callable[..., Tensor]]

    def forward(self, input: Tensor) -> Tensor:
        padding: Any = self.padding
        if self.padding_mode != "zeros":
            # The convolution pads with zeros only: other values are put around before.
            input, padding = F.pad(input, self._around(), self.padding_mode), 0
        return type(self)._function(
            input, self.weight, self.bias, self.stride, padding, self.dilation, self.groups
        )

    def _around(self) -> list[int]:
        """Return how many values to put before and after, the last dimension first."""
        found: list[int] = []
        for i in reversed(range(self._dimensions)):
            if not isinstance(self.padding, str):
                found += [self.padding[i]] * 2
            elif self.padding == "same":
                total = self.dilation[i] * (self.kernel_size[i] - 1)
                found += [total // 2, total - total // 2]
            else:  # "valid"
                found += [0, 0]
        return found


class Conv1d(_Forward):
    """`functional.conv1d` with parameters of its own; input (N, in_channels, L).

    Parameters
    ----------
    in_channels, out_channels
        Channels of input and output, multiples of `groups`.
    kernel_size, stride, padding, dilation
        Those of the convolution; `padding` also ``"same"`` or ``"valid"``.
    groups
        Into how many groups, without connections between them, the channels are split.
    bias
        Whether there is one.
    padding_mode
        ``"zeros"``, ``"reflect"``, ``"replicate"`` or ``"circular"``: what `padding` consists of.
    device, dtype
        Those of the parameters.

    Attributes
    ----------
    weight
        Shape (out_channels, in_channels/groups, kernel_size).
    bias
        Shape (out_channels,), or None.

    Raises
    ------
    ValueError
        `groups` does not divide the channels, or an unknown `padding_mode`.
    """

    _dimensions = 1
    _function = staticmethod(F.conv1d)


class Conv2d(_Forward):
    """`functional.conv2d` with parameters of its own; input (N, in_channels, H, W).

    Parameters
    ----------
    in_channels, out_channels
        Channels of input and output, multiples of `groups`.
    kernel_size, stride, padding, dilation
        Those of the convolution, one or two integers; `padding` also ``"same"`` or ``"valid"``.
    groups
        Into how many groups, without connections between them, the channels are split.
    bias
        Whether there is one.
    padding_mode
        ``"zeros"``, ``"reflect"``, ``"replicate"`` or ``"circular"``: what `padding` consists of.
    device, dtype
        Those of the parameters.

    Attributes
    ----------
    weight
        Shape (out_channels, in_channels/groups, height, width).
    bias
        Shape (out_channels,), or None.

    Raises
    ------
    ValueError
        `groups` does not divide the channels, sizes are not one or two, or an unknown
        `padding_mode`.
    """

    _dimensions = 2
    _function = staticmethod(F.conv2d)


class _Transposed(_Convolution):
    """The adjoint of a convolution of any number of dimensions."""

    _transposed = True
    _function: ClassVar[Callable[..., Tensor]]

    @checked
    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Any,
        stride: Any = 1,
        padding: Any = 0,
        output_padding: Any = 0,
        groups: int = 1,
        bias: bool = True,
        dilation: Any = 1,
        padding_mode: str = "zeros",
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__(
            in_channels,
            out_channels,
            kernel_size,
            stride,
            padding,
            dilation,
            groups,
            bias,
            padding_mode,
            device,
            dtype,
        )
        name = type(self).__name__
        self.output_padding = _sizes(name, "output_padding", output_padding, self._dimensions, 0)

    def forward(self, input: Tensor) -> Tensor:
        return type(self)._function(
            input,
            self.weight,
            self.bias,
            self.stride,
            self.padding,
            self.output_padding,
            self.groups,
            self.dilation,
        )


class ConvTranspose1d(_Transposed):
    """`functional.conv_transpose1d` with parameters of its own; input (N, in_channels, L).

    Parameters
    ----------
    in_channels
        Channels of the input.
    out_channels
        Channels of the result.
    kernel_size
        Size of the window along each dimension: a number, or one for each.
    stride
        Distance between windows; a number, or one for each dimension.
    padding
        Width of what is added on both sides; a number, or one for each dimension.
    output_padding
        Rows added to one side of the result; a number, or one for each dimension.
    groups
        Number of groups of channels.
    bias
        Whether there is one.
    dilation
        Distance between the elements of a window; a number, or one for each dimension.
    padding_mode
        ``'zeros'``.
    device
        Device of the parameters.
    dtype
        Type of the parameters.

    Attributes
    ----------
    weight
        Shape (in_channels, out_channels/groups, kernel_size).
    bias
        Shape (out_channels,), or None.
    """

    _dimensions = 1
    _function = staticmethod(F.conv_transpose1d)


class ConvTranspose2d(_Transposed):
    """`functional.conv_transpose2d` with parameters of its own; input (N, in_channels, H, W).

    Parameters
    ----------
    in_channels
        Channels of the input.
    out_channels
        Channels of the result.
    kernel_size
        Size of the window along each dimension: a number, or one for each.
    stride
        Distance between windows; a number, or one for each dimension.
    padding
        Width of what is added on both sides; a number, or one for each dimension.
    output_padding
        Rows added to one side of the result; a number, or one for each dimension.
    groups
        Number of groups of channels.
    bias
        Whether there is one.
    dilation
        Distance between the elements of a window; a number, or one for each dimension.
    padding_mode
        ``'zeros'``.
    device
        Device of the parameters.
    dtype
        Type of the parameters.

    Attributes
    ----------
    weight
        Shape (in_channels, out_channels/groups, height, width).
    bias
        Shape (out_channels,), or None.
    """

    _dimensions = 2
    _function = staticmethod(F.conv_transpose2d)


class _Pool(Module):
    """Calls a pooling function with the options of the constructor."""

    _function: ClassVar[Callable[..., Any]]
    _options: tuple[str, ...]

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self._options = tuple(options)
        for name, value in options.items():
            setattr(self, name, value)

    def forward(self, input: Tensor) -> Any:
        return type(self)._function(input, **{name: getattr(self, name) for name in self._options})

    def extra_repr(self) -> str:
        return ", ".join(f"{name}={getattr(self, name)!r}" for name in self._options)


class _MaxPool(_Pool):
    @checked
    def __init__(
        self,
        kernel_size: Any,
        stride: Any = None,
        padding: Any = 0,
        dilation: Any = 1,
        return_indices: bool = False,
        ceil_mode: bool = False,
    ) -> None:
        super().__init__(
            kernel_size=kernel_size,
            stride=stride,
            padding=padding,
            dilation=dilation,
            return_indices=return_indices,
            ceil_mode=ceil_mode,
        )


class MaxPool1d(_MaxPool):
    """`functional.max_pool1d`.

    Parameters
    ----------
    kernel_size
        Size of the window along each dimension: a number, or one for each.
    stride
        Distance between windows; their size by default.
    padding
        Width of what is added on both sides; a number, or one for each dimension.
    dilation
        Distance between the elements of a window; a number, or one for each dimension.
    return_indices
        Whether the places of the maxima are returned too.
    ceil_mode
        Whether a last window that only begins inside of the input counts.
    """

    _function = staticmethod(F.max_pool1d)


class MaxPool2d(_MaxPool):
    """`functional.max_pool2d`.

    Parameters
    ----------
    kernel_size
        Size of the window along each dimension: a number, or one for each.
    stride
        Distance between windows; their size by default.
    padding
        Width of what is added on both sides; a number, or one for each dimension.
    dilation
        Distance between the elements of a window; a number, or one for each dimension.
    return_indices
        Whether the places of the maxima are returned too.
    ceil_mode
        Whether a last window that only begins inside of the input counts.
    """

    _function = staticmethod(F.max_pool2d)


class AvgPool1d(_Pool):
    """`functional.avg_pool1d`.

    Parameters
    ----------
    kernel_size
        Size of the window along each dimension: a number, or one for each.
    stride
        Distance between windows; their size by default.
    padding
        Width of what is added on both sides; a number, or one for each dimension.
    ceil_mode
        Whether a last window that only begins inside of the input counts.
    count_include_pad
        Whether zeros of the padding count as elements.
    """

    _function = staticmethod(F.avg_pool1d)

    @checked
    def __init__(
        self,
        kernel_size: Any,
        stride: Any = None,
        padding: Any = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
    ) -> None:
        super().__init__(
            kernel_size=kernel_size,
            stride=stride,
            padding=padding,
            ceil_mode=ceil_mode,
            count_include_pad=count_include_pad,
        )


class AvgPool2d(_Pool):
    """`functional.avg_pool2d`.

    Parameters
    ----------
    kernel_size
        Size of the window along each dimension: a number, or one for each.
    stride
        Distance between windows; their size by default.
    padding
        Width of what is added on both sides; a number, or one for each dimension.
    ceil_mode
        Whether a last window that only begins inside of the input counts.
    count_include_pad
        Whether zeros of the padding count as elements.
    divisor_override
        What sums are divided by, instead of the number of elements.
    """

    _function = staticmethod(F.avg_pool2d)

    @checked
    def __init__(
        self,
        kernel_size: Any,
        stride: Any = None,
        padding: Any = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: int | None = None,
    ) -> None:
        super().__init__(
            kernel_size=kernel_size,
            stride=stride,
            padding=padding,
            ceil_mode=ceil_mode,
            count_include_pad=count_include_pad,
            divisor_override=divisor_override,
        )


class _Adaptive(_Pool):
    def __init__(self, output_size: Any) -> None:
        super().__init__(output_size=output_size)


class AdaptiveAvgPool1d(_Adaptive):
    """`functional.adaptive_avg_pool1d`.

    Parameters
    ----------
    output_size
        Size of the result along each dimension; None keeps it.
    """

    _function = staticmethod(F.adaptive_avg_pool1d)


class AdaptiveAvgPool2d(_Adaptive):
    """`functional.adaptive_avg_pool2d`.

    Parameters
    ----------
    output_size
        Size of the result along each dimension; None keeps it.
    """

    _function = staticmethod(F.adaptive_avg_pool2d)


class AdaptiveMaxPool1d(_Adaptive):
    """`functional.adaptive_max_pool1d`.

    Parameters
    ----------
    output_size
        Size of the result along each dimension; None keeps it.
    """

    _function = staticmethod(F.adaptive_max_pool1d)


class AdaptiveMaxPool2d(_Adaptive):
    """`functional.adaptive_max_pool2d`.

    Parameters
    ----------
    output_size
        Size of the result along each dimension; None keeps it.
    """

    _function = staticmethod(F.adaptive_max_pool2d)
