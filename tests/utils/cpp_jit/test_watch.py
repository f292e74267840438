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
sleep 0.6
{then}
echo '5: error: second' >&2
{last}
exit 1
"""
# Ends when the message has been heard, or else after twenty seconds.
UNTIL_HEARD = "for i in $(seq 400); do test -e '{file}' && break; sleep 0.05; done"


def stub(monkeypatch: pytest.MonkeyPatch, *, then: str = "", last: str) -> None:
    """Put a compiler in place that says one thing, waits, and says another."""
    command = ("/bin/sh", "-c", SAYS.format(then=then, last=last))
    monkeypatch.setattr(toolchain, "_within_limits", lambda *_: command)


class Notes(BuildWatch):
    """Writes down what it hears."""

    def __init__(self) -> None:
        self.heard: list[list[str]] = []
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
        self.heard.append([d.message for d in diagnostics])


def unit(name: str, text: str) -> Unit:
    return Unit(name, Source(text), {"f": ""})


SLOW = "int64_t f() { return 1; }\n// told\n"


def test_messages_are_heard_line_by_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    class Answering(Notes):
        def said(self, diagnostics: tuple[Diagnostic, ...]) -> None:
            super().said(diagnostics)
            (tmp_path / diagnostics[-1].message).touch()

    cpp_jit.build_source("warm", Source("int64_t f() { return 1; }"), exports=["f"])
    first, second = (UNTIL_HEARD.format(file=tmp_path / name) for name in ("first", "second"))
    stub(monkeypatch, then=first, last=second)
    notes = Answering()
    start = time.monotonic()
    with pytest.raises(cpp_jit.BuildError) as caught:
        build_text(unit("slow_one", SLOW), notes)
    assert notes.heard == [["first"], ["first", "second"]]
    assert time.monotonic() - start < 20  # each was heard before the compiler went on
    assert [d.message for d in caught.value.diagnostics] == ["first", "second"]
    assert (notes.starts, notes.seconds > 0.5) == (1, True)


def test_what_a_watch_raises_ends_the_compiler(monkeypatch: pytest.MonkeyPatch):
    class Enough(Notes):
        def said(self, diagnostics: tuple[Diagnostic, ...]) -> None:
            raise KeyboardInterrupt

    rest = 31 + os.getpid() * 1e-7  # no other run of this test has this one's
    stub(monkeypatch, last=f"sleep {rest}")
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
    assert not any(notes.heard)


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
