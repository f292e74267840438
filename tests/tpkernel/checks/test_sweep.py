"""Sweeps: grids, executors, operators that travel, crashes that are rows."""

from __future__ import annotations

import concurrent.futures
import math
import multiprocessing
import pickle
import threading

import pytest

import tpkernel
from tensorplay.utils import cpp_jit
from tests.tpkernel.notebook.test_owners import in_cell
from tests.tpkernel.shell import MATMUL, SOFTPLUS, Shell
from tpkernel.checks.sweeps import Shipment, Sweep, sweep

CRASHING = SOFTPLUS.replace("  for", "  if (x.numel() == 7) __builtin_trap();\n  for")


@pytest.fixture(scope="module")
def softplus():
    return tpkernel.build(SOFTPLUS, checks=False)


@pytest.fixture(scope="module")
def pool():
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(2, mp_context=context) as executor:
        yield executor


GRID = {"x": [(3,), (2, 4)], "dtype": ["float32", "float64"]}


def test_a_grid_is_every_combination_in_order(softplus):
    seen = []
    found = sweep(softplus, GRID, progress=lambda done, total: seen.append((done, total)))
    assert [row.case for row in found.rows] == [
        {"x": x, "dtype": d} for x in GRID["x"] for d in GRID["dtype"]
    ]
    assert found.ok
    assert all(0 < row.values["worst"] < 1 for row in found.rows)
    assert seen == [(n, 4) for n in range(5)]


def test_the_operator_itself_and_single_cases(softplus):
    found = sweep(softplus.module.softplus, [{"seed": 3, "order": 2}, {"mode": "forward"}])
    assert [row.verdict for row in found.rows] == ["ok", "ok"]


def test_threads_give_the_same_rows(softplus):
    with concurrent.futures.ThreadPoolExecutor(2) as threads:
        here, there = sweep(softplus, GRID), sweep(softplus, GRID, threads)
    assert [(r.case, r.verdict, r.values) for r in here.rows] == [
        (r.case, r.verdict, r.values) for r in there.rows
    ]


@pytest.mark.slow
def test_a_process_pool_gives_the_same_rows(softplus, pool):
    here, there = sweep(softplus, GRID), sweep(softplus, GRID, pool)
    assert [(r.case, r.verdict, r.values) for r in here.rows] == [
        (r.case, r.verdict, r.values) for r in there.rows
    ]


@pytest.mark.slow
def test_dasks_scheduler_with_two_workers(softplus, missing):
    try:
        from distributed import Client, LocalCluster
    except ImportError:
        missing("distributed is not installed")
    with (
        LocalCluster(
            n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None
        ) as cluster,
        Client(cluster) as client,
    ):
        found = sweep(softplus, GRID, client.get_executor())
    assert found.ok
    assert len(found.rows) == 4


def test_a_library_that_is_not_there_travels(softplus, tmp_path):
    origin = softplus.origin
    whole = Shipment.of(origin.spec, softplus.build.library)
    sent = pickle.dumps(Shipment(whole.spec, "/no/such.so", whole.sha256, whole.content))
    moved = pickle.loads(sent)
    path = moved.place()
    assert path != softplus.build.library
    assert cpp_jit.load_module(path)
    assert moved.place() == path
    with pytest.raises(FileNotFoundError, match="was not sent"):
        Shipment(whole.spec, "/no/such.so", whole.sha256).place()


def test_a_crash_is_a_row_and_the_pool_lives_on(pool):
    report = tpkernel.build(CRASHING, checks=False)
    found = sweep(report, [{"x": (3,)}, {"x": (7,)}, {"x": (4,)}], pool)
    assert [row.verdict for row in found.rows] == ["ok", "error", "ok"]
    assert "signal 4 (SIGILL" in found.rows[1].message
    assert sweep(report, [{"x": (5,)}], pool).ok


def test_an_executor_that_loses_a_case_says_so(softplus):
    class Lost(concurrent.futures.Executor):
        def submit(self, fn, /, *args, **kwargs):
            future = concurrent.futures.Future()
            future.set_exception(RuntimeError("the node is gone"))
            return future

    (row,) = sweep(softplus, [{}], Lost()).rows
    assert row.verdict == "error"
    assert row.message == "RuntimeError: the node is gone"


def test_an_interrupt_cancels_what_has_not_begun(softplus):
    futures = []

    class Slow(concurrent.futures.Executor):
        def submit(self, fn, /, *args, **kwargs):
            futures.append(concurrent.futures.Future())
            return futures[-1]

    def tell(done, total):
        if done:
            raise KeyboardInterrupt

    def finish():
        futures[0].set_result(([], 0.0))

    timer = threading.Timer(0.2, finish)
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        sweep(softplus, [{}, {}], Slow(), progress=tell)
    timer.join()
    assert futures[1].cancelled()


def test_flags_build_a_library_each(softplus):
    found = sweep(softplus, {"flags": ["", "-O3 -march=native", ["-O1"]]}, check="timing")
    assert [row.verdict for row in found.rows] == ["ok"] * 3
    assert all(row.values["time"] > 0 for row in found.rows)


FLAGS = ["", "--no-such-flag", "-O1", "-DT=3"]


@pytest.mark.parametrize("where", ["here", "pool"])
def test_flags_that_do_not_build_are_rows_among_the_others(softplus, pool, where):
    seen = []
    found = sweep(
        softplus,
        {"flags": FLAGS},
        pool if where == "pool" else None,
        progress=lambda done, total: seen.append((done, total)),
    )
    assert [row.verdict for row in found.rows] == ["ok", "error", "ok", "error"]
    assert not found.ok
    first, last = found.rows[1], found.rows[3]
    assert first.message.startswith("does not build: error: unrecognized command-line option")
    assert "\n" not in last.message
    assert "type/value mismatch" in last.message
    assert last.error.count("\n") > 3
    assert "expected a type, got '3'" in last.error
    assert seen[-1] == (4, 4)
    assert "does not build" in found.to_text()
    assert "error" not in found.to_dicts()[3]  # a line of a table is no place for a whole log


def test_a_plot_leaves_out_what_did_not_build(softplus):
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("agg")
    found = sweep(softplus, {"flags": FLAGS})
    axes = found.plot()
    assert axes.get_xlabel() == "flags"
    assert [list(line.get_xdata()) for line in axes.lines] == [["", "-O1"]]
    assert [list(line.get_xdata()) for line in found.plot(y="seconds").lines] == [["", "-O1"]]
    matplotlib.pyplot.close("all")


def test_flags_of_which_none_builds_raise(softplus):
    with pytest.raises(cpp_jit.BuildError, match="unrecognized command-line option"):
        sweep(softplus, {"flags": ["--no-such-flag", "-DT=3"], "seed": [0, 1]})


def test_a_case_that_cannot_be_is_refused_before_anything_is_built(softplus):
    seen = []
    cases = [{"flags": "--no-such-flag"}, {"y": (3,)}]
    with pytest.raises(ValueError, match="no 'y' in a case of a gradcheck"):
        sweep(softplus, cases, progress=lambda *told: seen.append(told))
    assert not seen


def test_times_beside_a_reference():
    report = tpkernel.build(MATMUL, checks=False)
    cases = [{"x": (n, n), "w": (n, n)} for n in (4, 16)]
    found = sweep(report, cases, check="timing", reference="x @ w")
    assert {"time", "bandwidth", "limit", "reference"} <= found.rows[0].values.keys()


def test_a_validation_of_chosen_shapes(softplus):
    (row,) = sweep(softplus, [{"x": (2, 2)}], check="validation").rows
    assert row.verdict == "ok"
    assert (row.values["admitted"], row.values["combinations"]) == (4, 31)


def test_a_wrong_gradient_is_a_row_with_its_numbers():
    wrong = SOFTPLUS.replace("grad * sig", "2 * grad * sig")
    (row,) = sweep(tpkernel.build(wrong, checks=False), [{"x": (3,)}]).rows
    assert row.verdict == "wrong"
    assert row.values["worst"] > 1
    assert row.values["error"] == pytest.approx(0.5, abs=0.5)


@pytest.mark.parametrize(
    ("cases", "options", "said"),
    [
        ([{"y": (3,)}], {}, "no 'y' in a case of a gradcheck; known: x, dtype"),
        ([{"x": (3,), "dtype": "int64"}], {}, "expected float32 or float64, got int64"),
        ([{"step": 1e-3}], {"check": "timing"}, "no 'step' in a case of a timing"),
        ([{"dtype": "float32"}], {"check": "validation"}, "a validation tries every dtype"),
        ([{"x": 3}], {}, r"\[sweep\] argument 'shapes': expected a shape, .*, got {'x': 3}"),
        ([{"x": 3}], {"check": "timing"}, r"\[sweep\] argument 'shapes': expected a shape"),
        ([{"x": (-1,)}], {"check": "validation"}, r"\[sweep\] argument 'shapes': expected a"),
        ([{"seed": True}], {"check": "timing"}, r"\[sweep\] argument 'seed': expected a whole"),
        ([{"atol": -1.0}], {}, r"\[sweep\] argument 'atol': expected a finite number"),
        ([{}], {"check": "looks"}, "expected gradcheck, validation, timing"),
    ],
)
def test_cases_that_cannot_be_are_refused_before_anything_runs(softplus, cases, options, said):
    with pytest.raises(ValueError, match=said):
        sweep(softplus, cases, **options)


def test_what_is_no_operator_of_a_cell_is_refused(softplus):
    with pytest.raises(TypeError, match="expected an operator that a %%tpkernel cell bound"):
        sweep(math.sin, [{}])
    with pytest.raises(TypeError, match="expected mappings"):
        sweep(softplus, [3])
    with pytest.raises(cpp_jit.BuildError):
        sweep(softplus, [{"flags": "--no-such-flag"}])


def test_a_notebook_shows_how_far_a_sweep_is(shell: Shell):
    shell.kernel(SOFTPLUS, "--no-check")
    in_cell(shell, "one")
    ran = shell.ok("import tpkernel\ntpkernel.sweep(softplus, {'x': [(2,), (3,), (4,)]})")
    from ipywidgets.widgets.widget import _instances

    view = "application/vnd.jupyter.widget-view+json"
    (bar,) = [o.data[view]["model_id"] for o in ran.outputs if view in o.data]
    shown = _instances[bar]
    assert (shown.value, shown.max, shown.description) == (3, 3, "3 of 3")
    assert shown.bar_style == "success"
    in_cell(shell, None)
    assert not shell.ok("tpkernel.sweep(softplus, [{}])").outputs[:-1]  # nobody would see it


def test_rows_are_plain_text_html_and_a_frame(softplus, missing):
    found = sweep(softplus, [{"x": (3,)}, {"x": (2, 2)}])
    assert found.to_dicts()[1]["x"] == "(2, 2)"
    text, html = found.to_text(), found.to_html()
    for word in ("✔ pass", "x (2, 2)", "worst"):
        assert word in text
        assert word in html
    assert "\n" not in html
    try:
        import pandas as pd
    except ImportError:
        missing("pandas is not installed")
    frame = found.to_frame()
    assert isinstance(frame, pd.DataFrame)
    assert list(frame["verdict"]) == ["ok", "ok"]


def test_a_plot_has_the_varying_part_on_its_axis(softplus):
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("agg")
    found = sweep(softplus, {"x": [(3,)], "seed": [0, 1, 2]})
    axes = found.plot()
    assert axes.get_xlabel() == "seed"
    assert axes.get_ylabel() == "worst"
    assert len(axes.lines[0].get_xdata()) == 3
    assert found.plot(x="x", y="error", ax=axes) is axes
    with pytest.raises(ValueError, match="no 'time' in the rows"):
        found.plot(y="time")
    matplotlib.pyplot.close("all")


def test_a_notebooks_operator_can_be_swept(shell: Shell):
    shell.ok(f"%%tpkernel --no-check\n{SOFTPLUS}")
    shell.ok("import tpkernel\nfound = tpkernel.sweep(softplus, {'x': [(2,), (3,)]})")
    assert isinstance(shell["found"], Sweep)
    assert shell["found"].ok
