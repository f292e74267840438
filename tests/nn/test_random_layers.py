"""Layers with random options and inputs: results, gradients and state of PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings, strategies as st

from tests.nn.both_libraries import compare

torch = pytest.importorskip("torch", reason="compares with PyTorch where it is installed")
torch.set_num_threads(1)

KINDS = st.sampled_from(["float32", "float64"])
Draw = Callable[[st.SearchStrategy[Any]], Any]
flag = st.booleans()


def sizes(low: int, high: int, n: int) -> st.SearchStrategy[Any]:
    """Return one integer for all dimensions, or one for each."""
    number = st.integers(low, high)
    return number if n == 1 else number | st.tuples(*[number] * n)


def numbers(draw: Draw, kind: str, *shape: int) -> Any:
    seed = draw(st.integers(0, 2**31))
    return np.random.default_rng(seed).normal(size=shape).astype(kind)


@st.composite
def images(draw: Draw, kind: str, channels: int, n: int) -> Any:
    """Return (batch, channels, n sizes), or no batch."""
    shape = (channels, *[draw(st.integers(1, 9)) for _ in range(n)])
    batch = draw(st.sampled_from([None, 0, 1, 2, 3]))
    return numbers(draw, kind, *shape) if batch is None else numbers(draw, kind, batch, *shape)


def windows(draw: Draw, n: int) -> dict[str, Any]:
    """Return what all convolutions take."""
    groups = draw(st.integers(1, 3))
    return {
        "in_channels": groups * draw(st.integers(1, 2)),
        "out_channels": groups * draw(st.integers(1, 2)),
        "kernel_size": draw(sizes(1, 4, n)),
        "stride": draw(sizes(1, 3, n)),
        "dilation": draw(sizes(1, 3, n)),
        "groups": groups,
        "bias": draw(flag),
    }


def check(make: Callable[[Any], Any], kind: str, *arrays: Any, call: Any = None) -> None:
    compare(torch, make, arrays, kind=kind, call=call)


@given(st.data(), KINDS)
@settings(max_examples=25, deadline=None)
def test_linear_and_bilinear(data: Any, kind: str) -> None:
    draw = data.draw
    i, j, o = (draw(st.integers(1, 5)) for _ in range(3))
    batch = draw(st.lists(st.integers(0, 4), max_size=3))
    bias = draw(flag)
    x = numbers(draw, kind, *batch, i)
    check(lambda lib: lib.nn.Linear(i, o, bias, dtype=getattr(lib, kind)), kind, x)
    y = numbers(draw, kind, *batch, j)
    check(lambda lib: lib.nn.Bilinear(i, j, o, bias, dtype=getattr(lib, kind)), kind, x, y)


@given(st.data(), KINDS, st.sampled_from([1, 2]))
@settings(max_examples=50, deadline=None)
def test_convolutions(data: Any, kind: str, n: int) -> None:
    draw = data.draw
    options = windows(draw, n) | {
        "padding": draw(sizes(0, 2, n) | st.sampled_from(["same", "valid"])),
        "padding_mode": draw(st.sampled_from(["zeros", "reflect", "replicate", "circular"])),
    }
    x = draw(images(kind, options["in_channels"], n))
    check(lambda lib: getattr(lib.nn, f"Conv{n}d")(**options, dtype=getattr(lib, kind)), kind, x)


@given(st.data(), KINDS, st.sampled_from([1, 2]))
@settings(max_examples=26, deadline=None)
def test_transposed_convolutions(data: Any, kind: str, n: int) -> None:
    draw = data.draw
    options = windows(draw, n) | {
        "padding": draw(sizes(0, 2, n)),
        "output_padding": draw(sizes(0, 2, n)),
    }
    x = draw(images(kind, options["in_channels"], n))
    assume(x.size)  # whose options PyTorch does not look at
    each = {
        name: np.broadcast_to(options[name], n)
        for name in ("kernel_size", "stride", "padding", "output_padding", "dilation")
    }
    found = (np.array(x.shape[-n:]) - 1) * each["stride"] - 2 * each["padding"] + 1
    found += each["dilation"] * (each["kernel_size"] - 1) + each["output_padding"]
    assume((found > 0).all())  # some of PyTorch's ways give an empty result, others refuse it
    check(
        lambda lib: getattr(lib.nn, f"ConvTranspose{n}d")(**options, dtype=getattr(lib, kind)),
        kind,
        x,
    )


@given(st.data(), KINDS, st.sampled_from([1, 2]))
@settings(max_examples=50, deadline=None)
def test_pooling(data: Any, kind: str, n: int) -> None:
    draw = data.draw
    options = {
        "kernel_size": draw(sizes(1, 4, n)),
        "stride": draw(st.none() | sizes(1, 3, n)),
        "padding": draw(sizes(0, 2, n)),
        "ceil_mode": draw(flag),
    }
    name = draw(st.sampled_from(["MaxPool", "AvgPool"]))
    if name == "MaxPool":
        options["dilation"] = draw(sizes(1, 3, n))
        options["return_indices"] = draw(flag)
    else:
        options["count_include_pad"] = draw(flag)
        if n == 2:
            options["divisor_override"] = draw(st.none() | st.integers(1, 5))

    def call(_: Any, module: Any, x: Any) -> Any:
        found = module(x)
        values = found[0] if isinstance(found, tuple) else found
        # Of a window over padding alone PyTorch takes the place, and the gradient, beyond the end.
        seen = values.isfinite()
        kept = values.masked_fill(~seen, 0)
        return (kept, found[1].masked_fill(~seen, 0)) if isinstance(found, tuple) else kept

    check(
        lambda lib: getattr(lib.nn, f"{name}{n}d")(**options),
        kind,
        draw(images(kind, 2, n)),
        call=call,
    )


@given(st.data(), KINDS, st.sampled_from([1, 2]), st.sampled_from(["Avg", "Max"]))
@settings(max_examples=25, deadline=None)
def test_adaptive_pooling(data: Any, kind: str, n: int, name: str) -> None:
    draw = data.draw
    size = draw(sizes(1, 5, n)) if n == 1 or draw(flag) else (None, draw(st.integers(1, 5)))
    x = draw(images(kind, 2, n))
    check(lambda lib: getattr(lib.nn, f"Adaptive{name}Pool{n}d")(size), kind, x)


@given(st.data(), KINDS, st.sampled_from(["BatchNorm", "InstanceNorm"]), st.sampled_from([1, 2]))
@settings(max_examples=40, deadline=None)
def test_normalisations_by_channels(data: Any, kind: str, name: str, n: int) -> None:
    draw = data.draw
    channels = draw(st.integers(1, 4))
    options = {
        "eps": draw(st.sampled_from([1e-5, 1e-3])),
        "momentum": draw(st.sampled_from([0.1, 0.5, 1.0])),
        "affine": draw(flag),
        "track_running_stats": draw(flag),
    }
    if name == "BatchNorm" and draw(flag):
        options["momentum"] = None
    x = draw(images(kind, channels, n))
    # Of no samples, PyTorch indexes the statistics of the first.
    assume(x.size or name == "BatchNorm")
    steps = draw(st.integers(0, 3))

    def call(lib: Any, module: Any, x: Any) -> Any:
        for _ in range(steps):
            module(x)
        return [module(x), module.eval()(x)] if steps else module.eval()(x)

    check(
        lambda lib: getattr(lib.nn, f"{name}{n}d")(channels, **options, dtype=getattr(lib, kind)),
        kind,
        x,
        call=call,
    )


@given(st.data(), KINDS)
@settings(max_examples=26, deadline=None)
def test_normalisations_by_layers(data: Any, kind: str) -> None:
    draw = data.draw
    shape = tuple(draw(st.lists(st.integers(1, 4), min_size=1, max_size=3)))
    rows = tuple(draw(st.lists(st.integers(0, 3), max_size=2)))
    x = numbers(draw, kind, *rows, *shape)
    affine, bias = draw(flag), draw(flag)
    eps = draw(st.sampled_from([1e-5, 1e-2]))
    none = draw(st.none() | st.just(eps))
    given_shape = shape[0] if len(shape) == 1 and draw(flag) else shape
    check(
        lambda lib: lib.nn.LayerNorm(given_shape, eps, affine, bias, dtype=getattr(lib, kind)),
        kind,
        x,
    )
    check(lambda lib: lib.nn.RMSNorm(given_shape, none, affine, dtype=getattr(lib, kind)), kind, x)


@given(st.data(), KINDS)
@settings(max_examples=25, deadline=None)
def test_group_norm(data: Any, kind: str) -> None:
    draw = data.draw
    groups, each = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    rest = draw(st.lists(st.integers(1, 4), max_size=2))
    x = numbers(draw, kind, draw(st.integers(0, 3)), groups * each, *rest)
    assume(x.size != groups)  # one number a group: PyTorch refuses it of one sample, not of two
    affine = draw(flag)
    check(
        lambda lib: lib.nn.GroupNorm(
            groups, groups * each, affine=affine, dtype=getattr(lib, kind)
        ),
        kind,
        x,
    )


@given(st.data(), KINDS)
@settings(max_examples=25, deadline=None)
def test_embedding(data: Any, kind: str) -> None:
    draw = data.draw
    rows, size = draw(st.integers(1, 6)), draw(st.integers(1, 4))
    shape = draw(st.lists(st.integers(0, 4), max_size=3))
    picked = np.random.default_rng(draw(st.integers(0, 2**31))).integers(0, rows, shape)
    options = {
        "padding_idx": draw(st.none() | st.integers(-rows, rows - 1)),
        "max_norm": draw(st.none() | st.sampled_from([0.5, 1.0, 2.0])),
        "norm_type": draw(st.sampled_from([1.0, 2.0, float("inf")])),
    }
    check(
        lambda lib: lib.nn.Embedding(rows, size, **options, dtype=getattr(lib, kind)),
        kind,
        np.asarray(picked),
    )


@given(st.data(), KINDS, st.sampled_from(["RNN", "LSTM", "GRU"]))
@settings(max_examples=30, deadline=None)
def test_recurrent_networks(data: Any, kind: str, name: str) -> None:
    draw = data.draw
    inputs, hidden = draw(st.integers(1, 3)), draw(st.integers(1, 4))
    options = {
        "num_layers": draw(st.integers(1, 3)),
        "bias": draw(flag),
        "batch_first": draw(flag),
        "bidirectional": draw(flag),
    }
    if name == "RNN":
        options["nonlinearity"] = draw(st.sampled_from(["tanh", "relu"]))
    steps, batch = draw(st.integers(1, 5)), draw(st.none() | st.integers(1, 3))
    middle = [] if batch is None else [batch]
    states = options["num_layers"] * (2 if options["bidirectional"] else 1)
    order = [*middle, steps] if options["batch_first"] else [steps, *middle]
    arrays = [numbers(draw, kind, *order, inputs)]
    if draw(flag):
        count = 2 if name == "LSTM" else 1
        arrays += [numbers(draw, kind, states, *middle, hidden) for _ in range(count)]

    def call(lib: Any, module: Any, x: Any, *hx: Any) -> Any:
        return module(x, hx if len(hx) > 1 else hx[0]) if hx else module(x)

    check(
        lambda lib: getattr(lib.nn, name)(inputs, hidden, **options, dtype=getattr(lib, kind)),
        kind,
        *arrays,
        call=call,
    )


@given(st.data(), KINDS, st.sampled_from(["RNNCell", "LSTMCell", "GRUCell"]))
@settings(max_examples=25, deadline=None)
def test_recurrent_cells(data: Any, kind: str, name: str) -> None:
    draw = data.draw
    inputs, hidden, bias = draw(st.integers(1, 3)), draw(st.integers(1, 4)), draw(flag)
    rows = [] if draw(flag) else [draw(st.integers(0, 3))]
    arrays = [numbers(draw, kind, *rows, inputs)]
    if draw(flag):
        count = 2 if name == "LSTMCell" else 1
        arrays += [numbers(draw, kind, *rows, hidden) for _ in range(count)]

    def call(lib: Any, module: Any, x: Any, *hx: Any) -> Any:
        return module(x, hx if len(hx) > 1 else hx[0]) if hx else module(x)

    check(
        lambda lib: getattr(lib.nn, name)(inputs, hidden, bias, dtype=getattr(lib, kind)),
        kind,
        *arrays,
        call=call,
    )


def masks(draw: Draw, kind: str, shape: tuple[int, ...]) -> Any:
    """Return a mask that leaves each query its first key, or numbers to add."""
    if draw(flag):
        return numbers(draw, kind, *shape)
    found = np.random.default_rng(draw(st.integers(0, 2**31))).random(shape) < 0.4
    found[..., 0] = False
    return found


@given(st.data(), KINDS)
@settings(max_examples=26, deadline=None)
def test_attention(data: Any, kind: str) -> None:
    draw = data.draw
    heads = draw(st.integers(1, 3))
    size = heads * draw(st.integers(1, 3))
    batch = draw(st.none() | st.integers(1, 3))
    queries, keys = draw(st.integers(1, 4)), draw(st.integers(1, 4))
    first, bias = draw(flag), draw(flag)

    def sequence(steps: int) -> Any:
        order = [steps] if batch is None else [batch, steps] if first else [steps, batch]
        return numbers(draw, kind, *order, size)

    arrays = [sequence(queries), sequence(keys), sequence(keys)]
    given_masks = {}
    if draw(flag):
        many = () if draw(flag) else ((batch or 1) * heads,)
        given_masks["attn_mask"] = masks(draw, kind, (*many, queries, keys))
    if draw(flag):
        padding = masks(draw, kind, (keys,) if batch is None else (batch, keys))
        same = "attn_mask" not in given_masks or given_masks["attn_mask"].dtype == padding.dtype
        if same:  # PyTorch warns of masks of two kinds
            given_masks["key_padding_mask"] = padding
    options = {"need_weights": draw(flag), "average_attn_weights": draw(flag)}

    def call(lib: Any, module: Any, q: Any, k: Any, v: Any) -> Any:
        given = {name: lib.from_numpy(m.copy()) for name, m in given_masks.items()}
        return module(q, k, v, **given, **options)

    check(
        lambda lib: lib.nn.MultiheadAttention(
            size, heads, bias=bias, batch_first=first, dtype=getattr(lib, kind)
        ),
        kind,
        *arrays,
        call=call,
    )


@given(st.data(), KINDS)
@settings(max_examples=25, deadline=None)
def test_encoder_layers(data: Any, kind: str) -> None:
    draw = data.draw
    heads = draw(st.integers(1, 2))
    size = heads * draw(st.integers(1, 3))
    batch, steps = draw(st.integers(1, 3)), draw(st.integers(1, 4))
    options = {
        "dim_feedforward": draw(st.integers(1, 6)),
        "dropout": 0.0,
        "activation": draw(st.sampled_from(["relu", "gelu"])),
        "layer_norm_eps": draw(st.sampled_from([1e-5, 1e-2])),
        "batch_first": draw(flag),
        "norm_first": draw(flag),
        "bias": draw(flag),
    }
    order = [batch, steps] if options["batch_first"] else [steps, batch]
    mask = masks(draw, kind, (steps, steps)) if draw(flag) else None
    layers = draw(st.integers(0, 2))

    def make(lib: Any) -> Any:
        layer = lib.nn.TransformerEncoderLayer(size, heads, **options, dtype=getattr(lib, kind))
        if not layers:
            return layer
        extra = {} if lib is not torch else {"enable_nested_tensor": False}
        return lib.nn.TransformerEncoder(layer, layers, **extra)

    def call(lib: Any, module: Any, x: Any) -> Any:
        return module(x) if mask is None else module(x, lib.from_numpy(mask.copy()))

    check(make, kind, numbers(draw, kind, *order, size), call=call)
