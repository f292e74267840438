"""Arrays, lists and numbers in place of tensors are refused everywhere, with what to write."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tensorplay import nn

MADE: dict[str, tuple[Any, ...]] = {
    **dict.fromkeys(["Linear", "RNN", "LSTM", "GRU", "RNNCell", "LSTMCell", "GRUCell"], (4, 2)),
    **{
        name: (3, 2, 1)
        for name in dir(nn)
        if name.startswith("Conv") and isinstance(getattr(nn, name), type)
    },
    **{name: (3,) for name in dir(nn) if name.startswith(("BatchNorm", "InstanceNorm"))},
    **{name: (1,) for name in dir(nn) if name.startswith("Adaptive")},
    **{name: (2,) for name in dir(nn) if name.startswith(("MaxPool", "AvgPool"))},
    **dict.fromkeys(["Softmax", "LogSoftmax", "Softmin"], (-1,)),
    "Bilinear": (4, 4, 2),
    "Embedding": (3, 2),
    "LayerNorm": (4,),
    "RMSNorm": (4,),
    "GroupNorm": (1, 3),
    "MultiheadAttention": (4, 1),
    "TransformerEncoderLayer": (4, 1, 4),
    "Unflatten": (1, (1, 3)),
    "Threshold": (0.0, 1.0),
}
# What only passes its input on to other modules.
CONTAINERS = {
    *("Module", "Sequential", "ModuleList", "ModuleDict", "ParameterList", "ParameterDict"),
    *("Identity", "TransformerEncoder"),
}
MODULES = [
    name
    for name in nn.__all__
    if isinstance(getattr(nn, name), type)
    and issubclass(getattr(nn, name), nn.Module)
    and name not in CONTAINERS
]


def called(function: Callable[..., Any], value: Any) -> None:
    """Call a function with a value in place of each argument that it needs."""
    needed = [
        p for p in inspect.signature(function).parameters.values()
        if p.default is p.empty and p.kind in {p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD}
    ]  # fmt: skip
    with pytest.raises(TypeError, match=r"expected Tensor.*Write tensorplay\.(from_numpy|tensor)"):
        function(*[value] * max(1, len(needed)))


@pytest.mark.parametrize("name", MODULES)
def test_modules(name: str) -> None:
    module = getattr(nn, name)(*MADE.get(name, ()))
    called(module.forward, np.ones((2, 3, 4), np.float32))


@pytest.mark.parametrize("name", nn.functional.__all__)
def test_functions(name: str) -> None:
    called(getattr(nn.functional, name), np.ones((2, 3, 4), np.float32))


@pytest.mark.parametrize("value", [[1.0, 2.0], 3.0, np.float32(2)])
def test_lists_and_numbers(value: Any) -> None:
    for call in (nn.Linear(2, 2), nn.BatchNorm1d(2), nn.ReLU(), nn.LSTM(2, 2), nn.Softsign()):
        with pytest.raises(TypeError, match=r"expected Tensor.*Write tensorplay\.tensor\(x\)"):
            call(value)
