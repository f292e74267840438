"""The compiled part of the runtime: tensors and calls across the native boundary.

It is built when the package is installed and a C++ compiler is there. Without it everything works
through Python, slower; `tensorplay.show_config` says which it is. `core` is the extension module,
or None, and `reason` says why it is not there.
"""

from __future__ import annotations

import importlib
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["INTERFACE", "CallBase", "core", "reason"]

# What this code expects of the extension: `kInterface` in `src/module.cpp`, raised with it.
INTERFACE: Final = 9


def _load() -> tuple[Any, str]:
    if os.environ.get("TENSORPLAY_NATIVE") == "0":
        return None, "switched off by TENSORPLAY_NATIVE=0"
    try:
        module = importlib.import_module("tensorplay._native._core")
    except ModuleNotFoundError:
        if (Path(__file__).parents[2] / "CMakeLists.txt").is_file():
            return None, (
                "not built: Python found this source folder before an installed package; start it "
                "in another folder, or install with pip install --editable ."
            )
        return None, "not built: no C++ compiler was found when the package was installed"
    except ImportError as error:
        return None, f"built for another interpreter or NumPy: {error}"
    # An editable install keeps an extension that is older than the Python code around it.
    found = getattr(module, "interface", 1)
    if found != INTERFACE:
        age = "older" if found < INTERFACE else "newer"
        return None, (
            f"{age} than the Python code beside it, interface {found} and not {INTERFACE}: install "
            "tensorplay-workbench again, which builds it"
        )
    return module, ""


_found: Final = _load()
core: Final[Any] = _found[0]
reason: Final[str] = _found[1]


class _PythonCallBase:
    """Base of kernels where the extension is not there: every call takes the long way."""

    _call_slowly: Callable[..., Any]

    def _set_plain_call(
        self, function: Any, address: int, count: int, none_is_plain: bool, views: int, /
    ) -> None:
        """Do nothing: there is no short way."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._call_slowly(*args, **kwargs)


CallBase: Final[type[Any]] = _PythonCallBase if core is None else core.CallBase
