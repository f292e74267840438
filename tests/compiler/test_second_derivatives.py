"""Derivatives of gradients of compiled functions: those of eager ones, or refused with words."""

from __future__ import annotations

import threading

import pytest

import tensorplay as tp
from tensorplay.nn import functional


class Rounded(tp.autograd.Function):
    """Rounds, and passes the gradient on as if it did not."""

    @staticmethod
    def forward(ctx, x):
        return x.round()

    @staticmethod
    def backward(ctx, grad):
        return grad


def scaled(x):
    with tp.no_grad():
        most = x.abs().max()
    return (x / most) ** 3


def unrecorded(x):
    with tp.no_grad():
        y = x.exp()
    return y.requires_grad_() * x


def hooked(x):
    y = x * 2
    y.register_hook(lambda g: g * 10)
    return y**3


def written_unrecorded(x):
    y = x.clone()
    with tp.no_grad():
        y.mul_(3)
    return y**3


def written_then_detached(x):
    y = x * 2
    y.mul_(x)
    return y * y.detach()


def centred_with_statistics(x):
    mean = x.mean()
    with tp.no_grad():
        mean.detach() * 0.1
    return (x - mean) ** 3


def unused_draw(x):
    tp.rand(3)
    return x**3 * tp.rand(3)


def rounding(x):
    return Rounded.apply(x * 1.3) * x**2


REFUSED = {
    "detach": (lambda x: x * x * x.detach(), "both with and without its history"),
    "detached argument": (lambda x: functional.gelu(x.detach()) * x**2, "without its history"),
    "detached member": (lambda x: tp.cat([x, x.detach()]) ** 3, "without its history"),
    "no_grad": (scaled, "turns recording off"),
    "no_grad around the result": (unrecorded, "turns recording off"),
    "write without recording": (written_unrecorded, "turns recording off"),
    "write, then detach": (written_then_detached, "without its history"),
    "hook": (hooked, "has a hook"),
    "Function": (rounding, "calls a Function"),
}
LIKE_EAGER = {
    "gelu": lambda x: functional.gelu(x) ** 2,
    "softmax": lambda x: functional.softmax(x, 0) ** 2,
    "mask": lambda x: x * (x > 1).float() * x,
    "constant": lambda x: x**3 * tp.ones_like(x) * tp.tensor([1.0, 2.0, 3.0]),
    "statistics beside": centred_with_statistics,
    "floor": lambda x: tp.where(x > 2, x**3, x.floor() * x**2),
    "view": lambda x: x.reshape(3, 1) ** 3,
    "written": lambda x: (x * 1).mul_(x).mul_(x),
    "dropout": lambda x: x * x * functional.dropout(x, 0.5),
    "draw that nobody uses": unused_draw,
    "two draws": lambda x: x**3 * tp.rand(3) + x**2 * tp.randn(3),
}


def start() -> tp.Tensor:
    return tp.tensor([0.5, 1.7, 2.6], requires_grad=True)


def twice(function, x):
    tp.manual_seed(3)
    (first,) = tp.autograd.grad(function(x).sum(), [x], create_graph=True)
    (second,) = tp.autograd.grad(first.square().sum(), [x])
    return [*first.reshape(-1).tolist(), *second.reshape(-1).tolist(), *tp.rand(2).tolist()]


@pytest.mark.parametrize("name", LIKE_EAGER)
def test_they_are_those_of_eager_execution(name, backend) -> None:
    function = LIKE_EAGER[name]
    compiled = tp.compile(function, backend=backend, fullgraph=True)
    for _ in range(2):
        assert twice(compiled, start()) == pytest.approx(twice(function, start()), rel=1e-4)


@pytest.mark.parametrize("name", REFUSED)
def test_a_history_that_the_graph_does_not_have_is_refused(name, backend) -> None:
    function, words = REFUSED[name]
    compiled = tp.compile(function, backend=backend, fullgraph=True)
    x = start()
    (got,) = tp.autograd.grad(compiled(x).sum(), [x])
    (want,) = tp.autograd.grad(function(x).sum(), [x])
    tp.testing.assert_close(got, want)
    with pytest.raises(RuntimeError, match=f"{words}.*f.__wrapped__"):
        tp.autograd.grad(compiled(x).sum(), [x], create_graph=True)


def test_numbers_are_drawn_again_beside_threads_that_draw(backend) -> None:
    compiled = tp.compile(lambda x: x**2 * tp.rand(3), backend=backend, fullgraph=True)
    compiled(start())
    drawn: list[tuple[float, ...]] = []
    done = threading.Event()

    def draw() -> None:
        while not done.is_set():
            drawn.append(tuple(tp.rand(4).tolist()))

    beside = threading.Thread(target=draw)
    beside.start()
    try:
        for _ in range(150):
            x = start()
            y = compiled(x)
            (first,) = tp.autograd.grad(y.sum(), [x], create_graph=True)
            tp.testing.assert_close(first, 2 * y / x)
    finally:
        done.set()
        beside.join()
    assert len(set(drawn)) == len(drawn)


def test_draws_that_no_operator_declares_are_made_again(backend) -> None:
    @tp.library.custom_op("seconds::noisy", mutates_args=())
    def noisy(x: tp.Tensor) -> tp.Tensor:
        return x * tp.rand(3)

    noisy.register_fake(tp.empty_like)
    noisy.register_autograd(lambda ctx, grad: grad)

    def function(x):
        return noisy(x) * x * tp.rand(3)

    compiled = tp.compile(function, backend=backend, fullgraph=True)
    assert twice(compiled, start()) == pytest.approx(twice(function, start()), rel=1e-4)
