"""The extension's formulas of neural networks give what NumPy's functions give, to the last bit."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import tensorplay as tp
from tensorplay import _native
from tensorplay.ops import OPERATORS, activation, classes, nn

pytestmark = pytest.mark.skipif(_native.core is None, reason=f"extension: {_native.reason}")
core: Any = _native.core

SPECIAL = [0.0, -0.0, np.inf, -np.inf, np.nan, 88.0, -104.0, 1e-42]


@st.composite
def rows(draw: Any) -> Any:
    """Return an array with at least one element, of some type and rank."""
    shape = (*draw(st.lists(st.integers(1, 5), max_size=2)), draw(st.integers(1, 40)))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    x = rng.standard_normal(shape) * draw(st.sampled_from([1.0, 30.0]))
    if draw(st.booleans()):
        x = np.where(rng.random(shape) < 0.2, rng.choice(SPECIAL, shape), x)
    return x.astype(draw(st.sampled_from([np.float32, np.float64])))


def same(a: Any, b: Any) -> bool:
    """Compare type and bits, but for those of NaN."""
    return a.dtype == b.dtype and a.shape == b.shape and np.array_equal(a, b, equal_nan=True)


@settings(deadline=None, max_examples=150)
@given(x=rows(), logarithm=st.booleans())
def test_softmax(x: Any, logarithm: bool) -> None:
    compute = nn._log_softmax if logarithm else nn._softmax
    with np.errstate(all="ignore"):
        assert same(core.softmax(x, logarithm), compute(x, x.ndim - 1))


@settings(deadline=None, max_examples=150)
@given(data=st.data(), logarithm=st.booleans())
def test_gradient_of_softmax(data: Any, logarithm: bool) -> None:
    x = data.draw(rows())
    g = np.random.default_rng(0).standard_normal(x.shape).astype(x.dtype)
    out = core.softmax(x, logarithm)
    with np.errstate(all="ignore"):
        if logarithm:
            expected = g - np.exp(out) * g.sum(-1, keepdims=True)
        else:
            expected = g * out - out * (g * out).sum(-1, keepdims=True)
    assert same(core.softmax_gradient(g, out, logarithm), expected)


@settings(deadline=None, max_examples=40)
@given(x=rows())
def test_gradient_of_relu(x: Any) -> None:
    g = np.random.default_rng(0).choice([1.5, -2.0, np.inf, np.nan], x.shape).astype(x.dtype)
    out = np.maximum(x, 0)
    # Of any size: beyond some other threads run meanwhile.
    large = np.tile(out.reshape(-1), 5000), np.tile(g.reshape(-1), 5000)
    for result, gradient in ((out, g), large):
        expected = np.where(result <= 0, x.dtype.type(0), gradient)
        assert same(core.relu_gradient(gradient, result), expected)


@settings(deadline=None, max_examples=80)
@given(data=st.data())
def test_mean_of_nll_loss(data: Any) -> None:
    x = data.draw(rows()).reshape(-1, 1)
    x = np.concatenate([x, x + 1, -x], axis=1)
    target = np.random.default_rng(data.draw(st.integers(0, 99))).integers(-1, 3, len(x))
    with np.errstate(all="ignore"):
        expected = np.asarray(classes._nll_mean(x, target, -1))
        for given_ in (target, np.repeat(target, 2)[::2], target[::-1].copy()[::-1]):
            assert same(core.nll_loss(x, given_, -1), expected)
        g = np.asarray(0.7, x.dtype)
        share = -(g / np.count_nonzero(target >= 0)).astype(x.dtype)
    placed = np.where(np.arange(3) == target[:, None], share, x.dtype.type(0))
    assert same(core.nll_loss_gradient(g, target, -1, 3), placed)


def test_what_is_left_to_numpy() -> None:
    x = np.ones((2, 3), np.float32)
    target = np.array([0, 2])
    for other in (x.T, x.astype(np.float16), np.ones((65, 64)), [1.0], x[:, ::2], x[:0]):
        assert core.softmax(other, True) is None
        assert core.softmax_gradient(other, x, True) is None
    assert core.softmax(np.ones((), np.float32), False) is None
    assert core.relu_gradient(x, x.astype(np.float64)) is None
    assert core.relu_gradient(x, x[:1]) is None
    for wrong in (np.array([0, 3]), np.array([-1, 0]), np.array([0]),
                  target.astype(np.int32), target[:, None], [0, 2]):  # fmt: skip
        assert core.nll_loss(x, wrong, -100) is None
    assert core.nll_loss(x[0], target, -100) is None
    assert core.nll_loss_gradient(np.float32(1).reshape(1), target, -100, 3) is None
    # No class is one that no integer of 64 bits can be, which NumPy knows.
    assert core.nll_loss(x, target, 2**70) is None
    assert core.nll_loss_gradient(np.asarray(np.float32(1)), target, 2**70, 3) is None
    for function in ("softmax", "softmax_gradient", "relu_gradient", "nll_loss"):
        with pytest.raises(TypeError, match=function):
            getattr(core, function)()


def test_both_ways_of_the_rules_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    def run() -> list[bytes]:
        x = tp.linspace(-3.0, 3.0, 12).reshape(3, 4).requires_grad_()
        target = tp.tensor([1, -100, 3])
        losses = (
            tp.cross_entropy(x.relu(), target),
            (x.softmax(1) * x.detach()).sum(),
            (x.log_softmax(-1) * x.detach()).sum(),
            (x.softmax(0) * x.detach()).sum(),
        )
        return [tp.autograd.grad(loss, x)[0].numpy().tobytes() for loss in losses]

    compiled = run()
    with monkeypatch.context() as patch:
        for module in (nn, classes, activation):
            patch.setattr(module._native, "core", None)
        assert run() == compiled


def test_warnings_are_not_for_people() -> None:
    x = tp.tensor([[np.inf, 1.0], [-np.inf, -np.inf]], requires_grad=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tp.cross_entropy(x, tp.tensor([0, -100])).backward()
        assert tp.cross_entropy(x, tp.tensor([-100, -100])).isnan()
        tp.nn.functional.linear(x, x, x[0]).sum().backward()


def test_the_loss_is_one_node() -> None:
    x = tp.ones(2, 3, requires_grad=True)
    node = tp.cross_entropy(x, tp.tensor([0, 1])).grad_fn
    assert node.name() == "NllLossBackward"
    assert [n.name() for n, _ in node.next_functions if n] == ["LogSoftmaxBackward"]
    assert OPERATORS["linear"].function(x, x, x[0, :2]).grad_fn.name() == "LinearBackward"


def test_a_target_that_is_written_is_found_out() -> None:
    x = tp.ones(2, 3, requires_grad=True)
    target = tp.tensor([0, 1])
    loss = tp.cross_entropy(x, target)
    target.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()
