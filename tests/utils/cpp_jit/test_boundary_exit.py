"""The end of the interpreter while C++ holds objects of Python, in static variables and threads."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

SOURCE = r"""#include <tvm/ffi/container/array.h>
#include <tvm/ffi/container/map.h>
#include <tvm/ffi/function.h>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <thread>
#include <vector>
using namespace tvm::ffi;
static void pause(int64_t ms) { std::this_thread::sleep_for(std::chrono::milliseconds(ms)); }

static std::mutex& lock = *new std::mutex;
static std::vector<Any>& kept = *new std::vector<Any>;
struct Clears {  // what the destructor of a static vector would do, while threads go on
  ~Clears() {
    std::lock_guard<std::mutex> here(lock);
    kept.clear();
  }
};
static Clears clears;
void keep(Any x) {
  std::lock_guard<std::mutex> here(lock);
  kept.push_back(x);
}
Any kept_last() {
  std::lock_guard<std::mutex> here(lock);
  return kept.back();
}
void keep_result(Function f, Any x) { keep(f(x)); }
void keep_error(Function f, Any x) {
  try {
    f(x);
  } catch (const Error& error) {
    keep(error);
  }
}
Any call(Function f, Any x) { return f(x); }
Function composed(Function f, Function g) {
  return Function::FromTyped([f, g](Any x) -> Any { return f(g(x)); });
}

struct CallsAtTheEnd {
  Optional<Function> f;
  ~CallsAtTheEnd() {
    if (!f.has_value()) return;
    try {
      (*f)(1);
    } catch (const Error& error) {
      std::printf("%s\n", error.message().c_str());
      std::fflush(stdout);
    }
  }
};
static CallsAtTheEnd at_the_end;
void call_at_the_end(Function f) { at_the_end.f = f; }
void call_first_at_the_end(Array<Any> x) { at_the_end.f = x[0].cast<Function>(); }

static std::atomic<bool> ending{false}, finished{true}, calling{false};
struct Waits {
  ~Waits() {  // there is no interpreter now
    ending = true;
    for (int64_t ms = 0; !finished; ++ms) {
      if (ms == 60000) std::abort();
      if (ms == 500 && calling) break;  // parked, if it was about to enter the interpreter
      pause(1);
    }
  }
};
static Waits waits;  // destroyed before the others: threads go on without an interpreter meanwhile
void calls_forever(Function f) {
  finished = false;
  calling = true;
  std::thread([f] {
    for (;;) {
      const bool is_gone = ending;
      try {
        Any made = f(1);
      } catch (const Error&) {
        if (is_gone) finished = true;
      }
      std::this_thread::yield();
    }
  }).detach();
}
void lets_go_late(Any x) {
  finished = false;
  auto* held = new Any(x);
  std::thread([held] {
    while (!ending) pause(1);
    delete held;
    std::printf("let go\n");
    std::fflush(stdout);
    finished = true;
  }).detach();
}
void sleeps(int64_t ms) { pause(ms); }
"""
NAMES = [
    *("keep", "kept_last", "keep_result", "keep_error", "call", "composed", "call_at_the_end"),
    *("call_first_at_the_end", "calls_forever", "lets_go_late", "sleeps"),
]
START = f"""
import atexit, datetime, decimal, threading, time
import numpy as np, tvm_ffi
class Mine: pass
made_before = tvm_ffi.Array([Mine(), lambda x: x, tvm_ffi.List([Mine()])])
import tensorplay as tp
from tensorplay.utils import cpp_jit
build = cpp_jit.build_inline("exits", cpp_sources={SOURCE!r}, functions={NAMES!r})
m = cpp_jit.load_module(build)
engines = tvm_ffi.load_module(str(build))
def in_threads(f):
    called = set()
    def run():
        while True:
            f()
            called.add(threading.get_ident())
    for _ in range(4): threading.Thread(target=run, daemon=True).start()
    while len(called) < 4: time.sleep(0.001)
t = tp.ones(3)
"""

HELD = {
    "plain objects": """
for x in (Mine(), {1}, range(3), slice(1), 1j, decimal.Decimal(2), datetime.date(2020, 1, 1),
          np.datetime64("2020-01-01"), memoryview(b"raw"), object(), threading, m):
    m.keep(x)
    assert m.kept_last() == x and type(m.kept_last()) is type(x)
""",
    "objects in containers": """
m.keep([1, Mine(), (Mine(), {"a": [Mine(), lambda: 1, t]})])
m.keep({"a": Mine(), "b": {1: Mine()}})
assert type(m.kept_last()["b"][1]) is Mine
""",
    "tensors and arrays": """
m.keep(t)
m.keep(np.ones(3))
m.keep([t, {"a": np.ones(2)}])
m.keep(tvm_ffi.from_dlpack(np.ones(3)))
""",
    "functions": """
m.keep(tvm_ffi.convert(Mine()))
m.keep(lambda x: t)
m.keep([lambda x: x, {"f": Mine}])
m.keep(t.sum)
m.keep(m.keep)
m.keep(tvm_ffi.convert(lambda x: x))
tp.held = m.composed(lambda x: x, lambda x: x)
""",
    "registered functions": """
cpp_jit.register_global_func("exits.ours", lambda x: x)
tvm_ffi.register_global_func("exits.engine's", lambda x: x)
m.keep(cpp_jit.get_global_func("exits.ours"))
""",
    "results of functions": """
m.keep_result(lambda x: Mine(), 1)
m.keep_result(lambda x: [lambda y: x, Mine()], 1)
""",
    "errors": """
m.keep_error(lambda x: 1 // 0, 1)
m.keep(ValueError("x"))
try:
    m.call(lambda x: 1 // 0, 1)
except ZeroDivisionError as error:
    tp.held = error
""",
    "an object that a function reaches at exit": """
m.keep(Mine())
atexit.register(lambda: m.call(lambda x: m.keep(Mine()), 1))
""",
}
#: What the engine makes of Python objects by itself, for whomever, and nothing of ours sees.
MADE_BY_THE_ENGINE = {
    "arrays": "m.keep(tvm_ffi.Array([Mine(), lambda x: x, (Mine(), {1: lambda: 1})]))",
    "what it converts": "m.keep(tvm_ffi.convert([Mine(), [lambda x: x], {'a': [Mine()]}, {1}]))",
    "maps": "m.keep(tvm_ffi.Map({'a': Mine(), 'b': lambda x: x, 'c': {'d': Mine()}}))",
    "lists, changed later": """
made = tvm_ffi.List([Mine()])
m.keep(made)
made.append(Mine())
made.extend([lambda x: x, [Mine()]])
made[0] = lambda x: x
del made
""",
    "dicts, changed later": """
made = tvm_ffi.Dict({"a": Mine()})
m.keep([made])
made["b"] = Mine()
made["a"] = [lambda x: x, Mine()]
del made
""",
    "containers that callbacks return": """
m.keep_result(lambda x: tvm_ffi.Array([Mine(), lambda y: x]), 1)
m.keep_result(lambda x: tvm_ffi.convert({"a": [Mine(), x]}), t)
m.keep_result(tvm_ffi.convert(lambda x: [Mine(), lambda y: x]), 1)
""",
    "containers of functions that it registers": """
tvm_ffi.register_global_func("exits.list", lambda x: tvm_ffi.List([x, Mine(), lambda y: x]))
m.keep(tvm_ffi.get_global_func("exits.list")(Mine()))
m.keep_result(tvm_ffi.get_global_func("exits.list"), Mine())
""",
    "objects that it passes to C++": """
engines.keep(Mine())
engines.keep([Mine(), lambda x: x, {"a": Mine()}])
engines.keep_result(lambda x: [Mine(), lambda y: x], Mine())
engines.keep_error(lambda x: 1 // 0, 1)
""",
    "what C functions keep alive": """
m.keep(tvm_ffi.Function.__from_extern_c__(1, keep_alive_object=Mine()))
m.keep([tvm_ffi.Function.__from_mlir_packed_safe_call__(1, keep_alive_object=Mine())])
""",
    "containers made before": "m.keep(made_before); del made_before",
}
#: With what they write at the end: the interpreter is gone, the process is not.
ALIVE = {
    "a static variable calls": ("m.call_at_the_end(lambda x: x)", "interpreter has ended\n"),
    "a static variable calls what an array holds": (
        "m.call_first_at_the_end(tvm_ffi.Array([lambda x: x]))",
        "interpreter has ended\n",
    ),
    "a static variable calls what the engine passed": (
        "engines.call_at_the_end(lambda x: x)",
        "interpreter has ended\n",
    ),
    "a thread calls": ("m.calls_forever(lambda x: Mine())", ""),
    "a thread lets go of an object": ("m.lets_go_late(Mine())", "let go\n"),
    "a thread lets go of a function": ("m.lets_go_late([lambda: t])", "let go\n"),
    "a thread lets go of an array": (
        "m.lets_go_late(tvm_ffi.Array([Mine(), lambda x: x]))",
        "let go\n",
    ),
    "a thread lets go of an array made before": ("m.lets_go_late(made_before)", "let go\n"),
    "a thread lets go of a tensor": ("m.lets_go_late(t)", "let go\n"),
    "threads of Python are in a kernel": ("in_threads(lambda: m.sleeps(5))", ""),
    "threads of Python call back": ("in_threads(lambda: m.call(lambda x: [x, Mine()], 1))", ""),
    "threads of Python keep": ("in_threads(lambda: m.keep([lambda x: x, Mine(), t]))", ""),
    "threads of Python keep results": (
        "in_threads(lambda: m.keep_result(lambda x: Mine(), 1))",
        "",
    ),
}


#: As where it is not known in which places the engine's Python layer keeps what it imports.
WITHOUT_PLACES = """
from tensorplay.utils.cpp_jit import held
held.places = lambda library, names: {name: [] for name in names}
"""


def run(text: str, native: str, before: str = "") -> str:
    done = subprocess.run(
        [sys.executable, "-c", before + START + text],
        check=False,
        capture_output=True,
        text=True,
        env={**os.environ, "TENSORPLAY_NATIVE": native},
        timeout=120,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


@pytest.mark.parametrize("native", ["1", "0"])
@pytest.mark.parametrize("what", HELD)
def test_what_static_variables_hold_is_left_to_the_system(what: str, native: str) -> None:
    assert run(HELD[what], native) == ""


@pytest.mark.parametrize("native", ["1", "0"])
def test_what_the_engine_makes_by_itself_is_left_to_the_system(native: str) -> None:
    try:
        assert run("\n".join(MADE_BY_THE_ENGINE.values()), native) == ""
    except AssertionError as error:
        for what, text in MADE_BY_THE_ENGINE.items():
            try:
                run(text, native)
            except AssertionError:
                raise AssertionError(what) from error
        raise


@pytest.mark.parametrize("native", ["1", "0"])
def test_what_passes_us_is_left_to_the_system_by_any_engine(native: str) -> None:
    assert run("".join(HELD.values()), native, WITHOUT_PLACES) == ""


@pytest.mark.parametrize("what", ALIVE)
def test_what_goes_on_without_an_interpreter_ends_nothing(what: str) -> None:
    # Without the extension nobody looks whether there is an interpreter still.
    text, written = ALIVE[what]
    assert run(text, "1").endswith(written)


def test_objects_end_as_ever_until_the_interpreter_does() -> None:
    text = """
import gc, weakref
class Key: pass
value, key = Mine(), Key()
alive = [weakref.ref(value), weakref.ref(key)]
m.call(lambda x: None, tvm_ffi.Array([value, {"a": lambda: key}]))
made = tvm_ffi.Function.__from_extern_c__(1, keep_alive_object=value)
del value, key, made
gc.collect()
assert [each() for each in alive] == [None, None]
"""
    for native in ("1", "0"):
        assert run(text, native) == ""
