"""Samplers: in which order, and how often, a loader takes the samples of a dataset."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence, Sized
from typing import Any, Generic, TypeVar

from tensorplay import random
from tensorplay._creation import as_tensor
from tensorplay._dtype import float64
from tensorplay.ops.kinds import checked

__all__ = [
    "BatchSampler",
    "RandomSampler",
    "Sampler",
    "SequentialSampler",
    "SubsetRandomSampler",
    "WeightedRandomSampler",
]

T_co = TypeVar("T_co", covariant=True)


class Sampler(Generic[T_co]):
    """Indices in some order: derive from it, write ``__iter__`` and, where known, ``__len__``."""

    def __iter__(self) -> Iterator[T_co]:
        message = f"[{type(self).__name__}] has no __iter__. Write def __iter__(self)."
        raise NotImplementedError(message)


class SequentialSampler(Sampler[int]):
    """0, 1, 2, … up to the size of the data.

    Parameters
    ----------
    data_source
        Something with a length.
    """

    def __init__(self, data_source: Sized) -> None:
        self.data_source = data_source

    def __iter__(self) -> Iterator[int]:
        return iter(range(len(self.data_source)))

    def __len__(self) -> int:
        return len(self.data_source)


def _want_count(where: str, name: str, value: Any) -> None:
    if isinstance(value, bool) or not hasattr(value, "__index__") or value <= 0:
        message = f"[{where}] argument {name!r}: should be a positive integer value, got {value!r}."
        raise ValueError(message)


class RandomSampler(Sampler[int]):
    """All indices in random order; with `replacement`, any index at each time.

    Parameters
    ----------
    data_source
        What has a size.
    replacement
        Whether an index may come again.
    num_samples
        How many; the size by default.
    generator
        Source of the numbers.

    Raises
    ------
    ValueError
        `num_samples` is no positive integer.
    """

    @checked
    def __init__(
        self,
        data_source: Sized,
        replacement: bool = False,
        num_samples: int | None = None,
        generator: Any = None,
    ) -> None:
        if num_samples is not None:
            _want_count("RandomSampler", "num_samples", num_samples)
        self.data_source, self.replacement, self.generator = data_source, replacement, generator
        self._num_samples = num_samples

    @property
    def num_samples(self) -> int:
        """How many indices come."""
        return len(self.data_source) if self._num_samples is None else self._num_samples

    def __iter__(self) -> Iterator[int]:
        size, left = len(self.data_source), self.num_samples
        if self.replacement:
            yield from random.randint(0, size, (left,), generator=self.generator).tolist()
            return
        while left > 0:
            order = random.randperm(size, generator=self.generator).tolist()[:left]
            if not order:
                return
            yield from order
            left -= len(order)

    def __len__(self) -> int:
        return self.num_samples


class SubsetRandomSampler(Sampler[int]):
    """Some indices in random order.

    Parameters
    ----------
    indices
        The indices.
    generator
        Source of the random numbers; the default generator otherwise.
    """

    def __init__(self, indices: Sequence[int], generator: Any = None) -> None:
        self.indices, self.generator = indices, generator

    def __iter__(self) -> Iterator[int]:
        order = random.randperm(len(self.indices), generator=self.generator).tolist()
        return (self.indices[i] for i in order)

    def __len__(self) -> int:
        return len(self.indices)


class WeightedRandomSampler(Sampler[int]):
    """Indices with probabilities in proportion to weights.

    Parameters
    ----------
    weights
        One for each index.
    num_samples
        How many indices come.
    replacement
        Whether an index may come again.
    generator
        Source of the numbers.

    Raises
    ------
    ValueError
        `num_samples` is no positive integer, or `weights` has not one dimension.
    """

    @checked
    def __init__(
        self,
        weights: Any,
        num_samples: int,
        replacement: bool = True,
        generator: Any = None,
    ) -> None:
        _want_count("WeightedRandomSampler", "num_samples", num_samples)
        self.weights = as_tensor(weights, dtype=float64)
        if self.weights.ndim != 1:
            message = (
                "[WeightedRandomSampler] argument 'weights': expected 1 dimension, got shape "
                f"{list(self.weights.shape)}."
            )
            raise ValueError(message)
        self.num_samples, self.replacement, self.generator = num_samples, replacement, generator

    def __iter__(self) -> Iterator[int]:
        drawn = self.weights.multinomial(
            self.num_samples, self.replacement, generator=self.generator
        )
        return iter(drawn.tolist())

    def __len__(self) -> int:
        return self.num_samples


class BatchSampler(Sampler[list[int]]):
    """Lists of `batch_size` indices of another sampler; `drop_last` leaves a shorter last one out.

    Parameters
    ----------
    sampler
        Gives the indices.
    batch_size
        How many make a batch.
    drop_last
        Whether a shorter last batch is left out.

    Raises
    ------
    ValueError
        `batch_size` is no positive integer.
    """

    @checked
    def __init__(self, sampler: Iterable[int], batch_size: int, drop_last: bool) -> None:
        _want_count("BatchSampler", "batch_size", batch_size)
        self.sampler, self.batch_size, self.drop_last = sampler, batch_size, drop_last

    def __iter__(self) -> Iterator[list[int]]:
        batch: list[int] = []
        for index in self.sampler:
            batch.append(index)
            if len(batch) == self.batch_size:
                yield batch
                batch = []
        if batch and not self.drop_last:
            yield batch

    def __len__(self) -> int:
        sampler: Any = self.sampler
        size = len(sampler)
        return size // self.batch_size if self.drop_last else -(-size // self.batch_size)
