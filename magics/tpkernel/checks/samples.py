"""Example arguments for the checks: as declared under ``samples:``, or made from the spec.

A made sample has small sizes, all different where the shapes allow it, so that swapped dimensions
show. There are smaller and larger ones: a stencil has no inside at size 2, and what is even hides
what is odd. Values are drawn from a fixed seed on both sides of zero; an operator that is not
finite there is tried with positive values, and the report says so.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations
from types import SimpleNamespace
from typing import Any

import numpy as np

import tensorplay as tp
from tensorplay.library.modules.shapes import Dims, Like, is_alike
from tensorplay.library.modules.spec import Argument, OperatorSpec
from tensorplay.ops.schema import parse_schema
from tpkernel.cells.formulas import read_formula

__all__ = [
    "Sample",
    "default_of",
    "flat_results",
    "leaf",
    "make_samples",
    "positive_sample",
    "schema_type",
    "with_leaves",
]

_SIZES = (2, 3, 4, 5, 6, 7, 8, 9)
# Few elements all the same: a gradcheck calls the kernel for each.
_LARGER = (5, 6, 4, 3, 7, 8, 9, 2)
# Orders of more sizes than this are not tried.
_MOST_ORDERED = 6
# Whether what may be absent is there, and how many members lists have, by sample. The last one
# is what validation calls with.
_WAYS = ((True, 3), (False, 1), (True, 0), (True, 2))
# What an argument is that the engine converts, by its schema type.
_OTHERS: Mapping[str, Any] = {
    "int[]": [1, 2],
    "float[]": [0.7, 1.3],
    "bool[]": [True, False],
    "ScalarType": tp.float32,
}
_OVER_LISTS = {"len": len, "sum": sum, "max": max}
_SAME = {"SymInt": "int", "Scalar": "float"}
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
    given
        What has another value than its default, in words.
    """

    text: str
    values: Mapping[str, Any]
    positive: bool = False
    given: str = ""

    def arguments(
        self, spec: OperatorSpec, dtypes: Mapping[str, str], *, device: str = "cpu"
    ) -> dict[str, Any]:
        """Return the arguments with tensors of the given dtypes."""
        made: dict[str, Any] = {}
        for argument in spec.inputs:
            value = self.values[argument.name]
            if argument.kind == "tensor":
                dtype = getattr(tp, dtypes[argument.name])
                made[argument.name] = _tensors(value, dtype, device)
            else:
                made[argument.name] = value
        return made

    def leaves(self, spec: OperatorSpec) -> dict[str, str]:
        """Return the names of the tensors, those of lists as ``xs[0]``, and their arguments'."""
        found: dict[str, str] = {}
        for argument in spec.inputs:
            value = self.values[argument.name]
            if argument.kind != "tensor" or value is None:
                continue
            if not argument.is_list:
                found[argument.name] = argument.name
                continue
            for number, member in enumerate(value):
                if member is not None:
                    found[f"{argument.name}[{number}]"] = argument.name
        return found


def leaf(arguments: Mapping[str, Any], name: str) -> Any:
    """Return a tensor among the arguments of a call by its name, such as ``xs[0]``."""
    owner, bracket, number = name.partition("[")
    return arguments[owner][int(number[:-1])] if bracket else arguments[owner]


def with_leaves(arguments: Mapping[str, Any], tensors: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a call with some of their tensors replaced, each by its name."""
    made = {n: list(v) if isinstance(v, list) else v for n, v in arguments.items()}
    for name, tensor in tensors.items():
        owner, bracket, number = name.partition("[")
        if bracket:
            made[owner][int(number[:-1])] = tensor
        else:
            made[owner] = tensor
    return made


def flat_results(result: Any) -> list[tp.Tensor]:
    """Return the tensors among the results of a call, those of lists one by one."""
    results = result if isinstance(result, (tuple, list)) else (result,)
    flat = [t for r in results for t in (r if isinstance(r, list) else [r])]
    return [t for t in flat if isinstance(t, tp.Tensor)]


def _tensors(value: Any, dtype: Any, device: str) -> Any:
    """Return values as tensors, nested as they are."""
    if value is None:
        return None
    if isinstance(value, list):
        return [_tensors(member, dtype, device) for member in value]
    tensor = tp.from_numpy(_as_dtype(value, dtype))
    return tensor if device == "cpu" else tensor.to(device)


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


def make_samples(
    spec: OperatorSpec,
    *,
    seed: int = 0,
    positive: bool = False,
    given: Sequence[Mapping[str, Any]] = ({},),
) -> list[Sample]:
    """Return the declared samples, or made ones.

    Parameters
    ----------
    spec
        The operator.
    seed
        Seed of made values.
    positive
        Draw positive values only.
    given
        Plain values of made samples by argument, for each sample in turn and the last one for all
        further ones; what is missing has its default.

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
        # Other values than the defaults show most at the larger size, too.
        cases = [*([(None, _LARGER)] * min(len(given), 2)), (None, _SIZES)]
    ways = len(_WAYS) if any(a.form for a in spec.inputs) else 1
    made = []
    for i in range(max(len(cases), ways, len(given))):
        plain = given[min(i, len(given) - 1)]
        fitting = [(shape, sizes) for shape, sizes in _fitted(spec, cases, plain) if sizes]
        # Where no sizes fit, the call's own message says why.
        used = fitting or cases
        shape, sizes = used[i % len(used)]
        way = _WAYS[i % ways]
        made.append(_made(spec, shape, sizes, way, plain, generator, positive=positive))
    return list({sample.text: sample for sample in made}.values())  # 0-d ones are all the same


def schema_type(argument: Argument, spec: OperatorSpec) -> str:
    """Return the type of an argument as the schema writes it."""
    schema = parse_schema(spec.schema)
    return str(schema.arguments[schema.index_of(argument.name)].type)


def default_of(spec: OperatorSpec, name: str) -> Any:
    """Return the value that made samples give to a plain argument unless told another."""
    return _scalar(next(a for a in spec.inputs if a.name == name), spec)


def positive_sample(sample: Sample) -> Sample:
    """Return the sample with the signs of its numbers, or of their real parts, taken away."""
    values = {name: _without_signs(value) for name, value in sample.values.items()}
    return dataclasses.replace(sample, values=values, positive=True)


def _without_signs(value: Any) -> Any:
    if isinstance(value, list):
        return [_without_signs(member) for member in value]
    if isinstance(value, np.ndarray) and value.dtype.kind in "fc":
        return value * np.where(value.real < 0, -1, 1)
    return value


def _scalar(argument: Argument, spec: OperatorSpec) -> Any:
    default = spec.kernel.defaults.get(argument.name)
    if default is not None:
        return _given(argument, spec, default)
    if argument.kind != "other":
        return {"int": min(2, argument.high), "float": 0.7, "bool": True}[argument.kind]
    kind = schema_type(argument, spec)
    if kind.endswith("?"):
        return None
    if kind == "ScalarType[]":
        return [tp.float32, tp.int64]
    if kind.startswith("Device"):
        return [tp.device("cpu")] if "[" in kind else tp.device("cpu")
    found = re.fullmatch(r"(SymInt|Scalar|int|float|bool|str|ScalarType)\??\[(\d*)\]", kind)
    if found:
        values = _OTHERS.get(f"{_SAME.get(found[1], found[1])}[]", ["text", "more"])
        return (values * 8)[: int(found[2])] if found[2] else list(values)
    return _OTHERS.get(kind, "text")


def _given(argument: Argument, spec: OperatorSpec, value: Any) -> Any:
    """Return a declared value; a dtype is declared by its name."""
    if argument.kind == "other" and schema_type(argument, spec) == "ScalarType":
        name = getattr(value, "name", value)
        return getattr(tp, str(name).removeprefix("tp."))
    return value


def _fitted(
    spec: OperatorSpec,
    cases: Sequence[tuple[tuple[int, ...] | None, tuple[int, ...]]],
    plain: Mapping[str, Any],
) -> Iterator[tuple[tuple[int, ...] | None, tuple[int, ...]]]:
    """Put the sizes of each case in an order in which every output has elements.

    A kernel that is larger than its image, as in ``[h - r + 1]``, would be refused.
    """
    free = min(len(spec.kernel.shapes.symbols()), _MOST_ORDERED)
    for shape, sizes in cases:
        orders = ((*o, *sizes[free:]) for o in permutations(sizes[:free]))
        yield shape, next((o for o in orders if _has_elements(spec, shape, o, plain)), ())


def _has_elements(
    spec: OperatorSpec,
    free_shape: tuple[int, ...] | None,
    sizes: tuple[int, ...],
    plain: Mapping[str, Any],
) -> bool:
    """Whether the declared shapes give every output at least one element."""
    rules = [r for r in spec.kernel.shapes.outputs.values() if isinstance(r, Dims)]
    if not rules:
        return True
    lists = {a.name for a in spec.inputs if a.is_list}
    names: dict[str, Any] = {}
    for n, shape in _shapes(spec, free_shape, sizes).items():
        one = SimpleNamespace(shape=shape, ndim=len(shape))
        names[n] = [one] * 3 if n in lists else one
    names |= {a.name: plain.get(a.name, _scalar(a, spec)) for a in spec.inputs if a.kind == "int"}
    names |= _sizes_by_symbol(spec, sizes)
    try:
        return all(
            eval(entry, {"__builtins__": _OVER_LISTS, **names}) > 0  # noqa: S307  (checked)
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
    way: tuple[bool, int],
    plain: Mapping[str, Any],
    generator: np.random.Generator,
    *,
    positive: bool,
) -> Sample:
    shapes = _shapes(spec, free_shape, sizes)
    values: dict[str, Any] = {}
    dtypes = preferred_dtypes(spec)
    present, count = way
    for argument in spec.inputs:
        if argument.kind != "tensor":
            name = argument.name
            values[name] = plain[name] if name in plain else _scalar(argument, spec)
            continue
        name = argument.name
        if argument.form == "?" and not present:
            values[name] = None
            continue
        shapes_of = _shapes_of_members(spec, argument, shapes[name], count)
        drawn = [_drawn(generator, s, dtypes[name], positive=positive) for s in shapes_of]
        if argument.form == "?[]" and drawn:
            drawn[-1] = None
        values[name] = drawn if argument.is_list else drawn[0]
    given = ", ".join(f"{name}={value!r}" for name, value in plain.items())
    return Sample(_text(spec, values), values, positive, given)


def _shapes_of_members(
    spec: OperatorSpec, argument: Argument, shape: tuple[int, ...], count: int
) -> list[tuple[int, ...]]:
    """Return the shape of a tensor, or those of a list's members: different ones where they may."""
    if not argument.is_list:
        return [shape]
    rules = spec.kernel.shapes
    if count == 0 and _needs_a_member(spec, argument):
        count = 1
    rule = rules.inputs.get(argument.name)
    grown = []
    for number in range(count):
        if isinstance(rule, Dims):
            free = [i for i, entry in enumerate(rule.entries) if entry == "_"]
        else:
            free = [] if rule is not None or is_alike(rules, argument.name) else [0]
        free = [i for i in free if i < len(shape)][:1]
        grown.append(tuple(n + number if i in free else n for i, n in enumerate(shape)))
    return grown


def _needs_a_member(spec: OperatorSpec, argument: Argument) -> bool:
    """Whether an output has its shape or dtype from the first member of a list."""
    rules = spec.kernel.shapes.outputs
    rule = spec.kernel.shapes.inputs.get(argument.name)
    symbols = {e for e in rule.entries if e.isidentifier()} if isinstance(rule, Dims) else set()
    for output in spec.outputs:
        if output.form:
            continue
        made = rules.get(output.name)
        if output.dtype_like == argument.name:
            return True
        if isinstance(made, Like) and made.argument == argument.name:
            return True
        text = ", ".join(made.entries) if isinstance(made, Dims) else ""
        words = set(re.findall(r"[A-Za-z_]\w*", text))
        if words & symbols or re.search(rf"\b{argument.name}\[|\bmax\(", text):
            return True
    return False


def _drawn(
    generator: np.random.Generator, shape: tuple[int, ...], dtype: str, *, positive: bool
) -> Any:
    """Draw values of moderate size, away from zero."""
    if "int" in dtype or dtype == "bool":
        return generator.integers(0, 2, shape)
    drawn: Any = generator.uniform(0.3, 1.7, shape)
    if not positive:
        drawn = drawn * generator.choice((-1, 1), shape)
    if dtype.startswith("complex"):
        drawn = drawn * np.exp(1j * generator.uniform(-1.0, 1.0, shape))
    return drawn


def _declared(spec: OperatorSpec, item: Mapping[str, Any]) -> Sample:
    values: dict[str, Any] = {}
    for argument in spec.inputs:
        if argument.name not in item:
            default = spec.kernel.defaults[argument.name]
            values[argument.name] = _given(argument, spec, default)
            if argument.is_list:
                values[argument.name] = list(default)
            continue
        value = item[argument.name]
        if argument.kind == "tensor" and argument.is_list:
            values[argument.name] = [_array(spec, member) for member in value]
        elif argument.kind == "tensor":
            values[argument.name] = _array(spec, value)
        else:
            values[argument.name] = _given(argument, spec, value)
    return Sample(_text(spec, values), values)


def _array(spec: OperatorSpec, value: Any) -> Any:
    """Return a declared tensor: None, numbers, or the value of an expression."""
    if value is None:
        return None
    if isinstance(value, str):
        formula = read_formula(value, values=(), grads=())
        value = eval(  # noqa: S307  (an expression of the person's own cell)
            compile(formula.source, f"<sample of {spec.name}>", "eval"), {"tp": tp}
        )
    return np.asarray(value.detach().numpy() if hasattr(value, "detach") else value)


def _text(spec: OperatorSpec, values: Mapping[str, Any]) -> str:
    parts = []
    for argument in spec.inputs:
        value = values[argument.name]
        if argument.kind == "tensor" and value is not None:
            shapes = (
                [m if m is None else tuple(np.shape(m)) for m in value] if argument.is_list else ()
            )
            parts.append(
                f"{argument.name} {shapes if argument.is_list else tuple(np.shape(value))}"
            )
        else:
            parts.append(f"{argument.name}={value!r}")
    return ", ".join(parts)
