"""Modules at their edges, and as people write them elsewhere: values and gradients of PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tensorplay as tp
from tensorplay import nn

RNG = np.random.default_rng(3)
Case = tuple[Callable[[Any], Any], tuple[Any, ...]]


@pytest.fixture(scope="module")
def torch() -> Any:
    return pytest.importorskip("torch", reason="compares with PyTorch where it is installed")


def draw(*shape: int) -> Any:
    return RNG.normal(size=shape).astype(np.float32)


def run(lib: Any, make: Callable[[Any], Any], arrays: tuple[Any, ...], state: Any) -> Any:
    """Return results, gradients and the state after a call, and the state before."""
    module = make(lib.nn)
    if state is not None:
        module.load_state_dict({k: lib.from_numpy(v.copy()) for k, v in state.items()})
    before = {k: v.numpy().copy() for k, v in module.state_dict().items()}
    inputs = [lib.from_numpy(a.copy()) for a in arrays]
    if arrays[0].dtype.kind == "f":
        inputs[0].requires_grad_()
    result = module(*inputs)
    factors = np.cos(np.arange(result.numel())).reshape(tuple(result.shape)).astype(np.float32)
    if result.requires_grad:
        (result * lib.from_numpy(factors)).sum().backward()
    found = [result.detach().numpy()]
    found += [
        np.zeros(0) if x.grad is None else x.grad.numpy() for x in (inputs[0], *module.parameters())
    ]
    found += [v.numpy() for v in module.state_dict().values()]
    return found, before


EDGES = np.array([-100, -20.5, -3, -1, -0.5, -0.0, 0, 0.5, 1, 3, 6, 20.5, 100], np.float32)
IN_PLACE = [
    *("ReLU", "ReLU6", "SiLU", "Mish", "SELU", "Hardsigmoid", "Hardswish", "ELU", "CELU"),
    *("LeakyReLU", "Hardtanh"),
]
ACTIVATIONS = [
    *IN_PLACE,
    *("Sigmoid", "Tanh", "LogSigmoid", "Softsign", "Tanhshrink", "GELU", "Softplus"),
    *("Softshrink", "Hardshrink", "PReLU"),
]
EMPTY = draw(0, 4, 5, 5)
CASES: dict[str, Case] = {
    **{
        f"{name} of {what}": (lambda m, name=name: getattr(m, name)(), (x,))
        for name in ACTIVATIONS
        for what, x in (("edges", EDGES), ("a number", np.array(0.3, np.float32)))
    },
    "bce of certain ones": (
        lambda m: m.BCELoss(),
        (np.array([0, 1, 1, 0, 0.5], np.float32), np.array([0, 1, 0, 1, 1], np.float32)),
    ),
    "bce without mean": (
        lambda m: m.BCELoss(reduction="none"),
        (np.array([1e-30, 1 - 6e-8, 0.25], np.float32), np.array([0, 1, 0.3], np.float32)),
    ),
    "batch norm of nothing": (lambda m: m.BatchNorm2d(4), (EMPTY,)),
    "group norm of nothing": (lambda m: m.GroupNorm(2, 4), (EMPTY,)),
    "instance norm of nothing": (
        lambda m: m.InstanceNorm2d(4),
        (EMPTY,),
    ),
    "max pool of nothing": (lambda m: m.AdaptiveMaxPool2d(3), (EMPTY,)),
    "instance norm": (lambda m: m.InstanceNorm2d(3, 1e-5, 0.1, True), (draw(2, 3, 4, 4),)),
    "instance norm with state": (
        lambda m: m.InstanceNorm1d(3, momentum=0.3, affine=True, track_running_stats=True),
        (draw(2, 3, 5),),
    ),
    "instance norm by its state": (
        lambda m: m.InstanceNorm1d(3, track_running_stats=True).eval(),
        (draw(2, 3, 5),),
    ),
    "instance norm of one": (lambda m: m.InstanceNorm2d(3), (draw(3, 4, 4),)),
    **{
        f"convolution, {mode} {padding}": (
            lambda m, mode=mode, padding=padding: m.Conv2d(
                2, 4, (3, 5), padding=padding, padding_mode=mode
            ),
            (draw(2, 2, 6, 7),),
        )
        for mode in ("zeros", "reflect", "replicate", "circular")
        for padding in (1, (2, 1), "same", "valid")
    },
    "convolution of one": (
        lambda m: m.Conv1d(2, 2, 3, padding=1, padding_mode="circular"),
        (draw(2, 5),),
    ),
    **{
        f"{name} in place": (
            lambda m, name=name: m.Sequential(m.Linear(3, 3), getattr(m, name)(inplace=True)),
            (draw(2, 3),),
        )
        for name in IN_PLACE
    },
}


@pytest.mark.parametrize("name", CASES)
def test_values_gradients_and_state(name: str, torch: Any) -> None:
    make, arrays = CASES[name]
    found, state = run(tp, make, arrays, None)
    expected, _ = run(torch, make, arrays, state)
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.shape == theirs.shape
        np.testing.assert_allclose(ours, theirs, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("weights", [False, True])
def test_a_query_that_attends_to_nothing(weights: bool, torch: Any) -> None:
    x = draw(3, 2, 4)
    mask = np.zeros((3, 3), bool)
    mask[0] = True
    padding = np.array([[False, False, True], [False, False, False]])
    found = []
    state: Any = None
    for lib in (tp, torch):
        attention = lib.nn.MultiheadAttention(4, 2)
        if state is not None:
            attention.load_state_dict({k: lib.from_numpy(v) for k, v in state.items()})
        state = {k: v.numpy().copy() for k, v in attention.state_dict().items()}
        q = lib.from_numpy(x.copy()).requires_grad_()
        y, _ = attention(
            q,
            q,
            q,
            attn_mask=lib.from_numpy(mask),
            key_padding_mask=lib.from_numpy(padding),
            need_weights=weights,
        )
        (y[1:] if weights else y).square().sum().backward()
        found.append([y.detach().numpy(), q.grad.numpy()])
    for ours, theirs in zip(*found, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)


# --- what does not need PyTorch -------------------------------------------------------------------


def test_probabilities_of_0_and_1_have_finite_gradients() -> None:
    p = tp.tensor([0.0, 1.0, 0.0, 1.0], requires_grad=True)
    target = tp.tensor([0.0, 1.0, 1.0, 0.0])
    nn.functional.binary_cross_entropy(p, target, reduction="sum").backward()
    np.testing.assert_allclose(p.grad.numpy(), [0, 0, -1e12, 1e12], rtol=1e-6)
    soft = tp.tensor([40.0, -120.0], requires_grad=True)
    nn.functional.binary_cross_entropy(soft.sigmoid(), tp.tensor([1.0, 0.0])).backward()
    assert soft.grad.tolist() == [0.0, 0.0]


def test_an_empty_batch_leaves_running_statistics_alone() -> None:
    norm = nn.BatchNorm1d(3)
    assert norm(tp.ones(0, 3)).shape == (0, 3)
    assert norm.running_mean.tolist() == [0.0] * 3
    assert norm.running_var.tolist() == [1.0] * 3


def test_in_place_modules_write_over_their_input() -> None:
    x = tp.tensor([-1.0, 2.0])
    assert nn.ReLU(inplace=True)(x) is x
    assert x.tolist() == [0.0, 2.0]
    assert nn.LeakyReLU(0.5, True)(tp.tensor([-2.0])).tolist() == [-1.0]
    assert repr(nn.ReLU(inplace=True)) == "ReLU(inplace=True)"
    assert repr(nn.ELU(inplace=True)) == "ELU(alpha=1.0, inplace=True)"
    y = tp.ones(1000)
    assert nn.Dropout(0.5, inplace=True)(y) is y
    assert set(y.tolist()) == {0.0, 2.0}
    with pytest.raises(RuntimeError, match="leaf"):
        nn.ReLU(inplace=True)(tp.ones(1, requires_grad=True))


@pytest.mark.parametrize(
    ("call", "kind", "words"),
    [
        (lambda: nn.CrossEntropyLoss(None, True), TypeError, "positional"),
        (lambda: nn.NLLLoss(None, True), TypeError, "positional"),
        (lambda: nn.MultiheadAttention(4, 2, 0.0, True, True), TypeError, "positional"),
        (lambda: nn.MSELoss(False), TypeError, "'reduction': expected str, got bool"),
        (lambda: nn.Conv1d(1, 1, 3, padding_mode="mirror"), ValueError, "expected one of zeros"),
        (
            lambda: nn.ConvTranspose1d(1, 1, 3, padding_mode="reflect"),
            ValueError,
            "only 'zeros' is supported",
        ),
        (
            lambda: nn.MultiheadAttention(2, 1)(
                *[tp.ones(2, 1, 2)] * 3, attn_mask=tp.ones(2, 2, dtype=tp.int64)
            ),
            TypeError,
            r"expected bool or floating elements.*mask\.bool",
        ),
    ],
)
def test_what_would_mean_something_else_is_refused(
    call: Callable[[], Any], kind: type[Exception], words: str
) -> None:
    with pytest.raises(kind, match=words):
        call()


def test_modules_on_meta_compute_shapes() -> None:
    x = tp.ones(2, 3, 4, 4, device="meta")
    for module in (
        nn.Dropout2d(0.5),
        nn.BatchNorm2d(3, device="meta"),
        nn.InstanceNorm2d(3),
        nn.Conv2d(3, 3, 3, padding=1, padding_mode="reflect", device="meta"),
    ):
        assert module(x).shape == x.shape
    s = tp.ones(3, 2, 4, device="meta")
    layer = nn.TransformerEncoderLayer(4, 2, 8, device="meta")
    assert layer(s, is_causal=True).shape == s.shape
