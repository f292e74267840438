"""The report as a widget: the live view, static HTML and text of the same facts in one bundle.

All state is plain data; the view (``static/report.js``) only draws it. Buttons send messages to the
kernel, which may answer in another thread than the cells run in, so everything a callback reaches
is behind a lock. An error in a callback is shown in the widget's own strip and kept in
`last_error`.
"""

from __future__ import annotations

import threading
import traceback
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import anywidget
import traitlets

from tpkernel.report import Report

__all__ = ["ReportWidget"]

_STATIC = Path(__file__).parent / "static"

#: Runs checks by name with a seed and returns the new report.
Rerun = Callable[[tuple[str, ...], int], Report]


class ReportWidget(anywidget.AnyWidget):
    """One report, live.

    Parameters
    ----------
    report
        The report.
    rerun
        Runs checks again; None leaves the buttons out.

    Attributes
    ----------
    report
        The report now shown.
    last_error
        The exception of the last callback, or None after one that went well.
    """

    # Texts, not paths: anywidget watches a path, and the watch keeps every widget alive.
    _esm = (_STATIC / "report.js").read_text("utf-8")
    _css = (_STATIC / "report.css").read_text("utf-8")

    facts = traitlets.Dict().tag(sync=True)
    busy = traitlets.Unicode("").tag(sync=True)
    error = traitlets.Dict().tag(sync=True)
    can_rerun = traitlets.Bool(default_value=False).tag(sync=True)

    def __init__(self, report: Report, rerun: Rerun | None = None) -> None:
        self._action = threading.RLock()
        self._rerun = rerun
        self.report = report
        self.last_error: BaseException | None = None
        super().__init__(facts=_facts(report), can_rerun=rerun is not None)
        self.on_msg(self._message)

    def _message(self, _widget: Any, content: Mapping[str, Any], _buffers: Any) -> None:
        """Answer the view's buttons."""
        if content.get("action") == "rerun":
            self.run_checks(content.get("checks", ()), content.get("seed", 0))

    def run_checks(self, checks: Iterable[str] = ("gradcheck",), seed: Any = 0) -> None:
        """Run checks again and show the result.

        Parameters
        ----------
        checks
            Their names.
        seed
            Seed of made samples, a whole number.

        Notes
        -----
        An error does not propagate: it is shown in the widget's strip and kept in `last_error`.
        """
        if self._rerun is None:
            return
        with self._action:
            try:
                names = tuple(map(str, checks))
                self.busy = f"running {', '.join(names)} …"
                self.show(self._rerun(names, _seed(seed)))
            except Exception as problem:  # noqa: BLE001  (shown to the person and kept)
                self.last_error = problem
                self.error = _strip(problem)
            else:
                self.last_error = None
                self.error = {}
            finally:
                self.busy = ""

    def close(self) -> None:
        """Close the widget and the layout that came with it."""
        if self.layout is not None:
            self.layout.close()
        super().close()

    def show(self, report: Report) -> None:
        """Show another report in place of the one shown now."""
        with self._action:
            self.report = report
            self.facts = _facts(report)

    def update(self, make: Callable[[Report], Report]) -> Report:
        """Show what `make` makes of the report; buttons that are pressed meanwhile wait."""
        with self._action:
            self.show(make(self.report))
            return self.report

    def _repr_mimebundle_(self, **kwargs: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        data, metadata = super()._repr_mimebundle_(**kwargs) or ({}, {})
        texts = {"text/html": self.report.to_html(), "text/plain": self.report.to_text()}
        return {**data, **texts}, metadata

    def __repr__(self) -> str:
        return f"<ReportWidget {self.report.title}>"


def _seed(value: Any) -> int:
    """Return the seed that a view sent; an empty field of numbers arrives as None."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or value % 1 != 0:
        message = f"the seed must be a whole number, got {value!r}"
        raise ValueError(message)
    if value < 0:
        message = f"the seed must not be negative, got {value!r}"
        raise ValueError(message)
    return int(value)


def _facts(report: Report) -> dict[str, Any]:
    """Return the report's plain data, with source coloured for the view."""
    facts = report.to_dict()
    for operator in facts["operators"]:
        for part in ("wrapper", "fake", "gradient"):
            operator[f"{part}_html"] = _classes(operator[part]) if operator[part] else ""
    facts["text"] = report.to_text()
    return facts


def _classes(source: str) -> str:
    """Return Python source as escaped HTML whose colours follow the notebook's theme."""
    from pygments import highlight
    from pygments.formatters import HtmlFormatter
    from pygments.lexers import PythonLexer

    return str(highlight(source, PythonLexer(), HtmlFormatter(nowrap=True, classprefix="tpk-")))


def _strip(problem: BaseException) -> dict[str, str]:
    """Return what the error strip shows: type, text, and the person's own frames."""
    own = str(Path(__file__).parent)
    frames = [
        f"{f.filename}:{f.lineno} in {f.name}"
        for f in traceback.extract_tb(problem.__traceback__)
        if not f.filename.startswith(own)
    ]
    return {"type": type(problem).__name__, "text": str(problem), "frames": "\n".join(frames[-5:])}
