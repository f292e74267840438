"""The way to the builder: what reads declarations and C++ lives in the workbench."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

__all__ = ["builder"]


def builder() -> Callable[..., Path]:
    """Return the workbench's function behind `tensorplay.library.build_module`.

    Raises
    ------
    MissingToolError
        The packages that read declarations and C++ are not installed.
    """
    from tensorplay.utils.cpp_jit import MissingToolError

    try:
        # As with `%load_ext tensorplay`: loading what was built needs nothing of the workbench.
        from tpkernel.packaging.operator_modules import build_module
    except ImportError as problem:
        message = (
            f"[build] reading declarations and C++ needs the package {problem.name}, which is not "
            "installed. Write pip install 'tensorplay-workbench[build]'."
        )
        raise MissingToolError(message) from problem
    return build_module
