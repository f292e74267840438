"""Ten ways to break a formula, over four operators and three types: all found, and named."""

from __future__ import annotations

import numpy as np
import pytest

import tensorplay as tp
from tensorplay.autograd import Function, gradcheck_report

DTYPES = [tp.float64, tp.float32, tp.complex128]


def array(shape, dtype, seed=0):
    rng = np.random.default_rng(seed)
    values = rng.standard_normal(shape)
    if dtype.is_complex:
        values = values + 1j * rng.standard_normal(shape)
    return tp.tensor(values.astype(dtype.numpy))


def conj(x):
    return x.conj() if x.dtype.is_complex else x


W = {d: array((3, 3), d, seed=1) for d in DTYPES}
SCALE = {d: tp.tensor(np.array([[[1.0]], [[2.0]]]).astype(d.numpy)) for d in DTYPES}
ONE = {d: tp.tensor((np.arange(9).reshape(3, 3) == 5).astype(d.numpy)) for d in DTYPES}

OPERATORS = {
    "x exp(x)": (lambda x: x.exp() * x, lambda g, x: g * conj(x.exp() * (1 + x))),
    "x @ w": (lambda x: x @ W[x.dtype], lambda g, x: g @ conj(W[x.dtype]).t()),
    "broadcast": (
        lambda x: x.reshape(1, 3, 3) * SCALE[x.dtype],
        lambda g, x: (g * SCALE[x.dtype]).sum(0),
    ),
    "square": (lambda x: x * x, lambda g, x: g * 2 * conj(x)),
}

KINDS = {
    "twice": (lambda f, g, x: 2 * f(g, x), "2.00 x numerical"),
    "one percent": (lambda f, g, x: 1.01 * f(g, x), "1.01 x numerical"),
    "sign": (lambda f, g, x: -f(g, x), "sign"),
    "zero": (lambda f, g, x: 0 * f(g, x), "zero where it should not be"),
    "transposed": (lambda f, g, x: f(g, x).t(), "transposed"),
    "ignored": (lambda f, g, x: f(g * 0 + 1, x), "incoming gradient is ignored"),
    "one element": (lambda f, g, x: f(g, x) * (1 - 0.5 * ONE[x.dtype]), "only at 1 of 9"),
    "lost element": (lambda f, g, x: f(g, x) * (1 - ONE[x.dtype]), "term is missing"),
    "factor x": (lambda f, g, x: f(g, x) * conj(x), "one factor too many"),
    "reversed": (lambda f, g, x: f(g, x).flip(0, 1), "reverse order"),
}


def operator(forward, backward):
    class Op(Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return forward(x)

        @staticmethod
        def backward(ctx, g):
            return backward(g, *ctx.saved_tensors)

    return Op.apply


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: d.name)
@pytest.mark.parametrize("name", OPERATORS)
def test_broken_formulas_are_found_and_named(name, dtype):
    forward, backward = OPERATORS[name]
    x = array((3, 3), dtype).requires_grad_()
    assert gradcheck_report(operator(forward, backward), (x,))
    for kind, (broken, words) in KINDS.items():
        report = gradcheck_report(operator(forward, lambda g, x, b=broken: b(backward, g, x)), (x,))
        assert report.verdict == "wrong", kind
        assert words in report.pairs[0].cause, kind


@pytest.mark.parametrize("name", ["x exp(x)", "square"])
def test_missing_conjugate_is_named(name):
    forward, backward = OPERATORS[name]
    broken = operator(forward, lambda g, x: backward(g.conj(), x).conj())
    report = gradcheck_report(broken, (array((3, 3), tp.complex128).requires_grad_(),))
    assert "conj() is missing or extra" in report.pairs[0].cause
