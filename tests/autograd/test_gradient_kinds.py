"""Gradients from people's code: of another device, or complex where the tensor is real."""

from __future__ import annotations

import itertools

import pytest

import tensorplay as tp
from tensorplay.autograd import Function
from tensorplay.library import custom_op

FOREIGN = {
    "complex": (lambda: tp.full((2,), 1 + 2j), r"expected a real gradient .* Write grad\.real"),
    "meta": (lambda: tp.ones(2, device="meta"), "expected a gradient on device cpu, got .* meta"),
}
_numbers = itertools.count()
kinds = pytest.mark.parametrize("kind", FOREIGN)


def through_function(make):
    class Twice(Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, g):
            return make()

    return Twice.apply


def through_custom_op(make):
    @custom_op(f"kinds::twice{next(_numbers)}")
    def twice(x: tp.Tensor) -> tp.Tensor:
        return x * 2

    twice.register_autograd(lambda ctx, g: make())
    return twice


def through_leaf_hook(make):
    def function(x):
        x.register_hook(lambda g: make())
        return x * 2

    return function


def through_hook(make):
    def function(x):
        y = x * 2
        y.register_hook(lambda g: make())
        return y

    return function


def through_node_hook(make):
    def function(x):
        y = x * 2
        y.grad_fn.register_hook(lambda results, grads: (make(), None))
        return y

    return function


def through_node_prehook(make):
    def function(x):
        y = x * 2
        y.grad_fn.register_prehook(lambda grads: (make(),))
        return y

    return function


def through_inplace_function(make):
    class Twice(Function):
        @staticmethod
        def forward(ctx, x):
            ctx.mark_dirty(x)
            return x.mul_(2)

        @staticmethod
        def backward(ctx, g):
            return make()

    def function(x):
        base = tp.cat([x, x])
        Twice.apply(base[:2])
        return base[:2]

    return function


WAYS = [
    through_function, through_custom_op, through_leaf_hook, through_hook, through_node_hook,
    through_node_prehook, through_inplace_function,
]  # fmt: skip


@kinds
@pytest.mark.parametrize("way", WAYS, ids=lambda w: w.__name__)
def test_refused(way, kind):
    make, match = FOREIGN[kind]
    x = tp.ones(2, requires_grad=True)
    y = way(make)(x)
    with pytest.raises(RuntimeError, match=match):
        y.sum().backward()
    assert x.grad is None


@kinds
def test_refused_where_the_pass_begins(kind):
    make, match = FOREIGN[kind]
    x = tp.ones(2, requires_grad=True)
    with pytest.raises(RuntimeError, match=match):
        (x * 2).backward(make())
    with pytest.raises(RuntimeError, match=match):
        tp.autograd.grad(x * 2, x, make())
    assert x.grad is None


def test_a_hook_may_return_another_real_type():
    x = tp.ones(2, requires_grad=True)
    x.register_hook(lambda g: g.double() * 3)
    x.sum().backward()
    assert x.grad.dtype is tp.float32
    assert x.grad.tolist() == [3, 3]


def test_formulas_of_operators_mean_the_real_part():
    x = tp.ones(2, dtype=tp.float64, requires_grad=True)
    z = tp.full((2,), 1 + 2j, dtype=tp.complex128)
    y = x * z
    y.backward(tp.full((2,), 3 + 1j, dtype=tp.complex128))
    assert x.grad.tolist() == [5, 5]  # Re((3 + i)(1 - 2i))


def test_the_real_part_of_a_cast():
    x = tp.ones(2, dtype=tp.float64, requires_grad=True)
    x.to(tp.complex128).backward(tp.full((2,), 3 + 1j, dtype=tp.complex128))
    assert x.grad.tolist() == [3, 3]


def test_a_node_hook_may_scale_a_complex_gradient():
    x = tp.ones(2, dtype=tp.float64, requires_grad=True)
    y = x * tp.full((2,), 1 + 2j, dtype=tp.complex128)
    y.grad_fn.register_hook(lambda results, grads: (results[0] * 2, None))
    y.backward(tp.ones(2, dtype=tp.complex128))
    assert x.grad.tolist() == [2, 2]


def test_gradients_on_meta_stay_there():
    x = tp.ones(2, 3, device="meta", requires_grad=True)
    through_function(lambda: tp.ones(2, 3, device="meta"))(x).sum().backward()
    assert x.grad.is_meta
    with pytest.raises(RuntimeError, match="on device meta, got one on cpu"):
        through_function(lambda: tp.ones(2, 3))(x).sum().backward()


def test_a_number_on_cpu_gets_no_gradient_from_meta():
    k = tp.tensor(2.0, requires_grad=True)
    with pytest.raises(RuntimeError, match="expected a gradient on device cpu"):
        (k * tp.ones(2, device="meta")).sum().backward()
