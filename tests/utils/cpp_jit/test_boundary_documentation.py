"""The examples of docs/boundary.md run from top to bottom and print what they say."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path

from tensorplay.utils import cpp_jit

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs" / "boundary.md").read_text("utf-8")
FENCED = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def test_the_examples_print_what_the_page_says() -> None:
    scope: dict[str, object] = {"__name__": "docs_boundary"}
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown):
        for text in FENCED.findall(PAGE):
            exec(compile(text, "boundary.md", "exec"), scope)
    cpp_jit.remove_global_func("docs.twice")
    assert shown.getvalue().splitlines() == [
        (
            "[crossing::total] argument 'x' (position 0): expected Tensor or NumPy array, "
            "got list. Write tp.tensor(x)."
        ),
        "Tensor",
        "['call', 'fails']",
        "[0.0, 2.0, 4.0]",
        "[0.0, 1.0, 4.0]",
    ]


def test_the_readme_leads_to_the_page() -> None:
    assert "docs/boundary.md" in (ROOT / "README.md").read_text("utf-8")
