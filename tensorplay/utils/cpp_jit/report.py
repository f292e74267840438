"""What this machine has for building kernels, as a table: one check on first use."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tensorplay.utils.cpp_jit import cuda, nvrtc, resources, toolchain
from tensorplay.utils.cpp_jit.build import build_source
from tensorplay.utils.cpp_jit.cache import size
from tensorplay.utils.cpp_jit.compile import Source
from tensorplay.utils.cpp_jit.engine import engine
from tensorplay.utils.cpp_jit.errors import BuildError, MissingToolError
from tensorplay.utils.cpp_jit.store import default_cache

_PROBE = "double check(double x) { return 2 * x; }"
_OPENMP = """
#include <omp.h>
int64_t threads() {
  int64_t count = 0;
#pragma omp parallel reduction(+ : count)
  count += 1;
  return count;
}
"""


@dataclass(frozen=True)
class ToolchainCheck:
    """One line of the table.

    Parameters
    ----------
    name
        What was checked.
    status
        ``"ok"``, ``"missing"`` (kernels cannot be built) or ``"absent"`` (not needed for C++).
    found
        What was found, or what is wrong.
    advice
        What to do about it, or empty.
    """

    name: str
    status: str
    found: str
    advice: str = ""


@dataclass(frozen=True, repr=False)
class ToolchainReport:
    """What this machine has for building kernels; true if C++ kernels can be built and called."""

    checks: tuple[ToolchainCheck, ...]

    def __bool__(self) -> bool:
        return all(check.status != "missing" for check in self.checks)

    def to_dict(self) -> dict[str, Any]:
        """Return the checks as plain data."""
        return {"ok": bool(self), "checks": [asdict(check) for check in self.checks]}

    def __repr__(self) -> str:
        width = max(len(check.name) for check in self.checks)
        lines = []
        for check in self.checks:
            lines.append(f"{check.name:<{width}}  {check.status:<7}  {check.found}")
            lines += [f"{'':<{width + 11}}{line}" for line in check.advice.splitlines()]
        return "\n".join(lines)


def toolchain_report() -> ToolchainReport:
    """Check what kernels need: engine, compiler, a library that is built, loaded and called, cache.

    Nothing is raised for what is missing: the table says it, with the commands that install it.

    Returns
    -------
    ToolchainReport
    """
    checks = [
        _checked("engine", _engine),
        _checked("C++ compiler", _compiler),
        _checked("build and call", _build),
        _checked("OpenMP", _openmp, optional=True),
        _checked("build cache", _cache),
        ToolchainCheck("jobs at once", "ok", str(resources.jobs(64))),
        _checked("CUDA compiler", _nvcc, optional=True),
        _checked("CUDA run-time compiler", _nvrtc, optional=True),
        _checked("GPU", _gpu, optional=True),
    ]
    return ToolchainReport(tuple(checks))


def _checked(name: str, check: Callable[[], str], *, optional: bool = False) -> ToolchainCheck:
    try:
        return ToolchainCheck(name, "ok", check())
    except (MissingToolError, BuildError, RuntimeError, OSError) as error:
        first, _, rest = str(error).partition("\n")
        return ToolchainCheck(name, "absent" if optional else "missing", first, rest)


def _engine() -> str:
    return f"tvm_ffi {engine().__version__}"


def _compiler() -> str:
    compiler = toolchain.find_compiler()
    traits = toolchain.traits(compiler, default_cache().root)
    linker = f", linker {traits.linker}" if traits.linker else ""
    return f"{' '.join(compiler.command)}, {traits.kind} {traits.version}{linker}"


def _build() -> str:
    built = build_source("toolchain_check", Source(_PROBE), exports=["check"])
    answer = built.load().check(21.0)
    if answer != 42.0:
        raise RuntimeError(f"a library was built and loaded but answers {answer}, not 42")
    return f"works ({built.rung} headers, {built.seconds:.2f} s when it was built)"


def _openmp() -> str:
    flags = ["-fopenmp"]
    built = build_source(
        "toolchain_openmp",
        Source(_OPENMP),
        exports=["threads"],
        extra_cflags=flags,
        extra_ldflags=flags,
    )
    return f"{built.load().threads()} threads"


def _cache() -> str:
    root = default_cache().root
    root.mkdir(parents=True, exist_ok=True)
    probe = root / "writable"
    probe.touch()
    probe.unlink()
    free = shutil.disk_usage(root).free
    return f"{root}, {size() / 2**20:.0f} MiB used, {free / 2**30:.1f} GiB free"


def _nvcc() -> str:
    toolkit = cuda.find_toolkit()
    return f"CUDA {toolkit.version} in {toolkit.root}, builds for {cuda.target().text}"


def _nvrtc() -> str:
    library = nvrtc.find_nvrtc()
    if library is None:
        raise MissingToolError("not installed\npip install nvidia-cuda-nvrtc")
    return f"NVRTC {nvrtc.version(library)}, {library}"


def _gpu() -> str:
    program = shutil.which("nvidia-smi")
    if program is None and not Path("/dev/nvidiactl").exists():
        raise MissingToolError("none: CUDA kernels are built here and run elsewhere")
    done = subprocess.run(
        (
            program or "nvidia-smi",
            "--query-gpu=name,compute_cap,driver_version",
            "--format=csv,noheader",
        ),
        capture_output=True,
        text=True,
        check=False,
        timeout=20,
    )
    if done.returncode:
        raise RuntimeError(
            done.stdout.strip() or done.stderr.strip() or "the driver does not answer"
        )
    return done.stdout.strip().replace("\n", "; ")
