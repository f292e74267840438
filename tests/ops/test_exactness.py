"""Where rounding or conversion would change numbers unseen: large integers, long sums, 1j."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, strategies as st

import tensorplay as tp

INT64 = st.integers(-(2**63), 2**63 - 1)


# --- integers that float64 cannot tell apart --------------------------------------------------


@pytest.mark.parametrize("n", [2**53, 2**62, -(2**62), 2**63 - 2])
def test_neighbours_are_not_close_without_tolerance(n):
    x, y = tp.tensor([n + 1]), tp.tensor([n])
    assert not tp.isclose(x, y, rtol=0.0, atol=0.0).item()
    assert not tp.allclose(x, y, 0.0, 0.0)
    assert not tp.equal(x, y)
    assert tp.isclose(x, y, rtol=0.0, atol=1.0).item()
    assert not tp.isclose(x, n, rtol=0.0, atol=0.0).item()


@given(INT64, INT64, st.integers(0, 2**64))
def test_distances_are_exact(a, b, atol):
    found = tp.isclose(tp.tensor([a]), tp.tensor([b]), rtol=0.0, atol=float(atol)).item()
    assert found == (abs(a - b) <= int(float(atol)))


@pytest.mark.parametrize("dtype", [tp.bool, tp.uint8, tp.int8, tp.uint64])
def test_narrow_and_unsigned_integers(dtype):
    x, y = tp.tensor([0, 1, 1]).to(dtype), tp.tensor([1, 1, 0]).to(dtype)
    assert tp.isclose(x, y, rtol=0.0, atol=0.5).tolist() == [False, True, False]
    assert tp.isclose(x, y, rtol=0.0, atol=1.0).tolist() == [True] * 3
    assert tp.isclose(x, y, rtol=0.0, atol=-1.0).tolist() == [False, True, False]
    assert tp.isclose(x, y, rtol=0.0, atol=float("nan")).tolist() == [False, True, False]


# --- long sums --------------------------------------------------------------------------------

# One more than float32 can count in steps of one.
MANY = 2**24 + 2


@pytest.mark.parametrize("dtype", [tp.float32, tp.complex64])
def test_running_sums_do_not_stand_still(dtype):
    y = tp.ones(MANY, dtype=dtype).cumsum(0)
    assert y.dtype is dtype
    assert y[-1].item() == MANY


def test_running_sums_of_half_precision():
    for dtype in (tp.float16, tp.bfloat16):
        x = tp.ones(4096, dtype=dtype)
        for y in (x.cumsum(0), x.cumsum(0, dtype=dtype), tp.ones(4096).cumsum(0, dtype=dtype)):
            assert y.dtype is dtype
            assert y[-1].item() == 4096


@pytest.mark.parametrize("dtype", [tp.float16, tp.bfloat16])
def test_sums_asked_for_in_half_precision(dtype):
    assert tp.ones(4096).sum(dtype=dtype).item() == 4096
    assert tp.ones(4096).mean(dtype=dtype).item() == 1


def test_sums_across_memory_do_not_stand_still():
    x = tp.ones(1, 2).expand(MANY, 2)
    assert x.sum(0).tolist() == [MANY, MANY]
    assert x.sum(0).dtype is tp.float32
    assert x.mean(0).tolist() == [1, 1]
    assert tp.ones(1, 2).expand(MANY, 2).sum_to_size(1, 2).tolist() == [[MANY, MANY]]


@pytest.mark.parametrize("dim", [0, 1, (0, 1), (0, 2), None])
def test_sums_in_any_order_agree_with_float64(dim):
    x = np.random.default_rng(0).uniform(size=(3000, 3, 2)).astype(np.float32)
    for view in (x, x.transpose(2, 0, 1), x[::2]):
        found = tp.from_numpy(view).sum(dim).numpy()
        np.testing.assert_allclose(found, view.astype(np.float64).sum(dim), rtol=2e-7)


# --- complex numbers for real tensors ---------------------------------------------------------

REAL = [tp.float32, tp.float64, tp.bfloat16, tp.int64, tp.bool]


def _item(x, value):
    x[0] = value


def _list(x, value):
    x[[0, 1]] = value


def _mask(x, value):
    x[tp.ones_like(x).bool()] = value


def _copy(x, value):
    x.copy_(tp.tensor([value, value]) if isinstance(value, complex) else value)


def _fill(x, value):
    x.fill_(value)


@pytest.mark.parametrize("dtype", REAL)
@pytest.mark.parametrize("write", [_item, _list, _mask, _copy, _fill])
@pytest.mark.parametrize("value", [1j, np.complex64(2), 1 + 0j])
def test_complex_numbers_are_refused(write, dtype, value):
    x = tp.ones(2, dtype=dtype)
    with pytest.raises(RuntimeError, match=r"can.t be cast|cannot be converted"):
        write(x, value)
    assert x.double().tolist() == [1, 1]


@pytest.mark.parametrize("write", [_item, _list])
def test_complex_tensors_are_refused(write):
    with pytest.raises(RuntimeError, match=r"can't be cast .* Write value\.real"):
        write(tp.ones(2), tp.tensor(1j))


# --- integers beyond the type ------------------------------------------------------------------


HELD = {tp.uint8: (0, 255), tp.int8: (-128, 127), tp.int64: (-(2**63), 2**63 - 1)}


def _values(x, value):
    x[:] = [value, value]


@pytest.mark.parametrize("dtype", HELD)
@pytest.mark.parametrize("write", [_item, _list, _fill, _mask, _copy, _values])
def test_integers_beyond_the_type_are_not_stored(write, dtype):
    low, high = HELD[dtype]
    x = tp.ones(2, dtype=dtype)
    for value in (low, high):
        write(x, value)
        assert x[0].item() == value
    for value in (low - 1, high + 1, 2**70, -(2**70), float("nan"), 1e30):
        with pytest.raises(RuntimeError, match=r"^\[\w+\] .* without (overflow|loss).* x\.to"):
            write(x, value)
        assert x[0].item() == high


def _key(x, value):
    x[tp.tensor([1])] = value


@pytest.mark.parametrize("value", [300, -1, 2**70, 1e30, float("nan")])
def test_refusals_name_what_was_called(value):
    x = tp.ones(2, dtype=tp.uint8)
    for write in (_item, _mask, _key, lambda x, v: x.__setitem__(slice(None), v)):
        with pytest.raises(RuntimeError, match=r"^\[setitem\] .* without overflow"):
            write(x, value)
    with pytest.raises(RuntimeError, match=r"^\[fill_\] .* without overflow"):
        x.fill_(value)
    for fill in (value, tp.tensor(float(value)).to(tp.float64)):
        with pytest.raises(RuntimeError, match=r"^\[full\] .* without overflow"):
            tp.full((2,), fill, dtype=tp.uint8)
    with pytest.raises(RuntimeError, match=r"^\[full\] .* without overflow"):
        tp.full_like(x, value)
    assert x.tolist() == [1, 1]


def test_full_takes_numbers_of_numpy():
    assert tp.full((2,), np.int64(7), dtype=tp.uint8).tolist() == [7, 7]
    with pytest.raises(RuntimeError, match=r"^\[full\] 300"):
        tp.full((2,), np.int64(300), dtype=tp.uint8)


def test_shapes_and_complex_numbers_are_refused_by_name():
    x = tp.ones(2)
    for match, write in (
        (r"\[setitem\] argument 'value': expected a shape", lambda: x.__setitem__(0, tp.ones(3))),
        (r"\[setitem\] complex", lambda: x.__setitem__(0, 1j)),
        (r"\[fill_\] complex", lambda: x.fill_(tp.tensor(1j))),
        (r"\[copy_\] argument 'src': expected a shape", lambda: x.copy_(tp.ones(3))),
    ):
        with pytest.raises(RuntimeError, match=match):
            write()


X = tp.tensor([100, 1], dtype=tp.uint8)


@pytest.mark.parametrize(
    "call",
    [
        lambda x, n: x // n, lambda x, n: x % n, lambda x, n: n % x, lambda x, n: x**n,
        tp.maximum, tp.minimum, tp.fmod, lambda x, n: tp.where(x > 1, x, n),
        lambda x, n: x.masked_fill(x > 1, n), lambda x, n: x << n,
        lambda x, n: tp.pad(x, [1, 1], value=n),
        lambda x, n: tp.scatter(x, 0, tp.tensor([0]).to(x.device), n),
        lambda x, n: tp.div(x, n, rounding_mode="floor"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("number", [300, 2**63, 2**70])
def test_operations_that_do_not_wrap_refuse_numbers_beyond_the_type(call, number):
    for x in (X, X.to("meta")):
        with pytest.raises(RuntimeError, match="without overflow"):
            call(x, number)


@pytest.mark.parametrize(
    "call",
    [
        lambda x, n: x + n, lambda x, n: x - n, lambda x, n: n - x, lambda x, n: x * n,
        lambda x, n: x & n, lambda x, n: x | n, lambda x, n: x ^ n,
    ],
)  # fmt: skip
@pytest.mark.parametrize("dtype", [tp.uint8, tp.int8, tp.int64])
def test_arithmetic_is_modulo_the_range_up_to_64_bits(call, dtype):
    x = tp.tensor([100, 1], dtype=dtype)
    bits = 8 * dtype.itemsize
    for number in (300, -7, 2**64 - 1, -(2**63), 2**40 + 5):
        exact = [call(v, number) % 2**bits for v in (100, 1)]
        assert [v % 2**bits for v in call(x, number).tolist()] == exact
    for number in (2**64, -(2**63) - 1, 2**70):
        with pytest.raises(RuntimeError, match="without overflow"):
            call(x, number)
        with pytest.raises(RuntimeError, match="without overflow"):
            call(x.to("meta"), number)


def test_limits_beyond_the_type_change_nothing_or_are_refused():
    assert tp.clamp(X, -5, 300).tolist() == [100, 1]
    assert tp.clamp(X, 50, 2**70).tolist() == [100, 50]
    assert tp.clamp(X, max=300) is not X
    for limits in ({"min": 300}, {"max": -1}):
        with pytest.raises(RuntimeError, match="without overflow"):
            tp.clamp(X, **limits)


def test_comparisons_and_membership_know_numbers_beyond_the_type():
    assert (X < 300).tolist() == [True, True]
    assert (X == 356).tolist() == [False, False]
    assert tp.isin(X, 356).tolist() == [False, False]
    assert tp.isin(X, 2**70).tolist() == [False, False]
    assert tp.isin(356, X).item() is False
