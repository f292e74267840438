"""Gradients in a cell: ``derivatives:`` formulas, and ``NAME_backward`` functions.

A backward function is matched by parameter names: ``grad`` (or ``grad_<output>``), inputs,
``result``, and outputs ``grad_<input>``. It becomes a helper operator without a gradient of its
own, so that asking for a second derivative says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tensorplay.library.modules.shapes import Dims, Like, ShapeRules
from tensorplay.library.modules.spec import BackwardCall, Derivative, OperatorSpec
from tensorplay.ops.schema import FunctionSchema
from tpkernel.cells.formulas import cut_at_comma, read_formula
from tpkernel.cpp.functions import Function
from tpkernel.errors import did_you_mean

if TYPE_CHECKING:
    from tpkernel.cells.entries import EntryReader

__all__ = ["NON_DIFFERENTIABLE", "with_gradient"]

#: In place of a formula: the input has no gradient.
NON_DIFFERENTIABLE = "non_differentiable"


def with_gradient(reader: EntryReader, spec: OperatorSpec, schema: FunctionSchema) -> OperatorSpec:
    """Return the operator with its gradient read.

    Raises
    ------
    CellError
        A formula or a backward function that does not fit the operator.
    """
    value = reader.entry.values.get("derivatives")
    if value is not None and not isinstance(value, Mapping):
        message = f"derivatives must give a formula per input, such as x: grad * y, got {value!r}"
        raise reader.error(message, "derivatives")
    formulas = _formulas(reader, spec, dict(value or {}), schema)
    backward = None if reader.helper else _backward(reader, spec)
    if backward is None:
        return replace(spec, derivatives=tuple(formulas))
    surrogates = _surrogates(
        reader, dict.fromkeys(o.name.removeprefix("grad_") for o in backward.outputs)
    )
    given = {d.input for d in formulas}
    made = list(formulas)
    for output in backward.outputs:
        name = output.name.removeprefix("grad_")
        if name in given:
            message = (
                f"input '{name}' has a formula here and an output grad_{name} in "
                f"'{backward.kernel.name}'. Keep one."
            )
            raise reader.error(message, f"derivatives.{name}")
        surrogate = surrogates.get(name, "")
        made.append(Derivative(name, None, backward.kernel.line, surrogate))
    for name in surrogates:
        if name not in {d.input for d in made if not d.none}:
            message = f"'{name}' under surrogate_gradient has no gradient"
            raise reader.error(message, f"surrogate_gradient.{name}")
    call = BackwardCall(
        operator=backward.opname,
        arguments=tuple(a.name for a in backward.inputs),
        outputs=tuple(o.name for o in backward.outputs),
    )
    return replace(spec, derivatives=tuple(made), backward=call)


def _formulas(
    reader: EntryReader, spec: OperatorSpec, given: dict[str, Any], schema: FunctionSchema
) -> list[Derivative]:
    tensors = spec.tensor_inputs
    surrogates = _surrogates(reader, given)
    if given and spec.outputs and not any(o.differentiable for o in spec.outputs):
        message = (
            "output_differentiability says that no output has a gradient, and derivatives gives "
            "formulas. Keep one"
        )
        raise reader.error(message, "derivatives")
    if given and spec.mutates:
        message = (
            "an operator that changes its input in place has no gradient formula; return a new "
            "tensor"
        )
        raise reader.error(message, "derivatives")
    cut = cut_at_comma(given)
    if cut is not None:
        message = f"derivative of '{cut[0]}': {cut[1]}"
        raise reader.error(message, f"derivatives.{cut[0]}")
    made = []
    for name, text in given.items():
        key = f"derivatives.{name}"
        if name in schema and schema.arguments[schema.index_of(name)].kwarg_only:
            message = (
                f"input '{name}' is keyword-only and has no gradient; put it in front of the * in "
                "the schema"
            )
            raise reader.error(message, key)
        if name not in tensors:
            every = [a.name for a in schema.arguments]
            if name in every:
                kind = schema.arguments[schema.index_of(name)].type
                message = f"input '{name}' is {kind}; only tensors have gradients"
            else:
                message = (
                    f"derivative for '{name}', which is no input{did_you_mean(str(name), tensors)} "
                    f"Tensor inputs: {', '.join(tensors) or 'none'}."
                )
            raise reader.error(message, key)
        if not isinstance(text, (str, int, float)) or isinstance(text, bool):
            message = (
                f"the derivative of '{name}' must be a formula like 'grad * {name}', got {text!r}"
            )
            raise reader.error(message, key)
        if text == NON_DIFFERENTIABLE:
            made.append(Derivative(name, None, reader.entry.line_of(key), none=True))
            continue
        try:
            formula = read_formula(
                str(text),
                values=[*(a.name for a in schema.arguments), *spec.result_names],
                grads=spec.grad_names,
                kernels=_callable_kernels(reader),
                strict=_declared_kernels(reader),
                instead={o.name: "result" for o in spec.outputs} if len(spec.outputs) == 1 else {},
            )
        except ValueError as problem:
            raise reader.error(f"derivative of '{name}': {problem}", key) from None
        for kernel in sorted(formula.kernels):
            reader.parent.helper(kernel, spec.namespace)
        surrogate = surrogates.get(name, "")
        made.append(Derivative(name, formula, reader.entry.line_of(key), surrogate))
    return made


def _surrogates(reader: EntryReader, given: Mapping[str, Any]) -> dict[str, str]:
    """Read ``surrogate_gradient``: why gradients are deliberately not derivatives, by input."""
    value = reader.entry.values.get("surrogate_gradient")
    if value is None:
        return {}
    pairs = value if isinstance(value, Mapping) else dict.fromkeys(given, value)
    for name, why in pairs.items():
        key = f"surrogate_gradient.{name}" if isinstance(value, Mapping) else "surrogate_gradient"
        if not isinstance(why, str) or not why.strip():
            message = (
                "surrogate_gradient must say why the gradient is not the derivative, such as "
                f"'straight-through estimator', or map inputs to that, got {value!r}"
            )
            raise reader.error(message, key)
        if name not in reader.tensor_names():
            message = (
                f"'{name}' under surrogate_gradient is no tensor input"
                f"{did_you_mean(str(name), reader.tensor_names())}"
            )
            raise reader.error(message, key)
    return {str(n): " ".join(w.split()) for n, w in pairs.items()}


def _callable_kernels(reader: EntryReader) -> list[str]:
    """Functions over typed views that a formula may call, the operator itself included."""
    return [f.name for f in reader.cell.functions if f.has_views]


def _declared_kernels(reader: EntryReader) -> set[str]:
    """Functions that are operators of the cell; those made for formulas copy what is strided."""
    names = set()
    for entry in reader.cell.entries:
        schema = str(entry.values.get("op", "")).partition("(")[0]
        names.add(schema.rpartition("::")[2].strip())
    return names


def _backward(reader: EntryReader, spec: OperatorSpec) -> OperatorSpec | None:
    """Read the cell's ``NAME_backward``, if it has one, as a helper operator."""
    named = reader.cell.function
    function = named(f"{spec.opname}_backward") or named(f"{spec.kernel.name}_backward")
    if function is None:
        return None
    name = function.name
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
            raise reader.error(message, line=parameter.line, column=parameter.column)
    if not function.has_views:
        message = f"'{name}' must take typed views (tp::In, tp::Out), so that its outputs are known"
        raise reader.error(message, line=function.line, column=function.column)
    if not outs:
        message = (
            f"'{name}' has no output; add one, such as tp::Out<T> {grads[0] if grads else 'grad_x'}"
        )
        raise reader.error(message, line=function.line, column=function.column)
    shapes = _backward_shapes(reader, spec, reads, outs, function)
    return reader.parent.helper(name, spec.namespace, shapes)


def _backward_shapes(
    reader: EntryReader,
    spec: OperatorSpec,
    reads: Mapping[str, Any],
    outs: Mapping[str, Like],
    function: Function,
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
            message = (
                f"'{function.name}' must also take '{missing[0].removeprefix('grad_')}', whose "
                f"shape {missing[0]} has"
            )
            raise reader.error(message, line=function.line, column=function.column)
        outs = {o: (r if r.argument in reads else Like(like)) for o, r in outs.items()}
    return ShapeRules(inputs, outs, declared=True)
