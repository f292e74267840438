"""How long a cell takes to build, against the engine's own `load_inline` in the same run.

``python -m tests.benchmarks.build`` prints a table; every row alternates between the two, so that a
busy machine slows both. ``--rounds 1`` is quick. The figures are medians of wall time from the text
to the first call, and ratios of those and of the processor time of the whole process tree; the
ratios are what holds on other machines. Rows of CUDA text: ``python -m tests.benchmarks.cuda``,
which needs a CUDA toolkit and no GPU.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

REPOSITORY = Path(__file__).parents[2]

SMALL = """
void scale(tvm::ffi::TensorView x, tvm::ffi::TensorView out, double factor) {
  const float* from = static_cast<const float*>(x.data_ptr());
  float* to = static_cast<float*>(out.data_ptr());
  for (int64_t i = 0; i < x.size(0); ++i) to[i] = static_cast<float>(factor) * from[i];
}
"""

SOFTMAX = """
#include <algorithm>
#include <cmath>
#include <vector>

namespace {

struct Plan {
  int64_t outer, length, inner;
};

Plan plan(tvm::ffi::TensorView x, int64_t dim) {
  int64_t ndim = x.ndim();
  TVM_FFI_CHECK(ndim > 0, ValueError) << "softmax of a scalar";
  if (dim < 0) dim += ndim;
  TVM_FFI_CHECK_GE(dim, 0, IndexError) << "dimension out of range";
  TVM_FFI_CHECK_LT(dim, ndim, IndexError) << "dimension out of range";
  Plan p{1, x.size(dim), 1};
  for (int64_t i = 0; i < dim; ++i) p.outer *= x.size(i);
  for (int64_t i = dim + 1; i < ndim; ++i) p.inner *= x.size(i);
  return p;
}

void check_like(tvm::ffi::TensorView x, tvm::ffi::TensorView y) {
  TVM_FFI_CHECK_EQ(x.ndim(), y.ndim(), ValueError);
  for (int64_t i = 0; i < x.ndim(); ++i) TVM_FFI_CHECK_EQ(x.size(i), y.size(i), ValueError);
  TVM_FFI_CHECK(x.IsContiguous() && y.IsContiguous(), ValueError) << "contiguous tensors only";
  TVM_FFI_CHECK(x.dtype() == y.dtype(), TypeError) << x.dtype() << " against " << y.dtype();
}

template <typename T>
void forward(const T* x, T* y, Plan p) {
  std::vector<T> row(static_cast<size_t>(p.length));
  for (int64_t o = 0; o < p.outer; ++o) {
    for (int64_t i = 0; i < p.inner; ++i) {
      const T* from = x + o * p.length * p.inner + i;
      T* to = y + o * p.length * p.inner + i;
      for (int64_t j = 0; j < p.length; ++j) row[j] = from[j * p.inner];
      T top = *std::max_element(row.begin(), row.end());
      T total = 0;
      for (T& value : row) total += value = std::exp(value - top);
      for (int64_t j = 0; j < p.length; ++j) to[j * p.inner] = row[j] / total;
    }
  }
}

template <typename T>
void backward(const T* grad, const T* y, T* out, Plan p) {
  for (int64_t o = 0; o < p.outer; ++o) {
    for (int64_t i = 0; i < p.inner; ++i) {
      int64_t base = o * p.length * p.inner + i;
      T dot = 0;
      for (int64_t j = 0; j < p.length; ++j) {
        dot += grad[base + j * p.inner] * y[base + j * p.inner];
      }
      for (int64_t j = 0; j < p.length; ++j) {
        int64_t at = base + j * p.inner;
        out[at] = y[at] * (grad[at] - dot);
      }
    }
  }
}

}  // namespace

void softmax(tvm::ffi::TensorView x, tvm::ffi::TensorView y, int64_t dim) {
  check_like(x, y);
  Plan p = plan(x, dim);
  if (x.dtype().bits == 32) {
    forward(static_cast<const float*>(x.data_ptr()), static_cast<float*>(y.data_ptr()), p);
  } else {
    forward(static_cast<const double*>(x.data_ptr()), static_cast<double*>(y.data_ptr()), p);
  }
}

void softmax_backward(tvm::ffi::TensorView grad, tvm::ffi::TensorView y, tvm::ffi::TensorView out,
                      int64_t dim) {
  check_like(grad, y);
  check_like(y, out);
  Plan p = plan(y, dim);
  if (y.dtype().bits == 32) {
    backward(static_cast<const float*>(grad.data_ptr()), static_cast<const float*>(y.data_ptr()),
             static_cast<float*>(out.data_ptr()), p);
  } else {
    backward(static_cast<const double*>(grad.data_ptr()), static_cast<const double*>(y.data_ptr()),
             static_cast<double*>(out.data_ptr()), p);
  }
}
"""

FOUR = """
#include <cmath>
#include <stdexcept>
#include <string>

int64_t fib(int64_t n) { return n < 2 ? n : fib(n - 1) + fib(n - 2); }
double norm(tvm::ffi::TensorView x) {
  double sum = 0;
  for (int64_t i = 0; i < x.numel(); ++i) {
    double v = static_cast<const double*>(x.data_ptr())[i];
    sum += v * v;
  }
  return std::sqrt(sum);
}
std::string describe(tvm::ffi::TensorView x, const std::string& name) {
  if (x.ndim() > 3) throw std::invalid_argument("at most three dimensions");
  return name + " has " + std::to_string(x.numel()) + " elements";
}
tvm::ffi::Tensor ramp(int64_t n) {
  TVM_FFI_CHECK(n >= 0, ValueError) << "n is " << n;
  auto t = tvm::ffi::Tensor::FromEnvAlloc(TVMFFIEnvTensorAlloc, tvm::ffi::Shape({n}),
                                          DLDataType{kDLFloat, 64, 1}, DLDevice{kDLCPU, 0});
  for (int64_t i = 0; i < n; ++i) static_cast<double*>(t.data_ptr())[i] = static_cast<double>(i);
  return t;
}
"""

OPTIONAL = """
#include <tvm/ffi/optional.h>
double scale(tvm::ffi::TensorView x, tvm::ffi::Optional<double> factor) {
  double by = factor.has_value() ? *factor : 2.0;
  for (int64_t i = 0; i < x.numel(); ++i) static_cast<float*>(x.data_ptr())[i] *= by;
  return by;
}
"""

MAP = """
#include <tvm/ffi/container/map.h>
tvm::ffi::Map<tvm::ffi::String, int64_t> count(tvm::ffi::Array<tvm::ffi::String> words) {
  tvm::ffi::Map<tvm::ffi::String, int64_t> out;
  for (const auto& word : words) out.Set(word, out.count(word) ? out[word] + 1 : 1);
  return out;
}
"""


@dataclass(frozen=True)
class Case:
    """One text, what it exports, and a first call."""

    label: str
    text: str
    functions: tuple[str, ...]
    call: Callable[[object], object]


def _scale(module: object) -> object:
    x = np.ones(4, np.float32)
    return module.scale(x, np.zeros_like(x), 2.0)


def _softmax(module: object) -> object:
    x = np.ones((2, 3), np.float32)
    return module.softmax(x, np.zeros_like(x), 1)


CASES = (
    Case("small kernel", SMALL, ("scale",), _scale),
    Case("softmax, 80 lines", SOFTMAX, ("softmax", "softmax_backward"), _softmax),
    Case("four exports", FOUR, ("fib", "norm", "describe", "ramp"), lambda m: m.fib(5)),
    Case("Optional (full headers)", OPTIONAL, ("scale",), lambda m: m.scale(np.ones(1, "f4"), 1)),
    Case("Map and Array (full headers)", MAP, ("count",), lambda m: m.count(["a"])),
)


@dataclass(frozen=True)
class Time:
    """Wall seconds, and the processor seconds of this process and its children."""

    wall: float
    processor: float


@dataclass(frozen=True)
class Row:
    """Median times of ours and of the engine's."""

    label: str
    ours: Time
    engine: Time

    @property
    def ratio(self) -> float:
        """Return our wall time over the engine's."""
        return self.ours.wall / self.engine.wall

    @property
    def processor_ratio(self) -> float:
        """Return our processor time over the engine's, which a busy machine disturbs less."""
        return self.ours.processor / self.engine.processor


def _processor_seconds() -> float:
    who = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    return sum(usage.ru_utime + usage.ru_stime for usage in map(resource.getrusage, who))


def _timed(load: Callable[..., object], case: Case, text: str) -> Time:
    processor, start = _processor_seconds(), time.perf_counter()
    case.call(load("bench", cpp_sources=text, functions=list(case.functions)))
    return Time(time.perf_counter() - start, _processor_seconds() - processor)


def _median(times: list[Time]) -> Time:
    return Time(
        statistics.median(t.wall for t in times), statistics.median(t.processor for t in times)
    )


def measure(rounds: int) -> list[Row]:
    """Return one row per case: cold builds, the warm cell, and the warm cell in a new process."""
    import tvm_ffi.cpp

    from tensorplay.utils import cpp_jit
    from tensorplay.utils.cpp_jit import support

    loaders = (cpp_jit.load_inline, tvm_ffi.cpp.load_inline)
    for case in CASES:  # what is made once per environment is no part of a cell's time
        _timed(cpp_jit.load_inline, case, case.text)
    support.wait_for_background()
    rows = []
    for case in CASES:
        times: tuple[list[Time], list[Time]] = ([], [])
        for number in range(rounds):
            text = f"{case.text}\n// edit {number} of {time.time_ns()}\n"
            for load, taken in zip(loaders, times, strict=True):
                taken.append(_timed(load, case, text))
        rows.append(Row(f"new cell: {case.label}", *map(_median, times)))
    times = ([], [])
    for _ in range(max(rounds, 3)):
        for load, taken in zip(loaders, times, strict=True):
            taken.append(_timed(load, CASES[0], text := CASES[0].text))
    rows.append(Row("same cell again", *(_median(taken[1:]) for taken in times)))
    times = ([], [])
    for _ in range(rounds):
        for engine, taken in zip((False, True), times, strict=True):
            taken.append(_in_new_process(text, engine=engine))
    rows.append(Row("same cell, new process", *map(_median, times)))
    return rows


def _in_new_process(text: str, *, engine: bool) -> Time:
    """Return the time of `load_inline` in a fresh process, without the import of the engine."""
    code = (
        "import sys, time\n"
        "from tests.benchmarks.build import _processor_seconds\n"
        "from tensorplay.utils import cpp_jit\n"
        "cpp_jit.is_available()\n"
        "import tvm_ffi.cpp\n"
        f"load = {'tvm_ffi.cpp' if engine else 'cpp_jit'}.load_inline\n"
        "text = sys.stdin.read()\n"
        "processor, start = _processor_seconds(), time.perf_counter()\n"
        "load('bench', cpp_sources=text, functions=['scale']).scale\n"
        "print(time.perf_counter() - start, _processor_seconds() - processor)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        input=text,
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
    )
    return Time(*map(float, done.stdout.split()))


def table(rows: list[Row]) -> str:
    """Return the rows as a Markdown table."""
    lines = [
        "| | TensorPlay | engine | ratio | ratio of processor time |",
        "|---|---:|---:|---:|---:|",
    ]
    lines += [
        f"| {r.label} | {r.ours.wall * 1e3:.1f} ms | {r.engine.wall * 1e3:.1f} ms "
        f"| {r.ratio:.3f} | {r.processor_ratio:.3f} |"
        for r in rows
    ]
    return "\n".join(lines)


@pytest.mark.benchmark
def test_the_table_of_builds_is_measured(monkeypatch, tmp_path):
    monkeypatch.setenv("TVM_FFI_CACHE_DIR", str(tmp_path / "engine"))
    rows = measure(1)
    assert all(row.ours.wall > 0 and row.engine.wall > 0 for row in rows)


@dataclass(frozen=True)
class Session:
    """A cell that was edited and run again and again in one process.

    Parameters
    ----------
    first, last
        Median processor seconds of an edit, among the first and the last tenth.
    memory
        Bytes that the process grew by, from a tenth of the way to its end.
    disk
        The most bytes that the cache took after an edit.
    """

    first: float
    last: float
    memory: int
    disk: int


SESSION_LIMIT = 20 * 2**20
_SESSION = """
import gc, json, resource, statistics, sys
from tensorplay.utils import cpp_jit
from tests.benchmarks.build import SESSION_LIMIT, SMALL, _processor_seconds

cpp_jit.cache.set_limit(SESSION_LIMIT)  # what keeps it runs by itself, in the background
edits = int(sys.argv[1])
taken, memory, disk = [], [], []
for number in range(edits):
    start = _processor_seconds()
    text = f"{SMALL}\\nint64_t f() {{ return {number}; }}"
    assert cpp_jit.load_inline("edited", cpp_sources=text, functions=["scale", "f"]).f() == number
    taken.append(_processor_seconds() - start)
    disk.append(cpp_jit.cache.size())
    if number % (edits // 10) == edits // 10 - 1:
        gc.collect()
        with open("/proc/self/statm") as file:
            memory.append(int(file.read().split()[1]) * resource.getpagesize())
tenth = edits // 10
print(json.dumps({
    "first": statistics.median(taken[5:5 + tenth]),
    "last": statistics.median(taken[-tenth:]),
    "memory": memory[-1] - memory[0],
    "disk": max(disk),
}))
"""


def session(edits: int, folder: Path) -> Session:
    """Return what a thousand or fewer edits of one cell cost, in a cache of 20 MiB."""
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    environment["TENSORPLAY_CACHE_DIR"] = str(folder)
    command = [sys.executable, "-c", _SESSION, str(edits)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return Session(**json.loads(done.stdout))


@pytest.mark.benchmark
@pytest.mark.timeout(1200)
def test_a_thousand_edits_of_one_cell_do_not_pile_up(tmp_path):
    found = session(1000, tmp_path)
    assert found.memory <= 8 * 2**20, found
    # What was added since the last look at it may stand beside the limit for a moment.
    assert found.disk <= SESSION_LIMIT * 1.2, found


def first_use(folder: Path) -> list[float]:
    """Return the seconds of a first build on a machine, of a later new cell, and of a cached one.

    Each is the wall time of `load_inline` to the loaded library; the last in a new process.
    """
    code = (
        "import sys, time\n"
        "from tensorplay.utils import cpp_jit\n"
        "from tests.benchmarks.build import SMALL\n"
        "cpp_jit.is_available()\n"
        "for number in sys.argv[1:]:\n"
        "    start = time.perf_counter()\n"
        "    cpp_jit.load_inline('t', cpp_sources=f'{SMALL}//{number}', functions=['scale'])\n"
        "    print(time.perf_counter() - start)\n"
        "cpp_jit.support.wait_for_background()\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    environment["TENSORPLAY_CACHE_DIR"] = str(folder)
    times: list[float] = []
    for numbers in (("0", "1"), ("1",)):
        command = [sys.executable, "-c", code, *numbers]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        times += map(float, done.stdout.split())
    return times


@pytest.mark.benchmark
def test_b018_the_first_build_a_later_one_and_a_cached_one_are_measured(tmp_path):
    assert len(first_use(tmp_path)) == 3


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--session", type=int, default=0, metavar="EDITS", help="edits of one cell")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["TENSORPLAY_CACHE_DIR"] = str(Path(folder, "ours"))
        os.environ["TVM_FFI_CACHE_DIR"] = str(Path(folder, "engine"))
        if options.session:
            found = session(options.session, Path(folder, "session"))
            sys.stdout.write(
                f"an edit: {found.first * 1e3:.0f} ms of processor time at first, "
                f"{found.last * 1e3:.0f} ms at last; memory {found.memory / 2**20:+.1f} MiB; "
                f"cache at most {found.disk / 2**20:.1f} MiB (limit {SESSION_LIMIT / 2**20:.0f})\n"
            )
            return
        sys.stdout.write(table(measure(options.rounds)) + "\n")
        rounds = [first_use(Path(folder, f"first{n}")) for n in range(options.rounds)]
        first, later, cached = (statistics.median(times) for times in zip(*rounds, strict=True))
        sys.stdout.write(
            f"first build on a machine {first:.2f} s, a new cell right after it {later:.2f} s, "
            f"a cached one in a new process {cached * 1e3:.1f} ms\n"
        )


if __name__ == "__main__":
    main()
