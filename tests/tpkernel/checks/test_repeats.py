"""Kernels whose result depends on earlier calls, on chance, or on the layout of their arguments."""

from __future__ import annotations

import pytest

import tpkernel
from tpkernel.report.report import Finding

CELL = """\
/*---
op: repeats::f(Tensor x) -> Tensor
---*/
BEFORE
template <typename T> void f(tp::In<T> x, tp::Out<T> out) {
  for (int64_t i = 0; i < x.numel(); ++i) out[i] = x[i];
  if (x.numel() == 0) return;
  BODY
}
"""


def findings(body: str, before: str = "", *, in_process: bool = False) -> list[Finding]:
    text = CELL.replace("BODY", body).replace("BEFORE", before)
    report = tpkernel.build(text, in_process=in_process)
    assert report.ok is not any(f.level == "error" for f in report.findings)
    return [f for f in report.findings if f.level == "error"]


KEEPS = {
    "a counter": ("static int calls = 0; out[0] += T(++calls);", ""),
    "a counter of the cell": ("out[0] += T(++calls);", "static int calls = 0;"),
    "the first argument": ("static T first = x[0]; out[0] = first;", ""),
    "a sum": ("out[0] = sum += double(x[0]);", "double sum = 0;"),
    "a table that grows": ("seen.push_back(1); out[0] = T(seen.size());", "std::vector<int> seen;"),
    "an end after some calls": (
        'static int calls = 0; if (++calls > 3) throw std::runtime_error("enough");',
        "#include <stdexcept>",
    ),
}


@pytest.mark.parametrize("kind", KEEPS)
@pytest.mark.parametrize("in_process", [False, True])
def test_a_kernel_that_keeps_something_between_calls(kind, in_process):
    found = [f for f in findings(*KEEPS[kind], in_process=in_process) if f.code]
    (finding,) = found
    assert (finding.check, finding.operator) == ("repeated calls", "repeats::f")
    assert finding.code == "keeps_state"
    assert "static or global variable" in finding.message


def test_chance_is_told_from_state():
    before = "#include <random>"
    (finding,) = findings("std::random_device device; out[0] = T(device());", before)
    assert finding.code == "non_deterministic"
    assert "two calls on the same arguments differ: 'result'[0" in finding.message


@pytest.mark.parametrize(
    "body",
    [
        "static const T table[2] = {1, 2}; out[0] = table[0];",
        "static std::vector<T> scratch; scratch.assign(1, x[0]); out[0] = scratch[0];",
        "out[0] = T(0) / T(0);",  # nan is equal to itself here
    ],
)
def test_what_gives_the_same_result_is_left_alone(body):
    assert findings(body, "#include <vector>") == []


UNLIKE = """\
/*---
op: repeats::g(Tensor x) -> Tensor
derivatives:
  x: grad * 2
---*/
#include <atomic>
#include <random>
template <typename T> void g(tp::In<T> x, tp::Out<T> out) {
  static int calls = 0;
  static std::mt19937 drawn(std::random_device{}());
  ++calls;
  for (int64_t i = 0; i < x.numel(); ++i) out[i] = BODY;
}
"""


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ("2 * x[i] + T(drawn() % 1000) * T(1e-12)", "non_deterministic"),  # far below tolerances
        ("(drawn() & 1) ? 2 * x[i] : 0", "non_deterministic"),
        ("2 * x[i] + calls", "keeps_state"),
        ("2 * x[i] * (calls % 7 ? 1 : 2)", "keeps_state"),  # most calls are alike
        ("2 * x[i] * (calls % 23 ? 1 : 2)", "keeps_state"),
    ],
)
def test_one_cause_has_one_error_and_other_checks_say_that_they_follow(body, code):
    report = tpkernel.build(UNLIKE.replace("BODY", body))
    (finding,) = (f for f in report.findings if f.level == "error")
    assert (finding.check, finding.code) == ("repeated calls", code)
    assert not report.gradcheck
    assert not report.opcheck
    followers = {f.check: f.message for f in report.findings if f.level == "note"}
    assert followers.keys() == {"gradcheck", "opcheck"}
    assert all("see repeated calls" in message for message in followers.values())
    words = {"keeps_state": "keeps state between calls", "non_deterministic": "not deterministic"}
    assert report.title.startswith(f"repeats::g · {words[code]} · ")
    assert str(report).count("✘") == 1


def test_a_gradient_that_differs_from_call_to_call_is_the_cause():
    text = UNLIKE.replace("BODY", "2 * x[i]").replace("derivatives:\n  x: grad * 2\n", "")
    text += """\
template <typename T> void g_backward(tp::In<T> grad, tp::Out<T> grad_x) {
  static std::mt19937 drawn(std::random_device{}());
  for (int64_t i = 0; i < grad.numel(); ++i) grad_x[i] = T(drawn() % 9);
}
"""
    report = tpkernel.build(text)
    (finding,) = (f for f in report.findings if f.level == "error")
    assert finding.code == "non_deterministic"
    assert "the gradient of 'x'[0" in finding.message
    assert not report.gradcheck


def test_what_adding_in_another_order_changes_is_no_finding():
    # As threads that add in changing order: the last bits, and nothing else.
    body = "(drawn() & 1) ? 2 * x[i] : std::nextafter(2 * x[i], T(1e9))"
    report = tpkernel.build(UNLIKE.replace("BODY", body))
    assert report.ok, str(report)


def test_a_wrong_gradient_of_a_kernel_that_repeats_is_still_judged():
    report = tpkernel.build(UNLIKE.replace("BODY", "2 * x[i]").replace("grad * 2", "grad * 3"))
    assert report.gradcheck_verdict == "wrong"
    assert not [f for f in report.findings if f.check == "repeated calls"]


HIDDEN_STRIDES = """\
/*---
op: repeats::rows(Tensor x) -> Tensor
shape: {x: [n, m], out: [n]}
LAYOUT
---*/
template <typename T> void rows(tp::In<T, 2> x, tp::Out<T, 1> out) {
  const T* p = x.data();
  if (x.stride(0) == x.stride(1)) return;  // asks for both, and then ignores one
  for (int64_t i = 0; i < x.size(0); ++i) {
    const T* row = p + i * x.stride(0);
    T sum = 0;
    for (int64_t j = 0; j < x.size(1); ++j) sum += row[j];
    out(i) = sum;
  }
}
"""


def test_a_kernel_that_is_admitted_with_strides_and_ignores_one_is_found():
    report = tpkernel.build(HIDDEN_STRIDES.replace("LAYOUT\n", ""))
    found = {f.code: f for f in report.findings if f.level == "error"}
    assert found.keys() == {"reads_outside", "ignores_strides"}
    assert "on x (2, 3), float64 and x strided" in found["reads_outside"].message
    finding = found["ignores_strides"]
    assert "a transposed view of the same values gives another result: 'result'[0]" in (
        finding.message
    )
    assert tpkernel.build(HIDDEN_STRIDES.replace("LAYOUT", "layout: contiguous")).ok
    assert tpkernel.build(HIDDEN_STRIDES.replace("LAYOUT", "layout: copy")).ok is False


def test_a_kernel_that_goes_by_strides_has_no_finding():
    text = HIDDEN_STRIDES.replace("LAYOUT\n", "").replace("row[j]", "row[j * x.stride(1)]")
    text = text.replace("if (x.stride(0) == x.stride(1)) return;", "")  # such views have results
    report = tpkernel.build(text)
    assert report.ok, str(report)
