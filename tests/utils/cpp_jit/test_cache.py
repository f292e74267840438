"""The build cache as a person sees it: listed, measured, explained, cleared, limited."""

from __future__ import annotations

import os

import pytest

from tensorplay.utils import cpp_jit


@pytest.fixture
def own_cache(tmp_path, monkeypatch):
    """Give the test a cache of its own."""
    monkeypatch.setenv("TENSORPLAY_CACHE_DIR", str(tmp_path / "cache"))


def build(value: int, name: str = "kept", **options: object) -> cpp_jit.Build:
    text = cpp_jit.Source(f"int64_t f() {{ return {value}; }}")
    return cpp_jit.build_source(name, text, exports=["f"], **options)


@pytest.mark.usefixtures("own_cache")
def test_libraries_are_listed_explained_limited_and_cleared(tmp_path):
    assert (cpp_jit.cache.entries(), cpp_jit.cache.size()) == ([], 0)
    with pytest.raises(LookupError, match="no library 'kept'"):
        cpp_jit.cache.explain("kept")
    first = build(1)
    assert "no earlier build" in cpp_jit.cache.explain("kept")
    second = build(2, extra_cflags=["-O1"])
    assert cpp_jit.cache.explain("kept").endswith("changed: the source; the compiler flags")
    other = build(3, "other")
    listed = cpp_jit.cache.entries("kept")
    assert [entry.key for entry in listed] == [second.key, first.key]
    assert {entry.name for entry in cpp_jit.cache.entries()} == {"kept", "other"}
    assert 0 < listed[0].size < cpp_jit.cache.size()

    module = first.load()
    os.utime(first.folder, (1, 1))
    cpp_jit.cache.set_limit(cpp_jit.cache.size() - 1)
    try:
        assert not first.folder.exists()
        assert other.folder.exists()
    finally:
        cpp_jit.cache.set_limit(2**30)
    assert module.f() == 1
    with pytest.warns(cpp_jit.BuildCacheWarning):
        assert not build(1).cached

    assert cpp_jit.cache.clear("other") > 0
    assert not other.folder.exists()
    assert second.folder.exists()
    assert cpp_jit.cache.clear() > 0
    assert cpp_jit.cache.size() == 0
    assert build(1).load().f() == 1
    with pytest.raises(ValueError, match="expected bytes, got -1"):
        cpp_jit.cache.set_limit(-1)


def test_an_edited_header_is_the_explanation(tmp_path):
    for value in (1, 2):
        (tmp_path / "reason.h").write_text(f"#define K {value}\n")
        text = cpp_jit.Source("#include <reason.h>\nint64_t f() { return K; }")
        cpp_jit.build_source("reason", text, exports=["f"], extra_include_paths=[tmp_path])
    assert cpp_jit.cache.explain("reason").endswith(f"changed: {tmp_path / 'reason.h'}")


def test_a_cache_that_cannot_be_written_to_is_replaced_for_this_process(tmp_path, monkeypatch):
    file = tmp_path / "file"
    file.write_text("not a folder")
    monkeypatch.setenv("TENSORPLAY_CACHE_DIR", str(file / "cache"))
    with pytest.warns(cpp_jit.BuildCacheWarning, match="cannot be written to"):
        assert build(77, "nowhere").load().f() == 77
    assert build(78, "nowhere").load().f() == 78
