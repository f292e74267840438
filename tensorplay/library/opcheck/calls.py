"""Calls of an operator under check: copies of arguments, runs, and comparisons of results."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from tensorplay._tensor import Tensor, wrap
from tensorplay.autograd import grad_mode
from tensorplay.library.opcheck.failures import OpCheckFailure
from tensorplay.library.writes import Snapshot
from tensorplay.ops.nesting import flatten, map_tensors
from tensorplay.testing import assert_close

if TYPE_CHECKING:
    from tensorplay.library.definitions import CustomOpDef

Array = np.ndarray[Any, Any]

__all__ = ["Arguments", "Array", "Checked", "Outcome", "difference", "said"]


@dataclass(frozen=True)
class Outcome:
    """One run: the results as a tuple, the arguments that it got, and what it wrote."""

    results: tuple[Any, ...]
    values: list[Any]
    undeclared: list[str]
    changed: dict[str, bool]

    def tensors(self) -> Iterator[Tensor]:
        """Yield the tensors among the results."""
        return flatten(self.results)


class Arguments:
    """The arguments of a call, in the order of the schema.

    Parameters
    ----------
    op
        The operator.
    args, kwargs
        As a caller gives them; defaults are filled in.

    Raises
    ------
    TypeError
        They are not those of the schema.
    """

    def __init__(self, op: CustomOpDef, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        bound = op.__signature__.bind(*args, **kwargs)
        bound.apply_defaults()
        self.op = op
        given = [bound.arguments[a.name] for a in op.schema.arguments]
        self.values: list[Any] = list(op.operator.over_arrays(given))

    @classmethod
    def of(cls, op: CustomOpDef, values: list[Any]) -> Arguments:
        """Return arguments that are complete already."""
        made = cls.__new__(cls)
        made.op, made.values = op, values
        return made

    def mapped(self, change: Callable[[Tensor], Tensor]) -> Arguments:
        """Return the same arguments with each tensor changed."""
        return Arguments.of(self.op, [map_tensors(_as_list(v), change) for v in self.values])

    def copied(self, *, requires_grad: bool = False) -> Arguments:
        """Return the same arguments on memory of their own, with the strides they have.

        With `requires_grad` those that require a gradient do so in the copy, as leaves.
        """

        def copy(tensor: Tensor) -> Tensor:
            made = wrap(_copy(tensor._array), tensor._dtype) if not tensor.is_meta else tensor
            wanted = requires_grad and tensor.requires_grad
            return made.requires_grad_() if wanted else made

        return self.mapped(copy)

    def on_meta(self, *, requires_grad: bool = False) -> Arguments:
        """Return the same arguments without data."""

        def move(tensor: Tensor) -> Tensor:
            made = tensor.detach().to("meta")
            return made.requires_grad_() if requires_grad and tensor.requires_grad else made

        return self.mapped(move)

    def tensors(self) -> list[Tensor]:
        """Return all tensors among the arguments."""
        return list(flatten(self.values))

    def split(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return positional arguments, and the keyword-only ones by name."""
        arguments = self.op.schema.arguments
        pairs = list(zip(arguments, self.values, strict=True))
        return (
            tuple(v for a, v in pairs if not a.kwarg_only),
            {a.name: v for a, v in pairs if a.kwarg_only},
        )

    def by_name(self) -> dict[str, Any]:
        """Return all arguments by name."""
        return dict(zip([a.name for a in self.op.schema.arguments], self.values, strict=True))

    def names(self) -> dict[int, str]:
        """Return what each tensor among the arguments is called, by its identity."""
        found: dict[int, str] = {}
        for name, value in self.by_name().items():
            for number, tensor in enumerate(flatten([value])):
                found[id(tensor)] = f"{name}[{number}]" if isinstance(value, list) else name
        return found

    def call(self) -> Any:
        """Call the operator, recording as the mode says."""
        args, kwargs = self.split()
        return self.op(*args, **kwargs)

    def run(self) -> Outcome:
        """Call the operator without recording, and watch what it writes."""
        snapshot = Snapshot(self.op.schema, self.values)
        with grad_mode.no_grad():
            result = self.call()
        many = len(self.op.schema.returns) != 1
        results = (tuple(result) if many else (result,)) if result is not None else ()
        return Outcome(results, self.values, snapshot.undeclared(), snapshot.changed())


@dataclass
class Checked:
    """An operator under check: the call that was given, tolerances, and what was found."""

    op: CustomOpDef
    arguments: Arguments
    atol: float | None
    rtol: float | None
    failures: list[OpCheckFailure] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    seen: set[tuple[str, str, str]] = field(default_factory=set)

    def fail(
        self,
        test: str,
        code: str,
        message: str,
        variant: str = "",
        *,
        subject: str = "",
        cause: BaseException | None = None,
    ) -> None:
        """Note a failure; for each `subject`, such as a result, each kind once per test."""
        key = (test, code, subject)
        if key not in self.seen:
            self.seen.add(key)
            self.failures.append(OpCheckFailure(test, code, message, variant, cause))

    def differs(self, got: Any, expected: Any) -> str | None:
        """Say how two results differ; None if they do not."""
        return difference(got, expected, atol=self.atol, rtol=self.rtol)


def difference(
    got: Any, expected: Any, *, atol: float | None = None, rtol: float | None = None
) -> str | None:
    """Say how `got` differs from `expected`, nested results of operators; None if it does not."""
    if isinstance(expected, (tuple, list)):
        if not isinstance(got, (tuple, list)) or len(got) != len(expected):
            return f"expected {len(expected)} values, got {got!r}"
        found = (difference(g, e, atol=atol, rtol=rtol) for g, e in zip(got, expected, strict=True))
        return next((f for f in found if f is not None), None)
    if isinstance(expected, Tensor) and isinstance(got, Tensor):
        try:
            assert_close(got.detach(), expected.detach(), atol=atol, rtol=rtol, equal_nan=True)
        except AssertionError as problem:
            return str(problem)
        return None
    if got == expected or (got != got and expected != expected):  # noqa: PLR0124  (NaN)
        return None
    return f"expected {expected!r}, got {got!r}"


def said(problem: BaseException) -> str:
    """Return kind and text of an exception, the text once."""
    return f"{type(problem).__name__}: {problem}"


def _as_list(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _copy(array: Array) -> Array:
    """Return a copy with the same strides where they are those of a dense or spaced array."""
    if array.size == 0 or any(
        s == 0 and n > 1 for s, n in zip(array.strides, array.shape, strict=True)
    ):
        copy: Array = array.copy()
        return copy
    low = sum(min(0, s * (n - 1)) for s, n in zip(array.strides, array.shape, strict=True))
    high = sum(max(0, s * (n - 1)) for s, n in zip(array.strides, array.shape, strict=True))
    raw: Array = np.zeros(high - low + array.itemsize, np.uint8)
    made: Array = np.ndarray(array.shape, array.dtype, raw.data, -low, array.strides)
    made[...] = array
    return made
