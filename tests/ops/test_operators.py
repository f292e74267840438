"""Every operator with each of its samples: values, shapes, and derivatives of all kinds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tensorplay as tp
from tensorplay.autograd import forward_ad
from tensorplay.ops import OPERATORS, Composite, Operator
from tests.ops.references import REFERENCES, UNREFERENCED
from tests.ops.sampling import (
    Case,
    cases,
    cotangents,
    differentiable,
    gradients,
    inner,
    numerical_gradient,
    replace,
    tensors_of,
)

# What reads values may have no result on device meta.
READS_VALUES = {
    *("_nonzero", "_unique", "allclose", "equal", "masked_select", "one_hot"),
    *("repeat_interleave", "where"),
}
RANDOM = {"_dropout_mask", "_standard_normal", "_uniform", "dropout", "bernoulli", "multinomial"}


def built_in(operator: Operator) -> bool:
    return operator.schema.namespace is None


def numpy_of(value: Any) -> Any:
    return replace(value, lambda t: t.detach().numpy())


def assert_near(actual: Any, expected: Any, *, rtol: float = 1e-5, atol: float = 1e-6) -> None:
    assert len(actual) == len(expected)
    for a, b in zip(actual, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=rtol, atol=atol)


# --- the tables are complete ----------------------------------------------------------------------


def test_every_operator_has_samples() -> None:
    assert [n for n, o in OPERATORS.items() if built_in(o) and o.samples is None] == []


def test_every_operator_has_a_reference_or_a_reason() -> None:
    names = {name for name, operator in OPERATORS.items() if built_in(operator)}
    assert names - set(REFERENCES) - set(UNREFERENCED) == set()
    assert set(REFERENCES) & set(UNREFERENCED) == set()
    assert (set(REFERENCES) | set(UNREFERENCED)) - names == set()


def test_every_formula_is_reached_by_a_sample() -> None:
    unreached = []
    for name, operator in OPERATORS.items():
        wanted = set(getattr(operator, "vjp", None) or ())
        arguments = [a.name for a in operator.schema.arguments]
        for parameter in cases(where=lambda o, name=name: o.name == name):
            sample = parameter.values[0].sample
            given = {**dict(zip(arguments, sample.args, strict=False)), **sample.kwargs}
            wanted -= {n for n, v in given.items() if any(t.requires_grad for t in tensors_of(v))}
        unreached.extend((name, argument) for argument in wanted)
    # Comparisons and logic have zero rules, for their in-place forms; bits have no gradient.
    # Losses that depend on phases of eigenvectors are refused: test_decompositions.py has others.
    assert unreached == [("_eig", "A")]


# --- values and shapes ----------------------------------------------------------------------------


@pytest.mark.parametrize("case", cases(where=lambda o: o.name in REFERENCES))
def test_value_is_that_of_the_reference(case: Case) -> None:
    args, kwargs = case.arguments
    with np.errstate(all="ignore"):  # logarithms of empty sums
        expected = REFERENCES[case.operator.name](*numpy_of(list(args)), **numpy_of(kwargs))
    actual = numpy_of(case.run())
    many = isinstance(actual, tuple | list)
    if many:
        assert len(actual) == len(expected)
    pairs = zip(actual, expected, strict=True) if many else [(actual, expected)]
    for a, b in pairs:
        assert np.shape(a) == np.shape(b)
        np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-13)


def convert(t: tp.Tensor, d: Any) -> tp.Tensor:
    """Return `t` as type `d`; as integers, positive, so that no divisor is zero."""
    if not t.dtype.is_floating_point or t.dtype is d:
        return t.detach()
    t = t.detach()
    return t.to(d) if d.is_floating_point else (t.abs().trunc() + 1).to(d)


@pytest.mark.parametrize("d", [tp.float64, tp.float32, tp.int64, tp.bool], ids=str)
@pytest.mark.parametrize("case", cases(where=lambda o: o.name not in RANDOM))
def test_meta_gives_shape_and_type_of_the_result(case: Case, d: Any) -> None:
    try:
        real = case.run(lambda t: convert(t, d))
    except (TypeError, RuntimeError, ValueError) as error:
        with pytest.raises(type(error)):
            case.run(lambda t: convert(t, d).to("meta"))
        return
    try:
        shapes = case.run(lambda t: convert(t, d).to("meta"))
    except NotImplementedError:
        assert case.operator.name in READS_VALUES
        return
    found = [(tuple(t.shape), t.dtype) for t in tensors_of(real)]
    assert [(tuple(t.shape), t.dtype) for t in tensors_of(shapes)] == found
    assert all(t.is_meta for t in tensors_of(shapes))


# --- derivatives ----------------------------------------------------------------------------------


def differentiable_cases() -> list[Any]:
    def has(operator: Operator) -> bool:
        rules = getattr(operator, "vjp", None)
        return operator.name not in RANDOM and (isinstance(operator, Composite) or bool(rules))

    return [
        p for p in cases(where=has) if p.values[0].inputs() and differentiable(p.values[0].run())
    ]


@pytest.mark.parametrize("case", differentiable_cases())
def test_vjp_is_the_numerical_gradient(case: Case) -> None:
    inputs = case.inputs()
    outs = differentiable(case.run_on(inputs))
    weights = cotangents(outs, case.name)
    actual = gradients(outs, inputs, weights)
    expected = numerical_gradient(
        lambda arrays: inner(weights, case.values_on(arrays)), [x.detach().numpy() for x in inputs]
    )
    assert_near([g.numpy() for g in actual], expected)
    for g, x in zip(actual, inputs, strict=True):
        assert g.dtype is x.dtype


@pytest.mark.parametrize("case", differentiable_cases())
def test_jvp_is_the_adjoint_of_the_vjp(case: Case) -> None:
    inputs = case.inputs()
    outs = differentiable(case.run_on(inputs))
    weights = cotangents(outs, case.name)
    directions = cotangents(inputs, f"{case.name} direction")
    backward = [g.numpy() for g in gradients(outs, inputs, weights)]
    with forward_ad.dual_level():
        duals = [
            forward_ad.make_dual(x.detach(), tp.from_numpy(v))
            for x, v in zip(inputs, directions, strict=True)
        ]
        pairs = [forward_ad.unpack_dual(t) for t in differentiable(case.run_on(duals))]
    tangents = [
        np.zeros(tuple(p.primal.shape)) if p.tangent is None else p.tangent.detach().numpy()
        for p in pairs
    ]
    assert [t.shape for t in tangents] == [tuple(o.shape) for o in outs]
    np.testing.assert_allclose(
        inner(weights, tangents), inner(backward, directions), rtol=1e-9, atol=1e-9
    )


@pytest.mark.parametrize("case", differentiable_cases())
def test_second_derivative_is_numerical(case: Case) -> None:
    inputs = case.inputs()
    outs = differentiable(case.run_on(inputs))
    weights = cotangents(outs, case.name)
    directions = cotangents(inputs, f"{case.name} direction")

    def slope(arrays: list[Any]) -> float:
        moved = [tp.from_numpy(a).requires_grad_() for a in arrays]
        results = differentiable(case.run_on(moved))
        return inner(directions, [g.numpy() for g in gradients(results, moved, weights)])

    first = gradients(outs, inputs, weights, create_graph=True)
    second = gradients(first, inputs, directions)
    expected = numerical_gradient(slope, [x.detach().numpy() for x in inputs])
    assert_near([g.detach().numpy() for g in second], expected, rtol=1e-4, atol=1e-5)


# --- in place and errors --------------------------------------------------------------------------


def inplace_cases() -> list[Any]:
    return [
        p
        for p in cases(where=lambda o: o.inplace)
        if isinstance(p.values[0].sample.args[0], tp.Tensor)
    ]


@pytest.mark.parametrize("case", inplace_cases())
def test_inplace_is_the_functional_form(case: Case) -> None:
    inputs = case.inputs()
    args, kwargs = case.arguments
    rest = iter(inputs)
    given = replace([list(args), kwargs], lambda t: next(rest) if t.requires_grad else t)
    target, *others = given[0]
    expected = case.operator.function(target, *others, **given[1])
    method = f"{case.operator.name}_"
    written = target.clone()
    if expected.shape != target.shape:
        with pytest.raises(RuntimeError, match="shape"):
            getattr(written, method)(*others, **given[1])
        return
    result = getattr(written, method)(*others, **given[1])
    assert result is written
    assert written._version == 1
    np.testing.assert_array_equal(
        written.detach().numpy(), expected.detach().numpy().astype(target.dtype.numpy)
    )
    weights = cotangents([written], case.name)
    if expected.requires_grad:
        same = gradients([expected], inputs, cotangents([expected], case.name))
    else:  # a comparison written as numbers
        same = [tp.zeros_like(x) for x in inputs]
    assert_near(
        [g.numpy() for g in gradients([written], inputs, weights)],
        [g.numpy() for g in same],
        rtol=1e-12,
    )


@pytest.mark.parametrize("name", sorted(n for n, o in OPERATORS.items() if built_in(o)))
def test_wrong_kind_names_operator_argument_and_kind(name: str) -> None:
    operator = OPERATORS[name]
    arguments = operator.schema.arguments
    assert operator.samples is not None
    case = cases(where=lambda o: o is operator)[0].values[0]
    args = [object(), *case.sample.args[1:]]
    with pytest.raises(TypeError) as error:
        operator.function(*args, **case.sample.kwargs)
    assert "object" in str(error.value)
    assert f"'{arguments[0].name}'" in str(error.value)
    assert str(error.value).startswith("[")
