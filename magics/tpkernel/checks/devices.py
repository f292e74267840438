"""Checks of operators that run on a GPU: on copies there, or said not to have been run.

The checks compute on main memory. While they run, an operator with a CUDA kernel gets a kernel for
the CPU that copies the arguments to the GPU, launches there, and copies the results back. Without
a GPU nothing stands in for it: what was not run is a finding.
"""

from __future__ import annotations

import contextlib
import importlib.util
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import tensorplay as tp
from tensorplay.library.modules.spec import CellSpec, OperatorSpec
from tensorplay.utils.cpp_jit.cuda import has_gpu
from tpkernel.report.facts import Finding

__all__ = ["NOT_HERE", "not_run", "reachable", "runs_on_gpu", "unreachable"]

#: Code of findings about checks that this machine cannot run; another one may.
NOT_HERE = "not_run_here"


def runs_on_gpu(operator: OperatorSpec) -> bool:
    """Whether an operator's kernel runs on a GPU."""
    return operator.kernel.device == "cuda"


def unreachable(operator: OperatorSpec) -> str:
    """Say why an operator cannot be called here; empty where it can."""
    if not runs_on_gpu(operator):
        return ""
    if not has_gpu():
        return "no GPU here"
    if importlib.util.find_spec("cupy") is None:
        return (
            "CuPy is not installed, which holds the memory of tensors on a GPU. Write pip install "
            "cupy-cuda13x, or cupy-cuda12x for CUDA 12"
        )
    return ""


def not_run(operator: OperatorSpec, checks: Iterable[str], reason: str) -> Iterator[Finding]:
    """Yield a finding per check that is not run."""
    for check in checks:
        yield Finding(check, operator.name, "warning", f"not run: {reason}", code=NOT_HERE)


@contextlib.contextmanager
def reachable(spec: CellSpec, operators: Mapping[str, Any]) -> Iterator[None]:
    """Let operators on a GPU take tensors in main memory, as long as the block runs."""
    changed: list[tuple[Any, Any]] = []
    try:
        for operator in filter(runs_on_gpu, spec.operators):
            kernels = operators[operator.opname].operator_kernels
            changed.append((kernels, kernels.get("cpu")))
            written = [a.is_write for a in operators[operator.opname].schema.arguments]
            kernels.add(("cpu",), _through(kernels.concrete("cuda"), written))
        yield
    finally:
        for kernels, before in changed:
            if before is None:
                kernels.drop("cpu")
            else:
                kernels.add(("cpu",), before)


def _through(kernel: Callable[..., Any], written: list[bool]) -> Callable[..., Any]:
    """Return a kernel for the CPU that runs one of the GPU on copies."""

    def run(*args: Any, **kwargs: Any) -> Any:
        import cupy

        given = [*args, *kwargs.values()]
        there = [
            tp.from_dlpack(cupy.asarray(v.numpy())) if isinstance(v, tp.Tensor) else v
            for v in given
        ]
        result = kernel(*there[: len(args)], **dict(zip(kwargs, there[len(args) :], strict=True)))
        for value, copy, is_written in zip(given, there, written, strict=False):
            if is_written:
                value.copy_(copy.cpu())

        def back(value: Any) -> Any:
            if isinstance(value, (list, tuple)):
                return type(value)(map(back, value))
            if not isinstance(value, tp.Tensor):
                return value
            same = next((v for v, c in zip(given, there, strict=True) if c is value), None)
            return value.cpu() if same is None else same

        return back(result)

    return run
