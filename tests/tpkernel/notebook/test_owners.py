"""Which cell owns a name, and what a failed or repeated run of a cell does to it."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from tests.tpkernel.shell import SOFTPLUS, Shell
from tpkernel import CellError, StaleKernelError
from tpkernel.notebook.magic import _SESSIONS


def in_cell(shell: Shell, cell_id: str | None) -> None:
    """Let the shell look like a kernel that runs the cell of this id."""
    if cell_id is None:
        shell.ip.__dict__.pop("kernel", None)
    else:
        message = {"metadata": {"cellId": cell_id}}
        shell.ip.__dict__["kernel"] = SimpleNamespace(get_parent=lambda channel: message)


def test_an_operator_belongs_to_the_cell_that_made_it(shell: Shell):  # B009
    in_cell(shell, "one")
    shell.kernel(SOFTPLUS, "--no-check")
    first = f"In[{shell.ip.execution_count - 1}]"
    assert shell.kernel(SOFTPLUS, "--no-check").error is None  # the same cell again
    first = f"In[{shell.ip.execution_count - 1}]"
    in_cell(shell, "two")
    ran = shell.kernel(SOFTPLUS, "--no-check")
    second = f"In[{shell.ip.execution_count - 1}]"
    assert isinstance(ran.error, CellError)
    for word in ("mylib::softplus", first, second, "--replace"):
        assert word in str(ran.error)
    assert shell.kernel(SOFTPLUS, "--no-check --replace").error is None
    in_cell(shell, None)


def test_a_cell_with_an_id_removes_what_it_no_longer_defines(shell: Shell):
    in_cell(shell, "one")
    shell.kernel("int64_t a() { return 1; }\nint64_t b() { return 2; }")
    shell.kernel("int64_t a() { return 3; }")
    assert shell.ok("a()").result == 3
    assert isinstance(shell.run("b()").error, NameError)
    in_cell(shell, None)


def test_a_failed_build_blocks_the_registered_operator_too(shell: Shell):
    shell.kernel(SOFTPLUS, "--no-check")
    shell.ok("other_name = softplus; x = tp.ones(2)")
    shell.kernel(SOFTPLUS.replace("x.numel()", "x.nummel()"), "--no-check")
    for call in ("tp.ops.mylib.softplus(x)", "other_name(x)"):
        assert isinstance(shell.run(call).error, StaleKernelError)
    shell.kernel(SOFTPLUS, "--no-check")
    assert shell.ok("tp.ops.mylib.softplus(x).shape").result == (2,)


@pytest.mark.parametrize("cell_id", [None, "one"])
def test_a_name_that_only_a_failed_edit_defined_is_released_by_its_fix(shell: Shell, cell_id):
    in_cell(shell, "other" if cell_id else None)
    shell.kernel("int64_t g() { return 7; }")
    in_cell(shell, cell_id)
    shell.kernel("int64_t f() { return 1; }")
    for _ in range(2):
        shell.kernel(
            "int64_t f() { return 1; }\nint64_t g() { return h; }\nint64_t k() { return h; }"
        )
    for call in ("f()", "k()") if cell_id else ("f()", "g()", "k()"):
        assert isinstance(shell.run(call).error, StaleKernelError)
    if cell_id:
        assert shell.ok("g()").result == 7  # another cell's
    shell.kernel("int64_t f() { return 2; }")
    assert shell.ok("f(), g()").result == (2, 7)
    assert isinstance(shell.run("k()").error, NameError)
    assert len(_SESSIONS[shell.ip].slots) == 2
    in_cell(shell, None)


def test_an_operator_that_the_fix_leaves_out_says_so(shell: Shell):
    in_cell(shell, "one")
    shell.kernel(SOFTPLUS, "--no-check")
    shell.kernel(SOFTPLUS.replace("x.numel()", "x.nummel()"), "--no-check")
    text = SOFTPLUS.replace("mylib::softplus", "mylib::plus").replace(
        "derivatives:", "kernel: softplus\nderivatives:"
    )
    assert shell.kernel(text, "--no-check").error is None
    ran = shell.run("tp.ops.mylib.softplus(tp.ones(2))")
    assert isinstance(ran.error, StaleKernelError)
    assert "defines it no more" in str(ran.error)
    assert isinstance(shell.run("softplus").error, NameError)
    in_cell(shell, None)


def test_an_operator_from_typed_views_alone_belongs_to_its_cell_too(shell: Shell):
    text = "template <class T> void vv(tp::In<T> x, tp::Out<T> out) { out[0] = x[0] * 2; }"
    in_cell(shell, "one")
    assert shell.kernel(text, "--no-check").error is None
    in_cell(shell, "two")
    ran = shell.kernel(text, "--no-check")
    assert isinstance(ran.error, CellError)
    assert ran.error.line == 2
    assert "cell::vv" in str(ran.error)
    assert shell.ok("vv(tp.ones(1)).tolist()").result == [2.0]
    declared = f"/*---\nop: cell::vv(Tensor x) -> Tensor\n---*/\n{text}"
    assert "--replace" in str(shell.kernel(declared, "--no-check").error)
    assert shell.kernel(text, "--no-check --name other").error is None  # other::vv
    in_cell(shell, None)


def test_an_operator_made_in_python_is_not_taken_over(shell: Shell):
    shell.ok(
        "@tp.library.custom_op('mine::twice', mutates_args=())\n"
        "def twice(x: tp.Tensor) -> tp.Tensor:\n    return x + x\n"
    )
    ran = shell.kernel(SOFTPLUS.replace("mylib::softplus", "mine::twice\nkernel: softplus #"))
    assert isinstance(ran.error, CellError)
    text = SOFTPLUS.replace("mylib::softplus(", "mine::twice(").replace(
        "derivatives:", "kernel: softplus\nderivatives:"
    )
    ran = shell.kernel(text)
    assert "already defined" in str(ran.error)


def test_a_cell_that_fails_leaves_the_names_of_other_cells_alone(shell: Shell):
    text = "int64_t p() {{ return {}; }}"
    in_cell(shell, "A")
    shell.kernel(text.format(1))
    in_cell(shell, "B")
    shell.kernel(text.format(2))
    in_cell(shell, "A")
    assert shell.kernel(text.format("}")).error is not None
    assert shell.ok("p()").result == 2
    front = "/*---\nop: z::q(Tensor x) -> Tensor\n---*/\n"
    body = "void q(tp::In<float> x, tp::Out<float> out) { out[0] = x[0]; }"
    in_cell(shell, "C")
    shell.kernel(front + body, "--no-check")
    in_cell(shell, "D")
    assert "is defined by the cell" in str(shell.kernel(front + body, "--no-check").error)
    assert shell.ok("q(tp.ones(1)).tolist()").result == [1.0]
    shell.kernel(front + body, "--no-check --replace")
    in_cell(shell, "C")
    assert shell.kernel(front + body + " }", "--no-check --replace").error is not None
    assert shell.ok("q(tp.ones(1)).tolist()").result == [1.0]
