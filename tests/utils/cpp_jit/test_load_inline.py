"""Kernels given as text: calling them, what they return, what they refuse."""

from __future__ import annotations

import gc
import inspect
import pydoc
import threading
from pathlib import Path

import numpy as np
import pytest

import tensorplay as tp
from tensorplay.utils import cpp_jit

SCALE = r"""
#include <string>

void scale_cpu(tvm::ffi::TensorView x, tvm::ffi::TensorView out, double factor) {
  if (x.dtype().code != kDLFloat || x.dtype().bits != 32) {
    TVM_FFI_THROW(TypeError) << "expected float32, got " << x.dtype();
  }
  const float* in = static_cast<const float*>(x.data_ptr());
  float* to = static_cast<float*>(out.data_ptr());
  for (int64_t i = 0; i < x.numel(); ++i) to[i] = static_cast<float>(factor) * in[i];
}

double weighted_sum(tvm::ffi::TensorView x, double factor, int64_t offset,
                    const std::string& tag) {
  double sum = static_cast<double>(offset);
  for (int64_t i = 0; i < x.numel(); ++i) sum += static_cast<float*>(x.data_ptr())[i];
  return sum * factor + tag.size();
}

tvm::ffi::Tensor doubled(tvm::ffi::TensorView x) {
  tvm::ffi::Tensor y = tvm::ffi::Tensor::FromEnvAlloc(TVMFFIEnvTensorAlloc, x.shape(), x.dtype(),
                                                      x.device());
  tvm::ffi::TensorView view(y);
  for (int64_t i = 0; i < x.numel(); ++i) {
    static_cast<float*>(view.data_ptr())[i] = 2 * static_cast<const float*>(x.data_ptr())[i];
  }
  return y;
}

std::string greet(std::string who) { return "hello, " + who; }
bool flip(bool b) { return !b; }
void nothing() {}
"""
FUNCTIONS = ["scale_cpu", "weighted_sum", "doubled", "greet", "flip", "nothing"]


@pytest.fixture(scope="module")
def kernels() -> cpp_jit.Module:
    return cpp_jit.load_inline("kernels", cpp_sources=SCALE, functions=FUNCTIONS)


def test_out_parameter_is_written_in_place(kernels):
    x = tp.tensor([1.0, 2.0, 3.0])
    out = tp.empty_like(x)
    assert kernels.scale_cpu(x, out, 3.0) is None
    np.testing.assert_array_equal(out.numpy(), [3, 6, 9])


def test_scalars_and_strings(kernels):
    assert kernels.weighted_sum(tp.tensor([1.0, 2.0, 3.0]), 10.0, 5, "abcd") == 114.0
    assert kernels.weighted_sum(np.ones(2, np.float32), 1, True, "a tag of many characters") == 27.0
    assert kernels.greet("you") == "hello, you"
    long = "x" * 1000
    assert kernels.greet(long) == "hello, " + long
    assert type(kernels.greet(long)) is str
    assert kernels.flip(False) is True
    assert kernels.nothing() is None


def test_an_error_of_the_kernel_is_the_python_exception_it_names(kernels):
    out = np.full(3, -1.0, np.float32)
    with pytest.raises(TypeError, match="expected float32, got float64"):
        kernels.scale_cpu(np.ones(3), out, 1.0)
    assert (out == -1).all()


def test_a_returned_tensor_is_ours_over_the_same_memory(kernels):
    y = kernels.doubled(np.arange(6, dtype=np.float32).reshape(2, 3))
    assert isinstance(y, tp.Tensor)
    assert y.dtype is tp.float32
    np.testing.assert_array_equal(y.numpy(), np.arange(0, 12, 2).reshape(2, 3))
    y.numpy()[0, 0] = 7.0
    assert y.numpy()[0, 0] == 7.0


def test_returned_memory_is_freed_with_its_tensor(kernels):
    from tensorplay.utils.cpp_jit import allocator

    gc.collect()
    before = allocator.live_allocations()
    y = kernels.doubled(np.ones(4, np.float32))
    assert allocator.live_allocations() == before + 1
    del y
    gc.collect()
    assert allocator.live_allocations() == before


def test_kernels_allocate_from_many_threads(kernels):
    x = np.arange(100, dtype=np.float32)
    wrong = []

    def work() -> None:
        wrong.extend(i for i in range(50) if not np.array_equal(kernels.doubled(x).numpy(), 2 * x))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


ALLOCATE = r"""
tvm::ffi::Tensor make(int64_t n, int64_t code = 2, int64_t bits = 32, int64_t device = 1) {
  auto t = tvm::ffi::Tensor::FromEnvAlloc(
      TVMFFIEnvTensorAlloc, tvm::ffi::Shape({n}),
      DLDataType{static_cast<uint8_t>(code), static_cast<uint8_t>(bits), 1},
      DLDevice{static_cast<DLDeviceType>(device), 0});
  if (code == 2 && bits == 32) {
    for (int64_t i = 0; i < n; ++i) static_cast<float*>(t.data_ptr())[i] = float(i);
  }
  return t;
}
"""


@pytest.fixture(scope="module")
def maker() -> cpp_jit.Module:
    return cpp_jit.load_inline("maker", cpp_sources=ALLOCATE, functions={"make": "Count up."})


def test_b038_names_defaults_and_documentation_come_from_the_source(maker):
    made = maker.make(n=3)
    assert isinstance(made, tp.Tensor)
    np.testing.assert_array_equal(made.numpy(), [0, 1, 2])
    assert list(inspect.signature(maker.make).parameters) == ["n", "code", "bits", "device"]
    assert inspect.signature(maker.make).parameters["bits"].default == 32
    assert maker.make.__doc__ == "Count up."
    shown = pydoc.render_doc(maker.make, renderer=pydoc.plaintext)
    assert "make = <kernel maker::make(n: int64_t, code: int64_t = 2, bits: int64_t = 32" in shown
    assert "Count up." in shown
    assert "make" in dir(maker)
    with pytest.raises(
        TypeError, match="unexpected keyword `m`; parameters: n, code, bits, device"
    ):
        maker.make(m=3)
    with pytest.raises(TypeError, match="argument 'n' is given twice"):
        maker.make(3, n=3)
    with pytest.raises(TypeError, match="argument 'n' is missing"):
        maker.make(bits=32)


def test_the_allocator_names_what_it_cannot_represent(maker):
    with pytest.raises(ValueError, match="unsupported dlpack dtype: code 2, bits 7"):
        maker.make(3, bits=7)
    with pytest.raises(ValueError, match="expected device cpu"):
        maker.make(3, device=2)
    with pytest.raises(ValueError, match=r"shape \(-1,\)"):
        maker.make(-1)


@pytest.mark.parametrize(
    ("code", "bits", "dtype"),
    [(0, 64, "int64"), (2, 64, "float64"), (6, 8, "bool"), (4, 16, "bfloat16")],
)
def test_the_allocator_serves_the_dtypes_of_the_runtime(maker, code, bits, dtype):
    made = maker.make(5, code=code, bits=bits)
    assert str(made.dtype) == f"tensorplay.{dtype}"
    assert made.shape == (5,)
    assert made.numpy().ctypes.data % 64 == 0


def test_arguments_that_do_not_fit_name_the_signature(kernels):
    with pytest.raises(TypeError, match=r"argument #0 .*Expected `DLTensor\*` but got `int`"):
        kernels.doubled(1)
    with pytest.raises(TypeError, match=r"argument #1 .*2: int, 3: std::string.*Expected `float`"):
        kernels.weighted_sum(np.ones(1, np.float32), "1", 1, "")
    with pytest.raises(TypeError, match="Expected 3 but got 1 arguments"):
        kernels.scale_cpu(np.ones(1))
    with pytest.raises(AttributeError, match="library 'kernels' has no function 'absent'"):
        kernels.absent  # noqa: B018
    assert kernels.implements_function("flip")
    assert not kernels.implements_function("flop")
    assert kernels["flip"] is kernels.flip


NARROW = """
int32_t i32(int32_t v) { return v; }
int64_t u8(uint8_t v) { return v; }
int64_t u64(uint64_t v) { return static_cast<int64_t>(v % 1000); }
enum class Side : int8_t { kLeft, kRight };
int64_t side(Side s) { return s == Side::kRight; }
"""


@pytest.mark.parametrize(
    ("name", "good", "bad", "type_"),
    [
        ("i32", -(2**31), 2**31, "int32"),
        ("u8", 255, 256, "uint8"),
        ("u64", 2**63 - 1, -1, "uint64"),
        ("side", 1, 128, "int8"),
    ],
)
def test_an_integer_that_does_not_fit_is_refused_before_the_kernel_runs(name, good, bad, type_):
    narrow = cpp_jit.load_inline(
        "narrow", cpp_sources=NARROW, functions=["i32", "u8", "u64", "side"]
    )
    narrow[name](good)
    with pytest.raises(ValueError, match=rf"argument #0: .*fits {type_}, got {bad}"):
        narrow[name](bad)


THROWS = r"""
#include <new>
#include <stdexcept>
#include <string>
struct Odd {};
void thrower(int64_t which) {
  switch (which) {
    case 0: throw 42;
    case 1: throw Odd();
    case 2: throw "some text";
    case 3: throw std::bad_alloc();
    case 4: throw std::runtime_error("run time");
    case 5: throw std::out_of_range("too far");
    case 6: throw std::string("a string");
    case 7: TVM_FFI_THROW(KeyError) << "no " << 1.5 << ' ' << true << ' ' << which;
    case 8: TVM_FFI_CHECK_EQ(which, 9, ValueError) << "so there";
    case 9: TVM_FFI_ICHECK(which == 0) << "internal";
  }
}
int64_t dims(tvm::ffi::TensorView x, int64_t i) { return x.size(i) * 10 + x.shape().at(0); }
"""


@pytest.mark.parametrize(
    ("which", "kind", "text"),
    [
        (0, RuntimeError, "kernel threw a value of type int"),
        (1, RuntimeError, "kernel threw a value of type Odd"),
        (2, RuntimeError, "some text"),
        (3, MemoryError, "out of memory"),
        (4, RuntimeError, "run time"),
        (5, IndexError, "too far"),
        (6, RuntimeError, "a string"),
        (7, KeyError, "no 1.5 1 7"),
        (8, ValueError, r"Check failed: which == 9 \(8 vs. 9\) : so there"),
        (9, RuntimeError, r"Check failed: \(which == 0\) is false: internal"),
    ],
)
def test_b007_every_exception_ends_at_the_boundary(which, kind, text):
    module = cpp_jit.load_inline("throws", cpp_sources=THROWS, functions=["thrower", "dims"])
    with pytest.raises(kind, match=text):
        module.thrower(which)
    with pytest.raises(IndexError, match="Index 2 out of bounds for tensor with 2 dimensions"):
        module.dims(np.ones((2, 3)), 2)
    assert module.dims(np.ones((2, 3)), -1) == 32


def test_b026_a_read_only_array_is_read_and_never_written(kernels):
    x = np.arange(4, dtype=np.float32)
    x.flags.writeable = False
    out = np.zeros(4, np.float32)
    kernels.scale_cpu(x, out, 2.0)
    np.testing.assert_array_equal(out, [0, 2, 4, 6])
    with pytest.raises(ValueError, match=r"argument 'out' .*: expected a writable array"):
        kernels.scale_cpu(out, x, 2.0)
    np.testing.assert_array_equal(x, [0, 1, 2, 3])
    assert not x.flags.writeable
    wide = np.broadcast_to(np.float32(2), (4,))
    assert kernels.weighted_sum(wide, 1.0, 0, "") == 8.0


def test_a_read_only_array_is_not_copied_where_the_kernel_promises_to_read(tmp_path):
    address = cpp_jit.load_inline(
        "address",
        cpp_sources="int64_t at(tvm::ffi::TensorView x) { return (int64_t)x.data_ptr(); }",
        functions="at",
    )
    x = np.arange(4.0)
    x.flags.writeable = False
    assert address.at(x) != x.ctypes.data
    address.declare_read_only("at", ["x"])
    assert address.at(x) == x.ctypes.data


def test_b037_a_tensor_that_requires_grad_is_refused_with_the_ways_out(kernels):
    x = tp.ones(4, dtype=tp.float32, requires_grad=True)
    out = tp.zeros(4, dtype=tp.float32)
    with pytest.raises(RuntimeError, match=r"argument 'x'.*x\.detach\(\).*custom_op"):
        kernels.scale_cpu(x, out, 2.0)
    with tp.no_grad():
        kernels.scale_cpu(x, out, 2.0)
    np.testing.assert_array_equal(out.numpy(), np.full(4, 2.0))


def test_b042_two_cells_keep_their_own_functions_types_and_variables():
    text = """
    struct P {{ double w, h; }};
    template <typename T> struct Counter {{ static int64_t n; }};
    template <typename T> int64_t Counter<T>::n = 0;
    inline double helper(P p) {{ return p.w {op} p.h; }}
    double area(double w, double h) {{ ++Counter<int>::n; return helper(P{{w, h}}); }}
    int64_t calls() {{ return Counter<int>::n; }}
    """
    times = cpp_jit.load_inline("p1", cpp_sources=text.format(op="*"), functions=["area", "calls"])
    plus = cpp_jit.load_inline("p2", cpp_sources=text.format(op="+"), functions=["area", "calls"])
    assert (times.area(3, 4), plus.area(3, 4), plus.area(3, 4)) == (12, 7, 7)
    assert (times.calls(), plus.calls()) == (1, 2)


def test_a_cell_with_variables_starts_afresh_when_it_is_run_again():
    def run() -> cpp_jit.Module:
        text = "static int64_t n = 0;\nint64_t next() { return ++n; }"
        return cpp_jit.load_inline("counter", cpp_sources=text, functions="next")

    first = run()
    assert [first.next(), first.next()] == [1, 2]
    second = run()
    assert second.next() == 1
    assert first.next() == 3


def test_several_sources_and_unusual_function_lists():
    module = cpp_jit.load_inline(
        "several",
        cpp_sources=["static int64_t one() { return 1; }", "int64_t two() { return one() + 1; }"],
        functions=("two",),
    )
    assert module.two() == 2
    with pytest.raises(
        ValueError,
        match="expected C\\+\\+ text in cpp_sources or CUDA text in cuda_sources, got none",
    ):
        cpp_jit.load_inline("none", functions="f")
    with pytest.raises(TypeError, match="unexpected argument 'cflags'"):
        cpp_jit.load_inline("none", cpp_sources="", cflags=["-O3"])


def test_a_name_may_have_spaces_and_accents():
    module = cpp_jit.load_inline(
        "é kernel/..", cpp_sources="int64_t f() { return 1; }", functions="f"
    )
    assert module.f() == 1


def test_flags_reach_the_compiler():
    module = cpp_jit.load_inline(
        "flags",
        cpp_sources="int64_t f() { return N; }",
        functions="f",
        extra_cflags=["-DN=12", "-O1"],
    )
    assert module.f() == 12
    # The rung's own header is precompiled per flags, so a changed macro is seen.
    again = cpp_jit.load_inline(
        "flags",
        cpp_sources="int64_t f() { return N; }",
        functions="f",
        extra_cflags=["-DN=13", "-O1"],
    )
    assert (module.f(), again.f()) == (12, 13)


def mapped_libraries() -> int:
    with open("/proc/self/maps", encoding="utf-8") as maps:  # noqa: PTH123 - not a file to encode
        return sum("/load-" in line for line in maps)


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="counts mappings through /proc")
def test_edits_of_a_cell_do_not_pile_up_in_the_process():
    gc.collect()
    before = mapped_libraries()
    for i in range(12):
        text = f"void f(int64_t n) {{ if (n == {i}) TVM_FFI_THROW(ValueError) << n; throw {i}; }}"
        module = cpp_jit.load_inline("edited", cpp_sources=text, functions="f")
        errors = []
        for n in (i, i + 1):
            with pytest.raises((ValueError, RuntimeError)) as caught:
                module.f(n)
            errors.append(caught.value)
        # An error and a kernel may outlive the module; errors outlive the library.
        kernel = module.f
        del module, caught
        gc.collect()
        with pytest.raises(ValueError, match=str(i)):
            kernel(i)
        del kernel
        gc.collect()
        assert str(errors[0]) == str(i)
    del errors
    gc.collect()
    assert mapped_libraries() - before <= 10  # those of the last edit at most


def test_a_library_that_hands_out_pointers_to_its_code_stays_loaded():
    text = "#include <thread>\nvoid f() { std::thread([] {}).detach(); }"
    built = cpp_jit.build_source("threads", cpp_jit.Source(text), exports=["f"])
    assert not built.unloadable
    assert cpp_jit.build_source("plain", cpp_jit.Source("void f() {}"), exports=["f"]).unloadable
