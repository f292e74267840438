"""The build cache as a person sees it: listed, measured, explained, cleared, limited."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from tensorplay.utils import cpp_jit
from tensorplay.utils.cpp_jit import cache, store, support

REPOSITORY = Path(__file__).parents[3]


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


def test_the_longest_unused_go_first_and_use_counts(tmp_path, monkeypatch):
    monkeypatch.setenv("TENSORPLAY_CACHE_DIR", str(tmp_path / "cache"))
    built = [build(number, "used") for number in range(4)]
    modules = [b.load() for b in built]
    for age, made in enumerate(reversed(built)):
        os.utime(made.folder, (10**9 - age, 10**9 - age))  # the first is the oldest
    assert build(0, "used").cached  # and now the youngest
    for other in (tmp_path / "cache" / "build").glob("precompiled/*"):
        os.utime(other)
    sizes = {entry.key: entry.size for entry in cpp_jit.cache.entries("used")}
    store.default_cache().evict(cpp_jit.cache.size() - sizes[built[1].key] - 1)
    assert [b.folder.exists() for b in built] == [True, False, False, True]
    assert [module.f() for module in modules] == [0, 1, 2, 3]
    support.wait_for_background(60)


def test_the_limit_holds_without_anybody_calling_for_it(tmp_path, monkeypatch):
    monkeypatch.setenv("TENSORPLAY_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(support, "precompiled", lambda *_: None)
    build(0)
    own = cpp_jit.cache.size()
    monkeypatch.setattr(cache, "_limit", 2 * own)
    monkeypatch.setattr(cache, "_checked", {store.default_cache().root: time.monotonic()})
    sizes = []
    for number in range(1, 40):
        assert build(number).load().f() == number
        running = cache._evicting.get(store.default_cache().root)
        if running is not None:
            running.join()
        sizes.append(cpp_jit.cache.size())
    assert max(sizes) <= 2 * own
    assert len(cpp_jit.cache.entries()) < 39


def test_who_waits_is_told_whom_for_and_may_stop_at_once(tmp_path, monkeypatch):
    root = tmp_path / "cache"
    monkeypatch.setenv("TENSORPLAY_CACHE_DIR", str(root))
    monkeypatch.setattr(store, "_PATIENCE_SECONDS", 0.05)
    held, done = threading.Event(), threading.Event()

    def hold() -> None:
        with store.default_cache().lock("library", "ab12", "'slow one'"):
            held.set()
            done.wait(30)

    holder = threading.Thread(target=hold)
    holder.start()
    held.wait(30)
    threading.Timer(0.4, done.set).start()
    pattern = rf"'mine' waits for process {os.getpid()}, .* building 'slow one' since \d\d:\d\d"
    with (
        pytest.warns(cpp_jit.BuildCacheWarning, match=pattern),
        store.default_cache().lock("library", "ab34", "'mine'") as got,
    ):
        assert got
    holder.join()

    code = (
        "import sys\nfrom tensorplay.utils.cpp_jit import store\n"
        "sys.stdout.write('ready\\n'); sys.stdout.flush()\n"
        "with store.default_cache().lock('library', 'ab12', 'x'):\n    pass\n"
    )
    with store.default_cache().lock("library", "ab12", "'this test'"):
        process = subprocess.Popen(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        time.sleep(0.3)
        assert process.poll() is None
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=10)
    assert "KeyboardInterrupt" in errors


def test_why_a_cell_needed_the_full_headers_is_known_to_the_next_process():
    named = "using namespace tvm::ffi;\nint64_t f(Array<int64_t> a) { return a.size(); }\n"
    signed = "int64_t f(tvm::ffi::Shape s) { return s.size(); }\n"
    plain = "int64_t f(int64_t n) { return n; }\n"
    code = """
import sys
from tensorplay.utils import cpp_jit
for name, text in zip(("named", "signed", "signed"), sys.argv[1:]):
    built = cpp_jit.build_source(f"remembered_{name}", cpp_jit.Source(text), exports=["f"])
    print(built.rung, len(built.commands))
"""
    for name, text in (("named", named), ("signed", signed)):
        made = cpp_jit.build_source(f"remembered_{name}", cpp_jit.Source(text), exports=["f"])
        assert (made.rung, len(made.commands)) == ("full", 2)
    done = subprocess.run(
        [sys.executable, "-c", code, f"{named}// edited", f"{signed}// edited", plain],
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        check=True,
    )
    # In the last text, what needed them is gone.
    assert done.stdout.splitlines() == ["full 1", "full 1", "light 1"]


def test_what_is_kept_about_names_is_bounded_and_may_be_damaged(tmp_path):
    own = store.cache_at(tmp_path)
    for number in range(400):
        own.note_full_words(f"cell {number}", [f"word {n}" for n in range(50)])
    assert own.full_words("cell 399")
    assert own.full_words("cell 1") == frozenset()
    assert (own.root / "full_headers.json").stat().st_size < 100_000
    for damage in ("[1", "[]", '{"cell 399": 1}'):
        (own.root / "full_headers.json").write_text(damage)
        assert own.full_words("cell 399") == frozenset()


def test_b008_with_a_compiler_and_no_ninja_a_cell_is_built(tmp_path, missing):
    tools = tmp_path / "bin"
    tools.mkdir()
    for name in ("g++", "as", "ld", "ld.gold", "ld.bfd"):
        if found := shutil.which(name):
            (tools / name).symlink_to(found)
    if not (tools / "g++").exists():
        missing("g++ is not installed")
    code = (
        "import shutil\nfrom tensorplay.utils import cpp_jit\n"
        "assert shutil.which('ninja') is None\n"
        "m = cpp_jit.load_inline('plain', cpp_sources='int64_t f() { return 9; }', functions='f')\n"
        "print(m.f())\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={
            **os.environ,
            "PATH": str(tools),
            "PYTHONPATH": str(REPOSITORY),
            "TENSORPLAY_CACHE_DIR": str(tmp_path / "cache"),
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == "9\n", done.stderr
