#!/usr/bin/env python3
"""Run the notebooks and write them as HTML pages that need neither scripts nor a network.

::

    python notebooks/render.py FOLDER [NOTEBOOK …]

Without names, all notebooks of this folder. Reports appear in their static form.
"""

from __future__ import annotations

import html
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbconvert import HTMLExporter
from nbformat import NotebookNode

from tpkernel.nbconvert import PreferHtml

HERE = Path(__file__).resolve().parent
# Lines of output are broken between words, as text is.
_STYLE = "<style>.jp-OutputArea-output pre { word-break: normal; overflow-wrap: anywhere; }</style>"
# What nbconvert writes for pictures that do not say what they show.
_UNDESCRIBED = 'alt="No description has been provided for this image"'
_SAID_IN_PLOT = re.compile(r'(?:title|label)(?:=|\()f?"([^"]+)"')
_SCRIPT = re.compile(r"<script\b.*?</script\s*>", re.DOTALL | re.IGNORECASE)


def execute(path: Path) -> NotebookNode:
    """Return a notebook with its outputs; a cell that raises ends the run."""
    notebook = nbformat.read(path, as_version=4)
    NotebookClient(
        notebook,
        timeout=300,
        kernel_name="python3",
        resources={"metadata": {"path": str(path.parent)}},
        store_widget_state=False,  # with it nbconvert would drop the static form of each report
    ).execute()
    return notebook


def descriptions(notebook: NotebookNode) -> Iterator[str]:
    """Give a text for each plot, in order: the section it stands in, and its titles and labels."""
    section = ""
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            section = (re.findall(r"^#+ (.+)$", cell.source, re.MULTILINE) or [section])[-1]
        said = [text for text in _SAID_IN_PLOT.findall(cell.source) if "{" not in text]
        for output in cell.get("outputs", ()):
            if "image/png" in output.get("data", {}):
                yield "; ".join(dict.fromkeys((f"plot for the section {section}", *said)))


def page(notebook: NotebookNode, title: str) -> str:
    """Return an executed notebook as HTML without scripts."""
    exporter = HTMLExporter(preprocessors=[PreferHtml])
    body, _ = exporter.from_notebook_node(notebook, {"metadata": {"name": title}})
    body = _SCRIPT.sub("", body).replace("</head>", f"{_STYLE}</head>", 1)
    for text in descriptions(notebook):
        body = body.replace(_UNDESCRIBED, f'alt="{html.escape(text)}"', 1)
    # Links between the notebooks lead to the other pages.
    return re.sub(r'href="(\d\d_\w+)\.ipynb"', r'href="\1.html"', body)


def main(arguments: list[str]) -> None:
    """Write the pages."""
    if not arguments:
        sys.exit(__doc__)
    folder = Path(arguments[0])
    folder.mkdir(parents=True, exist_ok=True)
    paths = [Path(name) for name in arguments[1:]] or sorted(HERE.glob("*.ipynb"))
    for path in paths:
        file = folder / f"{path.stem}.html"
        file.write_text(page(execute(path), path.stem), "utf-8")
        sys.stdout.write(f"{file}\n")


if __name__ == "__main__":
    main(sys.argv[1:])
