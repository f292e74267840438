"""Numerical derivatives with error bounds.

A function of tensors is seen as a map from real vectors to real vectors: `Layout` says how the
outputs lie in one vector, `Evaluator` computes it, `Differences` takes its derivatives for one
element of an input at a time by central differences

    D(h) = (f(x + h) - f(x - h)) / 2h = f'(x) + O(h**2) + O(noise / h).

Two things limit D: the curvature for large steps and the rounding of f for small ones. The bound
on the second is known from the type of the numbers; a ladder of steps shows both.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from typing import Any

import numpy as np
import numpy.typing as npt

from tensorplay import _dtype
from tensorplay._tensor import Spec, Tensor
from tensorplay.autograd import grad_mode

__all__ = [
    "Differences",
    "Evaluator",
    "Layout",
    "Precision",
    "Refined",
    "machine_epsilon",
    "precision_for",
    "random_direction",
    "tensors_in",
]

Vector = npt.NDArray[Any]

HALF = 1e-4  # types with a larger rounding error have so few digits that two steps say little


@dataclass(frozen=True)
class Precision:
    """How differences are taken and compared in numbers of one type.

    Parameters
    ----------
    epsilon
        Relative rounding error of the numbers.
    step
        Step of the differences for elements up to 1 in size.
    atol, rtol
        Allowed absolute and relative gap.
    resolution
        Where the error bound exceeds this share of the largest derivative, nothing can be said.
    doubt
        A gap that is allowed, but above this share of the derivative, may be a mistake or
        rounding: nothing can be said either. None: all that is allowed is right.
    """

    epsilon: float
    step: float
    atol: float
    rtol: float
    resolution: float
    doubt: float | None = None


@lru_cache(maxsize=16)
def machine_epsilon(d: _dtype.dtype) -> float:
    """Return the distance from 1 to the next number of type `d`, real or complex."""
    return float(_dtype.finfo(d).eps)


def precision_for(epsilon: float) -> Precision:
    """Return steps and tolerances for numbers with relative rounding error `epsilon`.

    In float64 they are those of the field. In narrower types the step balances curvature against
    rounding, which is the cube root of epsilon up to a factor, and the tolerances stay above the
    error that this leaves in derivatives of the size of the function.
    """
    if epsilon < 1e-12:
        return Precision(epsilon, 1e-6, 1e-5, 1e-3, 0.01)
    root = epsilon ** (1 / 3)
    # In half precision 200 roundings would be as large as the derivatives themselves.
    atol = min(200 * epsilon, 1e-4 + 4 * epsilon)
    rtol = max(3e-3, 20 * epsilon)
    # Twenty roundings are more than a small mistake: what lies between is left open. A formula of
    # a few steps has a few roundings itself.
    doubt = max(0.004, 1.25 * epsilon) if epsilon >= HALF else None
    return Precision(epsilon, 2 * root, atol, rtol, max(0.01, 20 * epsilon), doubt)


def tensors_in(result: Any) -> list[Tensor]:
    """Return the tensors that a function returned: one, or those in a sequence or mapping."""
    if isinstance(result, Tensor):
        return [result]
    if isinstance(result, Mapping):
        result = tuple(result.values())
    if isinstance(result, (list, tuple)):
        return [tensor for member in result for tensor in tensors_in(member)]
    return []


@lru_cache(maxsize=64)
def random_direction(seed: int, size: int, *, is_complex: bool) -> Vector:
    """Return a random vector of length 1; making a generator takes as long as a small function."""
    rng = np.random.default_rng(seed)
    vector = rng.uniform(0.5, 1.5, size)
    if is_complex:
        vector = vector + 1j * rng.uniform(0.5, 1.5, size)
    vector = vector / max(float(np.linalg.norm(vector)), 1e-30)
    vector.flags.writeable = False
    return vector


class Layout:
    """Where the elements of several outputs lie in one real vector.

    Output by output; of a complex one first all real parts, then all imaginary parts.

    Parameters
    ----------
    numbers
        Which of the tensors that the function returns are looked at.
    specs
        Their shapes and types.
    """

    def __init__(self, numbers: Sequence[int], specs: Sequence[Spec]) -> None:
        self.numbers = tuple(numbers)
        self.specs = tuple(specs)
        sizes = [spec.numel * (2 if spec.dtype.is_complex else 1) for spec in specs]
        self.starts = [0, *accumulate(sizes)]
        self.size: int = self.starts[-1]

    def columns(self, output: int) -> slice:
        """Return the part of the vector that holds `output`."""
        return slice(self.starts[output], self.starts[output + 1])

    def place(self, output: int, column: int) -> tuple[tuple[int, ...], complex]:
        """Return index and unit (1 or 1j) of an element, counted from the start of its output."""
        spec = self.specs[output]
        part, flat = divmod(column, spec.numel)
        index = tuple(int(i) for i in np.unravel_index(flat, spec.shape))
        return index, 1j if part else 1

    def flatten(self, arrays: Sequence[Vector]) -> Vector:
        """Return the arrays, one per output, as one vector of float64."""
        if len(arrays) == 1 and not self.specs[0].dtype.is_complex:  # nearly always
            return np.array(arrays[0], np.float64, order="C").reshape(-1)
        parts: list[Vector] = [np.zeros(0)]  # there may be no outputs
        for array, spec in zip(arrays, self.specs, strict=True):
            flat = array.ravel()
            parts.extend([flat.real, flat.imag] if spec.dtype.is_complex else [flat])
        # The result must not share memory with an input, which is about to change.
        return np.concatenate(parts, dtype=np.float64, casting="unsafe")


class Evaluator:
    """Computes the outputs of a function at what its inputs hold at the moment.

    Nothing is recorded, which is faster, unless the function asks for gradients itself.
    """

    def __init__(self, call: Callable[[], Any], layout: Layout) -> None:
        self.call = call
        self.layout = layout
        self.records: bool | None = None  # None: not known yet

    def _run(self) -> Any:
        if self.records:
            return self.call()
        mode = grad_mode.state
        before, mode.enabled = mode.enabled, False
        try:
            result = self.call()
        except Exception:
            # A function that differentiates something inside fails here, and only here.
            if self.records is False:
                raise
            self.records = True
        else:
            self.records = False
            return result
        finally:
            mode.enabled = before
        return self.call()

    def __call__(self) -> Vector:
        """Return the outputs as one vector.

        Raises
        ------
        AssertionError
            The function returned something of another shape or type than the first time.
        """
        outputs = tensors_in(self._run())
        found: list[Vector] = []
        for number, spec in zip(self.layout.numbers, self.layout.specs, strict=True):
            if number >= len(outputs) or outputs[number]._array.shape != spec.shape:
                got = "nothing" if number >= len(outputs) else str(list(outputs[number].shape))
                message = (
                    "gradcheck expects the function to return outputs with the same shape when an "
                    f"input is changed a little: at output {number} expected {list(spec.shape)}, "
                    f"got {got}."
                )
                raise AssertionError(message)
            output = outputs[number]
            if output.dtype is not spec.dtype:
                message = (
                    "gradcheck expects the function to return outputs with the same dtype when an "
                    f"input is changed a little: at output {number} expected {spec.dtype!r}, got "
                    f"{output.dtype!r}."
                )
                raise AssertionError(message)
            found.append(output._array)
        return self.layout.flatten(found)


@dataclass(frozen=True)
class Refined:
    """Derivatives for one element of an input, from a ladder of steps.

    Each is a vector with one entry per element of the outputs; `kink` tells where the slopes to
    the left and to the right disagree however small the step.
    """

    values: Vector
    noise: Vector
    kink: npt.NDArray[np.bool_]
    left: Vector
    right: Vector


def _at_edge(
    centre: Vector, left: Sequence[Vector], right: Sequence[Vector]
) -> npt.NDArray[np.bool_]:
    """Tell where the function has values at the point and on one side of it only."""
    before, after = np.isfinite(np.stack(left)), np.isfinite(np.stack(right))
    one_sided = (before.all(axis=0) & ~after.any(axis=0)) | (
        after.all(axis=0) & ~before.any(axis=0)
    )
    result: npt.NDArray[np.bool_] = np.isfinite(centre) & one_sided
    return result


# Steps of the ladder relative to the usual one.
_LADDER = tuple(4.0**k for k in range(-3, 5))
_USUAL = 3  # position of the usual step
# How far from the point polynomials are fitted, and to how many values.
_WIDTHS = (0.5, 0.25, 0.1)
_POINTS = 24
_ROUNDINGS = 8  # by which sums in another order may differ
_KINK_SPAN = 2  # rungs between the steps whose one-sided slopes are compared


class Differences:
    """Takes differences of a function for the elements of one input.

    Parameters
    ----------
    evaluate
        Computes the function.
    array
        Memory of the input. It is changed while a difference is taken, and restored.
    precision
        Type of the numbers, and the step.
    scaled
        Whether the step grows with elements larger than 1.
    """

    def __init__(
        self, evaluate: Callable[[], Vector], array: Vector, precision: Precision, *, scaled: bool
    ) -> None:
        self.evaluate = evaluate
        self.array = array
        self.precision = precision
        self.scaled = scaled
        self.is_complex = array.dtype.kind == "c"
        # Computes the function for several values of the input, one per row, if that is possible.
        self.many: Callable[[Vector], Vector] | None = None
        self.together = 1  # for how many at most
        # In float64 the usual step leaves nothing to wish for; elsewhere a second one shows the
        # error.
        self.careful = precision.epsilon > 1e-12

    def _step(self, value: complex) -> float:
        return self.precision.step * (max(1.0, abs(value)) if self.scaled else 1.0)

    def _at(self, index: tuple[int, ...], old: complex, change: complex) -> tuple[Vector, float]:
        """Return the function with one element changed, and the change that rounding left."""
        saved = self.array[index].copy()
        try:
            self.array[index] = old + change
            actual = abs(complex(self.array[index]) - old)
            return self.evaluate(), actual
        finally:
            self.array[index] = saved

    def _central(
        self, index: tuple[int, ...], old: complex, h: float, unit: complex
    ) -> tuple[Vector, Vector]:
        """Return D(h) in the direction `unit` and the bound on its rounding error."""
        above, up = self._at(index, old, h * unit)
        below, down = self._at(index, old, -h * unit)
        width = up + down
        if width == 0.0:
            return np.full_like(above, math.nan), np.full_like(above, math.inf)
        noise = self.precision.epsilon * np.maximum(np.abs(above), np.abs(below)) / width
        return (above - below) / width, noise * 2

    def index(self, row: int) -> tuple[int, ...]:
        """Return where the element number `row` of the input lies."""
        return tuple(map(int, np.unravel_index(int(row), self.array.shape)))

    def table(self, rows: Vector, columns: Vector, centre: Vector) -> tuple[Vector, Vector]:
        """Return the derivatives for several elements of the input, and their error bounds.

        Parameters
        ----------
        rows
            Numbers of the elements: one row of the result each.
        columns
            Which elements of the outputs, in ascending order.
        centre
            The function at the unchanged input.
        """
        kind = np.complex128 if self.is_complex else np.float64
        values: Vector = np.empty((len(rows), len(columns)), kind)
        noise = np.empty(values.shape)
        done = self._by_batches(rows, columns, centre, values, noise)
        for position in range(done, len(rows)):
            one, bound = self.row(self.index(rows[position]))
            values[position], noise[position] = one[columns], bound[columns]
        return values, noise

    def _by_batches(
        self, rows: Vector, columns: Vector, centre: Vector, values: Vector, noise: Vector
    ) -> int:
        """Fill rows of `values` and `noise` by runs for several points; return how many."""
        if self.many is None or self.careful or self.together < 4:
            return 0
        count = (self.together - 1) // 2
        for first in range(0, len(rows), count):
            chosen = rows[first : first + count]
            place = slice(first, first + len(chosen))
            try:
                with np.errstate(all="ignore"):
                    good = self._batch(chosen, columns, centre, 1, values[place], noise[place])
                    if good and self.is_complex:
                        other = np.empty(values[place].shape), np.empty(values[place].shape)
                        good = self._batch(chosen, columns, centre, 1j, *other)
                        values[place] += 1j * other[0]
                        noise[place] += other[1]
            except Exception:  # noqa: BLE001 - the function reads values, or has limits of its own
                good = False
            if not good:
                self.many = None  # point by point it runs as before, and raises what it raises
                return first
        return len(rows)

    def _batch(
        self,
        chosen: Vector,
        columns: Vector,
        centre: Vector,
        unit: complex,
        values: Vector,
        noise: Vector,
    ) -> bool:
        """Write D(h) in the direction `unit` for some elements, from one run of the function.

        The unchanged input is among the points. Where the function gives something else for it
        than when it is run alone, nothing is written, and the result is False.
        """
        if self.many is None:  # not reached: asked before
            raise RuntimeError("[gradcheck] the function does not run on batches.")
        count = len(chosen)
        row = np.arange(count)
        points = np.empty((2 * count + 1, self.array.size), self.array.dtype)
        points[...] = self.array.reshape(-1)
        old = points[row, chosen]
        size = np.maximum(1.0, np.abs(old)) if self.scaled else 1.0
        step = unit * self.precision.step * size
        up, down = old + step, old - step
        points[row, chosen] = up
        points[count + row, chosen] = down
        width = np.abs(up - old) + np.abs(down - old)
        found = self.many(points.reshape((2 * count + 1, *self.array.shape)))
        if not self._same(found[-1], centre):
            return False
        if len(columns) != found.shape[1]:
            found = found[:, columns]
        above, below = found[:count], found[count:-1]
        np.subtract(above, below, out=values)
        values /= width[:, None]
        np.abs(found, out=found)
        np.maximum(above, below, out=noise)
        noise *= (2 * self.precision.epsilon / width)[:, None]
        return True

    def _same(self, one: Vector, other: Vector) -> bool:
        """Tell whether two results agree up to the order of sums."""
        if np.array_equal(one, other):
            return True
        allowed = _ROUNDINGS * self.precision.epsilon * np.abs(other).max(initial=0.0)
        return bool((~(np.abs(one - other) > allowed)).all())

    def row(self, index: tuple[int, ...]) -> tuple[Vector, Vector]:
        """Return the derivatives for one element of the input and their error bounds.

        For a complex input the derivative along the imaginary axis is the imaginary part.
        """
        old = self._value(index)
        h = self._step(old)
        with np.errstate(all="ignore"):
            values, noise = self._row(index, old, h, 1)
            if self.is_complex:
                imaginary, more = self._row(index, old, h, 1j)
                values, noise = values + 1j * imaginary, noise + more
        return values, noise

    def _row(
        self, index: tuple[int, ...], old: complex, h: float, unit: complex
    ) -> tuple[Vector, Vector]:
        if self.precision.epsilon >= HALF:
            return self._fitted(index, old, unit)
        values, noise = self._central(index, old, h, unit)
        if self.careful:
            half, half_noise = self._central(index, old, h / 2, unit)
            noise = np.maximum(noise, half_noise) + np.abs(values - half)
        return values, noise

    def _fitted(self, index: tuple[int, ...], old: complex, unit: complex) -> tuple[Vector, Vector]:
        """Return the slope of polynomials fitted to many values around the point.

        Their rounding errors are independent, so that many points see what two cannot. Two
        degrees and several widths show whether the function is a polynomial there.
        """
        best: tuple[Vector, Vector] | None = None
        for width in _WIDTHS:
            reach = width * max(1.0, abs(old))
            steps: list[float] = []
            found: list[Vector] = []
            for share in np.linspace(-1, 1, _POINTS):
                change = share * reach * unit
                value, actual = self._at(index, old, change)
                steps.append(math.copysign(actual, share))
                found.append(value)
            values, noise = self._fit(np.array(steps) / reach, np.stack(found))
            values, noise = values / reach, noise / reach
            if best is None:
                best = values, noise
            else:
                better = noise < best[1]
                best = np.where(better, values, best[0]), np.where(better, noise, best[1])
        if best is None:  # not reached: there are widths
            raise RuntimeError("[gradcheck] no width to fit a function over.")
        return best

    def _fit(self, steps: Vector, found: Vector) -> tuple[Vector, Vector]:
        """Return slope at 0 and error bound of polynomials through columns of values."""
        slopes, bounds = [], []
        for degree in (3, 5):
            powers = np.vander(steps, degree + 1, increasing=True)
            inverse = np.linalg.pinv(powers)
            fitted = inverse @ found
            left = found - powers @ fitted
            spread = np.sqrt((left**2).sum(0) / max(1, len(steps) - degree - 1))
            # Rounding to the nearest number is off by epsilon / sqrt(48) on average, to any by
            # more; exact values have none, which cannot be known.
            size = np.abs(found).max(axis=0)
            spread = np.maximum(spread, self.precision.epsilon * size / 6)
            slopes.append(fitted[1])
            bounds.append(3 * spread * float(np.linalg.norm(inverse[1])))
        noise = bounds[0] + np.abs(slopes[0] - slopes[1])
        noise = np.where(np.isfinite(noise), noise, math.inf)
        return slopes[0], noise

    def directional(self, direction: Vector) -> tuple[Vector, Vector]:
        """Return the derivative in `direction`, shaped like the input, and its error bound."""
        saved = self.array.copy()
        largest = float(np.abs(saved).max(initial=0.0))
        # A unit vector spread over many elements moves each of them little.
        h = self._step(largest) * max(1.0, saved.size**0.5)
        try:
            with np.errstate(all="ignore"):
                step = h * direction
                self.array[...] = (saved + step).astype(saved.dtype, copy=False)
                above = self.evaluate()
                self.array[...] = (saved - step).astype(saved.dtype, copy=False)
                below = self.evaluate()
        finally:
            self.array[...] = saved
        noise = self.precision.epsilon * np.maximum(np.abs(above), np.abs(below)) / h
        return (above - below) / (2 * h), noise

    def refine(self, index: tuple[int, ...], centre: Vector) -> Refined:
        """Return the derivatives for one element from a ladder of steps.

        Parameters
        ----------
        index
            Which element.
        centre
            The function at the unchanged input.
        """
        with np.errstate(all="ignore"):
            real = self._refine(index, centre, 1)
            if not self.is_complex:
                return real
            imag = self._refine(index, centre, 1j)
        use = imag.kink & ~real.kink
        return Refined(
            real.values + 1j * imag.values,
            real.noise + imag.noise,
            real.kink | imag.kink,
            np.where(use, imag.left, real.left),
            np.where(use, imag.right, real.right),
        )

    def _refine(self, index: tuple[int, ...], centre: Vector, unit: complex) -> Refined:
        old = self._value(index)
        size = np.abs(centre)
        slopes: list[Vector] = []
        left: list[Vector] = []
        right: list[Vector] = []
        widths: list[float] = []
        for factor in _LADDER:
            h = self._step(old) * factor
            if factor > 1 and h > 2 * max(1.0, abs(old)):
                break  # a wave looks flat to steps that are much longer
            above, up = self._at(index, old, h * unit)
            below, down = self._at(index, old, -h * unit)
            if up == 0.0 or down == 0.0:
                continue
            slopes.append((above - below) / (up + down))
            left.append((centre - below) / down)
            right.append((above - centre) / up)
            widths.append(up + down)
            size = np.maximum(size, np.maximum(np.abs(above), np.abs(below)))
        if len(slopes) <= _KINK_SPAN:
            unknown = np.full_like(centre, math.nan)
            nowhere = np.zeros(centre.shape, np.bool_)
            return Refined(unknown, np.full_like(centre, math.inf), nowhere, unknown, unknown)
        table, width = np.stack(slopes), np.array(widths)[:, None]
        # A function that is coarser than its type (a kernel that computes in float32 inside) shows
        # by steps at the small end: what two rungs further up does not explain is noise.
        rounding = 2 * self.precision.epsilon * size
        coarse = np.abs(table[:-_KINK_SPAN] - table[_KINK_SPAN:]) * width[:-_KINK_SPAN]
        floor = np.maximum(rounding, np.max(coarse[:_USUAL], axis=0))
        errors = np.abs(np.diff(table, axis=0)) + floor / width[1:]
        errors = np.where(np.isnan(errors), math.inf, errors)
        best = np.argmin(errors, axis=0)[None, :]
        values = np.take_along_axis(table[1:], best, 0)[0]
        noise = np.take_along_axis(errors, best, 0)[0]
        # For a smooth function the two slopes differ by h f'', which shrinks with the step.
        rung = min(_USUAL, len(slopes) - 1 - _KINK_SPAN)
        near = np.abs(right[rung] - left[rung])
        far = np.abs(right[rung + _KINK_SPAN] - left[rung + _KINK_SPAN])
        visible = 8 * floor / width[rung] + self.precision.rtol * np.abs(values)
        kink = (near > far / 2) & (near > visible + self.precision.atol)
        kink |= self._unbounded(table, width, rounding) | _at_edge(centre, left, right)
        return Refined(values, noise, kink, left[rung], right[rung])

    @staticmethod
    def _unbounded(table: Vector, width: Vector, rounding: Vector) -> npt.NDArray[np.bool_]:
        """Tell where the slope grows with every smaller step: at a jump or a vertical slope.

        A function that is coarser than its type shows that too, but at the small end alone.
        """
        change = np.abs(table) * width
        size = np.abs(table)
        grows = np.all(size[:-1] >= 1.5 * size[1:], axis=0)
        result: npt.NDArray[np.bool_] = grows & (change.min(axis=0) > 100 * rounding)
        return result

    def _value(self, index: tuple[int, ...]) -> complex:
        value = self.array[index]
        return complex(value) if self.is_complex else float(value)
