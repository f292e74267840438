"""Cells that run again and again: what they leave behind does not grow."""

from __future__ import annotations

import gc
import os
import signal
import threading
import time
from pathlib import Path

import pytest

import tpkernel
from tensorplay.utils.cpp_jit import support
from tests.tpkernel.kernel import kernel_session
from tests.tpkernel.shell import SOFTPLUS, Shell
from tpkernel.worker.process import shared_worker


def resident() -> int:
    """Return the bytes of memory that this process holds."""
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def run_again(shell: Shell, times: int) -> tuple[int, int]:
    """Run an unchanged cell many times; return the growth of memory and of widgets."""
    from ipywidgets.widgets.widget import _instances

    for _ in range(5):
        assert shell.kernel(SOFTPLUS, "--no-check").error is None
    support.wait_for_background()  # it reads whole precompiled headers
    memory, widgets = resident(), len(_instances)
    for _ in range(times):
        shell.kernel(SOFTPLUS, "--no-check")
    return resident() - memory, len(_instances) - widgets


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="no /proc on this system")
def test_running_a_cell_again_grows_neither_memory_nor_widgets(shell: Shell):
    growth, widgets = run_again(shell, 60)
    assert widgets == 0
    assert growth < 8 << 20


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="no /proc on this system")
def test_a_thousand_runs(shell: Shell):
    growth, widgets = run_again(shell, 1000)
    assert widgets == 0
    assert growth < 32 << 20


MEASURE = """\
import gc, os
from pathlib import Path
from ipywidgets.widgets.widget import _instances
gc.collect()
pages = int(Path("/proc/self/statm").read_text().split()[1])
print(pages * os.sysconf("SC_PAGE_SIZE"), len(_instances))
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="no /proc on this system")
def test_in_a_kernel_with_its_checks_nothing_grows_either():
    """There are views, whose displays are replaced while the cell runs, and their messages."""
    with kernel_session() as session:

        def run(times: int) -> list[int]:
            for _ in range(times):
                session.run(f"%%tpkernel\n{SOFTPLUS}")
            return [int(word) for word in session.run(MEASURE).split()]

        run(10)
        memory, widgets = run(100)
        later, again = run(100)
        assert again == widgets
        assert later - memory < 4 << 20


def test_all_cells_have_one_worker_that_the_first_one_starts(shell: Shell):
    shared_worker().close()
    shell.kernel("int64_t f() { return 1; }")
    assert shared_worker().pid is None  # it has nothing to check
    pids = set()
    for number in range(3):
        shell.kernel(SOFTPLUS + f"// {number}", "--recheck")
        pids.add(shared_worker().pid)
    (pid,) = pids
    assert pid not in (None, os.getpid())
    dies = "void dies(tp::In<double> x, tp::Out<double> out) { *(volatile int*)nullptr = 1; }"
    shell.kernel(dies)
    shell.kernel(SOFTPLUS, "--recheck")
    assert shared_worker().pid not in (None, pid)
    assert tpkernel.last_report().ok


def test_an_unchanged_cell_shows_what_its_checks_found(shell: Shell):
    assert shell.kernel(SOFTPLUS, "--recheck").error is None
    first = tpkernel.last_report()
    worker = shared_worker()
    asked = worker._served
    assert shell.kernel(SOFTPLUS).error is None
    again = tpkernel.last_report()
    assert worker._served == asked  # nothing was run again
    assert (again.gradcheck, again.validation) == (first.gradcheck, first.validation)
    assert again.ok
    shell.kernel(SOFTPLUS.replace("beta;", f"beta + 0;  // {time.time_ns()}"))
    assert worker._served == asked + 1


def test_a_crash_is_tried_again():
    text = "void dies(tp::In<double> x, tp::Out<double> out) { *(volatile int*)nullptr = 1; }"
    for _ in range(2):
        started = shared_worker()._served
        assert "crash" in {f.code for f in tpkernel.build(text).findings}
        assert shared_worker()._served != started or shared_worker().pid is None


TURNS = """\
void turns(tp::In<double> x, tp::Out<double> out) { for (volatile int i = 0;; i = i + 1) {} }
"""
BUILDS = """\
#include <functional>
#include <iostream>
#include <regex>
void builds(tp::In<double> x, tp::Out<double> out) {
  std::regex pattern("a*");
  for (int64_t i = 0; i < x.numel(); ++i) out[i] = x[i];
}
"""


@pytest.mark.skipif(not hasattr(signal, "pthread_kill"), reason="no signals to send")
@pytest.mark.parametrize("text", [TURNS, BUILDS], ids=["check", "build"])
def test_interrupt_ends_a_build_and_a_check(shell: Shell, text: str):
    shell.kernel(SOFTPLUS)
    timer = threading.Timer(0.6, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    start = time.monotonic()
    ran = shell.kernel(text + f"\n// {time.time_ns()}", "--budget 60")
    seconds = time.monotonic() - start
    timer.join()
    assert isinstance(ran.error, KeyboardInterrupt)
    assert seconds < 20.0  # the budget is three times that
    assert shell.kernel(SOFTPLUS).error is None
