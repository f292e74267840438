"""What C and C++ code writes to its standard streams, in the cell that called it and in order.

A kernel writes to the descriptors 1 and 2. In a notebook Python's streams do not: a front end's
messages come from ``sys.stdout``, and where IPython's kernel watches the descriptors, a thread
copies them at some later time, under whichever cell runs then. So the descriptors lead into a file
while such a kernel runs, and the text goes through ``sys.stdout`` once it returns. Where Python
itself writes to the descriptor, in a terminal, flushing both sides is all that order needs.
"""

from __future__ import annotations

import ctypes
import functools
import io
import os
import re
import sys
import tempfile
import threading
from collections.abc import Callable
from typing import IO, Any

__all__ = ["MAX_SHOWN", "PrintingKernel", "may_print", "shown_text"]

#: Bytes of one call that are shown.
MAX_SHOWN = 1 << 20

_PRINTS = re.compile(
    r"\b(?:v?d?printf|puts|putchar|f?putc|cout|cerr|clog|stdout|stderr|perror|psignal|system|println?)\b"
    r'|\bwrite\s*\(|^[ \t]*#[ \t]*include[ \t]*"',
    re.MULTILINE,
)


def may_print(text: str) -> bool:
    """Whether a C++ text may write to its standard streams, or includes what is not looked at."""
    return _PRINTS.search(text) is not None


def shown_text(data: bytes, room: int = MAX_SHOWN) -> str:
    """Return what is shown of some output: all of it, or its start and how it was cut."""
    text = data[:room].decode(errors="replace")
    if len(data) <= room:
        return text
    return f"{text}\n… output of the kernel cut after {MAX_SHOWN >> 20} MiB\n"


class PrintingKernel:
    """A kernel whose output appears in order with that of Python.

    Parameters
    ----------
    call
        The kernel.
    """

    def __init__(self, call: Callable[..., Any]) -> None:
        self.call = call

    def __call__(self, *args: Any) -> Any:
        """Call the kernel and show what it has written."""
        return _in_order(self.call, args)


_lock = threading.RLock()
_inside = threading.local()


# No context managers of `contextlib`: those write to what is raised, which its class may refuse.
def _in_order(call: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    if getattr(_inside, "entered", False) or not _lock.acquire(blocking=False):
        # Inside of another call, or beside one in another thread, whose file this leads into.
        return call(*args)
    _inside.entered = True
    try:
        sys.stdout.flush()
        sys.stderr.flush()
        if _writes_to(sys.stdout, 1) and _writes_to(sys.stderr, 2):
            try:
                return call(*args)
            finally:
                _libc().fflush(None)
        return _captured(call, args)
    finally:
        _inside.entered = False
        _lock.release()


def _captured(call: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    files = _files()
    _libc().fflush(None)
    saved = [os.dup(1), os.dup(2)]
    try:
        for number, file in enumerate(files, start=1):
            os.dup2(file.fileno(), number)
        return call(*args)
    finally:
        _libc().fflush(None)
        for number, before in enumerate(saved, start=1):
            os.dup2(before, number)
            os.close(before)
        for file, stream in zip(files, (sys.stdout, sys.stderr), strict=True):
            size = os.fstat(file.fileno()).st_size
            if size:
                data = os.pread(file.fileno(), MAX_SHOWN + 1, 0)
                os.ftruncate(file.fileno(), 0)
                os.lseek(file.fileno(), 0, os.SEEK_SET)
                stream.write(shown_text(data))
                stream.flush()


def _writes_to(stream: Any, descriptor: int) -> bool:
    """Whether a Python stream writes to a descriptor itself."""
    if not isinstance(stream, io.TextIOWrapper):
        return False
    try:
        return stream.fileno() == descriptor
    except (OSError, ValueError):
        return False


@functools.cache
def _libc() -> Any:
    return ctypes.CDLL(None)


_pair: list[tuple[int, tuple[IO[bytes], IO[bytes]]]] = []


def _files() -> tuple[IO[bytes], IO[bytes]]:
    """Return the files of this process that take the output; a copy by fork() has its own."""
    if not _pair or _pair[0][0] != os.getpid():
        one, two = (tempfile.TemporaryFile(buffering=0) for _ in range(2))  # noqa: SIM115  (for the process)
        _pair[:] = [(os.getpid(), (one, two))]
    return _pair[0][1]
