"""bfloat16 in typed views: its C++ type against ml_dtypes, and operators of it."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

import tensorplay as tp
import tpkernel
from tensorplay.library import build_module, load

CONVERT = """\
void up(tp::In<tp::bfloat16> x, tp::Out<float> out) {
  for (int64_t i = 0; i < x.numel(); ++i) out[i] = x[i];
}
void down(tp::In<float> x, tp::Out<tp::bfloat16> out) {
  for (int64_t i = 0; i < x.numel(); ++i) out[i] = x[i];
}
"""
# What generic code writes, for every admitted dtype.
GENERIC = """\
/*---
op: halves::mixed(Tensor x, float by=2.0) -> Tensor
dtypes: [bfloat16, float32]
derivatives:
  x: grad * where(x > 0, by, -by)
samples: [{x: [-2.0, -0.5, 1.0, 3.0]}]
---*/
template <typename T>
void mixed(tp::In<T> x, T by, tp::Out<T> out) {
  T largest = std::numeric_limits<T>::lowest();
  for (int64_t i = 0; i < x.numel(); ++i) largest = std::max(largest, T(std::abs(x[i])));
  for (int64_t i = 0; i < x.numel(); ++i) {
    T s = 0;
    s += x[i];
    s -= 1;
    s = (s + 1) * by / 2;
    const T y = std::max(T(2 * s), -s * 2);
    out[i] = x[i] > 0 && x[i] <= largest ? y : -y * T(-1);
  }
}
"""


def test_conversions_are_those_of_ml_dtypes() -> None:
    module = tpkernel.build(CONVERT, checks=False).module
    every = np.arange(1 << 16, dtype=np.uint32)
    widened = module.up(tp.from_numpy(every.astype(np.uint16).view(ml_dtypes.bfloat16))).numpy()
    assert (widened.view(np.uint32) == every << 16).all()
    bits = np.random.default_rng(0).integers(0, 1 << 32, 100_000, dtype=np.uint64)
    ties = (every << 16) | 0x8000
    values = np.concatenate([bits.astype(np.uint32), ties]).view(np.float32)
    got = module.down(tp.from_numpy(values)).numpy()
    with np.errstate(all="ignore"):
        expected = values.astype(ml_dtypes.bfloat16)
    nan = np.isnan(values)
    assert (got.view(np.uint16) == expected.view(np.uint16))[~nan].all()
    assert np.isnan(got[nan].astype(np.float32)).all()


def test_generic_kernels_are_checked_and_right() -> None:
    report = tpkernel.build(GENERIC)
    assert report.ok, report.to_text()
    admitted = {r.dtype for r in report.validation if r.admitted}
    assert admitted == {"bfloat16", "float32"}
    x = tp.tensor([-2.0, 0.5, 3.0], dtype=tp.bfloat16, requires_grad=True)
    y = report.module.mixed(x)
    assert y.dtype == tp.bfloat16
    assert y.tolist() == [4.0, 1.0, 6.0]
    y.sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [-2.0, 2.0, 2.0]


def test_guards_know_the_range_and_the_cast() -> None:
    module = tpkernel.build(GENERIC.replace(", float32", ""), checks=False).module
    x = tp.ones(3, dtype=tp.bfloat16)
    assert module.mixed(x, 3.38e38).shape == (3,)
    with pytest.raises(ValueError, match=r"argument 'by': expected a number that bfloat16.*3\.4e"):
        module.mixed(x, 3.4e38)
    with pytest.raises(TypeError, match=r"got float32 on cpu\. Write x\.bfloat16\(\), or"):
        module.mixed(tp.ones(3))
    with pytest.raises(TypeError, match=r"on meta\. Write x\.bfloat16\(\), or"):
        module.mixed(tp.ones(3, device="meta"))


def test_operator_modules_have_it(tmp_path: Path) -> None:
    (tmp_path / "k.cc").write_text(GENERIC.replace("halves::", "halves_lib::"))
    build_module(None, tmp_path / "k.cc", output=tmp_path / "libk.so")
    library = load(tmp_path / "libk.so")
    assert library.mixed(tp.tensor([1.5], dtype=tp.bfloat16)).tolist() == [3.0]
