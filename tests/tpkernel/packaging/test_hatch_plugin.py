"""The build hook where nothing has to be installed: what it imports and what it leaves behind."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tpkernel.hatch_plugin import OperatorsHook


def test_other_packages_builds_do_not_pay_for_it() -> None:
    code = (
        "import sys, tpkernel.hatch_plugin; "
        "heavy = 'tensorplay', 'numpy', 'tpkernel.building.pipeline'; "
        "print([name for name in heavy if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_a_build_that_fails_leaves_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    settings = {"library": "src/p/libp.so", "declarations": "nope.yaml", "sources": ["a.cc"]}
    hook = OperatorsHook(str(tmp_path), settings, None, None, str(tmp_path), "wheel")  # type: ignore[arg-type]
    with pytest.raises((OSError, ValueError), match=r"nope\.yaml"):
        hook.initialize("standard", {"force_include": {}})
    assert list(folder.iterdir()) == []
