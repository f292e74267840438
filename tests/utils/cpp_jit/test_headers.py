"""The sets of headers: same text, same results, same errors on each; the right one chosen."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tensorplay.utils import cpp_jit
from tensorplay.utils.cpp_jit import compile as compile_, support
from tests.benchmarks.build import FOUR, SMALL, SOFTMAX
from tests.utils.cpp_jit.test_load_inline import ALLOCATE, SCALE, THROWS

KERNELS = r"""
#include <string>
#include <vector>

int64_t sum_dims(tvm::ffi::TensorView x) {
  int64_t total = 0;
  for (int64_t size : x.shape()) total += size;
  return total + x.ndim() + x.dim() + x.size(-1) + x.numel() + x.shape().back();
}
int64_t strides(const tvm::ffi::TensorView& x) { return x.stride(0) * 1000 + x.strides()[1]; }
bool contiguous(tvm::ffi::TensorView x) {
  return x.IsContiguous() && x.is_contiguous() && tvm::ffi::IsContiguous(*&x) == x.IsContiguous();
}
double mixed(int32_t a, float b, bool c, const std::string& d) { return a + b + c + d.size(); }
std::string text(const std::string& s) { return s + s; }
void check(tvm::ffi::TensorView x) {
  DLDataType f32{kDLFloat, 32, 1};
  TVM_FFI_CHECK(x.dtype() == f32, TypeError) << "expected " << f32 << ", got " << x.dtype();
  TVM_FFI_CHECK_GE(x.ndim(), 1, ValueError) << "rank";
  TVM_FFI_ICHECK_LT(x.size(0), 5) << "too long";
  TVM_FFI_ICHECK_NOTNULL(x.data_ptr());
  TVM_FFI_CHECK_EQ(x.device().device_type, kDLCPU, ValueError);
}
tvm::ffi::Tensor filled(tvm::ffi::ShapeView like, int64_t) = delete;
tvm::ffi::Tensor grid(int64_t rows, int64_t columns) {
  tvm::ffi::Shape shape({rows, columns});
  std::vector<int64_t> same(shape.begin(), shape.end());
  TVM_FFI_ICHECK_EQ(shape.Product(), same[0] * same[1]);
  auto t = tvm::ffi::Tensor::FromEnvAlloc(TVMFFIEnvTensorAlloc, shape, DLDataType{kDLInt, 64, 1},
                                          DLDevice{kDLCPU, 0});
  for (int64_t i = 0; i < t.numel(); ++i) static_cast<int64_t*>(t.data_ptr())[i] = i;
  tvm::ffi::Tensor copy = t, other;
  other = copy;
  return other;
}
int64_t passed_through(tvm::ffi::Tensor t) { return t.numel() + t.shape()[0]; }
int64_t raw(DLTensor* t) { return t->ndim; }
void thrower() { throw 42; }
"""
# tvm::ffi::IsContiguous takes a DLTensor; the line above is for the compiler to refuse a view.
KERNELS = KERNELS.replace(" && tvm::ffi::IsContiguous(*&x) == x.IsContiguous()", "").replace(
    "tvm::ffi::Tensor filled(tvm::ffi::ShapeView like, int64_t) = delete;\n", ""
)
NAMES = (
    "sum_dims strides contiguous mixed text check grid passed_through raw thrower".split()  # noqa: SIM905
)
MATRIX = np.arange(6, dtype=np.float32).reshape(2, 3)

CALLS: dict[str, Callable[[cpp_jit.Module], object]] = {
    "sum_dims": lambda m: m.sum_dims(MATRIX),
    "strides": lambda m: m.strides(MATRIX.T),
    "contiguous": lambda m: (m.contiguous(MATRIX), m.contiguous(MATRIX.T)),
    "mixed": lambda m: m.mixed(1, 2.5, True, "abc"),
    "text": lambda m: (m.text("ab"), m.text("long enough to be an object")),
    "check": lambda m: m.check(MATRIX),
    "grid": lambda m: m.grid(2, 3).numpy().tolist(),
    "passed_through": lambda m: m.passed_through(MATRIX),
    "raw": lambda m: m.raw(MATRIX),
    "wrong dtype": lambda m: m.check(MATRIX.astype(np.int16)),
    "wrong rank": lambda m: m.check(np.float32(1.0).reshape(())),
    "too long": lambda m: m.check(np.zeros(7, np.float32)),
    "wrong count": lambda m: m.raw(MATRIX, MATRIX),
    "wrong type": lambda m: m.mixed("1", 2.5, True, "abc"),
    "no string": lambda m: m.mixed(1, 2.5, True, 4),
    "float for int": lambda m: m.mixed(1.5, 2.5, True, ""),
    "none": lambda m: m.raw(None),
    "negative": lambda m: m.grid(-1, 3),
    "thrown value": lambda m: m.thrower(),
}


def outcome(call: Callable[[cpp_jit.Module], object], module: cpp_jit.Module) -> object:
    try:
        return call(module)
    except Exception as error:  # noqa: BLE001 - the outcome of any kind is what is compared
        return type(error), str(error).replace(module.__name__, "library")


@pytest.fixture(scope="module")
def rungs() -> dict[str, cpp_jit.Module]:
    """Return one source built with each set of headers."""
    modules = {}
    for rung in ("light", "full", "stock"):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(compile_, "first_rung", lambda *_, rung=rung: rung)
            text = KERNELS if rung != "stock" else KERNELS.replace("throw 42", "")
            exports = NAMES
            made = cpp_jit.build_source(f"each_{rung}", cpp_jit.Source(text), exports=exports)
        assert made.rung == rung
        modules[rung] = made.load()
    return modules


ROW = np.arange(6, dtype=np.float32)
#: Sources of the other tests and of the benchmarks, and calls that reach their results and errors.
TEXTS: dict[str, tuple[str, list[tuple[object, ...]]]] = {
    "scale": (
        SCALE,
        [
            ("scale_cpu", ROW, ROW, 2.0),
            ("scale_cpu", ROW, ROW.astype(np.int64), 2.0),
            ("scale_cpu", ROW.astype(np.int64), ROW, 2.0),
            ("weighted_sum", ROW, 2.0, 1, "tag"),
            ("weighted_sum", ROW, 2.0, 1, 5),
            ("doubled", ROW),
            ("doubled", None),
            ("greet", "you"),
            ("flip", True),
            ("nothing",),
            ("nothing", 1),
        ],
    ),
    "allocate": (
        ALLOCATE,
        [
            ("make", 3, 2, 32, 1),
            ("make", 3, 2, 7, 1),
            ("make", -1, 2, 32, 1),
            ("make", 3, 2, 32, 2),
        ],
    ),
    "throws": (
        THROWS,
        # An unknown value, and one that is no exception, would end the process in the engine's own
        # macro; and standard exceptions are all RuntimeError there.
        [
            *(("thrower", which) for which in (4, 7, 8, 9, 10)),
            ("dims", MATRIX, 1),
            ("dims", MATRIX, 2),
            ("dims", MATRIX, -3),
        ],
    ),
    "small kernel": (SMALL, [("scale", ROW, ROW, 3.0), ("scale", ROW, ROW, "3")]),
    "softmax": (
        SOFTMAX,
        [
            *(("softmax", MATRIX, MATRIX, dim) for dim in (0, 1, -1, 2)),
            ("softmax", MATRIX, MATRIX.astype(np.float64), 1),
            ("softmax", MATRIX, ROW, 1),
            ("softmax", MATRIX.T, MATRIX.T, 1),
            ("softmax_backward", MATRIX, MATRIX, MATRIX, 0),
        ],
    ),
    "four exports": (
        FOUR,
        [
            ("fib", 12),
            ("norm", np.arange(4.0)),
            ("describe", MATRIX, "it"),
            ("ramp", 4),
            ("ramp", -1),
        ],
    ),
}


@pytest.mark.parametrize("call", CALLS)
def test_each_set_of_headers_gives_the_same_results_and_errors(rungs, call):
    light = outcome(CALLS[call], rungs["light"])
    assert outcome(CALLS[call], rungs["full"]) == light
    # The engine's own macro lets a thrown value end the process; all else is the same there too.
    if call != "thrown value":
        assert outcome(CALLS[call], rungs["stock"]) == light
    assert light is None or light != ()


@pytest.mark.slow
@pytest.mark.parametrize("text", TEXTS)
def test_every_kernel_of_these_tests_does_the_same_with_each_set_of_headers(text, monkeypatch):
    source, calls = TEXTS[text]
    exports = sorted({name for name, *_ in calls})
    found = {}
    for rung in ("light", "full", "stock"):
        monkeypatch.setattr(compile_, "first_rung", lambda *_, rung=rung: rung)
        name = f"suite_{text}_{rung}".replace(" ", "_")
        made = cpp_jit.build_source(name, cpp_jit.Source(source), exports=exports)
        assert made.rung == rung
        module = made.load()
        found[rung] = []
        for name, *arguments in calls:
            copies = [a.copy() if isinstance(a, np.ndarray) else a for a in arguments]
            result = outcome(lambda m, n=name, c=copies: m[n](*c), module)
            if hasattr(result, "numpy"):
                result = result.numpy().tolist()
            written = [c.tolist() for c in copies if isinstance(c, np.ndarray)]
            found[rung].append((name, result, written))
    assert found["full"] == found["light"]
    assert found["stock"] == found["light"]


FULL = r"""
#include <tvm/ffi/container/array.h>
#include <tvm/ffi/container/map.h>
#include <tvm/ffi/optional.h>
using tvm::ffi::Array;
using tvm::ffi::Map;
using tvm::ffi::Optional;
using tvm::ffi::String;

Array<int64_t> squares(int64_t n) {
  Array<int64_t> out;
  for (int64_t i = 0; i < n; ++i) out.push_back(i * i);
  return out;
}
Map<String, int64_t> lengths(Array<String> words) {
  Map<String, int64_t> out;
  for (const String& word : words) out.Set(word, static_cast<int64_t>(word.size()));
  return out;
}
int64_t or_default(Optional<int64_t> value) { return value.has_value() ? value.value() : -1; }
int64_t boom(Optional<int64_t> value) { throw 42; }
"""


def test_containers_take_the_full_headers_and_come_back_as_python_values():
    made = cpp_jit.build_source(
        "containers", cpp_jit.Source(FULL), exports=["squares", "lengths", "or_default", "boom"]
    )
    assert made.rung == "full"
    assert len(made.commands) == 1
    module = made.load()
    assert module.squares(4) == [0, 1, 4, 9]
    assert module.lengths(["a", "some longer word"]) == {"a": 1, "some longer word": 16}
    assert (module.or_default(None), module.or_default(3)) == (-1, 3)
    with pytest.raises(TypeError, match="Mismatched type on argument #0"):
        module.or_default("x")
    with pytest.raises(RuntimeError, match="kernel threw a value of type int"):
        module.boom(None)


def test_the_compilers_answer_leads_to_the_full_headers_and_is_remembered():
    text = "using namespace tvm::ffi;\nint64_t f(Array<int64_t> a) {{ return a.size() + {}; }}"
    first = cpp_jit.build_source("answered", cpp_jit.Source(text.format(0)), exports=["f"])
    assert first.rung == "full"
    assert len(first.commands) == 2
    second = cpp_jit.build_source("answered", cpp_jit.Source(text.format(1)), exports=["f"])
    assert len(second.commands) == 1
    assert second.load().f([1, 2]) == 3


@pytest.mark.parametrize(
    ("text", "call", "result"),
    [
        ("double f(double x) { return std::exp(x) + exp(x); }", (0.0,), 2.0),
        ("int64_t f(int64_t n) { std::vector<int64_t> v(n, 2); return v.size(); }", (3,), 3),
        (
            "int64_t f(int64_t a) { return std::max<int64_t>(a, 3) + std::to_string(a).size(); }",
            (1,),
            4,
        ),
        ('int64_t f() { return strlen("four"); }', (), 4),
        ("int64_t f(double x) { return std::isnan(x) ? 1 : std::lround(x); }", (2.6,), 3),
    ],
)
def test_standard_headers_that_the_engine_would_have_brought_in_are_added(text, call, result):
    made = cpp_jit.build_source("implied", cpp_jit.Source(text), exports=["f"])
    assert made.rung == "light"
    assert len(made.commands) == 1
    assert made.load().f(*call) == result


@pytest.mark.parametrize(
    ("text", "call", "result"),
    [
        ("#include <cmath>\ndouble f(double x) { return std::legendre(1, x); }", (0.5,), 0.5),
        (
            "#include <cmath>\nusing std::hermite;\ndouble f(double x) { return hermite(1, x); }",
            (0.5,),
            1.0,
        ),
        ('#include <string>\ndouble f() { return std::stod("2.5"); }', (), 2.5),
        ("#include <string>\nint64_t f() { return std::to_wstring(12).size(); }", (), 2),
        ('#include <cstdlib>\nint64_t f() { return std::strtoll("7", 0, 10); }', (), 7),
        ('#include "theirs.h"\n#include <cmath>\ndouble f() { return theirs(); }', (), 1.0),
        ("#include <theirs.h>\n#include <cmath>\ndouble f() { return theirs(); }", (), 1.0),
        ("#include <tvm/ffi/any.h>\ndouble f() { return std::stod(std::string(1, 52)); }", (), 4.0),
    ],
)
def test_names_that_the_precompiled_headers_leave_out_are_there_when_they_are_used(
    text, call, result, tmp_path
):
    theirs = "#include <cmath>\ninline double theirs() { return std::legendre(0, 0.5); }\n"
    (tmp_path / "theirs.h").write_text(theirs)
    for edit in ("", "\n"):  # without and with precompiled headers
        made = cpp_jit.build_source(
            "rare", cpp_jit.Source(text + edit), exports=["f"], extra_include_paths=[tmp_path]
        )
        assert made.load().f(*call) == result
        assert len(made.commands) == 1
        support.wait_for_background(60)


def test_a_mistake_of_the_person_is_not_retried_with_other_headers():
    for text in (
        "int64_t f() { return valeu; }",
        "int64_t f(tvm::ffi::TensorView x) { x.sizze(0); }",
    ):
        with pytest.raises(cpp_jit.BuildError) as caught:
            cpp_jit.build_source("once", cpp_jit.Source(text), exports=["f"])
        assert len(caught.value.commands) == 1


def test_code_may_define_the_export_itself_and_raise_through_the_run_time():
    generated = r"""
    extern "C" int __tvm_ffi_half(void*, const TVMFFIAny* args, int32_t count, TVMFFIAny* result) {
      if (count != 1) return tp_rt_raise("TypeError", "[m::half] expected 1 argument");
      try {
        if (args[0].v_int64 < 0) tp_rt_throw("ValueError", "[m::half] argument 'n': negative");
        result->type_index = kTVMFFIFloat;
        result->v_float64 = half(args[0].v_int64);
        return 0;
      } catch (...) {
        return tp_rt_raise_current();
      }
    }
    """
    for rung in ("light", "full"):
        extra = "// tvm::ffi::Array" if rung == "light" else "using A = tvm::ffi::Any;"
        text = cpp_jit.Source(f"double half(int64_t n) {{ return n / 2.0; }}\n{extra}")
        made = cpp_jit.build_source(f"half_{rung}", text, generated=generated)
        assert made.rung == rung
        module = made.load()
        assert module.half(3) == 1.5
        with pytest.raises(TypeError, match=r"\[m::half\] expected 1"):
            module["half"](1, 2)
        with pytest.raises(ValueError, match="argument 'n': negative"):
            module.half(-1)


def test_a_function_may_have_any_name():
    names = ["count", "args", "result", "name", "call", "function", "bytes", "Value"]
    text = "".join(f"int64_t {name}() {{ return {i}; }}\n" for i, name in enumerate(names))
    module = cpp_jit.load_inline("names", cpp_sources=text, functions=dict.fromkeys(names, "Doc."))
    assert [module[name]() for name in names] == list(range(len(names)))


def test_the_engines_export_macro_works_in_the_text():
    text = "static int64_t one() { return 1; }\nTVM_FFI_DLL_EXPORT_TYPED_FUNC(uno, one);"
    assert cpp_jit.build_source("macro", cpp_jit.Source(text)).load().uno() == 1


MESSAGES = """
#include <ostream>
struct Point { int64_t x, y; };
std::ostream& operator<<(std::ostream& out, const Point& p) {
  return out << '(' << p.x << ", " << p.y << ')';
}
int64_t check(int64_t n, int32_t small, double real) {
  TVM_FFI_CHECK(n >= 0, ValueError);
  TVM_FFI_CHECK_LT(small, n, IndexError);
  TVM_FFI_CHECK_NE(real, n, ValueError) << (n > 3 ? "a" : "b") << true << 'c' << 1.5f;
  if (n == 9) TVM_FFI_THROW(KeyError) << SHOWN;
  else TVM_FFI_ICHECK_GE(n, small);
  return n == 8 ? TVM_FFI_THROW(TypeError) << "eight", 1 : n;
}
"""


@pytest.mark.parametrize(
    ("shown", "rung", "text"),
    [('static_cast<const char*>("p")', "light", "p"), ("Point{1, 2}", "full", r"\(1, 2\)")],
)
def test_messages_take_what_a_stream_takes_and_cost_no_warning(shown, rung, text):
    source = cpp_jit.Source(MESSAGES.replace("SHOWN", shown))
    flags = ["-Wall", "-Wextra", "-Werror"]
    build = cpp_jit.build_source("messages", source, exports=["check"], extra_cflags=flags)
    check = build.load().check
    assert (build.rung, build.diagnostics) == (rung, ())
    assert check(4, 1, 1.0) == 4
    for arguments, kind, message in (
        ((-1, 1, 1.0), ValueError, r"^Check failed: \(n >= 0\) is false: $"),
        ((3, 5, 1.0), IndexError, r"^Check failed: small < n \(5 vs. 3\) : $"),
        ((4, 1, 4.0), ValueError, r"^Check failed: real != n \(4 vs. 4\) : a1c1.5$"),
        ((2, 1, 2.0), ValueError, r": b1c1.5$"),
        ((8, 1, 1.0), TypeError, r"^eight$"),
        ((9, 1, 1.0), KeyError, text),
    ):
        with pytest.raises(kind, match=message):
            check(*arguments)
