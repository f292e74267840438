"""Eigenvalues and eigenvectors of any square matrix."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from tensorplay import _dtype
from tensorplay._tensor import Spec, Tensor
from tensorplay.ops.conversion import cast_to
from tensorplay.ops.linalg import matmul
from tensorplay.ops.primitive import Composite, Primitive, Sample, Vjp
from tensorplay.ops.systems import adjoint, check_matrices, lapack, solve_matrix

__all__ = ["Eig"]


class Eig(NamedTuple):
    """Eigenvalues in no particular order, and eigenvectors of length 1 as columns; complex."""

    eigenvalues: Tensor
    eigenvectors: Tensor


def _rule(A: Spec) -> tuple[Spec, Spec]:
    check_matrices("linalg_eig", A, square=True)
    return Spec(A.shape[:-1], A.dtype), Spec(A.shape, A.dtype)


def _impl(A: Any) -> tuple[Any, Any]:
    values, vectors = lapack("linalg_eig", np.linalg.eig, A)
    return values.astype(A.dtype, copy=False), vectors.astype(A.dtype, copy=False)


def _check_phases(turn: Any) -> None:
    """Refuse a loss that depends on the phases of the eigenvectors, which are arbitrary."""
    array = turn.detach()._array
    if type(array) is not np.ndarray or not array.size:  # no values on meta or inside of vmap
        return
    spins = np.abs(np.diagonal(array, axis1=-2, axis2=-1).imag).max()
    if spins > 1e3 * np.finfo(array.dtype).eps ** 0.75 * max(np.abs(array).max(), 1.0):
        raise RuntimeError(
            "[linalg_eig] the eigenvectors are specified up to multiplication by a complex number "
            "of magnitude 1, and the function that is differentiated depends on it: it is "
            "ill-defined. Use the eigenvalues, or expressions such as V @ f(L) @ V.inv()."
        )


def _grad(g: Any, s: Any) -> Any:
    # C. Boeddeker et al., "On the computation of complex-valued gradients with application to
    # statistically optimum beamforming" (2017), equations 4.77 and 4.60, for vectors of length 1.
    values, V = s.out
    VH = adjoint(V)
    turn = matmul.apply((VH, g[1]))
    _check_phases(turn)
    own = turn.diagonal(0, -2, -1).real
    inner = turn - matmul.apply((VH, V)) * own.unsqueeze(-2)
    n = values.shape[-1]
    eye = values.new_tensor(np.eye(n), dtype=values.dtype)
    gaps = (values.unsqueeze(-2) - values.unsqueeze(-1)).conj() + eye
    inner = inner / gaps * (1 - eye) + g[0].diag_embed()
    return solve_matrix.apply((VH, matmul.apply((inner, VH))))


eigen = Primitive(
    "_eig(Tensor A) -> (Tensor eigenvalues, Tensor eigenvectors)",
    "Eigenvalues and eigenvectors of complex matrices.",
    _impl,
    rule=_rule,
    vjp={"A": Vjp(_grad, "out")},
    function=False,
    method=False,
    samples=lambda make: [
        Sample((make(3, 3, dtype=_dtype.complex128, requires_grad=False),), name="matrix"),
        Sample((make(2, 2, 2, dtype=_dtype.complex128, requires_grad=False),), name="batch"),
    ],
    raises="all",
)


def _complex(A: Tensor) -> Any:
    check_matrices("linalg_eig", A, square=True)
    d = A._dtype
    if d.is_complex:
        return A
    return cast_to.apply((A, _dtype.complex64 if d is _dtype.float32 else _dtype.complex128))


eig = Composite(
    "linalg_eig(Tensor A) -> (Tensor eigenvalues, Tensor eigenvectors)",
    "Complex eigenvalues, and eigenvectors as columns, of square matrices: a named tuple. The "
    "gradient needs eigenvalues that differ.",
    lambda A: Eig(*eigen.apply((_complex(A),))),
    function=False,
    method=False,
    samples=lambda make: [Sample((make(3, 3, requires_grad=False),), name="real")],
)

eigvals = Composite(
    "linalg_eigvals(Tensor A) -> Tensor",
    "Complex eigenvalues of square matrices, in no particular order.",
    lambda A: eigen.apply((_complex(A),))[0],
    function=False,
    method=False,
    samples=lambda make: [
        Sample((make(3, 3),), name="real"),
        Sample((make(2, 2, 2, dtype=_dtype.complex128),), name="complex"),
    ],
)
