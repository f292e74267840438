"""Where in the user's source something happens."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from types import FrameType
from typing import Final

from tensorplay.library.owners import line_of

__all__ = [
    "is_captured",
    "is_library",
    "is_of_library",
    "line_of_error",
    "user_frame",
    "user_line",
]

_PACKAGE: Final = str(Path(__file__).resolve().parents[1]) + os.sep
_MODULES: Final = _PACKAGE + "nn" + os.sep
_SYNTHETIC: Final = ("<tensorplay ", "<frozen ")
_OURS: Final = (_PACKAGE, *_SYNTHETIC)
#: Modules of Python's own library that are part of the interpreter, and read the world.
_FROZEN: Final = frozenset(
    f"<frozen {name}>" for name in ("os", "posixpath", "ntpath", "genericpath", "stat", "io",
                                    "_collections_abc", "codecs")
)  # fmt: skip
_WRITTEN: Final = (f"{__name__.partition('.')[0]}.", "namedtuple_")
_LAYERS: Final = f"{_WRITTEN[0]}nn."
_FRONT_END: Final = re.compile(r"site-packages[/\\](IPython|ipykernel|traitlets)[/\\]")
_NUMPY: Final = os.sep + "numpy" + os.sep
_STANDARD: Final = str(Path(os.__file__).resolve().parent) + os.sep

_known: dict[str, bool] = {}


def is_library(filename: str) -> bool:
    """Tell whether code is the library's own, of which no state of the user's is expected.

    Modules of layers count as the user's: what they read may be changed from outside.
    """
    found = _known.get(filename)
    if found is None:
        found = _known[filename] = (
            (filename.startswith(_PACKAGE) and not filename.startswith(_MODULES))
            or (filename.startswith(_SYNTHETIC) and filename not in _FROZEN)
            or _NUMPY in filename
        )
    return found


def is_of_library(frame: FrameType) -> bool:
    """Tell whether a frame runs code of the library, or what Python wrote for its records.

    Python gives text that is run by `exec` one name, whoever's it is: ``python -c``, and the
    methods of dataclasses and named tuples. Whose it is, its globals tell.
    """
    if frame.f_code.co_filename != "<string>":
        return is_library(frame.f_code.co_filename)
    module = str(frame.f_globals.get("__name__"))
    return module.startswith(_WRITTEN) and not module.startswith(_LAYERS)


def is_captured(frame: FrameType) -> bool:
    """Tell whether what a frame reads is the captured function's affair.

    Python's own library is where the function calls it, and is not where we do; nor is the front
    end, which we ask for the numbers of cells.
    """
    here: FrameType | None = frame
    while here is not None:
        filename = here.f_code.co_filename
        if is_of_library(here):
            return False
        passed = filename in _FROZEN or _FRONT_END.search(filename) is not None
        if not passed and (not filename.startswith(_STANDARD) or "site-packages" in filename):
            return True
        here = here.f_back
    return False


def _is_ours(frame: FrameType) -> bool:
    """Tell whether a frame's line says nothing to people: layers count as ours."""
    filename = frame.f_code.co_filename
    return filename.startswith(_OURS) or (filename == "<string>" and is_of_library(frame))


def user_frame(frame: FrameType | None = None) -> FrameType | None:
    """Return the innermost frame of code that is not the library's."""
    found = sys._getframe(1) if frame is None else frame
    here: FrameType | None = found
    while here is not None and _is_ours(here):
        here = here.f_back
    return here


def user_line() -> str | None:
    """Return ``file.py:12 in f`` for the user's code that is running."""
    frame = user_frame(sys._getframe(1))
    if frame is None:
        return None
    return line_of(frame.f_code, frame.f_lineno)


def line_of_error(error: BaseException) -> str | None:
    """Return the line of the user's code that raised an error, None if there is none."""
    found = None
    step = error.__traceback__
    while step is not None:
        if not _is_ours(step.tb_frame):
            found = line_of(step.tb_frame.f_code, step.tb_lineno)
        step = step.tb_next
    return found
