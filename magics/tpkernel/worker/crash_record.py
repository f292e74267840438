"""Which kernel was running when a session ended, told by the next one.

A kernel that crashes in the session takes everything with it. So before a call of a kernel that no
check has passed, a line about it is put into a small file that is mapped into memory, which
outlives the process; the fault handler writes the signal beside it. The next session of the same
notebook reads both when it loads the extension.
"""

from __future__ import annotations

import atexit
import contextlib
import faulthandler
import hashlib
import json
import mmap
import os
import re
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np

import tensorplay as tp
from tensorplay.utils.cpp_jit.cache import writable
from tensorplay.utils.cpp_jit.store import default_cache
from tpkernel.errors import is_own_file
from tpkernel.worker.transfer import described

__all__ = ["CrashRecord", "LastCall", "RecordedKernel", "last_calls", "session_key"]

_SIZE = 4096
_INSIDE, _OUTSIDE = 1, 0
_KEPT_SECONDS = 7 * 24 * 3600.0
_SIGNAL = re.compile(r"^Fatal Python error: (?P<what>.*)$", re.MULTILINE)
_PLACE = re.compile(r'^  File "(?P<file>[^"]+)", line (?P<line>\d+)', re.MULTILINE)


@dataclass(frozen=True)
class LastCall:
    """The call that a session did not return from.

    Attributes
    ----------
    cell, title, arguments
        Which cell's kernel, and what it was called with.
    how
        What the fault handler says; empty where the process was ended from outside.
    place
        The innermost Python line of the person's own, or empty.
    """

    cell: str
    title: str
    arguments: str
    how: str
    place: str

    def __str__(self) -> str:
        how = self.how or (
            "no signal was caught, so it was ended from outside: restarted, or killed for memory"
        )
        called = f", called from {self.place}" if self.place else ""
        return (
            f"The session before this one ended in a kernel: {self.title}({self.arguments}) of "
            f"{self.cell}{called} ({how}).\nRun that cell with --isolate, and a crash leaves the "
            "session alive; with --sanitize address, and the report shows the line."
        )


def session_key(shell: Any) -> str:
    """Return what a session has in common with the one before a restart."""
    connection = ""
    # Not imported: that alone would route the widgets of a session without a kernel elsewhere.
    app = getattr(sys.modules.get("ipykernel.kernelapp"), "IPKernelApp", None)
    if getattr(shell, "kernel", None) is not None and app is not None and app.initialized():
        connection = Path(app.instance().connection_file).name
    if not connection:
        try:
            connection = os.ttyname(0)
        except OSError:
            connection = "none"
        connection += str(Path.cwd())
    return hashlib.sha256(connection.encode()).hexdigest()[:16]


def _folder() -> Path:
    cache = default_cache()
    used = writable(cache).root
    # Where the home folder cannot be written to, it goes with the cache that stands in for it.
    return (used.parent if used == cache.root else used) / "sessions"


class CrashRecord:
    """The file of this session.

    Parameters
    ----------
    key
        Of :func:`session_key`.
    catch_faults
        Let the fault handler write into a file beside it.
    """

    def __init__(self, key: str, *, catch_faults: bool) -> None:
        folder = _folder()
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / f"{key}-{os.getpid()}.call"
        with self.path.open("w+b") as file:
            file.truncate(_SIZE)
            self.memory = mmap.mmap(file.fileno(), _SIZE)
        self.last: Any = None
        self._faults: IO[bytes] | None = None
        if catch_faults:
            self._faults = self.path.with_suffix(".fault").open("wb")
            faulthandler.enable(self._faults)
        self._closed = False
        atexit.register(self.close)
        os.register_at_fork(after_in_child=self._forget)

    def _forget(self) -> None:
        """Leave the file to the process that this one is a copy of."""
        self.memory = mmap.mmap(-1, _SIZE)
        self._closed = True

    def enter(self, text: bytes) -> None:
        """Note a call."""
        self.memory[1 : 1 + len(text)] = text
        self.memory[0] = _INSIDE

    def close(self) -> None:
        """Remove the files of a session that ends as it should."""
        if self._closed:
            return
        self._closed = True
        if self._faults is not None:
            faulthandler.disable()
            self._faults.close()
        for path in (self.path, self.path.with_suffix(".fault")):
            path.unlink(missing_ok=True)


class RecordedKernel:
    """A kernel whose calls are noted before they begin.

    Parameters
    ----------
    call
        The kernel.
    record
        The session's file.
    cell, title, names
        What the note says of it: cell, name, and names of its arguments.
    """

    def __init__(
        self,
        call: Callable[..., Any],
        record: CrashRecord,
        cell: str,
        title: str,
        names: Sequence[str],
    ) -> None:
        self.call = call
        self.record = record
        self.cell = cell
        self.title = title
        self.names = tuple(names)

    def __call__(self, *args: Any) -> Any:
        """Note the call where it differs from the last one, and make it."""
        record = self.record
        known = (self, *map(_kind, args))
        if known != record.last:
            record.last = known
            record.enter(self.note(args))
        else:
            record.memory[0] = _INSIDE
        try:
            return self.call(*args)
        finally:
            record.memory[0] = _OUTSIDE

    def note(self, args: Sequence[Any]) -> bytes:
        """Return what the file says of a call."""
        arguments = described(self.names, args)[:800]
        text = json.dumps([self.cell[:80], self.title[:80], arguments], ensure_ascii=False)
        return text.encode()[: _SIZE - 2] + b"\0"


def _kind(value: Any) -> Any:
    if isinstance(value, (tp.Tensor, np.ndarray)):
        return value.dtype, value.shape
    try:
        hash(value)
    except TypeError:
        return object()  # a list: noted each time
    return type(value), value


def last_calls(key: str) -> list[LastCall]:
    """Return the calls that earlier sessions of this notebook ended in, and forget them."""
    found = []
    folder = _folder()
    for path in sorted(folder.glob("*.call")) if folder.is_dir() else ():
        owner, _, number = path.stem.rpartition("-")
        with contextlib.suppress(OSError, ValueError):
            own = int(number) == os.getpid()  # a container's session has one number each time
            if not own and _is_alive(int(number)):
                continue
            if owner == key:
                call = _read(path)
                if call is not None:
                    found.append(call)
            elif time.time() - path.stat().st_mtime < _KEPT_SECONDS:
                continue
            path.unlink()
            path.with_suffix(".fault").unlink(missing_ok=True)
    return found


def _read(path: Path) -> LastCall | None:
    data = path.read_bytes()
    if not data or data[0] != _INSIDE:
        return None
    try:
        cell, title, arguments = json.loads(data[1:].partition(b"\0")[0])
    except ValueError:  # cut short, or not yet whole
        return None
    how = place = ""
    faults = path.with_suffix(".fault")
    if faults.exists():
        text = faults.read_text(errors="replace")
        signal = _SIGNAL.search(text)
        how = signal["what"] if signal is not None else ""
        for frame in _PLACE.finditer(text.partition("Current thread")[2].partition("\n\n")[0]):
            if not is_own_file(frame["file"]):
                place = f"line {frame['line']} of {_shown_file(frame['file'])}"
                break
    return LastCall(cell, title, arguments, how, place)


def _shown_file(file: str) -> str:
    """Return what a person calls a file; a cell's is made up by the kernel."""
    cell = re.search(r"ipykernel_\d+[/\\]\d+\.py$|^<ipython-input", file)
    return "a cell" if cell else file


def _is_alive(pid: int) -> bool:
    if sys.platform == "win32":
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
