"""Decompositions of batches of matrices: Cholesky, QR, singular values, symmetric eigenvalues.

Gradients of factors are finite where the factors are unique. Operators that read one triangle of
a symmetric matrix give the other triangle no gradient, so that they are the derivatives by each
element.

Gradient formulas: I. Murray, "Differentiation of the Cholesky decomposition" (2016); S. F. Walter
and L. Lehmann, "Algorithmic differentiation of linear algebra functions with application in optimum
experimental design" (2010); J. Townsend, "Differentiating the singular value decomposition" (2016).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from tensorplay import _dtype
from tensorplay._tensor import Spec, Tensor
from tensorplay.autograd.batched import elements
from tensorplay.ops.linalg import matmul
from tensorplay.ops.primitive import Composite, Primitive, Sample, Vjp
from tensorplay.ops.systems import adjoint, check_matrices, lapack, solve_matrix

__all__ = ["QR", "SVD", "Eigh", "cholesky", "eigh", "eigvalsh", "qr", "svd", "svdvals"]


def _times(*factors: Any) -> Any:
    product = factors[0]
    for factor in factors[1:]:
        product = matmul.apply((product, factor))
    return product


def _hermitian_part(x: Any) -> Any:
    return (x + adjoint(x)) * 0.5


def _hermitian_array(x: Any) -> Any:
    return (x + x.swapaxes(-2, -1).conj()) * x.dtype.type(0.5)


def _from_triangle(x: Any, *, upper: bool) -> Any:
    """Return the symmetric matrices of which one triangle is given."""
    return x.triu() + adjoint(x.triu(1)) if upper else x.tril() + adjoint(x.tril(-1))


def _over_gaps(x: Any, gaps: Any) -> Any:
    """Return ``x / gaps``, zero where both are zero, also to the derivatives."""
    return x / gaps.masked_fill((gaps == 0) & (x == 0), 1)


def _gaps(values: Any) -> Any:
    """Return the differences of values, in row j and column k that of the k-th from the j-th."""
    gaps = values.unsqueeze(-2) - values.unsqueeze(-1)
    return gaps + gaps.new_tensor(np.eye(values.shape[-1]), dtype=gaps.dtype)


def _without_diagonal(x: Any) -> Any:
    return x.triu(1) + x.tril(-1)


def _diagonal(x: Any) -> Any:
    return x.diagonal(0, -2, -1)


def _square(where: str, x: Any) -> None:
    check_matrices(where, x, square=True)


def _positive(make: Any, *shape: int, **options: Any) -> Any:
    x = make(*shape, **options).detach()
    eye = x.new_tensor(np.eye(shape[-1]), dtype=x.dtype)
    return (matmul.apply((x, adjoint(x))) + eye).requires_grad_()


# --- Cholesky -------------------------------------------------------------------------------------


def _cholesky_rule(A: Spec) -> Spec:
    _square("linalg_cholesky", A)
    return Spec(A.shape, A.dtype)


def _cholesky_grad(g: Any, s: Any) -> Any:
    L = s.out
    inner = _times(adjoint(L), g).tril()
    inner = inner - (_diagonal(inner) * 0.5).diag_embed()
    half = solve_matrix.apply((adjoint(L), inner))
    return _hermitian_part(adjoint(solve_matrix.apply((adjoint(L), adjoint(half)))))


lower_factor = Primitive(
    "_cholesky(Tensor A) -> Tensor",
    "The lower triangular L with ``L @ L.mH`` the symmetric part of `A`.",
    lambda A: lapack("linalg_cholesky", np.linalg.cholesky, _hermitian_array(A)),
    rule=_cholesky_rule,
    vjp={"A": Vjp(_cholesky_grad, "out")},
    function=False,
    method=False,
    samples=lambda make: [
        Sample((_positive(make, 3, 3),), name="matrix"),
        Sample((_positive(make, 2, 2, 2),), name="batch"),
        Sample((_positive(make, 2, 2, dtype=_dtype.complex128),), name="complex"),
    ],
    raises="all",
)


def _cholesky(A: Tensor, upper: bool) -> Any:
    _square("linalg_cholesky", A)
    factor = lower_factor.apply((_from_triangle(A, upper=upper),))
    return adjoint(factor) if upper else factor


cholesky = Composite(
    "linalg_cholesky(Tensor A, *, bool upper=False) -> Tensor",
    "The lower triangular L with ``L @ L.mH = A``, or the `upper` triangular U with "
    "``U.mH @ U = A``; that triangle of A is read.",
    _cholesky,
    function=False,
    method=False,
    samples=lambda make: [
        Sample((_positive(make, 3, 3),), name="lower"),
        Sample((_positive(make, 2, 2),), {"upper": True}, name="upper"),
    ],
)

# --- symmetric eigenvalues ------------------------------------------------------------------------


class Eigh(NamedTuple):
    """Eigenvalues in ascending order, and the eigenvectors as columns."""

    eigenvalues: Tensor
    eigenvectors: Tensor


def _eigh_rule(A: Spec) -> tuple[Spec, Spec]:
    _square("linalg_eigh", A)
    return Spec(A.shape[:-1], A.dtype.to_real()), Spec(A.shape, A.dtype)


def _eigh_grad(g: Any, s: Any) -> Any:
    values, V = s.out
    turn = _without_diagonal(_times(adjoint(V), g[1]))
    inner = _over_gaps(turn, _gaps(values)) + g[0].diag_embed()
    return _hermitian_part(_times(V, inner, adjoint(V)))


symmetric_eigen = Primitive(
    "_eigh(Tensor A) -> (Tensor eigenvalues, Tensor eigenvectors)",
    "Eigenvalues and eigenvectors of the symmetric part of `A`.",
    lambda A: tuple(lapack("linalg_eigh", np.linalg.eigh, _hermitian_array(A))),
    rule=_eigh_rule,
    vjp={"A": Vjp(_eigh_grad, "out")},
    function=False,
    method=False,
    samples=lambda make: [
        Sample((make(3, 3),), name="matrix"),
        Sample((make(2, 2, 2),), name="batch"),
    ],
    raises="all",
)


def _eigh(A: Tensor, UPLO: str) -> Any:
    if UPLO not in ("L", "U"):
        raise ValueError(
            f"[linalg_eigh] argument 'UPLO': expected UPLO argument to be 'L' or 'U', but got "
            f"{UPLO!r}."
        )
    _square("linalg_eigh", A)
    return Eigh(*symmetric_eigen.apply((_from_triangle(A, upper=UPLO == "U"),)))


eigh = Composite(
    "linalg_eigh(Tensor A, str UPLO='L') -> (Tensor eigenvalues, Tensor eigenvectors)",
    "Eigenvalues, ascending, and eigenvectors of symmetric matrices, of which the lower (``'L'``) "
    "or upper triangle is read: a named tuple.",
    _eigh,
    function=False,
    method=False,
    samples=lambda make: [
        Sample((make(3, 3),), name="lower"),
        Sample((make(2, 2, 2), "U"), name="upper"),
    ],
)

eigvalsh = Composite(
    "linalg_eigvalsh(Tensor A, str UPLO='L') -> Tensor",
    "Eigenvalues, ascending, of symmetric matrices.",
    lambda A, UPLO: _eigh(A, UPLO).eigenvalues,
    function=False,
    method=False,
    samples=lambda make: [
        Sample((make(3, 3),)),
        Sample((make(2, 2, dtype=_dtype.complex128),), name="complex"),
    ],
)

# --- singular values ------------------------------------------------------------------------------


class SVD(NamedTuple):
    """``U @ diag(S) @ Vh``, the singular values in descending order."""

    U: Tensor
    S: Tensor
    Vh: Tensor


def _svd_rule(A: Spec) -> tuple[Spec, ...]:
    check_matrices("linalg_svd", A)
    (m, n), batch = A.shape[-2:], A.shape[:-2]
    k = min(m, n)
    return (
        Spec((*batch, m, k), A.dtype), Spec((*batch, k), A.dtype.to_real()),
        Spec((*batch, k, n), A.dtype),
    )  # fmt: skip


def _skew(x: Any) -> Any:
    return x - adjoint(x)


def _svd_grad(g: Any, s: Any) -> Any:
    (gU, gS, gVh), (U, S, Vh) = g, s.out
    m, n, k = U.shape[-2], Vh.shape[-1], S.shape[-1]
    left, right = _skew(_times(adjoint(U), gU)), _skew(_times(Vh, adjoint(gVh)))
    gaps = _gaps(S * S)
    row, column = S.unsqueeze(-2), S.unsqueeze(-1)
    inner = _over_gaps(_without_diagonal(left), gaps) * row
    inner = inner + _over_gaps(_without_diagonal(right), gaps) * column
    middle = gS
    if S.dtype is not U.dtype:  # the phases of pairs of vectors, which turn together
        middle = gS + _diagonal(left) / (2 * S)
    inner = inner + middle.diag_embed()
    result = _times(U, inner, Vh)
    if m > k:
        outside = gU - _times(U, adjoint(U), gU)
        result = result + _times(outside / row, Vh)
    if n > k:
        outside = gVh - _times(gVh, adjoint(Vh), Vh)
        result = result + _times(U, outside / column)
    return result


reduced_svd = Primitive(
    "_svd(Tensor A) -> (Tensor U, Tensor S, Tensor Vh)",
    "Singular values and as many singular vectors.",
    lambda A: tuple(lapack("linalg_svd", np.linalg.svd, A, full_matrices=False)),
    rule=_svd_rule,
    vjp={"A": Vjp(_svd_grad, "out")},
    function=False,
    method=False,
    samples=lambda make: [
        Sample((make(2, 2),), name="square"),
        Sample((make(3, 2),), name="tall"),
        Sample((make(2, 2, 3),), name="wide"),
    ],
    raises="all",
)


def _refuse_rest(where: str, advice: str, *grads: Any) -> None:
    for g in grads:
        if g.is_meta or elements(g).any():
            raise RuntimeError(
                f"[{where}] the vectors that complete the basis are not unique, so that they have "
                f"no gradient. Write {advice}."
            )


def _full_grad(g: Any, s: Any) -> Any:
    k = s.out[1].shape[-1]
    U, S, Vh = s.out
    _refuse_rest("linalg_svd", "full_matrices=False", g[0][..., k:], g[2][..., k:, :])
    inner = _Saved(None, (U[..., :k], S, Vh[..., :k, :]))
    return _svd_grad([g[0][..., :k], g[1], g[2][..., :k, :]], inner)


class _Saved:
    """Results as a formula finds them."""

    def __init__(self, A: Any, out: Any) -> None:
        self.A = A
        self.out = out


def _full_rule(A: Spec) -> tuple[Spec, ...]:
    _, S, _ = _svd_rule(A)
    (m, n), batch = A.shape[-2:], A.shape[:-2]
    return Spec((*batch, m, m), A.dtype), S, Spec((*batch, n, n), A.dtype)


full_svd = Primitive(
    "_svd_full(Tensor A) -> (Tensor U, Tensor S, Tensor Vh)",
    "Singular values, and singular vectors completed to bases.",
    lambda A: tuple(lapack("linalg_svd", np.linalg.svd, A, full_matrices=True)),
    rule=_full_rule,
    vjp={"A": Vjp(_full_grad, "out")},
    function=False,
    method=False,
    samples=lambda make: [Sample((make(2, 2),), name="square")],
    raises="all",
)


def _svd(A: Tensor, full_matrices: bool) -> Any:
    return SVD(*(full_svd if full_matrices else reduced_svd).apply((A,)))


svd = Composite(
    "linalg_svd(Tensor A, bool full_matrices=True) -> (Tensor U, Tensor S, Tensor Vh)",
    "``U @ diag(S) @ Vh = A`` with orthonormal columns of U and rows of Vh, S descending: a named "
    "tuple. `full_matrices` completes U and Vh to square matrices; what it adds has no gradient.",
    _svd,
    function=False,
    method=False,
    samples=lambda make: [
        Sample((make(2, 2),), name="full"),
        Sample((make(3, 2), False), name="reduced"),
    ],
)

svdvals = Composite(
    "linalg_svdvals(Tensor A) -> Tensor",
    "Singular values, in descending order.",
    lambda A: reduced_svd.apply((A,))[1],
    function=False,
    method=False,
    samples=lambda make: [
        Sample((make(2, 3),)),
        Sample((make(2, 2, dtype=_dtype.complex128),), name="complex"),
    ],
)

# --- QR -------------------------------------------------------------------------------------------


class QR(NamedTuple):
    """``Q @ R`` with orthonormal columns of Q and upper triangular R."""

    Q: Tensor
    R: Tensor


def _qr_rule(A: Spec) -> tuple[Spec, Spec]:
    check_matrices("linalg_qr", A)
    (m, n), batch = A.shape[-2:], A.shape[:-2]
    k = min(m, n)
    return Spec((*batch, m, k), A.dtype), Spec((*batch, k, n), A.dtype)


def _tall_qr_grad(gQ: Any, gR: Any, Q: Any, R: Any) -> Any:
    M = _times(R, adjoint(gR)) - _times(adjoint(gQ), Q)
    low = M.tril(-1)
    middle = _diagonal(M)
    middle = middle.real if M.dtype.is_complex else middle
    copied = low + adjoint(low) + middle.diag_embed()
    return adjoint(solve_matrix.apply((R, adjoint(gQ + _times(Q, copied)))))


def _qr_grad(g: Any, s: Any) -> Any:
    (gQ, gR), (Q, R) = g, s.out
    m, n = Q.shape[-2], R.shape[-1]
    if m >= n:
        return _tall_qr_grad(gQ, gR, Q, R)
    # The first m columns determine Q; the others are Q times what is left of R.
    rest = s.A[..., m:]
    first = _tall_qr_grad(gQ + _times(rest, adjoint(gR[..., m:])), gR[..., :m], Q, R[..., :m])
    return _joined(first, _times(Q, gR[..., m:]))


def _joined(first: Any, second: Any) -> Any:
    from tensorplay.ops.joining import cat

    return cat.apply(([first, second], -1))


reduced_qr = Primitive(
    "_qr(Tensor A) -> (Tensor Q, Tensor R)",
    "An orthonormal basis of the columns, and the upper triangular coordinates in it.",
    lambda A: tuple(lapack("linalg_qr", np.linalg.qr, A)),
    rule=_qr_rule,
    vjp={"A": Vjp(_qr_grad, "A", "out")},
    function=False,
    method=False,
    samples=lambda make: [
        Sample((make(2, 2),), name="square"),
        Sample((make(3, 2),), name="tall"),
        Sample((make(2, 2, 3),), name="wide"),
    ],
)


def _complete_rule(A: Spec) -> tuple[Spec, Spec]:
    _qr_rule(A)
    m = A.shape[-2]
    return Spec((*A.shape[:-1], m), A.dtype), Spec(A.shape, A.dtype)


def _complete_grad(g: Any, s: Any) -> Any:
    k = min(s.A.shape[-2:])
    (gQ, gR), (Q, R) = g, s.out
    _refuse_rest("linalg_qr", "mode='reduced'", gQ[..., k:])
    inner = _Saved(s.A, (Q[..., :k], R[..., :k, :]))
    return _qr_grad([gQ[..., :k], gR[..., :k, :]], inner)


complete_qr = Primitive(
    "_qr_complete(Tensor A) -> (Tensor Q, Tensor R)",
    "QR with the columns of Q completed to a basis.",
    lambda A: tuple(lapack("linalg_qr", np.linalg.qr, A, mode="complete")),
    rule=_complete_rule,
    vjp={"A": Vjp(_complete_grad, "A", "out")},
    function=False,
    method=False,
    samples=lambda make: [Sample((make(2, 2),), name="square")],
)


def _qr(A: Tensor, mode: str) -> Any:
    if mode not in ("reduced", "complete", "r"):
        raise ValueError(
            f"[linalg_qr] argument 'mode': qr received unrecognized mode {mode!r} but expected one "
            "of 'reduced', 'complete' or 'r'."
        )
    Q, R = (complete_qr if mode == "complete" else reduced_qr).apply((A,))
    return QR(A.new_empty(0), R) if mode == "r" else QR(Q, R)


qr = Composite(
    "linalg_qr(Tensor A, str mode='reduced') -> (Tensor Q, Tensor R)",
    "``Q @ R = A`` with orthonormal columns of Q and upper triangular R: a named tuple. "
    "``'complete'`` makes Q square, which has no gradient; ``'r'`` leaves Q out.",
    _qr,
    function=False,
    method=False,
    samples=lambda make: [
        Sample((make(3, 2),), name="reduced"),
        Sample((make(2, 2), "complete"), name="complete"),
        Sample((make(2, 3), "r"), name="r"),
    ],
)
