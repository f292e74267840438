from __future__ import annotations

import ctypes
import gc
import weakref
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, strategies as st
from hypothesis.extra import numpy as hnp

import tensorplay as tp
from tensorplay._tensor import wrap

DTYPES = [tp.bool, tp.uint8, tp.int8, tp.int16, tp.int32, tp.int64, tp.uint16, tp.uint32,
          tp.uint64, tp.float16, tp.bfloat16, tp.float32, tp.float64, tp.complex64,
          tp.complex128, tp.float8_e4m3fn, tp.float8_e4m3fnuz, tp.float8_e5m2,
          tp.float8_e5m2fnuz]  # fmt: skip


class Exporter:
    """A library of the given age: knows versions, or takes no arguments at all."""

    def __init__(self, tensor: tp.Tensor, *, versioned: bool) -> None:
        self.tensor = tensor
        self.versioned = versioned

    def __dlpack__(self, **options: Any) -> Any:
        if options and not self.versioned:
            raise TypeError
        return self.tensor.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.tensor.__dlpack_device__()


def name_of(capsule: Any) -> bytes:
    get_name = ctypes.pythonapi.PyCapsule_GetName
    get_name.restype, get_name.argtypes = ctypes.c_char_p, [ctypes.py_object]
    return get_name(capsule)


@pytest.mark.parametrize("versioned", [False, True])
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: d.name)
def test_round_trip_shares_memory(dtype: tp.dtype, versioned: bool) -> None:
    x = tp.tensor([[0, 1, 2], [3, 4, 5]]).to(dtype)
    y = tp.from_dlpack(Exporter(x, versioned=versioned))
    assert y.dtype is dtype
    assert y.data_ptr() == x.data_ptr()
    y[0, 0] = 1
    assert x.tolist()[0][0] == 1


@pytest.mark.parametrize("versioned", [False, True])
@pytest.mark.parametrize("dtype", [np.float32, np.int8, np.bool_, ml_dtypes.bfloat16])
@pytest.mark.parametrize(
    "view",
    [lambda a: a.T, lambda a: a[::-1, ::2], lambda a: a[:0], lambda a: a[1, 1, ...].reshape(()),
     lambda a: a[:, 1:2]],
    ids=["transposed", "negative", "empty", "0-d", "column"],
)  # fmt: skip
def test_layouts(view: Any, dtype: Any, versioned: bool) -> None:
    array = view(np.arange(12).reshape(3, 4).astype(dtype))
    x = tp.from_numpy(array)
    y = tp.from_dlpack(Exporter(x, versioned=versioned))
    assert (y.shape, y.stride(), y.dtype) == (x.shape, x.stride(), x.dtype)
    np.testing.assert_array_equal(y.numpy(), array)
    assert y.numpy().flags.writeable


@given(hnp.arrays(np.float64, hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4)),
       st.booleans())  # fmt: skip
def test_numpy_reads_what_we_export(array: Any, flipped: bool) -> None:
    view = array.T[::-1] if flipped and array.ndim else array
    np.testing.assert_array_equal(np.from_dlpack(tp.from_numpy(view)), view)
    np.testing.assert_array_equal(tp.from_dlpack(view).numpy(), view)


def test_names_of_capsules() -> None:
    x = tp.ones(2)
    assert name_of(x.__dlpack__()) == b"dltensor"
    assert name_of(tp.to_dlpack(x)) == b"dltensor"
    assert name_of(x.__dlpack__(max_version=(1, 0))) == b"dltensor_versioned"
    assert name_of(x.__dlpack__(max_version=(0, 8))) == b"dltensor"
    assert x.__dlpack_device__() == (1, 0)


@pytest.mark.parametrize("options", [{}, {"max_version": (1, 0)}])
@pytest.mark.parametrize("dtype", [tp.float32, tp.bfloat16])
def test_a_capsule_is_used_once(dtype: tp.dtype, options: Any) -> None:
    x = tp.ones(2, dtype=dtype)
    capsule = x.__dlpack__(**options)
    assert tp.from_dlpack(capsule).dtype is dtype
    with pytest.raises(ValueError, match="already been consumed"):
        tp.from_dlpack(capsule)


@pytest.mark.parametrize(
    ("dtype", "code", "bits"),
    [(tp.bfloat16, 4, 16), (tp.float8_e4m3fn, 10, 8), (tp.float8_e4m3fnuz, 11, 8),
     (tp.float8_e5m2, 12, 8), (tp.float8_e5m2fnuz, 13, 8), (tp.bool, 6, 8), (tp.complex64, 5, 64)],
)  # fmt: skip
@pytest.mark.parametrize("name", [b"dltensor", b"dltensor_versioned"])
def test_codes_of_types_are_those_of_the_specification(
    dtype: tp.dtype, code: int, bits: int, name: bytes
) -> None:
    versioned = name == b"dltensor_versioned"
    capsule = tp.ones(2, dtype=dtype).__dlpack__(max_version=(1, 1) if versioned else None)
    get_pointer = ctypes.pythonapi.PyCapsule_GetPointer
    get_pointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
    get_pointer.restype = ctypes.c_void_p
    address = get_pointer(capsule, name)
    at = address + (32 if versioned else 0) + 20
    assert ctypes.c_uint8.from_address(at).value == code
    assert ctypes.c_uint8.from_address(at + 1).value == bits
    if versioned:  # types of 8 bits came with version 1.1
        minor = ctypes.c_uint32.from_address(address + 4).value
        assert minor >= (1 if code >= 10 else 0)


def test_the_memory_lives_as_long_as_its_users() -> None:
    array = np.ones(5)
    alive = weakref.ref(array)
    capsule = tp.from_numpy(array).__dlpack__()
    del array
    y = tp.from_dlpack(capsule)
    gc.collect()
    assert alive() is not None
    assert y.sum().item() == 5
    del y, capsule
    gc.collect()
    assert alive() is None


def test_an_unused_capsule_frees_its_memory() -> None:
    array = np.ones(5)
    alive = weakref.ref(array)
    capsule = tp.from_numpy(array).__dlpack__(max_version=(1, 0))
    del array
    assert alive() is not None
    del capsule
    gc.collect()
    assert alive() is None


def test_a_tensor_that_requires_grad() -> None:
    x = tp.ones(2, requires_grad=True)
    for export in (x.__dlpack__, (x * 2).__dlpack__, lambda: np.from_dlpack(x),
                   lambda: tp.to_dlpack(x)):  # fmt: skip
        with pytest.raises(BufferError, match=r"require gradient.*custom_op.*x\.detach\(\)"):
            export()
    with tp.no_grad():
        assert tp.from_dlpack(x).data_ptr() == x.data_ptr()
    assert tp.from_dlpack(x.detach()).data_ptr() == x.data_ptr()


def test_a_view_whose_base_got_a_history() -> None:
    base = tp.ones(2)
    view = base[:1]
    base.mul_(tp.ones(2, requires_grad=True))
    with pytest.raises(BufferError, match="require gradient"):
        view.__dlpack__()


def test_read_only_memory_is_not_given_for_writing() -> None:
    x = wrap(np.broadcast_to(np.ones(3, np.float32), (2, 3)))
    with pytest.raises(BufferError, match=r"read-only.*Write x\.clone\(\)"):
        x.__dlpack__()
    # A versioned capsule says that it must not be written; we then copy.
    y = tp.from_dlpack(x)
    y.add_(1)
    assert x.tolist() == [[1, 1, 1]] * 2
    with pytest.raises(BufferError, match="copy=False"):
        tp.from_dlpack(x, copy=False)


def test_broadcast_dimensions_are_exported_as_they_are() -> None:
    x = tp.arange(3.0).expand(2, 3)
    y = tp.from_dlpack(x)
    assert y.stride() == (0, 1)
    assert y.data_ptr() == x.data_ptr()


def test_read_only_numpy_memory_is_copied() -> None:
    array = np.ones(2)
    array.flags.writeable = False
    y = tp.from_dlpack(array)
    y.add_(1)
    assert array.tolist() == [1, 1]


def test_copy() -> None:
    x = tp.ones(2)
    assert tp.from_dlpack(x, copy=True).data_ptr() != x.data_ptr()
    assert tp.from_dlpack(x, copy=False).data_ptr() == x.data_ptr()
    assert tp.from_dlpack(x.__dlpack__(copy=True)).data_ptr() != x.data_ptr()


def test_what_is_no_exporter() -> None:
    with pytest.raises(TypeError, match=r"argument 'obj'.*got list"):
        tp.from_dlpack([1.0])
    with pytest.raises(TypeError, match=r"\[to_dlpack\] argument 'tensor'"):
        tp.to_dlpack(np.ones(2))
    new = ctypes.pythonapi.PyCapsule_New
    new.restype = ctypes.py_object
    new.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
    foreign = b"something_else"
    with pytest.raises(ValueError, match="expected a capsule of DLPack"):
        tp.from_dlpack(new(1, foreign, None))


@pytest.mark.parametrize("as_capsule", [False, True])
def test_devices(as_capsule: bool) -> None:
    x = tp.ones(2)
    source = x.__dlpack__() if as_capsule else x
    with pytest.raises(BufferError, match="argument 'device': expected cpu"):
        tp.from_dlpack(source, device="meta")
    with pytest.raises(BufferError, match="meta"):
        tp.ones(2, device="meta").__dlpack__()
    with pytest.raises(BufferError, match="meta"):
        tp.ones(2, device="meta").__dlpack_device__()


@pytest.mark.parametrize("field", ["device", "type"])
def test_memory_elsewhere_and_unknown_types(field: str) -> None:
    capsule = tp.ones(2).__dlpack__()
    get_pointer = ctypes.pythonapi.PyCapsule_GetPointer
    get_pointer.restype = ctypes.c_void_p
    get_pointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
    address = get_pointer(capsule, b"dltensor")
    # data (8 bytes), device type (4), device id (4), ndim (4), code (1), bits (1), lanes (2)
    if field == "device":
        place, value, text = (
            ctypes.c_int32.from_address(address + 8),
            2,
            "expected memory on the cpu",
        )
    else:
        place, value = ctypes.c_uint8.from_address(address + 20), 17
        text = "unsupported dlpack dtype: code 17, 32 bits, 1 lanes"
    before, place.value = place.value, value
    with pytest.raises(BufferError, match=text):
        tp.from_dlpack(capsule)
    place.value = before  # what was refused is not consumed
    assert tp.from_dlpack(capsule).tolist() == [1, 1]


@pytest.mark.parametrize("dtype", [tp.float32, tp.bfloat16, tp.bool])
def test_tensors_of_the_engine(dtype: tp.dtype) -> None:
    tvm_ffi = pytest.importorskip("tvm_ffi")
    x = tp.tensor([[0, 1], [1, 0]]).to(dtype)
    theirs = tvm_ffi.from_dlpack(x)
    assert tuple(theirs.shape) == (2, 2)
    ours = tp.from_dlpack(theirs)
    assert ours.dtype is dtype
    assert ours.data_ptr() == x.data_ptr()
    ours[0, 0] = 1
    assert x.tolist()[0][0] == 1
