"""What calling a user's operator costs over its body, beside torch's custom operators.

``python -m tests.benchmarks.library`` prints a table. Both sides of a row take turns in one
process and the lowest time of each counts. Without torch our own times are printed alone, and a
line says so.
"""

from __future__ import annotations

import sys
import timeit
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest

import tensorplay as tp
from tests.benchmarks.eager import peer

#: Most of the other side's time, by the start of the row's label.
LIMITS = {"call": 0.12, "recorded": 0.2, "Function": 0.3}


class Row(NamedTuple):
    """The lowest seconds over the body of one case, ours and the other side's if it is there."""

    label: str
    ours: float
    theirs: float | None


def cases(lib: Any, empty: Callable[[], Any]) -> dict[str, tuple[Callable[[], Any], Any]]:
    """Return for each label a call, and the body that it contains."""

    def body(x: Any) -> Any:
        return empty()

    schema = "(Tensor x) -> Tensor"
    plain, formula = (
        lib.library.custom_op(f"bench_library::{name}", body, mutates_args=(), schema=schema)
        for name in ("plain", "formula")
    )
    formula.register_autograd(lambda ctx, grad: grad)

    class Double(lib.autograd.Function):  # type: ignore[misc]
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            ctx.factor = 2
            return x * 2

        @staticmethod
        def backward(ctx: Any, grad: Any) -> Any:
            return grad * ctx.factor

    x = lib.ones(3)
    leaf = lib.ones(3).requires_grad_()
    ones = lib.ones(3)

    def both() -> None:
        Double.apply(leaf).backward(ones)

    return {
        "call": (lambda: plain(x), lambda: body(x)),
        "call, gradient registered": (lambda: formula(x), lambda: body(x)),
        "recorded call": (lambda: formula(leaf), lambda: body(x)),
        "Function, forward and backward": (both, None),
    }


def measure(rounds: int, calls: int) -> list[Row]:
    """Return the rows; each round takes every side once."""
    ours = cases(tp, lambda: tp.from_numpy(np.empty(3, np.float32)))
    torch = peer()
    theirs = None if torch is None else cases(torch, lambda: torch.empty(3))
    rows = []
    for label, case in ours.items():
        sides = [case] if theirs is None else [case, theirs[label]]
        best = [[float("inf"), float("inf")] for _ in sides]
        for _ in range(rounds):
            for low, (call, body) in zip(best, sides, strict=True):
                low[0] = min(low[0], timeit.timeit(call, number=calls) / calls)
                if body is not None:
                    low[1] = min(low[1], timeit.timeit(body, number=calls) / calls)
        over = [c - (b if b < float("inf") else 0.0) for c, b in best]
        rows.append(Row(label, over[0], over[1] if len(over) > 1 else None))
    return rows


@pytest.mark.benchmark
def test_the_cost_of_calls_is_measured() -> None:
    rows = measure(1, 20)
    assert len(rows) == 4
    assert all(row.ours > 0 for row in rows)


def main() -> None:
    """Print the table."""
    rows = measure(15, 2000)
    if rows[0].theirs is None:
        sys.stdout.write("torch is not installed: our own times, in µs over the body\n")
    for row in rows:
        line = f"{row.label:<32}{row.ours * 1e6:8.2f} µs"
        if row.theirs is not None:
            limit = next(v for k, v in LIMITS.items() if row.label.startswith(k))
            line += f"{row.theirs * 1e6:9.2f} µs{row.ours / row.theirs:8.3f}   at most {limit}"
        sys.stdout.write(line + "\n")


if __name__ == "__main__":
    main()
