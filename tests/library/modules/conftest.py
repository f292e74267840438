"""A built library, and a registry that each test leaves as it was."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tensorplay.library import registry
from tests.library.modules.texts import KERNELS, OPS


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the library by the command, as a newcomer does."""
    folder = tmp_path_factory.mktemp("module")
    (folder / "ops.yaml").write_text(OPS)
    (folder / "kernels.cc").write_text(KERNELS)
    words = ["build", "ops.yaml", "kernels.cc", "-o", "libmyops.so"]
    done = subprocess.run(
        [sys.executable, "-m", "tensorplay.library", *words],
        check=False,
        capture_output=True,
        text=True,
        cwd=folder,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "libmyops.so\n"
    return folder / "libmyops.so"


@pytest.fixture(autouse=True)
def _registry() -> Iterator[None]:
    before = set(registry._REGISTRY)
    yield
    for name in set(registry._REGISTRY) - before:
        registry.remove(name)
