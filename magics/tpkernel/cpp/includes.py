"""``#include "cell:NAME"``: the C++ of an earlier cell inside a later one.

The earlier cell's text is put in front of the later one's, under its own name and lines, and each
cell once. Its functions are there to be called; only the later cell's own are exported. What is
included is part of the build's key, so that an edit of the earlier cell is an edit of both.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tpkernel.cells.cell import Cell, parse_cell
from tpkernel.errors import did_you_mean

__all__ = ["Included", "SharedText", "expand", "included_names"]

_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*"cell:(?P<name>[^"\n]*)"[^\n]*', re.MULTILINE)


@dataclass(frozen=True)
class SharedText:
    """A cell that others may include.

    Attributes
    ----------
    cell
        What the person calls it, such as ``In[3]``.
    text, first_line
        Its text, and the number of the text's first line.
    names
        What it has bound.
    """

    cell: str
    text: str
    first_line: int
    names: tuple[str, ...]


@dataclass(frozen=True)
class Included:
    """A cell's text without its includes of cells, and what they stand for.

    Attributes
    ----------
    text
        The cell's own text, line for line.
    preamble
        What goes in front of it.
    flags
        Compiler flags that the included texts ask for.
    cells
        The included cells, in the order of their texts.
    files
        What the compiler calls each of them, and what the person does.
    """

    text: str
    preamble: str = ""
    flags: tuple[str, ...] = ()
    cells: tuple[SharedText, ...] = ()
    files: tuple[tuple[str, str], ...] = ()

    @property
    def whole(self) -> str:
        """One text that needs no other cell."""
        return "\n".join([*(_without(c.text) for c in self.cells), self.text])


def included_names(text: str) -> Mapping[str, int]:
    """Return the names of the cells that a text includes, each with its line, from 0."""
    return {m["name"].strip(): text[: m.start()].count("\n") for m in _INCLUDE.finditer(text)}


def _without(text: str) -> str:
    """Return a text whose includes of cells are empty lines."""
    return _INCLUDE.sub("", text)


def expand(cell: Cell, shared: Sequence[SharedText]) -> Included:
    """Resolve a cell's includes of other cells.

    Parameters
    ----------
    cell
        The parsed cell.
    shared
        The cells that have been run.

    Raises
    ------
    CellError
        No cell has bound a name, or cells include each other.
    """
    if _INCLUDE.search(cell.text) is None:
        return Included(cell.text)
    by_name: Mapping[str, SharedText] = {name: text for text in shared for name in text.names}
    order: list[SharedText] = []

    def visit(text: str, first_line: int, path: tuple[SharedText, ...]) -> None:
        for found in _INCLUDE.finditer(text):
            name = found["name"].strip()
            line = first_line + text[: found.start()].count("\n")
            where = "" if not path else f", which {path[-1].cell} includes"
            at = line if not path else None
            other = by_name.get(name)
            if other is None:
                known = ", ".join(by_name) or "none yet"
                message = (
                    f"no other cell has bound '{name}'{where}{did_you_mean(name, by_name)} Names "
                    f"that can be included: {known}"
                )
                raise cell.error(message, line=at)
            if other in path:
                chain = " includes ".join(f"'{c.cell}'" for c in (*path, other))
                raise cell.error(f"cells include each other: {chain}", line=at)
            if other not in order:
                visit(other.text, other.first_line, (*path, other))
                order.append(other)

    visit(cell.text, cell.first_line, ())
    parts: list[str] = []
    flags: list[str] = []
    files: list[tuple[str, str]] = []
    for other in order:
        # A name that stays: cells have another number in the next session, and keep their key.
        file = f"<cell {other.names[0]}>"
        files.append((file, other.cell))
        parts.append(f'#line {other.first_line} "{file}"\n{_without(other.text)}\n')
        flags += parse_cell(other.text, name=other.cell, first_line=other.first_line).flags
    return Included(_without(cell.text), "".join(parts), tuple(flags), tuple(order), tuple(files))
