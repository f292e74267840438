"""Transposed convolutions: the adjoints of convolutions, as layers that make images larger."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tensorplay._tensor import Tensor
from tensorplay.ops.arrangement import pad
from tensorplay.ops.convolution import check_operands, per_dimension, to_input
from tensorplay.ops.movement import Ints
from tensorplay.ops.primitive import Composite, Sample

__all__: list[str] = []


def _check(name: str, x: Tensor, weight: Tensor, bias: Any, groups: int, n: int) -> None:
    check_operands(name, x, weight, bias, n)
    channels = x.shape[-n - 1]
    if groups < 1 or weight.shape[0] % groups:
        raise RuntimeError(
            f"[{name}] argument 'groups': expected a positive number that divides the "
            f"{weight.shape[0]} channels of the input, got {groups}."
        )
    if channels != weight.shape[0]:
        raise RuntimeError(
            f"[{name}] Given transposed=1, weight of size {list(weight.shape)}, expected "
            f"input{list(x.shape)} to have {weight.shape[0]} channels, but got {channels} channels "
            "instead."
        )
    if bias is not None and tuple(bias.shape) != (weight.shape[1] * groups,):
        raise RuntimeError(
            f"[{name}] argument 'bias': expected bias to be 1-dimensional with "
            f"{weight.shape[1] * groups} elements, but got bias of size {list(bias.shape)}."
        )


def _check_geometry(
    name: str, kernel: Ints, stride: Ints, padding: Ints, extra: Ints, dilation: Ints
) -> None:
    for argument, values, least in (
        ("stride", stride, 1), ("dilation", dilation, 1), ("padding", padding, 0),
        ("output_padding", extra, 0),
    ):  # fmt: skip
        if min(values) < least:
            raise RuntimeError(
                f"[{name}] argument '{argument}': expected at least {least}, got {list(values)}."
            )
    if 0 in kernel:
        raise RuntimeError(f"[{name}] Kernel size can't be zero, got {list(kernel)}.")
    if any(e >= max(s, d) for e, s, d in zip(extra, stride, dilation, strict=True)):
        raise RuntimeError(
            f"[{name}] argument 'output_padding': output padding must be smaller than either "
            f"stride or dilation, but got output_padding {list(extra)}, stride {list(stride)}, "
            f"dilation {list(dilation)}."
        )


def _transposed(name: str, n: int) -> Any:
    def body(
        x: Tensor,
        weight: Tensor,
        bias: Any,
        stride: Ints,
        padding: Ints,
        output_padding: Ints,
        groups: int,
        dilation: Ints,
    ) -> Any:
        _check(name, x, weight, bias, groups, n)
        stride, padding, extra, dilation = (
            per_dimension(name, argument, value, n)
            for argument, value in (
                ("stride", stride), ("padding", padding), ("output_padding", output_padding),
                ("dilation", dilation),
            )
        )  # fmt: skip
        kernel = tuple(weight.shape[2:])
        _check_geometry(name, kernel, stride, padding, extra, dilation)
        batched: Any = x if x.ndim == n + 2 else x.unsqueeze(0)
        reach = [
            max(size - 1, 0) * s + d * (k - 1) + 1
            for size, s, d, k in zip(batched.shape[2:], stride, dilation, kernel, strict=True)
        ]
        size = [r - 2 * p + e for r, p, e in zip(reach, padding, extra, strict=True)]
        if min(size) < 1 or 0 in batched.shape[2:]:
            raise RuntimeError(
                f"[{name}] Given input size per channel: {list(batched.shape[2:])}. Calculated "
                f"output size per channel: {size}. Output size is too small."
            )
        front = (batched.shape[0], weight.shape[1] * groups)
        if all(e < s for e, s in zip(extra, stride, strict=True)):
            out = to_input.apply(
                (batched, weight, (*front, *size), stride, padding, dilation, groups)
            )
        else:  # there is room for one more window, which the adjoint would count
            full = (*front, *reach)
            none = (0,) * n
            out = to_input.apply((batched, weight, full, stride, none, dilation, groups))
            widths: list[int] = []
            for p, e in zip(padding, extra, strict=True):
                widths = [-p, e - p, *widths]
            out = pad.apply((out, widths, "constant", None))
        if bias is not None:
            out = out + bias.reshape(-1, *(1,) * n)
        return out if x.ndim == n + 2 else out.squeeze(0)

    return body


def _define(n: int) -> Composite:
    name = f"conv_transpose{n}d"
    size, kernel = (3, 2, 2)[:n], (2, 3, 1)[:n]

    def samples(make: Any) -> Iterable[Sample]:
        yield Sample((make(2, 2, *size), make(2, 3, *kernel), make(3)), name="bias")
        yield Sample((make(4, *size), make(4, 1, *kernel)), {"groups": 2}, name="one, groups")
        yield Sample(
            (make(1, 2, *size), make(2, 2, *kernel), None, 2, (1,) + (0,) * (n - 1), 1),
            name="stride and paddings",
        )
        yield Sample(
            (make(1, 1, *size), make(1, 1, *kernel)), {"dilation": 2, "output_padding": 1},
            name="dilation",
        )  # fmt: skip
        yield Sample((make(0, 1, *size), make(1, 1, *kernel)), name="empty")

    return Composite(
        f"{name}(Tensor input, Tensor weight, Tensor? bias=None, int[{n}] stride=1, "
        f"int[{n}] padding=0, int[{n}] output_padding=0, int groups=1, int[{n}] dilation=1) "
        "-> Tensor",
        "The adjoint of a convolution: every element of `input` adds its multiple of `weight`, of "
        "shape (channels, channels of one group of the result, …), to a larger image.",
        _transposed(name, n),
        method=False,
        samples=samples,
    )


conv_transpose1d, conv_transpose2d, conv_transpose3d = (_define(n) for n in (1, 2, 3))
