"""Operators on batches of samples: what `func.vmap` runs inside.

An operator that gets a `BatchedTensor` is called once for all samples, on the values with the
dimensions of the batch in front. How its other arguments change for that is a rule; families of
operators share rules (``batching_rules``). Operators without one run sample by sample.

`Primitive.apply` sees a batched argument where it asks whether there are elements at all, so that
calls outside of vmap pay nothing.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from tensorplay import _dtype
from tensorplay._tensor import Spec, Tensor, wrap
from tensorplay.autograd import grad_mode
from tensorplay.autograd.batched import (
    BatchedTensor,
    Level,
    Levels,
    batch,
    levels_of,
    physical,
    settle,
    sizes_of,
    state,
    union,
)
from tensorplay.autograd.function_batching import apply_rule
from tensorplay.autograd.inplace import check_writable
from tensorplay.ops.operator import OPERATORS, Operator
from tensorplay.ops.primitive import Primitive

__all__ = ["Call", "NoRule", "Rule", "apply_batched", "apply_inplace_batched", "rule_for"]


class NoRule(Exception):  # noqa: N818 - says that this call runs sample by sample; never seen outside
    """Raised by a rule for a call that it does not cover."""


class Call:
    """One call with batched arguments, as a rule sees it.

    Parameters
    ----------
    operator
        The operator.
    values
        Its complete arguments, checked and converted.
    levels
        The levels at which any argument is batched, outer ones first.
    out
        Shapes and types of the results for one sample.
    """

    def __init__(
        self, operator: Primitive, values: list[Any], levels: Levels, out: tuple[Spec, ...]
    ) -> None:
        self.operator = operator
        self.values = values
        self.levels = levels
        self.sizes = sizes_of(levels)
        self.lead = len(levels)
        self.out = out

    def __getitem__(self, name: str) -> Any:
        """Return an argument as it was given."""
        return self.values[self.operator.schema.index_of(name)]

    def ndim(self, name: str) -> int:
        """Return the number of dimensions of one sample of an argument."""
        found: int = self[name].ndim
        return found

    def is_batched(self, name: str) -> bool:
        """Tell whether an argument differs from sample to sample."""
        return bool(levels_of([self[name]]))

    def full(self, name: str) -> Tensor:
        """Return an argument with all samples along the first dimensions."""
        return physical(self[name], self.levels)

    def padded(self, value: Any, ndim: int) -> Any:
        """Return a tensor that broadcasts: with `ndim` dimensions after those of the batch."""
        if not isinstance(value, BatchedTensor):
            return value
        found = physical(value, self.levels, expand=False)
        missing = ndim - value.ndim
        if missing:
            shape = found._array.shape
            lead = shape[: self.lead]
            found = found.reshape((*lead, *[1] * missing, *shape[self.lead :]))
        return found

    def run(self, **changes: Any) -> Any:
        """Call the operator with its arguments, those in `changes` replaced."""
        return self.operator.apply(
            tuple(
                changes.get(name, value)
                for name, value in zip(self.operator.names, self.values, strict=True)
            )
        )

    def shifted(self, dim: int, ndim: int) -> int:
        """Return a dimension of a sample as one of the value."""
        return dim % ndim + self.lead


Rule = Callable[[Call], Any]


def rule_for(operator: Primitive) -> Rule | None:
    """Return the rule of `operator`, None if it runs sample by sample."""
    from tensorplay.ops.batching_rules import RULES  # rules are written in terms of `Call`

    return None if operator.schema.namespace is not None else RULES.get(operator.name)


# --- all samples at once --------------------------------------------------------------------------


def _aligned(values: list[Any]) -> Levels | None:
    """Return the levels of operands that broadcast as they are, None if they may not.

    That is where all samples have as many dimensions, and what they share has not more. A sample
    without dimensions is left out, as it promotes in another way than a vector of samples.
    """
    levels: Levels | None = None
    ndim, shared = 0, 0
    for value in values:
        if not isinstance(value, Tensor):
            continue
        rank = len(value._array.shape)
        if not isinstance(value, BatchedTensor):
            plain, shared = value, max(shared, rank)
        elif levels is None:
            plain, levels, ndim = value._value, value._levels, rank
        elif value._levels != levels or rank != ndim:
            return None
        else:
            plain = value._value
        if plain._tangent is not None or plain._base is not None:
            return None
    return levels if ndim and shared <= ndim else None


def apply_batched(operator: Primitive, arguments: list[Any]) -> Any:
    """Run `operator` for all samples of its batched arguments, which have been converted."""
    if operator.jvp == "elementwise" and operator.schema.namespace is None:
        aligned = _aligned(arguments)
        if aligned is not None:
            whole = [v._value if isinstance(v, BatchedTensor) else v for v in arguments]
            return batch(operator.apply(tuple(whole)), aligned)
    values = [_settled(v) for v in arguments]
    if operator.vmap_rule is not None:
        split = sum(not a.kwarg_only for a in operator.schema.arguments)
        keywords = dict(zip(operator.names[split:], values[split:], strict=True))
        return apply_rule(operator.schema.qualname, operator.vmap_rule, values[:split], keywords)
    if operator.generators:
        return _run_random(operator, values)
    levels = union(values)
    rule = rule_for(operator)
    if rule is None:
        return _one_by_one(operator, values, levels)
    specs = operator.rule(*operator.specs(values))
    many = not isinstance(specs, Spec)
    out = tuple(specs) if many else (specs,)
    call = Call(operator, values, levels, out)
    try:
        results = rule(call)
    except NoRule:
        return _one_by_one(operator, values, levels)
    found = tuple(
        _finish(call, result, spec)
        for result, spec in zip(results if many else (results,), out, strict=True)
    )
    return found if many else found[0]


def _finish(call: Call, result: Tensor, spec: Spec) -> Tensor:
    """Return a result as a batched tensor of the type that a sample has."""
    expected = (*call.sizes, *spec.shape)
    if result._array.shape != expected:
        message = (
            f"[{call.operator.name}] vmap: the batching rule gave shape {list(result.shape)}, "
            f"expected {list(expected)}."
        )
        raise RuntimeError(message)
    # Scalars promote less than tensors with dimensions, and samples may be scalars.
    if result._dtype is not spec.dtype:
        result = result.to(spec.dtype)
    return batch(result, call.levels)


def _settled(value: Any) -> Any:
    if isinstance(value, list):
        return [_settled(v) for v in value]
    return settle(value) if isinstance(value, Tensor) else value


# --- one after the other --------------------------------------------------------------------------


def _sample(value: Any, levels: Levels, index: tuple[int, ...]) -> Any:
    """Return one sample of an argument, as a view."""
    if isinstance(value, list):
        return [_sample(v, levels, index) for v in value]
    if not isinstance(value, BatchedTensor):
        return value
    place = tuple(i for i, level in zip(index, levels, strict=True) if level in value._levels)
    found: Tensor = value._value[place]
    return found


def _one_by_one(
    operator: Operator,
    values: list[Any],
    levels: Levels,
    before: Callable[[tuple[int, ...]], None] | None = None,
) -> Any:
    sizes = sizes_of(levels)
    rows: list[Any] = []
    for index in itertools.product(*map(range, sizes)):
        if before is not None:
            before(index)
        rows.append(operator.apply(tuple(_sample(v, levels, index) for v in values)))
    if not rows and not isinstance(operator, Primitive):
        message = f"[{operator.name}] vmap: not possible for a batch without samples."
        raise RuntimeError(message)
    if not rows and isinstance(operator, Primitive):
        specs = operator.rule(*operator.specs(values))
        rows_spec = (specs,) if isinstance(specs, Spec) else tuple(specs)
        empty = tuple(
            batch(wrap(np.zeros((*sizes, *s.shape), s.dtype.numpy), s.dtype), levels)
            for s in rows_spec
        )
        return empty[0] if isinstance(specs, Spec) else empty
    return _together(operator, rows, sizes, levels)


def _together(operator: Operator, rows: list[Any], sizes: tuple[int, ...], levels: Levels) -> Any:
    """Return the results of all samples in the form of one; lists may be among them."""
    first = rows[0]
    if isinstance(first, Tensor):
        return _joined(operator, rows, sizes, levels)
    if isinstance(first, (tuple, list)):
        columns = [
            _together(operator, list(column), sizes, levels) for column in zip(*rows, strict=True)
        ]
        return columns if isinstance(first, list) else tuple(columns)
    return first


def _joined(operator: Operator, rows: list[Any], sizes: tuple[int, ...], levels: Levels) -> Any:
    if rows[0] is None:
        return None
    shape = rows[0]._array.shape
    if any(row._array.shape != shape for row in rows):
        message = (
            f"[{operator.name}] vmap: the shape of the result depends on the values, and differs "
            "between the samples. Call it outside of vmap."
        )
        raise RuntimeError(message)
    whole: Tensor = OPERATORS["stack"].apply((rows, 0))
    return batch(whole.reshape((*sizes, *shape)), levels)


# --- random numbers -------------------------------------------------------------------------------


def refuse_random(where: str, levels: list[Level]) -> None:
    """Raise if random numbers are drawn inside of a vmap that does not say what they are.

    Raises
    ------
    RuntimeError
        A level has randomness ``"error"``.
    """
    if any(level.randomness == "error" for level in levels):
        message = (
            f"[{where}] vmap: called random operation while in randomness error mode. Write "
            "vmap(f, randomness='different') for numbers of their own for each sample, or 'same'."
        )
        raise RuntimeError(message)


@contextmanager
def _drawing() -> Iterator[None]:
    """Draw for single samples inside: no level is open there."""
    outer, state.levels = state.levels, []
    try:
        yield
    finally:
        state.levels = outer


def _run_random(operator: Primitive, values: list[Any]) -> Any:
    refuse_random(operator.name, state.levels)
    different = [level for level in state.levels if level.randomness == "different"]
    own = levels_of(values)
    levels = tuple(
        sorted({x.number: x for x in (*own, *different)}.values(), key=lambda x: x.number)
    )
    with _drawing():
        return _draw(operator, values, levels)


def _draw(operator: Primitive, values: list[Any], levels: Levels) -> Any:
    if not levels:
        return operator.apply(tuple(values))
    from tensorplay.random import default_generator

    generator = next((v for v in values if isinstance(v, type(default_generator))), None)
    source = default_generator if generator is None else generator
    begun: dict[tuple[int, ...], Tensor] = {}

    def before(index: tuple[int, ...]) -> None:
        """Draw what the first of those samples drew whose numbers are the same."""
        key = tuple(
            i for i, level in zip(index, levels, strict=True) if level.randomness == "different"
        )
        if key in begun:
            source.set_state(begun[key])
        else:
            begun[key] = source.get_state()

    if all(level.randomness == "different" for level in levels):
        return _one_by_one(operator, values, levels)
    return _one_by_one(operator, values, levels, before)


def sampled(where: str, draw: Callable[[], Tensor]) -> Tensor:
    """Return random numbers that depend on no tensor, for all samples."""
    refuse_random(where, state.levels)
    levels = tuple(level for level in state.levels if level.randomness == "different")
    if not levels:
        with _drawing():
            return draw()
    sizes = sizes_of(levels)
    with _drawing():
        rows = [draw() for _ in itertools.product(*map(range, sizes))]
    whole: Tensor = OPERATORS["stack"].apply((rows, 0))
    return batch(whole.reshape((*sizes, *rows[0].shape)), levels)


# --- in place -------------------------------------------------------------------------------------


def apply_inplace_batched(operator: Primitive, args: list[Any]) -> Tensor:
    """Run `operator` for all samples and write the results into the first argument."""
    where = f"{operator.name}_"
    target: Tensor = args[0]
    own = union([target])
    strangers = [level for level in levels_of(args) if level not in own]
    if strangers:
        message = (
            f"[{where}] vmap: in-place arithmetic is not possible because another argument differs "
            "between the samples and the one that is written does not. Write the out-of-place "
            f"form `{operator.name}`."
        )
        raise RuntimeError(message)
    check_writable(physical(target, own), where)
    # What is about to be overwritten is not what the formulas must read.
    recorded = grad_mode.state.enabled and any(
        isinstance(v, Tensor) and v.requires_grad for v in args
    )
    counter = physical(target, own)._shared_counter()
    sources = [
        v.clone() if recorded and isinstance(v, Tensor) and _memory(v) is counter else v
        for v in args
    ]
    result = operator.apply(tuple(sources))
    if result.shape != target.shape:
        message = (
            f"[{where}] expected a result of the shape of the first argument "
            f"{list(target.shape)}, got {list(result.shape)}."
        )
        raise RuntimeError(message)
    if not _dtype.can_cast(result.dtype, target.dtype):
        message = (
            f"[{where}] result type {result.dtype!r} can't be cast to the desired output type "
            f"{target.dtype!r}. Write the out-of-place form `{operator.name}`."
        )
        raise RuntimeError(message)
    copy = OPERATORS["copy"]
    copy.apply_inplace((physical(target, own), physical(result, own)))
    return target


def _memory(tensor: Tensor) -> Any:
    value = tensor._value if isinstance(tensor, BatchedTensor) else tensor
    return value._shared_counter()
