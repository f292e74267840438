"""What a cell probably means and does not say: gradients under another name, dtypes of nothing.

Nothing here changes what is built. Each hint is a warning or a note of the report.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from typing import Literal

from tensorplay.library.modules.spec import CellSpec, KernelSpec, OperatorSpec
from tpkernel.cells.cell import Cell
from tpkernel.errors import CellError
from tpkernel.report.report import Finding

__all__ = ["hints", "like_backward", "with_hint"]

_ENDINGS = (
    "back", "backprop", "bwd", "bw", "deriv", "derivative", "dx", "grad", "gradient", "grads",
    "vjp",
)  # fmt: skip
_STARTS = ("back", "backward", "bwd", "d", "grad", "gradient", "vjp")
_NEAR = 0.85


def hints(cell: Cell, spec: CellSpec) -> tuple[Finding, ...]:
    """Return hints about a cell's gradients, and about arguments whose dtype nothing guards.

    Parameters
    ----------
    cell
        The parsed cell.
    spec
        What was read from it.
    """
    found: list[Finding] = []
    for operator in spec.operators:
        if not operator.helper:
            found += _misnamed(cell, spec, operator)
            found += _incomplete(operator)
    for kernel in spec.kernels:
        found += _unguarded(kernel)
    return tuple(found)


def with_hint(cell: Cell, problem: CellError) -> CellError:
    """Return the error of a cell that does not read, with what its function may have meant to be.

    A function whose parameters are those of a gradient is no operator under another name; the
    reader says of ``grad`` that formulas use it, and renaming that would be the wrong way out.
    """
    name = str(problem.subject or "").split("::")[-1]
    base = next(
        (f.name for f in cell.functions if f.name != name and like_backward(name, f.name)), None
    )
    if base is None or name == f"{base}_backward":
        return problem
    hint = f"If '{name}' is the gradient of '{base}', call it '{base}_backward'"
    return cell.error(
        f"{problem.message.rstrip('.')}. {hint}",
        line=problem.line,
        column=problem.column,
        subject=problem.subject,
    )


def _misnamed(cell: Cell, spec: CellSpec, operator: OperatorSpec) -> Iterator[Finding]:
    """Find functions that look like a gradient and are used for nothing."""
    given = {d.input for d in operator.derivatives}
    if operator.backward is not None or given.issuperset(operator.tensor_inputs):
        return
    names = {operator.opname, operator.kernel.name}
    used = {o.kernel.name for o in spec.operators if o.helper}
    used |= {o.kernel.name for o in spec.operators if o.origin == "front matter"} | names
    for function in cell.functions:
        if function.name in used or not any(like_backward(function.name, n) for n in names):
            continue
        right = f"{operator.opname}_backward"
        message = (
            f"'{function.name}' looks like the gradient of '{operator.opname}' and is not used as "
            f"one: a gradient is found by the name '{right}'. Rename it, or call it in a formula "
            "under derivatives."
        )
        yield Finding("cell", operator.name, "warning", message, code="misnamed_backward")


def like_backward(name: str, operator: str) -> bool:
    """Whether a function's name is a usual one for the gradient of an operator."""
    plain, base = name.lower().strip("_"), operator.lower().strip("_")
    words = {f"{base}_{e}" for e in _ENDINGS} | {f"{base}{e}" for e in ("backward", *_ENDINGS)}
    words |= {f"{s}_{base}" for s in _STARTS} | {f"{s}{base}" for s in ("backward", "grad")}
    if plain in words:
        return True
    rest = plain.removeprefix(base).strip("_")
    return rest != plain and difflib.SequenceMatcher(None, rest, "backward").ratio() >= _NEAR


def _unguarded(kernel: KernelSpec) -> Iterator[Finding]:
    """Find tensors whose memory is read and of which nothing says as what."""
    for argument in kernel.arguments:
        if argument.untyped and not argument.dtypes:
            message = (
                f"no dtype guard on '{argument.name}': nothing says which dtype it may have, so "
                f"any is admitted. Write static_cast<float*>({argument.name}.data_ptr()), or "
                f"tp::In<float> {argument.name}; or declare dtypes: in front matter."
            )
            yield Finding("guards", kernel.title, "warning", message, code="no_dtype_guard")


def _incomplete(operator: OperatorSpec) -> Iterator[Finding]:
    """Find tensor inputs without a gradient where others have one."""
    given = {d.input for d in operator.derivatives}
    if not given:
        return
    for argument in operator.inputs:
        countable = bool(argument.dtypes) and not any("float" in d for d in argument.dtypes)
        if argument.kind != "tensor" or argument.name in given or countable:
            continue
        name = argument.name
        if operator.backward is not None:
            where = operator.backward.operator
            message = (
                f"'{where}' gives no gradient of '{name}', so asking for it raises. Add an output "
                f"tp::Out<T> grad_{name} to '{where}', or a formula for {name} under derivatives."
            )
            level: Literal["warning", "note"] = "warning"
        else:
            message = (
                f"input '{name}' has no gradient formula, so asking for its gradient raises. Add "
                f"'{name}: …' under derivatives."
            )
            level = "note"
        yield Finding("cell", operator.name, level, message, code="missing_gradient")
