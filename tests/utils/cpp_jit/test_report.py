"""The table of what a machine has for building kernels."""

from __future__ import annotations

import warnings

import pytest

from tensorplay.utils import cpp_jit
from tensorplay.utils.cpp_jit import cuda, toolchain


def test_b036_a_machine_with_a_compiler():
    report = cpp_jit.toolchain_report()
    assert report, str(report)
    checks = {check.name: check for check in report.checks}
    assert checks["build and call"].found.startswith("works")
    assert checks["C++ compiler"].status == "ok"
    assert report.to_dict()["ok"] is True
    for check in report.checks:
        assert f"{check.name} " in str(report)
        assert check.status in {"ok", "absent"}


def test_b036_a_machine_without_one_gets_the_commands(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", "")
    monkeypatch.setenv("TENSORPLAY_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(toolchain.sys, "prefix", str(tmp_path))
    monkeypatch.setattr(cuda, "_USUAL", "/nowhere/nvcc")
    for name in ("CXX", "CUDA_HOME", "CUDA_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(toolchain, "_zig", lambda: None)
    report = cpp_jit.toolchain_report()
    assert not report
    checks = {check.name: check for check in report.checks}
    assert checks["engine"].status == "ok"
    assert checks["C++ compiler"].status == "missing"
    for part in ("apt-get install g++", "conda install", "pip install ziglang"):
        assert part in checks["C++ compiler"].advice
    assert checks["CUDA compiler"].status == "absent"


def test_a_first_use_that_takes_minutes_is_announced_before_it(tmp_path):
    program = tmp_path / "python"
    program.write_text('#!/bin/sh\nshift\nexec c++ "$@"\n')
    program.chmod(0o755)
    with pytest.warns(cpp_jit.BuildCacheWarning, match="takes some minutes, once"):
        toolchain.traits(toolchain.Compiler((str(program), "ziglang"), "zig"), tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        toolchain.traits(toolchain.Compiler((str(program), "other"), "other"), tmp_path)
