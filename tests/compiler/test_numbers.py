"""Python numbers that are new in each call: one program serves all of them where it can."""

from __future__ import annotations

import importlib
import math
import warnings
from typing import Any

import numpy as np
import pytest

import tensorplay as tp

function_module = importlib.import_module("tensorplay.compiler.function")
build_module = importlib.import_module("tensorplay.compiler.cpp.backend")


@pytest.fixture
def captures(monkeypatch) -> list[int]:
    """Return a list that grows with each capture."""
    made: list[int] = []
    original = function_module.capture

    def counted(*args: Any, **kwargs: Any) -> Any:
        made.append(1)
        return original(*args, **kwargs)

    monkeypatch.setattr(function_module, "capture", counted)
    return made


FLOATS = (0.5, 0.1, 0.3, -0.0, 2.0, 1e-50, 1e300, math.inf, math.nan, -1.7, 3.0)
INTS = (2, 3, 5, -4, 0, 1, 7, 1 << 20, 1 << 60, -(1 << 40))


def bits(value: Any) -> Any:
    if isinstance(value, tp.Tensor):
        return value.dtype, value.shape, value.detach().numpy().tobytes()
    if isinstance(value, (tuple, list)):
        return [bits(v) for v in value]
    return type(value), repr(value)


def same(function: Any, numbers: Any, *tensors: tp.Tensor, **options: Any) -> Any:
    """Compare a function and what it is compiled to; return the report."""
    f = tp.compile(function, **options)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the limit, and of NumPy
        for n in (*numbers, *numbers):
            found: list[Any] = []
            for g in (function, f):
                try:
                    found.append(bits(g(*(t.clone() for t in tensors), n)))
                except Exception as error:  # noqa: BLE001 - compared
                    found.append((type(error), str(error)))
            assert found[0] == found[1], n
    return f.report()


def test_the_hundredth_value_costs_no_capture(captures, monkeypatch) -> None:
    built: list[int] = []
    library_of = build_module.library_of
    monkeypatch.setattr(build_module, "library_of", lambda s: built.append(1) or library_of(s))
    x = tp.randn(20)
    for kind, least in ((float, 0.25), (int, 3)):
        f = tp.compile(lambda x, n: (x - n * x).tanh() + n, fullgraph=True)
        counts = []
        for number in range(100):
            f(x, kind(least + number))
            counts.append((len(captures), len(built)))
        assert counts[2] == counts[9] == counts[99]
        report = f.report()
        assert (report.programs, report.shapes, report.eager_calls) == (3, 3, 0)
        assert len(captures) == 3
        assert report.recompiles[-1].startswith("n: ")
        assert report.recompiles[-1].endswith("became any number")
        for size in range(1, 30):  # other sizes are captured for any number at once
            f(tp.randn(size), kind(least * size))
        assert f.report().programs <= 4  # of one element it is another
        captures.clear()
        built.clear()


SERVED = {
    "operands": lambda x, y, n: (x * n + n, n - x, x / n, y - n * x),
    "reflected": lambda x, y, n: (n * x, n + x, (n - y) * (n - x)),
    "comparisons": lambda x, y, n: (x > n, n >= y, tp.where(x < n, x, n), x == n),
    "extremes": lambda x, y, n: (x.maximum(y * n), x.abs() - n),
    "scales": lambda x, y, n: (x.add(y, alpha=n), x.sub(y, alpha=-n), tp.addcmul(x, x, y, value=n)),
    "a quotient": lambda x, y, n: tp.addcdiv(x, x, y, value=-n),
    "in place": lambda x, y, n: x.mul_(n).add_(y, alpha=-n).sub_(n),
    "of numbers": lambda x, y, n: (x * (1 - n) + y * (n * 0.5 + 2), x * -n, x - abs(n) % 3),
    "a power of numbers": lambda x, y, n: x * 0.9 ** min(abs(n), 9),
    "0-d": lambda x, y, n: (x[1] * n + y[0] * n, x[0] > n),
    "a check": lambda x, y, n: x * n if isinstance(n, (int, float)) else x,
}


@pytest.mark.parametrize("d", [tp.float32, tp.float64], ids=repr)
@pytest.mark.parametrize("numbers", [FLOATS, INTS], ids=["floats", "ints"])
@pytest.mark.parametrize("name", SERVED)
def test_operands_are_what_numbers_are(name, numbers, d, backend) -> None:
    x, y = (tp.randn(7, dtype=d) for _ in range(2))
    report = same(SERVED[name], numbers, x, y, backend=backend)
    limit = 3 if numbers is FLOATS else 4
    # Numbers beyond float64 are for eager execution, and branches have programs of their own.
    assert report.programs <= limit + 3 * (name in {"a power of numbers", "of numbers"})


def test_whole_numbers_beside_integers_wrap(backend) -> None:
    x = tp.tensor([1, -7, 1 << 30], dtype=tp.int32)
    report = same(lambda x, n: (x * n, x + n, n - x), (*INTS, 1 << 35), x, backend=backend)
    assert report.programs <= 3
    same(lambda x, n: (x > n, x // 2 + n), (*INTS, 1 << 35), x, backend=backend)
    same(lambda x, n: x * n, FLOATS, x, backend=backend)
    same(lambda x, n: x & n, (1, 2, 3, 4), x, backend=backend)


LOOKED_AT = {
    "a function": lambda x, n: x * math.sqrt(abs(n)),
    "a conversion": lambda x, n: x * int(min(n, 1e6)) if n <= 1e300 else x,
    "text": lambda x, n: x if f"{n}" == "0.1" else x * 2,
    "a power": lambda x, n: x**n,
    "a type": lambda x, n: x * n if type(n) is float else x,
    "a key": lambda x, n: x * {0.1: 2.0, 2.0: 3.0}.get(n, 4.0),
    "a result": lambda x, n: (x * n, n),
    "a list": lambda x, n: (x * n, [n, n + 1]),
    "a filled tensor": lambda x, n: x + tp.full((2,), n)[0],
    "a tensor": lambda x, n: x + tp.tensor(n),
    "an option": lambda x, n: tp.nn.functional.leaky_relu(x, n * 2),
    "a limit": lambda x, n: x.clamp(min=n),
    "an attribute": lambda x, n: x * n.real,
    "an array": lambda x, n: x * float(np.multiply(n, 2.0)),
    "rounding": lambda x, n: x * round(n, 1) if abs(n) < 9 else x,
    "division": lambda x, n: x * divmod(n, 2)[1] if abs(n) < 9 else x,
    "a set": lambda x, n: x * 2 if n in {0.1, 2.0} else x,
    "lerp": lambda x, n: x.lerp(x * 2, n),
    "filling": lambda x, n: x.masked_fill(x > 0, n),
}


@pytest.mark.parametrize("name", LOOKED_AT)
def test_numbers_that_are_looked_at_are_captured_one_by_one(name, captures) -> None:
    report = same(LOOKED_AT[name], FLOATS, tp.tensor([0.5, -1.5, 2.0]), backend="interpreter")
    assert len(captures) <= 8 + 2 * function_module.MOST_TRIES
    assert report.programs <= 8


def test_what_python_decides_by_a_number_is_a_condition(captures) -> None:
    def branch(x: tp.Tensor, n: float) -> tp.Tensor:
        y = x * 2 if n > 1 else x - n
        return y if n else y + 1

    report = same(branch, FLOATS, tp.randn(4), backend="interpreter")
    assert report.programs == 5  # two numbers, and above 1, below, and zero
    assert report.eager_calls == 0
    assert len(captures) <= 6
    assert any("a number decided otherwise at test_numbers.py:" in r for r in report.recompiles)


def test_a_number_for_which_the_function_raises_says_nothing_about_others(captures) -> None:
    def checked(x: tp.Tensor, n: float) -> tp.Tensor:
        if n < 0:
            raise ValueError(f"negative: {n}")
        return x * (1 / n)

    numbers = (0.5, 2.0, -1.0, -2.0, 3.0, 0.0, 4.0, 5.0, -1.0, 6.0, 7.0)
    report = same(checked, numbers, tp.randn(4), backend="interpreter")
    assert report.programs == 3


def test_numbers_of_several_positions_and_names(captures) -> None:
    def update(p: tp.Tensor, g: tp.Tensor, rate: float, *, step: int, eps: float) -> tp.Tensor:
        return p - rate * g / (1 - 0.9**step) - eps

    f = tp.compile(update, backend="interpreter", fullgraph=True)
    p, g = tp.randn(5), tp.randn(5)
    for step in range(1, 20):
        options = {"step": step, "eps": 1e-8}
        assert bits(f(p, g, 0.1, **options)) == bits(update(p, g, 0.1, **options))
    assert len(captures) == 3
    for step in range(1, 20):
        rate = 0.1 / step
        assert bits(f(p, g, rate, step=step, eps=1e-8)) == bits(
            update(p, g, rate, step=step, eps=1e-8)
        )
    assert len(captures) == 4


@pytest.mark.parametrize("d", [tp.float32, tp.float64], ids=repr)
def test_gradients_and_second_derivatives(d, backend) -> None:
    def loss(x: tp.Tensor, w: tp.Tensor, n: float) -> tp.Tensor:
        return ((x * n) @ w / n + tp.where(x > n, x * x, n)).square().sum() * n

    f = tp.compile(loss, backend=backend, fullgraph=True)
    for n in (0.5, 0.3, 0.2, 1.5, 2.5):
        found = []
        for g in (loss, f):
            generator = np.random.default_rng(3)
            x, w = (
                tp.from_numpy(generator.standard_normal((3, 3)).astype(d.numpy)).requires_grad_()
                for _ in range(2)
            )
            first = tp.autograd.grad(g(x, w, n), [x, w], create_graph=True)
            second = tp.autograd.grad(sum(t.square().sum() for t in first), [x, w])
            found.append([*first, *second])
        tp.testing.assert_close(found[1], found[0])
    assert f.report().programs == 3


def test_ints_floats_and_bools_are_told_apart() -> None:
    def kinds(x: tp.Tensor, n: Any) -> tp.Tensor:
        return x + n if isinstance(n, bool) else x * n if isinstance(n, int) else x - n

    same(kinds, (1, 2, 3, 4, 1.0, 2.0, 3.0, 4.0, True, False), tp.arange(4), backend="interpreter")


def test_exact_sizes_have_exact_numbers(captures) -> None:
    f = tp.compile(lambda x, n: x * n, backend="interpreter", dynamic=False, recompile_limit=20)
    for n in range(10):
        f(tp.ones(2), float(n))
    assert len(captures) == 10
