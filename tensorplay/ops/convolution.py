"""Convolutions of one, two or three spatial dimensions, as products of matrices."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from tensorplay import _dtype, _native
from tensorplay._tensor import Spec, Tensor
from tensorplay.ops.arrangement import pad
from tensorplay.ops.elementwise import conj_of
from tensorplay.ops.movement import Ints
from tensorplay.ops.primitive import Composite, Primitive, Sample, Vjp

__all__ = ["convolution", "output_size", "per_dimension"]

# Elements of intermediate values that a fast cache holds.
_IN_CACHE = 1 << 16
# Windows of an image from which NumPy's products are worth their calls.
_FEW_WINDOWS = 64

# The compiled routines, which need no copy of what every window sees; the reference is NumPy's way.
_core = _native.core

# The convolution is y = Σ x w over three tensors. It and the two adjoints below are what is left
# of that sum when y, x or w is given up, so that each is the derivative of the other two.


def output_size(size: int, kernel: int, stride: int, padding: int, dilation: int) -> int:
    """Return how many windows of `kernel` elements fit into a padded dimension."""
    return (size + 2 * padding - dilation * (kernel - 1) - 1) // stride + 1


def per_dimension(name: str, argument: str, value: Ints, n: int) -> Ints:
    """Return one number for each of n dimensions, of n numbers or of a single one.

    Raises
    ------
    ValueError
        There are more, or fewer.
    """
    if len(value) == 1:
        return value * n
    if len(value) != n:
        raise ValueError(f"[{name}] argument '{argument}': expected {n} values, got {len(value)}.")
    return value


def _padded(x: Any, padding: Ints) -> Any:
    if not any(padding):
        return np.ascontiguousarray(x)
    full = (n + 2 * p for n, p in zip(x.shape[2:], padding, strict=True))
    out = np.zeros((*x.shape[:2], *full), x.dtype)
    inner: Any = (..., *(slice(p, p + n) for p, n in zip(padding, x.shape[2:], strict=True)))
    out[inner] = x
    return out


def _columns(x: Any, kernel: Ints, geometry: tuple[Ints, Ints, Ints, int]) -> tuple[Any, Ints]:
    """Return what every window sees, as (batch, groups, channels · kernel, windows)."""
    stride, padding, dilation, groups = geometry
    x = _padded(x, padding)
    batch, channels, *sizes = x.shape
    counts = tuple(map(output_size, sizes, kernel, stride, [0] * len(kernel), dilation))
    step_b, step_c, *steps = x.strides
    between = (step * n for step, n in zip(steps, stride, strict=True))
    within = (step * n for step, n in zip(steps, dilation, strict=True))
    # The memory is contiguous, so that it serves as a buffer; `as_strided` takes longer.
    windows: Any = np.ndarray(
        (batch, groups, channels // groups, *kernel, *counts),
        x.dtype,
        x,
        0,
        (step_b, step_c * (channels // groups), step_c, *within, *between),
    )
    rows = (channels // groups) * math.prod(kernel)
    return windows.reshape(batch, groups, rows, math.prod(counts)), counts


def _by_group(y: Any, groups: int) -> Any:
    """Return (batch, channels, …) as (batch, groups, channels of one group, windows)."""
    batch, channels = y.shape[:2]
    return y.reshape(batch, groups, channels // groups, math.prod(y.shape[2:]))


def _filters(w: Any, groups: int) -> Any:
    """Return the kernels as (groups, channels of one group of the result, channels · kernel)."""
    return w.reshape(groups, w.shape[0] // groups, math.prod(w.shape[1:]))


def _wide(*arrays: Any) -> tuple[Any, ...]:
    """Return arrays of narrow floating types in float32."""
    return tuple(a.astype(np.float32) if a.dtype in _dtype.NARROW else a for a in arrays)


# In all three the windows are the last dimension, so that results need no copy and every image of
# the batch has a product of its own, which does not depend on the others.


def _portions(batch: int, elements: int) -> Iterator[slice]:
    """Yield parts of a batch whose intermediate values, `elements` per image, stay in the cache."""
    count = max(1, _IN_CACHE // max(1, elements))
    for start in range(0, batch, count):
        yield slice(start, start + count)


def _contiguous(*arrays: Any) -> Any:
    return (np.ascontiguousarray(a) for a in arrays)


def _is_compiled(array: Any, kernel: Any) -> bool:
    """Tell whether the compiled routines may compute in this type.

    A kernel of one element is a plain product of matrices, without copies.
    """
    return _core is not None and array.dtype.char in "fd" and math.prod(kernel) > 1


def _forward(x: Any, w: Any, stride: Ints, padding: Ints, dilation: Ints, groups: int) -> Any:
    wide, w_wide = _wide(x, w)
    kernel = w.shape[2:]
    counts = tuple(map(output_size, x.shape[2:], kernel, stride, padding, dilation))
    batch, channels, windows = x.shape[0], w.shape[0], math.prod(counts)
    if _is_compiled(wide, kernel):
        result = np.empty((batch, channels, *counts), wide.dtype)
        operands = *_contiguous(wide, w_wide), result
        if _core.convolve(*operands, tuple(stride), tuple(padding), tuple(dilation), groups):
            return result.astype(x.dtype, copy=False)
    filters = _filters(w_wide, groups)
    out = np.empty((batch, groups, channels // groups, windows), wide.dtype)
    for part in _portions(batch, x.shape[1] * math.prod(kernel) * windows):
        columns = _columns(wide[part], kernel, (stride, padding, dilation, groups))[0]
        np.matmul(filters, columns, out=out[part])
    return out.reshape(batch, channels, *counts).astype(x.dtype, copy=False)


@functools.lru_cache(maxsize=64)
def _reach(kernel: Ints, counts: Ints, stride: Ints, dilation: Ints) -> list[tuple[Any, Any]]:
    """Return, per place of the kernel, the elements it meets in all windows, and its own index.

    Elements that one place meets do not overlap.
    """
    found: list[tuple[Any, Any]] = []
    for place in np.ndindex(*kernel):
        there = (
            slice(k * d, k * d + s * (n - 1) + 1, s)
            for k, d, s, n in zip(place, dilation, stride, counts, strict=True)
        )
        found.append(((..., *there), (slice(None), slice(None), *place)))
    return found


def _to_input(
    y: Any, w: Any, size: Ints, stride: Ints, padding: Ints, dilation: Ints, groups: int
) -> Any:
    wide, filters = _wide(y, w)
    kernel, counts, (batch, channels) = w.shape[2:], y.shape[2:], size[:2]
    if _is_compiled(wide, kernel) and max(stride) == 1:
        # The other way round: windows of the gradient, over kernels that are mirrored.
        turned = filters.reshape(groups, w.shape[0] // groups, *w.shape[1:]).swapaxes(1, 2)
        mirror: Any = (..., *[slice(None, None, -1)] * len(kernel))
        turned = turned[mirror]
        turned = turned.reshape(channels, w.shape[0] // groups, *kernel)
        inward = tuple(d * (k - 1) - p for k, p, d in zip(kernel, padding, dilation, strict=True))
        result = np.empty(tuple(size), wide.dtype)
        operands = *_contiguous(wide, turned), result
        if _core.convolve(*operands, tuple(stride), inward, tuple(dilation), groups):
            return result.astype(y.dtype, copy=False)
    full = [n + 2 * p for n, p in zip(size[2:], padding, strict=True)]
    out = np.zeros((batch, channels, *full), wide.dtype)
    turned, rows = _filters(filters, groups).transpose(0, 2, 1), _by_group(wide, groups)
    reach = _reach(tuple(kernel), tuple(counts), tuple(stride), tuple(dilation))
    for part in _portions(batch, channels * math.prod(kernel) * math.prod(counts)):
        found = np.matmul(turned, rows[part])
        found = found.reshape(len(found), channels, *kernel, *counts)
        chosen = out[part]
        for there, here in reach:
            chosen[there] += found[here]
    inner: Any = (..., *(slice(p, p + n) for p, n in zip(padding, size[2:], strict=True)))
    return np.ascontiguousarray(out[inner], y.dtype)


def _to_weight(
    y: Any, x: Any, size: Ints, stride: Ints, padding: Ints, dilation: Ints, groups: int
) -> Any:
    wide, source = _wide(y, x)
    # Of a single channel of the result the vectors would be empty but for one number.
    alone = groups > 1 and size[0] == groups and math.prod(y.shape[2:]) > _FEW_WINDOWS
    if _is_compiled(wide, size[2:]) and not alone:
        result = np.empty(tuple(size), wide.dtype)
        operands = *_contiguous(wide, source), result
        if _core.correlate(*operands, tuple(stride), tuple(padding), tuple(dilation), groups):
            return result.astype(y.dtype, copy=False)
    columns, counts = _columns(source, size[2:], (stride, padding, dilation, groups))
    if counts != y.shape[2:]:
        raise RuntimeError(
            f"[_convolution_to_weight] expected {list(counts)} windows, got {list(y.shape[2:])}."
        )
    product = np.matmul(_by_group(wide, groups), columns.swapaxes(-1, -2)).sum(0)
    return product.reshape(size).astype(y.dtype, copy=False)


def _rule(x: Spec, w: Spec, stride: Ints, padding: Ints, dilation: Ints, groups: int) -> Spec:
    counts = map(output_size, x.shape[2:], w.shape[2:], stride, padding, dilation)
    return Spec((x.shape[0], w.shape[0], *counts), x.dtype)


_GEOMETRY = "int[] stride, int[] padding, int[] dilation, int groups"


def _geometry(s: Any) -> tuple[Any, ...]:
    return s.stride, s.padding, s.dilation, s.groups


# Both batched tensors and the geometry have been checked by the operator that people call.
convolution: Primitive = Primitive(
    f"_convolution(Tensor input, Tensor weight, {_GEOMETRY}) -> Tensor",
    "Sums of products of `weight` with every window of `input`.",
    _forward,
    rule=_rule,
    vjp={
        "input": Vjp(
            lambda g, s: to_input.apply(
                (g, conj_of(s.weight), s.specs["input"].shape, *_geometry(s))
            ),
            "weight",
        ),
        "weight": Vjp(
            lambda g, s: to_weight.apply(
                (g, conj_of(s.input), s.specs["weight"].shape, *_geometry(s))
            ),
            "input",
        ),
    },
    jvp="bilinear",
    check_first=False,
    function=False,
    method=False,
    samples=lambda make: [
        Sample((make(2, 2, 4), make(3, 2, 2), (1,), (1,), (1,), 1), name="1d"),
        Sample((make(1, 2, 4, 5), make(2, 1, 2, 2), (2, 1), (0, 1), (1, 2), 2), name="2d"),
    ],
)

to_input: Primitive = Primitive(
    f"_convolution_to_input(Tensor input, Tensor weight, int[] size, {_GEOMETRY}) -> Tensor",
    "The adjoint of a convolution in its input, which has `size`.",
    _to_input,
    rule=lambda y, w, size, *geometry: Spec(size, y.dtype),
    vjp={
        "input": Vjp(
            lambda g, s: convolution.apply((g, conj_of(s.weight), *_geometry(s))), "weight"
        ),
        "weight": Vjp(
            lambda g, s: to_weight.apply(
                (conj_of(s.input), g, s.specs["weight"].shape, *_geometry(s))
            ),
            "input",
        ),
    },
    jvp="bilinear",
    check_first=False,
    function=False,
    method=False,
    samples=lambda make: [
        Sample((make(2, 3, 5), make(3, 2, 2), (2, 2, 4), (1,), (1,), (1,), 1), name="1d"),
        Sample(
            (make(1, 2, 2, 5), make(2, 1, 2, 2), (1, 2, 4, 5), (2, 1), (0, 1), (1, 2), 2),
            name="2d",
        ),
    ],
)

to_weight: Primitive = Primitive(
    f"_convolution_to_weight(Tensor input, Tensor source, int[] size, {_GEOMETRY}) -> Tensor",
    "The adjoint of a convolution of `source` in its weight, which has `size`.",
    _to_weight,
    rule=lambda y, x, size, *geometry: Spec(size, y.dtype),
    vjp={
        "input": Vjp(
            lambda g, s: convolution.apply((conj_of(s.source), g, *_geometry(s))), "source"
        ),
        "source": Vjp(
            lambda g, s: to_input.apply(
                (conj_of(s.input), g, s.specs["source"].shape, *_geometry(s))
            ),
            "input",
        ),
    },
    jvp="bilinear",
    check_first=False,
    function=False,
    method=False,
    samples=lambda make: [
        Sample((make(2, 3, 5), make(2, 2, 4), (3, 2, 2), (1,), (1,), (1,), 1), name="1d"),
        Sample(
            (make(1, 2, 2, 5), make(1, 2, 4, 5), (2, 1, 2, 2), (2, 1), (0, 1), (1, 2), 2),
            name="2d",
        ),
    ],
)

# --- what people call -----------------------------------------------------------------------------


def check_operands(name: str, x: Tensor, weight: Tensor, bias: Any, n: int) -> None:
    """See that input, weight and bias of a convolution over `n` dimensions go together.

    Raises
    ------
    RuntimeError
        Numbers of dimensions that do not fit.
    TypeError
        Different dtypes, or bool.
    """
    if weight.ndim != n + 2 or x.ndim not in (n + 1, n + 2):
        raise RuntimeError(
            f"[{name}] Expected {n + 1}D (unbatched) or {n + 2}D (batched) input and {n + 2}D "
            f"weight, but got input of size {list(x.shape)} and weight of size "
            f"{list(weight.shape)}."
        )
    for argument, value in (("weight", weight), ("bias", bias)):
        if value is not None and value._dtype is not x._dtype:
            raise TypeError(
                f"[{name}] argument '{argument}': expected the same dtype as the input, "
                f"{x._dtype!r}, got {value._dtype!r}. Write {argument}.to(x.dtype)."
            )
    if x._dtype is _dtype.bool_:
        raise TypeError(f"[{name}] argument 'input': expected numbers, got a bool tensor.")


def _check_channels(name: str, x: Tensor, weight: Tensor, bias: Any, groups: int, n: int) -> None:
    check_operands(name, x, weight, bias, n)
    if groups < 1 or weight.shape[0] % groups:
        raise RuntimeError(
            f"[{name}] argument 'groups': expected a positive number that divides the "
            f"{weight.shape[0]} channels of weight, got {groups}."
        )
    channels = x.shape[-n - 1]
    if channels != weight.shape[1] * groups:
        raise RuntimeError(
            f"[{name}] Given groups={groups}, weight of size {list(weight.shape)}, expected "
            f"input{list(x.shape)} to have {weight.shape[1] * groups} channels, but got "
            f"{channels} channels instead."
        )
    if bias is not None and tuple(bias.shape) != (weight.shape[0],):
        raise RuntimeError(
            f"[{name}] argument 'bias': expected bias to be 1-dimensional with {weight.shape[0]} "
            f"elements, but got bias of size {list(bias.shape)}."
        )


def _check_geometry(name: str, x: Tensor, weight: Tensor, geometry: tuple[Ints, ...]) -> None:
    stride, padding, dilation = geometry
    n = len(stride)
    if min(stride) < 1:
        raise RuntimeError(f"[{name}] non-positive stride is not supported, got {list(stride)}.")
    if min(dilation) < 1:
        raise RuntimeError(f"[{name}] dilation should be greater than zero, got {list(dilation)}.")
    if min(padding) < 0:
        raise RuntimeError(f"[{name}] negative padding is not supported, got {list(padding)}.")
    kernel = tuple(weight.shape[2:])
    padded = [size + 2 * p for size, p in zip(x.shape[-n:], padding, strict=True)]
    reach = [d * (k - 1) + 1 for d, k in zip(dilation, kernel, strict=True)]
    if 0 in kernel or any(a > b for a, b in zip(reach, padded, strict=True)):
        raise RuntimeError(
            f"[{name}] Calculated padded input size per channel: {padded}. Kernel size: {reach}. "
            "Kernel size can't be greater than actual input size, nor zero."
        )


class Convolution(Composite):
    """A convolution; its padding may be ``'valid'`` (none) or ``'same'``."""

    def apply(self, args: tuple[Any, ...]) -> Any:
        """Turn padding given by name into numbers."""
        x, weight, bias, stride, padding, dilation, groups = args
        if isinstance(padding, str) and isinstance(x, Tensor) and isinstance(weight, Tensor):
            n = weight.ndim - 2
            if padding not in ("same", "valid"):
                raise ValueError(
                    f"[{self.name}] argument 'padding': Invalid padding string {padding!r}, "
                    "should be one of 'valid', 'same'."
                )
            if padding == "same":
                steps = (stride,) * n if isinstance(stride, int) else tuple(stride)
                if any(step != 1 for step in steps):
                    raise RuntimeError(
                        f"[{self.name}] padding='same' is not supported for strided convolutions, "
                        f"got stride {stride}."
                    )
                apart = (dilation,) * n if isinstance(dilation, int) else tuple(dilation)
                widths: list[int] = []
                for size, d in zip(reversed(weight.shape[2:]), reversed(apart), strict=True):
                    total = d * (size - 1)
                    widths += [total // 2, total - total // 2]
                x = pad.apply((x, widths, "constant", None))
            padding = 0
        return super().apply((x, weight, bias, stride, padding, dilation, groups))


def _convolve(name: str, n: int) -> Any:
    def body(
        x: Tensor,
        weight: Tensor,
        bias: Any,
        stride: Ints,
        padding: Ints,
        dilation: Ints,
        groups: int,
    ) -> Any:
        _check_channels(name, x, weight, bias, groups, n)
        stride, padding, dilation = (
            per_dimension(name, argument, value, n)
            for argument, value in (
                ("stride", stride), ("padding", padding), ("dilation", dilation)
            )
        )  # fmt: skip
        _check_geometry(name, x, weight, (stride, padding, dilation))
        batched: Any = x if x.ndim == n + 2 else x.unsqueeze(0)
        out: Any = convolution.apply((batched, weight, stride, padding, dilation, groups))
        if bias is not None:
            out = out + bias.reshape(-1, *(1,) * n)
        return out if x.ndim == n + 2 else out.squeeze(0)

    return body


def _shapes(n: int) -> Any:
    size, kernel = (4, 5, 3)[:n], (2, 3, 1)[:n]

    def samples(make: Any) -> Iterable[Sample]:
        yield Sample((make(2, 2, *size), make(3, 2, *kernel), make(3)), name="bias")
        yield Sample((make(4, *size), make(2, 2, *kernel)), {"groups": 2}, name="one, groups")
        yield Sample(
            (make(1, 2, *size), make(2, 2, *kernel), None, 2, (1,) * n), name="stride and padding"
        )
        yield Sample((make(1, 1, *size), make(1, 1, *kernel), None, 1, "same"), name="same")
        yield Sample((make(1, 1, *size), make(1, 1, *kernel)), {"dilation": 2}, name="dilation")
        yield Sample((make(0, 1, *size), make(1, 1, *kernel)), name="empty")

    return samples


def _define(n: int) -> Convolution:
    name = f"conv{n}d"
    return Convolution(
        f"{name}(Tensor input, Tensor weight, Tensor? bias=None, int[{n}] stride=1, "
        f"int[{n}] padding=0, int[{n}] dilation=1, int groups=1) -> Tensor",
        f"Cross-correlation over {n} dimension{'s' * (n > 1)}: sums of products of the kernels "
        "`weight` (results, channels of a group, …) with every window of `input` (batch, channels, "
        "…); `padding` is the width of zeros on both sides, ``'same'`` or ``'valid'``.",
        _convolve(name, n),
        method=False,
        samples=_shapes(n),
    )


conv1d = _define(1)
conv2d = _define(2)
conv3d = _define(3)
