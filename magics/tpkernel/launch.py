"""``tpkernel-lab``: JupyterLab on this machine as it is.

It takes the arguments of ``jupyter lab``, looks at what would end a first start, says each in one
line, and then becomes ``jupyter lab``:

- a package that is missing: the command that installs it, and nothing is started;
- folders that Jupyter, IPython and Matplotlib write to, but may not: they go to a fresh one;
- root, as whom Jupyter starts only if asked: it is asked;
- no C++ compiler: the command that installs one, and JupyterLab starts.
"""

from __future__ import annotations

import importlib.util
import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

__all__ = ["main"]

# Modules of the extra `notebook`, one for each of its packages.
_NEEDED = (
    *("jupyterlab", "ipykernel", "IPython", "ipywidgets", "anywidget", "pygments"),
    *("tvm_ffi", "filelock", "platformdirs", "ninja", "yaml", "tree_sitter", "tree_sitter_cpp"),
)
_PIP = (sys.executable, "-m", "pip", "install")


def main(arguments: Sequence[str] | None = None) -> None:
    """Start JupyterLab in place of this process.

    Parameters
    ----------
    arguments
        Those of ``jupyter lab``; None for the command line's.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        install = shlex.join((*_PIP, "tensorplay-workbench[notebook]"))
        sys.exit(f"tpkernel-lab: this Python lacks {', '.join(missing)}. Write {install}")
    _move_folders()
    if _is_root() and "--allow-root" not in given:
        _say("started as root, so Jupyter gets --allow-root.")
        given.append("--allow-root")
    _say_what_compiles()
    command = [sys.executable, "-m", "jupyterlab", *given]
    if sys.platform == "win32":  # there a new program gets a new process, and the shell goes on
        sys.exit(subprocess.call(command))
    sys.stderr.flush()
    os.execv(command[0], command)  # noqa: S606  (there is no shell)


def _say(text: str) -> None:
    sys.stderr.write(f"tpkernel-lab: {text}\n")


def _is_root() -> bool:
    return hasattr(os, "geteuid") and os.geteuid() == 0


def _folders() -> dict[str, Path]:
    """Return the folders that notebooks write to, by the variable that moves each."""
    from jupyter_core import paths

    home = Path.home()
    below = {
        "IPYTHONDIR": home / ".ipython",
        "MPLCONFIGDIR": Path(os.environ.get("XDG_CONFIG_HOME") or home / ".config") / "matplotlib",
        "XDG_CACHE_HOME": home / ".cache",  # builds of cells are there
    }
    return {
        "JUPYTER_CONFIG_DIR": Path(paths.jupyter_config_dir()),
        "JUPYTER_DATA_DIR": Path(paths.jupyter_data_dir()),
        "JUPYTER_RUNTIME_DIR": Path(paths.jupyter_runtime_dir()),
    } | {name: Path(os.environ.get(name) or folder) for name, folder in below.items()}


def _admits_files(folder: Path) -> bool:
    """Try to write where a folder is or would be made: full and read-only disks refuse, too."""
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    try:
        tempfile.TemporaryFile(dir=folder).close()
    except OSError:
        return False
    return True


def _move_folders() -> None:
    closed = {name: folder for name, folder in _folders().items() if not _admits_files(folder)}
    if not closed:
        return
    fresh = Path(tempfile.mkdtemp(prefix="tpkernel-lab-"))
    os.environ.update((name, str(fresh / name.lower())) for name in closed)
    _say(
        f"{next(iter(closed.values()))} cannot be written to, so settings, history and builds go to"
        f" {fresh}. To keep them, set HOME to a folder of yours."
    )


def _say_what_compiles() -> None:
    from tensorplay.utils.cpp_jit import MissingToolError, toolchain

    try:
        toolchain.find_compiler()
    except MissingToolError as problem:
        first, _, system, *_ = str(problem).splitlines()
        _say(
            f"{first.partition(', found')[0]}. JupyterLab starts all the same; for cells of C++ "
            f"write {system.partition(':')[2].strip()}, or {shlex.join(_PIP)} ziglang."
        )


if __name__ == "__main__":
    main()
