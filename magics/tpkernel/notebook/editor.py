"""What the cell's editor is told: compiler messages at lines and columns of the cell.

Our extension of JupyterLab (``labextension/``) reads them from an output of the cell, which is
saved with the notebook, and from a comm, which is there at once. Front ends without the extension
show the table.
"""

# comm's create_comm carries no annotations.
# mypy: allow-untyped-calls

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tensorplay.utils import cpp_jit
from tpkernel.errors import CellError
from tpkernel.report.markup import details, one_line, table
from tpkernel.report.report import Report

__all__ = [
    "DIAGNOSTICS_MIME",
    "LiveMessages",
    "diagnostics_bundle",
    "diagnostics_of",
    "report_diagnostics",
]

#: The mime type of messages in an output.
DIAGNOSTICS_MIME = "application/vnd.tpkernel.diagnostics+json"
_COMM = "tpkernel.diagnostics"


def diagnostics_of(found: Any, cell_name: str) -> list[dict[str, Any]]:
    """Return messages as the extension takes them.

    Parameters
    ----------
    found
        An exception of a cell that did not build, or records with `line`, `column`, `level`,
        `message`, `fix` and `source_line`.
    cell_name
        What the messages call the cell, such as ``In[5]``: those about other files are left out.

    Returns
    -------
    list of dict
        Lines and columns count from 1, columns in UTF-16 units as editors of the web count them.
    """
    if isinstance(found, CellError):
        if found.line is None:
            return []
        text = f"[{found.subject}] {found.message}" if found.subject else found.message
        column = found.column
        return [
            _message(found.line, column, "error", text, None, found.source_line, in_bytes=False)
        ]
    records: Iterable[Any] = found
    if isinstance(found, cpp_jit.BuildError):
        records = [d for d in found.diagnostics if d.file == cell_name]
    elif isinstance(found, BaseException):
        return []
    return [
        # Where a semicolon is missing the place was moved, and counts characters.
        _message(d.line, d.column, d.level, d.message, d.fix, d.source_line, in_bytes=d.fix != ";")
        for d in records
        if d.line
    ]


def _message(
    line: int,
    column: int | None,
    level: str,
    text: str,
    fix: str | None,
    source: str | None,
    *,
    in_bytes: bool,
) -> dict[str, Any]:
    made: dict[str, Any] = {"line": line, "severity": level, "message": text}
    if source is not None:
        made["source_line"] = source
    if column is not None:
        made["column"] = _editor_column(source, column, in_bytes=in_bytes)
    if fix:
        made["fix"] = fix
    return made


def _editor_column(source: str | None, column: int, *, in_bytes: bool) -> int:
    """Return a column in UTF-16 units.

    Compilers count bytes where they cannot read the file that ``#line`` names.
    """
    if source is None or source.isascii():
        return column
    if in_bytes:
        before = source.encode()[: column - 1].decode(errors="ignore")
    else:
        before = source[: column - 1]
    return len(before.encode("utf-16-le")) // 2 + 1


def diagnostics_bundle(diagnostics: list[dict[str, Any]]) -> dict[str, Any]:
    """Return an output with the messages: for the extension, and as a table for everyone else."""
    rows = [
        (
            d["severity"],
            f"{d['line']}:{d['column']}" if "column" in d else str(d["line"]),
            d["message"] + (f" (write {d['fix']})" if "fix" in d else ""),
            d.get("source_line", "").strip(),
        )
        for d in diagnostics
    ]
    heads = ("level", "line", "message", "source")
    count = f"{len(rows)} compiler message" + ("" if len(rows) == 1 else "s")
    return {
        DIAGNOSTICS_MIME: {"diagnostics": diagnostics},
        "text/html": one_line(details(count, table("Messages", heads, rows), opened=False)),
        "text/plain": "\n".join(f"{level} at line {at}: {text}" for level, at, text, _ in rows),
    }


def report_diagnostics(report: Report) -> list[dict[str, Any]]:
    """Return the warnings of a build that stand at lines of the cell's own text."""
    if report.origin is None:
        return []
    request = report.origin.request
    lines = dict(enumerate(request.text.split("\n"), request.first_line))
    own = [
        d
        for d in report.build.diagnostics
        if d.source_line is not None and lines.get(d.line, "").rstrip("\r") == d.source_line
    ]
    return diagnostics_of(own, report.cell)


class LiveMessages:
    """Tells the front end the messages of one run of a cell, while the compiler adds to them.

    Parameters
    ----------
    cell_id
        The front end's id of the cell; without one nobody listens.
    """

    def __init__(self, cell_id: str | None) -> None:
        self._cell_id = cell_id
        self._comm: Any = None
        self._told: list[Any] = []

    def tell(self, diagnostics: Sequence[Mapping[str, Any]]) -> None:
        """Replace what the front end shows, if that is something else."""
        if self._cell_id is None or list(diagnostics) == self._told:
            return
        self._told = list(diagnostics)
        data = {"cell_id": self._cell_id, "diagnostics": self._told}
        if self._comm is None:
            from comm import create_comm

            self._comm = create_comm(target_name=_COMM, data=data)
        else:
            self._comm.send(data)

    def close(self) -> None:
        """End the connection; what was told stays."""
        if self._comm is not None:
            self._comm.close(deleting=True)
            self._comm = None
