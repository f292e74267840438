"""Whether operations are recorded, and whether they ever can be: two flags per thread."""

from __future__ import annotations

import functools
import inspect
import threading
from typing import TYPE_CHECKING, Any, TypeVar, cast

from tensorplay import _native
from tensorplay._detours import Detour, detours, enter, leave
from tensorplay._tensor import this_thread

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = [
    "enable_grad",
    "inference_mode",
    "is_grad_enabled",
    "is_inference_mode_enabled",
    "no_grad",
    "set_grad_enabled",
]

F = TypeVar("F", bound="Callable[..., Any]")


class _State(threading.local):
    enabled: bool = True
    inference: bool = False


state = _State()


def is_grad_enabled() -> bool:
    """Tell whether operations of this thread are recorded.

    Returns
    -------
    bool
        True unless in `no_grad` or `inference_mode`.
    """
    return state.enabled


def is_inference_mode_enabled() -> bool:
    """Tell whether this thread is in `inference_mode`.

    Returns
    -------
    bool
        Whether it is.
    """
    return state.inference


class _PythonBase:
    """The base of the context managers where the extension is not there.

    An exception from outside, such as KeyboardInterrupt, can arrive inside of `__exit__` before the
    mode is back; in the extension it cannot.
    """

    _mode: bool
    _wanted: bool
    _is_inference: bool
    _outer: list[tuple[bool, bool, Detour | None]]
    _start: bool | None

    def __new__(cls, function: Any = None) -> Any:
        self: Any = super().__new__(cls)
        self._wanted, self._is_inference = cls._mode, False
        self._outer, self._start = [], None
        return self if function is None else self(function)

    def _set_mode(self, wanted: bool, inference: bool = False) -> None:
        """Say which mode this is."""
        self._wanted, self._is_inference = wanted, inference

    def _start_from(self, enabled: bool) -> None:
        """Go back to `enabled` at the end, whatever is when the mode is entered."""
        self._start = enabled

    def __enter__(self) -> None:
        before = state.enabled if self._start is None else self._start
        infers, wanted = state.inference, self._wanted
        detour = enter("inference mode") if wanted and self._is_inference else None
        self._outer.append((before, infers, detour))
        if not self._is_inference:
            state.enabled = wanted and not infers
            return
        # Leaving inference mode records again; outside of it nothing changes.
        state.enabled = not wanted and (infers or state.enabled)
        state.inference = this_thread.inference = wanted

    def __exit__(self, *exception: object) -> None:
        before, infers, detour = self._outer.pop()
        if detour is not None:
            leave(detour)
        if self._is_inference:
            state.inference = this_thread.inference = infers
        state.enabled = before


_Base: Any = _PythonBase
if _native.core is not None:
    _native.core.configure_grad_mode(state, this_thread, detours)
    _Base = _native.core.GradModeBase


class _GradMode(_Base):  # type: ignore[misc]  # which one it is is known at run time
    """Context manager and decorator that sets the flag; generators keep it while they run."""

    _mode = False

    def _again(self) -> _GradMode:
        return type(self)()

    def __reduce__(self) -> tuple[Any, ...]:  # a copy has not been entered
        return type(self), ()

    def __call__(self, function: F) -> F:
        """Return `function` with the flag set while it runs."""
        if inspect.isgeneratorfunction(function):

            @functools.wraps(function)
            def generator(*args: Any, **kwargs: Any) -> Any:
                inner = function(*args, **kwargs)
                resume: Callable[[], Any] = functools.partial(next, inner)
                while True:
                    try:
                        with self._again():
                            value = resume()
                    except StopIteration as stop:
                        return stop.value
                    try:
                        sent = yield value
                        resume = functools.partial(inner.send, sent)
                    except GeneratorExit:
                        inner.close()
                        raise
                    except BaseException as error:  # noqa: BLE001 - handed to the inner generator
                        resume = functools.partial(inner.throw, error)

            return cast("F", generator)

        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            with self._again():
                return function(*args, **kwargs)

        return cast("F", wrapper)


class no_grad(_GradMode):  # noqa: N801 - the field's spelling
    """Nothing is recorded inside: ``with no_grad():`` or ``@no_grad()``.

    Examples
    --------
    >>> import tensorplay as tp
    >>> x = tp.ones(2, requires_grad=True)
    >>> with tp.no_grad():
    ...     y = x * 2
    >>> y.requires_grad
    False
    """


class enable_grad(_GradMode):  # noqa: N801 - the field's spelling
    """Operations are recorded inside, even within `no_grad`."""

    _mode = True


class set_grad_enabled(_GradMode):  # noqa: N801 - the field's spelling
    """Set the flag at once; as a context manager, until the end of the block.

    Parameters
    ----------
    mode
        Whether operations are recorded from now on.
    """

    def __new__(cls, mode: bool) -> Any:  # noqa: D102 - see the class
        return super().__new__(cls)

    def __init__(self, mode: bool) -> None:
        self._wants = bool(mode)
        self._before: bool | None = state.enabled
        self._set_mode(self._wants)
        # The flag is set here; what has to come back is what was before that.
        self._start_from(self._before)
        state.enabled = self._wants and not state.inference

    def _again(self) -> _GradMode:
        inner = _GradMode()
        inner._set_mode(self._wants)
        return inner

    def __reduce__(self) -> tuple[Any, ...]:
        return _without_setting, (self._wants,)

    def __call__(self, function: F) -> F:
        """Return `function` with the flag set while it runs."""
        if self._before is not None:  # used as a decorator: only the calls are affected
            state.enabled = self._before
        decorated: F = super().__call__(function)
        return decorated


def _without_setting(mode: bool) -> set_grad_enabled:
    """Return a copy of a `set_grad_enabled`: to copy it sets nothing."""
    made: set_grad_enabled = set_grad_enabled.__new__(set_grad_enabled, mode)
    made._wants, made._before = mode, None
    made._set_mode(mode)
    return made


class inference_mode(_GradMode):  # noqa: N801 - the field's spelling
    """Nothing is recorded inside, and what is made inside can never be.

    Its tensors have no version counter, are not saved for a backward pass, and cannot be written in
    place outside. A clone made outside is a normal tensor. Views of normal tensors are normal.

    Parameters
    ----------
    mode
        False leaves inference mode inside.
    """

    def __new__(cls, mode: Any = True) -> Any:  # noqa: D102 - see the class
        return cls()(mode) if callable(mode) else super().__new__(cls)

    def __init__(self, mode: bool = True) -> None:
        self._wants = bool(mode)
        self._set_mode(self._wants, True)

    def _again(self) -> _GradMode:
        again: _GradMode = inference_mode(self._wants)
        return again

    def __reduce__(self) -> tuple[Any, ...]:
        return inference_mode, (self._wants,)
