"""What is read from a source before compiling."""

from __future__ import annotations

import re
import subprocess
import time

import pytest
from hypothesis import example, given, settings, strategies as st

from tensorplay.utils.cpp_jit.source import (
    blank,
    closest,
    directives,
    implied_headers,
    needs_full_headers,
    scan,
)
from tensorplay.utils.cpp_jit.toolchain import find_compiler

TEXT = r"""
#include <cmath>
# include "mine.h"
// void commented(int x) {}
/* #include <hidden.h>
   void also_commented() {} */
const char* s = "void quoted() { } // not a comment";
const char* r = R"x(void raw() { " )x";
static inline double plain(const double* p, int64_t n = 3, float beta=1.5f) { return p[n]; }
namespace a { namespace b {
int64_t nested(tvm::ffi::TensorView x, const std::map<int, int>& m, unsigned) { if (n) { f(); } }
}}
extern "C" { void in_c(void) {} }
template <typename T> void generic(T x) {}
struct S { void method() {} };
void S::method2() {}
int declared(int a);
[[nodiscard]] auto trailing(bool b) -> int { return b ? '{' : '}'; }
"""


def test_functions_with_their_parameters():
    found = {function.name: function for function in scan(TEXT).functions}
    assert set(found) == {"plain", "nested", "in_c", "trailing"}
    plain = found["plain"]
    assert plain.line == TEXT[: TEXT.index("plain")].count("\n") + 1
    assert [(p.name, p.type) for p in plain.parameters] == [
        ("p", "const double*"),
        ("n", "int64_t"),
        ("beta", "float"),
    ]
    assert plain.parameters[0].value is NotImplemented
    assert (plain.parameters[1].value, plain.parameters[2].value) == (3, 1.5)
    assert plain.result == "double"
    nested = found["nested"].parameters
    assert [(p.name, p.type) for p in nested] == [
        ("x", "tvm::ffi::TensorView"),
        ("m", "const std::map<int, int>&"),
        ("", "unsigned"),
    ]
    assert found["in_c"].parameters == ()


def test_includes():
    found = scan(TEXT)
    assert found.includes == ("cmath",)
    assert found.local_includes == ("mine.h",)


@given(st.text(alphabet="ab \n\"'/*\\R(x){};", max_size=60))
def test_blanking_keeps_every_line_and_column(text):
    result = blank(text)
    assert len(result) == len(text)
    assert [i for i, c in enumerate(result) if c == "\n"] == [
        i for i, c in enumerate(text) if c == "\n"
    ]
    scan(text)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("tvm::ffi::TensorView x; tvm :: ffi :: Shape s;", None),
        ("tvm::ffi::Map<int, int> m;", "tvm::ffi::Map"),
        ("// tvm::ffi::Map", None),
        ('"tvm::ffi::Map"', None),
        ("#include <tvm/ffi/c_api.h>", None),
        ("#include <tvm/ffi/function.h>", "<tvm/ffi/function.h>"),
        ("TVM_FFI_THROW(ValueError)", None),
        ("TVM_FFI_STATIC_INIT_BLOCK() {}", "TVM_FFI_STATIC_INIT_BLOCK"),
    ],
)
def test_what_needs_the_full_headers(text, reason):
    assert needs_full_headers([scan(text)]) == reason


def test_headers_that_names_imply():
    text = "#include <vector>\nstd::vector<std::string> v; auto e = std::exp(1.0); memcpy(a, b, 1);"
    assert set(implied_headers([scan(text)])) == {"string", "cmath", "cstring"}
    assert implied_headers([scan("#include <math.h>\ndouble y = exp(x);")]) == ()
    assert implied_headers([scan("x.exp(1); my::exp(2); // std::string")]) == ()


@pytest.mark.parametrize(
    ("text", "stateful"),
    [
        ("int64_t f() { return 1; }", False),
        ("static int64_t g(int a) { return a; }", False),
        ("static const int n = 3; constexpr int m = 4; const double x = 1;", False),
        ("static int n = 0;", True),
        ("int n;", True),
        ("std::vector<int> v{1, 2};", True),
        ("namespace q { int n = 3; }", True),
        ("int64_t f() { static int n; return ++n; }", True),
        ("thread_local int x;", True),
        ("struct S { int a; };\nusing T = int;\ntypedef int U;\nvoid f(int a);", False),
        ("template <typename T> struct C { static int n; };", True),
    ],
)
def test_sources_with_variables_that_outlive_a_call(text, stateful):
    assert scan(text).stateful is stateful


def test_the_closest_name():
    assert closest("addd", ["sub", "add"]) == "add"
    assert closest("zzz", ["sub", "add"]) is None


def test_megabytes_of_comments_are_read_in_a_time_that_grows_with_them():
    # Five minutes where each character copies the statement before it.
    text = "/*\n" + "some words of documentation\n" * 70_000 + "*/\nvoid f() {}\n"
    assert scan(text).stateful is False
    assert scan(f"{text}int calls;\n").stateful is True


# Pieces of which directives, comments and functions are made, so that each stands beside each.
PIECES = st.sampled_from(
    [
        "#define A", "#define F(x) x", "#undef A", "#if 1", "#endif", "# define B 7",
        "/* one */", "/* two\nlines */", "// note", "// note \\\nmore", "// note \\ \nmore",
        "\\\n", "\\  \n", "\\\t\n", "\n", "\n", "\n", " ", "'\\''", '"text"', '"a\\\nb"', "1'000",
        ' R"(raw\n#define RAW 1\n)"', "#", "int f() { return 1; }", "void g() {}", "A", ";",
        "}", "{",
    ]
)  # fmt: skip
TEXTS = st.lists(PIECES, max_size=12).map("".join)


@given(TEXTS)
@example("#define X /* a\n b */ {\nint f() {}")
@example("#define X \\  \n  {\nint f() {}")
@example("int x = 1 \\\n#define A {\n; int f() {}")
def test_blanks_keep_every_line_and_column(text: str):
    found = scan(text)
    for made in (found.code, found.flat):
        assert len(made) == len(text)
        assert [i for i, c in enumerate(made) if c == "\n"] == [
            i for i, c in enumerate(text) if c == "\n"
        ]
        assert all(a in {b, " "} for a, b in zip(made, text, strict=True))
    for function in found.functions:
        assert function.name in text.split("\n")[function.line - 1]


@pytest.mark.slow
@settings(max_examples=15, deadline=None)
@given(st.lists(TEXTS, min_size=4, max_size=4))
def test_directives_are_those_that_the_preprocessor_sees(texts: list[str]):
    """Compare the macros that there are at the end of a text with those of ``g++ -E -dM``."""
    for text in texts:
        plain = text.replace("#if 1", "").replace("#endif", "").replace("#undef A", "") + "\n"
        ran = subprocess.run(
            [*find_compiler().command, "-E", "-dM", "-undef", "-x", "c++", "-std=c++17", "-"],
            input=plain, capture_output=True, text=True, check=False,
        )  # fmt: skip
        if ran.returncode:
            continue  # no directive of C++, such as a lone #define
        name = re.compile(r"#\s*define\s+([A-Z]\w*)")
        defined, read = (
            {m[1] for m in map(name.match, lines) if m}
            for lines in (ran.stdout.splitlines(), directives(plain))
        )
        assert read == defined, plain


@pytest.mark.parametrize(
    "directive",
    [
        "#define X /* a comment\n   over lines { */ {",
        "#define X \\   \n   {",
        "#define X \\\t\n   { \\\n {",
        "/* one\n two */ #define X {",
        "// a note \\ \n   {",
        '#define X "a \\  \n b" {',
        "#pragma omp /*\n*/ parallel {",
    ],
)
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_a_directive_ends_where_its_logical_line_does(directive: str, end: str):
    text = f"{directive}\nint after(int x) {{ return x; }}\n"
    (function,) = scan(text.replace("\n", end)).functions
    assert function.name == "after"
    assert function.result == "int"
    assert function.line == directive.count("\n") + 2


def test_directives_are_single_lines_without_comments():
    text = '#define F(x) /* of\n */ x \\ \n + 1 // more\nint a;\nauto s = R"(\n#define N 1\n)";\n'
    (line,) = directives(text)
    assert line.split() == ["#define", "F(x)", "x", "+", "1"]


def test_functions_are_found_in_a_time_that_grows_with_the_text():
    def seconds(count: int) -> float:
        body = "{{ double s = 0; for (int i = 0; i < n; ++i) {{ s += x * {0}; }} return s; }}"
        text = "\n".join(f"double g{i}(double x, int n) " + body.format(i) for i in range(count))
        text = f"// {count} {time.perf_counter_ns()}\n{text}"  # scans are kept
        start = time.process_time()
        assert len(scan(text).functions) == count
        return time.process_time() - start

    small = min(seconds(500) for _ in range(3))
    # A count of lines for each function took 20 times as long for 8 times as many.
    assert min(seconds(4000) for _ in range(2)) < 13 * small
