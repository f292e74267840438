from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given, strategies as st

from tensorplay.ops.operator import OPERATORS
from tensorplay.ops.schema import (
    NO_DEFAULT,
    Alias,
    Argument,
    DtypeName,
    FunctionSchema,
    Return,
    SchemaType,
    parse_schema,
)

# --- text of generated schemas parses to the same schema -----------------------------------------

names = st.from_regex(r"[a-z_][a-z0-9_]{0,6}", fullmatch=True).filter(
    lambda s: s not in {"inf", "nan", "in", "is", "if", "or", "as", "and", "not", "for", "def",
                        "del", "try", "from", "with", "pass", "else", "elif", "class", "break",
                        "while", "yield", "raise", "async", "await", "return", "import",
                        "lambda", "global", "assert", "except"}
)  # fmt: skip
sets = st.from_regex(r"[a-z][0-9]?", fullmatch=True)
aliases = st.builds(
    Alias,
    st.one_of(sets, st.tuples(sets, sets).map("|".join)),
    st.booleans(),
    st.one_of(st.none(), sets, st.just("*")),
)
# Numbers and booleans have no size where a plain value would be taken for a list.
types = st.one_of(
    st.builds(
        SchemaType,
        st.sampled_from(["Tensor", "int", "SymInt", "float", "bool", "str", "Scalar", "ScalarType",
                         "Device", "Layout", "Generator"]),
        optional=st.booleans(),
    ),
    st.builds(
        SchemaType,
        st.sampled_from(["Tensor", "int", "SymInt", "float", "bool", "Scalar"]),
        st.just(True),
        st.one_of(st.none(), st.integers(1, 9)),
        st.booleans(),
        st.booleans(),
    ),
)  # fmt: skip
values: dict[str, st.SearchStrategy[Any]] = {
    "Tensor": st.none(),
    "int": st.integers(),
    "SymInt": st.integers(),
    "float": st.floats(allow_nan=False),
    "bool": st.booleans(),
    "str": st.text(st.characters(codec="utf-8")),
    "Scalar": st.one_of(st.integers(), st.floats(allow_nan=False)),
    "ScalarType": st.sampled_from(["float32", "bool", "bfloat16"]).map(DtypeName),
    "Device": st.just("cpu"),
    "Layout": st.just("strided"),
    "Generator": st.none(),
}


@st.composite
def defaults(draw: st.DrawFn, kind: SchemaType) -> Any:
    one = values[kind.base]
    if not kind.is_list:
        return draw(st.one_of(st.none(), one))
    exact = kind.size if kind.size is not None and kind.size > 1 else None
    plural = st.lists(one, min_size=exact or 0, max_size=exact)
    if kind.base == "Tensor":
        plural = st.just([]) if exact is None else st.none()
    single = [one] if kind.size is not None else []
    return draw(st.one_of(st.none(), plural, *single))


@st.composite
def schemas(draw: st.DrawFn) -> FunctionSchema:
    arguments: list[Argument] = []
    unique = draw(st.lists(names, unique=True, max_size=6))
    keywords = draw(st.integers(0, len(unique)))
    with_default = False
    for number, name in enumerate(unique):
        kind = draw(types)
        kwarg_only = number >= len(unique) - keywords
        with_default = draw(st.booleans()) or (with_default and not kwarg_only)
        default = draw(defaults(kind)) if with_default else NO_DEFAULT
        alias = draw(st.one_of(st.none(), aliases)) if kind.is_tensor else None
        arguments.append(Argument(name, kind, default, kwarg_only, alias))
    returns = draw(
        st.lists(st.builds(Return, types, st.one_of(st.none(), names), st.none()), max_size=3)
    )
    return FunctionSchema(
        draw(names), tuple(arguments), tuple(returns), draw(st.one_of(st.none(), names)),
        draw(st.one_of(st.just(""), names)),
    )  # fmt: skip


@given(schemas())
def test_text_of_a_schema_parses_to_it(schema: FunctionSchema) -> None:
    text = str(schema)
    parsed = parse_schema(text)
    assert parsed == schema
    assert str(parsed) == text


@given(schemas(), st.randoms(use_true_random=False))
def test_spaces_do_not_matter(schema: FunctionSchema, random: Any) -> None:
    text = str(schema)
    if '"' not in text:
        spaced = "".join(
            random.choice(["", " ", "\n"]) + c + random.choice(["", " "]) if c in "()[],=?!*" else c
            for c in text
        )  # fmt: skip
        assert parse_schema(spaced) == schema


@given(st.text(max_size=40))
def test_any_text_gives_a_schema_or_an_error_with_a_caret(text: str) -> None:
    try:
        parse_schema(text)
    except ValueError as error:
        lines = str(error).split("\n")
        assert lines[0].startswith("[schema] ")
        assert lines[-1].strip() == "^"


def test_every_operator_of_our_own() -> None:
    for operator in OPERATORS.values():
        assert parse_schema(str(operator.schema)) == operator.schema


# --- particular texts ----------------------------------------------------------------------------


def test_parts() -> None:
    schema = parse_schema(
        'ns::op.out(Tensor(a!)? x, Tensor?[] xs, int[2] k=1, *, float s=1, str t="a\\n\\"b\\"", '
        "ScalarType d=bool, Tensor(b|c -> *) y) -> (Tensor(a!) first, Tensor[])"
    )
    assert (schema.qualname, schema.overload) == ("ns::op", "out")
    x, xs, k, s, t, d, y = schema.arguments
    assert x.type == SchemaType("Tensor", optional=True)
    assert x.alias == Alias("a", is_write=True)
    assert x.is_write
    assert xs.type == SchemaType("Tensor", is_list=True, list_of_optional=True)
    assert (k.type.size, k.default, k.kwarg_only) == (2, 1, False)
    assert (s.default, type(s.default), s.kwarg_only) == (1.0, float, True)
    assert t.default == 'a\n"b"'
    assert d.default == DtypeName("bool")
    assert y.alias == Alias("b|c", is_write=False, after="*")
    assert [r.name for r in schema.returns] == ["first", None]
    assert schema.returns[1].type.is_list


@pytest.mark.parametrize(
    ("text", "printed"),
    [
        ("f(Tensor, Tensor) -> Tensor", "f(Tensor arg0, Tensor arg1) -> Tensor"),
        ("f() -> ()", "f() -> ()"),
        ("f(Tensor x) -> (Tensor)", "f(Tensor x) -> Tensor"),
        ("f(float x=-1e3) -> ()", "f(float x=-1000.0) -> ()"),
        ("f(*,int[] d=[1,2])->int", "f(*, int[] d=[1, 2]) -> int"),
        ("f(float? nan=0.0) -> ()", "f(float? nan=0.0) -> ()"),
        ("f(float x=-inf) -> ()", "f(float x=-inf) -> ()"),
    ],
)
def test_normal_form(text: str, printed: str) -> None:
    assert str(parse_schema(text)) == printed


def test_nan_is_a_default() -> None:
    (argument,) = parse_schema("f(float x=nan) -> ()").arguments
    assert math.isnan(argument.default)


@pytest.mark.parametrize(
    ("text", "what", "at"),
    [
        ("f(Tensr x) -> Tensor", "unknown type specifier 'Tensr'", "Tensr"),
        ("f(Tensor x, Tensor x) -> Tensor", "a second argument 'x'", "Tensor x)"),
        ("f(int x=1, int y) -> ()", "without default after one with default", "int y"),
        ("f(Tensor x)", "expected '->'", ""),
        ("f(Tensor x) -> Tensor Tensor y", "unexpected 'y'", "y"),
        ("f(Tensor x; int y) -> ()", "unexpected character ';'", "; int"),
        ("f(int x=1.5) -> ()", "the default of 'x' is no value of int", "1.5"),
        ("f(Tensor x=3) -> ()", "no value of Tensor", "3"),
        ("f(int[] x=3) -> ()", r"no value of int\[\]", "3"),
        ("f(str x=1) -> ()", "no value of str", "1"),
        ("f(bool x=1) -> ()", "no value of bool", "1"),
        ("f(int x=yes) -> ()", "unknown default 'yes'", "yes"),
        ("f(int[2] x=[1, 2, 3]) -> ()", r"no value of int\[2\]", "[1"),
        ("f(float[3]? x=[]) -> ()", r"no value of float\[3\]\?", "[]"),
        ("f(Device d='nope') -> ()", "no value of Device", "'nope'"),
        ("f(Device[] d=['cpu', 'cuda:x']) -> ()", r"no value of Device\[\]", "['cpu"),
        ("f(Layout d='sparse') -> ()", "no value of Layout", "'sparse'"),
        ("f(ScalarType x=float33) -> ()", "unknown default 'float33'", "float33"),
        ("f(int[x] k) -> ()", "expected ']'", "x]"),
        ("f(int lambda) -> ()", "Python keyword", "lambda"),
        ("f(*) -> ()", r"expected an argument after '\*'", ") ->"),
        ("f(int a, *, *, int b) -> ()", r"a second '\*'|unknown type", "*, int b"),
        ("3(int a) -> ()", "expected the operator's name", "3"),
        ("ns::(int a) -> ()", "expected the operator's name", "(int"),
    ],
)  # fmt: skip
def test_mistakes_have_a_caret(text: str, what: str, at: str) -> None:
    with pytest.raises(ValueError, match=what) as caught:
        parse_schema(text)
    _, shown, caret = str(caught.value).split("\n")
    assert shown == text
    assert caret.index("^") == (text.index(at) if at else len(text))


def test_the_caret_stands_in_the_line_of_the_mistake() -> None:
    with pytest.raises(ValueError, match="unknown type") as caught:
        parse_schema("f(Tensor x,\n  Tensr y) -> Tensor")
    assert str(caught.value).split("\n")[1:] == ["  Tensr y) -> Tensor", "  ^"]
