"""The short way of a custom operator's call does what the long way does."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tensorplay as tp
from tensorplay import Tensor
from tensorplay.library import custom_op
from tensorplay.library.short_way import MISS


def scale(name: str, seen: list[Any] | None = None) -> Any:
    @custom_op(name)
    def op(x: Tensor, y: Tensor, k: float, n: int, flag: bool, mode: str) -> Tensor:
        if seen is not None:
            seen.append((x, y, k, n, flag, mode, tp.is_grad_enabled()))
        array = x.numpy() * k + y.numpy() * n
        return tp.from_numpy(np.asarray(array, x.numpy().dtype))

    op.register_autograd(
        lambda ctx, g: (g * ctx.k, g * ctx.n, None, None, None, None),
        setup_context=lambda ctx, inputs, output: (
            setattr(ctx, "k", inputs[2]),
            setattr(ctx, "n", inputs[3]),
        ),
    )
    return op


REST = (2.0, 3, True, "a")


def short(op: Any, *args: Any) -> bool:
    """Tell whether the short way answers a call."""
    return op._short is not None and op._short(args) is not MISS


def test_plain_calls_take_it(name: str) -> None:
    seen: list[Any] = []
    op = scale(name, seen)
    x, y = tp.rand(3), tp.rand(3)
    for args in (
        (x, y, *REST),
        (x, y, 2, 3, True, "a"),  # an int for a float
        (x.requires_grad_(), y, *REST),
        (tp.rand(4)[1:], y, *REST),
        (tp.rand(3, dtype=tp.float64), y, *REST),
        (tp.ones(3, dtype=tp.int32), y, *REST),
    ):
        assert short(op, *args), args
        assert type(seen[-1][2]) is float
        assert seen[-1][-1] is False  # nothing inside is recorded
        assert not seen[-1][0].requires_grad


@pytest.mark.parametrize(
    "args",
    [
        ([1.0], tp.ones(3), *REST),
        (tp.ones(3), tp.ones(3), "2", 3, True, "a"),
        (tp.ones(3), tp.ones(3), 2.0, 3.5, True, "a"),
        (tp.ones(3), tp.ones(3), 2.0, 3, 1, "a"),
        (tp.ones(3), tp.ones(3), 2.0, 3, True, b"a"),
        (tp.ones(3), tp.ones(3)),
        (tp.ones(3), tp.ones(3), *REST, 1),
        (None, tp.ones(3), *REST),
    ],
)
def test_errors_are_those_of_the_long_way(name: str, args: Any) -> None:
    op = scale(name)
    assert not short(op, *args)
    with pytest.raises(TypeError) as long:
        op.operator.function(*args)
    with pytest.raises(TypeError) as both:
        op(*args)
    assert str(long.value).split("()")[-1][:40] in str(both.value)


def test_values_and_gradients_are_those_of_the_long_way(name: str) -> None:
    op = scale(name)
    base = tp.rand(2, 6)
    for x in (base, base[:, ::2], base.transpose(0, 1), base[0], tp.rand(()), tp.rand(0, 3)):
        y = tp.rand(x.shape)
        assert short(op, x, y, *REST)
        found, expected = op(x, y, *REST), op.operator.function(x, y, *REST)
        tp.testing.assert_close(found, expected, check_stride=True)
        a, b = (x.detach().clone().requires_grad_() for _ in range(2))
        op(a, y, *REST).sum().backward()
        op.operator.function(b, y, *REST).sum().backward()
        assert a.grad is not None
        tp.testing.assert_close(a.grad, b.grad)
        assert op(a, y, *REST).grad_fn.name() == op.operator.function(a, y, *REST).grad_fn.name()


def test_special_states_take_the_long_way(name: str) -> None:
    op = scale(name)
    x, y = tp.rand(3), tp.rand(3)
    with tp.inference_mode():
        assert not short(op, x, y, *REST)
        assert op(x, y, *REST).is_inference()
    assert not short(op, x.to("meta"), y.to("meta"), *REST)
    with (
        pytest.warns(UserWarning, match="Anomaly Detection"),
        tp.autograd.detect_anomaly(check_nan=False),
    ):
        assert not short(op, tp.rand(3, requires_grad=True), y, *REST)
    with tp.autograd.forward_ad.dual_level():
        dual = tp.autograd.forward_ad.make_dual(x, tp.ones(3))
        assert not short(op, dual, y, *REST)
        tangent = tp.autograd.forward_ad.unpack_dual(op(dual, y, *REST)).tangent
        assert tangent is not None
        assert tangent.tolist() == [2, 2, 2]
    found = tp.func.vmap(lambda a: op(a, y, *REST))(tp.rand(4, 3))
    assert found.shape == (4, 3)
    op.checks_writes = True
    assert not short(op, x, y, *REST)


def test_it_follows_the_kernels(name: str) -> None:
    op = custom_op(name, lambda x: x + 1)
    x = tp.zeros(1)
    assert op(x).tolist() == [1]
    op.register_kernel("cpu", lambda x: x + 2)
    assert op(x).tolist() == [2]
    with op.set_kernel_enabled("cpu", False):
        assert op(x).tolist() == [1]
    assert op(x).tolist() == [2]


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (lambda x: x, "may not alias argument 'x'"),
        (lambda x: x[:1], "may not alias argument 'x'"),
        (lambda x: x.detach(), "may not alias argument 'x'"),
        (lambda x: tp.from_numpy(x.numpy()), "may not alias argument 'x'"),
        (lambda x: np.ones(2), "expected Tensor by the schema"),
        (lambda x: None, "expected Tensor by the schema"),
        (lambda x: tp.ones(2, device="meta"), "expected a tensor on device cpu"),
    ],
)
@pytest.mark.parametrize("view", [False, True])
def test_results_are_checked_after_one_run(name: str, body: Any, text: str, view: bool) -> None:
    runs: list[int] = []

    def counted(x: Any) -> Any:
        runs.append(1)
        return body(x)

    op = custom_op(name, counted, schema="(Tensor x) -> Tensor")
    x = tp.rand(4)[1:] if view else tp.rand(3)
    with pytest.raises(RuntimeError, match=text):
        op(x)
    assert len(runs) == 1


def test_a_buffer_that_the_argument_looks_into(name: str) -> None:
    kept = tp.rand(4)
    op = custom_op(name, lambda x: kept, schema="(Tensor x) -> Tensor")
    with pytest.raises(RuntimeError, match="may not alias"):
        op(kept[1:3])
    with pytest.raises(RuntimeError, match="may not alias"):
        op(tp.from_numpy(np.frombuffer(memoryview(kept.numpy()), np.float32)))
    assert op(tp.rand(2)) is not kept
    assert op(tp.rand(2)).tolist() == kept.tolist()
    op(tp.rand(2)).unsqueeze_(0)
    assert op(tp.rand(2)).shape == (4,)  # what a caller does to its result is its own matter
    y = op(tp.rand(2, requires_grad=True))
    assert y.requires_grad
    assert not kept.requires_grad


def test_grad_mode_comes_back_after_an_exception(name: str) -> None:
    def broken(x: Tensor) -> Tensor:
        message = "broken"
        raise ValueError(message)

    op = custom_op(name, broken)
    with pytest.raises(ValueError, match="broken"):
        op(tp.rand(1))
    assert tp.is_grad_enabled()
    with tp.no_grad(), pytest.raises(ValueError, match="broken"):
        op(tp.rand(1))
    assert tp.is_grad_enabled()


def test_a_leaf_without_grad_mode_reaches_the_kernel_as_plain_memory(name: str) -> None:
    op = custom_op(name, lambda x: tp.from_numpy(x.numpy() + 1), schema="(Tensor x) -> Tensor")
    with tp.no_grad():
        assert op(tp.ones(1, requires_grad=True)).tolist() == [2]


@pytest.mark.parametrize("requires_grad", [False, True])
@pytest.mark.parametrize(
    "change",
    [
        lambda x: x.unsqueeze_(0),
        lambda x: x.t_(),
        lambda x: x.requires_grad_(),
        lambda x: setattr(x, "note", 1),
    ],
)
def test_what_a_kernel_does_to_its_tensor_stays_there(
    name: str, change: Any, requires_grad: bool
) -> None:
    def body(x: Tensor) -> Tensor:
        change(x)
        return tp.ones(2)

    op = custom_op(name, body)
    x = tp.rand(2, 3, requires_grad=requires_grad)
    op(x)
    assert x.shape == (2, 3)
    assert x.requires_grad is requires_grad
    assert not hasattr(x, "note")


def test_a_write_in_the_kernel_counts_for_the_caller(name: str) -> None:
    op = custom_op(name, lambda x: x.mul_(0) + 1)
    c = tp.rand(3)
    y = (tp.rand(3, requires_grad=True) * c).sum()
    op(c)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.backward()


def test_the_set_up_of_a_gradient_gets_what_the_kernel_gets(name: str) -> None:
    kinds: list[type] = []
    op = custom_op(name, lambda x, k: x * k, schema="(Tensor x, float k) -> Tensor")
    op.register_autograd(
        lambda ctx, g: (g, None),
        setup_context=lambda ctx, inputs, output: kinds.append(type(inputs[1])),
    )
    x = tp.rand(2, requires_grad=True)
    op(x, 2)
    op(x, k=2)
    assert kinds == [float, float]
    with pytest.raises((TypeError, ValueError), match=rf"\[{name}\] argument 'k'"):
        op(x, 10**400)


def test_a_context_that_nobody_filled_is_there_when_asked_for(name: str) -> None:
    seen: list[Any] = []

    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Any]:
        seen.append((ctx.needs_input_grad, ctx.saved_tensors))
        return grad * 2, grad * 3

    op = custom_op(name, lambda x, y: x + y)
    op.register_autograd(backward)
    x, y = tp.rand(2, requires_grad=True), tp.rand(2)
    out = op(x, y)
    assert out.grad_fn is not None
    assert out.grad_fn.saved_tensors == ()
    assert not out.grad_fn.saves_result()
    out.sum().backward(retain_graph=True)
    out.sum().backward()
    assert seen == [((True, False), ())] * 2
    assert x.grad is not None
    assert x.grad.tolist() == [4, 4]
    h = op(op(x, y), op(x, x.detach() * 2))
    g = tp.autograd.grad(h.sum(), x, create_graph=True)[0]
    assert g.tolist() == [10, 10]
    assert (
        tp.autograd.gradcheck(
            lambda a: op(a, a) * 1.0 - 3 * a,
            (tp.rand(2, dtype=tp.float64, requires_grad=True),),
            raise_exception=False,
        ).verdict
        != "error"
    )
