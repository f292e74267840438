"""What must hold of the view for every eye and hand: contrast, width, names, keys, a still layout.

The view is drawn outside of JupyterLab, with JupyterLab's own themes around it, since only the page
matters here. Its report has every section, names that are too long, and a wrong derivative.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import get_args

import pytest
from playwright.sync_api import Page, expect

import tpkernel
from tests.notebook.hosts import Theme, in_theme
from tests.notebook.lab import LabBrowser, artifacts_folder
from tests.tpkernel.shell import ADD1, SOFTPLUS
from tpkernel.report.facts import Finding
from tpkernel.report.widget import ReportWidget

pytestmark = [pytest.mark.browser, pytest.mark.slow]

LONG = "a_name_that_goes_on_for_longer_than_any_column_or_line_of_a_report_has_room_for"
TEXT = SOFTPLUS.replace("softplus", LONG).replace("grad *", "2 * grad *")
SECTIONS = ("Operator", "Gradcheck", "Validation", "Compile", "Timing", "Findings", "Build")


@pytest.fixture(scope="module")
def widget() -> ReportWidget:
    report = tpkernel.build(TEXT.replace("  for", "  int never_used;\n  for"), flags=["-Wall"])
    report = report.with_gradcheck(shapes={"x": (3, 2)}, curve=True)
    report = report.with_timing(sizes=[100, 1000], reference="log1p(exp(beta * x)) / beta")
    widget = ReportWidget(report.with_compile().with_listing())
    found = [Finding("memory", LONG, level, "said " * 60) for level in ("note", "warning", "error")]
    widget.facts = {**widget.facts, "findings": [vars(f) for f in found]}
    widget.error = {"type": "ValueError", "text": "of a callback", "frames": "a.py:1 in f"}
    return widget


@pytest.fixture(params=get_args(Theme), scope="module")
def view(request: pytest.FixtureRequest, lab: LabBrowser, widget: ReportWidget) -> Iterator[Page]:
    with lab.bare_page() as page:
        page.set_content(in_theme(widget, request.param))
        expect(page.get_by_role("tab")).to_have_count(len(SECTIONS))
        for part in page.locator("details").all():
            part.evaluate("node => { node.open = true; }")
        yield page


def show(page: Page, section: str) -> None:
    page.get_by_role("tab", name=section).click()


@pytest.mark.parametrize("section", SECTIONS)
def test_text_and_marks_stand_out_from_their_ground(view: Page, section: str) -> None:
    """WCAG 2.2, AA: 4.5 for text (1.4.3), 3 for edges of controls and marks (1.4.11)."""
    show(view, section)
    poor = view.evaluate(JS_CONTRAST)
    assert poor == []
    focused = view.get_by_role("tab", name=section)
    focused.focus()
    view.keyboard.press("Tab")
    view.keyboard.press("Shift+Tab")  # by keyboard: :focus-visible
    expect(focused).to_be_focused()
    width, ratio = view.evaluate(JS_OUTLINE)
    assert width >= 2
    assert ratio >= 3


@pytest.mark.parametrize("width", [1200, 600, 360])
@pytest.mark.parametrize("section", SECTIONS)
def test_nothing_is_wider_than_the_page(view: Page, section: str, width: int) -> None:
    view.set_viewport_size({"width": width, "height": 700})
    show(view, section)
    assert view.evaluate("document.documentElement.scrollWidth <= innerWidth")
    # What is left of a wide table can be reached: its panel scrolls, and takes the focus for it.
    panel = view.get_by_role("tabpanel", name=section)
    reachable = panel.evaluate(
        "node => node.tabIndex === 0 && getComputedStyle(node).overflowX === 'auto'"
    )
    assert reachable
    if width == 1200:
        assert panel.evaluate("node => node.scrollWidth <= node.clientWidth + 1")
    if (folder := artifacts_folder()) is not None:
        is_light = view.locator("body").get_attribute("data-jp-theme-light") == "true"
        name = f"looks-{section.lower()}-{width}-{'light' if is_light else 'dark'}.png"
        view.screenshot(path=folder / name, full_page=True)
    view.set_viewport_size({"width": 1200, "height": 900})


def test_every_control_and_picture_has_a_name_that_says_what_stands_beside_it(view: Page) -> None:
    for section in SECTIONS:
        show(view, section)
        nodes = view.evaluate(JS_CONTROLS)
        assert [n for n in nodes if not n["name"].strip()] == []
        # Who speaks to the page says what is written there (WCAG 2.5.3).
        assert [n for n in nodes if n["label"].lower() not in n["name"].lower()] == []
        names = [n["name"] for n in nodes if n["tag"] in ("button", "input", "select", "canvas")]
        assert len(names) == len(set(names)), section


def test_the_tab_key_visits_the_controls_in_reading_order_and_gets_out(view: Page) -> None:
    show(view, "Gradcheck")
    view.get_by_role("tab", name="Gradcheck").focus()
    wanted = view.evaluate(JS_FOCUSABLE)
    assert len(wanted) > 12
    visited = []
    for _ in wanted:
        visited.append(view.evaluate(JS_FOCUSED))
        view.keyboard.press("Tab")
    assert visited == wanted
    assert view.evaluate("document.activeElement === document.body")  # out at the end
    view.get_by_role("tab", name="Gradcheck").focus()
    view.keyboard.press("Shift+Tab")
    assert view.evaluate("!document.querySelector('.tpk-tabs').contains(document.activeElement)")


def test_the_heat_map_is_read_by_keyboard_to_the_last_digit(
    view: Page, widget: ReportWidget
) -> None:
    show(view, "Gradcheck")
    check = widget.report.gradcheck[-1]
    facts = check.pairs[0].jacobian
    assert facts is not None
    (heat, *_) = view.get_by_role("img", name="Jacobian 6 × 6").all()
    values = view.locator(".tpk-values").first
    heat.press("Home")
    worst = max(range(36), key=lambda i: facts.difference[i] / facts.allowed[i])
    expect(values).to_contain_text(f"error {_spelled(facts.difference[worst])}, allowed")
    for key in ("ArrowUp",) * 6 + ("ArrowLeft",) * 6 + ("ArrowDown", "ArrowRight"):
        heat.press(key)
    at = 7  # the second row's second element
    expect(values).to_contain_text(
        f"x[0, 1] → output[0][0, 1]: analytical {_spelled(facts.analytical[at])},"
        f" numerical {_spelled(facts.numerical[at])}, error {_spelled(facts.difference[at])},"
        f" allowed {_spelled(facts.allowed[at])}"
    )
    expect(view.get_by_text("elements of x →").first).to_be_visible()  # axes say what they are
    expect(view.get_by_text("elements of output[0] →").first).to_be_visible()


def _spelled(number: float) -> str:
    """Return a float as JavaScript spells it: all of its digits, no trailing zero."""
    return repr(number).removesuffix(".0").replace("e-0", "e-")


def test_work_that_begins_and_ends_moves_nothing(view: Page) -> None:
    show(view, "Operator")
    tabs = view.get_by_role("tablist")
    before = tabs.bounding_box()
    for busy in ("running gradcheck …", "running " + "something with a long name " * 2 + "…", ""):
        view.evaluate("text => { model.set('busy', text); model.set('can_cancel', !!text); }", busy)
        expect(view.get_by_role("status")).to_have_text(busy)
        assert tabs.bounding_box() == before


def test_what_is_broken_into_lines_is_copied_whole(view: Page, widget: ReportWidget) -> None:
    show(view, "Build")
    key = view.get_by_role("row", name="key").get_by_role("cell").last
    assert key.evaluate("node => node.textContent") == widget.report.build.key
    assert key.inner_text() == widget.report.build.key


def test_an_empty_section_says_why_and_what_fills_it(lab: LabBrowser) -> None:
    crashed = SOFTPLUS.replace("  for", "  *(volatile int*)0 = 1;\n  for")
    cases = [
        (ADD1, "Gradcheck", "No gradcheck was run: the cell declares no operator."),
        (ADD1, "Timing", "Nothing was timed yet: the cell declares no operator."),
        (crashed, "Validation", "No validation was run: the kernel crashes. See Findings."),
        (SOFTPLUS, "Compile", "Nothing was compiled yet. The button above runs the operator"),
    ]
    for text, section, said in cases:
        with lab.bare_page() as page:
            page.set_content(in_theme(ReportWidget(tpkernel.build(text)), "light"))
            show(page, section)
            expect(page.get_by_role("tabpanel", name=section)).to_contain_text(said)
    silent = tpkernel.build(SOFTPLUS, checks=False)
    widget = ReportWidget(silent)
    widget.can_run = False  # as of a notebook that was opened without its kernel
    with lab.bare_page() as page:
        page.set_content(in_theme(widget, "light"))
        show(page, "Gradcheck")
        panel = page.get_by_role("tabpanel", name="Gradcheck")
        expect(panel).to_have_text("No gradcheck was run.")
        assert panel.get_by_role("button").count() == 0


# What runs in the page.

_COLOURS = """
  const numbers = colour => {
    if (colour === 'transparent') return [0, 0, 0, 0];
    const canvas = document.createElement('canvas').getContext('2d', { willReadFrequently: true });
    canvas.canvas.width = canvas.canvas.height = 1;
    canvas.fillStyle = colour;
    canvas.fillRect(0, 0, 1, 1);
    const [r, g, b, a] = canvas.getImageData(0, 0, 1, 1).data;
    return [r, g, b, a / 255];
  };
  const over = ([r, g, b, a], ground) => [r, g, b].map((c, i) => a * c + (1 - a) * ground[i]);
  const ground = node => {
    const layers = [];
    for (let n = node; n; n = n.parentElement)
      layers.push(numbers(getComputedStyle(n).backgroundColor));
    return layers.reverse().reduce((below, layer) => over(layer, below), [255, 255, 255]);
  };
  const light = rgb => {
    const linear = c => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4;
    const [r, g, b] = rgb.map(c => linear(c / 255));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const contrast = (colour, node, opacity = 1) => {
    const below = ground(node);
    const [r, g, b, a] = numbers(colour);
    const both = [light(over([r, g, b, a * opacity], below)), light(below)];
    return (Math.max(...both) + 0.05) / (Math.min(...both) + 0.05);
  };
  const root = document.querySelector('.tpk-report');
  const shown = node => node.checkVisibility() && node.getClientRects().length > 0;
"""

JS_CONTRAST = f"""() => {{ {_COLOURS}
  const poor = [];
  const need = (least, kind, colour, node, opacity) => {{
    const ratio = contrast(colour, node, opacity);
    if (ratio >= least) return;
    poor.push(`${{kind}} ${{ratio.toFixed(2)}}: ${{node.outerHTML.slice(0, 90)}}`);
  }};
  const walker = document.createTreeWalker(root, NodeFilter.SHOW_TEXT);
  let texts = 0;
  while (walker.nextNode()) {{
    const node = walker.currentNode.parentElement;
    if (!walker.currentNode.data.trim() || !shown(node)) continue;
    if (node.closest('button:disabled')) continue;
    texts += 1;
    const style = getComputedStyle(node);
    need(4.5, 'text', node.closest('svg') ? style.fill : style.color, node);
  }}
  const every = selector => [...root.querySelectorAll(selector)].filter(shown);
  for (const node of every('input, select, button:not(.tpk-tab), canvas')) {{
    if (node.disabled) continue;
    const edge = getComputedStyle(node).borderTopColor;
    if (node.type !== 'checkbox') need(3, 'edge', edge, node.parentElement);
    if (node.placeholder) {{
      const style = getComputedStyle(node, '::placeholder');
      need(4.5, 'placeholder', style.color, node, Number(style.opacity));
    }}
  }}
  for (const node of every('polyline, circle, rect, .tpk-mark'))
    need(3, 'mark', getComputedStyle(node).stroke, node);
  for (const node of every('.tpk-problems, .tpk-strip'))
    need(3, 'edge', getComputedStyle(node).borderLeftColor, node);
  if (texts < 20) poor.push(`only ${{texts}} texts`);
  return poor;
}}"""

JS_OUTLINE = f"""() => {{ {_COLOURS}
  const style = getComputedStyle(document.activeElement);
  return [parseFloat(style.outlineWidth), style.outlineStyle === 'none' ? 0
    : contrast(style.outlineColor, document.activeElement)];
}}"""

JS_CONTROLS = """() => {
  const parts = 'button, input, select, summary, progress, [role=img], [role=tabpanel], table';
  return [...document.querySelectorAll(parts)].filter(n => n.checkVisibility()).map(node => {
    const by = node.getAttribute('aria-labelledby');
    const named = by ? document.getElementById(by).textContent : null;
    const own = node.getAttribute('aria-label') ?? named;
    const tag = node.tagName.toLowerCase();
    const inside = ['button', 'summary'].includes(tag) ? node.textContent : '';
    const text = tag === 'table' ? node.caption.textContent : inside;
    const beside = node.closest('label')?.firstChild.textContent.trim() ?? '';
    return { tag, name: own ?? text, label: beside || (own ? text : '') };
  });
}"""

_SAYS = """const says = n => n.getAttribute('aria-label') ?? n.textContent.trim().slice(0, 40);"""

# From the chosen tab on: other tabs are reached by arrow keys.
JS_FOCUSABLE = f"""() => {{ {_SAYS}
  const all = document.querySelectorAll('button, input, select, summary, [tabindex]');
  return [...all].filter(n => n.tabIndex === 0 && n.checkVisibility() && !n.disabled).map(says);
}}"""

JS_FOCUSED = f"() => {{ {_SAYS} return says(document.activeElement); }}"
