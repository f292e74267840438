"""Reading and writing of the safetensors format, by its library."""

from __future__ import annotations

import os
from typing import Any, Final

import numpy as np

from tensorplay import _dtype
from tensorplay._tensor import Tensor, wrap
from tensorplay.ops.arguments import reject

__all__ = ["dumps", "is_name", "loads"]

# The library's names for the types, when it reads and when it writes.
_NAMES: Final = {
    "BOOL": "bool", "U8": "uint8", "I8": "int8", "U16": "uint16", "I16": "int16", "U32": "uint32",
    "I32": "int32", "U64": "uint64", "I64": "int64", "F16": "float16", "BF16": "bfloat16",
    "F32": "float32", "F64": "float64", "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2",
    "C64": "complex64",
}  # fmt: skip


def is_name(f: Any) -> bool:
    """Tell whether `f` is a path that ends in ``.safetensors``."""
    return isinstance(f, (str, os.PathLike)) and os.fspath(f).endswith(".safetensors")


def _library() -> Any:
    try:
        import safetensors.numpy
    except ImportError as error:
        raise RuntimeError(
            "files that end in .safetensors need its library. Write `pip install safetensors`."
        ) from error
    return safetensors


def dumps(obj: Any) -> bytes:
    """Return a dict of tensors in the format.

    Raises
    ------
    TypeError
        `obj` is something else, or a type has no counterpart.
    RuntimeError
        The library is missing.
    """
    if not isinstance(obj, dict) or not all(
        isinstance(k, str) and isinstance(v, Tensor) for k, v in obj.items()
    ):
        reject("save", "obj", "a dict of tensors by name, for safetensors", obj)
    arrays = {}
    for name, x in obj.items():
        if x._dtype.name not in _NAMES.values():
            reject("save", "obj", "a type that safetensors has", x._dtype)
        arrays[name] = np.ascontiguousarray(x.detach()._elements("save"))
    return bytes(_library().numpy.save(arrays))


def loads(data: bytes) -> dict[str, Tensor]:
    """Return the tensors of a file in the format.

    Raises
    ------
    ValueError
        The bytes are not in the format.
    RuntimeError
        The library is missing.
    """
    library = _library()
    try:
        entries = library.deserialize(data)
    except library.SafetensorError as error:
        raise ValueError(f"[load] argument 'f': not a safetensors file: {error}.") from error
    result = {}
    for name, entry in entries:
        d = _dtype.named(_NAMES.get(entry["dtype"], entry["dtype"]))
        if d is None:
            raise ValueError(f"[load] argument 'f': tensor {name!r} has type {entry['dtype']}.")
        array = np.frombuffer(bytearray(entry["data"]), d.numpy).reshape(entry["shape"])
        result[name] = wrap(array, d)
    return result
