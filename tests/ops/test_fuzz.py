"""Every operator with arguments of any kind: what comes out is a result or an error in words.

The errors are of the contracted classes and their text starts with the operator's name in
brackets, or with the name of the function where Python itself found the number of arguments wrong.
"""

from __future__ import annotations

import re
import warnings

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

import tensorplay as tp
from tensorplay.library import custom_op
from tensorplay.ops import OPERATORS

CONTRACTED = (TypeError, ValueError, IndexError, RuntimeError, NotImplementedError, MemoryError)
NAMED = re.compile(r"\[[\w.:]+\] \S")
SIGNATURE = re.compile(r"(Tensor\.)?\w+\(\) (missing|takes|got)")

# Sizes among these would make tensors that fill the memory; they are tried as dimensions.
HUGE = [2**31, -(2**31) - 1, 2**63, 2**70, -(10**400), 10**400]
GROWING = re.compile(
    r"repeat|tile|pad|one_hot|bincount|diag|fft|new_|interpolate|unfold|size|range"
)

TENSORS = [
    lambda: tp.ones(2, 3),
    lambda: tp.ones(2, 3, requires_grad=True),
    lambda: tp.ones(3, 3, dtype=tp.float64),
    lambda: tp.ones(1, 2, 3, 3),
    lambda: tp.zeros(0, 3),
    lambda: tp.tensor(2.0),
    lambda: tp.tensor([1, 0, 2]),
    lambda: tp.tensor([True, False, True]),
    lambda: tp.tensor([1, 2], dtype=tp.uint8),
    lambda: tp.ones(2, dtype=tp.bfloat16),
    lambda: tp.ones(3, dtype=tp.complex64),
    lambda: tp.ones(2, device="meta"),
]
OTHERS = [
    *(0, 1, -1, 2, True, 1.5, float("nan"), float("inf"), 1j, None, "cpu", "a", "", b"x"),
    *([], [0], [0, 1], (1, 2), [None], ["a"], [1.5], [[0], [1]], {}, object(), slice(1), ...),
    *(tp.float32, tp.int64, np.ones(2), np.int64(1), np.float32(0.5)),
]

tensors = st.sampled_from(TENSORS).map(lambda make: make())
lists = st.lists(tensors, min_size=1, max_size=3)
small = st.one_of(st.sampled_from(OTHERS), tensors, lists)
anything = st.one_of(small, st.sampled_from(HUGE))

BY_HAND = [
    "broadcast_tensors", "nonzero", "repeat_interleave", "split", "tensordot", "unique", "where",
]  # fmt: skip
FUNCTIONS = {n: o.function for n, o in OPERATORS.items() if not n.startswith("_")}
FUNCTIONS |= {n: getattr(tp, n) for n in BY_HAND}
METHODS = {
    f".{n}": getattr(tp.Tensor, n)
    for n in dir(tp.Tensor)
    if not n.startswith("_") and callable(getattr(tp.Tensor, n))
}


def check(function, arguments):
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            function(*arguments)
    except CONTRACTED as error:
        caught = error
    else:
        return
    text = str(caught)
    named = NAMED.match(text) or (isinstance(caught, TypeError) and SIGNATURE.match(text))
    assert named, f"{type(caught).__name__} without the operator's name: {text}"


bounded = settings(
    max_examples=1500,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


def calls(names):
    def with_arguments(name):
        values = small if GROWING.search(name) else anything
        first = tensors if name.startswith(".") else st.one_of(tensors, values)
        rest = st.lists(values, max_size=4)
        return st.tuples(st.just(name), first, rest)

    return st.sampled_from(sorted(names)).flatmap(with_arguments)


@bounded
@given(calls(FUNCTIONS))
def test_functions(call):
    name, first, rest = call
    check(FUNCTIONS[name], (first, *rest))


@bounded
@given(calls(METHODS))
def test_methods(call):
    name, first, rest = call
    check(METHODS[name], (first, *rest))


@bounded
@given(tensors, small, small)
def test_indexing(x, key, value):
    def write(x, key, value):
        x[key] = value

    check(lambda x, key: x[key], (x, key))
    check(write, (x, key, value))


# --- the ones that were found ---------------------------------------------------------------------

x = tp.ones(2, 3)
ids = tp.tensor([0, 1])
FOUND = {
    "broadcast_tensors of a list": (TypeError, lambda: tp.broadcast_tensors([x])),
    "type_as a list": (TypeError, lambda: x.type_as([])),
    "searchsorted in a number": (TypeError, lambda: tp.searchsorted(3, ids)),
    "index_put into a number": (TypeError, lambda: tp.index_put(3, [ids], ids)),
    "a schema that is no text": (TypeError, lambda: custom_op("fuzz::f", abs, schema=5)),
    "transpose": (IndexError, lambda: x.clone().transpose_(2**31, 0)),
    "unsqueeze": (IndexError, lambda: x.unsqueeze(2**31)),
    "stack": (IndexError, lambda: tp.stack([x, x], 2**40)),
    "unbind": (IndexError, lambda: x.unbind(-(2**70))),
    "add": (ValueError, lambda: x.add(10**400)),
    "size": (TypeError, lambda: x.size("cpu")),
    "stride": (TypeError, lambda: x.stride([1])),
    "split": (TypeError, lambda: x.split(1, dim=object())),
    "repeat_interleave": (TypeError, lambda: x.repeat_interleave("a")),
    "repeat_interleave along": (TypeError, lambda: x.repeat_interleave(1, dim="a")),
    "tensordot": (TypeError, lambda: tp.tensordot(x, x, 1j)),
    "tensordot of letters": (TypeError, lambda: tp.tensordot(x, x, "ab")),
    "zeros": (ValueError, lambda: tp.zeros(2**70)),
}


@pytest.mark.parametrize("name", FOUND)
def test_found(name):
    kind, call = FOUND[name]
    with pytest.raises(kind, match=r"^\[\w+\] ") as caught:
        call()
    assert caught.type is kind


def test_diagonals_outside_of_a_matrix():
    for offset in (2**31, -(2**70), 10**400):
        assert x.diagonal(offset).shape == (0,)
    assert x.tril(2**70).tolist() == x.tolist()
    assert x.triu(-(2**70)).tolist() == x.tolist()
    assert x.triu(2**70).sum().item() == 0
    assert x.tril(-(10**400)).sum().item() == 0
