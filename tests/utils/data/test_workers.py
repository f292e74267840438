"""Workers of loaders: their random numbers, failures, and loops that end early."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import tensorplay as tp
from tensorplay.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info


class Rows(Dataset[Any]):
    """What a function gives for each index."""

    def __init__(self, function: Any, size: int = 6) -> None:
        self.function, self.size = function, size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> Any:
        return self.function(index)


def test_workers_and_loops_draw_different_numbers_of_all_kinds() -> None:
    def draw(index: int) -> Any:
        time.sleep(0.01)  # so that both workers have a share
        return random.random(), float(np.random.rand()), float(tp.rand(()))  # noqa: NPY002

    loader = DataLoader(Rows(draw, 12), 1, num_workers=2, generator=tp.Generator().manual_seed(0))
    first, second = ([tuple(map(float, b)) for b in loader] for _ in range(2))
    for kind in range(3):
        numbers = [row[kind] for row in first + second]
        assert len(set(numbers)) == len(numbers)


class PickyError(Exception):
    """Cannot be made of its message alone, so it cannot be unpickled."""

    def __init__(self, code: int, *, where: str) -> None:
        super().__init__(f"{code} at {where}")

    def __reduce__(self) -> Any:
        # What Python does by itself; packages that make all exceptions picklable change it.
        return PickyError, self.args


def test_exceptions_that_cannot_be_pickled_arrive_with_their_traceback() -> None:
    def fail(index: int) -> Any:
        raise PickyError(7, where="the sea")

    with pytest.raises(RuntimeError, match=r"(?s)worker process raised:.*PickyError: 7 at the sea"):
        list(DataLoader(Rows(fail), num_workers=1))


def test_a_set_up_that_fails_says_why() -> None:
    def set_up(number: int) -> None:
        raise OSError("no such camera")

    with pytest.raises(OSError, match="no such camera"):
        list(DataLoader(Rows(int), num_workers=2, worker_init_fn=set_up))


def test_persistent_workers_outlive_what_is_no_fault_of_theirs() -> None:
    def fail(index: int) -> Any:
        if index == 3:
            raise LookupError(index)
        return os.getpid()

    loader = DataLoader(Rows(fail), None, num_workers=1, persistent_workers=True)
    with pytest.raises(LookupError, match="3"):
        list(loader)
    pool = loader._pool
    one, two = iter(loader), iter(loader)  # at once
    assert next(one) == next(two)
    one.close()
    assert next(two) == next(two)
    two.close()
    assert loader._pool is pool
    assert pool is not None
    pool.shutdown()


def test_a_worker_that_hangs_keeps_no_program_from_ending() -> None:
    text = """
        import time
        from tensorplay.utils.data import DataLoader

        class Hangs:
            def __len__(self):
                return 2

            def __getitem__(self, index):
                time.sleep(600)

        try:
            list(DataLoader(Hangs(), num_workers=1, timeout=0.3))
        except RuntimeError as error:
            raise SystemExit("gave no batch" not in str(error))
    """
    found = subprocess.run([sys.executable, "-c", textwrap.dedent(text)], timeout=60, check=False)
    assert found.returncode == 0


def test_arguments_stand_where_people_put_them() -> None:
    loader = DataLoader(Rows(int, 5), 2, False, None, None, 0, None, True)
    assert loader.pin_memory
    assert [b.tolist() for b in loader] == [[0, 1], [2, 3], [4]]


@pytest.mark.parametrize("order", [np.array([4, 0, 2]), tp.tensor([4, 0, 2]), []])
def test_orders_of_any_kind(order: Any) -> None:
    found = [i for b in DataLoader(Rows(int, 5), 2, sampler=order) for i in b.tolist()]
    assert found == [int(i) for i in order]


class Stream(IterableDataset[int]):
    """Numbers, of which each worker takes a share."""

    def __init__(self, size: int, *, shared: bool = True) -> None:
        self.size, self.shared = size, shared

    def __iter__(self) -> Iterator[int]:
        info = get_worker_info()
        if info is None or not self.shared:
            return iter(range(self.size))
        return iter(range(info.id, self.size, info.num_workers))


def test_workers_share_a_stream_and_take_turns() -> None:
    loader = DataLoader(Stream(11), 2, num_workers=2, persistent_workers=True)
    expected = [[0, 2], [1, 3], [4, 6], [5, 7], [8, 10], [9]]
    for _ in range(2):
        assert [b.tolist() for b in loader] == expected
    one, two = iter(loader), iter(loader)  # at once
    assert next(one).tolist() == next(two).tolist() == [0, 2]
    one.close()
    assert [b.tolist() for b in two] == expected[1:]
    for pool in loader._readers:
        pool.shutdown()


def test_each_worker_reads_a_stream_that_is_not_shared() -> None:
    whole = DataLoader(Stream(3, shared=False), None, num_workers=2)
    assert list(whole) == [0, 0, 1, 1, 2, 2]
    batches = DataLoader(Stream(3, shared=False), 2, num_workers=2, drop_last=True)
    assert [b.tolist() for b in batches] == [[0, 1], [0, 1]]
    assert list(DataLoader(Stream(0), 2, num_workers=1)) == []


def test_a_stream_that_fails_in_a_worker_says_why() -> None:
    class Broken(IterableDataset[int]):
        def __iter__(self) -> Iterator[int]:
            yield 1
            raise LookupError("the tape is torn")

    class Hangs(IterableDataset[int]):
        def __iter__(self) -> Iterator[int]:
            time.sleep(600)
            yield 1

    found = iter(DataLoader(Broken(), 1, num_workers=1))
    assert next(found).tolist() == [1]
    with pytest.raises(LookupError, match="the tape is torn"):
        next(found)
    with pytest.raises(RuntimeError, match="gave no batch"):
        list(DataLoader(Hangs(), 1, num_workers=1, timeout=0.2))
