"""The engine's JSON of a function's types, from the types as the source writes them.

Compiled in, it costs every build a header and a function per export; the scan of the source knows
the same. The vocabulary is the one of the engine's ``TypeSchema()`` (``type_traits.h`` and the
headers of the containers); a type that is none of the engine's stays as it is written.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any

from tensorplay.utils.cpp_jit.source import split_at_commas

__all__ = ["type_schema"]

_INTEGER = re.compile(
    r"(?:(?:un)?signed|short|long|int|char|u?int(?:_fast|_least)?(?:8|16|32|64)_t|u?intptr_t|"
    r"u?intmax_t|s?size_t|ptrdiff_t|\s)+"
)
_PLAIN = {
    "void": "None",
    "bool": "bool",
    "float": "float",
    "double": "float",
    "Any": "Any",
    "AnyView": "Any",
    "TensorView": "DLTensor*",
    "DLTensor*": "DLTensor*",
    "void*": "void*",
    "char*": "const char*",
    "TVMFFIByteArray*": "TVMFFIByteArray*",
    "std::string": "std::string",
    "DLDevice": "Device",
    "DLDataType": "DataType",
    "ObjectRef": "ffi.Object",
    "ShapeView": "ffi.Shape",
    **{n: f"ffi.{n}" for n in ("Tensor", "String", "Bytes", "Shape", "Function", "Module")},
    **{n: f"ffi.{n}" for n in ("Error", "BigInt")},
}
_GENERIC = {
    **{n: f"ffi.{n}" for n in ("Array", "List", "Map", "Dict")},
    **{n: n for n in ("Optional", "Tuple", "Variant")},
    **{
        f"std::{n}": f"std::{n}"
        for n in ("optional", "vector", "tuple", "variant", "map", "unordered_map")
    },
}
_CALLABLE = {"TypedFunction": "ffi.Function", "std::function": "std::function"}


def type_schema(result: str, parameters: Iterable[str]) -> str:
    """Return the JSON of a function's types.

    Parameters
    ----------
    result, parameters
        C++ types.

    Returns
    -------
    str
        As ``tvm_ffi.core.TypeSchema.from_json_str`` reads it.
    """
    return json.dumps(_function("ffi.Function", result, parameters), separators=(",", ":"))


def _function(kind: str, result: str, parameters: Iterable[str]) -> dict[str, Any]:
    types = [_schema(p) for p in parameters]
    return {"type": kind, "named_args": {"return": [_schema(result)], "params": types}}


def _schema(written: str) -> dict[str, Any]:
    text = re.sub(r"\b(?:const|volatile)\b|&", " ", written)
    text = re.sub(r"(?<![\w:])(?:::)?(?:tvm::)?ffi::", "", text)
    text = re.sub(r"\s*([*<>,:()])\s*", r"\1", text.strip())
    if text in _PLAIN:
        return {"type": _PLAIN[text]}
    if re.sub(r"\bstd::", "", text) and _INTEGER.fullmatch(re.sub(r"\bstd::", "", text)):
        return {"type": "int"}
    name, bracket, rest = text.partition("<")
    if bracket and rest.endswith(">"):
        arguments = split_at_commas(rest[:-1])
        if name in _GENERIC:
            return {"type": _GENERIC[name], "args": [_schema(a) for a in arguments]}
        called = re.fullmatch(r"(.*?)\((.*)\)", rest[:-1])
        if name in _CALLABLE and called is not None:
            inner = [p for p in split_at_commas(called[2]) if p != "void"]
            return _function(_CALLABLE[name], called[1], inner)
    return {"type": " ".join(written.split())}
