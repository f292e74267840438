"""Kernels in a process of their own, so that one that crashes or hangs ends that one.

One warm child per session for checks. It gets a cell's spec and the library's path, runs the checks
and sends each record as it is made (:mod:`tpkernel.worker.serving`). When it dies, the last thing
it announced and the signal become a finding; the next request starts a fresh one. Isolated calls
(:mod:`tpkernel.worker.isolation`) have children of their own.
"""

from __future__ import annotations

import atexit
import math
import os
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Protocol

from tensorplay.library.modules.spec import CellSpec
from tpkernel.building.sanitizers import sanitizer_report
from tpkernel.errors import KernelCrash
from tpkernel.report.report import Finding
from tpkernel.worker.channel import Channel, ChannelError, ClosedError, channel_pair
from tpkernel.worker.children import VARIABLE, children_of, end, has_ended, threads_of, wait_ended
from tpkernel.worker.crash_stack import crash_stack_library, frames_of, named_frames, thread_of
from tpkernel.worker.endings import LAST_WORDS, wait_for_end
from tpkernel.worker.findings import (
    CHANGES,
    NOT_AGAIN,
    Blame,
    blame_of,
    crash_text,
    damage_finding,
    ending_finding,
    finding,
    how_it_ended,
    late_finding,
    own_line,
    with_doubt,
    without_repetition,
)
from tpkernel.worker.lifeline import Lifeline
from tpkernel.worker.transfer import Packet
from tpkernel.worker.written import Written

__all__ = ["Job", "Worker", "shared_worker"]

#: Seconds that a request's checks may take together.
DEFAULT_BUDGET = 20.0
#: Seconds that a fresh child may take to import what it needs.
START_LIMIT = 60.0
_TICK = 0.25
#: Requests after which the child is replaced: each leaves a loaded library behind.
_REQUESTS = 200
#: Late crashes that are kept for the next call of their library: most are never called again.
_LATE = 16
#: Processes that a kernel may have started while it runs: more are a fork() that does not end.
_CROWD = 32
#: Seconds that a child whose connection is gone gets to end by itself.
_LAST_WAIT = 5.0
#: What runs before a kernel of this request does.
_STARTING, _LOADING = "starting", "loading the library"


def _nothing(during: str) -> None:
    """Wait without telling anyone."""


class Job(Protocol):
    """What the worker runs besides the checks of a cell: plain data that says how it is done."""

    def run(
        self,
        spec: CellSpec,
        operators: Mapping[str, Any],
        kernels: SimpleNamespace,
        progress: Callable[[str], None],
    ) -> Iterable[Any]:
        """Yield records; `progress` is told what is about to run, before native code is called."""


class _FailedError(RuntimeError):
    """The child failed in our own code before it has called a kernel of this request."""


class _EarlierCrashError(RuntimeError):
    """What other requests have left has ended the child, or may have.

    Parameters
    ----------
    crash
        What is said of it where nothing else explains it.
    blame
        What it is of.
    how, said
        How the child ended, and what it wrote.
    others
        Operators of the other cells that it had run.
    """

    def __init__(
        self, crash: KernelCrash, blame: Blame, how: str, said: str, others: tuple[str, ...]
    ) -> None:
        super().__init__(str(crash))
        self.crash = crash
        self.blame = blame
        self.how = how
        self.said = said
        self.others = others

    @property
    def is_known(self) -> bool:
        """Whether frames or the thread tell that it was not the request's own."""
        return self.blame.kind == "thread" and bool(frames_of(self.said))

    def text(self, during: str = "") -> str:
        """Return the crash in words, with what was going on then."""
        how = f"{self.how} during {during}" if during else self.how
        return crash_text(how, self.said, self.crash.stack)


class Worker:
    """A child process that runs kernels.

    Requests are serialised: a callback of a widget may arrive from another thread while a cell
    waits for its checks.

    Parameters
    ----------
    environment
        Variables that the child gets besides those of this process.
    sanitized
        The child runs under a sanitizer, which handles signals and memory.
    """

    def __init__(
        self, *, environment: Mapping[str, str] | None = None, sanitized: bool = False
    ) -> None:
        self._environment = dict(environment or {})
        self._sanitized = sanitized
        self._lock = threading.RLock()
        self._process: subprocess.Popen[bytes] | None = None
        self._channel: Channel | None = None
        self._lifeline: Lifeline | None = None
        self._written: Written | None = None
        self._loaded: set[str] = set()
        self._known: dict[str, str] = {}
        self._token = ""
        self._threads = 0
        self._beside = False
        self._ready = False
        self._served = 0
        self._after, self._called = _STARTING, ""
        self._late: dict[str, KernelCrash] = {}
        self._owner = os.getpid()

    @property
    def pid(self) -> int | None:
        """Process id of the child, or None."""
        self._drop_inherited()
        process = self._process
        return process.pid if process is not None else None

    def start(self) -> None:
        """Start the child if there is none; its imports run while the caller goes on."""
        self._drop_inherited()
        with self._lock:
            if self._process is not None and not has_ended(self._process):
                return
            self.close()
            self._ready = False  # first: an interrupt may come at any line
            self._served = 0
            self._loaded = set()
            self._known = {}
            self._after, self._called = _STARTING, ""
            self._token = secrets.token_hex(16)
            self._written = Written()
            self._channel, theirs = channel_pair()
            self._lifeline = Lifeline()
            roots = {
                str(Path(sys.modules[n].__file__ or "").parents[1])
                for n in ("tensorplay", "tpkernel")
            }
            code = (
                f"import sys; sys.path[:0] = {sorted(roots)!r}; "
                f"from tpkernel.worker.serving import serve; "
                f"serve({theirs.fileno()}, {self._channel.secret.hex()!r}, "
                f"lifeline={self._lifeline.theirs}, sanitized={self._sanitized})"
            )
            with theirs:
                # A session of its own: the notebook's Interrupt is meant for the notebook.
                self._process = subprocess.Popen(
                    [sys.executable, "-c", code],
                    stdin=subprocess.DEVNULL,
                    stdout=self._written.output,
                    stderr=self._written.errors,
                    pass_fds=(theirs.fileno(), self._lifeline.theirs),
                    start_new_session=True,
                    env={**os.environ, **self._environment, VARIABLE: self._token},
                )
            self._lifeline.handed_over()

    def check_start(self) -> None:
        """Start the child if there is none, and wait until it answers.

        Raises
        ------
        RuntimeError
            It does not start.
        """
        self._drop_inherited()
        with self._lock:
            try:
                self._await_start(counted=False)
            except BaseException:  # an interrupt: what it says of itself would come late
                self.close()
                raise

    def close(self) -> None:
        """End the child, and with it a request of another thread that waits for it."""
        self._drop_inherited()
        process = self._process
        if not self._lock.acquire(blocking=False):
            if process is not None:
                process.kill()
            self._lock.acquire()
        try:
            try:
                if self._lifeline is not None:
                    self._lifeline.cut()  # so it ends though an interrupt comes now
                if self._process is not None:
                    end(self._process, self._token)
            finally:
                self._forget()
        finally:
            self._lock.release()

    def _forget(self) -> None:
        """Let go of what belongs to a child."""
        if self._lifeline is not None:
            self._lifeline.cut()
        if self._channel is not None:
            self._channel.close()
        if self._written is not None:
            self._written.close()
        self._process = self._channel = self._written = self._lifeline = None
        self._ready = False

    def _drop_inherited(self) -> None:
        """Forget a child that belongs to the process this one is a copy of, and leave it running.

        After ``os.fork()`` in a notebook both copies hold its connection, and a lock that another
        thread of the first may have held. The copy gets a child of its own when it asks for one.
        """
        if self._owner == os.getpid():
            return
        self._owner = os.getpid()
        self._lock = threading.RLock()
        if self._process is not None:
            self._process.returncode = 0  # not ours to wait for, and nothing to warn about
        self._forget()

    def run(
        self,
        spec: CellSpec,
        library: str,
        *,
        checks: tuple[str, ...] | Job,
        seed: int = 0,
        budget: float = DEFAULT_BUDGET,
        on_wait: Callable[[str], None] = _nothing,
    ) -> list[Any]:
        """Run checks in the child.

        Parameters
        ----------
        spec, library
            The cell and its library.
        checks
            Names of :data:`tpkernel.checks.suite.CHECKS`, or one job that is pickled and run there.
        seed
            Seed of made samples.
        budget
            Seconds for all of them; then the child is ended. What is tried again in a fresh one has
            them once more.
        on_wait
            Called a few times a second with what is running. What it raises ends the child and
            passes through: so a person cancels.

        Returns
        -------
        list
            The records. A crash or a hang is one more :class:`~tpkernel.report.facts.Finding` at
            the end.

        Raises
        ------
        ValueError
            A budget that is no number of seconds above 0.
        RuntimeError
            The child does not start, or fails in our own code before it has called a kernel.
        """
        if not 0 < budget < math.inf:
            message = f"argument 'budget': expected a number of seconds above 0, got {budget!r}"
            raise ValueError(message)
        self._drop_inherited()
        with self._lock:
            records: list[Any] = []
            names = _operators_of(spec)
            request = ("check", spec, library, checks, seed, budget)

            def attempt() -> None:
                self._await_start()
                self._files().forget_said()
                self._know(spec, library)
                self._send(request, _STARTING, library)
                self._collect(names, library, records, budget, on_wait=on_wait)

            try:
                used = self._served > 0 and self._process is not None
                try:
                    attempt()
                except _EarlierCrashError as problem:
                    # In a fresh child this cell's own crash comes again, and no other's.
                    earlier = self._earlier_finding(problem)
                    records.clear()
                    self.close()
                    try:
                        attempt()
                    except KernelCrash:
                        if problem.is_known:
                            records.insert(0, earlier)
                        raise
                    records.insert(0, earlier)
                except (_FailedError, KernelCrash) as problem:
                    started = isinstance(problem, KernelCrash) and problem.during != _STARTING
                    if not used or started:
                        raise
                    # What kernels of other requests have left there may be the reason.
                    self.close()
                    attempt()
                if any(isinstance(r, Finding) and r.code in NOT_AGAIN for r in records):
                    # What this child computes or how it ends is no longer the next cell's doing.
                    self.close()
                if self._process is None:  # it was ended, or has ended as it was asked to
                    self.start()
            except (KernelCrash, _EarlierCrashError) as problem:
                crash = problem if isinstance(problem, KernelCrash) else problem.crash
                code = "sanitizer" if crash.report else "crash" if crash.ended else "hang"
                found = finding(
                    names, crash.during, str(crash).rstrip("."), code=code, ended_by=crash.signal
                )
                records.append(without_repetition(found))
            except BaseException:
                self.close()
                raise
            return records

    def call(
        self,
        spec: CellSpec,
        library: str,
        export: str,
        packet: Packet,
        written: tuple[int, ...],
        during: str,
    ) -> tuple[str, Any]:
        """Call a kernel in the child.

        Parameters
        ----------
        spec, library
            The cell and its library.
        export
            The exported function.
        packet
            Its arguments.
        written
            Positions of those that it may write, which come back.
        during
            What the call is, in words.

        Returns
        -------
        tuple
            ``"returned"`` or ``"raised"``, and what :mod:`tpkernel.worker.serving` says of it.

        Raises
        ------
        KernelCrash
            The kernel ended the child.
        RuntimeError
            The child does not start.
        """
        self._drop_inherited()
        with self._lock:
            records: list[Any] = []
            names = _operators_of(spec)
            try:
                if len(self._loaded) >= _REQUESTS and library not in self._loaded:
                    self.close()
                self._raise_late(library)

                def attempt() -> tuple[str, Any]:
                    self._await_start(counted=False)
                    self._know(spec, library)
                    if library not in self._loaded:
                        self._send(("load", spec, library), _LOADING, library)
                        self._collect(names, library, records, None, _LOADING, shows=True)
                        self._loaded.add(library)
                    self._files().begin_call()
                    self._send(("call", library, export, packet, written), during, library)
                    return self._collect(names, library, records, None, during, shows=True)

                try:
                    answer = attempt()
                except _EarlierCrashError as problem:
                    if problem.blame.kind == "damage":
                        raise problem.crash from None  # it may be its own: nothing is called twice
                    self._keep_late(problem)
                    answer = attempt()
                self._after, self._called = f"what goes on after {during}", library
            except _EarlierCrashError as problem:
                raise problem.crash from None
            except KernelCrash:
                raise
            except BaseException:  # an interrupt: the kernel would go on, and its answer come late
                self.close()
                raise
            if records:  # processes that it left behind, or limits that it took away
                self.close()
                raise KernelCrash(records[-1].message, signal=None, during=during)
            return answer

    def _raise_late(self, library: str) -> None:
        """Raise what ended the child after a call of this library had returned."""
        if self._process is not None and has_ended(self._process):
            try:
                crash = self._crash(self._after, self._called)
                if self._called:  # else it had called nothing
                    self._keep(self._called, crash)
            except _EarlierCrashError as problem:
                self._keep_late(problem)
        if library in self._late:
            raise self._late.pop(library)

    def _started(self) -> tuple[subprocess.Popen[bytes], Channel]:
        """Return the child and the connection to it; the caller has started it."""
        if self._process is None or self._channel is None:
            message = "the check worker is not running"
            raise RuntimeError(message)
        return self._process, self._channel

    def _files(self) -> Written:
        """Return what the child writes; the caller has started it."""
        if self._written is None:
            message = "the check worker is not running"
            raise RuntimeError(message)
        return self._written

    def _keep_late(self, problem: _EarlierCrashError) -> None:
        """Keep a crash for the next call of the library that it is of."""
        library = problem.blame.library or self._called
        if not library:
            return  # nobody will ask for it
        during = self._after if library == self._called else f"calls of {self._names(library)}"
        stack = problem.crash.stack
        message = problem.text(during)
        self._keep(
            library,
            KernelCrash(message, signal=problem.crash.signal, during=during, stack=stack),
        )

    def _keep(self, library: str, crash: KernelCrash) -> None:
        self._late.pop(library, None)  # the newest last
        self._late[library] = crash
        if len(self._late) > _LATE:
            del self._late[next(iter(self._late))]

    def _earlier_finding(self, problem: _EarlierCrashError) -> Finding:
        during = problem.crash.during
        if problem.blame.kind == "damage":
            return damage_finding(problem.others, problem.text(during))
        return late_finding(
            self._names(problem.blame.library),
            problem.text(),
            during,
            thread=thread_of(problem.said) != "main",
        )

    def _names(self, library: str) -> str:
        return self._known.get(library, "")

    def _know(self, spec: CellSpec, library: str) -> None:
        """Note what a crash in a library is told as, and whether others have left threads."""
        names = [o.name for o in spec.operators] or [k.title for k in spec.kernels]
        self._known[library] = ", ".join(names)
        process = self._process
        self._beside = process is not None and threads_of(process.pid) > self._threads

    def _send(self, request: Any, during: str, library: str) -> None:
        """Send a request to the child that was started; one that is gone raises KernelCrash."""
        _, channel = self._started()
        try:
            channel.send(request)
        except OSError:  # it ended after its last answer, as by a thread that a kernel left behind
            raise self._crash(during, library) from None

    def _await_start(self, *, counted: bool = True) -> None:
        if self._served >= _REQUESTS and counted:
            self.close()
        self.start()
        self._served += counted
        if self._ready:
            return
        _, channel = self._started()
        try:
            channel.receive(START_LIMIT)
        except TimeoutError:
            self.close()
            message = f"the check worker did not start within {START_LIMIT:.0f} s"
            raise RuntimeError(message) from None
        except ClosedError:
            text = own_line(self._files().said())
            self.close()
            message = f"the check worker could not start: {text or 'no message'}"
            raise RuntimeError(message) from None
        handler = None if self._sanitized else crash_stack_library()
        if handler is not None:
            self._send(("install", handler), _STARTING, handler)
            self._collect((), handler, [], START_LIMIT)
        self._threads = threads_of(self._started()[0].pid)
        self._ready = True

    def _collect(
        self,
        names: tuple[str, ...],
        library: str,
        records: list[Any],
        budget: float | None,
        during: str = _STARTING,
        *,
        on_wait: Callable[[str], None] = _nothing,
        shows: bool = False,
    ) -> tuple[str, Any]:
        """Receive until the child says it is done; a dead or silent child raises KernelCrash.

        With `shows`, what the kernel writes to its standard streams is written to this process's.
        """
        process, channel = self._started()
        deadline = None if budget is None else time.monotonic() + budget
        told = time.monotonic()
        answer: tuple[str, Any] = ("", None)
        while True:
            left = _TICK if deadline is None else deadline - time.monotonic()
            if time.monotonic() - told > _TICK:
                on_wait(during)
                told = time.monotonic()
            if left <= 0:
                self.close()
                message = f"no answer within {budget:g} s during {during}; the worker was ended"
                raise KernelCrash(message, signal=None, during=during, ended=False)
            try:
                kind, value = channel.receive(min(left, _TICK))
            except TimeoutError:
                if shows:
                    self._files().show(errors=False)  # those may be of a crash that is under way
                self._look_at(process, during, library)
                continue
            except (ClosedError, OSError):
                if shows:
                    self._files().show(errors=False)
                raise self._crash(during, library) from None
            except ChannelError as problem:
                self.close()
                message = f"the worker's connection was written to during {during}: {problem}"
                raise KernelCrash(message, signal=None, during=during) from None
            if kind == "progress":
                during = value
            elif kind == "record":
                records.append(value)
            elif kind in ("returned", "raised"):
                answer = (kind, value)
            elif kind in CHANGES or kind in ("ended", "leaving"):
                records += self._changes(names, library, kind, value, during)
                if kind == "leaving":
                    return answer
            elif kind == "done":
                if shows:
                    self._files().show()
                return answer
            else:
                raise self._failed(during, *value)

    def _failed(self, during: str, said: str, trace: str) -> Exception:
        """Return what is raised where the child's own code has failed."""
        self.close()
        if during in (_STARTING, _LOADING):
            return _FailedError(f"the check worker failed: {said}\n{trace}")
        message = f"the worker could not go on during {during}: {said}"
        return KernelCrash(message, signal=None, during=during)

    def _changes(
        self, names: tuple[str, ...], library: str, kind: str, value: Any, during: str
    ) -> list[Finding]:
        """Return what is said of a process that a kernel has changed, or of its end."""
        if kind in CHANGES:
            code, level, message = CHANGES[kind]
            message = message.format(during=during, what=value)
            return [finding(names, during, message, code=code, level=level)]
        status, said = value if kind == "ended" else self._left()
        found = ending_finding(names, library, status, said)
        return [] if found is None else [found]

    def _look_at(self, process: subprocess.Popen[bytes], during: str, library: str) -> None:
        """Raise if a silent child is gone, or has started too many others."""
        self._files().give_back()
        if has_ended(process):  # and a copy of it, made by fork(), holds the connection open
            raise self._crash(during, library) from None
        if (count := children_of(process.pid)) > _CROWD:
            self.close()
            message = f"{count} processes started during {during}; all were ended"
            raise KernelCrash(message, signal=None, during=during) from None

    def _left(self) -> tuple[int | None, str]:
        """Wait for the child, which ends as a notebook does; return its status and words."""
        process, _ = self._started()
        in_time = wait_for_end(process.pid, lambda: has_ended(process))
        if not in_time:
            process.send_signal(signal.SIGABRT)  # its handler says where it is
            wait_ended(process, LAST_WORDS)
        status = end(process, self._token)
        said = self._files().said()
        self.close()
        return status if in_time else None, said

    def _crash(self, during: str, library: str) -> KernelCrash:
        """Return what ended the child.

        Raises
        ------
        _EarlierCrashError
            It was code of another library, or may have been.
        """
        process, _ = self._started()
        ended = wait_ended(process, _LAST_WAIT)
        code = end(process, self._token)
        said = self._files().said()
        self.close()
        if not ended:
            message = f"the worker's connection was closed during {during}; the worker was ended"
            return KernelCrash(message, signal=None, during=during)
        report = sanitizer_report(said, library) if self._sanitized else None
        if report is not None:
            message = f"{report.text} during {during}"
            return KernelCrash(message, signal=None, during=during, report=report)
        how, name = how_it_ended(code, said)
        blame = blame_of(said, name, library, self._known, beside=self._beside)
        others = tuple(names for path, names in self._known.items() if path != library)
        stack = tuple(named_frames(said, blame.library or library))
        text = crash_text(f"{how} during {during}", said, stack)
        if blame.kind == "damage":
            text = with_doubt(text, others)
        crash = KernelCrash(text, signal=name, during=during, stack=stack)
        if blame.kind != "own":
            raise _EarlierCrashError(crash, blame, how, said, others)
        return crash


def _operators_of(spec: CellSpec) -> tuple[str, ...]:
    return tuple(o.name for o in spec.operators)


_shared: Worker | None = None
_shared_lock = threading.Lock()


def shared_worker() -> Worker:
    """Return the session's worker; it ends with the session."""
    global _shared  # noqa: PLW0603  (one per process)
    with _shared_lock:
        if _shared is None:
            _shared = Worker()
            atexit.register(_shared.close)
        return _shared
