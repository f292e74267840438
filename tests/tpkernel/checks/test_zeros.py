"""Gradients at exact zeros and ones: NaN and wrong ones are found, kinks are not accused."""

from __future__ import annotations

import pytest

import tpkernel
from tpkernel.report.report import Report

UNARY = """\
/*---
op: zeros::f(Tensor x) -> Tensor
derivatives:
  x: DERIVATIVE
---*/
template <typename T> void f(tp::In<T> x, tp::Out<T> out) {
  for (int64_t i = 0; i < x.numel(); ++i) { const T v = x[i]; out[i] = VALUE; }
}
"""
PRODUCT = """\
/*---
op: zeros::product(Tensor a, Tensor b) -> Tensor
derivatives:
  a: DERIVATIVE
  b: grad * a
---*/
template <typename T> void product(tp::In<T> a, tp::In<T> b, tp::Out<T> out) {
  for (int64_t i = 0; i < a.numel(); ++i) out[i] = a[i] * b[i];
}
"""


def build(derivative: str, value: str) -> Report:
    return tpkernel.build(UNARY.replace("DERIVATIVE", derivative).replace("VALUE", value))


def test_a_product_differentiated_by_its_result_is_nan_at_zero() -> None:
    report = tpkernel.build(PRODUCT.replace("DERIVATIVE", "grad * result / a"))
    assert not report.ok
    (finding,) = [f for f in report.findings if f.level == "error"]
    assert finding.check == "gradcheck"
    assert finding.code == "gradient_at_zero"
    assert "at a[0, 0] = 0 the gradient of 'a' is nan" in finding.message
    assert "gradient wrong at 0 or 1" in report.title
    assert "gradcheck ok" not in report.title


def test_a_product_differentiated_by_its_inputs_passes() -> None:
    assert tpkernel.build(PRODUCT.replace("DERIVATIVE", "grad * b")).ok


@pytest.mark.parametrize(
    ("derivative", "value"),
    [
        ("where(x == 0, 5 * grad, 2 * x * grad)", "v * v"),  # wrong and finite
        ("where(x == 1, 5 * grad, 2 * x * grad)", "v * v"),
        ("grad * (cos(x) / x - sin(x) / x ** 2)", "v == 0 ? T(1) : std::sin(v) / v"),
    ],
)
def test_what_is_wrong_at_one_value_is_found(derivative: str, value: str) -> None:
    codes = {f.code for f in build(derivative, value).findings if f.level == "error"}
    assert codes == {"gradient_at_zero"}


@pytest.mark.parametrize(
    ("derivative", "value"),
    [
        ("where(x > 0, grad, 0 * grad)", "v > 0 ? v : T(0)"),
        ("grad * sign(x)", "std::abs(v)"),
        ("where(abs(x) < 1, grad, 0 * grad)", "v > 1 ? T(1) : v < -1 ? T(-1) : v"),
        ("grad / (3 * result ** 2)", "std::cbrt(v)"),
        ("grad / (2 * result)", "std::sqrt(v)"),
        ("grad / x", "std::log(v)"),
        ("-grad / x ** 2", "1 / v"),
        ("0 * grad", "v > 0 ? T(1) : v < 0 ? T(-1) : T(0)"),
        ("grad * (log(x) + 1)", "v == 0 ? T(0) : v * std::log(v)"),
    ],
)
def test_kinks_and_ends_of_a_domain_are_not_accused(derivative: str, value: str) -> None:
    report = build(derivative, value)
    assert report.ok, report.to_text()


def test_declared_samples_are_taken_as_they_are() -> None:
    text = PRODUCT.replace("DERIVATIVE", "grad * result / a")
    text = text.replace("---*/", "samples: [{a: [1.0, 2.0], b: [3.0, 0.5]}]\n---*/")
    assert tpkernel.build(text).ok
