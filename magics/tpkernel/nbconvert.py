"""For ``nbconvert``: C++ in colour, and the static form of reports where widget state is stored.

``jupyter nbconvert --to html --HTMLExporter.preprocessors=tpkernel.nbconvert.PreferHtml …``

Where a notebook stores the state of its widgets, ``nbconvert`` prefers the live view, which loads
its scripts from the network and is empty without it.
"""

from __future__ import annotations

import re
from typing import Any

from nbconvert.preprocessors import Preprocessor

__all__ = ["PreferHtml"]

_VIEW = "application/vnd.jupyter.widget-view+json"
#: A cell of C++: comments and blank lines may stand above its magic.
_CELL = re.compile(r"\s*(?:(?:#|//)[^\n]*\n\s*)*%%tpkernel\b")


class PreferHtml(Preprocessor):
    """Colours cells as C++, and drops the widget's view where an output carries its own HTML."""

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
            if cell.cell_type == "code" and _CELL.match(cell.source):
                cell.metadata["magics_language"] = "cpp"
            for output in cell.get("outputs", ()):
                data = output.get("data", {})
                if "text/html" in data:
                    data.pop(_VIEW, None)
        return nb, resources
