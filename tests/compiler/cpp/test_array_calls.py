"""Steps that are no kernels, on arrays: the same bits as by NumPy, and views that stay views."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st
from hypothesis.extra.numpy import arrays

import tensorplay as tp
from tensorplay import _native
from tensorplay.ops import OPERATORS
from tests.compiler.cpp.graphs import Builder

core: Any = _native.core
compiled = pytest.mark.skipif(core is None, reason=f"extension: {_native.reason}")


def normal(*shape: int, seed: int = 0) -> tp.Tensor:
    return tp.from_numpy(np.random.default_rng(seed).standard_normal(shape).astype(np.float32))


def bits(result: Any, expected: Any) -> None:
    assert result.strides == expected.strides
    assert result.dtype == expected.dtype
    assert result.tobytes() == expected.tobytes()


@compiled
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(
    "sizes", [(3, 4, 5), (1, 6, 2), (2, 1, 3), (70, 65, 90), (0, 2, 3), (2, 0, 3)]
)
def test_products_are_numpys(sizes: tuple[int, int, int], dtype: Any) -> None:
    rows, depth, columns = sizes
    random = np.random.default_rng(0)
    a = random.standard_normal((rows, depth)).astype(dtype)
    b = random.standard_normal((columns, depth)).astype(dtype)
    for x, y in (
        (a, b.T),
        (a[::-1], np.ascontiguousarray(b.T)),
        (np.asfortranarray(a), b.T[:, ::-1]),
    ):
        bits(core.multiply_matrices(np.matmul, x, y), np.matmul(x, y))
        turned = core.transposed_product(np.matmul, x, y)
        np.testing.assert_allclose(turned, np.matmul(x, y).T, rtol=1e-5)
        assert turned.flags.f_contiguous
        assert turned.flags.owndata


@compiled
def test_products_of_other_types_are_left_to_numpy() -> None:
    whole = np.arange(6).reshape(2, 3)
    assert core.multiply_matrices(np.matmul, whole, whole.T).tolist() == [[5, 14], [14, 50]]
    assert core.transposed_product(np.matmul, whole, whole.T).tolist() == [[5, 14], [14, 50]]
    with pytest.raises(ValueError, match="mismatch"):
        core.multiply_matrices(np.matmul, np.ones((2, 3)), np.ones((2, 3)))


@compiled
def test_sizes_of_empty_operands_may_have_any_product() -> None:
    wide = np.broadcast_to(np.float32(1), (2, 1 << 40))
    none = np.empty((1 << 40, 0), np.float32)
    assert core.multiply_matrices(np.matmul, wide, none).shape == (2, 0)
    x, weight = tp.empty(1 << 40, 0), tp.empty(0, 0)
    assert tp.nn.functional.linear(x, weight).shape == (1 << 40, 0)


@compiled
@given(
    x=arrays(
        st.sampled_from([np.float32, np.float64]),
        st.tuples(st.integers(0, 40), st.integers(0, 9)),
        elements=st.floats(-(2.0**90), 2.0**90, width=32),
    ),
    more=st.sampled_from([0, 1020, 1030]),
)
def test_sums_of_rows_are_numpys(x: Any, more: int) -> None:
    x = np.concatenate([x, np.ones((more, x.shape[1]), x.dtype)])
    rows = OPERATORS["sum_to_size"].impl
    bits(core.sum_axis_0(rows, x, (x.shape[1],)), rows(x, (x.shape[1],)))


@compiled
@given(data=st.data(), rows=st.integers(0, 6), classes=st.integers(1, 4))
def test_classes_are_picked_and_placed_as_by_numpy(data: Any, rows: int, classes: int) -> None:
    labels = st.integers(-2, classes)
    target = np.array(data.draw(st.lists(labels, min_size=rows, max_size=rows)), np.int64)
    x = np.random.default_rng(0).standard_normal((classes, rows)).astype(np.float32).T
    pick, place = OPERATORS["_pick_class"].impl, OPERATORS["_place_class"].impl
    for native, own, arguments in (
        (core.pick_class, pick, (x, target, 1, -1, "cross_entropy")),
        (core.place_class, place, (x[:, 0], target, 1, -1, classes)),
    ):
        try:
            expected = own(*arguments)
        except IndexError as error:
            with pytest.raises(IndexError, match=re.escape(str(error))):
                native(own, *arguments)
        else:
            bits(native(own, *arguments), expected)
            if target.size and target.min() >= 0:  # none is ignored, and none is 2**70
                bits(native(own, *arguments[:3], 2**70, *arguments[4:]), expected)
    one = np.array([2.5], np.float32)
    if rows and target.min() >= -1 and target.max() < classes:
        expected = place(np.repeat(one, rows), target, 1, -1, classes)
        bits(core.place_class(place, one, target, 1, -1, classes), expected)


@compiled
def test_a_copy_of_a_turned_product_is_its_product() -> None:
    x, y = normal(4, 3), normal(4, 5, seed=1)
    b = Builder()
    a, c = b.input(x), b.input(y)
    product = b.matmul(b.transpose(a, 0, 1), c)
    f = b.compile(b.clone(b.transpose(product, 0, 1)))
    assert [r.operators for r in f.report.regions] == [
        ("transpose",), ("matmul", "transpose", "clone"),
    ]  # fmt: skip
    result = f(x, y)[0]
    np.testing.assert_allclose(result.numpy(), (x.T @ y).T.numpy(), rtol=1e-6)
    assert result.stride() == (1, 5)


def test_a_turned_product_that_others_read_stays() -> None:
    x, y = normal(4, 3), normal(3, 5, seed=1)
    b = Builder()
    product = b.matmul(b.input(x), b.input(y))
    f = b.compile(b.clone(b.transpose(product, 0, 1)), product)
    # The product is made once, and copied.
    assert ("matmul", "transpose", "clone") not in [r.operators for r in f.report.regions]
    turned, plain = f(x, y)
    assert (turned.numpy() == plain.numpy().T).all()


def test_views_among_the_results_are_views() -> None:
    x = normal(4, 3)
    b = Builder()
    f = b.compile(b.transpose(b.input(x), 0, 1))
    (result,) = f(x)
    result.add_(1)
    assert (x.numpy() == result.numpy().T).all()
    assert x._version == result._version > 0


def test_code_of_people_sees_the_state_of_warnings_as_they_left_it() -> None:
    seen = []

    def look(x: tp.Tensor) -> tp.Tensor:
        seen.append(np.geterr())
        return x + 1

    x = normal(2, 2)
    b = Builder()
    a = b.input(x)
    f = b.compile(b.call(look, b.matmul(a, b.transpose(a, 0, 1))))
    with np.errstate(over="call", divide="ignore"):
        f(x)
        assert seen[-1] == np.geterr()
