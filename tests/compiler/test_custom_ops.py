"""Operators of users in compiled functions: one opaque step each."""

from __future__ import annotations

import pytest

import tensorplay as tp
from tests.compiler.calls import close

RAN: list[str] = []


@tp.library.custom_op("compiled::cube", mutates_args=())
def cube(x: tp.Tensor) -> tp.Tensor:
    RAN.append(type(x).__name__)
    return tp.from_numpy(x.numpy() ** 3)


@cube.register_fake
def _(x):
    return tp.empty_like(x)


def _setup(ctx, inputs, output):
    ctx.save_for_backward(inputs[0])


def _backward(ctx, grad):
    (x,) = ctx.saved_tensors
    return grad * 3 * x * x


cube.register_autograd(_backward, setup_context=_setup)


@tp.library.custom_op("compiled::add_one", mutates_args=("x",))
def add_one(x: tp.Tensor) -> None:
    x.numpy()[...] += 1


@tp.library.custom_op("compiled::no_formula", mutates_args=())
def no_formula(x: tp.Tensor) -> tp.Tensor:
    return tp.from_numpy(x.numpy() + 1)


@no_formula.register_fake
def _(x):
    return tp.empty_like(x)


@tp.library.custom_op("compiled::noted", mutates_args=())
def noted(x: tp.Tensor) -> tp.Tensor:
    RAN.append("noted")
    return tp.from_numpy(x.numpy() * 1)


@noted.register_fake
def _(x):
    return tp.empty_like(x)


noted.register_effect(tp.library.EffectType.ORDERED)


def test_it_is_one_node_whose_body_does_not_run_in_the_capture(backend) -> None:
    graphs = []

    def keeping(gm, example_inputs, **kwargs):
        graphs.append(gm)
        return tp.compiler.lookup_backend(backend)(gm, example_inputs, **kwargs)

    f = tp.compile(lambda x: cube(x * 2) + 1, backend=keeping, fullgraph=True)
    RAN.clear()
    x, y = (tp.tensor([1.0, 2.0], requires_grad=True) for _ in range(2))
    out = f(x)
    assert RAN == ["Tensor"]
    (node,) = graphs[0].graph.find_nodes(op="call_function", target=cube)
    assert node.target is cube
    assert node.target.name == "compiled::cube"
    assert node.meta["val"].shape == (2,)
    out.sum().backward()
    (cube(y * 2) + 1).sum().backward()
    close(x.grad, y.grad)


def test_what_it_writes_is_written_once_in_each_call(backend) -> None:
    f = tp.compile(lambda x: (add_one(x), x * 2)[1], backend=backend, fullgraph=True)
    x = tp.zeros(2)
    assert f(x).tolist() == [2, 2]
    assert f(x).tolist() == [4, 4]
    assert x.tolist() == [2, 2]

    def inside(x):
        y = x * 1
        z = y + 1
        add_one(y)
        return y, z, y + z

    g = tp.compile(inside, backend=backend, fullgraph=True)
    close(g(tp.ones(2)), inside(tp.ones(2)))


def test_effects_happen_in_each_call_although_nobody_reads_the_result(backend) -> None:
    def function(x):
        noted(x)
        noted(x)
        return x * 2

    f = tp.compile(function, backend=backend, fullgraph=True)
    RAN.clear()
    f(tp.ones(1))
    f(tp.ones(1))
    assert RAN == ["noted"] * 4


@tp.library.custom_op("compiled::positive", mutates_args=())
def positive(x: tp.Tensor) -> list[tp.Tensor]:
    if x.min().item() <= 0:
        raise ValueError(f"not positive: {x.tolist()}")
    return [x.clone()]


@positive.register_fake
def _(x):
    return [tp.empty_like(x)]


def test_a_check_raises_although_nobody_reads_the_result(backend) -> None:
    def function(x, y):
        y.add_(1)
        positive(x * 2)
        return y.mul_(2)

    f = tp.compile(function, backend=backend, fullgraph=True)
    for value in (1.0, -1.0, 2.0, -2.0):
        outcomes = []
        for g in (function, f):
            y = tp.zeros(1)
            try:
                outcomes.append((g(tp.full((1,), value), y).item(), y.item()))
            except ValueError as error:
                outcomes.append((str(error), y.item()))
        assert outcomes[0] == outcomes[1]
        assert outcomes[0][1] == (2 if value > 0 else 1)
    assert f.report().eager_calls == 0


def test_without_a_formula_backward_raises_as_it_does_eagerly(backend) -> None:
    f = tp.compile(lambda x: no_formula(x) * 2, backend=backend)
    x = tp.ones(1, requires_grad=True)
    out = f(x)
    assert out.item() == 4
    with pytest.raises(NotImplementedError, match="compiled::no_formula"):
        out.sum().backward()
    assert "compiled::no_formula" in f.report().breaks[0]
    with tp.no_grad():
        assert f(x).item() == 4
    assert f.report().programs == 1


def test_opcheck_compiles_the_operator() -> None:
    x = tp.tensor([1.0, 2.0], requires_grad=True)
    for op, args in ((cube, (x,)), (add_one, (tp.zeros(3),)), (noted, (tp.ones(2),))):
        found = tp.library.opcheck(op, args, test_utils="all")
        assert not any(found.values())


def test_opcheck_finds_what_depends_on_more_than_the_arguments() -> None:
    calls = []

    @tp.library.custom_op("compiled::drifts", mutates_args=())
    def drifts(x: tp.Tensor) -> tp.Tensor:
        calls.append(1)
        return tp.from_numpy(x.numpy() + len(calls))

    @drifts.register_fake
    def _(x):
        return tp.empty_like(x)

    tests = ("test_aot_dispatch_static",)
    found = tp.library.opcheck(drifts, (tp.ones(2),), test_utils=tests, raise_exception=False)
    (failure,) = found["test_aot_dispatch_static"]
    assert failure.code == "compiled_differs"
    tp.library.remove("compiled::drifts")


def note(name: str, *, effect: bool = False):
    """Return an operator that notes its name when it runs."""

    @tp.library.custom_op(f"compiled::{name}", mutates_args=())
    def noting(x: tp.Tensor) -> tp.Tensor:
        RAN.append(name)
        return tp.from_numpy(x.numpy() * 2)

    noting.register_fake(tp.empty_like)
    if effect:
        noting.register_effect(tp.library.EffectType.ORDERED)
    return noting


plain, effectful = note("plain"), note("effectful", effect=True)
watched = note("watched")


def _watched_setup(ctx, inputs, output):
    ctx.save_for_backward(inputs[0])


def _watched_backward(ctx, grad):
    (x,) = ctx.saved_tensors
    plain(grad)
    plain(x.exp())
    effectful(x.sin())
    return grad * 2


watched.register_autograd(_watched_backward, setup_context=_watched_setup)


def test_operators_run_backward_although_nobody_reads_their_results(backend) -> None:
    def function(x, y):
        plain(x)
        return watched(x), x * y

    f = tp.compile(function, backend=backend, fullgraph=True)
    x, y = tp.ones(2, requires_grad=True), tp.ones(2)
    for call in (function, f, f):
        RAN.clear()
        one, two = call(x, y)
        assert RAN == ["plain", "watched"]
        (one + two).sum().backward(retain_graph=True)
        assert sorted(RAN[2:]) == ["effectful", "plain", "plain"]
        RAN.clear()
        one.sum().backward()  # the other has no gradient
        assert sorted(RAN) == ["effectful", "plain", "plain"]


def test_second_derivatives_repeat_no_effect(backend) -> None:
    def unread(x):
        effectful(x)
        return x**3

    f = tp.compile(unread, backend=backend, fullgraph=True)
    x = tp.tensor([2.0], requires_grad=True)
    RAN.clear()
    (g,) = tp.autograd.grad(f(x).sum(), [x], create_graph=True)
    assert tp.autograd.grad(g.sum(), [x])[0].tolist() == [12]
    assert RAN == ["effectful"]
    f = tp.compile(lambda x: x**3 * effectful(x.detach()), backend=backend, fullgraph=True)
    out = f(x)
    RAN.clear()
    with pytest.raises(RuntimeError, match="an operator with effects whose result it returns"):
        tp.autograd.grad(out.sum(), [x], create_graph=True)
    assert RAN == []
