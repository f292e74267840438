"""What is left of a call besides results: after exceptions, in caches, copies, containers."""

from __future__ import annotations

import collections
import copy
import functools
import importlib
import itertools
import operator
import pickle
import sys
import types

import numpy as np
import pytest

import tensorplay as tp
from tensorplay import library, nn
from tensorplay.graph import GraphCaptureError

# --- exceptions -----------------------------------------------------------------------------------


def add_and_select(x, index):
    x.add_(1)
    y = tp.arange(3).index_select(0, index)
    x.mul_(2)
    return y


def add_noise_and_select(x, index):
    x.add_(tp.rand(2))
    return tp.arange(3).index_select(0, index)


@pytest.mark.parametrize("function", [add_and_select, add_noise_and_select])
def test_writes_before_an_exception_are_there_once(function, backend) -> None:
    f = tp.compile(function, backend=backend, fullgraph=True)
    f(tp.zeros(2), tp.tensor([1]))
    programs = f.report().programs
    for index in ([7], [0], [9], [2]):
        states = []
        for g in (function, f):
            tp.manual_seed(3)
            x = tp.zeros(2)
            try:
                states.append((g(x, tp.tensor(index)).tolist(), x.tolist(), tp.rand(1).item()))
            except IndexError as error:
                states.append((str(error), x.tolist(), tp.rand(1).item()))
        assert states[0] == states[1]
    assert f.report().programs == programs
    assert f.report().eager_calls == 0


RAISING = {
    "floor_divide": lambda x, n: x // n,
    "remainder": lambda x, n: x % n,
    "fmod": tp.fmod,
    "div": lambda x, n: tp.div(x, n, rounding_mode="trunc"),
    "pow": lambda x, n: x ** (n - 1),
    "shift": lambda x, n: x << (n - 1),
    "index": lambda x, n: x[4 * (n - 1)],
    "index_put": lambda x, n: tp.index_put(x, (2 - 3 * (n - 1),), x),
    "index_select": lambda x, n: x.index_select(0, n - 1),
    "index_add": lambda x, n: x.index_add(0, n - 1, x),
    "gather": lambda x, n: x.gather(0, n - 1),
    "scatter": lambda x, n: x.scatter(0, n - 1, x),
    "scatter_add": lambda x, n: x.scatter_add(0, n - 1, x),
    "one_hot": lambda x, n: tp.nn.functional.one_hot(n - 1, 3),
    "nll_loss": lambda x, n: tp.nn.functional.nll_loss(x.float().expand(3, 3), n - 1),
    "inv": lambda x, n: tp.linalg.inv(n.diag().float()),
    "cholesky": lambda x, n: tp.linalg.cholesky(n.diag().float()),
    "solve": lambda x, n: tp.linalg.solve(n.diag().float(), x.float()),
}


@pytest.mark.parametrize("requires_grad", [False, True])
@pytest.mark.parametrize("name", RAISING)
def test_a_step_that_raises_by_its_values_raises_though_nobody_uses_it(
    name, requires_grad, backend
) -> None:
    def function(x, n, y):
        RAISING[name](x, n)
        return y * 2

    f = tp.compile(function, backend=backend, fullgraph=True)
    x = tp.tensor([1, 2, 3])
    for n in ([1, 1, 1], [1, 0, 1], [1, 1, 1]):
        results = []
        for g in (function, f):
            y = tp.tensor([1.0, 2.0], requires_grad=requires_grad)
            try:
                results.append(g(x, tp.tensor(n), y).tolist())
            except (IndexError, RuntimeError, ValueError) as error:
                results.append((type(error), str(error)))
        assert results[0] == results[1]
        assert (results[0] == [2.0, 4.0]) is (0 not in n)
    assert f.report().eager_calls == 0


def test_a_division_of_floats_that_nobody_uses_is_left_out() -> None:
    f = tp.compile(lambda x: (x // 2, x + 1)[1], fullgraph=True)
    f(tp.ones(3))
    assert "floor_divide" not in str(f.report())


def test_an_operator_with_effects_is_not_run_again_after_an_exception() -> None:
    calls = []

    @library.custom_op("eagerly::note", mutates_args=())
    def note(x: tp.Tensor) -> tp.Tensor:
        calls.append(1)
        return x.clone()

    note.register_fake(tp.empty_like)
    note.register_effect(library.EffectType.ORDERED)

    def function(x, index):
        x.add_(1)
        return note(x), tp.arange(3).index_select(0, index)

    f = tp.compile(function, fullgraph=True, backend="interpreter")
    f(tp.zeros(2), tp.tensor([1]))
    calls.clear()
    with pytest.raises(IndexError):
        f(tp.zeros(2), tp.tensor([7]))
    assert len(calls) <= 1


def test_a_function_that_raises_for_some_values_is_compiled_for_others(backend) -> None:
    def function(x):
        if x.sum() < 0:
            message = "negative"
            raise ValueError(message)
        return x * 2

    f = tp.compile(function, backend=backend)
    with pytest.raises(ValueError, match="negative"):
        f(tp.tensor([-1.0]))
    assert f(tp.tensor([1.0])).item() == 2
    with pytest.raises(ValueError, match="negative"):
        f(tp.tensor([-1.0]))
    assert f(tp.tensor([3.0])).item() == 6
    assert f.report().programs == 1


# --- caches ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [None, 8])
def test_no_stand_in_stays_in_a_cache(size) -> None:
    @functools.lru_cache(maxsize=size)
    def weights(n):
        return [tp.ones(n) * 2]

    def function(x):
        return x * weights(2)[0]

    f = tp.compile(function)
    assert [f(tp.ones(2)).tolist() for _ in range(3)] == [[2.0, 2.0]] * 3
    assert weights(2)[0].tolist() == [2.0, 2.0]
    assert "the cache of weights" in f.report().breaks[0]
    assert f"test_eager_behaviour.py:{function.__code__.co_firstlineno}" in f.report().breaks[0]


class Scaled:
    """Callable, and without a name."""

    def __call__(self, n):
        return n * 2.0

    def method(self, n):
        return n * 2.0


CACHED = {
    "partial": functools.partial(operator.mul, 2.0),
    "partial of a partial": functools.partial(functools.partial(operator.mul), 2.0),
    "partial of a method": functools.partial(Scaled().method),
    "object": Scaled(),
    "method": Scaled().method,
    "builtin": functools.partial(operator.mul, 2.0).__call__,
    "lambda": lambda n: n * 2.0,
}


@pytest.mark.parametrize("name", CACHED)
def test_whatever_is_called_may_have_a_cache(name: str) -> None:
    cached = functools.lru_cache(CACHED[name])
    f = tp.compile(lambda x: x * cached(3.0), backend="interpreter", fullgraph=True)
    assert [f(tp.ones(1)).item() for _ in range(2)] == [6.0, 6.0]
    assert "the cache of" in str(f.report())
    g = tp.compile(lambda x: cached(x) + 1, backend="interpreter")
    assert [g(tp.ones(1)).item() for _ in range(2)] == [3.0, 3.0]
    assert "keeps a tensor in the cache of" in g.report().breaks[0]


def test_numbers_may_be_cached() -> None:
    calls = []

    @functools.lru_cache
    def factor(n):
        return n / 2

    f = tp.compile(lambda x: x * factor(len(x)), fullgraph=True)
    assert [f(tp.ones(n)).tolist()[0] for n in (2, 3, 2)] == [1.0, 1.5, 1.0]
    assert not calls


# --- results whose size depends on values ---------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "function"),
    [
        ("nonzero", lambda x: x.nonzero()),
        ("unique", lambda x: x.unique()),
        ("nonzero", lambda x: x[x > 1] * 2),
        ("repeat_interleave", lambda x: x.repeat_interleave(tp.tensor([1, 2, 3]))),
    ],
)
def test_results_of_unknown_size_run_eagerly_and_the_reason_is_said(name, function) -> None:
    x = tp.tensor([0.0, 1.0, 2.0])
    report = tp.compiler.explain(function)(x)
    np.testing.assert_array_equal(report.result.numpy(), function(x).numpy())
    if not report.programs:
        assert name in report.breaks[0]
        assert f"test_eager_behaviour.py:{function.__code__.co_firstlineno}" in report.breaks[0]
        with pytest.raises(GraphCaptureError, match=name):
            tp.compile(function, fullgraph=True)(x)


# --- copies ---------------------------------------------------------------------------------------


@tp.compile
def doubled(x):
    return x * 2


def tripled(x):
    return x * 3


def test_compiled_functions_and_modules_are_copied_and_pickled() -> None:
    assert copy.deepcopy(doubled) is doubled
    assert pickle.loads(pickle.dumps(doubled)) is doubled
    f = tp.compile(tripled, name="three", recompile_limit=3)
    f(tp.ones(2))
    for twin in (copy.copy(f), copy.deepcopy(f), pickle.loads(pickle.dumps(f))):
        assert twin is not f
        assert twin(tp.ones(2)).tolist() == [3.0, 3.0]
        assert repr(twin) == "<compiled three>"
        assert twin.report().programs == 1
    model = tp.compile(nn.Linear(2, 1))
    x = tp.ones(1, 2)
    expected = model(x).item()
    twins = copy.deepcopy(model), pickle.loads(pickle.dumps(model))
    with tp.no_grad():
        model.weight.zero_()
        model.bias.zero_()
    assert model(x).item() == 0
    for twin in twins:
        assert twin(x).item() == pytest.approx(expected)


# --- mappings -------------------------------------------------------------------------------------


class Upper(dict):
    """Finds items by small letters."""

    def __getitem__(self, key):
        return super().__getitem__(key.upper())


@pytest.mark.parametrize(
    "make",
    [
        dict,
        collections.OrderedDict,
        lambda items: collections.defaultdict(list, items),
        types.MappingProxyType,
        collections.UserDict,
        Upper,
    ],
)
def test_mappings_are_seen_as_what_they_are(make, backend) -> None:
    def function(d):
        return type(d).__name__, d["a"] * d["k"]

    f = tp.compile(function, backend=backend, fullgraph=True)
    keys = ("A", "K") if make is Upper else ("a", "k")
    for number, factor in ((1.0, 2.0), (3.0, 2.0), (1.0, 4.0)):
        given = make(dict(zip(keys, (tp.ones(2) * number, factor), strict=True)))
        for _ in range(2):
            name, value = f(given)
            assert (name, value.tolist()) == (type(given).__name__, [number * factor] * 2)
    changed = make(dict(zip(keys, (tp.ones(2), 2.0), strict=True)))
    if not isinstance(changed, types.MappingProxyType):
        f(changed)
        changed[keys[1]] = 8.0
        assert f(changed)[1].tolist() == [8.0, 8.0]
        changed[keys[0]] = tp.zeros(2)
        assert f(changed)[1].tolist() == [0.0, 0.0]


@pytest.mark.parametrize("kind", [collections.OrderedDict, collections.defaultdict])
def test_mappings_come_back_as_what_they_were(kind, backend) -> None:
    def function(x):
        made = kind()
        made["b"], made["a"] = x * 2, [x + 1]
        return made

    for _ in range(2):
        result = tp.compile(function, backend=backend, fullgraph=True)(tp.ones(1))
        assert type(result) is kind
        assert list(result) == ["b", "a"]
        assert (result["b"].item(), result["a"][0].item()) == (2.0, 2.0)


def test_a_reordered_argument_is_reordered() -> None:
    def function(d):
        d.move_to_end("a")
        return d["a"] * 2

    f = tp.compile(function)
    for _ in range(2):
        given = collections.OrderedDict(a=tp.ones(1), b=tp.zeros(1))
        assert f(given).item() == 2
        assert list(given) == ["b", "a"]


# --- layouts --------------------------------------------------------------------------------------

LAYOUTS = {
    "row-major": lambda: tp.arange(24.0).reshape(2, 3, 4),
    "turned": lambda: tp.arange(24.0).reshape(4, 3, 2).permute(2, 1, 0),
    "cycled": lambda: tp.arange(24.0).reshape(3, 4, 2).permute(2, 0, 1),
    "expanded": lambda: tp.arange(8.0).reshape(2, 1, 4).expand(2, 3, 4),
    "sliced": lambda: tp.arange(96.0).reshape(4, 6, 4)[::2, ::2],
}
OF_ONE = {
    "scaled": lambda x: x * 2,
    "contiguous": lambda x: (x * 2).contiguous(),
    "reshaped": lambda x: (x * 2).reshape(6, 4),
    "viewed": lambda x: (x * 2).view(-1) if (x * 2).is_contiguous() else x * 3,
    "asked": lambda x: ((x * 2).stride(), x.sqrt().is_contiguous()),
    "turned": lambda x: x.transpose(0, 2) * 2 + 1,
    "written": lambda x: (x * 2).add_(1).mul_(x),
    "copied": lambda x: tp.zeros(2, 3, 4).copy_(x),
    "summed": lambda x: (x * 2).sum(1),
    "softmax": lambda x: x.softmax(1),
    "both": lambda x: (x * 2, (x * 2).contiguous(), x.transpose(0, 1).abs()),
}
OF_TWO = {
    "added": lambda x, y: x + y,
    "chosen": lambda x, y: tp.where(x > y, x, y * 2),
    "broadcast": lambda x, y: x + y[:, :, :1],
    "chained": lambda x, y: ((x + y) * x).reshape(-1) * 2,
    "written": lambda x, y: (x * 2).mul_(y),
}
#: Changes of an argument, which keeps its layout whatever the value had.
WRITES = {
    "added": lambda x, y: x.add_(y),
    "copied": lambda x, y: x.copy_(y),
    "filled": lambda x, y: x.fill_(2),
    "masked": lambda x, y: x.masked_fill_(y > 7, 0),
    "out": lambda x, y: tp.add(y, y, out=x),
    "by a view": lambda x, y: x.transpose(0, 1).mul_(2),
}


def laid(value):
    if isinstance(value, tuple):
        return [laid(v) for v in value]
    if isinstance(value, tp.Tensor):
        return (
            tuple(value.shape),
            value.stride(),
            value.is_contiguous(),
            value.numpy().round(2).tolist(),
        )
    return value


@pytest.mark.parametrize("name", OF_ONE)
def test_results_lie_as_eager_ones(name, backend) -> None:
    f = tp.compile(OF_ONE[name], backend=backend, fullgraph=True)
    for make in LAYOUTS.values():
        for _ in range(2):
            assert laid(f(make())) == laid(OF_ONE[name](make()))


@pytest.mark.parametrize("name", OF_TWO)
def test_results_of_two_lie_as_eager_ones(name, backend) -> None:
    f = tp.compile(OF_TWO[name], backend=backend, fullgraph=True, recompile_limit=40)
    for one, two in itertools.product(LAYOUTS.values(), repeat=2):
        assert laid(f(one(), two())) == laid(OF_TWO[name](one(), two()))


@pytest.mark.parametrize("name", WRITES)
def test_what_follows_a_write_lies_as_its_destination(name: str, backend) -> None:
    def function(x, y):
        WRITES[name](x, y)
        return x + 1

    layouts = [LAYOUTS[n] for n in ("row-major", "turned", "cycled", "sliced")]
    for one, other in itertools.product(layouts, layouts):
        x, same = one()[:, :2, :2], one()[:, :2, :2]
        y = other()[:, :2, :2]
        expected, result = function(x, y), tp.compile(function, backend=backend)(same, y)
        assert result.stride() == expected.stride()
        assert result.tolist() == expected.tolist()
        assert same.tolist() == x.tolist()


class CountingFinder:
    """One of `sys.meta_path` that does what no graph holds."""

    asked = 0

    @classmethod
    def find_spec(cls, *_: object) -> None:
        object.__new__(cls)
        cls.asked += 1


def test_imports_that_the_library_makes_are_not_looked_into(backend, monkeypatch) -> None:
    monkeypatch.setattr(sys, "meta_path", [CountingFinder, *sys.meta_path])
    monkeypatch.delitem(sys.modules, "colorsys", raising=False)

    def run(x):
        importlib.import_module("colorsys")  # as something of the library would, when first used
        return x + state["by"]

    state = {"by": 1.0}
    f = tp.compile(run, backend=backend, fullgraph=True)
    asked = CountingFinder.asked
    assert f(tp.ones(3)).tolist() == [2.0] * 3
    assert CountingFinder.asked > asked
    state["by"] = 2.0  # what is read after the import is guarded
    assert f(tp.ones(3)).tolist() == [3.0] * 3
