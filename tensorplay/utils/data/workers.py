"""What runs in the worker processes of a loader."""

from __future__ import annotations

import multiprocessing
import multiprocessing.connection
import os
import pickle
import random as python_random
import signal
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, NoReturn

import numpy as np

from tensorplay import random

__all__ = [
    "Failure",
    "Task",
    "WorkerInfo",
    "fetch",
    "fetch_next",
    "forget",
    "get_worker_info",
    "start",
]


@dataclass(frozen=True)
class WorkerInfo:
    """Which worker process this is.

    Attributes
    ----------
    id
        Its number, from 0.
    num_workers
        How many there are.
    seed
        That of its random numbers.
    dataset
        Its copy of the dataset.
    """

    id: int
    num_workers: int
    seed: int
    dataset: Any


@dataclass(frozen=True)
class Task:
    """What each worker gets once."""

    dataset: Any
    collate: Callable[[Any], Any]
    init: Callable[[int], Any] | None
    num_workers: int
    seed: int


class _WorkerError(Exception):
    """The cause of an exception of a worker: its traceback there."""


@dataclass(frozen=True)
class Failure:
    """What a worker sends when the dataset raises: the exception, and its traceback.

    It is sent as a result, so that an exception of the pool's own means that sending failed.
    """

    error: Exception
    text: str

    @staticmethod
    def of(error: Exception) -> Failure:
        """Return what of an exception arrives in the other process."""
        text = "".join(traceback.format_exception(error))
        try:
            pickle.loads(pickle.dumps(error))  # noqa: S301 - what was just written
        except Exception:  # noqa: BLE001 - classes of people may raise anything
            error = RuntimeError(f"[DataLoader] a worker process raised:\n{text}")
        return Failure(error, text)

    def throw(self) -> NoReturn:
        """Raise the exception, with the traceback in the worker as its cause."""
        raise self.error from _WorkerError(f"\n{self.text}")


_info: WorkerInfo | None = None
_task: Task | None = None
_failure: Failure | None = None
_samples: dict[int, Iterator[Any]] = {}  # what is left of an `IterableDataset`, for each loop


def get_worker_info() -> WorkerInfo | None:
    """Return which worker process of a `DataLoader` this is, None outside of one.

    Returns
    -------
    WorkerInfo or None
        Number, seed and dataset.
    """
    return _info


def start(task: Task, ids: Any) -> None:
    """Make this process a worker; `ids` counts those that started."""
    global _failure, _info, _task  # noqa: PLW0603 - one worker is one process
    # An interrupt from the keyboard reaches all processes: this one's parent ends it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # A parent that is killed, such as a kernel that does not restart in time, ends no worker.
    threading.Thread(target=_end_with_parent, daemon=True).start()
    with ids.get_lock():
        number = ids.value
        ids.value += 1
    _task = task
    _info = WorkerInfo(number, task.num_workers, task.seed + number, task.dataset)
    # A forked process has the state of its parent: without this, all workers, and those of the
    # next loop again, would draw the same numbers.
    random.manual_seed(_info.seed)
    python_random.seed(_info.seed)
    np.random.seed(_info.seed % 2**32)  # noqa: NPY002 - what datasets of people draw from
    if task.init is not None:
        try:
            task.init(number)
        except Exception as error:  # noqa: BLE001 - told by the first batch
            _failure = Failure.of(error)


def _end_with_parent() -> None:
    """End this process when the one that started it is gone, however it ended."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        multiprocessing.connection.wait([parent.sentinel])
        os._exit(1)


def _worker_task() -> Task:
    """Return what this worker got."""
    if _task is None:
        message = f"[DataLoader] {multiprocessing.current_process().name} is no worker."
        raise RuntimeError(message)
    return _task


def fetch_next(loop: int, size: int | None, *, drop_last: bool) -> tuple[Any, ...] | Failure:
    """Return the next batch of an `IterableDataset`, in a tuple; an empty one at the end.

    Without a size it is the next sample. `loop` says which of several loops goes on.
    """
    task = _worker_task()
    if _failure is not None:
        return _failure
    try:
        if loop not in _samples:
            _samples[loop] = iter(task.dataset)
        batch = list(islice(_samples[loop], size or 1))
        if not batch or (size is not None and drop_last and len(batch) < size):
            return ()
        return (task.collate(batch if size is not None else batch[0]),)
    except Exception as error:  # noqa: BLE001 - raised again where the loop is
        return Failure.of(error)


def forget(loop: int) -> None:
    """Drop what is left of a loop's samples."""
    _samples.pop(loop, None)


def fetch(indices: Sequence[Any] | Any, *, batched: bool) -> Any:
    """Return the batch of some samples."""
    task = _worker_task()
    if _failure is not None:
        return _failure
    try:
        if not batched:
            return task.collate(task.dataset[indices])
        return task.collate([task.dataset[i] for i in indices])
    except Exception as error:  # noqa: BLE001 - raised again where the loop is
        return Failure.of(error)
