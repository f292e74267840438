"""Case B035: any kind of argument for any kind of parameter gives its value or a TypeError."""

from __future__ import annotations

import decimal
import enum
import fractions
import importlib
import math
import os
import re
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import tvm_ffi

import tensorplay as tp
from tensorplay.utils import cpp_jit

LIGHT = r"""#include <string>
int64_t tensor(tvm::ffi::TensorView x) { return x.numel(); }
int64_t owned(tvm::ffi::Tensor x) { return x.numel(); }
int64_t integer(int64_t x) { return x; }
double real(double x) { return x; }
bool truth(bool x) { return x; }
std::string text(const std::string& x) { return x; }
"""
FULL = r"""#include <tvm/ffi/container/array.h>
#include <tvm/ffi/container/map.h>
#include <tvm/ffi/container/tuple.h>
#include <tvm/ffi/container/variant.h>
using namespace tvm::ffi;
int64_t tensor_(TensorView x) { return x.numel(); }
int64_t owned_(Tensor x) { return x.numel(); }
int64_t maybe(Optional<Tensor> x) { return x.has_value() ? (*x).numel() : -1; }
int64_t maybe_integer(Optional<int64_t> x) { return x.value_or(-1); }
int64_t integer_(int64_t x) { return x; }
double real_(double x) { return x; }
bool truth_(bool x) { return x; }
String text_(String x) { return x; }
Bytes binary(Bytes x) { return x; }
int64_t list(Array<Any> x) { return x.size(); }
int64_t integers(Array<int64_t> x) {
  int64_t sum = 0;
  for (int64_t v : x) sum += v;
  return sum;
}
int64_t tensors(Array<Tensor> x) {
  int64_t sum = 0;
  for (const Tensor& t : x) sum += t.numel();
  return sum;
}
int64_t maybe_tensors(Optional<List<Tensor>> x) {
  return !x ? -1 : x.value().empty() ? 0 : x.value()[0].numel();
}
int64_t named(Map<String, Array<Tensor>> x) { return x["a"][0].numel(); }
int64_t pair(Tuple<int64_t, Tensor> x) { return x.get<1>().numel(); }
Any functions(Array<Function> x) { return x.empty() ? Any() : x[0](2); }
int64_t dict(Map<Any, Any> x) { return x.size(); }
int64_t sizes(Map<String, int64_t> x) { return x.size(); }
Any function(Function x) { return x(2); }
int64_t bits(DLDataType x) { return x.bits; }
int64_t place(DLDevice x) { return x.device_type; }
String either(Variant<int64_t, String> x) { return x.as<String>() ? "text" : "number"; }
int64_t either_tensor(Variant<Tensor, int64_t> x) {
  return x.as<int64_t>() ? *x.as<int64_t>() : x.as<Tensor>()->numel();
}
Any tensor_or_none(Variant<Tensor, Optional<int64_t>> x) { return x; }
Any anything(Any x) { return x; }
"""


class Number(enum.IntEnum):
    THREE = 3


class Colour(enum.Enum):
    RED = 1


class Mine:
    def __repr__(self) -> str:
        return "Mine()"


class Marked(np.ndarray):
    pass


def double(x: int) -> int:
    return 2 * x


FROZEN = np.ones(4, np.float32)
FROZEN.flags.writeable = False
ARGUMENTS: dict[str, Any] = {
    "Tensor": tp.ones(2, 3),
    "Tensor of no dimension": tp.tensor(3),
    "Tensor without elements": tp.ones(0),
    "array": np.ones(3),
    "read-only array": FROZEN,
    "engine's tensor": tvm_ffi.from_dlpack(np.ones(5)),
    "None": None,
    "str": "text",
    "long str": "a text that is kept apart",
    "empty str": "",
    "np.str_": np.str_("text"),
    "bytes": b"\x00raw",
    "bytearray": bytearray(b"raw"),
    "list": [1, 2],
    "empty list": [],
    "tuple": (1, 2),
    "list of tensors": [tp.ones(2), np.ones(3)],
    "list of texts": ["a", 1],
    "list of None": [None],
    "number and None": (3, None),
    "number and tensor": (3, tp.ones(2)),
    "list of functions": [double],
    "engine's array": tvm_ffi.convert([1, 2]),
    "dict": {"a": 1},
    "dict of texts": {"a": "b"},
    "dict by number": {1: 2},
    "dict of tensors": {"a": [tp.ones(2)]},
    "dict of None": {"a": [None]},
    "function": double,
    "method": "abc".replace,
    "class": Mine,
    "engine's function": tvm_ffi.convert(double),
    "int": 7,
    "huge int": 2**70,
    "bool": True,
    "np.int8": np.int8(-3),
    "np.uint64": np.uint64(2**63),
    "np.bool_": np.bool_(True),
    "float": 2.5,
    "nan": math.nan,
    "np.float16": np.float16(1.5),
    "np.float32": np.float32(1.5),
    "np.float64": np.float64(1.5),
    "bfloat16": ml_dtypes.bfloat16(1.5),
    "fraction": fractions.Fraction(3, 2),
    "decimal": decimal.Decimal(2),
    "complex": 1 + 2j,
    "np.complex64": np.complex64(1j),
    "np.datetime64": np.datetime64("2020-01-01"),
    "object": Mine(),
    "capsule": np.zeros((2, 3)).__dlpack__(),
    "module": os,
    "range": range(2),
    "set": {1},
    "slice": slice(2),
    "exception": ValueError("x"),
    "np.timedelta64": np.timedelta64(3, "s"),
    "np.complex128": np.complex128(1j),
    "np.longdouble": np.longdouble(1.5),
    "int4": ml_dtypes.int4(3),
    "enum of integers": Number.THREE,
    "enum": Colour.RED,
    "memoryview": memoryview(b"raw"),
    "dtype": tp.float32,
    "complex dtype": tp.complex64,
    "np.dtype": np.dtype("float64"),
    "device": tp.device("cpu"),
    "device without memory": tp.device("meta"),
    "engine's dtype": tvm_ffi.dtype("int16"),
    "engine's device": tvm_ffi.device("cpu"),
    "array of objects": np.array([None, 1]),
    "array of texts": np.array(["a"]),
    "array of structures": np.zeros(2, "i4,f4"),
}

TENSORS = {
    "Tensor": 6,
    "Tensor of no dimension": 1,
    "Tensor without elements": 0,
    "array": 3,
    "read-only array": 4,
    "engine's tensor": 5,
}
INTEGERS = {
    "int": 7,
    "bool": 1,
    "np.int8": -3,
    "np.bool_": 1,
    "int4": 3,
    "enum of integers": 3,
}
REALS = {
    **{argument: float(value) for argument, value in INTEGERS.items()},
    "float": 2.5,
    "nan": math.nan,
    "fraction": 1.5,
    **dict.fromkeys(("np.float16", "np.float32", "np.float64", "bfloat16", "np.longdouble"), 1.5),
}
TRUTHS = dict.fromkeys(INTEGERS, True)
TEXTS = {
    "str": "text",
    "long str": "a text that is kept apart",
    "empty str": "",
    "np.str_": "text",
}
LISTS = {
    "list": 2,
    "empty list": 0,
    "tuple": 2,
    "list of tensors": 2,
    "list of texts": 2,
    "list of None": 1,
    "number and None": 2,
    "number and tensor": 2,
    "list of functions": 1,
    "engine's array": 2,
}
DICTS = dict.fromkeys(
    ("dict", "dict of texts", "dict by number", "dict of tensors", "dict of None"), 1
)
#: What each kernel returns, by the argument; everything else is a TypeError.
RIGHT: dict[str, dict[str, Any]] = {
    "tensor": TENSORS,
    "owned": TENSORS,
    "integer": INTEGERS,
    "real": REALS,
    "truth": TRUTHS,
    "text": {**TEXTS, "bytes": "\x00raw", "bytearray": "raw"},
    "tensor_": TENSORS,
    "owned_": TENSORS,
    "maybe": {**TENSORS, "None": -1},
    # None is no tensor where the type does not say Optional, however deep it is.
    "maybe_tensors": {"list of tensors": 2, "empty list": 0, "None": -1},
    "named": {"dict of tensors": 2},
    "pair": {"number and tensor": 2},
    "functions": {"list of functions": 4, "empty list": None},
    "maybe_integer": {**INTEGERS, "None": -1},
    "integer_": INTEGERS,
    "real_": REALS,
    "truth_": TRUTHS,
    "text_": TEXTS,
    "binary": {"bytes": b"\x00raw", "bytearray": b"raw"},
    "list": LISTS,
    "integers": {"list": 3, "empty list": 0, "tuple": 3, "engine's array": 3},
    "tensors": {"empty list": 0, "list of tensors": 5},
    "dict": DICTS,
    "sizes": {"dict": 1},
    "function": {"function": 4, "engine's function": 4},
    # Names are read; the empty one is the engine's name of no type.
    "bits": {"dtype": 32, "np.dtype": 64, "engine's dtype": 16, "empty str": 0},
    "place": {"device": 1, "engine's device": 1},
    "either_tensor": {**TENSORS, **INTEGERS},
    "either": {
        **dict.fromkeys(INTEGERS, "number"),
        **dict.fromkeys(TEXTS, "text"),
    },
}


@pytest.fixture(scope="module")
def kernels() -> dict[str, cpp_jit.Kernel]:
    found = {}
    for name, source in (("kinds_light", LIGHT), ("kinds_full", FULL)):
        functions = re.findall(r"^\w+ (\w+)\(", source.replace("std::", ""), re.MULTILINE)
        module = cpp_jit.load_inline(name, cpp_sources=source, functions=functions)
        assert module.build is not None
        assert module.build.rung == name.partition("_")[2]
        found.update({function: module[function] for function in functions})
    return found


@pytest.mark.parametrize("argument", ARGUMENTS)
@pytest.mark.parametrize("parameter", RIGHT)
def test_the_right_value_or_a_type_error(kernels, parameter: str, argument: str) -> None:
    value, kernel = ARGUMENTS[argument], kernels[parameter]
    if argument in RIGHT[parameter]:
        expected = RIGHT[parameter][argument]
        got = kernel(value)
        assert got == expected or (math.isnan(got) and math.isnan(expected))
        assert type(got) is type(expected)
    elif parameter == "bits" and argument in {*TEXTS, "bytes", "bytearray"}:
        with pytest.raises(ValueError, match=r"argument 'x' .*: expected the name of a dtype such"):
            kernel(value)
    elif parameter == "function" and argument in {"method", "class"}:
        with pytest.raises(TypeError):  # Python's own: they take no number
            kernel(value)
    else:
        with pytest.raises(TypeError) as raised:
            kernel(value)
        name = re.escape(kernel.__module__ + "::" + parameter)
        shown = rf"^\[{name}\] argument 'x'( \(position 0\))?( at .*)?: expected .+?, got .+"
        assert re.match(shown, str(raised.value)), raised.value


@pytest.mark.parametrize("argument", ARGUMENTS)
def test_what_any_value_comes_back_as(kernels, argument: str) -> None:
    value = ARGUMENTS[argument]
    if argument.startswith("array of"):
        with pytest.raises(TypeError, match="expected memory that DLPack can describe, got NumPy"):
            kernels["anything"](value)
        return
    got = kernels["anything"](value)
    if argument in TENSORS:
        assert type(got) is tp.Tensor
        assert np.array_equal(got.numpy(), np.from_dlpack(value) if "engine" in argument else value)
    elif argument == "list of tensors":
        assert [type(item) for item in got] == [tp.Tensor, tp.Tensor]
    elif argument in {"tuple", "engine's array"}:
        assert got == [1, 2]
    elif argument == "number and None":
        assert got == [3, None]
    elif argument in {"number and tensor", "dict of tensors"}:
        tensor = got[1] if argument.startswith("number") else got["a"][0]
        assert type(tensor) is tp.Tensor
        assert tensor.tolist() == [1, 1]
    elif argument == "bytearray":
        assert got == b"raw"
    elif argument == "exception":
        assert isinstance(got, ValueError)
        assert str(got) == "x"
    elif argument == "engine's function":
        assert got(2) == 4
    elif argument in {"np.dtype", "engine's dtype"}:
        assert got is (tp.float64 if argument == "np.dtype" else tp.int16)
    elif argument == "engine's device":
        assert got == tp.device("cpu")
    elif isinstance(value, np.generic) and argument not in {"np.datetime64", "np.timedelta64"}:
        assert got == value
        assert type(got) in {int, float, bool, str, complex}
    elif argument in {"bfloat16", "fraction"}:
        assert got == 1.5
    elif argument == "nan":
        assert math.isnan(got)
    else:
        assert got is value or got == value


@pytest.mark.parametrize("name", ["bfloat16", "float8_e4m3fn", "float8_e5m2"])
def test_arrays_of_types_that_numpy_lacks(kernels, name: str) -> None:
    array = np.arange(6).astype(name).reshape(2, 3)
    frozen = array.copy()
    frozen.flags.writeable = False
    for given in (array, array.T, array[::-1], frozen):
        assert kernels["tensor"](given) == kernels["owned"](given) == 6
        assert kernels["tensors"]([given, tp.ones(2)]) == 8
        got = kernels["anything"](given)
        assert type(got) is tp.Tensor
        assert got.dtype is getattr(tp, name)
        assert got.tolist() == given.tolist()
    kernels["anything"](array)[1, 2] = 7  # one memory
    assert array[1, 2] == 7


@pytest.mark.parametrize(
    ("array", "end"),
    [
        (np.ones(2, ">f8"), "native byte order. Write x.astype('float64')."),
        (np.ones(2, ">i2"), "native byte order. Write x.astype('int16')."),
        (np.zeros(3, "i1,f4")["f1"], "multiple of itemsize. Write x.copy()."),
        (np.zeros(3, "i1,i4")["f1"], "multiple of itemsize. Write x.copy()."),
        (np.ones(2, np.longdouble), "Write x.astype('float64')."),
        (np.ones(2, np.clongdouble), "Write x.astype('complex128')."),
    ],
    ids=lambda value: str(value.dtype) if hasattr(value, "dtype") else "",
)
def test_memory_that_dlpack_cannot_describe_says_what_to_write(kernels, array, end: str) -> None:
    for parameter in ("tensor", "maybe", "integer"):
        with pytest.raises(TypeError) as raised:
            kernels[parameter](array)
        text = str(raised.value)
        assert "] argument 'x' (position 0): expected memory that DLPack can describe, got" in text
        assert text.endswith(end)


def test_the_mask_of_an_array_is_not_lost(kernels) -> None:
    masked = np.ma.array([1.0, 2.0], mask=[False, True])
    for parameter, value, at in (
        ("tensor", masked, ""),
        ("anything", {"a": [1, masked]}, r" at \['a'\]\[1\]"),
        ("tensors", [masked], r" at \[0\]"),
    ):
        with pytest.raises(
            TypeError, match=rf"'x' \(position 0\){at}: expected an array without a"
        ):
            kernels[parameter](value)
    with pytest.raises(TypeError, match=r"without a mask.* Write x\.filled\(value\)\."):
        kernels["function"](lambda x: masked)
    assert kernels["tensor"](np.ones(2).view(Marked)) == 2  # another class of arrays


def test_tensors_of_torch(kernels) -> None:
    try:
        torch = importlib.import_module("torch")
    except ImportError:
        pytest.skip("torch is not installed")
    x = torch.ones(2, 3)
    assert kernels["tensor"](x) == kernels["owned"](x) == kernels["maybe"](x) == 6
    assert kernels["tensors"]([x, tp.ones(2)]) == 8
    for parameter in ("integer", "real", "text", "list", "dict"):
        with pytest.raises(TypeError, match="argument 'x'"):
            kernels[parameter](x)


def test_none_where_one_of_several_types_is_optional(kernels) -> None:
    assert kernels["tensor_or_none"](None) is None
    assert kernels["tensor_or_none"](3) == 3


@pytest.mark.parametrize(
    ("parameter", "value", "text"),
    [
        ("tensor", 3, "expected Tensor or NumPy array, got int. Write tp.tensor(x)."),
        ("tensor", [1.0], "expected Tensor or NumPy array, got list. Write tp.tensor(x)."),
        ("integer", 2.5, "expected int, got float. Write int(x)."),
        ("integer", np.ones(1), "expected int, got NumPy array of float64. Write x.item()."),
        ("integer", 2**70, "expected int, got int beyond 64 bits."),
        ("real", tp.ones(1), "expected float, got Tensor of float32. Write x.item()."),
        ("text_", None, "expected str, got None."),
        ("integers", [1, "x"], "expected list of int, got list (Array[index 1: str])."),
        ("sizes", {"a": "b"}, "expected dict of str to int, got dict ("),
        ("maybe", "x", "expected Tensor or NumPy array or None, got str."),
        ("owned_", None, "expected Tensor or NumPy array, got None."),
        (
            "tensors",
            [tp.ones(1), None],
            "expected list of Tensor or NumPy array, got list (Array[index 1: None]).",
        ),
        (
            "named",
            {"a": [None]},
            "expected dict of str to list of Tensor or NumPy array, got dict (",
        ),
        ("either", 2.5, "expected int or str, got float."),
        ("function", 3, "expected function, got int."),
    ],
)
def test_what_is_said(kernels, parameter: str, value: Any, text: str) -> None:
    with pytest.raises(TypeError) as raised:
        kernels[parameter](value)
    kernel = kernels[parameter]
    start = f"[{kernel.__module__}::{parameter}] argument 'x' (position 0): {text}"
    assert str(raised.value).startswith(start)
    assert "Mismatched type on argument #0" in str(raised.value)
