"""Objects of the engine that own Python objects, and what C++ may do with them at the end.

C++ may hold such an object longer than there is an interpreter: in a static variable, or in a
thread that goes on until the process ends. The engine would then ask for the interpreter's lock and
end the process with a fault, so such objects are left to the system.

Whoever made them and wherever they are, the engine's Python layer lets go of what they own by three
functions that it imports from Python. When the interpreter has nothing left to do, a function that
does nothing stands in their place.

Before that, while the interpreter ends and other threads go on, and when a function is called, it
is the object that counts. The compiled extension looks whether there is an interpreter, for all
that the engine makes since it is in use here (`_native/src/held.cpp`). Where the extension is
missing, or it is not known where the engine's Python layer keeps the addresses of what it imports,
objects count that pass through `hold`: the extension looks for these, or else they get one more
reference when Python's exit begins.
"""

from __future__ import annotations

import atexit
import ctypes
import functools
import importlib
import sys
import threading
from typing import Any

from tensorplay import _native
from tensorplay.utils.cpp_jit.c_interface import AnyValues, SafeCall
from tensorplay.utils.cpp_jit.engine import engine
from tensorplay.utils.cpp_jit.imported import Place, places
from tensorplay.utils.cpp_jit.toolchain import find_engine

__all__ = [
    "engine_library",
    "give",
    "hold",
    "leave_to_the_system",
    "opaque",
    "owned",
    "prepare",
]

# What the extension calls of the engine.
_CALLED = (
    "TVMFFIFunctionCall",
    "TVMFFIObjectDecRef",
    "TVMFFITensorFromDLPackVersioned",
    "TVMFFITensorToDLPackVersioned",
    "TVMFFIErrorMoveFromRaised",
    "TVMFFIErrorSetRaisedFromCStr",
    "TVMFFIEnvGetDLPackManagedTensorAllocator",
    "TVMFFIEnvSetDLPackManagedTensorAllocator",
    "TVMFFIObjectCreateOpaque",
    "TVMFFIFunctionCreate",
)
# What its Python layer calls when it lets go of a Python object; the first call last, so that no
# thread gets from one that does nothing to one that does something.
_LETTING_GO = ("Py_DecRef", "PyGILState_Release", "PyGILState_Ensure")
# Indices of types in the engine's C header.
_FUNCTION, _PYTHON_OBJECT = 68, 74
_STRONG = 1  # of the flags of a deleter: the object itself ends, not only its memory


@functools.lru_cache(maxsize=1)
def engine_library() -> ctypes.PyDLL:
    """Return the engine's library, called with the interpreter's lock held."""
    library = ctypes.PyDLL(str(find_engine().library))
    library.TVMFFIObjectIncRef.argtypes = [ctypes.c_void_p]
    return library


def _give_value(_: Any, args: AnyValues, __: int, result: AnyValues) -> int:
    """Return the value whose type, padding and content are the arguments: it is given away."""
    result[0].type_index = args[0].value
    result[0].padding = args[1].value
    result[0].value = args[2].value
    return 0


_C_FUNCTION = SafeCall(_give_value)  # lives as long as the process: the engine holds its address


@functools.lru_cache(maxsize=1)
def _giver() -> Any:
    address = ctypes.cast(_C_FUNCTION, ctypes.c_void_p).value or 0
    return engine().Function.__from_extern_c__(address)


def give(type_index: int, address: int) -> Any:
    """Return an object of the engine as its Python layer has it; its reference is taken over."""
    return _giver()(type_index, 0, address)


# --- outliving Python ------------------------------------------------------------------------


class _Object(ctypes.Structure):
    """TVMFFIObject of the engine's C header."""

    _fields_ = (
        ("references", ctypes.c_uint64),
        ("type_index", ctypes.c_int32),
        ("padding", ctypes.c_uint32),
        ("deleter", ctypes.c_void_p),
    )


_Deleter = ctypes.PYFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int)
# Without the extension: the objects that are held, and what the engine put into them, by type.
_held: set[int] = set()
_lock = threading.RLock()  # a collection may end an object while it is held
_original: dict[int, int] = {}


def _delete(address: int, flags: int) -> None:
    original = _Deleter(_original[_Object.from_address(address).type_index])
    if flags & _STRONG:
        with _lock:
            _held.discard(address)
    original(address, flags)


# Not PYFUNCTYPE: C++ lets go of objects in threads that do not hold the interpreter's lock.
_deleter = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int)(_delete)
_deleter_address = ctypes.cast(_deleter, ctypes.c_void_p).value


def _hold(address: int, is_sample: bool) -> None:
    """Do what the extension's `hold` does, without it."""
    made = _Object.from_address(address)
    if is_sample and made.deleter is not None:
        _original[made.type_index] = made.deleter
    if made.deleter is not None and made.deleter == _original.get(made.type_index):
        with _lock:
            _held.add(address)
        made.deleter = _deleter_address


def _leave_to_the_system() -> None:
    with _lock:
        addresses = list(_held)
    for address in addresses:
        engine_library().TVMFFIObjectIncRef(address)


atexit.register(_leave_to_the_system)


def _is_as_declared(made: Any, type_index: int) -> bool:
    """Whether an object that Python has just made lies in memory as its header declares it here."""
    header = _Object.from_address(made.__chandle__())
    once = 1 << 32 | 1  # strong and weak references
    return (header.references, header.type_index) == (once, type_index) and bool(header.deleter)


@functools.lru_cache(maxsize=1)
def _holder() -> Any:
    """Return what holds an object by its address, ready for those that the engine makes."""
    core: Any = importlib.import_module("tvm_ffi.core")
    samples = {
        _PYTHON_OBJECT: core._convert_to_opaque_object(None),
        _FUNCTION: core._convert_to_ffi_func(print),
    }
    if not all(_is_as_declared(made, index) for index, made in samples.items()):
        return None
    hold = _hold
    if _native.core is not None:
        library = engine_library()
        addresses = {
            name: ctypes.cast(getattr(library, name), ctypes.c_void_p).value for name in _CALLED
        }
        _native.core.configure_ffi(addresses, core.Function.__from_extern_c__)
        hold = _native.core.hold
    for sample in samples.values():
        hold(sample.__chandle__(), True)
    return hold


class _End:
    """Puts a function that does nothing into places when the interpreter clears `sys`.

    It does so after all modules, whose globals are gone by then: this uses its own attributes. No
    other thread can call Python any more, and memory that is not freed does not matter.
    """

    def __init__(self, where: list[Place]) -> None:
        self._where = where
        self._nothing = ctypes.cast(ctypes.pythonapi.Py_IsInitialized, ctypes.c_void_p).value
        self._is_now = sys.is_finalizing

    def __del__(self) -> None:
        if self._is_now():
            for place in self._where:
                place.put(self._nothing)


@functools.lru_cache(maxsize=1)
def leave_to_the_system() -> None:
    """Let the objects that the engine's Python layer has made and will make outlive Python."""
    core: Any = importlib.import_module("tvm_ffi.core")
    creators = {} if _holder() in (None, _hold) else _native.core.creators()
    imported = places(getattr(core, "__file__", None) or "", [*_LETTING_GO, *creators])
    for name, address in creators.items():
        for place in imported[name]:
            place.put(address)
    if all(imported[name] for name in _LETTING_GO):
        where = [place for name in _LETTING_GO for place in imported[name]]
        sys._tensorplay_end = _End(where)  # type: ignore[attr-defined]


def hold(made: Any) -> Any:
    """Return an object of the engine, which from now on may outlive Python if it owns some of it.

    Functions and Python objects are meant; of a function of C++ nothing changes.
    """
    holder = _holder()
    if holder is not None:
        holder(made.__chandle__(), False)
    return made


def opaque(value: Any) -> Any:
    """Return the engine's object that owns a Python object."""
    return hold(engine().core._convert_to_opaque_object(value))


def owned(made: Any) -> Any:
    """Return the Python object that an object of the engine owns, or else the object."""
    address = made.__chandle__()
    engine_library().TVMFFIObjectIncRef(address)
    return give(_Object.from_address(address).type_index, address)


def prepare() -> bool:
    """Tell the extension where the engine is; False if it is one whose objects differ."""
    return _holder() is not None
