"""Linear algebra on matrices, and on batches of them in the last two dimensions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from tensorplay import _dtype
from tensorplay._tensor import Tensor
from tensorplay.ops import (
    decompositions,
    eigen,
    least_squares,
    linalg as products,
    parts,
    statistics,
    systems,
)
from tensorplay.ops.arguments import reject
from tensorplay.ops.dims import wrap_dim, wrap_dims
from tensorplay.ops.dispatch import overridable
from tensorplay.ops.systems import LinAlgError

__all__ = [
    "LinAlgError",
    "cholesky",
    "cond",
    "cross",
    "det",
    "diagonal",
    "eig",
    "eigh",
    "eigvals",
    "eigvalsh",
    "inv",
    "lstsq",
    "matmul",
    "matrix_norm",
    "matrix_power",
    "matrix_rank",
    "norm",
    "pinv",
    "qr",
    "slogdet",
    "solve",
    "svd",
    "svdvals",
    "vecdot",
    "vector_norm",
]

cholesky = decompositions.cholesky.function
det = systems.det.function
eig = eigen.eig.function
eigh = decompositions.eigh.function
eigvals = eigen.eigvals.function
eigvalsh = decompositions.eigvalsh.function
inv = systems.inv.function
lstsq = least_squares.lstsq.function
matmul = products.matmul.function
pinv = systems.pinv.function
qr = decompositions.qr.function
slogdet = systems.slogdet.function
solve = systems.solve.function
svd = decompositions.svd.function
svdvals = decompositions.svdvals.function


def _tensor(where: str, argument: str, value: Any) -> Tensor:
    if not isinstance(value, Tensor):
        reject(where, argument, "Tensor", value, "Write tensorplay.tensor(x).")
    return value


@overridable
def diagonal(A: Tensor, *, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Tensor:
    """Return the diagonal of each matrix, a view.

    Parameters
    ----------
    A
        Matrices in the last two dimensions, batches before them.
    offset
        Which: 0 the main one, positive ones above, negative ones below.
    dim1
        Dimension of the rows.
    dim2
        Dimension of the columns.

    Returns
    -------
    Tensor
        The diagonals are its last dimension.
    """
    found: Tensor = parts.diagonal.function(A, offset, dim1, dim2)
    return found


# --- norms ----------------------------------------------------------------------------------------


@overridable
def vector_norm(
    x: Tensor,
    ord: float = 2,
    dim: int | Sequence[int] | None = None,
    keepdim: bool = False,
    *,
    dtype: Any = None,
) -> Tensor:
    """Return ``sum(abs(x) ** ord) ** (1 / ord)`` over `dim`, or over all elements.

    Parameters
    ----------
    x
        Tensor of a floating or complex type.
    ord
        Order: any number, ±infinity for the largest and smallest magnitude, 0 for the number of
        elements that are not zero.
    dim
        Dimensions to reduce; all if None.
    keepdim
        Keep the reduced dimensions with size 1.
    dtype
        Type to compute in.

    Returns
    -------
    Tensor
        Real; without the dimensions that it was taken over, unless `keepdim`.

    Raises
    ------
    TypeError
        The tensor holds integers.
    RuntimeError
        The tensor is empty and has no extreme.
    """
    x = _tensor("linalg_vector_norm", "x", x)
    x = x if dtype is None else x.to(dtype)
    if not isinstance(ord, (int, float)):
        reject("linalg_vector_norm", "ord", "a number", ord)
    found: Tensor = statistics.norm.function(x, ord, dim, keepdim)
    return found


@overridable
def matrix_norm(
    A: Tensor,
    ord: float | str = "fro",
    dim: Sequence[int] = (-2, -1),
    keepdim: bool = False,
    *,
    dtype: Any = None,
) -> Tensor:
    """Return a norm of each matrix.

    Parameters
    ----------
    A
        Matrices in the dimensions `dim`.
    ord
        ``'fro'``: the root of the sum of squares; ``'nuc'``: the sum of the singular values; 1 and
        -1: the largest and smallest sum of magnitudes of a column; ±infinity: those of a row; 2
        and -2: the largest and smallest singular value.
    dim
        The dimensions of rows and of columns.
    keepdim
        Keep them with size 1.
    dtype
        Type to compute in.

    Returns
    -------
    Tensor
        Real; without the dimensions that it was taken over, unless `keepdim`.

    Raises
    ------
    RuntimeError
        The tensor is no matrix, or `dim` does not name two dimensions.
    ValueError
        There is no such order.
    """
    where = "linalg_matrix_norm"
    A = _tensor(where, "A", A)
    A = A if dtype is None else A.to(dtype)
    if A.ndim < 2 or len(tuple(dim)) != 2:
        raise RuntimeError(
            f"[{where}] expected a tensor with at least 2 dimensions, got {A.ndim}, and dim to be "
            f"a 2-tuple, got {tuple(dim)}."
        )
    rows, columns = wrap_dims(where, tuple(dim), A.ndim)
    x: Any = A.movedim((rows, columns), (-2, -1))
    if ord == "fro":
        found = vector_norm(x, 2, (-2, -1))
    elif ord == "nuc":
        found = svdvals(x).sum(-1)
    elif ord in (2, -2):
        values = svdvals(x)
        found = values.amax(-1) if ord == 2 else values.amin(-1)
    elif ord in (1, -1, math.inf, -math.inf):
        sums = x.abs().sum(-2 if ord in (1, -1) else -1)
        found = sums.amax(-1) if ord in (1, math.inf) else sums.amin(-1)
    else:
        raise ValueError(
            f"[{where}] argument 'ord': expected 'fro', 'nuc', 1, 2, inf or their negatives, got "
            f"{ord!r}."
        )
    if keepdim:
        for d in sorted((rows, columns)):
            found = found.unsqueeze(d)
    return found


@overridable
def norm(
    A: Tensor,
    ord: float | str | None = None,
    dim: int | Sequence[int] | None = None,
    keepdim: bool = False,
    *,
    dtype: Any = None,
) -> Tensor:
    """Return the norm of vectors or matrices.

    Parameters
    ----------
    A
        Vectors, if `dim` is one dimension or `ord` is None; else matrices.
    ord
        As for `vector_norm` or `matrix_norm`; None is the root of the sum of squares.
    dim
        One dimension for vectors, two for matrices; None for all.
    keepdim
        Keep the reduced dimensions with size 1.
    dtype
        Type to compute in.

    Returns
    -------
    Tensor
        Real; without the dimensions that it was taken over, unless `keepdim`.

    Examples
    --------
    >>> import tensorplay as tp
    >>> tp.linalg.norm(tp.tensor([3.0, 4.0]))
    tensor(5.)
    """
    A = _tensor("linalg_norm", "A", A)
    matrices = (dim is None and A.ndim == 2) or (isinstance(dim, Sequence) and len(dim) == 2)
    if ord is None or (not matrices and not isinstance(ord, str)):
        return vector_norm(A, 2 if ord is None else ord, dim, keepdim, dtype=dtype)
    pair: Any = (-2, -1) if dim is None else dim
    return matrix_norm(A, ord, pair, keepdim, dtype=dtype)


@overridable
def cond(A: Tensor, p: float | str | None = None) -> Tensor:
    """Return the condition number: the norm of `A` of order `p` times that of its inverse.

    Without `p`, the ratio of the largest and the smallest singular value.

    Parameters
    ----------
    A
        Matrices in the last two dimensions, batches before them.
    p
        Order of the norm; None for the singular values.

    Returns
    -------
    Tensor
        One number for each matrix.
    """
    if p in (None, 2, -2):
        values = svdvals(A)
        high, low = values.amax(-1), values.amin(-1)
        ratio: Tensor = low / high if p == -2 else high / low
        return ratio
    order: Any = p
    product: Tensor = matrix_norm(A, order) * matrix_norm(inv(A), order)
    return product


@overridable
def matrix_rank(
    A: Tensor, *, atol: float | None = None, rtol: float | None = None, hermitian: bool = False
) -> Tensor:
    """Return how many singular values exceed ``max(atol, rtol * largest)``.

    By default `rtol` is the larger side times the precision of the type, 0 if `atol` is given.

    Parameters
    ----------
    A
        Matrices in the last two dimensions, batches before them.
    atol
        Absolute tolerance.
    rtol
        Relative tolerance.
    hermitian
        Whether `A` is taken to be Hermitian.

    Returns
    -------
    Tensor
        int64, one number for each matrix.
    """
    values = eigvalsh(A).abs() if hermitian else svdvals(A)
    if rtol is None:
        rtol = 0.0 if atol else max(A.shape[-2:]) * _dtype.finfo(A.dtype).eps
    limit = values.amax(-1, keepdim=True) * rtol
    found: Tensor = (values > limit.clamp(min=atol or 0.0)).sum(-1)
    return found


# --- products -------------------------------------------------------------------------------------


@overridable
def matrix_power(A: Tensor, n: int) -> Tensor:
    """Return the product of `n` copies of each matrix; of inverses for negative `n`.

    Parameters
    ----------
    A
        Matrices in the last two dimensions, batches before them.
    n
        The exponent.

    Returns
    -------
    Tensor
        Of the shape of `A`.

    Raises
    ------
    RuntimeError
        The matrices are not square.
    LinAlgError
        `n` is negative and a matrix is singular.
    """
    A = _tensor("linalg_matrix_power", "A", A)
    if not isinstance(n, int):
        reject("linalg_matrix_power", "n", "int", n)
    if A.ndim < 2 or A.shape[-1] != A.shape[-2]:
        raise RuntimeError(
            f"[linalg_matrix_power] argument 'A': A must be batches of square matrices, got size "
            f"{list(A.shape)}."
        )
    from tensorplay._creation import eye

    base: Any = inv(A) if n < 0 else A
    result: Any = None
    left = abs(n)
    while left:
        if left & 1:
            result = base if result is None else result @ base
        left >>= 1
        if left:
            base = base @ base
    if result is None:
        one = eye(A.shape[-1], dtype=A.dtype, device=A.device)
        return one.expand(A.shape).clone()
    return result.clone() if result is A else result


@overridable
def vecdot(x: Tensor, y: Tensor, *, dim: int = -1) -> Tensor:
    """Return the sums of ``conj(x) * y`` over dimension `dim`.

    Parameters
    ----------
    x
        First vectors, conjugated where complex.
    y
        Second vectors; broadcast against the first.
    dim
        Dimension; negative ones count from the end.

    Returns
    -------
    Tensor
        Without the dimension.
    """
    x, y = _tensor("linalg_vecdot", "x", x), _tensor("linalg_vecdot", "y", y)
    left: Any = x.conj() if x.dtype.is_complex else x
    found: Tensor = (left * y).sum(dim)
    return found


@overridable
def cross(input: Tensor, other: Tensor, *, dim: int = -1) -> Tensor:
    """Return the vector products of the vectors of 3 elements along dimension `dim`.

    Parameters
    ----------
    input
        First factors.
    other
        Second factors; broadcast against the first.
    dim
        Dimension of size 3.

    Returns
    -------
    Tensor
        Of the shape that both broadcast to.

    Raises
    ------
    RuntimeError
        The dimension has another size.
    """
    x, y = _tensor("linalg_cross", "input", input), _tensor("linalg_cross", "other", other)
    for value in (x, y):
        if not value.ndim or value.shape[wrap_dim("linalg_cross", dim, value.ndim)] != 3:
            raise RuntimeError(
                f"[linalg_cross] inputs dimension {dim} must have length 3. Got sizes "
                f"{list(x.shape)} and {list(y.shape)}."
            )
    if dim >= 0 and x.ndim != y.ndim:
        raise RuntimeError(
            f"[linalg_cross] inputs must have the same number of dimensions for a dim counted from "
            f"the front, got {x.ndim} and {y.ndim}."
        )
    found: Tensor = x.roll(-1, dim) * y.roll(-2, dim) - x.roll(-2, dim) * y.roll(-1, dim)
    return found
