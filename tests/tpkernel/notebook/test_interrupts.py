"""Interrupt in a real kernel: what runs ends, and the session goes on."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tensorplay.utils.cpp_jit import store
from tests.tpkernel.kernel import Session, kernel_session
from tests.tpkernel.report.test_widget import settings
from tests.tpkernel.shell import SLOW, SOFTPLUS

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals of Unix")


@pytest.fixture(scope="module")
def session() -> Iterator[Session]:
    with kernel_session() as made:
        made.run("import tensorplay as tp, tpkernel, time")
        made.run(f"%%tpkernel\n{SOFTPLUS}")
        yield made


def interrupted(session: Session, request: str) -> None:
    """Interrupt a running cell; it ends, and not by itself."""
    begun = time.monotonic()
    session.manager.interrupt_kernel()
    answer = session.reply(request)
    assert answer["status"] == "error", answer
    assert answer["ename"] == "KeyboardInterrupt", answer
    assert time.monotonic() - begun < 15


def goes_on(session: Session) -> None:
    assert "gradcheck" in session.run(f"%%tpkernel\n{SOFTPLUS}")
    assert session.run("print(softplus(tp.zeros(1)).item() > 0.69)") == "True\n"


LOOP = """\
#include <chrono>
#include <thread>
int64_t f(int64_t n) {
  tp::parallel_for(0, n, [](int64_t) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  });
  return n;
}
"""


# Says by a file that it runs; ends when the person interrupts, or by itself when a file is there.
TURNS = """\
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
int64_t turns(const std::string& file) {
  struct stat s;
  close(open((file + ".begun").c_str(), O_CREAT | O_WRONLY, 0600));
  for (int64_t n = 0;; ++n) {
    if (stat(file.c_str(), &s) == 0) return n;
    usleep(1000);
    CHECK
  }
}
"""


def wait_until_there(file: Path) -> None:
    deadline = time.monotonic() + 30
    while not file.exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def sleeping(call: str) -> str:
    return f"print('begun', flush=True)\n{call}"


def test_while_it_waits_for_another_build(session: Session):
    """Each of the 256 locks is held, since the key of the cell is not known here."""
    cache = store.default_cache()
    text = f"%%tpkernel\n{SOFTPLUS}// {time.time_ns()}"
    with contextlib.ExitStack() as held:
        for number in range(256):
            held.enter_context(cache.lock("library", f"{number:02x}", "'slow one'"))
        request = session.start(text)
        session.wait_for(request, "waits for process")
        assert any("which has been building 'slow one' since" in s for s in session.shown)
        interrupted(session, request)
    assert session.run(text).count("waits for process") == 0
    goes_on(session)


# A compiler computes it for minutes.
COMPILES_LONG = """\
constexpr int64_t sum(int64_t n) {
  int64_t s = 0;
  for (int64_t i = 0; i < n; ++i) s += i % 7;
  return s;
}
static_assert(sum(2000000000) > 0, "");
int64_t compiled_long() { return 1; }
"""
NO_LIMIT = "-- -fconstexpr-ops-limit=1000000000000 -fconstexpr-loop-limit=2000000000"


def compilers_of(pid: int) -> list[str]:
    """Return the processes that compile a cell of a kernel, told by the folder they work in."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            works = f"/build-{pid}-".encode() in (process / "environ").read_bytes()
            if works and b"source.cpp" in (process / "cmdline").read_bytes():
                found.append(process.name)
    return found


@pytest.mark.skipif(sys.platform != "linux", reason="looks at processes by /proc")
def test_while_the_compiler_runs(session: Session, cache_folder: Path):  # B016
    pid = int(session.run("import os; print(os.getpid())"))
    request = session.start(f"%%tpkernel --no-check {NO_LIMIT}\n{COMPILES_LONG}")
    session.wait_for(request, "compiling,")
    assert compilers_of(pid)
    interrupted(session, request)
    assert not compilers_of(pid)
    left = (cache_folder / "build" / "tmp").glob(f"build-{pid}-*/source.cpp")
    assert not [file for file in left if "compiled_long" in file.read_text()]
    assert "is blocked" in session.run("try: compiled_long()\nexcept Exception as e: print(e)")
    goes_on(session)


@pytest.mark.parametrize(
    ("made", "call"),
    [
        (f"%%tpkernel --no-check\n{LOOP}", "f(60000)"),
        ("%%tpkernel --no-check\n" + TURNS.replace("CHECK", "tp::check_interrupt();"),
         "turns('/no/such/file')"),
        ("%%tpkernel --isolate --no-check\nint64_t g() { for (volatile int i = 0;; i = i + 1) {} }",
         "g()"),
        (f"%%tpkernel --no-check\n{SLOW}",
         "tpkernel.last_report().with_timing(sizes=[77], budget=60)"),
        (f"%%tpkernel --no-check\n{SLOW}",
         "tpkernel.last_report().with_gradcheck(shapes={'x': (77,)}, budget=60)"),
    ],
    ids=["parallel_for", "check_interrupt", "isolated call", "timing", "gradcheck by choice"],
)  # fmt: skip
def test_while_a_kernel_runs(session: Session, made: str, call: str):
    session.run(made)
    request = session.start(sleeping(call))
    session.wait_for(request, "begun")
    time.sleep(0.7)
    interrupted(session, request)
    goes_on(session)


def test_a_kernel_that_does_not_look_says_so(session: Session, tmp_path: Path):  # B016
    end = tmp_path / "end"
    for checked in ("--no-check", ""):
        session.run(f"%%tpkernel {checked}\n{TURNS.replace('CHECK', '')}")
        request = session.start(f"turns({str(end)!r})")
        wait_until_there(end.with_name("end.begun"))
        for _ in range(2):
            session.shown.clear()
            session.manager.interrupt_kernel()
            session.wait_for(request, "Interrupt waits for turns of In[")
            assert "tp::check_interrupt()" in session.shown[-1]
        end.touch()
        assert session.reply(request)["ename"] == "KeyboardInterrupt"
        for file in tmp_path.iterdir():
            file.unlink()
    request = session.start(sleeping("time.sleep(30)"))
    session.wait_for(request, "begun")
    interrupted(session, request)
    session.run("time.sleep(1.2)")
    assert not any("waits for" in shown for shown in session.shown)
    goes_on(session)


def test_a_checked_operator_that_does_not_look_says_so(session: Session, tmp_path: Path):
    end = tmp_path / "end"
    text = f"""\
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
void long_one(tp::In<double> x, tp::Out<double> out) {{
  struct stat s;
  if (x.numel() == 77) close(open("{end}.begun", O_CREAT | O_WRONLY, 0600));
  while (x.numel() == 77 && stat("{end}", &s) != 0) usleep(1000);
  for (int64_t i = 0; i < x.numel(); ++i) out[i] = x[i];
}}
"""
    session.run(f"%%tpkernel\n{text}")
    request = session.start("long_one(tp.ones(77, dtype=tp.float64))")
    wait_until_there(end.with_name("end.begun"))
    session.manager.interrupt_kernel()
    session.wait_for(request, "Interrupt waits for")
    end.touch()
    assert session.reply(request)["ename"] == "KeyboardInterrupt"
    goes_on(session)


def test_while_the_worker_starts(session: Session):
    session.run("from tpkernel.worker.process import shared_worker\nshared_worker().close()")
    request = session.start(sleeping("shared_worker().check_start()"))
    session.wait_for(request, "begun")
    interrupted(session, request)
    goes_on(session)


def test_work_behind_a_button_goes_on_until_it_is_cancelled(session: Session):
    """It has a thread of its own, which Interrupt does not reach."""
    session.run(f"%%tpkernel --no-check\n{SLOW}")
    asked = {"action": "gradcheck", "settings": settings(shapes={"x": "77"})}
    code = f"""
from tpkernel.notebook.magic import _SESSIONS
slots = next(iter(_SESSIONS.values())).slots.values()
(widget,) = [s.widget for s in slots if "slow" in s.names]
widget._handle_custom_msg({asked!r}, [])
"""
    request = session.start(sleeping(f"{code}\ntime.sleep(30)"))
    session.wait_for(request, "begun")
    time.sleep(0.5)
    interrupted(session, request)
    ended = "widget.cancel(); print(widget.wait(10), widget.error['type'])"
    told = session.run(f"print(widget.can_cancel); {ended}")
    assert told.split() == ["True", "True", "Cancelled"]
    goes_on(session)
