"""What is raised where code cannot become a graph, or a graph is not one."""

from __future__ import annotations

__all__ = ["GraphCaptureError", "TraceError"]


class GraphCaptureError(RuntimeError):
    """Code has no graph, or a change would leave a graph that cannot run.

    The message names the construct and, where there is one, the line of the source.
    """


class TraceError(GraphCaptureError):
    """Python asked a value for something that is known only when the graph runs."""
