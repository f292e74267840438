"""Made samples with other values than the defaults: a default is often neutral.

A formula that forgets a factor of 1.0, a count of 0 or a switch that is off agrees with its kernel
at the defaults. So made samples also give what has a default another value near it. Which values a
kernel takes is known to it alone: what it refuses is left at the default, and the report says so.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

import tensorplay as tp
from tensorplay.library.modules.spec import Argument, OperatorSpec
from tpkernel.checks.memory import MemoryWatch
from tpkernel.checks.samples import (
    Sample,
    default_of,
    flat_results,
    make_samples,
    positive_sample,
    preferred_dtypes,
    schema_type,
)
from tpkernel.report.facts import Finding

__all__ = ["varied_samples"]

_Values = dict[str, Any]
#: What is given for an absent value, by its type.
_PRESENT: Mapping[str, tuple[Any, ...]] = {
    "float?": (0.7,),
    "Scalar?": (0.7,),
    "int?": (2,),
    "SymInt?": (2,),
    "bool?": (True,),
}


def varied_samples(
    spec: OperatorSpec,
    definition: Any,
    watch: MemoryWatch,
    progress: Callable[[str], None],
    *,
    seed: int = 0,
) -> tuple[list[Sample], list[Finding]]:
    """Return the samples of a check, and a note for each argument of which only one was tried.

    Declared samples are what they are. Of made ones the first has the defaults, the second other
    numbers, the third other numbers and switches, and so on in turn.

    Parameters
    ----------
    spec, definition
        The operator, and what is called; what it raises is a refusal.
    watch
        Keeps what a call does to memory, for whoever takes it.
    progress
        Told what is about to run.
    seed
        Seed of made samples.
    """
    plain = make_samples(spec, seed=seed)
    alternatives = {} if spec.samples else _alternatives(spec)
    attempt = _Attempt(spec, definition, watch, progress)
    if not alternatives or attempt.refusal(plain[0]):
        return plain, []
    plans = _plans(alternatives)
    refused: dict[str, str] = {}
    admitted = [{}, *(_admitted(p, alternatives, attempt, seed, refused) for p in plans)]
    samples = make_samples(spec, seed=seed, given=admitted)
    return samples, [
        Finding("gradcheck", spec.name, "note", message, code="default_only")
        for message in refused.values()
    ]


def _plans(alternatives: Mapping[str, list[Any]]) -> list[_Values]:
    """Return the other values of each sample after the first.

    Numbers vary once without the switches, since a switch may hide what a number does.
    """
    last = {name: values[-1] for name, values in alternatives.items()}
    numbers = {n: v[0] for n, v in alternatives.items() if not _is_switch(v[0])}
    return [numbers, last] if numbers and numbers != last else [last]


def _is_switch(value: Any) -> bool:
    values = value if isinstance(value, list) else [value]
    return bool(values) and all(isinstance(v, bool) for v in values)


class _Attempt:
    """Calls that find out what an operator takes."""

    def __init__(
        self,
        spec: OperatorSpec,
        definition: Any,
        watch: MemoryWatch,
        progress: Callable[[str], None],
    ) -> None:
        self.spec = spec
        self._definition = definition
        self._watch = watch
        self._progress = progress
        self._dtypes = preferred_dtypes(spec)

    def _call(self, sample: Sample) -> Any:
        self._progress(f"call of {self.spec.name} on {sample.text}")
        dtypes = ", ".join(dict.fromkeys(self._dtypes.values()))
        self._watch.on(self.spec.name, f"{sample.text}, {dtypes}")
        with self._watch, tp.no_grad():
            return self._definition(**sample.arguments(self.spec, self._dtypes))

    def refusal(self, sample: Sample) -> str:
        """Say why an operator does not take a sample; empty if it does."""
        why = "its results are not finite"
        for candidate in (sample, positive_sample(sample)):
            try:
                result = self._call(candidate)
            except Exception as problem:  # noqa: BLE001  (a person's kernel, any error)
                return f"{type(problem).__name__}: {problem}"
            if all(np.isfinite(r.detach().numpy()).all() for r in flat_results(result)):
                return ""
        return why


def _admitted(
    plan: _Values,
    alternatives: Mapping[str, list[Any]],
    attempt: _Attempt,
    seed: int,
    refused: dict[str, str],
) -> _Values:
    """Return what of a plan the operator takes; the rest keeps its default."""

    def refusal(values: _Values) -> str:
        found = make_samples(attempt.spec, seed=seed, given=[values])
        return next(filter(None, map(attempt.refusal, found)), "")

    if not refusal(plan):
        return plan
    taken: _Values = {}
    for name, first in plan.items():
        why = ""
        for value in (first, *(v for v in alternatives[name] if v != first)):
            said = refusal({**taken, name: value})
            if not said:
                taken[name] = value
                break
            why = why or f"{name}={value!r}: {said}"
        else:
            default = default_of(attempt.spec, name)
            message = f"only {name}={default!r} was checked; the operator refuses {why}"
            refused.setdefault(name, message)
    return taken


def _alternatives(spec: OperatorSpec) -> dict[str, list[Any]]:
    """Return other values for each plain argument that has a default, and for each bool."""
    found: dict[str, list[Any]] = {}
    for argument in spec.inputs:
        if argument.kind == "tensor":
            continue
        kind = schema_type(argument, spec)
        if argument.name in spec.kernel.defaults or kind == "bool":
            values = _others(argument, kind, default_of(spec, argument.name))
            if values:
                found[argument.name] = values
    return found


def _others(argument: Argument, kind: str, default: Any) -> list[Any]:
    if default is None:
        return list(_PRESENT.get(kind, ()))
    if isinstance(default, (list, tuple)):
        members = [_others(argument, re.sub(r"\[.*", "", kind), v) for v in default]
        if not members or not all(members):
            return []
        return [[m[0] for m in members]]
    if isinstance(default, bool):
        return [not default]
    base = kind.rstrip("?")
    if base in ("float", "Scalar") and isinstance(default, (int, float)):
        # Rounded, since 0.7 * 0.2 is 0.13999999999999999 in every label.
        near_by = [float(f"{factor * default:.12g}") for factor in (0.7, 1.3)]
        return near_by if default else [0.7, -0.4]
    if base in ("int", "SymInt") and isinstance(default, int):
        # One less may be a count of none, which a kernel divides by.
        near = [default + 1, *([default - 1] if default >= 2 else [])]
        bounded = argument.low < argument.high
        return [n for n in near if not bounded or argument.low <= n <= argument.high][:2]
    return []
