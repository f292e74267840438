"""Numbers of dimensions, sizes and strides: what operators on shapes share."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence

from tensorplay._tensor import Spec, contiguous_strides

__all__ = [
    "broadcasts_to",
    "resolve_size",
    "strides_of",
    "view_strides",
    "wrap_dim",
    "wrap_dims",
]


def wrap_dim(where: str, dim: int, ndim: int) -> int:
    """Return `dim` counted from the front; a 0-d tensor has the dimensions 0 and -1.

    Raises
    ------
    IndexError
        There is no such dimension.
    TypeError
        `dim` is no integer.
    """
    if type(dim) is not int:
        try:
            dim = operator.index(dim)
        except TypeError:
            kind = type(dim).__name__
            raise TypeError(f"[{where}] argument 'dim': expected int, got {kind}.") from None
    count = ndim or 1
    if not -count <= dim < count:
        raise IndexError(
            f"[{where}] argument 'dim': Dimension out of range (expected to be in range of "
            f"[{-count}, {count - 1}], but got {dim})."
        )
    return dim % count


def wrap_dims(where: str, dims: Sequence[int], ndim: int) -> tuple[int, ...]:
    """Return `dims` counted from the front.

    Raises
    ------
    IndexError
        There is no such dimension.
    RuntimeError
        A dimension appears twice.
    """
    wrapped = tuple(wrap_dim(where, dim, ndim) for dim in dims)
    for place, dim in enumerate(wrapped):
        if dim in wrapped[:place]:
            raise RuntimeError(
                f"[{where}] argument 'dim': dim {dim} appears multiple times in {list(dims)}: "
                "duplicate dims are not allowed."
            )
    return wrapped


def resolve_size(where: str, size: Sequence[int], numel: int) -> tuple[int, ...]:
    """Return `size` with its -1, if it has one, replaced so that it holds `numel` elements.

    Raises
    ------
    RuntimeError
        There is no such size, or more than one.
    """
    known = math.prod(n for n in size if n != -1)
    open_dims = size.count(-1)
    if open_dims > 1:
        raise RuntimeError(f"[{where}] only one dimension can be inferred, got {list(size)}.")
    if any(n < -1 for n in size):
        raise RuntimeError(f"[{where}] invalid shape dimension {min(size)} in {list(size)}.")
    if open_dims and known == 0 and numel == 0:
        raise RuntimeError(
            f"[{where}] cannot reshape tensor of 0 elements into shape {list(size)} because the "
            "unspecified dimension size -1 can be any value and is ambiguous."
        )
    if open_dims and known and numel % known == 0:
        return tuple(numel // known if n == -1 else n for n in size)
    if open_dims or known != numel:
        raise RuntimeError(f"[{where}] shape '{list(size)}' is invalid for input of size {numel}.")
    return tuple(size)


def broadcasts_to(shape: Sequence[int], target: Sequence[int]) -> bool:
    """Tell whether a tensor of `shape` can be repeated to `target`."""
    return len(shape) <= len(target) and all(
        a in (1, b) for a, b in zip(reversed(shape), reversed(target), strict=False)
    )


def strides_of(spec: Spec) -> tuple[int, ...]:
    """Return the strides of `spec` in elements, also where it leaves them out."""
    return contiguous_strides(spec.shape) if spec.strides is None else spec.strides


def view_strides(spec: Spec, shape: tuple[int, ...]) -> tuple[int, ...] | None:
    """Return the strides with which memory laid out as `spec` shows `shape`, None if it cannot.

    `shape` holds as many elements as `spec`.
    """
    if spec.numel == 0:
        return contiguous_strides(shape)
    # Runs of elements at one distance from each other, the innermost first.
    runs: list[tuple[int, int]] = []
    for size, stride in zip(reversed(spec.shape), reversed(strides_of(spec)), strict=True):
        if size == 1:
            continue
        if runs and runs[-1][0] * runs[-1][1] == stride:
            runs[-1] = (runs[-1][0] * size, runs[-1][1])
        else:
            runs.append((size, stride))
    strides: list[int] = []
    left, step = 1, 1
    rest = iter(runs)
    for size in reversed(shape):
        if size != 1 and left == 1:
            left, step = next(rest)
        if left % size:
            return None
        strides.append(step)
        left //= size
        step *= size
    return tuple(reversed(strides))
