"""The helper itself: it must see what a person would see, and notice what a person would not."""

from __future__ import annotations

import pytest
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook
from playwright.sync_api import expect

from tests.notebook.lab import LabBrowser

pytestmark = [pytest.mark.browser, pytest.mark.slow]

COUNTER = """
import anywidget, traitlets

class Counter(anywidget.AnyWidget):
    _esm = '''
    function render({ model, el }) {
      const button = document.createElement("button");
      const show = () => {
        button.textContent = `pressed ${model.get("count")}, twice ${model.get("twice")}`;
      };
      button.addEventListener("click", () => {
        model.set("count", model.get("count") + 1);
        model.save_changes();
      });
      model.on("change", show);
      show();
      el.append(button);
    }
    export default { render };
    '''
    count = traitlets.Int(0).tag(sync=True)
    twice = traitlets.Int(0).tag(sync=True)

    @traitlets.observe("count")
    def _double(self, change):
        self.twice = 2 * change["new"]

Counter()
"""

FETCH = "from IPython.display import Javascript\nJavascript('fetch(\"http://192.0.2.1/x\")')"


def notebook_of(*sources: str) -> NotebookNode:
    return new_notebook(cells=[new_code_cell(source) for source in sources])


def test_click_reaches_kernel_and_comes_back(lab: LabBrowser) -> None:
    with lab.open(notebook_of(COUNTER)) as tab:
        tab.run_all()
        button = tab.output(0).get_by_role("button")
        expect(button).to_have_text("pressed 0, twice 0")
        button.click()
        expect(button).to_have_text("pressed 1, twice 2")  # doubled in the kernel
        tab.screenshot("counter")
        assert tab.problems == []


def test_failing_cell_is_reported_with_its_error(lab: LabBrowser) -> None:
    with (
        lab.open(notebook_of("1 / 0")) as tab,
        pytest.raises(AssertionError, match="ZeroDivisionError"),
    ):
        tab.run_all()


def test_next_notebook_has_a_kernel_of_its_own(lab: LabBrowser) -> None:
    with lab.open(notebook_of("left_over = 1")) as tab:
        tab.run_all()
    with lab.open(notebook_of("'left_over' in globals()")) as tab:
        tab.run_all()
        expect(tab.output(0)).to_contain_text("False")


def test_request_to_another_host_is_refused_and_noted(lab: LabBrowser) -> None:
    with lab.open(notebook_of(FETCH)) as tab:
        with tab.page.expect_event("requestfailed"):
            tab.run_all()
        assert "external request: http://192.0.2.1/x" in tab.problems


def test_cells_are_counted_with_text_cells(lab: LabBrowser) -> None:
    notebook = new_notebook(cells=[new_markdown_cell("Some *text*"), new_code_cell("6 * 7")])
    with lab.open(notebook) as tab:
        tab.run_all()
        expect(tab.cell(0)).to_contain_text("Some text")
        expect(tab.output(1)).to_contain_text("42")


def test_theme_is_set_for_each_notebook(lab: LabBrowser) -> None:
    for theme in ("JupyterLab Dark", "JupyterLab Light"):
        with lab.open(notebook_of("1"), theme=theme) as tab:
            expect(tab.page.locator("body")).to_have_attribute("data-jp-theme-name", theme)
