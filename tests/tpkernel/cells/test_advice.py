"""Errors of a cell's operators say what to write, in the names of the cell."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import tensorplay as tp
import tpkernel

CUBE = """\
/*---
op: advice::cube(Tensor x) -> Tensor
---*/
template <class T> void cube(tp::In<T> x, tp::Out<T> out) {
  for (int64_t i = 0; i < x.numel(); ++i) out[i] = x[i] * x[i] * x[i];
}
template <class T> void cube_backward(tp::In<T> grad, tp::In<T> x, tp::Out<T> grad_x) {
  for (int64_t i = 0; i < x.numel(); ++i) grad_x[i] = grad[i] * 3 * x[i] * x[i];
}
"""

AFFINE = """\
/*---
ops:
  - op: advice::silu(Tensor x) -> Tensor
  - op: advice::scale(Tensor x, float s) -> Tensor
  - op: advice::addto(Tensor x, Tensor y) -> Tensor
---*/
template <class T> void silu(tp::In<T> x, tp::Out<T> out) {
  for (int64_t i = 0; i < x.numel(); ++i) out[i] = x[i];
}
template <class T> void scale(tp::In<T> x, double s, tp::Out<T> out) {
  for (int64_t i = 0; i < x.numel(); ++i) out[i] = x[i] * T(s);
}
template <class T> void addto(tp::In<T> x, tp::In<T> y, tp::Out<T> out) {
  for (int64_t i = 0; i < x.numel(); ++i) out[i] = x[i] + y[i];
}
"""


def second_derivative(cell: str) -> list[float]:
    report = tpkernel.build(cell, checks=False)
    x = tp.tensor([1.0, 2.0], dtype=tp.float64, requires_grad=True)
    (grad,) = tp.autograd.grad(report.module.cube(x).sum(), (x,), create_graph=True)
    return list(tp.autograd.grad(grad.sum(), (x,))[0].tolist())


def test_a_second_derivative_through_a_backward_function_says_what_to_declare() -> None:
    with pytest.raises(NotImplementedError) as raised:
        second_derivative(CUBE)
    text = str(raised.value)
    assert "register_autograd" not in text
    assert "Write formulas under derivatives: in place of the function" in text
    assert "op: advice::cube_gradient(Tensor g, Tensor x) -> Tensor" in text
    assert "derivatives: {g: …, x: …}" in text
    assert "derivatives: {x: 'cube_gradient(grad, x)'}" in text


def test_what_it_says_to_declare_is_right() -> None:
    body = CUBE.partition("---*/\n")[2].replace("cube_backward", "cube_gradient")
    front = """\
/*---
ops:
  - op: advice::cube(Tensor x) -> Tensor
    derivatives: {x: 'cube_gradient(grad, x)'}
  - op: advice::cube_gradient(Tensor g, Tensor x) -> Tensor
    derivatives: {g: 'grad * 3 * x * x', x: 'grad * g * 6 * x'}
---*/
"""
    named = body.replace("tp::In<T> grad,", "tp::In<T> g,").replace("grad[i]", "g[i]")
    assert second_derivative(front + named) == [6.0, 12.0]


def test_a_function_that_a_formula_calls_is_to_be_declared() -> None:
    cell = CUBE.replace("-> Tensor\n", "-> Tensor\nderivatives: {x: 'steep(grad, x)'}\n")
    with pytest.raises(NotImplementedError) as raised:
        second_derivative(cell.replace("cube_backward(tp::In<T> grad", "steep(tp::In<T> by"
                                       ).replace("grad[i]", "by[i]"))  # fmt: skip
    assert "Declare it under ops: in its cell:\n    op: advice::steep(Tensor by, Tensor x)" in str(
        raised.value
    )


@pytest.fixture(scope="module")
def operators() -> SimpleNamespace:
    return tpkernel.build(AFFINE, checks=False).module  # type: ignore[no-any-return]


def field() -> Any:
    record = {"names": ["a", "b"], "formats": ["f4", "i1"], "offsets": [0, 4], "itemsize": 5}
    return np.zeros(3, np.dtype(record))["a"]  # type: ignore[call-overload]


@pytest.mark.parametrize(
    ("array", "advice"),
    [
        (np.ones(3, ">f4"), "write y.astype('float32')."),
        (field(), "Write y.copy()."),
        (np.ones(3, np.longdouble), "Write y.astype('float64')."),
        (np.array(["1", "2"]), "Write y.astype('float64') if it holds numbers."),
        (np.ma.masked_array([1.0, 2.0], [0, 1]), "Write y.filled(value)."),
        (1.0, "Write tensorplay.tensor(y)."),
    ],
    ids=["byte order", "field", "longdouble", "texts", "mask", "number"],
)
@pytest.mark.parametrize("first", [np.ones(3), tp.ones(3)], ids=["array", "tensor"])
def test_what_is_refused_for_a_tensor(
    operators: SimpleNamespace, first: Any, array: Any, advice: str
) -> None:
    for arguments, named in (((first, array), {}), ((first,), {"y": array})):
        with pytest.raises((TypeError, ValueError)) as raised:
            operators.addto(*arguments, **named)
        assert str(raised.value).startswith("[advice::addto] argument 'y': expected")
        assert str(raised.value).endswith(advice)


@pytest.mark.parametrize("value", [np.array(3.0), np.array([3.0]), tp.tensor(3.0)])
def test_an_array_for_a_number_is_told_how_to_give_it(
    operators: SimpleNamespace, value: Any
) -> None:
    for x in (np.ones(2), tp.ones(2)):
        with pytest.raises(TypeError) as raised:
            operators.scale(x, value)
        kind = type(value).__name__
        expected = f"[advice::scale] argument 's': expected float, got {kind}. Write s.item()."
        assert str(raised.value) == expected


def test_several_numbers_are_not(operators: SimpleNamespace) -> None:
    with pytest.raises(TypeError, match=r"expected float, got ndarray\.$"):
        operators.scale(tp.ones(2), np.ones(2))


def test_an_operator_of_the_library_names_itself_and_its_argument() -> None:
    with pytest.raises(TypeError, match=r"^\[matmul\] argument 'other': expected an element type"):
        tp.matmul(tp.ones(2), np.ones(2, ">f4"))


@pytest.mark.parametrize("name", ["nan", "inf"])
@pytest.mark.parametrize("front", ["", "/*---\nop: advice::NAME(Tensor x) -> Tensor\n---*/\n"])
def test_a_name_that_is_a_number_in_schemas_is_reserved(name: str, front: str) -> None:
    body = "template <class T> void NAME(tp::In<T> x, tp::Out<T> out) { out[0] = x[0]; }\n"
    with pytest.raises(tpkernel.CellError, match=rf"'{name}' is reserved.*choose another name"):
        tpkernel.build((front + body).replace("NAME", name), checks=False)
