"""Programs of tensors as graphs: made by tracing, looked at, changed, and run.

See Also
--------
PyTorch's ``torch.fx``, whose names these are.
"""

from __future__ import annotations

from tensorplay.graph.effects import write
from tensorplay.graph.errors import GraphCaptureError, TraceError
from tensorplay.graph.graph import Graph
from tensorplay.graph.graph_module import GraphModule
from tensorplay.graph.interpreter import Interpreter, Transformer
from tensorplay.graph.node import Node, map_arg
from tensorplay.graph.proxy import Proxy
from tensorplay.graph.rewriting import Match, replace_pattern
from tensorplay.graph.tracer import Tracer, symbolic_trace, wrap_function as wrap

__all__ = [
    "Graph",
    "GraphCaptureError",
    "GraphModule",
    "Interpreter",
    "Match",
    "Node",
    "Proxy",
    "TraceError",
    "Tracer",
    "Transformer",
    "map_arg",
    "replace_pattern",
    "symbolic_trace",
    "wrap",
    "write",
]
