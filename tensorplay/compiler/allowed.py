"""What a captured function may use of Python, and what would be baked into the graph unseen."""

from __future__ import annotations

import builtins
import contextlib
import inspect
import logging
import os
import re
import sys
import threading
import types
import typing
import weakref
from pathlib import Path
from typing import Any, Final

import numpy as np

__all__ = [
    "HARMLESS",
    "is_pure",
    "is_trusted_module",
    "plain_member",
    "refused_call",
    "refused_code",
]

_LAYERS: Final = f"{__name__.partition('.')[0]}.nn."
_FIELD_OF_TUPLES: Final = type(vars(typing.NamedTuple("_Pair", [("first", int)]))["first"])

#: Objects whose state no computation depends on.
HARMLESS: Final = (
    logging.Logger, re.Pattern, weakref.ref, type(threading.Lock()), type(threading.RLock()),
    property, staticmethod, classmethod, types.GenericAlias, types.MappingProxyType,
    types.MemberDescriptorType, types.GetSetDescriptorType, types.MethodDescriptorType,
    types.WrapperDescriptorType, types.CellType, typing.TypeVar, _FIELD_OF_TUPLES,
)  # fmt: skip

_NEVER: Final = {
    name: why
    for names, why in (
        (("print", "input", "open", "breakpoint"), "which talks to the world"),
        (("exec", "eval", "compile", "__import__"), "which runs code that is not seen"),
        (("setattr", "delattr"), "which changes attributes"),
        (("globals", "locals"), "which reads variables that are not seen"),
    )
    for name in names
}
_NEVER_FUNCTIONS: Final = {id(getattr(builtins, n)): (n, why) for n, why in _NEVER.items()}

#: Modules written in C whose functions depend on their arguments only.
_PURE_MODULES: Final = frozenset({
    *("builtins", "math", "cmath", "_operator", "operator", "itertools", "_functools", "_abc"),
    *("_collections", "_bisect", "bisect", "_heapq", "heapq", "_statistics", "_struct", "_string"),
    *("_typing", "_sre", "_decimal"),
})  # fmt: skip
_PURE_TYPES: Final = frozenset({"functools", "operator", "numpy", "typing", "_operator"})
_PLAIN_OWNERS: Final = (
    str, bytes, int, float, complex, tuple, frozenset, range, slice, bool, type(None), re.Pattern,
    list, dict, set,
)  # fmt: skip
_MUTATING: Final = frozenset({
    *("append", "extend", "insert", "pop", "remove", "clear", "sort", "reverse", "update", "add"),
    *("setdefault", "popitem", "discard", "appendleft", "extendleft", "popleft", "rotate"),
    *("intersection_update", "difference_update", "symmetric_difference_update"),
    *("__setitem__", "__delitem__", "__iadd__", "__imul__", "move_to_end"),
})  # fmt: skip

# Functions of ours that change or read what is no tensor.
_OWN: Final = frozenset({
    *("manual_seed", "seed", "initial_seed", "get_rng_state", "set_rng_state", "fork_rng"),
    *("set_default_dtype", "set_default_device", "set_printoptions", "save", "load", "show_config"),
    "to_dlpack",
})  # fmt: skip


#: Functions in Python that change gradients, parameters or the state of an optimiser.
_UPDATES: Final = frozenset({"step", "zero_grad", "load_state_dict", "add_param_group"})
_OF_GRADIENTS: Final = frozenset({"clip_grad_norm_", "clip_grad_value_", "forget_gradient"})
_PACKAGE: Final = str(Path(__file__).resolve().parents[1]) + os.sep
_OPTIMISERS: Final = _PACKAGE + "optim" + os.sep


def refused_code(code: types.CodeType) -> str | None:
    """Return what a function of ours is called that no graph repeats, None for others."""
    name = code.co_name
    if name in _UPDATES and code.co_filename.startswith(_OPTIMISERS):
        return name
    if name == "zero_grad" or name in _OF_GRADIENTS:
        return name if code.co_filename.startswith(_PACKAGE) else None
    return None


def is_trusted_module(name: str) -> bool:
    """Tell whether the functions of a module are taken for what they are: ours, and Python's."""
    top = name.partition(".")[0]
    if top == "tensorplay":
        return True
    return top in {"numpy", "ml_dtypes"} or (top in sys.stdlib_module_names and top != "__main__")


def is_pure(value: Any) -> bool:
    """Tell whether a callable written in C depends on its arguments only."""
    if isinstance(value, np.ufunc):
        return True
    if isinstance(value, (types.BuiltinFunctionType, types.BuiltinMethodType)):
        return True  # `refused_call` was asked before
    if isinstance(value, types.MethodWrapperType):
        return True
    return callable(value) and type(value).__module__ in _PURE_TYPES


def refused_call(value: Any) -> str | None:
    """Return why a function may not be used, None if it may."""
    found = _NEVER_FUNCTIONS.get(id(value))
    if found is not None:
        return found[1]
    if isinstance(value, (types.BuiltinFunctionType, types.BuiltinMethodType)):
        return _refused_builtin(value)
    if isinstance(value, types.FunctionType):
        module = value.__module__ or ""
        if module.startswith("tensorplay") and value.__name__ in _OWN:
            return "which changes or reads what is no tensor"
        if module.startswith("numpy.random"):
            return "whose random numbers would be the same in each call"
    return None


def _refused_builtin(value: Any) -> str | None:
    owner = value.__self__
    if owner is None or isinstance(owner, types.ModuleType):
        module = owner.__name__ if owner is not None else value.__module__ or ""
        if module in _PURE_MODULES or (module.startswith("numpy.") and "random" not in module):
            return None
        return f"a function of {module}, which depends on more than its arguments"
    if isinstance(owner, type):
        if owner in _PLAIN_OWNERS or issubclass(owner, (tuple, dict)):
            return None
        return f"a method of {owner.__name__}, which depends on more than its arguments"
    kind = type(owner)
    if kind.__module__.startswith("numpy.random"):
        return "whose random numbers would be the same in each call"
    if isinstance(owner, _PLAIN_OWNERS):
        if value.__name__ in _MUTATING:
            return "which changes what lies outside of the function"
        return None
    if isinstance(owner, np.generic) or kind.__module__ == "tensorplay":
        return None
    return f"a method of {kind.__name__}, whose state no guard can watch"


def plain_member(holder: Any, mark: str, key: Any) -> Any:
    """Return an attribute or item, None where code of people's would have to give it.

    Parameters
    ----------
    holder
        What has it.
    mark
        ``"."`` for an attribute, else an item.
    key
        Its name, or place.
    """
    if mark == ".":
        found = inspect.getattr_static(holder, key, None)
        if isinstance(found, types.MemberDescriptorType):  # a slot
            return getattr(holder, key, None)
        return None if hasattr(type(found), "__get__") else found
    kind = type(holder)
    if kind in {list, tuple, dict} or kind.__module__.startswith(_LAYERS):
        with contextlib.suppress(LookupError, TypeError):
            return holder[key]
    return None
