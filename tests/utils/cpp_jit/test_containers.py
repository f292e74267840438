"""Cells with the engine's containers: as with the engine's own headers, whatever is passed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tensorplay.utils import cpp_jit
from tensorplay.utils.cpp_jit import compile as compile_, support

KERNELS = r"""
#include <tvm/ffi/container/array.h>
#include <tvm/ffi/container/dict.h>
#include <tvm/ffi/container/list.h>
#include <tvm/ffi/container/map.h>
#include <tvm/ffi/container/tuple.h>
#include <tvm/ffi/container/variant.h>
#include <tvm/ffi/optional.h>
using namespace tvm::ffi;

Map<String, int64_t> tally(const Array<String>& words) {
  Map<String, int64_t> out;
  for (const auto& word : words) out.Set(word, out.count(word) ? out[word] + 1 : 1);
  return out;
}
Map<int64_t, String> many(int64_t n) {
  Map<int64_t, String> out;
  for (int64_t i = 0; i < n; ++i) out.Set(i * i, String("square"));
  Map<int64_t, String> copy = out;
  for (int64_t i = 0; i < n; i += 2) copy.erase(i * i);
  out.Set(-1, String("kept apart"));
  return copy.size() + n % 2 + n / 2 == out.size() - 1 ? copy : Map<int64_t, String>();
}
Map<Any, Any> merged(Map<Any, Any> a, Map<Any, Any> b) { return Merge(a, b); }
Map<String, Any> ranged(Map<String, Any> given) {
  return Map<String, Any>({{"first", 1}, {"second", String("two")}, {"given", given}});
}
Any looked_up(Map<Any, Any> map, Any key) { return map.at(key); }
int64_t shared(Dict<String, int64_t> dict, String key) {
  Dict<String, int64_t> same = dict;
  same.Set(key, 7);
  return dict.at(key) * 100 + dict.size();
}
List<double> sorted(List<double> list, double extra) {
  list.push_back(extra);
  return list;
}
Tuple<int64_t, String> swapped(Tuple<String, int64_t> pair) {
  return Tuple<int64_t, String>(pair.get<1>(), pair.get<0>());
}
String kind(Variant<int64_t, String> value) {
  return value.as<String>() ? String("text") : String("number");
}
Optional<double> halved(Optional<double> value) {
  if (!value.has_value()) return std::nullopt;
  return *value / 2;
}
Array<Any> gathered(Any a, AnyView b, Array<Any>&& rest) {
  rest.push_back(a);
  rest.push_back(Any(b));
  return rest;
}
int64_t nested(Map<String, Array<Optional<int64_t>>> rows) {
  int64_t sum = 0;
  for (const auto& row : rows) {
    for (const auto& value : row.second) sum += value.value_or(1000);
  }
  return sum;
}
double weighted(Array<Tensor> tensors, double by, bool twice, int64_t offset) {
  double sum = static_cast<double>(offset);
  for (const Tensor& t : tensors) sum += by * t.numel();
  return twice ? 2 * sum : sum;
}
int64_t called(Function f, int64_t n) { return f(n).cast<int64_t>(); }
Bytes blob(Bytes given) { return Bytes(std::string(given.data(), given.size()) + "!"); }
Any nothing(Optional<Array<int64_t>> maybe) { return maybe.has_value() ? Any(*maybe) : Any(); }
void refused(Array<int64_t> values) { TVM_FFI_THROW(KeyError) << "of " << values.size(); }
"""
NAMES = [
    *("tally", "many", "merged", "ranged", "looked_up", "shared", "sorted", "swapped", "kind"),
    *("halved", "gathered", "nested", "weighted", "called", "blob", "nothing", "refused"),
]
X = np.ones((2, 3), np.float32)

CALLS: dict[str, Callable[[cpp_jit.Module], object]] = {
    "tally": lambda m: m.tally(["a", "b", "a", "a word too long to be kept in place"]),
    "tally of a tuple": lambda m: m.tally(("a",)),
    "tally of none": lambda m: m.tally(None),
    "tally of numbers": lambda m: m.tally(["a", 1]),
    "tally of text": lambda m: m.tally("abc"),
    "too many": lambda m: m.tally(["a"], 1),
    "too few": lambda m: m["weighted"](),
    "small map": lambda m: sorted(m.many(3)),
    "large map": lambda m: sorted(m.many(1000)),
    "merged": lambda m: m.merged({"a": 1, 2: "b", 2.5: None}, {"a": [1], "c": X}).keys(),
    "merged with text": lambda m: m.merged({}, "x"),
    "ranged": lambda m: m.ranged({"x": 1.5, "y": None}),
    "ranged by numbers": lambda m: m.ranged({1: 1.5}),
    "looked up": lambda m: m.looked_up({"key": "value", 3: 4}, "key"),
    "looked up a number": lambda m: m.looked_up({"key": "value", 3: 4}, 3),
    "looked up in vain": lambda m: m.looked_up({"key": "value"}, "other"),
    "shared": lambda m: m.shared({"a": 1}, "b"),
    "shared of text": lambda m: m.shared({"a": "x"}, "b"),
    "sorted": lambda m: m.sorted([1, 2.5, True], 3),
    "sorted of text": lambda m: m.sorted([1, "2"], 3),
    "swapped": lambda m: m.swapped(("a", 1)),
    "swapped the wrong way": lambda m: m.swapped((1, "a")),
    "swapped three": lambda m: m.swapped(("a", 1, 2)),
    "kind": lambda m: (m.kind(1), m.kind("a")),
    "kind of a list": lambda m: m.kind([]),
    "halved": lambda m: (m.halved(3), m.halved(None)),
    "halved text": lambda m: m.halved("3"),
    "gathered": lambda m: m.gathered(1, "b", [None, 2.5]),
    "nested": lambda m: m.nested({"a": [1, None, 3], "b": []}),
    "nested wrongly": lambda m: m.nested({"a": [1, "x"]}),
    "weighted": lambda m: m.weighted([X, X], 0.5, True, 3),
    "weighted text": lambda m: m.weighted(["x"], 0.5, True, 3),
    "weighted by text": lambda m: m.weighted([X], "0.5", True, 3),
    "called": lambda m: m.called(lambda n: n + 1, 41),
    "called back with an error": lambda m: m.called(lambda n: 1 // 0, 41),
    "called text": lambda m: m.called("f", 41),
    "blob": lambda m: m.blob(b"bytes \x00 of more than seven"),
    "nothing": lambda m: (m.nothing(None), m.nothing([1])),
    "nothing of text": lambda m: m.nothing("x"),
    "refused": lambda m: m.refused([1, 2]),
}


def outcome(call: Callable[[cpp_jit.Module], object], module: cpp_jit.Module) -> object:
    try:
        result = call(module)
    except Exception as error:  # noqa: BLE001 - the outcome of any kind is what is compared
        return type(error), str(error).replace(module.__name__, "library")
    return result, type(result)


@pytest.fixture(scope="module")
def rungs() -> dict[str, cpp_jit.Module]:
    """Return one source built with our wrapper over the engine's headers, and with its own."""
    modules = {}
    for rung in ("full", "stock"):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(compile_, "first_rung", lambda *_, rung=rung: rung)
            text = cpp_jit.Source(KERNELS)
            made = cpp_jit.build_source(f"containers_{rung}", text, exports=NAMES)
        assert made.rung == rung
        modules[rung] = made.load()
    return modules


@pytest.mark.parametrize("call", CALLS)
def test_containers_are_taken_and_given_as_the_engine_does(rungs, call):
    assert outcome(CALLS[call], rungs["full"]) == outcome(CALLS[call], rungs["stock"])


def test_a_narrow_integer_beside_a_container_is_checked_as_everywhere():
    text = """
    #include <tvm/ffi/container/array.h>
    int64_t f(tvm::ffi::Array<int64_t> a, int8_t n) { return a.size() + n; }
    """
    module = cpp_jit.load_inline("narrow", cpp_sources=text, functions="f")
    assert module.f([1], 127) == 128
    with pytest.raises(ValueError, match="argument #1: expected an integer that fits int8, got 12"):
        module.f([1], 128)


def test_an_engine_whose_containers_are_unknown_is_used_as_it_is(tmp_path, monkeypatch):
    runtime = tmp_path / "runtime"
    runtime.mkdir()
    for source in (*support.RUNTIME.glob("*.cpp"), *support.RUNTIME.glob("*.h")):
        text = source.read_text("utf-8")
        if source.name == "containers.cpp":
            text = "#error what is declared there is not there\n"
        (runtime / source.name).write_text(text, "utf-8")
    monkeypatch.setattr(support, "RUNTIME", runtime)
    text = "#include <tvm/ffi/container/array.h>\nint64_t f(tvm::ffi::Array<int> a) { return 3; }"
    made = cpp_jit.build_source("unknown", cpp_jit.Source(text), exports=["f"])
    assert made.rung == "stock"
    assert made.load().f([]) == 3


def test_headers_of_containers_are_precompiled_for_the_cells_that_include_them():
    plain = support.headers_for("full", ["tvm/ffi/optional.h"], (), whole=False)
    both = support.headers_for("full", ["tvm/ffi/container/map.h"], (), whole=False)
    assert "tensorplay/ffi_full.h" in plain.contents
    assert "tensorplay/ffi_containers.h" in both.contents
    assert all(Path(support.INCLUDE, name).is_file() for name in both.contents if "/" in name)
