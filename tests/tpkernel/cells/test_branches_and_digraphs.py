"""C++ that readers of the text have to see as the compiler does: branches of #if, digraphs."""

from __future__ import annotations

import pytest

import tensorplay as tp
import tpkernel
from tensorplay.utils.cpp_jit import BuildError
from tensorplay.utils.cpp_jit.source import without_digraphs
from tpkernel.cells.cell import parse_cell
from tpkernel.cells.reading import read_cell
from tpkernel.cpp.braces import unclosed_brace
from tpkernel.errors import CellError

SQUARE = """\
template <typename T>
void square(tp::In<T> x, tp::Out<T> out) {
  for (int64_t i = 0; i < x.numel(); ++i) out[i] = x[i] * x[i]PLUS;
}
"""
TWO = f"#ifdef MORE\n{SQUARE.replace('PLUS', ' + 1')}#else\n{SQUARE.replace('PLUS', '')}#endif\n"
#: Two bodies for a function of one parameter list.
BODIES = "CONDITION\nvoid f(PARAMETERS) { FIRST }\n#else\nvoid f(PARAMETERS) { SECOND }\n#endif\n"
VIEWS = "tvm::ffi::TensorView x, tvm::ffi::TensorView out"


def bodies(first: str, second: str, parameters: str, condition: str = "#ifdef A") -> str:
    text = BODIES.replace("FIRST", first).replace("SECOND", second)
    return text.replace("PARAMETERS", parameters).replace("CONDITION", condition)


@pytest.mark.parametrize(("flags", "expected"), [("", 9.0), ("-DMORE", 10.0)])
def test_a_function_with_a_body_in_each_branch_is_one_operator(flags, expected):
    report = tpkernel.build(TWO, flags=flags, checks=False)
    assert report.bound == ("square",)
    assert report.module.square(tp.tensor([3.0])).tolist() == [expected]


def test_branches_of_several_conditions_and_plain_functions():
    apart = TWO.replace("#else", "#endif\n#ifndef MORE")
    assert tpkernel.build(apart, checks=False).module.square(tp.tensor([2.0])).tolist() == [4.0]
    text = "\n".join(
        [
            *("#if LEVEL == 1", "int64_t level() { return 1; }"),
            *("#elif LEVEL == 2", "int64_t level() { return 2; }"),
            *("#else", "int64_t level() { return 0; }", "#endif"),
        ]
    )
    for flags, expected in (("", 0), ("-DLEVEL=1", 1), ("-DLEVEL=2", 2)):
        assert tpkernel.build(text, flags=flags).module.level() == expected


@pytest.mark.parametrize("condition", ["#ifdef A", "#if A > 1", "#if !defined(A) || B"])
@pytest.mark.parametrize("turned", [False, True])
def test_guards_hold_for_every_body(condition, turned):
    """Strides and writing: what one of the bodies needs is asked for."""
    given = ["out(0, 0) = x(0, 0);", "out(0, 0) = x[1];"]
    parameters = "tp::In<float, 2> x, tp::Out<float, 2> out"
    text = bodies(*(given[::-1] if turned else given), parameters, condition)
    (operator,) = read_cell(parse_cell(text)).operators
    assert operator.kernel.arguments[0].contiguous
    strided = bodies(given[0], given[0].replace("0, 0", "1, 0"), parameters, condition)
    assert not read_cell(parse_cell(strided)).operators[0].kernel.arguments[0].contiguous
    reads = "float v = static_cast<const float*>(x.data_ptr())[0]; (void)v; "
    writes = "static_cast<float*>(x.data_ptr())[0] = 1; "
    both = [reads, writes][:: -1 if turned else 1]
    (function,) = read_cell(parse_cell(bodies(*both, VIEWS, condition))).functions
    assert function.arguments[0].writes
    assert function.arguments[0].dtypes == ("float32",)


@pytest.mark.parametrize(
    "text",
    [
        BODIES.replace("void f(PARAMETERS) { SECOND", "int64_t f() { return 1; "),
        BODIES.replace("f(PARAMETERS) { SECOND", "f(tp::In<float> x, int64_t n) { "),
        # formulas and backward functions go by names: a swap is another function
        (
            "CONDITION\nvoid f(tp::In<float> x, tp::In<float> w) { }\n#else\n"
            "void f(tp::In<float> w, tp::In<float> x) { }\n#endif\n"
        ),
        bodies(
            "static_cast<float*>(x.data_ptr())[0] = 1;",
            "static_cast<double*>(x.data_ptr())[0] = 1;",
            VIEWS,
        ),
    ],
)
def test_bodies_that_need_different_guards_are_refused_with_the_reason(text):
    text = text.replace("CONDITION", "#ifdef A").replace("PARAMETERS", "tp::In<float> x")
    text = text.replace("FIRST", "")
    with pytest.raises(CellError, match="another branch of #if has another 'f'") as caught:
        read_cell(parse_cell(text))
    assert "put the #if inside the body" in str(caught.value)


def test_two_functions_of_one_name_in_one_branch_are_still_two():
    twice = f"#ifdef A\n{SQUARE.replace('PLUS', '') * 2}#endif\n"
    with pytest.raises(CellError, match="two functions are called 'square'"):
        read_cell(parse_cell(twice))


@pytest.mark.parametrize(
    "text",
    [
        "void f(tp::In<float> x)\n#ifdef A\n{ }\n#else\n{ return; }\n#endif\n",
        "void f(tp::In<float> x) {\n#ifdef A\nif (true) {\n#else\n{\n#endif\n}\n}\n",
    ],
)
def test_a_function_in_pieces_says_what_to_put_into_branches(text):
    with pytest.raises(CellError, match="A function that #if cuts in pieces is not seen"):
        read_cell(parse_cell(text))


def test_a_helper_that_stays_unbound_in_each_branch_is_noted_once():
    text = bodies("", "", "").replace("void", "static void") + "int64_t g() { f(); return 1; }"
    report = tpkernel.build(text)
    assert sum("f is not bound" in note for note in report.notes) == 1


DIGRAPHS = """\
%:include <cmath>
%:define TWO 2
template <typename T> void twice(tp::In<T, 1> x, tp::Out<T, 1> out) <%
  for (int64_t i = 0; i < x.size(0) and not false; ++i) <%
    const T row<:1:> = <% x(i) %>;  // "<%" in a comment, and a text: "%>"
    out(i) = TWO * row<:0:>;
  %>
%>
"""


def test_a_cell_of_digraphs_and_alternative_tokens_is_read_as_the_compiler_reads_it():
    report = tpkernel.build(DIGRAPHS)
    assert report.ok, str(report)
    assert report.module.twice(tp.tensor([1.0, 2.0])).tolist() == [2.0, 4.0]
    (operator,) = read_cell(parse_cell(DIGRAPHS)).operators
    assert not operator.kernel.arguments[0].contiguous
    flat = DIGRAPHS.replace("<% x(i) %>", "<% x<:i:> %>")
    assert read_cell(parse_cell(flat)).operators[0].kernel.arguments[0].contiguous


def test_what_only_looks_like_a_digraph_stays():
    text = "std::vector<::tp::X> a; auto s = \"<% %:\"; char c = '%'; x = n %2; // %> <:"
    assert without_digraphs(text) == text
    assert without_digraphs("a<:1:> <::> %:if") == "a [1 ]  [ ]  #if"
    assert len(without_digraphs(DIGRAPHS)) == len(DIGRAPHS)


def test_an_open_digraph_brace_is_reported_where_it_stands():
    text = "void f() <%\n  if (true) <% }\n"
    assert unclosed_brace(text) == text.index("<%") + 1
    with pytest.raises(CellError, match="opened at line 1 is never closed"):
        tpkernel.build("int64_t f() <%\n  if (true) <% %> return 1;\n")


def test_an_error_in_digraphs_stands_at_the_cells_own_column():
    with pytest.raises(BuildError) as caught:
        tpkernel.build("int64_t f() <% return oops; %>", checks=False)
    first = caught.value.diagnostics[0]
    assert (first.line, first.column) == (1, 23)
