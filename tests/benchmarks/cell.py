"""How long a cell takes from its text to an operator that can be called, and to its whole report.

``python -m tests.benchmarks.cell`` prints a table against the engine's `load_inline` of a plain
kernel of the same size in the same run: the operator is built for two dtypes, guarded, registered
and differentiable, and still has to be there sooner.

``build`` is the compiler's part of ``operator``, ``report`` the whole cell with its checks,
``again`` the whole cell unchanged, with the report that the cache has of it. ``shell`` is a cell
without checks in IPython, from its text to the end, with the widget and its displays.

The last column is how often the same round's build each takes, as median and as the least, since
other programs of a busy machine only make it more.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Mapping, Sequence

import pytest

from tests.benchmarks.build import SMALL
from tests.tpkernel.shell import SOFTPLUS

Times = Mapping[str, Sequence[float]]


def measure(rounds: int) -> Times:
    """Return seconds per step, of each round."""
    import tvm_ffi.cpp
    from IPython.core.interactiveshell import InteractiveShell
    from IPython.utils.capture import capture_output

    import tpkernel
    from tensorplay.utils.cpp_jit import support

    shell = InteractiveShell.instance()
    with capture_output():
        shell.run_line_magic("load_ext", "tensorplay")
    tpkernel.build(SOFTPLUS)  # what is made once per environment is no part of a cell's time
    support.wait_for_background()
    names = ("engine", "build", "operator", "report", "again", "shell", "of shell")
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
        with capture_output():
            start = time.perf_counter()
            shell.run_cell(f"%%tpkernel --no-check\n{SOFTPLUS}{edit}// in a shell")
            taken["shell"].append(time.perf_counter() - start)
        taken["of shell"].append(tpkernel.last_report().build.seconds)
    return taken


@pytest.mark.benchmark
def test_the_times_of_a_cell_are_measured(monkeypatch, tmp_path):
    monkeypatch.setenv("TVM_FFI_CACHE_DIR", str(tmp_path / "engine"))
    taken = measure(1)
    assert all(value > 0 for values in taken.values() for value in values)


def main() -> None:
    """Print the table."""
    taken = measure(int(sys.argv[1]) if len(sys.argv) > 1 else 5)
    builds = dict.fromkeys(("operator", "report", "again"), taken["build"])
    builds["shell"] = taken.pop("of shell")
    engine = statistics.median(taken["engine"])
    for name, values in taken.items():
        value = statistics.median(values)
        line = f"{name:<10}{value * 1e3:9.1f} ms{value / engine:8.3f}"
        if name in builds:
            shares = [v / b for v, b in zip(values, builds[name], strict=True)]
            line += f"{statistics.median(shares):8.2f} ({min(shares):.2f}) of its build"
        sys.stdout.write(line + "\n")


if __name__ == "__main__":
    main()
