"""Calls of kernels: by the compiled extension, or through ctypes and NumPy without it."""

from __future__ import annotations

import ctypes
import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from tensorplay import _native
from tensorplay.compiler.cpp.build import Library
from tensorplay.compiler.cpp.codegen import PIECE, Kernel
from tensorplay.compiler.cpp.ir import Operand

__all__ = ["Destination", "Shape", "bind"]

_PROTOTYPE: Final = ctypes.CFUNCTYPE(
    None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64
)
_FINISH: Final = ctypes.CFUNCTYPE(
    None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p
)


@dataclass(frozen=True)
class Shape:
    """How the operands of a kernel lie in its space.

    Parameters
    ----------
    inner
        How many of the last dimensions are a row; -1: all, and rows may be cut.
    behind
        For each input, the dimensions of size 1 that are missing behind its shape.
    kept
        For each output per row, whether the reduced dimensions are kept with size 1.
    cost
        What an element takes, in additions.
    """

    inner: int
    behind: tuple[int, ...]
    kept: tuple[bool, ...]
    cost: int


@dataclass(frozen=True)
class Destination:
    """An array that an output is written to: which output, and which argument."""

    output: int
    argument: int


def bind(
    library: Library, kernel: Kernel, shape: Shape, destinations: tuple[Destination, ...] = ()
) -> Callable[..., Any]:
    """Return a function of arrays that gives the new arrays, or None where it does not apply.

    It does not where types or shapes are others than those that the kernel was made for, where
    there are no elements, and where a destination overlaps an input in another way than as the very
    same array.

    Parameters
    ----------
    library, kernel
        The function.
    shape
        How operands lie.
    destinations
        The arguments behind the inputs that outputs are written to.
    """
    if _native.core is None:
        return functools.partial(_run, _Bound(library, kernel, shape, destinations))
    into = {d.output: d.argument for d in destinations}
    inputs = tuple(
        (np.dtype(o.type.name), int(o.per_row), behind, -1)
        for o, behind in zip(kernel.inputs, shape.behind, strict=True)
    )
    # Outputs of a partial kernel: those of its rows, the partial ones, and then the finished ones.
    rows = [i for i, o in enumerate(kernel.outputs) if not o.per_row]
    outputs = tuple(
        (np.dtype(o.type.name), int(o.per_row), _kept(shape, kernel, i),
         into.get(i, -1) if i in rows or not kernel.partial else -1)
        for i, o in enumerate(kernel.outputs)
    )  # fmt: skip
    finished = tuple(
        (np.dtype(t.name), 1, int(shape.kept[len(rows) + i]), into.get(len(rows) + i, -1))
        for i, t in enumerate(kernel.finished)
    )
    finish = library.address(f"{kernel.name}_finish") if kernel.partial else 0
    call = _native.core.LoopCall(
        library.address(kernel.name), finish, library.lanes, shape.inner, kernel.scratch,
        kernel.partial, shape.cost, inputs, outputs, finished, kernel.numbers, library.handle,
    )  # fmt: skip
    run: Callable[..., Any] = call.run
    return run


def _kept(shape: Shape, kernel: Kernel, output: int) -> int:
    return int(shape.kept[output]) if not kernel.partial and kernel.outputs[output].per_row else 0


class _Bound:
    """A kernel for ctypes."""

    def __init__(
        self, library: Library, kernel: Kernel, shape: Shape, destinations: tuple[Destination, ...]
    ) -> None:
        self.library = library
        self.kernel = kernel
        self.shape = shape
        self.into = {d.output: d.argument for d in destinations}
        self.function = _PROTOTYPE(library.address(kernel.name))
        self.finish = _FINISH(library.address(f"{kernel.name}_finish")) if kernel.partial else None
        self.numbers = (ctypes.c_double * max(1, len(kernel.numbers)))(*kernel.numbers)


@dataclass(frozen=True)
class _Rows:
    """How a call is cut into rows, and these into pieces."""

    space: tuple[int, ...]
    outer: tuple[int, ...]
    inner: int
    rows: int
    length: int
    pieces: int
    piece: int
    room: int


def _rows_of(bound: _Bound, padded: list[Any]) -> _Rows | None:
    kernel, lanes = bound.kernel, bound.library.lanes
    try:
        space = np.broadcast_shapes(*(a.shape for a in padded))
    except ValueError:
        return None
    if 0 in space or bound.shape.inner > len(space):
        return None
    inner = len(space) if bound.shape.inner < 0 else bound.shape.inner
    outer = space[: len(space) - inner]
    length = math.prod(space[len(space) - inner :])
    if bound.shape.inner < 0 and not kernel.partial and any(o.per_row for o in kernel.inputs):
        # What the kernel reads once per row is the same along the last dimension that is any.
        length = next((n for n in reversed(space) if n != 1), 1)
    piece = PIECE if kernel.partial else length
    pieces = -(-length // piece)
    room = piece if pieces > 1 else -(-length // lanes) * lanes
    return _Rows(space, outer, inner, math.prod(space) // length, length, pieces, piece, room)


def _run(bound: _Bound, *arrays: Any) -> Any:
    """Do what the extension does, with copies of what is not a contiguous row."""
    kernel = bound.kernel
    padded = []
    for array, operand, behind in zip(arrays, kernel.inputs, bound.shape.behind, strict=False):
        if type(array) is not np.ndarray or array.dtype != np.dtype(operand.type.name):
            return None
        padded.append(array.reshape(array.shape + (1,) * behind))
    cut = _rows_of(bound, padded)
    if cut is None:
        return None
    inputs = [_matrix(a, o.per_row, cut) for a, o in zip(padded, kernel.inputs, strict=True)]
    outputs = [
        np.zeros((cut.rows * cut.pieces, _bytes(kernel, o, cut)), np.uint8) for o in kernel.outputs
    ]
    scratch = np.empty(max(1, kernel.scratch * cut.room), np.uint8)
    whole = bound.shape.inner < 0 and not kernel.partial
    for row in range(cut.rows * cut.pieces):
        n = min(cut.piece, cut.length - row % cut.pieces * cut.piece)
        data = _addresses((*inputs, *outputs), row)
        room = None if whole else scratch.ctypes.data
        bound.function(data, cut.room if whole else n, bound.numbers, room, 0)
    stored = [not (kernel.partial and o.per_row) for o in kernel.outputs]
    made = [
        _made(matrix, operand, cut, kept)
        for matrix, operand, kept in zip(
            outputs, kernel.outputs, (*bound.shape.kept, *stored), strict=False
        )
        if not (kernel.partial and operand.per_row)
    ]
    if bound.finish is not None:
        made += _finished(bound, cut, inputs, outputs, len(made))
    return _stored(bound, arrays, made)


def _bytes(kernel: Kernel, operand: Operand, cut: _Rows) -> int:
    if operand.per_row and kernel.partial:
        return 8
    return operand.type.size * (1 if operand.per_row else cut.room)


def _addresses(matrices: tuple[Any, ...], row: int) -> Any:
    starts = [m.ctypes.data + (row if m.shape[0] > 1 else 0) * m.strides[0] for m in matrices]
    return (ctypes.c_void_p * len(starts))(*starts)


def _finished(
    bound: _Bound, cut: _Rows, inputs: list[Any], outputs: list[Any], made: int
) -> list[Any]:
    """Return the results that are combined from those of the pieces."""
    kernel = bound.kernel
    # Each partial result has 8 bytes, of which the first are the number.
    parts = [
        np.ascontiguousarray(m[:, : o.type.size]) if o.per_row else m
        for m, o in zip(outputs, kernel.outputs, strict=True)
    ]
    ends = [np.empty((1, 1), np.dtype(t.name)) for t in kernel.finished]
    data = _addresses((*inputs, *parts, *ends), 0)
    finish: Any = bound.finish
    finish(data, cut.rows * cut.pieces, math.prod(cut.space), bound.numbers)
    size = (1,) * len(cut.space)
    kept = bound.shape.kept[made:]
    return [e.reshape(size if k else ()) for e, k in zip(ends, kept, strict=True)]


def _matrix(array: Any, per_row: bool, cut: _Rows) -> Any:
    """Return an operand as a matrix of rows: of one element, or padded to whole vectors."""
    full = np.broadcast_to(array, cut.space)
    flat = np.ascontiguousarray(full).reshape(cut.rows, cut.length)
    if per_row:
        return np.ascontiguousarray(flat[:, :1])
    room = cut.pieces * cut.room
    if cut.length == room:
        return flat.reshape(cut.rows * cut.pieces, cut.room)
    padded = np.repeat(flat[:, :1], room, axis=1)
    padded[:, : cut.length] = flat
    return padded.reshape(cut.rows * cut.pieces, cut.room)


def _made(matrix: Any, operand: Operand, cut: _Rows, kept: bool) -> Any:
    """Return an output as an array of the kernel's space, or of its outer dimensions."""
    values = matrix.view(np.dtype(operand.type.name))
    if operand.per_row:
        return values.reshape((*cut.outer, *(1,) * cut.inner) if kept else cut.outer)
    return np.ascontiguousarray(values.reshape(cut.rows, -1)[:, : cut.length]).reshape(cut.space)


def _stored(bound: _Bound, arrays: tuple[Any, ...], made: list[Any]) -> Any:
    """Write what has a destination there; return the rest, or None if one does not fit."""
    count = len(bound.kernel.inputs)
    for output, argument in bound.into.items():
        target = arrays[argument]
        others = [a for i, a in enumerate(arrays) if i != argument]
        if target.shape != made[output].shape or target.dtype != made[output].dtype:
            return None
        if any(_overlaps(target, a) for a in others[:count]):
            return None
    for output, argument in bound.into.items():
        arrays[argument][...] = made[output]
    return tuple(m for i, m in enumerate(made) if i not in bound.into)


def _overlaps(a: Any, b: Any) -> bool:
    same = (
        a.__array_interface__["data"] == b.__array_interface__["data"]
        and a.strides == b.strides
        and a.shape == b.shape
    )
    return not same and bool(np.may_share_memory(a, b))
