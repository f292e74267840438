"""The report as a widget: the live view, static HTML and text of the same facts in one bundle.

All state is plain data; the view (``static/*.js``) only draws it. Its buttons send messages to the
kernel. What they ask for runs in a thread of the widget's own, so that the kernel is free for the
message that cancels it, and in the check worker, so that a kernel that crashes ends that one.
Messages may arrive in another thread than the cells run in, so everything a callback reaches is
behind a lock. An error in a callback is shown in the widget's own strip and kept in `last_error`.
"""

from __future__ import annotations

import contextvars
import dataclasses
import os
import struct
import threading
import traceback
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import anywidget
import numpy as np
import traitlets

from tpkernel.building.listing import listing_of
from tpkernel.checks.jobs import CompileJob, GradcheckJob, OpcheckJob, TimingJob, run_job, with_job
from tpkernel.checks.samples import make_samples
from tpkernel.errors import is_own_file
from tpkernel.notebook.editor import DIAGNOSTICS_MIME, report_diagnostics
from tpkernel.report.bounds import bounded
from tpkernel.report.facts import GradcheckSettings, JacobianFacts
from tpkernel.report.report import Report
from tpkernel.report.summary import jacobian_text, validation_title

__all__ = ["ReportWidget"]

_STATIC = Path(__file__).parent / "static"
#: The mime type by which our extension of JupyterLab shows the static form at once.
REPORT_MIME = "application/vnd.tpkernel.report+json"
#: Seconds that work behind a button may take; a person can cancel it before.
_BUDGET = 300.0

_Work = Callable[[Report, Callable[[str], None]], Report]


class CancelledError(Exception):
    """A person pressed Cancel."""


def _source(*names: str) -> str:
    return "\n".join((_STATIC / name).read_text("utf-8") for name in names)


class ReportWidget(anywidget.AnyWidget):
    """One report, live.

    Parameters
    ----------
    report
        The report. One that was made by a build of this session gets controls.

    Attributes
    ----------
    report
        The report now shown.
    last_error
        The exception of the last callback, or None after one that went well.
    """

    # Texts, not paths: anywidget watches a path, and the watch keeps every widget alive.
    _esm = _source("elements.js", "plots.js", "sections.js", "report.js")
    _css = _source("report.css")

    facts = traitlets.Dict().tag(sync=True)
    choices = traitlets.Dict().tag(sync=True)
    busy = traitlets.Unicode("").tag(sync=True)
    error = traitlets.Dict().tag(sync=True)
    can_run = traitlets.Bool(default_value=False).tag(sync=True)
    can_cancel = traitlets.Bool(default_value=False).tag(sync=True)

    def __init__(self, report: Report) -> None:
        self._action = threading.RLock()
        self._thread: threading.Thread | None = None
        self._cancelled = threading.Event()
        self.report = report
        self.last_error: BaseException | None = None
        super().__init__(
            facts=_facts(report), choices=_choices(report), can_run=report.origin is not None
        )
        self.on_msg(self._message)

    def _message(self, _widget: Any, content: Mapping[str, Any], _buffers: Any) -> None:
        """Answer the view's buttons."""
        action = content.get("action")
        if action == "cancel":
            self.cancel()
            return
        try:
            work = self._work(str(action), content)
        except Exception as problem:  # noqa: BLE001  (shown to the person and kept)
            self._show_error(problem)
            return
        self.start(work)

    def _work(self, action: str, content: Mapping[str, Any]) -> _Work:
        """Return what a message asks for."""
        if action == "listing":
            return _list
        job: Any
        if action == "gradcheck":
            job = GradcheckJob(_settings(content.get("settings", {})))
        elif action == "timing":
            dtype = content.get("dtype") or None
            job = TimingJob(reference=str(content.get("reference") or "").strip(), dtype=dtype)
        elif action == "opcheck":
            job = OpcheckJob()
        elif action == "compile":
            job = CompileJob()
        else:
            message = f"unknown action {action!r}"
            raise ValueError(message)

        def run(report: Report, on_wait: Callable[[str], None]) -> Report:
            return with_job(report, job, run_job(report, job, budget=_BUDGET, on_wait=on_wait))

        return run

    def start(self, work: _Work) -> None:
        """Begin work on the report in a thread; one at a time.

        Parameters
        ----------
        work
            Takes the report and what to call a few times a second; returns the new report.

        Notes
        -----
        An error does not propagate: it is shown in the widget's strip and kept in `last_error`.
        """
        if self._thread is not None and self._thread.is_alive():
            self._show_error(RuntimeError("work is running; cancel it first"))
            return
        self._cancelled.clear()
        context = contextvars.copy_context()  # whose cell the output of the thread belongs to
        self._thread = threading.Thread(
            target=context.run, args=(self._run, work), name="tpkernel-report", daemon=True
        )
        self._thread.start()

    def cancel(self) -> None:
        """End the work that is running; its results are dropped."""
        self._cancelled.set()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until no work is running; returns whether that is so."""
        if self._thread is not None:
            self._thread.join(timeout)
            return not self._thread.is_alive()
        return True

    def _run(self, work: _Work) -> None:
        self.can_cancel = True
        self.busy = "waiting for the check worker …"

        def on_wait(during: str) -> None:
            if self._cancelled.is_set():
                raise CancelledError
            self.busy = f"running {during} …"

        try:
            with self._action:
                on_wait("what was asked")
                self.show(work(self.report, on_wait))
        except CancelledError:
            self.last_error = None
            self.error = {"type": "Cancelled", "text": "the report is as it was.", "frames": ""}
        except Exception as problem:  # noqa: BLE001  (shown to the person and kept)
            self._show_error(problem)
        else:
            self.last_error = None
            self.error = {}
        finally:
            self.can_cancel = False
            self.busy = ""

    def _show_error(self, problem: BaseException) -> None:
        self.last_error = problem
        self.error = _strip(problem)

    def close(self) -> None:
        """Close the widget and the layout that came with it; work that is running ends."""
        self.cancel()
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
        live = _somebody_reads()
        data, metadata = (super()._repr_mimebundle_(**kwargs) if live else None) or ({}, {})
        texts = {"text/html": self.report.to_html(), "text/plain": self.report.to_text()}
        bundle = {REPORT_MIME: {"version": 1}, **data, **texts}
        if diagnostics := report_diagnostics(self.report):
            bundle[DIAGNOSTICS_MIME] = {"diagnostics": diagnostics}
        return bundle, metadata

    def __repr__(self) -> str:
        return f"<ReportWidget {self.report.title}>"


def _somebody_reads() -> bool:
    """Whether a person may press the view's buttons.

    What executes notebooks by itself (nbclient, and so nbconvert and papermill) cannot ask anybody
    for input and says so. It stores a state for the view, which exporters then prefer to the static
    form, and which is empty without a network. Voilà executes in the same way, for a person.
    """
    from IPython.core.getipython import get_ipython

    kernel = getattr(get_ipython(), "kernel", None)
    if kernel is None or os.environ.get("SERVER_SOFTWARE", "").startswith("voila"):
        return True
    content = kernel.get_parent("shell").get("content", {})
    return bool(content.get("allow_stdin", True))


def _list(report: Report, on_wait: Callable[[str], None]) -> Report:
    on_wait("the compiler")
    listing = listing_of(report)
    on_wait("the compiler")
    return dataclasses.replace(report, listing=listing)


# -- what the view sends --------------------------------------------------------------------------


def _settings(sent: Mapping[str, Any]) -> GradcheckSettings:
    """Return what a person chose in the view, whose fields hold text.

    Raises
    ------
    ValueError
        A field that holds no number, or no shape.
    """
    mode: Any = str(sent.get("mode", "reverse"))
    return GradcheckSettings(
        operator=str(sent.get("operator", "")),
        shapes={str(n): _shape(str(n), text) for n, text in dict(sent.get("shapes", {})).items()},
        dtype=sent.get("dtype") or None,
        seed=_seed(sent.get("seed", 0)),
        step=_number("step", sent.get("step")),
        atol=_number("atol", sent.get("atol")),
        rtol=_number("rtol", sent.get("rtol")),
        mode=mode,
        fast=bool(sent.get("fast")),
        inputs=_names(sent.get("inputs", ())),
        order=2 if sent.get("order") == 2 else 1,
        curve=bool(sent.get("curve")),
    )


def _names(values: Iterable[Any]) -> tuple[str, ...]:
    return tuple(map(str, values))


def _shape(name: str, text: Any) -> tuple[int, ...]:
    words = str(text).strip().strip("()[]").replace(",", " ").replace("×", " ").split()
    if not all(word.isdigit() for word in words):
        message = f"the shape of {name} must be whole numbers such as 7, 3, got {text!r}"
        raise ValueError(message)
    return tuple(map(int, words))


def _number(name: str, value: Any) -> float | None:
    if value in (None, ""):
        return None
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = float("nan")
    if isinstance(value, bool) or not np.isfinite(number):
        message = f"{name} must be a number, got {value!r}"
        raise ValueError(message)
    return number


def _seed(value: Any) -> int:
    """Return the seed that a view sent, as a number or as text."""
    text = str(value).strip() if isinstance(value, (int, float, str)) else ""
    try:
        number = float(text)
    except ValueError:
        number = float("nan")
    if isinstance(value, bool) or number % 1 != 0:
        message = f"the seed must be a whole number, got {value!r}"
        raise ValueError(message)
    if number < 0:
        message = f"the seed must not be negative, got {value!r}"
        raise ValueError(message)
    return int(number)


# -- what the view gets ---------------------------------------------------------------------------


def _choices(report: Report) -> dict[str, Any]:
    """Return, per operator, what the view's controls offer."""
    if report.origin is None:
        return {}
    made: dict[str, Any] = {}
    for spec in report.origin.spec.operators:
        if spec.helper:
            continue
        tensors = [a for a in spec.inputs if a.kind == "tensor"]
        try:
            sample = make_samples(spec)[-1].values
        except Exception:  # noqa: BLE001  (a person's expression; the checks report it)
            sample = {}
        derived = {d.input for d in spec.derivatives}
        made[spec.name] = {
            "shapes": {
                a.name: ", ".join(map(str, np.shape(sample[a.name])))
                for a in tensors
                if sample.get(a.name) is not None and not a.is_list
            },
            "inputs": [a.name for a in tensors if a.name in derived],
            "dtypes": list(dict.fromkeys(d for a in tensors for d in a.dtypes)),
            "reference": spec.reference,
        }
    return made


def _facts(report: Report) -> dict[str, Any]:
    """Return the report's plain data, with source coloured and matrices packed for the view."""
    whole, report = report, bounded(report)
    facts = _without_matrices(report).to_dict()
    facts.update(title=whole.title, ok=whole.ok)
    if whole.validation:
        facts["validation_title"] = validation_title(whole)
    for operator in facts["operators"]:
        for part in ("wrapper", "fake", "gradient"):
            operator[f"{part}_html"] = _classes(operator[part]) if operator[part] else ""
    for check, shown in zip(report.gradcheck, facts["gradcheck"], strict=True):
        for pair, made in zip(check.pairs, shown["pairs"], strict=True):
            made["jacobian"] = None if pair.jacobian is None else _packed(pair.jacobian)
            made["jacobian_text"] = jacobian_text(pair)
    return facts


def _without_matrices(report: Report) -> Report:
    checks = tuple(
        dataclasses.replace(
            check, pairs=tuple(dataclasses.replace(p, jacobian=None) for p in check.pairs)
        )
        for check in report.gradcheck
    )
    return dataclasses.replace(report, gradcheck=checks)


def _packed(facts: JacobianFacts) -> dict[str, Any]:
    """Return matrices as bytes of float64, which travel beside the message."""
    sides = (facts.analytical, facts.numerical)
    is_complex = any(isinstance(v, complex) for side in sides for v in side)
    real = [[complex(v).real for v in side] for side in sides]
    packed: dict[str, Any] = {
        "input_shape": list(facts.input_shape),
        "output_shape": list(facts.output_shape),
        "parts": facts.parts,
        "rows": facts.rows,
        "columns": facts.columns,
        "analytical": _bytes(real[0]),
        "numerical": _bytes(real[1]),
        "difference": _bytes(facts.difference),
        "allowed": _bytes(facts.allowed),
    }
    if is_complex:
        packed["imaginary"] = [_bytes([complex(v).imag for v in side]) for side in sides]
    if facts.places:
        packed["places"] = _bytes([float(n) for place in facts.places for n in place])
    return packed


def _bytes(values: Iterable[float]) -> bytes:
    numbers = list(values)
    return struct.pack(f"<{len(numbers)}d", *numbers)


def _classes(source: str) -> str:
    """Return Python source as escaped HTML whose colours follow the notebook's theme."""
    from pygments import highlight
    from pygments.formatters import HtmlFormatter
    from pygments.lexers import PythonLexer

    return str(highlight(source, PythonLexer(), HtmlFormatter(nowrap=True, classprefix="tpk-")))


def _strip(problem: BaseException) -> dict[str, str]:
    """Return what the error strip shows: type, text, and the person's own frames."""
    frames = []
    for frame, line in traceback.walk_tb(problem.__traceback__):
        code, module = frame.f_code, str(frame.f_globals.get("__name__"))
        # The latter is what the standard library writes for classes.
        made = code.co_filename == "<string>" and module.partition(".")[0] == "tpkernel"
        if not made and not is_own_file(code.co_filename):
            frames.append(f"{code.co_filename}:{line} in {code.co_name}")
    return {"type": type(problem).__name__, "text": str(problem), "frames": "\n".join(frames[-5:])}
