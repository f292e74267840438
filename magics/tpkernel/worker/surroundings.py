"""What a kernel may change in its process, so that all code that runs there later meets it.

In a notebook that is everything: NumPy adds with the rounding that a kernel has set, and files are
opened in the folder that it has gone to.
"""

from __future__ import annotations

import contextlib
import ctypes
import locale
import os
import platform
import signal
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

__all__ = ["Surroundings", "threads"]

#: Room for the C type fenv_t, which has 28 to 32 bytes on the processors in use.
_FENV_BYTES = 256
#: Of the processors whose fenv_t is known: where its control word is, and what its bits mean.
_CONTROL: dict[str, tuple[int, dict[str, int]]] = {
    "x86_64": (
        28,
        {
            "rounding": 0x6000,
            "subnormal numbers": 0x8040,
            "trapped exceptions": 0x1F80,
        },
    ),
    "aarch64": (
        0,
        {
            "rounding": 0xC00000,
            "subnormal numbers": 0x1000000,
            "trapped exceptions": 0x9F00,
        },
    ),
}
_STREAMS = ("standard input", "standard output", "standard error")
#: Names that a text lists before it counts the rest.
_NAMED = 3
#: Seconds by which the time that is left of our own timer may seem to differ from what it is.
_TIMER_SLACK = 0.5
_PR_GET_PDEATHSIG, _PR_SET_PDEATHSIG = 2, 1


class Surroundings:
    """The state of this process that a kernel has to leave as it found it."""

    def __init__(self) -> None:
        self._before: dict[str, Any] = {}
        self._fenv = _fenv()
        self._told: set[str] = set()
        self._alarm: float | None = None

    def set_alarm(self, seconds: float) -> None:
        """Let the system end this process in that time; the timer is not taken for a kernel's."""
        self._alarm = time.monotonic() + seconds
        signal.setitimer(signal.ITIMER_REAL, seconds)

    def keep(self) -> None:
        """Remember what is so now."""
        self._fenv = _fenv()
        self._before = self._now()
        self._told = set()

    def _now(self) -> dict[str, Any]:
        now = {name: read() for name, read in _READERS.items()}
        if status := _status():  # no descriptor may be left to read it
            now |= {name: read(status) for name, read in _STATUS_READERS.items()}
        now["timers"] = _timers(self._alarm)
        return now

    def changed(self) -> str:
        """Say what is not as it was remembered, each thing once, and put it back where that works.

        Returns
        -------
        str
            What has changed; empty where nothing has.
        """
        found: list[str] = []
        for name, now in self._now().items():
            before = self._before.get(name, now)
            if now == before:
                continue
            if name not in self._told:
                self._told.add(name)
                found.append(_DESCRIBED[name](before, now))
            with contextlib.suppress(OSError):  # not everything may be had again
                self._put_back(name, before, now)
        if self._alarm is not None and not any(signal.getitimer(signal.ITIMER_REAL)):
            self._arm()  # a kernel that puts its own timer off puts off ours
        return "; ".join(found)

    def _arm(self) -> None:
        left = 0.0 if self._alarm is None else max(self._alarm - time.monotonic(), 1e-3)
        signal.setitimer(signal.ITIMER_REAL, left)

    def _put_back(self, name: str, before: Any, now: Any) -> None:
        if name == "arithmetic":
            ctypes.CDLL(None).fesetenv(self._fenv)
        elif name == "folder":
            os.chdir(before)
        elif name == "timers":
            self._arm()
            for which in (signal.ITIMER_VIRTUAL, signal.ITIMER_PROF):
                signal.setitimer(which, 0)
        elif name == "priority":
            os.setpriority(os.PRIO_PROCESS, 0, before["nice value"])
        elif name == "processors":
            os.sched_setaffinity(0, before)
        elif name == "parent":
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, before, 0, 0, 0)
        elif name == "terminate":
            _terminate(ctypes.c_void_p(before))
        elif name == "umask":
            os.umask(before)
        elif name == "locale":
            locale.setlocale(locale.LC_ALL, before)
        elif name == "blocked":
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        elif name == "environment":
            for key in now.keys() - before.keys():
                os.unsetenv(key)
            for key, value in before.items():
                if now.get(key) != value:
                    os.putenv(key, value)


def threads() -> int:
    """Return how many threads this process has; 0 where the system does not tell."""
    try:
        return len(os.listdir("/proc/self/task"))  # noqa: PTH208  (names are all that is asked)
    except OSError:
        return 0


def _fenv() -> Any:
    state = ctypes.create_string_buffer(_FENV_BYTES)
    if platform.machine() in _CONTROL and sys.platform != "win32":
        ctypes.CDLL(None).fegetenv(state)
    return state


def _arithmetic() -> dict[str, int]:
    offset, meanings = _CONTROL.get(platform.machine(), (0, {}))
    word = int.from_bytes(_fenv().raw[offset : offset + 4], sys.byteorder)
    return {name: word & bits for name, bits in meanings.items()}


def _folder() -> str:
    try:
        return str(Path.cwd())
    except OSError:
        return "one that is gone"


def _umask() -> int:
    now = os.umask(0o077)
    os.umask(now)
    return now


def _locale() -> str:
    return locale.setlocale(locale.LC_ALL)


def _environment() -> dict[bytes, bytes]:
    """Return the variables as C has them: Python has a copy that does not follow."""
    if sys.platform != "linux":  # elsewhere libraries do not see that name
        return {}
    entries: Any = ctypes.POINTER(ctypes.c_char_p).in_dll(ctypes.CDLL(None), "environ")
    found: dict[bytes, bytes] = {}
    for entry in entries or ():
        if entry is None:
            break
        name, _, value = entry.partition(b"=")
        found[name] = value
    return found


def _blocked() -> frozenset[int]:
    if not hasattr(signal, "pthread_sigmask"):
        return frozenset()
    return frozenset(int(s) for s in signal.pthread_sigmask(signal.SIG_BLOCK, ()))


def _status() -> dict[str, str]:
    """Return what Linux says of this process."""
    with contextlib.suppress(OSError):
        lines = Path("/proc/self/status").read_text("ascii", "replace").splitlines()
        return {name: value.strip() for name, _, value in (n.partition(":") for n in lines)}
    return {}


def _signals(bits: str) -> frozenset[int]:
    """Return the signals of a set in the process's status.

    The C library's own are left out: it handles them as soon as it needs them for its threads.
    """
    programs = signal.valid_signals()
    mask = int(bits or "0", 16)
    return frozenset(n + 1 for n in range(64) if mask >> n & 1 and n + 1 in programs)


def _timers(alarm: float | None) -> frozenset[str]:
    """Return which timers run in this process, besides the one that ends at `alarm`."""
    found = set()
    for name in ("ITIMER_REAL", "ITIMER_VIRTUAL", "ITIMER_PROF"):
        if not hasattr(signal, name):
            continue
        left, interval = signal.getitimer(getattr(signal, name))
        own = alarm is not None and name == "ITIMER_REAL" and not interval
        if own and alarm is not None and abs(alarm - time.monotonic() - left) < _TIMER_SLACK:
            continue
        if left or interval:
            found.add(name)
    with contextlib.suppress(OSError):
        text = Path("/proc/self/timers").read_text("ascii", "replace")
        found.update(n.replace("ID: ", "timer ") for n in text.splitlines() if n.startswith("ID:"))
    return frozenset(found)


def _priority() -> dict[str, int]:
    found: dict[str, int] = {}
    if hasattr(os, "getpriority"):
        found["nice value"] = os.getpriority(os.PRIO_PROCESS, 0)
    if hasattr(os, "sched_getscheduler"):
        found["scheduling policy"] = os.sched_getscheduler(0)
        found["real-time priority"] = os.sched_getparam(0).sched_priority
    return found


def _processors() -> frozenset[int]:
    return frozenset(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else frozenset()


def _parent_signal() -> int:
    if sys.platform != "linux":
        return 0
    number = ctypes.c_int()
    ctypes.CDLL(None).prctl(_PR_GET_PDEATHSIG, ctypes.byref(number), 0, 0, 0)
    return number.value


def _terminate(handler: Any = None) -> int:
    """Return what C++ calls before it ends the process; with a handler, set that one."""
    if sys.platform != "linux":
        return 0
    try:
        library = ctypes.CDLL("libstdc++.so.6")
    except OSError:
        return 0
    if handler is not None:
        library._ZSt13set_terminatePFvvE(handler)
    get = library._ZSt13get_terminatev
    get.restype = ctypes.c_void_p
    return get() or 0


class _Stack(ctypes.Structure):
    _fields_ = (("start", ctypes.c_void_p), ("flags", ctypes.c_int), ("size", ctypes.c_size_t))


def _signal_stack() -> tuple[int, int]:
    if sys.platform != "linux":
        return 0, 0
    stack = _Stack()
    ctypes.CDLL(None).sigaltstack(None, ctypes.byref(stack))
    return stack.start or 0, stack.size


def _root() -> tuple[int, int]:
    status = os.stat("/")  # noqa: PTH116  (the root of this process is the matter)
    return status.st_dev, status.st_ino


def _streams() -> dict[str, tuple[int, ...] | None]:
    found: dict[str, tuple[int, ...] | None] = {}
    for descriptor, name in enumerate(_STREAMS):
        try:
            status = os.fstat(descriptor)
        except OSError:
            found[name] = None
        else:
            found[name] = (status.st_dev, status.st_ino, os.get_blocking(descriptor))
    return found


_SECCOMP = ("NoNewPrivs", "Seccomp", "Seccomp_filters")
_READERS: dict[str, Callable[[], Any]] = {
    "arithmetic": _arithmetic,
    "folder": _folder,
    "root": _root,
    "umask": _umask,
    "locale": _locale,
    "environment": _environment,
    "blocked": _blocked,
    "signal stack": _signal_stack,
    "terminate": _terminate,
    "streams": _streams,
    "priority": _priority,
    "processors": _processors,
    "parent": _parent_signal,
}
_STATUS_READERS: dict[str, Callable[[Mapping[str, str]], Any]] = {
    "ignored": lambda status: _signals(status.get("SigIgn", "")),
    "caught": lambda status: _signals(status.get("SigCgt", "")),
    "user": lambda status: [status.get(n) for n in ("Uid", "Gid", "Groups")],
    "refused calls": lambda status: [status.get(n) for n in _SECCOMP],
}


def _differing(before: Mapping[Any, Any], now: Mapping[Any, Any]) -> list[Any]:
    return [k for k in {**before, **now} if before.get(k) != now.get(k)]


def _listed(names: Iterable[str]) -> str:
    names = sorted(names)
    rest = len(names) - _NAMED
    return ", ".join(names[:_NAMED]) + (f" and {rest} more" if rest > 0 else "")


def _signal_names(before: frozenset[int], now: frozenset[int]) -> str:
    known = {int(s): s.name for s in signal.Signals}
    return _listed(known.get(n, f"SIG{n}") for n in before ^ now)


_DESCRIBED: dict[str, Callable[[Any, Any], str]] = {
    "arithmetic": lambda a, b: f"floating-point arithmetic ({_listed(_differing(a, b))})",
    "folder": lambda a, b: f"the working folder, from {a} to {b}",
    "umask": lambda a, b: f"the umask, from {a:03o} to {b:03o}",
    "locale": lambda a, b: f"the locale, to {_listed(set(b.split(';')) - set(a.split(';')))}",
    "environment": lambda a, b: (
        f"environment variables ({_listed(k.decode(errors='replace') for k in _differing(a, b))})"
    ),
    "blocked": lambda a, b: f"which signals are blocked ({_signal_names(a, b)})",
    "ignored": lambda a, b: f"which signals are ignored ({_signal_names(a, b)})",
    "caught": lambda a, b: f"which signals have a handler ({_signal_names(a, b)})",
    "streams": lambda a, b: f"standard streams ({_listed(_differing(a, b))})",
    "root": lambda a, b: "the root folder",
    "signal stack": lambda a, b: "the stack of signal handlers (sigaltstack)",
    "terminate": lambda a, b: "what C++ calls for an exception that is not caught (set_terminate)",
    "timers": lambda a, b: f"timers that run on ({_listed(a ^ b)})",
    "priority": lambda a, b: (
        "its priority ("
        + ", ".join(f"{k} from {a.get(k)} to {b.get(k)}" for k in _differing(a, b))
        + ")"
    ),
    "processors": lambda a, b: f"on which processors it may run ({len(b)} instead of {len(a)})",
    "user": lambda a, b: "its user or group",
    "refused calls": lambda a, b: "which system calls it may make (seccomp, no_new_privs)",
    "parent": lambda a, b: "the signal that it gets when its parent ends",
}
