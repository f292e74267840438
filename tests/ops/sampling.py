"""Samples of operators, and a numerical differentiator that is independent of the product's."""

from __future__ import annotations

import contextlib
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import tensorplay as tp
from tensorplay import _detours
from tensorplay.ops import OPERATORS, Operator, Sample

Array = np.ndarray[Any, Any]
STEP = 1e-6


@contextlib.contextmanager
def long_way_only() -> Iterator[None]:
    """Send all calls inside the long way, also those of backward formulas."""
    detour = _detours.enter("a test")
    try:
        yield
    finally:
        _detours.leave(detour)


class Maker:
    """Makes the tensors of samples: ``make(2, 3, low=-1.0, high=1.0, avoid=(0.0,))``.

    Parameters
    ----------
    seed
        Name whose numbers are the same in every run and order of tests.
    """

    def __init__(self, seed: str) -> None:
        self.random = np.random.default_rng(zlib.crc32(seed.encode()))

    def __call__(
        self,
        *shape: int,
        low: float = -2.0,
        high: float = 2.0,
        avoid: Sequence[float] = (),
        dtype: Any = tp.float64,
        requires_grad: bool = True,
    ) -> tp.Tensor:
        values = self.random.uniform(low, high, shape)
        for point in avoid:  # a twentieth away is far more than a step of the differentiator
            near = np.abs(values - point) < 0.05
            values = np.where(near, point + np.where(values < point, -0.05, 0.05), values)
        if dtype.is_complex:
            values = values + 1j * self.random.uniform(low, high, shape)
        result = tp.tensor(np.asarray(values), dtype=dtype)
        return result.requires_grad_() if requires_grad and dtype.is_differentiable else result


def replace(value: Any, change: Callable[[tp.Tensor], Any]) -> Any:
    """Return nested arguments with every tensor replaced by ``change(tensor)``."""
    if isinstance(value, tp.Tensor):
        return change(value)
    if isinstance(value, dict):
        return {key: replace(v, change) for key, v in value.items()}
    if isinstance(value, list | tuple):
        members = [replace(v, change) for v in value]
        return members if isinstance(value, list) else tuple(members)
    return value


def tensors_of(value: Any) -> Iterator[tp.Tensor]:
    """Yield the tensors among nested arguments or results."""
    if isinstance(value, tp.Tensor):
        yield value
    elif isinstance(value, dict):
        yield from tensors_of(list(value.values()))
    elif isinstance(value, list | tuple):
        for v in value:
            yield from tensors_of(v)


@dataclass(frozen=True)
class Case:
    """One operator with one of its samples."""

    operator: Operator
    sample: Sample
    name: str

    @property
    def arguments(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return self.sample.args, self.sample.kwargs

    def run(self, change: Callable[[tp.Tensor], Any] = lambda t: t) -> Any:
        """Call the operator, each tensor replaced by ``change(tensor)``."""
        args, kwargs = replace(list(self.sample.args), change), replace(self.sample.kwargs, change)
        return self.operator.function(*args, **kwargs)

    def inputs(self) -> list[tp.Tensor]:
        """Return the tensors that derivatives are taken of, as new leaves."""
        return [
            leaf(t)
            for t in tensors_of(list(self.arguments))
            if t.requires_grad and t.dtype.is_differentiable
        ]

    def run_on(self, inputs: Sequence[tp.Tensor]) -> Any:
        """Call the operator with `inputs` in place of the tensors that require grad."""
        rest = iter(inputs)
        return self.run(lambda t: next(rest) if t.requires_grad else t)

    def values_on(self, arrays: Sequence[Array]) -> list[Array]:
        """Return the differentiable results for the values `arrays`."""
        with tp.no_grad():
            return [
                t.numpy() for t in differentiable(self.run_on([tp.from_numpy(a) for a in arrays]))
            ]


def leaf(t: tp.Tensor) -> tp.Tensor:
    """Return a new leaf with the values, and the strides, of `t`."""
    return tp.from_numpy(t.detach().numpy().copy(order="K")).requires_grad_()


def differentiable(result: Any) -> list[tp.Tensor]:
    return [t for t in tensors_of(result) if t.dtype.is_differentiable]


def cases(*, where: Callable[[Operator], bool] = lambda _: True) -> list[Any]:
    """Return a parameter for every sample of every operator of the product."""
    found = []
    for name, operator in sorted(OPERATORS.items()):
        if operator.schema.namespace is not None or not where(operator) or not operator.samples:
            continue
        make = Maker(name)
        for number, sample in enumerate(operator.samples(make)):
            label = f"{name}-{sample.name or number}"
            found.append(pytest.param(Case(operator, sample, label), id=label))
    return found


def cotangents(outs: Sequence[tp.Tensor], seed: str) -> list[Array]:
    """Return random weights for the results, complex for complex ones."""
    random = np.random.default_rng(zlib.crc32(f"cotangent {seed}".encode()))
    found = []
    for out in outs:
        u = random.uniform(0.5, 1.5, tuple(out.shape)) * random.choice((-1, 1), tuple(out.shape))
        found.append(np.asarray(u + 1j * u[::-1] if out.dtype.is_complex and u.ndim else u))
    return [u.astype(out.dtype.numpy) for u, out in zip(found, outs, strict=True)]


def inner(a: Sequence[Array], b: Sequence[Array]) -> float:
    """Return the real inner product of lists of arrays."""
    return float(sum(np.sum((np.conj(x) * y).real) for x, y in zip(a, b, strict=True)))


def numerical_gradient(
    function: Callable[[list[Array]], float], at: Sequence[Array]
) -> list[Array]:
    """Return the gradient of a real function of arrays by central differences.

    Of a complex array it is the derivative along the real plus i times that along the imaginary
    direction.
    """
    found = []
    for number, array in enumerate(at):
        gradient = np.zeros(array.shape, array.dtype)
        for index in np.ndindex(array.shape):
            for direction in (1.0, 1j) if array.dtype.kind == "c" else (1.0,):
                values = []
                for sign in (1, -1):
                    moved = [a.copy() for a in at]
                    moved[number][index] += sign * STEP * direction
                    values.append(function(moved))
                gradient[index] += direction * (values[0] - values[1]) / (2 * STEP)
        found.append(gradient)
    return found


def gradients(
    outs: Sequence[tp.Tensor],
    inputs: Sequence[tp.Tensor],
    weights: Sequence[Array],
    *,
    create_graph: bool = False,
) -> list[tp.Tensor]:
    """Return the gradients that the product computes, zeros where it has none."""
    roots = [(o, w) for o, w in zip(outs, weights, strict=True) if o.requires_grad]
    if not roots:
        return [tp.zeros_like(x) for x in inputs]
    found = tp.autograd.grad(
        [o for o, _ in roots],
        list(inputs),
        [tp.from_numpy(w) for _, w in roots],
        create_graph=create_graph,
        allow_unused=True,
    )
    return [tp.zeros_like(x) if g is None else g for x, g in zip(inputs, found, strict=True)]
