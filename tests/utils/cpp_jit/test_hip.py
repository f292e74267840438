"""``backend="hip"``: command lines held by a compiler that the tests make, and what it says."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import numpy as np
import pytest

from tensorplay.utils import cpp_jit
from tensorplay.utils.cpp_jit import cuda, gpu, hip, nvrtc
from tensorplay.utils.cpp_jit.diagnostics import Texts, parse

#: What a launcher sees of HIP, for a host compiler: launches go to the fake run time.
HEADER = r"""
#pragma once
#include <stddef.h>
#define __global__
typedef int hipError_t;
typedef void* hipStream_t;
enum {
  hipSuccess = 0,
  hipDeviceAttributeComputeCapabilityMajor,
  hipDeviceAttributeComputeCapabilityMinor
};
struct dim3 {
  unsigned x, y, z;
  dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};
extern "C" {
hipError_t hipGetDeviceCount(int*);
hipError_t hipGetLastError();
hipError_t hipDriverGetVersion(int*);
hipError_t hipGetDevice(int*);
hipError_t hipSetDevice(int);
hipError_t hipDeviceGetAttribute(int*, int, int);
const char* hipGetErrorName(hipError_t);
const char* hipGetErrorString(hipError_t);
hipError_t hipLaunchKernel(const void*, dim3, dim3, void**, size_t, hipStream_t);
hipError_t __hipPushCallConfiguration(dim3, dim3, size_t, hipStream_t);
}
#define LAUNCH(kernel)                                                       \
  if (__hipPushCallConfiguration(dim3(2), dim3(64), 8, nullptr) == hipSuccess) \
  hipLaunchKernel((const void*)kernel, dim3(2), dim3(64), nullptr, 8, nullptr)
"""

RUNTIME = r"""
#include <hip/hip_runtime.h>
#include <stdlib.h>
static int number(const char* name) {
  const char* text = getenv(name);
  return text ? atoi(text) : 0;
}
extern "C" {
hipError_t hipGetDeviceCount(int* count) {
  *count = number("FAKE_DEVICES");
  return 0;
}
hipError_t hipGetLastError() { return 0; }
hipError_t hipDriverGetVersion(int* version) { *version = 60241134; return 0; }
hipError_t hipGetDevice(int* device) { *device = 0; return 0; }
hipError_t hipSetDevice(int) { return 0; }
hipError_t hipDeviceGetAttribute(int* value, int what, int) {
  *value = what == 1 ? 9 : 4;
  return 0;
}
const char* hipGetErrorName(hipError_t) { return "hipErrorNamed"; }
const char* hipGetErrorString(hipError_t) { return "in words"; }
hipError_t hipLaunchKernel(const void*, dim3, dim3, void**, size_t, hipStream_t) {
  return number("FAKE_LAUNCH");
}
hipError_t __hipPushCallConfiguration(dim3, dim3, size_t, hipStream_t) {
  return number("FAKE_PUSH");
}
}
"""

TEXT = """
__global__ void one(float* x) { x[0] = 1.0f; }
void go(tvm::ffi::TensorView x) { LAUNCH(one); }
void noop() { LAUNCH(one); }
"""

# As clang 15 writes it with ROCm 5.2, for one kernel and one architecture.
REMARKS = "".join(
    f"In[4]:2:1: remark: {fact} [-Rpass-analysis=kernel-resource-usage]\n"
    for fact in (
        "Function Name: _Z3onePf",
        "    SGPRs: 6",
        "    VGPRs: 12",
        "    AGPRs: 0",
        "    ScratchSize [bytes/lane]: 16",
        "    Occupancy [waves/SIMD]: 8",
        "    SGPRs Spill: 0",
        "    VGPRs Spill: 3",
        "    LDS Size [bytes/block]: 2048",
    )
)


def script(path: Path, body: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


@pytest.fixture
def rocm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, missing: Callable[[str], NoReturn]
) -> Path:
    """Make a ROCm whose compiler writes its arguments down and leaves the work to g++."""
    compiler = shutil.which("g++")
    if not sys.platform.startswith("linux"):
        pytest.skip("the fake compiler is made for Linux")
    if compiler is None:
        missing("g++ is not installed")
    root = tmp_path / "rocm"
    (root / "include" / "hip").mkdir(parents=True)
    (root / "include" / "hip" / "hip_runtime.h").write_text(HEADER)
    (root / "lib").mkdir()
    (root / "runtime.cpp").write_text(RUNTIME)
    subprocess.run(
        [compiler, "-shared", "-fPIC", "-Iinclude", "runtime.cpp", "-o", "lib/libamdhip64.so"],
        cwd=root,
        check=True,
    )
    script(
        root / "bin" / "hipcc",
        # At once: several compilers run at a time.
        f'printf "%s\\n" "$@" >> "{tmp_path}/words"\n'
        'if [ "$1" = --version ]; then echo "HIP version: 6.2.41134-65d174c3e"; exit 0; fi\n'
        'words=\nfor word in "$@"; do case $word in hip) word=c++;; -fno-gpu-rdc|-Rpass*|'
        '--offload-arch*|--mine*) continue;; esac; words="$words $word"; done\n'
        f'exec {compiler} "-I{root}/include" $words',
    )
    monkeypatch.setenv("ROCM_HOME", str(root))
    monkeypatch.delenv("TVM_FFI_ROCM_ARCH_LIST", raising=False)
    hip._present.cache_clear()
    yield root
    hip._present.cache_clear()


def words(tmp_path: Path) -> list[str]:
    return (tmp_path / "words").read_text().splitlines()


def test_a_library_is_built_reported_and_its_calls_are_checked(rocm, tmp_path, monkeypatch):
    monkeypatch.setenv("TVM_FFI_ROCM_ARCH_LIST", "gfx90a gfx942:xnack-")
    module = cpp_jit.load_inline(
        "hipped",
        cuda_sources=TEXT,
        functions={"go": "Docs.", "noop": ""},
        extra_cuda_cflags=["--mine=a b"],
        backend="hip",
    )
    assert module.build is not None
    assert module.build.cuda == {
        "route": "hipcc",
        "toolkit": "6.2",
        "targets": ["gfx90a", "gfx942:xnack-"],
        "reason": "TVM_FFI_ROCM_ARCH_LIST asks for it",
        "kernels": [],
        "launch": [],
    }
    said = words(tmp_path)
    start = said.index("-std=c++17")
    assert said[start : start + 9] == [
        "-std=c++17",
        "-O2",
        "-fPIC",
        "-D__HIP_PLATFORM_AMD__=1",
        "-fno-gpu-rdc",
        "-Rpass-analysis=kernel-resource-usage",
        "--offload-arch=gfx90a",
        "--offload-arch=gfx942:xnack-",
        "--mine=a b",
    ]
    assert said[-9:] == ["-MD", "-MF", "cuda.d", "-c", "-x", "hip", "cuda.cu", "-o", "cuda.o"]
    link = module.build.commands[-1]
    assert f"-L{rocm}/lib" in link
    assert f"-Wl,-rpath,{rocm}/lib" in link
    assert "-lamdhip64" in link
    assert module.go.__doc__ == "Docs."
    with pytest.raises(
        ValueError, match=r"\[go\] argument 'x': expected a tensor on rocm, got one"
    ):
        module.go(np.ones(3, np.float32))
    with pytest.raises(
        RuntimeError,
        match=r"\[noop\] cannot run here: no GPU that ROCm can use \(in words; the driver supports "
        r"ROCm 6\.2\)\. It was built for gfx90a, gfx942:xnack-",
    ):
        module.noop()
    monkeypatch.setenv("FAKE_DEVICES", "1")
    module.noop()
    for variable in ("FAKE_LAUNCH", "FAKE_PUSH"):
        monkeypatch.setenv(variable, "9")
        with pytest.raises(
            RuntimeError,
            match=r"\[noop\] the launch failed: hipErrorNamed 9: in words\. Grid \(2, 1, 1\), "
            r"block \(64, 1, 1\), 8 bytes .* GPU: this one is gfx94x",
        ):
            module.noop()
        monkeypatch.delenv(variable)


def test_files_of_both_suffixes_go_to_the_compiler(rocm, tmp_path, monkeypatch):
    monkeypatch.setenv("TVM_FFI_ROCM_ARCH_LIST", "gfx1100")
    for name in ("a.cu", "b.hip"):
        (tmp_path / name).write_text(
            "#include <tvm/ffi/function.h>\n#include <hip/hip_runtime.h>\n"
            f"static int64_t {name[0]}(int64_t n) {{ return n + 1; }}\n"
            f"TVM_FFI_DLL_EXPORT_TYPED_FUNC({name[0]}, {name[0]});\n"
        )
    files = [tmp_path / "a.cu", tmp_path / "b.hip"]
    module = cpp_jit.load("hipfiles", cuda_files=files, backend="hip")
    assert (module.a(1), module.b(2)) == (2, 3)
    said = words(tmp_path)
    for path in files:
        at = said.index(str(path))
        assert said[at - 3 : at] == ["-c", "-x", "hip"]
    assert said.count("--offload-arch=gfx1100") == 2


def test_errors_stand_at_their_own_lines_and_kernels_are_not_exported(rocm, monkeypatch):
    monkeypatch.setenv("TVM_FFI_ROCM_ARCH_LIST", "gfx1100")
    with pytest.raises(cpp_jit.BuildError, match="yy") as caught:
        cpp_jit.load_inline(
            "hipbad", cuda_sources=TEXT.replace("1.0f", "yy"), functions="go", backend="hip"
        )
    first = caught.value.diagnostics[0]
    assert (first.file, first.line) == ("hipbad.cu", 2)
    with pytest.raises(cpp_jit.BuildError, match=r"`one` is a kernel .* export a function that"):
        cpp_jit.load_inline("hipbad", cuda_sources=TEXT, functions="one", backend="hip")


def test_what_is_built_for(rocm, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    default = hip.target()
    assert default.architectures == ("gfx90a", "gfx942", "gfx1030", "gfx1100")
    assert "no GPU to ask" in default.text
    monkeypatch.setenv("TVM_FFI_ROCM_ARCH_LIST", "gfx90a gfx90a")
    assert hip.target().flags == ("--offload-arch=gfx90a",)
    monkeypatch.setenv("TVM_FFI_ROCM_ARCH_LIST", "sm_90")
    with pytest.raises(ValueError, match=r"expected architectures such as gfx90a gfx942, got 'sm_"):
        hip.target()
    monkeypatch.delenv("TVM_FFI_ROCM_ARCH_LIST")
    script(rocm / "bin" / "rocm_agent_enumerator", "echo gfx000; echo gfx1030; echo gfx1030")
    hip._present.cache_clear()
    present = hip.target()
    assert (present.architectures, present.reason) == (("gfx1030",), "the GPU in this machine")


def test_the_root_is_asked_from_the_compiler(rocm, tmp_path, monkeypatch):
    monkeypatch.delenv("ROCM_HOME")
    monkeypatch.setenv("PATH", f"{rocm}/bin{os.pathsep}{os.environ['PATH']}")
    assert hip.find_rocm().root == rocm
    script(rocm / "bin" / "hipconfig", f'echo "{tmp_path}/elsewhere"')
    hip._rocm.cache_clear()
    assert hip.find_rocm().root == tmp_path / "elsewhere"
    assert hip.find_rocm().version == "6.2"


def test_without_hipcc_the_error_says_what_to_install(tmp_path, monkeypatch):
    compiler = shutil.which("c++")
    assert compiler is not None
    monkeypatch.setenv("CXX", compiler)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("ROCM_HOME", str(tmp_path / "rocm"))
    monkeypatch.setattr(hip, "_USUAL", "/nowhere/bin/hipcc")
    with pytest.raises(cpp_jit.MissingToolError) as caught:
        cpp_jit.load_inline("nohip", cuda_sources=TEXT, functions="go", backend="hip")
    for part in (str(tmp_path / "rocm"), "hipcc on PATH", "/nowhere", "apt-get", "ROCM_HOME"):
        assert part in str(caught.value)


def test_the_backend_is_the_one_that_is_asked_for_or_installed(rocm, tmp_path, monkeypatch):
    assert gpu.resolve("x", "hip") is gpu.HIP
    assert gpu.resolve("x", "cuda") is gpu.CUDA
    with pytest.raises(ValueError, match="library 'x': expected backend 'cuda' or 'hip', got 'me"):
        gpu.resolve("x", "metal")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CUDA_HOME", raising=False)
    monkeypatch.delenv("CUDA_PATH", raising=False)
    monkeypatch.setattr(cuda, "_USUAL", "/nowhere/bin/nvcc")
    monkeypatch.setattr(cuda, "package_folders", tuple)
    monkeypatch.setattr(nvrtc, "find_nvrtc", lambda: None)
    assert gpu.resolve("x", None) is gpu.HIP
    monkeypatch.delenv("ROCM_HOME")
    monkeypatch.setattr(hip, "_USUAL", "/nowhere/bin/hipcc")
    assert gpu.resolve("x", None) is gpu.CUDA  # whose error says what to install
    with pytest.raises(ValueError, match="expected backend 'cuda' or 'hip', got 'metal'"):
        cpp_jit.load_inline("metal", cpp_sources="", functions=(), backend="metal")


def test_registers_and_spills_are_read_and_are_no_diagnostics():
    assert hip.kernels(REMARKS + REMARKS)[0] == {
        "name": "one(float*)",
        "target": "",
        "registers": 12,
        "stack": 16,
        "spill_stores": 12,
        "shared": 2048,
    }
    assert parse(REMARKS, Texts("In[4]", {"In[4]": (1, ["", "__global__ void one()"])})) == ()
