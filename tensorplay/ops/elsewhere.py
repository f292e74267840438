"""The few operators that run on tensors of device cuda: arithmetic, by the arrays' own library.

Tensors on a GPU stand for arrays of another library and are there for operators with CUDA kernels.
Gradients have to be summed and formulas multiply them, which every such library does by Python's
operators. What else is asked of these tensors is refused.
"""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any, Final

from tensorplay._dlpack import from_dlpack
from tensorplay._tensor import Tensor

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from tensorplay._tensor import Spec

__all__ = ["flatten", "run_elsewhere"]


_ARITHMETIC: Final[Mapping[str, Callable[..., Any]]] = {
    "add": lambda a, b, alpha: a + b if alpha == 1 else a + b * alpha,
    "sub": lambda a, b, alpha: a - b if alpha == 1 else a - b * alpha,
    "mul": operator.mul,
    "div": lambda a, b, rounding_mode: NotImplemented if rounding_mode else a / b,
    "neg": operator.neg,
    "clone": lambda x: x * 1,  # libraries have many words for a copy, and this one in common
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
        Another tensor lies elsewhere.
    NotImplementedError
        It is none of those that run there.
    """
    places = sorted({str(t.device) for t in flatten(values)}, reverse=True)
    if len(places) > 1:
        message = (
            f"[{name}] expected all tensors on one device, got {' and '.join(places)}. Write "
            "x.detach().cpu() for those on cuda."
        )
        raise ValueError(message)
    made: Any = NotImplemented
    compute = _ARITHMETIC.get(name)
    if compute is not None:
        spec: Spec = specs()
        made = compute(*(v._array.source if isinstance(v, Tensor) else v for v in values))
    if made is NotImplemented:
        message = (
            f"[{name}] no kernel for device cuda: tensors there are for operators with CUDA "
            "kernels, and for + - * /. Write x.detach().cpu(), or an operator of your own."
        )
        raise NotImplementedError(message)
    out = from_dlpack(made)
    if (tuple(out.shape), out.dtype) != (spec.shape, spec.dtype):
        message = (
            f"[{name}] expected a result {spec.dtype!r} of shape {list(spec.shape)}, and the "
            f"arrays' library gave {out.dtype!r} of shape {list(out.shape)}. Give both arguments "
            "one dtype."
        )
        raise TypeError(message)
    return out


def flatten(values: Iterable[Any]) -> Iterator[Tensor]:
    """Yield the tensors among `values` and in their lists."""
    for value in values:
        members = value if isinstance(value, list) else (value,)
        yield from (t for t in members if isinstance(t, Tensor))
