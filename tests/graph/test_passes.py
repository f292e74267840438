"""Passes leave what a graph computes, bit by bit, and leave a graph."""

from __future__ import annotations

import pytest

import tensorplay as tp
from tensorplay import compiler
from tensorplay.graph import Graph, GraphModule, passes as p
from tensorplay.ops import OPERATORS as O

X = [-0.0, 0.0, 1.5, float("nan"), float("inf"), -2.0]


def captured(function, *args):
    """Return the graph and constants of a function as the capture leaves them."""
    found = []

    def backend(gm, example_inputs):
        found.append(gm)
        return gm.forward

    before, compiler.config.passes = compiler.config.passes, False
    try:
        with tp.no_grad():
            tp.compile(function, backend=backend, fullgraph=True)(*args)
    finally:
        compiler.config.passes = before
    return found[0]


def steps(gm) -> list[str]:
    return [n.target.name for n in gm.graph.find_nodes(op="call_function")]


@pytest.mark.parametrize(
    ("function", "left"),
    [
        (lambda x: x * 1, ["clone"]),
        (lambda x: 1 * x + x / 1, ["add"]),
        (lambda x: x + 0, ["add"]),  # of a negative zero it makes another one
        (lambda x: x - 0, ["clone"]),
        (lambda x: x.neg().neg() * 2, ["mul"]),
        (lambda x: x**1 * 3, ["mul"]),
        (lambda x: x.reshape(6) * 2, ["mul"]),
        (lambda x: x.reshape(2, 3).reshape(3, 2) * 2, ["reshape", "mul"]),
        (lambda x: x.exp() + x.exp(), ["exp", "add"]),
        (lambda x: x - x, ["sub"]),
        (lambda x: x * 0, ["mul"]),
        (lambda x: (x * 2, x * 2.0), ["mul", "mul"]),
        (lambda x: x * (tp.tensor([2.0]).exp() + 1), ["mul"]),
    ],
)
def test_each_pass_leaves_the_values(function, left) -> None:
    x = tp.tensor(X)
    gm = captured(function, x)
    expected = [t.numpy().tobytes() for t in gm(x)]
    runs = (
        lambda: p.fold_constants(gm.graph, gm.root),
        lambda: p.simplify(gm.graph),
        lambda: p.eliminate_common_subexpressions(gm.graph),
        gm.graph.eliminate_dead_code,
    )
    for run in runs:
        run()
        gm.graph.lint()
        gm.recompile()
        assert [t.numpy().tobytes() for t in gm(x)] == expected
    whole = tp.compile(function, backend="interpreter", fullgraph=True)
    with tp.no_grad():
        got = whole(x)
    got = got if isinstance(got, tuple) else (got,)
    assert [t.numpy().tobytes() for t in got] == expected
    graph = whole.report().details[0].graph
    assert [graph.count(f"operators.{name}(") >= 1 for name in left] == [True] * len(left)
    assert graph.count("operators.") == len(left)


def test_random_numbers_effects_and_nondeterministic_operators_stay_apart() -> None:
    def function(x):
        return x.bernoulli(0.5) + x.bernoulli(0.5), tp.randn(2) - tp.randn(2)

    gm = captured(function, tp.ones(2))
    assert not p.eliminate_common_subexpressions(gm.graph)
    names = [n.name for n in gm.graph.find_nodes(op="call_function")]
    assert sum(name.startswith("bernoulli") for name in names) == 2
    assert sum(name.startswith("randn") for name in names) == 2


def test_equal_numbers_of_other_kinds_are_no_common_subexpressions() -> None:
    graph = Graph()
    x = graph.placeholder("x")
    made = [graph.call_function(O["mul"], (x, v)) for v in (1, 1.0, True, 0.0, -0.0, 1)]
    graph.output(tuple(made))
    assert p.eliminate_common_subexpressions(graph)
    graph.lint()
    assert len(graph.find_nodes(op="call_function")) == 5


def test_folding_stops_at_large_constants_and_at_inputs() -> None:
    constants = {"c": tp.ones(300, 300)}
    graph = Graph()
    x = graph.placeholder("x")
    c = graph.get_attr("c")
    c.meta["val"] = tp.empty(300, 300, device="meta")
    large = graph.call_function(O["exp"], (c,))
    large.meta["val"] = c.meta["val"]
    small = graph.call_function(O["sum"], (c,))
    small.meta["val"] = tp.empty((), device="meta")
    mixed = graph.call_function(O["mul"], (small, x))
    graph.output((large, mixed))
    assert p.fold_constants(graph, constants)
    graph.lint()
    assert steps(GraphModule(constants, graph)) == ["exp", "mul"]
    assert constants["constant_1"].item() == 90000
