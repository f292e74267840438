"""Tab completion of options of ``%%tpkernel``, of commands of ``%tpkernel``, and of their names."""

# IPython carries few annotations.
# mypy: allow-untyped-calls

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from IPython.core.completer import (
    CompletionContext,
    SimpleCompletion,
    SimpleMatcherResult,
    context_matcher,
)
from IPython.core.interactiveshell import InteractiveShell

from tpkernel.building.sanitizers import SANITIZERS
from tpkernel.cpp.functions import parse_source

__all__ = ["register_options", "unregister_options"]

_LINE = re.compile(r"^(?P<magic>%%?tpkernel)\s+(?P<words>.*)$", re.DOTALL)
_VALUES: Mapping[str, Sequence[str]] = {
    "--sanitize": (*SANITIZERS, ",".join(SANITIZERS)),
    "--contiguous": ("error", "copy"),
}
_IDENTIFIER = "tpkernel.options"
_NAMES_AFTER = frozenset({"show", "export"})


def register_options(
    shell: InteractiveShell,
    parser: argparse.ArgumentParser,
    commands: Iterable[str],
    names: Callable[[], Iterable[str]],
) -> None:
    """Add the matcher to a shell.

    Parameters
    ----------
    shell
        The shell.
    parser
        Knows the options of ``%%tpkernel``.
    commands
        What can stand after ``%tpkernel``.
    names
        Gives the names that cells have bound.
    """
    options = [
        word
        for action in parser._actions
        if action.help != argparse.SUPPRESS
        for word in action.option_strings
        if word.startswith("--")
    ]

    def complete(context: CompletionContext) -> SimpleMatcherResult:
        return _result(_candidates(context, options, list(commands), names), context)

    unregister_options(shell)
    matcher = context_matcher(identifier=_IDENTIFIER)(complete)
    shell.Completer.custom_matchers.append(matcher)


def unregister_options(shell: InteractiveShell) -> None:
    """Remove the matcher from a shell."""
    matchers = shell.Completer.custom_matchers
    matchers[:] = [m for m in matchers if getattr(m, "matcher_identifier", "") != _IDENTIFIER]


def _candidates(
    context: CompletionContext,
    options: Sequence[str],
    commands: Sequence[str],
    names: Callable[[], Iterable[str]],
) -> list[str] | None:
    before = context.full_text.split("\n")[context.cursor_line][: context.cursor_position]
    found = _LINE.match(before)
    if found is None:
        return None
    words = found["words"].split(" ")
    word, previous = words[-1], words[-2] if len(words) > 1 else ""
    if found["magic"] == "%tpkernel":
        if len(words) == 1:
            known: Iterable[str] = commands
        else:
            known = names() if words[0] in _NAMES_AFTER and len(words) == 2 else ()
    elif previous in _VALUES:
        known = _VALUES[previous]
    elif "--functions" in words and not word.startswith("-"):
        text = context.full_text.partition("\n")[2]
        known = dict.fromkeys(f.name for f in parse_source(text).functions)
    else:
        known = [o for o in options if o not in words[:-1]]
    return [k for k in known if k.startswith(word)]


def _result(found: Sequence[str] | None, context: CompletionContext) -> SimpleMatcherResult:
    # The token ends where the completer splits words, which is inside of --no-check and a,b.
    token = context.token
    word = context.line_with_cursor[: context.cursor_position].split(" ")[-1]
    skip = len(word) - len(token) if word.endswith(token) else 0
    made = [SimpleCompletion(text=text[skip:], type="magic") for text in found or ()]
    result: Any = {"completions": made, "suppress": found is not None}
    return result  # type: ignore[no-any-return]  # IPython's type asks for keys that it adds
