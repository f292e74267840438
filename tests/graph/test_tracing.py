"""Graphs of functions by proxies, and patterns in them."""

from __future__ import annotations

import pytest

import tensorplay as tp
from tensorplay import nn
from tensorplay.graph import (
    GraphCaptureError,
    Interpreter,
    Proxy,
    TraceError,
    Tracer,
    replace_pattern,
    symbolic_trace,
    wrap,
)


@pytest.mark.parametrize(
    "function",
    [
        lambda x, y: x + y,
        lambda x, y: 2 - x * y / 3,
        lambda x, y: tp.relu(x).sum() + y.mean(),
        lambda x, y: (x @ y.T)[0, 1:],
        lambda x, y: tp.where(x > y, x, -y),
        lambda x, y: {"a": (x, [y.t()]), "b": abs(x) ** 2},
        lambda x, y: x.reshape(x.shape[0], -1).softmax(dim=1) + x.shape[1],
        lambda x, y: tp.cat([x, y], dim=0),
        lambda x, y: x.add(y, alpha=2).to(tp.float64),
    ],
)
def test_a_trace_does_what_the_function_does(function) -> None:
    x, y = tp.randn(3, 3), tp.randn(3, 3)
    expected = function(x, y)
    for module in (symbolic_trace(function), Tracer().trace(function, [x, y])):
        module.graph.lint()
        leaves = tp.func.trees.flatten
        for run in (module, Interpreter(module).run):
            got, want = leaves(run(x, y)), leaves(expected)
            assert got[1] == want[1]
            for a, b in zip(got[0], want[0], strict=True):
                tp.testing.assert_close(a, b)


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (lambda x: x if x.sum() > 0 else -x, "Python control flow"),
        (lambda x: [v for v in x], "cannot be iterated"),  # noqa: C416
        (lambda x: len(x), "provide sample inputs"),  # noqa: PLW0108
        (lambda x: int(x), r"int\(\) is asked for"),  # noqa: PLW0108
        (lambda x: float(x), r"float\(\) is asked for"),  # noqa: PLW0108
        (lambda x: 1 in x, "Python control flow"),
        (lambda x: range(x), "a whole number is asked for"),  # noqa: PLW0108
        (lambda x: x and 1, "Python control flow"),
    ],
)
def test_what_python_asks_for_is_refused_with_the_line(function, words: str) -> None:
    with pytest.raises(TraceError, match=words) as found:
        symbolic_trace(function)
    assert "test_tracing.py" in str(found.value)
    assert isinstance(found.value, GraphCaptureError)


def test_sample_inputs_make_lengths_shapes_and_loops_known() -> None:
    def function(x):
        return sum(list(x)) * len(x) * x.shape[1]

    module = Tracer().trace(function, [tp.ones(3, 2)])
    x = tp.randn(3, 2)
    tp.testing.assert_close(module(x), function(x))
    value = module.graph.output_node().args[0].meta["val"]
    assert value.is_meta
    assert value.shape == (2,)
    with pytest.raises(TraceError, match="Python control flow"):
        Tracer().trace(lambda x: x if x.sum() > 0 else -x, [tp.ones(2)])


def test_arguments() -> None:
    def function(x, scale=2.0, *rest, flag, **more):
        return x * scale + (rest[0] if flag else 0)

    module = Tracer({"flag": True}).trace(function, [tp.ones(1), 3.0, tp.ones(1)])
    assert module(tp.ones(1), 3.0, tp.ones(1)).item() == 4
    with pytest.raises(GraphCaptureError, match="provide sample inputs"):
        symbolic_trace(function, {"flag": True})
    with pytest.raises(GraphCaptureError, match="no argument is called 'nothing'"):
        symbolic_trace(lambda x: x, {"nothing": 1})
    with pytest.raises(GraphCaptureError, match="1 more are given"):
        Tracer().trace(lambda x: x, [tp.ones(1), tp.ones(1)])
    with pytest.raises(GraphCaptureError, match="no sample input"):
        Tracer().trace(lambda x, y: x, [tp.ones(1)])
    module = symbolic_trace(lambda x, by=2.0: x * by)
    assert module(tp.ones(1)).item() == 2


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(3, 4)
        self.rest = nn.Sequential(nn.ReLU(), nn.Linear(4, 2))
        self.scale = nn.Parameter(tp.ones(2))

    def forward(self, x):
        return self.rest(self.first(x)) * self.scale + self.scale


def test_modules_become_steps_and_parameters_attributes() -> None:
    net = Net()
    module = symbolic_trace(net)
    kinds = {(n.op, n.target) for n in module.graph.nodes if isinstance(n.target, str)}
    assert {("call_module", "first"), ("call_module", "rest.1"), ("get_attr", "scale")} <= kinds
    assert len(module.graph.find_nodes(op="get_attr")) == 1
    x = tp.randn(5, 3)
    tp.testing.assert_close(module(x), net(x))
    net.scale = nn.Parameter(tp.zeros(2))
    tp.testing.assert_close(module(x), tp.zeros(5, 2))
    assert nn.Module.__call__.__module__ == "tensorplay.nn.module"


def test_a_users_operator_is_one_step_and_does_not_run() -> None:
    ran = []

    @tp.library.custom_op("tracing::twice", mutates_args=())
    def twice(x: tp.Tensor) -> tp.Tensor:
        ran.append(1)
        return tp.from_numpy(x.numpy() * 2)

    @twice.register_fake
    def _(x):
        return tp.empty_like(x)

    module = Tracer().trace(lambda x: twice(x) + 1, [tp.ones(2)])
    (node,) = module.graph.find_nodes(op="call_function", target=twice)
    assert not ran
    assert node.meta["val"].shape == (2,)
    assert module(tp.ones(2)).tolist() == [3, 3]


@wrap
def leaf(x):
    return x * 2 if x.sum() > 0 else x


def test_wrapped_functions_are_steps() -> None:
    module = symbolic_trace(lambda x: leaf(x) + 1)
    assert module(tp.ones(1)).item() == 3
    assert module(-tp.ones(1)).item() == 0
    assert leaf(tp.ones(1)).item() == 2
    with pytest.raises(GraphCaptureError, match="expected a function or the name of one"):
        wrap("there_is_no_such_function")


def test_tensors_from_outside_are_constants() -> None:
    w = tp.tensor([2.0])
    module = symbolic_trace(lambda x: x * w + w)
    assert len(module.graph.find_nodes(op="get_attr")) == 1
    assert module(tp.ones(1)).item() == 4


def test_proxies_of_two_traces_do_not_mix() -> None:
    kept = []
    symbolic_trace(lambda x: kept.append(x) or x)
    assert isinstance(kept[0], Proxy)
    with pytest.raises(GraphCaptureError, match="another trace"):
        symbolic_trace(lambda x: x + kept[0])


def test_patterns_are_replaced() -> None:
    module = symbolic_trace(lambda x, y: tp.relu(x + 1) * tp.relu(y + 1))
    matches = replace_pattern(module, lambda a: tp.relu(a + 1), lambda a: a.sigmoid())
    assert len(matches) == 2
    x, y = tp.randn(3), tp.randn(3)
    tp.testing.assert_close(module(x, y), (x + 0).sigmoid() * y.sigmoid())
    module.graph.lint()
    assert replace_pattern(module, lambda a: a.exp(), lambda a: -a) == []


def test_a_pattern_whose_inside_is_used_elsewhere_stays() -> None:
    def function(x):
        inner = x + 1
        return tp.relu(inner) * inner

    module = symbolic_trace(function)
    assert replace_pattern(module, lambda a: tp.relu(a + 1), lambda a: -a) == []
    with pytest.raises(GraphCaptureError, match="as many inputs"):
        replace_pattern(module, lambda a: a + 1, lambda a, b: a + b)
    with pytest.raises(GraphCaptureError, match="one computed value"):
        replace_pattern(module, lambda a: a, lambda a: a)
