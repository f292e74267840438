"""Messages between a session and its check worker, over a socket that a kernel can reach too.

A kernel runs in the worker with all of its descriptors. It can write into the socket, read from
it, close it, or copy the process that holds it. So a message carries a secret of its connection and
its own length, is read with a deadline, and whatever else arrives is a :class:`ChannelError`: bytes
that a kernel made are never unpickled and never waited for.
"""

from __future__ import annotations

import os
import pickle
import socket
import struct
import time
from typing import Any

__all__ = ["Channel", "ChannelError", "ClosedError", "channel_pair"]

_SECRET_BYTES = 16
_LENGTH = struct.Struct("<Q")
_HEADER_BYTES = _SECRET_BYTES + _LENGTH.size
#: Larger than any report: each is bounded by what a notebook can show.
_LIMIT = 1 << 30


class ChannelError(RuntimeError):
    """What arrived is no message of the other end."""


class ClosedError(EOFError):
    """The other end is gone."""


class Channel:
    """One end of a connection.

    Parameters
    ----------
    end
        The socket; the channel owns it.
    secret
        Sixteen bytes that both ends know.
    """

    def __init__(self, end: socket.socket, secret: bytes) -> None:
        self._socket = end
        self._secret = secret
        self._buffer = bytearray()

    @property
    def secret(self) -> bytes:
        """What the other end needs to be understood."""
        return self._secret

    def close(self) -> None:
        """Close this end."""
        self._socket.close()

    def send(self, message: Any) -> None:
        """Send one message.

        Raises
        ------
        OSError
            The other end is gone.
        """
        body = pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)
        self._socket.settimeout(None)
        self._socket.sendall(self._secret + _LENGTH.pack(len(body)) + body)

    def receive(self, timeout: float | None) -> Any:
        """Return the next message.

        Parameters
        ----------
        timeout
            Seconds until ``TimeoutError``; what has arrived until then is kept for the next call.
            None waits as long as it takes.

        Raises
        ------
        TimeoutError
            No whole message in time.
        ClosedError
            The other end is gone.
        ChannelError
            Bytes that are not a message of the other end.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            size = self._size_of_first()
            if size is not None and len(self._buffer) >= _HEADER_BYTES + size:
                body = bytes(self._buffer[_HEADER_BYTES : _HEADER_BYTES + size])
                del self._buffer[: _HEADER_BYTES + size]
                return pickle.loads(body)  # noqa: S301  (it carried the secret)
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            self._socket.settimeout(left)
            try:
                arrived = self._socket.recv(1 << 20)
            except BlockingIOError:  # what a time-out of zero raises
                raise TimeoutError from None
            except ConnectionResetError:
                arrived = b""
            if not arrived:
                raise ClosedError
            self._buffer += arrived

    def _size_of_first(self) -> int | None:
        """Return the length of the message at the front, or None while its header is incomplete."""
        start = bytes(self._buffer[:_SECRET_BYTES])
        if start != self._secret[: len(start)]:
            message = "bytes arrived that the other end did not send"
            raise ChannelError(message)
        if len(self._buffer) < _HEADER_BYTES:
            return None
        (size,) = _LENGTH.unpack_from(self._buffer, _SECRET_BYTES)
        if size > _LIMIT:
            message = f"a message of {size} bytes was announced"
            raise ChannelError(message)
        return int(size)


def channel_pair() -> tuple[Channel, socket.socket]:
    """Return this process's end, and the socket of the other one for a child to inherit."""
    ours, theirs = socket.socketpair()
    return Channel(ours, os.urandom(_SECRET_BYTES)), theirs
