"""Python functions as arguments of kernels: what they get and give, raise, and outlive."""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
import traceback
import weakref
from typing import Any

import numpy as np
import pytest

import tensorplay as tp
from tensorplay.utils import cpp_jit
from tensorplay.utils.cpp_jit import callbacks

SOURCE = r"""#include <tvm/ffi/container/array.h>
#include <tvm/ffi/container/map.h>
#include <tvm/ffi/function.h>
#include <csignal>
#include <thread>
#include <vector>
using namespace tvm::ffi;
Any call(Function f, Any x) {
  return f(x);
}
Any lend(Function f, TensorView x) { return f(x); }
Any lend_raw(Function f, DLTensor* x) { return f(x); }
Any lend_odd(Function f, bool elsewhere) {
  int64_t one = 1;
  DLTensor x{&one, {elsewhere ? kDLCUDA : kDLCPU, 0}, 1, {kDLInt, 4, 1}, &one, &one, 0};
  return f(&x);
}
Any each(Array<Function> fs, Any x) {
  for (const Function& f : fs) x = f(x);
  return x;
}
Any by_name(Map<String, Function> fs, String name, Any x) { return fs[name](x); }
Any echo(Any x) { return x; }
Any interrupted(Any x) {
  std::raise(SIGINT);
  TVMFFIEnvCheckSignals();  // and goes on
  return x;
}
int64_t swallows(Function f) {
  try {
    f(1);
  } catch (...) {
    return 7;
  }
  return 0;
}
String caught(Function f) {
  try {
    f(1);
  } catch (const Error& error) {
    return error.kind();
  }
  return "nothing";
}
Function adder(int64_t n) {
  return Function::FromTyped([n](int64_t x) -> int64_t { return x + n; });
}
Function composed(Function f, Function g) {
  return Function::FromTyped([f, g](Any x) -> Any { return f(g(x)); });
}
int64_t from_threads(Function f, int64_t count, int64_t each) {
  std::vector<std::thread> threads;
  std::vector<int64_t> sums(count);
  for (int64_t t = 0; t < count; ++t) {
    threads.emplace_back([&, t] {
      for (int64_t i = 0; i < each; ++i) sums[t] += f(t, i).cast<int64_t>();
    });
  }
  for (auto& thread : threads) thread.join();
  int64_t sum = 0;
  for (int64_t s : sums) sum += s;
  return sum;
}
Any through_a_thread(Function f, Any x) {
  Any result;
  Optional<Error> failed;
  std::thread([&] {
    try {
      result = f(x);
    } catch (const Error& error) {
      failed = error;
    }
  }).join();
  if (failed.has_value()) throw *failed;
  return result;
}
static std::vector<Function> kept;
void keep(Function f) { kept.push_back(f); }
Any call_kept(Any x) { return kept.back()(x); }
void forget() { kept.clear(); }
int64_t unhappy(Function f, int64_t n) {
  int64_t m = n + 1;
  if (m < 0) return m;
  return f(m)
      .cast<int64_t>();
}
"""
NAMES = [
    *("lend", "lend_raw", "lend_odd", "interrupted"),
    *("call", "each", "by_name", "echo", "swallows", "caught", "adder", "composed"),
    *("from_threads", "through_a_thread", "keep", "call_kept", "forget", "unhappy"),
]


@pytest.fixture(scope="module")
def m() -> cpp_jit.Module:
    return cpp_jit.load_inline("callbacks", cpp_sources=SOURCE, functions=NAMES)


def line_of(text: str) -> int:
    return next(n for n, line in enumerate(SOURCE.splitlines(), 1) if text in line)


VALUES: list[Any] = [
    None,
    True,
    3,
    2**70,
    2.5,
    "short",
    "a text too long to be kept in place",
    b"bytes",
    [1, [2, "x"], {"a": None}],
    {"k": {1: [2.5]}},
]


@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_values_go_both_ways(m, value: Any) -> None:
    seen = []
    result = m.call(lambda x: (seen.append(x), x)[1], value)
    assert (seen, result) == ([value], value)
    assert type(seen[0]) is type(result) is type(value)


def test_tensors_go_both_ways_in_containers_too(m) -> None:
    x = tp.arange(3.0)
    seen: list[Any] = []

    def look(given: Any) -> Any:
        seen.append(given)
        return given

    assert m.call(look, x).tolist() == [0, 1, 2]
    result = m.call(look, [x, {"a": (x, np.ones(2))}])
    first, second = seen
    assert type(first) is type(second[0]) is type(second[1]["a"][0]) is tp.Tensor
    assert type(second[1]["a"][1]) is tp.Tensor
    first[0] = 9  # one memory
    assert x.tolist() == result[0].tolist() == result[1]["a"][0].tolist() == [9, 1, 2]
    assert m.call(lambda given: tp.ones(2) * 3, x).tolist() == [3, 3]
    assert m.call(lambda given: np.float32(2), x) == 2.0
    assert m.call(lambda given: np.bool_(True), x) is True


def frozen(array: Any) -> Any:
    array.flags.writeable = False
    return array


@pytest.mark.parametrize("inside", [lambda x: x, lambda x: [1, {"a": x}]], ids=["", "inside"])
def test_arrays_that_a_function_returns(m, inside: Any) -> None:
    for array in (
        np.arange(3.0),
        frozen(np.arange(3.0)),
        np.arange(3).astype("bfloat16"),
        frozen(np.arange(3).astype("bfloat16")),
    ):
        result = m.call(lambda x, array=array: inside(array), 1)
        got = result if type(result) is tp.Tensor else result[1]["a"]
        assert type(got) is tp.Tensor
        assert str(got.dtype) == f"tensorplay.{array.dtype}"
        assert got.tolist() == [0, 1, 2]
        if array.flags.writeable:
            got[0] = 5  # one memory
            assert array[0] == 5


@pytest.mark.parametrize(
    ("value", "error", "text"),
    [
        (np.ones(2, ">f8"), TypeError, r"expected memory that DLPack.* Write x\.astype\('float64'"),
        (
            np.array([None]),
            TypeError,
            "expected memory that DLPack can describe, got NumPy array of o",
        ),
        (np.ma.ones(2), TypeError, "expected an array without a mask"),
        ("\udc80", ValueError, r"expected text that UTF-8 has bytes for, got '\\udc80' at 0"),
    ],
    ids=["bytes swapped", "objects", "mask", "text"],
)
def test_results_that_cannot_leave(m, value: Any, error: type[Exception], text: str) -> None:
    def f(x: Any) -> Any:
        return {"a": [value]} if x else value

    at = "" if error is ValueError else r"\['a'\]\[0\]"
    with pytest.raises(error, match=rf"^\[f\] result: {text}"):
        m.call(f, 0)
    with pytest.raises(error, match=rf"^\[f\] result{at}: {text}"):
        m.call(f, 1)


DTYPES = [
    *(tp.bool, tp.uint8, tp.int16, tp.int64, tp.uint32, tp.float16, tp.bfloat16, tp.float8_e5m2),
    *(tp.float32, tp.float64, tp.complex64),
]


@pytest.mark.parametrize("by", ["lend", "lend_raw"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_view_reaches_a_function_as_a_tensor_of_its_own(m, dtype: tp.dtype, by: str) -> None:
    x = tp.arange(6).reshape(2, 3).to(dtype)
    seen: list[Any] = []
    for given in (x, x.T, x[:, 1], x[1, 2], x[:0], x[::1, ::2]):
        m[by](seen.append, given)
        assert type(seen[-1]) is tp.Tensor
        assert seen[-1].dtype is dtype
        assert seen[-1].tolist() == given.tolist()
    kept = seen[0].tolist()
    x.zero_()
    assert seen[0].tolist() == kept  # a view is gone after the call, what the function keeps is not


def test_what_a_function_writes_to_a_view_arrives(m) -> None:
    x = tp.zeros(2, 3)
    m.lend(lambda t: t.add_(1), x.T[1:])
    assert x.tolist() == [[0, 1, 1], [0, 1, 1]]
    array = np.zeros(4, np.float32)
    m.lend(lambda t: t.fill_(2), array[::-2])
    assert array.tolist() == [0, 2, 0, 2]

    def fails(t: tp.Tensor) -> None:
        t[0] = 7
        raise KeyError("after writing")

    with pytest.raises(KeyError, match="after writing"):
        m.lend(fails, array)
    assert array[0] == 7
    # One that only reads overwrites nothing, whatever happened to the memory meanwhile.
    m.lend(lambda t: array.fill(5), array)
    assert array.tolist() == [5] * 4


def test_a_view_that_no_tensor_can_be(m) -> None:
    with pytest.raises(TypeError, match=r"\[show\] .*code 0 with 4 bits"):
        m.lend_odd(show, 0)
    with pytest.raises(
        ValueError, match=r"\[show\] expected a view of memory on the cpu, got .*cuda"
    ):
        m.lend_odd(show, 1)


def show(t: tp.Tensor) -> str:
    return repr(t)


@pytest.mark.parametrize("function", [abs, str, "abc".replace, print])
def test_any_callable_is_a_function(m, function: Any) -> None:
    assert m.echo(function) is function


class Caller:
    def __call__(self, x: int) -> int:
        return x + 1

    def method(self, x: int) -> int:
        return x + 2


def test_objects_methods_and_kernels(m) -> None:
    assert m.call(Caller(), 1) == 2
    assert m.call(Caller().method, 1) == 3
    assert m.call(m.echo, 4) == 4  # a kernel
    assert m.each([lambda x: x + 1, m.adder(10), Caller()], 0) == 12
    assert m.by_name({"a": len, "b": lambda x: -x}, "b", 3) == -3


def test_functions_come_back_as_they_went_or_as_kernels(m) -> None:
    def f(x: int) -> int:
        return 2 * x

    assert m.echo(f) is f
    assert m.echo([f])[0] is f
    add = m.adder(5)
    assert add(1) == m.call(add, 1) == 6
    both = m.composed(f, add)
    assert both(1) == 12
    x = tp.ones(2)
    assert type(m.composed(lambda t: t + 1, lambda t: t * 2)(x)) is tp.Tensor
    with pytest.raises(TypeError):
        add("x")


def test_threads_of_cpp_call(m) -> None:
    seen = set()

    def f(thread: int, i: int) -> int:
        seen.add(threading.get_ident())
        return int((tp.ones(2) * i).sum().item()) * 0 + i

    assert m.from_threads(f, 4, 50) == 4 * sum(range(50))
    assert threading.get_ident() not in seen
    with pytest.raises(ValueError, match="in a thread"):
        m.through_a_thread(raising(ValueError("in a thread")), 1)


def test_threads_of_python_call_at_once(m) -> None:
    failures: list[BaseException] = []

    def run() -> None:
        try:
            for i in range(200):
                assert m.call(lambda x, i=i: x + i, 1) == 1 + i
        except BaseException as error:  # noqa: BLE001 - shown below
            failures.append(error)

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def raising(error: BaseException) -> Any:
    def raises(*_: Any) -> Any:
        raise error

    return raises


class OwnError(Exception):
    def __init__(self, code: int, *, why: str) -> None:
        super().__init__(code)
        self.why = why


class OddError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


@pytest.mark.parametrize(
    "error",
    [
        OwnError(3, why="x"),
        OddError(),
        ZeroDivisionError("by zero"),
        KeyError("k"),
        KeyboardInterrupt(),
        SystemExit(3),
        StopIteration(4),
        OSError(2, "x"),
    ],
    ids=lambda e: type(e).__name__,
)
def test_what_it_raises_arrives_as_that_very_object(m, error: BaseException) -> None:
    with pytest.raises(type(error)) as raised:
        m.call(raising(error), 1)
    assert raised.value is error
    names = [frame.name for frame in traceback.extract_tb(error.__traceback__)]
    assert names[-1] == "raises"
    assert "call" in names
    with pytest.raises(type(error)) as raised:  # through two kernels
        m.call(lambda x: m.call(raising(error), x), 1)
    assert raised.value is error


def test_the_frames_of_cpp_stand_in_the_middle(m) -> None:
    def outer(x: int) -> int:
        return m.unhappy(inner, x)

    def inner(x: int) -> int:
        return x // 0

    with pytest.raises(ZeroDivisionError) as raised:
        m.call(outer, 1)
    frames = traceback.extract_tb(raised.value.__traceback__)
    ours = [(f.filename, f.lineno, f.name) for f in frames if f.filename == "callbacks.cpp"]
    assert ours == [
        ("callbacks.cpp", line_of("  return f(x);"), "call"),
        ("callbacks.cpp", line_of("return f(m)"), "unhappy"),
    ]
    assert next(f.line for f in frames if f.filename == "callbacks.cpp") == "return f(x);"
    names = [f.name for f in frames]
    assert names.index("call") < names.index("outer") < names.index("unhappy")
    assert names[-1] == "inner"


def test_context_and_cause_stay(m) -> None:
    def f(x: int) -> int:
        try:
            return x // 0
        except ZeroDivisionError as error:
            raise OwnError(1, why="told") from error

    with pytest.raises(OwnError) as raised:
        m.call(f, 1)
    assert isinstance(raised.value.__cause__, ZeroDivisionError)

    def g(x: int) -> int:
        try:
            return x // 0
        except ZeroDivisionError:
            raise OwnError(1, why="told")  # noqa: B904 - the context is what is tested

    with pytest.raises(OwnError) as raised:
        m.call(g, 1)
    assert isinstance(raised.value.__context__, ZeroDivisionError)
    assert not raised.value.__suppress_context__


def test_cpp_may_catch_an_exception_but_no_interrupt(m) -> None:
    assert m.swallows(raising(ValueError("x"))) == 7
    assert m.caught(raising(KeyError("x"))) == "KeyError"
    assert m.caught(raising(OwnError(1, why=""))) == "RuntimeError"
    with pytest.raises(KeyboardInterrupt):
        m.swallows(raising(KeyboardInterrupt()))
    with pytest.raises(SystemExit):
        m.swallows(raising(SystemExit(1)))


@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
@pytest.mark.parametrize("value", [1, "text", "a text too long to be kept in place", [1]], ids=repr)
def test_an_interrupt_that_a_kernel_asked_about_and_ignored(m, value: Any) -> None:
    for given in (value, tp.ones(2), None):
        with pytest.raises(KeyboardInterrupt):
            m.interrupted(given)
        assert m.echo(3) == 3


@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
def test_a_signal_in_a_callback(m) -> None:
    def f(x: int) -> int:
        os.kill(os.getpid(), signal.SIGINT)
        for _ in range(1000):
            pass
        return x

    with pytest.raises(KeyboardInterrupt):
        m.call(f, 1)
    assert m.call(lambda x: x, 1) == 1


def test_a_result_that_cannot_leave(m) -> None:
    x = tp.ones(2, requires_grad=True)

    def f(_: Any) -> Any:
        return [x * 2]

    with pytest.raises(RuntimeError, match=r"^\[f\] result\[0\]: can't export tensors that requ"):
        m.call(f, 1)
    with tp.no_grad():
        assert m.call(f, 1)[0].tolist() == [2, 2]
    with pytest.raises(ValueError, match="expected a tensor with memory on cpu, got one on meta"):
        m.call(lambda _: tp.ones(2, device="meta"), 1)


def test_endless_calls_of_one_another_raise(m) -> None:
    def f(x: int) -> int:
        return m.call(f, x + 1)

    with pytest.raises(RecursionError):
        m.call(f, 0)

    def kept(x: int) -> int:
        return m.call_kept(x)

    m.keep(kept)
    try:
        with pytest.raises(RecursionError):
            m.call_kept(0)
    finally:
        m.forget()

    def deep(levels: int) -> int:  # where Python's own stack is nearly at its end
        return m.call(lambda x: x, 1) if levels == 0 else deep(levels - 1)

    outcomes = set()
    limit = sys.getrecursionlimit()
    for levels in range(limit - 120, limit):
        try:
            outcomes.add(deep(levels))
        except RecursionError:
            outcomes.add(RecursionError)
    assert outcomes == {1, RecursionError}
    assert m.call(lambda x: x, 1) == 1


def test_a_function_lives_as_long_as_cpp_holds_it(m) -> None:
    class Function:
        def __call__(self, x: int) -> int:
            return x + 1

    f = Function()
    watch = weakref.ref(f)
    assert m.call(f, 1) == 2
    m.keep(f)
    del f
    gc.collect()
    assert watch() is not None
    assert m.call_kept(1) == 2
    m.forget()
    gc.collect()
    assert watch() is None


def test_exceptions_hold_nothing_afterwards(m) -> None:
    class Held:
        pass

    def attempt() -> weakref.ref[Any]:
        held = Held()

        def f(_: Any) -> Any:
            raise OwnError(id(held), why="")

        with pytest.raises(OwnError):
            m.call(f, 1)
        return weakref.ref(held)

    gc.collect()
    before = len(callbacks._alive)
    watch = attempt()
    gc.collect()
    assert watch() is None
    assert len(callbacks._alive) <= before


def test_many_calls_leave_nothing(m) -> None:
    def run(times: int) -> None:
        for _ in range(times):
            m.call(lambda x: x, 1)
            m.call(lambda x: [x], {"a": 1})
        for _ in range(times // 10):
            with pytest.raises(ValueError, match="x"):
                m.call(raising(ValueError("x")), 1)

    def living() -> int:
        gc.collect()
        return sum(type(o).__name__ in KINDS for o in gc.get_objects()) + len(callbacks._alive)

    run(300)
    before = living()
    run(1000)
    assert living() - before < 50


KINDS = {
    *("Callback", "Function", "function", "traceback", "frame", "generator", "cell"),
    *("Error", "ValueError", "_Carrier", "Array", "Map", "Kernel", "OpaquePyObject"),
}
