"""Who else may answer a call: the types of its arguments, and modes.

A type with ``__tensorplay_function__`` answers the calls that it is an argument of, and a mode all
calls of its block. This module decides whom to ask; `tensorplay.overrides` is the public side.

Ordinary calls pay one test of `protocol`, which is off until a mode is entered or a class of
tensors is defined. Other types are met where an argument is refused, by a TypeError; functions
written by hand, which cost more, look for them first.
"""

from __future__ import annotations

import functools
import inspect
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

from tensorplay._detours import Detour, detours, enter, leave, watching
from tensorplay._device import device
from tensorplay._dtype import dtype
from tensorplay._methods import TensorMethods, attach
from tensorplay._tensor import Tensor, twin_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

__all__ = [
    "UNANSWERED",
    "NoAnswerError",
    "OverriddenError",
    "ask",
    "has_override",
    "overloaded",
    "overridable",
    "overridable_alone",
    "overridable_method",
    "pop_mode",
    "protocol",
    "push_mode",
    "qualified_name",
    "redirect",
    "types_off",
]

FunctionT = TypeVar("FunctionT", bound="Callable[..., Any]")

HOOK: Final = "__tensorplay_function__"
COMMON: Final = frozenset({  # these answer nothing
    Tensor, int, float, bool, str, type(None), dtype, device,
})  # fmt: skip


class OverriddenError(TypeError):
    """An argument was refused whose type may answer the call itself."""


class NoAnswerError(TypeError):
    """All who were asked for an answer returned NotImplemented."""


class _Protocol:
    """Whether anything that may answer calls exists in this process."""

    __slots__ = ("on",)

    def __init__(self) -> None:
        self.on = False


class _Local(threading.local):
    """What is asked in this thread."""

    def __init__(self) -> None:
        self.modes: tuple[Any, ...] = ()  # outermost first
        self.types = True  # whether types are asked
        self.skip: Any = None  # the function whose next call is asked of nobody
        self.entry: tuple[tuple[Any, ...], bool] | None = None  # as it was before the first answer


protocol: Final = _Protocol()
local: Final = _Local()

_lock: Final = threading.Lock()
_counts: Final = {"modes": 0, "classes": 0}
_detours: Final[list[Detour]] = []  # one while there are modes, which the long way asks


def _count(what: str, change: int) -> None:
    with _lock:
        _counts[what] += change
        protocol.on = any(_counts.values())
        if _counts["modes"] and not _detours:
            _detours.append(enter("a mode that answers calls"))
        elif not _counts["modes"] and _detours:
            leave(_detours.pop())


def push_mode(mode: Any) -> None:
    """Ask `mode` first in this thread."""
    local.modes = (*local.modes, mode)
    _count("modes", 1)


def pop_mode(mode: Any) -> None:
    """Stop asking `mode`, the one that was pushed last in this thread.

    Raises
    ------
    RuntimeError
        It is not the innermost.
    """
    if not local.modes or local.modes[-1] is not mode:
        inner = type(local.modes[-1]).__name__ if local.modes else "none"
        message = (
            f"[{type(mode).__name__}] a mode is left that is not the innermost of this thread, "
            f"which is {inner}. Write nested `with` blocks."
        )
        raise RuntimeError(message)
    local.modes = local.modes[:-1]
    _count("modes", -1)


@contextmanager
def _state(modes: tuple[Any, ...], types: bool) -> Iterator[None]:
    before = local.modes, local.types
    local.modes, local.types = modes, types
    try:
        yield
    finally:
        local.modes, local.types = before


def types_off() -> Any:
    """Return a context in which types are not asked; modes are."""
    return _state(local.modes, False)


def as_at_entry() -> Any:
    """Return a context in which those are asked who were before the first of them answered."""
    return _state(*((local.modes, local.types) if local.entry is None else local.entry))


# --- whom to ask ----------------------------------------------------------------------------------


def is_override(value: Any) -> bool:
    """Tell whether the type of `value` answers calls; plain tensors do not."""
    kind = type(value)
    return kind is not Tensor and getattr(kind, HOOK, None) is not None


def has_override(value: Any) -> bool:
    """Tell whether `value`, or a member of it if it is a list or tuple, answers calls."""
    if isinstance(value, (list, tuple)):
        return any(is_override(v) for v in value)
    return is_override(value)


def overloaded(values: Iterable[Any]) -> list[Any]:
    """Return one argument of each type that answers calls, in the order in which they are asked.

    From left to right, members of lists and tuples included, subclasses before their bases.
    """
    found: list[Any] = []
    for value in values:
        for x in value if isinstance(value, (list, tuple)) else (value,):
            if not is_override(x) or any(type(x) is type(y) for y in found):
                continue
            bases = (n for n, y in enumerate(found) if issubclass(type(x), type(y)))
            found.insert(next(bases, len(found)), x)
    return found


def qualified_name(function: Any) -> str:
    """Return the public name of a function, a method or the getter of a property."""
    owner = getattr(function, "__self__", None)
    if isinstance(owner, property) and owner.fget is not None:
        return f"tensorplay.Tensor.{owner.fget.__name__}.{function.__name__}"
    module = getattr(function, "__module__", None) or "builtins"
    name = getattr(function, "__qualname__", None) or repr(function)
    if module.startswith("tensorplay."):  # where it is written says nothing to a user
        public = module in {"tensorplay.linalg", "tensorplay.fft", "tensorplay.autograd"}
        module = module if public else "tensorplay"
    return f"{module}.{name}"


def hand_over(public: Any, found: list[Any], modes: tuple[Any, ...], args: Any, kwargs: Any) -> Any:
    """Ask modes, the innermost first, then the arguments `found`; return the first answer.

    Raises
    ------
    TypeError
        All of them returned NotImplemented.
    """
    types = tuple(type(x) for x in found)
    outermost = local.entry is None
    if outermost:
        local.entry = modes, local.types
    try:
        for depth in range(len(modes) - 1, -1, -1):
            with _state(modes[:depth], local.types):
                result = getattr(modes[depth], HOOK)(public, types, args, kwargs)
            if result is not NotImplemented:
                return result
        # Modes that declined are not asked again for what the types do.
        with _state((), local.types):
            for x in found:
                result = getattr(x, HOOK)(public, types, args, kwargs)
                if result is not NotImplemented:
                    return result
    finally:
        if outermost:
            local.entry = None
    asked = [*(type(m) for m in reversed(modes)), *types]
    raise NoAnswerError(
        f"no implementation found for '{qualified_name(public)}' on types that implement {HOOK}: "
        f"{[t.__name__ for t in asked]}. Return a result for it, or call "
        f"super().{HOOK}(func, types, args, kwargs)."
    )


def redirect(
    public: Any,
    run: Callable[[], Any],
    relevant: Iterable[Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    problem: Exception | None = None,
) -> Any:
    """Return what modes and types make of a call, or ``run()`` if there is nobody to ask.

    `problem` is raised instead if the call failed already.
    """
    if isinstance(problem, NoAnswerError):  # they were asked about a call inside of this one
        raise problem
    modes: tuple[Any, ...] = ()
    found: list[Any] = []
    if local.skip is not None and local.skip == public:
        local.skip = None
    else:
        modes = local.modes
        found = overloaded(relevant) if local.types else []
    if found or modes:
        return hand_over(public, found, modes, args, kwargs)
    if problem is not None:
        raise problem
    return run()


UNANSWERED: Final = object()


def ask(public: Any, relevant: Iterable[Any], args: tuple[Any, ...]) -> Any:
    """Return what modes and types make of a call, `UNANSWERED` if there is nobody to ask."""
    return redirect(public, lambda: UNANSWERED, relevant, args, {})


def overridable(function: FunctionT) -> FunctionT:
    """Make a function written by hand one that modes and types of arguments may answer."""
    return _asking(function, function)


def overridable_alone(function: FunctionT) -> FunctionT:
    """Do the same for a function whose own calls are asked of nobody.

    The formulas of a backward pass are no calls of the user.
    """

    def alone(*args: Any, **kwargs: Any) -> Any:
        # Without a context manager: those of contextlib set the traceback of what passes, and some
        # exceptions cannot be changed.
        before = local.modes, local.types
        local.modes, local.types = (), False
        try:
            return function(*args, **kwargs)
        finally:
            local.modes, local.types = before

    return _asking(function, alone)


def overridable_method(function: FunctionT) -> FunctionT:
    """Do the same for a method of tensors that refuses arguments by `reject`: it costs less."""

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        problem = None
        if not protocol.on:
            try:
                return function(*args, **kwargs)
            except TypeError as error:  # also of an argument before the one that answers
                problem = error
        relevant = (*args, *kwargs.values())
        return redirect(wrapper, lambda: function(*args, **kwargs), relevant, args, kwargs, problem)

    vars(wrapper)["overridable"] = True
    return cast("FunctionT", wrapper)


def _asking(function: FunctionT, run: Callable[..., Any]) -> FunctionT:
    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        if detours and watching.recorder is not None:
            answer = watching.recorder.answer(wrapper, args, kwargs)
            if answer is not UNANSWERED:
                return answer
        if protocol.on:
            relevant = (*args, *kwargs.values())
            return redirect(wrapper, lambda: run(*args, **kwargs), relevant, args, kwargs)
        for value in (*args, *kwargs.values()) if kwargs else args:
            if type(value) not in COMMON and has_override(value):
                relevant = (*args, *kwargs.values())
                return redirect(wrapper, lambda: run(*args, **kwargs), relevant, args, kwargs)
        return function(*args, **kwargs)

    vars(wrapper)["overridable"] = True
    return cast("FunctionT", wrapper)


# --- classes of tensors ---------------------------------------------------------------------------

# What Python and NumPy ask of classes, and what must work whatever a class answers.
UNTOUCHED: Final = frozenset({
    *("__class__", "__dict__", "__doc__", "__init__", "__init_subclass__", "__module__"),
    *("__new__", "__slots__", "__weakref__", "__annotations__", "__hash__", HOOK),
    *("__array_function__", "__array_namespace__", "__array_ufunc__", "as_subclass"),
})  # fmt: skip


def members() -> dict[str, Any]:
    """Return the public methods and properties of tensors that are written by hand, by name."""
    found = {}
    for owner in reversed(Tensor.__mro__[:-1]):
        for name, member in vars(owner).items():
            hidden = name.startswith("_") and not name.endswith("__")
            if hidden or name in UNTOUCHED or hasattr(member, "overridable"):
                continue
            if isinstance(member, property) or inspect.isfunction(member):
                found[name] = member
    return found


def _asking_method(function: Any) -> Any:
    @functools.wraps(function)
    def method(self: Tensor, *args: Any, **kwargs: Any) -> Any:
        def run() -> Any:
            return function(self, *args, **kwargs)

        return redirect(function, run, (self, *args), (self, *args), kwargs)

    return method


def _asking_property(member: property) -> property:
    def asking(name: str, accessor: Any) -> Any:
        if accessor is None:
            return None
        public = getattr(member, name)

        def access(self: Tensor, *value: Any) -> Any:
            args = (self, *value)
            return redirect(public, lambda: accessor(*args), args, args, {})

        return access

    return property(
        asking("__get__", member.fget), asking("__set__", member.fset),
        asking("__delete__", member.fdel), member.__doc__,
    )  # fmt: skip


def _on_subclass(cls: type[Any], /, **kwargs: Any) -> None:
    """Prepare a new class of tensors: its methods and properties ask it, too."""
    super(TensorMethods, cls).__init_subclass__(**kwargs)
    if getattr(cls, HOOK) is None:
        return
    own = {name for c in cls.__mro__[: cls.__mro__.index(Tensor)] for name in vars(c)}
    for name, member in members().items():
        if name not in own:
            made = _asking_property if isinstance(member, property) else _asking_method
            setattr(cls, name, made(member))
    _count("classes", 1)


def relabel(tensor: Tensor, cls: type[Tensor]) -> Tensor:
    """Return a tensor of class `cls` with memory and history of `tensor`, which is given up."""
    return twin_of(tensor, cls)


def _convert(result: Any, cls: type[Tensor], args: Iterable[Any]) -> Any:
    if type(result) is Tensor:
        # What was handed in is handed back as it is.
        return result if any(x is result for x in args) else relabel(result, cls)
    if isinstance(result, (list, tuple)) and any(type(x) is Tensor for x in result):
        converted = [_convert(x, cls, args) for x in result]
        if isinstance(result, list):
            return converted
        kind = type(result)
        return kind(*converted) if hasattr(result, "_fields") else kind(converted)
    return result


def _default(
    cls: type[Tensor],
    func: Any,
    types: Iterable[type],
    args: tuple[Any, ...] = (),
    kwargs: dict[str, Any] | None = None,
) -> Any:
    """Answer a call of `func` for this class of tensors: compute, and return its own class.

    Overriding methods call it by ``super()``. NotImplemented if a type is involved that is no
    base of this class.
    """
    if not all(issubclass(cls, t) for t in types):
        return NotImplemented
    with types_off():
        result = func(*args, **(kwargs or {}))
    if cls is Tensor or func == _GRAD:
        return result
    return _convert(result, cls, args)


_GRAD: Final = vars(Tensor)["grad"].__get__

attach(HOOK, classmethod(_default))
attach("__init_subclass__", classmethod(_on_subclass))
