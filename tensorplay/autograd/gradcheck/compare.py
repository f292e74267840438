"""Analytical against numerical matrices: cheap differences first, a closer look where they gape."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tensorplay.autograd.gradcheck import report as words
from tensorplay.autograd.gradcheck.diagnosis import likely_cause
from tensorplay.autograd.gradcheck.numerical import Differences, Layout, Refined
from tensorplay.autograd.gradcheck.report import WorstElement

__all__ = ["Block", "compare"]

Matrix = npt.NDArray[Any]

# Rows that are looked at again for a diagnosis.
_MOST_REFINED = 200

# Elements of a portion of the matrices that a fast cache holds.
_IN_CACHE = 1 << 15

# Infinities and nan in the matrices are findings; NumPy need not warn of them.
_quiet = np.errstate(all="ignore")


@dataclass(frozen=True)
class Block:
    """What the comparison of one output with one input gave."""

    verdict: str
    code: str | None
    message: str
    cause: str | None
    worst: WorstElement | None
    analytical: Matrix
    numerical: Matrix
    noise_bound: float


class _Comparison:
    """The matrices of one input with all wanted outputs, and how sure the numerical one is."""

    def __init__(
        self,
        differences: Differences,
        analytical: Matrix,
        rows: Matrix,
        columns: Matrix,
        centre: Matrix,
        epsilon: float,
    ) -> None:
        self.differences = differences
        self.analytical = analytical
        self.rows = rows
        self.columns = columns
        self.centre = centre
        self.numerical, self.noise = differences.table(rows, columns, centre)
        self.extra = 0.0
        if epsilon:
            largest = np.abs(self.numerical[np.isfinite(self.numerical)]).max(initial=0.0)
            self.extra = 8 * epsilon * float(largest)
        self.refined: dict[int, Refined] = {}
        self._kept: dict[tuple[str, int, int], Matrix] = {}  # until a numerical value changes

    def index(self, row: int) -> tuple[int, ...]:
        """Return where the element of the input lies that a row belongs to."""
        return self.differences.index(self.rows[row])

    def all_right(self, part: slice) -> tuple[int, int] | None:
        """Return the place of the largest gap if all are allowed and certain, otherwise None.

        This is what nearly every check ends with, so that it goes over the matrices once, in
        portions that stay in the cache.
        """
        p = self.differences.precision
        rows, width = self.analytical[:, part].shape
        if not rows or not width or p.doubt is not None:
            return None
        worst, place = -1.0, (0, 0)
        count = max(1, _IN_CACHE // width)
        with np.errstate(all="ignore"):
            for first in range(0, rows, count):
                chosen = slice(first, first + count)
                noise = self.noise[chosen, part]
                if not noise.max() <= p.atol:
                    return None
                numerical = self.numerical[chosen, part]
                gap = np.abs(self.analytical[chosen, part] - numerical)
                tolerance = np.abs(numerical)
                tolerance *= p.rtol
                tolerance += p.atol + self.extra
                tolerance += noise
                gap /= tolerance
                largest = int(gap.argmax())
                row, column = divmod(largest, width)
                excess = float(gap[row, column])
                if not excess < 1:  # nan is what `argmax` finds first
                    return None
                if excess > worst:
                    worst, place = excess, (first + row, column)
        return place

    def _keep(self, name: str, part: slice, compute: Callable[[slice], Matrix]) -> Matrix:
        key = (name, part.start or 0, -1 if part.stop is None else part.stop)
        found = self._kept.get(key)
        if found is None:
            found = self._kept[key] = compute(part)
        return found

    def tolerance(self, part: slice) -> Matrix:
        """Return the allowed gaps."""
        return self._keep("tolerance", part, self._tolerance)

    def gaps(self, part: slice) -> Matrix:
        """Return how far the values are apart."""
        return self._keep("gaps", part, self._gaps)

    def wrong(self, part: slice) -> npt.NDArray[np.bool_]:
        """Return where the gap is larger than allowed; nan is never right."""
        return self._keep("wrong", part, self._wrong)

    def vague(self, part: slice) -> npt.NDArray[np.bool_]:
        """Return where the numerical value is too uncertain to say anything."""
        return self._keep("vague", part, self._vague)

    @_quiet
    def _tolerance(self, part: slice) -> Matrix:
        p = self.differences.precision
        allowed = p.atol + p.rtol * np.abs(self.numerical[:, part])
        result: Matrix = allowed + self.noise[:, part] + self.extra
        return result

    @_quiet
    def _gaps(self, part: slice) -> Matrix:
        result: Matrix = np.abs(self.analytical[:, part] - self.numerical[:, part])
        return result

    @_quiet
    def excess(self, part: slice) -> Matrix:
        """Return the gaps relative to what is allowed."""
        ratio = self.gaps(part) / self.tolerance(part)
        result: Matrix = np.where(np.isnan(ratio), np.inf, ratio)
        return result

    @_quiet
    def _wrong(self, part: slice) -> npt.NDArray[np.bool_]:
        return ~(self.gaps(part) <= self.tolerance(part))

    @_quiet
    def _vague(self, part: slice) -> npt.NDArray[np.bool_]:
        p = self.differences.precision
        numerical, noise = np.abs(self.numerical[:, part]), self.noise[:, part]
        scale = numerical[np.isfinite(numerical)].max(initial=0.0)
        result: npt.NDArray[np.bool_] = ~(noise <= max(p.resolution * scale, p.atol))
        return result

    @_quiet
    def doubtful(self, part: slice) -> npt.NDArray[np.bool_]:
        """Return where a gap is allowed that could be a mistake as well as rounding."""
        p = self.differences.precision
        gaps = self.gaps(part)
        if p.doubt is None:
            return np.zeros(gaps.shape, np.bool_)
        numerical, noise = np.abs(self.numerical[:, part]), self.noise[:, part]
        scale = float(numerical[np.isfinite(numerical)].max(initial=0.0))
        allowed = p.doubt * numerical + max(p.epsilon * scale, self.extra / 8) + noise
        # Where all derivatives are zero, the size of the function is what there is.
        size = float(np.abs(self.centre).max(initial=0.0))
        result: npt.NDArray[np.bool_] = ~(gaps <= allowed)
        result |= ~(noise <= max(0.01 * scale, 2 * p.doubt * scale, p.epsilon * size / 4))
        return result

    def refine(self, part: slice) -> None:
        """Look closer at the rows that fail, worst first, until one failure is certain."""
        while True:
            wrong, vague = self.wrong(part), self.vague(part)
            failing = [int(r) for r in np.nonzero((wrong | vague).any(axis=1))[0]]
            todo = [r for r in failing if r not in self.refined]
            certain = self.certain(part)
            if not todo or any(certain[r].any() for r in failing if r in self.refined):
                return
            excess = self.excess(part)
            self._refine_row(max(todo, key=lambda r: float(excess[r].max())))

    def _refine_row(self, row: int) -> None:
        found = self.differences.refine(self.index(row), self.centre)
        self.refined[row] = found
        values, noise = found.values[self.columns], found.noise[self.columns]
        # The ladder may do worse than the usual step: the smaller error bound is taken, but
        # that of a single step knows nothing of curvature.
        better = ~(noise >= self.noise[row])
        if not self.differences.careful:
            better |= self.wrong(slice(None))[row]
        self.numerical[row] = np.where(better, values, self.numerical[row])
        self.noise[row] = np.where(better, noise, self.noise[row])
        self._kept.clear()

    def find_kinks(self, part: slice) -> None:
        """Look closer at all rows that fail, so that a diagnosis can leave kinks aside."""
        failing = np.nonzero(self.wrong(part).any(axis=1))[0]
        for row in failing[:_MOST_REFINED]:
            if int(row) not in self.refined:
                self._refine_row(int(row))

    @_quiet
    def certain(self, part: slice) -> npt.NDArray[np.bool_]:
        """Return where the analytical value is wrong beyond doubt."""
        kinks = self.kinks(part)
        analytical, finite = self.analytical[:, part], self.finite(part)
        # Where a slope is infinite, the formula gives 0 times infinity for the other outputs.
        excused = ~np.isfinite(analytical) & np.any(kinks | ~finite, axis=1, keepdims=True)
        nonsense = ~np.isfinite(analytical) & finite
        found = (self.wrong(part) & ~self.vague(part) & ~kinks) | nonsense
        result: npt.NDArray[np.bool_] = found & ~excused & self._has_value(part)
        return result

    def finite(self, part: slice) -> npt.NDArray[np.bool_]:
        """Return where there is a numerical value."""
        result: npt.NDArray[np.bool_] = np.isfinite(self.numerical[:, part]) & self._has_value(part)
        return result

    def _has_value(self, part: slice) -> npt.NDArray[np.bool_]:
        """Return where the function itself is finite: a pole has slopes on both sides."""
        return np.isfinite(self.centre[self.columns[part]])

    def kinks(self, part: slice) -> npt.NDArray[np.bool_]:
        found = np.zeros(self.analytical[:, part].shape, np.bool_)
        for row, refined in self.refined.items():
            found[row] = refined.kink[self.columns][part]
        return found


def compare(
    differences: Differences,
    analytical: Matrix,
    rows: Matrix,
    columns: Matrix,
    centre: Matrix,
    *,
    blocks: Sequence[tuple[int, slice, Matrix]],
    layout: Layout,
    epsilon: float,
    again: Callable[[], list[Block] | None] | None,
) -> Iterator[Block]:
    """Compare one input's analytical matrix with differences, output by output.

    Parameters
    ----------
    differences
        Takes the differences.
    analytical
        Elements of the input × elements of the vector of all outputs.
    rows, columns
        Which elements these are.
    centre
        The function at the point.
    blocks
        Per output its number in the layout, its part of the matrix, and its elements looked at.
    layout
        Says which element of an output a column is.
    epsilon
        Rounding error of the analytical values where it is larger than that of the numerical ones.
    again
        Repeats the comparison at a point nearby, for points where there is no derivative.
    """
    comparison = _Comparison(differences, analytical, rows, columns, centre, epsilon)
    nearby: list[Block] | None = None
    tried = False
    for number, part, elements in blocks:
        place = comparison.all_right(part)
        if place is not None:
            worst = _worst(comparison, number, part, elements, layout, place)
            yield Block(
                words.OK, None, "", None, worst,
                comparison.analytical[:, part], comparison.numerical[:, part],
                float(comparison.noise[:, part].max()),
            )  # fmt: skip
            continue
        comparison.refine(part)
        verdict, code = _judge(comparison, part)
        message = _MESSAGES.get(code or "", "")
        if verdict == words.NOT_DIFFERENTIABLE and again is not None:
            if not tried:
                nearby, tried = again(), True
            if nearby is not None and nearby[number].verdict == words.WRONG:
                there = nearby[number]
                yield Block(
                    there.verdict, there.code,
                    "The point itself has no derivative, so one nearby was tried.",
                    there.cause, there.worst, there.analytical, there.numerical,
                    there.noise_bound,
                )  # fmt: skip
                continue
            if nearby is not None and nearby[number].verdict == words.OK:
                message += " At a point nearby the gradient is right."
        yield _block(comparison, number, part, elements, layout, verdict, code, message)


_MESSAGES = {
    "not_differentiable": (
        "The function is not differentiable at this point: the slopes to the left and to the "
        "right differ, or grow without bound as the step shrinks: a corner, a jump, a vertical "
        "slope or an edge of the domain."
    ),
    "not_finite": (
        "The function is not finite around this point, so there is nothing to compare with. "
        "Choose another point."
    ),
    "precision": (
        "The precision is too low to tell: rounding of the function alone could explain the gap. "
        "Check with float64 inputs, or with smaller values."
    ),
}


@_quiet
def _judge(comparison: _Comparison, part: slice) -> tuple[str, str | None]:
    """Return the verdict on one output and the code of what prevented a better one."""
    wrong, vague = comparison.wrong(part), comparison.vague(part)
    if not (wrong | vague).any():
        if comparison.doubtful(part).any():
            return words.INCONCLUSIVE, "precision"
        return words.OK, None
    kinks = comparison.kinks(part)
    finite = comparison.finite(part)
    if comparison.certain(part).any():
        return words.WRONG, None
    if ((wrong | vague) & kinks).any():
        return words.NOT_DIFFERENTIABLE, "not_differentiable"
    if not finite.all():
        return words.INCONCLUSIVE, "not_finite"
    return words.INCONCLUSIVE, "precision"


def _worst(
    comparison: _Comparison,
    number: int,
    part: slice,
    elements: Matrix,
    layout: Layout,
    place: tuple[int, int],
    slopes: tuple[float, float] | None = None,
) -> WorstElement:
    """Return the facts about one element of the matrix of an output."""
    row, column = place
    index, unit = layout.place(number, int(elements[column]))
    analytical = comparison.analytical[:, part][row, column].item()
    numerical = comparison.numerical[:, part][row, column].item()
    p = comparison.differences.precision
    noise = float(comparison.noise[:, part][row, column])
    return WorstElement(
        comparison.index(row),
        index,
        analytical,
        numerical,
        abs(analytical - numerical),
        p.atol + p.rtol * abs(numerical) + noise + comparison.extra,
        ("imag" if unit == 1j else "real") if layout.specs[number].dtype.is_complex else None,
        slopes,
    )


@_quiet
def _block(
    comparison: _Comparison,
    number: int,
    part: slice,
    elements: Matrix,
    layout: Layout,
    verdict: str,
    code: str | None,
    message: str,
) -> Block:
    analytical, numerical = comparison.analytical[:, part], comparison.numerical[:, part]
    noise = comparison.noise[:, part]
    bound = float(noise.max(initial=0.0))
    if analytical.size == 0:
        return Block(verdict, code, message, None, None, analytical, numerical, bound)
    excess = comparison.excess(part)
    if verdict == words.NOT_DIFFERENTIABLE:
        excess = np.where(comparison.kinks(part), excess, -1)
    elif verdict == words.WRONG:
        excess = np.where(comparison.kinks(part) | comparison.vague(part), excess * 1e-9, excess)
    row, column = (int(i) for i in np.unravel_index(int(np.argmax(excess)), excess.shape))
    slopes = None
    if verdict == words.NOT_DIFFERENTIABLE:
        refined = comparison.refined[row]
        place = comparison.columns[part][column]
        slopes = (float(refined.left[place]), float(refined.right[place]))
    worst = _worst(comparison, number, part, elements, layout, (row, column), slopes)
    cause = None
    if verdict == words.WRONG:
        cause = _cause(comparison, part, layout.specs[number].shape)
    return Block(verdict, code, message, cause, worst, analytical, numerical, bound)


def _cause(comparison: _Comparison, part: slice, output_shape: tuple[int, ...]) -> str | None:
    """Return the likely mistake, from the elements at which there is a derivative."""
    comparison.find_kinks(part)
    analytical, numerical = comparison.analytical[:, part], comparison.numerical[:, part]
    kinks = comparison.kinks(part)
    if kinks.any():
        analytical, numerical = np.where(kinks, 0, analytical), np.where(kinks, 0, numerical)
    array = comparison.differences.array
    cause = likely_cause(
        analytical,
        numerical,
        comparison.tolerance(part),
        input_shape=array.shape,
        output_shape=output_shape,
        values=array.reshape(-1)[comparison.rows],
    )
    if cause is None or not kinks.any():
        return cause
    count = int(kinks.any(axis=1).sum())
    return f"{cause}; at {count} elements of the input the function has no derivative here"
