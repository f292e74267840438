"""Kernels that take the data pointer: strided views are admitted where it steps by strides."""

from __future__ import annotations

import numpy as np
import pytest

import tensorplay as tp
import tpkernel
from tensorplay.library.modules.spec import Argument
from tpkernel.cells.cell import parse_cell
from tpkernel.cells.reading import read_cell

ROWS = """\
/*---
op: strides::rows(Tensor x) -> Tensor
shape: {x: [n, m], out: [n]}
---*/
struct V4 { float a, b, c, d; };
#define FIRST(p, i, s) p[i]
template <typename T> T along(const T* p, int64_t n, int64_t s) {
  T sum = 0;
  for (int64_t j = 0; j < n; ++j) sum += p[j * s];
  return sum;
}
template <typename T> T together(const T* p, int64_t n, int64_t s) {
  T sum = s ? 0 : 1;
  for (int64_t j = 0; j < n; ++j) sum += p[j];
  return sum;
}
template <typename T> T through(const T* p, int64_t n, int64_t s) { return together(p, n, s); }
template <typename T> const T* at(const T* p, int64_t i, int64_t s) { return p + i * s; }
template <typename T> const T* next(const T* p, int64_t i, int64_t s) { return s ? p + i : p; }
template <typename T> T value(const T* p) { return *p; }
int64_t offset(int64_t i, int64_t s) { return i * s; }
int64_t place(int64_t i, int64_t s) { s = 1; return i * s; }
template <typename T> void rows(tp::In<T, 2> x, tp::Out<T, 1> out) {
  for (int64_t i = 0; i < x.size(0); ++i) {
    T sum = 0;
    BODY
    out(i) = sum;
  }
}
"""
LOOP = "for (int64_t j = 0; j < x.size(1); ++j) "
ROW = "const T* row = x.data() + i * x.stride(0); "


def argument(body: str) -> Argument:
    return read_cell(parse_cell(ROWS.replace("BODY", body))).operators[0].kernel.arguments[0]


BY_STRIDES = [
    LOOP + "sum += x.data()[i * x.stride(0) + j * x.stride(1)];",
    LOOP + "sum += *(x.data() + i * x.stride(-2) + j * x.stride(-1));",
    "const auto s = x.stride(0), t = x.stride(1); auto p = x.data(); "
    + LOOP
    + "sum += p[i * s + j * t];",
    "int64_t s[2]; for (int d = 0; d < 2; ++d) s[d] = x.stride(d); "
    + LOOP
    + "sum += x.data()[i * s[0] + j * s[1]];",
    ROW + LOOP + "{ sum += *row; row += x.stride(1); }",
    ROW + LOOP + "sum += row[j * x.stride(1)];",
    ROW + "auto same = (const T*)row; T* q; q = (T*)same; " + LOOP + "sum += q[j * x.stride(1)];",
    "auto p = reinterpret_cast<const char*>(x.data()); " + LOOP + "sum += *(const T*)"
    "(p + (i * x.stride(0) + j * x.stride(1)) * sizeof(T));",
    ROW + "const T* q = &row[x.stride(1)]; sum += *row + *q;",
    "sum += dot(x.data() + i * x.stride(0), x.stride(1));",
    "if (x.stride(1) == 1) { " + ROW + LOOP + "sum += row[j]; }",
    ROW + LOOP + "{ const T v = row[j * x.stride(1)]; sum += v + 1; }",
    "auto p = x.data(); if (p != nullptr) " + LOOP + "sum += p[i * x.stride(0) + j * x.stride(1)];",
]
STRIDES = "const auto s = x.stride(0), t = x.stride(1); const T* p = x.data(); "
BY_STRIDES += [
    # functions of the text, by what they do
    "sum = along(x.data() + i * x.stride(0), x.size(1), x.stride(1));",
    STRIDES + LOOP + "sum += value(p + i * s + j * t);",
    STRIDES + LOOP + "sum += *at(at(p, i, s), j, t);",
    STRIDES + LOOP + "sum += at(p, i, s)[j * t];",
    STRIDES + "const T* q = at(p, i, s); " + LOOP + "sum += q[offset(j, t)];",
    STRIDES + "auto o = [&](int64_t j) { return i * s + j * t; }; " + LOOP + "sum += p[o(j)];",
    STRIDES + "auto o = [](int64_t k, int64_t u) { return k * u; }; "
    "for (int64_t j = 0; j < x.size(1); ++j) sum += p[o(i, s) + o(j, t)];",
    STRIDES + "auto f = [](const T* q, int64_t u) { return q[u]; }; sum = f(p + i * s, t);",
    # numbers that stay steps
    STRIDES + "if (t == 1) " + LOOP + "sum += p[i * s + j];",
    STRIDES + LOOP + "sum += p[(i + 1) * s - (2 - j) * t];",
    STRIDES + "int64_t k = 0; " + LOOP + "{ sum += p[i * s + k]; k += t; }",
    STRIDES + "int64_t k = i * s; for (int64_t j = 0; j < x.size(1); ++j, k += t) sum += p[k];",
    STRIDES + "const int64_t u = x.size(1) == 1 ? 0 : t; " + LOOP + "sum += p[i * s + j * u];",
    "std::vector<int64_t> s(2); for (int d = 0; d < 2; ++d) s[d] = x.stride(d); "
    + LOOP
    + "sum += x.data()[i * s[0] + j * s[1]];",
    "const int64_t s[2] = {x.stride(0), x.stride(1)}; sum = x.data()[i * s[0] + s[1]];",
    STRIDES + "const auto u = static_cast<int>(t); " + LOOP + "sum += p[i * s + j * u];",
]
ASKS = "(void)x.stride(0); (void)x.stride(1); "
FLAT = [
    # a stride of one dimension, the other taken for granted
    LOOP + "sum += x.data()[i * x.stride(0) + j];",
    LOOP + "sum += *(x.data() + i * x.stride(0) + j);",
    ROW + "sum = std::accumulate(row, row + x.size(1), T(0));",
    "auto p = x.data(); sum = std::accumulate(p + i * x.stride(0), p + i * x.stride(0) + 3, T(0));",
    ROW + "(void)x.stride(1); ++row; sum = *row;",
    "if (x.stride(1) == 0) return; " + ROW + LOOP + "sum += row[j];",
    # casts
    "auto* p = (float*)x.data(); sum = p[i];",
    ASKS + "auto* p = (T*)x.data(); sum = p[i];",
    ASKS + "auto* p = static_cast<const T*>(x.data()); sum = *(p + i);",
    ASKS + "auto u = (uintptr_t)x.data(); u += 4; sum = *(T*)u;",
    ASKS + "auto u = reinterpret_cast<uintptr_t>(x.data()); sum = *(T*)(u + 4 * i);",
    ASKS + "auto p = (const V4*)x.data(); sum = p->b;",
    ASKS + "auto v = *reinterpret_cast<const V4*>(x.data()); sum = v.a;",
    ASKS + "sum = *(double*)(x.data() + i * x.stride(0) + x.stride(1));",
    ASKS + "const T (*m)[3] = (const T (*)[3])x.data(); sum = m[i][0];",
    # copies
    ASKS + "float* q = x.data(); sum = q[i];",
    ASKS + "T* q; q = x.data(); auto r = q; r++; sum = *r;",
    ASKS + "T *q, *r; r = q = x.data(); sum = r[i];",
    ASKS + "const T* q = x.data(); q += 1; sum = *q;",
    ASKS + "T* q = x.data(); q -= 3; sum = *q;",
    ASKS + "const T* q{x.data()}; sum = q[i];",
    ASKS + "const T* q(x.data()); sum = q[i];",
    ASKS + "auto it = x.begin(); it += i; sum = *it;",
    ASKS + "const T* q = i ? x.data() : nullptr; sum = q[i];",
    ASKS + "const T* q = x.data(); const T** pp = &q; sum = (*pp)[i];",
    ASKS + "const T* q = x.data(); auto& r = q; ++r; sum = *r;",
    # kept elsewhere, or handed on
    ASKS + "const T* all[1]; all[0] = x.data(); sum = all[0][i];",
    ASKS + "const T* all[1] = {x.data()}; sum = all[0][i];",
    ASKS + "struct P { const T* p; }; P p; p.p = x.data(); sum = p.p[i];",
    ASKS + "struct P { const T* p; }; P p = P{x.data()}; sum = p.p[i];",
    ASKS + "auto f = [q = x.data()](int64_t j) { return q[j]; }; sum = f(i);",
    ASKS + "auto f = [&] { return x.data(); }; sum = f()[i];",
    ASKS + "auto q = std::next(x.data(), i); sum = *q;",
    ASKS + "std::memcpy(&sum, x.data(), sizeof(T));",
    "(void)x.stride(1); sum = first(x.data() + i * x.stride(0));",
    # spelled in other ways
    ASKS + "sum = x.data()[i];",
    ASKS + "sum = i[x.data()];",
    ASKS + "sum = *(i + x.data());",
    ASKS + "sum = *&x.data()[i];",
    ASKS + "const T& r = x.data()[i * x.stride(0)]; sum = (&r)[1];",
]
FLAT += [
    # numbers that depend on strides, and are none
    STRIDES + "const int64_t k = s > 0 ? 1 : -1; sum = p[i * k];",
    STRIDES + "const int64_t k = s == 1 ? 1 : x.size(1); sum = p[i * k];",
    STRIDES + "const int64_t k = t > 1 ? t : 1; sum = p[i * s + k];",
    STRIDES + LOOP + "sum += p[i * s + j] + p[t];",
    STRIDES + "sum = p[s > t];",
    STRIDES + "sum = p[!s + (t && s)];",
    STRIDES + "sum = p[i % s];",
    STRIDES + "sum = p[std::max<int64_t>(t, 1)];",
    STRIDES + "sum = p[sizeof(s)];",
    STRIDES + "for (int64_t k = s * (x.size(0) - 1); k >= 0; --k) sum += p[k];",
    STRIDES + "int64_t k = s; k = 1; sum = p[k];",
    STRIDES + "int64_t k = s; k += 1; sum = p[k];",
    STRIDES + "int64_t k = s * i; k /= 2; sum = p[k];",
    STRIDES + "int64_t k[2] = {s, t}; k[1] = 1; sum = p[i * k[0] + k[1]];",
    STRIDES + "int64_t k[2] = {s, 1}; sum = p[i * k[0] + k[1]];",
    STRIDES + "const T* q = p + i * s; sum = p[(int64_t)q[t]];",
    # functions of the text that do not go by what they are handed
    "sum = together(x.data() + i * x.stride(0), x.size(1), x.stride(1));",
    "sum = through(x.data() + i * x.stride(0), x.size(1), x.stride(1));",
    "sum = along(x.data() + i * x.stride(0), x.stride(1), 1);",
    STRIDES + "sum = *next(p, i, s);",
    STRIDES + "sum = at(p, i, s)[1];",
    STRIDES + "sum = p[place(i, s) + place(1, t)];",
    STRIDES + "sum = p[offset(i, 1)];",
    STRIDES + "auto f = [](const T* q, int64_t u) { return q[u > 0]; }; sum = f(p + i * s, t);",
    STRIDES + "auto o = [](int64_t k, int64_t u) { return u ? k : 0; }; sum = p[o(i, s)];",
    STRIDES + "auto o = [&](int64_t j) { return s > t ? j : 0; }; sum = p[o(i)];",
    STRIDES + "sum = FIRST(p, i, s);",
]


@pytest.mark.parametrize("body", BY_STRIDES)
def test_a_pointer_that_goes_by_strides_admits_any(body: str) -> None:
    assert not argument(body).contiguous


@pytest.mark.parametrize("body", FLAT)
def test_any_other_use_of_the_pointer_asks_for_contiguous_memory(body: str) -> None:
    assert argument(body).contiguous


@pytest.mark.parametrize(
    "cast",
    [
        "auto& r = (const T&)x(i, 0);",
        "auto& r = const_cast<T&>(x(i, 0));",
        "auto& r = static_cast<const T&>(x(i, 0));",
        "auto& r = std::as_const(x(i, 0));",
        "auto&& r = std::move(x(i, 0));",
        "auto& r = reinterpret_cast<const V4&>(x(i, 0));",
    ],
)
def test_a_reference_that_a_cast_makes_of_an_element_is_an_address(cast: str) -> None:
    found = argument(cast + " sum += (&r)[1];")
    assert found.contiguous
    assert "takes the address of an element" in found.because


def test_casts_of_elements_to_values_admit_any_strides() -> None:
    body = "sum += static_cast<double>(x(i, 0)) + double(x(i, 1)) + (double)x(i, 2);"
    assert not argument(body).contiguous


def test_an_engine_view_needs_the_strides_of_the_dimensions_whose_sizes_it_asks_for() -> None:
    text = """\
void total(tvm::ffi::TensorView x, tvm::ffi::TensorView out) {
  auto* p = static_cast<const float*>(x.data_ptr());
  float sum = 0;
  for (int64_t i = 0; i < x.size(0); ++i)
    for (int64_t j = 0; j < x.size(1); ++j) sum += p[i * x.stride(0) + INDEX];
  static_cast<float*>(out.data_ptr())[0] = sum;
}
"""
    flat = read_cell(parse_cell(text.replace("INDEX", "j"))).functions[0]
    right = read_cell(parse_cell(text.replace("INDEX", "j * x.stride(1)"))).functions[0]
    assert [flat.arguments[0].contiguous, right.arguments[0].contiguous] == [True, False]


def test_what_is_admitted_is_right_and_what_is_refused_says_what_to_write() -> None:
    x = tp.from_numpy(np.arange(12.0).reshape(3, 4)).T
    right = tpkernel.build(ROWS.replace("BODY", BY_STRIDES[0]), checks=False).module.rows
    assert right(x).tolist() == x.sum(1).tolist()
    wrong = tpkernel.build(ROWS.replace("BODY", FLAT[0]), checks=False).module.rows
    with pytest.raises(ValueError, match=r"\[strides::rows\] argument 'x': .*x\.contiguous\(\)"):
        wrong(x)
    assert wrong(x.contiguous()).tolist() == x.sum(1).tolist()
