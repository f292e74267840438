"""Compiled modules: every layer that comes with the runtime, alone, in a sequence and in a list."""

from __future__ import annotations

from typing import Any

import pytest

import tensorplay as tp
from tensorplay import nn
from tensorplay.graph import GraphCaptureError
from tests.compiler.calls import close

IMAGE, ROWS = (2, 4, 6, 6), (3, 4)
LAYERS: list[tuple[Any, tuple[int, ...]]] = [
    *[(make, ROWS) for make in (
        nn.ReLU, nn.ReLU6, nn.Sigmoid, nn.Tanh, nn.SiLU, nn.Mish, nn.SELU, nn.Hardsigmoid,
        nn.Hardswish, nn.LogSigmoid, nn.Softsign, nn.Tanhshrink, nn.GELU, nn.ELU, nn.CELU,
        nn.LeakyReLU, nn.Hardtanh, nn.Softplus, nn.Softshrink, nn.Hardshrink, nn.GLU, nn.PReLU,
        nn.Identity, nn.Flatten,
    )],
    (lambda: nn.Softmax(1), ROWS), (lambda: nn.LogSoftmax(1), ROWS), (lambda: nn.Softmin(1), ROWS),
    (lambda: nn.Linear(4, 5), ROWS), (lambda: nn.LayerNorm(4), ROWS), (lambda: nn.RMSNorm(4), ROWS),
    (lambda: nn.BatchNorm1d(4), ROWS), (lambda: nn.BatchNorm2d(4), IMAGE),
    (lambda: nn.GroupNorm(2, 4), IMAGE), (lambda: nn.InstanceNorm2d(4), IMAGE),
    (lambda: nn.Conv2d(4, 3, 3), IMAGE), (lambda: nn.ConvTranspose2d(4, 3, 3), IMAGE),
    (lambda: nn.MaxPool2d(2), IMAGE), (lambda: nn.AvgPool2d(2), IMAGE),
    (lambda: nn.AdaptiveAvgPool2d(2), IMAGE),
    (lambda: nn.GRU(4, 3), (5, 2, 4)),
    (lambda: nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0), (5, 2, 4)),
]  # fmt: skip


def outcome(call: Any, net: Any, x: Any) -> Any:
    """Return results and gradients."""
    x = x.clone().requires_grad_()
    net.zero_grad()
    found = call(x)
    found = found[0] if isinstance(found, tuple) else found
    (found * found).sum().backward()
    return [found.detach(), x.grad, *[p.grad.clone() for p in net.parameters()]]


@pytest.mark.parametrize("backend", ["interpreter", "eager"])
@pytest.mark.parametrize(("make", "shape"), LAYERS)
def test_layers_alone_in_a_sequence_and_in_a_list(make: Any, shape: Any, backend: str) -> None:
    tp.manual_seed(0)
    x = tp.randn(shape)
    layer = make()
    holder = nn.ModuleList([layer])

    def through_list(y: Any) -> Any:
        for module in holder:
            y = module(y)
        return y

    for call in (layer, nn.Sequential(layer), through_list):
        expected = outcome(call, layer, x)
        compiled = tp.compile(call, backend=backend)
        for _ in range(2):
            for a, b in zip(outcome(compiled, layer, x), expected, strict=True):
                tp.testing.assert_close(a, b)


def test_a_module_compiles_its_own_calls() -> None:
    net = nn.Sequential(nn.Linear(2, 8), nn.GELU(), nn.Linear(8, 1))
    x = tp.ones(3, 2)
    expected = net(x)
    net.compile(backend="interpreter")
    tp.testing.assert_close(net(x), expected)
    with tp.no_grad():
        net[0].weight.zero_()
    tp.testing.assert_close(net(x), net.forward(x))


class Sums:
    """Something that a module holds."""

    def __init__(self) -> None:
        self.seen = tp.zeros(2)


class Counting(nn.Module):
    """Changes its tensors in place by operators that also assign."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", tp.zeros((), dtype=tp.int64))
        self.scale = tp.ones(2)
        self.sums = Sums()

    def forward(self, x):
        self.count += 1
        self.scale *= x.detach()
        self.scale -= 0.5
        self.scale /= 2
        self.scale **= 2
        self.sums.seen += self.scale if x.shape[0] == 2 else 1
        return x * self.count + self.sums.seen


def test_tensors_that_a_module_changes_in_place_and_assigns_change_once(backend) -> None:
    eager, module = Counting(), Counting()
    f = tp.compile(module, backend=backend, fullgraph=True)
    before = [module.count, module.scale, module.sums.seen]
    for n in range(4):
        x = tp.full((2,), 1.0 + n)
        close(f(x), eager(x))
        pairs = [(module.count, eager.count), (module.scale, eager.scale),
                 (module.sums.seen, eager.sums.seen)]  # fmt: skip
        close(*map(list, zip(*pairs, strict=True)))
        assert [a._version for a, _ in pairs] == [n + 1] * 3
    assert all(a is b for a, b in zip(before, [p for p, _ in pairs], strict=True))
    assert f.report().programs == 1


def test_an_attribute_that_gets_another_object_is_refused_with_its_line() -> None:
    class Rebinding(Counting):
        def forward(self, x):
            self.count = self.count + 1
            return x

    class Number(Counting):
        steps = 0

        def forward(self, x):
            self.steps += 1
            return x

    for kind, name in ((Rebinding, "count"), (Number, "steps")):
        module = kind()
        with pytest.raises(GraphCaptureError, match=f"assigns the attribute '{name}' at .*forward"):
            tp.compile(module, backend="interpreter", fullgraph=True)(tp.ones(2))
        assert (module.count.tolist(), getattr(module, "steps", 0)) == (0, 0)
        f = tp.compile(module, backend="interpreter")
        f(tp.ones(2))
        f(tp.ones(2))
        assert int(getattr(module, name)) == 2
