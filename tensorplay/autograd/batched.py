"""Tensors that stand for a batch of tensors inside of `func.vmap`. Knows no operator's rule.

A `BatchedTensor` looks like one sample: its shape is that of a sample, and code inside of vmap
treats it so. Its value is an ordinary tensor with one more dimension per level of vmap in front,
outer levels first. History and tangents are those of the value.
"""

from __future__ import annotations

import itertools
import math
import threading
from collections.abc import Iterable, Sequence
from typing import Any, NoReturn

from tensorplay import _device
from tensorplay._dtype import dtype
from tensorplay._tensor import MetaArray, Tensor, contiguous_strides
from tensorplay.autograd import forward_ad

__all__ = [
    "BatchedTensor",
    "Level",
    "batch",
    "elements",
    "expose",
    "levels_of",
    "physical",
    "settle",
    "state",
]

_numbers = itertools.count(1)


class Level:
    """One vmap under way.

    Parameters
    ----------
    size
        Number of samples.
    randomness
        ``"error"``, ``"same"`` or ``"different"``: what random numbers are inside.
    """

    __slots__ = ("number", "randomness", "size")

    def __init__(self, size: int, randomness: str = "error") -> None:
        self.number = next(_numbers)  # later, and so inner, levels have larger numbers
        self.size = size
        self.randomness = randomness

    def __repr__(self) -> str:
        return f"<level {self.number} of {self.size}>"


class _State(threading.local):
    def __init__(self) -> None:
        self.levels: list[Level] = []


state = _State()

Levels = tuple[Level, ...]


class _Flags:
    """Samples count as row-major: where their elements lie is the operators' affair."""

    c_contiguous = forc = True


class _SampleArray(MetaArray):
    """Shape and type of one sample, where other tensors have their elements."""

    __slots__ = ()

    is_batched = True
    flags = _Flags

    def __init__(self, shape: tuple[int, ...], kind: dtype) -> None:
        # Made for every call: what is seldom asked is worked out then.
        self.shape = shape
        self.dtype = kind.numpy
        self.itemsize = kind.itemsize
        self.size = math.prod(shape)

    @property
    def strides(self) -> tuple[int, ...]:  # type: ignore[override]  # a property here
        """Distances of the elements, in bytes, if each sample lay alone."""
        return tuple(s * self.itemsize for s in contiguous_strides(self.shape))


class BatchedTensor(Tensor):
    """One sample to the code inside of vmap, all samples to the operators."""

    __tensorplay_function__: Any = None  # vmap is no matter of the overrides protocol

    _value: Tensor
    _levels: Levels

    # --- what belongs to the value ----------------------------------------------------------

    @property
    def _requires_grad(self) -> bool:
        return self._value._requires_grad

    @_requires_grad.setter
    def _requires_grad(self, value: bool) -> None:
        self._value.requires_grad = value

    @property
    def _grad_fn(self) -> Any:
        return self._value.grad_fn

    @property
    def _output_nr(self) -> int:  # type: ignore[override]  # a property here
        return self._value._output_nr

    @property
    def _tangent(self) -> Tensor | None:
        if self._value._base is not None:
            self._value._synchronise()
        tangent = self._value._tangent
        return None if tangent is None else batch(tangent, self._levels)

    @_tangent.setter
    def _tangent(self, tangent: Tensor | None) -> None:
        if tangent is None:
            self._value._tangent = None
            return
        if any(x not in self._levels for x in levels_of([tangent])):
            levels = union([self, tangent])
            self._value, self._levels = physical(self, levels), levels
        self._value._base = self._value._replay = None  # the tangent is its own
        forward_ad.attach_tangent(self._value, physical(tangent, self._levels))

    @property
    def _inference(self) -> bool:  # type: ignore[override]  # a property here
        return self._value._inference

    @property
    def device(self) -> _device.device:
        """Where the elements lie."""
        return self._value.device

    @property
    def is_meta(self) -> bool:
        """True when there are no elements."""
        return self._value.is_meta

    @property
    def is_cpu(self) -> bool:
        """True when the elements lie in main memory."""
        return self._value.is_cpu

    @property
    def _version(self) -> int:
        return self._value._version

    def _bump_version(self) -> None:
        self._value._bump_version()

    def detach(self) -> Tensor:
        """Return a tensor on the same memory that is outside the graph."""
        return batch(self._value.detach(), self._levels)

    @property
    def data(self) -> Tensor:
        """The same memory outside the graph, with a version counter of its own."""
        return batch(self._value.data, self._levels)

    @data.setter
    def data(self, value: Any) -> None:
        message = (
            "[data] vmap: a batched tensor stands for samples, whose elements cannot be replaced. "
            "Write x = y, or x.copy_(y)."
        )
        raise RuntimeError(message)

    # --- what one sample cannot answer ------------------------------------------------------

    def _elements(self, operator: str) -> NoReturn:
        message = (
            f"[{operator}] vmap: the elements of a batched tensor cannot be read one sample at a "
            "time: .item(), .numpy(), bool(x) and if, while or sizes that depend on values need "
            "plain tensors. Write tensorplay.where(condition, a, b), or call the function outside "
            "of vmap."
        )
        raise RuntimeError(message)

    def __deepcopy__(self, memo: dict[int, Any]) -> Tensor:
        self._elements("deepcopy")

    def __reduce_ex__(self, protocol: Any) -> Any:
        self._elements("pickle")

    def __repr__(self) -> str:
        sizes = [level.size for level in self._levels]
        return f"BatchedTensor(batch={sizes}, sample={list(self.shape)}, value={self._value!r})"


def batch(value: Tensor, levels: Levels) -> Tensor:
    """Return the tensor whose samples at `levels` lie along the first dimensions of `value`.

    If `value` is batched too, at other levels, the result is so at all of them.
    """
    if not levels:
        return value
    if isinstance(value, BatchedTensor):
        outer = value._levels
        every = tuple(sorted((*outer, *levels), key=lambda x: x.number))
        places = (*outer, *levels)
        rest = range(len(every), value._value.ndim)
        value = value._value.permute((*(places.index(x) for x in every), *rest))
        levels = every
    lead = len(levels)
    array = value._array
    result = object.__new__(BatchedTensor)
    result._value, result._levels, result._dtype = value, levels, value._dtype
    result._base = result._recipe = result._counter = None
    result._array = _SampleArray(array.shape[lead:], value._dtype)
    return result


def elements(tensor: Tensor) -> Any:
    """Return the array of all elements, of all samples where there are some, to look at values."""
    return tensor._value._array if isinstance(tensor, BatchedTensor) else tensor._array


def levels_of(values: Iterable[Any]) -> list[Level]:
    """Return the levels at which tensors among `values`, also in lists, are batched."""
    found: dict[int, Level] = {}
    for value in values:
        if isinstance(value, BatchedTensor):
            found.update((x.number, x) for x in value._levels)
        elif isinstance(value, (list, tuple)):
            found.update((x.number, x) for x in levels_of(value))
    return [found[number] for number in sorted(found)]


def union(values: Iterable[Any]) -> Levels:
    """Return `levels_of` as a tuple."""
    return tuple(levels_of(values))


def physical(tensor: Tensor, levels: Levels, *, expand: bool = True) -> Tensor:
    """Return an ordinary tensor with one dimension per level in front.

    Parameters
    ----------
    tensor
        Batched at some of `levels`, or at none.
    levels
        Levels, outer ones first.
    expand
        Whether all samples are there at levels where `tensor` is not batched; otherwise the
        dimension has size 1.
    """
    own: Levels = ()
    value = tensor
    if isinstance(tensor, BatchedTensor):
        own, value = tensor._levels, tensor._value
    if own == levels:
        return value
    shape = tensor._array.shape
    ones = [x.size if x in own else 1 for x in levels]
    if len(own) != len(levels):
        value = value.reshape((*ones, *shape))
    if not expand:
        return value
    full: Tensor = value.expand((*(x.size for x in levels), *shape))
    return full


def expose(tensor: Tensor, levels: Levels) -> Tensor:
    """Return a tensor with the dimensions of `levels` in front, batched at its other levels."""
    others = tuple(x for x in levels_of([tensor]) if x not in levels)
    every = tuple(sorted((*levels, *others), key=lambda x: x.number))
    value = physical(tensor, every)
    order = [every.index(x) for x in (*others, *levels)]
    if order != sorted(order):
        value = value.permute((*order, *range(len(every), value.ndim)))
    return batch(value, others)


def settle(tensor: Tensor) -> Tensor:
    """Return a tensor that is batched wherever its tangent is.

    A value that all samples share may have a tangent that they do not. That is as good as a batch
    of equal values, until the value meets others that differ between the same samples.
    """
    plain = tensor._value if isinstance(tensor, BatchedTensor) else tensor
    if plain._base is not None:
        plain._synchronise()
    if not isinstance(plain._tangent, BatchedTensor):
        return tensor
    tangent = tensor._tangent
    levels = union([tensor, tangent])
    with forward_ad.without_tangents([plain]):
        value = physical(tensor, levels)
    if value is plain:  # not reached: the tangent has a level more
        return tensor
    value._base = value._replay = None
    if tangent is not None:
        forward_ad.attach_tangent(value, physical(tangent, levels))
    return batch(value, levels)


def sizes_of(levels: Sequence[Level]) -> tuple[int, ...]:
    """Return the numbers of samples."""
    return tuple(x.size for x in levels)
