"""What the C++ of a cell says: functions, parameters, and how tensors are used.

Read with tree-sitter, which recovers from half-written code: a cell that does not compile still
tells which names it defines, and they are blocked until it builds. Nothing here judges validity:
the compiler does. What is derived here decides which guard stands before a kernel, so every rule
errs on the side of refusing: an argument whose use cannot be followed counts as possibly written
and as indexed flat.
"""

from __future__ import annotations

import functools
import keyword
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from tree_sitter import Node, Parser

__all__ = ["CPP_TO_DTYPE", "Function", "Parameter", "Source", "TensorUse", "View", "parse_source"]

Direction = Literal["in", "out", "inout"]

CPP_TO_DTYPE: Mapping[str, str] = {
    "bool": "bool",
    "float": "float32",
    "double": "float64",
    "_Float16": "float16",
    "char": "int8",
    "signed char": "int8",
    "unsigned char": "uint8",
    "short": "int16",
    "unsigned short": "uint16",
    "int": "int32",
    "unsigned": "uint32",
    "unsigned int": "uint32",
    "long": "int64",
    "unsigned long": "uint64",
    "long long": "int64",
    "unsigned long long": "uint64",
    "size_t": "uint64",
    **{f"{sign}int{bits}_t": f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)},
    "std::complex<float>": "complex64",
    "std::complex<double>": "complex128",
}

_VIEW = re.compile(
    r"^(?:const\s+)?(?:::)?(?:tp::)?(In|Out|InOut)\s*<\s*(?P<element>[^,<>]+(?:<[^<>]*>)?)\s*"
    r"(?:,\s*(?P<rank>-?\d+|(?:tp::)?any_rank)\s*)?>\s*(?P<reference>&{0,2})$"
)
_TENSOR_TYPES = frozenset(
    {"DLTensor*", *(f"{n}Tensor{v}" for n in ("", "ffi::", "tvm::ffi::") for v in ("", "View"))}
)
# Calls through which a reference to an element is commonly written, and calls that take values.
# Of any other function nothing is known, unless the cell defines it.
_WRITING_CALLS = frozenset({"swap", "std::swap", "exchange", "std::exchange"})
_VALUE_CALLS = frozenset({
    *CPP_TO_DTYPE, "abs", "acos", "asin", "atan", "atan2", "cbrt", "ceil", "cos", "cosh", "erf",
    "erfc", "exp", "exp2", "expm1", "fabs", "floor", "fmax", "fmin", "fmod", "fprintf", "hypot",
    "isfinite", "isinf", "isnan", "log", "log10", "log1p", "log2", "pow", "printf", "round", "sin",
    "sinh", "sqrt", "static_cast", "tan", "tanh",
})  # fmt: skip


@dataclass(frozen=True)
class View:
    """A typed view in a signature: ``tp::In<T, 2>`` is ``View("in", "T", 2)``."""

    direction: Direction
    element: str
    rank: int | None


@dataclass(frozen=True)
class TensorUse:
    """How a function's body uses one tensor parameter, as far as it can be followed.

    Attributes
    ----------
    dtypes
        Element types its data pointer is cast to, as dtype names.
    cast_line
        Line of the first such cast.
    checks_dtype
        The body asks for ``x.dtype()``, so the kernel decides itself.
    untyped
        The body reads its memory and nothing says as which type.
    strided
        The body asks for strides (or indexes ``x(i, j)`` only), so strided views are admitted.
    written
        True, False, or None where it cannot be followed.
    rank
        Number of indices in every ``x(i, j)``; None without any.
    """

    dtypes: tuple[str, ...] = ()
    cast_line: int | None = None
    checks_dtype: bool = False
    untyped: bool = False
    strided: bool = False
    written: bool | None = False
    rank: int | None = None


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
    """A function defined at the top level of the cell."""

    name: str
    parameters: tuple[Parameter, ...]
    return_type: str
    templates: tuple[str, ...]
    line: int
    column: int
    internal: bool
    namespace: str = ""

    @property
    def has_views(self) -> bool:
        """Whether the signature uses typed views."""
        return any(p.view for p in self.parameters)

    @property
    def signature(self) -> str:
        """The declaration on one line."""
        inside = ", ".join(f"{p.type} {p.name}".strip() for p in self.parameters)
        return f"{self.return_type} {self.name}({inside})"


@dataclass(frozen=True)
class Source:
    """All functions of a text, and the names of its own types and aliases."""

    functions: tuple[Function, ...]
    classes: frozenset[str] = frozenset()
    aliases: Mapping[str, str] = field(default_factory=dict)


def bare_type(text: str) -> str:
    """Return a parameter type without const, reference and a leading ``std::`` on integers."""
    text = re.sub(r"\bconst\b", "", text).replace("&", "").replace("::std::", "std::")
    text = " ".join(text.split()).removeprefix("::").replace(" *", "*")
    integer = re.fullmatch(r"std::(u?int\d+_t|size_t)", text)
    return integer.group(1) if integer else text


@functools.cache
def _parser() -> Parser:
    import tree_sitter
    import tree_sitter_cpp

    return tree_sitter.Parser(tree_sitter.Language(tree_sitter_cpp.language()))


class _Reader:
    """Turns tree-sitter nodes of one text into the records above."""

    def __init__(self, text: str, first_line: int) -> None:
        self.data = text.encode()
        self.lines = self.data.split(b"\n")
        self.first_line = first_line
        self.aliases: dict[str, str] = {}
        self.classes: set[str] = set()
        self.bodies: dict[str, tuple[Node, tuple[Parameter, ...]]] = {}

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
        for child in node.named_children:
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
            elif kind in (
                "linkage_specification",
                "ERROR",
                "preproc_if",
                "preproc_ifdef",
                "preproc_else",
                "preproc_elif",
                "declaration_list",
            ):
                yield from self.functions(child, namespace, internal)
            elif kind in ("struct_specifier", "class_specifier", "union_specifier"):
                self.classes.add(self.text(child.child_by_field_name("name")))
            elif kind == "alias_declaration":
                name = self.text(child.child_by_field_name("name"))
                self.aliases[name] = self.text(child.child_by_field_name("type"))
            elif kind == "type_definition":
                name = self.text(child.child_by_field_name("declarator"))
                self.aliases[name] = self.text(child.child_by_field_name("type"))

    def template(self, node: Node, namespace: str, internal: bool) -> Iterator[Function]:
        parameters = node.child_by_field_name("parameters")
        names: list[str] = []
        for child in parameters.named_children if parameters is not None else ():
            if child.type == "type_parameter_declaration":
                names.append(self.text(child.named_children[-1]) if child.named_children else "")
            else:  # a value parameter: there is nothing to deduce it from at the boundary
                names.append("=" + self.text(child))
        for child in node.named_children:
            if child.type == "function_definition":
                found = self.function(child, tuple(names), namespace, internal)
                if found:
                    yield found

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
        function = Function(
            name=self.text(name_node),
            parameters=parameters,
            return_type=self.text(node.child_by_field_name("type")) + marks,
            templates=templates,
            line=line,
            column=column,
            internal=internal,
            namespace=namespace,
        )
        body = node.child_by_field_name("body")
        if body is not None:
            self.bodies[function.name] = (body, parameters)
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
            line, column = self.place(node)
            yield Parameter(
                name=self.text(name_node),
                type=" ".join(kind.split()),
                line=line,
                column=column,
                default=self.text(default) if default is not None else None,
                view=_view(" ".join(kind.split())),
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

    # -- uses of tensors in a body ------------------------------------------------------------

    def resolve(self, cpp_type: str) -> str:
        """Follow the cell's own aliases of a type."""
        seen: set[str] = set()
        bare = bare_type(cpp_type)
        while bare in self.aliases and bare not in seen:
            seen.add(bare)
            bare = bare_type(self.aliases[bare])
        return bare

    def use(self, function: str, parameter: str, depth: int = 0) -> TensorUse:
        body, _ = self.bodies[function]
        facts = _Facts()
        for node in _walk(body):
            if node.type == "identifier" and self.text(node) == parameter:
                self.note(node, body, facts, depth)
        return facts.result()

    def note(self, node: Node, body: Node, facts: _Facts, depth: int) -> None:
        """Record what one mention of a tensor parameter says about it."""
        parent = node.parent
        if parent is None:
            return
        if parent.type == "field_expression" and parent.child_by_field_name("argument") == node:
            field_name = self.text(parent.child_by_field_name("field"))
            if field_name in ("data_ptr", "data", "begin"):
                call = parent.parent
                target = call if call is not None and call.type == "call_expression" else parent
                self.pointer(target, body, facts)
                facts.flat = True
            elif field_name in ("stride", "strides"):
                facts.strides = True
            elif field_name == "dtype":
                facts.checks_dtype |= self.judged(parent)
        elif (
            parent.type == "subscript_expression" and parent.child_by_field_name("argument") == node
        ):
            facts.flat = True
            facts.merge_written(self.written(parent))
        elif parent.type == "call_expression" and parent.child_by_field_name("function") == node:
            arguments = parent.child_by_field_name("arguments")
            facts.ranks.add(len(arguments.named_children) if arguments is not None else 0)
            facts.merge_written(self.written(parent))
        elif parent.type == "argument_list":
            self.passed_on(node, parent, facts, depth)
        else:
            facts.unknown()

    def judged(self, member: Node) -> bool:
        """Whether ``x.dtype()`` is compared or taken apart, not only handed on to an allocation."""
        call = member.parent
        if call is None or call.type != "call_expression":
            call = member
        outer = call.parent
        return outer is not None and outer.type != "argument_list"

    def passed_on(self, node: Node, arguments: Node, facts: _Facts, depth: int) -> None:
        """Follow a tensor handed to another function of the cell; elsewhere nothing is known."""
        call = arguments.parent
        callee = call.child_by_field_name("function") if call is not None else None
        name = self.text(callee).split("<")[0].split("::")[-1]
        if name in ("IsContiguous", "static_cast"):
            return
        index = [c.start_byte for c in arguments.named_children].index(node.start_byte)
        if depth < 4 and name in self.bodies and index < len(self.bodies[name][1]):
            facts.merge(self.use(name, self.bodies[name][1][index].name, depth + 1))
        else:
            facts.unknown()

    def pointer(self, node: Node, body: Node, facts: _Facts) -> None:
        """Follow the data pointer: its cast, then what is done through it."""
        parent = node.parent
        constant = False
        while parent is not None and parent.type == "parenthesized_expression":
            node, parent = parent, parent.parent
        cast: Node | None = None
        if parent is not None and parent.type == "argument_list":
            call = parent.parent
            function = call.child_by_field_name("function") if call is not None else None
            if (
                function is not None
                and function.type == "template_function"
                and self.text(function.child_by_field_name("name"))
                in ("static_cast", "reinterpret_cast")
            ):
                cast = function.child_by_field_name("arguments")
                node = call if call is not None else node
        elif parent is not None and parent.type == "cast_expression":
            cast = parent.child_by_field_name("type")
            node = parent
        if cast is not None:
            target = self.text(cast).strip("<> ")
            constant = bool(re.search(r"\bconst\b[^*]*\*", target))
            element = self.resolve(target.rstrip("*& ").removesuffix("const"))
            if target.rstrip().endswith("*") and element in CPP_TO_DTYPE:
                facts.add_cast(CPP_TO_DTYPE[element], self.place(cast)[0])
            else:
                facts.opaque_cast = True
        else:
            facts.opaque_cast = True
        if not constant:
            self.through(node, body, facts)

    def through(self, node: Node, body: Node, facts: _Facts, depth: int = 0) -> None:
        """Record what is done through a pointer-valued expression."""
        parent = node.parent
        while parent is not None and (
            parent.type == "parenthesized_expression"
            or (
                parent.type == "binary_expression"
                and self.text(parent.child_by_field_name("operator")) in "+-"
            )
        ):
            node, parent = parent, parent.parent
        if parent is None or depth > 4:
            facts.merge_written(None)
            return
        if parent.type == "subscript_expression" and parent.child_by_field_name("argument") == node:
            facts.merge_written(self.written(parent))
        elif parent.type == "update_expression":
            self.through(parent, body, facts, depth + 1)
        elif parent.type == "pointer_expression" and self.text(parent).startswith("*"):
            facts.merge_written(self.written(parent))
        elif parent.type == "init_declarator":
            declarator = parent.child_by_field_name("declarator")
            name, _ = self.declared(declarator)
            pointer = declarator is not None and declarator.type == "pointer_declarator"
            if name is None or (pointer and self.is_const(parent.parent)):
                return  # a pointer to const: nothing is written through it
            self.variable(self.text(name), name, body, facts, depth)
        elif parent.type in {"expression_statement", "binary_expression"}:
            return  # advanced or compared, not dereferenced
        else:
            facts.merge_written(None)

    def written_by_call(self, element: Node, arguments: Node) -> bool | None:
        """Whether a call may store to an element that is its argument."""
        call = arguments.parent
        callee = call.child_by_field_name("function") if call is not None else None
        name = self.text(callee).split("<")[0]
        if name in _WRITING_CALLS:
            return True
        if name in _VALUE_CALLS or name.startswith("std::"):
            return False
        parameters = self.bodies[name][1] if name in self.bodies else ()
        index = [c.start_byte for c in arguments.named_children].index(element.start_byte)
        if index >= len(parameters):
            return None
        kind = parameters[index].type
        return None if kind.endswith("&") and "const" not in kind else False

    def is_const(self, declaration: Node | None) -> bool:
        """Whether a declaration's own type is const, as in ``const float* p``."""
        return declaration is not None and any(
            c.type == "type_qualifier" and self.text(c) == "const" for c in declaration.children
        )

    def variable(self, name: str, declared: Node, body: Node, facts: _Facts, depth: int) -> None:
        for node in _walk(body):
            if node.type == "identifier" and self.text(node) == name and node != declared:
                parent = node.parent
                if parent is not None and parent.type == "field_expression":
                    continue
                self.through(node, body, facts, depth + 1)

    def written(self, element: Node) -> bool | None:
        """Whether an element expression such as ``a[i]`` is stored to."""
        parent = element.parent
        while parent is not None and parent.type == "parenthesized_expression":
            element, parent = parent, parent.parent
        if parent is None:
            return None
        if parent.type == "assignment_expression":
            return parent.child_by_field_name("left") == element
        if parent.type == "update_expression":
            return True
        if parent.type == "pointer_expression":
            return None  # its address is taken
        if parent.type == "field_expression":
            return None
        if parent.type == "init_declarator":
            declarator = parent.child_by_field_name("declarator")
            reference = declarator is not None and declarator.type == "reference_declarator"
            return None if reference and not self.is_const(parent.parent) else False
        if parent.type == "argument_list" and parent.parent is not None:
            return self.written_by_call(element, parent)
        if parent.type == "subscript_argument_list":
            return False
        if (
            parent.type == "binary_expression"
            and self.text(parent.child_by_field_name("operator")) == ">>"
        ):
            return None
        return False


class _Facts:
    """What the mentions of one parameter add up to."""

    def __init__(self) -> None:
        self.dtypes: dict[str, int] = {}
        self.checks_dtype = False
        self.opaque_cast = False
        self.strides = False
        self.flat = False
        self.ranks: set[int] = set()
        self.is_written: bool | None = False
        self.other_rank: int | None = None
        self.followed_strided = False

    def add_cast(self, dtype: str, line: int) -> None:
        self.dtypes.setdefault(dtype, line)

    def merge_written(self, written: bool | None) -> None:
        if written is True or self.is_written is True:
            self.is_written = True
        elif written is None:
            self.is_written = None

    def merge(self, use: TensorUse) -> None:
        for dtype in use.dtypes:
            self.add_cast(dtype, use.cast_line or 0)
        self.checks_dtype |= use.checks_dtype
        self.opaque_cast |= use.untyped
        self.merge_written(use.written)
        if use.strided:
            self.followed_strided = True
        else:
            self.flat = True

    def unknown(self) -> None:
        self.merge_written(None)
        self.flat = True
        self.opaque_cast = True

    def result(self) -> TensorUse:
        indexed = bool(self.ranks) or self.followed_strided
        untouched = not self.flat and not indexed and not self.strides
        return TensorUse(
            dtypes=() if self.opaque_cast else tuple(self.dtypes),
            cast_line=min(self.dtypes.values()) if self.dtypes else None,
            checks_dtype=self.checks_dtype,
            untyped=self.opaque_cast and not self.checks_dtype,
            strided=self.strides or untouched or (indexed and not self.flat),
            written=self.is_written,
            rank=next(iter(self.ranks)) if len(self.ranks) == 1 else None,
        )


def _view(text: str) -> View | None:
    found = _VIEW.match(text)
    if found is None:
        return None
    directions: dict[str, Direction] = {"In": "in", "Out": "out", "InOut": "inout"}
    rank = found["rank"]
    return View(
        direction=directions[found[1]],
        element=bare_type(found["element"]),
        rank=int(rank) if rank and rank.isdigit() else None,
    )


def _walk(node: Node) -> Iterator[Node]:
    """All descendants in the order of the text."""
    stack = [node]
    while stack:
        current = stack.pop()
        yield current
        stack.extend(reversed(current.children))


def python_name(name: str, position: int) -> str:
    """Return what Python calls a C++ parameter: ``in`` becomes ``in_``, an unnamed one ``arg0``."""
    if not name:
        return f"arg{position}"
    return name + "_" if keyword.iskeyword(name) else name


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
    functions = list(reader.functions(_parser().parse(reader.data).root_node))
    done: list[Function] = []
    for function in functions:
        parameters = []
        for position, parameter in enumerate(function.parameters):
            view, use = parameter.view, parameter.use
            if view is not None:
                view = replace(view, element=reader.resolve(view.element))
            if parameter.is_tensor and function.name in reader.bodies:
                use = reader.use(function.name, parameter.name)
            name = python_name(parameter.name, position)
            parameters.append(replace(parameter, name=name, view=view, use=use))
        done.append(replace(function, parameters=tuple(parameters)))
    return Source(tuple(done), frozenset(reader.classes), dict(reader.aliases))
