"""What Interrupt says while a kernel runs that does not look for it.

Python acts on a signal between two of its instructions, so not before a kernel returns. Until then
a person who pressed Interrupt would see nothing. A thread hears of the signal at once, by the
descriptor that Python writes it to, and says in the running cell what goes on.
"""

from __future__ import annotations

import contextlib
import signal
import socket
import sys
import threading
import time
from types import FrameType
from typing import Any

from tpkernel.errors import is_own_file
from tpkernel.worker.crash_record import RecordedKernel

__all__ = ["hear_interrupts"]

#: Seconds after which a kernel that looks for an interrupt would have ended.
_GRACE = 1.0

_ends: list[socket.socket] = []


def hear_interrupts(shell: Any) -> None:
    """Hear of interrupts from now on; again is nothing, unless others took the descriptor.

    A shell without a front end's kernel is left alone: a terminal shows that it waits, and its
    prompt has the descriptor.
    """
    if getattr(shell, "kernel", None) is None or sys.platform == "win32":
        return
    if threading.current_thread() is not threading.main_thread():
        return
    if not _ends:
        heard, written = socket.socketpair()
        written.setblocking(False)
        _ends.extend((heard, written))
        threading.Thread(
            target=_listen, args=(heard,), name="tpkernel-interrupts", daemon=True
        ).start()
    own = _ends[1].fileno()
    before = signal.set_wakeup_fd(own, warn_on_full_buffer=False)
    if before not in (-1, own):  # an event loop's
        signal.set_wakeup_fd(before)


def _listen(heard: socket.socket) -> None:
    while True:
        if signal.SIGINT not in heard.recv(64):
            continue
        # Whatever goes wrong here, nobody waits for it.
        with contextlib.suppress(Exception):
            running = _place()
            if running is None:
                continue
            time.sleep(_GRACE)
            if _place() == running:
                _say(_kernel_of(running[0]))
            del running


def _place() -> tuple[FrameType, int] | None:
    """Return where the main thread is, if that is a call of a kernel."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    if frame is None or not is_own_file(frame.f_code.co_filename):
        return None
    return frame, frame.f_lasti


def _kernel_of(frame: FrameType | None) -> str:
    while frame is not None and is_own_file(frame.f_code.co_filename):
        kernel = frame.f_locals.get("self")
        if isinstance(kernel, RecordedKernel):
            return f"{kernel.title} of {kernel.cell}"
        frame = frame.f_back
    return "a kernel"


def _say(kernel: str) -> None:
    sys.stderr.write(
        f"Interrupt waits for {kernel}: its C++ does not look for it, and it ends when that "
        "returns. To end it now, restart the notebook's kernel. For the next time, call "
        "tp::check_interrupt() in its loop, write it as tp::parallel_for, or run the cell with "
        "--isolate.\n"
    )
    sys.stderr.flush()
