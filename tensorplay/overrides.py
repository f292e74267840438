"""Types and modes that answer calls of TensorPlay's functions.

A type joins in by a method ``__tensorplay_function__(func, types, args, kwargs=None)``. It is
called for functions, methods and operators of which an instance is an argument, also inside a list
or tuple: subclasses before their bases, else from left to right, until one returns something else
than NotImplemented. `func` is the function (``tensorplay.add``), method (``Tensor.add``, for
``x + y`` too) or accessor (``Tensor.shape.__get__``), and `types` holds the types that are asked.

Classes of tensors inherit such a method: it computes, and returns tensors of the class. A class
that sets ``__tensorplay_function__ = None`` is treated as a plain tensor. A
`TensorPlayFunctionMode` answers all calls of a ``with`` block, those of factories included. What
only looks at a plain tensor (its shape, ``item``, ``numpy``), its accessors (``x.T``, ``x.real``)
and ``detach``, which compute nothing, are no calls that modes see; classes of tensors do.

See Also
--------
PyTorch's ``torch.overrides``, whose protocol this is under other names.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Iterable
from types import FunctionType, ModuleType
from typing import Any, Final, TypeVar, cast

from tensorplay._tensor import Tensor
from tensorplay.ops.dispatch import (
    HOOK,
    as_at_entry,
    is_override,
    local,
    members,
    pop_mode,
    push_mode,
    qualified_name,
    redirect,
)

__all__ = [
    "TensorPlayFunctionMode",
    "enable_reentrant_dispatch",
    "get_ignored_functions",
    "get_overridable_functions",
    "get_testing_overrides",
    "handle_tensorplay_function",
    "has_tensorplay_function",
    "is_tensor_like",
    "is_tensor_method_or_property",
    "redispatch_function",
    "resolve_name",
    "wrap_tensorplay_function",
]

FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])
ModeT = TypeVar("ModeT", bound="TensorPlayFunctionMode")

# Modules whose public functions may be answered by others; `Tensor` is added to these.
NAMESPACES: Final = ("", ".linalg", ".fft", ".autograd")


class TensorPlayFunctionMode:
    """Answers all calls in a ``with`` block; subclasses define ``__tensorplay_function__``.

    Modes are a stack of their thread. The innermost is asked first; while it answers, calls go to
    the next one outside of it.

    Examples
    --------
    >>> import tensorplay
    >>> class Names(TensorPlayFunctionMode):
    ...     def __tensorplay_function__(self, func, types, args=(), kwargs=None):
    ...         names.append(resolve_name(func))
    ...         return func(*args, **(kwargs or {}))
    >>> names = []
    >>> with Names():
    ...     x = tensorplay.ones(2) + 1
    >>> names
    ['tensorplay.ones', 'tensorplay.Tensor.add']
    """

    def __tensorplay_function__(
        self,
        func: Callable[..., Any],
        types: tuple[type, ...],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Answer a call, or return NotImplemented to leave it to the next."""
        message = (
            f"[{type(self).__name__}] a mode defines __tensorplay_function__(self, func, types, "
            "args=(), kwargs=None)."
        )
        raise NotImplementedError(message)

    def __enter__(self: ModeT) -> ModeT:
        push_mode(self)
        return self

    def __exit__(self, *_: object) -> None:
        pop_mode(self)


# --- in functions of users ------------------------------------------------------------------------


def has_tensorplay_function(args: Any) -> bool:
    """Tell whether a mode or one of `args`, a list or tuple, would answer a call.

    The question that a function of a user asks first; then `handle_tensorplay_function`.

    Parameters
    ----------
    args
        The arguments.

    Returns
    -------
    bool
        Whether one would.
    """
    if local.skip is not None:  # the call that `redispatch_function` made
        local.skip = None
        return False
    values = args if isinstance(args, (list, tuple)) else (args,)
    return bool(local.modes) or (local.types and any(map(is_override, values)))


def handle_tensorplay_function(
    public_api: Callable[..., Any], relevant_args: Iterable[Any], *args: Any, **kwargs: Any
) -> Any:
    """Return what modes and types of `relevant_args` make of ``public_api(*args, **kwargs)``.

    Parameters
    ----------
    public_api
        The function that was called.
    relevant_args
        The arguments whose types are asked.
    *args
        Arguments of the call.
    **kwargs
        Named arguments of the call.

    Returns
    -------
    object
        The first answer that is not NotImplemented.

    Raises
    ------
    TypeError
        Nobody is there to ask, or all returned NotImplemented.
    """

    def nobody() -> Any:
        raise TypeError(
            f"no implementation found for '{qualified_name(public_api)}' on types "
            f"{[type(x).__name__ for x in relevant_args]}: none of them implements {HOOK}, and no "
            "mode is active. Ask has_tensorplay_function(args) first."
        )

    relevant_args = tuple(relevant_args)
    return redirect(public_api, nobody, relevant_args, args, kwargs)


def wrap_tensorplay_function(
    dispatcher: Callable[..., Iterable[Any]],
) -> Callable[[FunctionT], FunctionT]:
    """Make a function of a user one that others may answer.

    Parameters
    ----------
    dispatcher
        Takes the arguments of the function and returns those whose types are asked.

    Returns
    -------
    callable
        A decorator.
    """

    def decorate(function: FunctionT) -> FunctionT:
        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            relevant = tuple(dispatcher(*args, **kwargs))
            return redirect(wrapper, lambda: function(*args, **kwargs), relevant, args, kwargs)

        return cast("FunctionT", wrapper)

    return decorate


# --- in answers -----------------------------------------------------------------------------------


def redispatch_function(
    func: Callable[..., Any],
    types: Iterable[type],
    args: tuple[Any, ...],
    kwargs: dict[str, Any] | None = None,
) -> Any:
    """Call `func` without asking anybody about this call, but about those that it makes itself.

    Parameters
    ----------
    func
        The function that was called.
    types
        The types that were asked.
    args
        Arguments of the call.
    kwargs
        Named arguments of the call.

    Returns
    -------
    object
        What `func` returns.
    """
    before, local.skip = local.skip, func
    try:
        return func(*args, **(kwargs or {}))
    finally:
        local.skip = before


def enable_reentrant_dispatch() -> Any:
    """Return a context inside of an answer in which those are asked who were outside of it.

    A mode that answers a call is not asked about the calls it makes; in this context it is.

    Returns
    -------
    context manager
        For a ``with`` block.
    """
    return as_at_entry()


# --- what there is --------------------------------------------------------------------------------


def is_tensor_like(inp: Any) -> bool:
    """Tell whether `inp` is a tensor, or of a type with ``__tensorplay_function__``.

    Parameters
    ----------
    inp
        Anything.

    Returns
    -------
    bool
        Whether it is.
    """
    return isinstance(inp, Tensor) or getattr(type(inp), HOOK, None) is not None


def is_tensor_method_or_property(func: Callable[..., Any]) -> bool:
    """Tell whether `func` is a method of tensors, or accesses a property of them.

    Parameters
    ----------
    func
        A function.

    Returns
    -------
    bool
        Whether it is, or does.
    """
    return _names().get(func, "").startswith("tensorplay.Tensor.")


def resolve_name(f: Any) -> str | None:
    """Return the name of a function handed to ``__tensorplay_function__``; None of no function.

    Evaluated, the name gives the function.

    Parameters
    ----------
    f
        The function.

    Returns
    -------
    str or None
        Such as ``'tensorplay.add'``.
    """
    if not callable(f):
        return None
    operator = getattr(f, "operator", None)
    if operator is not None and operator.schema.namespace is not None:
        return f"tensorplay.ops.{operator.schema.namespace}.{operator.name}"
    return _names().get(f) or qualified_name(f)


def get_overridable_functions() -> dict[Any, list[Callable[..., Any]]]:
    """Return the functions that types and modes may answer, by the namespace they lie in.

    Returns
    -------
    dict
        Lists of functions by module or class.
    """
    found: dict[Any, list[Callable[..., Any]]] = {
        module: [f for f in _functions(module).values() if hasattr(f, "overridable")]
        for module in _modules()
    }
    found[Tensor] = list(_tensor_members().values())
    return found


def get_ignored_functions() -> set[Callable[..., Any]]:
    """Return the public functions that nobody is asked about: settings, types and conversions.

    Returns
    -------
    set of callable
        The functions.
    """
    return {
        f for module in _modules() for f in _functions(module).values()
        if not hasattr(f, "overridable")
    }  # fmt: skip


def get_testing_overrides() -> dict[Callable[..., Any], Callable[..., Any]]:
    """Return for each overridable function a dummy with its signature that returns -1.

    Returns
    -------
    dict
        The dummies by function.
    """
    functions = (f for group in get_overridable_functions().values() for f in group)
    return {f: _dummy(f) for f in functions}


def _dummy(function: Callable[..., Any]) -> Callable[..., Any]:
    owner = getattr(function, "__self__", None)
    if isinstance(owner, property):
        accessor: dict[str, Any] = {
            "__get__": owner.fget,
            "__set__": owner.fset,
            "__delete__": owner.fdel,
        }
        signature = inspect.signature(accessor[function.__name__])
    else:
        signature = inspect.signature(function)

    def dummy(*args: Any, **kwargs: Any) -> int:
        signature.bind(*args, **kwargs)
        return -1

    dummy.__name__ = getattr(function, "__name__", "dummy")
    vars(dummy)["__signature__"] = signature
    return dummy


def _modules() -> list[ModuleType]:
    named = (f"tensorplay{name}" for name in NAMESPACES)
    return [sys.modules[name] for name in named if name in sys.modules]


def _functions(module: ModuleType) -> dict[str, Callable[..., Any]]:
    names = getattr(module, "__all__", ())
    return {n: f for n in names if isinstance(f := getattr(module, n), FunctionType)}


def _tensor_members() -> dict[str, Callable[..., Any]]:
    """Return methods and accessors of properties, by their names below ``tensorplay.Tensor``."""
    found: dict[str, Callable[..., Any]] = {}
    for name, member in members().items():
        if isinstance(member, property):
            for part, accessor in (("get", member.fget), ("set", member.fset)):
                if accessor is not None:
                    found[f"{name}.__{part}__"] = getattr(member, f"__{part}__")
        else:
            found[name] = member
    for owner in Tensor.__mro__:
        for name, member in vars(owner).items():
            if hasattr(member, "overridable"):
                found.setdefault(name, member)
    return found


def _names() -> dict[Any, str]:
    """Return the name of every public function; of two names, the first."""
    return _names_in(tuple(_modules()))


@functools.lru_cache(maxsize=1)
def _names_in(modules: tuple[ModuleType, ...]) -> dict[Any, str]:
    found: dict[Any, str] = {}
    for module in modules:
        for name, function in _functions(module).items():
            found.setdefault(function, f"{module.__name__}.{name}")
    for name, function in _tensor_members().items():
        found.setdefault(function, f"tensorplay.Tensor.{name}")
    return found
