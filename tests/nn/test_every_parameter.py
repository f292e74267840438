"""Every parameter of what is public takes what it documents, or refuses it by name.

The parameters come from the signatures, so that a new one is held without another row.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from dataclasses import is_dataclass
from typing import Any

import pytest

import tensorplay as tp
from tensorplay import nn, optim
from tensorplay.nn import functional as F  # noqa: N812 - the field's name of it
from tensorplay.utils import data

OTHERS: dict[str, Callable[[], Any]] = {
    "str": lambda: "a",
    "None": lambda: None,
    "list": lambda: ["a"],
    "Tensor": lambda: tp.ones(2, 3),
    "object": object,
}
# Numbers written as text, lists of text and plain objects are none of these.
NUMBERS = re.compile(r"(int|float)( \| None)?")
NAMED = re.compile(r"\[\w+\] arguments? '\w+'.*: \S")
FORM = re.compile(r"\[\w+\] argument '\w+': expected .+, got ", re.DOTALL)
# Values of the right kind are refused by the operator that finds them wrong.
OWN_KIND = re.compile(r"\[(?!bool|float|int)\w+\] \S")
REFUSALS = (TypeError, ValueError, IndexError, KeyError, RuntimeError, AttributeError)

X = lambda: tp.rand(2, 4)  # noqa: E731
IMAGES = lambda: tp.rand(2, 4, 6, 6)  # noqa: E731
ROWS_OF = lambda: tp.rand(2, 4, 6)  # noqa: E731
CLASSES = lambda: tp.tensor([0, 1])  # noqa: E731


def parameter() -> nn.Parameter:
    return nn.Parameter(tp.ones(2, 3))


def method() -> Any:
    return optim.SGD([parameter()], 0.1)


SHARED = method()  # schedules of schedules want one


def encoder_layer() -> Any:
    return nn.TransformerEncoderLayer(4, 2, 8)


# What the parameters without a default get, by owner, or by name for all.
USUAL: dict[str, Callable[[], Any]] = {
    "input": X, "x1": X, "x2": X, "input1": X, "input2": X, "anchor": X, "positive": X,
    "negative": X, "query": ROWS_OF, "key": ROWS_OF, "value": ROWS_OF,
    "optimizer": lambda: SHARED, "tensor": lambda: tp.rand(3, 3),
    "params": lambda: [parameter()], "parameters": lambda: [parameter()],
    "in_features": lambda: 4, "out_features": lambda: 4, "in1_features": lambda: 4,
    "in2_features": lambda: 4, "in_channels": lambda: 4, "out_channels": lambda: 4,
    "kernel_size": lambda: 2, "num_features": lambda: 4, "num_groups": lambda: 2,
    "num_channels": lambda: 4, "normalized_shape": lambda: (4,), "num_embeddings": lambda: 4,
    "embedding_dim": lambda: 4, "input_size": lambda: 4, "hidden_size": lambda: 4,
    "embed_dim": lambda: 4, "num_heads": lambda: 2, "d_model": lambda: 4, "nhead": lambda: 2,
    "output_size": lambda: 2, "dim": lambda: 1, "threshold": lambda: 0.5, "val": lambda: 0.5,
    "encoder_layer": encoder_layer, "num_layers": lambda: 1, "padding": lambda: 1,
    "target": X, "running_mean": lambda: None, "running_var": lambda: None,
    "weight": lambda: tp.rand(4, 4), "module": lambda: nn.Linear(2, 3), "max_norm": lambda: 1.0,
    "clip_value": lambda: 1.0, "nonlinearity": lambda: "relu", "unflattened_size": lambda: (2, 2),
    "step_size": lambda: 2, "milestones": lambda: [1], "gamma": lambda: 0.5, "T_max": lambda: 3,
    "lr_lambda": lambda: lambda _: 1.0, "max_lr": lambda: 1.0, "total_steps": lambda: 5,
    "schedulers": lambda: [optim.lr_scheduler.StepLR(SHARED, 2)],
    "data_source": lambda: [1, 2], "dataset": lambda: [1, 2], "sampler": lambda: [0, 1],
    "batch_size": lambda: 1, "drop_last": lambda: False, "indices": lambda: [0, 1],
    "weights": lambda: [0.5, 0.5], "num_samples": lambda: 2, "datasets": lambda: [[1], [2]],
    "lengths": lambda: [1, 1], "batch": lambda: [1, 2], "tensors": lambda: [tp.ones(3)],
}  # fmt: skip
OWN: dict[str, dict[str, Callable[[], Any]]] = {
    "Threshold": {"value": lambda: 0.0},
    "threshold": {"value": lambda: 0.0},
    "SequentialLR": {"milestones": list},
    "eye_": {"tensor": lambda: tp.rand(3, 3)},
    "vector_to_parameters": {"vec": lambda: tp.ones(6)},
    "batch_norm": {"running_mean": lambda: tp.zeros(4), "running_var": lambda: tp.ones(4)},
    "cross_entropy": {"target": CLASSES},
    "nll_loss": {"target": CLASSES},
    "embedding": {"input": CLASSES},
    "one_hot": {"input": CLASSES, "tensor": CLASSES},
    "HookHandle": {"hooks": dict},
    "default_convert": {"data": lambda: 1},
    "Optimizer": {"defaults": lambda: {"lr": 0.1}},
    "prelu": {"weight": lambda: tp.rand(4)},
    "pad": {"pad": lambda: (1, 1)},
    "conv1d": {"input": ROWS_OF, "weight": lambda: tp.rand(4, 4, 2)},
    "conv2d": {"input": IMAGES, "weight": lambda: tp.rand(4, 4, 2, 2)},
    "conv_transpose1d": {"input": ROWS_OF, "weight": lambda: tp.rand(4, 4, 2)},
    "conv_transpose2d": {"input": IMAGES, "weight": lambda: tp.rand(4, 4, 2, 2)},
    "instance_norm": {"input": ROWS_OF},
    "cosine_embedding_loss": {"target": lambda: tp.tensor([1, -1])},
    "Unflatten": {"dim": lambda: 1},
    "weight_norm": {"name": lambda: "weight"},
    "remove_weight_norm": {"module": lambda: nn.utils.weight_norm(nn.Linear(2, 3))},
}
OWN |= {n: {"input": ROWS_OF} for n in F.__all__ if n.endswith(("pool1d", "out1d"))}
OWN |= {n: {"input": IMAGES} for n in F.__all__ if n.endswith(("pool2d", "out2d"))}

# A base without a rate, a result, and what takes any number of tensors are left out.
PUBLIC = [
    (f"{where}.{name}", getattr(space, name))
    for where, space in (
        ("nn", nn), ("functional", F), ("init", nn.init), ("utils", nn.utils), ("optim", optim),
        ("lr_scheduler", optim.lr_scheduler), ("data", data),
    )
    for name in space.__all__
    if callable(getattr(space, name)) and not is_dataclass(getattr(space, name))
    and name not in {"LRScheduler", "LoadResult", "TensorDataset"}
]  # fmt: skip


def given(name: str, function: Any) -> dict[str, Callable[[], Any]]:
    own = OWN.get(name, {})
    found = {}
    for p in inspect.signature(function).parameters.values():
        if p.name in own:
            found[p.name] = own[p.name]
        elif p.default is p.empty and p.kind not in {p.VAR_POSITIONAL, p.VAR_KEYWORD}:
            found[p.name] = USUAL[p.name]
    return found


def form(p: inspect.Parameter, kind: str, error: Exception) -> re.Pattern[str]:
    annotation = "Tensor" if p.annotation is p.empty else str(p.annotation)
    if kind in annotation or p.name == "device":
        return OWN_KIND
    return FORM if isinstance(error, TypeError) else NAMED


def violations(name: str, function: Any) -> Iterator[str]:
    short = name.partition(".")[2]
    usual = given(short, function)
    function(**{k: make() for k, make in usual.items()})
    for p in inspect.signature(function).parameters.values():
        if p.kind in {p.VAR_POSITIONAL, p.VAR_KEYWORD}:
            continue
        for kind, other in OTHERS.items():
            must = NUMBERS.fullmatch(str(p.annotation)) is not None and kind in {
                "str", "list", "object", *([] if "None" in str(p.annotation) else ["None"]),
            }  # fmt: skip
            try:
                function(**{k: make() for k, make in usual.items()} | {p.name: other()})
            except REFUSALS as error:
                if not form(p, kind, error).match(str(error)):
                    yield f"{p.name}: {p.annotation} = {kind}: {type(error).__name__}: {error}"
            else:
                if must:
                    yield f"{p.name}: {p.annotation} = {kind}: taken"


@pytest.mark.parametrize(("name", "function"), PUBLIC, ids=[name for name, _ in PUBLIC])
def test_what_a_parameter_does_not_take_is_refused_by_name(name: str, function: Any) -> None:
    assert list(violations(name, function)) == []
