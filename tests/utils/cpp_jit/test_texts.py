"""What a wrong call says: the operation, what was expected and got, and what to write."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

import pytest

from tensorplay.utils import cpp_jit

TEXT = "int64_t f() { return 1; }"
FOLDER = Path(cpp_jit.__file__).parent


@pytest.mark.parametrize(
    ("given", "kind", "text"),
    [
        ({"extra_cflags": "-O3"}, TypeError, "got the text '-O3'. Write extra_cflags=['-O3'"),
        ({"extra_cflags": ["-c"]}, ValueError, "got '-c', with which none comes out. Leave it out"),
        ({"extra_ldflags": ["-fsanitize=address"]}, ValueError, "Leave it out, or use"),
        ({"extra_include_paths": "/x"}, TypeError, "Write extra_include_paths=['/x']."),
        ({"backend": "metal"}, ValueError, "got 'metal'. Leave it out"),
        ({"other": 1}, TypeError, "unexpected argument 'other'. Arguments: backend, "),
        (
            {"cpp_sources": 3},
            TypeError,
            "expected text or a sequence of texts, got int. Write",
        ),
        ({"functions": [3]}, TypeError, "texts, got int. Write functions=['…']."),
        ({"cpp_sources": None}, ValueError, "got none. Write load for source files."),
    ],
)
def test_a_wrong_argument(given: dict[str, Any], kind: type[Exception], text: str) -> None:
    options: Any = {"cpp_sources": TEXT, "functions": "f", **given}
    with pytest.raises(kind, match=r"^\[cpp_jit\] .*" + re.escape(text)):
        cpp_jit.load_inline("wrong", **options)


def test_files_that_are_not_there(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"^\[cpp_jit\] .*no file .*a\.cc\. Paths are from"):
        cpp_jit.build("x", cpp_files=[tmp_path / "a.cc"])
    with pytest.raises(ValueError, match=r"^\[cpp_jit\] .*got none\. Write cpp_files="):
        cpp_jit.build("x")


def test_a_library_that_cannot_be_loaded(tmp_path: Path) -> None:
    where = r"^\[load_module\] argument 'path': expected a shared library"
    for absent in (tmp_path / "no.so", tmp_path):
        with pytest.raises(RuntimeError, match=rf"{where}, and there is no file .* Write the path"):
            cpp_jit.load_module(absent)
    damaged = tmp_path / "damaged.so"
    damaged.write_bytes(b"x" * 5000)
    with pytest.raises(RuntimeError, match=where) as raised:
        cpp_jit.load_module(damaged)
    assert re.search(r"got \S+damaged\.so: .*[Bb]uild it again", str(raised.value))
    assert "Check failed" not in str(raised.value)
    assert isinstance(raised.value.__cause__, RuntimeError)


def test_no_module_uses_private_names_of_another() -> None:
    modules = {path.stem for path in FOLDER.glob("*.py")}
    for path in FOLDER.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                private = node.attr.startswith("_") and not node.attr.startswith("__")
                assert not (private and node.value.id in modules), f"{path.name}:{node.lineno}"
