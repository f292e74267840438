"""Python functions as functions of the engine.

A callback gets the values that a person expects (`tensorplay.Tensor`, list, dict, str), from
whatever thread C++ calls it, and may return the same. What it raises travels through C++ as an
error of the engine that holds the exception, so that the kernel's caller gets that very object.

One fault of the engine is kept away here: calls of kernels and callbacks by one another would end
the process where the stack ends.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import re
import threading
import types
import weakref
from typing import TYPE_CHECKING, Any

import numpy as np

from tensorplay import _native
from tensorplay._dlpack import Tensor
from tensorplay.utils.cpp_jit.c_interface import ByteArray
from tensorplay.utils.cpp_jit.engine import engine
from tensorplay.utils.cpp_jit.held import engine_library, give, hold, opaque, owned
from tensorplay.utils.cpp_jit.lent import Lent, is_lent
from tensorplay.utils.cpp_jit.refusals import texts, undescribed, without_bytes
from tensorplay.utils.cpp_jit.values import (
    PLAIN,
    RefusedError,
    from_engine,
    leaves,
    replaced,
    to_engine,
    with_our_word,
)

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Callback", "held_by", "joined_traceback", "leaving", "original", "python_function"]

#: Most levels of callbacks on one thread, each of which takes some kilobytes of its stack.
MOST_LEVELS = 100
# Levels of Python that turning an exception into an error of the engine takes, and some more.
_ROOM = 10
_depth = threading.local()


class _Carrier(Exception):  # noqa: N818 - it is what the engine reads an error from, never seen
    """Takes an error of the engine through the engine's own conversion of exceptions."""

    def __init__(self, error: Any) -> None:
        super().__init__(error.message)
        self.__tvm_ffi_error__ = error


def _name_of(function: Callable[..., Any]) -> str:
    return getattr(function, "__name__", type(function).__name__)


class Callback:
    """A Python function that C++ may call.

    Parameters
    ----------
    function
        What is called, with the engine's values as Python ones.

    Attributes
    ----------
    interrupt
        What ended a call that is no `Exception`, such as `KeyboardInterrupt`: it has to reach the
        kernel's caller even where C++ goes on.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self.interrupt: BaseException | None = None

    def __call__(self, *args: Any) -> Any:  # noqa: D102 - the class says it
        depth = getattr(_depth, "value", 0)
        _depth.value = depth + 1
        lent: list[Lent] = []
        try:
            _check_room(_ROOM)
            if depth >= MOST_LEVELS:
                raise RecursionError(
                    f"[cpp_jit] kernels and their callbacks call each other more than "
                    f"{MOST_LEVELS} levels deep."
                )
            result = self.function(
                *[a if type(a) in PLAIN else self._received(a, lent) for a in args]
            )
            if type(result) in PLAIN:
                if type(result) is str:
                    _check_texts(result, self._result_place)
                return result
            return leaving(result, self._result_place)
        except RecursionError as error:
            if not _has_room():
                raise _no_room().with_traceback(None) from None
            raise self._carrier(error) from None
        except BaseException as error:  # noqa: BLE001 - it is raised again behind the C++
            raise self._carrier(error) from None
        finally:
            _depth.value = depth
            for memory in lent:
                memory.give_back()

    def _received(self, value: Any, lent: list[Lent]) -> Any:
        """Return an argument as the function gets it; what has to be given back goes to `lent`."""
        if not is_lent(value):
            return from_engine(value)
        lent.append(Lent(value, _name_of(self.function)))
        return lent[-1].tensor

    def _carrier(self, error: BaseException) -> _Carrier:
        if not isinstance(error, Exception):
            self.interrupt = error
        return _Carrier(_error_holding(error))

    @property
    def _result_place(self) -> str:
        return f"[{_name_of(self.function)}] result"

    def function_object(self) -> Any:
        """Return the engine's function that calls this."""
        ffi = engine()
        _no_room()  # made while there is room for it
        made = hold(ffi.core._convert_to_ffi_func(self, None if _native.core is None else Tensor))
        address = made.__chandle__()
        with _alive_lock:
            _alive[address] = weakref.ref(self, functools.partial(_forget, address))
        return made


def leaving(value: Any, place: str) -> Any:
    """Return a value as the engine takes it where no kernel's argument names it.

    Parameters
    ----------
    value
        What a callback returns, or what becomes a field of an object.
    place
        What errors call it.

    Raises
    ------
    TypeError
        It is or holds an array that DLPack cannot describe, one with a mask, or an object that C++
        has not made.
    ValueError
        It is or holds a tensor without memory, or text without bytes.
    RuntimeError
        It is or holds a tensor that requires grad while gradients are recorded.
    """
    try:
        given = to_engine(value)
    except RefusedError as error:
        path = next((path for path, inner in leaves(value) if inner is error.value), "")
        raise TypeError(f"{place}{path}: {error}") from None
    _check_texts(given, place)
    by: dict[str, Any] = {}
    for path, inner in leaves(given):
        if isinstance(inner, Tensor):
            _check_tensor(inner, place + path)
        elif isinstance(inner, np.ndarray):
            by[path] = _exported(inner, place + path)
    return replaced(given, by) if by else given


def _check_tensor(tensor: Tensor, place: str) -> None:
    if tensor.is_meta:
        raise ValueError(
            f"{place}: expected a tensor with memory on cpu, got one on meta. Write "
            "tp.empty_like(x, device='cpu') and fill it."
        )
    try:
        tensor.__dlpack__(max_version=(1, 1))
    except BufferError as error:
        reason = re.sub(r"^\[\w+\] ", "", str(error))
        raise RuntimeError(f"{place}: {reason}") from error


def _exported(array: np.ndarray[Any, Any], place: str) -> Any:
    """Return what the engine takes for an array: of one that may not be written, a copy."""
    given = with_our_word(array if array.flags.writeable else array.copy(order="K"))
    if isinstance(given, np.ndarray):
        try:
            given.__dlpack__()
        except BufferError as reason:
            raise undescribed(place, given, reason) from None
    return given


def _check_texts(value: Any, place: str) -> None:
    for text in texts(value):
        if not text.isascii():
            try:
                text.encode()
            except UnicodeEncodeError as error:
                raise without_bytes(place, error) from None


# --- functions that C++ holds ----------------------------------------------------------------

# The callbacks that exist, by the address of the engine's function, which lives as long.
_alive: dict[int, weakref.ref[Callback]] = {}
_alive_lock = threading.RLock()  # a collection may run `_forget` while it is held


def _forget(address: int, reference: weakref.ref[Callback]) -> None:
    with _alive_lock:
        if _alive.get(address) is reference:
            del _alive[address]


def python_function(function: Any) -> Callable[..., Any] | None:
    """Return the Python function that a function of the engine calls, or None."""
    with _alive_lock:
        reference = _alive.get(function.__chandle__())
    callback = reference() if reference is not None else None
    return callback.function if callback is not None else None


# --- exceptions ------------------------------------------------------------------------------


_ERROR_INDEX = 67  # kTVMFFIError of the engine's C header


@functools.lru_cache(maxsize=1)
def _error_maker() -> Any:
    make = engine_library().TVMFFIErrorCreateWithCauseAndExtraContext
    make.restype = ctypes.c_int
    text = ctypes.POINTER(ByteArray)
    make.argtypes = [
        *(text, text, text, ctypes.c_void_p, ctypes.c_void_p),
        ctypes.POINTER(ctypes.c_void_p),
    ]
    return make


def _error_holding(error: BaseException) -> Any:
    """Return an error of the engine with an exception inside, which lives as long as the error."""
    core = engine().core
    kind = core.ERROR_TYPE_TO_NAME.get(type(error)) or next(
        (core.ERROR_TYPE_TO_NAME[c] for c in type(error).__mro__ if c in core.ERROR_TYPE_TO_NAME),
        "RuntimeError",
    )
    try:
        message = str(error)
    except Exception:  # noqa: BLE001 - whatever its class does there, the error has to arrive
        message = f"<{type(error).__name__}>"
    held = opaque(error)
    handle = ctypes.c_void_p()
    failed = _error_maker()(
        ctypes.byref(ByteArray.of(kind)),
        ctypes.byref(ByteArray.of(message)),
        ctypes.byref(ByteArray.of("")),
        None,
        held.__chandle__(),
        ctypes.byref(handle),
    )
    if failed:
        raise MemoryError("no memory for an error of the engine")
    return give(_ERROR_INDEX, handle.value or 0)


def held_by(error: Any) -> BaseException | None:
    """Return the exception of Python that an error of the engine holds, or None."""
    held = error.extra_context
    if not isinstance(held, engine().core.CObject):
        return None
    found = owned(held)
    return found if isinstance(found, BaseException) else None


def original(error: BaseException) -> BaseException | None:
    """Return the exception of a callback behind one that the engine raised, or None."""
    raised = getattr(error, "__tvm_ffi_error__", None)
    return held_by(raised) if raised is not None else None


# --- what a traceback shows ------------------------------------------------------------------

_INTERNAL = re.compile(r"[\\/]cpp_jit[\\/](callbacks|kernel|values)\.py$")


def joined_traceback(
    error: BaseException, cell: types.TracebackType | None
) -> types.TracebackType | None:
    """Return the frames of C++ before those of the callback, without those of this package.

    Parameters
    ----------
    error
        An exception that a callback raised.
    cell
        Frames of C++, the outermost first.
    """
    frames = [*_frames(cell), *_frames(error.__traceback__)]
    made: types.TracebackType | None = None
    for entry in reversed(frames):
        made = types.TracebackType(made, entry.tb_frame, entry.tb_lasti, entry.tb_lineno)
    return made


def _frames(traceback: types.TracebackType | None) -> list[types.TracebackType]:
    found = []
    while traceback is not None:
        if not _INTERNAL.search(traceback.tb_frame.f_code.co_filename):
            found.append(traceback)
        traceback = traceback.tb_next
    return found


# --- room ------------------------------------------------------------------------------------


def _check_room(levels: int) -> None:
    if levels:
        _check_room(levels - 1)


def _has_room() -> bool:
    with contextlib.suppress(RecursionError):
        _check_room(_ROOM // 2)
        return True
    return False


@functools.lru_cache(maxsize=1)
def _no_room() -> _Carrier:
    """Return what is raised where there is no room to make an error: one that is there already."""
    engine().core.ERROR_NAME_TO_TYPE.setdefault("RecursionError", RecursionError)
    return _Carrier(
        engine().core.Error(
            "RecursionError",
            "maximum recursion depth exceeded in a callback",
            "",
        )
    )
