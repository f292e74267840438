"""`DataLoader`: batches of a dataset, made here or by worker processes."""

from __future__ import annotations

import atexit
import functools
import multiprocessing
import multiprocessing.connection
import os
import pickle
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor, TimeoutError as NoBatch
from concurrent.futures.process import BrokenProcessPool
from itertools import count, islice
from typing import Any

from tensorplay import random
from tensorplay.ops.kinds import checked
from tensorplay.utils.data import workers
from tensorplay.utils.data.collate import default_collate, default_convert
from tensorplay.utils.data.datasets import IterableDataset
from tensorplay.utils.data.samplers import BatchSampler, RandomSampler, SequentialSampler

__all__ = ["DataLoader"]


# Seconds in which the workers of a loop that ended early may finish what they do.
_GRACE = 5.0

# Seconds that workers have at the end of the program, when nobody reads what they make.
_LAST_GRACE = 1.0


# What a worker gets once.
_SENT = ("dataset", "collate_fn", "worker_init_fn")


def _is_picklable(value: Any) -> bool:
    try:
        pickle.dumps(value)
    except Exception:  # noqa: BLE001 - classes of people may raise anything
        return False
    return True


def _workers_of(pool: ProcessPoolExecutor) -> list[Any]:
    return list((pool._processes or {}).values())


def _kill(processes: Iterable[Any]) -> None:
    for process in processes:
        process.kill()  # nothing happens to one that has ended


# All pools, with the process that started them: one that was forked has its parent's as well.
_pools: weakref.WeakKeyDictionary[ProcessPoolExecutor, int] = weakref.WeakKeyDictionary()


def _end_workers() -> None:
    """End the workers of loops that are still open, and of loaders that keep theirs.

    The interpreter waits for them before `atexit`, and a dataset may hang.
    """
    processes = []
    for pool, owner in list(_pools.items()):
        if owner == os.getpid():
            processes += _workers_of(pool)
            pool.shutdown(wait=False, cancel_futures=True)
    waiting = [process.sentinel for process in processes]
    until = time.monotonic() + _LAST_GRACE
    while waiting and (left := until - time.monotonic()) > 0:
        ended = multiprocessing.connection.wait(waiting, left)
        waiting = [sentinel for sentinel in waiting if sentinel not in ended]
    _kill(processes)


# Those that are registered later come first: before the wait of `concurrent.futures`, which is
# registered so as well. A Python without this would only wait longer.
getattr(threading, "_register_atexit", atexit.register)(_end_workers)


class _NoWorkerError(RuntimeError):
    """A worker ended, or gave no batch in time."""


class DataLoader:
    """Batches of a dataset, anew for each loop.

    Parameters
    ----------
    dataset
        Samples by index, or an `IterableDataset`.
    batch_size
        Samples of a batch; None for samples as they are.
    shuffle
        Whether each loop has another order.
    sampler
        The order, instead of `shuffle`.
    batch_sampler
        Lists of indices, instead of `batch_size`, `shuffle`, `sampler` and `drop_last`.
    num_workers
        Processes that make batches ahead; 0 makes them here, when they are asked for.
    collate_fn
        Makes a batch of a list of samples; `default_collate` by default.
    pin_memory
        Kept as an attribute; there is no device that batches would be copied to.
    drop_last
        Whether a last batch with fewer samples is left out.
    timeout
        Seconds to wait for a batch of a worker; 0 for any time.
    worker_init_fn
        Called with the number of each worker when it starts.
    generator
        Source of the order, and of the seeds of the workers.
    prefetch_factor
        Batches that each worker makes ahead.
    persistent_workers
        Whether the workers are kept for the next loop.
    multiprocessing_context
        How workers start: ``"fork"`` where the system has it, as it passes on what a notebook
        defines, else ``"spawn"``.

    Raises
    ------
    ValueError
        Numbers out of range, or options that exclude each other.
    TypeError
        Numbers that are none, a `collate_fn` that cannot be called, or no dataset.
    pickle.PicklingError
        From the loop: what cannot be sent to or from a worker process.
    RuntimeError
        From the loop: a worker process ended, or gave no batch in time. What the dataset raises in
        a worker arrives as it is, or as a RuntimeError with its traceback if it cannot be pickled.

    Notes
    -----
    Each worker reads an `IterableDataset` from its beginning: where there are several, its
    ``__iter__`` takes a share, by `get_worker_info`, or all samples come once from each. Batches
    come by turns, one of each worker, and every worker has a last batch of its own.

    Workers draw different random numbers, each loop others: tensorplay's, NumPy's global ones and
    those of Python's `random` are seeded from `generator`.

    Examples
    --------
    >>> import tensorplay as tp
    >>> from tensorplay.utils.data import DataLoader, TensorDataset
    >>> for (batch,) in DataLoader(TensorDataset(tp.arange(5)), batch_size=2):
    ...     print(batch.tolist())
    [0, 1]
    [2, 3]
    [4]
    """

    @checked
    def __init__(
        self,
        dataset: Any,
        batch_size: int | None = 1,
        shuffle: bool | None = None,
        sampler: Iterable[Any] | None = None,
        batch_sampler: Iterable[Any] | None = None,
        num_workers: int = 0,
        collate_fn: Callable[[Any], Any] | None = None,
        pin_memory: bool = False,
        drop_last: bool = False,
        timeout: float = 0,
        worker_init_fn: Callable[[int], Any] | None = None,
        generator: Any = None,
        *,
        prefetch_factor: int | None = None,
        persistent_workers: bool = False,
        multiprocessing_context: Any = None,
    ) -> None:
        self.dataset, self.generator, self.timeout = dataset, generator, timeout
        self.num_workers, self.worker_init_fn = num_workers, worker_init_fn
        self.prefetch_factor = 2 if prefetch_factor is None else prefetch_factor
        self.persistent_workers, self.pin_memory = persistent_workers, pin_memory
        self.multiprocessing_context = multiprocessing_context
        self._pool: ProcessPoolExecutor | None = None
        self._readers: list[ProcessPoolExecutor] = []
        self._loops = count()
        iterable = isinstance(dataset, IterableDataset)
        self._check_kinds(batch_size)
        self._check_numbers(prefetch_factor)
        self._check_choices(
            iterable, batch_size, shuffle, sampler, batch_sampler, drop_last=drop_last
        )
        if sampler is None and not iterable:
            sampler = (
                RandomSampler(dataset, generator=generator)
                if shuffle
                else SequentialSampler(dataset)
            )
        order: Any = sampler
        if batch_sampler is None and batch_size is not None and not iterable:
            batch_sampler = BatchSampler(order, batch_size, drop_last)
        elif batch_sampler is not None:
            batch_size, drop_last = None, False
        self.batch_size, self.drop_last = batch_size, drop_last
        self.sampler, self.batch_sampler = sampler, batch_sampler
        self._batched = batch_sampler is not None or (iterable and batch_size is not None)
        usual = default_collate if self._batched else default_convert
        self.collate_fn = usual if collate_fn is None else collate_fn

    @staticmethod
    def _refuse(argument: str, text: str) -> None:
        message = f"[DataLoader] argument {argument!r}: {text}"
        raise ValueError(message)

    def _check_kinds(self, batch_size: Any) -> None:
        given: list[tuple[str, Any]] = [("num_workers", self.num_workers)]
        if batch_size is not None:
            given.append(("batch_size", batch_size))
        for name, value in given:
            if isinstance(value, bool) or not hasattr(value, "__index__"):
                message = (
                    f"[DataLoader] argument {name!r}: expected int, got {type(value).__name__}."
                )
                raise TypeError(message)
        if not isinstance(self.dataset, IterableDataset) and not hasattr(
            self.dataset, "__getitem__"
        ):
            message = (
                "[DataLoader] argument 'dataset': expected samples by index, or an "
                f"IterableDataset, got {type(self.dataset).__name__}. Write a class with "
                "__getitem__ and __len__, or derive one with __iter__ from IterableDataset."
            )
            raise TypeError(message)

    def _check_numbers(self, prefetch_factor: int | None) -> None:
        if self.num_workers < 0:
            self._refuse("num_workers", f"expected at least 0, got {self.num_workers}.")
        if self.timeout < 0:
            self._refuse("timeout", f"expected at least 0, got {self.timeout}.")
        if self.num_workers == 0 and (prefetch_factor is not None or self.persistent_workers):
            name = "persistent_workers" if prefetch_factor is None else "prefetch_factor"
            self._refuse(name, "needs num_workers > 0, got num_workers=0.")
        if self.prefetch_factor < 1:
            self._refuse("prefetch_factor", f"expected at least 1, got {self.prefetch_factor}.")

    def _check_choices(
        self,
        iterable: bool,
        batch_size: int | None,
        shuffle: bool | None,
        sampler: Any,
        batch_sampler: Any,
        *,
        drop_last: bool,
    ) -> None:
        if iterable:
            for name, value in (
                ("shuffle", shuffle),
                ("sampler", sampler),
                ("batch_sampler", batch_sampler),
            ):
                if value is not None and value is not False:
                    self._refuse(name, "an IterableDataset has an order of its own.")
        if shuffle and sampler is not None:
            self._refuse("sampler", "option is mutually exclusive with shuffle.")
        if batch_sampler is not None and (
            batch_size != 1 or shuffle or sampler is not None or drop_last
        ):
            self._refuse(
                "batch_sampler",
                "option is mutually exclusive with batch_size, shuffle, sampler, and drop_last.",
            )
        if batch_size is None and drop_last:
            self._refuse("drop_last", "option is mutually exclusive with batch_size=None.")
        if batch_size is not None and batch_sampler is None and batch_size < 1:
            self._refuse("batch_size", f"should be a positive integer value, got {batch_size}.")

    def __len__(self) -> int:
        if isinstance(self.dataset, IterableDataset):
            iterated: Any = self.dataset
            size = len(iterated)
            if self.batch_size is None:
                return size
            return size // self.batch_size if self.drop_last else -(-size // self.batch_size)
        counted: Any = self.batch_sampler if self._batched else self.sampler
        return len(counted)

    def __iter__(self) -> Iterator[Any]:
        if isinstance(self.dataset, IterableDataset):
            return self._by_readers() if self.num_workers else self._of_iterable()
        order: Any = self.batch_sampler if self._batched else self.sampler
        if self.num_workers:
            return self._by_workers(order)
        return self._here(order)

    def _of_iterable(self) -> Iterator[Any]:
        samples = iter(self.dataset)
        if self.batch_size is None:
            yield from map(self.collate_fn, samples)
            return
        while batch := list(islice(samples, self.batch_size)):
            if self.drop_last and len(batch) < self.batch_size:
                return
            yield self.collate_fn(batch)

    def _here(self, order: Iterable[Any]) -> Iterator[Any]:
        for chosen in order:
            found = [self.dataset[i] for i in chosen] if self._batched else self.dataset[chosen]
            yield self.collate_fn(found)

    # --- worker processes -----------------------------------------------------------------------

    def _make_pools(self, each: int) -> list[ProcessPoolExecutor]:
        """Start pools of so many workers each, `num_workers` together."""
        context = self.multiprocessing_context
        if context is None:
            methods = multiprocessing.get_all_start_methods()
            context = "fork" if "fork" in methods else "spawn"
        if isinstance(context, str):
            context = multiprocessing.get_context(context)
        seed = int(random.randint(0, 2**31, (), generator=self.generator).item())
        task = workers.Task(
            self.dataset, self.collate_fn, self.worker_init_fn, self.num_workers, seed
        )
        pools = [
            ProcessPoolExecutor(
                each,
                mp_context=context,
                initializer=workers.start,
                initargs=(task, context.Value("i", first)),
            )
            for first in range(0, self.num_workers, each)
        ]
        _pools.update(dict.fromkeys(pools, os.getpid()))
        return pools

    def _by_readers(self) -> Iterator[Any]:
        """Take turns between workers that each read the dataset: one batch of each."""
        pools = self._readers or self._make_pools(1)
        self._readers = pools if self.persistent_workers else []
        finished = lost = False
        loop = next(self._loops)
        ahead: deque[tuple[ProcessPoolExecutor, deque[Future[Any]]]] = deque()
        try:
            fetch = functools.partial(
                workers.fetch_next, loop, self.batch_size, drop_last=self.drop_last
            )
            for pool in pools:
                first = (self._submit(pool, fetch) for _ in range(self.prefetch_factor))
                ahead.append((pool, deque(first)))
            while ahead:
                pool, pending = ahead.popleft()
                ahead.append((pool, pending))
                found = self._wait(pending.popleft())
                if not found:
                    for future in ahead.pop()[1]:
                        future.cancel()
                    continue
                pending.append(self._submit(pool, fetch))
                yield found[0]
            finished = True
        except _NoWorkerError:  # nobody waits for one that hangs: not this loop, and not the end
            lost = True
            for pool in pools:
                _kill(_workers_of(pool))
            raise
        finally:
            for _, pending in ahead:
                for future in pending:
                    future.cancel()
            if lost or not self.persistent_workers:
                if self._readers is pools:
                    self._readers = []
                for pool in pools:
                    self._end(pool, finished=finished)
            else:
                for pool in pools:
                    pool.submit(workers.forget, loop)

    @staticmethod
    def _end(pool: ProcessPoolExecutor, *, finished: bool) -> None:
        processes = _workers_of(pool)
        pool.shutdown(wait=finished, cancel_futures=True)
        if processes and not finished:  # none are left of a loop that the end of the program closes
            # One that hangs must not stay.
            timer = threading.Timer(_GRACE, _kill, [processes])
            timer.daemon = True
            timer.start()

    def _submit(self, pool: ProcessPoolExecutor, fetch: Any, *args: Any) -> Future[Any]:
        try:
            return pool.submit(fetch, *args)
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            # A worker that is not forked gets its task by pickle when it starts.
            names = [name for name in _SENT if not _is_picklable(getattr(self, name))]
            if not names:
                raise
            message = (
                f"[DataLoader] argument {', '.join(map(repr, names))}: expected what a worker "
                f"process can be sent, got: {str(error).rstrip('.')}. Write functions and classes "
                "at the top of a module, or multiprocessing_context='fork'."
            )
            raise pickle.PicklingError(message) from error

    def _by_workers(self, order: Iterable[Any]) -> Iterator[Any]:
        pool = self._pool or self._make_pools(self.num_workers)[0]
        self._pool = pool if self.persistent_workers else None
        finished = lost = False
        pending: deque[Future[Any]] = deque()
        try:
            fetch = functools.partial(workers.fetch, batched=self._batched)
            chosen = iter(order)
            for indices in islice(chosen, self.num_workers * self.prefetch_factor):
                pending.append(self._submit(pool, fetch, indices))
            while pending:
                found = self._wait(pending.popleft())
                for indices in islice(chosen, 1):
                    pending.append(self._submit(pool, fetch, indices))
                yield found
            finished = True
        except _NoWorkerError:
            lost = True
            _kill(_workers_of(pool))
            raise
        finally:
            for future in pending:
                future.cancel()
            if lost or not self.persistent_workers:
                if self._pool is pool:
                    self._pool = None
                self._end(pool, finished=finished)

    def _wait(self, future: Future[Any]) -> Any:
        try:
            found = future.result(self.timeout or None)
        except BrokenProcessPool as error:
            message = (
                "[DataLoader] a worker process ended: it was killed, ran out of memory, or "
                "crashed. Write num_workers=0 to see the failure here."
            )
            raise _NoWorkerError(message) from error
        except NoBatch as error:
            message = f"[DataLoader] a worker process gave no batch within {self.timeout} s."
            raise _NoWorkerError(message) from error
        except Exception as error:
            message = (
                "[DataLoader] a batch cannot be sent from a worker process: "
                f"{str(error).rstrip('.')}. Write a collate_fn that returns what pickle takes, or "
                "num_workers=0."
            )
            raise pickle.PicklingError(message) from error
        if isinstance(found, workers.Failure):
            found.throw()
        return found
