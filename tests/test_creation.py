from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, strategies as st
from hypothesis.extra import numpy as hnp

import tensorplay as tp


@pytest.mark.parametrize(
    ("data", "dtype"),
    [
        (3, tp.int64),
        (True, tp.bool),
        (1.5, tp.float32),
        (2j, tp.complex64),
        ([1, 2.5], tp.float32),
        ([True, 2], tp.int64),
        ([1, 2j], tp.complex64),
        ([], tp.float32),
        ([[]], tp.float32),
        (range(3), tp.int64),
        (np.float64(2), tp.float64),
        ([np.int8(1), np.int8(2)], tp.int8),
        (np.arange(3, dtype=np.int16), tp.int16),
        (np.ones(2, ml_dtypes.bfloat16), tp.bfloat16),
    ],
)
def test_tensor_infers_the_type(data: Any, dtype: tp.dtype) -> None:
    made = tp.tensor(data)
    assert made.dtype is dtype
    assert made.shape == np.asarray(data).shape


def test_tensor_follows_the_default_type() -> None:
    tp.set_default_dtype(tp.float64)
    try:
        assert tp.tensor([1.0]).dtype is tp.float64
        assert tp.tensor(1j).dtype is tp.complex128
        assert tp.zeros(2).dtype is tp.float64
    finally:
        tp.set_default_dtype(tp.float32)


def test_tensor_copies() -> None:
    array = np.zeros(3)
    made = tp.tensor(array)
    array[0] = 1
    assert made.tolist() == [0, 0, 0]
    again = tp.tensor(made)
    again.add_(1)
    assert made.tolist() == [0, 0, 0]


def test_tensor_takes_tensors_without_dimensions() -> None:
    parts = [tp.tensor(1.0), tp.tensor(2.0, dtype=tp.float64)]
    made = tp.tensor(parts)
    assert made.dtype is tp.float64
    assert made.tolist() == [1, 2]


@pytest.mark.parametrize("data", ["text", b"bytes", None, [1, "a"], [None], object(), {1: 2}])
def test_tensor_refuses_what_is_no_number(data: Any) -> None:
    with pytest.raises(TypeError, match=r"^\[tensor\] argument 'data': expected numbers"):
        tp.tensor(data)


def test_tensor_refuses_object_arrays_and_masks() -> None:
    with pytest.raises(TypeError, match="NumPy's object"):
        tp.tensor(np.array([None, 1]))
    with pytest.raises(TypeError, match="mask"):
        tp.tensor(np.ma.array([1.0, 2.0], mask=[True, False]))


def test_tensor_refuses_ragged_data() -> None:
    with pytest.raises(ValueError, match="ragged"):
        tp.tensor([[1, 2], [3]])


@pytest.mark.parametrize(
    ("data", "dtype"),
    [(2**63, None), ([2**63, -1], None), (300, tp.uint8), (-1, tp.uint16), (2**70, None),
     (float("nan"), tp.int64), ([1e20], tp.int32)],
)  # fmt: skip
def test_tensor_refuses_numbers_that_the_type_cannot_hold(data: Any, dtype: Any) -> None:
    with pytest.raises(ValueError, match=r"^\[tensor\] argument 'data'"):
        tp.tensor(data, dtype=dtype)


def test_tensor_holds_the_extremes() -> None:
    assert tp.tensor(2**64 - 1, dtype=tp.uint64).item() == 2**64 - 1
    assert tp.tensor(-(2**63)).item() == -(2**63)
    assert tp.tensor(1e300).item() == float("inf")


def test_tensor_refuses_to_drop_the_imaginary_part() -> None:
    with pytest.raises(TypeError, match="complex"):
        tp.tensor([1j], dtype=tp.float32)


def test_integers_cannot_require_grad() -> None:
    for make in (lambda: tp.tensor([1], requires_grad=True),
                 lambda: tp.ones(2, dtype=tp.bool, requires_grad=True)):  # fmt: skip
        with pytest.raises(RuntimeError, match="floating point"):
            make()


@given(hnp.arrays(
    dtype=st.sampled_from([np.float64, np.float32, np.int32, np.bool_, np.complex64]),
    shape=hnp.array_shapes(min_dims=0, min_side=0),
))  # fmt: skip
def test_tensor_keeps_numpy_values(array: Any) -> None:
    made = tp.tensor(array)
    np.testing.assert_array_equal(made.numpy(), array)
    assert made.numpy().dtype == array.dtype
    assert made.tolist() == array.tolist() or np.isnan(array).any()


@pytest.mark.parametrize("make", [tp.zeros, tp.ones, tp.empty])
def test_sizes_may_be_spread_or_together(make: Any) -> None:
    assert make(2, 3).shape == make((2, 3)).shape == make([2, 3]).shape == (2, 3)
    assert make(tp.Size((2, 3))).shape == (2, 3)
    assert make(()).shape == make().shape == ()
    assert make(tp.tensor(2), np.int64(3)).shape == (2, 3)


@pytest.mark.parametrize("make", [tp.zeros, tp.ones, tp.empty, tp.rand, tp.randn])
def test_sizes_are_checked(make: Any) -> None:
    with pytest.raises(RuntimeError, match="non-negative"):
        make(-1)
    with pytest.raises(TypeError, match=r"argument 'size': expected int\[\]"):
        make("a")
    with pytest.raises(TypeError, match=f"{make.__name__}.*nonsense"):
        make(2, nonsense=1)
    with pytest.raises(TypeError, match="expected a dtype"):
        make(2, dtype="f4")


def test_full_has_the_type_of_its_value() -> None:
    assert tp.full((2,), 3).dtype is tp.int64
    assert tp.full(2, True).dtype is tp.bool
    assert tp.full((), 2.5).dtype is tp.float32
    assert tp.full((2,), 1j).dtype is tp.complex64
    assert tp.full((2,), tp.tensor(4)).tolist() == [4, 4]
    assert tp.full((2,), 7, dtype=tp.bfloat16).tolist() == [7, 7]


@pytest.mark.parametrize("value", [300, float("nan"), -1])
def test_full_refuses_what_does_not_fit(value: float) -> None:
    with pytest.raises(RuntimeError, match=r"\[full\] .* cannot be converted"):
        tp.full((2,), value, dtype=tp.uint8)


def test_like_functions_take_shape_type_and_device() -> None:
    x = tp.ones(2, 3, dtype=tp.float64)
    for make in (tp.zeros_like, tp.ones_like, tp.empty_like):
        made = make(x)
        assert (made.shape, made.dtype, made.requires_grad) == ((2, 3), tp.float64, False)
        assert make(x, dtype=tp.int32).dtype is tp.int32
        assert make(x, device="meta").is_meta
        assert make(tp.ones(2, device="meta")).is_meta
        with pytest.raises(TypeError, match="argument 'input': expected Tensor"):
            make([1])
    assert tp.full_like(x, 2).tolist() == [[2, 2, 2]] * 2


@given(
    st.integers(-50, 50), st.integers(-50, 50), st.integers(-7, 7).filter(bool),
)  # fmt: skip
def test_arange_is_pythons_range(start: int, end: int, step: int) -> None:
    if (end - start) * step < 0:
        with pytest.raises(RuntimeError, match="inconsistent with step sign"):
            tp.arange(start, end, step)
    else:
        assert tp.arange(start, end, step).tolist() == list(range(start, end, step))


def test_arange() -> None:
    assert tp.arange(3).dtype is tp.int64
    assert tp.arange(0, 1, 0.25).tolist() == [0, 0.25, 0.5, 0.75]
    assert tp.arange(tp.tensor(3)).tolist() == [0, 1, 2]
    assert tp.arange(4, dtype=tp.bfloat16).dtype is tp.bfloat16
    with pytest.raises(RuntimeError, match="nonzero"):
        tp.arange(0, 3, 0)
    with pytest.raises(RuntimeError, match="finite"):
        tp.arange(0, float("inf"))
    with pytest.raises(ValueError, match=r"range of tensorplay\.uint8"):
        tp.arange(300, dtype=tp.uint8)
    with pytest.raises(TypeError, match="argument 'end'"):
        tp.arange(0, "3")


def test_linspace() -> None:
    assert tp.linspace(0, 1, 5).tolist() == [0, 0.25, 0.5, 0.75, 1]
    assert tp.linspace(0, 1, 0).shape == (0,)
    with pytest.raises(RuntimeError, match="number of steps must be non-negative"):
        tp.linspace(0, 1, -1)
    with pytest.raises(TypeError, match="argument 'steps'"):
        tp.linspace(0, 1, 2.5)


def test_eye() -> None:
    np.testing.assert_array_equal(tp.eye(2, 3, dtype=tp.bfloat16).float().numpy(), np.eye(2, 3))
    with pytest.raises(RuntimeError, match="non-negative"):
        tp.eye(-1)


def test_as_tensor_shares_where_it_can() -> None:
    array = np.zeros(3, np.float32)
    made = tp.as_tensor(array)
    array[0] = 1
    assert made.tolist() == [1, 0, 0]
    assert tp.as_tensor(made) is made
    assert tp.as_tensor(array, dtype=tp.float64).dtype is tp.float64
    array.flags.writeable = False
    copied = tp.as_tensor(array)
    copied.add_(1)
    assert array.tolist() == [1, 0, 0]
    with tp.device("meta"):
        assert tp.as_tensor(array).is_meta
        assert tp.as_tensor([1]).is_meta
        assert not tp.as_tensor(made).is_meta


def test_asarray_obeys_copy() -> None:
    array = np.zeros(3)
    assert tp.asarray(array, copy=False).data_ptr() == array.ctypes.data
    assert tp.asarray(array, copy=True).data_ptr() != array.ctypes.data
    assert tp.asarray(np.zeros(0), copy=False).shape == (0,)
    for refused in (lambda: tp.asarray([1.0], copy=False),
                    lambda: tp.asarray(array, dtype=tp.float32, copy=False)):  # fmt: skip
        with pytest.raises(ValueError, match="copy=False"):
            refused()


def test_asarray_leaves_the_given_tensor_as_it_is() -> None:
    x = tp.ones(2)
    y = tp.asarray(x, requires_grad=True)
    assert y.requires_grad
    assert not x.requires_grad
    assert y.data_ptr() == x.data_ptr()


def test_new_methods_inherit_type_and_device() -> None:
    x = tp.zeros(2, dtype=tp.float64)
    assert x.new_zeros(3).dtype is tp.float64
    assert x.new_ones((2, 2)).tolist() == [[1, 1]] * 2
    assert x.new_empty(1, dtype=tp.int8).dtype is tp.int8
    assert x.new_full((2,), 5).tolist() == [5, 5]
    assert x.new_tensor([1, 2]).dtype is tp.float64
    assert x.to("meta").new_empty(4).is_meta


def test_from_numpy_shares_memory() -> None:
    array = np.arange(6.0).reshape(2, 3).T[:, ::-1]
    made = tp.from_numpy(array)
    assert made.stride() == (1, -3)
    made.add_(1)
    assert array[0, 1] == 1


def test_from_numpy_copies_what_is_read_only() -> None:
    array = np.zeros(2)
    array.flags.writeable = False
    with pytest.warns(UserWarning, match="read-only"):
        made = tp.from_numpy(array)
    made.add_(1)
    assert array.tolist() == [0, 0]


@pytest.mark.parametrize(
    ("array", "error", "text"),
    [
        ([1.0], TypeError, r"expected np\.ndarray, got list"),
        (np.array([None]), TypeError, "object"),
        (np.array(["a"]), TypeError, "<U1"),
        (np.zeros(2, ">f4" if np.little_endian else "<f4"), TypeError, "astype"),
        (np.ma.zeros(2), TypeError, "mask"),
        (np.zeros(3, [("a", "f4"), ("b", "i1")])["a"], ValueError, "strides"),
    ],
)
def test_from_numpy_refuses(array: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=rf"^\[from_numpy\].*{text}"):
        tp.from_numpy(array)


def test_a_matrix_becomes_an_ordinary_tensor() -> None:
    made = tp.from_numpy(np.ones((2, 2)).view(np.matrix))
    assert type(made.numpy()) is np.ndarray
    assert made[0].shape == (2,)
