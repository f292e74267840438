"""Graphs as kernels: what is fused, what is written where, and what is said about it."""

from __future__ import annotations

import gc
import importlib.util
import math
import os
import subprocess
import sys
import textwrap
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensorplay as tp
from tensorplay.compiler.cpp import build
from tensorplay.utils.cpp_jit import MissingToolError
from tests.compiler.cpp.graphs import Builder, kernels


def normal(*shape: int, seed: int = 0, dtype: Any = np.float32) -> tp.Tensor:
    return tp.from_numpy(np.random.default_rng(seed).standard_normal(shape).astype(dtype))


def layer_norm(b: Builder, x: Any, weight: Any, bias: Any) -> Any:
    centred = b.sub(x, b.mean(x, (-1,), True))
    spread = b.rsqrt(b.add(b.mean(b.square(centred), (-1,), True), 1e-5))
    return b.add(b.mul(b.mul(centred, spread), weight), bias)


# --- fusion ---------------------------------------------------------------------------------------


def test_a_chain_is_one_kernel() -> None:
    x, y = normal(5, 7), normal(7, seed=1)
    b = Builder()
    a, c = b.input(x), b.input(y)
    f = b.compile(b.exp(b.where(b.gt(a, c), b.mul(a, 2.5), b.sub(c, a))))
    assert kernels(f) == [("gt", "mul", "sub", "where", "exp")]
    expected = tp.where(x > y, x * 2.5, y - x).exp().numpy()
    np.testing.assert_allclose(f(x, y)[0].numpy(), expected, rtol=1e-6)


def test_normalisation_is_one_kernel_of_three_sweeps() -> None:
    x, w, c = normal(9, 33), normal(33, seed=1), normal(33, seed=2)
    b = Builder()
    f = b.compile(layer_norm(b, b.input(x), b.input(w), b.input(c)))
    assert len(kernels(f)) == 1
    assert f.report.sources[0].count("// sweep") == 3
    expected = tp.nn.functional.layer_norm(x, (33,), w, c).numpy()
    np.testing.assert_allclose(f(x, w, c)[0].numpy(), expected, rtol=1e-5, atol=1e-6)


def test_only_loops_that_evaluate_functions_read_ahead() -> None:
    x, w, c = normal(9, 33), normal(33, seed=1), normal(33, seed=2)
    b = Builder()
    light = b.compile(layer_norm(b, b.input(x), b.input(w), b.input(c)))
    b = Builder()
    a, shared = b.input(x), b.input(w)
    heavy = b.compile(b.mul(b.exp(a), shared))
    assert "prefetch(" not in light.report.sources[0]
    assert "prefetch(" in heavy.report.sources[0]


def test_forward_and_derivative_share_their_tanh() -> None:
    x, g = normal(50), normal(50, seed=1)
    b = Builder()
    a, d = b.input(x), b.input(g)
    squared = b.mul(a, a)
    scale = math.sqrt(2 / math.pi)
    inner = b.mul(b.add(b.mul(squared, scale * 0.044715), scale), a)
    f = b.compile(b.gelu(a, approximate="tanh"), b.mul(d, b.tanh(inner)))
    assert len(kernels(f)) == 1
    assert f.report.sources[0].count("tanh(") == 1
    y, z = f(x, g)
    np.testing.assert_allclose(y.numpy(), tp.nn.functional.gelu(x, approximate="tanh").numpy(),
                               rtol=2e-6, atol=1e-6)  # fmt: skip
    assert z.shape == (50,)


def test_matrix_products_stay_the_library_s() -> None:
    x, w = normal(4, 6), normal(6, 5, seed=1)
    b = Builder()
    a, c = b.input(x), b.input(w)
    f = b.compile(b.relu(b.add(b.matmul(b.mul(a, 2), c), 1)))
    kinds = [(r.kind, r.operators) for r in f.report.regions]
    assert kinds == [("kernel", ("mul",)), ("library", ("matmul",)), ("kernel", ("add", "relu"))]
    np.testing.assert_allclose(f(x, w)[0].numpy(), ((x * 2) @ w + 1).relu().numpy(), rtol=1e-5,
                               atol=1e-6)  # fmt: skip


def test_nothing_runs_before_what_it_needs() -> None:
    # y = exp(x); z = sort(y); y + z: the sum must not join the kernel of exp.
    x = normal(6)
    b = Builder()
    y = b.exp(b.input(x))
    z = b.flip(y, (0,))
    f = b.compile(b.add(y, z))
    assert kernels(f) == [("exp",), ("add",)]
    np.testing.assert_allclose(f(x)[0].numpy(), (x.exp() + x.exp().flip(0)).numpy(), rtol=1e-6)


def test_loss_and_gradient_are_one_kernel() -> None:
    x, y = normal(70, 3), normal(70, 3, seed=1)
    b = Builder()
    a, c = b.input(x), b.input(y)
    d = b.sub(a, c)
    f = b.compile(b.div(b.sum(b.mul(d, d)), 210.0), b.mul(d, 2 / 210))
    assert len(kernels(f)) == 1
    loss, grad = f(x, y)
    np.testing.assert_allclose(loss.numpy(), (x - y).square().mean().numpy(), rtol=1e-6)
    np.testing.assert_allclose(grad.numpy(), ((x - y) * (2 / 210)).numpy(), rtol=1e-6)


def test_flat_and_kept_results_of_a_reduction() -> None:
    x = normal(4, 5, 6)
    b = Builder()
    a = b.input(x)
    flat = b.sum(a, (1, 2))
    f = b.compile(
        flat, b.mul(b.reshape(flat, (4, 1, 1)), a), b.sum(a, (1, 2), True), b.mul(flat, 3)
    )
    assert len(kernels(f)) == 1
    s = x.numpy().sum((1, 2))
    expected = s, s[:, None, None] * x.numpy(), s[:, None, None], s * 3
    for ours, theirs in zip(f(x), expected, strict=True):
        np.testing.assert_allclose(ours.numpy(), theirs, rtol=1e-5, atol=1e-5)


def test_equal_kernels_are_compiled_once() -> None:
    x, w = normal(3, 3), normal(3, 3, seed=1)
    b = Builder()
    a, c = b.input(x), b.input(w)
    y = a
    for number in (0.123, 0.456, 0.789):
        y = b.mul(b.tanh(b.matmul(y, c)), number)
    f = b.compile(y)
    assert f.report.sources[0].count('extern "C" void') == 1
    expected = x
    for number in (0.123, 0.456, 0.789):
        expected = (expected @ w).tanh() * number
    np.testing.assert_allclose(f(x, w)[0].numpy(), expected.numpy(), rtol=1e-5, atol=1e-6)


# --- shapes ---------------------------------------------------------------------------------------


def test_other_sizes_start_no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    b = Builder()
    a = b.input(normal(8, 16))
    f = b.compile(b.softmax(a, -1), b.sum(b.exp(a)))
    monkeypatch.setattr(build, "find_or_build", None)
    for shape in ((1, 1), (3, 5), (64, 1000), (2, 16385), (1000, 7)):
        x = normal(*shape)
        e = np.exp(x.numpy() - x.numpy().max(-1, keepdims=True))
        ours, total = f(x)
        np.testing.assert_allclose(ours.numpy(), e / e.sum(-1, keepdims=True), rtol=3e-6)
        np.testing.assert_allclose(total.numpy(), np.exp(x.numpy()).sum(dtype=float), rtol=1e-5)


def test_other_numbers_start_no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    def graph(rate: float) -> Any:
        b = Builder()
        a = b.input(normal(9))
        return b.compile(b.sub(a, b.mul(a, rate)))

    graph(0.125).report  # noqa: B018 - builds it
    graph(0.0137)
    monkeypatch.setattr(build, "find_or_build", None)
    x = normal(9)
    np.testing.assert_array_equal(graph(0.0291)(x)[0].numpy(), (x - x * 0.0291).numpy())


def test_results_lie_as_the_graph_says() -> None:
    x = normal(6, 4).t()
    for expected in (x * 3, (x * 3).contiguous()):
        b = Builder()
        node = b.mul(b.input(x), 3)
        node.meta["val"] = expected.to("meta")
        (result,) = b.compile(node)(x)
        assert result.stride() == expected.stride()
        np.testing.assert_allclose(result.numpy(), expected.numpy())


# --- writes ---------------------------------------------------------------------------------------


def adam(b: Builder, p: Any, g: Any, m: Any, v: Any) -> tuple[Any, ...]:
    m2 = b.add(b.mul(m, 0.9), g, alpha=0.1)
    v2 = b.addcmul(b.mul(v, 0.999), g, g, value=0.001)
    p2 = b.sub(p, b.div(b.mul(m2, 1e-3), b.add(b.sqrt(v2), 1e-8)))
    return b.write(m, m2), b.write(v, v2), b.write(p, p2)


def test_an_update_is_written_once_by_its_kernel() -> None:
    p, g, m, v = (normal(1000, seed=i) for i in range(4))
    v = v * v
    b = Builder()
    f = b.compile(*adam(b, *(b.input(t) for t in (p, g, m, v))))
    assert len(kernels(f)) == 1
    assert len(f.report.writes) == 3
    m2, v2 = m * 0.9 + g * 0.1, v * 0.999 + g * g * 0.001
    p2 = p - m2 * 1e-3 / (v2.sqrt() + 1e-8)
    versions = [t._version for t in (p, m, v)]
    addresses = [t.data_ptr() for t in (p, m, v)]
    f(p, g, m, v)
    for ours, theirs in ((p, p2), (m, m2), (v, v2)):
        np.testing.assert_allclose(ours.numpy(), theirs.numpy(), rtol=1e-6, atol=1e-9)
    assert [t._version for t in (p, m, v)] == [n + 1 for n in versions]
    assert [t.data_ptr() for t in (p, m, v)] == addresses


def test_a_written_value_may_also_be_a_result() -> None:
    x = normal(40)
    b = Builder()
    a = b.input(x)
    y = b.add(b.mul(a, 2), 1)
    f = b.compile(y, b.write(a, y))
    expected = x.numpy() * 2 + 1
    result, written = f(x)
    np.testing.assert_array_equal(result.numpy(), expected)
    np.testing.assert_array_equal(x.numpy(), expected)
    assert written is x
    x.zero_()
    np.testing.assert_array_equal(result.numpy(), expected)


def test_operands_that_overlap_what_is_written_are_read_first() -> None:
    memory = normal(101)
    b = Builder()
    f_in = [b.input(normal(100)), b.input(normal(100))]
    f = b.compile(b.write(f_in[0], b.add(f_in[0], f_in[1])))
    x, y = memory[1:], memory[:-1]
    expected = memory.numpy()[1:] + memory.numpy()[:-1]
    f(x, y)
    np.testing.assert_array_equal(memory.numpy()[1:], expected)


def test_what_is_read_later_is_not_written_early() -> None:
    x, w = normal(4, 4), normal(4, 4, seed=1)
    b = Builder()
    a, c = b.input(x), b.input(w)
    y = b.mul(a, 2)
    f = b.compile(b.matmul(a, c), b.write(a, y))
    before = x.numpy().copy()
    product, _ = f(x, w)
    np.testing.assert_allclose(product.numpy(), before @ w.numpy(), rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(x.numpy(), before * 2)


def test_memory_that_may_not_be_written_is_refused() -> None:
    b = Builder()
    a = b.input(normal(8))
    f = b.compile(b.write(a, b.add(a, 1)))
    one = normal(1)
    before = one.item()
    with pytest.raises(RuntimeError, match="write"):
        f(one.expand(8))
    assert one.item() == before


def test_small_calls_say_why_they_are_slower() -> None:
    found = tp.compiler.explain(lambda x: x + 1)(tp.ones(8))
    assert not found.slower_because or "8 elements" in found.slower_because


# --- memory, threads, processes -------------------------------------------------------------------


def test_large_results_are_whole_and_freed() -> None:
    from tensorplay._native import core

    x = normal(3_000_001)
    b = Builder()
    a = b.input(x)
    f = b.compile(b.add(b.mul(a, 3), 0.1), b.sum(b.mul(a, a)))
    expected = (x * 3 + 0.1).numpy()
    for _ in range(5):
        y, total = f(x)
        np.testing.assert_array_equal(y.numpy(), expected)
        np.testing.assert_allclose(total.numpy(), (x.numpy().astype(float) ** 2).sum(), rtol=1e-6)
    if core is not None:
        del y
        gc.collect()
        assert core.kept_memory(True) >= 3_000_001 * 4
        assert core.kept_memory(False) == 0


def test_rows_of_large_calls_are_whole() -> None:
    # Beyond 32 MiB results go past the caches if rows are whole vectors; 1001 elements are not.
    for shape in ((4100, 1024), (4200, 1001)):
        x = normal(*shape)
        b = Builder()
        f = b.compile(b.mul(b.softmax(b.input(x), -1), 2.0))
        np.testing.assert_allclose(f(x)[0].numpy(), (x.softmax(-1) * 2.0).numpy(), rtol=1e-5)


def test_results_of_a_kernel_begin_at_different_places_of_a_page() -> None:
    if tp._native.core is None:
        pytest.skip("no extension was built")
    b = Builder()
    x = b.input(normal(1 << 18))
    f = b.compile(b.mul(x, 2), b.add(x, 1), b.mul(x, x))
    for _ in range(5):
        places = [t.data_ptr() % 4096 for t in f(normal(1 << 18))]
        assert len(set(places)) == 3
        assert all(p % 64 == 0 for p in places)


def test_scratch_of_an_enormous_row_is_not_kept() -> None:
    if tp._native.core is None:
        pytest.skip("no extension was built")
    x = normal(2, 8_000_000)
    b = Builder()
    f = b.compile(b.softmax(b.input(x), -1))
    f(normal(2, 1000))

    def resident() -> int:
        gc.collect()
        assert tp._native.core is not None
        tp._native.core.kept_memory(True)
        lines = status.read_text().splitlines()
        return 1024 * int(next(line for line in lines if line.startswith("VmRSS")).split()[1])

    status = Path("/proc/self/status")
    if not status.exists():
        pytest.skip("the system does not say how much memory is used")
    before = resident()
    assert f(x)[0].shape == (2, 8_000_000)
    assert resident() - before < 24_000_000  # a row of scratch has 32 MB


def test_arrays_of_numpy_inside_of_a_compiled_graph_are_of_kept_memory() -> None:
    core = tp._native.core
    if core is None:
        pytest.skip("no extension was built")
    x = normal(300, 301)
    b = Builder()
    f = b.compile(b.roll(b.input(x), (1,), (0,)))
    expected = np.roll(x.numpy(), 1, 0)
    results = [f(x)[0] for _ in range(3)]
    core.kept_memory(True)
    for result in results:
        np.testing.assert_array_equal(result.numpy(), expected)
    del results, result
    gc.collect()
    assert core.kept_memory(False) >= 3 * expected.nbytes
    # Outside of a call NumPy's own memory is used, also after one that raised.
    with pytest.raises(ZeroDivisionError):
        core.call_keeping(lambda: 1 / 0)
    core.kept_memory(True)
    del expected
    assert core.kept_memory(False) == 0


def test_kept_memory_grows_and_shrinks_with_its_array() -> None:
    core = tp._native.core
    if core is None:
        pytest.skip("no extension was built")
    for start in (10, 50_000):
        values = core.call_keeping(np.arange, start)
        values.resize(90_000, refcheck=False)
        values.resize(9, refcheck=False)
        np.testing.assert_array_equal(values, np.arange(9))
    zeros = core.call_keeping(np.zeros, 70_000)
    zeros[:] = 1
    del zeros
    assert not core.call_keeping(np.zeros, 70_000).any()


def test_results_do_not_depend_on_the_number_of_threads() -> None:
    from tensorplay._native import core

    if core is None:
        pytest.skip("without the extension kernels run in the calling thread")
    x = normal(500, 1003)
    b = Builder()
    a = b.input(x)
    f = b.compile(b.softmax(a, -1), b.sum(b.sin(a)), b.tanh(a))
    before = core.threads()
    found = []
    try:
        for count in (1, 2, 3):
            core.set_threads(count)
            found.append([t.numpy().tobytes() for t in f(x)])
    finally:
        core.set_threads(before)
    assert found[0] == found[1] == found[2]


def test_calls_from_several_threads() -> None:
    x = normal(300, 1000)
    b = Builder()
    a = b.input(x)
    f = b.compile(b.softmax(a, -1), b.sum(a))
    expected = [t.numpy().tobytes() for t in f(x)]
    wrong: list[int] = []

    def work(number: int) -> None:
        found = [[t.numpy().tobytes() for t in f(x)] for _ in range(10)]
        wrong.extend(number for results in found if results != expected)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
def test_a_forked_process_computes_too() -> None:
    script = """
        import os, warnings
        import numpy as np
        import tensorplay as tp
        from tests.compiler.cpp.graphs import Builder
        warnings.simplefilter("ignore")
        x = tp.from_numpy(np.ones((500, 1000), np.float32))
        b = Builder()
        a = b.input(x)
        f = b.compile(b.add(b.mul(a, 3), 1), b.sum(a))
        f(x)
        child = os.fork()
        if child == 0:
            y, total = f(x)
            os._exit(0 if (y.numpy() == 4).all() and total.item() == 500000 else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert (f(x)[0].numpy() == 4).all()
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(script)], check=True, timeout=120)


def test_without_the_extension_the_results_are_the_same() -> None:
    script = """
        import hashlib, sys
        import numpy as np
        import tensorplay as tp
        from tests.compiler.cpp.graphs import Builder
        rng = np.random.default_rng(0)
        x = tp.from_numpy(rng.standard_normal((37, 501)).astype(np.float32))
        y = tp.from_numpy(rng.standard_normal((37, 1)).astype(np.float32))
        b = Builder()
        a, c = b.input(x), b.input(y)
        s = b.softmax(a, -1)
        f = b.compile(s, b.add(b.mul(a, c), 0.3), b.sum(b.exp(a)), b.mean(a, (0, 1), True),
                      b.gt(a, c), b.amax(a, (-1,)), b.write(a, b.mul(s, 2)))
        for t in (x, tp.from_numpy(x.numpy()[:, ::-1])):
            # Sums of everything are of other pieces.
            print([hashlib.sha1(r.numpy().tobytes()).hexdigest() if r.numel() > 1
                   else f"{r.item():.5g}" for r in f(t, y)])
    """
    said = [
        subprocess.run(
            [sys.executable, "-c", textwrap.dedent(script)],
            env={**os.environ, "TENSORPLAY_NATIVE": native},
            check=True, timeout=120, capture_output=True, text=True,
        ).stdout
        for native in ("1", "0")
    ]  # fmt: skip
    assert said[0] == said[1] != ""


def test_another_process_finds_the_kernels() -> None:
    script = """
        import tensorplay as tp
        from tests.compiler.cpp.graphs import Builder
        b = Builder()
        a = b.input(tp.ones(3))
        f = b.compile(b.mul(b.cos(a), 0.77))
        print(f.report.cached, f(tp.zeros(3))[0].tolist())
    """
    said = [
        subprocess.run(
            [sys.executable, "-c", textwrap.dedent(script)],
            check=True, timeout=120, capture_output=True, text=True,
        ).stdout
        for _ in range(2)
    ]  # fmt: skip
    assert said[0].startswith("False")
    assert said[1].startswith("True")
    assert said[0].split(" ", 1)[1] == said[1].split(" ", 1)[1]


# --- what is said ---------------------------------------------------------------------------------


def test_the_report_names_what_stays_in_python_and_why() -> None:
    x = normal(6, 5)
    b = Builder()
    a = b.input(x)
    f = b.compile(b.add(b.cumsum(b.exp(a), 0), b.sum(a, (0,))))
    reasons = {r.operators: (r.kind, r.reason) for r in f.report.regions}
    assert reasons["cumsum",] == ("python", "no C++ is known for cumsum")
    assert reasons["sum",] == ("python", "sum over dimensions that are not the last ones")
    assert f.report.to_dict()["regions"][0]["kind"] == "kernel"
    expected = (x.exp().cumsum(0) + x.sum(0)).numpy()
    np.testing.assert_allclose(f(x)[0].numpy(), expected, rtol=1e-5)


def test_strict_native_refuses_what_stays_in_python() -> None:
    b = Builder()
    node = b.cumsum(b.exp(b.input(normal(6))), 0)
    with pytest.raises(RuntimeError, match=r"strict_native.*cumsum \(no C\+\+ is known"):
        b.compile(node, strict_native=True)


def test_without_a_compiler_the_error_says_so(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("CXX", "")
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    monkeypatch.setattr("tensorplay.utils.cpp_jit.toolchain._zig", lambda: None)
    b = Builder()
    node = b.mul(b.sigmoid(b.erfc(b.input(normal(6)))), 0.7171)
    with pytest.raises(MissingToolError, match="compiler"):
        b.compile(node)


def test_without_what_builds_need_the_error_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda n, *r: None if n == "platformdirs" else found(n, *r)
    )
    b = Builder()
    node = b.mul(b.sigmoid(b.erfc(b.input(normal(6)))), 0.7172)
    with pytest.raises(MissingToolError, match=r"platformdirs.*'tensorplay-workbench\[jit\]'"):
        b.compile(node)


def test_options_of_other_backends_say_nothing() -> None:
    b = Builder()
    f = b.compile(b.neg(b.input(normal(3))), mode="max-autotune", dynamic=True, name="mine 1")
    assert "mine1_neg_0" in f.report.sources[0]


def test_an_empty_graph_gives_its_inputs() -> None:
    x = normal(3)
    b = Builder()
    a = b.input(x)
    assert b.compile(a, a)(x)[0] is x
