"""The same cells through clang++ and through ziglang, and a compiler that changes."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tensorplay.utils import cpp_jit
from tensorplay.utils.cpp_jit import compile as compile_, store, support, toolchain
from tests.benchmarks.build import CASES

REPOSITORY = Path(__file__).parents[3]


@pytest.fixture
def clang(monkeypatch: pytest.MonkeyPatch) -> str:
    """Make clang++ the compiler."""
    found = shutil.which("clang++")
    if found is None:
        pytest.skip("clang++ is not installed")
    monkeypatch.setenv("CXX", found)
    return found


def edits(case, name: str) -> list[cpp_jit.Build]:
    """Build a text until its precompiled header is there and was used once."""
    built: list[cpp_jit.Build] = []
    for number in range(8):
        text = cpp_jit.Source(f"{case.text}\n// edit {number}\n", "In[7]")
        built.append(cpp_jit.build_source(name, text, exports=case.functions))
        if precompiled(built[-1]):
            break
        support.wait_for_background(200)
    return built


def precompiled(built: cpp_jit.Build) -> bool:
    return any("/precompiled/" in word for word in built.commands[-1])


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.label)
def test_clang_builds_every_cell_with_its_own_precompiled_headers(clang, case):
    built = edits(case, "clang")
    assert precompiled(built[-1])
    assert "-include-pch" in built[-1].commands[-1]
    assert len(built[-1].commands) == 1
    assert built[-1].rung == ("full" if "full" in case.label else "light")
    for made in (built[0], built[-1]):
        case.call(made.load())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ("int64_t f() {\n  return valeu;\n}", 2, "use of undeclared identifier 'valeu'"),
        ("#include <vector>\nint64_t f() { return std::vector<int>{1}.sise(); }", 2, "no member"),
        ("int64_t f() {\n  return 1\n}", 2, "expected ';'"),
        ("int64_t g();\nint64_t f() { return g(); }", 1, "declared and used but not defined"),
    ],
)
def test_clangs_diagnostics_stand_at_the_persons_lines(clang, text, line, message):
    with pytest.raises(cpp_jit.BuildError) as caught:
        cpp_jit.build_source("wrong", cpp_jit.Source(text, "In[3]"), exports=["f"])
    first = caught.value.diagnostics[0]
    assert (first.file, first.line) == ("In[3]", line)
    assert message in first.message
    assert len(caught.value.commands) == 1


@pytest.mark.slow
def test_errors_of_calls_and_of_kernels_are_the_same_from_clang(clang):
    text = """
    #include <stdexcept>
    void thrower(int64_t which) {
      if (which == 0) throw 42;
      if (which == 1) throw std::out_of_range("far");
      TVM_FFI_THROW(KeyError) << "no " << which;
    }
    """
    outcomes = []
    for compiler in (clang, ""):
        os.environ["CXX"] = compiler  # restored by the fixture
        module = cpp_jit.load_inline("thrower", cpp_sources=text, functions="thrower")
        for argument in (0, 1, 2, "x"):
            with pytest.raises(Exception, match=r".") as caught:
                module.thrower(argument)
            outcomes.append((type(caught.value), str(caught.value)))
    assert outcomes[:4] == outcomes[4:]


@pytest.mark.slow
def test_a_precompiled_header_that_is_damaged_is_not_needed(clang):
    built = edits(CASES[0], "spoiled")[-1]
    word = next(word for word in built.commands[-1] if "/precompiled/" in word)
    content = Path(word).read_bytes()
    Path(word).write_bytes(content[:200] + bytes(len(content) - 200))  # of the right size
    text = cpp_jit.Source(CASES[0].text + "\n// once more\n")
    with pytest.warns(cpp_jit.BuildCacheWarning, match="damaged or incomplete; it is built again"):
        again = cpp_jit.build_source("spoiled", text, exports=CASES[0].functions)
    CASES[0].call(again.load())


@pytest.mark.parametrize("program", ["g++", "clang++"])
def test_a_changed_compiler_trusts_nothing_of_the_one_before(
    program, tmp_path, monkeypatch, missing
):
    if shutil.which(program) is None:
        end = missing if program == "g++" else pytest.skip
        end(f"{program} is not installed")
    wrapper = tmp_path / "cxx"
    wrapper.write_text(f'#!/bin/sh\nexec {program} "$@"\n')
    wrapper.chmod(0o755)
    monkeypatch.setenv("CXX", str(wrapper))
    headers = support.headers_for("light", [], (), whole=False)
    asked: list[str] = []
    monkeypatch.setattr(support, "_in_background", lambda *words: asked.append(words[-1]))
    traits = toolchain.Traits("gcc" if program == "g++" else "clang", "1", precompiles=True)
    cache = store.cache_at(tmp_path / "cache")
    identities = []
    for change in range(2):
        compiler = toolchain.find_compiler()
        identities.append(compiler.identity)
        assert support.precompiled(cache, compiler, traits, headers) is None
        with wrapper.open("a") as file:
            file.write(f"# update {change}\n")
    for other in (
        support.headers_for("light", [], ("-O3",), whole=False),
        support.headers_for("light", ["string"], (), whole=False),
    ):
        assert support.precompiled(cache, toolchain.find_compiler(), traits, other) is None
    assert identities[0] != identities[1]
    assert len(set(asked)) == 4


ZIG = """
import json, sys, warnings
from tensorplay.utils import cpp_jit
from tensorplay.utils.cpp_jit import toolchain

with warnings.catch_warnings(record=True) as notes:
    warnings.simplefilter("always")
    text = '''
    #include <cmath>
    #include <vector>
    double norm(tvm::ffi::TensorView x) {
      std::vector<double> v(static_cast<double*>(x.data_ptr()),
                            static_cast<double*>(x.data_ptr()) + x.numel());
      TVM_FFI_CHECK(x.numel() > 0, ValueError) << "empty: " << x.dtype();
      double sum = 0;
      for (double e : v) sum += e * e;
      return std::sqrt(sum);
    }
    void odd() { throw 42; }
    '''
    module = cpp_jit.load_inline("zig", cpp_sources=text, functions=["norm", "odd"])
import numpy as np
found = [module.norm(np.array([3.0, 4.0]))]
for call in (lambda: module.norm(np.zeros(0)), module.odd, lambda: module.norm("x")):
    try:
        call()
    except Exception as error:
        found.append(f"{type(error).__name__}: {error}")
built = cpp_jit.build_source("zig2", cpp_jit.Source("int64_t f() { return 2; }"), exports=["f"])
found.append([built.rung, built.load().f(), built.commands[-1][1:4]])
print(json.dumps([found, [str(note.message) for note in notes]]))
"""


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_without_any_compiler_ziglang_builds_and_says_what_its_first_use_costs(tmp_path):
    look = "import importlib.util as u; print(u.find_spec('ziglang') is not None)"
    has = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, check=True)
    if has.stdout.strip() != "True":
        pytest.skip("ziglang is not installed")
    environment = {
        **os.environ,
        "PATH": "",
        "CXX": "",
        "PYTHONPATH": os.pathsep.join(filter(None, (str(REPOSITORY), os.getenv("PYTHONPATH")))),
        "TENSORPLAY_CACHE_DIR": str(tmp_path / "cache"),
        # What it builds at its first use may be kept between runs of the tests.
        "ZIG_GLOBAL_CACHE_DIR": os.environ.get("ZIG_GLOBAL_CACHE_DIR", str(tmp_path / "zig")),
    }
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.prefix = '/nowhere'\n{ZIG}"],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=850,
    )
    assert done.returncode == 0, done.stderr

    found, notes = json.loads(done.stdout)
    assert found[0] == 5.0
    assert "ValueError: " in found[1]
    assert "empty: float64" in found[1]
    assert found[2] == "RuntimeError: kernel threw a value of type int"
    assert "Expected `DLTensor*` but got `ffi.SmallStr`" in found[3]
    assert found[4] == ["light", 2, ["-m", "ziglang", "c++"]]
    assert any("ziglang" in note and "some minutes, once" in note for note in notes)


def test_a_precompiled_header_at_fault_is_recognised():
    for output in (
        "error: PCH file '/x.pch' not found",
        "fatal error: file 'a.h' has been modified since the precompiled header 'b' was built",
        "internal compiler error: Segmentation fault",
    ):
        assert compile_._PRECOMPILED_AT_FAULT.search(output)
    assert not compile_._PRECOMPILED_AT_FAULT.search("error: expected ';' after return")
