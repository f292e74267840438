"""``%tpkernel doctor``: each tool of the workbench, tried once.

What is missing is said in one sentence, with the one command that brings it.
"""

from __future__ import annotations

import importlib.metadata
import json
import shutil
from collections.abc import Callable
from pathlib import Path

from tensorplay.utils import cpp_jit
from tensorplay.utils.cpp_jit import ToolchainCheck
from tpkernel.building.sanitizers import sanitizer_environment
from tpkernel.lab import EXTENSION
from tpkernel.worker.process import shared_worker

__all__ = ["examine"]


def examine() -> list[ToolchainCheck]:
    """Try compiler, engine, cache, worker, front end and optional tools; nothing is raised."""
    checks = list(cpp_jit.toolchain_report().checks)
    checks.append(_tried("check worker", _worker, "%tpkernel doctor again, or restart the kernel"))
    checks.append(_tried("C++ reader", _reader, "pip install 'tensorplay-workbench[notebook]'"))
    checks.append(_tried("widgets", _widgets, "pip install anywidget ipywidgets"))
    checks.append(
        _tried("JupyterLab", _lab, "pip install jupyterlab", optional=True),
    )
    checks.append(
        _tried("browser extension", _extension, "pip install --force-reinstall anywidget", True)
    )
    checks.append(_tried("editor extension", _editor, "python -m tpkernel.lab link", optional=True))
    checks.append(
        _tried("--sanitize address", _sanitizer, "apt-get install libasan8", optional=True)
    )
    checks.append(_tried("names of a crash", _addr2line, "apt-get install binutils", optional=True))
    return checks


def _tried(
    name: str, check: Callable[[], str], command: str, optional: bool = False
) -> ToolchainCheck:
    try:
        return ToolchainCheck(name, "ok", check())
    except Exception as problem:  # noqa: BLE001  (whatever keeps a tool from working is the answer)
        text = (str(problem) or type(problem).__name__).splitlines()[0]
        return ToolchainCheck(name, "absent" if optional else "missing", text, command)


def _worker() -> str:
    worker = shared_worker()
    worker.check_start()
    return f"answers, process {worker.pid}"


def _reader() -> str:
    from tpkernel.cpp.functions import parse_source

    names = [f.name for f in parse_source("void f() {}").functions]
    if names != ["f"]:
        message = f"tree-sitter reads {names} in a text that defines f"
        raise RuntimeError(message)
    return f"tree-sitter-cpp {importlib.metadata.version('tree-sitter-cpp')}"


def _widgets() -> str:
    versions = [f"{n} {importlib.metadata.version(n)}" for n in ("anywidget", "ipywidgets")]
    return ", ".join(versions)


def _lab() -> str:
    return f"JupyterLab {importlib.metadata.version('jupyterlab')}"


def _extension() -> str:
    """Find the part of anywidget that runs in the browser."""
    files = importlib.metadata.files("anywidget") or ()
    listed = [f for f in files if "labextensions" in f.parts and f.name == "package.json"]
    found = next((Path(str(f.locate())) for f in listed if Path(str(f.locate())).exists()), None)
    if found is None:
        message = "the browser's part of anywidget is not installed beside it"
        raise RuntimeError(message)
    return str(found.resolve().parent)


def _editor() -> str:
    """Find our part of JupyterLab where a server with this environment looks."""
    from jupyter_core.paths import jupyter_path

    places = [Path(folder, "tpkernel", "package.json") for folder in jupyter_path("labextensions")]
    found = next((place for place in places if place.is_file()), None)
    if found is None:
        message = "C++ has no colours in JupyterLab's cells: the extension is not where it looks"
        raise RuntimeError(message)
    versions = [
        json.loads(file.read_text("utf-8"))["version"] for file in (found, EXTENSION / found.name)
    ]
    if versions[0] != versions[1]:
        message = f"JupyterLab has version {versions[0]}, and this package is {versions[1]}"
        raise RuntimeError(message)
    return str(found.parent)


def _sanitizer() -> str:
    return sanitizer_environment(("address",))["LD_PRELOAD"].split(" ")[0]


def _addr2line() -> str:
    found = shutil.which("addr2line")
    if found is None:
        message = "addr2line is not installed, so a crash is told without its functions"
        raise RuntimeError(message)
    return found
