"""Steps through a parsed C++ text that several readers take."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tree_sitter import Node

__all__ = [
    "declared", "declares", "lambdas", "out_of_parentheses", "position", "returns_reference",
    "walk",
]  # fmt: skip


def walk(node: Node) -> Iterator[Node]:
    """All descendants in the order of the text."""
    stack = [node]
    while stack:
        current = stack.pop()
        yield current
        stack.extend(reversed(current.children))


def position(node: Node, arguments: Node) -> int:
    """Return which argument of a list a node is."""
    return [c.start_byte for c in arguments.named_children].index(node.start_byte)


def out_of_parentheses(node: Node) -> Node:
    """Return the outermost expression that is `node` in parentheses."""
    while node.parent is not None and node.parent.type == "parenthesized_expression":
        node = node.parent
    return node


def declared(declarator: Node | None) -> Node | None:
    """Return the identifier that a declarator declares."""
    while declarator is not None and declarator.type != "identifier":
        inner = [c for c in declarator.named_children if c.type.endswith(("declarator", "fier"))]
        declarator = declarator.child_by_field_name("declarator") or (inner[0] if inner else None)
        if declarator is not None and declarator.type == "type_qualifier":
            declarator = inner[-1] if inner[-1].type != "type_qualifier" else None
    return declarator


def declares(node: Node) -> bool:
    """Whether an identifier only gives a variable its name, as in ``float* q;``."""
    parent = node.parent
    while parent is not None and parent.type.endswith("declarator"):
        if parent.type == "init_declarator":
            return parent.child_by_field_name("value") != node
        if parent.child_by_field_name("declarator") != node and parent.type == "array_declarator":
            return False
        node, parent = parent, parent.parent
    return parent is not None and parent.type in ("declaration", "parameter_declaration")


def lambdas(root: Node, name: str, text: Callable[[Node | None], str]) -> list[Node]:
    """Return the lambdas that variables of this name are initialised with."""
    found = []
    for node in walk(root):
        value = node.child_by_field_name("value") if node.type == "init_declarator" else None
        if value is None or value.type != "lambda_expression":
            continue
        if text(declared(node.child_by_field_name("declarator"))) == name:
            found.append(value)
    return found


def returns_reference(statement: Node, text: Callable[[Node | None], str]) -> bool:
    """Whether the function or lambda around a return statement hands out a reference."""
    node = statement.parent
    while node is not None and node.type not in ("lambda_expression", "function_definition"):
        node = node.parent
    if node is None:
        return True
    body = node.child_by_field_name("body")
    declarator = node.child_by_field_name("declarator")
    if node.type == "function_definition" and declarator is not None:
        kind = text(node.child_by_field_name("type"))
        return declarator.type == "reference_declarator" or "&" in kind or "decltype" in kind
    if declarator is None or body is None:
        return False  # a lambda without a declared result returns by value
    trailing = [c for c in declarator.named_children if c.type == "trailing_return_type"]
    return any(re.search(r"[&*]|decltype", text(c)) for c in trailing)
