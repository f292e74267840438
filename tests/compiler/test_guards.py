"""What a compiled function reads from outside is guarded."""

from __future__ import annotations

import dataclasses
import functools
import types
from typing import NamedTuple

import numpy as np
import pytest

import tensorplay as tp
from tests.compiler.calls import compiled, one

SCALE = 2.0
TABLE = {"a": 1.0, "b": [1.0, 2.0]}
NUMBERS = np.array([1.0, 2.0])
settings = types.SimpleNamespace(scale=2.0, inner=types.SimpleNamespace(bias=1.0))


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
