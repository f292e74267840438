"""What may arrive on the worker's connection, and what is made of it."""

from __future__ import annotations

import os
import pickle
import socket
import struct
from collections.abc import Iterator

import pytest
from hypothesis import given, strategies as st

from tpkernel.worker.channel import Channel, ChannelError, ClosedError, channel_pair


@pytest.fixture
def ends() -> Iterator[tuple[Channel, Channel, socket.socket]]:
    ours, raw = channel_pair()
    theirs = Channel(raw, ours.secret)
    yield ours, theirs, raw
    ours.close()
    theirs.close()


def test_messages_arrive_whole_and_in_order(ends: tuple[Channel, Channel, socket.socket]) -> None:
    ours, theirs, _ = ends
    messages = ["ready", ("record", b"x" * 50_000), None, {"a": [1.5, 2]}]
    for message in messages:
        theirs.send(message)
    assert [ours.receive(5) for _ in messages] == messages


@given(st.binary(min_size=1, max_size=400))
def test_bytes_without_the_secret_are_refused(noise: bytes) -> None:
    ours, raw = channel_pair()
    try:
        raw.sendall(noise)
        if noise.startswith(ours.secret[: len(noise)]):
            return  # one in 256 for a single byte
        with pytest.raises(ChannelError, match="did not send"):
            ours.receive(5)
    finally:
        ours.close()
        raw.close()


def test_bytes_of_others_are_never_unpickled(ends: tuple[Channel, Channel, socket.socket]) -> None:
    ours, _, raw = ends

    class Hostile:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return os.system, ("exit 3",)

    body = pickle.dumps(Hostile())
    raw.sendall(b"?" * 16 + struct.pack("<Q", len(body)) + body)
    with pytest.raises(ChannelError):
        ours.receive(5)


def test_part_of_a_message_times_out_and_is_kept(
    ends: tuple[Channel, Channel, socket.socket],
) -> None:
    ours, _, raw = ends
    body = pickle.dumps("whole")
    frame = ours.secret + struct.pack("<Q", len(body)) + body
    for cut in (frame[:5], frame[5:20], frame[20:30]):
        raw.sendall(cut)
        with pytest.raises(TimeoutError):
            ours.receive(0.01)
    raw.sendall(frame[30:])
    assert ours.receive(0) == "whole"


def test_a_huge_length_is_not_waited_for(ends: tuple[Channel, Channel, socket.socket]) -> None:
    ours, _, raw = ends
    raw.sendall(ours.secret + struct.pack("<Q", 1 << 62))
    with pytest.raises(ChannelError, match="announced"):
        ours.receive(5)


def test_the_other_end_gone(ends: tuple[Channel, Channel, socket.socket]) -> None:
    ours, theirs, _ = ends
    theirs.send("last")
    theirs.close()
    assert ours.receive(5) == "last"
    with pytest.raises(ClosedError):
        ours.receive(5)
