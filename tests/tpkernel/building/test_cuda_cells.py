"""CUDA text in a cell: built without a GPU, bound, reported; what it cannot have is refused.

Its operators are the matter of `test_cuda_operators`.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import tpkernel
from tensorplay.library import build_module
from tensorplay.utils import cpp_jit
from tensorplay.utils.cpp_jit import cuda, nvrtc
from tests.tpkernel.shell import Shell
from tpkernel.building.cuda_cells import read_cuda
from tpkernel.cells.cell import parse_cell
from tpkernel.cells.reading import Options
from tpkernel.errors import CellError

needs_nvrtc = pytest.mark.skipif(
    nvrtc.find_nvrtc() is None, reason="there is no NVRTC here (pip install nvidia-cuda-nvrtc)"
)

ADD = """\
__global__ void add(float* x, const float* y, long long n) {
  long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
  __shared__ float part[64];
  if (i < n) {
    part[threadIdx.x % 64] = y[i];
    x[i] += part[threadIdx.x % 64];
  }
}
"""
LAUNCH = f"""\
{ADD}
template <typename T> __device__ T twice(T x) {{ return 2 * x; }}
static unsigned blocks(int64_t n) {{ return unsigned((n + 63) / 64); }}
void launch(tvm::ffi::TensorView x, tvm::ffi::TensorView y) {{
  add<<<blocks(x.numel()), 64>>>(static_cast<float*>(x.data_ptr()),
                                 static_cast<const float*>(y.data_ptr()), x.numel());
}}
"""


FRONT = """\
/*---
op: cuda_cells::add(Tensor(a!) x, Tensor y, int n) -> ()
launch: {grid: "1", block: 64}
---*/
"""


@needs_nvrtc
def test_a_cell_of_kernels_binds_them_and_says_for_what_they_were_built(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TVM_FFI_CUDA_ARCH_LIST", "8.0 9.0")
    shell.ok(f"%%tpkernel\n{ADD}")
    report = tpkernel.last_report()
    assert report.ok
    assert report.bound == ("add",)
    made = report.build.cuda
    assert made is not None
    assert made.route == "nvrtc"
    assert {k.target for k in made.kernels} == {"sm_80", "sm_90"}
    assert all(k.registers > 0 and k.shared == 256 for k in made.kernels)
    text, html = report.to_text(full=True), report.to_html()
    for words in ("for sm_80, sm_90", "TVM_FFI_CUDA_ARCH_LIST", "256 shared memory (bytes)"):
        assert words in text
    assert "CUDA kernels" in html
    assert json.loads(json.dumps(report.to_dict()))["build"]["cuda"]["rows"][0][3] == "256"
    assert dict(report.functions[0].guards)["y"].endswith("contiguous, elements of type float")
    assert "cuobjdump" in report.with_listing().listing.notes[0]  # type: ignore[union-attr]


@needs_nvrtc
def test_calls_say_why_they_cannot_run(shell: Shell) -> None:  # B011
    shell.ok(f"%%tpkernel\n{ADD}")
    error = shell.run("add(np.ones(3, 'float32'), np.ones(3, 'float32'), 3)").error
    assert "runs on a grid. Write add[blocks, threads](…)" in str(error)
    error = shell.run("add[1, 64](np.ones(3, 'float32'), np.ones(3, 'float32'), 3)").error
    assert "argument 'x': expected a tensor on cuda, got one on cpu" in str(error)


@needs_nvrtc
def test_a_broken_cell_blocks_its_kernels_and_points_at_the_line(shell: Shell) -> None:
    shell.ok(f"%%tpkernel\n{ADD}")
    error = shell.run(f"%%tpkernel\n{ADD.replace('x[i] +=', 'z[i] +=')}").error
    assert isinstance(error, cpp_jit.BuildError)
    assert ':7:5: error: identifier "z" is undefined' in str(error)
    assert error.diagnostics[0].line == 7
    blocked = shell.run("add[1, 64](1)").error
    assert isinstance(blocked, tpkernel.StaleKernelError)
    shell.ok(f"%%tpkernel\n{ADD}")
    assert "runs on a grid" in str(shell.run("add(1)").error)


@needs_nvrtc
def test_flags_name_and_open_braces() -> None:
    text = '#ifndef MINE\n#error "MINE is missing"\n#endif\n' + ADD
    report = tpkernel.build(text, "m", flags="-use_fast_math -DMINE=1")
    assert {"-use_fast_math", "-DMINE=1"} <= set(report.build.commands[0])
    assert list(report.module) == ["add"]
    with pytest.raises(CellError, match="the one opened at line 1 is never closed"):
        tpkernel.build(ADD[:-2])


@pytest.mark.parametrize(
    "flags",
    ["-arch=sm_90", "-arch sm_90", "-gencode=arch=compute_90,code=sm_90", "--gpu-architecture=x"],
)
def test_architectures_are_no_flags(shell: Shell, flags: str) -> None:
    words = "and architectures are those of the GPU here, .* set TVM_FFI_CUDA_ARCH_LIST='8.0 9.0'"
    with pytest.raises(CellError, match=words):
        tpkernel.build(ADD, flags=flags)
    with pytest.raises(ValueError, match=words):
        cpp_jit.load_inline("m", cuda_sources=ADD, functions="add", extra_cuda_cflags=flags.split())
    error = shell.run(f"%%tpkernel --flags '{flags}'\n{ADD}").error
    assert isinstance(error, CellError)
    assert error.line == 1


def test_an_architecture_that_the_compiler_does_not_know(monkeypatch: pytest.MonkeyPatch) -> None:
    try:
        cuda.find_toolkit()
    except cpp_jit.MissingToolError:
        pytest.skip("there is no nvcc here")
    monkeypatch.setenv("TVM_FFI_CUDA_ARCH_LIST", "99.9")
    with pytest.raises(
        cpp_jit.BuildError, match=r"does not build for \w+_999, .* Set the variable"
    ):
        tpkernel.build(ADD)


def test_functions_that_launch_are_bound_instead_of_kernels() -> None:
    try:
        cuda.find_toolkit()
    except cpp_jit.MissingToolError:
        pytest.skip("there is no nvcc here")
    report = tpkernel.build(LAUNCH)
    assert report.bound == ("launch",)
    assert report.build.cuda is not None
    assert report.build.cuda.route == "nvcc"
    assert "add is not bound: a kernel, which functions of the cell launch." in report.notes
    one = np.ones(3, "float32")
    with pytest.raises(ValueError, match="argument 'x': expected a tensor on cuda"):
        report.module.launch(one, one)


@pytest.mark.parametrize(
    ("text", "options", "words"),
    [
        (ADD + "void f(tp::In<float> x) {}\n", {}, r"\[f\] typed views .* are for kernels here"),
        ("template <typename T> __global__ void f(T* x) {}\n", {}, "void f_float"),
        (f"namespace a {{\n{ADD}}}\n", {}, "it is in namespace a"),
        (ADD + "__global__ void add(float* x) {}\n", {}, "several functions have its name"),
        (ADD + "__device__ int g() { return 1; }\n", {"functions": ["g"]}, "only kernels can call"),
        (LAUNCH, {"functions": ["add"]}, "'add' is a kernel, and a cell with functions for the"),
        (ADD, {"functions": ["sub"]}, "no function 'sub'"),
        ('#include "cell:f"\n' + ADD, {}, "includes no other cells"),
        (
            "struct A { static __global__ void f(float* x) {} };\n",
            {},
            "a function outside of classes",
        ),
        ("#define KERNEL __global__ void\nKERNEL f(float* x) {}\n", {}, "__global__ itself before"),
        (
            "__device__ float f(float x) { return x; }\n",
            {},
            "the cell has none. Write one, __global",
        ),
        (ADD, {"debug": True}, "--debug is for .* compute-sanitizer"),
        (ADD, {"sanitize": "address"}, "--sanitize is for .* compute-sanitizer"),
        (ADD, {"isolate": True}, "--isolate is for"),
        (ADD, {"contiguous": "copy"}, r"--contiguous copy is for operators.* cupy\.ascontig"),
    ],
)
def test_what_a_cuda_cell_cannot_have_is_refused(
    text: str, options: dict[str, object], words: str
) -> None:
    with pytest.raises(CellError, match=words):
        tpkernel.build(text, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "macro",
    [
        "#define DEVICE __device__\n",
        "#define DEVICE \\\n  __device__ inline\n",
        "%: define DEVICE \\\n  __device__ inline\n",
        "#define DEVICE \\\r\n  __device__ inline\r\n",
        "#define GLOBAL \\\n  __global__ void\n",
    ],
)
@pytest.mark.parametrize("front", ["", FRONT])
def test_a_macro_before_a_function_does_not_mark_it(macro: str, front: str) -> None:
    host = "int64_t blocks(int64_t n) { return (n + 255) / 256; }\n"
    cell = parse_cell(front + macro + host + ADD)
    if front:
        with pytest.raises(CellError, match="'blocks' is a function for the host"):
            read_cuda(cell, Options())
        return
    spec = read_cuda(cell, Options())
    assert "blocks" in {f.name for f in spec.functions}


@needs_nvrtc
def test_a_cpp_cell_does_not_include_a_cuda_cell(shell: Shell) -> None:
    shell.ok(f"%%tpkernel\n{ADD}")
    error = shell.run('%%tpkernel\n#include "cell:add"\nint f(int x) { return x; }').error
    assert "is a CUDA cell (__global__), which a C++ cell cannot include" in str(error)


def test_a_word_in_a_comment_or_a_text_makes_no_cuda_cell() -> None:
    text = "// __global__\nint f(int x) { return x + (*\"__global__\" == '_'); }\n"
    report = tpkernel.build(text)
    assert report.build.cuda is None
    assert report.module.f(1) == 2


def test_an_operator_module_refuses_cuda(tmp_path: Path) -> None:
    (tmp_path / "k.cc").write_text(ADD)
    with pytest.raises(ValueError, match=r"k\.cc: expected C\+\+, got CUDA"):
        build_module(None, tmp_path / "k.cc", output=tmp_path / "libk.so")
