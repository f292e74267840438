"""CUDA text to a binary, through the run-time compiler (NVRTC) or nvcc.

NVRTC takes a tenth of nvcc's time and needs no toolkit: ``pip install nvidia-cuda-nvrtc`` is
enough. It compiles kernels only, no host code. It runs in a process of its own, because it loads a
second library by name and may end the process that it is in.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tensorplay.utils.cpp_jit import cuda
from tensorplay.utils.cpp_jit.diagnostics import Diagnostic, Texts, parse, render
from tensorplay.utils.cpp_jit.errors import BuildError, MissingToolError

#: Run by a fresh interpreter: the library's path, then what to compile as JSON on standard input.
_HELPER = """
import ctypes, json, sys
lib = ctypes.CDLL(sys.argv[1])
lib.nvrtcGetErrorString.restype = ctypes.c_char_p
job = json.load(sys.stdin)
program = ctypes.c_void_p()

def check(status):
    if status:
        sys.exit("nvrtc: " + lib.nvrtcGetErrorString(status).decode())

def read(size_of, get):
    size = ctypes.c_size_t()
    check(size_of(program, ctypes.byref(size)))
    data = ctypes.create_string_buffer(size.value)
    check(get(program, data))
    return data.raw

name = job["name"].encode()
check(lib.nvrtcCreateProgram(ctypes.byref(program), job["text"].encode(), name, 0, None, None))
options = [option.encode() for option in job["options"]]
status = lib.nvrtcCompileProgram(program, len(options), (ctypes.c_char_p * len(options))(*options))
log = read(lib.nvrtcGetProgramLogSize, lib.nvrtcGetProgramLog).rstrip(b"\\0")
sys.stderr.buffer.write(log)
check(status)
with open(job["output"], "wb") as file:
    file.write(read(lib.nvrtcGetCUBINSize, lib.nvrtcGetCUBIN))
"""


@dataclass(frozen=True)
class Cubin:
    """A binary for one GPU architecture.

    Parameters
    ----------
    content
        What ``embed_cubin`` and the driver take.
    architecture
        Such as ``sm_90``.
    compiler
        ``"nvrtc"`` or ``"nvcc"``.
    kernels
        Per kernel: ``name``, ``target``, ``registers``, and in bytes ``shared``, ``stack``,
        ``spill_stores``, ``spill_loads``.
    diagnostics
        Warnings.
    log
        The compiler's whole output.
    """

    content: bytes
    architecture: str
    compiler: str
    kernels: tuple[dict[str, Any], ...]
    diagnostics: tuple[Diagnostic, ...]
    log: str


def find_nvrtc() -> Path | None:
    """Return the run-time compiler's library among the Python packages or in the toolkit."""
    spec = importlib.util.find_spec("nvidia")
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        for pattern in ("cu*/lib/libnvrtc.so.*", "cuda_nvrtc/lib/libnvrtc.so.*"):
            found = [p for p in sorted(Path(folder).glob(pattern)) if ".alt." not in p.name]
            if found:
                return found[-1]
    try:
        paths = cuda.find_toolkit().library_paths
    except MissingToolError:
        return None
    return next((f for p in paths for f in sorted(Path(p).glob("libnvrtc.so.*"))), None)


def compile_cubin(
    text: str,
    *,
    name: str = "kernels.cu",
    architecture: str | None = None,
    options: Sequence[str] = (),
) -> Cubin:
    """Compile CUDA kernels to a binary for ``embed_cubin``.

    Parameters
    ----------
    text
        Kernels (``__global__``), without host code.
    name
        Name in diagnostics.
    architecture
        Such as ``"9.0"``; None takes what ``TVM_FFI_CUDA_ARCH_LIST`` names first, else the GPU in
        this machine, else 7.5.
    options
        Passed to the compiler unchanged.

    Raises
    ------
    BuildError
        It does not compile.
    MissingToolError
        Neither NVRTC nor nvcc is installed.
    """
    chosen = architecture or cuda.numbers()[0]
    target = f"sm_{chosen.replace('.', '')}"
    library = find_nvrtc()
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        if library is not None:
            command, status, log = _run_nvrtc(library, text, name, target, options, work)
        else:
            (work / "kernels.cu").write_text(f'#line 1 "{name}"\n{text}\n', "utf-8")
            arguments = ("-cubin", f"-arch={target}", "-Xptxas=-v", *options)
            names = ("kernels.cu", "-o", "cubin")
            done = cuda.run_nvcc(cuda.find_toolkit(), (*arguments, *names), work)
            command, status, log = done.command, done.returncode, done.output
        found = parse(log, Texts(name, {name: (1, text.splitlines())}))
        if status:
            raise BuildError(render(found, log), diagnostics=found, log=log, commands=(command,))
        content = (work / "cubin").read_bytes()
    return Cubin(
        content,
        target,
        "nvcc" if library is None else "nvrtc",
        tuple(cuda.kernels(log)),
        found,
        log,
    )


def _run_nvrtc(
    library: Path, text: str, name: str, target: str, options: Sequence[str], work: Path
) -> tuple[tuple[str, ...], int, str]:
    words = (f"--gpu-architecture={target}", "--std=c++17", "--ptxas-options=-v", *options)
    job = {"text": text, "name": name, "options": words, "output": str(work / "cubin")}
    command = (sys.executable, "-I", "-c", _HELPER, str(library))
    paths = (str(library.parent), os.environ.get("LD_LIBRARY_PATH"))
    done = subprocess.run(
        command,
        input=json.dumps(job).encode(),
        env={**os.environ, "LD_LIBRARY_PATH": os.pathsep.join(filter(None, paths))},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
    )
    return command, done.returncode, done.stdout.decode("utf-8", "replace")
