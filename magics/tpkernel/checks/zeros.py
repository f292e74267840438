"""Gradients at exact zeros and ones, where made samples never are.

A formula such as ``grad * result / a`` holds at every drawn value and is NaN at ``a = 0``. A
central difference cannot judge such a place by itself, since functions have kinks there: so each
element is moved to both sides, with two steps, and only where all four derivatives of every output
agree does the operator have a derivative that its formula must give.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

import tensorplay as tp
from tensorplay.library.modules.spec import OperatorSpec
from tpkernel.checks.samples import Sample, flat_results, preferred_dtypes
from tpkernel.report.facts import Finding

__all__ = ["check_zeros", "with_zeros"]

# Step and tolerance by dtype: a one-sided difference is off by about the step, and by rounding.
_STEPS = {"float64": (1e-5, 1e-3), "float32": (4e-3, 5e-2)}
_MOST_ELEMENTS = 6
_Place = tuple[int, ...]


def _checked(spec: OperatorSpec) -> list[str]:
    """Return the inputs with a derivative whose dtype is fine enough for one-sided differences."""
    declared = set(spec.differentiated) - set(spec.surrogates)
    single = {a.name for a in spec.inputs if a.kind == "tensor" and not a.is_list}
    return [n for n, d in preferred_dtypes(spec).items() if n in declared & single and d in _STEPS]


def with_zeros(spec: OperatorSpec, samples: Sequence[Sample]) -> list[Sample]:
    """Return a made sample for each checked input, with zeros and ones in it.

    Declared samples say what the operator is called with, so nothing is added to them.

    Parameters
    ----------
    spec
        The operator.
    samples
        Its made samples; the last, which is the smallest, is changed.
    """
    if spec.samples or not samples:
        return []
    made = []
    for name in _checked(spec):
        if samples[-1].values[name] is None:
            continue
        values = dict(samples[-1].values)
        array = np.array(values[name], dtype=np.float64)
        flat = array.reshape(-1)
        flat[0::3] = 0.0
        flat[1::3] = 1.0
        values[name] = array
        text = f"{samples[-1].text}, with zeros and ones in {name}"
        made.append(dataclasses.replace(samples[-1], text=text, values=values))
    return made


def check_zeros(
    spec: OperatorSpec,
    definition: Any,
    samples: Sequence[Sample],
    progress: Callable[[str], None],
) -> Iterator[Finding]:
    """Compare gradients at exact zeros and ones with one-sided differences.

    Parameters
    ----------
    spec, definition
        The operator, and what is called.
    samples
        What :func:`with_zeros` returned.
    progress
        Told what is about to run.

    Yields
    ------
    Finding
        The first wrong element of each input.
    """
    accused: set[str] = set()
    for sample in samples:
        progress(f"gradcheck of {spec.name} on {sample.text}")
        for candidate in (sample, _positive(sample)):
            try:
                found = _wrong_gradients(spec, definition, candidate)
            except Exception:  # noqa: BLE001  (refused: these values are outside its domain)
                found = None
            if found is None:
                continue  # not finite here
            for name, message in found.items():
                if name not in accused:
                    accused.add(name)
                    yield Finding("gradcheck", spec.name, "error", message, code="gradient_at_zero")
            break


def _positive(sample: Sample) -> Sample:
    values = {
        name: np.abs(value) if isinstance(value, np.ndarray) and value.dtype.kind == "f" else value
        for name, value in sample.values.items()
    }
    return dataclasses.replace(sample, values=values, positive=True)


def _wrong_gradients(spec: OperatorSpec, definition: Any, sample: Sample) -> dict[str, str] | None:
    """Return what is wrong by input; None where the results are not finite."""
    dtypes = preferred_dtypes(spec)
    arguments = sample.arguments(spec, dtypes)

    def outputs() -> list[np.ndarray[Any, Any]]:
        with tp.no_grad():
            result = definition(**arguments)
        return [
            np.array(r.detach().numpy(), dtype=np.float64) for r in _differentiable(spec, result)
        ]

    base = outputs()
    if not base or not all(np.isfinite(o).all() for o in base):
        return None
    generator = np.random.default_rng(0)
    weights = [generator.uniform(0.5, 1.5, o.shape) for o in base]
    names = [n for n in _checked(spec) if arguments[n] is not None]
    gradients = _gradients(spec, definition, arguments, names, weights)
    wrong: dict[str, str] = {}
    for name in names:
        gradient = gradients.get(name)
        if gradient is None or gradient.shape != tuple(arguments[name].shape):
            continue  # the gradcheck's own finding
        step, tolerance = _STEPS[dtypes[name]]
        view = arguments[name].detach().numpy()
        for place in _places(sample.values[name]):
            slope = _slope(outputs, base, view, place, step, tolerance)
            if slope is None:
                continue
            right = sum(float((w * s).sum()) for w, s in zip(weights, slope, strict=True))
            scale = sum(float(np.abs(w * s).sum()) for w, s in zip(weights, slope, strict=True))
            given = float(gradient[place])
            if not abs(given - right) <= 10 * tolerance * max(1.0, scale):
                wrong[name] = _said(name, place, float(view[place]), given, right, sample)
                break
    return wrong


def _differentiable(spec: OperatorSpec, result: Any) -> list[tp.Tensor]:
    """Return the results that may have a gradient."""
    results = result if isinstance(result, tuple) else (result,)
    declared = [o.differentiable for o in spec.outputs] or [True] * len(results)
    kept = [r for r, d in zip(results, declared, strict=False) if d]
    return [t for r in kept for t in flat_results(r) if t.dtype.is_floating_point]


def _gradients(
    spec: OperatorSpec,
    definition: Any,
    arguments: Mapping[str, Any],
    names: Sequence[str],
    weights: Sequence[np.ndarray[Any, Any]],
) -> dict[str, np.ndarray[Any, Any]]:
    inputs = {n: arguments[n].detach().clone().requires_grad_(True) for n in names}
    result = definition(**{**arguments, **inputs})
    floating = _differentiable(spec, result)
    ends = [(r, w) for r, w in zip(floating, weights, strict=True) if r.requires_grad]
    if not ends:
        return {}
    found = tp.autograd.grad(
        [r for r, _ in ends],
        list(inputs.values()),
        grad_outputs=[tp.from_numpy(w).to(r.dtype) for r, w in ends],
        allow_unused=True,
    )
    return {n: g.detach().numpy() for n, g in zip(inputs, found, strict=True) if g is not None}


def _places(value: Any) -> list[_Place]:
    """Return the elements to look at: zeros and ones in turn, then others."""
    array = np.asarray(value)
    order = np.arange(array.size)
    chosen = np.concatenate([order[0::3][:2], order[1::3][:2], order[2::3][:2]])
    return [
        tuple(int(i) for i in np.unravel_index(k, array.shape)) for k in chosen[:_MOST_ELEMENTS]
    ]


def _slope(
    outputs: Callable[[], list[np.ndarray[Any, Any]]],
    base: Sequence[np.ndarray[Any, Any]],
    view: np.ndarray[Any, Any],
    place: _Place,
    step: float,
    tolerance: float,
) -> list[np.ndarray[Any, Any]] | None:
    """Return each output's derivative by one element; None where the sides or steps disagree."""
    start = view[place]
    sides = []
    try:
        for move in (step, -step, 4 * step, -4 * step):
            view[place] = start + move
            sides.append(
                [(o - b) / float(view[place] - start) for o, b in zip(outputs(), base, strict=True)]
            )
    finally:
        view[place] = start
    for others in zip(*sides, strict=True):
        first = others[0]
        for other in others[1:]:
            if not (np.abs(other - first) <= tolerance * np.maximum(1.0, np.abs(first))).all():
                return None
    return [(a + b) / 2 for a, b in zip(sides[0], sides[1], strict=True)]


def _said(
    name: str, place: _Place, value: float, given: float, right: float, sample: Sample
) -> str:
    index = f"[{', '.join(map(str, place))}]" if place else ""
    text = (
        f"at {name}{index} = {value:.6g} the gradient of '{name}' is {given:.6g}, and the "
        f"derivatives from both sides are {right:.6g}, on {sample.text}. "
    )
    if math.isfinite(given):
        return text + "Give the formula the value of this place, such as with where(…)."
    return text + (
        "The formula divides by zero or takes a logarithm of it; write the derivative by the "
        "inputs, as in grad * b instead of grad * result / a, or choose with where(…)."
    )
