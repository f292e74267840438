"""Affine maps, embeddings and changes of shape as modules."""

from __future__ import annotations

import math
from typing import Any

from tensorplay import _creation
from tensorplay._tensor import Tensor
from tensorplay.nn import functional as F, init
from tensorplay.nn.module import Module
from tensorplay.nn.parameter import Parameter
from tensorplay.ops.arguments import want_tensors
from tensorplay.ops.kinds import checked, is_float, is_int

__all__ = ["Bilinear", "Embedding", "Flatten", "Identity", "Linear", "Unflatten"]


def empty_parameter(shape: tuple[int, ...], device: Any, dtype: Any) -> Parameter:
    """Return a parameter whose elements are still to be set."""
    return Parameter(_creation.empty(shape, device=device, dtype=dtype))


def want_sizes(module: str, **sizes: Any) -> None:
    """Check sizes of a constructor.

    Raises
    ------
    TypeError
        One is no integer.
    ValueError
        One is negative.
    """
    for name, size in sizes.items():
        if not is_int(size):
            message = f"[{module}] argument {name!r}: expected int, got {type(size).__name__}."
            raise TypeError(message)
        if size < 0:
            message = f"[{module}] argument {name!r}: expected at least 0, got {size}."
            raise ValueError(message)


def want_probability(module: str, name: str, p: Any) -> None:
    """Check a probability of a constructor.

    Raises
    ------
    TypeError
        It is no number.
    ValueError
        It lies outside of [0, 1].
    """
    if not is_float(p):
        message = f"[{module}] argument {name!r}: expected float, got {type(p).__name__}."
        raise TypeError(message)
    if not 0 <= p <= 1:
        message = f"[{module}] argument {name!r}: expected a probability between 0 and 1, got {p}."
        raise ValueError(message)


class Identity(Module):
    """Returns its input; any arguments of the constructor are ignored.

    Parameters
    ----------
    *args
        Ignored.
    **kwargs
        Ignored.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__()

    def forward(self, input: Any) -> Any:
        return input


class Linear(Module):
    """``x @ weight.T + bias``.

    Parameters
    ----------
    in_features, out_features
        Sizes of the last dimension of input and output.
    bias
        Whether there is one.
    device, dtype
        Those of the parameters.

    Attributes
    ----------
    weight
        Shape (out_features, in_features), at first uniform between ±1/√in_features.
    bias
        Shape (out_features,), the same; or None.

    Raises
    ------
    TypeError, ValueError
        A size that is no integer, or negative.

    Examples
    --------
    >>> import tensorplay as tp
    >>> layer = tp.nn.Linear(3, 2)
    >>> layer(tp.ones(5, 3)).shape
    Size([5, 2])
    """

    weight: Parameter
    bias: Parameter | None

    @checked
    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        want_sizes("Linear", in_features=in_features, out_features=out_features)
        self.in_features, self.out_features = in_features, out_features
        self.weight = empty_parameter((out_features, in_features), device, dtype)
        self.register_parameter(
            "bias", empty_parameter((out_features,), device, dtype) if bias else None
        )
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the parameters anew."""
        bound = 1 / math.sqrt(self.in_features) if self.in_features else 0.0
        if not self.weight.is_meta:
            init.uniform_(self.weight, -bound, bound)
            if self.bias is not None:
                init.uniform_(self.bias, -bound, bound)

    def forward(self, input: Tensor) -> Tensor:
        return F.linear(input, self.weight, self.bias)

    def extra_repr(self) -> str:
        return (
            f"in_features={self.in_features}, out_features={self.out_features}, "
            f"bias={self.bias is not None}"
        )


class Bilinear(Module):
    """``x1[…, i]·weight[o, i, j]·x2[…, j] + bias[o]``, summed over i and j.

    Parameters
    ----------
    in1_features, in2_features, out_features
        Sizes of the last dimension of the inputs and of the output.
    bias
        Whether there is one.
    device, dtype
        Those of the parameters.
    """

    weight: Parameter
    bias: Parameter | None

    @checked
    def __init__(
        self,
        in1_features: int,
        in2_features: int,
        out_features: int,
        bias: bool = True,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        want_sizes(
            "Bilinear",
            in1_features=in1_features,
            in2_features=in2_features,
            out_features=out_features,
        )
        self.in1_features, self.in2_features = in1_features, in2_features
        self.out_features = out_features
        self.weight = empty_parameter((out_features, in1_features, in2_features), device, dtype)
        self.register_parameter(
            "bias", empty_parameter((out_features,), device, dtype) if bias else None
        )
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the parameters anew, between ±1/√in1_features."""
        bound = 1 / math.sqrt(max(1, self.in1_features))
        for parameter in self.parameters():
            if not parameter.is_meta:
                init.uniform_(parameter, -bound, bound)

    def forward(self, input1: Tensor, input2: Tensor) -> Tensor:
        # (…, i) and (o, i, j) to (…, o, j), and the sum over j.
        first = F.linear(input1, self.weight.permute(0, 2, 1).reshape(-1, self.in1_features))
        first = first.reshape((*input1.shape[:-1], self.out_features, self.in2_features))
        found = (first * input2.unsqueeze(-2)).sum(-1)
        return found if self.bias is None else found + self.bias

    def extra_repr(self) -> str:
        return (
            f"in1_features={self.in1_features}, in2_features={self.in2_features}, "
            f"out_features={self.out_features}, bias={self.bias is not None}"
        )


class Embedding(Module):
    """Rows of a table by their index.

    Parameters
    ----------
    num_embeddings
        Number of rows.
    embedding_dim
        Numbers in a row.
    padding_idx
        A row that starts as zeros and gets no gradient.
    max_norm
        Rows that are looked up are first scaled down to this norm.
    norm_type
        Order of that norm.
    device, dtype
        Those of the table.

    Attributes
    ----------
    weight
        Shape (num_embeddings, embedding_dim), at first normal numbers.

    Raises
    ------
    IndexError
        `padding_idx` is no row.
    """

    weight: Parameter

    @checked
    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        padding_idx: int | None = None,
        max_norm: float | None = None,
        norm_type: float = 2.0,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        want_sizes("Embedding", num_embeddings=num_embeddings, embedding_dim=embedding_dim)
        self.num_embeddings, self.embedding_dim = num_embeddings, embedding_dim
        if padding_idx is not None:
            if not hasattr(padding_idx, "__index__"):
                message = (
                    "[Embedding] argument 'padding_idx': expected int or None, got "
                    f"{type(padding_idx).__name__}."
                )
                raise TypeError(message)
            if not -num_embeddings <= padding_idx < num_embeddings:
                message = (
                    f"[Embedding] argument 'padding_idx': expected an index of {num_embeddings} "
                    f"rows, got {padding_idx}."
                )
                raise IndexError(message)
            padding_idx %= num_embeddings
        self.padding_idx = padding_idx
        self.max_norm, self.norm_type = max_norm, norm_type
        self.weight = empty_parameter((num_embeddings, embedding_dim), device, dtype)
        self.reset_parameters()

    @classmethod
    def from_pretrained(
        cls,
        embeddings: Tensor,
        freeze: bool = True,
        padding_idx: int | None = None,
        max_norm: float | None = None,
        norm_type: float = 2.0,
    ) -> Embedding:
        """Return a module with the table `embeddings`, not trained if `freeze`.

        Raises
        ------
        ValueError
            `embeddings` has not two dimensions.
        """
        want_tensors("Embedding", embeddings=embeddings)
        if embeddings.ndim != 2:
            message = (
                "[Embedding] argument 'embeddings': expected 2 dimensions (rows, features), got "
                f"{embeddings.ndim}."
            )
            raise ValueError(message)
        rows, features = embeddings.shape
        module = cls(
            rows,
            features,
            padding_idx,
            max_norm,
            norm_type,
            device="meta",
            dtype=embeddings.dtype,
        )
        module.weight = Parameter(embeddings, requires_grad=not freeze)
        return module

    def reset_parameters(self) -> None:
        """Draw the table anew."""
        if not self.weight.is_meta:
            init.normal_(self.weight)
            if self.padding_idx is not None:
                init.zeros_(self.weight.detach()[self.padding_idx])

    def forward(self, input: Tensor) -> Tensor:
        return F.embedding(input, self.weight, self.padding_idx, self.max_norm, self.norm_type)

    def extra_repr(self) -> str:
        padding = "" if self.padding_idx is None else f", padding_idx={self.padding_idx}"
        limit = "" if self.max_norm is None else f", max_norm={self.max_norm}"
        return f"{self.num_embeddings}, {self.embedding_dim}{padding}{limit}"


class Flatten(Module):
    """Joins the dimensions from `start_dim` to `end_dim`; by default all but the first.

    Parameters
    ----------
    start_dim
        First dimension.
    end_dim
        Last dimension.
    """

    @checked
    def __init__(self, start_dim: int = 1, end_dim: int = -1) -> None:
        super().__init__()
        self.start_dim, self.end_dim = start_dim, end_dim

    def forward(self, input: Tensor) -> Tensor:
        want_tensors("Flatten", input=input)
        return input.flatten(self.start_dim, self.end_dim)

    def extra_repr(self) -> str:
        return f"start_dim={self.start_dim}, end_dim={self.end_dim}"


class Unflatten(Module):
    """Splits the dimension `dim` into dimensions of `unflattened_size`.

    Parameters
    ----------
    dim
        Dimension; negative ones count from the end.
    unflattened_size
        The sizes, whose product is that of the dimension.
    """

    @checked
    def __init__(self, dim: int, unflattened_size: tuple[int, ...]) -> None:
        super().__init__()
        self.dim, self.unflattened_size = dim, unflattened_size

    def forward(self, input: Tensor) -> Tensor:
        want_tensors("Unflatten", input=input)
        return input.unflatten(self.dim, self.unflattened_size)

    def extra_repr(self) -> str:
        return f"dim={self.dim}, unflattened_size={self.unflattened_size}"
