"""The first notebook in a real JupyterLab, as a person meets it."""

from __future__ import annotations

import re
from pathlib import Path

import nbformat
import pytest
from nbformat import NotebookNode
from playwright.sync_api import Locator, expect

from tests.notebook.lab import LabBrowser, NotebookTab

pytestmark = [pytest.mark.browser, pytest.mark.slow]

FIRST = Path(__file__).resolve().parents[2] / "notebooks" / "01_first_kernel.ipynb"


def position(notebook: NotebookNode, text: str) -> int:
    """Return the position of the code cell whose source has a text."""
    (found,) = [
        index
        for index, cell in enumerate(notebook.cells)
        if cell.cell_type == "code" and text in cell.source
    ]
    return found


def section(report: Locator, name: str) -> Locator:
    """Choose a section of a report as a person would, and return its panel."""
    report.get_by_role("tab", name=name).click()
    panel = report.get_by_role("tabpanel", name=name)
    expect(panel).to_be_visible()
    return panel


def test_notebook_runs_to_its_end_and_the_report_answers(lab: LabBrowser) -> None:
    notebook = nbformat.read(FIRST, as_version=4)
    with lab.open(notebook) as tab:
        tab.run_all()
        softplus = position(notebook, "op: mylib::softplus(")
        report = tab.output(softplus)
        number = tab.cell(softplus).locator(".jp-InputPrompt").inner_text()
        expect(report).to_contain_text(f"In{number.strip(':')}: mylib::softplus")
        check_report(tab, report)
        check_rerun(tab, report)
        check_mistakes(tab, notebook)
        check_training(tab, notebook)
        assert tab.problems == []


def check_report(tab: NotebookTab, report: Locator) -> None:
    operator = section(report, "Operator")
    expect(operator).to_contain_text("mylib::softplus(Tensor x, float beta=1.0) -> Tensor")
    expect(operator).to_contain_text("register_fake")
    report.scroll_into_view_if_needed()
    tab.screenshot("report-operator")

    gradcheck = section(report, "Gradcheck")
    expect(gradcheck).to_contain_text("✔ pass")
    expect(gradcheck).to_contain_text("tolerance")
    tab.screenshot("report-gradcheck")

    validation = section(report, "Validation")
    expect(validation).to_contain_text("admitted: float32, float64 on cpu, meta")
    validation.get_by_text("Each combination").click()
    dtype = tab.page.get_by_role("cell", name="int64", exact=True)
    expect(validation.get_by_role("row").filter(has=dtype)).not_to_have_count(0)
    for refused in validation.get_by_role("row").filter(has_text="✘").all():
        expect(refused).to_contain_text("[mylib::softplus] argument 'x': expected float32")
    tab.screenshot("report-validation")

    expect(section(report, "Build")).to_contain_text("time to build")
    tab.screenshot("report-build")


def check_rerun(tab: NotebookTab, report: Locator) -> None:
    """Press the button: the kernel checks other samples, so the worst element is another."""
    gradcheck = section(report, "Gradcheck")
    rows = gradcheck.get_by_role("row")
    before = rows.all_inner_texts()
    gradcheck.get_by_label("Seed").fill("7")
    gradcheck.get_by_role("button", name="Run gradcheck again").click()
    worst = next(text for text in before[1].split("\t") if "analytical" in text)
    expect(gradcheck).not_to_contain_text(worst)
    expect(gradcheck).to_contain_text("✔ pass")
    after = rows.all_inner_texts()
    assert len(after) == len(before)
    assert after != before
    tab.screenshot("report-rerun")


def check_mistakes(tab: NotebookTab, notebook: NotebookNode) -> None:
    broken = tab.output(position(notebook, "--expect-error"))
    expect(broken).to_contain_text(re.compile(r"In\[\d+\]:8:14: error: .*factor"))
    expect(broken).to_contain_text("^")

    wrong = tab.output(position(notebook, "op: mylib::softplus_off("))
    gradcheck = section(wrong, "Gradcheck")
    expect(gradcheck).to_contain_text("✘ FAIL")
    wrong.scroll_into_view_if_needed()
    tab.screenshot("report-wrong-derivative")


def check_training(tab: NotebookTab, notebook: NotebookNode) -> None:
    training = tab.output(position(notebook, "ProgressBar"))
    bar = training.get_by_role("progressbar")
    expect(bar).to_have_attribute("value", str(bar.get_attribute("max")))
    shown = re.search(r"test accuracy: ([\d.]+)%", training.inner_text())
    assert shown is not None
    assert float(shown[1]) >= 95
    plot = tab.output(position(notebook, "semilogy")).locator("img")
    expect(plot).to_be_visible()
    plot.scroll_into_view_if_needed()
    tab.screenshot("training")
