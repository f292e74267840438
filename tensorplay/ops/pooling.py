"""Pooling: the largest or the mean of the elements in each window."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided

from tensorplay import _dtype, _native
from tensorplay._tensor import Spec, Tensor, wrap
from tensorplay.ops.arrangement import pad
from tensorplay.ops.convolution import per_dimension
from tensorplay.ops.joining import stack
from tensorplay.ops.masks import where
from tensorplay.ops.movement import Ints, reshape
from tensorplay.ops.primitive import Composite, Primitive, Sample, Vjp
from tensorplay.ops.selection import gather, int_tensor
from tensorplay.ops.strided import unfold

__all__: list[str] = []

# The place of a maximum where a dilated window steps over all elements and sees padding only.
NOWHERE = -1


def _count(size: int, k: int, step: int, width: int, gap: int, *, ceil_mode: bool) -> int:
    """Return how many windows there are; with `ceil_mode` the last may reach beyond the end."""
    room = size + 2 * width - gap * (k - 1) - 1
    count = (-(-room // step) if ceil_mode else room // step) + 1
    # A window that begins in the padding behind the elements would see none of them.
    return count - 1 if ceil_mode and (count - 1) * step >= size + width else count


def _counts(sizes: Ints, windows: tuple[Ints, Ints, Ints, Ints], *, ceil_mode: bool) -> Ints:
    return tuple(
        _count(*numbers, ceil_mode=ceil_mode) for numbers in zip(sizes, *windows, strict=True)
    )


def _check_windows(
    name: str, x: Any, n: int, windows: tuple[Ints, Ints, Ints, Ints], *, ceil_mode: bool
) -> None:
    kernel, stride, padding, dilation = windows
    if x.ndim not in (n + 1, n + 2):
        raise RuntimeError(
            f"[{name}] Expected {n + 1}D or {n + 2}D input, but got input of size {list(x.shape)}."
        )
    for argument, values in (("kernel_size", kernel), ("stride", stride), ("dilation", dilation)):
        if min(values) < 1:
            raise RuntimeError(
                f"[{name}] argument '{argument}': {argument} should be greater than zero, got "
                f"{list(values)}."
            )
    if any(p < 0 or 2 * p > k for p, k in zip(padding, kernel, strict=True)):
        raise RuntimeError(
            f"[{name}] argument 'padding': pad must be non-negative and at most half of kernel "
            f"size, got padding {list(padding)} and kernel size {list(kernel)}."
        )
    if min(_counts(x.shape[-n:], windows, ceil_mode=ceil_mode)) < 1:
        raise RuntimeError(
            f"[{name}] Output size is too small: input {list(x.shape)} is smaller than the window "
            f"{list(kernel)} with dilation {list(dilation)}."
        )


# --- the largest ----------------------------------------------------------------------------------


def _max_rule(
    x: Spec, kernel: Ints, stride: Ints, padding: Ints, dilation: Ints, ceil_mode: bool
) -> tuple[Spec, Spec]:
    n = len(kernel)
    windows = kernel, stride, padding, dilation
    shape = (*x.shape[:-n], *_counts(x.shape[-n:], windows, ceil_mode=ceil_mode))
    return Spec(shape, x.dtype), Spec(shape, _dtype.int64)


def _lowest(x: Any) -> Any:
    d = _dtype.from_numpy_dtype(x.dtype)
    if d.is_floating_point:
        return -math.inf
    return False if d is _dtype.bool_ else _dtype.iinfo(d).min


def _max_pool(
    x: Any, kernel: Ints, stride: Ints, padding: Ints, dilation: Ints, ceil_mode: bool
) -> tuple[Any, Any]:
    n = len(kernel)
    sizes, lead = x.shape[-n:], x.shape[:-n]
    counts = _counts(sizes, (kernel, stride, padding, dilation), ceil_mode=ceil_mode)
    if _native.core is not None and x.dtype.char in "fd":
        shape = (*lead, *counts)
        found = np.empty(shape, x.dtype), np.empty(shape, np.int64)
        geometry = map(tuple, (kernel, stride, padding, dilation))
        if _native.core.pool_largest(np.ascontiguousarray(x), *found, *geometry):
            return found
    reach = [
        (c - 1) * s + d * (k - 1) + 1
        for c, s, d, k in zip(counts, stride, dilation, kernel, strict=True)
    ]
    behind = [max(r - size - p, 0) for r, size, p in zip(reach, sizes, padding, strict=True)]
    widths = [(0, 0)] * len(lead) + list(zip(padding, behind, strict=True))
    full = np.pad(x, widths, constant_values=_lowest(x)) if any(map(any, widths)) else x
    steps = full.strides[-n:]
    view = as_strided(
        full,
        (*lead, *counts, *kernel),
        (
            *full.strides[:-n],
            *(a * b for a, b in zip(steps, stride, strict=True)),
            *(a * b for a, b in zip(steps, dilation, strict=True)),
        ),
        writeable=False,
    )
    flat = view.reshape(*lead, *counts, math.prod(kernel))
    best = flat.argmax(-1)  # the first of equal ones, and of NaN
    values = np.take_along_axis(flat, best[..., None], -1)[..., 0]
    chosen, first, outside = [], [], np.zeros((), np.bool_)
    for d, inside in enumerate(np.unravel_index(best, kernel)):
        start = np.arange(counts[d]).reshape((-1,) + (1,) * (n - d - 1)) * stride[d] - padding[d]
        chosen.append(start + inside * dilation[d])
        first.append(np.maximum(-start, 0) // -dilation[d] * -dilation[d] + start)
        outside = outside | (chosen[d] < 0) | (chosen[d] >= sizes[d])
    places: Any = np.zeros((), np.int64)
    for size, here, other in zip(sizes, chosen, first, strict=True):
        # Padding wins where all is as low: then it is the first of the elements.
        places = places * size + np.where(outside, other, here)
    for size, other in zip(sizes, first, strict=True):
        places = np.where(other < size, places, NOWHERE)
    return values, np.ascontiguousarray(places, np.int64)


def _flat(x: Any, n: int) -> Any:
    return reshape.apply((x, (*x.shape[:-n], math.prod(x.shape[-n:]))))


def _sum_at(x: Any, places: Any, size: Ints) -> Any:
    lead = x.shape[: x.ndim - len(size)]
    wide = x.astype(np.float32) if x.dtype in _dtype.NARROW else x
    out = np.zeros((math.prod(lead), math.prod(size)), wide.dtype)
    each = math.prod(places.shape[len(lead) :])  # not -1: there may be no channels
    values, at = (np.ascontiguousarray(a).reshape(len(out), each) for a in (wide, places))
    if _native.core is None or not _native.core.add_at_places(out, at, values):
        seen = at != NOWHERE
        rows = np.arange(len(out))[:, None]
        np.add.at(out, (rows, np.where(seen, at, 0)), np.where(seen, values, 0))
    return out.reshape(*lead, *size).astype(x.dtype, copy=False)


def _read_at(x: Any, places: Any, n: int) -> Any:
    """Return the elements of the last `n` dimensions, counted through, at `places`."""
    flat = _flat(places, n)
    picked = gather.apply((_flat(x, n), x.ndim - n, flat.clamp(min=0)))
    picked = where.apply((flat == NOWHERE, 0, picked))
    return reshape.apply((picked, tuple(places.shape)))


# The places were found by an operator, so that they are in range, or `NOWHERE`.
sum_at = Primitive(
    "_sum_at(Tensor input, Tensor places, int[] size) -> Tensor",
    "Sums of the elements of each channel at their places in `size`, zeros elsewhere.",
    _sum_at,
    rule=lambda x, places, size: Spec((*x.shape[: x.ndim - len(size)], *size), x.dtype),
    vjp={"input": Vjp(lambda g, s: _read_at(g, s.places, len(s.size)), "places")},
    jvp="linear",
    check_first=False,
    function=False,
    method=False,
    samples=lambda make: [
        Sample((make(2, 3), int_tensor([[0, 2, 0], [4, 1, 2]]), (5,)), name="1d"),
        Sample((make(1, 2, 2), int_tensor([[[0, 5], [5, 1]]]), (2, 3)), name="2d"),
        Sample((make(2, 0), int_tensor([[], []]), (3,)), name="none"),
        Sample((make(0, 2), int_tensor([[0, 1]])[:0], (3,)), name="no channels"),
        Sample((make(2, 2), int_tensor([[0, -1], [-1, 2]]), (3,)), name="nowhere"),
    ],
)


def _max_grad(g: Any, s: Any) -> Any:
    return sum_at.apply((g[0], s.out[1], s.specs["input"].shape[-len(s.kernel_size) :]))


def _max_jvp(t: Any, s: Any) -> Any:
    return _read_at(t.input, s.out[1], len(s.kernel_size)), None


max_windows = Primitive(
    "_max_pool(Tensor input, int[] kernel_size, int[] stride, int[] padding, int[] dilation, "
    "bool ceil_mode) -> (Tensor values, Tensor indices)",
    "The largest element of every window, and where it is among the elements of its channel.",
    _max_pool,
    rule=_max_rule,
    vjp={"input": Vjp(_max_grad, "out")},
    jvp=_max_jvp,
    check_first=False,
    function=False,
    method=False,
    samples=lambda make: [
        Sample((make(2, 5), (2,), (2,), (1,), (1,), False), name="1d"),
        Sample((make(1, 2, 4, 5), (2, 2), (1, 2), (0, 1), (2, 1), True), name="2d"),
        Sample((make(0, 5), (2,), (2,), (0,), (1,), False), name="no channels"),
    ],
)


def _max(name: str, n: int) -> Any:
    def body(
        x: Tensor,
        kernel: Ints,
        stride: Ints | None,
        padding: Ints,
        dilation: Ints,
        ceil_mode: bool,
        return_indices: bool,
    ) -> Any:
        if x._dtype.is_complex or x._dtype is _dtype.bool_:
            raise TypeError(f"[{name}] argument 'input': expected real numbers, got {x._dtype!r}.")
        windows = _windows(name, n, kernel, stride, padding, dilation)
        _check_windows(name, x, n, windows, ceil_mode=ceil_mode)
        values, indices = max_windows.apply((x, *windows, ceil_mode))
        return (values, indices) if return_indices else values

    return body


def _windows(name: str, n: int, kernel: Ints, stride: Ints | None, *rest: Ints) -> Any:
    kernel = per_dimension(name, "kernel_size", kernel, n)
    stride = per_dimension(name, "stride", stride, n) if stride else kernel
    names = ("padding", "dilation")
    return (
        kernel,
        stride,
        *(
            per_dimension(name, argument, value, n)
            for argument, value in zip(names, rest, strict=False)
        ),
    )


def _pool_samples(n: int, *, maximum: bool) -> Any:
    size = (5, 4)[:n]

    def samples(make: Any) -> Iterable[Sample]:
        yield Sample((make(1, 2, *size), 2), name="plain")
        yield Sample((make(2, *size), 3, 2, 1), name="stride and padding")
        yield Sample((make(2, *size), 2, 2), {"ceil_mode": True}, name="ceil")
        if maximum:
            yield Sample((make(1, *size), 2, 1), {"dilation": 2}, name="dilation")
            yield Sample((make(1, *size), 2), {"return_indices": True}, name="indices")
        else:
            yield Sample(
                (make(1, *size), 3, 2, 1), {"count_include_pad": False}, name="without padding"
            )

    return samples


def _define_max(n: int) -> Composite:
    name = f"max_pool{n}d"
    return Composite(
        f"{name}(Tensor input, int[{n}] kernel_size, int[{n}]? stride=None, int[{n}] padding=0, "
        f"int[{n}] dilation=1, bool ceil_mode=False, bool return_indices=False) -> Tensor",
        "The largest element of every window, `stride` (by default its size) apart; with "
        "`return_indices` also where it is in its channel, -1 if a window sees padding only.",
        _max(name, n),
        method=False,
        samples=_pool_samples(n, maximum=True),
    )


max_pool1d = _define_max(1)
max_pool2d = _define_max(2)

# --- the mean -------------------------------------------------------------------------------------


def _window_sums(x: Any, kernel: Ints, stride: Ints, widths: list[int]) -> Any:
    n = len(kernel)
    x = pad.apply((x, widths, "constant", None)) if any(widths) else x
    first = x.ndim - n
    for d, (size, step) in enumerate(zip(kernel, stride, strict=True)):
        x = unfold.apply((x, first + d, size, step))
    return x.sum(list(range(-n, 0)))


def _mean(name: str, n: int) -> Any:
    def body(
        x: Tensor,
        kernel: Ints,
        stride: Ints | None,
        padding: Ints,
        ceil_mode: bool,
        count_include_pad: bool,
        divisor: int | None = None,
    ) -> Any:
        if not x._dtype.is_differentiable:
            raise TypeError(
                f"[{name}] argument 'input': expected a floating point tensor, got {x._dtype!r}. "
                "Write x.float()."
            )
        kernel, stride, padding = _windows(name, n, kernel, stride, padding)
        windows = kernel, stride, padding, (1,) * n
        _check_windows(name, x, n, windows, ceil_mode=ceil_mode)
        if divisor == 0:
            raise RuntimeError(f"[{name}] argument 'divisor_override': divisor must be not zero.")
        sizes = tuple(x.shape[-n:])
        counts = _counts(sizes, windows, ceil_mode=ceil_mode)
        widths: list[int] = []
        numbers = []
        for size, k, step, p, count in zip(sizes, kernel, stride, padding, counts, strict=True):
            end = (count - 1) * step + k - p
            widths = [p, end - size, *widths]
            # Elements of the window along this dimension; beyond the padding there are none.
            low, high = (-p, size + p) if count_include_pad else (0, size)
            starts = np.arange(count) * step - p
            numbers.append(np.minimum(starts + k, high) - np.maximum(starts, low))
        total: Any = _window_sums(x, kernel, stride, widths)
        if divisor is not None:
            return total / divisor
        divisors = numbers[0] if n == 1 else np.multiply.outer(*numbers)
        if (divisors == divisors.flat[0]).all():
            return total / int(divisors.flat[0])
        return total / wrap(divisors.astype(x._dtype.to_real().numpy)).to(x.device)

    return body


avg_pool1d = Composite(
    "avg_pool1d(Tensor input, int[1] kernel_size, int[1]? stride=None, int[1] padding=0, "
    "bool ceil_mode=False, bool count_include_pad=True) -> Tensor",
    "The mean of every window, `stride` (by default its size) apart; zeros of the padding count "
    "unless `count_include_pad` is False.",
    _mean("avg_pool1d", 1),
    method=False,
    samples=_pool_samples(1, maximum=False),
)

avg_pool2d = Composite(
    "avg_pool2d(Tensor input, int[2] kernel_size, int[2]? stride=None, int[2] padding=0, "
    "bool ceil_mode=False, bool count_include_pad=True, int? divisor_override=None) -> Tensor",
    "The mean of every window, `stride` (by default its size) apart; zeros of the padding count "
    "unless `count_include_pad` is False; `divisor_override` replaces the number of elements.",
    _mean("avg_pool2d", 2),
    method=False,
    samples=lambda make: [
        *_pool_samples(2, maximum=False)(make),
        Sample((make(1, 4, 4), 2), {"divisor_override": 3}, name="divisor"),
    ],
)


def _adaptive_sizes(
    name: str, n: int, x: Any, output_size: tuple[Any, ...]
) -> tuple[tuple[int, ...], list[int]]:
    """Return the sizes of the input and those asked for."""
    if x.ndim not in (n + 1, n + 2):
        raise RuntimeError(
            f"[{name}] Expected {n + 1}D or {n + 2}D input, but got input of size {list(x.shape)}."
        )
    sizes = tuple(x.shape[-n:])
    asked: Any = per_dimension(name, "output_size", output_size, n)
    wanted = [size if k is None else k for size, k in zip(sizes, asked, strict=True)]
    if min(wanted) < 0 or 0 in sizes:
        raise RuntimeError(
            f"[{name}] argument 'output_size': elements of output_size must be greater than or "
            f"equal to 0, of an input that is not empty; got {wanted} for size {list(sizes)}."
        )
    return sizes, wanted


def _adaptive(name: str, n: int) -> Any:
    def body(x: Any, output_size: tuple[Any, ...]) -> Any:
        sizes, wanted = _adaptive_sizes(name, n, x, output_size)
        first = x.ndim - n
        for d, (size, k) in enumerate(zip(sizes, wanted, strict=True)):
            # Window i reaches from floor(i size / k) to ceil((i + 1) size / k).
            means = [
                x.narrow(first + d, i * size // k, -(-(i + 1) * size // k) - i * size // k).mean(
                    first + d
                )
                for i in range(k)
            ]
            x = stack.apply((means, first + d)) if means else x.narrow(first + d, 0, 0)
        return x

    return body


def _adaptive_max(name: str, n: int) -> Any:
    def body(x: Any, output_size: tuple[Any, ...], return_indices: bool) -> Any:
        sizes, wanted = _adaptive_sizes(name, n, x, output_size)
        edges = [
            [(i * size // k, -(-(i + 1) * size // k)) for i in range(k)]
            for size, k in zip(sizes, wanted, strict=True)
        ]
        lead = tuple(x.shape[:-n])
        if 0 in wanted:
            empty = x.new_zeros((*lead, *wanted))
            return (empty, empty.long()) if return_indices else empty
        values, places = [], []
        for window in itertools.product(*edges):
            part = x
            for d, (start, stop) in enumerate(window):
                part = part.narrow(len(lead) + d, start, stop - start)
            largest, place = part.flatten(-n).max(-1)
            values.append(largest)
            # From the place in the window to that in the channel, the last dimension first.
            flat, step = 0, 1
            for (start, stop), size in zip(reversed(window), reversed(sizes), strict=True):
                flat = flat + (place % (stop - start) + start) * step
                place, step = place // (stop - start), step * size
            places.append(flat)
        found = [
            stack.apply((t, len(lead))).reshape((*lead, *wanted))
            for t in ((values, places) if return_indices else (values,))
        ]
        return tuple(found) if return_indices else found[0]

    return body


def _define_adaptive_max(n: int) -> Composite:
    name = f"adaptive_max_pool{n}d"
    size = (5, 4)[:n]
    return Composite(
        f"{name}(Tensor input, int?[{n}] output_size, bool return_indices=False) -> Tensor",
        "The largest elements of windows that divide each dimension into `output_size` parts as "
        "even as can be; with `return_indices` also where they are in their channel.",
        _adaptive_max(name, n),
        method=False,
        samples=lambda make: [
            Sample((make(1, 2, *size), 1), name="one"),
            Sample((make(2, *size), (3, 2)[:n], True), name="uneven"),
        ],
    )


adaptive_max_pool1d, adaptive_max_pool2d = _define_adaptive_max(1), _define_adaptive_max(2)


def _define_adaptive(n: int) -> Composite:
    name = f"adaptive_avg_pool{n}d"
    size = (5, 4)[:n]
    return Composite(
        f"{name}(Tensor input, int?[{n}] output_size) -> Tensor",
        "Means of windows that divide each dimension into `output_size` parts as even as can be.",
        _adaptive(name, n),
        method=False,
        samples=lambda make: [
            Sample((make(1, 2, *size), 1), name="one"),
            Sample((make(2, *size), (3, 2)[:n]), name="uneven"),
        ],
    )


adaptive_avg_pool1d = _define_adaptive(1)
adaptive_avg_pool2d = _define_adaptive(2)
