"""The check worker's own side: what the child process does with a request.

A kernel runs here with everything that this process has. Its memory is limited, it gets no core
file, and its standard streams are kept apart from the channel.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import socket
import sys
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

import tensorplay as tp
from tensorplay.library.modules.spec import CellSpec
from tensorplay.utils import cpp_jit
from tensorplay.utils.cpp_jit.resources import free_memory
from tpkernel.worker.channel import Channel, ClosedError
from tpkernel.worker.endings import END_LIMIT, may_act_at_exit, try_end
from tpkernel.worker.lifeline import end_with_session
from tpkernel.worker.surroundings import Surroundings, threads
from tpkernel.worker.transfer import Packet, pack, unpack

__all__ = ["serve"]

#: Part of the free memory that kernels under check may take.
_SHARE = 0.8
#: Seconds that threads get to end by themselves when the checks are done.
_THREADS_END = 2.0
_PR_SET_CHILD_SUBREAPER = 36
#: Run-time libraries of OpenMP, GCC's and clang's, and what asks them to let go of all they have.
_OPENMP = ("libgomp.so.1", "libomp.so.5", "libomp.so")
_OMP_PAUSE_HARD = 2


class _WorkerChannel(Channel):
    """The worker's end, which copies of the worker do not use."""

    def __init__(self, end: socket.socket, secret: bytes) -> None:
        super().__init__(end, secret)
        self._owner = os.getpid()

    def send(self, message: Any) -> None:
        """Send one message; in a copy of the worker, end it."""
        if os.getpid() != self._owner:
            # A copy that a kernel made by fork() and that came back from it: there is one worker.
            os._exit(0)
        super().send(message)


def serve(descriptor: int, secret: str, *, lifeline: int, sanitized: bool = False) -> None:
    """Run requests until the other end closes: the child's main function.

    Parameters
    ----------
    descriptor
        The inherited socket.
    secret
        The connection's secret, in hexadecimal digits.
    lifeline
        The inherited end of a pipe that the session holds.
    sanitized
        A sanitizer's run-time is loaded: it handles signals and memory itself.
    """
    import faulthandler

    end_with_session(lifeline)
    channel = _WorkerChannel(socket.socket(fileno=descriptor), bytes.fromhex(secret))
    if not sanitized:
        faulthandler.enable()
    _limit(memory=not sanitized)
    _adopt_orphans()
    streams = _Streams()
    from tpkernel.checks import suite

    folder = Path.cwd()
    helpers: Any = None
    _LIMITS.keep()
    channel.send("ready")
    loaded: dict[str, SimpleNamespace] = {}
    while True:
        try:
            kind, *rest = channel.receive(None)
        except ClosedError:
            os._exit(0)
        try:
            # What the kernels before have changed in this process is not the next one's doing.
            with contextlib.suppress(OSError):
                os.chdir(folder)
            if hasattr(signal, "pthread_sigmask"):
                signal.pthread_sigmask(signal.SIG_SETMASK, ())
            if not sanitized:
                faulthandler.enable()
                if helpers is not None:
                    helpers.install()
            if kind == "check":
                _check(channel, *rest, sanitized=sanitized, helpers=helpers)
            elif kind == "install":
                helpers = cpp_jit.load_module(*rest)
                helpers.install()
                if sys.platform == "linux":
                    session = os.getppid()
                    helpers.guard_session(session, os.getpgid(session))
            elif kind == "load":
                spec, library = rest
                loaded[library] = suite.load_kernels(spec, library)
            else:
                library, export, packet, written = rest
                with streams.shown():
                    answer = _called(getattr(loaded[library], export), packet, written)
                _stop_if_changed()
                channel.send(answer)
            channel.send(("done", None))
        except _ProcessesLeft:
            channel.send(("left", None))
            channel.send(("done", None))
        except _LimitsLowered as change:
            channel.send(("lowered", str(change)))
            channel.send(("done", None))
        except Exception as problem:  # noqa: BLE001  (told to the parent, which knows what ran)
            if lowered := _LIMITS.lowered():  # as whatever needed it has found before us
                channel.send(("lowered", lowered))
                channel.send(("done", None))
            else:
                said = f"{type(problem).__name__}: {problem}"
                channel.send(("failed", (said, traceback.format_exc())))
        signal.setitimer(signal.ITIMER_REAL, 0)


def _check(
    channel: Channel,
    spec: CellSpec,
    library: str,
    wanted: Any,
    seed: int,
    budget: float,
    *,
    sanitized: bool,
    helpers: Any,
) -> None:
    """Run a request's checks, and send what they find and what the kernels leave behind."""
    from tpkernel.checks import suite

    # If the parent dies, nobody is left to end an endless loop: the alarm's default action is.
    _SURROUNDINGS.set_alarm(budget + 5)
    ends = helpers is not None and isinstance(wanted, tuple) and sys.platform == "linux"
    ends = ends and bool(wanted) and may_act_at_exit(library)
    if ends:
        helpers.mark()
    if helpers is not None:
        _SURROUNDINGS.keep()
    before = threads()
    operators, kernels = suite.load_operators(spec, library)
    if helpers is None:  # the first library that is loaded sets a handler of ours
        _SURROUNDINGS.keep()
    names = ", ".join(o.name for o in spec.operators)

    def progress(text: str) -> None:
        _announce(channel, text)

    if changes := _SURROUNDINGS.changed():
        progress(f"memory check of {names}, as its library is loaded")
        channel.send(("changed", changes))
    if not isinstance(wanted, tuple):
        records = suite.run_job(spec, operators, kernels, wanted, progress)
    else:
        records = suite.run_checks(
            spec,
            operators,
            kernels,
            checks=wanted,
            seed=seed,
            library=library,
            sanitized=sanitized,
            progress=progress,
        )
    for record in records:
        channel.send(("record", record))
    _stop_if_changed()
    _tell_changes(channel)
    if isinstance(wanted, tuple) and threads() > before and not _has_openmp(library):
        progress(f"memory check of {names}, in threads that the calls left running")
        if left := _threads_left(before):
            channel.send(("threads", f"{left} threads" if left > 1 else "a thread"))
    if ends:
        progress(f"memory check of {names}, as the process ends")
        signal.setitimer(signal.ITIMER_REAL, END_LIMIT + 5)
        if threads() > before and _has_openmp(library):
            _end_openmp_threads()
            _threads_left(before)
        if threads() > before:  # a copy would not have them, and may wait for one at its end
            channel.send(("leaving", None))
            helpers.leave(Path(library).name)
        channel.send(("ended", try_end(helpers.leave, library)))
        _stop_if_changed()


def _called(function: Any, packet: Packet, written: tuple[int, ...]) -> tuple[str, Any]:
    """Call a kernel; return its result, or its error, with the memory that it may have written."""
    values = unpack(packet)

    def after() -> Packet:
        return pack([v if i in written else None for i, v in enumerate(values)])

    try:
        result = function(*values)
    except Exception as problem:  # noqa: BLE001  (the kernel's, or a guard's: raised in the session)
        return "raised", (type(problem).__name__, str(problem), after())
    if isinstance(result, tp.Tensor):
        for index, value in enumerate(values):
            if isinstance(value, tp.Tensor) and np.may_share_memory(result.numpy(), value.numpy()):
                return "returned", (index, None, after())  # the session has a rule for that
    try:
        packed = pack([result])
    except TypeError as problem:
        text = f"result: {problem}. Run the cell without --isolate"
        return "raised", ("TypeError", text, after())
    return "returned", (None, packed, after())


class _Streams:
    """The standard streams, which show only what an isolated call writes.

    The error stream stays open, since C libraries write there why they end a process.
    """

    def __init__(self) -> None:
        self._output = os.dup(1)
        self._nowhere = os.open(os.devnull, os.O_WRONLY)
        self._libc = ctypes.CDLL(None)
        os.dup2(self._nowhere, 1)

    @contextlib.contextmanager
    def shown(self) -> Iterator[None]:
        """Let what is written meanwhile reach the session."""
        self._libc.fflush(None)
        os.dup2(self._output, 1)
        try:
            yield
        finally:
            sys.stdout.flush()
            self._libc.fflush(None)
            os.dup2(self._nowhere, 1)


def _adopt_orphans() -> None:
    """Let processes whose parent ends become children of this one, so that they are found."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _limit(*, memory: bool) -> None:
    with contextlib.suppress(ImportError, ValueError, OSError):
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        free = free_memory()
        if memory and free is not None:
            # Memory that is set, not address space: allocators and threads reserve more than that.
            _, hard = resource.getrlimit(resource.RLIMIT_DATA)
            limit = max(1 << 30, int(_SHARE * free))
            if hard != resource.RLIM_INFINITY:
                limit = min(limit, hard)
            resource.setrlimit(resource.RLIMIT_DATA, (limit, hard))


class _Limits:
    """What the system grants to this process, before any kernel has run and now."""

    def __init__(self) -> None:
        self._names: dict[int, str] = {}
        self._before: dict[int, int] = {}

    def keep(self) -> None:
        """Remember what is granted now."""
        with contextlib.suppress(ImportError):  # Windows has no such limits
            import resource

            for name in dir(resource):
                if name.startswith("RLIMIT_"):  # some are names of one limit: the first is shown
                    self._names.setdefault(getattr(resource, name), name)
        self._before = self._now()

    def lowered(self) -> str:
        """Say which limits are lower than those remembered, or return an empty text."""
        now = self._now()
        return ", ".join(
            f"{self._names[limit]} from {_amount(before)} to {_amount(now[limit])}"
            for limit, before in self._before.items()
            if now[limit] < before
        )

    def _now(self) -> dict[int, int]:
        if not self._names:
            return {}
        from resource import RLIM_INFINITY, getrlimit

        soft = {limit: getrlimit(limit)[0] for limit in self._names}
        return {k: _UNLIMITED if v == RLIM_INFINITY else v for k, v in soft.items()}


_UNLIMITED = sys.maxsize
_LIMITS = _Limits()
_SURROUNDINGS = Surroundings()


def _amount(limit: int) -> str:
    return "unlimited" if limit == _UNLIMITED else str(limit)


# No `Exception`s: checks catch those, as what a kernel or a formula raises.
class _LimitsLowered(BaseException):
    """The kernel called last has taken away what this process may use."""


class _ProcessesLeft(BaseException):
    """The kernel called last left processes behind."""


def _announce(channel: Channel, text: str) -> None:
    _stop_if_changed()
    _tell_changes(channel)
    channel.send(("progress", text))


def _stop_if_changed() -> None:
    """Raise if this process has children, or less than it may use: no check of ours does that."""
    if hasattr(os, "WNOHANG"):
        with contextlib.suppress(ChildProcessError):
            os.waitpid(-1, os.WNOHANG)
            raise _ProcessesLeft
    if lowered := _LIMITS.lowered():
        raise _LimitsLowered(lowered)


def _tell_changes(channel: Channel) -> None:
    if changes := _SURROUNDINGS.changed():
        channel.send(("changed", changes))


def _has_openmp(library: str) -> bool:
    """Return whether a library uses OpenMP, whose threads wait for the next loop."""
    code = Path(library).read_bytes()
    return b"GOMP_" in code or b"__kmpc_" in code


def _end_openmp_threads() -> None:
    """Let the threads end that wait for OpenMP's next loop, which starts others then."""
    for name in _OPENMP:
        with contextlib.suppress(OSError, AttributeError):  # not loaded, or older than OpenMP 5
            ctypes.CDLL(name, mode=os.RTLD_NOLOAD).omp_pause_resource_all(_OMP_PAUSE_HARD)


def _threads_left(before: int) -> int:
    """Return how many threads more than before are there, when they had time to end or to crash."""
    deadline = time.monotonic() + _THREADS_END
    while threads() > before and time.monotonic() < deadline:
        time.sleep(0.01)
    return max(0, threads() - before)
