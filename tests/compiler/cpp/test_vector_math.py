"""Functions on vectors against NumPy's, in units of the last place."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tensorplay as tp
from tensorplay.ops import OPERATORS, _erf
from tests.compiler.cpp.graphs import Builder

Array = np.ndarray[Any, Any]
UNARY = (
    *("exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sin", "cos", "tan", "asin"),
    *("acos", "atan", "sinh", "cosh", "tanh", "asinh", "acosh", "atanh", "erf", "erfc"),
    *("sigmoid", "sqrt", "rsqrt", "floor", "ceil", "trunc", "round", "reciprocal", "sign"),
)
BINARY = ("pow", "atan2", "hypot", "div", "maximum", "minimum", "fmax", "fmin", "copysign")
MOST = {np.float32: 4, np.float64: 2}
#: Where eager execution itself says that it is less exact.
EAGER_IS_WORSE = {("erfc", np.float64): 10}
COUNT = 1 << 16


def distance(a: Array, b: Array) -> Array:
    """Return how many numbers of the type lie between: infinite between NaN and a number."""
    whole = np.int32 if a.dtype == np.float32 else np.int64
    x, y = a.view(whole), b.view(whole)
    least = np.iinfo(whole).min
    # Numbers in the order of their size; both zeros become 0.
    x, y = np.where(x < 0, least - x, x), np.where(y < 0, least - y, y)
    near = np.abs(x - y).astype(np.float64)
    far = np.abs(x.astype(np.float64) - y.astype(np.float64))
    found = np.where((x < 0) == (y < 0), near, far)
    found[np.isnan(a) & np.isnan(b)] = 0
    found[np.isnan(a) != np.isnan(b)] = np.inf
    return found


def points(kind: Any, seed: str) -> Array:
    """Return numbers of every size, many near 0 and 1, and the special ones."""
    random = np.random.default_rng(zlib.crc32(seed.encode()))
    bits = np.uint32 if kind is np.float32 else np.uint64
    info = np.finfo(kind)
    special = [0.0, 1.0, 0.5, 2.0, np.inf, info.max, info.tiny, info.smallest_subnormal, np.pi / 2]
    special += [info.tiny / 3, 88.0, 88.8, 103.9, 709.0, 710.0, 745.0, 1e5, 1e6, 2.0**22, 3e38]
    with np.errstate(over="ignore"):
        known = np.array([*special, *(-s for s in special), np.nan], kind)
    # Among others, and in vectors of their own: a large number may send its neighbours another way.
    known = np.concatenate([known, np.repeat(known, 16)])
    anything = random.integers(0, np.iinfo(bits).max, COUNT, bits, endpoint=True).view(kind)
    near = [random.uniform(-r, r, COUNT // 2).astype(kind) for r in (0.1, 1, 10, 100, 1000)]
    about_one = (1 + random.uniform(-0.3, 0.5, COUNT // 2)).astype(kind)
    found: Array = np.concatenate([known, anything, *near, about_one])
    return found


@pytest.fixture(scope="module", params=[np.float32, np.float64], ids=["float32", "float64"])
def computed(request: pytest.FixtureRequest) -> dict[str, tuple[Array, ...]]:
    """All functions at once: one compilation per type."""
    kind = request.param
    x = points(kind, "x")
    y = np.random.default_rng(1).permutation(points(kind, "y"))
    b = Builder()
    a, c = b.input(tp.from_numpy(x)), b.input(tp.from_numpy(y))
    nodes = [getattr(b, name)(a) for name in UNARY] + [getattr(b, name)(a, c) for name in BINARY]
    results = b.compile(*nodes)(tp.from_numpy(x), tp.from_numpy(y))
    named = zip((*UNARY, *BINARY), results, strict=True)
    return {name: (x, y, result.numpy()) for name, result in named}


def sigmoid(x: Array) -> Array:
    e = np.exp(-np.abs(x))
    found: Array = np.where(x >= 0, x.dtype.type(1), e) / (1 + e)
    return found


OTHERS: dict[str, Callable[..., Array]] = {
    "sigmoid": sigmoid, "asin": np.arcsin, "acos": np.arccos, "atan": np.arctan,
    "asinh": np.arcsinh, "acosh": np.arccosh, "atanh": np.arctanh, "round": np.round,
    "rsqrt": lambda x: np.reciprocal(np.sqrt(x)), "pow": np.power, "atan2": np.arctan2,
    "div": np.true_divide, "erf": lambda x: _erf.erf(x).astype(x.dtype),
    "erfc": lambda x: _erf.erfc(x).astype(x.dtype),
}  # fmt: skip


@pytest.mark.parametrize("name", [*UNARY, *BINARY])
def test_function_is_within_the_stated_distance(
    name: str, computed: dict[str, tuple[Array, ...]]
) -> None:
    x, y, ours = computed[name]
    function = OTHERS.get(name) or getattr(np, name)
    with np.errstate(all="ignore"):
        expected = function(x, y) if name in BINARY else function(x)
    kind = x.dtype.type
    found = distance(ours, expected)
    worst = int(np.argmax(found))
    most = EAGER_IS_WORSE.get((name, kind), MOST[kind])
    assert found[worst] <= most, (x[worst], y[worst], ours[worst], expected[worst])
    if name not in {"maximum", "minimum", "fmax", "fmin"}:  # of zeros these give either
        zeros = (ours == 0) & (expected == 0)
        assert (np.signbit(ours) == np.signbit(expected))[zeros].all()


def test_every_function_of_the_table_is_tested() -> None:
    assert {*UNARY, *BINARY} <= set(OPERATORS)


def test_distance_counts_numbers() -> None:
    one = np.array([1.0, 0.0, np.nan, 1.0], np.float32)
    other = np.array([np.nextafter(np.float32(1), 2), -0.0, np.nan, np.nan], np.float32)
    assert distance(one, other).tolist() == [1, 0, 0, np.inf]
