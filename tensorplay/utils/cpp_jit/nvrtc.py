"""CUDA kernels to binaries through the run-time compiler (NVRTC), or through nvcc without it.

NVRTC takes a tenth of nvcc's time and needs no toolkit: ``pip install nvidia-cuda-nvrtc`` is
enough. It compiles kernels only, no host code. It runs in a process of its own, because it loads a
second library by name and may end the process that it is in.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tensorplay.utils.cpp_jit import cuda, support, toolchain
from tensorplay.utils.cpp_jit.compile import c_string
from tensorplay.utils.cpp_jit.diagnostics import Diagnostic, Texts, parse, render
from tensorplay.utils.cpp_jit.errors import BuildError, MissingToolError
from tensorplay.utils.cpp_jit.source import Scan, scan
from tensorplay.utils.cpp_jit.store import Cache, default_cache, digest

#: Run by a fresh interpreter: the library's path, then what to do as JSON on standard input. Texts
#: for several architectures are compiled at once.
_HELPER = """
import ctypes, json, sys, threading
lib = ctypes.CDLL(sys.argv[1])
lib.nvrtcGetErrorString.restype = ctypes.c_char_p
job = json.load(sys.stdin)
failed = []

def check(status):
    if status:
        raise RuntimeError("nvrtc: " + lib.nvrtcGetErrorString(status).decode())

def read(program, size_of, get):
    size = ctypes.c_size_t()
    check(size_of(program, ctypes.byref(size)))
    data = ctypes.create_string_buffer(size.value)
    check(get(program, data))
    return data.raw

def strings(texts):
    return (ctypes.c_char_p * max(len(texts), 1))(*(text.encode() for text in texts))

def compile(target):
    program = ctypes.c_void_p()
    names, texts = strings(list(job["headers"])), strings(list(job["headers"].values()))
    check(lib.nvrtcCreateProgram(ctypes.byref(program), job["text"].encode(),
                                 job["name"].encode(), len(job["headers"]), texts, names))
    options = ["--gpu-architecture=" + target["architecture"], *job["options"]]
    status = lib.nvrtcCompileProgram(program, len(options), strings(options))
    target["log"] = read(program, lib.nvrtcGetProgramLogSize, lib.nvrtcGetProgramLog)
    check(status)
    for kind, size, get in (("cubin", lib.nvrtcGetCUBINSize, lib.nvrtcGetCUBIN),
                            ("ptx", lib.nvrtcGetPTXSize, lib.nvrtcGetPTX)):
        if target.get(kind):
            with open(target[kind], "wb") as file:
                file.write(read(program, size, get))

def attempt(target):
    target["log"] = b""
    try:
        compile(target)
    except Exception as error:
        failed.append(target)
        target["log"] += ("\\n%s\\n" % error).encode()

if job["headers_folder"]:
    status = lib.nvrtcInstallBundledHeaders(job["headers_folder"].encode(), 0, None)
    if status:
        sys.exit("nvrtc: its headers cannot be written: %d" % status)
threads = [threading.Thread(target=attempt, args=(target,)) for target in job["targets"]]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
for target in failed[:1] or job["targets"]:
    sys.stdout.buffer.write(target["log"].replace(b"\\0", b""))
sys.exit(bool(failed))
"""

#: Headers that the device part of text needs nothing of, or whose names `device.h` has.
_STAND_INS = (
    *("assert.h", "cassert", "cfloat", "climits", "cmath", "cstddef", "cstdint", "cstdio"),
    *("cstdlib", "cstring", "float.h", "limits.h", "math.h", "stddef.h", "stdint.h", "stdio.h"),
    *("stdlib.h", "string.h", "cuda.h", "cuda_runtime.h", "cuda_runtime_api.h"),
    *("device_launch_parameters.h", "device_functions.h", "math_constants.h"),
)
_DEVICE = "tensorplay/device.h"
#: Headers of ours that text for the device may include.
_OWN = (_DEVICE, "tensorplay/cuda_views.h")
SOURCE = "cuda.cu"
#: Headers that bring the device's standard library, whose integers are others than ours.
_STANDARD_LIBRARY = re.compile(r"cuda/|cooperative_groups|nv/|cub/|thrust/")

#: What NVRTC says of text that another compiler may take.
_HOST = re.compile(
    r"considered a host function|host functions are not allowed"
    r"|(?:could not|cannot) open source file|[nN]o such file"
    r"|namespace \"std\" has no member|unrecognized option|NVRTC_ERROR_INVALID_OPTION"
)


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


@dataclass(frozen=True)
class Output:
    """Where the code for one architecture, such as ``90a``, is to be written; paths or empty."""

    number: str
    cubin: str = ""
    ptx: str = ""


def find_nvrtc() -> Path | None:
    """Return the run-time compiler's library among the Python packages or in a toolkit.

    No process is started: this is asked for every cell that holds only kernels.
    """
    for folder in cuda.package_folders():
        for pattern in ("cu*/lib/libnvrtc.so.*", "cuda_nvrtc/lib/libnvrtc.so.*"):
            if found := _library(folder.glob(pattern)):
                return found
    for root in (*cuda.toolkit_roots(), Path(sys.prefix)):
        for pattern in ("lib64", "lib", "targets/*/lib"):
            if found := _library(root.glob(f"{pattern}/libnvrtc.so.*")):
                return found
    return None


def _library(paths: Iterable[Path]) -> Path | None:
    found = [p for p in paths if ".alt." not in p.name and p.is_file()]
    return min(found, key=lambda path: (len(path.name), path.name), default=None)


def version(library: Path) -> str:
    """Return the compiler's version, which the name of its second library holds."""
    names = (path.name for path in library.parent.glob("libnvrtc-builtins.so.*"))
    found = (re.search(r"\.so\.(\d+\.\d+)", name) for name in names)
    return next((match[1] for match in found if match), "unknown version")


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

    Returns
    -------
    Cubin
        The binary and what was said about it.

    Raises
    ------
    BuildError
        It does not compile.
    MissingToolError
        Neither NVRTC nor nvcc is installed.
    """
    number = (architecture or cuda.numbers()[0]).replace(".", "")
    library = find_nvrtc()
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        whole = framed(text, name, 1)
        if library is not None:
            outputs = [Output(number, cubin=str(work / "cubin"))]
            done = run_nvrtc(library, whole, scan(text), outputs, options, default_cache())
        else:
            done = run_nvcc(cuda.find_toolkit(), whole, (f"-arch=sm_{number}", *options), work)
        found = parse(done.output, Texts(name, {name: (1, text.splitlines())}))
        if done.returncode:
            raise BuildError(
                render(found, done.output),
                diagnostics=found,
                log=done.output,
                commands=(done.command,),
            )
        content = (work / "cubin").read_bytes()
    return Cubin(
        content,
        f"sm_{number}",
        "nvcc" if library is None else "nvrtc",
        tuple(cuda.kernels(done.output)),
        found,
        done.output,
    )


def framed(text: str, name: str, first_line: int, preamble: str = "", generated: str = "") -> str:
    """Return a text with what it can use before its first line, and what is put around it."""
    before = f"#include <{_DEVICE}>\n{preamble}"
    after = f'#line 1 "<generated>"\n{generated}\n' if generated else ""
    return f"{before}#line {first_line} {c_string(name)}\n{text}\n{after}"


def run_nvcc(
    toolkit: cuda.Toolkit, text: str, options: Sequence[str], work: Path, kind: str = "cubin"
) -> toolchain.ToolResult:
    """Compile kernels by nvcc to a file ``cubin`` or ``fatbin`` in a folder."""
    (work / SOURCE).write_text(text, "utf-8", newline="")
    arguments = (f"-{kind}", "-std=c++17", "-Xptxas=-v", *options, f"-I{support.INCLUDE}")
    files = ("-MD", "-MF", "kernels.d", SOURCE, "-o", kind)
    return cuda.run_nvcc(toolkit, (*arguments, *files), work)


def run_nvrtc(
    library: Path,
    text: str,
    scanned: Scan,
    outputs: Sequence[Output],
    options: Sequence[str],
    cache: Cache,
) -> toolchain.ToolResult:
    """Compile kernels by NVRTC, for all architectures at once.

    Parameters
    ----------
    library
        Of the compiler.
    text
        As `framed` returns it.
    scanned
        The person's text, whose includes say which headers are needed.
    outputs
        What is written where.
    options
        The caller's, passed on unchanged.
    cache
        Keeps the headers that the compiler brings along.
    """
    own = scanned.includes
    standard = any(map(_STANDARD_LIBRARY.match, own))
    folders: tuple[str, ...] = ()
    if not set(own) <= {*_STAND_INS, *_OWN}:
        folders = header_folders(library, cache)
    job = {
        "text": text,
        "name": SOURCE,
        "headers": {
            **{name: (support.INCLUDE / name).read_text("utf-8") for name in _OWN},
            **dict.fromkeys(_STAND_INS, f"#include <{_DEVICE}>\n"),
        },
        "headers_folder": "",
        "options": [
            "--std=c++17",
            "--ptxas-options=-v",
            *(("-DTENSORPLAY_DEVICE_STANDARD_LIBRARY",) if standard else ()),
            *options,
            *(f"-I{folder}" for folder in folders),
        ],
        "targets": [
            {"architecture": f"sm_{o.number}", "cubin": o.cubin, "ptx": o.ptx} for o in outputs
        ],
    }
    return _run(library, job)


def _run(library: Path, job: dict[str, Any]) -> toolchain.ToolResult:
    options = tuple(job["options"])
    targets = tuple(f"--gpu-architecture={t['architecture']}" for t in job["targets"])
    interpreter = toolchain.Compiler((sys.executable, "-I", "-c", _HELPER, str(library)), "")
    paths = filter(None, (str(library.parent), os.environ.get("LD_LIBRARY_PATH")))
    done = subprocess.run(
        interpreter.command,
        input=json.dumps(job).encode(),
        env={**os.environ, "LD_LIBRARY_PATH": os.pathsep.join(paths)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
    )
    output = done.stdout.decode("utf-8", "replace")
    result = toolchain.ToolResult((str(library), *targets, *options), done.returncode, output, 0.0)
    if done.returncode < 0:
        raise BuildError(
            f"the CUDA run-time compiler was killed (signal {-done.returncode})",
            log=output,
            commands=(result.command,),
        )
    return result


def header_folders(library: Path, cache: Cache) -> tuple[str, ...]:
    """Return folders with the toolkit's headers: beside the compiler, or those inside it.

    Those inside are written to the cache once.
    """
    beside = library.parent.parent / "include"
    if (beside / "cuda_fp16.h").is_file():
        return (str(beside), *(str(p) for p in (beside / "cccl",) if p.is_dir()))
    identity = toolchain.compiler_of((str(library),)).identity
    key = digest("nvrtc headers", identity)
    folder = cache.root / "runtime" / key[:24]

    def published() -> bool:
        return support.published(cache, folder, "copy of NVRTC's headers", hashed=False) is not None

    if not published():
        with cache.lock("headers", key, "the headers of NVRTC"):
            if not published():
                with cache.workspace() as work:
                    if not _write_headers(library, work):
                        return _toolkit_headers()
                    support.publish(cache, work, folder, ("headers/cuda_fp16.h",))
    cache.touch(folder)
    return (str(folder / "headers"), str(folder / "headers" / "cccl"))


def _toolkit_headers() -> tuple[str, ...]:
    try:
        return cuda.find_toolkit().include_paths
    except MissingToolError:
        return ()


def _write_headers(library: Path, work: Path) -> bool:
    """Write the headers that newer compilers carry to a folder; False where there are none."""
    job = {"headers": {}, "headers_folder": str(work / "headers"), "options": [], "targets": []}
    return _run(library, job).returncode == 0 and (work / "headers" / "cuda_fp16.h").is_file()


def needs_host(output: str) -> bool:
    """Return whether NVRTC refused text for what it is, so that nvcc may take it."""
    return _HOST.search(output) is not None


def read_files(scanned: Scan, folders: Sequence[Path]) -> tuple[Path, ...]:
    """Return the files that a text includes, and those that these include.

    NVRTC writes no list of what it read, so the text is followed; whatever conditions say, a file
    that is named counts.
    """
    found: dict[Path, None] = {}
    waiting = [(name, folders) for name in (*scanned.local_includes, *scanned.includes)]
    while waiting:
        name, places = waiting.pop()
        path = next((p / name for p in places if (p / name).is_file()), None)
        if path is None or path in found:
            continue
        found[path] = None
        inner = scan(path.read_text("utf-8", "replace"))
        waiting += [(n, (path.parent, *folders)) for n in inner.local_includes]
        waiting += [(n, folders) for n in inner.includes]
    return tuple(found)
