"""What a call of a kernel costs, by the kind of its tensors.

``python -m tests.benchmarks.boundary`` prints a table: an add-one kernel on three elements with two
`tensorplay.Tensor` arguments beside the same kernel with torch tensors, NumPy arrays and the
engine's own, and a kernel that allocates its result. All take turns in one process and the lowest
time of each counts. Without torch those rows are left out, and a line says so.
"""

from __future__ import annotations

import importlib
import sys
import timeit
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tensorplay as tp
from tensorplay.utils import cpp_jit

SOURCE = """
void add_one(tvm::ffi::TensorView x, tvm::ffi::TensorView out) {
  for (int64_t i = 0; i < x.size(0); ++i) {
    static_cast<float*>(out.data_ptr())[i] = static_cast<const float*>(x.data_ptr())[i] + 1.0f;
  }
}
tvm::ffi::Tensor one_more(tvm::ffi::TensorView x) {
  auto out = tvm::ffi::Tensor::FromEnvAlloc(
      TVMFFIEnvTensorAlloc, tvm::ffi::Shape({x.size(0)}), x.dtype(), DLDevice{kDLCPU, 0});
  for (int64_t i = 0; i < x.size(0); ++i) {
    static_cast<float*>(out.data_ptr())[i] = static_cast<const float*>(x.data_ptr())[i] + 1.0f;
  }
  return out;
}
"""
GUARDED = """
void guarded(tp::In<float, 1> x, tp::Out<float, 1> out) {
  for (int64_t i = 0; i < x.numel(); ++i) out[i] = x[i] + 1.0f;
}
"""
#: Most of the other side's time.
LIMITS = {"torch": 0.75, "NumPy": 0.6, "torch, allocated": 1.0}


def calls() -> dict[str, Callable[[], Any]]:
    """Return the calls by label; those of torch only where it is installed."""
    import tvm_ffi

    import tpkernel

    module = cpp_jit.load_inline("boundary", cpp_sources=SOURCE, functions=["add_one", "one_more"])
    ours, make = module.add_one, module.one_more
    raw, raw_make = ours._function, make._function
    guarded = tpkernel.build(GUARDED, "boundary_guarded", checks=False)
    guard = cpp_jit.load_module(guarded.build.library).guarded
    x, y = tp.ones(3), tp.zeros(3)
    a, b = np.ones(3, np.float32), np.zeros(3, np.float32)
    e, f = tvm_ffi.from_dlpack(a), tvm_ffi.from_dlpack(b)
    found: dict[str, Callable[[], Any]] = {
        "ours": lambda: ours(x, y),
        "ours, guarded": lambda: guard(x, y),
        "NumPy": lambda: raw(a, b),
        "engine's own": lambda: raw(e, f),
        "ours, allocated": lambda: make(x),
    }
    try:
        torch = importlib.import_module("torch")
    except ImportError:
        return found
    p, q = torch.ones(3), torch.zeros(3)
    found["torch"] = lambda: raw(p, q)
    found["torch, allocated"] = lambda: raw_make(p)
    return found


def measure(rounds: int, number: int) -> dict[str, float]:
    """Return the lowest seconds of each call."""
    cases = calls()
    best = dict.fromkeys(cases, float("inf"))
    for _ in range(rounds):
        for label, call in cases.items():
            best[label] = min(best[label], timeit.timeit(call, number=number) / number)
    return best


@pytest.mark.benchmark
def test_the_cost_of_a_call_is_measured() -> None:
    best = measure(1, 20)
    assert {"ours", "NumPy", "engine's own"} <= best.keys()
    assert all(value > 0 for value in best.values())


def main() -> None:
    """Print the table."""
    best = measure(25, 4000)
    if "torch" not in best:
        sys.stdout.write("torch is not installed: its rows are left out\n")
    for label, seconds in best.items():
        line = f"{label:<20}{seconds * 1e9:8.0f} ns"
        if label in LIMITS:
            mine = best["ours, allocated" if "allocated" in label else "ours"]
            line += f"   ours {mine / seconds:6.3f} of it, at most {LIMITS[label]}"
        sys.stdout.write(line + "\n")
    guards = (best["ours, guarded"] - best["ours"]) / 2
    sys.stdout.write(f"guards add {guards * 1e9:.0f} ns per tensor argument, at most 30\n")


if __name__ == "__main__":
    main()
