"""What this installation consists of."""

from __future__ import annotations

import platform
import sys
from typing import Any

from tensorplay import _native

__all__ = ["show_config"]

_PARTS = ("numpy", "ml_dtypes", "apache-tvm-ffi", "ipython", "anywidget", "jupyterlab")


def show_config(mode: str = "stdout") -> dict[str, Any] | None:
    """Print versions, and whether the compiled part of the runtime is there.

    Parameters
    ----------
    mode
        ``"stdout"`` prints; ``"dicts"`` returns the same as a dictionary.

    Returns
    -------
    dict or None
        What was not printed.

    Raises
    ------
    ValueError
        `mode` is something else.

    See Also
    --------
    tensorplay.utils.cpp_jit.toolchain_report : which compilers cells are built with.
    """
    if mode not in ("stdout", "dicts"):
        message = f"[show_config] argument 'mode': expected 'stdout' or 'dicts', got {mode!r}."
        raise ValueError(message)
    native = "built" if _native.core is not None else f"not there ({_native.reason})"
    found: dict[str, Any] = {
        "tensorplay": _version("tensorplay-workbench"),
        "python": f"{platform.python_version()} ({sys.platform}, {platform.machine()})",
        "native": native,
        **{name: _version(name) for name in _PARTS},
    }
    if mode == "dicts":
        return found
    width = max(map(len, found))
    sys.stdout.writelines(f"{name:<{width}}  {value}\n" for name, value in found.items())
    return None


def _version(name: str) -> str:
    import importlib.metadata  # which the import of the package spares

    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"
