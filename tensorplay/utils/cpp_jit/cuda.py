"""The CUDA toolkit: where it is, what to build for, and what its tools say.

The toolkit's folder is asked from the compiler, because the program on PATH may be a script or a
link somewhere else. The architecture is that of the GPU in this machine; without one, a stated
default with PTX, which newer GPUs translate for themselves.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tensorplay.utils.cpp_jit import toolchain
from tensorplay.utils.cpp_jit.errors import BuildError, MissingToolError

#: The oldest architecture that every current toolkit builds for; its PTX runs on all later ones.
_DEFAULT = ("7.5",)
_USUAL = "/usr/local/cuda/bin/nvcc"
_ARCHITECTURES = "TVM_FFI_CUDA_ARCH_LIST"
_REFUSED = re.compile(r"unsupported (?:GNU|clang) version|host compiler.*not supported")
_HOSTS = (
    "g++",
    *(f"g++-{n}" for n in range(15, 8, -1)),
    *(f"clang++-{n}" for n in range(20, 9, -1)),
)


@dataclass(frozen=True)
class Toolkit:
    """A CUDA compiler and the folders that it named itself."""

    compiler: toolchain.Compiler
    root: Path
    version: str
    include_paths: tuple[str, ...]
    library_paths: tuple[str, ...]


@dataclass(frozen=True)
class Target:
    """What is built for: flags, words for a person, and where it comes from."""

    flags: tuple[str, ...]
    architectures: tuple[str, ...]
    reason: str

    @property
    def text(self) -> str:
        """Return the architectures in words."""
        return f"{', '.join(self.architectures)} ({self.reason})"


def package_folders() -> tuple[Path, ...]:
    """Return the folders of NVIDIA's Python packages."""
    try:
        spec = importlib.util.find_spec("nvidia")
    except (ImportError, ValueError):
        return ()
    return tuple(map(Path, (spec and spec.submodule_search_locations) or ()))


def toolkit_roots() -> tuple[Path, ...]:
    """Return folders that may be a toolkit's, found without starting its compiler."""
    homes = [os.environ.get(name, "") for name in ("CUDA_HOME", "CUDA_PATH")]
    roots = [Path(home) for home in homes if home]
    if on_path := shutil.which("nvcc"):
        roots.append(Path(os.path.realpath(on_path)).parents[1])
    return tuple(dict.fromkeys((*roots, Path(_USUAL).parents[1])))


def find_nvcc() -> toolchain.Compiler:
    """Return the CUDA compiler of ``CUDA_HOME``, PATH, the usual folder or the Python packages.

    Raises
    ------
    MissingToolError
        There is none.
    """
    homes = [os.environ.get(name, "") for name in ("CUDA_HOME", "CUDA_PATH")]
    places = [str(Path(home, "bin", "nvcc")) for home in homes if home]
    found = next((place for place in places if os.access(place, os.X_OK)), None)
    found = found or shutil.which("nvcc")
    packaged = [
        str(path) for folder in package_folders() for path in sorted(folder.glob("cu*/bin/nvcc"))
    ]
    for place in (_USUAL, *reversed(packaged)):
        if found is None and os.access(place, os.X_OK):
            found = place
    if found is None:
        looked = [*places, "nvcc on PATH", _USUAL, "the Python package nvidia-cuda-nvcc"]
        raise MissingToolError(
            f"no CUDA compiler: looked for {', '.join(looked)}.\n"
            "Install one and run the cell again:\n"
            "  pip:   pip install nvidia-cuda-nvcc nvidia-cuda-runtime nvidia-cuda-cccl\n"
            "  conda: conda install -c nvidia cuda-nvcc cuda-cudart-dev\n"
            "  apt:   sudo apt-get install nvidia-cuda-toolkit\n"
            "or set CUDA_HOME to the toolkit's folder."
        )
    return toolchain.compiler_of((found,))


def find_toolkit() -> Toolkit:
    """Return the toolkit, as its own compiler describes it.

    Raises
    ------
    MissingToolError
        There is none, or it does not answer.
    """
    return _toolkit(find_nvcc())


@functools.lru_cache(maxsize=4)
def _toolkit(compiler: toolchain.Compiler) -> Toolkit:
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        (work / "probe.cu").write_text("", "utf-8")
        asked = toolchain.run(compiler, ("--dryrun", "-c", "probe.cu"), work)
    said = dict(re.findall(r"^#\$ (\w+)=(.*)$", asked.output, re.MULTILINE))
    if "TOP" not in said:
        raise MissingToolError(
            f"{compiler.command[0]} does not say where its toolkit is; set CUDA_HOME. "
            f"Its answer: {asked.output.strip()[:200]}"
        )
    version = re.search(r"-D__CUDACC_VER_MAJOR__=(\d+).*-D__CUDACC_VER_MINOR__=(\d+)", asked.output)

    def folders(variable: str, flag: str) -> tuple[str, ...]:
        words = shlex.split(said.get(variable, ""))
        paths = [word[len(flag) :] for word in words if word.startswith(flag)]
        return tuple(os.path.realpath(path) for path in paths if path)

    # Since 13 the headers that the others include lie in a folder of their own.
    words = shlex.split(said.get("SYSTEM_INCLUDES", ""))
    system_folders = tuple(os.path.realpath(w) for w in words if w and not w.startswith("-"))
    return Toolkit(
        compiler,
        Path(os.path.realpath(said["TOP"])),
        ".".join(version.groups()) if version else "unknown version",
        (*folders("INCLUDES", "-I"), *system_folders),
        folders("LIBRARIES", "-L"),
    )


def host_toolkit() -> Toolkit:
    """Return headers and libraries for host code alone, which needs no CUDA compiler.

    Those of nvcc's toolkit, else those of the Python package ``nvidia-cuda-runtime``; without
    either, a toolkit without folders.
    """
    try:
        return find_toolkit()
    except MissingToolError:
        nothing = toolchain.Compiler((), "")
    for folder in package_folders():
        for header in sorted(folder.glob("cu*/include/cuda_runtime.h"), reverse=True):
            root = header.parents[1]
            version = re.search(r"\d+", root.name)
            found = version[0] if version else "unknown version"
            return Toolkit(nothing, root, found, (str(header.parent),), (str(root / "lib"),))
    return Toolkit(nothing, Path(), "none", (), ())


def lacks_headers(output: str) -> str | None:
    """Return the CUDA header that a compiler did not find, or None."""
    found = re.search(r"(cu\w+\.h)[>'\"]?:? (?:No such file|file not found)", output)
    return found[1] if found else None


def target() -> Target:
    """Return what to build for.

    Raises
    ------
    ValueError
        ``TVM_FFI_CUDA_ARCH_LIST`` does not hold architectures such as ``9.0``.
    """
    if os.environ.get(_ARCHITECTURES, "").strip():
        reason = f"{_ARCHITECTURES} asks for it"
    elif _present():
        reason = "the GPU in this machine"
    else:
        reason = f"no GPU to ask; newer ones run it too; set {_ARCHITECTURES} for another"
    return _target(numbers(), reason)


def numbers() -> tuple[str, ...]:
    """Return the architectures to build for, such as ``9.0``; see `target`."""
    variable = os.environ.get(_ARCHITECTURES, "").split()
    if bad := [text for text in variable if not re.fullmatch(r"\d+\.\d+[af]?", text)]:
        raise ValueError(
            f"[cpp_jit] {_ARCHITECTURES}: expected architectures such as 8.0 9.0a, "
            f"got {bad[0]!r}. Write compute capabilities, or unset the variable."
        )
    return tuple(variable) or _present() or _DEFAULT


def _target(numbers: Sequence[str], reason: str) -> Target:
    names = [number.replace(".", "") for number in dict.fromkeys(numbers)]
    flags = [f"-gencode=arch=compute_{name},code=sm_{name}" for name in names]
    # PTX of the newest, except for an architecture whose code runs on no other.
    newest = max(names, key=lambda name: int(name.rstrip("af")))
    architectures = [f"sm_{name}" for name in names]
    if newest.isdigit():
        flags.append(f"-gencode=arch=compute_{newest},code=compute_{newest}")
        architectures.append(f"compute_{newest}")
    return Target(tuple(flags), tuple(architectures), reason)


#: Files that are there where a driver is, also in containers that have no nvidia-smi.
_DEVICE_FILES = ("/dev/nvidiactl", "/dev/dxg")
#: Asks the driver, in a process of its own: one that has initialised it cannot fork any more.
_ASK_DRIVER = """
import ctypes
cuda = ctypes.CDLL("libcuda.so.1")
count, value = ctypes.c_int(), ctypes.c_int()
if cuda.cuInit(0) == 0 and cuda.cuDeviceGetCount(ctypes.byref(count)) == 0:
    for device in range(count.value):
        numbers = []
        for attribute in (75, 76):  # the capability's major and minor number
            cuda.cuDeviceGetAttribute(ctypes.byref(value), attribute, device)
            numbers.append(str(value.value))
        print(".".join(numbers))
"""


@functools.lru_cache(maxsize=1)
def _present() -> tuple[str, ...]:
    """Return the architectures of the GPUs in this machine, as its driver names them."""
    command: tuple[str, ...] = ()
    if program := shutil.which("nvidia-smi"):
        command = (program, "--query-gpu=compute_cap", "--format=csv,noheader")
    elif any(Path(file).exists() for file in _DEVICE_FILES):
        command = (sys.executable, "-I", "-c", _ASK_DRIVER)
    if not command:
        return ()
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return ()
    found = re.findall(r"^\d+\.\d+$", done.stdout, re.MULTILINE)
    return tuple(dict.fromkeys(found)) if done.returncode == 0 else ()


def has_gpu() -> bool:
    """Return whether a GPU that CUDA can use is in this machine, as its driver says."""
    return bool(_present())


def run_nvcc(toolkit: Toolkit, arguments: Sequence[str], work: Path) -> toolchain.ToolResult:
    """Run nvcc with a host compiler that it accepts.

    Raises
    ------
    BuildError
        It does not know an architecture.
    MissingToolError
        It refuses every one that is installed.
    """
    tried: list[str] = []
    refused = ""
    for host in _hosts(toolkit):
        done = toolchain.run(toolkit.compiler, ("-ccbin", host, *arguments), work)
        if unknown := _UNKNOWN_ARCHITECTURE.search(done.output) if done.returncode else None:
            message = (
                f"CUDA {toolkit.version} does not build for {unknown[1]}, which is that of the GPU "
                f"here, or listed by {_ARCHITECTURES}. Set the variable to what nvcc "
                f"--list-gpu-arch prints, such as {_ARCHITECTURES}='8.0 9.0'"
            )
            raise BuildError(message, log=done.output, commands=(done.command,))
        if done.returncode == 0 or not _REFUSED.search(done.output):
            _accepted[toolkit.root] = host
            return done
        tried.append(host)
        refused = done.output
    said = next((line for line in refused.splitlines() if _REFUSED.search(line)), "")
    raise MissingToolError(
        f"CUDA {toolkit.version} accepts none of these host compilers: {', '.join(tried)}. "
        f"{said.strip()} Install an older g++ (such as: sudo apt-get install g++-12)."
    )


_UNKNOWN_ARCHITECTURE = re.compile(r"Unsupported gpu architecture '(\w+)'")
_accepted: dict[Path, str] = {}


def _hosts(toolkit: Toolkit) -> list[str]:
    """Return host compilers to try: the one that builds the C++ sources, then the newest first."""
    hosts = []
    if toolkit.root in _accepted:
        hosts.append(_accepted[toolkit.root])
    own = toolchain.find_compiler().command
    if len(own) == 1:
        hosts.append(own[0])
    hosts += [path for name in _HOSTS if (path := shutil.which(name))]
    return list(dict.fromkeys(hosts))


_ENTRY = re.compile(r"Compiling entry function '(?P<name>[^']+)' for '(?P<target>\w+)'")
_SPILLS = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_USED = re.compile(r"Used (?P<registers>\d+) registers(?P<rest>.*)")


def kernels(output: str) -> list[dict[str, Any]]:
    """Return what ``-Xptxas -v`` says of each kernel and architecture.

    Returns
    -------
    list of dict
        ``name``, ``target``, ``registers``, and in bytes ``shared``, ``stack``, ``spill_stores``
        and ``spill_loads``.
    """
    found: list[dict[str, Any]] = []
    for line in output.splitlines():
        if entry := _ENTRY.search(line):
            found.append({"name": demangled(entry["name"]), "target": entry["target"]})
        elif not found:
            continue
        elif spills := _SPILLS.search(line):
            stack, stores, loads = map(int, spills.groups())
            found[-1] |= {"stack": stack, "spill_stores": stores, "spill_loads": loads}
        elif used := _USED.search(line):
            shared = re.search(r"(\d+)(?:\+\d+)? bytes smem", used["rest"])
            found[-1] |= {
                "registers": int(used["registers"]),
                "shared": int(shared[1]) if shared else 0,
            }
    return found


def demangled(symbol: str) -> str:
    """Return a C++ symbol as it was written, or unchanged where nothing can say."""
    try:
        library = ctypes.CDLL("libstdc++.so.6")
    except OSError:
        return symbol
    demangle = library.__cxa_demangle
    demangle.restype = ctypes.c_void_p
    demangle.argtypes = [ctypes.c_char_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p]
    address = demangle(symbol.encode(), None, None, None)
    if not address:
        return symbol
    text = ctypes.string_at(address).decode("utf-8", "replace")
    free = ctypes.CDLL(None).free
    free.argtypes = [ctypes.c_void_p]
    free(address)
    return text


def embedded(cubins: Mapping[str, bytes], work: Path) -> str:
    """Write binaries to a folder and return assembly in C++ that embeds them.

    The engine's ``TVM_FFI_EMBED_CUBIN(name)`` finds them by their symbols.

    Raises
    ------
    ValueError
        A name is no identifier, or a binary is empty.
    """
    lines = []
    for name, content in cubins.items():
        if not name.isidentifier() or not name.isascii():
            raise ValueError(f"[cpp_jit] embed_cubin: {name!r} is not a C identifier")
        if not content:
            raise ValueError(f"[cpp_jit] embed_cubin: the binary {name!r} is empty")
        (work / f"{name}.cubin").write_bytes(content)
        lines.append(incbin(f"__tvm_ffi__cubin_{name}", f"{name}.cubin"))
    return "\n".join(lines) + "\n"


def incbin(symbol: str, file: str) -> str:
    """Return assembly in C++ that embeds a file between ``symbol`` and ``symbol_end``."""
    return (
        f'asm(".pushsection .rodata\\n.balign 64\\n'
        f".globl {symbol}\\n.hidden {symbol}\\n{symbol}:\\n"
        f'.incbin \\"{file}\\"\\n'
        f".globl {symbol}_end\\n.hidden {symbol}_end\\n{symbol}_end:\\n"
        f'.byte 0\\n.popsection\\n");'
    )
