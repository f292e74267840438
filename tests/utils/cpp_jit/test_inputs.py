"""What a build depends on besides what was read: what is absent, the time, the environment."""

from __future__ import annotations

import importlib
import os
import warnings
from pathlib import Path

import pytest

from tensorplay.utils import cpp_jit
from tensorplay.utils.cpp_jit.compile import Unit
from tensorplay.utils.cpp_jit.inputs import assembled, unseen


def make(text: str, name: str = "inputs", **options: object) -> cpp_jit.Build:
    return cpp_jit.build_source(name, cpp_jit.Source(text), exports=["f"], **options)


OPTIONAL_HEADER = """
#if defined(__has_include) && __has_include(<extra.h>)
#include <extra.h>
#elif __has_include("beside.h")
#include "beside.h"
#else
#define VALUE 0
#endif
int64_t f() { return VALUE; }
"""


def test_a_header_that_was_asked_for_and_appears_is_seen(tmp_path, monkeypatch):
    folders = [tmp_path / name for name in ("first", "second", "here")]
    for folder in folders:
        folder.mkdir()
    monkeypatch.chdir(folders[2])

    def value() -> int:
        return make(OPTIONAL_HEADER, extra_include_paths=folders[:2]).load().f()

    assert value() == 0
    assert make(OPTIONAL_HEADER, extra_include_paths=folders[:2]).cached
    (folders[2] / "beside.h").write_text("#define VALUE 1\n")
    assert value() == 1
    (folders[1] / "extra.h").write_text("#define VALUE 2\n")
    assert value() == 2
    (folders[0] / "extra.h").write_text("#define VALUE 3\n")
    assert value() == 3
    (folders[0] / "extra.h").unlink()
    assert value() == 2


def test_a_header_that_a_header_asks_for_is_seen_and_so_is_one_that_goes(tmp_path):
    asks = "#if __has_include(<there.h>)\n#define VALUE 1\n#else\n#define VALUE 0\n#endif\n"
    (tmp_path / "asks.h").write_text(asks)
    (tmp_path / "there.h").write_text("")
    text = "#include <asks.h>\nint64_t f() { return VALUE; }"
    assert make(text, extra_include_paths=[tmp_path]).load().f() == 1
    (tmp_path / "there.h").unlink()
    assert make(text, extra_include_paths=[tmp_path]).load().f() == 0


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("int64_t f() { return sizeof(__TIME__); }", "it uses __TIME__"),
        ('#define D "on " __DATE__\nint64_t f() { return sizeof(D); }', "it uses __DATE__"),
        (
            "#define H <vector>\n#if __has_include(H)\nint64_t f() { return 1; }\n#endif",
            "it asks for H by __has_include",
        ),
    ],
)
def test_what_changes_by_itself_is_built_each_time_and_says_so(text, reason):
    keys = []
    for _ in range(2):
        with pytest.warns(cpp_jit.BuildCacheWarning, match=f"built again each time: {reason}"):
            built = make(text)
        assert not built.cached
        assert built.load().f() > 0
        keys.append(built.library)
    assert keys[0] != keys[1]


def test_words_in_comments_and_strings_change_nothing():
    text = '// __TIME__\nconst char* s = "__has_include(H) __DATE__";\nint64_t f() { return !s; }'
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        make(text)
        assert make(text).cached


def test_headers_of_the_system_are_not_searched(tmp_path):
    header = tmp_path / "system" / "clock.h"
    header.parent.mkdir()
    header.write_text("const char* when = __TIME__;\n")
    assert unseen({}, [str(header)], [], [str(header.parent)]).why == ""
    assert unseen({}, [str(header)], [], []).why == "it uses __TIME__"


def test_files_that_the_assembler_embeds_are_followed(tmp_path):
    (tmp_path / "data.bin").write_bytes(b"A")
    text = (
        'asm(".pushsection .rodata\\n.globl embedded\\n.hidden embedded\\n'
        f'embedded:\\n.incbin \\"{tmp_path / "data.bin"}\\"\\n.popsection\\n");\n'
        'extern "C" const unsigned char embedded[];\n'
        "int64_t f() { return embedded[0]; }"
    )
    assert assembled([text], ()) == (str(tmp_path / "data.bin"),)
    assert make(text).load().f() == ord("A")
    (tmp_path / "data.bin").write_bytes(b"B")
    assert make(text).load().f() == ord("B")


@pytest.mark.parametrize(
    "variable", ["CPATH", "CPLUS_INCLUDE_PATH", "LIBRARY_PATH", "COMPILER_PATH", "GCC_EXEC_PREFIX"]
)
def test_variables_that_compilers_obey_are_part_of_the_key(variable, monkeypatch, tmp_path):
    # The package's function of this name hides the module.
    build = importlib.import_module("tensorplay.utils.cpp_jit.build")
    unit = Unit("environment", cpp_jit.Source("int f();"), {})
    before = build._request_of(unit)
    monkeypatch.setenv(variable, str(tmp_path))
    assert build._request_of(unit) != before


def test_a_header_found_through_the_environment_is_another_build(tmp_path, monkeypatch):
    text = "#include <where.h>\nint64_t f() { return WHERE; }"
    for number in range(2):
        (tmp_path / str(number)).mkdir()
        (tmp_path / str(number) / "where.h").write_text(f"#define WHERE {number}\n")
        monkeypatch.setenv("CPLUS_INCLUDE_PATH", str(tmp_path / str(number)))
        assert make(text, "environment").load().f() == number
    assert "variables of the compiler" in cpp_jit.cache.explain("environment")
    monkeypatch.setenv("CPLUS_INCLUDE_PATH", str(tmp_path / "0"))
    assert make(text, "environment").cached


def test_what_is_made_for_all_builds_is_told_apart_from_the_build(tmp_path, monkeypatch):
    monkeypatch.setenv("TENSORPLAY_CACHE_DIR", str(tmp_path))
    first = make("int64_t f() { return 1; }")
    second = make("int64_t f() { return 2; }")
    again = make("int64_t f() { return 1; }")
    assert first.shared_seconds > 10 * second.shared_seconds > 0
    assert again.cached
    assert again.shared_seconds == 0
    assert again.seconds == first.seconds
    assert first.to_dict()["shared_seconds"] == first.shared_seconds
    cpp_jit.support.wait_for_background(60)


def test_a_killed_compiler_leaves_its_files_in_the_private_folder_which_goes(tmp_path, monkeypatch):
    wrapper = tmp_path / "cxx"
    wrapper.write_text(
        '#!/bin/sh\ncase "$*" in *"-o library"*)\n'
        '  echo "int unfinished" > "$TMPDIR/ccKilled.s"; echo "$TMPDIR" > "$0.where"\n'
        '  kill -9 $$;;\nesac\nexec c++ "$@"\n'
    )
    wrapper.chmod(0o755)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "elsewhere"))
    monkeypatch.setenv("CXX", str(wrapper))
    with pytest.raises(cpp_jit.BuildError, match=r"killed \(signal 9\)"):
        make("int64_t f() { return 1; }")
    folder = Path((tmp_path / "cxx.where").read_text().strip())
    cache = Path(os.environ["TENSORPLAY_CACHE_DIR"])
    assert folder.is_relative_to(cache)
    assert not folder.exists()
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_very_long_command_lines_go_through_a_file(monkeypatch, tmp_path):
    from tensorplay.utils.cpp_jit import toolchain

    monkeypatch.setattr(toolchain, "_LONGEST_COMMAND", 1000)
    folders = [tmp_path / f"folder {n} \"of\" '{'x' * 20}' ü\\" for n in range(20)]
    for folder in folders:
        folder.mkdir()
    (folders[-1] / "long.h").write_text("#define VALUE 5\n")
    text = "#include <long.h>\nint64_t f() { return VALUE; }"
    assert make(text, "long", extra_include_paths=folders).load().f() == 5
