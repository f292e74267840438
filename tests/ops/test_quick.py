"""The short way of small calls gives what the long way gives."""

from __future__ import annotations

import gc
import itertools
import threading
import weakref
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings, strategies as st

import tensorplay as tp
from tensorplay import _native, _quiet
from tensorplay.autograd import forward_ad
from tensorplay.autograd.graph import get_gradient_edge, saved_tensors_hooks
from tensorplay.ops import OPERATORS, Primitive
from tensorplay.ops.quick import quick_call
from tests.ops.sampling import Maker, long_way_only, replace

PRIMITIVES = [op for op in OPERATORS.values() if isinstance(op, Primitive)]
SHORT = [op for op in PRIMITIVES if op.ufunc is not None]
WITH_ARGUMENTS = [op for op in PRIMITIVES if op.quick is not None and op.complete is None]


def facts(run: Any) -> Any:
    """Return what can be told of the tensor that a call returns, or its error."""
    try:
        out = run()
    except (TypeError, ValueError, IndexError, RuntimeError) as error:
        return type(error).__name__, str(error)
    node = out.grad_fn
    return {
        "dtype": out.dtype,
        "shape": tuple(out.shape),
        "strides": out.stride(),
        "values": out.detach().numpy().tobytes(),
        "version": out._version,
        "requires_grad": out.requires_grad,
        "is_view": out._base is not None,
        "node": None if node is None else node.name(),
        "saved": None if node is None else sorted(node.saved()),
        "inputs": None if node is None else [n and n.name() for n, _ in node.next_functions],
        "outputs": None if node is None else list(node.outputs),
    }


def both(run: Any) -> tuple[Any, Any]:
    """Return what `run` tells by the short way and by the long way."""
    short = facts(run)
    with long_way_only():
        return short, facts(run)


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


def in_type(op: Primitive, d: Any, tensor: Any, *, track: bool) -> Any:
    """Return an argument in another type; classes stay what they are."""
    if op.name == "_nll_loss" and not tensor.dtype.is_floating_point:
        return tensor
    return tensor.detach().to(d).requires_grad_(track and d.is_differentiable)


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


# --- functions with other arguments: views, reductions, products ----------------------------------


def test_views_reductions_and_products_have_a_short_way() -> None:
    names = {op.name for op in WITH_ARGUMENTS}
    assert {"sum", "mean", "reshape", "permute", "transpose", "squeeze", "matmul"} <= names


@pytest.mark.parametrize("recorded", [False, True])
@pytest.mark.parametrize("op", WITH_ARGUMENTS, ids=lambda op: op.name)
def test_both_ways_tell_the_same(op: Primitive, recorded: bool) -> None:
    taken = 0
    for dtype in (tp.float64, tp.float32, tp.int64):
        for sample in op.samples(Maker(op.name)):
            args = replace(sample.args, partial(in_type, op, dtype, track=recorded))
            short, long = both(lambda a=args, k=sample.kwargs: op.function(*a, **k))
            assert short == long
            given_ = dict(zip(op.names, args, strict=False)) | sample.kwargs
            full = [given_.get(n, op._defaults.get(n)) for n in op.names]
            taken += op._short(*full) is not None
    assert taken  # the samples reach the short way


EVERY_TYPE = [
    tp.float32, tp.float64, tp.float16, tp.int64, tp.int32, tp.uint8, tp.bool, tp.complex64,
]  # fmt: skip


def in_types(given: Any, types: Any) -> Any:
    """Return arguments whose tensors have these types, one after the other."""
    left = iter(types)
    return replace(given, lambda t: t.detach().to(next(left)))


@pytest.mark.parametrize("compiled", [False, True] if _native.core is not None else [False])
@pytest.mark.parametrize("op", SHORT + WITH_ARGUMENTS, ids=lambda op: op.name)
def test_both_ways_tell_the_same_of_every_pair_of_types(op: Primitive, compiled: bool) -> None:
    short = quick_call(op, compiled=compiled)
    assert short is not None
    for sample in list(op.samples(Maker(op.name)))[:2]:
        given_ = dict(zip(op.names, sample.args, strict=False)) | sample.kwargs
        full = [given_.get(n, op._defaults.get(n)) for n in op.names]
        seen: list[Any] = []
        replace(full, lambda t, seen=seen: seen.append(t.dtype) or t)
        types = [
            [pair[0], *[t] * i, pair[1], *[t] * (len(seen) - i - 2)]
            for pair in itertools.product(EVERY_TYPE, repeat=2)
            for i in range(len(seen) - 1)
            for t in {pair[0], *seen}
        ]  # fmt: skip
        for chosen in types or [[t] for t in EVERY_TYPE]:
            operands = in_types(full, chosen)
            count = sum(a.type.is_tensor for a in op.schema.arguments)
            taken = short(*operands[:count] if op.ufunc is not None else operands)
            if taken is None:
                continue
            assert taken._array.dtype == taken.dtype.numpy, chosen
            assert facts(lambda r=taken: r) == facts(lambda a=operands: op.apply(tuple(a))), chosen


@pytest.mark.parametrize("other", [tp.int64, tp.int32, tp.float64, tp.float16])
def test_a_weight_of_another_type_is_refused(other: Any) -> None:
    x, weight, bias = tp.ones(2, 3), tp.ones(4, 3, dtype=other), tp.ones(4, dtype=other)
    with pytest.raises(RuntimeError, match="expected both arguments to have the same dtype"):
        tp.nn.functional.linear(x, weight)
    short, long = both(lambda: tp.nn.functional.linear(x, tp.ones(4, 3), bias))
    assert short == long


@pytest.mark.parametrize("keys", [True, False])
def test_gradients_of_both_ways_agree(keys: bool) -> None:
    rng = np.random.default_rng(0)
    x = tp.from_numpy(rng.standard_normal((3, 4)).astype(np.float32)).requires_grad_()
    w = tp.from_numpy(rng.standard_normal((4, 3)).astype(np.float32)).requires_grad_()

    def run() -> list[bytes]:
        y = (x @ w).tanh() * 1.5 - 2.0 / (w.t()[:, :3] ** 2 + 1.0)
        y = y.reshape(9).exp().reshape(3, -1).mean(1) + (x.transpose(0, 1).sum(0, True) - x[1, 0])
        if keys:
            y = y[..., 1:] * y[0, None, ::2].sqrt().sin() + x[-1, 1:3]
        y = y.permute(1, 0).squeeze().unsqueeze(0) ** 3 + y.sum().maximum(x[0, 0])
        first = tp.autograd.grad(y.sum(), [x, w], create_graph=True)
        second = tp.autograd.grad((first[0] ** 2).sum() + first[1].sum(), [x, w])
        return [g.detach().numpy() for g in (*first, *second)]

    found = run()
    with long_way_only():
        expected = run()
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-5, atol=1e-6)


INDICES = st.one_of(
    st.integers(-5, 5),
    st.none(),
    st.just(Ellipsis),
    st.booleans(),
    st.builds(
        slice,
        st.one_of(st.none(), st.integers(-5, 5)),
        st.one_of(st.none(), st.integers(-5, 5)),
        st.one_of(st.none(), st.integers(-2, 3)),
    ),
)


@settings(deadline=None, max_examples=200)
@given(
    shape=st.lists(st.integers(0, 4), max_size=3).map(tuple),
    key=st.one_of(INDICES, st.lists(INDICES, max_size=4).map(tuple)),
    recorded=st.booleans(),
)
@example(shape=(), key=(None,), recorded=True)
@example(shape=(2, 3), key=(..., None, 1), recorded=True)
@example(shape=(0, 2), key=(slice(3, 1), -1), recorded=True)
def test_keys(shape: tuple[int, ...], key: Any, recorded: bool) -> None:
    values = np.arange(np.prod(shape, dtype=int), dtype=np.float64).reshape(shape)
    x = tp.from_numpy(values).requires_grad_(recorded)
    short, long = both(lambda: x[key])
    assert short == long
    if recorded and isinstance(short, dict):
        out = x[key]
        weight = tp.arange(float(out.numel()), dtype=tp.float64).reshape(out.shape) + 1
        (found,) = tp.autograd.grad(out, x, weight)
        with long_way_only():
            (expected,) = tp.autograd.grad(x[key], x, weight)
        assert found.tolist() == expected.tolist()


@pytest.mark.parametrize("size", [(-2,), (2, -3), (-1, -1), (7,), (-1, 0), (3.0,), ("a",), (6, 1)])
def test_sizes_that_are_none(size: Any) -> None:
    x = tp.arange(6.0)
    short, long = both(lambda: x.reshape(size))
    assert short == long


def test_views_of_views_follow_an_in_place_write() -> None:
    base = tp.zeros(2, 4)
    view = base[1].reshape(2, 2).t()[0]
    assert view._base is base
    source = tp.ones(4, requires_grad=True)
    base[1] = source * 3
    assert view.requires_grad
    view.sum().backward()
    assert source.grad.tolist() == [3.0, 0.0, 3.0, 0.0]
    view.mul_(2)
    assert base.tolist() == [[0, 0, 0, 0], [6, 3, 6, 3]]
    assert base._version == view._version


# --- in place -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["add_", "sub_", "mul_", "div_", "pow_"])
@pytest.mark.parametrize("operand", ["tensor", "number", "broadcast", "larger", "double", "itself"])
def test_writes_of_both_ways_agree(name: str, operand: str) -> None:
    def run() -> tuple[Any, int]:
        x = tp.arange(1.0, 7.0).reshape(2, 3)
        view = x[0]
        other = {
            "tensor": tp.full((2, 3), 2.0), "number": 2.0, "broadcast": tp.full((3,), 2.0),
            "larger": tp.ones(4, 2, 3), "double": tp.full((2, 3), 2.0, dtype=tp.float64),
            "itself": x,
        }[operand]  # fmt: skip
        result = getattr(x, name)(other)
        assert result is x
        return x.tolist(), x._version, view.tolist(), view._version

    try:
        short: Any = run()
    except RuntimeError as error:
        short = str(error)
    with long_way_only():
        if isinstance(short, str):
            with pytest.raises(RuntimeError) as caught:
                run()
            assert str(caught.value) == short
        else:
            assert run() == short


def test_writes_that_are_recorded_or_refused() -> None:
    leaf = tp.ones(2, requires_grad=True)
    with pytest.raises(RuntimeError, match="a leaf Variable"):
        leaf.add_(1.0)
    y = tp.zeros(2)
    y.add_(leaf, alpha=2.0)
    y.sum().backward()
    assert leaf.grad.tolist() == [2.0, 2.0]
    with tp.no_grad():
        leaf.sub_(leaf.grad, alpha=0.5)
        leaf -= 1.0
    assert (leaf.tolist(), leaf._version, leaf.is_leaf) == ([-1.0, -1.0], 2, True)
    with pytest.raises(RuntimeError, match="more than one element"):
        tp.ones(1).expand(3).mul_(2.0)
    with tp.inference_mode():
        frozen = tp.ones(2)
    with pytest.raises(RuntimeError, match="inference tensor"):
        frozen.add_(1.0)


def test_numbers_keep_their_signs_and_sizes() -> None:
    x = tp.ones(1)
    assert np.signbit((x * -0.0).numpy()[0])
    assert not np.signbit((x * 0.0).numpy()[0])
    assert np.isnan((x * float("nan")).numpy()[0])
    assert (x * 1e300).tolist() == [float("inf")]
    assert (x * 2**60).tolist() == [2.0**60]
    assert (1 - x).tolist() == [0.0]
    short, long = both(lambda: x * 10**400)
    assert short == long


# --- what is recorded -----------------------------------------------------------------------------


def test_inference_tensors_are_not_saved() -> None:
    with tp.inference_mode():
        frozen = tp.ones(2)
    leaf = tp.ones(2, requires_grad=True)
    with pytest.raises(RuntimeError, match="cannot be saved for backward"):
        leaf * frozen
    assert (leaf + frozen).requires_grad
    assert frozen[0].is_inference()


def test_a_saved_result_is_guarded_whatever_becomes_of_the_tensor() -> None:
    leaf = tp.ones(2, requires_grad=True)
    for change in (
        lambda y: y.add_(1),
        lambda y: y.detach().add_(1),
        lambda y: y.detach_().add_(1),
        lambda y: y[0].zero_(),
        lambda y: y.view(1, 2).mul_(2.0),
    ):
        y = leaf.exp()
        z = y * 2
        with tp.no_grad():
            change(y)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            z.sum().backward()


def test_hooks_see_gradients_of_the_short_way() -> None:
    leaf = tp.ones(2, requires_grad=True)
    seen: list[Any] = []
    y = leaf * 3
    y.register_hook(lambda g: seen.append(g.tolist()) or g * 2)
    y.retain_grad()
    leaf.register_hook(lambda g: seen.append(g.tolist()))
    leaf.register_post_accumulate_grad_hook(lambda t: seen.append(t.grad.tolist()))
    (y + 1).sum().backward()
    assert seen == [[1.0, 1.0], [6.0, 6.0], [6.0, 6.0]]
    assert y.grad.tolist() == [2.0, 2.0]


def test_packed_tensors_take_the_long_way() -> None:
    leaf = tp.ones(2, requires_grad=True)
    packed: list[Any] = []
    with saved_tensors_hooks(lambda t: packed.append(t) or t, lambda t: t * 10):
        y = leaf * tp.full((2,), 3.0)
    assert len(packed) == 1
    y.sum().backward()
    assert leaf.grad.tolist() == [30.0, 30.0]
    z = leaf * 2.0 * leaf
    z.grad_fn._raw_saved_other.register_hooks(lambda t: t, lambda t: t * 100)
    (first,) = tp.autograd.grad(z.sum(), leaf)
    assert first.tolist() == [202.0, 202.0]


def test_gradients_share_no_memory_with_what_was_given() -> None:
    leaf = tp.ones(3, requires_grad=True)
    start = tp.ones(3)
    (leaf + 1.0).backward(start)
    (found,) = tp.autograd.grad(leaf + 1.0, leaf, start)
    leaf.grad.zero_()
    found.zero_()
    assert start.tolist() == [1.0, 1.0, 1.0]
    both_ = leaf + leaf * 1.0
    both_.sum().backward()
    (leaf + 0.0).sum().backward()
    assert leaf.grad.tolist() == [3.0, 3.0, 3.0]


def test_hooks_of_a_leafs_node_live_as_long_as_a_graph() -> None:
    leaf = tp.ones(2, requires_grad=True)
    y = leaf * 2
    calls: list[int] = []
    get_gradient_edge(leaf).node.register_hook(lambda *_: calls.append(1))
    y.sum().backward()
    (leaf * 2).sum().backward()  # another graph, after that of the hook
    assert calls == [1]
    reference = weakref.ref(leaf)
    del leaf, y
    gc.collect()
    assert reference() is None


def test_graphs_end_in_one_node_per_leaf() -> None:
    leaf = tp.ones(2, requires_grad=True)
    y = leaf * leaf + leaf.exp()
    product, power = (node for node, _ in y.grad_fn.next_functions)
    ends = {node for parent in (product, power) for node, _ in parent.next_functions}
    assert len(ends) == 1
    assert get_gradient_edge(leaf).node in ends


# Python 3.10 has no notes on exceptions, so the anomaly mode warns.
@pytest.mark.filterwarnings("ignore:Error detected in SqrtBackward:UserWarning")
def test_other_modes_are_seen() -> None:
    x = tp.ones(3)
    with tp.inference_mode():
        assert (x + 1).is_inference()
        assert not x[0].is_inference()  # a view of a normal tensor
    mapped = tp.func.vmap(lambda t: (t * 2 + x).sum().reshape(1))(tp.ones(2, 3))
    assert mapped.tolist() == [[9.0], [9.0]]
    value, tangent = tp.func.jvp(lambda t: (t @ t).sum()[None][0], (tp.eye(2),), (tp.ones(2, 2),))
    assert (value.item(), tangent.item()) == (2.0, 8.0)
    leaf = tp.zeros(1, requires_grad=True)
    with tp.autograd.set_detect_anomaly(True):
        y = leaf.sqrt() * 0.0
        assert y.grad_fn.metadata["traceback"]
        with pytest.raises(RuntimeError, match="returned nan values"):
            y.backward()


def test_a_thread_inside_sends_others_the_long_way() -> None:
    inside, done = threading.Event(), threading.Event()

    def hold() -> None:
        inside.set()
        done.wait(10)

    thread = threading.Thread(target=lambda: _quiet.quietly(hold))
    thread.start()
    inside.wait(10)
    try:
        leaf = tp.ones(2, requires_grad=True)
        y = (leaf + 1).exp().sum()
        y.backward()
        assert leaf.grad.tolist() == pytest.approx([np.exp(2.0)] * 2)
    finally:
        done.set()
        thread.join()
