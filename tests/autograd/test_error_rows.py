"""Every situation that autograd refuses: the kind of error, and the words that name the reason."""
# ruff: noqa: PLW0108 - each situation arises when its row is run

from __future__ import annotations

import pytest

import tensorplay as tp
from tensorplay import autograd, func
from tensorplay.autograd import Function, forward_ad, functional, graph


def leaf(*values):
    return tp.tensor(values or (1.0, 2.0, 3.0), dtype=tp.float64, requires_grad=True)


def double(*values):
    return tp.tensor(values, dtype=tp.float64)


def function(backward=None, forward=lambda ctx, *xs: xs[0] * 2):
    members = {"forward": staticmethod(forward)}
    if backward is not None:
        members["backward"] = staticmethod(backward)
    return type("Op", (Function,), members)


def run(op, *inputs):
    op.apply(*(inputs or (leaf(),))).sum().backward()


# --- entry points ---------------------------------------------------------------------------------


def second_pass():
    y = leaf().exp().sum()
    y.backward()
    y.backward()


def changed_after_saving():
    x = leaf()
    y = (x * 2).exp()
    z = (y * y).sum()
    y.add_(1)
    z.backward()


def write_to_a_view_of_a_leaf():
    leaf()[:2].add_(1)


def flag_of_a_non_leaf():
    y = leaf() * 2
    y.requires_grad = False


ENTRY = [
    ("no scalar", lambda: (leaf() * 2).backward(), RuntimeError,
     "grad can be implicitly created only for scalar outputs"),
    ("no scalar, grad", lambda: autograd.grad(leaf() * 2, leaf()), RuntimeError,
     "grad can be implicitly created only for scalar outputs"),
    ("no grad", lambda: tp.ones(1).backward(), RuntimeError,
     "does not require grad and does not have a grad_fn"),
    ("second pass", second_pass, RuntimeError,
     "Trying to backward through the graph a second time.*Specify retain_graph=True"),
    ("shape", lambda: (leaf() * 2).backward(double(1.0)), RuntimeError, "Mismatch in shape"),
    ("type", lambda: (leaf() * 2).backward(1.0), TypeError, "Tensors or None"),
    ("unused", lambda: autograd.grad((leaf() * 2).sum(), leaf()), RuntimeError,
     "not have been used in the graph.*allow_unused"),
    ("materialize", lambda: autograd.grad((x := leaf()).sum(), x, materialize_grads=True,
                                          allow_unused=False), ValueError, "allow_unused"),
    ("no inputs", lambda: leaf().sum().backward(inputs=[]), RuntimeError, "cannot be empty"),
    ("no inputs, grad", lambda: autograd.grad(leaf().sum(), []), RuntimeError, "cannot be empty"),
    ("batch", lambda: autograd.grad((x := leaf()) * 2, x, double(1.0, 1.0, 1.0),
                                    is_grads_batched=True), RuntimeError, "is_grads_batched"),
    ("leaf", lambda: leaf().add_(1), RuntimeError,
     "leaf Variable that requires grad is being used in an in-place operation"),
    ("view of a leaf", write_to_a_view_of_a_leaf, RuntimeError,
     "a view of a leaf Variable that requires grad is being used in an in-place operation"),
    ("saved", changed_after_saving, RuntimeError,
     "modified by an inplace operation.*is at version 1; expected version 0 instead.*anomaly"),
    ("flag", flag_of_a_non_leaf, RuntimeError,
     "you can only change requires_grad flags of leaf variables"),
    ("integers", lambda: tp.ones(2, dtype=tp.int64).requires_grad_(), RuntimeError,
     "floating point"),
    ("bools", lambda: tp.ones(2, dtype=tp.bool).requires_grad_(), RuntimeError, "floating point"),
]  # fmt: skip


# --- functions of one's own -----------------------------------------------------------------------


def save_a_number():
    def forward(ctx, x):
        ctx.save_for_backward(3)
        return x * 2

    run(function(lambda ctx, g: g, forward))


def dirty(returns, *inputs):
    def forward(ctx, x):
        ctx.mark_dirty(x)
        x.add_(1)
        return returns(x)

    run(function(lambda ctx, g: g, forward), *inputs)


def once_differentiable_twice():
    @autograd.function.once_differentiable
    def backward(ctx, g):
        return g * 2

    x = leaf()
    (g,) = autograd.grad(function(backward).apply(x).sum(), x, create_graph=True)
    autograd.grad(g.sum(), x)


def without_jvp():
    with forward_ad.dual_level():
        function(lambda ctx, g: g).apply(forward_ad.make_dual(leaf(), double(1.0, 1.0, 1.0)))


def raises_its_own(ctx, g):
    raise ZeroDivisionError


FUNCTIONS = [
    ("save a number", save_a_number, TypeError,
     "save_for_backward can only save variables, but argument 0 is of type int"),
    ("dirty leaf", lambda: dirty(lambda x: x), RuntimeError, "leaf Variable"),
    ("dirty, not returned", lambda: dirty(lambda x: x * 2, leaf() * 1), RuntimeError,
     "must all be outputs"),
    ("count", lambda: run(function(lambda ctx, g: g, lambda ctx, x, y: x * y), leaf(), leaf()),
     RuntimeError,
     r"function OpBackward returned an incorrect number of gradients \(expected 2, got 1\)"),
    ("shape", lambda: run(function(lambda ctx, g: tp.ones(4))), RuntimeError,
     r"invalid gradient at index 0 - got \[4\] but expected shape compatible with \[3\]"),
    ("no tensor", lambda: run(function(lambda ctx, g: 1.0)), TypeError,
     r"expected Variable or None \(got float\)"),
    ("no tensor, as the other kind", lambda: run(function(lambda ctx, g: 1.0)), RuntimeError,
     r"expected Variable or None \(got float\)"),
    ("no forward", lambda: type("Op", (Function,), {}).apply(leaf()), NotImplementedError,
     "must implement the forward function"),
    ("no backward", lambda: run(function()), NotImplementedError,
     "must implement either the backward or vjp method"),
    ("instance", lambda: function()(), TypeError, "apply"),
    ("own exception", lambda: run(function(raises_its_own)), ZeroDivisionError, ""),
    ("no jvp", without_jvp, NotImplementedError, "jvp"),
    ("no vmap", lambda: func.vmap(function(lambda ctx, g: g).apply)(leaf()), RuntimeError,
     "generate_vmap_rule"),
    ("once", once_differentiable_twice, RuntimeError,
     "does not require grad|marked with @once_differentiable"),
]  # fmt: skip


# --- hooks ----------------------------------------------------------------------------------------


def hook_that_returns(value):
    y = leaf() * 2
    y.register_hook(lambda g: value)
    y.sum().backward()


def unpack_a_number():
    with graph.saved_tensors_hooks(lambda t: t, lambda t: 3):
        y = leaf().exp() * leaf()
    y.sum().backward()


def pack_that_writes():
    with graph.saved_tensors_hooks(lambda t: t.add_(1), lambda t: t):
        (leaf() * 1).exp()


def disabled_hooks():
    with (
        graph.disable_saved_tensors_hooks("mine"),
        graph.saved_tensors_hooks(lambda t: t, lambda t: t),
    ):
        pass


HOOKS = [
    ("constant", lambda: tp.ones(1).register_hook(print), RuntimeError, "doesn't require gradient"),
    ("size", lambda: hook_that_returns(double(1.0)), RuntimeError, "changed the size"),
    ("type", lambda: hook_that_returns(1.0), TypeError, "Tensor or None"),
    ("non-leaf", lambda: (leaf() * 2).register_post_accumulate_grad_hook(print), RuntimeError,
     "non-leaf"),
    ("retain", lambda: tp.ones(1).retain_grad(), RuntimeError, "requires_grad=False"),
    ("unpack", unpack_a_number, TypeError, "Tensor"),
    ("pack", pack_that_writes, RuntimeError, "in.?place|modif|chang|wrote"),
    ("disabled", disabled_hooks, RuntimeError, "mine"),
]  # fmt: skip


# --- inference mode -------------------------------------------------------------------------------


def inferred():
    with tp.inference_mode():
        return tp.ones(2)


INFERENCE = [
    ("version", lambda: inferred()._version, RuntimeError, "do not track version counter"),
    ("save", lambda: inferred() * tp.ones(2, requires_grad=True), RuntimeError,
     "cannot be saved for backward"),
    ("write", lambda: inferred().add_(1), RuntimeError, "inference"),
    ("flag", lambda: inferred().requires_grad_(), RuntimeError, "inference"),
]  # fmt: skip


# --- functional and forward mode ------------------------------------------------------------------


def dual(tangent):
    with forward_ad.dual_level():
        return forward_ad.make_dual(leaf(), tangent)


def dual_twice():
    with forward_ad.dual_level():
        x = forward_ad.make_dual(leaf(), double(1.0, 1.0, 1.0))
        forward_ad.make_dual(x, double(1.0, 1.0, 1.0))


def nested_levels():
    with forward_ad.dual_level(), forward_ad.dual_level():
        pass


def out_with_a_tangent():
    with forward_ad.dual_level():
        x = forward_ad.make_dual(double(1.0), double(1.0))
        tp.add(x, 1, out=double(0.0))


FORWARD = [
    ("hessian", lambda: functional.hessian(lambda t: t * 2, leaf()), RuntimeError,
     "should contain a single element"),
    ("no v", lambda: functional.vjp(lambda t: t * 2, leaf()), RuntimeError, "can only be None if"),
    ("size of v", lambda: functional.vjp(lambda t: t * 2, leaf(), double(1.0)), RuntimeError,
     "v has invalid size"),
    ("strict", lambda: functional.jacobian(lambda t: double(1.0), leaf(), strict=True),
     RuntimeError, "does not require gradients"),
    ("strict, independent",
     lambda: functional.jacobian(lambda t, u: t * 2, (leaf(), leaf()), strict=True),
     RuntimeError, "independent"),
    ("input", lambda: functional.vjp(lambda t: t, 3.0), TypeError, "Tensor"),
    ("output", lambda: functional.vjp(lambda t: 3.0, leaf()), TypeError, "Tensor"),
    ("no level", lambda: forward_ad.make_dual(leaf(), leaf()), RuntimeError, "no level exists"),
    ("size of a tangent", lambda: dual(double(1.0)), RuntimeError, "different size"),
    ("twice", dual_twice, RuntimeError, "already"),
    ("nested", nested_levels, RuntimeError, "nested"),
    ("not open", forward_ad.exit_dual_level, RuntimeError, "cannot exit"),
    ("out and grad", lambda: tp.add(leaf(), 1, out=double(0.0, 0.0, 0.0)), RuntimeError, "out="),
    ("out and tangent", out_with_a_tangent, NotImplementedError,
     "because it is an out= function"),
]  # fmt: skip

FUNC = [
    ("sizes", lambda: func.vmap(lambda a, b: a)(tp.ones(2), tp.ones(3)), ValueError, "same size"),
    ("random", lambda: func.vmap(lambda a: tp.rand(2))(tp.ones(2)), RuntimeError, "randomness"),
    ("grad", lambda: func.grad(lambda t: t)(leaf()), RuntimeError, "scalar Tensor"),
    ("jvp", lambda: func.jvp(lambda t: t, leaf(), leaf()), RuntimeError, "tuple"),
    ("vjp", lambda: func.vjp(lambda t: (t, t), leaf())[1](leaf()), RuntimeError, "structure"),
]  # fmt: skip

ROWS = {
    f"{part}: {name}": row
    for part, rows in (
        ("entry", ENTRY), ("function", FUNCTIONS), ("hook", HOOKS), ("inference", INFERENCE),
        ("forward", FORWARD), ("func", FUNC),
    )
    for name, *row in rows
}  # fmt: skip


@pytest.mark.parametrize("name", ROWS)
def test_refused(name):
    situation, kind, words = ROWS[name]
    with pytest.raises(kind, match=f"(?s){words}"):
        situation()
    # Nothing is left behind: no mode, no level.
    assert tp.is_grad_enabled()
    assert forward_ad.current_dual_level() == -1
    x = leaf()
    (g,) = autograd.grad((x * x).sum(), x)
    assert g.tolist() == [2.0, 4.0, 6.0]


def test_warnings():
    x = leaf()
    with pytest.warns(FutureWarning, match="grad_variables"):
        autograd.backward([x.sum()], grad_variables=[tp.tensor(1.0, dtype=tp.float64)])
    assert x.grad.tolist() == [1.0] * 3
    with pytest.warns(FutureWarning, match="only_inputs"):
        assert autograd.grad(x.sum(), x, only_inputs=False)[0].tolist() == [1.0] * 3

    def forward(ctx, t):
        other = t * 1
        ctx.mark_dirty(other)
        return other

    with pytest.warns(UserWarning, match="not an input"):
        function(lambda ctx, g: g, forward).apply(x * 1)
