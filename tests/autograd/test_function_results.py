"""What `backward` and `jvp` of a `Function` may return, and what they must not."""

from __future__ import annotations

import pytest

import tensorplay as tp
from tensorplay.autograd import Function, forward_ad, grad, gradcheck, once_differentiable


def leaf(*values, dtype=tp.float64):
    return tp.tensor(list(values), dtype=dtype, requires_grad=True)


# --- what backward returns ------------------------------------------------------------------------


def returning(make):
    class Op(Function):
        @staticmethod
        def forward(ctx, x, y):
            return x * y

        @staticmethod
        def backward(ctx, g):
            return make(g)

    return lambda x, y: Op.apply(x, y).sum()


def test_wrong_number_of_gradients():
    x, y = leaf(1.0), leaf(1.0)
    message = r"function OpBackward returned an incorrect number of gradients \(expected 2, got "
    with pytest.raises(RuntimeError, match=message + "1"):
        returning(lambda g: g)(x, y).backward()
    with pytest.raises(RuntimeError, match=message + "3"):
        returning(lambda g: (g, g, g))(x, y).backward()
    returning(lambda g: (g, g, None, None))(x, y).backward()
    assert x.grad.tolist() == [1.0]


def test_wrong_shape_and_type_of_gradients():
    x, y = leaf(1.0, 2.0), leaf(1.0, 2.0)
    with pytest.raises(
        RuntimeError,
        match=r"returned an invalid gradient at index 0 - got \[3\] but expected shape compatible "
        r"with \[2\]",
    ):
        returning(lambda g: (tp.ones(3), g))(x, y).backward()
    with pytest.raises(TypeError, match=r"expected Variable or None \(got float\)"):
        returning(lambda g: (1.0, g))(x, y).backward()


def test_expandable_gradient_is_summed_and_cast():
    x, y = leaf(1.0, 2.0), leaf(1.0, 2.0)
    returning(lambda g: (tp.ones((3, 2), dtype=tp.float32), None))(x, y).backward()
    assert x.grad.tolist() == [3.0, 3.0]
    assert x.grad.dtype is tp.float64
    assert y.grad is None


def test_gradient_for_an_input_that_needs_none_is_dropped_unseen():
    x = leaf(1.0)
    returning(lambda g: (g, "anything"))(x, tp.ones(1, dtype=tp.float64)).backward()
    assert x.grad.tolist() == [1.0]


def test_exceptions_keep_their_type():
    def fail(g):
        message = "mine"
        raise ZeroDivisionError(message)

    with pytest.raises(ZeroDivisionError, match="mine"):
        returning(fail)(leaf(1.0), leaf(1.0)).backward()


def test_missing_methods():
    class Empty(Function):
        pass

    class NoBackward(Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

    with pytest.raises(NotImplementedError, match="must implement the forward function"):
        Empty.apply(leaf(1.0))
    y = NoBackward.apply(leaf(1.0))
    with pytest.raises(
        NotImplementedError, match="must implement either the backward or vjp method"
    ):
        y.sum().backward()
    with pytest.raises(TypeError, match=r"NoBackward\.apply"):
        NoBackward()


def test_vjp_is_another_name_of_backward():
    class Named(Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def vjp(ctx, g):
            return g * 2

    x = leaf(1.0)
    assert grad(Named.apply(x).sum(), x)[0].tolist() == [2.0]


def test_once_differentiable():
    class Once(Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        @once_differentiable
        def backward(ctx, g):
            assert not tp.is_grad_enabled()
            return g * 2 * ctx.saved_tensors[0]

    x = leaf(3.0)
    assert gradcheck(Once.apply, (x,))
    (first,) = grad(Once.apply(x).sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="marked with @once_differentiable"):
        grad(first.sum(), x)


# --- forward mode ---------------------------------------------------------------------------------


class Sine(Function):
    @staticmethod
    def forward(ctx, x, scale):
        ctx.save_for_forward(x)
        ctx.save_for_backward(x)
        ctx.scale = scale
        return x.sin() * scale

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * x.cos() * ctx.scale, None

    @staticmethod
    def jvp(ctx, t, t_scale):
        assert t_scale is None
        (x,) = ctx.saved_tensors
        return t * x.cos() * ctx.scale


def test_jvp_gives_the_tangent():
    x = tp.randn(4, dtype=tp.float64, requires_grad=True)
    assert gradcheck(lambda x: Sine.apply(x, 3.0), (x,), check_forward_ad=True)


def test_jvp_sees_plain_tensors():
    x = leaf(1.0)
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(x, tp.ones(1, dtype=tp.float64))
        out = Sine.apply(dual, 1.0)
        tangent = forward_ad.unpack_dual(out).tangent
        assert not forward_ad.is_dual_tensor(tangent)
        assert forward_ad.is_dual_tensor(dual)


def test_missing_jvp_raises_instead_of_dropping_the_tangent():
    class NoJvp(Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

    with forward_ad.dual_level():
        dual = forward_ad.make_dual(leaf(1.0), tp.ones(1, dtype=tp.float64))
        with pytest.raises(NotImplementedError, match="jvp"):
            NoJvp.apply(dual)


def test_wrong_number_of_tangents():
    class Bad(Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def jvp(ctx, t):
            return t, t

    with forward_ad.dual_level():
        dual = forward_ad.make_dual(leaf(1.0), tp.ones(1, dtype=tp.float64))
        with pytest.raises(RuntimeError, match=r"number of tangents \(expected 1, got 2\)"):
            Bad.apply(dual)


def test_errors_name_operator_and_argument_and_say_what_to_write():
    class Down(tp.autograd.Function):
        @staticmethod
        def forward(ctx, x, weight, *rest):
            return x * weight

        @staticmethod
        def backward(ctx, grad):
            return chosen(grad)

    def message(result, *more):
        nonlocal chosen
        chosen = result
        with pytest.raises(RuntimeError) as caught:
            Down.apply(leaf(1.0, 2.0), leaf(1.0, 2.0), *more).sum().backward()
        return str(caught.value)

    chosen = None
    assert message(lambda g: (g, tp.ones(3))) == (
        "[Down] argument 'weight': Function DownBackward returned an invalid gradient at index 1 - "
        "got [3] but expected shape compatible with [2]. Return one of that shape, or one that it "
        "broadcasts to."
    )
    assert message(lambda g: (2.0, g)) == (
        "[Down] argument 'x': Function DownBackward returned an invalid gradient at index 0: "
        "expected Variable or None (got float). Return a tensor, or None where there is no "
        "gradient."
    )
    assert message(lambda g: (g, g.to("meta"))) == (
        "[Down] argument 'weight': Function DownBackward returned an invalid gradient at index 1 - "
        "expected a gradient on device cpu, got one on meta. Write grad.to('cpu')."
    )
    assert message(lambda g: (g, g * 1j)).startswith("[Down] argument 'weight': Function DownB")
    assert message(lambda g: (g, g, tp.ones(3)), leaf(1.0, 2.0)).startswith(
        "[Down] argument 'inputs[2]': Function DownBackward returned"
    )
    assert message(lambda g: g) == (
        "[Down] function DownBackward returned an incorrect number of gradients (expected 2, got "
        "1). Return one per argument, None where there is none."
    )


@pytest.mark.parametrize(
    ("number", "place"),
    [(0, "x"), (1, "ys[0]"), (2, "ys[1]"), (3, "z")],
)
def test_errors_name_the_arguments_of_operators_with_lists(number, place):
    name = f"test_function_results::listed{number}"
    op = tp.library.custom_op(
        name, lambda x, ys, z: x + ys[0] + ys[1] + z, schema="(Tensor x, Tensor[] ys, Tensor z) "
        "-> Tensor",
    )  # fmt: skip

    def backward(ctx, grad):
        grads = [grad] * 4
        grads[number] = tp.ones(5)
        return grads[0], grads[1:3], grads[3]

    op.register_autograd(backward)
    x, a, b, z = (leaf(1.0, 2.0) for _ in range(4))
    with pytest.raises(RuntimeError) as caught:
        op(x, [a, b], z).sum().backward()
    assert str(caught.value).startswith(
        f"[{name}] argument '{place}': Function Listed{number}Backward returned an invalid "
        f"gradient at index {number} - got [5]"
    )


def test_hooks_that_spoil_the_gradient_of_an_operator_are_told_its_argument():
    a, b = leaf(1.0, 2.0), leaf(3.0, 4.0)
    y = tp.cat([a, b])
    y.grad_fn.register_hook(lambda gi, go: (gi[0], tp.ones(5)))
    with pytest.raises(RuntimeError, match=r"^\[cat\] argument 'tensors\[1\]': Function CatB"):
        y.sum().backward()
