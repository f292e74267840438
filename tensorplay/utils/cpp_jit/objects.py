"""Names that the process has once: classes, errors and global functions of the engine.

A name belongs to the place that registered it: a Python function or class by module and name, what
a library defines by the library's name. The same place registers again, as cells do that run again;
another one raises, and both are told.
"""

from __future__ import annotations

import builtins
import contextlib
import functools
import inspect
import re
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar, overload

from tensorplay.utils.cpp_jit.callbacks import Callback, leaving
from tensorplay.utils.cpp_jit.engine import engine
from tensorplay.utils.cpp_jit.kernel import Kernel
from tensorplay.utils.cpp_jit.refusals import argument, mismatch, unfit, without_bytes
from tensorplay.utils.cpp_jit.values import from_engine

__all__ = [
    "get_global_func",
    "register_error",
    "register_global_func",
    "register_object",
    "registered",
    "remove_global_func",
]

_T = TypeVar("_T", bound=type)
_F = TypeVar("_F", bound=Callable[..., Any])


@dataclass(frozen=True)
class _Owner:
    """What registered a name: `identity` tells whether it is the same again, `place` a person."""

    identity: str
    place: str

    @classmethod
    def of(cls, thing: Any) -> _Owner:
        """Return the owner that a Python function or class is."""
        name = getattr(thing, "__qualname__", type(thing).__qualname__)
        module = getattr(thing, "__module__", "")
        place = f"{module}.{name}"
        with contextlib.suppress(TypeError, OSError):
            file = inspect.getsourcefile(thing)
            line = inspect.getsourcelines(thing)[1]
            place += f" ({file}:{line})"
        return cls(f"{module}.{name}", place)


#: Who registered a name, by kind and name: "function", "type" (C++), "class" (Python), "error".
_owners: dict[tuple[str, str], _Owner] = {}
_lock = threading.RLock()


def _check_name(operation: str, parameter: str, name: Any, advice: str = "") -> None:
    """Refuse what is no name that the engine can have."""
    where = f"[{operation}] argument {parameter!r}"
    if not isinstance(name, str):
        raise TypeError(f"{where}: expected str, got {type(name).__name__}.{advice}")
    try:
        name.encode()
    except UnicodeEncodeError as error:
        raise without_bytes(where, error) from None


def _claim(operation: str, kind: str, name: str, owner: _Owner, *, taken: str) -> None:
    """Give a name to an owner, or raise with both places.

    Parameters
    ----------
    operation
        What is said to have refused.
    kind, name, owner
        What is registered, and by whom.
    taken
        Who has the name where nothing is known of it here, or ``""`` where nobody has.
    """
    with _lock:
        before = _owners.get((kind, name))
        holder = taken
        if before is not None:
            holder = before.place if before.identity != owner.identity else ""
        if holder:
            raise ValueError(
                f"[{operation}] {name!r}: expected a name of {owner.place}, got one that "
                f"{holder} has registered. Use another name, or register it in one place."
            )
        _owners[kind, name] = owner


# --- global functions ------------------------------------------------------------------------


@overload
def register_global_func(
    func_name: str, f: None = None, override: bool = False
) -> Callable[[_F], _F]: ...
@overload
def register_global_func(func_name: str, f: _F, override: bool = False) -> _F: ...
@overload
def register_global_func(func_name: _F, f: None = None, override: bool = False) -> _F: ...
def register_global_func(func_name: Any, f: Any = None, override: bool = False) -> Any:
    """Register a function under a name that kernels look up (``Function::GetGlobal``).

    Parameters
    ----------
    func_name
        The name; without one the function's own.
    f
        The function; without it a decorator is returned. It gets tensors, lists and dicts.
    override
        Take the name from whoever has it.

    Returns
    -------
    callable
        The function, unchanged.

    Raises
    ------
    ValueError
        Another function, a library or the engine has the name.
    TypeError
        The name is no text, or `f` no function.
    """
    if callable(func_name) and f is None:
        return register_global_func(func_name.__name__, func_name, override)
    advice = " Write register_global_func('package.name', f)."
    _check_name("register_global_func", "func_name", func_name, advice)
    if f is None:
        return functools.partial(register_global_func, func_name, override=override)
    if not callable(f):
        raise TypeError(
            f"[register_global_func] argument 'f': expected a function, got {type(f).__name__}."
        )
    ffi = engine()
    owner = _Owner.of(f)
    with _lock:
        present = ffi.get_global_func(func_name, allow_missing=True) is not None
        if override:
            _owners[("function", func_name)] = owner
        else:
            if not present:
                _owners.pop(("function", func_name), None)
            foreign = "the engine or another package" if present else ""
            _claim("register_global_func", "function", func_name, owner, taken=foreign)
        native = f._function if type(f) is Kernel else f
        if not isinstance(native, ffi.Function):
            native = Callback(f).function_object()
        ffi.register_global_func(func_name, native, override=True)
    return f


@overload
def get_global_func(name: str, allow_missing: bool) -> Kernel | None: ...
@overload
def get_global_func(name: str) -> Kernel: ...
def get_global_func(name: str, allow_missing: bool = False) -> Kernel | None:
    """Return the function that is registered under a name, called as kernels are.

    Parameters
    ----------
    name
        The name.
    allow_missing
        Return None where there is none.

    Returns
    -------
    Kernel or None
        None only with `allow_missing`.

    Raises
    ------
    ValueError
        There is none.
    """
    _check_name("get_global_func", "name", name)
    found = engine().get_global_func(name, allow_missing=True)
    if found is None:
        if allow_missing:
            return None
        raise ValueError(
            f"[get_global_func] argument 'name': no function is registered as {name!r}. Load the "
            "library that registers it, or write register_global_func(name, f)."
        )
    return Kernel(found, name, "global", None, None)


def remove_global_func(name: str) -> None:
    """Forget the function that is registered under a name.

    Parameters
    ----------
    name
        The name.

    Raises
    ------
    ValueError
        There is none.
    """
    get_global_func(name)
    with _lock:
        engine().remove_global_func(name)
        _owners.pop(("function", name), None)


# --- errors ----------------------------------------------------------------------------------


def register_error(name_or_cls: Any = None, cls: Any = None) -> Any:
    """Register the class of exceptions that kernels raise by a name.

    ``TVM_FFI_THROW(MyError)`` then raises it, and ``catch`` in C++ sees its name as the kind.

    Parameters
    ----------
    name_or_cls
        The name, or the class, whose name it then is.
    cls
        The class; without one a decorator is returned.

    Returns
    -------
    type
        The class.

    Raises
    ------
    TypeError
        It is no class of exceptions.
    ValueError
        Another class has the name, or Python's own of that name is meant by it.
    """
    if isinstance(name_or_cls, type):
        return register_error(name_or_cls.__name__, name_or_cls)
    if cls is None:
        return lambda given: register_error(name_or_cls or given.__name__, given)
    if not (isinstance(cls, type) and issubclass(cls, Exception)):
        raise TypeError(
            f"[register_error] argument 'cls': expected a subclass of Exception, got {cls!r}."
        )
    _check_name("register_error", "name_or_cls", name_or_cls)
    own = getattr(builtins, name_or_cls, None)
    taken = f"Python's {name_or_cls}" if isinstance(own, type) and own is not cls else ""
    known = engine().core.ERROR_NAME_TO_TYPE
    if not taken and ("error", name_or_cls) not in _owners and known.get(name_or_cls, cls) != cls:
        taken = f"{known[name_or_cls].__module__}.{known[name_or_cls].__qualname__}"
    _claim("register_error", "error", name_or_cls, _Owner.of(cls), taken=taken)
    engine().register_error(name_or_cls, cls)
    return cls


# --- classes ---------------------------------------------------------------------------------


def register_object(type_key: str | type | None = None, *, init: bool = True) -> Any:
    """Register the Python class of objects that C++ defines.

    Objects of that type that kernels return are of the class, with the fields and methods that C++
    defines as attributes: tensors are `tensorplay.Tensor`, containers lists and dicts, and methods
    take functions. For a class with a base, register the base as well.

    Parameters
    ----------
    type_key
        The name in C++ (``TVM_FFI_DECLARE_OBJECT_INFO``), of the newest definition of a cell that
        ran again; without one the class's own.
    init
        Make a constructor of the one that C++ defines, if the class has none.

    Returns
    -------
    callable
        A decorator that returns the class.

    Raises
    ------
    ValueError
        No library defines the type, or another class has it.
    TypeError
        The class is no subclass of ``tvm_ffi.Object``.
    """
    if isinstance(type_key, type):
        return register_object(type_key.__name__, init=init)(type_key)

    def decorate(cls: _T) -> _T:
        name = type_key if type_key is not None else cls.__name__
        _check_name("register_object", "type_key", name)
        ffi = engine()
        if not issubclass(cls, ffi.Object):
            raise TypeError(
                f"[register_object] {name!r}: expected a subclass of tvm_ffi.Object, got {cls!r}. "
                f"Write class {cls.__name__}(tvm_ffi.Object)."
            )
        version = newest(name)
        if ffi.core._object_type_key_to_index(version) is None:
            raise ValueError(
                f"[register_object] {name!r}: expected the name of a type that a library defines, "
                "got one that none does. Load the library first, and see that its C++ has "
                f"ObjectDef<…>() and TVM_FFI_DECLARE_OBJECT_INFO with {name!r}."
            )
        _claim("register_object", "class", name, _Owner.of(cls), taken="")
        own = frozenset(cls.__dict__)
        ffi.register_object(version, init=init)(cls)
        _dress(cls, own)
        with _lock:
            _classes[version] = cls
        return cls

    return decorate


#: Registered classes by the version of their type, and what the body of each defines.
_classes: dict[str, type] = {}
_dressed: dict[type, frozenset[str]] = {}


def newest(name: str) -> str:
    """Return the newest version of a type, as ``name#2`` after its cell ran with other fields."""
    find = engine().core._object_type_key_to_index
    number = 2
    while find(f"{name}#{number}") is not None:
        number += 1
    return name if number == 2 else f"{name}#{number - 1}"


def _dress(cls: Any, own: frozenset[str]) -> None:
    """Let the fields and methods that C++ defines speak of tensors, lists and functions.

    Parameters
    ----------
    cls
        A class that the engine knows.
    own
        What its body defines, which stays.
    """
    info = cls.__tvm_ffi_type_info__
    for field in info.fields or ():
        made = cls.__dict__.get(field.name)
        if field.name not in own and isinstance(made, property):
            setattr(cls, field.name, _field(made, f"[{cls.__qualname__}] field {field.name!r}"))
    for method in info.methods:
        if method.name in own or method.name.startswith("__ffi_"):
            continue
        # Also where a base has one of the name, such as `__create__`, which the engine then keeps.
        made = method.as_callable(cls)
        if method.name.startswith("__"):
            setattr(cls, method.name, made)  # called by their handles
        elif isinstance(made, staticmethod):
            kernel = Kernel(method.func, method.name, cls.__qualname__, None, method.doc)
            setattr(cls, method.name, staticmethod(kernel))
        else:
            setattr(cls, method.name, _method(cls, method))
    if getattr(cls.__init_handle_by_constructor__, "__module__", "") != __name__:
        cls.__init_handle_by_constructor__ = _constructor(cls)
    with _lock:
        _dressed.setdefault(cls, own)


def _field(made: property, place: str) -> property:
    get: Any = made.fget
    put: Any = made.fset

    def fget(self: Any) -> Any:
        _check_made(self, place)
        return from_engine(get(self))

    def fset(self: Any, value: Any) -> None:
        _check_made(self, place)
        try:
            put(self, leaving(value, place))
        except TypeError as error:
            text = unfit(error, place, value)
            if text:
                error.args = (text,)
            raise

    return property(fget, fset if put is not None else None, made.fdel, made.__doc__)


def _check_made(self: Any, place: str) -> None:
    """Refuse an object without one of C++ behind it, which the engine would read through."""
    if not self.__chandle__():
        raise RuntimeError(
            f"{place}: expected an object that C++ has made, got one whose __init__ has made none. "
            "Call self.__init_handle_by_constructor__(…) or super().__init__(…) there."
        )


def _method(cls: type, method: Any) -> Callable[..., Any]:
    kernel = Kernel(method.func, method.name, cls.__qualname__, None, method.doc)

    place = f"[{cls.__qualname__}] method {method.name!r}"

    def call(self: Any, *args: Any) -> Any:
        _check_made(self, place)
        return kernel(self, *args)

    call.__name__ = method.name
    call.__qualname__ = f"{cls.__qualname__}.{method.name}"
    call.__module__ = cls.__module__
    call.__doc__ = method.doc or None
    return call


def _constructor(cls: Any) -> Callable[..., None]:
    made = cls.__init_handle_by_constructor__  # of the base, which this stands before

    def construct(self: Any, fconstructor: Any, *args: Any) -> None:
        kernel = fconstructor._function if isinstance(fconstructor, Kernel) else fconstructor
        place = f"[{type(self).__qualname__}]"
        given = [leaving(v, f"{place} {argument(i, ())}") for i, v in enumerate(args)]
        try:
            made(self, kernel, *given)
        except TypeError as error:
            text = mismatch(error, place, (), args)
            if text:
                error.args = (text,)
            raise

    return construct


# --- what a library defines ------------------------------------------------------------------


class _Changed(Exception):  # noqa: N818 - it asks for another load and is never seen
    """A class has other fields than the type of its name, which objects may have."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name


#: Loads of libraries that register, one at a time: the engine's tables say what the load is.
_loading = threading.RLock()
_MOST_LOADS = 20


def registered(load: Callable[[], Any], name: str) -> tuple[Any, tuple[tuple[str, str], ...]]:
    """Load a library and register what it defines.

    Parameters
    ----------
    load
        Loads it, afresh each time.
    name
        The library's, which owns what it registers.

    Returns
    -------
    module, registers
        The engine's module, and kind (``"function"`` or ``"class"``) and name of what it registers:
        if anything, it has to be loaded again to be the one that has the names.

    Raises
    ------
    ValueError
        Another library, or Python code, has one of the names.
    """
    owner = _Owner(f"library {name}", f"library {name!r}")
    changed: set[str] = set()
    for _ in range(_MOST_LOADS):
        with _loading, _marked("tensorplay.defer", *(f"tensorplay.type.{n}" for n in changed)):
            module = load()
        if not module.implements_function("tp_registrations"):
            return module, ()
        asked: list[tuple[str, str]] = []
        again: list[str] = []
        register = Kernel(module.get_function("tp_registrations"), "register", name, None, None)
        try:
            register(functools.partial(_judge, owner, asked, again))
        except _Changed as found:
            changed.add(found.name)
            continue
        for key in again:
            _dress_again(key)
        return module, tuple(dict.fromkeys(asked))
    raise RuntimeError(
        f"[load] library {name!r}: its classes change with every load. Restart, or name them anew."
    )


def _judge(
    owner: _Owner, asked: list[tuple[str, str]], again: list[str], kind: str, key: str
) -> None:
    """Decide on a name that a library registers: return, or raise."""
    name = re.sub(r"#\d+$", "", key)
    asked.append(("function" if kind == "function" else "class", name))
    if kind == "changed":
        raise _Changed(name)
    if kind == "again":
        again.append(key)
    elif kind == "function":
        present = engine().get_global_func(name, allow_missing=True) is not None
        with _lock:
            if not present:
                _owners.pop(("function", name), None)
            taken = "the engine or another package" if present else ""
            _claim("load", "function", name, owner, taken=taken)
    else:
        taken = "the engine or another package" if kind == "type again" else ""
        _claim("load", "type", name, owner, taken=taken)


def _dress_again(key: str) -> None:
    """Give a registered class the methods that its library has just replaced."""
    cls = _classes.get(key)
    if cls is None:
        return
    core = engine().core
    info = core._register_object_by_index(core._object_type_key_to_index(key), cls)
    cls.__tvm_ffi_type_info__ = info  # type: ignore[attr-defined]  # the engine's own
    fields = frozenset(field.name for field in info.fields or ())  # the same, as judged in C++
    _dress(cls, _dressed[cls] | fields)


@contextlib.contextmanager
def _marked(*names: str) -> Iterator[None]:
    """Let global functions exist whose names C++ looks for while a library is loaded.

    It asks the engine's table and not Python: the system holds its loader's lock meanwhile, which a
    thread with the interpreter's lock may be waiting for.
    """
    ffi = engine()
    nothing = _nothing()
    for name in names:
        ffi.register_global_func(name, nothing, override=True)
    try:
        yield
    finally:
        for name in names:
            ffi.remove_global_func(name)


@functools.lru_cache(maxsize=1)
def _nothing() -> Any:
    return engine().convert(lambda: None)
