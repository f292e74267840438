from __future__ import annotations

import copy
import operator
import pickle
from typing import Any

import numpy as np
import pytest

import tensorplay as tp

# --- types ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        (tp.uint8, tp.int8, tp.int16),
        (tp.int64, tp.float32, tp.float32),
        (tp.float16, tp.bfloat16, tp.float32),
        (tp.complex64, tp.float64, tp.complex128),
        (tp.bool, tp.uint8, tp.uint8),
        (tp.int32, tp.int64, tp.int64),
        (tp.uint16, tp.float32, tp.float32),
    ],
)
def test_promote_types(a: tp.dtype, b: tp.dtype, expected: tp.dtype) -> None:
    assert tp.promote_types(a, b) is tp.promote_types(b, a) is expected


def test_wide_unsigned_types_are_not_promoted() -> None:
    with pytest.raises(RuntimeError, match="not supported"):
        tp.promote_types(tp.uint8, tp.uint16)


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda: tp.ones(1) + tp.tensor(1.0, dtype=tp.float64), tp.float32),
        (lambda: tp.ones(1, dtype=tp.int32) + tp.tensor(1.0, dtype=tp.float64), tp.float64),
        (lambda: tp.tensor([1]) + 1.5, tp.float32),
        (lambda: tp.tensor([True]) + 1, tp.int64),
        (lambda: tp.tensor([1]) / tp.tensor([2]), tp.float32),
        (lambda: tp.tensor([1], dtype=tp.uint16) + 1, tp.uint16),
        (lambda: tp.ones(1) + np.float64(1), tp.float32),
        (lambda: tp.ones(1) * 1j, tp.complex64),
    ],
)
def test_result_type_of_arithmetic(make: Any, expected: tp.dtype) -> None:
    assert make().dtype is expected


def test_a_number_too_big_wraps_in_arithmetic() -> None:
    result = tp.tensor([1], dtype=tp.uint8) + 300
    assert result.dtype is tp.uint8
    assert result.tolist() == [45]


def test_dtype_attributes() -> None:
    assert str(tp.float32) == repr(tp.float32) == "tensorplay.float32"
    assert tp.half is tp.float16
    assert tp.double is tp.float64
    assert tp.long is tp.int64
    assert (tp.bfloat16.itemsize, tp.bfloat16.is_floating_point) == (2, True)
    assert tp.complex64.is_complex
    assert not tp.uint8.is_signed
    assert pickle.loads(pickle.dumps(tp.bfloat16)) is tp.bfloat16
    assert copy.deepcopy(tp.int8) is tp.int8


def test_default_dtype_is_floating() -> None:
    for wrong in (tp.int64, tp.complex64, np.float32, "float32"):
        with pytest.raises(TypeError, match="only floating-point types"):
            tp.set_default_dtype(wrong)


def test_finfo_and_iinfo() -> None:
    assert tp.finfo(tp.float32).eps == np.finfo(np.float32).eps
    assert tp.finfo(tp.complex128).dtype is tp.float64
    assert tp.finfo(tp.bfloat16).bits == 16
    assert tp.finfo(tp.bfloat16).max > 3e38
    assert (tp.iinfo(tp.int8).min, tp.iinfo(tp.int8).max) == (-128, 127)
    with pytest.raises(TypeError, match="Use iinfo"):
        tp.finfo(tp.int8)
    with pytest.raises(TypeError, match="Use finfo"):
        tp.iinfo(tp.float32)
    with pytest.raises(TypeError, match="expected a dtype"):
        tp.finfo(np.zeros(2))


def test_can_cast() -> None:
    assert tp.can_cast(tp.float64, tp.float32)
    assert not tp.can_cast(tp.float32, tp.int64)
    assert not tp.can_cast(tp.complex64, tp.float32)
    assert not tp.can_cast(tp.int8, tp.bool)


# --- attributes ----------------------------------------------------------------------------------


def test_shape_is_a_size() -> None:
    x = tp.zeros(2, 3, 4)
    assert isinstance(x.shape, tp.Size)
    assert isinstance(x.shape[1:], tp.Size)
    assert isinstance(operator.add(x.shape, (5,)), tp.Size)
    assert x.shape.numel() == 24
    assert x.shape == (2, 3, 4)
    assert repr(x.shape) == "Size([2, 3, 4])"
    assert (x.size(-1), x.stride(0), x.ndim, x.dim(), x.nbytes) == (4, 12, 3, 3, 96)


@pytest.mark.parametrize("method", ["size", "stride"])
def test_dimension_out_of_range(method: str) -> None:
    with pytest.raises(IndexError, match=r"expected to be in range of \[-1, 0\], but got 2"):
        getattr(tp.zeros(3), method)(2)
    with pytest.raises(IndexError, match="no dimensions"):
        getattr(tp.zeros(()), method)(0)


def test_strides_count_elements() -> None:
    x = tp.from_numpy(np.arange(12.0).reshape(3, 4))
    assert x.t().stride() == (1, 4)
    assert not x.t().is_contiguous()
    assert x[::2].stride() == (8, 1)
    assert tp.zeros(2, 0).stride() == (1, 1)
    assert x[1:].storage_offset() == 4
    for y in (tp.zeros(1, 3)[:, ::1], tp.zeros(3, 1, 2).to("meta"), tp.zeros(0, 3).to("meta")):
        assert y.is_contiguous()


def test_data_has_its_own_version_and_detach_shares_it() -> None:
    x = tp.ones(2)
    shared, own = x.detach(), x.data
    x.add_(1)
    assert (shared._version, own._version) == (x._version, 0)
    assert shared.tolist() == own.tolist() == [2, 2]


def test_detach_in_place() -> None:
    x = tp.ones(2, requires_grad=True)
    y = x * 2
    assert y.detach_() is y
    assert y.is_leaf
    assert not y.requires_grad
    with pytest.raises(RuntimeError, match="view"):
        (x * 2)[:1].detach_()


def test_requires_grad_flag() -> None:
    x = tp.ones(2)
    assert x.requires_grad_() is x
    y = x * 2
    with pytest.raises(RuntimeError, match="leaf variables"):
        y.requires_grad = False
    with pytest.raises(RuntimeError, match="floating point"):
        tp.tensor([1]).requires_grad_()


@pytest.mark.parametrize(
    ("value", "error", "text"),
    [
        (lambda: tp.ones(3), RuntimeError, "size"),
        (lambda: tp.ones(2, dtype=tp.float64), RuntimeError, "dtype"),
        (lambda: np.ones(2), TypeError, "Tensor or None"),
        (lambda: tp.ones(2, device="meta"), RuntimeError, "device"),
    ],
)
def test_a_gradient_of_another_kind_is_refused(value: Any, error: Any, text: str) -> None:
    x = tp.ones(2, requires_grad=True)
    with pytest.raises(error, match=text):
        x.grad = value()
    assert x.grad is None


# --- reading -------------------------------------------------------------------------------------


def test_item_and_scalars() -> None:
    assert tp.tensor([[3]]).item() == 3
    assert type(tp.tensor(1.5, dtype=tp.bfloat16).item()) is float
    assert float(tp.tensor([2.5])) == 2.5
    assert complex(tp.tensor(1j)) == 1j
    assert int(tp.tensor(2.9)) == 2
    with pytest.raises(RuntimeError, match="cannot be converted to Scalar"):
        tp.ones(2).item()
    with pytest.raises(ValueError, match="only one element"):
        float(tp.ones(2))


def test_truth() -> None:
    assert tp.tensor([1.0])
    assert not tp.tensor(False)
    with pytest.raises(RuntimeError, match="more than one value is ambiguous"):
        bool(tp.ones(2))
    with pytest.raises(RuntimeError, match="no values is ambiguous"):
        bool(tp.ones(0))


def test_index_is_for_integers() -> None:
    assert operator.index(tp.tensor([2])) == 2
    assert [10, 11, 12][tp.tensor(1)] == 11
    with pytest.raises(TypeError, match="only integer tensors"):
        operator.index(tp.tensor(1.0))


def test_length_and_iteration() -> None:
    assert len(tp.zeros(3, 2)) == 3
    assert [row.tolist() for row in tp.eye(2)] == [[1, 0], [0, 1]]
    for use in (len, iter):
        with pytest.raises(TypeError, match="0-d tensor"):
            use(tp.tensor(1))


def test_comparison_with_what_is_no_number() -> None:
    x = tp.ones(2)
    assert (x == None) is False  # noqa: E711 - the very expression
    assert (x != "a") is True
    for other in ("a", None, object()):
        with pytest.raises(TypeError, match="unsupported operand"):
            x + other


def test_arrays_and_tensors_mix_into_tensors() -> None:
    x, a = tp.ones(2, dtype=tp.float64), np.arange(2.0)
    for result in (x + a, a + x, a * x, x - a, a - x):
        assert isinstance(result, tp.Tensor)
    assert (a - x).tolist() == [-1, 0]


def test_hash_is_identity() -> None:
    a, b = tp.ones(2), tp.ones(2)
    assert len({a, b, a}) == 2


def test_format() -> None:
    assert f"{tp.tensor(1.23456):.2f}" == "1.23"
    assert f"{tp.tensor(3):>4}" == "   3"
    assert f"{tp.tensor([1.0])}" == "tensor([1.])"


# --- NumPy ---------------------------------------------------------------------------------------


def test_numpy_shares_memory() -> None:
    x = tp.zeros(3)
    x.numpy()[1] = 5
    assert x.tolist() == [0, 5, 0]
    assert np.shares_memory(np.asarray(x), x.numpy())
    x.numpy().resize(3, 1)
    assert x.shape == (3,)
    assert np.asarray(x, dtype=np.float64).dtype == np.float64
    with pytest.raises(ValueError, match="copy"):
        np.array(x, dtype=np.float64, copy=False)


def test_numpy_refuses_to_lose_a_gradient() -> None:
    x = tp.ones(2, requires_grad=True)
    for read in (x.numpy, x.__array__, (x * 2).numpy):
        with pytest.raises(
            RuntimeError, match=r"Can't call numpy\(\) on Tensor that requires grad"
        ):
            read()
    assert x.numpy(force=True).tolist() == [1, 1]


def test_numpy_sees_a_gradient_that_came_through_the_base() -> None:
    weight = tp.ones(2, requires_grad=True)
    base = tp.ones(2)
    view = base[:1]
    base.mul_(weight)
    with pytest.raises(RuntimeError, match="requires grad"):
        view.numpy()


# --- copies --------------------------------------------------------------------------------------


def test_deepcopy() -> None:
    x = tp.ones(2, requires_grad=True)
    (x * 3).sum().backward()
    twin = copy.deepcopy([x, x])
    assert twin[0] is twin[1]
    assert twin[0].requires_grad
    assert twin[0].grad is not None
    assert twin[0].grad.tolist() == [3, 3]
    twin[0].data.add_(1)
    assert x.tolist() == [1, 1]
    with pytest.raises(RuntimeError, match="graph leaves"):
        copy.deepcopy(x * 2)


@pytest.mark.parametrize("dtype", [tp.float32, tp.bool, tp.bfloat16, tp.complex64])
def test_pickle(dtype: tp.dtype) -> None:
    x = tp.ones(2, 3, dtype=dtype)
    twin = pickle.loads(pickle.dumps(x))
    assert twin.dtype is dtype
    assert twin.tolist() == x.tolist()
    meta = pickle.loads(pickle.dumps(x.to("meta")))
    assert (meta.is_meta, meta.shape) == (True, (2, 3))


def test_pickle_of_a_result() -> None:
    with pytest.raises(RuntimeError, match="graph leaves"):
        pickle.dumps(tp.ones(1, requires_grad=True) * 2)


def test_class_call() -> None:
    x = tp.Tensor([1, 2], requires_grad=True)
    assert (x.dtype, x.requires_grad) == (tp.float32, True)
    assert tp.Tensor([1], device="meta").is_meta
    with pytest.raises(TypeError, match=r"\[Tensor\] argument 'data'"):
        tp.Tensor("text")
    with pytest.raises(ValueError, match=r"\[Tensor\] argument 'data'"):
        tp.Tensor([[1], [1, 2]])


def test_to_returns_itself_when_nothing_changes() -> None:
    x = tp.ones(2)
    assert x.to(tp.float32) is x.to("cpu") is x.to(x) is x
    assert x.to(tp.float32, copy=True) is not x
    assert x.double().dtype is tp.float64
