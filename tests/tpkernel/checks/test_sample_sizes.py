"""Mistakes that small samples hide: stencils, odd sizes, complex gradients."""

from __future__ import annotations

import pytest

import tpkernel

LAPLACIAN = """\
/*---
op: q::lap(Tensor u, float h=1.0) -> Tensor
shape: u
derivatives: {u: FORMULA}
---*/
template <typename T> void lap(tp::In<T, 2> u, double h, tp::Out<T, 2> out) {
  const int64_t n = u.size(0), m = u.size(1);
  for (int64_t i = 0; i < n; ++i) for (int64_t j = 0; j < m; ++j) out(i, j) = 0;
  for (int64_t i = 1; i < n - 1; ++i) for (int64_t j = 1; j < m - 1; ++j)
    out(i, j) = (u(i - 1, j) + u(i + 1, j) + u(i, j - 1) + u(i, j + 1) - 4 * u(i, j)) / (h * h);
}
"""


def wrong(text: str) -> set[str]:
    report = tpkernel.build(text)
    return {p.verdict for g in report.gradcheck for p in g.pairs} | {
        f"{f.check}: {f.code}" for f in report.findings if f.level == "error"
    }


def test_a_stencil_has_an_inside() -> None:
    assert "wrong" in wrong(LAPLACIAN.replace("FORMULA", "'lap(grad, h)'"))


@pytest.mark.parametrize("dtype", ["complex128", "complex64"])
def test_complex_gradients_are_checked(dtype: str) -> None:
    text = """\
/*---
op: z::square(Tensor x) -> Tensor
dtypes: [DTYPE]
derivatives: {x: 'FORMULA'}
---*/
template <typename T> void square(tp::In<T> x, tp::Out<T> out) {
  for (int64_t i = 0; i < x.numel(); ++i) out[i] = x[i] * x[i];
}
""".replace("DTYPE", dtype)
    assert "wrong" in wrong(text.replace("FORMULA", "grad * 5"))
    right = tpkernel.build(text.replace("FORMULA", "grad * 2 * x.conj()"))
    assert right.ok, str(right)
    assert {p.verdict for g in right.gradcheck for p in g.pairs} == {"ok"}


def test_reads_that_only_larger_arguments_reach() -> None:
    text = """\
/*---
op: sci::far(Tensor x) -> Tensor
shape: x
derivatives: {x: grad}
---*/
template <typename T> void far(tp::In<T, 1> x, tp::Out<T, 1> out) {
  const int64_t n = x.numel();
  for (int64_t i = 0; i < n; ++i) out[i] = x[i] + (i >= 3 ? x[i + 5] : T(0));
}
"""
    assert any(finding.startswith("memory") for finding in wrong(text))


def test_sizes_that_are_odd() -> None:
    text = """\
/*---
op: a::down2(Tensor x) -> Tensor
shape: {x: [n], out: [n // 2]}
derivatives: {x: grad.repeat_interleave(2) / 2}
---*/
template <typename T> void down2(tp::In<T, 1> x, tp::Out<T, 1> out) {
  for (int64_t i = 0; i < out.numel(); ++i) out[i] = (x[2 * i] + x[2 * i + 1]) / 2;
}
"""
    assert wrong(text) - {"ok"}


CONV = """\
/*---
op: q::conv(Tensor x, Tensor k, int stride=2) -> Tensor
shape: {x: [h, w], k: [r, s], out: [(h - r) // stride + 1, (w - s) // stride + 1]}
---*/
template <typename T>
void conv(tp::In<T, 2> x, tp::In<T, 2> k, int64_t stride, tp::Out<T, 2> out) {
  for (int64_t i = 0; i < out.size(0); ++i) for (int64_t j = 0; j < out.size(1); ++j) {
    T sum = 0;
    for (int64_t a = 0; a < k.size(0); ++a) for (int64_t b = 0; b < k.size(1); ++b)
      sum += x(i * stride + a, j * stride + b) * k(a, b);
    out(i, j) = sum;
  }
}
"""


@pytest.mark.parametrize("stride", ["int stride=1", "int stride=2", "int stride"])
def test_a_made_kernel_is_no_larger_than_its_image(stride: str) -> None:
    report = tpkernel.build(CONV.replace("int stride=2", stride))
    assert report.ok, report.to_text()
    assert not [f for f in report.findings if f.code == "not_finished"]
