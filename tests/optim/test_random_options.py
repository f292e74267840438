"""Methods and schedules with random options, many steps long, as PyTorch has them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import tensorplay as tp

torch = pytest.importorskip("torch", reason="compares with PyTorch where it is installed")
torch.set_num_threads(1)

flag = st.booleans()
rate = st.sampled_from([1e-3, 1e-2, 0.1])
decay = st.sampled_from([0.0, 1e-2, 0.1])
beta = st.sampled_from([0.0, 0.5, 0.9, 0.999])

METHODS: dict[str, st.SearchStrategy[dict[str, Any]]] = {
    "SGD": st.fixed_dictionaries(
        {"lr": rate, "weight_decay": decay, "maximize": flag},
        optional={
            "momentum": st.sampled_from([0.0, 0.5, 0.9]),
            "dampening": st.sampled_from([0.0, 0.3]),
        },
    )
    | st.fixed_dictionaries(
        {
            "lr": rate,
            "weight_decay": decay,
            "maximize": flag,
            "momentum": st.sampled_from([0.5, 0.9]),
            "nesterov": st.just(True),
        }
    ),
    **dict.fromkeys(
        ("Adam", "AdamW"),
        st.fixed_dictionaries(
            {"lr": rate, "amsgrad": flag, "maximize": flag},
            optional={
                "betas": st.tuples(beta, beta),
                "eps": st.sampled_from([1e-8, 1e-3]),
                "weight_decay": decay,
            },
        ),
    ),
    "RMSprop": st.fixed_dictionaries(
        {"lr": rate, "centered": flag, "maximize": flag},
        optional={
            # Below a half, rounding makes the variance of few gradients negative: NaN in PyTorch.
            "alpha": st.sampled_from([0.9, 0.99]),
            "eps": st.sampled_from([1e-8, 1e-3]),
            "weight_decay": decay,
            "momentum": st.sampled_from([0.0, 0.5, 0.9]),
        },
    ),
    "Adagrad": st.fixed_dictionaries(
        {"lr": rate, "maximize": flag},
        optional={
            "lr_decay": st.sampled_from([0.0, 0.1]),
            "weight_decay": decay,
            "initial_accumulator_value": st.sampled_from([0.0, 0.5]),
            "eps": st.sampled_from([1e-10, 1e-3]),
        },
    ),
}


def parameters(lib: Any, shapes: Any, kind: str, seed: int) -> list[Any]:
    random = np.random.default_rng(seed)
    return [
        lib.nn.Parameter(lib.from_numpy(np.asarray(random.normal(size=s), kind))) for s in shapes
    ]


def slopes(lib: Any, given: list[Any], step: int, seed: int) -> None:
    """Give each parameter a gradient, in some steps none."""
    random = np.random.default_rng((seed, step))
    for p in given:
        noise = np.asarray(random.normal(size=tuple(p.shape)), str(p.dtype).split(".")[1])
        p.grad = None if random.random() < 0.1 else p.detach() * 0.5 + lib.from_numpy(noise)


@given(st.data(), st.sampled_from(sorted(METHODS)), st.sampled_from(["float32", "float64"]))
@settings(max_examples=60, deadline=None)
def test_methods(data: Any, name: str, kind: str) -> None:
    draw = data.draw
    first, second = draw(METHODS[name]), draw(METHODS[name])
    # A group of its own has other numbers, but PyTorch takes some options from the first.
    shared = {"nesterov", "momentum", "dampening", "amsgrad", "initial_accumulator_value"}
    same = {k: v for k, v in first.items() if k in shared}
    apart = {"nesterov", "dampening", "initial_accumulator_value"}
    second = {**{k: v for k, v in second.items() if k not in apart}, **same}
    shapes = draw(st.lists(st.sampled_from([(), (1,), (5,), (2, 3), (0,)]), min_size=2, max_size=4))
    seed = draw(st.integers(0, 2**31))
    found = []
    for lib in (tp, torch):
        given_ones = parameters(lib, shapes, kind, seed)
        method = getattr(lib.optim, name)(
            [{"params": given_ones[:1]}, {"params": given_ones[1:], **second}], **first
        )
        for step in range(20):
            slopes(lib, given_ones, step, seed)
            method.step()
        found.append((given_ones, method.state_dict()))
    (ours, state), (theirs, other) = found
    tolerance = 1e-9 if kind == "float64" else 2e-4
    for p, q in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(
            p.detach().numpy(), q.detach().numpy(), rtol=tolerance, atol=tolerance
        )
    # The same names of what is remembered, so that one library loads what the other saved.
    for number, values in state["state"].items():
        theirs_of_one = {k: v for k, v in other["state"].get(number, {}).items() if v is not None}
        assert values.keys() - {"step"} == theirs_of_one.keys() - {"step"}
        for key, value in values.items():
            if isinstance(value, tp.Tensor):
                np.testing.assert_allclose(
                    value.numpy(), theirs_of_one[key].numpy(), rtol=tolerance, atol=tolerance
                )
            elif key in theirs_of_one:
                assert value == float(theirs_of_one[key])


def moved(value: Any, make: Callable[[Any], Any]) -> Any:
    """Return a state with the other library's tensors."""
    if isinstance(value, dict):
        return {k: moved(v, make) for k, v in value.items()}
    if isinstance(value, list):
        return [moved(v, make) for v in value]
    return make(value) if hasattr(value, "numpy") else value


@given(st.data(), st.sampled_from(sorted(METHODS)))
@settings(max_examples=20, deadline=None)
def test_methods_go_on_with_the_state_of_the_other_library(data: Any, name: str) -> None:
    options = data.draw(METHODS[name])
    seed = data.draw(st.integers(0, 2**31))
    shapes = [(3,), (2, 2)]
    theirs = parameters(torch, shapes, "float64", seed)
    method = getattr(torch.optim, name)(theirs, **options)
    for step in range(5):
        slopes(torch, theirs, step, seed)
        method.step()
    ours = [tp.nn.Parameter(tp.from_numpy(q.detach().numpy().copy())) for q in theirs]
    twin = getattr(tp.optim, name)(ours, **options)
    twin.load_state_dict(moved(method.state_dict(), lambda t: tp.from_numpy(t.numpy().copy())))
    for step in range(5, 10):
        for lib, given_ones, stepped in ((tp, ours, twin), (torch, theirs, method)):
            slopes(lib, given_ones, step, seed)
            stepped.step()
    for p, q in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(p.detach().numpy(), q.detach().numpy(), rtol=1e-9, atol=1e-12)


# --- schedules ------------------------------------------------------------------------------------

steps = st.integers(1, 15)
factor = st.sampled_from([0.1, 0.5, 0.9, 1.0])
share = st.floats(0.01, 1.0)
Make = Callable[[Any, Any], Any]
SINGLE: dict[str, st.SearchStrategy[Make]] = {
    "StepLR": st.tuples(steps, factor).map(lambda o: lambda s, m: s.StepLR(m, *o)),
    "MultiStepLR": st.tuples(st.lists(st.integers(0, 45), max_size=4), factor).map(
        lambda o: lambda s, m: s.MultiStepLR(m, *o)
    ),
    "ExponentialLR": factor.map(lambda o: lambda s, m: s.ExponentialLR(m, o)),
    "ConstantLR": st.tuples(share, steps).map(lambda o: lambda s, m: s.ConstantLR(m, *o)),
    "LinearLR": st.tuples(share, share, steps).map(lambda o: lambda s, m: s.LinearLR(m, *o)),
    "CosineAnnealingLR": st.tuples(steps, st.sampled_from([0.0, 1e-3])).map(
        lambda o: lambda s, m: s.CosineAnnealingLR(m, *o)
    ),
    "LambdaLR": st.sampled_from([1.0, 3.0]).map(
        lambda o: lambda s, m: s.LambdaLR(m, [lambda t: o / (o + t), lambda t: 0.9**t])
    ),
    "OneCycleLR": st.tuples(rate, st.sampled_from([51, 60]), st.floats(0.1, 0.9)).map(
        lambda o: lambda s, m: s.OneCycleLR(m, o[0], total_steps=o[1], pct_start=o[2])
    ),
}
TOGETHER = ("StepLR", "MultiStepLR", "ExponentialLR", "ConstantLR", "LinearLR")


def rates(lib: Any, make: Make, count: int = 50) -> list[list[float]]:
    groups = [{"params": lib.nn.Parameter(lib.ones(1))} for _ in range(2)]
    groups[1]["lr"] = 0.5
    method = lib.optim.SGD(groups, 0.1, momentum=0.9)
    schedule = make(lib.optim.lr_scheduler, method)
    found = []
    for _ in range(count):
        found.append([g["lr"] for g in method.param_groups])
        found[-1] += [g["momentum"] for g in method.param_groups]
        method.step()
        schedule.step()
        assert schedule.get_last_lr() == [g["lr"] for g in method.param_groups]
    return found


def follows(make: Make) -> None:
    np.testing.assert_allclose(rates(tp, make), rates(torch, make), rtol=1e-6, atol=1e-9)


@given(st.sampled_from(sorted(SINGLE)).flatmap(SINGLE.__getitem__))
@settings(max_examples=60, deadline=None)
def test_schedules(make: Make) -> None:
    follows(make)


several = st.lists(st.sampled_from(TOGETHER).flatmap(SINGLE.__getitem__), min_size=1, max_size=3)


@given(several)
@settings(max_examples=20, deadline=None)
def test_chains_of_schedules(makes: list[Make]) -> None:
    follows(lambda s, m: s.ChainedScheduler([make(s, m) for make in makes]))


@given(several, st.data())
@settings(max_examples=20, deadline=None)
def test_sequences_of_schedules(makes: list[Make], data: Any) -> None:
    count = len(makes) - 1
    ends = sorted(data.draw(st.sets(st.integers(1, 45), min_size=count, max_size=count)))
    follows(lambda s, m: s.SequentialLR(m, [make(s, m) for make in makes], ends))


@given(
    st.fixed_dictionaries(
        {
            "mode": st.sampled_from(["min", "max"]),
            "factor": st.sampled_from([0.1, 0.5]),
            "patience": st.integers(0, 4),
            "threshold": st.sampled_from([1e-4, 0.1]),
            "threshold_mode": st.sampled_from(["rel", "abs"]),
            "cooldown": st.integers(0, 3),
            "min_lr": st.sampled_from([0.0, 1e-2]) | st.just([1e-3, 0.2]),
        }
    ),
    st.lists(st.floats(-2, 2, width=16), min_size=50, max_size=50),
)
@settings(max_examples=20, deadline=None)
def test_plateaus(options: dict[str, Any], metrics: list[float]) -> None:
    found = []
    for lib in (tp, torch):
        groups = [{"params": lib.nn.Parameter(lib.ones(1))} for _ in range(2)]
        groups[1]["lr"] = 0.5
        method = lib.optim.SGD(groups, 0.1)
        schedule = lib.optim.lr_scheduler.ReduceLROnPlateau(method, **options)
        seen = []
        for value in metrics:
            schedule.step(value)
            seen.append([g["lr"] for g in method.param_groups])
        found.append(seen)
    np.testing.assert_allclose(found[0], found[1], rtol=1e-9)
