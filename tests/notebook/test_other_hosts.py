"""The report's view where JupyterLab is not: as VS Code and Colab show widgets.

A frame of its own origin, where there is no ``require`` and no extension.
"""

from __future__ import annotations

from typing import Literal

import pytest
from playwright.sync_api import expect

import tpkernel
from tests.notebook.hosts import host, in_frame
from tests.notebook.lab import LabBrowser, artifacts_folder
from tests.tpkernel.shell import MATMUL
from tpkernel.report.widget import ReportWidget

pytestmark = [pytest.mark.browser, pytest.mark.slow]


@pytest.fixture(scope="module")
def widget() -> ReportWidget:
    wrong = MATMUL.replace("x: grad @ w.T", "x: 2 * grad @ w.T")
    return ReportWidget(tpkernel.build(wrong, checks=["gradcheck", "validation"]))


@pytest.mark.parametrize(
    ("name", "attributes", "style", "scheme"),
    [
        ("plain", "", "", "light"),
        ("plain-dark", "", ":root { color-scheme: light dark; }", "dark"),
        (
            "vscode",
            'class="vscode-dark"',
            ":root { --vscode-editor-background: #1e1e1e; --vscode-editor-foreground: #d4d4d4; }",
            "light",
        ),
        (
            "colab",
            'theme="dark"',
            ":root { --colab-primary-surface-color: #383838; --colab-primary-text-color: #fff; }",
            "light",
        ),
    ],
)
def test_the_view_works_in_a_frame_of_another_host(
    lab: LabBrowser,
    widget: ReportWidget,
    name: str,
    attributes: str,
    style: str,
    scheme: Literal["dark", "light"],
) -> None:
    with lab.bare_page(scheme) as page:
        problems: list[str] = []
        page.on("pageerror", lambda error: problems.append(error.message))
        page.on("console", lambda m: problems.append(m.text) if m.type == "error" else None)
        page.on("request", lambda r: problems.append(r.url) if r.url.startswith("http") else None)
        frame = in_frame(page, host(widget, attributes=attributes, style=style))
        expect(frame.get_by_role("tab", name="Gradcheck")).to_have_attribute(
            "aria-selected", "true"
        )
        failed = frame.get_by_role("group", name="What failed")
        expect(failed).to_contain_text("off by a constant factor")
        heat = frame.get_by_role("img", name="Jacobian").first
        heat.press("Home")
        expect(frame.locator(".tpk-values").first).to_contain_text("analytical")
        frame.get_by_label("Seed").fill("7")
        frame.get_by_role("button", name="Run gradcheck again").click()
        inside = page.frames[1]
        (sent,) = inside.evaluate("window.sent")
        assert (sent["action"], sent["settings"]["seed"]) == ("gradcheck", "7")
        inside.evaluate("model.set('busy', 'running gradcheck …'), model.set('can_cancel', true)")
        frame.get_by_role("button", name="Cancel").click()
        assert inside.evaluate("window.sent").pop() == {"action": "cancel"}
        inside.evaluate("model.set('busy', '')")
        expect(frame.get_by_role("button", name="Run gradcheck again")).to_be_enabled()
        report = frame.locator(".tpk-report")
        ground, text = report.evaluate(
            "node => [getComputedStyle(node).backgroundColor, getComputedStyle(node).color]"
        )
        dark = name != "plain"
        assert (_lightness(ground) < 0.4) is dark
        assert (_lightness(text) > 0.6) is dark
        red = failed.evaluate("node => getComputedStyle(node).borderLeftColor")
        assert red == ("rgb(255, 154, 143)" if dark else "rgb(180, 35, 24)")
        if (folder := artifacts_folder()) is not None:
            page.screenshot(path=folder / f"host-{name}.png")
        assert problems == []


def _lightness(colour: str) -> float:
    numbers = [float(part) for part in colour.partition("(")[2].rstrip(")").split(",")[:3]]
    return sum(numbers) / 3 / 255
