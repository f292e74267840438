"""References of convolutions, pooling and attention, by loops over windows."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np

__all__ = ["WINDOWS"]


def each(value: Any, n: int) -> tuple[int, ...]:
    return (value,) * n if isinstance(value, int) else tuple(value)


def terms(x: Any, w: Any, stride: Any, padding: Any, dilation: Any, groups: int) -> Any:
    """Yield the places (y, x, w) of every product in the sum that a convolution is."""
    n = w.ndim - 2
    counts = [
        (x.shape[2 + d] + 2 * padding[d] - dilation[d] * (w.shape[2 + d] - 1) - 1) // stride[d] + 1
        for d in range(n)
    ]
    inner, outer = w.shape[1], w.shape[0] // groups
    spaces = itertools.product(
        range(x.shape[0]), range(w.shape[0]), range(inner),
        np.ndindex(*counts), np.ndindex(*w.shape[2:]),
    )  # fmt: skip
    for b, o, i, at, k in spaces:
        source = [at[d] * stride[d] + k[d] * dilation[d] - padding[d] for d in range(n)]
        if all(0 <= s < size for s, size in zip(source, x.shape[2:], strict=True)):
            yield (b, o, *at), (b, o // outer * inner + i, *source), (o, i, *k)


def convolution(x: Any, w: Any, *geometry: Any) -> Any:
    stride, padding, dilation, _ = geometry
    counts = [
        (x.shape[2 + d] + 2 * padding[d] - dilation[d] * (w.shape[2 + d] - 1) - 1) // stride[d] + 1
        for d in range(w.ndim - 2)
    ]
    y = np.zeros((x.shape[0], w.shape[0], *counts))
    for at_y, at_x, at_w in terms(x, w, *geometry):
        y[at_y] += x[at_x] * w[at_w]
    return y


def to_input(y: Any, w: Any, size: Any, *geometry: Any) -> Any:
    x = np.zeros(size)
    for at_y, at_x, at_w in terms(x, w, *geometry):
        x[at_x] += y[at_y] * w[at_w]
    return x


def to_weight(y: Any, x: Any, size: Any, *geometry: Any) -> Any:
    w = np.zeros(size)
    for at_y, at_x, at_w in terms(x, w, *geometry):
        w[at_w] += y[at_y] * x[at_x]
    return w


def conv(
    x: Any,
    w: Any,
    bias: Any = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Any:
    n = w.ndim - 2
    batched = x if x.ndim == w.ndim else x[None]
    if padding == "same":
        sizes = [(k - 1) // 2 for k in w.shape[2:]], [k // 2 for k in w.shape[2:]]
        batched = np.pad(batched, [(0, 0), (0, 0), *zip(*sizes, strict=True)])
        padding = 0
    y = convolution(batched, w, each(stride, n), each(padding, n), each(dilation, n), groups)
    if bias is not None:
        y = y + bias[(slice(None), *(None,) * n)]
    return y if x.ndim == w.ndim else y[0]


def windows(
    x: Any, n: int, kernel: Any, stride: Any, padding: Any, dilation: Any, ceil: Any
) -> Any:
    """Yield the place of every window and those of its elements; None for one in the padding."""
    sizes = x.shape[-n:]
    starts = []
    for d in range(n):
        room = sizes[d] + 2 * padding[d] - dilation[d] * (kernel[d] - 1) - 1
        count = (math.ceil if ceil else math.floor)(room / stride[d]) + 1
        begin = [i * stride[d] - padding[d] for i in range(count)]
        starts.append([s for s in begin if not ceil or s < sizes[d]])
    for window in itertools.product(*map(enumerate, starts)):
        at = tuple(i for i, _ in window)
        cells = []
        for k in np.ndindex(*kernel):
            place = tuple(s + j * g for (_, s), j, g in zip(window, k, dilation, strict=True))
            bounds = list(zip(place, sizes, padding, strict=True))
            if all(0 <= p < size for p, size, _ in bounds):
                cells.append(place)
            elif all(p < size + width for p, size, width in bounds):
                cells.append(None)
        yield at, cells


def max_pool(n: int) -> Callable[..., Any]:
    def reference(
        x: Any,
        kernel_size: Any,
        stride: Any = None,
        padding: Any = 0,
        dilation: Any = 1,
        ceil_mode: bool = False,
        return_indices: bool = False,
        pair: bool = False,
    ) -> Any:
        n_ = len(kernel_size) if pair else n
        kernel = each(kernel_size, n_)
        geometry = each(stride or kernel, n_), each(padding, n_), each(dilation, n_), ceil_mode
        lead = x.shape[:-n_]
        found = list(windows(x, n_, kernel, *geometry))
        shape = tuple(max(at[d] for at, _ in found) + 1 for d in range(n_))
        values, places = np.empty((*lead, *shape)), np.empty((*lead, *shape), int)
        for row in np.ndindex(*lead):
            for at, cells in found:
                best = max((c for c in cells if c is not None), key=lambda c, r=row: x[(*r, *c)])
                values[(*row, *at)] = x[(*row, *best)]
                places[(*row, *at)] = np.ravel_multi_index(best, x.shape[-n_:])
        return (values, places) if return_indices or pair else values

    return reference


def avg_pool(n: int) -> Callable[..., Any]:
    def reference(
        x: Any,
        kernel_size: Any,
        stride: Any = None,
        padding: Any = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: int | None = None,
    ) -> Any:
        kernel = each(kernel_size, n)
        found = list(windows(x, n, kernel, each(stride or kernel, n), each(padding, n), (1,) * n,
                             ceil_mode))  # fmt: skip
        shape = tuple(max(at[d] for at, _ in found) + 1 for d in range(n))
        out = np.empty((*x.shape[:-n], *shape))
        for at, cells in found:
            inside = [c for c in cells if c is not None]
            count = divisor_override or len(cells if count_include_pad else inside)
            out[(..., *at)] = sum(x[(..., *c)] for c in inside) / count
        return out

    return reference


def adaptive(n: int) -> Callable[..., Any]:
    def reference(x: Any, output_size: Any) -> Any:
        shape = each(output_size, n)
        out = np.empty((*x.shape[:-n], *shape))
        for at in np.ndindex(*shape):
            part = tuple(
                slice(math.floor(i * s / k), math.ceil((i + 1) * s / k))
                for i, s, k in zip(at, x.shape[-n:], shape, strict=True)
            )
            out[(..., *at)] = x[(..., *part)].mean(axis=tuple(range(-n, 0)))
        return out

    return reference


def attention(
    query: Any,
    key: Any,
    value: Any,
    mask: Any = None,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    if enable_gqa:
        times = query.shape[-3] // key.shape[-3]
        key, value = (np.repeat(a, times, axis=-3) for a in (key, value))
    out = np.zeros((*query.shape[:-1], value.shape[-1]))
    for *lead, row in np.ndindex(*query.shape[:-1]):
        at = tuple(lead)
        total = 0.0
        for column in range(key.shape[-2]):
            score = float(query[(*at, row)] @ key[(*at, column)])
            score *= 1 / math.sqrt(query.shape[-1]) if scale is None else scale
            if is_causal and column > row:
                continue
            if mask is not None and mask.dtype == bool:
                if not mask[row, column]:
                    continue
            elif mask is not None:
                score += mask[row, column]
            total += math.exp(score)
            out[(*at, row)] += math.exp(score) * value[(*at, column)]
        if total:
            out[(*at, row)] /= total
    return out


def conv_transpose(
    x: Any,
    w: Any,
    bias: Any = None,
    stride: Any = 1,
    padding: Any = 0,
    output_padding: Any = 0,
    groups: int = 1,
    dilation: Any = 1,
) -> Any:
    n = w.ndim - 2
    batched = x if x.ndim == w.ndim else x[None]
    steps, edge, more, apart = (each(v, n) for v in (stride, padding, output_padding, dilation))
    size = [
        (batched.shape[2 + d] - 1) * steps[d] - 2 * edge[d] + apart[d] * (w.shape[2 + d] - 1)
        + more[d] + 1 for d in range(n)
    ]  # fmt: skip
    inner, outer = w.shape[0] // groups, w.shape[1]
    y = np.zeros((batched.shape[0], outer * groups, *size))
    for b, i, *at in np.ndindex(*batched.shape):
        for o, *k in np.ndindex(*w.shape[1:]):
            to = [at[d] * steps[d] + k[d] * apart[d] - edge[d] for d in range(n)]
            if all(0 <= t < m for t, m in zip(to, size, strict=True)):
                product = batched[(b, i, *at)] * w[(i, o, *k)]
                y[(b, i // inner * outer + o, *to)] += product
    if bias is not None:
        y = y + bias[(slice(None), *(None,) * n)]
    return y if x.ndim == w.ndim else y[0]


def adaptive_max(n: int) -> Callable[..., Any]:
    def reference(x: Any, size: Any, indices: bool = False) -> Any:
        wanted, sizes = each(size, n), x.shape[-n:]
        values = np.zeros((*x.shape[:-n], *wanted))
        places = np.zeros(values.shape, np.int64)
        for at in np.ndindex(*values.shape):
            plane = x[at[:-n]]
            ranges = [
                range(i * m // k, math.ceil((i + 1) * m / k))
                for i, k, m in zip(at[-n:], wanted, sizes, strict=True)
            ]
            best = max(itertools.product(*ranges), key=lambda p: plane[p])
            values[at], places[at] = plane[best], np.ravel_multi_index(best, sizes)
        return (values, places) if indices else values

    return reference


def sum_at(x: Any, places: Any, size: Any) -> Any:
    lead = x.shape[: x.ndim - len(size)]
    out = np.zeros((*lead, *size))
    for at in np.ndindex(*x.shape):
        if places[at] >= 0:
            out[at[: len(lead)]].reshape(-1)[places[at]] += x[at]
    return out


WINDOWS: dict[str, Callable[..., Any]] = {
    "_convolution": convolution,
    "_convolution_to_input": to_input,
    "_convolution_to_weight": to_weight,
    "conv1d": conv,
    "conv2d": conv,
    "conv3d": conv,
    "_max_pool": lambda *args: max_pool(0)(*args, pair=True),
    "_sum_at": sum_at,
    "max_pool1d": max_pool(1),
    "max_pool2d": max_pool(2),
    "avg_pool1d": avg_pool(1),
    "avg_pool2d": avg_pool(2),
    "adaptive_avg_pool1d": adaptive(1),
    "adaptive_avg_pool2d": adaptive(2),
    "adaptive_max_pool1d": adaptive_max(1),
    "adaptive_max_pool2d": adaptive_max(2),
    "conv_transpose1d": conv_transpose,
    "conv_transpose2d": conv_transpose,
    "conv_transpose3d": conv_transpose,
    "scaled_dot_product_attention": attention,
}
