"""Parallel loops of kernels: every index once, exceptions and interrupts carried back."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
import traceback

import pytest

from tensorplay.utils import cpp_jit

LOOPS = r"""#include <tensorplay/parallel.h>
#include <stdexcept>
void count(tvm::ffi::TensorView seen, int64_t first, int64_t grain, int64_t threads) {
  auto* out = static_cast<int32_t*>(seen.data_ptr());
  tp::parallel_for(first, first + seen.size(0), [=](int64_t i) { out[i - first] += 1; },
                   {grain, static_cast<int32_t>(threads)});
}
void pieces(tvm::ffi::TensorView seen, int64_t grain) {
  auto* out = static_cast<int32_t*>(seen.data_ptr());
  tp::parallel_for(0, seen.size(0), [=](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) out[i] += static_cast<int32_t>(end - begin);
  }, {grain});
}
int64_t threads_of(int64_t asked) {
  int64_t at_once = 0, most = 0;
  tp::parallel_for(0, 64, [&](int64_t) {
    int64_t now = __atomic_add_fetch(&at_once, 1, __ATOMIC_SEQ_CST);
    int64_t before = __atomic_load_n(&most, __ATOMIC_SEQ_CST);
    while (now > before && !__atomic_compare_exchange_n(&most, &before, now, false,
                                                        __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) {}
    for (volatile int i = 0; i < 2000000; ++i) {}
    __atomic_sub_fetch(&at_once, 1, __ATOMIC_SEQ_CST);
  }, {1, static_cast<int32_t>(asked)});
  return most;
}
int64_t nested(int64_t n) {
  int64_t sum = 0, own = 0;
  tp::parallel_for(0, n, [&](int64_t) {
    int64_t here = 0;  // no lock is needed: the inner loop stays on this thread
    tp::parallel_for(0, n, [&](int64_t i) { own += 0 * i; here += 1; }, {1, 4});
    __atomic_fetch_add(&sum, here, __ATOMIC_RELAXED);
  }, {1, 4});
  return sum;
}
void throws(int64_t kind, int64_t at, int64_t grain) {
  tp::parallel_for(0, 10000, [=](int64_t i) {
    if (i != at) return;
    if (kind == 0) throw 42;
    if (kind == 1) throw std::out_of_range("no such thing");
    if (kind == 2) TVM_FFI_THROW(KeyError) << "at " << i;
  }, {grain, 4});
}
int64_t after_a_failure() {
  int64_t runs = 0;
  for (int i = 0; i < 50; ++i) {
    try {
      tp::parallel_for(0, 1000, [](int64_t k) { if (k % 7 == 3) throw k; }, {1, 4});
    } catch (int64_t k) {
      runs += k % 7 == 3;
    }
  }
  return runs;
}
void endless(int64_t threads) {
  volatile int64_t last = 0;
  tp::parallel_for(0, int64_t(1) << 60, [&](int64_t i) { last = i; },
                   {0, static_cast<int32_t>(threads)});
}
int64_t count_at_the_ends() {
  int64_t seen = 0;
  auto one = [&](int64_t) { __atomic_fetch_add(&seen, 1, __ATOMIC_RELAXED); };
  tp::parallel_for(INT64_MAX - 3, INT64_MAX, one);
  tp::parallel_for(INT64_MIN, INT64_MIN + 3, one, {2});
  tp::parallel_for(5, 5, one);
  tp::parallel_for(5, 3, one);
  return seen;
}
void bad_sharing(int64_t grain, int64_t threads) {
  tp::parallel_for(0, 3, [](int64_t) {}, {grain, static_cast<int32_t>(threads)});
}
int64_t many() { return tp::thread_count(); }
"""
NAMES = [
    *("count", "pieces", "threads_of", "nested", "throws", "after_a_failure", "endless"),
    *("count_at_the_ends", "bad_sharing", "many"),
]


@pytest.fixture(scope="module")
def loops() -> cpp_jit.Module:
    return cpp_jit.load_inline("loops", cpp_sources=LOOPS, functions=NAMES)


def test_they_need_the_light_headers_only_and_leave_no_thread(loops: cpp_jit.Module) -> None:
    assert loops.build is not None
    assert loops.build.rung == "light"
    assert loops.build.unloadable


@pytest.mark.parametrize("threads", [0, 1, 3])
@pytest.mark.parametrize("grain", [0, 1, 7, 10**9])
@pytest.mark.parametrize(("first", "size"), [(0, 0), (0, 1), (-5, 10), (100, 1000)])
def test_every_index_once(loops, first: int, size: int, grain: int, threads: int) -> None:
    import tensorplay as tp

    seen = tp.zeros(size, dtype=tp.int32)
    loops.count(seen, first, grain, threads)
    assert seen.tolist() == [1] * size


def test_a_body_may_take_pieces_of_the_size_asked_for(loops) -> None:
    import tensorplay as tp

    seen = tp.zeros(100, dtype=tp.int32)
    loops.pieces(seen, 30)
    assert seen.tolist() == [30] * 90 + [10] * 10


def test_a_range_may_end_where_integers_end(loops) -> None:
    assert loops.count_at_the_ends() == 6


def test_the_number_of_threads_is_kept(loops) -> None:
    assert loops.threads_of(1) == 1
    assert 2 <= loops.threads_of(3) <= 3


def test_the_environment_says_how_many() -> None:
    code = f"""
from tensorplay.utils import cpp_jit
m = cpp_jit.load_inline("loops", cpp_sources={LOOPS!r}, functions={NAMES!r})
assert m.many() == 3 and m.threads_of(0) <= 3
"""
    for given in ({"TP_NUM_THREADS": "3", "OMP_NUM_THREADS": "9"}, {"OMP_NUM_THREADS": "3"}):
        clean = {k: v for k, v in os.environ.items() if not k.endswith("_NUM_THREADS")}
        subprocess.run([sys.executable, "-c", code], check=True, env={**clean, **given})


def test_a_loop_in_a_loop_runs_in_order(loops) -> None:
    assert loops.nested(20) == 400


@pytest.mark.parametrize("grain", [0, 1, 10**6])
def test_what_a_thread_throws_arrives(loops, grain: int) -> None:  # case B007
    with pytest.raises(RuntimeError, match="kernel threw a value of type int"):
        loops.throws(0, 9999, grain)
    with pytest.raises(IndexError, match="no such thing"):
        loops.throws(1, 5000, grain)
    with pytest.raises(KeyError, match="at 7000") as raised:
        loops.throws(2, 7000, grain)
    shown = "".join(traceback.format_exception(raised.value))
    assert f'File "loops.cpp", line {line_of("KeyError")}' in shown
    assert loops.nested(3) == 9


def line_of(text: str) -> int:
    return next(n for n, line in enumerate(LOOPS.splitlines(), 1) if text in line)


def test_cpp_may_catch_it_and_go_on(loops) -> None:
    assert loops.after_a_failure() == 50


@pytest.mark.parametrize(("grain", "threads"), [(-1, 0), (0, -1)])
def test_a_sharing_that_makes_no_sense(loops, grain: int, threads: int) -> None:
    with pytest.raises(ValueError, match="a grain and a number of threads of zero or more"):
        loops.bad_sharing(grain, threads)


@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
@pytest.mark.parametrize("threads", [1, 2])
def test_an_interrupt_ends_a_loop(loops, threads: int) -> None:
    timer = threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGINT))
    timer.start()
    start = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        loops.endless(threads)
    assert time.monotonic() - start < 30
    timer.join()
    assert loops.nested(2) == 4
