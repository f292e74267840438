"""How an error of a call is shown: the person's own lines and the message, no frames of ours."""

from __future__ import annotations

import sys
import traceback
from types import TracebackType

from tpkernel.errors import PACKAGE

__all__ = ["mark_short", "short_traceback"]


def mark_short(problem: Exception) -> Exception:
    """Let IPython show an error up to the person's own line."""
    problem._render_traceback_ = _render  # type: ignore[attr-defined]  # IPython's own hook
    return problem


def _render() -> list[str]:
    # The hook holds no reference to its error: a cycle would keep the arrays of the call alive.
    problem = sys.exc_info()[1] or sys.last_value
    return short_traceback(problem) if problem is not None else []


def short_traceback(problem: BaseException) -> list[str]:
    """Return the lines that IPython shows, without the frames of this package at the end."""
    from IPython.core.getipython import get_ipython

    kept = _without_own(problem.__traceback__)
    shell = get_ipython()
    if shell is None:
        return traceback.format_exception(type(problem), problem, kept)
    shown: list[str] = shell.InteractiveTB.structured_traceback(
        type(problem), problem, kept, tb_offset=shell.InteractiveTB.tb_offset
    )
    return shown


def _without_own(found: TracebackType | None) -> TracebackType | None:
    frames = []
    while found is not None:
        frames.append(found)
        found = found.tb_next
    while frames and frames[-1].tb_frame.f_code.co_filename.startswith(PACKAGE):
        frames.pop()
    kept: TracebackType | None = None
    for frame in reversed(frames):
        kept = TracebackType(kept, frame.tb_frame, frame.tb_lasti, frame.tb_lineno)
    return kept
