"""Schedules used together, and methods with their state, step by step as PyTorch has them."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tensorplay as tp
from tensorplay import nn, optim


@pytest.fixture(scope="module")
def torch() -> Any:
    return pytest.importorskip("torch", reason="compares with PyTorch where it is installed")


Chain = Callable[[Any, Any], list[Any]]
CHAINS: dict[str, Chain] = {
    "two": lambda s, o: [s.ExponentialLR(o, 0.9), s.MultiStepLR(o, [3, 7], 0.1)],
    "warm-up": lambda s, o: [s.LinearLR(o, 0.1, total_iters=4), s.StepLR(o, 5, 0.5)],
    "cosine": lambda s, o: [s.CosineAnnealingLR(o, 4, 0.01), s.ConstantLR(o, 0.25, 3)],
    "cosine last": lambda s, o: [s.ExponentialLR(o, 0.8), s.CosineAnnealingLR(o, 3)],
    "lambda first": lambda s, o: [s.LambdaLR(o, lambda t: 1 / (t + 1)), s.StepLR(o, 2)],
    "lambda last": lambda s, o: [s.StepLR(o, 2), s.LambdaLR(o, lambda t: 1 / (t + 1))],
    "chained": lambda s, o: [
        s.ChainedScheduler(
            [s.LinearLR(o, 0.1, total_iters=4), s.StepLR(o, 3, 0.5), s.CosineAnnealingLR(o, 4)]
        )
    ],
    "sequential": lambda s, o: [
        s.SequentialLR(
            o,
            [s.LinearLR(o, 0.1, total_iters=3), s.CosineAnnealingLR(o, 6), s.ExponentialLR(o, 0.5)],
            [3, 9],
        )
    ],
}


def rates(lib: Any, chain: Chain, touch: Callable[[Any, int], None] | None = None) -> list[float]:
    optimizer = lib.optim.SGD([lib.nn.Parameter(lib.ones(1))], 0.1)
    schedulers = chain(lib.optim.lr_scheduler, optimizer)
    found = []
    for t in range(12):
        found.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        if touch is not None:
            touch(optimizer, t)
        for scheduler in schedulers:
            scheduler.step()
    return found


@pytest.mark.parametrize("name", CHAINS)
def test_chained_schedules_are_those_of_pytorch(name: str, torch: Any) -> None:
    found, expected = (rates(lib, CHAINS[name]) for lib in (tp, torch))
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-12)


SINGLE: list[Chain] = [
    lambda s, o: [s.StepLR(o, 4, 0.5)],
    lambda s, o: [s.MultiStepLR(o, [2, 6])],
    lambda s, o: [s.ExponentialLR(o, 0.9)],
    lambda s, o: [s.LinearLR(o, 0.2, 0.8, 6)],
    lambda s, o: [s.ConstantLR(o, 0.2, 6)],
    lambda s, o: [s.CosineAnnealingLR(o, 5, 0.001)],
]


@pytest.mark.parametrize("chain", SINGLE)
def test_a_rate_that_people_set_is_kept(chain: Chain, torch: Any) -> None:
    def touch(optimizer: Any, t: int) -> None:
        if t == 3:
            optimizer.param_groups[0]["lr"] *= 0.5

    found, expected = (rates(lib, chain, touch) for lib in (tp, torch))
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-12)


def test_chained_schedules_by_hand() -> None:
    found = rates(tp, lambda s, o: [s.ExponentialLR(o, 0.5), s.StepLR(o, 2, 0.1)])
    np.testing.assert_allclose(found[:4], [0.1, 0.05, 0.0025, 0.00125])


@pytest.mark.parametrize("name", ["two", "warm-up", "cosine", "sequential"])
def test_schedules_go_on_where_they_were(name: str) -> None:
    chain = CHAINS[name]

    def make() -> tuple[Any, list[Any]]:
        optimizer = optim.SGD([nn.Parameter(tp.ones(1))], 0.1)
        return optimizer, chain(optim.lr_scheduler, optimizer)

    def run(optimizer: Any, schedulers: list[Any], steps: int) -> list[float]:
        found = []
        for _ in range(steps):
            for scheduler in schedulers:
                scheduler.step()
            found.append(optimizer.param_groups[0]["lr"])
        return found

    whole = run(*make(), steps=10)
    for at in (2, 3, 5):
        one, schedulers = make()
        run(one, schedulers, at)
        two, others = make()
        two.load_state_dict(one.state_dict())
        for scheduler, other in zip(schedulers, others, strict=True):
            other.load_state_dict(copy.deepcopy(scheduler.state_dict()))
        np.testing.assert_allclose(run(two, others, 10 - at), whole[at:])


def test_a_schedule_of_ones_own() -> None:
    class Halves(optim.lr_scheduler.LRScheduler):
        def get_lr(self) -> list[float]:
            groups = self.optimizer.param_groups
            return [g["lr"] / 2 if self.last_epoch else g["lr"] for g in groups]

    assert rates(tp, lambda s, o: [Halves(o)])[:3] == [0.1, 0.05, 0.025]
    with pytest.raises(NotImplementedError, match="Write def get_lr"):
        optim.lr_scheduler.LRScheduler(optim.SGD([nn.Parameter(tp.ones(1))]))


# --- methods --------------------------------------------------------------------------------------


def test_a_method_of_ones_own_finds_empty_state() -> None:
    class Signs(optim.Optimizer):
        def step(self, closure: Any = None) -> None:
            for group in self.param_groups:
                for p in group["params"]:
                    state = self.state[p]
                    state["count"] = state.get("count", 0) + 1
                    with tp.no_grad():
                        p.sub_(group["lr"] * p.grad.sign())

    p = nn.Parameter(tp.ones(2))
    method = Signs([p], {"lr": 0.5})
    p.grad = tp.tensor([3.0, -2.0])
    method.step()
    assert p.tolist() == [0.5, 1.5]
    twin = copy.deepcopy(method)
    assert [s["count"] for s in twin.state.values()] == [1]
    assert twin.param_groups[0]["params"][0] in twin.state


@pytest.mark.parametrize("search", [None, "strong_wolfe"])
def test_lbfgs_of_several_parameters_goes_on_where_it_was(search: Any) -> None:
    def make(start: list[Any]) -> tuple[list[Any], Any, Callable[[], Any]]:
        parts = [nn.Parameter(tp.tensor(s, dtype=tp.float64)) for s in start]
        method = optim.LBFGS(parts, 0.1, max_iter=4, line_search_fn=search)

        def closure() -> Any:
            method.zero_grad()
            x, y = parts
            loss = ((x - 1) ** 4).sum() + (y * x[:1] - 2) ** 2
            loss.backward()
            return loss

        return parts, method, closure

    parts, method, closure = make([[0.5, 3.0], 1.0])
    method.step(closure)
    others, second, again = make([p.tolist() for p in parts])
    second.load_state_dict(copy.deepcopy(method.state_dict()))
    for _ in range(2):
        method.step(closure)
        second.step(again)
    for p, q in zip(parts, others, strict=True):
        assert tp.equal(p, q)


@pytest.mark.parametrize("kinds", [("float32", "bfloat16"), ("bfloat16", "float32")])
def test_state_of_a_scalar_fits_other_types(kinds: tuple[str, str]) -> None:
    one, two = (nn.Parameter(tp.tensor(1.0, dtype=getattr(tp, kind))) for kind in kinds)
    first, second = optim.Adam([one], 0.1), optim.Adam([two], 0.1)
    one.grad, two.grad = one.detach(), two.detach()
    first.step()
    second.load_state_dict(first.state_dict())
    second.step()
    assert two.item() == pytest.approx(0.9, abs=0.02)


def test_state_of_another_shape_is_refused() -> None:
    one, two = nn.Parameter(tp.ones(2, 3)), nn.Parameter(tp.ones(3, 2))
    first, second = optim.Adam([one]), optim.Adam([two])
    one.grad = one.detach()
    first.step()
    with pytest.raises(ValueError, match=r"'exp_avg' has shape \[2, 3\], the parameter \[3, 2\]"):
        second.load_state_dict(first.state_dict())
    assert not second.state


@pytest.mark.parametrize("make", [optim.SGD, optim.Adam, optim.RMSprop, optim.Adagrad])
def test_state_is_kept_when_a_module_changes_its_type(make: Any) -> None:
    start = tp.tensor(np.random.default_rng(0).normal(size=(3, 2)))
    options: dict[str, Any] = {"momentum": 0.9} if make in {optim.SGD, optim.RMSprop} else {}
    found = []
    for kinds in ([tp.float32, tp.float64, tp.float32], [tp.float64] * 3):
        net = nn.Linear(2, 3, bias=False)
        with tp.no_grad():
            net.weight.copy_(start)
        method = make(net.parameters(), lr=0.1, **options)
        for kind in kinds:
            net.to(kind)
            for _ in range(2):
                method.zero_grad()
                (net(tp.ones(1, 2, dtype=kind)) ** 2).sum().backward()
                method.step()
        found.append(net.weight.detach().numpy())
    np.testing.assert_allclose(found[0], found[1], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("make", [optim.SGD, optim.Adam])
def test_a_gradient_of_another_shape_is_refused(make: Any) -> None:
    p = nn.Parameter(tp.ones(3, 1))
    p.grad = tp.ones(3, 1)
    p.data = tp.ones(3, 3)
    with pytest.raises(RuntimeError, match=r"gradient has shape \[3, 1\], its parameter \[3, 3\]"):
        make([p], 0.1).step()
    assert p.tolist() == [[1.0] * 3] * 3


def test_lbfgs_evaluates_as_often_as_pytorch(torch: Any) -> None:
    found = []
    for lib in (tp, torch):
        x = lib.nn.Parameter(lib.tensor([0.5, 3.0], dtype=lib.float64))
        method = lib.optim.LBFGS([x], 0.1, max_iter=4)
        calls = []

        def closure(x: Any = x, method: Any = method, calls: Any = calls) -> Any:
            calls.append(x.tolist())
            method.zero_grad()
            loss = ((x - 1) ** 4).sum()
            loss.backward()
            return loss

        for _ in range(3):
            method.step(closure)
        found.append(calls)
    np.testing.assert_allclose(found[0], found[1], rtol=1e-9)
    assert len(found[0]) == 12
