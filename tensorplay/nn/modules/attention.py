"""Attention with several heads, and the layer of a transformer's encoder.

After Vaswani et al., "Attention is all you need" (2017).
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import tensorplay as _tp
from tensorplay._dtype import bool_
from tensorplay._tensor import Tensor
from tensorplay.nn import functional as F, init
from tensorplay.nn.module import Module
from tensorplay.nn.modules.containers import ModuleList
from tensorplay.nn.modules.linear import Linear, empty_parameter, want_probability, want_sizes
from tensorplay.nn.modules.normalisation import Dropout, LayerNorm
from tensorplay.nn.parameter import Parameter
from tensorplay.ops.arguments import want_tensors
from tensorplay.ops.kinds import checked

__all__ = ["MultiheadAttention", "TransformerEncoder", "TransformerEncoderLayer"]


class MultiheadAttention(Module):
    """Attention of queries to keys, in heads of ``embed_dim/num_heads`` numbers.

    Parameters
    ----------
    embed_dim
        Numbers of a query, key, value and output; a multiple of `num_heads`.
    num_heads
        Heads.
    dropout
        Probability of dropout of attention weights, when training.
    bias
        Whether the projections have biases.
    batch_first
        Whether inputs and outputs are (batch, steps, …) instead of (steps, batch, …).
    device, dtype
        Those of the parameters.

    Attributes
    ----------
    in_proj_weight
        Shape (3·embed_dim, embed_dim): query, key and value, one below the other.
    in_proj_bias
        Shape (3·embed_dim,), or None.
    out_proj
        The `Linear` of the outputs.

    Raises
    ------
    ValueError
        `num_heads` does not divide `embed_dim`.
    """

    in_proj_weight: Parameter
    in_proj_bias: Parameter | None

    @checked
    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        dropout: float = 0.0,
        bias: bool = True,
        *,
        batch_first: bool = False,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        want_sizes("MultiheadAttention", embed_dim=embed_dim, num_heads=num_heads)
        want_probability("MultiheadAttention", "dropout", dropout)
        if num_heads < 1 or embed_dim % num_heads:
            message = (
                "[MultiheadAttention] argument 'embed_dim': must be divisible by num_heads, got "
                f"{embed_dim} and num_heads={num_heads}."
            )
            raise ValueError(message)
        self.embed_dim, self.num_heads, self.dropout = embed_dim, num_heads, dropout
        self.batch_first = batch_first
        self.in_proj_weight = empty_parameter((3 * embed_dim, embed_dim), device, dtype)
        self.register_parameter(
            "in_proj_bias", empty_parameter((3 * embed_dim,), device, dtype) if bias else None
        )
        self.out_proj = Linear(embed_dim, embed_dim, bias, device, dtype)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the parameters anew: Glorot's bound for the projections, zeros for biases."""
        if self.in_proj_weight.is_meta:
            return
        init.xavier_uniform_(self.in_proj_weight)
        if self.in_proj_bias is not None:
            init.zeros_(self.in_proj_bias)
        if self.out_proj.bias is not None:
            init.zeros_(self.out_proj.bias)

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """Return the outputs, and the weights by `need_weights`.

        Parameters
        ----------
        query, key, value
            Shapes (L, N, E), (S, N, E), (S, N, E), batch and steps exchanged by `batch_first`; or
            without N.
        key_padding_mask
            Shape (N, S): True for keys that are not attended to, or numbers added to the scores.
        need_weights
            Whether to return them.
        attn_mask
            Shape (L, S) or (N·num_heads, L, S): True for pairs that are not attended, or numbers
            added to the scores.
        average_attn_weights
            Whether weights are those of all heads together, (N, L, S), not (N, num_heads, L, S).
        is_causal
            Whether a query attends to keys up to its own place only.

        Raises
        ------
        ValueError
            Sizes that do not fit.
        TypeError
            A mask whose elements are neither bool nor floating.
        """
        want_tensors(
            type(self).__name__,
            query=query,
            key=key,
            value=value,
            key_padding_mask=key_padding_mask,
            attn_mask=attn_mask,
        )
        batched = query.ndim == 3
        if query.ndim not in {2, 3} or key.ndim != query.ndim or value.ndim != query.ndim:
            message = (
                "[MultiheadAttention] arguments 'query', 'key', 'value': expected all 3 dimensions "
                f"or all 2, got {query.ndim}, {key.ndim} and {value.ndim}."
            )
            raise ValueError(message)
        given = [query, key, value]
        if any(x.shape[-1] != self.embed_dim for x in given):
            message = (
                f"[MultiheadAttention] expected a last dimension of {self.embed_dim}, got "
                f"{[list(x.shape) for x in given]}."
            )
            raise ValueError(message)
        if not batched:
            given = [x.unsqueeze(0) for x in given]
        elif not self.batch_first:
            given = [x.transpose(0, 1) for x in given]
        if given[1].shape[:2] != given[2].shape[:2] or given[0].shape[0] != given[1].shape[0]:
            message = (
                "[MultiheadAttention] expected keys and values of equal number, and one batch, got "
                f"{[list(x.shape) for x in (query, key, value)]}."
            )
            raise ValueError(message)
        q, k, v = (self._heads(x, i) for i, x in enumerate(given))
        mask = self._mask(attn_mask, key_padding_mask, q, k, is_causal=is_causal)
        scores = q @ k.transpose(-2, -1) * (1 / math.sqrt(q.shape[-1]))
        nowhere = None
        if mask is not None:
            if not need_weights:
                # A query that may attend to nothing gets nothing; asked for, its weights are NaN.
                nowhere = (mask == -math.inf).all(-1, keepdim=True)
                mask = mask.masked_fill(nowhere, 0)
            scores = scores + mask
        weights = F.softmax(scores, -1)
        if nowhere is not None:
            weights = weights.masked_fill(nowhere, 0)
        if self.dropout and self.training:
            weights = F.dropout(weights, self.dropout)
        found = (weights @ v).transpose(1, 2).flatten(2)
        output = self.out_proj(found)
        seen = None
        if need_weights:
            seen = weights.mean(1) if average_attn_weights else weights
        if not batched:
            return output.squeeze(0), None if seen is None else seen.squeeze(0)
        return (output if self.batch_first else output.transpose(0, 1)), seen

    def _heads(self, x: Tensor, part: int) -> Tensor:
        """Project (N, L, E) with one third of the weights, to (N, heads, L, E/heads)."""
        rows = slice(part * self.embed_dim, (part + 1) * self.embed_dim)
        bias = None if self.in_proj_bias is None else self.in_proj_bias[rows]
        y = F.linear(x, self.in_proj_weight[rows], bias)
        return y.unflatten(-1, (self.num_heads, -1)).transpose(1, 2)

    def _mask(
        self, attn_mask: Any, padding: Any, q: Tensor, k: Tensor, *, is_causal: bool
    ) -> Tensor | None:
        """Return numbers to add to the scores (N, heads, L, S)."""
        batch, heads, queries, _ = q.shape
        keys = k.shape[2]
        found = None
        if attn_mask is not None:
            shape = tuple(attn_mask.shape)
            if shape == (batch * heads, queries, keys) and attn_mask.ndim == 3:
                attn_mask = attn_mask.reshape((batch, heads, queries, keys))
            elif shape != (queries, keys):
                message = (
                    "[MultiheadAttention] argument 'attn_mask': expected shape "
                    f"{[queries, keys]} or {[batch * heads, queries, keys]}, got {list(shape)}."
                )
                raise ValueError(message)
            found = _as_numbers(attn_mask, q)
        if is_causal:
            later = _tp.ones((queries, keys), dtype=bool_, device=q.device).triu(1)
            causal = _as_numbers(later, q)
            found = causal if found is None else found + causal
        if padding is not None:
            if tuple(padding.shape) not in {(batch, keys), (keys,)}:
                message = (
                    "[MultiheadAttention] argument 'key_padding_mask': expected shape "
                    f"{[batch, keys]}, got {list(padding.shape)}."
                )
                raise ValueError(message)
            padded = _as_numbers(padding.reshape((-1, 1, 1, keys)), q)
            found = padded if found is None else found + padded
        return found


def _as_numbers(mask: Tensor, like: Tensor) -> Tensor:
    if mask.is_floating_point():
        return mask
    if mask.dtype is not bool_:
        message = (
            "[MultiheadAttention] a mask: expected bool or floating elements, got "
            f"{mask.dtype!r}. Write mask.bool()."
        )
        raise TypeError(message)
    zeros = _tp.zeros(mask.shape, dtype=like.dtype, device=like.device)
    return zeros.masked_fill(mask, -math.inf)


class TransformerEncoderLayer(Module):
    """Attention of a sequence to itself and a network of two layers, each with a shortcut.

    Parameters
    ----------
    d_model
        Numbers of a step.
    nhead
        Heads, a divisor of `d_model`.
    dim_feedforward
        Numbers between the two layers.
    dropout
        Probability of dropout, when training.
    activation
        ``"relu"``, ``"gelu"`` or a function.
    layer_norm_eps
        That of the normalisations.
    batch_first
        Whether inputs and outputs are (batch, steps, …) instead of (steps, batch, …).
    norm_first
        Whether normalisations come before attention and network, not after the sums.
    bias
        Whether linear maps and normalisations have biases.
    device, dtype
        Those of the parameters.

    Raises
    ------
    ValueError
        `nhead` does not divide `d_model`, or an unknown `activation`.
    """

    @checked
    def __init__(
        self,
        d_model: int,
        nhead: int,
        dim_feedforward: int = 2048,
        dropout: float = 0.1,
        activation: str | Callable[[Tensor], Tensor] = "relu",
        layer_norm_eps: float = 1e-5,
        batch_first: bool = False,
        norm_first: bool = False,
        bias: bool = True,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        if isinstance(activation, str) and activation not in {"relu", "gelu"}:
            message = (
                "[TransformerEncoderLayer] argument 'activation': expected 'relu', 'gelu' or a "
                f"function, got {activation!r}."
            )
            raise ValueError(message)
        self.self_attn = MultiheadAttention(
            d_model, nhead, dropout, bias, batch_first=batch_first, device=device, dtype=dtype
        )
        self.linear1 = Linear(d_model, dim_feedforward, bias, device, dtype)
        self.dropout = Dropout(dropout)
        self.linear2 = Linear(dim_feedforward, d_model, bias, device, dtype)
        self.norm_first = norm_first
        self.norm1 = LayerNorm(d_model, layer_norm_eps, True, bias, device, dtype)
        self.norm2 = LayerNorm(d_model, layer_norm_eps, True, bias, device, dtype)
        self.dropout1 = Dropout(dropout)
        self.dropout2 = Dropout(dropout)
        self.activation = getattr(F, activation) if isinstance(activation, str) else activation

    def forward(
        self,
        src: Tensor,
        src_mask: Tensor | None = None,
        src_key_padding_mask: Tensor | None = None,
        is_causal: bool = False,
    ) -> Tensor:
        """Return the sequence after the layer; masks are those of `MultiheadAttention`."""

        def attend(x: Tensor) -> Tensor:
            found, _ = self.self_attn(
                x,
                x,
                x,
                attn_mask=src_mask,
                key_padding_mask=src_key_padding_mask,
                need_weights=False,
                is_causal=is_causal,
            )
            result: Tensor = self.dropout1(found)
            return result

        def network(x: Tensor) -> Tensor:
            inner = self.dropout(self.activation(self.linear1(x)))
            result: Tensor = self.dropout2(self.linear2(inner))
            return result

        if self.norm_first:
            src = src + attend(self.norm1(src))
            return src + network(self.norm2(src))
        src = self.norm1(src + attend(src))
        found: Tensor = self.norm2(src + network(src))
        return found


class TransformerEncoder(Module):
    """Copies of one layer, each taking the result of the one before.

    Parameters
    ----------
    encoder_layer
        The layer; the copies start with its parameters' values.
    num_layers
        How many.
    norm
        A module for the result of the last.
    """

    @checked
    def __init__(self, encoder_layer: Module, num_layers: int, norm: Module | None = None) -> None:
        super().__init__()
        want_sizes("TransformerEncoder", num_layers=num_layers)
        self.layers = ModuleList(copy.deepcopy(encoder_layer) for _ in range(num_layers))
        self.num_layers = num_layers
        self.norm = norm

    def forward(
        self,
        src: Tensor,
        mask: Tensor | None = None,
        src_key_padding_mask: Tensor | None = None,
        is_causal: bool = False,
    ) -> Tensor:
        """Return the sequence after all layers; masks are those of `MultiheadAttention`."""
        for layer in self.layers:
            src = layer(src, mask, src_key_padding_mask, is_causal)
        return src if self.norm is None else self.norm(src)
