"""CUDA cells read: which kernels are operators, how they are launched, and what is wrong where."""

from __future__ import annotations

import re
from dataclasses import replace
from random import Random
from typing import Any

import pytest
from hypothesis import given, strategies as st

from tensorplay.library.modules.shapes import ShapeRules
from tensorplay.library.modules.spec import Argument, CellSpec, KernelSpec, LaunchSize
from tensorplay.utils.cpp_jit.cuda_kernels import Entry
from tpkernel.building.codegen import export_source
from tpkernel.building.cuda_cells import read_cuda
from tpkernel.building.cuda_codegen import device_preamble, entries, instances
from tpkernel.cells.cell import parse_cell
from tpkernel.cells.launches import LaunchError, read_launch
from tpkernel.cells.reading import Options, read_cell
from tpkernel.errors import CellError

SCALE = """\
/*---
op: m::scale(Tensor x, float by=2.0) -> Tensor
launch: {n: numel}
---*/
__global__ void scale(const float* x, float* out, int n, float by) {
  if (threadIdx.x < n) out[threadIdx.x] = x[threadIdx.x] * by;
}
__global__ void scale_backward(const float* grad, float by, float* grad_x, int n) {}
"""
NUMEL = LaunchSize("numel", "views[1].numel", None, (("numel", "views[1].numel"),))
ONE = LaunchSize("1", "INT64_C(1)", 1)
VIEWS = """\
template <typename T> __global__ void f(tp::In<T> x, T by, tp::Out<T> out) { out[0] = x[0] * by; }
"""


def read(text: str, **options: object) -> CellSpec:
    cell = parse_cell(text, name="In[3]", first_line=2)
    return read_cuda(cell, Options(**options))  # type: ignore[arg-type]


def test_pointers_become_inputs_and_outputs_by_name() -> None:
    forward, backward = read(SCALE).operators
    kernel = forward.kernel
    assert forward.schema == "m::scale(Tensor x, float by=2.0) -> Tensor"
    assert [(a.name, a.role, a.kind) for a in kernel.arguments] == [
        ("x", "in", "tensor"), ("by", "in", "float"), ("out", "out", "tensor"),
    ]  # fmt: skip
    assert kernel.device == "cuda"
    assert kernel.doc == "__global__ void scale(const float* x, float* out, int n, float by)"
    assert kernel.launch is not None
    assert kernel.launch.parameters == (
        ("const float*", "x", "x"), ("float*", "out", "out"), ("int", "n", NUMEL),
        ("float", "by", "by"),
    )  # fmt: skip
    grid = "ceil_div(numel, 256)", "ceil_div(views[1].numel, INT64_C(256))", None, NUMEL.atoms
    assert kernel.launch.grid == (LaunchSize(*grid), ONE, ONE)
    assert dict(kernel.guard_text())["x"].startswith("float32, on cuda, contiguous, read only")
    assert backward.helper
    assert forward.backward is not None
    assert forward.backward.arguments == ("grad", "by")
    assert backward.kernel.launch is not None
    assert backward.kernel.launch.parameters[-1] == ("int", "n", NUMEL)


def test_views_make_operators_without_front_matter_and_an_instance_for_each_dtype() -> None:
    spec = read(VIEWS, namespace="mine")
    (operator,) = spec.operators
    assert operator.schema == "mine::f(Tensor x, float by) -> Tensor"
    assert [e.name for e in entries(spec)] == ["f<float>", "f<double>"]
    assert instances(spec).splitlines() == [
        "template __global__ void f<float>(::tp::In<float>, float, ::tp::Out<float>);",
        "template __global__ void f<double>(::tp::In<double>, double, ::tp::Out<double>);",
    ]
    assert device_preamble(spec) == "#include <tensorplay/cuda_views.h>\n"


def test_half_precision_brings_its_header() -> None:
    front = "/*---\nop: m::f(Tensor x, float by) -> Tensor\ndtypes: [float16, bfloat16]\n---*/\n"
    spec = read(front + VIEWS)
    assert [e.arguments for e in entries(spec)] == [("__half",), ("__nv_bfloat16",)]
    assert "#include <cuda_fp16.h>\n#define TENSORPLAY_CUDA_FP16 1\n" in device_preamble(spec)
    named = read("__global__ void f(tp::In<__half> x, tp::Out<half> out) { out[0] = x[0]; }\n")
    assert named.operators[0].outputs[0].dtype == "float16"


def test_each_kernel_may_have_its_own_rule() -> None:
    rules = "launch: {scale: {block: 32, n: numel}, scale_backward: {block: 64, n: grad.numel()}}"
    forward, backward = read(SCALE.replace("launch: {n: numel}", rules)).operators
    assert forward.kernel.launch is not None
    assert backward.kernel.launch is not None
    assert forward.kernel.launch.block[0].known == 32
    assert backward.kernel.launch.block[0].known == 64
    grad = LaunchSize("grad.numel()", "views[0].numel", None, (("grad.numel()", "views[0].numel"),))
    assert backward.kernel.launch.parameters[-1] == ("int", "n", grad)


def test_the_schema_may_write_arguments_and_take_them_in_order() -> None:
    spec = read(
        "/*---\nop: m::f(Tensor(a!) y, int k) -> ()\nlaunch: {grid: k, block: 1}\n---*/\n"
        "__global__ void f(float* y, long long k) { y[k] = 1; }\n"
    )
    assert spec.operators[0].mutates == ("y",)
    launch = spec.operators[0].kernel.launch
    assert launch is not None
    number = "tp_arg_int(args[1])"
    assert launch.grid[0] == LaunchSize("k", number, None, (("argument 'k'", number),))
    positional = read(
        "/*---\nop: m::f(Tensor x) -> Tensor y\n---*/\n"
        "__global__ void f(const double* a, double* b) { b[0] = a[0]; }\n"
    )
    assert [a.name for a in positional.operators[0].kernel.arguments] == ["x", "y"]


ENTRY = "/*---\nop: m::scale(Tensor x, float by=2.0) -> Tensor\n"


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        (SCALE.replace("launch: {n: numel}\n", ""), 5, r"\[scale\] parameter 'n' is no argument"),
        (SCALE.replace("n: numel", "m: numel"), 6, "parameter 'n' is no argument of the schema"),
        (SCALE.replace("n: numel", "n: numel, blok: 2"), 4, r"unknown key 'blok' .* mean 'block'"),
        (SCALE.replace("n: numel", "n: numl"), 4, "'numl' is no size here.*mean 'numel'"),
        (SCALE.replace("n: numel", "n: x"), 4, r"'x' is a tensor; write its numel\(\)"),
        (SCALE.replace("n: numel", "n: 'x.shape[0]'"), 4, "'x' has any number of dimensions"),
        (SCALE.replace("n: numel", "n: x.numel()"), 4,
         r"\[m::scale_backward\] launch: n: 'x' is no tensor of the kernel.*scale_backward: \{…\}"),
        (SCALE.replace("n: numel", "n: 3000000000"), 4, "n: expected a size that int holds"),
        (SCALE.replace("n: numel", "n: numel, by: 3"), 4, "'by' is an argument of the schema"),
        (SCALE.replace("{n: numel}", "{scale: {n: numel}, scale_bakward: {n: numel}}"), 4,
         "'scale_bakward' is no kernel of the cell; did you mean 'scale_backward'"),
        (SCALE.replace("{n: numel}", "\n  scale: {n: numel}\n  skale: {n: numel}"), 6,
         "'skale' is no kernel of the cell; .* Kernels: scale, scale_backward"),
        (SCALE.replace("{n: numel}", "{scale: {n: numel}, scale_backward: {n: numel}, h: {block: "
         "1}}") + "__global__ void h(float* x) {}\n", 4, "no operator launches 'h'"),
        (SCALE.replace("{n: numel}", "{scale: {n: numel}}"), 9,
         r"which: launch: \{scale_backward: \{n: numel\}, …\}"),
        (SCALE + "__global__ void scale(double* x) {}\n", 10, r"\[scale\] several kernels"),
        (SCALE + '#include "cell:other"\n', 10, "includes no other cells"),
        (SCALE.replace("n: numel", "n: 1.5"), 4, "n must be an integer or an expression"),
        (SCALE.replace("n: numel", "n: numel, grid: [1, 1, 1, 1]"), 4, "a list of up to three"),
        (SCALE.replace("n: numel", "n: numel, grid: ceil_div(numel, 2)"), 4, "Put it in quotes"),
        (SCALE.replace("{n: numel}", "5"), 4, "launch must be a rule such as"),
        (SCALE.replace("launch:", "devices: cpu\nlaunch:"), 4, "kernel is CUDA and runs on"),
        (SCALE.replace("m::scale(Tensor x", "m::skale(Tensor x"), 3,
         "no __global__ function 'skale'; did you mean 'scale'"),
        (SCALE.replace("launch:", "kernel: scale_backwards\nlaunch:"), 4,
         (r"no __global__ function 'scale_backwards'; did you mean 'scale_backward'\? The cell's "
         "kernels: scale, scale_backward; name one with 'kernel:'")),
        (SCALE.replace("launch:", "kernel: twice\nlaunch:") + "__device__ float twice(float x) "
         "{ return 2 * x; }\n", 4, "'twice' is a function and no kernel. Write __global__ before"),
        (SCALE.replace("(Tensor x, float", "(Tensor x; float"), 3, "the schema cannot be read"),
        (SCALE.replace("const float* x", "const char** x"), 6, r"argument 'x': got const char\*\*"),
        (SCALE.replace("float* out", "tp::Result<float> out"), 6, "a kernel takes tp::In<T>"),
        (SCALE.replace("float by) {", "dim3 by) {"), 6, "argument 'by': got dim3"),
        (SCALE.replace("const float* x", "float* x"), 6, "argument 'x': expected an input"),
        (SCALE + "void go() { scale<<<1, 1>>>(nullptr, nullptr, 1, 1); }\n", 10,
         r"\[go\] 'go' is a function for the host"),
        (SCALE + "static int blocks(int n) { return n; }\n", 10, "is a function for the host"),
        (ENTRY.replace("Tensor x, float by=2.0", "int n") + "shape: [n]\n---*/\n"
         "__global__ void scale(int n, float* out) { out[n] = 0; }\n", 3, "a tensor argument"),
        (ENTRY.replace(", float by=2.0", "") + "dtypes: complex64\n---*/\ntemplate <typename T>\n"
         "__global__ void scale(tp::In<T> x, tp::Out<T> out) { out[0] = x[0]; }\n", 7,
         "no kernel of a CUDA cell takes complex64"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused_at_its_line(text: str, line: int, words: str) -> None:
    with pytest.raises(CellError, match=words) as caught:
        read(text)
    assert caught.value.line == line


ODD = [
    "", "3", "[]", "{}", "{a: b}", "{n: 3}", "{n: {y: 1}}", "null", "true", "'a b'", "{1: 2}",
    "{null: 1}", "{n: null}", "{n: 'x['}", "{n: numel, grid: []}", "{n: numel, grid: [[1]]}",
    "{n: numel, block: '1 +'}", "{n: 9223372036854775808}", "{scale: 3}", "{scale: {n: 1}}",
    "{n: 'x.shape[0].y'}", "{n: 'x.shape[numel]'}", "{n: numel, shared: 2020-01-01}",
]  # fmt: skip


@pytest.mark.parametrize("value", ODD)
def test_odd_rules_are_taken_or_refused_at_a_line(value: str) -> None:
    try:
        spec = read(SCALE.replace("{n: numel}", value))
    except CellError as problem:
        line = problem.line
    else:
        assert export_source(spec)
        line = spec.operators[0].line
    assert line is not None


def test_what_is_marked_for_the_device_is_taken_beside_operators() -> None:
    spec = read(
        SCALE + "__device__ float a(float x) { return x; }\n"
        "__device__ __forceinline__ float b(float x) { return x; }\n"
        "__host__ __device__\ninline float c(float x) { return x; }\n"
        "static __device__ float d(float x) { return x; }\n"
        "struct P { float f; __device__ float get() const { return f; } };\n"
    )
    assert [o.opname for o in spec.operators] == ["scale", "scale_backward"]
    with pytest.raises(CellError, match="'e' is a function for the host"):
        read(SCALE + "// __device__\nfloat e(float x) { return x; }\n")


@pytest.mark.parametrize(
    "kind", ["Tensor?", "Tensor[]", "str", "int[]", "float?", "ScalarType", "Device"]
)
def test_types_that_no_kernel_takes_are_refused_at_the_schema(kind: str) -> None:
    text = f"/*---\nop: m::f(Tensor x, {kind} b) -> Tensor\n---*/\n"
    text += "__global__ void f(const float* x, const float* b, float* out) { out[0] = x[0]; }\n"
    words = rf"argument 'b': got {re.escape(kind)}, and the kernel of a CUDA cell takes Tensor, int"
    with pytest.raises(CellError, match=words) as caught:
        read(text)
    assert caught.value.line == 3


def test_launch_is_for_cuda_cells() -> None:
    text = "/*---\nop: m::f(Tensor x) -> Tensor\nlaunch: {grid: 1}\n---*/\n"
    text += "void f(tp::In<float> x, tp::Out<float> out) { out[0] = x[0]; }\n"
    with pytest.raises(CellError, match="launch is for kernels of CUDA cells"):
        read_cell(parse_cell(text))


def test_symbols_of_instances_are_found_as_compilers_spell_them() -> None:
    known = {
        "f": "f", "_Z1fIfEvN2tp2InIT_Lin1EEE": "", "_Z1fI6__halfEvT_": "", "_ZL1gIdhEvT_T0_": "",
        "_Z1hI6__halfS0_fEvT_": "", "_Z1hI13__nv_bfloat166__halfS0_EvT_": "",
    }  # fmt: skip
    assert Entry("f", "f").symbol({"f": "_Z1fPf"}) == "_Z1fPf"
    for arguments, symbol in (
        (("float",), "_Z1fIfEvN2tp2InIT_Lin1EEE"),
        (("__half",), "_Z1fI6__halfEvT_"),
        (("double",), None),
    ):
        assert Entry("", "f", arguments).symbol(known) == symbol
    assert Entry("", "g", ("double", "uint8_t")).symbol(known) == "_ZL1gIdhEvT_T0_"
    twice = Entry("", "h", ("__half", "__half", "float"))
    assert twice.symbol(known) == "_Z1hI6__halfS0_fEvT_"
    mixed = Entry("", "h", ("__nv_bfloat16", "__half", "__nv_bfloat16"))
    assert mixed.symbol(known) == "_Z1hI13__nv_bfloat166__halfS0_EvT_"


TENSOR = Argument("out", "tensor", "float*", role="out", dtypes=("float32",), rank=2)
KERNEL = KernelSpec(
    "f", "m::f", "views",
    (replace(TENSOR, name="x", role="in"), TENSOR, Argument("k", "int", "int")),
    "void", (), ({},), ShapeRules({}, {}, declared=False), 1,
)  # fmt: skip
ATOMS = ("numel", "k", "x.numel()", "x.shape[1]", "out.shape[-1]", "x.ndim", "7")


def expression(random: Random, depth: int = 4) -> str:
    """Return an expression of a launch rule."""
    kind = random.randrange(4) if depth else 0
    if kind == 0:
        return random.choice(ATOMS)
    if kind == 1:
        return f"-{expression(random, depth - 1)}"
    left, right = expression(random, depth - 1), expression(random, depth - 1)
    if kind == 2:
        return f"({left} {random.choice(('+', '-', '*', '//', '%'))} {right})"
    return f"{random.choice(('min', 'max', 'ceil_div'))}({left}, {right})"


@given(st.integers(0, 2**32), st.integers(0, 9), st.integers(0, 9), st.integers(-9, 9))
def test_expressions_mean_in_c_what_they_mean_in_python(
    seed: int, rows: int, columns: int, k: int
) -> None:
    """The C++ of a rule is evaluated here by Python, with the run-time header's functions."""
    text = expression(Random(seed))

    class Of:
        def __init__(self) -> None:
            self.shape, self.ndim = (rows, columns), 2
            self.numel = rows * columns

    class Called(Of):
        def __init__(self) -> None:
            super().__init__()
            self.numel = lambda: rows * columns  # type: ignore[assignment]

    names = {
        "views": [Of(), Of()], "args": [0, 0, k], "tp_arg_int": lambda value: value,
        "INT64_C": int, "int64_t": int, "sum": lambda a, b: a + b,
        "difference": lambda a, b: a - b, "product": lambda a, b: a * b,
        "floor_div": lambda a, b: a // b, "floor_mod": lambda a, b: a % b,
        "ceil_div": lambda a, b: -(-a // b), "least": min, "most": max,
    }  # fmt: skip
    same = {
        "numel": rows * columns, "k": k, "x": Called(), "out": Called(), "min": min, "max": max,
        "ceil_div": lambda a, b: -(-a // b),
    }  # fmt: skip
    try:
        launch = read_launch({"n": text}, KERNEL, [("int64_t", "n", "n")])
    except LaunchError:  # a divisor that is zero whatever the call
        with pytest.raises(ZeroDivisionError):
            eval(text, {}, same)
        return
    size = launch.parameters[0][2]
    assert isinstance(size, LaunchSize)
    assert size.text == text
    for name, cpp in size.atoms:
        value = eval(cpp, {}, names)
        assert value == eval(name.replace("argument 'k'", "k"), {}, same)
    try:
        expected = eval(text, {}, same)
    except ZeroDivisionError:
        with pytest.raises(ZeroDivisionError):
            eval(size.cpp, {}, names)
        return
    assert eval(size.cpp, {}, names) == expected
    assert size.known in (None, expected)


@pytest.mark.parametrize(
    ("rule", "text"),
    [
        ({"grid": 0}, "grid: expected a size from 1 to 2147483647, got 0"),
        ({"grid": -1}, "grid: expected a size from 1 to 2147483647, got -1"),
        ({"grid": "2 - ceil_div(5, 2)"}, "expected a size from 1 to 2147483647, got 2 - ceil"),
        ({"grid": [1, 65536]}, "grid: expected a size from 1 to 65535, got 65536"),
        ({"block": 2048}, "block: expected a size from 1 to 1024, got 2048"),
        ({"block": [1, 1, 65]}, "block: expected a size from 1 to 64, got 65"),
        ({"block": [32, "min(64, 33)"]}, "block: expected at most 1024 threads, got 1056"),
        ({"shared": -4}, "shared: expected a size from 0 to"),
        ({"grid": "1//0"}, "grid: '1 // 0' divides by zero"),
        ({"grid": "numel % (3 - 3)"}, "divides by zero"),
        ({"grid": "ceil_div(numel, 0)"}, "divides by zero"),
    ],
)
def test_sizes_that_no_launch_has_are_refused(rule: dict[str, Any], text: str) -> None:
    with pytest.raises(LaunchError, match=re.escape(text)):
        read_launch(rule, KERNEL, [])
    ((key, value),) = rule.items()
    rules = f"n: numel, {key}: {value!r}"
    with pytest.raises(CellError, match=re.escape(text)) as caught:
        read(SCALE.replace("n: numel", rules))
    assert caught.value.line == 4


def test_the_largest_sizes_of_a_launch_are_taken() -> None:
    rule = {"grid": [2**31 - 1, 65535, 65535], "block": [4, 4, 64], "shared": 0}
    assert [size.known for size in read_launch(rule, KERNEL, []).block] == [4, 4, 64]
    read_launch({"block": [1024, "k"]}, KERNEL, [])  # known at the call alone


@pytest.mark.parametrize(
    "text",
    ["__import__('os')", "x[0]", "numel / 2", "f(1)", "min(1)", "'a'", "x.shape[~0]", "2 ** 3",
     "x.shape[+0]", "x.shape[not 0]", "~k", "not k", "k if k else 1", "k << 1", "x.numel", "True",
     "k and 1", "k < 1", "x.shape[0:1]", "x.size(0)", "min(*k, 1)", "min(k, 1, 2)", "[k]"],
)  # fmt: skip
def test_other_expressions_are_refused(text: str) -> None:
    with pytest.raises(LaunchError, match=r"is no size\. Write integers|expected a size such as"):
        read_launch({"block": text}, KERNEL, [])


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("+".join(["k"] * 20000), "…' is too long"),
        ("9223372036854775807 + 1", r"at most 64 bits, got 9223372036854775807 \+ 1"),
        ("9" * 30, "at most 64 bits"),
        ("2147483648", "n: expected a size that int holds, from -2147483648 to 2147483647, got 2"),
    ],
)
def test_numbers_that_nothing_holds_are_refused(text: str, words: str) -> None:
    with pytest.raises(LaunchError, match=words) as caught:
        read_launch({"n": text}, KERNEL, [("int", "n", "n")])
    assert len(str(caught.value)) < 300


def test_a_name_that_stands_for_two_things_is_refused_where_it_is_used() -> None:
    arguments = (*KERNEL.arguments[:2], Argument("numel", "int", "int"))
    kernel = replace(KERNEL, arguments=arguments)
    # The rule that stands where none is written means the output's elements all the same.
    assert read_launch({}, kernel, []).grid[0].cpp == "ceil_div(views[1].numel, INT64_C(256))"
    with pytest.raises(LaunchError, match=r"'numel' is an argument, .* or write out\.numel\(\)"):
        read_launch({"grid": "numel"}, kernel, [])
    assert read_launch({"grid": "out.numel()"}, kernel, []).grid[0].cpp == "views[1].numel"
