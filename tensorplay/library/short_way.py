"""The short way of small calls to users' operators: the common case, with its checks written out.

A call with plain tensors and numbers, one new tensor as result and nothing special switched on
asks few questions. The function below is written out for the schema, so that a call loops over
nothing. For anything else it returns `MISS`, before the kernel runs; then the long way is taken,
which also words the errors. What the kernel returned goes to the long way's own checks if it is not
plainly a tensor on memory of its own.
"""

from __future__ import annotations

import functools
import sys
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from tensorplay import _native
from tensorplay._detours import detours
from tensorplay._tensor import Tensor
from tensorplay.autograd import anomaly_mode, grad_mode

if TYPE_CHECKING:
    from collections.abc import Callable

    from tensorplay.library.custom_primitive import CustomPrimitive
    from tensorplay.ops.schema import FunctionSchema

__all__ = ["MISS", "short_way"]

MISS: Final = object()
# References to what one local variable alone holds. From Python 3.14 on counts may leave out local
# variables, so that nothing is known to be alone.
_ALONE: Final = 2 if sys.version_info < (3, 14) else 0
# What makes calls in the extension, None where it is not there, and how it knows arguments.
_operator_call: Any = None if _native.core is None else _native.core.OperatorCall
_MOST_ARGUMENTS: Final = 16
_LETTERS: Final = {"Tensor": "t", "float": "f", "int": "i", "SymInt": "i", "bool": "b", "str": "s"}
_SCALARS: Final = {"float": "float", "int": "int", "SymInt": "int", "bool": "bool", "str": "str"}


def _is_covered(schema: FunctionSchema) -> bool:
    """Tell whether the short way knows operators of this form."""
    kinds = [a.type for a in schema.arguments]
    return (
        any(t.base == "Tensor" for t in kinds)
        and all(t.base == "Tensor" or t.base in _SCALARS for t in kinds)
        and not any(t.is_list or t.optional for t in kinds)
        and not any(a.kwarg_only or a.alias is not None for a in schema.arguments)
        and len(schema.returns) == 1
        and schema.returns[0].alias is None
        and str(schema.returns[0].type) == "Tensor"
    )


def short_way(primitive: CustomPrimitive) -> Callable[[tuple[Any, ...]], Any] | None:
    """Return ``call(args)``, which gives the result or `MISS`; None for other forms."""
    schema = primitive.schema
    if not _is_covered(schema):
        return None
    if _operator_call is not None and len(schema.arguments) <= _MOST_ARGUMENTS:
        # The extension does the same.
        kinds = "".join(_LETTERS[a.type.base] for a in schema.arguments)
        made = _operator_call(kinds.encode(), primitive, primitive.kernels, MISS)
        quick: Callable[[tuple[Any, ...]], Any] = made.call
        return quick
    names = [f"a{i}" for i in range(len(schema.arguments))]
    tensors = [n for n, a in zip(names, schema.arguments, strict=True) if a.type.is_tensor]
    lines = [
        "def call(args):",
        f"    if len(args) != {len(names)} or special or primitive.checks_writes:",
        "        return MISS",
        f"    {', '.join(names)}, = args",
    ]
    for name, argument in zip(names, schema.arguments, strict=True):
        if argument.type.is_tensor:
            lines += [
                f"    if {name}.__class__ is not Tensor:",
                "        return MISS",
                f"    m{name} = {name}._array",
                f"    if m{name}.__class__ is not ndarray or {name}._tangent is not None:",
                "        return MISS",
                f"    if {name}._base is not None:",
                f"        {name}._synchronise()",
            ]
            continue
        kind = _SCALARS[argument.type.base]
        lines.append(f"    if {name}.__class__ is not {kind}:")
        if kind == "float":
            lines += [
                f"        if {name}.__class__ is not int:",
                "            return MISS",
                f"        if not -1e300 < {name} < 1e300:",
                "            return MISS",
                f"        {name} = float({name})",
            ]
        else:
            lines.append("        return MISS")
    given = ", ".join(names)  # converted: what the set-up of a gradient gets, as the kernel does
    needs = " or ".join(f"{t}._requires_grad" for t in tensors)
    # Tensors of the kernel's own on the same memory, as `detach` makes them: what it does to their
    # shape or flags, the caller does not see.
    twins = [
        line
        for t in tensors
        for line in (
            f"    k{t} = new()",
            f"    k{t}._array = m{t}",
            f"    k{t}._dtype = {t}._dtype",
            f"    k{t}._requires_grad = False",
            f"    k{t}._grad_fn = k{t}._tangent = k{t}._base = k{t}._recipe = None",
            f"    k{t}._output_nr = 0",
            f"    counter = {t}._counter",
            f"    k{t}._counter = {t}._shared_counter() if counter is None else counter",
        )
    ]
    inner = ", ".join(f"k{n}" if n in tensors else n for n in names)
    # Memory of its own: NumPy's arrays lead straight to the array that owns what they show, and
    # the owner of the result is the owner of no argument. Foreign owners go the long way.
    own = [
        f"({m}.base is None and {m} is not owner) or ({m}.base is not None and "
        f"{m}.base.__class__ is ndarray and {m}.base is not owner and {m}.base.base is None)"
        for m in (f"m{t}" for t in tensors)
    ]
    lines += [
        "    kernel = kernels.on_cpu",
        "    if kernel is None:",
        "        return MISS",
        f"    needs = {needs}",
        "    if needs and anomaly.enabled:",
        "        return MISS",
        *twins,
        "    recording = mode.enabled",
        "    if recording:",
        "        mode.enabled = False",
        "        try:",
        f"            out = kernel({inner})",
        "        finally:",
        "            mode.enabled = True",
        "    else:",
        f"        out = kernel({inner})",
        "    if out.__class__ is Tensor:",
        "        owner = out._array",
        "        if owner.__class__ is ndarray and owner.base is not None:",
        "            owner = owner.base",
        "        if (",
        "            owner.__class__ is ndarray",
        "            and owner.base is None",
        "            and out._base is None",
        "            and not out._requires_grad",
        "            and out._tangent is None",
        *[f"            and ({condition})" for condition in own],
        "        ):",
        # The kernel may keep its tensor; then the caller gets another one.
        f"            if references(out) > {_ALONE}:",
        "                out = out.detach()",
        "            if recording and needs:",
        f"                primitive.record_plainly(({given},), out)",
        "            return out",
        f"    out = primitive.checked(out, [{given}], [{inner}])",
        "    if recording and needs:",
        f"        primitive._record([{given}], (out,))",
        "    return out",
    ]
    scope: dict[str, Any] = {
        "MISS": MISS,
        "Tensor": Tensor,
        "anomaly": anomaly_mode.state,
        "kernels": primitive.kernels,
        "mode": grad_mode.state,
        "ndarray": np.ndarray,
        "new": functools.partial(object.__new__, Tensor),
        "primitive": primitive,
        "references": sys.getrefcount,
        "special": detours,
    }
    exec("\n".join(lines), scope)  # noqa: S102  (text made above, of numbered names only)
    call: Callable[[tuple[Any, ...]], Any] = scope["call"]
    return call
