"""CUDA text that holds only kernels: which compiler takes it, and what it may hold."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from tensorplay.utils import cpp_jit
from tensorplay.utils.cpp_jit import cuda, cuda_kernels, nvrtc
from tensorplay.utils.cpp_jit.compile import Source, Unit
from tensorplay.utils.cpp_jit.source import scan

ADD = "__global__ void add(float* x, int64_t n) { if (threadIdx.x < n) x[threadIdx.x] += 1; }\n"

BIG = """__global__ void k(float* x) {
  __shared__ float s[99999];
  s[threadIdx.x] = *x;
  __syncthreads();
  *x = s[1];
}"""

needs_nvrtc = pytest.mark.skipif(
    nvrtc.find_nvrtc() is None, reason="there is no NVRTC here (pip install nvidia-cuda-nvrtc)"
)
needs_nvcc = pytest.mark.skipif(
    shutil.which("nvcc") is None and not Path(cuda._USUAL).exists(),
    reason="there is no nvcc on this machine",
)


@pytest.fixture
def no_nvcc(monkeypatch):
    """Hide nvcc, wherever it is."""

    def refuse() -> None:
        raise cpp_jit.MissingToolError("no CUDA compiler: looked for nvcc on PATH")

    monkeypatch.setattr(cuda, "find_nvcc", refuse)
    monkeypatch.setattr(cuda, "find_toolkit", refuse)


@pytest.fixture
def no_nvrtc(monkeypatch):
    monkeypatch.setattr(nvrtc, "find_nvrtc", lambda: None)


@pytest.fixture(params=["nvrtc", "nvcc"])
def route(request, monkeypatch):
    """Take each way that is here; what is asked must not depend on it."""
    if request.param == "nvrtc":
        if nvrtc.find_nvrtc() is None:
            pytest.skip("there is no NVRTC here (pip install nvidia-cuda-nvrtc)")
        request.getfixturevalue("no_nvcc")
    else:
        if shutil.which("nvcc") is None and not Path(cuda._USUAL).exists():
            pytest.skip("there is no nvcc on this machine")
        request.getfixturevalue("no_nvrtc")
    return request.param


def unit(text: str, *exports: str) -> Unit:
    return Unit("u", Source(text), dict.fromkeys(exports, ""))


@pytest.mark.parametrize(
    ("text", "exports", "taken"),
    [
        (ADD, ("add",), True),
        (ADD, (), True),
        ("__device__ float f(float x) { return x; }\n" + ADD, ("add",), True),
        (ADD + "void go() { add<<<1, 1>>>(nullptr, 1); }", ("go",), False),
        (ADD + "void go() { add<<<1, 1>>>(nullptr, 1); }", ("add",), True),
        (ADD + "void go() { add<<<1, 1>>>(nullptr, 1); }", ("add", "go"), False),
        (ADD + "void go(tvm::ffi::TensorView x) {}", (), False),
        ("// <<<\n" + ADD, ("add",), True),
        ("template <class T> __global__ void t(T* x) {}", ("t",), False),
        ("void go() {}", ("go",), False),
    ],
)
def test_which_texts_hold_only_kernels(text, exports, taken):
    assert cuda_kernels.takes(None, unit(text, *exports)) is taken


def test_kernels_are_recognised():
    text = (
        'extern "C" __global__ void __launch_bounds__(256, (1 + 1)) a(const float* __restrict__ x) '
        "{}\nnamespace n {\n__global__ __launch_bounds__(32) void b(int n = 3) {}\n}\n"
        "__device__ void c() {}\n__global__ void d(int) {}\n__global__ void d(float) {}\n"
    )
    found = cuda_kernels.kernels_of(scan(text))
    assert {name: f.line for name, f in found.items()} == {"a": 1, "b": 3}
    assert [(p.name, p.type) for p in found["a"].parameters] == [("x", "const float* __restrict__")]
    assert [(p.name, p.default) for p in found["b"].parameters] == [("n", "3")]


@pytest.mark.parametrize(
    ("declared", "expected"),
    [
        ("const float* __restrict__ x", (0, 32, 2)),
        ("std::int64_t* x", (0, 64, 0)),
        ("unsigned char* x", (0, 8, 1)),
        ("__half* x", (0, 16, 2)),
        ("const __nv_bfloat16* x", (0, 16, 4)),
        ("bool* x", (0, 8, 6)),
        ("cuDoubleComplex* x", (0, 128, 5)),
        ("void* x", (0, 0, 0)),
        ("const float4* x", (0, 0, 0)),
        ("real* x", (0, 64, 2)),
        ("int n", (2, 32, 0)),
        ("const long long n", (2, 64, 0)),
        ("size_t n", (3, 64, 0)),
        ("unsigned n", (3, 32, 0)),
        ("bool up", (1, 8, 0)),
        ("real by", (4, 64, 0)),
        ("float** x", None),
        ("float& x", None),
        ("float4 x", None),
    ],
)
def test_parameters_become_what_python_passes(declared, expected):
    text = f"using real = double;\n__global__ void k({declared}) {{}}"
    (parameter,) = cuda_kernels.kernels_of(scan(text))["k"].parameters
    assert cuda_kernels._described(parameter, {"real": "double"}) == expected
    assert cuda_kernels._aliases(scan(text).code) == {"real": "double"}


def test_symbols_are_found_by_the_names_in_the_text():
    log = "".join(
        f"ptxas info    : Compiling entry function '{symbol}' for 'sm_75'\n"
        for symbol in (
            "_Z3addPfl",
            "plain",
            "_ZN1n1bEi",
            "_ZN12_GLOBAL__N_11zEPf",
            "_Z1oi",
            "_Z1of",
        )
    )
    found = cuda_kernels.symbols(log + log)
    symbols = {name for name in found if name.startswith("_Z")}
    assert {name: found[name] for name in found.keys() - symbols} == {
        "add": "_Z3addPfl", "plain": "plain", "b": "_ZN1n1bEi", "z": "_ZN12_GLOBAL__N_11zEPf",
    }  # fmt: skip
    # Overloads have no name of their own.
    assert {"_Z1oi", "_Z1of"} < symbols
    assert all(found[symbol] == symbol for symbol in symbols)


def test_a_kernel_is_built_described_and_called_on_a_grid(route, monkeypatch):
    monkeypatch.setenv("TVM_FFI_CUDA_ARCH_LIST", "8.0 9.0")
    module = cpp_jit.load_inline("added", cuda_sources=ADD, functions={"add": "Add one."})
    build = module.build
    assert build is not None
    assert build.cuda is not None
    assert (build.cuda["route"], build.cuda["launch"]) == (route, ["add"])
    assert build.cuda["targets"] == ["sm_80", "sm_90", "compute_90"]
    assert {k["target"] for k in build.cuda["kernels"]} == {"sm_80", "sm_90"}
    assert all(k["registers"] > 0 and k["shared"] == 0 for k in build.cuda["kernels"])
    assert build.to_dict()["cuda"] == build.cuda
    assert module.add.__doc__ == "Add one."
    assert list(module.add.__signature__.parameters) == ["x", "n"]
    again = cpp_jit.load_module(module.path)
    for loaded in (module, again):
        with pytest.raises(TypeError, match=r"added::add\] is a CUDA kernel.* add\[blocks, thr"):
            loaded.add(np.zeros(3, np.float32), 3)
        with pytest.raises(ValueError, match=r"\[add\] argument 'x': expected a tensor on cuda, g"):
            loaded.add[1, 32](np.zeros(3, np.float32), n=3)
    cached = cpp_jit.load_inline("added", cuda_sources=ADD, functions={"add": "Add one."})
    assert cached.path == module.path


def test_what_text_may_use_without_including_it_is_the_same(route):
    text = """
    #include <cstdint>
    #include <cmath>
    __constant__ float limit = INFINITY;
    __global__ void k(float* x, double* y, std::int32_t n, uint8_t flag) {
      constexpr double top = HUGE_VAL;
      y[2] = top + limit;
      x[0] = std::exp(x[1]) + expf(x[2]) + INFINITY + FLT_MAX + std::abs(x[3]) + M_PI;
      y[0] = std::pow(y[1], 2.0) + DBL_EPSILON + NAN + (isnan(x[0]) ? INT_MAX : INT64_MAX);
      for (size_t i = 0; i < 3; ++i) assert(n > 0 || flag);
      if (n == 7) printf("%d", static_cast<int>(sizeof(int64_t)));
    }
    """
    build = cpp_jit.load_inline("uses", cuda_sources=text, functions="k").build
    assert build is not None
    assert build.cuda is not None
    assert build.cuda["route"] == route


@pytest.mark.parametrize(
    ("text", "line", "column", "message"),
    [
        ("\n__global__ void k(float* x) {\n  x[0] = yy;\n}", 3, 10, 'identifier "yy" is undefined'),
        (
            BIG, 1, 17, "Entry function `k` uses too much shared data",
        ),
        ("__global__ void k(float** x) {}", 1, None, "parameter `x` has type `float**`"),
        ("template <class T>\n__global__ void k(T* x) {}", 2, None, "`k` is a template"),
    ],
)  # fmt: skip
def test_errors_stand_at_their_own_lines(route, text, line, column, message):
    with pytest.raises(cpp_jit.BuildError) as caught:
        cpp_jit.load_inline("wrong", cuda_sources=text, functions="k")
    first = caught.value.diagnostics[0]
    assert message in first.message
    assert (first.file, first.line, first.column) == ("wrong.cu", line, column)


def test_headers_of_the_toolkit_and_of_the_person_are_read(route, tmp_path):
    (tmp_path / "inner.h").write_text("#define STEP 1\n")
    (tmp_path / "mine.h").write_text('#include "inner.h"\n')
    text = (
        '#include <cuda_fp16.h>\n#include "mine.h"\n'
        "__global__ void k(__half* x) { x[0] = __hadd(x[1], __float2half(STEP)); }"
    )

    def build():
        module = cpp_jit.load_inline(
            "half", cuda_sources=text, functions="k", extra_include_paths=[tmp_path]
        )
        assert module.build is not None
        return module.build

    first = build()
    assert {tmp_path / "mine.h", tmp_path / "inner.h"} <= set(first.dependencies)
    assert build().key == first.key
    (tmp_path / "inner.h").write_text("#define STEP 2\n")
    assert build().key != first.key


def test_flags_reach_the_compiler_byte_for_byte(route):
    module = cpp_jit.load_inline(
        "flags",
        cuda_sources='#ifndef MINE\n#error "MINE is missing"\n#endif\n' + ADD,
        functions="add",
        extra_cuda_cflags=["-use_fast_math", '-DMINE="a b"'],
    )
    assert module.build is not None
    flags = [word for word in module.build.commands[0] if "fast_math" in word or "MINE" in word]
    assert flags == ["-use_fast_math", '-DMINE="a b"']


def test_an_object_file_of_kernels_is_linked_into_another_library(route, tmp_path):
    merged = cpp_jit.build_inline("addobj", cuda_sources=ADD, functions="add", output="add.o")
    assert Path(merged).name == "add.o"
    module = cpp_jit.load("addlib", sources=[merged], extra_ldflags=["-ldl"])
    launch = module.add  # loaded from files, it is known by its packed form only
    with pytest.raises(ValueError, match=r"\[add\] argument 'x': expected a tensor on cuda, got"):
        launch(1, 1, 1, 32, 1, 1, 0, None, np.zeros(3, np.float32), 3)


@needs_nvrtc
@needs_nvcc
@pytest.mark.parametrize(
    ("text", "flags"),
    [
        ("#include <type_traits>\n" + ADD, []),
        (ADD, ["--expt-relaxed-constexpr"]),
        (ADD + "void go() { add<<<1, 1>>>(nullptr, 1); }", []),
        ("#define NAME <stdint.h>\n#include NAME\n" + ADD, []),
    ],
    ids=["host header", "flag", "host code", "macro"],
)
def test_what_nvrtc_does_not_take_goes_to_nvcc(text, flags):
    module = cpp_jit.load_inline(
        "other", cuda_sources=text, functions="add", extra_cuda_cflags=flags
    )
    assert module.build is not None
    assert module.build.cuda is not None
    assert module.build.cuda["route"] == "nvcc"


@needs_nvrtc
@pytest.mark.usefixtures("no_nvcc")
@pytest.mark.parametrize(
    ("text", "exports", "reason"),
    [
        ("#include <vector>\n" + ADD, "add", r"needs nvcc: can.?not open source file .vector"),
        (ADD + "void go() { add<<<1, 1>>>(nullptr, 1); }", "add", "needs nvcc: it has host code"),
        (ADD + "void go() { add<<<1, 1>>>(nullptr, 1); }", "go", "no CUDA compiler: looked for"),
    ],
)
def test_without_nvcc_what_needs_it_says_so(text, exports, reason):
    with pytest.raises(cpp_jit.MissingToolError, match=reason) as caught:
        cpp_jit.load_inline("needs", cuda_sources=text, functions=exports)
    assert "looked for nvcc on PATH" in str(caught.value)


@pytest.mark.usefixtures("no_nvrtc")
def test_without_any_compiler_both_are_named_with_their_commands(monkeypatch, tmp_path):
    compiler = shutil.which("c++")
    assert compiler is not None
    monkeypatch.setenv("CXX", compiler)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    monkeypatch.setattr(cuda, "_USUAL", "/nowhere/bin/nvcc")
    monkeypatch.setattr(cuda, "package_folders", tuple)
    with pytest.raises(cpp_jit.MissingToolError) as caught:
        cpp_jit.load_inline("neither", cuda_sources=ADD, functions="add")
    for part in (
        "pip install nvidia-cuda-nvrtc",
        f"looked for {tmp_path}/bin/nvcc, nvcc on PATH, /nowhere/bin/nvcc",
        "pip install nvidia-cuda-nvcc",
        "conda install",
        "apt-get install",
    ):
        assert part in str(caught.value)


@needs_nvrtc
@pytest.mark.usefixtures("no_nvcc")
def test_an_architecture_that_the_compiler_lacks_is_named(monkeypatch):
    monkeypatch.setenv("TVM_FFI_CUDA_ARCH_LIST", "3.5")
    with pytest.raises(cpp_jit.BuildError, match=r"NVRTC \d+\.\d+ does not build for sm_35"):
        cpp_jit.load_inline("ancient", cuda_sources=ADD, functions="add")


@needs_nvrtc
@pytest.mark.usefixtures("no_nvcc")
def test_a_cpp_cell_beside_kernels_is_checked_as_ever():
    text = "#include <tensorplay/cuda_launch.h>\nvoid go(tvm::ffi::TensorView x) { launsh(x); }"
    with pytest.raises(cpp_jit.BuildError, match="launsh") as caught:
        cpp_jit.load_inline("both", cpp_sources=text, cuda_sources=ADD, functions=["go", "add"])
    assert (caught.value.diagnostics[0].file, caught.value.diagnostics[0].line) == ("both.cpp", 2)


@needs_nvrtc
def test_the_headers_inside_nvrtc_are_written_once(tmp_path, monkeypatch):
    library = nvrtc.find_nvrtc()
    assert library is not None
    monkeypatch.setenv("TENSORPLAY_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(cuda, "find_toolkit", lambda: pytest.fail("a toolkit was asked for"))
    cache = nvrtc.default_cache()
    folders = nvrtc.header_folders(library, cache)
    if not folders or not Path(folders[0]).is_relative_to(tmp_path):
        pytest.skip("this NVRTC brings no headers along, or has them beside it")
    marker = Path(folders[0], "cuda_fp16.h")
    written = marker.stat().st_mtime_ns
    assert nvrtc.header_folders(library, cache) == folders
    assert marker.stat().st_mtime_ns == written
    assert any(part.folder == marker.parents[1] for part in cache.parts())  # counted, and evicted
