"""Specs survive being written as JSON; anything else is refused in words."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from tensorplay.library.modules import artifact
from tensorplay.library.modules.artifact import Description, Made
from tensorplay.library.modules.codec import decode, encode
from tensorplay.library.modules.shapes import ShapeRules
from tensorplay.library.modules.spec import (
    Allocated,
    Argument,
    BackwardCall,
    CellSpec,
    Declaration,
    Derivative,
    Formula,
    KernelSpec,
    OperatorSpec,
    Output,
)
from tpkernel.cells.cell import parse_cell
from tpkernel.cells.reading import read_cell

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "cells.md").read_text("utf-8")
CELLS = [
    text.partition("\n")[2]
    for text in re.findall(r"^```\n(%%tpkernel.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    if "tensor x" not in text  # shown with its error
]
INFINITE = """/*---
op: omod::f(Tensor x, float low=-inf, bool b=True, *, int n=3) -> Tensor
shape: {x: [m, 3], out: [n * 2, 'x.shape[1]']}
samples: [{x: [[1, 2, 3]], low: .inf}]
---*/
template <typename T> void f(tp::In<T, 2> x, double low, bool b, int8_t n, tp::Out<T, 2> out) {}
"""


def specs() -> list[CellSpec]:
    return [read_cell(parse_cell(text)) for text in (*CELLS, INFINITE)]


def test_every_cell_of_the_documentation_survives() -> None:
    assert len(CELLS) > 15
    for spec in specs():
        text = json.dumps(encode(spec), allow_nan=False)
        assert decode(CellSpec, json.loads(text)) == spec


def description() -> Any:
    operators = tuple(o for spec in specs()[-2:] for o in spec.operators)
    waiting = Declaration("omod::g", "omod::g(Tensor x) -> Tensor", "", {"fake": "m:f"}, "", 1)
    made = Made("linux-x86_64", "1", "2", ("-O2",), {"a.cc": "0"})
    return encode(Description("m", operators, (waiting,), made))


ENCODED = description()


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inner = value.items() if isinstance(value, dict) else enumerate(value)
    found = [path] if path else []
    for key, item in inner if isinstance(value, (dict, list)) else ():
        found += places(item, (*path, key)) if isinstance(item, (dict, list)) else [(*path, key)]
    return found


PLAIN = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
VALUES = st.recursive(PLAIN, lambda s: st.lists(s) | st.dictionaries(st.text(max_size=3), s))


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_other_values_are_refused_or_fit(data: st.DataObject) -> None:
    changed = copy.deepcopy(ENCODED)
    *path, last = data.draw(st.sampled_from(places(changed)))
    holder = changed
    for key in path:
        holder = holder[key]
    if data.draw(st.booleans()):
        del holder[last]
    else:
        holder[last] = data.draw(VALUES)
    with contextlib.suppress(ValueError):
        assert isinstance(decode(Description, changed), Description)


@pytest.mark.parametrize(
    ("kind", "value", "text"),
    [
        (Any, {"$number": None}, "expected one of nan, inf, -inf, got 'None'"),
        (Any, {"$number": [1]}, "expected one of nan"),
        (Any, {"$number": "1e5"}, "expected one of nan"),
        (Any, {"$dtype": None}, "expected the name of a dtype, got 'None'"),
        (Any, [{"a": {"$dtype": 3}}], r"d\[0\]\.a: expected the name of a dtype"),
        (float, True, "expected a number"),
        (float, None, "expected a number"),
    ],
)
def test_damaged_values_are_named_with_their_place(kind: Any, value: Any, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        decode(kind, value, "d")


@pytest.mark.parametrize("number", ["nan", "inf", "-inf"])
def test_numbers_that_json_has_no_form_for(number: str) -> None:
    assert repr(decode(Any, {"$number": number})) == number


def test_values_without_a_form_in_json_are_refused() -> None:
    for value in (object(), {1: 2}, b"x"):
        with pytest.raises(TypeError, match="expected"):
            encode(value)


def test_the_records_are_those_of_the_format() -> None:
    """A library that is built today must be read by later versions: a change is a new format."""
    records = (
        *(
            Allocated,
            Argument,
            BackwardCall,
            Declaration,
            Derivative,
            Description,
            Formula,
            KernelSpec,
            Made,
        ),
        *(OperatorSpec, Output, ShapeRules),
    )
    fields = {r.__name__: " ".join(f.name for f in dataclasses.fields(r)) for r in records}
    assert artifact.FORMAT == 2
    assert fields == {
        "Allocated": "name cpp_type position dtype variable rank",
        "Argument": "name kind cpp_type role dtypes variable rank contiguous writes low high "
        "because untyped form",
        "BackwardCall": "operator arguments outputs",
        "Declaration": "name schema doc callables problem line",
        "Derivative": "input formula line surrogate none",
        "Description": "name operators declarations made",
        "Formula": "text source reads kernels",
        "KernelSpec": "name title style arguments returns templates instances shapes line defaults "
        "doc alias_ok suffix device launch results",
        "Made": "platform tensorplay engine flags sources",
        "OperatorSpec": "name schema kernel outputs returned mutates derivatives backward samples "
        "doc helper copies line origin callables reference",
        "Output": "name dtype dtype_like allocated differentiable form",
        "ShapeRules": "inputs outputs declared",
    }
