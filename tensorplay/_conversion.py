"""From what a person gives as elements to an array of NumPy's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from tensorplay import _dtype
from tensorplay._dlpack import from_dlpack
from tensorplay._tensor import Tensor
from tensorplay.ops.arguments import SCALARS, reject

if TYPE_CHECKING:
    from tensorplay._dtype import dtype as dtype_

__all__ = ["array_of", "converted"]


def _infer(where: str, data: Any) -> dtype_ | None:
    """Return the type of nested data: the promoted type of its numbers; None if it has none."""
    if isinstance(data, (list, tuple)):
        found: dtype_ | None = None
        for item in data:
            d = _infer(where, item)
            if d is not None:
                found = d if found is None else _dtype.promote_types(found, d)
        return found
    if isinstance(data, Tensor):
        return data.dtype
    if isinstance(data, np.ma.MaskedArray):
        reject(where, "data", "an array without a mask", data, "Write x.filled(value).")
    if isinstance(data, (np.ndarray, np.generic)):
        try:
            return _dtype.from_numpy_dtype(data.dtype)
        except TypeError as error:
            reject(where, "data", "numbers", data, str(error))
    if not isinstance(data, SCALARS):
        reject(where, "data", "numbers, nested sequences of numbers, or an array", data)
    return _dtype.scalar_dtype(data)


def _plain(data: Any) -> Any:
    """Return nested data with arrays in place of tensors."""
    if isinstance(data, Tensor):
        return data.detach().numpy()
    return [_plain(x) for x in data] if isinstance(data, (list, tuple)) else data


def _as_data(data: Any) -> Any:
    """Return ranges and foreign arrays as lists and NumPy arrays, other objects as they are."""
    if isinstance(data, range):
        return list(data)
    if isinstance(data, (Tensor, np.ndarray, np.generic, list, tuple, *SCALARS)):
        return data
    if hasattr(data, "__dlpack__"):
        return from_dlpack(data)
    return np.asarray(data) if hasattr(data, "__array__") else data


def converted(where: str, argument: str, array: Any, d: dtype_, *, exact: bool) -> Any:
    """Return `array` in type `d`, on memory of its own.

    With `exact`, an integer beyond the range of an integer type is refused; else it wraps, as in
    the conversion of a tensor. NaN and infinity never become integers.

    Raises
    ------
    ValueError
        A number has no counterpart in `d`.
    TypeError
        The numbers are complex and `d` is real.
    """
    if array.dtype == object:  # whole numbers beyond 64 bits
        message = (
            f"[{where}] argument '{argument}': expected numbers that fit {d!r}, got an integer "
            "beyond 64 bits."
        )
        raise ValueError(message)
    if array.dtype.kind == "c" and not d.is_complex and d.category != _dtype.BOOL:
        message = f"[{where}] argument '{argument}': cannot convert complex numbers to {d!r}."
        raise TypeError(message)
    if d.category == _dtype.INTEGER and array.size:
        floating = array.dtype.kind in "fV"
        if floating and not np.isfinite(array).all():
            message = (
                f"[{where}] argument '{argument}': cannot convert a non-finite float to {d!r}."
            )
            raise ValueError(message)
        limits = _dtype.iinfo(d)
        low, high = array.min().item(), array.max().item()
        if (exact or floating) and (int(low) < limits.min or int(high) > limits.max):
            message = (
                f"[{where}] argument '{argument}': expected numbers from {limits.min} to "
                f"{limits.max}, the range of {d!r}, got {low if int(low) < limits.min else high}."
            )
            raise ValueError(message)
    with np.errstate(all="ignore"):  # beyond the range of a floating type lies infinity
        return array.astype(d.numpy, copy=True)


def array_of(where: str, data: Any, dtype: dtype_ | None) -> Any:
    data = _as_data(data)
    inferred = _infer(where, data)
    d = dtype or inferred or _dtype.get_default_dtype()
    plain = _plain(data)
    try:
        array = np.asarray(plain)
    except ValueError as error:
        message = (
            f"[{where}] argument 'data': expected nested sequences of equal length, got ragged "
            f"ones: {error}."
        )
        raise ValueError(message) from error
    return converted(
        where, "data", array, d, exact=not isinstance(data, (Tensor, np.ndarray, np.generic))
    )
