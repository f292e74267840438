"""What a build depends on besides the content of the files that the compiler read.

Files that are not there, and would be read if they were; and the time of day.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tensorplay.utils.cpp_jit.source import blank, blank_comments

__all__ = ["Unseen", "assembled", "unseen"]

_TIME = re.compile(r"\b__(?:TIME|DATE|TIMESTAMP)__\b")
_ASKED = re.compile(r"\b__has_(?:include|include_next|embed)\s*\(\s*(?P<what>[^)\n]*)")
_NAME = re.compile(r'<(?P<angle>[^>\n]+)>|"(?P<quote>[^"\n]+)"')
_ASSEMBLED = re.compile(r'\.incbin\s+\\*"(?P<path>[^"\\\n]+)')


@dataclass(frozen=True)
class Unseen:
    """What no dependency file tells.

    Parameters
    ----------
    absent
        Files that would change the build if they appeared.
    present
        Files whose mere presence was asked for.
    why
        Why the result holds for this one time only, or empty.
    """

    absent: tuple[str, ...] = ()
    present: tuple[str, ...] = ()
    why: str = ""


def unseen(
    texts: Mapping[str, str], read: Sequence[str], folders: Sequence[str], system: Sequence[str]
) -> Unseen:
    """Return what a build depends on besides the files that were read.

    Parameters
    ----------
    texts
        The sources that are not files of their own, by the folder that they stand for.
    read
        Files that the compiler read.
    folders
        Those that the caller has headers searched in, in order.
    system
        Those that the compiler searches by itself.
    """
    absent = dict.fromkeys(_shadowing(read, folders))
    present: dict[str, None] = {}
    within = tuple(folder + os.sep for folder in system)
    own = [path for path in read if not path.startswith(within)]
    bodies = [*texts.items(), *((str(Path(path).parent), _text(path)) for path in own)]
    for beside, text in bodies:
        code = blank(text)
        if found := _TIME.search(code):
            return Unseen(why=f"it uses {found[0]}")
        if "__has_" not in code:
            continue
        for asked in _ASKED.finditer(blank_comments(text)):
            name = _NAME.match(asked["what"])
            if name is None:
                return Unseen(
                    why=f"it asks for {asked['what'].strip()} by {asked[0].split('(')[0]}"
                )
            first = (beside,) if name["quote"] else ()
            for folder in (*first, *folders, *system):
                path = os.path.normpath(str(Path(folder, name["quote"] or name["angle"])))
                if os.path.lexists(path):
                    present[path] = None
                    break
                absent[path] = None
    files = (path for path in present if Path(path).is_file())
    return Unseen(tuple(absent), tuple(files))


def assembled(texts: Iterable[str], folders: Sequence[str]) -> tuple[str, ...]:
    """Return files that the assembler reads, by ``.incbin``."""
    named = {found["path"] for text in texts for found in _ASSEMBLED.finditer(text)}
    found = (Path(folder, name) for name in named for folder in ("/", *folders))
    return tuple(sorted(str(path) for path in found if path.is_file()))


def _text(path: str) -> str:
    try:
        return Path(path).read_text("utf-8", "replace")
    except OSError:
        return ""


def _shadowing(paths: Sequence[str], folders: Sequence[str]) -> tuple[str, ...]:
    """Return files that, if they appeared, would be read instead of the recorded ones."""
    absent = []
    for path in paths:
        for position, folder in enumerate(folders):
            if path.startswith(folder + os.sep):
                relative = os.path.relpath(path, folder)
                absent += [str(Path(earlier, relative)) for earlier in folders[:position]]
                break
    return tuple(absent)
