"""One check under way: the function, its inputs and outputs, and the verdicts so far."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from tensorplay import _dtype
from tensorplay._tensor import Tensor, spec_of
from tensorplay.autograd.gradcheck import report as words
from tensorplay.autograd.gradcheck.analytical import Reverse, fill_tangents
from tensorplay.autograd.gradcheck.compare import Block, compare
from tensorplay.autograd.gradcheck.inputs import Leaf, admitted, find_tensors, replace_tensors
from tensorplay.autograd.gradcheck.numerical import (
    Differences,
    Evaluator,
    Layout,
    Precision,
    machine_epsilon,
    precision_for,
    tensors_in,
)
from tensorplay.autograd.gradcheck.promotion import Wide, promoted
from tensorplay.autograd.gradcheck.report import PairReport

__all__ = ["Options", "Pair", "State"]

Matrix = npt.NDArray[Any]

# A Jacobian matrix with more elements than this is sampled.
_MOST_ELEMENTS = 4_000_000
_SAMPLED = 2000
_LEAST_SAMPLED = 100
_MOST_WORK = 30_000_000  # rows of the sample times elements of the input


@dataclass(frozen=True)
class Options:
    """The flags of `gradcheck`."""

    eps: float | None = None
    atol: float | None = None
    rtol: float | None = None
    nondet_tol: float = 0.0
    check_undefined_grad: bool = True
    check_grad_dtypes: bool = False
    check_batched_grad: bool = False
    check_batched_forward_grad: bool = False
    check_forward_ad: bool = False
    check_backward_ad: bool = True
    fast_mode: bool = False


@dataclass
class Pair:
    """Verdict under construction; the first failure stands."""

    output: int
    leaf: Leaf
    precision: Precision
    verdict: str = words.OK
    code: str | None = None
    message: str = ""
    block: Block | None = None

    def fail(self, verdict: str, code: str, message: str) -> None:
        """Set the verdict, unless there is one already."""
        if self.verdict == words.OK:
            self.verdict, self.code, self.message = verdict, code, message

    def take(self, block: Block, code: str, message: str) -> None:
        """Adopt the result of a comparison of matrices."""
        if self.verdict != words.OK or (self.block is not None and block.verdict == words.OK):
            return
        self.block = block
        if block.verdict != words.OK:
            text = f"{message} {block.message}".strip()
            self.fail(block.verdict, block.code or code, text)

    def report(self) -> PairReport:
        """Return the verdict as plain data."""
        block = self.block
        if block is None:
            cause = worst = analytical = numerical = None
            noise = 0.0
        else:
            cause, worst, noise = block.cause, block.worst, block.noise_bound
            analytical, numerical = block.analytical, block.numerical
        p = self.precision
        return PairReport(
            self.output, self.leaf.name, self.verdict, self.code, self.message, cause, worst,
            p.step, p.atol, p.rtol, analytical, numerical, noise,
        )  # fmt: skip


@dataclass
class State:
    """One check of one function at one point.

    Parameters
    ----------
    func, args, kwargs
        The function and its arguments; tensors may lie in lists, tuples and dictionaries.
    options
        The flags.
    leaves
        The tensors found in the arguments.
    """

    func: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    options: Options
    leaves: list[Leaf] = field(init=False)
    checked: list[Leaf] = field(init=False)
    notes: list[str] = field(default_factory=list)
    fills_tangents: bool = False  # whether zeros stand for tangents that are not given
    cause: Exception | None = None  # what a formula raised, where that is the finding
    # Set by `begin`:
    layout: Layout = field(init=False)
    evaluate: Evaluator = field(init=False)
    centre: Matrix = field(init=False)  # the outputs at the point, as one vector
    arrays: list[Matrix] = field(init=False)  # what differences change, per checked input
    precisions: list[Precision] = field(init=False)  # of the types of the inputs
    wide: Wide | None = None  # the function in float64, where differences are taken in that
    wide_reverse: Reverse | None = None  # and its formulas, where they work in that
    differences: list[Differences] = field(init=False)
    analytical_epsilon: float = field(init=False)
    numerical_centre: Matrix = field(init=False)
    # Differences in one direction per input, with their error bounds, from the fast mode.
    slopes: dict[int, tuple[Matrix, Matrix]] = field(default_factory=dict)
    # Set by `choose_elements`, for the slow mode:
    rows: list[Matrix] = field(init=False)  # elements looked at, per input
    columns: list[Matrix] = field(init=False)  # and per output
    flat_columns: Matrix = field(init=False)
    blocks: list[slice] = field(init=False)
    pairs: list[list[Pair]] = field(init=False)  # by output, then by input

    def __post_init__(self) -> None:
        self.leaves = find_tensors(self.func, self.args, self.kwargs)
        self.checked = admitted(self.leaves)

    def call(self, change: Callable[[Tensor], Any] | None = None) -> Any:
        """Run the function, with each tensor replaced by ``change(tensor)`` if that is given."""
        if change is None:
            return self.func(*self.args, **self.kwargs)
        args = replace_tensors(self.args, change)
        return self.func(*args, **replace_tensors(dict(self.kwargs), change))

    def dual_call(self, call: Callable[..., Any], tensors: Sequence[Tensor]) -> Callable[..., Any]:
        """Return `call`, with zeros for missing tangents where it does not run without them."""
        return fill_tangents(call, tensors) if self.fills_tangents else call

    def begin(self) -> tuple[list[Tensor], bool]:
        """Run the function; return the outputs looked at, and whether they require grad.

        If no output does, all that could are looked at.

        Raises
        ------
        ValueError
            The function returns no tensor.
        """
        outputs = tensors_in(self.call())
        if not outputs:
            message = (
                "[gradcheck] expected the function to return a tensor, or a sequence or mapping "
                "of them, got none. Return what is to be differentiated."
            )
            raise ValueError(message)
        chosen = [n for n, out in enumerate(outputs) if out.requires_grad]
        recorded = bool(chosen)
        if not recorded:
            chosen = [n for n, out in enumerate(outputs) if out.dtype.is_differentiable]
        if not chosen:
            self.notes.append("no output is of a type that can have a gradient.")
        found = [outputs[n] for n in chosen]
        self.layout = Layout(chosen, [spec_of(out) for out in found])
        self.evaluate = Evaluator(self.call, self.layout)
        self.centre = self.layout.flatten([out._array for out in found])
        self._prepare_differences()
        if not self.options.fast_mode:
            self.choose_elements()
        self.pairs = [
            [
                Pair(n, leaf, d.precision)
                for leaf, d in zip(self.checked, self.differences, strict=True)
            ]
            for n in chosen
        ]
        return found, recorded

    def _prepare_differences(self) -> None:
        """Choose type, step and tolerances, in float64 if the function takes it."""
        options = self.options
        coarsest = max((machine_epsilon(s.dtype) for s in self.layout.specs), default=0.0)
        epsilons = [max(machine_epsilon(x.tensor.dtype), coarsest) for x in self.checked]
        self.arrays = [leaf.tensor._array for leaf in self.checked]
        numerical = self.evaluate
        if max(epsilons) > 1e-12 and options.eps is None:
            self.wide = promoted(self.call, self.leaves, self.checked, self.layout, self.centre)
        if self.wide is not None:
            numerical, self.arrays = self.wide.evaluate, self.wide.arrays
            self.wide_reverse = self.wide.reverse()
            names = ", ".join(sorted({repr(x.tensor.dtype) for x in self.checked}))
            what = "the differences were taken"
            if self.wide_reverse is not None:
                what = "the gradients were compared with differences"
            self.notes.append(f"inputs are {names}; {what} in float64, on converted copies.")
        self.precisions, self.differences = [], []
        for array, epsilon in zip(self.arrays, epsilons, strict=True):
            own = self._as_asked(precision_for(epsilon))
            used = own
            if self.wide is not None:
                used = self._as_asked(precision_for(np.finfo(np.float64).eps))
                if self.wide_reverse is None:
                    used = replace(
                        used, atol=own.atol, rtol=own.rtol, resolution=own.resolution,
                        doubt=own.doubt,
                    )  # fmt: skip
            self.precisions.append(own)
            self.differences.append(Differences(numerical, array, used, scaled=options.eps is None))
        if self.wide_reverse is None:
            self._note_doubt()
        # Rounding of the analytical side, where it is not of the type of the differences.
        self.analytical_epsilon = (
            0.0 if self.wide is None or self.wide_reverse is not None else max(epsilons)
        )
        self.numerical_centre = self.centre if self.wide is None else numerical()

    def _note_doubt(self) -> None:
        """Say how small a mistake cannot be seen in the types of the inputs."""
        for leaf, p in zip(self.checked, self.precisions, strict=True):
            if p.doubt is not None:
                least = 2 * (p.doubt + p.epsilon)  # the differences are as coarse as the formula
                self.notes.append(
                    f"{leaf.name} is {leaf.tensor.dtype!r}, and there are no gradients in float64 "
                    f"to compare: a mistake of less than about {least:.1%} looks like rounding."
                )

    def _as_asked(self, precision: Precision) -> Precision:
        """Return `precision` with the step and the tolerances that the caller chose."""
        options = self.options
        return replace(
            precision,
            step=precision.step if options.eps is None else options.eps,
            atol=precision.atol if options.atol is None else options.atol,
            rtol=precision.rtol if options.rtol is None else options.rtol,
        )

    def choose_elements(self) -> None:
        """Choose the elements looked at by the slow mode: all, or a sample of large matrices."""
        if hasattr(self, "rows"):
            return
        sizes = [array.size for array in self.arrays]
        outputs = [self.layout.columns(n) for n in range(len(self.layout.specs))]
        lengths = [s.stop - s.start for s in outputs]

        def some(size: int, *, sampled: bool) -> Matrix:
            # Each row runs the function on the whole input.
            most = min(_SAMPLED, max(_LEAST_SAMPLED, _MOST_WORK // max(size, 1)))
            if rng is None or not sampled or size <= most:
                return np.arange(size)
            return np.sort(rng.choice(size, most, replace=False))

        large = sum(sizes) * sum(lengths) > _MOST_ELEMENTS
        rng = np.random.default_rng(0) if large else None  # it takes long to make
        self.rows = [some(size, sampled=large) for size in sizes]
        self.columns = [some(size, sampled=large) for size in lengths]
        if large:
            self.notes.append(
                f"the Jacobian has {sum(sizes)} x {sum(lengths)} elements; a sample of "
                f"{sum(map(len, self.rows))} x {sum(map(len, self.columns))} was checked."
            )
        self.flat_columns = np.concatenate(
            [c + s.start for c, s in zip(self.columns, outputs, strict=True)] or [np.arange(0)]
        ).astype(np.intp)
        stops = np.cumsum([0, *map(len, self.columns)]).tolist()
        self.blocks = [slice(a, b) for a, b in pairwise(stops)]

    def fail_all(self, verdict: str, code: str, message: str) -> None:
        """Set one verdict for all pairs that have none yet."""
        for row in self.pairs:
            for pair in row:
                pair.fail(verdict, code, message)

    def compare_all(self, matrices: list[Matrix], how: str) -> None:
        """Compare analytical matrices with numerical ones, input by input."""
        for i, analytical in enumerate(matrices):
            undecided = [n for n, row in enumerate(self.pairs) if row[i].verdict == words.OK]
            if not undecided:
                continue
            for n, block in zip(undecided, self.compare(i, analytical, undecided), strict=True):
                pair = self.pairs[n][i]
                message = (
                    f"Jacobian mismatch for output {pair.output} with respect to input "
                    f"{i} ({pair.leaf.name}){how}."
                )
                code = "forward_ad" if how else "jacobian_mismatch"
                pair.take(block, code, message if block.verdict == words.WRONG else "")

    def compare(self, i: int, analytical: Matrix, wanted: Sequence[int]) -> Iterator[Block]:
        """Compare the analytical matrix of input `i` with differences, for the wanted outputs."""
        return compare(
            self.differences[i],
            analytical,
            self.rows[i],
            self.flat_columns,
            self.numerical_centre,
            blocks=[(n, self.blocks[n], self.columns[n]) for n in wanted],
            layout=self.layout,
            epsilon=self.analytical_epsilon,
            again=lambda: self._nearby(i),
        )

    def compare_narrow(self, narrow: list[Matrix], wide: list[Matrix], how: str) -> None:
        """Compare analytical matrices in the types of the inputs with those in float64.

        What may differ is what rounding leaves: it follows the type and the size of the numbers.
        """
        for i, (own, other) in enumerate(zip(narrow, wide, strict=True)):
            p = self.precisions[i]
            for n, row in enumerate(self.pairs):
                part = self.blocks[n]
                with np.errstate(all="ignore"):
                    size = np.abs(other[:, part])
                    largest = float(size[np.isfinite(size)].max(initial=0.0))
                    allowed = p.atol + p.rtol * size + 8 * p.epsilon * largest
                    gap = np.abs(own[:, part] - other[:, part])
                wrong = ~(gap <= allowed) & np.isfinite(other[:, part])
                wrong &= size <= _dtype.finfo(row[i].leaf.tensor.dtype).max  # else it overflows
                if wrong.any():
                    place = np.unravel_index(int(np.argmax(np.where(wrong, gap, -1))), gap.shape)
                    row[i].fail(
                        words.WRONG,
                        "forward_ad" if how else "jacobian_mismatch",
                        f"The gradient of {row[i].leaf.name}{how} depends on the type: it is "
                        f"{own[:, part][place]:.4g} in {row[i].leaf.tensor.dtype!r} and "
                        f"{other[:, part][place]:.4g} in float64, which agrees with differences.",
                    )

    def _nearby(self, i: int) -> list[Block] | None:
        """Return the comparison at a point nearby, None if the function has no value there."""
        # At the edge of its domain a function has values on one side, for all elements.
        for signs in ((-1.0, 1.0), (1.0,), (-1.0,)):
            found = self._nearby_towards(i, signs)
            if found is not None:
                return found
        return None

    def _nearby_towards(self, i: int, signs: Sequence[float]) -> list[Block] | None:
        with self._moved(signs):
            centre = self.differences[i].evaluate()
            if not np.isfinite(centre).all():
                return None
            if self.wide is not None and self.wide_reverse is not None:
                found = self.wide.reverse()
            else:
                found = self._reverse()
            if found is None:
                return None
            reverse = found
            analytical = reverse.jacobian(self.rows, self.columns).matrices[i]
            blocks = compare(
                self.differences[i],
                analytical,
                self.rows[i],
                self.flat_columns,
                centre,
                blocks=[(n, b, self.columns[n]) for n, b in enumerate(self.blocks)],
                layout=self.layout,
                epsilon=self.analytical_epsilon,
                again=None,
            )
            return list(blocks)

    def _reverse(self) -> Reverse | None:
        outputs = tensors_in(self.call())
        chosen = [outputs[n] for n in self.layout.numbers]
        if not all(out.requires_grad for out in chosen):
            return None
        return Reverse(chosen, [leaf.tensor for leaf in self.checked], self.layout)

    @contextmanager
    def _moved(self, signs: Sequence[float]) -> Iterator[None]:
        """Move all checked inputs a little, in directions out of `signs`, and back at the end."""
        rng = np.random.default_rng(1)
        memory = [*(leaf.tensor._array for leaf in self.checked), *self.arrays]
        kept = [(array, array.copy()) for array in memory]
        try:
            for i, leaf in enumerate(self.checked):
                array = leaf.tensor._array
                step = 20 * self.precisions[i].step if self.wide is None else 0.05
                size = max(0.01, step) * np.maximum(1, np.abs(array.astype(np.complex128)))
                shift = rng.choice(signs, array.shape) * rng.uniform(0.5, 1, array.shape)
                moved = (array + size * shift).astype(array.dtype)
                array[...] = moved
                if self.arrays[i] is not array:
                    self.arrays[i][...] = moved
            yield
        finally:
            for array, old in kept:
                array[...] = old
