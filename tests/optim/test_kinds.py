"""Options of methods and schedules of another kind are refused where they are given, by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import tensorplay as tp
from tensorplay import nn, optim

METHODS = ["SGD", "Adam", "AdamW", "RMSprop", "Adagrad", "LBFGS"]
S = optim.lr_scheduler
Call = Callable[[Any], Any]


def parameter() -> nn.Parameter:
    return nn.Parameter(tp.ones(2))


def method() -> Any:
    return optim.SGD([parameter()], 0.1)


# The rows of every method.
SHARED: dict[str, tuple[Call, type[Exception], str]] = {
    "nothing": (lambda m: m([]), ValueError, "empty parameter list"),
    "an empty generator": (lambda m: m(p for p in ()), ValueError, "empty parameter list"),
    "negative rate": (lambda m: m([parameter()], lr=-1), ValueError, "Invalid learning rate: -1"),
    "no number": (lambda m: m([parameter()], lr="a"), TypeError, "'lr': expected float, got str"),
    "no leaf": (lambda m: m([parameter() * 2]), ValueError, "can't optimize a non-leaf Tensor"),
    "twice": (lambda m: m([parameter()] * 2), ValueError, "appears more than once"),
    "a tensor": (lambda m: m(parameter()), TypeError, r"got a Tensor\. Write \[x\]"),
    "a number": (lambda m: m(3), TypeError, r"iterable of Tensors or dicts, got int\. Write model"),
    "none": (lambda m: m(None), TypeError, "iterable of Tensors or dicts, got NoneType"),
    "one dict": (lambda m: m({"params": [parameter()]}), TypeError, "Tensors or dicts, got dict"),
    "floats": (
        lambda m: m([1.0]),
        TypeError,
        "can only optimize Tensors.*, got float",
    ),
    "no state": (
        lambda m: m([parameter()]).load_state_dict(None),
        TypeError,
        "'state_dict': expected a dict, got NoneType",
    ),
    "a model's state": (
        lambda m: m([parameter()]).load_state_dict({"weight": tp.ones(1)}),
        ValueError,
        r"expected keys 'state' and 'param_groups', got \['weight'\]",
    ),
    "a closure": (
        lambda m: m([parameter()]).step(3),
        TypeError,
        "'closure': expected a function or None, got int",
    ),
    "a hook": (
        lambda m: m([parameter()]).register_step_pre_hook(3),
        TypeError,
        "'hook': expected a function, got int",
    ),
}


@pytest.mark.parametrize("row", SHARED)
@pytest.mark.parametrize("name", METHODS)
def test_methods_refuse_by_name(name: str, row: str) -> None:
    call, kind, words = SHARED[row]
    with pytest.raises(kind, match=words) as caught:
        call(getattr(optim, name))
    where = "step" if row == "a closure" else name
    assert str(caught.value).startswith(f"[{where}] argument ")


def test_a_parameter_of_two_groups_is_refused() -> None:
    p = parameter()
    with pytest.raises(ValueError, match="more than once"):
        optim.Adam([{"params": [p]}, {"params": [p]}])


@pytest.mark.parametrize("betas", [None, 0.9])
def test_betas_are_a_pair(betas: Any) -> None:
    with pytest.raises(TypeError, match=r"\[Adam\] argument 'betas': expected a pair, got"):
        optim.Adam([parameter()], betas=betas)


ROWS: list[tuple[Call, type[Exception], str]] = [
    (lambda o: S.StepLR(o, "a"), TypeError, r"\[StepLR\] argument 'step_size': expected int, got"),
    (lambda o: S.StepLR(o, 2.5), TypeError, "'step_size': expected int, got float"),
    (lambda o: S.StepLR(o, 2, "a"), TypeError, "'gamma': expected float, got str"),
    (lambda o: S.MultiStepLR(o, 3), TypeError, "'milestones': expected an iterable, got int"),
    (lambda o: S.MultiStepLR(o, ["a"]), TypeError, "'milestones': expected int, got str"),
    (lambda o: S.MultiStepLR(o, [-1]), ValueError, "'milestones': expected at least 0, got -1"),
    (lambda o: S.ExponentialLR(o, "a"), TypeError, "'gamma': expected float, got str"),
    (
        lambda o: S.LambdaLR(o, 3),
        TypeError,
        "'lr_lambda': expected a function or a sequence, got int",
    ),
    (lambda o: S.LinearLR(o, "a"), TypeError, "'start_factor': expected float, got str"),
    (lambda o: S.LinearLR(o, 0), ValueError, "expected 'start_factor' above 0"),
    (lambda o: S.LinearLR(o, 0.5, total_iters=1.5), TypeError, "'total_iters': expected int"),
    (lambda o: S.ConstantLR(o, 2), ValueError, "'factor': expected between 0 and 1, got 2"),
    (lambda o: S.ConstantLR(o, None), TypeError, "'factor': expected float, got NoneType"),
    (lambda o: S.CosineAnnealingLR(o, 0), ValueError, "'T_max': expected at least 1, got 0"),
    (lambda o: S.CosineAnnealingLR(o, "a"), TypeError, "'T_max': expected int, got str"),
    (lambda o: S.ReduceLROnPlateau(o, factor="a"), TypeError, "'factor': expected float"),
    (lambda o: S.ReduceLROnPlateau(o, patience=1.5), TypeError, "'patience': expected int"),
    (lambda o: S.ReduceLROnPlateau(o).step(None), TypeError, "'metrics': expected a number"),
    (lambda o: S.ReduceLROnPlateau(o).load_state_dict(1), TypeError, "'state_dict': expected a d"),
    (lambda o: S.StepLR(o, 1).load_state_dict(None), TypeError, "'state_dict': expected a dict"),
    (lambda o: S.SequentialLR(o, [], []), ValueError, "'milestones': expected one less"),
]


def test_milestones_are_read_once() -> None:
    assert S.MultiStepLR(method(), iter([3, 2])).milestones == [2, 3]  # type: ignore[arg-type]


@pytest.mark.parametrize(("call", "kind", "words"), ROWS)
def test_schedules_refuse_by_name(call: Call, kind: type[Exception], words: str) -> None:
    with pytest.raises(kind, match=words) as caught:
        call(method())
    assert str(caught.value).startswith("[")


NEEDED: dict[str, tuple[Any, ...]] = {
    "StepLR": (1,),
    "MultiStepLR": ([1],),
    "ExponentialLR": (0.5,),
    "OneCycleLR": (1.0, 5),
    "LambdaLR": (lambda t: 1.0,),
    "CosineAnnealingLR": (3,),
}


# Those that are made of schedules ask these for their optimizer.
@pytest.mark.parametrize("name", sorted({*S.__all__} - {"ChainedScheduler", "SequentialLR"}))
def test_schedules_want_an_optimizer(name: str) -> None:
    with pytest.raises(TypeError, match=rf"\[{name}\] argument 'optimizer': expected Optimizer"):
        getattr(S, name)(None, *NEEDED.get(name, ()))
