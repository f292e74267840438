"""Tab completion inside a ``%%tpkernel`` cell: ``tp::``, keys of the front matter, own words.

Names come from the headers themselves, so that what is completed is what can be included. Python's
own completions are left out there: the text is C++.
"""

# IPython's decorators carry no annotations.
# mypy: allow-untyped-decorators

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tensorplay
from tpkernel.cells.cell import KEYS
from tpkernel.cpp.trees import walk

if TYPE_CHECKING:
    from IPython.core.completer import CompletionContext
    from IPython.core.interactiveshell import InteractiveShell
    from tree_sitter import Node

__all__ = ["complete_cell", "register", "tp_names", "unregister"]

_IDENTIFIER = "tpkernel.cpp"
_TYPES = frozenset({"class_specifier", "struct_specifier", "enum_specifier", "alias_declaration"})
_HEADERS = ("kernel.h", "parallel.h")
_OPEN = re.compile(r"^[ \t]*/\*---[ \t]*$", re.MULTILINE)
_NAMED = re.compile(r"(?:^|[^\w:.])tp::(\w*)$")
_KEY = re.compile(r"^(?:[ \t]*-[ \t]*)?[ \t]*(\w*)$")
_USED = re.compile(r"^(?:[ \t]*-[ \t]*)?[ \t]*(\w+)[ \t]*:", re.MULTILINE)
_WORD = re.compile(r"[A-Za-z_]\w*$")
_KEYWORDS = frozenset(
    {
        *("auto", "bool", "break", "case", "catch", "char", "class", "const", "constexpr"),
        *("continue", "default", "do", "double", "else", "enum", "explicit", "false", "float"),
        *("for", "if", "inline", "int", "int32_t", "int64_t", "namespace", "noexcept", "nullptr"),
        *("operator", "private", "public", "return", "short", "signed", "sizeof", "size_t"),
        *("static", "static_assert", "static_cast", "std", "struct", "switch", "template", "this"),
        *("throw", "true", "try", "typename", "uint32_t", "uint64_t", "unsigned", "using"),
        *("void", "volatile", "while"),
    }
)
_MAGIC = re.compile(r"^%%tpkernel(?!\w)[^\n]*\n?", re.MULTILINE)
_ABOVE = re.compile(r"(?:[ \t]*(?:#|//)[^\n]*\n|[ \t]*\n)*")


@functools.cache
def tp_names() -> dict[str, str]:
    """Return the public names of namespace ``tp`` and what each is: class, function, constant."""
    import tree_sitter
    import tree_sitter_cpp

    parser = tree_sitter.Parser(tree_sitter.Language(tree_sitter_cpp.language()))
    folder = Path(tensorplay.__file__).parent / "include" / "tensorplay"
    found: dict[str, str] = {}
    for header in _HEADERS:
        source = (folder / header).read_bytes()
        for node in walk(parser.parse(source).root_node):
            if node.type != "namespace_definition" or _name(node) != "tp":
                continue
            body = node.child_by_field_name("body")
            members = body.named_children if body is not None else ()
            found.update(pair for member in members for pair in _declared(member))
    return {name: found[name] for name in sorted(found) if not name.startswith("_")}


def _declared(node: Node) -> Iterator[tuple[str, str]]:
    """Yield what one member of the namespace declares."""
    if node.type == "template_declaration":
        for child in node.named_children:
            yield from _declared(child)
    elif node.type in _TYPES:
        if (name := _name(node)) is not None:
            yield name, "class"
    elif node.type in ("function_definition", "declaration"):
        declarator: Any = node.child_by_field_name("declarator")
        kind = "statement"
        while declarator is not None and declarator.type != "identifier":
            if declarator.type == "function_declarator":
                kind = "function"
            declarator = declarator.child_by_field_name("declarator")
        if declarator is not None:
            yield declarator.text.decode(), kind


def _name(node: Node) -> str | None:
    name = node.child_by_field_name("name")
    return None if name is None or name.text is None else name.text.decode()


def complete_cell(text: str, position: int) -> tuple[str, list[tuple[str, str]]] | None:
    """Complete at a place of a cell.

    Parameters
    ----------
    text
        The whole cell, the magic's line included.
    position
        Of the cursor, in characters.

    Returns
    -------
    fragment, completions
        What is there already, and what it may become, each with its kind; None outside of the C++
        of a ``%%tpkernel`` cell.
    """
    above = _ABOVE.match(text)
    magic = _MAGIC.match(text, above.end() if above else 0)
    if magic is None or position < magic.end():
        return None
    before = text[magic.end() : position]
    line = before.rpartition("\n")[2]
    if named := _NAMED.search(line):
        names = tp_names().items()
        return named[1], [(n, kind) for n, kind in names if n.startswith(named[1])]
    opening = _OPEN.search(before)
    if opening is not None and "---*/" not in before[opening.end() :]:
        inside = text[magic.end() :][opening.end() :].partition("---*/")[0]
        if key := _KEY.match(line):
            used = set() if "\n- " in f"\n{inside}" or "ops:" in inside else _used(inside)
            keys = [k for k in KEYS if k.startswith(key[1]) and k not in used]
            return key[1], [(f"{k}: ", "keyword") for k in keys]
    word = _WORD.search(line)
    fragment = word[0] if word is not None else ""
    return fragment, _words(text[magic.end() :], fragment) if fragment else []


def _words(text: str, fragment: str) -> list[tuple[str, str]]:
    """Return words of the cell, and of the language, that begin like one that is being typed."""
    own = {w for w in re.findall(r"[A-Za-z_]\w*", text) if w != fragment}
    known = {**dict.fromkeys(_KEYWORDS, "keyword"), **dict.fromkeys(own - _KEYWORDS, "variable")}
    return sorted((w, kind) for w, kind in known.items() if w.startswith(fragment))


def _used(inside: str) -> set[str]:
    return {found[1] for found in _USED.finditer(inside)}


def register(shell: InteractiveShell) -> None:
    """Add the completion to a shell; again is no more than once."""
    from IPython.core.completer import SimpleCompletion, SimpleMatcherResult, context_matcher

    @context_matcher(identifier=_IDENTIFIER, priority=200)
    def complete(context: CompletionContext) -> Any:
        lines = context.full_text.split("\n")
        start = sum(len(line) + 1 for line in lines[: context.cursor_line])
        found = complete_cell(context.full_text, start + context.cursor_position)
        fragment, texts = found or ("", [])
        return SimpleMatcherResult(
            completions=[SimpleCompletion(text, type=kind) for text, kind in texts],
            matched_fragment=fragment,
            # What Python would say of C++ is of no use.
            suppress=found is not None,
            do_not_suppress=set(),
            ordered=False,
        )

    unregister(shell)
    shell.Completer.custom_matchers.append(complete)


def unregister(shell: InteractiveShell) -> None:
    """Take the completion away."""
    matchers = shell.Completer.custom_matchers
    matchers[:] = [m for m in matchers if getattr(m, "matcher_identifier", "") != _IDENTIFIER]
