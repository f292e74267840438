"""The macros that a cell defines: which of them stand for arithmetic, and which can be anything."""

from __future__ import annotations

import re

from tensorplay.utils.cpp_jit.source import directives
from tpkernel.cpp.scalar_types import VALUE_CALLS

__all__ = ["read_macros"]

_MACRO = re.compile(r"#\s*define\s+(?P<name>\w+)(?P<parameters>\([^)]*\))?(?P<body>.*)", re.DOTALL)
_TOKEN = re.compile(r"[A-Za-z_]\w*|\.?\d[\w.]*|[<>=!]=|\S")
_EXPRESSION_SIGNS = frozenset("<= >= == != + - * / % ( ) < > ? : | ! ^ , \\".split())  # noqa: SIM905  (as a row)


def read_macros(text: str) -> tuple[frozenset[str], frozenset[str]]:
    """Return the macros that give a value of their arguments, and those that may do anything."""
    found = [macro for line in directives(text) if (macro := _MACRO.match(line))]
    transparent = frozenset(m["name"] for m in found if m["parameters"] and _is_expression(m))
    return transparent, frozenset(m["name"] for m in found if not _is_expression(m))


def _is_expression(macro: re.Match[str]) -> bool:
    """Whether a macro is arithmetic on literals and on its own parameters, and nothing else."""
    text = macro["body"]
    if "++" in text or "--" in text:
        return False
    known = set(re.findall(r"\w+", macro["parameters"] or "")) | VALUE_CALLS | {"std"}
    before = "("
    for part in _TOKEN.findall(text):
        number = part.lstrip(".")[:1].isdigit()
        if not (number or part in known or part in _EXPRESSION_SIGNS):
            return False
        if part == "*" and before in _EXPRESSION_SIGNS - {")"}:
            return False  # through a pointer
        before = part
    return True
