"""For ``nbconvert``: show the static form of reports in notebooks that hold widget state.

``jupyter nbconvert --to html --HTMLExporter.preprocessors=tpkernel.nbconvert.PreferHtml …``

Where a notebook stores the state of its widgets, ``nbconvert`` prefers the live view, which loads
its scripts from the network and is empty without it.
"""

from __future__ import annotations

from typing import Any

from nbconvert.preprocessors import Preprocessor

__all__ = ["PreferHtml"]

_VIEW = "application/vnd.jupyter.widget-view+json"


class PreferHtml(Preprocessor):
    """Drops the widget's view from each output that carries its own HTML."""

    def preprocess(self, nb: Any, resources: Any) -> tuple[Any, Any]:
        """Change a notebook.

        Parameters
        ----------
        nb
            The notebook.
        resources
            Passed on.
        """
        for cell in nb.cells:
            for output in cell.get("outputs", ()):
                data = output.get("data", {})
                if "text/html" in data:
                    data.pop(_VIEW, None)
        return nb, resources
