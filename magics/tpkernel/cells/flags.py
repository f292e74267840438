"""The flags of a cell: who takes them, which sanitizers, and how many compilers at once."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from tpkernel.building.sanitizers import SANITIZERS
from tpkernel.errors import did_you_mean

__all__ = ["Flags", "chosen_sanitizers", "limited_compilers", "split_flags"]


@dataclass(frozen=True)
class Flags:
    """Flags by who takes them."""

    cflags: list[str] = field(default_factory=list)
    ldflags: list[str] = field(default_factory=list)
    macros: list[str] = field(default_factory=list)


def split_flags(texts: Sequence[str]) -> Flags:
    """Split strings of flags and sort them by who takes them.

    ``-l``, ``-L``, ``-Wl,…`` and library files go to the linker; ``-D`` becomes a definition after
    our headers, so that ``-DN=2`` cannot break them; everything else goes to the compiler.

    Raises
    ------
    ValueError
        Quotes that do not close.
    """
    flags = Flags()
    for text in texts:
        try:
            words = shlex.split(text)
        except ValueError as problem:
            message = f"the flags {text!r} cannot be split: {problem}"
            raise ValueError(message) from None
        waiting: str | None = None
        for word in words:
            if waiting is not None:
                _sort_flag(flags, waiting, word)
                waiting = None
            elif word in ("-D", "-l", "-L"):
                waiting = word
            else:
                _sort_flag(flags, word[:2], word[2:])
        if waiting is not None:
            message = f"the flag {waiting} has no value in {text!r}"
            raise ValueError(message)
    return flags


def _sort_flag(flags: Flags, head: str, rest: str) -> None:
    word = head + rest
    if head == "-D":
        flags.macros.append(rest)
    elif head in ("-l", "-L") or word.startswith("-Wl,") or re.search(r"\.(so(\.\d+)*|a|o)$", word):
        flags.ldflags.append(word)
    else:
        flags.cflags.append(word)


@contextlib.contextmanager
def limited_compilers(jobs: int | None) -> Iterator[None]:
    """Limit how many compilers run at once, as the variable MAX_JOBS does."""
    if jobs is None:
        yield
        return
    before = os.environ.get("MAX_JOBS")
    os.environ["MAX_JOBS"] = str(jobs)
    try:
        yield
    finally:
        if before is None:
            del os.environ["MAX_JOBS"]
        else:
            os.environ["MAX_JOBS"] = before


def chosen_sanitizers(names: str | Sequence[str]) -> tuple[str, ...]:
    """Read ``address,undefined``, in any order.

    Raises
    ------
    ValueError
        A name that is none of the sanitizers.
    """
    listed = [n.strip() for n in names.split(",")] if isinstance(names, str) else list(names)
    for name in listed:
        if name not in SANITIZERS:
            message = (
                f"unknown sanitizer '{name}'{did_you_mean(name, SANITIZERS)} Write address, "
                "undefined, or address,undefined"
            )
            raise ValueError(message)
    return tuple(n for n in SANITIZERS if n in listed)
