"""The description that a library file of operators carries, and how damage to it is found.

One constant of the library holds a header and JSON text, so that any file format and any linker
will do, and the file's bytes can be judged before the loader of the system sees them:

====== ===== =========================================================
offset bytes
====== ===== =========================================================
0      16    :data:`MAGIC`
16     4     version of the format, little-endian like all numbers here
20     4     zero
24     8     length of the JSON text
32     8     size of the whole file
40     32    SHA-256 of the whole file with these 32 bytes zero
72           the JSON text, UTF-8
====== ===== =========================================================

Size and checksum are written after linking, by :func:`seal`.
"""

from __future__ import annotations

import hashlib
import json
import platform
import struct
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tensorplay.library.modules.codec import decode, encode
from tensorplay.library.modules.spec import Declaration, OperatorSpec

__all__ = ["FORMAT", "MAGIC", "Description", "Made", "embedded", "parse", "seal", "this_platform"]

#: Not text, and changed by whatever changes line ends.
MAGIC = b"\x93TP-operators\r\n\x1a"
#: Version that is written, and the newest that is read. A change of a record is a new version.
FORMAT = 2
_HEADER = struct.Struct("<16sIIQQ32s")
_SIZE_AT = 32
_CHECKSUM_AT = 40
_LIBRARIES = (b"\x7fELF", b"MZ", b"\xcf\xfa\xed\xfe", b"\xca\xfe\xba\xbe")
_AGAIN = "Build it again, or copy it again from where it was built"


@dataclass(frozen=True)
class Made:
    """How a library was built.

    Attributes
    ----------
    platform
        System and processor, as :func:`this_platform` has them.
    tensorplay, engine
        Versions of this package and of the engine.
    flags
        Flags of the compiler and the linker that were asked for.
    sources
        Name of each source to its SHA-256.
    """

    platform: str
    tensorplay: str
    engine: str
    flags: tuple[str, ...]
    sources: Mapping[str, str]


@dataclass(frozen=True)
class Description:
    """What a library file says of itself.

    Attributes
    ----------
    name
        Name of the module.
    operators
        Declared operators first, then the helpers that gradients call.
    declarations
        Operators that are declared without a kernel.
    made
        How it was built.
    """

    name: str
    operators: tuple[OperatorSpec, ...]
    declarations: tuple[Declaration, ...]
    made: Made


def this_platform() -> str:
    """Return system and processor of this process, such as ``linux-x86_64``."""
    return f"{sys.platform}-{platform.machine().lower()}"


def embedded(description: Description) -> str:
    """Return the C++ constant that carries a description.

    Raises
    ------
    TypeError
        A value of a sample has no place in JSON, such as a date.
    """
    data = encode(description)
    for operator, spec in zip(data["operators"], description.operators, strict=True):
        operator["guards"] = dict(
            spec.kernel.guard_text(copies=spec.copies)
        )  # for whoever reads the JSON
    text = json.dumps(data, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()
    content = _HEADER.pack(MAGIC, FORMAT, 0, len(text), 0, b"") + text
    pieces = [content[i : i + 4000] for i in range(0, len(content), 4000)]
    lines = ["    " + _literal(piece) for piece in pieces]
    return "\n".join(
        [
            'extern "C" {',
            '__attribute__((visibility("default"), used))',
            "extern const char tensorplay_operators[];",
            "const char tensorplay_operators[] =",
            *lines,
            ";",
            "}",
        ]
    )


def _literal(content: bytes) -> str:
    plain = b" !#$%&'()*+,-./:;<=>@[]^_`{|}~"
    letters = set(plain) | {c for c in range(256) if chr(c).isalnum() and c < 128}
    return '"' + "".join(chr(c) if c in letters else f"\\{c:03o}" for c in content) + '"'


def seal(content: bytes) -> bytes:
    """Return a linked library with its size and checksum written into the description.

    Raises
    ------
    ValueError
        It carries no description.
    """
    at = content.find(MAGIC)
    if at < 0:
        message = "the library carries no description"
        raise ValueError(message)
    made = bytearray(content)
    made[at + _SIZE_AT : at + _SIZE_AT + 8] = len(content).to_bytes(8, "little")
    made[at + _CHECKSUM_AT : at + _HEADER.size] = bytes(32)
    checksum = hashlib.sha256(made).digest()
    made[at + _CHECKSUM_AT : at + _HEADER.size] = checksum
    return bytes(made)


def parse(content: bytes, file: Path) -> Description:
    """Return the description in a library's bytes.

    Parameters
    ----------
    content
        The whole file.
    file
        Its path, for messages.

    Raises
    ------
    RuntimeError
        No operator module, a damaged one, one of a newer format, or one for another platform.
    """
    where = f"[load] {file}"
    at = content.find(MAGIC)
    if at < 0:
        kind = "a library" if content.startswith(_LIBRARIES) else "a file"
        message = (
            f"{where}: expected a library of operators, got {kind} without a description: it is "
            "damaged, or was not made by python -m tensorplay.library build."
        )
        raise RuntimeError(message)
    if len(content) < at + _HEADER.size:
        message = f"{where} is damaged: it ends inside of its description. {_AGAIN}."
        raise RuntimeError(message)
    _, version, _, length, size, checksum = _HEADER.unpack_from(content, at)
    if version > FORMAT:
        message = (
            f"{where}: expected format {FORMAT} or older, got format {version}, which a newer "
            "TensorPlay has written. Write pip install --upgrade tensorplay-workbench."
        )
        raise RuntimeError(message)
    start = at + _HEADER.size
    if size == 0 and version == FORMAT:
        message = f"{where} was linked and not finished: its checksum is missing. {_AGAIN}."
        raise RuntimeError(message)
    if size != len(content) or start + length > len(content):
        message = f"{where} is damaged: expected {size} bytes, got {len(content)}. {_AGAIN}."
        raise RuntimeError(message)
    blank = bytearray(content)
    blank[at + _CHECKSUM_AT : start] = bytes(32)
    if version < 1 or hashlib.sha256(blank).digest() != checksum:
        message = (
            f"{where} is damaged: its content is not what was built (the checksum differs). "
            f"{_AGAIN}; where a tool such as strip changed it on purpose, write "
            "python -m tensorplay.library seal FILE."
        )
        raise RuntimeError(message)
    try:
        return _description(json.loads(content[start : start + length].decode()))
    except (ValueError, TypeError, KeyError, RecursionError) as problem:
        message = f"{where}: its description cannot be used: {problem}. {_AGAIN}."
        raise RuntimeError(message) from problem


def _description(data: Any) -> Description:
    for operator in data["operators"]:
        del operator["guards"]
    made: Description = decode(Description, data)
    return made
