"""A thread that a kernel leaves behind crashes later: the finding is of that kernel's cell."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import tensorplay as tp
import tpkernel
from tests.tpkernel.shell import IN_WORKER

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="looked at on Linux alone"),
    pytest.mark.usefixtures("shared_own_worker"),
]

HEAD = (
    IN_WORKER
    + """\
#include <fcntl.h>
#include <string>
#include <sys/stat.h>
#include <thread>
static bool is_there() { struct stat s; return stat("TRIGGER", &s) == 0; }
"""
)
# Its thread crashes when another cell asks for it. OpenMP's threads stay, so none are asked about.
LEAVES = (
    "// op: leaves(Tensor x) -> Tensor\n"
    + HEAD
    + """\
static bool once = true;
void leaves(tp::In<double> x, tp::Out<double> out) {
  #pragma omp parallel for num_threads(1)
  for (int64_t i = 0; i < x.numel(); ++i) out[i] = x[i];
  if (in_worker() && once && !is_there())
    std::thread([] { while (!is_there()) usleep(1000); END; }).detach();
  once = false;
}
"""
)
# Asks for it, and waits for the end of the process.
ASK = """\
static bool ask() {
  if (!in_worker() || is_there()) return true;
  close(open("TRIGGER", O_CREAT | O_WRONLY, 0600));
  sleep(8);
  return true;
}
"""
ASKS = (
    "// op: asks(Tensor x) -> Tensor\n"
    + HEAD
    + ASK
    + """\
GLOBAL
void asks(tp::In<double> x, tp::Out<double> out) {
  for (int64_t i = 0; i < x.numel(); ++i) out[i] = x[i];
  BODY
}
"""
)
ASKED = {"on_load": "static const bool asked = ask();", "body": "ask();"}
CRASH, EXIT = "*(volatile int*)nullptr = 1", "_exit(3)"


def leaving(folder: Path, end: str) -> str:
    return LEAVES.replace("TRIGGER", str(folder / "go")).replace("END", end)


def asking(folder: Path, *, on_load: str = "", body: str = "") -> str:
    text = ASKS.replace("GLOBAL", on_load).replace("BODY", body)
    return text.replace("TRIGGER", str(folder / "go"))


def check(text: str) -> tpkernel.Report:
    return tpkernel.build(text, checks=("memory",), recheck=True, flags="-fopenmp")


@pytest.mark.parametrize("place", ["on_load", "body"])
def test_a_crash_of_another_cells_thread_is_told_as_such(tmp_path: Path, place: str) -> None:
    assert check(leaving(tmp_path, CRASH)).ok
    how = {place: ASKED[place]}
    report = check(asking(tmp_path, **how))
    assert report.ok, str(report)
    if place == "on_load":  # it was loaded alone before its checks
        return
    (found,) = report.findings
    assert (found.code, found.level) == ("earlier_thread", "warning")
    assert found.operator == "cell::leaves"
    assert "a thread that it left running crashed: signal 11 (SIGSEGV" in found.message
    assert "in a thread of leaves" in found.message
    assert "during memory check of cell::asks" in found.message


def test_an_exit_in_another_cells_thread_is_not_this_cells(tmp_path: Path) -> None:
    assert check(leaving(tmp_path, EXIT)).ok
    report = check(asking(tmp_path, body="ask();"))
    assert report.ok, str(report)
    (found,) = report.findings
    assert (found.code, found.operator) == ("earlier_thread", "")
    assert "that an earlier cell left running crashed: exit status 3" in found.message


def test_its_own_crash_beside_such_a_thread_is_its_own(tmp_path: Path) -> None:
    assert check(leaving(tmp_path, CRASH)).ok
    report = check(asking(tmp_path, body="if (in_worker()) *(volatile int*)nullptr = 1;"))
    (found,) = report.findings
    assert (found.code, found.operator, found.signal) == ("crash", "cell::asks", "SIGSEGV")
    assert "in asks" in found.message


def test_its_own_exit_beside_such_a_thread_is_its_own(tmp_path: Path) -> None:
    assert check(leaving(tmp_path, CRASH)).ok
    report = check(asking(tmp_path, body="if (in_worker()) _exit(3);"))
    (found,) = report.findings  # and none of a thread: it came again in a fresh worker
    assert (found.code, found.operator) == ("crash", "cell::asks")
    assert "exit status 3" in found.message


# Damages what the C library keeps of freed memory: who asks for that size the second time crashes.
DAMAGES = (
    "// op: damages(Tensor x) -> Tensor\n"
    + IN_WORKER
    + """\
// What the C library reads there as a place that none of its memory has.
#define SPOILED 0x4141414141414141 ^ (reinterpret_cast<int64_t>(two) >> 12)
static bool once = true;
void damages(tp::In<double> x, tp::Out<double> out) {
  for (int64_t i = 0; i < x.numel(); ++i) out[i] = x[i];
  if (!in_worker() || !once) return;
  once = false;
  void* volatile one = malloc(1000);
  void* volatile two = malloc(1000);
  free(one);
  free(two);
  *static_cast<volatile int64_t*>(two) = SPOILED;
}
"""
)
MEETS = DAMAGES.replace("damages", "meets").replace(
    "*static_cast<volatile int64_t*>(two) = SPOILED;", "AFTER"
)


def test_damage_of_another_cells_kernel_is_told_as_such() -> None:
    for size in ("1000", "1100", "1200"):  # others may ask for that much meanwhile, and mend it
        assert check(DAMAGES.replace("1000", size)).ok
        report = check(MEETS.replace("AFTER", "").replace("1000", size))
        assert report.ok, str(report)
        if report.findings:
            break
    (found,) = report.findings
    assert (found.code, found.level, found.operator) == ("earlier_damage", "warning", "")
    assert "in meets. malloc(): unaligned tcache chunk detected" in found.message
    assert "cell::damages" in found.message


def test_damage_of_its_own_is_its_own_whatever_ran_before() -> None:
    assert check(DAMAGES).ok
    report = check(MEETS.replace("AFTER", "free(two);"))
    (found,) = report.findings
    assert (found.code, found.operator, found.signal) == ("crash", "cell::meets", "SIGABRT")


def test_an_isolated_call_that_meets_damage_names_who_ran_before() -> None:
    damages = tpkernel.build(DAMAGES, checks=(), isolate=True).module
    meets = tpkernel.build(MEETS.replace("AFTER", ""), checks=(), isolate=True).module
    x = tp.ones(2, dtype=tp.float64)
    assert damages.damages(x).tolist() == [1.0, 1.0]
    with pytest.raises(tpkernel.KernelCrash, match=r"unaligned .*cell::damages ran .* before"):
        meets.meets(x)
    assert meets.meets(x).tolist() == [1.0, 1.0]  # in a fresh worker


@pytest.mark.parametrize("place", ["on_load", "body"])
def test_isolated_calls_are_made_again_and_the_other_cell_hears_of_it(
    tmp_path: Path, place: str
) -> None:
    how = {place: ASKED[place]}

    def build(text: str) -> tpkernel.Report:
        return tpkernel.build(text, checks=(), isolate=True, flags="-fopenmp")

    leaves = build(leaving(tmp_path, CRASH)).module
    asks = build(asking(tmp_path, **how)).module
    x = tp.ones(2, dtype=tp.float64)
    assert leaves.leaves(x).tolist() == [1.0, 1.0]
    assert asks.asks(x).tolist() == [1.0, 1.0]
    with pytest.raises(
        tpkernel.KernelCrash, match=r"SIGSEGV.*after the call.*in a thread of leaves"
    ):
        leaves.leaves(x)
    assert leaves.leaves(x).tolist() == [1.0, 1.0]
