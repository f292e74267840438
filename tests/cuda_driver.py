"""A CUDA driver of the tests' own: a small library named libcuda.so.1.

A process whose LD_LIBRARY_PATH names its folder finds it first. It answers as the environment tells
it (FAKE_…), writes what is launched to the file FAKE_LOG, and runs kernels that a test gives it on
host memory that is passed off as a GPU's (`tests.gpu_arrays`).
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

__all__ = ["build_driver"]

_DRIVER = r"""
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

static int number(const char* name, int otherwise) {
  const char* text = getenv(name);
  return text ? atoi(text) : otherwise;
}
static void note(const std::string& text) {
  if (const char* path = getenv("FAKE_LOG")) {
    FILE* file = fopen(path, "a");
    fprintf(file, "%s\n", text.c_str());
    fclose(file);
  }
}
static int current = -1;
@KERNELS@

extern "C" {
int cuInit(unsigned) { return number("FAKE_INIT", 0); }
int cuDriverGetVersion(int* version) { *version = number("FAKE_VERSION", 13050); return 0; }
int cuDeviceGetCount(int* count) { *count = number("FAKE_DEVICES", 2); return 0; }
int cuDeviceGet(int* device, int index) { *device = index; return 0; }
int cuDeviceGetAttribute(int* value, int attribute, int) {
  int capability = number("FAKE_CAPABILITY", 90);
  *value = attribute == 75 ? capability / 10 : capability % 10;
  return 0;
}
int cuDevicePrimaryCtxRetain(void** context, int device) {
  note("retain " + std::to_string(device));
  *context = reinterpret_cast<void*>(static_cast<intptr_t>(device + 1));
  return 0;
}
int cuCtxPushCurrent_v2(void* context) {
  current = static_cast<int>(reinterpret_cast<intptr_t>(context)) - 1;
  return number("FAKE_PUSH", 0);
}
int cuCtxPopCurrent_v2(void**) { current = -1; return 0; }
int cuModuleLoadData(void** module, const void* image) {
  const char* data = static_cast<const char*>(image);
  bool binary = memcmp(data, "\x7f" "ELF", 4) == 0;
  bool text = strncmp(data, "//", 2) == 0 || strncmp(data, ".version", 8) == 0;
  note(std::string("load ") + (binary ? "cubin" : text ? "ptx" : "fatbin"));
  int status = number(binary ? "FAKE_LOAD_CUBIN" : "FAKE_LOAD", number("FAKE_LOAD", 0));
  *module = status ? nullptr : &current;
  return status;
}
int cuModuleGetFunction(void** function, void*, const char* name) {
  *function = strdup(name);
  return number("FAKE_FUNCTION", 0);
}
int cuFuncSetAttribute(void*, int attribute, int value) {
  note("attribute " + std::to_string(attribute) + " " + std::to_string(value));
  return number("FAKE_ATTRIBUTE", 0);
}
int cuLaunchKernel(void* function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                   unsigned bz, unsigned shared, void* stream, void** args, void**) {
  char text[512];
  snprintf(text, sizeof(text), "launch %s %u %u %u %u %u %u %u %zu on %d",
           static_cast<const char*>(function), gx, gy, gz, bx, by, bz, shared,
           reinterpret_cast<size_t>(stream), current);
  note(text);
  int status = number("FAKE_LAUNCH", 0);
  if (!status) run(static_cast<const char*>(function), args);
  return status;
}
int cuGetErrorName(int status, const char** name) {
  *name = status == 700   ? "CUDA_ERROR_ILLEGAL_ADDRESS"
          : status == 100 ? "CUDA_ERROR_NO_DEVICE"
          : status == 222 ? "CUDA_ERROR_UNSUPPORTED_PTX_VERSION"
                          : "CUDA_ERROR_INVALID_VALUE";
  return 0;
}
int cuGetErrorString(int, const char** text) { *text = "in words"; return 0; }
}
"""


def build_driver(folder: Path, kernels: str, missing: Callable[[str], NoReturn]) -> Path:
    """Build the driver in a folder, and return that.

    Parameters
    ----------
    folder
        Where it is built.
    kernels
        C++ with ``static void run(const char* name, void** args)``, which is called for a launch
        with the kernel's symbol and the addresses of its values.
    missing
        Says that there is no compiler.
    """
    (folder / "driver.cpp").write_text(_DRIVER.replace("@KERNELS@", kernels))
    compiler = shutil.which("c++") or shutil.which("g++")
    if compiler is None:
        missing("there is no C++ compiler")
    command = [compiler, "-shared", "-fPIC", "driver.cpp", "-o", "libcuda.so.1"]
    subprocess.run([*command, "-Wl,-soname,libcuda.so.1"], cwd=folder, check=True)
    return folder
