"""The extension of JupyterLab: C++ in the editor, compiler messages, reports without a kernel."""

from __future__ import annotations

import pytest
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_notebook
from playwright.sync_api import Locator, expect

from tests.notebook.lab import LabBrowser, NotebookTab
from tests.tpkernel.shell import SOFTPLUS

pytestmark = [pytest.mark.browser, pytest.mark.slow]

BROKEN = "// it's a comment\nint64_t f() {\n  return undeclared + 1;\n}"
DOCUMENTED = SOFTPLUS.replace("derivatives:", "doc: Smooth ramp.\nderivatives:")
CUDA = "__global__ void k(float* x) { x[threadIdx.x] = 1; }"


def notebook_of(*sources: str) -> NotebookNode:
    return new_notebook(cells=[new_code_cell(source) for source in sources])


def editor(tab: NotebookTab, index: int) -> Locator:
    return tab.cell(index).locator(".cm-content")


def run_first(tab: NotebookTab, count: int) -> None:
    for index in range(count):
        tab.run_cell(index)


def colour(part: Locator) -> str:
    return str(part.evaluate("node => getComputedStyle(node).color"))


@pytest.mark.parametrize("theme", ["JupyterLab Light", "JupyterLab Dark"])
def test_a_cell_is_cpp_and_its_messages_stand_where_they_belong(
    lab: LabBrowser, theme: str
) -> None:
    cells = ("%load_ext tensorplay", f"%%tpkernel\n{BROKEN}", f"%%tpkernel\n{CUDA}", "x = 1")
    with lab.open(notebook_of(*cells), theme=theme) as tab:
        cpp = editor(tab, 1)
        keyword = cpp.get_by_text("return", exact=True)
        expect(keyword).to_be_visible()
        plain = colour(cpp.get_by_text("undeclared", exact=False).first)
        assert colour(keyword) != plain
        comment = cpp.get_by_text("it's a comment")  # B065: the apostrophe opens nothing
        assert colour(comment) not in (plain, colour(keyword))
        assert editor(tab, 2).locator(".tpk-cuda").all_inner_texts() == ["__global__", "threadIdx"]
        expect(tab.cell(3).locator(".tpk-gutter")).to_have_count(0)

        tab.run_cell(0)
        tab.run_cell(1)
        mark = cpp.locator(".tpk-under-error")
        expect(mark).to_have_text("undeclared")
        line = cpp.locator(".cm-line", has=tab.page.locator(".tpk-under-error"))
        expect(line).to_contain_text("return undeclared")
        sign = tab.cell(1).locator(".tpk-sign[title*=undeclared]")
        expect(sign).to_have_text("●")
        mark.hover()
        expect(tab.page.locator(".tpk-tip")).to_contain_text("was not declared")
        tab.screenshot(f"editor-{theme.rsplit(maxsplit=1)[-1].lower()}")
        tab.page.mouse.move(0, 0)

        # A line above moves the mark along; F8 goes to it and says it; an edit of the line ends it.
        tab.set_source(1, f"%%tpkernel\n// one more line\n{BROKEN}")
        expect(mark).to_have_text("undeclared")
        cpp.press("F8")
        expect(tab.cell(1).locator(".cm-announced")).to_contain_text("Line 5, error")
        tab.page.keyboard.type("not_")
        expect(mark).to_have_count(0)

        tab.set_source(1, f"%%tpkernel\n{BROKEN.replace('undeclared', '41')}")
        tab.run_cell(1)
        expect(mark).to_have_count(0)
        expect(tab.output(1)).to_contain_text("int64_t f()")
        assert tab.problems == []


# Stands for a compiler that takes its time after the first message.
SLOW_COMPILER = """
import tpkernel
tpkernel.build("int64_t f() { return 1; }", checks=False)  # asks the compiler what it is
from tensorplay.utils.cpp_jit import toolchain
says = "printf '<tpkernel cell>:3:10: error: undeclared is wrong\\n' >&2; sleep 4; exit 1"
real, toolchain._within_limits = toolchain._within_limits, lambda *_: ("/bin/sh", "-c", says)
"""


def test_messages_appear_while_the_compiler_still_runs(lab: LabBrowser) -> None:
    body = "int64_t f() {\n  return undeclared;\n}"
    slow, usual = f"%load_ext tensorplay\n{SLOW_COMPILER}", "toolchain._within_limits = real"
    with lab.open(notebook_of(slow, f"%%tpkernel\n{body}", usual)) as tab:
        tab.run_cell(0)
        tab.run_cell(1, wait=False)
        mark = editor(tab, 1).locator(".tpk-under-error")
        expect(mark).to_have_text("undeclared")
        expect(tab.output(1)).to_contain_text("compiling,")
        tab.screenshot("live-messages")
        tab.wait_until_idle()
        expect(mark).to_have_text("undeclared")
        expect(tab.output(1)).not_to_contain_text("compiling,")
        tab.run_cell(2)
        tab.set_source(1, f"%%tpkernel\n{body.replace('undeclared', '41')}")
        tab.run_cell(1)
        expect(mark).to_have_count(0)
        expect(tab.output(1)).to_contain_text("int64_t f()")
        assert tab.problems == []


def test_the_magic_is_noticed_when_it_is_typed_and_when_it_goes(lab: LabBrowser) -> None:
    with lab.open(notebook_of("int64_t f() { return 1; }")) as tab:
        cell = editor(tab, 0)
        expect(cell.locator(".tpk-magic-line")).to_have_count(0)
        tab.set_source(0, "# above\n\n%%tpkernel --debug\nint64_t f() { return 1; }")
        expect(cell.locator(".tpk-magic-line")).to_have_text("%%tpkernel --debug")
        tab.set_source(0, "f = lambda: 1")
        expect(cell.locator(".tpk-magic-line")).to_have_count(0)
        assert tab.problems == []


def saved_outputs() -> NotebookNode:
    """Run a good and a broken cell, and return the notebook as JupyterLab would save it."""
    from nbclient import NotebookClient

    notebook = notebook_of(
        "%load_ext tensorplay", f"%%tpkernel\n{SOFTPLUS}", f"%%tpkernel\n{BROKEN}"
    )
    NotebookClient(
        notebook, timeout=120, kernel_name="python3", allow_errors=True, store_widget_state=False
    ).execute()
    view = {"model_id": "of a kernel that is gone", "version_major": 2, "version_minor": 0}
    notebook.cells[1].outputs[0].data["application/vnd.jupyter.widget-view+json"] = view
    return notebook


def test_a_saved_notebook_shows_report_and_messages_without_their_kernel(lab: LabBrowser) -> None:
    with lab.open(saved_outputs()) as tab:
        report = tab.output(1)
        expect(report).to_contain_text("mylib::softplus(Tensor x, float beta=1.0) -> Tensor")
        expect(report.locator("details").first).to_be_visible()
        expect(report).not_to_contain_text("Error displaying widget")
        expect(editor(tab, 2).locator(".tpk-under-error")).to_have_text("undeclared")
        tab.screenshot("reopened")
        run_first(tab, 2)
        expect(report.get_by_role("tab", name="Gradcheck")).to_be_visible()
        tab.screenshot("reopened-and-run")
        assert tab.problems == []


def test_completion_and_shift_tab(lab: LabBrowser) -> None:
    cells = (
        "%load_ext tensorplay",
        f"%%tpkernel\n{DOCUMENTED}",
        "%%tpkernel\nvoid f(tp::InO",
        "softplus",
    )
    with lab.open(notebook_of(*cells)) as tab:
        run_first(tab, 2)
        editor(tab, 2).click()
        tab.page.keyboard.press("Control+End")
        tab.page.keyboard.press("Tab")
        expect(tab.page.locator(".jp-Completer")).to_contain_text("InOut")
        tab.screenshot("completion")
        tab.page.keyboard.press("Enter")
        expect(editor(tab, 2)).to_contain_text("tp::InOut")
        editor(tab, 3).click()
        tab.page.keyboard.press("End")
        tab.page.keyboard.press("Shift+Tab")
        tip = tab.page.locator(".jp-Tooltip")
        expect(tip).to_contain_text("mylib::softplus(Tensor x, float beta=1.0) -> Tensor")
        expect(tip).to_contain_text("Smooth ramp.")
        tab.screenshot("shift-tab")
        tab.page.keyboard.press("Escape")
        assert tab.problems == []


def completed(tab: NotebookTab, index: int, text: str, chosen: str) -> None:
    """Type a text into a cell, ask for completions, and take the one that is wanted."""
    tab.set_source(index, "")
    editor(tab, index).click()
    tab.page.keyboard.insert_text(text)
    tab.page.keyboard.press("Tab")
    line = tab.page.locator(".jp-Completer").get_by_text(chosen, exact=True)
    expect(line).to_be_visible()
    line.click()
    expect(editor(tab, index)).to_contain_text(chosen)
    tab.page.keyboard.press("Escape")


def test_options_keys_and_commands_are_completed(lab: LabBrowser) -> None:
    with lab.open(notebook_of("%load_ext tensorplay", f"%%tpkernel\n{SOFTPLUS}", "")) as tab:
        run_first(tab, 2)
        completed(tab, 2, "%%tpkernel --", "--isolate")
        completed(tab, 2, "%%tpkernel --sani", "--sanitize")
        completed(tab, 2, "%%tpkernel --isolate --sanitize undef", "undefined")
        completed(tab, 2, "%%tpkernel\n/*---\nderiv", "derivatives: ")
        completed(tab, 2, "%tpkernel show softp", "softplus")
        expect(editor(tab, 2)).to_have_text("%tpkernel show softplus")
        completed(tab, 2, "%tpkernel doc", "doctor")
        assert tab.problems == []


def test_after_a_restart_the_report_stays_and_the_cell_runs_again(lab: LabBrowser) -> None:
    cells = ("%load_ext tensorplay", f"%%tpkernel\n{SOFTPLUS}")
    with lab.open(notebook_of(*cells)) as tab:
        tab.run_all()
        report = tab.output(1)
        expect(report.get_by_role("tab", name="Gradcheck")).to_be_visible()
        tab.restart()
        expect(report).to_contain_text("mylib::softplus")
        tab.run_all()
        report.get_by_role("tab", name="Gradcheck").click()
        report.get_by_label("Seed").fill("2")
        report.get_by_role("button", name="Run gradcheck again").click()
        expect(report.get_by_role("table", name="Gradcheck")).to_contain_text("seed 2")
        assert tab.problems == []


def test_a_crash_of_the_session_leaves_the_report(lab: LabBrowser) -> None:
    cells = (
        "%load_ext tensorplay",
        f"%%tpkernel\n{SOFTPLUS}",
        "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)",
    )
    with lab.open(notebook_of(*cells)) as tab:
        run_first(tab, 2)
        report = tab.output(1)
        expect(report.get_by_role("tab", name="Gradcheck")).to_be_visible()
        tab.run_cell(2, wait=False)
        dialog = tab.page.get_by_role("dialog")
        expect(dialog).to_contain_text("Kernel Restarting")
        tab.screenshot("crashed-session")
        dialog.get_by_role("button").last.click()
        expect(dialog).to_have_count(0)
        tab.wait_until_idle()
        expect(report).to_contain_text("mylib::softplus")
        run_first(tab, 2)
        expect(report.get_by_role("tab", name="Gradcheck")).to_be_visible()
        assert [p for p in tab.problems if "Kernel" not in p] == []
