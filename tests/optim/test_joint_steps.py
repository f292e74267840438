"""The step that SGD makes with many small parameters in one call, beside those one by one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tensorplay as tp
from tensorplay import _native, nn, optim


def _after_steps(options: dict[str, Any]) -> list[Any]:
    """Return all that some steps leave behind."""
    rng = np.random.default_rng(3)
    shapes = [((3, 4), np.float32), ((), np.float32), ((7,), np.float64), ((0, 2), np.float32)]
    parameters = [nn.Parameter(tp.from_numpy(np.asarray(rng.normal(size=s), d))) for s, d in shapes]
    parameters.append(nn.Parameter(tp.from_numpy(rng.normal(size=(3, 2))).t()))
    parameters.append(nn.Parameter(tp.from_numpy(rng.normal(size=3)).half()))
    parameters.append(nn.Parameter(tp.ones(2)))  # which has no gradient
    optimizer = optim.SGD(parameters, **options)
    for _ in range(3):
        for p in parameters[:-1]:
            noise = rng.normal(size=tuple(p.shape)).astype(p.detach().numpy().dtype)
            p.grad = tp.from_numpy(np.asarray(noise))
        parameters[0].grad = parameters[0].grad.t().contiguous().t()
        optimizer.step()
    state = optimizer.state_dict()["state"]
    return [
        [p.detach().numpy().tobytes() for p in parameters],
        [p._version for p in parameters],
        {n: {k: v.numpy().tobytes() for k, v in values.items()} for n, values in state.items()},
    ]


@pytest.mark.skipif(_native.core is None, reason=f"extension: {_native.reason}")
@pytest.mark.parametrize(
    "options",
    [
        {"lr": 0.1},
        {"lr": 1, "maximize": True},
        {"lr": 0.1, "weight_decay": 0.01},
        {"lr": 0.1, "momentum": 0.9},
        {"lr": 0.3, "momentum": 0.7, "dampening": 0.1, "weight_decay": 0.2, "maximize": True},
        {"lr": 0.1, "momentum": 0.9, "nesterov": True},
    ],
    ids=str,
)
def test_steps_of_the_extension_are_those_of_numpy(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled = _after_steps(options)
    monkeypatch.setattr(optim.SGD, "_step_together", optim.Optimizer._step_together)
    assert _after_steps(options) == compiled


@pytest.mark.skipif(_native.core is None, reason=f"extension: {_native.reason}")
def test_what_the_extension_leaves_to_numpy() -> None:
    def left(p: Any, **changed: Any) -> list[Any]:
        options = {"most": 100, "momentum": 0.0, **changed}
        state = changed.get("state", {p: {}})
        reached = _native.core.sgd_step(
            [p], 0, state, options["most"], 0.1, 0.0, options["momentum"], 1.0, False, False
        )
        return [p][reached:]

    def parameter(values: Any, grad: Any) -> Any:
        p = nn.Parameter(tp.tensor(values))
        p._grad = grad
        return p

    p = parameter([1.0, 2.0], tp.ones(2))
    assert left(p) == []
    assert p.tolist() == pytest.approx([0.9, 1.9])
    for other in (
        parameter([1.0, 2.0], tp.ones(3)),
        parameter([1.0, 2.0], tp.ones(2, dtype=tp.float64)),
        parameter([1.0, 2.0], tp.ones(4)[::2]),
        nn.Parameter(tp.ones(2, dtype=tp.float16)),
        nn.Parameter(tp.ones(2, device="meta")),
    ):
        assert left(other)[0] is other
        assert other._version == 0
    assert left(p, most=2)[0] is p
    memory = np.ones(3, np.float32)
    shifted = nn.Parameter(tp.from_numpy(memory)[:2])
    shifted._grad = tp.from_numpy(memory)[1:]
    assert left(shifted)[0] is shifted
    assert left(p, momentum=0.5, state={p: {"momentum_buffer": tp.ones(3)}})[0] is p
    with pytest.raises(KeyError):
        left(p, state={})


def _filled(values: Any, grad: float) -> Any:
    p = nn.Parameter(tp.tensor(values))
    p.grad = tp.full(p.shape, grad)
    return p


def test_parameters_of_a_group_may_be_a_tuple() -> None:
    p = _filled([1.0, 2.0], 1.0)
    optimizer = optim.SGD([p], lr=0.5)
    optimizer.param_groups[0]["params"] = (p,)
    optimizer.step()
    assert p.tolist() == [0.5, 1.5]


@pytest.mark.parametrize("method", [optim.SGD, optim.Adam])
@pytest.mark.parametrize("groups", [False, True])
def test_a_gradient_of_another_shape_is_found_before_any_step(method: Any, groups: bool) -> None:
    first, wrong, last = (_filled([1.0, 2.0], 1.0) for _ in range(3))
    wrong.data = tp.ones(3)
    params = [first, wrong, last]
    optimizer = method([{"params": [p]} for p in params] if groups else params, lr=0.5)
    with pytest.raises(RuntimeError, match=r"a gradient has shape \[2\], its parameter \[3\]"):
        optimizer.step()
    assert [p.tolist() for p in (first, last)] == [[1.0, 2.0]] * 2
    assert not optimizer.state


@pytest.mark.parametrize("method", [optim.SGD, optim.Adam])
@pytest.mark.parametrize("size", [2, 1 << 17])
@pytest.mark.parametrize("fused", [False, None])
@pytest.mark.filterwarnings("error")
def test_steps_that_overflow_warn_at_no_size(method: Any, size: int, fused: Any) -> None:
    p = _filled([1e38] * size, -3e38)
    method([p], lr=10.0, weight_decay=1e5, fused=fused).step()
    assert not p.isfinite().all() or method is optim.Adam


def test_a_derived_class_steps_in_its_own_way() -> None:
    class Halves(optim.SGD):
        def _update(self, x: Any, g: Any, state: Any, group: Any) -> None:
            x *= 0.5

    class Doubles(optim.SGD):
        def _step_one(self, p: Any, group: Any) -> None:
            p._array *= 2

    class Plain(optim.SGD):
        pass

    found = []
    for method in (Halves, Doubles, Plain):
        p = _filled([2.0], 1.0)
        method([p], lr=0.5).step()
        found.append(p.item())
    assert found == [1.0, 4.0, 1.5]


def test_parameters_step_in_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    def stepped() -> list[Any]:
        memory = np.arange(6, dtype=np.float32)
        a = nn.Parameter(tp.from_numpy(memory[:4].reshape(2, 2)))
        b = nn.Parameter(tp.from_numpy(memory[2:]))  # shares two elements
        c = nn.Parameter(tp.ones(4))
        a._grad = tp.from_numpy(np.asfortranarray(np.ones((2, 2), np.float32)))  # NumPy's
        b._grad = tp.ones(4)
        c._grad = b.detach()  # the gradient of one is another
        optim.SGD([a, b, c], lr=0.5, weight_decay=0.5).step()
        return [memory.tolist(), c.tolist()]

    found = stepped()
    monkeypatch.setattr(optim.SGD, "_step_together", optim.Optimizer._step_together)
    assert stepped() == found


@pytest.mark.parametrize("method", [optim.SGD, optim.Adam, optim.AdamW])
def test_large_parameters_that_are_their_gradients_step(method: Any) -> None:
    def stepped(**options: Any) -> Any:
        p = nn.Parameter(tp.full((300, 300), 2.0))
        p.grad = p.detach()
        method([p], lr=0.1, **options).step()
        return p.detach().numpy()

    np.testing.assert_array_equal(stepped(), stepped(fused=False))
