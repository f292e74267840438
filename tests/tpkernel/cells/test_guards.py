"""What stands before a kernel: each refusal names function, argument, expected, got, next step."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import tensorplay as tp
import tpkernel
from tensorplay.utils import cpp_jit
from tests.tpkernel.shell import ADD1, MATMUL, SOFTPLUS


@pytest.fixture(scope="module")
def add1():
    return tpkernel.build(ADD1, "guards", checks=False).module.add1


@pytest.fixture(scope="module")
def copying():
    return tpkernel.build(ADD1, "copying", contiguous="copy", checks=False).module.add1


@pytest.fixture(scope="module")
def mm():
    return tpkernel.build(MATMUL, checks=False).module.mm


@pytest.fixture(scope="module")
def softplus():
    return tpkernel.build(SOFTPLUS, checks=False).module.softplus


def refusal(call, *args, kind=ValueError, **kwargs) -> str:
    with pytest.raises(kind) as caught:
        call(*args, **kwargs)
    return str(caught.value)


def test_a_float64_array_in_a_float32_kernel(add1):  # B010
    out = np.full(4, -1.0)
    text = refusal(add1, np.arange(4.0), out, kind=TypeError)
    assert text == (
        "[add1] argument 'x': expected float32 on cpu, got float64 on cpu. Write x.float(), or "
        "x.astype('float32') for a NumPy array."
    )
    assert (out == -1).all()
    text = refusal(add1, np.arange(4, dtype=np.float32), out, kind=TypeError)
    assert "argument 'out'" in text
    assert "a cast would receive the result" in text
    assert (out == -1).all()


@pytest.mark.parametrize("dtype", [tp.float8_e5m2, tp.float8_e4m3fn], ids=str)
def test_types_beyond_those_of_kernels_have_their_names(add1, dtype):
    text = refusal(add1, tp.ones(4).to(dtype), np.zeros(4, np.float32), kind=TypeError)
    name = str(dtype).removeprefix("tensorplay.")
    assert text.startswith(f"[add1] argument 'x': expected float32 on cpu, got {name} on cpu.")


VIEWS = [lambda x: x[::2], lambda x: x[:4][::-1], lambda x: x.reshape(4, 2)[:, 1]]


@pytest.mark.parametrize("view", VIEWS)
def test_strided_inputs_are_refused_or_copied(add1, copying, view):  # B003
    x = view(np.arange(8, dtype=np.float32))
    out = np.zeros(4, np.float32)
    text = refusal(add1, x, out)
    assert "argument 'x'" in text
    assert "strides (" in text
    assert "contiguous" in text
    assert (out == 0).all()
    copying(x, out)
    assert (out == x + 1).all()
    copying(tp.from_numpy(x.copy()), out)
    assert (out == x + 1).all()


def test_strided_outputs_are_never_copied(add1, copying):
    out = np.zeros(8, np.float32)
    for call in (add1, copying):
        text = refusal(call, np.ones(4, np.float32), out[::2])
        assert "argument 'out'" in text


@pytest.mark.parametrize("shape", [(1, 5), (4, 0, 4), (), (5, 1), (1, 1, 1)])
def test_odd_strides_of_dimensions_that_do_not_matter_pass(add1, shape):
    x = np.lib.stride_tricks.as_strided(
        np.ones(64, np.float32), shape, [4 * 7 if n <= 1 else 4 for n in shape]
    )
    out = np.zeros(shape, np.float32)
    add1(x, out)
    assert (out == 2).all()


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_any_view_gives_the_right_answer_or_a_named_refusal(copying, data):
    base = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    view = base.transpose(data.draw(st.permutations(range(3))))
    for axis in range(3):
        start = data.draw(st.integers(0, view.shape[axis] - 1))
        step = data.draw(st.sampled_from([1, 2, -1]))
        view = np.take(view, [0], axis) if data.draw(st.booleans()) else view
        index = [slice(None)] * 3
        index[axis] = slice(start if start < view.shape[axis] else 0, None, step)
        view = view[tuple(index)]
    out = np.zeros(view.shape, np.float32)
    copying(view, out)
    np.testing.assert_array_equal(out, view + 1)


def test_read_only_inputs_are_read_and_read_only_outputs_refused(add1):  # B026
    frozen = np.ones(4, np.float32)
    frozen.flags.writeable = False
    out = np.zeros(4, np.float32)
    add1(frozen, out)
    assert (out == 2).all()
    assert not frozen.flags.writeable
    text = refusal(add1, out, frozen)
    assert "argument 'out'" in text
    assert "read-only" in text
    assert "out.copy()" in text
    assert (frozen == 1).all()
    assert "argument 'x'" in refusal(add1, np.broadcast_to(np.float32(2), (4,)), out)


def test_a_tensor_that_requires_grad_has_two_ways_in(add1):  # B037
    x, out = tp.ones(4, requires_grad=True), tp.zeros(4)
    text = refusal(add1, x, out, kind=RuntimeError)
    for word in ("argument 'x'", "requires grad", "x.detach()", "no_grad", "op:"):
        assert word in text
    with tp.no_grad():
        add1(x, out)
    assert out.tolist() == [2.0] * 4


def test_a_kernel_that_writes_a_tensor_counts_as_a_change_in_place(add1):
    w = tp.ones(4, requires_grad=True)
    x = tp.ones(4)
    y = (w * x).sum()
    version = x._version
    add1(tp.zeros(4), x)
    assert x._version == version + 1
    with pytest.raises(RuntimeError, match="modified"):
        y.backward()
    with pytest.raises(TypeError):
        add1(tp.zeros(4).double(), x)
    assert x._version == version + 1


def test_a_kernel_that_may_write_or_stops_midway_counts_as_a_change_in_place():
    text = (
        "#include <stdexcept>\n"
        "void half(tvm::ffi::TensorView x) { float* p = static_cast<float*>(x.data_ptr());\n"
        '  p[0] = 7; throw std::runtime_error("stopped"); }\n'
        "#define P static_cast<float*>(x.data_ptr())\n"
        "void hidden(tvm::ffi::TensorView x) { P[0] = 7; }\n"
    )
    module = tpkernel.build(text, "midway", checks=False).module
    x = tp.ones(2)
    version = x._version
    module.hidden(x)
    with pytest.raises(RuntimeError, match="stopped"):
        module.half(x)
    assert x._version == version + 2


def test_a_kernel_that_returns_its_argument_is_refused():  # B044
    text = "tvm::ffi::Tensor same(tvm::ffi::Tensor x) { return x; }"
    same = tpkernel.build(text, checks=False).module.same
    for x in (tp.ones(3), np.ones(3, np.float32), tp.ones(3)[1:]):
        message = refusal(same, x, kind=RuntimeError)
        assert message.startswith("[same] result: expected memory of its own, got that of argument")
        assert "'x'" in message
    free = tpkernel.build(text, allow_alias=True, checks=False).module.same
    assert free(tp.ones(3)).tolist() == [1.0] * 3


ADDK = """\
/*---
op: q::addk(Tensor x, float k) -> Tensor
dtypes: [bool, uint8, int32, int64, float32, float64]
---*/
template <typename T> void addk(tp::In<T> x, T k, tp::Out<T> out) {
  for (int64_t i = 0; i < x.numel(); ++i) out[i] = x[i] + k;
}
"""


def test_a_number_of_template_type_fits_the_dtype_of_the_tensors():
    addk = tpkernel.build(ADDK, checks=False).module.addk
    for dtype, bad in {
        tp.uint8: [-1.0, 256, 0.5],
        tp.int32: [2.5, float("nan"), 2.0**40, -(2.0**31) - 1, float("inf")],
        tp.int64: [2.0**63, -(2.0**64)],
        tp.float32: [1e300, -1e39],
        tp.bool: [2.0],
    }.items():
        for k in bad:
            text = refusal(addk, tp.zeros(2, dtype=dtype), k)
            assert text.startswith(
                f"[q::addk] argument 'k': expected a number that {dtype.name}, as T is here, can "
                "hold, got "
            )
            assert "float64" in text
    for dtype, good in {
        tp.uint8: [0, 255.0],
        tp.int32: [-(2.0**31), 2.0**31 - 1],
        tp.int64: [-(2.0**63), 2.0**62, 7],
        tp.float32: [0.1, float("inf"), 3e38],
        tp.float64: [1e300],
    }.items():
        for k in good:
            assert addk(tp.zeros(2, dtype=dtype), k).tolist()[0] == pytest.approx(k, rel=1e-6)


def test_a_number_of_type_float_must_not_become_infinite():
    text = (
        "using real = float;\n"
        "double plain(real a) { return a; }\n"
        "void view(tp::InOut<float> x, float a) { x[0] = a; }\n"
    )
    module = tpkernel.build(text, "narrow", checks=False).module
    for call in (module.plain, lambda v: module.view(tp.zeros(1), v)):
        message = refusal(call, 1e300)
        assert "argument 'a': expected a number that float32 can hold, got 1" in message
        assert "double" in message
        call(1e38)
        call(float("inf"))
    assert module.plain(0.5) == 0.5


@pytest.mark.parametrize(
    ("value", "kind", "words"),
    [
        (2**31, ValueError, ["-2147483648 to 2147483647", "int", "got 2147483648", "int64_t"]),
        (2**70, ValueError, ["beyond 64 bits"]),
        (1.5, TypeError, ["expected int, got float", "int(n)"]),
        ("7", TypeError, ["expected int, got str"]),
        (None, TypeError, ["expected int, got None"]),
    ],
)
def test_integers_must_fit_their_cpp_type(value, kind, words):
    f = tpkernel.build("int64_t f(int n) { return n; }", "ranges").module.f
    assert f(-(2**31)) == -(2**31)
    assert f(True) == 1
    text = refusal(f, value, kind=kind)
    for word in ["[f] argument 'n'", *words]:
        assert word in text


def test_kinds_and_numbers_of_arguments(add1):
    x = np.ones(2, np.float32)
    assert "expected Tensor or NumPy array, got list. Write tp.tensor(out)." in refusal(
        add1, x, [1.0], kind=TypeError
    )
    assert "missing argument 'out'; parameters: x, out" in refusal(add1, x, kind=TypeError)
    assert "expected 2 arguments (x, out), got 3" in refusal(add1, x, x, x, kind=TypeError)
    assert "by position and by name" in refusal(add1, x, x=x, kind=TypeError)


def test_ranks_and_declared_sizes(mm):
    assert mm(tp.ones(2, 3), tp.ones(3, 4)).tolist() == [[3.0] * 4] * 2
    text = refusal(mm, tp.ones(2, 3), tp.ones(4, 4))
    assert text == (
        "[mylib::mm] argument 'w': expected size 3 in dimension 0 (k, as argument 'x' has), got 4 "
        "(shape (4, 4)). The front matter's shape declares it."
    )
    assert "expected 2 dimensions, got 1 (shape (3,))" in refusal(mm, tp.ones(2, 3), tp.ones(3))
    text = refusal(mm, tp.ones(2, 3), tp.ones(3, 4, dtype=tp.float64), kind=TypeError)
    assert "expected float32 on cpu as argument 'x', got float64" in text


def test_transposed_inputs_of_a_strided_kernel_are_right(mm):
    x, w = np.random.default_rng(0).normal(size=(2, 3, 3))
    np.testing.assert_allclose(mm(x.T, w[::-1]).numpy(), x.T @ w[::-1])


@pytest.mark.parametrize("kernel", ["x", "meta"])
def test_fake_tensors_meet_the_same_texts(mm, softplus, kernel):
    device = "meta" if kernel == "meta" else "cpu"
    got = refusal(mm, tp.ones(2, 3, device=device), tp.ones(4, 4, device=device))
    assert "expected size 3 in dimension 0 (k, as argument 'x' has), got 4" in got
    bad = tp.ones(3, dtype=tp.int64, device=device)
    text = refusal(softplus, bad, kind=TypeError)
    assert f"expected float32 or float64 on cpu, got int64 on {device}. Write x.float()" in text


def test_the_fake_kernel_gives_shape_and_dtype(mm):
    out = mm(tp.ones(2, 3, device="meta"), tp.ones(3, 5, device="meta"))
    assert out.is_meta
    assert tuple(out.shape) == (2, 5)
    assert out.dtype == tp.float32


def test_several_tensors_have_one_shape_unless_declared():
    text = """\
    template <class T> void add(tp::In<T> a, tp::In<T> b, tp::Out<T> out) {
      for (int64_t i = 0; i < a.numel(); ++i) out[i] = a[i] + b[i];
    }
    """
    add = tpkernel.build(text, "same", checks=False).module.add
    assert add(tp.ones(3), tp.ones(3)).tolist() == [2.0] * 3
    text = refusal(add, tp.ones(3), tp.ones(2))
    assert "argument 'b': expected shape (3,) as argument 'a', got (2,)" in text
    assert "shape:" in text


def test_an_operator_that_changes_its_input():
    text = """\
/*---
op: mylib::scale_(Tensor(a!) x, float s) -> ()
kernel: scale
---*/
template <class T> void scale(tp::InOut<T> x, double s) {
  for (int64_t i = 0; i < x.numel(); ++i) x[i] *= s;
}
"""
    scale_ = tpkernel.build(text).module.scale_
    x = tp.ones(3)
    assert scale_(x, 2.0) is None
    assert x.tolist() == [2.0] * 3
    array = np.ones(2)
    scale_(array, 3.0)
    assert array.tolist() == [3.0, 3.0]
    array.flags.writeable = False
    assert "argument 'x'" in refusal(scale_, array, 3.0)


def test_two_outputs_and_a_fixed_dtype():
    text = """\
/*---
op: mylib::split(Tensor x) -> (Tensor, Tensor)
shape: {x: [n], whole: [n], count: [1]}
derivatives: {x: grad_whole}
---*/
template <class T> void split(tp::In<T, 1> x, tp::Out<T, 1> whole, tp::Out<int64_t, 1> count) {
  count[0] = x.numel();
  for (int64_t i = 0; i < x.numel(); ++i) whole[i] = std::floor(x[i]) + (x[i] - std::floor(x[i]));
}
"""
    report = tpkernel.build(text)
    assert report.gradcheck_verdict == "ok", report.to_text()
    whole, count = report.module.split(tp.tensor([1.5, 2.5]))
    assert whole.tolist() == [1.5, 2.5]
    assert count.tolist() == [2]
    assert count.dtype == tp.int64


def test_an_operator_over_the_engines_own_views():
    text = """\
/*---
op: mylib::scaled(Tensor x, float factor) -> Tensor
derivatives: {x: grad * factor}
---*/
void scaled(tvm::ffi::TensorView x, double factor, tvm::ffi::TensorView out) {
  const float* from = static_cast<const float*>(x.data_ptr());
  float* to = static_cast<float*>(out.data_ptr());
  for (int64_t i = 0; i < x.numel(); ++i) to[i] = static_cast<float>(from[i] * factor);
}
"""
    report = tpkernel.build(text)
    assert report.ok, report.to_text()
    assert report.module.scaled(tp.ones(2), 3.0).tolist() == [3.0, 3.0]
    assert "expected float32 on cpu, got float64" in refusal(
        report.module.scaled, np.ones(2), 3.0, kind=TypeError
    )


def test_an_operator_whose_kernel_returns_its_result():
    text = """\
/*---
op: mylib::evens(Tensor x) -> Tensor
---*/
tvm::ffi::Tensor evens(tvm::ffi::TensorView x) {
  const int64_t n = (x.numel() + 1) / 2;
  auto t = tvm::ffi::Tensor::FromEnvAlloc(TVMFFIEnvTensorAlloc, tvm::ffi::Shape({n}), x.dtype(),
                                          x.device());
  for (int64_t i = 0; i < n; ++i)
    static_cast<float*>(t.data_ptr())[i] = static_cast<const float*>(x.data_ptr())[2 * i];
  return t;
}
"""
    report = tpkernel.build(text)
    assert report.module.evens(tp.arange(5, dtype=tp.float32)).tolist() == [0.0, 2.0, 4.0]
    with pytest.raises(NotImplementedError, match="nothing declares the shape of the result"):
        report.module.evens(tp.ones(5, device="meta"))
    assert "raise NotImplementedError('[mylib::evens] nothing declares" in report.operators[0].fake


def test_keyword_only_arguments_and_sizes_from_integers():
    text = """\
/*---
op: mylib::powers(Tensor x, *, int n, float scale=2.0) -> Tensor
shape: {x: [m], out: [m, n + 1]}
derivatives:
  x: (grad[:, 1:2] * scale).sum(1) + 0 * (grad * result.detach()).sum(1)
samples: [{x: [0.5, -0.25], n: 1, scale: 3.0}]
---*/
template <class T> void powers(tp::In<T, 1> x, int64_t n, double scale, tp::Out<T, 2> out) {
  for (int64_t i = 0; i < x.size(0); ++i)
    for (int64_t j = 0; j <= n; ++j) out(i, j) = scale * std::pow(x(i), static_cast<T>(j));
}
"""
    report = tpkernel.build(text)
    assert report.ok, report.to_text()
    out = report.module.powers(tp.tensor([2.0, 3.0]), n=2, scale=1.0)
    assert out.tolist() == [[1.0, 2.0, 4.0], [1.0, 3.0, 9.0]]
    meta = report.module.powers(tp.ones(2, device="meta"), n=4)
    assert tuple(meta.shape) == (2, 5)


def test_defaults_that_only_the_compiler_knows_have_to_be_given():
    text = """\
    constexpr int64_t K = 4;
    double f(double x, int64_t a = 1, int64_t b = K, int64_t c = 2 * 3) { return x + a + b + c; }
    """
    f = tpkernel.build(text, checks=False).module.f
    assert str(inspect.signature(f)) == "(x, a, b, c=6)"
    assert f(1.0, 1, 4) == 12.0
    assert "missing argument 'a'" in refusal(f, 1.0, b=4, kind=TypeError)


def test_a_keyword_only_argument_after_a_default_and_a_default_of_infinity():
    text = """\
/*---
op: mylib::scaled2(Tensor x, float a=inf, *, float b) -> Tensor
---*/
template <typename T> void scaled2(tp::In<T> x, double a, double b, tp::Out<T> out) {
  for (int64_t i = 0; i < x.numel(); ++i) out[i] = x[i] * a * b;
}
"""
    scaled2 = tpkernel.build(text, checks=False).module.scaled2
    assert scaled2(tp.ones(1), b=-1.0).tolist() == [-np.inf]
    assert list(inspect.signature(scaled2).parameters) == ["x", "a", "b"]
    assert "b" in refusal(scaled2, tp.ones(1), kind=TypeError)


def test_an_operator_that_the_runtime_refuses_is_an_error_at_its_line():
    @tp.library.custom_op("mylib::taken", mutates_args=())
    def taken(x: tp.Tensor) -> tp.Tensor:
        return x + x

    text = """\
/*---
ops:
  - op: mylib::free(Tensor x) -> Tensor
    kernel: f
  - op: mylib::taken(Tensor x) -> Tensor
    kernel: f
---*/
template <typename T> void f(tp::In<T> x, tp::Out<T> out) { out[0] = x[0]; }
"""
    with pytest.raises(tpkernel.CellError, match=r"^cell:5: error: \[mylib::taken\].*already"):
        tpkernel.build(text, checks=False)


CHAIN = """\
/*---
op: mylib::chain(Tensor a, Tensor b, Tensor c, Tensor(d!) e) -> ()
shape: {b: c, c: a, e: [n, 3]}
dtypes: {T: [float64, float32], S: [int32, float16, int64]}
---*/
template <class T, class S>
void chain(tp::In<T> a, tp::In<T> b, tp::In<S> c, tp::InOut<T, 2> e) { e[0] = a[0] + b[0]; }
"""
UNTIDY = [
    [np.ones(2), np.ones(2), np.ones(2, np.int32), np.ones((4, 3))],
    [np.ones(2, np.int64), np.ones(2), np.ones(2, np.int32), np.ones((4, 3))],
    [np.ones(2, bool), np.ones(2), np.ones(2, np.int32), np.ones((4, 3))],
    [np.ones(2), np.ones(2, np.float32), np.ones(2, np.int32), np.ones((4, 3))],
    [np.ones(2), np.ones(3), np.ones(3, np.int32), np.ones((4, 3))],
    [np.ones(2), np.ones(2), np.ones((2, 1), np.int32), np.ones((4, 3))],
    [np.ones(2), np.ones(2), np.ones(2, np.complex64), np.ones((4, 3))],
    [np.ones(()), np.ones(()), np.ones(1, np.int32), np.ones((4, 3))],
    [np.ones(2), np.ones(2), np.ones(2, np.int32), np.ones((4, 3), np.float32)],
    [np.ones(2), np.ones(2), np.ones(2, np.int32), np.ones((4, 3), np.int8)],
    [np.ones(2), np.ones(2), np.ones(2, np.int32), np.ones((3, 4))],
    [np.ones(2), np.ones(2), np.ones(2, np.int32), np.ones(3)],
]
MISFITS = [
    [np.ones((2, 3)), np.ones((4, 4))],
    [np.ones((2, 3)), np.ones(3)],
    [np.ones(3), np.ones((3, 3))],
    [np.ones((2, 3)), np.ones((3, 4), np.float32)],
    [np.ones((2, 3), np.uint8), np.ones((3, 4))],
    [np.ones((2, 3)), np.ones((3, 4))],
]


def answer(call, *args) -> tuple[str, str]:
    try:
        call(*args)
    except (TypeError, ValueError) as problem:
        return type(problem).__name__, str(problem)
    return "", ""


@pytest.mark.parametrize(("cell", "table"), [(CHAIN, UNTIDY), (MATMUL, MISFITS)])
def test_the_guards_of_both_sides_say_the_same(cell, table):
    from tensorplay.library.modules.rules import InputRules
    from tpkernel.cells.cell import parse_cell
    from tpkernel.cells.reading import read_cell

    (operator,) = read_cell(parse_cell(cell)).operators
    rules = InputRules(operator)
    kernel = cpp_jit.load_module(tpkernel.build(cell, checks=False).build.library)
    answers = []
    for arrays in table:
        outputs = [np.zeros((2, 4), arrays[0].dtype)] if operator.outputs else []
        compiled = answer(kernel[operator.kernel.name], *arrays, *outputs)
        assert answer(rules, *map(tp.from_numpy, arrays)) == compiled
        answers.append(compiled[0])
    assert "" in answers
    assert {"TypeError", "ValueError"} < set(answers)


def test_numbers_and_names_are_those_of_the_header():
    from tensorplay.library.modules import rules
    from tensorplay.library.modules.spec import DTYPES
    from tpkernel.cells import dtypes, entries

    root = Path(tp.__file__).parent
    header = (root / "include" / "tensorplay" / "guard.h").read_text("utf-8")
    guard = (root / "utils" / "cpp_jit" / "runtime" / "guard_texts.h").read_text("utf-8")
    names = [n.lower() for n in re.findall(r"^  TP_DTYPE_(\w+)(?: = 0)?,$", header, re.MULTILINE)]
    assert names == [*DTYPES, "count"]
    assert int(re.search(r"TP_MAX_SYMBOLS = (\d+)", header)[1]) == entries._MAX_SYMBOLS
    assert len(DTYPES) >= dtypes._MAX_TEMPLATES  # the guard holds one code per dtype
    spelled = re.search(r"kDtypeNames\[TP_DTYPE_COUNT\] = \{(.*?)\};", guard, re.DOTALL)[1]
    assert re.findall(r'"(\w+)"', spelled) == list(DTYPES)
    casts = re.search(r"kCasts\[TP_DTYPE_COUNT\] = \{(.*?)\};", guard, re.DOTALL)[1]
    texts = [None if c == "nullptr" else c.strip('"') for c in re.split(r",\s*", casts.strip())]
    assert {n: c for n, c in zip(DTYPES, texts, strict=True) if c} == rules._CASTS


def test_read_only_bfloat16_keeps_its_dtype(softplus):
    import ml_dtypes

    array = np.ones(3, ml_dtypes.bfloat16)
    expected = refusal(softplus, array, kind=TypeError)
    array.flags.writeable = False
    assert refusal(softplus, array, kind=TypeError) == expected
    assert "got bfloat16 on cpu" in expected
    text = """\
/*---
op: mylib::bits(Tensor x) -> Tensor
shape: {x: [n], out: [n]}
out_dtype: int32
---*/
void bits(tvm::ffi::TensorView x, tvm::ffi::TensorView out) {
  const uint16_t* from = static_cast<const uint16_t*>(x.data_ptr());
  int32_t* to = static_cast<int32_t*>(out.data_ptr());
  if (x.dtype().code == kDLBfloat) for (int64_t i = 0; i < x.numel(); ++i) to[i] = from[i];
}
"""
    bits = tpkernel.build(text, checks=False).module.bits
    assert bits(array).tolist() == [0x3F80] * 3


def test_a_misspelt_keyword_names_the_right_one(softplus):
    text = refusal(softplus, tp.ones(2), bta=1.0, kind=TypeError)
    assert text.startswith("[mylib::softplus] got an unexpected keyword argument 'bta'; did you")
    assert "did you mean 'beta'?" in text


def test_exceptions_of_a_kernel_name_its_operator():
    text = (
        "#include <stdexcept>\n"
        'void boom(tp::InOut<float> x) { throw std::runtime_error("no way"); }\n'
        'int64_t bang(int64_t n) { throw std::invalid_argument("bad n"); }\n'
        'int64_t rank(tvm::ffi::TensorView x) { TVM_FFI_ICHECK(x.ndim() == 7) << "no"; return 1; }'
    )
    module = tpkernel.build(text, "named", checks=False).module
    assert refusal(module.boom, tp.ones(2), kind=RuntimeError) == "[named::boom] no way"
    assert refusal(module.bang, 3) == "[bang] bad n"
    assert refusal(module.rank, tp.ones(2), kind=RuntimeError).startswith("[rank] Check failed")


NARROW = """\
/*---
op: guards::narrow(Tensor x, int by) -> Tensor
shape: {x: [n], out: [n - by]}
samples: [{x: [1.0, 2.0, 3.0], by: 1}]
---*/
template <typename T> void narrow(tp::In<T, 1> x, int64_t by, tp::Out<T, 1> out) {
  for (int64_t i = 0; i < out.numel(); ++i) out[i] = x[i];
}
"""


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_a_negative_output_size_names_operator_output_and_expression(device: str) -> None:
    report = tpkernel.build(NARROW)
    assert report.ok, str(report)
    narrow = report.module.narrow
    assert narrow(tp.ones(3), 1).tolist() == [1.0, 1.0]
    assert narrow(tp.ones(3), 3).shape == (0,)
    message = (
        r"^\[guards::narrow\] output 'out': expected sizes of 0 or more, got -2 in dimension 0, "
        r"which is n - by of the declared shape\. "
    )
    with pytest.raises(ValueError, match=message):
        narrow(tp.ones(3, device=device), 5)


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_an_output_size_beyond_addresses_names_operator_output_and_expression(device: str) -> None:
    narrow = tpkernel.build(NARROW).module.narrow
    message = (
        rf"^\[guards::narrow\] output 'out': expected sizes of {2**63 - 1} at most, "
        rf"got {2**70 + 3} in dimension 0, which is n - by of the declared shape\. "
        r"Pass smaller numbers, or"
    )
    with pytest.raises(ValueError, match=message):
        narrow(tp.ones(3, device=device), -(2**70))


STEPS = """\
/*---
op: guards::steps(Tensor x, int stride) -> Tensor
shape: {x: [n], out: [(n - 1) // stride + 1]}
---*/
template <typename T> void steps(tp::In<T, 1> x, int64_t stride, tp::Out<T, 1> out) {
  for (int64_t i = 0; i < out.numel(); ++i) out[i] = x[i * stride];
}
"""
FIRST = """\
/*---
op: guards::first(Tensor x) -> Tensor
---*/
template <typename T> void first(tp::In<T> x, tp::Out<int32_t, 1> out) {
  for (int64_t i = 0; i < out.numel(); ++i) out[i] = int32_t(i);
}
"""


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_a_shape_that_divides_by_zero_names_argument_and_expression(device: str) -> None:
    op = tpkernel.build(STEPS, checks=False).module.steps
    x = tp.ones(5, device=device)
    assert tuple(op(x, 2).shape) == (3,)
    with pytest.raises(ValueError, match=r"guards::steps.*argument 'stride'.*\(n - 1\) // stride"):
        op(x, 0)


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_an_output_of_another_rank_is_told_to_declare_its_shape(device: str) -> None:
    op = tpkernel.build(FIRST, checks=False).module.first
    assert tuple(op(tp.ones(3, device=device)).shape) == (3,)
    with pytest.raises(ValueError, match=r"output 'out'.*shape: \{x: \[n, m\], out: \[n\]\}"):
        op(tp.ones(2, 3, device=device))
