"""What runs in the worker processes of a loader."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tensorplay import random

__all__ = ["Task", "WorkerInfo", "fetch", "get_worker_info", "start"]


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


_info: WorkerInfo | None = None
_task: Task | None = None


def get_worker_info() -> WorkerInfo | None:
    """Return which worker process of a `DataLoader` this is, None outside of one."""
    return _info


def start(task: Task, ids: Any) -> None:
    """Make this process a worker; `ids` counts those that started."""
    global _info, _task  # noqa: PLW0603 - one worker is one process
    with ids.get_lock():
        number = ids.value
        ids.value += 1
    _task = task
    _info = WorkerInfo(number, task.num_workers, task.seed + number, task.dataset)
    random.manual_seed(_info.seed)
    # The workers share the machine; each takes one of its cores.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    if task.init is not None:
        task.init(number)


def fetch(indices: Sequence[Any] | Any, *, batched: bool) -> Any:
    """Return the batch of some samples."""
    if _task is None:
        message = f"[DataLoader] {multiprocessing.current_process().name} is no worker."
        raise RuntimeError(message)
    if not batched:
        return _task.collate(_task.dataset[indices])
    return _task.collate([_task.dataset[i] for i in indices])
