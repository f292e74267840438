"""``%%tpkernel`` through a real shell: building, binding, failing, running again."""

from __future__ import annotations

import gc
import inspect
import os
import signal
import threading
import weakref
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
from IPython.core.error import UsageError

import tensorplay as tp
import tpkernel
from tensorplay.utils.cpp_jit import BuildError
from tests.tpkernel.shell import ADD1, MAKE, SOFTPLUS, Shell
from tpkernel import CellError, KernelCrash, StaleKernelError
from tpkernel.building import pipeline
from tpkernel.cpp.functions import parse_source
from tpkernel.notebook.magic import _SESSIONS


def test_an_operator_cell_binds_a_differentiable_operator(shell: Shell):
    ran = shell.kernel(SOFTPLUS)
    assert ran.error is None, ran.shown
    softplus = shell["softplus"]
    x = tp.tensor([-1.0, 0.5, 2.0], dtype=tp.float64, requires_grad=True)
    y = softplus(x, beta=2.0)
    np.testing.assert_allclose(y.detach().numpy(), np.log1p(np.exp(2 * x.detach().numpy())) / 2)
    y.sum().backward()
    np.testing.assert_allclose(x.grad.numpy(), 1 / (1 + np.exp(-2 * x.detach().numpy())))
    assert softplus.name == "mylib::softplus"
    assert tp.ops.mylib.softplus is softplus.definition


def test_the_cell_shows_one_widget_with_every_fact_in_three_forms(shell: Shell):
    ran = shell.kernel(SOFTPLUS)
    (output,) = ran.outputs
    assert "application/vnd.jupyter.widget-view+json" in output.data
    for form in ("text/plain", "text/html"):
        shown = output.data[form]
        for fact in ("mylib::softplus(Tensor x, float beta=1.0)", "sigmoid", "float64"):
            assert fact in shown, (form, fact)
    assert "register_fake" in output.data["text/html"]
    assert "<script" not in output.data["text/html"]
    assert "children=" not in output.data["text/plain"]


def test_the_operator_takes_numpy_arrays_without_copies(shell: Shell):
    shell.kernel(SOFTPLUS, "--no-check")
    x = np.linspace(-1, 1, 5)
    frozen = x.copy()
    frozen.flags.writeable = False
    for array in (x, frozen):
        result = shell["softplus"](array)
        assert isinstance(result, tp.Tensor)
        np.testing.assert_allclose(result.numpy(), np.log1p(np.exp(x)))
    assert not frozen.flags.writeable


def test_a_plain_function_with_an_out_parameter_works_on_tensors(shell: Shell):
    ran = shell.kernel(ADD1)
    assert ran.error is None
    x, out = tp.tensor([1.0, 2.0]), tp.zeros(2)
    assert shell["add1"](x, out) is None
    assert out.tolist() == [2.0, 3.0]
    assert "line 3" in ran.text  # the guard and the cast it came from
    assert "op:" in ran.text  # how to get an operator


def test_a_plain_function_may_return_a_tensor(shell: Shell):  # B038
    shell.kernel(MAKE, "--name k")
    k = shell["k"]
    made = k.make(n=3)
    assert isinstance(made, tp.Tensor)
    assert made.tolist() == [0.0, 1.0, 2.0]
    assert str(inspect.signature(k.make)) == "(n)"
    with pytest.raises(TypeError, match="unexpected keyword `m`; parameters: n"):
        k.make(m=3)


def test_scalars_and_strings_pass(shell: Shell):
    cell = """\
    #include <string>
    double weighted_sum(tvm::ffi::TensorView x, double factor, int64_t offset,
                        const std::string& tag) {
      double s = static_cast<double>(offset);
      for (int64_t i = 0; i < x.numel(); ++i) s += static_cast<float*>(x.data_ptr())[i];
      return s * factor + tag.size();
    }
    """
    shell.kernel(cell)
    assert shell["weighted_sum"](tp.tensor([1.0, 2.0, 3.0]), 10.0, 5, "abcd") == 114.0
    assert (
        shell["weighted_sum"](np.ones(1, np.float32), np.float64(2), offset=np.int64(1), tag="")
        == 4
    )


def test_a_compile_error_is_short_and_at_the_cells_own_line(shell: Shell):  # B024, B025
    ran = shell.kernel("int64_t f() {\n  int64_t a = 1\n  return a;\n}\n")
    assert isinstance(ran.error, BuildError)
    assert ran.error.diagnostics[0].line == 3  # the magic's line is line 1
    assert len(ran.shown) < 1000
    number = shell.ip.execution_count - 1
    assert f"In[{number}]:3:" in ran.shown
    assert "error" in ran.shown
    assert "int64_t a = 1" in ran.shown
    assert "^" in ran.shown
    assert "Traceback" not in ran.shown
    assert ".py" not in ran.shown
    assert shell.ok("1 + 1").result == 2


def test_a_failed_build_blocks_the_old_name_until_it_builds(shell: Shell):  # B020
    shell.kernel("int64_t f() { return 1; }")
    assert shell.ok("f()").result == 1
    shell.kernel("int64_t f() { return 1 }")
    ran = shell.run("f()")
    assert isinstance(ran.error, StaleKernelError)
    assert "expected" in str(ran.error)
    assert "In[" in str(ran.error)
    shell.kernel("int64_t f() { return 2; }")
    assert shell.ok("f()").result == 2


def test_keep_old_leaves_the_old_name(shell: Shell):
    shell.kernel("int64_t f() { return 1; }")
    shell.kernel("int64_t f() { return 1 }", "--keep-old")
    assert shell.ok("f()").result == 1


def test_a_name_that_never_built_says_why(shell: Shell):
    shell.kernel("int64_t fresh() { return 1 }")
    assert isinstance(shell.run("fresh()").error, StaleKernelError)
    assert isinstance(shell.run("fresh.anything").error, StaleKernelError)


def test_a_failed_build_leaves_other_values_of_that_name_alone(shell: Shell):
    shell.ok("f = 41")
    shell.kernel("int64_t f() { return 1 }")
    assert shell.ok("f + 1").result == 42


def test_a_module_is_blocked_as_a_whole(shell: Shell):
    shell.kernel("int64_t f() { return 1; }", "--name half")
    shell.kernel("int64_t f() { return 1 }", "--name half")
    assert isinstance(shell.run("half.f()").error, StaleKernelError)
    assert shell.run("half").error is None  # showing it says why


def test_running_a_cell_again_replaces_the_operator(shell: Shell):  # B009
    shell.kernel(SOFTPLUS)
    shell.kernel(SOFTPLUS)
    assert shell.kernel(SOFTPLUS.replace("float beta=1.0", "float beta=3.0")).error is None
    assert "beta=3.0" in shell["softplus"].schema


def test_two_cells_with_the_same_inner_names_keep_their_own(shell: Shell):  # B042
    text = """\
    struct P { double w, h; };
    static double helper(P p) { return p.w %s p.h; }
    double area(double w, double h) { return helper(P{w, h}); }
    """
    for _ in range(2):
        assert shell.kernel(text % "*", "--name p1").error is None
    shell.kernel(text % "+", "--name p2")
    assert shell["p1"].area(2.0, 5.0) == 10.0
    assert shell["p2"].area(2.0, 5.0) == 7.0


@pytest.mark.parametrize("above", ["# scale a vector\n", "\n\n", "// C++ comment\n\n# and this\n"])
def test_comments_above_the_magic_are_allowed(shell: Shell, above: str):  # B061
    ran = shell.run(f"{above}%%tpkernel --name sc\nint64_t one() {{ return 1; }}")
    assert ran.error is None
    assert shell.ok("sc.one()").result == 1


def test_lines_count_from_the_top_of_the_cell_under_a_comment(shell: Shell):
    ran = shell.run("# first\n# second\n%%tpkernel\nint64_t f() { return 1 }")
    assert ran.error.diagnostics[0].line == 4


def test_code_above_the_magic_is_one_sentence(shell: Shell):
    ran = shell.run("import os\n%%tpkernel\nint64_t one() { return 1; }")
    assert "must be the first statement of the cell" in str(ran.error)
    assert "Traceback" not in ran.shown


def test_a_misspelt_magic_names_the_right_one(shell: Shell):
    ran = shell.run("%%tpkernal --name sc\nint64_t one() { return 1; }")
    assert "did you mean `%%tpkernel`?" in str(ran.error)


def test_python_that_mentions_the_magic_in_a_string_is_left_alone(shell: Shell):
    assert shell.ok('text = """\n%%tpkernel\n"""\ntext').result == "\n%%tpkernel\n"


def test_a_wrong_option_names_the_nearest(shell: Shell):  # B027
    ran = shell.kernel("int64_t f() { return 1; }", "--function f --flgs=-lm")
    assert "--flgs" in str(ran.error)
    assert "--flags" in str(ran.error)


ROOT = "#include <cmath>\ndouble root(double v) { return std::sqrt(v) * N; }\n"


@pytest.mark.parametrize(
    ("line", "top"),
    [
        ('--flags "-lm -DN=2"   # a comment', ""),
        ("--flags=-lm --flags=-DN=2", ""),
        ("-- -lm -DN=2 # a comment", ""),
        ("", "// tpkernel: flags = -lm -DN=2\n"),
    ],
)
def test_flags_reach_the_compiler_in_every_form(shell: Shell, line: str, top: str):
    ran = shell.kernel(top + ROOT, f"--name m {line}".rstrip())
    assert ran.error is None, ran.shown
    assert shell["m"].root(9.0) == 6.0
    assert any("-lm" in command for command in tpkernel.last_report().build.commands)


@pytest.mark.parametrize("macro", ["N=2", "T=float", "X=1", "In=3", "i=7"])
def test_macros_from_flags_do_not_touch_our_headers(shell: Shell, macro: str):
    text = f"double f() {{ return sizeof({macro.partition('=')[0]}) + 0.0; }}"
    assert shell.kernel(text, f"--flags=-D{macro}").error is None
    assert shell["f"]() == 4.0


def test_braces_and_dollars_on_the_line_are_not_expanded(shell: Shell):
    shell.ok("x = 'expanded'")
    ran = shell.kernel("int64_t f() { return V; }", "--flags '-DV={1}+$x'")
    assert "$x" in str(ran.error)
    assert "expanded" not in str(ran.error)


def test_an_expected_error_is_an_output(shell: Shell):  # B073
    line = '--name lesson --expect-error "missing semicolon|expected"'
    ran = shell.kernel("int64_t f() { return 1 }", line)
    assert ran.error is None
    assert "expected" in ran.text
    ran = shell.kernel("int64_t f() { return 1; }", line)
    assert isinstance(ran.error, CellError)
    ran = shell.kernel("int64_t f() { return 1 }", "--expect-error nothing-like-it")
    assert isinstance(ran.error, BuildError)
    assert "is not the error that --expect-error 'nothing-like-it' describes" in ran.shown


def test_loading_twice_and_reloading_leave_one_of_each(shell: Shell):  # B071
    shell.kernel("int64_t f() { return 1; }", "--name kept")
    shell.ok("%load_ext tensorplay")
    shell.ok("%reload_ext tensorplay")
    steps = [getattr(s, "__name__", "") for s in shell.ip.input_transformers_cleanup]
    assert steps.count("hoist_magic") == 1
    assert "tpkernel" in shell.ip.magics_manager.magics["cell"]
    assert shell.ok("kept.f()").result == 1
    assert shell.kernel("int64_t f() { return 2; }", "--name kept").error is None


def test_a_cell_that_runs_again_closes_its_widget(shell: Shell):  # B063
    from ipywidgets.widgets.widget import _instances

    counts = []
    for _ in range(5):
        shell.kernel(SOFTPLUS, "--no-check")
        counts.append(len(_instances))
    assert len(set(counts)) == 1


def test_the_report_of_the_last_cell_is_kept(shell: Shell):
    shell.kernel(SOFTPLUS, "--no-check")
    gc.collect()
    assert tpkernel.last_report().operators[0].name == "mylib::softplus"
    shell.kernel("int64_t broken() { return 1 }")
    assert tpkernel.last_report().operators[0].name == "mylib::softplus"


def test_names_a_cell_no_longer_defines_stay_with_the_cell_that_made_them(shell: Shell):
    shell.kernel("int64_t a() { return 1; }\nint64_t b() { return 2; }")
    shell.kernel("int64_t a() { return 3; }")
    assert shell.ok("a(), b()").result == (3, 2)


def test_the_same_cell_again_comes_from_the_cache(shell: Shell):
    shell.kernel(SOFTPLUS, "--no-check")
    shell.kernel(SOFTPLUS, "--no-check")
    build = tpkernel.last_report().build
    assert build.cached
    assert build.ready_seconds < 0.5


def test_a_c_exception_of_any_kind_reaches_python(shell: Shell):  # B007
    shell.kernel("void bad() { throw 42; }", "--name thr")
    ran = shell.run("thr.bad()")
    assert isinstance(ran.error, RuntimeError)
    assert shell.ok("2 + 2").result == 4


def test_debug_checks_every_index(shell: Shell):
    cell = """\
    template <typename T>
    void shift(tp::In<T, 1> x, tp::Out<T, 1> out) {
      for (int64_t i = 0; i < x.size(0); ++i) out[i] = x[i + 1];
    }
    """
    shell.kernel(cell, "--debug --no-check")
    with pytest.raises(IndexError, match=r"argument 'x': index 3 is outside its 3 elements"):
        shell["shift"](tp.ones(3))


def test_build_without_a_notebook_gives_the_report():
    report = tpkernel.build(ADD1, "offline")
    out = np.zeros(2, np.float32)
    report.module.add1(np.ones(2, np.float32), out)
    assert out.tolist() == [2.0, 2.0]
    assert report.to_dict()["build"]["library"].endswith(".so")
    with pytest.raises(ValueError, match="unknown check"):
        tpkernel.build(ADD1, checks=["speed"])


def test_functions_beside_declared_operators_are_bound_when_named(shell: Shell):
    text = SOFTPLUS + "int64_t version() { return 3; }\n"
    ran = shell.kernel(text, "--no-check")
    assert "version is not bound" in ran.text
    assert "version" not in shell.ip.user_ns
    shell.kernel(text, "--no-check --functions version")
    assert shell.ok("version()").result == 3
    assert shell.ok("softplus(tp.ones(1)).shape").result == (1,)


def test_a_kernel_that_reads_untyped_memory_is_noted(shell: Shell):
    ran = shell.kernel(
        "#include <cstring>\nvoid copy(tvm::ffi::TensorView x, tvm::ffi::TensorView out) {\n"
        "  std::memcpy(out.data_ptr(), x.data_ptr(), 8);\n}"
    )
    assert "no dtype guard on 'x'" in ran.text.splitlines()[1]


def test_a_name_that_python_cannot_bind_is_refused(shell: Shell):
    assert "no Python name" in str(shell.kernel("int f() { return 1; }", "--name 9x").error)


def test_an_incomplete_cell_can_be_asked_about_without_an_error(shell: Shell):
    ask = shell.ip.input_transformer_manager.check_complete
    assert ask("import os\n%%tpkernel\nint f();")[0] in {"complete", "incomplete", "invalid"}


@pytest.mark.parametrize(
    ("text", "runs"),
    [
        ("static std::vector<int> table(3);", True),
        ("int n = count();", True),
        ("namespace a { struct T { T(); }; T t; }", True),
        ("__attribute__((constructor)) static void start() {}", True),
        ('#include "mine.h"', True),
        ("int n = 3, *p; static const double half = 0.5; extern T far; T far_too();", False),
        ("struct T { inline static V v = make(); };", True),
        ("static inline float half(float x) { return x / 2; }", False),
        ("constexpr int n = count(); #include <vector>", False),
        ("struct T { int n; };\nusing U = T;\nint add(int a) { static T t; return a; }", False),
    ],
)
def test_what_runs_when_a_library_is_loaded(text: str, runs: bool):
    assert parse_source(text).runs_on_load is runs


def test_the_same_cell_again_starts_no_process(shell: Shell, monkeypatch: pytest.MonkeyPatch):
    shell.kernel(SOFTPLUS)

    def refuse(*args: object, **kwargs: object) -> None:
        raise AssertionError("a process was started")

    for name in ("Popen", "run"):
        monkeypatch.setattr(f"subprocess.{name}", refuse)
    monkeypatch.setattr("os.posix_spawn", refuse)
    assert shell.kernel(SOFTPLUS).error is None
    assert tpkernel.last_report().gradcheck_verdict == "ok"


def test_interrupt_ends_the_checks_and_keeps_the_operator(shell: Shell):  # B016
    text = """\
    template <class T> void spin(tp::In<T> x, tp::Out<T> out) {
      volatile bool on = true;
      while (on) {}
    }
    """
    shell.kernel(SOFTPLUS)  # so that the worker is warm and the interrupt meets a check
    timer = threading.Timer(1.5, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    # Ended by the budget, it would be a finding and no KeyboardInterrupt.
    ran = shell.kernel(text, "--budget 60")
    assert isinstance(ran.error, KeyboardInterrupt)
    assert "spin" in shell.ip.user_ns
    assert shell.kernel(SOFTPLUS).error is None
    assert tpkernel.last_report().ok


def test_help_and_completion_know_the_functions(shell: Shell):  # B038
    import pydoc

    shell.kernel(MAKE, "--name k")
    assert "make(int64_t n)" in pydoc.render_doc(shell["k"].make, renderer=pydoc.plaintext)
    assert "integer from" in shell["k"].make.__doc__
    assert "make" in dir(shell["k"])
    with pytest.raises(AttributeError, match="did you mean 'make'"):
        shell["k"].mke  # noqa: B018


def test_text_defaults_survive_into_the_generated_module(shell: Shell):
    text = """\
/*---
op: mylib::tagged(Tensor x, str tag="a\\"b") -> Tensor
---*/
#include <string>
void tagged(tvm::ffi::TensorView x, const std::string& tag, tvm::ffi::TensorView out) {
  static_cast<float*>(out.data_ptr())[0] = static_cast<float*>(x.data_ptr())[0] + tag.size();
}
"""
    shell.kernel(text, "--no-check")
    assert shell["tagged"](tp.ones(1)).tolist() == [4.0]
    assert shell["tagged"](tp.ones(1), tag="").tolist() == [1.0]


def test_a_cell_that_runs_again_leaves_nothing_alive(shell: Shell):
    shell.kernel(SOFTPLUS)
    (widget,) = [s.widget for s in _SESSIONS[shell.ip].slots.values()]
    gone = [weakref.ref(widget), weakref.ref(shell["softplus"]), weakref.ref(widget.report)]
    del widget
    shell.kernel(SOFTPLUS)
    gc.collect()
    assert [ref() for ref in gone] == [None, None, None]


@pytest.mark.parametrize(
    ("call", "words"),
    [
        ("add1(np.ones(2), np.ones(2))", "expected float32 on cpu"),
        ("add1(np.ones(2, 'float32'))", "missing argument 'out'"),
        ("add1(tp.ones(2, requires_grad=True), tp.ones(2))", "requires grad"),
        ("add1(np.ones(2, 'float32'), frozen)", "read-only"),
        ("softplus(np.ones(2, int))", "expected float32 or float64"),
        ("softplus(np.ones(2), bta=1)", "bta"),
        ("scale_(frozen)", "read-only"),
        ("broken()", "is blocked"),
        ("broken.anything", "is blocked"),
    ],
)
def test_an_error_of_a_call_ends_at_the_persons_own_line(shell: Shell, call: str, words: str):
    shell.kernel(SOFTPLUS, "--no-check")
    shell.kernel(ADD1)
    text = (
        "/*---\nop: mylib::scale_(Tensor(a!) x) -> ()\n---*/\n"
        "template <class T> void scale_(tp::InOut<T> x) { x[0] = 1; }\n"
    )
    shell.kernel(text, "--no-check")
    shell.kernel("int64_t broken() { return 1 }")
    shell.ok("frozen = np.ones(2, 'float32')\nfrozen.flags.writeable = False")
    ran = shell.run(f"first = 1\n{call}")
    assert ran.error is not None
    assert words in ran.shown
    assert call in ran.shown
    assert "kernels.py" not in ran.shown, ran.shown
    assert "load.py" not in ran.shown, ran.shown


def test_the_first_build_says_what_it_made_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TENSORPLAY_CACHE_DIR", str(tmp_path))
    first = tpkernel.build("int64_t once() { return 1; }")
    assert 0 < first.build.once_seconds < first.build.ready_seconds
    assert "once, for what all cells share" in first.title
    assert any("what later cells share" in note for note in first.notes)
    assert first.build.how in first.to_html()
    for text in ("int64_t once() { return 1; }", "int64_t once() { return 2; }"):
        later = tpkernel.build(text)
        assert later.build.once_seconds == 0
        assert "all cells share" not in later.title


@pytest.mark.parametrize("problem", [KeyboardInterrupt(), OverflowError("too large")])
def test_any_exception_of_a_build_blocks_the_old_name(
    shell: Shell, monkeypatch: pytest.MonkeyPatch, problem: BaseException
):
    shell.kernel("int64_t seven() { return 7; }")
    with monkeypatch.context() as patch:
        patch.setattr(pipeline, "compile_cell", Mock(side_effect=problem))
        assert type(shell.kernel("int64_t seven() { return 8; }").error) is type(problem)
    refused = shell.run("seven()").error
    assert isinstance(refused, StaleKernelError)
    assert str(problem) in str(refused)
    shell.kernel("int64_t seven() { return 8; }")
    assert shell.ok("seven()").result == 8


@pytest.mark.parametrize("name", ["get_ipython", "__builtins__", "class", "print", "In", "a-b"])
def test_a_name_that_others_need_is_refused(shell: Shell, name: str):
    ran = shell.kernel("int64_t one() { return 1; }", f"--name {name}")
    assert isinstance(ran.error, UsageError)
    assert f"--name {name}" in str(ran.error)
    assert shell.ok("get_ipython() is not None and print is not None").result


@pytest.mark.parametrize(
    "option", ["--budget nan", "--budget -1", "--budget 0", "--budget inf", "--expect-error ["]
)
def test_options_of_no_use_are_named(shell: Shell, option: str):
    ran = shell.kernel("int64_t one() { return 1; }", option)
    assert isinstance(ran.error, UsageError)
    assert option.split(maxsplit=1)[0] in str(ran.error)


BAD_GLOBALS = """\
#include <stdexcept>
struct Table { Table() { throw std::runtime_error("no table"); } int64_t size = 3; };
static Table table;
int64_t size() { return table.size; }
"""


def test_a_global_object_that_throws_ends_the_worker_and_not_the_notebook(shell: Shell):
    for _ in range(2):  # built, and found again
        ran = shell.kernel(BAD_GLOBALS)
        assert isinstance(ran.error, KernelCrash)
        assert "global object" in str(ran.error)
        assert "SIGABRT" in str(ran.error)
    assert isinstance(shell.run("size()").error, StaleKernelError)
    shell.kernel(BAD_GLOBALS.replace('throw std::runtime_error("no table");', "size += 1;"))
    assert shell.ok("size()").result == 4


def test_a_brace_without_its_end_is_reported_where_it_opens(shell: Shell):
    ran = shell.kernel("int64_t f() { // {\n  return \"}\"[0];\n\nint64_t g() { return '{'; }\n")
    assert isinstance(ran.error, CellError)
    assert ":2:13: error: unbalanced brace: the one opened at line 2" in str(ran.error)


def test_storing_to_an_input_names_the_view_that_may_be_written(shell: Shell):
    ran = shell.kernel("void h(tp::In<float> x, tp::Out<float> out) { x[0] = out[0]; }")
    assert isinstance(ran.error, BuildError)
    assert "tp::InOut" in str(ran.error)


@pytest.mark.parametrize("name", ["index", "exp", "sin", "y0", "free", "abs"])
def test_names_of_the_c_library_can_be_exported(shell: Shell, name: str):
    ran = shell.kernel(f"int64_t {name}(int64_t i, const std::string& s) {{ return i + 1; }}")
    assert ran.error is None, ran.shown
    assert shell.ok(f"{name}(2, 'a')").result == 3


def test_a_helper_in_a_namespace_may_share_the_name(shell: Shell):
    helper = "namespace ns { double f(double x) { return x + 1; } }\n"
    assert shell.kernel(helper + "double f(double x) { return ns::f(x); }").error is None
    assert shell.ok("f(1)").result == 2.0
