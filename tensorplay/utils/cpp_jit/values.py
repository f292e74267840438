"""Python values as the engine takes them, and what it gives as Python values.

What the engine converts well by itself stays as it is: tensors, arrays, numbers, text. What it does
not know, or does not give back as a person expects, is converted here: NumPy's scalars, functions,
and lists and dicts that hold one of these; and the engine's tensors, containers, text and functions
on the way back.
"""

from __future__ import annotations

import functools
import numbers
import types
from collections.abc import Iterator
from typing import Any

import numpy as np

from tensorplay._dlpack import DTYPES, Tensor, device, dtype, from_numpy
from tensorplay.utils.cpp_jit.engine import engine
from tensorplay.utils.cpp_jit.held import hold, opaque

_DTYPES = {known.name: known for known in DTYPES}
#: Types that cross as they are, both ways.
PLAIN = frozenset({int, float, bool, str, bytes, type(None)})
CONTAINERS = (list, tuple, dict)
_FUNCTIONS = frozenset({types.FunctionType, types.MethodType, types.BuiltinFunctionType})
# Classes that the engine knows how to read, though their objects may be callable as well.
_READ_BY_ENGINE = (
    "__tvm_ffi_object__",
    "__dlpack_c_exchange_api__",
    "__dlpack__",
    "__cuda_stream__",
    "__tvm_ffi_opaque_ptr__",
)
# Those whose objects are not callable.
_VALUES_READ_BY_ENGINE = (
    *_READ_BY_ENGINE,
    "__tvm_ffi_value__",
    "__tvm_ffi_int__",
    "__tvm_ffi_float__",
    "__dlpack_data_type__",
    "__dlpack_device__",
)


class RefusedError(TypeError):
    """Raised where something was to become a value that C++ would misread.

    Attributes
    ----------
    value
        What it is, by which whoever knows the place finds it.
    """

    def __init__(self, value: Any, text: str) -> None:
        super().__init__(text)
        self.value = value


def to_engine(value: Any, made: list[Any] | None = None) -> Any:
    """Return a value in a form that the engine converts.

    Parameters
    ----------
    value
        What a person passes or a callback returns.
    made
        Gets the `Callback` objects made on the way.

    Raises
    ------
    RefusedError
        It is or holds an array with a mask, or an object that C++ has not made.
    """
    kind = type(value)
    if kind in PLAIN or kind is Tensor or kind is np.ndarray:
        return value
    if kind in _FUNCTIONS:
        return _function(value, made)
    ffi = engine()
    if isinstance(value, (ffi.core.CObject, ffi.core.PyNativeObject, ffi.Device)):
        if isinstance(value, ffi.Object) and not value.__chandle__():
            raise RefusedError(
                value,
                f"expected an object that C++ has made, got a {kind.__name__} whose __init__ has "
                "made none. Call self.__init_handle_by_constructor__(…) or super().__init__(…) "
                "there.",
            )
        owns = isinstance(value, (ffi.Function, ffi.core.OpaquePyObject))
        return hold(value) if owns else value
    if isinstance(value, dict):
        return {to_engine(key, made): to_engine(item, made) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        items = [to_engine(item, made) for item in value]
        return items if isinstance(value, list) else tuple(items)
    if kind is dtype or kind is device:
        known = _of_engine(value)
        return opaque(value) if known is None else known
    if isinstance(value, np.dtype):
        return _numpy_dtype(value)
    if isinstance(value, np.timedelta64):  # an integer to NumPy, but not to `int`
        return opaque(value)
    if isinstance(value, np.generic):
        value = _number(value)
        kind = type(value)
    if isinstance(value, np.ma.MaskedArray):
        raise RefusedError(
            value,
            "expected an array without a mask, got a masked array, whose mask no kernel sees. "
            "Write x.filled(value).",
        )
    if callable(value) and not _is_read(kind, value):
        return _function(value, made)
    if isinstance(value, (numbers.Real, str, bytes, bytearray, Exception)) or any(
        hasattr(kind, name) for name in _VALUES_READ_BY_ENGINE
    ):
        return value
    # Of what it does not know the engine would make an object that must not outlive Python.
    if isinstance(value, numbers.Number):  # such as complex
        return opaque(value)
    converted = ffi.convert(value)
    return hold(converted) if isinstance(converted, ffi.core.OpaquePyObject) else value


def _of_engine(value: Any) -> Any:
    """Return an element type or a device as the engine has it, or None where it has none."""
    ffi = engine()
    if isinstance(value, dtype):
        # It has no word for complex elements.
        return None if value.is_complex else ffi.dtype(value.name)
    return None if value.type == "meta" else ffi.device(value.type, value.index or 0)


def _numpy_dtype(value: np.dtype[Any]) -> Any:
    """Return NumPy's element type as the engine has it, or as it is where it has none."""
    try:
        return engine().convert(value)
    except KeyError:  # such as complex elements, texts and records
        return opaque(value)


def _is_read(kind: type, value: Any) -> bool:
    return isinstance(value, (numbers.Number, str, bytes, bytearray)) or any(
        hasattr(kind, name) for name in _READ_BY_ENGINE
    )


def _number(value: np.generic) -> Any:
    """Return a scalar of NumPy, or of ml_dtypes, as one of Python; others as they are."""
    if isinstance(value, np.bool_):
        return bool(value)
    if isinstance(value, np.integer):
        return int(value)
    if isinstance(value, np.complexfloating):
        return complex(value)
    if isinstance(value, (np.floating, np.str_, np.bytes_)) or value.dtype.names is not None:
        return float(value) if isinstance(value, np.floating) else value
    # Those of ml_dtypes are of no class of NumPy's, and their kind says nothing.
    try:
        return int(value) if "int" in value.dtype.name else float(value)
    except (TypeError, ValueError):
        return value


@functools.lru_cache(maxsize=1)
def _classes() -> tuple[Any, Any]:
    """Return the classes of callbacks and of kernels, whose modules import this one."""
    from tensorplay.utils.cpp_jit.callbacks import Callback
    from tensorplay.utils.cpp_jit.kernel import Kernel

    return Callback, Kernel


def _function(value: Any, made: list[Any] | None) -> Any:
    Callback, Kernel = _classes()
    if type(value) is Kernel and isinstance(value._function, engine().Function):
        return value._function  # C++ calls C++
    callback = Callback(value)
    if made is not None:
        made.append(callback)
    return callback.function_object()


def from_engine(value: Any) -> Any:
    """Return what the engine gave as what a person expects: Tensor, list, dict, str, function."""
    kind = type(value)
    if kind in PLAIN or kind is Tensor:
        return value
    ffi = engine()
    if isinstance(value, ffi.Tensor):
        from tensorplay._dlpack import from_dlpack

        return from_dlpack(value)
    if isinstance(value, ffi.dtype):  # a text as well
        return _DTYPES.get(str(value), value)
    if isinstance(value, ffi.Device):
        return device("cpu") if str(value) == "cpu:0" else value
    if isinstance(value, str):
        return str(value) if isinstance(value, ffi.core.String) else value
    if isinstance(value, bytes):
        return bytes(value)
    if isinstance(value, (ffi.Array, ffi.List)):
        return [from_engine(item) for item in value]
    if isinstance(value, (ffi.Map, ffi.Dict)):
        return {_key(k): from_engine(v) for k, v in value.items()}
    if isinstance(value, ffi.core.Error):
        from tensorplay.utils.cpp_jit.callbacks import held_by

        return held_by(value) or value.py_error()
    if isinstance(value, ffi.Function):
        from tensorplay.utils.cpp_jit.callbacks import python_function
        from tensorplay.utils.cpp_jit.kernel import Kernel

        known = python_function(value)
        return known if known is not None else Kernel(value, "function", "cpp_jit", None, None)
    return value


def _key(value: Any) -> Any:
    """Return the key of a dict: tuples where values have lists, and a dict as the engine has it."""
    ffi = engine()
    if isinstance(value, (ffi.Array, ffi.List)):
        return tuple(map(_key, value))
    return value if isinstance(value, (ffi.Map, ffi.Dict)) else from_engine(value)


_OF_OTHERS = 2  # what `dtype.isbuiltin` is for types that other packages add to NumPy


def with_our_word(array: np.ndarray[Any, Any]) -> Any:
    """Return a tensor on an array of a type that NumPy lacks, such as bfloat16; others as they are.

    NumPy's export has no words for such types, and DLPack has.
    """
    if array.dtype.isbuiltin != _OF_OTHERS:
        return array
    try:
        return from_numpy(array)
    except TypeError:  # the runtime has no such type either: NumPy's reason is told
        return array


def leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Return what a value holds that is no container, each with how it is reached, as ``[0]``."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from leaves(item, f"{path}[{key!r}]")
    elif isinstance(value, (list, tuple)):
        for number, item in enumerate(value):
            yield from leaves(item, f"{path}[{number}]")
    else:
        yield path, value


def replaced(value: Any, by: dict[str, Any], path: str = "") -> Any:
    """Return a value with the leaves at some paths replaced."""
    if isinstance(value, dict):
        return {k: replaced(v, by, f"{path}[{k!r}]") for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        items = [replaced(v, by, f"{path}[{i}]") for i, v in enumerate(value)]
        return items if isinstance(value, list) else tuple(items)
    return by.get(path, value)
