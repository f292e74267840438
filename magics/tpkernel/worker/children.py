"""Processes of the worker: how many there are, whether they are gone, and their end."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

__all__ = ["VARIABLE", "children_of", "end", "has_ended", "threads_of", "wait_ended"]

#: Variable by which processes are known that a worker has started and that have left its group.
VARIABLE = "TPKERNEL_WORKER"
#: Threads whose children are counted.
_LOOKED_AT = 64
#: Seconds that the system may take to end what was killed.
_KILLED_WITHIN = 10.0
#: Stands for the status of a child that another part of the session has waited for.
_LOST = 1 << 16
#: Times that all processes are looked through: one may be starting another.
_ROUNDS = 5


def has_ended(process: subprocess.Popen[bytes]) -> bool:
    """Return whether the child is gone, without reaping it: its number stays its own.

    A session that ignores SIGCHLD, or waits for any child, has reaped it: how it ended is lost.
    """
    if process.returncode is not None:
        return True
    if not hasattr(os, "waitid"):
        return process.poll() is not None
    try:
        found = os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG)
    except ChildProcessError:
        process.returncode = _LOST
    return process.returncode is not None or found is not None


def wait_ended(process: subprocess.Popen[bytes], seconds: float) -> bool:
    """Wait for the end of the child without reaping it; return whether it came in time."""
    deadline = time.monotonic() + seconds
    while not has_ended(process):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def end(process: subprocess.Popen[bytes], token: str) -> int | None:
    """End the child and what a kernel started in it; return the child's status, None if unknown.

    Parameters
    ----------
    process
        The child, which leads a group of its own.
    token
        Its value of the variable :data:`VARIABLE`.
    """
    has_ended(process)
    if process.returncode is None:  # else nobody knows whose its number is now
        if hasattr(os, "killpg"):
            # The group is the child's own (a session), and the child is not yet reaped.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
        else:
            process.kill()
    for _ in range(_ROUNDS):
        if not _end_marked(f"{VARIABLE}={token}".encode(), process.pid):
            break
    if process.returncode is None:
        with contextlib.suppress(subprocess.TimeoutExpired):  # it waits for a device, say
            process.wait(_KILLED_WITHIN)
    return None if process.returncode == _LOST else process.returncode


def _end_marked(mark: bytes, child: int) -> int:
    """End processes that were started with a variable; return how many there were."""
    if sys.platform != "linux":
        return 0
    count = 0
    own = os.getuid()
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if int(folder.name) == child or folder.stat().st_uid != own:
                continue
            if mark in (folder / "environ").read_bytes().split(b"\0"):
                os.kill(int(folder.name), signal.SIGKILL)
                count += 1
    return count


def children_of(pid: int) -> int:
    """Return how many processes the child has started; 0 where nothing tells."""
    count = 0
    with contextlib.suppress(OSError):
        for thread in itertools.islice(Path(f"/proc/{pid}/task").iterdir(), _LOOKED_AT):
            with contextlib.suppress(OSError):
                count += len((thread / "children").read_bytes().split())
    return count


def threads_of(pid: int) -> int:
    """Return how many threads the child has; 0 where nothing tells."""
    try:
        return len(os.listdir(f"/proc/{pid}/task"))  # noqa: PTH208  (names are all that is asked)
    except OSError:
        return 0
