"""The examples of the engine's guide to Python, each with tensors of ours for its arrays."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import tvm_ffi
import tvm_ffi.cpp

import tensorplay as tp
from tensorplay.utils import cpp_jit

ADD_ONE = r"""
#include <cstdint>
void add_one(tvm::ffi::TensorView x, tvm::ffi::TensorView y) {
  const DLDataType float32{kDLFloat, 32, 1};
  TVM_FFI_ICHECK(x.ndim() == 1 && y.ndim() == 1) << "both are vectors";
  TVM_FFI_ICHECK(x.dtype() == float32) << "x must be a float tensor";
  TVM_FFI_ICHECK(y.dtype() == float32) << "y must be a float tensor";
  TVM_FFI_ICHECK(x.size(0) == y.size(0)) << "x and y must have the same shape";
  const float* from = static_cast<const float*>(x.data_ptr());
  float* to = static_cast<float*>(y.data_ptr());
  for (int64_t i = 0; i < x.size(0); ++i) to[i] = from[i] + 1;
}
"""


@pytest.fixture(scope="module")
def library() -> str:
    return cpp_jit.build_inline("add_one", cpp_sources=ADD_ONE, functions="add_one")


@pytest.mark.parametrize("load", [cpp_jit.load_module, tvm_ffi.load_module])
def test_load_and_run_a_module(library: str, load: Any) -> None:
    module = load(library)
    x = tp.arange(1.0, 6.0)
    y = tp.empty_like(x)
    module.add_one(x, y)
    assert y.tolist() == [2, 3, 4, 5, 6]
    with pytest.raises((RuntimeError, cpp_jit.BuildError), match="x must be a float tensor"):
        module.add_one(x.double(), y)


def test_tensors_to_the_engine_and_back() -> None:
    x = tp.tensor([1.0, 2.0, 3.0, 4.0])
    engines = tvm_ffi.from_dlpack(x)
    assert isinstance(engines, tvm_ffi.Tensor)
    back, array = tp.from_dlpack(engines), np.from_dlpack(engines)
    x[0] = 9.0  # one memory
    assert back.tolist() == array.tolist() == [9, 2, 3, 4]


@pytest.mark.parametrize("find", [cpp_jit.get_global_func, tvm_ffi.get_global_func])
def test_a_registered_function(find: Any) -> None:
    echo = find("testing.echo")
    assert echo(1) == 1
    result = echo(tp.ones(3))
    if find is cpp_jit.get_global_func or hasattr(tp.Tensor, "__dlpack_c_exchange_api__"):
        assert isinstance(result, tp.Tensor)
    assert tp.from_dlpack(result).tolist() == [1, 1, 1]


def test_a_callback() -> None:
    apply = cpp_jit.get_global_func("testing.apply")
    assert apply(lambda x: x + 1, 1) == 2
    seen: list[Any] = []
    result = apply(lambda x: (seen.append(x), x + 1)[1], tp.zeros(2))
    assert isinstance(seen[0], tp.Tensor)
    assert isinstance(result, tp.Tensor)
    assert result.tolist() == [1, 1]
    # The engine's own function object gives a callback its own tensors.
    assert tvm_ffi.get_global_func("testing.apply")(lambda x: x + 1, 1) == 2


@pytest.fixture
def name() -> Iterator[str]:
    yield "tests.guide.add_one"
    if cpp_jit.get_global_func("tests.guide.add_one", allow_missing=True) is not None:
        cpp_jit.remove_global_func("tests.guide.add_one")


def test_a_python_function_registered(name: str) -> None:
    @cpp_jit.register_global_func(name)
    def add_one(a: Any) -> Any:
        return a + 1

    assert add_one(1) == 2
    assert tvm_ffi.get_global_func(name)(1) == 2
    result = cpp_jit.get_global_func(name)(tp.ones(2))
    assert isinstance(result, tp.Tensor)
    assert result.tolist() == [2, 2]


def test_a_python_function_registered_by_the_engine(name: str) -> None:
    @tvm_ffi.register_global_func(name)
    def add_one(a: Any) -> Any:
        return a + 1 if isinstance(a, int) else tp.from_dlpack(a) + 1

    assert tvm_ffi.get_global_func(name)(1) == 2
    result = cpp_jit.get_global_func(name)(tp.ones(2))
    assert isinstance(result, tp.Tensor)
    assert result.tolist() == [2, 2]
    assert tp.from_dlpack(tvm_ffi.get_global_func(name)(tp.ones(2))).tolist() == [2, 2]


def test_registered_again_and_by_another(name: str) -> None:  # case B009
    def define(step: int) -> Any:
        @cpp_jit.register_global_func(name)
        def add(a: int) -> int:
            return a + step

        return add

    define(1)
    define(2)
    assert cpp_jit.get_global_func(name)(1) == 3

    def other(a: int) -> int:
        return -a

    with pytest.raises(
        ValueError, match=r"'tests\.guide\.add_one'.* of .*other.* got one that .*add"
    ):
        cpp_jit.register_global_func(name, other)
    cpp_jit.register_global_func(name, other, override=True)
    assert cpp_jit.get_global_func(name)(1) == -1
    with pytest.raises(ValueError, match="the engine or another package has registered"):
        cpp_jit.register_global_func("ffi.Array", other)
    cpp_jit.remove_global_func(name)
    assert cpp_jit.get_global_func(name, allow_missing=True) is None
    define(3)  # the name is free again
    with pytest.raises(ValueError, match=r"no function is registered as 'tests\.nothing'"):
        cpp_jit.get_global_func("tests.nothing")
    with pytest.raises(TypeError, match="argument 'func_name': expected str, got int"):
        cpp_jit.register_global_func(3, other)


@pytest.mark.parametrize(
    "use",
    [
        lambda name: cpp_jit.register_global_func(name, abs),
        lambda name: cpp_jit.get_global_func(name, allow_missing=True),
        cpp_jit.remove_global_func,
        lambda name: cpp_jit.register_error(name, LookupError),
        lambda name: cpp_jit.register_object(name)(tvm_ffi.Object),
    ],
)
def test_what_can_be_no_name(use: Any) -> None:
    with pytest.raises(TypeError, match=r"^\[\w+\] argument '\w+': expected str, got int\."):
        use(3)
    with pytest.raises(
        ValueError, match=r"^\[\w+\] argument '\w+': expected text that UTF-8 has b"
    ):
        use("\udc80")


def test_lists_become_arrays() -> None:
    array = tvm_ffi.convert([1, 2, 3, 4])
    assert isinstance(array, tvm_ffi.Array)
    assert (len(array), array[0]) == (4, 1)
    tensors = tvm_ffi.convert([tp.ones(2), (tp.zeros(1), 3)])
    assert isinstance(tensors, tvm_ffi.Array)
    assert tp.from_dlpack(tensors[0]).tolist() == [1, 1]
    assert tensors[1][1] == 3


def test_dicts_become_maps() -> None:
    found = tvm_ffi.convert({"a": 1, "b": tp.ones(2)})
    assert isinstance(found, tvm_ffi.Map)
    assert (len(found), found["a"]) == (2, 1)
    assert tp.from_dlpack(found["b"]).tolist() == [1, 1]


def test_containers_come_back() -> None:
    echo = cpp_jit.get_global_func("testing.echo")
    result = echo({"x": [tp.ones(2), 1], "y": {"z": (2.5, "text")}})
    assert isinstance(result, dict)
    assert isinstance(result["x"][0], tp.Tensor)
    assert result["y"] == {"z": [2.5, "text"]}
    # The engine's own container may be held, and passed on without a conversion.
    held = tvm_ffi.convert([1, 2])
    assert echo(held) == [1, 2]


def test_an_inline_module() -> None:
    module = cpp_jit.load_inline(name="hello", cpp_sources=ADD_ONE, functions="add_one")
    x = tp.tensor([1.0, 2.0, 3.0, 4.0, 5.0])
    y = tp.empty_like(x)
    module.add_one(x, y)
    assert tp.equal(x + 1, y)
    with pytest.raises(RuntimeError, match="x and y must have the same shape"):
        module.add_one(x, y[1:])


@pytest.mark.slow
def test_the_engines_own_builder() -> None:
    module = tvm_ffi.cpp.load_inline(
        name="hello_by_the_engine", cpp_sources=ADD_ONE, functions="add_one"
    )
    x = tp.ones(3)
    y = tp.empty_like(x)
    module.add_one(x, y)
    assert y.tolist() == [2, 2, 2]


def test_errors_keep_their_kind_and_place() -> None:
    fails = cpp_jit.get_global_func("testing.test_raise_error")
    for kind, expected in (
        ("ValueError", ValueError),
        ("KeyError", KeyError),
        ("What", RuntimeError),
    ):
        with pytest.raises(expected, match="message") as raised:
            fails(kind, "message")
        assert type(raised.value) is expected
    frames = traceback.extract_tb(raised.value.__traceback__)
    assert any(frame.filename.endswith("testing.cc") for frame in frames)


def test_an_error_of_ones_own() -> None:
    def define(base: type[Exception]) -> type[Exception]:
        @cpp_jit.register_error
        class GuideError(base):  # type: ignore[misc, valid-type]
            pass

        return GuideError

    define(ValueError)
    error = define(RuntimeError)  # the cell runs again
    fails = cpp_jit.get_global_func("testing.test_raise_error")
    with pytest.raises(error, match="message"):
        fails("GuideError", "message")
    apply = cpp_jit.get_global_func("testing.apply")

    def raises(_: Any) -> Any:
        raise error("from a callback")

    with pytest.raises(error, match="from a callback"):
        apply(raises, 1)

    class Another(Exception):  # noqa: N818
        pass

    with pytest.raises(
        ValueError, match=r"'GuideError': .*Another.* that .*GuideError.* has regis"
    ):
        cpp_jit.register_error("GuideError", Another)
    with pytest.raises(ValueError, match="Python's ValueError has registered"):
        cpp_jit.register_error("ValueError", Another)
    with pytest.raises(TypeError, match="expected a subclass of Exception"):
        cpp_jit.register_error("NoError", int)


def test_an_object_of_ones_own() -> None:
    @cpp_jit.register_object("testing.TestIntPair")
    class IntPair(tvm_ffi.Object):
        def __init__(self, a: int, b: int) -> None:
            self.__ffi_init__(a, b)

    pair: Any = IntPair(1, 2)
    assert (pair.a, pair.b) == (1, 2)
    assert pair.sum() == 3
    assert cpp_jit.get_global_func("testing.echo")(pair).same_as(pair)

    with pytest.raises(ValueError, match=r"'testing\.TestIntPair': .*Second.* that .*IntPair"):

        @cpp_jit.register_object("testing.TestIntPair")
        class Second(tvm_ffi.Object):
            pass

    with pytest.raises(ValueError, match="expected the name of a type that a library defines"):
        cpp_jit.register_object("tests.NoSuchType")(IntPair)
    with pytest.raises(TypeError, match=r"expected a subclass of tvm_ffi\.Object"):
        cpp_jit.register_object("testing.TestIntPair")(int)
