"""Lines that mean ``%%tpkernel`` and are not written as it is: one sentence says what to write."""

from __future__ import annotations

import pytest

from tests.tpkernel.shell import Shell

BODY = "\nvoid poked(int64_t n) {}\n"


@pytest.mark.parametrize(
    ("head", "said"),
    [
        (
            "%tpkernel --name x",
            ("belong to `%%tpkernel`, with two percent signs: write `%%tpkernel --name x`."),
        ),
        ("%tpkernel", "write `%%tpkernel`."),
        ("%tpkernel -- -O3", "write `%%tpkernel -- -O3`."),
        ("# my kernel\n%tpkernel --name x", "write `%%tpkernel --name x`."),
        ("x = 1\n%tpkernel -n x", "write `%%tpkernel -n x` as the first statement of the cell."),
        ("%tpkernel lists", "takes a command on a line of its own"),
        (
            "% tpkernel --name x",
            ("`% tpkernel --name x` is no magic; did you mean `%%tpkernel --name x`?"),
        ),
        ("%% tpkernel", "`%% tpkernel` is no magic; did you mean `%%tpkernel`?"),
        ("%%%tpkernel", "did you mean `%%tpkernel`?"),
        ("%tpkernal --name x", "did you mean `%%tpkernel --name x`?"),
        ("%%TPKERNEL", "did you mean `%%tpkernel`?"),
        ("tpkernel --name x", "`tpkernel --name x` is no magic; did you mean `%%tpkernel"),
        ("!tpkernel", "did you mean `%%tpkernel`?"),
        ("  %%tpkernel", "`%%tpkernel` must begin its line"),
        ("%%tpkernel--name x", "`%%tpkernel--name` not found; a blank is missing"),
        ("%%tpkernel?", "shows the help. It stands in a cell of its own"),
        ("%time %%tpkernel", "`%%time` stands on a line of its own, above `%%tpkernel`."),
        (
            "%%tpkernel list",
            ("Commands stand on a line of their own and have one percent sign: %tpkernel list"),
        ),
        ("%%tpkernel lists", "Commands stand on a line of their own"),
    ],
)
def test_a_cell_says_what_its_first_line_should_be(shell: Shell, head: str, said: str):
    ran = shell.run(head + BODY)
    assert ran.shown.startswith("UsageError: ")
    assert said in ran.shown
    assert "SyntaxError" not in ran.shown
    assert "poked" not in shell.ip.user_ns


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("%tpkernel --name x", "options belong to %%tpkernel, with two percent signs"),
        ("y = 3\n%tpkernel --name x", "--name is an option of cells"),
        ("%tpkernel lists", "unknown command 'lists'; did you mean 'list'?"),
        ("% tpkernel list", "did you mean `%tpkernel list`?"),
        ("%tpkernels list", "did you mean `%tpkernel list`?"),
    ],
)
def test_a_line_says_what_it_should_be(shell: Shell, line: str, said: str):
    ran = shell.run(line)
    assert ran.shown.startswith("UsageError: ")
    assert said in ran.shown


@pytest.mark.parametrize(
    "text",
    [
        'x = """\n%tpkernel --name x\nvoid f() {}\n"""',
        "tpkernel = {}\ntpkernel",
        "x = 7\ny = (x\n% tpkernel_size)",
        "%tpkernel list\nx = {1: 2};",
        "if True:\n    %tpkernel list",
    ],
)
def test_python_is_left_alone(shell: Shell, text: str):
    shell.ip.user_ns["tpkernel_size"] = 4
    shell.ok(text)


@pytest.mark.parametrize("indent", ["", "  "])
@pytest.mark.parametrize("above", ["", "\n\n", "\n# a note\n\n"])
def test_an_error_stands_at_the_line_that_the_editor_shows(shell: Shell, above: str, indent: str):
    text = f"{above}%%tpkernel\nvoid poked(int64_t n) {{\n\n  wrong = n;\n}}\n"
    ran = shell.run("".join(indent * bool(x.strip()) + x for x in text.splitlines(keepends=True)))
    assert f":{above.count(chr(10)) + 4}:3: error: 'wrong' was not declared" in ran.shown


def test_text_of_other_magics_is_left_alone(shell: Shell, tmp_path):
    file = tmp_path / "notes.md"
    text = f"%tpkernel --name x{BODY}"
    shell.ok(f"%%writefile {file}\n{text}")
    assert file.read_text() == text


def test_a_mistake_in_python_below_a_command_stays_pythons(shell: Shell):
    assert "SyntaxError" in shell.run("%tpkernel list\nprint(9;").shown
