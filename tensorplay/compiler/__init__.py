"""Functions on tensors compiled into graphs, and graphs into native code.

`tensorplay.compile` is the entry; this package says what became of a function (`explain`), which
backends there are, and what is left out (`disable`).
"""

from __future__ import annotations

from tensorplay.compiler import config
from tensorplay.compiler.api import (
    allow_in_graph,
    assume_constant_result,
    compile,
    disable,
    explain,
    is_compiling,
    is_exporting,
    reset,
)
from tensorplay.compiler.backends import (
    get_default_backend,
    list_backends,
    lookup_backend,
    register_backend,
    set_default_backend,
    unregister_backend,
)
from tensorplay.compiler.function import CompiledFunction
from tensorplay.compiler.reports import CompileReport, Explanation
from tensorplay.graph.errors import GraphCaptureError

__all__ = [
    "CompileReport",
    "CompiledFunction",
    "Explanation",
    "GraphCaptureError",
    "allow_in_graph",
    "assume_constant_result",
    "compile",
    "config",
    "disable",
    "explain",
    "get_default_backend",
    "is_compiling",
    "is_exporting",
    "list_backends",
    "lookup_backend",
    "register_backend",
    "reset",
    "set_default_backend",
    "unregister_backend",
]
