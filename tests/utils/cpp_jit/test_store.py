"""What the build cache promises: the same library for the same input, never a wrong one."""

from __future__ import annotations

import hashlib
import importlib
import itertools
import json
import os
import signal
import stat
import subprocess
import sys
import threading
import time
import warnings
from pathlib import Path

import pytest

from tensorplay.utils import cpp_jit
from tensorplay.utils.cpp_jit import store, support

# The package's function of this name hides the module.
build = importlib.import_module("tensorplay.utils.cpp_jit.build")

REPOSITORY = Path(__file__).parents[3]


def source(value: int) -> cpp_jit.Source:
    return cpp_jit.Source(f"int64_t f() {{ return {value}; }}")


def run_python(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(REPOSITORY), **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


@pytest.fixture
def no_processes(monkeypatch):
    """Make starting any process an error."""

    def refuse(*args: object, **kwargs: object) -> None:
        raise AssertionError(f"a process was started: {args}")

    def start_refusing() -> None:
        monkeypatch.setattr(subprocess, "Popen", refuse)
        monkeypatch.setattr(os, "posix_spawn", refuse)

    return start_refusing


def test_the_same_cell_again_starts_no_process(no_processes):
    first = cpp_jit.build_source("again", source(1), exports=["f"])
    no_processes()
    second = cpp_jit.build_source("again", source(1), exports=["f"])
    assert second.cached
    assert (first.key, first.library) == (second.key, second.library)
    assert second.load().f() == 1


def test_b008_b057_a_cached_cell_needs_neither_compiler_nor_path():
    cpp_jit.build_source("cached", source(12), exports=["f"])
    code = (
        "import sys, time\n"
        "sys.modules['ziglang'] = None\n"  # which would be a compiler
        "from tensorplay.utils import cpp_jit\n"
        "build = cpp_jit.build_source('cached', cpp_jit.Source('int64_t f() { return 12; }'),"
        " exports=['f'])\n"
        "assert build.cached and build.load().f() == 12\n"
        "try:\n"
        "    cpp_jit.load_inline('new', cpp_sources='int64_t f() { return 13; }', functions='f')\n"
        "except cpp_jit.MissingToolError as error:\n"
        "    print(error)\n"
    )
    done = run_python(code, PATH="", CXX="")
    assert done.returncode == 0, done.stderr
    for part in ("g++", "clang++", "pip install", "conda install", "apt-get install"):
        assert part in done.stdout


def test_a_compiler_that_cxx_names_wrongly_is_named(monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler --flag")
    with pytest.raises(
        cpp_jit.MissingToolError, match=r"no-such-compiler.*CXX=no-such-compiler --flag"
    ):
        cpp_jit.build_source("missing", source(time.time_ns()), exports=["f"])


def test_b005_an_edited_header_is_seen_at_once_and_old_handles_keep_the_old(tmp_path):
    def make(value: int) -> cpp_jit.Module:
        (tmp_path / "k.h").write_text(f"#define K {value}\n")
        return cpp_jit.load_inline(
            "header",
            cpp_sources='#include "k.h"\nint64_t k() { return K; }',
            functions=["k"],
            extra_include_paths=[str(tmp_path)],
        )

    first, second = make(1), make(2)
    assert (first.k(), second.k()) == (1, 2)
    third = make(1)
    assert (first.k(), second.k(), third.k()) == (1, 2, 1)


def test_a_header_that_appears_earlier_on_the_path_is_seen(tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    (tmp_path / "b" / "k.h").write_text("#define K 1\n")

    def make() -> int:
        text = "#include <k.h>\nint64_t k() { return K; }"
        paths = [tmp_path / "a", tmp_path / "b"]
        built = cpp_jit.build_source(
            "shadow", cpp_jit.Source(text), exports=["k"], extra_include_paths=paths
        )
        return built.load().k()

    assert make() == 1
    (tmp_path / "a" / "k.h").write_text("#define K 2\n")
    assert make() == 2


def test_a_header_beside_the_working_folder_is_found_and_is_part_of_the_key(tmp_path, monkeypatch):
    for name, value in (("one", 1), ("two", 2)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "local.h").write_text(f"constexpr int64_t kValue = {value};\n")
        monkeypatch.chdir(tmp_path / name)
        text = '#include "local.h"\nint64_t f() { return kValue; }'
        assert cpp_jit.load_inline("local", cpp_sources=text, functions="f").f() == value


@pytest.mark.parametrize(
    "change",
    [
        {"exports": ["f", "g"]},
        {"generated": "// text"},
        {"preamble": "#define X 1"},
        {"extra_cflags": ["-O1"]},
        {"extra_ldflags": ["-Wl,-O1"]},
    ],
)
def test_everything_asked_for_is_part_of_the_key(change):
    text = cpp_jit.Source("int64_t f() { return 1; }\nint64_t g() { return 2; }")
    plain = cpp_jit.build_source("keys", text, exports=["f"])
    other = cpp_jit.build_source("keys", text, **({"exports": ["f"]} | change))
    assert plain.key != other.key
    assert plain.library != other.library


def test_another_compiler_builds_its_own_library(tmp_path, monkeypatch):
    first = cpp_jit.build_source("compilers", source(3), exports=["f"])
    wrapper = script(tmp_path / "cxx", 'exec c++ "$@"')
    monkeypatch.setenv("CXX", str(wrapper))
    second = cpp_jit.build_source("compilers", source(3), exports=["f"])
    assert first.key != second.key
    assert not second.cached
    monkeypatch.delenv("CXX")
    assert cpp_jit.build_source("compilers", source(3), exports=["f"]).key == first.key


def script(path: Path, body: str) -> Path:
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(path.stat().st_mode | stat.S_IEXEC)
    return path


def test_b054_compiler_output_of_any_bytes_is_read(tmp_path, monkeypatch):
    wrapper = script(tmp_path / "odd cxx", "printf '\\377 hello\\n' >&2\nexec c++ \"$@\"")
    monkeypatch.setenv("CXX", str(wrapper))
    module = cpp_jit.load_inline("odd", cpp_sources="int64_t f() { return 4; }", functions=["f"])
    assert module.f() == 4
    with pytest.raises(cpp_jit.BuildError, match="error: expected") as caught:
        cpp_jit.load_inline("odd", cpp_sources="int64_t f() { return 4 }", functions=["f"])
    assert "\ufffd hello" in caught.value.log


def test_b068_a_killed_compiler_is_explained(tmp_path, monkeypatch):
    monkeypatch.setenv("CXX", str(script(tmp_path / "killcxx", "kill -9 $$")))
    with pytest.raises(
        cpp_jit.BuildError,
        match=r"compiler was killed \(signal 9\), probably out of memory; peak use",
    ):
        cpp_jit.load_inline("oom", cpp_sources="int64_t f() { return 4; }", functions=["f"])


def test_b013_a_damaged_library_is_rebuilt_with_a_note_while_the_old_goes_on():
    text = "int64_t f() { return 5; }"
    module = cpp_jit.load_inline("damaged", cpp_sources=text, functions=["f"])
    Path(module.__file__).write_bytes(b"garbage")
    with pytest.warns(cpp_jit.BuildCacheWarning, match="damaged-.* was damaged or incomplete"):
        again = cpp_jit.load_inline("damaged", cpp_sources=text, functions=["f"])
    assert (module.f(), again.f()) == (5, 5)
    assert module.__file__ != again.__file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        cpp_jit.load_inline("damaged", cpp_sources=text, functions=["f"])


@pytest.mark.parametrize("victim", ["library", "entry.json"])
def test_whatever_is_missing_from_an_entry_it_is_rebuilt(victim, monkeypatch):
    text = cpp_jit.Source(f"int64_t f() {{ return 6; }} // {victim}")
    first = cpp_jit.build_source("missing", text, exports=["f"])
    (first.library if victim == "library" else first.folder / victim).unlink()
    monkeypatch.setattr(build, "_verified", {})  # as a new process would find it
    with pytest.warns(cpp_jit.BuildCacheWarning, match="damaged or incomplete"):
        second = cpp_jit.build_source("missing", text, exports=["f"])
    assert second.load().f() == 6


def test_an_entry_that_is_gone_as_a_whole_was_evicted_and_is_built_again_in_silence(monkeypatch):
    text = cpp_jit.Source("int64_t f() { return 6; } // evicted")
    first = cpp_jit.build_source("evicted", text, exports=["f"])
    store.default_cache().remove(first.folder)
    monkeypatch.setattr(build, "_verified", {})  # as a new process would find it
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        second = cpp_jit.build_source("evicted", text, exports=["f"])
        third = cpp_jit.build_source("evicted", text, exports=["f"])
    assert (first.cached, second.cached, third.cached) == (False, False, True)
    assert third.load().f() == 6


def test_a_library_that_the_loader_refuses_is_rebuilt_once():
    text = cpp_jit.Source("int64_t f() { return 8; }")
    first = cpp_jit.build_source("refused", text, exports=["f"])
    # A whole file with a right checksum that is no library: as from another kind of machine.
    first.library.write_bytes(b"not a library")
    data = json.loads((first.folder / "entry.json").read_text())
    data["sha256"] = hashlib.sha256(b"not a library").hexdigest()
    (first.folder / "entry.json").write_text(json.dumps(data))
    found = cpp_jit.build_source("refused", text, exports=["f"])
    assert found.library == first.library
    with pytest.warns(cpp_jit.BuildCacheWarning, match="refused by the loader"):
        module = found.load()
    assert module.f() == 8


def test_a_run_time_too_new_for_the_process_is_linked_statically(tmp_path, monkeypatch):
    wrapper = script(tmp_path / "newer cxx", 'exec c++ "$@"')
    monkeypatch.setenv("CXX", str(wrapper))
    load = importlib.import_module("tensorplay.utils.cpp_jit.load")
    load_build = load.load_build

    def refuse(built: cpp_jit.Build, keep: bool | None) -> cpp_jit.Module:
        if "-static-libstdc++" not in built.commands[-1]:
            raise RuntimeError("libstdc++.so.6: version `GLIBCXX_9.9.99' not found (required by k)")
        return load_build(built, keep)

    monkeypatch.setattr(load, "load_build", refuse)
    text = '#include <stdexcept>\nvoid f() { throw std::out_of_range("far"); }'
    first = cpp_jit.build_source("newer", cpp_jit.Source(text), exports=["f"])
    with pytest.warns(cpp_jit.BuildCacheWarning, match="refused by the loader"):
        module = first.load()
    with pytest.raises(IndexError, match="far"):
        module.f()
    later = cpp_jit.build_source("newer", source(41), exports=["f"])
    assert later.commands[-1][-1] != "-static-libstdc++"
    assert "-static-libstdc++" in later.commands[-1]
    assert later.load().f() == 41


@pytest.mark.parametrize("damage", ["", "{", '{"records": [{}]}', "[]", "\x00\xff"])
def test_a_damaged_record_is_as_good_as_none(damage):
    text = cpp_jit.Source(f"int64_t f() {{ return 9; }} // {damage!r}")
    first = cpp_jit.build_source("record", text, exports=["f"])
    request = json.loads((first.folder / "entry.json").read_text())["request"]
    files = store.default_cache()
    files._request_file(request).write_text(damage)
    second = cpp_jit.build_source("record", text, exports=["f"])
    assert second.load().f() == 9
    assert cpp_jit.build_source("record", text, exports=["f"]).cached


def test_b002_a_killed_builder_blocks_nobody(tmp_path):
    flag = tmp_path / "sleep"
    flag.touch()
    body = f'test -e "{flag}" && case "$*" in *source.cpp*) sleep 30;; esac\nexec c++ "$@"'
    slow = script(tmp_path / "slowcxx", body)
    code = (
        "from tensorplay.utils import cpp_jit\n"
        "cpp_jit.load_inline('k', cpp_sources='int64_t f() { return 7; }', functions=['f'])"
    )
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), "CXX": str(slow)}
    process = subprocess.Popen(
        [sys.executable, "-c", code], env=environment, start_new_session=True
    )
    locks = Path(os.environ["TENSORPLAY_CACHE_DIR"]) / "build" / "locks"
    pattern = f"process {process.pid}, which has been building 'k' since"
    deadline = time.monotonic() + 200
    # The run-time library is built first, under its own lock; the cell's build sleeps.
    work = locks.parent / "tmp"
    while not list(work.glob(f"build-{process.pid}-*/source.cpp")):
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert any(pattern in file.read_text() for file in locks.glob("*.holder"))
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    flag.unlink()
    done = run_python(code, CXX=str(slow))  # ends in time, or raises
    assert done.returncode == 0, done.stderr


def test_threads_that_build_the_same_and_different_cells_at_once():
    results: dict[int, list[int]] = {}

    def work(number: int) -> None:
        results[number] = [
            cpp_jit.build_source("threads", source(5000 + n), exports=["f"]).load().f()
            for n in (number % 2, number)
        ]

    threads = [threading.Thread(target=work, args=(n,)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == {n: [5000 + n % 2, 5000 + n] for n in range(6)}


def test_a_file_that_changes_while_it_is_read_is_not_recorded(tmp_path, monkeypatch):
    header = tmp_path / "moving.h"
    header.write_text("#define K 1\n")
    compile_unit = build.compile_unit

    def changing(*args, **kwargs):
        product = compile_unit(*args, **kwargs)
        header.write_text("#define K 2\n")
        return product

    def make() -> int:
        text = cpp_jit.Source('#include "moving.h"\nint64_t k() { return K; }')
        built = cpp_jit.build_source("moving", text, exports=["k"], extra_include_paths=[tmp_path])
        return built.load().k()

    with monkeypatch.context() as patch:
        patch.setattr(build, "compile_unit", changing)
        assert make() == 1
    assert make() == 2


def test_an_entry_describes_itself():
    built = cpp_jit.build_source("described", source(21), exports={"f": "Twenty-one."})
    data = json.loads((built.folder / "entry.json").read_text())
    assert data["name"] == "described"
    assert data["key"] == built.key
    assert data["rung"] == "light"
    assert any("g++" in word or "c++" in word for word in data["commands"][-1][:1])
    assert data["docs"] == {"f": "Twenty-one."}
    assert (built.folder / "source.cpp").read_text().count("return 21;") == 1
    assert json.loads(json.dumps(built.to_dict()))["library"] == str(built.library)


def test_a_build_directory_replaces_the_cache(tmp_path):
    path = cpp_jit.build_inline(
        "elsewhere",
        cpp_sources="int64_t f() { return 2; }",
        functions="f",
        build_directory=tmp_path / "with späces",
    )
    assert Path(path).is_relative_to(tmp_path / "with späces")
    assert cpp_jit.load_module(path).f() == 2


def test_a_built_library_needs_only_the_engine(tmp_path):
    path = cpp_jit.build_inline(
        "shipped",
        cpp_sources='void f() { TVM_FFI_THROW(ValueError) << "far away"; }',
        functions="f",
    )
    copy = tmp_path / "shipped.so"
    copy.write_bytes(Path(path).read_bytes())
    code = (
        "import sys, tvm_ffi\n"
        "try:\n"
        f"    tvm_ffi.load_module({str(copy)!r}).f()\n"
        "except ValueError as error:\n"
        "    print(error, 'tensorplay' in sys.modules)\n"
    )
    done = run_python(code, TENSORPLAY_CACHE_DIR=str(tmp_path / "empty"))
    assert done.stdout.strip() == "far away False", done.stderr


def test_loading_what_is_not_there():
    with pytest.raises(RuntimeError, match=r"nowhere\.so"):
        cpp_jit.load_module("nowhere.so")


def test_the_engine_is_imported_on_first_use_and_brings_no_torch(tmp_path):
    (tmp_path / "torch.py").write_text("raise SystemExit('torch was imported')\n")
    code = (
        "import sys\n"
        "import tensorplay as tp\n"
        "from tensorplay.utils import cpp_jit\n"
        "text = cpp_jit.Source('double first(DLTensor* t) { return *(double*)t->data; }')\n"
        "built = cpp_jit.build_source('no_torch', text, exports=['first'])\n"
        "assert 'tvm_ffi' not in sys.modules\n"
        "assert cpp_jit.is_available()\n"
        "assert 'tvm_ffi' in sys.modules and 'torch' not in sys.modules\n"
        "assert built.load().first(tp.tensor([2.5], dtype=tp.float64)) == 2.5\n"
        "assert 'torch' not in sys.modules\n"
        "try:\n"
        "    import torch\n"  # what was hidden is there again
        "except SystemExit as error:\n"
        "    print(error)\n"
    )
    done = run_python(code, PYTHONPATH=f"{REPOSITORY}{os.pathsep}{tmp_path}")
    assert done.returncode == 0, done.stderr
    assert done.stdout == "torch was imported\n"


def test_without_the_engine_the_error_says_how_to_install_it():
    code = (
        "import sys\n"
        "sys.modules['tvm_ffi'] = None\n"
        "from tensorplay.utils import cpp_jit\n"
        "assert not cpp_jit.is_available()\n"
        "try:\n"
        "    cpp_jit.load_inline('k', cpp_sources='int f();', functions='f')\n"
        "except RuntimeError as error:\n"
        "    print(error)\n"
    )
    done = run_python(code)
    assert "pip install apache-tvm-ffi" in done.stdout, done.stderr


def test_precompiled_headers_are_used_once_they_are_there():
    deadline = time.monotonic() + 200  # another process may be making them
    for number in itertools.count():
        built = cpp_jit.build_source("pch", source(310000 + number), exports=["f"])
        if any("/precompiled/" in word for word in built.commands[-1]):
            break
        assert time.monotonic() < deadline
        support.wait_for_background(60)


def test_make_rules_with_awkward_names_are_read():
    rule = "library: a\\ b.h \\\n  /x/c\\#d.h e$$f.h \\\n g.h\n"
    assert store.parse_dependencies(rule) == ["a b.h", "/x/c#d.h", "e$f.h", "g.h"]
