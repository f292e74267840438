"""Calls past the engine's Python layer, compared with calls through it."""

from __future__ import annotations

import gc
import threading
import time
from typing import Any

import numpy as np
import pytest
import tvm_ffi

import tensorplay as tp
from tensorplay.utils import cpp_jit
from tensorplay.utils.cpp_jit import allocator, held
from tensorplay.utils.cpp_jit.values import from_engine

SOURCE = r"""#include <atomic>
#include <chrono>
#include <stdexcept>
#include <thread>
using tvm::ffi::Tensor;
using tvm::ffi::TensorView;
int64_t view(TensorView x) { return x.numel(); }
int64_t view_ref(const tvm::ffi::TensorView& x) { return x.ndim(); }
int64_t owned(Tensor x) { return x.numel(); }
Tensor same(Tensor x) { return x; }
Tensor made(TensorView x) {
  return Tensor::FromEnvAlloc(TVMFFIEnvTensorAlloc, x.shape(), x.dtype(), x.device());
}
double sum_of_strides(TensorView x, TensorView y) {
  double sum = 0;
  for (int i = 0; i < x.ndim(); ++i) sum += 10 * x.stride(i) + x.size(i);
  for (int i = 0; i < y.ndim(); ++i) sum += 1000 * y.stride(i) + 100 * y.size(i);
  return sum;
}
double first(TensorView x) { return static_cast<const double*>(x.data_ptr())[0]; }
int64_t integer(int64_t x) { return x; }
double real(double x) { return x; }
bool truth(bool x) { return x; }
void nothing() {}
int64_t scaled(TensorView x, int64_t by, double and_by, bool negated) {
  return static_cast<int64_t>(x.numel() * by * and_by) * (negated ? -1 : 1);
}
int64_t many(int64_t a, int64_t b, int64_t c, int64_t d, int64_t e, int64_t f, int64_t g, int64_t h,
             int64_t i, int64_t j, int64_t k, int64_t l, int64_t m, int64_t n, int64_t o, int64_t p,
             int64_t q) {
  return a + b + c + d + e + f + g + h + i + j + k + l + m + n + o + p + q;
}
int64_t sixteen(TensorView a, TensorView b, TensorView c, TensorView d, Tensor e, TensorView f,
                TensorView g, TensorView h, TensorView i, TensorView j, Tensor k, TensorView l,
                TensorView m, TensorView n, TensorView o, TensorView p) {
  return a.numel() + b.numel() + c.numel() + d.numel() + e.numel() + f.numel() + g.numel() +
         h.numel() + i.numel() + j.numel() + k.numel() + l.numel() + m.numel() + n.numel() +
         o.numel() + p.numel();
}
void fails(TensorView x, int64_t how) {
  if (how == 0) throw std::out_of_range("no such thing");
  if (how == 1) TVM_FFI_THROW(KeyError) << "a key of " << x.numel();
  if (how == 2) throw 42;
}
std::string text(TensorView x) { return x.numel() > 3 ? "a text that is kept apart" : "short"; }
// Whether something comes true within a time that is ample where no lock is held.
template <class Condition> bool comes(Condition condition) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  while (!condition() && std::chrono::steady_clock::now() < end) std::this_thread::yield();
  return condition();
}
static std::atomic<int> arrived{0};
int64_t meets(TensorView x) {
  ++arrived;
  return comes([] { return arrived.load() >= 2; }) ? x.numel() : -1;
}
static std::atomic<bool> inside{false};
static std::atomic<bool> leave{false};
double stays(TensorView x) {
  inside = true;
  if (!comes([] { return leave.load(); })) return -1;
  return static_cast<const double*>(x.data_ptr())[0];
}
bool is_inside() { return inside.load(); }
void let_go() { leave = true; }
"""
NAMES = [
    *("view", "view_ref", "owned", "same", "made", "sum_of_strides", "first", "integer", "real"),
    *("truth", "nothing", "scaled", "many", "sixteen", "fails", "text", "meets", "stays"),
    *("is_inside", "let_go"),
]


@pytest.fixture(scope="module")
def m() -> cpp_jit.Module:
    return cpp_jit.load_inline("direct", cpp_sources=SOURCE, functions=NAMES)


def outcome(call: Any) -> Any:
    """Return the type and value of a call, or the type of what it raises."""
    try:
        result = from_engine(call())
    except Exception as error:  # noqa: BLE001 - compared below
        return type(error)
    return type(result), result.tolist() if isinstance(result, tp.Tensor) else repr(result)


ARGUMENTS: dict[str, Any] = {
    "tensor": tp.tensor([1.5, 2.5]),
    "tensor of none": tp.ones(0, 3),
    "tensor of no dimension": tp.tensor(2.5),
    "strided tensor": tp.ones(4, 6, dtype=tp.float64)[::2, 1:].T,
    "bfloat16": tp.ones(3, dtype=tp.bfloat16),
    "complex": tp.ones(3, dtype=tp.complex64),
    "bool tensor": tp.ones(3, dtype=tp.bool),
    "integers": tp.arange(3),
    "16 dimensions": tp.ones(*[1] * 16),
    "60 dimensions": tp.ones(*[1] * 60),
    "None": None,
    "true": True,
    "false": False,
    "int": -3,
    "largest": 2**63 - 1,
    "smallest": -(2**63),
    "too large": 2**63,
    "float": 2.5,
    "nan": float("nan"),
    "text": "x",
    "array": np.ones(3),
}


@pytest.mark.parametrize("argument", ARGUMENTS)
@pytest.mark.parametrize(
    "name", ["view", "view_ref", "owned", "same", "made", "text", "integer", "real", "truth"]
)
def test_a_call_gives_what_the_engine_gives(m, name: str, argument: str) -> None:
    kernel, value = m[name], ARGUMENTS[argument]
    expected = outcome(lambda: kernel._function(value))
    got = outcome(lambda: kernel(value))
    if name == "made":  # its elements are those that the memory had
        expected, got = (o if isinstance(o, type) else o[0] for o in (expected, got))
    assert got == expected


def test_shapes_strides_and_places_are_those_of_the_tensors(m) -> None:
    x, y = tp.arange(24.0, dtype=tp.float64).reshape(4, 6), tp.ones(2, 3, 5)
    for a, b in ((x, y), (y, x), (x[1:, ::2], y[:, :, 0]), (x.T, y.permute(2, 0, 1))):
        assert m.sum_of_strides(a, b) == m.sum_of_strides._function(a, b)
    assert m.first(x[2:, 3:]) == 15
    assert m.first(tp.from_numpy(np.arange(4.0)[::-1])) == 3


def test_several_arguments(m) -> None:
    assert m.nothing() is None
    assert m.scaled(tp.ones(4), 3, 0.5, True) == -6
    assert m.scaled(tp.ones(4), by=3, and_by=0.5, negated=False) == 6
    assert m.many(*range(17)) == sum(range(17))
    tensors = [tp.ones(i) for i in range(16)]
    assert m.sixteen(*tensors) == sum(range(16))
    # Together they have more sizes than there is room for.
    assert m.sixteen(*[tp.ones(*[1] * 10, i) for i in range(16)]) == sum(range(16))


@pytest.mark.parametrize(
    ("how", "error", "text"),
    [(0, IndexError, "no such thing"), (1, KeyError, "a key of 3"), (2, RuntimeError, "type int")],
)
def test_errors_arrive(m, how: int, error: type[Exception], text: str) -> None:
    x = tp.ones(3)
    with pytest.raises(error, match=text):
        m.fails(x, how)
    assert m.fails(x, 3) is None


def test_a_refused_tensor_leaves_nothing_behind(m) -> None:
    needs, x = tp.ones(2, requires_grad=True), tp.ones(2)
    for _ in range(3):
        with pytest.raises(RuntimeError, match=r"argument 'y' .*: .* does not require grad"):
            m.sum_of_strides(x, needs)
        with pytest.raises(ValueError, match="got one on meta"):
            m.owned(tp.ones(2, device="meta"))
    with tp.no_grad():
        assert m.owned(needs) == 2


def test_results_are_tensors_that_share_memory(m) -> None:
    x = tp.ones(3)
    y = m.same(x)
    assert type(y) is tp.Tensor
    y[0] = 5
    assert x.tolist() == [5, 1, 1]
    gc.collect()
    live = allocator.live_allocations()
    z = m.made(x)
    assert type(z) is tp.Tensor
    assert allocator.live_allocations() == live + 1
    del z
    assert allocator.live_allocations() == live


def test_kernels_run_beside_each_other(m) -> None:
    # Each waits in C++ for the other: with the interpreter's lock held neither would return.
    results = []
    threads = [
        threading.Thread(target=lambda: results.append(m.meets(tp.ones(2)))) for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert results == [2, 2]


def test_memory_stays_while_a_kernel_reads_it(m) -> None:
    only = {"x": tp.full((200_000,), 7.0, dtype=tp.float64)}
    results = []
    thread = threading.Thread(target=lambda: results.append(m.stays(only.pop("x"))))
    thread.start()
    while not m.is_inside() and thread.is_alive():
        time.sleep(0.001)
    gc.collect()
    others = [np.zeros(200_000) for _ in range(20)]  # what freed memory would be used for
    m.let_go()
    thread.join(60)
    assert results == [7.0]
    assert len(others) == 20


def test_an_engine_with_other_objects_is_left_alone(monkeypatch) -> None:
    held._holder.cache_clear()
    with monkeypatch.context() as patch:
        patch.setattr(held, "_is_as_declared", lambda *_: False)
        source = "int64_t half(int64_t x) { return x / 2; }"
        module = cpp_jit.load_inline("other_objects", cpp_sources=source, functions="half")
        assert not held.prepare()
        assert module.half(6) == 3
        assert isinstance(held.opaque(object()), tvm_ffi.core.OpaquePyObject)
    held._holder.cache_clear()
    assert held.prepare()
