"""What calls cost beside torch's eager mode, large arrays beside NumPy, and what the import takes.

``python -m tests.benchmarks.eager`` prints four tables; names of them as arguments print those
only. Both sides of a row take turns in one process, on two threads each, and the lowest time of
each counts: other load on the machine can only raise it, and short batches, many of them, find a
moment without any. Without torch the rows of calls have our
times alone, and a line says so.
"""

from __future__ import annotations

import gc
import importlib
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
import timeit
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest

import tensorplay as tp

THREADS = 2
# Most of the other side's time: as the geometric mean of the calls, or of each row.
LIMITS = {"calls": 0.75, "recorded calls": 0.7, "step": 0.55, "elementwise": 1.1, "matmul": 1.05}
MOST_OF_ONE_CALL = 1.0
MOST_SECONDS_OF_IMPORT = 0.15  # beyond those of NumPy's import

# One call each, on `x` and `y` of the given shape.
CALLS = (
    ("add [3]", "x + y", (3,)),
    ("add [64]", "x + y", (64,)),
    ("mul [3]", "x * y", (3,)),
    ("mul [64]", "x * y", (64,)),
    ("exp [3]", "x.exp()", (3,)),
    ("exp [64]", "x.exp()", (64,)),
    ("sum [3]", "x.sum()", (3,)),
    ("sum [64]", "x.sum()", (64,)),
    ("reshape [64]", "x.reshape(8, 8)", (64,)),
    ("getitem int [3]", "x[1]", (3,)),
    ("getitem slice [64]", "x[8:40]", (64,)),
    ("matmul [8, 8]", "x @ y", (8, 8)),
)


class Row(NamedTuple):
    """The lowest seconds of one case, ours and those of the other side if it is there."""

    table: str
    label: str
    ours: float
    theirs: float | None


def peer(threads: int = THREADS) -> Any:
    """Return torch, None if it is not installed."""
    try:
        torch = importlib.import_module("torch")
    except ImportError:
        return None
    torch.set_num_threads(threads)
    return torch


def lowest(
    ours: Callable[[int], float], theirs: Callable[[int], float] | None, *, rounds: int, number: int
) -> tuple[float, float | None]:
    """Return the lowest seconds of one run of each, which take turns in batches of `number`."""
    sides = [side for side in (ours, theirs) if side is not None]
    for side in sides:
        side(max(1, number // 4))
    found = [math.inf] * len(sides)
    for _ in range(rounds):
        for position, side in enumerate(sides):
            found[position] = min(found[position], side(number) / number)
    return found[0], found[1] if theirs is not None else None


def timed(statement: str, names: dict[str, Any]) -> Callable[[int], float]:
    """Return a function that runs a statement so often, without a call around it."""
    # Collecting garbage belongs to the cost: who makes more objects pays for them.
    return timeit.Timer(statement, "gc.enable()", globals={**names, "gc": gc}).timeit


def operands(module: Any, shape: tuple[int, ...], *, recorded: bool) -> dict[str, Any]:
    """Return `x` and `y`, float32 tensors of `module`."""
    rng = np.random.default_rng(0)
    made = [module.from_numpy(rng.random(shape, np.float32)) for _ in range(2)]
    return dict(zip("xy", [t.requires_grad_(recorded) for t in made], strict=True))


def calls(*, rounds: int, number: int) -> Iterator[Row]:
    """Measure small calls, without and with a record for the reverse pass."""
    torch = peer()
    for table, recorded in (("calls", False), ("recorded calls", True)):
        for label, statement, shape in CALLS:
            ours = timed(statement, operands(tp, shape, recorded=recorded))
            theirs = torch and timed(statement, operands(torch, shape, recorded=recorded))
            yield Row(table, label, *lowest(ours, theirs, rounds=rounds, number=number))


def step_of(module: Any) -> Callable[[], Any]:
    """Return one training step of a chain of 20 operators on 8 elements."""
    w = module.from_numpy(np.linspace(0.1, 0.8, 8)).requires_grad_()

    def step() -> Any:
        y = w
        for _ in range(5):
            y = y * 1.01
            y = module.tanh(y)
            y = y + 0.1
            y = module.sin(y)
        loss = y.sum()
        loss.backward()
        with module.no_grad():
            w.sub_(w.grad, alpha=0.01)
        w.grad = None
        return loss

    return step


def steps(*, rounds: int, number: int) -> Iterator[Row]:
    """Measure forward, backward and the step of gradient descent together."""
    torch = peer()
    ours = timed("step()", {"step": step_of(tp)})
    theirs = torch and timed("step()", {"step": step_of(torch)})
    found = lowest(ours, theirs, rounds=rounds, number=max(1, number // 20))
    yield Row("step", "20 operators on [8]", *found)


def large(*, rounds: int, number: int, size: int = 4_000_000, side: int = 1024) -> Iterator[Row]:
    """Measure operators on large arrays beside NumPy's own functions."""
    rng = np.random.default_rng(0)
    a, b = (rng.random(size, np.float32) for _ in range(2))
    names = {"np": np, "a": a, "b": b, "x": tp.from_numpy(a), "y": tp.from_numpy(b)}
    for label, ours, theirs in (
        ("add", "x + y", "a + b"),
        ("mul", "x * y", "a * b"),
        ("mul by a number", "x * 1.5", "a * np.float32(1.5)"),
        ("exp", "x.exp()", "np.exp(a)"),
        ("sqrt", "x.sqrt()", "np.sqrt(a)"),
        ("maximum", "x.maximum(y)", "np.maximum(a, b)"),
    ):
        found = lowest(timed(ours, names), timed(theirs, names), rounds=rounds, number=number)
        yield Row("elementwise", f"{label} [{size}]", *found)
    square = rng.random((side, side), np.float32)
    names = {"a": square, "x": tp.from_numpy(square)}
    found = lowest(timed("x @ x", names), timed("a @ a", names), rounds=rounds, number=1)
    yield Row("matmul", f"matmul [{side}, {side}]", *found)


def imports(*, rounds: int) -> Row:
    """Measure the import of the package and of NumPy, each in processes of its own by turns."""

    def seconds(module: str) -> float:
        code = (
            "import time; start = time.perf_counter(); "
            f"import {module}; print(time.perf_counter() - start)"
        )
        done = subprocess.run(
            [sys.executable, "-c", code],
            check=True,
            capture_output=True,
            text=True,
            env=environment,
        )
        return float(done.stdout)

    # As for people, whose Python keeps what it compiled; here in a folder of our own.
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "PYTHONPYCACHEPREFIX": folder}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        seconds("tensorplay")
        pairs = [(seconds("tensorplay"), seconds("numpy")) for _ in range(rounds)]
    ours, theirs = (min(side) for side in zip(*pairs, strict=True))
    return Row("import", "import", ours, theirs)


def geometric_mean(rows: list[Row]) -> float:
    """Return the mean ratio of rows that have both sides."""
    return statistics.geometric_mean([r.ours / r.theirs for r in rows if r.theirs is not None])


@pytest.mark.benchmark
def test_every_row_is_measured():
    rows = [
        *calls(rounds=1, number=4),
        *steps(rounds=1, number=20),
        *large(rounds=1, number=1, size=1000, side=16),
        imports(rounds=1),
    ]
    assert {row.table for row in rows} == {*LIMITS, "import"}
    assert all(row.ours > 0 for row in rows)
    present = peer() is not None
    assert all(
        (row.theirs is not None) == (present or row.table in {"elementwise", "matmul", "import"})
        for row in rows
    )


def show(row: Row, unit: float = 1e9, name: str = "ns") -> None:
    """Print a row."""
    text = f"  {row.label:<24}{row.ours * unit:12.1f} {name}"
    if row.theirs is not None:
        text += f"{row.theirs * unit:12.1f} {name}{row.ours / row.theirs:8.2f}"
    sys.stdout.write(f"{text}\n")


def main(*wanted: str) -> None:
    """Print the tables."""
    write = sys.stdout.write
    write(f"{THREADS} threads, {os.cpu_count()} processors, Python {sys.version.split()[0]}, ")
    write(f"NumPy {np.__version__}, {time.strftime('%Y-%m-%d')}\n")
    if peer() is None:
        write("torch is not installed: calls and steps have no other side\n")
    if not wanted or "calls" in wanted:
        rows = list(calls(rounds=500, number=250))
        for table in ("calls", "recorded calls"):
            write(f"{table}, ours and torch's (each at most {MOST_OF_ONE_CALL})\n")
            members = [row for row in rows if row.table == table]
            for row in members:
                show(row)
            if peer() is not None:
                mean = geometric_mean(members)
                write(f"  geometric mean {mean:.2f} (at most {LIMITS[table]})\n")
    if not wanted or "step" in wanted:
        write(f"forward, backward and step, ours and torch's (at most {LIMITS['step']})\n")
        for row in steps(rounds=500, number=100):
            show(row, 1e6, "us")
    if not wanted or "large" in wanted:
        limits = f"at most {LIMITS['elementwise']}, matmul {LIMITS['matmul']}"
        write(f"large arrays, ours and NumPy's ({limits})\n")
        for row in large(rounds=25, number=3):
            show(row, 1e3, "ms")
    if not wanted or "import" in wanted:
        row = imports(rounds=15)
        extra = row.ours - (row.theirs or 0.0)
        write(f"import, ours and NumPy's (at most {MOST_SECONDS_OF_IMPORT} s more)\n")
        show(row, 1e3, "ms")
        write(f"  {extra:.3f} s more\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
