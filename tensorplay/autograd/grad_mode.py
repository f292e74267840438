"""Whether operations are recorded, and whether they ever can be: two flags per thread."""

from __future__ import annotations

import functools
import inspect
import threading
from typing import TYPE_CHECKING, Any, TypeVar

from tensorplay._detours import Detour, enter, leave
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
    """Tell whether operations of this thread are recorded."""
    return state.enabled


def is_inference_mode_enabled() -> bool:
    """Tell whether this thread is in `inference_mode`."""
    return state.inference


class _GradMode:
    """Context manager and decorator that sets the flag; generators keep it while they run."""

    _mode: bool

    def __init__(self) -> None:
        self._outer: list[bool] = []

    def __enter__(self) -> None:
        self._outer.append(state.enabled)
        state.enabled = self._mode and not state.inference

    def __exit__(self, *exception: object) -> None:
        state.enabled = self._outer.pop()

    def _again(self) -> _GradMode:
        return type(self)()

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

            return generator  # type: ignore[return-value]  # same signature as `function`

        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            with self._again():
                return function(*args, **kwargs)

        return wrapper  # type: ignore[return-value]  # same signature as `function`


class no_grad(_GradMode):  # noqa: N801 - the field's spelling
    """Nothing is recorded inside: ``with no_grad():`` or ``@no_grad()``."""

    _mode = False

    def __new__(cls, function: Any = None) -> Any:  # noqa: D102 - see the class
        return super().__new__(cls) if function is None else cls()(function)


class enable_grad(_GradMode):  # noqa: N801
    """Operations are recorded inside, even within `no_grad`."""

    _mode = True

    def __new__(cls, function: Any = None) -> Any:  # noqa: D102 - see the class
        return super().__new__(cls) if function is None else cls()(function)


class set_grad_enabled(_GradMode):  # noqa: N801
    """Set the flag at once; as a context manager, until the end of the block.

    Parameters
    ----------
    mode
        Whether operations are recorded from now on.
    """

    def __init__(self, mode: bool) -> None:
        super().__init__()
        self._mode = bool(mode)
        self._before = state.enabled
        state.enabled = self._mode and not state.inference

    def _again(self) -> _GradMode:
        inner = object.__new__(set_grad_enabled)
        inner._outer, inner._mode, inner._before = [], self._mode, self._before
        return inner

    def __enter__(self) -> None:
        # The flag was set by the constructor; what has to come back is what was before that.
        self._outer.append(self._before)
        state.enabled = self._mode and not state.inference

    def __call__(self, function: F) -> F:
        """Return `function` with the flag set while it runs."""
        state.enabled = self._before  # used as a decorator: only the calls are affected
        return super().__call__(function)


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
        super().__init__()
        self._mode = bool(mode)
        self._outer_inference: list[bool] = []
        self._entered: list[Detour | None] = []

    def _again(self) -> _GradMode:
        again: _GradMode = inference_mode(self._mode)
        return again

    def __enter__(self) -> None:
        self._outer.append(state.enabled)
        self._outer_inference.append(state.inference)
        if self._mode:
            state.enabled = False
        elif state.inference:
            state.enabled = True
        state.inference = this_thread.inference = self._mode
        self._entered.append(enter("inference mode") if self._mode else None)

    def __exit__(self, *exception: object) -> None:
        detour = self._entered.pop()
        if detour is not None:
            leave(detour)
        state.inference = this_thread.inference = self._outer_inference.pop()
        state.enabled = self._outer.pop()
