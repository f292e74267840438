"""The few operators that run on tensors of device cuda: arithmetic and copies, by their library.

Tensors on a GPU stand for arrays of another library and are there for operators with CUDA kernels.
Gradients have to be summed and formulas multiply them, which every such library does by Python's
operators. What else is asked of these tensors is refused.
"""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any, Final

from tensorplay import _dtype
from tensorplay._dlpack import from_dlpack
from tensorplay._tensor import Tensor
from tensorplay.ops.nesting import flatten

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tensorplay._tensor import Spec

__all__ = ["allocator", "run_elsewhere"]


_ADVICE: Final = "Write x.detach().cpu(), or an operator of your own."


def _copied(x: Tensor) -> Any:
    """Return a copy of the array that a tensor stands for; libraries have many words for it."""
    array = x._array.source
    for word in ("copy", "clone"):  # CuPy's and JAX's, PyTorch's
        if hasattr(array, word):
            return getattr(array, word)()
    # What they have in common are operators. Truth values are numbers in a product.
    return array & array if x.dtype is _dtype.bool_ else array * 1


def allocator(name: str, what: str) -> Any:
    """Return CuPy, which makes memory on a GPU where no array's own library does.

    Parameters
    ----------
    name
        Of the operator.
    what
        What is made.

    Raises
    ------
    RuntimeError
        CuPy is not installed.
    """
    try:
        import cupy
    except ImportError:
        message = (
            f"[{name}] {what} on a GPU are allocated by CuPy, which is not installed. "
            "Write pip install cupy-cuda13x, or cupy-cuda12x for CUDA 12."
        )
        raise RuntimeError(message) from None
    return cupy


def _row_major(x: Tensor) -> Any:
    """Return a row-major copy of the array that a tensor stands for."""
    array = x._array.source
    if hasattr(array, "contiguous"):  # PyTorch's word, whose copies keep strides
        return array.contiguous()
    if hasattr(array, "copy"):  # CuPy's and JAX's, which is row-major
        return array.copy()
    cupy = allocator("contiguous", "row-major copies")
    with cupy.cuda.Device(x.device.index):
        return cupy.ascontiguousarray(cupy.from_dlpack(array))


def _add(a: Any, b: Any, alpha: Any) -> Any:
    return a + b if alpha == 1 else a + b * alpha


def _sub(a: Any, b: Any, alpha: Any) -> Any:
    return a - b if alpha == 1 else a - b * alpha


def _div(a: Any, b: Any, rounding_mode: str | None) -> Any:
    return NotImplemented if rounding_mode else a / b


def _on_arrays(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function of tensors that calls one of arrays."""
    return lambda *values: function(
        *(v._array.source if isinstance(v, Tensor) else v for v in values)
    )


_RUNS: Final[Mapping[str, Callable[..., Any]]] = {
    "add": _on_arrays(_add),
    "sub": _on_arrays(_sub),
    "mul": _on_arrays(operator.mul),
    "div": _on_arrays(_div),
    "neg": _on_arrays(operator.neg),
    "clone": _copied,
    "_contiguous": _row_major,
}


def run_elsewhere(name: str, values: list[Any], specs: Callable[[], Any]) -> Any:
    """Return the result of an operator on arguments among which a tensor lies on a GPU.

    Parameters
    ----------
    name
        Of the operator.
    values
        Its arguments.
    specs
        Gives shape and type of the results, and raises the errors about them.

    Raises
    ------
    ValueError
        Another tensor lies elsewhere, or a library's copy is not row-major.
    NotImplementedError
        It is none of those that run there.
    TypeError
        The arrays' library does not compute it, or gives another dtype or shape.
    """
    places = sorted({str(t.device) for t in flatten(values)}, reverse=True)
    if len(places) > 1:
        message = (
            f"[{name}] expected all tensors on one device, got {' and '.join(places)}. Write "
            "x.detach().cpu() for those on cuda."
        )
        raise ValueError(message)
    made: Any = NotImplemented
    compute = _RUNS.get(name)
    if compute is not None:
        spec: Spec = specs()
        try:
            made = compute(*values)
        except TypeError as error:  # so libraries say what they do not compute
            message = f"[{name}] the library of the arrays on cuda refuses: {error}. {_ADVICE}"
            raise TypeError(message) from error
    if made is NotImplemented:
        message = (
            f"[{name}] no kernel for device cuda: tensors there are for operators with CUDA "
            f"kernels, and for + - * /. {_ADVICE}"
        )
        raise NotImplementedError(message)
    out = from_dlpack(made)
    if name == "_contiguous" and not out.is_contiguous():
        message = (
            f"[contiguous] expected a row-major copy, and the library of the arrays on "
            f"{out.device} gave strides {out.stride()} for shape {tuple(out.shape)}. Pass "
            "row-major arrays."
        )
        raise ValueError(message)
    if (tuple(out.shape), out.dtype) != (spec.shape, spec.dtype):
        several = len({t.dtype for t in flatten(values)}) > 1
        message = (
            f"[{name}] expected a result {spec.dtype!r} of shape {list(spec.shape)}, and the "
            f"arrays' library gave {out.dtype!r} of shape {list(out.shape)} on {out.device}. "
            f"{'Give both arguments one dtype.' if several else _ADVICE}"
        )
        raise TypeError(message)
    return out
