"""Calls of functions by the extension do what Python's do."""

from __future__ import annotations

from typing import Any

import pytest

import tensorplay as tp
from tensorplay import _native
from tests.autograd.both_ways import bits, both, problem_of

pytestmark = pytest.mark.skipif(_native.core is None, reason=f"extension: {_native.reason}")


def context_facts(node: Any) -> Any:
    ctx = node.ctx
    saved = ctx._saved
    return {
        **{name: getattr(ctx, name) for name in ("_freed", "_materialize", "_in_jvp", "_level")},
        "needs": ctx.needs_input_grad,
        "attributes": sorted(ctx.__dict__),
        "computed": sorted(ctx._computed),
        "node": ctx._node() is node,
        "to_save": ctx._to_save,
        "saved": saved and [
            s and (s._output_nr, s._version, s._wants_grad, s._had_history, s.computed, s.is_packed)
            for s in saved
        ],
        "name": node.name(),
        "inputs": [n and n.name() for n, _ in node.next_functions],
        "outputs": list(node.outputs),
        "given": node.given,
        "repr": repr(node).split(" object")[0],
    }  # fmt: skip


class Keeps(tp.autograd.Function):
    """What is kept, and how, is chosen by a number."""

    @staticmethod
    def forward(ctx: Any, x: Any, how: int, y: Any) -> Any:
        inner = x * 2
        out = inner + y
        if how == 1:
            ctx.save_for_backward(x, y)
        elif how == 2:
            ctx.save_for_backward(inner, out, None)
        elif how == 3:
            ctx.inner, ctx.number, ctx.out = inner, 3, out
        elif how == 4:
            ctx.set_materialize_grads(False)
            ctx.mark_non_differentiable(out)
        elif how == 5:
            return out, how
        elif how == 6:
            return x
        elif how == 7:
            return x[0:1]
        elif how == 8:
            return (out > 0), out
        elif how == 9:
            ctx.save_for_backward(x)
            x.add_(1)
            ctx.mark_dirty(x)
            return x
        elif how == 10:
            return out.numpy()
        elif how == 11:
            ctx.save_for_backward(3)
        elif how == 12:
            ctx.how = [how]
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return grads[-1], None, grads[-1]


@pytest.mark.parametrize("how", range(13))
@pytest.mark.parametrize("leaf", [True, False], ids=["leaf", "inner"])
def test_calls_of_functions_keep_the_same(how: int, leaf: bool) -> None:
    def run() -> Any:
        x, y = (tp.tensor([1.0, 2.0]).requires_grad_() for _ in range(2))
        a = x if leaf else x.exp()
        try:
            found = Keeps.apply(a, how, y.detach() if how % 2 else y * 2)
        except Exception as error:  # noqa: BLE001 - the error is what is compared
            return type(error).__name__, str(error)
        facts = []
        for out in found if isinstance(found, tuple) else (found,):
            if not isinstance(out, tp.Tensor):
                facts.append(repr(out))
                continue
            node = out.grad_fn
            facts.append((bits(out), out.is_leaf, out.output_nr, out._base is None))
            if node is not None and hasattr(node, "given"):
                facts.append(context_facts(node))
        return facts, tp.is_grad_enabled()

    ours, theirs = both(run)
    assert ours == theirs


def test_calls_that_are_not_recorded_and_those_with_views_and_defaults() -> None:
    class Separate(tp.autograd.Function):
        @staticmethod
        def forward(x: Any, factor: float = 3.0) -> Any:
            return x * factor

        @staticmethod
        def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
            ctx.factor = inputs[1]

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            return g * ctx.factor, None

    def run() -> Any:
        x = tp.tensor([1.0, 2.0]).requires_grad_()
        with tp.no_grad():
            plain = Separate.apply(x, 2.0)
        base = tp.zeros(2)
        view = base[:]
        base.add_(x)  # the view has a history now, that it does not know of
        out = Separate.apply(view, 2.0)
        (Separate.apply(x) + out + Separate.apply(x, factor=5.0)).sum().backward()
        return plain.requires_grad, out.requires_grad, bits(x.grad)

    ours, theirs = both(run)
    assert ours == theirs
    assert ours[:2] == (False, True)


def test_errors_of_functions_are_the_same() -> None:
    def make(result: Any) -> Any:
        class Wrong(tp.autograd.Function):
            @staticmethod
            def forward(ctx: Any, x: Any, y: Any) -> Any:
                return x * y

            @staticmethod
            def backward(ctx: Any, g: Any) -> Any:
                return result(ctx, g)

        return Wrong

    results = [
        lambda ctx, g: g,
        lambda ctx, g: (g, g, g),
        lambda ctx, g: (g, g, None),
        lambda ctx, g: (g, 3),
        lambda ctx, g: (g, g.double()),
        lambda ctx, g: (g, g[0:1]),
        lambda ctx, g: (g, tp.ones(7)),
        lambda ctx, g: [g, None],
        lambda ctx, g: (None, None),
        lambda ctx, g: (g * tp.complex(g, g), g),
        lambda ctx, g: ctx.saved_tensors,
        lambda ctx, g: ctx.missing,
        lambda ctx, g: (g.numpy(), g),
        lambda ctx, g: (g.to("meta"), g),
        lambda ctx, g: (g, g.expand(2, 2)),
    ]

    def run() -> Any:
        found = []
        for result in results:
            x, y = (tp.tensor([1.0, 2.0]).requires_grad_() for _ in range(2))
            out = make(result).apply(x, y).sum()
            found.append((problem_of(out.backward), bits(x.grad), bits(y.grad)))
        return found

    ours, theirs = both(run)
    assert ours == theirs
    assert sum(error is not None for error, *_ in ours) == 9
