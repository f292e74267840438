"""Anomaly mode: backward passes that stop at nan and show where the forward step was written."""

from __future__ import annotations

import os
import sys
import traceback
import warnings
from pathlib import Path
from typing import Any

from tensorplay._detours import Detour, enter, leave

__all__ = [
    "detect_anomaly",
    "is_anomaly_check_nan_enabled",
    "is_anomaly_enabled",
    "set_detect_anomaly",
]

# Frames of the package itself say nothing about the user's program.
_PACKAGE = f"{Path(__file__).parent.parent}{os.sep}"
_GENERATED = "<tensorplay "
_MOST_FRAMES = 8


class _State:
    """The switches, for all threads: a pass may run in another thread than the forward."""

    enabled = False
    check_nan = True


state = _State()
_detours: list[Detour] = []  # one while the mode is on


def _switch(enabled: bool, check_nan: bool) -> None:
    state.enabled, state.check_nan = enabled, check_nan
    if enabled and not _detours:
        _detours.append(enter("anomaly mode"))
    while _detours and not enabled:
        leave(_detours.pop())


def is_anomaly_enabled() -> bool:
    """Tell whether nodes note where they were made.

    Returns
    -------
    bool
        Whether they do.
    """
    return state.enabled


def is_anomaly_check_nan_enabled() -> bool:
    """Tell whether a backward pass stops at nan while the mode is on.

    Returns
    -------
    bool
        Whether it does.
    """
    return state.check_nan


class set_detect_anomaly:  # noqa: N801 - the field's spelling
    """Switch anomaly mode at once; as a context manager, until the end of the block.

    Parameters
    ----------
    mode
        Whether the mode is on.
    check_nan
        Whether a gradient with nan raises.
    """

    def __init__(self, mode: bool, check_nan: bool = True) -> None:
        self._before = (state.enabled, state.check_nan)
        _switch(bool(mode), bool(check_nan))

    def __enter__(self) -> None:
        pass

    def __exit__(self, *exception: object) -> None:
        _switch(*self._before)


class detect_anomaly:  # noqa: N801 - the field's spelling
    """Context manager: nodes made inside note where, and passes inside stop at nan.

    Parameters
    ----------
    check_nan
        Whether a gradient with nan raises.
    """

    def __init__(self, check_nan: bool = True) -> None:
        self._check_nan = check_nan
        self._outer: list[set_detect_anomaly] = []

    def __enter__(self) -> None:
        warnings.warn(
            "Anomaly Detection has been enabled. It makes every operation slower and is for "
            "debugging only.",
            UserWarning,
            stacklevel=2,
        )
        self._outer.append(set_detect_anomaly(True, self._check_nan))

    def __exit__(self, *exception: object) -> None:
        self._outer.pop().__exit__()


def where_from() -> list[str]:
    """Return the frames of the user's program that lead here, as Python formats them.

    In a notebook they begin with the cell that runs, and cells have the names people see.
    """
    frames = [
        frame
        for frame in traceback.extract_stack()
        if not frame.filename.startswith((_PACKAGE, _GENERATED))
    ]
    cells = [_cell(frame.filename) for frame in frames]
    first = next((n for n, cell in enumerate(cells) if cell is not None), 0)
    lines: list[str] = []
    for frame, cell in list(zip(frames, cells, strict=True))[first:][-_MOST_FRAMES:]:
        (text,) = traceback.format_list([frame])
        if cell is not None:
            text = text.replace(f'File "{frame.filename}"', cell, 1)
        lines.append(text)
    return lines


def _cell(filename: str) -> str | None:
    """Return the name of the notebook cell whose code has this file name, None if it is a file."""
    ipython = sys.modules.get("IPython")  # where there is none there are no cells
    shell = ipython.get_ipython() if ipython is not None else None
    name = getattr(getattr(shell, "compile", None), "format_code_name", None)
    found = name(filename) if name is not None else None
    return None if found is None else " ".join(found)


def explain(error: BaseException, name: str, frames: Any) -> None:
    """Add to `error` where the forward step of the node `name` was called."""
    if not frames:
        text = (
            f"{name} was recorded before anomaly detection was on, so where its forward was "
            "called is not known. Put the forward inside of detect_anomaly(), too."
        )
    else:
        text = f"Error detected in {name}. Its forward was called here:\n{''.join(frames)}"
    if sys.version_info >= (3, 11):
        # As `add_note` does, past a class that refuses to be written to, as a frozen dataclass.
        error.__dict__.setdefault("__notes__", []).append(text)
    else:  # Python 3.10
        warnings.warn(text, UserWarning, stacklevel=2)
