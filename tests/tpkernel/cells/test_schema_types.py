"""Every type of the schema grammar, in plain kernels and beside typed views."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

import tensorplay as tp
import tpkernel
from tests.tpkernel.shell import Shell
from tpkernel.errors import CellError

#: Base type, what an argument of it is called with, and the schema text of a default.
VALUES: dict[str, tuple[Any, str]] = {
    "int": (7, "3"),
    "SymInt": (7, "3"),
    "float": (0.5, "2.5"),
    "Scalar": (0.5, "2.5"),
    "bool": (True, "True"),
    "str": ("ab", '"x"'),
    "ScalarType": (tp.float64, "float32"),
    "Device": (tp.device("cpu"), ""),
}
TYPES: dict[str, str] = {
    "int": "int64_t",
    "SymInt": "int64_t",
    "float": "double",
    "Scalar": "double",
    "bool": "bool",
    "str": "tvm::ffi::String",
    "ScalarType": "DLDataType",
    "Device": "DLDevice",
}
FORMS = ("", "?", "[]", "[]?", "?[]", "[2]")


def cpp_type(base: str, form: str) -> str:
    text = TYPES[base]
    for mark in {"[]?": ("[", "?"), "?[]": ("?", "["), "[2]": ("[",)}.get(form, tuple(form[:1])):
        text = f"tvm::ffi::{'Optional' if mark == '?' else 'Array'}<{text}>"
    return text


def value_of(base: str, form: str) -> Any:
    value = VALUES[base][0]
    if form == "?[]":
        return [value, None]
    return [value, value] if "[" in form else value


CASES = [
    (f"{base.lower()}_{number}", base, form)
    for base, (number, form) in itertools.product(VALUES, enumerate(FORMS))
]


def cell(views: bool) -> str:
    """Return a cell with an operator for each case, which counts what has a value."""
    front, functions = ["/*---", "ops:"], ["#include <string>"]
    for name, base, form in CASES:
        default = VALUES[base][1]
        if "[" in form and default:
            default = f"[{default}, {default}]"
        if form.endswith("?"):
            default = "None"
        given = f"={default}" if default and form != "?[]" else ""
        front += [
            f"  - op: 'kinds::{name}(Tensor x, {base}{form} v{given}) -> Tensor'",
            "    shape: x",
        ]
        front += [] if views else ["    dtypes: [float32]"]
        head = "template <typename T>\n" if views else ""
        x, out = ("tp::In<T> x", "tp::Out<T> out") if views else ("tvm::ffi::TensorView x", "")
        out = out or "tvm::ffi::TensorView out"
        count = {
            "": "1",
            "?": "v.has_value() ? 1 : 0",
            "[]?": "v.has_value() ? double((*v).size()) : -1",
        }.get(form, "double(v.size())")
        written = "out.data()" if views else "static_cast<float*>(out.data_ptr())"
        functions.append(
            f"{head}void {name}({x}, {cpp_type(base, form)} v, {out}) {{\n"
            f"  {written}[0] = {count};\n  (void)x;\n}}"
        )
    return "\n".join([*front, "---*/", *functions])


@pytest.fixture(scope="module", params=[True, False], ids=["views", "plain"])
def module(request: pytest.FixtureRequest) -> Any:
    return tpkernel.build(cell(request.param), checks=()).module


@pytest.mark.parametrize(("name", "base", "form"), CASES)
def test_a_value_a_default_and_none_arrive(module: Any, name: str, base: str, form: str) -> None:
    operator, x = getattr(module, name), tp.zeros(1)
    expected = 2.0 if "[" in form else 1.0
    assert operator(x, value_of(base, form)).tolist() == [expected]
    if form.endswith("?"):
        absent = -1.0 if "[" in form else 0.0
        assert operator(x).tolist() == operator(x, None).tolist() == [absent]
    elif form != "?[]" and VALUES[base][1]:
        assert operator(x).tolist() == [expected]
    else:
        with pytest.raises(TypeError, match=r"missing|required"):
            operator(x)
    if not form.endswith("?") and base != "Device":  # of which None is the default device
        with pytest.raises(TypeError, match=rf"\[kinds::{name}\] argument 'v'"):
            operator(x, None)


@pytest.mark.parametrize("base", ["Layout", "Generator"])
def test_what_the_engine_cannot_pass_is_said(base: str) -> None:
    text = (
        f"/*---\nop: kinds::f(Tensor x, {base}? v=None) -> Tensor\n---*/\n"
        "template <typename T> void f(tp::In<T> x, int64_t v, tp::Out<T> out) {}\n"
    )
    with pytest.raises(CellError, match=rf"cannot pass a {base} to C\+\+.*custom_op"):
        tpkernel.build(text, checks=())


CONSTRAINED = """\
#include <concepts>
template <std::floating_point T>
void halved(tp::In<T> x, tp::Out<T> out) {
  for (int64_t i = 0; i < x.numel(); ++i) out[i] = x[i] / 2;
}
template <typename T = double> requires (sizeof(T) >= 4)
void doubled(tp::In<T> x, tp::Out<T> out) {
  for (int64_t i = 0; i < x.numel(); ++i) out[i] = x[i] * 2;
}
"""


def test_template_parameters_may_have_concepts_and_defaults(shell: Shell):
    ran = shell.kernel(CONSTRAINED, "--no-check -- -std=c++20")
    assert ran.error is None, ran.shown
    assert shell.ok("halved(tp.ones(1)).tolist(), doubled(tp.ones(1)).tolist()").result == (
        [0.5],
        [2.0],
    )
    assert shell.ok("halved(tp.ones(1, dtype=tp.float64)).dtype").result == tp.float64
