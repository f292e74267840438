"""What checks have found, kept beside the library in the build cache, as plain data.

An unchanged cell gets its whole report from there, in another session too. The name of a file says
what its records depend on: the cell's declaration, the checks that were asked for, the seed, the
text of the checks and of the runtime that they call, and the processor. A file that is damaged is
none. It goes when its library does.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime as dt
import functools
import hashlib
import json
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import tensorplay
import tpkernel
from tensorplay.library.modules.codec import decode, encode
from tensorplay.library.modules.spec import CellSpec
from tensorplay.utils.cpp_jit import toolchain
from tensorplay.utils.cpp_jit.store import digest, write_atomically
from tpkernel.report.facts import Finding, GradcheckFacts, OpcheckFacts, ValidationRow

__all__ = ["Found", "keep", "kept_for", "programs_version", "records_key"]

_KINDS = {kind.__name__: kind for kind in (GradcheckFacts, ValidationRow, OpcheckFacts, Finding)}


@dataclass(frozen=True)
class Found:
    """Records of checks.

    Attributes
    ----------
    records
        In the order they were made.
    at
        When, in ISO 8601, for records that were kept; empty for new ones.
    """

    records: tuple[Any, ...]
    at: str = ""

    @property
    def notes(self) -> tuple[str, ...]:
        """What a report says of records that were not made for it."""
        if not self.at:
            return ()
        day = dt.datetime.fromisoformat(self.at).astimezone().strftime("%Y-%m-%d %H:%M")
        return (f"From the cache: checked on {day}. To check again, run the cell with --recheck.",)


def records_key(
    spec: CellSpec, checks: Sequence[str], seed: int, sanitizers: Sequence[str]
) -> str | None:
    """Return a name for all that records depend on besides the library; None if there is none."""
    try:
        declared = encode(dataclasses.replace(spec, cell=""))  # In[5] in one run, In[6] in the next
    except TypeError:  # a sample that is no plain data
        return None
    asked = [declared, list(checks), seed, list(sanitizers)]
    return digest(json.dumps(asked, sort_keys=True), programs_version(), toolchain.processor())


@functools.cache
def programs_version() -> str:
    """Return a digest of the programs that make records: ours, Python and NumPy."""
    parts = [sys.version, np.__version__]
    for package in (tensorplay, tpkernel):
        parts += sorted(_programs(str(Path(package.__file__ or "").parent)))
    return digest(*parts)


def _programs(folder: str) -> Iterator[str]:
    with os.scandir(folder) as items:
        for item in items:
            if item.name.endswith((".py", ".so", ".pyd")):
                state = item.stat()
                yield f"{item.name} {state.st_size} {state.st_mtime_ns}"
            elif item.is_dir() and item.name != "__pycache__":
                yield from _programs(item.path)


def kept_for(library: str, key: str | None) -> Found | None:
    """Return the records that were kept for a library, or None."""
    if key is None:
        return None
    try:
        whole = json.loads(_file(library, key).read_text("utf-8"))
        body = whole["body"]
        if whole["sha256"] != hashlib.sha256(body.encode()).hexdigest():
            return None
        data = json.loads(body)
        records = tuple(decode(_KINDS[kind], record) for kind, record in data["records"])
        return Found(records, dt.datetime.fromisoformat(data["at"]).isoformat())
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None  # what cannot be read was not kept


def keep(library: str, key: str | None, records: Sequence[Any]) -> None:
    """Keep records beside their library, where there is room and a right to write."""
    if key is None:
        return
    data = {
        "at": dt.datetime.now(dt.timezone.utc).isoformat(timespec="seconds"),
        "records": [[type(record).__name__, encode(record)] for record in records],
    }
    body = json.dumps(data)
    whole = {"sha256": hashlib.sha256(body.encode()).hexdigest(), "body": body}
    with contextlib.suppress(OSError):
        if Path(library).is_file():  # else its entry was evicted meanwhile
            write_atomically(_file(library, key), json.dumps(whole))


def _file(library: str, key: str) -> Path:
    return Path(library).with_name(f"checks-{key[:20]}.json")
