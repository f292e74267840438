"""What the linker reads belongs to a build as what the compiler reads does."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tensorplay.utils import cpp_jit
from tensorplay.utils.cpp_jit.flags import checked, link_inputs

CALLS = 'extern "C" int value();\nint64_t f() { return value(); }'


def make_object(folder: Path, value: int) -> Path:
    text, target = folder / "part.cpp", folder / "part.o"
    text.write_text(f'extern "C" int value() {{ return {value}; }}')
    subprocess.run(["g++", "-fPIC", "-c", str(text), "-o", str(target)], check=True)
    return target


def make_archive(folder: Path, value: int) -> Path:
    target = folder / "libpart.a"
    target.unlink(missing_ok=True)
    subprocess.run(["ar", "rcs", str(target), str(make_object(folder, value))], check=True)
    return target


def through_cflags(folder: Path) -> dict[str, list[str]]:
    return {"extra_cflags": [str(folder / "part.o")]}


def through_ldflags(folder: Path) -> dict[str, list[str]]:
    return {"extra_ldflags": [str(folder / "part.o")]}


def by_name(folder: Path) -> dict[str, list[str]]:
    return {"extra_ldflags": [f"-L{folder}", "-lpart"]}


def relative_path(folder: Path) -> dict[str, list[str]]:
    return {"extra_ldflags": ["part.o"]}


def relative_folder(folder: Path) -> dict[str, list[str]]:
    return {"extra_ldflags": ["-L.", "-lpart"]}


@pytest.mark.parametrize("files", [False, True], ids=["inline", "files"])
@pytest.mark.parametrize(
    ("make", "flags"),
    [
        (make_object, through_cflags),
        (make_object, through_ldflags),
        (make_archive, by_name),
        (make_object, relative_path),
        (make_archive, relative_folder),
    ],
    ids=[
        "object in cflags",
        "object in ldflags",
        "archive by name",
        "object of the working folder",
        "archive in the working folder",
    ],
)
def test_a_changed_link_input_gives_the_new_code(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    make: Callable[[Path, int], Path],
    flags: Callable[[Path], dict[str, list[str]]],
    files: bool,
) -> None:
    monkeypatch.chdir(tmp_path)

    def build() -> cpp_jit.Module:
        if not files:
            return cpp_jit.load_inline(
                "links", cpp_sources=CALLS, functions=["f"], **flags(tmp_path)
            )
        unit = tmp_path / "unit.cc"
        unit.write_text(
            f"#include <tvm/ffi/function.h>\n{CALLS}\nTVM_FFI_DLL_EXPORT_TYPED_FUNC(f, f);\n"
        )
        return cpp_jit.load("links", cpp_files=[str(unit)], **flags(tmp_path))

    make(tmp_path, 1)
    first = build()
    make(tmp_path, 2)
    second = build()
    assert (first.f(), second.f()) == (1, 2)
    assert build().path == second.path


def test_flags_that_name_files(tmp_path: Path) -> None:
    part, script, archive = (tmp_path / n for n in ("part.o", "exports.map", "libpart.a"))
    for path in (part, script, archive):
        path.touch()
    flags = ["-O2", "-L", str(tmp_path), "-lpart", "-lm", str(part), "part.o"]
    scripted = [f"-Wl,-O1,--version-script={script}", "-l:libpart.a", os.devnull]
    assert link_inputs([*flags, *scripted]) == (str(part), str(script), str(archive), str(archive))


def test_what_flags_name_is_looked_for_in_the_working_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "inc").mkdir()
    (tmp_path / "first.h").touch()
    (tmp_path / "part.o").touch()
    monkeypatch.chdir(tmp_path)
    at = str(tmp_path)
    given = ["-O2", "-Iinc", "-I", "inc", "-isystem", "inc", "-include", "first.h", "part.o"]
    other = ["-Igone", "-I=inc", "-L", "/gone", "-lm", "-include", "cmath", "-x", "c++", "gone.o"]
    assert checked("flags", [*given, *other, "-I"]) == (
        *("-O2", f"-I{at}/inc", "-I", f"{at}/inc", "-isystem", f"{at}/inc"),
        *("-include", f"{at}/first.h", f"{at}/part.o", *other, "-I"),
    )
    (tmp_path / "inc" / "h.h").write_text("#define N 1")
    source = "#include <h.h>\nint64_t f() { return N; }"

    def build() -> cpp_jit.Module:
        return cpp_jit.load_inline("inc", cpp_sources=source, functions="f", extra_cflags=["-Iinc"])

    assert build().f() == 1
    (tmp_path / "inc" / "h.h").write_text("#define N 2")
    assert build().f() == 2


@pytest.mark.parametrize(
    "flag",
    [
        "-c",
        "-E",
        "-S",
        "-fsyntax-only",
        "--help",
        "-o",
        "-fsanitize=address",
        "-fsanitize=undefined,thread",
    ],
)
@pytest.mark.parametrize("argument", ["extra_cflags", "extra_ldflags"])
def test_flags_that_give_no_library_to_load(argument: str, flag: str) -> None:
    with pytest.raises(ValueError, match=f"argument '{argument}'.*'{flag}'"):
        cpp_jit.load_inline("flags", cpp_sources="void f() {}", functions="f", **{argument: [flag]})


def test_flags_are_a_sequence() -> None:
    with pytest.raises(TypeError, match=r"expected a sequence of strings.*'-O3'"):
        cpp_jit.load_inline("flags", cpp_sources="void f() {}", functions="f", extra_cflags="-O3")
    assert checked("extra_cflags", ["-O3", "-fsanitize=undefined"]) == (
        "-O3",
        "-fsanitize=undefined",
    )


@pytest.mark.parametrize(
    ("text", "flags"),
    [
        ("", ["-ffast-math"]),  # of GCC before 13: subnormal numbers become zero
        ("", ["-Ofast"]),
        ("#include <cfenv>\nstatic const int up = std::fesetround(FE_UPWARD);\n", []),
    ],
    ids=["-ffast-math", "-Ofast", "a global object"],
)
def test_a_library_leaves_the_arithmetic_of_the_session_alone(
    text: str, flags: list[str], tmp_path: Path
) -> None:
    file = cpp_jit.build_inline(
        "arithmetic",
        cpp_sources=text + "double half(double x) { return x / 2; }",
        functions=["half"],
        extra_cflags=flags,
        extra_ldflags=flags,
        build_directory=tmp_path,
    )
    assert cpp_jit.load_module(file).half(3.0) == 1.5
    smallest = (np.array([5e-324]) * 1.0).view(np.int64)  # == would take it for zero as well
    assert smallest.tolist() == [1]
    assert (np.array([1.0]) + 1e-30).tolist() == [1.0]
