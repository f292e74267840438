"""Compiler messages: at the person's own lines, the one that matters first, short."""

from __future__ import annotations

import pytest

from tensorplay.utils import cpp_jit
from tensorplay.utils.cpp_jit import store, toolchain
from tensorplay.utils.cpp_jit.diagnostics import Diagnostic, Texts, parse, render


def fails(text: str, exports: object = ("f",), **options: object) -> cpp_jit.BuildError:
    source = cpp_jit.Source(text, name="In[5]", first_line=2)
    with pytest.raises(cpp_jit.BuildError) as caught:
        cpp_jit.build_source("wrong", source, exports=exports, **options)
    return caught.value


def test_b024_a_missing_semicolon():
    error = fails("int64_t f() {\n  int64_t a = 1\n  return a;\n}\n")
    first = error.diagnostics[0]
    # The magic line itself is line 1, so the second line of the text is line 3 of the cell.
    assert (first.file, first.line, first.level) == ("In[5]", 3, "error")
    assert first.fix == ";"
    text = str(error)
    assert len(text) < 1000
    assert text.startswith("In[5]:3:16: error: expected ',' or ';' before 'return'")
    assert "      int64_t a = 1\n" + " " * 19 + "^" in text
    assert "g++" not in text
    assert error.commands[-1][0].endswith(("g++", "c++"))


def test_b025_a_misspelt_export_is_found_before_compiling(monkeypatch):
    from tensorplay.utils.cpp_jit import toolchain

    def refuse(*args: object) -> None:
        raise AssertionError("the compiler was started")

    monkeypatch.setattr(toolchain, "run", refuse)
    error = fails("int64_t add(int64_t a, int64_t b) { return a + b; }", ["addd"])
    assert "no function `addd`; did you mean `add`?" in str(error)
    error = fails("int64_t add(int64_t a) { return a; }", ["other_name"])
    assert "no function `other_name`; the source defines `add`" in str(error)


@pytest.mark.parametrize(
    ("text", "exports", "message"),
    [
        ("void f(float* p) {}", ["f"], "parameter `p` has type `float*`: a pointer cannot"),
        ("void f(const double *p) {}", ["f"], "use tvm::ffi::TensorView"),
        ("void f(int64_t& n) {}", ["f"], "a reference that can be written to"),
        ("int main() { return 0; }", ["main"], "`main` cannot be exported"),
        ("void f() {}", ["f()"], "`f()` is not the name of a C++ function"),
    ],
)
def test_b025_what_cannot_be_exported_is_said_in_one_sentence(text, exports, message):
    error = fails(text, exports)
    assert message in str(error)
    assert error.diagnostics[0].line == 2


def test_an_unknown_header_type_or_name_is_reported_at_its_line():
    error = fails("#include <nothing/here.h>\nint64_t f() { return 1; }")
    assert error.diagnostics[0].line == 2
    assert "nothing/here.h" in error.diagnostics[0].message
    error = fails("int64_t f(Thing t) { return 1; }")
    assert error.diagnostics[0].line == 2
    error = fails("\n\nint64_t f() { return valeu; }")
    assert (error.diagnostics[0].line, error.diagnostics[0].column) == (4, 22)


def test_an_error_about_the_engines_types_uses_their_documented_names():
    error = fails("int64_t f(tvm::ffi::TensorView x) { return x.sizze(0); }")
    assert "tvm::ffi::TensorView" in error.diagnostics[0].message
    assert "tensorplay_light" not in str(error)
    assert error.diagnostics[0].line == 2


def test_an_error_inside_a_template_of_a_header_is_reported_where_it_was_asked_for():
    text = (
        "#include <algorithm>\n#include <vector>\nstruct S { int a; };\n"
        "int64_t f() {\n  std::vector<S> v(3);\n  std::sort(v.begin(), v.end());\n  return 1;\n}\n"
    )
    error = fails(text)
    assert (error.diagnostics[0].file, error.diagnostics[0].line) == ("In[5]", 7)
    assert len(str(error)) < 3000
    assert len(error.diagnostics) > 0


GCC_INTRINSIC = """\
In file included from /lib/immintrin.h:43,
                 from In[1]:1:
/lib/avxintrin.h:903:1: error: inlining failed in call to 'always_inline' '__m256 load(…)'
fix-it:"/lib/avxintrin.h":{903:1-903:2}:"x"
In[1]:2:17: note: called from here
"""
GCC_TWO_OF_ONE_INSTANTIATION = """\
/lib/thread: In instantiation of 'struct Invoker':
/lib/thread:142:29:   required from 'thread::thread()'
In[1]:2:17:   required from here
/lib/thread:251:11: error: no type named 'type'
/lib/thread:255:9: error: no type named 'type' either
/lib/thread: In function 'int other()':
/lib/thread:300:1: error: elsewhere
"""
CLANG_INSTANTIATION = """\
In file included from In[1]:1:
In file included from /lib/algorithm:61:
/lib/algo.h:34:28: error: invalid operands to binary expression ('S' and 'S')
/lib/algo.h:90:5: note: in instantiation of function template specialization 'a' requested here
In[1]:2:17: note: in instantiation of function template specialization 'b' requested here
In[1]:1:5: note: candidate function not viable
"""
GCC_MACRO = """\
/lib/algo.h:12:7: error: macro "max" requires 2 arguments, but only 1 given
In[1]:2: note: macro "max" defined here
"""
GCC_INCLUDE = """\
In file included from /lib/outer.h:4,
                 from In[1]:1:
/lib/inner.h:3:2: error: #error needs C++20
In file included from /lib/outer.h:5:
/lib/second.h:7:2: error: #error needs C++20 too
"""


def texts(first: str = "#include <outer.h>") -> Texts:
    return Texts("In[1]", {"In[1]": (1, [first, "int f() { return gone(1); }"])})


@pytest.mark.parametrize(
    ("output", "places"),
    [
        (GCC_INTRINSIC, [(2, 17, "in avxintrin.h:903")]),
        (
            GCC_TWO_OF_ONE_INSTANTIATION,
            [(2, 17, "in thread:251"), (2, 17, "in thread:255"), None],
        ),
        (CLANG_INSTANTIATION, [(2, 17, "in algo.h:34")]),
        (GCC_MACRO, [(2, None, "in algo.h:12")]),
        (GCC_INCLUDE, [(1, None, "in inner.h:3"), (1, None, "in second.h:7")]),
    ],
)
def test_an_error_in_a_header_stands_where_the_persons_text_asks_for_it(output, places):
    found = parse(output, texts())
    assert [(d.line, d.column, d.notes[0]) if d.file == "In[1]" else None for d in found] == places
    assert found[0].source_line == texts().line("In[1]", found[0].line)
    assert found[0].fix is None


def test_an_error_in_a_header_of_the_persons_own_stays_there():
    found = parse(GCC_INCLUDE, texts('#include "outer.h"'))
    assert [(d.file, d.line) for d in found] == [("/lib/inner.h", 3), ("/lib/second.h", 7)]
    (declared,) = parse("/my/helper.h:3:5: error: wrong\nIn[1]:2:5: note: declared here\n", texts())
    assert (declared.file, declared.notes) == ("/my/helper.h", ("In[1]:2: declared here",))


def test_a_function_that_is_not_defined_is_named_at_its_declaration():
    error = fails("\nint64_t elsewhere(int64_t);\nint64_t f() { return elsewhere(1); }")
    first = error.diagnostics[0]
    assert "`elsewhere(long)` is declared and used but not defined" in first.message
    assert first.line == 3


def test_a_library_that_does_not_exist_is_the_linkers_error():
    error = fails("int64_t f() { return 1; }", extra_ldflags=["-lno_such_library"])
    assert "no_such_library" in str(error)


def test_preamble_and_generated_code_have_their_own_names():
    error = fails("int64_t f() { return 1; }", preamble="int wrong = ;")
    assert "<preamble>" in {d.file for d in error.diagnostics}
    error = fails("int64_t f() { return 1; }", generated="void g() { wrong(); }")
    assert error.diagnostics[0].file == "<generated>"
    assert error.diagnostics[0].line == 1
    assert error.diagnostics[0].source_line == "void g() { wrong(); }"


def test_at_most_ten_of_many_mistakes_are_shown():
    text = "\n".join(f"int64_t f{i}() {{ return v{i}; }}" for i in range(40))
    error = fails(text, ["f0"])
    assert len(error.diagnostics) >= 40
    shown = str(error).count(": error: ")
    assert 0 < shown <= 10
    assert "more in .diagnostics" in str(error)


def test_warnings_of_a_good_build_are_kept():
    built = cpp_jit.build_source(
        "warned",
        cpp_jit.Source("int64_t f() { int unused; return 1; }", name="In[9]"),
        exports=["f"],
        extra_cflags=["-Wall"],
    )
    assert [(d.level, d.line, d.file) for d in built.diagnostics] == [("warning", 1, "In[9]")]


CLANG = """\
In[1]:2:3: error: use of undeclared identifier 'foo'
In[1]:3:10: warning: unused variable 'x' [-Wunused-variable]
fix-it:"In[1]":{3:10-3:11}:"y"
In[1]:1:5: note: declared here
2 errors generated.
"""
LINKERS = {
    "bfd": "/usr/bin/ld: cc1.o: in function `f()':\nIn[1]:(.text+0x5): undefined reference to "
    "`gone(int)'\ncollect2: error: ld returned 1 exit status\n",
    "gold": "cc1.o:In[1]:function f(): error: undefined reference to 'gone(int)'\n",
    "lld": "ld.lld: error: undefined symbol: gone(int)\n>>> referenced by x\n",
    "mold": "mold: error: undefined symbol: gone(int)\n",
}
TEXTS = Texts("In[1]", {"In[1]": (1, ["int gone(int);", "int f() { return gone(1); }"])})


def test_clang_output():
    first, second = parse(CLANG, TEXTS)
    assert first == Diagnostic(
        2,
        3,
        "error",
        "use of undeclared identifier 'foo'",
        (),
        None,
        "In[1]",
        TEXTS.lines["In[1]"][1][1],
    )
    assert (second.fix, second.notes) == ("y", ("In[1]:1: declared here",))


@pytest.mark.parametrize("linker", LINKERS)
def test_output_of_every_linker(linker):
    found = parse(LINKERS[linker], TEXTS)
    assert [(d.line, d.message) for d in found] == [
        (1, "`gone(int)` is declared and used but not defined")
    ]


def test_output_that_nobody_understands_is_shown_as_it_is():
    assert "strange words" in render((), "strange words\n")


def test_diagnostics_survive_as_plain_data():
    for diagnostic in parse(CLANG, TEXTS):
        assert Diagnostic.from_dict(diagnostic.to_dict()) == diagnostic


def test_a_long_line_is_cut_around_the_caret():
    long = "x" * 500 + " wrong " + "y" * 500
    text = str(Diagnostic(1, 502, "error", "m", file="f", source_line=long))
    excerpt, caret = text.splitlines()[1:]
    assert len(excerpt) < 200
    assert excerpt[caret.index("^")] == "w"


def test_warnings_and_remarks_of_a_build_that_succeeds_are_kept():
    text = (
        "void f(tvm::ffi::TensorView x, double by) {\n"
        "  int unused = 0;\n"
        "  double* p = static_cast<double*>(x.data_ptr());\n"
        "  for (int64_t i = 0; i < 1024; ++i) p[i] *= by;\n"
        "}\n"
    )
    kind = toolchain.traits(toolchain.find_compiler(), store.default_cache().root).kind
    remarks = "-fopt-info-vec-optimized" if kind == "gcc" else "-Rpass=loop-vectorize"
    flags = ["-Wall", "-O3", remarks]
    for _ in range(2):  # built, then found
        built = cpp_jit.build_source(
            "remarks", cpp_jit.Source(text, "In[4]"), exports=["f"], extra_cflags=flags
        )
        levels = {(d.level, d.line) for d in built.diagnostics if d.file == "In[4]"}
        assert {("warning", 2), ("note", 4)} <= levels
    remark = next(d for d in built.diagnostics if d.level == "note")
    assert "vectorized" in remark.message
    assert remark.source_line == text.splitlines()[3]
