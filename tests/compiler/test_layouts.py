"""How results and gradients lie in memory, for every operator: compiled as eager."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tensorplay as tp
from tensorplay.graph import GraphCaptureError
from tests.ops.sampling import Case, cases, replace, tensors_of

RANDOM = {"_dropout_mask", "_standard_normal", "_uniform", "dropout", "bernoulli", "multinomial"}


def permuted(a: Any) -> tp.Tensor:
    order = (*range(1, a.ndim), 0)[-a.ndim :]
    return tp.from_numpy(np.ascontiguousarray(a.transpose(order)).transpose(np.argsort(order)))


LAYOUTS = {
    "plain": lambda a: tp.from_numpy(a.copy()),
    "turned": lambda a: tp.from_numpy(np.array(a, order="F")),
    "permuted": lambda a: permuted(a) if a.ndim else tp.from_numpy(a.copy()),
    "sliced": lambda a: tp.from_numpy(np.repeat(a, 2, axis=-1))[..., ::2]
    if a.ndim else tp.from_numpy(a.copy()),
    "repeated": lambda a: tp.from_numpy(a[:1].copy()).expand(a.shape)
    if a.ndim and len(a) else tp.from_numpy(a.copy()),
}  # fmt: skip


def strides(tensors: Any) -> list[Any]:
    return [
        None if t is None or not t.numel()
        else [s for s, n in zip(t.stride(), t.shape, strict=True) if n > 1]
        for t in tensors
    ]  # fmt: skip


def described(case: Case, function: Any, layout: Any, turned: bool) -> list[Any]:
    made = []

    def changed(t: tp.Tensor) -> tp.Tensor:
        if not t.dtype.is_differentiable:
            return t
        x = layout(t.detach().numpy()).detach()
        if t.requires_grad:
            made.append(x.requires_grad_())
        return x

    args, kwargs = replace(list(case.sample.args), changed), replace(case.sample.kwargs, changed)
    results = list(tensors_of(function(*args, **kwargs)))
    outs = [r for r in results if r.requires_grad]
    if not outs or not made:
        return [strides(results)]
    weights = [np.full(o.shape, 0.5, o.dtype.numpy) for o in outs]
    given = [tp.from_numpy(np.asarray(np.asfortranarray(w) if turned else w)) for w in weights]
    found = tp.autograd.grad(outs, made, given, allow_unused=True)
    return [strides(results), strides(found)]


@pytest.mark.slow
@pytest.mark.parametrize("turned", [False, True], ids=["row-major", "column-major"])
def test_results_and_gradients_of_operators_lie_as_eager_ones(turned: bool) -> None:
    compared, wrong = 0, []
    for parameter in cases(where=lambda o: o.name not in RANDOM):
        case = parameter.values[0]
        function = case.operator.function
        f = tp.compile(
            lambda *a, function=function, **k: function(*a, **k),
            backend="interpreter", fullgraph=True, recompile_limit=40,
        )  # fmt: skip
        for name, layout in LAYOUTS.items():
            try:
                expected = described(case, function, layout, turned)
                found = described(case, f, layout, turned)
            except (GraphCaptureError, RuntimeError, ValueError, TypeError):
                continue  # sizes that depend on values, or a sample whose values are gone
            compared += 1
            if found != expected:
                wrong.append((case.name, name, expected, found))
    assert wrong == []
    assert compared > 2000


CHAINS = {
    "linear": tp.nn.functional.linear,
    "product": lambda x, w: x @ w.t(),
    "turned product": lambda x, w: (w @ x.t()).t().relu(),
    "permuted": lambda x, w: (x[:, None] * w).permute(2, 0, 1).exp(),
    "prod": lambda x, w: (x[:, None] * w).prod(1),
    "attention": lambda x, w: tp.nn.functional.scaled_dot_product_attention(x, w, w),
    "softmax": lambda x, w: (x @ w.t()).softmax(0),
    "joined": lambda x, w: tp.cat([x, w]).t() * 2,
    "reused": lambda x, w: x.t() @ x + w.t() @ w,
}


@pytest.mark.parametrize("name", CHAINS)
def test_gradients_of_chains_lie_as_eager_ones(name: str, backend: str) -> None:
    function = CHAINS[name]
    f = tp.compile(function, backend=backend, fullgraph=True)
    for layout in LAYOUTS.values():
        for turned in (False, True, None):
            found = []
            for g in (function, f):
                generator = np.random.default_rng(0)
                x, w = (
                    layout(generator.standard_normal(s)).detach().requires_grad_()
                    for s in ((5, 4), (3, 4))
                )
                out = g(x, w)
                if turned is None:
                    out.square().sum().backward()
                else:
                    u = generator.standard_normal(out.shape)
                    out.backward(tp.from_numpy(np.asfortranarray(u) if turned else u))
                found.append((strides([out, x.grad, w.grad]), x.grad, w.grad))
            assert found[0][0] == found[1][0], turned
            tp.testing.assert_close(found[1][1:], found[0][1:])


def test_gradients_lie_the_same_whoever_holds_them() -> None:
    x = tp.randn(2, 3, 4).requires_grad_()
    found = []
    for watched in (False, True):
        y = x.permute(2, 0, 1) * 1
        if watched:
            y.retain_grad()
        x.grad = None
        y.backward(tp.randn(4, 2, 3))
        found.append(x.grad.stride())
    (g,) = tp.autograd.grad((x.permute(2, 0, 1) * 1).sum(), [x], create_graph=True)
    assert found[0] == found[1] == (3, 1, 6)
    assert g.stride() in {(3, 1, 6), (12, 4, 1)}


@pytest.mark.parametrize("reduction", ["sum", "mean"])
@pytest.mark.parametrize("sides", [(3, 2), (50, 40)], ids=["few", "many"])
def test_gradients_of_a_loss_lie_as_its_input_whatever_its_size(sides, reduction, backend) -> None:
    function = tp.nn.functional.mse_loss
    for g in (function, tp.compile(function, backend=backend, fullgraph=True)):
        x = tp.randn(*reversed(sides)).t().detach().requires_grad_()
        g(x, tp.zeros(*reversed(sides)).t(), reduction=reduction).backward()
        assert x.grad.stride() == x.stride()


def test_parts_of_one_view_have_one_node(backend) -> None:
    def parts(x: tp.Tensor) -> tuple[tp.Tensor, ...]:
        one, two = x.split([1, 3])
        turned = x.t()
        return one, two, turned, turned.detach(), turned[0], turned[0]

    x = tp.randn(4, 3).requires_grad_()
    compared = []
    for f in (parts, tp.compile(parts, backend=backend, fullgraph=True)):
        found = f(x)
        assert len({id(t) for t in found}) == len(found)
        assert found[0].grad_fn is found[1].grad_fn
        assert found[4].grad_fn is not found[5].grad_fn
        ups = [tp.from_numpy(np.asfortranarray(np.ones(t.shape, np.float32))) for t in found[:2]]
        compared.append(tp.autograd.grad(found[:2], [x], ups)[0].stride())
    assert compared == [(1, 4), (1, 4)]
