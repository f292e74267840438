"""Arguments with defaults vary in made samples: a default is often neutral."""

from __future__ import annotations

import pytest

import tpkernel
from tests.tpkernel.shell import SOFTPLUS

CELL = """\
/*---
op: v::k(Tensor x, ARGUMENTS) -> Tensor
shape: x
derivatives: {x: 'FORMULA'}
---*/
template <typename T> void k(tp::In<T> x, PARAMETERS, tp::Out<T> out) {
  for (int64_t i = 0; i < x.numel(); ++i) out[i] = VALUE;
}
"""


def cell(arguments: str, parameters: str, value: str, formula: str) -> str:
    text = CELL.replace("ARGUMENTS", arguments).replace("PARAMETERS", parameters)
    return text.replace("VALUE", value).replace("FORMULA", formula)


KINDS = {
    "float": ("float a=1.0", "double a", "T(a) * x[i]", "grad", "grad * a"),
    "zero": ("float b=0.0", "double b", "T(1 + b) * x[i]", "grad", "grad * (1 + b)"),
    "int": ("int n=0", "int64_t n", "T(1 + n) * x[i]", "grad", "grad * (1 + n)"),
    "bool": ("bool f=False", "bool f", "(f ? -3 : 1) * x[i]", "grad", "grad * (1 - 4 * f)"),
    "required bool": ("bool f", "bool f", "(f ? 1 : -3) * x[i]", "grad", "grad * (4 * f - 3)"),
    "hidden by the switch": (
        "int n=0, bool flip=False",
        "int64_t n, bool flip",
        "(flip ? T(2) : T(1 + n)) * x[i]",
        "grad * (1 + flip)",
        "grad * (2 if flip else 1 + n)",
    ),
}  # fmt: skip


def verdicts(report: tpkernel.Report) -> set[str]:
    return {p.verdict for g in report.gradcheck for p in g.pairs}


@pytest.mark.parametrize("kind", KINDS)
def test_what_a_formula_forgets_is_found_though_the_default_is_neutral(kind: str) -> None:
    arguments, parameters, value, wrong, _ = KINDS[kind]
    report = tpkernel.build(cell(arguments, parameters, value, wrong))
    assert not report.ok, report.to_text()
    assert "wrong" in verdicts(report)


def test_varied_numbers_are_short() -> None:
    report = tpkernel.build(cell("float a=0.2", "double a", "T(a) * x[i]", "grad * a"))
    samples = " ".join(check.sample for check in report.gradcheck)
    assert "a=0.14" in samples
    assert "a=0.26" in samples
    assert "9999" not in samples


@pytest.mark.parametrize("kind", ["float", "zero", "int", "bool", "required bool"])
def test_what_it_does_not_forget_passes(kind: str) -> None:
    arguments, parameters, value, _, right = KINDS[kind]
    report = tpkernel.build(cell(arguments, parameters, value, right))
    assert report.ok, report.to_text()
    assert verdicts(report) == {"ok"}


def test_the_softplus_of_the_readme_without_its_beta_fails() -> None:
    assert "sigmoid(beta * x)" in SOFTPLUS
    report = tpkernel.build(SOFTPLUS.replace("sigmoid(beta * x)", "sigmoid(x)"))
    assert "wrong" in verdicts(report), report.to_text()
    assert "beta=0.7" in report.to_text()


def test_the_radius_of_a_blur_that_is_not_its_own_adjoint() -> None:
    text = """\
/*---
op: v::blur(Tensor x, int r=1) -> Tensor
shape: x
derivatives: {x: 'blur(grad, r)'}
---*/
template <typename T> void blur(tp::In<T, 1> x, int64_t r, tp::Out<T, 1> out) {
  const int64_t n = x.size(0);
  for (int64_t i = 0; i < n; ++i) {
    T sum = 0;
    for (int64_t k = -r; k <= r; ++k) sum += x(std::clamp<int64_t>(i + k, 0, n - 1));
    out(i) = sum / T(2 * r + 1);
  }
}
"""
    assert "wrong" in verdicts(tpkernel.build(text))


def test_a_value_that_the_kernel_refuses_is_no_failure_and_is_said() -> None:
    text = cell("int n=3, float a=1.0", "int64_t n, double a", "T(a) * x[i]", "grad")
    guard = 'if (n != 3) throw std::invalid_argument("n must be 3");'
    text = text.replace("  for", f"  {guard}\n  for")
    report = tpkernel.build(text)
    assert "wrong" in verdicts(report)  # a varies nevertheless
    right = tpkernel.build(text.replace("'grad'", "'grad * a'"))
    assert right.ok, right.to_text()
    (note,) = (f for f in right.findings if f.code == "default_only")
    assert "only n=3 was checked; the operator refuses n=4" in note.message
    assert "n must be 3" in note.message
    assert note.message in right.to_text()


def test_a_value_outside_the_domain_is_left_out() -> None:
    text = cell("float p=1.0", "double p", "std::sqrt(T(1 - p)) + x[i]", "grad")
    report = tpkernel.build(text.replace("p=1.0", "p=0.9"))
    assert report.ok, report.to_text()
    assert any("p=0.63" in g.sample for g in report.gradcheck)


def test_declared_samples_are_as_declared() -> None:
    text = cell("float a=1.0", "double a", "T(a) * x[i]", "grad")
    report = tpkernel.build(text.replace("---*/", "samples: [{x: [1.0, 2.0]}]\n---*/"))
    assert verdicts(report) == {"ok"}
