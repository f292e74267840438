"""What a cell may say, and the error for everything that it may not."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings, strategies as st

import tensorplay as tp
import tpkernel
from tensorplay.library.modules.shapes import Dims, Like
from tensorplay.library.modules.source import operator_source
from tensorplay.library.modules.spec import CellSpec
from tests.tpkernel.shell import ADD1, MATMUL, SOFTPLUS
from tpkernel.building.codegen import export_source
from tpkernel.cells.cell import KEYS, parse_cell
from tpkernel.cells.reading import Options, read_cell
from tpkernel.errors import CellError


def read(text: str, first_line: int = 2, **options: object) -> CellSpec:
    return read_cell(parse_cell(text, name="In[5]", first_line=first_line), Options(**options))


def failure(text: str, **options: object) -> CellError:
    with pytest.raises(CellError) as caught:
        read(text, **options)
    return caught.value


def test_softplus_is_read_as_declared():
    (op,) = read(SOFTPLUS).operators
    assert op.schema == "mylib::softplus(Tensor x, float beta=1.0) -> Tensor"
    x, beta, out = op.kernel.arguments
    assert (x.role, x.dtypes, x.contiguous, x.writes) == ("in", ("float32", "float64"), True, False)
    assert (beta.kind, out.role, out.writes) == ("float", "out", True)
    assert op.kernel.shapes.outputs == {"out": Like("x")}
    assert op.derivatives[0].formula.source == "grad * tp.sigmoid(beta * x)"
    assert op.derivatives[0].line == 5


def test_the_generated_module_is_what_one_would_write():
    (op,) = read(SOFTPLUS).operators
    source = operator_source(op)
    assert "kernels.softplus(x, beta, out)" in source.wrapper
    assert "ctx.save_for_backward(x)" in source.gradient
    assert "grad_x = grad * tp.sigmoid(beta * x)" in source.gradient
    compile(source.text, "generated", "exec")


def test_views_that_are_only_indexed_admit_strides():
    (op,) = read(MATMUL).operators
    assert [a.contiguous for a in op.kernel.arguments] == [False, False, False]
    assert op.kernel.shapes.inputs["w"] == Dims(("k", "m"))


def test_guards_of_a_plain_kernel_come_from_its_casts():
    (add1,) = read(ADD1).functions
    x, out = add1.arguments
    assert (x.dtypes, x.writes, x.contiguous) == (("float32",), False, True)
    assert (out.dtypes, out.writes) == (("float32",), True)
    assert x.because == "from the cast on line 3"


@pytest.mark.parametrize(
    ("body", "dtypes", "writes", "contiguous"),
    [
        ("auto* p = static_cast<double*>(x.data_ptr()); p[0] += 1;", ("float64",), True, True),
        ("double* p = (double*)x.data_ptr(); *p++ = 1;", ("float64",), True, True),
        ("const float* p = (const float*)x.data_ptr(); use(p);", ("float32",), False, True),
        ("float* p = (float*)x.data_ptr(); use(p);", ("float32",), None, True),
        ("auto v = static_cast<int32_t*>(x.data_ptr())[2];", ("int32",), False, True),
        ("using R = double; ", (), None, True),
        ("memcpy(x.data_ptr(), q, 8);", (), True, True),
        (
            "auto* p = static_cast<float*>(x.data_ptr()); p[x.stride(0)] = 1;",
            ("float32",),
            True,
            False,
        ),
        (
            "auto* p = static_cast<float*>(x.data_ptr()); std::swap(p[0], p[1]);",
            ("float32",),
            True,
            True,
        ),
        ("if (x.dtype().bits == 32) y = static_cast<float*>(x.data_ptr())[0];", (), False, True),
        ("helper(x);", ("float32",), True, True),
        ("by_value(static_cast<float*>(x.data_ptr())[0]);", ("float32",), False, True),
        ("by_reference(static_cast<float*>(x.data_ptr())[0]);", ("float32",), None, True),
        ("elsewhere(static_cast<float*>(x.data_ptr())[0]);", ("float32",), None, True),
        ("r = std::exp(static_cast<float*>(x.data_ptr())[0]);", ("float32",), False, True),
        ("for (auto& v : static_cast<float*>(x.data_ptr())) v = 1;", ("float32",), None, True),
        ("elsewhere(x);", (), None, True),
    ],
)
def test_what_a_body_does_with_a_tensor(body, dtypes, writes, contiguous):
    text = (
        "static void helper(tvm::ffi::TensorView y) { static_cast<float*>(y.data_ptr())[0] = 1; }\n"
        "static void by_value(float v) {}\nstatic void by_reference(float& v) { v = 1; }\n"
        f"void f(tvm::ffi::TensorView x) {{ {body} }}\n"
    )
    (f,) = read(text).functions
    (x,) = f.arguments
    assert (x.dtypes, x.writes, x.contiguous) == (dtypes, writes, contiguous)


def test_integers_carry_the_range_of_their_cpp_type():
    (f,) = read("int f(int a, int64_t b, uint8_t c, bool d, std::size_t e) { return 0; }").functions
    assert [(a.low, a.high) for a in f.arguments[:3]] == [
        (-(2**31), 2**31 - 1),
        (-(2**63), 2**63 - 1),
        (0, 255),
    ]
    assert f.arguments[4].low == 0


def test_a_signature_alone_makes_an_operator():
    text = (
        "template <class T> void sq(tp::In<T> x, T s, int64_t n, tp::Out<T> out) { out[0] = x[0]; }"
    )
    (op,) = read(text, namespace="m").operators
    assert op.schema == "m::sq(Tensor x, float s, int n) -> Tensor"


def test_a_backward_function_is_matched_by_its_parameter_names():
    text = """\
    template <class T> void sq(tp::In<T> x, tp::Out<T> out) { out[0] = x[0]; }
    template <class T> void sq_backward(tp::In<T> grad, tp::In<T> x, tp::Out<T> grad_x) {
      grad_x[0] = grad[0] * x[0];
    }
    """
    op, helper = read(text).operators
    assert op.backward.arguments == ("grad", "x")
    assert op.backward.outputs == ("grad_x",)
    assert helper.helper
    assert helper.name == "cell::sq_backward"
    assert "grad_x = sq_backward(grad, x)" in operator_source(op).gradient


def test_several_operators_in_one_cell():
    text = """\
/*---
ops:
  - op: m::f(Tensor x) -> Tensor
    derivatives: {x: grad * g(x)}
  - op: m::g(Tensor x) -> Tensor
---*/
template <class T> void f(tp::In<T> x, tp::Out<T> out) { out[0] = x[0]; }
template <class T> void g(tp::In<T> x, tp::Out<T> out) { out[0] = x[0]; }
"""
    spec = read(text)
    assert spec.bound_names == ("f", "g")
    assert spec.operators[0].derivatives[0].formula.kernels == {"g"}


@pytest.mark.parametrize(
    ("old", "new", "line", "words"),
    [
        ("op:", "opp:", 3, ["unknown front-matter key 'opp'", "did you mean 'op'"]),
        ("derivatives:", "derivates:", 4, ["did you mean 'derivatives'"]),
        ("---*/", "", 2, ["has no end", "---*/"]),
        ("op: mylib", "op: [mylib", 4, ["not valid YAML"]),
        ("op: mylib::softplus(Tensor x,", "op: mylib::softplus(Tensr x,", 3, ["Tensr", "^"]),
        ("op: mylib::", "op: ", 3, ["no namespace", "mylib::"]),
        ("  x: grad", "  y: grad", 5, ["'y'", "no input", "Tensor inputs: x"]),
        ("  x: grad", "  beta: grad", 5, ["'beta'", "float", "only tensors"]),
        ("sigmoid", "sigmoyd", 5, ["unknown name 'sigmoyd'", "did you mean 'sigmoid'"]),
        ("grad * sigmoid(beta * x)", "grad * (", 5, ["no Python expression"]),
        ("double beta", "int beta", 8, ["argument 'beta'", "float", "got int", "double beta"]),
        ("double beta, ", "", 8, ["expected 3 parameters", "got 2", "x, beta, out"]),
        ("tp::Out<T> out", "tp::In<T> out", 8, ["argument 'out'", "tp::Out<T>", "got tp::In<T>"]),
        ("tp::In<T> x, double beta", "double beta, tp::In<T> x", 8, ["schema's order"]),
        ("void softplus(", "void softplush(", 3, ["no C++ function 'softplus'", "did you mean"]),
        ("Tensor x, float", "Tensor grad, float", 3, ["'grad'", "rename"]),
        ("derivatives:", "dtypes: float31\nderivatives:", 4, ["did you mean 'float32'"]),
        ("derivatives:", "shape: y\nderivatives:", 4, ["'y'", "no tensor input"]),
        ("derivatives:", "shape: [n]\nderivatives:", 4, ["dimension 'n'", "not declared"]),
        ("derivatives:", "layout: strided\nderivatives:", 4, ["argument 'x'", "flat"]),
        ("template <typename T>", "namespace a { template <typename T>", 8, ["namespace a"]),
        ("double beta", "float* beta", 8, ["'beta' has type float*"]),
        ("derivatives:", "layout: stried\nderivatives:", 4, ["did you mean 'strided'"]),
        ("derivatives:", "devices: cuda\nderivatives:", 4, ["cuda", "cpu"]),
        ("derivatives:", "samples: {z: 1}\nderivatives:", 4, ["'z'", "no argument"]),
        ("derivatives:", "samples: {beta: 1}\nderivatives:", 4, ["lacks argument 'x'"]),
        ("derivatives:", "samples: {x: rnadn(3)}\nderivatives:", 4, ["did you mean 'randn'"]),
        ("\n  x: grad * sigmoid(beta * x)", " {x: pow(grad, x)}", 4, ["comma", "'pow(grad, x)'"]),
        ("derivatives:", "samples: {x: randn(3, 4)}\nderivatives:", 4, ["x: 'randn(3, 4)'"]),
    ],
)  # fmt: skip
def test_each_mistake_in_a_declaration_has_its_own_error(old, new, line, words):
    assert old in SOFTPLUS
    error = failure(SOFTPLUS.replace(old, new, 1))
    assert error.line == line, str(error)
    text = str(error)
    assert text.startswith(f"In[5]:{line}")
    for word in words:
        assert word in text, text


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", ["defines no function"]),
        ("// nothing here\n#define N 2\n", ["defines no function"]),
        ("static int f() { return 1; }", ["no function can be exported", "static"]),
        ("int64_t f(float* a) { return 1; }", ["parameter 'a' has type float*", "TensorView"]),
        ("int main() { return 0; }", ["'main' cannot be a kernel"]),
        ("template <class T> T f(T a) { return a; }", ["template without typed views"]),
        (
            "int f(int a) { return 1; }\nint f(double a) { return 2; }",
            ["two functions are called 'f'"],
        ),
        ("template <class T> void f(tp::Out<T> out) { out[0] = 1; }", ["'T' is in no input"]),
        (
            "template <class T, int N> void f(tp::In<T> x, tp::Out<T> out) {}",
            ["is a value", "constexpr int N = 3;"],
        ),
        ("double lambda(double x) { return x; }", ["'lambda' is a word of Python's", "lambda_"]),
        (
            (
                "/*---\nop: m::f(Tensor x) -> Tensor\nkernel: lambda\n---*/\ntemplate <class T> "
                "void lambda(tp::In<T> x, tp::Out<T> out) {}"
            ),
            ["'lambda' is a word of Python's"],
        ),
        ("int64_t f(const char* s) { return 1; }", ["const char*", "Write const std::string&"]),
        ("int64_t f(std::string_view s) { return 1; }", ["Write const std::string&"]),
        ('const char* f(int64_t k) { return ""; }', ["cannot be returned. Return std::string."]),
        (
            (
                "/*---\nop: m::f(Tensor x) -> Tensor\nshape: {z: []}\n---*/\ntemplate <class T> "
                "void f(tp::In<T> x, tp::Out<T> y) {}"
            ),
            ["'z' under shape is no argument", "Names: x, y"],
        ),
        ("void f(tp::In<Thing> x, tp::Out<float> out) {}", ["argument 'x'", "got Thing"]),
    ],
)
def test_each_cell_that_cannot_be_a_kernel_says_why(text, words):
    message = str(failure(text))
    for word in words:
        assert word in message, message


def test_a_wrong_name_in_functions_names_the_nearest():  # B025
    error = failure("int64_t add(int64_t a) { return a; }", functions=("addd",), option_line=1)
    assert "no function 'addd'; did you mean 'add'?" in str(error)
    assert error.line == 1


def test_tensors_of_different_rank_need_declared_shapes():
    text = """\
    template <class T> void f(tp::In<T, 2> x, tp::In<T, 1> w, tp::Out<T, 2> out) {
      out(0, 0) = x(0, 0) * w(0);
    }
    """
    assert "different rank" in str(failure(text))


def test_a_written_argument_must_be_declared():
    text = """\
/*---
op: m::f(Tensor x) -> ()
---*/
void f(tvm::ffi::TensorView x) { static_cast<float*>(x.data_ptr())[0] = 1; }
"""
    assert "Tensor(a!) x" in str(failure(text))
    spec = read(text.replace("Tensor x", "Tensor(a!) x"))
    assert spec.operators[0].mutates == ("x",)


def test_a_gradient_is_given_once():
    text = SOFTPLUS + (
        "template <typename T>\n"
        "void softplus_backward(tp::In<T> grad, tp::In<T> x, tp::Out<T> grad_x) {"
        " grad_x[0] = grad[0] * x[0]; }\n"
    )
    assert "Keep one" in str(failure(text))


def test_a_backward_function_with_an_unknown_parameter():
    text = SOFTPLUS.replace("derivatives:\n  x: grad * sigmoid(beta * x)\n", "") + (
        "template <typename T>\n"
        "void softplus_backward(tp::In<T> grd, tp::In<T> x, tp::Out<T> grad_x) {"
        " grad_x[0] = grd[0] * x[0]; }\n"
    )
    error = str(failure(text))
    assert "parameter 'grd'" in error
    assert "did you mean 'grad'" in error


def test_lines_count_from_one_without_a_magic():
    with pytest.raises(CellError) as caught:
        read(SOFTPLUS.replace("op:", "opp:"), first_line=1)
    assert caught.value.line == 2


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_any_damaged_cell_is_read_or_refused_by_name(data):
    text = data.draw(st.sampled_from([SOFTPLUS, MATMUL, ADD1]))
    for _ in range(data.draw(st.integers(1, 3))):
        start = data.draw(st.integers(0, len(text)))
        end = data.draw(st.integers(start, min(len(text), start + 30)))
        patch = data.draw(
            st.sampled_from(["", "(", ")", "{", "}", ":", "'", '"', "\n", "Tensor", "T"])
        )
        text = text[:start] + patch + text[end:]
    try:
        spec = read(text)
    except CellError:
        return
    for op in spec.operators:
        compile(operator_source(op).text, "generated", "exec")
    assert export_source(spec).count("__tvm_ffi_") == len(spec.kernels)


@pytest.mark.parametrize("name", ["class", "tp", "kernels"])
def test_a_name_that_the_generated_module_cannot_hold(name):
    text = SOFTPLUS.replace("mylib::softplus", f"mylib::{name}").replace(
        "derivatives:", "kernel: softplus\nderivatives:"
    )
    error = failure(text)
    assert error.line == 3
    assert name in str(error)


def test_names_that_python_keeps_for_itself():
    text = "template <class T> void f(tp::In<T> in, double, tp::Out<T> out) { out[0] = in[0]; }"
    (op,) = read(text).operators
    assert op.schema == "cell::f(Tensor in_, float arg1) -> Tensor"
    assert "grad" in str(failure(SOFTPLUS.replace("Tensor x", "Tensor grad")))
    assert "kernels" in str(failure(SOFTPLUS.replace("tp::Out<T> out", "tp::Out<T> kernels")))


def test_defaults_that_only_a_builder_of_signatures_gets_right():
    import inspect
    import math

    from tensorplay.library.modules.signatures import make_signature, parameters_text
    from tensorplay.library.modules.source import define_operators

    declared = SOFTPLUS.replace("derivatives:\n  x: grad * sigmoid(beta * x)\n", "")
    for number, (arguments, parameters) in enumerate(
        {
            "float beta=inf": "x, beta=math.inf",
            "float beta=-inf": "x, beta=-math.inf",
            "float beta=nan": "x, beta=math.nan",
            "*, float beta": "x, *, beta",
            "*, float beta=2.0": "x, *, beta=2.0",
        }.items()
    ):
        text = declared.replace("float beta=1.0", arguments)
        text = text.replace("mylib::softplus", f"mylib::soft{number}")
        text = text.replace("---*/", "kernel: softplus\n---*/")
        spec = read(text)
        assert f"def soft{number}({parameters}):" in operator_source(spec.operators[0]).wrapper
        (made,) = define_operators(spec.operators, None).values()
        assert list(inspect.signature(made).parameters) == ["x", "beta"]
    mixed = make_signature([("x", 1.0, False), ("y", inspect.Parameter.empty, False)])
    assert parameters_text(mixed) == "x, y"
    mixed = make_signature([("a", math.nan, False), ("b", inspect.Parameter.empty, True)])
    assert parameters_text(mixed) == "a=math.nan, *, b"


def test_defaults_of_a_cpp_function():
    text = (
        "void f(tvm::ffi::TensorView x, int64_t a = N, double b = 2.5f, int64_t c = 2 * 3, "
        'bool d = true, float e = -1e-3f, const std::string& g = "t", int64_t h = -(1 + 2)) {}'
    )
    (f,) = read(text).functions
    assert f.defaults == {"b": 2.5, "c": 6, "d": True, "e": -0.001, "g": "t", "h": -3}
    (f,) = read("void f(int64_t a = 1, int64_t b = 7 / 2, int64_t c = 5) {}").functions
    assert f.defaults == {"c": 5}  # C++ rounds 7 / 2


ODD = [
    "", "3", "[]", "[3]", "{}", "{a: b}", "{x: 3}", "{x: {y: 1}}", "null", "true", "1.5", "'a b'",
    "[null]", "[[1]]", "{1: 2}", "{null: 1}", "2020-01-01", "{x: null}", "'x['", "&a [*a]",
    "{x: [n], out: ['n+']}", "{x: [n], out: ['f(n)']}", "!!python/object:os.system x",
]  # fmt: skip


@pytest.mark.parametrize("key", KEYS)
def test_odd_values_of_every_key_are_taken_or_refused_at_a_line(key):
    places: dict[str, int | None] = {}
    for value in ODD:
        entry = {
            "op": "mylib::softplus(Tensor x, float beta=1.0) -> Tensor",
            "derivatives": "{x: grad * sigmoid(beta * x)}",
            key: value,
        }
        lines = "\n".join(f"{name}: {text}" for name, text in entry.items())
        text = f"/*---\n{lines}\n" + SOFTPLUS[SOFTPLUS.index("---*/") :]
        try:
            spec = read(text)
        except CellError as problem:
            places[value] = problem.line
            continue
        assert export_source(spec)
        compile(operator_source(spec.operators[0]).text, "generated", "exec")
    assert None not in places.values(), places


def test_a_gradient_for_a_keyword_only_input_is_refused():
    text = MATMUL.replace("Tensor x, Tensor w", "Tensor x, *, Tensor w")
    error = failure(text)
    assert error.line == 7
    assert "'w' is keyword-only" in str(error)


def test_a_namespace_that_python_keeps_for_itself():
    error = failure(SOFTPLUS.replace("mylib::", "class::"))
    assert error.line == 3
    assert "'class'" in str(error)


TWO = """\
/*---
op: shapes::f(Tensor x, Tensor y) -> Tensor
shape: {rule}
---*/
template <typename T> void f(tp::In<T{rank}> x, tp::In<T> y, tp::Out<T> out) {{ out[0] = y[0]; }}
"""


@pytest.mark.parametrize("rule", ["{x: [n], out: [n]}", "{y: [n], out: [1]}"])
def test_an_input_that_shape_leaves_out_is_an_error(rule):
    with pytest.raises(CellError, match=r"^In\[5\]:4: error: \[shapes::f\] shape says nothing"):
        read(TWO.format(rule=rule, rank=""))


def test_inputs_have_one_shape_where_only_the_output_is_declared():
    (op,) = read(TWO.format(rule="{out: [1]}", rank="")).operators
    assert op.kernel.shapes.inputs == {"y": Like("x")}


@pytest.mark.parametrize(
    "entry",
    [
        "'x.shape[5]'", "'x.shape[-3]'", "'x.shape[0] // 0'", "1.5", "'1.5'", "'\"x\"'", "x",
        "x.shape", "'x.shape[a]'", "'x.numel()'", "'[1]'", "'1 / 2'", "'lambda: 1'", "true",
        "'x.shape[0:1]'", "'a if 1 else b'",
    ],
)  # fmt: skip
def test_sizes_that_are_no_sizes_stand_at_their_line(entry):
    with pytest.raises(CellError, match=r"^In\[5\]:4: error: \[shapes::f\] dimension"):
        read(TWO.format(rule=f"{{x: [a, b], y: x, out: [{entry}]}}", rank=", 2"))


FORMULA = """\
/*---
op: formulas::f(Tensor x, Tensor y) -> Tensor
derivatives:
  x: {formula}
---*/
template <typename T> void f(tp::In<T> x, tp::In<T> y, tp::Out<T> out) {{ out[0] = y[0]; }}
"""


@pytest.mark.parametrize(
    ("formula", "words"),
    [
        ("x.mul_(2) * grad", "mul_"),
        ("grad.copy_(x)", "copy_"),
        ("tp.exp(x, out=y)", "out="),
        ("await grad", "await"),
        ("(yield grad)", "yield"),
        ("-" * 2000 + "grad", "nested"),
        ("grad * out", "result"),
    ],
)
def test_formulas_that_cannot_stand_are_refused_at_their_line(formula, words):
    with pytest.raises(CellError, match=r"^In\[5\]:5: error: \[formulas::f\] ") as caught:
        read(FORMULA.format(formula=json.dumps(formula)))
    assert words in str(caught.value)


@pytest.mark.parametrize("above", ["\ufeff", "#include <cmath>\n", "static int n = 3;\n// c\n"])
def test_front_matter_is_read_wherever_it_stands(above):
    (op,) = read(above + SOFTPLUS).operators
    assert op.name == "mylib::softplus"


@pytest.mark.parametrize(
    "line",
    [
        "[a]: 3", "{a: 1}: 3", "doc: " + "9" * 5000, "devices: 3",
        "devices: null", "devices: true", "devices: [[1]]", "derivatives: {[1]: x}",
        "shape: {[1]: 2}", "samples: {[1]: 2}", "dtypes: {[1]: 2}", "doc: \ud800", "doc: \x07",
    ],
)  # fmt: skip
def test_front_matter_of_no_use_stands_at_its_line(line):
    text = SOFTPLUS.replace("derivatives:", line + "\nderivatives:")
    with pytest.raises(CellError, match=r"^In\[5\]:4:(\d+:)? error: "):
        read(text)


def test_front_matter_that_is_too_deep_is_an_error():
    deep = "doc: " + "[" * 3000 + "]" * 3000 + "\nderivatives:"
    with pytest.raises(CellError, match="nested too deeply"):
        read(SOFTPLUS.replace("derivatives:", deep))


def test_a_missing_template_and_an_export_macro_say_what_to_write():
    with pytest.raises(CellError, match="Write template <typename T> in front"):
        read("void h(tp::In<T> x, tp::Out<T> out) { out[0] = x[0]; }")
    macro = "TVM_FFI_DLL_EXPORT_TYPED_FUNC(g, ns::g);"
    with pytest.raises(CellError, match=r"^In\[5\]:3: error: remove 'TVM_FFI_DLL_EXPORT_TYPED"):
        read("namespace ns { double g(double x) { return x; } }\n" + macro)


def test_operators_that_share_a_function_keep_their_own_guards():
    text = """/*---
ops:
  - op: shared::wide(Tensor x) -> Tensor
    kernel: minus
    derivatives: {x: minus(grad)}
  - op: shared::narrow(Tensor x) -> Tensor
    kernel: minus
    dtypes: [float64]
---*/
template <typename T>
void minus(tp::In<T> x, tp::Out<T> out) {
  for (int64_t i = 0; i < x.numel(); ++i) out[i] = -x[i];
}
void minus_1() {}
"""
    spec = read(text)
    assert [k.export for k in spec.kernels] == ["minus", "minus_2", "minus_3"]
    report = tpkernel.build(text, checks=False)
    assert report.module.wide(tp.ones(2)).tolist() == [-1.0, -1.0]
    with pytest.raises(TypeError, match=r"\[shared::narrow\] .* expected float64"):
        report.module.narrow(tp.ones(2))
    x = tp.ones(2, requires_grad=True)
    report.module.wide(x).sum().backward()  # the formula calls the function, not an operator
    assert x.grad.tolist() == [-1.0, -1.0]


@pytest.mark.parametrize("name", ["twice_bwd", "twice_grad", "grad_twice", "twice_backwards"])
def test_a_gradient_under_another_name_is_a_hint_and_no_error(name: str) -> None:
    text = f"""\
template <typename T> void twice(tp::In<T> x, tp::Out<T> out) {{
  for (int64_t i = 0; i < x.numel(); ++i) out[i] = 2 * x[i];
}}
template <typename T> void {name}(tp::In<T> grad, tp::Out<T> grad_x) {{
  for (int64_t i = 0; i < grad.numel(); ++i) grad_x[i] = 2 * grad[i];
}}
"""
    spec = read_cell(parse_cell(text), Options())
    assert [o.opname for o in spec.operators] == ["twice"]
    assert spec.skipped == ((name, "it has a gradient's parameters; call it 'twice_backward'"),)
    report = tpkernel.build(text, checks=False)
    assert "misnamed_backward" in {f.code for f in report.findings}
    with pytest.raises(CellError, match="call it 'twice_backward'"):
        tpkernel.build(text, functions=[name])


def test_typed_views_and_engine_tensors_do_not_mix() -> None:
    text = "void f(tp::In<double> x, tvm::ffi::TensorView w, tp::Out<double> out) {}"
    with pytest.raises(CellError, match="argument 'w': expected a typed view as the others are"):
        read_cell(parse_cell(text), Options())


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("out(i, j) = 2 * x[i, j];", r"cell:5.*in C\+\+ x\[i, j\] is x\[j\].*Write x\(i, j\)"),
        ("out[i, j /* column */] = x(i, j);", r"out\[i, j\] is out\[j\].*Write out\(i, j\)"),
    ],
)
def test_a_comma_in_brackets_is_refused(body: str, words: str) -> None:
    text = f"""template <typename T>
void addb(tp::In<T, 2> x, tp::Out<T, 2> out) {{
  for (int64_t i = 0; i < x.size(0); ++i)
    for (int64_t j = 0; j < x.size(1); ++j)
      {body}
}}
"""
    with pytest.raises(tpkernel.CellError, match=f"(?s){words}"):
        tpkernel.build(text, checks=False)
    array = text.replace("x[i, j]", "x(i, (x.size(0), j))").replace(
        "out[i, j /* column */]", "out(i, j)"
    )
    tpkernel.build(array, checks=False)


@pytest.mark.parametrize(
    ("signature", "name"), [("Tensor x, Tensor w", "w"), ("Tensor x, Tensor k, int h", "h")]
)
def test_a_size_with_the_name_of_an_argument_is_refused(signature: str, name: str) -> None:
    other = signature.split("Tensor ")[2][0]
    text = f"""\
/*---
op: m::f({signature}) -> Tensor
shape: {{x: [h, w], {other}: [r, s], out: [h, w]}}
---*/
template <class T> void f(tp::In<T, 2> x, tp::In<T, 2> {other},{" int64_t h," * (name == "h")}
                          tp::Out<T, 2> out) {{ out(0, 0) = x(0, 0) * {other}(0, 0); }}
"""
    message = str(failure(text))
    assert f"size '{name}' in the shape of 'x' has the name of argument '{name}'" in message
    assert "give the size another name" in message
    assert "shape[0]" not in message
