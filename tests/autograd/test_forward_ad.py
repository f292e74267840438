"""Tangents: made, carried through operators, erased at the end of the level."""

from __future__ import annotations

import contextlib

import numpy as np
import pytest

import tensorplay as tp
from tensorplay.autograd import forward_ad as fw, grad, gradcheck
from tensorplay.autograd.graph import saved_tensors_hooks


def vector(*values):
    return tp.tensor(list(values), dtype=tp.float64)


def test_levels():
    assert fw.current_dual_level() == -1
    with fw.dual_level() as level:
        assert level == fw.current_dual_level() == 0
        with pytest.raises(RuntimeError, match="nested"):
            fw.enter_dual_level()
        with pytest.raises(RuntimeError, match="cannot exit level 3"):
            fw.exit_dual_level(3)
    assert fw.current_dual_level() == -1
    with pytest.raises(RuntimeError, match="cannot exit"):
        fw.exit_dual_level()


def test_product_rule():
    x, t = vector(2.0, 3.0), vector(1.0, 10.0)
    with fw.dual_level():
        dual = fw.make_dual(x, t)
        primal, tangent = fw.unpack_dual(dual * dual * 3)
        assert primal.tolist() == [12.0, 27.0]
        assert tangent.tolist() == [12.0, 180.0]
        assert fw.unpack_dual(x) == (x, None)
        assert fw.is_dual_tensor(dual)
        assert not fw.is_dual_tensor(primal)


def test_tangents_are_erased_at_the_end_of_the_level():
    with fw.dual_level():
        dual = fw.make_dual(vector(1.0), vector(1.0))
        out = dual.exp()
    with fw.dual_level():
        assert fw.unpack_dual(dual).tangent is None
        assert fw.unpack_dual(out).tangent is None
    assert fw.unpack_dual(dual).tangent is None


def test_level_is_closed_after_an_exception():
    with pytest.raises(KeyError), fw.dual_level():
        raise KeyError
    assert fw.current_dual_level() == -1


def test_errors_of_make_dual():
    x = vector(1.0, 2.0)
    with pytest.raises(RuntimeError, match="no level exists"):
        fw.make_dual(x, x)
    with fw.dual_level():
        with pytest.raises(RuntimeError, match="different size"):
            fw.make_dual(x, vector(1.0))
        dual = fw.make_dual(x, x)
        with pytest.raises(RuntimeError, match="tangent at this level already"):
            fw.make_dual(dual, x)
        with pytest.raises(ValueError, match="floating point or complex"):
            fw.make_dual(tp.tensor([1]), tp.tensor([1]))


def test_both_modes_together_give_second_derivatives():
    x = vector(2.0).requires_grad_()
    with fw.dual_level():
        dual = fw.make_dual(x, vector(1.0))
        tangent = fw.unpack_dual(dual * dual * dual).tangent  # 3 x**2
        assert grad(tangent.sum(), x)[0].tolist() == [12.0]


def test_tangents_that_views_took_from_their_base_end_with_the_level():
    y = vector(1.0, 2.0)
    view = y[:1]
    with fw.dual_level():
        y.mul_(fw.make_dual(vector(3.0, 3.0), vector(1.0, 1.0)))
        assert fw.unpack_dual(view).tangent.tolist() == [1.0]
    assert (view * 2)._tangent is None
    with fw.dual_level():
        assert fw.unpack_dual(view).tangent is None


def in_place(x):
    y = x * 2
    y.mul_(x)
    y.exp_()
    return y


def write_through_view(x):
    y = x * 2
    before = y[:2]
    y[0] = x[3] * x[2]
    y[1:].exp_()
    return before * y[2:]


def write_into_plain(x):
    y = tp.zeros(4, dtype=tp.float64)
    y[1] = x[0] * x[1]
    y.reshape(2, 2).t()[1, 1] = x[3]
    return y


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.reshape(2, 2).t() @ x.reshape(2, 2),
        lambda x: x.reshape(2, 2).sum(0).exp(),
        lambda x: tp.softmax(x, 0),
        lambda x: tp.cat([x, x * x]),
        lambda x: x[1:] * x[:-1],
        lambda x: tp.where(x > 0, x, x * x),
        lambda x: x.max(),
        in_place,
        write_through_view,
        write_into_plain,
    ],
)
def test_operators_answer_a_tangent(function):
    x = vector(0.3, -0.4, 0.7, 1.1).requires_grad_()
    assert gradcheck(function, (x,), check_forward_ad=True)


def test_operators_answer_complex_tangents():
    z = tp.tensor([0.3 + 1j, -0.4 - 0.2j], dtype=tp.complex128, requires_grad=True)
    assert gradcheck(
        lambda z: (z * z.conj()).real + (z.exp() * z).imag, (z,), check_forward_ad=True
    )


def in_place_tanh(x):
    y = x * 1
    y.tanh_()
    return y


def in_place_exp_of_a_part(x):
    y = x * 1
    y[:1].exp_()
    return y


class SavedResult(tp.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        y = x.exp()
        ctx.save_for_backward(y)
        ctx.save_for_forward(y)
        return y

    @staticmethod
    def backward(ctx, g):
        return g * ctx.saved_tensors[0]

    @staticmethod
    def jvp(ctx, t):
        return t * ctx.saved_tensors[0]


@pytest.mark.parametrize("hooked", [False, True])
@pytest.mark.parametrize(
    "function",
    [
        *(tp.exp, tp.tanh, tp.sigmoid, tp.sqrt, tp.reciprocal, lambda x: tp.softmax(x, 0)),
        *(lambda x: tp.log_softmax(x, 0), lambda x: x / (x * x), lambda x: x.prod()),
        *(in_place_tanh, in_place_exp_of_a_part, SavedResult.apply),
    ],
)
def test_forward_over_reverse_sees_saved_results(function, hooked):
    weights = vector(1.0, 3.0)
    direction = vector(0.7, -0.3)

    def gradient(t):
        hooks = saved_tensors_hooks(lambda s: s.detach().numpy().copy(), tp.from_numpy)
        with hooks if hooked else contextlib.nullcontext():
            return grad((function(t) * weights).sum(), t, create_graph=True)[0]

    x = vector(0.5, 1.0).requires_grad_()
    with fw.dual_level():
        found = fw.unpack_dual(gradient(fw.make_dual(x, direction))).tangent
    (expected,) = grad(gradient(x), x, direction)
    np.testing.assert_allclose(found.detach().numpy(), expected.numpy(), rtol=1e-12)
