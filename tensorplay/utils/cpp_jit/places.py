"""Where in a cell a kernel calls back into Python: the C++ frames of a callback's traceback."""

from __future__ import annotations

import contextlib
import linecache
import re
import sys
import types
from pathlib import Path

from tensorplay.utils.cpp_jit.source import scan

__all__ = ["frame_at", "frame_of", "place_of"]

_LINE = re.compile(r'^[ \t]*#line[ \t]+(\d+)(?:[ \t]+"((?:[^"\\]|\\.)*)")?')
_UNKNOWN = re.compile(r"^(<unknown>|.*function\.pxi|.*\.pyx)$")


def place_of(library: Path | None, name: str) -> tuple[str, int] | None:
    """Return file and line of the place where a kernel calls what it got, as the cell counts them.

    That is the line of the only call of one of its parameters, or of its definition where there are
    several or none is seen. None where the source is not known, as of libraries built elsewhere.

    Parameters
    ----------
    library
        The library's file, beside its source.
    name
        The kernel.
    """
    text = None
    if library is not None:
        with contextlib.suppress(OSError, UnicodeDecodeError):
            text = (library.parent / "source.cpp").read_text("utf-8")
    if text is None:
        return None
    found = scan(text)
    functions = [f for f in found.functions if f.name == name]
    if len(functions) != 1:
        return None
    function = functions[0]
    code = found.code.split("\n")
    line = function.line
    names = "|".join(re.escape(p.name) for p in function.parameters if p.name)
    if names:
        call = re.compile(rf"(?<![\w.>])(?:\(\s*\*\s*)?(?:{names})\s*\)?\s*\(")
        end = _end_of(code, line - 1)
        # The parameters' own names stand before the body.
        start = next((i for i in range(line - 1, end) if "{" in code[i]), line - 1)
        body = [code[start].partition("{")[2], *code[start + 1 : end]]
        lines = [start + i + 1 for i, piece in enumerate(body) if call.search(piece)]
        if len(lines) == 1:
            line = lines[0]
    place = _as_the_cell_counts(text.split("\n"), line)
    if place is not None and not Path(place[0]).is_file():
        _show(text.split("\n"), place[0])
    return place


def _end_of(code: list[str], start: int) -> int:
    """Return the number of the line behind the function that starts at one."""
    depth = 0
    opened = False
    for number in range(start, len(code)):
        for character in code[number]:
            depth += (character == "{") - (character == "}")
            opened = opened or character == "{"
        if opened and depth <= 0:
            return number + 1
    return len(code)


def _as_the_cell_counts(lines: list[str], line: int) -> tuple[str, int] | None:
    file, first = "", 0
    at = 0
    for number, text in enumerate(lines[: line - 1], 1):
        found = _LINE.match(text)
        if found is not None:
            at, first = number, int(found[1])
            file = re.sub(r"\\(.)", r"\1", found[2]) if found[2] is not None else file
    return (file, first + line - at - 1) if file else None


def _show(lines: list[str], file: str) -> None:
    """Let tracebacks show lines of a text whose name is of no file.

    Of texts of one name, those of the one that called last: its traceback is shown next.
    """
    shown: dict[int, str] = {}
    current, number = "", 0
    for text in lines:
        found = _LINE.match(text)
        if found is not None:
            number = int(found[1])
            current = re.sub(r"\\(.)", r"\1", found[2]) if found[2] is not None else current
            continue
        if current == file:
            shown[number] = text
        number += 1
    whole = [shown.get(i, "") + "\n" for i in range(1, max(shown, default=0) + 1)]
    # Without a time of change, `linecache.checkcache` keeps them.
    linecache.cache[file] = (sum(map(len, whole)), None, whole, file)


def frame_of(
    error: BaseException, place: tuple[str, int] | None, name: str
) -> types.TracebackType | None:
    """Return the C++ frames of an error: those that the engine saw, and the kernel's own.

    Parameters
    ----------
    error
        As the engine raised it.
    place
        File and line in the kernel, or None.
    name
        The kernel.
    """
    seen: list[tuple[str, int, str]] = []
    traceback = error.__traceback__
    while traceback is not None:
        code = traceback.tb_frame.f_code
        # The engine makes a frame of each line of C++ whose code has one name only: the call in it.
        if code.co_names == ("_getframe",) and not _UNKNOWN.match(code.co_filename):
            seen.append((code.co_filename, traceback.tb_lineno, code.co_name))
        traceback = traceback.tb_next
    if place is not None and not any(file == place[0] for file, _, _ in seen):
        seen.insert(0, (*place, name))
    made: types.TracebackType | None = None
    for file, line, function in reversed(seen):
        made = types.TracebackType(made, frame_at(file, function), -1, line)
    return made


def frame_at(file: str, name: str) -> types.FrameType:
    """Return a frame that shows a place in C++ and holds nothing, nor a frame that called it.

    Parameters
    ----------
    file, name
        File and function that a traceback shows.
    """
    module = compile("def place():\n yield", file, "exec")
    code = next(c for c in module.co_consts if isinstance(c, types.CodeType)).replace(co_name=name)
    if sys.version_info >= (3, 11):
        code = code.replace(co_qualname=name)
    generator = types.FunctionType(code, {})()
    frame: types.FrameType = generator.gi_frame
    return frame
