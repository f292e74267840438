"""One JupyterLab and one Chromium for all tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.notebook.lab import LabBrowser, LabServer


@pytest.fixture(scope="session")
def lab() -> Iterator[LabBrowser]:
    """Return a browser on a running JupyterLab."""
    with LabServer() as server, LabBrowser(server) as browser:
        yield browser
