"""x[index] and x[index] = value against NumPy, their gradients, and writes through views."""

from __future__ import annotations

import functools
import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from hypothesis.extra import numpy as hnp

import tensorplay as tp

# --- against NumPy --------------------------------------------------------------------------------

SHAPES = hnp.array_shapes(min_dims=1, max_dims=3, min_side=1, max_side=4)


def ascending(item: Any) -> bool:
    """Tell whether a slice has no negative step, which tensors refuse."""
    return not isinstance(item, slice) or item.step is None or item.step > 0


@st.composite
def basic(draw: st.DrawFn, shape: tuple[int, ...]) -> Any:
    key = draw(hnp.basic_indices(shape, allow_newaxis=True, allow_ellipsis=True))
    items = key if isinstance(key, tuple) else (key,)
    items = tuple(i if ascending(i) else slice(i.start, i.stop) for i in items)
    return items if isinstance(key, tuple) else items[0]


@st.composite
def advanced(draw: st.DrawFn, shape: tuple[int, ...]) -> Any:
    """Index arrays, masks and slices. Numbers beside index arrays mean another order in NumPy."""
    picked = draw(hnp.array_shapes(min_dims=0, max_dims=2, min_side=0, max_side=3))
    items: list[Any] = []
    dim = 0
    while dim < len(shape):
        kind = draw(st.sampled_from(("slice", "index", "index", "mask")))
        size = shape[dim]
        if kind == "mask" and not any(isinstance(i, np.ndarray) for i in items):
            # Only one mask, and only as the first array, so that its count needs no partner.
            mask = draw(hnp.arrays(bool, shape[dim:]))
            return (*items, mask)
        if kind == "index":
            items.append(draw(hnp.arrays(np.int64, picked, elements=st.integers(-size, size - 1))))
        else:
            items.append(slice(draw(st.integers(-2, 2)), None, draw(st.integers(1, 2))))
        dim += 1
    return tuple(items)


def tensors(key: Any) -> Any:
    """Return the same index with tensors in place of arrays."""
    items = key if isinstance(key, tuple) else (key,)
    return tuple(tp.tensor(i) if isinstance(i, np.ndarray) else i for i in items)


def zero_dim(key: Any) -> bool:
    """Tell whether NumPy and we read the index differently: a number among index arrays."""
    arrays = [i for i in key if isinstance(i, np.ndarray)]
    return any(i.ndim == 0 for i in arrays) and len(arrays) > 1


@given(st.data())
def test_basic_index_is_a_view_as_in_numpy(data: st.DataObject) -> None:
    shape = data.draw(SHAPES)
    a = np.arange(float(np.prod(shape))).reshape(shape)
    key = data.draw(basic(shape))
    x = tp.from_numpy(a)
    expected = a[(*key, ...) if isinstance(key, tuple) and Ellipsis not in key else key]
    y = x[key]
    assert tuple(y.shape) == np.shape(expected)
    np.testing.assert_array_equal(y.numpy(), expected)
    twin = x.to("meta")[key]
    assert twin.shape == y.shape
    y.fill_(-1.0)
    assert x._version == 1
    assert (a == -1).sum() == y.numel()


@given(st.data())
def test_index_arrays_are_those_of_numpy(data: st.DataObject) -> None:
    shape = data.draw(SHAPES)
    a = np.arange(float(np.prod(shape))).reshape(shape)
    key = data.draw(advanced(shape).filter(lambda k: not zero_dim(k)))
    x = tp.tensor(a)
    expected = a[key]
    for form in (tensors(key), key):
        y = x[form]
        assert tuple(y.shape) == expected.shape
        np.testing.assert_array_equal(y.numpy(), expected)
        if any(isinstance(i, np.ndarray) and i.ndim for i in key):
            assert y._base is None


@given(st.data())
def test_write_is_that_of_numpy(data: st.DataObject) -> None:
    shape = data.draw(SHAPES)
    a = np.arange(float(np.prod(shape))).reshape(shape)
    key = data.draw(st.one_of(basic(shape), advanced(shape).filter(lambda k: not zero_dim(k))))
    x = tp.tensor(a)
    picked = np.shape(a[key])
    value = np.random.default_rng(0).normal(
        size=data.draw(st.sampled_from((picked, (), picked[1:])))
    )
    a[key] = value
    x[tensors(key)] = tp.tensor(value)
    np.testing.assert_array_equal(x.numpy(), a)
    assert x._version == 1


@settings(max_examples=50)
@given(st.data())
def test_gradient_of_reading_counts_how_often_each_element_was_read(data: st.DataObject) -> None:
    shape = data.draw(SHAPES)
    a = np.arange(float(np.prod(shape))).reshape(shape)
    key = data.draw(st.one_of(basic(shape), advanced(shape).filter(lambda k: not zero_dim(k))))
    x = tp.tensor(a).requires_grad_()
    y = x[tensors(key)]
    weights = np.random.default_rng(0).normal(size=tuple(y.shape))
    y.backward(tp.tensor(weights))
    expected = np.zeros(shape)
    np.add.at(expected, key, weights)
    assert x.grad is not None
    np.testing.assert_allclose(x.grad.numpy(), expected)


def test_kinds_of_index_that_mean_the_same() -> None:
    x = tp.arange(12).reshape(3, 4)
    rows = x[[2, 0]]
    for key in (tp.tensor([2, 0]), tp.tensor([2, 0], dtype=tp.int32), np.array([2, 0]), [-1, 0]):
        assert x[key].tolist() == rows.tolist()
    assert x[np.int64(1)].tolist() == x[tp.tensor(1)].tolist() == x[1].tolist()
    assert x[True].shape == (1, 3, 4)
    assert x[False].shape == (0, 3, 4)
    assert x[tp.tensor(True)].shape == (1, 3, 4)
    assert x[[]].shape == (0, 4)
    assert x[[True, False, True]].shape == (2, 4)
    assert x[x > 5].tolist() == [6, 7, 8, 9, 10, 11]
    assert x[1, [0, 3]].tolist() == [4, 7]
    assert x[:, None, [0, 3]].shape == (3, 1, 2)
    assert x[tp.tensor(1) : tp.tensor(3)].shape == (2, 4)


def test_number_beside_index_arrays_is_applied_first() -> None:
    x = tp.ones(2, 3, 4)
    assert x[0, :, tp.tensor([0, 1])].shape == (3, 2)


def test_values_written_may_be_lists_arrays_numbers_and_have_leading_ones() -> None:
    x = tp.zeros(2, 3)
    x[0] = [1, 2, 3]
    x[1] = np.array([[4.0, 5.0, 6.0]])
    assert x.tolist() == [[1, 2, 3], [4, 5, 6]]
    x[x > 4] = 0
    x[[0, 1], [0, 1]] = tp.tensor([[7.0, 8.0]])
    assert x.tolist() == [[7, 2, 3], [4, 8, 0]]
    x[x == 8] = tp.tensor(1)
    x[..., -1] += 10
    assert x.tolist() == [[7, 2, 13], [4, 1, 10]]


def test_mask_and_basic_writes_work_on_meta() -> None:
    x = tp.ones(2, 3).to("meta")
    x[x > 0] = 1.0
    x[0] = 2.0
    assert x._version == 2


def test_reading_by_mask_on_meta_is_refused() -> None:
    x = tp.ones(2, 3).to("meta")
    with pytest.raises(NotImplementedError, match="nonzero"):
        x[x > 0]


X = tp.ones(2, 3)


@pytest.mark.parametrize(
    ("key", "kind", "text"),
    [
        (2, IndexError, "index 2 is out of bounds for dimension 0 with size 2"),
        ((0, -4), IndexError, "index -4 is out of bounds for dimension 1 with size 3"),
        ((0, 0, 0), IndexError, "too many indices for tensor of dimension 2"),
        (1.5, IndexError, "got float"),
        (np.float32(1), IndexError, "got float"),
        ("a", IndexError, "got str"),
        (object(), IndexError, "got object"),
        (tp.tensor([1.0]), IndexError, "must be long, int or bool"),
        (tp.tensor([1], dtype=tp.uint8), IndexError, r"mask.bool\(\)"),
        (tp.tensor([True]), IndexError, r"shape of the mask \[1\] at index 0 does not match"),
        ((slice(None), tp.tensor([True])), IndexError, "at index 1 does not match"),
        (tp.tensor([2]), IndexError, "index 2 is out of bounds for dimension 0 with size 2"),
        (([0], [0, 1, 0], [0]), IndexError, "too many indices"),
        (([0, 1], [0, 1, 0]), IndexError, "could not be broadcast"),
        ((Ellipsis, Ellipsis), IndexError, "single ellipsis"),
        (slice(None, None, -1), ValueError, "step must be greater than zero"),
        (slice(None, None, 0), ValueError, "step must be greater than zero"),
    ],
)
def test_wrong_index(key: Any, kind: type[Exception], text: str) -> None:
    with pytest.raises(kind, match=text):
        X[key]
    before = X.tolist()
    with pytest.raises(kind, match=text):
        X[key] = 5.0
    assert X.tolist() == before


def test_index_of_a_0d_tensor() -> None:
    x = tp.tensor(3.0)
    with pytest.raises(IndexError, match="0-dim"):
        x[0]
    assert x[...].item() == x[()].item() == 3.0
    x[...] = 4.0
    assert x.item() == 4.0


@pytest.mark.parametrize(
    ("write", "kind", "text"),
    [
        (lambda x: x.__setitem__(0, tp.ones(2)), RuntimeError, "broadcasts to"),
        (lambda x: x.__setitem__([0, 1], tp.ones(2)), RuntimeError, "cannot be broadcast"),
        (lambda x: x.masked_fill_(x > 0, tp.ones(2)), RuntimeError, "0-dimension"),
        (lambda x: x.masked_fill(tp.ones(2, 3), 1), TypeError, "expected a bool tensor"),
        (lambda x: tp.where(x, x, x), TypeError, "expected a bool tensor"),
        (lambda x: x.long().masked_fill(x > 0, 1.5), RuntimeError, "cannot be converted"),
        (lambda x: x.masked_fill(tp.ones(2).bool(), 1), RuntimeError, "must match the size"),
        (lambda x: x.index_select(0, tp.ones(1)), TypeError, "int64 or int32"),
        (lambda x: x.index_select(0, tp.tensor([2])), IndexError, "out of bounds"),
        (lambda x: x.index_select(0, tp.tensor([[0]])), IndexError, "vector"),
        (lambda x: x.gather(1, tp.tensor([[3]])), IndexError, "out of bounds"),
        (lambda x: x.gather(1, tp.tensor([[-1]])), IndexError, "out of bounds"),
        (lambda x: x.gather(1, tp.tensor([0])), RuntimeError, "same number of dimensions"),
        (lambda x: x.gather(1, tp.zeros(3, 1, dtype=tp.int64)), RuntimeError, "does not match"),
        (
            lambda x: x.scatter_add(0, tp.tensor([[0]]), tp.ones(0, 1)),
            RuntimeError,
            "does not match",
        ),
        (lambda x: x.index_add(0, tp.tensor([0]), tp.ones(1, 2)), RuntimeError, "expected shape"),
        (lambda x: x.take(tp.tensor([6])), IndexError, "out of bounds"),
        (lambda x: x.repeat_interleave(-1), RuntimeError, "can not be negative"),
        (lambda x: x.repeat_interleave(tp.tensor([1, 2, 3]), 0), RuntimeError, "same size"),
        (lambda x: x.take_along_dim(tp.tensor([0]), 0), RuntimeError, "same number of dimensions"),
    ],
)
def test_wrong_arguments(write: Any, kind: type[Exception], text: str) -> None:
    with pytest.raises(kind, match=text):
        write(tp.ones(2, 3))


def test_nonzero_forms() -> None:
    x = tp.tensor([[0, 3], [4, 0]])
    assert tp.nonzero(x).tolist() == [[0, 1], [1, 0]]
    rows, columns = x.nonzero(as_tuple=True)
    assert x[rows, columns].tolist() == [3, 4]
    assert tp.nonzero(x).dtype is tp.int64
    assert tp.tensor(5).nonzero().shape == (1, 0)
    with pytest.raises(NotImplementedError, match="meta"):
        x.to("meta").nonzero()


def test_method_where_chooses_this_tensor() -> None:
    x = tp.tensor([1.0, -1.0])
    assert x.where(x > 0, 0.0).tolist() == [1.0, 0.0]


# --- derivatives of writes ------------------------------------------------------------------------
# Each program writes into tensors and through views; it is compared with central differences of
# the same program run without a graph, and its gradient with those of the gradient.


def program(function: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    PROGRAMS.append(function)
    return function


PROGRAMS: list[Callable[[Any, Any], Any]] = []


@program
def write_part_then_multiply_rest(x: Any, z: Any) -> Any:
    y = x * 2
    y[0] = z
    y[1:].mul_(3)
    return (y * y * y).sum()


@program
def write_base_then_old_view(x: Any, z: Any) -> Any:
    y = x * 2
    view = y[1:]
    y.mul_(2)
    view.mul_(z)
    return (y**2).sum() + (view**3).sum()


@program
def write_view_then_read_other_view(x: Any, z: Any) -> Any:
    y = x * 1
    a, b = y[0], y[0]
    a.mul_(z)
    return (b**2).sum() + (y**2).sum()


@program
def write_view_of_view_of_transpose(x: Any, z: Any) -> Any:
    y = x.t() * 1
    flat = y.t().view(-1)
    flat[1:3].mul_(z)
    y[0, 1] = z[1]
    return (y**2).sum() + (flat**3).sum()


@program
def write_view_of_square(x: Any, z: Any) -> Any:
    y = x * x
    flat = y.view(-1)
    flat[1:3] = z
    return (y.t() ** 3).sum() * flat[0]


@program
def write_by_mask(x: Any, z: Any) -> Any:
    y = x * x
    y[y > 1] = 0.0
    low = y < 0.5
    y[low] = z.sum() * tp.ones(int(low.sum()), dtype=tp.float64)
    y.masked_fill_(tp.tensor([[True, False]]), z[0])
    return (y**2).sum()


@program
def write_by_index(x: Any, z: Any) -> Any:
    y = x * x
    y[[0, 2]] = z * z
    y[tp.tensor([1]), 1] += x[0, 0]
    return (y**3).sum()


@program
def write_one_place_twice(x: Any, z: Any) -> Any:
    y = x * 1
    y[[0, 0, 1]] = z
    y[[1, 1]] = x[1:] * z
    y.scatter_(1, tp.tensor([[0, 0], [1, 1]]), x[:2] * 3)
    return (y**3).sum()


@program
def write_into_zeros(x: Any, z: Any) -> Any:
    y = tp.zeros(3, 2, dtype=tp.float64)
    y[0] = z
    y[1:] = x[1:] * z
    return (y**3).sum()


@program
def write_columns_and_rows(x: Any, z: Any) -> Any:
    y = x * 1
    y[:, 0].add_(z[0])
    y.t()[1].mul_(y[:, 0])
    y[0].sigmoid_()
    return (y**2).sum()


@program
def write_diagonal(x: Any, z: Any) -> Any:
    y = x * 1
    d = y[:2].diagonal()
    d.mul_(z * d.clone())
    d.sigmoid_()
    return (y**3).sum()


@program
def write_one_of_several_views(x: Any, z: Any) -> Any:
    y = x * 1
    a, b, c = y.unbind(0)
    a.mul_(z)
    b.copy_(a)
    return (y**2).sum() + (c * b).sum() + (a.clone() * b.clone()).sum()


@program
def write_part_of_split(x: Any, z: Any) -> Any:
    y = x * 1
    parts = y.split([1, 2])
    parts[1].mul_(z)
    y[0] = parts[1][0]
    return (y**3).sum()


@program
def write_element(x: Any, z: Any) -> Any:
    y = x * 1
    y[1, 1] = z[0] * y[0, 0].clone()
    return (y**2).sum()


@program
def write_whole(x: Any, z: Any) -> Any:
    y = x * 1
    y[...] = y.clone() * z
    y.mul_(y)
    y[:, None][..., 0] = z[1]
    y.unsqueeze(0).select(1, 0).mul_(z)
    return (y**2).sum()


@program
def write_shifted(x: Any, z: Any) -> Any:
    y = x * 1
    y[1:] = y[:2].clone() * z
    y[:, 1] = y[:, 0].clone()
    return (y**3).sum()


@program
def add_at_index(x: Any, z: Any) -> Any:
    y = x * 1
    y.index_add_(0, tp.tensor([0, 0]), z.expand(2, 2))
    y.index_put_([tp.tensor([2])], z, True)
    y.scatter_add_(1, tp.tensor([[1], [1]]), z.reshape(2, 1))
    return (y**3).sum()


@program
def write_copy_of_expanded(x: Any, z: Any) -> Any:
    y = x.sum(0).expand(3, 2).clone()
    y[1].zero_()
    y[2].fill_(z[0])
    return (y**2).sum()


@program
def augmented_assignment(x: Any, z: Any) -> Any:
    y = x * 1
    y /= z
    y -= x
    y **= 2
    y[0] += z[0]
    y @= tp.eye(2, dtype=tp.float64) * 2
    return (y**2).sum()


def slopes(function: Callable[..., float], arrays: list[Any], step: float) -> list[Any]:
    """Return central differences of a function of arrays."""
    found = []
    for array in arrays:
        slope = np.zeros(array.shape)
        for place in np.ndindex(array.shape):
            value = array[place]
            ends = []
            for sign in (1, -1):
                array[place] = value + sign * step
                ends.append(function(*arrays))
            array[place] = value
            slope[place] = (ends[0] - ends[1]) / (2 * step)
        found.append(slope)
    return found


def value_of(function: Any, *arrays: Any) -> float:
    return float(function(*[tp.tensor(a) for a in arrays]))


def score(function: Any, *arrays: Any) -> float:
    """Return a function of the gradient, for its slopes."""
    leaves = [tp.tensor(a).requires_grad_() for a in arrays]
    found = tp.autograd.grad(function(*leaves), leaves)
    return sum(float((g * g * weight).sum()) for weight, g in zip((1, 2), found, strict=True))


@pytest.mark.parametrize("function", PROGRAMS, ids=lambda f: f.__name__)
def test_gradient_of_writes(function: Any) -> None:
    random = np.random.default_rng(0)
    arrays = [random.uniform(0.5, 2, (3, 2)), random.uniform(0.5, 2, 2)]
    leaves = [tp.tensor(a).requires_grad_() for a in arrays]
    found = tp.autograd.grad(function(*leaves), leaves, create_graph=True)
    expected = slopes(functools.partial(value_of, function), arrays, 1e-6)
    for actual, slope in zip(found, expected, strict=True):
        np.testing.assert_allclose(actual.detach().numpy(), slope, rtol=1e-6, atol=1e-6)
    total = sum((g * g * weight).sum() for weight, g in zip((1, 2), found, strict=True))
    second = tp.autograd.grad(total, leaves, materialize_grads=True)
    expected = slopes(functools.partial(score, function), arrays, 1e-5)
    for actual, slope in zip(second, expected, strict=True):
        np.testing.assert_allclose(actual.numpy(), slope, rtol=1e-5, atol=1e-4)


def test_write_to_leaf_or_its_view_is_refused() -> None:
    x = tp.ones(3).requires_grad_()
    for write in (lambda: x.__setitem__(0, 1.0), lambda: x[1:].mul_(2), lambda: x.mul_(2)):
        with pytest.raises(RuntimeError, match="leaf Variable that requires grad"):
            write()
    with tp.no_grad():
        x[0] = 5.0
    assert x.tolist() == [5.0, 1.0, 1.0]


def test_write_of_a_saved_value_is_noticed_through_views() -> None:
    x = tp.ones(3).requires_grad_()
    y = x * 1
    z = y * y
    y[0] = 2.0
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        z.sum().backward()


def test_write_through_view_of_no_grad_mode_is_refused() -> None:
    y = tp.ones(3).requires_grad_() * 1
    with tp.no_grad():
        view = y[0]
    with pytest.raises(RuntimeError, match="created in no_grad mode"):
        view.mul_(2)


def test_integer_tensor_indexes_saved_for_backward_are_guarded() -> None:
    x = tp.ones(3).requires_grad_()
    i = tp.tensor([0, 1])
    y = x[i]
    i[0] = 2
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


# --- what is written, and what is not -------------------------------------------------------------


def _peak(call: Any) -> int:
    tracemalloc.start()
    try:
        call()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_writing_a_part_copies_no_more_than_the_part() -> None:
    x = tp.zeros(1000, 1000)
    few, mask = tp.tensor([3, 5]), tp.zeros(1000, 1000).bool()
    rows = tp.ones(2, 1000)

    def number() -> None:
        x[few] = 1.0

    def values() -> None:
        x[few] = rows

    def column() -> None:
        x[:, few] = 2.0

    def part() -> None:
        x[:500] = 3.0

    def add() -> None:
        x.index_put_([few], rows, True)

    def whole() -> None:
        x.fill_(4.0)

    def masked() -> None:
        x[mask] = 5.0

    for call in (number, values, column, part, add, whole, masked):
        assert _peak(call) < 200_000, call.__name__
    assert x.tolist() == tp.full((1000, 1000), 4.0).tolist()


@given(
    st.lists(st.integers(-4, 3), min_size=1, max_size=5),
    st.booleans(),
    st.sampled_from(["row-major", "transposed", "reversed", "part"]),
)
def test_index_put_in_place_is_the_functional_form(
    places: list[int], accumulate: bool, layout: str
) -> None:
    base = tp.from_numpy(np.arange(32.0).reshape(4, 8))
    x = {
        "row-major": lambda: base[:, :4], "transposed": base[:, :4].t,
        "reversed": lambda: tp.from_numpy(np.arange(16.0).reshape(4, 4)[::-1]),
        "part": lambda: base[:, ::2],
    }[layout]()  # fmt: skip
    index, values = tp.tensor(places), tp.rand(len(places), 4, dtype=tp.float64)
    expected = x.index_put([index], values, accumulate)
    assert x.index_put_([index], values, accumulate) is x
    np.testing.assert_allclose(x.numpy(), expected.numpy())


def test_values_and_indices_in_the_memory_that_is_written() -> None:
    x = tp.tensor([0, 1, 2, 3])
    x[x[1:]] = x[:3]
    assert x.tolist() == [0, 0, 1, 2]
    y = tp.tensor([3, 2, 1, 0])
    y[y] = tp.tensor([1, 1, 1, 1])
    assert y.tolist() == [1, 1, 1, 1]
    z = tp.arange(6.0)
    z[1:] = z[:-1]
    assert z.tolist() == [0, 0, 1, 2, 3, 4]


def test_a_write_that_fails_writes_nothing() -> None:
    x = tp.zeros(4)
    with pytest.raises(IndexError, match="out of bounds"):
        x[tp.tensor([0, 1, 9])] = 1.0
    with pytest.raises(IndexError, match="out of bounds"):
        x.index_put_([tp.tensor([0, 9])], tp.ones(2), True)
    with pytest.raises(RuntimeError, match="shape mismatch"):
        x[tp.tensor([0, 1])] = tp.ones(3)
    assert x.tolist() == [0, 0, 0, 0]
    assert x._version == 0
