"""What a cell shows while it runs: how far the build is, what the compiler says, one report."""

# IPython's displays carry no annotations.
# mypy: allow-untyped-calls

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from IPython.display import display

from tensorplay.utils.cpp_jit.diagnostics import Diagnostic
from tensorplay.utils.cpp_jit.watch import BuildWatch
from tpkernel.notebook.editor import LiveMessages, diagnostics_bundle, diagnostics_of
from tpkernel.report.widget import ReportWidget

__all__ = ["CellOutput", "CellWatch"]

#: Seconds of a build from which on it says how long it has run.
_A_MOMENT = 1.0


class CellOutput:
    """The one output of a cell: a line of progress, then the report or the compiler's messages.

    It is displayed early only where a kernel's front end can replace it. The last form is always
    displayed whole, so that a saved notebook holds the finished report.

    Parameters
    ----------
    shell
        The shell; one without a kernel has no editor and replaces nothing.
    cell_id
        The front end's id of the cell.
    cell_name
        What messages call the cell.
    """

    def __init__(self, shell: Any, cell_id: str | None, cell_name: str) -> None:
        self.cell_name = cell_name
        self.messages = LiveMessages(cell_id)
        self._live = getattr(shell, "kernel", None) is not None
        self._handle: Any = None
        self._line = ""

    def progress(self, line: str) -> None:
        """Say how far the build is."""
        if self._live and line != self._line:
            self._line = line
            self._put({"text/plain": line}, raw=True)

    def wait(self, widget: ReportWidget, during: str) -> None:
        """Show the report without checks, and what is running."""
        if not self._live:
            return
        widget.busy = f"running {during} …"
        if self._handle is None or self._line:
            self._line = ""
            self._put(widget)

    def finished(self, widget: ReportWidget) -> None:
        """Show the finished report."""
        widget.busy = ""
        self._put(widget)

    def failed(self, problem: BaseException) -> None:
        """Show what the compiler says of a cell that did not build, where a front end places it."""
        diagnostics = diagnostics_of(problem, self.cell_name)
        self.messages.tell(diagnostics)
        if diagnostics and self._live:
            self._put(diagnostics_bundle(diagnostics), raw=True)
        else:
            self.stopped("not built")

    def stopped(self, line: str) -> None:
        """Replace a line of progress by the last one."""
        if self._line:
            self.progress(line)

    def _put(self, shown: Any, **options: Any) -> None:
        if self._handle is not None:
            self._handle.update(shown, **options)
        elif self._live:
            self._handle = display(shown, display_id=True, **options)
        else:
            display(shown, **options)


class CellWatch(BuildWatch):
    """Shows what a build tells.

    Parameters
    ----------
    output
        Where.
    meanwhile
        What can be done while the compiler runs.
    """

    def __init__(self, output: CellOutput, meanwhile: Callable[[], None]) -> None:
        self._output = output
        self._meanwhile = meanwhile

    def waiting(self, for_whom: str) -> None:
        """Show who holds the lock."""
        self._output.progress(f"{for_whom} …")

    def started(self) -> None:
        """Do what waits for this."""
        self._meanwhile()

    def compiling(self, seconds: float) -> None:
        """Show for how long the compiler has run."""
        if seconds >= _A_MOMENT:
            self._output.progress(f"compiling, {int(seconds)} s …")

    def said(self, diagnostics: tuple[Diagnostic, ...]) -> None:
        """Let the editor show what the compiler has said by now."""
        name = self._output.cell_name
        own = [d for d in diagnostics if d.file == name]
        self._output.messages.tell(diagnostics_of(own, name))
