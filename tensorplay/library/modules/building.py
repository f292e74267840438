"""The way to the builder: what reads declarations and C++ lives in the workbench."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

__all__ = ["build"]


def build(
    declarations: str | os.PathLike[str] | None,
    sources: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    *,
    output: str | os.PathLike[str],
    flags: str | Sequence[str] = (),
    contiguous: str = "error",
    allow_alias: bool = False,
    debug: bool = False,
) -> Path:
    """Build a library of operators; `tensorplay.library.build_module` says how."""
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
    return build_module(
        declarations,
        sources,
        output=output,
        flags=flags,
        contiguous=contiguous,
        allow_alias=allow_alias,
        debug=debug,
    )
