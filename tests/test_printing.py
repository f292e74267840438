from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st
from hypothesis.extra import numpy as hnp

import tensorplay as tp


@pytest.fixture(autouse=True)
def _usual_options() -> Any:
    yield
    tp.set_printoptions(precision=4, threshold=1000, edgeitems=3, linewidth=80)


@pytest.mark.parametrize(
    ("tensor", "text"),
    [
        (tp.tensor([1.0, 2.5]), "tensor([1.0, 2.5])"),
        (tp.tensor([1, 2]), "tensor([1, 2])"),
        (tp.tensor(True), "tensor(True)"),
        (tp.tensor(3.14159265), "tensor(3.1416)"),
        (tp.tensor([1 + 2j]), "tensor([1.+2.j])"),
        (tp.tensor([1.0], dtype=tp.float64), "tensor([1.], dtype=tensorplay.float64)"),
        (tp.tensor([1.5], dtype=tp.bfloat16), "tensor([1.5], dtype=tensorplay.bfloat16)"),
        (tp.tensor([255], dtype=tp.uint8), "tensor([255], dtype=tensorplay.uint8)"),
        (tp.tensor([], dtype=tp.int64), "tensor([], dtype=tensorplay.int64)"),
        (tp.zeros(0, 2), "tensor([], size=(0, 2))"),
        (tp.tensor([float("nan"), float("-inf")]), "tensor([ nan, -inf])"),
        (tp.ones(2, requires_grad=True), "tensor([1., 1.], requires_grad=True)"),
        (tp.ones(2, requires_grad=True) * 2, "tensor([2., 2.], grad_fn=<MulBackward>)"),
        (tp.ones(2, device="meta"), "tensor(..., device='meta', size=(2,))"),
        (tp.ones(1, dtype=tp.int8, device="meta"),
         "tensor(..., device='meta', size=(1,), dtype=tensorplay.int8)"),
        (tp.eye(2), "tensor([[1., 0.],\n        [0., 1.]])"),
    ],
    ids=str,
)  # fmt: skip
def test_text(tensor: tp.Tensor, text: str) -> None:
    assert repr(tensor) == str(tensor) == text


def test_the_default_type_is_not_named() -> None:
    tp.set_default_dtype(tp.float64)
    try:
        assert repr(tp.tensor([1.0])) == "tensor([1.])"
        assert repr(tp.ones(1, dtype=tp.float32)) == "tensor([1.], dtype=tensorplay.float32)"
    finally:
        tp.set_default_dtype(tp.float32)


@given(hnp.arrays(st.sampled_from([np.float64, np.int32, np.complex128, np.bool_, np.uint8]),
                  hnp.array_shapes(max_dims=2, max_side=5)))  # fmt: skip
def test_the_text_has_the_values(array: Any) -> None:
    tp.set_printoptions(precision=17)
    body = repr(tp.from_numpy(array)).removeprefix("tensor(").rpartition("]")[0] + "]"
    with np.errstate(all="ignore"):
        shown = np.array(eval(body, {"nan": np.nan, "inf": np.inf, "nanj": 1j * np.nan,
                                     "infj": 1j * np.inf}))  # fmt: skip
    assert shown.shape == array.shape
    if np.isfinite(array).all():
        np.testing.assert_allclose(shown, array, rtol=1e-15)


def test_options() -> None:
    x = tp.tensor([1 / 3, 20_000.0])
    tp.set_printoptions(precision=2)
    assert repr(x[:1]) == "tensor([0.33])"
    tp.set_printoptions(sci_mode=True)
    assert repr(x) == "tensor([3.33e-01, 2.00e+04])"
    assert repr(tp.tensor([1 - 2j])) == "tensor([1.00e+00-2.00e+00j])"
    tp.set_printoptions(sci_mode=False, precision=3)
    assert repr(tp.tensor([1e-3, 1e7])) == "tensor([0.001, 10000000.000])"
    tp.set_printoptions(threshold=5, edgeitems=1)
    assert repr(tp.arange(9)) == "tensor([0, ..., 8])"
    tp.set_printoptions(linewidth=20, threshold=100)
    assert repr(tp.arange(9)).count("\n") > 0
    with pytest.raises(ValueError, match="argument 'precision'"):
        tp.set_printoptions(precision=-1)


def test_numpys_own_options_do_not_matter() -> None:
    with np.printoptions(precision=1, suppress=True, floatmode="fixed", sign="+"):
        assert repr(tp.tensor([0.125])) == "tensor([0.125])"
