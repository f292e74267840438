"""What the engine's documentation of `tvm_ffi.cpp` runs, run through both and compared."""

from __future__ import annotations

import inspect
import subprocess
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tensorplay.utils import cpp_jit

#: The kernel of every example there.
ADD_ONE = """
void add_one_cpu(tvm::ffi::TensorView x, tvm::ffi::TensorView y) {
  // implementation of a library function
  TVM_FFI_ICHECK(x.ndim() == 1) << "x must be a 1D tensor";
  DLDataType f32_dtype{kDLFloat, 32, 1};
  TVM_FFI_ICHECK(x.dtype() == f32_dtype) << "x must be a float tensor";
  TVM_FFI_ICHECK(y.ndim() == 1) << "y must be a 1D tensor";
  TVM_FFI_ICHECK(y.dtype() == f32_dtype) << "y must be a float tensor";
  TVM_FFI_ICHECK(x.size(0) == y.size(0)) << "x and y must have the same shape";
  for (int i = 0; i < x.size(0); ++i) {
    static_cast<float*>(y.data_ptr())[i] = static_cast<float*>(x.data_ptr())[i] + 1;
  }
}
"""
HEADERS = """
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/dtype.h>
#include <tvm/ffi/error.h>
#include <tvm/ffi/extra/c_env_api.h>
#include <tvm/ffi/function.h>
"""
EXPORT = "TVM_FFI_DLL_EXPORT_TYPED_FUNC(add_one_cpu, add_one_cpu);\n"
USES_C = 'extern "C" double half(double);\ndouble quarter(double v) { return half(half(v)); }\n'


def add_one(module: Any) -> object:
    x, y = np.arange(5, dtype=np.float32), np.zeros(5, np.float32)
    module.add_one_cpu(x, y)
    try:
        module.add_one_cpu(x, y[1:])
    except RuntimeError as error:
        return y.tolist(), str(error)
    return None


def from_text(cpp: Any, folder: Path) -> object:
    del folder
    return add_one(cpp.load_inline(name="hello", cpp_sources=ADD_ONE, functions="add_one_cpu"))


def text_to_a_path(cpp: Any, folder: Path) -> object:
    del folder
    path = cpp.build_inline(name="hello", cpp_sources=ADD_ONE, functions="add_one_cpu")
    return type(path), Path(path).suffix, add_one(cpp.load_module(path))


def from_a_file(cpp: Any, folder: Path) -> object:
    (folder / "my_ops.cpp").write_text(HEADERS + ADD_ONE + EXPORT)
    return add_one(cpp.load(name="my_ops", sources=str(folder / "my_ops.cpp")))


def file_to_a_path(cpp: Any, folder: Path) -> object:
    (folder / "my_ops.cpp").write_text(HEADERS + ADD_ONE + EXPORT)
    path = cpp.build(name="my_ops", sources=[str(folder / "my_ops.cpp")])
    return type(path), Path(path).suffix, add_one(cpp.load_module(path))


def aliases_of_sources(cpp: Any, folder: Path) -> object:
    (folder / "my_ops.cpp").write_text(HEADERS + ADD_ONE + EXPORT)
    return add_one(cpp.load("my_ops", cpp_files=[str(folder / "my_ops.cpp")], cuda_files=[]))


def names_of_functions(cpp: Any, folder: Path) -> object:
    del folder
    text = "int64_t one() { return 1; }\nint64_t two() { return 2; }"
    found = []
    for functions in ("one", ["one", "two"], ("two",), {"one": "The first.", "two": ""}, None):
        module = cpp.load_inline("functions", cpp_sources=text, functions=functions)
        found.append([module.implements_function(name) for name in ("one", "two")])
    return found


def documentation_and_types(cpp: Any, folder: Path) -> object:
    del folder
    module = cpp.load_inline(
        "described",
        cpp_sources="double one(tvm::ffi::TensorView x, int64_t n) { return n; }",
        functions={"one": 'The "first".\nOf two.'},
        extra_cflags=["-DTVM_FFI_DLL_EXPORT_INCLUDE_METADATA=1"],
    )
    return module.get_function_doc("one"), module.get_function_metadata("one")


def several_texts(cpp: Any, folder: Path) -> object:
    del folder
    texts = ["static int64_t one() { return 1; }", "int64_t two() { return one() + 1; }"]
    return cpp.load_inline("texts", cpp_sources=texts, functions=["two"]).two()


def flags_and_paths(cpp: Any, folder: Path) -> object:
    (folder / "value.h").write_text("#define VALUE 40\n")
    text = "#include <value.h>\n#include <cmath>\ndouble f() { return std::sqrt(VALUE + EXTRA); }"
    return cpp.load_inline(
        "flags",
        cpp_sources=text,
        functions="f",
        extra_cflags=["-O3", "-DEXTRA=9"],
        extra_ldflags=["-lm"],
        extra_include_paths=[str(folder)],
    ).f()


def a_build_directory(cpp: Any, folder: Path) -> object:
    path = cpp.build_inline(
        "placed", cpp_sources=ADD_ONE, functions="add_one_cpu", build_directory=str(folder / "b")
    )
    return Path(path).is_relative_to((folder / "b").resolve()), add_one(cpp.load_module(path))


def kept_alive(cpp: Any, folder: Path) -> object:
    del folder
    return [
        cpp.load_inline(
            "alive",
            cpp_sources=f"int64_t f() {{ return {int(keep)}; }}",
            functions="f",
            keep_module_alive=keep,
        ).f()
        for keep in (True, False)
    ]


def c_and_objects(cpp: Any, folder: Path) -> object:
    (folder / "half.c").write_text("double half(double v) { return v / 2; }\n")
    export = "TVM_FFI_DLL_EXPORT_TYPED_FUNC(quarter, quarter);\n"
    (folder / "quarter.cc").write_text(HEADERS + USES_C + export)
    first = cpp.load("mixed", sources=[str(folder / "quarter.cc"), str(folder / "half.c")])
    command = ["cc", "-fPIC", "-c", str(folder / "half.c"), "-o", str(folder / "half.o")]
    subprocess.run(command, check=True)
    second = cpp.load("mixed", sources=[str(folder / "quarter.cc"), str(folder / "half.o")])
    return first.quarter(8.0), second.quarter(8.0)


def a_declared_function(cpp: Any, folder: Path) -> object:
    (folder / "half.c").write_text("double half(double v) { return v / 2; }\n")
    command = ["cc", "-fPIC", "-c", str(folder / "half.c"), "-o", str(folder / "half.o")]
    subprocess.run(command, check=True)
    return cpp.load_inline(
        "declared",
        cpp_sources='extern "C" double half(double v);',
        functions="half",
        extra_ldflags=[str(folder / "half.o")],
    ).half(3.0)


def object_of(make: Callable[[Any, Path, str], str]) -> Callable[[Any, Path], object]:
    def run(cpp: Any, folder: Path) -> object:
        (folder / "half.c").write_text("double half(double v) { return v / 2; }\n")
        path = make(cpp, folder, "part.o")
        listed = subprocess.run(["nm", path], capture_output=True, text=True, check=True).stdout
        linked = cpp.load("linked", sources=[path, str(folder / "half.c")])
        defined = {line.split()[-1] for line in listed.splitlines() if " T " in line}
        return Path(path).name, "__tvm_ffi_quarter" in defined, linked.quarter(4.0)

    return run


def object_of_text(cpp: Any, folder: Path, output: str) -> str:
    del folder
    return str(cpp.build_inline("o", cpp_sources=USES_C, functions="quarter", output=output))


def object_of_files(cpp: Any, folder: Path, output: str) -> str:
    export = "TVM_FFI_DLL_EXPORT_TYPED_FUNC(quarter, quarter);\n"
    (folder / "quarter.cc").write_text(HEADERS + USES_C + export)
    (folder / "other.cc").write_text("namespace { int other() { return 3; } }\n")
    files = [str(folder / "quarter.cc"), str(folder / "other.cc")]
    return str(cpp.build("o", sources=files, output=output))


def a_named_library(cpp: Any, folder: Path) -> object:
    del folder
    path = cpp.build_inline(
        "named", cpp_sources="int64_t f() { return 3; }", functions="f", output="mine.so"
    )
    return Path(path).name, cpp.load_module(path).f()


def another_backend(cpp: Any, folder: Path) -> object:
    del folder
    text = "int64_t f() { return 4; }"
    return cpp.load_inline("backend", cpp_sources=text, functions="f", backend="cuda").f()


def a_system_library(cpp: Any, folder: Path) -> object:
    del folder
    module = cpp.system_lib("no_such_prefix_")
    return [module.implements_function(name) for name in ("f", "g")]


RUNS = {
    "load_inline": from_text,
    "build_inline": text_to_a_path,
    "load": from_a_file,
    "build": file_to_a_path,
    "cpp_files": aliases_of_sources,
    "functions": names_of_functions,
    "documentation and types": documentation_and_types,
    "several texts": several_texts,
    "flags": flags_and_paths,
    "build_directory": a_build_directory,
    "keep_module_alive": kept_alive,
    "C and object files": c_and_objects,
    "declared only": a_declared_function,
    "object of text": object_of(object_of_text),
    "object of files": object_of(object_of_files),
    "output of build_inline": a_named_library,
    "backend": another_backend,
    "system_lib": a_system_library,
}


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Return the engine's own entry points in one namespace, with a cache of their own."""
    import tvm_ffi.cpp

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TVM_FFI_CACHE_DIR", str(tmp_path_factory.mktemp("engine")))
        names = ("load", "build", "load_inline", "build_inline")
        functions = {name: getattr(tvm_ffi.cpp, name) for name in names}
        yield types.SimpleNamespace(
            **functions, load_module=tvm_ffi.load_module, system_lib=tvm_ffi.system_lib
        )


@pytest.mark.parametrize("run", RUNS)
def test_every_entry_point_does_what_the_engines_does(engine, run, tmp_path):
    folders = tmp_path / "engine", tmp_path / "ours"
    for folder in folders:
        folder.mkdir()
    assert RUNS[run](cpp_jit, folders[1]) == RUNS[run](engine, folders[0])


@pytest.mark.parametrize("name", ["load", "build", "load_inline", "build_inline"])
def test_every_keyword_of_the_engine_is_taken(engine, name):
    theirs = set(inspect.signature(getattr(engine, name)).parameters)
    assert set(inspect.signature(getattr(cpp_jit, name)).parameters) == theirs


def test_what_cannot_be_meant_is_refused(tmp_path):
    with pytest.raises(TypeError, match="library 'x': unexpected argument 'output'"):
        cpp_jit.load_inline("x", cpp_sources="", output="x.o")
    with pytest.raises(TypeError, match=r"Write extra_include_paths=\['include'\]"):
        cpp_jit.load_inline("x", cpp_sources="", extra_include_paths="include")
    monkey = tmp_path / "file.c"
    monkey.write_text("int x;")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CC", "no-such-cc")
        with pytest.raises(cpp_jit.MissingToolError, match=r"no C compiler.*CC=no-such-cc"):
            cpp_jit.build("x", sources=monkey)


def test_another_c_compiler_builds_c_files_again(tmp_path, monkeypatch):
    wrapper = tmp_path / "my cc"
    text = "double half(double v) { return v / DIVISOR; }\n"
    (tmp_path / "half.c").write_text(text)
    export = "TVM_FFI_DLL_EXPORT_TYPED_FUNC(quarter, quarter);\n"
    (tmp_path / "quarter.cc").write_text(HEADERS + USES_C + export)
    monkeypatch.setenv("CC", f"'{wrapper}' -DX")
    for divisor in (2, 4):
        wrapper.write_text(f'#!/bin/sh\nexec cc -DDIVISOR={divisor} "$@"\n# {"x" * divisor}\n')
        wrapper.chmod(0o755)
        files = [tmp_path / "quarter.cc", tmp_path / "half.c"]
        assert cpp_jit.load("cc", sources=files).quarter(16.0) == 16 / divisor**2
