"""ROCm: where it is, what to build for, and what its compiler says.

The counterpart of `cuda` for ``backend="hip"``. Code for AMD's GPUs runs on the named ones only, so
without a GPU to ask several common ones are built for.
"""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tensorplay.utils.cpp_jit import cuda, toolchain
from tensorplay.utils.cpp_jit.errors import MissingToolError

_USUAL = "/opt/rocm/bin/hipcc"
_ARCHITECTURES = "TVM_FFI_ROCM_ARCH_LIST"
#: MI200, MI300, and the desktop GPUs of two generations.
_DEFAULT = ("gfx90a", "gfx942", "gfx1030", "gfx1100")
_REMARK = "[-Rpass-analysis=kernel-resource-usage]"
_FACT = re.compile(r"remark:\s+(?P<what>[\w ]+?)(?: \[[\w/]+\])?: (?P<value>\S+)")
_FACTS = {
    "VGPRs": "registers",
    "LDS Size": "shared",
    "ScratchSize": "stack",
    "VGPRs Spill": "spill_stores",
}


def find_hipcc() -> toolchain.Compiler:
    """Return the HIP compiler of ``ROCM_HOME``, of PATH or of the usual folder.

    Raises
    ------
    MissingToolError
        There is none.
    """
    places = [str(Path(home, "bin", "hipcc")) for home in _homes()]
    found = next((place for place in places if os.access(place, os.X_OK)), None)
    found = found or shutil.which("hipcc")
    if found is None and os.access(_USUAL, os.X_OK):
        found = _USUAL
    if found is None:
        looked = ", ".join([*places, "hipcc on PATH", _USUAL])
        raise MissingToolError(
            f"no HIP compiler: looked for {looked}.\nInstall one and run the cell again:\n"
            "  apt:   sudo apt-get install hipcc libamdhip64-dev\n"
            "  pip, conda: neither has it; AMD's packages are at https://rocm.docs.amd.com\n"
            "or set ROCM_HOME to ROCm's folder."
        )
    return toolchain.compiler_of((found,))


def _homes() -> list[str]:
    homes = (os.environ.get(name, "") for name in ("ROCM_HOME", "ROCM_PATH"))
    return [home for home in homes if home]


def find_rocm() -> cuda.Toolkit:
    """Return ROCm, as the compiler's own configuration program describes it.

    Raises
    ------
    MissingToolError
        There is no HIP compiler.
    """
    return _rocm(find_hipcc())


@functools.lru_cache(maxsize=4)
def _rocm(compiler: toolchain.Compiler) -> cuda.Toolkit:
    program = Path(compiler.command[0])
    config = program.with_name("hipconfig")
    root = next(iter(_homes()), "")
    if not root and os.access(config, os.X_OK):
        root = _said((str(config), "--rocmpath"))
    if not root:
        real = Path(os.path.realpath(program)).parents[1]
        root = str(real.parent if real.name == "hip" else real)
    with tempfile.TemporaryDirectory() as folder:
        asked = toolchain.run(compiler, ("--version",), Path(folder)).output
    version = re.search(r"HIP version: (\d+\.\d+)", asked)
    libraries = (Path(root, name) for name in ("lib", "lib64", "lib/x86_64-linux-gnu"))
    return cuda.Toolkit(
        compiler,
        Path(root),
        version[1] if version else "unknown version",
        (str(Path(root, "include")),),
        tuple(str(path) for path in libraries if path.is_dir()),
    )


def _said(command: Sequence[str]) -> str:
    """Return what a program writes, or nothing where it fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def target() -> cuda.Target:
    """Return what to build for.

    Raises
    ------
    ValueError
        ``TVM_FFI_ROCM_ARCH_LIST`` does not hold architectures such as ``gfx90a``.
    """
    asked = os.environ.get(_ARCHITECTURES, "").split()
    if bad := [text for text in asked if not re.fullmatch(r"gfx[0-9a-f-]+[\w:+-]*", text)]:
        raise ValueError(
            f"[cpp_jit] {_ARCHITECTURES}: expected architectures such as gfx90a gfx942, "
            f"got {bad[0]!r}. Write them as amdgpu-arch prints them, or unset the variable."
        )
    if asked:
        names, reason = tuple(asked), f"{_ARCHITECTURES} asks for it"
    elif present := _present():
        names, reason = present, "the GPU in this machine"
    else:
        names, reason = _DEFAULT, f"no GPU to ask; set {_ARCHITECTURES} for others"
    names = tuple(dict.fromkeys(names))
    return cuda.Target(tuple(f"--offload-arch={name}" for name in names), names, reason)


@functools.lru_cache(maxsize=1)
def _present() -> tuple[str, ...]:
    """Return the architectures of the GPUs in this machine; gfx000 is the processor."""
    program = shutil.which("rocm_agent_enumerator") or next(
        (
            str(path)
            for home in (*_homes(), str(Path(_USUAL).parents[1]))
            if os.access(path := Path(home, "bin", "rocm_agent_enumerator"), os.X_OK)
        ),
        None,
    )
    found = re.findall(r"^gfx\w+$", _said((program,)) if program else "", re.MULTILINE)
    return tuple(dict.fromkeys(name for name in found if name != "gfx000"))


def run_hipcc(rocm: cuda.Toolkit, arguments: Sequence[str], work: Path) -> toolchain.ToolResult:
    """Run hipcc, which is compiler of both sides and needs no other."""
    return toolchain.run(rocm.compiler, arguments, work)


def kernels(output: str) -> list[dict[str, Any]]:
    """Return what the compiler's remarks say of each kernel and architecture.

    Returns
    -------
    list of dict
        ``name``, ``target`` (empty: the remarks do not say it), ``registers`` (vector registers),
        and in bytes ``shared``, ``stack`` and ``spill_stores`` (of the vector registers).
    """
    found: list[dict[str, Any]] = []
    for line in output.splitlines():
        if _REMARK not in line or (fact := _FACT.search(line)) is None:
            continue
        if fact["what"] == "Function Name":
            found.append({"name": cuda.demangled(fact["value"]), "target": ""})
        elif found and fact["what"] in _FACTS:
            size = 4 if fact["what"] == "VGPRs Spill" else 1  # a register has four bytes
            found[-1][_FACTS[fact["what"]]] = size * int(fact["value"])
    return found
