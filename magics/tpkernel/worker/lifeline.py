"""The worker ends with its session, whatever ends that one.

A session that is killed ends nothing, and a kernel that does not return would go on without anybody
to stop it: an isolated call has no time limit. So the session holds one end of a pipe, and the
system kills the worker when that end is gone (Linux; elsewhere an idle worker ends by itself).
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys

__all__ = ["Lifeline", "end_with_session"]


class Lifeline:
    """The session's end, and the one that a child is to inherit.

    Attributes
    ----------
    theirs
        Descriptor of the child's end.
    """

    def __init__(self) -> None:
        self.theirs, self._ours = os.pipe()

    def handed_over(self) -> None:
        """Close the end that the child has got."""
        theirs, self.theirs = self.theirs, -1
        os.close(theirs)

    def cut(self) -> None:
        """Close the session's end, which ends the child; once."""
        held, self._ours, self.theirs = (self._ours, self.theirs), -1, -1
        for descriptor in held:
            if descriptor >= 0:
                os.close(descriptor)


def end_with_session(descriptor: int) -> None:
    """Let the system kill this process when nobody holds the other end any more.

    Parameters
    ----------
    descriptor
        The inherited end.
    """
    if sys.platform != "linux":
        return
    import fcntl

    with contextlib.suppress(OSError):  # a system that only looks like Linux may know none of it
        fcntl.fcntl(descriptor, fcntl.F_SETOWN, os.getpid())
        fcntl.fcntl(descriptor, fcntl.F_SETSIG, signal.SIGKILL)
        flags = fcntl.fcntl(descriptor, fcntl.F_GETFL)
        fcntl.fcntl(descriptor, fcntl.F_SETFL, flags | os.O_ASYNC)
    watched = select.poll()
    watched.register(descriptor, 0)
    if watched.poll(0):  # it was gone before
        os._exit(0)
