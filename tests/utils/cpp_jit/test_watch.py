"""What a caller hears while a library is built, and what an interrupt leaves behind."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tensorplay.utils import cpp_jit
from tensorplay.utils.cpp_jit import store, toolchain
from tensorplay.utils.cpp_jit.build import build_text
from tensorplay.utils.cpp_jit.compile import Source, Unit
from tensorplay.utils.cpp_jit.diagnostics import Diagnostic
from tensorplay.utils.cpp_jit.watch import BuildWatch

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="a shell script is the compiler")

# Stands for the compiler. Its first message is whole, its second comes in two pieces.
SAYS = """\
echo 'slow_one.cpp:1:5: error: first' >&2
printf 'slow_one.cpp:2:' >&2
sleep 0.5
echo '5: error: second' >&2
sleep {rest}
exit 1
"""


def stub(monkeypatch: pytest.MonkeyPatch, rest: float) -> None:
    """Put a compiler in place that says one thing, waits, and says another."""
    command = ("/bin/sh", "-c", SAYS.format(rest=rest))
    monkeypatch.setattr(toolchain, "_within_limits", lambda *_: command)


class Notes(BuildWatch):
    """Writes down what it hears, with the time."""

    def __init__(self) -> None:
        self.said_at: list[tuple[float, list[str]]] = []
        self.starts = 0
        self.seconds = 0.0
        self.waits: list[str] = []

    def waiting(self, for_whom: str) -> None:
        self.waits.append(for_whom)

    def started(self) -> None:
        self.starts += 1

    def compiling(self, seconds: float) -> None:
        self.seconds = seconds

    def said(self, diagnostics: tuple[Diagnostic, ...]) -> None:
        self.said_at.append((time.monotonic(), [d.message for d in diagnostics]))


def unit(name: str, text: str) -> Unit:
    return Unit(name, Source(text), {"f": ""})


SLOW = "int64_t f() { return 1; }\n// told\n"


def test_messages_are_heard_line_by_line(monkeypatch: pytest.MonkeyPatch):
    cpp_jit.build_source("warm", Source("int64_t f() { return 1; }"), exports=["f"])
    stub(monkeypatch, rest=0.3)
    notes = Notes()
    with pytest.raises(cpp_jit.BuildError) as caught:
        build_text(unit("slow_one", SLOW), notes)
    end = time.monotonic()
    assert [messages for _, messages in notes.said_at] == [["first"], ["first", "second"]]
    assert [end - at > least for (at, _), least in zip(notes.said_at, (0.6, 0.2), strict=True)] == [
        True,
        True,
    ]
    assert [d.message for d in caught.value.diagnostics] == ["first", "second"]
    assert (notes.starts, notes.seconds > 0.5) == (1, True)


def test_what_a_watch_raises_ends_the_compiler(monkeypatch: pytest.MonkeyPatch):
    class Enough(Notes):
        def said(self, diagnostics: tuple[Diagnostic, ...]) -> None:
            raise KeyboardInterrupt

    rest = 31 + os.getpid() * 1e-7  # no other run of this test has this one's
    stub(monkeypatch, rest)
    folder = store.default_cache().root / "tmp"
    pattern = f"build-{os.getpid()}-*"  # other processes build in this cache too
    before = set(folder.glob(pattern))  # of builds that other tests have killed
    start = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        build_text(unit("slow_one", SLOW), Enough())
    assert time.monotonic() - start < 10
    assert set(folder.glob(pattern)) <= before
    if Path("/proc").is_dir():
        assert not any(f"{rest}".encode() in line for line in command_lines())


def command_lines() -> Iterator[bytes]:
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            yield (process / "cmdline").read_bytes()


def test_what_is_tried_with_other_headers_is_taken_back():
    text = "int64_t f(tvm::ffi::Shape s) { return s.size(); }\n"
    notes = Notes()
    assert build_text(unit("watched_rungs", text), notes).rung == "full"
    assert notes.starts == 2
    assert all(messages == [] for _, messages in notes.said_at)


def test_a_build_that_waits_hears_for_whom():
    entered, leave = threading.Event(), threading.Event()

    def hold() -> None:
        with store.default_cache().lock("library", "cd12", "'slow one'"):
            entered.set()
            leave.wait(10)

    holder = threading.Thread(target=hold)
    holder.start()
    entered.wait(10)
    heard: list[str] = []

    def on_wait(text: str) -> None:
        heard.append(text)
        if len(heard) == 2:
            leave.set()

    with store.default_cache().lock("library", "cd34", "'mine'", on_wait=on_wait):
        pass
    holder.join()
    assert heard[0] == heard[1]
    assert heard[0].startswith(f"'mine' waits for process {os.getpid()}, which has been building")
