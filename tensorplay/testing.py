"""Comparing and making tensors in tests."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from tensorplay import _dtype
from tensorplay._creation import as_tensor
from tensorplay._tensor import Tensor, wrap
from tensorplay.random import default_generator

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["assert_close", "make_tensor"]

# Relative and absolute gap allowed by default: about the square root of the type's epsilon.
TOLERANCES = {
    "float16": (1e-3, 1e-5),
    "bfloat16": (1.6e-2, 1e-5),
    "float32": (1.3e-6, 1e-5),
    "float64": (1e-7, 1e-7),
    "complex64": (1.3e-6, 1e-5),
    "complex128": (1e-7, 1e-7),
}


def _tolerance(a: Any, b: Any) -> tuple[float, float]:
    found = [TOLERANCES.get(x.dtype.name, (0.0, 0.0)) for x in (a, b)]
    return max(t[0] for t in found), max(t[1] for t in found)


def assert_close(
    actual: Any,
    expected: Any,
    *,
    rtol: float | None = None,
    atol: float | None = None,
    equal_nan: bool = False,
    check_device: bool = True,
    check_dtype: bool = True,
    check_stride: bool = False,
    msg: str | Callable[[str], str] | None = None,
) -> None:
    """Raise AssertionError unless ``|actual - expected| <= atol + rtol * |expected|`` everywhere.

    Parameters
    ----------
    actual, expected
        Tensors, arrays, numbers, or equal structures of sequences and mappings of them.
    rtol, atol
        Allowed gap; by default chosen from the types.
    equal_nan
        Whether two NaN are equal.
    check_device, check_dtype, check_stride
        Which attributes must be equal too.
    msg
        Text of the error instead of the made one, or a function of it.

    Raises
    ------
    AssertionError
        With the number of elements that differ and the worst of them.

    Examples
    --------
    >>> import tensorplay as tp
    >>> tp.testing.assert_close(tp.tensor([0.1]) + 0.2, tp.tensor([0.3]))
    """
    options: dict[str, Any] = {
        "rtol": rtol, "atol": atol, "equal_nan": equal_nan, "check_device": check_device,
        "check_dtype": check_dtype, "check_stride": check_stride,
    }  # fmt: skip
    problem = _difference(actual, expected, "", options)
    if problem is not None:
        text = msg(problem) if callable(msg) else problem if msg is None else msg
        raise AssertionError(text)


def _difference(actual: Any, expected: Any, where: str, options: dict[str, Any]) -> str | None:
    if isinstance(expected, dict) and isinstance(actual, dict):
        if actual.keys() != expected.keys():
            return f"the keys differ{where}: {list(actual)} and {list(expected)}"
        pairs = [(actual[k], expected[k], f"{where}[{k!r}]") for k in expected]
    elif isinstance(expected, (list, tuple)) and isinstance(actual, (list, tuple)):
        if len(actual) != len(expected):
            return f"the lengths differ{where}: {len(actual)} and {len(expected)}"
        pairs = [
            (a, e, f"{where}[{i}]") for i, (a, e) in enumerate(zip(actual, expected, strict=True))
        ]
    else:
        return _tensor_difference(as_tensor(actual), as_tensor(expected), where, options)
    return next((d for a, e, w in pairs if (d := _difference(a, e, w, options)) is not None), None)


def _tensor_difference(a: Tensor, e: Tensor, where: str, options: dict[str, Any]) -> str | None:
    attributes = {
        "shape": (True, a.shape, e.shape),
        "dtype": (options["check_dtype"], a.dtype, e.dtype),
        "device": (options["check_device"], a.device, e.device),
        "stride()": (options["check_stride"], a.stride(), e.stride()),
    }
    for name, (checked, x, y) in attributes.items():
        if checked and x != y:
            return f"the values for attribute '{name}' do not match{where}: {x} != {y}"
    rtol, atol = _tolerance(a, e)
    rtol = rtol if options["rtol"] is None else options["rtol"]
    atol = atol if options["atol"] is None else options["atol"]
    wide = np.complex128 if a.dtype.is_complex or e.dtype.is_complex else np.float64
    # Integers beyond 2**53 are not told apart in float64.
    if a.dtype is e.dtype and not a.dtype.is_differentiable and rtol == 0 and atol == 0:
        x, y = a.numpy(), e.numpy()
        bad = x != y
        gap = np.abs(x.astype(np.float64) - y.astype(np.float64))
    else:
        x, y = (t.numpy(force=True).astype(wide) for t in (a, e))
        with np.errstate(invalid="ignore"):
            gap = np.abs(x - y)
            close = (gap <= atol + rtol * np.abs(y)) & np.isfinite(gap)
        close |= x == y
        if options["equal_nan"]:
            close |= np.isnan(x) & np.isnan(y)
        bad = ~close
    if not bad.any():
        return None
    ranked = np.where(bad, np.nan_to_num(gap, nan=np.inf), -1)
    worst = np.unravel_index(int(np.argmax(ranked)), x.shape)
    index = tuple(int(i) for i in worst)
    return (
        f"tensor-likes are not close{where}\n\nmismatched elements: {int(bad.sum())} / {x.size}\n"
        f"worst at index {index}: {x[index]} != {y[index]}, difference {gap[index]:.6g}, allowed "
        f"{atol:g} + {rtol:g} * {abs(y[index]):.6g}"
    )


def make_tensor(
    *shape: Any,
    dtype: Any,
    device: Any = "cpu",
    low: float | None = None,
    high: float | None = None,
    requires_grad: bool = False,
    noncontiguous: bool = False,
    exclude_zero: bool = False,
) -> Tensor:
    """Return a tensor of `shape` with values between `low` and `high` from the default generator.

    Parameters
    ----------
    *shape
        The shape, as numbers or as one sequence.
    dtype, device
        Of the result.
    low, high
        Interval; by default [-9, 9), for unsigned types [0, 10), for bool [0, 2).
    requires_grad
        As for `tensorplay.tensor`.
    noncontiguous
        Whether neighbours along the last dimension lie two elements apart.
    exclude_zero
        Whether zeros become the smallest positive number of the type (1 for integers).

    Returns
    -------
    Tensor
        Of `shape`.

    Raises
    ------
    ValueError
        `low` is not below `high`.
    """
    size = tuple(shape[0]) if len(shape) == 1 and isinstance(shape[0], (tuple, list)) else shape
    d = _dtype.as_dtype(dtype, "make_tensor")
    first, last = (0, 2) if d.category == _dtype.BOOL else (-9, 9) if d.is_signed else (0, 10)
    lo, hi = (first if low is None else low), (last if high is None else high)
    if not lo < hi:
        message = f"[make_tensor] expected low < high, got low={lo}, high={hi}."
        raise ValueError(message)
    drawn = (*size[:-1], 2 * size[-1]) if noncontiguous and size else size

    def values(source: np.random.Generator) -> Any:
        if not d.is_differentiable:
            return source.integers(int(lo), max(int(hi), int(lo) + 1), drawn)
        real = source.uniform(lo, hi, drawn)
        return real + 1j * source.uniform(lo, hi, drawn) if d.is_complex else real

    array = np.asarray(default_generator._draw(values)).astype(d.numpy)
    if exclude_zero:
        array[array == 0] = _dtype.finfo(d).tiny if d.is_differentiable else 1
    result = wrap(array[..., ::2] if noncontiguous and size else array, d)
    result = result.to(device=device)
    return result.requires_grad_() if requires_grad else result
