"""Example arguments for the checks: as declared under ``samples:``, or made from the spec.

A made sample has small sizes, all different where the shapes allow it, so that swapped dimensions
show. There are smaller and larger ones: a stencil has no inside at size 2, and what is even hides
what is odd. Values are drawn from a fixed seed on both sides of zero; an operator that is not
finite there is tried with positive values, and the report says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

import tensorplay as tp
from tensorplay.library.modules.shapes import Dims, Like
from tensorplay.library.modules.spec import Argument, OperatorSpec
from tensorplay.ops.schema import parse_schema
from tpkernel.formulas import read_formula

__all__ = ["Sample", "make_samples"]

_SIZES = (2, 3, 4, 5, 6, 7, 8, 9)
# Few elements all the same: a gradcheck calls the kernel for each.
_LARGER = (5, 6, 4, 3, 7, 8, 9, 2)
# What an argument is that the engine converts, by its schema type.
_OTHERS = {
    "int[]": [1, 2],
    "float[]": [0.7, 1.3],
    "bool[]": [True, False],
    "ScalarType": tp.float32,
}
# The order in which a gradcheck prefers dtypes.
_FLOATING = ("float64", "float32", "float16", "bfloat16", "complex128", "complex64")


@dataclass(frozen=True)
class Sample:
    """One set of arguments.

    Attributes
    ----------
    text
        What it is, in words: shapes and scalars.
    values
        Argument name to array or plain value.
    positive
        Values were drawn from positive numbers only.
    """

    text: str
    values: Mapping[str, Any]
    positive: bool = False

    def arguments(
        self, spec: OperatorSpec, dtypes: Mapping[str, str], *, device: str = "cpu"
    ) -> dict[str, Any]:
        """Return the arguments with tensors of the given dtypes."""
        made: dict[str, Any] = {}
        for argument in spec.inputs:
            value = self.values[argument.name]
            if argument.kind == "tensor":
                tensor = tp.from_numpy(_as_dtype(value, getattr(tp, dtypes[argument.name])))
                made[argument.name] = tensor if device == "cpu" else tensor.to(device)
            else:
                made[argument.name] = value
        return made


def _as_dtype(value: Any, dtype: Any) -> np.ndarray[Any, Any]:
    """Return a new array of a dtype; values that it cannot hold are rounded or lose their sign."""
    array = np.asarray(value)
    if np.iscomplexobj(array) and not dtype.is_complex:
        array = array.real
    if not (dtype.is_floating_point or dtype.is_complex or dtype == tp.bool):
        array = np.rint(array if dtype.is_signed else np.abs(array))
    return np.array(array, dtype=dtype.numpy)


def preferred_dtypes(spec: OperatorSpec) -> dict[str, str]:
    """Return a dtype per tensor input: the widest floating one that is admitted."""
    chosen: dict[str, str] = {}
    by_variable: dict[str, str] = {}
    for argument in spec.inputs:
        if argument.kind != "tensor":
            continue
        admitted = argument.dtypes or _FLOATING
        dtype = next((d for d in _FLOATING if d in admitted), admitted[0])
        if argument.variable is not None:
            dtype = by_variable.setdefault(argument.variable, dtype)
        chosen[argument.name] = dtype
    return chosen


def make_samples(spec: OperatorSpec, *, seed: int = 0, positive: bool = False) -> list[Sample]:
    """Return the declared samples, or made ones.

    Raises
    ------
    ValueError
        A declared sample cannot be evaluated.
    """
    generator = np.random.default_rng(seed)
    if spec.samples:
        state = tp.get_rng_state()
        try:
            tp.manual_seed(seed)
            return [_declared(spec, item) for item in spec.samples]
        finally:
            tp.set_rng_state(state)
    free = all(a.rank is None for a in spec.inputs if a.kind == "tensor") and not any(
        isinstance(r, Dims) for r in spec.kernel.shapes.inputs.values()
    )
    if free:
        cases: list[tuple[tuple[int, ...] | None, tuple[int, ...]]] = [
            ((4,), _SIZES), ((5, 6), _SIZES), ((2, 3), _SIZES),
        ]  # fmt: skip
    else:
        cases = [(None, _LARGER), (None, _SIZES)]
    made = [_made(spec, shape, sizes, generator, positive=positive) for shape, sizes in cases]
    return list({sample.text: sample for sample in made}.values())  # 0-d ones are all the same


def _schema_type(argument: Argument, spec: OperatorSpec) -> str:
    schema = parse_schema(spec.schema)
    return str(schema.arguments[schema.index_of(argument.name)].type)


def _scalar(argument: Argument, spec: OperatorSpec) -> Any:
    default = spec.kernel.defaults.get(argument.name)
    if default is not None:
        return _given(argument, spec, default)
    if argument.kind != "other":
        return {"int": min(2, argument.high), "float": 0.7, "bool": True}[argument.kind]
    kind = _schema_type(argument, spec)
    if kind.endswith("?"):
        return None
    return _OTHERS.get(kind, "text")


def _given(argument: Argument, spec: OperatorSpec, value: Any) -> Any:
    """Return a declared value; a dtype is declared by its name."""
    if argument.kind == "other" and _schema_type(argument, spec) == "ScalarType":
        name = getattr(value, "name", value)
        return getattr(tp, str(name).removeprefix("tp."))
    return value


def _made(
    spec: OperatorSpec,
    free_shape: tuple[int, ...] | None,
    sizes: tuple[int, ...],
    generator: np.random.Generator,
    *,
    positive: bool,
) -> Sample:
    symbols = {s: sizes[i % len(sizes)] for i, s in enumerate(spec.kernel.shapes.symbols())}
    shapes: dict[str, tuple[int, ...]] = {}
    values: dict[str, Any] = {}
    dtypes = preferred_dtypes(spec)
    pending = [a for a in spec.inputs if a.kind == "tensor"]
    pending.sort(key=lambda a: isinstance(spec.kernel.shapes.inputs.get(a.name), Like))
    for argument in pending:
        rule = spec.kernel.shapes.inputs.get(argument.name)
        if isinstance(rule, Dims):
            shapes[argument.name] = tuple(
                int(e) if e.isdigit() else symbols.get(e, 3) for e in rule.entries
            )
        elif isinstance(rule, Like) and rule.argument in shapes:
            shapes[argument.name] = shapes[rule.argument]
        elif argument.rank is not None:
            shapes[argument.name] = sizes[: argument.rank]
        else:
            rank = next((a.rank for a in pending if a.rank is not None), None)
            shapes[argument.name] = free_shape or sizes[: 2 if rank is None else rank]
    for argument in spec.inputs:
        if argument.kind != "tensor":
            values[argument.name] = _scalar(argument, spec)
        elif "int" in dtypes[argument.name] or dtypes[argument.name] == "bool":
            values[argument.name] = generator.integers(0, 2, shapes[argument.name])
        else:
            drawn = generator.uniform(0.3, 1.7, shapes[argument.name])
            sign = 1 if positive else generator.choice((-1, 1), shapes[argument.name])
            values[argument.name] = drawn * sign
            if dtypes[argument.name].startswith("complex"):
                angle = generator.uniform(-1.0, 1.0, shapes[argument.name])
                values[argument.name] = values[argument.name] * np.exp(1j * angle)
    return Sample(_text(spec, values), values, positive)


def _declared(spec: OperatorSpec, item: Mapping[str, Any]) -> Sample:
    values: dict[str, Any] = {}
    for argument in spec.inputs:
        if argument.name not in item:
            default = spec.kernel.defaults[argument.name]
            values[argument.name] = _given(argument, spec, default)
            continue
        value = item[argument.name]
        if argument.kind == "tensor" and isinstance(value, str):
            formula = read_formula(value, values=(), grads=())
            made = eval(  # noqa: S307  (an expression of the person's own cell)
                compile(formula.source, f"<sample of {spec.name}>", "eval"), {"tp": tp}
            )
            values[argument.name] = np.asarray(
                made.detach().numpy() if hasattr(made, "detach") else made
            )
        elif argument.kind == "tensor":
            values[argument.name] = np.asarray(value)
        else:
            values[argument.name] = _given(argument, spec, value)
    return Sample(_text(spec, values), values)


def _text(spec: OperatorSpec, values: Mapping[str, Any]) -> str:
    parts = []
    for argument in spec.inputs:
        value = values[argument.name]
        if argument.kind == "tensor":
            parts.append(f"{argument.name} {tuple(np.shape(value))}")
        else:
            parts.append(f"{argument.name}={value!r}")
    return ", ".join(parts)
