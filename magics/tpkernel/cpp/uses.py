"""How the body of a C++ function uses a tensor: casts, strides, and whether it may write.

A read-only array reaches a kernel only where the kernel is known to read. So a mention counts as
reading in the contexts listed here and in no others; anything else, and anything that could hide
from a reader of the text (a cast that drops const, a macro, text that does not parse), leaves it
open whether the kernel writes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tpkernel.cpp.addresses import address_taken
from tpkernel.cpp.macros import read_macros
from tpkernel.cpp.scalar_types import (
    APPENDS,
    CPP_TO_DTYPE,
    MEMORY_CALLS,
    VALUE_CALLS,
    WRITING_CALLS,
    bare_type,
)
from tpkernel.cpp.strides import goes_by_strides
from tpkernel.cpp.tensor_use import Facts, TensorUse
from tpkernel.cpp.trees import (
    declared,
    declares,
    out_of_parentheses,
    position,
    returns_reference,
    walk,
)
from tpkernel.errors import CellError

if TYPE_CHECKING:
    from tree_sitter import Node

    from tpkernel.cpp.functions import Parameter

__all__ = ["Body", "UseReader"]

_ARITHMETIC = frozenset(
    "+ - * / % < > <= >= == != <=> && || & | ^ << and or bitand bitor xor not_eq".split()  # noqa: SIM905  (as a row)
)
_VALUE_PARENTS = frozenset({
    "unary_expression", "condition_clause", "do_statement", "for_statement", "expression_statement",
    "sizeof_expression", "case_statement", "static_assert_declaration", "if_statement",
    "while_statement", "switch_statement", "subscript_argument_list",
})  # fmt: skip
#: Members of the tensor classes that hand out no way to its memory.
_FACTS = frozenset({
    "shape", "size", "sizes", "ndim", "dim", "rank", "numel", "device", "IsContiguous",
    "is_contiguous", "byte_offset", "IsAligned", "defined", "use_count",
})  # fmt: skip
_COMPARISONS = frozenset("== != < > <= >= && || and or".split())  # noqa: SIM905  (as a row)
_STRIDES = frozenset({"stride", "strides"})  # looked at by goes_by_strides
_MEMORY_FIELDS = frozenset({"data_ptr", "data", "begin", "end"})
_OWN_MEMORY = re.compile(
    r"(?:\bdata_ptr\s*\(\s*\)|(?:->|\.)\s*data(?:\s*\(\s*\))?|\b(?:m|c|re|aligned_)alloc\s*\(.*\))$",
    re.DOTALL,
)


@dataclass(frozen=True)
class Body:
    """A function's body, its parameters, and its template parameters."""

    node: Node
    parameters: tuple[Parameter, ...]
    templates: tuple[str, ...]


class UseReader:
    """Reads how tensors are used in the functions of one text.

    Parameters
    ----------
    root
        The parsed text.
    bodies
        Functions by name; overloads together.
    aliases
        The text's own names for types.
    text, place
        What a node says, and its line and column.
    """

    def __init__(
        self,
        root: Node,
        bodies: Mapping[str, Sequence[Body]],
        aliases: Mapping[str, str],
        text: Callable[[Node | None], str],
        place: Callable[[Node], tuple[int, int]],
    ) -> None:
        self.bodies = bodies
        self.aliases = aliases
        self.text = text
        self.place = place
        whole = text(root)
        #: Macros that stand for a value of their arguments, and macros of which nothing is known.
        self.transparent, self.opaque = read_macros(whole)
        self.pointers = {
            text(node.child_by_field_name(name))
            for node in walk(root)
            for kind, name in (("alias_declaration", "name"), ("type_definition", "declarator"))
            if node.type == kind and re.search(r"[*&]", text(node))
        }
        self.drops_const = any(self._drops_const(node) for node in walk(root))
        self.references = "reference_wrapper" in whole

    def use(
        self,
        body: Body,
        parameter: str,
        depth: int = 0,
        templates: Mapping[str, str] | None = None,
    ) -> TensorUse:
        """Return how a body uses one of its tensor parameters.

        `templates` says what the template parameters stand for, where a caller has spelled it.
        """
        facts = Facts()
        if body.node.has_error or self.drops_const:
            facts.merge_written(None)
        facts.flat = body.node.has_error
        follower = Follower(self, body, facts, depth, templates or {})
        for node in walk(body.node):
            if node.type in ("identifier", "type_identifier") and self.text(node) in self.opaque:
                facts.unknown()
            if node.type == "identifier" and self.text(node) == parameter:
                facts.mentioned = True
                follower.tensor(node)
            elif node.type == "type_identifier" and self.text(node) == parameter:
                facts.mentioned = True
                facts.unknown()
        if parameter and not facts.mentioned:
            facts.merge_written(None)  # a macro of a header or of a flag may hold the mention
            facts.flat = True
            facts.opaque_cast |= bool(self.opaque)
        return facts.result(facts.memory and goes_by_strides(self, body, parameter))

    def resolve(self, cpp_type: str) -> str:
        """Follow the text's own aliases of a type."""
        seen: set[str] = set()
        bare = bare_type(cpp_type)
        while bare in self.aliases and bare not in seen:
            seen.add(bare)
            bare = bare_type(self.aliases[bare])
        return bare

    def is_number(self, cpp_type: str, templates: Sequence[str]) -> bool:
        """Whether a type is a number by value, also through the text's own aliases."""
        for _ in range(8):
            if re.search(r"[&*]|\bdecltype\b", cpp_type):
                return False
            bare = bare_type(cpp_type)
            if bare not in self.aliases:
                return bare in CPP_TO_DTYPE or bare in ("long double", *templates)
            cpp_type = self.aliases[bare]
        return False

    def is_number_list(self, cpp_type: str, templates: Sequence[str]) -> bool:
        """Whether a type holds copies of numbers: ``std::array`` and ``std::vector`` of them."""
        found = re.fullmatch(
            r"(?:std::)?(?:array|vector|complex|pair|valarray)<(.*)>", "".join(cpp_type.split())
        )
        return found is not None and all(
            part.isdigit() or self.is_number(part, templates) for part in found[1].split(",")
        )

    def _drops_const(self, node: Node) -> bool:
        """Whether an expression may take const from a pointer or a reference."""
        if node.type == "gnu_asm_expression":
            return True
        if node.type == "identifier":
            return self.text(node) in ("const_cast", "bit_cast", "launder")
        target, value = "", ""
        if node.type == "cast_expression":
            target = self.text(node.child_by_field_name("type"))
            value = self.text(node.child_by_field_name("value"))
        elif node.type == "call_expression":
            function = node.child_by_field_name("function")
            name = self.text(function)
            if name in self.pointers:
                target = name
            elif re.match(r"reinterpret_cast\b", name):
                target = name.partition("<")[2].removesuffix(">")
            value = self.text(node.child_by_field_name("arguments"))[1:-1]
        pointer = target.strip() in self.pointers or re.search(r"[*&]", target)
        if not pointer or _to_const(target):
            return False
        return _OWN_MEMORY.search(value.strip()) is None


class Follower:
    """Follows one tensor parameter through one body."""

    def __init__(
        self,
        reader: UseReader,
        body: Body,
        facts: Facts,
        depth: int,
        templates: Mapping[str, str],
    ) -> None:
        self.reader = reader
        self.text = reader.text
        self.body = body
        self.facts = facts
        self.depth = depth
        self.templates = templates

    # -- the tensor itself --------------------------------------------------------------------

    def tensor(self, node: Node) -> None:
        """Record what one mention of the tensor parameter says about it."""
        parent, facts = node.parent, self.facts
        if parent is None or parent.type == "lambda_capture_specifier":
            return  # the uses inside the lambda are looked at themselves
        kind = parent.type
        first = parent.child_by_field_name("argument") == node
        if kind == "field_expression" and first:
            self.member(parent, self.text(parent.child_by_field_name("field")))
        elif kind == "subscript_expression" and first:
            self.one_index(parent)
            facts.flat = True
            facts.merge_written(self.written(parent))
        elif kind == "call_expression" and parent.child_by_field_name("function") == node:
            arguments = parent.child_by_field_name("arguments")
            facts.ranks.add(len(arguments.named_children) if arguments is not None else 0)
            facts.merge_written(self.written(parent))
            taken = address_taken(self.reader, self.body, parent)
            if taken is not None:
                facts.add_address(self.reader.place(taken)[0])
        elif kind == "argument_list":
            self.handed_on(node, parent)
        else:
            facts.unknown()

    def one_index(self, element: Node) -> None:
        """Refuse ``x[i, j]``, which is legal C++ and means ``x[j]``.

        Raises
        ------
        CellError
            There are several indices in the brackets.
        """
        indices = element.child_by_field_name("indices")
        given = [n for n in indices.named_children if n.type != "comment"] if indices else []
        if len(given) < 2:
            return
        name = self.text(element.child_by_field_name("argument"))
        wanted = ", ".join(self.text(n) for n in given)
        line, column = self.reader.place(element)
        message = (
            f"in C++ {name}[{wanted}] is {name}[{self.text(given[-1])}]: the comma drops what "
            f"stands before it. Write {name}({wanted})."
        )
        raise CellError(message, line=line, column=column)

    def member(self, member: Node, name: str) -> None:
        facts = self.facts
        call = member.parent
        called = call is not None and call.type == "call_expression"
        if name in _MEMORY_FIELDS:
            facts.memory = True
            self.data(call if called and call is not None else member)
        elif name == "dtype":
            facts.checks_dtype |= self.is_judged(call if called and call is not None else member)
        elif name not in _FACTS and name not in _STRIDES:
            facts.unknown()

    def is_judged(self, value: Node) -> bool:
        """Whether a dtype is compared or branched on, not only handed on to an allocation."""
        while True:
            value = out_of_parentheses(value)
            parent = value.parent
            if parent is None or parent.type != "field_expression":
                break
            value = parent  # its code, bits or lanes
        kind = parent.type if parent is not None else ""
        if parent is None:
            return False
        if kind == "binary_expression":
            return self.text(parent.child_by_field_name("operator")) in _COMPARISONS
        if kind in ("init_declarator", "assignment_expression"):
            target = parent.child_by_field_name(
                "declarator" if kind == "init_declarator" else "left"
            )
            bound = target is not None and target.type == "structured_binding_declarator"
            names = target.named_children if bound and target is not None else [declared(target)]
            return any(self.is_judged_later(name) for name in names if name is not None)
        if kind == "cast_expression":
            return self.is_judged(parent)
        if kind == "argument_list" and parent.parent is not None:
            called = self.callee(parent)
            call = parent.parent
            return (
                re.search(r"(?i)check|assert|dispatch|expect|require", called) is not None
                or (called in ("static_cast", "int") and self.is_judged(call))
                or (
                    call.parent is not None
                    and out_of_parentheses(call).parent is not None
                    and self.is_condition(out_of_parentheses(call))
                )
            )
        return self.is_condition(value)

    def is_judged_later(self, name: Node) -> bool:
        """Whether a variable that holds a dtype, or a part of one, is compared somewhere."""
        key = "dtype of " + self.text(name)
        if key in self.facts.followed:
            return False
        self.facts.followed.add(key)
        return any(
            self.is_judged(node)
            for node in walk(self.body.node)
            if node.type == "identifier" and node != name and self.text(node) == self.text(name)
        )

    def is_condition(self, value: Node) -> bool:
        """Whether an expression decides what runs."""
        parent = value.parent
        if parent is None:
            return False
        if parent.type == "unary_expression":
            return self.text(parent.child_by_field_name("operator")) in ("!", "not")
        if parent.type == "binary_expression":
            return self.text(parent.child_by_field_name("operator")) in _COMPARISONS
        return parent.type == "condition_clause" or (
            parent.type == "conditional_expression"
            and parent.child_by_field_name("condition") == value
        )

    def handed_on(self, node: Node, arguments: Node) -> None:
        """Follow a tensor handed to another function of the cell; elsewhere nothing is known."""
        name = self.callee(arguments).split("::")[-1]
        if name in ("IsContiguous", "GetDataSize") and name not in self.reader.bodies:
            return
        index = position(node, arguments)
        bodies = self.reader.bodies.get(name, ())
        if self.depth >= 4 or not bodies or any(index >= len(b.parameters) for b in bodies):
            self.facts.unknown()
            return
        call = arguments.parent
        spelled = self.text(call.child_by_field_name("function") if call is not None else None)
        given = [self.element(t) for t in spelled.partition("<")[2].removesuffix(">").split(",")]
        for body in bodies:
            name = body.parameters[index].name
            templates = dict(zip(body.templates, given, strict=False))
            self.facts.merge(self.reader.use(body, name, self.depth + 1, templates))

    def element(self, cpp_type: str) -> str:
        """Resolve an element type through aliases and what template parameters stand for."""
        bare = self.reader.resolve(cpp_type)
        return self.templates.get(bare, bare)

    def data(self, node: Node) -> None:
        """Follow the data pointer: its cast, then what is done through it."""
        node = out_of_parentheses(node)
        parent = node.parent
        cast = ""
        if parent is not None and parent.type == "argument_list" and parent.parent is not None:
            found = re.fullmatch(
                r"(?:static_cast|reinterpret_cast)\s*<(.*)>",
                self.text(parent.parent.child_by_field_name("function")),
                re.DOTALL,
            )
            if found is not None:
                cast, node = found[1].strip(), parent.parent
        elif parent is not None and parent.type == "cast_expression":
            cast, node = self.text(parent.child_by_field_name("type")).strip(), parent
        elif parent is not None and parent.type == "init_declarator":
            name = declared(parent.child_by_field_name("declarator"))
            if name is not None and self.untyped(name):
                return
        cast = self.reader.aliases.get(cast, cast)
        element = self.element(cast.rstrip("*& ").removesuffix("const"))
        if cast.endswith("*") and element in CPP_TO_DTYPE:
            self.facts.add_cast(CPP_TO_DTYPE[element], self.reader.place(node)[0])
        else:
            self.facts.opaque_cast = True
        if not _to_const(cast):
            self.pointer(node)

    def untyped(self, name: Node) -> bool:
        """Follow ``void* p = x.data_ptr();`` to the casts of ``p``; False for anything else."""
        declaration = name.parent
        while declaration is not None and declaration.type != "declaration":
            declaration = declaration.parent
        kind = self.text(declaration.child_by_field_name("type") if declaration else None)
        text = self.text(name)
        if kind not in ("void", "auto") or f"data of {text}" in self.facts.followed:
            return False
        self.facts.followed.add(f"data of {text}")
        for node in walk(self.body.node):
            if node.type == "identifier" and node != name and self.text(node) == text:
                self.data(node)
        return True

    # -- pointers to its memory ---------------------------------------------------------------

    def pointer(self, node: Node) -> None:
        """Record what is done through a pointer-valued expression."""
        while True:
            node = out_of_parentheses(node)
            parent = node.parent
            if parent is None:
                self.facts.merge_written(None)
                return
            operator = self.text(parent.child_by_field_name("operator"))
            moved = parent.type == "binary_expression" and operator in ("+", "-")
            chosen = (
                parent.type == "conditional_expression"
                and parent.child_by_field_name("condition") != node
            )
            if not moved and not chosen and parent.type != "update_expression":
                break
            node = parent
        self.facts.merge_written(self.through(node, parent, operator))

    def through(self, node: Node, parent: Node, operator: str) -> bool | None:
        """Tell what the parent of a pointer-valued expression does with the memory."""
        kind = parent.type
        if kind == "subscript_expression" and parent.child_by_field_name("argument") == node:
            return self.written(parent)
        if kind == "pointer_expression" and operator == "*":
            return self.written(parent)
        if kind == "init_declarator":
            declarator = parent.child_by_field_name("declarator")
            name = declared(declarator)
            if name is None or declarator is None:
                return None
            kind = self.text(parent.parent.child_by_field_name("type")) if parent.parent else ""
            if self.is_number(kind) and declarator.type == "identifier":
                return False  # a difference
            if declarator.type != "pointer_declarator" or not self.is_const(parent.parent):
                self.variable(self.text(name), name)
            return False  # else a pointer to const: nothing is written through it
        if kind == "assignment_expression":
            target = parent.child_by_field_name("left")
            if target == node or target is None:
                return False  # the pointer is set, the memory is not
            if target.type != "identifier":
                return None
            self.variable(self.text(target), target)
            return self.through_value(parent)
        if kind == "argument_list":
            return self.pointer_argument(node, parent)
        if kind == "binary_expression":
            return False if operator in _ARITHMETIC else None
        if kind == "lambda_capture_specifier" or kind in _VALUE_PARENTS - {
            "subscript_argument_list"
        }:
            return False  # moved, compared or captured; the uses inside are looked at themselves
        if kind == "conditional_expression":
            return False  # the condition
        if kind == "cast_expression":
            target_type = self.text(parent.child_by_field_name("type"))
            return False if _to_const(target_type) or target_type == "void" else None
        return None

    def through_value(self, assignment: Node) -> bool | None:
        """Tell what is done with the value of ``q = p``, which is a pointer again."""
        outer = assignment.parent
        plain = outer is not None and outer.type in ("expression_statement", "for_statement")
        return False if plain else None

    def pointer_argument(self, node: Node, arguments: Node) -> bool | None:
        """Whether a call may write through a pointer that is its argument."""
        call = arguments.parent
        if call is not None and call.type == "init_declarator":  # std::vector<float> v(p, p + n)
            declaration = call.parent.child_by_field_name("type") if call.parent else None
            copied = self.reader.is_number_list(self.text(declaration), self.body.templates)
            return False if copied else None
        name = self.callee(arguments)
        if _cast_to_const(self.text(call.child_by_field_name("function")) if call else ""):
            return False
        index = position(node, arguments)
        bodies = self.reader.bodies.get(name.split("::")[-1])
        if bodies is not None:
            known = all(
                index < len(b.parameters) and _to_const(b.parameters[index].type) for b in bodies
            )
            return False if known else None
        bare = name.removeprefix("::").removeprefix("std::")
        if bare not in MEMORY_CALLS or bare in self.reader.transparent:
            return None
        reads, writes, count = MEMORY_CALLS[bare]
        if index in writes:
            return True
        return False if index in reads and len(arguments.named_children) == count else None

    def variable(self, name: str, declared: Node) -> None:
        """Follow a variable that holds the pointer, wherever its name stands in the body."""
        if name in self.facts.followed:
            return
        self.facts.followed.add(name)
        for node in walk(self.body.node):
            if self.text(node) != name or node == declared:
                continue
            if node.type == "type_identifier":
                self.facts.merge_written(self.as_type(node))
            elif node.type == "identifier" and not declares(node):
                self.pointer(node)

    def as_type(self, node: Node) -> bool | None:
        """Judge ``std::span<float> s(p, n)``, which reads like the declaration of a function."""
        outer: Node | None = node
        while outer is not None and outer.type != "declaration":
            outer = outer.parent
        kind = outer.child_by_field_name("type") if outer is not None else None
        return False if kind is not None and self.holds_numbers(self.text(kind)) else None

    def is_const(self, declaration: Node | None) -> bool:
        """Whether a declaration's own type is const, as in ``const float* p``."""
        return declaration is not None and any(
            c.type == "type_qualifier" and self.text(c) == "const" for c in declaration.children
        )

    # -- elements -----------------------------------------------------------------------------

    def written(self, element: Node) -> bool | None:
        """Whether an element such as ``a[i]`` is stored to; None unless it is known."""
        while True:
            element = out_of_parentheses(element)
            parent = element.parent
            if parent is None:
                return None
            chosen = (
                parent.type == "conditional_expression"
                and parent.child_by_field_name("condition") != element
            )
            last = (
                parent.type == "comma_expression" and parent.child_by_field_name("right") == element
            )
            if not chosen and not last:
                break
            element = parent
        kind = parent.type
        if kind in _VALUE_PARENTS or kind in ("conditional_expression", "comma_expression"):
            return False
        if kind == "assignment_expression":
            return parent.child_by_field_name("left") == element
        if kind == "update_expression":
            return True
        if kind == "binary_expression":
            operator = self.text(parent.child_by_field_name("operator"))
            return False if operator in _ARITHMETIC else None
        if kind in ("init_declarator", "initializer_list", "compound_literal_expression"):
            return self.initialises(parent)
        if kind == "cast_expression":
            target = self.text(parent.child_by_field_name("type"))
            return False if target == "void" or self.is_number(target) else None
        if kind == "argument_list":
            return self.element_argument(element, parent)
        if kind == "return_statement":
            return None if returns_reference(parent, self.text) else False
        if kind == "field_expression":
            return self.element_member(parent)
        return None

    def is_number(self, cpp_type: str) -> bool:
        return self.reader.is_number(cpp_type, self.body.templates)

    def holds_numbers(self, cpp_type: str) -> bool:
        return self.is_number(cpp_type) or self.reader.is_number_list(cpp_type, self.body.templates)

    def initialises(self, node: Node) -> bool | None:
        """Whether something initialised with an element can be a way to store to it."""
        while node.type == "initializer_list" and node.parent is not None:
            node = node.parent
        if node.type == "compound_literal_expression":
            return (
                False if self.holds_numbers(self.text(node.child_by_field_name("type"))) else None
            )
        if node.type != "init_declarator" or node.parent is None:
            return None
        declarator = node.child_by_field_name("declarator")
        while declarator is not None and declarator.type == "array_declarator":
            declarator = declarator.child_by_field_name("declarator")
        if declarator is None:
            return None
        if declarator.type == "reference_declarator":
            return False if self.is_const(node.parent) else None
        kind = self.text(node.parent.child_by_field_name("type"))
        number = kind == "auto" or self.holds_numbers(kind)
        return False if declarator.type == "identifier" and number else None

    def element_argument(self, element: Node, arguments: Node) -> bool | None:
        """Whether a call may store to an element that is its argument."""
        call = arguments.parent
        if call is None:
            return None
        if call.type == "init_declarator":
            return self.initialises(call)
        callee = call.child_by_field_name("function")
        name = self.callee(arguments)
        if callee is None:
            return None
        if name in self.reader.transparent:
            return self.written(call)
        index = position(element, arguments)
        local = self.lambdas(name)
        if local:
            return self.lambda_argument(local, index)
        bodies = self.reader.bodies.get(name.split("::")[-1])
        if bodies is not None:
            return self.by_value([b.parameters for b in bodies], index)
        if name in WRITING_CALLS:
            return True
        if name in ("static_cast", "std::get"):
            target = self.text(callee).partition("<")[2].rpartition(">")[0]
            return False if self.is_number(target) or _to_const(target) else None
        if name in VALUE_CALLS and re.search(r"<[^>]*[&*]", self.text(callee)):
            return None
        if name in VALUE_CALLS or self.holds_numbers(self.text(callee)):
            return False
        if callee.type == "field_expression":
            method = self.text(callee.child_by_field_name("field"))
            return False if method in APPENDS and not self.reader.references else None
        return None

    def by_value(self, overloads: Sequence[Sequence[Parameter]], index: int) -> bool | None:
        """Whether all overloads take an argument by value or by reference to const."""
        for parameters in overloads:
            if index >= len(parameters):
                return None
            kind = parameters[index].type
            constant = kind.endswith("&") and re.search(r"\bconst\b", kind)
            if not constant and not self.is_number(kind) and kind != "auto":
                return None
        return False

    def lambdas(self, name: str) -> list[Node]:
        """Return what variables of the body that have this name are initialised with."""
        return [
            node.child_by_field_name("value") or node
            for node in walk(self.body.node)
            if node.type == "init_declarator"
            and self.text(declared(node.child_by_field_name("declarator"))) == name
        ]

    def lambda_argument(self, values: Sequence[Node], index: int) -> bool | None:
        """Whether one of some lambdas may store to an element that is its argument."""
        for value in values:
            inner = value.child_by_field_name("declarator")
            listed = inner.child_by_field_name("parameters") if inner is not None else None
            if value.type != "lambda_expression" or listed is None:
                return None
            if index >= len(listed.named_children):
                return None
            parameter = listed.named_children[index]
            marked = parameter.child_by_field_name("declarator")
            mark = marked.type if marked is not None else ""
            kind = self.text(parameter.child_by_field_name("type"))
            by_value = mark == "identifier" and (kind == "auto" or self.is_number(kind))
            if not by_value and not (mark == "reference_declarator" and self.is_const(parameter)):
                return None
        return False

    def element_member(self, member: Node) -> bool | None:
        """Whether ``a[i].name`` may store: only the parts of a complex number are known."""
        call = member.parent
        known = self.text(member.child_by_field_name("field")) in ("real", "imag")
        if not known or call is None or call.type != "call_expression":
            return None
        arguments = call.child_by_field_name("arguments")
        return False if arguments is not None and not arguments.named_children else None

    def callee(self, arguments: Node) -> str:
        """Return the name that is called, without template arguments."""
        call = arguments.parent
        callee = call.child_by_field_name("function") if call is not None else None
        return self.text(callee).partition("<")[0].strip()


def _to_const(cpp_type: str) -> bool:
    """Whether a type is a pointer or reference through which nothing can be written."""
    return bool(
        re.fullmatch(r"\s*(?:const\b[^*&]*|[^*&]*\bconst\s*)(?:\*|&)\s*(?:const)?\s*", cpp_type)
    )


def _cast_to_const(function: str) -> bool:
    found = re.fullmatch(r"(?:static_cast|reinterpret_cast)\s*<(.*)>", function, re.DOTALL)
    return found is not None and _to_const(found[1])
