"""Kernels that reach for the check worker itself: its connection, its process."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Collection
from pathlib import Path

import pytest

import tensorplay as tp
import tpkernel
from tests.tpkernel.shell import IN_WORKER, TESTS_PID
from tpkernel.checks.suite import CHECKS
from tpkernel.worker import process
from tpkernel.worker.crash_stack import crash_stack_library
from tpkernel.worker.isolation import isolating_worker
from tpkernel.worker.process import shared_worker

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork() on this system"),
    pytest.mark.usefixtures("own_worker"),
]

PLUS = """\
void plus(tp::In<double> x, tp::Out<double> out) {
  for (int64_t i = 0; i < x.numel(); ++i) out[i] = x[i] + 1.0;
}
"""

# Only the worker is disturbed: the cell itself may be called where the tests run.
CELL = (
    "// op: hostile(Tensor x) -> Tensor\n"
    + IN_WORKER
    + """\
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
static bool once = true;
void hostile(tp::In<double> x, tp::Out<double> out) {
  for (int64_t i = 0; i < x.numel(); ++i) out[i] = x[i];
  if (in_worker() && once) {
    once = false;
    BODY
  }
}
"""
)


def build(body: str, **options: object) -> tpkernel.Report:
    return tpkernel.build(CELL.replace("BODY", body), checks=("memory",), **options)  # type: ignore[arg-type]


def processes_of(group: int) -> int:
    count = 0
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[2]) == group and fields[0] != "Z":
            count += 1
    return count


def assert_next_cell_is_judged_rightly() -> None:
    for _ in range(2):
        good = tpkernel.build(PLUS, checks=("memory",))
        assert good.ok, str(good)
    bad = tpkernel.build(PLUS.replace("i < x", "i <= x"), checks=("memory",))
    assert not bad.ok
    assert any(f.code == "writes_outside" for f in bad.findings)


@pytest.mark.parametrize(
    "body",
    [
        "fork();",  # the copy comes back and goes on as a second worker
        "if (fork() == 0) pause();",
        "if (fork() == 0) _exit(0);",
        "if (fork() == 0) { if (fork() == 0) {} }",
    ],
)
def test_a_kernel_that_forks_is_found_and_its_copies_end(body: str) -> None:
    shared_worker().start()
    group = shared_worker().pid
    assert group is not None
    report = build(body)
    assert not report.ok
    (finding,) = [f for f in report.findings if f.code == "leaves_processes"]
    assert "hostile" in finding.operator
    assert "does not wait" in finding.message
    deadline = time.monotonic() + 5
    while processes_of(group) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert processes_of(group) == 0
    assert_next_cell_is_judged_rightly()


def test_a_daemon_is_found_and_ended() -> None:
    shared_worker().start()
    others = set(marked(b"TPKERNEL_WORKER="))  # workers of isolated cells, from tests before
    mark = f"TPKERNEL_WORKER={shared_worker()._token}".encode()
    report = build(
        "if (fork() == 0) { setsid(); if (fork() == 0) for (;;) pause(); _exit(0); } wait(nullptr);"
    )
    assert [f.code for f in report.findings if f.level == "error"] == ["leaves_processes"]
    assert_nothing_is_left(mark)
    report = build(
        "if (fork() == 0) { setsid(); if (fork() == 0) for (;;) pause(); _exit(0); } abort();",
        budget=40.0,
    )
    assert [f.signal for f in report.findings if f.level == "error"] == ["SIGABRT"]
    assert_nothing_is_left(b"TPKERNEL_WORKER=", others)


def assert_nothing_is_left(mark: bytes, others: Collection[str] = ()) -> None:
    """Look for processes that are marked; those that were killed may take a moment to go."""
    deadline = time.monotonic() + 5
    while True:
        left = set(marked(mark, but=shared_worker().pid)).difference(others)
        if not left or time.monotonic() > deadline:
            break
        time.sleep(0.02)
    assert not left


def marked(mark: bytes, but: int | None = None) -> list[str]:
    """Return the processes of this session's workers that have a variable."""
    found = []
    tests = f"{TESTS_PID}={os.getpid()}".encode()
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            variables = (folder / "environ").read_bytes().split(b"\0")
            ours = tests in variables and any(v.startswith(mark) for v in variables)
            if ours and folder.name != str(but):
                found.append(folder.name)
    return found


def test_what_an_earlier_kernel_has_written_is_not_said_of_a_crash() -> None:
    assert build('if (write(2, "hello\\n", 6) != 6) abort();').ok
    report = build("*(volatile int*)nullptr = 1;")
    (finding,) = [f for f in report.findings if f.code == "crash"]
    assert "hello" not in finding.message


def test_a_kernel_that_forks_while_values_are_tried_is_found() -> None:
    # The copy is gone when we look, and no check may take what says so for an error of the kernel.
    forks = """\
pid_t p = fork();
if (p == 0) _exit(0);
siginfo_t info;
waitid(P_PID, p, &info, WEXITED | WNOWAIT);
"""
    text = CELL.replace("BODY", forks).replace("(Tensor x)", "(Tensor x, bool flag=False)")
    report = tpkernel.build(text.replace("> x, ", "> x, bool flag, "), checks=("memory",))
    (finding,) = report.findings
    assert (finding.code, finding.operator) == ("leaves_processes", "cell::hostile")


def test_what_a_global_object_changes_is_told_and_put_back() -> None:
    text = CELL.replace("BODY", "").replace(
        "static bool once",
        'static const int gone = in_worker() ? chdir("/") : 0;\nstatic bool once',
    )
    report = tpkernel.build(text, checks=("memory",))
    (finding,) = report.findings
    assert (finding.code, finding.check, finding.operator) == (
        "changes_process",
        "memory",
        "cell::hostile",
    )
    assert "as its library is loaded" in finding.message
    assert re.search("the working folder, from .* to /[.]", finding.message)
    assert_next_cell_is_judged_rightly()


def test_threads_that_crash_together_leave_a_stack() -> None:
    body = """\
std::vector<std::thread> all;
std::atomic<int> there{0};
for (int n = 0; n < 8; ++n)
  all.emplace_back([&, n] {
    ++there;
    while (there < (n == 0 ? 8 : 9)) {}
    ++there;
    *(volatile int*)nullptr = 1;
  });
for (auto& one : all) one.join();
"""
    text = "#include <atomic>\n#include <thread>\n#include <vector>\n" + CELL.replace("BODY", body)
    for _ in range(3):
        report = tpkernel.build(text, checks=("memory",), recheck=True)
        (finding,) = report.findings
        assert "in a thread of hostile" in finding.message


def test_a_connection_that_is_closed_is_told_as_such(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "_LAST_WAIT", 0.3)
    report = build(EVERY_SOCKET.replace("ACT", "shutdown(fd, SHUT_RDWR);") + " sleep(60);")
    (finding,) = report.findings
    assert (finding.code, finding.signal) == ("crash", None)
    assert "connection was closed during memory check of cell::hostile" in finding.message


def test_the_handler_of_crashes_can_be_built() -> None:
    assert crash_stack_library() is not None


def test_a_kernel_that_waits_for_its_processes_is_left_alone() -> None:
    report = build("pid_t p = fork(); if (p == 0) _exit(0); waitpid(p, nullptr, 0);")
    assert report.ok, str(report)
    assert build('if (std::system("true") != 0) abort();').ok


LOWERING = """\
rlimit less;
getrlimit(RLIMIT_WHICH, &less);
less.rlim_cur = AMOUNT;
less.rlim_max = AMOUNT;
if (setrlimit(RLIMIT_WHICH, &less) != 0) abort();
"""


@pytest.mark.parametrize("checks", [("memory",), CHECKS], ids=["one", "all"])
@pytest.mark.parametrize(
    ("which", "amount"), [("NOFILE", 0), ("FSIZE", 0), ("NPROC", 1), ("AS", 1 << 20)]
)
def test_a_kernel_that_takes_a_limit_away_is_found(
    which: str, amount: int, checks: tuple[str, ...]
) -> None:
    lowering = LOWERING.replace("WHICH", which).replace("AMOUNT", str(amount))
    report = tpkernel.build(CELL.replace("BODY", lowering), checks=checks)
    (finding,) = [f for f in report.findings if f.code == "lowers_limits"]
    assert finding.operator == "cell::hostile"
    assert re.search(rf"RLIMIT_{which} from \w+ to {amount}\b", finding.message)
    assert not report.ok
    assert tp.ops.cell.hostile(tp.ones(2, dtype=tp.float64)).tolist() == [1.0, 1.0]
    assert_next_cell_is_judged_rightly()


def test_an_isolated_call_that_takes_a_limit_away_names_it() -> None:
    lowering = LOWERING.replace("WHICH", "NOFILE").replace("AMOUNT", "0")
    report = tpkernel.build(CELL.replace("BODY", lowering), checks=(), isolate=True)
    x = tp.ones(2, dtype=tp.float64)
    with pytest.raises(tpkernel.KernelCrash, match=r"RLIMIT_NOFILE from \w+ to 0\b"):
        report.module.hostile(x)
    with pytest.raises(tpkernel.KernelCrash, match="RLIMIT_NOFILE"):  # in a fresh worker
        report.module.hostile(x)


def test_a_kernel_that_lowers_a_limit_and_puts_it_back_is_left_alone() -> None:
    body = """\
rlimit before, less;
getrlimit(RLIMIT_NOFILE, &before);
less = before;
less.rlim_cur = 0;
if (setrlimit(RLIMIT_NOFILE, &less) != 0 || setrlimit(RLIMIT_NOFILE, &before) != 0) abort();
"""
    report = build(body)
    assert report.ok, str(report)


def test_a_failure_of_the_workers_own_code_after_a_kernel_is_a_finding() -> None:
    text = CELL.replace("BODY", "while (dup(2) >= 0) {}")  # no descriptor is left for our files
    report = tpkernel.build(text, checks=CHECKS)
    (finding,) = report.findings  # and nothing of what could not be read for want of one
    assert finding.operator == "cell::hostile"
    assert "could not go on during" in finding.message
    assert "Too many open files" in finding.message or "temporary" in finding.message
    assert not report.ok
    assert tp.ops.cell.hostile(tp.ones(2, dtype=tp.float64)).tolist() == [1.0, 1.0]
    assert_next_cell_is_judged_rightly()


IN_A_FORKED_SESSION = """
import os, sys
import tpkernel
from tests.tpkernel.shell import IN_WORKER, TESTS_PID
from tpkernel.checks.suite import CHECKS
from tpkernel.worker import process
from tpkernel.worker.crash_stack import crash_stack_library
from tpkernel.worker.isolation import isolating_worker
from tpkernel.worker.process import shared_worker

PLUS = {plus!r}
assert tpkernel.build(PLUS, checks=("memory",), recheck=True).ok
worker = shared_worker().pid
copy = os.fork()
if copy == 0:  # such as a worker of multiprocessing: builds on its own, and ends as processes do
    report = tpkernel.build(PLUS.replace("1.0", "2.0"), checks=("memory",), recheck=True)
    assert report.ok, str(report)
    assert shared_worker().pid not in (None, worker)
    sys.exit(7)
assert os.waitstatus_to_exitcode(os.waitpid(copy, 0)[1]) == 7
assert tpkernel.build(PLUS.replace("1.0", "3.0"), checks=("memory",), recheck=True).ok
assert shared_worker().pid == worker
"""


def test_a_session_that_forks_has_two_workers() -> None:
    done = subprocess.run(
        [sys.executable, "-c", IN_A_FORKED_SESSION.format(plus=PLUS)],
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr


def test_a_crowd_is_ended_before_the_budget() -> None:
    report = build(
        "for (int i = 0; i < 60; ++i) if (fork() == 0) { pause(); _exit(0); } sleep(60);",
        budget=40.0,
    )
    assert not report.ok
    # Ended by the budget it would be a hang of "no answer within 40 s".
    assert re.search(r"\d+ processes started during", str(report.findings))
    assert not any(f.code == "hang" for f in report.findings)
    assert_next_cell_is_judged_rightly()


def test_a_copy_that_holds_the_connection_does_not_hide_the_end() -> None:
    report = build("if (fork() == 0) { pause(); _exit(0); } abort();", budget=40.0)
    assert not any(f.code == "hang" for f in report.findings)
    assert any(f.signal == "SIGABRT" for f in report.findings)
    assert_next_cell_is_judged_rightly()


EVERY_SOCKET = (
    "for (int fd = 3; fd < 1024; ++fd) { int type; socklen_t n = sizeof type; "
    "if (getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &n) == 0) { ACT } }"
)


@pytest.mark.parametrize(
    "act",
    [
        'if (write(fd, "hello, parent", 13) < 0) abort();',
        "static char big[65536]; if (write(fd, big, sizeof big) < 0) abort();",
    ],
)
def test_a_kernel_that_writes_into_the_connection(act: str) -> None:
    report = build(EVERY_SOCKET.replace("ACT", act))
    assert not report.ok
    assert any("connection was written to" in f.message for f in report.findings), report.findings
    assert_next_cell_is_judged_rightly()


def test_a_kernel_that_closes_the_connection() -> None:
    report = build(EVERY_SOCKET.replace("ACT", "close(fd);"))
    assert not report.ok
    assert any(f.code == "crash" for f in report.findings)
    assert_next_cell_is_judged_rightly()


def test_a_kernel_that_reads_from_the_connection_is_ended() -> None:
    read = "char c; if (read(fd, &c, 1) < 0) abort();"
    report = build(EVERY_SOCKET.replace("ACT", read), budget=2.0)
    assert not report.ok
    assert any(f.code == "hang" for f in report.findings)
    assert_next_cell_is_judged_rightly()


def test_a_global_object_that_forks_is_not_loaded_here() -> None:
    text = CELL.replace("BODY", "").replace(
        "static bool once", "static pid_t copy = in_worker() ? fork() : 0;\nstatic bool once"
    )
    with pytest.raises(tpkernel.KernelCrash, match="processes"):
        tpkernel.build(text)
    assert_next_cell_is_judged_rightly()


def test_a_worker_that_ended_between_two_cells_is_replaced() -> None:
    for value in range(3):
        pid = shared_worker().pid
        if pid is not None:
            os.kill(
                pid, signal.SIGKILL
            )  # at once: it may not be gone when the next request is sent
        report = tpkernel.build(PLUS.replace("1.0", f"{value + 2}.0"), checks=("memory",))
        assert report.ok, str(report)


def test_an_isolated_kernel_that_crashes_after_its_call_is_told_at_the_next() -> None:
    later = "std::thread([] { usleep(100'000); *(volatile int*)nullptr = 1; }).detach();"
    text = "#include <thread>\n" + CELL.replace("BODY", later)
    report = tpkernel.build(text, checks=(), isolate=True)
    x = tp.ones(2, dtype=tp.float64)
    assert report.module.hostile(x).tolist() == [1.0, 1.0]
    pid = isolating_worker().pid
    assert pid is not None
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    with pytest.raises(
        tpkernel.KernelCrash,
        match=r"SIGSEGV.* during what goes on after the call .*, in a thread of hostile",
    ):
        report.module.hostile(x)
    assert report.module.hostile(x).tolist() == [1.0, 1.0]  # in a fresh worker


def test_crashes_that_nobody_asks_for_are_kept_up_to_a_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(process, "_LATE", 2)
    later = "std::thread([] { usleep(50'000); *(volatile int*)nullptr = NUMBER; }).detach();"
    text = "#include <thread>\n" + CELL.replace("BODY", later)
    modules = [
        tpkernel.build(text.replace("NUMBER", str(n)), checks=(), isolate=True).module
        for n in range(4)
    ]
    x = tp.ones(2, dtype=tp.float64)
    for module in modules:  # each call finds that the one before has ended the worker
        assert module.hostile(x).tolist() == [1.0, 1.0]
        pid = isolating_worker().pid
        assert pid is not None
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    with pytest.raises(tpkernel.KernelCrash, match="SIGSEGV"):
        modules[3].hostile(x)
    with pytest.raises(tpkernel.KernelCrash, match="SIGSEGV"):
        modules[2].hostile(x)
    assert modules[0].hostile(x).tolist() == [1.0, 1.0]  # forgotten
