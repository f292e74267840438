"""Datasets: samples by index, or one after the other."""

from __future__ import annotations

import math
import operator
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from typing import Any, Generic, TypeVar

from tensorplay import random
from tensorplay._tensor import Tensor
from tensorplay.ops.arguments import reject
from tensorplay.ops.kinds import checked, is_float

__all__ = [
    "ConcatDataset",
    "Dataset",
    "IterableDataset",
    "Subset",
    "TensorDataset",
    "random_split",
]

T_co = TypeVar("T_co", covariant=True)


class Dataset(Generic[T_co]):
    """Samples by index: derive from it, write ``__getitem__`` and ``__len__``."""

    def __getitem__(self, index: Any) -> T_co:
        message = f"[{type(self).__name__}] has no __getitem__. Write def __getitem__(self, index)."
        raise NotImplementedError(message)

    def __add__(self, other: Dataset[Any]) -> ConcatDataset:
        return ConcatDataset([self, other])


class IterableDataset(Dataset[T_co]):
    """Samples one after the other: derive from it, write ``__iter__``."""

    def __iter__(self) -> Iterator[T_co]:
        message = f"[{type(self).__name__}] has no __iter__. Write def __iter__(self)."
        raise NotImplementedError(message)


def _place(dataset: Any, index: Any) -> int:
    """Return an index from the front.

    Raises
    ------
    IndexError
        It is out of range.
    """
    place, size = operator.index(index), len(dataset)
    if not -size <= place < size:
        message = f"[{type(dataset).__name__}] index {place} is out of range, the size is {size}."
        raise IndexError(message)
    return place % size


class TensorDataset(Dataset[tuple[Tensor, ...]]):
    """Rows of several tensors: a sample is a tuple of one row of each.

    Parameters
    ----------
    *tensors
        Tensors with the same size of dimension 0.

    Raises
    ------
    TypeError
        One is no tensor.
    ValueError
        There are none, or their sizes differ.
    """

    def __init__(self, *tensors: Tensor) -> None:
        given: Any = tensors
        if not all(isinstance(t, Tensor) for t in given):
            kinds = ", ".join(type(t).__name__ for t in given)
            message = f"[TensorDataset] argument 'tensors': expected Tensors, got {kinds}."
            raise TypeError(message)
        sizes = [t.shape[0] if t.ndim else None for t in tensors]
        if not sizes or None in sizes or len(set(sizes)) != 1:
            message = (
                "[TensorDataset] argument 'tensors': Size mismatch between tensors, expected one "
                f"size of dimension 0, got {sizes}."
            )
            raise ValueError(message)
        self.tensors = tensors

    def __getitem__(self, index: Any) -> tuple[Tensor, ...]:
        return tuple(t[index] for t in self.tensors)

    def __len__(self) -> int:
        return int(self.tensors[0].shape[0])


class ConcatDataset(Dataset[Any]):
    """Several datasets, one after the other.

    Parameters
    ----------
    datasets
        At least one.

    Raises
    ------
    ValueError
        There are none.
    TypeError
        One has no length.
    """

    @checked
    def __init__(self, datasets: Iterable[Dataset[Any]]) -> None:
        self.datasets = list(datasets)
        if not self.datasets:
            message = "[ConcatDataset] argument 'datasets': should not be an empty iterable."
            raise ValueError(message)
        for dataset in self.datasets:
            if isinstance(dataset, IterableDataset):
                message = "[ConcatDataset] argument 'datasets': got an IterableDataset."
                raise TypeError(message)
        sized: list[Any] = self.datasets
        self.cumulative_sizes = list(accumulate(map(len, sized)))

    def __len__(self) -> int:
        return self.cumulative_sizes[-1]

    def __getitem__(self, index: Any) -> Any:
        place = _place(self, index)
        which = bisect_right(self.cumulative_sizes, place)
        before = self.cumulative_sizes[which - 1] if which else 0
        return self.datasets[which][place - before]


class Subset(Dataset[T_co]):
    """Some samples of a dataset, by their indices.

    Parameters
    ----------
    dataset
        The dataset.
    indices
        Which samples.
    """

    def __init__(self, dataset: Dataset[T_co], indices: Sequence[int]) -> None:
        self.dataset, self.indices = dataset, indices

    def __getitem__(self, index: Any) -> T_co:
        return self.dataset[self.indices[_place(self, index)]]

    def __len__(self) -> int:
        return len(self.indices)


@checked
def random_split(
    dataset: Dataset[T_co], lengths: Sequence[float], generator: Any = None
) -> list[Subset[T_co]]:
    """Split a dataset at random into parts without common samples.

    Parameters
    ----------
    dataset
        What is split.
    lengths
        Numbers of samples, which add up to the size; or shares, which add up to 1. What shares
        leave over by rounding goes to the first parts, one each.
    generator
        Source of the random order.

    Returns
    -------
    list of Subset
        The parts.

    Raises
    ------
    TypeError
        The dataset has no length, or one of the lengths is no number.
    ValueError
        They do not add up, or are negative.
    """
    if not hasattr(dataset, "__len__"):
        reject("random_split", "dataset", "a dataset with a length", dataset)
    for length in lengths:
        if not is_float(length):
            reject("random_split", "lengths", "numbers", length)
    size = len(dataset)
    if any(length < 0 for length in lengths):
        message = f"[random_split] argument 'lengths': expected none below 0, got {list(lengths)}."
        raise ValueError(message)
    if math.isclose(sum(lengths), 1) and all(length <= 1 for length in lengths) and size != 1:
        counts = [math.floor(size * share) for share in lengths]
        for i in range(size - sum(counts)):
            counts[i % len(counts)] += 1
    else:
        whole: Sequence[Any] = lengths  # or `index` refuses
        counts = [operator.index(length) for length in whole]
    if sum(counts) != size:
        message = (
            "[random_split] argument 'lengths': Sum of input lengths does not equal the length of "
            f"the dataset: {sum(counts)} and {size}."
        )
        raise ValueError(message)
    order = random.randperm(size, generator=generator).tolist()
    ends = list(accumulate(counts))
    return [
        Subset(dataset, order[end - count : end]) for count, end in zip(counts, ends, strict=True)
    ]
