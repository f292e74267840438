"""Checks in a process of their own, so that a kernel that crashes or hangs ends that one.

One warm child per session. It gets a cell's spec and the library's path, runs the checks and sends
each record as it is made. When it dies, the last thing it announced and the signal become a
finding; the next request starts a fresh one.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any, Protocol

from tensorplay.library.modules.spec import CellSpec
from tpkernel.channel import Channel, ChannelError, ClosedError, channel_pair
from tpkernel.errors import KernelCrash
from tpkernel.memory_checks import DAMAGE
from tpkernel.report import Finding

__all__ = ["Job", "Worker", "serve", "shared_worker"]

#: Seconds that a request's checks may take together.
DEFAULT_BUDGET = 20.0
#: Seconds that a fresh child may take to import what it needs.
START_LIMIT = 60.0
_TICK = 0.25
#: Requests after which the child is replaced: each leaves a loaded library behind.
_REQUESTS = 200
#: Processes that a kernel may have started while it runs: more are a fork() that does not end.
_CROWD = 32
#: Code of the finding that processes were started and not waited for.
LEAVES_PROCESSES = "leaves_processes"
#: Codes of findings after which a child serves no other request.
_NOT_AGAIN = DAMAGE | {LEAVES_PROCESSES}


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


class Worker:
    """A child process that runs checks.

    Requests are serialised: a callback of a widget may arrive from another thread while a cell
    waits for its checks.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._process: subprocess.Popen[bytes] | None = None
        self._channel: Channel | None = None
        self._errors: IO[bytes] | None = None
        self._ready = False
        self._served = 0
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
            self._errors = tempfile.TemporaryFile(prefix="tpkernel-worker-")  # noqa: SIM115
            roots = {
                str(Path(sys.modules[n].__file__ or "").parents[1])
                for n in ("tensorplay", "tpkernel")
            }
            code = (
                f"import sys; sys.path[:0] = {sorted(roots)!r}; "
                f"from tpkernel.worker import serve; "
                f"serve({theirs.fileno()}, {ours.secret.hex()!r})"
            )
            # A session of its own: the notebook's Interrupt is meant for the notebook.
            self._process = subprocess.Popen(
                [sys.executable, "-c", code],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=self._errors,
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
            )
            theirs.close()
            self._channel = ours
            self._ready = False
            self._served = 0

    def close(self) -> None:
        """End the child."""
        self._drop_inherited()
        with self._lock:
            if self._channel is not None:
                self._channel.close()
            if self._process is not None:
                _end(self._process)
            if self._errors is not None:
                self._errors.close()
            self._process = self._channel = self._errors = None

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
        if self._errors is not None:
            self._errors.close()
        if self._process is not None:
            self._process.returncode = 0  # not ours to wait for, and nothing to warn about
        self._process = self._channel = self._errors = None
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
            Names of :data:`tpkernel.checks.CHECKS`, or one job that is pickled and run there.
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
            The records. A crash or a hang is one more :class:`~tpkernel.report.Finding` at the end.

        Raises
        ------
        RuntimeError
            The child does not start, or fails in our own code.
        """
        self._drop_inherited()
        with self._lock:
            records: list[Any] = []
            try:
                self._await_start()
                assert self._channel is not None  # noqa: S101  (started above)
                self._channel.send((spec, library, checks, seed, budget))
                self._collect(spec, records, on_wait, budget)
                if any(isinstance(r, Finding) and r.code in _NOT_AGAIN for r in records):
                    # What this child computes or how it ends is no longer the next cell's doing.
                    self.close()
                    self.start()
            except KernelCrash as crash:
                finding = _finding(
                    spec,
                    crash.during,
                    f"KernelCrash: {crash}",
                    code="crash" if crash.ended else "hang",
                    signal=crash.signal,
                )
                records.append(finding)
            except BaseException:
                self.close()
                raise
            return records

    def _await_start(self) -> None:
        if self._served >= _REQUESTS:
            self.close()
        self.start()
        self._served += 1
        if self._ready:
            return
        assert self._channel is not None  # noqa: S101  (started above)
        try:
            self._channel.receive(START_LIMIT)
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

    def _collect(
        self,
        spec: CellSpec,
        records: list[Any],
        on_wait: Callable[[str], None],
        budget: float,
    ) -> None:
        """Receive until the child says it is done; a dead or silent child raises KernelCrash."""
        channel, process = self._channel, self._process
        assert channel is not None  # noqa: S101  (started by the caller)
        assert process is not None  # noqa: S101  (started by the caller)
        deadline = time.monotonic() + budget
        during = "starting"
        told = time.monotonic()
        while True:
            left = deadline - time.monotonic()
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
                if _ended(process):  # and a copy of it, made by fork(), holds the connection open
                    raise self._crash(during) from None
                if (count := _children_of(process.pid)) > _CROWD:
                    self.close()
                    message = f"{count} processes started during {during}; all were ended"
                    raise KernelCrash(message, signal=None, during=during) from None
                continue
            except (ClosedError, OSError):
                raise self._crash(during) from None
            except ChannelError as problem:
                self.close()
                message = f"the worker's connection was written to during {during}: {problem}"
                raise KernelCrash(message, signal=None, during=during) from None
            if kind == "progress":
                during = value
            elif kind == "record":
                records.append(value)
            elif kind == "left":
                message = (
                    "the kernel starts processes and does not wait for them (they were ended). A "
                    "copy made by fork() comes back into the notebook a second time; use threads"
                )
                records.append(_finding(spec, during, message, code=LEAVES_PROCESSES))
            elif kind == "done":
                return
            else:
                message = f"the check worker failed: {value}"
                raise RuntimeError(message)

    def _crash(self, during: str) -> KernelCrash:
        process = self._process
        assert process is not None  # noqa: S101  (it was talking to us)
        deadline = time.monotonic() + 5
        while not _ended(process) and time.monotonic() < deadline:
            time.sleep(0.01)
        code = _end(process)
        said = self._stderr()
        self.close()
        if code < 0:
            name = signal.Signals(-code).name
            how = f"signal {-code} ({name}: {_MEANING.get(name, 'ended from outside')})"
        else:
            name = None
            how = f"exit status {code}"
        message = f"{how} during {during}"
        return KernelCrash(f"{message}. {said}" if said else message, signal=name, during=during)

    def _stderr(self) -> str:
        """Return the first line that a C library wrote before the end, without Python's stack."""
        if self._errors is None:
            return ""
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").splitlines()
        own = [
            n
            for n in lines
            if n.strip()
            and not n.startswith(
                (
                    "Fatal Python error",
                    "  File",
                    "Thread",
                    "Current thread",
                    "Extension modules",
                    "Stack",
                    "Python runtime state",
                    "!!!!!!!",  # the engine's banner, which says no more than the signal
                )
            )
        ]
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
    "SIGALRM": "time budget used up",
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


def _finding(
    spec: CellSpec, during: str, message: str, *, code: str, signal: str | None = None
) -> Finding:
    """Return what a kernel did to the worker as a finding of the check that was running."""
    operator = next((o.name for o in spec.operators if o.name in during), "")
    return Finding(during.split(maxsplit=1)[0], operator, "error", message, signal, code)


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


def serve(descriptor: int, secret: str) -> None:
    """Run requests until the other end closes: the child's main function.

    Parameters
    ----------
    descriptor
        The inherited socket.
    secret
        The connection's secret, in hexadecimal digits.
    """
    import faulthandler

    channel = _WorkerChannel(socket.socket(fileno=descriptor), bytes.fromhex(secret))
    faulthandler.enable()
    with contextlib.suppress(ImportError, ValueError, OSError):
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    from tpkernel import checks

    channel.send("ready")
    while True:
        try:
            spec, library, wanted, seed, budget = channel.receive(None)
        except ClosedError:
            os._exit(0)
        # If the parent dies, nobody is left to end an endless loop: the alarm's default action is.
        signal.setitimer(signal.ITIMER_REAL, budget + 5)
        try:
            operators, kernels = checks.load_operators(spec, library)

            def progress(text: str) -> None:
                _announce(channel, text)

            found = (
                checks.run_checks(
                    spec,
                    operators,
                    kernels,
                    checks=wanted,
                    seed=seed,
                    library=library,
                    progress=progress,
                )
                if isinstance(wanted, tuple)
                else wanted.run(spec, operators, kernels, progress)
            )
            for record in found:
                channel.send(("record", record))
            _stop_if_forked()
            channel.send(("done", None))
        except _ProcessesLeft:
            channel.send(("left", None))
            channel.send(("done", None))
        except Exception as problem:  # noqa: BLE001  (told to the parent, which raises it)
            import traceback

            channel.send(
                ("failed", f"{type(problem).__name__}: {problem}\n{traceback.format_exc()}")
            )
        signal.setitimer(signal.ITIMER_REAL, 0)


class _ProcessesLeft(Exception):  # noqa: N818  (no error of ours)
    """The kernel called last left processes behind."""


def _announce(channel: Channel, text: str) -> None:
    _stop_if_forked()
    channel.send(("progress", text))


def _stop_if_forked() -> None:
    """Raise if this process has children: no check of ours starts any."""
    if hasattr(os, "WNOHANG"):
        with contextlib.suppress(ChildProcessError):
            os.waitpid(-1, os.WNOHANG)
            raise _ProcessesLeft
