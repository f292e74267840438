"""Finds the brace that nobody closes; compilers report it at the end of the text."""

from __future__ import annotations

import re

from tensorplay.utils.cpp_jit.source import without_digraphs

__all__ = ["unclosed_brace"]

_TOKEN = re.compile(
    r"""//[^\n]*|/\*.*?\*/|R"(?P<mark>[^()\\\s]{0,16})\(.*?\)(?P=mark)"|"(?:\\.|[^"\\\n])*"|"""
    r"""\d['\w.]*|'(?:\\.|[^'\\\n])*'|[{}]""",
    re.DOTALL,
)


def unclosed_brace(text: str) -> int | None:
    """Return the position of the innermost ``{`` without its ``}``; None where braces match."""
    stack: list[int] = []
    for found in _TOKEN.finditer(without_digraphs(text)):
        if found[0] == "{":
            stack.append(found.start())
        elif found[0] == "}":
            if not stack:
                return None  # one too many, which the compiler reports where it stands
            stack.pop()
    return stack[-1] if stack else None
