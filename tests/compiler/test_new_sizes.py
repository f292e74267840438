"""A program serves calls of other sizes; where steps compute something else it has another one."""

from __future__ import annotations

import itertools
import random

import pytest

import tensorplay as tp
from tensorplay import compiler, nn
from tests.compiler.calls import close, run_with_gradients


@pytest.fixture
def handed():
    """Register a backend that counts the graphs that it is handed, and compiles them."""
    graphs = []

    def backend(gm, example_inputs, **kwargs):
        graphs.append(gm)
        return compiler.lookup_backend("cpp")(gm, example_inputs)

    compiler.register_backend(backend, name="counting")
    yield graphs
    compiler.unregister_backend("counting")


def test_a_batch_of_another_size_is_no_new_graph_for_layers(handed) -> None:
    model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 4))
    f = tp.compile(model, backend="counting")
    counts = []
    for n in (6, 9, 7, 30):
        x = tp.randn(n, 8)

        def make(x=x):
            return [x.clone().requires_grad_()]

        close(run_with_gradients(f, make), run_with_gradients(model, make), rtol=1e-5, atol=1e-6)
        counts.append(len(handed))
    assert counts == [2] * 4  # forward and backward


def spread(x: tp.Tensor, y: tp.Tensor, n: int, m: int) -> tp.Tensor:
    return x.expand(n, 2) * y.expand(m, 2)


def reshaped(x: tp.Tensor, y: tp.Tensor, n: int, m: int) -> tp.Tensor:
    return x.reshape(-1, 2).sum_to_size(m, 2) * y.reshape(m, 2)


def with_shapes(x: tp.Tensor, y: tp.Tensor, n: int, m: int) -> tp.Tensor:
    bigger = x.expand(max(x.shape[0], y.shape[0]), x.shape[1])
    return (bigger * y.reshape(y.shape)).exp() / bigger.reshape(bigger.shape).sum_to_size(1, 2)


@pytest.mark.parametrize("passes", [True, False])
@pytest.mark.parametrize("function", [spread, reshaped, with_shapes])
@pytest.mark.parametrize("order", range(4))
def test_steps_that_change_nothing_for_some_sizes_only(
    function, passes, order, monkeypatch
) -> None:
    monkeypatch.setattr(compiler.config, "passes", passes)
    f = tp.compile(function, fullgraph=True, recompile_limit=64)
    calls = [
        (rows, others, n, m)
        for rows, others, n, m in itertools.product((1, 2, 5, 6), repeat=4)
        if _runs(function, rows, others, n, m)
    ]
    random.Random(order).shuffle(calls)
    for rows, others, n, m in calls[:60]:
        x, y = tp.rand(rows, 2) + 0.5, tp.rand(others, 2) + 0.5

        def make(x=x, y=y, n=n, m=m):
            return [x.clone().requires_grad_(), y.clone().requires_grad_(), n, m]

        got, want = run_with_gradients(f, make), run_with_gradients(function, make)
        close(got, want, rtol=1e-5, atol=1e-6)


def _runs(function, rows: int, others: int, n: int, m: int) -> bool:
    try:
        function(tp.rand(rows, 2), tp.rand(others, 2), n, m)
    except (RuntimeError, ValueError):
        return False
    return True


VALUES = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]


def grid(x: tp.Tensor) -> list[list[float]]:
    """Return the same six numbers in the rows and columns that `x` has."""
    rows, columns = x.shape
    return [VALUES[i * columns : (i + 1) * columns] for i in range(rows)]


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.sum() * tp.tensor(grid(x)),
        lambda x: ((x.sum() * tp.tensor(grid(x))).sum(1) ** 2).sum(),
        lambda x: x + tp.tensor([[1.0] * x.shape[1]] * x.shape[0]),
    ],
)
def test_constants_of_one_content_and_two_shapes_are_two(function, backend) -> None:
    f = tp.compile(function, backend=backend, fullgraph=True)
    for shape in ((2, 3), (3, 2), (6, 1), (2, 3)):
        x = tp.rand(*shape)
        close(f(x), function(x), rtol=1e-5)


def test_programs_that_no_call_needs_any_more_are_let_go(monkeypatch) -> None:
    monkeypatch.setattr(compiler.config, "most_shapes", 10)
    f = tp.compile(lambda x: x.sum(0, keepdim=True).expand(x.shape[0], 2) * x, backend="eager")
    for n in range(2, 60):
        f(tp.ones(n, 2))
    assert len(f.programs()) <= 12
    assert f(tp.ones(4, 2)).tolist() == [[4.0, 4.0]] * 4
