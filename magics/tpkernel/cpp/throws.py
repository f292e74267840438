"""At which line of a C++ text an exception was thrown, as far as the text alone tells."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from tpkernel.cpp.functions import parse_tree
from tpkernel.cpp.trees import walk

if TYPE_CHECKING:
    from tree_sitter import Node

__all__ = ["thrown_at"]

#: Shorter literals stand in too many messages.
_SHORTEST = 3
#: First words of the types that literals have.
_LITERALS = frozenset({"int", "unsigned", "long", "float", "double", "char", "bool"})
#: What the run-time library says of an exception that has no message.
_VALUE = re.compile(r"kernel threw a value of type (?P<type>\S.*)")


def thrown_at(text: str, message: str, *, first_line: int = 1) -> int | None:
    """Return the line of the only ``throw`` of a text that a message can come from, or None.

    An exception of C++ does not say where it was thrown, so this goes by the literals in the text,
    and by the type of what is no ``std::exception``.

    Parameters
    ----------
    text
        The source.
    message
        What the exception says, or what the run-time library says of a thrown value.
    first_line
        The line number that its first line has for the person.
    """
    value = _VALUE.match(message)
    throws = [
        node
        for node in walk(parse_tree(text))
        if node.type == "throw_statement"
        and node.named_children
        and (_says(node, message) if value is None else _may_be(node, value["type"]))
    ]
    return throws[0].start_point[0] + first_line if len(throws) == 1 else None


def _says(throw: Node, message: str) -> bool:
    """Whether literals of a throw are most of a message, or it starts with the first and adds more.

    A word of a message may stand in many: the standard library's speak of ``size`` and ``vector``.
    """
    literals = [_text(n) for n in walk(throw) if n.type == "string_content"]
    found = {s for s in map(str.strip, literals) if len(s) >= _SHORTEST and s in message}
    if 2 * sum(map(len, found)) > len(message.strip()):
        return True
    adds = any(n.type == "binary_expression" for n in walk(throw))  # by + or <<
    if not adds or not literals:
        return False
    return literals[0].strip() in found and message.startswith(literals[0])


def _may_be(throw: Node, type_name: str) -> bool:
    """Whether a throw makes no object of another type than the one that arrived."""
    thrown = throw.named_children[0]
    if thrown.type.endswith("_literal"):
        return type_name.partition(" ")[0] in _LITERALS
    made = re.match(r"([\w:]+)\s*(?:<.*>)?\s*[({]", _text(thrown))
    return made is None or made[1].split("::")[-1] == type_name.rsplit("::", maxsplit=1)[-1]


def _text(node: Node) -> str:
    return (node.text or b"").decode(errors="replace")
