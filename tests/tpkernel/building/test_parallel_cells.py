"""``tp::parallel_for`` in cells: results, exceptions, Interrupt, in the session and isolated."""

from __future__ import annotations

import os
import signal
import threading
import time

import pytest

import tensorplay as tp
import tpkernel

CELL = """\
/*---
op: parallel::rows(Tensor x) -> Tensor
shape: {x: [n, m], out: [n]}
---*/
#include <stdexcept>
template <typename T> void rows(tp::In<T, 2> x, tp::Out<T, 1> out) {
  tp::parallel_for(0, x.size(0), [&](int64_t i) {
    T sum = 0;
    for (int64_t j = 0; j < x.size(1); ++j) sum += x(i, j);
    if (sum < 0) throw std::invalid_argument("a row below zero");
    out(i) = sum;
  });
}
"""
SAMPLES = "samples: [{x: 'rand(5, 3)'}, {x: 'rand(2, 3)'}]\n---*/"
TURNS = """\
int64_t turns(int64_t n) {
  tp::parallel_for(0, n, [](int64_t) { for (volatile int i = 0; i < 1000000; i = i + 1) {} });
  return n;
}
"""


def test_results_and_exceptions_of_threads_arrive():
    report = tpkernel.build(CELL.replace("---*/", SAMPLES))
    assert report.ok, str(report)
    rows = report.module.rows
    x = tp.rand(1000, 7)
    tp.testing.assert_close(rows(x), x.sum(1))
    tp.testing.assert_close(rows(x.T), x.sum(0))  # by strides
    with pytest.raises(ValueError, match="a row below zero"):
        rows(-x)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no signals to send")
@pytest.mark.parametrize("isolate", [False, True])
def test_interrupt_ends_a_parallel_loop(isolate: bool):
    module = tpkernel.build(TURNS, isolate=isolate).module
    assert module.turns(2) == 2
    timer = threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    start = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        module.turns(10_000_000)
    timer.join()
    assert time.monotonic() - start < 10.0
    assert module.turns(2) == 2
