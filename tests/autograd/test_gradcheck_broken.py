"""Ten ways to break a formula, over four operators: all found, the right ones left alone, named."""

from __future__ import annotations

import collections

import numpy as np
import pytest

import tensorplay as tp
from tensorplay.autograd import Function, gradcheck_report

DTYPES = {
    "float64": tp.float64,
    "float32": tp.float32,
    "float32 alone": tp.float32,  # a kernel that takes nothing else
    "complex128": tp.complex128,
}


def array(shape, dtype, seed=0):
    rng = np.random.default_rng(seed)
    values = rng.standard_normal(shape)
    if dtype.is_complex:
        values = values + 1j * rng.standard_normal(shape)
    return tp.tensor(values.astype(dtype.numpy))


def conj(x):
    return x.conj() if x.dtype.is_complex else x


# Each operator repeats x, of 3 x 3 elements, along a new first dimension of the result, so that its
# gradient is a sum over that. A formula gives the terms of the sum.

W = {d: array((2, 3, 3), d, seed=1) for d in set(DTYPES.values())}
ONE = {d: tp.tensor((np.arange(9).reshape(3, 3) == 5).astype(d.numpy)) for d in W}

OPERATORS = {
    "x w": (lambda x: x * W[x.dtype], lambda g, x: g * conj(W[x.dtype])),
    "exp(x) w": (
        lambda x: x.exp() * W[x.dtype],
        lambda g, x: g * conj(x.exp() * W[x.dtype]),
    ),
    "x @ w": (lambda x: x @ W[x.dtype], lambda g, x: g @ conj(W[x.dtype]).transpose(1, 2)),
    "(x + 1)**2 w": (
        lambda x: (x + 1) ** 2 * W[x.dtype],
        lambda g, x: g * conj(2 * (x + 1) * W[x.dtype]),
    ),
}


def state():
    """Return a broken formula that drifts from call to call."""
    calls = []

    def broken(terms, g, x):
        calls.append(None)
        return terms(g, x).sum(0) * (1 + 1e-3 * len(calls))

    return broken


# Kind: the broken gradient from the formula of the terms, the verdict, and words of the diagnosis.
KINDS = {
    "constant factor": (lambda: lambda f, g, x: 1.5 * f(g, x).sum(0), "wrong", "constant factor"),
    "sign": (lambda: lambda f, g, x: -f(g, x).sum(0), "wrong", "sign is wrong"),
    "transposed": (lambda: lambda f, g, x: f(g, x).sum(0).t(), "wrong", "transposed"),
    "zero": (lambda: lambda f, g, x: 0 * f(g, x).sum(0), "wrong", "zero where it should not be"),
    "missing sum": (lambda: lambda f, g, x: f(g, x)[0], "wrong", "was not summed"),
    "double counted": (
        lambda: lambda f, g, x: f(g, x).sum(0) + f(g, x)[1],
        "wrong",
        "counted 2 times",
    ),
    "some elements": (
        lambda: lambda f, g, x: f(g, x).sum(0) * (1 - 0.5 * ONE[x.dtype]),
        "wrong",
        "only at 1 of 9 elements of the input (flat: 5)",
    ),
    "ignores the gradient": (
        lambda: lambda f, g, x: f(g * 0 + 1, x).sum(0),
        "wrong",
        "incoming gradient is ignored",
    ),
    "state": (state, "non_deterministic", "keeps state between calls"),
    "kink": (lambda: lambda f, g, x: 3 * f(g, x).sum(0), "wrong", "3.00 x numerical"),
}


def operator(forward, backward, only=None):
    class Op(Function):
        @staticmethod
        def forward(ctx, x):
            if only is not None and x.dtype is not only:
                message = f"expected {only}"
                raise TypeError(message)
            ctx.save_for_backward(x)
            return forward(x)

        @staticmethod
        def backward(ctx, g):
            return backward(g, *ctx.saved_tensors)

    return Op.apply


def kinked(forward, terms):
    """Return an operator and its formula with the corner of relu, and a point at the corner."""

    def slope(x):
        return (x > 0).to(x.dtype)

    return lambda x: forward(tp.relu(x)), lambda g, x: terms(g, tp.relu(x)) * slope(x)


def check(name, kind, mode, *, broken):
    """Return the report on an operator with its formula, broken in one way or whole."""
    dtype = DTYPES[mode]
    forward, terms = OPERATORS[name]
    x = array((3, 3), dtype)
    if kind == "kink":
        forward, terms = kinked(forward, terms)
        x = x * (x > 0).to(dtype)
    wrong = KINDS[kind][0]()

    def backward(g, x):
        return wrong(terms, g, x) if broken else terms(g, x).sum(0)

    only = dtype if mode.endswith("alone") else None
    return gradcheck_report(operator(forward, backward, only), (x.detach().requires_grad_(),))


def applies(kind, mode):
    return not (kind == "kink" and mode == "complex128")  # relu is a function of real numbers


@pytest.mark.parametrize("mode", DTYPES)
@pytest.mark.parametrize("name", OPERATORS)
@pytest.mark.parametrize("kind", KINDS)
def test_broken_formulas_are_found(kind, name, mode):
    if not applies(kind, mode):
        return
    report = check(name, kind, mode, broken=True)
    assert report.verdict == KINDS[kind][1], report.to_text()


@pytest.mark.parametrize("mode", DTYPES)
@pytest.mark.parametrize("name", OPERATORS)
def test_right_formulas_are_not_accused(name, mode):
    report = check(name, "sign", mode, broken=False)
    assert report.verdict == "ok", report.to_text()
    if applies("kink", mode):
        report = check(name, "kink", mode, broken=False)
        assert report.verdict == "not_differentiable_here", report.to_text()
        assert "At a point nearby the gradient is right" in report.message


@pytest.mark.parametrize("mode", DTYPES)
def test_the_diagnosis_names_the_kind(mode):
    named: collections.Counter[bool] = collections.Counter()
    missed = []
    for kind, (_, _, words) in KINDS.items():
        for name in OPERATORS:
            if not applies(kind, mode):
                continue
            pair = check(name, kind, mode, broken=True).pairs[0]
            right = words in f"{pair.cause} {pair.message}"
            if kind == "kink":
                right &= "no derivative here" in str(pair.cause)
            named[right] += 1
            if not right:
                missed.append(f"{kind} of {name}: {pair.cause}; {pair.message}")
    assert named.total() == 4 * (9 if mode == "complex128" else 10)
    assert named[True] >= 0.9 * named.total(), "\n".join(missed)


# --- further patterns -----------------------------------------------------------------------------

FURTHER = {
    "one percent": (lambda g, x: g * 2.02 * conj(x), "1.01 x numerical"),
    "factor x": (lambda g, x: g * 2 * conj(x) * conj(x), "one factor too many"),
    "reversed": (lambda g, x: (g * 2 * conj(x)).flip(0, 1), "reverse order"),
    "lost element": (lambda g, x: g * 2 * conj(x) * (1 - ONE[x.dtype]), "term is missing"),
    "mean": (lambda g, x: g * 2 * conj(x) / 9, "divided by the number of elements"),
}


@pytest.mark.parametrize("mode", DTYPES)
@pytest.mark.parametrize("kind", FURTHER)
def test_further_patterns(kind, mode):
    backward, words = FURTHER[kind]
    dtype = DTYPES[mode]
    only = dtype if mode.endswith("alone") else None
    x = array((3, 3), dtype).requires_grad_()
    report = gradcheck_report(operator(lambda x: x * x, backward, only), (x,))
    assert report.verdict == "wrong"
    assert words in report.pairs[0].cause


@pytest.mark.parametrize("name", ["exp(x) w", "(x + 1)**2 w"])
def test_missing_conjugate_is_named(name):
    forward, terms = OPERATORS[name]
    broken = operator(forward, lambda g, x: terms(g.conj(), x).sum(0).conj())
    report = gradcheck_report(broken, (array((3, 3), tp.complex128).requires_grad_(),))
    assert "conj() is missing or extra" in report.pairs[0].cause
