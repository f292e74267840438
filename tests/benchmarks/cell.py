"""How long a cell takes from its text to an operator that can be called, and to its whole report.

``python -m tests.benchmarks.cell`` prints a table against the engine's `load_inline` of a plain
kernel of the same size in the same run: the operator is built for two dtypes, guarded, registered
and differentiable, and still has to be there sooner.

``build`` is the compiler's part of ``operator``, ``report`` the whole cell with its checks,
``again`` the whole cell unchanged, with the report that the session has of it.
"""

from __future__ import annotations

import statistics
import sys
import time

import pytest

from tests.benchmarks.build import SMALL
from tests.tpkernel.shell import SOFTPLUS


def measure(rounds: int) -> dict[str, float]:
    """Return median seconds per step."""
    import tvm_ffi.cpp

    import tpkernel
    from tensorplay.utils.cpp_jit import support

    tpkernel.build(SOFTPLUS)  # what is made once per environment is no part of a cell's time
    support.wait_for_background()
    names = ("engine", "build", "operator", "report", "again")
    taken: dict[str, list[float]] = {name: [] for name in names}
    for number in range(rounds):
        edit = f"\n// edit {number} of {time.time_ns()}\n"
        start = time.perf_counter()
        tvm_ffi.cpp.load_inline("bench", cpp_sources=SMALL + edit, functions=["scale"])
        taken["engine"].append(time.perf_counter() - start)
        start = time.perf_counter()
        report = tpkernel.build(SOFTPLUS + edit)
        taken["report"].append(time.perf_counter() - start)
        taken["build"].append(report.build.seconds)
        taken["operator"].append(report.build.ready_seconds)
        start = time.perf_counter()
        tpkernel.build(SOFTPLUS + edit)
        taken["again"].append(time.perf_counter() - start)
    return {name: statistics.median(values) for name, values in taken.items()}


@pytest.mark.benchmark
def test_the_times_of_a_cell_are_measured(monkeypatch, tmp_path):
    monkeypatch.setenv("TVM_FFI_CACHE_DIR", str(tmp_path / "engine"))
    seconds = measure(1)
    assert all(value > 0 for value in seconds.values())


def main() -> None:
    """Print the table."""
    seconds = measure(5)
    for name, value in seconds.items():
        sys.stdout.write(f"{name:<10}{value * 1e3:9.1f} ms{value / seconds['engine']:8.3f}\n")


if __name__ == "__main__":
    main()
