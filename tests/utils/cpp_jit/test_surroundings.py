"""Compilers that are none, folders that are gone, and damage in what all builds share."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path

import pytest

from tensorplay.utils import cpp_jit
from tensorplay.utils.cpp_jit import store, support, toolchain

REPOSITORY = Path(__file__).parents[3]


def build(folder: Path, value: int = 1, name: str = "surroundings") -> cpp_jit.Build:
    text = cpp_jit.Source(f"int64_t f() {{ return {value}; }}")
    return cpp_jit.build_source(name, text, exports=["f"], build_directory=folder)


def program(path: Path, text: str, mode: int = 0o755) -> str:
    path.write_text(text)
    path.chmod(mode)
    return str(path)


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ("true", r"true is no C\+\+ compiler that works: .* status 0 and said ''\. Set CXX to"),
        ("false", r"false is no C\+\+ compiler that works: .* status 1"),
        ("echo", r"echo is no C\+\+ compiler that works: .* said '-dM -E"),
        ("cat -u", r"cat -u is no C\+\+ compiler that works"),
        (sys.executable, r"is no C\+\+ compiler that works: .*[Uu]nknown option"),
        ("/nonexistent", r"expected one of /nonexistent \(CXX=/nonexistent\)"),
        (str(REPOSITORY), r"expected one of /.* \(CXX=/"),
        ("no-such-wrapper g++", r"expected one of no-such-wrapper \(CXX=no-such-wrapper g\+\+\)"),
        ('g++ "open', r"the variable CXX names no compiler: g\+\+ .open \(No closing quotation\)"),
    ],
)
def test_what_cxx_names_and_is_no_compiler_is_told_with_what_to_do(
    words, text, tmp_path, monkeypatch
):
    if os.sep not in words and shutil.which(words.split()[0]) is None and "such" not in words:
        pytest.skip(f"{words} is not installed")
    monkeypatch.setenv("CXX", words)
    with pytest.raises(cpp_jit.MissingToolError, match=text):
        build(tmp_path)


@pytest.mark.parametrize(
    ("content", "mode", "text"),
    [
        ("no program\n", 0o755, "Exec format error"),
        ("", 0o755, "Exec format error"),
        ("#!/no/such/interpreter\n", 0o755, "cannot run the C.. compiler .*: No such file"),
        ("#!/bin/sh\n", 0o644, "expected one of .*cxx"),
        (
            "#!/bin/sh\nprintf '\\377 what\\n' >&2; exit 3\n",
            0o755,
            "status 3 and said .\ufffd what",
        ),
        # It answers as g++ does and writes nothing.
        (
            '#!/bin/sh\ncase " $* " in *" -E "*) exec g++ "$@";; esac\n',
            0o755,
            "ended without an error and did not write errors.o",
        ),
    ],
)
def test_a_program_of_any_kind_in_cxx_ends_in_words(
    content, mode, text, tmp_path, monkeypatch, missing
):
    if "g++" in content and shutil.which("g++") is None:
        missing("g++ is not installed")
    monkeypatch.setenv("CXX", program(tmp_path / "cxx", content, mode))
    with pytest.raises(cpp_jit.MissingToolError, match=text):
        build(tmp_path / "cache")


def test_what_a_compiler_says_of_the_runtime_library_is_shown(tmp_path, monkeypatch, missing):
    if shutil.which("g++") is None:
        missing("g++ is not installed")
    says = "for i in 1 2 3 4 5 6 7 8 9 10; do echo problem $i >&2; done; exit 1"
    content = f'#!/bin/sh\ncase " $* " in *" -E "*) exec g++ "$@";; *errors.cpp*) {says};; esac\n'
    content += 'exec g++ "$@"\n'
    monkeypatch.setenv("CXX", program(tmp_path / "cxx", content, 0o755))
    with pytest.raises(cpp_jit.BuildError, match="cannot build the run-time library") as raised:
        build(tmp_path / "cache")
    lines = str(raised.value).splitlines()
    assert lines[0].endswith("or newer). It says:")
    assert lines[1:] == [
        *(f"problem {i}" for i in range(1, 9)),
        "… and 2 more lines in the error's attribute log",
    ]
    assert "problem 10" in raised.value.log


def test_a_compiler_for_c_is_told_from_one_for_cpp(tmp_path, monkeypatch):
    if shutil.which("gcc") is None:
        pytest.skip("gcc is not installed")
    monkeypatch.setenv("CXX", "gcc")
    with pytest.raises(cpp_jit.MissingToolError, match="it is a compiler for C"):
        build(tmp_path)


def test_cc_with_an_open_quote(tmp_path, monkeypatch):
    monkeypatch.setenv("CC", "cc 'x")
    (tmp_path / "half.c").write_text("int half(int x) { return x / 2; }\n")
    with pytest.raises(cpp_jit.MissingToolError, match="the variable CC names no compiler"):
        cpp_jit.build("half", cpp_files=[tmp_path / "half.c"], build_directory=tmp_path / "cache")


def test_a_removed_working_folder_stops_no_build(tmp_path, monkeypatch):
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    text = """
    #if __has_include("missing.h")
    #error it is there
    #endif
    int64_t f() { return 7; }
    """
    made = cpp_jit.build_source(
        "gone", cpp_jit.Source(text), exports=["f"], build_directory=tmp_path / "cache"
    )
    assert made.load().f() == 7
    with pytest.raises(cpp_jit.BuildError, match=r"missing\.h"):
        cpp_jit.load_inline("gone", cpp_sources='#include "missing.h"', functions=[])


def test_without_home_path_or_temporary_folder_a_cell_is_built(tmp_path, missing):
    compiler = shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        missing("there is no C++ compiler")
    code = "from tensorplay.utils import cpp_jit\n"
    code += "cell = {'cpp_sources': 'int64_t f() { return 5; }', 'functions': 'f'}\n"
    code += "print(cpp_jit.load_inline('h', **cell).f())"
    environment = {k: v for k, v in os.environ.items() if k not in {"HOME", "PATH"}}
    environment |= {"CXX": compiler, "TMPDIR": "/nonexistent", "LC_ALL": "C", "PYTHONUTF8": "0"}
    environment |= {"PYTHONPATH": str(REPOSITORY), "TENSORPLAY_CACHE_DIR": str(tmp_path / "cache")}
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    assert (done.stdout.strip(), done.returncode) == ("5", 0), done.stderr


def test_a_disk_of_one_megabyte_is_named_when_it_is_full():
    with tempfile.TemporaryDirectory(prefix="tensorplay-disk-") as folder:
        command = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", folder]
        if shutil.which("mount") is None or subprocess.run(command, check=False).returncode:
            pytest.skip("a file system cannot be mounted here")
        try:
            # The run-time library alone takes half of it, in the private folder and as published.
            with pytest.raises(cpp_jit.BuildError, match=f"the disk is full: {folder}"):
                [build(Path(folder), value) for value in range(50)]
        finally:
            subprocess.run(["umount", "--lazy", folder], check=False)


@pytest.mark.parametrize("damage", ["flipped", "short", "gone", "no description", "half"])
def test_b013_a_damaged_run_time_library_is_rebuilt_once_with_a_note(damage, tmp_path):
    assert build(tmp_path, 1).load().f() == 1
    cache = store.cache_at(tmp_path)
    compiler = toolchain.find_compiler()
    victim = Path(support.common(cache, compiler).objects[0])
    content = victim.read_bytes()
    state = victim.stat()
    described = victim.with_name("ready.json")
    if damage == "flipped":
        victim.write_bytes(content[:-64] + bytes(b ^ 255 for b in content[-64:]))
        os.utime(victim, ns=(state.st_atime_ns, state.st_mtime_ns))
    elif damage == "short":
        victim.write_bytes(content[:100])
    elif damage == "gone":
        victim.unlink()
    elif damage == "no description":
        described.unlink()
    else:
        described.write_text(described.read_text()[:20])
    with pytest.warns(cpp_jit.BuildCacheWarning, match="run-time library .* damaged"):
        assert build(tmp_path, 2).load().f() == 2
    assert victim.read_bytes() == content or victim.stat().st_size == len(content)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert build(tmp_path, 3).load().f() == 3


def test_b013_a_damaged_precompiled_header_is_made_again_with_a_note(tmp_path):
    build(tmp_path, 1)
    support.wait_for_background()
    second = build(tmp_path, 2)
    used = [Path(word) for word in second.commands[-1] if "/precompiled/" in word]
    if not used:
        pytest.skip("this compiler does not precompile headers")
    folder = used[0].parent
    victim = max(folder.iterdir(), key=lambda file: file.stat().st_size)
    state, content = victim.stat(), victim.read_bytes()
    victim.write_bytes(content[:5000] + bytes(len(content) - 5000))
    os.utime(victim, ns=(state.st_atime_ns, state.st_mtime_ns))  # the inode's time tells it
    support._tried.clear()
    with pytest.warns(cpp_jit.BuildCacheWarning, match="precompiled header .* damaged"):
        assert build(tmp_path, 3).load().f() == 3
    support.wait_for_background()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        again = build(tmp_path, 4)
    assert again.load().f() == 4
    assert any(str(folder) in word for word in again.commands[-1])


def test_what_is_published_while_it_is_looked_for_is_not_damaged(tmp_path, monkeypatch):
    cache = store.cache_at(tmp_path)
    folder, work = tmp_path / "precompiled" / "key", tmp_path / "work"
    work.mkdir()
    (work / "part").write_text("content")
    read = Path.read_text

    def late(file, *args):
        if file.name == "ready.json" and not folder.is_dir():
            try:
                return read(file, *args)
            finally:  # by another thread, between the look for the file and that for the folder
                support.publish(cache, work, folder, ("part",))
        return read(file, *args)

    assert support.published(cache, folder, "part", hashed=True) is None
    monkeypatch.setattr(Path, "read_text", late)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ready = support.published(cache, folder, "part", hashed=True)
    assert ready is not None
    assert "part" in ready["files"]
    assert folder.is_dir()


# The digest of headers


def tree(folder: Path, kept: Path, *, new_process: bool = True) -> str:
    if new_process:
        store._trees.clear()
        store._hashes.clear()
    return store.tree_state([folder], kept)


def settle(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """Let all files look as if they had not been touched for some seconds."""
    real = store.time.time_ns
    monkeypatch.setattr(store.time, "time_ns", lambda: real() + int(seconds * 1e9))


def test_a_tree_of_headers_is_read_once_for_all_processes(tmp_path, monkeypatch):
    folder, kept = tmp_path / "include", tmp_path / "trees.json"
    (folder / "deep").mkdir(parents=True)
    (folder / "a.h").write_text("1\n")
    (folder / "deep" / "b.h").write_text("1\n")
    first = tree(folder, kept)
    assert not kept.exists()  # too fresh to be believed later
    settle(monkeypatch, 10)
    assert tree(folder, kept) == first
    with monkeypatch.context() as patched:
        patched.setattr(store, "_file_hash", lambda *_: pytest.fail("a header was read"))
        assert tree(folder, kept) == first
    kept.write_text(kept.read_text()[:30])
    assert tree(folder, kept) == first
    kept.write_text('{"x": 3, "y": [1, 2, 3]}')
    assert tree(folder, kept) == first


@pytest.mark.parametrize("change", ["content", "copy", "new", "gone", "moved"])
def test_a_tree_that_changed_in_any_way_is_never_taken_for_the_old_one(
    change, tmp_path, monkeypatch
):
    folder, kept = tmp_path / "include", tmp_path / "trees.json"
    folder.mkdir()
    header = folder / "a.h"
    header.write_text("1\n")
    os.utime(header, (10**9, 10**9))
    settle(monkeypatch, 10)
    first = tree(folder, kept)
    assert kept.exists()
    if change == "content":  # of the same size, with its time set back
        header.write_text("2\n")
        os.utime(header, (10**9, 10**9))
    elif change == "copy":  # another inode under the name, as `cp --preserve` and `mv` leave it
        other = tmp_path / "other.h"
        other.write_text("2\n")
        os.utime(other, (10**9, 10**9))
        other.replace(header)
    elif change == "new":
        (folder / "b.h").write_text("")
    elif change == "gone":
        header.unlink()
    else:
        header.rename(folder / "c.h")
    assert tree(folder, kept) != first
    assert tree(folder, kept, new_process=False) != first


def test_a_tree_that_was_changed_while_it_was_read_is_not_kept(tmp_path, monkeypatch):
    folder, kept = tmp_path / "include", tmp_path / "trees.json"
    folder.mkdir()
    (folder / "a.h").write_text("1\n")
    settle(monkeypatch, 1)  # within the resolution that time stamps may have
    tree(folder, kept)
    assert not kept.exists()
    settle(monkeypatch, -100)  # a clock that was set back: all files are of the future
    tree(folder, kept)
    assert not kept.exists()
