"""Whether an operator gives one result: call after call, in a fresh library, and in every layout.

A gradcheck calls a kernel many times and takes for granted that equal arguments give equal results;
so does everybody who calls it. What a static or global variable keeps from earlier calls breaks
that, and so does a kernel that is admitted with strides and does not go by them. Where it is broken
no other comparison of results means anything: they are not run, or not shown, and say why.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np

import tensorplay as tp
from tensorplay.autograd.gradcheck.determinism import ROUNDINGS
from tensorplay.library.modules.spec import OperatorSpec
from tpkernel.checks.memory import call_with_gradient
from tpkernel.checks.samples import Sample, flat_results, leaf
from tpkernel.report.report import Finding

__all__ = ["MANY", "check_layouts", "check_repeats", "not_compared"]

# What a sum in another order may differ by, relative to the largest element.
_ROUNDING = {"float16": 1e-2, "bfloat16": 1e-1, "float32": 1e-4, "complex64": 1e-4}
_DEFAULT_ROUNDING = 1e-10
#: What the findings are called.
_CHECK = "repeated calls"
#: Calls that look for a difference which most calls do not show.
MANY = 40

Results = list[tuple[str, np.ndarray[Any, Any]]]


def check_repeats(
    spec: OperatorSpec,
    definition: Any,
    kernels: SimpleNamespace,
    samples: Sequence[Sample],
    dtypes: Mapping[str, str],
    fresh: Callable[[], SimpleNamespace],
    progress: Callable[[str], None],
    *,
    calls: int = 2,
) -> Iterator[Finding]:
    """Call an operator again on the same arguments, and once through a freshly loaded library.

    Results and gradients are compared; what is found of one sample ends it.

    Parameters
    ----------
    spec, definition
        The operator.
    kernels
        The C++ functions that it calls, as attributes.
    samples
        Arguments; others than those of the checks before, so that what a kernel has kept of them
        shows.
    dtypes
        Dtype per tensor input.
    fresh
        Loads the cell's library anew, with variables as they are before the first call.
    progress
        Told what is about to run.
    calls
        How many on each sample.
    """
    for sample in reversed(samples):
        text = f"{sample.text}, {', '.join(dict.fromkeys(dtypes.values()))}"
        progress(f"validation of {spec.name}: calls again on {sample.text}")
        first = _call(spec, definition, sample, dtypes)
        again: Results | None = None
        repeated = None
        for _ in range(calls - 1 if first is not None else 0):
            again = _call(spec, definition, sample, dtypes)
            if first is None or again is None:
                break
            repeated = _unlike(first, again, _repeated)
            if repeated is not None:
                break
        saved = dict(vars(kernels))
        one = other = None
        try:
            vars(kernels).update(vars(fresh()))
            one = _call(spec, definition, sample, dtypes)
            if repeated is not None:
                vars(kernels).update(vars(fresh()))
                other = _call(spec, definition, sample, dtypes)
        finally:
            vars(kernels).update(saved)
        if first is None and one is None:
            continue  # the memory check and the gradcheck say what fails there
        if first is None or again is None:
            message = f"a call on {text} fails, and in a freshly loaded library it does not. "
            yield Finding(_CHECK, spec.name, "error", message + _STATE, code="keeps_state")
            return
        if repeated is not None:
            same = one is not None and other is not None and _unlike(one, other, _repeated) is None
            what = f"two calls on the same arguments differ: {repeated}, on {text}. "
            yield Finding(
                _CHECK,
                spec.name,
                "error",
                what + (_STATE if same else _RANDOM),
                code="keeps_state" if same else "non_deterministic",
            )
            return
        kept = _unlike(first, one, _repeated) if one is not None else "the call fails"
        if kept is not None:
            message = (
                "the result depends on calls before it: in a freshly loaded library "
                f"{kept}, on {text}. {_STATE}"
            )
            yield Finding(_CHECK, spec.name, "error", message, code="keeps_state")
            return


def not_compared(check: str, cause: Finding) -> Finding:
    """Return the note that stands for a check which compares results of calls that differ."""
    message = "not judged: it compares calls, and these differ by themselves; see repeated calls"
    return Finding(check, cause.operator, "note", message, code=cause.code)


_STATE = (
    "The kernel keeps something between calls, such as in a static or global variable. Hand it "
    "over as an argument."
)
_RANDOM = (
    "It draws random numbers, reads memory that it does not set, or its threads write to one "
    "place. Seed the numbers from an argument."
)


def check_layouts(
    spec: OperatorSpec,
    definition: Any,
    sample: Sample,
    dtypes: Mapping[str, str],
    progress: Callable[[str], None],
) -> Iterator[Finding]:
    """Call an operator on the same values in other layouts, where it admits them, and compare."""
    expected: Results | None = None
    for argument in spec.inputs:
        if argument.kind != "tensor" or (argument.contiguous and not spec.copies):
            continue
        if argument.is_list or sample.values[argument.name] is None:
            continue
        for layout, laid_out in _LAYOUTS.items():
            if np.ndim(sample.values[argument.name]) < (2 if layout == "transposed" else 1):
                continue
            progress(f"validation of {spec.name} with {argument.name} {layout}")
            if expected is None:
                expected = _call(spec, definition, sample, dtypes)
            if expected is None:
                return
            got = _call(spec, definition, sample, dtypes, argument.name, laid_out)
            if got is None:
                continue  # a row of the validation
            different = _unlike(expected, got, _reordered)
            if different is not None:
                message = (
                    f"'{argument.name}' is admitted with any strides, and a {layout} view of the "
                    f"same values gives another result: {different}, on {sample.text}. Reach its "
                    f"elements by {argument.name}(i, j) alone, or declare layout: contiguous"
                )
                yield Finding("layouts", spec.name, "error", message, code="ignores_strides")
                break


def _transposed(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    turned: np.ndarray[Any, Any] = np.ascontiguousarray(values.T).T
    return turned


def _reversed(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    turned: np.ndarray[Any, Any] = np.ascontiguousarray(values[::-1])[::-1]
    return turned


def _stepped(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    wide = np.zeros((*values.shape[:-1], 2 * values.shape[-1]), values.dtype)
    steps: np.ndarray[Any, Any] = wide[..., ::2]
    steps[...] = values
    return steps


_LAYOUTS: Mapping[str, Callable[[np.ndarray[Any, Any]], np.ndarray[Any, Any]]] = {
    "transposed": _transposed,
    "reversed": _reversed,
    "stepped": _stepped,
}


def _call(
    spec: OperatorSpec,
    definition: Any,
    sample: Sample,
    dtypes: Mapping[str, str],
    name: str = "",
    laid_out: Callable[[np.ndarray[Any, Any]], np.ndarray[Any, Any]] | None = None,
) -> Results | None:
    """Return what a call makes and changes, and its gradients; None where it fails."""
    arguments = sample.arguments(spec, dtypes)
    if laid_out is not None:
        arguments[name] = tp.from_numpy(laid_out(arguments[name].numpy()))
    try:
        with tp.no_grad():
            result = definition(**arguments)
    except Exception:  # noqa: BLE001  (a refusal or an error of the person's; told elsewhere)
        return None
    results = result if isinstance(result, tuple) else (result,)
    names = spec.result_names
    made = [
        (f"'{names[i] if i < len(names) else 'result'}'", np.array(t.numpy()))
        for i, r in enumerate(results)
        for t in flat_results(r)
    ]
    made += [
        (f"'{n}'", np.array(t.numpy())) for n in spec.mutates for t in flat_results(arguments[n])
    ]
    return made + ([] if laid_out is not None else _gradients(spec, definition, sample, dtypes))


def _gradients(
    spec: OperatorSpec, definition: Any, sample: Sample, dtypes: Mapping[str, str]
) -> Results:
    """Return the gradients of a call; none where there are none, or they fail."""
    arguments = sample.arguments(spec, dtypes)
    wanted = [
        name
        for name, owner in sample.leaves(spec).items()
        if owner in spec.differentiated and _is_inexact(leaf(arguments, name).dtype)
    ]
    if not wanted or spec.mutates:
        return []
    for name in wanted:
        leaf(arguments, name).requires_grad_(True)
    try:
        found = call_with_gradient(definition, arguments, wanted)
    except Exception:  # noqa: BLE001  (an error of the person's formula; the gradcheck tells it)
        return []
    return [
        (f"the gradient of '{name}'", np.array(t.numpy()))
        for name, t in zip(wanted, found, strict=False)
        if t is not None
    ]


def _is_inexact(dtype: Any) -> bool:
    return bool(dtype.is_floating_point or dtype.is_complex)


def _reordered(dtype: np.dtype[Any]) -> float:
    """Return by what a sum in another order may differ, relative to the largest element."""
    return _ROUNDING.get(dtype.name, _DEFAULT_ROUNDING)


def _repeated(dtype: np.dtype[Any]) -> float:
    """Return by what two runs may differ, relative to the largest element."""
    return ROUNDINGS * tp.finfo(dtype).eps


def _unlike(one: Results, two: Results, rounding: Callable[[np.dtype[Any]], float]) -> str | None:
    """Say which element differs by more than rounding; None where none does."""
    for (name, a), (_, b) in zip(one, two, strict=False):
        if a.shape != b.shape:
            return f"{name} has shape {a.shape}, then {b.shape}"
        if a.size == 0:
            continue
        with np.errstate(all="ignore"):
            wide = a.astype(complex if a.dtype.kind == "c" else np.float64)
            other = b.astype(wide.dtype)
            finite = np.isfinite(wide)
            scale = float(np.max(np.abs(wide[finite]), initial=0.0))
            allowed = 0.0
            if a.dtype.kind not in "biu":
                allowed = rounding(a.dtype) * scale
            same = (wide == other) | (np.isnan(wide) & np.isnan(other))
            unlike = ~(same | (finite & (np.abs(wide - other) <= allowed)))
        if unlike.any():
            place = tuple(int(i) for i in np.argwhere(unlike)[0])
            index = ", ".join(map(str, place))
            return f"{name}[{index}] is {a[place]} and then {b[place]}"
    return None
