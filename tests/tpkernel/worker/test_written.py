"""What a worker writes: shown up to a limit, given back to the disk, read at its end."""

from __future__ import annotations

import os

import pytest

from tpkernel.worker.streams import MAX_SHOWN
from tpkernel.worker.written import Written

MIB = b"x" * (1 << 20)


def test_a_flood_on_the_error_stream_leaves_the_disk() -> None:
    written = Written()
    number = written.errors.fileno()
    for _ in range(80):
        os.write(number, MIB)
    written.give_back()
    os.write(number, b"last words\n")
    assert os.fstat(number).st_blocks * 512 < 1 << 20
    assert written.said().endswith("last words\n")
    written.close()


def test_a_flood_is_shown_once_and_up_to_its_limit(capsys: pytest.CaptureFixture[str]) -> None:
    written = Written()
    number = written.output.fileno()
    for _ in range(3):
        for _ in range(70):
            os.write(number, MIB)
        written.give_back()
        written.show()  # where the file is shorter than what was read of it
        written.show()
    shown = capsys.readouterr().out
    assert shown.count("cut after") <= 1
    assert len(shown) < MAX_SHOWN + 100
    written.begin_call()
    os.write(number, b"of the next call")
    written.show()
    assert capsys.readouterr().out == "of the next call"
    written.close()
