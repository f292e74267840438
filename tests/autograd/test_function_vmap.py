"""`Function` inside of vmap: a rule of its own, a generated one, or an error that says so."""

from __future__ import annotations

import numpy as np
import pytest

import tensorplay as tp
from tensorplay.autograd import Function, grad, gradcheck, gradgradcheck
from tensorplay.func import grad as func_grad, jvp, vmap


def numbers(*shape, seed=0):
    return tp.from_numpy(np.random.default_rng(seed).standard_normal(shape))


class Own(Function):
    """x * y with a rule of its own."""

    calls: list[tuple] = []  # noqa: RUF012 - what the tests look at

    @staticmethod
    def forward(x, y):
        return x * y

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, g):
        x, y = ctx.saved_tensors
        return g * y, g * x

    @staticmethod
    def vmap(info, in_dims, x, y):
        Own.calls.append((info.batch_size, info.randomness, in_dims, x.shape, y.shape))
        if in_dims[0] is None:
            x = x.unsqueeze(0)
        if in_dims[1] is None:
            y = y.unsqueeze(0)
        return Own.apply(x, y), 0


class Generated(Function):
    """x * y.sum() with a constant, an attribute and a saved result."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x, y, factor):
        return x * y.sum() * factor, (x * y).exp()

    @staticmethod
    def setup_context(ctx, inputs, output):
        x, y, ctx.factor = inputs
        ctx.save_for_backward(x, y, output[1])
        ctx.save_for_forward(x, y, output[1])

    @staticmethod
    def backward(ctx, g, h):
        x, y, e = ctx.saved_tensors
        gx = g * y.sum() * ctx.factor + h * e * y
        gy = (g * x).sum() * ctx.factor + h * e * x
        return gx, gy, None

    @staticmethod
    def jvp(ctx, tx, ty, _):
        x, y, e = ctx.saved_tensors
        tx = tp.zeros_like(x) if tx is None else tx
        ty = tp.zeros_like(y) if ty is None else ty
        first = (tx * y.sum() + x * ty.sum()) * ctx.factor
        return first, e * (tx * y + x * ty)


class Plain(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * 2

    @staticmethod
    def backward(ctx, g):
        return g * 2 + 0 * ctx.saved_tensors[0]


def test_own_rule():
    Own.calls.clear()
    x, y = numbers(3, 2), numbers(2, seed=1)
    found = vmap(Own.apply, (0, None))(x, y)
    np.testing.assert_allclose(found.numpy(), x.numpy() * y.numpy())
    assert Own.calls == [(3, "error", (0, None), (3, 2), (2,))]
    found = vmap(Own.apply, (1, 0), randomness="same")(x.t(), numbers(3, 2, seed=2))
    np.testing.assert_allclose(found.numpy(), x.numpy() * numbers(3, 2, seed=2).numpy())
    assert Own.calls[-1][1] == "same"


def test_own_rule_of_nested_levels():
    Own.calls.clear()
    x, y = numbers(3, 2), numbers(4, 2, seed=1)
    found = vmap(lambda a: vmap(lambda b: Own.apply(a, b))(y))(x)
    np.testing.assert_allclose(found.numpy(), x.numpy()[:, None] * y.numpy())
    assert [c[0] for c in Own.calls] == [4, 3]


def test_own_rule_is_differentiated():
    x, y = numbers(3, 2).requires_grad_(), numbers(2, seed=1).requires_grad_()
    vmap(Own.apply, (0, None))(x, y).sum().backward()
    np.testing.assert_allclose(x.grad.numpy(), np.tile(y.detach().numpy(), (3, 1)))
    np.testing.assert_allclose(y.grad.numpy(), x.detach().numpy().sum(0))
    found = vmap(func_grad(lambda a, b: Own.apply(a, b).sum(), argnums=(0, 1)), (0, None))(
        x.detach(), y.detach()
    )
    np.testing.assert_allclose(found[1].numpy(), x.detach().numpy())


def test_generated_rule():
    x, y = numbers(3, 2), numbers(3, 2, seed=1)
    for in_dims, a, b in [((0, 0, None), x, y), ((0, None, None), x, y[0]),
                          ((None, 0, None), x[0], y)]:  # fmt: skip
        found = vmap(Generated.apply, in_dims)(a, b, 3.0)
        rows = [
            Generated.apply(a[i] if in_dims[0] == 0 else a, b[i] if in_dims[1] == 0 else b, 3.0)
            for i in range(3)
        ]
        for number in range(2):
            expected = np.stack([row[number].numpy() for row in rows])
            np.testing.assert_allclose(found[number].numpy(), expected)


def test_generated_rule_is_differentiated():
    x, y = numbers(3, 2).requires_grad_(), numbers(2, seed=1).requires_grad_()

    def total(function, a, b):
        one, two = function(a, b)
        return one.sum() + two.sum()

    batched = grad(total(vmap(lambda a, b: Generated.apply(a, b, 3.0), (0, None)), x, y), (x, y))
    single = grad(
        sum(total(lambda a, b: Generated.apply(a, b, 3.0), x[i], y) for i in range(3)), (x, y)
    )
    for one, two in zip(batched, single, strict=True):
        np.testing.assert_allclose(one.numpy(), two.numpy())


def test_generated_rule_in_both_modes_and_to_second_order():
    x, y = numbers(2, 2).requires_grad_(), numbers(2, seed=1).requires_grad_()
    function = vmap(lambda a, b: Generated.apply(a, b, 0.5), (0, None))
    assert gradcheck(function, (x, y), check_forward_ad=True)
    assert gradgradcheck(function, (x, y))
    _, product = jvp(function, (x.detach(), y.detach()), (x.detach(), y.detach()))
    assert product[0].shape == (2, 2)


def test_generated_rule_of_per_sample_gradients():
    x, y = numbers(3, 2), numbers(2, seed=1)

    def loss(b, a):
        one, two = Generated.apply(a, b, 2.0)
        return (one * two).sum()

    found = vmap(func_grad(loss), (None, 0))(y, x)
    for row, sample in zip(found, x, strict=True):
        np.testing.assert_allclose(row.numpy(), func_grad(loss)(y, sample).numpy())


def test_generated_rule_notices_values_without_history():
    class Kept(Function):
        generate_vmap_rule = True

        @staticmethod
        def forward(ctx, x):
            ctx.mid = 2 * x
            return x * x

        @staticmethod
        def backward(ctx, g):
            return g * ctx.mid

    x = numbers(3).requires_grad_()
    y = vmap(Kept.apply)(x).sum()
    (g,) = grad(y, x, create_graph=True)
    np.testing.assert_allclose(g.detach().numpy(), 2 * x.detach().numpy())
    with pytest.raises(RuntimeError, match="mid"):
        grad(g.sum(), x)


def test_without_a_rule():
    with pytest.raises(RuntimeError, match="generate_vmap_rule"):
        vmap(Plain.apply)(numbers(3))
    x = numbers(3).requires_grad_()
    assert Plain.apply(x).requires_grad


def test_two_rules_are_one_too_many():
    class Both(Own):
        generate_vmap_rule = True

    with pytest.raises(RuntimeError, match="both"):
        vmap(Both.apply)(numbers(3), numbers(3))


def test_what_a_rule_returns_is_checked():
    class NoDims(Plain):
        @staticmethod
        def vmap(info, in_dims, x):
            return x * 2

    class WrongSize(Plain):
        @staticmethod
        def vmap(info, in_dims, x):
            return x[:1], 0

    class WrongStructure(Plain):
        @staticmethod
        def vmap(info, in_dims, x):
            return (x, x), (0,)

    for function, match in [
        (NoDims, "out_dims"),
        (WrongSize, "size"),
        (WrongStructure, "structure"),
    ]:
        with pytest.raises(RuntimeError, match=match):
            vmap(function.apply)(numbers(3, 2))


def test_a_rule_may_share_results():
    class Shared(Plain):
        @staticmethod
        def vmap(info, in_dims, x):
            return (x.movedim(in_dims[0], -1), tp.ones(1)), (-1, None)

    one, two = vmap(Shared.apply)(numbers(3, 2))
    assert one.shape == (3, 2)
    assert two.shape == (3, 1)


def test_formulas_run_on_batched_gradients():
    x = numbers(3).requires_grad_()
    y = Plain.apply(x)
    basis = tp.eye(3, dtype=tp.float64)
    (g,) = grad(y, x, basis, is_grads_batched=True)
    np.testing.assert_allclose(g.numpy(), 2 * np.eye(3))


def test_formulas_that_read_values_cannot_be_batched():
    class Reads(Plain):
        @staticmethod
        def backward(ctx, g):
            return tp.from_numpy(g.numpy() * 2)

    x = numbers(3).requires_grad_()
    y = Reads.apply(x)
    with pytest.raises(RuntimeError, match="vmap"):
        grad(y, x, tp.eye(3, dtype=tp.float64), is_grads_batched=True)
    report = gradcheck(Reads.apply, (x,), check_batched_grad=True, raise_exception=False)
    assert not report
    assert report.pairs[0].code == "batched"
    assert "While computing batched gradients" in report.message
