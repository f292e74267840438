"""`compile` and what goes with it."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from tensorplay._detours import watching
from tensorplay.compiler.backends import BUILT_IN, lookup_backend
from tensorplay.compiler.capture import capturing
from tensorplay.compiler.function import CompiledFunction, Options, all_compiled, disabled
from tensorplay.compiler.reports import Explanation
from tensorplay.compiler.watch import CONSTANTS

__all__ = [
    "allow_in_graph",
    "assume_constant_result",
    "compile",
    "disable",
    "explain",
    "is_compiling",
    "is_exporting",
    "reset",
]

_MODES: Final = ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")

#: Elements below which a call costs more than its steps.
SMALL: Final = 1 << 14


def compile(
    model: Callable[..., Any] | None = None,
    *,
    fullgraph: bool = False,
    dynamic: bool | None = None,
    backend: str | Callable[..., Any] | None = None,
    mode: str | None = None,
    options: dict[str, Any] | None = None,
    name: str | None = None,
    disable: bool = False,
    recompile_limit: int | None = None,
    isolate_recompiles: bool = False,
    strict_native: bool = False,
    dynamic_shapes: Any = None,
) -> Any:
    """Return a function that does what `model` does, as compiled graphs.

    The first call captures what the function does to tensors; the backend makes native code of it.
    Later calls use that while what the function read from outside is as it was: types and ranks of
    tensors, numbers, globals, attributes, values that decided a branch. A new size needs no new
    program. What cannot be captured runs as it is, for a reason that ``f.report()`` gives.

    Parameters
    ----------
    model
        A function, or a module of layers. Left out, a decorator is returned.
    fullgraph
        Raise where the function cannot be captured, instead of running it eagerly.
    dynamic
        False: a program serves one set of sizes only. Otherwise a program serves all sizes for
        which the function does the same; 0 and 1 are sizes of their own.
    backend
        Name of a backend, or a function ``backend(gm, example_inputs, **kwargs)``; see
        `compiler.register_backend`. The default is ``compiler.get_default_backend()``.
    mode, options
        Hints to the backend, of which one may be given.
    name
        What the function is called in reports.
    disable
        Return `model` as it is.
    recompile_limit
        Most programs that are made; `compiler.config.recompile_limit` if left out.
    isolate_recompiles
        Count the programs of this function alone, which is always so here.
    strict_native
        Raise where anything would run in Python.
    dynamic_shapes
        Another way to write ``dynamic=True``.

    Returns
    -------
    function
        With ``report()`` and ``__wrapped__``.

    Raises
    ------
    TypeError
        `model` is not callable, `options` is no dictionary, or `recompile_limit` no int.
    ValueError
        No backend is called so, or `recompile_limit` is below 1.
    RuntimeError
        Both `mode` and `options`, or both `dynamic` and `dynamic_shapes`, are given, or one is not
        known.
    """
    keywords = _keywords(backend, mode, options, dynamic, dynamic_shapes)
    if name is not None:
        keywords["name"] = name
    if strict_native:
        keywords["strict_native"] = True
    _check_limit(recompile_limit)
    chosen = None if backend is None else lookup_backend(backend)
    settings = Options(
        backend=chosen,
        keywords=keywords,
        fullgraph=bool(fullgraph),
        dynamic=True if dynamic_shapes is not None else dynamic,
        recompile_limit=recompile_limit,
        strict_native=bool(strict_native),
    )

    def decorate(function: Callable[..., Any]) -> Any:
        given: Any = function
        if not callable(given):
            message = (
                "[compile] argument 'model': expected a function or a module, got "
                f"{type(function).__name__}."
            )
            raise TypeError(message)
        if disable:
            return function
        if isinstance(function, CompiledFunction):
            function = function.__wrapped__
        return CompiledFunction(function, settings, name)

    return decorate if model is None else decorate(model)


def _keywords(
    backend: Any, mode: Any, options: Any, dynamic: Any, dynamic_shapes: Any
) -> dict[str, Any]:
    """Return what the user set, checked, as a backend gets it."""
    if mode is not None and options is not None:
        message = "[compile] Either mode or options can be specified, but both can't be."
        raise RuntimeError(message)
    if dynamic is not None and dynamic_shapes is not None:
        message = "[compile] Either dynamic or dynamic_shapes can be specified, but both can't be."
        raise RuntimeError(message)
    if options is not None and not isinstance(options, Mapping):
        message = (
            f"[compile] argument 'options': expected a dictionary, got {type(options).__name__}."
        )
        raise TypeError(message)
    if mode is not None and mode not in _MODES:
        message = (
            f"[compile] argument 'mode': unknown mode {mode!r}, expected one of "
            f"{', '.join(_MODES)}."
        )
        raise RuntimeError(message)
    if backend is None or (isinstance(backend, str) and backend in BUILT_IN):
        for option in options or ():
            message = (
                f"[compile] argument 'options': unknown option {option!r}, the built-in backends "
                "have none. Leave it out, or register a backend that reads it."
            )
            raise RuntimeError(message)
    given = {"mode": mode, "options": options, "dynamic": dynamic}
    found = {k: v for k, v in given.items() if v is not None}
    if dynamic_shapes is not None:
        found["dynamic"] = True
    return found


def _check_limit(limit: Any) -> None:
    if limit is None:
        return
    if not isinstance(limit, int) or isinstance(limit, bool):
        message = f"[compile] argument 'recompile_limit': expected int, got {type(limit).__name__}."
        raise TypeError(message)
    if limit < 1:
        message = f"[compile] argument 'recompile_limit': expected at least 1, got {limit}."
        raise ValueError(message)


def explain(f: Callable[..., Any], *extra: Any, **options: Any) -> Callable[..., Explanation]:
    """Return a function that calls `f` compiled and says what became of it.

    Parameters
    ----------
    f
        A function, or a compiled one, whose settings are kept.
    *extra
        Nothing; arguments of the call go into the second pair of parentheses.
    **options
        Settings of `compile`.

    Returns
    -------
    function
        ``explain(f)(*args)`` gives graphs, guards, what runs together, generated source, breaks and
        reasons as plain data; ``to_text()`` and ``to_html()`` show them.
    """
    del extra

    def run(*args: Any, **kwargs: Any) -> Explanation:
        if isinstance(f, CompiledFunction):
            made = CompiledFunction(f.__wrapped__, f._options, f._name)
        else:
            made = compile(f, **options)
        result = made(*args, **kwargs)
        report = made.report()
        times = _times(made, args, kwargs)
        return Explanation(**{**vars(report), "result": result, **times})

    return run


def _times(made: CompiledFunction, args: Any, kwargs: Any) -> dict[str, Any]:
    """Return how long a call takes compiled and eagerly, if it does nothing but compute."""
    programs = made.programs()
    if len(programs) != 1 or not programs[0].computes_only:
        return {}
    compiled, eager = (_shortest(f, args, kwargs) for f in (made, made.__wrapped__))
    why = ""
    if compiled > eager:
        program = programs[0]
        kinds = {r.kind for r in made.report().details[0].regions}
        if "kernel" not in kinds:
            why = "no steps are fused: each runs by itself, as it does eagerly"
        elif program.elements < SMALL:
            why = (
                f"the largest of its tensors has {program.elements} elements, so that guards and "
                "the call cost more than what fusing saves"
            )
        else:
            why = "its steps are bound by a library, or its kernels do not pay on this machine"
    return {"seconds": compiled, "eager_seconds": eager, "slower_because": why}


def _shortest(function: Callable[..., Any], args: Any, kwargs: Any) -> float:
    best = float("inf")
    for _ in range(7):
        begin = time.perf_counter()
        function(*args, **kwargs)
        best = min(best, time.perf_counter() - begin)
    return best


def is_compiling() -> bool:
    """Tell whether the calling code is being captured.

    Returns
    -------
    bool
        Whether it is.
    """
    return capturing()


def is_exporting() -> bool:
    """Tell whether the calling code is being exported, which is not possible yet.

    Returns
    -------
    bool
        False.
    """
    return False


def reset() -> None:
    """Forget all programs of all compiled functions."""
    for function in list(all_compiled):
        function.reset()


def disable(
    fn: Callable[..., Any] | None = None, recursive: bool = True, *, reason: str | None = None
) -> Any:
    """Return `fn` so that it is never captured; a function that calls it runs eagerly.

    Parameters
    ----------
    fn
        The function; without it, a decorator is returned.
    recursive
        Whether compiled functions that it calls run eagerly, too.
    reason
        What reports say.

    Returns
    -------
    callable
        The function, or a decorator.

    Raises
    ------
    TypeError
        `fn` is no function.
    """
    if fn is None:
        return lambda function: disable(function, recursive, reason=reason)
    given: Any = fn
    if not callable(given):
        message = f"[disable] argument 'fn': expected a function, got {type(fn).__name__}."
        raise TypeError(message)
    function: Callable[..., Any] = fn.__wrapped__ if isinstance(fn, CompiledFunction) else fn

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        if watching.recorder is not None:
            why = "" if reason is None else f" ({reason})"
            name = getattr(function, "__name__", "a function")
            raise watching.recorder.refuse(f"calls {name}, which is kept out of compiling{why}")
        if not recursive:
            return function(*args, **kwargs)
        disabled.depth += 1
        try:
            return function(*args, **kwargs)
        finally:
            disabled.depth -= 1

    return wrapper


def assume_constant_result(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Return `fn` so that a captured function takes its result for a constant.

    What it reads is not guarded; it runs once for each capture.

    Parameters
    ----------
    fn
        A function.

    Returns
    -------
    callable
        `fn` itself.

    Raises
    ------
    RuntimeError
        When it is called in a capture and returns something else than a constant.
    """

    @functools.wraps(fn)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        recorder = watching.recorder
        if recorder is None:
            return fn(*args, **kwargs)
        with recorder.unwatched():
            result = fn(*args, **kwargs)
        if not isinstance(result, CONSTANTS):
            raise recorder.refuse(
                f"takes a {type(result).__name__} for a constant (assume_constant_result)"
            )
        return result

    return wrapper


def allow_in_graph(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Return `fn` so that a captured function runs through it without looking at what it reads.

    Its operators join the graph; globals and attributes that it reads are not guarded.

    Parameters
    ----------
    fn
        A function on tensors.

    Returns
    -------
    callable
        `fn` itself.
    """

    @functools.wraps(fn)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        recorder = watching.recorder
        if recorder is None:
            return fn(*args, **kwargs)
        with recorder.unwatched():
            return fn(*args, **kwargs)

    return wrapper
