"""A build's key in clear: what the library depends on, read from its entry in the cache."""

from __future__ import annotations

import json
from typing import Any

from tensorplay.utils import cpp_jit

__all__ = ["key_inputs"]

_SHORT = 12


def key_inputs(build: cpp_jit.Build) -> tuple[tuple[str, str], ...]:
    """Return name and value of each part of a build's key; contents are shown by their hash."""
    try:
        entry = json.loads((build.folder / "entry.json").read_text("utf-8"))
    except (OSError, ValueError):  # the cache was emptied meanwhile; the key itself is still known
        return ()
    parts = [(str(name), _text(value)) for name, value in entry.get("inputs", {}).items()]
    parts += [("the compiler", " ".join(line.split())) for line in entry.get("compiler", ())]
    parts += [
        (f"file {path}", f"sha256 {digest[:_SHORT]}…")
        for path, digest in entry.get("files", {}).items()
        if not path.startswith(("/usr/", "/lib"))
    ]
    system = sum(path.startswith(("/usr/", "/lib")) for path in entry.get("files", {}))
    if system:
        parts.append(("files of the system", f"{system}, each by its sha256"))
    return tuple(parts)


def _text(value: Any) -> str:
    if isinstance(value, str):
        hexadecimal = len(value) >= 32 and all(c in "0123456789abcdef" for c in value)
        if hexadecimal:
            return f"sha256 {value[:_SHORT]}…"
        # Variables, one a line; those that are not set say nothing.
        return ", ".join(v for v in value.splitlines() if not v.endswith("=")) or "none"
    if isinstance(value, dict):
        return ", ".join(value) or "none"
    if isinstance(value, (list, tuple)):
        return " ".join(map(str, value)) or "none"
    return str(value)
