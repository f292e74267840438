"""Gradcheck and validation of a cell's operators, in the worker and in process."""

from __future__ import annotations

import dataclasses
from dataclasses import replace

import numpy as np
import pytest

import tensorplay as tp
import tpkernel
from tensorplay.autograd.gradcheck import WorstElement
from tests.tpkernel.shell import MATMUL, SOFTPLUS, Shell
from tpkernel.report.report import ValidationRow, WorstFacts
from tpkernel.worker.process import shared_worker

SQUARE = """\
template <class T> void sq(tp::In<T> x, tp::Out<T> out) {
  for (int64_t i = 0; i < x.numel(); ++i) out[i] = x[i] * x[i];
}
template <class T> void sq_backward(tp::In<T> grad, tp::In<T> x, tp::Out<T> grad_x) {
  for (int64_t i = 0; i < x.numel(); ++i) grad_x[i] = 2 * grad[i] * x[i];
}
"""


def test_a_right_derivative_passes():
    report = tpkernel.build(SOFTPLUS)
    assert report.ok
    assert report.gradcheck_verdict == "ok"
    assert {g.sample.split(",")[0] for g in report.gradcheck} == {"x (4", "x (5", "x (2"}
    pair = report.gradcheck[0].pairs[0]
    assert pair.input == "x"
    assert pair.step > 0
    assert pair.worst.difference <= pair.worst.tolerance
    named = {field.name for field in dataclasses.fields(WorstFacts)}
    assert named <= {field.name for field in dataclasses.fields(WorstElement)}  # read alike
    assert not report.findings


def test_a_wrong_derivative_fails_with_a_reason():
    report = tpkernel.build(SOFTPLUS.replace("grad * sig", "2 * grad * sig"))
    assert not report.ok
    pair = report.gradcheck[0].pairs[0]
    assert pair.verdict == "wrong"
    assert pair.code
    assert "2" in pair.cause
    for shown in (report.to_text(), report.to_html()):
        assert "✘ FAIL" in shown
        assert pair.cause[:20] in shown


def test_both_inputs_of_a_product_are_checked():
    report = tpkernel.build(MATMUL)
    assert report.ok, report.to_text()
    assert [p.input for p in report.gradcheck[0].pairs] == ["x", "w"]
    wrong = tpkernel.build(MATMUL.replace("w: x.T @ grad", "w: -(x.T @ grad)"))
    assert [p.verdict for p in wrong.gradcheck[0].pairs] == ["ok", "wrong"]


def test_a_backward_kernel_is_checked_and_says_that_it_is_opaque():
    report = tpkernel.build(SQUARE, "opaque")
    assert report.ok, report.to_text()
    x = tp.tensor([1.0, 2.0], dtype=tp.float64, requires_grad=True)
    (grad,) = tp.autograd.grad(report.module.sq(x).sum(), (x,), create_graph=True)
    assert grad.tolist() == [2.0, 4.0]
    with pytest.raises(RuntimeError, match="opaque::sq_backward"):
        grad.sum().backward()


def test_a_formula_is_differentiable_again():
    report = tpkernel.build(SOFTPLUS, checks=False)
    x = tp.tensor([0.3], dtype=tp.float64, requires_grad=True)
    (grad,) = tp.autograd.grad(report.module.softplus(x, 2.0).sum(), (x,), create_graph=True)
    grad.sum().backward()
    s = 1 / (1 + np.exp(-0.6))
    np.testing.assert_allclose(x.grad.numpy(), [2 * s * (1 - s)])


def test_an_input_without_formula_says_so_when_its_gradient_is_asked():
    report = tpkernel.build(MATMUL.replace("  w: x.T @ grad\n", ""), checks=False)
    x = tp.ones(2, 3, requires_grad=True)
    w = tp.ones(3, 2)
    report.module.mm(x, w).sum().backward()
    assert x.grad.tolist() == [[2.0] * 3] * 2
    with pytest.raises(
        NotImplementedError, match=r"\[mylib::mm\] input 'w' has no gradient formula"
    ):
        report.module.mm(x, w.requires_grad_()).sum().backward()


def test_an_operator_without_derivatives_says_so_in_report_and_backward():  # B019
    text = SOFTPLUS.replace("derivatives:\n  x: grad * sigmoid(beta * x)\n", "")
    report = tpkernel.build(text)
    assert report.gradcheck == ()
    assert any("declares no derivatives" in f.message for f in report.findings)
    y = report.module.softplus(tp.ones(3, requires_grad=True))
    assert y.requires_grad
    with pytest.raises(RuntimeError, match="mylib::softplus"):
        y.sum().backward()


def test_samples_are_used_as_declared():
    text = SOFTPLUS.replace(
        "derivatives:",
        "samples:\n  - {x: 'randn(5) * 2', beta: 0.5}\n  - {x: [1.0, -2.0]}\nderivatives:",
    )
    report = tpkernel.build(text, checks=["gradcheck"])
    assert [g.sample for g in report.gradcheck] == [
        "x (5,), beta=0.5, float64",
        "x (2,), beta=1.0, float64",
    ]


def test_outside_of_its_domain_an_operator_is_checked_on_positive_values():
    text = """\
/*---
op: mylib::root(Tensor x) -> Tensor
derivatives: {x: grad / (2 * result)}
---*/
template <typename T> void root(tp::In<T> x, tp::Out<T> out) {
  for (int64_t i = 0; i < x.numel(); ++i) out[i] = std::sqrt(x[i]);
}
"""
    report = tpkernel.build(text, checks=["gradcheck"])
    assert report.gradcheck_verdict == "ok"
    assert any("not finite" in f.message for f in report.findings)


def test_the_validation_table_says_what_is_admitted_and_the_exact_error_otherwise():
    rows = {(r.dtype, r.device, r.layout): r for r in tpkernel.build(SOFTPLUS).validation}
    assert rows["float32", "cpu", "contiguous"].admitted
    assert rows["float64", "meta", "contiguous"].admitted
    refused = rows["int64", "cpu", "contiguous"]
    report = tpkernel.build(SOFTPLUS, checks=False)
    with pytest.raises(TypeError) as caught:
        report.module.softplus(tp.tensor([1, 2]))
    assert refused.message == f"TypeError: {caught.value}"
    assert "strides" in rows["float64", "cpu", "strided"].message
    refusals = [r.message for r in rows.values() if not r.admitted]
    assert len(refusals) > 20
    assert all("[mylib::softplus] argument 'x'" in text for text in refusals)


def test_checks_in_process_give_the_same_records():
    a = tpkernel.build(SOFTPLUS)
    b = tpkernel.build(SOFTPLUS, in_process=True)
    assert a.validation == b.validation
    assert [g.pairs for g in a.gradcheck] == [g.pairs for g in b.gradcheck]


CRASHES = {
    "volatile int* p = nullptr; *p = 1;": "SIGSEGV",
    "__builtin_trap();": "SIGILL",
    "abort();": "SIGABRT",
}


@pytest.mark.parametrize("body", CRASHES)
def test_a_crash_under_check_is_a_finding_and_the_session_lives(shell: Shell, body: str):
    text = (
        f"#include <cstdlib>\ntemplate <class T> void bad(tp::In<T> x, tp::Out<T> out) {{ {body} }}"
    )
    ran = shell.kernel(text)
    assert ran.error is None, ran.shown
    report = tpkernel.last_report()
    (finding,) = [f for f in report.findings if f.level == "error"]
    assert finding.signal == CRASHES[body]
    assert (finding.code, finding.operator) == ("crash", "cell::bad")
    assert "on x (4,)" in finding.message
    assert CRASHES[body] in ran.text
    assert shell.ok("1 + 1").result == 2
    assert tpkernel.build(SOFTPLUS).ok  # the next check gets a fresh worker


def test_an_endless_loop_under_check_is_ended():
    text = """\
template <class T> void spin(tp::In<T> x, tp::Out<T> out) {
  volatile bool on = true;
  while (on) {}
}
"""
    report = tpkernel.build(text, budget=1.0)
    (finding,) = [f for f in report.findings if f.level == "error"]
    assert "no answer within 1 s" in finding.message
    assert shared_worker().pid is None


def test_a_kernel_that_exits_under_check_is_a_finding():
    text = """\
    #include <unistd.h>
    template <class T> void leave(tp::In<T> x, tp::Out<T> out) { _exit(7); }
    """
    report = tpkernel.build(text)
    assert any("exit status 7" in f.message for f in report.findings)


def test_records_made_before_a_crash_are_kept():
    text = SOFTPLUS.replace(
        "  for (int64_t i", "  if (sizeof(T) == 4) __builtin_trap();\n  for (int64_t i"
    )
    report = tpkernel.build(text)
    assert report.gradcheck_verdict == "ok"
    assert report.validation
    assert any("float32 on cpu" in f.message and f.signal == "SIGILL" for f in report.findings)


def test_samples_do_not_disturb_the_persons_random_numbers():
    text = SOFTPLUS.replace("derivatives:", "samples: [{x: 'randn(5)'}]\nderivatives:")
    tp.manual_seed(3)
    expected = tp.rand(4).tolist()
    tp.manual_seed(3)
    tpkernel.build(text, in_process=True, checks=["gradcheck"])
    assert tp.rand(4).tolist() == expected


REFUSES = """\
/*---
op: m::refuse(Tensor x) -> Tensor
---*/
#include <stdexcept>
%s refuse(%s x, %s out) { throw std::runtime_error("no"); }
"""


@pytest.mark.parametrize(
    "types",
    [
        ("template <typename T> void", "tp::In<T>", "tp::Out<T>"),
        ("void", "tp::In<float>", "tp::Out<float>"),
        ("void", "tvm::ffi::TensorView", "tvm::ffi::TensorView"),
    ],
)
def test_a_kernel_that_throws_on_every_call_is_no_success(types):
    text = REFUSES % types
    if types[1].startswith("tvm"):
        text = text.replace("{ throw", "{ std::memset(out.data_ptr(), 0, 0); throw")
    report = tpkernel.build(text)
    assert not report.ok
    (finding,) = [f for f in report.findings if f.level == "error"]
    assert finding.check == "validation"
    assert "RuntimeError: no" in finding.message
    if not types[1].startswith("tvm"):
        assert report.validation_verdict == "wrong"
        assert "validation wrong" in report.title
        row = next(r for r in report.validation if r.dtype == "float32" and r.device == "cpu")
        assert (row.declared, row.admitted) == (True, False)
        for shown in (report.to_text(full=True), report.to_html()):
            assert "✘ FAIL: the declaration admits it. RuntimeError: no" in shown


def test_what_is_declared_is_what_is_admitted():
    for text in (SOFTPLUS, MATMUL, SQUARE):
        report = tpkernel.build(text, checks=["validation"])
        assert report.validation_verdict == "ok", report.to_text()
        assert {r.declared for r in report.validation} == {True, False}
    report = tpkernel.build(SOFTPLUS, checks=["validation"], contiguous="copy")
    assert report.validation_verdict == "ok", report.to_text()


def test_a_guard_that_lets_through_what_the_declaration_refuses_is_found():
    row = ValidationRow("m::f", "x", "int64", "cpu", "contiguous", True, "", declared=False)
    wrong = replace(tpkernel.build(SOFTPLUS, checks=False), validation=(row,))
    assert wrong.validation_verdict == "wrong"
    assert not wrong.ok
    assert "the declaration refuses it, and the call returned" in wrong.to_text()


TWICE = """\
/*---
ops:
- op: twice::dbl(Tensor x, Tensor y) -> Tensor
  derivatives: {x: "dbl(grad, y)", y: "(grad * x).sum() + 0 * y"}
---*/
template <typename T> void dbl(tp::In<T> x, tp::In<T> y, tp::Out<T> out) {
  for (int64_t i = 0; i < x.numel(); ++i) out[i] = x[i] * 2;
}
"""


def test_a_formula_that_calls_a_declared_operator_takes_any_gradient():
    dbl = tpkernel.build(TWICE, checks=False).module.dbl
    x, y = tp.ones(2, 3, requires_grad=True), tp.ones(2, 3)
    dbl(x, y).sum().backward()
    assert x.grad.tolist() == [[2.0] * 3] * 2
    x.grad = None
    (dbl(x, y).T @ tp.ones(2, 2)).sum().backward()
    assert x.grad.tolist() == [[4.0] * 3] * 2
