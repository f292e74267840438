"""What the forward pass keeps for the backward pass, beside what eager execution keeps."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

import tensorplay as tp
from tensorplay.autograd.graph import AccumulateGrad
from tensorplay.autograd.saved_tensors import SavedTensor
from tensorplay.compiler.derivative import CompiledNode
from tensorplay.compiler.keeping import _Flow
from tests.compiler.calls import close, tensors_of

F = tp.nn.functional
ROWS, COLUMNS = 6, 32


def chain(y):
    for _ in range(5):
        y = tp.sin(tp.tanh(y * 1.01) + 0.1)
    return y


def layer_norm(x):
    centred = x - x.mean(dim=-1, keepdim=True)
    return centred / (centred.square().mean(dim=-1, keepdim=True) + 1e-5).sqrt()


def classes():
    return tp.arange(ROWS) % COLUMNS


#: A function of one tensor; what it keeps where that is a leaf, by kind and operator, and where it
#: is not, None if that is the same.
TABLE = {
    "sum of products": (lambda x: x * x * 3, "input", None),
    "exp": (lambda x: x.exp(), "root exp", None),
    "sigmoid": (lambda x: x.sigmoid(), "root sigmoid", None),
    "relu": (lambda x: x.relu(), "root relu", None),
    "leaky relu": (F.leaky_relu, "input", None),
    "softplus": (F.softplus, "input", None),
    "gelu": (F.gelu, "value add", "input"),
    "tanh-gelu": (lambda x: F.gelu(x, approximate="tanh"), "value add", "input"),
    "silu": (F.silu, "value mul", "input"),
    "silu in steps": (lambda x: x * x.sigmoid(), "input, value sigmoid", None),
    "mish": (lambda x: x * F.softplus(x).tanh(), "input, value tanh", None),
    "20 operators": (chain, ", ".join(["value tanh"] * 5), None),
    "softmax": (lambda x: x.softmax(-1), "root softmax", None),
    "log_softmax": (lambda x: x.log_softmax(-1), "root log_softmax", None),
    "layer_norm": (layer_norm, "input, value mean, value sqrt", None),
    "cross entropy": (
        lambda x: F.cross_entropy(x, classes()),
        "value remainder, value log_softmax, value sum", None,
    ),
    "dropout": (
        lambda x: F.dropout(x.exp(), 0.5), "value exp, value _dropout_mask",
        "input, value _dropout_mask",
    ),
    "hidden gelu": (lambda x: F.gelu(x.cumsum(-1)).cumsum(-1), "value add", None),
    "views": (lambda x: F.silu(x.t())[1:], "value mul", "input"),
    "several results": (
        lambda x: (x.tanh(), F.silu(x), x.sum()), "root tanh, value mul", "input, root tanh"
    ),
    "float16": (lambda x: F.silu(x.half()).float(), "input", None),
    "float64": (lambda x: F.gelu(x.double()), "value add", "input"),
}  # fmt: skip


def program_of(compiled):
    return next(iter(compiled._all_bindings())).program


def argument(leaf: bool, dtype=tp.float32):
    """Return a leaf, and what the function gets."""
    tp.manual_seed(0)
    x = tp.randn(ROWS, COLUMNS, dtype=dtype, requires_grad=True)
    return x, (x if leaf else x * 1)


def memory_of(tensors) -> int:
    """Return the bytes that tensors lie in, each counted once."""
    found = {}
    for t in tensors:
        array = t.detach()._array
        while array.base is not None and hasattr(array.base, "nbytes"):
            array = array.base
        found[array.__array_interface__["data"][0]] = array.nbytes
    return sum(found.values())


def held_by(result, argument):
    """Return the tensors that the history of a result holds, down to that of the argument."""
    found, seen = [], {argument.grad_fn}
    stack = [t.grad_fn for t in tensors_of(result)]
    while stack:
        node = stack.pop()
        if node is None or node in seen or isinstance(node, AccumulateGrad):
            continue
        seen.add(node)
        stack.extend(e.node for e in node.edges if e is not None)
        if isinstance(node, CompiledNode):
            inputs = [s.unpack(node) for s in node._inputs]
            found += [*node._kept_values(), *(t for t in inputs if not t.is_leaf)]
            continue
        for value in node.saved().values():
            for saved in value if isinstance(value, list) else (value,):
                if isinstance(saved, SavedTensor):
                    found.append(saved.unpack(node))
    return found


@pytest.mark.parametrize("leaf", [True, False])
@pytest.mark.parametrize("name", TABLE)
def test_what_is_kept(name, leaf) -> None:
    function, of_a_leaf, of_another = TABLE[name]
    compiled = tp.compile(function, backend="interpreter", fullgraph=True)
    compiled(argument(leaf)[1])
    found = [
        k.kind if k.kind == "input" else f"{k.kind} {k.node.target.name}"
        for k in program_of(compiled).choice.kept
    ]
    assert ", ".join(found) == (of_a_leaf if leaf or of_another is None else of_another)


@pytest.mark.parametrize("leaf", [True, False])
@pytest.mark.parametrize("name", TABLE)
def test_gradients_and_memory_are_those_of_the_function(name, leaf, backend) -> None:
    function = TABLE[name][0]
    compiled = tp.compile(function, backend=backend, fullgraph=True)
    results, gradients, held = [], [], []
    for f in (compiled, function):
        x, given = argument(leaf)
        tp.manual_seed(1)
        out = f(given)
        results.append([t.detach() for t in tensors_of(out)])
        held.append(held_by(out, given))
        weights = [tp.rand_like(t.detach()) for t in tensors_of(out)]
        total = sum((t * w).sum() for t, w in zip(tensors_of(out), weights, strict=True))
        gradients.append(tp.autograd.grad(total, x)[0])
    close(results[0], results[1], rtol=1e-5, atol=1e-6)
    close(gradients[0], gradients[1], rtol=1e-4, atol=1e-5)
    mine, eager = held
    size = given.numel() * 4
    eager_has_it = any(t.data_ptr() == given.data_ptr() for t in eager)
    if leaf and not eager_has_it:  # its owner has it
        mine = [t for t in mine if not t.is_leaf]
    # An argument that is no leaf is held for second derivatives, whether eager keeps it or not.
    most = memory_of(eager) + (0 if leaf or eager_has_it else size)
    rows = 4 * ROWS  # the mean, which the derivative of a norm reads with the argument
    choice = program_of(compiled).choice
    assert choice.held <= max(choice.held_eagerly, most) + rows
    assert memory_of(mine) <= most + rows


@pytest.mark.parametrize("name", ["gelu", "tanh-gelu", "silu", "mish", "20 operators", "views"])
def test_second_derivatives(name, backend) -> None:
    compiled = tp.compile(TABLE[name][0], backend=backend, fullgraph=True)
    for leaf in (True, False):
        found = []
        for f in (compiled, TABLE[name][0]):
            x, given = argument(leaf, tp.float64)
            (first,) = tp.autograd.grad(f(given).square().sum(), x, create_graph=True)
            found += [[first.detach(), *tp.autograd.grad(first.cos().sum(), x)]]
        close(found[0], found[1], rtol=1e-7, atol=1e-9)


def test_derivatives_are_kept_only_for_what_needs_them() -> None:
    def f(x, y):
        return F.silu(x) * y.tanh()

    x, y = argument(True)[1], argument(True)[1]
    # What wants no gradient is held for second derivatives: both values besides would be too much.
    for wanted, kept in (((x,), []), ((y,), []), ((x, y), ["mul", "silu", "tanh"])):
        compiled = tp.compile(f, backend="interpreter")
        given = [t if any(t is w for w in wanted) else t.detach() for t in (x, y)]
        gradients = tp.autograd.grad(compiled(*given).sum(), wanted)
        close(gradients, tp.autograd.grad(f(*given).sum(), wanted), rtol=1e-5, atol=1e-6)
        choice = program_of(compiled).choice
        assert sorted(k.node.target.name for k in choice.kept if k.kind == "value") == kept
        assert choice.held <= choice.held_eagerly


def test_operators_of_users_run_once_and_what_they_give_is_kept(backend) -> None:
    runs = []

    @tp.library.custom_op("keeping::scaled", mutates_args=())
    def scaled(x: tp.Tensor) -> tp.Tensor:
        runs.append(1)
        return x * 3

    scaled.register_fake(tp.empty_like)
    scaled.register_autograd(lambda ctx, g: g * 3)

    def f(x):
        return F.silu(scaled(x.sin()))

    x, given = argument(True)
    compiled = tp.compile(f, backend=backend, fullgraph=True)
    runs.clear()
    (g,) = tp.autograd.grad(compiled(given).sum(), x)
    assert len(runs) == 1
    close(g, tp.autograd.grad(f(x).sum(), x)[0], rtol=1e-5, atol=1e-6)


def test_leaves_and_others_have_programs_of_their_own_where_it_matters() -> None:
    for f, count in ((F.silu, 2), (lambda x: x * x, 1)):
        compiled = tp.compile(f, backend="interpreter")
        for leaf in (True, False, True):
            compiled(argument(leaf)[1])
        assert compiled.report().programs == count


def test_reports_say_what_is_kept_and_why() -> None:
    found = tp.compiler.explain(TABLE["tanh-gelu"][0], backend="interpreter")(argument(True)[1])
    (program,) = found.details
    (kept,) = program.kept
    assert (kept.kind, kept.type) == ("value", f"float32[{ROWS}, {COLUMNS}]")
    assert kept.reason == "to write and read it takes less time than tanh would again"
    size = ROWS * COLUMNS * 4
    assert (program.kept_bytes, program.eager_bytes) == (size, size)
    line = f"keeps: value {kept.name}, {kept.type}: {kept.reason}"
    assert line in found.to_text()
    assert line in found.to_html()
    total = f"keeps: {size} bytes for the backward pass, eager execution {size}"
    assert total in found.to_text()
    assert found.to_dict()["details"][0]["kept"][0]["name"] == kept.name
    plain = tp.compiler.explain(lambda x: x * 2, backend="interpreter")(tp.ones(2))
    assert "keeps:" not in plain.to_text()


def test_the_cut_is_a_cheapest_one() -> None:
    random = np.random.default_rng(0)
    for _ in range(100):
        count = int(random.integers(2, 8))
        edges = [
            (int(a), int(b), int(random.integers(0, 6)))
            for a, b in random.integers(0, count, (int(random.integers(1, 16)), 2))
        ]
        flow = _Flow(count)
        for edge in edges:
            flow.edge(*edge)

        def cost(near, edges=edges):
            return sum(room for a, b, room in edges if a in near and b not in near)

        inner = range(2, count)
        cuts = [{0, *chosen} for size in range(count - 1) for chosen in combinations(inner, size)]
        near = flow.reached(0, 1)
        assert 1 not in near
        assert cost(near) == min(map(cost, cuts))


@pytest.mark.parametrize("leaf", [True, False])
@pytest.mark.parametrize("name", ["silu", "gelu", "sigmoid"])
def test_writing_to_what_eager_execution_keeps_is_an_error_as_there(backend, name, leaf) -> None:
    def run(function) -> bool:
        own = tp.tensor([1.0, 2.0], requires_grad=True)
        x = own if leaf else own * 1
        y = function(x)
        with tp.no_grad():
            x.mul_(3)
        try:
            y.sum().backward()
        except RuntimeError as problem:
            return "modified by an inplace operation" in str(problem)
        return False

    function = getattr(tp.nn.functional, name)
    assert run(tp.compile(function, backend=backend)) == run(function) == (name != "sigmoid")
