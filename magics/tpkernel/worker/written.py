"""What a worker writes to its standard streams, in files that outlive it."""

from __future__ import annotations

import os
import sys
import tempfile
from typing import IO

from tpkernel.worker.crash_stack import THREAD
from tpkernel.worker.streams import MAX_SHOWN, shown_text

__all__ = ["Written"]

#: Bytes on disk of what a worker has written, beyond which they are given back.
_MAX_KEPT = 1 << 26
#: What the worker's handler writes first.
_CRASHING = f"\n{THREAD}".encode()
#: Bytes of its end that are read after a crash.
_LAST_SAID = 1 << 18


class Written:
    """The two files that a worker has as its output and its errors.

    Attributes
    ----------
    output, errors
        The files.
    """

    def __init__(self) -> None:
        self.output: IO[bytes] = tempfile.TemporaryFile(prefix="tpkernel-worker-")  # noqa: SIM115  (see close)
        self.errors: IO[bytes] = tempfile.TemporaryFile(prefix="tpkernel-worker-")  # noqa: SIM115  (see close)
        self._read = [0, 0]
        self._shown = [0, 0]

    def close(self) -> None:
        """Forget what was written."""
        self.output.close()
        self.errors.close()

    def said(self) -> str:
        """Return what was written to the error stream and is not read yet: its end, if much."""
        number = self.errors.fileno()
        start = max(self._read[1], os.fstat(number).st_size - _LAST_SAID)
        data = os.pread(number, _LAST_SAID, start).replace(b"\0", b"")  # of what was given back
        return data.decode(errors="replace")

    def forget_said(self) -> None:
        """Leave out what was written to the error stream up to now."""
        self._read[1] = max(self._read[1], os.fstat(self.errors.fileno()).st_size)

    def begin_call(self) -> None:
        """Let as much be shown as one call may write."""
        self._shown = [0, 0]

    def show(self, *, errors: bool = True) -> None:
        """Write what is new to this process's streams, up to what one call may.

        Parameters
        ----------
        errors
            The error stream, too; without it what was written there stays for :meth:`said`.
        """
        streams = ((self.output, sys.stdout), (self.errors, sys.stderr))
        for index, (file, stream) in enumerate(streams if errors else streams[:1]):
            # Not by seeking: the worker writes at the position that both processes share.
            size = os.fstat(file.fileno()).st_size - self._read[index]
            if size <= 0:  # nothing, or it was given back, and the worker writes on where it was
                continue
            room = MAX_SHOWN - self._shown[index]
            if room >= 0:
                # No more than was there: the worker may be writing, and what is read is counted.
                data = os.pread(file.fileno(), min(size, room + 1), self._read[index])
                if (cut := data.find(_CRASHING)) >= 0:  # another thread crashes: not for a reader
                    size, data = cut, data[:cut]
                stream.write(shown_text(data, room))
                stream.flush()
            self._count(index, size)

    def give_back(self) -> None:
        """Free the disk of a flood that nobody will read."""
        for index, file in enumerate((self.output, self.errors)):
            status = os.fstat(file.fileno())
            if status.st_blocks * 512 > _MAX_KEPT:
                os.ftruncate(file.fileno(), 0)  # the worker writes on where it was
                self._count(index, status.st_size - self._read[index])

    def _count(self, index: int, size: int) -> None:
        self._read[index] += size
        self._shown[index] += size
