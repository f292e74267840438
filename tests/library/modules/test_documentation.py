"""docs/operator_modules.md does what it says, from top to bottom."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tpkernel.cells.declarations import MODULE_KEYS
from tpkernel.hatch_plugin import SETTINGS

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "operator_modules.md").read_text("utf-8")
FENCED = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
NAMED = re.compile(r"(?:#|//) ([\w./]+\.\w+)\n")


def documented_files() -> dict[str, str]:
    """Return the files that the page shows, by the name in their first line."""
    named = [(NAMED.match(text), text) for _, text in FENCED.findall(PAGE)]
    return {found[1]: text for found, text in named if found}


@pytest.mark.slow
def test_every_file_command_and_example_of_the_page(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    ran = []
    for name, text in documented_files().items():
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_text(text)
    for language, text in FENCED.findall(PAGE):
        if language == "sh":
            program, *words = shlex.split(text)
            if program == "pip":
                continue  # tests/tpkernel/packaging/test_export.py installs the package
            assert program == "python"
            subprocess.run([sys.executable, *words], check=True)
        elif language == "python" and not NAMED.match(text):
            exec(compile(text, "operator_modules.md", "exec"), names)
        else:
            continue
        ran.append(language)
    assert ran == ["sh", "python", "python", "python", "python"]
    assert Path("cubes/src/cubes/ops.yaml").read_text().startswith("op: mine::cube")
    with pytest.raises(NotImplementedError):
        names["ext"].waiting(names["x"])


def test_the_page_has_every_key_and_setting() -> None:
    for key in MODULE_KEYS:
        assert f"`{key}:" in PAGE, key
    for word in (*SETTINGS, "--", "seal", "show"):
        assert word in PAGE, word
