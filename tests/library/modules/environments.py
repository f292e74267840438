"""Virtual environments made offline: chosen distributions of this one, linked in."""

from __future__ import annotations

import importlib.metadata
import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from filelock import FileLock
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[3]
BUILD_WHEEL = "import sys, scikit_build_core.build as b; b.build_wheel(sys.argv[1])"

#: What loading a library of operators needs, and what its tests need.
LOADING = ("numpy", "ml_dtypes", "apache-tvm-ffi", "filelock", "platformdirs", "ninja", "pytest")
#: What building a package needs besides.
BUILDING = ("hatchling", "PyYAML", "tree-sitter", "tree-sitter-cpp")


def make_environment(folder: Path, distributions: Iterable[str]) -> Path:
    """Make a virtual environment that has some distributions of this one; return its Python."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    (site,) = folder.glob("lib/python*/site-packages")
    for name in _with_requirements(distributions):
        found = importlib.metadata.distribution(name)
        for top in {file.parts[0] for file in found.files or ()} - {"..", "__pycache__"}:
            target = site / top
            if not target.exists():
                target.symlink_to(Path(str(found.locate_file(top))))
    return folder / "bin" / "python"


def _with_requirements(names: Iterable[str]) -> set[str]:
    waiting, seen = [canonicalize_name(n) for n in names], set()
    while waiting:
        name = waiting.pop()
        if name not in seen:
            seen.add(name)
            for text in importlib.metadata.requires(name) or ():
                needed = Requirement(text)
                if needed.marker is None or needed.marker.evaluate({"extra": ""}):
                    waiting.append(canonicalize_name(needed.name))
    return seen


def project_wheel(cache_folder: Path) -> Path:
    """Return this project's own wheel, which one of the processes that run tests builds."""
    folder = cache_folder.with_name("wheel")
    with FileLock(folder.with_suffix(".lock")):
        if not list(folder.glob("*.whl")):
            subprocess.run([sys.executable, "-c", BUILD_WHEEL, str(folder)], check=True, cwd=ROOT)
    (wheel,) = folder.glob("tensorplay_workbench-*.whl")
    return wheel


def pip(python: Path, *words: str, cwd: Path | None = None) -> None:
    """Run this environment's pip for another Python, without a network."""
    command = [sys.executable, "-m", "pip", "--python", str(python), *words[:1]]
    command += ["--quiet", "--no-index", "--disable-pip-version-check", *words[1:]]
    subprocess.run(command, check=True, cwd=cwd)


def run(python: Path, *words: str, cwd: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a Python that sees nothing of this one."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
    return subprocess.run(
        [str(python), *words],
        check=False,
        capture_output=True,
        text=True,
        cwd=cwd,
        env={**kept, **variables},
    )
