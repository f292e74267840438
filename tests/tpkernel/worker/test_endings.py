"""What a cell's library does when its process ends is tried after the checks, and told."""

from __future__ import annotations

import re
import sys

import pytest

import tpkernel
from tests.tpkernel.shell import IN_WORKER, SOFTPLUS
from tpkernel.worker.endings import may_act_at_exit
from tpkernel.worker.process import shared_worker

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="looked at on Linux alone"),
    pytest.mark.usefixtures("shared_own_worker"),
]

# Only in a worker: the tests' own process ends with these libraries in it.
CELL = (
    "// op: ends(Tensor x) -> Tensor\n"
    + IN_WORKER
    + """\
#include <string>
#include <thread>
#include <vector>
struct Clears {
  volatile int* p = nullptr;
  ~Clears() { if (in_worker()) *p = 1; }
};
GLOBAL
void ends(tp::In<double> x, tp::Out<double> out) {
  for (int64_t i = 0; i < x.numel(); ++i) out[i] = x[i];
  BODY
}
"""
)
BYE = "static void bye() { if (in_worker()) WHAT; }"

# Name: what stands before the kernel and in it, code of the finding, part of the message.
BAD: dict[str, tuple[str, str, str, str]] = {
    "a static object": ("static Clears c;", "", "crash_at_exit", r"SIGSEGV.*in Clears::~Clears"),
    "one in a function": ("", "static Clears c;", "crash_at_exit", r"SIGSEGV.*in Clears::~Clears"),
    "one of the thread": (
        "static thread_local Clears c;",
        "(void)c.p;",
        "crash_at_exit",
        r"SIGSEGV.*in Clears::~Clears",
    ),
    "a handler that aborts": (
        BYE.replace("WHAT", "std::abort()"),
        "std::atexit(bye);",
        "crash_at_exit",
        r"SIGABRT.*in bye",
    ),
    "a handler that cuts short": (
        BYE.replace("WHAT", "_exit(3)"),
        "std::atexit(bye);",
        "crash_at_exit",
        "cut short as it ends: exit status 3",
    ),
    "one that looks well": (
        BYE.replace("WHAT", "_exit(0)"),
        "std::atexit(bye);",
        "crash_at_exit",
        "cut short as it ends: exit status 0",
    ),
    "a function for the end": (
        "__attribute__((destructor)) " + BYE.replace("WHAT", "std::abort()"),
        "",
        "crash_at_exit",
        "SIGABRT.*in bye",
    ),
    "an exception": (
        "struct T { ~T() noexcept(false) { if (in_worker()) throw 1; } };\nstatic T t;",
        "",
        "crash_at_exit",
        "SIGABRT.*terminate called",
    ),
    "no end": (
        BYE.replace("WHAT", "for (;;) pause()"),
        "std::atexit(bye);",
        "hang_at_exit",
        r"does not end within 2 s, in bye",
    ),
    "a thread that nobody joins": (
        (
            "struct Pool { std::thread t{[] { for (;;) pause(); }}; "
            "~Pool() { if (!in_worker()) t.detach(); } };"
        ),
        "static Pool pool;",
        "crash_at_exit",
        "SIGABRT.*in Pool::~Pool",
    ),
}


def build(before: str, body: str) -> tpkernel.Report:
    text = CELL.replace("GLOBAL", before).replace("BODY", body)
    return tpkernel.build(text, checks=("memory",), recheck=True)


@pytest.mark.parametrize("name", BAD)
def test_an_end_that_fails_is_an_error_of_the_report(name: str) -> None:
    before, body, code, told = BAD[name]
    report = build(before, body)
    (found,) = [f for f in report.findings if f.level == "error"]
    assert (found.code, found.check, found.operator) == (code, "memory", "cell::ends")
    assert re.search(told, found.message), found.message
    assert not report.ok
    assert "the process" in str(report).splitlines()[0]


def test_the_next_cell_is_not_held_to_it() -> None:
    assert not build(*BAD["a static object"][:2]).ok
    after = tpkernel.build(SOFTPLUS, checks=("memory",), recheck=True)
    assert after.ok, str(after)
    assert not after.findings


GOOD: dict[str, tuple[str, str]] = {
    "containers": ("static std::vector<std::string> kept;", 'kept.push_back("x");'),
    "a handler": ("static void bye() {}", "std::atexit(bye);"),
    "threads that are joined": (
        (
            "struct Pool { volatile bool stop = false; std::thread t{[this] "
            "{ while (!stop) usleep(1000); }}; ~Pool() { stop = true; t.join(); } };"
        ),
        "static Pool pool;",
    ),
}


@pytest.mark.parametrize("name", GOOD)
def test_an_end_that_goes_well_is_not_mentioned(name: str) -> None:
    report = build(*GOOD[name])
    assert report.ok, str(report)
    assert all(f.code == "leaves_threads" for f in report.findings), report.findings


def test_an_end_is_tried_in_a_copy_and_the_worker_stays() -> None:
    build(*GOOD["containers"])
    pid = shared_worker().pid
    assert pid is not None
    build(GOOD["containers"][0], 'kept.push_back("y");')
    assert shared_worker().pid == pid


def test_threads_of_openmp_do_not_cost_the_worker() -> None:
    def build_loop(body: str) -> None:
        text = CELL.replace("GLOBAL", GOOD["containers"][0])
        loop = '_Pragma("omp parallel for num_threads(2)") for (int64_t i = 0; i < x.numel(); ++i) '
        text = text.replace("BODY", loop + "out[i] = x[i]; " + body)
        report = tpkernel.build(text, checks=("memory",), recheck=True, flags="-fopenmp")
        assert report.ok, str(report)
        assert not report.findings

    build_loop('kept.push_back("x");')
    pid = shared_worker().pid
    assert pid is not None
    build_loop('kept.push_back("y");')
    assert shared_worker().pid == pid


def test_processes_that_an_end_leaves_are_of_its_cell() -> None:
    forks = "struct F { ~F() { if (in_worker() && fork() == 0) for (;;) pause(); } };\nstatic F f;"
    assert [f.code for f in build(forks, "").findings] == ["leaves_processes"]
    after = tpkernel.build(SOFTPLUS, checks=("memory",), recheck=True)
    assert not after.findings


def test_only_libraries_with_something_to_end_are_tried() -> None:
    def acts(text: str) -> bool:
        return may_act_at_exit(tpkernel.build(text, checks=False).build.library)

    plain = "void f(tp::In<double> x, tp::Out<double> out) { BODY }\n"
    assert not acts(SOFTPLUS)
    assert not acts(plain.replace("BODY", "static double kept = 1; out[0] = kept += x[0];"))
    assert not acts("#include <cmath>\n#include <thread>\n" + plain.replace("BODY", ""))
    assert acts("#include <cstdlib>\n" + plain.replace("BODY", "std::atexit([] {});"))
    assert acts("#include <vector>\nstatic std::vector<int> kept(3);\n" + plain.replace("BODY", ""))
    assert acts("#include <vector>\n" + plain.replace("BODY", "static std::vector<int> kept(3);"))
    destructor = "__attribute__((destructor)) static void bye() { ended = 1; }\n"
    assert acts("static volatile int ended;\n" + destructor + plain.replace("BODY", ""))
    thread_local = "struct L { ~L() {} }; static thread_local L mine;\n"
    assert acts(thread_local + plain.replace("BODY", "(void)&mine;"))
