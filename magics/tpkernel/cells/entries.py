"""One operator of a cell: its schema against its C++ signature, shapes and layout."""

from __future__ import annotations

import keyword
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tensorplay.library.modules.shapes import ShapeRules
from tensorplay.library.modules.spec import (
    Allocated,
    Argument,
    KernelSpec,
    OperatorSpec,
    Role,
)
from tensorplay.ops.schema import (
    NO_DEFAULT,
    Argument as SchemaArgument,
    FunctionSchema,
    Return,
    SchemaType,
    parse_schema,
)
from tensorplay.utils.cpp_jit.source import scan
from tpkernel.cells.cell import FrontMatter
from tpkernel.cells.dtypes import read_dtypes
from tpkernel.cells.formulas import is_function_path, read_formula
from tpkernel.cells.gradients import with_gradient
from tpkernel.cells.outputs import read_outputs
from tpkernel.cells.sample_values import read_samples
from tpkernel.cells.shapes import parse_shapes
from tpkernel.cpp.functions import Function, Parameter
from tpkernel.cpp.scalar_types import BESIDE_VIEWS, TYPES_TEXT, engine_type, what_to_write
from tpkernel.errors import CellError, did_you_mean

if TYPE_CHECKING:
    from tpkernel.cells.reading import CellReader

__all__ = ["EntryReader"]

_MAX_RESULTS = 16  # TP_MAX_RESULTS of tensorplay/guard.h
_MAX_SYMBOLS = 32  # TP_MAX_SYMBOLS of tensorplay/guard.h
# Names that the generated module gives to something else.
_MODULE = frozenset({"tp", "kernels", "rules", "math"})
_RESERVED = _MODULE | {"grad", "result", "ctx"}


class EntryReader:
    """Reads one declared operator."""

    def __init__(
        self,
        parent: CellReader,
        entry: FrontMatter,
        *,
        helper: bool = False,
        shapes: ShapeRules | None = None,
    ) -> None:
        self.parent = parent
        self.cell = parent.cell
        self.entry = entry
        self.helper = helper
        self.given_shapes = shapes
        self.subject: str | None = None

    def error(
        self, message: str, key: str = "", *, line: int | None = None, column: int | None = None
    ) -> CellError:
        """Make an error about this operator that points at a key of its entry, or at a line."""
        at = line if line is not None else self.entry.line_of(key)
        return self.cell.error(message, line=at, column=column, subject=self.subject)

    def operator(self, origin: str = "front matter") -> OperatorSpec:
        """Read the whole entry."""
        schema = self.schema()
        function = self.function(schema)
        kernel, returned = self.kernel(schema, function)
        if self.entry.values.get("layout") == "contiguous":
            kernel = replace(kernel, arguments=tuple(map(_contiguous, kernel.arguments)))
        mutates = tuple(a.name for a in schema.arguments if a.is_write)
        # Gradients arrive expanded or transposed, so helpers copy what they need contiguous.
        copies = self.layout(kernel) or self.helper
        spec = OperatorSpec(
            name=str(self.subject),
            schema=str(schema),
            kernel=kernel,
            outputs=read_outputs(self, kernel),
            returned=returned,
            mutates=mutates,
            derivatives=(),
            backward=None,
            samples=read_samples(self, schema),
            doc=str(self.entry.values.get("doc", "")).strip(),
            helper=self.helper,
            copies=copies,
            line=self.entry.line_of("op"),
            origin=origin,
            reference=self.reference(schema),
        )
        return with_gradient(self, spec, schema)

    # -- schema and function ------------------------------------------------------------------

    def schema(self) -> FunctionSchema:
        """Parse the schema and check its names."""
        text = self.entry.values.get("op")
        if not isinstance(text, str) or not text.strip():
            message = "the front matter needs 'op: namespace::name(Tensor x) -> Tensor'"
            raise self.error(message, "op")
        try:
            schema = parse_schema(text.strip())
        except ValueError as problem:
            named = re.match(r"\s*(?:\w+::)?(nan|inf)\s*\(", text)
            if named:
                message = (
                    f"'{named[1]}' is reserved: in a schema it is a number, so that it cannot name "
                    "an operator; choose another name"
                )
                raise self.error(message, "op") from None
            raise self.error(f"the schema cannot be read. {problem}", "op") from None
        if schema.namespace is None:
            message = f"the schema has no namespace; write 'op: mylib::{text.strip()}'"
            raise self.error(message, "op")
        self.subject = schema.qualname
        if schema.overload:
            message = (
                f"'{schema.name}.{schema.overload}' names an overload; an operator has a name of "
                f"its own: write {schema.namespace}::{schema.name}_{schema.overload}"
            )
            raise self.error(message, "op")
        if keyword.iskeyword(schema.namespace):
            message = f"'{schema.namespace}' cannot be a namespace in Python; choose another name"
            raise self.error(message, "op")
        if keyword.iskeyword(schema.name) or schema.name in _RESERVED:
            message = (
                f"'{schema.name}' cannot name a Python function of a cell; choose another name"
            )
            raise self.error(message, "op")
        taken = _MODULE if self.helper else _RESERVED
        for argument in schema.arguments:
            if argument.name in taken:
                message = f"argument '{argument.name}' has a name that formulas use; rename it"
                raise self.error(message, "op")
        return schema

    def function(self, schema: FunctionSchema) -> Function:
        """Find the C++ function behind the operator."""
        values = self.entry.values
        name = values.get("kernel", schema.name)
        named = [f for f in self.cell.functions if f.name == name]
        named = [f for f in named if not f.namespace] or named
        if not named:
            raise self.error(self._unknown_function(str(name)), "kernel")
        if keyword.iskeyword(str(name)):
            message = f"'{name}' is a word of Python's; write {name}_ or another name"
            raise self.error(message, line=named[0].line, column=named[0].column)
        if len(named) > 1:
            message = f"{len(named)} functions are called '{name}'; rename one"
            raise self.error(message, line=named[1].line, column=named[1].column)
        reason = self.parent.reason_to_skip(named[0], listed=True)
        if reason is not None:
            message = f"'{name}' cannot be the operator's kernel: {reason}. {what_to_write(reason)}"
            raise self.error(message, line=named[0].line, column=named[0].column)
        return named[0]

    def _unknown_function(self, name: str) -> str:
        known = dict.fromkeys(f.name for f in self.cell.functions)
        if self.parent.device == "cuda":  # whose functions are its kernels
            if any(f.name == name for f in scan(self.cell.text).functions):
                return f"'{name}' is a function and no kernel. Write __global__ before its type."
            what, have = "__global__ function", f"The {self.cell.noun}'s kernels: "
        else:
            what, have = "C++ function", f"The {self.cell.noun} defines "
        message = f"no {what} '{name}'{did_you_mean(name, known)}"
        if not known:
            return f"{message} Define it below the front matter."
        return f"{message} {have}{', '.join(known)}; name one with 'kernel:'."

    def kernel(self, schema: FunctionSchema, function: Function) -> tuple[KernelSpec, int]:
        """Match the signature against the schema; return the kernel and what it returns itself."""
        parameters = function.parameters
        inputs, returns = schema.arguments, schema.returns
        writes = [a for a in inputs if a.is_write]
        written = {a.alias.before for a in writes if a.alias is not None}
        if any(r.alias is not None and r.alias.before not in written for r in returns):
            message = (
                "a result cannot share an argument's memory, unless it is an argument that is "
                "written: write Tensor(a!) x … -> Tensor(a!), or -> ()"
            )
            raise self.error(message, "op")
        own = [r for r in returns if r.alias is None]
        tensor_result = self.parent.resolve(function.return_type) != "void"
        outs = 0 if tensor_result else len(own)
        expected = len(inputs) + outs
        if len(parameters) != expected:
            wanted = [a.name for a in inputs] + ["out"] * outs
            message = (
                f"expected {expected} parameters in '{function.name}' ({', '.join(wanted)}: the "
                f"schema's arguments in order, then the outputs), got {len(parameters)} "
                f"({', '.join(p.name for p in parameters) or 'none'}). Make schema and function "
                "agree."
            )
            raise self.error(message, line=function.line, column=function.column)
        if tensor_result and writes:
            message = (
                f"an in-place operator's function must return void, got {function.return_type}"
            )
            raise self.error(message, line=function.line, column=function.column)
        if tensor_result and function.has_views:
            message = (
                f"a function over typed views must return void, got {function.return_type}. Take "
                "the result as a last parameter tp::Out<T> out; where its shape depends on data, "
                "tp::Result<T> out, and call out.allocate(n)."
            )
            raise self.error(message, line=function.line, column=function.column)
        admitted = ("Tensor", "Tensor?", "Tensor[]") if function.has_views else ("Tensor",)
        if own and any(str(r.type) not in admitted for r in own) and not tensor_result:
            message = "outputs that the operator allocates must be Tensor; return others from C++"
            raise self.error(message, "op")
        self.check_names(schema, function)
        self.parent.check_views(function, str(self.subject))
        arguments = [self.matched(a, p, function) for a, p in zip(inputs, parameters, strict=False)]
        results: list[Allocated] = []
        for position, parameter in enumerate(parameters[len(inputs) :]):
            made = self.output(parameter, function, own[position])
            view = parameter.view
            if view is None or view.direction != "result":
                arguments.append(made)
                continue
            place = len(inputs) + position
            dtype = None if made.variable else made.dtypes[0]
            results.append(
                Allocated(made.name, made.cpp_type, place, dtype, made.variable, view.rank)
            )
        if len(results) > _MAX_RESULTS:
            message = f"at most {_MAX_RESULTS} outputs can be tp::Result, got {len(results)}"
            raise self.error(message, line=function.line)
        arguments, instances = read_dtypes(self, tuple(arguments), tuple(results), function)
        return (
            KernelSpec(
                name=function.name,
                title=str(self.subject),
                style="views" if function.has_views else "plain",
                arguments=tuple(arguments),
                returns=function.return_type,
                templates=function.templates,
                instances=instances,
                shapes=self.shapes(tuple(arguments), tuple(results), returned=tensor_result),
                line=function.line,
                defaults={a.name: a.default for a in inputs if a.default is not NO_DEFAULT},
                doc=function.signature,
                alias_ok=self.parent.options.alias_ok,
                results=tuple(results),
            ),
            len(own) if tensor_result else 0,
        )

    def check_names(self, schema: FunctionSchema, function: Function) -> None:
        """Refuse a parameter that carries the name of another schema argument or result."""
        names = [a.name for a in schema.arguments]
        own = [r.name for r in schema.returns if r.alias is None]
        for position, parameter in enumerate(function.parameters[len(names) :]):
            if parameter.name in own and parameter.name != own[position]:
                message = (
                    f"parameter '{parameter.name}' of '{function.name}' stands where the schema "
                    f"has the result '{own[position]}'. Put the outputs in the schema's order."
                )
                raise self.error(message, line=parameter.line, column=parameter.column)
        for position, parameter in enumerate(function.parameters):
            expected = names[position] if position < len(names) else None
            if parameter.name != expected and parameter.name in names:
                want = f"'{expected}'" if expected else "an output"
                message = (
                    f"parameter '{parameter.name}' of '{function.name}' stands where the schema "
                    f"has {want}. Put the parameters in the schema's order."
                )
                raise self.error(message, line=parameter.line, column=parameter.column)

    def matched(
        self, argument: SchemaArgument, parameter: Parameter, function: Function
    ) -> Argument:
        """Match one schema argument with its C++ parameter."""
        made = self.parent.argument(parameter, function)
        kind = str(argument.type)
        want = {
            "int": "int",
            "SymInt": "int",
            "float": "float",
            "bool": "bool",
            "Scalar": "float",
        }
        known = engine_type(argument.type.base, _form(argument.type))
        converted = made.kind == "other" and self.parent.is_engine_type(parameter.type)
        if function.has_views and converted:
            bare = self.parent.resolve(parameter.type)
            converted = known is not None and known[0].fullmatch(bare) is not None
        if argument.type.is_tensor and (function.has_views or kind == "Tensor"):
            accepted = made.kind == "tensor" and made.form == _form(argument.type)
        else:
            accepted = made.kind == want.get(kind) or (kind not in want and converted)
        if not accepted:
            message = (
                f"argument '{argument.name}': expected a C++ parameter for schema type {kind}, got "
                f"{parameter.type}.{self.advice(argument, function, known)}"
            )
            if made.kind == "other" and not function.has_views:
                message += f" {TYPES_TEXT}"
            raise self.error(message, line=parameter.line, column=parameter.column)
        if made.kind == "tensor":
            self.check_direction(argument, parameter, made)
            role: Role = "inout" if argument.is_write else "in"
            return replace(
                made,
                name=argument.name,
                role=role,
                writes=True if argument.is_write else made.writes,
            )
        return replace(made, name=argument.name)

    def advice(self, argument: SchemaArgument, function: Function, known: Any) -> str:
        """Say which C++ parameter to write for an argument of the schema."""
        kind, form = argument.type, _form(argument.type)
        if kind.is_tensor:
            inner = "tp::InOut<T>" if argument.is_write else "tp::In<T>"
            engines = "tvm::ffi::Tensor"
            for mark in {"": (), "?": "?", "[]": "[", "?[]": "?[", "[]?": "[?"}[form]:
                head = "Optional" if mark == "?" else "List"
                inner = f"tp::{head}<{inner}>"
                engines = f"tvm::ffi::{'Array' if mark == '[' else 'Optional'}<{engines}>"
            if form == "[]?" and function.has_views:
                return (
                    f" A list beside typed views is never None: write Tensor[] {argument.name} in "
                    "the schema, and let callers pass an empty list."
                )
            if function.has_views or not form:
                return f" Write {inner} {argument.name}."
            return f" Write {engines} {argument.name}, or typed views: {inner} {argument.name}."
        usual = {"int": "int64_t", "SymInt": "int64_t", "float": "double", "Scalar": "double"}
        written = {**usual, "bool": "bool"}.get(str(kind))
        if written is None and known is not None:
            written = known[1]
        if written is not None:
            return f" Write {written} {argument.name}."
        if kind.base in ("Layout", "Generator"):
            return (
                f" The engine cannot pass a {kind.base} to C++. Leave it out of the schema, or "
                "write the operator in Python with tensorplay.library.custom_op around the kernel."
            )
        return f" {BESIDE_VIEWS}" if function.has_views else ""

    def check_direction(
        self, argument: SchemaArgument, parameter: Parameter, made: Argument
    ) -> None:
        """Refuse a parameter that is read where the schema writes, or the other way round."""
        name = argument.name
        if made.role == "out" or (
            parameter.view is not None and made.role == "inout" and not argument.is_write
        ):
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

    def output(self, parameter: Parameter, function: Function, returned: Return) -> Argument:
        """Match one C++ parameter with an output; it gets the name that the schema has for it."""
        made = self.parent.argument(parameter, function)
        form = _form(returned.type)
        fits = made.kind == "tensor" and made.form == form
        if not fits or (parameter.view is not None and made.role != "out"):
            inner = {"?": "tp::Optional<tp::Out<T>>", "[]": "tp::List<tp::Out<T>>"}.get(form)
            expected = (
                f" {inner}" if inner else " (tp::Out<T>, tp::Result<T> or tvm::ffi::TensorView)"
            )
            message = (
                f"argument '{parameter.name}': expected an output{expected} for {returned.type}, "
                f"got {parameter.type}"
            )
            raise self.error(message, line=parameter.line, column=parameter.column)
        if parameter.view is None and made.writes is False:
            message = (
                f"argument '{parameter.name}' is the operator's output and the function never "
                "writes it. Put the outputs last."
            )
            raise self.error(message, line=parameter.line, column=parameter.column)
        name = returned.name or parameter.name
        if name in _MODULE:
            message = f"output '{name}' has a name that formulas use; rename it"
            raise self.error(message, line=parameter.line, column=parameter.column)
        return replace(made, name=name, role="out", writes=True)

    # -- shapes, layout ---------------------------------------------------------------

    def shapes(
        self, arguments: tuple[Argument, ...], results: tuple[Allocated, ...], *, returned: bool
    ) -> ShapeRules:
        """Read ``shape``, or the default rule."""
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
            # What the kernel allocates has the sizes that it finds, unless they are declared.
            if isinstance(value, Mapping):
                outputs += [r.name for r in results if r.name in value or "result" in value]
            elif value is not None:
                outputs += [r.name for r in results]
            if isinstance(value, Mapping) and len(outputs) == 1 and "result" in value:
                value = {outputs[0] if k == "result" else k: v for k, v in value.items()}
        try:
            rules = parse_shapes(
                value,
                inputs=[a.name for a in tensors if a.role != "out"],
                outputs=outputs,
                integers=[a.name for a in arguments if a.kind == "int"],
                ranks={**{a.name: a.rank for a in tensors}, **{r.name: r.rank for r in results}},
                forms={a.name: a.form for a in tensors},
            )
        except ValueError as problem:
            raise self.error(str(problem), "shape") from None
        if len(rules.symbols()) > _MAX_SYMBOLS:
            raise self.error(f"shape names more than {_MAX_SYMBOLS} different sizes", "shape")
        return rules

    def tensor_names(self) -> list[str]:
        """Return the names of the tensor arguments."""
        schema = parse_schema(str(self.entry.values["op"]))
        return [a.name for a in schema.arguments if a.type.is_tensor]

    def layout(self, kernel: KernelSpec) -> bool:
        """Read ``devices`` and ``layout``; tell whether strided inputs are copied."""
        own = self.parent.device
        language = {"cpu": "C++", "cuda": "CUDA"}[own]
        devices = self.entry.values.get("devices", [own])
        for device in devices if isinstance(devices, list) else [devices]:
            if device != own:
                message = f"device '{device}': this kernel is {language} and runs on {own}"
                raise self.error(message, "devices")
        if own == "cpu" and "launch" in self.entry.values:
            message = "launch is for kernels of CUDA cells (__global__), and this function is C++"
            raise self.error(message, "launch")
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
                how = "indexes it flat"
                if "takes the address" in flat[0].because:
                    how = "goes on from the address of an element"
                message = (
                    f"argument '{flat[0].name}': layout says strided and the function {how}. "
                    f"Write {flat[0].name}(i, j), or go by its strides in every dimension."
                )
                raise self.error(message, "layout")
        return value == "copy" or (value is None and self.parent.options.copy)

    def reference(self, schema: FunctionSchema) -> str:
        """Read ``reference``."""
        value = self.entry.values.get("reference", "")
        if not isinstance(value, str):
            message = (
                "reference must be an expression such as 'log(1 + exp(x))', or "
                f"'module:function' such as 'numpy:tanh', got {value!r}"
            )
            raise self.error(message, "reference")
        text = value.strip()
        if text and not is_function_path(text):
            try:
                read_formula(text, values=[a.name for a in schema.arguments], grads=())
            except ValueError as problem:
                raise self.error(f"reference: {problem}", "reference") from None
        return text


def _form(kind: SchemaType) -> str:
    """Return whether a type may be None or is a list: a `Form`, or ``[]?``, which no view is."""
    if kind.is_list:
        form = "?[]" if kind.list_of_optional else "[]"
        return form + "?" if kind.optional else form
    return "?" if kind.optional else ""


def _contiguous(argument: Argument) -> Argument:
    """Return an argument that takes no strided view, whatever its use would admit."""
    if argument.kind != "tensor" or argument.contiguous:
        return argument
    because = (
        f"{argument.because}; layout: contiguous" if argument.because else "layout: contiguous"
    )
    return replace(argument, contiguous=True, because=because)
