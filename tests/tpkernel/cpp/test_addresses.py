"""Kernels that go on from the address of an element: the rest of a row is not where strides say."""

from __future__ import annotations

import pytest

import tensorplay as tp
import tpkernel
from tensorplay.library.modules.spec import Argument
from tpkernel.cells.cell import parse_cell
from tpkernel.cells.reading import read_cell
from tpkernel.errors import CellError

ROWS = """\
/*---
op: addresses::rows(Tensor x) -> Tensor
shape: {x: [n, m], out: [n]}
EXTRA
---*/
BEFORE
template <typename T> void rows(tp::In<T, 2> x, tp::Out<T, 1> out) {
  for (int64_t i = 0; i < x.size(0); ++i) {
    T sum = 0;
    BODY
    out(i) = sum;
  }
}
"""
SUM = " for (int64_t j = 0; j < x.size(1); ++j) sum += row[j];"


def argument(body: str, before: str = "", extra: str = "") -> Argument:
    text = ROWS.replace("BODY", body).replace("BEFORE", before).replace("EXTRA", extra)
    return read_cell(parse_cell(text)).operators[0].kernel.arguments[0]


TAKEN = [
    ("const T* row = &x(i, 0);", ""),
    ("const T* row = &(x(i, 0));", ""),
    ("const T* row; row = &x(i, 0);", ""),
    ("const T* row = i ? &x(i, 0) : nullptr;", ""),
    ("const T& first = x(i, 0); const T* row = &first;", ""),
    ("auto&& first = x(i, 0); auto&& same = first; const T* row = &same;", ""),
    ("auto row = std::addressof(x(i, 0));", ""),
    ("auto row = &std::ref(x(i, 0)).get();", ""),
    ("auto at = [&](int64_t k) -> const T& { return x(k, 0); }; auto row = &at(i);", ""),
    ("auto at = [](const T& v) { return &v; }; auto row = at(x(i, 0));", ""),
    ("auto row = [&first = x(i, 0)] { return &first; }();", ""),
    ("auto row = at(x(i, 0));", "template <class E> const E* at(const E& v) { return &v; }"),
    (
        "auto row = at(x(i, 0));",
        (
            "template <class E> const E* up(const E& v) { return &v; }\n"
            "template <class E> const E* at(const E& v) { return up(v); }"
        ),
    ),
    ("auto row = START(i);", "#define START(i) &x(i, 0)"),
]
NOT_TAKEN = [
    "for (int64_t j = 0; j < x.size(1); ++j) sum += x(i, j);",
    "const T& first = x(i, 0); sum = first * first;",
    "T first = x(i, 0); T* p = &first; sum = *p;",
    "sum = std::max(x(i, 0), x(i, 1)) + twice(x(i, 0)) + (x(i, 0) > 0 & x(i, 1) > 0);",
    "std::vector<T> row; row.push_back(x(i, 0)); sum = *row.data();",
    "std::array<T, 2> pair = {x(i, 0), x(i, 1)}; sum = pair[0];",
    "auto half = [](const T& v) { return v / 2; }; sum = half(x(i, 0));",
]


@pytest.mark.parametrize(("body", "before"), TAKEN)
def test_an_argument_whose_elements_address_is_taken_must_be_contiguous(body, before):
    found = argument(body + SUM, before)
    assert found.contiguous


@pytest.mark.parametrize("body", NOT_TAKEN)
def test_elements_as_values_admit_any_strides(body):
    before = "template <class E> E twice(const E& v) { return v + v; }"
    assert not argument(body, before).contiguous


def test_a_row_pointer_is_refused_a_transposed_view_and_right_on_its_copy():
    text = ROWS.replace("BODY", TAKEN[0][0] + SUM).replace("BEFORE", "")
    report = tpkernel.build(text.replace("EXTRA", ""))
    assert report.ok, str(report)
    x = tp.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]).T
    with pytest.raises(ValueError, match=r"\[addresses::rows\] argument 'x': .*contiguous"):
        report.module.rows(x)
    assert report.module.rows(x.contiguous()).tolist() == [9.0, 12.0]
    guards = dict(report.operators[0].guards)
    assert "contiguous" in guards["x"]
    assert "line 10 takes the address of an element" in guards["x"]
    copying = tpkernel.build(text.replace("EXTRA", "layout: copy"))
    assert copying.module.rows(x).tolist() == [9.0, 12.0]


def test_layout_strided_says_why_it_is_refused():
    with pytest.raises(CellError, match="goes on from the address of an element"):
        argument(TAKEN[0][0] + SUM, "", "layout: strided")


def test_layout_contiguous_overrules_the_indexing():
    assert not argument(NOT_TAKEN[0]).contiguous
    found = argument(NOT_TAKEN[0], "", "layout: contiguous")
    assert found.contiguous
    assert "layout: contiguous" in found.because
