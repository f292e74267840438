"""Views by strides: sliding windows, and any layout on the memory of a tensor."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided as numpy_view

from tensorplay._tensor import MetaArray, Spec, Tensor, wrap
from tensorplay.ops.dims import strides_of, wrap_dim
from tensorplay.ops.dispatch import overridable
from tensorplay.ops.movement import Ints, samples_of
from tensorplay.ops.primitive import Composite, Primitive, Sample, Vjp

__all__ = ["as_strided", "empty_strided", "layout_of", "storage_of", "unfold"]


def _root(array: Any) -> Any:
    """Return the array that owns the memory of `array`."""
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array


def layout_of(x: Any, shape: Ints, strides: Ints, skip: int = 0) -> Any:
    """Return another layout on the memory of the array `x`, as writable as `x`.

    Strides are in bytes; `skip` bytes lie between the first element of `x` and that of the result.
    """
    root = _root(x)
    # Writes that hit memory twice are refused by `check_writable`.
    if root.flags.c_contiguous or root.flags.f_contiguous:
        flat = root if root.flags.c_contiguous else root.T
        start = x.ctypes.data - root.ctypes.data + skip
        if 0 in shape:
            start = 0
        # Narrow floating types export no buffer; bytes do.
        out: Any = np.ndarray(shape, x.dtype, flat.reshape(-1).view(np.uint8), start, strides)
    else:
        step = x.itemsize if skip >= 0 else -x.itemsize
        count = abs(skip // x.itemsize)
        first = numpy_view(x, (count + 1,), (step,), writeable=x.flags.writeable)[count:]
        out = numpy_view(first, shape, strides, writeable=x.flags.writeable)
    out.flags.writeable = x.flags.writeable
    return out


# --- windows --------------------------------------------------------------------------------------


def _windows(x: Any, dimension: int, size: int, step: int) -> tuple[int, int]:
    """Return the dimension from the front and the number of windows."""
    dim = wrap_dim("unfold", dimension, x.ndim)
    length = x.shape[dim] if x.ndim else 1
    if step <= 0:
        raise RuntimeError(f"[unfold] argument 'step': step is {step} but must be > 0.")
    if not 0 <= size <= length:
        raise RuntimeError(
            f"[unfold] argument 'size': maximum size for tensor at dimension {dim} is {length} but "
            f"size is {size}."
        )
    return dim, (length - size) // step + 1


def _unfold_rule(x: Spec, dimension: int, size: int, step: int) -> Spec:
    dim, count = _windows(x, dimension, size, step)
    if not x.ndim:
        return Spec((size,), x.dtype, (1,))
    strides = strides_of(x)
    return Spec(
        (*x.shape[:dim], count, *x.shape[dim + 1 :], size),
        x.dtype,
        (*strides[:dim], strides[dim] * step, *strides[dim + 1 :], strides[dim]),
    )


def _unfold(x: Any, dimension: int, size: int, step: int) -> Any:
    dim, count = _windows(x, dimension, size, step)
    if not x.ndim:
        return layout_of(x, (size,), (x.itemsize,))
    s = x.strides
    return layout_of(
        x,
        (*x.shape[:dim], count, *x.shape[dim + 1 :], size),
        (*s[:dim], s[dim] * step, *s[dim + 1 :], s[dim]),
    )


unfold = Primitive(
    "unfold(Tensor(a) input, int dimension, int size, int step) -> Tensor(a)",
    "Windows of `size` elements, `step` apart, along `dimension`, without a copy: their number "
    "takes its place, their elements are the last dimension.",
    _unfold,
    rule=_unfold_rule,
    vjp={
        "input": Vjp(
            lambda g, s: unfold_adjoint.apply(
                (g, s.specs["input"].shape, s.dimension, s.size, s.step)
            )
        )
    },
    jvp="linear",
    check_first=False,
    function=False,
    samples=samples_of(
        ((2, 5), (1, 3, 1)),
        ((5,), (0, 2, 2)),
        ((4, 2), (0, 2, 3)),
        ((), (0, 1, 1)),
        ((3,), (0, 0, 1)),
    ),
)


def _unfold_adjoint(g: Any, shape: Ints, dimension: int, size: int, step: int) -> Any:
    out = np.zeros(shape, g.dtype)
    if not shape:
        return g.reshape(-1)[:size].sum(dtype=g.dtype).reshape(())
    dim = dimension % len(shape)
    lines, windows = np.moveaxis(out, dim, -1), np.moveaxis(g, dim, -2)
    reach = step * (windows.shape[-2] - 1) + 1
    for k in range(size):  # the k-th elements lie in places of their own
        lines[..., k : k + reach : step] += windows[..., k]
    return out


unfold_adjoint: Primitive = Primitive(
    "_unfold_adjoint(Tensor input, int[] shape, int dimension, int size, int step) -> Tensor",
    "Zeros of `shape` with `input` added where ``unfold`` reads: the adjoint of ``unfold``.",
    _unfold_adjoint,
    rule=lambda g, shape, dimension, size, step: Spec(shape, g.dtype),
    vjp={"input": Vjp(lambda g, s: unfold.apply((g, s.dimension, s.size, s.step)))},
    jvp="linear",
    check_first=False,
    function=False,
    method=False,
    samples=samples_of(
        ((2, 3, 3), ((2, 5), 1, 3, 1)), ((2, 2), ((5,), 0, 2, 2)), ((1,), ((), 0, 1, 1))
    ),
)

# --- any layout -----------------------------------------------------------------------------------


def storage_of(array: Any) -> tuple[int, int]:
    """Return where `array` starts in its memory, and how many elements the memory holds."""
    low, high = np.lib.array_utils.byte_bounds(_root(array))
    return (array.ctypes.data - low) // array.itemsize, (high - low) // array.itemsize


def _places(size: Ints, stride: Ints, offset: int) -> Any:
    """Return which element of the memory each element of a layout is."""
    places: Any = np.full(size, offset, np.int64)
    for dim, (n, step) in enumerate(zip(size, stride, strict=True)):
        places += (np.arange(n) * step).reshape((-1,) + (1,) * (len(size) - dim - 1))
    return places


def _tensor(places: Any) -> Any:
    from tensorplay.ops.selection import int_tensor

    return int_tensor(places.reshape(-1))


def _both_places(s: Any) -> tuple[Any, Any, int]:
    """Return the places of the input and of the result, and the number of places in use."""
    x = s.specs["input"]
    before = _places(x.shape, s.input_stride, s.input_offset)
    after = _places(s.size, s.stride, s.storage_offset)
    total = max([1, *(int(p.max()) + 1 for p in (before, after) if p.size)])
    return before, after, total


def _strided_grad(g: Any, s: Any) -> Any:
    before, after, total = _both_places(s)
    memory = g.new_zeros(total).index_add(0, _tensor(after), g.reshape(-1))
    found = memory.index_select(0, _tensor(before))
    # Several elements of an overlapping input are one number: each has its share.
    often = np.bincount(before.reshape(-1), minlength=1)
    if before.size and often.max() > 1:
        shares = g.new_tensor(1.0 / often[before.reshape(-1)], dtype=g.dtype)
        found = found * shares
    return found.reshape(s.specs["input"].shape)


def _strided_jvp(t: Any, s: Any) -> Any:
    before, after, total = _both_places(s)
    memory = t.input.new_zeros(total).index_put([_tensor(before)], t.input.reshape(-1))
    return memory.index_select(0, _tensor(after)).reshape(s.size)


def _strided(
    x: Any, size: Ints, stride: Ints, offset: int, input_stride: Ints, input_offset: int
) -> Any:
    start, total = storage_of(x)
    steps = list(zip(size, stride, strict=True))
    first = offset + sum((n - 1) * step for n, step in steps if step < 0)
    last = offset + sum((n - 1) * step for n, step in steps if step > 0)
    if 0 not in size and (first < 0 or last >= total):
        raise RuntimeError(
            f"[as_strided] setStorage: sizes {list(size)}, strides {list(stride)}, storage offset "
            f"{offset} require the elements {first} to {last} and are out of bounds for storage "
            f"of {total}."
        )
    strides = tuple(step * x.itemsize for step in stride)
    return layout_of(x, size, strides, (offset - start) * x.itemsize)


strided = Primitive(
    "_as_strided(Tensor(a) input, int[] size, int[] stride, int storage_offset, "
    "int[] input_stride, int input_offset) -> Tensor(a)",
    "Another layout on the memory of `input`, whose own layout is given too.",
    _strided,
    rule=lambda x, size, stride, offset, *rest: Spec(size, x.dtype, stride),
    vjp={"input": Vjp(_strided_grad)},
    jvp=_strided_jvp,
    check_first=False,
    function=False,
    method=False,
    samples=lambda make: [
        Sample((make(6), (2, 3), (3, 1), 0, (1,), 0), name="matrix"),
        Sample((make(5), (3, 3), (1, 1), 0, (1,), 0), name="overlap"),
        Sample((make(6), (2,), (2,), 1, (1,), 0), name="offset"),
        Sample((make(3), (2, 3), (0, 1), 0, (1,), 0), name="repeated"),
    ],
)


def _as_strided(x: Tensor, size: Ints, stride: Ints, storage_offset: int | None) -> Any:
    if len(size) != len(stride):
        raise RuntimeError(
            f"[as_strided] mismatch in length of strides and shape: got {len(size)} sizes and "
            f"{len(stride)} strides."
        )
    if any(n < 0 for n in size) or any(step < 0 for step in stride):
        raise RuntimeError(
            "[as_strided] expected sizes and strides that are not negative, got "
            f"{list(size)} and {list(stride)}: as_strided does not support negative strides."
        )
    start = 0 if isinstance(x._array, MetaArray) else storage_of(x._array)[0]
    offset = start if storage_offset is None else storage_offset
    return strided.apply((x, size, stride, offset, x.stride(), start))


as_strided = Composite(
    "as_strided(Tensor(a) input, int[] size, int[] stride, int? storage_offset=None) -> Tensor(a)",
    "A view of `size` with the strides `stride`, in elements, on the memory of `input`, from its "
    "first element or from the `storage_offset`-th of the memory on.",
    _as_strided,
    samples=lambda make: [
        Sample((make(6), (2, 3), (3, 1)), name="matrix"),
        Sample((make(4), (3, 2), (1, 1)), name="overlap"),
        Sample((make(6), (2,), (3,), 2), name="offset"),
    ],
)


@overridable
def empty_strided(
    size: Any,
    stride: Any,
    *,
    dtype: Any = None,
    device: Any = None,
    requires_grad: bool = False,
) -> Tensor:
    """Return a tensor of `size` and `stride`, in elements, with elements of no particular value.

    Parameters
    ----------
    size
        The shape.
    stride
        Steps in memory along each dimension, in elements.
    dtype
        Type of the elements; the default floating type otherwise.
    device
        Device of the result; the default device otherwise.
    requires_grad
        Whether operations on the result are recorded.

    Returns
    -------
    Tensor
        On new memory that just holds it.

    Raises
    ------
    RuntimeError
        Their numbers differ, or one is negative.
    """
    from tensorplay._creation import empty, shape_of

    shape, steps = shape_of("empty_strided", (size,)), shape_of("empty_strided", (stride,))
    if len(shape) != len(steps):
        raise RuntimeError(
            f"[empty_strided] mismatch in length of strides and shape: got {len(shape)} sizes and "
            f"{len(steps)} strides."
        )
    last = sum((n - 1) * step for n, step in zip(shape, steps, strict=True))
    memory = empty(0 if 0 in shape else last + 1, dtype=dtype, device=device)
    if memory.is_meta:
        result = wrap(MetaArray(Spec(shape, memory._dtype, steps)), memory._dtype)
    else:
        byte_steps = tuple(step * memory._dtype.itemsize for step in steps)
        result = wrap(layout_of(memory._array, shape, byte_steps), memory._dtype)
    return result.requires_grad_() if requires_grad else result
