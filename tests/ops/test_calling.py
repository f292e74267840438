"""How operators are called: results written elsewhere, and sizes one by one or by name."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import pytest

import tensorplay as tp
from tensorplay.autograd import forward_ad
from tensorplay.ops import OPERATORS
from tests.ops.sampling import Maker

X = tp.arange(6.0).reshape(2, 3)


# --- out= -----------------------------------------------------------------------------------------


def test_results_are_written_into_out() -> None:
    out = tp.empty(2, 3)
    for function, args in ((tp.add, (X, 1)), (tp.exp, (X,)), (tp.maximum, (X, X * 2))):
        assert function(*args, out=out) is out
        assert out.tolist() == function(*args).tolist()
    assert out._version == 3
    truth = tp.zeros(2, 3, dtype=tp.bool)
    assert tp.gt(X, 2, out=truth).tolist() == (X > 2).tolist()
    square = tp.zeros(2, 2, dtype=tp.float64)
    tp.matmul(X, X.t(), out=square)  # a wider type takes it
    assert square.tolist() == (X @ X.t()).tolist()


@pytest.mark.parametrize("name", [n for n, o in OPERATORS.items() if o.out])
def test_every_operator_with_out_writes_there(name: str) -> None:
    operator = OPERATORS[name]
    assert operator.samples is not None
    make = Maker(name)
    for sample in operator.samples(lambda *a, **k: make(*a, **{**k, "requires_grad": False})):
        expected = operator.function(*sample.args, **sample.kwargs)
        # With gaps, so that elements that are not written show.
        wide = tp.zeros(*expected.shape, 2, dtype=expected.dtype)
        out = wide[..., 0]
        assert operator.function(*sample.args, **sample.kwargs, out=out) is out
        np.testing.assert_array_equal(out.numpy(), expected.numpy())
        assert not wide[..., 1].any()


REDUCTIONS = {
    *("sum", "mean", "prod", "amax", "amin", "any", "all", "argmax", "argmin", "count_nonzero"),
    *("var", "std", "logsumexp", "norm", "cumsum", "cumprod"),
}


def test_reductions_have_out() -> None:
    assert {n for n in REDUCTIONS if not OPERATORS[n].out} == set()


@pytest.mark.parametrize(
    "call", [lambda x, out: tp.sum(x, 0, out=out), lambda x, out: tp.cat([x[0], x[1]], out=out)]
)
def test_out_of_reductions_and_joins_refuses_derivatives_and_shapes(call) -> None:
    leaf = tp.ones(2, 3, requires_grad=True)
    right = call(leaf.detach(), None).clone()
    with pytest.raises(RuntimeError, match="don't support automatic differentiation"):
        call(leaf, right)
    with tp.no_grad():
        assert call(leaf, right) is right
    with pytest.raises(RuntimeError, match="shape of the result"):
        call(leaf.detach(), tp.empty(9))
    with pytest.raises(RuntimeError, match="can't be cast"):
        call(leaf.detach(), right.long())


def test_out_may_be_an_argument_and_a_view() -> None:
    x = tp.arange(4.0)
    tp.neg(x[:3], out=x[1:])
    assert x.tolist() == [0, 0, -1, -2]


def test_meta_results() -> None:
    out = tp.empty(2, 3, device="meta")
    assert tp.add(X.to("meta"), 1, out=out) is out
    with pytest.raises(RuntimeError, match="expected the shape of the result"):
        tp.add(X.to("meta"), 1, out=tp.empty(3, device="meta"))


def test_out_has_no_derivatives() -> None:
    leaf = tp.ones(3, requires_grad=True)
    with pytest.raises(RuntimeError, match="don't support automatic differentiation"):
        tp.exp(leaf, out=tp.empty(3))
    with pytest.raises(RuntimeError, match="don't support automatic differentiation"):
        tp.exp(tp.ones(3), out=leaf)
    with tp.no_grad():
        assert tp.exp(tp.zeros(3), out=leaf) is leaf
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(tp.ones(3), tp.ones(3))
        with pytest.raises(NotImplementedError, match="because it is an out= function"):
            tp.exp(dual, out=tp.empty(3))


@pytest.mark.parametrize(
    ("call", "kind", "text"),
    [
        (lambda: tp.add(X, 1, out=tp.empty(3)), RuntimeError, "shape of the result"),
        (lambda: tp.add(X, 1, out=tp.empty(2, 3).long()), RuntimeError, "can't be cast"),
        (lambda: tp.add(X, 1, out=[1]), TypeError, r"argument 'out': expected Tensor, got list"),
        (lambda: X.add(1, out=X), TypeError, "out"),
        (lambda: tp.softmax(X, 0, out=X), TypeError, "out"),
    ],
)
def test_errors_of_out(call: Any, kind: type[Exception], text: str) -> None:
    with pytest.raises(kind, match=text):
        call()


# --- sizes ----------------------------------------------------------------------------------------


def test_sizes_one_by_one_as_a_sequence_and_by_name() -> None:
    for one_by_one, sequence, named in (
        (X.reshape(3, 2), X.reshape((3, 2)), X.reshape(shape=(3, 2))),
        (X.view(3, -1), X.view([3, -1]), X.view(size=(3, -1))),
        (X.permute(1, 0), X.permute((1, 0)), X.permute(dims=(1, 0))),
        (X.expand(2, 2, 3), X.expand((2, 2, 3)), X.expand(size=(2, 2, 3))),
        (X.repeat(2, 1), X.repeat((2, 1)), X.repeat(repeats=(2, 1))),
        (X.tile(2, 1), X.tile((2, 1)), X.tile(dims=(2, 1))),
        (X.flip(0, 1), X.flip((0, 1)), X.flip(dims=(0, 1))),
    ):
        assert one_by_one.tolist() == sequence.tolist() == named.tolist()


def test_errors_of_sizes() -> None:
    with pytest.raises(TypeError, match="given twice"):
        X.reshape(3, 2, shape=(3, 2))
    with pytest.raises(TypeError, match="sizes"):
        X.reshape(sizes=(3, 2))
    with pytest.raises(TypeError, match="expected int"):
        X.reshape(shape="32")
    assert str(inspect.signature(tp.Tensor.reshape)) == "(self, *args, shape=None)"
