"""Compiled functions on large arrays beside hand-written C and the peers that are installed.

``python -m tests.benchmarks.compile`` prints a table of milliseconds, and then what a first call, a
call on 8 elements and a new shape cost. Names of cases as arguments print those only. All sides of
a row take turns in one process, on two threads each, and the lowest time of each counts: other load
on the machine can only raise it. Peers that are not installed are named in a line.

On a machine that is busy with other things, ``--cpu`` compares the processor time of one thread.

The C is compiled with ``-O3 -march=native -ffast-math -fopenmp`` and glibc's vector functions. It
writes to memory that is there already, as numba's loops and numexpr do, and computes gelu and its
gradient in one pass with one tanh, where ours are two kernels, since a backward pass comes later.
Ours keeps the rules for NaN and signed zeros, and returns new tensors, as torch.compile and jax do.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import math
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensorplay as tp
from tensorplay import _native

THREADS = 2
ROW = 1024
#: Most of the time of the hand-written loop, and of any peer's.
MOST_OF_C = 1.25
MOST_OF_PEERS = 1.0
MOST_OF_A_FIRST_CALL = 0.1
CASES = ("x*y+z", "20 operators", "gelu", "softmax", "layer norm", "Adam")
Side = dict[str, Callable[[], Any]]

C_SOURCE = """
#include <math.h>
#include <stdint.h>
typedef float* restrict out;
typedef const float* restrict in;
#define EACH _Pragma("omp parallel for simd schedule(static)") for (int64_t i = 0; i < n; i++)
#define ROWS _Pragma("omp parallel for schedule(static)") for (int64_t r = 0; r < n / 1024; r++)
void fma3(in x, in y, in z, out o, int64_t n) { EACH o[i] = x[i] * y[i] + z[i]; }
#define STEP v = sinf(tanhf(v * 1.01f) + 0.1f);
void chain(in x, out o, int64_t n) { EACH { float v = x[i]; STEP STEP STEP STEP STEP o[i] = v; } }
void gelu(in x, in g, out o, out d, int64_t n) {
  EACH {
    const float v = x[i], s = v * v, t = tanhf(0.79788456f * v * (1 + 0.044715f * s));
    o[i] = 0.5f * v * (1 + t);
    d[i] = g[i] * 0.5f * (1 + t + v * (1 - t * t) * 0.79788456f * (1 + 0.134145f * s));
  }
}
void softmax(in x, out o, int64_t n) {
  ROWS {
    const float* a = x + r * 1024;
    float *b = o + r * 1024, most = a[0], sum = 0;
    _Pragma("omp simd reduction(max:most)")
    for (int i = 0; i < 1024; i++) most = a[i] > most ? a[i] : most;
    _Pragma("omp simd reduction(+:sum)")
    for (int i = 0; i < 1024; i++) { b[i] = expf(a[i] - most); sum += b[i]; }
    const float scale = 1 / sum;
    _Pragma("omp simd") for (int i = 0; i < 1024; i++) b[i] *= scale;
  }
}
void layer_norm(in x, in w, in c, out o, int64_t n) {
  ROWS {
    const float* a = x + r * 1024;
    float *b = o + r * 1024, sum = 0, squares = 0;
    _Pragma("omp simd reduction(+:sum)") for (int i = 0; i < 1024; i++) sum += a[i];
    const float mean = sum / 1024;
    _Pragma("omp simd reduction(+:squares)")
    for (int i = 0; i < 1024; i++) squares += (a[i] - mean) * (a[i] - mean);
    const float scale = 1 / sqrtf(squares / 1024 + 1e-5f);
    _Pragma("omp simd") for (int i = 0; i < 1024; i++) b[i] = (a[i] - mean) * scale * w[i] + c[i];
  }
}
void adam(out p, in g, out m, out v, int64_t n) {
  EACH {
    m[i] = m[i] * 0.9f + 0.1f * g[i];
    v[i] = v[i] * 0.999f + 0.001f * g[i] * g[i];
    p[i] -= 1e-3f * m[i] / (sqrtf(v[i]) + 1e-8f);
  }
}
"""


class Data:
    """The arrays of a run: rows of 1024 float32.

    All sides that can write to arrays which are there share those, `p`, `m`, `v` and `o`: where in
    the machine's memory an array lies changes the time of a loop by up to a half.
    """

    def __init__(self, size: int) -> None:
        random = np.random.default_rng(0)
        shape = (max(1, size // ROW), ROW)
        self.x, self.y, self.z, self.g = (
            random.standard_normal(shape).astype(np.float32) for _ in range(4)
        )
        self.w, self.c = (random.standard_normal(ROW).astype(np.float32) for _ in range(2))
        self.p, self.m, self.v = (random.random(shape).astype(np.float32) for _ in range(3))
        self.o = np.zeros_like(self.x)


def threads() -> int:
    """Return how many threads each side gets."""
    return int(os.environ.get("OMP_NUM_THREADS", str(THREADS)))


# --- sides ----------------------------------------------------------------------------------------


def chain(module: Any) -> Callable[[Any], Any]:
    """Return 20 elementwise operators in the words of a module."""

    def run(y: Any) -> Any:
        for _ in range(5):
            y = module.sin(module.tanh(y * 1.01) + 0.1)
        return y

    return run


def adam(p: Any, g: Any, m: Any, v: Any) -> None:
    """Update parameters and averages in place."""
    m.mul_(0.9).add_(g, alpha=0.1)
    v.mul_(0.999).addcmul_(g, g, value=0.001)
    p.sub_(m * 1e-3 / (v.sqrt() + 1e-8))


def gelu_step(compiled: Any, x: Any, g: Any) -> Callable[[], Any]:
    """Return forward and backward of a compiled function of one tensor that requires grad."""

    def run() -> Any:
        x.grad = None
        y = compiled(x)
        y.backward(g)
        return y

    return run


def torch_like(module: Any, compiling: Callable[..., Any], data: Data) -> Side:
    """Return the cases for a module with PyTorch's names."""
    functional = module.nn.functional
    x, y, z, g, w, c = (
        module.from_numpy(a) for a in (data.x, data.y, data.z, data.g, data.w, data.c)
    )
    p, m, v = (module.from_numpy(a) for a in (data.p, data.m, data.v))
    fma = compiling(lambda x, y, z: x * y + z)
    twenty = compiling(chain(module))
    gelu = compiling(lambda x: functional.gelu(x, approximate="tanh"))
    softmax = compiling(lambda x: functional.softmax(x, -1))
    norm = compiling(lambda x, w, c: functional.layer_norm(x, (ROW,), w, c))
    update = compiling(adam)
    leaf = module.from_numpy(data.x).clone().requires_grad_()
    return {
        "x*y+z": lambda: fma(x, y, z),
        "20 operators": lambda: twenty(x),
        "gelu": gelu_step(gelu, leaf, g),
        "softmax": lambda: softmax(x),
        "layer norm": lambda: norm(x, w, c),
        "Adam": lambda: update(p, g, m, v),
    }


def ours(data: Data) -> Side:
    """Return the cases as `tensorplay.compile` runs them."""
    return torch_like(tp, lambda f: tp.compile(f, fullgraph=True), data)


def by_hand(data: Data) -> Side:
    """Return the cases in C, compiled here."""
    compiler = shutil.which("gcc")
    if compiler is None:
        raise ImportError("no gcc")
    with tempfile.TemporaryDirectory() as folder:
        source, library = Path(folder, "loops.c"), Path(folder, "loops.so")
        source.write_text(C_SOURCE)
        flags = ("-O3", "-march=native", "-ffast-math", "-fopenmp", "-shared", "-fPIC")
        command = [compiler, *flags, str(source), "-o", str(library), "-lmvec", "-lm"]
        subprocess.run(command, check=True)
        functions = ctypes.CDLL(str(library))
        ctypes.CDLL("libgomp.so.1").omp_set_num_threads(threads())
    count = ctypes.c_int64(data.x.size)
    o, d = data.o, np.zeros_like(data.x)

    def call(name: str, *arrays: Any) -> Callable[[], Any]:
        function = functions[name]
        arguments = [*(ctypes.c_void_p(a.ctypes.data) for a in arrays), count]
        return lambda: (function(*arguments), arrays)[1]

    return {
        "x*y+z": call("fma3", data.x, data.y, data.z, o),
        "20 operators": call("chain", data.x, o),
        "gelu": call("gelu", data.x, data.g, o, d),
        "softmax": call("softmax", data.x, o),
        "layer norm": call("layer_norm", data.x, data.w, data.c, o),
        "Adam": call("adam", data.p, data.g, data.m, data.v),
    }


def torch_side(data: Data) -> Side:
    """Return the cases as torch.compile runs them."""
    torch = importlib.import_module("torch")
    torch.set_num_threads(threads())
    return torch_like(torch, torch.compile, data)


def jax_side(data: Data) -> Side:
    """Return the cases as jax.jit runs them, results awaited."""
    jax = importlib.import_module("jax")
    jnp = jax.numpy
    x, y, z, g, w, c = map(jnp.asarray, (data.x, data.y, data.z, data.g, data.w, data.c))

    def norm(x: Any, w: Any, c: Any) -> Any:
        centred = x - x.mean(-1, keepdims=True)
        spread = jax.lax.rsqrt((centred * centred).mean(-1, keepdims=True) + 1e-5)
        return centred * spread * w + c

    def gelu(x: Any, g: Any) -> Any:
        value, pull = jax.vjp(lambda x: jax.nn.gelu(x, approximate=True), x)
        return value, pull(g)

    def update(p: Any, g: Any, m: Any, v: Any) -> Any:
        m, v = m * 0.9 + 0.1 * g, v * 0.999 + 0.001 * g * g
        return p - 1e-3 * m / (jnp.sqrt(v) + 1e-8), m, v

    step = jax.jit(update, donate_argnums=(0, 2, 3))
    state = [jnp.array(a) for a in (data.p, data.m, data.v)]  # it gives away what it is given

    def adam_step() -> Any:
        state[:] = step(state[0], g, state[1], state[2])
        return jax.block_until_ready(state[0])

    def waiting(function: Any, *arguments: Any) -> Callable[[], Any]:
        compiled = jax.jit(function)
        return lambda: jax.block_until_ready(compiled(*arguments))

    return {
        "x*y+z": waiting(lambda x, y, z: x * y + z, x, y, z),
        "20 operators": waiting(chain(jnp), x),
        "gelu": waiting(gelu, x, g),
        "softmax": waiting(lambda x: jax.nn.softmax(x, -1), x),
        "layer norm": waiting(norm, x, w, c),
        "Adam": adam_step,
    }


def numba_side(data: Data) -> Side:
    """Return the cases as parallel loops of numba, with its fast mathematics."""
    numba = importlib.import_module("numba")
    numba.set_num_threads(threads())
    each = numba.prange
    one = np.float32

    def fma(x: Any, y: Any, z: Any, o: Any) -> None:
        for i in each(x.size):
            o[i] = x[i] * y[i] + z[i]

    def softmax(x: Any, o: Any) -> None:
        for r in each(x.shape[0]):
            most, total = x[r, 0], one(0)
            for i in range(x.shape[1]):
                most = max(most, x[r, i])
            for i in range(x.shape[1]):
                o[r, i] = np.exp(x[r, i] - most)
                total += o[r, i]
            scale = one(1) / total
            for i in range(x.shape[1]):
                o[r, i] *= scale

    def norm(x: Any, w: Any, c: Any, o: Any) -> None:
        for r in each(x.shape[0]):
            total, squares, n = one(0), one(0), one(x.shape[1])
            for i in range(x.shape[1]):
                total += x[r, i]
            mean = total / n
            for i in range(x.shape[1]):
                squares += (x[r, i] - mean) * (x[r, i] - mean)
            scale = one(1) / np.sqrt(squares / n + one(1e-5))
            for i in range(x.shape[1]):
                o[r, i] = (x[r, i] - mean) * scale * w[i] + c[i]

    def update(p: Any, g: Any, m: Any, v: Any) -> None:
        for i in each(p.size):
            m[i] = m[i] * one(0.9) + one(0.1) * g[i]
            v[i] = v[i] * one(0.999) + one(0.001) * g[i] * g[i]
            p[i] -= one(1e-3) * m[i] / (np.sqrt(v[i]) + one(1e-8))

    def parallel(function: Any, *arguments: Any) -> Callable[[], Any]:
        compiled = numba.njit(parallel=True, fastmath=True)(function)
        return lambda: compiled(*arguments)

    flat = [a.reshape(-1) for a in (data.x, data.y, data.z, data.o)]
    state = [a.reshape(-1) for a in (data.p, data.g, data.m, data.v)]
    return {
        "x*y+z": parallel(fma, *flat),
        "softmax": parallel(softmax, data.x, data.o),
        "layer norm": parallel(norm, data.x, data.w, data.c, data.o),
        "Adam": parallel(update, *state),
    }


def numexpr_side(data: Data) -> Side:
    """Return the elementwise cases as expressions of numexpr."""
    numexpr = importlib.import_module("numexpr")
    numexpr.set_num_threads(threads())
    names = {"x": data.x, "y": data.y, "z": data.z, "k": np.float32(1.01), "s": np.float32(0.1)}
    twenty = "x"
    for _ in range(5):
        twenty = f"sin(tanh(({twenty}) * k) + s)"

    def evaluate(text: str) -> Callable[[], Any]:
        return lambda: numexpr.evaluate(text, names, out=data.o)

    return {"x*y+z": evaluate("x * y + z"), "20 operators": evaluate(twenty)}


SIDES: dict[str, Callable[[Data], Side]] = {
    "tensorplay": ours, "C": by_hand, "torch.compile": torch_side, "jax.jit": jax_side,
    "numba": numba_side, "numexpr": numexpr_side,
}  # fmt: skip


# --- measuring ------------------------------------------------------------------------------------


def sides(data: Data) -> tuple[dict[str, Side], dict[str, str]]:
    """Return the sides that are there, and for the others why they are not."""
    found, missing = {}, {}
    for name, make in SIDES.items():
        try:
            found[name] = make(data)
        except (ImportError, OSError, subprocess.CalledProcessError) as error:
            missing[name] = str(error)
    return found, missing


def large(
    wanted: tuple[str, ...],
    *,
    size: int,
    rounds: int,
    number: int,
    clock: Callable[[], float] = time.perf_counter,
) -> tuple[dict[str, dict[str, float]], dict[str, str]]:
    """Return the lowest seconds of each case and side, which take turns, and what is missing."""
    found, missing = sides(Data(size))
    best: dict[str, dict[str, float]] = {}
    for case in wanted:
        present = {name: side[case] for name, side in found.items() if case in side}
        for run in present.values():
            run()
            run()
        best[case] = dict.fromkeys(present, math.inf)
    for _ in range(rounds):
        for case in wanted:
            for name in best[case]:
                run = found[name][case]
                for _ in range(number):
                    start = clock()
                    result = run()
                    best[case][name] = min(best[case][name], clock() - start)
                    del result
    return best, missing


FIRST = """
import os, sys, tempfile, time
folder = tempfile.mkdtemp()
os.environ["TENSORPLAY_CACHE_DIR"] = os.environ["TORCHINDUCTOR_CACHE_DIR"] = folder
import numpy as np
import importlib
module = importlib.import_module({module!r})
x = module.from_numpy(np.ones(4096, np.float32))
from tests.benchmarks.compile import chain
f = module.compile(chain(module))
start = time.perf_counter()
f(x)
print(time.perf_counter() - start)
"""


def first_call(module: str) -> float | None:
    """Return the seconds of the first call of the 20 operators in a new process, empty caches."""
    done = subprocess.run(
        [sys.executable, "-c", FIRST.format(module=module)],
        capture_output=True, text=True, check=False, cwd=Path(__file__).parents[2],
    )  # fmt: skip
    return float(done.stdout.split()[-1]) if done.returncode == 0 else None


def small_calls(*, rounds: int, number: int) -> Iterator[tuple[str, dict[str, float]]]:
    """Yield what a call on 8 elements, and a first call with a new shape, take at best."""
    values = np.linspace(-1, 1, 8, dtype=np.float32)
    modules = {"tensorplay": tp}
    with contextlib.suppress(ImportError):
        modules["torch.compile"] = importlib.import_module("torch")
    functions = {name: (module.compile(chain(module)), module) for name, module in modules.items()}
    found = dict.fromkeys(functions, math.inf)
    for _ in range(rounds):
        for name, (f, module) in functions.items():
            x = module.from_numpy(values)
            f(x)
            start = time.perf_counter()
            for _ in range(number):
                f(x)
            found[name] = min(found[name], (time.perf_counter() - start) / number)
    yield "20 operators on [8]", found
    f = tp.compile(chain(tp))
    f(tp.ones(5))
    shapes = []
    for size in range(6, 6 + max(3, rounds // 4)):
        x = tp.ones(size)
        start = time.perf_counter()
        f(x)
        shapes.append(time.perf_counter() - start)
    yield "a new shape", {"tensorplay": min(shapes)}


def use_threads(count: int) -> None:
    """Give every side so many threads; before any of them starts some."""
    os.environ.update(OMP_NUM_THREADS=str(count), NUMBA_NUM_THREADS=str(count))
    if count == 1:
        os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false"
    if _native.core is not None:
        _native.core.set_threads(count)


# --- the table ------------------------------------------------------------------------------------


@pytest.mark.benchmark
def test_every_row_is_measured() -> None:
    best, missing = large(CASES, size=64 * ROW, rounds=1, number=1)
    assert tuple(best) == CASES
    assert all(seconds > 0 for row in best.values() for seconds in row.values())
    assert all("tensorplay" in row for row in best.values())
    assert {"tensorplay"} <= SIDES.keys() - missing.keys()
    rows = dict(small_calls(rounds=1, number=2))
    assert set(rows) == {"20 operators on [8]", "a new shape"}
    assert (first_call("tensorplay") or 0) > 0


@pytest.mark.benchmark
def test_all_sides_compute_the_same() -> None:
    found, _ = sides(Data(64 * ROW))
    for case in ("x*y+z", "20 operators", "softmax", "layer norm"):
        expected = np.asarray(found["tensorplay"][case]())
        for name, side in found.items():
            if case in side and name not in {"numba", "C"}:
                result = np.asarray(side[case]())
                np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-4, err_msg=name)
    if "C" in found:
        *_, out = found["C"]["softmax"]()
        expected = np.asarray(found["tensorplay"]["softmax"]())
        np.testing.assert_allclose(out, expected, rtol=1e-4, atol=1e-6)


def main(*wanted: str) -> None:
    """Print the table."""
    write = sys.stdout.write
    cpu = "--cpu" in wanted
    named = [word for word in wanted if word != "--cpu"]
    cases = tuple(case for case in CASES if not named or case in named)
    rounds = int(os.environ.get("ROUNDS", "12"))
    use_threads(1 if cpu else THREADS)
    clock = time.process_time if cpu else time.perf_counter
    # Threads of the side before look for more work for a while, and disturb the first calls.
    best, missing = large(cases, size=4096 * ROW, rounds=rounds, number=16, clock=clock)
    write("processor time, " if cpu else "")
    write(f"{threads()} threads, {os.cpu_count()} processors, Python {sys.version.split()[0]}, ")
    write(f"NumPy {np.__version__}, {time.strftime('%Y-%m-%d')}\n")
    for name, why in missing.items():
        write(f"{name} is left out: {why}\n")
    names = [name for name in SIDES if name not in missing]
    write(f"4M float32, ms{'':12}{''.join(f'{name:>15}' for name in names)}   of C, of peers\n")
    for case, row in best.items():
        cells = [f"{row[n] * 1e3:15.2f}" if n in row else f"{'-':>15}" for n in names]
        peers = [s for n, s in row.items() if n not in {"tensorplay", "C"}]
        mine = row["tensorplay"]
        ratios = [mine / row["C"] if "C" in row else None, mine / min(peers) if peers else None]
        shown = ", ".join("-" if r is None else f"{r:.2f}" for r in ratios)
        write(f"{case:<26}{''.join(cells)}   {shown}\n")
    write(f"(at most {MOST_OF_C} of C, {MOST_OF_PEERS} of the best peer)\n")
    if named or cpu:
        return
    for label, seconds in small_calls(rounds=20, number=200):
        shown = ", ".join(f"{name} {s * 1e6:.1f} us" for name, s in seconds.items())
        write(f"{label}: {shown}\n")
    first = {name: first_call(name) for name in ("tensorplay", "torch")}
    shown = ", ".join(f"{n} {s:.2f} s" for n, s in first.items() if s is not None)
    write(f"first call of 20 operators: {shown} (at most {MOST_OF_A_FIRST_CALL} of torch's)\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
