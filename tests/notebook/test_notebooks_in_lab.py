"""Every notebook in a real JupyterLab: its cells run without an error, its reports are widgets."""

from __future__ import annotations

import re
from pathlib import Path

import nbformat
import pytest
from nbformat import NotebookNode
from playwright.sync_api import expect

from tests.notebook.lab import LabBrowser, NotebookTab

FOLDER = Path(__file__).resolve().parents[2] / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))

pytestmark = [pytest.mark.browser, pytest.mark.slow]


def reporting_cells(notebook: NotebookNode) -> list[int]:
    """Return the positions of the cells that show a report."""
    return [
        index
        for index, cell in enumerate(notebook.cells)
        if cell.cell_type == "code"
        and cell.source.startswith("%%tpkernel")
        and "--expect-error" not in cell.source
    ]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_runs_in_the_browser_with_all_its_widgets(path: Path, lab: LabBrowser) -> None:
    notebook = nbformat.read(path, as_version=4)
    with lab.open(notebook) as tab:
        tab.run_all()
        for index in reporting_cells(notebook):
            report = tab.output(index)
            tabs = report.get_by_role("tab")
            expect(tabs.first).to_be_visible()
            expect(report.get_by_role("tabpanel").first).to_be_visible()
        check_pictures(tab, notebook)
        assert tab.panel.locator("[data-mime-type*=error]").count() == 0
        take_screenshots(tab, notebook, path.stem)
        assert tab.problems == []


def check_pictures(tab: NotebookTab, notebook: NotebookNode) -> None:
    """Expect a picture below each cell that draws one."""
    for index, cell in enumerate(notebook.cells):
        draws = cell.cell_type == "code" and re.search(r"^figure, .*plt", cell.source, re.MULTILINE)
        if draws:
            expect(tab.output(index).locator("img").first).to_be_visible()


def take_screenshots(tab: NotebookTab, notebook: NotebookNode, name: str) -> None:
    """Keep a picture of the first two reports and of what stands at the end."""
    for number, index in enumerate(reporting_cells(notebook)[:2]):
        tab.output(index).scroll_into_view_if_needed()
        tab.screenshot(f"{name}-report-{number}")
    tab.cell(len(notebook.cells) - 1).scroll_into_view_if_needed()
    tab.screenshot(f"{name}-end")
