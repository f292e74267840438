"""What is replaced between two calls, methods, defaults, names and files, is seen by the second."""

from __future__ import annotations

import functools
import os
import types
import weakref

import pytest

import tensorplay as tp
from tests.compiler.calls import compiled, one

settings = types.SimpleNamespace()


class Base:
    factor = 2.0

    def __init__(self):
        self.held = 2.0

    def method(self, x, by=2.0):
        return x * by

    @staticmethod
    def fixed(x):
        return x * 2.0

    @classmethod
    def of_class(cls, x):
        return x * cls.factor

    @property
    def computed(self):
        return self.held


class Other(Base):
    def method(self, x):
        return x * 7


def set_up():
    def helper(x, by=2.0, table=(2.0, [2.0]), *, named=2.0):
        return x * by * table[1][0] * named

    base = Base()
    return types.SimpleNamespace(
        base=base, kind=type("Kind", (Base,), {}), helper=helper, table={}, bare=Base(),
        weak=weakref.ref(base),
    )  # fmt: skip


CHANGES = {
    "method of the class": (
        lambda s, x: s.base.method(x),
        lambda s: setattr(type(s.base), "method", lambda self, x: x * 5),
    ),
    "method of the object": (
        lambda s, x: s.base.method(x),
        lambda s: setattr(s.base, "method", lambda x: x * 5),
    ),
    "the class": (
        lambda s, x: s.base.method(x),
        lambda s: setattr(s.base, "__class__", Other),
    ),
    "static method": (
        lambda s, x: s.kind.fixed(x),
        lambda s: setattr(s.kind, "fixed", staticmethod(lambda x: x * 5)),
    ),
    "class method": (
        lambda s, x: s.base.of_class(x),
        lambda s: setattr(type(s.base), "of_class", classmethod(lambda cls, x: x * 5)),
    ),
    "property": (
        lambda s, x: x * s.base.computed,
        lambda s: setattr(type(s.base), "computed", property(lambda self: 5.0)),
    ),
    "attribute hides that of the class": (
        lambda s, x: x * s.base.factor,
        lambda s: setattr(s.base, "factor", 5.0),
    ),
    "default": (
        lambda s, x: s.helper(x),
        lambda s: setattr(s.helper, "__defaults__", (5.0, (2.0, [2.0]))),
    ),
    "named default": (
        lambda s, x: s.helper(x),
        lambda s: setattr(s.helper, "__kwdefaults__", {"named": 5.0}),
    ),
    "content of the named defaults": (
        lambda s, x: s.helper(x),
        lambda s: s.helper.__kwdefaults__.update(named=5.0),
    ),
    "what a weak reference leads to": (
        lambda s, x: x * s.weak().factor,
        lambda s: setattr(s.base, "factor", 5.0),
    ),
    "content of a default": (
        lambda s, x: s.helper(x),
        lambda s: s.helper.__defaults__[1][1].__setitem__(0, 5.0),
    ),
    "code": (
        lambda s, x: s.helper(x),
        lambda s: setattr(s.helper, "__code__", (lambda x: x * 5).__code__),
    ),
    "hasattr": (
        lambda s, x: x * (5 if hasattr(s.bare, "late") else 2),
        lambda s: setattr(s.bare, "late", 1),
    ),
    "getattr with a default": (
        lambda s, x: x * getattr(s.bare, "late", 2),
        lambda s: setattr(s.bare, "late", 5),
    ),
    "get of a dictionary": (
        lambda s, x: x * s.table.get("late", 2),
        lambda s: s.table.update(late=5),
    ),
}


@pytest.mark.parametrize("name", CHANGES)
def test_what_is_replaced_later_is_seen(name: str, monkeypatch) -> None:
    ask, change = CHANGES[name]
    found = []
    for wrap in (lambda f: f, functools.partial(tp.compile, backend="interpreter")):
        s = set_up()
        s.base.__class__ = type("Fresh", (Base,), dict(vars(Base)))
        f = wrap(lambda x, s=s: ask(s, x))
        before = f(one()).item()
        change(s)
        found.append((before, f(one()).item()))
    assert found[0] == found[1]
    assert found[0][0] != found[0][1]


def test_what_super_finds_is_guarded() -> None:
    class First:
        def method(self, x):
            return x * 2

    class Second(First):
        pass

    class Third(Second):
        def method(self, x):
            return super().method(x) + 1

    third = Third()
    f = compiled(lambda x: third.method(x) + 0)
    assert f(one()).item() == 3
    First.method = lambda self, x: x * 5
    assert f(one()).item() == 6
    Second.method = lambda self, x: x * 7
    assert f(one()).item() == 8
    del Second.method
    assert f(one()).item() == 6


def test_a_cache_that_was_emptied_is_asked_again() -> None:
    state = {"factor": 2.0}

    @functools.lru_cache
    def factor(n):
        return n * state["factor"]

    f = compiled(lambda x: x * factor(3))
    factor(3)  # what it remembers is not computed in the capture
    assert f(one()).item() == 6
    state["factor"] = 5.0
    assert f(one()).item() == 6
    factor.cache_clear()
    assert f(one()).item() == 15
    assert f(one()).item() == 15
    factor(4)
    assert f(one()).item() == 15
    assert f.report().programs == 2


def names_that_come_later(x):
    try:
        by = LATE
    except NameError:
        by = 2.0
    try:
        return x * by * settings.late
    except AttributeError:
        return x * by


def test_names_that_come_later_are_seen(monkeypatch) -> None:
    f = compiled(names_that_come_later)
    assert f(one()).item() == 2
    monkeypatch.setitem(globals(), "LATE", 3.0)
    assert f(one()).item() == 3
    settings.late = 5.0
    assert f(one()).item() == 15
    del settings.late
    assert f(one()).item() == 3


def test_the_environment_and_files_are_seen(monkeypatch, tmp_path) -> None:
    place = tmp_path / "here"

    def function(x):
        return x * float(os.getenv("TP_TEST_FACTOR", "2")) + place.exists()

    f = tp.compile(function, backend="interpreter")
    assert f(one()).item() == 2
    monkeypatch.setenv("TP_TEST_FACTOR", "5")
    place.touch()
    assert f(one()).item() == 6
