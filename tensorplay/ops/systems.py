"""Systems of linear equations: solutions, inverses and determinants of batches of matrices."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from tensorplay import _dtype
from tensorplay._tensor import Spec, Tensor
from tensorplay.autograd.batched import elements
from tensorplay.ops.elementwise import broadcast_shapes
from tensorplay.ops.linalg import matmul
from tensorplay.ops.primitive import Composite, Primitive, Sample, Vjp

__all__ = [
    "LinAlgError",
    "SignLogDet",
    "adjoint",
    "check_matrices",
    "det",
    "inv",
    "slogdet",
    "solve",
]

_ADMITTED = (_dtype.float32, _dtype.float64, _dtype.complex64, _dtype.complex128)


class LinAlgError(RuntimeError):
    """A matrix has no result: it is singular, or an iteration did not converge."""


def adjoint(x: Any) -> Any:
    """Return the conjugate transpose of each matrix."""
    x = x.transpose(-2, -1)
    return x.conj() if x.dtype.is_complex else x


def kind(x: Any) -> _dtype.dtype:
    """Return the element type of an array or spec."""
    return x.dtype if isinstance(x.dtype, _dtype.dtype) else _dtype.from_numpy_dtype(x.dtype)


def check_matrices(where: str, x: Any, argument: str = "A", *, square: bool = False) -> None:
    """Refuse what is no batch of (square) matrices of a type that LAPACK knows.

    Raises
    ------
    RuntimeError
        There are fewer than 2 dimensions, or the matrices are not square.
    TypeError
        The type is another one.
    """
    if x.ndim < 2:
        raise RuntimeError(
            f"[{where}] argument '{argument}': The input tensor {argument} must have at least 2 "
            f"dimensions, got {x.ndim}."
        )
    if kind(x) not in _ADMITTED:
        raise TypeError(
            f"[{where}] argument '{argument}': expected a tensor of float32, float64, complex64 or "
            f"complex128, got {kind(x)!r}. Write x.float()."
        )
    if square and x.shape[-1] != x.shape[-2]:
        raise RuntimeError(
            f"[{where}] argument '{argument}': {argument} must be batches of square matrices, but "
            f"they are {x.shape[-2]} by {x.shape[-1]} matrices."
        )


def lapack(where: str, routine: Any, *arrays: Any, **options: Any) -> Any:
    """Return what a NumPy routine gives; its error says which operator failed.

    Raises
    ------
    LinAlgError
        There is no result.
    """
    try:
        return routine(*arrays, **options)
    except np.linalg.LinAlgError as error:
        raise LinAlgError(f"[{where}] {error}.") from error


def _regular(make: Any, *shape: int, **options: Any) -> Any:
    """Return a sample of matrices far from singular."""
    x = make(*shape, **options).detach()
    eye = x.new_tensor(3 * np.eye(shape[-1]), dtype=x.dtype)
    return (x * 0.5 + eye).requires_grad_()


# --- solutions ------------------------------------------------------------------------------------


def _solve_rule(A: Any, B: Any) -> Spec:
    check_matrices("linalg_solve", A, square=True)
    check_matrices("linalg_solve", B, "B")
    if A.dtype != B.dtype:
        raise TypeError(
            f"[linalg_solve] argument 'B': Expected A and B to have the same dtype, but found "
            f"{A.dtype!r} and {B.dtype!r}. Write B.to(A.dtype)."
        )
    if A.shape[-1] != B.shape[-2]:
        raise RuntimeError(
            f"[linalg_solve] Incompatible shapes of A and B for the equation AX = B: "
            f"{list(A.shape)} and {list(B.shape)}."
        )
    batch = broadcast_shapes("linalg_solve", A.shape[:-2], B.shape[:-2])
    return Spec((*batch, *B.shape[-2:]), kind(A))


def _solve_impl(A: Any, B: Any) -> Any:
    _solve_rule(A, B)
    return lapack("linalg_solve", np.linalg.solve, A, B)


solve_matrix: Primitive = Primitive(
    "_solve(Tensor A, Tensor B) -> Tensor",
    "The matrix X with ``A @ X = B``.",
    _solve_impl,
    rule=_solve_rule,
    vjp={
        "A": Vjp(
            lambda g, s: -matmul.apply((solve_matrix.apply((adjoint(s.A), g)), adjoint(s.out))),
            "A",
            "out",
        ),
        "B": Vjp(lambda g, s: solve_matrix.apply((adjoint(s.A), g)), "A"),
    },
    jvp=lambda t, s: solve_matrix.apply((s.A, _moved(t, s))),
    check_first=False,
    function=False,
    method=False,
    samples=lambda make: [
        Sample((_regular(make, 3, 3), make(3, 2)), name="matrix"),
        Sample((_regular(make, 2, 1, 2, 2), make(3, 2, 1)), name="broadcast"),
        Sample((_regular(make, 2, 2, dtype=_dtype.complex128),
                make(2, 2, dtype=_dtype.complex128)), name="complex"),
    ],
    raises="all",
)  # fmt: skip


def _moved(t: Any, s: Any) -> Any:
    """Return the change of ``B - A @ X`` for a fixed X."""
    if t.A is None:
        return t.B.expand(s.out.shape)
    moved = -matmul.apply((t.A, s.out))
    return moved if t.B is None else t.B + moved


def _solve(A: Tensor, B: Tensor, left: bool) -> Any:
    # A batch of vectors has the shape of A without its last size.
    vector = B.ndim == 1 or (B.ndim + 1 == A.ndim and tuple(B.shape) == tuple(A.shape[:-1]))
    if vector and not left:
        raise RuntimeError(
            "[linalg_solve] argument 'left': expected True for a vector B, got False: a system "
            "from the right has a matrix B."
        )
    if vector:
        return solve_matrix.apply((A, B.unsqueeze(-1))).squeeze(-1)
    if left:
        return solve_matrix.apply((A, B))
    for argument, x in (("A", A), ("B", B)):
        check_matrices("linalg_solve", x, argument)
    return solve_matrix.apply((A.mT, B.mT)).mT


solve = Composite(
    "linalg_solve(Tensor A, Tensor B, *, bool left=True) -> Tensor",
    "X with ``A @ X = B``, or ``X @ A = B`` without `left`; B holds matrices or vectors.",
    _solve,
    function=False,
    method=False,
    samples=lambda make: [
        Sample((_regular(make, 3, 3), make(3, 2)), name="matrix"),
        Sample((_regular(make, 2, 2), make(2)), name="vector"),
        Sample((_regular(make, 3, 2, 2), make(3, 2)), name="vectors"),
        Sample((_regular(make, 2, 2), make(3, 2)), {"left": False}, name="right"),
    ],
)


def _square_rule(where: str) -> Any:
    def rule(A: Spec) -> Spec:
        check_matrices(where, A, square=True)
        return Spec(A.shape, A.dtype)

    return rule


inv: Primitive = Primitive(
    "linalg_inv(Tensor A) -> Tensor",
    "The inverse of each matrix.",
    lambda A: lapack("linalg_inv", np.linalg.inv, A),
    rule=_square_rule("linalg_inv"),
    vjp={
        "A": Vjp(
            lambda g, s: -matmul.apply((adjoint(s.out), matmul.apply((g, adjoint(s.out))))), "out"
        )
    },
    jvp=lambda t, s: -matmul.apply((s.out, matmul.apply((t.A, s.out)))),
    function=False,
    method=False,
    samples=lambda make: [
        Sample((_regular(make, 3, 3),), name="matrix"),
        Sample((_regular(make, 2, 2, 2),), name="batch"),
        Sample((_regular(make, 2, 2, dtype=_dtype.complex128),), name="complex"),
    ],
    raises="all",
)

# --- determinants ---------------------------------------------------------------------------------


class SignLogDet(NamedTuple):
    """A determinant ``sign * exp(logabsdet)``."""

    sign: Tensor
    logabsdet: Tensor


def _slogdet_rule(A: Spec) -> tuple[Spec, Spec]:
    check_matrices("linalg_slogdet", A, square=True)
    return Spec(A.shape[:-2], A.dtype), Spec(A.shape[:-2], A.dtype.to_real())


def _slogdet_grad(g: Any, s: Any) -> Any:
    sign, log = g
    weight = log
    if s.A.dtype.is_complex:  # the sign turns with the imaginary part of the logarithm
        weight = log + 1j * (sign * s.out[0].conj()).imag
    return weight[..., None, None] * adjoint(inv.apply((s.A,)))


_slogdet = Primitive(
    "_slogdet(Tensor A) -> (Tensor sign, Tensor logabsdet)",
    "Sign, and logarithm of the magnitude, of each determinant.",
    lambda A: tuple(np.linalg.slogdet(A)),
    rule=_slogdet_rule,
    vjp={"A": Vjp(_slogdet_grad, "A", "out")},
    function=False,
    method=False,
    samples=lambda make: [
        Sample((_regular(make, 3, 3),), name="matrix"),
        Sample((_regular(make, 2, 2, 2),), name="batch"),
        Sample((_regular(make, 2, 2, dtype=_dtype.complex128),), name="complex"),
    ],
)

slogdet = Composite(
    "linalg_slogdet(Tensor A) -> (Tensor sign, Tensor logabsdet)",
    "Sign, and logarithm of the magnitude, of each determinant: a named tuple.",
    lambda A: SignLogDet(*_slogdet.apply((A,))),
    function=False,
    method=False,
    samples=lambda make: [Sample((_regular(make, 2, 3, 3),))],
)


def _det_rule(A: Spec) -> Spec:
    check_matrices("linalg_det", A, square=True)
    return Spec(A.shape[:-2], A.dtype)


def _cofactors(A: Any, out: Any) -> Any:
    """Return the derivative of the determinant by each element."""
    size = A.shape[-1]
    if A.is_meta or not A.numel() or np.abs(elements(out)).min() > 0:
        return out[..., None, None] * inv.apply((A,)).transpose(-2, -1)
    # Of singular matrices, by the singular values: all but one multiplied with each other.
    from tensorplay.ops.decompositions import reduced_svd

    U, S, Vh = reduced_svd.apply((A,))
    rest = S.unsqueeze(-2).expand(*S.shape, size)
    eye = rest.new_tensor(np.eye(size), dtype=rest.dtype)
    others = (rest * (1 - eye) + eye).prod(-1)
    turn = det.apply((U,)) * det.apply((Vh,))
    cofactors = matmul.apply((U.conj() * others.unsqueeze(-2), Vh.conj()))
    return turn[..., None, None] * cofactors


det: Primitive = Primitive(
    "linalg_det(Tensor A) -> Tensor",
    "The determinant of each matrix.",
    lambda A: np.asarray(np.linalg.det(A)),
    rule=_det_rule,
    vjp={"A": Vjp(lambda g, s: g[..., None, None] * _conj(_cofactors(s.A, s.out)), "A", "out")},
    function=False,
    method=False,
    samples=lambda make: [
        Sample((make(3, 3),), name="matrix"),
        Sample((make(2, 2, 2),), name="batch"),
        Sample((make(1, 1),), name="one"),
        Sample((make(2, 2, dtype=_dtype.complex128),), name="complex"),
    ],
)


def _conj(x: Any) -> Any:
    return x.conj() if x.dtype.is_complex else x


# --- pseudoinverses -------------------------------------------------------------------------------


def _pinv_rule(A: Spec, rtol: float | None, hermitian: bool) -> Spec:
    check_matrices("linalg_pinv", A, square=hermitian)
    return Spec((*A.shape[:-2], A.shape[-1], A.shape[-2]), A.dtype)


def _pinv_impl(A: Any, rtol: float | None, hermitian: bool) -> Any:
    if rtol is None:
        rtol = float(max(A.shape[-2:]) * np.finfo(A.dtype).eps)
    if not A.size:
        return np.zeros((*A.shape[:-2], A.shape[-1], A.shape[-2]), A.dtype)
    return lapack("linalg_pinv", np.linalg.pinv, A, rcond=rtol, hermitian=hermitian)


def _pinv_grad(g: Any, s: Any) -> Any:
    A, P = s.A, s.out
    PH, gH = adjoint(P), adjoint(g)
    inner = matmul.apply((PH, matmul.apply((g, PH))))
    columns = matmul.apply((gH, matmul.apply((P, PH))))
    columns = columns - matmul.apply((A, matmul.apply((P, columns))))
    rows = matmul.apply((matmul.apply((PH, P)), gH))
    rows = rows - matmul.apply((matmul.apply((rows, P)), A))
    return columns + rows - inner


# Gradient: G. H. Golub and V. Pereyra, "The differentiation of pseudo-inverses and nonlinear least
# squares problems whose variables separate" (1973); it holds while the rank stays.
pinv = Primitive(
    "linalg_pinv(Tensor A, *, float? rtol=None, bool hermitian=False) -> Tensor",
    "The pseudoinverse of each matrix; singular values below `rtol` times the largest count as 0.",
    _pinv_impl,
    rule=_pinv_rule,
    vjp={"A": Vjp(_pinv_grad, "A", "out")},
    function=False,
    method=False,
    samples=lambda make: [
        Sample((make(3, 2),), name="tall"),
        Sample((make(2, 2, 3),), name="wide"),
        Sample((make(2, 2, dtype=_dtype.complex128),), name="complex"),
    ],
    raises="all",
)
