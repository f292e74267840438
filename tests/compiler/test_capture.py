"""What a compiled function gives, writes and keeps is what the function does."""

from __future__ import annotations

import collections
import random
import time
from typing import NamedTuple

import numpy as np
import pytest

import tensorplay as tp
from tensorplay.func.trees import flatten
from tensorplay.graph import GraphCaptureError
from tests.compiler.calls import close, run_with_gradients

THREE = [1.0, 2.0, 3.0]
ARRAY = np.ones(3, np.float32)


def plain():
    return (tp.tensor(THREE),)


def needs_grad():
    return (tp.tensor(THREE, requires_grad=True),)


def result_of_another():
    return (tp.tensor(THREE, requires_grad=True) * 1,)


def add_in_place(x):
    x += 1
    return x * 2


def write_a_slice(x):
    x[1:] *= 2
    return x.sum()


def write_through_a_view(x):
    y = x.view(-1)
    y.add_(1)
    return y


def write_through_a_name(x):
    y = x
    y.add_(1)
    return x


def write_after_detach(x):
    y = x.detach()
    y.add_(1)
    return x * 1


WRITES = [
    add_in_place, write_a_slice, write_through_a_view, write_through_a_name, write_after_detach,
]  # fmt: skip


@pytest.mark.parametrize("make", [plain, result_of_another], ids=lambda f: f.__name__)
@pytest.mark.parametrize("function", WRITES, ids=lambda f: f.__name__)
def test_writes_to_inputs_happen_once_in_each_call(function, make, backend) -> None:
    compiled = tp.compile(function, backend=backend, fullgraph=True)
    for _ in range(3):
        for got, want in zip(
            run_with_gradients(compiled, make), run_with_gradients(function, make), strict=True
        ):
            close(got, want)
    assert compiled.report().hits == 3


@pytest.mark.parametrize("function", WRITES[:4], ids=lambda f: f.__name__)
def test_writes_inside_have_their_gradients(function, backend) -> None:
    def inside(x):
        return function(x * 1)

    compiled = tp.compile(inside, backend=backend, fullgraph=True)
    for got, want in zip(
        run_with_gradients(compiled, needs_grad), run_with_gradients(inside, needs_grad),
        strict=True,
    ):  # fmt: skip
        close(got, want)


@pytest.mark.parametrize("function", WRITES[:4], ids=lambda f: f.__name__)
def test_writes_to_leaves_raise_what_the_function_raises(function) -> None:
    compiled = tp.compile(function, backend="interpreter")
    with pytest.raises(RuntimeError, match=r"a (view of a )?leaf Variable that requires grad"):
        compiled(*needs_grad())


def test_out_writes_its_destination_in_each_call(backend) -> None:
    compiled = tp.compile(lambda x, y: tp.add(x, 1, out=y), backend=backend, fullgraph=True)
    y = tp.zeros(3)
    for value in (1.0, 2.0, 3.0):
        assert compiled(tp.full((3,), value), y) is y
        assert y.tolist() == [value + 1] * 3
    assert y._version == 3


def test_a_write_counts_as_one_version(backend) -> None:
    compiled = tp.compile(lambda x: x.add_(1), backend=backend, fullgraph=True)
    x = tp.zeros(2)
    assert compiled(x) is x
    assert x._version == 1
    y = tp.ones(2, requires_grad=True)
    loss = (y * x).sum()
    compiled(x)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_arguments_that_overlap_are_written_as_without_compiling(backend) -> None:
    def function(x, y):
        x.add_(1)
        return y * 2

    compiled = tp.compile(function, backend=backend)
    assert compiled(tp.zeros(3), tp.zeros(2)).tolist() == [0, 0]
    x = tp.zeros(3)
    assert compiled(x, x[1:]).tolist() == [2, 2]
    assert compiled(x, x).tolist() == [4, 4, 4]


def test_structures_come_back_as_they_left(backend) -> None:
    Pair = collections.namedtuple("Pair", "first second")  # noqa: PYI024

    def function(d, *rest, scale=1):
        return Pair(d["x"] * scale, [{"sum": rest[0].sum()}, None, "text", 3, (rest[0],)])

    compiled = tp.compile(function, backend=backend, fullgraph=True)
    args = {"x": tp.ones(2)}, tp.arange(3.0)
    close(compiled(*args, scale=2), function(*args, scale=2))
    close(compiled(*args, scale=2), function(*args, scale=2))
    assert type(compiled(*args, scale=2)) is Pair
    assert compiled(*args)[1][4][0] is args[1]
    assert tp.compile(lambda: None, backend=backend)() is None


def test_aliases_among_results_and_arguments_stay(backend) -> None:
    def function(x):
        y = x + 1
        return y, y.view(-1), y[1:], y, x, x.t(), x.detach()

    compiled = tp.compile(function, backend=backend, fullgraph=True)
    x = tp.ones(2, 2)
    y, flat, tail, again, same, turned, detached = compiled(x)
    y[1, 0] = 9
    assert flat.tolist() == [2, 2, 9, 2]
    assert tail.tolist() == [[9, 2]]
    assert again is y
    assert same is x
    x[0, 1] = 5
    assert turned[1, 0].item() == 5
    assert detached[0, 1].item() == 5
    assert turned._base is x
    assert turned.stride() == (1, 2)
    assert detached is not x
    detached.requires_grad_()
    assert not x.requires_grad


@pytest.mark.parametrize("requires_grad", [False, True])
def test_results_are_one_object_where_they_were_one(requires_grad, backend) -> None:
    def function(x):
        y = x + 1
        view, plain = y[0], y.detach()
        return y, view, [view, {"y": y}], plain, plain, tp.real(y), y.detach(), x[0], x.t()

    def identities(f):
        found = flatten(f(tp.ones(2, 2, requires_grad=requires_grad)))[0]
        memory = [np.shares_memory(found[0].detach().numpy(), t.detach().numpy()) for t in found]
        return [[a is b for b in found] for a in found], memory

    compiled = tp.compile(function, backend=backend, fullgraph=True)
    assert identities(compiled) == identities(function) == identities(compiled)
    y, *_, other, _, _ = compiled(tp.ones(2, 2))
    other.requires_grad_()
    assert not y.requires_grad


def test_two_calls_share_no_memory(backend) -> None:
    compiled = tp.compile(lambda x: (x * 1, tp.zeros(2), tp.tensor([1.0])), backend=backend)
    first = compiled(tp.ones(2))
    for t in first:
        t.fill_(7)
    second = compiled(tp.ones(2))
    assert [t.tolist() for t in second] == [[1, 1], [0, 0], [1]]


def test_branches_on_data_are_taken_anew_in_each_call(backend) -> None:
    def function(x):
        count = 0
        while x.sum() > 1:
            x = x * 0.5
            count += 1
        return (x if x[0] > 0.1 else -x), count

    compiled = tp.compile(function, backend=backend, fullgraph=True)
    for value in (1.0, 0.1, 4.0, 1.0, 0.1, 4.0):
        close(compiled(tp.full((3,), value)), function(tp.full((3,), value)))
    report = compiled.report()
    assert report.eager_calls == 0
    assert report.programs == 3
    assert "bool() of a value at test_capture.py" in report.recompiles[0]


def test_a_write_after_a_branch_happens_only_on_the_branch_taken(backend) -> None:
    def function(x, y):
        y.add_(1)
        return x * 2 if x.sum() > 0 else x * 3

    compiled = tp.compile(function, backend=backend, fullgraph=True)
    y = tp.zeros(1)
    for sign in (1.0, -1.0, 1.0, -1.0):
        compiled(tp.full((2,), sign), y)
    assert y.item() == 4


def test_numbers_read_from_tensors_are_conditions(backend) -> None:
    compiled = tp.compile(lambda x, i: x[i] * i.item(), backend=backend, fullgraph=True)
    x = tp.tensor(THREE)
    assert [compiled(x, tp.tensor(i)).item() for i in (1, 2, 1, 2)] == [2, 6, 2, 6]


def test_the_truth_of_a_number_is_a_condition_and_not_the_number(backend) -> None:
    compiled = tp.compile(lambda x: x * 2 if x.sum() else x, backend=backend, fullgraph=True)
    for value in (1.0, 2.0, 0.0, 3.0, float("nan")):
        close(compiled(tp.full((2,), value)), tp.full((2,), value * 2))
    assert compiled.report().programs == 2


def test_what_python_looks_at_is_what_single_steps_give(backend) -> None:
    """Kernels round otherwise; a run that was given up gave its mark instead of results."""

    def function(x):
        return tp.rand(2) + x.sum(), f"{(x.exp() * 1.1).sum():.4f}"

    compiled = tp.compile(function, backend=backend, fullgraph=True)
    for n in range(12):
        x = tp.linspace(-1, 1, 37 + n % 3)
        tp.manual_seed(n)
        want = function(x)
        tp.manual_seed(n)
        close(compiled(x), want, rtol=1e-5, atol=1e-5)
    assert compiled.report().eager_calls == 0


TEXTS = {
    "repr": repr,
    "str": lambda x: str(x * 2),
    "format": lambda x: f"{x}",
    "percent": lambda x: "%s" % x.sum(),  # noqa: UP031 - one more way
    "a number": lambda x: f"{x.sum():.3f}",
}


@pytest.mark.parametrize("kind", TEXTS)
def test_texts_of_tensors_are_those_of_their_elements(kind) -> None:
    compiled = tp.compile(TEXTS[kind], backend="interpreter")
    for value in (1.0, 2.0, 1.0):
        x = tp.full((2,), value)
        assert compiled(x) == TEXTS[kind](x)
    said = [f"as text at {__name__.rpartition('.')[2]}.py" in b for b in compiled.report().breaks]
    assert said == ([] if kind == "a number" else [True])


def test_random_numbers_are_drawn_in_each_call(backend) -> None:
    def function(x):
        return tp.dropout(x, 0.5) + tp.randn(4) + tp.rand_like(x) + x.clone().normal_()

    compiled = tp.compile(function, backend=backend, fullgraph=True)
    tp.manual_seed(3)
    expected = [function(tp.ones(4)) for _ in range(3)]
    tp.manual_seed(3)
    for want in expected:
        close(compiled(tp.ones(4)), want)


def test_a_generator_of_the_users_goes_on(backend) -> None:
    generator = tp.Generator().manual_seed(1)
    compiled = tp.compile(lambda x: x + tp.randn(2, generator=generator), backend=backend)
    got = [compiled(tp.zeros(2)) for _ in range(2)]
    generator.manual_seed(1)
    for g in got:
        close(g, tp.randn(2, generator=generator))


REFUSED = {
    "numpy() at": lambda x: x * float(x.numpy().sum()),
    "random.random": lambda x: x * random.random(),
    "time.time": lambda x: x * (time.time() > 0),
    "which talks to the world": lambda x: input and x * 1,
    "data_ptr": lambda x: x * (x.data_ptr() > 0),
    "shares the memory of a NumPy array": lambda x: x + tp.from_numpy(ARRAY),
    "nonzero(), whose result has a size": lambda x: x[x > 1],
    "tolist()": lambda x: x * len(tp.cat([x] * 100).tolist()),
    "returns a object": lambda x: (x, object()),
}


@pytest.mark.parametrize("reason", REFUSED)
def test_what_no_graph_holds_runs_eagerly_for_a_reason(reason: str) -> None:
    function = REFUSED[reason]
    compiled = tp.compile(function, backend="interpreter")
    x = tp.tensor(THREE)
    for _ in range(2):
        got = compiled(x)
        assert isinstance(got[0] if isinstance(got, tuple) else got, tp.Tensor)
    report = compiled.report()
    assert report.eager_calls == 2
    assert report.programs == 0
    assert reason in report.breaks[0]
    with pytest.raises(GraphCaptureError, match=r"fullgraph|which a graph cannot hold"):
        tp.compile(function, backend="interpreter", fullgraph=True)(x)


def test_what_is_not_run_does_not_fail_the_capture() -> None:
    def function(x, verbose=False):
        if verbose:
            print(time.time())  # noqa: T201
            globals()["changed"] = 1
        return x * 2

    compiled = tp.compile(function, backend="interpreter", fullgraph=True)
    assert compiled(tp.ones(1)).item() == 2


def test_a_refusal_that_the_function_swallows_counts() -> None:
    def function(x):
        try:
            return x * float(x.numpy()[0])
        except Exception:  # noqa: BLE001
            return x * 0

    compiled = tp.compile(function, backend="interpreter")
    assert compiled(tp.tensor(THREE)).tolist() == THREE
    assert "numpy()" in compiled.report().breaks[0]


def test_what_the_function_raises_is_raised() -> None:
    def function(x):
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        tp.compile(function, backend="interpreter")(tp.ones(1))
    with pytest.raises(RuntimeError, match="matmul"):
        tp.compile(lambda x: x @ tp.ones(4, 4), backend="interpreter")(tp.ones(3, 3))


def test_classes_out_of_range_raise_in_compiled_losses(backend) -> None:
    compiled = tp.compile(tp.cross_entropy, backend=backend, fullgraph=True)
    logits = tp.randn(3, 4)
    target = tp.tensor([0, -100, 3])
    close(compiled(logits, target), tp.cross_entropy(logits, target))
    with pytest.raises(IndexError, match="Target 4 is out of bounds"):
        compiled(logits, tp.tensor([0, 4, 3]))
    with pytest.raises(IndexError, match="Target -1 is out of bounds"):
        compiled(logits, tp.tensor([0, -1, 3]))


def test_transforms_inside_and_outside(backend) -> None:
    doubled = tp.func.vmap(lambda r: (r * 2).sum())
    compiled = tp.compile(lambda x: doubled(x) + 0.0, backend=backend)
    assert compiled(tp.ones(3, 2)).tolist() == [4, 4, 4]
    slope = tp.func.grad(lambda a: (a**2).sum())
    compiled = tp.compile(lambda x: slope(x) * 1.0, backend=backend)
    assert compiled(tp.ones(2)).tolist() == [2, 2]
    assert compiled.report().programs == 1
    squares = tp.compile(lambda a: (a**2).sum(), backend=backend)
    assert tp.func.grad(squares)(tp.ones(2)).tolist() == [2, 2]
    assert tp.func.vmap(squares)(tp.ones(3, 2)).tolist() == [2, 2, 2]
    tangent = tp.func.jvp(squares, (tp.ones(2),), (tp.ones(2),))[1]
    assert tangent.item() == 4


def test_modes_and_inference(backend) -> None:
    compiled = tp.compile(lambda x: x * 2, backend=backend)
    x = tp.ones(2, requires_grad=True)
    assert compiled(x).requires_grad
    with tp.no_grad():
        assert not compiled(x).requires_grad
    with tp.inference_mode():
        assert compiled(x).is_inference()
    assert compiled(x).requires_grad


def test_strides_of_results_of_views(backend) -> None:
    compiled = tp.compile(lambda x: (x * 2).t(), backend=backend, fullgraph=True)
    assert compiled(tp.ones(2, 3)).stride() == (1, 3)
    close(compiled(tp.randn(3, 2).t()), compiled(tp.zeros(2, 3)) * 0, rtol=0, atol=9e9)
    x = tp.randn(3, 2).t()
    close(compiled(x), (x * 2).t())


def test_shapes_change_in_place_is_left_to_eager() -> None:
    compiled = tp.compile(lambda x: x.unsqueeze_(0) * 2, backend="interpreter")
    x = tp.ones(2)
    assert compiled(x).shape == (1, 2)
    assert x.shape == (1, 2)
    assert "changes the shape of x in place" in compiled.report().breaks[0]


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (lambda x: x.requires_grad_() * 2, "changes whether x requires grad"),
        (lambda x: x * 2 if x.grad is None else x, "reads x.grad"),
    ],
)
def test_flags_and_gradients_of_arguments_are_left_to_eager(function, reason) -> None:
    compiled = tp.compile(function, backend="interpreter")
    x, y = tp.ones(2), tp.ones(2)
    close(compiled(x), function(y))
    assert x.requires_grad is y.requires_grad
    assert reason in compiled.report().breaks[0]


def test_detaching_an_argument_in_place_is_left_to_eager() -> None:
    compiled = tp.compile(lambda x: x.detach_() * 2, backend="interpreter")
    (x,) = result_of_another()
    compiled(x)
    assert not x.requires_grad
    assert compiled.report().programs == 0


def test_a_function_that_never_succeeds_is_not_tried_for_ever() -> None:
    tried = []

    def function(x):
        tried.append(tp.compiler.is_compiling())
        return x * 2

    compiled = tp.compile(function, backend="interpreter")
    for n in range(1, 31):
        assert compiled(tp.ones(n)).shape == (n,)
    report = compiled.report()
    assert report.eager_calls == 30
    assert len(report.events) == 1
    assert tried == [False] * 30


def test_random_numbers_beside_a_branch_are_drawn_once(backend) -> None:
    def function(x):
        return x + tp.rand(3) if x.sum() > 0 else x - tp.rand(3)

    found = []
    for f in (function, tp.compile(function, backend=backend)):
        tp.manual_seed(0)
        found.append([f(sign * tp.ones(3)) for sign in (1, -1, 1, -1)] + [tp.rand(2)])
    close(found[1], found[0])


def test_row_major_copies_are_row_major(backend) -> None:
    function = lambda x: (x.contiguous(), x.contiguous() * 2)  # noqa: E731
    f = tp.compile(function, backend=backend)
    for x in (
        tp.rand(4, 6),
        tp.rand(4, 6).t(),
        tp.rand(8, 6)[::2],
        tp.rand(4, 1, 3).permute(2, 0, 1),
    ):
        got, want = f(x), function(x)
        close(got, want)
        assert [t.stride() for t in got] == [t.stride() for t in want]


def test_smooth_steps_at_infinity(backend) -> None:
    x = tp.tensor([-float("inf"), -0.0, float("inf"), float("nan"), 100.0])
    for function in (tp.nn.functional.softplus, tp.nn.functional.logsigmoid):
        close(tp.compile(function, backend=backend)(x), function(x))


def test_kinds_and_keys_of_structures_count(backend) -> None:
    class Key:
        def __init__(self, by: float) -> None:
            self.by = by

        def __repr__(self) -> str:
            return "Key"

    one, two = (NamedTuple("Pair", [("a", object), ("b", object)]) for _ in range(2))
    one.by, two.by = 2.0, 3.0
    f = tp.compile(lambda p: p.a * type(p).by, backend=backend)
    g = tp.compile(lambda d: next(iter(d.values())) * next(iter(d)).by, backend=backend)
    for by, kind in ((2, one), (3, two)):
        assert f(kind(tp.ones(1), tp.ones(1))).item() == by
        assert g({Key(by): tp.ones(1)}).item() == by
    h = tp.compile(lambda x: [collections.OrderedDict(a=x * 2)], backend=backend)
    assert type(h(tp.ones(1))[0]) is collections.OrderedDict
