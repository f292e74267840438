"""Mistakes of a kernel with memory, found under check before anyone meets them as garbage."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, strategies as st
from hypothesis.extra import numpy as hnp

import tensorplay as tp
import tpkernel
from tensorplay.library.modules.shapes import ShapeRules
from tensorplay.library.modules.spec import Argument, CellSpec, KernelSpec
from tensorplay.utils.cpp_jit import allocator
from tests.tpkernel.shell import MAKE, MATMUL, SOFTPLUS
from tpkernel.checks.memory import MemoryWatch, check_memory
from tpkernel.report.report import Finding, Report
from tpkernel.worker.process import shared_worker

COPY = """\
/*---
op: mem::copy(Tensor x) -> Tensor
derivatives: {x: grad}
---*/
template <typename T>
void copy(tp::In<T> x, tp::Out<T> out) {
  for (int64_t i = 0; i < x.numel(); ++i) out[i] = x[i];
BODY
}
"""


def errors(report: Report) -> list[Finding]:
    return [f for f in report.findings if f.level == "error"]


def copy_with(body: str, loop: str | None = None) -> str:
    text = COPY.replace("BODY", body)
    return text if loop is None else text.replace("int64_t i = 0; i < x.numel(); ++i", loop)


MISTAKES = {
    "one past the end": (
        copy_with("", "int64_t i = 0; i <= x.numel(); ++i"),
        "writes_outside",
        "writes outside 'out': element 4 is written, and 'out' has elements 0 to 3",
    ),
    "one before the start": (
        copy_with("out[-1] = T(0);"),
        "writes_outside",
        "writes outside 'out': element -1 is written",
    ),
    "the first element forgotten": (
        copy_with("", "int64_t i = 1; i < x.numel(); ++i"),
        "not_written",
        "output 'out' is not fully written: index [0] keeps what was in memory before",
    ),
    "sums into what was there": (
        copy_with("for (int64_t i = 0; i < x.numel(); ++i) out[i] = x[i];").replace("] =", "] +="),
        "reads_output",
        "output 'out' depends on what was in memory before: index [0] and 3 more of 4 elements",
    ),
    "an input is written": (
        copy_with("const_cast<T&>(x[1]) = T(3);"),
        "writes_input",
        "writes its input 'x': element 1",
    ),
    "past the end of an input": (
        copy_with("const_cast<T&>(x[x.numel() + 2]) = T(3);"),
        "writes_outside",
        "writes outside 'x': element 6 is written",
    ),
    "the neighbour of the last": (
        copy_with("").replace("= x[i]", "= x[i + 1]"),
        "reads_outside",
        "reads outside its arguments: 'out' index [3] changes with memory",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_with_memory_is_named_and_the_report_is_not_ok(mistake: str):
    text, code, message = MISTAKES[mistake]
    report = tpkernel.build(text)
    (finding,) = errors(report)
    assert (finding.check, finding.operator, finding.code) == ("memory", "mem::copy", code)
    assert finding.message.startswith("'copy': ")
    assert message in finding.message
    assert "on x (4,), float64" in finding.message
    assert not report.ok
    assert report.gradcheck == ()  # it would only say "not deterministic"
    (note,) = [f for f in report.findings if f.check == "gradcheck"]
    assert "not run" in note.message
    for shown in (report.to_text(), report.to_html().replace("&#x27;", "'")):
        assert message in shown


@pytest.mark.parametrize("text", [SOFTPLUS, MATMUL, copy_with("")])
def test_a_right_kernel_has_no_finding(text: str):
    report = tpkernel.build(text)
    assert report.findings == ()
    assert report.gradcheck_verdict == "ok"


def test_what_is_wrong_for_one_dtype_only_is_found():
    body = "auto* wide = (double*)out.data(); for (int i = 0; i < out.numel(); ++i) wide[i] = 1;"
    report = tpkernel.build(copy_with(body).replace("x: grad", "x: 0 * grad"))
    (finding,) = errors(report)
    assert finding.code == "writes_outside"
    assert "element 6" in finding.message
    assert "float32" in finding.message


def test_a_backward_kernel_is_watched_with_the_gradient_that_it_gets():
    text = """\
template <class T> void sq(tp::In<T> x, tp::Out<T> out) {
  for (int64_t i = 0; i < x.numel(); ++i) out[i] = x[i] * x[i];
}
template <class T> void sq_backward(tp::In<T> grad, tp::In<T> x, tp::Out<T> grad_x) {
  for (int64_t i = 0; i + 1 < x.numel(); ++i) grad_x[i] = 2 * grad[i] * x[i];
}
"""
    (finding,) = errors(tpkernel.build(text))
    assert finding.code == "not_written"
    assert "'sq_backward': output 'grad_x' is not fully written: index [3]" in finding.message
    assert finding.operator == "cell::sq"


def test_the_advice_leads_to_the_access():
    text = MISTAKES["one past the end"][0]
    (finding,) = errors(tpkernel.build(text))
    assert "--debug" in finding.message
    report = tpkernel.build(text, debug=True)
    (note,) = [f for f in report.findings if f.code == "not_finished"]
    assert "IndexError: [mem::copy] argument 'x': index 4 is outside its 4 elements" in note.message
    assert not report.ok


def test_a_plain_kernel_behind_an_operator_is_watched_too():
    text = """\
/*---
op: mem::plain(Tensor x) -> Tensor
dtypes: [float32]
---*/
void plain(tvm::ffi::TensorView x, tvm::ffi::TensorView out) {
  auto* a = static_cast<const float*>(x.data_ptr());
  auto* b = static_cast<float*>(out.data_ptr());
  for (int64_t i = 0; i <= x.numel(); ++i) b[i] = a[i];
}
"""
    (finding,) = errors(tpkernel.build(text))
    assert finding.code == "writes_outside"
    assert "numel()" in finding.message


def test_an_operator_in_place_may_change_its_argument_and_nothing_else():
    text = """\
/*---
op: mem::scale_(Tensor(a!) x, float by) -> ()
---*/
template <typename T> void scale_(tp::InOut<T> x, double by) {
  for (int64_t i = 0; i < x.numel() MORE; ++i) x[i] *= T(by);
}
"""
    good = tpkernel.build(text.replace("MORE", ""))
    assert errors(good) == []
    x = tp.tensor([1.0, 2.0])
    good.module.scale_(x, 3.0)
    assert x.tolist() == [3.0, 6.0]
    (finding,) = errors(tpkernel.build(text.replace("MORE", "+ 1")))
    assert "writes outside 'x': element 4" in finding.message


def test_a_kernel_with_state_is_not_blamed_for_its_memory():
    report = tpkernel.build(copy_with("static int calls = 0; out[0] = T(++calls);"))
    assert not [f for f in report.findings if f.check == "memory"]
    assert [f.code for f in report.findings if f.level == "error"] == ["keeps_state"]


def test_a_damaged_worker_is_replaced_and_the_next_cell_is_not_blamed():
    tpkernel.build(SOFTPLUS)
    before = shared_worker().pid
    assert tpkernel.build(copy_with("")).ok
    assert shared_worker().pid == before
    assert not tpkernel.build(copy_with("out[out.numel() + 3] = T(1);")).ok
    assert shared_worker().pid not in (None, before)
    assert tpkernel.build(SOFTPLUS).ok


def test_a_gradcheck_alone_is_not_run_on_a_kernel_that_damages_memory():
    report = tpkernel.build(MISTAKES["one past the end"][0], checks=["gradcheck"])
    (finding,) = errors(report)
    assert finding.check == "gradcheck"
    assert finding.code == "writes_outside"
    assert "not run" in finding.message


def test_in_process_the_kernels_are_put_back():
    report = tpkernel.build(COPY.replace("BODY", ""), in_process=True)
    assert report.ok
    assert report.module.copy(tp.tensor([1.0, 2.0])).tolist() == [1.0, 2.0]


# -- the watch itself, around Python functions ----------------------------------------------------

AXPY = KernelSpec(
    name="axpy",
    title="t::axpy",
    style="views",
    arguments=(
        Argument("x", "tensor", "tp::In<T>"),
        Argument("out", "tensor", "tp::Out<T>", role="out"),
    ),
    returns="void",
    templates=(),
    instances=({},),
    shapes=ShapeRules({}, {}, declared=False),
    line=1,
)


def watched(call):
    kernels = SimpleNamespace(axpy=call)
    watch = MemoryWatch(CellSpec("cell", (), (AXPY,)), kernels)
    watch.on("t::axpy", "a sample")
    return kernels, watch


@given(
    x=hnp.arrays(
        st.sampled_from(["float64", "float32", "float16", "int64", "uint8", "bool", "complex64"]),
        hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4),
        elements=st.just(1),
    ),
    turned=st.booleans(),
)
def test_any_shape_dtype_and_strides_pass_through_unchanged(x, turned: bool):
    x = x.T if turned else x

    def twice(source, out):
        out.numpy()[...] = source.numpy()

    kernels, watch = watched(twice)
    out = tp.from_numpy(np.zeros_like(x))
    strides = out.stride()
    with watch:
        kernels.axpy(tp.from_numpy(x), out)
    assert kernels.axpy is twice
    np.testing.assert_array_equal(out.numpy(), x)
    assert out.stride() == strides
    assert watch.take() == []


@given(index=st.integers(0, 11))
def test_the_element_that_is_not_written_is_named(index: int):
    def all_but_one(source, out):
        place = np.unravel_index(index, (3, 4))
        kept = out.numpy()[place]
        out.numpy()[...] = source.numpy()
        out.numpy()[place] = kept

    kernels, watch = watched(all_but_one)
    with watch:
        kernels.axpy(tp.ones(3, 4), tp.zeros(3, 4))
    (finding,) = watch.take()
    assert f"index [{index // 4}, {index % 4}] keeps" in finding.message


def test_what_a_gap_between_strides_holds_is_not_the_kernels():
    def past_the_row(source, out):
        wide = np.lib.stride_tricks.as_strided(source.numpy(), (5,), (4,), writeable=True)
        wide[1] = 7.0
        out.numpy()[...] = source.numpy()

    kernels, watch = watched(past_the_row)
    column = tp.from_numpy(np.arange(6, dtype="float32").reshape(3, 2)[:, 0])
    with watch:
        kernels.axpy(column, tp.zeros(3))
    assert [f.code for f in watch.take()] == ["writes_outside"]
    assert column.tolist() == [0.0, 2.0, 4.0]


def test_an_exception_of_the_kernel_passes_through():
    def refuses(source, out):
        raise ValueError("no")

    kernels, watch = watched(refuses)
    with pytest.raises(ValueError, match="no"), watch:
        kernels.axpy(tp.zeros(2), tp.zeros(2))
    assert kernels.axpy is refuses


DOMAIN = """\
/*---
op: mem::counts(Tensor x, int bins=4) -> Tensor
shape: {x: [n], out: [bins]}
out_dtype: int32
SAMPLES---*/
template <typename T>
void counts(tp::In<T, 1> x, int64_t bins, tp::Out<int32_t, 1> out) {
  for (int64_t i = 0; i < bins; ++i) out[i] = 0;
  for (int64_t i = 0; i < x.numel(); ++i) ++out[int64_t(x[i] * bins)];
}
"""


def test_an_operator_with_a_domain_is_told_to_declare_samples() -> None:
    report = tpkernel.build(DOMAIN.replace("SAMPLES", ""))
    outside = next(f for f in report.findings if f.code == "writes_outside")
    assert "Where the operator has a domain" in outside.message
    assert "declare samples:" in outside.message
    declared = tpkernel.build(DOMAIN.replace("SAMPLES", "samples: [{x: [0.1, 0.5, 0.9]}]\n"))
    assert declared.ok, declared.to_text()


POSITIVE = """\
/*---
op: mem::positive(Tensor x) -> Tensor
---*/
template <typename T>
void positive(tp::In<T> x, tp::Result<T> out) {
  int64_t n = 0;
  for (int64_t i = 0; i < x.numel(); ++i) n += x[i] > 0;
  auto y = out.allocate(n);
  for (int64_t i = 0, k = 0; i < x.numel(); ++i)
    if (x[i] > 0) y[k++] = x[i];
  BODY
}
"""


@pytest.mark.parametrize(
    ("body", "code", "words"),
    [
        ("", "", ""),
        ("y.data()[n] = T(1);", "writes_outside",
         "writes outside 'out': element 2 is written, and 'out' has elements 0 to 1"),
        ("y.data()[n + 400] = T(1);", "writes_outside", "element 402 is written"),
        ("y.data()[-1] = T(1);", "writes_outside", "element -1 is written"),
        ("reinterpret_cast<char*>(y.data())[-1] = 1;", "writes_outside", "element -1 is written"),
        ("y.data()[0] = y.data()[n];", "reads_outside", "'out' index [0] changes"),
        ("y.data()[1] = y.data()[-1];", "reads_outside", "'out' index [1] changes"),
        ("auto s = SCRATCH; static_cast<double*>(s.data_ptr())[n] = 1;", "writes_outside",
         "writes outside memory that it allocated: element 2 is written, and it has elements 0 to"),
    ],
)  # fmt: skip
def test_memory_that_a_kernel_allocates_is_watched(body: str, code: str, words: str) -> None:
    scratch = (
        "tvm::ffi::Tensor::FromEnvAlloc(TVMFFIEnvTensorAlloc, tvm::ffi::Shape({n}), "
        "DLDataType{kDLFloat, 64, 1}, DLDevice{kDLCPU, 0})"
    )
    text = POSITIVE.replace("---*/\n", "samples: [{x: [1.0, -1.0, 2.0]}]\n---*/\n")
    body = body.replace("SCRATCH", scratch)
    found = errors(tpkernel.build(text.replace("BODY", body), checks=("memory",)))
    assert [f.code for f in found] == ([code] if code else [])
    assert words in "".join(f.message for f in found)


def test_an_allocated_result_is_not_zeroed() -> None:
    text = POSITIVE.replace("BODY", "").replace("allocate(n)", "allocate(n + 1)")
    (finding,) = errors(tpkernel.build(text, checks=("memory",)))
    assert finding.code == "not_written"
    assert "output 'out' is not fully written" in finding.message
    text = POSITIVE.replace("BODY", "").replace("y[k++] =", "y[k++] +=")
    (finding,) = errors(tpkernel.build(text, checks=("memory",)))
    assert finding.code == "reads_output"
    assert "assign before +=" in finding.message


def test_a_returned_tensor_is_watched_as_a_result_is() -> None:
    text = MAKE.replace("i < n", "i <= n")
    text = "/*---\nop: mem::make(int n) -> Tensor\nshape: [n]\nout_dtype: float32\n---*/\n" + text
    (finding,) = errors(tpkernel.build(text, checks=("memory",)))
    assert "writes outside 'result': element 2 is written" in finding.message


def test_results_of_other_calls_are_as_they_always_are() -> None:
    """Nothing of a check is left on: results hold their elements and no more."""
    tpkernel.build(POSITIVE.replace("BODY", ""), checks=("memory",))
    assert allocator.take_damage() == []
    module = tpkernel.build(POSITIVE.replace("BODY", ""), checks=False).module
    assert module.positive(tp.tensor([1.0, -2.0, 3.0])).tolist() == [1.0, 3.0]
    assert allocator.guard_results(0)


def test_without_the_extension_results_are_said_to_be_unwatched(monkeypatch) -> None:
    report = tpkernel.build(POSITIVE.replace("BODY", ""), checks=False)
    origin = report.origin
    (operator,) = origin.spec.operators
    monkeypatch.setattr(allocator, "guard_results", lambda *_: False)
    watch = MemoryWatch(origin.spec, SimpleNamespace())
    definition = origin.definitions["positive"]
    (finding,) = check_memory(operator, definition, watch, [], {}, lambda _: None)
    assert (finding.code, finding.level) == ("not_watched", "note")
    assert "--sanitize address" in finding.message


@pytest.mark.slow
def test_the_sanitizer_finds_a_write_past_allocated_memory():
    text = POSITIVE.replace("BODY", "y.data()[n] = T(1);")
    report = tpkernel.build(text, checks=("memory",), sanitize=("address",))
    found = [f.message for f in errors(report)]
    assert any("line 11: AddressSanitizer: heap-buffer-overflow, write of" in m for m in found), (
        found
    )
