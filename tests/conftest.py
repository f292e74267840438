"""Fixtures and settings of the whole test session.

No test reads or writes the home folder of the person who runs it: every folder that the product,
Jupyter, IPython or Matplotlib would look for lies in one temporary folder. It lasts for the whole
session, so that what the engine builds once (run-time library, precompiled headers) is built once.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import hypothesis
import pytest

_FOLDERS = {
    "HOME": "home",
    "TENSORPLAY_CACHE_DIR": "cache",
    "XDG_CACHE_HOME": "home/.cache",
    "XDG_CONFIG_HOME": "home/.config",
    "XDG_DATA_HOME": "home/.local/share",
    "IPYTHONDIR": "ipython",
    "JUPYTER_CONFIG_DIR": "jupyter/config",
    "JUPYTER_DATA_DIR": "jupyter/data",
    "JUPYTER_RUNTIME_DIR": "jupyter/runtime",
    "MPLCONFIGDIR": "matplotlib",
}
_session_folder = pytest.StashKey[Path]()


def pytest_configure(config: pytest.Config) -> None:
    # On a busy machine an example may take long; what must not has a limit of its own.
    chosen = hypothesis.settings.default  # there is one for CI
    slow = [hypothesis.HealthCheck.too_slow]
    profile = hypothesis.settings(chosen, deadline=None, suppress_health_check=slow)
    hypothesis.settings.register_profile("busy", profile)
    hypothesis.settings.load_profile("busy")
    if hasattr(config, "workerinput"):  # a pytest-xdist worker inherits its controller's variables
        return
    root = Path(tempfile.mkdtemp(prefix="tensorplay-tests-"))
    config.stash[_session_folder] = root
    for variable, folder in _FOLDERS.items():
        path = root / folder
        path.mkdir(parents=True, exist_ok=True)
        os.environ[variable] = str(path)


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Return two processes for all tests, and none besides pytest's own for a selection of them.

    Processes take seconds to start, and hide what ``-s`` would show. And nothing may run beside
    tests that compare times, which a selection is by their marker.
    """
    everything = [os.path.normpath(path) for path in config.args] == config.getini("testpaths")
    selected = config.option.keyword or config.getoption("lf", default=False)
    marked = config.option.markexpr not in config.getini("addopts")
    return 0 if not everything or selected or marked or config.option.capture == "no" else 2


def pytest_unconfigure(config: pytest.Config) -> None:
    root = config.stash.get(_session_folder, None)
    if root is not None:
        shutil.rmtree(root, ignore_errors=True)


@pytest.fixture(scope="session")
def cache_folder() -> Path:
    """Return the root of the build cache that this test session uses."""
    return Path(os.environ["TENSORPLAY_CACHE_DIR"])


@pytest.fixture(scope="session")
def missing() -> Callable[[str], NoReturn]:
    """Return what ends a test for want of the compiler or the browser: a failure in CI.

    Everything else that a machine may lack (clang++, CUDA, a mount command) is a plain skip.
    """

    def end(reason: str) -> NoReturn:
        if os.environ.get("CI"):
            pytest.fail(f"{reason} (CI is set: it must be there)")
        pytest.skip(reason)

    return end
