"""The docstrings that operators' functions get from their schemas say what is so."""

from __future__ import annotations

import inspect
import re

import numpy as np
import pytest

import tensorplay as tp
from tensorplay.ops import OPERATORS
from tensorplay.ops.documentation import _ARGUMENTS, _INPUTS
from tensorplay.ops.operator import Operator
from tests.ops.sampling import Maker

PUBLIC = [op for op in OPERATORS.values() if not op.name.startswith("_")]
CALLABLE = [op for op in PUBLIC if op.samples is not None]


def first_call(op: Operator) -> tuple[list[object], dict[str, object]]:
    assert op.samples is not None
    sample = next(iter(op.samples(Maker(op.name))))
    return list(sample.args), dict(sample.kwargs)


def test_each_text_belongs_to_an_argument() -> None:
    names = {a.name for op in PUBLIC for a in op.schema.arguments}
    full = {f"{op.name}.{a.name}" for op in PUBLIC for a in op.schema.arguments}
    assert {key for key in _ARGUMENTS if key not in names | full} == set()
    assert set(_INPUTS) <= set(OPERATORS)


@pytest.mark.parametrize("op", PUBLIC, ids=lambda op: op.name)
def test_parameters_are_those_of_the_signature(op: Operator) -> None:
    text = op.function.__doc__
    section = text.partition("Parameters\n----------\n")[2].partition("\n\n")[0]
    documented = re.findall(r"^(\w+) : ", section, re.MULTILINE)
    assert documented == list(inspect.signature(op.function).parameters)
    for name in documented:
        if name not in {"input", "out"}:
            assert re.search(rf"^{name} : .*\n    \S", section, re.MULTILINE), name


@pytest.mark.parametrize("op", CALLABLE, ids=lambda op: op.name)
def test_what_it_raises_is_raised(op: Operator) -> None:
    args, kwargs = first_call(op)
    given = {a.name: v for a, v in zip(op.schema.arguments, args, strict=False)} | kwargs
    raised = set()

    def refuses(name: str, value: object) -> None:
        with pytest.raises((TypeError, ValueError, RuntimeError, IndexError)) as caught:
            op.function(**{**given, name: value})
        raised.add(caught.type.__name__)

    refuses(op.names[0], object())
    for argument in op.schema.arguments:
        if argument.type.base in {"int", "SymInt"} and argument.name.startswith("dim"):
            if op.name == "permute":
                refuses("dims", [99, *range(1, args[0].ndim)])  # type: ignore[attr-defined]
            elif op.name != "tile":  # whose dims are numbers of copies
                refuses(argument.name, 99)
        if argument.type.base == "str":
            refuses(argument.name, "none of them")
    tensors = [name for name, value in given.items() if isinstance(value, tp.Tensor)]
    if "shapes of the tensors do not fit" in op.function.__doc__ and len(tensors) > 1:
        given |= {name: _filled(given[name], (3, 4)) for name in tensors}
        refuses(tensors[1], _filled(given[tensors[1]], (3, 17, 5)))
    documented = re.findall(
        r"^(\w+Error)$", op.function.__doc__.partition("\nRaises\n")[2], re.MULTILINE
    )
    assert raised <= set(documented)


@pytest.mark.parametrize("op", CALLABLE, ids=lambda op: op.name)
def test_what_is_called_differentiable_gives_results_with_a_history(op: Operator) -> None:
    if "Differentiable in" not in (op.function.__doc__ or ""):
        return
    assert op.samples is not None
    tried = False
    for sample in op.samples(Maker(op.name)):
        leaves = [
            a.detach().requires_grad_()
            if isinstance(a, tp.Tensor) and a.dtype.is_floating_point
            else a
            for a in sample.args
        ]
        if any(isinstance(a, tp.Tensor) and a.requires_grad for a in leaves):
            tried = True
            result = op.function(*leaves, **sample.kwargs)
            results = result if isinstance(result, (tuple, list)) else [result]
            if any(isinstance(r, tp.Tensor) and r.requires_grad for r in results):
                return
    assert not tried


def test_results_that_are_said_to_broadcast_do() -> None:
    said = [op for op in CALLABLE if "that the operands broadcast to" in op.function.__doc__]
    assert {"add", "where", "eq", "lerp"} <= {op.name for op in said}
    for op in said:
        assert op.samples is not None
        for sample in op.samples(Maker(op.name)):
            values = [*sample.args, *sample.kwargs.values()]
            shapes = [a.shape for a in values if isinstance(a, tp.Tensor)]
            result = op.function(*sample.args, **sample.kwargs)
            if op.name == "where" and len(values) == 1:
                continue  # the indices of what is true
            assert isinstance(result, tp.Tensor)
            assert tuple(result.shape) == np.broadcast_shapes(*shapes), (op.name, sample)


@pytest.mark.parametrize("name", ["max_pool", "avg_pool", "adaptive_avg_pool", "conv"])
def test_shapes_of_windows_are_said(name: str) -> None:
    for rank, shape in ((1, "((N,) C, L)"), (2, "((N,) C, H, W)")):
        text = getattr(tp.nn.functional, f"{name}{rank}d").__doc__
        assert f"input : Tensor\n    Shape {shape}.\n" in text
        assert f"Tensor\n    Shape {shape}, in new sizes" in text
        assert "\nRuntimeError\n" in text


def _filled(like: object, shape: tuple[int, ...]) -> tp.Tensor:
    assert isinstance(like, tp.Tensor)
    return tp.tensor(np.ones(shape), dtype=like.dtype)
