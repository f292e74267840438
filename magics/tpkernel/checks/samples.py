"""Example arguments for the checks: as declared under ``samples:``, or made from the spec.

A made sample has small sizes, all different where the shapes allow it, so that swapped dimensions
show. There are smaller and larger ones: a stencil has no inside at size 2, and what is even hides
what is odd. Values are drawn from a fixed seed on both sides of zero; an operator that is not
finite there is tried with positive values, and the report says so.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations
from types import SimpleNamespace
from typing import Any

import numpy as np

import tensorplay as tp
from tensorplay.library.modules.shapes import Dims, Like
from tensorplay.library.modules.spec import Argument, OperatorSpec
from tensorplay.ops.schema import parse_schema
from tpkernel.cells.formulas import read_formula

__all__ = ["Sample", "make_samples"]

_SIZES = (2, 3, 4, 5, 6, 7, 8, 9)
# Few elements all the same: a gradcheck calls the kernel for each.
_LARGER = (5, 6, 4, 3, 7, 8, 9, 2)
# Orders of more sizes than this are not tried.
_MOST_ORDERED = 6
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
    fitting = [(shape, sizes) for shape, sizes in _fitted(spec, cases) if sizes]
    # Where no sizes fit, the call's own message says why.
    made = [
        _made(spec, shape, sizes, generator, positive=positive) for shape, sizes in fitting or cases
    ]
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


def _fitted(
    spec: OperatorSpec, cases: Sequence[tuple[tuple[int, ...] | None, tuple[int, ...]]]
) -> Iterator[tuple[tuple[int, ...] | None, tuple[int, ...]]]:
    """Put the sizes of each case in an order in which every output has elements.

    A kernel that is larger than its image, as in ``[h - r + 1]``, would be refused.
    """
    free = min(len(spec.kernel.shapes.symbols()), _MOST_ORDERED)
    for shape, sizes in cases:
        orders = ((*o, *sizes[free:]) for o in permutations(sizes[:free]))
        yield shape, next((o for o in orders if _has_elements(spec, shape, o)), ())


def _has_elements(
    spec: OperatorSpec, free_shape: tuple[int, ...] | None, sizes: tuple[int, ...]
) -> bool:
    """Whether the declared shapes give every output at least one element."""
    rules = [r for r in spec.kernel.shapes.outputs.values() if isinstance(r, Dims)]
    if not rules:
        return True
    names: dict[str, Any] = {
        n: SimpleNamespace(shape=shape, ndim=len(shape))
        for n, shape in _shapes(spec, free_shape, sizes).items()
    }
    names |= {a.name: _scalar(a, spec) for a in spec.inputs if a.kind == "int"}
    names |= _sizes_by_symbol(spec, sizes)
    try:
        return all(
            eval(entry, {"__builtins__": {}}, names) > 0  # noqa: S307  (checked arithmetic)
            for rule in rules
            for entry in rule.entries
        )
    except (ArithmeticError, IndexError):
        return False


def _sizes_by_symbol(spec: OperatorSpec, sizes: tuple[int, ...]) -> dict[str, int]:
    return {s: sizes[i % len(sizes)] for i, s in enumerate(spec.kernel.shapes.symbols())}


def _shapes(
    spec: OperatorSpec, free_shape: tuple[int, ...] | None, sizes: tuple[int, ...]
) -> dict[str, tuple[int, ...]]:
    """Return a shape for each tensor input."""
    symbols = _sizes_by_symbol(spec, sizes)
    shapes: dict[str, tuple[int, ...]] = {}
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
    return shapes


def _made(
    spec: OperatorSpec,
    free_shape: tuple[int, ...] | None,
    sizes: tuple[int, ...],
    generator: np.random.Generator,
    *,
    positive: bool,
) -> Sample:
    shapes = _shapes(spec, free_shape, sizes)
    values: dict[str, Any] = {}
    dtypes = preferred_dtypes(spec)
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
