"""How an error of a call is shown: the person's own frames, the cell's line and the message.

Frames of ours are hidden as IPython hides frames: they have a local `__tracebackhide__`, set when
the error is shown. ``get_ipython().InteractiveTB.skip_hidden = False`` shows all of them. So it is
in the whole chain of an error, whichever way it came (:func:`hide_own_frames`); what fails in our
code by accident keeps its frames, which a report of it needs.
"""

from __future__ import annotations

import dis
import functools
import inspect
import re
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any, TypeVar

from tensorplay.library.modules.spec import KernelSpec
from tensorplay.utils.cpp_jit.places import frame_at
from tpkernel.building.compiling import STABLE_NAME
from tpkernel.cpp.throws import thrown_at
from tpkernel.errors import KernelCrash, is_own_file

__all__ = [
    "CellErrors",
    "has_frames_of_a_person",
    "hide_own_frames",
    "mark_short",
    "short_traceback",
    "show_own_frames",
]

_FUNCTION = re.compile(r"(\w+)(?:<[^()]*>)?\(")


_Error = TypeVar("_Error", bound=BaseException)


def mark_short(problem: _Error) -> _Error:
    """Let IPython show an error without frames of ours."""
    # IPython's own hook, which a person may use. Their class may refuse to be written to, as a
    # frozen dataclass does, or to be asked for what it has not.
    if inspect.getattr_static(problem, "_render_traceback_", None) is None:
        object.__setattr__(problem, "_render_traceback_", _render)
    return problem


def _render() -> list[str]:
    # The hook holds no reference to its error: a cycle would keep the arrays of the call alive.
    problem = sys.exc_info()[1] or sys.last_value
    return short_traceback(problem) if problem is not None else []


def short_traceback(problem: BaseException) -> list[str]:
    """Return the lines that IPython shows, without frames of ours."""
    from IPython.core.getipython import get_ipython

    frames = _frames(problem.__traceback__)
    shell = get_ipython()
    if shell is None:
        return traceback.format_exception(type(problem), problem, _chain(_without_own_end(frames)))
    if getattr(shell.InteractiveTB, "skip_hidden", True):
        frames = _hidden(frames)
    shown: list[str] = shell.InteractiveTB.structured_traceback(
        type(problem), problem, _chain(frames), tb_offset=shell.InteractiveTB.tb_offset
    )
    return shown


def hide_own_frames(shell: Any) -> None:
    """Let a shell show any error without frames of ours, and what it came of; again is nothing."""
    shown = shell.InteractiveTB
    if "structured_traceback" in vars(shown):
        return
    plain, parts = shown.structured_traceback, shown.get_parts_of_chained_exception

    @functools.wraps(plain)
    def structured_traceback(etype: Any, value: Any, tb: Any = None, *more: Any, **kw: Any) -> Any:
        if isinstance(tb, TracebackType) and isinstance(value, BaseException):
            tb = _told(shown, value, tb)
        return plain(etype, value, tb, *more, **kw)

    @functools.wraps(parts)
    def get_parts_of_chained_exception(value: Any) -> Any:
        found = parts(value)
        # What our code met on the way to an error that it words itself is nothing to look at.
        while (
            found is not None
            and getattr(value, "__cause__", None) is None
            and getattr(shown, "skip_hidden", True)
            and _worded(value, _frames(value.__traceback__))
            and (inner := _frames(found[2]))
            and all(map(_is_own, inner))
        ):
            value = found[1]
            found = parts(value)
        return found and (*found[:2], found[2] and _told(shown, found[1], found[2]))

    shown.structured_traceback = structured_traceback
    shown.get_parts_of_chained_exception = get_parts_of_chained_exception


def show_own_frames(shell: Any) -> None:
    """Take back what :func:`hide_own_frames` did."""
    for name in ("structured_traceback", "get_parts_of_chained_exception"):
        vars(shell.InteractiveTB).pop(name, None)


def _told(shown: Any, problem: BaseException, tb: TracebackType) -> TracebackType | None:
    """Return what a shell shows of a traceback."""
    frames = _frames(tb)
    if not getattr(shown, "skip_hidden", True) or not any(map(_is_own, frames)):
        return tb
    if not _worded(problem, frames):
        return tb
    frames = _hidden(frames)
    if getattr(shown, "mode", None) not in getattr(shown, "verbose_modes", ()):
        frames = [f for f in frames if not _is_own(f)]  # what hides nothing by itself
    return _chain(frames)


def _worded(problem: BaseException, frames: list[TracebackType]) -> bool:
    """Whether an error says what a person did, and is no accident in code of ours."""
    if not frames or not _is_own(frames[-1]) or isinstance(problem, KeyboardInterrupt):
        return True
    if str(problem.args[0] if problem.args else "").startswith("["):
        return True
    code, at = frames[-1].tb_frame.f_code.co_code, frames[-1].tb_lasti
    return 0 <= at < len(code) and code[at] == dis.opmap["RAISE_VARARGS"]


def _hidden(frames: list[TracebackType]) -> list[TracebackType]:
    """Mark frames of ours so that IPython hides them, and leave out those that it cannot hide."""
    frames = _without_own_end(frames)  # IPython never hides the last one
    # Locals of a module's frame are the module itself, which is not to be written to.
    frames = [f for f in frames if not (_is_own(f) and _is_of_module(f))]
    for frame in filter(_is_own, frames):
        frame.tb_frame.f_locals["__tracebackhide__"] = True
    return frames


@dataclass(frozen=True)
class CellErrors:
    """Told of errors of one kernel; puts the cell's own line into their tracebacks.

    Attributes
    ----------
    kernel
        The kernel.
    text, first_line
        The cell, and the number of its first line.
    file
        Gives the name under which Python finds the cell's lines.
    """

    kernel: KernelSpec
    text: str
    first_line: int
    file: Callable[[], str]

    def __call__(self, problem: BaseException) -> None:
        """Mark an error, and add the line that threw it where it is an error of the kernel's."""
        mark_short(problem)
        frames = _frames(problem.__traceback__)
        cpp = [f for f in frames if f.tb_frame.f_code.co_filename == STABLE_NAME]
        if cpp:
            made = [self._shown(f) if f in cpp else f for f in frames]
        elif isinstance(problem, KernelCrash) or not all(map(_is_own, frames)):
            return  # a crash says the line itself; Python has frames of its own
        else:
            said = str(problem)
            if said.startswith(f"[{self.kernel.title}]"):
                return  # a guard ran no kernel
            found = thrown_at(self.text, said, first_line=self.first_line)
            line = self.kernel.line if found is None else found
            made = [*frames, self._frame(line, self.kernel.name)]
        problem.with_traceback(_chain(made))

    def _shown(self, entry: TracebackType) -> TracebackType:
        name = entry.tb_frame.f_code.co_name
        plain = _FUNCTION.search(name)  # the engine has whole signatures
        return self._frame(entry.tb_lineno, name if plain is None else plain[1])

    def _frame(self, line: int, name: str) -> TracebackType:
        return TracebackType(None, frame_at(self.file(), name), -1, line)


def has_frames_of_a_person(problem: BaseException) -> bool:
    """Whether an error came through Python that is not ours, such as a callback."""
    # Frames that stand for C++ are of no module.
    return any(
        "__name__" in entry.tb_frame.f_globals and not _is_own(entry)
        for entry in _frames(problem.__traceback__)
    )


def _is_own(entry: TracebackType) -> bool:
    return is_own_file(entry.tb_frame.f_code.co_filename)


def _is_of_module(entry: TracebackType) -> bool:
    return entry.tb_frame.f_code.co_name == "<module>"


def _frames(found: TracebackType | None) -> list[TracebackType]:
    frames = []
    while found is not None:
        frames.append(found)
        found = found.tb_next
    return frames


def _without_own_end(frames: list[TracebackType]) -> list[TracebackType]:
    kept = list(frames)
    while kept and _is_own(kept[-1]):
        kept.pop()
    return kept


def _chain(frames: list[TracebackType]) -> TracebackType | None:
    made: TracebackType | None = None
    for frame in reversed(frames):
        made = TracebackType(made, frame.tb_frame, frame.tb_lasti, frame.tb_lineno)
    return made
