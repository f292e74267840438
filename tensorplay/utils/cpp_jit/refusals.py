"""What a kernel's caller reads where an argument does not fit: position, name, expected and got."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from tensorplay._dlpack import Tensor, dtype

__all__ = [
    "argument",
    "kind_of",
    "mismatch",
    "spoken",
    "texts",
    "unconverted",
    "undescribed",
    "unfit",
    "unreadable",
    "without_bytes",
]

_MISMATCH = re.compile(
    r"^Mismatched type on argument #(\d+) when calling: `.*`\. Expected `(.*)` but got `(.*)`$",
    re.DOTALL,
)
_UNCONVERTED = re.compile(r"^Cannot convert from type `(.*)` to `(.*)`$", re.DOTALL)
_TENSOR = "Tensor or NumPy array"
_SPOKEN = {
    "DLTensor*": _TENSOR,
    "const DLTensor*": _TENSOR,
    "ffi.Tensor": _TENSOR,
    "object.Tensor": _TENSOR,
    "std::string": "str",
    "const char*": "str",
    "double": "float",
    "ffi.Function": "function",
    "object.Function": "function",
    "ffi.String": "str",
    "ffi.Bytes": "bytes",
    "ffi.Module": "module",
    "ffi.Shape": "tuple of int",
    "void*": "pointer or None",
    "DataType": "dtype",
    "Device": "device",
}


_ELEMENT_TYPE = re.compile(r"\bDLDataType\b")
_ENGINE_NAME = re.compile(r"ffi\.\w+")
_VALUES = {
    "ffi.SmallStr": "str",
    "ffi.String": "str",
    "ffi.SmallBytes": "bytes",
    "ffi.Bytes": "bytes",
    "ffi.Tensor": "Tensor",
    "ffi.Array": "list",
    "ffi.Map": "dict",
    "ffi.Function": "function",
    "ffi.BigInt": "int beyond 64 bits",
    "ffi.OpaquePyObject": "object",
}


def _inner(text: str) -> list[str]:
    """Return the parts of a template's arguments."""
    parts, depth, start = [], 0, 0
    for i, character in enumerate(text):
        depth += (character in "<(") - (character in ">)")
        if character == "," and depth == 0:
            parts.append(text[start:i])
            start = i + 1
    return [part.strip() for part in (*parts, text[start:])]


def spoken(kind: str) -> str:
    """Return a type as the engine names it in words that say what to pass."""
    kind = kind.strip()
    if kind in _SPOKEN:
        return _SPOKEN[kind]
    found = re.match(r"^(?:ffi\.)?(\w+)<(.*)>$", kind)
    if found is None:
        return {"Array": "list", "List": "list", "Map": "dict", "Dict": "dict"}.get(
            kind.removeprefix("ffi."), kind
        )
    name, parts = found[1], [spoken(part) for part in _inner(found[2])]
    if name in {"Array", "List"}:
        return f"list of {parts[0]}" if parts[0] != "Any" else "list"
    if name in {"Map", "Dict"} and len(parts) == 2:
        return f"dict of {parts[0]} to {parts[1]}" if parts != ["Any", "Any"] else "dict"
    if name == "Optional":
        return f"{parts[0]} or None"
    if name == "Variant":
        return " or ".join(parts)
    if name == "Tuple":
        return f"tuple of ({', '.join(parts)})"
    return kind


def kind_of(value: Any) -> str:
    """Return what a value is, in a word or two."""
    if value is None:
        return "None"
    if isinstance(value, Tensor):
        return f"Tensor of {str(value.dtype).removeprefix('tensorplay.')}"
    if isinstance(value, np.ndarray):
        return f"NumPy array of {value.dtype}"
    return type(value).__name__


def mismatch(error: BaseException, place: str, names: Sequence[str], args: Sequence[Any]) -> str:
    """Return what to say instead of the engine's text about a type that does not fit, or ``""``.

    Parameters
    ----------
    error
        What the engine raised.
    place
        The kernel, as ``[module::name]``.
    names
        The parameters' names, empty ones where they have none.
    args
        What was passed.
    """
    found = _MISMATCH.match(str(error))
    if found is None:
        return ""
    position = int(found[1])
    if position >= len(args):
        return ""
    value = args[position]
    name = names[position] if position < len(names) else ""
    expected = spoken(found[2])
    got = kind_of(value)
    if expected == "dtype" and isinstance(value, (dtype, np.dtype)):
        is_complex = value.is_complex if isinstance(value, dtype) else value.kind == "c"
        expected = "a dtype that is not complex" if is_complex else "a dtype of numbers or bool"
        got = str(value).removeprefix("tensorplay.")
    if isinstance(value, (list, tuple, dict)) and found[3] not in {"Array", "Map", "ffi.Array"}:
        got += f" ({_ENGINE_NAME.sub(lambda m: _VALUES.get(m[0], m[0]), found[3])})"
    if isinstance(value, int) and not isinstance(value, bool) and found[3].endswith("BigInt"):
        got = "int beyond 64 bits"
    advice = _advice(expected, name, value)
    if re.fullmatch(r"(?!ffi\.)\w+(\.\w+)+(#\d+)?", found[3]):
        got = found[3]  # an object of a library
        if re.sub(r"#\d+$", "", got) == re.sub(r"#\d+$", "", found[2]):
            got += " of another definition of the class"
            advice = " Make it again with the library that is called."
    return f"{place} {argument(position, names)}: expected {expected}, got {got}.{advice}\n{error}"


def unfit(error: BaseException, place: str, value: Any) -> str:
    """Return what to say instead of the engine's text about a misfitting field, or ``""``."""
    found = _UNCONVERTED.match(str(error))
    if found is None:
        return ""
    return f"{place}: expected {spoken(found[2])}, got {kind_of(value)}.\n{error}"


def unconverted(error: BaseException, place: str) -> str:
    """Return what to say of a value that a kernel converts to another kind itself, or ``""``.

    Which one it is C++ does not say: what a callback returned, or a part of what was passed.
    """
    found = _UNCONVERTED.match(str(error))
    if found is None:
        return ""
    expected = spoken(found[2])
    got = _VALUES.get(found[1], spoken(found[1]))
    return (
        f"{place} expected {expected} where it converts a value, such as the result of a callback, "
        f"got {got}. Return or pass {expected}.\n{error}"
    )


def unreadable(
    error: BaseException,
    place: str,
    names: Sequence[str],
    types: Sequence[str],
    args: Sequence[Any],
) -> ValueError | None:
    """Return what to raise where a text is not what the engine can read, or None.

    Parameters
    ----------
    error
        What the engine raised before the kernel ran.
    place
        The kernel, as ``[module::name]``.
    names, types
        The parameters' names and C++ types.
    args
        What was passed.
    """
    if isinstance(error, UnicodeEncodeError):
        for position, value in enumerate(args):
            if any(text == error.object for text in texts(value)):
                return without_bytes(f"{place} {argument(position, names)}", error)
    for position, (kind, value) in enumerate(zip(types, args, strict=False)):
        if not isinstance(value, (str, bytes, bytearray)) or not _ELEMENT_TYPE.search(kind):
            continue
        text = value if isinstance(value, str) else value.decode(errors="replace")
        if str(error) == f"unknown dtype `{text}`":
            return ValueError(
                f"{place} {argument(position, names)}: expected the name of a dtype such as "
                f"'float32', got {value!r}."
            )
    return None


def undescribed(where: str, value: Any, reason: BaseException) -> TypeError:
    """Return what to raise for memory that DLPack has no word for.

    Parameters
    ----------
    where
        Kernel and argument.
    value
        What was passed.
    reason
        What it said when it was asked for its memory.
    """
    advice = ""
    if isinstance(value, np.ndarray):
        kind = value.dtype
        if not kind.isnative:
            advice = f" Write x.astype('{kind.newbyteorder('=')}')."
        elif kind.kind in "fc" and kind.isbuiltin == 1:
            if any(stride % kind.itemsize for stride in value.strides):
                advice = " Write x.copy()."
            else:  # such as long double
                advice = f" Write x.astype('{'float64' if kind.kind == 'f' else 'complex128'}')."
        elif kind.kind in "biu":
            advice = " Write x.copy()."
    text = re.sub(r"^\[\w+\] ", "", str(reason))
    return TypeError(
        f"{where}: expected memory that DLPack can describe, got {kind_of(value)}: {text}{advice}"
    )


def without_bytes(where: str, error: UnicodeEncodeError) -> ValueError:
    """Return what to raise for a text that UTF-8 has no bytes for, at a place that is named."""
    return ValueError(
        f"{where}: expected text that UTF-8 has bytes for, got {error.object[error.start]!r} at "
        f"{error.start}. Write x.encode(errors='replace')."
    )


def texts(value: Any) -> Iterator[str]:
    """Return the texts that a value holds, keys included."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for pair in value.items():
            yield from texts(pair)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from texts(item)


def argument(position: int, names: Sequence[str]) -> str:
    """Return how a message calls an argument: by name and position, or position alone."""
    name = names[position] if position < len(names) else ""
    return f"argument {name!r} (position {position})" if name else f"argument #{position}"


def _advice(expected: str, name: str, value: Any) -> str:
    if expected == "int" and isinstance(value, float) and name:
        return f" Write int({name})."
    if expected in {"int", "float", "bool"} and isinstance(value, (Tensor, np.ndarray)) and name:
        return f" Write {name}.item()."
    is_data = isinstance(value, (int, float, list, tuple))
    if expected == _TENSOR and is_data and name:
        return f" Write tp.tensor({name})."
    return ""
