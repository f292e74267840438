"""Cells that use functions of earlier cells by ``#include "cell:NAME"``."""

from __future__ import annotations

from pathlib import Path

import pytest

import tensorplay as tp
import tpkernel
from tests.tpkernel.shell import Shell
from tpkernel.cells.cell import parse_cell
from tpkernel.cpp.includes import SharedText, expand

BASE = """\
#include <cmath>
template <typename T> static T gelu(T x) { return x / (1 + std::exp(-2 * x)); }
double one_gelu(double x) { return gelu(x); }
"""
USER = """\
#include "cell:one_gelu"
template <typename T> void act(tp::In<T> x, tp::Out<T> out) {
  for (int64_t i = 0; i < x.numel(); ++i) out[i] = gelu(x[i]);
}
"""


def test_a_later_cell_calls_functions_of_an_earlier_one(shell: Shell, tmp_path: Path):
    assert shell.kernel(BASE).error is None
    ran = shell.kernel(USER)
    assert ran.error is None, ran.shown
    expected = shell["one_gelu"](1.0)
    assert shell["act"](tp.tensor([1.0])).tolist() == pytest.approx([expected])
    assert "one_gelu" not in tpkernel.last_report().bound
    folder = tpkernel.last_report().export(tmp_path / "package")
    source = next(folder.rglob("kernels.cc")).read_text()
    assert "static T gelu" in source  # a package has no other cells
    assert "cell:" not in source


def test_an_edit_of_the_earlier_cell_is_told_and_reaches_the_later_one(shell: Shell):
    shell.kernel(BASE)
    shell.kernel(USER)
    before = shell["act"](tp.tensor([1.0])).tolist()
    ran = shell.kernel(BASE.replace("-2 * x", "-3 * x"))
    assert ran.error is None, ran.shown
    assert "include this cell as it was before; run it again" in ran.text
    assert shell["act"](tp.tensor([1.0])).tolist() == before
    ran = shell.kernel(USER)
    assert "as it was before" not in ran.text
    assert shell["act"](tp.tensor([1.0])).tolist() != before
    assert "as it was before" not in shell.kernel(BASE.replace("-2 * x", "-3 * x")).text


def test_an_error_in_the_included_text_stands_at_its_own_line(shell: Shell):
    shell.kernel(BASE)
    first = tpkernel.last_report().cell
    ran = shell.kernel(USER.replace("gelu(x[i])", "gelu(x[i], 2)"))
    assert ran.error is not None
    assert ran.error.diagnostics[0].line == 4  # the later cell's own
    assert any(d.file == first and d.line == 3 for d in ran.error.diagnostics) or first in str(
        ran.error.log
    )


def test_what_cannot_be_included_says_so(shell: Shell):
    shell.kernel(BASE)
    ran = shell.kernel(USER.replace("one_gelu", "one_glu"))
    said = str(ran.error)
    assert said.startswith("In[")
    assert ":2: error: no other cell has bound 'one_glu'; did you mean 'one_gelu'?" in said


def test_each_cell_is_included_once_and_circles_are_refused():
    a = SharedText("In[1]", "int a();", 2, ("a",))
    b = SharedText("In[2]", '#include "cell:a"\nint b();', 2, ("b",))
    cell = parse_cell('#include "cell:a"\n#include "cell:b"\nint c();', name="In[3]", first_line=2)
    found = expand(cell, (a, b))
    assert found.cells == (a, b)
    assert found.preamble.count("int a();") == 1
    assert found.text == "\n\nint c();"
    assert found.preamble.startswith('#line 2 "<cell a>"\nint a();\n')
    loop = SharedText("In[1]", '#include "cell:b"\nint a();', 2, ("a",))
    with pytest.raises(tpkernel.CellError, match="cells include each other: 'In"):
        expand(cell, (loop, b))
