"""Source trees: files compiled as they are."""

from __future__ import annotations

import pytest

from tensorplay.utils import cpp_jit

KERNEL = r"""
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/function.h>
#include "scale.h"
extern "C" double c_half(double);
void add_one(tvm::ffi::TensorView x, tvm::ffi::TensorView y) {
  for (int64_t i = 0; i < x.numel(); ++i) {
    static_cast<float*>(y.data_ptr())[i] = static_cast<float*>(x.data_ptr())[i] + kStep;
  }
}
double half(double v) { return c_half(v); }
TVM_FFI_DLL_EXPORT_TYPED_FUNC(add_one, add_one);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(half, half);
"""


@pytest.fixture
def tree(tmp_path):
    folder = tmp_path / "source tree"
    folder.mkdir()
    (folder / "kernel.cpp").write_text(KERNEL)
    (folder / "half.c").write_text("double c_half(double v) { return v / 2; }\n")
    (folder / "scale.h").write_text("constexpr float kStep = 1;\n")
    return folder


def test_c_and_cpp_files_make_one_library_that_follows_their_changes(tree):
    import numpy as np

    def load() -> cpp_jit.Module:
        return cpp_jit.load("tree", sources=[tree / "kernel.cpp"], cpp_files=str(tree / "half.c"))

    x, y = np.ones(3, np.float32), np.zeros(3, np.float32)
    module = load()
    module.add_one(x, y)
    assert (y == 2).all()
    assert module.half(3.0) == 1.5
    path = cpp_jit.build("tree", sources=[tree / "kernel.cpp", tree / "half.c"])
    assert cpp_jit.load_module(path).half(1.0) == 0.5
    (tree / "scale.h").write_text("constexpr float kStep = 2;\n")
    load().add_one(x, y)
    assert (y == 3).all()
    (tree / "half.c").write_text("double c_half(double v) { return v / 4; }\n")
    assert load().half(4.0) == 1.0
    assert module.half(4.0) == 2.0


def test_errors_in_files_carry_their_paths(tree):
    (tree / "half.c").write_text("double c_half(double v) {\n  return w;\n}\n")
    with pytest.raises(cpp_jit.BuildError) as caught:
        cpp_jit.load("tree", sources=[tree / "half.c"])
    first = caught.value.diagnostics[0]
    assert first.file == str(tree / "half.c")
    assert (first.line, first.source_line) == (2, "  return w;")
    with pytest.raises(cpp_jit.BuildError, match="`c_half` is declared and used but not defined"):
        cpp_jit.load("tree", sources=[tree / "kernel.cpp"])


def test_sources_must_be_there(tree):
    with pytest.raises(FileNotFoundError, match=r"there is no file .*absent\.cpp"):
        cpp_jit.load("tree", sources=[tree / "absent.cpp"])
    with pytest.raises(ValueError, match="expected source files, got none"):
        cpp_jit.build("tree")


def test_kernels_in_the_process_itself():
    assert not cpp_jit.system_lib("no_such_prefix_").implements_function("f")
