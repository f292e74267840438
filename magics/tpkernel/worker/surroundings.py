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


class Surroundings:
    """The state of this process that a kernel has to leave as it found it."""

    def __init__(self) -> None:
        self._before: dict[str, Any] = {}
        self._fenv = _fenv()
        self._told: set[str] = set()

    def keep(self) -> None:
        """Remember what is so now."""
        self._fenv = _fenv()
        self._before = {name: read() for name, read in _READERS.items()}
        self._told = set()

    def changed(self) -> str:
        """Say what is not as it was remembered, each thing once, and put it back where that works.

        Returns
        -------
        str
            What has changed; empty where nothing has.
        """
        found: list[str] = []
        for name, read in _READERS.items():
            before, now = self._before[name], read()
            if now == before:
                continue
            if name not in self._told:
                self._told.add(name)
                found.append(_DESCRIBED[name](before, now))
            self._put_back(name, before, now)
        return "; ".join(found)

    def _put_back(self, name: str, before: Any, now: Any) -> None:
        if name == "arithmetic":
            ctypes.CDLL(None).fesetenv(self._fenv)
        elif name == "folder":
            with contextlib.suppress(OSError):
                os.chdir(before)
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


def _signals(line: str) -> frozenset[int]:
    """Return the signals that Linux lists in a line of the process's status.

    The C library's own are left out: it handles them as soon as it needs them for its threads.
    """
    programs = signal.valid_signals()
    with contextlib.suppress(OSError):
        for text in Path("/proc/self/status").read_text("ascii", "replace").splitlines():
            if text.startswith(line):
                bits = int(text.split()[1], 16)
                return frozenset(n + 1 for n in range(64) if bits >> n & 1 and n + 1 in programs)
    return frozenset()


def _streams() -> dict[str, tuple[int, int] | None]:
    found: dict[str, tuple[int, int] | None] = {}
    for descriptor, name in enumerate(_STREAMS):
        try:
            status = os.fstat(descriptor)
        except OSError:
            found[name] = None
        else:
            found[name] = (status.st_dev, status.st_ino)
    return found


_READERS: dict[str, Callable[[], Any]] = {
    "arithmetic": _arithmetic,
    "folder": _folder,
    "umask": _umask,
    "locale": _locale,
    "environment": _environment,
    "blocked": _blocked,
    "ignored": lambda: _signals("SigIgn:"),
    "caught": lambda: _signals("SigCgt:"),
    "streams": _streams,
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
}
