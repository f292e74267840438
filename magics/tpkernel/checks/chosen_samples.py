"""Samples of shapes that a person or a table of times chooses.

The values are drawn from the range of a sample that is there already, with its signs: where the
person declared samples, they keep to the operator's domain. Shapes that were not chosen follow from
the declared relations.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from tensorplay.library.modules.shapes import Dims, Like
from tensorplay.library.modules.spec import OperatorSpec
from tpkernel.checks.samples import Sample

__all__ = ["chosen_sample", "scaled_shapes"]


def chosen_sample(
    spec: OperatorSpec, base: Sample, shapes: Mapping[str, tuple[int, ...]], *, seed: int = 0
) -> Sample:
    """Return a sample with chosen shapes.

    Parameters
    ----------
    spec
        The operator.
    base
        A sample of it, from which come values and whatever is not chosen.
    shapes
        Shape per tensor argument.
    seed
        Of the values.

    Raises
    ------
    ValueError
        No such tensor argument, or a shape that contradicts a declared relation.
    """
    made = _related(spec, base, shapes)
    generator = np.random.default_rng(seed)
    values: dict[str, Any] = {}
    for argument in spec.inputs:
        value = base.values[argument.name]
        if argument.name in made:
            value = _drawn(np.asarray(value), made[argument.name], generator)
        values[argument.name] = value
    lists = {a.name for a in spec.inputs if a.is_list}
    parts = [
        f"{n} {tuple(np.shape(v))}"
        if n in made
        else f"{n} {[m if m is None else np.shape(m) for m in v]}"
        if n in lists
        else f"{n}={v!r}"
        for n, v in values.items()
    ]
    return Sample(", ".join(parts), values, base.positive)


def scaled_shapes(spec: OperatorSpec, base: Sample, elements: int) -> dict[str, tuple[int, ...]]:
    """Return shapes whose largest tensor has about as many elements; all sizes grow alike.

    Sizes that the declaration fixes stay. Where ranks are free, tensors get one dimension.
    """
    rules = spec.kernel.shapes.inputs
    tensors = {
        a.name: np.shape(base.values[a.name])
        for a in spec.inputs
        if a.kind == "tensor" and not a.is_list and base.values[a.name] is not None
    }
    if all(a.rank is None for a in spec.inputs if a.kind == "tensor") and not any(
        isinstance(r, Dims) for r in rules.values()
    ):
        alike = len(set(tensors.values())) <= 1
        if alike:
            return {
                n: (elements,) for n, r in tensors.items() if not isinstance(rules.get(n), Like)
            }
    largest = max((int(np.prod(s)) for s in tensors.values()), default=1)
    rank = max((len(s) for s in tensors.values()), default=1) or 1
    factor = (elements / max(largest, 1)) ** (1 / rank)
    chosen: dict[str, tuple[int, ...]] = {}
    bound: dict[str, int] = {}
    for name, shape in tensors.items():
        rule = rules.get(name)
        if isinstance(rule, Like):
            continue
        grown = [max(1, round(n * factor)) for n in shape]
        if isinstance(rule, Dims):
            for i, entry in enumerate(rule.entries):
                if entry.isdigit():
                    grown[i] = int(entry)
                elif entry != "_" and entry.isidentifier():
                    grown[i] = bound.setdefault(entry, grown[i])
        chosen[name] = tuple(grown)
    return chosen


def _related(
    spec: OperatorSpec, base: Sample, shapes: Mapping[str, tuple[int, ...]]
) -> dict[str, tuple[int, ...]]:
    """Return a shape for every tensor: chosen, related to a chosen one, or the sample's own."""
    rules = spec.kernel.shapes.inputs
    tensors = [  # lists keep their members
        a
        for a in spec.inputs
        if a.kind == "tensor" and not a.is_list and base.values.get(a.name) is not None
    ]
    known = [a.name for a in tensors]
    for name, shape in shapes.items():
        if name not in known:
            message = f"[{spec.name}] no tensor argument '{name}'; it has {', '.join(known)}"
            raise ValueError(message)
        argument = next(a for a in tensors if a.name == name)
        if argument.rank is not None and len(shape) != argument.rank:
            message = (
                f"[{spec.name}] argument '{name}': expected {argument.rank} dimensions, got "
                f"{tuple(shape)}"
            )
            raise ValueError(message)
    bound: dict[str, int] = {}
    for name, shape in shapes.items():
        rule = rules.get(name)
        if not isinstance(rule, Dims) or len(rule.entries) != len(shape):
            continue
        for entry, size in zip(rule.entries, shape, strict=True):
            expected = int(entry) if entry.isdigit() else bound.get(entry, size)
            if expected != size:
                message = (
                    f"[{spec.name}] argument '{name}': expected shape {rule} with {entry} = "
                    f"{expected}, got {tuple(shape)}"
                )
                raise ValueError(message)
            if entry.isidentifier() and entry != "_":
                bound[entry] = size
    made = {name: tuple(shape) for name, shape in shapes.items()}
    free = next(iter(made.values()), None)
    was = {a.name: tuple(np.shape(base.values[a.name])) for a in tensors}
    for argument in sorted(tensors, key=lambda a: isinstance(rules.get(a.name), Like)):
        name = argument.name
        if name in made:
            continue
        rule = rules.get(name)
        if isinstance(rule, Like) and rule.argument in made:
            made[name] = made[rule.argument]
        elif isinstance(rule, Dims) and len(rule.entries) == len(was[name]):
            made[name] = tuple(
                bound.get(e, n) for e, n in zip(rule.entries, was[name], strict=True)
            )
        elif free is not None and any(was[name] == was[other] for other in shapes):
            made[name] = made[next(o for o in shapes if was[o] == was[name])]
        else:
            made[name] = was[name]
    return made


def _drawn(
    array: npt.NDArray[Any], shape: tuple[int, ...], generator: np.random.Generator
) -> npt.NDArray[Any]:
    """Return values from the range of an array, with its signs."""
    if array.size == 0:
        return np.zeros(shape, array.dtype)
    if array.dtype.kind in "biu":
        return generator.choice(array.ravel(), shape)
    if array.dtype.kind == "c":
        return generator.choice(array.ravel(), shape) * generator.uniform(0.9, 1.1, shape)
    flat = array.ravel()
    size = np.abs(flat)
    drawn = generator.uniform(size.min(), size.max(), shape)
    return np.asarray(drawn * generator.choice(np.where(flat < 0, -1.0, 1.0), shape))
