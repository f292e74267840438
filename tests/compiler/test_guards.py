"""What a compiled function reads from outside is live, guarded, or refused."""

from __future__ import annotations

import dataclasses
import functools
import os
import sys
import types
import weakref
from typing import NamedTuple

import numpy as np
import pytest

import tensorplay as tp
from tensorplay import nn
from tests.compiler.calls import close

SCALE = 2.0
TABLE = {"a": 1.0, "b": [1.0, 2.0]}
WEIGHT = tp.ones(1)
NUMBERS = np.array([1.0, 2.0])
COUNT = 0
TALLY: dict[str, object] = {}
LOG: list[int] = []
settings = types.SimpleNamespace(scale=2.0, inner=types.SimpleNamespace(bias=1.0))


def compiled(function, **kwargs):
    return tp.compile(function, backend="interpreter", fullgraph=True, **kwargs)


def one():
    return tp.ones(1)


def test_globals_are_guarded(monkeypatch) -> None:
    f = compiled(lambda x: x * SCALE)
    assert f(one()).item() == 2
    monkeypatch.setitem(globals(), "SCALE", 3.0)
    assert f(one()).item() == 3
    assert f.report().recompiles == ("global 'SCALE' is 2.0 no longer",)
    monkeypatch.setitem(globals(), "SCALE", 2.0)
    assert f(one()).item() == 2
    assert f.report().programs == 2


def test_globals_of_text_that_is_run_are_guarded() -> None:
    # As in `python -c`, in a doctest, and in methods that dataclasses write.
    scope = {"tp": tp, "scale": 2.0}
    code = compile("def f(x): return x * scale", "<string>", "exec").co_consts[0]
    f = compiled(types.FunctionType(code, scope))
    assert f(one()).item() == 2
    scope["scale"] = 3.0
    assert f(one()).item() == 3
    assert f.report().recompiles == ("global 'scale' is 2.0 no longer",)


def test_records_made_inside_are_no_state() -> None:
    @dataclasses.dataclass(frozen=True)
    class Pair:
        first: object
        scale: float = 2.0

    class Two(NamedTuple):
        first: object
        second: object

    def function(x):
        made = Pair(x)
        return Two(made.first * made.scale, x).first

    f = compiled(function)
    for value in (1.0, 2.0):
        assert f(tp.tensor([value])).item() == 2 * value
    assert f.report().programs == 1


def test_a_global_in_the_place_of_a_builtin_is_seen(monkeypatch) -> None:
    f = compiled(lambda x: x * max(2, 1))
    assert f(one()).item() == 2
    monkeypatch.setitem(globals(), "max", lambda a, b: 7)
    assert f(one()).item() == 7


@pytest.mark.parametrize("value", [0.0, -0.0, float("nan"), 1, True, 1.0, "s", None])
def test_equal_numbers_of_other_kinds_are_told_apart(value, monkeypatch) -> None:
    f = compiled(lambda x: (x * 1, SCALE))
    for other in (0.0, -0.0, 1, True, 1.0, value, None, "s"):
        monkeypatch.setitem(globals(), "SCALE", other)
        found = f(one())[1]
        assert repr(found) == repr(other)
        assert type(found) is type(other)


def test_variables_of_enclosing_functions_are_guarded() -> None:
    def make():
        k = 1.0

        def change(value):
            nonlocal k
            k = value

        return (lambda x: x * k), change

    function, change = make()
    f = compiled(function)
    assert f(one()).item() == 1
    change(5.0)
    assert f(one()).item() == 5
    assert "variable 'k' of an enclosing function is 1.0 no longer" in f.report().recompiles


def test_attributes_are_guarded() -> None:
    f = compiled(lambda x: x * settings.scale + settings.inner.bias)
    assert f(one()).item() == 3
    settings.scale = 4.0
    assert f(one()).item() == 5
    settings.inner.bias = 2.0
    assert f(one()).item() == 6
    settings.inner = types.SimpleNamespace(bias=0.0)
    assert f(one()).item() == 4


def test_items_and_containers_are_guarded() -> None:
    f = compiled(lambda x: x * TABLE["a"] + sum(TABLE["b"]) + len(TABLE))
    assert f(one()).item() == 6
    TABLE["a"] = 2.0
    assert f(one()).item() == 7
    TABLE["b"].append(10.0)
    assert f(one()).item() == 17
    TABLE["c"] = 0
    assert f(one()).item() == 18
    del TABLE["c"], TABLE["b"][-1]
    TABLE["a"] = 1.0
    assert f(one()).item() == 6


def test_tensors_outside_are_live(monkeypatch) -> None:
    f = compiled(lambda x: x * WEIGHT)
    assert f(one()).item() == 1
    WEIGHT.fill_(3)
    assert f(one()).item() == 3
    monkeypatch.setitem(globals(), "WEIGHT", tp.full((1,), 7.0))
    assert f(one()).item() == 7
    assert f.report().programs == 1
    assert f.report().shapes == 1
    monkeypatch.setitem(globals(), "WEIGHT", tp.full((2,), 7.0, requires_grad=True))
    out = f(one())
    assert out.tolist() == [7, 7]
    out.sum().backward()
    assert WEIGHT.grad.tolist() == [1, 1]


def test_small_arrays_are_guarded_by_their_elements() -> None:
    f = compiled(lambda x: x * float(NUMBERS[0]))
    assert f(one()).item() == 1
    NUMBERS[0] = 4.0
    assert f(one()).item() == 4
    NUMBERS[0] = 1.0


def helper(x):
    return x * SCALE


def test_functions_that_are_called_are_looked_at(monkeypatch) -> None:
    f = compiled(lambda x: helper(x) + 1)
    assert f(one()).item() == 3
    monkeypatch.setitem(globals(), "SCALE", 5.0)
    assert f(one()).item() == 6
    monkeypatch.setitem(globals(), "helper", lambda x: x)
    assert f(one()).item() == 2


def test_functions_in_containers_and_partial_ones_are_looked_at(monkeypatch) -> None:
    steps = [helper, functools.partial(lambda k, x: x * k, 3.0)]

    def function(x):
        for step in steps:
            x = step(x)
        return x

    f = compiled(function)
    assert f(one()).item() == 6
    monkeypatch.setitem(globals(), "SCALE", 1.0)
    assert f(one()).item() == 3
    steps.append(lambda x: x + 1)
    assert f(one()).item() == 4


class Layer:
    def __init__(self, by):
        self.by = by

    def run(self, x):
        return x * self.by


def test_objects_met_in_loops_are_guarded() -> None:
    layers = [Layer(2.0), Layer(3.0)]

    def function(x):
        for layer in layers:
            x = layer.run(x) + layer.by
        return x

    f = compiled(function)
    assert f(one()).item() == 15
    layers[1].by = 1.0
    assert f(one()).item() == 5
    layers.pop()
    assert f(one()).item() == 4


def test_objects_as_arguments_are_told_apart_and_guarded() -> None:
    f = compiled(lambda x, layer: layer.run(x))
    a, b = Layer(2.0), Layer(3.0)
    assert [f(one(), v).item() for v in (a, b, a)] == [2, 3, 2]
    a.by = 9.0
    assert f(one(), a).item() == 9


def test_getattr_by_a_computed_name_is_guarded() -> None:
    layer = Layer(2.0)
    f = compiled(lambda x: x * getattr(layer, "b" + "y"))
    assert f(one()).item() == 2
    layer.by = 3.0
    assert f(one()).item() == 3


def test_objects_made_inside_are_free_to_change() -> None:
    def function(x):
        layer = Layer(2.0)
        values = []
        for _ in range(3):
            x = layer.run(x)
            values.append(x)
        return values[-1]

    assert compiled(function)(one()).item() == 8


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
        self.drop = nn.Dropout(0.5)
        self.scale = 2.0
        self.count = nn.Buffer(tp.zeros(1))

    def forward(self, x):
        return self.drop(self.layers(x)) * self.scale + self.count


@pytest.mark.parametrize("way", ["function", "method"])
def test_modules_are_live(way: str, backend) -> None:
    net = Net().eval()
    if way == "function":
        call = tp.compile(net, backend=backend, fullgraph=True)
    else:
        call = net
        net.compile(backend=backend, fullgraph=True)
    x = tp.randn(5, 3)

    def eager():
        return net.forward(x)

    close(call(x), eager())
    with tp.no_grad():
        net.layers[0].weight.mul_(2)
    close(call(x), eager())
    net.layers[0].weight = nn.Parameter(tp.randn(4, 3))
    close(call(x), eager())
    net.scale = 3.0
    close(call(x), eager())
    net.count += 1
    close(call(x), eager())
    net.layers[2] = nn.Linear(4, 2)
    close(call(x), eager())
    net.train()
    tp.manual_seed(1)
    got = call(x)
    tp.manual_seed(1)
    close(got, eager())
    net.eval()
    call(x).sum().backward()
    got = [p.grad for p in net.parameters()]
    net.zero_grad()
    eager().sum().backward()
    close(got, [p.grad for p in net.parameters()])


def test_hooks_of_modules_are_called() -> None:
    net = nn.Linear(2, 2)
    call = tp.compile(net, backend="interpreter")
    x = tp.ones(1, 2)
    close(call(x), net.forward(x))
    net.register_forward_hook(lambda module, args, out: out * 0)
    assert call(x).tolist() == [[0, 0]]


def test_buffers_that_change_are_written_once_in_each_call(backend) -> None:
    class Counter(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.seen = nn.Buffer(tp.zeros(1))

        def forward(self, x):
            self.seen.add_(1)
            return x * self.seen

    net = Counter()
    call = tp.compile(net, backend=backend, fullgraph=True)
    assert [call(one()).item() for _ in range(3)] == [1, 2, 3]
    assert net.seen.item() == 3


def count_calls(x):
    global COUNT  # noqa: PLW0603
    COUNT += 1
    return x * COUNT


def log_calls(x):
    LOG.append(1)
    return x * len(LOG)


def store_attribute(x):
    settings.last = x
    return x * 1


def store_computed(x):
    settings.scale += 1
    return x * settings.scale


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (count_calls, "assigns the global variable 'COUNT'"),
        (log_calls, "which changes what lies outside"),
        (store_attribute, "assigns the attribute 'last'"),
        (store_computed, "assigns the attribute 'scale'"),
    ],
)
def test_changes_of_the_world_run_eagerly(function, reason: str) -> None:
    f = tp.compile(function, backend="interpreter")
    results = [f(one()).item() for _ in range(3)]
    if function in {count_calls, log_calls}:
        assert results == [1, 2, 3]
    assert reason in f.report().breaks[0]
    assert "test_guards.py" in f.report().breaks[0]


def test_containers_of_the_caller_that_change_run_eagerly() -> None:
    def function(x, values):
        values.append(x)
        return x * 2

    f = tp.compile(function, backend="interpreter")
    values: list = []
    f(one(), values)
    assert len(values) == 1
    assert "changes a list or dictionary that it was given" in f.report().breaks[0]


def test_a_tensor_that_no_guard_finds_is_refused() -> None:
    class Hidden:
        __slots__ = ("get",)

    held = one()
    hidden = Hidden()
    hidden.get = {"x": held}.__getitem__
    f = tp.compile(lambda x: x * hidden.get("x"), backend="interpreter")
    assert f(one()).item() == 1
    held.fill_(2)
    assert f(one()).item() == 2


def test_an_argument_that_is_also_read_from_outside() -> None:
    f = tp.compile(lambda x: x + WEIGHT * 10 if x is not WEIGHT else x * 3, backend="interpreter")
    with tp.no_grad():
        start, other = WEIGHT.item(), tp.full(WEIGHT.shape, 5.0)
        for _ in range(2):
            assert f(WEIGHT).tolist() == [3 * start] * len(WEIGHT)
            assert f(other).tolist() == [5 + 10 * start] * len(WEIGHT)


def test_an_argument_that_is_in_a_list_outside() -> None:
    known = [tp.ones(1)]
    f = tp.compile(lambda x: x * 2 if any(x is t for t in known) else x * 3, backend="interpreter")
    for _ in range(2):
        assert f(one()).item() == 3
        assert f(known[0]).item() == 2


def change_item(x):
    TALLY["list"][0] += 1
    TALLY["n"] += 1
    return x * TALLY["n"]


def change_by_variables(x):
    held, table, numbers, array = (TALLY[k] for k in ("list", "dict", "set", "array"))
    held.append(1)
    table[len(table)] = x
    numbers.add(len(numbers))
    array += 1
    return x * 2


@pytest.mark.parametrize("function", [change_item, change_by_variables])
def test_changes_found_after_the_run_happen_once(function, monkeypatch) -> None:
    found = []
    for f in (function, tp.compile(function, backend="interpreter")):
        tally = {"n": 0, "list": [0], "dict": {}, "set": set(), "array": np.zeros(2)}
        monkeypatch.setitem(globals(), "TALLY", tally)
        out = [f(one()).item() for _ in range(3)]
        counts = [tally["n"], tally["list"], len(tally["dict"]), tally["set"]]
        found.append((out, counts, tally["array"].tolist()))
    assert found[0] == found[1]
    assert all(type(x) is tp.Tensor for x in tally["dict"].values())


@pytest.mark.parametrize(
    "ask",
    [
        lambda t: t.item(),
        float,
        lambda t: 2 if t else 3,
        lambda t: t.tolist(),
        lambda t: float(t.numpy()),
        lambda t: float(np.asarray(t)),
        lambda t: len(repr(t)),
        lambda t: 2 if t.grad is None else 3,
        lambda t: 2 if t.requires_grad else 3,
        lambda t: t._version + 1,
        lambda t: t.ndim + 1,
        lambda t: 2 if t.dtype is tp.float32 else 3,
    ],
)
def test_what_python_asks_of_a_tensor_outside(ask, monkeypatch) -> None:
    found = []
    for wrap in (lambda f: f, functools.partial(tp.compile, backend="interpreter")):
        f = wrap(lambda x: x * ask(WEIGHT))
        weight = tp.tensor(1.0)
        monkeypatch.setitem(globals(), "WEIGHT", weight)
        results = [f(one()).item()]
        weight.fill_(0.125)
        results.append(f(one()).item())
        weight.grad = tp.tensor(1.0)
        results.append(f(one()).item())
        weight.data = tp.tensor(1.0, dtype=tp.float64)
        results.append(f(one()).item())
        found.append(results)
    assert found[0] == found[1]


class Base:
    factor = 2.0

    def __init__(self):
        self.held = 2.0

    def method(self, x, by=2.0):
        return x * by

    @staticmethod
    def fixed(x):
        return x * 2.0

    @classmethod
    def of_class(cls, x):
        return x * cls.factor

    @property
    def computed(self):
        return self.held


class Other(Base):
    def method(self, x):
        return x * 7


def set_up():
    def helper(x, by=2.0, table=(2.0, [2.0]), *, named=2.0):
        return x * by * table[1][0] * named

    base = Base()
    return types.SimpleNamespace(
        base=base, kind=type("Kind", (Base,), {}), helper=helper, table={}, bare=Base(),
        weak=weakref.ref(base),
    )  # fmt: skip


CHANGES = {
    "method of the class": (
        lambda s, x: s.base.method(x),
        lambda s: setattr(type(s.base), "method", lambda self, x: x * 5),
    ),
    "method of the object": (
        lambda s, x: s.base.method(x),
        lambda s: setattr(s.base, "method", lambda x: x * 5),
    ),
    "the class": (
        lambda s, x: s.base.method(x),
        lambda s: setattr(s.base, "__class__", Other),
    ),
    "static method": (
        lambda s, x: s.kind.fixed(x),
        lambda s: setattr(s.kind, "fixed", staticmethod(lambda x: x * 5)),
    ),
    "class method": (
        lambda s, x: s.base.of_class(x),
        lambda s: setattr(type(s.base), "of_class", classmethod(lambda cls, x: x * 5)),
    ),
    "property": (
        lambda s, x: x * s.base.computed,
        lambda s: setattr(type(s.base), "computed", property(lambda self: 5.0)),
    ),
    "attribute hides that of the class": (
        lambda s, x: x * s.base.factor,
        lambda s: setattr(s.base, "factor", 5.0),
    ),
    "default": (
        lambda s, x: s.helper(x),
        lambda s: setattr(s.helper, "__defaults__", (5.0, (2.0, [2.0]))),
    ),
    "named default": (
        lambda s, x: s.helper(x),
        lambda s: setattr(s.helper, "__kwdefaults__", {"named": 5.0}),
    ),
    "content of the named defaults": (
        lambda s, x: s.helper(x),
        lambda s: s.helper.__kwdefaults__.update(named=5.0),
    ),
    "what a weak reference leads to": (
        lambda s, x: x * s.weak().factor,
        lambda s: setattr(s.base, "factor", 5.0),
    ),
    "content of a default": (
        lambda s, x: s.helper(x),
        lambda s: s.helper.__defaults__[1][1].__setitem__(0, 5.0),
    ),
    "code": (
        lambda s, x: s.helper(x),
        lambda s: setattr(s.helper, "__code__", (lambda x: x * 5).__code__),
    ),
    "hasattr": (
        lambda s, x: x * (5 if hasattr(s.bare, "late") else 2),
        lambda s: setattr(s.bare, "late", 1),
    ),
    "getattr with a default": (
        lambda s, x: x * getattr(s.bare, "late", 2),
        lambda s: setattr(s.bare, "late", 5),
    ),
    "get of a dictionary": (
        lambda s, x: x * s.table.get("late", 2),
        lambda s: s.table.update(late=5),
    ),
}


@pytest.mark.parametrize("name", CHANGES)
def test_what_is_replaced_later_is_seen(name: str, monkeypatch) -> None:
    ask, change = CHANGES[name]
    found = []
    for wrap in (lambda f: f, functools.partial(tp.compile, backend="interpreter")):
        s = set_up()
        s.base.__class__ = type("Fresh", (Base,), dict(vars(Base)))
        f = wrap(lambda x, s=s: ask(s, x))
        before = f(one()).item()
        change(s)
        found.append((before, f(one()).item()))
    assert found[0] == found[1]
    assert found[0][0] != found[0][1]


def test_what_super_finds_is_guarded() -> None:
    class First:
        def method(self, x):
            return x * 2

    class Second(First):
        pass

    class Third(Second):
        def method(self, x):
            return super().method(x) + 1

    third = Third()
    f = compiled(lambda x: third.method(x) + 0)
    assert f(one()).item() == 3
    First.method = lambda self, x: x * 5
    assert f(one()).item() == 6
    Second.method = lambda self, x: x * 7
    assert f(one()).item() == 8
    del Second.method
    assert f(one()).item() == 6


def test_a_cache_that_was_emptied_is_asked_again() -> None:
    state = {"factor": 2.0}

    @functools.lru_cache
    def factor(n):
        return n * state["factor"]

    f = compiled(lambda x: x * factor(3))
    factor(3)  # what it remembers is not computed in the capture
    assert f(one()).item() == 6
    state["factor"] = 5.0
    assert f(one()).item() == 6
    factor.cache_clear()
    assert f(one()).item() == 15
    assert f(one()).item() == 15
    factor(4)
    assert f(one()).item() == 15
    assert f.report().programs == 2


def names_that_come_later(x):
    try:
        by = LATE
    except NameError:
        by = 2.0
    try:
        return x * by * settings.late
    except AttributeError:
        return x * by


def test_names_that_come_later_are_seen(monkeypatch) -> None:
    f = compiled(names_that_come_later)
    assert f(one()).item() == 2
    monkeypatch.setitem(globals(), "LATE", 3.0)
    assert f(one()).item() == 3
    settings.late = 5.0
    assert f(one()).item() == 15
    del settings.late
    assert f(one()).item() == 3


def test_the_environment_and_files_are_seen(monkeypatch, tmp_path) -> None:
    place = tmp_path / "here"

    def function(x):
        return x * float(os.getenv("TP_TEST_FACTOR", "2")) + place.exists()

    f = tp.compile(function, backend="interpreter")
    assert f(one()).item() == 2
    monkeypatch.setenv("TP_TEST_FACTOR", "5")
    place.touch()
    assert f(one()).item() == 6


def test_what_changes_gradients_or_parameters_runs_eagerly_and_its_line_is_named() -> None:
    model = tp.nn.Linear(2, 1)
    optimizer = tp.optim.SGD(model.parameters(), lr=0.1)

    def forget(x):
        y = model(x).sum()
        optimizer.zero_grad()
        return y

    def forget_all(x):
        y = model(x).sum()
        model.zero_grad()
        return y

    def descend(x):
        y = model(x).sum()
        y.backward()
        return y * 2

    def clip(x):
        y = model(x).sum()
        tp.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        return y

    for f, call, line in (
        (forget, "zero_grad()", 2), (forget_all, "zero_grad()", 2), (descend, "backward()", 2),
        (clip, "clip_grad_norm_()", 2),
    ):  # fmt: skip
        compiled = tp.compile(f)
        for _ in range(2):
            model(tp.ones(1, 2)).sum().backward()
            compiled(tp.ones(1, 2))
            assert (model.weight.grad is None) == f.__name__.startswith("forget")
        (reason,) = compiled.report().breaks
        place = f"test_guards.py:{f.__code__.co_firstlineno + line} in {f.__name__}"
        assert call in reason
        assert place in reason
        model.zero_grad()


def test_lines_of_notebook_cells_are_named_by_their_number(monkeypatch) -> None:
    file = "work/ipykernel_12/345.py"
    scope = {"tp": tp}
    exec(compile("def f(x):\n    y = x * 2\n    print(y)\n    return y\n", file, "exec"), scope)  # noqa: S102 - code of a cell
    shell = types.SimpleNamespace(compile=types.SimpleNamespace(_filename_map={file: 7}))
    monkeypatch.setitem(sys.modules, "IPython", types.SimpleNamespace(get_ipython=lambda: shell))
    f = tp.compile(scope["f"])
    f(tp.ones(2))
    assert "In[7], line 3 in f" in f.report().breaks[0]
    with pytest.raises(tp.graph.GraphCaptureError, match=r"In\[7\], line 3 in f"):
        tp.compile(scope["f"], fullgraph=True)(tp.ones(2))
