"""From a parsed cell to its spec: the schema against the signature, and every mismatch an error.

One entry point, :func:`read_cell`. Operators come from front matter, or from typed views in a
signature; everything else that the engine can pass is a plain kernel. Each error names operator,
argument, what was expected, what was found and what to write, and points at the cell's line.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from tensorplay.ops.schema import NO_DEFAULT, Argument as SchemaArgument, FunctionSchema, parse_schema
from tpkernel.cell import Cell, FrontMatter
from tpkernel.cpp import CPP_TO_DTYPE, Function, Parameter, bare_type
from tpkernel.errors import CellError, did_you_mean
from tpkernel.formulas import read_formula
from tpkernel.shapes import Dims, Like, ShapeRules, parse_shapes
from tpkernel.spec import (
    DTYPES,
    Argument,
    BackwardCall,
    CellSpec,
    Derivative,
    Kind,
    KernelSpec,
    OperatorSpec,
    Output,
    Role,
)

__all__ = ["Options", "read_cell"]

_DEFAULT_DTYPES = ("float32", "float64")
_MAX_INSTANCES = 64
_MAX_TEMPLATES = 8
_MAX_SYMBOLS = 32  # TP_MAX_SYMBOLS of tensorplay/guard.h
_RESERVED = frozenset({"grad", "result", "ctx", "tp", "kernels", "math"})
_FLOATS = frozenset({"float", "double", "long double"})
_ENGINE = re.compile(
    r"^(tvm::)?(ffi::)?(TensorView|Tensor|String|Bytes|Shape|ShapeView|Any|AnyView|Function|"
    r"Module|ObjectRef|TypedFunction<.*>|Array<.*>|List<.*>|Map<.*>|Dict<.*>|Optional<.*>|"
    r"Tuple<.*>|Variant<.*>)$|^std::string(_view)?$|^char\*$|^void\*$|^DLTensor\*$|^DLDataType$|^DLDevice$"
)
_TYPES_TEXT = (
    "Types that can be passed: tvm::ffi::TensorView, tp::In/Out/InOut, double, float, int64_t and "
    "other integers, bool, std::string."
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
    option_line: int = 1


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
    return _CellReader(cell, options or Options()).read()


class _CellReader:
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
            raise cell.error(message, line=cell.first_line if cell.text.strip() else None)
        operators: list[OperatorSpec] = []
        taken: set[str] = set()
        for entry in cell.entries:
            operators.append(_EntryReader(self, entry).operator())
            taken.add(operators[-1].kernel.name)
        seen: dict[str, OperatorSpec] = {}
        for operator in operators:
            if operator.opname in seen:
                message = f"the name '{operator.opname}' is declared twice in this cell"
                raise cell.error(message, line=operator.line, subject=operator.name)
            seen[operator.opname] = operator
        functions: tuple[KernelSpec, ...] = ()
        skipped: list[tuple[str, str]] = []
        if not cell.entries:
            derived, functions, skipped = self.undeclared()
            operators += derived
        spec = CellSpec(
            cell=cell.name,
            operators=(*operators, *(h for n, h in self.helpers.items() if n not in taken)),
            functions=functions,
            skipped=tuple(skipped),
        )
        if not spec.kernels:
            function = cell.functions[0]
            name, reason = skipped[0] if skipped else (function.name, "it is internal")
            message = f"no function can be exported; '{name}': {reason}. {_TYPES_TEXT}"
            raise cell.error(message, line=function.line, column=function.column)
        return spec

    def check_functions(self) -> None:
        cell = self.cell
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
        self,
    ) -> tuple[list[OperatorSpec], tuple[KernelSpec, ...], list[tuple[str, str]]]:
        """Read a cell without front matter: views give operators, the rest plain kernels."""
        wanted = self.options.functions
        operators: list[OperatorSpec] = []
        plain: dict[str, KernelSpec] = {}
        skipped: list[tuple[str, str]] = []
        names = [f.name for f in self.cell.functions]
        for function in self.cell.functions:
            if wanted is not None and function.name not in wanted:
                continue
            listed = wanted is not None
            reason = self.reason_to_skip(function, listed=listed)
            if reason is not None:
                if listed:
                    raise self.cell.error(
                        f"{reason}. {_TYPES_TEXT}", line=function.line, column=function.column,
                        subject=function.name,
                    )
                skipped.append((function.name, reason))
                continue
            if names.count(function.name) > 1:
                message = f"two functions are called '{function.name}'; the boundary has one name for each"
                raise self.cell.error(
                    message, line=function.line, column=function.column, subject=function.name
                )
            if function.has_views:
                base = function.name.removesuffix("_backward")
                if base != function.name and base in names and wanted is None:
                    continue  # the gradient of another function, read with it
                operators.append(self.derived(function))
            else:
                plain[function.name] = self.plain_kernel(function)
        return operators, tuple(plain.values()), skipped

    def reason_to_skip(self, function: Function, *, listed: bool) -> str | None:
        """Say why a function cannot be exported, or None."""
        if function.internal and not listed:
            return "it is static, inline or in an unnamed namespace"
        if function.namespace:
            return f"it is in namespace {function.namespace}"
        if function.templates and not function.has_views:
            return "it is a template without typed views, so nothing says which instance is meant"
        for parameter in function.parameters:
            if parameter.view is None and not self.passable(parameter.type, function, listed):
                return f"parameter '{parameter.name}' has type {parameter.type}, which cannot be passed"
        if not function.has_views and not self.passable(function.return_type, function, listed, True):
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
        if _ENGINE.match(bare.replace("::tvm", "tvm")):
            return True
        pointer = "*" in bare or "[" in bare or "(" in bare
        return listed and not pointer and bare not in self.cell.source.classes and not result

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
            defaults=_cpp_defaults(function),
            doc=function.signature,
            alias_ok=self.options.alias_ok,
        )

    def argument(self, parameter: Parameter, function: Function) -> Argument:
        if parameter.view is not None:
            return self.view_argument(parameter, function)
        if parameter.is_tensor:
            return self.tensor_argument(parameter)
        kind, low, high = self.scalar(parameter.type, function)
        return Argument(
            name=parameter.name, kind=kind, cpp_type=parameter.type, low=low, high=high,
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

    def view_argument(self, parameter: Parameter, function: Function) -> Argument:
        view, use = parameter.view, parameter.use
        assert view is not None  # noqa: S101  (the caller asked)
        variable = view.element if view.element in function.templates else None
        dtypes: tuple[str, ...] = ()
        if variable is None:
            dtype = CPP_TO_DTYPE.get(view.element)
            if dtype is None:
                message = (
                    f"argument '{parameter.name}': expected an element type such as float, double, "
                    f"int64_t or a template parameter, got {view.element}"
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
        return Argument(
            name=parameter.name,
            kind="tensor",
            cpp_type=parameter.type,
            role=view.direction,
            dtypes=dtypes,
            variable=variable,
            rank=rank,
            contiguous=not (use is not None and use.strided),
            writes=view.direction != "in",
            because=because,
        )

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
        )

    # -- operators without a declaration ------------------------------------------------------

    def derived(
        self, function: Function, namespace: str | None = None, *, helper: bool = False,
        shapes: ShapeRules | None = None, title: str | None = None,
    ) -> OperatorSpec:
        """Make an operator from a signature alone."""
        namespace = namespace or self.options.namespace
        name = title or f"{namespace}::{function.name}"
        arguments = tuple(self.argument(p, function) for p in function.parameters)
        defaults = _cpp_defaults(function)
        parts = []
        for argument in arguments:
            if argument.role == "out":
                continue
            if argument.kind == "other":
                message = (
                    f"argument '{argument.name}': expected a typed view, a number or bool, got "
                    f"{argument.cpp_type}. Typed views go with those only; use tvm::ffi::TensorView "
                    "for the tensors of this function."
                )
                raise self.cell.error(message, line=function.line, subject=name)
            kind = "Tensor" if argument.kind == "tensor" else argument.kind
            if argument.role == "inout":
                kind = "Tensor(a!)" if argument.kind == "tensor" else kind
            text = f"{kind} {argument.name}"
            if argument.name in defaults and argument.role == "in":
                text += f"={defaults[argument.name]!r}"
            parts.append(text)
        outs = [a for a in arguments if a.role == "out"]
        inout = [a for a in arguments if a.role == "inout"]
        letters = iter("abcdefghij")
        parts = [re.sub(r"\(a!\)", lambda _: f"({next(letters)}!)", p) for p in parts]
        returns = ", ".join("Tensor" for _ in outs)
        schema_text = f"{name}({', '.join(parts)}) -> "
        schema_text += returns if len(outs) == 1 else f"({returns})"
        if inout and outs:
            message = "a function with tp::InOut and tp::Out needs a declared op: in the front matter"
            raise self.cell.error(message, line=function.line, subject=name)
        entry = FrontMatter({"op": schema_text, "kernel": function.name}, {}, function.line)
        reader = _EntryReader(self, entry, helper=helper, shapes=shapes)
        return reader.operator(origin=f"typed views of {function.name}")

    def helper(self, name: str, namespace: str, shapes: ShapeRules | None = None) -> OperatorSpec:
        """Return the operator for a function that a formula or a gradient calls."""
        if name not in self.helpers:
            function = self.cell.function(name)
            assert function is not None  # noqa: S101  (names come from the cell)
            self.helpers[name] = self.derived(function, namespace, helper=True, shapes=shapes)
        return self.helpers[name]


class _EntryReader:
    """Reads one declared operator."""

    def __init__(
        self, parent: _CellReader, entry: FrontMatter, *, helper: bool = False,
        shapes: ShapeRules | None = None,
    ) -> None:
        self.parent = parent
        self.cell = parent.cell
        self.entry = entry
        self.helper = helper
        self.given_shapes = shapes
        self.subject: str | None = None

    def error(self, message: str, key: str = "", *, line: int | None = None,
              column: int | None = None) -> CellError:
        at = line if line is not None else self.entry.line_of(key)
        return self.cell.error(message, line=at, column=column, subject=self.subject)

    def operator(self, origin: str = "front matter") -> OperatorSpec:
        schema = self.schema()
        function = self.function(schema)
        kernel, returned = self.kernel(schema, function)
        outputs = tuple(a for a in kernel.arguments if a.role == "out")
        mutates = tuple(a.name for a in schema.arguments if a.is_write)
        # Gradients arrive expanded or transposed, so helpers copy what they need contiguous.
        copies = self.layout(kernel) or self.helper
        spec = OperatorSpec(
            name=str(self.subject),
            schema=str(schema),
            kernel=kernel,
            outputs=self.outputs(outputs, kernel, returned),
            returned=returned,
            mutates=mutates,
            derivatives=(),
            backward=None,
            samples=self.samples(schema),
            doc=str(self.entry.values.get("doc", "")).strip(),
            helper=self.helper,
            copies=copies,
            line=self.entry.line_of("op"),
            origin=origin,
        )
        return self.with_gradient(spec, schema)

    # -- schema and function ------------------------------------------------------------------

    def schema(self) -> FunctionSchema:
        text = self.entry.values.get("op")
        if not isinstance(text, str) or not text.strip():
            message = "the front matter needs 'op: namespace::name(Tensor x) -> Tensor'"
            raise self.error(message, "op")
        try:
            schema = parse_schema(text.strip())
        except ValueError as problem:
            raise self.error(f"the schema cannot be read. {problem}", "op") from None
        if schema.namespace is None:
            message = f"the schema has no namespace; write 'op: mylib::{text.strip()}'"
            raise self.error(message, "op")
        self.subject = schema.qualname
        for argument in schema.arguments:
            if (argument.name in _RESERVED and not self.helper) or not argument.name.isidentifier():
                message = f"argument '{argument.name}' has a name that formulas use; rename it"
                raise self.error(message, "op")
        return schema

    def function(self, schema: FunctionSchema) -> Function:
        values = self.entry.values
        name = values.get("kernel", schema.name)
        named = [f for f in self.cell.functions if f.name == name]
        if not named:
            known = [f.name for f in self.cell.functions]
            message = f"no C++ function '{name}'{did_you_mean(str(name), known)}"
            message += (
                f" The cell defines {', '.join(dict.fromkeys(known))}; name one with 'kernel:'."
                if known
                else " Define it below the front matter."
            )
            raise self.error(message, "kernel")
        if len(named) > 1:
            message = f"{len(named)} functions are called '{name}'; rename one"
            raise self.error(message, line=named[1].line, column=named[1].column)
        return named[0]

    def kernel(self, schema: FunctionSchema, function: Function) -> tuple[KernelSpec, int]:
        """Match the signature against the schema; return the kernel and what it returns itself."""
        parameters = function.parameters
        inputs, returns = schema.arguments, schema.returns
        writes = [a for a in inputs if a.is_write]
        own = [r for r in returns if r.alias is None]
        tensor_result = self.parent.resolve(function.return_type) not in ("void",)
        outs = 0 if tensor_result else len(own)
        expected = len(inputs) + outs
        if len(parameters) != expected:
            wanted = [a.name for a in inputs] + ["out"] * outs
            message = (
                f"expected {expected} parameters in '{function.name}' ({', '.join(wanted)}: the "
                f"schema's arguments in order, then the outputs), got {len(parameters)} "
                f"({', '.join(p.name for p in parameters) or 'none'}). Make schema and function agree."
            )
            raise self.error(message, line=function.line, column=function.column)
        if tensor_result and writes:
            message = f"an in-place operator's function must return void, got {function.return_type}"
            raise self.error(message, line=function.line, column=function.column)
        if tensor_result and function.has_views:
            message = (
                f"a function over typed views must return void, got {function.return_type}. Take "
                "the result as a last parameter tp::Out<T> out."
            )
            raise self.error(message, line=function.line, column=function.column)
        if own and any(str(r.type) != "Tensor" for r in own) and not tensor_result:
            message = "outputs that the operator allocates must be Tensor; return others from C++"
            raise self.error(message, "op")
        self.check_names(schema, function)
        arguments = [
            self.matched(a, p, function) for a, p in zip(inputs, parameters, strict=False)
        ]
        for parameter in parameters[len(inputs) :]:
            arguments.append(self.output(parameter, function, returns, len(arguments) - len(inputs)))
        arguments, instances = self.dtypes(tuple(arguments), function)
        return (
            KernelSpec(
                name=function.name,
                title=str(self.subject),
                style="views" if function.has_views else "plain",
                arguments=tuple(arguments),
                returns=function.return_type,
                templates=function.templates,
                instances=instances,
                shapes=self.shapes(tuple(arguments), returned=tensor_result),
                line=function.line,
                defaults={a.name: a.default for a in inputs if a.default is not NO_DEFAULT},
                doc=function.signature,
                alias_ok=self.parent.options.alias_ok,
            ),
            len(own) if tensor_result else 0,
        )

    def check_names(self, schema: FunctionSchema, function: Function) -> None:
        """Refuse a parameter that carries the name of another schema argument."""
        names = [a.name for a in schema.arguments]
        for position, parameter in enumerate(function.parameters):
            expected = names[position] if position < len(names) else None
            if parameter.name != expected and parameter.name in names:
                want = f"'{expected}'" if expected else "an output"
                message = (
                    f"parameter '{parameter.name}' of '{function.name}' stands where the schema "
                    f"has {want}. Put the parameters in the schema's order."
                )
                raise self.error(message, line=parameter.line, column=parameter.column)

    def matched(self, argument: SchemaArgument, parameter: Parameter, function: Function) -> Argument:
        """Match one schema argument with its C++ parameter."""
        made = self.parent.argument(parameter, function)
        kind = str(argument.type)
        want = {"Tensor": "tensor", "int": "int", "SymInt": "int", "float": "float", "bool": "bool"}
        advice = {
            "Tensor": "tp::In<T>" if not argument.is_write else "tp::InOut<T>",
            "int": "int64_t", "SymInt": "int64_t", "float": "double", "bool": "bool",
            "str": "const std::string&",
        }
        plain_other = made.kind == "other" and not function.has_views
        accepted = made.kind == want.get(kind) or (kind not in want and plain_other)
        if not accepted:
            hint = f" Write {advice[kind]} {parameter.name}." if kind in advice else ""
            if made.kind == "other" and function.has_views and kind not in want:
                hint = " Functions over typed views take tensors, numbers and bool."
            message = (
                f"argument '{argument.name}': expected a C++ parameter for schema type {kind}, got "
                f"{parameter.type}.{hint}"
            )
            raise self.error(message, line=parameter.line, column=parameter.column)
        if made.kind == "tensor":
            self.check_direction(argument, parameter, made)
            role: Role = "inout" if argument.is_write else "in"
            return replace(made, name=argument.name, role=role,
                           writes=True if argument.is_write else made.writes)
        return replace(made, name=argument.name)

    def check_direction(self, argument: SchemaArgument, parameter: Parameter, made: Argument) -> None:
        name = argument.name
        if made.role == "out" or (parameter.view is not None and made.role == "inout" and not argument.is_write):
            message = (
                f"argument '{name}': expected an input, as the schema says, got {parameter.type}. "
                f"Write tp::In, or Tensor(a!) {name} in the schema if it is changed in place."
            )
        elif argument.is_write and parameter.view is not None and made.role == "in":
            message = (
                f"argument '{name}': expected tp::InOut, since the schema writes it (Tensor(a!)), "
                f"got {parameter.type}"
            )
        elif not argument.is_write and made.writes is True:
            message = (
                f"argument '{name}': the function writes it and the schema does not say so. Write "
                f"Tensor(a!) {name} in the schema."
            )
        else:
            return
        raise self.error(message, line=parameter.line, column=parameter.column)

    def output(self, parameter: Parameter, function: Function, returns: Sequence[Any],
               position: int) -> Argument:
        made = self.parent.argument(parameter, function)
        if made.kind != "tensor" or (parameter.view is not None and made.role != "out"):
            message = (
                f"argument '{parameter.name}': expected an output (tp::Out<T> or "
                f"tvm::ffi::TensorView), got {parameter.type}"
            )
            raise self.error(message, line=parameter.line, column=parameter.column)
        if parameter.view is None and made.writes is False:
            message = (
                f"argument '{parameter.name}' is the operator's output and the function never "
                "writes it. Put the outputs last."
            )
            raise self.error(message, line=parameter.line, column=parameter.column)
        return replace(made, role="out", writes=True)

    # -- dtypes, shapes, layout ---------------------------------------------------------------

    def dtypes(
        self, arguments: tuple[Argument, ...], function: Function
    ) -> tuple[list[Argument], tuple[Mapping[str, str], ...]]:
        declared = self.declared_dtypes(function)
        for template in function.templates:
            if template.startswith("="):
                message = f"template parameter '{template[1:]}' is a value; only types can be dispatched"
                raise self.error(message, line=function.line)
        bound = {a.variable for a in arguments if a.role != "out" and a.variable}
        for template in function.templates:
            if function.has_views and template not in bound:
                message = (
                    f"template parameter '{template}' is in no input, so nothing says which "
                    "instance is meant. Use it in a tp::In, or give the output a fixed type."
                )
                raise self.error(message, line=function.line, column=function.column)
        done: list[Argument] = []
        for argument in arguments:
            if argument.variable is not None:
                argument = replace(argument, dtypes=declared[argument.variable])
            elif argument.kind == "tensor" and not function.has_views and "" in declared:
                if not argument.dtypes and argument.role != "out":
                    argument = replace(argument, dtypes=declared[""], because="from dtypes")
            done.append(argument)
        if not function.has_views:
            return done, ({},)
        names = list(function.templates)
        combos = [dict(zip(names, c, strict=True)) for c in product(*(declared[n] for n in names))]
        if len(names) > _MAX_TEMPLATES:
            message = f"'{function.name}' has {len(names)} template parameters; at most {_MAX_TEMPLATES} can be dispatched"
            raise self.error(message, line=function.line)
        if len(combos) > _MAX_INSTANCES:
            message = (
                f"{len(combos)} instances of '{function.name}' would be built; admit fewer dtypes "
                f"(at most {_MAX_INSTANCES} combinations)"
            )
            raise self.error(message, "dtypes")
        return done, tuple(combos)

    def declared_dtypes(self, function: Function) -> dict[str, tuple[str, ...]]:
        value = self.entry.values.get("dtypes")
        names = [t for t in function.templates if not t.startswith("=")]
        if value is None:
            return dict.fromkeys(names, _DEFAULT_DTYPES)
        if isinstance(value, str):
            value = [value]
        if isinstance(value, Mapping):
            for key in value:
                if key not in names:
                    message = (
                        f"'{key}' under dtypes is no template parameter{did_you_mean(str(key), names)}"
                    )
                    raise self.error(message, f"dtypes.{key}")
            return {
                n: self.dtype_list(value[n], f"dtypes.{n}") if n in value else _DEFAULT_DTYPES
                for n in names
            }
        listed = self.dtype_list(value, "dtypes")
        return {**dict.fromkeys(names, listed), **({} if names else {"": listed})}

    def dtype_list(self, value: Any, key: str) -> tuple[str, ...]:
        items = [value] if isinstance(value, str) else value
        if not isinstance(items, Sequence) or not items:
            message = f"{key} must be a list of dtypes such as [float32, float64], got {value!r}"
            raise self.error(message, key)
        return tuple(self.dtype_name(item, key) for item in items)

    def dtype_name(self, value: Any, key: str) -> str:
        name = str(value).removeprefix("tp.").removeprefix("tensorplay.")
        if not DTYPES.get(name):
            known = [n for n, cpp in DTYPES.items() if cpp]
            message = f"unknown dtype '{value}'{did_you_mean(name, known)} Dtypes: {', '.join(known)}."
            raise self.error(message, key)
        return name

    def shapes(self, arguments: tuple[Argument, ...], *, returned: bool) -> ShapeRules:
        if self.given_shapes is not None:
            return self.given_shapes
        value = self.entry.values.get("shape")
        tensors = [a for a in arguments if a.kind == "tensor"]
        if returned:
            outputs = ["result"]
            if value is None:
                return ShapeRules({}, {}, declared=False)
        else:
            outputs = [a.name for a in tensors if a.role == "out"]
            if isinstance(value, Mapping) and len(outputs) == 1 and "result" in value:
                value = {outputs[0] if k == "result" else k: v for k, v in value.items()}
        try:
            rules = parse_shapes(
                value,
                inputs=[a.name for a in tensors if a.role != "out"],
                outputs=outputs,
                integers=[a.name for a in arguments if a.kind == "int"],
                ranks={a.name: a.rank for a in tensors},
            )
        except ValueError as problem:
            raise self.error(str(problem), "shape") from None
        if len(rules.symbols()) > _MAX_SYMBOLS:
            raise self.error(f"shape names more than {_MAX_SYMBOLS} different sizes", "shape")
        return rules

    def outputs(
        self, outs: Sequence[Argument], kernel: KernelSpec, returned: int
    ) -> tuple[Output, ...]:
        declared = self.entry.values.get("out_dtype")
        by_name: dict[str, str] = {}
        if declared is not None:
            pairs = declared if isinstance(declared, Mapping) else {o.name: declared for o in outs}
            for name, value in pairs.items():
                if name not in [o.name for o in outs]:
                    message = f"'{name}' under out_dtype is no output{did_you_mean(str(name), [o.name for o in outs])}"
                    raise self.error(message, f"out_dtype.{name}")
                by_name[name] = self.dtype_name(value, "out_dtype")
        inputs = [a for a in kernel.arguments if a.kind == "tensor" and a.role != "out"]
        made = []
        for out in outs:
            fixed = by_name.get(out.name)
            like = None
            if fixed is None and out.variable is not None:
                like = next(a.name for a in inputs if a.variable == out.variable)
            elif fixed is None and len(out.dtypes) == 1:
                fixed = out.dtypes[0]
            elif fixed is None:
                like = inputs[0].name if inputs else None
                fixed = None if inputs else "float32"
            if fixed is not None and out.dtypes and fixed not in out.dtypes:
                message = f"output '{out.name}': expected {' or '.join(out.dtypes)}, as its C++ type says, got {fixed}"
                raise self.error(message, "out_dtype")
            made.append(Output(out.name, fixed, like))
        return tuple(made)

    def layout(self, kernel: KernelSpec) -> bool:
        devices = self.entry.values.get("devices", ["cpu"])
        for device in [devices] if isinstance(devices, str) else devices:
            if device != "cpu":
                message = f"device '{device}': this kernel is C++ and runs on cpu"
                raise self.error(message, "devices")
        value = self.entry.values.get("layout")
        if value not in (None, "contiguous", "strided", "copy"):
            message = (
                f"layout must be contiguous, strided or copy, got {value!r}"
                f"{did_you_mean(str(value), ['contiguous', 'strided', 'copy'])}"
            )
            raise self.error(message, "layout")
        if value == "strided":
            flat = [a for a in kernel.tensors if a.contiguous]
            if flat:
                message = (
                    f"argument '{flat[0].name}': layout says strided and the function indexes it "
                    f"flat. Write {flat[0].name}(i, j), or ask for its strides."
                )
                raise self.error(message, "layout")
        return value == "copy" or (value is None and self.parent.options.copy)

    def samples(self, schema: FunctionSchema) -> tuple[Mapping[str, Any], ...]:
        value = self.entry.values.get("samples")
        if value is None:
            return ()
        items = [value] if isinstance(value, Mapping) else value
        known = [a.name for a in schema.arguments]
        if not isinstance(items, Sequence) or not all(isinstance(i, Mapping) for i in items):
            message = "samples must be a list of mappings such as {x: 'randn(3, 4)', beta: 0.5}"
            raise self.error(message, "samples")
        for position, item in enumerate(items):
            for name in item:
                if name not in known:
                    message = f"sample {position} gives '{name}', which is no argument{did_you_mean(str(name), known)}"
                    raise self.error(message, f"samples.{position}")
            missing = [a.name for a in schema.arguments if a.name not in item and not a.has_default]
            if missing:
                raise self.error(f"sample {position} lacks argument '{missing[0]}'", f"samples.{position}")
        return tuple(dict(item) for item in items)

    # -- gradients ----------------------------------------------------------------------------

    def with_gradient(self, spec: OperatorSpec, schema: FunctionSchema) -> OperatorSpec:
        value = self.entry.values.get("derivatives")
        if value is not None and not isinstance(value, Mapping):
            message = f"derivatives must give a formula per input, such as x: grad * y, got {value!r}"
            raise self.error(message, "derivatives")
        formulas = self.formulas(spec, dict(value or {}), schema)
        backward = None if self.helper else self.backward(spec)
        if backward is None:
            return replace(spec, derivatives=tuple(formulas))
        given = {d.input for d in formulas}
        made = list(formulas)
        for output in backward.outputs:
            name = output.name.removeprefix("grad_")
            if name in given:
                message = (
                    f"input '{name}' has a formula here and an output grad_{name} in "
                    f"'{backward.kernel.name}'. Keep one."
                )
                raise self.error(message, f"derivatives.{name}")
            made.append(Derivative(name, None, backward.kernel.line))
        call = BackwardCall(
            operator=backward.opname,
            arguments=tuple(a.name for a in backward.inputs),
            outputs=tuple(o.name for o in backward.outputs),
        )
        return replace(spec, derivatives=tuple(made), backward=call)

    def formulas(
        self, spec: OperatorSpec, given: dict[str, Any], schema: FunctionSchema
    ) -> list[Derivative]:
        tensors = spec.tensor_inputs
        if given and spec.mutates:
            message = "an operator that changes its input in place has no gradient formula; return a new tensor"
            raise self.error(message, "derivatives")
        made = []
        for name, text in given.items():
            key = f"derivatives.{name}"
            if name not in tensors:
                every = [a.name for a in schema.arguments]
                if name in every:
                    message = f"input '{name}' is {schema.arguments[schema.index_of(name)].type}; only tensors have gradients"
                else:
                    message = (
                        f"derivative for '{name}', which is no input{did_you_mean(str(name), tensors)} "
                        f"Tensor inputs: {', '.join(tensors) or 'none'}."
                    )
                raise self.error(message, key)
            if not isinstance(text, (str, int, float)) or isinstance(text, bool):
                message = f"the derivative of '{name}' must be a formula such as 'grad * {name}', got {text!r}"
                raise self.error(message, key)
            try:
                formula = read_formula(
                    str(text),
                    values=[*(a.name for a in schema.arguments), *spec.result_names],
                    grads=spec.grad_names,
                    kernels=self.callable_kernels(spec),
                )
            except ValueError as problem:
                raise self.error(f"derivative of '{name}': {problem}", key) from None
            for kernel in sorted(formula.kernels):
                self.parent.helper(kernel, spec.namespace)
            made.append(Derivative(name, formula, self.entry.line_of(key)))
        return made

    def callable_kernels(self, spec: OperatorSpec) -> list[str]:
        """Functions over typed views that a formula may call, the operator itself included."""
        return [f.name for f in self.cell.functions if f.has_views]

    def backward(self, spec: OperatorSpec) -> OperatorSpec | None:
        """Read the cell's ``NAME_backward``, if it has one, as a helper operator."""
        name = next(
            (n for n in (f"{spec.opname}_backward", f"{spec.kernel.name}_backward") if self.cell.function(n)),
            None,
        )
        if name is None:
            return None
        function = self.cell.function(name)
        assert function is not None  # noqa: S101  (just found)
        allowed = [*spec.grad_names, *(a.name for a in spec.inputs), *spec.result_names]
        grads = [f"grad_{t}" for t in spec.tensor_inputs]
        reads: dict[str, Any] = {}
        outs: dict[str, Any] = {}
        for parameter in function.parameters:
            if parameter.name in grads and parameter.name not in spec.grad_names:
                outs[parameter.name] = Like(parameter.name.removeprefix("grad_"))
            elif parameter.name in allowed:
                reads[parameter.name] = parameter
            else:
                message = (
                    f"parameter '{parameter.name}' of '{name}' matches nothing"
                    f"{did_you_mean(parameter.name, [*allowed, *grads])} "
                    f"Parameters: {', '.join(allowed)}; outputs: {', '.join(grads)}."
                )
                raise self.error(message, line=parameter.line, column=parameter.column)
        if not function.has_views:
            message = f"'{name}' must take typed views (tp::In, tp::Out), so that its outputs are known"
            raise self.error(message, line=function.line, column=function.column)
        if not outs:
            message = f"'{name}' has no output; add one, such as tp::Out<T> {grads[0] if grads else 'grad_x'}"
            raise self.error(message, line=function.line, column=function.column)
        shapes = self.backward_shapes(spec, reads, outs, function)
        return self.parent.helper(name, spec.namespace, shapes)

    def backward_shapes(
        self, spec: OperatorSpec, reads: Mapping[str, Any], outs: Mapping[str, Like], function: Function
    ) -> ShapeRules:
        """Carry the operator's shape relations over to its backward kernel."""
        tensors = {p.name for p in function.parameters if p.is_tensor}
        forward = {**spec.kernel.shapes.inputs}
        anchor = next((a for a in spec.tensor_inputs if a in reads), None)
        results = dict(zip(spec.grad_names, (o.name for o in spec.outputs), strict=False))
        results.update(zip(spec.result_names, (o.name for o in spec.outputs), strict=False))
        inputs: dict[str, Any] = {}
        for name in reads:
            if name not in tensors:
                continue
            rule = forward.get(name)
            if name in results and name not in spec.tensor_inputs:
                rule = spec.kernel.shapes.outputs.get(results[name])
            if isinstance(rule, Dims):
                bound = spec.kernel.shapes.symbols()
                rule = Dims(tuple(e if e in bound or e.isdigit() else "_" for e in rule.entries))
            if isinstance(rule, Like) and rule.argument not in reads:
                rule = Like(anchor) if anchor and isinstance(forward.get(anchor), Like) else None
            if rule is not None and not (isinstance(rule, Like) and rule.argument == name):
                inputs[name] = rule
        missing = [o for o, rule in outs.items() if rule.argument not in reads]
        if missing:
            like = "grad" if "grad" in reads and not spec.kernel.shapes.declared else None
            if like is None:
                message = f"'{function.name}' must also take '{missing[0].removeprefix('grad_')}', whose shape {missing[0]} has"
                raise self.error(message, line=function.line, column=function.column)
            outs = {o: (r if r.argument in reads else Like(like)) for o, r in outs.items()}
        return ShapeRules(inputs, outs, declared=True)


def _cpp_defaults(function: Function) -> dict[str, Any]:
    """Default values of C++ parameters that are plain literals."""
    found: dict[str, Any] = {}
    for parameter in function.parameters:
        if parameter.default is None:
            continue
        text = {"true": "True", "false": "False"}.get(parameter.default, parameter.default)
        text = re.sub(r"(?<=[\d.])[fFlLuU]+$", "", text)
        try:
            found[parameter.name] = ast.literal_eval(text)
        except (ValueError, SyntaxError):
            continue  # an expression: the caller has to give the argument
    return found
