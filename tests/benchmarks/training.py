"""What a step of training costs beside torch's eager mode, and what memory it takes.

``python -m tests.benchmarks.training`` prints two tables. Steps are forward, backward and gradient
descent; both sides take turns in one process, on two threads each, and the lowest time of each
counts. The compiled step stands beside torch's eager one, and jax.jit's where jax is installed.
Memory is the largest resident size of a process that trains, over that of one that only imported
the library.
"""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from collections.abc import Callable
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import pytest

import tensorplay as tp
from tests.benchmarks.eager import THREADS, lowest, peer, timed

# Most of the other side's time, and of its memory.
LIMITS = {"mlp 32-64-64-10": 0.5, "mlp 784-512-512-10": 1.0, "cnn 16x3x32x32": 1.3}
MOST_COMPILED = 0.32  # of torch's eager step, which is what jax.jit takes of it
MOST_MEMORY = 1.0
BATCHES = {"mlp 32-64-64-10": 32, "mlp 784-512-512-10": 256, "cnn 16x3x32x32": 16}


class Row(NamedTuple):
    """The lowest seconds, or the bytes, of one case: ours, and the other side's if it is there."""

    label: str
    ours: float
    theirs: float | None
    limit: float | None


def model(nn: Any, label: str) -> Any:
    """Return the module of a case."""
    if label.startswith("mlp"):
        sizes = [int(size) for size in label.split()[1].split("-")]
        layers: list[Any] = []
        for fan_in, fan_out in pairwise(sizes):
            layers += [nn.Linear(fan_in, fan_out), nn.ReLU()]
        return nn.Sequential(*layers[:-1])
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(32 * 8 * 8, 10),
    )


def data(label: str) -> tuple[Any, Any]:
    """Return inputs and classes of a case."""
    rng = np.random.default_rng(0)
    first = label.split()[1].partition("-")[0]
    shape = (3, 32, 32) if label.startswith("cnn") else (int(first),)
    count = BATCHES[label]
    return rng.random((count, *shape), np.float32), rng.integers(0, 10, count)


def step_of(module: Any, label: str) -> Callable[[], Any]:
    """Return one step of training with `module`, which is torch or tensorplay."""
    net = model(module.nn, label)
    optimizer = module.optim.SGD(net.parameters(), lr=1e-3)
    x, y = (module.from_numpy(part) for part in data(label))
    loss_of = module.nn.functional.cross_entropy

    def step() -> Any:
        loss = loss_of(net(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    return step


def steps(*, rounds: int, number: int) -> list[Row]:
    """Measure the steps of all cases."""
    torch = peer()
    found = []
    for label, limit in LIMITS.items():
        ours = timed("step()", {"step": step_of(tp, label)})
        theirs = torch and timed("step()", {"step": step_of(torch, label)})
        runs = number if "64-64" in label else max(1, number // 20)
        found.append(Row(label, *lowest(ours, theirs, rounds=rounds, number=runs), limit))
    return found


def jax_step(label: str) -> Callable[[], Any] | None:
    """Return the same step by jax.jit, None where jax is not installed."""
    try:
        jax = importlib.import_module("jax")
    except ImportError:
        return None
    jnp = importlib.import_module("jax.numpy")
    net = model(tp.nn, label)
    weights = [jnp.asarray(p.detach().numpy()) for p in net.parameters()]
    x, y = (jnp.asarray(part) for part in data(label))

    def loss(weights: Any) -> Any:
        h = x
        for i in range(0, len(weights), 2):
            h = h @ weights[i].T + weights[i + 1]
            h = jax.nn.relu(h) if i + 2 < len(weights) else h
        logs = jax.nn.log_softmax(h)
        return -logs[jnp.arange(len(y)), y].mean()

    @jax.jit
    def update(weights: Any) -> Any:
        slopes = jax.grad(loss)(weights)
        return [w - 1e-3 * g for w, g in zip(weights, slopes, strict=True)]

    def step() -> Any:
        nonlocal weights
        weights = update(weights)
        jax.block_until_ready(weights)

    return step


def compiled_step(label: str) -> Callable[[], Any]:
    """Return one step whose model and loss are compiled."""
    net = model(tp.nn, label)
    optimizer = tp.optim.SGD(net.parameters(), lr=1e-3)
    x, y = (tp.from_numpy(part) for part in data(label))
    loss_of = tp.compile(lambda x, y: tp.nn.functional.cross_entropy(net(x), y))

    def step() -> Any:
        loss_of(x, y).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def compiled(*, rounds: int, number: int) -> list[Row]:
    """Measure the compiled step of the small model beside torch's eager one, and jax.jit's."""
    label = "mlp 32-64-64-10"
    torch = peer()
    ours = timed("step()", {"step": compiled_step(label)})
    eager = torch and timed("step()", {"step": step_of(torch, label)})
    rows = [
        Row(f"{label}, compiled", *lowest(ours, eager, rounds=rounds, number=number), MOST_COMPILED)
    ]
    step = jax_step(label)
    if step is not None:
        other = timed("step()", {"step": step})
        found = lowest(ours, other, rounds=rounds, number=number)
        rows.append(Row("the same beside jax.jit", *found, None))
    return rows


def resident(library: str, label: str, count: int) -> int:
    """Return by how many bytes `count` steps raise the largest resident size of a process."""
    code = (
        "import importlib, json, re\n"
        "from pathlib import Path\n"
        "from tests.benchmarks.training import step_of\n"
        f"module = importlib.import_module({library!r})\n"
        # getrusage counts the process that this one was forked from.
        "status = Path('/proc/self/status')\n"
        "size = lambda: int(re.search(r'VmHWM:\\s*(\\d+)', status.read_text())[1]) * 1024\n"
        "before = size()\n"
        f"step = step_of(module, {label!r})\n"
        f"for _ in range({count}):\n    step()\n"
        "print(json.dumps(size() - before))"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    return int(json.loads(done.stdout))


def memory(*, count: int) -> list[Row]:
    """Measure what the larger model takes."""
    label = "mlp 784-512-512-10"
    theirs = resident("torch", label, count) if peer() is not None else None
    return [Row(label, resident("tensorplay", label, count), theirs, MOST_MEMORY)]


def printed(rows: list[Row], unit: str, factor: float) -> None:
    """Write a table."""
    for label, ours, theirs, limit in rows:
        text = f"  {label:30} {ours * factor:10.1f} {unit}"
        if theirs is not None:
            text += f" {theirs * factor:12.1f} {unit}    {ours / theirs:.2f}"
        if limit is not None:
            text += f"  (at most {limit})"
        sys.stdout.write(text + "\n")


def main() -> None:
    """Print the tables."""
    sys.stdout.write(f"{THREADS} threads, NumPy {np.__version__}\nsteps, ours and torch's\n")
    if peer() is None:
        sys.stdout.write("  torch is not installed: our times alone\n")
    printed(steps(rounds=15, number=100), "us", 1e6)
    sys.stdout.write("a compiled step, ours and torch's eager one\n")
    printed(compiled(rounds=15, number=100), "us", 1e6)
    sys.stdout.write("memory of 20 steps, ours and torch's\n")
    printed(memory(count=20), "MiB", 2**-20)


@pytest.mark.benchmark
def test_small() -> None:
    """Every case runs, and learns: the loss falls."""
    for label in LIMITS:
        step = step_of(tp, label)
        losses = [step().item() for _ in range(4)]
        assert losses[-1] < losses[0]
    assert all(row.ours > 0 for row in steps(rounds=1, number=1))
    assert memory(count=1)[0].ours > 0


if __name__ == "__main__":
    main()
