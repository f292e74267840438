"""The report's widget in a real JupyterLab: tabs, buttons, filter, keyboard, work and its end."""

from __future__ import annotations

import pytest
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_notebook
from playwright.sync_api import expect

from tests.notebook.lab import LabBrowser
from tests.tpkernel.shell import ADD1, MATMUL, SLOW, SOFTPLUS

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


def test_keys_pressed_in_the_report_do_nothing_to_the_notebook(lab: LabBrowser) -> None:
    with lab.open(report_notebook("1 + 1")) as tab:
        tab.run_all()
        report = tab.output(1)
        chosen = report.get_by_role("tab", name="Gradcheck")
        for key in ("a", "b", "x", "d", "d", "m", "z", "ArrowUp"):  # insert, cut, delete, …
            chosen.press(key)
        expect(chosen).to_be_focused()
        expect(tab.panel.locator(".jp-Cell")).to_have_count(3)
        chosen.press("Enter")
        expect(chosen).to_have_attribute("aria-selected", "true")
        for key in ("Enter", "Space"):
            seed = report.get_by_label("Seed")
            seed.fill(str(len(key)))
            report.get_by_role("button", name="Run gradcheck again").press(key)
            table = report.get_by_role("table", name="Gradcheck")
            expect(table).to_contain_text(f"seed {len(key)}")
            expect(report.get_by_role("button", name="Cancel")).to_be_hidden()
        tab.set_source(2, "2 + 2")
        dirty = "() => jupyterapp.shell.currentWidget.context.model.dirty"
        assert tab.page.evaluate(dirty)
        chosen.press("Control+s")  # chords stay the notebook's
        tab.page.wait_for_function(f"!({dirty})()")
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
    with lab.open(report_notebook()) as tab:
        tab.run_all()
        report = tab.output(1)
        report.get_by_role("tab", name="Gradcheck").click()
        report.get_by_label("Shape of x").fill("two")
        report.get_by_role("button", name="Run gradcheck again").click()
        expect(report.get_by_role("alert")).to_contain_text("ValueError the shape of x must be")
        report.get_by_label("Shape of x").fill("2, 2")
        report.get_by_role("button", name="Run gradcheck again").click()
        expect(report.get_by_role("alert")).to_be_hidden()
        expect(report.get_by_role("table", name="Gradcheck")).to_contain_text("x (2, 2)")
        assert tab.problems == []


def test_controls_change_the_gradcheck_and_pictures_answer_pointer_and_keys(
    lab: LabBrowser,
) -> None:
    wrong = MATMUL.replace("x: grad @ w.T", "x: 2 * grad @ w.T")
    notebook = notebook_of("%load_ext tensorplay", f"%%tpkernel\n{wrong}")
    with lab.open(notebook, theme="JupyterLab Dark") as tab:
        tab.run_all()
        report = tab.output(1)
        panel = report.get_by_role("tabpanel", name="Gradcheck")
        panel.get_by_label("Shape of x").fill("16, 16")
        panel.get_by_label("Shape of w").fill("16, 16")
        panel.get_by_label("Dtype", exact=True).select_option("float64")
        panel.get_by_label("Check w").uncheck()
        panel.get_by_label("Error against step").check()
        panel.get_by_role("button", name="Run gradcheck again").click()
        rows = panel.get_by_role("table", name="Gradcheck").get_by_role("row")
        expect(rows).to_have_count(2)
        expect(rows.nth(1)).to_contain_text("x (16, 16), w (16, 16), float64")
        expect(rows.nth(1)).to_contain_text("off by a constant factor")
        values = panel.locator(".tpk-values")
        expect(values).to_contain_text("x[")
        heat = panel.get_by_role("img", name="Jacobian 256 × 256")
        expect(heat).to_be_visible()
        heat.press("Home")
        first = values.inner_text()
        heat.press("ArrowDown")
        expect(values).not_to_have_text(first)
        heat.hover(position={"x": 3, "y": 3})
        expect(values).to_contain_text("x[0, ")
        expect(values).to_contain_text("numerical")
        assert tab.problems == []
        expect(panel.get_by_role("img", name="Error against step")).to_be_visible()
        heat.scroll_into_view_if_needed()
        tab.screenshot("report-jacobian-dark")
        panel.get_by_role("img", name="Error against step").scroll_into_view_if_needed()
        tab.screenshot("report-steps-dark")


def test_every_setting_reaches_the_gradcheck(lab: LabBrowser) -> None:
    with lab.open(report_notebook()) as tab:
        tab.run_all()
        report = tab.output(1)
        report.get_by_role("tab", name="Gradcheck").click()
        panel = report.get_by_role("tabpanel", name="Gradcheck")
        again = panel.get_by_role("button", name="Run gradcheck again")
        rows = panel.get_by_role("table", name="Gradcheck").get_by_role("row")
        panel.get_by_label("Shape of x").fill("3, 2")
        panel.get_by_label("Step", exact=True).fill("1e-4")
        panel.get_by_label("atol").fill("1e-3")
        panel.get_by_label("rtol").fill("1e-2")
        panel.get_by_label("Mode").select_option("forward")
        again.click()
        expect(rows).to_have_count(2)
        panel.get_by_label("Second order").check()
        again.click()
        expect(rows).to_have_count(4)  # beside the first order
        expect(rows.nth(1)).to_contain_text("step 0.0001, atol 0.001, rtol 0.01, forward mode")
        expect(rows.nth(2)).to_contain_text("second order: output 0 by x")
        tab.screenshot("report-second-order")
        panel.get_by_label("Second order").uncheck()
        panel.get_by_label("Mode").select_option("reverse")
        panel.get_by_label("Fast").check()
        panel.get_by_label("Dtype", exact=True).select_option("float32")
        again.click()
        expect(rows.nth(1)).to_contain_text(
            "float32 (seed 0, step 0.0001, atol 0.001, rtol 0.01, fast"
        )
        panel.get_by_label("Step", exact=True).fill("-1")
        again.click()
        expect(report.get_by_role("alert")).to_have_text(
            "ValueError [with_gradcheck] argument 'step': expected a number above 0, got -1.0"
        )
        expect(rows).to_have_count(4)  # as it was
        assert tab.problems == []


def test_times_are_drawn_beside_a_reference_and_the_machines_limit(lab: LabBrowser) -> None:
    with lab.open(report_notebook(), theme="JupyterLab Dark") as tab:
        tab.run_all()
        report = tab.output(1)
        report.get_by_role("tab", name="Timing").click()
        panel = report.get_by_role("tabpanel", name="Timing")
        expect(panel).to_contain_text("Nothing was timed yet.")
        panel.get_by_label("Reference").fill("log1p(exp(beta * x)) / beta")
        panel.get_by_role("button", name="Time it").click()
        expect(report.get_by_role("status")).to_contain_text("running timing of")
        plot = panel.get_by_role("img", name="Times of mylib::softplus")
        expect(plot).to_be_visible()
        expect(panel.get_by_role("table")).to_contain_text("GB/s")
        expect(panel.get_by_role("img", name="Bandwidth")).to_be_visible()
        plot.scroll_into_view_if_needed()
        tab.screenshot("report-timing-dark")
        assert tab.problems == []


def test_remarks_machine_code_and_the_compiled_graph_are_shown_on_request(lab: LabBrowser) -> None:
    with lab.open(report_notebook()) as tab:
        tab.run_all()
        report = tab.output(1)
        report.get_by_role("tab", name="Build").click()
        panel = report.get_by_role("tabpanel", name="Build")
        panel.get_by_text("Cache key in clear").click()
        expect(panel.get_by_role("table", name="What the key is made of")).to_contain_text(
            "the compiler flags"
        )
        panel.get_by_role("button", name="Show remarks and machine code").click()
        remarks = panel.get_by_role("table", name="Remarks of the optimiser")
        expect(remarks).to_contain_text("out[i] = std::log1p")
        panel.get_by_text("Machine code of").first.click()
        expect(panel.locator("pre", has_text="call").first).to_contain_text("; line 10")
        tab.screenshot("report-build-listing")
        report.get_by_role("tab", name="Compile").click()
        panel = report.get_by_role("tabpanel", name="Compile")
        panel.get_by_role("button", name="Compare with tp.compile").click()
        expect(panel).to_contain_text("from eager ones", timeout=60_000)
        panel.get_by_text("Graph", exact=True).click()
        expect(panel.locator("pre", has_text="mylib_softplus").first).to_be_visible()
        tab.screenshot("report-compile")
        assert tab.problems == []


def test_long_work_shows_progress_and_can_be_cancelled(lab: LabBrowser) -> None:
    notebook = notebook_of("%load_ext tensorplay", f"%%tpkernel\n{SLOW}", "1 + 1")
    with lab.open(notebook) as tab:
        tab.run_all()
        report = tab.output(1)
        report.get_by_role("tab", name="Gradcheck").click()
        report.get_by_label("Shape of x").fill("77")
        report.get_by_role("button", name="Run gradcheck again").click()
        expect(report.get_by_role("status")).to_contain_text("mylib::slow on x (77,)")
        expect(report.get_by_role("progressbar")).to_be_visible()
        expect(report.get_by_role("button", name="Run gradcheck again")).to_be_disabled()
        tab.screenshot("report-running")
        tab.wait_until_idle()  # the kernel is free for cells meanwhile
        report.get_by_role("button", name="Cancel").click()
        expect(report.get_by_role("alert")).to_contain_text("Cancelled")
        expect(report.get_by_role("button", name="Run gradcheck again")).to_be_enabled()
        report.get_by_label("Shape of x").fill("3")
        report.get_by_role("button", name="Run gradcheck again").click()
        expect(report.get_by_role("table", name="Gradcheck")).to_contain_text("x (3,)")
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


@pytest.mark.parametrize(
    ("name", "text", "section", "words"),
    [
        ("wrong", WRONG, "Gradcheck", "Likely: off by a constant factor"),
        ("crashed", CRASHED, "Findings", "SIGSEGV"),
        ("unwritten", SOFTPLUS.replace("i = 0", "i = 1"), "Findings", "not fully written"),
    ],
)
def test_a_failing_report_opens_on_what_failed_and_says_it_first(
    lab: LabBrowser, name: str, text: str, section: str, words: str
) -> None:
    notebook = notebook_of("%load_ext tensorplay", f"%%tpkernel\n{text}")
    with lab.open(notebook) as tab:
        tab.run_all()
        report = tab.output(1)
        expect(report.get_by_role("tab", name=section)).to_have_attribute("aria-selected", "true")
        failed = report.get_by_role("group", name="What failed")
        expect(failed).to_contain_text(words)
        tab.screenshot(f"report-{name}")
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
