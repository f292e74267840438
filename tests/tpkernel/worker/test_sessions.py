"""What a session meets while it has a worker: it is killed, interrupted, ignores its children."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

import tpkernel
from tests.tpkernel.shell import IN_WORKER
from tpkernel.worker import process
from tpkernel.worker.children import end, has_ended
from tpkernel.worker.process import Worker

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looked at on Linux alone")

PLUS = """\
void plus(tp::In<double> x, tp::Out<double> out) {
  for (int64_t i = 0; i < x.numel(); ++i) out[i] = x[i] + 1.0;
}
"""


def python(code: str) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)


def wait_until_gone(pid: int) -> None:
    deadline = time.monotonic() + 10
    while Path(f"/proc/{pid}").exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not Path(f"/proc/{pid}").exists()


CALLS_WITHOUT_END = """
import tpkernel
text = '''#include <unistd.h>
int64_t pid() { return getpid(); }
void turn() { volatile int64_t a = 0; for (;;) a = a + 1; }
'''
module = tpkernel.build(text, isolate=True).module
print(module.pid(), flush=True)
module.turn()
"""


def test_a_kernel_without_end_ends_with_a_session_that_is_killed() -> None:
    session = python(CALLS_WITHOUT_END)
    assert session.stdout is not None
    with session.stdout:
        worker = int(session.stdout.readline())
        session.kill()
        session.wait()
    wait_until_gone(worker)


ENDS_BESIDE_A_CALL = """
import threading, time, tpkernel
text = "void turn() { volatile int64_t a = 0; for (;;) a = a + 1; }\\nint64_t one() { return 1; }"
module = tpkernel.build(text, isolate=True).module
module.one()
threading.Thread(target=module.turn, daemon=True).start()
time.sleep(0.3)
"""


def test_a_session_ends_beside_a_call_without_end() -> None:
    session = python(ENDS_BESIDE_A_CALL)
    session.communicate(timeout=240)


COLLECTS_CHILDREN = """
import os, signal, tpkernel
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
text = "void crash() { *(volatile int*)nullptr = 1; }\\nint64_t one() { return 1; }"
module = tpkernel.build(text, isolate=True).module
for _ in range(2):
    try:
        module.crash()
    except tpkernel.KernelCrash as crash:
        assert "in crash" in str(crash), crash
    else:
        raise AssertionError
assert module.one() == 1
print("went on")
"""


def test_a_session_that_ignores_the_end_of_children_survives_a_crash() -> None:
    session = python(COLLECTS_CHILDREN)
    assert session.communicate(timeout=240)[0] == "went on\n"


def test_a_child_that_another_part_of_the_session_has_waited_for() -> None:
    child = subprocess.Popen([sys.executable, "-c", "raise SystemExit(3)"])
    os.waitpid(child.pid, 0)
    assert has_ended(child)
    assert end(child, "none") is None


def test_an_interrupt_while_the_worker_starts_leaves_nothing_for_the_next_check(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    worker = Worker()

    def interrupted() -> str | None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(process, "threads_of", lambda pid: interrupted())
        with pytest.raises(KeyboardInterrupt):
            worker.check_start()
    report = tpkernel.build(PLUS, checks=False)
    origin = report.origin
    assert origin is not None
    assert worker.run(origin.spec, report.build.library, checks=("memory", "validation"))
    worker.close()


def test_an_interrupt_when_the_worker_has_been_started(monkeypatch: pytest.MonkeyPatch) -> None:
    worker = Worker()
    worker.check_start()
    worker.close()

    def interrupted(lifeline: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(process.Lifeline, "handed_over", interrupted)
        with pytest.raises(KeyboardInterrupt):
            worker.start()
    worker.check_start()  # what it says first is read as that
    worker.close()


def test_an_interrupt_while_the_worker_is_ended_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    worker = Worker()
    worker.check_start()
    pid = worker.pid
    assert pid is not None

    def interrupted(child: object, token: str) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(process, "end", interrupted)
        with pytest.raises(KeyboardInterrupt):
            worker.close()
    assert worker.pid is None
    assert os.waitpid(pid, 0)[1] == signal.SIGKILL  # though it was never asked to end


SIGNALS = (
    "#include <cerrno>\n#include <csignal>\n#include <sys/syscall.h>\n"
    + IN_WORKER
    + """\
int64_t by_kill(int64_t id) { return kill(pid_t(id), 0) == 0 ? 0 : errno; }
int64_t by_tkill(int64_t id) { return syscall(SYS_tkill, id, 0) == 0 ? 0 : errno; }
int64_t own() { return syscall(SYS_tkill, syscall(SYS_gettid), 0) == 0 ? 0 : errno; }
int64_t none() { return syscall(SYS_tkill, syscall(SYS_gettid), 99) == 0 ? 0 : errno; }
void raised() { syscall(SYS_tkill, syscall(SYS_gettid), SIGKILL); }
"""
)


def has_scopes() -> bool:
    import ctypes

    return int(ctypes.CDLL(None).syscall(444, None, 0, 1)) >= 6  # the version of Landlock


def test_threads_of_the_session_are_out_of_reach() -> None:
    module = tpkernel.build(SIGNALS, isolate=True).module
    stop = threading.Event()
    assert module.own() == 0  # and there is a worker
    thread = threading.Thread(target=stop.wait)
    thread.start()  # after it
    try:
        other = thread.native_id
        with pytest.raises(tpkernel.KernelCrash, match="SIGSYS: a system call that is refused"):
            module.by_tkill(other)
        assert module.by_kill(other) == (1 if has_scopes() else 0)  # EPERM
    finally:
        stop.set()
        thread.join()
    assert module.none() == 22  # EINVAL, as without a filter
    with pytest.raises(tpkernel.KernelCrash, match="SIGKILL: sent by the process to itself"):
        module.raised()
