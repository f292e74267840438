"""The files in `binder/` are what mybinder.org's builder reads; `binder/check.py` runs them."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

BINDER = Path(__file__).resolve().parents[2] / "binder"


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"binder_{name}", BINDER / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def check() -> ModuleType:
    return load("check")


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    return Path(shutil.copytree(BINDER, tmp_path / "binder"))


def test_the_files_are_fine(check: ModuleType) -> None:
    check.check_files(BINDER)
    assert check.words(BINDER / "requirements.txt") == [".[tutorials]"]


def test_a_hook_that_cannot_run_or_hides_errors_is_refused(check: ModuleType, copy: Path) -> None:
    hook = copy / "postBuild"
    hook.chmod(0o644)
    with pytest.raises(SystemExit, match=r"chmod \+x"):
        check.check_files(copy)
    hook.chmod(0o755)
    hook.write_text("#!/bin/bash\ntrue\n")
    with pytest.raises(SystemExit, match="set -e"):
        check.check_files(copy)


def test_a_package_or_python_that_is_not_there_is_refused(check: ModuleType, copy: Path) -> None:
    (copy / "runtime.txt").write_text("3.12\n")
    with pytest.raises(SystemExit, match=r"expected python-3\.N"):
        check.check_files(copy)
    (copy / "apt.txt").write_text("# a compiler\ng++-of-another-world\n")
    with pytest.raises(SystemExit, match="apt-get install g"):
        check.check_files(copy)


def test_postbuild_runs_every_notebook() -> None:
    assert "notebooks/*.ipynb" in (BINDER / "postBuild").read_text()


@pytest.fixture(scope="module")
def badges() -> ModuleType:
    return load("badges")


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("https://github.com/some/where", "gh/some/where/HEAD"),
        ("git@github.com:some/where.git", "gh/some/where/HEAD"),
        ("https://user@github.com/some/where.git/", "gh/some/where/HEAD"),
        ("https://gitlab.com/group/sub/where.git", "gl/group%2Fsub%2Fwhere/HEAD"),
        (
            "ssh://git@codeberg.org/some/where.git",
            "git/https%3A%2F%2Fcodeberg.org%2Fsome%2Fwhere/HEAD",
        ),
        ("https://git.example.org/where", "git/https%3A%2F%2Fgit.example.org%2Fwhere/HEAD"),
    ],
)
def test_address_in_the_grammar_of_mybinder(
    badges: ModuleType, address: str, expected: str
) -> None:
    assert badges.repository(address, "HEAD") == expected


def test_branches_are_escaped_and_folders_are_refused(badges: ModuleType) -> None:
    assert badges.repository("https://github.com/a/b", "topic/x") == "gh/a/b/topic%2Fx"
    with pytest.raises(SystemExit, match=r"no address .* binder/badges\.py https://HOST"):
        badges.repository("/home/me/where", "HEAD")


def test_each_notebook_gets_one_badge_and_the_rest_stays(badges: ModuleType) -> None:
    readme = (BINDER.parent / "README.md").read_text("utf-8")
    once = badges.with_badges(readme, "https://github.com/old/name")
    twice = badges.with_badges(once, "https://gitlab.com/some/where", "v1")
    names = sorted(file.name for file in (BINDER.parent / "notebooks").glob("*.ipynb"))
    start = "https://mybinder.org/v2/gl/some%2Fwhere/v1?labpath=notebooks%2F"
    assert [
        line.split(start)[1].split(")")[0] for line in twice.splitlines() if start in line
    ] == names
    assert "old/name" not in twice
    badge = re.compile(r"\[!\[open on Binder\]\(\S*\)\]\(\S*\) ")
    assert badge.sub("", twice) == badge.sub("", readme)


def test_badges_of_a_clone_lead_to_its_origin_however_often_they_are_written(
    copy: Path, tmp_path: Path
) -> None:
    readme = tmp_path / "README.md"
    shutil.copy(BINDER.parent / "README.md", readme)
    command = [sys.executable, str(copy / "badges.py")]
    subprocess.run(["git", "init", "--quiet", str(tmp_path)], check=True)
    refused = subprocess.run(command, capture_output=True, text=True, check=False)
    assert refused.returncode == 1
    assert refused.stderr == (
        "binder/badges.py: there is no remote origin. Write python3 binder/badges.py "
        "https://HOST/OWNER/REPOSITORY\n"
    )
    origin = ["git", "remote", "add", "origin", "git@github.com:some/where.git"]
    subprocess.run(origin, cwd=tmp_path, check=True)
    subprocess.run(command, check=True)
    once = readme.read_text("utf-8")
    notebooks = len(list((BINDER.parent / "notebooks").glob("*.ipynb")))
    assert once.count("https://mybinder.org/v2/gh/some/where/HEAD?labpath=") == notebooks
    subprocess.run(command, check=True)
    assert readme.read_text("utf-8") == once
