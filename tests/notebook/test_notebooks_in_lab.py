"""Every notebook in a real JupyterLab: its cells run without an error, its reports are widgets."""

from __future__ import annotations

import re
from pathlib import Path

import nbformat
import pytest
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_notebook
from playwright.sync_api import FloatRect, expect

from tests.notebook.lab import LabBrowser, NotebookTab, artifacts_folder

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


def test_picture_for_the_readme(lab: LabBrowser) -> None:
    """`docs/report.png` is this test's screenshot: a cell whose derivative is off by a factor."""
    source = """\
%%tpkernel
/*---
op: mylib::softplus(Tensor x, float beta=2.0) -> Tensor
derivatives:
  x: grad * beta * sigmoid(beta * x)
---*/
template <typename T>
void softplus(tp::In<T> x, double beta, tp::Out<T> out) {
  for (int64_t i = 0; i < x.numel(); ++i) {
    const double z = beta * x[i];  // below, log(1 + exp(z)) without overflow
    out[i] = (std::max(z, 0.0) + std::log1p(std::exp(-std::abs(z)))) / beta;
  }
}"""
    cells = [new_code_cell("%load_ext tensorplay"), new_code_cell(source)]
    with lab.open(new_notebook(cells=cells), fresh=True) as tab:
        tab.run_all()
        report = tab.output(1)
        expect(report.get_by_role("tab", name="Gradcheck")).to_be_visible()
        expect(report).to_contain_text("analytical is 2.00 x numerical")
        folder = artifacts_folder()
        if folder is not None:
            tab.page.set_viewport_size({"width": 1100, "height": 1100})
            box = tab.cell(1).bounding_box()
            assert box is not None
            clip = FloatRect(x=box["x"], y=box["y"], width=box["width"], height=760)
            tab.page.screenshot(path=folder / "report.png", clip=clip)
            tab.page.set_viewport_size({"width": 1280, "height": 1000})
        assert tab.problems == []
