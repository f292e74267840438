"""Front matter as people write it: YAML's traps, characters that look like others, and strays."""

from __future__ import annotations

import pytest
import yaml
from hypothesis import given, strategies as st

from tests.tpkernel.cells.test_reading import failure, read
from tpkernel.cells.words import WordsLoader, written

BODY = """\
template <typename T>
void f(tp::In<T> ARG, double beta, tp::Out<T> out) {
  for (int64_t i = 0; i < ARG.numel(); ++i) out[i] = ARG[i] * T(beta);
}
"""


def cell(lines: str, argument: str = "x") -> str:
    """Return a cell whose front matter is a schema and more lines; the lines begin at 4."""
    schema = f"op: words::f(Tensor {argument}, float beta=1.0) -> Tensor\n"
    return f"/*---\n{schema}{lines}---*/\n" + BODY.replace("ARG", argument)


@pytest.mark.parametrize("name", ["y", "n", "no", "on", "off", "yes", "Null_", "e3", "x1e3"])
def test_a_word_is_a_word(name: str) -> None:
    spec = read(cell(f"shape: {{{name}: [k], out: [k]}}\nderivatives: {{{name}: grad}}\n", name))
    (operator,) = spec.operators
    assert operator.differentiated == (name,)
    assert str(operator.kernel.shapes.inputs[name]) == "[k]"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("010", 10), ("0x10", 16), ("0o17", 15), ("-3", -3), ("1e3", 1000.0), ("1.", 1.0),
        (".5", 0.5), ("-.inf", float("-inf")), ("true", True), ("FALSE", False), ("~", None),
        ("", None), ("no", "no"), ("Yes", "Yes"), ("12:30", "12:30"), ("1_000", "1_000"),
        ("2020-01-01", "2020-01-01"), ("=", "="), ("<<", "<<"), ("0b11", "0b11"), ("e5", "e5"),
    ],
)  # fmt: skip
def test_plain_words_are_those_of_yaml_1_2(text: str, value: object) -> None:
    found = yaml.load(f"a: {text}", WordsLoader)["a"]  # noqa: S506  (a safe loader)
    assert found == value
    assert type(found) is type(value)


@given(
    st.recursive(
        st.none()
        | st.booleans()
        | st.integers()
        | st.floats(allow_nan=False)
        | st.text(st.characters(exclude_categories=("C", "Z")), max_size=8)
        | st.sampled_from(["no", "1e3", "010", "1_0", "12:30", "2020-01-01", "<<", "=", "~", ""]),
        lambda inner: (
            st.lists(inner, max_size=3) | st.dictionaries(st.text("ayn", min_size=1), inner)
        ),
        max_leaves=8,
    )
)
def test_what_is_written_is_read_as_the_same(value: object) -> None:
    assert yaml.load(written(value), WordsLoader) == value  # noqa: S506  (a safe loader)


@pytest.mark.parametrize(
    ("lines", "line", "words"),
    [
        ("layout: no\n", 4, "contiguous, strided or copy, got 'no'"),
        ("output_differentiability: [yes]\n", 4, "must be True or False .* got ['yes']"),
        ("shape: {x: [1e3], out: [1]}\n", 4, "dimension '1000.0' of input 'x' must be a name"),
        ("shape: {x: [12:30], out: [1]}\n", 4, "dimension '12:30' of input 'x' must be"),
        ("samples:\n  - {x: [1.0], beta: no}\n", 5, "sample 0, 'beta': expected float, got 'no'"),
        ("samples: [{x: [1.0], beta: true}]\n", 4, "'beta': expected float, got True"),
        ("samples:\n  - {x: [1, [2]]}\n", 5, "sample 0, 'x': expected lists of one length"),
        ("samples: [{x: [[1], [2, 3]]}]\n", 4, "of one length .* got [[1], [2, 3]]"),
        ("samples: [{x: [1.0], beta: }]\n", 4, "'beta': expected float, got None"),
        ("derivatives:\n\tx: grad\n", 5, "a tab stands here. Write spaces."),
        ("doc:\thi\n", 4, "a tab stands here. Write spaces."),
        ("doc: &a hi\nreference: *a\n", 5, "'*a' stands for another value. Write the value"),
        ("ops: []\n", 4, "stands beside 'ops'"),
        ("doc: 'a */ b'\n", 4, "'*/' ends the comment here"),
        ("doc: a\ndoc: b\n", 5, "front-matter key 'doc' stands here twice"),
        ("Doc: a\n", 4, "unknown front-matter key 'Doc'; did you mean 'doc'?"),
    ],
)
def test_each_trap_is_told_at_its_line(lines: str, line: int, words: str) -> None:
    problem = failure(cell(lines))
    assert problem.line == line
    for part in words.split(" .* "):
        assert part in str(problem)


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("/*---\nops: []\n---*/\n" + BODY, 3, "'ops' has no entry; write '- op: …'"),
        ("/*---\nops:\n  - ops: []\n---*/\n" + BODY, 4, "'ops' cannot stand inside of an entry"),
        (cell("") + cell(""), 9, "a second front matter would not be read"),
        ("/*---\nop:\u00a0words::f(Tensor x) -> Tensor\n---*/\n" + BODY, 3,
         "the character U+00A0 (NO-BREAK SPACE) stands here"),
        ("/*---\nop\uff1a words::f(Tensor x) -> Tensor\n---*/\n" + BODY, 3,
         "the character U+FF1A (FULLWIDTH COLON) stands here"),
    ],
    ids=["no entry", "nested", "two", "no-break space", "fullwidth colon"],
)  # fmt: skip
def test_what_cannot_be_front_matter_says_why(text: str, line: int, words: str) -> None:
    problem = failure(text)
    assert problem.line == line
    assert words in str(problem)


def test_aliases_of_aliases_are_refused_at_once() -> None:
    levels = ", ".join(
        f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9) if i else 'x'}]" for i in range(30)
    )
    problem = failure(cell(f"doc: {{{levels}}}\n"))
    assert "'*a0' stands for another value" in str(problem)
    shown, caret = str(problem).splitlines()[1:]
    assert len(shown) < 300
    assert shown[caret.index("^") :].startswith("*a0")


@pytest.mark.parametrize("end", ["\r\n", "   \n", " # a comment\n"])
def test_ends_of_lines_mean_nothing(end: str) -> None:
    front, body = cell("derivatives:\n  x: grad * beta\n").split("---*/")
    (operator,) = read(
        front.replace("\n", end, 5).replace("/*---" + end, "/*---\n") + "---*/" + body
    ).operators
    assert operator.differentiated == ("x",)


LOOP = "{ for (int64_t i = 0; i < x.numel(); ++i) out[i] = x[i]; }\n"
PLAIN = f"template <typename T>\nvoid f(tp::In<T> x, tp::Out<T> out) {LOOP}"


@pytest.mark.parametrize(
    "text",
    [
        f"#if 0\n{PLAIN.replace('T> x', 'T> y')}#else\n{PLAIN}#endif\n",
        f"#if 1\n{PLAIN}#else\nvoid f(int x) {{}}\n#endif\n",
        f"#if 0\nvoid g(int64_t n) {{}}\n#endif\n{PLAIN}",
        f"#if 0\nvoid g(int x) {{}}\n#elif 1\n{PLAIN}#endif\n",
        f"#ifndef NOPE\n{PLAIN}#endif\n",
        PLAIN.replace("void f", "auto f").replace("out) {", "out) -> void {"),
        f'const char* s = R"x(}}}} void g(int) {{ )x";\n{PLAIN}',
        f'const char* s = "/* open";\n{PLAIN}const char* e = "*/";\n',
        f"// comment \\\nvoid g(int x) {{ still one\n{PLAIN}",
        f'extern "C++" {{\n{PLAIN}}}\n',
        PLAIN.replace("void f", "[[gnu::noinline]] void f").replace("out) {", "out) noexcept {"),
        PLAIN.replace("template", "\ufefftemplate").replace("\n", "\r\n"),
    ],
)  # fmt: skip
def test_cpp_that_is_hard_to_read_is_read(text: str) -> None:
    spec = read(text)
    (operator,) = spec.operators
    assert (operator.schema, spec.functions) == ("cell::f(Tensor x) -> Tensor", ())


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (f"namespace a {{\n{PLAIN}}}\n", "in namespace a. Write it outside of the namespace"),
        (PLAIN.replace("void", "static void"), "Leave out static and inline"),
        (f"namespace {{\n{PLAIN}}}\n", "outside of unnamed namespaces"),
        (f"#define K(n) template <typename T> void n(tp::In<T> x, tp::Out<T> out) {LOOP}K(f)\n",
         "What a macro makes is not seen: write signature and braces out."),
        (f"#if 0\n{PLAIN}#endif\n", "the cell defines no function"),
        (f"#ifdef A\n{PLAIN}#else\n{PLAIN.replace('tp::Out<T> out', 'tp::Out<float> out')}#endif\n",
         "or put the #if inside the body"),
        ("int64_t* f(int64_t x) { return nullptr; }\n", "its result has type int64_t*"),
        ("template <typename T>\nvoid f(T x) {}\n", "Take tp::In<T> and tp::Out<T>, or write"),
    ],
)  # fmt: skip
def test_functions_that_are_no_kernels_say_what_to_write(text: str, words: str) -> None:
    assert words in str(failure(text))
