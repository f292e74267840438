"""Grids: indices of triangles, coordinates, numbers even on a logarithmic scale; and buffers."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

from tensorplay import _conversion, _creation, _dtype
from tensorplay._tensor import Tensor, wrap
from tensorplay.ops.arguments import SCALARS, reject
from tensorplay.ops.dispatch import overridable
from tensorplay.ops.movement import expand, reshape

__all__ = [
    "frombuffer",
    "logspace",
    "meshgrid",
    "scalar_tensor",
    "tril_indices",
    "triu_indices",
]


@overridable
def scalar_tensor(
    s: Any, *, dtype: Any = None, device: Any = None, requires_grad: bool = False
) -> Tensor:
    """Return a 0-d tensor of the number `s`, of the default floating type by default.

    Parameters
    ----------
    s
        The number.
    dtype
        Type of the elements; the default floating type otherwise.
    device
        Device of the result; the default device otherwise.
    requires_grad
        Whether operations on the result are recorded.

    Returns
    -------
    Tensor
        0-d.
    """
    if not isinstance(s, SCALARS):
        reject("scalar_tensor", "s", "a number", s)
    if dtype is None:
        dtype = _dtype.get_default_dtype()
        dtype = dtype.to_complex() if isinstance(s, (complex, np.complexfloating)) else dtype
    return _creation.full((), s, dtype=dtype, device=device, requires_grad=requires_grad)


@overridable
def logspace(
    start: Any,
    end: Any,
    steps: int,
    base: float = 10.0,
    *,
    dtype: Any = None,
    device: Any = None,
    requires_grad: bool = False,
) -> Tensor:
    """Return `steps` powers of `base`, whose exponents are even from `start` to `end` inclusive.

    Parameters
    ----------
    start
        First exponent.
    end
        Last exponent.
    steps
        How many.
    base
        What is raised to them.
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
    if not isinstance(base, SCALARS):
        reject("logspace", "base", "a number", base)
    complex_ = any(isinstance(x, complex) for x in (start, end, base))
    wide = _dtype.complex128 if complex_ else _dtype.float64
    exponents = _creation.linspace(start, end, steps, dtype=wide)
    with np.errstate(all="ignore"):
        powers = np.power(np.asarray(base, wide.numpy), exponents._array)
    d = _dtype.get_default_dtype() if dtype is None else _dtype.as_dtype(dtype, "logspace")
    array = _conversion.converted("logspace", "end", powers, d, exact=True)
    return _creation.tensor(array, dtype=d, device=device, requires_grad=requires_grad)


def _triangle(name: str, find: Any) -> Any:
    def function(
        row: int, col: int, offset: int = 0, *, dtype: Any = None, device: Any = None
    ) -> Tensor:
        rows, columns = _creation.shape_of(name, (row, col))
        if not isinstance(offset, int):
            reject(name, "offset", "int", offset)
        d = _dtype.int64 if dtype is None else _dtype.as_dtype(dtype, name)
        places = np.stack(find(rows, offset, columns))
        return _creation.tensor(wrap(places.astype(np.int64)), dtype=d, device=device)

    return function


_tril = _triangle("tril_indices", np.tril_indices)
_triu = _triangle("triu_indices", np.triu_indices)


@overridable
def tril_indices(
    row: int, col: int, offset: int = 0, *, dtype: Any = None, device: Any = None
) -> Tensor:
    """Return the rows and columns, one vector each, of the lower triangle of a matrix.

    Parameters
    ----------
    row, col
        Size of the matrix.
    offset
        The last diagonal that counts, to the right of the main one if positive.
    dtype, device
        Of the result; int64 by default.

    Returns
    -------
    Tensor
        Shape (2, number of elements).
    """
    found: Tensor = _tril(row, col, offset, dtype=dtype, device=device)
    return found


@overridable
def triu_indices(
    row: int, col: int, offset: int = 0, *, dtype: Any = None, device: Any = None
) -> Tensor:
    """Return the rows and columns, one vector each, of the upper triangle of a matrix.

    The parameters are those of `tril_indices`; `offset` is the first diagonal that counts.

    Parameters
    ----------
    row
        Number of rows.
    col
        Number of columns.
    offset
        Its first diagonal, to the right of the main one if positive.
    dtype
        Type of the result; int64 by default.
    device
        Device of the result.

    Returns
    -------
    Tensor
        Shape (2, number of elements).
    """
    found: Tensor = _triu(row, col, offset, dtype=dtype, device=device)
    return found


@overridable
def meshgrid(*tensors: Any, indexing: str = "ij") -> tuple[Tensor, ...]:
    """Return the coordinates of a grid, as views of the vectors that span it.

    Parameters
    ----------
    *tensors
        Vectors or 0-d tensors, of one type; or one sequence of them.
    indexing
        ``'ij'``: the first vector runs along the first dimension; ``'xy'``: along the second.

    Returns
    -------
    tuple of Tensor
        One for each vector, all of the shape of the grid.

    Raises
    ------
    RuntimeError
        A tensor has more dimensions, the types differ, or there are none.
    ValueError
        `indexing` is something else.
    """
    if len(tensors) == 1 and isinstance(tensors[0], (list, tuple)):
        tensors = tuple(tensors[0])
    for x in tensors:
        if not isinstance(x, Tensor):
            reject("meshgrid", "tensors", "Tensors", x)
        if x.ndim > 1:
            raise RuntimeError(
                "[meshgrid] argument 'tensors': Expected 0D or 1D tensor in the tensor list but "
                f"got size {list(x.shape)}."
            )
        if x.dtype is not tensors[0].dtype:
            raise RuntimeError(
                "[meshgrid] argument 'tensors': expects all tensors to have the same dtype, got "
                f"{tensors[0].dtype!r} and {x.dtype!r}."
            )
    if not tensors:
        raise RuntimeError("[meshgrid] argument 'tensors': expects a non-empty list of tensors.")
    if indexing not in ("ij", "xy"):
        raise ValueError(
            f"[meshgrid] argument 'indexing': indexing must be one of 'xy' or 'ij', got "
            f"{indexing!r}."
        )
    places = list(range(len(tensors)))
    if indexing == "xy" and len(tensors) > 1:
        places[:2] = 1, 0
    shape = [1] * len(tensors)
    for x, place in zip(tensors, places, strict=True):
        shape[place] = x.numel()
    result = []
    for x, place in zip(tensors, places, strict=True):
        thin = [x.numel() if d == place else 1 for d in range(len(tensors))]
        result.append(expand.apply((reshape.apply((x, thin)), shape)))
    return tuple(result)


@overridable
def frombuffer(
    buffer: Any, *, dtype: Any, count: int = -1, offset: int = 0, requires_grad: bool = False
) -> Tensor:
    """Return a vector on the memory of an object with the buffer protocol.

    Parameters
    ----------
    buffer
        Bytes, a bytearray, memoryview, array, … A copy is made of what may not be written.
    dtype
        Type of the elements.
    count
        Number of elements; -1 for as many as there are.
    offset
        Bytes to skip.
    requires_grad
        Whether operations are recorded.

    Returns
    -------
    Tensor
        Vector of `count` elements.

    Raises
    ------
    ValueError
        The sizes do not fit.
    TypeError
        The object has no buffer.
    """
    d = _dtype.as_dtype(dtype, "frombuffer")
    try:
        raw = np.frombuffer(buffer, np.uint8)
    except (TypeError, AttributeError, BufferError):
        reject("frombuffer", "buffer", "an object with the buffer protocol", buffer)
    except ValueError:  # no bytes at all
        raw = np.empty(0, np.uint8)
    left = raw.size - offset
    if offset < 0 or left <= 0:
        raise ValueError(
            f"[frombuffer] argument 'offset': offset ({offset} bytes) must be non-negative and "
            f"less than the length of the buffer ({raw.size} bytes)."
        )
    if count == -1:
        if left % d.itemsize:
            raise ValueError(
                f"[frombuffer] argument 'buffer': buffer length ({left} bytes) after offset must "
                f"be a multiple of element size ({d.itemsize})."
            )
        count = left // d.itemsize
    if count <= 0 or count * d.itemsize > left:
        raise ValueError(
            f"[frombuffer] argument 'count': requested {count} elements of {d.itemsize} bytes from "
            f"{left} bytes."
        )
    array = raw[offset : offset + count * d.itemsize].view(d.numpy)
    if not array.flags.writeable:
        warnings.warn(
            "the buffer given to frombuffer is not writable, so that a copy of it is made.",
            UserWarning,
            stacklevel=2,
        )
        array = array.copy()
    result = wrap(array, d)
    return result.requires_grad_() if requires_grad else result
