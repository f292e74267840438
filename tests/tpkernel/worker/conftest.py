"""A worker that knows whose it is, for kernels that do what only a worker may meet."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.tpkernel.shell import TESTS_PID
from tpkernel.worker.process import shared_worker


@pytest.fixture
def own_worker(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Give a test a fresh worker, whose kernels can tell it from the tests' process."""
    monkeypatch.setenv(TESTS_PID, str(os.getpid()))
    shared_worker().close()  # the next one inherits the variable
    yield
    shared_worker().close()


@pytest.fixture(scope="module")
def shared_own_worker() -> Iterator[None]:
    """Give the tests of a module one, as `own_worker` does."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(TESTS_PID, str(os.getpid()))
        shared_worker().close()
        yield
    shared_worker().close()
