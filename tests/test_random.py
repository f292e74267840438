from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

import tensorplay as tp


@pytest.fixture(autouse=True)
def _leave_the_stream_alone() -> Any:
    with tp.random.fork_rng():
        yield


@pytest.mark.parametrize(
    "draw",
    [lambda: tp.rand(5), lambda: tp.randn(2, 3), lambda: tp.randint(0, 100, (6,)),
     lambda: tp.randperm(9), lambda: tp.rand_like(tp.ones(4)), lambda: tp.randn_like(tp.ones(4)),
     lambda: tp.randint_like(tp.ones(4), 50)],
)  # fmt: skip
def test_a_seed_gives_one_stream(draw: Any) -> None:
    tp.manual_seed(7)
    first, second = draw().tolist(), draw().tolist()
    tp.manual_seed(7)
    assert draw().tolist() == first
    assert second != first
    tp.manual_seed(8)
    assert draw().tolist() != first


def test_seeds() -> None:
    assert tp.manual_seed(3).initial_seed() == tp.initial_seed() == 3
    tp.manual_seed(-1)
    assert tp.rand(1).shape == (1,)
    assert tp.seed() == tp.initial_seed()
    with pytest.raises(TypeError, match=r"\[manual_seed\] argument 'seed': expected int"):
        tp.manual_seed(1.5)


def test_state() -> None:
    tp.rand(3)
    state = tp.get_rng_state()
    first = tp.rand(4).tolist()
    tp.set_rng_state(state)
    assert tp.rand(4).tolist() == first
    with pytest.raises(TypeError, match="uint8"):
        tp.set_rng_state(tp.ones(3))
    for wrong in (tp.ones(3, dtype=tp.uint8), state[:-5]):
        with pytest.raises(ValueError, match="get_rng_state"):
            tp.set_rng_state(wrong)
    assert tp.rand(4).shape == (4,)


def test_fork_leaves_the_stream_where_it_was() -> None:
    tp.manual_seed(1)
    expected = tp.rand(2).tolist()
    tp.manual_seed(1)
    with pytest.raises(RuntimeError, match="low < high"), tp.random.fork_rng():
        tp.randint(int(tp.rand(10).sum()), 0, (1,))
    assert tp.rand(2).tolist() == expected


def test_generators_are_independent() -> None:
    a, b = tp.Generator().manual_seed(5), tp.Generator().manual_seed(5)
    tp.manual_seed(1)
    before = tp.get_rng_state().tolist()
    assert tp.rand(3, generator=a).tolist() == tp.rand(3, generator=b).tolist()
    assert tp.get_rng_state().tolist() == before
    with pytest.raises(TypeError, match="argument 'generator'"):
        tp.rand(3, generator=np.random.default_rng())
    with pytest.raises(RuntimeError, match="cuda"):
        tp.Generator("cuda")


@pytest.mark.parametrize(
    "dtype", [tp.float8_e5m2, tp.float16, tp.bfloat16, tp.float32, tp.float64, np.float64]
)
def test_rand_stays_below_one(dtype: Any) -> None:
    x = tp.rand(20_000, dtype=dtype)
    assert 0 <= x.double().numpy().min() < 0.01
    largest = 1 - 2 * tp.finfo(x.dtype).eps if x.itemsize == 1 else 0.99
    assert largest < x.double().numpy().max() < 1


def test_randn_has_mean_zero_and_variance_one() -> None:
    tp.manual_seed(0)
    x = tp.randn(40_000, dtype=tp.float64).numpy()
    assert abs(x.mean()) < 0.02
    assert abs(x.var() - 1) < 0.03


@given(st.integers(-1000, 1000), st.integers(1, 500))
def test_randint_stays_within(low: int, width: int) -> None:
    x = tp.randint(low, low + width, (50,)).numpy()
    assert x.min() >= low
    assert x.max() < low + width


def test_spellings_of_randint() -> None:
    assert tp.randint(3, (2,)).dtype is tp.int64
    assert tp.randint(3, size=(2, 2)).shape == (2, 2)
    assert tp.randint(high=3, size=[2]).shape == (2,)
    assert tp.randint(1, 2, 3).tolist() == [1, 1, 1]
    assert tp.randint(0, 256, (100,), dtype=tp.uint8).dtype is tp.uint8
    assert tp.randint(2**64 - 1, 2**64, (1,), dtype=tp.uint64).item() == 2**64 - 1
    with pytest.raises(RuntimeError, match="low < high"):
        tp.randint(3, 3, (1,))
    with pytest.raises(ValueError, match=r"range of tensorplay\.uint8"):
        tp.randint(0, 257, (1,), dtype=tp.uint8)
    with pytest.raises(TypeError, match="argument 'high'"):
        tp.randint(0, 2.5, (1,))
    with pytest.raises(TypeError, match="expected"):
        tp.randint(3)


def test_randperm() -> None:
    assert sorted(tp.randperm(20).tolist()) == list(range(20))
    with pytest.raises(RuntimeError, match="non-negative"):
        tp.randperm(-1)


def test_types_and_devices() -> None:
    assert tp.rand(2, requires_grad=True).requires_grad
    assert tp.randn(2, 3, device="meta").is_meta
    assert tp.rand_like(tp.ones(2, dtype=tp.float64)).dtype is tp.float64
    for draw in (tp.rand, tp.randn):
        with pytest.raises(TypeError, match="expected a floating type"):
            draw(2, dtype=tp.int64)
    with pytest.raises(TypeError, match="argument 'input'"):
        tp.rand_like([1.0])


def test_threads_draw_different_numbers() -> None:
    parts: list[list[float]] = []
    threads = [threading.Thread(target=lambda: parts.append(tp.rand(500).tolist()))
               for _ in range(4)]  # fmt: skip
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({tuple(p) for p in parts}) == 4
