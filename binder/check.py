#!/usr/bin/env python3
"""Do what mybinder.org does with this folder, in a fresh virtual environment instead of Docker.

::

    python3 binder/check.py [FOLDER]

A clone of the last commit is installed from ``binder/requirements.txt`` and ``binder/postBuild``
runs in it, with a home folder of its own. Then all notebooks run once more, and no cell may need
the compiler again. It takes a few minutes, and pip needs the network. Not covered: the image's
operating system, conda, and the versions that the builder installs beforehand. FOLDER holds a
clone that is installed already, as ``.ci/first_steps`` leaves it: ``repository`` with ``.venv``,
and ``home``.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

# Built by notebook 07 from files in a temporary folder, whose names are part of the cache's key.
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


def environment(venv: Path, home: Path) -> dict[str, str]:
    """Return the variables of a bare account, and how pip reaches its index on this machine."""
    home.mkdir(exist_ok=True)
    reached = {
        key: value
        for key, value in os.environ.items()
        if key.startswith("PIP_") or key.lower().endswith("_proxy")
    }
    path = f"{venv / 'bin'}:/usr/local/bin:/usr/bin:/bin"
    return {"HOME": str(home), "PATH": path, "LANG": "C.UTF-8", **reached}


def step(title: str, *command: str | Path, cwd: Path, env: dict[str, str]) -> None:
    """Run a command and say how long it took."""
    begin = time.monotonic()
    subprocess.run([str(c) for c in command], check=True, cwd=cwd, env=env)
    sys.stdout.write(f"== {title}: {time.monotonic() - begin:.0f} s\n")
    sys.stdout.flush()


def install(clone: Path, venv: Path, env: dict[str, str]) -> None:
    """Clone the last commit and install what the builder would."""
    subprocess.run(
        [shutil.which("git") or "git", "clone", "--quiet", str(ROOT), str(clone)], check=True
    )
    subprocess.run([sys.executable, "-m", "venv", str(venv)], check=True)
    pip = [venv / "bin" / "pip", "install", "--quiet", "-r", "binder/requirements.txt"]
    step("install", *pip, cwd=clone, env=env)


def build(clone: Path, venv: Path, env: dict[str, str]) -> None:
    """Run the hook, then all notebooks once more, in which nothing may be compiled."""
    step("pip check", venv / "bin" / "pip", "check", cwd=clone, env=env)
    step("postBuild", clone / "binder" / "postBuild", cwd=clone, env=env)
    cache = Path(env["HOME"]) / ".cache" / "tensorplay" / "build" / "entries"
    built = {entry.name for entry in cache.iterdir()}
    again = [venv / "bin" / "jupyter", "execute"]
    with ThreadPoolExecutor(2) as pool:  # the machines of the continuous integration have two cores
        runs = [
            pool.submit(step, f"{path.stem} from the cache", *again, path, cwd=clone, env=env)
            for path in sorted((clone / "notebooks").glob("*.ipynb"))
        ]
    for run in runs:
        run.result()
    new = {e.name for e in cache.iterdir() if not e.name.startswith(BUILT_EACH_TIME)} - built
    if new:
        fail(f"cells were compiled again: {', '.join(sorted(new))}")
    sys.stdout.write(f"binder is fine: {len(built)} libraries in the cache\n")


def main(arguments: list[str]) -> None:
    """Run all steps, in a folder of its own or in the one that is given."""
    check_files(ROOT / "binder")
    if arguments:
        folder = Path(arguments[0]).resolve()
        clone = folder / "repository"
        build(clone, clone / ".venv", environment(clone / ".venv", folder / "home"))
        return
    with tempfile.TemporaryDirectory(prefix="tensorplay-binder-") as name:
        folder = Path(name)
        clone, venv = folder / "repository", folder / "venv"
        env = environment(venv, folder / "home")
        install(clone, venv, env)
        build(clone, venv, env)


if __name__ == "__main__":
    main(sys.argv[1:])
