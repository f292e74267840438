"""`opcheck` of cells whose results have sizes that depend on values, or that nothing declares."""

from __future__ import annotations

import tpkernel
from tests.tpkernel.shell import ABOVE
from tpkernel import Report
from tpkernel.report.facts import OpcheckFacts

# Gives the memory of the call before again, as a kernel with a pool of its own would.
POOLED = """\
/*---
op: opchecks::pooled(Tensor x) -> Tensor
---*/
tvm::ffi::Tensor pooled(tvm::ffi::TensorView x) {
  static auto kept = tvm::ffi::Tensor::FromEnvAlloc(
      TVMFFIEnvTensorAlloc, tvm::ffi::Shape({4}), DLDataType{kDLFloat, 64, 1}, DLDevice{kDLCPU, 0});
  for (int64_t i = 0; i < 4; ++i) static_cast<double*>(kept.data_ptr())[i] = double(x.numel());
  return kept;
}
"""


def facts_of(report: Report) -> OpcheckFacts:
    (facts,) = report.opcheck
    return facts


def test_every_test_runs_where_sizes_depend_on_values() -> None:
    report = tpkernel.build(ABOVE)
    assert report.ok, report.to_text(full=True)
    facts = facts_of(report)
    assert "test_variants" in facts.tests
    assert "test_aot_dispatch_dynamic" in facts.tests
    (note,) = facts.notes
    assert "sizes of 'values' depend on values" in note
    assert "its backward is not run without data" in note
    assert note in report.to_text(full=True)


def test_what_other_calls_find_is_found_there_too() -> None:
    text = ABOVE.replace(
        "  auto out =", "  static int64_t calls = 0; n = calls++ % 2;\n  auto out ="
    )
    text = text.replace("if (x[i] > 0)", "if (k < n)").replace("::above", "::counted")
    facts = facts_of(tpkernel.build(text.replace("void above", "void counted")))
    assert ("test_variants", "not_deterministic") in {(f.test, f.code) for f in facts.failures}


def test_a_returned_tensor_without_a_shape_is_told_how_to_declare_one() -> None:
    report = tpkernel.build(POOLED)
    failures = {f.code: f.message for f in facts_of(report).failures}
    assert "nothing declares the shape of the result" in failures["fake_reads_data"]
    assert "Write it, as in shape: x, or make it an output" in failures["fake_reads_data"]
    assert ".register_fake('" not in report.to_text(full=True)
    assert "shared_result" in failures
