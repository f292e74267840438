"""What a kernel leaves of its process is told, and what the C library does by itself is not."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

SETS_ITS_USER = """
import os, threading
from tpkernel.worker.surroundings import Surroundings
found = Surroundings()
found.keep()
hold = threading.Event()
threading.Thread(target=hold.wait).start()
os.setuid(os.getuid())  # the C library tells its threads by a signal of its own
print(repr(found.changed()))
hold.set()
"""


@pytest.mark.skipif(not hasattr(os, "setuid"), reason="no users on this system")
def test_signals_of_the_c_library_are_its_own() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SETS_ITS_USER], check=True, capture_output=True, text=True
    )
    assert done.stdout == "''\n"
