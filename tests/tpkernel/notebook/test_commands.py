"""``%tpkernel``: what the session holds, the cache, the tools; and the completion of all of it."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from IPython.core.completer import provisionalcompleter

import tpkernel
from tensorplay.utils.cpp_jit import ToolchainCheck
from tests.tpkernel.shell import ADD1, SOFTPLUS, Shell
from tpkernel.lab import EXTENSION
from tpkernel.notebook import doctor
from tpkernel.notebook.commands import COMMANDS


def completed(shell: Shell, text: str) -> set[str]:
    at = len(text.split("\n", maxsplit=1)[0])
    with provisionalcompleter():
        return {text[: c.start] + c.text for c in shell.ip.Completer.completions(text, at)}


def test_list_show_and_export(shell: Shell, tmp_path: Path):
    assert "0 names" in str(shell.ok("%tpkernel list").result)
    shell.kernel(SOFTPLUS)
    shell.kernel(ADD1, "--no-check")
    rows = shell.ok("%tpkernel list").result.rows
    assert [row[:2] for row in rows] == [("softplus", "operator"), ("add1", "function")]
    assert "gradcheck ok" in rows[0][3]
    assert "mylib::softplus(Tensor x" in shell.ok("%tpkernel show softplus").text
    assert "mylib::softplus(Tensor x" in shell.ok("%tpkernel show mylib::softplus").text
    assert shell.ok("%tpkernel show add1").text.startswith("In[")
    folder = tmp_path / "package"
    assert str(folder) in str(shell.ok(f"%tpkernel export softplus {folder}").result)
    assert (folder / "pyproject.toml").is_file()


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("lst", "unknown command 'lst'; did you mean 'list'?"),
        ("show", "expected %tpkernel show NAME, got 0 arguments"),
        ("show nothing", "no cell has bound 'nothing'"),
        ("export a", "expected %tpkernel export NAME DIR"),
    ],
)
def test_a_wrong_command_says_what_to_write(shell: Shell, line: str, message: str):
    assert message in shell.run(f"%tpkernel {line}").shown


def test_without_a_command_they_are_listed(shell: Shell):
    text = str(shell.ok("%tpkernel").result)
    assert all(command in text for command in COMMANDS)
    help_text = str(shell.ip.find_cell_magic("tpkernel").__doc__)
    assert all(f"%tpkernel {command}" in help_text for command in COMMANDS)


def test_the_cache_is_listed_and_cleared_by_name(shell: Shell):
    shell.kernel("int64_t lonely() { return 1; }", "--name lonely")
    table = shell.ok("%tpkernel cache lonely").result
    assert [row[0] for row in table.rows] == ["lonely"]
    shell.ok("%tpkernel clear lonely")
    gone = shell.ok("%tpkernel cache lonely").result
    assert gone.rows == ()
    assert gone.title.startswith("0 libraries called 'lonely' in the build cache")
    shell.kernel("int64_t lonesome() { return 1; }", "--name lonesome")
    ran = shell.run("%tpkernel clear lonesom")
    assert "the build cache has no library 'lonesom'; did you mean 'lonesome'?" in ran.shown
    assert shell.ok("lonely.lonely()").result == 1  # what is loaded goes on working
    html = table._repr_mimebundle_()["text/html"]
    assert "<script" not in html
    assert ">lonely</td>" in html


def test_the_doctor_tries_each_tool_and_says_one_command(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
):
    table = shell.ok("%tpkernel doctor").result
    found = {row[1]: row for row in table.rows}
    for tool in ("engine", "C++ compiler", "build cache", "check worker", "C++ reader", "widgets"):
        assert found[tool][0] == "✔", found[tool]
    assert {"CUDA compiler", "CUDA run-time compiler", "browser extension"} <= found.keys()

    def broken() -> str:
        message = "the reader is gone\nin many lines"
        raise RuntimeError(message)

    monkeypatch.setattr(doctor, "_reader", broken)
    checks = {c.name: c for c in doctor.examine()}
    command = "pip install 'tensorplay-workbench[notebook]'"
    expected = ToolchainCheck("C++ reader", "missing", "the reader is gone", command)
    assert checks["C++ reader"] == expected
    assert "not in order: C++ reader" in str(shell.ok("%tpkernel doctor").result)


def test_the_doctor_finds_the_extension_of_jupyterlab(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("jupyter_core.paths.jupyter_path", lambda *parts: [str(tmp_path)])

    def found() -> ToolchainCheck:
        (check,) = [c for c in doctor.examine() if c.name == "editor extension"]
        return check

    absent = found()
    assert (absent.status, absent.advice) == ("absent", "python -m tpkernel.lab link")
    assert "no colours" in absent.found
    copy = tmp_path / "tpkernel"
    copy.mkdir()
    package = (EXTENSION / "package.json").read_text()
    (copy / "package.json").write_text(package)
    assert (found().status, found().found) == ("ok", str(copy))
    version = json.loads(package)["version"]
    (copy / "package.json").write_text(package.replace(f'"{version}"', '"0.0.1"'))
    assert f"JupyterLab has version 0.0.1, and this package is {version}" in found().found


def test_options_commands_and_names_are_completed(shell: Shell):
    shell.kernel(SOFTPLUS, "--no-check")
    assert completed(shell, "%%tpkernel --sa") == {"%%tpkernel --sanitize"}
    twice = completed(shell, "%%tpkernel --no-check --no-")
    assert "%%tpkernel --no-check --no-check" not in twice
    assert completed(shell, "%%tpkernel --sanitize address,u") == {
        "%%tpkernel --sanitize address,undefined"
    }
    assert completed(shell, "%%tpkernel --functions f\nvoid foo() {}") == {
        "%%tpkernel --functions foo"
    }
    assert completed(shell, "%tpkernel do") == {"%tpkernel doctor"}
    assert completed(shell, "%tpkernel show s") == {"%tpkernel show softplus"}
    assert {"%%tpkernel --debug", "%%tpkernel --isolate"} <= completed(shell, "%%tpkernel ")
    hidden = {"%%tpkernel --at-line", "%%tpkernel --refuse"}
    assert not hidden & completed(shell, "%%tpkernel ")
    shell.ok("%unload_ext tensorplay")
    assert "%%tpkernel --sanitize" not in completed(shell, "%%tpkernel --sa")


def test_doctor_and_cache_name_the_same_size(shell: Shell):
    shell.kernel(ADD1, "--no-check")
    title = shell.ok("%tpkernel cache").result.title
    whole = re.search(r" of (\d+) MiB with precompiled headers", title)
    assert whole is not None, title
    doctors = re.search(r", (\d+) MiB used", str(shell.ok("%tpkernel doctor").result))
    assert doctors is not None
    assert abs(int(doctors[1]) - int(whole[1])) <= 1  # what doctor tries may be kept
    assert "headers" not in shell.ok("%tpkernel cache add1").result.title


def test_time_adds_steps_and_calls(shell: Shell):
    ran = shell.kernel(SOFTPLUS, "--time")
    assert ran.error is None, ran.shown
    assert "timing      mylib::softplus" in ran.text
    assert re.search(r"ready after .*\n +parse .* ms, compile .* ms, load", ran.text)
    assert tpkernel.last_report().to_dict()["opening"] == "Timing"


def test_jobs_reach_the_compiler_and_leave_nothing_behind(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.delenv("MAX_JOBS", raising=False)
    assert shell.kernel(ADD1, "--jobs 1").error is None
    assert shell.ok("import os; os.environ.get('MAX_JOBS')").result is None
    assert "--jobs 0 must be 1 or more" in shell.kernel(ADD1, "--jobs 0").shown
