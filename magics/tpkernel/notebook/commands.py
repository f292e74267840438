"""``%tpkernel``: what the session holds, what the cache holds, and what the machine has."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any

from IPython.core.error import UsageError

from tensorplay.utils import cpp_jit
from tpkernel.errors import did_you_mean
from tpkernel.notebook.tracebacks import mark_short

if TYPE_CHECKING:
    from tpkernel.report.report import Report

__all__ = ["COMMANDS", "Held", "Table", "run_command"]


_MOST_ROWS = 40


@dataclass(frozen=True)
class Table:
    """Rows under a title, shown as text or HTML."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""

    def __str__(self) -> str:
        lines = [self.title]
        if self.rows:
            grid = [self.columns, *self.rows]
            widths = [max(len(row[i]) for row in grid) for i in range(len(self.columns))]
            lines += ["  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip()
                      for row in grid]  # fmt: skip
        return "\n".join([*lines, *([self.note] if self.note else [])])

    __repr__ = __str__

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        # JupyterLab puts what stands in a table to the right, as numbers are.
        left = "style='text-align: left'"
        head = "".join(f"<th scope=col {left}>{escape(c)}</th>" for c in self.columns)
        body = "".join(
            "<tr>" + "".join(f"<td {left}>{escape(c)}</td>" for c in row) + "</tr>"
            for row in self.rows
        )
        table = f"<table><tr>{head}</tr>{body}</table>" if self.rows else ""
        note = f"<p>{escape(self.note)}</p>" if self.note else ""
        html = f"<div><p>{escape(self.title)}</p>{table}{note}</div>"
        return {"text/plain": str(self), "text/html": html}


@dataclass(frozen=True)
class Held:
    """One name that a cell has bound."""

    name: str
    kind: str
    cell: str
    report: Report | None
    show: Callable[[], Any]


def run_command(line: str, held: Mapping[str, Held]) -> Any:
    """Run ``%tpkernel COMMAND …``.

    Parameters
    ----------
    line
        What stands after ``%tpkernel``.
    held
        The names that the session's cells have bound.

    Returns
    -------
    object
        What the notebook displays, or None.

    Raises
    ------
    UsageError
        An unknown command or name, or one argument too many or too few.
    """
    words = shlex.split(line.partition(" #")[0])
    if not words:
        return help_table()
    name, *arguments = words
    if name.startswith("-"):
        message = (
            f"%tpkernel: {name} is an option of cells, and options belong to %%tpkernel, with two "
            f"percent signs, on the first line of a cell of C++: %%tpkernel {line.strip()}"
        )
        raise UsageError(message)
    if name not in COMMANDS:
        hint = did_you_mean(name, COMMANDS)
        message = f"%tpkernel: unknown command '{name}'{hint} Commands: {', '.join(COMMANDS)}"
        raise UsageError(message)
    command = COMMANDS[name]
    low, high = command.counts
    if not low <= len(arguments) <= high:
        message = f"%tpkernel: expected %tpkernel {command.usage}, got {len(arguments)} arguments"
        raise UsageError(message)
    return command.run(arguments, held)


def _find(name: str, held: Mapping[str, Held]) -> Held:
    plain = name.rpartition("::")[2]
    if plain not in held:
        known = ", ".join(held) or "none yet"
        message = f"%tpkernel: no cell has bound '{name}'{did_you_mean(plain, held)} Names: {known}"
        raise UsageError(message)
    return held[plain]


def _list(arguments: Sequence[str], held: Mapping[str, Held]) -> Table:
    rows = tuple(
        (h.name, h.kind, h.cell, h.report.title.partition(" · ")[2] if h.report else "")
        for h in held.values()
    )
    title = f"{len(rows)} names bound by %%tpkernel cells"
    return Table(title, ("name", "kind", "cell", "report"), rows)


def _show(arguments: Sequence[str], held: Mapping[str, Held]) -> Any:
    return _find(arguments[0], held).show()


def _cache(arguments: Sequence[str], held: Mapping[str, Held]) -> Table:
    entries = cpp_jit.cache.entries(arguments[0] if arguments else None)
    rows = tuple(
        (e.name, f"{e.size / 2**10:.0f} KiB", f"{e.seconds:.2f} s", e.created, str(e.folder))
        for e in entries[:_MOST_ROWS]
    )
    note = f"and {len(entries) - len(rows)} older ones" if len(entries) > len(rows) else ""
    own = sum(e.size for e in entries)
    called = f" called '{arguments[0]}'" if arguments else ""
    title = f"{len(entries)} libraries{called} in the build cache, {own / 2**20:.1f} MiB"
    if not arguments:  # the same number as in doctor
        title += f" of {cpp_jit.cache.size() / 2**20:.0f} MiB with precompiled headers"
    return Table(title, ("name", "size", "built in", "at", "folder"), rows, note)


def _clear(arguments: Sequence[str], held: Mapping[str, Held]) -> Table:
    if arguments and not cpp_jit.cache.entries(arguments[0]):
        guess = did_you_mean(arguments[0], {e.name for e in cpp_jit.cache.entries()})
        message = (
            f"%tpkernel: the build cache has no library '{arguments[0]}'{guess} %tpkernel cache "
            "lists them"
        )
        raise UsageError(message)
    freed = cpp_jit.cache.clear(arguments[0] if arguments else None)
    what = f"the libraries called '{arguments[0]}'" if arguments else "all libraries"
    title = f"{what} are removed from the build cache, {freed / 2**20:.1f} MiB"
    return Table(title, (), (), "What is loaded goes on working.")


def _doctor(arguments: Sequence[str], held: Mapping[str, Held]) -> Table:
    from tpkernel.notebook.doctor import examine

    checks = examine()
    signs = {"ok": "✔", "missing": "✘", "absent": "–"}
    rows = tuple((signs[c.status], c.name, c.found, c.advice.replace("\n", " ")) for c in checks)
    wrong = [c.name for c in checks if c.status == "missing"]
    title = f"not in order: {', '.join(wrong)}" if wrong else "everything that cells need is here"
    note = "– is not installed and is not needed for cells of C++"
    return Table(title, ("", "tool", "found", "what to do"), rows, note)


def _export(arguments: Sequence[str], held: Mapping[str, Held]) -> Table:
    name, folder = arguments
    report = _find(name, held).report
    if report is None:
        message = f"%tpkernel: '{name}' has no report to export; run its cell again"
        raise UsageError(message)
    try:
        written = report.export(folder)
    except (FileExistsError, RuntimeError, ValueError) as problem:
        raise mark_short(problem) from None
    return Table(f"written to {written}; install it with pip install {written}", (), ())


@dataclass(frozen=True)
class _Command:
    usage: str
    help: str
    counts: tuple[int, int]
    run: Callable[[Sequence[str], Mapping[str, Held]], Any]


#: What can stand after ``%tpkernel``.
COMMANDS: Mapping[str, _Command] = {
    "list": _Command("list", "names that cells have bound, and how they stand", (0, 0), _list),
    "show": _Command("show NAME", "the report of the cell that bound a name", (1, 1), _show),
    "cache": _Command("cache [LIBRARY]", "libraries in the build cache", (0, 1), _cache),
    "clear": _Command("clear [LIBRARY]", "remove them from the cache", (0, 1), _clear),
    "doctor": _Command("doctor", "try each tool once, and say what is missing", (0, 0), _doctor),
    "export": _Command(
        "export NAME DIR", "write the cell's operators as a package", (2, 2), _export
    ),
}


def help_table() -> Table:
    """Return the commands."""
    rows = tuple((f"%tpkernel {c.usage}", c.help) for c in COMMANDS.values())
    return Table("commands; %%tpkernel? has the options of cells", ("command", "what"), rows)
