"""What a report says first: the title, the failures in a sentence, and the section it opens on."""

from __future__ import annotations

import dataclasses
import html
import json
import re

import pytest

import tensorplay as tp
import tpkernel
from tests.tpkernel.shell import MATMUL, SOFTPLUS, Shell
from tpkernel.report.bounds import HTML_LIMIT
from tpkernel.report.report import Report
from tpkernel.report.summary import SECTIONS
from tpkernel.report.widget import ReportWidget

OFF = SOFTPLUS.replace("grad * sig", "2 * grad * sig")
CRASH = SOFTPLUS.replace("  for", "  *(volatile int*)0 = 1;\n  for")
UNWRITTEN = SOFTPLUS.replace("i = 0", "i = 1")
SUMMED = SOFTPLUS.replace("grad * sigmoid(beta * x)", "(grad * sigmoid(beta * x)).sum()")
SPIN = SOFTPLUS.replace("  for", "  volatile bool on = true;\n  while (on) {}\n  for")

CASES = {
    "ok": (SOFTPLUS, "gradcheck ok", "Operator"),
    "wrong": (OFF, "gradient wrong", "Gradcheck"),
    "crashed": (CRASH, "crashed (SIGSEGV)", "Findings"),
    "unwritten": (UNWRITTEN, "output not fully written", "Findings"),
    "shape": (SUMMED, "gradient of wrong shape", "Gradcheck"),
    "hang": (SPIN, "gave no answer in time", "Findings"),
}


@pytest.fixture(scope="module", params=CASES)
def case(request: pytest.FixtureRequest) -> tuple[str, Report]:
    return request.param, tpkernel.build(CASES[request.param][0], budget=3.0)


def visible(report: Report) -> str:
    return html.unescape(re.sub(r"<[^>]+>", "\n", report.to_html()))


def test_title_and_opening_say_how_it_stands(case: tuple[str, Report]) -> None:
    name, report = case
    _, words, section = CASES[name]
    assert words in report.title
    assert "finding" not in report.title
    assert report.ok is (name == "ok")
    facts = ReportWidget(report).facts
    assert facts["opening"] == section
    assert section in SECTIONS
    assert bool(facts["problems"]) is not report.ok


def test_the_failure_comes_first_in_every_form(case: tuple[str, Report]) -> None:
    name, report = case
    if name == "ok":
        return
    first = report.to_dict()["problems"][0]["text"]
    assert first.startswith("✘ ")
    assert report.to_text().splitlines()[1].strip() == first
    assert visible(report).index(first) < visible(report).index("Operator mylib::softplus")
    summaries = re.findall(r"<summary>(\w+)", report.to_html())
    assert summaries[0] == CASES[name][2]


def test_everything_sent_to_the_front_end_is_json(case: tuple[str, Report]) -> None:
    _, report = case
    facts = ReportWidget(report).facts
    sent = json.dumps(facts, allow_nan=False, default=bytes.hex)
    assert json.dumps(json.loads(sent)) == sent
    json.dumps(report.to_dict(), allow_nan=False, default=bytes.hex)


def test_results_that_are_not_finite_reach_the_front_end_as_text() -> None:
    text = SOFTPLUS.replace("grad * sigmoid(beta * x)", "grad * (x - x) / (x - x)")
    report = tpkernel.build(text, checks=["gradcheck"])
    assert not report.ok
    json.dumps(ReportWidget(report).facts, allow_nan=False, default=bytes.hex)
    infinite = SOFTPLUS.replace("std::log1p(", "1 / (x[i] - x[i]) + std::log1p(")
    json.dumps(ReportWidget(tpkernel.build(infinite)).facts, allow_nan=False, default=bytes.hex)


def test_one_failure_of_several_samples_is_said_once() -> None:
    report = tpkernel.build(OFF)
    assert len(report.gradcheck) == 3
    (problem,) = report.to_dict()["problems"]
    assert "and 2 more samples" in problem["text"]
    assert "Likely: off by a constant factor" in problem["text"]
    assert visible(report).count("Jacobian mismatch") == 0


@pytest.mark.parametrize(
    ("formula", "got", "advice"),
    [
        ("(grad @ w.T).sum()", "()", "expand(x.shape)"),
        ("(grad @ w.T).T", "(3, 2)", "(…).T"),
        ("(grad @ w.T).reshape(6)", "(6,)", "reshape(x.shape)"),
        ("(grad @ w.T).sum(0)", "(3,)", "sums more than it should"),
        ("(grad @ w.T)[0]", "(3,)", "gives one element where"),
        ("(grad @ w.T)[:, :2]", "(2, 2)", "gives 4 elements and 'x' has 6"),
    ],
)
def test_a_gradient_of_wrong_shape_says_expected_got_and_what_to_write(
    formula: str, got: str, advice: str
) -> None:
    declared = "samples:\n  - {x: 'randn(2, 3)', w: 'randn(3, 4)'}\n---*/"
    text = MATMUL.replace("grad @ w.T", formula).replace("---*/", declared, 1)
    report = tpkernel.build(text, checks=["gradcheck"])
    (problem,) = report.to_dict()["problems"]
    assert f"The gradient of 'x': expected shape (2, 3), got {got}." in problem["text"]
    assert advice in problem["text"]
    pairs = {p.input: p for g in report.gradcheck for p in g.pairs}
    assert set(pairs) == {"x"}
    assert pairs["x"].code == "gradient_shape"
    assert pairs["x"].step is None
    assert "nan" not in report.to_text()


def test_a_numbers_spelling_is_the_same_everywhere() -> None:
    report = tpkernel.build(SOFTPLUS)
    facts = ReportWidget(report).facts
    spelled = facts["gradcheck"][0]["pairs"][0]["tolerance_text"]
    assert spelled.startswith("step 1e-06, ")
    assert spelled in report.to_text(full=True)
    assert spelled in visible(report)
    assert "toPrecision" not in str(ReportWidget._esm)


def test_validation_says_in_two_lines_what_is_admitted() -> None:
    report = tpkernel.build(MATMUL, checks=["validation"])
    facts = report.to_dict()
    lines = facts["validation_lines"]
    assert "mylib::mm, x, w: admitted: float32, float64 on cpu, meta" in lines
    (refused,) = [line for line in lines if "refused: 13 dtypes, e.g." in line]
    row = next(r for r in report.validation if (r.dtype, r.device) == ("int64", "cpu"))
    assert refused.endswith(row.message)
    assert [r["admitted"] for r in facts["validation"]] == sorted(
        (r.admitted for r in report.validation), reverse=True
    )
    assert re.search(r"<details><summary>Each combination</summary><table", report.to_html())


BACKWARD = """\
template <class T> void rmse(tp::In<T> x, tp::In<T> w, tp::Out<T> out) {
  for (int64_t i = 0; i < x.numel(); ++i) out[i] = x[i] * w[i];
}
template <class T> void NAME(tp::In<T> grad, tp::In<T> x, tp::In<T> w, tp::Out<T> grad_x OUT) {
  for (int64_t i = 0; i < x.numel(); ++i) { grad_x[i] = grad[i] * w[i]; BODY }
}
"""


def backward(name: str, out: str = "", body: str = "") -> str:
    return BACKWARD.replace("NAME", name).replace("OUT", out).replace("BODY", body)


@pytest.mark.parametrize(
    "name",
    ["rmse_bwd", "rmse_grad", "rmse_gradient", "rmseBackward", "rmse_backwards", "rmse_bakward",
     "grad_rmse", "d_rmse", "bwd_rmse", "backward_rmse", "rmse_vjp"],
)  # fmt: skip
def test_a_misnamed_backward_is_a_visible_warning(name: str) -> None:
    text = "/*---\nop: m::rmse(Tensor x, Tensor w) -> Tensor\n---*/\n" + backward(name)
    report = tpkernel.build(text, checks=False)
    (hint,) = [f for f in report.findings if f.code == "misnamed_backward"]
    assert f"'{name}'" in hint.message
    assert "'rmse_backward'" in hint.message
    assert hint.message in report.to_text()
    assert hint.message in visible(report)
    assert report.to_dict()["problems"][0]["level"] == "warning"


def test_a_misnamed_backward_shows_without_front_matter_too() -> None:
    text = backward("rmse_bwd").replace("grad,", "up,").replace("grad[", "up[")
    report = tpkernel.build(text, checks=False)
    assert [f.code for f in report.findings] == ["misnamed_backward"]


@pytest.mark.parametrize("name", ["rmse2", "rms_error", "normalise", "rmse_of", "degrade"])
def test_other_functions_are_no_gradients(name: str) -> None:
    text = "/*---\nop: m::rmse(Tensor x, Tensor w) -> Tensor\n---*/\n" + backward(name)
    assert tpkernel.build(text, checks=False).findings == ()


def test_a_backward_that_lacks_an_input_says_so() -> None:
    report = tpkernel.build(backward("rmse_backward"))
    (hint,) = [f for f in report.findings if f.code == "missing_gradient"]
    assert hint.level == "warning"
    assert "grad_w" in hint.message
    whole = backward("rmse_backward", ", tp::Out<T> grad_w", "grad_w[i] = grad[i] * x[i];")
    assert tpkernel.build(whole).findings == ()


TWO_INPUTS = """\
/*---
op: m::mul(Tensor x, Tensor w) -> Tensor
derivatives: DERIVATIVES
---*/
template <typename T> void mul(tp::In<T> x, tp::In<T> w, tp::Out<T> out) {
  for (int64_t i = 0; i < x.numel(); ++i) out[i] = x[i] * w[i];
}
"""


@pytest.mark.parametrize("given", ["{x: grad * w}", "{x: non_differentiable}"])
def test_formulas_that_lack_an_input_say_so_in_the_summary(given: str) -> None:
    report = tpkernel.build(TWO_INPUTS.replace("DERIVATIVES", given))
    (problem,) = report.to_dict()["problems"]
    assert problem["level"] == "warning"
    assert "input 'w' has no gradient formula" in problem["text"]
    assert "'w: non_differentiable'" in problem["text"]
    assert problem["text"] in visible(report)
    assert problem["text"] in report.to_text()
    assert "w: missing; asking for it raises" in report.to_text()
    x, w = tp.ones(2, requires_grad=True), tp.ones(2, requires_grad=True)
    with pytest.raises(NotImplementedError, match="input 'w' has no gradient"):
        report.module.mul(x, w).sum().backward()


def test_an_input_that_is_declared_to_have_no_gradient_is_not_missing() -> None:
    text = TWO_INPUTS.replace("DERIVATIVES", "{x: grad * w, w: non_differentiable}")
    report = tpkernel.build(text)
    assert report.to_dict()["problems"] == []
    assert "w: none, as declared" in report.to_text()
    assert "missing" not in report.to_text()


def test_an_input_of_complex_numbers_can_lack_a_gradient_and_one_of_integers_cannot() -> None:
    text = """\
/*---
op: m::pick(Tensor x, Tensor w, Tensor index) -> Tensor
dtypes: {T: [float32, float64], C: [complex64, complex128], I: [int32, int64]}
derivatives: {x: grad}
---*/
#include <complex>
template <class T, class C, class I>
void pick(tp::In<T> x, tp::In<C> w, tp::In<I> index, tp::Out<T> out) {
  for (int64_t i = 0; i < x.numel(); ++i) out[i] = x[i] + T(w[i].real()) * T(index[i]);
}
"""
    report = tpkernel.build(text, checks=False)
    assert [f.message.split("'")[1] for f in report.findings] == ["w"]


MIXED = """\
/*---
op: m::mixed(ARGUMENTS) -> Tensor
EXTRA
---*/
template <HEAD>
void mixed(PARAMETERS, tp::Out<T> out) {
  for (int64_t i = 0; i < out.numel(); ++i) out[i] = T(0);
}
"""
T_AND_I = "dtypes: {T: [float32, float64], I: [int32, int64]}"
ONE = "Tensor x, Tensor y"


@pytest.mark.parametrize(
    ("arguments", "head", "parameters", "extra", "said"),
    [
        (ONE, "class T", "tp::In<T> x, tp::In<T> y", "", "x and y must have one dtype"),
        (
            ONE,
            "class T, class I",
            "tp::In<T> x, tp::In<I> y",
            T_AND_I,
            "x and y may have any of their own each",
        ),
        (
            "Tensor x, Tensor y, Tensor z",
            "class T, class I",
            "tp::In<T> x, tp::In<I> y, tp::In<T> z",
            T_AND_I,
            "x and z must have one dtype; y may have any of its own",
        ),
        (
            "Tensor[] xs, Tensor? y=None",
            "class T",
            "tp::List<tp::In<T>> xs, tp::Optional<tp::In<T>> y",
            "shape: {xs: [n], y: [n], out: [n]}",
            "xs (each member) and y must have one dtype",
        ),
        (ONE, "class T", "tp::In<T> x, tp::In<double> y", "", None),
        ("Tensor x", "class T", "tp::In<T> x", "", None),
    ],
)
def test_a_report_says_which_dtypes_may_meet_in_a_call(
    arguments: str, head: str, parameters: str, extra: str, said: str | None
) -> None:
    text = MIXED.replace("ARGUMENTS", arguments).replace("HEAD", head)
    text = text.replace("PARAMETERS", parameters).replace("EXTRA", extra)
    report = tpkernel.build(text, checks=False)
    assert dict(report.operators[0].guards).get("mixed dtypes") == said
    for shown in (report.to_text(), report.to_text(full=True), visible(report)):
        assert (said or "mixed dtypes") in shown if said else "mixed dtypes" not in shown


def test_what_is_said_of_mixed_dtypes_is_what_calls_do() -> None:
    tensors = {n: tp.ones(2, dtype=getattr(tp, n)) for n in ("float32", "float64", "int32")}
    one = TWO_INPUTS.replace("derivatives: DERIVATIVES\n", "")
    with pytest.raises(TypeError, match=r"\[m::mul\] argument 'w': expected float32 .*as argument"):
        tpkernel.build(one, checks=False).module.mul(tensors["float32"], tensors["float64"])
    plain = """\
/*---
op: m::first(Tensor x, Tensor y) -> Tensor
dtypes: [float32, float64]
out_dtype: float32
---*/
void first(tvm::ffi::TensorView x, tvm::ffi::TensorView y, tvm::ffi::TensorView out) {
  for (int64_t i = 0; i < x.numel(); ++i) static_cast<float*>(out.data_ptr())[i] = 1;
}
"""
    report = tpkernel.build(plain, checks=False)
    said = dict(report.operators[0].guards)["mixed dtypes"]
    assert said == "x and y may have any of their own each"
    assert report.module.first(tensors["float32"], tensors["float64"]).tolist() == [1, 1]
    with pytest.raises(TypeError):
        report.module.first(tensors["float32"], tensors["int32"])


def test_a_misnamed_backward_that_cannot_be_an_operator_says_its_name_in_the_error() -> None:
    with pytest.raises(tpkernel.CellError, match="call it 'rmse_backward'") as caught:
        tpkernel.build(backward("rmse_bwd"), functions=["rmse", "rmse_bwd"])
    assert caught.value.line == 4


def test_hints_survive_the_checks(shell: Shell) -> None:
    ran = shell.kernel(backward("rmse_bwd").replace("grad,", "up,").replace("grad[", "up["))
    assert ran.error is None
    assert "'rmse_backward'" in ran.text


def test_a_gradient_of_wrong_shape_by_a_helper_names_the_helper() -> None:
    helper = """\
template <typename T> void back(tp::In<T, 2> grad, tp::In<T, 2> w, tp::Out<T, 2> grad_x) {
  for (int64_t i = 0; i < grad.size(0); ++i)
    for (int64_t j = 0; j < grad.size(1); ++j) grad_x(i, j) = grad(i, j);
}
"""
    samples = "samples:\n  - {x: 'randn(3, 2)', w: 'randn(2, 3)'}\n---*/"
    text = MATMUL.replace("grad @ w.T", "back(grad, grad)").replace("---*/", samples, 1) + helper
    text = text.replace("template", "// the product\ntemplate", 1)
    (problem,) = tpkernel.build(text, checks=["gradcheck"]).to_dict()["problems"]
    assert "'back' makes it, and a function without declared shape" in problem["text"]
    assert "mm_backward with an output grad_x" in problem["text"]
    assert "sums more" not in problem["text"]


def test_a_long_documentation_is_cut_in_the_summary_and_whole_in_the_plain_data():
    report = tpkernel.build(SOFTPLUS, checks=False)
    operator = dataclasses.replace(report.operators[0], doc="word " * 400_000)
    long = dataclasses.replace(report, operators=(operator,))
    assert len(str(long)) < 2_000
    assert len(long.to_html()) < HTML_LIMIT
    assert long.to_dict()["operators"][0]["doc"] == operator.doc


def test_a_crash_is_told_once_and_with_what_to_do():
    report = tpkernel.build(CRASH)
    (line,) = (part for part in str(report).splitlines() if "✘" in part)
    assert line.count("softplus") == 1
    assert "on x (4,), beta=1.0" in line
    assert "checks after it were not run" in line
    assert "--sanitize address,undefined" in line
