"""Losses and other functions with random options and inputs: values and gradients of PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from tests.nn.both_libraries import compare

torch = pytest.importorskip("torch", reason="compares with PyTorch where it is installed")
torch.set_num_threads(1)

KINDS = st.sampled_from(["float32", "float64"])
REDUCTIONS = st.sampled_from(["mean", "sum", "none"])
flag = st.booleans()


def generator(draw: Callable[..., Any]) -> np.random.Generator:
    return np.random.default_rng(draw(st.integers(0, 2**31)))


@st.composite
def classes(draw: Callable[..., Any]) -> tuple[int, tuple[int, ...], int | None]:
    """Return the number of classes, the sizes behind them, and that of the batch."""
    count = draw(st.integers(1, 5))
    batch = draw(st.none() | st.integers(1, 4))
    rest = tuple(draw(st.lists(st.integers(1, 3), max_size=2))) if batch is not None else ()
    return count, rest, batch


@given(st.data(), KINDS, st.sampled_from(["CrossEntropyLoss", "NLLLoss"]))
@settings(max_examples=50, deadline=None)
def test_losses_of_classes(data: Any, kind: str, name: str) -> None:
    draw = data.draw
    count, rest, batch = draw(classes())
    random = generator(draw)
    shape = (count,) if batch is None else (batch, count, *rest)
    x = random.normal(size=shape).astype(kind)
    ignored = draw(st.sampled_from([-100, 0, count - 1, -1]))
    options = {"reduction": draw(REDUCTIONS), "ignore_index": ignored}
    weight = random.random(count).astype(kind) if draw(flag) else None
    soft = name == "CrossEntropyLoss" and draw(flag)
    if name == "CrossEntropyLoss":
        options["label_smoothing"] = draw(st.sampled_from([0.0, 0.1, 1.0]))
    else:
        x = x - np.log(np.exp(x).sum(0 if batch is None else 1, keepdims=True))
    if soft:
        target = random.random(shape).astype(kind)
        del options["ignore_index"]
    else:
        target = np.asarray(random.integers(0, count, () if batch is None else (batch, *rest)))
        if ignored < 0 or draw(flag):
            target = np.where(random.random(target.shape) < 0.3, ignored, target)

    def make(lib: Any) -> Any:
        weights = None if weight is None else lib.from_numpy(weight.copy())
        return getattr(lib.nn, name)(weights, **options)

    compare(torch, make, (x, target), kind=kind)


@given(st.data(), KINDS)
@settings(max_examples=40, deadline=None)
def test_losses_of_two_tensors(data: Any, kind: str) -> None:
    draw = data.draw
    random = generator(draw)
    shape = tuple(draw(st.lists(st.integers(0, 4), max_size=3)))
    x, y = (random.normal(size=shape).astype(kind) for _ in range(2))
    options: dict[str, Any] = {"reduction": draw(REDUCTIONS)}
    name = draw(
        st.sampled_from(
            [
                *("MSELoss", "L1Loss", "SmoothL1Loss", "HuberLoss", "KLDivLoss"),
                *("BCELoss", "BCEWithLogitsLoss"),
            ]
        )
    )
    if name == "SmoothL1Loss":
        options["beta"] = draw(st.sampled_from([0.0, 0.3, 1.0]))
    elif name == "HuberLoss":
        options["delta"] = draw(st.sampled_from([0.3, 1.0]))
    elif name == "KLDivLoss":
        options["log_target"] = draw(flag)
        options["reduction"] = draw(REDUCTIONS | st.just("batchmean")) if shape else "mean"
        y = y if options["log_target"] else np.abs(y)
    elif name == "BCELoss":
        x, y = 1 / (1 + np.exp(-x)), (y > 0).astype(kind)
    weights = {}
    if name.startswith("BCE") and shape and draw(flag):
        weights["weight"] = random.random(shape[-1:]).astype(kind)
    if name == "BCEWithLogitsLoss" and shape and draw(flag):
        weights["pos_weight"] = random.random(shape[-1:]).astype(kind)

    def make(lib: Any) -> Any:
        given = {k: lib.from_numpy(v.copy()) for k, v in weights.items()}
        return getattr(lib.nn, name)(**options, **given)

    compare(torch, make, (np.asarray(x), np.asarray(y)), kind=kind)


@given(st.data(), KINDS)
@settings(max_examples=26, deadline=None)
def test_losses_of_pairs_and_triples(data: Any, kind: str) -> None:
    draw = data.draw
    random = generator(draw)
    rows, size = draw(st.integers(1, 4)), draw(st.integers(1, 4))
    options: dict[str, Any] = {
        "reduction": draw(REDUCTIONS),
        "margin": draw(st.sampled_from([0.0, 0.3, 1.0])),
    }
    name = draw(
        st.sampled_from(
            [
                *("MarginRankingLoss", "HingeEmbeddingLoss"),
                *("CosineEmbeddingLoss", "TripletMarginLoss"),
            ]
        )
    )
    arrays = [random.normal(size=(rows, size)).astype(kind) for _ in range(3)]
    signs = np.sign(random.normal(size=rows)).astype(kind)
    if name == "MarginRankingLoss":
        arrays = [arrays[0][:, 0], arrays[1][:, 0], signs]
    elif name == "HingeEmbeddingLoss":
        arrays = [arrays[0][:, 0], signs]
    elif name == "CosineEmbeddingLoss":
        arrays = [*arrays[:2], signs.astype(np.int64)]
    else:
        options.update(margin=1.0, p=draw(st.sampled_from([1.0, 2.0, 3.0])), swap=draw(flag))

    def call(lib: Any, module: Any, *tensors: Any) -> Any:
        return module(*tensors[:-1], tensors[-1].detach())

    compare(
        torch,
        lambda lib: getattr(lib.nn, name)(**options),
        tuple(arrays),
        kind=kind,
        call=call,
        # PyTorch adds a small number to the norms of cosines.
        tolerance=1e-5 if name == "CosineEmbeddingLoss" and kind == "float64" else None,
    )


FUNCTIONS: dict[str, Callable[[Any, Any, Any], Any]] = {
    "cosine_similarity": lambda f, x, y: [f(x, y, dim) for dim in (0, 1, -1)],
    "pairwise_distance": lambda f, x, y: [
        f(x, y, p, keepdim=k) for p in (1.0, 2.0, 3.0) for k in (False, True)
    ],
    "normalize": lambda f, x, y: [f(x, p, dim) for p in (1.0, 2.0, 3.0) for dim in (0, -1)],
    "softmax": lambda f, x, y: [f(x, dim) for dim in (0, -1)],
    "log_softmax": lambda f, x, y: [f(x, dim) for dim in (0, -1)],
    "softmin": lambda f, x, y: [f(x, dim) for dim in (0, -1)],
    "layer_norm": lambda f, x, y: [f(x, x.shape[-1:], y[0], None), f(x, x.shape)],
    "rms_norm": lambda f, x, y: [f(x, x.shape[-1:], y[0]), f(x, x.shape, None, 1e-3)],
    "linear": lambda f, x, y: [f(x, y), f(x, y, x[:, 0]), f(x[0], y), f(x, y[0])],
    "scaled_dot_product_attention": lambda f, x, y: [
        f(x[None], y[None], y[None]),
        f(x[None], y[None], y[None], is_causal=True),
        f(x[None], y[None], y[None], scale=0.3),
    ],
    "pad": lambda f, x, y: [
        f(x, (1, 2), value=3.0),
        f(x[None], (0, 1), "reflect") if x.shape[1] > 1 else x * 1,
        f(x[None], (1, 2), "replicate"),
        f(x, (0, 0, 2, 1)),
        f(x, (-1, 1)),
    ],
}


@given(st.data(), KINDS, st.sampled_from(sorted(FUNCTIONS)))
@settings(max_examples=40, deadline=None)
def test_functions(data: Any, kind: str, name: str) -> None:
    draw = data.draw
    random = generator(draw)
    shape = draw(st.integers(1, 4)), draw(st.integers(1, 4))
    arrays = tuple(random.normal(size=shape).astype(kind) for _ in range(2))

    def call(lib: Any, module: Any, x: Any, y: Any) -> Any:
        return FUNCTIONS[name](getattr(lib.nn.functional, name), x, y)

    compare(torch, lambda lib: lib.nn.Identity(), arrays, kind=kind, call=call)
