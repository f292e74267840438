# ruff: noqa: UP006, UP007, UP035, UP045 - the old spellings of types are the subject
from __future__ import annotations

import collections.abc
import functools
import pathlib
import typing
from typing import Any, List, Optional, Sequence, Tuple, Union

import numpy as np
import pytest

import tensorplay as tp
from tensorplay import Tensor
from tensorplay.library import infer_schema
from tensorplay.library.infer_schema import Number
from tensorplay.ops.schema import parse_schema


def schema_of_annotation(annotation: Any, *default: Any) -> str:
    def op(x: Any) -> Any:
        return x

    op.__annotations__ = {"x": annotation, "return": Tensor}
    op.__defaults__ = default or None
    return infer_schema(op, mutates_args=())


SPELLINGS = {
    "Tensor? x": [Optional[Tensor], Tensor | None, Union[None, Tensor], "Tensor | None",
                  Optional["Tensor"]],
    "Tensor[] x": [list[Tensor], List[Tensor], Sequence[Tensor], collections.abc.Sequence[Tensor],
                   "list[Tensor]", List["Tensor"], tuple[Tensor, ...]],
    "Tensor?[] x": [list[Tensor | None], List[Optional[Tensor]]],
    "Tensor[]? x": [Optional[list[Tensor]], List[Tensor] | None],
    "SymInt[2] x": [tuple[int, int], Tuple[int, int], "tuple[int, int]"],
}  # fmt: skip


@pytest.mark.parametrize("expected", SPELLINGS)
def test_b029_spellings_of_one_type_give_one_schema(expected: str) -> None:
    found = {schema_of_annotation(a) for a in SPELLINGS[expected]}
    assert found == {f"({expected}) -> Tensor"}


def test_b029_there_are_enough_spellings() -> None:
    assert len(SPELLINGS) == 5
    assert sum(map(len, SPELLINGS.values())) >= 12


@pytest.mark.parametrize(
    ("annotation", "expected"),
    [
        (int, "SymInt"), (float, "float"), (bool, "bool"), (str, "str"),
        (int | None, "SymInt?"), (str | None, "str?"), (list[int], "SymInt[]"),
        (list[float] | None, "float[]?"), (list[bool], "bool[]"),
        (Number, "Scalar"), (int | float, "Scalar"), (Number | None, "Scalar?"),
        (list[Number], "Scalar[]"), (tp.dtype, "ScalarType"), (tp.device | None, "Device?"),
        (typing.Annotated[int, "size"], "SymInt"), (tuple[float, ...], "float[]"),
    ],
)  # fmt: skip
def test_types(annotation: Any, expected: str) -> None:
    text = schema_of_annotation(annotation)
    assert text == f"({expected} x) -> Tensor"
    assert str(parse_schema(f"f{text}")) == f"f{text}"


def test_a_subclass_of_tensor_is_a_tensor() -> None:
    class Special(Tensor):
        pass

    assert schema_of_annotation(Special) == "(Tensor x) -> Tensor"


@pytest.mark.parametrize(
    ("annotation", "advice"),
    [
        (tuple[int, float], r"Write list\[\.\.\.\] instead of a tuple"),
        (tuple, "instead of a tuple"),
        (list, "Write a list with the type of its elements"),
        (List, "Write a list with the type of its elements"),
        (dict[str, Tensor], "Write a list"),
        (set[int], "Write a list"),
        (np.ndarray, "Write Tensor"),
        (np.float32, "Write Tensor, or Number"),
        (pathlib.Path, "Write str"),
        (int | str, "Write one type"),
        (list[str], "lists of Tensor"),
        (list[list[int]], "lists of Tensor"),
        (list[int | None], "lists of Tensor"),
        (None, ""),
        (object, ""),
        ([int], ""),
    ],
)
def test_b029_unsupported_types_name_argument_and_advice(annotation: Any, advice: str) -> None:
    with pytest.raises(ValueError, match=rf"op.*argument 'x': expected Tensor, int.*got.*{advice}"):
        schema_of_annotation(annotation)


@pytest.mark.parametrize("text", ["Tensr", "tp.Tensr", "list[", "Tensor | 3"])
def test_b029_a_name_that_cannot_be_resolved_is_reported_as_that(text: str) -> None:
    with pytest.raises(ValueError, match=r"argument 'x': annotation .* cannot be resolved"):
        schema_of_annotation(text)


def test_b029_local_imports_with_postponed_annotations() -> None:
    def register() -> Any:
        from tensorplay import Tensor as LocalTensor

        def mix(
            xs: list[LocalTensor], k: tuple[int, int], w: LocalTensor | None = None
        ) -> LocalTensor:
            return xs[0] * k[0]

        return infer_schema(mix, mutates_args=())

    assert register() == "(Tensor[] xs, SymInt[2] k, Tensor? w=None) -> Tensor"


def test_names_of_the_functions_around_the_definer() -> None:
    def outer() -> Any:
        Alias = Tensor

        def inner() -> Any:
            def op(x: Alias) -> Alias:
                return op(x)  # its own cell is empty while it is being defined

            return infer_schema(op, mutates_args=())

        return inner()

    assert outer() == "(Tensor x) -> Tensor"


def test_decorated_functions() -> None:
    def noisy(function: Any) -> Any:
        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            return function(*args, **kwargs)

        return wrapper

    @noisy
    def op(x: Tensor, k: int = 2) -> Tensor:
        return x

    assert infer_schema(op, mutates_args=()) == "(Tensor x, SymInt k=2) -> Tensor"


def test_defaults_and_keyword_only_arguments() -> None:
    def op(
        x: Tensor, a: int = 1, b: float = 2, c: bool = True, d: str = 'q"', e: list[int] = [1],  # noqa: B006
        *, f: float = float("inf"), g: tp.dtype = tp.bool, h: tp.device = tp.device("cpu"),  # noqa: B008
        i: tuple[float, float] = (1, 2), j: Tensor = None, k: Number = 1.5,
    ) -> None:  # fmt: skip
        pass

    text = infer_schema(op, mutates_args=())
    assert text == (
        '(Tensor x, SymInt a=1, float b=2.0, bool c=True, str d="q\\"", SymInt[] e=[1], *, '
        'float f=inf, ScalarType g=bool, Device h="cpu", float[2] i=[1.0, 2.0], Tensor? j=None, '
        "Scalar k=1.5) -> ()"
    )
    assert parse_schema(f"f{text}").signature() == text


@pytest.mark.parametrize(
    ("annotation", "default"),
    [(int, 1.5), (int, "1"), (str, 1), (bool, 1), (list[int], (1, 2.5)), (Tensor, 1.0),
     (tp.dtype, "float32"), (int, object())],
)  # fmt: skip
def test_defaults_of_another_type(annotation: Any, default: Any) -> None:
    with pytest.raises(ValueError, match="argument 'x': expected a default of type"):
        schema_of_annotation(annotation, default)


def test_without_annotations() -> None:
    def op(x, y=None, k=2, f=0.5, t="a", dims=(0, 1), d=tp.float32):
        return x

    assert infer_schema(op, mutates_args=()) == (
        '(Tensor x, Tensor? y=None, SymInt k=2, float f=0.5, str t="a", SymInt[] dims=[0, 1], '
        "ScalarType d=float32) -> Tensor"
    )  # fmt: skip
    assert infer_schema(op, mutates_args="x", op_name="ns::op").endswith("-> ()")


@pytest.mark.parametrize(
    ("annotation", "expected"),
    [
        (None, "()"), (Tensor, "Tensor"), (list[Tensor], "Tensor[]"), (int, "SymInt"),
        (tuple[Tensor, int], "(Tensor, SymInt)"), (tuple[Tensor, ...], "Tensor[]"),
        ("tuple[list[Tensor], float]", "(Tensor[], float)"), (Number, "Scalar"),
        (tuple["Tensor", bool], "(Tensor, bool)"),
    ],
)  # fmt: skip
def test_results(annotation: Any, expected: str) -> None:
    def op(x: Tensor) -> Any:
        return x

    op.__annotations__["return"] = annotation
    assert infer_schema(op, mutates_args=()) == f"(Tensor x) -> {expected}"


@pytest.mark.parametrize(
    "annotation",
    [Tensor | None, str, dict, list[int], tuple[Tensor, None], tuple[tuple[Tensor, Tensor], int],
     tuple[int, str], object],
)  # fmt: skip
def test_unsupported_results(annotation: Any) -> None:
    def op(x: Tensor) -> Any:
        return x

    op.__annotations__["return"] = annotation
    with pytest.raises(ValueError, match="return: expected Tensor"):
        infer_schema(op, mutates_args=())


def test_shapes_of_signatures() -> None:
    def star(*xs: Tensor) -> Tensor: ...
    def double_star(**xs: Tensor) -> Tensor: ...
    def slash(x: Tensor, /) -> Tensor: ...

    for function, text in ((star, "varargs"), (double_star, "varargs"), (slash, "positional-only")):
        with pytest.raises(ValueError, match=text):
            infer_schema(function, mutates_args=())


def test_mutated_arguments() -> None:
    def op(x: Tensor, ys: list[Tensor], z: Tensor | None, k: int) -> None: ...

    assert infer_schema(op, mutates_args=("ys",)) == (
        "(Tensor x, Tensor(a1!)[] ys, Tensor? z, SymInt k) -> ()"
    )
    assert infer_schema(op, mutates_args="z") == (
        "(Tensor x, Tensor[] ys, Tensor(a2!)? z, SymInt k) -> ()"
    )
    assert infer_schema(op, mutates_args="unknown") == (
        "(Tensor(a0!) x, Tensor(a1!)[] ys, Tensor(a2!)? z, SymInt k) -> ()"
    )
    with pytest.raises(ValueError, match="were not found in the custom op's signature"):
        infer_schema(op, mutates_args=("x", "w"))
    with pytest.raises(ValueError, match="argument 'k' is in mutates_args: expected a Tensor"):
        infer_schema(op, mutates_args=("k",))
    for wrong in ("xs", "x,z"):
        with pytest.raises(TypeError, match="expected the name of an argument"):
            infer_schema(op, mutates_args=wrong)
    with pytest.raises(TypeError, match="expected names of arguments"):
        infer_schema(op, mutates_args=(1,))
