"""The extension's convolutions and pooling beside NumPy's way, for every width of vectors."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import tensorplay as tp
from tensorplay import _native
from tensorplay.ops import convolution, masks, pooling

core = _native.core
pytestmark = pytest.mark.skipif(core is None, reason="the compiled extension is not there")
# Relative to the largest result: sums of few products, in another order.
TOLERANCE = {np.dtype(np.float32): 1e-5, np.dtype(np.float64): 1e-13}


@pytest.fixture
def plainly(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that runs another without the extension."""

    def run(function: Any, *args: Any) -> Any:
        with monkeypatch.context() as patch:
            patch.setattr(convolution, "_core", None)
            patch.setattr(pooling, "_native", SimpleNamespace(core=None))
            return function(*args)

    return run


def numbers(draw: Any, low: int, high: int, n: int) -> tuple[int, ...]:
    return tuple(draw(st.lists(st.integers(low, high), min_size=n, max_size=n)))


def assert_near(found: Any, expected: Any) -> None:
    assert found.shape == expected.shape
    assert found.dtype == expected.dtype
    scale = max(1.0, float(np.abs(expected).max()))
    np.testing.assert_allclose(found, expected, rtol=0, atol=TOLERANCE[found.dtype] * scale)


@st.composite
def convolutions(draw: Any) -> tuple[Any, ...]:
    """Draw (type, sizes of the input, sizes of the weight, stride, padding, dilation, groups)."""
    n = draw(st.integers(1, 3))
    kernel, stride = numbers(draw, 1, 4, n), numbers(draw, 1, 3, n)
    padding, dilation = numbers(draw, 0, 4, n), numbers(draw, 1, 2, n)
    least = [max(1, d * (k - 1) + 1 - 2 * p)
             for k, p, d in zip(kernel, padding, dilation, strict=True)]  # fmt: skip
    most = {1: 60, 2: 20, 3: 6}[n]
    sizes = tuple(draw(st.integers(low, max(low, most))) for low in least)
    groups, channels = draw(st.integers(1, 3)), draw(st.integers(1, 4))
    filters, batch = draw(st.sampled_from([1, 2, 7, 16, 19])), draw(st.integers(1, 3))
    x = (batch, channels * groups, *sizes)
    w = (filters * groups, channels, *kernel)
    kind = draw(st.sampled_from(list(TOLERANCE)))
    return kind, x, w, (stride, padding, dilation, groups)


@settings(max_examples=60, deadline=None)
@given(convolutions())
def test_convolutions_and_their_adjoints(case: Any) -> None:
    kind, sizes, kernels, geometry = case
    rng = np.random.default_rng(0)
    counts = map(convolution.output_size, sizes[2:], kernels[2:], *geometry[:3])
    shapes = sizes, kernels, (sizes[0], kernels[0], *counts)
    x, w, y = (rng.standard_normal(shape).astype(kind) for shape in shapes)
    calls = [
        (convolution._forward, (x, w)),
        (convolution._to_input, (y, w, sizes)),
        (convolution._to_weight, (y, x, kernels)),
    ]
    found = [function(*args, *geometry) for function, args in calls]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(convolution, "_core", None)
        expected = [function(*args, *geometry) for function, args in calls]
    for ours, reference in zip(found, expected, strict=True):
        assert_near(ours, reference)
    for level in range(core.tile_levels()):
        result, slope = np.empty_like(y), np.empty_like(w)
        assert core.convolve(x, w, result, *geometry, level)
        assert core.correlate(y, x, slope, *geometry, level)
        assert_near(result, expected[0])
        assert_near(slope, expected[2])


def test_an_image_does_not_depend_on_its_batch_nor_on_threads() -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((9, 8, 33, 17)).astype(np.float32)
    w = rng.standard_normal((21, 8, 3, 3)).astype(np.float32)
    geometry = (1, 1), (1, 1), (1, 1), 1
    before = core.threads()
    found = []
    try:
        for threads in (1, 3):
            core.set_threads(threads)
            y = convolution._forward(x, w, *geometry)
            found.append((y, convolution._to_input(y, w, x.shape, *geometry),
                          convolution._to_weight(y, x, w.shape, *geometry)))  # fmt: skip
    finally:
        core.set_threads(before)
    for one, other in zip(*found, strict=True):
        np.testing.assert_array_equal(one, other)
    np.testing.assert_array_equal(convolution._forward(x[4:5], w, *geometry), found[0][0][4:5])


def test_sums_longer_than_one_tile_and_kernels_of_the_padding() -> None:
    rng = np.random.default_rng(1)
    x = rng.standard_normal((1, 50, 9, 9))
    w = rng.standard_normal((13, 50, 3, 3))
    expected = np.zeros((1, 13, 9, 9))
    around = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
    for i in range(3):
        for j in range(3):
            expected += np.einsum("bchw,oc->bohw", around[..., i : i + 9, j : j + 9], w[..., i, j])
    for level in range(core.tile_levels()):
        out = np.empty_like(expected)
        assert core.convolve(x, w, out, (1, 1), (1, 1), (1, 1), 1, level)
        np.testing.assert_allclose(out, expected, rtol=1e-11, atol=1e-11)


def test_what_the_extension_leaves_to_numpy() -> None:
    x, w = np.ones((1, 2, 5), np.float32), np.ones((3, 2, 2), np.float32)
    good, geometry = np.empty((1, 3, 4), np.float32), ((1,), (0,), (1,), 1)
    assert core.convolve(x, w, good, *geometry)
    assert good.tolist() == [[[4.0] * 4] * 3]
    for a, b, c, g in (
        (x[..., ::-1], w, good, geometry),
        (x, w.astype(np.float64), good, geometry),
        (x.astype(np.int64), w.astype(np.int64), np.empty((1, 3, 4), np.int64), geometry),
        (x, w, np.empty((1, 3, 5), np.float32), geometry),
        (x, w, good, ((1, 1), (0,), (1,), 1)),
        (x, w, good, ((0,), (0,), (1,), 1)),
        (x, w, good, ((1,), (0,), (1,), 2)),
        (x[:0], w, good[:0], geometry),
        (x.tolist(), w, good, geometry),
    ):
        assert core.convolve(a, b, c, *g) is False
    good.flags.writeable = False
    assert core.convolve(x, w, good, *geometry) is False
    good.flags.writeable = True
    with pytest.raises(TypeError):
        core.convolve(x, w, good, ("1",), (0,), (1,), 1)
    out, places = np.zeros((2, 3)), np.array([[0, 3], [1, 1]])
    assert core.add_at_places(out, places, np.ones((2, 2))) is False
    assert not out.any()


@st.composite
def pools(draw: Any) -> tuple[Any, ...]:
    n = draw(st.integers(1, 2))
    kernel, stride = numbers(draw, 1, 4, n), numbers(draw, 1, 3, n)
    dilation = numbers(draw, 1, 2, n)
    padding = tuple(draw(st.integers(0, k // 2)) for k in kernel)
    sizes = tuple(
        draw(st.integers(d * (k - 1) + 1, 40)) for d, k in zip(dilation, kernel, strict=True)
    )
    lead = draw(st.sampled_from([(), (2,), (2, 3)]))
    ceil_mode, kind = draw(st.booleans()), draw(st.sampled_from(list(TOLERANCE)))
    return kind, (*lead, *sizes), (kernel, stride, padding, dilation, ceil_mode)


@settings(max_examples=60, deadline=None)
@given(pools(), st.integers(0, 2**32))
def test_the_largest_with_ties_infinities_and_nan(case: Any, seed: int) -> None:
    kind, shape, windows = case
    rng = np.random.default_rng(seed)
    x = rng.choice([-1.0, -0.0, 0.0, 1.0, math.nan, -math.inf, math.inf], shape).astype(kind)
    values, places = pooling._max_pool(x, *windows)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pooling, "_native", SimpleNamespace(core=None))
        expected = pooling._max_pool(x, *windows)
    for level in range(core.tile_levels()):
        other = np.empty_like(values), np.empty_like(places)
        assert core.pool_largest(x, *other, *windows[:4], level)
        for ours, reference in zip((*other, values, places), expected * 2, strict=True):
            assert ours.tobytes() == np.ascontiguousarray(reference).tobytes()
    assert places.min() >= 0


def test_places_of_windows_without_a_larger_element_are_inside(plainly: Any) -> None:
    x = np.full((1, 3), -math.inf, np.float32)
    for run in (plainly, lambda function, *args: function(*args)):
        values, places = run(pooling._max_pool, x, (2,), (2,), (1,), (1,), False)
        assert values.tolist() == [[-math.inf, -math.inf]]
        assert places.tolist() == [[0, 1]]


@pytest.mark.parametrize("kind", [tp.float32, tp.float64, tp.float16])
def test_sums_at_places(kind: Any, plainly: Any) -> None:
    x, places = tp.randn(3, 4, 5).to(kind).numpy(), np.arange(60).reshape(3, 4, 5) % 7
    found = pooling._sum_at(x, places, (2, 4))
    assert found.shape == (3, 2, 4)
    np.testing.assert_array_equal(found, plainly(pooling._sum_at, x, places, (2, 4)))


@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_masks_of_zeros_keep_bits(kind: Any) -> None:
    x = np.array([math.nan, -0.0, math.inf, 3.0, -math.inf], kind)
    mask = np.array([True, False, True, False, False])
    found = masks._masked_fill(x, mask, 0)
    assert found.tobytes() == np.array([0.0, -0.0, 0.0, 3.0, -math.inf], kind).tobytes()
