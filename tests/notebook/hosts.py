"""Pages that show a report's view outside of JupyterLab, as other hosts of widgets do.

They load the module from a blob under a policy that forbids the network, and give ``render`` a
model and an element. A model that stands in for theirs keeps what the view sends.
"""

from __future__ import annotations

import base64
import json
import re
import sys
from pathlib import Path
from typing import Any, Literal

from playwright.sync_api import FrameLocator, Page

from tpkernel.report.widget import ReportWidget

Theme = Literal["light", "dark"]

POLICY = (
    "default-src 'none'; script-src 'unsafe-inline' blob:; style-src 'unsafe-inline'; img-src data:"
)
HOST = """<!doctype html><html ATTRIBUTES><meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="POLICY">
<style>STYLE</style><body><div id="here"></div><script type="module">
const given = GIVEN;
const revive = (key, value) => value && value.__bytes__ !== undefined
  ? new DataView(Uint8Array.from(atob(value.__bytes__), c => c.charCodeAt(0)).buffer) : value;
const state = JSON.parse(given.state, revive);
const handlers = {};
window.sent = [];
const model = {
  get: name => state[name],
  set: (name, value) => {
    state[name] = value;
    (handlers[`change:${name}`] ?? []).forEach(f => f());
  },
  save_changes: () => {},
  on: (event, handler) => { (handlers[event] ??= []).push(handler); },
  off: (event, handler) => {
    handlers[event] = (handlers[event] ?? []).filter(f => f !== handler);
  },
  send: content => window.sent.push(content),
};
window.model = model;
const style = document.createElement("style");
style.textContent = given.css;
document.head.append(style);
const url = URL.createObjectURL(new Blob([given.esm], { type: "text/javascript" }));
const { default: view } = await import(url);
window.end = view.render({ model, el: document.getElementById("here") });
</script></body></html>"""


def _plain(value: Any) -> Any:
    assert isinstance(value, bytes)
    return {"__bytes__": base64.b64encode(value).decode()}


def host(widget: ReportWidget, *, attributes: str = "", style: str = "") -> str:
    """Return the page of a host with the widget in it."""
    names = ("facts", "choices", "busy", "error", "can_run", "can_cancel")
    state = json.dumps({name: getattr(widget, name) for name in names}, default=_plain)
    given = {"state": state, "esm": str(widget._esm), "css": str(widget._css)}
    made = HOST.replace("ATTRIBUTES", attributes).replace("POLICY", POLICY).replace("STYLE", style)
    return made.replace("GIVEN", json.dumps(given).replace("</", "<\\/"))


def in_frame(page: Page, content: str) -> FrameLocator:
    """Show a page in a frame that may run scripts and do nothing else."""
    page.set_content('<iframe sandbox="allow-scripts" width="900" height="700"></iframe>')
    page.locator("iframe").evaluate("(frame, text) => { frame.srcdoc = text; }", content)
    return page.frame_locator("iframe")


def in_theme(widget: ReportWidget, theme: Theme) -> str:
    """Return a page with the widget in the colours of one of JupyterLab's own themes."""
    themes = Path(sys.prefix, "share", "jupyter", "lab", "themes", "@jupyterlab")
    style = (themes / f"theme-{theme}-extension" / "index.css").read_text("utf-8")
    style = re.sub(r"@font-face\s*{[^}]*}|url\([^)]*\)", "", style)
    style += (
        "body { background: var(--jp-layout-color0); color: var(--jp-content-font-color1);"
        " font-family: var(--jp-ui-font-family); font-size: 13px; margin: 6px; }"
    )
    page = host(widget, style=style)
    is_light = str(theme == "light").lower()
    return page.replace("<body>", f'<body data-jp-theme-light="{is_light}">')
