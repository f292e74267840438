"""Whether a body that asks a tensor for its strides goes by them wherever it touches the memory.

Asking is not enough: a kernel that prints ``x.stride(0)`` and then runs over ``p[i]`` reads the
wrong elements of a strided view. So every mention of the data pointer, and of a variable that holds
it, must stand in a form that is known here: a step computed from the strides, an element, a copy
into another variable. Whatever else is done with a pointer counts as flat. A number that only
depends on the strides is no step: ``x.stride(0) > 0 ? 1 : -1``, or what ``--i`` makes of a stride.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tpkernel.cpp.addresses import address_taken
from tpkernel.cpp.scalar_types import bare_type
from tpkernel.cpp.trees import declared, declares, lambdas, out_of_parentheses, walk

if TYPE_CHECKING:
    from tree_sitter import Node

    from tpkernel.cpp.uses import Body, UseReader

__all__ = ["goes_by_strides"]

_CAST = re.compile(r"(?:static_cast|reinterpret_cast|const_cast)\s*<(?P<type>.*)>", re.DOTALL)
_COMPARISONS = frozenset("== != < > <= >= && || and or not_eq".split())  # noqa: SIM905  (as a row)
#: Pointers to these count bytes, so that they are no other elements.
_BYTES = frozenset({"void", "char", "unsigned char", "uint8_t", "std::uint8_t", "std::byte"})
_ZERO = re.compile(r"[\s({]*0?[uUlLzZ]*[\s)}]*")
#: Functions whose result is one of their arguments.
_CHOOSING = frozenset({"min", "max", "clamp"})
#: Functions of the text that call one another are followed so far.
_DEPTH = 3
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
    """Variables, or one element of an array, that are set to a value, or moved without one."""

    names: Sequence[str]
    value: Node | None
    element: bool = False
    operator: str = "="


class _Strides:
    def __init__(
        self, reader: UseReader, body: Body, parameter: str | None, depth: int = 0
    ) -> None:
        self.reader = reader
        self.body = body
        self.depth = depth
        self.text = reader.text
        # A function that is handed a pointer knows no tensor: nothing matches.
        self.name = rf"\b{re.escape(parameter)}\s*(?:\.|->)\s*" if parameter else r"(?!)"
        self.strides = re.compile(rf"{self.name}strides?\b")
        self.memory = re.compile(
            rf"{self.name}(?:data_ptr|data|begin|end)\s*(?:<[^<>]*>)?\s*(?:\(\s*\))?"
        )
        self.view = next((p.view for p in body.parameters if p.name == parameter), None)
        self.elements = self.view.element if self.view is not None else None
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
        self.follow()
        self.compares = any(map(self.is_comparison, walk(root)))
        self.stepped = set()
        return self.keeps()

    def is_comparison(self, node: Node) -> bool:
        """Whether an expression asks whether a stride has a certain value; 0 tells nothing."""
        sides = [node.child_by_field_name(side) for side in ("left", "right")]
        return (
            node.type == "binary_expression"
            and self.text(node.child_by_field_name("operator")) in ("==", "!=")
            and any(map(self.steps, sides))
            and not any(map(self.is_zero, sides))
        )

    def keeps(self) -> bool:
        """Whether every mention of a pointer goes by the strides, from what is known so far."""
        self.follow()
        return not any(self.flat(n) for n in walk(self.body.node) if self.is_mention(n))

    def follow(self) -> None:
        """Find the variables that hold pointers, then those that hold what strides make."""
        root = self.body.node
        self.numbers = {
            self.text(name)
            for n in walk(root)
            if n.type == "declaration" and self.is_number(self.text(n.child_by_field_name("type")))
            for name in map(_plain_name, n.children_by_field_name("declarator"))
            if name is not None
        }
        settings: dict[str, list[_Setting]] = {}
        for setting in _settings(root, self.text):
            for name in setting.names:
                settings.setdefault(name, []).append(setting)
        before = -1
        while before != len(self.pointers):
            before = len(self.pointers)
            for name, sets in settings.items():
                calls = name not in self.numbers
                if any(self.is_pointer(s.value, calls=calls) for s in sets if not s.element):
                    self.pointers.add(name)
        given = set(self.stepped)
        while True:
            self.stepped = set(given)
            self.grow(settings)
            lost = {n for n in given if not all(map(self.fits, settings.get(n, ())))}
            if given.isdisjoint(lost - self.pointers):
                return
            given -= lost - self.pointers

    def grow(self, settings: Mapping[str, Sequence[_Setting]]) -> None:
        """Find what is computed from the variables that are known to be stepped."""
        before = -1
        while before != len(self.stepped):
            before = len(self.stepped)
            for name, sets in settings.items():
                if name in self.pointers:
                    # steps[d] = x.stride(d) is no element of the tensor
                    steps = any(self.steps(s.value) for s in sets if not s.element)
                else:
                    steps = any(map(self.adds, sets)) and all(map(self.fits, sets))
                if steps:
                    self.stepped.add(name)

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

    def adds(self, setting: _Setting) -> bool:
        """Whether a setting puts a step into a variable."""
        return setting.operator in ("=", "+=", "-=") and self.steps(setting.value)

    def fits(self, setting: _Setting) -> bool:
        """Whether a variable of steps is one after a setting."""
        value, operator = setting.value, setting.operator
        if value is None or operator not in ("=", "+=", "-=", "*="):
            return False
        if value.type == "argument_list" and self.numbers.isdisjoint(setting.names):
            # std::vector<int64_t> steps(rank, 0): how many come first
            return all(self.is_zero(v) or self.steps(v) for v in value.named_children[1:])
        return operator == "*=" or self.is_zero(value) or self.steps(value)

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
        """Whether the value of an expression is made of the strides, by arithmetic."""
        if node is None:
            return False
        kind, field = node.type, node.child_by_field_name
        if kind == "identifier":
            return self.text(node) in self.stepped
        if kind == "field_expression":
            return self.strides.fullmatch(self.text(node)) is not None or self.steps(
                field("argument")
            )
        if kind == "subscript_expression":  # s[d]; an element p[i] is no step
            return not self.is_pointer(field("argument")) and self.steps(field("argument"))
        if kind == "pointer_expression":
            inner = _bare(field("argument"))
            if self.text(field("operator")) == "*" or inner is None:
                return not self.is_pointer(inner) and self.steps(inner)
            indexed = inner.type == "subscript_expression"
            parts = [inner.child_by_field_name(f) for f in ("argument", "indices")]
            return any(map(self.steps, parts if indexed else [inner]))
        if kind == "binary_expression":
            return self.computed(node)
        if kind == "conditional_expression":
            return self.all_step([field("consequence"), field("alternative")])
        if kind == "call_expression":
            return self.gives_step(node)
        if kind == "lambda_expression":
            return self.returns_step(self.inner(node, ()))
        if kind == "compound_literal_expression":
            return self.steps(field("value"))
        if kind == "initializer_list":
            return self.all_step(node.named_children)
        if kind in ("assignment_expression", "comma_expression"):
            return self.steps(field("right"))
        if kind in ("cast_expression", "unary_expression", "update_expression"):
            looked = kind == "unary_expression" and self.text(field("operator")) in ("!", "not")
            return not looked and self.steps(field("value") or field("argument"))
        if kind in ("parenthesized_expression", "argument_list", "subscript_argument_list"):
            return any(map(self.steps, node.named_children))
        return False

    def computed(self, node: Node) -> bool:
        """Whether a sum, a difference, a product or a quotient is made of the strides."""
        sides = [node.child_by_field_name(side) for side in ("left", "right")]
        left, right = map(self.steps, sides)
        operator = self.text(node.child_by_field_name("operator"))
        if operator in ("+", "-"):
            if self.compares or any(map(self.is_pointer, sides)):
                return left or right
            return self.all_step(sides)  # i * x.stride(0) + j takes one for granted
        return left or right if operator == "*" else left and operator in ("/", "<<")

    def all_step(self, parts: Sequence[Node | None]) -> bool:
        """Whether one of these is a step, whichever it is; 0 is one in every layout."""
        stepping = [self.steps(part) for part in parts if not self.is_zero(part)]
        return bool(stepping) and all(stepping)

    def is_zero(self, node: Node | None) -> bool:
        return node is not None and _ZERO.fullmatch(self.text(node)) is not None

    def gives_step(self, call: Node) -> bool:
        """Whether a function gives back a step: of its arguments, or of the text's own lines."""
        callee, arguments = (call.child_by_field_name(f) for f in ("function", "arguments"))
        if callee is None or arguments is None:
            return False
        if callee.type == "field_expression":  # x.stride(0), s.at(d), s.data()
            return self.steps(callee)
        name = _called(self.text(callee))
        if name in _CHOOSING:
            return self.all_step(arguments.named_children)
        inside = self.called(name, arguments)
        if inside is None:
            return name not in self.reader.opaque and self.steps(arguments)
        return bool(inside) and all(map(self.returns_step, inside))

    # -- functions of the text ----------------------------------------------------------------

    def called(self, name: str, arguments: Node) -> list[_Strides] | None:
        """Return the functions of this name that the text has, with what they are handed.

        None where the text has none; an empty list where they are not followed any further.
        """
        bodies = [b for b in self.reader.bodies.get(name, ()) if b.node != self.body.node]
        local = lambdas(self.body.node, name, self.text) if not bodies else []
        if not bodies and not local:
            return [] if name in self.reader.bodies else None
        if self.depth >= _DEPTH:
            return []
        given = arguments.named_children
        found = []
        for body in bodies:
            if len(given) > len(body.parameters):
                continue
            inner = _Strides(self.reader, body, None, self.depth + 1)
            inner.elements = self.elements
            inner.receive([(p.name, p.type) for p in body.parameters], given, self)
            found.append(inner)
        return found + [self.inner(value, given) for value in local]

    def inner(self, value: Node, given: Sequence[Node]) -> _Strides:
        """Return what reads a lambda, which knows what the body knows."""
        inner = _Strides(self.reader, replace(self.body, node=value), None, self.depth + 1)
        inner.name, inner.strides, inner.memory = self.name, self.strides, self.memory
        inner.pointers, inner.stepped = set(self.pointers), set(self.stepped)
        inner.elements = self.elements
        declarator = value.child_by_field_name("declarator")
        listed = declarator.child_by_field_name("parameters") if declarator is not None else None
        parameters = [
            (self.text(declared(p.child_by_field_name("declarator"))), self.text(p))
            for p in (listed.named_children if listed is not None else ())
        ]
        inner.receive(parameters, given, self)
        return inner

    def receive(
        self, parameters: Sequence[tuple[str, str]], given: Sequence[Node], caller: _Strides
    ) -> None:
        """Take what a call hands over; a parameter hides a variable of the same name."""
        self.compares = caller.compares
        for index, (name, cpp_type) in enumerate(parameters):
            argument = given[index] if index < len(given) else None
            for names, holds in (
                (self.pointers, caller.is_pointer(argument)),
                (self.stepped, caller.steps(argument)),
            ):
                names.discard(name)
                if holds:
                    names.add(name)
            element = bare_type(re.sub(r"\bconst\b", " ", cpp_type.partition("*")[0]))
            if name in self.pointers and element not in _BYTES | {"auto"}:
                self.elements = element

    def returns(self) -> list[Node]:
        """Return what the function gives back, without what lambdas inside it do."""
        found, stack = [], list(self.body.node.children)
        while stack:
            node = stack.pop()
            if node.type == "return_statement" and node.named_children:
                found.append(node.named_children[0])
            if node.type != "lambda_expression":
                stack.extend(node.children)
        return found

    def returns_step(self, inner: _Strides) -> bool:
        if inner.depth > _DEPTH:
            return False
        inner.follow()
        return inner.all_step(inner.returns())

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
        if self.elements is not None:
            return self.reader.resolve(element) == self.reader.resolve(self.elements)
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
        name = _called(callee)
        if name in self.reader.opaque or name in self.reader.transparent:
            return True
        inside = self.called(name, arguments)
        if inside is not None:
            if not inside or not all(inner.keeps() for inner in inside):
                return True
            back = any(inner.is_pointer(v) for inner in inside for v in inner.returns())
            return call if back else False
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
        if kind == "return_statement":
            return self.depth == 0  # else the caller goes on with it
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
        field, operator = node.child_by_field_name, "="
        if node.type == "init_declarator":
            target, value = field("declarator"), field("value")
        elif node.type == "assignment_expression":
            target, value = field("left"), field("right")
            operator = text(field("operator"))
        elif node.type == "update_expression":
            target, value, operator = field("argument"), None, text(field("operator"))
        else:
            continue
        if target is None or (value is None and node.type != "update_expression"):
            continue
        if target.type == "structured_binding_declarator":
            names = [text(c) for c in target.named_children if c.type == "identifier"]
            yield _Setting(names, value)
            continue
        element = target.type == "subscript_expression"
        name = declared(target.child_by_field_name("argument") if element else target)
        if name is not None:
            yield _Setting([text(name)], value, element, operator)


def _called(callee: str) -> str:
    """Return the name of a function without namespaces and template arguments."""
    return callee.partition("<")[0].strip().split("::")[-1]


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
