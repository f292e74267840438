"""The reverse pass of the extension does what Python's does."""

from __future__ import annotations

import gc
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import tensorplay as tp
from tensorplay import _native
from tensorplay.autograd import graph
from tests.autograd.both_ways import (
    PRIMITIVES,
    array_rules,
    bits,
    both,
    problem_of,
    python_only,
)

pytestmark = pytest.mark.skipif(_native.core is None, reason=f"extension: {_native.reason}")


# --- random graphs ------------------------------------------------------------------------------


class Cube(tp.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        ctx.save_for_backward(x)
        return x * x * x

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        (x,) = ctx.saved_tensors
        return grad * x * x * 3


class Scaled(tp.autograd.Function):
    """Two results, a number, and an input whose gradient is not wanted."""

    @staticmethod
    def forward(x: Any, factor: float, y: Any) -> Any:
        return x * factor, x + y

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.factor = inputs[1]
        ctx.out = output[0].detach()  # a tensor as an attribute

    @staticmethod
    def backward(ctx: Any, first: Any, second: Any) -> Any:
        return first * ctx.factor + second, None, second


class Exponential(tp.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        out = (x * 0.25).exp()
        ctx.save_for_backward(out, None)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        out, _ = ctx.saved_tensors
        return (grad * out * 0.25,)


def _write(x: Any, _: Any) -> Any:
    y = x * 1.0
    y[1:] = x[:-1] * 3
    y.mul_(0.5)
    return y


STEPS: dict[str, Callable[[Any, Any], Any]] = {
    "add": lambda x, y: x + y,
    "sub": lambda x, y: x - y,
    "mul": lambda x, y: x * y,
    "div": lambda x, y: x / (y * y + 1),
    "number": lambda x, _: 1.5 - x * 0.75,
    "zero": lambda x, _: x * 0 + x,
    "whole": lambda x, _: x * 3,
    "pow": lambda x, _: x**2 * 0.1,
    "neg": lambda x, _: -x,
    "tanh": lambda x, _: x.tanh(),
    "sin": lambda x, _: x.sin(),
    "sigmoid": lambda x, _: x.sigmoid(),
    "relu": lambda x, _: x.relu(),
    "softmax": lambda x, _: x.softmax(0),
    "sum": lambda x, y: x.sum() * y,
    "mean": lambda x, y: y - x.mean(),
    "outer": lambda x, y: (x.unsqueeze(1) * y).sum(1),
    "rows": lambda x, y: (x.reshape(1, -1).expand(3, -1) * y).mean(0),
    "matmul": lambda x, y: (x.unsqueeze(0) @ y.unsqueeze(1)).reshape(1) + x,
    "split": lambda x, _: tp.cat(list(reversed(tp.split(x, 2)))),
    "unbind": lambda x, _: tp.stack([p * 2 for p in x.unbind(0)]),
    "pick": lambda x, y: x[0] * y,
    "flip": lambda x, _: x[tp.tensor(list(range(len(x)))[::-1])],
    "write": _write,
    "cube": lambda x, _: Cube.apply(x * 0.5),
    "scaled": lambda x, y: Scaled.apply(x, 0.5, y)[0] - Scaled.apply(y, 2.0, x.detach())[1],
    "exponential": lambda x, _: Exponential.apply(x),
    "detached": lambda x, y: x.detach() * y,
    "wide": lambda x, y: (x.double() * y.double()).to(x.dtype),
    "maximum": tp.maximum,
}
NAMES = sorted(STEPS)

step = st.tuples(st.sampled_from(NAMES), st.integers(0, 30), st.integers(0, 30))
programs = st.fixed_dictionaries({
    "steps": st.lists(step, min_size=1, max_size=14),
    "leaves": st.integers(1, 3),
    "size": st.sampled_from([1, 2, 4]),
    "dtype": st.sampled_from(["float32", "float64"]),
    "hooks": st.lists(st.tuples(st.integers(0, 30), st.integers(0, 4)), max_size=3),
    "roots": st.lists(st.integers(0, 30), min_size=1, max_size=2),
    "seed": st.integers(0, 1000),
})  # fmt: skip


class Run:
    """A program that ran forward: its leaves, its values, and what its hooks wrote down."""

    def __init__(self, program: dict[str, Any]) -> None:
        rng = np.random.default_rng(program["seed"])
        size, dtype = program["size"], program["dtype"]
        self.log: list[Any] = []
        self.leaves = [
            tp.from_numpy(rng.standard_normal(size).astype(dtype)).requires_grad_()
            for _ in range(program["leaves"])
        ]
        self.values = list(self.leaves)
        for name, first, second in program["steps"]:
            count = len(self.values)
            x, y = self.values[-1 - first % count], self.values[second % count]
            self.values.append(STEPS[name](x, y))
        for position, kind in program["hooks"]:
            self._watch(position % len(self.values), kind)
        self.roots = [
            value
            for n in program["roots"]
            if (value := self.values[-1 - n % len(self.values)]).requires_grad
            and value.grad_fn is not None
        ]

    def _watch(self, number: int, kind: int) -> None:
        value, log = self.values[number], self.log
        if not value.requires_grad:
            return
        if kind == 0:
            value.register_hook(lambda g: log.append(("tensor", number, bits(g))))
        elif kind == 1:
            value.register_hook(lambda g: g * 2)
        elif kind == 2 and value.grad_fn is None:
            value.register_post_accumulate_grad_hook(
                lambda t: log.append(("leaf", number, bits(t.grad)))
            )
        elif kind == 3:
            value.retain_grad()
        elif kind == 4 and value.grad_fn is not None:
            value.grad_fn.register_prehook(lambda gs: log.append(("pre", number, len(gs))))
            value.grad_fn.register_hook(
                lambda gi, go: log.append(("post", number, [bits(g) for g in (*gi, *go)]))
            )

    def grads(self) -> list[Any]:
        return [bits(v._grad) for v in self.values]


def start(run: Run) -> list[Any]:
    return [tp.ones_like(root.detach()) * 0.5 for root in run.roots]


@settings(max_examples=150, deadline=None)
@given(programs, st.booleans())
def test_random_graphs_get_the_same_gradients_bit_by_bit(program: Any, retain: bool) -> None:
    def run() -> Any:
        made = Run(program)
        if not made.roots:
            return None
        first = problem_of(
            lambda: tp.autograd.backward(made.roots, start(made), retain_graph=retain)
        )
        between = made.grads()
        # Whether the graph is freed shows in a second pass, which adds to what is there.
        second = problem_of(lambda: tp.autograd.backward(made.roots, start(made)))
        return first, between, second, made.grads(), made.log

    ours, theirs = both(run)
    assert ours == theirs


@settings(max_examples=100, deadline=None)
@given(programs, st.lists(st.integers(0, 30), min_size=1, max_size=3))
def test_random_graphs_get_the_same_gradients_of_any_values(program: Any, wanted: Any) -> None:
    def run() -> Any:
        made = Run(program)
        inputs = [made.values[n % len(made.values)] for n in wanted]
        inputs = [x for x in inputs if x.requires_grad]
        if not made.roots or not inputs:
            return None
        found: list[Any] = []

        def grad() -> None:
            grads = tp.autograd.grad(
                made.roots, inputs, start(made), allow_unused=True, retain_graph=True
            )
            found.extend(bits(g) for g in grads)

        first = problem_of(grad)
        second = problem_of(lambda: tp.autograd.backward(made.roots, start(made), inputs=inputs))
        return first, found, second, made.grads(), made.log

    ours, theirs = both(run)
    assert ours == theirs


@settings(max_examples=40, deadline=None)
@given(programs)
def test_gradients_of_random_graphs_are_those_of_a_recorded_pass(program: Any) -> None:
    made = Run({**program, "hooks": []})
    if not made.roots:
        return
    wanted = made.leaves
    again = tp.autograd.grad(made.roots, wanted, start(made), allow_unused=True, create_graph=True)
    plain = tp.autograd.grad(made.roots, wanted, start(made), allow_unused=True)
    for a, b in zip(again, plain, strict=True):
        assert (a is None) == (b is None)
        if a is not None:
            np.testing.assert_allclose(a.detach().numpy(), b.numpy(), rtol=1e-4, atol=1e-5)


# --- formulas on arrays -------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [tp.float32, tp.float64], ids=str)
@pytest.mark.parametrize("op", [o for o in PRIMITIVES if o.ufunc and o.vjp], ids=lambda o: o.name)
@pytest.mark.parametrize(
    "shape", [(), (1,), (5,), (2, 3), (3, 0), (5000,)], ids=lambda s: "x".join(map(str, s)) or "0d"
)
def test_formulas_give_the_same_on_arrays_of_any_size(op: Any, dtype: Any, shape: Any) -> None:
    rng = np.random.default_rng(0)
    tensors = sum(kind == 0 for _, kind, _ in op.plan)
    arrays = [np.asarray(rng.uniform(0.1, 0.9, shape), dtype.numpy) for _ in range(4)]

    def variants(array: Any) -> Iterator[Any]:
        yield array
        if array.ndim == 2:
            yield np.asfortranarray(array)
            yield np.broadcast_to(array[:, :1], array.shape)
        if array.ndim == 1 and array.size > 1:
            yield np.repeat(array, 2)[::2]
            yield np.broadcast_to(array[:1], array.shape)

    with python_only():
        theirs = op.array_rules(dtype)
    ours = op.array_rules(dtype)
    checked = 0
    for way in range(3):
        for ours_rule, theirs_rule in zip(ours[way], theirs[way], strict=True):
            assert (ours_rule is None) == (theirs_rule is None)
            if ours_rule is None or type(theirs_rule) is type(ours_rule):
                continue
            for number in (0.5, 3, 0.0, float("nan"), np.asarray(0.5, dtype.numpy)):
                args: list[Any] = [a.copy() for a in arrays[:tensors]]
                if 0 < way <= tensors:
                    args[way - 1] = number
                args += [op._defaults[n] for n in op.names[tensors:]]
                for g in variants(arrays[2]):
                    with np.errstate(all="ignore"):
                        a, b = (
                            np.asarray(rule(g, args, None, arrays[3]))
                            for rule in (ours_rule, theirs_rule)
                        )
                    assert a.dtype == b.dtype
                    assert a.tobytes() == b.tobytes()
                    checked += 1
    assert checked or all(r is None or not isinstance(r, array_rules._program) for r in ours[0])


def test_programs_refuse_what_they_cannot_run() -> None:
    make = _native.core.ArrayProgram
    for steps, constants, result in (
        (((np.add, ((0, 0),)),), (), (4, 0)),  # two operands
        (((np.negative, ((4, 0),)),), (), (4, 0)),  # reads itself
        (((np.negative, ((3, 0),)),), (), (4, 0)),  # no constant
        ((), (), (4, 0)),
        ((), (), (7, 0)),
    ):
        with pytest.raises(ValueError, match="operand"):
            make(steps, constants, result)
    with pytest.raises(TypeError):
        make(((len, ((0, 0),)),), (), (4, 0))
    with pytest.raises(IndexError, match="argument"):
        make(((np.negative, ((2, 1),)),), (), (4, 0))(np.ones(2), [np.ones(2)], None, None)


def test_a_program_is_collected_with_what_it_holds() -> None:
    class Array(np.ndarray):
        pass

    constant = np.ones(2).view(Array)
    alive = weakref.ref(constant)
    program = _native.core.ArrayProgram(((np.multiply, ((0, 0), (3, 0))),), (constant,), (4, 0))
    constant.program = program  # a cycle
    del constant, program
    gc.collect()
    assert alive() is None


# --- what a pass must leave as it is --------------------------------------------------------------


def test_numpy_warns_again_after_a_pass_and_inside_of_formulas() -> None:
    seen: list[Any] = []

    class Look(tp.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return x * 1

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            seen.append(np.geterr())
            return g

    x = tp.tensor([1.0, 2.0]).requires_grad_()
    before = np.geterr()
    (Look.apply(x.relu()).relu() ** 2).sum().backward()
    assert seen == [before]
    assert np.geterr() == before


def test_recording_is_off_in_formulas_and_as_it_was_afterwards() -> None:
    seen: list[Any] = []

    class Look(tp.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            seen.append(tp.is_grad_enabled())
            return x * 1

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            seen.append(tp.is_grad_enabled())
            raise KeyError("stop")

    x = tp.ones(2).requires_grad_()
    y = Look.apply(x).sum()
    with pytest.raises(KeyError):
        y.backward()
    assert tp.is_grad_enabled()
    with tp.no_grad(), pytest.raises(KeyError):
        y.backward()
    assert seen == [False, False, False]
    assert tp.is_grad_enabled()


def test_a_failed_formula_leaves_the_rest_of_the_graph_usable() -> None:
    class Fails(tp.autograd.Function):
        fail = True

        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            if Fails.fail:
                raise ZeroDivisionError("first")
            (x,) = ctx.saved_tensors
            return g * x * 2

    def run() -> Any:
        Fails.fail = True
        x = tp.tensor([1.0, 3.0]).requires_grad_()
        middle = Fails.apply(x.sin())
        y = middle.exp().sum()
        first = problem_of(lambda: y.backward(retain_graph=True))
        second = problem_of(lambda: middle.sum().backward(retain_graph=True))
        Fails.fail = False
        y.backward()
        return first, second, bits(x.grad), graph.running.passes

    ours, theirs = both(run)
    assert ours == theirs
    assert ours[0] == "ZeroDivisionError: first"


def test_a_pass_inside_of_a_pass() -> None:
    class Inner(tp.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            ctx.save_for_backward(x)
            return x.sin()

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            (x,) = ctx.saved_tensors
            with tp.enable_grad():
                twin = x.detach().requires_grad_()
                (found,) = tp.autograd.grad(twin.sin().sum(), twin)
            return g * found

    def run() -> Any:
        x = tp.tensor([0.5, -0.25]).requires_grad_()
        y = Inner.apply(Inner.apply(x) * 2).relu().sum()
        order: list[int] = []
        x.register_hook(lambda g: order.append(1))
        tp.autograd.graph.register_multi_grad_hook([x, y], lambda gs: order.append(len(gs)))
        y.backward()
        return bits(x.grad), order, graph.running.passes

    ours, theirs = both(run)
    assert ours == theirs
    assert ours[1:] == ([1, 2], [])


def test_hooks_that_a_formula_adds_run_in_the_same_pass() -> None:
    def run() -> Any:
        log: list[Any] = []
        x, y = (tp.tensor([1.0, 2.0]).requires_grad_() for _ in range(2))
        inner = x * 2.0

        class Adds(tp.autograd.Function):
            @staticmethod
            def forward(ctx: Any, t: Any) -> Any:
                return t * 1

            @staticmethod
            def backward(ctx: Any, g: Any) -> Any:
                node = graph.get_gradient_edge(x).node
                kept.append(node)
                node.register_prehook(lambda gs: log.append(("pre", bits(gs[0]))))
                node.register_hook(lambda gi, go: log.append(("post", len(gi), bits(go[0]))))
                y.register_hook(lambda t: log.append(("leaf", bits(t))))
                inner.register_hook(lambda t: log.append(("inner", bits(t))))
                return g

        kept: list[Any] = []
        Adds.apply((inner * y).tanh()).sum().backward()
        return log, bits(x.grad), bits(y.grad)

    ours, theirs = both(run)
    assert sorted(entry[0] for entry in ours[0]) == ["inner", "leaf", "post", "pre"]
    assert sorted(map(repr, ours[0])) == sorted(map(repr, theirs[0]))
    assert ours[1:] == theirs[1:]


def test_two_threads_run_passes_at_once_over_shared_leaves() -> None:
    x = tp.ones(64).requires_grad_()
    shared = (x * 2).sin()
    times, failures = 50, []

    def work() -> None:
        try:
            for _ in range(times):
                (shared * 1.5).sum().backward(retain_graph=True)
                (x * 3).sum().backward()
        except Exception as error:  # noqa: BLE001 - shown below
            failures.append(error)

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        threads = [threading.Thread(target=work) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(before)
    assert failures == []
    expected = len(threads) * times * (1.5 * 2 * np.cos(2.0) + 3)
    np.testing.assert_allclose(x.grad.numpy(), expected, rtol=1e-4)


def test_deep_graphs_need_no_stack_in_the_pass_and_when_they_die() -> None:
    x = tp.ones(2, dtype=tp.float64).requires_grad_()
    y = x
    for _ in range(100_000):
        y = y + 1.0
    alive = weakref.ref(y.grad_fn)
    y.sum().backward()
    assert x.grad.tolist() == [1.0, 1.0]
    del y
    gc.collect()
    assert alive() is None


def test_a_deep_graph_of_functions_dies_without_a_stack() -> None:
    x = tp.ones(1).requires_grad_()
    y = x
    for _ in range(20_000):
        y = Cube.apply(y)
    y.backward()
    assert x.grad.tolist() == [float("inf")]
    del y
    gc.collect()


def test_passes_leave_no_references_behind() -> None:
    x = tp.ones(4).requires_grad_()

    def step() -> None:
        y = Cube.apply(x * 2.0).tanh()
        z = Scaled.apply(y, 2.0, x)[0] + Exponential.apply(x)[1:].sum()
        z.sum().backward()
        tp.autograd.grad((x * x).sum(), x)
        problem_of(lambda: tp.autograd.backward([x * 1], [3]))
        x.grad = None

    for _ in range(3):
        step()
    gc.collect()
    gc.disable()
    try:
        before, blocks = len(gc.get_objects()), sys.getallocatedblocks()
        for _ in range(50):
            step()
        assert len(gc.get_objects()) - before < 20  # without collecting: no cycles either
        assert sys.getallocatedblocks() - blocks < 200
    finally:
        gc.enable()


def test_a_gradient_is_nobody_elses_memory() -> None:
    x, y = (tp.ones(3).requires_grad_() for _ in range(2))
    start_from = tp.ones(3)
    (x + y).backward(start_from)
    for leaf in (x, y):
        assert not np.shares_memory(leaf.grad.numpy(), start_from.numpy())
    assert not np.shares_memory(x.grad.numpy(), y.grad.numpy())
    kept = x.grad
    (x + y).backward(start_from)
    assert x.grad is kept
    assert x.grad.tolist() == [2.0, 2.0, 2.0]
    assert kept._version == 1


def test_a_pass_hears_of_signals() -> None:
    import _thread

    class Interrupt(tp.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return x * 1

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            _thread.interrupt_main()
            return g

    x = tp.ones(1).requires_grad_()
    y = x
    for _ in range(5000):
        y = y + 1.0
    with pytest.raises(KeyboardInterrupt):
        Interrupt.apply(y).backward()
    assert tp.is_grad_enabled()
    assert graph.running.passes == []


@pytest.mark.parametrize(
    "given", [(), (None, "yes"), (3,), (tp.ones(3),), (tp.ones(2).double(),), (None, None, True)]
)
def test_starts_of_a_pass_are_refused_with_the_same_words(given: Any) -> None:
    def run() -> Any:
        x = tp.tensor([1.0, 2.0]).requires_grad_()
        y = x * x
        first = problem_of(lambda: y.backward(*given))
        return first, bits(x.grad), problem_of(x.detach().backward), problem_of(x.sum().backward)

    ours, theirs = both(run)
    assert ours == theirs
