"""The workbench: ``%%tpkernel`` turns a C++ cell into a checked, differentiable operator.

In a notebook: ``%load_ext tensorplay``, then a cell that starts with ``%%tpkernel``;
``%%tpkernel?`` lists its options. Without a notebook: :func:`build`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

    from tpkernel.building.pipeline import build
    from tpkernel.checks.sweeps import sweep
    from tpkernel.errors import CellError, KernelCrash, StaleKernelError
    from tpkernel.report.report import Report

__all__ = [
    "CellError",
    "KernelCrash",
    "Report",
    "StaleKernelError",
    "build",
    "last_report",
    "load_ipython_extension",
    "sweep",
    "unload_ipython_extension",
]


def load_ipython_extension(shell: InteractiveShell) -> None:
    """Register ``%%tpkernel`` in a shell; loading again changes nothing.

    Parameters
    ----------
    shell
        The shell, as IPython passes it.
    """
    from tpkernel.notebook import magic

    magic.load_ipython_extension(shell)


def unload_ipython_extension(shell: InteractiveShell) -> None:
    """Remove ``%%tpkernel`` from a shell; what cells have bound stays.

    Parameters
    ----------
    shell
        The shell, as IPython passes it.
    """
    from tpkernel.notebook import magic

    magic.unload_ipython_extension(shell)


def last_report() -> Report:
    """Return the report of the last cell that built.

    Returns
    -------
    Report or None
        None where no cell has built.

    Raises
    ------
    RuntimeError
        No cell has been built in this session.
    """
    from tpkernel.notebook import magic

    return magic.last_report()


def __dir__() -> list[str]:
    return sorted(__all__)


# Imported when they are asked for: hatchling loads a module of this package in every build.
_PLACES = {
    "CellError": "errors",
    "KernelCrash": "errors",
    "Report": "report.report",
    "ReportWidget": "report.widget",
    "StaleKernelError": "errors",
    "build": "building.pipeline",
    "sweep": "checks.sweeps",
}


def __getattr__(name: str) -> Any:
    place = _PLACES.get(name)
    if place is None:
        message = f"module 'tpkernel' has no attribute '{name}'"
        raise AttributeError(message)
    found = getattr(importlib.import_module(f"tpkernel.{place}"), name)
    globals()[name] = found
    return found
