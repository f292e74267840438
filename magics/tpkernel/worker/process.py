"""Kernels in a process of their own, so that one that crashes or hangs ends that one.

One warm child per session for checks. It gets a cell's spec and the library's path, runs the checks
and sends each record as it is made (:mod:`tpkernel.worker.serving`). When it dies, the last thing
it announced and the signal become a finding; the next request starts a fresh one. Isolated calls
(:mod:`tpkernel.worker.isolation`) have children of their own.
"""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import math
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any, Literal, Protocol

from tensorplay.library.modules.spec import CellSpec
from tpkernel.building.sanitizers import sanitizer_report
from tpkernel.checks.memory import DAMAGE
from tpkernel.errors import KernelCrash
from tpkernel.report.report import Finding
from tpkernel.worker.channel import Channel, ChannelError, ClosedError, channel_pair
from tpkernel.worker.crash_stack import MARK, crash_stack_library, named_frames
from tpkernel.worker.streams import MAX_SHOWN, shown_text
from tpkernel.worker.transfer import Packet

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
#: Code of the finding that processes were started and not waited for.
LEAVES_PROCESSES = "leaves_processes"
#: Code of the finding that the process was left with less than it may use.
LOWERS_LIMITS = "lowers_limits"
#: Code of the finding that threads go on when the kernel has returned.
LEAVES_THREADS = "leaves_threads"
#: Code of the finding that something of the process, not of the kernel, is another afterwards.
CHANGES_PROCESS = "changes_process"
#: Codes of findings after which a child serves no other request.
_NOT_AGAIN = DAMAGE | {LEAVES_PROCESSES, LOWERS_LIMITS, LEAVES_THREADS, CHANGES_PROCESS}
#: What a child says that a kernel has done to it: code, level and text of the finding.
_CHANGES: dict[str, tuple[str, Literal["error", "warning"], str]] = {
    "left": (
        LEAVES_PROCESSES,
        "error",
        (
            "the kernel starts processes and does not wait for them (they were ended). A copy made "
            "by fork() comes back into the notebook a second time; use threads"
        ),
    ),
    "lowered": (
        LOWERS_LIMITS,
        "error",
        (
            "the kernel lowers limits of its process during {during} and does not put them back: "
            "{what}. A notebook could not go on with that. Set what getrlimit() said before, or "
            "leave the limits alone"
        ),
    ),
    "changed": (
        CHANGES_PROCESS,
        "warning",
        (
            "the kernel changes its process during {during} and does not put it back: {what}. In a "
            "notebook that holds from then on for all other code too. Put it back before the "
            "kernel returns"
        ),
    ),
    "threads": (
        LEAVES_THREADS,
        "warning",
        (
            "the kernel leaves {what} running when it has returned. No check sees what they do "
            "then, and a crash there ends the notebook. Join them before the kernel returns, or "
            "use tp::parallel_for"
        ),
    ),
}
#: What runs before a kernel of this request does.
_STARTING, _LOADING = "starting", "loading the library"


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
        self._errors: IO[bytes] | None = None
        self._output: IO[bytes] | None = None
        self._read = [0, 0]
        self._shown = [0, 0]
        self._loaded: set[str] = set()
        self._ready = False
        self._served = 0
        self._after, self._called = _STARTING, ""
        self._late: dict[str, KernelCrash] = {}
        self._owner = os.getpid()

    @property
    def pid(self) -> int | None:
        """Process id of the child, or None."""
        self._drop_inherited()
        return self._process.pid if self._process is not None else None

    def start(self) -> None:
        """Start the child if there is none; its imports run while the caller goes on."""
        self._drop_inherited()
        with self._lock:
            if self._process is not None and self._process.poll() is None:
                return
            self.close()
            ours, theirs = channel_pair()
            self._errors = tempfile.TemporaryFile(prefix="tpkernel-worker-")  # noqa: SIM115  (see close)
            self._output = tempfile.TemporaryFile(prefix="tpkernel-worker-")  # noqa: SIM115  (see close)
            self._read = [0, 0]
            self._loaded = set()
            roots = {
                str(Path(sys.modules[n].__file__ or "").parents[1])
                for n in ("tensorplay", "tpkernel")
            }
            code = (
                f"import sys; sys.path[:0] = {sorted(roots)!r}; "
                f"from tpkernel.worker.serving import serve; "
                f"serve({theirs.fileno()}, {ours.secret.hex()!r}, sanitized={self._sanitized})"
            )
            # A session of its own: the notebook's Interrupt is meant for the notebook.
            self._channel = ours  # first: an interrupt may come when the child is there
            self._process = subprocess.Popen(
                [sys.executable, "-c", code],
                stdin=subprocess.DEVNULL,
                stdout=self._output,
                stderr=self._errors,
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
                env={**os.environ, **self._environment} if self._environment else None,
            )
            theirs.close()
            self._ready = False
            self._served = 0

    def check_start(self) -> None:
        """Start the child if there is none, and wait until it answers.

        Raises
        ------
        RuntimeError
            It does not start.
        """
        self._drop_inherited()
        with self._lock:
            self._await_start(counted=False)

    def close(self) -> None:
        """End the child."""
        self._drop_inherited()
        with self._lock:
            if self._channel is not None:
                self._channel.close()
            if self._process is not None:
                _end(self._process)
            self._forget_files()
            self._process = self._channel = None

    def _forget_files(self) -> None:
        for file in (self._errors, self._output):
            if file is not None:
                file.close()
        self._errors = self._output = None

    def _drop_inherited(self) -> None:
        """Forget a child that belongs to the process this one is a copy of, and leave it running.

        After ``os.fork()`` in a notebook both copies hold its connection, and a lock that another
        thread of the first may have held. The copy gets a child of its own when it asks for one.
        """
        if self._owner == os.getpid():
            return
        self._owner = os.getpid()
        self._lock = threading.RLock()
        if self._channel is not None:
            self._channel.close()
        self._forget_files()
        if self._process is not None:
            self._process.returncode = 0  # not ours to wait for, and nothing to warn about
        self._process = self._channel = None
        self._ready = False

    def run(
        self,
        spec: CellSpec,
        library: str,
        *,
        checks: tuple[str, ...] | Job,
        seed: int = 0,
        budget: float = DEFAULT_BUDGET,
        on_wait: Callable[[str], None] = lambda during: None,
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
            Seconds for all of them; then the child is ended.
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
            request = ("check", spec, library, checks, seed, budget)
            try:
                self._await_start()
                used = self._served > 1
                try:
                    self._send(request, _STARTING)
                    self._collect(spec, library, records, on_wait, budget)
                except (_FailedError, KernelCrash) as problem:
                    started = isinstance(problem, KernelCrash) and problem.during != _STARTING
                    if not used or started:
                        raise
                    # What kernels of other requests have left there may be the reason.
                    self.close()
                    self._await_start()
                    self._send(request, _STARTING)
                    self._collect(spec, library, records, on_wait, budget)
                if any(isinstance(r, Finding) and r.code in _NOT_AGAIN for r in records):
                    # What this child computes or how it ends is no longer the next cell's doing.
                    self.close()
                    self.start()
            except KernelCrash as crash:
                code = "sanitizer" if crash.report else "crash" if crash.ended else "hang"
                finding = _finding(
                    spec, crash.during, str(crash).rstrip("."), code=code, signal=crash.signal
                )
                records.append(_without_repetition(finding))
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
            try:
                if len(self._loaded) >= _REQUESTS and library not in self._loaded:
                    self.close()
                self._raise_late(library)
                self._await_start(counted=False)
                if library not in self._loaded:
                    self._send(("load", spec, library), self._after)
                    self._collect(spec, library, records, _nothing, None, _LOADING, shows=True)
                    self._loaded.add(library)
                self._shown = [0, 0]
                self._send(("call", library, export, packet, written), self._after)
                self._after, self._called = f"what goes on after {during}", library
                answer = self._collect(spec, library, records, _nothing, None, during, shows=True)
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
        if self._process is not None and _ended(self._process):
            self._late.pop(self._called, None)  # the newest last
            self._late[self._called] = self._crash(self._after, self._called)
            if len(self._late) > _LATE:
                del self._late[next(iter(self._late))]
        if library in self._late:
            raise self._late.pop(library)

    def _started(self) -> tuple[subprocess.Popen[bytes], Channel]:
        """Return the child and the connection to it; the caller has started it."""
        if self._process is None or self._channel is None:
            message = "the check worker is not running"
            raise RuntimeError(message)
        return self._process, self._channel

    def _send(self, request: Any, during: str) -> None:
        """Send a request to the child that was started; one that is gone raises KernelCrash."""
        _, channel = self._started()
        try:
            channel.send(request)
        except OSError:  # it ended after its last answer, as by a thread that a kernel left behind
            raise self._crash(during) from None

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
            text = self._stderr()
            self.close()
            message = f"the check worker could not start: {text or 'no message'}"
            raise RuntimeError(message) from None
        self._ready = True
        handler = None if self._sanitized else crash_stack_library()
        if handler is not None:
            channel.send(("install", handler))
            self._collect(None, handler, [], _nothing, START_LIMIT)

    def _collect(
        self,
        spec: CellSpec | None,
        library: str,
        records: list[Any],
        on_wait: Callable[[str], None],
        budget: float | None,
        during: str = _STARTING,
        *,
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
                self._look_at(process, during, library)
                if shows:
                    self._show_output(errors=False)  # those may be of a crash that is under way
                continue
            except (ClosedError, OSError):
                if shows:
                    self._show_output(errors=False)
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
            elif kind in _CHANGES:
                code, level, message = _CHANGES[kind]
                message = message.format(during=during, what=value)
                records.append(_finding(spec, during, message, code=code, level=level))
            elif kind == "done":
                if shows:
                    self._show_output()
                return answer
            else:
                said, trace = value
                self.close()
                if during in (_STARTING, _LOADING):
                    message = f"the check worker failed: {said}\n{trace}"
                    raise _FailedError(message)
                message = f"the worker could not go on during {during}: {said}"
                raise KernelCrash(message, signal=None, during=during)

    def _look_at(self, process: subprocess.Popen[bytes], during: str, library: str) -> None:
        """Raise if a silent child is gone, or has started too many others."""
        if _ended(process):  # and a copy of it, made by fork(), holds the connection open
            raise self._crash(during, library) from None
        if (count := _children_of(process.pid)) > _CROWD:
            self.close()
            message = f"{count} processes started during {during}; all were ended"
            raise KernelCrash(message, signal=None, during=during) from None

    def _show_output(self, *, errors: bool = True) -> None:
        """Write what the child has written since the last time to this process's streams."""
        files = (self._output, self._errors if errors else None)
        for index, (file, stream) in enumerate(zip(files, (sys.stdout, sys.stderr), strict=True)):
            if file is None:
                continue
            # Not by seeking: the child writes at the position that both processes share.
            size = os.fstat(file.fileno()).st_size - self._read[index]
            room = MAX_SHOWN - self._shown[index]
            if size > 0 and room >= 0:
                # No more than was there: the child may be writing, and what is read is counted.
                data = os.pread(file.fileno(), min(size, room + 1), self._read[index])
                stream.write(shown_text(data, room))
                stream.flush()
            self._read[index] += size
            self._shown[index] += size

    def _crash(self, during: str, library: str = "") -> KernelCrash:
        process, _ = self._started()
        deadline = time.monotonic() + 5
        while not _ended(process) and time.monotonic() < deadline:
            time.sleep(0.01)
        code = _end(process)
        whole = self._said()
        self.close()
        report = sanitizer_report(whole, library) if self._sanitized else None
        if report is not None:
            message = f"{report.text} during {during}"
            return KernelCrash(message, signal=None, during=during, report=report)
        said = _own_line(whole)
        if code < 0:
            name = _signal_name(-code)
            how = f"signal {-code} ({name}: {_MEANING.get(name, 'ended from outside')})"
        else:
            name = None
            how = f"exit status {code}"
        message = f"{how} during {during}"
        stack = tuple(named_frames(whole, library)) if library else ()
        if stack:
            message += f", in {', called by '.join(stack)}"
        return KernelCrash(
            f"{message}. {said}" if said else message, signal=name, during=during, stack=stack
        )

    def _said(self) -> str:
        """Return what was written to the error stream and is not shown yet."""
        if self._errors is None:
            return ""
        data = os.pread(self._errors.fileno(), 1 << 20, self._read[1])
        return data.decode(errors="replace")

    def _stderr(self) -> str:
        return _own_line(self._said())


#: Signals of what the code of a kernel did.
_FAULTS = frozenset({"SIGSEGV", "SIGBUS", "SIGFPE", "SIGILL", "SIGABRT"})


def _nothing(during: str) -> None:
    """Wait without telling anyone."""


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal
        return f"SIG{number}"


_NOT_SAID = (
    "Fatal Python error",
    "  File",
    "Thread",
    "Current thread",
    "Extension modules",
    "Stack",
    "Python runtime state",
    "!!!!!!!",  # the engine's banner, which says no more than the signal
    MARK,
)


def _own_line(said: str) -> str:
    """Return the first line that a C library wrote before the end, without Python's stack."""
    own = [n for n in said.splitlines() if n.strip() and not n.startswith(_NOT_SAID)]
    if own and own[0].startswith("Traceback"):
        return own[-1].strip()[:300]  # an exception of Python: its type and text end it
    return own[0].strip()[:300] if own else ""


_MEANING = {
    "SIGSEGV": "memory that is not the kernel's own",
    "SIGBUS": "memory that is not there",
    "SIGABRT": "abort",
    "SIGFPE": "integer division by zero or overflow",
    "SIGILL": "an instruction this processor does not have",
    "SIGKILL": "killed, perhaps for memory",
    "SIGALRM": "a timer that the kernel has set",
}

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


def _ended(process: subprocess.Popen[bytes]) -> bool:
    """Return whether the child is gone, without reaping it: its number stays its own."""
    if process.returncode is not None:
        return True
    if not hasattr(os, "waitid"):
        return process.poll() is not None
    return os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is not None


def _end(process: subprocess.Popen[bytes]) -> int:
    """End the child and what a kernel started in it; return the child's status."""
    if process.returncode is None:
        ended = _ended(process)
        if hasattr(os, "killpg"):
            # The group is the child's own (a session), and the child is not yet reaped.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
        elif not ended:
            process.kill()
    return process.wait()


def _children_of(pid: int) -> int:
    """Return how many processes the child's main thread has started; 0 where nothing tells."""
    try:
        return len(Path(f"/proc/{pid}/task/{pid}/children").read_bytes().split())
    except OSError:
        return 0


def _without_repetition(finding: Finding) -> Finding:
    """Return the finding of a crash without what its head says, and with what to do."""
    # A report puts "call of mylib::f" before a message of "during call of mylib::f on x (4,)".
    head = rf" during (?:\w+ )+of {re.escape(finding.operator)}(?= on | with )"
    message = finding.message
    if finding.operator and finding.signal:
        message = re.sub(head, "", message)
    if finding.code == "crash" and finding.signal in _FAULTS:
        message += (
            ". The checks after it were not run. Run the cell with --sanitize address,undefined, "
            "which shows the line"
        )
    return dataclasses.replace(finding, message=message)


def _finding(
    spec: CellSpec | None,
    during: str,
    message: str,
    *,
    code: str,
    level: Literal["error", "warning"] = "error",
    signal: str | None = None,
) -> Finding:
    """Return what a kernel did to the worker as a finding of the check that was running."""
    operators = spec.operators if spec is not None else ()
    operator = next((o.name for o in operators if o.name in during), "")
    return Finding(during.split(maxsplit=1)[0], operator, level, message, signal, code)
