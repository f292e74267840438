"""Datasets, samplers and loaders, here and by worker processes."""

from __future__ import annotations

import os
import time
from collections import Counter, namedtuple
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import tensorplay as tp
from tensorplay.utils.data import (
    BatchSampler,
    ConcatDataset,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
    default_collate,
    get_worker_info,
    random_split,
)


class Squares(Dataset[int]):
    def __init__(self, size: int) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> int:
        if not 0 <= index < self.size:
            raise IndexError(index)
        return index * index


class Stream(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(5))


# --- datasets and samplers ----------------------------------------------------------------------


def test_tensor_datasets() -> None:
    data = TensorDataset(tp.arange(6).reshape(3, 2), tp.arange(3))
    assert len(data) == 3
    assert [t.tolist() for t in data[-1]] == [[4, 5], 2]
    with pytest.raises(ValueError, match=r"Size mismatch between tensors.*got \[3, 2\]"):
        TensorDataset(tp.ones(3), tp.ones(2))
    with pytest.raises(TypeError, match="expected Tensors, got list"):
        TensorDataset([1, 2])
    with pytest.raises(ValueError, match="Size mismatch"):
        TensorDataset()


def test_parts_of_datasets() -> None:
    both = Squares(3) + Squares(2)
    assert isinstance(both, ConcatDataset)
    assert [both[i] for i in range(len(both))] == [0, 1, 4, 0, 1]
    assert both[-1] == 1
    with pytest.raises(IndexError, match="index 5 is out of range, the size is 5"):
        both[5]
    assert [Subset(Squares(9), [8, 0])[i] for i in (0, 1, -1)] == [64, 0, 0]
    with pytest.raises(ValueError, match="empty"):
        ConcatDataset([])
    with pytest.raises(TypeError, match="IterableDataset"):
        ConcatDataset([Stream()])
    with pytest.raises(NotImplementedError, match="__getitem__"):
        Dataset()[0]


@pytest.mark.parametrize(
    ("lengths", "sizes"), [([3, 7], [3, 7]), ([0.5, 0.25, 0.25], [6, 2, 2]), ([1.0], [10])]
)
def test_random_splits(lengths: Any, sizes: list[int]) -> None:
    parts = random_split(Squares(10), lengths, generator=tp.Generator().manual_seed(0))
    assert [len(p) for p in parts] == sizes
    assert sorted(i for p in parts for i in p.indices) == list(range(10))
    again = random_split(Squares(10), lengths, generator=tp.Generator().manual_seed(0))
    assert [p.indices for p in parts] == [p.indices for p in again]


def test_splits_that_do_not_add_up() -> None:
    with pytest.raises(ValueError, match="Sum of input lengths does not equal"):
        random_split(Squares(10), [3, 3])
    with pytest.raises(ValueError, match="none below 0"):
        random_split(Squares(10), [-1, 11])


def test_samplers() -> None:
    g = tp.Generator().manual_seed(1)
    assert list(SequentialSampler(range(3))) == [0, 1, 2]
    order = list(RandomSampler(range(20), generator=g))
    assert sorted(order) == list(range(20))
    assert order != list(range(20))
    assert list(RandomSampler(range(20), generator=g)) != order
    many = list(RandomSampler(range(3), num_samples=8, generator=g))
    assert len(many) == 8
    assert set(Counter(many).values()) == {2, 3}
    drawn = list(RandomSampler(range(3), replacement=True, num_samples=50, generator=g))
    assert set(drawn) == {0, 1, 2}
    assert sorted(SubsetRandomSampler([5, 7], generator=g)) == [5, 7]
    weighted = Counter(WeightedRandomSampler([1.0, 0.0, 3.0], 400, generator=g))
    assert weighted[1] == 0
    assert 2 < weighted[2] / weighted[0] < 4.5
    once = list(WeightedRandomSampler([1.0, 0.0, 3.0], 2, replacement=False, generator=g))
    assert sorted(once) == [0, 2]
    assert list(BatchSampler(range(5), 2, drop_last=False)) == [[0, 1], [2, 3], [4]]
    assert list(BatchSampler(range(5), 2, drop_last=True)) == [[0, 1], [2, 3]]
    assert len(BatchSampler(range(5), 2, drop_last=True)) == 2
    assert list(RandomSampler([])) == []
    with pytest.raises(ValueError, match="positive integer value, got 0"):
        BatchSampler(range(5), 0, drop_last=False)
    with pytest.raises(ValueError, match="positive integer value, got 0"):
        RandomSampler(range(5), num_samples=0)
    with pytest.raises(TypeError, match="'num_samples': expected int or None, got float"):
        RandomSampler(range(5), num_samples=1.5)
    with pytest.raises(ValueError, match="expected 1 dimension"):
        WeightedRandomSampler([[1.0]], 2)


# --- collation ----------------------------------------------------------------------------------

Pair = namedtuple("Pair", "a b")  # noqa: PYI024 - what people bring


def test_batches_have_the_structure_of_samples() -> None:
    found = default_collate(
        [
            {"x": tp.ones(2), "n": 1, "t": "a", "p": Pair(1.5, np.zeros(3, np.float32))},
            {"x": tp.zeros(2), "n": 2, "t": "b", "p": Pair(2.5, np.ones(3, np.float32))},
        ]
    )
    assert found["x"].shape == (2, 2)
    assert found["n"].dtype is tp.int64
    assert found["t"] == ["a", "b"]
    assert isinstance(found["p"], Pair)
    assert found["p"].a.dtype is tp.float64
    assert found["p"].b.shape == (2, 3)
    assert default_collate([True, False]).dtype is tp.bool
    assert default_collate([np.float32(1), np.float32(2)]).dtype is tp.float32
    with pytest.raises(RuntimeError, match="should be of equal size"):
        default_collate([[1], [1, 2]])
    with pytest.raises(TypeError, match="got object"):
        default_collate([object()])


# --- loaders ------------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [0, 2])
def test_batches_come_in_order(workers: int) -> None:
    loader = DataLoader(Squares(7), 3, num_workers=workers)
    assert len(loader) == 3
    for _ in range(2):
        assert [b.tolist() for b in loader] == [[0, 1, 4], [9, 16, 25], [36]]
    short = DataLoader(Squares(7), 3, drop_last=True, num_workers=workers)
    assert [b.tolist() for b in short] == [[0, 1, 4], [9, 16, 25]]


def test_shuffling_is_that_of_the_generator() -> None:
    def orders(workers: int) -> list[list[int]]:
        g = tp.Generator().manual_seed(5)
        loader = DataLoader(Squares(9), None, shuffle=True, generator=g, num_workers=workers)
        return [[int(x) for x in loader] for _ in range(2)]

    first, second = orders(0)
    assert sorted(first) == [i * i for i in range(9)]
    assert first != second
    assert orders(0) == [first, second]
    assert sorted(orders(1)[0]) == sorted(first)


def test_other_samplers_and_collations() -> None:
    loader = DataLoader(Squares(5), 2, sampler=[4, 0, 2], collate_fn=sum)
    assert list(loader) == [16, 4]
    loader = DataLoader(Squares(5), batch_sampler=[[1], [2, 3]])
    assert [b.tolist() for b in loader] == [[1], [4, 9]]
    assert len(loader) == 2
    assert list(DataLoader(Squares(3), batch_size=None)) == [0, 1, 4]


def test_streams() -> None:
    assert [b.tolist() for b in DataLoader(Stream(), 2)] == [[0, 1], [2, 3], [4]]
    assert [b.tolist() for b in DataLoader(Stream(), 2, drop_last=True)] == [[0, 1], [2, 3]]
    assert list(DataLoader(Stream(), None)) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"batch_size": 0}, "'batch_size': should be a positive integer"),
        ({"num_workers": -1}, "'num_workers': expected at least 0"),
        ({"timeout": -1}, "'timeout'"),
        ({"shuffle": True, "sampler": [0]}, "mutually exclusive with shuffle"),
        ({"batch_sampler": [[0]], "drop_last": True}, "mutually exclusive with batch_size"),
        ({"batch_size": None, "drop_last": True}, "mutually exclusive with batch_size=None"),
        ({"prefetch_factor": 3}, "'prefetch_factor': needs num_workers > 0"),
        ({"persistent_workers": True}, "'persistent_workers': needs num_workers > 0"),
        ({"num_workers": 1, "prefetch_factor": 0}, "expected at least 1, got 0"),
    ],
)
def test_options_that_exclude_each_other(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        DataLoader(Squares(3), **options)


def test_streams_refuse_an_order() -> None:
    for options in ({"shuffle": True}, {"sampler": [0]}):
        with pytest.raises(ValueError, match="IterableDataset"):
            DataLoader(Stream(), **options)  # type: ignore[arg-type]


# --- worker processes ---------------------------------------------------------------------------


class Fails(Squares):
    def __getitem__(self, index: int) -> int:
        if index == 2:
            raise KeyError("the third")
        return super().__getitem__(index)


class Dies(Squares):
    def __getitem__(self, index: int) -> int:
        os._exit(3)


class Sleeps(Squares):
    def __getitem__(self, index: int) -> int:
        time.sleep(3)
        return index


class Where(Squares):
    def __getitem__(self, index: int) -> Any:
        info = get_worker_info()
        assert info is not None
        assert info.dataset.size == self.size
        return info.id, info.num_workers, float(tp.rand(()))


def test_workers_know_who_they_are_and_draw_different_numbers() -> None:
    g = tp.Generator().manual_seed(0)
    loader = DataLoader(Where(40), 1, num_workers=2, generator=g)
    ids, counts, numbers = zip(*((int(a), int(b), float(c)) for a, b, c in loader), strict=True)
    assert set(ids) <= {0, 1}
    assert set(counts) == {2}
    assert len(set(numbers)) == len(numbers)
    assert get_worker_info() is None


def test_failures_of_workers_are_told() -> None:
    with pytest.raises(KeyError, match="the third"):
        list(DataLoader(Fails(5), 2, num_workers=1))
    with pytest.raises(RuntimeError, match="a worker process ended"):
        list(DataLoader(Dies(5), 2, num_workers=1))
    with pytest.raises(RuntimeError, match=r"gave no batch within 0\.2 s"):
        list(DataLoader(Sleeps(2), 2, num_workers=1, timeout=0.2))


def test_loops_that_end_early_leave_no_worker() -> None:
    loader = DataLoader(Squares(100), 1, num_workers=2, persistent_workers=True)
    for i, _ in enumerate(loader):
        if i == 3:
            break
    assert [int(b) for b in loader][:3] == [0, 1, 4]
    pool = loader._pool
    assert pool is not None
    assert len(list(loader)) == 100
    assert loader._pool is pool
    pool.shutdown()


def started(number: int) -> None:
    os.environ["TENSORPLAY_TEST_WORKER"] = str(number)


class Variable(Squares):
    def __getitem__(self, index: int) -> str:
        return os.environ["TENSORPLAY_TEST_WORKER"]


def test_workers_are_set_up() -> None:
    found = list(DataLoader(Variable(4), 1, num_workers=1, worker_init_fn=started))
    assert found == [["0"]] * 4
