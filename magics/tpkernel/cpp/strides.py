"""Whether a body that asks a tensor for its strides goes by them wherever it touches the memory.

Asking is not enough: a kernel that prints ``x.stride(0)`` and then runs over ``p[i]`` reads the
wrong elements of a strided view. So every access through the data pointer must be computed from
the strides, or start from a pointer that was; what cannot be followed counts as flat.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from tpkernel.cpp.trees import declared, walk

if TYPE_CHECKING:
    from tree_sitter import Node

__all__ = ["goes_by_strides"]

_CAST = re.compile(r"(?:static_cast|reinterpret_cast)\s*<")


def goes_by_strides(body: Node, parameter: str, text: Callable[[Node | None], str]) -> bool:
    """Tell whether every access to a tensor's memory is computed from its strides.

    Parameters
    ----------
    body
        The function's body.
    parameter
        The tensor's name.
    text
        What a node says.
    """
    name = re.escape(parameter)
    strides = re.compile(rf"\b{name}\s*(?:\.|->)\s*strides?\b")
    memory = re.compile(rf"\b{name}\s*(?:\.|->)\s*(?:data_ptr|data|begin|end)\b")
    if strides.search(text(body)) is None:
        return False
    pointers = _carried(body, memory, text, None)
    stepped = _carried(body, strides, text, pointers)
    # `row = p + i * x.stride(0); row[j]` is right where the body has looked at the other stride.
    compares = any(
        node.type == "binary_expression"
        and text(node.child_by_field_name("operator")) in ("==", "!=")
        and strides.search(text(node)) is not None
        for node in walk(body)
    )

    def mentions(node: Node | None, direct: re.Pattern[str], names: set[str]) -> bool:
        return node is not None and (
            direct.search(text(node)) is not None
            or any(n.type == "identifier" and text(n) in names for n in walk(node))
        )

    def flat(pointer: Node | None, index: Node | None) -> bool:
        if not mentions(pointer, memory, pointers):
            return False
        if compares and mentions(pointer, strides, stepped):
            return False
        if index is None or text(index).strip("[]() ") == "0":
            return False  # the first element is the same in every layout
        return not mentions(index, strides, stepped)

    for node in walk(body):
        kind = node.type
        if kind == "subscript_expression":
            if flat(node.child_by_field_name("argument"), node.child_by_field_name("indices")):
                return False
        elif kind == "binary_expression":
            left, right = node.child_by_field_name("left"), node.child_by_field_name("right")
            added = text(node.child_by_field_name("operator")) in ("+", "-")
            pointer = _bare(left, text)
            starts = text(pointer) in pointers or _is_memory(pointer, memory, text)
            if added and starts and flat(left, right):
                return False
        elif kind == "update_expression":
            moved = node.child_by_field_name("argument")
            if text(moved) in pointers - stepped:
                return False
        elif kind == "argument_list":
            call = node.parent
            callee = text(call.child_by_field_name("function")) if call is not None else ""
            handed = [c for c in node.named_children if _is_pointer(c, pointers, memory, text)]
            if handed and not _CAST.match(callee) and not mentions(node, strides, stepped):
                return False
    return True


def _carried(
    body: Node,
    direct: re.Pattern[str],
    text: Callable[[Node | None], str],
    arrays_but: set[str] | None,
) -> set[str]:
    """Return the variables whose value is computed from what `direct` finds.

    An array counts once one of its elements is set so, unless it is among `arrays_but`; None
    leaves arrays alone.
    """
    found: set[str] = set()
    settings = [
        (target, value)
        for target, value, element in _settings(body)
        if not element or (arrays_but is not None and text(target[0]) not in arrays_but)
    ]
    grown = True
    while grown:
        grown = False
        for target, value in settings:
            names = {text(n) for n in target} - found
            if names and (
                direct.search(text(value)) is not None
                or any(n.type == "identifier" and text(n) in found for n in walk(value))
            ):
                found |= names
                grown = True
    return found


def _settings(body: Node) -> Iterator[tuple[list[Node], Node, bool]]:
    """Yield variables that are set, the expression of the value, and whether it is an element's."""
    for node in walk(body):
        if node.type == "init_declarator":
            target, value = (
                node.child_by_field_name("declarator"),
                node.child_by_field_name("value"),
            )
        elif node.type == "assignment_expression":
            target, value = node.child_by_field_name("left"), node.child_by_field_name("right")
        else:
            continue
        if target is None or value is None:
            continue
        if target.type == "structured_binding_declarator":
            yield [c for c in target.named_children if c.type == "identifier"], value, False
            continue
        element = target.type == "subscript_expression"
        if element:  # steps[d] = x.stride(d)
            target = target.child_by_field_name("argument")
        name = declared(target)
        if name is not None:
            yield [name], value, element


def _bare(node: Node | None, text: Callable[[Node | None], str]) -> Node | None:
    while node is not None and node.type == "parenthesized_expression" and node.named_children:
        node = node.named_children[0]
    return node


def _is_memory(
    node: Node | None, memory: re.Pattern[str], text: Callable[[Node | None], str]
) -> bool:
    return (
        node is not None
        and node.type in ("call_expression", "cast_expression", "field_expression")
        and memory.search(text(node)) is not None
    )


def _is_pointer(
    node: Node, pointers: set[str], memory: re.Pattern[str], text: Callable[[Node | None], str]
) -> bool:
    """Whether an expression hands on the pointer itself, as ``p`` and ``x.data_ptr()`` do."""
    bare = _bare(node, text)
    return bare is not None and (
        (bare.type == "identifier" and text(bare) in pointers) or _is_memory(bare, memory, text)
    )
