"""Tensors and modules that a compiled function reads from outside are live, or refused."""

from __future__ import annotations

import functools

import numpy as np
import pytest

import tensorplay as tp
from tensorplay import nn
from tests.compiler.calls import close, compiled, one

WEIGHT = tp.ones(1)


def test_tensors_outside_are_live(monkeypatch) -> None:
    f = compiled(lambda x: x * WEIGHT)
    assert f(one()).item() == 1
    WEIGHT.fill_(3)
    assert f(one()).item() == 3
    monkeypatch.setitem(globals(), "WEIGHT", tp.full((1,), 7.0))
    assert f(one()).item() == 7
    assert f.report().programs == 1
    assert f.report().shapes == 1
    monkeypatch.setitem(globals(), "WEIGHT", tp.full((2,), 7.0, requires_grad=True))
    out = f(one())
    assert out.tolist() == [7, 7]
    out.sum().backward()
    assert WEIGHT.grad.tolist() == [1, 1]


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
        self.drop = nn.Dropout(0.5)
        self.scale = 2.0
        self.count = nn.Buffer(tp.zeros(1))

    def forward(self, x):
        return self.drop(self.layers(x)) * self.scale + self.count


@pytest.mark.parametrize("way", ["function", "method"])
def test_modules_are_live(way: str, backend) -> None:
    net = Net().eval()
    if way == "function":
        call = tp.compile(net, backend=backend, fullgraph=True)
    else:
        call = net
        net.compile(backend=backend, fullgraph=True)
    x = tp.randn(5, 3)

    def eager():
        return net.forward(x)

    close(call(x), eager())
    with tp.no_grad():
        net.layers[0].weight.mul_(2)
    close(call(x), eager())
    net.layers[0].weight = nn.Parameter(tp.randn(4, 3))
    close(call(x), eager())
    net.scale = 3.0
    close(call(x), eager())
    net.count += 1
    close(call(x), eager())
    net.layers[2] = nn.Linear(4, 2)
    close(call(x), eager())
    net.train()
    tp.manual_seed(1)
    got = call(x)
    tp.manual_seed(1)
    close(got, eager())
    net.eval()
    call(x).sum().backward()
    got = [p.grad for p in net.parameters()]
    net.zero_grad()
    eager().sum().backward()
    close(got, [p.grad for p in net.parameters()])


def test_hooks_of_modules_are_called() -> None:
    net = nn.Linear(2, 2)
    call = tp.compile(net, backend="interpreter")
    x = tp.ones(1, 2)
    close(call(x), net.forward(x))
    net.register_forward_hook(lambda module, args, out: out * 0)
    assert call(x).tolist() == [[0, 0]]


def test_buffers_that_change_are_written_once_in_each_call(backend) -> None:
    class Counter(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.seen = nn.Buffer(tp.zeros(1))

        def forward(self, x):
            self.seen.add_(1)
            return x * self.seen

    net = Counter()
    call = tp.compile(net, backend=backend, fullgraph=True)
    assert [call(one()).item() for _ in range(3)] == [1, 2, 3]
    assert net.seen.item() == 3


def test_a_tensor_that_no_guard_finds_is_refused() -> None:
    class Hidden:
        __slots__ = ("get",)

    held = one()
    hidden = Hidden()
    hidden.get = {"x": held}.__getitem__
    f = tp.compile(lambda x: x * hidden.get("x"), backend="interpreter")
    assert f(one()).item() == 1
    held.fill_(2)
    assert f(one()).item() == 2


def test_an_argument_that_is_also_read_from_outside() -> None:
    f = tp.compile(lambda x: x + WEIGHT * 10 if x is not WEIGHT else x * 3, backend="interpreter")
    with tp.no_grad():
        start, other = WEIGHT.item(), tp.full(WEIGHT.shape, 5.0)
        for _ in range(2):
            assert f(WEIGHT).tolist() == [3 * start] * len(WEIGHT)
            assert f(other).tolist() == [5 + 10 * start] * len(WEIGHT)


def test_an_argument_that_is_in_a_list_outside() -> None:
    known = [tp.ones(1)]
    f = tp.compile(lambda x: x * 2 if any(x is t for t in known) else x * 3, backend="interpreter")
    for _ in range(2):
        assert f(one()).item() == 3
        assert f(known[0]).item() == 2


@pytest.mark.parametrize(
    "ask",
    [
        lambda t: t.item(),
        float,
        lambda t: 2 if t else 3,
        lambda t: t.tolist(),
        lambda t: float(t.numpy()),
        lambda t: float(np.asarray(t)),
        lambda t: len(repr(t)),
        lambda t: 2 if t.grad is None else 3,
        lambda t: 2 if t.requires_grad else 3,
        lambda t: t._version + 1,
        lambda t: t.ndim + 1,
        lambda t: 2 if t.dtype is tp.float32 else 3,
    ],
)
def test_what_python_asks_of_a_tensor_outside(ask, monkeypatch) -> None:
    found = []
    for wrap in (lambda f: f, functools.partial(tp.compile, backend="interpreter")):
        f = wrap(lambda x: x * ask(WEIGHT))
        weight = tp.tensor(1.0)
        monkeypatch.setitem(globals(), "WEIGHT", weight)
        results = [f(one()).item()]
        weight.fill_(0.125)
        results.append(f(one()).item())
        weight.grad = tp.tensor(1.0)
        results.append(f(one()).item())
        weight.data = tp.tensor(1.0, dtype=tp.float64)
        results.append(f(one()).item())
        found.append(results)
    assert found[0] == found[1]
