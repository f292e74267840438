"""A real IPython shell with the extension loaded."""

from __future__ import annotations

import atexit
from collections.abc import Iterator

import pytest
from IPython.core.interactiveshell import InteractiveShell
from traitlets.config import Config

from tests.tpkernel.shell import Shell


@pytest.fixture
def shell() -> Iterator[Shell]:
    """Return a fresh shell with the extension loaded."""
    InteractiveShell.clear_instance()
    config = Config()
    config.HistoryManager.enabled = False
    ip = InteractiveShell.instance(config=config)
    made = Shell(ip)
    made.ok("%load_ext tensorplay")
    made.ok("import numpy as np\nimport tensorplay as tp")
    yield made
    InteractiveShell.clear_instance()
    # Each would be reset when the tests end, and live until then with all that its cells made.
    atexit.unregister(ip.atexit_operations)
