"""The short ways of the extension do what those of Python do, and what the long way does."""

from __future__ import annotations

import contextlib
import functools
import gc
import inspect
import itertools
import os
import subprocess
import sys
import threading
import warnings
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings, strategies as st

import tensorplay as tp
from tensorplay import _native, _quiet
from tensorplay.autograd.graph import AccumulateGrad, Edge, SavedTensor
from tensorplay.ops import OPERATORS, Primitive
from tensorplay.ops.node import PrimitiveNode
from tensorplay.ops.quick import quick_call, quick_special, quick_write
from tests.ops.sampling import Maker, long_way_only, replace
from tests.ops.test_quick import in_type

pytestmark = pytest.mark.skipif(_native.core is None, reason=f"extension: {_native.reason}")

PRIMITIVES = [op for op in OPERATORS.values() if isinstance(op, Primitive)]
SHORT = [op for op in PRIMITIVES if op.ufunc is not None or op.quick is not None]
ELEMENTWISE = [op for op in SHORT if op.ufunc is not None]
TWO = [op for op in ELEMENTWISE if op._short_write is not None]

Way = Callable[..., Any]


@functools.cache
def both_ways(op: Primitive) -> tuple[Way, Way]:
    """Return the short way of an operator by the extension, and by Python."""
    compiled, python = quick_call(op, compiled=True), quick_call(op, compiled=False)
    assert compiled is not None
    assert python is not None
    return compiled, python


def named(name: str) -> tuple[Way, Way]:
    op = OPERATORS[name]
    assert isinstance(op, Primitive)
    return both_ways(op)


def raw(array: Any) -> Any:
    return array.dtype, array.shape, array.strides, array.tobytes(), array.flags.writeable


def source(value: Any) -> Any:
    """Return what can be compared of a source of a node."""
    if isinstance(value, Edge):
        return type(value), id(value.node), value.output_nr
    return type(value), id(value)


def shown(value: Any) -> Any:
    """Return what can be compared of something that a node keeps."""
    if isinstance(value, tp.Tensor):
        return "tensor", id(value)
    if isinstance(value, np.ndarray):
        return raw(value)
    if isinstance(value, tuple):
        return tuple(map(shown, value))
    return type(value), repr(value)


def recorded(node: Any) -> Any:
    """Return all that the node of a short way holds."""
    if node is None:
        return None
    assert type(node) is PrimitiveNode
    return {
        "primitive": node.primitive.name,
        "sources": tuple(map(source, node._sources)),
        "shape": node._shape,
        "dtype": node._dtype,
        "extras": node._extras,
        "outputs": node._outputs,
        "counter": node._counter,
        "args": shown(node._args),
        "shapes": shown(node._shapes),
        "versions": shown(node._versions),
        "out": shown(node._out),
    }


def all_of(out: Any) -> Any:
    """Return all that can be told of what a short way returned."""
    if out is None:
        return None
    recipe = out._recipe
    return {
        "type": type(out),
        "array": raw(out._array),
        "memory": None if out._base is None else id(out._array.base),
        "dtype": out._dtype,
        "requires_grad": out._requires_grad,
        "output_nr": out._output_nr,
        "tangent": out._tangent,
        "base": id(out._base),
        "recipe": None if recipe is None else (recipe[0], shown(recipe[1]), id(recipe[2])),
        "counter": id(out._counter),
        "seen": out._seen,
        "node": recorded(out._grad_fn),
    }


def outcome(call: Way, *args: Any) -> Any:
    """Return all that can be told of a call."""
    try:
        out = call(*args)
    except Exception as error:  # noqa: BLE001 - compared
        return type(error), str(error)
    return all_of(out)


def refused(op: Any, *args: Any) -> bool:
    """Tell whether the long way refuses a call; then both short ways must have left it alone."""
    try:
        if op.complete is None:
            op.apply((*args, *[op._defaults[n] for n in op.names[len(args) :]]))
        else:
            with long_way_only():
                args[0][args[1]]
    except (IndexError, RuntimeError, ValueError, TypeError):
        assert [way(*args) for way in both_ways(op)] == [None, None]
        return True
    return False


def agree(op: Any, *args: Any) -> Any:
    """Compare both short ways, and where there is an answer also the long way; return it."""
    compiled, python = both_ways(op)
    before = tp.ones(1, requires_grad=True).exp().grad_fn.sequence
    found = outcome(compiled, *args)
    after = tp.ones(1, requires_grad=True).exp().grad_fn.sequence
    assert found == outcome(python, *args)
    if not isinstance(found, dict):
        return found
    assert after - before == 1 + (found["node"] is not None)
    if op.complete is None:
        full = (*args, *[op._defaults[n] for n in op.names[len(args) :]])
        long = op.apply(full)
    else:
        with long_way_only():
            long = args[0][args[1]]
    assert raw(long._array)[:2] == found["array"][:2]
    assert long._array.tobytes() == found["array"][3]
    steps = [stride for n, stride in zip(long.shape, long.stride(), strict=True) if n > 1]
    found_steps = zip(long.shape, compiled(*args).stride(), strict=True)
    assert long._array.size == 0 or steps == [stride for n, stride in found_steps if n > 1]
    assert (long.requires_grad, long.dtype) == (found["requires_grad"], found["dtype"])
    assert id(long._base) == found["base"]
    assert id(long._counter) == found["counter"] or found["memory"] is None
    if long.grad_fn is not None:
        node = compiled(*args).grad_fn
        assert type(node) is type(long.grad_fn)
        assert node.name() == long.grad_fn.name()
        assert sorted(node.saved()) == sorted(long.grad_fn.saved())
        assert node.next_functions == long.grad_fn.next_functions
        assert node.outputs[0][:2] == long.grad_fn.outputs[0][:2]
    return found


@pytest.mark.parametrize("track", [False, True])
@pytest.mark.parametrize("op", SHORT, ids=lambda op: op.name)
def test_samples(op: Primitive, track: bool) -> None:
    taken = 0
    for dtype in (tp.float32, tp.float64, tp.float16, tp.int64, tp.bool, tp.complex64):
        for sample in op.samples(Maker(op.name)):
            args = replace(sample.args, functools.partial(in_type, op, dtype, track=track))
            if op.complete is not None:
                key = (*map(slice, *args[1:4]),)
                args = (args[0], key)
            elif op.ufunc is not None:
                args = args[: sum(a.type.is_tensor for a in op.schema.arguments)]
                if sample.kwargs:
                    continue
            else:
                by_name = dict(zip(op.names, args, strict=False)) | sample.kwargs
                args = tuple(by_name.get(n, op._defaults.get(n)) for n in op.names)
            taken += isinstance(agree(op, *args), dict)
    assert taken or op.name in {  # these take integers only
        "bitwise_and", "bitwise_or", "bitwise_xor", "bitwise_left_shift", "bitwise_right_shift",
        "bitwise_not",
    }  # fmt: skip


# --- values ---------------------------------------------------------------------------------------

SPECIAL = [0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, 1e-42, -1e-310, 3.4e38, 1e300, 0.5, 2.0]
NUMBERS = st.one_of(
    st.sampled_from([0, 1, -1, 2, 3, 2**53, 2**53 + 1, -(2**60), 10**400, True, *SPECIAL]),
    st.floats(),
    st.integers(-(2**70), 2**70),
)
LAYOUTS = ["plain", "transposed", "every second", "backwards", "read-only", "unaligned"]


def laid_out(values: Any, layout: str) -> Any:
    """Return the values in another layout of memory."""
    if layout == "transposed":
        return np.ascontiguousarray(values.T).T
    if layout == "every second" and values.ndim:
        wide = np.zeros((*values.shape[:-1], 2 * values.shape[-1]), values.dtype)
        wide[..., ::2] = values
        return wide[..., ::2]
    if layout == "backwards" and values.ndim:
        return np.ascontiguousarray(values[::-1])[::-1]
    if layout == "read-only":
        values = values.copy()
        values.flags.writeable = False
    if layout == "unaligned":
        memory = np.zeros(values.nbytes + 1, np.uint8)
        made = memory[1:].view(values.dtype).reshape(values.shape)
        made[...] = values
        return made
    return values


def tensor_on(array: Any, d: Any, *, track: bool = False) -> Any:
    """Return a tensor on just this array, which `from_numpy` would copy or refuse."""
    made = tp._tensor.wrap(array, d)
    return made.requires_grad_() if track else made


@st.composite
def tensors(draw: Any, shape: tuple[int, ...], d: Any) -> Any:
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    values = rng.standard_normal(shape) * draw(st.sampled_from([1.0, 1e-3, 40.0]))
    if draw(st.booleans()):
        odd = rng.random(shape) < 0.3
        values = np.where(odd, rng.choice(SPECIAL, shape), values)
    with np.errstate(all="ignore"):
        array = np.asarray(values, d.numpy)
    return tensor_on(laid_out(array, draw(st.sampled_from(LAYOUTS))), d, track=draw(st.booleans()))


SHAPES = st.lists(st.integers(0, 4), max_size=3).map(tuple) | st.sampled_from(
    [(64,), (8, 33), (1, 129), (3, 1, 5), (70, 1)]
)
DTYPES = st.sampled_from([tp.float32, tp.float64])


@st.composite
def pairs(draw: Any) -> tuple[Any, Any]:
    d = draw(DTYPES)
    shape = draw(SHAPES)
    x = draw(tensors(shape, d))
    kind = draw(st.sampled_from(["same", "number", "scalar", "broadcast", "dtype", "other"]))
    if kind == "number":
        y: Any = draw(NUMBERS)
    elif kind == "other":
        y = draw(tensors(draw(SHAPES), draw(DTYPES)))
    else:
        other = () if kind == "scalar" else shape
        if kind == "broadcast":
            other = tuple(1 if draw(st.booleans()) else n for n in shape)[draw(st.integers(0, 3)) :]
        y = draw(tensors(other, tp.float32 if kind == "dtype" else d))
    return (y, x) if draw(st.booleans()) else (x, y)


@pytest.mark.parametrize("op", [op for op in TWO if not op.name.startswith("bitwise")],
                         ids=lambda op: op.name)  # fmt: skip
@settings(deadline=None, max_examples=25)
@given(operands=pairs())
@example(operands=(tp.tensor([1.0, -2.0]), -0.0))
@example(operands=(2**53 + 1, tp.tensor([[1.0], [3.0]], dtype=tp.float64)))
@example(operands=(tp.tensor(2.0), tp.tensor([1.0, 2.0], requires_grad=True)))
def test_operands(op: Primitive, operands: Any) -> None:
    if not refused(op, *operands):
        agree(op, *operands)


ONE = [op for op in ELEMENTWISE if op not in TWO and op.name != "bitwise_not"]


@pytest.mark.parametrize("op", ONE, ids=lambda op: op.name)
@settings(deadline=None, max_examples=15)
@given(data=st.data())
def test_one_operand(op: Primitive, data: Any) -> None:
    agree(op, data.draw(tensors(data.draw(SHAPES), data.draw(DTYPES))))


@settings(deadline=None, max_examples=150)
@given(data=st.data(), name=st.sampled_from(["sum", "mean"]))
def test_sums(data: Any, name: str) -> None:
    shape = data.draw(
        SHAPES | st.sampled_from([(1024,), (1025,), (32, 32), (2, 3, 4, 5, 6), (7, 1)])
    )
    x = data.draw(tensors(shape, data.draw(DTYPES)))
    dim = data.draw(st.none() | st.integers(-3, 3) | st.lists(st.integers(0, 2)))
    keepdim = data.draw(st.booleans())
    dtype = data.draw(st.sampled_from([None, tp.float64]))
    for usual in (True, False):
        rest = (None, False, None) if usual else (dim, keepdim, dtype)
        if not refused(OPERATORS[name], x, *rest):
            agree(OPERATORS[name], x, *rest)


@settings(deadline=None, max_examples=150)
@given(data=st.data())
def test_views(data: Any) -> None:
    x = data.draw(tensors(data.draw(SHAPES), data.draw(DTYPES)))
    if data.draw(st.booleans()) and x.ndim:
        x = x[data.draw(st.sampled_from([slice(None), slice(1, None, 2), slice(0, 0)]))]
    ints = st.integers(-4, 4) | st.sampled_from([2**70, True, 1.0, None])
    sizes = [tuple(n for n in x.shape if n != 1), (-1,), (1, -1), (*x.shape, 1), tuple(x.shape)]
    for name, rest in (
        ("reshape", (data.draw(st.sampled_from(sizes) | st.lists(ints, max_size=4).map(tuple)),)),
        ("permute", (data.draw(st.permutations(range(x.ndim)).map(tuple)
                               | st.lists(ints, max_size=3).map(tuple)),)),
        ("transpose", (data.draw(ints), data.draw(ints))),
        ("unsqueeze", (data.draw(ints),)),
        ("squeeze", (data.draw(ints),)),
        ("expand", (data.draw(st.sampled_from([
            (2, *x.shape), (-1,) * x.ndim, tuple(3 if n == 1 else n for n in x.shape),
        ]) | st.lists(ints, max_size=4).map(tuple)),)),
    ):  # fmt: skip
        if not refused(OPERATORS[name], x, *rest):
            agree(OPERATORS[name], x, *rest)


BOUNDS = st.none() | st.integers(-6, 6) | st.sampled_from([2**80, -(2**80), True, np.int64(1)])
ITEMS = st.one_of(
    st.integers(-5, 5), st.just(Ellipsis), st.none(), st.booleans(), st.just(2**70),
    st.builds(slice, BOUNDS, BOUNDS, st.none() | st.integers(-2, 3)),
)  # fmt: skip


@settings(deadline=None, max_examples=200)
@given(data=st.data(), key=ITEMS | st.lists(ITEMS, max_size=4).map(tuple))
def test_keys(data: Any, key: Any) -> None:
    x = data.draw(tensors(data.draw(SHAPES), data.draw(DTYPES)))
    if not refused(OPERATORS["_slice"], x, key):
        agree(OPERATORS["_slice"], x, key)


@settings(deadline=None, max_examples=100)
@given(data=st.data())
def test_products(data: Any) -> None:
    rows, inner, columns = (data.draw(st.integers(0, 5)) for _ in range(3))
    d = data.draw(DTYPES)
    x = data.draw(tensors((rows, inner), d))
    y = data.draw(tensors(data.draw(st.sampled_from([(inner, columns), (inner,), (3, 2)])), d))
    compiled, python = named("matmul")
    assert outcome(compiled, x, y) == outcome(python, x, y)


# --- writes ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("op", [op for op in TWO if not op.name.startswith("bitwise")],
                         ids=lambda op: op.name)  # fmt: skip
@settings(deadline=None, max_examples=25)
@given(operands=pairs(), alpha=st.sampled_from([1, 1.0, 2, -0.5, 0.1, np.nan, 10**400, True]))
def test_writes(op: Primitive, operands: Any, alpha: Any) -> None:
    rest = (alpha,) if "alpha" in op.names else tuple(op._defaults[n] for n in op.names[2:])
    found = []
    for compiled in (True, False):
        way = quick_write(op, compiled=compiled)
        x, y = (
            tensor_on(t._array.copy(order="K"), t._dtype, track=t.requires_grad)
            if isinstance(t, tp.Tensor) else t
            for t in operands
        )  # fmt: skip
        with tp.set_grad_enabled(False):
            result = outcome(way, x, y, *rest)
        found.append((
            isinstance(result, dict) or result,
            [(raw(t._array), t._version) for t in (x, y) if isinstance(t, tp.Tensor)],
        ))  # fmt: skip
    assert found[0] == found[1]


@pytest.mark.parametrize(
    ("name", "alpha"),
    [("add", None), ("sub", None), ("mul", None), ("div", None), ("add", 0.5), ("sub", 0.5)],
)
def test_writes_over_what_they_read(name: str, alpha: float | None) -> None:
    op = OPERATORS[name]
    rest = tuple(op._defaults[n] if alpha is None else alpha for n in op.names[2:])
    parts = [slice(0, 8), slice(1, 9), slice(4, 12), slice(0, 16, 2), slice(15, 7, -1), 3]
    for mine, other in itertools.product(parts[:3], parts):
        found = []
        for compiled in (True, False):
            memory = np.arange(1.0, 17.0)
            x, y = (tensor_on(memory[part, ...], tp.float64) for part in (mine, other))
            assert quick_write(op, compiled=compiled)(x, y, *rest) is x
            found.append(memory.tobytes())
        assert found[0] == found[1], (mine, other)


def test_a_recorded_write_is_left_to_the_long_way() -> None:
    way = quick_write(OPERATORS["add"], compiled=True)
    assert way(tp.ones(2), tp.ones(2, requires_grad=True), 1) is None
    assert way(tp.ones(2)[:], 1.0, 1) is None
    assert way(tp.ones(1).expand(3), 1.0, 1) is None
    with tp.no_grad():
        x = tp.ones(2, requires_grad=True)
        assert way(x, 1.0, 1) is x
    assert (x.tolist(), x._version) == ([2.0, 2.0], 1)


# --- what is recorded -----------------------------------------------------------------------------


def test_versions_and_histories() -> None:
    leaf = tp.ones(3, requires_grad=True)
    with tp.no_grad():
        leaf.add_(1.0)
    written = leaf * 2.0
    part = leaf.unbind()[1]
    view = leaf[1:]
    for x, y in itertools.product((leaf, written, view.exp(), view, 2.0), repeat=2):
        for name in ("mul", "div", "add", "pow"):
            compiled, python = named(name)
            assert outcome(compiled, x, y) == outcome(python, x, y)
    compiled, python = named("mul")
    assert outcome(compiled, part, 2.0)["node"]["sources"][0][0] is Edge
    assert outcome(compiled, part, part) == outcome(python, part, part)
    for name, rest in (("reshape", ((3, 1),)), ("_slice", (0,)), ("unsqueeze", (0,))):
        for x in (leaf, written, view, part.reshape(1, 1)):
            compiled, python = named(name)
            first, second = outcome(compiled, x, *rest), outcome(python, x, *rest)
            assert first == second or x is part


def test_views_see_a_history_that_their_base_got_later() -> None:
    for name, args in (("exp", ()), ("mul", (2.0,)), ("reshape", ((2, 1),)), ("_slice", (0,))):
        base = tp.zeros(2, 2)
        view = base[0]
        base[0] = tp.ones(2, requires_grad=True) * 3
        assert named(name)[0](view, *args).requires_grad


def test_an_inference_tensor_is_not_saved() -> None:
    with tp.inference_mode():
        frozen = tp.ones(2)
    leaf = tp.ones(2, requires_grad=True)
    for name in ("mul", "add", "exp"):
        args = (frozen,) if name == "exp" else (leaf, frozen)
        compiled, python = named(name)
        assert outcome(compiled, *args) == outcome(python, *args)
    assert named("_slice")[0](frozen, 0) is None
    assert quick_write(OPERATORS["add"], compiled=True)(frozen, 1.0, 1) is None


def test_what_it_must_leave_alone() -> None:
    class Special(tp.Tensor):
        pass

    add = named("add")[0]
    x = tp.ones(2)
    for other in (Special([1.0, 2.0]), np.ones(2), np.float32(1), True, None, "1", [1.0], 1j,
                  tp.ones(2, device="meta"), tp.ones(2, dtype=tp.float16)):  # fmt: skip
        assert add(x, other) is None
        assert add(other, x) is None
    assert add(1.0, 2.0) is None
    assert named("matmul")[0](x, 2.0) is None
    assert named("exp")[0](2.0) is None
    with long_way_only():
        assert add(x, x) is None
    with tp.autograd.forward_ad.dual_level():
        dual = tp.autograd.forward_ad.make_dual(x, x)
        assert add(dual, x) is None
        assert named("exp")[0](dual) is None


def test_errors_of_python_functions_come_through() -> None:
    class OddError(Exception):
        pass

    class Odd:
        def __eq__(self, other: object) -> bool:
            raise OddError

        __hash__ = None  # type: ignore[assignment]

    for way in named("sum"):
        with pytest.raises(OddError):
            way(tp.ones(3), Odd(), False, None)


def test_wrong_calls() -> None:
    x = tp.ones(2)
    with pytest.raises(TypeError, match="positional argument"):
        tp.Tensor.__add__(x)
    with pytest.raises(TypeError, match="positional argument"):
        x.__add__(x, x)
    assert x.__add__(other=x).tolist() == [2.0, 2.0]
    with pytest.raises(TypeError, match="other arguments"):
        quick_call(OPERATORS["add"], compiled=True)(x)
    with pytest.raises(TypeError):
        type(tp.Tensor.__add__)()


def test_special_methods_bind_and_are_described() -> None:
    x = tp.tensor([1.0, 2.0])
    bound = x.__sub__
    assert bound(1.0).tolist() == [0.0, 1.0]
    assert x.__rsub__(1.0).tolist() == [0.0, -1.0]
    assert tp.Tensor.__sub__(x, 1.0).tolist() == [0.0, 1.0]
    assert (-x).tolist() == [-1.0, -2.0]
    x += 1
    assert x.tolist() == [2.0, 3.0]
    assert tp.Tensor.__sub__.__name__ == "__sub__"
    assert tp.Tensor.__sub__.__qualname__ == "Tensor.__sub__"
    assert list(inspect.signature(tp.Tensor.__sub__).parameters) == ["self", "other"]
    assert inspect.isroutine(tp.Tensor.__sub__)
    assert x.__add__("a") is NotImplemented


# --- surroundings ---------------------------------------------------------------------------------


def test_numpy_warns_of_its_own_calls_only() -> None:
    x = tp.tensor([1e38, 0.0, -1.0])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for call in (lambda: x * x, lambda: x / 0.0, x.log, x.sqrt, x.exp, lambda: x * 1e300):
            call()
            one = np.ones(3)
            assert (one + one).sum() == 6
            assert one @ one == 3
            assert one.astype(np.float32).astype(np.int64).sum() == 3
            assert np.float32(1) + np.float32(2) == 3
            assert np.sqrt(np.float64(4)) == 2
            assert np.add.accumulate(one)[-1] == 3
            assert np.linalg.det(np.eye(2)) == 1


CALLS = {
    "add": lambda x, y: x + y,
    "number": lambda x, y: 2.5 * x - 1,
    "constant": lambda x, y: x * 0.0 + 2**60,
    "broadcast": lambda x, y: x + y[:, :1],
    "exp": lambda x, y: x.exp(),
    "python": lambda x, y: x.sigmoid(),
    "sum": lambda x, y: x.sum() + x.sum(0) + x.mean(1, keepdim=True),
    "views": lambda x, y: x.reshape(-1).reshape(2, 2).t()[0][:1].unsqueeze(0).squeeze(),
    "matmul": lambda x, y: x @ y,
    "write": lambda x, y: x.detach().clone().add_(y.detach()).sub_(2, alpha=0.5).mul_(x.detach()),
    "saved": lambda x, y: (x * y).tanh() / y,
    "miss": lambda x, y: x + tp.ones(2, 2, dtype=tp.float64),
    "refused": lambda x, y: contextlib.suppress(RuntimeError).__class__ and _refused(x),
}


def _refused(x: Any) -> None:
    with contextlib.suppress(RuntimeError, IndexError):
        x + tp.ones(3, 3)
    with contextlib.suppress(RuntimeError, IndexError):
        x[5]


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("track", [False, True])
def test_no_call_leaves_anything_behind(name: str, track: bool) -> None:
    x = tp.tensor([[1.0, 2.0], [3.0, 4.0]], requires_grad=track)
    y = tp.tensor([[0.5, 0.25], [2.0, 1.0]], requires_grad=track)
    call = CALLS[name]
    watched = [
        *(x, y, x._array, tp.float32, np.dtype(np.float32), tp.Tensor, PrimitiveNode),
        *(OPERATORS["add"], OPERATORS["mul"], _quiet.quietly),
    ]  # fmt: skip

    def state() -> tuple[int, list[int]]:
        gc.collect()
        return sys.getallocatedblocks(), [sys.getrefcount(w) for w in watched]

    for _ in range(50):
        call(x, y)
    before = state()
    for _ in range(500):
        call(x, y)
    after = state()
    assert after[1] == before[1]
    assert after[0] - before[0] < 100


def test_special_methods_are_collected() -> None:
    def make() -> weakref.ref[Any]:
        def miss(self: Any, other: Any) -> Any:
            return made

        made = quick_special(OPERATORS["add"], miss, compiled=True)
        assert made(tp.ones(1), "a") is made
        return weakref.ref(miss)

    reference = make()
    gc.collect()
    assert reference() is None


def test_threads() -> None:
    leaf = tp.ones(4, requires_grad=True)
    problems: list[BaseException] = []

    def work() -> None:
        try:
            for _ in range(300):
                y = ((leaf * 2.0 + 1.0).exp() - leaf).reshape(2, 2)[1].sum()
                (found,) = tp.autograd.grad(y, leaf)
                assert found.tolist()[:2] == [0.0, 0.0]
        except BaseException as error:  # noqa: BLE001 - raised below
            problems.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not problems


@pytest.mark.parametrize("shape", [(2, 3), (1, 6), (3, 2)])
def test_view_is_reshape_where_that_is_a_view(shape: tuple[int, ...]) -> None:
    x = tp.arange(6.0).reshape(2, 3).requires_grad_()
    for view in (lambda t: t.view(shape), lambda t: t.view(*shape[:-1], -1)):
        short = view(x)
        with long_way_only():
            long = view(x)
        assert short._base is x
        assert short.grad_fn.name() == long.grad_fn.name() == "ReshapeBackward"
        assert (short.tolist(), short.stride()) == (long.tolist(), long.stride())
    with pytest.raises(RuntimeError, match="view size is not compatible"):
        x.t().view(6)


def test_gradients_of_what_was_expanded() -> None:
    x = tp.tensor([[1.0], [2.0]], requires_grad=True)
    for size in ((2, 3), (4, 2, 3), (2, -1)):
        weight = tp.arange(24.0)[: int(np.prod(x.expand(size).shape))].reshape(x.expand(size).shape)
        (short,) = tp.autograd.grad((x.expand(size) * weight).sum(), x)
        with long_way_only():
            (long,) = tp.autograd.grad((x.expand(size) * weight).sum(), x)
        assert short.tolist() == long.tolist()


def test_a_saved_tensor_can_be_packed() -> None:
    leaf = tp.ones(2, requires_grad=True)
    node = (leaf * 3.0 * leaf).grad_fn
    assert isinstance(node._raw_saved_other, SavedTensor)
    assert isinstance(node.next_functions[1][0], AccumulateGrad)


@pytest.mark.slow
def test_the_short_ways_of_python_pass_the_same_tests() -> None:
    here = Path(__file__)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider",
         here.with_name("test_quick.py")],
        env={**os.environ, "TENSORPLAY_NATIVE": "0"}, cwd=here.parents[2],
        check=False, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-2000:]
