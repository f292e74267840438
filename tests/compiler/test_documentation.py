"""The examples of docs/compile.md run from top to bottom and print what they say."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path

import tensorplay as tp
from tensorplay import compiler, graph

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "compile.md").read_text("utf-8")
FENCED = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
INTERNAL = {"CompileReport", "CompiledFunction", "Explanation", "GraphCaptureError", "compile"}


def test_the_examples_print_what_the_page_says() -> None:
    scope: dict[str, object] = {"__name__": "docs_compile"}
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown):
        for text in FENCED.findall(PAGE):
            exec(compile(text, "compile.md", "exec"), scope)
    assert [line.rstrip() for line in shown.getvalue().splitlines() if line.strip()] == [
        "[-0.0454, -0.1588, 0.0, 0.8412, 1.9546]",
        "[-0.0861, -0.083, 0.5, 1.083, 1.0861]",
        "to write and read it takes less time than tanh would again",
        "1",
        "x: float32 became float64",
        """3.0 ("global 'scale' is 2.0 no longer",)""",
        "1",
        "3 0",
        "[2.0, 2.0] 0 1",
        "True",
        "def forward(self, x):",
        "    mul = operators.mul(x, 2)  # float32[2]",
        "    relu = operators.relu(mul)  # float32[2]",
        "    mul = None",
        "    return (relu,)",
        "2 steps",
        "[2.0, 2.0]",
        "def forward(self, x, y):",
        "    add = operator.add(x, y)",
        "    tanh = add.tanh()",
        "    add = None",
        "    mul = operator.mul(tanh, 2)",
        "    tanh = None",
        "    return mul",
    ]


def test_the_page_names_what_is_public() -> None:
    for name in compiler.__all__:
        assert name in INTERNAL or name in PAGE, name
    for name in ("symbolic_trace", "Tracer", "Interpreter", "Transformer", "replace_pattern"):
        assert hasattr(graph, name)
        assert name in PAGE


def test_the_readme_leads_to_the_page() -> None:
    assert "docs/compile.md" in (ROOT / "README.md").read_text("utf-8")


def test_it_is_public() -> None:
    assert {"compile", "compiler", "graph"} <= set(tp.__all__)
    assert tp.compile is compiler.compile
