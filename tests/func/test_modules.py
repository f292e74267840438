"""Objects with parameters as functions of them; functions that write as ones that do not."""

from __future__ import annotations

import numpy as np
import pytest

import tensorplay as tp
from tensorplay.func import functional_call, functionalize, grad, stack_module_state, vmap


class Linear:
    """A layer that keeps its tensors as attributes."""

    def __init__(self, rows, columns, seed=0):
        rng = np.random.default_rng(seed)
        self.weight = tp.from_numpy(rng.standard_normal((rows, columns))).requires_grad_()
        self.bias = tp.from_numpy(rng.standard_normal(columns)).requires_grad_()

    def named_parameters(self, prefix=""):
        yield f"{prefix}weight", self.weight
        yield f"{prefix}bias", self.bias

    def named_buffers(self):
        return ()

    def __call__(self, x):
        return x @ self.weight + self.bias


class Model:
    """Layers in a list and a dictionary, a buffer, and a tensor with two names."""

    def __init__(self, seed=0):
        self.layers = [Linear(3, 4, seed), Linear(4, 2, seed + 1)]
        self.named = {"last": Linear(2, 2, seed + 2)}
        self.scale = tp.ones(2, dtype=tp.float64)
        self.tied = self.named["last"].bias
        self.training = True

    def named_parameters(self, remove_duplicate=True):
        for number, layer in enumerate(self.layers):
            yield from layer.named_parameters(f"layers.{number}.")
        yield from self.named["last"].named_parameters("named.last.")
        if not remove_duplicate:
            yield "tied", self.tied

    def named_buffers(self, remove_duplicate=True):
        yield "scale", self.scale

    def __call__(self, x, *, power=1):
        y = self.layers[1](self.layers[0](x).tanh())
        return (self.named["last"](y) + self.tied) * self.scale**power


class Registered:
    """As a module keeps them: in dictionaries, out of reach of setattr."""

    def __init__(self):
        object.__setattr__(self, "_parameters", {"w": tp.ones(2, requires_grad=True)})
        object.__setattr__(self, "_buffers", {"b": tp.zeros(2)})

    def __getattr__(self, name):
        for kept in (self._parameters, self._buffers):
            if name in kept:
                return kept[name]
        raise AttributeError(name)

    def __setattr__(self, name, value):
        raise AssertionError(name)

    def named_parameters(self):
        return self._parameters.items()

    def named_buffers(self):
        return self._buffers.items()

    def __call__(self, x):
        return x * self.w + self.b


def numbers(*shape, seed=0):
    return tp.from_numpy(np.random.default_rng(seed).standard_normal(shape))


def state(model):
    return dict(model.named_parameters()), dict(model.named_buffers())


def test_other_parameters_for_one_call():
    one, two, x = Model(), Model(seed=5), numbers(6, 3)
    expected, before = two(x), one(x)
    for given in (state(two), {**state(two)[0], **state(two)[1]}):
        found = functional_call(one, given, (x,))
        np.testing.assert_array_equal(found.detach().numpy(), expected.detach().numpy())
    np.testing.assert_array_equal(one(x).detach().numpy(), before.detach().numpy())
    found = functional_call(one, state(two), x, {"power": 2})
    np.testing.assert_array_equal(found.detach().numpy(), two(x, power=2).detach().numpy())


def test_some_parameters_stay():
    model, x = Model(), numbers(2, 3)
    found = functional_call(model, {"scale": tp.full((2,), 3.0, dtype=tp.float64)}, (x,))
    np.testing.assert_allclose(found.detach().numpy(), 3 * model(x).detach().numpy())


def test_tensors_in_dictionaries_of_their_own():
    model = Registered()
    found = functional_call(model, {"w": tp.full((2,), 2.0), "b": tp.ones(2)}, tp.ones(2))
    assert found.tolist() == [3.0, 3.0]
    assert model(tp.ones(2)).tolist() == [1.0, 1.0]


def test_gradients_for_the_parameters():
    model, x = Model(), numbers(6, 3)
    parameters, buffers = state(model)
    found = grad(lambda p: functional_call(model, (p, buffers), (x,)).sum())(parameters)
    model(x).sum().backward()
    for name, p in parameters.items():
        np.testing.assert_allclose(found[name].detach().numpy(), p.grad.numpy(), err_msg=name)


def test_gradients_of_each_sample():
    model, x = Model(), numbers(5, 3)
    parameters, buffers = state(model)
    detached = {name: p.detach() for name, p in parameters.items()}
    one = grad(lambda p, row: functional_call(model, (p, buffers), (row,)).sum())
    found = vmap(one, in_dims=(None, 0))(detached, x)
    for n in range(5):
        for name, g in one(detached, x[n]).items():
            np.testing.assert_allclose(found[name][n].numpy(), g.numpy(), rtol=1e-12)


def test_ensembles():
    models, x = [Model(seed=10 * n) for n in range(3)], numbers(4, 3)
    parameters, buffers = stack_module_state(models)
    assert parameters["layers.0.weight"].shape == (3, 3, 4)
    assert parameters["layers.0.weight"].is_leaf
    assert parameters["layers.0.weight"].requires_grad
    assert not buffers["scale"].requires_grad
    found = vmap(lambda p, b: functional_call(models[0], (p, b), (x,)))(parameters, buffers)
    expected = tp.stack([m(x) for m in models])
    np.testing.assert_allclose(found.detach().numpy(), expected.detach().numpy(), rtol=1e-12)
    found.sum().backward()
    assert parameters["layers.1.bias"].grad.shape == (3, 2)


def test_a_tensor_with_two_names():
    model, x, other = Model(), numbers(1, 3), tp.zeros(2, dtype=tp.float64)
    both = functional_call(model, {"tied": other}, (x,))
    np.testing.assert_allclose(
        both.detach().numpy(), (model(x) - 2 * model.tied).detach().numpy(), atol=1e-14
    )
    alone = functional_call(model, {"tied": other}, (x,), tie_weights=False)
    np.testing.assert_allclose(
        alone.detach().numpy(), (model(x) - model.tied).detach().numpy(), atol=1e-14
    )
    with pytest.raises(ValueError, match="one tensor in the module"):
        functional_call(model, {"tied": other, "named.last.bias": other + 1}, (x,))


def test_the_module_is_as_before_after_an_exception():
    model = Model()
    kept = {name: id(p) for name, p in model.named_parameters()}
    with pytest.raises(RuntimeError):
        functional_call(model, state(Model(seed=3)), (numbers(2, 7),))
    assert {name: id(p) for name, p in model.named_parameters()} == kept


@pytest.mark.parametrize(
    ("given", "options", "kind", "match"),
    [
        ({"nothing": tp.ones(2)}, {}, RuntimeError, r"Unexpected key\(s\): 'nothing'"),
        ({"scale": tp.ones(2)}, {"strict": True}, RuntimeError, r"Missing key\(s\): 'layers"),
        ({"scale": 1.0}, {}, TypeError, "to be a Tensor, got float"),
        (({"scale": tp.ones(2)}, {"scale": tp.ones(2)}), {}, ValueError, "two of the dictionaries"),
        (3, {}, TypeError, "expected a dictionary"),
        ((3,), {}, TypeError, "expected a dictionary"),
    ],
)
def test_errors(given, options, kind, match):
    with pytest.raises(kind, match=match):
        functional_call(Model(), given, (numbers(2, 3),), **options)


def test_objects_without_parameters_are_refused():
    with pytest.raises(TypeError, match=r"named_parameters\(\)"):
        functional_call(lambda x: x, {}, (tp.ones(2),))
    with pytest.raises(RuntimeError, match="at least one"):
        stack_module_state([])
    evaluated = Model()
    evaluated.training = False
    frozen = Model()
    frozen.layers[0].weight.requires_grad_(False)
    for models, match in (
        ([Model(), Linear(2, 2)], "class"),
        ([Model(), evaluated], "mode"),
        ([Model(), frozen], "requires_grad"),
    ):
        with pytest.raises(RuntimeError, match=match):
            stack_module_state(models)


# --- functionalize --------------------------------------------------------------------------------


def test_writes_are_seen_at_the_end():
    seen = []

    def function(x, data):
        x.add_(1)
        seen.append((x.tolist(), given.tolist()))
        data["y"][0].mul_(3)
        return x * 2, x, data["y"]

    given, y = tp.zeros(2), tp.ones(2, 2)
    twice, same, other = functionalize(function)(given, {"y": y})
    assert seen == [([1.0, 1.0], [0.0, 0.0])]
    assert given.tolist() == [1.0, 1.0]
    assert y.tolist() == [[3.0, 3.0], [1.0, 1.0]]
    assert twice.tolist() == [2.0, 2.0]
    assert same is given
    assert other is y
    assert given._version == 1


def test_results_and_gradients_are_those_of_the_function():
    def function(x):
        y = x * 1
        y[0] = y[1] * 2
        y.exp_()
        return y.view(-1)

    x = numbers(3).requires_grad_()
    np.testing.assert_array_equal(
        functionalize(function)(x).detach().numpy(), function(x).detach().numpy()
    )
    expected = grad(lambda t: function(t).sum())(x).detach()
    found = grad(lambda t: functionalize(function)(t).sum())(x).detach()
    np.testing.assert_array_equal(found.numpy(), expected.numpy())
    batch = numbers(4, 3)
    np.testing.assert_array_equal(
        vmap(functionalize(function))(batch).numpy(), vmap(function)(batch).numpy()
    )


def test_views_of_results():
    x = numbers(2, 3)
    view = functionalize(lambda t: t[0])(x)
    view.zero_()
    assert x.numpy().all()
    whole, row = functionalize(lambda t: (t * 1,) * 2, remove="mutations_and_views")(x)
    assert row.shape == whole.shape

    def both(t):
        y = t * 1
        return y, y[0]

    whole, row = functionalize(both, remove="mutations_and_views")(x)
    row.zero_()
    assert whole.numpy().all()


def test_errors_of_functionalize():
    with pytest.raises(RuntimeError, match="'mutations' or 'mutations_and_views'"):
        functionalize(lambda x: x, remove="views")
    x = tp.ones(2, 2)
    with pytest.raises(RuntimeError, match="shares memory"):
        functionalize(lambda a, b: a.add_(1) + b)(x, x[0])
    assert x.sum().item() == 4
    assert functionalize(lambda a, b: (a + b).sum())(x, x[0]).item() == 8
    leaf = tp.ones(2, requires_grad=True)
    with pytest.raises(RuntimeError, match="leaf Variable"):
        functionalize(lambda t: t.mul_(2))(leaf)
