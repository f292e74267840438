"""A function that changes what lies outside runs eagerly, and the line that does so is named."""

from __future__ import annotations

import sys
import types

import numpy as np
import pytest

import tensorplay as tp
from tests.compiler.calls import one

COUNT = 0
TALLY: dict[str, object] = {}
LOG: list[int] = []
settings = types.SimpleNamespace(scale=2.0)


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
    assert "test_side_effects.py" in f.report().breaks[0]


def test_containers_of_the_caller_that_change_run_eagerly() -> None:
    def function(x, values):
        values.append(x)
        return x * 2

    f = tp.compile(function, backend="interpreter")
    values: list = []
    f(one(), values)
    assert len(values) == 1
    assert "changes a list or dictionary that it was given" in f.report().breaks[0]


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
        place = f"test_side_effects.py:{f.__code__.co_firstlineno + line} in {f.__name__}"
        assert call in reason
        assert place in reason
        model.zero_grad()


def test_lines_of_notebook_cells_are_named_by_their_number(monkeypatch) -> None:
    file = "work/ipykernel_12/345.py"
    scope = {"tp": tp}
    exec(compile("def f(x):\n    y = x * 2\n    print(y)\n    return y\n", file, "exec"), scope)
    shell = types.SimpleNamespace(compile=types.SimpleNamespace(_filename_map={file: 7}))
    monkeypatch.setitem(sys.modules, "IPython", types.SimpleNamespace(get_ipython=lambda: shell))
    f = tp.compile(scope["f"])
    f(tp.ones(2))
    assert "In[7], line 3 in f" in f.report().breaks[0]
    with pytest.raises(tp.graph.GraphCaptureError, match=r"In\[7\], line 3 in f"):
        tp.compile(scope["f"], fullgraph=True)(tp.ones(2))


def test_a_property_on_the_way_to_what_is_written_is_not_asked() -> None:
    asked = []

    class Holder:
        @property
        def inner(self):
            asked.append(1)
            raise ValueError("nothing here")

    def function(holder, x, go):
        if go:
            holder.inner.weight += x
        return x * 2

    f = tp.compile(function)
    assert f(Holder(), tp.ones(2), False).tolist() == [2, 2]
    assert not asked
