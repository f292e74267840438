"""What is written shares no memory with another argument, nor one element with another."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import tpkernel
from tests.tpkernel.shell import ADD1


def refusal(call, *args) -> str:
    with pytest.raises(ValueError, match="memory of its own") as caught:
        call(*args)
    return str(caught.value)


@pytest.fixture(scope="module")
def add1():
    return tpkernel.build(ADD1, "guards", checks=False).module.add1


def test_outputs_share_no_memory_with_inputs(add1):
    x = np.zeros(8, np.float32)
    assert "shared with argument 'x'" in refusal(add1, x, x)
    assert "shared with argument 'x'" in refusal(add1, x[:4], x[2:6])
    add1(x[:4], x[4:])
    assert x.tolist() == [0] * 4 + [1] * 4
    free = tpkernel.build(ADD1, "aliased", allow_alias=True).module.add1
    free(x, x)
    assert x.tolist() == [1] * 4 + [2] * 4


def test_an_output_needs_memory_of_its_own_for_each_element():
    text = """\
    void fill(tvm::ffi::TensorView out) {
      auto* p = static_cast<float*>(out.data_ptr());
      for (int64_t i = 0; i < out.size(0); ++i) p[i * out.stride(0)] = 1;
    }
    """
    fill = tpkernel.build(text, "fill").module.fill
    out = np.zeros(4, np.float32)
    fill(out[::2])
    assert out.tolist() == [1, 0, 1, 0]
    shared = np.lib.stride_tricks.as_strided(out, (4,), (0,))
    assert "memory of its own for each element" in refusal(fill, shared)


@pytest.fixture(scope="module")
def copy1():
    text = """\
    template <class T> void copy1(tp::In<T, 1> x, tp::InOut<T, 1> out) {
      for (int64_t i = 0; i < x.size(0); ++i) out(i) = x(i);
    }
    """
    return tpkernel.build(text, "columns").module.copy1


def test_columns_of_one_array_are_told_apart(copy1):
    a = np.arange(8.0).reshape(4, 2)
    copy1(a[:, 0], a[:, 1])
    assert a[:, 1].tolist() == [0, 2, 4, 6]
    assert "shared" in refusal(copy1, a[:3, 0], a[1:, 0])


PARTS = """\
template <class T> void add_to(tp::List<tp::In<T, 1>> xs, tp::InOut<T, 1> out) {
  for (auto x : xs)
    for (int64_t i = 0; i < x.size(0); ++i) out(i) += x(i);
}
"""


@pytest.fixture(scope="module")
def add_to():
    return tpkernel.build(PARTS, "parts", checks=False).module.add_to


@pytest.mark.parametrize("count", [1, 2, 15, 16, 17, 40])
def test_memory_shared_among_many_tensors_is_found(add_to, count):
    buffer = np.ones(3 * (count + 1), np.float32)
    parts = [buffer[3 * k : 3 * k + 3] for k in range(count)]
    out = buffer[3 * count :]
    add_to(parts, out)
    assert out.tolist() == [1 + count] * 3
    for k in {0, count // 2, count - 1}:
        shifted = [*parts[:k], buffer[3 * count - 1 : 3 * count + 2], *parts[k + 1 :]]
        assert "argument 'xs'" in refusal(add_to, shifted, out)
    assert out.tolist() == [1 + count] * 3


@st.composite
def places(draw):
    """Return the places that a view of one dimension has in a buffer of 24 elements."""
    size = draw(st.integers(0, 4))
    step = draw(st.sampled_from([-3, -2, -1, 1, 2, 3]))
    reach = (size - 1) * step if size else 0
    start = draw(st.integers(max(0, -reach), min(23, 23 - reach)))
    return range(start, start + size * step, step)


@given(of_x=places(), of_out=places())
@settings(max_examples=300, deadline=None)
def test_views_that_share_elements_are_refused_and_those_apart_are_not(copy1, of_x, of_out):
    buffer = np.arange(24, dtype=np.float32)
    size = min(len(of_x), len(of_out))
    of_x, of_out = of_x[:size], of_out[:size]
    x, out = (
        np.lib.stride_tricks.as_strided(buffer[p.start :], (size,), (4 * p.step,))
        for p in (of_x, of_out)
    )
    if set(of_x) & set(of_out):
        refusal(copy1, x, out)
        assert buffer.tolist() == list(range(24))
    elif not size or max(of_x) < min(of_out) or max(of_out) < min(of_x):
        copy1(x, out)
        assert out.tolist() == list(of_x)
    # Whether views that lie among each other share elements their steps alone need not tell.
