"""Every operator on a batch of samples gives what it gives for each sample."""

from __future__ import annotations

import numpy as np
import pytest

import tensorplay as tp
from tensorplay.func import vmap
from tensorplay.ops import OPERATORS, Primitive, batching
from tensorplay.ops.batching_rules import RULES, SAMPLE_BY_SAMPLE, batched_with
from tests.ops.sampling import cases, tensors_of

PRIMITIVES = sorted(name for name, op in OPERATORS.items() if isinstance(op, Primitive))
RANDOM = {
    name
    for name, op in OPERATORS.items()
    if any(a.type.base == "Generator" for a in op.schema.arguments)
}
DEPENDS_ON_VALUES = {
    "_nonzero": "differs between the samples",
    "_unique": "differs between the samples",
    "masked_select": "differs between the samples",
}
READS_VALUES = {"allclose", "equal"}
REFUSED = {"one_hot-0": "classes|class"}  # the number of classes is the largest value
SIZE = 3


def test_every_operator_has_a_rule_or_a_reason():
    for name in PRIMITIVES:
        assert batched_with(name), f"{name} needs a batching rule, or a reason to have none"
    assert not set(RULES) & set(SAMPLE_BY_SAMPLE)


def variants(tensor, *, matrix=False):
    """Return tensors of the same shape and domain: the elements in another order.

    A matrix with properties, such as a positive definite one, is scaled instead.
    """
    if matrix:
        return [tensor.detach() * (1 + n) for n in range(SIZE)]
    flat = tensor.detach().reshape((-1,))
    return [tp.roll(flat, n).reshape(tensor.shape) for n in range(SIZE)]


def arrays(result):
    return [t.detach().numpy() for t in tensors_of(result)]


def call(case, tensors):
    rest = iter(tensors)
    return case.run(lambda _: next(rest))


def expected(case, columns):
    """Return the results of one call per sample, stacked."""
    rows = [arrays(call(case, tensors)) for tensors in zip(*columns, strict=True)]
    return [np.stack(column) for column in zip(*rows, strict=True)]


def is_matrix(case):
    return "cholesky" in case.operator.name or "eigh" in case.operator.name


def supported(case):
    name = case.operator.name
    if name in RANDOM:
        pytest.skip("random: see tests/func")
    if name in READS_VALUES:
        pytest.skip("its result is no tensor")
    return name


def compare(case, found, wanted):
    assert len(found) == len(wanted)
    for one, two in zip(found, wanted, strict=True):
        assert one.dtype == two.dtype
        np.testing.assert_allclose(one, two, rtol=1e-10, atol=1e-12, err_msg=case.name)


def given(case):
    return [t.detach() for t in tensors_of(list(case.arguments))]


@pytest.mark.parametrize("case", cases())
def test_all_arguments_batched(case):
    name = supported(case)
    columns = [variants(t, matrix=is_matrix(case)) for t in given(case)]
    stacked = [tp.stack(column) for column in columns]
    if not stacked:
        pytest.skip("no tensors")
    run = vmap(lambda *tensors: call(case, tensors))
    try:
        wanted = expected(case, columns)
    except ValueError:  # shapes differ
        wanted = None
    if name in DEPENDS_ON_VALUES and wanted is None:
        with pytest.raises(RuntimeError, match=DEPENDS_ON_VALUES[name]):
            run(*stacked)
        return
    if case.name in REFUSED:
        with pytest.raises(RuntimeError, match=REFUSED[case.name]):
            run(*stacked)
        return
    compare(case, arrays(run(*stacked)), wanted)


@pytest.mark.parametrize("case", cases())
def test_one_argument_batched(case):
    name = supported(case)
    tensors = given(case)
    if name in DEPENDS_ON_VALUES or len(tensors) < 2 or case.name in REFUSED:
        pytest.skip("covered by the other tests")
    for position in range(len(tensors)):
        columns = [
            variants(t, matrix=is_matrix(case)) if n == position else [t] * SIZE
            for n, t in enumerate(tensors)
        ]
        in_dims = tuple(0 if n == position else None for n in range(len(tensors)))
        inputs = [tp.stack(c) if n == position else c[0] for n, c in enumerate(columns)]
        found = vmap(lambda *t: call(case, t), in_dims)(*inputs)
        compare(case, arrays(found), expected(case, columns))


@pytest.mark.parametrize("case", cases())
def test_two_levels(case):
    name = supported(case)
    tensors = given(case)
    if name in DEPENDS_ON_VALUES or case.name in REFUSED or not tensors:
        pytest.skip("covered by the other tests")
    matrix = is_matrix(case)
    first = variants(tensors[0], matrix=matrix)[:2]
    rest = [variants(t, matrix=matrix) for t in tensors[1:]]
    if rest:
        inner = vmap(lambda x, *others: call(case, [x, *others]), (None, *[0] * len(rest)))
        found = vmap(inner, (0, *[None] * len(rest)))(tp.stack(first), *map(tp.stack, rest))
        rows = [expected(case, [[x] * SIZE, *rest]) for x in first]
    else:
        inner = vmap(lambda x: call(case, [x]))
        second = [variants(x, matrix=matrix) for x in first]
        found = vmap(inner)(tp.stack([tp.stack(s) for s in second]))
        rows = [expected(case, [s]) for s in second]
    compare(case, arrays(found), [np.stack(column) for column in zip(*rows, strict=True)])


def test_samples_are_computed_one_by_one_only_where_said(monkeypatch):
    looped = set()
    one_by_one = batching._one_by_one

    def recorded(operator, *rest):
        looped.add(operator.name)
        return one_by_one(operator, *rest)

    monkeypatch.setattr(batching, "_one_by_one", recorded)
    for parameters in cases():
        case = parameters.values[0]
        if case.operator.name in RANDOM | READS_VALUES | set(DEPENDS_ON_VALUES):
            continue
        columns = [variants(t, matrix=is_matrix(case)) for t in given(case)]
        if columns and case.name not in REFUSED:
            vmap(lambda *tensors, c=case: call(c, tensors))(*[tp.stack(c) for c in columns])
            for position in range(len(columns)):  # one argument alone
                in_dims = tuple(0 if n == position else None for n in range(len(columns)))
                inputs = [tp.stack(c) if n == position else c[0] for n, c in enumerate(columns)]
                vmap(lambda *tensors, c=case: call(c, tensors), in_dims)(*inputs)
    assert looped <= set(SAMPLE_BY_SAMPLE)
