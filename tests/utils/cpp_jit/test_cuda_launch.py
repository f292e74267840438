"""Launches of embedded kernels, executed against a driver that the tests make themselves.

The driver (`tests.cuda_driver`) answers as the environment tells it, writes down what is launched,
and runs one kernel on host memory that is passed off as a GPU's.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import pytest

from tensorplay.utils import cpp_jit
from tensorplay.utils.cpp_jit import cuda, nvrtc
from tests.cuda_driver import build_driver

pytestmark = [
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the driver is made for Linux"),
    pytest.mark.skipif(
        nvrtc.find_nvrtc() is None and shutil.which("nvcc") is None,
        reason="no compiler for CUDA kernels (pip install nvidia-cuda-nvrtc)",
    ),
]

#: What a launch does on host memory; it gets the kernel's symbol and its values' addresses.
SCALE = r"""
static void run(const char* name, void** args) {
  if (strstr(name, "scale")) {
    const float* x = *static_cast<const float**>(args[0]);
    float* out = *static_cast<float**>(args[1]);
    for (int64_t i = 0; i < *static_cast<int64_t*>(args[2]); ++i) {
      out[i] = x[i] * *static_cast<float*>(args[3]) + *static_cast<bool*>(args[4]) +
               *static_cast<signed char*>(args[5]) + *static_cast<double*>(args[6]);
    }
  }
}
"""

KERNELS = """
__global__ void scale(const float* x, float* out, int64_t n, float by, bool up, int8_t c,
                      double d) {
  int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x;
  if (i < n) out[i] = x[i] * by + up + c + d;
}
extern "C" __global__ void nothing(const void* any) {}
"""

LAUNCHER = """
#include <tensorplay/cuda_launch.h>
void twice(tvm::ffi::TensorView x, tvm::ffi::TensorView out, int64_t device) {
  uint32_t blocks = static_cast<uint32_t>((x.numel() + 127) / 128);
  tp::cuda::Config config({blocks}, {64, 2}, 16);
  if (device >= 0) config.on_device(static_cast<int>(device)).on_stream(nullptr);
  tp::cuda::launch("scale", config, x, out, x.numel(), 2.0f, false, (int8_t)0, 0.0);
}
void wrong_size(tvm::ffi::TensorView x) {
  tp::cuda::launch("scale", {1, 1}, x, x, 4, 2.0f, false, (int8_t)0, 0.0);
}
void wrong_kind(tvm::ffi::TensorView x) {
  tp::cuda::launch("scale", {1, 1}, x, x, int64_t(4), 2, false, (int8_t)0, 0.0);
}
void wrong_count(tvm::ffi::TensorView x) { tp::cuda::launch("scale", {1, 1}, x); }
void no_such() { tp::cuda::launch("scael", {1, 1}); }
"""

#: What every process starts with: `gpu` passes host memory off as a GPU's, `said` tells an error.
PRELUDE = """
import ctypes, json, os, sys
import numpy as np
from tensorplay.utils import cpp_jit

class Tensor(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("device", ctypes.c_int32 * 2), ("ndim", ctypes.c_int32),
                ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16),
                ("shape", ctypes.POINTER(ctypes.c_int64)),
                ("strides", ctypes.POINTER(ctypes.c_int64)), ("byte_offset", ctypes.c_uint64),
                ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p)]

new_capsule = ctypes.pythonapi.PyCapsule_New
new_capsule.restype = ctypes.py_object
new_capsule.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
kept = []

class gpu:
    def __init__(self, array, index=0, kind=2):
        self.array, self.where = array, (kind, index)
    def __dlpack_device__(self):
        return self.where
    def __dlpack__(self, **_):
        a = self.array
        code = {"f": 2, "i": 0, "u": 1, "b": 6}[a.dtype.kind]
        sizes = ctypes.c_int64 * max(a.ndim, 1)
        steps = sizes(*(s // a.itemsize for s in a.strides))
        t = Tensor(a.ctypes.data, (ctypes.c_int32 * 2)(*self.where), a.ndim, code, a.itemsize * 8,
                   1, sizes(*a.shape), steps, 0, None, None)
        kept.append((t, a))
        return new_capsule(ctypes.addressof(t), b"dltensor", None)

def said(function, *args, **kwargs):
    try:
        return repr(function(*args, **kwargs))
    except Exception as error:
        return f"{type(error).__name__}: {error}"

def log():
    with open(os.environ["FAKE_LOG"]) as file:
        lines = file.read().splitlines()
    os.remove(os.environ["FAKE_LOG"])
    return lines

m = cpp_jit.load_module(os.environ["LIBRARY"])
x, out = np.arange(5, dtype=np.float32), np.zeros(5, np.float32)
more = (5, 2.0, False, 0, 0.0)
answers = {}
"""


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory, missing: Callable[[str], NoReturn]) -> Path:
    return build_driver(tmp_path_factory.mktemp("driver"), SCALE, missing)


@pytest.fixture(scope="module", params=["nvrtc", "nvcc"])
def route(request: pytest.FixtureRequest) -> str:
    """Build on each way that is here; what follows must not depend on it."""
    if request.param == "nvrtc" and nvrtc.find_nvrtc() is None:
        pytest.skip("there is no NVRTC here (pip install nvidia-cuda-nvrtc)")
    if request.param == "nvcc" and shutil.which("nvcc") is None and not Path(cuda._USUAL).exists():
        pytest.skip("there is no nvcc on this machine")
    return str(request.param)


@pytest.fixture(scope="module")
def module(route: str, tmp_path_factory: pytest.TempPathFactory) -> cpp_jit.Module:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TVM_FFI_CUDA_ARCH_LIST", "8.0 9.0")
        if route == "nvcc":
            patch.setattr(nvrtc, "find_nvrtc", lambda: None)
        made = cpp_jit.load_inline(
            f"launched_{route}",
            cpp_sources=LAUNCHER,
            cuda_sources=KERNELS,
            functions=["twice", "wrong_size", "wrong_kind", "wrong_count", "no_such",
                       "scale", "nothing"],
        )  # fmt: skip
    assert made.build is not None
    assert made.build.cuda is not None
    assert made.build.cuda["route"] == route
    return made


def run(code: str, module: cpp_jit.Module, driver: Path, log: Path, **variables: str) -> dict:
    environment = {
        **os.environ,
        "PYTHONPATH": str(Path(__file__).parents[3]),
        "LD_LIBRARY_PATH": f"{driver}{os.pathsep}{os.environ.get('LD_LIBRARY_PATH', '')}",
        "LIBRARY": str(module.path),
        "FAKE_LOG": str(log / "log"),
        **variables,
    }
    text = f"{PRELUDE}\n{code}\nprint(json.dumps(answers))"
    done = subprocess.run(
        [sys.executable, "-c", text], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    answers: dict = json.loads(done.stdout.splitlines()[-1])
    return answers


def test_kernels_are_launched_with_their_arguments(module, driver, tmp_path):
    code = """
m.scale[(2, 3, 4), 32](gpu(x), gpu(out), 5, 3, True, -2, d=0.5)
answers["out"], answers["first"] = out.tolist(), log()
m.scale[1, (8, 2), 60000, 77](gpu(x, 1), gpu(out, 1), 5, 2.0, False, 0, 0)
answers["again"], answers["second"] = out.tolist(), log()
m.scale[1, 8](gpu(x), gpu(out), *more)
m.nothing[1, 1](gpu(np.zeros(3, np.int16)))
answers["third"] = log()
m.twice(gpu(x), gpu(out), -1)
m.twice(gpu(x, 1), gpu(out, 1), 1)
answers["cpp"] = log()
answers["name"] = said(lambda: m.scale)
"""
    got = run(code, module, driver, tmp_path)
    assert got["out"] == [-0.5, 2.5, 5.5, 8.5, 11.5]
    assert got["first"][0] == "retain 0"
    assert got["first"][1] == ("load cubin" if "nvrtc" in module.__name__ else "load fatbin")
    launch = got["first"][2].split()
    assert "scale" in launch[1]
    assert launch[2:] == ["2", "3", "4", "32", "1", "1", "0", "0", "on", "0"]
    assert got["again"] == [0, 2, 4, 6, 8]
    assert got["second"][-2] == "attribute 8 60000"
    assert got["second"][-1].endswith(" 1 1 1 8 2 1 60000 77 on 1")
    assert [line.split()[0] for line in got["third"]] == ["launch", "launch"]  # loaded once
    first, second = (line.split()[2:] for line in got["cpp"])
    assert first == ["1", "1", "1", "64", "2", "1", "16", "0", "on", "0"]
    assert second[-1] == "1"


def test_arguments_are_checked_before_anything_is_launched(module, driver, tmp_path):
    code = """
k = m.scale[1, 8]
wide = np.zeros((5, 2), np.float32)
answers["cpu"] = said(k, x, gpu(out), *more)
answers["pinned"] = said(k, gpu(x, kind=3), gpu(out), *more)
answers["other"] = said(k, gpu(x), gpu(out, 1), *more)
answers["index"] = said(k, gpu(x, 5), gpu(out, 5), *more)
answers["dtype"] = said(k, gpu(x.astype(np.float64)), gpu(out), *more)
answers["strided"] = said(k, gpu(x), gpu(wide[:, 0]), *more)
answers["number"] = said(k, gpu(x), gpu(out), 5.5, 2.0, False, 0, 0.0)
answers["range"] = said(k, gpu(x), gpu(out), 5, 2.0, False, 128, 0.0)
answers["none"] = said(k, None, gpu(out), *more)
answers["count"] = said(k, gpu(x))
answers["keyword"] = said(k, gpu(x), gpu(out), *more[:4], e=1)
answers["grid"] = said(lambda: m.scale[0, 8])
answers["no grid"] = said(m.scale, gpu(x))
for name in ("wrong_size", "wrong_kind", "wrong_count"):
    answers[name] = said(m[name], gpu(x))
answers["cpp cpu"] = said(m.twice, x, gpu(out), -1)
answers["no_such"] = said(m.no_such)
answers["log"] = os.path.exists(os.environ["FAKE_LOG"])
"""
    got = run(code, module, driver, tmp_path)
    x = "[scale] argument 'x': expected "
    assert got == {
        "cpu": f"ValueError: {x}a tensor on cuda, got one on cpu. Move it to the GPU.",
        "pinned": f"ValueError: {x}a tensor on cuda, got one on pinned cpu memory. "
        "Move it to the GPU.",
        "other": "ValueError: [scale] argument 'out': expected a tensor on cuda:0 as the ones "
        "before, got one on cuda:1. Move it there.",
        "index": "ValueError: [scale] expected tensors on cuda:0 to cuda:1, which this machine "
        "has, got them on cuda:5.",
        "dtype": f"TypeError: {x}float32 on cuda, got float64 on cuda.",
        "strided": "ValueError: [scale] argument 'out': expected a contiguous tensor, because a "
        "kernel sees its memory only, got one with gaps or another order. Write x.contiguous().",
        "number": "TypeError: [scale] argument 'n': expected an integer (int64_t), got a float.",
        "range": "ValueError: [scale] argument 'c': expected an integer that fits int8, got 128.",
        "none": f"TypeError: {x}a tensor (const float*), got None.",
        "count": "TypeError: [scale] expected 7 arguments (const float* x, float* out, int64_t n, "
        "float by, bool up, int8_t c, double d), got 1.",
        "keyword": got["keyword"],
        "grid": f"ValueError: [{module.__name__}::scale] expected a grid of positive sizes, got 0.",
        "no grid": f"TypeError: [{module.__name__}::scale] is a CUDA kernel, which runs on a grid. "
        "Write scale[blocks, threads](…).",
        "wrong_size": "TypeError: [scale] argument 'n': expected a C++ value of type int64_t "
        "(8 bytes), got an integer of 4 bytes. Write static_cast<int64_t>(…).",
        "wrong_kind": "TypeError: [scale] argument 'by': expected a C++ value of type float "
        "(4 bytes), got an integer of 4 bytes. Write static_cast<float>(…).",
        "wrong_count": got["count"],
        "cpp cpu": f"ValueError: {x}a tensor on cuda, got one on cpu. Move it to the GPU.",
        "no_such": "ValueError: [scael] the CUDA text has no such kernel; it has scale, nothing.",
        "log": False,
    }
    assert "'e'" in got["keyword"] or "`e`" in got["keyword"]


def test_a_launch_that_fails_says_what_was_launched(module, driver, tmp_path):
    code = """
k = m.scale[(2, 3), 8, 50000]
for name, variable, status in (("launch", "FAKE_LAUNCH", 1), ("earlier", "FAKE_LAUNCH", 700),
                               ("attribute", "FAKE_ATTRIBUTE", 1), ("push", "FAKE_PUSH", 1)):
    os.environ[variable] = str(status)
    answers[name] = said(k, gpu(x), gpu(out), *more)
    del os.environ[variable]
os.environ["FAKE_LAUNCH"] = "1"
answers["cpp"] = said(m.twice, gpu(x), gpu(out), -1)
del os.environ["FAKE_LAUNCH"]
answers["works again"] = said(k, gpu(x), gpu(out), *more)
"""
    got = run(code, module, driver, tmp_path)
    for name in ("launch", "attribute", "push"):
        assert got[name].startswith(
            "RuntimeError: [scale] the launch failed: CUDA_ERROR_INVALID_VALUE 1: in words. "
            "Grid (2, 3, 1), block (8, 1, 1), 50000 bytes of dynamic shared memory, on cuda:0 "
            "(sm_90). It was built for sm_80, sm_90, compute_90"
        )
    assert "CUDA_ERROR_ILLEGAL_ADDRESS 700: in words. An earlier kernel may" in got["earlier"]
    assert "Grid (1, 1, 1), block (64, 2, 1), 16 bytes" in got["cpp"]
    assert got["works again"] == "None"


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        (
            {"FAKE_INIT": "100"},
            (
                "cannot run here: no GPU that CUDA can use (CUDA_ERROR_NO_DEVICE 100: in words; "
                "the driver supports CUDA 13.5). It was built for sm_80, sm_90, compute_90"
            ),
        ),
        ({"FAKE_DEVICES": "0"}, "no GPU that CUDA can use (the driver supports CUDA 13.5)."),
        (
            {"FAKE_LOAD": "222", "FAKE_VERSION": "12040"},
            (
                "cannot run on cuda:0 (sm_90): the driver is too old: it supports CUDA 12.4, the "
                "kernels were compiled by 13."
            ),
        ),
        (
            {"FAKE_LOAD": "209"},
            (
                "cannot run on cuda:0 (sm_90): no kernel image for this GPU. It was built for "
                "sm_80, sm_90, compute_90 (TVM_FFI_CUDA_ARCH_LIST asks for it). Set "
                "TVM_FFI_CUDA_ARCH_LIST=9.0 and build it again."
            ),
        ),
        ({"FAKE_LOAD": "999"}, "cannot run on cuda:0 (sm_90): CUDA_ERROR_INVALID_VALUE 999"),
        ({"FAKE_FUNCTION": "500"}, "is not in its own binary: CUDA_ERROR_INVALID_VALUE 500"),
    ],
    ids=["no device", "no gpu", "old driver", "no image", "refused", "no function"],
)
def test_calls_say_why_they_cannot_run(module, driver, tmp_path, variables, expected):
    code = 'answers["said"] = said(m.scale[1, 8], gpu(x), gpu(out), *more)'
    got = run(code, module, driver, tmp_path, **variables)
    assert got["said"].startswith("RuntimeError: [scale] ")
    assert expected in got["said"]


def test_the_image_that_fits_the_gpu_is_loaded(module, driver, tmp_path):
    if "nvrtc" not in module.__name__:
        pytest.skip("the driver chooses among the images of a fat binary")
    code = 'answers["said"], answers["log"] = said(m.nothing[1, 1], gpu(x)), log()'

    def loads(**variables: str) -> list[str]:
        got = run(code, module, driver, tmp_path, **variables)
        assert got["said"] == "None"
        return [line for line in got["log"] if line.startswith("load")]

    assert loads(FAKE_CAPABILITY="80") == ["load cubin"]
    assert loads(FAKE_CAPABILITY="89") == ["load cubin"]  # code for 8.0 runs on 8.9
    assert loads(FAKE_CAPABILITY="100") == ["load ptx"]
    # A damaged or refused binary: what newer drivers translate is tried next.
    assert loads(FAKE_CAPABILITY="90", FAKE_LOAD_CUBIN="200") == ["load cubin", "load ptx"]
    got = run(
        'answers["said"] = said(m.nothing[1, 1], gpu(x))',
        module, driver, tmp_path, FAKE_CAPABILITY="75",
    )  # fmt: skip
    assert "(sm_75): no kernel image for this GPU" in got["said"]


def test_without_a_driver_that_has_everything_it_is_called_too_old(module, tmp_path):
    (tmp_path / "old.cpp").write_text('extern "C" int cuInit(unsigned) { return 0; }')
    compiler = shutil.which("c++") or "g++"
    command = [compiler, "-shared", "-fPIC", "old.cpp", "-o", "libcuda.so.1"]
    subprocess.run(command, cwd=tmp_path, check=True)
    code = 'answers["said"] = said(m.nothing[1, 1], gpu(x))'
    got = run(code, module, tmp_path, tmp_path)
    assert "the driver is too old: it lacks cuDriverGetVersion." in got["said"]


def test_the_driver_is_asked_for_the_gpu_where_nvidia_smi_is_not(driver, tmp_path, monkeypatch):
    monkeypatch.delenv("TVM_FFI_CUDA_ARCH_LIST", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("LD_LIBRARY_PATH", str(driver))
    monkeypatch.setenv("FAKE_CAPABILITY", "89")
    monkeypatch.setattr(cuda, "_DEVICE_FILES", (str(driver / "libcuda.so.1"),))
    try:
        cuda._present.cache_clear()
        found = cuda.target()
        assert (found.architectures, found.reason) == (
            ("sm_89", "compute_89"),
            "the GPU in this machine",
        )
        monkeypatch.setenv("FAKE_INIT", "100")
        cuda._present.cache_clear()
        assert "no GPU to ask" in cuda.target().text
    finally:
        cuda._present.cache_clear()


@pytest.mark.skipif(Path("/dev/nvidiactl").exists(), reason="this machine has a driver")
def test_without_a_driver_calls_say_so(module, tmp_path):
    code = 'answers["said"] = said(m.nothing[1, 1], gpu(x))'
    got = run(code, module, tmp_path, tmp_path)
    assert "[nothing] cannot run here: no NVIDIA driver was found (libcuda.so.1: " in got["said"]
    assert "It was built for sm_80, sm_90, compute_90" in got["said"]


RUNTIME = r"""
#include <cuda_runtime.h>
#include <cstdio>
#include <cstdlib>

static int number(const char* name, int otherwise) {
  const char* text = getenv(name);
  return text ? atoi(text) : otherwise;
}
static void note(const char* what, int value) {
  FILE* file = fopen(getenv("FAKE_LOG"), "a");
  fprintf(file, "%s %d\n", what, value);
  fclose(file);
}
static int current;
static dim3 grid, block;
static size_t shared;

extern "C" {
void** __cudaRegisterFatBinary(void*) { return nullptr; }
void __cudaRegisterFatBinaryEnd(void**) {}
void __cudaUnregisterFatBinary(void**) {}
void __cudaRegisterFunction(void**, const char*, char*, const char*, int, uint3*, uint3*, dim3*,
                            dim3*, int*) {}
char __cudaInitModule(void**) { return 0; }
cudaError_t __cudaGetKernel(cudaKernel_t* kernel, const void*) {
  *kernel = nullptr;
  return cudaSuccess;
}
unsigned __cudaPushCallConfiguration(dim3 g, dim3 b, size_t s, struct CUstream_st*) {
  grid = g; block = b; shared = s;
  return 0;
}
cudaError_t __cudaPopCallConfiguration(dim3* g, dim3* b, size_t* s, void*) {
  *g = grid; *b = block; *s = shared;
  return cudaSuccess;
}
static cudaError_t launch() {
  note("launch on", current);
  return static_cast<cudaError_t>(number("FAKE_LAUNCH", 0));
}
cudaError_t __cudaLaunchKernel(cudaKernel_t, dim3, dim3, void**, size_t, cudaStream_t) {
  return launch();
}
cudaError_t cudaLaunchKernel(const void*, dim3, dim3, void**, size_t, cudaStream_t) {
  return launch();
}
cudaError_t cudaGetDeviceCount(int* count) {
  *count = number("FAKE_DEVICES", 2);
  return static_cast<cudaError_t>(number("FAKE_INIT", 0));
}
cudaError_t cudaGetDevice(int* device) { *device = current; return cudaSuccess; }
cudaError_t cudaSetDevice(int device) { note("set", current = device); return cudaSuccess; }
cudaError_t cudaGetLastError() { return static_cast<cudaError_t>(number("FAKE_LAST", 0)); }
cudaError_t cudaDriverGetVersion(int* version) { *version = 11040; return cudaSuccess; }
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
  *value = attribute == cudaDevAttrComputeCapabilityMajor ? 6 : 1;
  return cudaSuccess;
}
const char* cudaGetErrorName(cudaError_t) { return "cudaErrorNamed"; }
const char* cudaGetErrorString(cudaError_t) { return "in words"; }
}
"""

HOST = """
__global__ void fill(float* x) { *x = 1; }
void go(tvm::ffi::TensorView x) {
  fill<<<dim3(2, 3), 4, 5>>>(static_cast<float*>(x.data_ptr()));
}
"""


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="there is no nvcc on this machine")
@pytest.mark.slow
def test_launches_of_host_code_are_checked_before_and_after(tmp_path, monkeypatch):
    """Against a run time of our own, which the toolkit's compiler is made to name first."""
    toolkit = cuda.find_toolkit()
    (tmp_path / "cudart.cpp").write_text(RUNTIME)
    includes = [f"-I{path}" for path in toolkit.include_paths]
    for command in (
        ["c++", "-c", "-fPIC", *includes, "cudart.cpp", "-o", "cudart.o"],
        ["ar", "rcs", "libcudart_static.a", "cudart.o"],
    ):
        subprocess.run(command, cwd=tmp_path, check=True)
    nvcc = tmp_path / "bin" / "nvcc"
    nvcc.parent.mkdir()
    real = toolkit.compiler.command[0]
    nvcc.write_text(
        f'#!/bin/sh\ncase "$*" in *dryrun*) {real} "$@" 2>&1 | '
        f'sed \'s#LIBRARIES= *#LIBRARIES="-L{tmp_path}" #\' >&2;; *) exec {real} "$@";; esac\n'
    )
    nvcc.chmod(0o755)
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    monkeypatch.setenv("TVM_FFI_CUDA_ARCH_LIST", "9.0")
    module = cpp_jit.load_inline("hosted", cuda_sources=HOST, functions="go")
    both = cpp_jit.load_inline(
        "hosted_cpp",
        cpp_sources="void go(tvm::ffi::TensorView x);\nvoid f(tvm::ffi::TensorView x) { go(x); }",
        cuda_sources=HOST,
        functions="f",
    )
    code = """
answers["works"] = [said(m.go, gpu(x, 1)), log()]
answers["cpu"] = said(m.go, x)
answers["index"] = said(m.go, gpu(x, 2))
os.environ["FAKE_LAUNCH"] = "1"
answers["launch"] = said(m.go, gpu(x))
answers["cpp"] = said(cpp_jit.load_module(os.environ["BOTH"]).f, gpu(x))
os.environ["FAKE_LAUNCH"], os.environ["FAKE_LAST"] = "0", "7"
answers["last"] = said(m.go, gpu(x))
os.environ["FAKE_INIT"] = "35"
answers["driver"] = said(m.go, gpu(x))
"""
    got = run(code, module, tmp_path, tmp_path, BOTH=str(both.path))
    assert got["works"] == ["None", ["set 1", "launch on 1", "set 0"]]
    assert got["cpu"].startswith("ValueError: [go] argument 'x': expected a tensor on cuda, got")
    assert got["index"] == (
        "ValueError: [go] argument 'x': expected a tensor on one of the 2 GPUs of this machine, "
        "got one on cuda:2."
    )
    failed = (
        "the launch failed: cudaErrorNamed 1: in words. Grid (2, 3, 1), block (4, 1, 1), 5 bytes "
        "of dynamic shared memory. It was built for sm_90, compute_90 (TVM_FFI_CUDA_ARCH_LIST "
        "asks for it). GPU: this one is sm_61."
    )
    assert got["launch"] == f"RuntimeError: [go] {failed}"
    assert got["cpp"] == f"RuntimeError: [f] {failed}"
    assert "[go] the launch failed: cudaErrorNamed 7: in words. It was built" in got["last"]
    assert got["driver"].startswith(
        "RuntimeError: [go] cannot run here: no GPU that CUDA can use (in words; the driver "
        "supports CUDA 11.4). It was built for sm_90, compute_90"
    )
