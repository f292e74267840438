"""``kernel[grid, block]`` in Python, with a stand-in for the function that launches."""

from __future__ import annotations

import inspect
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tensorplay.utils.cpp_jit.load import CudaKernel, Kernel
from tensorplay.utils.cpp_jit.source import Parameter

PARAMETERS = (Parameter("x", "int64_t"), Parameter("y", "double", "2.5"))


@pytest.fixture
def kernel() -> CudaKernel:
    def launch(*args: Any) -> str:
        return repr(args)

    return CudaKernel(launch, "scale", "mine", PARAMETERS, "Scales.", ["x"])


def test_sizes_shared_memory_and_stream_come_before_the_arguments(kernel: CudaKernel) -> None:
    assert kernel[2, 32](5, 1.5) == "(2, 1, 1, 32, 1, 1, 0, None, 5, 1.5)"
    assert kernel[(2, 3, 4), np.int64(8)](x=5) == "(2, 3, 4, 8, 1, 1, 0, None, 5, 2.5)"
    assert kernel[2, 32, 1024, 7](5, y=0.5) == "(2, 1, 1, 32, 1, 1, 1024, 7, 5, 0.5)"
    stream = SimpleNamespace(cuda_stream=99)
    assert kernel[2, 32, 0, stream](5, 1.0) == "(2, 1, 1, 32, 1, 1, 0, 99, 5, 1.0)"


def test_a_launch_is_the_kernel_with_its_grid(kernel: CudaKernel) -> None:
    launch = kernel[2, 32]
    assert type(launch) is Kernel
    assert repr(launch) == repr(kernel)
    assert repr(kernel).startswith("<kernel mine::scale")
    assert launch.__doc__ == "Scales."
    assert inspect.signature(launch) == inspect.signature(kernel)
    assert kernel[4, 8](1) != launch(1)  # each has its own


def test_a_launch_looks_at_no_signature_again(
    kernel: CudaKernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*args: Any, **kwargs: Any) -> None:
        raise AssertionError("a signature was made")

    monkeypatch.setattr(inspect, "Signature", refuse)
    monkeypatch.setattr(inspect, "Parameter", refuse)
    assert kernel[2, 32](5, 1.5)


@pytest.mark.parametrize("config", [(True, 32), (2, False), ((2, True), 32), ("2", 32), (2.0, 32)])
def test_what_is_no_size(kernel: CudaKernel, config: Any) -> None:
    with pytest.raises(TypeError, match=r"^\[mine::scale\] expected a (grid|block) of one to"):
        kernel[config]


def test_what_is_no_shared_memory_or_stream(kernel: CudaKernel) -> None:
    for shared in (True, -1, 1.5):
        with pytest.raises(TypeError, match="expected bytes of shared memory"):
            kernel[1, 1, shared]
    for stream in (True, "s", 1.5):
        with pytest.raises(TypeError, match="expected a stream or its address"):
            kernel[1, 1, 0, stream]


def test_sizes_beyond_those_that_a_launch_has_a_place_for(kernel: CudaKernel) -> None:
    for config, what in (((2**31, 1), "grid"), (((1, 2**40), 1), "grid"), ((1, 2**31), "block")):
        text = rf"^\[mine::scale\] expected a {what} of sizes up to 2147483647, got "
        with pytest.raises(ValueError, match=text):
            kernel[config]
    with pytest.raises(
        ValueError, match="at most 2147483647 bytes of shared memory, got 2147483648"
    ):
        kernel[1, 1, 2**31]
    assert kernel[2**31 - 1, 1, 2**31 - 1] is not None
