"""The engine in this process: imported on first use, without torch, with an allocator installed."""

from __future__ import annotations

import functools
import importlib
import sys
import threading
from types import ModuleType

from tensorplay.utils.cpp_jit.toolchain import engine_missing, find_engine

_importing = threading.Lock()


@functools.lru_cache(maxsize=1)
def engine() -> ModuleType:
    """Return the module `tvm_ffi`, ready for kernels that allocate.

    Raises
    ------
    RuntimeError
        It is not installed.
    """
    with _importing:
        module = _import_without_torch()
    from tensorplay.utils.cpp_jit.allocator import install
    from tensorplay.utils.cpp_jit.held import leave_to_the_system

    install(find_engine().library)
    leave_to_the_system()
    return module


def _import_without_torch() -> ModuleType:
    """Import the engine so that it does not import torch on its own.

    It looks for torch at import to convert its tensors faster, which costs a second where torch is
    installed. Where torch is already loaded nothing is hidden.
    """
    if "tvm_ffi" in sys.modules or "torch" in sys.modules:
        hide = False
    else:
        hide = True
        sys.modules["torch"] = None  # type: ignore[assignment]  # as `import` reads it
    try:
        return importlib.import_module("tvm_ffi")
    except ImportError as error:
        raise engine_missing() from error
    finally:
        if hide and sys.modules.get("torch", ...) is None:
            del sys.modules["torch"]


def is_available() -> bool:
    """Return whether the engine that builds and loads kernels can be imported.

    Returns
    -------
    bool
        Whether it can.
    """
    try:
        engine()
    except RuntimeError:
        return False
    return True
