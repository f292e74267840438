"""Whether a body that asks a tensor for its strides goes by them wherever it touches the memory.

Asking is not enough: a kernel that prints ``x.stride(0)`` and then runs over ``p[i]`` reads the
wrong elements of a strided view. So every mention of the data pointer, and of a variable that holds
it, must stand in a form that is known here: a step computed from the strides, an element, a copy
into another variable. Whatever else is done with a pointer counts as flat.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tpkernel.cpp.addresses import address_taken
from tpkernel.cpp.scalar_types import bare_type
from tpkernel.cpp.trees import declared, declares, out_of_parentheses, walk

if TYPE_CHECKING:
    from tree_sitter import Node

    from tpkernel.cpp.uses import Body, UseReader

__all__ = ["goes_by_strides"]

_CAST = re.compile(r"(?:static_cast|reinterpret_cast|const_cast)\s*<(?P<type>.*)>", re.DOTALL)
_COMPARISONS = frozenset("== != < > <= >= && || and or not_eq".split())  # noqa: SIM905
#: Pointers to these count bytes, so that they are no other elements.
_BYTES = frozenset({"void", "char", "unsigned char", "uint8_t", "std::uint8_t", "std::byte"})
#: Parents that look at a pointer and reach nothing through it.
_HARMLESS = frozenset({
    "condition_clause", "expression_statement", "for_statement", "lambda_capture_specifier",
    "unary_expression",
})  # fmt: skip


def goes_by_strides(reader: UseReader, body: Body, parameter: str) -> bool:
    """Tell whether every access to a tensor's memory is computed from its strides.

    Parameters
    ----------
    reader
        Knows the functions and aliases of the text.
    body
        The function.
    parameter
        The tensor's name.
    """
    return _Strides(reader, body, parameter).hold()


@dataclass(frozen=True)
class _Setting:
    """Variables, or one element of an array, that are set to a value."""

    names: Sequence[str]
    value: Node
    element: bool = False


class _Strides:
    def __init__(self, reader: UseReader, body: Body, parameter: str) -> None:
        self.reader = reader
        self.body = body
        self.text = reader.text
        self.name = rf"\b{re.escape(parameter)}\s*(?:\.|->)\s*"
        self.strides = re.compile(rf"{self.name}strides?\b")
        self.memory = re.compile(
            rf"{self.name}(?:data_ptr|data|begin|end)\s*(?:<[^<>]*>)?\s*(?:\(\s*\))?"
        )
        self.view = next((p.view for p in body.parameters if p.name == parameter), None)
        #: Variables that hold an address inside the memory, those computed from strides, and those
        #: declared as numbers.
        self.pointers: set[str] = set()
        self.stepped: set[str] = set()
        self.numbers: set[str] = set()
        #: `row = p + i * x.stride(0); row[j]` is right where the body has looked at the other one.
        self.compares = False

    def hold(self) -> bool:
        root = self.body.node
        if self.strides.search(self.text(root)) is None or not self.asks_for_all():
            return False
        self.compares = any(
            n.type == "binary_expression"
            and self.text(n.child_by_field_name("operator")) in ("==", "!=")
            and self.strides.search(self.text(n)) is not None
            and not {"0"} & {self.text(n.child_by_field_name(side)) for side in ("left", "right")}
            for n in walk(root)
        )
        self.numbers = {
            self.text(name)
            for n in walk(root)
            if n.type == "declaration" and self.is_number(self.text(n.child_by_field_name("type")))
            for name in map(_plain_name, n.children_by_field_name("declarator"))
            if name is not None
        }
        self.follow(list(_settings(root, self.text)))
        return not any(self.flat(n) for n in walk(root) if self.is_mention(n))

    def asks_for_all(self) -> bool:
        """Whether the strides of all dimensions are asked for that the body knows of.

        ``p[i * x.stride(0) + j]`` takes it for granted that the elements of a row lie together.
        """
        whole = self.text(self.body.node)
        dimension = r"\s*(?:\(\s*\)\s*)?[\[(]\s*(-?\d+)\s*[\])]"
        asked = [int(d) for d in re.findall(rf"{self.name}strides?\b{dimension}", whole)]
        if len(self.strides.findall(whole)) > len(asked):
            return True  # x.stride(d), x.strides()
        rank = self.view.rank if self.view is not None else None
        if rank is not None:
            return {d % rank for d in asked if -rank <= d < rank} == set(range(rank))
        sizes = re.findall(rf"{self.name}(?:sizes?|shape)\b{dimension}", whole)
        return set(map(int, sizes)) <= set(asked)

    def follow(self, settings: Sequence[_Setting]) -> None:
        """Find the variables that hold pointers, then those that hold what strides make."""
        before = -1
        while before != len(self.pointers):
            before = len(self.pointers)
            for setting in settings:
                calls = not self.numbers.issuperset(setting.names)
                if not setting.element and self.is_pointer(setting.value, calls=calls):
                    self.pointers.update(setting.names)
        before = -1
        while before != len(self.stepped):
            before = len(self.stepped)
            for setting in settings:
                into = setting.element and not self.pointers.isdisjoint(setting.names)
                if not into and self.steps(setting.value):  # steps[d] = x.stride(d)
                    self.stepped.update(setting.names)

    # -- what expressions are -----------------------------------------------------------------

    def is_mention(self, node: Node) -> bool:
        """Whether an expression is the data pointer, or a variable that holds it."""
        if node.type == "identifier":
            return self.text(node) in self.pointers and not declares(node)
        if node.type not in ("call_expression", "field_expression"):
            return False
        called = node.parent is not None and node.parent.type == "call_expression"
        return self.is_memory(node) and not (called and self.is_memory(node.parent))

    def is_memory(self, node: Node | None) -> bool:
        return node is not None and self.memory.fullmatch(self.text(node)) is not None

    def is_pointer(self, node: Node | None, *, calls: bool = True) -> bool:
        """Whether the value of an expression is an address inside the memory.

        `calls` says whether a function may give back what it is handed.
        """
        if node is None:
            return False
        kind, field = node.type, node.child_by_field_name
        if kind == "identifier":
            return self.text(node) in self.pointers
        if self.is_memory(node):
            return True
        parts: Sequence[Node | None] = ()
        if kind == "call_expression":
            arguments = field("arguments")
            callee = self.text(field("function"))
            casts = _CAST.fullmatch(callee) is not None or self.is_number(callee)
            parts = arguments.named_children if arguments is not None and (calls or casts) else ()
        elif kind == "binary_expression":
            sides = [self.is_pointer(field(side), calls=calls) for side in ("left", "right")]
            compared = self.text(field("operator")) in _COMPARISONS
            return sides[0] != sides[1] and not compared  # two: a difference
        elif kind == "conditional_expression":
            parts = (field("consequence"), field("alternative"))
        elif kind == "pointer_expression":
            inner = _bare(field("argument"))
            at = self.text(field("operator")) == "&" and inner is not None
            return at and inner is not None and self.is_element(inner)
        elif kind in ("assignment_expression", "comma_expression"):
            parts = (field("right"),)
        elif kind in ("cast_expression", "update_expression"):
            parts = (field("value") or field("argument"),)
        elif kind in ("parenthesized_expression", "initializer_list"):
            parts = node.named_children
        return any(self.is_pointer(part, calls=calls) for part in parts)

    def is_element(self, node: Node) -> bool:
        """Whether an expression is what lies at an address inside the memory."""
        starred = (
            node.type == "pointer_expression"
            and self.text(node.child_by_field_name("operator")) == "*"
        )
        indexed = node.type == "subscript_expression"
        return (starred or indexed) and self.is_pointer(node.child_by_field_name("argument"))

    def steps(self, node: Node | None) -> bool:
        """Whether an expression is computed from the strides."""
        return node is not None and (
            self.strides.search(self.text(node)) is not None
            or any(n.type == "identifier" and self.text(n) in self.stepped for n in walk(node))
        )

    def is_number(self, cpp_type: str) -> bool:
        bare = bare_type(cpp_type)
        return bare in ("uintptr_t", "intptr_t", "std::uintptr_t", "std::intptr_t") or (
            self.reader.is_number(cpp_type, self.body.templates)
        )

    def keeps_elements(self, cpp_type: str) -> bool:
        """Whether what is cast to this type still counts the tensor's own elements, or bytes."""
        target = self.reader.aliases.get(cpp_type.strip(), cpp_type).strip()
        if not target.endswith("*"):
            return self.is_number(target)
        element = bare_type(target.removesuffix("*"))
        element = bare_type(re.sub(r"\bconst\b", " ", element))
        if element in _BYTES:
            return True
        if self.view is not None:
            return self.reader.resolve(element) == self.reader.resolve(self.view.element)
        return self.is_number(element)

    # -- what is done with a pointer ----------------------------------------------------------

    def flat(self, node: Node) -> bool:
        """Whether a pointer-valued expression is used in a way that does not go by strides."""
        while True:
            node = out_of_parentheses(node)
            if node.parent is None:
                return True
            found = self.used(node, node.parent)
            if isinstance(found, bool):
                return found
            node = found

    def used(self, node: Node, parent: Node) -> bool | Node:
        """Tell whether a parent uses a pointer flat; the expression that it is handed on as."""
        kind, field = parent.type, parent.child_by_field_name
        operator = self.text(field("operator"))
        if kind == "binary_expression":
            other = field("right") if field("left") == node else field("left")
            if operator in _COMPARISONS or (operator == "-" and self.is_pointer(other)):
                return False
            return parent if operator in ("+", "-") and self.is_step(node, other) else True
        if kind == "conditional_expression":
            return parent if field("condition") != node else False
        if kind == "comma_expression":
            return parent if field("right") == node else False
        if kind == "cast_expression":
            target = self.text(field("type"))
            return target != "void" and (parent if self.keeps_elements(target) else True)
        if kind == "argument_list":
            return self.handed(node, parent)
        if kind == "subscript_expression":
            pointer = field("argument") == node
            return not pointer or not self.is_step(node, field("indices")) or self.kept(parent)
        if kind == "pointer_expression":
            return operator != "*" or self.kept(parent)
        return self.is_lost(node, parent, operator)

    def handed(self, node: Node, arguments: Node) -> bool | Node:
        """Judge a pointer that is an argument: of a cast, or of a function that needs strides."""
        call = arguments.parent
        if call is None or call.type != "call_expression":
            return True
        callee = self.text(call.child_by_field_name("function"))
        cast = _CAST.fullmatch(callee)
        if cast is not None:
            return call if self.keeps_elements(cast["type"]) else True
        if self.is_number(callee):
            return call
        others = [a for a in arguments.named_children if not self.is_pointer(a)]
        return not (any(map(self.steps, others)) or (self.compares and self.steps(node)))

    def is_lost(self, node: Node, parent: Node, operator: str) -> bool:
        """Whether a statement puts a pointer where it cannot be followed, or moves it flat."""
        kind, field = parent.type, parent.child_by_field_name
        if kind == "init_declarator":
            return _plain_name(field("declarator"), pointers=True) is None
        if kind == "assignment_expression":
            left, right = field("left"), field("right")
            if left != node:
                return left is None or left.type != "identifier"
            moved = operator in ("+=", "-=")
            return not (operator == "=" or (moved and self.is_step(node, right)))
        if kind == "update_expression":
            return not (self.compares and self.steps(node))
        return kind not in _HARMLESS

    def is_step(self, pointer: Node, offset: Node | None) -> bool:
        """Whether a pointer may be moved so far in every layout."""
        if offset is None or self.text(offset).strip("[]() ") == "0":
            return True  # the first element is the same one in all of them
        return self.steps(offset) or (self.compares and self.steps(pointer))

    def kept(self, element: Node) -> bool:
        """Whether the address of an element is kept where it cannot be followed."""
        element = out_of_parentheses(element)
        parent = element.parent
        if parent is not None and parent.type == "pointer_expression":
            address = self.text(parent.child_by_field_name("operator")) == "&"
            return self.flat(parent) if address else True
        return address_taken(self.reader, self.body, element) is not None


def _settings(body: Node, text: Callable[[Node | None], str]) -> Iterator[_Setting]:
    """Yield what a body sets: variables, and elements of arrays."""
    for node in walk(body):
        field = node.child_by_field_name
        if node.type == "init_declarator":
            target, value = field("declarator"), field("value")
        elif node.type == "assignment_expression":
            target, value = field("left"), field("right")
        else:
            continue
        if target is None or value is None:
            continue
        if target.type == "structured_binding_declarator":
            names = [text(c) for c in target.named_children if c.type == "identifier"]
            yield _Setting(names, value)
            continue
        element = target.type == "subscript_expression"
        name = declared(target.child_by_field_name("argument") if element else target)
        if name is not None:
            yield _Setting([text(name)], value, element)


def _plain_name(declarator: Node | None, *, pointers: bool = False) -> Node | None:
    """Return the name of a declarator without references and arrays, and without ``*`` unless."""
    if declarator is not None and declarator.type == "init_declarator":
        declarator = declarator.child_by_field_name("declarator")
    while declarator is not None and pointers and declarator.type == "pointer_declarator":
        inner = [c for c in declarator.named_children if c.type != "type_qualifier"]
        declarator = inner[-1] if inner else None
    plain = declarator is not None and declarator.type == "identifier"
    return declarator if plain else None


def _bare(node: Node | None) -> Node | None:
    while node is not None and node.type == "parenthesized_expression" and node.named_children:
        node = node.named_children[0]
    return node
