"""Saving and loading of tensors and of containers of them.

A file is a zip archive, readable by any zip tool, of

- ``header.json``: the format's name and version, the structure of the object, and for each tensor
  its type, shape, strides, offset and the memory that it lies in;
- ``memory/0``, ``memory/1``, …: the elements, in the byte order of the machine, not compressed;
- ``objects/0``, …: pickles of class instances, which are read only when asked to.

Tensors that share memory, and containers that occur twice, do so again after loading. Reading the
header and the memory runs no code from the file.
"""

from __future__ import annotations

import base64
import collections
import contextlib
import io
import json
import math
import os
import pickle
import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np

from tensorplay import _device, _dtype, _safetensors
from tensorplay._tensor import MetaArray, Size, Spec, Tensor, VersionCounter, wrap
from tensorplay.ops.arguments import reject

__all__ = ["load", "save"]

FORMAT: Final = "tensorplay"
VERSION: Final = 1
_HEADER: Final = "header.json"
_LIMIT_HEADER: Final = 1 << 28  # bytes; a header describes, and is never as long


# --- structure ------------------------------------------------------------------------------------
# JSON has null, true, numbers and strings; everything else is an object with one key that says what
# it is. Numbers that JSON has no spelling for are written as text.

_SEQUENCES: Final[dict[str, Callable[[list[Any]], Any]]] = {
    "list": list, "tuple": tuple, "Size": Size, "set": set, "frozenset": frozenset,
}  # fmt: skip
_MAPPINGS: Final[dict[str, Any]] = {"dict": dict, "OrderedDict": collections.OrderedDict}


class _Writer:
    """Describes an object, and collects its tensors and pickles."""

    def __init__(self) -> None:
        self.tensors: list[Tensor] = []
        self.pickles: list[bytes] = []
        self.objects = 0
        self._tensors: dict[int, int] = {}
        self._known: dict[int, int] = {}
        self._open: set[int] = set()
        self._kept: list[Any] = []  # so that no id is given twice

    def tensor(self, x: Tensor) -> int:
        """Return the number of a tensor."""
        number = self._tensors.get(id(x))
        if number is None:
            number = self._tensors[id(x)] = len(self.tensors)
            self.tensors.append(x)
        return number

    def node(self, value: Any) -> Any:
        """Return the description of `value`."""
        if value is None or isinstance(value, bool) or type(value) is str:
            return value
        if type(value) is int:
            return value if abs(value) < 1 << 53 else {"int": str(value)}
        if type(value) is float:
            return value if math.isfinite(value) else {"float": repr(value)}
        if isinstance(value, Tensor):
            return {"tensor": self.tensor(value)}
        simple = self._simple(value)
        return self._container(value) if simple is None else simple

    def _simple(self, value: Any) -> Any:
        if type(value) is complex:
            return {"complex": [self.node(value.real), self.node(value.imag)]}
        if type(value) in (bytes, bytearray):
            text = base64.b64encode(value).decode()
            return {type(value).__name__: text}
        if isinstance(value, _dtype.dtype):
            return {"dtype": value.name}
        if isinstance(value, _device.device):
            return {"device": str(value)}
        if type(value) is slice:
            return {"slice": [self.node(v) for v in (value.start, value.stop, value.step)]}
        return None

    def _container(self, value: Any) -> Any:
        key = id(value)
        if key in self._open:
            raise ValueError("[save] argument 'obj': a container that contains itself.")
        if key in self._known:
            return {"same": self._known[key]}
        kind: Any = type(value)
        name = kind.__name__
        self._open.add(key)
        if _SEQUENCES.get(name) is kind:
            node: Any = {name: [self.node(v) for v in value]}
        elif _MAPPINGS.get(name) is kind:
            node = {name: [[self.node(k), self.node(v)] for k, v in value.items()]}
        else:
            node = {"object": self._pickle(value)}
        self._open.discard(key)
        self._known[key] = self.objects
        self.objects += 1
        self._kept.append(value)
        return node

    def _pickle(self, value: Any) -> int:
        stream = io.BytesIO()
        try:
            _Pickler(stream, self).dump(value)
        except pickle.PicklingError:
            raise
        except Exception as error:
            raise pickle.PicklingError(
                f"[save] argument 'obj': cannot pickle an object of type {type(value).__name__}: "
                f"{error}"
            ) from error
        self.pickles.append(stream.getvalue())
        return len(self.pickles) - 1


class _Pickler(pickle.Pickler):
    """Pickles a class instance; its tensors go where all tensors go."""

    def __init__(self, stream: io.BytesIO, writer: _Writer) -> None:
        super().__init__(stream, protocol=4)
        self._writer = writer

    def persistent_id(self, obj: Any) -> int | None:
        return self._writer.tensor(obj) if isinstance(obj, Tensor) else None


# --- memory ---------------------------------------------------------------------------------------


def _groups(tensors: list[Tensor]) -> list[list[int]]:
    """Return the numbers of the tensors that have elements, those together that share memory."""
    spans = []
    for number, x in enumerate(tensors):
        if x.is_cuda:
            x._elements("save")  # which are not here: refused
        if not x.is_meta and x._array.size:
            low, high = np.lib.array_utils.byte_bounds(x._array)
            spans.append((low, high, number))
    groups: list[list[int]] = []
    end = -1
    for low, high, number in sorted(spans):
        if low >= end:
            groups.append([])
        groups[-1].append(number)
        end = max(end, high)
    return groups


def _laid_out(tensors: list[Tensor], group: list[int]) -> tuple[Any, dict[int, int]]:
    """Return the memory of tensors that share it, and where in it each starts, in bytes.

    Bytes that belong to none of them are zero, whatever lay there.
    """
    arrays = {number: tensors[number]._array for number in group}
    bounds = [np.lib.array_utils.byte_bounds(a) for a in arrays.values()]
    low, high = min(b[0] for b in bounds), max(b[1] for b in bounds)
    memory = np.zeros(high - low, np.uint8)
    starts = {}
    for number, array in arrays.items():
        start = starts[number] = array.ctypes.data - low
        np.ndarray(array.shape, array.dtype, memory, start, array.strides)[...] = array
    return memory, starts


def _describe(x: Tensor, memory: int | None, start: int) -> dict[str, Any]:
    layout = x.stride() if x.is_meta or not x._array.size else [
        step // x._dtype.itemsize for step in x._array.strides
    ]  # fmt: skip
    return {
        "dtype": x._dtype.name,
        "shape": list(x.shape),
        "stride": list(layout),
        "start": start,
        "memory": memory,
        "device": str(x.device),
        "requires_grad": x.requires_grad,
    }


def save(obj: Any, f: Any) -> None:
    """Write tensors, or containers of tensors and plain values, to a file.

    Parameters
    ----------
    obj
        A tensor; None, a bool, number, string, bytes, dtype, device or slice; or a list, tuple,
        dict, OrderedDict, set or frozenset of these. Instances of other classes are pickled.
    f
        Path, of any suffix, or a binary file open for writing. A path that ends in
        ``.safetensors`` takes a dict of tensors and is written by the library of that name. An
        existing file is replaced when the new one is complete.

    Raises
    ------
    PicklingError
        An object cannot be pickled.
    ValueError
        A container contains itself.

    Notes
    -----
    Gradients and history are not saved; tensors of a subclass are saved as tensors.

    Examples
    --------
    >>> import io
    >>> import tensorplay as tp
    >>> file = io.BytesIO()
    >>> tp.save({"weight": tp.ones(2)}, file)
    >>> _ = file.seek(0)
    >>> tp.load(file)
    {'weight': tensor([1., 1.])}
    """
    if _safetensors.is_name(f):
        _write(f, lambda stream: stream.write(_safetensors.dumps(obj)))
        return
    writer = _Writer()
    root = writer.node(obj)
    groups = _groups(writer.tensors)
    memory_of = {n: place for place, group in enumerate(groups) for n in group}

    def fill(stream: Any) -> None:
        starts: dict[int, int] = {}
        with zipfile.ZipFile(stream, "w", zipfile.ZIP_STORED) as archive:
            for place, group in enumerate(groups):
                memory, found = _laid_out(writer.tensors, group)
                starts.update(found)
                with archive.open(f"memory/{place}", "w", force_zip64=True) as member:
                    member.write(memoryview(memory))
            for place, text in enumerate(writer.pickles):
                archive.writestr(f"objects/{place}", text)
            header = {
                "format": FORMAT,
                "version": VERSION,
                "byteorder": sys.byteorder,
                "tensors": [
                    _describe(x, memory_of.get(n), starts.get(n, 0))
                    for n, x in enumerate(writer.tensors)
                ],
                "root": root,
            }
            archive.writestr(_HEADER, json.dumps(header, allow_nan=False))

    _write(f, fill)


def _write(f: Any, fill: Callable[[Any], Any]) -> None:
    """Let `fill` write to a file object, or to a file that then takes its place."""
    if hasattr(f, "write"):
        fill(f)
        return
    if not isinstance(f, (str, os.PathLike)):
        reject("save", "f", "a path or a binary file", f)
    target = Path(os.path.realpath(f))
    if target.exists() and not target.is_file():  # a pipe or device is written as it is
        with target.open("wb") as stream:
            fill(stream)
        return
    part = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        with part.open("wb") as stream:
            fill(stream)
        part.replace(target)
    finally:
        with contextlib.suppress(FileNotFoundError):
            part.unlink()


# --- reading --------------------------------------------------------------------------------------


class _DamagedError(ValueError):
    """The file says something that cannot be."""


def _expect(condition: Any, what: str) -> None:
    if not condition:
        raise _DamagedError(f"[load] argument 'f': the file is damaged: {what}.")


def _integers(values: Any, what: str) -> list[int]:
    _expect(isinstance(values, list) and all(type(v) is int for v in values), what)
    return list(values)


class _Reader:
    """Makes objects from the description in a file."""

    def __init__(self, archive: zipfile.ZipFile, *, pickles: bool) -> None:
        self._archive = archive
        self._pickles = pickles
        self._memory: dict[int, tuple[Any, VersionCounter]] = {}
        self._made: list[Any] = []
        self._tensors: dict[int, Tensor] = {}
        self.header = self._read_header()

    def _read_header(self) -> dict[str, Any]:
        unknown = "[load] argument 'f': expected a file written by tensorplay.save, got "
        try:
            info = self._archive.getinfo(_HEADER)
        except KeyError:
            raise ValueError(f"{unknown}another zip archive.") from None
        _expect(info.file_size <= _LIMIT_HEADER, "the header is too long")
        try:
            header = json.loads(self._archive.read(info))
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{unknown}a header that is no JSON ({error}).") from error
        if not isinstance(header, dict) or header.get("format") != FORMAT:
            raise ValueError(f"{unknown}another format.")
        if header.get("version") != VERSION:
            raise ValueError(
                f"[load] argument 'f': expected version {VERSION} of the format, got "
                f"{header.get('version')!r}. It was written by a newer release."
            )
        if header.get("byteorder") != sys.byteorder:
            raise ValueError(
                f"[load] argument 'f': expected the byte order of this machine ({sys.byteorder}), "
                f"got {header.get('byteorder')!r}."
            )
        _expect(isinstance(header.get("tensors"), list) and "root" in header, "parts are missing")
        return header

    def _member(self, name: str) -> Any:
        try:
            info = self._archive.getinfo(name)
        except KeyError:
            raise _DamagedError(
                f"[load] argument 'f': the file is damaged: {name} is missing."
            ) from None
        _expect(info.compress_type == zipfile.ZIP_STORED, f"{name} is compressed")
        # What is not compressed is no longer than the file: its size can be believed.
        _expect(info.file_size <= self._archive.start_dir, f"{name} is longer than the file")
        return info

    def _bytes_of(self, place: int) -> tuple[Any, VersionCounter]:
        found = self._memory.get(place)
        if found is None:
            info = self._member(f"memory/{place}")
            memory = np.empty(info.file_size, np.uint8)
            with self._archive.open(info) as stream:
                view, filled = memoryview(memory.data), 0
                while filled < len(view):
                    chunk = stream.read(min(1 << 24, len(view) - filled))
                    _expect(chunk, f"memory/{place} ends early")
                    view[filled : filled + len(chunk)] = chunk
                    filled += len(chunk)
                stream.read(1)  # the end, where the checksum is compared
            found = self._memory[place] = memory, VersionCounter()
        return found

    def tensor(self, number: Any) -> Tensor:
        """Return a tensor by its number."""
        entries = self.header["tensors"]
        _expect(type(number) is int and 0 <= number < len(entries), f"no tensor {number!r}")
        if number not in self._tensors:
            self._tensors[number] = self._made_tensor(entries[number])
        return self._tensors[number]

    def _made_tensor(self, entry: Any) -> Tensor:
        _expect(isinstance(entry, dict), "a tensor without description")
        d = _dtype.named(str(entry.get("dtype")))
        if d is None:
            raise _DamagedError(
                f"[load] argument 'f': the file is damaged: unknown type {entry.get('dtype')!r}."
            )
        shape = _integers(entry.get("shape"), "a shape that is no list of sizes")
        stride = _integers(entry.get("stride"), "a stride that is no list of numbers")
        _expect(len(shape) == len(stride) and all(n >= 0 for n in shape), "a shape without strides")
        place = entry.get("memory")
        if entry.get("device") == "meta":
            result = wrap(MetaArray(Spec(tuple(shape), d, tuple(stride))), d)
        elif 0 in shape:
            result = wrap(np.empty(shape, d.numpy), d)
        else:
            _expect(type(place) is int, "a tensor without memory")
            result = self._on_memory(place, d, shape, stride, entry.get("start"))
        if entry.get("requires_grad") is True:
            _expect(d.is_differentiable, "integers that require grad")
            result.requires_grad = True
        return result

    def _on_memory(
        self, place: Any, d: _dtype.dtype, shape: list[int], stride: list[int], start: Any
    ) -> Tensor:
        memory, counter = self._bytes_of(place)
        _expect(type(start) is int, "a tensor without start")
        reach = [(n - 1) * step * d.itemsize for n, step in zip(shape, stride, strict=True)]
        low = start + sum(r for r in reach if r < 0)
        high = start + sum(r for r in reach if r > 0) + d.itemsize
        _expect(low >= 0 and high <= memory.size, "a tensor that leaves its memory")
        _expect(len(shape) <= 64, "a tensor with more than 64 dimensions")
        steps = [step * d.itemsize for step in stride]
        result = wrap(np.ndarray(shape, d.numpy, memory, start, steps), d)
        result._counter = counter
        return result

    def build(self, node: Any) -> Any:
        """Return the object of a description."""
        if node is None or isinstance(node, (bool, int, float, str)):
            return node
        _expect(isinstance(node, dict) and len(node) == 1, "an object of no kind")
        ((kind, content),) = node.items()
        if kind == "tensor":
            return self.tensor(content)
        if kind == "same":
            _expect(type(content) is int and 0 <= content < len(self._made), "an unknown object")
            return self._made[content]
        if kind in _SEQUENCES or kind in _MAPPINGS or kind == "object":
            made = self._container(kind, content)
            self._made.append(made)
            return made
        return self._plain(kind, content)

    def _container(self, kind: str, content: Any) -> Any:
        if kind == "object":
            return self._unpickle(content)
        _expect(isinstance(content, list), f"a {kind} without members")
        if kind in _SEQUENCES:
            return _SEQUENCES[kind]([self.build(v) for v in content])
        _expect(all(isinstance(p, list) and len(p) == 2 for p in content), "a dict without pairs")
        return _MAPPINGS[kind]((self.build(k), self.build(v)) for k, v in content)

    def _plain(self, kind: str, content: Any) -> Any:
        if kind == "dtype":
            found = _dtype.named(str(content))
            _expect(found is not None, f"unknown type {content!r}")
            return found
        if kind == "device":
            return _device.as_device(content, "load")
        if kind == "int":
            return int(content)
        if kind == "float":
            _expect(content in {"inf", "-inf", "nan"}, f"a number {content!r}")
            return float(content)
        if kind == "complex":
            return complex(*map(self.build, content))
        if kind == "slice":
            return slice(*map(self.build, content))
        _expect(kind in {"bytes", "bytearray"}, f"an object of kind {kind!r}")
        decoded = base64.b64decode(content)
        return decoded if kind == "bytes" else bytearray(decoded)

    def _unpickle(self, place: Any) -> Any:
        _expect(type(place) is int, "a pickle without number")
        info = self._member(f"objects/{place}")
        if not self._pickles:
            raise pickle.UnpicklingError(
                "[load] the file holds class instances, which could run code when they are made. "
                "Write load(f, weights_only=False) if you trust its source."
            )
        return _Unpickler(io.BytesIO(self._archive.read(info)), self).load()


class _Unpickler(pickle.Unpickler):
    """Makes a class instance, with the tensors of the file."""

    def __init__(self, stream: io.BytesIO, reader: _Reader) -> None:
        super().__init__(stream)
        self._reader = reader

    def persistent_load(self, pid: Any) -> Tensor:
        return self._reader.tensor(pid)


@contextlib.contextmanager
def _opened(f: Any) -> Iterator[Any]:
    if hasattr(f, "read"):
        yield f
        return
    if not isinstance(f, (str, os.PathLike)):
        reject("load", "f", "a path or a binary file", f)
    with Path(f).open("rb") as stream:
        yield stream


def load(f: Any, map_location: Any = None, weights_only: bool = True) -> Any:
    """Return what `save` wrote.

    Parameters
    ----------
    f
        Path, or a binary file open for reading. A path that ends in ``.safetensors`` is read by
        the library of that name and gives a dict of tensors.
    map_location
        Device for the tensors; by default the one they were on.
    weights_only
        Refuse class instances, whose making could run code. Set it to False only for files from a
        source that you trust.

    Returns
    -------
    object
        The value, its tensors sharing memory where they did when it was saved.

    Raises
    ------
    FileNotFoundError
        There is no such file.
    ValueError
        The file was not written by `save`, or is damaged.
    UnpicklingError
        It holds class instances and `weights_only` is set.
    NotImplementedError
        `map_location` is meta, where there is nothing to put the elements.
    """
    if map_location is not None and _device.as_device(map_location, "load").type == "meta":
        raise NotImplementedError(
            "[load] argument 'map_location': elements cannot be loaded to device meta."
        )
    with _opened(f) as stream:
        if _safetensors.is_name(f):
            return _safetensors.loads(stream.read())
        if not zipfile.is_zipfile(stream):
            raise ValueError(
                "[load] argument 'f': expected a file written by tensorplay.save, got another "
                "format."
            )
        stream.seek(0)
        try:
            with zipfile.ZipFile(stream) as archive:
                reader = _Reader(archive, pickles=not weights_only)
                found = reader.build(reader.header["root"])
        except (zipfile.BadZipFile, OverflowError, TypeError, RecursionError, EOFError) as error:
            if not weights_only and isinstance(error, TypeError):
                raise
            raise ValueError(f"[load] argument 'f': the file is damaged: {error}.") from error
    return found
