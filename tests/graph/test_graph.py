"""Graphs by hand: nodes, places, names, checks, text."""

from __future__ import annotations

import copy
import operator

import pytest

import tensorplay as tp
from tensorplay.graph import Graph, GraphCaptureError, GraphModule, Interpreter, Transformer, write
from tensorplay.ops import OPERATORS as O


def small() -> tuple[Graph, dict]:
    graph = Graph()
    x = graph.placeholder("x")
    y = graph.placeholder("y")
    add = graph.call_function(O["add"], (x, y), {"alpha": 2})
    again = graph.call_function(O["add"], (add, x))
    total = graph.call_function(O["sum"], (again,), {"dim": (0,)})
    out = graph.output((total, add))
    return graph, {"x": x, "y": y, "add": add, "again": again, "total": total, "out": out}


def test_names_are_unique_and_say_what_is_called() -> None:
    graph, nodes = small()
    assert [n.name for n in graph.nodes] == ["x", "y", "add", "add_1", "sum", "output"]
    assert nodes["again"].name == "add_1"
    assert len(graph) == len(graph.nodes) == 6
    assert graph.placeholders == [nodes["x"], nodes["y"]]
    assert graph.output_node() is nodes["out"]
    assert graph.find_nodes(op="call_function", target=O["add"]) == [nodes["add"], nodes["again"]]


@pytest.mark.parametrize("wanted", ["class", "self", "print", "1x", "a b", "", "operators"])
def test_names_are_identifiers_that_hide_nothing(wanted: str) -> None:
    graph = Graph()
    name = graph.placeholder(wanted).name
    assert name.isidentifier()
    assert name not in {"class", "self", "print", "operators"}
    graph.output(graph.placeholders[0])
    assert GraphModule({}, graph)(3) == 3


def test_users_and_inputs_follow_the_arguments() -> None:
    graph, n = small()
    assert list(n["add"].users) == [n["again"], n["out"]]
    assert n["again"].all_input_nodes == [n["add"], n["x"]]
    n["again"].args = (n["x"], n["x"])
    assert list(n["add"].users) == [n["out"]]
    assert n["again"].all_input_nodes == [n["x"]]
    graph.lint()


def test_the_graph_runs_in_each_way() -> None:
    graph, _ = small()
    x, y = tp.ones(2, 3), tp.arange(3.0)
    expected = (((x + 2 * y) + x).sum(0), x + 2 * y)
    module = GraphModule({}, graph)
    for run in (module, module.forward, Interpreter(module).run, Transformer(module).transform()):
        for got, want in zip(run(x, y), expected, strict=True):
            tp.testing.assert_close(got, want)
    assert "operators.add(x, y, alpha=2)" in module.code
    assert "def forward(self, x, y):" in module.code


def test_erasing_refuses_what_is_used_and_what_is_gone() -> None:
    graph, n = small()
    with pytest.raises(GraphCaptureError, match=r"has users.*a user that"):
        graph.erase_node(n["add"])
    n["out"].args = ((n["add"],),)
    graph.erase_node(n["total"])
    with pytest.raises(GraphCaptureError, match="already been erased"):
        graph.erase_node(n["total"])
    with pytest.raises(GraphCaptureError, match="not part of this graph"):
        graph.erase_node(Graph().placeholder("x"))
    with pytest.raises(GraphCaptureError, match="already been erased"):
        graph.call_function(O["neg"], (n["total"],))
    with pytest.raises(GraphCaptureError, match="not part of this graph"):
        graph.call_function(O["neg"], (Graph().placeholder("x"),))


def test_lint_finds_use_before_definition_and_late_inputs() -> None:
    graph, n = small()
    graph.lint()
    n["total"].append(n["add"])
    with pytest.raises(GraphCaptureError, match="later in the graph"):
        graph.lint()
    graph, n = small()
    n["add"].append(n["y"])
    with pytest.raises(GraphCaptureError, match=r"later in the graph|stands after"):
        graph.lint()
    graph, n = small()
    graph.call_function(O["neg"], (n["x"],))
    with pytest.raises(GraphCaptureError, match="after the output"):
        graph.lint()
    graph, n = small()
    n["add"].name = "x"
    with pytest.raises(GraphCaptureError, match="two nodes are named"):
        graph.lint()


def test_insertion_points() -> None:
    graph, n = small()
    with graph.inserting_before(n["total"]):
        before = graph.call_function(O["neg"], (n["again"],))
    with graph.inserting_after(n["add"]):
        after = graph.call_function(O["neg"], (n["add"],))
    with graph.inserting_before():
        first = graph.get_attr("weight")
    order = list(graph.nodes)
    assert order.index(before) == order.index(n["total"]) - 1
    assert order.index(after) == order.index(n["add"]) + 1
    assert order[0] is first
    foreign = Graph().placeholder("x")
    for context in (graph.inserting_before, graph.inserting_after):
        with pytest.raises(GraphCaptureError, match="not part of this graph"), context(foreign):
            pass
    with pytest.raises(GraphCaptureError, match="not part of this graph"):
        n["x"].append(foreign)
    with pytest.raises(GraphCaptureError, match="not part of this graph"):
        n["x"].prepend(foreign)


def test_replacing_uses() -> None:
    graph, n = small()
    changed = n["add"].replace_all_uses_with(n["x"], lambda user: user is n["again"])
    assert changed == [n["again"]]
    assert n["out"] in n["add"].users
    n["out"].replace_input_with(n["add"], n["again"])
    assert not n["add"].users
    assert graph.eliminate_dead_code()
    assert [x.name for x in graph.nodes] == ["x", "y", "add_1", "sum", "output"]
    graph.lint()


def test_dead_code_leaves_inputs_writes_and_random_numbers() -> None:
    graph = Graph()
    x = graph.placeholder("x")
    graph.placeholder("unused")
    dead = graph.call_function(O["exp"], (x,))
    graph.call_function(O["neg"], (dead,))
    graph.call_function(write, (x, x))
    graph.call_function(O["bernoulli"], (x,))
    graph.call_method("add_", (x, 1))
    graph.call_function(operator.setitem, (x, 0, 1.0))
    graph.call_method("add", (x, 1))
    graph.output(x)
    assert graph.eliminate_dead_code()
    kept = ["x", "unused", "write", "bernoulli", "add_", "setitem", "output"]
    assert [n.target if isinstance(n.target, str) else n.name for n in graph.nodes] == kept
    assert not graph.eliminate_dead_code()
    assert graph.eliminate_dead_code(lambda node: False)


def test_dead_code_leaves_what_may_raise_by_values() -> None:
    graph = Graph()
    x = graph.placeholder("x")
    graph.call_function(O["floor_divide"], (x, x)).meta["val"] = tp.arange(3)
    graph.call_function(O["remainder"], (x, x)).meta["val"] = tp.ones(3)
    graph.call_function(O["gather"], (x, 0, x))
    graph.output(x)
    assert graph.eliminate_dead_code()
    assert [n.name for n in graph.nodes] == ["x", "floor_divide", "gather", "output"]


def test_kinds_and_targets_are_checked() -> None:
    graph = Graph()
    with pytest.raises(GraphCaptureError, match="unknown kind of node 'call'"):
        graph.create_node("call", "x")
    with pytest.raises(GraphCaptureError, match="expected a function"):
        graph.call_function("add")
    with pytest.raises(GraphCaptureError, match="has no output"):
        graph.output_node()
    with pytest.raises(GraphCaptureError, match="expected Graph"):
        GraphModule({}, graph).graph = 3


def test_copies_are_equal_and_apart() -> None:
    graph, n = small()
    n["add"].meta["note"] = 1
    twin = copy.deepcopy(graph)
    assert str(twin) == str(graph)
    assert twin.find_nodes(op="call_function")[0].meta == {"note": 1}
    twin.lint()
    other = Graph()
    a, b = other.placeholder("a"), other.placeholder("b")
    result = other.graph_copy(graph, {n["x"]: a, n["y"]: b})
    other.output(result)
    other.lint()
    got = GraphModule({}, other)(tp.ones(2), tp.ones(2))
    tp.testing.assert_close(got[1], tp.full((2,), 3.0))
    assert len(graph) == 6


def test_text_forms(capsys) -> None:
    graph, _ = small()
    graph.print_tabular()
    table = capsys.readouterr().out
    assert "call_function  add_1" in table
    assert "%add_1 : [num_users=1] = call_function[target=add]" in str(graph)
    dot = graph.to_dot("name")
    assert dot.startswith('digraph "name" {')
    assert '"add" -> "add_1";' in dot
    picture = graph.draw()
    assert picture.startswith("<svg")
    assert "<script" not in picture
    text = GraphModule({}, graph).print_readable()
    assert capsys.readouterr().out == text
    assert text.startswith("class GraphModule:")


def test_code_names_what_it_reads() -> None:
    graph = Graph()
    x = graph.placeholder("x")
    value = graph.call_function(tp.full_like, (x, float("inf")))
    cast = graph.call_method("to", (value, tp.float64))
    graph.output({"a": [cast, slice(1, None)], "b": (x,)})
    made = graph.python_code("self")
    scope = dict(made.globals)
    exec(made.src, scope)
    out = scope["forward"](None, tp.ones(2))
    assert out["a"][0].tolist() == [float("inf")] * 2
    assert out["a"][0].dtype is tp.float64
    assert out["a"][1] == slice(1, None)


def test_attributes_and_modules_of_the_root() -> None:
    class Inner:
        weight = tp.tensor([2.0])

        def __call__(self, x):
            return x * 3

    class Root:
        inner = Inner()

    graph = Graph()
    x = graph.placeholder("x")
    weight = graph.get_attr("inner.weight")
    called = graph.call_module("inner", (x,))
    graph.output(graph.call_function(O["mul"], (called, weight)))
    module = GraphModule(Root(), graph)
    assert module(tp.ones(1)).item() == 6
    assert Interpreter(module).run(tp.ones(1)).item() == 6
    assert module.inner is Root.inner
    with pytest.raises(AttributeError, match="no attribute 'other'"):
        _ = module.other
    graph.get_attr("missing")
    with pytest.raises(GraphCaptureError, match="no attribute 'missing'"):
        GraphModule({}, graph).get_submodule("missing")


def test_interpreters_take_known_values_and_missing_inputs_raise() -> None:
    graph, n = small()
    module = GraphModule({}, graph)
    known = {n["add"]: tp.zeros(2)}
    got = Interpreter(module).run(tp.ones(2), tp.ones(2), initial_env=known)
    assert got[1].tolist() == [0, 0]
    with pytest.raises(GraphCaptureError, match="input 'y' has no value"):
        Interpreter(module).run(tp.ones(2))
    keeping = Interpreter(module, garbage_collect_values=False)
    assert keeping.run(tp.ones(2), tp.ones(2))[0].item() == 8


def test_recompile_after_a_change() -> None:
    graph, n = small()
    module = GraphModule({}, graph)
    before = module(tp.ones(2), tp.ones(2))
    n["add"].kwargs = {}
    module.recompile()
    after = module(tp.ones(2), tp.ones(2))
    assert (before[1] - after[1]).tolist() == [1, 1]
