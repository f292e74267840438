"""Strings, lists, optional numbers and dtypes beside typed views."""

from __future__ import annotations

from pathlib import Path

import pytest

import tensorplay as tp
import tpkernel
from tensorplay.library import build_module, load
from tpkernel.errors import CellError

MODE = """\
/*---
op: mixed::act(Tensor x, str mode="relu", float by=1.0) -> Tensor
derivatives:
  x: grad * (where(x > 0, 1.0, 0.0) if mode == "relu" else by)
---*/
#include <string>
template <typename T>
void act(tp::In<T> x, const std::string& mode, T by, tp::Out<T> out) {
  for (int64_t i = 0; i < x.numel(); ++i)
    out[i] = mode == "relu" ? (x[i] > 0 ? x[i] : T(0)) : by * x[i];
}
"""
MANY = """\
/*---
op: mixed::many(Tensor x, float[] c, int[] p=[0, 1], int? k=None, ScalarType d=float64) -> Tensor
samples:
  - {x: [1.0, 2.0], c: [1.0, 0.5]}
  - {x: [1.0, 2.0], c: [], p: [], k: 3, d: float32}
---*/
template <typename T>
void many(tp::In<T> x, tvm::ffi::Array<double> c, const tvm::ffi::Array<int64_t>& p,
          tvm::ffi::Optional<int64_t> k, DLDataType d, tp::Out<T> out) {
  for (int64_t i = 0; i < x.numel(); ++i) {
    T s = k.has_value() ? T(*k) : T(0);
    for (size_t j = 0; j < c.size() && j < p.size(); ++j) s += T(c[j] * std::pow(x[i], p[j]));
    out[i] = s + T(100 * d.bits);
  }
}
"""


def test_a_string_chooses_and_the_gradient_knows_it() -> None:
    report = tpkernel.build(MODE)
    assert report.ok, report.to_text()
    x = tp.tensor([-1.0, 2.0], requires_grad=True)
    assert report.module.act(x.detach()).tolist() == [0.0, 2.0]
    y = report.module.act(x, mode="linear", by=3.0)
    assert y.tolist() == [-3.0, 6.0]
    y.sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [3.0, 3.0]
    with pytest.raises(TypeError, match=r"\[mixed::act\] argument 'mode': expected str, got int"):
        report.module.act(x, 3)


def test_lists_optional_numbers_and_dtypes() -> None:
    report = tpkernel.build(MANY)
    assert report.ok, report.to_text()
    many = report.module.many
    x = tp.tensor([2.0])
    assert many(x, [1.0, 0.5]).tolist() == [6402.0]
    assert many(x, (1, 0.5), (2, 0), 7, tp.bfloat16).tolist() == [1611.5]
    assert many(x, [], [], d=tp.bool).tolist() == [800.0]
    assert many(x.to(device="meta"), [1.0]).shape == (1,)
    for arguments, words in (
        ((3.0,), r"argument 'c': expected float\[\], got float"),
        (([1.0], ["a"]), r"argument 'p': expected int\[\], got list of str"),
        (([1.0], [1], "q"), r"argument 'k': expected int\?, got str"),
        (([1.0], [1], None, "f"), r"argument 'd': expected a dtype such as tensorplay\.float32"),
        (([1.0], [1], None, tp.complex64), r"argument 'd': .* any but a complex one"),
    ):
        with pytest.raises(TypeError, match=rf"\[mixed::many\] {words}"):
            many(x, *arguments)


def test_signatures_alone_and_calls_in_another_process() -> None:
    text = MODE.split("---*/\n")[1].replace(", T by", "").replace("by * x[i]", "-x[i]")
    report = tpkernel.build(text, isolate=True, checks=False)
    assert report.operators[0].schema == "cell::act(Tensor x, str mode) -> Tensor"
    assert report.module.act(tp.ones(2), "no").tolist() == [-1.0, -1.0]


def test_operator_modules_have_them(tmp_path: Path) -> None:
    (tmp_path / "k.cc").write_text(MODE.replace("mixed::", "mixed_lib::"))
    build_module(None, tmp_path / "k.cc", output=tmp_path / "libk.so")
    assert load(tmp_path / "libk.so").act(tp.ones(1), "no", 3.0).tolist() == [3.0]


def test_a_result_beside_views_names_the_way_for_shapes_that_depend_on_data() -> None:
    text = "template <typename T> tvm::ffi::Tensor f(tp::In<T> x) { return {}; }\n"
    with pytest.raises(
        CellError, match=r"depends on data, tp::Result<T> out, and call out\.allocate"
    ):
        tpkernel.build(text)


VOID = "template <typename T> void f(tp::In<T> x, {} w, tp::Out<T> out) {{}}\n"


@pytest.mark.parametrize(
    ("schema", "cpp_type", "words"),
    [
        ("int[] w", "std::string", r"schema type int\[\].* Write tvm::ffi::Array<int64_t> w"),
        ("str w", "double", "schema type str.* Write const std::string& w"),
        ("Tensor? w", "tp::In<T>", r"schema type Tensor\?.* Write tp::Optional<tp::In<T>> w"),
        ("Tensor[] w", "tvm::ffi::Array<tvm::ffi::Tensor>", r"Write tp::List<tp::In<T>> w"),
        ("Tensor?[] w", "std::vector<tp::In<T>>", r"views are held by tp::List<…> here"),
        ("Tensor[]? w", "tp::List<tp::In<T>>", r"a list beside typed views is never None|A list"),
        ("Tensor w", "tp::In<T, N>", r"the rank is 'N', and guards need it"),
        ("Tensor w", "tp::List<tp::Result<T>>", r"the kernel allocates one tensor by it"),
        (None, "tvm::ffi::Optional<tvm::ffi::Tensor>", "does not go with typed views"),
    ],
)
def test_what_does_not_go_is_refused(schema: str | None, cpp_type: str, words: str) -> None:
    front = f"/*---\nop: a::f(Tensor x, {schema}) -> Tensor\n---*/\n" if schema else ""
    with pytest.raises(CellError, match=words):
        tpkernel.build(front + VOID.format(cpp_type))
