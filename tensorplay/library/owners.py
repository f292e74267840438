"""Who made a definition: the same owner may make it again, another one may not."""

from __future__ import annotations

import functools
import re
import sys
from dataclasses import dataclass
from types import CodeType
from typing import Any

__all__ = [
    "Owner",
    "cell_of_file",
    "line_of",
    "notebook_cell",
    "owner_of",
    "owner_of_frame",
    "same_owner",
]

_TEMPORARY = re.compile(r"<ipython-input-|[/\\]ipykernel_\d+[/\\]")


@dataclass(frozen=True)
class Owner:
    """The place of a definition.

    Attributes
    ----------
    module, qualname
        Of the function that is defined.
    place
        Where it stands, in words: ``In[3], line 2`` or ``ops.py, line 12``.
    cell
        The front end's id of the notebook cell, or None.
    execution
        Which execution of the notebook's cells made it; None outside of a notebook.
    """

    module: str
    qualname: str
    place: str
    cell: str | None
    execution: int | None

    def __str__(self) -> str:
        return f"{self.module}.{self.qualname} ({self.place})"


def notebook_cell() -> tuple[str | None, int | None]:
    """Return the front end's id of the running notebook cell and the number of its execution.

    Both are None outside of IPython; the id is None where the front end gives none.
    """
    interactive = sys.modules.get("IPython")
    shell = interactive.get_ipython() if interactive is not None else None
    if shell is None:
        return None, None
    kernel = getattr(shell, "kernel", None)
    metadata = kernel.get_parent("shell").get("metadata", {}) if kernel is not None else {}
    found = metadata.get("cellId")
    return (str(found) if found else None), int(shell.execution_count)


@functools.lru_cache(maxsize=1024)
def _is_temporary(filename: str) -> bool:
    return _TEMPORARY.search(filename) is not None


@functools.lru_cache(maxsize=1024)
def _last_part(filename: str) -> str:
    return re.split(r"[/\\]", filename)[-1]


def cell_of_file(filename: str) -> int | None:
    """Return the number of the execution that a file of a notebook's code stands for, or None."""
    if not _is_temporary(filename):
        return None
    interactive = sys.modules.get("IPython")
    shell = interactive.get_ipython() if interactive is not None else None
    numbers = getattr(getattr(shell, "compile", None), "_filename_map", {})
    found = numbers.get(filename)
    return None if found is None else int(found)


def line_of(code: CodeType, line: int | None = None) -> str:
    """Return ``file.py:12 in f`` for a line of a function, ``In[3], line 2 in f`` in a notebook."""
    number = code.co_firstlineno if line is None else line
    cell = cell_of_file(code.co_filename)
    if cell is not None:
        return f"In[{cell}], line {number} in {code.co_name}"
    return f"{_last_part(code.co_filename)}:{number} in {code.co_name}"


def owner_of(function: Any) -> Owner:
    """Return the owner of what `function` is about to define."""
    module = str(getattr(function, "__module__", None) or type(function).__module__)
    qualname = str(getattr(function, "__qualname__", type(function).__qualname__))
    cell, execution = notebook_cell() if module == "__main__" else (None, None)
    code = getattr(function, "__code__", None)
    return Owner(module, qualname, _place(code, execution), cell, execution)


def owner_of_frame(frame: Any) -> Owner:
    """Return the owner of what the code running in `frame` is about to define."""
    code = frame.f_code
    module = str(frame.f_globals.get("__name__", "__main__"))
    cell, execution = notebook_cell() if module == "__main__" else (None, None)
    return Owner(
        module,
        getattr(code, "co_qualname", code.co_name),
        _place(code, execution, frame.f_lineno),
        cell,
        execution,
    )


def _place(code: Any, execution: int | None, line: int | None = None) -> str:
    if code is None:
        return "built in"
    number = line or code.co_firstlineno
    if execution is not None and _TEMPORARY.search(code.co_filename):
        return f"In[{cell_of_file(code.co_filename) or execution}], line {number}"
    name = re.split(r"[/\\]", code.co_filename)[-1].strip("<>")
    return f"{name}, line {number}"


def same_owner(old: Owner, new: Owner) -> bool:
    """Tell whether `new` is the one that made `old`, and so may make it again.

    A cell that is run again replaces what it made, under whatever function name; within one run
    two functions are two owners. Where nothing tells the cells apart, the same function is the
    same owner.
    """
    if old.module != new.module:
        return False
    if old.cell is not None and new.cell is not None:
        if old.cell != new.cell:
            return False
        return old.execution != new.execution or old.qualname == new.qualname
    return old.qualname == new.qualname
