"""Exported notebooks show the report, as a user exports them, and where widget state was stored."""

from __future__ import annotations

import copy
import os
import re
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from nbconvert import HTMLExporter, MarkdownExporter
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_notebook

from tests.tpkernel.shell import SOFTPLUS
from tpkernel.nbconvert import PreferHtml

pytestmark = pytest.mark.slow

FACTS = ("mylib::softplus(Tensor x, float beta=1.0)", "✔ pass", "grad * sigmoid(beta * x)")
VIEW = "application/vnd.jupyter.widget-view+json"
STATE = "application/vnd.jupyter.widget-state+json"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a notebook that ``nbconvert --execute`` ran, and the page it made."""
    folder = tmp_path_factory.mktemp("nbconvert")
    sources = ("%load_ext tensorplay", f"%%tpkernel\n{SOFTPLUS}")
    nbformat.write(
        new_notebook(cells=[new_code_cell(source) for source in sources]), folder / "plain.ipynb"
    )
    command = [sys.executable, "-m", "nbconvert", "--execute", "--log-level=ERROR"]
    options = (("--to=html", "--output=page"), ("--to=notebook", "--output=run"))
    environment = {**os.environ, "JUPYTER_CONFIG_DIR": str(folder / "none")}
    for option in options:
        subprocess.run(
            [*command, *option, "plain.ipynb"], cwd=folder, check=True, timeout=200, env=environment
        )
    return folder


@pytest.fixture
def executed(folder: Path) -> NotebookNode:
    return nbformat.read(folder / "run.ipynb", as_version=4)


def text_of(html: str) -> str:
    """Return the text of an exported page behind the cell's own source."""
    return re.sub(r"<[^>]+>", "", html).replace("&gt;", ">")


def test_nbconvert_shows_the_report_without_any_option(folder: Path) -> None:
    page = (folder / "page.html").read_text("utf-8")
    shown = text_of(page)
    for fact in FACTS:
        assert fact in shown
    assert "Operator check (opcheck)" in shown
    assert f'<script type="{VIEW}">' not in page  # what would be empty without a network


def test_an_executed_notebook_holds_the_static_form_and_the_summary(executed: NotebookNode) -> None:
    (output,) = executed.cells[1].outputs
    assert VIEW not in output.data
    assert output.data["text/html"].startswith("<div>")
    assert len(output.data["text/plain"].splitlines()) <= 25


@pytest.fixture(params=[False, True], ids=["without state", "with state"])
def saved(request: pytest.FixtureRequest, executed: NotebookNode) -> NotebookNode:
    """Return the notebook as JupyterLab saves it: with the view, and perhaps with its state."""
    notebook = copy.deepcopy(executed)
    view = {"model_id": "0123", "version_major": 2, "version_minor": 0}
    notebook.cells[1].outputs[0].data[VIEW] = view
    model = {"model_name": "AnyModel", "model_module": "anywidget", "state": {}}
    states = {STATE: {"version_major": 2, "version_minor": 0, "state": {"0123": model}}}
    notebook.metadata["widgets"] = states if request.param else {STATE: {"state": {}}}
    return notebook


def test_a_saved_notebook_is_exported_with_the_report(saved: NotebookNode) -> None:  # B017
    page, _ = HTMLExporter(preprocessors=[PreferHtml]).from_notebook_node(saved)
    shown = text_of(page)
    for fact in FACTS:
        assert fact in shown
    assert "model_id" not in page
    markdown, _ = MarkdownExporter(preprocessors=[PreferHtml]).from_notebook_node(saved)
    for fact in FACTS:
        assert fact in text_of(markdown)


@pytest.mark.parametrize("above", ["", "# half\n\n// of it\n"], ids=["alone", "under a comment"])
def test_cells_are_coloured_as_cpp(above: str) -> None:  # B065
    cpp = above + "%%tpkernel\n// it's half\ndouble half(double x) { return x / 2; }"
    notebook = new_notebook(cells=[new_code_cell(cpp), new_code_cell("text = '%%tpkernel'")])
    notebook.metadata["language_info"] = {"name": "python", "pygments_lexer": "ipython3"}
    page, _ = HTMLExporter(preprocessors=[PreferHtml]).from_notebook_node(notebook)
    assert '<span class="kt">double</span>' in page
    assert re.search(r"""<span class="c1">// it(?:'|&#39;)s half""", page)
    assert page.count('<span class="n">text</span>') == 1  # Python stays Python
