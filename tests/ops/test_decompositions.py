"""tensorplay.linalg: defining equations, complex gradients, singular cases, and the errors."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import tensorplay as tp
from tensorplay import linalg
from tests.ops.sampling import Maker

make = Maker("decompositions")
BOTH = pytest.mark.parametrize("d", [tp.float64, tp.complex128], ids=str)
SHAPES = pytest.mark.parametrize("shape", [(3, 3), (4, 2), (2, 4), (2, 3, 2), (0, 3), (2, 0, 0)])


def near(a: tp.Tensor, b: Any, *, atol: float = 1e-12) -> None:
    expected = b.detach().numpy() if isinstance(b, tp.Tensor) else b
    np.testing.assert_allclose(a.detach().numpy(), expected, atol=atol, rtol=1e-9)


def orthonormal(columns: tp.Tensor) -> None:
    gram = columns.mH @ columns
    near(gram, np.broadcast_to(np.eye(gram.shape[-1]), tuple(gram.shape)))


# --- what the factors satisfy ---------------------------------------------------------------------


@BOTH
@SHAPES
@pytest.mark.parametrize("full", [True, False])
def test_singular_values(d: Any, shape: Any, full: bool) -> None:
    A = make(*shape, dtype=d)
    U, S, Vh = linalg.svd(A, full_matrices=full)
    k = S.shape[-1]
    near((U[..., :k] * S.unsqueeze(-2)) @ Vh[..., :k, :], A)
    orthonormal(U)
    orthonormal(Vh.mH)
    assert (S[..., 1:] <= S[..., :-1]).all()
    assert (S >= 0).all()
    assert U.shape[-1] == (shape[-2] if full else k)
    near(linalg.svdvals(A), S)


@BOTH
@SHAPES
def test_qr(d: Any, shape: Any) -> None:
    A = make(*shape, dtype=d)
    for mode in ("reduced", "complete"):
        Q, R = linalg.qr(A, mode)
        near(Q @ R, A)
        orthonormal(Q)
        near(R.tril(-1), np.zeros(tuple(R.shape)))
    near(linalg.qr(A, "r").R, linalg.qr(A).R)


@BOTH
@pytest.mark.parametrize("uplo", ["L", "U"])
def test_symmetric_eigenvalues_read_one_triangle(d: Any, uplo: str) -> None:
    A = make(2, 3, 3, dtype=d).detach()
    half = A.tril() if uplo == "L" else A.triu()
    other = half.mH.triu(1) if uplo == "L" else half.mH.tril(-1)
    H = half + other
    diagonal = tp.diag_embed(H.diagonal(0, -2, -1))
    H = H - diagonal + (diagonal.real if d.is_complex else diagonal)
    values, vectors = linalg.eigh(A, uplo)
    near(H @ vectors, vectors * values.unsqueeze(-2))
    orthonormal(vectors)
    assert (values[..., 1:] >= values[..., :-1]).all()
    near(linalg.eigvalsh(A, uplo), values)


@BOTH
def test_cholesky(d: Any) -> None:
    x = make(2, 3, 3, dtype=d).detach()
    A = x @ x.mH + tp.eye(3, dtype=d)
    L = linalg.cholesky(A)
    near(L @ L.mH, A)
    near(L.triu(1), np.zeros((2, 3, 3)))
    near(linalg.cholesky(A, upper=True), L.mH)
    near(linalg.cholesky(A.tril()), L)


@BOTH
def test_pseudoinverse(d: Any) -> None:
    A = make(3, 2, dtype=d).detach()
    low = A @ make(2, 4, dtype=d).detach()  # of rank 2
    for x in (A, low):
        P = linalg.pinv(x)
        near(x @ P @ x, x)
        near(P @ x @ P, P)
        near((x @ P).mH, x @ P)
        near((P @ x).mH, P @ x)
    assert linalg.matrix_rank(low).item() == 2
    assert linalg.pinv(tp.ones(0, 2)).shape == (2, 0)


# --- gradients ------------------------------------------------------------------------------------


def check(function: Any, *inputs: tp.Tensor) -> None:
    given = tuple(x.detach().requires_grad_() for x in inputs)
    assert tp.autograd.gradcheck(function, given, check_forward_ad=True)
    assert tp.autograd.gradgradcheck(function, given)


@pytest.mark.parametrize("shape", [(2, 2), (3, 2), (2, 3)])
def test_gradients_of_complex_factors(shape: Any) -> None:
    A = make(*shape, dtype=tp.complex128)

    def singular(x: tp.Tensor) -> Any:  # does not depend on the phases of the vectors
        U, S, Vh = linalg.svd(x, full_matrices=False)
        return S, (U * S.unsqueeze(-2).exp()) @ Vh

    check(singular, A)
    check(linalg.qr, A)
    check(linalg.pinv, A)


def test_gradients_of_complex_eigenvectors() -> None:
    def function(x: tp.Tensor) -> Any:
        values, vectors = linalg.eigh(x)
        return values, (vectors * values.exp().unsqueeze(-2)) @ vectors.mH

    check(function, make(3, 3, dtype=tp.complex128))


def test_gradients_where_singular_values_are_equal() -> None:
    A = tp.eye(2, dtype=tp.float64, requires_grad=True)
    linalg.svdvals(A).sum().backward()
    assert A.grad is not None
    near(A.grad, np.eye(2))
    B = tp.eye(2, dtype=tp.float64, requires_grad=True)
    linalg.eigvalsh(B).sum().backward()
    assert B.grad is not None
    near(B.grad, np.eye(2))


def test_completed_bases_have_no_gradient() -> None:
    A = make(3, 2)
    linalg.svd(A).S.sum().backward()
    linalg.svd(A).U[:, :2].sum().backward()
    with pytest.raises(RuntimeError, match="full_matrices=False"):
        linalg.svd(A).U.sum().backward()
    linalg.qr(A, "complete").R.sum().backward()
    with pytest.raises(RuntimeError, match="mode='reduced'"):
        linalg.qr(A, "complete").Q.sum().backward()


def test_determinants_of_singular_matrices_have_gradients() -> None:
    A = tp.tensor([[1.0, 2.0], [2.0, 4.0]], dtype=tp.float64, requires_grad=True)
    linalg.det(A).backward()
    assert A.grad is not None
    near(A.grad, [[4, -2], [-2, 1]])
    B = tp.zeros(3, 3, dtype=tp.float64, requires_grad=True)
    linalg.det(B).backward()
    assert B.grad is not None
    near(B.grad, np.zeros((3, 3)))
    sign, log = linalg.slogdet(A.detach())
    assert (sign.item(), log.item()) == (0, -math.inf)


# --- norms, powers, products ----------------------------------------------------------------------


@pytest.mark.parametrize("order", ["fro", "nuc", 1, -1, 2, -2, math.inf, -math.inf])
@pytest.mark.parametrize("dim", [(-2, -1), (0, 2)])
@pytest.mark.parametrize("keepdim", [True, False])
def test_matrix_norms(order: Any, dim: Any, keepdim: bool) -> None:
    A = make(2, 3, 4)
    expected = np.linalg.norm(A.detach().numpy(), order, dim, keepdim)
    near(linalg.matrix_norm(A, order, dim, keepdim), expected)
    near(linalg.norm(A, order, dim, keepdim), expected)
    check(lambda x: linalg.matrix_norm(x, order, dim, keepdim), A)


@pytest.mark.parametrize("order", [2, 1, 0, 3, math.inf, -math.inf])
def test_vector_norms(order: Any) -> None:
    A = make(2, 3)
    near(linalg.vector_norm(A, order), np.linalg.norm(A.detach().numpy().ravel(), order))
    near(linalg.norm(A, order, 1), np.linalg.norm(A.detach().numpy(), order, 1))
    near(linalg.norm(A), np.linalg.norm(A.detach().numpy()))
    assert linalg.vector_norm(A.float(), order, dtype=tp.float64).dtype is tp.float64


def test_powers_and_condition() -> None:
    A = make(2, 2, 2).detach() + 3 * tp.eye(2, dtype=tp.float64)
    for n in (-2, -1, 0, 1, 2, 5):
        near(linalg.matrix_power(A, n), np.linalg.matrix_power(A.numpy(), n))
    for p in (None, 2, -2, 1, "fro"):
        near(linalg.cond(A, p), np.linalg.cond(A.numpy(), p))


def test_products_of_vectors() -> None:
    x, y = make(2, 3), make(3)
    near(linalg.cross(x, y), np.cross(x.detach().numpy(), y.detach().numpy()))
    z = make(2, 3, dtype=tp.complex128)
    near(linalg.vecdot(z, x), np.vecdot(z.detach().numpy(), x.detach().numpy()))
    near(linalg.diagonal(x), np.diagonal(x.detach().numpy()))


# --- errors ---------------------------------------------------------------------------------------

X, ZERO = tp.ones(2, 3), tp.zeros(2, 2)


@pytest.mark.parametrize("name", ["inv", "det", "slogdet", "cholesky", "eigh", "eigvalsh"])
def test_square_matrices_are_asked_for(name: str) -> None:
    function = getattr(linalg, name)
    with pytest.raises(RuntimeError, match="square matrices, but they are 2 by 3"):
        function(X)
    with pytest.raises(RuntimeError, match="at least 2 dimensions"):
        function(X[0])
    with pytest.raises(TypeError, match=r"Write x.float\(\)"):
        function(ZERO.long())
    with pytest.raises(TypeError, match="expected a tensor of float32"):
        function(ZERO.half())


@pytest.mark.parametrize(
    ("call", "kind", "text"),
    [
        (lambda: linalg.inv(ZERO), linalg.LinAlgError, "Singular"),
        (lambda: linalg.solve(ZERO, ZERO), linalg.LinAlgError, "Singular"),
        (lambda: linalg.cholesky(-tp.eye(2)), linalg.LinAlgError, "positive definite"),
        (lambda: linalg.svd(ZERO * math.nan), linalg.LinAlgError, "converge"),
        (lambda: linalg.solve(ZERO, tp.ones(3, 2)), RuntimeError, "Incompatible shapes"),
        (lambda: linalg.solve(ZERO, ZERO.double()), TypeError, "same dtype"),
        (lambda: linalg.solve(ZERO, tp.ones(2), left=False), RuntimeError, "matrix B"),
        (lambda: linalg.solve(tp.ones(3, 2, 2), tp.ones(2, 2, 2)), RuntimeError, "must match"),
        (lambda: linalg.eigh(ZERO, "X"), ValueError, "'L' or 'U'"),
        (lambda: linalg.qr(ZERO, "full"), ValueError, "unrecognized mode"),
        (lambda: linalg.svd(X[0]), RuntimeError, "at least 2 dimensions"),
        (lambda: linalg.matrix_norm(X, 3), ValueError, "'fro', 'nuc'"),
        (lambda: linalg.matrix_norm(X[0]), RuntimeError, "at least 2 dimensions"),
        (lambda: linalg.vector_norm(tp.ones(0), math.inf), RuntimeError, "extreme of no elements"),
        (lambda: linalg.vector_norm(X, "2"), TypeError, "expected a number"),
        (lambda: linalg.vector_norm(X.long()), RuntimeError, "floating point"),
        (lambda: linalg.matrix_power(X, 2), RuntimeError, "square matrices"),
        (lambda: linalg.matrix_power(ZERO, 0.5), TypeError, "expected int"),
        (lambda: linalg.matrix_power(ZERO, -1), linalg.LinAlgError, "Singular"),
        (lambda: linalg.cross(ZERO, ZERO), RuntimeError, "length 3"),
        (lambda: linalg.vecdot(1, X), TypeError, "expected Tensor, got int"),
    ],
)  # fmt: skip
def test_errors(call: Any, kind: type[Exception], text: str) -> None:
    with pytest.raises(kind, match=text):
        call()


# --- eigenvalues of any matrix --------------------------------------------------------------------


@BOTH
def test_eigenvectors_of_any_matrix(d: Any) -> None:
    A = make(2, 3, 3, dtype=d).detach()
    values, vectors = linalg.eig(A)
    assert values.dtype is vectors.dtype is tp.complex128
    near(A.to(tp.complex128) @ vectors, vectors * values.unsqueeze(-2))
    near(vectors.abs().square().sum(-2), np.ones((2, 3)))
    near(linalg.eigvals(A), values)
    assert linalg.eig(A.to(tp.complex64 if d.is_complex else tp.float32))[0].dtype is tp.complex64


@BOTH
def test_gradients_of_eigenvalues_and_vectors(d: Any) -> None:
    def function(x: tp.Tensor) -> Any:  # does not depend on the phases of the vectors
        values, vectors = linalg.eig(x)
        return values.square(), vectors.abs(), (vectors * values.unsqueeze(-2).exp()).abs()

    def exponential(x: tp.Tensor) -> Any:
        values, vectors = linalg.eig(x)
        return (vectors * values.exp().unsqueeze(-2)) @ linalg.inv(vectors)

    x = make(3, 3, dtype=d)
    check(function, x)
    check(exponential, x)


def test_a_loss_that_depends_on_phases_is_refused() -> None:
    A = make(3, 3, dtype=tp.complex128)
    with pytest.raises(RuntimeError, match="ill-defined"):
        linalg.eig(A).eigenvectors.real.sum().backward()


def test_refusals_of_eigenvalues() -> None:
    with pytest.raises(RuntimeError, match="square"):
        linalg.eig(tp.ones(2, 3))
    with pytest.raises(TypeError, match=r"Write x\.float"):
        linalg.eigvals(tp.ones(2, 2).long())
    with pytest.raises(linalg.LinAlgError, match=r"\[linalg_eig\]"):
        linalg.eig(tp.tensor([[float("nan"), 1.0], [1.0, 1.0]]))


# --- least squares --------------------------------------------------------------------------------


def test_least_squares() -> None:
    A, B = make(5, 3).detach(), make(5, 2).detach()
    found = linalg.lstsq(A, B)
    solution, residuals, rank, values = np.linalg.lstsq(A.numpy(), B.numpy())
    near(found.solution, solution)
    near(found.residuals, residuals)
    near(found.singular_values, values)
    assert found.rank.item() == rank == 3
    low = tp.cat([A, A[:, :1]], 1)  # of rank 3: the shortest of many
    found = linalg.lstsq(low, B)
    near(found.solution, np.linalg.lstsq(low.numpy(), B.numpy())[0])
    assert found.rank.item() == 3
    near(found.residuals, residuals)
    assert linalg.lstsq(A.t(), B[:3]).residuals.shape == (0,)
    assert linalg.lstsq(A, B[:, 0]).solution.shape == (3,)


@BOTH
@pytest.mark.parametrize("shape", [(4, 2), (2, 4), (3, 3)])
def test_gradients_of_least_squares(d: Any, shape: Any) -> None:
    check(
        lambda A, B: linalg.lstsq(A, B).solution,
        make(*shape, dtype=d),
        make(shape[0], 2, dtype=d),
    )


def test_refusals_of_least_squares() -> None:
    with pytest.raises(RuntimeError, match="expected 2 rows"):
        linalg.lstsq(tp.ones(2, 2), tp.ones(3, 1))
    with pytest.raises(TypeError, match="same"):
        linalg.lstsq(tp.ones(2, 2), tp.ones(2, 1).double())
