"""Build and load C++ kernels.

The engine's entry points (`load_inline`, `build_inline`, `load`, `build`, `load_module`,
`system_lib`, `is_available`) with a content-keyed cache, errors at the person's own lines and
compile times of a tenth of a second; and `build_source`, which says everything about a build.
`cpp_jit.cache` lists, measures, explains, limits and clears what was built.

>>> from tensorplay.utils import cpp_jit
>>> m = cpp_jit.load_inline("demo", cpp_sources="int64_t twice(int64_t n) { return 2 * n; }",
...                         functions="twice")
>>> m.twice(21)
42
"""

from __future__ import annotations

from tensorplay.utils.cpp_jit import cache
from tensorplay.utils.cpp_jit.build import Build, build_source
from tensorplay.utils.cpp_jit.compile import Source
from tensorplay.utils.cpp_jit.diagnostics import Diagnostic
from tensorplay.utils.cpp_jit.engine import is_available
from tensorplay.utils.cpp_jit.errors import BuildCacheWarning, BuildError, MissingToolError
from tensorplay.utils.cpp_jit.inline import build, build_inline, load, load_inline
from tensorplay.utils.cpp_jit.load import Kernel, Module, load_module, system_lib
from tensorplay.utils.cpp_jit.nvrtc import Cubin, compile_cubin
from tensorplay.utils.cpp_jit.objects import (
    get_global_func,
    register_error,
    register_global_func,
    register_object,
    remove_global_func,
)
from tensorplay.utils.cpp_jit.report import ToolchainCheck, ToolchainReport, toolchain_report

__all__ = [
    "Build",
    "BuildCacheWarning",
    "BuildError",
    "Cubin",
    "Diagnostic",
    "Kernel",
    "MissingToolError",
    "Module",
    "Source",
    "ToolchainCheck",
    "ToolchainReport",
    "build",
    "build_inline",
    "build_source",
    "cache",
    "compile_cubin",
    "get_global_func",
    "is_available",
    "load",
    "load_inline",
    "load_module",
    "register_error",
    "register_global_func",
    "register_object",
    "remove_global_func",
    "system_lib",
    "toolchain_report",
]
