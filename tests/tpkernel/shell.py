"""Cells that several tests use, and a shell that runs cells as a notebook does."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output

SOFTPLUS = """\
/*---
op: mylib::softplus(Tensor x, float beta=1.0) -> Tensor
derivatives:
  x: grad * sigmoid(beta * x)
---*/
template <typename T>
void softplus(tp::In<T> x, double beta, tp::Out<T> out) {
  for (int64_t i = 0; i < x.numel(); ++i)
    out[i] = std::log1p(std::exp(beta * x[i])) / beta;
}
"""

ADD1 = """\
void add1(tvm::ffi::TensorView x, tvm::ffi::TensorView out) {
  auto* a = static_cast<float*>(x.data_ptr());
  auto* b = static_cast<float*>(out.data_ptr());
  for (int64_t i = 0; i < x.numel(); ++i) b[i] = a[i] + 1.0f;
}
"""

MATMUL = """\
/*---
op: mylib::mm(Tensor x, Tensor w) -> Tensor
shape: {x: [n, k], w: [k, m], out: [n, m]}
derivatives:
  x: grad @ w.T
  w: x.T @ grad
---*/
template <typename T>
void mm(tp::In<T, 2> x, tp::In<T, 2> w, tp::Out<T, 2> out) {
  for (int64_t i = 0; i < x.size(0); ++i)
    for (int64_t j = 0; j < w.size(1); ++j) {
      T sum = 0;
      for (int64_t k = 0; k < x.size(1); ++k) sum += x(i, k) * w(k, j);
      out(i, j) = sum;
    }
}
"""

# The elements above zero, and where they are: sizes that only a call tells.
ABOVE_KERNEL = """\
template <typename T>
void above(tp::In<T, 1> x, tp::Result<T, 1> values, tp::Result<int64_t, 1> indices) {
  int64_t n = 0;
  for (auto v : x) n += v > 0;
  auto out = values.allocate(n);
  auto at = indices.allocate(n);
  for (int64_t i = 0, k = 0; i < x.numel(); ++i)
    if (x[i] > 0) out[k] = x[i], at[k++] = i;
}
"""

ABOVE = (
    """\
/*---
op: mylib::above(Tensor x) -> (Tensor values, Tensor indices)
derivatives:
  x: zeros_like(x).index_add(0, indices, grad_values)
---*/
"""
    + ABOVE_KERNEL
)

MAKE = """\
tvm::ffi::Tensor make(int64_t n) {
  auto t = tvm::ffi::Tensor::FromEnvAlloc(TVMFFIEnvTensorAlloc, tvm::ffi::Shape({n}),
                                          DLDataType{kDLFloat, 32, 1}, DLDevice{kDLCPU, 0});
  for (int64_t i = 0; i < n; ++i) static_cast<float*>(t.data_ptr())[i] = float(i);
  return t;
}
"""

# Takes half a minute for one size, which no check makes by itself.
SLOW = """\
/*---
op: mylib::slow(Tensor x) -> Tensor
derivatives:
  x: grad
---*/
#include <chrono>
#include <thread>
template <typename T>
void slow(tp::In<T> x, tp::Out<T> out) {
  if (x.numel() == 77) std::this_thread::sleep_for(std::chrono::seconds(30));
  for (int64_t i = 0; i < x.numel(); ++i) out[i] = x[i];
}
"""

#: Variable that holds the number of the tests' process.
TESTS_PID = "TPKERNEL_TEST_PID"

# Whether a kernel runs in a worker: the tests' own process is to live, and loads the cells too.
IN_WORKER = """\
#include <cstdlib>
#include <unistd.h>
static bool in_worker() {
  const char* tests = std::getenv("TPKERNEL_TEST_PID");
  return tests && std::atoi(tests) != getpid();
}
"""


@dataclass
class Ran:
    """What one cell left behind."""

    error: BaseException | None
    stdout: str
    stderr: str
    outputs: list[Any]
    result: Any

    @property
    def text(self) -> str:
        """Everything a terminal would show of the displays."""
        return "\n".join(o.data["text/plain"] for o in self.outputs)

    @property
    def shown(self) -> str:
        """What the shell printed of an error, without colours."""
        return re.sub(r"\x1b\[[0-9;]*m", "", self.stdout + self.stderr)


class Shell:
    """Runs cells as a notebook does."""

    def __init__(self, ip: InteractiveShell) -> None:
        self.ip = ip

    def run(self, code: str) -> Ran:
        """Run a cell and capture what it shows."""
        with capture_output() as captured:
            result = self.ip.run_cell(code, store_history=True)
        error = result.error_before_exec or result.error_in_exec
        return Ran(error, captured.stdout, captured.stderr, captured.outputs, result.result)

    def ok(self, code: str) -> Ran:
        """Run a cell that must succeed."""
        ran = self.run(code)
        assert ran.error is None, ran.shown
        return ran

    def kernel(self, text: str, line: str = "") -> Ran:
        """Run a ``%%tpkernel`` cell."""
        return self.run(f"%%tpkernel {line}".rstrip() + f"\n{text}")

    def __getitem__(self, name: str) -> Any:
        return self.ip.user_ns[name]
