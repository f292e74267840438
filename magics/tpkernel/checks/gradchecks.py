"""Gradchecks of an operator: its samples, or what a person chooses, as plain records.

Runs where the checks run. A gradcheck calls a kernel hundreds of times on ordinary memory, so
whoever calls this has run the memory check on the same samples.
"""

from __future__ import annotations

import dataclasses
import inspect
import math
import re
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

import tensorplay as tp
from tensorplay.library.modules.spec import Formula, OperatorSpec
from tpkernel.checks.gaps import unexplained_gap
from tpkernel.checks.jacobians import step_curve, with_jacobians
from tpkernel.checks.samples import (
    Sample,
    flat_results,
    leaf,
    positive_sample,
    preferred_dtypes,
    with_leaves,
)
from tpkernel.report.facts import (
    Finding,
    GradcheckFacts,
    GradcheckSettings,
    PairFacts,
    WorstFacts,
)

__all__ = ["dtypes_of", "gradchecks", "said_of"]

_FLOATING = ("float", "bfloat", "complex")


def gradchecks(
    spec: OperatorSpec,
    definition: Any,
    samples: Sequence[Sample],
    settings: GradcheckSettings,
    progress: Callable[[str], None],
) -> Iterator[GradcheckFacts | Finding]:
    """Check the gradient of one operator on each sample.

    Parameters
    ----------
    spec, definition
        The operator, and what is called.
    samples
        What to call it with.
    settings
        What a person chose. Its shapes are those of the samples already.
    progress
        Told what is about to run.
    """
    dtypes = dtypes_of(spec, settings)
    floating = [n for n, d in dtypes.items() if d.startswith(_FLOATING)]
    if not spec.derivatives:
        kind = "changes its input in place" if spec.mutates else "declares no derivatives"
        message = f"not run: the operator {kind}"
        yield Finding("gradcheck", spec.name, "note", message)
        return
    if not floating:
        message = "not run: no admitted dtype is floating or complex"
        yield Finding("gradcheck", spec.name, "note", message)
        return
    for name, why in spec.surrogates.items():
        message = (
            f"the gradient of '{name}' is deliberate ({why}): not compared with the derivative"
        )
        yield Finding("gradcheck", spec.name, "note", message, code="deliberate")
    names = [n for n in floating if n in spec.differentiated and n not in spec.surrogates]
    if not names and spec.surrogates:
        return
    if settings.inputs:
        names = [n for n in names if n in settings.inputs]
    for sample in samples:
        yield from _Check(spec, definition, dtypes, names, settings, progress).on(sample)


def dtypes_of(spec: OperatorSpec, settings: GradcheckSettings) -> dict[str, str]:
    """Return a dtype per tensor input: the chosen one where it is admitted."""
    dtypes = preferred_dtypes(spec)
    if settings.dtype is not None:
        for argument in spec.inputs:
            if argument.name in dtypes and settings.dtype in (argument.dtypes or (settings.dtype,)):
                dtypes[argument.name] = settings.dtype
    return dtypes


@dataclasses.dataclass
class _Check:
    """The gradcheck of one operator with one choice of dtypes and inputs."""

    spec: OperatorSpec
    definition: Any
    dtypes: Mapping[str, str]
    inputs: list[str]
    settings: GradcheckSettings
    progress: Callable[[str], None]
    #: Of the tensors that are varied, those of lists as ``xs[0]``.
    names: list[str] = dataclasses.field(default_factory=list)

    def on(self, sample: Sample) -> Iterator[GradcheckFacts | Finding]:
        """Check one sample; where its values are outside the operator's domain, positive ones."""
        spec, settings = self.spec, self.settings
        order = "second order of " if settings.order == 2 else ""
        self.progress(f"gradcheck of {order}{spec.name} on {sample.text}")
        start = time.perf_counter()
        notes: list[str] = []
        try:
            arguments = sample.arguments(spec, self.dtypes)
            if not spec.samples and not sample.positive:
                with tp.no_grad():
                    finite = _finite(self.definition(**arguments))
                if not finite:
                    given = f"with {sample.given}, " if sample.given else ""
                    sample = positive_sample(sample)
                    arguments = sample.arguments(spec, self.dtypes)
                    yield Finding(
                        "gradcheck",
                        spec.name,
                        "note",
                        f"{given}results are not finite for negative values; checked with "
                        "positive ones. Declare samples: to choose.",
                    )
            self.names = [n for n, owner in sample.leaves(spec).items() if owner in self.inputs]
            if not self.names:
                return
            inputs = tuple(leaf(arguments, n).requires_grad_(True) for n in self.names)
            call = self._function(arguments)
            with warnings.catch_warnings(record=True) as said:
                warnings.simplefilter("always")
                report = self._report(call, inputs)
            notes += [str(w.message) for w in said if issubclass(w.category, UserWarning)]
            pairs = self._pairs(report, call, inputs)
            doubts = list(self._doubts(report, call, inputs))
        except Exception as problem:  # noqa: BLE001  (a person's kernel and formula, any error)
            yield Finding("gradcheck", spec.name, "error", f"on {sample.text}: {said_of(problem)}")
            return
        yield GradcheckFacts(
            operator=spec.name,
            sample=f"{sample.text}, {', '.join(dict.fromkeys(self.dtypes.values()))}",
            verdict=str(report.verdict),
            message=str(report.message),
            pairs=pairs,
            seconds=time.perf_counter() - start,
            notes=tuple(dict.fromkeys((*map(str, report.notes), *notes))),
            order=settings.order,
            settings="" if settings == GradcheckSettings(seed=settings.seed) else settings.text(),
        )
        for doubt in doubts:
            message = f"on {sample.text}: {doubt}"
            yield Finding("gradcheck", spec.name, "warning", message, code="unexplained_gap")

    def _doubts(
        self, report: Any, call: Callable[..., Any], inputs: tuple[Any, ...]
    ) -> Iterator[str]:
        """Say which gradients pass only because the tolerances are wide."""
        if self.settings.order == 2:
            return
        for pair in report.pairs:
            plain = [re.sub(r"\[(\d+)\]", r"_\1", n) for n in self.names]
            if pair.verdict == "ok" and pair.input in plain:
                yield from unexplained_gap(call, inputs, plain.index(pair.input), pair)

    def _function(self, arguments: Mapping[str, Any]) -> Callable[..., Any]:
        """Return the operator as a function of the checked inputs alone."""
        definition, names = self.definition, self.names

        def call(*tensors: Any) -> Any:
            return definition(**with_leaves(arguments, dict(zip(names, tensors, strict=True))))

        # The names that the report gives to inputs are those of the function's parameters.
        kind = inspect.Parameter.POSITIONAL_ONLY
        vars(call)["__signature__"] = inspect.Signature(
            [inspect.Parameter(re.sub(r"\[(\d+)\]", r"_\1", n), kind) for n in names]
        )
        return call

    def _report(self, call: Callable[..., Any], inputs: tuple[Any, ...]) -> Any:
        s = self.settings
        options: dict[str, Any] = {
            "eps": s.step,
            "atol": s.atol,
            "rtol": s.rtol,
            "fast_mode": s.fast,
        }
        if s.order == 1:
            return tp.autograd.gradcheck_report(
                call,
                inputs,
                check_forward_ad=s.mode != "reverse",
                check_backward_ad=s.mode != "forward",
                **options,
            )
        return tp.autograd.gradgradcheck(
            call,
            inputs,
            raise_exception=False,
            check_undefined_grad=False,
            check_fwd_over_rev=s.mode != "reverse",
            check_rev_over_rev=s.mode != "forward",
            **options,
        )

    def _pairs(
        self, report: Any, call: Callable[..., Any], inputs: tuple[Any, ...]
    ) -> tuple[PairFacts, ...]:
        pairs = _pairs(report, self.spec, self.names)
        if self.settings.order == 2 or len(pairs) != len(report.pairs):
            return pairs
        with tp.no_grad():
            results = call(*inputs)
        results = results if isinstance(results, (list, tuple)) else (results,)
        shapes = {n: tuple(t.shape) for n, t in zip(self.names, inputs, strict=True)}
        pairs = with_jacobians(pairs, report.pairs, shapes, [tuple(r.shape) for r in results])
        if not self.settings.curve:
            return pairs
        return tuple(
            self._with_curve(pair, found, call, inputs)
            for pair, found in zip(pairs, report.pairs, strict=True)
        )

    def _with_curve(
        self, pair: PairFacts, found: Any, call: Callable[..., Any], inputs: tuple[Any, ...]
    ) -> PairFacts:
        position = self.names.index(pair.input)
        if found.analytical is None or pair.jacobian is None:
            return pair
        if inputs[position].dtype.is_complex or pair.jacobian.parts == 2:
            return pair
        curve = step_curve(
            call, inputs, position, pair.output, found.analytical, pair.step, self.progress
        )
        return dataclasses.replace(pair, curve=curve)


def _pair(pair: Any, names: Sequence[str]) -> PairFacts:
    found = re.fullmatch(r"(?:inputs|tensors|args)\[(\d+)\]", str(pair.input))
    plain = {re.sub(r"\[(\d+)\]", r"_\1", n): n for n in names}
    worst = pair.worst
    return PairFacts(
        output=int(pair.output),
        input=names[int(found[1])] if found else plain.get(str(pair.input), str(pair.input)),
        verdict=str(pair.verdict),
        code=pair.code,
        message=str(pair.message),
        cause=pair.cause,
        step=_finite_or_none(pair.step),
        atol=_finite_or_none(pair.atol),
        rtol=_finite_or_none(pair.rtol),
        worst=None
        if worst is None
        else WorstFacts(
            input_index=tuple(map(int, worst.input_index)),
            output_index=tuple(map(int, worst.output_index)),
            analytical=_number(worst.analytical),
            numerical=_number(worst.numerical),
            difference=float(worst.difference),
            tolerance=float(worst.tolerance),
        ),
    )


def _number(value: Any) -> float | complex:
    return complex(value) if isinstance(value, (complex, np.complexfloating)) else float(value)


def _finite_or_none(value: Any) -> float | None:
    number = float(value)
    return number if math.isfinite(number) else None


# What the engine says of a gradient that does not fit its input.
_BAD_SHAPE = re.compile(
    r"invalid gradient at index (?P<index>\d+) - got \[(?P<got>[\d, ]*)\] but expected shape "
    r"compatible with \[(?P<want>[\d, ]*)\]"
)


def _pairs(report: Any, spec: OperatorSpec, names: Sequence[str]) -> tuple[PairFacts, ...]:
    """Return a report's pairs; a gradient of a wrong shape is the matter of its input alone."""
    pairs = tuple(_pair(p, names) for p in report.pairs)
    found = _BAD_SHAPE.search(str(report.message))
    if found is None or int(found["index"]) >= len(spec.inputs):
        return pairs
    if any(a.is_list for a in spec.inputs):  # whose members count one by one there
        return pairs
    name = spec.inputs[int(found["index"])].name
    got, want = (tuple(map(int, re.findall(r"\d+", found[g]))) for g in ("got", "want"))
    message = f"The gradient of '{name}': expected shape {want}, got {got}."
    formula = next((d.formula for d in spec.derivatives if d.input == name), None)
    cause = _shape_advice(name, got, want, spec.opname, formula)
    return tuple(
        # No step: nothing was compared.
        dataclasses.replace(p, code="gradient_shape", message=message, cause=cause, step=None)
        for p in pairs
        if p.input == name
    )


def _shape_advice(
    name: str,
    got: tuple[int, ...],
    want: tuple[int, ...],
    operator: str,
    formula: Formula | None,
) -> str:
    """Say what to write so that a gradient gets the shape of its input."""
    helpers = sorted(formula.kernels - {operator}) if formula is not None else []
    if helpers:
        return (
            f"'{helpers[0]}' makes it, and a function without declared shape returns the shape of "
            f"its first tensor. Declare an op: with shape: for '{helpers[0]}', or write a function "
            f"{operator}_backward with an output grad_{name}"
        )
    if len(got) == 2 and got[::-1] == want:
        return f"the formula is transposed. Write (…).T, or {name}.T where it is multiplied"
    if math.prod(got) == math.prod(want):
        return f"the formula gives the elements in another shape. Write (…).reshape({name}.shape)"
    if math.prod(got) < math.prod(want):
        expands = len(got) <= len(want) and all(
            g in (1, w) for g, w in zip(reversed(got), reversed(want), strict=False)
        )
        or_expand = f", or write (…).expand({name}.shape)" if expands else ""
        if formula is not None and re.search(r"\b(sum|mean)\(", formula.source):
            return (
                "the formula sums more than it should, such as by .sum() over all elements. Leave "
                f"the sum out{or_expand}"
            )
        if expands:
            return (
                "the formula gives one element where the input has several. Write "
                f"(…).expand({name}.shape)"
            )
        return (
            f"the formula gives {math.prod(got)} elements and '{name}' has {math.prod(want)}. "
            f"Write one that gives an element for each of {name}"
        )
    return f"a dimension is not summed. Write (…).sum(dim), so that the shape is {name}.shape"


def _finite(result: Any) -> bool:
    return all(bool(np.isfinite(r.detach().numpy()).all()) for r in flat_results(result))


def said_of(problem: BaseException) -> str:
    """Return type and text of an exception."""
    return f"{type(problem).__name__}: {problem}"
