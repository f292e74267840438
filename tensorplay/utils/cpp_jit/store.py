"""The build cache: what was built from exactly what, found again without starting a process.

A *request* is everything that a caller asks for (texts, exports, flags, variables, the headers of
the engine and of this package). Its file lists *records*: one per set of files that a compiler read
for it, with their content hashes, naming the *entry* folder that holds the library. A request whose
files are unchanged leads to its entry; anything else is built.

Entries appear by one rename and never change. A folder name is used once, so a path that some
process may have loaded never gets other content.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import re
import secrets
import shutil
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tensorplay.utils.cpp_jit.errors import BuildCacheWarning

FORMAT = 2
#: A file changed this shortly before it was recorded may have changed again within the resolution
#: of its time stamps, so its content is compared and not its times. Both times count: the one of
#: the content can be set at will and goes back with the clock, the one of the inode cannot be set.
_SETTLED_NS = 2_000_000_000
_MAX_RECORDS = 8
_MAX_KNOWN = 512
_MAX_NAMES, _MAX_WORDS = 256, 16
_STALE_SECONDS = 3600.0
_PATIENCE_SECONDS = 10.0
_TOLD_SECONDS = 0.5
_IN_USE_SECONDS = 60.0


@dataclass(frozen=True)
class FileState:
    """A file as a compiler read it."""

    path: str
    size: int
    mtime_ns: int
    ctime_ns: int
    sha256: str

    @classmethod
    def of(cls, path: str) -> FileState:
        """Return the present state of a file."""
        state = stat(path)
        return cls(
            path, state.st_size, state.st_mtime_ns, state.st_ctime_ns, _file_hash(path, state)
        )

    def holds(self, recorded_ns: int) -> bool:
        """Return whether the file still has this content."""
        try:
            state = stat(self.path)
        except OSError:
            return False
        if state.st_size != self.size:
            return False
        times = state.st_mtime_ns, state.st_ctime_ns
        if times == (self.mtime_ns, self.ctime_ns) and recorded_ns - max(times) > _SETTLED_NS:
            return True
        try:
            return _file_hash(self.path, state) == self.sha256
        except OSError:
            return False

    def to_json(self) -> list[Any]:
        """Return the fields in order."""
        return [self.path, self.size, self.mtime_ns, self.ctime_ns, self.sha256]


def stat(path: str) -> os.stat_result:
    """Return the state of a file; without a Path object, since a lookup does this 200 times."""
    return os.stat(path)  # noqa: PTH116 - see above


_hashes: dict[tuple[str, int, int, int], str] = {}
_MAX_HASHES = 8192


def _file_hash(path: str, state: os.stat_result) -> str:
    times = state.st_mtime_ns, state.st_ctime_ns
    key = (path, state.st_size, *times)
    known = _hashes.get(key)
    if known is not None and time.time_ns() - max(times) > _SETTLED_NS:
        return known
    found = hashlib.sha256(Path(path).read_bytes()).hexdigest()
    _hashes[key] = found
    while len(_hashes) > _MAX_HASHES:
        _hashes.pop(next(iter(_hashes)), None)
    return found


@dataclass(frozen=True)
class Record:
    """One successful build of a request."""

    compiler: str
    entry: str
    files: tuple[FileState, ...]
    precompiled: str | None
    absent: tuple[str, ...]
    recorded_ns: int

    def to_json(self) -> dict[str, Any]:
        """Return the record as plain data."""
        return {
            "compiler": self.compiler,
            "entry": self.entry,
            "files": [file.to_json() for file in self.files],
            "precompiled": self.precompiled,
            "absent": list(self.absent),
            "recorded_ns": self.recorded_ns,
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Record:
        """Return the record that `to_json` described."""
        return cls(
            compiler=data["compiler"],
            entry=data["entry"],
            files=tuple(FileState(*file) for file in data["files"]),
            precompiled=data["precompiled"],
            absent=tuple(data["absent"]),
            recorded_ns=data["recorded_ns"],
        )


class Cache:
    """One cache folder.

    Parameters
    ----------
    root
        Its path; made when something is first written.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self._records: dict[str, tuple[int, tuple[Record, ...]]] = {}
        self._file_sets: dict[str, tuple[int, tuple[FileState, ...]]] = {}

    # Requests

    def records(self, request: str) -> tuple[Record, ...]:
        """Return what is known about a request, the newest first."""
        file = self._request_file(request)
        try:
            stamp = file.stat().st_mtime_ns
        except OSError:
            return ()
        known = self._records.get(request)
        if known and known[0] == stamp and time.time_ns() - stamp > _SETTLED_NS:
            return known[1]
        try:
            data = json.loads(file.read_text("utf-8"))
            records = tuple(Record.from_json(item) for item in data["records"])
        except (OSError, ValueError, KeyError, TypeError):
            return ()  # half-known is unknown: it is built again and the file replaced
        self._records[request] = (stamp, records)
        while len(self._records) > _MAX_KNOWN:
            self._records.pop(next(iter(self._records)), None)
        return records

    def find(self, request: str, compiler: str | None) -> Record | None:
        """Return a record of this request whose files are all as they were.

        Parameters
        ----------
        request
            Digest of the request.
        compiler
            Identity of the compiler that would build it; None takes any, for machines that have
            none.
        """
        for record in self.records(request):
            if compiler is not None and record.compiler != compiler:
                continue
            if any(os.path.lexists(path) for path in record.absent):
                continue
            if not all(file.holds(record.recorded_ns) for file in record.files):
                continue
            if record.precompiled is not None and not self.file_set_holds(record.precompiled):
                continue
            return record
        return None

    def add(self, request: str, record: Record) -> None:
        """Put a record before the others of its request."""
        others = [r for r in self.records(request) if r.entry != record.entry]
        kept = [record, *others][:_MAX_RECORDS]
        data = {"format": FORMAT, "records": [r.to_json() for r in kept]}
        write_atomically(self._request_file(request), json.dumps(data))

    def forget(self, request: str, entry: str) -> None:
        """Remove the records that lead to an entry."""
        kept = [r.to_json() for r in self.records(request) if r.entry != entry]
        data = {"format": FORMAT, "records": kept}
        write_atomically(self._request_file(request), json.dumps(data))

    def _request_file(self, request: str) -> Path:
        return self.root / "requests" / request[:2] / f"{request}.json"

    # What an earlier text of a name needed

    def full_words(self, name: str) -> frozenset[str]:
        """Return why an earlier text of this name needed the engine's full headers, if one did."""
        return frozenset(self._full_words().get(name, ()))

    def note_full_words(self, name: str, words: Iterable[str]) -> None:
        """Keep why a text needed the engine's full headers, for its next edit in any process."""
        known = self._full_words()
        known.pop(name, None)
        known[name] = sorted(words)[:_MAX_WORDS]
        while len(known) > _MAX_NAMES:
            known.pop(next(iter(known)))
        with contextlib.suppress(OSError):  # only a matter of speed
            write_atomically(self._full_words_file, json.dumps(known))

    @property
    def _full_words_file(self) -> Path:
        return self.root / "full_headers.json"

    def _full_words(self) -> dict[str, list[str]]:
        try:
            known = json.loads(self._full_words_file.read_text("utf-8"))
        except (OSError, ValueError):
            return {}
        if not isinstance(known, dict):
            return {}
        return {name: list(map(str, w)) for name, w in known.items() if isinstance(w, list)}

    # Sets of files, shared by the many cells that use one precompiled header

    def add_file_set(self, files: Sequence[FileState]) -> str:
        """Keep a set of file states and return its name."""
        data = {
            "format": FORMAT,
            "recorded_ns": time.time_ns(),
            "files": [file.to_json() for file in files],
        }
        name = digest(*(f"{f.path}\0{f.sha256}" for f in files))
        write_atomically(self.root / "filesets" / f"{name}.json", json.dumps(data))
        return name

    def file_set(self, name: str) -> tuple[int, tuple[FileState, ...]] | None:
        """Return when a set of files was recorded and the files, or None."""
        if name not in self._file_sets:
            try:
                text = (self.root / "filesets" / f"{name}.json").read_text("utf-8")
                data = json.loads(text)
                files = tuple(FileState(*file) for file in data["files"])
                self._file_sets[name] = (data["recorded_ns"], files)
            except (OSError, ValueError, KeyError, TypeError):
                return None
        return self._file_sets[name]

    def file_set_holds(self, name: str) -> bool:
        """Return whether all files of a set are as they were."""
        found = self.file_set(name)
        return found is not None and all(file.holds(found[0]) for file in found[1])

    # Entries

    def entry(self, name: str) -> dict[str, Any] | None:
        """Return the description of an entry whose library is whole, else None."""
        folder = self.root / "entries" / name
        try:
            data: dict[str, Any] = json.loads((folder / "entry.json").read_text("utf-8"))
            library = (folder / data["library"]).read_bytes()
        except (OSError, ValueError, KeyError):
            return None
        if hashlib.sha256(library).hexdigest() != data["sha256"]:
            return None
        return data

    def folder(self, entry: str) -> Path:
        """Return the folder of an entry."""
        return self.root / "entries" / entry

    def publish(self, work: Path, name: str, key: str) -> str:
        """Move a finished private folder among the entries and return the entry's name."""
        entry = f"{safe_name(name)}-{key[:20]}-{secrets.token_hex(3)}"
        target = self.root / "entries" / entry
        target.parent.mkdir(parents=True, exist_ok=True)
        work.rename(target)
        return entry

    def drop(self, request: str, entry: str, reason: str) -> None:
        """Remove a damaged entry and say so; one that is gone as a whole was evicted, no more."""
        if self.folder(entry).is_dir():
            warnings.warn(
                f"the cached library {entry} was {reason}; it is built again", BuildCacheWarning, 2
            )
        self.forget(request, entry)
        self.remove(self.root / "entries" / entry)

    def remove(self, folder: Path) -> None:
        """Remove a folder so that nobody sees it half removed."""
        grave = self.root / "tmp" / f"removed-{secrets.token_hex(6)}"
        grave.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileNotFoundError):
            folder.rename(grave)
        shutil.rmtree(grave, ignore_errors=True)

    # Work

    @contextlib.contextmanager
    def workspace(self) -> Iterator[Path]:
        """Yield a private folder on the cache's file system; removed unless it was published."""
        parent = self.root / "tmp"
        parent.mkdir(parents=True, exist_ok=True)
        folder = parent / f"build-{os.getpid()}-{secrets.token_hex(6)}"
        folder.mkdir()
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    @contextlib.contextmanager
    def lock(
        self,
        kind: str,
        key: str,
        what: str,
        *,
        wait: bool = True,
        on_wait: Callable[[str], None] | None = None,
    ) -> Iterator[bool]:
        """Hold a lock that the operating system releases with its holder; yield whether it is held.

        The files are few and stay: a lock file that is removed may be locked twice. So unrelated
        builds of one kind may wait for each other; one that holds a lock takes none of its kind.

        Parameters
        ----------
        kind
            ``"library"``, ``"runtime"`` or ``"headers"``.
        key
            Digest of what is built.
        what
            How to name it to a person who waits.
        wait
            False gives up at once when another holds it.
        on_wait
            Told twice a second who holds it. Without one a warning says so after ten seconds.
        """
        from filelock import FileLock, Timeout

        folder = self.root / "locks"
        folder.mkdir(parents=True, exist_ok=True)
        name = f"{kind}-{key[:2]}"
        lock = FileLock(folder / f"{name}.lock", thread_local=False, is_singleton=False)
        holder = folder / f"{name}.holder"
        patience = _PATIENCE_SECONDS if on_wait is None else _TOLD_SECONDS
        with contextlib.suppress(Timeout):
            lock.acquire(timeout=patience if wait else 0)
        if not lock.is_locked and not wait:
            yield False
            return
        if not lock.is_locked and on_wait is None:
            with contextlib.suppress(OSError):
                who = holder.read_text("utf-8")
                warnings.warn(f"{what} waits for {who}", BuildCacheWarning, 2)
            lock.acquire(poll_interval=0.02)
        while not lock.is_locked and on_wait is not None:
            with contextlib.suppress(OSError):
                on_wait(f"{what} waits for {holder.read_text('utf-8')}")
            with contextlib.suppress(Timeout):
                lock.acquire(timeout=_TOLD_SECONDS, poll_interval=0.02)
        try:
            with contextlib.suppress(OSError):
                started = time.strftime("%H:%M:%S")
                text = f"process {os.getpid()}, which has been building {what} since {started}"
                holder.write_text(text, "utf-8")
            yield True
        finally:
            lock.release()

    def tidy(self) -> None:
        """Remove private folders and copies that dead processes left behind.

        Only old ones, since a cache may be shared with machines whose processes are not seen here;
        and none of a living process, since a clock that was set makes anything look old.
        """
        limit = time.time() - _STALE_SECONDS
        with contextlib.suppress(OSError):
            for folder in (self.root / "tmp").iterdir():
                owner = re.match(r"(?:build|load)-(\d+)-", folder.name)
                with contextlib.suppress(OSError):
                    if folder.stat().st_mtime < limit and not (owner and _runs(int(owner[1]))):
                        shutil.rmtree(folder) if folder.is_dir() else folder.unlink()

    # Size

    def parts(self) -> list[Part]:
        """Return everything that takes room, the longest unused first."""
        found = []
        for kind in ("entries", "precompiled", "runtime"):
            with contextlib.suppress(OSError):
                for folder in (self.root / kind).iterdir():
                    with contextlib.suppress(OSError):
                        found.append(_part(kind, folder))
        return sorted(found, key=lambda part: part.used)

    def touch(self, folder: Path) -> None:
        """Note that a folder is in use, for the order in which others go."""
        with contextlib.suppress(OSError):  # a cache that cannot be written to is not evicted
            os.utime(folder)

    def evict(self, limit: int) -> list[Part]:
        """Remove what was not used for longest until the rest fits; return what went.

        Loaded libraries were loaded from copies of their own, so none of them is disturbed.
        """
        parts = self.parts()
        total = sum(part.size for part in parts)
        gone = []
        in_use = time.time() - _IN_USE_SECONDS
        for part in parts:
            if total <= limit:
                break
            if part.kind != "entries" and part.used > in_use:
                continue  # some compiler may be reading it
            self.remove(part.folder)
            total -= part.size
            gone.append(part)
        self._forget_orphans()
        return gone

    def _forget_orphans(self) -> None:
        """Remove requests whose entries are gone."""
        wanted = set()
        for file in (self.root / "entries").glob("*/entry.json"):
            with contextlib.suppress(OSError, ValueError, KeyError):
                wanted.add(json.loads(file.read_text("utf-8"))["request"])
        limit = time.time() - _STALE_SECONDS
        for file in (self.root / "requests").glob("*/*.json"):
            with contextlib.suppress(OSError):
                if file.stem not in wanted and file.stat().st_mtime < limit:
                    file.unlink()


@dataclass(frozen=True)
class Part:
    """A folder of the cache: a library, a precompiled header or a run-time library.

    Parameters
    ----------
    kind
        ``"entries"``, ``"precompiled"`` or ``"runtime"``.
    folder
        Where it is.
    size
        Bytes.
    used
        When it was last used, in seconds since the epoch.
    """

    kind: str
    folder: Path
    size: int
    used: float


def _part(kind: str, folder: Path) -> Part:
    size = sum(file.stat().st_size for file in folder.iterdir())
    return Part(kind, folder, size, folder.stat().st_mtime)


def _runs(process: int) -> bool:
    """Return whether a process of this machine lives."""
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:  # another user's
        return True
    return True


@functools.lru_cache(maxsize=8)
def _cache_at(root: str) -> Cache:
    cache = Cache(Path(root))
    cache.tidy()
    return cache


def default_cache() -> Cache:
    """Return the cache that ``TENSORPLAY_CACHE_DIR`` names, else the user's."""
    named = os.environ.get("TENSORPLAY_CACHE_DIR")
    if named:
        return cache_at(named)
    from platformdirs import user_cache_dir

    return cache_at(user_cache_dir("tensorplay", appauthor=False))


def cache_at(folder: str | os.PathLike[str]) -> Cache:
    """Return the cache in a folder."""
    return _cache_at(str(Path(folder).expanduser().absolute() / "build"))


def digest(*parts: str | bytes) -> str:
    """Return a hash of parts that distinguishes where each ends."""
    state = hashlib.sha256()
    for part in parts:
        data = part.encode("utf-8", "surrogatepass") if isinstance(part, str) else part
        state.update(len(data).to_bytes(8, "little"))
        state.update(data)
    return state.hexdigest()


def write_atomically(path: Path, text: str) -> None:
    """Replace a file's content so that a reader sees the old or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}")
    try:
        part.write_text(text, "utf-8")
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def safe_name(name: str) -> str:
    """Return a name as a file name that every system takes."""
    return re.sub(r"[^A-Za-z0-9_]+", "_", name)[:40] or "kernel"


def parse_dependencies(text: str) -> list[str]:
    """Return the files that a make rule written by a compiler lists."""
    _, _, rest = text.replace("\\\n", " ").partition(": ")
    words = re.findall(r"(?:\\.|\$\$|[^\s\\])+", rest)
    return [re.sub(r"\\([ #\\:])", r"\1", word).replace("$$", "$") for word in words]


def tree_state(folders: Iterable[Path], kept: Path | None = None) -> str:
    """Return a digest of the names and contents of all files below some folders.

    Parameters
    ----------
    folders
        Where the files are.
    kept
        A file that remembers digests for other processes, by sizes, times and inodes of the files.
        One is believed where nothing was changed shortly before it was made: see `_SETTLED_NS`.
    """
    files = [(folder, path) for folder in folders for path in sorted(_walk(str(folder)))]
    states = [stat(path) for _, path in files]
    signature = digest(
        *(
            f"{path}|{s.st_size}|{s.st_mtime_ns}|{s.st_ctime_ns}|{s.st_ino}|{s.st_dev}"
            for (_, path), s in zip(files, states, strict=True)
        )
    )
    newest = max((max(s.st_mtime_ns, s.st_ctime_ns) for s in states), default=0)
    if kept is not None and (known := _kept_trees(kept).get(signature)):
        recorded_ns, found = known
        if recorded_ns - newest > _SETTLED_NS:
            return found
    parts: list[str] = []
    recorded_ns = time.time_ns()
    for (folder, path), state in zip(files, states, strict=True):
        parts += (os.path.relpath(path, folder), _file_hash(path, state))
    found = digest(*parts)
    if kept is not None and recorded_ns - newest > _SETTLED_NS:
        _keep_tree(kept, signature, recorded_ns, found)
    return found


_trees: dict[Path, dict[str, tuple[int, str]]] = {}
_MAX_TREES = 32


def _kept_trees(kept: Path) -> dict[str, tuple[int, str]]:
    if kept not in _trees:
        found: dict[str, tuple[int, str]] = {}
        with contextlib.suppress(OSError, ValueError, TypeError, AttributeError):
            found = {
                signature: (int(recorded_ns), str(content))
                for signature, (recorded_ns, content) in json.loads(kept.read_text("utf-8")).items()
            }
        _trees[kept] = found
    return _trees[kept]


def _keep_tree(kept: Path, signature: str, recorded_ns: int, content: str) -> None:
    known = _kept_trees(kept)
    known[signature] = recorded_ns, content
    while len(known) > _MAX_TREES:
        known.pop(next(iter(known)), None)
    with contextlib.suppress(OSError):  # only a matter of speed
        write_atomically(kept, json.dumps(dict(known)))


def _walk(folder: str) -> Iterator[str]:
    with os.scandir(folder) as items:
        for item in items:
            if item.is_dir():
                yield from _walk(item.path)
            elif item.name.endswith((".h", ".hpp", ".cpp", ".inc")):
                yield item.path
