"""What a notebook keeps: saved and opened again, after a crash, run again and again, scrolled."""

from __future__ import annotations

import pytest
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_notebook
from playwright.sync_api import Locator, expect

from tests.notebook.lab import LabBrowser, NotebookTab
from tests.tpkernel.shell import SLOW, SOFTPLUS

pytestmark = [pytest.mark.browser, pytest.mark.slow]

LOAD = "%load_ext tensorplay\nimport tensorplay as tp"
BROKEN = "int64_t f() {\n  return undeclared + 1;\n}"
WARNED = SOFTPLUS.replace("  for", "  int64_t unused = 1;\n  for")
VIEW = "application/vnd.jupyter.widget-view+json"

IS_TRUSTED = """() => window.jupyterapp.shell.currentWidget.content.widgets
  .every(cell => cell.model.type !== 'code' || cell.model.trusted)"""


def notebook_of(*sources: str) -> NotebookNode:
    return new_notebook(cells=[new_code_cell(source) for source in sources])


def editor(tab: NotebookTab, index: int) -> Locator:
    return tab.cell(index).locator(".cm-content")


def test_what_is_saved_is_there_when_it_is_opened_again(lab: LabBrowser) -> None:
    """A trusted notebook: JupyterLab itself would show *Error displaying widget*."""
    cells = (
        LOAD,
        f"%%tpkernel\n{SOFTPLUS}",
        f"%%tpkernel\n{BROKEN}",
        f"%%tpkernel --flags=-Wall\n{WARNED.replace('softplus', 'warned')}",
    )
    with lab.open(notebook_of(*cells)) as tab:
        for index in range(4):
            tab.run_cell(index)
        expect(tab.output(1).get_by_role("tab", name="Gradcheck")).to_be_visible()
        warning = editor(tab, 3).locator(".tpk-under-warning")
        expect(warning).to_have_text("unused")
        expect(tab.cell(3).locator(".tpk-sign[title*=unused]")).to_have_text("▲")
        saved = tab.save()
        assert VIEW in saved.cells[1].outputs[0].data
        tab.reopen()
        assert tab.page.evaluate(IS_TRUSTED)
        report = tab.output(1)
        expect(report).to_contain_text("mylib::softplus(Tensor x, float beta=1.0) -> Tensor")
        expect(report.locator("summary", has_text="Gradcheck: ✔ pass")).to_be_visible()
        expect(tab.panel).not_to_contain_text("Error displaying widget")
        expect(editor(tab, 2).locator(".tpk-under-error")).to_have_text("undeclared")
        expect(tab.cell(2).locator(".tpk-sign[title*=undeclared]")).to_have_text("●")
        expect(warning).to_have_text("unused")
        tab.screenshot("opened-again")
        tab.set_source(2, f"%%tpkernel\n{BROKEN.replace('undeclared', '41')}")
        expect(editor(tab, 2).locator(".tpk-under-error")).to_have_count(0)
        for index in range(3):
            tab.run_cell(index)
        expect(report.get_by_role("tab", name="Gradcheck")).to_be_visible()
        expect(tab.output(2)).to_contain_text("int64_t f()")
        # ipywidgets writes this to the console, each time that it is asked for the model.
        assert [p for p in tab.problems if "widget model not found" not in p] == []


POKE = """%%tpkernel --no-check
void poke(tvm::ffi::TensorView x, int64_t n) {
  auto* p = static_cast<float*>(x.data_ptr());
  for (int64_t i = 0; i < n; ++i) p[i * 1000000] = 1;
}"""


def test_after_a_crash_in_the_session_the_first_load_says_which_cell_died(lab: LabBrowser) -> None:
    # B001
    cells = (LOAD, POKE, "import numpy as np\npoke(np.zeros((3, 4), 'float32'), 10_000_000)")
    with lab.open(notebook_of(*cells)) as tab:
        tab.run_cell(0)
        tab.run_cell(1)
        number = tab.cell(1).locator(".jp-InputPrompt").inner_text().strip(":")
        tab.run_cell(2, wait=False)
        dialog = tab.page.get_by_role("dialog")
        expect(dialog).to_contain_text("Kernel Restarting")
        dialog.get_by_role("button").last.click()
        expect(dialog).to_have_count(0)
        tab.wait_until_idle()
        tab.run_cell(0)
        told = tab.output(0)
        expect(told).to_contain_text(f"poke(x float32 (3, 4), n=10000000) of In{number}")
        expect(told).to_contain_text("called from line 2 of a cell (Segmentation fault)")
        tab.screenshot("told-after-a-crash")
        tab.set_source(0, "%reload_ext tensorplay")
        tab.run_cell(0)
        expect(told).to_have_text("")  # it is told once
        # The kernel is gone, and with it the widgets of the outputs that are still shown.
        known = ("Kernel", "widget model not found")
        assert [p for p in tab.problems if not any(t in p for t in known)] == []


def test_a_cell_that_is_run_again_and_again_does_not_grow_the_notebook(lab: LabBrowser) -> None:
    # B063: also where JupyterLab saves the state of widgets
    toggle = "@jupyter-widgets/jupyterlab-manager:saveWidgetState"
    with lab.open(notebook_of(LOAD, f"%%tpkernel\n{SOFTPLUS}", "1 + 1")) as tab:
        tab.run_cell(0)
        tab.command(toggle)
        try:
            sizes = []
            for times in (1, 20):
                for _ in range(times):
                    tab.run_cell(1)
                expect(tab.output(1).get_by_role("tab", name="Gradcheck")).to_be_visible()
                saved = tab.save()
                state = saved.metadata.widgets["application/vnd.jupyter.widget-state+json"]["state"]
                sizes.append((len(state), tab.file.stat().st_size))
        finally:
            tab.command(toggle)
        (models, before), (later, after) = sizes
        assert 0 < models <= 10
        assert later == models
        assert abs(after - before) < 2000
        tab.save()
        assert tab.file.stat().st_size < 200_000
        assert tab.problems == []


@pytest.mark.parametrize("mode", ["full", "contentVisibility"])
def test_cells_that_were_scrolled_away_come_back_as_they_were(lab: LabBrowser, mode: str) -> None:
    """JupyterLab takes cells out of the page, and makes their editors anew."""
    cells = [LOAD, f"%%tpkernel\n{BROKEN}", f"%%tpkernel\n{SOFTPLUS}"]
    notebook = notebook_of(*cells, *(f"# {n}\n" + "\n" * 30 for n in range(30)))
    with lab.open(
        notebook, settings={"notebook-extension/tracker": {"windowingMode": mode}}
    ) as tab:
        for index in range(3):
            tab.run_cell(index)
        tab.command("notebook:move-cursor-down")
        broken = tab.panel.locator(".jp-Cell", has_text="undeclared + 1")
        mark = broken.locator(".tpk-under-error")
        expect(mark).to_have_text("undeclared")
        show = "at => window.jupyterapp.shell.currentWidget.content.scrollToItem(at)"
        tab.page.evaluate(show, 32)
        expect(tab.panel.locator(".jp-Cell", has_text="# 29")).to_be_visible()
        expect(mark).not_to_be_in_viewport()
        tab.page.evaluate(show, 1)
        expect(mark).to_be_in_viewport()
        expect(mark).to_have_text("undeclared")
        report = tab.panel.locator(".jp-Cell", has_text="mylib::softplus")
        tab.page.evaluate(show, 2)
        report.get_by_role("tab", name="Gradcheck").click()
        expect(report.get_by_role("table", name="Gradcheck")).to_contain_text("✔ pass")
        assert tab.problems == []


def test_a_cell_shows_nothing_of_the_work_behind_anothers_button(lab: LabBrowser) -> None:  # B059
    with lab.open(notebook_of(LOAD, f"%%tpkernel\n{SLOW}", "print('other cell')")) as tab:
        tab.run_cell(0)
        tab.run_cell(1)
        report = tab.output(1)
        report.get_by_role("tab", name="Gradcheck").click()
        report.get_by_label("Shape of x").fill("77")
        report.get_by_role("button", name="Run gradcheck again").click()
        expect(report.get_by_role("status")).to_contain_text("mylib::slow on x (77,)")
        tab.run_cell(2)
        expect(tab.output(2)).to_have_text("other cell")
        report.get_by_role("button", name="Cancel").click()
        expect(report.get_by_role("alert")).to_contain_text("Cancelled")
        tab.wait_until_idle()
        expect(tab.output(2)).to_have_text("other cell")
        assert tab.problems == []
