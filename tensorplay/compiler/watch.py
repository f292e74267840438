"""What a captured function reads from outside, as guards on later calls.

While the function runs, every Python function that it enters is looked at (`reading`): globals,
variables of enclosing functions and attributes of objects that exist outside of the call become
guards. Containers and objects that are handed on are guarded with what they hold. What cannot be
guarded, such as the clock or a generator of random numbers, fails the capture, and so does a change
of anything outside.
"""

from __future__ import annotations

import builtins
import enum
import functools
import gc
import importlib.util
import inspect
import sys
import types
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from tensorplay import _dtype
from tensorplay._device import device
from tensorplay._tensor import Size, Tensor
from tensorplay.autograd import forward_ad
from tensorplay.autograd.backward import backward
from tensorplay.compiler.allowed import (
    HARMLESS,
    is_pure,
    is_trusted_module,
    plain_member,
    refused_call,
    refused_code,
)
from tensorplay.compiler.reading import Change, Reading, SuperUse, readings
from tensorplay.compiler.sources import is_captured, is_library, is_of_library, user_line
from tensorplay.compiler.traced import TracedArray
from tensorplay.graph.errors import GraphCaptureError
from tensorplay.library.definitions import CustomOpDef
from tensorplay.library.owners import line_of
from tensorplay.ops.operator import Operator
from tensorplay.random import Generator

__all__ = ["Guard", "Watch"]

MOST_OBJECTS: Final = 20_000
MOST_BYTES: Final = 1 << 16

CONSTANTS: Final = (
    bool, int, float, complex, str, bytes, type(None), type(Ellipsis), range, slice, np.generic,
    _dtype.dtype, device, np.dtype, Size, enum.Enum, type(NotImplemented),
)  # fmt: skip


@dataclass(frozen=True)
class Guard:
    """One condition on the world.

    Attributes
    ----------
    kind
        ``"global"``, ``"free"``, ``"attribute"``, ``"item"``, ``"missing"``, ``"names"``,
        ``"content"`` or ``"cache"``.
    holder
        The dictionary, cell or object.
    key
        Name or index in it.
    value
        What was there.
    text
        For people: ``global 'scale' is 2.0``.
    """

    kind: str
    holder: Any
    key: Any
    value: Any
    text: str


class _FoundError(Exception):
    """Something that no graph holds: it fails the capture when its line runs."""

    def __init__(self, what: str, line: str) -> None:
        super().__init__(what)
        self.what = what
        self.line = line


class Watch:
    """Finds what one run reads."""

    def __init__(self, fail: Callable[..., GraphCaptureError]) -> None:
        self.fail = fail
        self.guards: dict[Any, Guard] = {}
        #: Tensors from outside, by identity, each with the guard that finds it, if one does.
        self.tensors: dict[int, tuple[Tensor, Guard | None]] = {}
        self._caches: dict[int, tuple[Any, Any]] = {}  # functools.lru_cache, with its counts
        self.literals: set[str] = set()  # numbers that the code names
        self.backward_line: str | None = None  # of the last backward pass in the run
        self.level = forward_ad.current_number()  # of forward mode: its tangents are not ours
        self._importing = False  # finders and modules run, of which no result depends
        self._outer: dict[int, Any] = {}  # objects from outside
        self._objects: list[Any] = []  # those whose attributes may be read under any name
        self._names: set[str] = set()
        self._all_names = False
        self._functions: dict[types.CodeType, list[Any]] = {}
        self._seen: set[Any] = set()
        self._looked_at: set[tuple[int, str]] = set()
        self._mine: set[types.CodeType] = set()  # functions that the captured code defines

    # --- frames -----------------------------------------------------------------------------

    def trace(self, frame: types.FrameType, event: str, _: Any) -> Any:
        """Look at a function that is entered: what `sys.settrace` calls."""
        code = frame.f_code
        # By identity: the hash of code is that of all its instructions.
        if id(code) in _LIBRARY or event != "call" or self._importing:
            return None
        if code is _IMPORT:
            self._importing = True
            return self._until_imported
        update = refused_code(code)
        if update is not None:
            raise self.fail(f"calls {update}(), which changes gradients or parameters outside,")
        if is_of_library(frame):
            if code is _BACKWARD:
                self.backward_line = user_line()
            elif code is _EXIT_LEVEL:
                if self.level is not None and forward_ad.current_number() == self.level:
                    raise self.fail("closes a level of forward mode that it did not open")
            else:
                _LIBRARY[id(code)] = code
        elif is_captured(frame):
            problems = self.enter(frame)
            if problems:
                return self._by_line(problems)
        return None

    def _until_imported(self, _: types.FrameType, event: str, __: Any) -> Any:
        """Look at nothing until an import, of what the library has not needed before, is over."""
        self._importing = event != "return"
        return self._until_imported

    def _by_line(self, problems: dict[int | None, _FoundError]) -> Any:
        """Return what fails the capture when one of these lines runs."""

        def trace(frame: types.FrameType, event: str, _: Any) -> Any:
            found = problems.get(frame.f_lineno)
            if found is not None:
                raise self.fail(found.what, line=found.line)
            return trace

        return trace

    def enter(self, frame: types.FrameType) -> dict[int | None, _FoundError]:
        """Add guards for what the code of a frame reads; return what no graph holds, by line."""
        code = frame.f_code
        found = readings(code)
        for constant in code.co_consts:
            if isinstance(constant, types.CodeType):
                self._mine.add(constant)
            elif isinstance(constant, (int, float)):
                self.literals.add(repr(constant))
        values = frame.f_locals
        problems: dict[int | None, _FoundError] = {}
        for change in found.changes:
            try:
                self._judge_change(change, frame, values)
            except _FoundError as problem:
                problems.setdefault(change.line, problem)
        for reading in found.readings:
            try:
                self._read(reading, frame, values)
            except _FoundError as problem:
                problems.setdefault(reading.line, problem)
        self._names |= found.names
        for use in found.supers:
            try:
                self._inherited(use, frame, values)
            except _FoundError as problem:
                problems.setdefault(use.line, problem)
        return problems

    def _inherited(self, use: SuperUse, frame: types.FrameType, values: Any) -> None:
        """Guard what `super` finds."""
        if frame.f_globals.get("super", super) is not super:
            return  # a function of the user's that is called so
        kind, owner = (
            frame.f_globals.get(name, _MISSING) if where == "global" else
            _MISSING if where == "unknown" else values.get(name, _MISSING)
            for where, name in (use.kind, use.owner)
        )  # fmt: skip
        where = self._where(frame.f_code, use.line)
        if use.name is None or kind is _MISSING or owner is _MISSING:
            raise _FoundError(
                "uses super() in another way than super().name or super(Class, variable).name",
                line=where,
            )
        classes = (owner if isinstance(owner, type) else type(owner)).__mro__
        if kind not in classes:
            return  # Python raises
        name = use.name
        for base in classes[classes.index(kind) + 1 :]:
            if _is_settled(base):
                break
            text = f"{base.__name__}.{name}"
            if name in vars(base):
                self._add("item", vars(base), name, vars(base)[name], text, of=base)
                break
            self._add("missing", vars(base), name, None, f"no {text}", of=base)

    def _where(self, code: types.CodeType, line: int | None) -> str:
        return line_of(code, line)

    def _judge_change(self, change: Change, frame: types.FrameType, values: Any) -> None:
        code = frame.f_code
        if change.in_place and self._stays(change, frame, values):
            return
        if change.target is not None:
            holder, path = values.get(change.target.name, values), change.target.path
            if (
                change.target.kind == "local"
                and holder is not values
                and not path
                and (id(holder) not in self._outer and not isinstance(holder, Tensor))
            ):
                return  # made inside of the function
        if change.what.endswith("enclosing function") and not self._functions.get(code):
            return  # the enclosing function is captured, too
        what = f"{change.what} {change.name!r}" if change.name else change.what
        raise _FoundError(what, line=self._where(code, change.line))

    def _stays(self, change: Change, frame: types.FrameType, values: Any) -> bool:
        """Tell whether an operator such as ``+=`` assigns the tensor that an attribute has."""
        target = change.target
        if target is None or target.kind not in {"local", "free", "global"}:
            return False
        scope = frame.f_globals if target.kind == "global" else values
        holder = scope.get(target.name, _MISSING)
        for mark, key in target.path:
            holder = plain_member(holder, mark, key)
        # What the tensor itself makes of it: at the end of the run it is looked at again.
        return isinstance(inspect.getattr_static(holder, change.name, None), Tensor)

    def _read(self, reading: Reading, frame: types.FrameType, values: Any) -> None:
        name, kind = reading.name, reading.kind
        where = self._where(frame.f_code, reading.line)
        if kind == "unknown":
            return
        if kind == "global":
            value = self._global(frame.f_globals, name)
        elif kind == "free":
            if name not in values:
                return
            value = self._free(frame, name, values[name])
        elif kind == "import":
            if name.startswith("."):
                name = importlib.util.resolve_name(name, frame.f_globals["__package__"])
            value = sys.modules.get(name)
            if value is None:
                raise _FoundError(f"imports {name!r} for the first time", line=where)
        else:
            if name not in values:
                return
            value = values[name]
            if id(value) not in self._outer:
                return
        if value is _MISSING:
            return
        self._follow(value, reading.path, where, name)

    def _global(self, scope: dict[str, Any], name: str) -> Any:
        if name in scope:
            value = scope[name]
            self._add("global", scope, name, value, f"global {name!r}")
            return value
        self._add("missing", scope, name, None, f"no global {name!r}")
        return getattr(builtins, name, _MISSING)

    def _free(self, frame: types.FrameType, name: str, value: Any) -> Any:
        code = frame.f_code
        index = code.co_freevars.index(name)
        known = self._functions.get(code, [])
        for function in known:
            cell = function.__closure__[index]
            if cell.cell_contents is value:
                self._add("free", cell, name, value, f"variable {name!r} of an enclosing function")
                return value
        if code not in self._mine and name != "__class__":
            self._find_functions(code)
            if len(self._functions.get(code, [])) > len(known):
                return self._free(frame, name, value)
            raise _FoundError(
                f"reads the variable {name!r} of an enclosing function, whose place is not known,",
                line=self._where(code, code.co_firstlineno),
            )
        return value if id(value) in self._outer or name == "__class__" else _MISSING

    def _find_functions(self, code: types.CodeType) -> None:
        for function in gc.get_referrers(code):
            if isinstance(function, types.FunctionType) and function.__closure__:
                self.add_function(function)

    def add_function(self, function: Any) -> None:
        """Know a function of the world by its code."""
        code = getattr(function, "__code__", None)
        if isinstance(code, types.CodeType):
            known = self._functions.setdefault(code, [])
            if not any(f is function for f in known):
                known.append(function)

    # --- values -----------------------------------------------------------------------------

    def _follow(self, value: Any, path: tuple[tuple[str, Any], ...], where: str, name: str) -> None:
        text = name
        for mark, key in path:
            text = f"{text}.{key}" if mark == "." else f"{text}[{key!r}]"
            if isinstance(value, Tensor):
                self._tensor(value, None)
                return
            if mark == "[":
                if type(value) not in {dict, list, tuple}:
                    self.escape(value, text, where)
                    return
                try:
                    found = value[key]
                except (KeyError, IndexError):
                    self.escape(value, text, where)
                    return
                if type(value) is not tuple:
                    self._outer_object(value)
                    self._add("item", value, key, found, text)
            else:
                found = self._attribute(value, key, text, where)
                if found is _MISSING:
                    return
            value = found
        self.escape(value, text, where)

    def _attribute(
        self, holder: Any, name: str, text: str, where: str, *, last_resort: bool = True
    ) -> Any:
        """Return an attribute of an object from outside, guarded; `_MISSING` if it is computed.

        `last_resort` tells whether what is not there is guarded to stay away.
        """
        if isinstance(holder, types.ModuleType):
            value = getattr(holder, name, _MISSING)
            if value is not _MISSING and not is_trusted_module(holder.__name__):
                self._add("attribute", holder, name, value, text)
            return value
        self._outer_object(holder)
        if isinstance(holder, CONSTANTS):
            return _MISSING
        static = inspect.getattr_static(holder, name, _MISSING)
        own = _own(holder)
        if static is _MISSING:
            if hasattr(type(holder), "__getattr__") or name not in _names_of(holder):
                if last_resort and own is not None and not isinstance(holder, type):
                    self._add("missing", own, name, None, f"no {text}")
                return _MISSING  # __getattr__ is looked at when it runs
            value = getattr(holder, name, _MISSING)  # such as of `threading.local`
            self._add("attribute", holder, name, value, text)
            return value
        if not isinstance(holder, type) and type(own) is dict and name not in own:
            self._of_class(holder, own, name, static, text)
        if isinstance(static, (staticmethod, classmethod)):
            self._add_class_item(holder, name, static, text)
            self.escape(static.__func__, text, where)
            return _MISSING
        if (
            isinstance(static, types.FunctionType)
            and not isinstance(holder, type)
            and (own is None or name not in own)
        ):
            self._function(static, text, where)
            ours = is_library(static.__code__.co_filename) and not isinstance(holder, _OWN)
            if ours or name in _ITERATING:
                self._deep(holder, text, where)
            return _MISSING
        if (
            (own is None or name not in own)
            and hasattr(type(static), "__get__")
            and not isinstance(holder, type)
        ):
            if isinstance(static, types.MemberDescriptorType):  # a slot
                value = getattr(holder, name, _MISSING)
                self._add("attribute", holder, name, value, text)
                return value
            if isinstance(static, property):
                return _MISSING
            value = getattr(holder, name, _MISSING)  # of a type written in C
            if isinstance(holder, (list, set, frozenset, dict)):
                self.escape(holder, text, where)
            return value if self._judge_value(value, text, where) else _MISSING
        value = getattr(holder, name, _MISSING)
        if value is not _MISSING:
            self._add("attribute", holder, name, value, text)
        return value

    def _of_class(
        self, holder: Any, own: dict[str, Any], name: str, static: Any, text: str
    ) -> None:
        """Guard that an attribute of a class is not hidden by one of the object, or replaced."""
        kind = type(holder)
        if _is_settled(kind):
            return
        self._add("missing", own, name, None, f"no own {text}")
        if isinstance(static, (types.FunctionType, property)):
            self._add("attribute", holder, "__class__", kind, f"{text} of its class")
            self._add("attribute", kind, name, static, f"{kind.__name__}.{name}")

    def _add_class_item(self, holder: Any, name: str, static: Any, text: str) -> None:
        """Guard a method of a class, which gives another object whenever it is read."""
        for kind in (holder if isinstance(holder, type) else type(holder)).__mro__:
            if name in vars(kind):
                self._add("item", vars(kind), name, static, text, of=kind)
                return
            self._add("missing", vars(kind), name, None, f"no {kind.__name__}.{name}", of=kind)

    def _judge_value(self, value: Any, text: str, where: str) -> bool:
        problem = refused_call(value)
        if problem is not None:
            raise _FoundError(f"uses {text}, {problem},", line=where)
        return True

    def escape(self, value: Any, text: str, where: str) -> None:
        """Guard what an object from outside holds, as the function hands it on."""
        if isinstance(value, CONSTANTS) or value is _MISSING:
            return
        if isinstance(value, Tensor):
            self._tensor(value, None)
            return
        if value is super and text != "super":
            raise _FoundError(f"uses super() as {text}", line=where)
        self._judge_value(value, text, where)
        if id(value) in self._seen:
            return
        self._outer_object(value)
        self._seen.add(id(value))
        try:
            self._held_by(value, text, where)
        except _FoundError:
            self._seen.discard(id(value))
            raise

    def _held_by(self, value: Any, text: str, where: str) -> None:
        if len(self._seen) > MOST_OBJECTS:
            raise _FoundError(
                f"reads more than {MOST_OBJECTS} objects, by way of {text},", line=where
            )
        if isinstance(value, (types.FunctionType, functools.partial, types.MethodType)):
            self._function(value, text, where)
        elif isinstance(value, functools._lru_cache_wrapper):
            self._caches[id(value)] = value, value.cache_info()
        elif isinstance(value, (list, tuple, set, frozenset, dict)):
            self._container(value, text, where)
        elif isinstance(value, weakref.ref):
            self.escape(value(), f"{text}()", where)
        elif isinstance(value, (type, types.ModuleType)):
            name = value.__module__ if isinstance(value, type) else value.__name__
            if not is_trusted_module(name):
                self._objects.append(value)
        elif isinstance(value, np.ndarray):
            if value.nbytes > MOST_BYTES or value.dtype.hasobject:
                raise _FoundError(f"reads the NumPy array {text}", line=where)
            self._add("content", value, None, (value.shape, value.dtype, value.tobytes()), text)
        elif isinstance(value, types.BuiltinFunctionType) and value in _REFLECTION:
            self._all_names = True
            for known in list(self._objects):
                self._deep(known, text, where)
        elif not (isinstance(value, (*_OWN, *HARMLESS)) or is_pure(value)):
            self._object(value, text, where)

    def _object(self, value: Any, text: str, where: str) -> None:
        if isinstance(value, (types.GeneratorType, types.CoroutineType)):
            raise _FoundError(f"uses the generator {text}", line=where)
        if not (hasattr(value, "__dict__") or hasattr(type(value), "__slots__")):
            raise _FoundError(
                f"uses {text}, of type {type(value).__name__}, whose state no guard can watch,",
                line=where,
            )
        self._objects.append(value)
        if self._all_names:
            self._deep(value, text, where)
        wrapped = getattr(value, "__wrapped__", None)
        if wrapped is not None:
            self.add_function(wrapped)

    def _function(self, value: Any, text: str, where: str) -> None:
        if isinstance(value, functools.partial):
            for part in (value.func, value.args, value.keywords):
                self.escape(part, text, where)
            return
        if isinstance(value, types.MethodType):
            self.escape(value.__self__, text, where)
            self.add_function(value.__func__)
            if isinstance(value.__func__, functools._lru_cache_wrapper):
                self.escape(value.__func__, text, where)
            return
        self.add_function(value)
        wrapped = getattr(value, "__wrapped__", None)
        if wrapped is not None:
            self.add_function(wrapped)
        if is_trusted_module(value.__module__ or ""):
            return
        self._add("attribute", value, "__code__", value.__code__, f"the code of {text}")
        self._add("attribute", value, "__defaults__", value.__defaults__, f"defaults of {text}")
        named = value.__kwdefaults__
        if value.__code__.co_kwonlyargcount:
            self._add("attribute", value, "__kwdefaults__", named, f"named defaults of {text}")
        for defaults in (value.__defaults__, named):
            self.escape(defaults, f"defaults of {text}", where)

    def _container(self, value: Any, text: str, where: str) -> None:
        if isinstance(value, dict):
            content: Any = (list(value.keys()), list(value.values()))
            members = [*value.keys(), *value.values()]
        else:
            members = content = list(value)
        if not isinstance(value, (tuple, frozenset)):
            self._add("content", value, None, content, text)
        for member in members:
            self.escape(member, f"{text}[…]", where)
        if hasattr(value, "__dict__"):
            self._objects.append(value)

    def _deep(self, holder: Any, text: str, where: str) -> None:
        """Guard all attributes of an object."""
        key = (id(holder), "*")
        if key in self._looked_at or isinstance(holder, (type, types.ModuleType)):
            return
        self._looked_at.add(key)
        own = _own(holder)
        if own is not None:
            self._add("names", own, None, tuple(own), f"attributes of {text}")
        for name, value in list(getattr(holder, "__dict__", {}).items()):
            self._add("attribute", holder, name, value, f"{text}.{name}")
            self.escape(value, f"{text}.{name}", where)
            if hasattr(value, "__dict__") and not isinstance(
                value, (type, types.ModuleType, types.FunctionType, Tensor)
            ):
                self._deep(value, f"{text}.{name}", where)

    def clean_caches(self) -> str | None:
        """Empty the caches of functions in which the run left stand-ins; return one's name."""
        found = None
        for cached, before in self._caches.values():
            missed = cached.cache_info().misses != before.misses
            if missed and _holds_traced(gc.get_referents(cached)):
                cached.cache_clear()
                found = _name_of(cached)
        return found

    def settle(self) -> None:
        """Guard the attributes that are read behind values that are not known."""
        try:
            self._settle()
        except _FoundError as found:
            raise self.fail(found.what, line=found.line) from None

    def _settle(self) -> None:
        for cached, before in self._caches.values():
            counts = cached.cache_info()
            if counts != before:  # what it remembers, it would compute anew once it is emptied
                self._add("cache", cached, None, counts, f"the cache of {_name_of(cached)}")
        changed = True
        while changed:
            changed = False
            for holder in list(self._objects):
                for name in list(self._names):
                    key = (id(holder), name)
                    if key in self._looked_at:
                        continue
                    self._looked_at.add(key)
                    changed = True
                    text = f"{type(holder).__name__}.{name}"
                    found = self._attribute(holder, name, text, "the function", last_resort=False)
                    if found is not _MISSING:
                        self.escape(found, text, "the function")

    def _outer_object(self, value: Any) -> None:
        self._outer[id(value)] = value

    def is_outside(self, value: Any) -> bool:
        """Tell whether an object is known to have been there before the run."""
        return value is not None and id(value) in self._outer

    def add_argument(self, value: Any) -> None:
        """Guard what an argument that is neither tensor nor number holds."""
        try:
            self.escape(value, "argument", "the call")
        except _FoundError as found:
            raise self.fail(found.what, line=found.line) from None

    def knows(self, tensor: Tensor) -> bool:
        """Tell whether a tensor was found outside."""
        if id(tensor) in self.tensors:
            return True
        self.settle()
        return id(tensor) in self.tensors

    def _tensor(self, value: Tensor, guard: Guard | None) -> None:
        if value._array.__class__ is TracedArray:
            return
        known = self.tensors.get(id(value))
        if known is None or (known[1] is None and guard is not None):
            self.tensors[id(value)] = (value, guard)

    def _add(
        self, kind: str, holder: Any, key: Any, value: Any, text: str, *, of: Any = None
    ) -> None:
        """Add a guard; `of` is the class whose names `holder` is a view of, a new one each time."""
        where = id(holder if of is None else of)
        place = (kind, where, key if isinstance(key, (str, int)) else None)
        if place in self.guards:
            return
        if isinstance(value, Tensor) and kind != "content":
            if value._array.__class__ is TracedArray:
                return
            text = f"{text} is a tensor"
        elif kind == "missing" or isinstance(value, types.ModuleType):
            pass
        elif isinstance(value, CONSTANTS):
            text = f"{text} is {value!r}"
        elif kind == "names":
            pass
        elif kind in {"content", "cache"}:
            text = f"{text} holds what it held"
        else:
            text = f"{text} is the same {type(value).__name__}"
        self._outer_object(holder)
        guard = self.guards[place] = Guard(kind, holder, key, value, text)
        if isinstance(value, Tensor) and kind != "content":
            self._tensor(value, guard)


def _name_of(cached: Any) -> str:
    """Return the name of a function with a cache; those of `functools.partial` have none."""
    return str(getattr(cached, "__name__", "a function"))


def _holds_traced(values: list[Any]) -> bool:
    """Tell whether a tensor of a capture is among values, or what containers among them hold."""
    stack = list(values)
    seen: set[int] = set()
    while stack:
        value = stack.pop()
        if isinstance(value, Tensor):
            if value._array.__class__ is TracedArray:
                return True
        elif isinstance(value, (list, tuple, dict, set)) and id(value) not in seen:
            seen.add(id(value))
            stack.extend(value.values() if isinstance(value, dict) else value)
    return False


def _is_settled(kind: type) -> bool:
    """Tell whether nobody changes what a class has: those of Python's library and ours are."""
    return is_trusted_module(kind.__module__) and not kind.__module__.startswith("tensorplay.nn")


def _own(holder: Any) -> Any:
    """Return the dictionary of the attributes of an object itself, None if it has none."""
    try:
        return vars(holder)
    except TypeError:
        return None


def _names_of(holder: Any) -> Any:
    return _own(holder) or ()


_MISSING: Final = object()
_BACKWARD: Final = backward.__code__
_IMPORT: Final = sys.modules["_frozen_importlib"]._find_and_load.__code__
_EXIT_LEVEL: Final = forward_ad.exit_dual_level.__code__
#: Code of the library that came by.
_LIBRARY: Final[dict[int, types.CodeType]] = {}
_ITERATING: Final = frozenset({"parameters", "named_parameters", "buffers", "named_buffers",
                               "modules", "named_modules", "children", "named_children",
                               "state_dict"})  # fmt: skip
_REFLECTION: Final = frozenset({getattr, hasattr, vars, dir})
_OWN: Final = (Tensor, Generator, Operator, CustomOpDef)
