"""Completion inside a cell: by the text alone, and through the shell as a front end asks it."""

from __future__ import annotations

import pytest

from tests.tpkernel.shell import Shell
from tpkernel.notebook.completion import complete_cell, tp_names


def at(text: str) -> tuple[str, int]:
    """Return a text without its mark, and where that was."""
    return text.replace("|", "", 1), text.index("|")


def words(text: str) -> list[str] | None:
    found = complete_cell(*at(text))
    return None if found is None else [word for word, _ in found[1]]


def test_names_come_from_the_headers():
    names = tp_names()
    assert {"In", "Out", "InOut", "View"} <= names.keys()
    assert names["In"] == "class"
    assert names["parallel_for"] == names["check_interrupt"] == "function"
    assert not any(name.startswith("_") for name in names)
    assert "Plain" not in names  # tp::detail's


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("%%tpkernel\nvoid f(tp::I|", ["In", "InOut"]),
        ("%%tpkernel --debug\nvoid f(tp::In<T> x, tp::Ou|", ["Out"]),
        ("# a comment\n\n%%tpkernel\nvoid f(tp::Ou|", ["Out"]),
        ("%%tpkernel\nvoid f(mytp::I|", []),
        ("%%tpkernel\nvoid f(x::tp::I|", []),
        ("%%tpkernel\nvoid f(double factor) { return fac|", ["factor"]),
        ("%%tpkernel\nvoid f() { temp|", ["template"]),
        ("%%tpkernel\nvoid f() { |", []),
        ("%%tpkernel\n/*---\nder|\n---*/\n", ["derivatives: "]),
        (
            "%%tpkernel\n/*---\nop: m::f(Tensor x) -> Tensor\no|\n---*/",
            ["ops: ", "out_dtype: ", "output_differentiability: "],
        ),
        ("%%tpkernel\n/*---\n- sha|\n---*/", ["shape: "]),
        ("%%tpkernel\n/*---\nop: m::f(Ten|\n---*/", []),
        ("%%tpkernel\n/*---\nop: m::f()\n---*/\nder|", []),
        ("%%tpkernel --na|\nvoid f(tp::In<T> x)", None),
        ("print(tp::I|", None),
        ("%%tpkernels\ntp::I|", None),
    ],
)
def test_completion_by_place(text: str, expected: list[str] | None):
    assert words(text) == expected


def test_the_shell_completes_as_a_front_end_asks(shell: Shell):
    def asked(text: str) -> list[str]:
        source, position = at(text)
        from IPython.core.completer import provisionalcompleter

        with provisionalcompleter():
            found = list(shell.ip.Completer.completions(source, position))
        return [source[: c.start] + c.text + source[c.end :] for c in found]

    assert "%%tpkernel\nvoid f(tp::InOut" in asked("%%tpkernel\nvoid f(tp::In|")
    assert asked("%%tpkernel\n/*---\nderiv|\n---*/") == ["%%tpkernel\n/*---\nderivatives: \n---*/"]
    assert asked("%%tpkernel\nlamb|; lambert") == ["%%tpkernel\nlambert; lambert"]  # no Python
    assert "lambda" in asked("lamb|")


def test_loading_twice_completes_once_and_unloading_takes_it_away(shell: Shell):
    def count() -> int:
        matchers = shell.ip.Completer.custom_matchers
        return sum(getattr(m, "matcher_identifier", "") == "tpkernel.cpp" for m in matchers)

    shell.ok("%load_ext tensorplay")
    shell.ok("%reload_ext tensorplay")
    assert count() == 1
    shell.ok("%unload_ext tensorplay")
    assert count() == 0
