"""Captures are bounded, whatever is new in each call."""

from __future__ import annotations

import importlib
import warnings

import numpy as np
import pytest

import tensorplay as tp
from tensorplay import compiler

function_module = importlib.import_module("tensorplay.compiler.function")


@pytest.fixture
def captures(monkeypatch) -> list[int]:
    """Return a list that grows with each capture."""
    made: list[int] = []
    original = function_module.capture

    def counted(*args, **kwargs):
        made.append(1)
        return original(*args, **kwargs)

    monkeypatch.setattr(function_module, "capture", counted)
    return made


NUMBERS = {
    "floats": lambda n: 0.1 + n / 1000,
    "ints": lambda n: n,
    "complex": lambda n: complex(n, 1),
    "numpy": np.float32,
}


@pytest.mark.parametrize("kind", NUMBERS)
def test_a_number_that_is_looked_at_in_each_call_is_captured_a_few_times(kind, captures) -> None:
    def step(x, rate):
        return x - rate.real * x

    f = tp.compile(step, backend="interpreter")
    x = tp.tensor([1.0, 2.0])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for n in range(100):
            rate = NUMBERS[kind](n)
            assert f(x, rate).tolist() == step(x, rate).tolist()
    # One of them for any number, in vain.
    assert len(captures) <= compiler.config.recompile_limit + function_module.MOST_TRIES + 1
    report = f.report()
    assert report.programs == compiler.config.recompile_limit
    assert report.eager_calls == 100 - report.programs
    (message,) = {str(w.message) for w in caught if "specialization limit" in str(w.message)}
    assert "rate: " in message
    assert "as a tensor, tensorplay.tensor(number)" in message
    assert "\n" not in message
    # What is known goes on, and so do calls of another kind that a program serves.
    hits = f.report().hits
    f(x, NUMBERS[kind](0))
    assert f.report().hits == hits + 1


def test_a_number_as_a_tensor_is_no_reason_to_compile_again(captures) -> None:
    f = tp.compile(lambda x, rate: x - rate * x, backend="interpreter")
    for n in range(20):
        f(tp.ones(2), tp.tensor(n / 10))
    assert len(captures) == 1


def test_calls_whose_capture_raises_are_not_tried_without_end(captures, monkeypatch) -> None:
    monkeypatch.setattr(compiler.config, "most_shapes", 16)

    def picky(x, n):
        if compiler.is_compiling():
            raise ValueError(f"no capture of {n}")
        return x * n

    f = tp.compile(picky, backend="interpreter")
    for n in range(60):
        assert f(tp.ones(1), n).item() == n
    assert len(captures) <= function_module.MOST_FAILURES + function_module.MOST_TRIES
    g = tp.compile(picky, backend="interpreter")
    for n in range(1, 60):
        g(tp.ones(n), 2)
    assert len(g._tries) <= 17
    assert len(g._reasons) <= 17


def test_numbers_that_raise_do_not_keep_others_from_a_program(captures) -> None:
    def checked(x, n):
        if n < 0:
            raise ValueError("negative")
        return x * n

    f = tp.compile(checked, backend="interpreter")
    for n in range(1, 6):
        with pytest.raises(ValueError, match="negative"):
            f(tp.ones(1), -n)
    assert f(tp.ones(1), 3).item() == 3
    assert f.report().programs == 1
