"""Anomaly mode: stops at nan, and shows where the forward step was called."""

from __future__ import annotations

import dataclasses
import sys
import traceback
import types

import pytest

import tensorplay as tp
from tensorplay.autograd import (
    Function,
    detect_anomaly,
    is_anomaly_check_nan_enabled,
    is_anomaly_enabled,
    set_detect_anomaly,
)


@pytest.fixture
def anomaly():
    with set_detect_anomaly(True):
        yield


def test_switches():
    assert not is_anomaly_enabled()
    with set_detect_anomaly(True, check_nan=False):
        assert is_anomaly_enabled()
        assert not is_anomaly_check_nan_enabled()
        with pytest.warns(UserWarning, match="Anomaly Detection"), detect_anomaly():
            assert is_anomaly_check_nan_enabled()
        assert not is_anomaly_check_nan_enabled()
    assert not is_anomaly_enabled()
    assert is_anomaly_check_nan_enabled()


def zero_times_infinity(x):
    return x.sqrt() * 0  # the step at fault


@pytest.mark.usefixtures("anomaly")
@pytest.mark.skipif(sys.version_info < (3, 11), reason="exceptions have no notes")
def test_nan_raises_and_shows_the_forward_call():
    x = tp.zeros(1, dtype=tp.float64, requires_grad=True)
    with pytest.raises(
        RuntimeError, match=r"Function 'SqrtBackward' returned nan values in its 0th output"
    ) as caught:
        zero_times_infinity(x).sum().backward()
    text = "".join(traceback.format_exception(caught.value))
    assert "Error detected in SqrtBackward" in text
    assert "return x.sqrt() * 0" in text
    assert "primitive.py" not in "".join(caught.value.__notes__)


@pytest.mark.usefixtures("anomaly")
@pytest.mark.skipif(sys.version_info < (3, 11), reason="exceptions have no notes")
@pytest.mark.parametrize("frozen", [False, True])
def test_any_error_shows_the_forward_call(frozen: bool):
    @dataclasses.dataclass(frozen=frozen)
    class MineError(Exception):
        text: str

    class Fails(Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, g):
            raise MineError("mine")

    x = tp.ones(1, requires_grad=True)
    with pytest.raises(MineError) as caught:
        Fails.apply(x).sum().backward()
    assert "Fails.apply(x).sum().backward()" in "".join(caught.value.__notes__)


# Before Python 3.11 errors take no notes, and the note is a warning.
@pytest.mark.filterwarnings("ignore:.*was recorded before anomaly detection:UserWarning")
def test_without_the_mode_nan_passes():
    x = tp.zeros(1, dtype=tp.float64, requires_grad=True)
    zero_times_infinity(x).sum().backward()
    assert x.grad.isnan().all()
    y = zero_times_infinity(x).sum()
    with set_detect_anomaly(True), pytest.raises(RuntimeError, match="nan values"):
        y.backward()
    with set_detect_anomaly(True, check_nan=False):
        zero_times_infinity(x).sum().backward()


@pytest.mark.usefixtures("anomaly")
@pytest.mark.skipif(sys.version_info < (3, 11), reason="exceptions have no notes")
def test_the_cell_and_line_of_a_notebook_are_named(monkeypatch):
    compilerop = pytest.importorskip("IPython.core.compilerop")
    compiler = compilerop.CachingCompiler()
    shell = types.SimpleNamespace(compile=compiler)
    monkeypatch.setitem(sys.modules, "IPython", types.SimpleNamespace(get_ipython=lambda: shell))
    namespace = {"tp": tp}

    def run(source, number):
        name = compiler.cache(source, number)
        exec(compiler(source, name, "exec"), namespace)

    run("def root(x):\n    y = x * 1\n    return y.sqrt() * 0\n", 3)
    run("x = tp.zeros(1, requires_grad=True)\nz = root(x).sum()\n", 7)
    with pytest.raises(RuntimeError, match="SqrtBackward") as caught:
        run("z.backward()", 8)
    note = "".join(caught.value.__notes__)
    first, *rest = note.splitlines()
    assert first.startswith("Error detected in SqrtBackward")
    assert rest[0].strip() == "Cell In[7], line 2, in <module>"
    assert rest[1].strip() == "z = root(x).sum()"
    assert rest[2].strip() == "Cell In[3], line 3, in root"
    assert rest[3].strip() == "return y.sqrt() * 0"
