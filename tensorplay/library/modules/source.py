"""The Python side of an operator, written as source that a person can read and the report shows.

From a spec comes a module of the same form that one would write by hand: ``custom_op`` with a body
that allocates outputs and calls the kernel, ``register_fake``, and ``register_autograd`` with the
formulas. It is executed under its own file name, so tracebacks show its lines.

Three names are given to the module: ``tp``, ``kernels`` (the cell's guarded C++ functions) and
``rules`` (the guards' Python side, for fake tensors and sizes).
"""

from __future__ import annotations

import ast
import linecache
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from tensorplay._tensor import Tensor
from tensorplay.library.modules.rules import InputRules
from tensorplay.library.modules.shapes import Dims, Like
from tensorplay.library.modules.signatures import parameters_text, schema_signature
from tensorplay.library.modules.spec import KernelSpec, OperatorSpec, Output
from tensorplay.library.registry import lookup
from tensorplay.ops.schema import parse_schema

if TYPE_CHECKING:
    from tensorplay.library.definitions import CustomOpDef

__all__ = ["OperatorError", "OperatorSource", "define_operators", "kernels_of", "operator_source"]


class OperatorError(RuntimeError):
    """An operator that the runtime does not take; `operator` says which, the cause why."""

    def __init__(self, operator: OperatorSpec, problem: Exception) -> None:
        super().__init__(str(problem))
        self.operator = operator


@dataclass(frozen=True)
class OperatorSource:
    """The generated source of one operator, by part.

    Attributes
    ----------
    wrapper
        Definition and body.
    fake
        The fake kernel; it raises where nothing says the output's shape.
    gradient
        What is saved and the gradient; empty without derivatives.
    """

    wrapper: str
    fake: str
    gradient: str

    @property
    def text(self) -> str:
        """The parts as one module text."""
        return "\n\n".join(part for part in (self.wrapper, self.fake, self.gradient) if part)


def operator_source(spec: OperatorSpec) -> OperatorSource:
    """Write the Python source of one operator."""
    writer = _Writer(spec)
    return OperatorSource(writer.wrapper(), writer.fake(), writer.gradient())


class _Writer:
    def __init__(self, spec: OperatorSpec) -> None:
        self.spec = spec
        self.schema = parse_schema(spec.schema)
        self.names = [a.name for a in self.schema.arguments]
        self.positional = [a.name for a in self.schema.arguments if not a.kwarg_only]
        self.keywords = [a.name for a in self.schema.arguments if a.kwarg_only]
        self.tensors = list(spec.tensor_inputs)
        self.on_cpu = spec.kernel.device == "cpu"
        self.forms = {a.name: a.form for a in spec.inputs}

    # -- body and fake ------------------------------------------------------------------------

    def parameters(self) -> str:
        return parameters_text(schema_signature(self.schema))

    def sizes(self) -> list[str]:
        """Return the line that binds shape symbols, where an output needs them."""
        used = {
            node.id
            for rule in self.spec.kernel.shapes.outputs.values()
            if isinstance(rule, Dims)
            for entry in rule.entries
            for node in ast.walk(ast.parse(entry, mode="eval"))
            if isinstance(node, ast.Name)
        }
        symbols = self.spec.kernel.shapes.symbols()
        if not used.intersection(symbols):
            return []
        targets = _targets([s if s in used else "_" for s in symbols])
        return [f"{targets} = rules.{self.spec.opname}({', '.join(self.tensors)})"]

    def shape(self, name: str) -> str:
        rule = self.spec.kernel.shapes.outputs[name]
        if isinstance(rule, Like):
            like = self.like(rule.argument, name)
            ranks = {a.name: a.rank for a in self.spec.kernel.arguments}
            ranks.update({r.name: r.rank for r in self.spec.kernel.results})
            if ranks.get(name) in (None, ranks.get(rule.argument)):
                return f"{like}.shape"
            return f"rules.{self.spec.opname}.like({name!r}, {like}.shape)"
        comma = "," if len(rule.entries) == 1 else ""
        sizes = f"({', '.join(rule.entries)}{comma})"
        known = self.spec.kernel.shapes.symbols()
        if all(entry in known or entry.isdigit() for entry in rule.entries):
            return sizes
        # Of a difference or a number that the caller gives, nothing says that it is a size.
        if any(re.search(r"[/%]|\bmax\(|\]\.", entry) for entry in rule.entries):
            # So that a division by zero, or the first of an empty list, can be said in words.
            sizes = f"lambda: {sizes}"
        return f"rules.{self.spec.opname}.sizes({name!r}, {sizes})"

    def like(self, name: str, output: str) -> str:
        """Return the tensor that an output is like: an input, or the first of a list."""
        if self.forms.get(name) not in ("[]", "?[]"):
            return name
        return f"rules.{self.spec.opname}.first({name!r}, {output!r}, {name})"

    def dtype(self, output: Output) -> str:
        if output.dtype:
            return f"tp.{output.dtype}"
        return f"{self.like(str(output.dtype_like), output.name)}.dtype"

    def made(self, output: Output, device: str = "") -> str:
        """Return the expression that makes an output; for lists one for each member."""
        empty = "tp.empty"
        if not device and not self.on_cpu:
            empty = f"rules.{self.spec.opname}.empty"
            device = self.device() if self.tensors else ""
        device = device and f", device={device}"
        rule = self.spec.kernel.shapes.outputs[output.name]
        if output.form == "" or not isinstance(rule, Like):
            shape, dtype = self.shape(output.name), self.dtype(output)
            return f"{empty}({shape}, dtype={dtype}{device})"
        name = rule.argument
        one = f"{empty}({{0}}.shape, dtype={f'tp.{output.dtype}' if output.dtype else '{0}.dtype'}"
        one += f"{device})"
        if output.form == "?":
            return f"None if {name} is None else {one.format(name)}"
        return f"[{one.format('t')} for t in {name}]"

    def device(self) -> str:
        """Return the device of the outputs: that of a tensor among the arguments."""
        sure = next((n for n in self.tensors if not self.forms[n]), None)
        if sure is not None:
            return f"{sure}.device"
        return f"rules._device({', '.join(self.tensors)})" if self.tensors else "'meta'"

    def wrapper(self) -> str:
        spec = self.spec
        lines = [
            "@tp.library.custom_op(",
            f'    "{spec.name}",',
            f"    mutates_args={spec.mutates!r},",
            f'    device_types="{spec.kernel.device}",',
            f"    schema={_quoted(self.schema.signature())},",
            *(["    tags=tp.library.Tag.dynamic_output_shape,"] if spec.unknown_shapes else []),
            ")",
            f"def {spec.opname}({self.parameters()}):",
        ]
        if spec.doc:
            lines += _indent(_docstring(spec.doc))
        lines += _indent(self.sizes())
        for output in spec.outputs:
            if not output.allocated:
                lines.append(f"    {output.name} = {self.made(output)}")
        kernel = f"kernels.{spec.kernel.export}"
        call = f"{kernel}({', '.join(self.call_arguments())})"
        if not self.on_cpu:
            call = f"rules.{spec.opname}.run({', '.join((kernel, *self.call_arguments()))})"
        if spec.returned:
            lines.append(f"    return {call}")
        else:
            made = [o.name for o in spec.outputs if o.allocated]
            lines.append(f"    {', '.join(made)} = {call}" if made else f"    {call}")
            results = self.results([o.name for o in spec.outputs])
            if results:
                lines.append(f"    return {', '.join(results)}")
        return "\n".join(lines) + "\n"

    def results(self, made: Sequence[str]) -> list[str]:
        """Return what the operator returns, in order: of `made`, and inputs that it writes."""
        by_set = {a.alias.before: a.name for a in self.schema.arguments if a.alias is not None}
        fresh = iter(made)
        return [
            next(fresh) if r.alias is None else by_set[r.alias.before] for r in self.schema.returns
        ]

    def call_arguments(self) -> list[str]:
        texts = []
        bases = {a.name: a.type.base for a in self.schema.arguments}
        for argument in self.spec.kernel.arguments:
            name, base = argument.name, bases.get(argument.name)
            if base == "ScalarType":  # in the form that the engine knows
                texts.append(f"rules.{self.spec.opname}.dtype({name!r}, {name})")
                continue
            if base == "Device":
                texts.append(f"rules.{self.spec.opname}.device({name})")
                continue
            copied = (
                self.spec.copies
                and argument.kind == "tensor"
                and argument.role == "in"
                and argument.contiguous
            )
            if copied and argument.form:
                texts.append(f"rules._contiguous({name})")
            else:
                texts.append(f"{name}.contiguous()" if copied else name)
        return texts

    def fake(self) -> str:
        spec = self.spec
        lines = [
            f"@{spec.opname}.register_fake",
            f"def {spec.opname}_fake({self.parameters()}):",
        ]
        sizes = self.sizes()
        if sizes:
            lines += _indent(sizes)
        elif self.tensors:
            lines.append(f"    rules.{spec.opname}({', '.join(self.tensors)})")
        unknown = spec.unknown_shapes
        if spec.returned and not spec.kernel.shapes.declared:
            text = (
                f"[{spec.name}] nothing declares the shape of the result that the function "
                "returns, and tensors without data have none. Write it, as in shape: x, or make "
                "it an output of the signature: tp::Out, or tp::Result where its sizes depend on "
                "values."
            )
            return "\n".join([*lines, f"    raise NotImplementedError({text!r})"]) + "\n"
        if unknown:
            text = (
                f"[{spec.name}] the shape of output '{unknown[0]}' depends on the values of the "
                "arguments, and tensors without data have none."
            )
            return "\n".join([*lines, f"    raise NotImplementedError({text!r})"]) + "\n"
        made = []
        outputs: Sequence[Output] = spec.outputs
        if spec.returned:
            first = self.tensors[0] if self.tensors else None
            outputs = [Output("result", None if first else "float32", first)]
        made += [self.made(output, self.device()) for output in outputs]
        lines.append(f"    return {', '.join(self.results(made)) or 'None'}")
        return "\n".join(lines) + "\n"

    # -- gradient -----------------------------------------------------------------------------

    def gradient(self) -> str:
        spec = self.spec
        differentiable = [o.differentiable for o in spec.outputs]
        if differentiable and not any(differentiable):
            return f"{spec.opname}.register_autograd(None)\n"
        if not spec.derivatives:
            return ""
        reads = self.reads()
        saved = [n for n in (*self.tensors, *spec.result_names) if n in reads]
        scalars = [n for n in self.names if n in reads and n not in self.tensors]
        return "\n".join([*self.save(saved, scalars), "", "", *self.formula_lines(saved, scalars)])

    def reads(self) -> set[str]:
        found: set[str] = set()
        for derivative in self.spec.derivatives:
            if derivative.formula is not None:
                found |= derivative.formula.reads
        if self.spec.backward is not None:
            found |= set(self.spec.backward.arguments)
        return found

    def lists(self, saved: Sequence[str]) -> list[str]:
        """Return which of the saved values are lists."""
        results = dict(zip(self.spec.result_names, self.spec.outputs, strict=False))
        forms = {**self.forms, **{n: o.form for n, o in results.items()}}
        return [n for n in saved if forms.get(n) in ("[]", "?[]")]

    def save(self, saved: Sequence[str], scalars: Sequence[str]) -> list[str]:
        spec = self.spec
        extra = ", keyword_only_inputs" if self.keywords else ""
        lines = [f"def _{spec.opname}_save(ctx, inputs, output{extra}):"]
        inputs = [n if n in saved or n in scalars else "_" for n in self.positional]
        body = [f"{_targets(inputs)} = inputs"] if set(inputs) - {"_"} else []
        body += [
            f"{n} = keyword_only_inputs[{n!r}]" for n in self.keywords if n in saved or n in scalars
        ]
        auxiliary = [
            n for n, o in zip(spec.result_names, spec.outputs, strict=False) if not o.differentiable
        ]
        used = [n if n in saved or n in auxiliary else "_" for n in spec.result_names]
        if set(used) - {"_"}:
            body.append(f"{', '.join(used)} = output")
        if auxiliary:
            body.append(f"ctx.mark_non_differentiable({', '.join(auxiliary)})")
        lists = self.lists(saved)
        if saved:
            flat = [f"*{n}" if n in lists else n for n in saved]
            body.append(f"ctx.save_for_backward({', '.join(flat)})")
        if len(lists) > 1:
            body.append(f"ctx.lengths = {', '.join(f'len({n})' for n in lists)}")
        body += [f"ctx.{n} = {n}" for n in scalars]
        return [*lines, *_indent(body or ["pass"])]

    def restored(self, saved: Sequence[str]) -> list[str]:
        """Return the lines that take the saved tensors apart again."""
        lists = self.lists(saved)
        if not saved:
            return []
        if len(lists) < 2:
            targets = [f"*{n}" if n in lists else n for n in saved]
            return [f"{_targets(targets)} = ctx.saved_tensors"]
        marks = ", ".join("True" if n in lists else "False" for n in saved)
        return [
            f"{_targets(saved)} = rules._apart(ctx.saved_tensors, ctx.lengths, ({marks}))",
        ]

    def formula_lines(self, saved: Sequence[str], scalars: Sequence[str]) -> list[str]:
        spec = self.spec
        lines = [f"def _{spec.opname}_gradient(ctx, {', '.join(spec.grad_names)}):"]
        body: list[str] = [*self.restored(saved)]
        body += [f"{n} = ctx.{n}" for n in scalars]
        by_input = {d.input: d for d in spec.derivatives}
        opaque = [d.input for d in spec.derivatives if d.formula is None and not d.none]
        gradients = [f"grad_{n}" if n in self.tensors else "None" for n in self.positional]
        body += [f"grad_{n} = None" for n in self.tensors if n not in opaque]
        if spec.backward is not None:
            outs = ", ".join(spec.backward.outputs)
            body.append(f"{outs} = {spec.backward.operator}({', '.join(spec.backward.arguments)})")
        for position, name in enumerate(self.positional):
            derivative = by_input.get(name)
            if name not in self.tensors or name in opaque or (derivative and derivative.none):
                continue
            needed = f"ctx.needs_input_grad[{position}]"
            body.append(f"if any({needed}):" if "[]" in self.forms[name] else f"if {needed}:")
            if derivative is not None and derivative.formula is not None:
                body.append(f"    grad_{name} = {derivative.formula.source}")
            else:
                text = (
                    f"[{spec.name}] input '{name}' has no gradient formula. Add "
                    f"'{name}: …' under derivatives, or pass {name}.detach()."
                )
                body.append(f"    raise NotImplementedError({text!r})")
        body.append(f"return {self.returned(gradients)}")
        return [
            *lines,
            *_indent(body),
            "",
            "",
            f"{spec.opname}.register_autograd(",
            f"    _{spec.opname}_gradient, setup_context=_{spec.opname}_save",
            ")",
            "",
        ]

    def returned(self, gradients: Sequence[str]) -> str:
        """Return the gradients as a tuple; of one list, which a bare list would be taken for."""
        if len(gradients) == 1 and "[]" in self.forms[self.positional[0]]:
            return f"({gradients[0]},)"
        return ", ".join(gradients) or "()"


def _quoted(text: str) -> str:
    return repr(text) if '"' in text or "\\" in text else f'"{text}"'


def _targets(names: Sequence[str]) -> str:
    if not names:
        return "()"
    return f"({names[0]},)" if len(names) == 1 else ", ".join(names)


def _indent(lines: Sequence[str]) -> list[str]:
    return ["    " + line for line in lines]


def _docstring(text: str) -> list[str]:
    safe = text.replace("\\", "\\\\").replace('"""', '\\"\\"\\"')
    first, *rest = safe.split("\n")
    if not rest:
        return [f'"""{first}"""']
    return [f'"""{first}', *rest, '"""']


def _contiguous(value: Any) -> Any:
    if isinstance(value, list):
        return [_contiguous(member) for member in value]
    return value.contiguous() if isinstance(value, Tensor) else value


def _device(*values: Any) -> Any:
    """Return the device of the first tensor among the values and in their lists."""
    flat = (t for v in values for t in (v if isinstance(v, list) else [v]))
    return next((t.device for t in flat if t is not None), "meta")


def _apart(
    flat: Sequence[Any], lengths: Sequence[int], are_lists: Sequence[bool]
) -> tuple[Any, ...]:
    """Return saved tensors with lists of these lengths put together again."""
    rest, sizes = iter(flat), iter(lengths)
    return tuple(
        [next(rest) for _ in range(next(sizes))] if is_list else next(rest) for is_list in are_lists
    )


def kernels_of(kernels: Iterable[KernelSpec], library: Any) -> SimpleNamespace:
    """Return the guarded C++ functions of a loaded library as attributes.

    What the C++ types promise not to write is declared to the loader, which then passes read-only
    memory without a copy.

    Raises
    ------
    AttributeError
        The library exports no such function.
    """
    found: dict[str, Any] = {}
    for kernel in kernels:
        reads = [a.name for a in kernel.arguments if a.kind == "tensor" and a.writes is False]
        library.declare_read_only(kernel.export, reads)
        found[kernel.export] = library[kernel.export]
    return SimpleNamespace(**found)


def _keep_other_device(before: CustomOpDef, made: CustomOpDef, device: str) -> None:
    """Give an operator that was defined anew the kernel that it had for the other device.

    A C++ cell and a CUDA cell may each define one operator for their device. Gradient, fake kernel
    and documentation are those of the one that ran last, as far as it has them.
    """
    if before.owner.module != made.owner.module or str(before.schema) != str(made.schema):
        return
    other = "cuda" if device == "cpu" else "cpu"
    kernels = before.operator_kernels
    kernel = kernels.get(other) or (kernels.get(None) if other == "cpu" else None)
    if kernel is None:
        return
    made.operator_kernels.add((other,), kernel)
    if other == "cpu":
        made.operator.access = before.operator.access
    if made.operator.gradient is None:
        made.operator.gradient = before.operator.gradient


def _derivatives_advice(helper: OperatorSpec) -> str:
    """Say what to write in a cell so that a function which a gradient calls has a gradient."""
    name = f"{helper.opname.removesuffix('_backward')}_gradient"
    schema = re.sub(r"\bgrad\b", "g", helper.schema.partition(" ->")[0].rpartition("::")[2])
    schema = f"{helper.namespace}::{schema} -> Tensor"
    inputs = ["g" if a.name == "grad" else a.name for a in helper.inputs if a.kind == "tensor"]
    formulas = ", ".join(f"{n}: …" for n in inputs)
    if not helper.opname.endswith("_backward"):
        advice = "Declare it under ops: in its cell:"
        return f"{advice}\n    op: {schema}\n    derivatives: {{{formulas}}}"
    advice = "Write formulas under derivatives: in place of the function; they have derivatives."
    if len(helper.outputs) != 1:
        return advice
    target = helper.outputs[0].name.removeprefix("grad_")
    call = f"{name}({', '.join(a.name for a in helper.inputs)})"
    return (
        f"{advice} Or rename it to '{name}', declare it under ops: in its cell:\n"
        f"    op: {schema.replace(f'::{helper.opname}(', f'::{name}(')}\n"
        f"    derivatives: {{{formulas}}}\n"
        f"and call it in a formula, as derivatives: {{{target}: '{call}'}}"
    )


def define_operators(
    operators: Sequence[OperatorSpec], kernels: Any, *, owner: str = "tpkernel.cell"
) -> Mapping[str, Any]:
    """Execute the generated source and return the operators' definitions by name.

    Parameters
    ----------
    operators
        What to define; one that another calls may stand anywhere.
    kernels
        Object whose attributes are the guarded C++ functions.
    owner
        The module that the definitions belong to: it may define them again, another one may not.

    Returns
    -------
    mapping
        Operator name (without namespace) to its ``CustomOpDef``, helpers included.

    Raises
    ------
    OperatorError
        The runtime does not take an operator, such as one whose name another module defined.
    """
    import tensorplay as tp

    module: dict[str, Any] = {
        "__name__": owner,
        "__doc__": None,
        "tp": tp,
        "math": math,
        "kernels": kernels,
        "rules": SimpleNamespace(
            **{o.opname: InputRules(o) for o in operators},
            _contiguous=_contiguous,
            _device=_device,
            _apart=_apart,
        ),
    }
    for operator in operators:
        text = operator_source(operator).text
        file = f"<{owner} {operator.name}>"
        before = lookup(operator.name)
        linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
        try:
            exec(compile(text, file, "exec"), module)  # noqa: S102  (source written above)
        except Exception as problem:
            raise OperatorError(operator, problem) from problem
        made = module[operator.opname]
        if operator.helper and not operator.derivatives:
            made.operator.formula_advice = _derivatives_advice(operator)
        if operator.kernel.device == "cpu":  # NumPy arrays go to kernels of the cpu
            made.operator.access = {a.name: a.writes for a in operator.inputs if a.kind == "tensor"}
        if before is not None:
            _keep_other_device(before, made, operator.kernel.device)
    return {o.opname: module[o.opname] for o in operators}
