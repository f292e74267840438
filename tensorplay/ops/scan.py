"""Running sums and products along a dimension."""

from __future__ import annotations

from typing import Any

import numpy as np

from tensorplay import _dtype
from tensorplay._dtype import dtype
from tensorplay._tensor import Spec
from tensorplay.ops.dims import wrap_dim
from tensorplay.ops.elementwise import conj_of
from tensorplay.ops.joining import cat
from tensorplay.ops.primitive import Primitive, Sample, Vjp
from tensorplay.ops.reduction import WIDER, sum_type, working_type

__all__ = ["cumprod", "cumsum"]


# A running sum cannot add in pairs, as a sum does: its error grows with the number of elements,
# and in float32 it stands still at 2**24 ones. So it is kept in the next wider type.
def _accumulator(x: Any, requested: dtype | None) -> Any:
    working = working_type(x, requested)
    return WIDER.get(working, working)


def _running(name: str, doc: str, function: np.ufunc, vjp: Vjp, *, jvp: Any = None) -> Primitive:
    def impl(x: Any, dim: int, requested: dtype | None) -> Any:
        axis = wrap_dim(name, dim, x.ndim)
        result = sum_type(name, _dtype.from_numpy_dtype(x.dtype), requested).numpy
        if not x.ndim:
            return x.astype(result)
        y = function.accumulate(x, axis=axis, dtype=_accumulator(x, requested))
        return y.astype(result, copy=False)

    def rule(x: Spec, dim: int, requested: dtype | None) -> Spec:
        wrap_dim(name, dim, x.ndim)
        return Spec(x.shape, sum_type(name, x.dtype, requested))

    return Primitive(
        f"{name}(Tensor input, int dim, *, ScalarType? dtype=None) -> Tensor",
        doc,
        impl,
        rule=rule,
        vjp={"input": vjp},
        jvp=jvp,
        check_first=False,
        inplace=True,
        out=True,
        samples=lambda make: [
            Sample((make(5), 0), name="vector"),
            Sample((make(2, 5, 2), 1), name="middle"),
            Sample((make(), 0), name="0-d"),
        ],
    )


def _shifted(x: Any, steps: int, dim: int, fill: float) -> Any:
    """Return `x` moved `steps` places to higher indices along `dim`, `fill` in the gap."""
    gap = x.narrow(dim, 0, steps).detach() * 0 + fill
    return cat.apply(([gap, x.narrow(dim, 0, x.shape[dim] - steps)], dim))


def _cumprod_grad(g: Any, s: Any) -> Any:
    """Gradient without a division, so that zeros need no care.

    The result y_i has the derivative (x_1 … x_{k-1}) (x_{k+1} … x_i) for x_k, i ≥ k. The sum over
    i of g_i times the second bracket obeys S_k = g_k + x_{k+1} S_{k+1}, which is solved in log n
    steps by doubling.
    """
    x, dim = s.input, s.dim
    if not x.ndim or not x.shape[dim]:
        return g
    n = x.shape[dim]
    total, factor = g.flip(dim), conj_of(_shifted(x.flip(dim), 1, dim, 0.0))
    steps = 1
    while steps < n:
        total = total + factor * _shifted(total, steps, dim, 0.0)
        factor = factor * _shifted(factor, steps, dim, 0.0)
        steps *= 2
    before = _shifted(x.cumprod(dim), 1, dim, 1.0)
    return conj_of(before) * total.flip(dim)


cumsum = _running(
    "cumsum",
    "Sums of the elements up to each one along `dim`.",
    np.add,
    Vjp(lambda g, s: g.flip(s.dim).cumsum(s.dim).flip(s.dim) if g.ndim else g),
    jvp="linear",
)

cumprod = _running(
    "cumprod",
    "Products of the elements up to each one along `dim`.",
    np.multiply,
    Vjp(_cumprod_grad, "input"),
)
