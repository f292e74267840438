"""Recurrent networks: the plain one, LSTM and GRU, and one step of each."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import tensorplay as _tp
from tensorplay._tensor import Tensor
from tensorplay.nn import functional as F, init
from tensorplay.nn.module import Module
from tensorplay.nn.modules.linear import empty_parameter, want_probability, want_sizes
from tensorplay.ops.arguments import want_tensors
from tensorplay.ops.kinds import checked

__all__ = ["GRU", "LSTM", "RNN", "GRUCell", "LSTMCell", "RNNCell"]


def _plain_step(x: Tensor, states: tuple[Tensor, ...], w: Tensor, b: Any, relu: bool) -> Any:
    """One step of ``tanh(x + h·Wᵀ + b)``, `x` being the input's share."""
    total = x + F.linear(states[0], w, b)
    return (F.relu(total) if relu else total.tanh(),)


def _lstm_step(x: Tensor, states: tuple[Tensor, ...], w: Tensor, b: Any, _: bool) -> Any:
    """One step after Hochreiter and Schmidhuber (1997) with forget gate, gates i, f, g, o."""
    h, c = states
    i, f, g, o = (x + F.linear(h, w, b)).chunk(4, -1)
    c = f.sigmoid() * c + i.sigmoid() * g.tanh()
    return o.sigmoid() * c.tanh(), c


def _gru_step(x: Tensor, states: tuple[Tensor, ...], w: Tensor, b: Any, _: bool) -> Any:
    """One step after Cho et al. (2014), the reset gate applied after the product; gates r, z, n."""
    (h,) = states
    xr, xz, xn = x.chunk(3, -1)
    hr, hz, hn = F.linear(h, w, b).chunk(3, -1)
    z = (xz + hz).sigmoid()
    n = (xn + (xr + hr).sigmoid() * hn).tanh()
    return (n + z * (h - n),)


def _given_states(name: str, hx: Any, count: int, wanted: tuple[int, ...]) -> list[Tensor]:
    """Return the states that a caller gave.

    Raises
    ------
    TypeError
        They are no tensors.
    ValueError
        There are others than `count`, or not of shape `wanted`.
    """
    given = list(hx) if count > 1 and isinstance(hx, (tuple, list)) else [hx]
    if not all(isinstance(h, Tensor) for h in given):
        kinds = ", ".join(type(h).__name__ for h in given)
        message = f"[{name}] argument 'hx': expected {count} Tensor(s), got {kinds}."
        raise TypeError(message)
    if len(given) != count or any(tuple(h.shape) != wanted for h in given):
        message = (
            f"[{name}] argument 'hx': expected {count} of size {list(wanted)}, got "
            f"{[list(h.shape) for h in given]}."
        )
        raise ValueError(message)
    return given


class _Weights(Module):
    """Parameters of layers, uniform between ±1/√hidden_size at first."""

    hidden_size: int

    def _add_layer(
        self, suffix: str, inputs: int, gates: int, *, bias: bool, device: Any, dtype: Any
    ) -> None:
        rows = gates * self.hidden_size
        for name, columns in (("weight_ih", inputs), ("weight_hh", self.hidden_size)):
            setattr(self, name + suffix, empty_parameter((rows, columns), device, dtype))
        for name in ("bias_ih", "bias_hh"):
            value = empty_parameter((rows,), device, dtype) if bias else None
            self.register_parameter(name + suffix, value)

    def reset_parameters(self) -> None:
        """Draw the parameters anew."""
        bound = 1 / math.sqrt(max(1, self.hidden_size))
        for parameter in self.parameters():
            if not parameter.is_meta:
                init.uniform_(parameter, -bound, bound)

    def _layer(self, suffix: str) -> list[Any]:
        names = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
        return [getattr(self, name + suffix) for name in names]


class _Recurrent(_Weights):
    """Layers of one kind of step over a sequence."""

    _step: ClassVar[Any]
    _gates: ClassVar[int]
    _states: ClassVar[int] = 1

    @checked
    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        name = type(self).__name__
        want_sizes(name, input_size=input_size, hidden_size=hidden_size, num_layers=num_layers)
        if num_layers < 1 or hidden_size < 1:
            message = (
                f"[{name}] expected at least 1 layer and 1 hidden number, got "
                f"num_layers={num_layers}, hidden_size={hidden_size}."
            )
            raise ValueError(message)
        want_probability(name, "dropout", dropout)
        self.input_size, self.hidden_size, self.num_layers = input_size, hidden_size, num_layers
        self.bias, self.batch_first, self.dropout = bias, batch_first, dropout
        self.bidirectional = bidirectional
        for layer in range(num_layers):
            inputs = input_size if layer == 0 else hidden_size * self._directions
            for suffix in self._suffixes(layer):
                self._add_layer(suffix, inputs, self._gates, bias=bias, device=device, dtype=dtype)
        self.reset_parameters()

    @property
    def _directions(self) -> int:
        return 2 if self.bidirectional else 1

    def _suffixes(self, layer: int) -> list[str]:
        return [f"_l{layer}", f"_l{layer}_reverse"][: self._directions]

    def _relu(self) -> bool:
        return False

    def _initial(self, hx: Any, batch: int, like: Tensor, *, batched: bool) -> list[Tensor]:
        """Return the states at the start, each of shape (layers·directions, batch, hidden)."""
        shape = (self.num_layers * self._directions, batch, self.hidden_size)
        if hx is None:
            zeros = _tp.zeros(shape, dtype=like.dtype, device=like.device)
            return [zeros] * self._states
        wanted = shape if batched else (shape[0], shape[2])
        given = _given_states(type(self).__name__, hx, self._states, wanted)
        return given if batched else [h.unsqueeze(1) for h in given]

    def forward(self, input: Tensor, hx: Any = None) -> Any:
        """Return the outputs of all steps, and the states after the last.

        Parameters
        ----------
        input
            Shape (steps, batch, input_size), (batch, steps, input_size) by `batch_first`, or
            (steps, input_size).
        hx
            States at the start, zeros by default: shape (num_layers·directions, batch,
            hidden_size), for LSTM a pair of such; without batch if `input` has none.

        Raises
        ------
        ValueError
            Other numbers of dimensions or sizes.
        """
        want_tensors(type(self).__name__, input=input)
        if input.ndim not in {2, 3} or input.shape[-1] != self.input_size:
            message = (
                f"[{type(self).__name__}] argument 'input': expected 2 or 3 dimensions, the last "
                f"of size {self.input_size}, got shape {list(input.shape)}."
            )
            raise ValueError(message)
        batched = input.ndim == 3
        x = input if batched else input.unsqueeze(1)
        if batched and self.batch_first:
            x = x.transpose(0, 1)
        states = self._initial(hx, x.shape[1], x, batched=batched)
        last: list[tuple[Tensor, ...]] = []
        for layer in range(self.num_layers):
            if layer and self.dropout and self.training:
                x = F.dropout(x, self.dropout)
            outputs = []
            for direction, suffix in enumerate(self._suffixes(layer)):
                place = layer * self._directions + direction
                start = tuple(s[place] for s in states)
                found, end = self._run(x, start, suffix, backwards=direction == 1)
                outputs.append(found)
                last.append(end)
            x = outputs[0] if len(outputs) == 1 else _tp.cat(outputs, -1)
        ends = [_tp.stack(list(parts)) for parts in zip(*last, strict=True)]
        if not batched:
            x, ends = x.squeeze(1), [end.squeeze(1) for end in ends]
        elif self.batch_first:
            x = x.transpose(0, 1)
        return x, (tuple(ends) if self._states > 1 else ends[0])

    def _run(
        self, x: Tensor, states: tuple[Tensor, ...], suffix: str, *, backwards: bool
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        weight_ih, weight_hh, bias_ih, bias_hh = self._layer(suffix)
        # The input's share of all steps is one matrix product.
        shares = F.linear(x, weight_ih, bias_ih)
        found: list[Any] = [None] * x.shape[0]
        steps = range(x.shape[0])
        for t in reversed(steps) if backwards else steps:
            states = type(self)._step(shares[t], states, weight_hh, bias_hh, self._relu())
            found[t] = states[0]
        if not found:
            return shares[..., : self.hidden_size], states
        return _tp.stack(found), states

    def extra_repr(self) -> str:
        texts = [f"{self.input_size}, {self.hidden_size}"]
        for name, usual in (
            ("num_layers", 1),
            ("bias", True),
            ("batch_first", False),
            ("dropout", 0.0),
            ("bidirectional", False),
        ):
            if getattr(self, name) != usual:
                texts.append(f"{name}={getattr(self, name)!r}")
        return ", ".join(texts)


class RNN(_Recurrent):
    """``h = tanh(x·W_ihᵀ + b_ih + h·W_hhᵀ + b_hh)`` at each step, in layers.

    Parameters
    ----------
    input_size, hidden_size
        Numbers of an input and of a state.
    num_layers
        Layers, each taking the outputs of the one before.
    nonlinearity
        ``"tanh"`` or ``"relu"``.
    bias
        Whether there are biases.
    batch_first
        Whether inputs and outputs are (batch, steps, …) instead of (steps, batch, …).
    dropout
        Probability of dropout between layers, when training.
    bidirectional
        Whether each layer also runs backwards.
    device, dtype
        Those of the parameters ``weight_ih_l0``, ``weight_hh_l0``, ``bias_ih_l0``, ``bias_hh_l0``
        and so on.

    Raises
    ------
    ValueError
        Sizes below 1, a probability out of range, or an unknown nonlinearity.
    """

    _step, _gates = staticmethod(_plain_step), 1

    @checked
    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        nonlinearity: str = "tanh",
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        _want_nonlinearity("RNN", nonlinearity)
        super().__init__(
            input_size,
            hidden_size,
            num_layers,
            bias,
            batch_first,
            dropout,
            bidirectional,
            device,
            dtype,
        )
        self.nonlinearity = nonlinearity

    def _relu(self) -> bool:
        return self.nonlinearity == "relu"


def _want_nonlinearity(name: str, value: str) -> None:
    if value not in {"tanh", "relu"}:
        message = f"[{name}] argument 'nonlinearity': expected 'tanh' or 'relu', got {value!r}."
        raise ValueError(message)


class LSTM(_Recurrent):
    """Long short-term memory, in layers; states are pairs (h, c).

    Parameters, errors and shapes are those of `RNN`, without `nonlinearity`; weights have the rows
    of the gates i, f, g, o one below the other.

    Parameters
    ----------
    input_size
        Size of the last dimension of the input.
    hidden_size
        Size of the state.
    num_layers
        Number of layers, each on the outputs of the one before.
    bias
        Whether there is one.
    batch_first
        Whether inputs are (batch, time, …) instead of (time, batch, …).
    dropout
        Share of the outputs between layers that is dropped in training.
    bidirectional
        Whether a second set of layers reads from the end.
    device
        Device of the parameters.
    dtype
        Type of the parameters.
    """

    _step, _gates, _states = staticmethod(_lstm_step), 4, 2


class GRU(_Recurrent):
    """Gated recurrent units, in layers.

    Parameters, errors and shapes are those of `RNN`, without `nonlinearity`; weights have the rows
    of the gates r, z, n one below the other.

    Parameters
    ----------
    input_size
        Size of the last dimension of the input.
    hidden_size
        Size of the state.
    num_layers
        Number of layers, each on the outputs of the one before.
    bias
        Whether there is one.
    batch_first
        Whether inputs are (batch, time, …) instead of (time, batch, …).
    dropout
        Share of the outputs between layers that is dropped in training.
    bidirectional
        Whether a second set of layers reads from the end.
    device
        Device of the parameters.
    dtype
        Type of the parameters.
    """

    _step, _gates = staticmethod(_gru_step), 3


class _Cell(_Weights):
    """One step of one layer."""

    _step: ClassVar[Any]
    _gates: ClassVar[int]
    _states: ClassVar[int] = 1

    @checked
    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        bias: bool = True,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        want_sizes(type(self).__name__, input_size=input_size, hidden_size=hidden_size)
        self.input_size, self.hidden_size, self.bias = input_size, hidden_size, bias
        self._add_layer("", input_size, self._gates, bias=bias, device=device, dtype=dtype)
        self.reset_parameters()

    def _relu(self) -> bool:
        return False

    def forward(self, input: Tensor, hx: Any = None) -> Any:
        """Return the state after the step, for LSTM the pair (h, c).

        Parameters
        ----------
        input
            Shape (batch, input_size) or (input_size,).
        hx
            The state before, zeros by default.

        Raises
        ------
        ValueError
            Other sizes.
        """
        want_tensors(type(self).__name__, input=input)
        if input.ndim not in {1, 2} or input.shape[-1] != self.input_size:
            message = (
                f"[{type(self).__name__}] argument 'input': expected 1 or 2 dimensions, the last "
                f"of size {self.input_size}, got shape {list(input.shape)}."
            )
            raise ValueError(message)
        wanted = (*input.shape[:-1], self.hidden_size)
        if hx is None:
            zeros = _tp.zeros(wanted, dtype=input.dtype, device=input.device)
            states: tuple[Tensor, ...] = (zeros,) * self._states
        else:
            states = tuple(_given_states(type(self).__name__, hx, self._states, wanted))
        weight_ih, weight_hh, bias_ih, bias_hh = self._layer("")
        share = F.linear(input, weight_ih, bias_ih)
        found = type(self)._step(share, states, weight_hh, bias_hh, self._relu())
        return found if self._states > 1 else found[0]

    def extra_repr(self) -> str:
        bias = "" if self.bias else ", bias=False"
        return f"{self.input_size}, {self.hidden_size}{bias}"


class RNNCell(_Cell):
    """One step of `RNN`; parameters ``weight_ih``, ``weight_hh``, ``bias_ih``, ``bias_hh``.

    Parameters
    ----------
    input_size
        Size of the last dimension of the input.
    hidden_size
        Size of the state.
    bias
        Whether there is one.
    nonlinearity
        ``'tanh'`` or ``'relu'``.
    device
        Device of the parameters.
    dtype
        Type of the parameters.
    """

    _step, _gates = staticmethod(_plain_step), 1

    @checked
    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        bias: bool = True,
        nonlinearity: str = "tanh",
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        _want_nonlinearity("RNNCell", nonlinearity)
        super().__init__(input_size, hidden_size, bias, device, dtype)
        self.nonlinearity = nonlinearity

    def _relu(self) -> bool:
        return self.nonlinearity == "relu"


class LSTMCell(_Cell):
    """One step of `LSTM`; parameters ``weight_ih``, ``weight_hh``, ``bias_ih``, ``bias_hh``.

    Parameters
    ----------
    input_size
        Size of the last dimension of the input.
    hidden_size
        Size of the state.
    bias
        Whether there is one.
    device
        Device of the parameters.
    dtype
        Type of the parameters.
    """

    _step, _gates, _states = staticmethod(_lstm_step), 4, 2


class GRUCell(_Cell):
    """One step of `GRU`; parameters ``weight_ih``, ``weight_hh``, ``bias_ih``, ``bias_hh``.

    Parameters
    ----------
    input_size
        Size of the last dimension of the input.
    hidden_size
        Size of the state.
    bias
        Whether there is one.
    device
        Device of the parameters.
    dtype
        Type of the parameters.
    """

    _step, _gates = staticmethod(_gru_step), 3
