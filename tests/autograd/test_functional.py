"""Products with Jacobian and Hessian matrices against the matrices written out."""

from __future__ import annotations

import numpy as np
import pytest

import tensorplay as tp
from tensorplay.autograd import Function, functional as fn, grad

PRODUCTS = [fn.vjp, fn.jvp, fn.vhp, fn.hvp]


def vector(*values):
    return tp.tensor(list(values), dtype=tp.float64)


def one(x):
    """R³ → R²."""
    return tp.stack([x[0] * x[1], x[2].sin() * x[0]])


def one_jacobian(x):
    a, b, c = x.tolist()
    return np.array([[b, a, 0.0], [np.sin(c), 0.0, a * np.cos(c)]])


def two(x, y):
    return (x * y).sum(), x.exp() * y[0]


def scalar(x, y):
    return (x**3).sum() * y.sum() + (y**2).sum()


X = (0.3, -1.2, 0.7)
Y = (1.5, 0.4, -0.2)


def test_vjp():
    x, v = vector(*X), vector(2.0, -1.0)
    out, product = fn.vjp(one, x, v)
    np.testing.assert_allclose(out.numpy(), one(x).numpy())
    np.testing.assert_allclose(product.numpy(), v.numpy() @ one_jacobian(x))
    assert not out.requires_grad
    assert not product.requires_grad


def test_vjp_of_one_element_needs_no_vector():
    x = vector(*X)
    out, product = fn.vjp(lambda t: (t * t).sum(), x)
    np.testing.assert_allclose(product.numpy(), 2 * x.numpy())
    assert out.shape == ()


@pytest.mark.parametrize("mode", ["reversed", "forward"])
def test_jvp(mode):
    x, v = vector(*X), vector(2.0, -1.0, 0.5)
    out, product = fn.jvp(one, x, v, mode=mode)
    np.testing.assert_allclose(out.numpy(), one(x).numpy())
    np.testing.assert_allclose(product.numpy(), one_jacobian(x) @ v.numpy())
    assert not product.requires_grad


@pytest.mark.parametrize("mode", ["reversed", "forward"])
def test_structure_of_tuples(mode):
    x, y = vector(*X), vector(*Y)
    outs, products = fn.vjp(two, (x, y), (vector(1.0).sum(), vector(1.0, 0.0, 0.0)))
    assert len(outs) == len(products) == 2
    np.testing.assert_allclose(
        products[0].numpy(), y.numpy() + np.exp(x.numpy()) * Y[0] * np.array([1, 0, 0])
    )
    outs, products = fn.jvp(two, (x, y), (vector(1.0, 0, 0), vector(0.0, 1, 0)), mode=mode)
    assert isinstance(outs, tuple)
    np.testing.assert_allclose(products[0].item(), Y[0] + X[1])
    np.testing.assert_allclose(products[1].numpy(), [np.exp(X[0]) * Y[0], 0, 0])


@pytest.mark.parametrize("product", [fn.vhp, fn.hvp])
def test_hessian_products(product):
    x, y = vector(*X), vector(*Y)
    v = (vector(1.0, -2.0, 0.5), vector(0.3, 0.0, 1.0))
    out, found = product(scalar, (x, y), v)
    np.testing.assert_allclose(out.item(), scalar(x, y).item())
    rows = fn.hessian(scalar, (x, y))
    matrix = np.block([[b.numpy() for b in row] for row in rows])
    flat = np.concatenate([v[0].numpy(), v[1].numpy()])
    np.testing.assert_allclose(np.concatenate([f.numpy() for f in found]), matrix @ flat)


def test_hessian_product_of_one_number():
    x = vector(2.0)
    assert fn.vhp(lambda t: (t**3).sum(), x)[1].item() == pytest.approx(12.0)
    assert fn.hvp(lambda t: (t**3).sum(), x)[1].item() == pytest.approx(12.0)


@pytest.mark.parametrize("strategy", ["reverse-mode", "forward-mode"])
@pytest.mark.parametrize("vectorize", [False, True])
def test_jacobian(strategy, vectorize):
    x, y = vector(*X), vector(*Y)
    options = {"strategy": strategy, "vectorize": vectorize}
    np.testing.assert_allclose(fn.jacobian(one, x, **options).numpy(), one_jacobian(x))
    rows = fn.jacobian(two, (x, y), **options)
    np.testing.assert_allclose(rows[0][0].numpy(), y.numpy())
    np.testing.assert_allclose(rows[0][1].numpy(), x.numpy())
    np.testing.assert_allclose(rows[1][0].numpy(), np.diag(np.exp(x.numpy()) * Y[0]))
    np.testing.assert_allclose(rows[1][1].numpy(), np.outer(np.exp(x.numpy()), [1, 0, 0]))
    square = fn.jacobian(lambda t: t @ t, vector(1.0, 2, 3, 4).reshape(2, 2), **options)
    assert square.shape == (2, 2, 2, 2)
    (only,) = fn.jacobian(lambda t: (t * 2,), x, **options)
    np.testing.assert_allclose(only.numpy(), 2 * np.eye(3))
    ((first,),) = fn.jacobian(lambda t: (t * 2,), (x,), **options)
    np.testing.assert_allclose(first.numpy(), 2 * np.eye(3))


@pytest.mark.parametrize("strategy", ["reverse-mode", "forward-mode"])
@pytest.mark.parametrize("vectorize", [False, True])
def test_hessian(strategy, vectorize):
    x, y = vector(*X), vector(*Y)
    options = {"outer_jacobian_strategy": strategy, "vectorize": vectorize}
    found = fn.hessian(scalar, (x, y), **options)
    np.testing.assert_allclose(found[0][0].numpy(), np.diag(6 * x.numpy() * sum(Y)))
    np.testing.assert_allclose(found[0][1].numpy(), np.outer(3 * x.numpy() ** 2, np.ones(3)))
    np.testing.assert_allclose(found[1][1].numpy(), 2 * np.eye(3))
    single = fn.hessian(lambda t: t.exp().sum(), x, **options)
    np.testing.assert_allclose(single.numpy(), np.diag(np.exp(x.numpy())), atol=1e-14)


def test_columns_of_forward_mode_are_computed_together():
    calls = []

    def function(t, u):
        calls.append(None)
        return tp.softmax(t @ u, -1), u.sum()

    x, y = vector(*X).reshape(1, 3), vector(1.0, 2, 3, 4, 5, 6).reshape(3, 2)
    options = {"strategy": "forward-mode"}
    apart = fn.jacobian(function, (x, y), **options)
    assert len(calls) == 9
    calls.clear()
    together = fn.jacobian(function, (x, y), vectorize=True, **options)
    assert len(calls) == 2
    for one, two in zip(apart, together, strict=True):
        for left, right in zip(one, two, strict=True):
            assert left.shape == right.shape
            np.testing.assert_allclose(left.numpy(), right.numpy(), atol=1e-14)
    with pytest.raises(RuntimeError, match="randomness"):
        fn.jacobian(lambda t: t * tp.rand(3), vector(*X), vectorize=True, **options)
    tp.rand(1)  # the mode ends with the call


def test_jacfwd_runs_the_function_once_for_all_columns_where_that_is_possible(monkeypatch):
    def counting(function):
        def counted(*xs):
            counted.runs += 1
            return function(*xs)

        counted.runs = 0
        return counted

    x, y = tp.rand((2, 3), dtype=tp.float64), tp.rand((3,), dtype=tp.float64)
    pair = counting(lambda a, b: (a.sin() @ b, a * b))
    expected = fn.jacobian(pair, (x, y))
    pair.runs = 0
    for ours, theirs in zip(fn.jacfwd(pair, (x, y)), expected, strict=True):
        for a, b in zip(ours, theirs, strict=True):
            np.testing.assert_allclose(a.numpy(), b.numpy())
    assert pair.runs == 2
    # What draws numbers goes column by column.
    drawing = counting(lambda a: a + tp.rand(3))
    np.testing.assert_allclose(fn.jacfwd(drawing, y).numpy(), np.eye(3))
    assert drawing.runs == 4
    with pytest.raises(ZeroDivisionError):
        fn.jacfwd(lambda a: a * (1 // 0), x)
    # Many columns are computed in parts.
    monkeypatch.setattr(fn, "_MOST_TOGETHER", 12)
    square = counting(lambda a: a * a)
    expected = fn.jacobian(square, x).numpy()
    square.runs = 0
    np.testing.assert_allclose(fn.jacfwd(square, x).numpy(), expected)
    assert square.runs == 3


def test_the_product_with_tangents_has_a_short_name():
    assert tp.autograd.jvp is fn.jvp
    x = vector(*X)
    out, product = tp.autograd.jvp(lambda t: t * t, x, x)
    np.testing.assert_allclose(product.numpy(), 2 * out.numpy())


def test_jacfwd():
    x = vector(*X)
    np.testing.assert_allclose(fn.jacfwd(one, x).numpy(), one_jacobian(x))


def test_sizes_without_elements():
    empty = vector()
    assert fn.jacobian(lambda t: t * 2, empty).shape == (0, 0)
    assert fn.jacfwd(lambda t: t.sum(), empty).shape == (0,)
    assert fn.jacobian(lambda t: t[:0], vector(1.0, 2.0)).shape == (0, 2)


def test_create_graph_connects_results_with_inputs():
    x = vector(*X).requires_grad_()
    jacobian = fn.jacobian(one, x, create_graph=True)
    (g,) = grad(jacobian[1, 2], x)
    np.testing.assert_allclose(g.numpy(), [np.cos(X[2]), 0, -X[0] * np.sin(X[2])])
    for product in (
        fn.vjp(lambda t: (t**3).sum(), x, create_graph=True)[1],
        fn.jvp(lambda t: t**3, x, vector(1.0, 1, 1), create_graph=True)[1],
        fn.jvp(lambda t: t**3, x, vector(1.0, 1, 1), create_graph=True, mode="forward")[1],
    ):
        (g,) = grad(product.sum(), x)
        np.testing.assert_allclose(g.numpy(), 6 * np.array(X))
    for product in (fn.vhp, fn.hvp):
        found = product(lambda t: (t**4).sum(), x, vector(1.0, 1, 1), create_graph=True)[1]
        (g,) = grad(found.sum(), x)
        np.testing.assert_allclose(g.numpy(), 24 * np.array(X))
    hessian = fn.hessian(lambda t: (t**4).sum(), x, create_graph=True)
    (g,) = grad(hessian.sum(), x)
    np.testing.assert_allclose(g.numpy(), 24 * np.array(X))


def test_inputs_and_their_gradients_are_left_alone():
    x = vector(*X).requires_grad_()
    fn.jacobian(one, x)
    fn.hvp(lambda t: (t**3).sum(), x, vector(1.0, 1, 1))
    fn.jvp(one, x, vector(1.0, 1, 1), mode="forward")
    assert x.grad is None
    with tp.no_grad():
        np.testing.assert_allclose(fn.jacobian(one, x).numpy(), one_jacobian(x.detach()))


def test_complex_functions():
    z = tp.tensor([0.5 + 0.2j, -1.0 + 1j], dtype=tp.complex128)
    v = tp.tensor([1.0 - 2j, 0.5j], dtype=tp.complex128)
    for mode in ("reversed", "forward"):
        product = fn.jvp(lambda t: t * t, z, v, mode=mode)[1]
        np.testing.assert_allclose(product.numpy(), 2 * z.numpy() * v.numpy())


def cut(x):
    return x.detach() * 2


# --- errors -------------------------------------------------------------------------------------


@pytest.mark.parametrize("product", [*PRODUCTS, fn.jacobian, fn.hessian, fn.jacfwd])
def test_inputs_and_outputs_must_be_tensors(product):
    x = vector(1.0)
    with pytest.raises(TypeError, match=r"inputs must be .* a Tensor or a tuple of Tensors"):
        product(lambda t: t, 1.0)
    with pytest.raises(TypeError, match="value at index 1 has type float"):
        product(lambda t, u: t, (x, 1.0))
    with pytest.raises(TypeError, match="result of the user-provided function"):
        product(lambda t: 3.0, x)


def test_vector_may_be_missing_for_one_element_only():
    x = vector(1.0, 2.0)
    with pytest.raises(RuntimeError, match="can only be None if"):
        fn.vjp(lambda t: t * 2, x)
    with pytest.raises(RuntimeError, match="can only be None if"):
        fn.jvp(lambda t: t * 2, x)
    for product in (fn.vhp, fn.hvp):
        with pytest.raises(RuntimeError, match="can only be None if"):
            product(lambda t: t.sum(), x)


@pytest.mark.parametrize("product", PRODUCTS)
def test_vector_must_have_the_right_size(product):
    x = vector(1.0, 2.0)
    with pytest.raises(RuntimeError, match="v has invalid size"):
        product(lambda t: t.sum(), x, vector(1.0, 2.0, 3.0))
    with pytest.raises(RuntimeError, match="invalid length"):
        product(lambda t: t.sum(), x, (x, x))
    with pytest.raises(TypeError, match="vector v"):
        product(lambda t: t.sum(), x, 2.0)


@pytest.mark.parametrize("product", [fn.vhp, fn.hvp, fn.hessian])
def test_hessian_needs_a_single_element(product):
    x = vector(1.0, 2.0)
    arguments = (x,) if product is fn.hessian else (x, x)
    with pytest.raises(RuntimeError, match="should contain a single element"):
        product(lambda t: t * 2, *arguments)
    with pytest.raises(RuntimeError, match="should return a single Tensor"):
        product(lambda t: (t.sum(), t.sum()), *arguments)


def test_strict_refuses_what_does_not_depend():
    x, y = vector(1.0, 2.0), vector(3.0, 4.0)
    for product in (fn.vjp, fn.jvp):
        with pytest.raises(RuntimeError, match="does not require gradients"):
            product(cut, x, x, strict=True)
        with pytest.raises(RuntimeError, match="independent of input 1"):
            product(lambda t, u: t * 2, (x, y), (x, y) if product is fn.jvp else x, strict=True)
    with pytest.raises(RuntimeError, match="independent of the inputs"):
        fn.jvp(cut, x, x, strict=True, mode="forward")
    for vectorize in (False, True):
        with pytest.raises(RuntimeError, match="does not require gradients"):
            fn.jacobian(cut, x, strict=True, vectorize=vectorize)
        with pytest.raises(RuntimeError, match="independent of input 1"):
            fn.jacobian(lambda t, u: t * 2, (x, y), strict=True, vectorize=vectorize)
    with pytest.raises(RuntimeError, match="independent of the inputs"):
        fn.jacobian(cut, x, strict=True, strategy="forward-mode")
    for product in (fn.vhp, fn.hvp):
        with pytest.raises(RuntimeError, match="independent of"):
            product(lambda t: t.sum(), x, x, strict=True)
        with pytest.raises(RuntimeError, match="independent of input 1"):
            product(lambda t, u: (t**2).sum(), (x, y), (x, y), strict=True)
    with pytest.raises(RuntimeError, match="independent of"):
        fn.hessian(lambda t: t.sum(), x, strict=True)


def test_strict_with_create_graph_wants_a_derivative_that_depends():
    x = vector(1.0, 2.0)
    for product in (fn.vjp, fn.jvp):
        with pytest.raises(RuntimeError, match="when create_graph=True"):
            product(lambda t: t * 2, x, x, strict=True, create_graph=True)
    with pytest.raises(RuntimeError, match="when create_graph=True"):
        fn.jacobian(lambda t: t * 2, x, strict=True, create_graph=True)


def test_without_strict_there_are_zeros():
    x, y = vector(1.0, 2.0), vector(3.0, 4.0)
    assert fn.vjp(cut, x, x)[1].tolist() == [0.0, 0.0]
    for mode in ("reversed", "forward"):
        assert fn.jvp(cut, x, x, mode=mode)[1].tolist() == [0.0, 0.0]
    for options in ({}, {"vectorize": True}, {"strategy": "forward-mode"}):
        assert not fn.jacobian(cut, x, **options).any()
        assert not fn.jacobian(lambda t, u: t * 2, (x, y), **options)[1].any()
    assert not fn.hessian(lambda t: t.sum(), x).any()
    assert not fn.vhp(lambda t: t.sum(), x, x)[1].any()
    assert not fn.hvp(lambda t: t.sum(), x, x)[1].any()


def test_modes_and_strategies():
    x = vector(1.0, 2.0)
    with pytest.raises(ValueError, match="'reversed' or 'forward'"):
        fn.jvp(lambda t: t, x, x, mode="sideways")
    with pytest.raises(ValueError, match="'reverse-mode' or 'forward-mode'"):
        fn.jacobian(lambda t: t, x, strategy="sideways")
    with pytest.raises(NotImplementedError, match="create_graph"):
        fn.jacobian(lambda t: t, x, create_graph=True, strategy="forward-mode")


def test_a_function_without_the_formula_of_the_mode():
    class Reverse(Function):
        @staticmethod
        def forward(ctx, x):
            ctx.factor = 2
            return x * 2

        @staticmethod
        def backward(ctx, g):
            return g * ctx.factor

    x = vector(1.0, 2.0)
    assert fn.jvp(Reverse.apply, x, x)[1].tolist() == [2.0, 4.0]
    with pytest.raises(NotImplementedError, match="jvp"):
        fn.jvp(Reverse.apply, x, x, mode="forward")
