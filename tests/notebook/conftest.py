"""One JupyterLab and one Chromium for all tests of this folder."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NoReturn

import pytest

from tests.notebook.lab import BrowserMissingError, LabBrowser, LabServer, find_chromium


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the tests with a browser last.

    Playwright's synchronous interface keeps an event loop running in the main thread for as long as
    the browser is open, which is to the end of the process. Other tests come before it. Where one
    process takes tests over from another some may come after, so none runs a loop of its own in the
    main thread: those of nbclient and Dask run in others.
    """
    items.sort(key=lambda item: item.get_closest_marker("browser") is not None)


@pytest.fixture(scope="session")
def lab(missing: Callable[[str], NoReturn]) -> Iterator[LabBrowser]:
    """Return a browser on a running JupyterLab; skip where there is no browser, but not in CI."""
    try:
        find_chromium()
    except BrowserMissingError as error:
        missing(str(error))
    with LabServer() as server, LabBrowser(server) as browser:
        yield browser
