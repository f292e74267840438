"""Several results on one memory: which have history, which are one tensor, and whose they are."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import tensorplay as tp


class TimesFive(tp.autograd.Function):
    """The identity, with a formula of its own."""

    @staticmethod
    def forward(ctx, x):
        return x

    @staticmethod
    def backward(ctx, g):
        return 5 * g


# What one function returns of its argument x and of y = 2 * x.
COMPILED = {
    "x": lambda x, y: x,
    "x.detach()": lambda x, y: x.detach(),
    "x[:1]": lambda x, y: x[:1],
    "y": lambda x, y: y,
    "y.detach()": lambda x, y: y.detach(),
    "y.data": lambda x, y: y.data,
    "y.view": lambda x, y: y.view(2),
    "y[:1]": lambda x, y: y[:1],
    "y.detach()[:1]": lambda x, y: y.detach()[:1],
    "y[:1].detach()": lambda x, y: y[:1].detach(),
    "y.view.flip": lambda x, y: y.view(2)[:].flip(0),
    "y.unsqueeze[0]": lambda x, y: y.unsqueeze(0)[0],
    "3 * y": lambda x, y: 3 * y,
}
# No program can give these back: they run eagerly.
EAGER = {
    "leaf on x": lambda x, y: x.detach().requires_grad_(),
    "view of a leaf on x": lambda x, y: x.detach().requires_grad_()[:1],
    "leaf on y": lambda x, y: y.detach().requires_grad_(),
    "view of a leaf on y": lambda x, y: y.detach().requires_grad_()[:1],
    "formula of y": lambda x, y: TimesFive.apply(y),
    "formula of y[:1]": lambda x, y: TimesFive.apply(y[:1]),
    "view of a formula of y": lambda x, y: TimesFive.apply(y).view(2)[:1],
    "formula of x": lambda x, y: TimesFive.apply(x),
    "view of a formula of x": lambda x, y: TimesFive.apply(x)[:1],
}
ALL = {**COMPILED, **EAGER}


def described(function, requires_grad: bool) -> list[object]:
    x = tp.ones(2, requires_grad=requires_grad)
    results = function(x)
    facts = []
    for one in results:
        gradient = None
        if requires_grad and one.requires_grad:
            (gradient,) = tp.autograd.grad(one.sum(), [x], retain_graph=True, allow_unused=True)
        facts.append([
            one.tolist(), one.requires_grad, one.is_leaf, one is x,
            None if gradient is None else gradient.tolist(),
            [one is other for other in results],
            [np.may_share_memory(one._array, other._array) for other in (x, *results)],
        ])  # fmt: skip
    return facts


@pytest.mark.parametrize("requires_grad", [True, False])
@pytest.mark.parametrize("first", ALL)
def test_pairs_of_results_on_one_memory_are_as_eager_ones(first: str, requires_grad: bool) -> None:
    for names in [(first,), *itertools.product([first], ALL)]:

        def function(x, names=names):
            y = 2 * x
            return tuple(ALL[n](x, y) for n in names)

        f = tp.compile(function, fullgraph=COMPILED.keys() >= {*names})
        expected = described(function, requires_grad)
        assert described(f, requires_grad) == expected, names
        assert described(f, requires_grad) == expected, names


def test_three_results_of_which_the_last_is_live(backend) -> None:
    def function(x):
        y = 2 * x
        z = y.detach()
        return z, y.detach(), y, z, y

    f = tp.compile(function, backend=backend, fullgraph=True)
    assert described(f, True) == described(function, True)
    with tp.no_grad():
        assert described(f, False) == described(function, False)
