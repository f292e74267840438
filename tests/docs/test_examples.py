"""The examples in docstrings give what they show."""

from __future__ import annotations

import doctest
import importlib
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def modules() -> list[str]:
    """Return the modules with an example, by name."""
    found = []
    for base in (ROOT, ROOT / "magics"):
        for package in ("tensorplay", "tpkernel"):
            for file in sorted((base / package).rglob("*.py")):
                if re.search(r"^ *>>> ", file.read_text("utf-8"), re.MULTILINE):
                    parts = file.relative_to(base).with_suffix("").parts
                    found.append(".".join(parts).removesuffix(".__init__"))
    return found


@pytest.mark.parametrize("name", modules())
def test_examples(name: str) -> None:
    result = doctest.testmod(importlib.import_module(name))
    assert result.attempted > 0
    assert result.failed == 0


def test_modules_with_examples_are_found() -> None:
    assert {"tensorplay.library.custom_op", "tensorplay._creation"} <= set(modules())
