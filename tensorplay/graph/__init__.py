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

__all__ = [
    "Graph",
    "GraphCaptureError",
    "GraphModule",
    "Interpreter",
    "Node",
    "TraceError",
    "Transformer",
    "map_arg",
    "write",
]
