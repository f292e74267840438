"""Optimisers: each step is its formula, state is saved, and bad options are refused."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tensorplay as tp
from tensorplay import nn, optim
from tensorplay.optim import fused

RNG = np.random.default_rng(11)


def parameter(*shape: int, dtype: Any = tp.float64) -> nn.Parameter:
    return nn.Parameter(tp.tensor(RNG.normal(size=shape), dtype=dtype))


# --- formulas, written for one number at a time -------------------------------------------------


def sgd(
    x: float, grads: Any, lr: float, mom: float, damp: float, wd: float, nesterov: bool
) -> float:
    b = None
    for g in grads:
        d = g(x) + wd * x
        if mom:
            b = d if b is None else mom * b + (1 - damp) * d
            d = d + mom * b if nesterov else b
        x -= lr * d
    return x


def adam(x: float, grads: Any, lr: float, wd: float, amsgrad: bool, decoupled: bool) -> float:
    m = v = top = 0.0
    for t, g in enumerate(grads, 1):
        d = g(x)
        if wd and decoupled:
            x -= lr * wd * x
        elif wd:
            d += wd * x
        m, v = 0.9 * m + 0.1 * d, 0.999 * v + 0.001 * d * d
        top = max(top, v)
        used = top if amsgrad else v
        x -= lr * (m / (1 - 0.9**t)) / (math.sqrt(used / (1 - 0.999**t)) + 1e-8)
    return x


def rmsprop(x: float, grads: Any, lr: float, wd: float, mom: float, centered: bool) -> float:
    v = mean = b = 0.0
    for g in grads:
        d = g(x) + wd * x
        v = 0.99 * v + 0.01 * d * d
        mean = 0.99 * mean + 0.01 * d
        step = d / (math.sqrt(v - mean * mean if centered else v) + 1e-8)
        b = mom * b + step
        x -= lr * b
    return x


def adagrad(x: float, grads: Any, lr: float, decay: float, start: float) -> float:
    v = start
    for t, g in enumerate(grads):
        v += g(x) ** 2
        x -= lr / (1 + t * decay) * g(x) / (math.sqrt(v) + 1e-10)
    return x


CASES: dict[str, tuple[Callable[[Any], Any], Callable[[float, Any], float]]] = {
    "sgd": (lambda p: optim.SGD(p, 0.1), lambda x, g: sgd(x, g, 0.1, 0, 0, 0, False)),
    "sgd momentum": (
        lambda p: optim.SGD(p, 0.1, 0.9, 0.2, 0.01),
        lambda x, g: sgd(x, g, 0.1, 0.9, 0.2, 0.01, False),
    ),
    "sgd nesterov": (
        lambda p: optim.SGD(p, 0.1, 0.9, nesterov=True),
        lambda x, g: sgd(x, g, 0.1, 0.9, 0, 0, True),
    ),
    "adam": (lambda p: optim.Adam(p, 0.1), lambda x, g: adam(x, g, 0.1, 0, False, False)),
    "adam decay amsgrad": (
        lambda p: optim.Adam(p, 0.1, weight_decay=0.1, amsgrad=True),
        lambda x, g: adam(x, g, 0.1, 0.1, True, False),
    ),
    "adamw": (lambda p: optim.AdamW(p, 0.1), lambda x, g: adam(x, g, 0.1, 0.01, False, True)),
    "rmsprop": (
        lambda p: optim.RMSprop(p, 0.05, weight_decay=0.1),
        lambda x, g: rmsprop(x, g, 0.05, 0.1, 0, False),
    ),
    "rmsprop centered": (
        lambda p: optim.RMSprop(p, 0.05, momentum=0.5, centered=True),
        lambda x, g: rmsprop(x, g, 0.05, 0, 0.5, True),
    ),
    "adagrad": (
        lambda p: optim.Adagrad(p, 0.1, 0.05, initial_accumulator_value=0.2),
        lambda x, g: adagrad(x, g, 0.1, 0.05, 0.2),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_steps_are_their_formulas(name: str) -> None:
    make, formula = CASES[name]
    p = parameter(2, 3)
    start = p.tolist()
    optimizer = make([p])
    for t in range(5):
        optimizer.zero_grad()
        ((p - t) ** 2 / 2).sum().backward()
        optimizer.step()
    grads = [lambda x, t=t: x - t for t in range(5)]
    expected = [[formula(x, grads) for x in row] for row in start]
    np.testing.assert_allclose(p.detach().numpy(), expected, rtol=1e-12)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("dtype", [tp.float32, tp.bfloat16, tp.float16, tp.complex128])
def test_other_types_step_too(name: str, dtype: Any) -> None:
    make, _ = CASES[name]
    x = RNG.normal(size=(4,)) + (1j * RNG.normal(size=4) if dtype.is_complex else 0)
    p = nn.Parameter(tp.tensor(x, dtype=dtype))
    # The same numbers as float64: complex ones are pairs of independent numbers.
    flat = p.detach().numpy().view(np.float64) if dtype.is_complex else p.detach().double().numpy()
    q = nn.Parameter(tp.tensor(flat.copy()))
    for parameters in ([p], [q]):
        optimizer = make(parameters)
        for t in range(3):
            optimizer.zero_grad()
            values = parameters[0]
            shift = 0.0 if dtype.is_complex else t * 0.5
            values.grad = values.detach() - shift
            optimizer.step()
    found = p.detach().numpy()
    found = found.view(np.float64) if dtype.is_complex else p.detach().double().numpy()
    digits = {tp.float32: 1e-5, tp.bfloat16: 0.05, tp.float16: 5e-3, tp.complex128: 1e-12}[dtype]
    np.testing.assert_allclose(found, q.detach().numpy(), rtol=digits, atol=digits)
    assert p.dtype is dtype


OPTIONS: list[tuple[Any, dict[str, Any]]] = [
    (optim.SGD, {}),
    (optim.SGD, {"momentum": 0.9, "dampening": 0.3, "weight_decay": 0.1}),
    (optim.SGD, {"momentum": 0.9, "nesterov": True}),
    (optim.Adam, {"weight_decay": 0.1, "amsgrad": True}),
    (optim.AdamW, {}),
    (optim.RMSprop, {"weight_decay": 0.1}),
    (optim.RMSprop, {"momentum": 0.5, "centered": True}),
    (optim.Adagrad, {"lr_decay": 0.1, "initial_accumulator_value": 0.2}),
]


@pytest.mark.parametrize("dtype", [tp.float32, tp.float64])
@pytest.mark.parametrize("maximize", [False, True])
@pytest.mark.parametrize(("make", "options"), OPTIONS)
def test_fused_updates_are_the_others(
    make: Any, options: dict[str, Any], maximize: bool, dtype: Any
) -> None:
    x = RNG.normal(size=(7, 5))
    grads = [tp.tensor(RNG.normal(size=(7, 5)), dtype=dtype) for _ in range(4)]
    found = []
    for choice in (False, True):
        p = nn.Parameter(tp.tensor(x, dtype=dtype))
        optimizer = make([p], lr=0.1, maximize=maximize, fused=choice, **options)
        for g in grads:
            p.grad = g.clone()
            version = p._version
            optimizer.step()
            assert p._version > version
        found.append((p.detach(), optimizer.state.get(p, {})))
    (one, state), (two, again) = found
    tp.testing.assert_close(two, one)
    assert state.keys() == again.keys()
    for name, value in state.items():
        tp.testing.assert_close(tp.as_tensor(again[name]), tp.as_tensor(value))


def test_a_learning_rate_is_no_part_of_the_kernel() -> None:
    p = parameter(3)
    optimizer = optim.SGD([p], 0.1, fused=True)

    def steps() -> None:
        for rate in (0.1, 0.2, 0.3):
            optimizer.param_groups[0]["lr"] = rate
            p.grad = tp.ones_like(p)
            optimizer.step()

    steps()
    update: Any = fused.sgd(momentum=False, nesterov=False, maximize=False)
    programs = update.report().programs
    for _ in range(3):
        steps()
    assert update.report().programs == programs


def test_fused_updates_without_a_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fused, "can_compile", lambda: False)
    monkeypatch.setattr(fused, "LEAST", 1)
    p = parameter(3)
    p.grad = tp.ones_like(p)
    optim.SGD([p], 0.1).step()  # by NumPy
    with pytest.raises(RuntimeError, match=r"no C.. compiler for the kernel. Pass fused=None"):
        optim.SGD([p], 0.1, fused=True).step()


def test_transposed_and_empty_parameters() -> None:
    p = nn.Parameter(tp.ones(3, 2, dtype=tp.complex64).t())
    p.grad = tp.ones_like(p)
    optim.Adam([p, nn.Parameter(tp.zeros(0))], 0.5).step()
    np.testing.assert_allclose(p.detach().real.numpy(), np.full((2, 3), 0.5), rtol=1e-5)
    scalar = nn.Parameter(tp.tensor(1.0, dtype=tp.bfloat16))
    scalar.grad = tp.tensor(1.0, dtype=tp.bfloat16)
    optim.SGD([scalar], 0.5).step()
    assert scalar.item() == 0.5


def test_maximize_goes_up() -> None:
    for make in (optim.SGD, optim.Adam, optim.AdamW, optim.RMSprop, optim.Adagrad):
        p = parameter(3)
        before = p.detach().clone()
        p.grad = tp.ones_like(p)
        make([p], lr=0.1, maximize=True).step()
        assert (p > before * 0.99 - 1e-3).all()


def test_a_parameter_without_dimensions_keeps_its_state_going_up() -> None:
    one, many = nn.Parameter(tp.tensor(1.0)), nn.Parameter(tp.tensor([1.0]))
    for p in (one, many):
        method = optim.SGD([p], 0.1, momentum=0.5, maximize=True)
        for slope in (1.0, -2.0, 3.0, 0.5):
            p.grad = tp.full_like(p, slope)
            method.step()
    assert one.item() == many.item()


def test_a_step_leaves_the_rest_alone() -> None:
    a, b = parameter(2), parameter(2)
    before = b.tolist()
    a.grad = tp.ones_like(a)
    optimizer = optim.SGD([a, b], 0.1)
    optimizer.step()
    assert b.tolist() == before
    assert a.requires_grad
    assert a.is_leaf
    assert a.grad.tolist() == [1.0, 1.0]
    optimizer.zero_grad(set_to_none=False)
    assert a.grad.tolist() == [0.0, 0.0]
    optimizer.zero_grad()
    assert a.grad is None


def test_a_graph_hears_of_a_step() -> None:
    p = parameter(2)
    loss = (p * p).sum()
    p.grad = tp.ones_like(p)
    optim.SGD([p], 0.1).step()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_closures_run_with_gradients_on() -> None:
    p = parameter(2)
    optimizer = optim.SGD([p], 0.1)

    def closure() -> Any:
        optimizer.zero_grad()
        loss = (p * p).sum()
        loss.backward()
        return loss

    with tp.no_grad():
        assert optimizer.step(closure).item() > 0


def test_groups_have_options_of_their_own() -> None:
    net = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
    optimizer = optim.SGD(
        [{"params": net[0].parameters(), "lr": 0.0}, {"params": net[1].weight}], lr=0.1
    )
    optimizer.add_param_group({"params": [("bias", net[1].bias)], "momentum": 0.9})
    assert [g["lr"] for g in optimizer.param_groups] == [0.0, 0.1, 0.1]
    assert optimizer.param_groups[2]["param_names"] == ["bias"]
    before = net[0].weight.tolist()
    net(tp.ones(1, 2)).sum().backward()
    optimizer.step()
    assert net[0].weight.tolist() == before
    assert len(optimizer.state[net[1].bias]) == 1
    assert "group 2: 1 parameters" in repr(optimizer)


@pytest.mark.parametrize("name", CASES)
def test_state_goes_on_where_it_was(name: str, tmp_path: Any) -> None:
    make, _ = CASES[name]
    one = parameter(3)
    optimizer = make([one])

    def run(p: Any, method: Any, steps: range) -> None:
        for t in steps:
            p.grad = p.detach() - t
            method.step()

    run(one, optimizer, range(3))
    two = nn.Parameter(one.detach().clone())
    other = make([two])
    tp.save(optimizer.state_dict(), tmp_path / "state.tp")
    other.load_state_dict(tp.load(tmp_path / "state.tp"))
    run(one, optimizer, range(3, 6))
    run(two, other, range(3, 6))
    assert tp.equal(one, two)
    # What was loaded is a copy.
    twin = copy.deepcopy(optimizer.state_dict())
    run(two, other, range(2))
    for number, values in twin["state"].items():
        for key, value in values.items():
            now = optimizer.state_dict()["state"][number][key]
            assert tp.equal(now, value) if isinstance(value, tp.Tensor) else now == value


def test_a_state_that_does_not_fit_changes_nothing() -> None:
    one, two = optim.Adam([parameter(2)]), optim.Adam([parameter(2), parameter(3)], lr=0.5)
    with pytest.raises(ValueError, match="group 0 has 2 parameters, the optimizer's has 1"):
        one.load_state_dict(two.state_dict())
    three = optim.Adam([parameter(4)])
    three.param_groups[0]["params"][0].grad = tp.ones(4, dtype=tp.float64)
    three.step()
    with pytest.raises(ValueError, match=r"'exp_avg' has shape \[4\], the parameter \[2\]"):
        one.load_state_dict({**three.state_dict()})
    assert one.state == {}
    assert one.param_groups[0]["lr"] == 1e-3
    one.add_param_group({"params": parameter(1)})
    with pytest.raises(ValueError, match="different number of parameter groups"):
        two.load_state_dict(one.state_dict())


def test_hooks_of_steps() -> None:
    p, seen = parameter(1), []
    optimizer = optim.SGD([p], 0.1)
    stop = optimizer.register_step_pre_hook(lambda *_: seen.append("before"))
    optimizer.register_step_post_hook(lambda o, args, kwargs: seen.append("after"))
    optimizer.step()
    stop.remove()
    optimizer.step()
    assert seen == ["before", "after", "after"]


@pytest.mark.parametrize(
    ("call", "kind", "words"),
    [
        (lambda: optim.SGD([], 0.1), ValueError, "empty parameter list"),
        (lambda: optim.SGD(tp.ones(1), 0.1), TypeError, r"got a Tensor\. Write \[x\]"),
        (lambda: optim.SGD([1.0], 0.1), TypeError, "can only optimize Tensors.*, got float"),
        (
            lambda: optim.SGD([parameter(1) * 2], 0.1),
            ValueError,
            "can't optimize a non-leaf Tensor",
        ),
        (lambda: optim.SGD([tp.tensor([1])], 0.1), ValueError, "floating or complex elements"),
        (
            lambda: optim.SGD([nn.Parameter(tp.zeros(1).expand(3))], 0.1),
            ValueError,
            "elements of an expanded tensor are one in memory",
        ),
        (lambda: optim.SGD([p := parameter(1), p], 0.1), ValueError, "more than once"),
        (lambda: optim.SGD([parameter(1)], -0.1), ValueError, "Invalid learning rate: -0.1"),
        (lambda: optim.SGD([parameter(1)], math.nan), ValueError, "Invalid learning rate: nan"),
        (lambda: optim.SGD([parameter(1)], "0.1"), TypeError, "expected float, got str"),
        (lambda: optim.SGD([parameter(1)], 0.1, -1), ValueError, "Invalid momentum value"),
        (lambda: optim.SGD([parameter(1)], 0.1, nesterov=True), ValueError, "requires a momentum"),
        (lambda: optim.Adam([parameter(1)], betas=(1.0, 0.9)), ValueError, r"betas\[0\]"),
        (lambda: optim.Adam([parameter(1)], betas=(0.9,)), ValueError, "expected 2"),
        (lambda: optim.Adam([parameter(1)], eps=-1), ValueError, "Invalid epsilon value"),
        (lambda: optim.Adam([{"lr": 1}]), TypeError, "expected a dict with 'params'"),
        (lambda: optim.Adam([{"params": {parameter(1)}}]), TypeError, "got a set"),
        (lambda: optim.LBFGS([parameter(1)]).step(), TypeError, "expected a function, got None"),
        (
            lambda: optim.LBFGS([{"params": parameter(1)}, {"params": parameter(1)}]),
            ValueError,
            "per-parameter groups",
        ),
        (lambda: optim.LBFGS([parameter(1)], line_search_fn="x"), ValueError, "'strong_wolfe'"),
    ],
)
def test_bad_options_are_refused(
    call: Callable[[], Any], kind: type[Exception], words: str
) -> None:
    with pytest.raises(kind, match=words):
        call()


# --- L-BFGS -------------------------------------------------------------------------------------


def rosenbrock(x: Any) -> Any:
    return (100 * (x[1:] - x[:-1] ** 2) ** 2 + (1 - x[:-1]) ** 2).sum()


@pytest.mark.parametrize("dtype", [tp.float64, tp.float32])
def test_lbfgs_finds_the_minimum_of_a_valley(dtype: Any) -> None:
    x = nn.Parameter(tp.tensor([-1.2, 1.0, -0.5, 0.8], dtype=dtype))
    optimizer = optim.LBFGS([x], max_iter=200, max_eval=400, line_search_fn="strong_wolfe")
    calls = 0

    def closure() -> Any:
        nonlocal calls
        calls += 1
        optimizer.zero_grad()
        loss = rosenbrock(x)
        loss.backward()
        return loss

    first = optimizer.step(closure)
    assert first.item() > 1
    np.testing.assert_allclose(
        x.detach().numpy(), np.ones(4), rtol=1e-2 if dtype is tp.float32 else 1e-5
    )
    assert calls < 150


def test_lbfgs_of_a_quadratic_and_its_state() -> None:
    a = tp.tensor(RNG.normal(size=(6, 6)))
    a = a @ a.t() + tp.eye(6, dtype=tp.float64)
    b = tp.tensor(RNG.normal(size=6))

    def minimise(parts: int) -> Any:
        x = nn.Parameter(tp.zeros(6, dtype=tp.float64))
        optimizer = optim.LBFGS([x], lr=0.1 if parts == 0 else 1.0, max_iter=30)
        optimizer.param_groups[0]["line_search_fn"] = "strong_wolfe"

        def closure() -> Any:
            optimizer.zero_grad()
            loss = x @ a @ x / 2 - b @ x
            loss.backward()
            return loss

        for _ in range(max(1, parts)):
            optimizer.step(closure)
        return x.detach()

    expected = np.linalg.solve(a.numpy(), b.numpy())
    for parts in (1, 3):
        np.testing.assert_allclose(minimise(parts).numpy(), expected, rtol=1e-3, atol=1e-5)


def test_lbfgs_stops_at_a_minimum() -> None:
    x = nn.Parameter(tp.zeros(2))
    calls = []

    def closure() -> Any:
        x.grad = None
        loss = (x * x).sum()
        loss.backward()
        calls.append(1)
        return loss

    optim.LBFGS([x]).step(closure)
    assert len(calls) == 1


# --- schedules ----------------------------------------------------------------------------------


def rates(make: Callable[[Any], Any], steps: int, lr: float = 1.0) -> list[float]:
    optimizer = optim.SGD([parameter(1)], lr)
    scheduler = make(optimizer)
    found = []
    for _ in range(steps):
        found.append(scheduler.get_last_lr()[0])
        optimizer.step()
        scheduler.step()
    return found


S = optim.lr_scheduler
SCHEDULES: list[tuple[Callable[[Any], Any], list[float]]] = [
    (lambda o: S.StepLR(o, 2, 0.5), [1, 1, 0.5, 0.5, 0.25]),
    (lambda o: S.MultiStepLR(o, [3, 1], 0.5), [1, 0.5, 0.5, 0.25, 0.25]),
    (lambda o: S.ExponentialLR(o, 0.5), [1, 0.5, 0.25, 0.125, 0.0625]),
    (lambda o: S.LambdaLR(o, lambda t: 1 / (t + 1)), [1, 1 / 2, 1 / 3, 1 / 4, 1 / 5]),
    (lambda o: S.ConstantLR(o, 0.5, 2), [0.5, 0.5, 1, 1, 1]),
    (
        lambda o: S.ChainedScheduler([S.ExponentialLR(o, 0.5), S.ConstantLR(o, 0.1, 2)]),
        [0.1, 0.05, 0.25, 0.125, 0.0625],
    ),
    (
        lambda o: S.SequentialLR(
            o, [S.ConstantLR(o, 0.1, 9), S.ChainedScheduler([S.ExponentialLR(o, 0.5)])], [2]
        ),
        [0.1, 0.1, 1, 0.5, 0.25],
    ),
    (lambda o: S.LinearLR(o, 0.5, 1.0, 4), [0.5, 0.625, 0.75, 0.875, 1.0]),
    (
        lambda o: S.CosineAnnealingLR(o, 4, 0.2),
        [0.2 + 0.4 * (1 + math.cos(math.pi * t / 4)) for t in range(5)],
    ),
    (
        lambda o: S.SequentialLR(o, [S.ConstantLR(o, 0.1, 9), S.ExponentialLR(o, 0.5)], [2]),
        [0.1, 0.1, 1, 0.5, 0.25],
    ),
]


@pytest.mark.parametrize(("make", "expected"), SCHEDULES)
def test_schedules_are_their_formulas(make: Callable[[Any], Any], expected: list[float]) -> None:
    np.testing.assert_allclose(rates(make, 5), expected)


def test_a_chain_is_saved_and_checks_what_it_is_given() -> None:
    def made(rate: float = 1.0) -> Any:
        o = tp.optim.SGD([nn.Parameter(tp.ones(1))], rate)
        return S.ChainedScheduler([S.ExponentialLR(o, 0.5), S.StepLR(o, 2)])

    first, second = made(), made()
    for _ in range(3):
        first.step()
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    for group in second.optimizer.param_groups:
        group["lr"] = first.get_last_lr()[0]
    first.step()
    second.step()
    assert first.get_last_lr() == second.get_last_lr() == pytest.approx([0.5**4 * 0.01])
    with pytest.raises(ValueError, match="expected at least one"):
        S.ChainedScheduler([])
    with pytest.raises(ValueError, match="one is of another optimizer"):
        S.ChainedScheduler([S.StepLR(first.optimizer, 1)], second.optimizer)
    with pytest.raises(TypeError, match="without metrics, got ReduceLROnPlateau"):
        S.ChainedScheduler([S.ReduceLROnPlateau(first.optimizer)])  # type: ignore[list-item]


def test_one_cycle_goes_up_and_down() -> None:
    momenta = []

    def make(o: Any) -> Any:
        o.register_step_pre_hook(lambda o, *_: momenta.append(o.param_groups[0]["momentum"]))
        return S.OneCycleLR(o, 1.0, 10)

    found = rates(make, 9)
    np.testing.assert_allclose([momenta[0], momenta[2]], [0.95, 0.85])
    with pytest.raises(ValueError, match="must support momentum, Adagrad has none"):
        S.OneCycleLR(optim.Adagrad([parameter(1)]), 1.0, 10)
    np.testing.assert_allclose([found[0], max(found)], [0.04, 1.0])
    assert found[2] == 1.0
    assert found[3:] == sorted(found[3:], reverse=True)
    with pytest.raises(ValueError, match="step 11 of a cycle of 10"):
        rates(lambda o: S.OneCycleLR(o, 1.0, 10), 10)


def test_schedules_of_several_groups_and_their_state() -> None:
    optimizer = optim.SGD([{"params": parameter(1)}, {"params": parameter(1), "lr": 0.5}], lr=1.0)
    scheduler = S.LambdaLR(optimizer, [lambda t: 1.0, lambda t: 0.1**t])
    optimizer.step()
    scheduler.step()
    assert scheduler.get_last_lr() == [1.0, 0.05]
    step = S.StepLR(optimizer, 1)
    state = step.state_dict()
    assert state["step_size"] == 1
    assert "optimizer" not in state
    step.load_state_dict({**state, "last_epoch": 7})
    assert step.last_epoch == 7
    with pytest.raises(ValueError, match="expected 2 functions, got 1"):
        S.LambdaLR(optimizer, [lambda t: 1.0])


def test_schedules_refuse_bad_options() -> None:
    optimizer = optim.SGD([parameter(1)], 0.1)
    with pytest.raises(TypeError, match="expected Optimizer, got int"):
        S.StepLR(3, 1)
    with pytest.raises(KeyError, match="'initial_lr' is not specified"):
        S.StepLR(optimizer, 1, last_epoch=4)
    with pytest.raises(ValueError, match="'step_size': expected at least 1"):
        S.StepLR(optimizer, 0)
    with pytest.raises(ValueError, match="'factor': expected below 1"):
        S.ReduceLROnPlateau(optimizer, factor=1.0)
    with pytest.raises(ValueError, match="expected 'min' or 'max', got 'mid'"):
        S.ReduceLROnPlateau(optimizer, "mid")
    with pytest.raises(TypeError, match="expected a number, got str"):
        S.ReduceLROnPlateau(optimizer).step("low")


def test_a_plateau_lowers_the_rate() -> None:
    optimizer = optim.SGD([parameter(1)], 1.0)
    scheduler = S.ReduceLROnPlateau(optimizer, factor=0.5, patience=1, cooldown=1, min_lr=0.3)
    found = []
    for loss in (1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 0.1):
        scheduler.step(tp.tensor(loss))
        found.append(scheduler.get_last_lr()[0])
    assert found == [1.0, 1.0, 0.5, 0.5, 0.5, 0.3, 0.3, 0.3, 0.3]
    assert scheduler.best == pytest.approx(0.1)
    rising = S.ReduceLROnPlateau(optimizer, "max", threshold=0.1, threshold_mode="abs")
    rising.step(1.0)
    rising.step(1.05)
    assert rising.num_bad_epochs == 1
    fresh = S.ReduceLROnPlateau(optimizer, "max")
    fresh.load_state_dict(rising.state_dict())
    assert fresh.best == 1.0
