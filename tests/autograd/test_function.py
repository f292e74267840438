"""The whole contract of `Function` and its context."""

from __future__ import annotations

import gc
import weakref

import pytest

import tensorplay as tp
from tensorplay import func
from tensorplay.autograd import (
    Function,
    functional,
    grad,
    gradcheck,
    gradgradcheck,
)


def leaf(*values, dtype=tp.float64):
    return tp.tensor(list(values), dtype=dtype, requires_grad=True)


class Exp(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.exp()

    @staticmethod
    def backward(ctx, grad_out):
        (x,) = ctx.saved_tensors
        return grad_out * x.exp()


class Mul(Function):
    @staticmethod
    def forward(a, b):
        return a * b

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, grad_out):
        a, b = ctx.saved_tensors
        return grad_out * b, grad_out * a


# --- the two styles -------------------------------------------------------------------------------


def test_combined_style():
    x = tp.randn(5, dtype=tp.float64, requires_grad=True)
    assert gradcheck(Exp.apply, (x,))
    assert gradgradcheck(Exp.apply, (x,))


def test_separate_style():
    a, b = (tp.randn(5, dtype=tp.float64, requires_grad=True) for _ in range(2))
    assert Mul.forward(a, b).tolist() == (a * b).tolist()
    assert gradcheck(Mul.apply, (a, b))
    assert gradgradcheck(Mul.apply, (a, b))


def test_forward_does_not_record():
    seen = []

    class Look(Function):
        @staticmethod
        def forward(ctx, x):
            seen.append((tp.is_grad_enabled(), (x * 2).requires_grad))
            return x * 2

        @staticmethod
        def backward(ctx, g):
            seen.append(tp.is_grad_enabled())
            return g * 2

    x = leaf(1.0)
    y = Look.apply(x).sum()
    grad(y, x, retain_graph=True)
    grad(y, x, create_graph=True)
    assert seen == [(False, False), False, True]


def test_keywords_and_defaults_are_folded_into_inputs():
    class Scale(Function):
        @staticmethod
        def forward(x, factor=2.0, *, shift=0.0):
            return x * factor + shift

        @staticmethod
        def setup_context(ctx, inputs, output):
            ctx.inputs = inputs[1:]
            ctx.factor = inputs[1]

        @staticmethod
        def backward(ctx, g):
            return g * ctx.factor, None, None

    x = leaf(1.0)
    for call, expected in (
        (lambda: Scale.apply(x), (2.0, 0.0)),
        (lambda: Scale.apply(x, shift=1.0), (2.0, 1.0)),
        (lambda: Scale.apply(x=x, factor=5.0), (5.0, 0.0)),
    ):
        y = call()
        assert y.grad_fn.inputs == expected
        assert grad(y.sum(), x)[0].tolist() == [expected[0]]
    with pytest.raises(TypeError, match="unexpected keyword"):
        Scale.apply(x, other=1)


def test_combined_style_takes_keywords():
    class Scale(Function):
        @staticmethod
        def forward(ctx, x, factor):
            ctx.factor = factor
            return x * factor

        @staticmethod
        def backward(ctx, g):
            return g * ctx.factor, None

    x = leaf(1.0)
    assert grad(Scale.apply(x, factor=3.0).sum(), x)[0].tolist() == [3.0]


def test_defaults_need_no_gradient_of_their_own():
    class Scale(Function):
        @staticmethod
        def forward(x, factor=2.0):
            return x * factor

        @staticmethod
        def setup_context(ctx, inputs, output):
            ctx.factor = inputs[1]

        @staticmethod
        def backward(ctx, g):
            return g * ctx.factor

    x = leaf(1.0)
    assert grad(Scale.apply(x).sum(), x)[0].tolist() == [2.0]
    with pytest.raises(RuntimeError, match=r"expected 2, got 1"):
        grad(Scale.apply(x, 3.0).sum(), x)


def test_needs_input_grad_is_known_in_forward():
    seen = []

    class Needs(Function):
        @staticmethod
        def forward(ctx, x, n, y):
            seen.append(ctx.needs_input_grad)
            return x * y * n

        @staticmethod
        def backward(ctx, g):
            seen.append(ctx.needs_input_grad)
            return g, None, None

    Needs.apply(leaf(1.0), 3, tp.ones(1, dtype=tp.float64)).sum().backward()
    assert seen == [(True, False, False)] * 2


# --- what is saved --------------------------------------------------------------------------------


def test_only_tensors_can_be_saved():
    class Bad(Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(3)
            return x

    with pytest.raises(
        TypeError, match="save_for_backward can only save variables, but argument 0 is of type int"
    ):
        Bad.apply(leaf(1.0))


def test_last_save_counts_and_none_is_kept():
    class Save(Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x, x)
            ctx.save_for_backward(None, x)
            return x * 3

        @staticmethod
        def backward(ctx, g):
            nothing, x = ctx.saved_tensors
            assert nothing is None
            return g * x

    x = leaf(2.0)
    assert grad(Save.apply(x).sum(), x)[0].tolist() == [2.0]


def test_changed_saved_tensors_raise():
    x = leaf(1.0) * 1
    y = Exp.apply(x).sum()
    x.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.backward()


def test_freed_context_raises_even_where_the_user_kept_it():
    kept = []

    class Keep(Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            kept.append(ctx)
            return x * 2

        @staticmethod
        def backward(ctx, g):
            return g * 2

    y = Keep.apply(leaf(1.0)).sum()
    assert kept[0].saved_tensors[0].tolist() == [1.0]
    y.backward()
    with pytest.raises(RuntimeError, match="second time"):
        _ = kept[0].saved_tensors
    with pytest.raises(RuntimeError, match="second time"):
        _ = y.grad_fn.next_functions[0][0].saved_tensors


def test_context_outlives_its_graph():
    kept = []

    class Keep(Function):
        @staticmethod
        def forward(ctx, x):
            out = x.exp()
            ctx.save_for_backward(x, out)
            kept.append(ctx)
            return out

        @staticmethod
        def backward(ctx, g):
            return g

    Keep.apply(leaf(0.0))
    assert [t.tolist() for t in kept[0].saved_tensors] == [[0.0], [1.0]]


def test_saved_output_makes_no_cycle_and_can_be_differentiated():
    class SavesOutput(Function):
        @staticmethod
        def forward(ctx, x):
            out = x.exp()
            ctx.save_for_backward(out)
            return out

        @staticmethod
        def backward(ctx, g):
            return g * ctx.saved_tensors[0]

    x = leaf(0.5, 1.0)
    assert gradcheck(SavesOutput.apply, (x,))
    assert gradgradcheck(SavesOutput.apply, (x,))
    gc.collect()
    gc.disable()
    try:
        y = SavesOutput.apply(x)
        node = weakref.ref(y.grad_fn)
        del y
        assert node() is None
    finally:
        gc.enable()


def test_value_computed_in_forward_raises_at_the_second_derivative():
    """Case B012: its share of the second derivative would be lost."""

    class Square(Function):
        @staticmethod
        def forward(ctx, x):
            ctx.mid = 2 * x
            return x * x

        @staticmethod
        def backward(ctx, g):
            return g * ctx.mid

    x = tp.rand(3, dtype=tp.float64, requires_grad=True)
    assert gradcheck(Square.apply, (x,))
    with pytest.raises(RuntimeError, match=r"ctx\.mid was computed in forward"):
        gradgradcheck(Square.apply, (x,))
    # A derivative that does not pass through it is right, and is given.
    seed = tp.ones(3, dtype=tp.float64, requires_grad=True)
    (first,) = grad(Square.apply(x), x, seed, create_graph=True)
    assert grad(first.sum(), seed)[0].tolist() == (2 * x).tolist()


class Attached(Function):
    """Keeps what `forward` computed; all of its first derivatives are right."""

    generate_vmap_rule = True

    @staticmethod
    def forward(ctx, x):
        ctx.mid = 2 * x
        ctx.save_for_forward(x)
        return x * x

    @staticmethod
    def backward(ctx, g):
        return g * ctx.mid

    @staticmethod
    def jvp(ctx, t):
        return 2 * t * ctx.saved_tensors[0]


def attached(x):
    return Attached.apply(x).sum()


ONES = tp.ones(2, dtype=tp.float64)


@pytest.mark.parametrize(
    "second",
    [
        func.hessian(attached),
        func.jacrev(func.grad(attached)),
        lambda x: func.jvp(func.grad(attached), (x,), (ONES,)),
        lambda x: func.jvp(lambda t: func.jvp(attached, (t,), (ONES,))[1], (x,), (ONES,)),
        func.vmap(func.grad(func.grad(Attached.apply))),
        lambda x: functional.hessian(attached, x, outer_jacobian_strategy="forward-mode"),
        lambda x: functional.hessian(attached, x),
        lambda x: gradgradcheck(
            Attached.apply, (x.requires_grad_(),), check_fwd_over_rev=True,
            check_rev_over_rev=False, check_undefined_grad=False,
        ),
    ],
)  # fmt: skip
def test_no_mode_misses_the_share_of_a_computed_value(second):
    """Case B012: neither a history nor a tangent."""
    x = tp.tensor([1.0, 2.0], dtype=tp.float64)
    assert func.grad(attached)(x).tolist() == [2.0, 4.0]
    assert func.jvp(attached, (x,), (ONES,))[1].item() == 6.0
    assert func.vmap(func.grad(Attached.apply))(x).tolist() == [2.0, 4.0]
    with pytest.raises(RuntimeError, match=r"ctx\.mid was computed in forward"):
        second(x)


def test_computed_values_are_found_in_containers_and_among_saved_tensors():
    class Square(Function):
        @staticmethod
        def forward(ctx, x, where):
            mid = 2 * x
            if where == "saved":
                ctx.save_for_backward(mid)
            else:
                ctx.parts = {"list": [mid, "text"]}
            ctx.where = where
            return x * x

        @staticmethod
        def backward(ctx, g):
            mid = ctx.saved_tensors[0] if ctx.where == "saved" else ctx.parts["list"][0]
            return g * mid, None

    x = leaf(1.0)
    for where, name in (("saved", r"saved_tensors\[0\]"), ("parts", r"ctx\.parts\['list'\]\[0\]")):
        (first,) = grad(Square.apply(x, where).sum(), x, create_graph=True)
        with pytest.raises(RuntimeError, match=name):
            grad(first.sum(), x)


def test_masks_and_constant_inputs_may_be_attributes():
    class Masked(Function):
        @staticmethod
        def forward(ctx, x, w):
            ctx.mask = x > 0
            ctx.w = w
            return tp.where(ctx.mask, x * x * w, tp.zeros_like(x))

        @staticmethod
        def backward(ctx, g):
            return tp.where(ctx.mask, g * ctx.w, tp.zeros_like(g)), None

    x = leaf(1.0, -1.0)
    seed = tp.ones(2, dtype=tp.float64, requires_grad=True)
    (first,) = grad(Masked.apply(x, tp.ones(2, dtype=tp.float64)), x, seed, create_graph=True)
    assert grad(first.sum(), seed)[0].tolist() == [1.0, 0.0]


def test_unknown_attribute_of_the_context():
    class Bad(Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, g):
            return g * ctx.factor

    with pytest.raises(AttributeError, match="factor"):
        Bad.apply(leaf(1.0)).sum().backward()


# --- outputs --------------------------------------------------------------------------------------


def test_non_differentiable_outputs():
    class Sort(Function):
        @staticmethod
        def forward(ctx, x):
            twice, flag = x * 2, x * 0
            ctx.mark_non_differentiable(flag)
            return twice, flag, (x > 0), "text"

        @staticmethod
        def backward(ctx, g, g_flag, g_mask, g_text):
            assert g_flag.tolist() == [0.0, 0.0]
            assert g_mask.dtype is tp.bool
            assert g_text is None
            return g * 2

    x = leaf(1.0, -1.0)
    twice, flag, mask, text = Sort.apply(x)
    assert (twice.requires_grad, flag.requires_grad, mask.requires_grad) == (True, False, False)
    assert text == "text"
    assert grad(twice.sum(), x)[0].tolist() == [2.0, 2.0]


@pytest.mark.parametrize("materialize", [True, False])
def test_missing_gradients_of_outputs(materialize):
    seen = []

    class Two(Function):
        @staticmethod
        def forward(ctx, x):
            ctx.set_materialize_grads(materialize)
            return x * 2, x * 3

        @staticmethod
        def backward(ctx, a, b):
            seen.append(None if b is None else b.tolist())
            return a * 2

    Two.apply(leaf(1.0))[0].sum().backward()
    assert seen == [[0.0] if materialize else None]


def test_returned_input_becomes_a_tensor_of_its_own():
    class Identity(Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x

        @staticmethod
        def backward(ctx, g):
            return g * 5 * ctx.saved_tensors[0]

    x = leaf(1.0)
    y = Identity.apply(x)
    assert y is not x
    assert x.is_leaf
    assert y.grad_fn.name() == "IdentityBackward"
    assert y.data_ptr() == x.data_ptr()
    assert grad(y.sum(), x)[0].tolist() == [5.0]
    with pytest.raises(RuntimeError, match="hides the gradient formula"):
        y.add_(1)
    assert x.tolist() == [1.0]
    free = Identity.apply(x.detach())
    free.add_(leaf(1.0))
    assert free.requires_grad


def test_view_of_an_input_keeps_the_formula():
    class Tail(Function):
        @staticmethod
        def forward(ctx, x):
            return x[1:]

        @staticmethod
        def backward(ctx, g):
            return tp.cat([tp.zeros(1, dtype=g.dtype), g * 7])

    x = leaf(1.0, 2.0)
    assert grad(Tail.apply(x).sum(), x)[0].tolist() == [0.0, 7.0]
    base = x * 1
    y = Tail.apply(base)
    base.mul_(2)
    with pytest.raises(RuntimeError, match="hides the gradient formula"):
        y.sum().backward()


def test_view_of_an_input_that_was_changed_refuses_every_use():
    class Head(Function):
        @staticmethod
        def forward(ctx, x):
            return x[:2]

        @staticmethod
        def backward(ctx, g):
            return tp.cat([g * 100, tp.zeros(2, dtype=tp.float64)])

    leaf = tp.ones(4, dtype=tp.float64, requires_grad=True)
    x = leaf * 1
    out = Head.apply(x)
    x.mul_(2)
    for _ in range(3):
        with pytest.raises(RuntimeError, match="is a view of its input"):
            out.sum()


def test_view_of_a_temporary_is_an_ordinary_output():
    class Part(Function):
        @staticmethod
        def forward(ctx, x):
            return (x * 2)[:1]

        @staticmethod
        def backward(ctx, g):
            return tp.cat([g * 2, tp.zeros(1, dtype=g.dtype)])

    x = leaf(1.0, 2.0)
    y = Part.apply(x)
    y.mul_(10)
    assert grad(y.sum(), x)[0].tolist() == [20.0, 0.0]


def test_one_tensor_returned_twice():
    class Twice(Function):
        @staticmethod
        def forward(ctx, x):
            y = x * 2
            return y, y

        @staticmethod
        def backward(ctx, a, b):
            return a * 2 + b * 20

    x = leaf(1.0)
    a, b = Twice.apply(x)
    assert grad(a.sum(), x, retain_graph=True)[0].tolist() == [2.0]
    assert grad(b.sum(), x)[0].tolist() == [20.0]


# --- in place -------------------------------------------------------------------------------------


class Double(Function):
    @staticmethod
    def forward(ctx, factor, x):
        x.mul_(2)
        ctx.mark_dirty(x)
        ctx.save_for_backward(x)
        return x

    @staticmethod
    def backward(ctx, g):
        assert ctx.saved_tensors[0] is not None
        return None, g * 2


def test_dirty_input_is_returned_with_a_new_history():
    x = leaf(1.0, 2.0)
    y = x * 3
    z = Double.apply(None, y)
    assert z is y
    assert y._version > 0
    assert y.grad_fn.name() == "DoubleBackward"
    assert grad(y.sum(), x)[0].tolist() == [6.0, 6.0]


def test_dirty_view_updates_the_history_of_its_base():
    x = leaf(1.0, 2.0)
    y = x * 3
    Double.apply(None, y[1:])
    assert grad((y * y).sum(), x)[0].tolist() == [18.0, 2 * 12.0 * 6]


@pytest.mark.parametrize("part", [slice(None), slice(1, None)])
def test_dirty_input_that_is_saved_as_output(part):
    class InPlace(Function):
        @staticmethod
        def forward(ctx, x):
            x.exp_()
            ctx.mark_dirty(x)
            ctx.save_for_backward(x)
            return x

        @staticmethod
        def backward(ctx, g):
            return g * ctx.saved_tensors[0]

    def function(x):
        y = x * 2
        InPlace.apply(y[part])
        return y * x

    x = tp.rand(3, dtype=tp.float64, requires_grad=True)
    assert gradcheck(function, (x,))
    assert gradgradcheck(function, (x,))
    out = function(x).sum()
    (first,) = grad(out, x, create_graph=True)
    assert first.requires_grad
    first.sum().backward()


def test_errors_of_dirty_inputs():
    class Forgets(Function):
        @staticmethod
        def forward(ctx, x):
            ctx.mark_dirty(x)
            return x * 2

    class Strange(Function):
        @staticmethod
        def forward(ctx, x):
            y = x * 2
            ctx.mark_dirty(y)
            return y

    class Many(Function):
        @staticmethod
        def forward(ctx, x):
            ctx.mark_dirty(x)
            return x, x * 2

    with pytest.raises(RuntimeError, match="leaf Variable"):
        Double.apply(None, leaf(1.0))
    with pytest.raises(RuntimeError, match="must all be outputs"):
        Forgets.apply(leaf(1.0) * 1)
    with pytest.warns(UserWarning, match="not an input"):
        Strange.apply(leaf(1.0))
    with pytest.raises(RuntimeError, match="more than one tensor"):
        Many.apply((leaf(1.0, 2.0) * 1)[1:])
