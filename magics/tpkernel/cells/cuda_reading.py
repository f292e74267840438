"""Operators of CUDA cells: kernels (``__global__``) read as functions over typed views.

A kernel takes typed views or pointers, in any order; ``const T*`` stands for an input of any shape,
``T*`` for what is written. Which parameter is which argument is said by its name, as in the schema.
Read so, kernels go through the same reader as the functions of C++ cells; what is added is how
they are launched.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tensorplay.library.modules.spec import CellSpec, OperatorSpec
from tensorplay.ops.schema import FunctionSchema, parse_schema
from tpkernel.cells.cell import Cell, FrontMatter
from tpkernel.cells.formulas import cut_at_comma
from tpkernel.cells.launches import SIZES, LaunchError, read_launch
from tpkernel.cells.reading import CellReader, Options
from tpkernel.cpp.functions import Function, Parameter
from tpkernel.cpp.scalar_types import CPP_TO_DTYPE, bare_type
from tpkernel.cpp.views import View
from tpkernel.errors import CellError, did_you_mean

__all__ = ["CudaReader", "has_operators", "read_operators"]

_POINTER = re.compile(r"^(?P<element>[^*&]+)\*$")
#: Element types of CUDA, by the names that cells in C++ have for them.
_ELEMENTS = {
    "half": "_Float16", "__half": "_Float16", "__nv_bfloat16": "tp::bfloat16",
    "nv_bfloat16": "tp::bfloat16",
}  # fmt: skip
#: Types of schemas that a kernel takes: it reads numbers, and tensors that are there.
_SCHEMA_TYPES = ("Tensor", "int", "SymInt", "float", "bool", "Scalar")
_TYPES = "tp::In<T>, tp::Out<T>, tp::InOut<T>, pointers, bool, integers, float or double"


@dataclass(frozen=True)
class _Use:
    """An entry that a kernel belongs to, as the operator's own or as its gradient."""

    entry: FrontMatter
    schema: FunctionSchema
    gradient: bool


class CudaReader(CellReader):
    """Reads the operators of a CUDA cell, whose functions are its kernels."""

    device = "cuda"

    def reason_to_skip(self, function: Function, *, listed: bool) -> str | None:
        """Say why a kernel is no operator, or None."""
        if not function.has_views:
            return "a kernel over pointers that no entry of the front matter declares"
        return super().reason_to_skip(function, listed=listed)


def has_operators(cell: Cell, kernels: Sequence[Function]) -> bool:
    """Whether a CUDA cell defines operators: by front matter, or by kernels over typed views."""
    return bool(cell.entries) or any(k.has_views for k in kernels)


def read_operators(cell: Cell, options: Options, kernels: Sequence[Function]) -> CellSpec:
    """Read the operators of a CUDA cell.

    Parameters
    ----------
    cell
        The cell.
    options
        What the magic's line says.
    kernels
        Its kernels, as they stand in the text.

    Raises
    ------
    CellError
        An operator does not fit its kernel, or cannot be launched.
    """
    return _Reading(cell, options, kernels).read()


class _Reading:
    def __init__(self, cell: Cell, options: Options, kernels: Sequence[Function]) -> None:
        self.cell = cell
        self.options = options
        self.kernels = {k.name: k for k in kernels}
        self.uses = self._uses()
        self.converted: dict[str, Function] = {}

    def read(self) -> CellSpec:
        """Read all operators."""
        self._check_kernels_of_rules()
        self._check_schemas()
        self.converted = {name: self._converted(k) for name, k in self.kernels.items()}
        source = replace(self.cell.source, functions=tuple(self.converted.values()))
        spec = CudaReader(replace(self.cell, source=source), self.options).read()
        launched = [o.kernel.name for o in spec.operators]
        for entry, rules in self._rules_by_kernel():
            for name in rules:
                if name not in launched:
                    message = (
                        f"launch: no operator launches '{name}', so a rule for it says nothing"
                    )
                    raise self.cell.error(message, line=entry.line_of(f"launch.{name}"))
        return replace(spec, operators=tuple(map(self._launched, spec.operators)))

    def _rules_by_kernel(self) -> Iterator[tuple[FrontMatter, Mapping[Any, Any]]]:
        """Yield the entries that have a launch rule for each kernel, and these."""
        for entry in self.cell.entries:
            value: Any = entry.values.get("launch")
            if self._is_by_kernel(value):
                yield entry, value

    def _check_schemas(self) -> None:
        """See that arguments of schemas are of types that a kernel takes."""
        for use in (u for uses in self.uses.values() for u in uses if not u.gradient):
            for argument in use.schema.arguments:
                if str(argument.type) not in _SCHEMA_TYPES:
                    *most, last = _SCHEMA_TYPES
                    message = (
                        f"argument '{argument.name}': got {argument.type}, and the kernel of a "
                        f"CUDA cell takes {', '.join(most)} and {last}"
                    )
                    line = use.entry.line_of("op")
                    raise self.cell.error(message, line=line, subject=use.schema.name)

    def _check_kernels_of_rules(self) -> None:
        """See that rules for each kernel name kernels of the cell."""
        for entry, rules in self._rules_by_kernel():
            for name in rules:
                if name not in self.kernels:
                    known = ", ".join(self.kernels)
                    message = (
                        f"launch: '{name}' is no kernel of the cell"
                        f"{did_you_mean(str(name), self.kernels)} Kernels: {known}"
                    )
                    raise self.cell.error(message, line=entry.line_of(f"launch.{name}"))

    def _uses(self) -> dict[str, list[_Use]]:
        """Return, by kernel, the entries that it belongs to; the reader tells what is wrong."""
        found: dict[str, list[_Use]] = {}
        for entry in self.cell.entries:
            try:
                schema = parse_schema(str(entry.values.get("op", "")).strip())
            except ValueError:
                continue
            name = str(entry.values.get("kernel", schema.name))
            found.setdefault(name, []).append(_Use(entry, schema, gradient=False))
            gradients = (f"{schema.name}_backward", f"{name}_backward")
            gradient = next((g for g in gradients if g in self.kernels), None)
            if gradient is not None:
                found.setdefault(gradient, []).append(_Use(entry, schema, gradient=True))
        return found

    # -- parameters ---------------------------------------------------------------------------

    def _converted(self, function: Function) -> Function:
        """Return a kernel over views whose inputs stand in the schema's order, outputs last."""
        uses = self.uses.get(function.name, [])
        if not uses and not function.has_views:
            return replace(function, return_type="void")
        rule = self._rule(function.name)[0]
        names = [a.name for u in uses if not u.gradient for a in u.schema.arguments]
        known = {a.name for u in uses for a in u.schema.arguments}
        kept: list[Parameter] = []
        for parameter in function.parameters:
            made = self._parameter(parameter, function, uses)
            if made.view is None and parameter.name not in known and uses:
                if parameter.name in rule:
                    continue  # a size, which the launch knows
                if "int" in CPP_TO_DTYPE.get(bare_type(parameter.type), ""):
                    size = f"{{{parameter.name}: numel}}"
                    if any(self._is_by_kernel(u.entry.values.get("launch")) for u in uses):
                        size = f"{{{function.name}: {size}, …}}"
                    message = (
                        f"parameter '{parameter.name}' is no argument of the schema. Where it is "
                        f"a size, say which: launch: {size}"
                    )
                    raise self._error(message, function, parameter)
            kept.append(made)
        given = {p.name for p in kept}
        if names and set(names) <= given:
            kept.sort(key=lambda p: names.index(p.name) if p.name in names else len(names))
        else:
            kept.sort(key=lambda p: p.view is not None and p.view.direction == "out")
        return replace(function, parameters=tuple(kept), return_type="void")

    def _parameter(
        self, parameter: Parameter, function: Function, uses: Sequence[_Use]
    ) -> Parameter:
        """Return a parameter with a view where it is a tensor."""
        view = parameter.view
        pointer = _POINTER.match(bare_type(parameter.type))
        if view is not None:
            if view.form or view.direction == "result" or view.problem:
                message = (
                    f"argument '{parameter.name}': got {parameter.type}, and a kernel takes "
                    f"{_TYPES}"
                )
                raise self._error(message, function, parameter)
        elif pointer is not None:
            written = any(
                a.is_write for u in uses for a in u.schema.arguments if a.name == parameter.name
            )
            reads = re.search(r"\bconst\b", parameter.type.rpartition("*")[0]) is not None
            view = View("in" if reads else "inout" if written else "out", pointer["element"], None)
            view = replace(view, element=bare_type(view.element))
        else:
            bare = bare_type(parameter.type)
            if bare not in (*CPP_TO_DTYPE, *function.templates) or bare in _ELEMENTS:
                message = (
                    f"argument '{parameter.name}': got {parameter.type}, and a kernel takes "
                    f"{_TYPES}"
                )
                raise self._error(message, function, parameter)
            return parameter
        element = _ELEMENTS.get(view.element, view.element)
        return replace(parameter, view=replace(view, element=element))

    def _error(self, message: str, function: Function, parameter: Parameter) -> CellError:
        return self.cell.error(
            message, line=parameter.line, column=parameter.column, subject=function.name
        )

    # -- launches -----------------------------------------------------------------------------

    def _rule(self, kernel: str) -> tuple[Mapping[str, Any], FrontMatter | None, str, bool]:
        """Return the launch rule of a kernel: it, its entry, its key, and whether it is shared."""
        value: Any
        for entry, value in self._rules_by_kernel():
            if kernel in value:
                rule = value[kernel]
                if not isinstance(rule, Mapping):
                    message = f"launch of '{kernel}' must be a rule such as {_EXAMPLE}"
                    raise self.cell.error(message, line=entry.line_of("launch"))
                return rule, entry, f"launch.{kernel}", False
        for use in self.uses.get(kernel, ()):
            value = use.entry.values.get("launch")
            if value is None or self._is_by_kernel(value):
                continue
            if not isinstance(value, Mapping):
                message = f"launch must be a rule such as {_EXAMPLE}, got {value!r}"
                raise self.cell.error(message, line=use.entry.line_of("launch"))
            return value, use.entry, "launch", True
        return {}, None, "", False

    def _is_by_kernel(self, value: Any) -> bool:
        """Whether a value of ``launch`` has a rule for each kernel rather than sizes."""
        if not isinstance(value, Mapping) or not value:
            return False
        return set(value) <= set(self.kernels) or any(
            isinstance(rule, Mapping) for rule in value.values()
        )

    def _integers(self, entry: FrontMatter, kernel: str, *, shared: bool) -> Iterator[str]:
        """Yield the names of parameters that a rule may give a value."""
        for name, uses in self.uses.items():
            if name == kernel or (shared and any(u.entry is entry for u in uses)):
                for parameter in self.kernels[name].parameters if name in self.kernels else ():
                    if "int" in CPP_TO_DTYPE.get(bare_type(parameter.type), ""):
                        yield parameter.name

    def _launched(self, operator: OperatorSpec) -> OperatorSpec:
        """Return an operator whose kernel runs on a GPU."""
        kernel = operator.kernel
        self._check(operator)
        rule, entry, key, shared = self._rule(kernel.name)
        if entry is not None:
            cut = cut_at_comma(rule)
            if cut is not None:
                message = f"{key}, '{cut[0]}': {cut[1]}"
                raise self.cell.error(message, line=entry.line_of(key), subject=operator.name)
            known = [*SIZES, *self._integers(entry, kernel.name, shared=shared)]
            given = {a.name for u in self.uses.get(kernel.name, ()) for a in u.schema.arguments}
            for word in rule:
                if word in given and word not in SIZES:
                    message = (
                        f"launch: '{word}' is an argument of the schema, whose value the call "
                        "gives, and the rule gives another. Write one of the two"
                    )
                    line = entry.line_of(f"{key}.{word}")
                    raise self.cell.error(message, line=line, subject=operator.name)
                if word not in known:
                    message = (
                        f"unknown key '{word}' under {key}{did_you_mean(str(word), known)} Keys: "
                        f"{', '.join(SIZES)}, and parameters of the kernel that are sizes"
                    )
                    line = entry.line_of(f"{key}.{word}")
                    raise self.cell.error(message, line=line, subject=operator.name)
        converted = self.converted[kernel.name].parameters
        names = {p.name: a.name for p, a in zip(converted, kernel.arguments, strict=True)}
        text = self.kernels[kernel.name]
        parameters = [(p.type, p.name, names.get(p.name, p.name)) for p in text.parameters]
        try:
            launch = read_launch(rule, kernel, parameters)
        except LaunchError as problem:
            message = f"launch: {problem}"
            forward = next(
                (u for u in self.uses.get(kernel.name, ()) if u.gradient and shared), None
            )
            if forward is not None:
                message += (
                    f". This is the rule of '{kernel.name}' too; where it is to have its own, "
                    f"write launch: {{{kernel.name}: {{…}}, {forward.schema.name}: {{…}}}}"
                )
            line = entry.line_of(f"{key}.{problem.key}") if entry is not None else kernel.line
            raise self.cell.error(message, line=line, subject=operator.name) from None
        inside = ", ".join(f"{p.type} {p.name}" for p in text.parameters)
        doc = f"__global__ void {text.name}({inside})"
        return replace(operator, kernel=replace(kernel, device="cuda", launch=launch, doc=doc))

    def _check(self, operator: OperatorSpec) -> None:
        kernel = operator.kernel
        if not operator.tensor_inputs:
            message = (
                "an operator of a CUDA cell needs a tensor argument, which says on which GPU it "
                "runs. Take one in place, such as Tensor(a!) out"
            )
            raise self.cell.error(message, line=operator.line, subject=operator.name)
        for argument in kernel.arguments:
            wrong = next((d for d in argument.dtypes if d.startswith("complex")), None)
            if wrong is not None:
                message = f"argument '{argument.name}': no kernel of a CUDA cell takes {wrong}"
                raise self.cell.error(message, line=kernel.line, subject=operator.name)


_EXAMPLE = "{grid: 'ceil_div(numel, 256)', block: 256}"
