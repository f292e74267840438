"""Products: ranks and batches, types, sums over letters and dimensions, errors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

import tensorplay as tp
from tensorplay.autograd import gradcheck, gradgradcheck

# --- matmul ---------------------------------------------------------------------------------------


@given(st.data())
def test_matmul_of_all_ranks_is_that_of_numpy(data: st.DataObject) -> None:
    batch = data.draw(st.lists(st.integers(1, 3), max_size=2))
    rows, inner, columns = (data.draw(st.integers(0, 3)) for _ in range(3))
    random = np.random.default_rng(0)

    def one(last: tuple[int, int], vector: int) -> Any:
        if data.draw(st.booleans()):
            return random.normal(size=vector)
        sizes = batch[data.draw(st.integers(0, len(batch))) :]
        sizes = [n if data.draw(st.booleans()) else 1 for n in sizes]
        array = random.normal(size=(*sizes, *last))
        return array.swapaxes(-1, -2).copy().swapaxes(-1, -2) if data.draw(st.booleans()) else array

    a, b = one((rows, inner), inner), one((inner, columns), inner)
    x, y = tp.tensor(a).requires_grad_(), tp.tensor(b).requires_grad_()
    out = x @ y
    expected = np.matmul(a, b)
    assert tuple(out.shape) == expected.shape
    np.testing.assert_allclose(out.detach().numpy(), expected)
    assert (x.detach().to("meta") @ y.detach().to("meta")).shape == out.shape
    # Products are linear in each factor, so <gx, x> = <g, x @ y> = <gy, y>.
    weights = random.normal(size=expected.shape)
    gx, gy = tp.autograd.grad(out, (x, y), tp.tensor(weights))
    total = np.sum(weights * expected)
    np.testing.assert_allclose(
        [np.sum(gx.numpy() * a), np.sum(gy.numpy() * b)], [total, total], atol=1e-9
    )


def test_matmul_keeps_only_what_the_wanted_gradients_read() -> None:
    x, w = tp.ones(2, 3), tp.ones(3, 2).requires_grad_()
    y = x @ w
    with tp.no_grad():
        w.mul_(2)  # the gradient of w reads x only
    y.sum().backward()
    assert w.grad is not None
    assert w.grad.tolist() == [[2.0, 2.0]] * 3


def test_special_methods_and_arrays() -> None:
    a = np.eye(2, dtype=np.float32) * 2
    x = tp.ones(2, 2)
    assert (x @ a).tolist() == (a @ x).tolist() == [[2.0, 2.0], [2.0, 2.0]]
    y = x
    y @= tp.ones(2, 2)
    assert y is x
    assert y.tolist() == [[2.0, 2.0], [2.0, 2.0]]
    with pytest.raises(TypeError, match="unsupported operand"):
        x @ "a"


@pytest.mark.parametrize("d", [tp.float16, tp.bfloat16, tp.int64, tp.complex64], ids=str)
def test_matmul_keeps_the_type(d: Any) -> None:
    x = tp.ones(2, 3).to(d)
    y = x @ x.t()
    assert y.dtype is d
    assert y.tolist() == [[3, 3], [3, 3]]


def test_half_precision_is_summed_in_float32() -> None:
    # In float16 the sum stays at 2048, where adding 1 is rounded away.
    assert float(tp.ones(1, 4096).half() @ tp.ones(4096, 1).half()) == 4096


def test_complex_products_have_gradients() -> None:
    random = np.random.default_rng(0)
    a = tp.tensor(random.normal(size=(2, 3)) + 1j * random.normal(size=(2, 3))).requires_grad_()
    b = tp.tensor(random.normal(size=(3, 2)) + 1j * random.normal(size=(3, 2))).requires_grad_()
    assert gradcheck(lambda x, y: (x @ y).abs(), (a, b))
    assert gradcheck(lambda x, y: tp.einsum("ij,jk->k", x, y).abs(), (a, b))


def test_factor_zero_leaves_the_addend_out() -> None:
    x = tp.full((2, 2), float("nan"))
    assert tp.addmm(x, tp.ones(2, 2), tp.ones(2, 2), beta=0).tolist() == [[2.0, 2.0], [2.0, 2.0]]
    y = tp.zeros(2, 2)
    y.addmm_(tp.ones(2, 2), tp.ones(2, 2), alpha=0.5)
    assert y.tolist() == [[1.0, 1.0], [1.0, 1.0]]


# --- einsum and tensordot -------------------------------------------------------------------------

EQUATIONS: list[tuple[str, tuple[tuple[int, ...], ...]]] = [
    ("ij,jk->ik", ((2, 3), (3, 4))),
    ("ij,jk", ((2, 3), (3, 4))),
    ("ba,ca", ((2, 3), (4, 3))),
    ("ii->i", ((3, 3),)),
    ("ii", ((3, 3),)),
    ("iij->j", ((2, 2, 3),)),
    ("iijj->ij", ((2, 2, 3, 3),)),
    ("iji->j", ((2, 3, 2),)),
    ("iii->i", ((2, 2, 2),)),
    ("ij->ji", ((2, 3),)),
    ("ij->", ((2, 3),)),
    ("ij->j", ((2, 3),)),
    ("i,j->ij", ((2,), (3,))),
    ("i,i->", ((3,), (3,))),
    (",i->i", ((), (3,))),
    (",->", ((), ())),
    ("bij,bjk->bik", ((2, 2, 3), (2, 3, 2))),
    ("...ij,...jk->...ik", ((2, 2, 3), (3, 2))),
    ("...ij,...jk", ((4, 1, 2, 3), (2, 3, 2))),
    ("i...->...", ((2, 3, 4),)),
    ("i...,j...->ij...", ((2, 3), (4, 1))),
    ("i...i->...", ((2, 3, 2),)),
    ("ij,kj,kl->il", ((2, 3), (4, 3), (4, 2))),
    ("ijk,k,j->i", ((2, 3, 4), (4,), (3,))),
    ("ij,j->i", ((2, 3), (1,))),
    ("ij,ij->ij", ((1, 3), (2, 3))),
    ("aB,Bc -> ac", ((2, 3), (3, 2))),
    ("ij,k->i", ((2, 3), (2,))),
    ("ij,ij,ij->", ((2, 2), (2, 2), (2, 2))),
    ("ij,jk->ik", ((0, 3), (3, 2))),
]


@pytest.mark.parametrize(("equation", "shapes"), EQUATIONS, ids=[f"{e}{s}" for e, s in EQUATIONS])
def test_einsum_is_that_of_numpy(equation: str, shapes: Any) -> None:
    random = np.random.default_rng(0)
    arrays = [random.normal(size=s) for s in shapes]
    leaves = [tp.tensor(a).requires_grad_() for a in arrays]
    expected = np.einsum(equation, *arrays)
    out = tp.einsum(equation, *leaves)
    assert tuple(out.shape) == np.shape(expected)
    np.testing.assert_allclose(out.detach().numpy(), expected, atol=1e-14)
    assert tp.einsum(equation, [x.detach().to("meta") for x in leaves]).shape == out.shape
    if all(a.size for a in arrays):
        assert gradcheck(lambda *x: tp.einsum(equation, *x), leaves)
        assert gradgradcheck(lambda *x: tp.einsum(equation, *x), leaves)


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda x: tp.einsum("ij,jk->ik", x), "as many terms as operands"),
        (lambda x: tp.einsum("ijk->i", x), "does not match the number of dimensions"),
        (lambda x: tp.einsum("i->i", x), "does not match the number of dimensions"),
        (lambda x: tp.einsum("ij->k", x), "in no operand"),
        (lambda x: tp.einsum("ij->ii", x), "more than once"),
        (lambda x: tp.einsum("i1->i", x), "invalid subscript"),
        (lambda x: tp.einsum("ii->i", x), "don't match"),
        (lambda x: tp.einsum("ij,ij->i", x, x.t()), "do not broadcast"),
        (lambda x: tp.einsum("ij,ij->i", x, x.double()), "same dtype"),
        (lambda x: tp.einsum("ij"), "at least one operand"),
    ],
)
def test_wrong_equation(call: Any, text: str) -> None:
    with pytest.raises(RuntimeError, match=text):
        call(tp.ones(2, 3))


@pytest.mark.parametrize(
    "dims", [0, 1, 2, ([1, 2], [0, 1]), ([0], [2]), (-1, 1), ([], [])], ids=str
)
def test_tensordot_is_that_of_numpy(dims: Any) -> None:
    random = np.random.default_rng(0)
    a, b = random.normal(size=(2, 3, 4)), random.normal(size=(3, 4, 2))
    out = tp.tensordot(tp.tensor(a), tp.tensor(b), dims) if dims != 1 else None
    if out is None:
        with pytest.raises(RuntimeError, match="contracted dimensions need to match"):
            tp.tensordot(tp.tensor(a), tp.tensor(b), dims)
        return
    np.testing.assert_allclose(out.numpy(), np.tensordot(a, b, dims))


# --- errors ---------------------------------------------------------------------------------------

X = tp.ones(2, 3)


@pytest.mark.parametrize(
    ("call", "kind", "text"),
    [
        (lambda: X @ X, RuntimeError, r"shapes cannot be multiplied \(2x3 and 2x3\)"),
        (lambda: X @ tp.ones(2), RuntimeError, r"shapes cannot be multiplied \(2x3 and 2x1\)"),
        (lambda: X @ tp.tensor(1.0), RuntimeError, "at least 1D"),
        (lambda: X @ 3, RuntimeError, "at least 1D"),
        (lambda: X @ X.t().double(), RuntimeError, "same dtype"),
        (
            lambda: tp.ones(2, 2, 3) @ tp.ones(3, 3, 2),
            RuntimeError,
            "must match the size of tensor b",
        ),
        (lambda: X.mm(tp.ones(3)), RuntimeError, "expected a 2D tensor, got 1D"),
        (lambda: X.mv(X), RuntimeError, "expected a 1D tensor, got 2D"),
        (lambda: tp.dot(tp.ones(2), tp.ones(3)), RuntimeError, "cannot be multiplied"),
        (lambda: tp.bmm(tp.ones(1, 2, 3), tp.ones(2, 3, 2)), RuntimeError, "batches of one size"),
        (lambda: tp.outer(X, X), RuntimeError, "expected 1D tensors"),
        (lambda: tp.addmm(tp.ones(5), X, X.t()), RuntimeError, "broadcasts to"),
        (lambda: tp.linear(X, tp.ones(2, 3, 4)), RuntimeError, "expected a matrix or vector"),
        (lambda: tp.trace(tp.ones(3)), RuntimeError, "expected a matrix"),
        (lambda: tp.diag(tp.ones(1, 1, 1)), RuntimeError, "expected a vector or matrix"),
        (lambda: tp.mm(X, 3), TypeError, "argument 'other'"),
        (lambda: tp.tensordot(X, X, 3), RuntimeError, "expected a number from 0"),
        (lambda: tp.tensordot(X, X, ([0], [0, 1])), RuntimeError, "same length"),
    ],
)
def test_error(call: Any, kind: type[Exception], text: str) -> None:
    with pytest.raises(kind, match=text) as caught:
        call()
    assert str(caught.value).startswith("[")
