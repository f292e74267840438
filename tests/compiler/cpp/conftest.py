"""All tests here build kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn

import pytest

from tensorplay.utils.cpp_jit import MissingToolError
from tensorplay.utils.cpp_jit.toolchain import find_compiler


@pytest.fixture(scope="session", autouse=True)
def _compiler(missing: Callable[[str], NoReturn]) -> None:
    try:
        find_compiler()
    except MissingToolError:
        missing("g++ is not installed")
