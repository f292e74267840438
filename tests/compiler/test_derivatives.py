"""Gradients of compiled functions, and what is kept for them."""

from __future__ import annotations

import importlib
import math

import pytest

import tensorplay as tp
from tensorplay.autograd import engine, forward_ad
from tensorplay.compiler.derivative import CompiledNode
from tests.compiler.calls import close, tensors_of

backward_module = importlib.import_module("tensorplay.autograd.backward")


def gelu_by_hand(x):
    return 0.5 * x * (1 + (0.7978845608 * (x + 0.044715 * x**3)).tanh())


def layer_norm(x):
    centred = x - x.mean(dim=-1, keepdim=True)
    return centred / (centred.square().mean(dim=-1, keepdim=True) + 1e-5).sqrt()


FUNCTIONS = {
    "gelu": gelu_by_hand,
    "layer_norm": layer_norm,
    "softmax": lambda x: x.softmax(dim=-1) * x,
    "matmul": lambda x: (x @ x.t()).relu() @ x,
    "two results": lambda x: (x.exp(), (x * 2).sum(dim=0)),
    "views": lambda x: (x.t() * 2, x[1:].reshape(-1), x.expand(2, *x.shape)),
    "detached": lambda x: (x * x.detach(), (x * 3).detach()),
    "masked": lambda x: x.masked_fill(x > 0, 0) + tp.where(x > 0, x * x, x),
    "gather": lambda x: x[:, [0, 0, 1]].sum(0),
    "cumulative": lambda x: x.cumsum(dim=0).cumprod(dim=1),
    "sorted": lambda x: x.sort(dim=1)[0] * x.amax(dim=0),
    "inside no_grad": lambda x: x * _untracked(x),
    "written": lambda x: _written(x * 1),
}


def _untracked(x):
    with tp.no_grad():
        return x * 2


def _written(x):
    x[:1] = x[1:2] * 3
    x.mul_(2)
    return x


@pytest.mark.parametrize("name", FUNCTIONS)
def test_gradients_equal_those_of_the_function(name, backend) -> None:
    function = FUNCTIONS[name]
    compiled = tp.compile(function, backend=backend, fullgraph=True)
    for shape in ((3, 4), (5, 2), (2, 2)):
        value = tp.randn(*shape, dtype=tp.float64)
        x, y = (value.clone().requires_grad_() for _ in range(2))
        got, want = compiled(x), function(y)
        close(got, want)
        pick = tp.func.trees.flatten
        for outs, at in ((pick(got)[0], x), (pick(want)[0], y)):
            sum((o * o.detach().cos()).sum() for o in outs if o.requires_grad).backward()
            assert at.grad is not None
        close(x.grad, y.grad)


def test_gradcheck_and_gradgradcheck(backend) -> None:
    compiled = tp.compile(gelu_by_hand, backend=backend, fullgraph=True)
    x = tp.randn(2, 3, dtype=tp.float64, requires_grad=True)
    assert tp.autograd.gradcheck(compiled, (x,))
    assert tp.autograd.gradgradcheck(compiled, (x,))


def test_only_inputs_that_need_it_get_a_gradient(backend) -> None:
    compiled = tp.compile(lambda x, y, z: x * y + z, backend=backend)
    x, y, z = (tp.ones(2, requires_grad=flag) for flag in (True, False, True))
    compiled(x, y, z).sum().backward()
    assert y.grad is None
    assert x.grad.tolist() == z.grad.tolist() == [1, 1]
    unused = tp.compile(lambda x, y: x * 2, backend=backend)
    (gx, gy) = tp.autograd.grad(unused(x, z).sum(), [x, z], allow_unused=True)
    assert gx.tolist() == [2, 2]
    assert gy is None


def test_cheap_steps_are_computed_again_and_dear_ones_kept() -> None:
    x = tp.randn(4, requires_grad=True)
    for function, saved in (
        (lambda x: 0.5 * x * (1 - x) * (x + 0.044715 * x**3), [("input", 0)]),
        (gelu_by_hand, [("input", 0), ("value", 0)]),
    ):
        f = tp.compile(function, backend="interpreter")
        out = f(x)
        program = next(iter(f._all_bindings())).program
        assert program.saved == saved
        out.sum().backward()
    g = tp.compile(lambda x, w: (x @ w).tanh(), backend="interpreter")
    g(tp.ones(2, 2, requires_grad=True), tp.ones(2, 2, requires_grad=True))
    saved = next(iter(g._all_bindings())).program.saved
    assert ("root", 0) in saved
    assert not any(kind == "value" for kind, _ in saved)


def test_a_write_to_what_was_saved_raises(backend) -> None:
    f = tp.compile(lambda x: (x * x).sum(), backend=backend)
    x = tp.ones(2, requires_grad=True)
    loss = f(x)
    with tp.no_grad():
        x.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_a_graph_is_freed_after_use(backend) -> None:
    f = tp.compile(lambda x: (x * x).sum(), backend=backend)
    x = tp.ones(2, requires_grad=True)
    loss = f(x)
    loss.backward(retain_graph=True)
    loss.backward()
    assert x.grad.tolist() == [4, 4]
    with pytest.raises(RuntimeError, match="second time"):
        loss.backward()


def test_second_derivatives_follow_the_branch_that_was_taken(backend) -> None:
    f = tp.compile(lambda x: x**3 if x.sum() > 0 else x**2, backend=backend, fullgraph=True)
    for value, want in ((2.0, 12.0), (-2.0, 2.0), (1.0, 6.0)):
        x = tp.tensor([value], requires_grad=True)
        (g,) = tp.autograd.grad(f(x).sum(), x, create_graph=True)
        assert tp.autograd.grad(g.sum(), x)[0].tolist() == [want]


RANDOM = {
    "rand": lambda x: x**3 * tp.rand(2),
    "randn": lambda x: (x * tp.randn(2)).exp() + tp.rand(2),
    "dropout": lambda x: tp.nn.functional.dropout(x, 0.5) ** 3,
}


@pytest.mark.parametrize("name", RANDOM)
def test_second_derivatives_draw_no_other_numbers(name, backend) -> None:
    f = tp.compile(RANDOM[name], backend=backend, fullgraph=True)
    found = []
    for function in (RANDOM[name], f, f):
        tp.manual_seed(3)
        x = tp.tensor([0.5, 1.0], dtype=tp.float64, requires_grad=True)
        y = function(x)
        drawn = [tp.rand(1)]
        (g,) = tp.autograd.grad(y.sum(), [x], create_graph=True)
        drawn.append(tp.rand(1))
        (h,) = tp.autograd.grad((g * g).sum(), [x])
        found.append([y.detach(), g.detach(), h, *drawn, tp.rand(1)])
    close(found[1], found[0])
    close(found[2], found[0])


def test_second_derivatives_repeat_no_write(backend) -> None:
    modules = [tp.nn.BatchNorm1d(2, dtype=tp.float64) for _ in range(2)]
    x = tp.randn(5, 2, dtype=tp.float64, requires_grad=True)
    found = []
    for module, call in zip(
        modules, (modules[0], tp.compile(modules[1], backend=backend)), strict=True
    ):
        (g,) = tp.autograd.grad((call(x) ** 3).sum(), [x], create_graph=True)
        (h,) = tp.autograd.grad((g * g).sum(), [x])
        found.append([g.detach(), h, *module.state_dict().values()])
    close(found[1], found[0], rtol=1e-8, atol=1e-8)


def test_second_derivatives_of_what_cannot_be_repeated_are_refused_with_words() -> None:
    def written(x, n):
        n.add_(x.detach())
        return (x * n) ** 2

    f = tp.compile(written, backend="interpreter", fullgraph=True)
    x, n = tp.ones(2, requires_grad=True), tp.ones(2)
    expected = "second derivative of a compiled function that writes in place into what it reads"
    with pytest.raises(RuntimeError, match=expected):
        tp.autograd.grad(f(x, n).sum(), [x], create_graph=True)
    assert n.tolist() == [2, 2]


def test_results_of_other_functions_pass_gradients_on(backend) -> None:
    f = tp.compile(lambda x: x.exp(), backend=backend)
    x = tp.ones(2, requires_grad=True)
    (f(x * 2) * 3).sum().backward()
    close(x.grad, (x * 2).exp().detach() * 6)
    assert f(x * 2).grad_fn.name() == "LambdaBackward"


def test_hooks_and_retained_gradients(backend) -> None:
    f = tp.compile(lambda x: x * 2, backend=backend)
    x = tp.ones(2, requires_grad=True)
    y = f(x)
    y.retain_grad()
    seen = []
    x.register_hook(lambda g: seen.append(g.tolist()))
    (y * 3).sum().backward()
    assert y.grad.tolist() == [3, 3]
    assert seen == [[6, 6]]


def test_an_update_of_parameters_in_place(backend) -> None:
    def step(p, g, m, v):
        with tp.no_grad():
            m.mul_(0.9).add_(g, alpha=0.1)
            v.mul_(0.99).addcmul_(g, g, value=0.01) if hasattr(v, "addcmul_") else v.mul_(
                0.99
            ).add_(g * g * 0.01)
            p.sub_(m / (v.sqrt() + 1e-8) * 0.1)

    def make():
        tp.manual_seed(0)
        p = tp.randn(5, requires_grad=True)
        return p, tp.randn(5), tp.zeros(5), tp.zeros(5)

    compiled = tp.compile(step, backend=backend, fullgraph=True)
    a, b = make(), make()
    for _ in range(3):
        compiled(*a)
        step(*b)
    for x, y in zip(a, b, strict=True):
        close(x, y, rtol=1e-5, atol=1e-6)


def test_functions_with_formulas_of_the_users(backend) -> None:
    class Scaled(tp.autograd.Function):
        @staticmethod
        def forward(ctx, x, by):
            ctx.save_for_backward(x)
            ctx.by = by
            return x * by

        @staticmethod
        def backward(ctx, g):
            (x,) = ctx.saved_tensors
            return g * ctx.by + x * 0, None

    f = tp.compile(lambda x: Scaled.apply(x, 3.0) * 2, backend=backend, fullgraph=True)
    x = tp.ones(2, requires_grad=True)
    f(x).sum().backward()
    assert x.grad.tolist() == [6, 6]


def test_gradients_taken_inside(backend) -> None:
    def function(x):
        (g,) = tp.autograd.grad((x**3).sum(), [x], create_graph=True)
        return g * 2

    f = tp.compile(function, backend=backend, fullgraph=True)
    x = tp.ones(2, requires_grad=True)
    assert f(x).tolist() == [6, 6]
    f(x).sum().backward()
    assert x.grad.tolist() == [12, 12]


@pytest.mark.parametrize("native", [True, False])
def test_plain_passes_run_on_arrays_and_leave_what_others_leave(native: bool, monkeypatch) -> None:
    if not native:
        monkeypatch.setattr(backward_module, "_plainly", None)
        monkeypatch.setattr(engine, "_native_pass", None)
    called = []
    apply = CompiledNode.apply
    monkeypatch.setattr(
        CompiledNode, "apply", lambda *args: called.append(1) or apply(*args), raising=True
    )
    f = tp.compile(lambda x, w: (x @ w).sin().sum(), backend="interpreter")
    x = tp.ones(2, 3)

    def leaf():
        return tp.full((3, 2), 0.5, requires_grad=True)

    w = leaf()
    loss = f(x, w)
    loss.backward(retain_graph=True)
    loss.backward()
    with pytest.raises(RuntimeError, match="second time"):
        loss.backward()
    expected = leaf()
    (2 * (x @ expected).sin().sum()).backward()
    close(w.grad, expected.grad)
    (taken,) = tp.autograd.grad(f(x, w), [w])
    close(2 * taken, w.grad)
    assert len(called) == 1  # where it says that it was freed
    hooked = leaf()
    loss = f(x, hooked)
    seen = []
    loss.grad_fn.register_hook(lambda grads, _: seen.append(len(grads)))
    loss.backward()
    assert (len(called), seen) == (2, [1])
    close(hooked.grad, taken)
    changed = tp.ones(2, 3)
    loss = f(changed, leaf())
    changed.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()
    with tp.autograd.graph.saved_tensors_hooks(lambda t: t * 1, lambda t: t * 2):
        loss = f(x, leaf())
    loss.backward()
    assert len(called) == 3


def test_second_derivatives_go_through_writes(backend) -> None:
    def function(x):
        v = x * x
        v[0] = x[1] ** 3
        w = v.t().clone()
        w[..., 0].mul_(x[0])
        return w * x.sum()

    for shape in ((3, 3), (3,)):
        found = []
        for f in (function, tp.compile(function, backend=backend, fullgraph=True)):
            x = (tp.arange(float(math.prod(shape))).reshape(shape) + 1).requires_grad_()
            (first,) = tp.autograd.grad(f(x).sum(), x, create_graph=True)
            found += [(first.detach(), *tp.autograd.grad((first * x).sum(), x))]
        close(found[1], found[0])


def test_backward_inside_is_left_to_eager() -> None:
    def function(x):
        (x * 2).sum().backward()
        return x * 1

    f = tp.compile(function, backend="interpreter")
    x = tp.ones(2, requires_grad=True)
    f(x)
    assert x.grad.tolist() == [2, 2]
    assert "backward()" in f.report().breaks[0]


def test_results_without_a_gradient_give_none(backend) -> None:
    def function(a, b, c):
        shared = a.sin()
        return shared * 2, b * 3 + shared.log() * 0, (shared + b.sum()) * c

    for used in ((0,), (1,), (2,), (0, 2), (0, 1)):
        found = []
        for f in (function, tp.compile(function, backend=backend)):
            leaves = [tp.tensor([0.0, 1.0], requires_grad=True) for _ in range(3)]
            out = f(*leaves)
            sum(out[i].sum() for i in used).backward()
            found.append([x.grad for x in leaves])
        close(found[1], found[0])


def test_gradients_of_gradients_of_one_of_several_results(backend) -> None:
    f = tp.compile(lambda a, b: (a**3, b**2), backend=backend)
    a, b = (tp.full((2,), 2.0, requires_grad=True) for _ in range(2))
    first = tp.autograd.grad(f(a, b)[0].sum(), (a, b), create_graph=True, allow_unused=True)
    assert first[1] is None
    first[0].sum().backward()
    assert a.grad.tolist() == [12, 12]


@pytest.mark.parametrize("before", [lambda x: x, lambda x: x * 2, lambda x: x.t()])
def test_formulas_of_functions_that_return_views(before, backend) -> None:
    class Tenfold(tp.autograd.Function):
        @staticmethod
        def forward(_, x):
            return x.view_as(x)

        @staticmethod
        def backward(_, g):
            return g * 10

    for after in (lambda x: x, lambda x: x[0]):
        x = tp.ones(2, 2, requires_grad=True)
        f = tp.compile(lambda x, after=after: after(Tenfold.apply(before(x))), backend=backend)
        f(x).sum().backward()
        y = tp.ones(2, 2, requires_grad=True)
        after(Tenfold.apply(before(y))).sum().backward()
        assert x.grad.tolist() == y.grad.tolist()


def test_backward_hooks_of_modules(backend) -> None:
    module = tp.nn.Linear(2, 2)
    f = tp.compile(module, backend=backend)
    x = tp.ones(1, 2, requires_grad=True)
    (plain,) = tp.autograd.grad(f(x).sum(), x)
    handle = module.register_full_backward_hook(lambda m, given, got: (given[0] * 10,))
    (changed,) = tp.autograd.grad(f(x).sum(), x)
    tp.testing.assert_close(changed, plain * 10)
    handle.remove()
    tp.testing.assert_close(tp.autograd.grad(f(x).sum(), x)[0], plain)


def test_hooks_of_saved_tensors_get_what_the_compiled_function_saves(backend) -> None:
    packed: list[tp.Tensor] = []

    def pack(t):
        packed.append(t)
        return t.detach().numpy().copy()

    f = tp.compile(lambda x: (x * x).exp(), backend=backend, fullgraph=True)
    for _ in range(2):
        packed.clear()
        x = tp.tensor([1.0, 2.0], requires_grad=True)
        with tp.autograd.graph.saved_tensors_hooks(pack, tp.from_numpy):
            y = f(x)
        assert [type(t) for t in packed] == [tp.Tensor] * len(packed)
        assert packed
        y.sum().backward()
        close(x.grad, 2 * x.detach() * (x.detach() ** 2).exp(), rtol=1e-5, atol=1e-5)


FORWARD = {
    "jvp": lambda x: tp.func.jvp(lambda y: (y.exp(), y.t() @ y), (x,), (x * 2,)),
    "jacfwd": tp.func.jacfwd(lambda y: y.softmax(-1) @ y.t()),
    "hessian": tp.func.hessian(lambda y: (y**3).sum()),
    "jacrev of jacfwd": tp.func.jacrev(tp.func.jacfwd(lambda y: (y**3).sum())),
    "vmap": tp.func.vmap(lambda v: tp.func.jvp(tp.sin, (v,), (v * v,))[1]),
}


def written_duals(x):
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(x, x * 2)
        y = (dual.exp()[0] * 3).clone()
        y.mul_(dual[1])
        y[0] = dual[0, 0] * 5
        return tuple(forward_ad.unpack_dual(y))


@pytest.mark.parametrize("name", [*FORWARD, "writes"])
def test_forward_mode_inside(name, backend) -> None:
    function = FORWARD.get(name, written_duals)
    f = tp.compile(function, backend=backend, fullgraph=True)
    for n in range(2):
        x = tp.randn(2, 3) + n
        close(f(x), function(x), rtol=1e-5, atol=1e-5)
        assert [t.stride() for t in tensors_of(f(x))] == [
            t.stride() for t in tensors_of(function(x))
        ]
    assert f.report().programs == 1


def test_forward_mode_that_reaches_outside_is_left_to_eager() -> None:
    def dual(x, t):
        return forward_ad.make_dual(x, t) ** 2

    def written(x, t):
        return x.copy_(forward_ad.make_dual(x * 3, t))

    for function, what in ((dual, "returns a tensor with a tangent"), (written, "x a tangent")):
        f = tp.compile(function, backend="interpreter")
        with forward_ad.dual_level():
            out = f(tp.tensor([3.0]), tp.tensor([1.0]))
            assert out.item() == 9
            assert forward_ad.unpack_dual(out).tangent is not None
        assert what in f.report().breaks[0]
    f = tp.compile(lambda x: (forward_ad.enter_dual_level(), x * 2)[1], backend="interpreter")
    try:
        assert f(tp.ones(1)).item() == 2
        assert "level of forward mode" in f.report().breaks[0]
    finally:
        forward_ad.exit_dual_level()


def closes(x):
    forward_ad.exit_dual_level()
    return x * 2


def leaves_the_block(x):
    forward_ad.dual_level().__exit__(None, None, None)
    return x * 2


def closes_and_goes_on(x):
    try:
        forward_ad.exit_dual_level()
    finally:
        forward_ad.enter_dual_level()
    return x * 2


@pytest.mark.parametrize("function", [closes, leaves_the_block, closes_and_goes_on])
def test_a_capture_leaves_the_level_open_that_it_found(function) -> None:
    found = []
    for f in (function, tp.compile(function, backend="interpreter")):
        written_duals(tp.ones(2, 3))  # closes levels of its own
        tp.compile(written_duals, backend="interpreter", fullgraph=True)(tp.ones(2, 3))
        forward_ad.enter_dual_level()
        outside = forward_ad.make_dual(tp.ones(1), tp.ones(1))
        seen = []
        try:
            seen.append(f(tp.ones(1)).item())
        finally:
            seen.append(forward_ad.unpack_dual(outside).tangent)
            seen.append(forward_ad.current_dual_level())
            if forward_ad.current_dual_level() == 0:
                forward_ad.exit_dual_level()
        found.append(seen)
    assert found[1] == found[0]
    assert "closes a level of forward mode" in f.report().breaks[0]
    g = tp.compile(function, backend="interpreter", fullgraph=True)
    with forward_ad.dual_level():
        outside = forward_ad.make_dual(tp.ones(1), tp.ones(1))
        with pytest.raises(tp.graph.GraphCaptureError, match="closes a level of forward mode"):
            g(tp.ones(1))
        assert forward_ad.unpack_dual(outside).tangent is not None


def test_gradients_that_the_function_turns_on_are_left_to_eager(backend) -> None:
    def function(x, n):
        with tp.enable_grad():
            return x * n

    f = tp.compile(function, backend=backend)
    x = tp.ones(2, requires_grad=True)
    for n in (2, 2, 3):
        with tp.no_grad():
            y = f(x, n)
        assert y.requires_grad
        assert tp.autograd.grad(y.sum(), [x])[0].tolist() == [n, n]
    with tp.no_grad(), pytest.raises(tp.graph.GraphCaptureError, match="where gradients are off"):
        tp.compile(function, backend=backend, fullgraph=True)(x, 2)
