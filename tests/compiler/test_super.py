"""What `super` finds is guarded wherever it is called, or the function runs eagerly."""

from __future__ import annotations

import builtins

import pytest

import tensorplay as tp

parent = super


class Mixin:
    pass


class Base:
    def m(self, x):
        return x * 2

    @property
    def scale(self):
        return 2.0

    @classmethod
    def made(cls, x):
        return x * 2


class Derived(Mixin, Base):
    def m(self, x):
        return x * 100

    made = scale = m

    def direct(self, x):
        return super().m(x)

    def named(self, x):
        return super(Derived, self).m(x)  # noqa: UP008

    def in_a_list(self, x):
        return sum([super(Derived, self).m(v) for v in x.unbind()])

    def in_a_lambda(self, x):
        return (lambda v: super(Derived, self).m(v))(x)  # noqa: PLC3002

    def in_a_function(self, x):
        def inner(v):
            return super(__class__, self).m(v)

        return inner(x)

    def without_a_call(self, x):
        return x * super().scale

    @classmethod
    def of_a_class(cls, x):
        return super().made(x)

    def kept_in_a_cell(self, x):
        y = super().m(x)
        return (lambda: y + 0 * self.factor)()  # noqa: PLC3002

    factor = 1.0


class Escaping(Mixin, Base):
    def m(self, x):
        return x * 100

    def by_getattr(self, x):
        return getattr(super(), "m")(x)  # noqa: B009

    def in_a_variable(self, x):
        above = super()
        return above.m(x)

    def handed_on(self, x):
        return call(super(), x)

    def by_another_name(self, x):
        return parent(Escaping, self).m(x)

    def of_the_builtins(self, x):
        return builtins.super(Escaping, self).m(x)

    def of_a_type(self, x):
        return super(type(self), self).m(x)

    def of_an_item(self, x):
        return [super(Escaping, one).m(x) for one in (self,)][0]  # noqa: RUF015

    def of_a_new_self(self, x):
        self = Escaping()  # noqa: F841, PLW0642
        return super().m(x)


def call(above, x):
    return above.m(x)


def outside(one, x):
    return super(Derived, one).m(x)


GUARDED = ("direct", "named", "in_a_list", "in_a_lambda", "in_a_function", "without_a_call",
           "of_a_class", "kept_in_a_cell", "outside")  # fmt: skip
REFUSED = tuple(n for n, f in vars(Escaping).items() if n != "m" and not n.startswith("_"))


def replace(where: type, monkeypatch, by: float) -> None:
    monkeypatch.setattr(where, "m", lambda _, x: x * by, raising=False)
    monkeypatch.setattr(where, "scale", property(lambda _: by), raising=False)
    monkeypatch.setattr(where, "made", classmethod(lambda _, x: x * by), raising=False)


@pytest.mark.parametrize("name", [*GUARDED, *REFUSED])
def test_what_super_finds_may_be_replaced(name: str, monkeypatch) -> None:
    one = Escaping() if name in REFUSED else Derived()
    function = (lambda x: outside(one, x)) if name == "outside" else getattr(one, name)
    f = tp.compile(function, backend="interpreter", fullgraph=name in GUARDED)
    x = tp.ones(1)
    assert f(x).item() == f(x).item() == 2
    replace(Base, monkeypatch, 3.0)
    assert f(x).item() == 3
    replace(Mixin, monkeypatch, 5.0)  # comes before
    assert f(x).item() == 5
    if name in REFUSED:
        (reason,) = f.report().breaks
        assert "uses super()" in reason
        assert "test_super.py:" in reason


def test_a_function_of_the_user_may_be_called_super() -> None:
    scope = {"super": lambda x: x * 2}
    exec("def function(x):\n    return super(x)", scope)
    f = tp.compile(scope["function"], backend="interpreter", fullgraph=True)
    assert f(tp.ones(1)).item() == 2
