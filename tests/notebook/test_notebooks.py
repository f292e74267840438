"""Every notebook of the repository runs from top to bottom, and says the same when it is saved."""

from __future__ import annotations

import functools
import re
from html.parser import HTMLParser
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient
from nbconvert import HTMLExporter, MarkdownExporter
from nbformat import NotebookNode
from playwright.sync_api import expect

from tests.notebook.lab import LabBrowser

FOLDER = Path(__file__).resolve().parents[2] / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
FIRST = FOLDER / "01_first_kernel.ipynb"

WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"

pytestmark = pytest.mark.slow


class VisibleText(HTMLParser):
    """Collects the text of a page as it is read with scripts and styles taken away."""

    def __init__(self) -> None:
        super().__init__()
        self.parts: list[str] = []
        self._hidden = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._hidden += tag in {"script", "style"}

    def handle_endtag(self, tag: str) -> None:
        self._hidden -= tag in {"script", "style"}

    def handle_data(self, data: str) -> None:
        if not self._hidden:
            self.parts.append(data)

    @classmethod
    def of(cls, page: str) -> str:
        reader = cls()
        reader.feed(page)
        return " ".join(" ".join(reader.parts).split())


@functools.cache
def execute(path: Path) -> NotebookNode:
    """Return a notebook as it is after all cells have run; a cell that raises fails here."""
    notebook = nbformat.read(path, as_version=4)
    client = NotebookClient(
        notebook,
        timeout=180,
        kernel_name="python3",
        resources={"metadata": {"path": str(FOLDER)}},
        store_widget_state=False,  # with it nbconvert drops the static form of each widget
    )
    client.execute()
    return notebook


def schemas(notebook: NotebookNode) -> list[str]:
    """Return what the cells declare, which a person must be able to read in a saved copy."""
    return [
        schema
        for cell in notebook.cells
        if cell.source.startswith("%%tpkernel") and "--expect-error" not in cell.source
        for schema in re.findall(r"^ *(?:- )?op: (.+)$", cell.source, re.MULTILINE)
    ]


@pytest.fixture(params=NOTEBOOKS, ids=lambda path: path.stem)
def executed(request: pytest.FixtureRequest) -> NotebookNode:
    return execute(request.param)


def test_there_is_a_first_notebook() -> None:
    assert FIRST in NOTEBOOKS


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_is_kept_without_outputs(path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    assert "widgets" not in notebook.metadata
    assert notebook.metadata.kernelspec.name == "python3"
    for cell in notebook.cells:
        if cell.cell_type == "code":
            assert cell.outputs == [], cell.source
            assert cell.execution_count is None, cell.source


def test_every_cell_ran_and_none_raised(executed: NotebookNode) -> None:
    code = [cell for cell in executed.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))
    for cell in code:
        assert all(output.output_type != "error" for output in cell.outputs), cell.source


def test_every_widget_has_a_static_form(executed: NotebookNode) -> None:
    for cell in executed.cells:
        for output in cell.get("outputs", []):
            data = output.get("data", {})
            if WIDGET_VIEW in data:
                assert "text/plain" in data, cell.source


def test_saved_copy_shows_schemas_and_verdicts_without_the_widget(executed: NotebookNode) -> None:
    page, _ = HTMLExporter().from_notebook_node(executed)
    text, _ = MarkdownExporter().from_notebook_node(executed)
    declared = schemas(executed)
    for shown in (VisibleText.of(page), VisibleText.of(text)):
        for schema in declared:
            # The cell's own text has it once; its report says it again.
            assert shown.count(" ".join(schema.split())) >= 2, schema
        if declared:
            assert "gradcheck" in shown.lower()


@pytest.mark.browser
def test_saved_page_is_readable_without_scripts(lab: LabBrowser, tmp_path: Path) -> None:
    executed = execute(FIRST)
    file = tmp_path / "saved.html"
    file.write_text(HTMLExporter().from_notebook_node(executed)[0])
    with lab.static_page(file) as page:
        for schema in schemas(executed):
            expect(page.get_by_text(schema, exact=False).first).to_be_visible()
        expect(page.get_by_text("gradcheck").first).to_be_visible()
