"""The examples of docs/operators.md run from top to bottom and print what they say."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path

from tensorplay import library

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "operators.md").read_text("utf-8")
FENCED = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def test_the_examples_print_what_the_page_says() -> None:
    scope: dict[str, object] = {"__name__": "docs_operators"}
    shown = io.StringIO()
    try:
        with contextlib.redirect_stdout(shown):
            for text in FENCED.findall(PAGE):
                exec(compile(text, "operators.md", "exec"), scope)
    finally:
        for name in ("cube", "bump", "add_"):
            if library.has_op(f"docs_ops::{name}"):
                library.remove(f"docs_ops::{name}")
    assert shown.getvalue().splitlines() == [
        "docs_ops::cube(Tensor x) -> Tensor",
        "True",
        "(2, 3)",
        "True",
        "{}",
        "undeclared_write",
        "True True",
        "[2.0, 2.0]",
        "[2.0, 2.0]",
    ]


def test_the_page_names_what_is_public() -> None:
    pages = "".join(p.read_text("utf-8") for p in (ROOT / "docs").glob("operator*.md"))
    for name in library.__all__:
        if name in {"CustomOpDef", "OverloadPacket", "OpCheckError", "OpCheckFailure"}:
            continue  # what the functions return and raise
        assert name in pages, name


def test_the_readme_leads_to_the_page() -> None:
    assert "docs/operators.md" in (ROOT / "README.md").read_text("utf-8")
