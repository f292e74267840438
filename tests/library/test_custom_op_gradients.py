"""Gradients and tangents of custom operators."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tensorplay as tp
from tensorplay import Tensor
from tensorplay.autograd import forward_ad
from tensorplay.library import custom_op
from tests.library.cubes import make_cube, x64

# --- gradients -----------------------------------------------------------------------------------


def test_b019_without_a_formula_backward_raises(name: str) -> None:
    @custom_op(name, mutates_args=())
    def cube(x: Tensor) -> Tensor:
        return tp.tensor(x.numpy() ** 3)

    x = tp.ones(3, requires_grad=True)
    y = cube(x)
    assert y.requires_grad
    with pytest.raises(RuntimeError, match=rf"\[{name}\].*no gradient formula") as caught:
        y.sum().backward()
    assert "register_autograd(backward, setup_context=...)" in str(caught.value)
    assert x.grad is None


def test_declared_not_differentiable(name: str) -> None:
    op = custom_op(name, lambda x: x * 2)
    op.register_autograd(None)
    assert not op(tp.ones(1, requires_grad=True)).requires_grad
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(tp.ones(1), tp.ones(1))
        assert forward_ad.unpack_dual(op(dual)).tangent is None


def test_integer_results_need_no_formula(name: str) -> None:
    @custom_op(name)
    def op(x: Tensor) -> Tensor:
        return x.long()

    assert not op(tp.ones(1, requires_grad=True)).requires_grad


def test_first_and_second_derivative(name: str) -> None:
    cube = make_cube(name)
    x = x64(2.0, 3.0)
    y = cube(x)
    assert y.grad_fn is not None
    (first,) = tp.autograd.grad(y.sum(), x, create_graph=True)
    assert first.tolist() == [12, 27]
    (second,) = tp.autograd.grad(first.sum(), x)
    assert second.tolist() == [12, 18]
    assert tp.autograd.gradcheck(cube, (x,))
    assert tp.autograd.gradgradcheck(cube, (x,))


def test_the_result_may_be_saved(name: str) -> None:
    @custom_op(name)
    def exp(x: Tensor) -> Tensor:
        return tp.from_numpy(np.exp(x.numpy()))

    exp.register_autograd(
        lambda ctx, g: g * ctx.saved_tensors[0],
        setup_context=lambda ctx, inputs, output: ctx.save_for_backward(output),
    )
    x = x64(0.5, -1.0)
    assert tp.autograd.gradcheck(exp, (x,))
    assert tp.autograd.gradgradcheck(exp, (x,))
    y = exp(x)
    alive = weakref.ref(y.grad_fn)
    del y
    gc.collect()
    assert alive() is None
    y = exp(x)
    y.detach().add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_a_second_backward_needs_the_graph(name: str) -> None:
    y = make_cube(name)(x64(1.0)).sum()
    y.backward()
    with pytest.raises(RuntimeError, match="second time"):
        y.backward()


def weighted_sum(name: str, backward: Callable[..., Any]) -> Any:
    @custom_op(name, mutates_args=())
    def wsum(xs: list[Tensor], *, scale: float = 1.0) -> Tensor:
        return tp.tensor(sum(x.numpy() for x in xs) * scale)

    def setup(ctx: Any, inputs: Any, keyword_only_inputs: Any, output: Any) -> None:
        ctx.n, ctx.scale = len(inputs[0]), keyword_only_inputs["scale"]
        wsum.needs = ctx.needs_input_grad

    wsum.register_autograd(backward, setup_context=setup)
    return wsum


@pytest.mark.parametrize(
    "backward",
    [
        lambda ctx, g: [g * ctx.scale] * ctx.n,
        lambda ctx, g: ([g * ctx.scale] * ctx.n,),
        lambda ctx, g: [[g * ctx.scale] * ctx.n],
        lambda ctx, g: {"xs": (g * ctx.scale,) * ctx.n},
        lambda ctx, g: {"xs": [g * ctx.scale, None, g * ctx.scale]},
    ],
)
def test_b040_a_list_argument(name: str, backward: Any) -> None:
    wsum = weighted_sum(name, backward)
    a, b, c = tp.ones(2, requires_grad=True), tp.ones(2), tp.ones(2, requires_grad=True)
    wsum([a, b, c], scale=3.0).sum().backward()
    assert wsum.needs == ([True, False, True],)
    assert a.grad.tolist() == c.grad.tolist() == [3, 3]
    assert b.grad is None


def test_a_list_of_one(name: str) -> None:
    wsum = weighted_sum(name, lambda ctx, g: [g * ctx.scale] * ctx.n)
    a = tp.ones(2, requires_grad=True)
    wsum([a]).sum().backward()
    assert a.grad.tolist() == [1, 1]


@pytest.mark.parametrize(
    ("backward", "text"),
    [
        (lambda ctx, g: [g, g], "expected a list of 3 gradients for argument 'xs', got 2"),
        (lambda ctx, g: g, "expected a list of 3 gradients for argument 'xs', got Tensor"),
        (lambda ctx, g: (g, g, g), "incorrect number of gradients"),
        (lambda ctx, g: {"ys": [g] * 3}, r"got gradients for \['ys'\], which are no arguments"),
        (lambda ctx, g: {"scale": g}, "got a gradient for 'scale', which is no tensor"),
    ],
)
def test_b040_wrong_forms_show_the_right_one(name: str, backward: Any, text: str) -> None:
    xs = [tp.ones(1, requires_grad=True) for _ in range(3)]
    y = weighted_sum(name, backward)(xs)
    with pytest.raises(RuntimeError, match=rf"\[{name}\] backward: .*{text}.*Expected.*xs…"):
        y.sum().backward()


@pytest.mark.parametrize(
    ("backward", "works"),
    [
        (lambda ctx, g: {"x": g, "w": g * 2}, True),
        (lambda ctx, g: (g, None, g * 2), True),
        (lambda ctx, g: (g, None), False),
    ],
)
def test_b040_a_keyword_only_tensor(name: str, backward: Any, works: bool) -> None:
    @custom_op(name)
    def op(x: Tensor, n: int, *, w: Tensor, k: float = 1.0) -> Tensor:
        return x + 2 * w

    def setup(ctx: Any, inputs: Any, output: Any, keyword_only_inputs: Any) -> None:
        op.needs = ctx.needs_input_grad

    op.register_autograd(backward, setup_context=setup)
    x, w = tp.ones(1, requires_grad=True), tp.ones(1, requires_grad=True)
    y = op(x, 1, w=w)
    assert op.needs == (True, False, True)
    if works:
        y.backward()
        assert (x.grad.tolist(), w.grad.tolist()) == ([1], [2])
    else:
        with pytest.raises(RuntimeError, match=r"no gradient came for keyword-only \['w'\]"):
            y.backward()
        op(x, 1, w=tp.ones(1)).backward()
        assert x.grad.tolist() == [1]


def test_optional_tensors(name: str) -> None:
    @custom_op(name)
    def affine(x: Tensor, w: Tensor | None = None, bs: list[Tensor | None] = []) -> Tensor:  # noqa: B006
        out = x.clone()
        if w is not None:
            out.mul_(w)
        for b in bs:
            if b is not None:
                out.add_(b)
        return out

    def setup(ctx: Any, inputs: Any, output: Any) -> None:
        x, w, bs = inputs
        ctx.save_for_backward(x, w)
        ctx.count = len(bs)
        affine.needs = ctx.needs_input_grad

    def backward(ctx: Any, g: Tensor) -> Any:
        x, w = ctx.saved_tensors
        return g if w is None else g * w, None if w is None else g * x, [g] * ctx.count

    affine.register_autograd(backward, setup_context=setup)
    x, w, b = x64(2.0), x64(3.0), x64(4.0)
    affine(x, w, [None, b]).backward()
    assert affine.needs == (True, True, [False, True])
    assert [t.grad.tolist() for t in (x, w, b)] == [[3], [2], [1]]
    affine(x).backward()
    assert x.grad.tolist() == [4]
    assert affine.needs == (True, False, [])


def test_gradients_of_several_results(name: str) -> None:
    @custom_op(name)
    def op(x: Tensor) -> tuple[Tensor, int, list[Tensor], Tensor]:
        return x * 2, 7, [x * 3, x * 4], x.long()

    def backward(ctx: Any, *grads: Any) -> Tensor:
        op.kinds = [type(g).__name__ for g in grads]
        first, _, (second, third), _ = grads
        return first * 2 + second * 3 + third * 4

    op.register_autograd(backward)
    x = x64(1.0, 2.0)
    first, number, (second, third), whole = op(x)
    assert number == 7
    assert [t.requires_grad for t in (first, second, third, whole)] == [True, True, True, False]
    (first.sum() + 10 * third.sum()).backward()
    assert x.grad.tolist() == [42, 42]
    assert op.kinds[:3] == ["Tensor", "NoneType", "list"]


def test_results_marked_not_differentiable(name: str) -> None:
    @custom_op(name)
    def op(x: Tensor) -> tuple[Tensor, Tensor]:
        return x * 2, x * 3

    op.register_autograd(
        lambda ctx, g, _: g * 2,
        setup_context=lambda ctx, inputs, output: ctx.mark_non_differentiable(output[1]),
    )
    first, second = op(x64(1.0))
    assert (first.requires_grad, second.requires_grad) == (True, False)


def test_a_gradient_of_another_shape(name: str) -> None:
    op = custom_op(name, lambda x: x * 2)
    op.register_autograd(lambda ctx, g: g.sum(0, keepdim=True)[:, :2])
    with pytest.raises(RuntimeError, match="returned an invalid gradient at index 0"):
        op(tp.ones(3, 4, requires_grad=True)).sum().backward()


def test_a_view_whose_base_got_a_history(name: str) -> None:
    cube = make_cube(name)
    weight = x64(2.0, 2.0)
    base = tp.ones(2, dtype=tp.float64)
    view = base[:1]
    base.mul_(weight)
    cube(view).sum().backward()
    assert weight.grad.tolist() == [12, 0]


# --- forward mode --------------------------------------------------------------------------------


def test_forward_mode(name: str) -> None:
    cube = make_cube(name)
    x, t = x64(2.0, 3.0, requires_grad=False), x64(1.0, 10.0, requires_grad=False)
    with forward_ad.dual_level():
        value, tangent = forward_ad.unpack_dual(cube(forward_ad.make_dual(x, t)))
        assert value.tolist() == [8, 27]
        assert tangent.tolist() == [12, 270]
    assert tp.autograd.gradcheck(cube, (x64(2.0, 3.0),), check_forward_ad=True)


def test_forward_mode_of_lists_and_several_results(name: str) -> None:
    @custom_op(name)
    def op(xs: list[Tensor], k: float) -> tuple[Tensor, int, Tensor]:
        return xs[0] * xs[1], 3, xs[0] * k

    def setup(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs[0])
        ctx.k = inputs[1]

    def backward(ctx: Any, g: Tensor, _: None, h: Tensor) -> Any:
        a, b = ctx.saved_tensors
        return [g * b + h * ctx.k, g * a], None

    op.register_autograd(backward, setup_context=setup)
    with forward_ad.dual_level():
        a = forward_ad.make_dual(x64(2.0, requires_grad=False), x64(1.0, requires_grad=False))
        product, _, scaled = op([a, x64(5.0, requires_grad=False)], 7.0)
        assert forward_ad.unpack_dual(product).tangent.tolist() == [5]
        assert forward_ad.unpack_dual(scaled).tangent.tolist() == [7]


def test_a_tangent_has_a_history(name: str) -> None:
    cube = make_cube(name)
    x = x64(2.0)
    with forward_ad.dual_level():
        y = cube(forward_ad.make_dual(x, tp.ones(1, dtype=tp.float64)))
        tangent = forward_ad.unpack_dual(y).tangent
    assert tangent.tolist() == [12]
    assert tp.autograd.grad(tangent, x)[0].tolist() == [12]


def test_forward_mode_without_a_rule(name: str) -> None:
    op = custom_op(name, lambda x: x * 2)
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(tp.ones(1), tp.ones(1))
        with pytest.raises(NotImplementedError, match=r"no forward-mode \(jvp\) rule"):
            op(dual)
        # A formula that leaves the graph would give a tangent of nothing.
        op.register_autograd(lambda ctx, g: tp.tensor(g.detach().numpy() * 2))
        with pytest.raises(NotImplementedError, match="not written in recorded tensor operations"):
            op(dual)
