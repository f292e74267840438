"""Least squares: the solutions of systems that have none, or many."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from tensorplay import _dtype
from tensorplay._tensor import Tensor
from tensorplay.ops.decompositions import svdvals
from tensorplay.ops.linalg import matmul
from tensorplay.ops.primitive import Composite, Sample
from tensorplay.ops.systems import check_matrices, pinv

__all__ = ["LeastSquares"]


class LeastSquares(NamedTuple):
    """The shortest of the X with the least ``norm(A @ X - B)``, and what is known of A."""

    solution: Tensor
    residuals: Tensor
    rank: Tensor
    singular_values: Tensor


def _lstsq(A: Tensor, B: Tensor, rcond: float | None) -> LeastSquares:
    check_matrices("linalg_lstsq", A)
    vector = B.ndim == 1 or (B.ndim + 1 == A.ndim and tuple(B.shape) == tuple(A.shape[:-1]))
    right: Any = B.unsqueeze(-1) if vector else B
    check_matrices("linalg_lstsq", right, "B")
    if A._dtype is not B._dtype:
        raise TypeError(
            "[linalg_lstsq] argument 'B': expected input.dtype and other.dtype to be the same, got "
            f"{A._dtype!r} and {B._dtype!r}. Write B.to(A.dtype)."
        )
    rows, columns = A.shape[-2:]
    if right.shape[-2] != rows:
        raise RuntimeError(
            f"[linalg_lstsq] argument 'B': expected {rows} rows, as A has, got {right.shape[-2]}."
        )
    if rcond is None:
        rcond = float(np.finfo(A._dtype.to_real().numpy).eps) * max(rows, columns)
    X: Any = matmul.apply((pinv.apply((A, rcond, False)), right))
    values: Any = svdvals.apply((A,))
    found = values.detach()
    rank = (
        (found > rcond * found.amax(-1, True)).sum(-1)
        if min(rows, columns)
        else found.sum(-1).long()
    )
    residuals: Any = A.new_zeros((0,), dtype=A._dtype.to_real())
    if rows > columns:
        residuals = (matmul.apply((A, X)) - right).abs().square().sum(-2)
    return LeastSquares(X.squeeze(-1) if vector else X, residuals, rank, values)


lstsq = Composite(
    "linalg_lstsq(Tensor A, Tensor B, *, float? rcond=None) "
    "-> (Tensor solution, Tensor residuals, Tensor rank, Tensor singular_values)",
    "The shortest X with the least ``norm(A @ X - B)``, by the pseudoinverse: a named tuple with "
    "the squared residuals (of matrices with more rows than columns), the rank and the singular "
    "values; those below `rcond` times the largest count as 0.",
    _lstsq,
    function=False,
    method=False,
    samples=lambda make: [
        Sample((make(4, 2), make(4, 3)), name="tall"),
        Sample((make(2, 3), make(2, 1)), name="wide"),
        Sample((make(2, 3, 2), make(2, 3)), name="vectors"),
        Sample(
            (make(3, 2, dtype=_dtype.complex128), make(3, 1, dtype=_dtype.complex128)),
            name="complex",
        ),
    ],
)
