"""Exported notebooks show the report, with and without stored widget state."""

from __future__ import annotations

import re

import pytest
from nbclient import NotebookClient
from nbconvert import HTMLExporter, MarkdownExporter
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_notebook

from tests.tpkernel.shell import SOFTPLUS
from tpkernel.nbconvert import PreferHtml

FACTS = ("mylib::softplus(Tensor x, float beta=1.0)", "✔ pass", "grad * sigmoid(beta * x)")


@pytest.fixture(scope="module", params=[False, True], ids=["without state", "with state"])
def executed(request: pytest.FixtureRequest) -> NotebookNode:
    sources = ("%load_ext tensorplay", f"%%tpkernel\n{SOFTPLUS}")
    notebook = new_notebook(cells=[new_code_cell(source) for source in sources])
    NotebookClient(
        notebook, timeout=120, kernel_name="python3", store_widget_state=request.param
    ).execute()
    assert ("widgets" in notebook.metadata) is request.param
    return notebook


def outputs(html: str) -> str:
    """Return the text of an exported page behind the cell's own source."""
    return re.sub(r"<[^>]+>", "", html).replace("&gt;", ">")


@pytest.mark.slow
def test_html_shows_the_report_and_asks_no_network(executed: NotebookNode) -> None:  # B017
    page, _ = HTMLExporter(preprocessors=[PreferHtml]).from_notebook_node(executed)
    shown = outputs(page)
    for fact in FACTS:
        assert fact in shown
    assert "Operator check (opcheck)" in shown
    assert "model_id" not in page
    assert "children=" not in shown


@pytest.mark.slow
def test_markdown_shows_the_report(executed: NotebookNode) -> None:
    page, _ = MarkdownExporter(preprocessors=[PreferHtml]).from_notebook_node(executed)
    for fact in FACTS:
        assert fact in outputs(page)
