"""The two device compilers behind one interface: nvcc for CUDA, hipcc for HIP."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tensorplay.utils.cpp_jit import cuda, hip, nvrtc, toolchain
from tensorplay.utils.cpp_jit.errors import MissingToolError
from tensorplay.utils.cpp_jit.resources import jobs

#: Suffixes of files that a device compiler takes.
SUFFIXES = frozenset({".cu", ".hip"})


@dataclass(frozen=True)
class Backend:
    """A device compiler: how it is found and called, and what its libraries are linked with.

    Parameters
    ----------
    name
        As the engine names it: ``"cuda"`` or ``"hip"``.
    route
        Name of the program.
    find, toolkit, target
        Return the compiler, the folders around it, and what to build for.
    run
        Runs it in a folder.
    kernels
        Returns what its output says of each kernel.
    flags
        For code that goes into a shared library, and for a report on each kernel.
    language
        Flags before a file whose suffix does not say what it is.
    libraries
        Linked in.
    watched
        Linker flags by which launches are looked at; see ``cuda_export.h``.
    """

    name: str
    route: str
    find: Callable[[], toolchain.Compiler]
    toolkit: Callable[[], cuda.Toolkit]
    target: Callable[[], cuda.Target]
    run: Callable[[cuda.Toolkit, Sequence[str], Path], toolchain.ToolResult]
    kernels: Callable[[str], list[dict[str, Any]]]
    flags: tuple[str, ...]
    language: tuple[str, ...]
    libraries: tuple[str, ...]
    watched: tuple[str, ...]

    def link_flags(self, toolkit: cuda.Toolkit) -> tuple[str, ...]:
        """Return what finds and names the run time; a shared one is found again at loading."""
        folders = toolkit.library_paths
        if not folders:  # host code without a toolkit, which calls nothing of it
            return ("-ldl",)
        again = tuple(f"-Wl,-rpath,{path}" for path in folders) if self.name == "hip" else ()
        return (*(f"-L{path}" for path in folders), *again, *self.libraries)

    def compile_flags(self, target: cuda.Target) -> tuple[str, ...]:
        """Return the flags of a compilation before the caller's own."""
        several = len(target.flags) > 1 and self.name == "cuda"
        threads = ("--threads", str(jobs(len(target.flags)))) if several else ()
        return ("-std=c++17", "-O2", *self.flags, *target.flags, *threads)


#: The run time is linked in, so that a library can be loaded, and can say what it lacks, without
#: the toolkit.
CUDA = Backend(
    name="cuda",
    route="nvcc",
    find=cuda.find_nvcc,
    toolkit=cuda.find_toolkit,
    target=cuda.target,
    run=cuda.run_nvcc,
    kernels=cuda.kernels,
    flags=("-Xcompiler=-fPIC", "-Xptxas=-v"),
    language=("-x", "cu"),
    libraries=("-lcudart_static", "-ldl", "-lrt", "-lpthread"),
    watched=("-Wl,--wrap=__cudaLaunchKernel", "-Wl,--wrap=cudaLaunchKernel"),
)
HIP = Backend(
    name="hip",
    route="hipcc",
    find=hip.find_hipcc,
    toolkit=hip.find_rocm,
    target=hip.target,
    run=hip.run_hipcc,
    kernels=hip.kernels,
    flags=(
        "-fPIC",
        "-D__HIP_PLATFORM_AMD__=1",
        "-fno-gpu-rdc",
        "-Rpass-analysis=kernel-resource-usage",
    ),
    language=("-x", "hip"),
    libraries=("-lamdhip64",),
    watched=("-Wl,--wrap=hipLaunchKernel", "-Wl,--wrap=__hipPushCallConfiguration"),
)


def resolve(name: str, backend: str | None) -> Backend:
    """Return the backend that a library asks for; without a wish the one that is installed.

    Raises
    ------
    ValueError
        It is neither ``"cuda"`` nor ``"hip"``.
    """
    if backend == "hip":
        return HIP
    if backend == "cuda":
        return CUDA
    if backend is not None:
        raise ValueError(
            f"[cpp_jit] library {name!r}: expected backend 'cuda' or 'hip', got {backend!r}. "
            "Leave it out to take the one that is installed."
        )
    if _finds(cuda.find_nvcc) or nvrtc.find_nvrtc() is not None or not _finds(hip.find_hipcc):
        return CUDA
    return HIP


def _finds(find: Callable[[], toolchain.Compiler]) -> bool:
    try:
        find()
    except MissingToolError:
        return False
    return True
