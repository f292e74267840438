"""Every public function says what it takes, what it returns and what it raises."""

from __future__ import annotations

import ast
import importlib
import inspect
import textwrap
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.docs.test_reference import MODULES

docscrape = pytest.importorskip("numpydoc.docscrape")


def functions() -> dict[str, Callable[..., Any]]:
    """Return the functions that ``__all__`` of the public modules names, each once."""
    found: dict[int, tuple[str, Callable[..., Any]]] = {}
    for name in MODULES:
        module = importlib.import_module(name)
        for member in module.__all__:
            value = getattr(module, member)
            if inspect.isroutine(value):
                found.setdefault(id(value), (f"{name}.{member}", value))
    return dict(found.values())


FUNCTIONS = functions()


@pytest.fixture(params=FUNCTIONS)
def function(request: pytest.FixtureRequest) -> Callable[..., Any]:
    return FUNCTIONS[request.param]


def sections(function: Callable[..., Any]) -> Any:
    return docscrape.NumpyDocString(inspect.getdoc(function) or "")


def raised(function: Callable[..., Any]) -> Iterator[str]:
    """Yield the classes of the errors that a function's own lines raise."""
    try:
        source = inspect.getsource(inspect.unwrap(function))
    except (OSError, TypeError):  # made of an operator's declaration: tests/ops compares those
        return
    for node in ast.walk(ast.parse(textwrap.dedent(source))):
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
            name = ast.unparse(node.exc.func).rpartition(".")[2]
            if name[:1].isupper():
                yield name


def test_functions_are_found() -> None:
    assert {"tensorplay.tensor", "tensorplay.autograd.gradcheck", "tpkernel.build"} <= set(
        FUNCTIONS
    )


def test_there_is_a_summary(function: Callable[..., Any]) -> None:
    assert sections(function)["Summary"]


def test_every_parameter_is_documented(function: Callable[..., Any]) -> None:
    documented = {
        name.strip("* ")
        for section in ("Parameters", "Other Parameters")
        for entry in sections(function)[section]
        for name in entry.name.split(",")
    }
    assert set(inspect.signature(function).parameters) <= documented


def test_a_result_is_documented(function: Callable[..., Any]) -> None:
    result = inspect.signature(function).return_annotation
    doc = sections(function)
    if result not in {"None", "Iterator[None]", None, inspect.Signature.empty}:
        assert doc["Returns"] or doc["Yields"]


def test_each_error_that_it_raises_is_documented(function: Callable[..., Any]) -> None:
    documented = {
        name.strip().rpartition(".")[2]
        for entry in sections(function)["Raises"]
        for name in (entry.type or entry.name).replace(" or ", ",").split(",")
    }
    assert set(raised(function)) <= documented
