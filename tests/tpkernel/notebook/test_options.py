"""Options of ``%%tpkernel`` as a person gives them, and files of the notebook's folder."""

from __future__ import annotations

import argparse
import gc
from pathlib import Path

import numpy as np
import pytest

import tpkernel
from tests.tpkernel.shell import ADD1, SOFTPLUS, Shell
from tpkernel.cells.cell import KEYS
from tpkernel.notebook.commands import COMMANDS
from tpkernel.notebook.magic import TpKernelMagics


def test_help_documents_every_option_key_and_command(shell: Shell):
    shown = shell.run("%%tpkernel?").shown
    options = [a for a in TpKernelMagics.tpkernel.parser._actions if a.option_strings]
    for action in options:
        hidden = action.help == argparse.SUPPRESS
        assert (action.option_strings[0] in shown) is not hidden, action
        assert hidden or len(action.help.split()) > 2
    assert len(options) > 15
    for key, text in KEYS.items():
        assert f"  {key} " in shown
        assert text in shown
    for command in COMMANDS.values():
        assert f"%tpkernel {command.usage}" in shown


def test_strided_inputs_are_copied_where_the_line_says_so(shell: Shell):  # B003
    x = np.arange(8, dtype=np.float32)
    views = [x[::2], x[:4][::-1], x.reshape(4, 2)[:, 1], x.reshape(2, 4).T]
    assert "float32, on cpu, contiguous, read only" in shell.kernel(ADD1).text
    for view in views:
        with pytest.raises(ValueError, match=r"\[add1\] argument 'x'.*strides"):
            shell["add1"](view, np.zeros(view.shape, np.float32))
    ran = shell.kernel(ADD1, "--contiguous copy")
    assert "x         float32, on cpu, contiguous or else copied, read only" in ran.text
    assert "out       float32, on cpu, contiguous, written" in ran.text
    for view in views:
        out = np.zeros(view.shape, np.float32)
        shell["add1"](view, out)
        np.testing.assert_array_equal(out, view + 1)
    with pytest.raises(ValueError, match="argument 'out'"):
        shell["add1"](x[:4], np.zeros(8, np.float32)[::2])
    for shape in ((1, 5), (4, 0, 4), ()):
        shell["add1"](np.zeros(shape, np.float32), np.zeros(shape, np.float32))


def test_a_layout_of_copies_is_told_with_the_guards():
    text = SOFTPLUS.replace("derivatives:", "layout: copy\nderivatives:")
    guards = dict(tpkernel.build(text, checks=False).operators[0].guards)
    assert "contiguous or else copied, read only" in guards["x"]
    assert "copied" not in guards["out"]


def test_memory_may_be_shared_where_the_line_says_so(shell: Shell):
    assert "contiguous, written, memory of its own" in shell.kernel(ADD1).text
    x = np.zeros(3, np.float32)
    with pytest.raises(ValueError, match="shared with argument 'x'"):
        shell["add1"](x, x)
    assert "of its own" not in shell.kernel(ADD1, "--allow-alias").text
    shell["add1"](x, x)
    assert x.tolist() == [1.0] * 3


def test_debug_compiles_without_optimisation_and_with_symbols(shell: Shell):
    assert shell.kernel(SOFTPLUS, "--debug --no-check").error is None
    (command, *_) = tpkernel.last_report().build.commands
    assert [word for word in command if word.startswith("-O")][-1] == "-O0"  # the last counts
    assert "-g" in command


def test_headers_of_the_notebooks_folder_are_found(
    shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "inc").mkdir()
    beside, inside = tmp_path / "beside.h", tmp_path / "inc" / "inside.h"
    text = '#include "beside.h"\n#include <inside.h>\nint64_t sum() { return A + B; }'
    for a, b in ((1, 10), (2, 10), (2, 20)):  # B005: the cell is unchanged
        beside.write_text(f"#define A {a}\n")
        inside.write_text(f"#define B {b}\n")
        for line in ("--flags=-Iinc", "-- -I inc"):
            ran = shell.kernel(text, line)
            assert ran.error is None, ran.shown
            assert shell.ok("sum()").result == a + b


def test_of_many_messages_ten_are_shown(shell: Shell):  # B024
    text = "int64_t f() {\n" + "".join(f"  bad{i}();\n" for i in range(14)) + "  return 1;\n}"
    ran = shell.kernel(text)
    assert ran.shown.count(": error: ") == 10
    assert "… and 4 more in .diagnostics; everything in .log" in ran.shown
    assert [d.line for d in ran.error.diagnostics] == list(range(3, 17))
    assert "bad13" in ran.error.log


def test_a_crash_of_an_isolated_call_names_function_and_signal(shell: Shell):  # B001
    text = "void poke() { volatile int* p = nullptr; *p = 1; }"
    assert shell.kernel(text, "--name seg --functions poke --isolate").error is None
    ran = shell.run("seg.poke()")
    assert isinstance(ran.error, tpkernel.KernelCrash)
    assert "[poke] signal 11 (SIGSEGV" in ran.shown
    assert shell.ok("1 + 1").result == 2


def test_buttons_of_a_cells_report_live_as_long_as_the_cell(shell: Shell):  # B041
    from ipywidgets.widgets.widget import _instances

    view = "application/vnd.jupyter.widget-view+json"
    model = shell.kernel(SOFTPLUS).outputs[0].data[view]["model_id"]
    shell.ok("del softplus")
    gc.collect()
    widget = _instances[model]
    widget._handle_custom_msg({"action": "opcheck"}, [])
    assert widget.wait(60)
    assert widget.last_error is None
    assert widget.report.opcheck
    del widget
    shell.kernel(SOFTPLUS)
    assert model not in _instances
