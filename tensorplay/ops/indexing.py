"""Reading and writing parts of a tensor: ``x[index]``, ``x[index] = value`` and relatives.

Indexing by numbers, slices, None and Ellipsis is a view. Index tensors and masks copy: the numbers
and slices beside them are applied first, as a view.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tensorplay import _dtype
from tensorplay._methods import attach
from tensorplay._tensor import Tensor, wrap
from tensorplay.autograd.batched import BatchedTensor
from tensorplay.ops.arguments import as_plain, check_held, reject
from tensorplay.ops.conversion import copy_into
from tensorplay.ops.dims import wrap_dim
from tensorplay.ops.dispatch import UNANSWERED, ask, is_override, overridable, protocol
from tensorplay.ops.elementwise import broadcast_shapes
from tensorplay.ops.masks import mask_tensor, masked_fill, nonzero_rows, want_bool
from tensorplay.ops.movement import expand, flatten, reshape
from tensorplay.ops.parts import slice_, slice_dim
from tensorplay.ops.primitive import Composite, Sample
from tensorplay.ops.quick import quick_special
from tensorplay.ops.selection import (
    gather,
    index,
    index_put,
    index_select,
    index_shape,
    int_tensor,
    want_index,
)

__all__ = ["repeat_interleave"]

# --- written in terms of the above ----------------------------------------------------------------


def _masked_select(x: Tensor, mask: Tensor) -> Any:
    want_bool("masked_select", "mask", mask)
    shape = broadcast_shapes("masked_select", tuple(x.shape), tuple(mask.shape))
    full = reshape.apply((expand.apply((x, shape)), (-1,) if x.numel() and mask.numel() else (0,)))
    chosen = reshape.apply((expand.apply((mask, shape)), full.shape))
    return index.apply((full, [nonzero_rows.apply((chosen,))[:, 0]]))


masked_select = Composite(
    "masked_select(Tensor input, Tensor mask) -> Tensor",
    "The elements where `mask` holds, as a vector.",
    _masked_select,
    samples=lambda make: [
        Sample((make(3), mask_tensor([True, False, True])), name="vector"),
        Sample((make(2, 1), mask_tensor([True, False, True])), name="broadcast"),
    ],
)


def _take(x: Tensor, positions: Tensor) -> Any:
    want_index("take", "index", positions)
    if not x.numel() and positions.numel():
        raise IndexError("[take] tried to take from an empty tensor.")
    return index.apply((flatten.apply((x, 0, -1)), [positions]))


take = Composite(
    "take(Tensor input, Tensor index) -> Tensor",
    "The elements at `index`, counted in row-major order.",
    _take,
    samples=lambda make: [Sample((make(2, 3), int_tensor([[5, 0], [1, -1]])))],
)


def _take_along_dim(x: Tensor, indices: Tensor, dim: int | None) -> Any:
    want_index("take_along_dim", "indices", indices)
    if dim is None:
        return gather.apply((flatten.apply((x, 0, -1)), 0, flatten.apply((indices, 0, -1))))
    if x.ndim != indices.ndim:
        raise RuntimeError(
            "[take_along_dim] input and indices should have the same number of dimensions, but "
            f"got {x.ndim} dimensions for input, and {indices.ndim} dimensions for indices."
        )
    dim = wrap_dim("take_along_dim", dim, x.ndim)
    ones = [1 if d == dim else n for d, n in enumerate(x.shape)]
    shape = broadcast_shapes("take_along_dim", tuple(ones), tuple(indices.shape))
    source = [x.shape[d] if d == dim else n for d, n in enumerate(shape)]
    wide = [indices.shape[d] if d == dim else n for d, n in enumerate(shape)]
    return gather.apply((expand.apply((x, source)), dim, expand.apply((indices, wide))))


take_along_dim = Composite(
    "take_along_dim(Tensor input, Tensor indices, int? dim=None) -> Tensor",
    "The elements at `indices` along `dim`, broadcast elsewhere: the partner of argsort.",
    _take_along_dim,
    samples=lambda make: [
        Sample((make(2, 3), int_tensor([[0], [2]]), 1), name="column"),
        Sample((make(2, 3), int_tensor([[2, 0, 1]]), 1), name="broadcast"),
        Sample((make(2, 3), int_tensor([4, 1])), name="flat"),
    ],
)


@overridable
def repeat_interleave(input: Tensor, repeats: Any, dim: int | None = None) -> Any:
    """Return every element of a dimension several times, one after the other.

    Parameters
    ----------
    input
        Tensor to repeat.
    repeats
        How often: a number, or an integer vector with one number per element of the dimension.
    dim
        The dimension; without it the tensor is flattened first.

    Returns
    -------
    Tensor
        As `input`, but for the size of the dimension.

    Raises
    ------
    RuntimeError
        A number is negative, or there is not one per element.
    NotImplementedError
        `repeats` is a vector on device meta.
    """
    if not isinstance(input, Tensor):
        reject("repeat_interleave", "input", "Tensor", input, "Write tensorplay.tensor(x).")
    if dim is None:
        input, dim = flatten.apply((input, 0, -1)), 0
    dim = wrap_dim("repeat_interleave", dim, input.ndim)
    size = input.shape[dim]
    if isinstance(repeats, Tensor) and repeats.numel() != 1:
        want_index("repeat_interleave", "repeats", repeats)
        counts = repeats.numpy()
        if counts.ndim > 1 or counts.size != size or (counts < 0).any():
            raise RuntimeError(
                "[repeat_interleave] argument 'repeats': expected a number or a vector with one "
                f"non-negative count for each of {size} elements: repeats must have the same size "
                f"as input along dim, got {list(counts.shape)}."
            )
        return index_select.apply((input, dim, int_tensor(np.repeat(np.arange(size), counts))))
    if isinstance(repeats, Tensor):
        want_index("repeat_interleave", "repeats", repeats)
        repeats = repeats.item()
    count = as_plain("repeat_interleave", "repeats", "int", repeats)
    if count < 0:
        raise RuntimeError(
            f"[repeat_interleave] argument 'repeats': repeats can not be negative, got {count}."
        )
    wide = [*input.shape[: dim + 1], count, *input.shape[dim + 1 :]]
    out: Any = flatten.apply((expand.apply((input.unsqueeze(dim + 1), wide)), dim, dim + 1))
    return out.clone() if count == 1 else out


attach("repeat_interleave", repeat_interleave)


# --- x[index] -------------------------------------------------------------------------------------

Plan = tuple[list[int], list[int], list[int], list[int], "list[Tensor | None] | None"]


def _wrong_index(item: Any) -> IndexError:
    kind = type(item).__name__
    return IndexError(
        "[getitem] only integers, slices (`:`), ellipsis (`...`), None and long or bool tensors "
        f"(or lists of numbers) are valid indices, got {kind}."
    )


def _normal(item: Any) -> Any:
    """Return an index as int, bool, slice, None, Ellipsis, or an integer or bool tensor."""
    if item is None or item is Ellipsis or isinstance(item, (bool, int, slice)):
        return item
    if isinstance(item, np.generic):
        item = item.item()
        if isinstance(item, (bool, int)):
            return item
        raise _wrong_index(item)
    if isinstance(item, (list, np.ndarray)):
        try:
            array = np.asarray(item)
        except ValueError as error:
            raise _wrong_index(item) from error
        item = (
            wrap(array.astype(np.int64) if not array.size and isinstance(item, list) else array)
            if array.dtype.kind in "biuf"
            else None
        )
    if not isinstance(item, Tensor):
        raise _wrong_index(item)
    d = item._dtype
    if d.category > _dtype.INTEGER or d is _dtype.uint8:
        raise IndexError(
            "[getitem] tensors used as indices must be long, int or bool tensors, got "
            f"{d!r}. Write index.long(), or mask.bool()."
        )
    if isinstance(item, BatchedTensor) and d is not _dtype.bool_:
        return item  # each sample has its own number
    if item.ndim == 0 and not item.is_meta:
        return bool(item.item()) if d is _dtype.bool_ else int(item.item())
    return item


def _consumes(item: Any) -> int:
    """Return how many dimensions of the tensor an index stands for."""
    if item is None or isinstance(item, bool):
        return 0
    if isinstance(item, Tensor) and item._dtype is _dtype.bool_:
        return item.ndim
    return 1


def _plan(x: Tensor, key: Any) -> Plan:
    """Sort an index into a basic part (as of ``_slice``) and index tensors for its result."""
    shape = x._array.shape
    items = [_normal(item) for item in key] if isinstance(key, tuple) else [_normal(key)]
    used = sum(_consumes(i) for i in items if i is not Ellipsis)
    if not shape and used:
        raise IndexError(
            "[getitem] invalid index of a 0-dim tensor. Write x.item() to get its number."
        )
    if used > len(shape):
        raise IndexError(
            f"[getitem] too many indices for tensor of dimension {len(shape)}: got {used}."
        )
    dots = [n for n, i in enumerate(items) if i is Ellipsis]
    if len(dots) > 1:
        raise IndexError("[getitem] an index can only have a single ellipsis ('...').")
    fill: list[Any] = [slice(None)] * (len(shape) - used)
    if dots:
        items[dots[0] : dots[0] + 1] = fill
    else:
        items += fill
    start: list[int] = []
    stop: list[int] = []
    step: list[int] = []
    sizes: list[int] = []
    advanced: list[Tensor | None] = []
    dim = 0
    for item in items:
        if item is None or isinstance(item, bool):
            sizes.append(1)
            advanced.append(None if item is None else int_tensor([0] if item else []))
            continue
        if isinstance(item, Tensor):
            count = _consumes(item)
            wanted = shape[dim : dim + count]
            if item._dtype is _dtype.bool_:
                if tuple(item.shape) != wanted:
                    raise IndexError(
                        f"[getitem] The shape of the mask {list(item.shape)} at index {dim} does "
                        f"not match the shape of the indexed tensor {list(shape)} at index {dim}."
                    )
                found = nonzero_rows.apply((item,))
                advanced += [found[:, d] for d in range(count)]
            else:
                advanced.append(item)
            start += [0] * count
            stop += wanted
            step += [1] * count
            sizes += wanted
            dim += count
            continue
        size = shape[dim]
        if isinstance(item, slice):
            if item.step is not None and item.step <= 0:
                raise ValueError(
                    f"[getitem] slice step must be greater than zero, got {item.step}. "
                    "Write x.flip(dim) to reverse."
                )
            first, last, by = item.indices(size)
            start.append(first)
            stop.append(max(first, last))
            step.append(by)
            sizes.append(len(range(first, last, by)))
            advanced.append(None)
        else:
            if not -size <= item < size:
                raise IndexError(
                    f"[getitem] index {item} is out of bounds for dimension {dim} with size {size}."
                )
            place = item % size
            start.append(place)
            stop.append(place + 1)
            step.append(1)
        dim += 1
    return start, stop, step, sizes, advanced if any(a is not None for a in advanced) else None


def _members(key: Any) -> tuple[Any, ...]:
    return key if isinstance(key, tuple) else (key,)


def _getitem_of_any(self: Tensor, key: Any) -> Any:
    """Return the part that `key` says: a view unless it holds index tensors or masks."""
    if protocol.on:
        answer = ask(_getitem, (self, *_members(key)), (self, key))
        if answer is not UNANSWERED:
            return answer
    if type(key) is int and self.ndim:  # the common case, and that of iteration
        size = self._array.shape[0]
        if -size <= key < size:
            return slice_dim(self, 0, key % size, key % size + 1, drop=True)
    try:
        *basic, advanced = _plan(self, key)
    except (IndexError, TypeError):
        answer = UNANSWERED if protocol.on else ask(_getitem, (self, *_members(key)), (self, key))
        if answer is UNANSWERED:
            raise
        return answer
    if advanced is None:
        return slice_.apply((self, *basic))
    whole = tuple(basic[3]) == self._array.shape
    return index.apply((self if whole else slice_.apply((self, *basic)), advanced))


# Most keys are numbers and slices.
_getitem: Any = quick_special(slice_, _getitem_of_any)


def _without_leading_ones(value: Any, ndim: int) -> Any:
    extra = value.ndim - ndim
    if extra > 0 and all(n == 1 for n in value.shape[:extra]):
        return value.reshape(value.shape[extra:])
    return value


def _as_tensor(value: Any, d: _dtype.dtype) -> Tensor:
    """Return an array or a list as a tensor; a list holds only what `d` holds."""
    try:
        array = np.asarray(value)
        if array.size and isinstance(value, (list, tuple)) and array.dtype.kind in "iufO":
            for number in (array.min(), array.max()):
                check_held("setitem", getattr(number, "item", lambda n=number: n)(), d)
        return wrap(array)
    except (TypeError, ValueError) as error:  # no numbers, or rows of several lengths
        message = f"[setitem] argument 'value': expected numbers: {error}"
        raise (TypeError if isinstance(error, TypeError) else ValueError)(message) from error


def _setitem(self: Tensor, key: Any, value: Any) -> None:
    """Write `value`, broadcast and converted, to the part that `key` says."""
    if protocol.on or is_override(value):
        answer = ask(_setitem, (self, *_members(key), value), (self, key, value))
        if answer is not UNANSWERED:
            return
    try:
        _write_item(self, key, value)
        return
    except RuntimeError as error:
        problem = error
    except (IndexError, TypeError):
        relevant = (self, *_members(key), value)
        if protocol.on or ask(_setitem, relevant, (self, key, value)) is UNANSWERED:
            raise
        return
    check_held("setitem", value, self._dtype)  # what writes says the same under its own name
    raise problem


def _write_item(self: Tensor, key: Any, value: Any) -> None:
    if isinstance(value, (list, tuple, np.ndarray)):
        value = _as_tensor(value, self._dtype)
    if (
        isinstance(key, Tensor) and key._dtype is _dtype.bool_ and key.shape == self.shape
        and not (isinstance(value, Tensor) and value.numel() != 1)
    ):  # fmt: skip
        # No need to know how many elements a mask holds: this serves device meta too.
        fill = value.reshape(()) if isinstance(value, Tensor) else value
        masked_fill.apply_inplace(
            (self, key, fill.to(self._dtype) if isinstance(fill, Tensor) else fill)
        )
        return
    *basic, advanced = _plan(self, key)
    whole = tuple(basic[3]) == self._array.shape
    target = self if whole and advanced is not None else slice_.apply((self, *basic))
    if advanced is None:
        if isinstance(value, Tensor):
            value = _without_leading_ones(value, target.ndim)
        copy_into("setitem", "value", target, value)
        return
    if isinstance(value, Tensor):
        value = _without_leading_ones(value, len(index_shape("setitem", target, advanced)))
    index_put.apply_inplace((target, advanced, value, False))


for _name, _function in {"__getitem__": _getitem, "__setitem__": _setitem}.items():
    _function.overridable = True
    _function.__name__, _function.__qualname__ = _name, f"Tensor.{_name}"
    attach(_name, _function)
