"""What tests of compiled functions share."""

from __future__ import annotations

import pytest

from tensorplay.utils.cpp_jit import MissingToolError
from tensorplay.utils.cpp_jit.toolchain import find_compiler

BACKENDS = ("eager", "interpreter", "cpp")


@pytest.fixture(params=BACKENDS)
def backend(request, missing) -> str:
    if request.param == "cpp":
        try:
            find_compiler()
        except MissingToolError as error:
            missing(str(error))
    return str(request.param)
