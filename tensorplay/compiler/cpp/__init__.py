"""The backend ``cpp`` of `tensorplay.compile`: fused kernels in readable C++."""

from __future__ import annotations

from tensorplay.compiler.cpp.backend import CompiledGraph, cpp
from tensorplay.compiler.cpp.report import Region, Report

__all__ = ["CompiledGraph", "Region", "Report", "cpp"]
