"""What operators compute, said a second time in NumPy and the standard library."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from tests.ops.fourier_references import TRANSFORMS
from tests.ops.matrix_references import DECOMPOSED, MATRICES
from tests.ops.sorting_references import SORTING
from tests.ops.structural_references import STRUCTURAL
from tests.ops.window_references import WINDOWS

__all__ = ["REFERENCES", "UNREFERENCED"]


def each(function: Callable[..., float]) -> Callable[..., Any]:
    """Return a scalar function applied to each element."""
    vectorised = np.vectorize(function, otypes=[float])

    def reference(*args: Any) -> Any:
        shape = np.broadcast_shapes(*map(np.shape, args))
        return vectorised(*args) if math.prod(shape) else np.zeros(shape)

    return reference


def axes(dim: Any, x: Any) -> Any:
    return None if dim is None or x.ndim == 0 else tuple(dim) if isinstance(dim, tuple) else dim


def reduce(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a NumPy reduction with the names of our arguments."""
    return lambda x, dim=None, keepdim=False, **more: function(
        x, axis=axes(dim, x), keepdims=keepdim, **more
    )


def logsumexp(x: Any, dim: Any = None, keepdim: bool = False) -> Any:
    return np.log(np.sum(np.exp(x), axis=axes(dim, x), keepdims=keepdim))


def norm(x: Any, p: Any = 2, dim: Any = None, keepdim: bool = False) -> Any:
    size, axis = np.abs(x), axes(dim, x)
    if p == math.inf:
        return np.max(size, axis=axis, keepdims=keepdim)
    if p == -math.inf:
        return np.min(size, axis=axis, keepdims=keepdim)
    total = np.sum((size != 0) * 1.0 if p == 0 else size**p, axis=axis, keepdims=keepdim)
    return total if p == 0 else total ** (1 / p)


def along(function: Callable[..., Any], index: Callable[..., Any]) -> Callable[..., Any]:
    def reference(x: Any, dim: int, keepdim: bool = False) -> tuple[Any, Any]:
        if x.ndim == 0:
            return x, np.int64(0)
        return function(x, axis=dim, keepdims=keepdim), index(x, axis=dim, keepdims=keepdim)

    return reference


def extreme(function: Callable[..., Any], pair: Any, index: Any) -> Callable[..., Any]:
    def reference(x: Any, dim: Any = None, keepdim: bool = False) -> Any:
        if isinstance(dim, np.ndarray):
            return pair(x, dim)
        return function(x) if dim is None else along(function, index)(x, dim, keepdim)

    return reference


def sum_to_size(x: Any, size: Any) -> Any:
    lead = x.ndim - len(size)
    x = x.sum(axis=tuple(range(lead)))
    for axis, n in enumerate(size):
        if n == 1:
            x = x.sum(axis=axis, keepdims=True)
    return x


def running(function: Any) -> Callable[..., Any]:
    return lambda x, dim: x if x.ndim == 0 else function(x, axis=dim)


def div(x: Any, y: Any, rounding_mode: str | None = None) -> Any:
    return {None: np.array, "floor": np.floor, "trunc": np.trunc}[rounding_mode](x / y)


def clamp(x: Any, min: Any = None, max: Any = None) -> Any:
    x = x if min is None else np.where(x < min, min, x)
    return x if max is None else np.where(x > max, max, x)


def gelu(x: Any, approximate: str = "none") -> Any:
    if approximate == "none":
        return each(lambda v: v * (1 + math.erf(v / math.sqrt(2))) / 2)(x)
    return each(lambda v: v / 2 * (1 + math.tanh(math.sqrt(2 / math.pi) * (v + 0.044715 * v**3))))(
        x
    )


def softplus(x: Any, beta: float = 1.0, threshold: float = 20.0) -> Any:
    return np.where(beta * x > threshold, x, np.log(1 + np.exp(beta * x)) / beta)


REFERENCES: dict[str, Callable[..., Any]] = {
    # elementwise
    "add": lambda x, y, alpha=1: x + alpha * y,
    "sub": lambda x, y, alpha=1: x - alpha * y,
    "mul": lambda x, y: x * y,
    "div": div,
    "neg": lambda x: 0 - x,
    "floor_divide": lambda x, y: np.floor(x / y),
    "remainder": lambda x, y: x - y * np.floor(x / y),
    "fmod": each(math.fmod),
    "reciprocal": lambda x: 1 / x,
    "pow": each(math.pow),
    "square": lambda x: x * x,
    "sqrt": each(math.sqrt),
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "lerp": lambda x, y, w: (1 - w) * x + w * y,
    "addcmul": lambda x, y, z, value=1: x + value * y * z,
    "addcdiv": lambda x, y, z, value=1: x + value * y / z,
    "exp": each(math.exp),
    "exp2": lambda x: 2.0**x,
    "expm1": each(math.expm1),
    "log": each(math.log),
    "log2": each(math.log2),
    "log10": each(math.log10),
    "log1p": each(math.log1p),
    "logaddexp": lambda x, y: np.log(np.exp(x) + np.exp(y)),
    "xlogy": lambda x, y: x * np.log(y),
    "sin": each(math.sin),
    "cos": each(math.cos),
    "tan": each(math.tan),
    "asin": each(math.asin),
    "acos": each(math.acos),
    "atan": each(math.atan),
    "atan2": each(math.atan2),
    "hypot": each(math.hypot),
    "sinh": each(math.sinh),
    "cosh": each(math.cosh),
    "tanh": each(math.tanh),
    "asinh": each(math.asinh),
    "acosh": each(math.acosh),
    "atanh": each(math.atanh),
    "erf": each(math.erf),
    "erfc": each(math.erfc),
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "relu": lambda x: np.where(x > 0, x, 0),
    "silu": lambda x: x / (1 + np.exp(-x)),
    "softplus": softplus,
    "gelu": gelu,
    "leaky_relu": lambda x, slope=0.01: np.where(x > 0, x, slope * x),
    "elu": lambda x, alpha=1.0: np.where(x > 0, x, alpha * (np.exp(x) - 1)),
    "hardtanh": lambda x, low=-1.0, high=1.0: np.minimum(np.maximum(x, low), high),
    "sign": lambda x: np.where(x > 0, 1.0, np.where(x < 0, -1.0, 0.0)),
    "floor": each(math.floor),
    "ceil": each(math.ceil),
    "trunc": each(math.trunc),
    "frac": lambda x: np.modf(x)[0],
    "round": each(round),
    "nan_to_num": lambda x: x,
    "maximum": lambda x, y: np.where(x > y, x, y),
    "minimum": lambda x, y: np.where(x < y, x, y),
    "fmax": lambda x, y: np.where(x > y, x, y),
    "fmin": lambda x, y: np.where(x < y, x, y),
    "copysign": each(math.copysign),
    "nextafter": each(math.nextafter),
    "clamp": clamp,
    # complex numbers
    "conj": lambda x: np.real(x) - 1j * np.imag(x) if np.iscomplexobj(x) else x,
    "real": np.real,
    "imag": np.imag,
    "abs": lambda x: np.hypot(np.real(x), np.imag(x)),
    "sgn": lambda x: x / np.hypot(np.real(x), np.imag(x)),
    "view_as_real": lambda x: np.stack([np.real(x), np.imag(x)], axis=-1),
    "view_as_complex": lambda x: x[..., 0] + 1j * x[..., 1],
    "complex": lambda x, y: x + 1j * y,
    "polar": lambda r, angle: r * np.exp(1j * angle),
    "angle": lambda x: np.arctan2(np.imag(x), np.real(x)),
    # comparisons and logic
    "eq": lambda x, y: x == y,
    "ne": lambda x, y: x != y,
    "lt": lambda x, y: x < y,
    "le": lambda x, y: x <= y,
    "gt": lambda x, y: x > y,
    "ge": lambda x, y: x >= y,
    "isclose": np.isclose,
    "allclose": np.allclose,
    "equal": np.array_equal,
    "isnan": lambda x: x != x,  # noqa: PLR0124 - the definition
    "signbit": lambda x: np.copysign(1.0, x) < 0,
    "isinf": lambda x: np.abs(x) == math.inf,
    "isfinite": lambda x: np.abs(x) < math.inf,
    "logical_and": lambda x, y: (x != 0) & (y != 0),
    "logical_or": lambda x, y: (x != 0) | (y != 0),
    "logical_xor": lambda x, y: (x != 0) ^ (y != 0),
    "logical_not": lambda x: x == 0,
    "bitwise_and": lambda x, y: x & y,
    "bitwise_or": lambda x, y: x | y,
    "bitwise_xor": lambda x, y: x ^ y,
    "bitwise_not": lambda x: ~x,
    "bitwise_left_shift": lambda x, y: x * 2**y,
    "bitwise_right_shift": lambda x, y: x // 2**y,
    # reductions
    "sum": reduce(np.sum),
    "mean": reduce(lambda x, axis, keepdims: np.mean(x, axis=axis, keepdims=keepdims)
                   if x.size else np.full(np.sum(x, axis=axis, keepdims=keepdims).shape, np.nan)),
    "prod": reduce(np.prod),
    "amax": reduce(np.max),
    "amin": reduce(np.min),
    "max": extreme(np.max, np.maximum, np.argmax),
    "min": extreme(np.min, np.minimum, np.argmin),
    "_max_along": along(np.max, np.argmax),
    "_min_along": along(np.min, np.argmin),
    "argmax": reduce(np.argmax),
    "argmin": reduce(np.argmin),
    "any": reduce(np.any),
    "all": reduce(np.all),
    "count_nonzero": reduce(np.count_nonzero),
    "var": lambda x, dim=None, keepdim=False, correction=1: np.var(
        x, axis=axes(dim, x), keepdims=keepdim, ddof=correction
    ),
    "std": lambda x, dim=None, keepdim=False, correction=1: np.std(
        x, axis=axes(dim, x), keepdims=keepdim, ddof=correction
    ),
    "logsumexp": logsumexp,
    "norm": norm,
    "sum_to_size": sum_to_size,
    "cumsum": running(np.cumsum),
    "cumprod": running(np.cumprod),
    # conversion
    "clone": lambda x: x,
    "_contiguous": lambda x: x,
    "_cast": lambda x, d: x.astype(d.numpy),
    "copy": lambda x, src: np.broadcast_to(src, x.shape),
    **MATRICES,
    **SORTING,
    **STRUCTURAL,
    **TRANSFORMS,
    **WINDOWS,
}  # fmt: skip

# Operators without a reference, each with the reason.
UNREFERENCED: dict[str, str] = dict.fromkeys(
    DECOMPOSED, "not unique: test_decompositions.py checks what the factors satisfy"
) | dict.fromkeys(
    ("_dropout_mask", "_standard_normal", "_uniform", "dropout", "bernoulli", "multinomial"),
    "random: test_sampling.py looks at distributions and streams",
)
