"""The example of README.md does what README.md says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from nbclient import NotebookClient
from nbformat.v4 import new_code_cell, new_notebook

README = (Path(__file__).resolve().parents[2] / "README.md").read_text()
FENCED = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def example() -> list[tuple[str, str | None]]:
    """Return the cells of the section "A first operator", each with the error it should raise."""
    section = README.partition("## A first operator\n")[2].partition("\n## ")[0]
    cells: list[tuple[str, str | None]] = []
    for language, text in FENCED.findall(section):
        if language == "text":
            cells[-1] = (cells[-1][0], text.strip())
        else:
            cells.append((text, None))
    return cells


@pytest.mark.slow
def test_example_runs_and_raises_as_shown() -> None:
    cells = example()
    assert any(error for _, error in cells)
    notebook = new_notebook(cells=[new_code_cell(source) for source, _ in cells])
    NotebookClient(notebook, timeout=120, kernel_name="python3", allow_errors=True).execute()
    for cell, (source, expected) in zip(notebook.cells, cells, strict=True):
        raised = [
            f"{output.ename}: {output.evalue}"
            for output in cell.outputs
            if output.output_type == "error"
        ]
        assert raised == ([] if expected is None else [expected]), source
