"""C and C++ output stands in its cell, in order with Python's: terminal, notebook, capture."""

from __future__ import annotations

import subprocess
import sys

import nbformat
import pytest
from nbclient import NotebookClient

import tpkernel
from tests.tpkernel.shell import Shell
from tpkernel.worker.streams import MAX_SHOWN, may_print

SAY = """\
#include <cstdio>
#include <iostream>
void a() { std::printf("two\\n"); }
void b() { std::cout << "four\\n"; }
void c() { std::fprintf(stderr, "beside\\n"); }
void much(int64_t n) { for (int64_t i = 0; i < n; ++i) std::putchar('x'); }
void fail() { std::printf("before\\n"); throw 42; }
"""
IN_TURN = 'print("one"); say.a(); print("three"); say.b(); print("five"); say.c()'
EXPECTED = "one\ntwo\nthree\nfour\nfive\n"


@pytest.mark.parametrize("options", ["", "--isolate"])
def test_prints_come_in_the_order_of_the_calls(shell: Shell, options: str):  # B055
    assert shell.kernel(SAY, f"--name say {options}").error is None
    ran = shell.ok(IN_TURN)
    assert ran.stdout == EXPECTED
    assert ran.stderr == "beside\n"
    ran = shell.run("say.fail()")
    assert ran.stdout.startswith("before\n")
    assert isinstance(ran.error, RuntimeError)


@pytest.mark.parametrize("options", ["", "--isolate"])
def test_a_flood_is_cut_with_a_note(shell: Shell, options: str):
    shell.kernel(SAY, f"--name say {options}")
    shown = shell.ok("say.much(10_000_000)").stdout
    assert len(shown) < MAX_SHOWN + 100
    assert "output of the kernel cut after 1 MiB" in shown
    assert shell.ok("say.a()").stdout == "two\n"


def test_a_gradient_that_prints_is_in_order_too(shell: Shell):
    text = """\
#include <cstdio>
template <class T> void f(tp::In<T> x, tp::Out<T> out) {
  for (int64_t i = 0; i < x.numel(); ++i) out[i] = x[i];
}
template <class T> void f_backward(tp::In<T> grad, tp::Out<T> grad_x) {
  std::puts("backward");
  for (int64_t i = 0; i < grad.numel(); ++i) grad_x[i] = grad[i];
}
"""
    ran = shell.kernel(text)
    assert ran.error is None
    assert "backward\n" not in ran.stdout  # what the checks call prints nowhere
    ran = shell.ok(
        "x = tp.ones(2, requires_grad=True); y = f(x).sum(); print('a'); y.backward(); print('b')"
    )
    assert ran.stdout == "a\nbackward\nb\n"


@pytest.mark.slow
def test_in_a_notebook_the_text_is_the_cells_own():  # B055
    cells = ["%load_ext tensorplay", "%%tpkernel --name say\n" + SAY, IN_TURN, 'print("next")']
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(c) for c in cells])
    NotebookClient(notebook, timeout=120).execute()
    texts = {"stdout": "", "stderr": ""}
    for output in notebook.cells[2].outputs:
        texts[output["name"]] += output["text"]
    assert texts == {"stdout": EXPECTED, "stderr": "beside\n"}
    assert [o["text"] for o in notebook.cells[3].outputs] == ["next\n"]


def test_where_python_writes_to_the_descriptor_both_are_flushed():
    code = f"import tpkernel\nsay = tpkernel.build({SAY!r}, checks=False).module\n{IN_TURN}\n"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout == EXPECTED
    assert done.stderr == "beside\n"


def test_kernels_that_cannot_print_are_called_as_they_are():
    assert not may_print("double f(double x) { return x; }  // no output")
    assert may_print('#include "helper.h"\nint64_t f() { return g(); }')
    report = tpkernel.build("double f(double x) { return x; }")
    assert type(report.module.f._call).__name__ == "Kernel"
