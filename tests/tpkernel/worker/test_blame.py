"""Whose a crash is, by what the worker has written; and which operator a finding is of."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tpkernel.worker.crash_stack import frames_of, raised_in, thread_of
from tpkernel.worker.findings import Blame, blame_of, finding, how_it_ended

OWN, OTHER, LIBC = "/cache/own-1.so", "/cache/other-2.so", "/lib/libc.so.6"
HANDLER = ["/cache/handler.so", LIBC]


def said(thread: str, files: Sequence[str], text: str = "") -> str:
    lines = [f"@frame {n:x} {file}" for n, file in enumerate([*HANDLER, *files], start=4096)]
    return "\n".join([text, f"@thread {thread}", *lines, ""])


@pytest.mark.parametrize(
    ("written", "signal", "expected"),
    [
        (said("main", [OWN, LIBC]), "SIGSEGV", Blame("own")),
        (said("new", [LIBC]), "SIGSEGV", Blame("own")),
        (said("earlier", [LIBC]), "SIGSEGV", Blame("thread")),
        (said("earlier", [OTHER]), "SIGSEGV", Blame("thread", OTHER)),
        # Such as the destructor of an object that an earlier cell has made.
        (said("main", [OTHER, LIBC]), "SIGSEGV", Blame("thread", OTHER)),
        (said("main", [OTHER, OWN]), "SIGSEGV", Blame("own")),
        (said("main", [LIBC, LIBC, OWN]), "SIGSEGV", Blame("damage")),
        (said("main", [LIBC, LIBC]), "SIGSEGV", Blame("damage")),
        (said("main", [LIBC, OWN], "free(): invalid pointer"), "SIGABRT", Blame("damage")),
        (said("main", [LIBC, OWN], "terminate called"), "SIGABRT", Blame("own")),
        (said("main", [LIBC, OWN]), "SIGTERM", Blame("own")),
        ("", None, Blame("own")),
    ],
)
def test_blame(written: str, signal: str | None, expected: Blame) -> None:
    assert blame_of(written, signal, OWN, [OTHER, OWN], beside=False) == expected


def test_nothing_is_of_others_where_there_are_none() -> None:
    written = said("main", [LIBC, LIBC], "double free or corruption (out)")
    assert blame_of(written, "SIGABRT", OWN, [OWN], beside=False) == Blame("own")
    assert blame_of("", None, OWN, [OTHER, OWN], beside=True) == Blame("thread")


def test_what_a_kernel_writes_like_the_handler_is_read_with_care() -> None:
    text = "@frame zz /a.so\n@frame \n@frame 1f\n@frame 1f /a b.so\n@raised 999\n@thread \n"
    assert frames_of(text) == [("1f", "/a b.so")]
    assert raised_in(text) is None
    assert thread_of(text) == ""


@pytest.mark.parametrize(
    ("during", "expected"),
    [
        ("memory check of my::f2 on x (4,)", "my::f2"),
        ("memory check of my::f on x (4,)", "my::f"),
        ("validation of my::f: calls again on x (4,)", "my::f"),
        ("memory check of my::f.out, as the process ends", "my::f.out"),
        ("starting", ""),
    ],
)
def test_a_finding_is_of_the_operator_that_ran(during: str, expected: str) -> None:
    names = ("my::f", "my::f2", "my::f.out")
    assert finding(names, during, "", code="crash").operator == expected


def test_how_it_ended() -> None:
    assert how_it_ended(-2) == ("signal 2 (SIGINT: ended from outside)", "SIGINT")
    itself = ("signal 9 (SIGKILL: sent by the process to itself)", "SIGKILL")
    assert how_it_ended(-31, "@raised 9\n") == itself
    assert how_it_ended(-6, "@raised 6\n") == ("signal 6 (SIGABRT: abort)", "SIGABRT")
    assert how_it_ended(None)[1] is None
