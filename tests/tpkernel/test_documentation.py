"""Every cell of docs/cells.md does what the page says, in one session from top to bottom."""

from __future__ import annotations

import re
from pathlib import Path

import tpkernel
from tests.tpkernel.shell import Shell
from tpkernel.cells.cell import KEYS
from tpkernel.notebook.magic import TpKernelMagics

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "cells.md").read_text("utf-8")
FENCED = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def cells() -> list[tuple[str, str | None]]:
    """Return the page's cells, each with the start of the error that is shown below it."""
    found: list[tuple[str, str | None]] = []
    for language, text in FENCED.findall(PAGE):
        if language == "text":
            found[-1] = (found[-1][0], text.strip())
        else:
            found.append((text, None))
    return found


def test_every_cell_runs_and_its_report_is_ok(shell: Shell) -> None:
    shown = cells()
    assert sum(text.startswith("%%tpkernel") for text, _ in shown) > 15
    for text, expected in shown:
        ran = shell.run(text)
        if expected is None:
            assert ran.error is None, f"{text}\n{ran.shown}"
            if text.startswith("%%tpkernel"):
                report = tpkernel.last_report()
                assert report.ok, report.to_text()
        else:
            assert ran.error is not None, text
            assert f"{type(ran.error).__name__}: {ran.error}".startswith(expected), text


def test_the_page_has_every_key_and_every_option() -> None:
    cuda = (Path(__file__).resolve().parents[2] / "docs" / "cuda.md").read_text("utf-8")
    for key in KEYS:
        page = cuda if key == "launch" else PAGE  # whose cells every machine builds
        assert re.search(rf"^[ \t-]*{key}:", page, re.MULTILINE), f"no cell uses '{key}'"
        assert f"`{key}`" in PAGE, f"no heading names '{key}'"
    for option in TpKernelMagics.tpkernel.parser._option_string_actions:
        if option.startswith("--") and option not in ("--at-line", "--refuse", "--help"):
            assert option in PAGE, option


def test_readme_and_help_lead_to_the_page() -> None:
    readme = (Path(__file__).resolve().parents[2] / "README.md").read_text("utf-8")
    assert "docs/cells.md" in readme
    assert "docs/cells.md" in str(TpKernelMagics.tpkernel.__doc__)
