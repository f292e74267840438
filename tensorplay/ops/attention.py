"""Attention."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np

from tensorplay import _dtype
from tensorplay._tensor import Tensor, wrap
from tensorplay.ops.indexing import repeat_interleave
from tensorplay.ops.linalg import matmul
from tensorplay.ops.masks import mask_tensor, masked_fill
from tensorplay.ops.nn import softmax
from tensorplay.ops.primitive import Composite, Sample
from tensorplay.ops.sampling import dropout

__all__: list[str] = []

_NAME = "scaled_dot_product_attention"


def _check(query: Tensor, key: Tensor, value: Tensor, mask: Any, is_causal: bool) -> None:
    for argument, x in (("query", query), ("key", key), ("value", value)):
        if x.ndim < 2:
            raise RuntimeError(
                f"[{_NAME}] argument '{argument}': expected at least 2 dimensions, got {x.ndim}."
            )
        if x._dtype is not query._dtype or not x._dtype.is_floating_point:
            raise TypeError(
                f"[{_NAME}] argument '{argument}': expected query, key and value of one floating "
                f"point dtype, got {query._dtype!r} and {x._dtype!r}."
            )
    if mask is None:
        return
    if is_causal:
        raise RuntimeError(
            f"[{_NAME}] argument 'attn_mask': Explicit attn_mask should not be set when "
            "is_causal=True."
        )
    if mask._dtype not in (_dtype.bool_, query._dtype):
        raise TypeError(
            f"[{_NAME}] argument 'attn_mask': expected bool or {query._dtype!r}, got "
            f"{mask._dtype!r}."
        )


def _attention(
    query: Any,
    key: Any,
    value: Any,
    mask: Any,
    dropout_p: float,
    is_causal: bool,
    scale: float | None,
    enable_gqa: bool,
    generator: Any,
) -> Any:
    _check(query, key, value, mask, is_causal)
    if enable_gqa:
        heads = [x.shape[-3] if x.ndim > 2 else 1 for x in (query, key, value)]
        if any(n == 0 or heads[0] % n for n in heads[1:]):
            raise RuntimeError(
                f"[{_NAME}] Number of heads in key and value must divide the number of heads in "
                f"query, got {heads[1]} and {heads[2]} for {heads[0]}."
            )
        key, value = (
            x if n == heads[0] else repeat_interleave(x, heads[0] // n, -3)
            for x, n in zip((key, value), heads[1:], strict=True)
        )
    factor = 1 / math.sqrt(max(query.shape[-1], 1)) if scale is None else scale
    scores: Any = matmul.run(query * factor, key.transpose(-2, -1))
    if is_causal:
        mask = mask_tensor(np.tril(np.ones(scores.shape[-2:], np.bool_)))
        mask = mask.to(query.device)
    if mask is None:
        weights: Any = softmax.apply((scores, -1, None))
    elif mask._dtype is _dtype.bool_:
        # The lowest number, not -inf: a row in which nothing is seen has zeros for weights.
        lowest = -_dtype.finfo(scores._dtype).max
        weights = softmax.apply((masked_fill.apply((scores, ~mask, lowest)), -1, None))
        weights = masked_fill.apply((weights, ~mask, 0))
    else:
        weights = softmax.apply((scores + mask, -1, None))
    if dropout_p:
        weights = dropout.apply((weights, dropout_p, True, generator))
    return matmul.run(weights, value)


def _samples(make: Any) -> Iterable[Sample]:
    yield Sample((make(2, 3, 4), make(2, 5, 4), make(2, 5, 2)), name="plain")
    yield Sample((make(3, 2), make(3, 2), make(3, 2)), {"is_causal": True}, name="causal")
    seen = wrap(np.array([[True, False], [True, True], [False, False]]))
    yield Sample((make(3, 2), make(2, 2), make(2, 1), seen), {"scale": 0.3}, name="bool mask")
    yield Sample((make(3, 2), make(2, 2), make(2, 1), make(3, 2)), name="mask")
    yield Sample(
        (make(4, 2, 2), make(2, 3, 2), make(2, 3, 1)), {"enable_gqa": True}, name="grouped heads"
    )


scaled_dot_product_attention = Composite(
    f"{_NAME}(Tensor query, Tensor key, Tensor value, Tensor? attn_mask=None, "
    "float dropout_p=0.0, bool is_causal=False, *, float? scale=None, bool enable_gqa=False, "
    "Generator? generator=None) -> Tensor",
    "``softmax(scale * query @ key.T + attn_mask) @ value``; `scale` is one over the root of the "
    "last size by default; a bool mask says what is seen, `is_causal` that nothing later is; "
    "`enable_gqa` repeats the heads of key and value.",
    _attention,
    method=False,
    samples=_samples,
)
