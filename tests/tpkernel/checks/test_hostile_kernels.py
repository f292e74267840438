"""Kernels that do what they like, under check: the session survives, the report says what it was.

No test here starts processes without end, and each takes little memory before it is stopped.
"""

from __future__ import annotations

import os
import re

import pytest

import tensorplay as tp
import tpkernel
from tests.tpkernel.shell import SOFTPLUS

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork() on this system")

CELL = """\
#include <cfenv>
#include <clocale>
#include <csetjmp>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <exception>
#include <mutex>
#include <pthread.h>
#include <signal.h>
#include <stdexcept>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>
#include <vector>
#define FOREVER for (volatile int i = 0;; i = i + 1) {}
static int64_t deep(volatile int64_t n) { volatile char room[4096]; room[0] = char(n);
  return n == -1 ? room[0] : deep(n + 1) + room[0]; }
static std::jmp_buf place;
#define UNLOAD(library) { void* h = library; for (int i = 0; i < 64; ++i) dlclose(h); }
#define UNLOAD_ONCE { Dl_info i; dladdr((void*)&deep, &i); \\
  if (void* h = dlopen(i.dli_fname, RTLD_LAZY | RTLD_NOLOAD)) dlclose(h); }
#define BIG 100'000'000'000
#define PAGE(p) (void*)((uintptr_t)(p) & ~uintptr_t(4095))
static void spoil(volatile char* p) {
  for (int i = 24; i < 4096; ++i) p[i] = 0x41;
  for (int i = 0; i < 64; ++i) { void* volatile q = malloc(2000 + i); free(q); }
}
static void wait_for_nobody() {
  std::mutex m;
  std::condition_variable c;
  std::unique_lock<std::mutex> lock(m);
  c.wait(lock);
}
static void block_signals() {
  sigset_t all;
  sigfillset(&all);
  sigprocmask(SIG_SETMASK, &all, nullptr);
}
static void ignore_signals() { for (int s = 1; s < 32; ++s) signal(s, SIG_IGN); }
static void without_lock() {
  auto run = (int (*)(const char*))dlsym(RTLD_DEFAULT, "PyRun_SimpleString");
  std::thread([run] { run("x = [str(i) for i in range(10000)]"); }).join();
}
struct Never { ~Never() noexcept(false) { throw 1; } };
void hostile(tp::In<double> x, tp::Out<double> out) {
  for (int64_t i = 0; i < x.numel(); ++i) out[i] = x[i];
  BODY
}
"""

# Name: body, what the findings must hold: code and a part of the message. None: nothing is wrong.
HOSTILE: dict[str, tuple[str, str, str]] = {
    "null write": ("*(volatile int*)nullptr = 1;", "crash", "SIGSEGV"),
    "wild write": ("*(volatile int*)0xdeadbeef000 = 1;", "crash", "SIGSEGV"),
    "write far outside": ("out.data()[int64_t(1) << 40] = 1;", "crash", "SIGSEGV"),
    "stack overflow": ("out[0] = double(deep(0));", "crash", "SIGSEGV"),
    "double free": ("void* volatile p = malloc(8); free(p); free(p);", "crash", "SIGABRT"),
    "freed memory of another": ("free(out.data());", "crash", "SIGABRT"),
    "corrupted heap": ("spoil(static_cast<volatile char*>(malloc(24)));", "crash", "SIG"),
    "endless loop": ("FOREVER", "hang", "no answer within"),
    "deadlock": ("std::mutex m; m.lock(); m.lock();", "hang", "no answer within"),
    "waits for nobody": ("wait_for_nobody();", "hang", "no answer within"),
    "abort": ("std::abort();", "crash", "SIGABRT"),
    "exit": ("std::exit(7);", "crash", "exit status 7"),
    "quick exit": ("_exit(0);", "crash", "exit status 0"),
    "throw 42": ("throw 42;", "not_finished", "RuntimeError"),
    "exception in a thread": ("std::thread([] { throw 1; }).join();", "crash", "SIGABRT"),
    "exception in a destructor": ("try { Never n; throw 2; } catch (int) {}", "crash", "SIGABRT"),
    "thread that is left": ("std::thread t([] { pause(); });", "crash", "SIGABRT"),
    "100 GB by new": (
        "volatile char* p = new char[BIG]; p[0] = 1;",
        "out_of_memory",
        "out of memory on x (4,), float64: MemoryError: kernel ran out of memory (std::bad_alloc)",
    ),
    "100 GB by malloc": (
        "auto* p = (volatile char*)malloc(BIG); p[0] = 1;",
        "crash",
        "SIGSEGV",
    ),
    "write past the output": ("out.data()[out.numel()] = 1;", "writes_outside", "element"),
    "read past the input": ("out[0] = x.data()[x.numel()];", "reads_outside", "outside"),
    "memory without end": (
        "for (std::vector<double*> v;;) { v.push_back(new double[1 << 22]); v.back()[0] = 1; }",
        "out_of_memory",
        "bad_alloc",
    ),
    "division by zero": ("volatile int z = 0; out[0] = 5 / z;", "crash", "SIGFPE"),
    "blocked signals": ("block_signals(); FOREVER", "hang", "no answer within"),
    "signals ignored": ("ignore_signals(); FOREVER", "hang", "no answer within"),
    "jump back into a dead frame": ("std::longjmp(place, 1);", "crash", "SIG"),
    "fork": ("if (fork() == 0) _exit(0);", "leaves_processes", "does not wait"),
    "all descriptors closed": ("for (int fd = 0; fd < 1024; ++fd) close(fd);", "crash", ""),
    "own code unmapped": ("munmap(PAGE(&deep), 4096 * 8); deep(-1);", "crash", "SIG"),
    "a signal in a thread": ("std::thread([] { raise(SIGFPE); }).join();", "crash", "SIGFPE"),
    "a signal in OpenMP": (
        '_Pragma("omp parallel num_threads(2)") { raise(SIGSEGV); }',
        "crash",
        "SIGSEGV",
    ),
    "exception out of OpenMP": (
        '_Pragma("omp parallel num_threads(2)") { throw 1; }',
        "crash",
        # Both threads end the process at once: signal and words are those of whichever was first.
        "terminate called",
    ),
    "unloads itself for good": (
        "Dl_info me; dladdr((void*)&deep, &me); UNLOAD(dlopen(me.dli_fname, RTLD_LAZY))",
        "crash",
        "SIG",
    ),
    "killed": ("raise(SIGKILL);", "crash", "SIGKILL: sent by the process to itself"),
    "interrupted": ("raise(SIGINT); out[0] = 1;", "crash", "SIGINT: sent by the process to itself"),
    "a breakpoint": (
        "raise(SIGTRAP); out[0] = 1;",
        "crash",
        "SIGTRAP: sent by the process to itself",
    ),
    "real-time signal": ("raise(SIGRTMIN + 1);", "crash", "sent by the process to itself"),
    "stops itself": ("raise(SIGSTOP);", "crash", "SIGSTOP: sent by the process to itself"),
    "a timer of its own": ("ualarm(1000, 0); FOREVER", "crash", "SIGALRM: a timer"),
    "another program": ('execl("/bin/true", "true", nullptr);', "crash", "exit status 0"),
    "keeps a lock": ("static std::mutex m; m.lock();", "hang", "no answer within"),
    "write before the output": ("out.data()[-1] = 1;", "writes_outside", "element -1"),
    "Python without its lock": ("without_lock();", "crash", "SIG"),
    # Signal 0 would do nothing, should it arrive.
    "a signal to the session": ("kill(getppid(), 0);", "crash", "SIGSYS: a system call that"),
    "a signal to everyone": ("kill(-1, 0);", "crash", "SIGSYS: a system call that"),
    "a thread that crashes later": (
        "std::thread([] { usleep(20'000); *(volatile int*)nullptr = 1; }).detach();",
        "crash",
        "SIGSEGV",
    ),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_the_session_survives_and_the_finding_says_what_it_was(name: str):
    body, code, part = HOSTILE[name]
    flags = "-fopenmp" if "omp" in body else ""
    text = CELL.replace("BODY", body)
    report = tpkernel.build(text, flags=flags, checks=("memory",), budget=4.0)
    bad = [f for f in report.findings if f.level == "error" or f.code == "not_finished"]
    assert code in {f.code for f in bad}, report.findings
    (finding,) = [f for f in bad if f.code == code]
    assert part in finding.message
    assert finding.operator == "cell::hostile"
    assert finding.check == "memory"
    assert not report.ok or code == "not_finished"


# Takes what there is, and says nothing of it.
HOARD = "try { for (;;) *new double*[1 << 22] = nullptr; } catch (const std::bad_alloc&) {}"


@pytest.mark.parametrize(
    "taking", [HOSTILE["memory without end"][0], HOARD], ids=["fails", "hoards"]
)
def test_memory_that_is_used_up_is_not_the_next_cells_matter(taking: str):
    report = tpkernel.build(CELL.replace("BODY", taking), recheck=True)
    assert taking == HOARD or "runs out of memory" in report.title
    text = """\
void large(tp::In<double> x, tp::Out<double> out) {
  volatile double* room = new double[1 << 24];
  for (int64_t i = 0; i < x.numel(); ++i) room[i] = x[i], out[i] = room[i];
  delete[] room;
}
"""
    for next_cell in (SOFTPLUS, text):
        report = tpkernel.build(next_cell, recheck=True)
        assert report.ok, str(report)


def test_after_all_of_them_the_next_cell_is_judged_rightly():
    report = tpkernel.build(SOFTPLUS)
    assert report.ok, str(report)
    assert report.module.softplus(tp.zeros(1)).tolist() == pytest.approx([0.6931472], rel=1e-6)


# Body, and what a warning says of it; None: it leaves nothing behind.
MILD: dict[str, tuple[str, str | None]] = {
    "the working folder": (
        'if (chdir("/") != 0) std::abort();',
        "the working folder, from .* to /",
    ),
    "an environment variable": ('setenv("LC_ALL", "tr_TR", 1);', r"variables \(LC_ALL\)"),
    "the environment": ("clearenv();", r"variables \(.* more\)"),
    "the locale": (
        'std::setlocale(LC_NUMERIC, "POSIX"); std::setlocale(LC_CTYPE, "C");',
        "the locale, to ",
    ),
    "a signal handler": ("signal(SIGSEGV, SIG_DFL);", r"have a handler \(SIGSEGV\)"),
    "an ignored signal": ("signal(SIGINT, SIG_IGN);", r"are ignored \(SIGINT\)"),
    "blocked signals": ("block_signals();", r"are blocked \(.* more\)"),
    "the rounding of numbers": ("std::fesetround(FE_UPWARD);", r"arithmetic \(rounding\)"),
    "trapped exceptions": ("feenableexcept(FE_OVERFLOW);", r"arithmetic \(trapped exceptions\)"),
    "the umask": ("umask(0777);", "the umask, from .* to 777"),
    "the error stream": ("close(2);", r"standard streams \(standard error\)"),
    "a thread that goes on": ("std::thread([] { for (;;) pause(); }).detach();", "leaves .*thread"),
    "a thread that is joined": ("std::thread([] {}).join();", None),
    "an alarm": ("alarm(100);", r"timers that run on \(ITIMER_REAL\)"),
    "an alarm that is put off": ("alarm(100); alarm(0);", None),
    "its priority": ("if (nice(5) < 0) std::abort();", r"priority \(nice value from .* to .*\)"),
    "a rounding that is put back": (
        "std::fesetround(FE_UPWARD); std::fesetround(FE_TONEAREST);",
        None,
    ),
    "unloads itself": (
        "UNLOAD_ONCE",
        None,
    ),
}


@pytest.mark.parametrize("change", MILD)
def test_what_it_changes_in_its_process_is_told_and_does_not_reach_the_session(change: str):
    body, told = MILD[change]
    before = os.getcwd(), dict(os.environ)  # noqa: PTH109  (the folder itself is the matter)
    report = tpkernel.build(CELL.replace("BODY", body), checks=("memory",))
    assert report.ok, str(report)
    warnings = [f for f in report.findings if f.level == "warning"]
    if told is None:
        assert warnings == []
    else:
        (warning,) = warnings
        assert warning.code in ("changes_process", "leaves_threads")
        assert (warning.check, warning.operator) == ("memory", "cell::hostile")
        assert re.search(told, warning.message), warning.message
    crashing = CELL.replace("BODY", HOSTILE["null write"][0])
    (finding,) = [f for f in tpkernel.build(crashing).findings if f.code == "crash"]
    assert "in hostile" in finding.message  # found by the handler, whatever was set before
    assert before == (os.getcwd(), dict(os.environ))  # noqa: PTH109
    assert tpkernel.build(SOFTPLUS, checks=("memory",)).ok


def test_a_crash_in_the_worker_names_operator_arguments_and_functions():
    text = """\
template <class T> static __attribute__((noinline)) void inner(T* p) { p[int64_t(1) << 40] = 1; }
template <class T> void outer(tp::In<T> x, tp::Out<T> out) { inner(out.data()); out[0] = x[0]; }
"""
    report = tpkernel.build(text, flags="-g -O0")
    (finding,) = [f for f in report.findings if f.code == "crash"]
    assert finding.signal == "SIGSEGV"
    assert (finding.check, finding.operator) == ("memory", "cell::outer")
    assert "on x (4,)" in finding.message
    assert "in inner<double> at line 1, called by outer<double> at line 2" in finding.message
