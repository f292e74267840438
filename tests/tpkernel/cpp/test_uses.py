"""Whether a kernel may write an argument: only what is known to read lets read-only arrays in."""

from __future__ import annotations

import numpy as np
import pytest

import tensorplay as tp
import tpkernel
from tensorplay.library.modules.spec import Argument
from tpkernel.cells.cell import parse_cell
from tpkernel.cells.reading import Options, read_cell

POINTER = "float* p = static_cast<float*>(x.data_ptr()); "
CONSTANT = "const float* p = static_cast<const float*>(x.data_ptr()); "


def writes(body: str, before: str = "", result: str = "void") -> bool | None:
    text = f"{before}\n{result} f(tvm::ffi::TensorView x, int64_t n, double c) {{ {body} }}\n"
    functions = read_cell(parse_cell(text), Options()).functions
    return next(k for k in functions if k.name == "f").arguments[0].writes


WRITES = [
    "p[0] = 1;",
    "p[0] += 1;",
    "++p[0];",
    "*p = 1;",
    "*p++ = 1;",
    "*(p + n) = 1;",
    "(float&)p[0] = 3;",
    "(c ? p[0] : p[1]) = 3;",
    "(n, p[0]) = 3;",
    "(c ? p : p + 1)[0] = 3;",
    "float* q = p + 1; q[0] = 3;",
    "float* q; q = p; *q = 3;",
    "auto& q = p; q[0] = 3;",
    "std::swap(p[0], p[1]);",
    "std::memcpy(p, &c, 4);",
    "std::fill(p, p + n, 0.0f);",
    "auto g = [&](int64_t i) { p[i] = 1; }; g(0);",
    "auto g = [p](int64_t i) { p[i] = 1; }; g(0);",
    "for (float* q = p; q != p + n; ++q) *q = 0;",
]
UNKNOWN = [
    "std::tie(p[0], p[1]) = std::make_pair(1.f, 2.f);",
    "auto& r{p[0]}; r = 3;",
    "auto& r = p[0]; r = 3;",
    "auto&& r = p[0]; r = 3;",
    "decltype(auto) r = (p[0]); r = 3;",
    "decltype((p[0])) r = p[0]; r = 3;",
    "using R = float&; R r = p[0]; r = 3;",
    "auto s = std::ref(p[0]); s.get() = 3;",
    "std::reference_wrapper<float> s = p[0]; s.get() = 3;",
    "std::vector<std::reference_wrapper<float>> v; v.push_back(p[0]);",
    "std::tuple<float&> t{p[0]}; std::get<0>(t) = 3;",
    "const_cast<float*>(p)[0] = 3;",
    "std::for_each(p, p + n, [](float& v) { v = 1; });",
    "auto set = [](float& v) { v = 1; }; set(p[0]);",
    "auto set = [](auto& v) { v = 1; }; set(p[0]);",
    "auto exp = [](float& v) { v = 1; }; exp(p[0]);",
    "auto at = [&](int64_t i) -> float& { return p[i]; }; at(0) = 3;",
    "auto at = [&](int64_t i) -> decltype(auto) { return (p[i]); }; at(0) = 3;",
    "auto g = [&r = p[0]] { r = 3; }; g();",
    "float* q = &p[0]; *q = 3;",
    "float** q = &p; **q = 3;",
    "elsewhere(p);",
    "elsewhere(p + n);",
    "elsewhere(p[0]);",
    "elsewhere(&p[0]);",
    "take(p[0]);",
    "std::cin >> p[0];",
    "static_cast<float&>(p[0]) = 3;",
    "*(uint32_t*)p = 3;",
    "*reinterpret_cast<uint32_t*>(p) = 3;",
    "n[p] = 3;",
    "struct S { float& r; }; S s(p[0]); s.r = 3;",
    "std::tuple<float*> t(p); *std::get<0>(t) = 3;",
    "std::span<float> s(p, n); s[0] = 3;",
    "*std::max_element(p, p + n) = 3;",
    "std::accumulate(p, p + n, 0.f, [](float a, float& b) { b = 0; return a; });",
    "std::max<float&>(p[0], p[1]) = 3;",
    "struct S { float& r; }; S s{p[0]}; s.r = 3;",
    "float* all[1] = {p}; all[0][0] = 3;",
    'asm volatile("" : : "r"(p) : "memory");',
    "SET(p[0]);",
    "ALIAS[0] = 3;",
    "tvm::ffi::TensorView y = x; static_cast<float*>(y.data_ptr())[0] = 3;",
    "for (auto& v : std::vector<float*>{p}) *v = 3;",
]
BEFORE = (
    "#define SET(v) (v) = 3\n#define ALIAS p\n"
    "static void take(float v) {}\nstatic void take(float& v) { v = 1; }\n"
)
READS = [
    "double s = 0; for (int64_t i = 0; i < n; ++i) s += p[i];",
    "double s = 0; for (int64_t i = 0; i < n; ++i) s += p[i] * p[i] - p[i] / 2;",
    "float m = p[0]; for (int64_t i = 1; i < n; ++i) if (p[i] > m) m = p[i];",
    "const float v = p[0]; auto w = p[1]; float u = -p[2], t = p[3];",
    "const auto& v = p[0]; const float& w{p[1]};",
    "float v{p[0]}; float w(p[1]); float u[2] = {p[0], p[1]};",
    "std::vector<float> v{p[0], p[1]}; std::array<float, 1> a = {p[0]};",
    "std::vector<float> v(p, p + n);",
    "std::vector<float> v; v.push_back(p[0]);",
    "double s = std::exp(p[0]) + log1p(p[1]) + std::max(p[0], p[1]) + fabsf(p[2]);",
    "auto s = static_cast<double>(p[0]) + double(p[1]) + (float)p[2] + float{p[3]};",
    "auto s = c > 0 ? p[0] : p[1];",
    "auto s = p[0] > 0 ? p[1] : -p[1];",
    "if (p[0]) return; while (*p) ++p; do {} while (p[0] != 0);",
    "switch (static_cast<int>(p[0])) { default: break; }",
    "for (const float* q = p; q != p + n; ++q) c += *q;",
    "for (float *q = p, *end = p + n; q < end; q++) c += *q;",
    "auto at = [&](int64_t i) { return p[i]; }; c = at(0);",
    "auto g = [p](int64_t i) -> float { return p[i]; }; c = g(0);",
    "auto sq = [](float v) { return v * v; }; c = sq(p[0]);",
    "auto sq = [](const auto& v) { return v * v; }; c = sq(p[0]);",
    "parallel_for(0, n, [&](int64_t i) { c += p[i]; });",
    "std::memcpy(&c, p, 4);",
    "c = std::accumulate(p, p + n, 0.0);",
    "c = sum(p, n) + half(p[0]);",
    "c = SQUARE(p[0]) + LARGER(p[0], p[1]) * TWO;",
    'std::printf("%f", p[0]); std::cout << p[0];',
    "int64_t count = (p + n) - p; c = other(count);",
    "float* row = p + n * 2; c = row[0];",
    "std::complex<float> z(p[0], p[1]); c = std::complex<float>(p[0], 0).real();",
    "(void)p[0]; (void)p;",
    "int64_t table[4] = {}; c = table[static_cast<int64_t>(p[0])];",
]
BEFORE_READING = (
    "#define SQUARE(v) ((v) * (v))\n#define LARGER(a, b) ((a) > (b) ? (a) : (b))\n#define TWO 2.0\n"
    "static double sum(const float* p, int64_t n) { return p[0]; }\n"
    "static double half(double v) { return v / 2; }\nstatic double half(const float& v) "
    "{ return v / 2; }\n"
)


@pytest.mark.parametrize("body", WRITES)
def test_what_writes(body):
    assert writes(POINTER + body) is True


@pytest.mark.parametrize("body", UNKNOWN)
def test_what_may_write(body):
    assert writes(POINTER + body, BEFORE) is None


@pytest.mark.parametrize("body", READS)
def test_what_reads(body):
    assert writes(POINTER + body, BEFORE_READING) is False


@pytest.mark.parametrize(
    "body",
    [
        "const_cast<float*>(p)[0] = 3;",
        "((float*)p)[0] = 3;",
        "using F = float*; F(p)[0] = 3;",
        "using F = float*; ((F)p)[0] = 3;",
        "*reinterpret_cast<float*>(reinterpret_cast<uintptr_t>(p)) = 3;",
        "std::bit_cast<float*>(p)[0] = 3;",
    ],
)
def test_a_promise_of_const_does_not_count_where_a_cast_may_break_it(body):
    assert writes(CONSTANT + "c = p[0];") is False
    assert writes(CONSTANT + body) is None
    text = f"template <class T> void g(tp::In<T> y, tp::Out<T> out) {{ auto p = y.data(); {body} }}"
    (op,) = read_cell(parse_cell(text), Options()).operators
    assert op.kernel.arguments[0].writes is None


def test_results_by_reference():
    assert writes(POINTER + "return p[0];", result="double") is False
    text = (
        "static float& at(tvm::ffi::TensorView y) { return static_cast<float*>(y.data_ptr())[0]; }"
    )
    assert writes("at(x) = 3;", text) is None


VIEWS = "template <class T> void f(tp::In<T> x, tp::Out<T> out) {{ {} }}"
PLAIN = "void f(tvm::ffi::TensorView x, int64_t n, double c) {{ {} }}"


def argument(text: str, name: str = "x") -> Argument:
    (kernel,) = (k for k in read_cell(parse_cell(text), Options()).kernels if k.name == "f")
    return next(a for a in kernel.arguments if a.name == name)


@pytest.mark.parametrize(
    "text",
    [
        "#define X(i) x[i]\n" + VIEWS.format("out[0] = X(0) + x(1);"),
        "#define X x\n" + VIEWS.format("out[0] = X[0];"),
        '#include "mine.h"\n' + VIEWS.format("out[0] = X(0);"),
        VIEWS.format("(void)x.stride(0); for (int64_t i = 0; i < 9; ++i) out[i] = x[i];"),
        VIEWS.format("out[0] = x.operator[](0) + x(0);"),
        VIEWS.format("auto* p = x.data(); out[0] = p[3] + x(0);"),
        PLAIN.format(POINTER + 'std::printf("%ld", x.stride(0)); c = p[n];'),
        PLAIN.format(POINTER + "if (x.stride(0) == 1) c = p[n];"),
        PLAIN.format(POINTER + "auto* row = p + n * x.stride(0); c = row[n];"),
        PLAIN.format(POINTER + "for (; n; --n) c += *p++; c += p[x.stride(0)];"),
        PLAIN.format(POINTER + "c = std::accumulate(p, p + n, 0.0) + p[x.stride(0)];"),
        PLAIN.format(CONSTANT + "auto v = x; c = p[n * x.stride(0)] + elsewhere(v);"),
    ],
)
def test_strides_are_admitted_only_where_every_access_goes_by_them(text):
    assert argument(text).contiguous


@pytest.mark.parametrize(
    "text",
    [
        VIEWS.format("out[0] = x(0) + x.size(0);"),
        VIEWS.format("out[0] = x.data()[3 * x.stride(0)];"),
        PLAIN.format(POINTER + "c = p[n * x.stride(0)];"),
        PLAIN.format(POINTER + "auto s = x.strides(); c = p[n * s[0] + n * s[1]] + p[0];"),
        PLAIN.format(POINTER + "const int64_t s = x.stride(0); c = *(p + n * s);"),
        PLAIN.format(CONSTANT + "const int64_t s = x.stride(0); for (; n; --n, p += s) c += *p;"),
        PLAIN.format(CONSTANT + "int64_t at = 0; at += n * x.stride(0); c = p[at];"),
        PLAIN.format(CONSTANT + "int64_t s[2]; s[0] = x.stride(0); c = p[n * s[0]];"),
        PLAIN.format(
            CONSTANT + "auto at = [&](int64_t i) { return i * x.stride(0); }; c = p[at(n)];"
        ),
        PLAIN.format(
            CONSTANT + "if (x.stride(1) != 1) throw 1; auto* row = p + n * x.stride(0); c = row[n];"
        ),
    ],
)
def test_strides_are_admitted_where_the_kernel_goes_by_them(text):
    assert not argument(text).contiguous


def test_a_parameter_without_a_visible_mention_may_be_written():
    text = "#define XD static_cast<float*>(x.data_ptr())\n" + PLAIN.format("XD[0] = 1;")
    x = argument(text)
    assert (x.writes, x.contiguous, x.untyped) == (None, True, True)
    x = argument(PLAIN.format("c = n;"))
    assert (x.writes, x.contiguous) == (None, True)


@pytest.mark.parametrize(
    "use",
    [
        "DLDataType dt = x.dtype(); auto t = make(dt);",
        "auto t = tvm::ffi::Tensor::FromEnvAlloc(Alloc, x.shape(), x.dtype(), x.device());",
        "DLDataType dt; dt = x.dtype(); auto t = make(dt); (void)dt.bits;",
        "int bits = x.dtype().bits; c = bits;",
    ],
)
def test_a_dtype_that_is_only_handed_on_leaves_the_guard(use):
    assert argument(PLAIN.format(POINTER + use + " c = p[0];")).dtypes == ("float32",)


@pytest.mark.parametrize(
    "use",
    [
        "if (x.dtype().bits != 32) throw 1;",
        "DLDataType dt = x.dtype(); if (dt.code != kDLFloat) throw 1;",
        "auto [code, bits, lanes] = x.dtype(); if (bits != 32) throw 1;",
        "switch (x.dtype().code) { default: break; }",
        "TVM_FFI_ICHECK(x.dtype() == make());",
        "TVM_FFI_ICHECK_EQ(x.dtype().bits, 32);",
        "if (is_float(x.dtype())) c = 1;",
        "if (!is_float(x.dtype())) throw 1;",
        "int bits = int(x.dtype().bits); c = bits == 32 ? 1 : 2;",
    ],
)
def test_a_kernel_that_looks_at_the_dtype_decides_itself(use):
    assert argument(PLAIN.format(POINTER + use + " c = p[0];")).dtypes == ()


@pytest.mark.parametrize(
    "body",
    [
        "void* p = x.data_ptr(); c = ((float*)p)[0];",
        "auto p = x.data_ptr(); c = static_cast<const float*>(p)[0];",
        "using F = float; c = ((F*)x.data_ptr())[0];",
        "using FP = float*; c = ((FP)x.data_ptr())[0];",
        "typedef float F; F* p = static_cast<F*>(x.data_ptr()); c = p[0];",
        "c = P<float>(x)[0];",
        "c = Q<double, float>(x)[0];",
    ],
)
def test_casts_are_followed_through_names(body):
    text = (
        "template <typename T> static T* P(tvm::ffi::TensorView a) "
        "{ return static_cast<T*>(a.data_ptr()); }\n"
        "template <typename S, typename T> static T* Q(tvm::ffi::TensorView a) "
        "{ return P<T>(a); }\n"
    )
    assert argument(text + PLAIN.format(body)).dtypes == ("float32",)


TIE = """\
#include <tuple>
void set(tvm::ffi::TensorView a) {
  float* p = static_cast<float*>(a.data_ptr());
  std::tie(p[0], p[1]) = std::make_pair(1.f, 2.f);
}
"""


def test_read_only_memory_survives_a_kernel_that_writes_in_disguise():
    frozen = np.zeros(4, np.float32)
    frozen.flags.writeable = False
    plain = tpkernel.build(TIE, checks=False)
    with pytest.raises(ValueError, match="kernel may write it, got a read-only array"):
        plain.module.set(frozen)
    assert "possibly written" in plain.to_text()
    text = """\
/*---
op: uses::set(Tensor a) -> Tensor
---*/
#include <tuple>
void set(tvm::ffi::TensorView a, tvm::ffi::TensorView out) {
  float* p = static_cast<float*>(a.data_ptr());
  float* q = static_cast<float*>(out.data_ptr());
  std::tie(p[0], p[1]) = std::make_pair(1.f, 2.f);
  q[0] = p[0];
}
"""
    operator = tpkernel.build(text, checks=False).module.set
    with pytest.raises(ValueError, match=r"\[uses::set\] argument 'a'.*may write it"):
        operator(frozen)
    assert (frozen == 0).all()
    assert operator(tp.zeros(4)).tolist()[0] == 1.0
