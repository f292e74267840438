"""Cells built with sanitizers: the mistake at the cell's line, and the session goes on."""

from __future__ import annotations

import numpy as np
import pytest

import tensorplay as tp
import tpkernel
from tensorplay.utils import cpp_jit
from tests.tpkernel.shell import SOFTPLUS, Shell
from tpkernel.building.sanitizers import sanitizer_environment, sanitizer_report

try:
    sanitizer_environment(("address",))
except cpp_jit.MissingToolError as problem:
    pytestmark = pytest.mark.skip(reason=str(problem))

ROWS = """\
/*---
op: sanitized::rows(Tensor x) -> Tensor
shape: {x: [n, m], out: [n]}
---*/
template <typename T> void rows(tp::In<T, 2> x, tp::Out<T, 1> out) {
  for (int64_t i = 0; i < x.size(0); ++i) {
    const T* row = &x(i, 0);
    out(i) = 0;
    for (int64_t j = 0; j <= x.size(1); ++j)
      out(i) += row[j];
  }
}
"""
PLAIN = """\
int64_t product(int64_t n, int64_t k) {
  int32_t a = int32_t(n);
  return a * int32_t(k);
}
double at(tvm::ffi::TensorView x, int64_t i) {
  return static_cast<double*>(x.data_ptr())[i];
}
double freed() {
  double* p = new double[2];
  delete[] p;
  return *(volatile double*)p;
}
"""


def test_a_read_behind_a_pointer_is_found_at_its_line():
    report = tpkernel.build(ROWS, sanitize="address")
    (finding,) = [f for f in report.findings if f.level == "error"]
    assert finding.code == "sanitizer"
    assert "line 10: AddressSanitizer: heap-buffer-overflow, read of 8 bytes" in finding.message
    assert "in rows<double>" in finding.message
    assert "   10 |       out(i) += row[j];" in finding.message
    good = tpkernel.build(ROWS.replace("j <=", "j <"), sanitize="address,undefined")
    assert good.ok, str(good)
    assert good.module.rows(tp.ones(2, 3)).tolist() == [3.0, 3.0]


def test_calls_are_watched_too():
    module = tpkernel.build(PLAIN, sanitize=("undefined", "address")).module
    assert module.at(np.arange(5.0), 4) == 4.0
    with pytest.raises(tpkernel.KernelCrash, match=r"line 6: AddressSanitizer.*x float64 \(5,\)"):
        module.at(np.arange(5.0), 5)
    with pytest.raises(tpkernel.KernelCrash, match=r"line 11: AddressSanitizer: heap-use-after"):
        module.freed()
    assert module.product(3, 4) == 12
    with pytest.raises(tpkernel.KernelCrash) as caught:
        module.product(2**30, 4)
    assert caught.value.report.line == 3
    assert "line 3, column 12: UndefinedBehaviorSanitizer: signed integer" in str(caught.value)
    assert "    3 |   return a * int32_t(k);\n      |            ^" in str(caught.value)


def test_the_magic_names_the_cells_own_line(shell: Shell):
    ran = shell.kernel(PLAIN, "--sanitize undefined --name m")
    assert ran.error is None, ran.shown
    ran = shell.run("m.product(2**30, 4)")
    assert "line 4, column 12" in str(ran.error)
    assert "    4 |   return a * int32_t(k);" in str(ran.error)
    ran = shell.kernel(SOFTPLUS, "--sanitize adress")
    assert "unknown sanitizer 'adress'; did you mean 'address'?" in ran.shown


def test_reports_are_read():
    assert sanitizer_report("nothing of the kind") is None
    text = "<tpkernel cell>:7:3: runtime error: shift exponent 70 is too large\n"
    found = sanitizer_report(text)
    assert found is not None
    assert (found.line, found.column) == (7, 3)
    assert found.text.endswith("shift exponent 70 is too large")
