from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

import tensorplay as tp
from tensorplay.testing import assert_close, make_tensor


def test_equal_things_are_close() -> None:
    for x in (tp.ones(2, 3), tp.tensor(1), tp.ones(0), tp.tensor([True]), tp.tensor([1j]),
              tp.tensor([float("inf")]), tp.ones(2, requires_grad=True), 3, 2.5,
              [tp.ones(2), {"a": 1.0}]):  # fmt: skip
        assert_close(x, x)


def test_message_counts_and_locates() -> None:
    with pytest.raises(AssertionError) as caught:
        assert_close(tp.tensor([[1.0, 2.0], [3.0, 5.0]]), tp.tensor([[1.0, 2.5], [3.0, 4.0]]))
    text = str(caught.value)
    assert "mismatched elements: 2 / 4" in text
    assert "worst at index (1, 1): 5.0 != 4.0, difference 1" in text


@pytest.mark.parametrize(
    ("actual", "expected", "text"),
    [
        (tp.ones(2), tp.ones(3), "'shape'"),
        (tp.ones(2), tp.ones(2, dtype=tp.float64), "'dtype'"),
        (tp.ones(2, device="meta"), tp.ones(2), "'device'"),
        (tp.tensor([float("nan")]), tp.tensor([float("nan")]), "not close"),
        (tp.tensor([float("inf")]), tp.tensor([1.0]), "not close"),
        (tp.tensor([1.0]), tp.tensor([float("inf")]), "not close"),
        (tp.tensor([2**53 + 1]), tp.tensor([2**53]), "mismatched elements: 1 / 1"),
        (tp.tensor([True]), tp.tensor([False]), "not close"),
        ({"a": 1}, {"b": 1}, "keys differ"),
        ([1, 2], [1], "lengths"),
        ([1.0, {"k": [2.0]}], [1.0, {"k": [3.0]}], r"\[1\]\['k'\]\[0\]"),
        (tp.tensor(1.0), tp.tensor(2.0), r"worst at index \(\)"),
    ],
)
def test_differences(actual: Any, expected: Any, text: str) -> None:
    with pytest.raises(AssertionError, match=text):
        assert_close(actual, expected)


def test_options() -> None:
    nan = tp.tensor([float("nan"), 1.0])
    assert_close(nan, nan, equal_nan=True)
    assert_close(tp.ones(2), tp.ones(2, dtype=tp.float64), check_dtype=False)
    assert_close(tp.tensor([3]), tp.tensor([4]), rtol=0, atol=1)
    assert_close(tp.tensor([1.0]), tp.tensor([1.1]), rtol=0.2, atol=0)
    with pytest.raises(AssertionError, match=r"'stride\(\)'"):
        assert_close(tp.ones(2, 3).t(), tp.ones(3, 2), check_stride=True)
    with pytest.raises(AssertionError, match=r"^mine$"):
        assert_close(1, 2, msg="mine")
    with pytest.raises(AssertionError, match=r"^before: tensor-likes"):
        assert_close(1, 2, msg=lambda text: f"before: {text}")


@given(st.floats(-1e6, 1e6), st.floats(-1e6, 1e6), st.floats(0, 1), st.floats(0, 1))
def test_rule_is_the_stated_one(a: float, e: float, rtol: float, atol: float) -> None:
    x, y = (tp.tensor([v], dtype=tp.float64) for v in (a, e))
    if abs(a - e) <= atol + rtol * abs(e):
        assert_close(x, y, rtol=rtol, atol=atol)
    else:
        with pytest.raises(AssertionError):
            assert_close(x, y, rtol=rtol, atol=atol)


@pytest.mark.parametrize(
    "dtype", [tp.bool, tp.uint8, tp.uint16, tp.int64, tp.float32, tp.bfloat16, tp.complex64]
)
def test_make_tensor(dtype: tp.dtype) -> None:
    x = make_tensor(30, 4, dtype=dtype)
    assert (x.shape, x.dtype) == ((30, 4), dtype)
    assert len(np.unique(x.to(tp.complex128).numpy())) > 1
    assert np.abs(x.to(tp.complex128).numpy()).max() <= 9 * 2**0.5


def test_make_tensor_options() -> None:
    x = make_tensor((3, 4), dtype=tp.float32, low=1, high=2, requires_grad=True)
    assert x.requires_grad
    assert 1 <= x.detach().numpy().min() <= x.detach().numpy().max() <= 2
    assert not make_tensor(3, 4, dtype=tp.float32, noncontiguous=True).is_contiguous()
    assert make_tensor((), dtype=tp.float32, noncontiguous=True).shape == ()
    assert (make_tensor(200, dtype=tp.int8, low=-1, high=2, exclude_zero=True).numpy() != 0).all()
    assert make_tensor(2, dtype=tp.float32, device="meta").is_meta
    assert make_tensor(2, dtype=tp.float32, device=tp.device("cpu")).is_cpu
    with pytest.raises(ValueError, match="low < high"):
        make_tensor(2, dtype=tp.float32, low=1, high=1)
