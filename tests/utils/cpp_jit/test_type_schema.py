"""Types of kernels as JSON: from the source the same as the engine compiles in."""

from __future__ import annotations

import json

import pytest

from tensorplay.utils import cpp_jit
from tensorplay.utils.cpp_jit.type_schema import type_schema

SOURCE = """
#include <tvm/ffi/container/dict.h>
#include <tvm/ffi/container/list.h>
#include <tvm/ffi/container/map.h>
#include <tvm/ffi/container/tuple.h>
#include <tvm/ffi/container/variant.h>
#include <tvm/ffi/extra/stl.h>
#include <tvm/ffi/optional.h>
#include <string>
#include <vector>
using namespace tvm::ffi;
double scalars(int n, int8_t k, unsigned long long w, std::size_t z, bool b, float f,
               uint64_t u, long int l) { return 0; }
void texts(std::string s, const std::string& r, const char* c, String y, Bytes by, void* p) {}
Tensor tensors(TensorView x, const tvm::ffi::Tensor& y, DLTensor* d) { return y; }
Array<Any> containers(Array<int64_t> a, Map<String, Tensor> m, List< int > l, Dict<String, int> d,
                      Tuple<int, double> t, const Array<Optional<Array<double>>>& o) { return {}; }
Optional<int64_t> choices(Optional<Tensor> x, Variant<int, String> v, Any a, AnyView w) {
  return {};
}
Function callables(Function f, TypedFunction<int(int, double)> g, TypedFunction<void()> h) {
  return f;
}
std::vector<double> standard(std::vector<double> v, std::optional<int64_t> o) { return v; }
Shape others(Shape s, DLDevice d, DLDataType t, ObjectRef o) { return s; }
void nothing() {}
"""
NAMES = [
    *("scalars", "texts", "tensors", "containers", "choices", "callables", "standard", "others"),
    "nothing",
]


def test_it_is_what_the_engine_compiles_in() -> None:
    flag = ["-DTVM_FFI_DLL_EXPORT_INCLUDE_METADATA=1"]
    engine = cpp_jit.load_inline("types", cpp_sources=SOURCE, functions=NAMES, extra_cflags=flag)
    ours = cpp_jit.load_inline("types", cpp_sources=SOURCE, functions=NAMES)
    for name in NAMES:
        expected, got = engine.get_function_metadata(name), ours.get_function_metadata(name)
        assert expected is not None
        assert got is not None, name
        assert got.keys() == expected.keys() == {"type_schema"}
        assert json.loads(got["type_schema"]) == json.loads(expected["type_schema"]), name


def test_the_engine_reads_it() -> None:
    core = pytest.importorskip("tvm_ffi.core")
    read = core.TypeSchema.from_json_str(type_schema("double", ["TensorView", "Array<int64_t>"]))
    assert str(read).startswith("Callable[[Tensor, ")
    assert str(read).endswith("[int]], float]")


def test_types_that_are_not_the_engines_stay_as_written() -> None:
    schema = json.loads(type_schema("auto", ["my::Thing<int, 2> const &"]))["named_args"]
    assert schema["return"] == [{"type": "auto"}]
    assert schema["params"] == [{"type": "my::Thing<int, 2> const &"}]


def test_a_library_that_is_found_or_loaded_by_path_says_it_too() -> None:
    def load() -> cpp_jit.Module:
        text = "double half(double x) { return x / 2; }\nint64_t hidden() { return 1; }"
        return cpp_jit.load_inline("halves", cpp_sources=text, functions=["half"])

    first = load().get_function_metadata("half")
    found = load()
    assert found.build is not None
    assert found.build.cached
    assert found.get_function_metadata("half") == first is not None
    assert found.path is not None
    assert cpp_jit.load_module(found.path).get_function_metadata("half") == first
    assert found.get_function_metadata("hidden") is None  # not exported
    assert found.get_function_metadata("absent") is None
