#!/usr/bin/env python3
"""Do what mybinder.org does with this folder, in a fresh virtual environment instead of Docker.

::

    python3 binder/check.py

A clone of the last commit is installed from ``binder/requirements.txt`` and ``binder/postBuild``
runs in it, with a home folder of its own. Then all notebooks run once more, and no cell may need
the compiler again. It takes a few minutes, and pip needs the network. Not covered: the image's
operating system, conda, and the versions that the builder installs beforehand.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

# Built by notebook 06 from files in a temporary folder, whose names are part of the cache's key.
BUILT_EACH_TIME = ("halftone-",)


def words(file: Path) -> list[str]:
    """Return the lines of a file without comments."""
    lines = (line.partition("#")[0].strip() for line in file.read_text().splitlines())
    return [line for line in lines if line]


def check_files(binder: Path) -> None:
    """See that the builder will read the files as they are meant."""
    for name in words(binder / "apt.txt"):
        if shutil.which(name) is None:
            fail(f"apt.txt names {name}, which this machine does not have: apt-get install {name}")
    (version,) = words(binder / "runtime.txt")
    if not version.startswith("python-3."):
        fail(f"runtime.txt: expected python-3.N, got {version}")
    hook = binder / "postBuild"
    if not os.access(hook, os.X_OK) or not hook.read_text().startswith("#!"):
        fail("postBuild: the builder runs it directly, so it needs a #! line and chmod +x")
    if "set -e" not in hook.read_text():
        fail("postBuild: without set -e the image is made in spite of errors")


def fail(message: str) -> None:
    """End the check."""
    sys.exit(f"binder/check.py: {message}")


def main() -> None:
    """Run all steps and say how long they took."""
    check_files(ROOT / "binder")
    with tempfile.TemporaryDirectory(prefix="tensorplay-binder-") as name:
        folder = Path(name)
        clone, venv, home = folder / "repository", folder / "venv", folder / "home"
        home.mkdir()
        environment = {
            "HOME": str(home),
            "PATH": f"{venv / 'bin'}:/usr/local/bin:/usr/bin:/bin",
            "LANG": "C.UTF-8",
        }
        # How pip reaches its index is the machine's affair.
        environment |= {
            key: value
            for key, value in os.environ.items()
            if key.startswith("PIP_") or key.lower().endswith("_proxy")
        }

        def step(title: str, *command: str | Path) -> float:
            begin = time.monotonic()
            subprocess.run([str(c) for c in command], check=True, cwd=clone, env=environment)
            seconds = time.monotonic() - begin
            sys.stdout.write(f"== {title}: {seconds:.0f} s\n")
            sys.stdout.flush()
            return seconds

        clone_command = [shutil.which("git") or "git", "clone", "--quiet", str(ROOT), str(clone)]
        subprocess.run(clone_command, check=True)
        subprocess.run([sys.executable, "-m", "venv", str(venv)], check=True)
        pip = venv / "bin" / "pip"
        step("install", pip, "install", "--quiet", "-r", "binder/requirements.txt")
        step("pip check", pip, "check")
        step("postBuild", clone / "binder" / "postBuild")

        cache = home / ".cache" / "tensorplay" / "build" / "entries"
        built = {entry.name for entry in cache.iterdir()}
        notebooks = sorted((clone / "notebooks").glob("*.ipynb"))
        step("all notebooks from the cache", venv / "bin" / "jupyter", "execute", *notebooks)
        new = {e.name for e in cache.iterdir() if not e.name.startswith(BUILT_EACH_TIME)} - built
        if new:
            fail(f"cells were compiled again: {', '.join(sorted(new))}")
        sys.stdout.write(f"binder is fine: {len(built)} libraries in the cache\n")


if __name__ == "__main__":
    main()
