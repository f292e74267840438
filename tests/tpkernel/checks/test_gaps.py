"""A gradient that is slightly wrong passes the tolerances of the field, but not without a word."""

from __future__ import annotations

import pytest

import tpkernel

CELL = """\
/*---
op: g::f(Tensor x) -> Tensor
shape: x
dtypes: [DTYPE]
derivatives: {x: 'FORMULA'}
---*/
template <typename T> void f(tp::In<T> x, tp::Out<T> out) {
  for (int64_t i = 0; i < x.numel(); ++i) out[i] = VALUE;
}
"""


def built(value: str, formula: str, dtype: str = "float64") -> tpkernel.Report:
    text = CELL.replace("VALUE", value).replace("FORMULA", formula).replace("DTYPE", dtype)
    return tpkernel.build(text)


def warnings(report: tpkernel.Report) -> list[str]:
    return [f.message for f in report.findings if f.code == "unexplained_gap"]


def test_an_error_below_the_tolerance_is_said() -> None:
    report = built("x[i]", "grad * 1.0009")
    assert report.gradcheck_verdict == "ok"
    (message, *_) = warnings(report)
    assert "passes, but its error is" in message
    assert "times above what rounding and truncation explain" in message
    assert "1.0009" in message
    for shown in (report.to_text(), report.to_text(full=True), report.to_html()):
        assert "times above what rounding" in shown


@pytest.mark.parametrize(
    ("value", "formula"),
    [
        ("x[i]", "grad"),
        ("std::exp(x[i])", "grad * result"),
        ("std::sin(40 * x[i])", "40 * grad * cos(40 * x)"),
        ("1 / x[i]", "-grad / x ** 2"),
        ("std::abs(x[i]) * x[i]", "2 * grad * abs(x)"),
        ("x[i] * T(1e8)", "grad * 1e8"),
    ],
)
def test_a_right_gradient_has_no_remark(value: str, formula: str) -> None:
    report = built(value, formula)
    assert report.ok, report.to_text()
    assert warnings(report) == []


def test_single_precision_says_nothing() -> None:
    assert warnings(built("x[i]", "grad * 1.0009", "float32")) == []
