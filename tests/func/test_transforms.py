"""Derivatives of functions, alone and nested in every order."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import tensorplay as tp
from tensorplay.autograd import Function, forward_ad
from tensorplay.func import (
    grad,
    grad_and_value,
    hessian,
    jacfwd,
    jacrev,
    jvp,
    linearize,
    vjp,
    vmap,
)


def numbers(*shape, seed=0):
    return tp.from_numpy(np.random.default_rng(seed).standard_normal(shape))


def cube(x):
    return (x**3).sum()


def test_grad():
    x = numbers(3)
    found = grad(cube)(x)
    np.testing.assert_allclose(found.numpy(), 3 * x.numpy() ** 2)
    assert not found.requires_grad
    assert not x.requires_grad


def test_grad_and_value_with_aux_and_argnums():
    x, y = numbers(3), numbers(3, seed=1)

    def function(a, b):
        return (a * b).sum(), {"a": a * 2}

    gradient, (value, aux) = grad_and_value(function, argnums=(0, 1), has_aux=True)(x, y)
    np.testing.assert_allclose(gradient[0].numpy(), y.numpy())
    np.testing.assert_allclose(gradient[1].numpy(), x.numpy())
    np.testing.assert_allclose(value.item(), (x * y).sum().item())
    np.testing.assert_allclose(aux["a"].numpy(), 2 * x.numpy())
    assert not value.requires_grad
    assert not aux["a"].requires_grad
    gradient, aux = grad(function, argnums=-1, has_aux=True)(x, y)
    np.testing.assert_allclose(gradient.numpy(), x.numpy())


def test_nested_arguments():
    data = {"w": numbers(2), "b": [numbers(2, seed=1)]}
    found = grad(lambda d, x: (d["w"] * x + d["b"][0]).sum())(data, tp.ones(2, dtype=tp.float64))
    assert found["w"].tolist() == [1.0, 1.0]
    assert found["b"][0].tolist() == [1.0, 1.0]


def test_derivatives_of_any_order():
    function = tp.exp
    for _ in range(4):
        function = grad(function)
    assert function(tp.tensor(0.3, dtype=tp.float64)).item() == pytest.approx(np.exp(0.3))
    assert grad(grad(lambda t: t**3))(tp.tensor(2.0)).item() == 12.0


def test_inner_and_outer_variables_are_kept_apart():
    # d/dx (x * d/dy (x + y)) = 1, the classic of perturbation confusion.
    inner = lambda x: x * grad(lambda y: x + y)(tp.tensor(1.0))  # noqa: E731 - one line is clearer
    assert grad(inner)(tp.tensor(5.0)).item() == 1.0
    forward = lambda x: x * jvp(lambda y: x + y, (tp.tensor(1.0),), (tp.tensor(1.0),))[1]  # noqa: E731
    assert jvp(forward, (tp.tensor(5.0),), (tp.tensor(1.0),))[1].item() == 1.0


def test_results_are_connected_with_what_was_recorded_outside():
    w = numbers(3).requires_grad_()
    found = grad(lambda x: (x * x * w).sum())(numbers(3, seed=1))
    assert found.requires_grad
    (g,) = tp.autograd.grad(found.sum(), w)
    np.testing.assert_allclose(g.numpy(), 2 * numbers(3, seed=1).numpy())
    x = numbers(3).requires_grad_()
    (g,) = tp.autograd.grad(grad(cube)(x).sum(), x)
    np.testing.assert_allclose(g.numpy(), 6 * x.detach().numpy())
    with tp.no_grad():
        assert not grad(cube)(x).requires_grad


def test_no_grad_inside_counts():
    def function(x):
        with tp.no_grad():
            c = x * x
        return (c * x).sum()

    x = numbers(3)
    np.testing.assert_allclose(grad(function)(x).numpy(), x.numpy() ** 2)


def test_vjp():
    x, y = numbers(3), numbers(3, seed=1)
    (out, _), back = vjp(lambda a, b: (a * b, a.sum()), x, y)
    np.testing.assert_allclose(out.numpy(), (x * y).numpy())
    v, u = numbers(3, seed=2), tp.tensor(2.0, dtype=tp.float64)
    for _ in range(2):  # it may be called again
        one, other = back((v, u))
        np.testing.assert_allclose(one.numpy(), (v * y).numpy() + 2.0)
        np.testing.assert_allclose(other.numpy(), (v * x).numpy())
    assert not out.requires_grad
    out, back, aux = vjp(lambda a: (a * 2, a * 3), x, has_aux=True)
    np.testing.assert_allclose(aux.numpy(), 3 * x.numpy())
    np.testing.assert_allclose(back(v).numpy(), 2 * v.numpy())


def test_vjp_of_what_does_not_depend():
    x = numbers(3)
    _, back = vjp(lambda a, b: a.detach() * 2, x, x)
    assert [g.tolist() for g in back(x)] == [[0.0] * 3] * 2


def test_jvp():
    x, v = numbers(3), numbers(3, seed=1)
    out, product = jvp(lambda a: a * a, (x,), (v,))
    np.testing.assert_allclose(out.numpy(), x.numpy() ** 2)
    np.testing.assert_allclose(product.numpy(), 2 * (x * v).numpy())
    out, product, aux = jvp(lambda a: (a * a, a + 1), (x,), (v,), has_aux=True)
    np.testing.assert_allclose(aux.numpy(), x.numpy() + 1)
    assert not forward_ad.unpack_dual(aux).tangent
    _, product = jvp(lambda a: tp.ones(2), (x,), (v,))
    assert product.tolist() == [0.0, 0.0]


def test_linearize():
    x, v = numbers(3), numbers(3, seed=1)
    runs = []

    def function(a):
        runs.append(1)
        return a.sin(), a.sum()

    out, push = linearize(function, x)
    np.testing.assert_allclose(out[0].numpy(), np.sin(x.numpy()))
    for tangent in (v, 2 * v):
        one, two = push(tangent)
        np.testing.assert_allclose(one.numpy(), np.cos(x.numpy()) * tangent.numpy())
        np.testing.assert_allclose(two.item(), tangent.sum().item())
    basis = tp.eye(3, dtype=tp.float64)
    np.testing.assert_allclose(vmap(push)(basis)[0].numpy(), np.diag(np.cos(x.numpy())))
    assert len(runs) == 1


@pytest.mark.parametrize("jacobian", [jacrev, jacfwd])
def test_jacobians(jacobian):
    x, y = numbers(3), numbers(2, seed=1)

    def function(a, b):
        return {"outer": a[:, None] * b, "sum": a.sum() * b.sum()}

    found = jacobian(function, argnums=(0, 1))(x, y)
    assert found["outer"][0].shape == (3, 2, 3)
    np.testing.assert_allclose(
        found["outer"][1].numpy(), np.einsum("i,jk->ijk", x.numpy(), np.eye(2))
    )
    np.testing.assert_allclose(found["sum"][0].numpy(), np.full(3, y.sum().item()))
    single = jacobian(lambda a: a * a)(x)
    np.testing.assert_allclose(single.numpy(), np.diag(2 * x.numpy()))
    single, aux = jacobian(lambda a: (a * a, a.sum()), has_aux=True)(x)
    assert aux.item() == pytest.approx(x.sum().item())
    assert not aux.requires_grad
    empty = tp.zeros(0, dtype=tp.float64)
    assert jacobian(lambda a: a * 2)(empty).shape == (0, 0)
    assert jacobian(lambda a: a.sum())(empty).shape == (0,)


def test_jacrev_in_chunks():
    x = numbers(5)
    whole = jacrev(lambda a: a.sin())(x).numpy()
    np.testing.assert_array_equal(jacrev(lambda a: a.sin(), chunk_size=2)(x).numpy(), whole)


@pytest.mark.parametrize(
    ("outer", "inner"), list(itertools.product([jacrev, jacfwd], [jacrev, jacfwd]))
)
@pytest.mark.parametrize(
    "function",
    [
        lambda v: (v**3).sum() * v.exp().sum(),
        lambda v: tp.softmax(v, 0)[0] * v.prod(),
        lambda v: (v[:, None] * v).sigmoid().sum() + v.square().sum().sqrt(),
        lambda v: (tp.log_softmax(v * v, 0) * v).mean(),
        lambda v: (v * v).norm() * v.sum(),
        lambda v: tp.logsumexp(v * v, 0) * v.mean(),
    ],
)
def test_hessians_in_all_ways(outer, inner, function):
    x = numbers(4)
    expected = tp.autograd.functional.hessian(function, x).numpy()
    found = outer(inner(function))(x)
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-9, atol=1e-12)
    assert not found.requires_grad
    np.testing.assert_allclose(hessian(function)(x).numpy(), expected, rtol=1e-9, atol=1e-12)


def test_gradients_of_each_sample():
    w, x = numbers(4), numbers(3, 4, seed=1)

    def loss(weight, sample):
        return (sample * weight).tanh().sum()

    found = vmap(grad(loss), (None, 0))(w, x).numpy()
    for row, sample in zip(found, x, strict=True):
        np.testing.assert_allclose(row, grad(loss)(w, sample).numpy())


def test_batches_of_jacobians_and_hessians():
    x = numbers(3, 4)
    function = lambda v: tp.softmax(v, 0) * v  # noqa: E731 - one line is clearer
    for jacobian in (jacrev, jacfwd):
        found = vmap(jacobian(function))(x).numpy()
        expected = np.stack([jacobian(function)(row).numpy() for row in x])
        np.testing.assert_allclose(found, expected)
    found = vmap(hessian(cube))(x).numpy()
    np.testing.assert_allclose(found, np.stack([np.diag(6 * row) for row in x.numpy()]))


def test_a_tangent_of_each_sample():
    x, v = numbers(3), numbers(5, 3, seed=1)

    def product(tangent):
        return jvp(lambda a: a.sin() * tangent, (x,), (tangent,))[1]

    found = vmap(product)(v).numpy()
    np.testing.assert_allclose(found, np.cos(x.numpy()) * v.numpy() ** 2)


def test_derivatives_of_a_batched_function():
    x = numbers(3, 2)
    batched = vmap(lambda a: (a * a).sum())
    np.testing.assert_allclose(grad(lambda t: batched(t).sum())(x).numpy(), 2 * x.numpy())
    _, product = jvp(batched, (x,), (x,))
    np.testing.assert_allclose(product.numpy(), 2 * (x * x).sum(1).numpy())
    _, back = vjp(batched, x)
    np.testing.assert_allclose(back(tp.ones(3, dtype=tp.float64)).numpy(), 2 * x.numpy())


def test_autograd_grad_inside_of_vmap():
    x = numbers(3, 2)

    def function(a):
        a = a.detach().requires_grad_()
        (g,) = tp.autograd.grad((a**3).sum(), a, create_graph=True)
        (h,) = tp.autograd.grad(g.sum(), a)
        return g, h

    g, h = vmap(function)(x)
    np.testing.assert_allclose(g.detach().numpy(), 3 * x.numpy() ** 2)
    np.testing.assert_allclose(h.numpy(), 6 * x.numpy())


def test_a_shared_input_has_no_gradient_per_sample():
    w = numbers(2).requires_grad_()
    with pytest.raises(RuntimeError, match="only the sum of their gradients"):
        vmap(lambda a: tp.autograd.grad((a * w).sum(), w)[0])(numbers(3, 2))


def test_vectors_of_autograd_grad_may_be_batched():
    x = numbers(3).requires_grad_()
    y = x.sin()
    basis = tp.eye(3, dtype=tp.float64)
    found = vmap(lambda v: tp.autograd.grad(y, x, v, retain_graph=True)[0])(basis)
    np.testing.assert_allclose(found.numpy(), np.diag(np.cos(x.detach().numpy())))


# --- errors ---------------------------------------------------------------------------------------


def test_grad_wants_a_scalar():
    for function in (lambda x: x, lambda x: (x.sum(), x.sum()), lambda x: 1.0):
        with pytest.raises(RuntimeError, match="scalar Tensor"):
            grad(function)(numbers(2))
    with pytest.raises(RuntimeError, match="argnums"):
        grad(cube, argnums=1)(numbers(2))
    with pytest.raises(RuntimeError, match="to be Tensors"):
        grad(cube)(1.0)
    with pytest.raises(RuntimeError, match="has_aux"):
        grad(cube, has_aux=True)(numbers(2))


def test_jvp_wants_tuples_of_equal_structure():
    x = numbers(2)
    with pytest.raises(RuntimeError, match="tuple"):
        jvp(cube, x, (x,))
    with pytest.raises(RuntimeError, match="tuple"):
        jvp(cube, (x,), [x])
    with pytest.raises(RuntimeError, match="structure"):
        jvp(cube, (x,), ([x],))
    with pytest.raises(RuntimeError, match="size"):
        jvp(cube, (x,), (numbers(3),))
    with pytest.raises(RuntimeError, match="independent"):
        jvp(lambda a: tp.ones(1), (x,), (x,), strict=True)
    with pytest.raises(RuntimeError, match="structure"):
        linearize(cube, x)[1](x, x)


def test_vjp_wants_cotangents_of_the_structure_of_the_outputs():
    x = numbers(2)
    _, back = vjp(lambda a: (a, a), x)
    with pytest.raises(RuntimeError, match="structure"):
        back(x)
    with pytest.raises(RuntimeError, match="Mismatch in shape"):
        back((x, numbers(3)))
    with pytest.raises(RuntimeError, match="to be Tensors"):
        vjp(lambda a: 1.0, x)


def test_a_function_without_a_forward_formula_works_nested():
    class Twice(Function):
        generate_vmap_rule = True

        @staticmethod
        def forward(ctx, x):
            ctx.factor = 2
            return x * 2

        @staticmethod
        def backward(ctx, g):
            return g * ctx.factor

    x = numbers(2)
    assert jacrev(Twice.apply)(x).tolist() == [[2.0, 0.0], [0.0, 2.0]]
    with pytest.raises(NotImplementedError, match="jvp"):
        jvp(Twice.apply, (x,), (x,))
