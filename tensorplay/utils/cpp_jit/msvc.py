"""Microsoft's compiler: where it is, the environment that it needs, and what it writes.

It is usually not on PATH, and does not run without the variables that a script of Visual Studio
sets. Both are asked from Visual Studio itself. What cl and link write is in the language and the
code page of the system.
"""

from __future__ import annotations

import functools
import json
import os
import platform
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path, PureWindowsPath

__all__ = [
    "architecture",
    "decoded",
    "environment",
    "find_cl",
    "is_cl",
    "parse_environment",
    "parse_source_dependencies",
    "script_command",
    "vswhere_command",
]

_COMPONENT = "Microsoft.VisualStudio.Component.VC.Tools.x86.x64"
_VARIABLES = frozenset({"INCLUDE", "LIB", "LIBPATH", "PATH", "VCTOOLSINSTALLDIR", "WINDOWSSDKDIR"})


def architecture(machine: str) -> str:
    """Return Visual Studio's name of a machine, such as ``x64`` for ``AMD64``."""
    return {"amd64": "x64", "x86_64": "x64", "arm64": "arm64", "aarch64": "arm64"}.get(
        machine.lower(), "x86"
    )


def vswhere_command(variables: Mapping[str, str]) -> tuple[str, ...]:
    """Return the command that prints the folder of the newest Visual Studio or its build tools."""
    root = variables.get("ProgramFiles(x86)") or r"C:\Program Files (x86)"
    program = PureWindowsPath(root, "Microsoft Visual Studio", "Installer", "vswhere.exe")
    return (
        str(program),
        *("-latest", "-products", "*", "-requires", _COMPONENT),
        *("-property", "installationPath", "-utf8"),
    )


def script_command(installation: str, target: str) -> str:
    """Return the command line that prints the variables of a prepared environment.

    One text, since ``cmd /s`` takes everything between the outer quotes as it stands.
    """
    script = PureWindowsPath(installation, "VC", "Auxiliary", "Build", "vcvarsall.bat")
    return f'cmd /d /u /s /c ""{script}" {target} >nul && set"'


def parse_environment(output: bytes) -> dict[str, str]:
    """Return the variables that compilers need, from what ``set`` printed (``cmd /u``: UTF-16)."""
    found = {}
    for line in output.decode("utf-16-le", "replace").splitlines():
        name, equals, value = line.partition("=")
        if equals and name.upper() in _VARIABLES:
            found[name.upper()] = value
    return found


def find_cl(installation: Path, target: str) -> Path | None:
    """Return the compiler of an installation: of its default tool set, else of the newest."""
    tools = installation / "VC" / "Tools" / "MSVC"
    file = installation / "VC" / "Auxiliary" / "Build" / "Microsoft.VCToolsVersion.default.txt"
    versions: list[str] = []
    if file.is_file():
        versions.append(file.read_text("utf-8", "replace").strip())
    if tools.is_dir():
        versions += sorted((p.name for p in tools.iterdir()), key=_numbers, reverse=True)
    for version in versions:
        program = tools / version / "bin" / f"Host{target}" / target / "cl.exe"
        if program.is_file():
            return program
    return None


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", version)))


def is_cl(program: str) -> bool:
    """Return whether the name of a program is that of Microsoft's compiler."""
    return PureWindowsPath(program).stem.lower() == "cl"


@functools.lru_cache(maxsize=1)
def installation() -> Path | None:
    """Return the folder of Visual Studio, or None where there is none."""
    if platform.system() != "Windows":
        return None
    try:
        done = subprocess.run(
            vswhere_command(os.environ), capture_output=True, check=False, timeout=30
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    lines = done.stdout.decode("utf-8", "replace").strip().splitlines()
    return Path(lines[0]) if lines else None


def installed() -> Path | None:
    """Return the compiler of the newest Visual Studio, or None where there is none."""
    folder = installation()
    return find_cl(folder, architecture(platform.machine())) if folder else None


@functools.lru_cache(maxsize=1)
def environment() -> dict[str, str]:
    """Return the variables to run cl with: none where they are set already."""
    folder = installation()
    if folder is None or os.environ.get("VCTOOLSINSTALLDIR"):
        return {}
    command = script_command(str(folder), architecture(platform.machine()))
    done = subprocess.run(command, capture_output=True, check=False, timeout=120)
    return parse_environment(done.stdout)


def decoded(output: bytes, platform: str = sys.platform) -> str:
    """Return what a tool wrote as text; what cannot be read is replaced, never refused."""
    try:
        return output.decode("utf-8")
    except UnicodeDecodeError:
        pass
    # Only Windows knows this encoding: the code page of its console, which its tools write in.
    return output.decode("oem" if platform == "win32" else "utf-8", "replace")


def parse_source_dependencies(text: str) -> list[str]:
    """Return the files that ``/sourceDependencies`` lists."""
    data = json.loads(text)["Data"]
    return [data["Source"], *data["Includes"]]
