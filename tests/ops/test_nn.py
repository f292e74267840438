"""Activations along a dimension, losses and normalisation."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import tensorplay as tp

# --- softmax --------------------------------------------------------------------------------------


def test_large_exponents_neither_overflow_nor_vanish() -> None:
    x = tp.tensor([1000.0, 1001.0, -1000.0], dtype=tp.float64)
    assert x.softmax(0).tolist() == pytest.approx([1 / (1 + math.e), math.e / (1 + math.e), 0.0])
    assert x.log_softmax(0).tolist() == pytest.approx(
        [-1 - math.log1p(math.exp(-1)), -math.log1p(math.exp(-1)), -2001 - math.log1p(math.exp(-1))]
    )


def test_masked_positions_get_probability_zero_and_gradient_zero() -> None:
    x = tp.tensor([[0.0, -math.inf, 0.0]]).requires_grad_()
    y = x.softmax(-1)
    assert y.tolist() == [[0.5, 0.0, 0.5]]
    (y * tp.tensor([1.0, 2.0, 3.0])).sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [[-0.5, 0.0, 0.5]]


@pytest.mark.parametrize("function", [tp.softmax, tp.log_softmax])
def test_softmax_keeps_only_its_result(function: Any) -> None:
    leaf = tp.ones(2, 3).requires_grad_()
    x = leaf * 1
    y = function(x, -1)
    with tp.no_grad():
        x.zero_()
    y.sum().backward()
    y = function(leaf * 1, -1)
    with tp.no_grad():
        y.zero_()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_dtype_argument_computes_in_that_type() -> None:
    x = tp.tensor([1, 2])
    with pytest.raises(TypeError, match="floating point"):
        x.softmax(0)
    assert x.softmax(0, dtype=tp.float64).dtype is tp.float64
    half = tp.tensor([12.0, 0.0], dtype=tp.float16).requires_grad_()
    y = half.softmax(0, tp.float32)
    assert y.dtype is tp.float32
    y[1].backward()
    assert half.grad is not None
    assert half.grad.dtype is tp.float16


def test_half_precision_is_summed_in_float32() -> None:
    x = tp.zeros(100_000, dtype=tp.float16)  # the sum is above the largest float16
    assert float(x.log_softmax(0)[0]) == pytest.approx(-math.log(100_000), rel=1e-3)


def test_dim_out_of_range() -> None:
    for device in ("cpu", "meta"):
        with pytest.raises(IndexError, match=r"range of \[-2, 1\], but got 2"):
            tp.ones(2, 3).to(device).softmax(2)


# --- losses ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("rows", [5, 0])
@pytest.mark.parametrize("soft", [False, True])
def test_cross_entropy_without_classes(smoothing: float, rows: int, soft: bool) -> None:
    x = tp.zeros(rows, 0, requires_grad=True)
    target = tp.zeros(rows, 0) if soft else tp.full((rows,), -100)
    losses = {
        r: tp.cross_entropy(x, target, reduction=r, label_smoothing=smoothing)
        for r in ("mean", "sum", "none")
    }
    unbounded = bool(smoothing) and not soft  # the share of each of no classes
    assert losses["mean"].isnan()
    assert losses["sum"].isnan() == (unbounded and rows > 0)
    assert losses["none"].isnan().tolist() == [unbounded] * rows
    losses["mean"].backward()
    assert x.grad is not None
    assert x.grad.shape == (rows, 0)


def test_cross_entropy_is_the_loss_of_log_softmax() -> None:
    x = tp.tensor([[2.0, 0.0, -1.0], [0.0, 1.0, 0.0]], dtype=tp.float64).requires_grad_()
    y = tp.tensor([0, 2])
    loss = tp.cross_entropy(x, y)
    expected = tp.nll_loss(x.log_softmax(1), y)
    assert loss.item() == pytest.approx(expected.item())
    loss.backward()
    probabilities = np.exp(x.detach().numpy()) / np.exp(x.detach().numpy()).sum(1, keepdims=True)
    assert x.grad is not None
    np.testing.assert_allclose(x.grad.numpy(), (probabilities - np.eye(3)[[0, 2]]) / 2)


def test_probabilities_that_are_one_hot_give_the_loss_of_classes() -> None:
    x = tp.randn(3, 4, 2, dtype=tp.float64)
    y = tp.randint(0, 4, (3, 2))
    soft = tp.one_hot(y, 4).movedim(-1, 1).double()
    for reduction in ("mean", "sum", "none"):
        np.testing.assert_allclose(
            tp.cross_entropy(x, y, reduction="sum").item(),
            tp.cross_entropy(x, soft, reduction="sum").item(),
        )
        shape = tp.cross_entropy(x, y, reduction=reduction).shape
        assert shape == ((3, 2) if reduction == "none" else ())


def test_ignored_targets_do_not_count() -> None:
    x = tp.randn(3, 4, dtype=tp.float64).requires_grad_()
    loss = tp.cross_entropy(x, tp.tensor([1, -100, 2]))
    assert loss.item() == pytest.approx(tp.cross_entropy(x[::2], tp.tensor([1, 2])).item())
    loss.backward()
    assert x.grad is not None
    assert x.grad[1].tolist() == [0.0] * 4
    # The mean over nothing is not a number, the sum is zero.
    assert math.isnan(tp.cross_entropy(x, tp.full((3,), 7), ignore_index=7).item())
    assert tp.cross_entropy(x, tp.full((3,), 7), ignore_index=7, reduction="sum").item() == 0.0


def test_infinite_loss_of_an_ignored_target_does_not_spread() -> None:
    x = tp.tensor([[0.0, -math.inf], [0.0, 0.0]]).requires_grad_()
    loss = tp.nll_loss(x, tp.tensor([-100, 0]))
    assert loss.item() == 0.0
    loss.backward()
    assert x.grad is not None
    assert x.grad.tolist() == [[0.0, 0.0], [-1.0, 0.0]]


def test_logits_loss_is_exact_for_large_and_zero_logits() -> None:
    x = tp.tensor([100.0, -100.0, 0.0], dtype=tp.float64).requires_grad_()
    y = tp.tensor([0.0, 0.0, 0.5], dtype=tp.float64)
    loss = tp.binary_cross_entropy_with_logits(x, y, reduction="none")
    assert loss.tolist() == pytest.approx([100.0, math.exp(-100), math.log(2)])
    loss.sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == pytest.approx([1.0, math.exp(-100), 0.0])


def test_certain_mistakes_are_bounded() -> None:
    p = tp.tensor([0.0, 1.0, 1.0])
    y = tp.tensor([1.0, 0.0, 1.0])
    assert tp.binary_cross_entropy(p, y, reduction="none").tolist() == [100.0, 100.0, 0.0]


def test_losses_broadcast_as_arithmetic_does() -> None:
    assert tp.mse_loss(tp.ones(2, 3), tp.zeros(3)).item() == 1.0
    assert tp.l1_loss(tp.ones(2), tp.tensor([3.0, -1.0]), reduction="sum").item() == 4.0


@pytest.mark.parametrize(
    ("call", "kind", "text"),
    [
        (lambda x: tp.cross_entropy(x, tp.tensor([0, 3])), IndexError, "Target 3 is out of bounds"),
        (
            lambda x: tp.cross_entropy(x, tp.tensor([0, -1])),
            IndexError,
            "Target -1 is out of bounds",
        ),
        (lambda x: tp.cross_entropy(x, tp.tensor([0])), ValueError, r"target size \[2\]"),
        (lambda x: tp.cross_entropy(x, tp.ones(2)), ValueError, "probabilities of the size"),
        (lambda x: tp.cross_entropy(x, tp.tensor([True, False])), TypeError, "class indices"),
        (
            lambda x: tp.cross_entropy(x, tp.tensor([0, 1]), tp.ones(2)),
            ValueError,
            "weight tensor should be defined either for all 3 classes",
        ),
        (
            lambda x: tp.cross_entropy(x, tp.tensor([0, 1]), reduction="avg"),
            ValueError,
            "not a valid value for reduction",
        ),
        (
            lambda x: tp.cross_entropy(x, tp.tensor([0, 1]), label_smoothing=2.0),
            ValueError,
            "between 0.0 and 1.0",
        ),
        (lambda x: tp.cross_entropy(x[0, 0], tp.tensor(0)), ValueError, "at least 1 dimension"),
        (lambda x: tp.cross_entropy(x, [0, 1]), TypeError, "argument 'target'"),
        (lambda x: tp.mse_loss(x, tp.ones(2)), RuntimeError, "must match the size of tensor b"),
        (lambda x: tp.binary_cross_entropy(x * 2, x), RuntimeError, "between 0 and 1"),
        (lambda x: tp.binary_cross_entropy(x, tp.ones(2)), ValueError, "different target size"),
        (
            lambda x: tp.binary_cross_entropy_with_logits(x, tp.ones(2)),
            ValueError,
            "must be the same as input size",
        ),
        (lambda x: tp.smooth_l1_loss(x, x, beta=-1.0), ValueError, "at least 0"),
        (lambda x: tp.layer_norm(x, (2,)), RuntimeError, r"input with shape \[\*, 2\]"),
        (
            lambda x: tp.layer_norm(x, (3,), tp.ones(2)),
            RuntimeError,
            "weight and bias of the shape",
        ),
        (lambda x: tp.layer_norm(x, ()), RuntimeError, "normalized_shape"),
        (tp.one_hot, TypeError, "class indices of type int64"),
        (lambda x: tp.one_hot(tp.tensor([3]), 3), IndexError, "class values must be from 0 to 2"),
        (lambda x: tp.one_hot(tp.tensor([-1]), 3), IndexError, "class values"),
        (lambda x: tp.one_hot(tp.zeros(0, dtype=tp.int64)), RuntimeError, "empty tensor"),
        (lambda x: tp.embedding(tp.tensor([2]), x), IndexError, "out of bounds"),
        (lambda x: tp.embedding(tp.tensor([0]), x[0]), RuntimeError, "must be 2-D"),
    ],
)
def test_error(call: Any, kind: type[Exception], text: str) -> None:
    with pytest.raises(kind, match=text) as caught:
        call(tp.ones(2, 3))
    assert str(caught.value).startswith("[")


# --- normalisation and classes --------------------------------------------------------------------


def test_layer_norm_gives_mean_zero_and_variance_one() -> None:
    y = tp.layer_norm(tp.randn(4, 50, dtype=tp.float64) * 7 + 3, (50,), eps=0.0)
    np.testing.assert_allclose(y.mean(1).numpy(), 0, atol=1e-12)
    np.testing.assert_allclose(y.var(1, correction=0).numpy(), 1)


def test_repeated_classes_add_up_in_the_gradient_of_an_embedding() -> None:
    weight = tp.ones(3, 2).requires_grad_()
    tp.embedding(tp.tensor([[2, 0], [2, 2]]), weight).sum().backward()
    assert weight.grad is not None
    assert weight.grad.tolist() == [[1.0, 1.0], [0.0, 0.0], [3.0, 3.0]]


def test_one_hot_infers_the_number_of_classes() -> None:
    assert tp.one_hot(tp.tensor([0, 2])).tolist() == [[1, 0, 0], [0, 0, 1]]
    assert tp.one_hot(tp.tensor([0]).to("meta"), 4).shape == (1, 4)
    with pytest.raises(NotImplementedError, match="Pass num_classes"):
        tp.one_hot(tp.tensor([0]).to("meta"))


def test_small_network_learns() -> None:
    tp.manual_seed(0)
    x = tp.randn(64, 2)
    y = (x[:, 0] * x[:, 1] > 0).long()
    w1, b1 = (tp.randn(16, 2) * 0.7).requires_grad_(), tp.zeros(16).requires_grad_()
    w2, b2 = (tp.randn(2, 16) * 0.3).requires_grad_(), tp.zeros(2).requires_grad_()
    parameters = [w1, b1, w2, b2]
    losses = []
    for _ in range(150):
        hidden = tp.linear(x, w1, b1).tanh()
        loss = tp.cross_entropy(tp.linear(hidden, w2, b2), y)
        gradients = tp.autograd.grad(loss, parameters)
        with tp.no_grad():
            for p, g in zip(parameters, gradients, strict=True):
                p.sub_(g)
        losses.append(loss.item())
    assert losses[-1] < 0.3 * losses[0]


@pytest.mark.parametrize("name", ["cross_entropy", "nll_loss"])
@pytest.mark.parametrize("options", [{}, {"reduction": "sum"}, {"weight": tp.ones(3)}], ids=str)
def test_a_wrong_class_names_the_function_that_was_called(name: str, options: Any) -> None:
    def loss(x: Any, target: Any) -> Any:
        return getattr(tp.nn.functional, name)(x, target, **options)

    x, wrong = tp.ones(2, 3), tp.tensor([0, 5])
    compiled = tp.compile(loss)
    compiled(x, tp.tensor([0, 1]))
    for call in (loss, compiled, lambda x, t: tp.func.vmap(loss)(x[None], t[None])):
        with pytest.raises(IndexError, match=rf"\[{name}\] argument 'target': Target 5"):
            call(x, wrong)
