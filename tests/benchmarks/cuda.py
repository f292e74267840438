"""How long CUDA text takes to build, against the engine's own `load_inline` in the same run.

``python -m tests.benchmarks.cuda`` prints the table; what its columns are says `build`. Nothing is
launched, so no GPU is needed.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tensorplay.utils import cpp_jit
from tensorplay.utils.cpp_jit import cuda, nvrtc
from tests.benchmarks.build import Row, Time, _median, _processor_seconds, table

KERNEL = """
__global__ void scale(const float* x, float* out, int64_t n, float factor) {
  int64_t i = blockIdx.x * static_cast<int64_t>(blockDim.x) + threadIdx.x;
  if (i < n) out[i] = x[i] * factor;
}
"""

LAUNCHED = f"""{KERNEL}
void launch(tvm::ffi::TensorView x, tvm::ffi::TensorView out, double factor) {{
  unsigned blocks = static_cast<unsigned>((x.numel() + 255) / 256);
  scale<<<blocks, 256>>>(static_cast<const float*>(x.data_ptr()),
                         static_cast<float*>(out.data_ptr()), x.numel(),
                         static_cast<float>(factor));
}}
"""


def measure(rounds: int) -> list[Row]:
    """Return rows for CUDA text, which is built and not called, so that no GPU is needed.

    The engine has one way, through host code; text that holds only the kernel is set against it.
    """
    import tvm_ffi.cpp

    os.environ.setdefault("TVM_FFI_CUDA_ARCH_LIST", cuda.numbers()[0])  # what the engine asks for
    os.environ.setdefault("CUDA_HOME", str(cuda.find_toolkit().root))

    def timed(load: Callable[..., object], text: str, function: str) -> Time:
        text += f"// {time.time_ns()}\n"
        processor, start = _processor_seconds(), time.perf_counter()
        load("bench", cuda_sources=text, functions=[function])
        return Time(time.perf_counter() - start, _processor_seconds() - processor)

    def through_nvcc(*args: object, **kwargs: object) -> object:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(nvrtc, "find_nvrtc", lambda: None)
            return cpp_jit.load_inline(*args, **kwargs)  # type: ignore[arg-type]

    ways = [
        ("CUDA with host code, nvcc", cpp_jit.load_inline, LAUNCHED, "launch"),
        ("CUDA, only the kernel, nvcc", through_nvcc, KERNEL, "scale"),
    ]
    if nvrtc.find_nvrtc() is not None:
        ways.append(("CUDA, only the kernel, NVRTC", cpp_jit.load_inline, KERNEL, "scale"))
    for _, load, text, function in ways:
        timed(load, text, function)
    times: dict[str, list[Time]] = {label: [] for label, *_ in ways}
    engine: list[Time] = []
    for _ in range(rounds):
        engine.append(timed(tvm_ffi.cpp.load_inline, LAUNCHED, "launch"))
        for label, load, text, function in ways:
            times[label].append(timed(load, text, function))
    return [Row(f"new cell: {label}", _median(times[label]), _median(engine)) for label, *_ in ways]


@pytest.mark.benchmark
@pytest.mark.skipif(shutil.which("nvcc") is None, reason="there is no nvcc on this machine")
def test_the_table_of_cuda_builds_is_measured(monkeypatch, tmp_path):
    monkeypatch.setenv("TVM_FFI_CACHE_DIR", str(tmp_path / "engine"))
    for name in ("TVM_FFI_CUDA_ARCH_LIST", "CUDA_HOME"):
        monkeypatch.setenv(name, os.environ.get(name, ""))  # put back afterwards
        monkeypatch.delenv(name)
    rows = measure(1)
    assert all(row.ours.wall > 0 and row.engine.wall > 0 for row in rows)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    with tempfile.TemporaryDirectory() as folder:
        os.environ["TENSORPLAY_CACHE_DIR"] = str(Path(folder, "ours"))
        os.environ["TVM_FFI_CACHE_DIR"] = str(Path(folder, "engine"))
        sys.stdout.write(table(measure(rounds)) + "\n")


if __name__ == "__main__":
    main()
