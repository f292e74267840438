"""What the backend did with a graph, as data."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

__all__ = ["Region", "Report"]


@dataclass(frozen=True)
class Region:
    """One step of a compiled graph.

    Parameters
    ----------
    kind
        ``"kernel"``: fused into one kernel; ``"library"``: an operator that runs by itself, as in
        eager execution, because that is as fast (matrix products, views); ``"python"``: one that
        runs by itself because there is no C++ for it.
    nodes
        Names of the graph's nodes.
    operators
        Their operators.
    reason
        Why it is no kernel; empty for one.
    source
        The kernel's C++.
    """

    kind: str
    nodes: tuple[str, ...]
    operators: tuple[str, ...]
    reason: str = ""
    source: str = ""


@dataclass(frozen=True)
class Report:
    """The regions of a graph, in the order in which they run.

    Parameters
    ----------
    regions
        The steps.
    sources
        The translation units that were compiled.
    seconds
        Time of the compiler for them, when they were built.
    cached
        Whether all of them were found in the cache.
    writes
        Inputs that a kernel writes to without a copy.
    code
        The Python that calls the steps.
    """

    regions: tuple[Region, ...]
    sources: tuple[str, ...]
    seconds: float
    cached: bool
    writes: tuple[str, ...]
    code: str

    def to_dict(self) -> dict[str, Any]:
        """Return plain data."""
        return asdict(self)
