"""`checked`: annotations of functions in Python say what they refuse."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pytest

import tensorplay as tp
from tensorplay import Tensor
from tensorplay.ops.kinds import checked


@checked
def taken(
    count: int,
    rate: float | None = None,
    *,
    rows: Tensor | Iterable[Tensor] = (),
    fn: Callable[[], Any] | None = None,
    other: Any = None,
    mixed: int | bytes = 0,
) -> Any:
    return count, rate, rows, fn, other, mixed


class Made:
    @checked
    def __init__(self, size: int) -> None:
        self.size = size


class Derived(Made):
    pass


def test_what_the_annotations_say_is_taken() -> None:
    x = tp.ones(2)
    for count in (3, np.int64(3), tp.tensor(3), True):
        assert taken(count)[0] is count
    assert taken(1, None, rows=x, fn=list, other="a", mixed=object)[2] is x  # type: ignore[arg-type]
    assert taken(count=1, rate=np.float32(2))[1] == 2
    assert str(inspect.signature(taken)).startswith("(count: 'int', rate: 'float | None' = None")


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: taken("a"), r"\[taken\] argument 'count': expected int, got str\.$"),
        (lambda: taken("3"), r"'count': expected int, got str\. Write int\(x\)\.$"),
        (lambda: taken(count=1.5), r"'count': expected int, got float\. Write int\(x\)\.$"),
        (lambda: taken(1, "2.5"), r"'rate': .*, got str\. Write float\(x\)\.$"),
        (lambda: taken(tp.ones(2)), "'count': expected int, got Tensor"),
        (lambda: taken(1, "a"), "'rate': expected float or None, got str"),
        (lambda: taken(1, rows=3), "'rows': expected Tensor or an iterable, got int"),
        (lambda: taken(1, fn=3), "'fn': expected a function or None, got int"),
        (lambda: Derived("a"), r"\[Derived\] argument 'size': expected int, got str"),  # type: ignore[arg-type]
    ],
)
def test_other_kinds_are_refused(call: Callable[[], Any], words: str) -> None:
    with pytest.raises(TypeError, match=words):
        call()


def test_numbers_of_arguments_are_refused_as_python_does() -> None:
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'count'"):
        taken()  # type: ignore[call-arg]
