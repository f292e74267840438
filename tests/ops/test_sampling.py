"""Random operators: distributions, streams, gradients, and the errors."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import tensorplay as tp


def seeded(seed: int = 3) -> tp.Generator:
    return tp.Generator().manual_seed(seed)


@pytest.mark.parametrize(
    "draw",
    [
        lambda g: tp.dropout(tp.ones(50), generator=g),
        lambda g: tp.bernoulli(tp.full((50,), 0.5), generator=g),
        lambda g: tp.multinomial(tp.ones(50), 20, generator=g),
        lambda g: tp.normal(tp.zeros(50), 1.0, generator=g),
        lambda g: tp.normal(0.0, 1.0, (50,), generator=g),
        lambda g: tp.ones(50).normal_(generator=g),
        lambda g: tp.ones(50).uniform_(generator=g),
        lambda g: tp.ones(50).bernoulli_(generator=g),
    ],
)
def test_a_seed_gives_one_stream(draw: Any) -> None:
    generator = seeded()
    first, second = draw(generator).tolist(), draw(generator).tolist()
    assert first == draw(seeded()).tolist()
    assert first != second
    tp.manual_seed(5)
    third = draw(None).tolist()
    tp.manual_seed(5)
    assert draw(None).tolist() == third


def test_dropout_keeps_the_mean_and_passes_gradient_where_it_keeps() -> None:
    x = tp.ones(20_000, requires_grad=True)
    y = tp.dropout(x, 0.25, generator=seeded())
    assert set(np.unique(y.detach().numpy())) == {np.float32(0), np.float32(4 / 3)}
    assert abs(y.mean().item() - 1) < 0.02
    y.sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == y.tolist()
    assert tp.dropout(x, 0.5, training=False) is x
    assert tp.dropout(x, 1.0).abs().sum().item() == 0


def test_means_of_distributions() -> None:
    chances = tp.tensor([0.0, 0.2, 1.0]).unsqueeze(0).expand(20_000, 3)
    drawn = tp.bernoulli(chances, generator=seeded()).mean(0)
    np.testing.assert_allclose(drawn.numpy(), [0, 0.2, 1], atol=0.02)
    weights = tp.tensor([[0.0, 1.0, 3.0], [1.0, 0.0, 0.0]])
    drawn = tp.multinomial(weights, 20_000, replacement=True, generator=seeded())
    share = np.bincount(drawn[0].numpy(), minlength=3) / 20_000
    np.testing.assert_allclose(share, [0, 0.25, 0.75], atol=0.02)
    assert drawn[1].unique().tolist() == [0]
    assert (drawn.dtype, drawn.shape) == (tp.int64, (2, 20_000))


def test_multinomial_without_replacement_repeats_nothing() -> None:
    weights = tp.tensor([1.0, 0.0, 2.0, 3.0])
    first = []
    generator = seeded()
    for _ in range(3000):
        found = tp.multinomial(weights, 3, generator=generator).tolist()
        assert sorted(found) == [0, 2, 3]
        first.append(found[0])
    share = np.bincount(first, minlength=4) / 3000
    np.testing.assert_allclose(share, [1 / 6, 0, 1 / 3, 1 / 2], atol=0.04)


def test_normal_is_differentiable_in_its_parameters() -> None:
    mean = tp.zeros(3, dtype=tp.float64, requires_grad=True)
    std = tp.ones(2, 1, dtype=tp.float64, requires_grad=True)
    drawn = tp.normal(mean, std, generator=seeded())
    drawn.sum().backward()
    assert mean.grad is not None
    assert std.grad is not None
    assert mean.grad.tolist() == [2, 2, 2]
    np.testing.assert_allclose(std.grad.numpy()[:, 0], drawn.detach().numpy().sum(1))
    many = tp.normal(2.0, 3.0, (20_000,), generator=seeded())
    assert abs(many.mean().item() - 2) < 0.1
    assert abs(many.std().item() - 3) < 0.1


@pytest.mark.parametrize("d", [tp.float64, tp.float32, tp.float16, tp.bfloat16], ids=str)
def test_in_place_samplers(d: Any) -> None:
    x = tp.zeros(4000, dtype=d)
    assert x.uniform_(2, 3, generator=seeded()) is x
    assert x._version == 1
    assert x.min().item() >= 2
    assert x.max().item() <= 3
    assert abs(x.double().normal_(1, 2).mean().item() - 1) < 0.3
    assert set(x.bernoulli_(0.5).tolist()) == {0.0, 1.0}


def test_uniform_of_narrow_types_stays_below_one() -> None:
    drawn = tp.ops.sampling.uniform.apply((tp.empty(200_000, dtype=tp.bfloat16), seeded()))
    assert drawn.max().item() < 1


def test_in_place_samplers_end_the_history() -> None:
    x = tp.ones(3, requires_grad=True)
    y = x * 2
    y.bernoulli_(0.5)
    y.sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [0, 0, 0]


def test_meta() -> None:
    x = tp.empty(2, 3, device="meta")
    assert tp.dropout(x).shape == (2, 3)
    assert tp.bernoulli(x).dtype is tp.float32
    assert tp.multinomial(x, 2).shape == (2, 2)
    assert tp.normal(x, 1.0).is_meta
    assert x.normal_() is x


P = tp.ones(3)


@pytest.mark.parametrize(
    ("call", "kind", "text"),
    [
        (lambda: tp.dropout(P, 1.5), ValueError, "between 0 and 1"),
        (lambda: tp.dropout(P, generator=3), TypeError, "expected Generator or None"),
        (lambda: tp.dropout(P.long(), 0.5), TypeError, "floating point"),
        (lambda: tp.bernoulli(P * 2), RuntimeError, "p_in >= 0 && p_in <= 1"),
        (lambda: tp.bernoulli(P * math.nan), RuntimeError, "p_in >= 0 && p_in <= 1"),
        (lambda: tp.bernoulli(P, -0.5), RuntimeError, "p_in >= 0 && p_in <= 1"),
        (lambda: tp.bernoulli(P.long()), TypeError, "floating point"),
        (lambda: tp.multinomial(P, 0), RuntimeError, "n_sample <= 0"),
        (lambda: tp.multinomial(P, 4), RuntimeError, "without replacement"),
        (lambda: tp.multinomial(-P, 1), RuntimeError, "element < 0"),
        (lambda: tp.multinomial(P * math.inf, 1), RuntimeError, "`inf`"),
        (lambda: tp.multinomial(P * 0, 1), RuntimeError, "invalid multinomial"),
        (lambda: tp.multinomial(tp.tensor([1.0, 0.0]), 2), RuntimeError, "at least 2 categories"),
        (lambda: tp.multinomial(P.view(1, 1, 3), 1), RuntimeError, "1 or 2 dim"),
        (lambda: tp.multinomial(P.long(), 1), TypeError, "floating point"),
        (lambda: tp.normal(0.0, -1.0, (2,)), RuntimeError, "std >= 0.0"),
        (lambda: tp.normal(P, -P), RuntimeError, "std >= 0.0"),
        (lambda: tp.normal(0.0, 1.0), TypeError, "Both mean and std are numbers"),
        (lambda: tp.normal(P, 1.0, (3,)), TypeError, "beside a tensor"),
        (lambda: tp.normal("0", 1.0), TypeError, "expected Tensor or number"),
        (lambda: tp.ones(2).normal_(0, -1), RuntimeError, "std >= 0.0"),
        (lambda: tp.ones(2).uniform_(1, 0), RuntimeError, "low <= high"),
        (lambda: tp.ones(2, requires_grad=True).uniform_(), RuntimeError, "leaf Variable"),
    ],
)  # fmt: skip
def test_errors(call: Any, kind: type[Exception], text: str) -> None:
    with pytest.raises(kind, match=text):
        call()
