"""Memory that C++ lends to a callback: a ``TensorView`` or ``DLTensor*`` passed to a function.

Such a view owns nothing and is gone with the call, while the function may keep what it gets, and
the engine's tensor of it ends the process where anything asks it for its memory. So the function
gets a copy, and what it writes there is written to the lent memory when it returns.
"""

from __future__ import annotations

import ctypes
import functools
from typing import TYPE_CHECKING, Any

import numpy as np

from tensorplay._dlpack import Tensor, from_numpy, words
from tensorplay.utils.cpp_jit.allocator import DLTensor
from tensorplay.utils.cpp_jit.c_interface import AnyValues, SafeCall
from tensorplay.utils.cpp_jit.engine import engine

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = ["Lent", "is_lent"]

_CPU = 1  # kDLCPU of DLPack
_INTEGER_INDEX = 1  # kTVMFFIInt of the engine's C header


def is_lent(value: Any) -> bool:
    """Return whether a value from the engine is a tensor on memory that nobody holds for it."""
    return isinstance(value, engine().Tensor) and not value.__chandle__()


class Lent:
    """One view and the tensor that stands for it during a call.

    Parameters
    ----------
    view
        The engine's tensor, without an object behind it.
    function
        Name of the function that gets it, for errors.

    Attributes
    ----------
    tensor
        A copy, of the view's shape and order.

    Raises
    ------
    ValueError
        The memory is on another device.
    TypeError
        The runtime has no such element type.
    """

    def __init__(self, view: Any, function: str) -> None:
        self._memory = _array_over(view, function)
        copy = self._memory.copy(order="K")
        self._before = copy.tobytes(order="A")
        self._copy = copy
        self.tensor: Tensor = from_numpy(copy)

    def give_back(self) -> None:
        """Write to the lent memory what the function wrote to its tensor, if it did."""
        if self._copy.tobytes(order="A") != self._before:
            self._memory[...] = self._copy


@functools.lru_cache(maxsize=1)
def _types() -> dict[tuple[int, int, int], Any]:
    return {(code, bits, 1): numpy for numpy, _, code, bits in words()}


def _give_address(_: Any, args: AnyValues, __: int, result: AnyValues) -> int:
    """Return the address that the argument is."""
    result[0].type_index = _INTEGER_INDEX
    result[0].padding = 0
    result[0].value = args[0].value
    return 0


_C_FUNCTION = SafeCall(_give_address)  # lives as long as the process: the engine holds its address


@functools.lru_cache(maxsize=1)
def _address_of() -> Any:
    """Return a function of the engine that gives the address of a view's description.

    Its own attributes do not say all: it has no word for complex elements.
    """
    address = ctypes.cast(_C_FUNCTION, ctypes.c_void_p).value
    return engine().Function.__from_extern_c__(address)


def _array_over(view: Any, function: str) -> npt.NDArray[Any]:
    """Return an array on the memory of a view, which has to outlive it."""
    described = DLTensor.from_address(_address_of()(view))
    device, word = described.device, described.dtype
    if device.device_type != _CPU:
        raise ValueError(
            f"[{function}] expected a view of memory on the cpu, got one on {view.device}. Copy it "
            "to the cpu in C++ first."
        )
    dtype = _types().get((word.code, word.bits, word.lanes))
    if dtype is None:
        raise TypeError(
            f"[{function}] expected a view of elements that tensors may have, got DLPack's code "
            f"{word.code} with {word.bits} bits and {word.lanes} lanes. Convert it in C++ first."
        )
    shape = view.shape
    if 0 in shape:
        return np.empty(shape, dtype)
    item = dtype.itemsize
    strides = [stride * item for stride in view.strides]
    reach = [(size - 1) * stride for size, stride in zip(shape, strides, strict=True)]
    first = sum(r for r in reach if r < 0)
    size = sum(map(abs, reach)) + item
    memory = (ctypes.c_char * size).from_address(view.data_ptr() + first)
    made: npt.NDArray[Any] = np.ndarray(shape, dtype, memory, offset=-first, strides=strides)
    return made
