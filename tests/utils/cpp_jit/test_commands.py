"""Command lines, word for word, for the compilers of all systems; nothing here is run."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path, PureWindowsPath

import pytest

from tensorplay.utils.cpp_jit import commands, msvc
from tensorplay.utils.cpp_jit.commands import Job, Link, Traits
from tensorplay.utils.cpp_jit.diagnostics import Texts, parse

GCC = Traits("gcc", "12.2.0", "gold", commands.linker_flags("linux"), precompiles=True)
CLANG = Traits("clang", "19.1", "lld", commands.linker_flags("linux"), precompiles=True)
APPLE = Traits("clang", "Apple 15.0", None, commands.linker_flags("darwin"), precompiles=True)
CL = Traits("msvc", "19.38.33133")
UNKNOWN = Traits("unknown", "?", None, ())

LINK = Link(("/rt/errors.o",), "/site/tvm_ffi/lib/libtvm_ffi.so", ("-lm",))
JOB = Job(
    source="source.cpp",
    output="library",
    flags=("-O3",),
    headers=("tensorplay/ffi_light.h",),
    quote_paths=("/home/ü",),
    include_paths=("/my include",),
    system_paths=("/ours", "/engine"),
    link=LINK,
)


def test_gcc_on_linux_in_one_step():
    assert commands.arguments(GCC, JOB, "linux") == (
        *("-std=c++17", "-fPIC", "-O2", "-fno-gnu-unique", "-pipe", "-O3"),
        *("-include", "tensorplay/ffi_light.h", "-iquote", "/home/ü", "-I/my include"),
        *("-isystem", "/ours", "-isystem", "/engine"),
        *("-fno-diagnostics-show-caret", "-fdiagnostics-parseable-fixits"),
        *("-fdiagnostics-color=never", "-fmax-errors=50"),
        *("-MD", "-MF", "dependencies.d", "source.cpp", "-fno-use-linker-plugin"),
        *("-shared", "-fuse-ld=gold", "-Wl,-z,defs", "-Wl,-Bsymbolic", "-Wl,--gc-sections"),
        *("/rt/errors.o", "-L/site/tvm_ffi/lib", "-ltvm_ffi", "-lm", "-o", "library"),
    )


def test_link_time_optimisation_has_its_plugin():
    for job in (replace(JOB, flags=("-flto",)), replace(JOB, link=replace(LINK, flags=("-flto",)))):
        assert "-fno-use-linker-plugin" not in commands.arguments(GCC, job, "linux")
    assert "-fno-use-linker-plugin" not in commands.arguments(GCC, replace(JOB, link=None), "linux")


def test_clang_on_linux_with_a_precompiled_header_and_no_link():
    job = Job("source.cpp", "source.o", headers=("x.h",), precompiled="/pch/x.h.pch")
    assert commands.arguments(CLANG, job, "linux") == (
        *("-std=c++17", "-fPIC", "-O2", "-include-pch", "/pch/x.h.pch"),
        *("-fno-caret-diagnostics", "-fdiagnostics-parseable-fixits"),
        *("-fno-color-diagnostics", "-ferror-limit=50"),
        *("-MD", "-MF", "dependencies.d", "source.cpp", "-c", "-o", "source.o"),
    )


def test_clang_on_macos_links_a_dynamic_library():
    link = Link(("/rt/errors.o",), "/site/tvm_ffi/lib/libtvm_ffi.dylib", ("-lm",))
    assert commands.link_arguments(APPLE, link, "darwin") == (
        *("-dynamiclib", "-undefined", "dynamic_lookup", "-Wl,-rpath,/site/tvm_ffi/lib"),
        *("-Wl,-dead_strip", "/rt/errors.o", "-L/site/tvm_ffi/lib", "-ltvm_ffi", "-lm"),
    )
    assert commands.shared_suffix("darwin") == ".dylib"


def test_cl_in_one_step():
    link = Link((), r"C:\Program Files\Python\tvm_ffi\lib\tvm_ffi.dll", ("/DEBUG",))
    job = Job(
        source="source.cpp",
        output="library.dll",
        flags=("/O1",),
        include_paths=(r"C:\my include",),
        system_paths=(r"C:\engine",),
        dependencies="dependencies.d",
        link=link,
    )
    assert commands.arguments(CL, job, "win32") == (
        *("/nologo", "/std:c++17", "/EHsc", "/Zc:__cplusplus", "/O2", "/MD", "/utf-8", "/bigobj"),
        *("/wd4819", "/wd4251", "/wd4244", "/wd4267", "/wd4275", "/wd4018", "/wd4190"),
        *("/wd4624", "/wd4068", r"/IC:\my include", "/external:I", r"C:\engine", "/external:W0"),
        *("/diagnostics:column", "/O1", "/sourceDependencies", "dependencies.d"),
        *("/Tp", "source.cpp", "/Fe:library.dll", "/LD"),
        *("/link", "/NOLOGO", "/INCREMENTAL:NO"),
        *(r"/LIBPATH:C:\Program Files\Python\tvm_ffi\lib", "tvm_ffi.lib", "/DEBUG"),
    )
    assert commands.shared_suffix("win32") == ".dll"
    assert commands.object_suffix("win32") == ".obj"


def test_cl_compiles_c_without_the_standard_of_cpp():
    words = commands.arguments(CL, Job("half.c", "0.obj", language="c"), "win32")
    assert words[-4:] == ("/Tc", "half.c", "/c", "/Fo:0.obj")
    assert "/std:c++17" not in words


def test_c_is_compiled_as_c_and_what_follows_is_not():
    words = commands.arguments(GCC, Job("half.c", "0.o", language="c"), "linux")
    at = words.index("-x")
    assert words[at : at + 5] == ("-x", "c", "half.c", "-x", "none")
    assert "-std=c++17" not in words


def test_a_compiler_that_nobody_knows_gets_the_flags_that_all_take():
    words = commands.arguments(UNKNOWN, JOB, "linux")
    assert not any("diagnostics" in w or "unique" in w or "-fuse-ld" in w for w in words)
    assert commands.header_arguments(UNKNOWN, JOB, "linux") is None


def test_precompiling_a_header():
    gcc = Job("cell.h", "cell.h.gch", flags=("-O3",), system_paths=("/ours",), dependencies="d")
    assert commands.header_arguments(GCC, gcc, "linux") == (
        *("-std=c++17", "-fPIC", "-O2", "-fno-gnu-unique", "-pipe", "-O3", "-isystem", "/ours"),
        *("-x", "c++-header", "cell.h", "-MD", "-MF", "d", "-o", "cell.h.gch"),
    )
    clang = Job("-", "cell.h.pch", dependencies="d")
    assert commands.header_arguments(CLANG, clang, "linux") == (
        *("-std=c++17", "-fPIC", "-O2", "-fpch-instantiate-templates"),
        *("-Xclang", "-fno-pch-timestamp"),
        *("-x", "c++-header", "-", "-MD", "-MF", "d", "-o", "cell.h.pch"),
    )
    assert commands.header_arguments(CL, gcc, "win32") is None


def test_symbols_of_the_interpreter_may_stay_undefined():
    link = Link((), "/lib/libtvm_ffi.so", undefined=True)
    assert commands.NO_UNDEFINED not in commands.link_arguments(GCC, link, "linux")


@pytest.mark.parametrize(
    ("word", "msvc_text", "gnu_text"),
    [
        ("/O2", "/O2", "/O2"),
        ("C:\\a b\\", '"C:\\a b\\\\"', "C:\\\\a\\ b\\\\"),
        ('say "so"', '"say \\"so\\""', 'say\\ \\"so\\"'),
        ('back\\"', '"back\\\\\\""', 'back\\\\\\"'),
        ("", '""', '""'),
        ("ü", "ü", "ü"),
    ],
)
def test_response_files_quote_as_their_readers_do(word, msvc_text, gnu_text):
    assert commands.response_text("msvc", [word]).splitlines() == [msvc_text]
    assert commands.response_text("gcc", [word]).splitlines() == [gnu_text]


def test_b054_visual_studio_is_asked_where_it_is():
    variables = {"ProgramFiles(x86)": r"D:\Programme (x86)"}
    assert msvc.vswhere_command(variables) == (
        r"D:\Programme (x86)\Microsoft Visual Studio\Installer\vswhere.exe",
        *("-latest", "-products", "*", "-requires"),
        "Microsoft.VisualStudio.Component.VC.Tools.x86.x64",
        *("-property", "installationPath", "-utf8"),
    )
    assert msvc.vswhere_command({})[0].startswith("C:\\Program Files (x86)\\")
    assert msvc.script_command(r"C:\VS 2022", "x64") == (
        r'cmd /d /u /s /c ""C:\VS 2022\VC\Auxiliary\Build\vcvarsall.bat" x64 >nul && set"'
    )


def test_b054_the_environment_that_the_script_sets_is_read():
    printed = (
        "ALLUSERSPROFILE=C:\\ProgramData\r\nInclude=C:\\VC\\include;C:\\Größe\r\n"
        "LIB=C:\\VC\\lib\r\nPath=C:\\VC\\bin;C:\\Windows\r\nno variable\r\n"
    )
    assert msvc.parse_environment(printed.encode("utf-16-le")) == {
        "INCLUDE": "C:\\VC\\include;C:\\Größe",
        "LIB": "C:\\VC\\lib",
        "PATH": "C:\\VC\\bin;C:\\Windows",
    }


def test_the_default_tools_of_an_installation_come_first_then_the_newest(tmp_path):
    assert msvc.find_cl(tmp_path, "x64") is None
    for version in ("14.9.1", "14.38.33130", "14.40.1"):
        folder = tmp_path / "VC" / "Tools" / "MSVC" / version / "bin" / "Hostx64" / "x64"
        folder.mkdir(parents=True)
        (folder / "cl.exe").touch()
    assert "14.40.1" in str(msvc.find_cl(tmp_path, "x64"))
    chosen = tmp_path / "VC" / "Auxiliary" / "Build" / "Microsoft.VCToolsVersion.default.txt"
    chosen.parent.mkdir(parents=True)
    chosen.write_text("14.38.33130\n")
    found = msvc.find_cl(tmp_path, "x64")
    assert found is not None
    assert "14.38.33130" in str(found)
    assert msvc.is_cl(str(PureWindowsPath(found)))
    assert not msvc.is_cl("/usr/bin/clang++")
    assert [msvc.architecture(m) for m in ("AMD64", "ARM64", "x86")] == ["x64", "arm64", "x86"]


def test_b054_output_in_any_encoding_is_read():
    assert msvc.decoded("größer".encode()) == "größer"
    assert msvc.decoded(b"\xff hello", "linux") == "\ufffd hello"


def test_the_files_that_cl_read():
    data = {"Version": "1.2", "Data": {"Source": "c:\\s.cpp", "Includes": ["c:\\k.h"]}}
    assert msvc.parse_source_dependencies(json.dumps(data)) == ["c:\\s.cpp", "c:\\k.h"]


def test_every_traits_field_survives_the_cache(tmp_path: Path):
    from tensorplay.utils.cpp_jit import toolchain

    compiler = toolchain.Compiler(("nothing",), "nothing")
    toolchain._keep_traits(compiler, tmp_path, GCC)
    assert toolchain.traits(compiler, tmp_path) == GCC


CL_OUTPUT = """source.cpp
cell 1(3,12): error C2065: 'valeu': undeclared identifier
cell 1(5,7): warning C4101: 'unused': unreferenced local variable
C:\\my include\\k.h(8,1): error C2143: Syntaxfehler: Es fehlt ";" vor "}"
cell 1(2): note: see declaration of 'value'
Creating library library.lib and object library.exp
source.obj : error LNK2019: unresolved external symbol "int __cdecl helper(void)" (?helper@@YAHXZ) \
referenced in function __tvm_ffi_f
library.dll : fatal error LNK1120: 1 unresolved externals
LINK : fatal error LNK1104: cannot open file 'absent.lib'
cl : Befehlszeile warning D9002 : Unbekannte Option "-Wall" wird ignoriert.
"""


def test_b054_what_cl_and_its_linker_write_are_diagnostics():
    text = "int helper();\nint value;\nint64_t f() { return valeu; }\n\nint unused;"
    texts = Texts("cell 1", {"cell 1": (1, text.splitlines())})
    found = parse(CL_OUTPUT, texts)
    assert [(d.level, d.file, d.line, d.column, d.message) for d in found] == [
        ("error", "cell 1", 3, 12, "'valeu': undeclared identifier"),
        ("error", "cell 1", 1, 5, "`helper()` is declared and used but not defined"),
        ("error", "C:\\my include\\k.h", 8, 1, 'Syntaxfehler: Es fehlt ";" vor "}"'),
        ("error", "", 0, None, "linker: cannot open file 'absent.lib'"),
        ("warning", "cell 1", 5, 7, "'unused': unreferenced local variable"),
        ("warning", "", 0, None, 'Unbekannte Option "-Wall" wird ignoriert.'),
    ]
    assert found[0].source_line == "int64_t f() { return valeu; }"
    assert found[2].notes == ("cell 1:2: see declaration of 'value'",)
