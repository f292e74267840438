"""Jupyter Notebook 7: the same cells, extension and report in the other application."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import NoReturn

import pytest
from nbformat.v4 import new_code_cell, new_notebook
from playwright.sync_api import expect

from tests.notebook.lab import LabBrowser
from tests.tpkernel.shell import SOFTPLUS

pytestmark = [pytest.mark.browser, pytest.mark.slow]

BROKEN = "int64_t f() {\n  return undeclared + 1;\n}"


def test_a_cell_runs_and_its_report_and_editor_are_alive(
    lab: LabBrowser, missing: Callable[[str], NoReturn]
) -> None:
    if importlib.util.find_spec("notebook") is None:
        missing("Jupyter Notebook is not installed: pip install notebook")
    sources = ("%load_ext tensorplay", f"%%tpkernel\n{SOFTPLUS}", f"%%tpkernel\n{BROKEN}")
    notebook = new_notebook(cells=[new_code_cell(source) for source in sources])
    with lab.open(notebook, application="notebook") as tab:
        assert "/notebooks/" in tab.page.url
        good, broken = (tab.cell(index).locator(".cm-content") for index in (1, 2))
        keyword = broken.get_by_text("return", exact=True)
        expect(keyword).to_be_visible()
        colours = [
            part.evaluate("node => getComputedStyle(node).color")
            for part in (keyword, broken.get_by_text("undeclared").first)
        ]
        assert colours[0] != colours[1]
        expect(good.locator(".tpk-magic-line")).to_have_text("%%tpkernel")

        for index in range(3):
            tab.run_cell(index)
        expect(broken.locator(".tpk-under-error")).to_have_text("undeclared")
        report = tab.output(1)
        report.get_by_role("tab", name="Gradcheck").click()
        panel = report.get_by_role("tabpanel", name="Gradcheck")
        panel.get_by_label("Seed").fill("7")
        panel.get_by_role("button", name="Run gradcheck again").click()
        expect(panel.get_by_role("table", name="Gradcheck")).to_contain_text("seed 7")
        tab.screenshot("notebook-7")
        assert tab.problems == []
