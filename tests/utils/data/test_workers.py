"""Workers of loaders: their random numbers, failures, and loops that end early."""

from __future__ import annotations

import os
import pickle
import random
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
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


@pytest.mark.parametrize(
    "use",
    [
        "batches = iter(DataLoader(Hangs(), num_workers=2)); print(*next(batches))",
        "batches = iter(DataLoader(Stream(), num_workers=2)); print(*next(batches))",
        "x = DataLoader(Hangs(), num_workers=2, persistent_workers=True); print(*next(iter(x)))",
    ],
    ids=["open", "stream", "persistent"],
)
def test_open_loops_and_kept_workers_that_hang_keep_no_program_from_ending(use: str) -> None:
    text = """
        import time
        from tensorplay.utils.data import DataLoader, IterableDataset

        class Hangs:
            def __len__(self):
                return 9

            def __getitem__(self, index):
                if index:
                    time.sleep(600)
                return index

        class Stream(IterableDataset):
            def __iter__(self):
                yield 0
                time.sleep(600)

    """
    program = subprocess.Popen(
        [sys.executable, "-u", "-c", textwrap.dedent(text) + use],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert program.stdout is not None
        assert program.stdout.readline() == "tensor(0)\n"
        rest = program.communicate(timeout=10)
    finally:
        program.kill()
    assert (program.returncode, *rest) == (0, "", "")


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


class Endless(Dataset[Any]):
    """The first sample, and then a worker that never answers."""

    def __len__(self) -> int:
        return 9

    def __getitem__(self, index: int) -> Any:
        if index:
            time.sleep(600)
        return index


def run_apart(text: str, *args: str) -> subprocess.Popen[str]:
    """Run a program that has this module's datasets."""
    program = f"from {__name__} import *\n{textwrap.dedent(text)}"
    return subprocess.Popen(
        [sys.executable, "-c", program, *args],
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[3],
    )


@pytest.mark.slow
def test_a_loop_that_ends_early_leaves_a_program_that_ends() -> None:
    text = """
        for batch in DataLoader(Endless(), num_workers=2):
            break
        print(batch.item())
    """
    with run_apart(text) as program:
        assert program.communicate(timeout=60)[0] == "0\n"
    assert program.returncode == 0


def test_an_interrupt_ends_the_loop_and_its_workers() -> None:
    text = """
        batches = iter(DataLoader(Endless(), num_workers=1))
        try:
            print(next(batches).item(), flush=True)
            next(batches)
        except KeyboardInterrupt:
            print("interrupted", flush=True)
            os._exit(5)  # the grace of a loop that ended early is another test's
    """
    with run_apart(text) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == "0\n"
        time.sleep(0.2)
        program.send_signal(signal.SIGINT)
        assert program.stdout.readline() == "interrupted\n"
        assert program.wait(30) == 5


@pytest.mark.skipif(os.name != "posix", reason="signals and process numbers are POSIX's")
def test_workers_end_with_a_parent_that_is_killed() -> None:
    text = """
        loader = DataLoader(Rows(lambda i: os.getpid()), None, num_workers=1,
                            persistent_workers=True)
        print(next(iter(loader)), flush=True)
        time.sleep(600)
    """
    with run_apart(text) as program:
        assert program.stdout is not None
        worker = int(program.stdout.readline())
        os.kill(worker, 0)  # it is there
        program.kill()
        program.wait(30)
        for _ in range(300):
            try:
                os.kill(worker, 0)
            except ProcessLookupError:
                return
            time.sleep(0.1)
    raise AssertionError(worker)


@pytest.mark.parametrize("argument", ["dataset", "collate_fn", "worker_init_fn"])
def test_what_pickle_refuses_is_told_when_workers_are_not_forked(argument: str) -> None:
    dataset = Rows((lambda i: i) if argument == "dataset" else int)
    options: dict[str, Any] = {} if argument == "dataset" else {argument: lambda x: x}
    loader = DataLoader(dataset, num_workers=1, multiprocessing_context="spawn", **options)
    with pytest.raises(
        pickle.PicklingError, match=rf"argument '{argument}': .*<lambda>.*top of a module"
    ):
        list(loader)


@pytest.mark.parametrize(
    "batch",
    [
        lambda: lambda: 1,
        lambda: (i for i in range(2)),
        lambda: tp.ones(1, requires_grad=True) * 2,
    ],
    ids=["function", "generator", "computed tensor"],
)
def test_batches_that_cannot_be_sent_are_told(batch: Any) -> None:
    dataset = Rows(lambda i: batch())
    with pytest.raises(pickle.PicklingError, match=r"a batch cannot be sent.*num_workers=0\.$"):
        list(DataLoader(dataset, None, num_workers=1, collate_fn=lambda x: x))


def test_what_a_dataset_raises_has_the_traceback_of_the_worker() -> None:
    def unreadable(index: int) -> Any:
        raise pickle.PicklingError("of the dataset's own")

    with pytest.raises(pickle.PicklingError, match=r"^of the dataset's own$") as caught:
        list(DataLoader(Rows(unreadable), num_workers=1))
    assert "in unreadable" in str(caught.value.__cause__)


def test_a_dataset_may_run_out_of_time_by_itself() -> None:
    def slow(index: int) -> Any:
        raise TimeoutError("of the camera")

    with pytest.raises(TimeoutError, match="of the camera"):
        list(DataLoader(Rows(slow), num_workers=1, timeout=30))


def test_large_tensors_arrive_as_they_are() -> None:
    def image(index: int) -> Any:
        return {"pixels": tp.full((3, 700, 700), float(index)), "name": f"{index}.png"}

    found = list(DataLoader(Rows(image, 4), 2, num_workers=2))
    assert [b["name"] for b in found] == [["0.png", "1.png"], ["2.png", "3.png"]]
    for at, batch in enumerate(found):
        expected = tp.tensor([2.0 * at, 2.0 * at + 1]).reshape(2, 1, 1, 1)
        assert tp.equal(batch["pixels"], expected.expand(2, 3, 700, 700))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"dataset": 3}, r"'dataset': expected samples by index.*got int\. Write a class"),
        ({"dataset": iter([1])}, r"'dataset'.*derive one with __iter__ from IterableDataset"),
        ({"batch_size": "2"}, "'batch_size': expected int or None, got str"),
        ({"batch_size": 2.0}, "'batch_size': expected int or None, got float"),
        ({"num_workers": None}, "'num_workers': expected int, got NoneType"),
        ({"collate_fn": 3}, "'collate_fn': expected a function or None, got int"),
    ],
)
def test_options_of_another_kind_are_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(TypeError, match=words):
        DataLoader(**{"dataset": Rows(int), **options})
