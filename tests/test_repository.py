"""What the documents say of the repository is so."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import pytest

ROOT = Path(__file__).resolve().parents[1]
DOCUMENTS = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")


@pytest.mark.parametrize("name", DOCUMENTS)
def test_paths_named_in_a_document_exist(name: str) -> None:
    text = (ROOT / name).read_text()
    prose = re.sub(r"`[^`]*`", "", text)
    linked = re.findall(r"\]\((?!https?:)([^)#]+)\)", prose)
    quoted = re.findall(r"`((?:tensorplay|magics|tests|notebooks)/[\w./-]*)`", text)
    missing = [path for path in (*linked, *quoted) if not (ROOT / path).exists()]
    assert missing == []


LINK = re.compile(r"\]\((?!https?:)([^)#]*)(?:#([^)]+))?\)")


def without_blocks(text: str) -> str:
    """Return Markdown without its blocks of code."""
    return re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)


def links(text: str) -> list[tuple[str, str]]:
    """Return path and heading of each link within the repository."""
    return LINK.findall(re.sub(r"`[^`]*`", "", without_blocks(text)))


def headings(text: str) -> list[str]:
    """Return the headings of Markdown."""
    return re.findall(r"^#+ (.+)$", without_blocks(text), re.MULTILINE)


def anchor_on_a_forge(heading: str) -> str:
    """Return the name that GitHub and GitLab give a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


@pytest.mark.parametrize("path", sorted((ROOT / "docs").glob("*.md")), ids=lambda path: path.name)
def test_links_of_a_page_lead_somewhere(path: Path) -> None:
    for target, anchor in links(path.read_text()):
        page = path.parent / target if target else path
        assert page.exists(), target
        assert not anchor or anchor in map(anchor_on_a_forge, headings(page.read_text())), anchor


@pytest.mark.parametrize(
    "path", sorted((ROOT / "notebooks").glob("*.ipynb")), ids=lambda path: path.stem
)
def test_links_of_a_notebook_lead_somewhere(path: Path) -> None:
    cells = json.loads(path.read_text("utf-8"))["cells"]
    text = "\n\n".join("".join(c["source"]) for c in cells if c["cell_type"] == "markdown")
    anchors = [heading.replace(" ", "-") for heading in headings(text)]  # JupyterLab's
    assert links(text)
    for target, anchor in links(text):
        assert not target or (path.parent / target).exists(), target
        assert not anchor or anchor in anchors, anchor


def test_ci_runs_the_test_command_of_the_readme() -> None:
    """The script cuts the command out of README.md; here the same text is found by other means."""
    readme = (ROOT / "README.md").read_text()
    block = re.search(r"<!-- test command -->\n```sh\n(.+)\n```\n<!-- end -->", readme)
    assert block is not None
    assert block[1].endswith("-m pytest")
    cut = re.search(r"^test_command=(\$\(.*\))$", (ROOT / ".ci" / "run").read_text(), re.MULTILINE)
    assert cut is not None
    done = subprocess.run(
        ["bash", "-c", f'printf "%s" "{cut[1]}"'],
        check=True,
        capture_output=True,
        text=True,
        cwd=ROOT,
    )
    assert done.stdout == block[1]


@pytest.mark.parametrize(
    ("arguments", "processes"),
    [
        ("", 2),
        ("-x --durations=9", 2),
        ("tests/", 2),
        ("-p no:cacheprovider", 2),
        ("tests/ops", 0),
        ("tests/test_repository.py::test_processes", 0),
        ("-k values", 0),
        ("-m benchmark", 0),
        ("-m long", 0),
        ("--last-failed", 0),
        ("-s", 0),
    ],
)
def test_all_tests_run_in_two_processes_and_a_selection_in_one(
    arguments: str, processes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    class InsteadOfRunning:
        def pytest_cmdline_main(self, config: pytest.Config) -> int:
            assert config.option.dist == ("worksteal" if processes else "no")
            assert len(config.option.tx) == processes
            return int(config.option.numprocesses)

    monkeypatch.chdir(ROOT)
    assert pytest.main(arguments.split(), plugins=[InsteadOfRunning()]) == processes


def test_what_ci_needs_is_no_skip_there(
    missing: Callable[[str], NoReturn], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CI", raising=False)
    with pytest.raises(pytest.skip.Exception, match=r"g\+\+ is not installed"):
        missing("g++ is not installed")
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match=r"g\+\+ is not installed .CI is set"):
        missing("g++ is not installed")


def test_a_compiler_or_browser_is_missed_in_one_way() -> None:
    for path in (ROOT / "tests").rglob("*.py"):
        text = path.read_text("utf-8")
        found = re.findall(r"pytest\.skip\([^)]*(?:\bg\+\+|C\+\+ compiler|Chromium)[^)]*\)", text)
        assert path == Path(__file__) or [s for s in found if "nvcc" not in s] == [], path
