"""Exchange of memory with other libraries: DLPack both ways, and NumPy arrays.

NumPy does the work; this module adds what NumPy leaves out: bfloat16 and float8 (exported as
unsigned integers with the type patched in the capsule), capsules passed by themselves, and memory
that an old capsule without a read-only flag would give away for writing.
"""

from __future__ import annotations

import ctypes
import warnings
from typing import TYPE_CHECKING, Any, Final

import ml_dtypes
import numpy as np

from tensorplay import _device, _native
from tensorplay._detours import detours
from tensorplay._device import device
from tensorplay._dtype import DTYPES, dtype, from_numpy_dtype
from tensorplay._layout import DeviceArray
from tensorplay._methods import attach
from tensorplay._tensor import Spec, Tensor, wrap
from tensorplay.autograd import grad_mode

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = [
    "DTYPES",
    "Tensor",
    "device",
    "dtype",
    "from_dlpack",
    "from_numpy",
    "to_dlpack",
    "words",
    "writable_alias",
]

K_DL_UINT: Final = 1
# DLPack's codes of the types that NumPy does not export; those of 8 bits came with version 1.1.
CODES: Final = {
    np.dtype(ml_dtypes.bfloat16): 4,
    np.dtype(ml_dtypes.float8_e4m3fn): 10,
    np.dtype(ml_dtypes.float8_e4m3fnuz): 11,
    np.dtype(ml_dtypes.float8_e5m2): 12,
    np.dtype(ml_dtypes.float8_e5m2fnuz): 13,
}
LEGACY, VERSIONED = b"dltensor", b"dltensor_versioned"
VERSION: Final = (1, 1)
# A GPU's own memory, and memory that it shares with the host, as DLPack numbers kinds of devices.
_CUDA: Final = (2, 13)
_KINDS: Final = {"i": 0, "u": K_DL_UINT, "f": 2, "c": 5, "b": 6}
_BY_CODE: Final = {
    (CODES.get(d.numpy, _KINDS.get(d.numpy.kind)), 8 * d.itemsize): d for d in DTYPES
}

_get_name = ctypes.pythonapi.PyCapsule_GetName
_get_name.restype, _get_name.argtypes = ctypes.c_char_p, [ctypes.py_object]
_get_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_get_pointer.restype, _get_pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]


class _DLTensor(ctypes.Structure):
    """DLTensor of the DLPack specification, version 1."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class _VersionedHeader(ctypes.Structure):
    """What stands before the DLTensor in a DLManagedTensorVersioned."""

    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("manager_ctx", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
    )


class _Capsule:
    """A capsule as an object that NumPy can import."""

    def __init__(self, capsule: Any) -> None:
        self._capsule = capsule

    def __dlpack__(self, **_: Any) -> Any:
        return self._capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)


class _Writable:
    """Memory of an array that NumPy marks read-only, in the form that NumPy imports for writing."""

    def __init__(self, array: npt.NDArray[Any]) -> None:
        self._array = array
        interface = dict(array.__array_interface__)
        interface["data"] = (interface["data"][0], False)
        self.__array_interface__ = interface


def writable_alias(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return the same memory as an array that may be written, whatever `array` allows.

    For readers that are reached through a protocol without a word for read-only, and for memory
    that is marked read-only for want of one. Whoever calls answers for what is written.

    Parameters
    ----------
    array
        The array.

    Returns
    -------
    numpy.ndarray
        On its memory.
    """
    return np.asarray(_Writable(array)).view(array.dtype)


def _is_capsule(obj: Any) -> bool:
    return type(obj).__name__ == "PyCapsule"


def _tensor_of(capsule: Any) -> _DLTensor:
    name = _get_name(capsule)
    address = _get_pointer(capsule, name)
    if name == VERSIONED:
        address += ctypes.sizeof(_VersionedHeader)
    return _DLTensor.from_address(address)


def _dlpack(
    self: Tensor,
    *,
    stream: Any = None,
    max_version: tuple[int, int] | None = None,
    dl_device: tuple[int, int] | None = None,
    copy: bool | None = None,
) -> Any:
    """Return a DLPack capsule of the memory of this tensor.

    Parameters
    ----------
    stream
        Must be None in main memory.
    max_version
        Newest version the consumer knows; without it a legacy capsule is made.
    dl_device
        Device the consumer wants, ``(1, 0)`` or None.
    copy
        Whether to copy.

    Raises
    ------
    BufferError
        The tensor requires grad while recording is on; it has a tangent; it has no memory; or that
        is read-only and the consumer cannot be told not to write.
    """
    if grad_mode.state.enabled and self.requires_grad:
        message = (
            "[__dlpack__] can't export tensors that require gradient: the receiver would compute "
            "outside of the graph. Wrap the call in `library.custom_op`, write x.detach(), or "
            "write `with tensorplay.no_grad():` around it."
        )
        raise BufferError(message)
    if self._tangent is not None:
        message = (
            "[__dlpack__] can't export tensors that have a tangent: forward mode would miss what "
            "the receiver computes. Wrap the call in `library.custom_op`, or write x.detach()."
        )
        raise BufferError(message)
    if self.is_meta:
        message = "[__dlpack__] a tensor on device meta has no memory to exchange."
        raise BufferError(message)
    array = self._array
    if isinstance(array, DeviceArray):
        asked = {"stream": stream, "max_version": max_version, "dl_device": dl_device, "copy": copy}
        return array.source.__dlpack__(**{k: v for k, v in asked.items() if v is not None})
    if not isinstance(array, np.ndarray):
        message = "[__dlpack__] one sample of a batch (vmap) has no memory of its own to exchange."
        raise BufferError(message)  # noqa: TRY004  (what an exporter says)
    if max_version is None and not array.flags.writeable and not copy:
        message = (
            "[__dlpack__] expected memory that may be written, got read-only one, which a "
            "consumer of capsules without version cannot be told. Write x.clone()."
        )
        raise BufferError(message)
    options = {"stream": stream, "max_version": max_version, "dl_device": dl_device, "copy": copy}
    code = CODES.get(array.dtype)
    if code is None:
        return (
            array.__dlpack__(**options)
            if any(v is not None for v in options.values())
            else (array.__dlpack__())
        )
    capsule = array.view(f"u{array.itemsize}").__dlpack__(**options)
    _tensor_of(capsule).code = code
    if array.itemsize == 1 and _get_name(capsule) == VERSIONED:
        header = _VersionedHeader.from_address(_get_pointer(capsule, VERSIONED))
        header.minor = max(header.minor, 1)
    return capsule


def _dlpack_device(self: Tensor) -> tuple[int, int]:
    """Return DLPack's device type and ordinal: ``(1, 0)`` for main memory."""
    if self.is_meta:
        message = "[__dlpack_device__] a tensor on device meta has no memory to exchange."
        raise BufferError(message)
    if isinstance(self._array, DeviceArray):
        kind, index = self._array.source.__dlpack_device__()
        return int(kind), int(index)
    return (1, 0)


def to_dlpack(tensor: Any) -> Any:
    """Return a legacy DLPack capsule of the memory of `tensor`; see ``Tensor.__dlpack__``.

    Parameters
    ----------
    tensor
        A tensor on the CPU.

    Returns
    -------
    capsule
        For one consumer.

    Raises
    ------
    TypeError
        `tensor` is no tensor.
    """
    if not isinstance(tensor, Tensor):
        message = (
            f"[to_dlpack] argument 'tensor': expected Tensor, got {type(tensor).__name__}. "
            "Write tensorplay.as_tensor(x)."
        )
        raise TypeError(message)
    return _dlpack(tensor)


def from_dlpack(obj: Any, *, device: Any = None, copy: bool | None = None) -> Tensor:
    """Return a tensor on the memory of `obj`.

    Parameters
    ----------
    obj
        Anything with ``__dlpack__``, or a capsule, which can be used once.
    device
        ``"cpu"`` or None.
    copy
        True to copy; False to refuse a copy.

    Returns
    -------
    Tensor
        On that memory, unless it had to be copied. An array on a GPU gives a tensor on device
        cuda, for operators with CUDA kernels; ``device="cpu"`` copies it.

    Raises
    ------
    TypeError
        `obj` speaks no DLPack.
    ValueError
        The capsule was used before.
    BufferError
        The memory is elsewhere, of an unsupported type, or must not be written and ``copy=False``.
    """
    if device is not None and str(device) != "cpu":
        message = f"[from_dlpack] argument 'device': expected cpu, got {device}."
        raise BufferError(message)
    if device is None and not copy and on_gpu(obj):
        return _on_device(obj)
    if _is_capsule(obj):
        capsule = obj
    elif on_gpu(obj):
        try:
            capsule = obj.__dlpack__(max_version=VERSION, dl_device=(1, 0), copy=True)
        except (TypeError, BufferError, ValueError) as error:
            message = (
                f"[from_dlpack] a {type(obj).__name__} does not copy itself to the cpu by DLPack: "
                f"{error}. Copy it there by its own library first."
            )
            raise BufferError(message) from error
    elif not hasattr(obj, "__dlpack__"):
        message = (
            f"[from_dlpack] argument 'obj': expected an object with __dlpack__ or a capsule, got "
            f"{type(obj).__name__}. Write tensorplay.tensor(x)."
        )
        raise TypeError(message)
    else:
        try:
            capsule = obj.__dlpack__(max_version=VERSION)
        except TypeError:  # exporters older than version 1 take no such argument
            capsule = obj.__dlpack__()
    name = _get_name(capsule)
    if name not in (LEGACY, VERSIONED):
        what = (
            "the capsule has already been consumed; export again for each import"
            if name is not None and name.startswith(b"used_")
            else "expected a capsule of DLPack"
        )
        message = f"[from_dlpack] argument 'obj': {what} (its name is {name!r})."
        raise ValueError(message)
    fields = _tensor_of(capsule)
    if fields.device_type != 1:
        message = (
            f"[from_dlpack] expected memory on the cpu (DLPack device type 1), got type "
            f"{fields.device_type}. Copy it to the cpu first."
        )
        raise BufferError(message)
    code = fields.code
    kind = (code, fields.bits, fields.lanes)
    narrow = next((d for d, c in CODES.items() if kind == (c, 8 * d.itemsize, 1)), None)
    if narrow is not None:
        fields.code = K_DL_UINT
    try:
        array = np.from_dlpack(_Capsule(capsule))
    except (RuntimeError, BufferError) as error:
        fields.code = code  # the capsule was not consumed: as it came
        message = (
            f"[from_dlpack] unsupported dlpack dtype: code {fields.code}, {fields.bits} bits, "
            f"{fields.lanes} lanes ({error})."
        )
        raise BufferError(message) from error
    if name == LEGACY and not array.flags.writeable:
        array = writable_alias(array)
    if narrow is not None:
        array = array.view(narrow)
    if not array.flags.writeable and copy is False:
        message = "[from_dlpack] the memory must not be written, and copy=False forbids a copy."
        raise BufferError(message)
    if copy or not array.flags.writeable:
        array = array.copy()
    return wrap(array)


def on_gpu(obj: Any) -> bool:
    """Tell whether an object of another library says that its elements lie on an NVIDIA GPU.

    Parameters
    ----------
    obj
        Any object; tensors and NumPy arrays are none of another library.

    Returns
    -------
    bool
        Whether `from_dlpack` makes a tensor on device cuda of it.
    """
    if isinstance(obj, (Tensor, np.ndarray)) or not hasattr(type(obj), "__dlpack_device__"):
        return False
    return int(obj.__dlpack_device__()[0]) in _CUDA


def _on_device(obj: Any) -> Tensor:
    """Return a tensor that stands for an array on a GPU, which it keeps alive."""
    try:
        capsule = obj.__dlpack__(max_version=VERSION)
    except TypeError:  # exporters older than version 1 take no such argument
        capsule = obj.__dlpack__()
    fields = _tensor_of(capsule)  # only read: whoever frees the capsule frees what it holds
    key = (fields.code, fields.bits)
    d = _BY_CODE.get(key) if fields.lanes == 1 else None
    if d is None:
        message = (
            f"[from_dlpack] unsupported dlpack dtype: code {fields.code}, {fields.bits} bits, "
            f"{fields.lanes} lanes."
        )
        raise BufferError(message)
    shape = tuple(fields.shape[: fields.ndim])
    strides = tuple(fields.strides[: fields.ndim]) if fields.strides else None
    place = _device.device("cuda", int(fields.device_id))
    return wrap(DeviceArray(Spec(shape, d, strides), obj, place), d)


def shareable(array: npt.NDArray[Any]) -> bool:
    """Tell whether the elements of `array` lie as those of a tensor can: whole elements apart."""
    return all(step % array.itemsize == 0 for step in array.strides) and bool(array.flags.aligned)


class _Memory:
    """The bytes between the first and the last element of an array, which it keeps alive."""

    def __init__(self, array: Any) -> None:
        low, high = np.lib.array_utils.byte_bounds(array)
        self.array = array
        self.low = low
        self.__array_interface__ = {
            "shape": (high - low,), "typestr": "|u1", "data": (low, False), "version": 3,
        }  # fmt: skip


def _alone(array: Any) -> Any:
    """Return `array` on memory that ends where its elements end: nothing reaches beyond them."""
    memory = _Memory(array)
    start = array.ctypes.data - memory.low
    return np.ndarray(array.shape, array.dtype, np.asarray(memory), start, array.strides)


def from_numpy(array: Any) -> Tensor:
    """Return a tensor on the memory of a NumPy array.

    A read-only array is copied, with a warning, since tensors can be written. No operation reaches
    memory outside of `array`, such as the rest of an array that it is a part of.

    Parameters
    ----------
    array
        The array.

    Returns
    -------
    Tensor
        Of its shape, strides and type.

    Raises
    ------
    TypeError
        `array` is no NumPy array, masked, or of a type without counterpart (object, text, dates).
    ValueError
        Its elements do not lie whole elements apart, as in a field of a structured array.

    Examples
    --------
    >>> import numpy as np
    >>> import tensorplay as tp
    >>> a = np.zeros(2)
    >>> x = tp.from_numpy(a)
    >>> a[0] = 5.0
    >>> x
    tensor([5., 0.], dtype=tensorplay.float64)
    """
    if not isinstance(array, np.ndarray):
        message = (
            f"[from_numpy] argument 'array': expected np.ndarray, got {type(array).__name__}. "
            "Write tensorplay.tensor(x)."
        )
        raise TypeError(message)
    result = tensor_over(array, "from_numpy", "array")
    if not array.flags.writeable:
        warnings.warn(
            "[from_numpy] the array is read-only and was copied; tensors can be written.",
            UserWarning,
            stacklevel=2,
        )
        result._array = array.view(np.ndarray).copy()
    return result


def tensor_over(
    array: np.ndarray[Any, Any], where: str, argument: str, written: str = "x"
) -> Tensor:
    """Return a tensor on the memory of an array; that of a read-only one cannot be written.

    `where` and `argument` are what a refused array was given to: errors name them. `written` is
    what the array is called in the code that they advise.
    """
    if isinstance(array, np.ma.MaskedArray):
        message = (
            f"[{where}] argument '{argument}': expected np.ndarray, got a masked array, whose mask "
            f"would be lost. Write {written}.filled(value)."
        )
        raise TypeError(message)
    # An object of its own, so that `array.shape = …` leaves the tensor as it is; and a plain one,
    # as np.matrix and others compute by rules of their own.
    array = array.view(np.ndarray)
    try:
        result = wrap(array, from_numpy_dtype(array.dtype, written))
    except TypeError as error:
        message = f"[{where}] argument '{argument}': {error}"
        raise TypeError(message) from error
    if not shareable(array):
        message = (
            f"[{where}] argument '{argument}': expected strides that are multiples of the "
            f"{array.itemsize} bytes of an element, got {array.strides}. Write {written}.copy()."
        )
        raise ValueError(message)
    if (
        array.flags.writeable
        and isinstance(array.base, np.ndarray)
        and 0 < array.nbytes < array.base.nbytes
    ):
        result._array = _alone(array)
    return result


attach("__dlpack__", _dlpack)
attach("__dlpack_device__", _dlpack_device)


def words() -> list[tuple[Any, Any, int, int]]:
    """Return each element type as NumPy's, ours, and DLPack's code and bits."""
    kinds = {"i": 0, "u": 1, "f": 2, "c": 5, "b": 6}
    return [
        (d.numpy, d, CODES.get(d.numpy, kinds.get(d.numpy.kind, 2)), 8 * d.itemsize) for d in DTYPES
    ]


if _native.core is not None:
    _native.core.configure(Tensor, wrap, grad_mode.state, detours, words())
    # What the engine asks a type for: tensors go in without a call of `__dlpack__`, and what a
    # kernel returns comes back as a tensor of ours.
    attach("__dlpack_c_exchange_api__", _native.core.exchange_table)
