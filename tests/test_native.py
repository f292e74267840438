"""The compiled part of the runtime, and what stands in for it where it is not built."""

from __future__ import annotations

import gc
import hashlib
import json
import os
import subprocess
import sys
import threading
import types
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import tensorplay as tp
from tensorplay import _native
from tensorplay.utils import cpp_jit

compiled = pytest.mark.skipif(_native.core is None, reason=f"extension: {_native.reason}")

SOURCE = """
#include <string>
void copy(tvm::ffi::TensorView x, tvm::ffi::TensorView out) {
  // Element by element through the strides, whatever the layout is.
  int64_t n = 1;
  for (int i = 0; i < x.ndim(); ++i) n *= x.size(i);
  const int64_t item = x.dtype().bits / 8;
  for (int64_t k = 0; k < n; ++k) {
    int64_t rest = k, from = 0, to = 0;
    for (int i = x.ndim() - 1; i >= 0; --i) {
      from += rest % x.size(i) * x.stride(i);
      to += rest % x.size(i) * out.stride(i);
      rest /= x.size(i);
    }
    for (int64_t b = 0; b < item; ++b) {
      static_cast<char*>(out.data_ptr())[to * item + b] =
          static_cast<const char*>(x.data_ptr())[from * item + b];
    }
  }
}
int64_t kind(tvm::ffi::TensorView x) {
  return x.dtype().code * 10000 + x.dtype().bits * 10 + x.ndim();
}
tvm::ffi::Tensor same(tvm::ffi::Tensor x) { return x; }
tvm::ffi::Tensor make(int64_t n, int64_t code, int64_t bits, int64_t lanes, int64_t device) {
  return tvm::ffi::Tensor::FromEnvAlloc(
      TVMFFIEnvTensorAlloc, tvm::ffi::Shape({n, 2}),
      DLDataType{static_cast<uint8_t>(code), static_cast<uint8_t>(bits),
                 static_cast<uint16_t>(lanes)},
      DLDevice{static_cast<DLDeviceType>(device), 0});
}
tvm::ffi::Tensor shaped(int64_t a, int64_t b, int64_t c, int64_t bits) {
  return tvm::ffi::Tensor::FromEnvAlloc(
      TVMFFIEnvTensorAlloc, tvm::ffi::Shape({a, b, c}),
      DLDataType{kDLInt, static_cast<uint8_t>(bits), 1}, DLDevice{kDLCPU, 0});
}
double first(tvm::ffi::TensorView x) { return static_cast<double*>(x.data_ptr())[0]; }
"""

# What is printed must be the same with the extension and without it.
BOTH = f"""
import json, warnings
import numpy as np
import tensorplay as tp
from tensorplay import _native
from tensorplay.utils import cpp_jit

m = cpp_jit.load_inline("both", cpp_sources={SOURCE!r},
                        functions=["copy", "kind", "same", "make", "shaped", "first"])
rows = [m.copy.__class__.__name__]

def attempt(call):
    try:
        rows.append(repr(call()))
    except Exception as error:
        rows.append(f"{{type(error).__name__}}: {{error}}")

x = tp.arange(6, dtype=tp.float64).reshape(2, 3)
for view in (x, x.T, x[:, ::2], x.flip(0), x[0], x[1, 1], x[:0], tp.ones(1).expand(3, 4)):
    out = tp.zeros(view.shape, dtype=view.dtype)
    attempt(lambda: (m.copy(view, out), out.tolist()))
attempt(lambda: m.same(x).tolist())
attempt(lambda: type(m.same(x)).__name__)
attempt(lambda: m.same(np.ones(2)).tolist())
for dtype in (tp.bool, tp.uint8, tp.int16, tp.uint32, tp.int64, tp.float16, tp.bfloat16,
              tp.float8_e4m3fn, tp.float8_e5m2, tp.complex64, tp.complex128):
    attempt(lambda: m.kind(tp.ones(2, 2).to(dtype)))
    attempt(lambda: str(m.same(tp.ones(2).to(dtype)).dtype))
leaf = tp.ones(2, dtype=tp.float64, requires_grad=True)
attempt(lambda: m.first(leaf))
with tp.no_grad():
    attempt(lambda: m.first(leaf))
attempt(lambda: m.first(leaf.detach()))
attempt(lambda: m.first(leaf * 2))
attempt(lambda: m.first(tp.ones(2, device="meta")))
attempt(lambda: m.copy(tp.ones(2), out=tp.ones(2, device="meta")))
attempt(lambda: tp.func.vmap(lambda x: m.same(x))(tp.ones(3, 2)))
view = tp.zeros(3, dtype=tp.float64)
half = view[1:]
view.mul_(tp.ones(3, dtype=tp.float64, requires_grad=True))
attempt(lambda: m.first(half))
for args in ((3, 2, 64, 1, 1), (3, 2, 7, 1, 1), (3, 2, 32, 4, 1), (3, 2, 32, 1, 2),
             (-1, 2, 32, 1, 1), (2**61, 2, 64, 1, 1), (0, 6, 8, 1, 1),
             *((1, code, bits, 1, 1) for code in range(19) for bits in (4, 8, 16, 32, 64, 128))):
    attempt(lambda: (tuple(m.make(*args).shape), m.make(*args).dtype))
for args in ((2, 3, 4, 64), (0, 3, 4, 64), (2, 0, 4, 8), (0, 2**62, 1, 8), (0, 2**62, 2**62, 64),
             (2**62, 2**62, 0, 64), (2**62, 0, 2**62, 64), (2**40, 2**40, 2**40, 64)):
    attempt(lambda: (tuple(m.shaped(*args).shape), m.shaped(*args).stride()))
attempt(lambda: m.make(3, 2, 64, 1, device=1).shape == (3, 2))
attempt(lambda: m.first("x"))
attempt(lambda: m.first())
attempt(lambda: m.first([1.0]))
attempt(lambda: m.first(None))
frozen = np.ones(3); frozen.flags.writeable = False
attempt(lambda: m.first(frozen))
print(json.dumps(rows))
"""


@pytest.fixture(scope="module")
def kernels() -> Any:
    return cpp_jit.load_inline(
        "native", cpp_sources=SOURCE, functions=["copy", "kind", "same", "make", "shaped", "first"]
    )


@compiled
def test_both_ways_say_and_give_the_same() -> None:
    shown = []
    for native in ("1", "0"):
        done = subprocess.run(
            [sys.executable, "-c", BOTH],
            check=False,
            capture_output=True,
            text=True,
            env={**os.environ, "TENSORPLAY_NATIVE": native},
        )
        assert done.returncode == 0, done.stderr
        shown.append(json.loads(done.stdout))
    for with_it, without in zip(*shown, strict=True):
        assert with_it == without


def test_without_it_everything_says_so() -> None:
    code = (
        "import tensorplay as tp; from tensorplay import _native; "
        "assert _native.core is None; print(tp.show_config('dicts')['native'])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        check=True,
        capture_output=True,
        text=True,
        env={**os.environ, "TENSORPLAY_NATIVE": "0"},
    )
    assert done.stdout == "not there (switched off by TENSORPLAY_NATIVE=0)\n"


def test_show_config(capsys: pytest.CaptureFixture[str]) -> None:
    facts = tp.show_config("dicts")
    assert facts is not None
    assert facts["numpy"] == np.__version__
    assert facts["native"] == ("built" if _native.core is not None else facts["native"])
    assert tp.show_config() is None
    shown = capsys.readouterr().out
    assert all(f"{name} " in shown and str(value) in shown for name, value in facts.items())
    with pytest.raises(ValueError, match="expected 'stdout' or 'dicts'"):
        tp.show_config("x")


def references(tensor: tp.Tensor) -> int:
    """Return how many hold the array of a tensor."""
    return sys.getrefcount(tensor._array)


@compiled
def test_an_export_gives_its_array_back(kernels: Any) -> None:
    x = tp.ones(3, dtype=tp.float64)
    before = references(x)
    for _ in range(200):
        assert kernels.first(x) == 1
    assert references(x) == before
    kept = [kernels.same(x) for _ in range(100)]  # more at once than are kept for the next call
    assert references(x) > before
    del kept
    gc.collect()
    assert references(x) == before


@compiled
def test_a_refused_export_gives_its_array_back(kernels: Any) -> None:
    odd = tp.zeros(1)
    odd._array = np.zeros(3, np.dtype("f4,f4"))["f1"]  # a field: half an element apart
    odd._array = np.lib.stride_tricks.as_strided(odd._array, (2,), (6,))
    before = references(odd)
    for _ in range(50):
        with pytest.raises(TypeError, match="multiple of itemsize"):
            kernels.first(odd)
    gc.collect()
    assert references(odd) == before


def test_a_result_outlives_everything_else(kernels: Any) -> None:
    made = kernels.same(tp.arange(4, dtype=tp.float64))
    gc.collect()
    assert made.tolist() == [0, 1, 2, 3]
    made.numpy()[0] = 9
    assert kernels.first(made) == 9
    again = kernels.same(kernels.same(made))
    made.numpy()[1] = 5
    assert again.tolist() == [9, 5, 2, 3]  # one memory


def test_subclasses_go_in_and_batches_do_not(kernels: Any) -> None:
    class Mine(tp.Tensor):
        pass

    assert kernels.kind(Mine([1.0, 2.0])) == 20321
    with pytest.raises(
        RuntimeError, match=r"^\[native::first\] argument 'x' .*: vmap: the elements of a batched"
    ):
        tp.func.vmap(lambda x: tp.tensor(kernels.first(x)))(tp.ones(3, 2, dtype=tp.float64))


def test_a_tensor_without_memory_does_not_go_in(kernels: Any) -> None:
    text = (
        r"^\[native::{}\] argument '{}' .*: expected a tensor with memory on cpu, got one on meta\."
    )
    with pytest.raises(ValueError, match=text.format("first", "x")):
        kernels.first(tp.ones(2, device="meta"))
    with pytest.raises(ValueError, match=text.format("copy", "out")):
        kernels.copy(tp.ones(2), tp.ones(2, device="meta"))


def test_what_another_librarys_tensor_refuses_is_said(kernels: Any) -> None:
    class Other:
        def __dlpack__(self, **_: Any) -> Any:
            raise BufferError("no memory")

        def __dlpack_device__(self) -> tuple[int, int]:
            return (1, 0)

        def numpy(self) -> Any:
            raise RuntimeError("resolve the conjugate first")

    with pytest.raises(RuntimeError, match=r"^\[native::first\] argument 'x' .*: resolve the conj"):
        kernels.first(Other())


@pytest.mark.parametrize("code", [7, 8, 9, 14, 17])
def test_types_that_the_runtime_lacks_are_not_allocated(kernels: Any, code: int) -> None:
    with pytest.raises(ValueError, match=f"unsupported dlpack dtype: code {code}, bits 8, lanes 1"):
        kernels.make(1, code, 8, 1, 1)


@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, ml_dtypes.float8_e5m2])
def test_narrow_types_keep_their_bits(kernels: Any, dtype: Any) -> None:
    array = np.arange(6).astype(dtype).reshape(2, 3)
    x = tp.from_numpy(array)
    out = tp.zeros(2, 3).to(x.dtype)
    kernels.copy(x, out)
    assert out.numpy().tobytes() == array.tobytes()


@pytest.mark.slow
def test_threads_allocate_and_free_without_growth(kernels: Any) -> None:
    """8 threads, 100,000 allocations each: nothing is left, nothing fails, memory stays."""
    from tensorplay.utils.cpp_jit import allocator

    gc.collect()
    before = allocator.live_allocations()
    failures: list[BaseException] = []
    pages: list[int] = []

    def run(number: int) -> None:
        try:
            held: list[Any] = []
            for turn in range(100_000):
                if number == 0 and turn in {20_000, 99_999}:
                    pages.append(resident())
                held.append(kernels.make(turn % 7, 2, 64, 1, 1))
                if len(held) > 20:
                    held.clear()
        except BaseException as problem:  # noqa: BLE001  (shown by the test)
            failures.append(problem)

    threads = [threading.Thread(target=run, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    gc.collect()
    assert allocator.live_allocations() == before
    assert pages[1] - pages[0] < 8 << 20


def resident() -> int:
    """Return the bytes of this process in memory, or 0 where the system does not say."""
    file = Path("/proc/self/statm")
    return int(file.read_text().split()[1]) * os.sysconf("SC_PAGESIZE") if file.exists() else 0


@pytest.mark.parametrize("times", [10_000, pytest.param(1_000_000, marks=pytest.mark.slow)])
def test_calls_leave_nothing(kernels: Any, times: int) -> None:
    """10^6 calls of each kind: no tensor, no object, no memory is left."""
    from tensorplay.utils.cpp_jit import allocator

    x, out = tp.ones(3, dtype=tp.float64), tp.zeros(3, dtype=tp.float64)
    array = np.ones(3)

    def run(count: int) -> None:
        for _ in range(count):
            kernels.first(x)
            kernels.first(array)
            kernels.copy(x, out=out)
            kernels.same(x)
            kernels.make(1, 2, 64, 1, 1)

    run(times // 5)
    gc.collect()
    live, held, pages = allocator.live_allocations(), references(x), resident()
    run(times)
    gc.collect()
    assert allocator.live_allocations() == live
    assert references(x) == held
    assert resident() - pages < 4 << 20


def test_nothing_fails_at_exit() -> None:
    code = f"""
import tensorplay as tp
from tensorplay.utils import cpp_jit
m = cpp_jit.load_inline("at_exit", cpp_sources={SOURCE!r} + '''
#include <vector>
static std::vector<tvm::ffi::Tensor> kept;
void keep(tvm::ffi::Tensor x) {{ kept.push_back(x); }}
''', functions=["make", "same", "keep"])
x = tp.ones(3)
m.keep(x)
m.keep(m.make(3, 2, 64, 1, 1))
tp.kept_until_exit = [m.same(x), m.make(3, 2, 64, 1, 1), m]
"""
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_tensor_with_a_tangent_does_not_enter_a_kernel(kernels: Any) -> None:
    x = tp.ones(3, dtype=tp.float64)
    with pytest.raises(RuntimeError, match=r"argument 'x' .*: .* has a tangent"):
        tp.func.jvp(lambda a: tp.tensor(kernels.first(a)), (x,), (x,))


@pytest.mark.parametrize(
    ("attributes", "age"),
    [({}, "older"), ({"interface": 1}, "older"), ({"interface": 99}, "newer")],
)
def test_an_extension_of_another_age_is_left_alone_and_said_so(monkeypatch, attributes, age):
    name = "tensorplay._native._core"
    other = types.ModuleType(name)
    vars(other).update(attributes)
    monkeypatch.setitem(sys.modules, name, other)
    monkeypatch.delenv("TENSORPLAY_NATIVE", raising=False)
    core, reason = _native._load()
    assert core is None
    monkeypatch.setattr(_native, "core", core)
    monkeypatch.setattr(_native, "reason", reason)
    native = tp.show_config("dicts")["native"]
    assert native.startswith(f"not there ({age} than the Python code beside it, interface ")
    assert "install tensorplay-workbench again" in native


@compiled
def test_the_number_of_the_interface_changes_with_the_interface():
    # Where this fails raise `kInterface` in `_native/src/module.cpp` and `INTERFACE` in
    # `_native/__init__.py`, and write the new pair here: an older extension is then told apart.
    members = {n: m for n, m in vars(_native.core).items() if n[0] != "_" and callable(m)}
    text = "\n".join(f"{n}: {members[n].__doc__}" for n in sorted(members))
    digest = hashlib.sha256(text.encode()).hexdigest()[:12]
    assert (_native.INTERFACE, digest) == (9, "9c450f2ebb26")
    assert _native.core.interface == _native.INTERFACE


@pytest.mark.parametrize(
    ("file", "words"),
    [
        ("CMakeLists.txt", "not built: Python found this source folder before an installed"),
        ("other.txt", "not built: no C++ compiler was found when the package was installed"),
    ],
)
def test_why_there_is_no_extension(monkeypatch, tmp_path: Path, file: str, words: str) -> None:
    (tmp_path / file).touch()
    monkeypatch.setattr(_native, "__file__", str(tmp_path / "tensorplay/_native/__init__.py"))
    monkeypatch.setitem(sys.modules, "tensorplay._native._core", None)
    monkeypatch.delenv("TENSORPLAY_NATIVE", raising=False)
    core, reason = _native._load()
    assert core is None
    assert reason.startswith(words)
