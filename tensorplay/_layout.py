"""What is known of a tensor besides its elements: shape, type, strides, number of writes."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, SupportsIndex, overload

from tensorplay import _device

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tensorplay._dtype import dtype

__all__ = [
    "DeviceArray",
    "InferenceCounter",
    "MetaArray",
    "MovedCounter",
    "Size",
    "Spec",
    "VersionCounter",
    "contiguous_strides",
    "is_dense",
]


class Size(tuple[int, ...]):
    """The shape of a tensor: a tuple of sizes.

    Parameters
    ----------
    iterable
        The sizes.
    """

    __slots__ = ()

    def numel(self) -> int:
        """Return the number of elements."""
        return math.prod(self)

    @overload
    def __getitem__(self, index: SupportsIndex, /) -> int: ...
    @overload
    def __getitem__(self, index: slice[Any, Any, Any], /) -> Size: ...
    def __getitem__(self, index: Any, /) -> Any:
        found = super().__getitem__(index)
        return Size(found) if isinstance(index, slice) else found

    def __add__(self, other: Any, /) -> Any:
        found = super().__add__(other)
        return Size(found) if isinstance(other, tuple) else found

    def __repr__(self) -> str:
        return f"Size({list(self)})"


def contiguous_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the strides, in elements, of a row-major tensor of `shape`."""
    if len(shape) == 1:
        return (1,)
    strides: list[int] = []
    step = 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))


def is_dense(shape: Sequence[int], strides: Sequence[int], step: int = 1) -> bool:
    """Tell whether elements at `strides` fill their memory without gaps, `step` to the next."""
    for stride, size in sorted(zip(strides, shape, strict=True)):
        if size != 1:
            if stride != step:
                return False
            step *= size
    return True


class Spec(NamedTuple):
    """What is known of a tensor without its elements: shape, type and, if unusual, strides."""

    shape: tuple[int, ...]
    dtype: dtype
    strides: tuple[int, ...] | None = None

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return len(self.shape)

    @property
    def numel(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)


class MetaArray:
    """Stands in a meta tensor where a NumPy array stands in others; answers the same questions."""

    __slots__ = ("dtype", "itemsize", "shape", "size", "strides")

    #: Whether it stands for the samples of a batch, at which operators run in another way.
    is_batched: ClassVar[bool] = False
    #: Where the elements lie.
    device: ClassVar[_device.device] = _device.META

    def __init__(self, spec: Spec) -> None:
        self.shape = spec.shape
        self.dtype = spec.dtype.numpy
        self.itemsize = spec.dtype.itemsize
        self.size = math.prod(spec.shape)
        strides = contiguous_strides(spec.shape) if spec.strides is None else spec.strides
        self.strides = tuple(s * self.itemsize for s in strides)

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return len(self.shape)


class DeviceArray(MetaArray):
    """Stands in a tensor on a GPU: `source`, an array of another library, holds the elements.

    Only what speaks DLPack reaches them, which kernels of operators do; nothing here does.
    """

    __slots__ = ("place", "source")

    def __init__(self, spec: Spec, source: Any, place: _device.device) -> None:
        super().__init__(spec)
        self.source = source
        self.place = place

    @property
    def device(self) -> _device.device:  # type: ignore[override]  # a property here
        """The GPU."""
        return self.place


class VersionCounter:
    """Counts the in-place writes to one piece of memory; its views share one counter.

    ``history`` counts those writes that changed the autograd history of the memory, after which
    the views must look up their own history again.
    """

    __slots__ = ("history", "value")

    def __init__(self) -> None:
        self.value = 0
        self.history = 0


class InferenceCounter(VersionCounter):
    """The counter of a tensor made in inference mode, by which the short ways know it."""

    __slots__ = ()


class MovedCounter(VersionCounter):
    """The counter `of` some memory, for a tensor that moved there and had `before` writes by then.

    Its numbers are none that the tensor had before, so that what was saved of it is not taken for
    what it is now; those who saved the memory itself see no change.
    """

    __slots__ = ("before", "of")

    def __init__(self, of: VersionCounter, before: int) -> None:
        self.of = of
        self.before = before

    @property
    def value(self) -> int:
        """Number of writes; one more for the move."""
        return self.of.value + self.before + 1

    @value.setter
    def value(self, value: int) -> None:
        self.of.value = value - self.before - 1

    @property
    def history(self) -> int:
        """Number of writes that changed the history of the memory."""
        return self.of.history

    @history.setter
    def history(self, value: int) -> None:
        self.of.history = value
