"""The files in `binder/` are what mybinder.org's builder reads; `binder/check.py` runs them."""

from __future__ import annotations

import importlib.util
import shutil
from pathlib import Path
from types import ModuleType

import pytest

BINDER = Path(__file__).resolve().parents[2] / "binder"


@pytest.fixture(scope="module")
def check() -> ModuleType:
    spec = importlib.util.spec_from_file_location("binder_check", BINDER / "check.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


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
