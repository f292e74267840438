"""What a notebook shows of an error in a call: own frames, the cell's line, the message."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import tvm_ffi

import tensorplay as tp
import tpkernel
from tests.tpkernel.shell import Ran, Shell
from tpkernel.cpp.throws import thrown_at
from tpkernel.errors import is_own_file

THROWS = """\
#include <stdexcept>
struct Odd { int code; };
void refuse(tp::In<double> x) {
  if (x[0] > 5)
    throw std::runtime_error("too large: " + std::to_string(x[0]));
  if (x[0] > 4) throw 42;
  if (x[0] > 3) throw Odd{3};
  if (x[0] > 2) std::string().at(7);
  if (x[0] > 1) TVM_FFI_THROW(ValueError) << "seen by the engine";
}
"""
FIRST = 2  # the magic stands on line 1

OPERATOR = """\
/*---
op: frames::root(Tensor x) -> Tensor
derivatives:
  x: grad * slope(x)
samples:
  - x: "full((3,), 1.0)"
---*/
#include <stdexcept>
template <typename T> void root(tp::In<T> x, tp::Out<T> out) {
  for (int64_t i = 0; i < x.numel(); ++i) {
    if (x[i] < 0) throw std::domain_error("a negative number");
    out[i] = std::sqrt(x[i]);
  }
}
template <typename T> void slope(tp::In<T> x, tp::Out<T> out) {
  for (int64_t i = 0; i < x.numel(); ++i) {
    if (x[i] == 0) throw std::domain_error("no slope at zero");
    out[i] = T(0.5) / std::sqrt(x[i]);
  }
}
"""

CALLER = """\
double ask(tvm::ffi::Function f, double x) {
  return f(x).cast<double>();
}
"""


def place(text: str, part: str) -> int:
    """Return at which line of its cell a text stands."""
    return text[: text.index(part)].count("\n") + FIRST


def line_of(text: str, part: str) -> str:
    """Return the line of a cell that starts with a text."""
    return text[text.index(part) :].partition("\n")[0].strip()


def shown_frames(ran: Ran) -> list[str]:
    """Return the frames that the shell showed, each by its cell's line, and nothing of ours."""
    assert ".py" not in ran.shown, ran.shown
    assert ".pxi" not in ran.shown
    assert "Could not get source" not in ran.shown
    return re.findall(r"^---*> *\d+ +(.*)$", ran.shown, re.MULTILINE)


@pytest.mark.parametrize(
    ("value", "line", "says"),
    [
        (6.0, "    throw std::runtime_error", "too large: 6.0"),
        (4.5, "  if (x[0] > 4) throw 42", "kernel threw a value of type int"),
        (3.5, "  if (x[0] > 3) throw Odd", "kernel threw a value of type Odd"),
        (2.5, "void refuse", "basic_string::at"),  # no line of the cell throws it
        (1.5, "  if (x[0] > 1) TVM_FFI_THROW", "seen by the engine"),
    ],
)
@pytest.mark.parametrize("line_options", ["", "--isolate"])
def test_what_a_kernel_throws_stands_at_the_cells_line(
    shell: Shell, value: float, line: str, says: str, line_options: str
):
    if line_options and "engine" in says:
        line = "void refuse"  # the other process sends kind and message
    assert shell.kernel(THROWS, line_options).error is None
    number = shell.ip.execution_count - 1
    shell.ok("import numpy as np\ndef mine(v):\n    return refuse(np.array([v]))")
    ran = shell.run(f"mine({value})")
    assert says in str(ran.error)
    assert f"Cell In[{number}], line {place(THROWS, line)}, in refuse()" in ran.shown
    frames = shown_frames(ran)
    assert frames[:2] == [f"mine({value})", "return refuse(np.array([v]))"]
    assert frames[2:] == [line_of(THROWS, line)]
    assert re.search(r"skipping hidden \d+ frame", ran.shown)


@pytest.mark.parametrize(
    ("call", "line"),
    [
        ("root(low)", "    if (x[i] < 0)"),
        ("tp.ops.frames.root(low)", "    if (x[i] < 0)"),
        ("tp.compile(lambda x: root(x) + 1)(low)", "    if (x[i] < 0)"),
        ("root(zero).sum().backward()", "    if (x[i] == 0)"),
        ("root(low.detach())", "    if (x[i] < 0)"),
    ],
)
def test_every_way_to_a_kernel_shows_the_same(shell: Shell, call: str, line: str):
    assert shell.kernel(OPERATOR).error is None
    shell.ok("import tensorplay as tp\nlow = tp.tensor([-1.0], requires_grad=True)")
    shell.ok("zero = tp.tensor([0.0], requires_grad=True)")
    frames = shown_frames(shell.run(call))
    assert frames == [call, line_of(OPERATOR, line)]


@pytest.mark.parametrize("name", ["root", "refuse"])
def test_a_guard_shows_the_call_alone(shell: Shell, name: str):
    assert shell.kernel(OPERATOR if name == "root" else THROWS).error is None
    shell.ok("import numpy as np")
    ran = shell.run(f"{name}(np.zeros(2, np.int64))")
    assert shown_frames(ran) == [f"{name}(np.zeros(2, np.int64))"]
    assert "argument 'x': expected" in str(ran.error)


def test_frames_of_a_callback_remain_behind_the_cells_line(shell: Shell):
    assert shell.kernel(CALLER).error is None
    shell.ok("def inner(x):\n    return 1 / x\ndef callback(x):\n    return inner(x)")
    ran = shell.run("ask(callback, 0.0)")
    assert shown_frames(ran) == [
        "ask(callback, 0.0)", "return f(x).cast<double>();", "return inner(x)", "return 1 / x"
    ]  # fmt: skip


def test_a_kernel_in_a_callback_shows_both_cells(shell: Shell):
    shell.ok("import numpy as np")
    assert shell.kernel(CALLER).error is None
    assert shell.kernel(THROWS).error is None
    call = "ask(lambda x: refuse(np.array([x])), 6.0)"
    assert shown_frames(shell.run(call)) == [
        call, "return f(x).cast<double>();", call, line_of(THROWS, "    throw std::runtime")
    ]  # fmt: skip


def test_a_kernel_that_prints_shows_its_line_too(shell: Shell):
    assert shell.kernel(THROWS.replace("#include <stdexcept>", "#include <iostream>")).error is None
    shell.ok("import numpy as np")
    frames = shown_frames(shell.run("refuse(np.array([6.0]))"))
    assert frames == ["refuse(np.array([6.0]))", line_of(THROWS, "    throw std::runtime_error")]


OURS = Path(tp.__file__).parent


@pytest.mark.parametrize(
    ("file", "own"),
    [
        (OURS / "random.py", True),
        (Path(tpkernel.__file__), True),
        (Path(tvm_ffi.__file__).parent / "registry.py", True),
        ("python/tvm_ffi/cython/function.pxi", True),
        ("<tensorplay graph 1>", True),
        ("<tpkernel cell>", True),
        ("<tpkernel.cell cell::refuse>", True),
        ("<unknown>", True),
        (f"{OURS}_demo/train.py", False),
        (OURS.parent / "tensorplay.py", False),
        ("/home/me/tvm_ffi/kernels.py", False),
        ("/home/me/tensorplay/train.py", False),
        ("<tensorplay_demo>", False),
        ("<string>", False),
    ],
)
def test_only_files_of_these_packages_and_the_engine_are_hidden(file: Path | str, own: bool):
    assert is_own_file(str(file)) is own


@pytest.mark.parametrize("file", [f"{OURS}_demo/train.py", "/home/me/tvm_ffi/kernels.py"])
def test_frames_of_a_file_beside_ours_are_shown(shell: Shell, file: str):
    assert shell.kernel(CALLER).error is None
    exec(compile("def fails(x):\n  return 1 / x", file, "exec"), shell.ip.user_ns)
    ran = shell.run("ask(fails, 0.0)")
    assert file in ran.shown


def test_hiding_frames_writes_to_no_module(shell: Shell):
    assert shell.kernel(THROWS).error is None
    shell.ok("import numpy as np")
    module = {"__name__": "tensorplay.made", "refuse": shell["refuse"], "np": shell["np"]}
    shell.ip.user_ns["code"] = compile("refuse(np.array([6.0]))", OURS / "made.py", "exec")
    shell.ip.user_ns["module"] = module
    ran = shell.run("exec(code, module)")
    assert "made.py" not in ran.shown
    assert shown_frames(ran)[1:] == [line_of(THROWS, "    throw std::runtime_error")]
    assert "__tracebackhide__" not in module


def test_hidden_frames_can_be_shown(shell: Shell):
    assert shell.kernel(OPERATOR).error is None
    shell.ok("import tensorplay as tp")
    shell.ok("get_ipython().InteractiveTB.skip_hidden = False")
    try:
        ran = shell.run("root(tp.tensor([-1.0]))")
    finally:
        shell.ip.InteractiveTB.skip_hidden = True
    assert "kernels.py" in ran.shown
    assert "a negative number" in ran.shown


def test_an_error_with_its_own_way_to_be_shown_keeps_it(shell: Shell):
    assert shell.kernel(CALLER).error is None
    shell.ok(
        "class Own(Exception):\n    def _render_traceback_(self):\n        return ['mine alone']\n"
        "def fails(x):\n    raise Own"
    )
    assert shell.run("ask(fails, 1.0)").shown.strip() == "mine alone"


ODD_ERRORS = """\
import dataclasses
@dataclasses.dataclass(frozen=True)
class Frozen(ValueError):
    text: str
class Shy(ValueError):
    def __getattr__(self, name):
        raise RuntimeError(name)
class Mute(ValueError):
    def __str__(self):
        raise RuntimeError("no text")
class Stubborn(ValueError):
    def __setattr__(self, name, value):
        raise RuntimeError(name)
class Slotted(ValueError):
    __slots__ = ()
def fails(x):
    raise error from cause
cause = KeyError("cause")
"""


@pytest.mark.parametrize("kind", ["Frozen", "Shy", "Mute", "Stubborn", "Slotted", "ValueError"])
@pytest.mark.parametrize("prints", [False, True])
def test_a_callbacks_error_arrives_as_it_is_whatever_its_class_does(
    shell: Shell, kind: str, prints: bool
):
    text = CALLER.replace("return", 'printf("called");\n  return') if prints else CALLER
    assert shell.kernel(text).error is None
    shell.ok(ODD_ERRORS)
    shell.ok(f"error = {kind}('mine')")
    error = shell["error"]
    with pytest.raises(ValueError) as raised:  # noqa: PT011  (its text is not for everybody)
        shell["ask"](shell["fails"], 1.0)
    assert raised.value is error
    assert error.args == ("mine",)
    assert error.__cause__ is shell["cause"]
    if kind in {"Frozen", "ValueError"}:  # IPython cannot show the others
        shell.ok(f"error = {kind}('mine')")
        assert shown_frames(shell.run("ask(fails, 1.0)"))[0] == "ask(fails, 1.0)"


RANGE = "vector::_M_range_check: __n (which is 9) >= this->"


@pytest.mark.parametrize(
    ("text", "message", "line"),
    [
        ('void f() {\n  throw E("one");\n  throw E("two");\n}', "two!", 3),
        ('void f() {\n  throw E("one");\n  throw E("one");\n}', "one", None),
        ('void f() {\n  // throw E("one");\n  throw E("two");\n}', "one", None),
        ('void f() {\n  try {} catch (...) { throw; }\n  throw E("two");\n}', "two", 3),
        ('void f() {\n  throw E("");\n}', "anything", None),
        ('void f() {\n  throw E("size");\n}', f"{RANGE} size() (which is 3)", None),
        ('void f() {\n  throw E("vector");\n}', RANGE, None),
        ('void f() {\n  throw E("vector " + name);\n}', RANGE, None),
        ('void f() {\n  throw E("a size of " + n);\n}', "a size of 3 is too small for it", 2),
        ('void f() {\n  throw E(s() << "size " << n);\n}', "size 3 is not a multiple of 8", 2),
        ('void f() {\n  throw E(n + ": a bad size");\n}', "x: a bad size", 2),
        ('void f() {\n  throw E(n + " is bad");\n}', "a name so long is bad", None),
        ("void f() {\n  throw E(a + b);\n}", "anything", None),
        ('void f() {\n  throw E("first\\nand second");\n}', "first\nand second", 2),
        ("void f(int c) {\n  throw c;\n}", "kernel threw a value of type int", 2),
        (
            'void f(int c) {\n  throw std::runtime_error("a");\n  throw c;\n}',
            "kernel threw a value of type int",
            3,
        ),
        ("void f(int c) {\n  throw c;\n  throw 1;\n}", "kernel threw a value of type int", None),
        ("void f() {\n  throw 42;\n}", "kernel threw a value of type ", None),
        ("void f() {\n  throw a::E<int>{1};\n}", "kernel threw a value of type b::E", 2),
    ],
)
def test_the_line_of_a_throw_is_told_where_only_one_can_be_meant(text, message, line):
    assert thrown_at(text, message) == line


NAMED = "@tp.library.custom_op('frames::{}', mutates_args=())\ndef {}(x: tp.Tensor) -> tp.Tensor:\n"


@pytest.mark.parametrize(
    "line",
    [
        "tp.library.define('frames::root(Tensor x) -> Tensor')",
        "tp.library.register_kernel('frames::nothing', 'cpu', abs)",
        "tp.library.custom_op('frames::odd', abs, mutates_args=(), schema='(Tensr x) -> ()')",
        "tp.ops.frames.root(3)",
        "tp.ops.frames.root()",
        "tp.ops.frames.root(tp.ones(2), 3)",
        "tp.ops.frames.root(tp.tensor([1, 2]))",
        "tp.ops.frames.toor(tp.ones(2))",
        "tp.ones(2) @ tp.ones(3)",
        "tp.ones(2).reshape(3)",
        "tp.softmax(tp.ones(2), dim=5)",
        "tp.ones(2).nothing",
        "tp.nn.Linear(2, 2).nothing",
        "tp.nn.Linear(2, 2)(tp.ones(3))",
        "tpkernel.sweep(3, [])",
    ],
)
def test_a_refusal_shows_the_persons_line_alone(shell: Shell, line: str):
    assert shell.kernel(OPERATOR, "--no-check").error is None
    shell.ok("import tensorplay as tp\nimport tpkernel")
    ran = shell.run(f"def mine():\n    {line}\nmine()")
    assert shown_frames(ran) == ["mine()", line]
    assert "During handling" not in ran.shown
    shell.ok("%xmode Plain")
    try:
        assert "During handling" not in shell.run(line).shown
        assert ".py" not in shell.run(line).shown
    finally:
        shell.ok("%xmode Context")


def test_a_name_that_is_taken_shows_the_persons_line_alone(shell: Shell):
    assert shell.kernel(OPERATOR, "--no-check").error is None
    shell.ok("import tensorplay as tp")
    ran = shell.run(NAMED.format("root", "root") + "    return x + 1")
    assert "frames::root is already defined by" in str(ran.error)
    assert shown_frames(ran) == ["@tp.library.custom_op('frames::root', mutates_args=())"]


@pytest.mark.parametrize("how", ["from e", "from None", ""])
@pytest.mark.parametrize("inner", ["tp.ops.frames.root(tp.tensor([1]))", "root(tp.tensor([-1.0]))"])
def test_so_do_both_ends_of_a_chain(shell: Shell, how: str, inner: str):
    assert shell.kernel(OPERATOR, "--no-check").error is None
    shell.ok("import tensorplay as tp")
    ran = shell.run(
        f"def mine():\n    try:\n        {inner}\n    except Exception as e:\n"
        f"        raise LookupError('no root') {how}\nmine()"
    )
    frames = shown_frames(ran)
    said = ["mine()", f"raise LookupError('no root') {how}".strip()]
    assert frames[-2:] == said
    before = [] if how == "from None" else [inner]
    if before and inner.startswith("root"):
        before.append(line_of(OPERATOR, "    if (x[i] < 0)"))
    assert frames[:-2] == before


def test_an_accident_in_code_of_ours_keeps_its_frames(shell: Shell):
    code = compile("def inner():\n    return {}['key']", "<tensorplay test>", "exec")
    shell.ok("def fill(code):\n    exec(code, globals())")
    shell["fill"](code)
    assert "<tensorplay test>" in shell.run("inner()").shown


def test_an_unloaded_extension_shows_frames_as_ipython_does(shell: Shell):
    shell.ok("import tensorplay as tp")
    shell.ok("%unload_ext tensorplay")
    try:
        assert "primitive.py" in shell.run("tp.ones(2).reshape(3)").shown
    finally:
        shell.ok("%load_ext tensorplay")
    assert shown_frames(shell.run("tp.ones(2).reshape(3)")) == ["tp.ones(2).reshape(3)"]
