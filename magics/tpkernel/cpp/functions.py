"""What the C++ of a cell says: functions, parameters, and how tensors are used.

Read with tree-sitter, which recovers from half-written code: a cell that does not compile still
tells which names it defines, and they are blocked until it builds. Nothing here judges validity:
the compiler does. What is derived in :mod:`tpkernel.cpp.uses` decides which guard stands before a
kernel, so every rule errs on the side of refusing: an argument whose use cannot be followed counts
as possibly written and as indexed flat.
"""

from __future__ import annotations

import functools
import keyword
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from tensorplay.utils.cpp_jit.source import without_digraphs
from tpkernel.cpp.scalar_types import bare_type
from tpkernel.cpp.tensor_use import TensorUse, merged
from tpkernel.cpp.trees import walk
from tpkernel.cpp.uses import Body, UseReader
from tpkernel.cpp.views import View, expanded, view_of

if TYPE_CHECKING:
    from tree_sitter import Node, Parser

__all__ = ["Function", "Parameter", "Source", "TensorUse", "View", "parse_source", "parse_tree"]

_TENSOR_TYPES = frozenset(
    {"DLTensor*", *(f"{n}Tensor{v}" for n in ("", "ffi::", "tvm::ffi::") for v in ("", "View"))}
)
_BRANCHES = frozenset({
    "preproc_if", "preproc_ifdef", "preproc_else", "preproc_elif", "preproc_elifdef",
})  # fmt: skip
_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
# Headers of the person, static members that are defined inside, functions that run on loading.
_HIDDEN_GLOBALS = re.compile(
    r'^[ \t]*#[ \t]*include[ \t]*"|\b(?:inline\s+static|static\s+inline)\b[^(;{]*[;={]'
    r"|\bconstructor\b",
    re.MULTILINE,
)


@dataclass(frozen=True)
class Parameter:
    """One parameter of a C++ function; `line` and `column` count from 1 as in the cell."""

    name: str
    type: str
    line: int
    column: int
    default: str | None = None
    view: View | None = None
    use: TensorUse | None = None

    @property
    def is_tensor(self) -> bool:
        """Whether the parameter takes a tensor (typed view or engine view)."""
        return self.view is not None or bare_type(self.type) in _TENSOR_TYPES


@dataclass(frozen=True)
class Function:
    """A function defined at the top level of the cell.

    Attributes
    ----------
    branches
        The branches of ``#if`` that it stands in, as places in the text.
    """

    name: str
    parameters: tuple[Parameter, ...]
    return_type: str
    templates: tuple[str, ...]
    line: int
    column: int
    internal: bool
    namespace: str = ""
    branches: tuple[int, ...] = ()

    @property
    def has_views(self) -> bool:
        """Whether the signature uses typed views."""
        return any(p.view for p in self.parameters)

    def excludes(self, other: Function) -> bool:
        """Whether another function stands in another branch of ``#if``: one of them is compiled."""
        return self.branches != other.branches and bool(self.branches and other.branches)

    def stands_for(self, other: Function) -> bool:
        """Whether another branch of ``#if`` defines the same function, with another body."""

        def shape(f: Function) -> tuple[object, ...]:
            casts = [None if p.use is None else set(p.use.dtypes) for p in f.parameters]
            given = [(p.type, p.name, p.default) for p in f.parameters]
            return f.name, f.namespace, f.return_type, f.templates, f.internal, given, casts

        return self.excludes(other) and shape(self) == shape(other)

    def beside(self, others: Sequence[Function]) -> Function:
        """Return the function with what its parameters are used for in the other bodies, too."""
        if not others:
            return self
        parameters = [
            replace(mine, use=merged([use for p in same if (use := p.use) is not None]))
            if mine.use is not None
            else mine
            for mine, *same in zip(
                self.parameters, self.parameters, *(f.parameters for f in others), strict=True
            )
        ]
        return replace(self, parameters=tuple(parameters))

    @property
    def signature(self) -> str:
        """The declaration on one line."""
        inside = ", ".join(f"{p.type} {p.name}".strip() for p in self.parameters)
        return f"{self.return_type} {self.name}({inside})"


@dataclass(frozen=True)
class Source:
    """All functions of a text, and the names of its own types and aliases.

    Attributes
    ----------
    drops_const
        A cast somewhere may take const away, so nothing that C++ types promise counts.
    runs_on_load
        Global objects or constructor functions may run code when the library is loaded.
    """

    functions: tuple[Function, ...]
    classes: frozenset[str] = frozenset()
    aliases: Mapping[str, str] = field(default_factory=dict)
    drops_const: bool = False
    runs_on_load: bool = False


@functools.cache
def _parser() -> Parser:
    import tree_sitter
    import tree_sitter_cpp

    return tree_sitter.Parser(tree_sitter.Language(tree_sitter_cpp.language()))


class _Reader:
    """Turns tree-sitter nodes of one text into the records above."""

    def __init__(self, text: str, first_line: int) -> None:
        self.data = without_digraphs(text).encode(errors="replace")
        self.lines = self.data.split(b"\n")
        self.first_line = first_line
        self.aliases: dict[str, str] = {}
        self.template_aliases: dict[str, tuple[tuple[str, ...], str]] = {}
        self.classes: set[str] = set()
        self.bodies: dict[str, list[Body]] = {}
        self.own_body: dict[int, Body] = {}
        self.branches: tuple[int, ...] = ()
        self.opens_tp = re.search(r"\busing\s+(?:namespace\s+tp\b|tp::)", text) is not None
        self.runs_on_load = _HIDDEN_GLOBALS.search(text) is not None

    def text(self, node: Node | None) -> str:
        if node is None:
            return ""
        return self.data[node.start_byte : node.end_byte].decode()

    def place(self, node: Node) -> tuple[int, int]:
        row, byte = node.start_point
        column = len(self.lines[row][:byte].decode(errors="replace")) + 1
        return row + self.first_line, column

    # -- declarations -------------------------------------------------------------------------

    def functions(
        self, node: Node, namespace: str = "", internal: bool = False
    ) -> Iterator[Function]:
        for child in self.members(node):
            kind = child.type
            if kind == "function_definition":
                found = self.function(child, (), namespace, internal)
                if found:
                    yield found
            elif kind == "template_declaration":
                yield from self.template(child, namespace, internal)
            elif kind == "namespace_definition":
                name = self.text(child.child_by_field_name("name"))
                inner = f"{namespace}::{name}".strip(":") if name else namespace
                body = child.child_by_field_name("body")
                if body is not None:
                    yield from self.functions(body, inner, internal or not name)
            elif kind in ("linkage_specification", "ERROR", "declaration_list"):
                yield from self.functions(child, namespace, internal)
            elif kind in _BRANCHES:
                outer = self.branches
                self.branches = (*outer, child.start_byte)
                yield from self.functions(child, namespace, internal)
                self.branches = outer
            elif kind == "declaration":
                self.runs_on_load |= self.is_dynamic(child)
            elif kind in ("struct_specifier", "class_specifier", "union_specifier"):
                self.classes.add(self.text(child.child_by_field_name("name")))
            elif kind == "alias_declaration":
                name = self.text(child.child_by_field_name("name"))
                self.aliases[name] = self.text(child.child_by_field_name("type"))
            elif kind == "type_definition":
                name = self.text(child.child_by_field_name("declarator"))
                self.aliases[name] = self.text(child.child_by_field_name("type"))

    def members(self, node: Node) -> list[Node]:
        """Return what a node holds; of ``#if 0`` and ``#if 1`` what the compiler reads."""
        if node.type not in ("preproc_if", "preproc_elif"):
            return node.named_children
        other = node.child_by_field_name("alternative")
        condition = self.text(node.child_by_field_name("condition")).strip()
        if condition in ("0", "false"):
            return [other] if other is not None else []
        if condition in ("1", "true"):
            return [c for c in node.named_children if c != other]
        return node.named_children

    def is_dynamic(self, node: Node) -> bool:
        """Whether a global declaration may run code: all but functions and literals of numbers."""
        marks = {self.text(c) for c in node.children}
        if marks & {"constexpr", "extern"}:
            return False
        plain = node.child_by_field_name("type")
        number = plain is not None and plain.type in ("primitive_type", "sized_type_specifier")
        for declarator in node.children_by_field_name("declarator"):
            inner: Node | None = declarator
            while inner is not None and inner.type in (
                "pointer_declarator",
                "reference_declarator",
            ):
                inner = inner.child_by_field_name("declarator") or inner.named_children[-1]
            if inner is None or inner.type == "function_declarator":
                continue
            value = inner.child_by_field_name("value")
            computes = value is not None and any(
                n.type in ("call_expression", "identifier", "new_expression") for n in walk(value)
            )
            if not number or computes:
                return True
        return False

    def local_aliases(self, root: Node) -> None:
        """Add the names that functions give to types, where one name means one type."""
        found: dict[str, set[str]] = {}
        for node in walk(root):
            if node.type in ("alias_declaration", "type_definition"):
                own = "name" if node.type == "alias_declaration" else "declarator"
                name = self.text(node.child_by_field_name(own))
                found.setdefault(name, set()).add(self.text(node.child_by_field_name("type")))
        for name, types in found.items():
            if len(types) == 1:
                self.aliases.setdefault(name, next(iter(types)))

    def template(self, node: Node, namespace: str, internal: bool) -> Iterator[Function]:
        parameters = node.child_by_field_name("parameters")
        names: list[str] = []
        for child in parameters.named_children if parameters is not None else ():
            own = child.child_by_field_name("name") or child.child_by_field_name("declarator")
            if child.type == "type_parameter_declaration":
                names.append(self.text(child.named_children[-1]) if child.named_children else "")
            elif own is not None and (
                child.type == "optional_type_parameter_declaration"
                or self.is_element(self.text(own), node)
            ):
                names.append(self.text(own))
            else:  # a value parameter: there is nothing to deduce it from at the boundary
                names.append("=" + self.text(child))
        for child in node.named_children:
            if child.type == "alias_declaration":
                name = self.text(child.child_by_field_name("name"))
                target = self.text(child.child_by_field_name("type"))
                self.template_aliases[name] = (tuple(names), target)
            if child.type == "function_definition":
                found = self.function(child, tuple(names), namespace, internal)
                if found:
                    yield found

    def is_element(self, name: str, node: Node) -> bool:
        """Whether a template parameter is a type by a concept: views have it as their element."""
        used = rf"\b(?:In|Out|InOut|Result)\s*<\s*(?:const\s+)?{re.escape(name)}\b"
        return re.search(used, self.text(node)) is not None

    def function(
        self, node: Node, templates: tuple[str, ...], namespace: str, internal: bool
    ) -> Function | None:
        declarator = node.child_by_field_name("declarator")
        marks = ""
        while declarator is not None and declarator.type in (
            "pointer_declarator",
            "reference_declarator",
        ):
            marks += "*" if declarator.type == "pointer_declarator" else "&"
            declarator = (
                declarator.child_by_field_name("declarator") or declarator.named_children[-1]
            )
        if declarator is None or declarator.type != "function_declarator":
            return None
        name_node = declarator.child_by_field_name("declarator")
        if name_node is None or name_node.type != "identifier":
            return None  # a method defined outside its class, an operator
        for child in node.children:
            if child.type == "storage_class_specifier" and self.text(child) in ("static", "inline"):
                internal = True
        line, column = self.place(name_node)
        listed = declarator.child_by_field_name("parameters")
        parameters = tuple(self.parameters(listed)) if listed is not None else ()
        behind = next((c for c in declarator.children if c.type == "trailing_return_type"), None)
        result = self.text(node.child_by_field_name("type")) + marks
        function = Function(
            name=self.text(name_node),
            parameters=parameters,
            return_type=result if behind is None else self.text(behind).lstrip("-> "),
            templates=templates,
            line=line,
            column=column,
            internal=internal,
            namespace=namespace,
            branches=self.branches,
        )
        body = node.child_by_field_name("body")
        if body is not None:
            made = Body(body, parameters, templates)
            self.bodies.setdefault(function.name, []).append(made)
            self.own_body[id(function)] = made
        return function

    def parameters(self, listed: Node) -> Iterator[Parameter]:
        for node in listed.named_children:
            if node.type not in ("parameter_declaration", "optional_parameter_declaration"):
                continue
            declarator = node.child_by_field_name("declarator")
            default = node.child_by_field_name("default_value")
            if declarator is None and self.text(node) == "void":
                continue
            name_node, marks = self.declared(declarator)
            qualifiers = [self.text(c) for c in node.children if c.type == "type_qualifier"]
            kind = " ".join([*qualifiers, self.text(node.child_by_field_name("type"))]) + marks
            kind = " ".join(_COMMENT.sub(" ", kind).split())
            kind = expanded(kind, self.aliases, self.template_aliases)
            line, column = self.place(node)
            yield Parameter(
                name=self.text(name_node),
                type=kind,
                line=line,
                column=column,
                default=self.text(default) if default is not None else None,
                view=view_of(kind, opened=self.opens_tp),
            )

    def declared(self, node: Node | None) -> tuple[Node | None, str]:
        """Return the identifier inside a declarator and its ``*``, ``&`` and ``[]`` marks."""
        marks = ""
        while node is not None and node.type != "identifier":
            if "pointer" in node.type:
                marks += "*"
            elif "reference" in node.type:
                marks += "&&" if self.text(node).startswith("&&") else "&"
            elif "array" in node.type:
                marks += "[]"
            elif "function" in node.type:
                marks += "()"
            inner = [
                c for c in node.named_children if c.type.endswith(("declarator", "identifier"))
            ]
            node = node.child_by_field_name("declarator") or (inner[0] if inner else None)
        return node, marks


def python_name(name: str, position: int) -> str:
    """Return what Python calls a C++ parameter: ``in`` becomes ``in_``, an unnamed one ``arg0``."""
    if not name:
        return f"arg{position}"
    return name + "_" if keyword.iskeyword(name) else name


def parse_tree(text: str) -> Node:
    """Return the root of a C++ text's syntax tree, complete or half-written."""
    return _parser().parse(without_digraphs(text).encode(errors="replace")).root_node


def _with_uses(function: Function, reader: _Reader, uses: UseReader) -> Function:
    """Return a function whose parameters have Python's names, and are said how they are used."""
    body = reader.own_body.get(id(function))
    parameters = []
    for position, parameter in enumerate(function.parameters):
        view, use = parameter.view, parameter.use
        if view is not None:
            view = replace(view, element=uses.resolve(view.element))
        if parameter.is_tensor and body is not None and not (view and view.form):
            use = uses.use(body, parameter.name)
        name = python_name(parameter.name, position)
        parameters.append(replace(parameter, name=name, view=view, use=use))
    return replace(function, parameters=tuple(parameters))


def parse_source(text: str, *, first_line: int = 1) -> Source:
    """Read the functions of a C++ text.

    Parameters
    ----------
    text
        The source, complete or half-written.
    first_line
        The line number that its first line has for the person.
    """
    reader = _Reader(text, first_line)
    root = parse_tree(text)
    functions = list(reader.functions(root))
    reader.local_aliases(root)
    uses = UseReader(root, reader.bodies, reader.aliases, reader.text, reader.place)
    found = [_with_uses(function, reader, uses) for function in functions]
    done: list[Function] = []
    for function in found:
        if not any(earlier.stands_for(function) for earlier in done):
            # Which of the bodies is compiled is not known: all count.
            done.append(function.beside([f for f in found if function.stands_for(f)]))
    return Source(
        tuple(done),
        frozenset(reader.classes),
        dict(reader.aliases),
        uses.drops_const,
        reader.runs_on_load,
    )
