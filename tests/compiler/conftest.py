"""What tests of compiled functions share."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest

from tensorplay.graph import Graph, passes
from tensorplay.utils.cpp_jit import MissingToolError
from tensorplay.utils.cpp_jit.toolchain import find_compiler

BACKENDS = ("eager", "interpreter", "cpp")


@pytest.fixture(params=BACKENDS)
def backend(request, missing) -> str:
    if request.param == "cpp":
        try:
            find_compiler()
        except MissingToolError as error:
            missing(str(error))
    return str(request.param)


PASSES = ("fold_constants", "simplify", "eliminate_common_subexpressions")


def linted(change: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(change)
    def wrapper(graph: Graph, *args: Any, **kwargs: Any) -> Any:
        changed = change(graph, *args, **kwargs)
        graph.lint()
        return changed

    return wrapper


@pytest.fixture(autouse=True)
def lint_after_every_pass(monkeypatch) -> None:
    for holder, name in (*((passes, name) for name in PASSES), (Graph, "eliminate_dead_code")):
        monkeypatch.setattr(holder, name, linted(getattr(holder, name)))
