"""The stub files show what operators attach; they are generated, and have to be current."""

from __future__ import annotations

import ast
import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

import tensorplay as tp
from tensorplay._methods import TensorMethods
from tensorplay.ops import stubs

PACKAGE = Path(tp.__file__).parent
COMMAND = "python -m tensorplay.ops.stubs"

USES = """\
from typing_extensions import assert_type

import tensorplay as tp
from tensorplay import Tensor

x: Tensor = tp.ones(2, 3, dtype=tp.float64, requires_grad=True)
y: Tensor = (x.exp() + tp.sum(x, dim=0) * 2).reshape(3, 2).int().float()
z: list[Tensor] = [part for part in x.unbind(0)]
assert_type(tp.relu(x), Tensor)
assert_type(x.to(tp.float32).t(), Tensor)
assert_type(x.add_(1), Tensor)
n: int = x.shape[0] + x.size(0) + x.numel()
x.backward()
"""


@pytest.mark.parametrize(
    ("file", "text"),
    [("_methods.pyi", stubs.methods_stub()), ("_functions.pyi", stubs.functions_stub())],
)
def test_stub_files_are_current(file: str, text: str) -> None:
    assert (PACKAGE / file).read_text(encoding="utf-8") == text, f"run {COMMAND}"


def test_stubs_list_everything() -> None:
    (methods,) = [n for n in ast.parse(stubs.methods_stub()).body if isinstance(n, ast.ClassDef)]
    listed = {n.name for n in methods.body if isinstance(n, ast.FunctionDef)}
    attached = {n for n, m in vars(TensorMethods).items() if callable(m) or isinstance(m, property)}
    assert attached <= listed
    functions = {n.name for n in ast.parse(stubs.functions_stub()).body
                 if isinstance(n, ast.FunctionDef)}  # fmt: skip
    assert functions == set(tp._functions.__all__)
    assert {"exp", "matmul", "cat", "where"} <= functions


def test_signatures_are_those_of_the_schemas() -> None:
    text = stubs.functions_stub()
    assert "def exp(input: Tensor, *, out: Tensor | None = ...) -> Tensor: ..." in text
    assert "def unbind(input: Tensor, dim: _int = ...) -> tuple[Tensor, ...]: ..." in text


@pytest.mark.slow
def test_mypy_accepts_stubs_and_uses(tmp_path: Path) -> None:
    if importlib.util.find_spec("mypy") is None:
        pytest.skip("mypy is not installed")
    program = tmp_path / "uses.py"
    program.write_text(USES, encoding="utf-8")
    result = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--follow-imports=silent",
         f"--cache-dir={tmp_path / 'cache'}", str(program), str(PACKAGE / "_methods.pyi"),
         str(PACKAGE / "_functions.pyi")],
        capture_output=True, text=True, check=False, cwd=tmp_path,
    )  # fmt: skip
    assert result.returncode == 0, result.stdout
