"""Guesses at the mistake behind a wrong Jacobian matrix, from patterns that are plain."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["likely_cause"]

Matrix = npt.NDArray[Any]


def likely_cause(
    analytical: Matrix,
    numerical: Matrix,
    tolerance: Matrix,
    *,
    input_shape: tuple[int, ...],
    output_shape: tuple[int, ...],
    values: Matrix | None = None,
) -> str | None:
    """Return the likely mistake in words, None if no pattern fits.

    Parameters
    ----------
    analytical, numerical
        Jacobian matrices, elements of the input × elements of the output.
    tolerance
        Allowed gap per element.
    input_shape, output_shape
        Shapes of the tensors; ignored where they do not match the matrices (sampled elements, or
        complex outputs).
    values
        The elements of the input, one per row.
    """
    if not (np.isfinite(analytical).all() and np.isfinite(numerical).all()):
        bad = int(np.count_nonzero(~np.isfinite(analytical)))
        return f"the formula gives nan or infinity at {bad} elements" if bad else None

    def same(left: Matrix, right: Matrix) -> bool:
        return bool((np.abs(left - right) <= tolerance).all())

    rows, columns = numerical.shape
    size = math.prod(output_shape)
    # A complex output has two columns per element: all real parts, then all imaginary parts.
    parts = columns // size if size and columns in {size, 2 * size} else 1
    whole = rows == math.prod(input_shape) and columns == parts * size
    zero = np.zeros_like(numerical)
    if same(analytical, zero):
        return "the gradient is zero where it should not be: a detach, or a term never computed"
    if same(numerical, zero):
        return "the gradient should be zero: the output does not depend on this input"
    if same(analytical, -numerical):
        return "the sign is wrong"
    if np.iscomplexobj(numerical) and _is_conjugate(analytical, numerical, same, parts):
        return (
            "the gradient is the complex conjugate of the right one: a conj() is missing or extra"
        )
    factor = _constant_factor(analytical, numerical)
    if factor is not None and same(analytical, factor * numerical):
        return _factor_words(factor, input_shape, output_shape)
    if whole:
        structural = _permuted(analytical, numerical, same, input_shape, output_shape, parts)
        if structural is not None:
            return structural
    halves = np.split(analytical, parts, axis=1)
    if (
        whole
        and size > 1
        and same(analytical, np.hstack([np.repeat(h[:, :1], size, 1) for h in halves]))
    ):
        return "the incoming gradient is ignored: every element of the output gets the same"
    wrong = np.abs(analytical - numerical) > tolerance
    if whole:
        unsummed = _unsummed(analytical, numerical, wrong, tolerance, output_shape)
        if unsummed is None:
            unsummed = _repeated(analytical, numerical, wrong, tolerance, output_shape)
        if unsummed is not None:
            return unsummed
    return _by_row(analytical, numerical, tolerance, wrong, values)


def _is_conjugate(analytical: Matrix, numerical: Matrix, same: Any, parts: int) -> bool:
    """Recognise m where conj(m) is right, as the multiplier of an incoming gradient 1, then 1j."""
    if parts == 1:
        return bool(same(analytical, numerical.conj()))
    expected = numerical.conj()
    expected[:, expected.shape[1] // 2 :] *= -1
    return bool(same(analytical, expected))


def _constant_factor(analytical: Matrix, numerical: Matrix) -> complex | None:
    scale = np.vdot(numerical, numerical).real
    if scale == 0:
        return None
    factor = complex(np.vdot(numerical, analytical) / scale)
    return factor or None


def _factor_words(
    factor: complex, input_shape: tuple[int, ...], output_shape: tuple[int, ...]
) -> str:
    if abs(factor.imag) > 1e-3 * abs(factor):
        return (
            f"off by a constant factor: analytical is ({factor.real:.3g}{factor.imag:+.3g}j) x "
            "numerical"
        )
    value = factor.real
    shown = f"{value:.3g}" if abs(value) < 0.1 else f"{value:.2f}"
    for digits in range(3, 17):  # near 1 it takes more to see a difference
        if abs(float(shown)) != 1:
            break
        shown = f"{value:.{digits}f}"
    text = f"off by a constant factor: analytical is {shown} x numerical"
    count, total = math.prod(input_shape), math.prod(output_shape)
    for size, what in ((count, "elements of the input"), (total, "elements of the output")):
        if size > 2 and math.isclose(value, 1 / size, rel_tol=1e-2):
            return f"{text}: divided by the number of {what} ({size}), a mean where a sum is right"
        if size > 2 and math.isclose(value, size, rel_tol=1e-2):
            return f"{text}: multiplied by the number of {what} ({size})"
    return text


def _permuted(
    analytical: Matrix,
    numerical: Matrix,
    same: Any,
    input_shape: tuple[int, ...],
    output_shape: tuple[int, ...],
    parts: int,
) -> str | None:
    """Recognise elements that are right but in each other's place."""
    rows, columns = numerical.shape
    if len(input_shape) >= 2:
        *lead, a, b = input_shape
        # What stands at (i, j) belongs to (j, i); for a != b the memory was read in that order.
        moved = analytical.reshape(*lead, b, a, columns).swapaxes(-2, -3)
        if a > 1 and b > 1 and same(moved.reshape(rows, columns), numerical):
            return "transposed: the last two dimensions of the gradient are swapped"
    if len(output_shape) >= 2:
        *lead, a, b = output_shape
        moved = analytical.reshape(rows, parts, *lead, b, a).swapaxes(-1, -2)
        if a > 1 and b > 1 and same(moved.reshape(rows, columns), numerical):
            return "transposed: the incoming gradient is used with its last two dimensions swapped"
    if rows > 1 and same(analytical[::-1], numerical):
        return "the elements of the gradient are in reverse order"
    return None


def _unsummed(
    analytical: Matrix,
    numerical: Matrix,
    wrong: npt.NDArray[np.bool_],
    tolerance: Matrix,
    output_shape: tuple[int, ...],
) -> str | None:
    """Recognise a sum over a dimension of the output of which only some indices arrived."""
    dropped = wrong & (np.abs(analytical) <= tolerance)
    if not (dropped == wrong).all():
        return None
    lost = np.unique(np.nonzero(dropped)[1])
    kept = np.unique(np.nonzero(~wrong & (np.abs(numerical) > tolerance))[1])
    if len(lost) == 0 or len(kept) == 0:
        return None
    size = math.prod(output_shape)  # the imaginary parts come after the real ones
    lost_at = np.unravel_index(lost % size, output_shape)
    kept_at = np.unravel_index(kept % size, output_shape)
    for dim, size in enumerate(output_shape):
        arrived = np.unique(kept_at[dim])
        if size > 1 and len(arrived) < size and not np.isin(lost_at[dim], arrived).any():
            which = ", ".join(map(str, arrived[:4]))
            return (
                f"the broadcast dimension {dim} of the output was not summed: only index {which} "
                "of it arrives"
            )
    return None


def _repeated(
    analytical: Matrix,
    numerical: Matrix,
    wrong: npt.NDArray[np.bool_],
    tolerance: Matrix,
    output_shape: tuple[int, ...],
) -> str | None:
    """Recognise a sum over a dimension of the output in which some indices count several times."""
    factor = _constant_factor(analytical[wrong], numerical[wrong])
    if factor is None or abs(factor - round(factor.real)) > 0.01 or round(factor.real) < 2:
        return None
    times = round(factor.real)
    if (np.abs(analytical - times * numerical) > times * tolerance)[wrong].any():
        return None
    size = math.prod(output_shape)
    matters = np.abs(numerical) > tolerance
    many_at = np.unravel_index(np.unique(np.nonzero(wrong)[1]) % size, output_shape)
    once_at = np.unravel_index(np.unique(np.nonzero(~wrong & matters)[1]) % size, output_shape)
    for dim, length in enumerate(output_shape):
        repeated = np.unique(many_at[dim])
        if length > 1 and len(once_at[dim]) and not np.isin(once_at[dim], repeated).any():
            which = ", ".join(map(str, repeated[:4]))
            return (
                f"index {which} of dimension {dim} of the output is counted {times} times in the "
                "sum over it"
            )
    return None


def _by_row(
    analytical: Matrix,
    numerical: Matrix,
    tolerance: Matrix,
    wrong: npt.NDArray[np.bool_],
    values: Matrix | None,
) -> str | None:
    """Recognise mistakes that depend on the element of the input."""
    rows = np.nonzero(wrong.any(axis=1))[0]
    scale = (np.abs(numerical) ** 2).sum(axis=1)
    with np.errstate(all="ignore"):
        factors = (numerical.conj() * analytical).sum(axis=1) / scale
    used = scale > 0
    fits = np.abs(analytical - factors[:, None] * numerical) <= tolerance
    if used.any() and fits[used].all() and len(rows) > 1:
        if values is not None:
            candidates = [(values, "x"), (_inverse(values), "1 / x"), (values**2, "x ** 2")]
            candidates.append((values.conj(), "conj(x)"))
            for other, words in candidates:
                if np.allclose(factors[used], other[used], rtol=1e-2, atol=1e-6):
                    return f"one factor too many or too few: analytical is {words} x numerical"
        low, high = float(np.min(factors[used].real)), float(np.max(factors[used].real))
        if low < -0.01 and high > 0.01 and not np.iscomplexobj(factors):
            return (
                "a term is missing or wrong: analytical is numerical times a number between "
                f"{low:.3g} and {high:.3g}, which changes its sign, as a factor seldom does"
            )
        if len(rows) == used.sum():
            return (
                "a factor of the chain rule is missing or wrong: analytical is numerical times a "
                f"number between {low:.3g} and {high:.3g} that depends on the element"
            )
    zeroed = wrong & (np.abs(analytical) <= tolerance)
    if (zeroed == wrong).all():
        count = int(wrong.sum())
        return f"a term is missing: the gradient is zero at {count} of {wrong.size} elements"
    extra = wrong & (np.abs(numerical) <= tolerance)
    if (extra == wrong).all():
        return f"a term too many: the gradient should be zero at {int(wrong.sum())} elements"
    if len(rows) < len(wrong):
        shown = ", ".join(map(str, rows[:5])) + (", …" if len(rows) > 5 else "")
        return f"wrong only at {len(rows)} of {len(wrong)} elements of the input (flat: {shown})"
    return None


def _inverse(values: Matrix) -> Matrix:
    with np.errstate(all="ignore"):
        return 1 / values
