"""Whether a body takes the address of an element ``x(i, j)``.

``x(i, j)`` honours strides; what is reached from its address does not. ``const T* row = &x(i, 0)``
followed by ``row[j]`` is right where a row lies together in memory and reads other elements of a
transposed view. So an element is followed to where its address may be taken: by ``&``, by
``std::addressof`` and the like, through references, casts to them, and functions of the text.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from tpkernel.cpp.trees import (
    declared,
    lambdas,
    out_of_parentheses,
    position,
    returns_reference,
    walk,
)

if TYPE_CHECKING:
    from tree_sitter import Node

    from tpkernel.cpp.uses import Body, UseReader

__all__ = ["address_taken"]

_HANDS_ON = frozenset({
    "addressof", "ref", "cref", "tie", "forward_as_tuple", "launder", "forward", "move", "as_const",
})  # fmt: skip
_DEPTH = 4


def address_taken(reader: UseReader, body: Body, element: Node) -> Node | None:
    """Return where the address of an element is taken, or None.

    Parameters
    ----------
    reader
        Knows the functions and aliases of the text.
    body
        The function that the element stands in.
    element
        The expression ``x(i, j)``.
    """
    return _Addresses(reader, body.node, set(), 0).of(element)


class _Addresses:
    def __init__(self, reader: UseReader, root: Node, followed: set[int], depth: int) -> None:
        self.reader = reader
        self.text = reader.text
        self.root = root
        self.followed = followed
        self.depth = depth

    def of(self, element: Node) -> Node | None:
        element = _whole(element)
        parent = element.parent
        if parent is None:
            return None
        kind = parent.type
        if kind == "pointer_expression":
            return parent if self.text(parent.child_by_field_name("operator")) == "&" else None
        if kind == "cast_expression":  # (T&)x(i, 0)
            return parent if "&" in self.text(parent.child_by_field_name("type")) else None
        if kind == "init_declarator":
            return self.bound(parent)
        if kind == "return_statement":
            return parent if returns_reference(parent, self.text) else None
        if kind == "lambda_capture_initializer":
            return parent if self.text(parent).startswith("&") else None
        if kind in ("initializer_list", "argument_list"):
            return self.handed(element, parent)
        return None

    def bound(self, declaration: Node) -> Node | None:
        """Follow ``const T& r = x(i, 0)`` to the address of ``r``."""
        declarator = declaration.child_by_field_name("declarator")
        if declarator is None:
            return None
        if declarator.type == "reference_declarator":
            name = declared(declarator)
            return None if name is None else self.named(self.root, self.text(name), name)
        outer = declaration.parent
        wraps = outer is not None and "reference_wrapper" in self.text(outer)
        return declaration if wraps else None

    def named(self, root: Node, name: str, declaration: Node | None = None) -> Node | None:
        """Follow every mention of a reference."""
        for node in walk(root):
            if node.type != "identifier" or node == declaration or self.text(node) != name:
                continue
            if node.id in self.followed:
                continue
            self.followed.add(node.id)
            found = self.of(node)
            if found is not None:
                return found
        return None

    def handed(self, element: Node, arguments: Node) -> Node | None:
        """Follow an element into the function or the object that it is handed to."""
        call = arguments.parent
        if call is None or arguments.type == "initializer_list":
            return arguments if self.reader.references else None
        if call.type == "init_declarator":  # T v(x(i, j)), S s(x(i, j))
            return self.bound(call)
        callee = self.text(call.child_by_field_name("function"))
        if re.match(r"\w+_cast\s*<[^()]*&", callee):
            return call
        spelled = callee.partition("<")[0].strip()
        name = spelled.split("::")[-1]
        if name in self.reader.opaque:
            return call
        index = position(element, arguments)
        bodies = self.reader.bodies.get(name, ())
        if not bodies:
            local = lambdas(self.root, spelled, self.text)
            for value in local:
                found = self.into_lambda(value, index)
                if found is not None:
                    return found
            return call if not local and name in _HANDS_ON else None
        for other in bodies:
            if index >= len(other.parameters) or "&" not in other.parameters[index].type:
                continue
            if self.depth >= _DEPTH:
                return call
            inner = _Addresses(self.reader, other.node, self.followed, self.depth + 1)
            if inner.named(other.node, other.parameters[index].name) is not None:
                return call
        return None

    def into_lambda(self, value: Node, index: int) -> Node | None:
        inner = value.child_by_field_name("declarator")
        listed = inner.child_by_field_name("parameters") if inner is not None else None
        body = value.child_by_field_name("body")
        if listed is None or body is None or index >= len(listed.named_children):
            return None
        parameter = listed.named_children[index].child_by_field_name("declarator")
        if parameter is None or parameter.type != "reference_declarator":
            return None
        name = declared(parameter)
        return None if name is None else self.named(body, self.text(name))


def _whole(element: Node) -> Node:
    """Return the outermost expression that is still the element itself."""
    while True:
        element = out_of_parentheses(element)
        parent = element.parent
        if parent is None:
            return element
        same = (
            (
                parent.type == "conditional_expression"
                and parent.child_by_field_name("condition") != element
            )
            or (
                parent.type == "comma_expression" and parent.child_by_field_name("right") == element
            )
            or (
                parent.type == "assignment_expression"
                and parent.child_by_field_name("left") == element
            )
            or parent.type == "update_expression"
        )
        if not same:
            return element
        element = parent
