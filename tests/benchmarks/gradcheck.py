"""Time of `gradcheck`, and of small training steps, beside torch where it is installed.

``OPENBLAS_NUM_THREADS=1 python -m tests.benchmarks.gradcheck`` prints a table. Both sides check the
same function at the same numbers and take turns in one process, on one thread each. What counts is
processor time, which other load on the machine changes little. Without torch the table has our
times alone.
"""

from __future__ import annotations

import gc
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import tensorplay as tp
from tests.benchmarks.eager import peer, step_of

SIZES = (50, 200, 1000)
LIMITS = {"slow": 0.25, "fast": 0.7, "step": 0.55}  # of torch's time

Thunk = Callable[[], Any]


def arrays(name: str, size: int) -> list[np.ndarray]:
    """Return the inputs of a function, of about `size` elements together."""
    rng = np.random.default_rng(0)
    if name == "tanh(x@w)":
        rows = max(1, round((size / 2) ** 0.5))
        return [rng.standard_normal((rows, rows)) for _ in range(2)]
    if name == "softmax":
        return [rng.standard_normal((size // 10, 10))]
    side = round((size / 2) ** 0.5)
    return [rng.standard_normal((1, 2, side, side)), rng.standard_normal((2, 2, 3, 3))]


def functions(module: Any) -> dict[str, Callable[..., Any]]:
    """Return the functions checked, in terms of `module`."""
    convolve = module.conv2d if module is tp else module.nn.functional.conv2d
    return {
        "tanh(x@w)": lambda x, w: module.tanh(x @ w),
        "softmax": lambda x: module.softmax(x, -1),
        "conv 3x3": lambda x, w: convolve(x, w, None, 1, 1),
    }


def checks(mode: str) -> Iterator[tuple[str, Thunk, Thunk | None]]:
    """Yield a label, our check, and torch's of the same function and numbers."""
    torch = peer(threads=1)  # the tensors are small, and ours run on one thread too
    for name in functions(tp):
        for size in SIZES:
            ours = [tp.from_numpy(a.copy()).requires_grad_() for a in arrays(name, size)]
            function = functions(tp)[name]

            def check(function: Any = function, ours: Any = ours) -> Any:
                return tp.autograd.gradcheck(function, tuple(ours), fast_mode=mode == "fast")

            theirs = None
            if torch is not None:
                tensors = [torch.from_numpy(a.copy()).requires_grad_() for a in arrays(name, size)]
                same = functions(torch)[name]

                def theirs(same: Any = same, tensors: Any = tensors) -> Any:
                    return torch.autograd.gradcheck(same, tuple(tensors), fast_mode=mode == "fast")

            yield f"{mode} {name} {size}", check, theirs


def alternate(ours: Thunk, theirs: Thunk | None, seconds: float) -> tuple[float, float | None]:
    """Return the median time of each, taken by turns for about `seconds`.

    As in `timeit` no garbage is collected meanwhile: whose turn that falls in is chance.
    """
    ours()
    if theirs is not None:
        theirs()
    taken: list[list[float]] = [[], []]
    gc.collect()
    gc.disable()
    try:
        stop = time.perf_counter() + seconds
        while time.perf_counter() < stop or len(taken[0]) < 3:
            for times, thunk in zip(taken, (ours, theirs), strict=True):
                if thunk is not None:
                    start = time.process_time()
                    thunk()
                    times.append(time.process_time() - start)
    finally:
        gc.enable()
    return statistics.median(taken[0]), statistics.median(taken[1]) if taken[1] else None


def repeated(thunk: Thunk, times: int) -> Thunk:
    """Return a function that calls `thunk` many times, as one is too short to time."""

    def run() -> None:
        for _ in range(times):
            thunk()

    return run


def rows(seconds: float) -> Iterator[tuple[str, str, float, float | None]]:
    """Yield kind, label and the two times of every case."""
    torch = peer(threads=1)
    for mode in ("slow", "fast"):
        for label, ours, theirs in checks(mode):
            yield (mode, label, *alternate(ours, theirs, seconds))
    count = 100
    ours, theirs = alternate(
        repeated(step_of(tp), count),
        None if torch is None else repeated(step_of(torch), count),
        seconds,
    )
    yield "step", "step 20 operators", ours / count, None if theirs is None else theirs / count


@pytest.mark.benchmark
def test_the_table_of_gradchecks_is_measured():
    warnings.simplefilter("ignore")
    measured = list(rows(0.05))
    assert all(ours > 0 for _, _, ours, _ in measured)


def main() -> None:
    """Print the table."""
    for kind, label, ours, theirs in rows(0.5):
        text = f"{label:<24}{ours * 1e3:10.3f} ms"
        if theirs is not None:
            text += f"{theirs * 1e3:10.3f} ms{ours / theirs:8.2f} (at most {LIMITS[kind]})"
        sys.stdout.write(f"{text}\n")


if __name__ == "__main__":
    main()
