"""``%%tpkernel`` with other magics in its cell: around it they work, below it is explained."""

from __future__ import annotations

import pytest

from tests.tpkernel.shell import Shell
from tpkernel.cells.line import hoist_magic

GOOD = "int64_t one() { return 1; }"
WRONG = "int64_t one() {\n  return oops;\n}"


@pytest.mark.parametrize(
    "above", ["%%time\n", "%%time\n\n", "%%time\n# why\n", "%%capture shown\n%%time\n\n"]
)
def test_a_magic_around_the_cell_works_and_lines_are_those_that_are_seen(
    shell: Shell, above: str
) -> None:
    ran = shell.ok(f"{above}%%tpkernel\n{GOOD}")
    assert shell["one"]() == 1
    if "capture" in above:
        assert ran.outputs == []
        assert "Wall time" in shell["shown"].stdout
    else:
        assert "Wall time" in ran.stdout
    shell.run(f"{above}%%tpkernel\n{WRONG}")
    with pytest.raises(RuntimeError) as caught:
        shell["one"]()
    line = above.count("\n") + 3
    assert f":{line}:10: error: 'oops'" in str(caught.value)


def test_the_options_of_the_line_stay(shell: Shell) -> None:
    shell.ok(f"%%time\n%%tpkernel --name tools -- -O1\n{GOOD}")
    assert shell["tools"].one() == 1


@pytest.mark.parametrize(
    "text", ["%%time\n" + GOOD, "\n%%capture shown\n" + GOOD, GOOD + "\n%%time"]
)
def test_a_magic_below_the_line_is_explained(shell: Shell, text: str) -> None:
    ran = shell.run(f"%%tpkernel\n{text}")
    at = ran.error.line
    assert f"%%tpkernel\n{text}".split("\n")[at - 1].startswith("%%")
    assert "is IPython's and no C++" in str(ran.error)
    assert "on the line above %%tpkernel" in str(ran.error)


def test_a_second_cell_in_the_cell_is_explained(shell: Shell) -> None:
    ran = shell.run(f"%%tpkernel\n{GOOD}\n%%tpkernel\nint64_t two() {{ return 2; }}")
    assert ran.error.line == 3
    assert "on the line of a cell of its own" in str(ran.error)


def test_percent_signs_in_comments_and_texts_are_none(shell: Shell) -> None:
    shell.ok('%%tpkernel\n/*\n%%time\n*/\nconst char* text = R"(\n%%time\n)";\n' + GOOD)
    assert shell["one"]() == 1


@pytest.mark.parametrize("head", ["%%writefile a.cpp", "%%bash", "%%html", "%%javascript"])
def test_a_magic_that_takes_its_text_as_it_is_gets_it_unchanged(head: str) -> None:
    lines = [f"{head}\n", "%%tpkernel\n", GOOD]
    assert hoist_magic(lines) == lines
