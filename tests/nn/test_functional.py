"""Functions and modules of `nn`: values against formulas, and derivatives."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tensorplay as tp
from tensorplay import nn
from tensorplay.autograd import gradcheck
from tensorplay.nn import functional as F  # noqa: N812 - the field's name of it

RNG = np.random.default_rng(7)


def draw(*shape: int, away: float | None = None) -> tp.Tensor:
    """Return float64 numbers, none near ±`away`."""
    x = RNG.normal(size=shape)
    if away is not None:
        near = np.abs(np.abs(x) - away) < 0.05
        x[near] += 0.2
    return tp.tensor(x)


def sigmoid(x: Any) -> Any:
    return 1 / (1 + np.exp(-x))


ACTIVATIONS: dict[str, tuple[Callable[..., Any], Callable[[Any], Any], float | None]] = {
    "relu6": (F.relu6, lambda x: np.clip(x, 0, 6), 0.0),
    "selu": (
        F.selu,
        lambda x: 1.0507009873554805 * np.where(x > 0, x, 1.6732632423543772 * np.expm1(x)),
        0.0,
    ),
    "celu": (lambda x: F.celu(x, 1.5), lambda x: np.where(x > 0, x, 1.5 * np.expm1(x / 1.5)), 0.0),
    "mish": (F.mish, lambda x: x * np.tanh(np.log1p(np.exp(x))), None),
    "hardsigmoid": (F.hardsigmoid, lambda x: np.clip(x / 6 + 0.5, 0, 1), 3.0),
    "hardswish": (F.hardswish, lambda x: x * np.clip(x / 6 + 0.5, 0, 1), 3.0),
    "logsigmoid": (F.logsigmoid, lambda x: np.log(sigmoid(x)), None),
    "softsign": (F.softsign, lambda x: x / (1 + np.abs(x)), 0.0),
    "tanhshrink": (F.tanhshrink, lambda x: x - np.tanh(x), None),
    "softshrink": (F.softshrink, lambda x: np.sign(x) * np.maximum(np.abs(x) - 0.5, 0), 0.5),
    "hardshrink": (F.hardshrink, lambda x: np.where(np.abs(x) > 0.5, x, 0), 0.5),
    "threshold": (lambda x: F.threshold(x, 0.1, -2.0), lambda x: np.where(x > 0.1, x, -2), 0.1),
    "glu": (lambda x: F.glu(x, 1), lambda x: x[:, :2] * sigmoid(x[:, 2:]), None),
    "softmin": (
        lambda x: F.softmin(x, 1),
        lambda x: np.exp(-x) / np.exp(-x).sum(1, keepdims=True),
        None,
    ),
}


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations_are_their_formulas_and_have_their_gradients(name: str) -> None:
    function, formula, kink = ACTIVATIONS[name]
    x = draw(3, 4, away=kink)
    np.testing.assert_allclose(function(x).numpy(), formula(x.numpy()), rtol=1e-12, atol=1e-12)
    assert gradcheck(function, (x.requires_grad_(),))


def test_logsigmoid_of_large_numbers() -> None:
    x = tp.tensor([-1e4, -50.0, 50.0, 1e4], dtype=tp.float64)
    found = F.logsigmoid(x).numpy()
    np.testing.assert_allclose(found, [-1e4, -50.0, -math.exp(-50), 0.0], rtol=1e-12)


def test_prelu() -> None:
    x, w = draw(2, 3, 4, away=0.0), draw(3)
    found = F.prelu(x, w).numpy()
    slopes = w.numpy()[None, :, None]
    np.testing.assert_allclose(found, np.where(x.numpy() > 0, x.numpy(), slopes * x.numpy()))
    assert gradcheck(F.prelu, (x.requires_grad_(), w.requires_grad_()))
    with pytest.raises(ValueError, match="expected 1 slope or 3"):
        F.prelu(x, tp.ones(2))


def normalised(x: Any, axes: tuple[int, ...], eps: float = 1e-5) -> Any:
    return (x - x.mean(axes, keepdims=True)) / np.sqrt(x.var(axes, keepdims=True) + eps)


def test_batch_norm_in_training_and_after() -> None:
    x = draw(4, 3, 5)
    module = nn.BatchNorm1d(3).double()
    np.testing.assert_allclose(module(x).detach().numpy(), normalised(x.numpy(), (0, 2)))
    np.testing.assert_allclose(module.running_mean.numpy(), 0.1 * x.numpy().mean((0, 2)))
    unbiased = x.numpy().var((0, 2), ddof=1)
    np.testing.assert_allclose(module.running_var.numpy(), 0.9 + 0.1 * unbiased)
    assert module.num_batches_tracked.item() == 1
    module.eval()
    mean, var = module.running_mean.numpy(), module.running_var.numpy()
    expected = (x.numpy() - mean[:, None]) / np.sqrt(var[:, None] + 1e-5)
    np.testing.assert_allclose(module(x).detach().numpy(), expected)
    assert module.num_batches_tracked.item() == 1
    module.reset_running_stats()
    assert module.running_mean.abs().sum() == 0


def test_batch_norm_averages_all_batches_without_momentum() -> None:
    module = nn.BatchNorm2d(2, momentum=None).double()
    batches = [draw(2, 2, 3, 3) for _ in range(3)]
    for x in batches:
        module(x)
    mean = np.mean([x.numpy().mean((0, 2, 3)) for x in batches], axis=0)
    np.testing.assert_allclose(module.running_mean.numpy(), mean)


def test_normalisations() -> None:
    x = draw(2, 6, 3, 3)
    n = x.numpy()
    grouped = normalised(n.reshape(2, 3, -1), (2,)).reshape(n.shape)
    np.testing.assert_allclose(F.group_norm(x, 3).numpy(), grouped, rtol=1e-9)
    np.testing.assert_allclose(F.instance_norm(x).numpy(), normalised(n, (2, 3)), rtol=1e-9)
    unit = F.normalize(x, dim=1).numpy()
    np.testing.assert_allclose((unit**2).sum(1), np.ones((2, 3, 3)))
    w, b = draw(6), draw(6)
    scaled = F.group_norm(x, 3, w, b).numpy()
    shape = (1, 6, 1, 1)
    expected = grouped * w.numpy().reshape(shape) + b.numpy().reshape(shape)
    np.testing.assert_allclose(scaled, expected, rtol=1e-9)


@pytest.mark.parametrize(
    "function",
    [
        lambda x, w, b: F.group_norm(x, 2, w, b),
        F.instance_norm,
        lambda x, w, b: F.batch_norm(x, None, None, w, b, True),
    ],
    ids=["group", "instance", "batch"],
)
def test_normalisations_have_their_gradients(function: Callable[..., Any]) -> None:
    args = tuple(t.requires_grad_() for t in (draw(2, 4, 3), draw(4), draw(4)))
    assert gradcheck(function, args)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: F.batch_norm(tp.ones(3), None, None, training=True), "at least 2 dimensions"),
        (lambda: F.batch_norm(tp.ones(1, 3), None, None, training=True), "more than 1 value per"),
        (lambda: F.batch_norm(tp.ones(2, 3), None, None), "unless training, got None"),
        (
            lambda: F.batch_norm(tp.ones(2, 3), tp.ones(2), tp.ones(3)),
            r"'running_mean': expected shape \[3\]",
        ),
        (lambda: F.group_norm(tp.ones(2, 3), 2), "expected a divisor of the 3 channels, got 2"),
        (lambda: F.instance_norm(tp.ones(2, 3, 1)), "more than 1 value per channel"),
        (lambda: F.glu(tp.ones(3)), "expected an even size"),
        (lambda: F.softshrink(tp.ones(3), -1), "expected at least 0, got -1"),
        (lambda: F.celu(tp.ones(3), 0), "other than 0"),
        (lambda: F.huber_loss(tp.ones(1), tp.ones(1), delta=0), "expected a positive number"),
        (lambda: F.kl_div(tp.ones(1), tp.ones(1), "mode"), "'none', 'mean' or 'sum', got 'mode'"),
        (lambda: F.dropout2d(tp.ones(3)), "expected 3 or 4 dimensions"),
        (lambda: F.dropout(tp.ones(3), 1.5), "between 0 and 1|0 to 1"),
        (lambda: nn.Dropout(-0.1), "expected a probability between 0 and 1, got -0.1"),
        (lambda: nn.Linear(-1, 2), r"\[Linear\] argument 'in_features': expected at least 0"),
        (lambda: nn.Conv2d(3, 4, 3, groups=2), "'in_channels': must be divisible by groups"),
        (lambda: nn.Conv2d(3, 4, (3, 3, 3)), "'kernel_size': expected an int or 2 of them"),
        (lambda: nn.Conv1d(1, 1, 3, 2, "same", padding_mode="reflect"), r"\(2,\)\. Write stride=1"),
        (lambda: nn.Conv1d(1, 1, 3, padding="full"), "integers, 'same' or 'valid', got 'full'"),
        (lambda: nn.ConvTranspose1d(1, 1, 3, padding="same"), "expected integers, got 'same'"),
        (lambda: nn.GroupNorm(2, 3), "expected a divisor of 3 channels, got 2"),
        (lambda: nn.BatchNorm2d(3)(tp.ones(2, 3)), r"expected 4 dimensions, \(N, C, H, W\), got 2"),
        (lambda: nn.MSELoss("avg"), r"\[MSELoss\] argument 'reduction'"),
        (lambda: nn.MultiheadAttention(5, 2), "must be divisible by num_heads"),
        (lambda: nn.RNN(2, 3, nonlinearity="sin"), "expected 'tanh' or 'relu', got 'sin'"),
        (lambda: nn.LSTM(2, 3)(tp.ones(4, 5)), r"the last of size 2, got shape \[4, 5\]"),
        (lambda: nn.GRU(2, 3)(tp.ones(4, 2), tp.ones(1, 2)), r"expected 1 of size \[1, 3\]"),
        (lambda: nn.LSTM(2, 0), "at least 1 layer and 1 hidden number"),
    ],
)
def test_bad_values_are_refused_in_words(call: Callable[[], Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        call()


def test_indices_out_of_range_are_refused() -> None:
    with pytest.raises(IndexError, match="padding_idx"):
        nn.Embedding(3, 2, padding_idx=3)
    with pytest.raises(IndexError):
        nn.Embedding(3, 2)(tp.tensor([3]))
    with pytest.raises(IndexError, match=r"out of|range"):
        nn.CrossEntropyLoss()(tp.zeros(1, 3), tp.tensor([3]))
    with pytest.raises(TypeError, match="expected int, got str"):
        nn.Linear("3", 2)


# --- modules ------------------------------------------------------------------------------------

ONE = [
    (nn.ReLU(), F.relu),
    (nn.ReLU6(), F.relu6),
    (nn.Sigmoid(), F.sigmoid),
    (nn.Tanh(), F.tanh),
    (nn.SiLU(), F.silu),
    (nn.Mish(), F.mish),
    (nn.SELU(), F.selu),
    (nn.Hardsigmoid(), F.hardsigmoid),
    (nn.Hardswish(), F.hardswish),
    (nn.LogSigmoid(), F.logsigmoid),
    (nn.Softsign(), F.softsign),
    (nn.Tanhshrink(), F.tanhshrink),
    (nn.GELU("tanh"), lambda x: F.gelu(x, approximate="tanh")),
    (nn.ELU(0.5), lambda x: F.elu(x, 0.5)),
    (nn.CELU(0.5), lambda x: F.celu(x, 0.5)),
    (nn.LeakyReLU(0.2), lambda x: F.leaky_relu(x, 0.2)),
    (nn.Hardtanh(-2, 3), lambda x: F.hardtanh(x, -2, 3)),
    (nn.Softplus(2.0), lambda x: F.softplus(x, 2.0)),
    (nn.Softshrink(0.3), lambda x: F.softshrink(x, 0.3)),
    (nn.Hardshrink(0.3), lambda x: F.hardshrink(x, 0.3)),
    (nn.Threshold(0.2, 1.0), lambda x: F.threshold(x, 0.2, 1.0)),
    (nn.GLU(1), lambda x: F.glu(x, 1)),
    (nn.Softmax(1), lambda x: F.softmax(x, 1)),
    (nn.Softmin(1), lambda x: F.softmin(x, 1)),
    (nn.LogSoftmax(1), lambda x: F.log_softmax(x, 1)),
    (nn.Flatten(), lambda x: x.flatten(1)),
    (nn.Unflatten(1, (2, 2)), lambda x: x.unflatten(1, (2, 2))),
    (nn.Identity(3, a=4), lambda x: x),
]


@pytest.mark.parametrize(("module", "function"), ONE, ids=lambda v: type(v).__name__)
def test_modules_call_their_functions(module: nn.Module, function: Callable[..., Any]) -> None:
    x = draw(3, 4)
    assert tp.equal(module(x), function(x))
    assert repr(module).startswith(type(module).__name__ + "(")


def test_linear_and_bilinear() -> None:
    linear = nn.Linear(3, 2).double()
    x = draw(4, 3)
    expected = x.numpy() @ linear.weight.detach().numpy().T + linear.bias.detach().numpy()
    np.testing.assert_allclose(linear(x).detach().numpy(), expected)
    bound = 1 / math.sqrt(3)
    assert linear.weight.abs().max() <= bound
    bilinear = nn.Bilinear(3, 5, 2).double()
    y = draw(4, 5)
    weight = bilinear.weight.detach().numpy()
    expected = np.einsum("ni,oij,nj->no", x.numpy(), weight, y.numpy())
    expected += bilinear.bias.detach().numpy()
    np.testing.assert_allclose(bilinear(x, y).detach().numpy(), expected)
    assert gradcheck(bilinear, (x.requires_grad_(), y.requires_grad_()))


def test_embedding_keeps_its_padding() -> None:
    table = nn.Embedding(4, 3, padding_idx=-1)
    assert table.padding_idx == 3
    assert table.weight[3].abs().sum() == 0
    table(tp.tensor([[0, 3], [3, 1]])).sum().backward()
    assert table.weight.grad[3].abs().sum() == 0
    assert table.weight.grad[0].tolist() == [1.0, 1.0, 1.0]
    frozen = nn.Embedding.from_pretrained(tp.ones(2, 3))
    assert not frozen.weight.requires_grad
    assert frozen(tp.tensor(1)).tolist() == [1.0, 1.0, 1.0]
    with pytest.raises(ValueError, match="expected 2 dimensions"):
        nn.Embedding.from_pretrained(tp.ones(3))


def test_embedding_limits_the_rows_that_it_looks_up() -> None:
    table = nn.Embedding.from_pretrained(
        tp.tensor([[3.0, 4.0], [3.0, 4.0], [0.3, 0.4]]), freeze=False, max_norm=1.0
    )
    found = table(tp.tensor([1, 2, 1]))
    np.testing.assert_allclose(found.detach().numpy(), [[0.6, 0.8], [0.3, 0.4], [0.6, 0.8]])
    assert table.weight[0].tolist() == [3.0, 4.0]
    found.sum().backward()
    assert table.weight.grad.tolist() == [[0.0, 0.0], [2.0, 2.0], [1.0, 1.0]]
    assert "max_norm=1.0" in repr(table)
    meta = tp.nn.Embedding(3, 2, max_norm=1.0, device="meta")
    found = meta(tp.tensor([[0, 1]], device="meta"))
    assert (found.is_meta, tuple(found.shape)) == (True, (1, 2, 2))
    with pytest.raises(IndexError):
        table(tp.tensor([3]))


def test_convolutions_and_pooling() -> None:
    conv = nn.Conv2d(2, 4, (3, 1), stride=2, padding=1, groups=2)
    x = tp.randn(1, 2, 6, 5)
    expected = F.conv2d(x, conv.weight, conv.bias, 2, 1, 1, 2)
    assert tp.equal(conv(x), expected)
    assert conv.weight.shape == (4, 1, 3, 1)
    assert "kernel_size=(3, 1), stride=(2, 2), padding=(1, 1), groups=2" in repr(conv)
    assert nn.Conv1d(2, 3, 3, padding="same")(tp.ones(1, 2, 7)).shape == (1, 3, 7)
    up = nn.ConvTranspose2d(2, 3, 2, stride=2, output_padding=1)
    assert up(x).shape == (1, 3, 13, 11)
    assert up.weight.shape == (2, 3, 2, 2)
    assert nn.ConvTranspose1d(2, 3, 2)(tp.ones(1, 2, 4)).shape == (1, 3, 5)
    assert tp.equal(nn.MaxPool2d(2)(x), F.max_pool2d(x, 2))
    values, places = nn.MaxPool1d(2, return_indices=True)(tp.ones(1, 2, 4))
    assert values.shape == places.shape == (1, 2, 2)
    assert tp.equal(nn.AvgPool2d(2, 1, 1)(x), F.avg_pool2d(x, 2, 1, 1))
    assert nn.AvgPool1d(2)(tp.ones(1, 1, 4)).tolist() == [[[1.0, 1.0]]]
    assert nn.AdaptiveAvgPool2d(1)(x).shape == (1, 2, 1, 1)
    assert nn.AdaptiveAvgPool1d(2)(tp.ones(1, 2, 4)).shape == (1, 2, 2)
    assert nn.AdaptiveMaxPool2d(1)(x).shape == (1, 2, 1, 1)
    assert nn.AdaptiveMaxPool1d(2)(tp.ones(1, 2, 4)).shape == (1, 2, 2)


def test_dropout_by_channels() -> None:
    tp.manual_seed(0)
    x = tp.ones(50, 4, 3, 3)
    dropped = nn.Dropout2d(0.25)(x)
    channels = dropped.flatten(2)
    assert set(np.unique(channels.numpy())) == {np.float32(0), np.float32(1 / 0.75)}
    assert tp.equal(channels.amin(2), channels.amax(2))
    assert 0.6 < (channels[..., 0] > 0).float().mean() < 0.9
    assert tp.equal(nn.Dropout1d(0.5).eval()(x[0]), x[0])
    assert nn.Dropout(1.0)(x).abs().sum() == 0


LOSSES = [
    (nn.MSELoss(), lambda a, b: ((a - b) ** 2).mean()),
    (nn.L1Loss("sum"), lambda a, b: np.abs(a - b).sum()),
    (
        nn.HuberLoss(delta=0.7),
        lambda a, b: np.where(
            np.abs(a - b) < 0.7, (a - b) ** 2 / 2, 0.7 * (np.abs(a - b) - 0.35)
        ).mean(),
    ),
    (
        nn.SmoothL1Loss(beta=0.7),
        lambda a, b: np.where(np.abs(a - b) < 0.7, (a - b) ** 2 / 1.4, np.abs(a - b) - 0.35).mean(),
    ),
]


@pytest.mark.parametrize(("module", "formula"), LOSSES, ids=lambda v: type(v).__name__)
def test_losses_of_two_tensors(module: nn.Module, formula: Callable[..., Any]) -> None:
    a, b = draw(3, 4), draw(3, 4)
    np.testing.assert_allclose(module(a, b).item(), formula(a.numpy(), b.numpy()))
    assert gradcheck(module, (a.requires_grad_(), b.requires_grad_()))


def test_losses_of_distributions() -> None:
    p = np.abs(RNG.normal(size=(3, 4))) + 0.1
    p /= p.sum(1, keepdims=True)
    q = np.full((3, 4), 0.25)
    expected = (p * np.log(p / q)).sum() / 3
    logs, target = tp.tensor(np.log(q)), tp.tensor(p)
    np.testing.assert_allclose(nn.KLDivLoss("batchmean")(logs, target).item(), expected)
    found = nn.KLDivLoss("batchmean", log_target=True)(logs, target.log())
    np.testing.assert_allclose(found.item(), expected)
    assert F.kl_div(logs, tp.zeros(3, 4, dtype=tp.float64), "sum").item() == 0
    assert F.kl_div(logs[:0], target[:0], "batchmean").isnan()


def test_losses_with_weights_carry_them_as_buffers() -> None:
    weight = tp.tensor([1.0, 2.0, 3.0])
    loss = nn.CrossEntropyLoss(weight, label_smoothing=0.1)
    assert [n for n, _ in loss.named_buffers()] == ["weight"]
    x, y = tp.randn(4, 3), tp.tensor([0, 1, 2, 1])
    assert tp.equal(loss(x, y), F.cross_entropy(x, y, weight, label_smoothing=0.1))
    logs = x.log_softmax(1)
    assert tp.equal(nn.NLLLoss(weight)(logs, y), F.nll_loss(logs, y, weight))
    p = x.sigmoid()
    hot = (x > 0).float()
    assert tp.allclose(nn.BCELoss()(p, hot), nn.BCEWithLogitsLoss()(x, hot), atol=1e-6)


def test_losses_of_pairs() -> None:
    a, b, y = draw(5), draw(5), tp.tensor([1.0, -1, 1, -1, 1], dtype=tp.float64)
    n, m, s = a.numpy(), b.numpy(), y.numpy()
    expected = np.maximum(0, -s * (n - m) + 0.3).mean()
    np.testing.assert_allclose(nn.MarginRankingLoss(0.3)(a, b, y).item(), expected)
    expected = np.where(s == 1, n, np.maximum(0, 1 - n)).mean()
    np.testing.assert_allclose(nn.HingeEmbeddingLoss()(a, y).item(), expected)
    u, v, w = draw(5, 3), draw(5, 3), draw(5, 3)
    cos = (u.numpy() * v.numpy()).sum(1)
    cos /= np.linalg.norm(u.numpy(), axis=1) * np.linalg.norm(v.numpy(), axis=1)
    expected = np.where(s == 1, 1 - cos, np.maximum(0, cos)).mean()
    np.testing.assert_allclose(nn.CosineEmbeddingLoss()(u, v, y).item(), expected)
    near = np.linalg.norm(u.numpy() - v.numpy() + 1e-6, axis=1)
    far = np.linalg.norm(u.numpy() - w.numpy() + 1e-6, axis=1)
    other = np.linalg.norm(v.numpy() - w.numpy() + 1e-6, axis=1)
    found = nn.TripletMarginLoss()(u, v, w).item()
    np.testing.assert_allclose(found, np.maximum(0, near - far + 1).mean())
    found = nn.TripletMarginLoss(swap=True, reduction="sum")(u, v, w).item()
    np.testing.assert_allclose(found, np.maximum(0, near - np.minimum(far, other) + 1).sum())


# --- recurrent networks and attention -----------------------------------------------------------


def lstm_by_hand(module: nn.LSTM, x: Any) -> Any:
    w, u, b, d = (
        getattr(module, n).detach().numpy()
        for n in ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0")
    )
    h = c = np.zeros(module.hidden_size)
    found = []
    for step in x:
        i, f, g, o = np.split(w @ step + b + u @ h + d, 4)
        c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
        h = sigmoid(o) * np.tanh(c)
        found.append(h)
    return np.array(found), h, c


def test_lstm_is_its_formula() -> None:
    module = nn.LSTM(3, 4).double()
    x = draw(5, 3)
    out, (h, c) = module(x)
    expected, last, cell = lstm_by_hand(module, x.numpy())
    np.testing.assert_allclose(out.detach().numpy(), expected)
    np.testing.assert_allclose(h.detach().numpy()[0], last)
    np.testing.assert_allclose(c.detach().numpy()[0], cell)


def test_gru_and_rnn_are_their_formulas() -> None:
    gru, x = nn.GRU(3, 4).double(), draw(5, 3)
    w, u, b, d = (
        getattr(gru, n).detach().numpy()
        for n in ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0")
    )
    h = np.zeros(4)
    for step in x.numpy():
        (xr, xz, xn), (hr, hz, hn) = np.split(w @ step + b, 3), np.split(u @ h + d, 3)
        r, z = sigmoid(xr + hr), sigmoid(xz + hz)
        n = np.tanh(xn + r * hn)
        h = (1 - z) * n + z * h
    np.testing.assert_allclose(gru(x)[0][-1].detach().numpy(), h)
    rnn = nn.RNN(3, 4, nonlinearity="relu", bias=False).double()
    w, u = rnn.weight_ih_l0.detach().numpy(), rnn.weight_hh_l0.detach().numpy()
    h = np.zeros(4)
    for step in x.numpy():
        h = np.maximum(0, w @ step + u @ h)
    np.testing.assert_allclose(rnn(x)[1][0].detach().numpy(), h)


@pytest.mark.parametrize("kind", [nn.RNN, nn.LSTM, nn.GRU])
def test_recurrent_shapes_layouts_and_directions(kind: Any) -> None:
    module = kind(3, 4, num_layers=2, bidirectional=True).double()
    x = draw(5, 2, 3)
    out, end = module(x)
    assert out.shape == (5, 2, 8)
    states = end if isinstance(end, tuple) else (end,)
    assert all(s.shape == (4, 2, 4) for s in states)
    swapped = kind(3, 4, num_layers=2, bidirectional=True, batch_first=True).double()
    swapped.load_state_dict(module.state_dict())
    assert tp.allclose(swapped(x.transpose(0, 1))[0].transpose(0, 1), out)
    single, _ = module(x[:, 0])
    assert tp.allclose(single, out[:, 0])
    again, _ = module(x, end)
    assert not tp.allclose(again, out)
    # The way back over reversed steps is the way there.
    there = kind(3, 4).double()
    both = kind(3, 4, bidirectional=True).double()
    back = {k.removesuffix("_reverse"): v for k, v in both.state_dict().items() if "reverse" in k}
    there.load_state_dict(back)
    assert tp.allclose(both(x)[0][..., 4:], there(x.flip(0))[0].flip(0))


@pytest.mark.parametrize(
    ("cell", "layer"), [(nn.RNNCell, nn.RNN), (nn.LSTMCell, nn.LSTM), (nn.GRUCell, nn.GRU)]
)
def test_cells_are_one_step(cell: Any, layer: Any) -> None:
    one, many = cell(3, 4).double(), layer(3, 4).double()
    one.load_state_dict({k.removesuffix("_l0"): v for k, v in many.state_dict().items()})
    x, state = draw(2, 3, 3), None
    for step in x:
        state = one(step, state)
    h = state[0] if isinstance(state, tuple) else state
    assert tp.allclose(h, many(x)[0][-1])
    assert one(x[0, 0])[0].ndim in {0, 1}
    with pytest.raises((TypeError, ValueError), match="'hx': expected"):
        one(x[0], (tp.ones(1, 1), tp.ones(1, 1)))
    wrong = tp.ones(3, 1, dtype=tp.float64)
    with pytest.raises(ValueError, match=r"of size \[3, 4\], got"):
        one(x[0], (wrong, wrong) if cell is nn.LSTMCell else wrong)


def test_recurrent_networks_have_their_gradients() -> None:
    for module in (nn.LSTM(2, 2).double(), nn.GRU(2, 2).double(), nn.RNN(2, 2).double()):
        x = draw(3, 1, 2).requires_grad_()
        assert gradcheck(lambda x, *_, m=module: m(x)[0], (x, *module.parameters()))


def attention_by_hand(module: Any, x: Any, mask: Any = None) -> Any:
    e = module.embed_dim
    w, b = module.in_proj_weight.detach().numpy(), module.in_proj_bias.detach().numpy()
    q, k, v = (x @ w[i * e : (i + 1) * e].T + b[i * e : (i + 1) * e] for i in range(3))
    size = e // module.num_heads
    parts, weights = [], []
    for h in range(module.num_heads):
        at = slice(h * size, (h + 1) * size)
        scores = q[..., at] @ np.swapaxes(k[..., at], -1, -2) / math.sqrt(size)
        scores = scores if mask is None else scores + mask
        p = np.exp(scores - scores.max(-1, keepdims=True))
        p /= p.sum(-1, keepdims=True)
        weights.append(p)
        parts.append(p @ v[..., at])
    out = np.concatenate(parts, -1) @ module.out_proj.weight.detach().numpy().T
    return out + module.out_proj.bias.detach().numpy(), np.mean(weights, 0)


def test_attention_is_its_formula() -> None:
    module = nn.MultiheadAttention(6, 2, batch_first=True).double()
    x = draw(2, 4, 6)
    out, weights = module(x, x, x)
    expected, seen = attention_by_hand(module, x.numpy())
    np.testing.assert_allclose(out.detach().numpy(), expected)
    np.testing.assert_allclose(weights.detach().numpy(), seen)
    single, _ = module(x[0], x[0], x[0])
    assert tp.allclose(single, out[0])
    causal, none = module(x, x, x, is_causal=True, need_weights=False)
    mask = np.triu(np.full((4, 4), -np.inf), 1)
    np.testing.assert_allclose(
        causal.detach().numpy(), attention_by_hand(module, x.numpy(), mask)[0]
    )
    assert none is None
    later = tp.ones(4, 4, dtype=tp.bool).triu(1)
    assert tp.allclose(module(x, x, x, attn_mask=later)[0], causal)
    assert tp.allclose(module(x, x, x, attn_mask=tp.tensor(mask))[0], causal)
    many = later.expand(4, 4, 4)
    assert tp.allclose(module(x, x, x, attn_mask=many)[0], causal)
    heads = module(x, x, x, average_attn_weights=False)[1]
    assert heads.shape == (2, 2, 4, 4)
    swapped = nn.MultiheadAttention(6, 2).double()
    swapped.load_state_dict(module.state_dict())
    y = x.transpose(0, 1)
    assert tp.allclose(swapped(y, y, y)[0].transpose(0, 1), out)


def test_attention_passes_over_padding() -> None:
    module = nn.MultiheadAttention(4, 2, batch_first=True).double()
    x = draw(2, 5, 4)
    padding = tp.tensor([[False] * 3 + [True] * 2, [False] * 5])
    out, weights = module(x, x, x, key_padding_mask=padding)
    assert weights[0, :, 3:].abs().sum() == 0
    short, _ = module(x[:1, :3], x[:1, :3], x[:1, :3])
    assert tp.allclose(out[0, :3], short[0])
    with pytest.raises(ValueError, match="'key_padding_mask': expected shape"):
        module(x, x, x, key_padding_mask=padding[:, :2])
    with pytest.raises(ValueError, match="'attn_mask': expected shape"):
        module(x, x, x, attn_mask=tp.ones(2, 2))
    with pytest.raises(ValueError, match="expected a last dimension of 4"):
        module(draw(2, 5, 3), x, x)
    with pytest.raises(ValueError, match="equal number, and one batch"):
        module(x, x, x[:, :2])


@pytest.mark.parametrize("norm_first", [False, True])
def test_encoder_layers(norm_first: bool) -> None:
    layer = nn.TransformerEncoderLayer(
        4, 2, 8, dropout=0.0, activation="gelu", norm_first=norm_first, batch_first=True
    ).double()
    x = draw(1, 3, 4)

    def attend(y: Any) -> Any:
        return layer.self_attn(y, y, y)[0]

    def network(y: Any) -> Any:
        return layer.linear2(F.gelu(layer.linear1(y)))

    if norm_first:
        y = x + attend(layer.norm1(x))
        expected = y + network(layer.norm2(y))
    else:
        y = layer.norm1(x + attend(x))
        expected = layer.norm2(y + network(y))
    assert tp.allclose(layer(x), expected)
    encoder = nn.TransformerEncoder(layer, 2, nn.LayerNorm(4).double())
    assert tp.allclose(encoder(x), encoder.norm(layer(layer(x))))
    assert gradcheck(layer, (x.requires_grad_(),))
    with pytest.raises(ValueError, match="expected 'relu', 'gelu' or a function"):
        nn.TransformerEncoderLayer(4, 2, activation="sin")


# --- initial values, utilities ------------------------------------------------------------------


def test_initial_values() -> None:
    g = tp.Generator().manual_seed(3)
    w = tp.empty(200, 300)
    nn.init.xavier_uniform_(w, generator=g)
    assert w.abs().max() <= math.sqrt(6 / 500)
    nn.init.xavier_normal_(w, generator=g)
    assert abs(w.std().item() - math.sqrt(2 / 500)) < 1e-3
    nn.init.kaiming_uniform_(w, nonlinearity="relu", generator=g)
    assert w.abs().max() <= math.sqrt(6 / 300)
    nn.init.kaiming_normal_(w, mode="fan_out", nonlinearity="relu", generator=g)
    assert abs(w.std().item() - math.sqrt(2 / 200)) < 2e-3
    nn.init.trunc_normal_(w, 1.0, 2.0, -1.0, 2.0, generator=g)
    assert w.min() >= -1
    assert w.max() <= 2
    # The mean of a normal between two limits, by its density at them.
    a, b = -1.0, 0.5
    density = [math.exp(-t * t / 2) / math.sqrt(2 * math.pi) for t in (a, b)]
    mass = (math.erf(b / math.sqrt(2)) - math.erf(a / math.sqrt(2))) / 2
    assert abs(w.mean().item() - (1 + 2 * (density[0] - density[1]) / mass)) < 0.02
    q = nn.init.orthogonal_(tp.empty(3, 5), gain=2.0, generator=g)
    assert tp.allclose(q @ q.t(), 4 * tp.eye(3), atol=1e-5)
    assert tp.equal(nn.init.eye_(tp.ones(2, 3)), tp.eye(2, 3))
    assert nn.init.constant_(tp.empty(2), 3).tolist() == [3.0, 3.0]
    p = nn.Parameter(tp.empty(2, 2))
    assert nn.init.ones_(p) is p
    assert p.is_leaf
    assert nn.init.calculate_gain("leaky_relu", 1.0) == 1.0
    with pytest.raises(ValueError, match="at least 2 dimensions"):
        nn.init.xavier_normal_(tp.empty(3))
    with pytest.raises(ValueError, match="'fan_in' or 'fan_out'"):
        nn.init.kaiming_normal_(w, mode="fan")
    with pytest.raises(ValueError, match="expected one of linear"):
        nn.init.calculate_gain("sine")
    with pytest.raises(ValueError, match="expected 2 dimensions"):
        nn.init.eye_(tp.ones(2))
    with pytest.raises(ValueError, match="a positive std and a below b"):
        nn.init.trunc_normal_(w, a=3, b=2)


def test_gradients_are_clipped_together() -> None:
    a, b = nn.Parameter(tp.zeros(2)), nn.Parameter(tp.zeros(1))
    a.grad, b.grad = tp.tensor([3.0, 0.0]), tp.tensor([4.0])
    assert nn.utils.clip_grad_norm_([a, b, nn.Parameter(tp.zeros(1))], 1.0).item() == 5.0
    np.testing.assert_allclose(a.grad.numpy(), [0.6, 0.0], rtol=1e-5)
    np.testing.assert_allclose(b.grad.numpy(), [0.8], rtol=1e-5)
    assert nn.utils.clip_grad_norm_([a, b], 10.0).item() == pytest.approx(1.0)
    np.testing.assert_allclose(b.grad.numpy(), [0.8], rtol=1e-5)
    assert nn.utils.clip_grad_norm_(a, 9.0, math.inf).item() == pytest.approx(0.6)
    nn.utils.clip_grad_value_([a, b], 0.5)
    np.testing.assert_allclose([a.grad[0].item(), b.grad[0].item()], [0.5, 0.5])
    b.grad = tp.tensor([math.nan])
    with pytest.raises(RuntimeError, match="non-finite"):
        nn.utils.clip_grad_norm_([a, b], 1.0, error_if_nonfinite=True)
    assert a.grad[0].item() == 0.5
    assert nn.utils.clip_grad_norm_([], 1.0).item() == 0
    with pytest.raises(TypeError, match="expected Tensors, got int"):
        nn.utils.clip_grad_norm_([1], 1.0)


def test_parameters_as_a_vector() -> None:
    net = nn.Linear(2, 3)
    vector = nn.utils.parameters_to_vector(net.parameters())
    assert vector.shape == (9,)
    assert vector.requires_grad
    nn.utils.vector_to_parameters(tp.arange(9).float(), net.parameters())
    assert net.bias.tolist() == [6.0, 7.0, 8.0]
    with pytest.raises(ValueError, match=r"expected shape \[9\], got \[8\]"):
        nn.utils.vector_to_parameters(tp.zeros(8), net.parameters())
    with pytest.raises(TypeError, match="expected Tensor, got list"):
        nn.utils.vector_to_parameters([0.0], net.parameters())


def test_weight_norm() -> None:
    net = nn.Linear(3, 2)
    x = tp.randn(4, 3)
    plain = net(x)
    assert nn.utils.weight_norm(net) is net
    assert [n for n, _ in net.named_parameters()] == ["bias", "weight_g", "weight_v"]
    assert net.weight_g.shape == (2, 1)
    assert tp.allclose(net(x), plain, atol=1e-6)
    with tp.no_grad():
        net.weight_g.mul_(2)
    assert tp.allclose(net(x) - net.bias, (plain - net.bias) * 2, atol=1e-5)
    net(x).sum().backward()
    assert net.weight_v.grad is not None
    with pytest.raises(RuntimeError, match="already"):
        nn.utils.weight_norm(net)
    nn.utils.remove_weight_norm(net)
    assert [n for n, _ in net.named_parameters()] == ["bias", "weight"]
    assert tp.allclose(net(x) - net.bias, (plain - net.bias) * 2, atol=1e-5)
    with pytest.raises(ValueError, match="has no weight normalisation"):
        nn.utils.remove_weight_norm(net)
    with pytest.raises(AttributeError):
        nn.utils.weight_norm(net, "other")
    nn.utils.weight_norm(net, dim=None)
    assert net.weight_g.shape == ()


@pytest.mark.parametrize(
    ("size", "weight"),
    [((2, 0), (4, 0)), ((5, 2, 0), (4, 0)), ((0,), (4, 0)), ((2, 3), (0, 3)), ((3,), (0, 3)),
     ((2, 0), (0,)), ((0, 0), (4, 0)), ((2, 0), (0, 0))],
)  # fmt: skip
def test_gradients_of_linear_without_features(size: Any, weight: Any) -> None:
    x, w = tp.ones(*size, requires_grad=True), tp.ones(*weight, requires_grad=True)
    b = tp.ones(*weight[:-1], requires_grad=True)
    y = F.linear(x, w, b)
    assert (y == 1).all()
    y.sum().backward()
    assert (x.grad.shape, w.grad.shape) == (x.shape, w.shape)
    assert not x.grad.any()
    assert not w.grad.any()
    assert b.grad.tolist() == tp.full(b.shape, float(math.prod(size[:-1]))).tolist()
