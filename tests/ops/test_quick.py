"""The short way of small calls gives what the long way gives."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tensorplay as tp
from tensorplay.autograd import forward_ad
from tensorplay.ops import OPERATORS, Primitive
from tests.ops.sampling import Maker, replace

SHORT = [op for op in OPERATORS.values() if isinstance(op, Primitive) and op.ufunc is not None]


def long_way(op: Primitive, *operands: Any) -> Any:
    """Call the operator past its short way."""
    rest = [op._defaults[n] for n in op.names[len(operands) :]]
    return op.apply((*operands, *rest))


def problem_of(function: Any, *args: Any) -> str | None:
    """Return the error of a call as text, None if there is none."""
    try:
        function(*args)
    except (TypeError, RuntimeError) as error:
        return f"{type(error).__name__}: {error}"
    return None


def calls(op: Primitive, dtype: Any) -> list[tuple[Any, ...]]:
    """Return the samples of the operator whose other arguments have their defaults."""
    count = sum(a.type.is_tensor for a in op.schema.arguments)
    samples = [s for s in op.samples(Maker(op.name)) if len(s.args) == count and not s.kwargs]
    return [
        replace(s.args, lambda t: t.detach().to(dtype).requires_grad_(dtype.is_differentiable))
        for s in samples
    ]


def test_some_operators_have_a_short_way() -> None:
    assert {"add", "mul", "exp", "maximum"} <= {op.name for op in SHORT}


@pytest.mark.parametrize("dtype", [tp.float64, tp.float32, tp.float16, tp.int64, tp.bool])
@pytest.mark.parametrize("op", SHORT, ids=lambda op: op.name)
def test_both_ways_agree(op: Primitive, dtype: Any) -> None:
    for operands in calls(op, dtype):
        problem = problem_of(long_way, op, *operands)
        assert problem_of(op.function, *operands) == problem
        if problem is not None:
            continue
        expected, got = long_way(op, *operands), op.function(*operands)
        assert (got.dtype, got.shape, got.requires_grad) == (
            expected.dtype,
            expected.shape,
            expected.requires_grad,
        )
        np.testing.assert_array_equal(got.detach().numpy(), expected.detach().numpy())
        if expected.requires_grad:
            inputs = [t for t in operands if isinstance(t, tp.Tensor)]
            gradients = [
                tp.autograd.grad(out.sum(), inputs, create_graph=True) for out in (got, expected)
            ]
            assert type(got.grad_fn) is type(expected.grad_fn)
            assert got.grad_fn.name() == expected.grad_fn.name()
            for a, b in zip(*gradients, strict=True):
                np.testing.assert_array_equal(a.detach().numpy(), b.detach().numpy())


def test_what_the_short_way_must_leave_alone() -> None:
    x = tp.tensor([1.0, 2.0])
    meta = tp.empty(2, device="meta")
    assert (meta + meta).is_meta
    assert (meta * 2.0).is_meta
    assert meta.exp().is_meta
    with pytest.raises(RuntimeError, match="must match the size of tensor b"):
        x + tp.ones(3)
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(x, tp.ones(2))
        assert forward_ad.unpack_dual(dual * x).tangent.tolist() == [1.0, 2.0]
        assert forward_ad.unpack_dual(x * dual).tangent.tolist() == [1.0, 2.0]
        assert forward_ad.unpack_dual(dual.exp()).tangent is not None
    with tp.no_grad():
        assert not (x.requires_grad_() * 2).requires_grad
    assert (x * 2).requires_grad


def test_views_see_a_history_that_their_base_got_later() -> None:
    base = tp.zeros(2, 2)
    view = base[0]
    source = tp.ones(2, requires_grad=True)
    base[0] = source * 3
    assert (view * 2).requires_grad
    (view * 2).sum().backward()
    assert source.grad.tolist() == [6.0, 6.0]


def test_saved_values_are_guarded_in_the_short_way_too() -> None:
    x = tp.ones(2, requires_grad=True)
    y = x * 2
    z = y * y
    y.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        z.sum().backward()


def test_a_subclass_takes_the_long_way() -> None:
    class Special(tp.Tensor):
        pass

    assert (Special([1.0]) + tp.ones(1)).tolist() == [2.0]
