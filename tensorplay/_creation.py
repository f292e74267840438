"""Functions that make tensors."""

from __future__ import annotations

import math
import operator
from typing import TYPE_CHECKING, Any

import numpy as np

from tensorplay import _device, _dtype
from tensorplay._conversion import array_of, converted
from tensorplay._dlpack import from_dlpack, from_numpy, shareable
from tensorplay._methods import attach
from tensorplay._tensor import MetaArray, Size, Spec, Tensor, wrap
from tensorplay.ops.arguments import SCALARS, check_held, reject
from tensorplay.ops.dispatch import overridable

if TYPE_CHECKING:
    from collections.abc import Callable

    from tensorplay._device import device as device_
    from tensorplay._dtype import dtype as dtype_

__all__ = [
    "arange",
    "as_tensor",
    "asarray",
    "empty",
    "empty_like",
    "eye",
    "from_dlpack",
    "from_numpy",
    "full",
    "full_like",
    "linspace",
    "ones",
    "ones_like",
    "tensor",
    "zeros",
    "zeros_like",
]


def _made(
    where: str,
    make: Callable[[], Any],
    spec: Spec,
    device: Any,
    requires_grad: bool,
) -> Tensor:
    """Return the tensor of `spec` on `device`; `make` gives its elements, if it has any."""
    target = _device.as_device(device, where)
    try:
        array = MetaArray(spec) if target.type == "meta" else make()
    except (MemoryError, ValueError) as error:  # NumPy's words, without a name
        kind = MemoryError if isinstance(error, MemoryError) else ValueError
        if str(error).startswith("["):
            raise
        message = (
            f"[{where}] expected a size that memory can hold, got {list(spec.shape)}: {error}."
        )
        raise kind(message) from error
    result = wrap(array, spec.dtype)
    if requires_grad:
        result.requires_grad = True
    return result


def shape_of(where: str, size: tuple[Any, ...]) -> tuple[int, ...]:
    """Return the shape given as separate numbers, or as one tuple, list or `Size`."""
    if len(size) == 1 and isinstance(size[0], (tuple, list, Size)):
        size = tuple(size[0])
    try:
        shape = tuple(operator.index(n) for n in size)
    except TypeError:
        reject(where, "size", "int[]", list(size))
    if any(n < 0 for n in shape):
        message = f"[{where}] argument 'size': expected non-negative sizes, got {list(shape)}."
        raise RuntimeError(message)
    return shape


def _dtype_or_default(where: str, dtype: Any) -> dtype_:
    return _dtype.get_default_dtype() if dtype is None else _dtype.as_dtype(dtype, where)


@overridable
def empty(*size: Any, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Tensor:
    """Return a tensor of `size` with elements of no particular value.

    Parameters
    ----------
    *size
        The shape, as numbers or as one sequence.
    dtype
        Type of the elements; the default floating type otherwise.
    device
        Device of the result; the default device otherwise.
    requires_grad
        Whether operations on the result are recorded.

    Returns
    -------
    Tensor
        Contiguous, on new memory.
    """
    spec = Spec(shape_of("empty", size), _dtype_or_default("empty", dtype))
    return _made(
        "empty", lambda: np.empty(spec.shape, spec.dtype.numpy), spec, device, requires_grad
    )


@overridable
def zeros(*size: Any, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Tensor:
    """Return zeros of `size`.

    Parameters
    ----------
    *size
        The shape, as numbers or as one sequence.
    dtype
        Type of the elements; the default floating type otherwise.
    device
        Device of the result; the default device otherwise.
    requires_grad
        Whether operations on the result are recorded.

    Returns
    -------
    Tensor
        Contiguous, on new memory.
    """
    spec = Spec(shape_of("zeros", size), _dtype_or_default("zeros", dtype))
    return _made(
        "zeros", lambda: np.zeros(spec.shape, spec.dtype.numpy), spec, device, requires_grad
    )


@overridable
def ones(*size: Any, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Tensor:
    """Return ones of `size`.

    Parameters
    ----------
    *size
        The shape, as numbers or as one sequence.
    dtype
        Type of the elements; the default floating type otherwise.
    device
        Device of the result; the default device otherwise.
    requires_grad
        Whether operations on the result are recorded.

    Returns
    -------
    Tensor
        Contiguous, on new memory.
    """
    spec = Spec(shape_of("ones", size), _dtype_or_default("ones", dtype))
    return _made("ones", lambda: np.ones(spec.shape, spec.dtype.numpy), spec, device, requires_grad)


@overridable
def full(
    size: Any,
    fill_value: Any,
    *,
    dtype: Any = None,
    device: Any = None,
    requires_grad: bool = False,
) -> Tensor:
    """Return a tensor of `size` whose elements are all `fill_value`, of its type by default.

    Parameters
    ----------
    size
        The shape, a sequence or a number.
    fill_value
        The number.
    dtype
        Type of the elements; int64, bool, or a default floating type by that of `fill_value`
        otherwise.
    device
        Device of the result; the default device otherwise.
    requires_grad
        Whether operations on the result are recorded.

    Returns
    -------
    Tensor
        Contiguous, on new memory.

    Raises
    ------
    RuntimeError
        The type cannot hold `fill_value`.
    """
    value = fill_value.item() if isinstance(fill_value, Tensor) else fill_value
    if not isinstance(value, SCALARS):
        reject("full", "fill_value", "Scalar", fill_value)
    d = _dtype.scalar_dtype(value) if dtype is None else _dtype.as_dtype(dtype, "full")
    shape = shape_of("full", (size,))
    check_held("full", value.item() if isinstance(value, np.generic) else value, d)
    element = converted("full", "fill_value", np.asarray(value), d, exact=True)
    spec = Spec(shape, d)
    return _made("full", lambda: np.full(shape, element), spec, device, requires_grad)


def _like(
    where: str,
    input_: Tensor,
    make: Callable[..., Tensor],
    dtype: Any,
    device: Any,
    requires_grad: bool,
) -> Tensor:
    if not isinstance(input_, Tensor):
        reject(where, "input", "Tensor", input_)
    return make(
        tuple(input_.shape),
        dtype=input_.dtype if dtype is None else dtype,
        device=input_.device if device is None else device,
        requires_grad=requires_grad,
    )


@overridable
def empty_like(
    input: Tensor,
    *,
    dtype: Any = None,
    device: Any = None,
    requires_grad: bool = False,
) -> Tensor:
    """Return an uninitialised tensor of the shape, type and device of `input`.

    Parameters
    ----------
    input
        Tensor whose shape, type and device are taken.
    dtype
        Another type.
    device
        Another device.
    requires_grad
        Whether operations on the result are recorded.

    Returns
    -------
    Tensor
        Of the shape of `input`, on new memory.
    """
    return _like("empty_like", input, empty, dtype, device, requires_grad)


@overridable
def zeros_like(
    input: Tensor,
    *,
    dtype: Any = None,
    device: Any = None,
    requires_grad: bool = False,
) -> Tensor:
    """Return zeros of the shape, type and device of `input`.

    Parameters
    ----------
    input
        Tensor whose shape, type and device are taken.
    dtype
        Another type.
    device
        Another device.
    requires_grad
        Whether operations on the result are recorded.

    Returns
    -------
    Tensor
        Of the shape of `input`, on new memory.
    """
    return _like("zeros_like", input, zeros, dtype, device, requires_grad)


@overridable
def ones_like(
    input: Tensor,
    *,
    dtype: Any = None,
    device: Any = None,
    requires_grad: bool = False,
) -> Tensor:
    """Return ones of the shape, type and device of `input`.

    Parameters
    ----------
    input
        Tensor whose shape, type and device are taken.
    dtype
        Another type.
    device
        Another device.
    requires_grad
        Whether operations on the result are recorded.

    Returns
    -------
    Tensor
        Of the shape of `input`, on new memory.
    """
    return _like("ones_like", input, ones, dtype, device, requires_grad)


@overridable
def full_like(
    input: Tensor,
    fill_value: Any,
    *,
    dtype: Any = None,
    device: Any = None,
    requires_grad: bool = False,
) -> Tensor:
    """Return a tensor of the shape, type and device of `input`, all elements `fill_value`.

    Parameters
    ----------
    input
        Tensor whose shape, type and device are taken.
    fill_value
        The number.
    dtype
        Another type.
    device
        Another device.
    requires_grad
        Whether operations on the result are recorded.

    Returns
    -------
    Tensor
        Of the shape of `input`, on new memory.
    """

    def make(size: tuple[int, ...], **options: Any) -> Tensor:
        return full(size, fill_value, **options)

    return _like("full_like", input, make, dtype, device, requires_grad)


@overridable
def arange(
    start: Any,
    end: Any = None,
    step: Any = 1,
    *,
    dtype: Any = None,
    device: Any = None,
    requires_grad: bool = False,
) -> Tensor:
    """Return the numbers from `start` (0 if only one number is given) up to, not with, `end`.

    Parameters
    ----------
    start
        First number.
    end
        Number to stop before.
    step
        Distance; not zero.
    dtype
        Type of the elements; int64 where all numbers are integers, else the default floating type.
    device
        Device of the result; the default device otherwise.
    requires_grad
        Whether operations on the result are recorded.

    Returns
    -------
    Tensor
        Vector of ``ceil((end - start) / step)`` elements.

    Raises
    ------
    RuntimeError
        `step` is zero or leads away from `end`.

    Examples
    --------
    >>> import tensorplay as tp
    >>> tp.arange(0, 1, 0.25)
    tensor([0.00, 0.25, 0.50, 0.75])
    """
    if end is None:
        start, end = 0, start
    start, end, step = (x.item() if isinstance(x, Tensor) else x for x in (start, end, step))
    for name, value in (("start", start), ("end", end), ("step", step)):
        if not isinstance(value, (int, float, np.integer, np.floating)):
            reject("arange", name, "a number", value)
    if step == 0:
        message = "[arange] argument 'step': step must be nonzero."
        raise RuntimeError(message)
    if (end - start) * step < 0:
        message = (
            f"[arange] upper bound and lower bound inconsistent with step sign: start {start}, "
            f"end {end}, step {step}."
        )
        raise RuntimeError(message)
    if not all(math.isfinite(x) for x in (start, end, step)):
        message = f"[arange] expected finite numbers, got start {start}, end {end}, step {step}."
        raise RuntimeError(message)
    whole = all(isinstance(x, (int, np.integer)) for x in (start, end, step))
    d = (_dtype.int64 if whole else _dtype.get_default_dtype()) if dtype is None else (
        _dtype.as_dtype(dtype, "arange")
    )  # fmt: skip
    array = converted("arange", "end", np.arange(start, end, step), d, exact=True)
    return _made("arange", lambda: array, Spec(array.shape, d), device, requires_grad)


@overridable
def linspace(
    start: Any,
    end: Any,
    steps: int,
    *,
    dtype: Any = None,
    device: Any = None,
    requires_grad: bool = False,
) -> Tensor:
    """Return `steps` numbers evenly spaced from `start` to `end`, both included.

    Parameters
    ----------
    start
        First number.
    end
        Last number.
    steps
        How many.
    dtype
        Type of the elements; the default floating type otherwise.
    device
        Device of the result; the default device otherwise.
    requires_grad
        Whether operations on the result are recorded.

    Returns
    -------
    Tensor
        Vector of `steps` elements.

    Raises
    ------
    RuntimeError
        `steps` is negative.
    """
    start, end = (x.item() if isinstance(x, Tensor) else x for x in (start, end))
    for name, value in (("start", start), ("end", end)):
        if not isinstance(value, SCALARS):
            reject("linspace", name, "a number", value)
    try:
        steps = operator.index(steps)
    except TypeError:
        reject("linspace", "steps", "int", steps)
    if steps < 0:
        message = f"[linspace] argument 'steps': number of steps must be non-negative, got {steps}."
        raise RuntimeError(message)
    d = _dtype_or_default("linspace", dtype)
    array = converted("linspace", "end", np.linspace(start, end, steps), d, exact=True)
    return _made("linspace", lambda: array, Spec(array.shape, d), device, requires_grad)


@overridable
def eye(
    n: int,
    m: int | None = None,
    *,
    dtype: Any = None,
    device: Any = None,
    requires_grad: bool = False,
) -> Tensor:
    """Return the `n` by `m` matrix (square by default) with ones on its diagonal.

    Parameters
    ----------
    n
        Number of rows.
    m
        Number of columns; `n` otherwise.
    dtype
        Type of the elements; the default floating type otherwise.
    device
        Device of the result; the default device otherwise.
    requires_grad
        Whether operations on the result are recorded.

    Returns
    -------
    Tensor
        Shape (n, m).
    """
    shape = shape_of("eye", (n, n if m is None else m))
    d = _dtype_or_default("eye", dtype)
    return _made(
        "eye", lambda: np.eye(*shape, dtype=d.numpy), Spec(shape, d), device, requires_grad
    )


# --- from data -----------------------------------------------------------------------------------


@overridable
def tensor(
    data: Any,
    *,
    dtype: Any = None,
    device: Any = None,
    pin_memory: bool = False,
    requires_grad: bool = False,
) -> Tensor:
    """Return a tensor with a copy of `data`.

    Parameters
    ----------
    data
        A number, nested sequences of numbers (and of tensors without dimensions), or an array.
    dtype
        Type of the elements; by default int64 for integers, bool for bools, the default
        floating type for floats, the complex type of its precision for complex numbers, and an
        array's own type.
    device
        ``"cpu"`` or ``"meta"``.
    pin_memory
        Accepted and without effect.
    requires_grad
        Whether operations are recorded.

    Returns
    -------
    Tensor
        On memory of its own.

    Raises
    ------
    TypeError
        `data` holds something that is no number.
    ValueError
        The sequences are ragged, or a number is out of range.

    Examples
    --------
    >>> import tensorplay as tp
    >>> tp.tensor([[1.0, 2.0], [3.0, 4.0]], requires_grad=True)
    tensor([[1., 2.],
            [3., 4.]], requires_grad=True)
    """
    d = None if dtype is None else _dtype.as_dtype(dtype, "tensor")
    if isinstance(data, Tensor) and data.is_meta:
        spec = Spec(tuple(data.shape), d or data.dtype)
        return _made("tensor", lambda: data._elements("tensor"), spec, device, requires_grad)
    array = array_of("tensor", data, d)
    spec = Spec(array.shape, _dtype.from_numpy_dtype(array.dtype))
    return _made("tensor", lambda: array, spec, device, requires_grad)


@overridable
def as_tensor(data: Any, dtype: Any = None, device: Any = None) -> Tensor:
    """Return `data` as a tensor, on the same memory where type and device allow.

    Parameters
    ----------
    data
        As for `tensor`.
    dtype
        Type of the elements; that of `data` otherwise.
    device
        Device of the result; the default device otherwise.

    Returns
    -------
    Tensor
        `data` itself where it is a tensor that fits.
    """
    if isinstance(data, np.ndarray) and data.flags.writeable and shareable(data):
        data = from_numpy(data)
        device = _device.as_device(device, "as_tensor")
    if not isinstance(data, Tensor):
        return tensor(data, dtype=dtype, device=device)
    result: Tensor = data.to(
        device=data.device if device is None else device,
        dtype=data.dtype if dtype is None else dtype,
    )
    return result


@overridable
def asarray(
    obj: Any,
    *,
    dtype: Any = None,
    device: Any = None,
    copy: bool | None = None,
    requires_grad: bool = False,
) -> Tensor:
    """Return `obj` as a tensor; `copy` forces (True) or forbids (False) a copy.

    Parameters
    ----------
    obj
        As for `tensor`.
    dtype
        Type of the elements; that of `obj` otherwise.
    device
        Device of the result; the default device otherwise.
    copy
        None copies where it must.
    requires_grad
        Whether operations on the result are recorded.

    Returns
    -------
    Tensor
        On the memory of `obj` where nothing was copied.

    Raises
    ------
    ValueError
        ``copy=False`` and a copy is unavoidable.
    """
    refused = "[asarray] copy=False, but this type, device or kind of object needs a copy."
    if not isinstance(obj, (Tensor, np.ndarray, list, tuple)) and hasattr(obj, "__dlpack__"):
        try:
            obj = from_dlpack(obj, copy=False if copy is False else None)
        except BufferError as error:
            raise ValueError(refused) from error
    result = as_tensor(obj, dtype, device)
    source = obj._array if isinstance(obj, Tensor) else obj
    shared = result is obj or (isinstance(source, np.ndarray) and _same_memory(source, result))
    if copy is False and not shared:
        raise ValueError(refused)
    if copy and shared:
        result = result.clone()
    if requires_grad and not result.requires_grad:
        # The flag is the result's own: the tensor that was given stays as it is.
        result = (result.detach() if result is obj else result).requires_grad_()
    return result


def _same_memory(source: Any, result: Tensor) -> bool:
    """Tell whether `result` was made on the memory of the array `source`."""
    array = result._array
    if isinstance(array, MetaArray) or array.dtype != source.dtype:
        return False
    return bool(array.ctypes.data == source.ctypes.data)


# --- of the type and device of another tensor ----------------------------------------------------


def _new(make: Callable[..., Tensor], name: str) -> Callable[..., Tensor]:
    def method(
        self: Tensor,
        *size: Any,
        dtype: Any = None,
        device: device_ | str | None = None,
        requires_grad: bool = False,
    ) -> Tensor:
        return make(
            *size,
            dtype=self.dtype if dtype is None else dtype,
            device=self.device if device is None else device,
            requires_grad=requires_grad,
        )

    method.__name__ = name
    method.__qualname__ = f"Tensor.{name}"
    method.__doc__ = f"As `tensorplay.{make.__name__}`, with type and device of this tensor."
    return overridable(method)


for _make in (empty, zeros, ones, full, tensor):
    attach(f"new_{_make.__name__}", _new(_make, f"new_{_make.__name__}"))
