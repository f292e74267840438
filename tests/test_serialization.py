"""Files of tensors: what comes back, shared memory, and files that lie."""

from __future__ import annotations

import collections
import io
import json
import math
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import tensorplay as tp
from tensorplay._dtype import DTYPES


def through(obj: Any, **options: Any) -> Any:
    stream = io.BytesIO()
    tp.save(obj, stream)
    stream.seek(0)
    return tp.load(stream, **options)


def same(a: tp.Tensor, b: tp.Tensor) -> None:
    assert (a.shape, a.dtype, a.requires_grad) == (b.shape, b.dtype, b.requires_grad)
    assert a.numel() == 0 or a.stride() == b.stride()
    assert a.detach().numpy().tobytes() == b.detach().numpy().tobytes()


# --- what comes back ------------------------------------------------------------------------------


@pytest.mark.parametrize("d", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(), (3,), (2, 3), (0, 2)])
def test_tensors_of_all_types(d: Any, shape: Any) -> None:
    x = tp.from_numpy(np.arange(math.prod(shape)).reshape(shape)).to(d)
    same(through(x), x)


def test_layouts_and_flags() -> None:
    x = tp.arange(12.0).reshape(3, 4)
    for y in (x.t(), x[:, ::2], x[1], x.unsqueeze(0).expand(5, 3, 4), x.requires_grad_()):
        same(through(y), y)
    flipped = tp.from_numpy(np.arange(4.0)[::-1])
    same(through(flipped), flipped)
    meta = through(tp.empty(2, 3, device="meta").t())
    assert (meta.device.type, meta.shape, meta.stride()) == ("meta", (3, 2), (1, 3))


def test_history_stays_behind() -> None:
    x = tp.ones(2, requires_grad=True)
    y = through(x * 2)
    assert y.is_leaf
    assert y.requires_grad


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
    | st.binary() | st.complex_numbers(allow_nan=False),
    lambda inner: st.lists(inner) | st.tuples(inner, inner)
    | st.dictionaries(st.integers() | st.text() | st.tuples(st.integers(), st.text()), inner),
    max_leaves=12,
)  # fmt: skip


@settings(deadline=None)
@given(PLAIN)
def test_plain_values(value: Any) -> None:
    found = through(value)
    assert found == value
    assert repr(found) == repr(value)  # types, too, and the sign of zero


def test_other_values() -> None:
    value = {
        "types": [tp.float32, tp.device("cpu"), tp.ones(2).shape, slice(1, None, 2)],
        "sets": ({1, 2}, frozenset("a"), bytearray(b"x")),
        "ordered": collections.OrderedDict(b=1, a=2),
    }
    found = through(value)
    assert found == value
    assert repr(found["ordered"]) == repr(value["ordered"])
    assert found["types"][0] is tp.float32
    assert isinstance(found["types"][2], tp.Size)
    assert math.isnan(through(math.nan))


@pytest.mark.parametrize("name", ["model.pt", "model", "model.tensors.bin"])
def test_paths_of_any_suffix(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    tp.save([tp.ones(2)], str(path))
    tp.save([tp.zeros(2)], path)
    assert tp.load(path, map_location="cpu")[0].tolist() == [0, 0]
    assert [p.name for p in tmp_path.iterdir()] == [name]
    assert zipfile.ZipFile(path).testzip() is None


def test_a_failed_save_leaves_the_old_file(tmp_path: Path, monkeypatch: Any) -> None:
    path = tmp_path / "x"
    tp.save(tp.ones(2), path)

    def fail(*_: Any, **__: Any) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(zipfile.ZipFile, "writestr", fail)
    with pytest.raises(OSError, match="disk full"):
        tp.save(tp.zeros(2), path)
    assert tp.load(path).tolist() == [1, 1]
    assert [p.name for p in tmp_path.iterdir()] == ["x"]


# --- sharing --------------------------------------------------------------------------------------


def test_views_share_memory_and_version_again() -> None:
    x = tp.arange(6.0)
    found = through({"all": x, "part": x[2:4], "matrix": x.view(2, 3).t(), "other": tp.ones(6)})
    found["part"].fill_(9)
    assert found["all"].tolist() == [0, 1, 9, 9, 4, 5]
    assert found["matrix"].tolist() == [[0, 9], [1, 4], [9, 5]]
    assert found["all"]._version == 1
    assert found["other"]._version == 0


def test_objects_that_occur_twice() -> None:
    x, inner = tp.ones(1), [1]
    found = through([x, x, inner, (inner, {"again": inner}), [1]])
    assert found[0] is found[1]
    assert found[2] is found[3][0] is found[3][1]["again"]
    assert found[2] is not found[4]


def test_only_what_is_shown_is_written() -> None:
    big = tp.zeros(100_000)
    big[10:] = 7.0
    stream = io.BytesIO()
    tp.save(big[:10], stream)
    assert len(stream.getvalue()) < 2000
    assert tp.load(stream).tolist() == [0] * 10
    secret = tp.from_numpy(np.frombuffer(bytearray(b"public..secret!!public.."), np.int64))
    stream = io.BytesIO()
    tp.save([secret[0], secret[::2]], stream)
    assert b"secret" not in stream.getvalue()


# --- class instances ------------------------------------------------------------------------------


class Model:
    def __init__(self, weight: Any) -> None:
        self.weight = weight


class Trap:
    ran = False

    def __reduce__(self) -> Any:
        return (_spring, ())


def _spring() -> Trap:
    Trap.ran = True
    return Trap()


def test_instances_need_trust() -> None:
    x = tp.ones(2)
    stream = io.BytesIO()
    pickler = {"model": Model(x), "x": x}
    tp.save(pickler, stream)
    with pytest.raises(pickle.UnpicklingError, match="weights_only=False"):
        tp.load(stream)
    found = tp.load(stream, weights_only=False)
    assert found["model"].weight is found["x"]


def test_untrusted_files_run_nothing() -> None:
    stream = io.BytesIO()
    tp.save([Trap()], stream)
    with pytest.raises(pickle.UnpicklingError):
        tp.load(stream)
    assert not Trap.ran
    tp.load(stream, weights_only=False)
    assert Trap.ran


# --- errors ---------------------------------------------------------------------------------------


def test_errors(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        tp.load(tmp_path / "missing")
    (tmp_path / "text").write_text("hello")
    with pytest.raises(ValueError, match="another format"):
        tp.load(tmp_path / "text")
    with zipfile.ZipFile(tmp_path / "zip", "w") as archive:
        archive.writestr("a", "b")
    with pytest.raises(ValueError, match="another zip archive"):
        tp.load(tmp_path / "zip")
    with pytest.raises(TypeError, match="a path or a binary file"):
        tp.save(1, 3)
    with pytest.raises(TypeError, match="a path or a binary file"):
        tp.load(3)
    with pytest.raises(pickle.PicklingError, match="cannot pickle"):
        tp.save(lambda: 1, tmp_path / "function")
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(ValueError, match="contains itself"):
        tp.save(endless, tmp_path / "endless")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["text", "zip"]
    tp.save(tp.ones(1), tmp_path / "x")
    with pytest.raises(NotImplementedError, match="device meta"):
        tp.load(tmp_path / "x", map_location="meta")
    with pytest.raises(ValueError, match="Invalid device string"):
        tp.load(tmp_path / "x", map_location="gpu")


def altered(change: Callable[[dict[str, Any]], Any]) -> io.BytesIO:
    """Return a file whose header was changed by hand."""
    stream = io.BytesIO()
    tp.save({"x": tp.arange(4.0)}, stream)
    with zipfile.ZipFile(stream) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    header = json.loads(members["header.json"])
    change(header)
    members["header.json"] = json.dumps(header).encode()
    result = io.BytesIO()
    with zipfile.ZipFile(result, "w") as archive:
        for name, text in members.items():
            archive.writestr(name, text)
    return result


def of_tensor(**changes: Any) -> Callable[[dict[str, Any]], Any]:
    return lambda header: header["tensors"][0].update(changes)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (of_tensor(shape=[5]), "leaves its memory"),
        (of_tensor(start=1), "leaves its memory"),
        (of_tensor(start=-4), "leaves its memory"),
        (of_tensor(stride=[-1]), "leaves its memory"),
        (of_tensor(stride=[2**62]), "leaves its memory"),
        (of_tensor(shape=[-1]), "shape without strides"),
        (of_tensor(shape=[2, 2]), "shape without strides"),
        (of_tensor(shape="4"), "no list of sizes"),
        (of_tensor(shape=[1] * 65, stride=[0] * 65), "64 dimensions"),
        (of_tensor(start=None), "without start"),
        (of_tensor(memory=7), "memory/7 is missing"),
        (of_tensor(memory=None), "without memory"),
        (of_tensor(dtype="object"), "unknown type"),
        (of_tensor(dtype="int32", requires_grad=True), "require grad"),
        (lambda h: h.update(root={"tensor": 1}), "no tensor 1"),
        (lambda h: h.update(root={"tensor": "0"}), "no tensor"),
        (lambda h: h.update(root={"eval": "1"}), "object of kind"),
        (lambda h: h.update(root={"float": "1e5"}), "a number"),
        (lambda h: h.update(root={"dict": [[1]]}), "dict without pairs"),
        (lambda h: h.update(root={"dict": [[{"list": []}, 1]]}), "damaged"),
        (lambda h: h.update(root={"list": 3}), "without members"),
        (lambda h: h.update(root={"same": 3}), "unknown object"),
        (lambda h: h.update(root={"object": 0}), "objects/0 is missing"),
        (lambda h: h.update(root=[1]), "no kind"),
        (lambda h: h.update(root={"complex": [1, 2, 3]}), "damaged"),
        (lambda h: h.update(root={"bytes": 3}), "damaged"),
        (lambda h: h.pop("root"), "parts are missing"),
        (lambda h: h.update(version=99), "newer release"),
        (lambda h: h.update(format="other"), "another format"),
        (lambda h: h.update(byteorder="middle"), "byte order"),
    ],
)
def test_damaged_headers(change: Any, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        tp.load(altered(change))


@settings(deadline=None, max_examples=150)
@given(st.data())
def test_damaged_bytes_are_errors_or_the_same_values(data: Any) -> None:
    stream = io.BytesIO()
    tp.save({"x": tp.arange(4.0), "y": [1, "text"]}, stream)
    content = bytearray(stream.getvalue())
    place = data.draw(st.integers(0, len(content) - 1))
    content[place] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(content)))
    for text in (content, content[:cut]):
        try:
            found = tp.load(io.BytesIO(bytes(text)))
        except (ValueError, NotImplementedError, pickle.UnpicklingError):
            continue
        assert found["x"].tolist() == [0, 1, 2, 3]
        assert found["y"] == [1, "text"]


def test_compressed_memory_is_refused() -> None:
    stream = io.BytesIO()
    tp.save(tp.zeros(1000), stream)
    packed = io.BytesIO()
    with zipfile.ZipFile(stream) as source, zipfile.ZipFile(packed, "w") as target:
        for name in source.namelist():
            target.writestr(name, source.read(name), zipfile.ZIP_DEFLATED)
    with pytest.raises(ValueError, match="is compressed"):
        tp.load(packed)


# --- safetensors ----------------------------------------------------------------------------------


def test_safetensors(tmp_path: Path) -> None:
    pytest.importorskip("safetensors", reason="safetensors is not installed")
    path = tmp_path / "x.safetensors"
    tensors = {"a": tp.arange(6.0).reshape(2, 3).t(), "b": tp.ones(2).bfloat16(), "c": tp.ones(0)}
    tp.save(tensors, path)
    found = tp.load(path)
    assert {k: (v.dtype, v.tolist()) for k, v in found.items()} == {
        k: (v.dtype, v.tolist()) for k, v in tensors.items()
    }
    path.write_bytes(b"12345678")
    with pytest.raises(ValueError, match="not a safetensors file"):
        tp.load(path)


def test_safetensors_take_dicts_of_tensors(tmp_path: Path) -> None:
    for value in ([tp.ones(1)], {1: tp.ones(1)}, {"a": 1}):
        with pytest.raises(TypeError, match="dict of tensors"):
            tp.save(value, tmp_path / "x.safetensors")
