"""Checks that run many gradients or points at once, and those that must not."""

from __future__ import annotations

import numpy as np
import pytest

import tensorplay as tp
from tensorplay.autograd import Function, grad, gradcheck, gradcheck_report, gradgradcheck
from tensorplay.ops import OPERATORS
from tests.ops.sampling import cases, tensors_of


def numbers(*shape, dtype=tp.float64):
    array = np.random.default_rng(1).standard_normal(shape)
    if dtype.is_complex:
        array = array + 1j * np.random.default_rng(2).standard_normal(shape)
    return tp.from_numpy(array).to(dtype).detach().requires_grad_()


def counted(function):
    """Return `function` with a list that grows with every call."""
    calls = []

    def wrapper(*args):
        calls.append(None)
        return function(*args)

    return wrapper, calls


class Square(Function):
    """A formula of a person's own, which counts its calls."""

    backward_calls = 0
    generate_vmap_rule = True

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, g):
        Square.backward_calls += 1
        return 2 * g * ctx.saved_tensors[0]


def test_built_in_operators_run_for_many_points_at_once():
    function, calls = counted(lambda x, w: tp.tanh(x @ w))
    assert gradcheck(function, (numbers(5, 4), numbers(4, 3)))
    assert len(calls) < 10


def test_formulas_of_people_run_for_one_gradient_at_a_time():
    function, calls = counted(Square.apply)
    Square.backward_calls = 0
    assert gradcheck(function, (numbers(6),))
    assert Square.backward_calls >= 12
    assert len(calls) >= 12


@pytest.mark.parametrize("dtype", [tp.float64, tp.complex128])
@pytest.mark.parametrize(
    "function",
    [
        lambda x: (x * x.flip(0)).sum(0),
        lambda x: (x @ x.t(), x.sum()),
        lambda x: tp.stack([x[0], x[1] * 2]).abs(),
        lambda x: x.reshape(-1)[tp.tensor([0, 3, 3])] * x.exp().sum(),
    ],
)
def test_both_ways_agree(dtype, function):
    assert gradcheck(function, (numbers(2, 3, dtype=dtype),))


def test_functions_that_read_values_are_run_point_by_point():
    def function(x):
        return x * x if float(x.detach().sum()) > -1e9 else x

    assert gradcheck(function, (numbers(4),))


def test_functions_that_use_what_they_were_not_given():
    x = numbers(4)
    assert gradcheck(lambda _: x * x, (x,))


def test_functions_that_differentiate_inside():
    x = numbers(3)
    assert gradcheck(lambda t: grad((t**3).sum(), t, create_graph=True)[0], (x,))
    assert gradgradcheck(lambda t: t.exp(), (x,))


def test_functions_that_compute_something_else_without_recording():
    assert gradcheck(lambda t: t * 2 if tp.is_grad_enabled() else t * 3, (numbers(3),))


def test_hooks_on_the_graph_are_heard_for_each_gradient():
    seen = []

    def function(x):
        y = x * 2
        if y.requires_grad:
            y.register_hook(lambda g: seen.append(tuple(g.shape)))
        return y * 3

    assert gradcheck(function, (numbers(3),))
    assert set(seen) == {(3,)}


def test_a_wrong_hook_is_found():
    def function(x):
        y = x * 2
        if y.requires_grad:
            y.register_hook(lambda g: g * 1.5)
        return y

    report = gradcheck_report(function, (numbers(3),))
    assert report.verdict == "wrong"


def test_batched_tangents():
    class Same(Function):
        """Its rule for batches forgets a factor."""

        @staticmethod
        def forward(x):
            return x * 2

        @staticmethod
        def setup_context(ctx, inputs, output):
            ctx.factor = 2

        @staticmethod
        def backward(ctx, g):
            return g * ctx.factor

        @staticmethod
        def jvp(ctx, t):
            return Factor.apply(t)

    class Factor(Function):
        @staticmethod
        def forward(ctx, x):
            ctx.factor = 2
            return x * 2

        @staticmethod
        def backward(ctx, g):
            return g * ctx.factor

        @staticmethod
        def vmap(info, in_dims, x):
            return x * 3, in_dims[0]

    x = numbers(3)
    flags = {"check_forward_ad": True, "check_batched_forward_grad": True}
    for function in (tp.sin, lambda t: (t.exp(), t.sum()), lambda t: tp.softmax(t, 0)):
        assert gradcheck(function, (x,), **flags)
    report = gradcheck(Same.apply, (x,), raise_exception=False, **flags)
    assert not report
    assert report.pairs[0].code == "batched"


@pytest.mark.slow
def test_memory_of_a_large_input_is_bounded():
    import tracemalloc

    x = tp.from_numpy(np.random.default_rng(0).standard_normal(100_000)).requires_grad_()
    tracemalloc.start()
    try:
        report = gradcheck_report(lambda t: t[:3000] * t[50_000:53_000], (x,))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert report
    assert any("a sample of" in note for note in report.notes)
    assert peak < 400e6  # the whole matrix would take 2.4 GB


def test_saved_tensors_of_peoples_own_are_unpacked_for_each_gradient():
    unpacked = []

    def unpack(x):
        unpacked.append(None)
        return x * (1 + 1e-3 * len(unpacked))

    def function(x):
        with tp.autograd.graph.saved_tensors_hooks(lambda t: t, unpack):
            return x * x

    report = gradcheck_report(function, (numbers(3),))
    assert (report.verdict, report.code) == ("non_deterministic", "not_reentrant")
    unpacked.clear()
    report = gradcheck_report(function, (numbers(3),), fast_mode=True)
    assert report.code == "not_reentrant"


def test_a_run_for_many_points_must_give_what_single_runs_give():
    """A function that treats a batch in another way than one point is run point by point."""
    calls = []

    def function(x):
        calls.append(None)
        return x * x if type(x) is tp.Tensor else x * x + 0.001

    assert gradcheck(function, (numbers(6),))
    assert len(calls) > 12

    def twice(x):  # here the difference would not show in the batch alone
        return x * x * (1 if type(x) is tp.Tensor else 2)

    assert gradcheck(twice, (numbers(6),))


@pytest.mark.parametrize("dtype", [tp.float64, tp.complex128])
def test_batches_change_no_verdict(dtype, monkeypatch):
    """Right and wrong functions, with runs for many points and without."""
    from tensorplay.autograd.gradcheck import numerical

    def wrong(x):
        y = x.detach() * x  # a factor is lost
        return tp.stack([y.sum(0), (x * x.flip(0)).sum(0)])

    functions = [wrong, lambda x: (x @ x.t()).exp(), lambda x: x.detach() * x * x, lambda x: x[0]]
    x = numbers(3, 3, dtype=dtype)
    together = [gradcheck_report(f, (x,)) for f in functions]
    by_batches = numerical.Differences._by_batches
    done = []
    monkeypatch.setattr(numerical.Differences, "_by_batches", lambda *_: 0)
    apart = [gradcheck_report(f, (x,)) for f in functions]
    monkeypatch.setattr(
        numerical.Differences, "_by_batches", lambda *a: done.append(by_batches(*a)) or done[-1]
    )
    for f in functions:
        gradcheck_report(f, (x,))
    assert min(done) == 9  # all elements were taken together
    for one, two in zip(together, apart, strict=True):
        assert [p.verdict for p in one.pairs] == [p.verdict for p in two.pairs]
        assert [p.cause for p in one.pairs] == [p.cause for p in two.pairs]
        for left, right in zip(one.pairs, two.pairs, strict=True):
            np.testing.assert_allclose(left.numerical, right.numerical, rtol=1e-7, atol=1e-7)


def test_formulas_that_look_at_values_run_for_one_gradient_at_a_time(monkeypatch):
    """A formula of ours may not take batches; then the check goes on as it would without."""
    exp = OPERATORS["exp"]
    formula = exp.vjp["input"].formula

    def reading(g, s):
        if g.sum().item() == 12345.0:
            raise AssertionError
        return formula(g, s)

    monkeypatch.setattr(exp.vjp["input"], "formula", reading)
    assert gradcheck(lambda x: (x * 1).exp() * x.sum(), (numbers(5),))


@pytest.mark.parametrize(
    "name", ["scatter", "linalg_qr", "linalg_svd", "linalg_det", "cumprod", "index_put", "gather"]
)
def test_checks_of_operators_end_with_a_verdict(name):
    """Whatever way a batch of gradients takes through the formulas."""
    for parameters in cases():
        case = parameters.values[0]
        if case.operator.name != name:
            continue
        given = [t for t in tensors_of(list(case.arguments)) if t.dtype is tp.float64]
        if not given:
            continue
        leaves = [t.detach().clone().requires_grad_() for t in given]
        places = {id(t): n for n, t in enumerate(given)}

        def function(*xs, case=case, places=places):
            return case.run(lambda x: xs[places[id(x)]] if id(x) in places else x)

        report = gradcheck_report(function, tuple(leaves))
        assert report.verdict != "error" or "RuntimeError" in report.message, report.to_text()
        assert report.verdict in {"ok", "error"}, report.to_text()
