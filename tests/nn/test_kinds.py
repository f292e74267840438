"""Options and arguments of another kind are refused where they are given, by name."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

import tensorplay as tp
from tensorplay import nn
from tensorplay.nn import functional as F  # noqa: N812 - the field's name of it

Call = Callable[[], Any]
X = tp.ones(2, 1, 4)
ROWS: list[tuple[Call, type[Exception], str]] = [
    (lambda: nn.Linear(2.5, 3), TypeError, r"\[Linear\] argument 'in_features': expected int, got"),
    (lambda: nn.Conv2d(1, 1, "3"), TypeError, "'kernel_size': expected int, got str"),
    (lambda: nn.Conv2d(1, 1, None), TypeError, "'kernel_size': expected int, got NoneType"),
    (lambda: nn.Conv2d(1, 1, (3, 2.0)), TypeError, "'kernel_size': expected int, got float"),
    (lambda: nn.Conv2d(1, 1, 0), ValueError, "'kernel_size': expected at least 1, got 0"),
    (lambda: nn.Conv1d(1, 1, 1, 0), ValueError, "'stride': expected at least 1, got 0"),
    (lambda: nn.Conv1d(1, 1, 1, dilation=-1), ValueError, "'dilation': expected at least 1, got"),
    (lambda: nn.Conv2d(1, 1, 1, padding=(0, -1)), ValueError, "'padding': expected at least 0"),
    (lambda: nn.Conv2d(1, 1, 1, groups="1"), TypeError, "'groups': expected int, got str"),
    (lambda: nn.Dropout("0.5"), TypeError, r"\[Dropout\] argument 'p': expected float, got str"),
    (lambda: nn.Dropout(math.nan), ValueError, "probability between 0 and 1, got nan"),
    (lambda: nn.Dropout2d(2), ValueError, "probability between 0 and 1, got 2"),
    (lambda: nn.LSTM(2, 2, dropout="a"), TypeError, "'dropout': expected float, got str"),
    (lambda: nn.GRU(2, 2, dropout=-1), ValueError, "'dropout': expected a probability"),
    (lambda: nn.LayerNorm(None), TypeError, "'normalized_shape': expected int, got NoneType"),
    (lambda: nn.LayerNorm("ab"), TypeError, "'normalized_shape': expected int, got str"),
    (lambda: nn.RMSNorm((2, -1)), ValueError, "'normalized_shape': expected at least 0, got -1"),
    (lambda: nn.GroupNorm(2.0, 4), TypeError, "'num_groups': expected int, got float"),
    (lambda: nn.Embedding(3, 2, "1"), TypeError, "'padding_idx': expected int or None, got str"),
    (
        lambda: nn.Embedding(3, 2, max_norm="a")(tp.tensor([1])),
        TypeError,
        "'max_norm': expected float or None, got str",
    ),
    (
        lambda: nn.Embedding(3, 2, max_norm=-1)(tp.tensor([1])),
        ValueError,
        "'max_norm': expected at least 0, got -1",
    ),
    (
        lambda: nn.Embedding.from_pretrained([[1.0]]),
        TypeError,
        r"\[Embedding\] argument 'embeddings': expected Tensor, got list",
    ),
    (lambda: nn.MultiheadAttention("4", 2), TypeError, "'embed_dim': expected int, got str"),
    (lambda: nn.MultiheadAttention(4, 2.0), TypeError, "'num_heads': expected int, got float"),
    (lambda: nn.MultiheadAttention(4, 2, 2.0), ValueError, "'dropout': expected a probability"),
    (
        lambda: nn.MultiheadAttention(4, 2)(X, X, X, attn_mask=[[True]]),
        TypeError,
        "'attn_mask': expected Tensor, got list",
    ),
    (
        lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(4, 2, 8), "2"),
        TypeError,
        "'num_layers': expected int, got str",
    ),
    (
        lambda: nn.ModuleList(3),
        TypeError,
        r"\[ModuleList\] argument 'modules': expected an iterable.*Write a list",
    ),
    (
        lambda: nn.ParameterList(3),
        TypeError,
        r"\[ParameterList\] argument 'values': expected an iterable",
    ),
    (lambda: nn.Linear(1, 1).apply(3), TypeError, r"\[apply\] argument 'fn': expected a function"),
    (lambda: nn.init.uniform_(3.0), TypeError, r"\[uniform_\] argument 'tensor': expected Tensor"),
    (lambda: nn.init.normal_([1.0]), TypeError, r"\[normal_\] argument 'tensor': expected Tensor"),
    (lambda: nn.init.zeros_([1.0]), TypeError, "argument 'tensor': expected Tensor, got list"),
    (lambda: F.dropout(X, 2.0), ValueError, r"\[dropout\] argument 'p'"),
    (lambda: F.cross_entropy(X[:, 0], tp.tensor([0, 4])), IndexError, r"\[cross_entropy\]"),
    (lambda: F.cross_entropy(X[:, 0], tp.tensor([0, -1])), IndexError, r"\[cross_entropy\]"),
    (lambda: F.nll_loss(X[:, 0], tp.tensor([0, 4])), IndexError, r"\[nll_loss\]"),
]


@pytest.mark.parametrize(("call", "kind", "words"), ROWS)
def test_what_is_given_is_refused_by_name(call: Call, kind: type[Exception], words: str) -> None:
    with pytest.raises(kind, match=words) as caught:
        call()
    assert str(caught.value).startswith("[")


def test_initial_values_of_numbers() -> None:
    g = tp.Generator().manual_seed(0)
    x = nn.Parameter(tp.empty(10_000))
    assert nn.init.uniform_(x, 2.0, 3.0, generator=g) is x
    assert 2 <= x.min() < 2.01
    assert 2.99 < x.max() < 3
    nn.init.normal_(x, 1.0, 0.5, generator=g)
    assert x.mean().item() == pytest.approx(1.0, abs=0.02)
    assert x.std().item() == pytest.approx(0.5, abs=0.02)
    assert nn.init.zeros_(x).abs().sum() == 0
    assert x.requires_grad
    assert x.grad_fn is None
