"""The report's widget in a real JupyterLab: tabs, buttons, filter, keyboard, both themes."""

from __future__ import annotations

import pytest
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_notebook
from playwright.sync_api import expect

from tests.notebook.lab import LabBrowser
from tests.tpkernel.notebook import ADD1, SOFTPLUS

pytestmark = [pytest.mark.browser, pytest.mark.slow]


def notebook_of(*sources: str) -> NotebookNode:
    return new_notebook(cells=[new_code_cell(source) for source in sources])


def report_notebook(*after: str) -> NotebookNode:
    return notebook_of("%load_ext tensorplay\nimport tpkernel", f"%%tpkernel\n{SOFTPLUS}", *after)


def test_tabs_show_every_section_and_answer_the_keyboard(lab: LabBrowser) -> None:
    with lab.open(report_notebook()) as tab:
        tab.run_all()
        report = tab.output(1)
        first = report.get_by_role("tab", name="Operator")
        expect(first).to_have_attribute("aria-selected", "true")
        panel = report.get_by_role("tabpanel", name="Operator")
        expect(panel).to_contain_text("mylib::softplus(Tensor x, float beta=1.0) -> Tensor")
        expect(panel).to_contain_text("register_fake")
        expect(panel).to_contain_text("grad * tp.sigmoid(beta * x)")
        first.focus()
        tab.page.keyboard.press("ArrowRight")
        expect(report.get_by_role("tab", name="Gradcheck")).to_be_focused()
        panel = report.get_by_role("tabpanel", name="Gradcheck")
        expect(panel.get_by_role("table", name="Gradcheck")).to_contain_text("✔ pass")
        tab.page.keyboard.press("End")
        panel = report.get_by_role("tabpanel", name="Build")
        expect(panel.get_by_role("table", name="Build")).to_contain_text("key")
        tab.screenshot("report")
        assert tab.problems == []


def test_the_gradcheck_runs_again_with_another_seed(lab: LabBrowser) -> None:
    with lab.open(report_notebook()) as tab:
        tab.run_all()
        report = tab.output(1)
        report.get_by_role("tab", name="Gradcheck").click()
        panel = report.get_by_role("tabpanel", name="Gradcheck")
        before = panel.get_by_role("table", name="Gradcheck").inner_text()
        panel.get_by_label("Seed").fill("7")
        panel.get_by_role("button", name="Run gradcheck again").click()
        expect(panel.get_by_role("table", name="Gradcheck")).not_to_have_text(before)
        expect(panel.get_by_role("table", name="Gradcheck")).to_contain_text("✔ pass")
        tab.wait_until_idle()
        assert tab.problems == []


def test_the_validation_table_can_be_filtered(lab: LabBrowser) -> None:
    with lab.open(report_notebook()) as tab:
        tab.run_all()
        report = tab.output(1)
        report.get_by_role("tab", name="Validation").click()
        panel = report.get_by_role("tabpanel", name="Validation")
        expect(panel).to_contain_text("x: admitted: float32, float64 on cpu, meta")
        expect(panel).to_contain_text("refused: 13 dtypes, e.g. TypeError: [mylib::softplus]")
        table = panel.get_by_role("table")
        expect(table).to_be_hidden()
        panel.get_by_text("Each combination").click()
        expect(table).to_be_visible()
        expect(table).to_contain_text("got int64 on cpu")
        report.get_by_label("Show combinations").select_option("admitted")
        expect(table).not_to_contain_text("got int64 on cpu")
        expect(table).to_contain_text("✔ admitted")
        assert tab.problems == []


def test_copied_source_reaches_the_clipboard(lab: LabBrowser) -> None:
    with lab.open(report_notebook()) as tab:
        tab.run_all()
        tab.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
        button = tab.output(1).get_by_role("button", name="Copy Generated wrapper")
        expect(button).to_be_hidden()  # source is folded until it is asked for
        tab.output(1).get_by_text("Generated wrapper", exact=True).click()
        button.click()
        expect(tab.output(1).get_by_role("status")).to_have_text("Generated wrapper copied")
        copied = tab.page.evaluate("navigator.clipboard.readText()")
        assert "kernels.softplus(x, beta, out)" in copied
        assert tab.problems == []


def test_an_error_behind_a_button_is_shown_in_the_widget(lab: LabBrowser) -> None:
    after = (
        "from tpkernel.widget import ReportWidget\n"
        "def rerun(checks, seed):\n    raise ValueError('seed of no use')\n"
        "ReportWidget(tpkernel.last_report(), rerun)"
    )
    with lab.open(report_notebook(after)) as tab:
        tab.run_all()
        report = tab.output(2)
        report.get_by_role("tab", name="Gradcheck").click()
        report.get_by_role("button", name="Run gradcheck again").click()
        expect(report.get_by_role("alert")).to_contain_text("ValueError seed of no use")
        assert tab.problems == []


def test_a_plain_kernels_report_in_the_dark_theme(lab: LabBrowser) -> None:
    notebook = notebook_of("%load_ext tensorplay", f"%%tpkernel\n{ADD1}")
    with lab.open(notebook, theme="JupyterLab Dark") as tab:
        tab.run_all()
        panel = tab.output(1).get_by_role("tabpanel", name="Operator")
        expect(panel).to_contain_text("float32, on cpu, contiguous, written")
        tab.screenshot("report-dark")
        assert tab.problems == []


def test_a_kernel_that_hangs_under_check_shows_its_progress_and_then_a_finding(
    lab: LabBrowser,
) -> None:
    spin = (
        "%%tpkernel --budget 3\ntemplate <class T> void spin(tp::In<T> x, tp::Out<T> out) {\n"
        "  volatile bool on = true;\n  while (on) {}\n}"
    )
    with lab.open(notebook_of("%load_ext tensorplay", spin, "1 + 1")) as tab:
        # Not awaited: what shows while the cell runs is what this is about.
        tab.page.evaluate("() => { jupyterapp.commands.execute('notebook:run-all-cells'); }")
        expect(tab.output(1).get_by_role("status")).to_contain_text("running memory check")
        tab.wait_until_idle()
        report = tab.output(1)
        expect(report).to_contain_text("no answer within 3 s")
        expect(tab.output(2)).to_contain_text("2")
        assert tab.problems == []


WRONG = SOFTPLUS.replace("grad * sig", "2 * grad * sig")
CRASHED = SOFTPLUS.replace("  for", "  *(volatile int*)0 = 1;\n  for")


@pytest.mark.parametrize("theme", ["JupyterLab Light", "JupyterLab Dark"])
@pytest.mark.parametrize(
    ("name", "text", "section", "words"),
    [
        ("wrong", WRONG, "Gradcheck", "Likely: off by a constant factor"),
        ("crashed", CRASHED, "Findings", "SIGSEGV"),
        ("unwritten", SOFTPLUS.replace("i = 0", "i = 1"), "Findings", "not fully written"),
    ],
)
def test_a_failing_report_opens_on_what_failed_and_says_it_first(
    lab: LabBrowser, theme: str, name: str, text: str, section: str, words: str
) -> None:
    notebook = notebook_of("%load_ext tensorplay", f"%%tpkernel\n{text}")
    with lab.open(notebook, theme=theme) as tab:
        tab.run_all()
        report = tab.output(1)
        expect(report.get_by_role("tab", name=section)).to_have_attribute("aria-selected", "true")
        failed = report.get_by_role("group", name="What failed")
        expect(failed).to_contain_text(words)
        tab.screenshot(f"report-{name}-{theme.rsplit(maxsplit=1)[-1].lower()}")
        report.get_by_role("tab", name="Operator").click()
        expect(failed).to_be_visible()
        assert tab.problems == []


def test_on_a_narrow_page_verdict_and_likely_cause_are_visible(lab: LabBrowser) -> None:
    notebook = notebook_of("%load_ext tensorplay", f"%%tpkernel\n{WRONG}")
    with lab.open(notebook) as tab:
        before = tab.page.viewport_size
        tab.page.set_viewport_size({"width": 800, "height": 900})
        try:
            tab.run_all()
            report = tab.output(1)
            table = report.get_by_role("table", name="Gradcheck")
            edge = report.bounding_box()
            assert edge is not None
            for head in ("verdict", "likely cause"):
                box = table.get_by_role("columnheader", name=head).bounding_box()
                assert box is not None
                assert box["x"] + box["width"] <= edge["x"] + edge["width"]
            failed = report.get_by_role("group", name="What failed")
            assert failed.evaluate("node => node.scrollWidth <= node.clientWidth + 1")
            tab.screenshot("report-narrow")
        finally:
            if before is not None:
                tab.page.set_viewport_size(before)
        assert tab.problems == []


def test_a_panel_is_as_tall_as_its_text(lab: LabBrowser) -> None:
    with lab.open(report_notebook()) as tab:
        tab.run_all()
        report = tab.output(1)
        panel = report.get_by_role("tabpanel", name="Operator")
        for title in ("Generated wrapper", "Fake kernel", "Gradient"):
            panel.locator("summary", has_text=title).click()
        assert panel.evaluate("node => node.scrollHeight <= node.clientHeight + 1")
        tab.screenshot("report-ok-open")
        assert tab.problems == []
