"""How an error of a call is shown: the person's own frames, the cell's line and the message.

Frames of ours are hidden as IPython hides frames: they have a local `__tracebackhide__`, set when
the error is shown. ``get_ipython().InteractiveTB.skip_hidden = False`` shows all of them.
"""

from __future__ import annotations

import inspect
import re
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import TypeVar

from tensorplay.library.modules.spec import KernelSpec
from tensorplay.utils.cpp_jit.places import frame_at
from tpkernel.building.compiling import STABLE_NAME
from tpkernel.cpp.throws import thrown_at
from tpkernel.errors import KernelCrash, is_own_file

__all__ = ["CellErrors", "has_frames_of_a_person", "mark_short", "short_traceback"]

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
        frames = _without_own_end(frames)  # IPython never hides the last one
        # Locals of a module's frame are the module itself, which is not to be written to.
        frames = [f for f in frames if not (_is_own(f) and _is_of_module(f))]
        for frame in filter(_is_own, frames):
            frame.tb_frame.f_locals["__tracebackhide__"] = True
    shown: list[str] = shell.InteractiveTB.structured_traceback(
        type(problem), problem, _chain(frames), tb_offset=shell.InteractiveTB.tb_offset
    )
    return shown


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
