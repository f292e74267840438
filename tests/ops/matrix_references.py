"""References of solutions, inverses and determinants: expansion by minors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

__all__ = ["DECOMPOSED", "MATRICES"]


def minor(A: Any, row: int, column: int) -> Any:
    return np.delete(np.delete(A, row, axis=-2), column, axis=-1)


def det(A: Any) -> Any:
    n = A.shape[-1]
    if n == 0:
        return np.ones(A.shape[:-2])
    return sum((-1) ** k * A[..., 0, k] * det(minor(A, 0, k)) for k in range(n))


def inv(A: Any) -> Any:
    out = np.empty(A.shape, A.dtype)
    for i, j in np.ndindex(A.shape[-2:]):
        out[..., j, i] = (-1) ** (i + j) * det(minor(A, i, j)) / det(A)
    return out


def solve(A: Any, B: Any, left: bool = True) -> Any:
    if B.ndim == 1 or B.shape == A.shape[:-1]:
        return np.einsum("...ij,...j->...i", inv(A), B)
    return inv(A) @ B if left else B @ inv(A)


def slogdet(A: Any) -> tuple[Any, Any]:
    value = det(A)
    return value / np.abs(value), np.log(np.abs(value))


def pinv(A: Any) -> Any:
    H = np.conj(np.swapaxes(A, -2, -1))
    tall = A.shape[-2] >= A.shape[-1]
    return inv(H @ A) @ H if tall else H @ inv(A @ H)


def lstsq(A: Any, B: Any, rcond: Any = None) -> Any:
    vector = B.ndim < A.ndim
    right = B[..., None] if vector else B
    X = pinv(A) @ right
    H = np.conj(np.swapaxes(A, -2, -1)) @ A
    squares = np.linalg.eigvalsh(H)[..., ::-1][..., : min(A.shape[-2:])]
    rest = np.zeros(0)
    if A.shape[-2] > A.shape[-1]:
        rest = (np.abs(A @ X - right) ** 2).sum(-2)
    rank = np.full(A.shape[:-2], min(A.shape[-2:]))
    return (X[..., 0] if vector else X), rest, rank, np.sqrt(squares)


def eigvals(A: Any) -> Any:
    return np.linalg.eigvals(A.astype(complex))


MATRICES: dict[str, Callable[..., Any]] = {
    "_solve": solve,
    "linalg_solve": solve,
    "linalg_inv": inv,
    "linalg_det": det,
    "_slogdet": slogdet,
    "linalg_slogdet": slogdet,
    "linalg_pinv": pinv,
    "linalg_lstsq": lstsq,
    "linalg_eigvals": eigvals,
}

# Their factors are unique up to signs at best; test_decompositions.py has what they satisfy.
DECOMPOSED = (
    *("_cholesky", "linalg_cholesky", "_eigh", "linalg_eigh", "linalg_eigvalsh"),
    *(
        "_eig",
        "linalg_eig",
        "_svd",
        "_svd_full",
        "linalg_svd",
        "linalg_svdvals",
        "_qr",
        "_qr_complete",
        "linalg_qr",
    ),
)
