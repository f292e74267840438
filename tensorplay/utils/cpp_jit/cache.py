"""What a person can see and do about the build cache: list, measure, explain, clear, limit."""

from __future__ import annotations

import atexit
import contextlib
import errno
import json
import shutil
import tempfile
import threading
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tensorplay.utils.cpp_jit.errors import BuildCacheWarning, BuildError
from tensorplay.utils.cpp_jit.store import Cache, cache_at, default_cache

_EVERY_SECONDS = 300.0
#: Eviction starts when a sixteenth of the limit was added, and leaves as much room.
_SHARE = 16
_limit = 2**30


@dataclass(frozen=True)
class CachedLibrary:
    """One library in the cache.

    Parameters
    ----------
    name, key
        As in `Build`.
    folder
        Where it is.
    size
        Bytes of its folder.
    created
        Date and time of the build.
    used
        When it was last used, in seconds since the epoch.
    seconds
        What the build took.
    """

    name: str
    key: str
    folder: Path
    size: int
    created: str
    used: float
    seconds: float


def entries(name: str | None = None) -> list[CachedLibrary]:
    """Return the libraries in the cache, the newest first.

    Parameters
    ----------
    name
        Only those built under this name.
    """
    found = []
    for part in default_cache().parts():
        if part.kind != "entries":
            continue
        with contextlib.suppress(OSError, ValueError, KeyError):
            data = _description(part.folder)
            if name is None or data["name"] == name:
                found.append(
                    CachedLibrary(
                        name=data["name"],
                        key=data["key"],
                        folder=part.folder,
                        size=part.size,
                        created=data["created"],
                        used=part.used,
                        seconds=data["seconds"],
                    )
                )
    return sorted(found, key=lambda library: (library.created, library.used), reverse=True)


def size() -> int:
    """Return the bytes that the cache takes, precompiled headers included."""
    return sum(part.size for part in default_cache().parts())


def set_limit(size: int) -> None:
    """Set the bytes that the cache may take, 1 GiB at first; the longest unused go first.

    Raises
    ------
    ValueError
        The size is negative.
    """
    if size < 0:
        raise ValueError(f"[cpp_jit.set_limit] argument 'size': expected bytes, got {size}")
    global _limit  # noqa: PLW0603 - one setting of the process
    _limit = size
    default_cache().evict(size)


def clear(name: str | None = None) -> int:
    """Remove cached libraries; what is loaded goes on working.

    Parameters
    ----------
    name
        Only those built under this name; None removes everything, precompiled headers included.

    Returns
    -------
    int
        Bytes freed.
    """
    cache = default_cache()
    freed = 0
    if name is not None:
        for library in entries(name):
            cache.remove(library.folder)
            freed += library.size
        return freed
    for part in cache.parts():
        cache.remove(part.folder)
        freed += part.size
    for kind in ("requests", "filesets"):
        cache.remove(cache.root / kind)
    return freed


def explain(name: str) -> str:
    """Return why the newest library of a name was built, compared with the one before.

    Raises
    ------
    LookupError
        Nothing of this name is in the cache.
    """
    found = entries(name)
    if not found:
        raise LookupError(f"[cpp_jit.explain] there is no library {name!r} in the cache")
    newest = _description(found[0].folder)
    if len(found) == 1:
        return f"{name!r} was built because no earlier build of it is in the cache"
    changes = _changes(_description(found[1].folder), newest)
    if not changes:
        return f"{name!r} was built again because its earlier build was damaged or removed"
    return f"{name!r} was built because these changed: {'; '.join(changes)}"


def _changes(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    changes = [
        what for what, value in new["inputs"].items() if old["inputs"].get(what, ...) != value
    ]
    if old["compiler"] != new["compiler"]:
        changes.append("the compiler")
    for path, content in new["files"].items():
        if path in old["files"] and old["files"][path] != content:
            changes.append(path)
    return changes


def _description(folder: Path) -> dict[str, Any]:
    data: dict[str, Any] = json.loads((folder / "entry.json").read_text("utf-8"))
    return data


# What builds call

_checked: dict[Path, float] = {}
_added: dict[Path, int] = {}
_evicting: dict[Path, threading.Thread] = {}


def keep_within_limit(cache: Cache, added: int) -> None:
    """Evict in the background: every few minutes, and when much was added.

    Parameters
    ----------
    cache
        Where something was built.
    added
        Its bytes.
    """
    now = time.monotonic()
    _added[cache.root] = _added.get(cache.root, 0) + added
    due = now - _checked.get(cache.root, -_EVERY_SECONDS) >= _EVERY_SECONDS
    if not due and _added[cache.root] <= _limit // _SHARE:
        return
    running = _evicting.get(cache.root)
    if running is not None and running.is_alive():
        return
    _checked[cache.root] = now
    _added[cache.root] = 0
    thread = threading.Thread(
        target=cache.evict, args=(_limit - _limit // _SHARE,), name="tensorplay-evict", daemon=True
    )
    _evicting[cache.root] = thread
    thread.start()


_ROOM = 2**20  # bytes; a disk with less is full for a linker, whatever its own message was


@contextlib.contextmanager
def explain_full_disk(cache: Cache) -> Iterator[None]:
    """Turn what a full disk does to Python, compilers and linkers into one sentence.

    Raises
    ------
    BuildError
        The disk is full. Nothing was published.
    """
    try:
        yield
    except (OSError, BuildError) as error:
        usage = shutil.disk_usage(cache.root)
        cramped = usage.free < min(_ROOM, usage.total // 8)
        if isinstance(error, BuildError):
            said = "No space left on device" in error.log
            # A linker that maps its output is killed without a word; a mistake has its line.
            full = said or (cramped and not any(d.line for d in error.diagnostics))
        else:
            full = error.errno in {errno.ENOSPC, getattr(errno, "EDQUOT", errno.ENOSPC)}
        if not full:
            raise
        # Compilers, too, write into the cache's folder. What they wrote is gone by now, and room
        # with it, so that the free space says nothing of the place.
        raise BuildError(
            f"the disk is full: {cache.root}. Free some room, write cpp_jit.cache.clear(), or set "
            "TENSORPLAY_CACHE_DIR to another disk.",
            log=getattr(error, "log", str(error)),
            commands=getattr(error, "commands", ()),
        ) from error


_substitutes: dict[Path, Cache] = {}


def writable(cache: Cache) -> Cache:
    """Return the cache, or a temporary one in place of one that cannot be written to."""
    if cache.root in _substitutes:
        return _substitutes[cache.root]
    try:
        (cache.root / "tmp").mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=cache.root / "tmp"):
            return cache
    except OSError as error:
        folder = tempfile.mkdtemp(prefix="tensorplay-")
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        warnings.warn(
            f"the build cache {cache.root} cannot be written to ({error.strerror}); what is "
            "built now is lost with this process. Set TENSORPLAY_CACHE_DIR to another folder.",
            BuildCacheWarning,
            stacklevel=2,
        )
        _substitutes[cache.root] = cache_at(folder)
        return _substitutes[cache.root]
