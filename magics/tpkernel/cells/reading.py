"""From a parsed cell to its spec: the schema against the signature, and every mismatch an error.

One entry point, :func:`read_cell`. Operators come from front matter, or from typed views in a
signature; everything else that the engine can pass is a plain kernel. Each error names operator,
argument, what was expected, what was found and what to write, and points at the cell's line.
"""

from __future__ import annotations

import ast
import keyword
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tensorplay.library.modules.shapes import ShapeRules
from tensorplay.library.modules.spec import Argument, CellSpec, KernelSpec, Kind, OperatorSpec
from tensorplay.utils.cpp_jit.source import Parameter as CppParameter
from tpkernel.cells.cell import Cell, FrontMatter
from tpkernel.cells.entries import EntryReader
from tpkernel.cells.hints import like_backward
from tpkernel.cpp.functions import Function, Parameter
from tpkernel.cpp.scalar_types import (
    BESIDE_VIEWS,
    CPP_TO_DTYPE,
    DERIVED_TYPES,
    INTERNAL,
    bare_type,
    engine_type,
    what_to_write,
)
from tpkernel.cpp.views import View
from tpkernel.errors import did_you_mean

__all__ = ["Options", "read_cell"]

#: What looks like a function and registers classes and functions for the process: a cell may have
#: nothing else.
_REGISTRATION = "TVM_FFI_STATIC_INIT_BLOCK"
_FLOATS = frozenset({"float", "double", "long double"})
_ENGINE = re.compile(
    r"^(tvm::)?(ffi::)?(TensorView|Tensor|String|Bytes|Shape|ShapeView|Any|AnyView|Function|"
    r"Module|ObjectRef|TypedFunction<.*>|Array<.*>|List<.*>|Map<.*>|Dict<.*>|Optional<.*>|"
    r"Tuple<.*>|Variant<.*>)$|^std::string$|^void\*$|^DLTensor\*$|^DLDataType$|^DLDevice$"
)


@dataclass(frozen=True)
class Options:
    """What the magic's line adds to the text.

    Attributes
    ----------
    functions
        Export only these functions; None exports all that can be.
    namespace
        Namespace of operators derived from a signature.
    copy
        Strided inputs are copied instead of refused.
    alias_ok
        Outputs may share memory with inputs.
    option_line
        Line of the magic, where a wrong option is reported.
    """

    functions: tuple[str, ...] | None = None
    namespace: str = "cell"
    copy: bool = False
    alias_ok: bool = False
    option_line: int | None = None


def read_cell(cell: Cell, options: Options | None = None) -> CellSpec:
    """Read a cell's operators and kernels.

    Parameters
    ----------
    cell
        The parsed cell.
    options
        What the magic's line says.

    Raises
    ------
    CellError
        The cell cannot become kernels; the text says which line and what to write.
    """
    return CellReader(cell, options or Options()).read()


class CellReader:
    #: Where the kernels run.
    device = "cpu"

    def __init__(self, cell: Cell, options: Options) -> None:
        self.cell = cell
        self.options = options
        self.helpers: dict[str, OperatorSpec] = {}

    # -- the cell as a whole ------------------------------------------------------------------

    def read(self) -> CellSpec:
        cell = self.cell
        self.check_functions()
        if not cell.functions:
            message = (
                "the cell defines no function. Write one, such as "
                "'template <typename T> void f(tp::In<T> x, tp::Out<T> out) { … }'."
            )
            if "#define" in cell.text:
                message += " What a macro makes is not seen: write signature and braces out."
            if re.search(r"^[ \t]*#[ \t]*(?:if|ifdef|ifndef)\b", cell.text, re.MULTILINE):
                message += (
                    " A function that #if cuts in pieces is not seen: put whole functions or whole "
                    "statements into its branches."
                )
            raise cell.error(message, line=cell.first_line if cell.text.strip() else None)
        operators: list[OperatorSpec] = []
        taken: set[str] = set()
        for entry in cell.entries:
            operators.append(EntryReader(self, entry).operator())
            taken.add(operators[-1].kernel.name)
        seen: dict[str, OperatorSpec] = {}
        for made in operators:
            if made.opname in seen:
                message = f"the name '{made.opname}' is declared twice in this {cell.noun}"
                raise cell.error(message, line=made.line, subject=made.name)
            seen[made.opname] = made
        functions: tuple[KernelSpec, ...] = ()
        skipped: list[tuple[str, str]] = []
        if cell.entries and self.options.functions is None:
            skipped = [
                (f.name, "the cell declares operators; --functions binds others besides")
                for f in cell.functions
                if f.name not in {*taken, *self.helpers, _REGISTRATION} and not f.internal
            ]
        else:
            derived, functions, skipped = self.undeclared(taken)
            operators += derived
        named = {o.opname for o in operators}
        operators += [h for n, h in self.helpers.items() if n not in named]
        spec = CellSpec(
            cell=cell.name,
            operators=with_own_exports(operators, [f.name for f in cell.functions]),
            functions=functions,
            skipped=tuple(skipped),
        )
        if not spec.kernels and not any(f.name == _REGISTRATION for f in cell.functions):
            function = cell.functions[0]
            name, reason = skipped[0] if skipped else (function.name, "it is internal")
            message = f"no function can be exported; '{name}': {reason}. {what_to_write(reason)}"
            raise cell.error(message, line=function.line, column=function.column)
        return spec

    def check_functions(self) -> None:
        cell = self.cell
        exported = re.search(r"^[ \t]*TVM_FFI_DLL_EXPORT_\w+\([^)]*\);?", cell.text, re.MULTILINE)
        if exported is not None:
            message = (
                f"remove '{exported[0].strip()}': a cell exports its functions itself, those "
                "outside of namespaces; move the one that is meant there"
            )
            at = cell.first_line + cell.text[: exported.start()].count("\n")
            raise cell.error(message, line=at)
        for function in cell.functions:
            if function.name == "main" and not function.namespace:
                message = "'main' cannot be a kernel; give the function another name"
                raise cell.error(message, line=function.line, column=function.column)
        for name in self.options.functions or ():
            known = [f.name for f in cell.functions]
            if name not in known:
                message = f"no function '{name}'{did_you_mean(name, known)}"
                if known:
                    message += f" The cell defines {', '.join(dict.fromkeys(known))}."
                raise cell.error(message, line=self.options.option_line)

    def undeclared(
        self, taken: Collection[str]
    ) -> tuple[list[OperatorSpec], tuple[KernelSpec, ...], list[tuple[str, str]]]:
        """Read functions that no entry declares: views give operators, the rest plain kernels."""
        wanted = self.options.functions
        operators: list[OperatorSpec] = []
        plain: dict[str, KernelSpec] = {}
        skipped: list[tuple[str, str]] = []
        names = [f.name for f in self.cell.functions if not f.namespace]
        for function in self.cell.functions:
            if function.name in taken or (wanted is not None and function.name not in wanted):
                continue
            if function.name == _REGISTRATION:
                continue
            listed = wanted is not None
            reason = self.reason_to_skip(function, listed=listed)
            if reason is not None:
                if listed:
                    raise self.cell.error(
                        f"{reason}. {what_to_write(reason)}",
                        line=function.line,
                        column=function.column,
                        subject=function.name,
                    )
                if (function.name, reason) not in skipped:
                    skipped.append((function.name, reason))
                continue
            if names.count(function.name) > 1:
                message = f"two functions are called '{function.name}'; each needs its own name"
                others = [f for f in self.cell.functions if f.name == function.name]
                if all(f is function or f.excludes(function) for f in others):
                    message = (
                        f"another branch of #if has another '{function.name}', and which one is "
                        "compiled is not known here. Give both the same result, template "
                        "parameters, parameters and casts of data_ptr(), or put the #if inside "
                        "the body"
                    )
                raise self.cell.error(
                    message, line=function.line, column=function.column, subject=function.name
                )
            if function.has_views:
                base = function.name.removesuffix("_backward")
                if base != function.name and base in names and wanted is None:
                    continue  # the gradient of another function, read with it
                other = self.misnamed_gradient(function)
                if other is not None and not listed:
                    reason = f"it has a gradient's parameters; call it '{other}_backward'"
                    skipped.append((function.name, reason))
                    continue
                operators.append(self.derived(function))
            elif keyword.iskeyword(function.name):
                message = (
                    f"'{function.name}' is a word of Python's, which no line of Python can call; "
                    f"write {function.name}_ or another name"
                )
                raise self.cell.error(message, line=function.line, column=function.column)
            else:
                plain[function.name] = self.plain_kernel(function)
        return operators, tuple(plain.values()), skipped

    def misnamed_gradient(self, function: Function) -> str | None:
        """Return the function whose gradient this one is by its parameters and almost by its name.

        The report has a hint on it; an operator with an argument `grad` it cannot be.
        """
        if not any(p.name == "grad" for p in function.parameters):
            return None
        others = [f.name for f in self.cell.functions if f.has_views and f.name != function.name]
        return next((n for n in others if like_backward(function.name, n)), None)

    def reason_to_skip(self, function: Function, *, listed: bool) -> str | None:
        """Say why a function cannot be exported, or None."""
        if function.internal and not listed:
            return INTERNAL
        if function.namespace:
            return f"it is in namespace {function.namespace}"
        if function.templates and not function.has_views:
            return "it is a template without typed views, so nothing says which instance is meant"
        for parameter in function.parameters:
            if parameter.view is None and not self.passable(parameter.type, function, listed):
                return f"parameter '{parameter.name}' has type {parameter.type}, which cannot pass"
        if not function.has_views and not self.passable(
            function.return_type, function, listed, True
        ):
            if function.return_type.startswith("__device__"):
                return (
                    "it is marked __device__, so only a kernel can call it, and the cell has none. "
                    "Write one, __global__ void name(…)"
                )
            return f"its result has type {function.return_type}, which cannot be returned"
        return None

    def passable(
        self, cpp_type: str, function: Function, listed: bool, result: bool = False
    ) -> bool:
        bare = self.resolve(cpp_type)
        if bare in function.templates and not result:
            return True
        known = bare in CPP_TO_DTYPE or bare in _FLOATS or (result and bare in ("void", "auto"))
        if known:
            return "std::complex" not in bare and not ("&" in cpp_type and "const" not in cpp_type)
        if self.is_engine_type(cpp_type):
            return True
        pointer = "*" in bare or "[" in bare or "(" in bare
        return listed and not pointer and bare not in self.cell.source.classes and not result

    def is_engine_type(self, cpp_type: str) -> bool:
        """Whether the engine converts a type by itself."""
        return _ENGINE.match(self.resolve(cpp_type).replace("::tvm", "tvm")) is not None

    def resolve(self, cpp_type: str) -> str:
        aliases = self.cell.source.aliases
        bare = bare_type(cpp_type)
        for _ in range(8):
            if bare not in aliases:
                break
            bare = bare_type(aliases[bare])
        return bare

    # -- kernels ------------------------------------------------------------------------------

    def plain_kernel(self, function: Function) -> KernelSpec:
        return KernelSpec(
            name=function.name,
            title=function.name,
            style="plain",
            arguments=tuple(self.argument(p, function) for p in function.parameters),
            returns=function.return_type,
            templates=(),
            instances=({},),
            shapes=ShapeRules({}, {}, declared=False),
            line=function.line,
            defaults=cpp_defaults(function),
            doc=function.signature,
            alias_ok=self.options.alias_ok,
        )

    def argument(self, parameter: Parameter, function: Function) -> Argument:
        if parameter.view is not None:
            return self.view_argument(parameter, parameter.view, function)
        if parameter.is_tensor:
            return self.tensor_argument(parameter)
        kind, low, high = self.scalar(parameter.type, function)
        return Argument(
            name=parameter.name,
            kind=kind,
            cpp_type=parameter.type,
            dtypes=("float32",) if self.resolve(parameter.type) == "float" else (),
            low=low,
            high=high,
            because=f"C++ type {parameter.type}" if kind == "int" else "",
        )

    def scalar(self, cpp_type: str, function: Function) -> tuple[Kind, int, int]:
        bare = self.resolve(cpp_type)
        if bare in _FLOATS or bare in function.templates:
            return "float", 0, 0
        dtype = CPP_TO_DTYPE.get(bare)
        if dtype == "bool":
            return "bool", 0, 1
        if dtype is not None and "int" in dtype:
            bits = int(dtype.lstrip("uint"))
            low = 0 if dtype.startswith("u") else -(2 ** (bits - 1))
            high = 2 ** min(63, bits if dtype.startswith("u") else bits - 1) - 1
            return "int", low, high
        return "other", 0, 0

    def view_argument(self, parameter: Parameter, view: View, function: Function) -> Argument:
        use = parameter.use
        if view.problem:
            message = f"argument '{parameter.name}': got {parameter.type}; {view.problem}"
            raise self.cell.error(
                message, line=parameter.line, column=parameter.column, subject=function.name
            )
        variable = view.element if view.element in function.templates else None
        dtypes: tuple[str, ...] = ()
        if variable is None:
            dtype = CPP_TO_DTYPE.get(view.element)
            if dtype is None:
                message = (
                    f"argument '{parameter.name}': expected an element type such as float, double, "
                    f"int64_t or a template parameter, got {view.element}"
                )
                if re.fullmatch(r"[A-Z]\w*", view.element):
                    message += (
                        f". Write template <typename {view.element}> in front of the function if "
                        f"{view.element} is to be each admitted dtype"
                    )
                raise self.cell.error(
                    message, line=parameter.line, column=parameter.column, subject=function.name
                )
            dtypes = (dtype,)
        rank = view.rank
        because = f"from {parameter.type}"
        if rank is None and use is not None and use.rank is not None:
            rank = use.rank
            because += f" and {parameter.name}({', '.join('ijklmn'[:rank])})"
        if use is not None and use.address_line is not None:
            because += f"; line {use.address_line} takes the address of an element"
        return Argument(
            name=parameter.name,
            kind="tensor",
            cpp_type=parameter.type,
            role="out" if view.direction == "result" else view.direction,
            dtypes=dtypes,
            variable=variable,
            rank=rank,
            contiguous=not (use is not None and use.strided),
            writes=True if view.direction != "in" else self.promised(),
            because=because,
            form=view.form,
        )

    def promised(self) -> bool | None:
        """Whether an input is written though its type says it is not: only casts could do that."""
        return None if self.cell.source.drops_const else False

    def tensor_argument(self, parameter: Parameter) -> Argument:
        use = parameter.use
        dtypes: tuple[str, ...] = ()
        because = ""
        if use is not None and use.dtypes and not use.checks_dtype:
            dtypes = use.dtypes
            because = f"from the cast on line {use.cast_line}"
        return Argument(
            name=parameter.name,
            kind="tensor",
            cpp_type=parameter.type,
            role="inout" if use is None or use.written is not False else "in",
            dtypes=dtypes,
            contiguous=use is None or not use.strided,
            writes=None if use is None else use.written,
            because=because,
            untyped=use is not None and use.untyped and not dtypes,
        )

    def check_views(self, function: Function, subject: str) -> None:
        """Refuse a signature with typed views and other tensors."""
        for parameter in function.parameters if function.has_views else ():
            if parameter.is_tensor and parameter.view is None:
                message = (
                    f"argument '{parameter.name}': expected a typed view as the others are, got "
                    f"{parameter.type}. Write tp::In<T> {parameter.name}, or take all tensors as "
                    "tvm::ffi::TensorView."
                )
                line, column = parameter.line, parameter.column
                raise self.cell.error(message, line=line, column=column, subject=subject)

    # -- operators without a declaration ------------------------------------------------------

    def derived(
        self,
        function: Function,
        namespace: str | None = None,
        *,
        helper: bool = False,
        shapes: ShapeRules | None = None,
        title: str | None = None,
    ) -> OperatorSpec:
        """Make an operator from a signature alone."""
        namespace = namespace or self.options.namespace
        name = title or f"{namespace}::{function.name}"
        self.check_views(function, name)
        arguments = tuple(self.argument(p, function) for p in function.parameters)
        defaults = cpp_defaults(function)
        parts = []
        for argument in arguments:
            if argument.role == "out":
                continue
            kind: str = argument.kind
            if argument.kind == "tensor":
                alias = "(a!)" if argument.role == "inout" else ""
                kind = f"Tensor{alias}{argument.form}"
            elif argument.kind == "other":
                kind = self.schema_type(argument, function, name)
            text = f"{kind} {argument.name}"
            if argument.name in defaults and argument.role == "in":
                text += f"={defaults[argument.name]!r}"
            parts.append(text)
        for position in reversed(
            range(len(parts))
        ):  # what may be absent may be left out at the end
            if "=" in parts[position]:
                continue
            if "?" not in parts[position].replace("?[]", ""):
                break
            parts[position] += "=None"
        outs = [a for a in arguments if a.role == "out"]
        inout = [a for a in arguments if a.role == "inout"]
        letters = iter("abcdefghij")
        parts = [re.sub(r"\(a!\)", lambda _: f"({next(letters)}!)", p) for p in parts]
        returns = ", ".join(f"Tensor{a.form}" for a in outs)
        schema_text = f"{name}({', '.join(parts)}) -> "
        schema_text += returns if len(outs) == 1 else f"({returns})"
        if inout and outs:
            message = (
                "a function with tp::InOut and tp::Out needs a declared op: in the front matter"
            )
            raise self.cell.error(message, line=function.line, subject=name)
        entry = FrontMatter({"op": schema_text, "kernel": function.name}, {}, function.line)
        reader = EntryReader(self, entry, helper=helper, shapes=shapes)
        return reader.operator(origin=f"typed views of {function.name}")

    def schema_type(self, argument: Argument, function: Function, subject: str) -> str:
        """Return the schema type of what the engine converts beside typed views."""
        bare = self.resolve(argument.cpp_type)
        for base, form in DERIVED_TYPES:
            known = engine_type(base, form)
            if known is not None and known[0].fullmatch(bare):
                return f"{base}{form}"
        message = (
            f"argument '{argument.name}': {argument.cpp_type} does not go with typed views. "
            f"{BESIDE_VIEWS}"
        )
        raise self.cell.error(message, line=function.line, subject=subject)

    def helper(self, name: str, namespace: str, shapes: ShapeRules | None = None) -> OperatorSpec:
        """Return the operator for a function that a formula or a gradient calls."""
        if name not in self.helpers:
            function = next(f for f in self.cell.functions if f.name == name)
            self.helpers[name] = self.derived(function, namespace, helper=True, shapes=shapes)
        return self.helpers[name]


def with_own_exports(
    operators: Sequence[OperatorSpec], functions: Collection[str]
) -> tuple[OperatorSpec, ...]:
    """Give each operator an export of its own, since it has guards of its own.

    The second operator over a function ``f`` is exported as ``f_1``, and so on.
    """
    taken: set[str] = set()
    made = []
    for operator in operators:
        kernel = operator.kernel
        number = 0
        while kernel.export in taken or (kernel.suffix and kernel.export in functions):
            number += 1
            kernel = replace(kernel, suffix=f"_{number}")
        taken.add(kernel.export)
        made.append(operator if kernel is operator.kernel else replace(operator, kernel=kernel))
    return tuple(made)


def cpp_defaults(function: Function) -> dict[str, Any]:
    """Default values of C++ parameters: literals, and sums and products of them.

    For any other expression only the compiler knows the value, so that a call has to give the
    argument, and those in front of it.
    """
    found: dict[str, Any] = {}
    for parameter in reversed(function.parameters):
        if parameter.default is None:
            continue
        value = _value(parameter.default)
        if value is NotImplemented:
            break
        found[parameter.name] = value
    return found


def _value(text: str) -> Any:
    """Return the value of a C++ constant, or NotImplemented."""
    literal = CppParameter("", "", text).value
    if literal is not NotImplemented:
        return literal
    quoted = re.fullmatch(r'"[^"\\]*"', text.strip())
    if quoted:
        return quoted[0][1:-1]
    plain = re.sub(r"(?<=[\d.])[fFlLuU]+\b", "", text)
    try:
        return _computed(ast.parse(plain.strip(), mode="eval").body)
    except (SyntaxError, ValueError):
        return NotImplemented


def _computed(node: ast.expr) -> int | float:
    if isinstance(node, ast.Constant) and isinstance(node.value, (int, float)):
        return node.value
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.UAdd, ast.USub)):
        value = _computed(node.operand)
        return -value if isinstance(node.op, ast.USub) else value
    if isinstance(node, ast.BinOp):
        left, right = _computed(node.left), _computed(node.right)
        if isinstance(node.op, ast.Add):
            return left + right
        if isinstance(node.op, ast.Sub):
            return left - right
        if isinstance(node.op, ast.Mult):
            return left * right
        if isinstance(node.op, ast.Div) and right and float in (type(left), type(right)):
            return left / right  # division of integers is another thing in C++
    raise ValueError(ast.dump(node))
